//! `weir lab run`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::campaign::{Finish, Kind, Preset, RunError, Setting, Single, run, store, subject};
use crate::report;

/// Options of `weir lab run`.
#[derive(Debug, Default, Args)]
pub struct RunArgs {
    /// Campaign to run (docs/lab-campaigns.md); without it and without --preset, the one in the
    /// folder is resumed
    #[arg(value_name = "CAMPAIGN.toml", conflicts_with = "preset")]
    campaign: Option<PathBuf>,
    /// A campaign that comes with Weir
    #[arg(long, value_enum)]
    preset: Option<Preset>,
    /// One study of this kind, with the usual subjects and settings
    #[arg(long, value_name = "KIND", value_parser = kind(), conflicts_with_all = ["campaign", "preset"])]
    study: Option<Kind>,
    #[command(flatten)]
    of: StudyArgs,
    /// Print the numbers of all figures, too
    #[arg(long)]
    tables: bool,
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

/// Options of a study by itself, which has short names.
#[derive(Debug, Default, Args)]
pub struct StudyArgs {
    /// Subject of the study, as weir lab run --subjects lists them; repeat it for several
    #[arg(long, value_name = "NAME")]
    subject: Vec<String>,
    /// Setting of the study, a key of docs/lab-campaigns.md; lists with commas; repeat it
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Setting>,
    /// Folder for trials and report [default: lab-out; of a study lab-KIND, or the next free
    /// lab-KIND-NUMBER]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Print the text of the campaign and do nothing else
    #[arg(long)]
    print: bool,
}

impl StudyArgs {
    /// Runs a study by its short name, and prints the long one.
    pub(super) fn run(self, kind: Kind) -> ExitCode {
        let mut words = vec!["weir lab run --study".to_owned(), kind.name().to_owned()];
        words.extend(self.subject.iter().map(|name| format!("--subject {name}")));
        words.extend(self.set.iter().map(|setting| format!("--set {setting}")));
        eprintln!("lab: {}", words.join(" "));
        RunArgs { study: Some(kind), of: self, ..RunArgs::default() }.run()
    }
}

fn kind() -> impl TypedValueParser<Value = Kind> {
    let names = PossibleValuesParser::new(Kind::ALL.map(|(name, _)| name));
    names.map(|name| Kind::ALL.into_iter().find(|(known, _)| *known == name).expect("clap has checked it").1)
}

impl RunArgs {
    /// Runs the command and returns the exit status.
    pub(super) fn run(self) -> ExitCode {
        if let Some(number) = self.session {
            let (env, dir) = (self.env_hash.as_deref().unwrap_or_default(), self.of.out.unwrap_or_default());
            return ExitCode::from(run::session(&dir, number, env, self.inside));
        }
        if self.subjects {
            subject::names().iter().for_each(|name| println!("{name}"));
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
        let Source { file, text, dir } = self.source().map_err(|error| (2, error))?;
        if self.of.print {
            print!("{text}");
            return Ok(ExitCode::SUCCESS);
        }
        let finish = run::run(&file, &text, &dir, self.of.json).map_err(|error| {
            let code = if matches!(error, RunError::Interrupted { .. }) { run::INTERRUPTED } else { 2 };
            (code, error.to_string())
        })?;
        let made = report::write(&dir).map_err(|error| (2, error.to_string()))?;
        let tables = if self.study.is_some() || self.tables { &made.tables[..] } else { "" };
        print!("{}", if self.of.json { made.json } else { format!("{tables}{}", made.table) });
        eprintln!("lab: report in {}", dir.join(report::PAGE).display());
        Ok(if finish == Finish::Complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The campaign, and its folder.
    fn source(&self) -> Result<Source, String> {
        let dir = self.of.out.clone();
        if let Some(kind) = self.study {
            let single = Single::new(kind, &self.of.subject, &self.of.set);
            let text = single.text().map_err(|error| error.to_string())?;
            let dir = dir.unwrap_or_else(|| single.folder(&text));
            return Ok(Source { file: format!("--study {}", kind.name()), text, dir });
        }
        if !self.of.subject.is_empty() || !self.of.set.is_empty() {
            return Err("--subject and --set belong to a study: add --study KIND".into());
        }
        let dir = dir.unwrap_or_else(|| "lab-out".into());
        if let Some(preset) = self.preset {
            return Ok(Source { file: format!("preset {}", preset.name()), text: preset.text().to_owned(), dir });
        }
        let path = self.campaign.clone().unwrap_or_else(|| dir.join(store::CAMPAIGN));
        let text = std::fs::read_to_string(&path).map_err(|error| match &self.campaign {
            Some(_) => format!("{}: {error}", path.display()),
            None => format!("give a campaign, or --preset {}; weir lab run --help", preset_names()),
        })?;
        Ok(Source { file: path.display().to_string(), text, dir })
    }
}

/// Name, text and folder of a campaign.
struct Source {
    file: String,
    text: String,
    dir: PathBuf,
}

fn preset_names() -> String {
    Preset::ALL.map(Preset::name).join("|")
}
