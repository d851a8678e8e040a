//! Campaigns that come with Weir. Each is a file like those that users write.

use super::Campaign;
use super::format::{self, CampaignError};

/// A campaign by name.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
#[allow(missing_docs)]
pub enum Preset {
    Thesis,
    ThesisQuick,
    Overheads,
    Model,
    Modes,
    Octeon,
    OcteonQuick,
    Sessions,
    Async,
    Quick,
}

impl Preset {
    /// All.
    pub const ALL: [Self; 10] = [
        Self::Thesis,
        Self::ThesisQuick,
        Self::Overheads,
        Self::Model,
        Self::Modes,
        Self::Octeon,
        Self::OcteonQuick,
        Self::Sessions,
        Self::Async,
        Self::Quick,
    ];

    /// The text of the campaign.
    pub fn text(self) -> &'static str {
        match self {
            Self::Thesis => include_str!("presets/thesis.toml"),
            Self::ThesisQuick => include_str!("presets/thesis-quick.toml"),
            Self::Overheads => include_str!("presets/overheads.toml"),
            Self::Model => include_str!("presets/model.toml"),
            Self::Modes => include_str!("presets/modes.toml"),
            Self::Octeon => include_str!("presets/octeon.toml"),
            Self::OcteonQuick => include_str!("presets/octeon-quick.toml"),
            Self::Sessions => include_str!("presets/sessions.toml"),
            Self::Async => include_str!("presets/async.toml"),
            Self::Quick => include_str!("presets/quick.toml"),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thesis => "thesis",
            Self::ThesisQuick => "thesis-quick",
            Self::Overheads => "overheads",
            Self::Model => "model",
            Self::Modes => "modes",
            Self::Octeon => "octeon",
            Self::OcteonQuick => "octeon-quick",
            Self::Sessions => "sessions",
            Self::Async => "async",
            Self::Quick => "quick",
        }
    }

    /// The campaign.
    ///
    /// # Errors
    /// None: a test reads all of them.
    pub fn campaign(self) -> Result<Campaign, CampaignError> {
        format::parse(&format!("{}.toml", self.name()), self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_reads_and_is_called_by_its_name() {
        for preset in Preset::ALL {
            let campaign = preset.campaign().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(campaign.name, preset.name());
            assert!(!campaign.title.is_empty());
        }
    }

    /// On two cores; a trial takes as long again to prepare.
    #[test]
    fn the_grid_of_cores_is_whole_and_its_short_form_plans_less_than_two_minutes_of_trials() {
        let planned = |preset: Preset| {
            let mut study = preset.campaign().unwrap().studies.remove(0);
            study.cores.retain(|cores| *cores <= 2);
            (study.trials(), study.trials() as f64 * study.duration.as_secs_f64())
        };
        let (trials, seconds) = planned(Preset::Octeon);
        // Six suites of ESP in five variants, EESP and PSP in two each, by sizes, flows and cores.
        assert_eq!(trials, (6 * 5 + 2 + 2) * 6 * 4 * 2 * 9);
        assert!(seconds < 1800.0, "{seconds} s");
        let (_, seconds) = planned(Preset::OcteonQuick);
        assert!(seconds < 120.0, "{seconds} s");
    }

    /// The start of a subject and the slow start of TCP take two seconds a transfer on two cores.
    #[test]
    fn the_short_form_of_the_thesis_plans_less_than_ten_minutes() {
        let campaign = Preset::ThesisQuick.campaign().unwrap();
        let seconds = |study: &crate::campaign::Study| {
            let more = if study.kind == crate::campaign::Kind::Transfers { 2.0 } else { 0.02 };
            study.trials() as f64 * (study.duration.as_secs_f64() + more)
        };
        let planned: f64 = campaign.studies.iter().map(seconds).sum();
        assert!((60.0..500.0).contains(&planned), "{planned} s");
    }

    /// A trial of set-ups ends with the repetition that it began, and then simulates four round
    /// trips: up to 80 ms more with the largest keys.
    #[test]
    fn the_campaign_of_sessions_plans_less_than_three_minutes() {
        let campaign = Preset::Sessions.campaign().unwrap();
        let seconds = |study: &crate::campaign::Study| {
            let more = if study.kind == crate::campaign::Kind::Sessions { 0.08 } else { 0.02 };
            study.trials() as f64 * (study.duration.as_secs_f64() + more)
        };
        let planned: f64 = campaign.studies.iter().map(seconds).sum();
        assert!((30.0..160.0).contains(&planned), "{planned} s");
    }

    /// Preparation takes as long as the trials again, and starting hosts as well: more would not be
    /// done in two minutes.
    #[test]
    fn the_quick_campaign_plans_less_than_50_seconds_of_trials() {
        let campaign = Preset::Quick.campaign().unwrap();
        let planned: f64 = campaign.studies.iter().map(|s| s.trials() as f64 * s.duration.as_secs_f64()).sum();
        assert!(planned < 50.0, "{planned} s");
    }
}
