//! `weir lab run`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::campaign::{Finish, Preset, RunError, run, store, subject};
use crate::report;

/// Options of `weir lab run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Campaign to run (docs/lab-campaigns.md); without it and without --preset, the one in the
    /// folder goes on
    #[arg(value_name = "CAMPAIGN.toml", conflicts_with = "preset")]
    campaign: Option<PathBuf>,
    /// A campaign that comes with Weir
    #[arg(long, value_enum)]
    preset: Option<Preset>,
    /// Folder for trials and report
    #[arg(long, value_name = "DIR", default_value = "lab-out")]
    out: PathBuf,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Print the text of the preset and do nothing else
    #[arg(long, requires = "preset")]
    print: bool,
    /// List all subjects and do nothing else
    #[arg(long)]
    subjects: bool,
    /// Set by the run itself
    #[arg(long, hide = true)]
    session: Option<u32>,
    /// Set by the run itself
    #[arg(long, hide = true, requires = "session")]
    env_hash: Option<String>,
    /// Set by the run itself
    #[arg(long, hide = true, requires = "session")]
    inside: bool,
}

impl RunArgs {
    /// Runs the command and returns the exit status.
    pub(super) fn run(self) -> ExitCode {
        if let Some(number) = self.session {
            let env = self.env_hash.as_deref().unwrap_or_default();
            return ExitCode::from(run::session(&self.out, number, env, self.inside));
        }
        if self.subjects {
            subject::names().iter().for_each(|name| println!("{name}"));
            return ExitCode::SUCCESS;
        }
        if let (true, Some(preset)) = (self.print, self.preset) {
            print!("{}", preset.text());
            return ExitCode::SUCCESS;
        }
        match self.campaign_and_report() {
            Ok(code) => code,
            Err((code, error)) => {
                eprintln!("weir: lab: {error}");
                ExitCode::from(code)
            }
        }
    }

    fn campaign_and_report(&self) -> Result<ExitCode, (u8, String)> {
        let (file, text) = self.source().map_err(|error| (2, error))?;
        let finish = run::run(&file, &text, &self.out, self.json).map_err(|error| {
            let code = if matches!(error, RunError::Interrupted { .. }) { run::INTERRUPTED } else { 2 };
            (code, error.to_string())
        })?;
        let made = report::write(&self.out).map_err(|error| (2, error.to_string()))?;
        print!("{}", if self.json { &made.json } else { &made.table });
        eprintln!("lab: report in {}", self.out.join(report::PAGE).display());
        Ok(if finish == Finish::Complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Name and text of the campaign.
    fn source(&self) -> Result<(String, String), String> {
        if let Some(preset) = self.preset {
            return Ok((format!("preset {}", preset.name()), preset.text().to_owned()));
        }
        let path = self.campaign.clone().unwrap_or_else(|| self.out.join(store::CAMPAIGN));
        let text = std::fs::read_to_string(&path).map_err(|error| match &self.campaign {
            Some(_) => format!("{}: {error}", path.display()),
            None => format!("give a campaign, or --preset {}; weir lab run --help", preset_names()),
        })?;
        Ok((path.display().to_string(), text))
    }
}

fn preset_names() -> String {
    Preset::ALL.map(Preset::name).join("|")
}
