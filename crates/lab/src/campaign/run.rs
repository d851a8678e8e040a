//! Running a campaign: one process per session, every trial on disk before the next.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::env::{self, Environment};
use super::format::CampaignError;
use super::progress::Progress;
use super::runner::{self, Missing, Runner};
use super::schedule::{self, Cell, Planned};
use super::store::{self, Lock, Problem, StoreError, Trials};
use super::subject::Subject;
use super::{Campaign, Kind, Study, format};
use crate::meter::MeterError;
use crate::trial::{SCHEMA, Trial};

/// Exit status after a signal, as shells have it for SIGINT.
pub const INTERRUPTED: u8 = 130;
/// Exit status of a session that found the disk full.
const FULL: u8 = 28;

/// How a run ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Finish {
    /// Everything that can be measured here was.
    Complete,
    /// Something went wrong while it was measured; the report says what.
    Failures,
}

/// Why a run has no end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The campaign is wrong.
    #[error(transparent)]
    Campaign(#[from] CampaignError),
    /// The folder.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The folder holds another campaign.
    #[error(
        "{dir}: holds the campaign '{there}', which differs from this one; name another folder with --out, or leave the campaign out to go on with that one"
    )]
    Other {
        /// Folder.
        dir: String,
        /// Name of what is there.
        there: String,
    },
    /// Nothing of it can be measured.
    #[error("nothing of the campaign '{name}' can be measured here:\n{why}")]
    Nothing {
        /// Campaign.
        name: String,
        /// Each subject and what it lacks.
        why: String,
    },
    /// Somebody wants us to stop.
    #[error("interrupted; {kept} trials are in {dir}, the same command goes on from there")]
    Interrupted {
        /// Trials in the folder.
        kept: u64,
        /// Folder.
        dir: String,
    },
    /// A session's process ended without saying why.
    #[error("session {session} ended with {status}; {kept} trials are in {dir}, the same command goes on from there")]
    Session {
        /// Number.
        session: u32,
        /// Its end.
        status: ExitStatus,
        /// Trials in the folder.
        kept: u64,
        /// Folder.
        dir: String,
    },
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was done.
        what: String,
        /// Its answer.
        source: std::io::Error,
    },
}

/// A planned process: one session of one study.
#[derive(Clone, Copy, Debug)]
struct Session<'a> {
    /// Number within the run.
    number: u32,
    study: &'a Study,
    /// Number within the study.
    within: u32,
}

/// The sessions of a campaign. Studies take turns, so that no study has all of its sessions in one hour.
fn sessions(campaign: &Campaign) -> Vec<Session<'_>> {
    let most = campaign.studies.iter().map(|study| study.sessions).max().unwrap_or(0);
    let turns = (0..most).flat_map(|within| {
        campaign.studies.iter().filter(move |study| within < study.sessions).map(move |study| (study, within))
    });
    turns.zip(0..).map(|((study, within), number)| Session { number, study, within }).collect()
}

/// Stops at the next trial after SIGINT, SIGTERM or SIGHUP.
fn interrupt_flag() -> std::io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// Runs a campaign into a folder, or goes on with what is there.
///
/// # Errors
/// [`RunError`]; whatever was measured stays in the folder.
pub fn run(file: &str, text: &str, dir: &Path, quiet: bool) -> Result<Finish, RunError> {
    let campaign = format::parse(file, text)?;
    let shown = dir.display().to_string();
    let flag = interrupt_flag().map_err(|source| RunError::Io { what: "signals".into(), source })?;
    let _lock = Lock::take(dir)?;
    adopt(dir, &campaign, text)?;
    if let Some(said) = store::repair(dir)? {
        eprintln!("lab: {said}");
    }
    let trials = store::read_trials(dir)?;
    let environment = record_environment(dir)?;
    // What was missing before may be there by now.
    let _ = std::fs::remove_file(dir.join(store::PROBLEMS));
    let (sessions, total) = (sessions(&campaign), campaign.trials());
    let planned = u32::try_from(sessions.len()).unwrap_or(u32::MAX);
    let mut kept = trials.len() as u64;
    let mut progress = Progress::new(kept, total, quiet);
    for session in &sessions {
        let attempts: Vec<&Trial> = trials.iter().filter(|trial| trial.session % planned == session.number).collect();
        let mine = session.study.trials() / u64::from(session.study.sessions);
        if attempts.len() as u64 >= mine {
            continue;
        }
        // A new process is a new session, also when it ends what another one began.
        let attempt = attempts.iter().map(|trial| trial.session / planned + 1).max().unwrap_or(0);
        let ended = watch(dir, session, attempt * planned + session.number, &environment.hash, &flag, &mut progress)?;
        kept += ended.trials;
        match ended.status.code() {
            Some(0) => progress.skip(mine.saturating_sub(attempts.len() as u64 + ended.trials)),
            _ if flag.load(Ordering::Relaxed) || ended.status.code() == Some(INTERRUPTED.into()) => {
                progress.finish();
                return Err(RunError::Interrupted { kept, dir: shown });
            }
            Some(code) if code == i32::from(FULL) => {
                progress.finish();
                // The trial that filled the disk is there, too.
                let kept = store::read_trials(dir)?.len() as u64;
                return Err(StoreError::Full { path: dir.join(store::TRIALS).display().to_string(), kept }.into());
            }
            _ => {
                progress.finish();
                return Err(RunError::Session { session: session.number, status: ended.status, kept, dir: shown });
            }
        }
    }
    progress.finish();
    let problems = store::read_problems(dir)?;
    if kept == 0 {
        let lines = problems.iter().map(|p| format!("  {} ({}): {}", p.subject, p.study, p.why));
        let mut lines: Vec<String> = lines.collect();
        lines.dedup();
        return Err(RunError::Nothing { name: campaign.name, why: lines.join("\n") });
    }
    Ok(if problems.iter().any(|problem| problem.failed) { Finish::Failures } else { Finish::Complete })
}

/// Makes the folder one of this campaign, or checks that it is.
fn adopt(dir: &Path, campaign: &Campaign, text: &str) -> Result<(), RunError> {
    let path = dir.join(store::CAMPAIGN);
    match std::fs::read_to_string(&path) {
        Ok(there) if there == text => Ok(()),
        Ok(there) => match format::parse(store::CAMPAIGN, &there) {
            // Comments and spaces may have changed.
            Ok(other) if other == *campaign => Ok(()),
            Ok(other) => Err(RunError::Other { dir: dir.display().to_string(), there: other.name }),
            Err(_) => Err(RunError::Other { dir: dir.display().to_string(), there: "one that cannot be read".into() }),
        },
        Err(_) => Ok(store::write_whole(&path, text.as_bytes())?),
    }
}

/// Adds this environment to the record, unless it is there.
fn record_environment(dir: &Path) -> Result<Environment, RunError> {
    let here = Environment::here();
    let path = dir.join(store::ENV);
    let mut known: Vec<Environment> =
        std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    if !known.iter().any(|env| env.hash == here.hash) {
        known.push(here.clone());
        let text = serde_json::to_string_pretty(&known).expect("a record has string keys") + "\n";
        store::write_whole(&path, text.as_bytes())?;
    }
    Ok(here)
}

struct Ended {
    status: ExitStatus,
    trials: u64,
}

/// Starts a session and follows it to its end.
fn watch(
    dir: &Path,
    session: &Session<'_>,
    number: u32,
    env: &str,
    flag: &AtomicBool,
    progress: &mut Progress,
) -> Result<Ended, RunError> {
    let fail = |source| RunError::Io { what: "cannot start a session".into(), source };
    let program = std::env::current_exe().map_err(fail)?;
    let mut command = Command::new(program);
    command.args(["lab", "run", "--out"]).arg(dir);
    command.args(["--session", &number.to_string(), "--env-hash", env]);
    let mut child = Guard(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(fail)?);
    let output = child.0.stdout.take().expect("it is piped");
    let mut trials = 0;
    // One line per trial; the end of the output is the end of the process.
    for line in BufReader::new(output).lines() {
        let Ok(line) = line else { break };
        if line == "trial" {
            trials += 1;
            progress.advance(&session.study.name);
        }
        if flag.load(Ordering::Relaxed) {
            // Whoever signals only this process means both.
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_child(&child.0),
                rustix::process::Signal::TERM,
            );
        }
    }
    let status = child.0.wait().map_err(fail)?;
    Ok(Ended { status, trials })
}

/// A child that does not outlive its owner.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One session, in a process of its own: measures what is not among the trials yet. Returns the exit status.
pub fn session(dir: &Path, number: u32, env: &str) -> u8 {
    match measure(dir, number, env) {
        Ok(()) => 0,
        Err(RunError::Interrupted { .. }) => INTERRUPTED,
        // The parent says it once.
        Err(RunError::Store(StoreError::Full { .. })) => FULL,
        Err(error) => {
            eprintln!("weir: lab: {error}");
            2
        }
    }
}

fn measure(dir: &Path, number: u32, env: &str) -> Result<(), RunError> {
    let flag = interrupt_flag().map_err(|source| RunError::Io { what: "signals".into(), source })?;
    let path = dir.join(store::CAMPAIGN);
    let text =
        std::fs::read_to_string(&path).map_err(|source| RunError::Io { what: path.display().to_string(), source })?;
    let campaign = format::parse(store::CAMPAIGN, &text)?;
    let sessions = sessions(&campaign);
    let planned = sessions.len() as u32;
    let session = &sessions[(number % planned) as usize];
    let before = store::read_trials(dir)?;
    let done: Vec<u32> =
        before.iter().filter(|trial| trial.session % planned == session.number).map(|trial| trial.order).collect();
    let mut trials = Trials::open(dir, before.len() as u64)?;
    let mut subjects = Subjects::new(dir, session.study);
    let mut output = std::io::stdout();
    for planned in schedule::session(session.study, campaign.seed, session.within) {
        if done.contains(&planned.order) {
            continue;
        }
        if flag.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted { kept: 0, dir: String::new() });
        }
        let at_ms = env::now_ms();
        let Some(measured) = subjects.trial(&planned)? else { continue };
        trials.append(&trial(&campaign, session.study, number, &planned, at_ms, measured, env))?;
        // Without a parent there is nobody to measure for.
        if writeln!(output, "trial").and_then(|()| output.flush()).is_err() {
            return Err(RunError::Interrupted { kept: 0, dir: String::new() });
        }
    }
    Ok(())
}

/// The subjects of a session, each opened when it is first needed.
struct Subjects<'a> {
    dir: PathBuf,
    study: &'a Study,
    open: Vec<(Key, Option<Box<dyn Runner>>)>,
}

/// What a subject is opened for.
type Key = (String, u32, u32, u32);

impl<'a> Subjects<'a> {
    fn new(dir: &Path, study: &'a Study) -> Self {
        Self { dir: dir.to_owned(), study, open: Vec::new() }
    }

    /// One trial; `None` when the subject is missing or has failed.
    fn trial(&mut self, planned: &Planned) -> Result<Option<crate::trial::Measurement>, RunError> {
        let cell = &planned.cell;
        let key = (cell.subject.clone(), cell.replay, cell.sas, cell.cores);
        let at = match self.open.iter().position(|(known, _)| *known == key) {
            Some(at) => at,
            None => {
                let runner = match runner::open(self.study, cell) {
                    Ok(runner) => Some(runner),
                    Err(Missing(why)) => {
                        self.note(cell, why, false)?;
                        None
                    }
                };
                self.open.push((key, runner));
                self.open.len() - 1
            }
        };
        let Some(runner) = &mut self.open[at].1 else { return Ok(None) };
        match runner.trial(cell, self.study.duration, planned.seed) {
            Ok(measured) => Ok(Some(measured)),
            Err(MeterError::Interrupted) => Err(RunError::Interrupted { kept: 0, dir: String::new() }),
            Err(MeterError::Unsupported(why)) => {
                self.note(cell, format!("{} bytes: {why}", cell.traffic), false)?;
                Ok(None)
            }
            Err(error) => {
                self.note(cell, error.to_string(), true)?;
                self.open[at].1 = None;
                Ok(None)
            }
        }
    }

    fn note(&self, cell: &Cell, why: String, failed: bool) -> Result<(), RunError> {
        let problem = Problem { study: self.study.name.clone(), subject: cell.subject.clone(), why, failed };
        Ok(store::note_problem(&self.dir, &problem)?)
    }
}

fn trial(
    campaign: &Campaign,
    study: &Study,
    session: u32,
    planned: &Planned,
    at_ms: u64,
    mut measured: crate::trial::Measurement,
    env: &str,
) -> Trial {
    let cell = &planned.cell;
    let subject = Subject::parse(&cell.subject).ok();
    let of = |read: fn(&Subject) -> &str| subject.as_ref().map_or("", read).to_owned();
    if let Some(arm) = cell.arm {
        measured.values.insert("arm".into(), arm.into());
    }
    if let Some(load) = cell.load {
        measured.values.insert("load".into(), load);
    }
    let offered_pps = measured.values.remove("offered_pps");
    Trial {
        schema: SCHEMA,
        run: campaign.name.clone(),
        session,
        round: planned.round,
        order: planned.order,
        seed: planned.seed,
        at_ms,
        study: study.name.clone(),
        subject: cell.subject.clone(),
        protocol: if study.kind == Kind::Keying { "ike".into() } else { of(|s| s.protocol()) },
        mode: of(|s| s.mode()),
        suite: of(Subject::suite),
        direction: cell.direction,
        traffic: cell.traffic.clone(),
        size: runner::one_size(&cell.traffic),
        cores: cell.cores,
        sas: cell.sas,
        replay: cell.replay,
        batch: study.batch,
        offered_pps,
        goal: None,
        measured,
        env: env.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn studies_take_turns_and_every_session_has_a_number() {
        let text = "name = \"t\"\n[[study]]\nname = \"a\"\nkind = \"sizes\"\nsubjects = [\"plain\"]\nsessions = 2\n\
                    [[study]]\nname = \"b\"\nkind = \"sizes\"\nsubjects = [\"plain\"]\nsessions = 1\n";
        let campaign = format::parse("t.toml", text).unwrap();
        let turns: Vec<_> = sessions(&campaign).iter().map(|s| (s.number, s.study.name.clone(), s.within)).collect();
        assert_eq!(turns, [(0, "a".into(), 0), (1, "b".into(), 0), (2, "a".into(), 1)]);
    }

    #[test]
    fn a_folder_of_another_campaign_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let text = |name: &str| format!("name = \"{name}\"\n[[study]]\nkind = \"sizes\"\nsubjects = [\"plain\"]\n");
        let campaign = |name: &str| format::parse("t.toml", &text(name)).unwrap();
        adopt(dir.path(), &campaign("a"), &text("a")).unwrap();
        adopt(dir.path(), &campaign("a"), &format!("# mine\n{}", text("a"))).unwrap();
        let error = adopt(dir.path(), &campaign("b"), &text("b")).unwrap_err().to_string();
        assert!(error.contains("holds the campaign 'a'") && error.contains("--out"), "{error}");
    }

    #[test]
    fn what_is_missing_is_named_and_does_not_stop_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let text = "name = \"t\"\n[[study]]\nkind = \"scaling\"\nsubjects = [\"weir-esp-tunnel-aes128gcm16\"]\n";
        let campaign = format::parse("t.toml", text).unwrap();
        let mut subjects = Subjects::new(dir.path(), &campaign.studies[0]);
        for planned in schedule::session(&campaign.studies[0], 1, 0) {
            assert_eq!(subjects.trial(&planned).unwrap(), None);
        }
        let problems = store::read_problems(dir.path()).unwrap();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].why.starts_with("not built") && !problems[0].failed);
    }
}
