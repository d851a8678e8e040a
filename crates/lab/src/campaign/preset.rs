//! Campaigns that come with Weir. Each is a file like those that users write.

use super::Campaign;
use super::format::{self, CampaignError};

/// A campaign by name.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
#[allow(missing_docs)]
pub enum Preset {
    Thesis,
    Overheads,
    Model,
    Modes,
    Octeon,
    Quick,
}

impl Preset {
    /// All.
    pub const ALL: [Self; 6] = [Self::Thesis, Self::Overheads, Self::Model, Self::Modes, Self::Octeon, Self::Quick];

    /// The text of the campaign.
    pub fn text(self) -> &'static str {
        match self {
            Self::Thesis => include_str!("presets/thesis.toml"),
            Self::Overheads => include_str!("presets/overheads.toml"),
            Self::Model => include_str!("presets/model.toml"),
            Self::Modes => include_str!("presets/modes.toml"),
            Self::Octeon => include_str!("presets/octeon.toml"),
            Self::Quick => include_str!("presets/quick.toml"),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thesis => "thesis",
            Self::Overheads => "overheads",
            Self::Model => "model",
            Self::Modes => "modes",
            Self::Octeon => "octeon",
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

    /// Preparation takes as long as the trials again: more would not be done in two minutes.
    #[test]
    fn the_quick_campaign_plans_less_than_45_seconds_of_trials() {
        let campaign = Preset::Quick.campaign().unwrap();
        let planned: f64 = campaign.studies.iter().map(|s| s.trials() as f64 * s.duration.as_secs_f64()).sum();
        assert!(planned < 45.0, "{planned} s");
    }
}
