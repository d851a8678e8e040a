//! Running a campaign: one process per session, every trial on disk before the next.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::env::{self, Environment};
use super::format::CampaignError;
use super::progress::{Progress, planned_s};
use super::runner::{self, NotOpen, Runner, Setting};
use super::schedule::{self, Cell, Planned};
use super::store::{self, Lock, Problem, StoreError, Trials};
use super::subject::Subject;
use super::{Campaign, Kind, Place, Study, format, hosts, search};
use crate::meter::MeterError;
use crate::metric::Metric;
use crate::trial::{Measurement, SCHEMA, Trial};
pub use testbed::INTERRUPTED;
use testbed::TestbedError;
use testbed::sandbox;

/// Exit status of a session that found the disk full.
const FULL: u8 = 28;

/// Outcome of a run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Finish {
    /// Everything that can be measured here was.
    Complete,
    /// Some measurements failed; the report lists them.
    Failures,
}

/// Reason why a run did not complete.
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
        "{dir}: holds the campaign '{there}', which differs from this one; use another directory with --out, or omit the campaign to resume that one"
    )]
    Other {
        /// Folder.
        dir: String,
        /// Name of the existing file.
        there: String,
    },
    /// Nothing of it can be measured.
    #[error("nothing of the campaign '{name}' can be measured here:{why}")]
    Nothing {
        /// Campaign.
        name: String,
        /// Each subject and its missing prerequisite.
        why: String,
    },
    /// A stop was requested.
    #[error("interrupted; {kept} trials are in {dir}; the same command resumes")]
    Interrupted {
        /// Trials in the folder.
        kept: u64,
        /// Folder.
        dir: String,
    },
    /// A session's process ended without saying why.
    #[error("session {session} ended with {status}; {kept} trials are in {dir}; the same command resumes")]
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
    /// Sessions with hosts do not see the folder.
    #[error("{0}: /run is private to sessions with hosts; use another directory with --out")]
    Private(String),
    /// Error of the operating system.
    #[error("{what}: {source}")]
    Io {
        /// Operation.
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

/// The sessions of a campaign. Studies take turns, so that no study has all of its sessions in one
/// hour.
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

/// Runs a campaign into a folder, or continues an existing one.
///
/// # Errors
/// [`RunError`]; whatever was measured stays in the folder.
pub fn run(file: &str, text: &str, dir: &Path, quiet: bool) -> Result<Finish, RunError> {
    let campaign = format::parse(file, text)?;
    let shown = dir.display().to_string();
    // Sessions may run elsewhere.
    let dir = &std::path::absolute(dir).map_err(|source| RunError::Io { what: shown.clone(), source })?;
    let hosts = campaign.studies.iter().any(|study| study.place == Place::Namespaces);
    if hosts && testbed::sandbox::hides(dir) {
        return Err(RunError::Private(shown));
    }
    let flag = interrupt_flag().map_err(|source| RunError::Io { what: "signals".into(), source })?;
    let _lock = Lock::take(dir)?;
    adopt(dir, &campaign, text)?;
    if let Some(message) = store::repair(dir)? {
        eprintln!("lab: {message}");
    }
    let trials = store::read_trials(dir)?;
    let environment = record_environment(dir, &campaign)?;
    // Missing prerequisites may be available now.
    let _ = std::fs::remove_file(dir.join(store::PROBLEMS));
    let (sessions, total) = (sessions(&campaign), campaign.trials());
    let planned = u32::try_from(sessions.len()).unwrap_or(u32::MAX);
    let done = search::complete(&campaign, &trials);
    let left_s = sessions.iter().map(|session| {
        let made = done.iter().filter(|(made, _)| made % planned == session.number).count() as u64;
        let each = session.study.trials() / u64::from(session.study.sessions);
        each.saturating_sub(made) as f64 * planned_s(session.study)
    });
    let mut progress = Progress::new(done.len() as u64, total, left_s.sum(), quiet);
    let kept = || store::read_trials(dir).map_or(0, |trials| trials.len() as u64);
    for session in &sessions {
        let before = done.iter().filter(|(made, _)| made % planned == session.number).count() as u64;
        let mine = session.study.trials() / u64::from(session.study.sessions);
        if before >= mine {
            continue;
        }
        // A new process is a new session, also when it ends what another one began.
        let attempts = trials.iter().filter(|trial| trial.session % planned == session.number);
        let attempt = attempts.map(|trial| trial.session / planned + 1).max().unwrap_or(0);
        let ended = watch(dir, session, attempt * planned + session.number, &environment.hash, &flag, &mut progress)?;
        match ended.status.code() {
            Some(0) => progress.skip(session.study, mine.saturating_sub(before + ended.trials + ended.skipped)),
            _ if flag.load(Ordering::Relaxed) || ended.status.code() == Some(INTERRUPTED.into()) => {
                progress.finish();
                return Err(RunError::Interrupted { kept: kept(), dir: shown });
            }
            Some(code) if code == i32::from(FULL) => {
                progress.finish();
                // The trial that filled the disk is stored, too.
                return Err(
                    StoreError::Full { path: dir.join(store::TRIALS).display().to_string(), kept: kept() }.into()
                );
            }
            _ => {
                progress.finish();
                let (session, status) = (session.number, ended.status);
                return Err(RunError::Session { session, status, kept: kept(), dir: shown });
            }
        }
    }
    progress.finish();
    let problems = store::read_problems(dir)?;
    if kept() == 0 {
        return Err(RunError::Nothing { name: campaign.name, why: reasons(&problems) });
    }
    // A path that loses or reorders packets in memory is broken.
    let wrong = |trial: &Trial| trial.way.is_some() && (trial.measured.lost.total() > 0 || disordered(trial));
    let failed = problems.iter().any(|problem| problem.failed) || store::read_trials(dir)?.iter().any(wrong);
    Ok(if failed { Finish::Failures } else { Finish::Complete })
}

/// Why nothing was measured: one reason, or one for each subject.
fn reasons(problems: &[Problem]) -> String {
    match problems {
        [first, rest @ ..] if rest.iter().all(|other| other.why == first.why) => format!(" {}", first.why),
        _ => problems.iter().map(|p| format!("\n  {} ({}): {}", p.subject, p.study, p.why)).collect(),
    }
}

fn disordered(trial: &Trial) -> bool {
    trial.measured.values.get(Metric::Disordered).is_some_and(|packets| packets > 0.0)
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

/// Adds this environment to the record, unless it exists.
fn record_environment(dir: &Path, campaign: &Campaign) -> Result<Environment, RunError> {
    let outside = campaign.studies.iter().filter(|study| study.place == Place::Namespaces);
    let subjects: Vec<&str> = outside.flat_map(|study| study.subjects.iter().map(String::as_str)).collect();
    let here = Environment::with(crate::subject::versions(&subjects));
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
    /// Trials that cannot be made here; the progress counts them.
    skipped: u64,
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
    let pid = rustix::process::Pid::from_child(&child.0);
    let over = AtomicBool::new(false);
    let (trials, skipped) = std::thread::scope(|scope| {
        scope.spawn(|| pass_on(flag, &over, pid));
        let (mut trials, mut skipped) = (0, 0);
        // One line per trial; the end of the output is the end of the process.
        for line in BufReader::new(output).lines() {
            let Ok(line) = line else { break };
            if line == "trial" {
                trials += 1;
                progress.advance(session.study);
            } else if line == "part" {
                progress.part(session.study);
            } else if line == "skipped" {
                skipped += 1;
                progress.skip(session.study, 1);
            }
        }
        over.store(true, Ordering::Relaxed);
        (trials, skipped)
    });
    let status = child.0.wait().map_err(fail)?;
    Ok(Ended { status, trials, skipped })
}

/// A signal to this process should also end the session. It is forwarded repeatedly, because a
/// session that is entering its sandbox may miss the first one.
fn pass_on(flag: &AtomicBool, over: &AtomicBool, session: rustix::process::Pid) {
    while !over.load(Ordering::Relaxed) {
        if flag.load(Ordering::Relaxed) {
            let _ = rustix::process::kill_process(session, rustix::process::Signal::TERM);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// A child that does not outlive its owner.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One session, in a separate process: measures the missing trials. Returns the exit status. With
/// hosts it starts itself again in a sandbox, with `inside` set.
pub fn session(dir: &Path, number: u32, env: &str, inside: bool) -> u8 {
    match measure(dir, number, env, inside) {
        Ok(()) => 0,
        Err(RunError::Interrupted { .. }) => INTERRUPTED,
        // Reported once by the parent.
        Err(RunError::Store(StoreError::Full { .. })) => FULL,
        Err(error) => {
            eprintln!("weir: lab: {error}");
            2
        }
    }
}

fn measure(dir: &Path, number: u32, env: &str, inside: bool) -> Result<(), RunError> {
    let flag = interrupt_flag().map_err(|source| RunError::Io { what: "signals".into(), source })?;
    let path = dir.join(store::CAMPAIGN);
    let text =
        std::fs::read_to_string(&path).map_err(|source| RunError::Io { what: path.display().to_string(), source })?;
    let campaign = format::parse(store::CAMPAIGN, &text)?;
    let sessions = sessions(&campaign);
    let planned = sessions.len() as u32;
    let session = &sessions[(number % planned) as usize];
    let study = session.study;
    let private = match study.place {
        Place::Namespaces => match sandbox::run_inside(inside) {
            Ok(private) => Some(private),
            Err(TestbedError::Interrupted) => return Err(interrupted()),
            Err(error) => return skip(dir, study, &error.to_string()),
        },
        Place::Memory | Place::Interfaces => None,
    };
    let before = store::read_trials(dir)?;
    let done: Vec<u32> = search::complete(&campaign, &before)
        .into_iter()
        .filter_map(|(made, order)| (made % planned == session.number).then_some(order))
        .collect();
    let mut trials = Trials::open(dir, before.len() as u64)?;
    let mut plan = schedule::session(study, campaign.seed, session.within);
    plan.retain(|planned| !done.contains(&planned.order));
    let mut subjects = Subjects::new(dir, study, Setting::new(private, Arc::clone(&flag)));
    let source = Source { campaign: &campaign, study, session: number, env };
    for (at, planned) in plan.iter().enumerate() {
        if flag.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        let mut full = None;
        let mut output = std::io::stdout();
        let mut keep = |measured: Measurement, goal: Option<String>| {
            let row = trial(&source, planned, goal, measured);
            full = trials.append(&row).err();
            // A part of a search: its planned trial may take minutes.
            full.is_none() && (row.goal.is_none() || writeln!(output, "part").and_then(|()| output.flush()).is_ok())
        };
        let made = subjects.trials(&plan[at..], &mut keep);
        if let Some(error) = full {
            return Err(error.into());
        }
        // Without a parent process, no process reads the results.
        let outcome = if made? { "trial" } else { "skipped" };
        let mut output = std::io::stdout();
        if writeln!(output, "{outcome}").and_then(|()| output.flush()).is_err() {
            return Err(interrupted());
        }
    }
    Ok(())
}

fn interrupted() -> RunError {
    RunError::Interrupted { kept: 0, dir: String::new() }
}

/// Records for all subjects of a study why this machine cannot run its hosts.
fn skip(dir: &Path, study: &Study, why: &str) -> Result<(), RunError> {
    for subject in &study.subjects {
        let (study, subject, why) = (study.name.clone(), subject.clone(), format!("skipped: {why}"));
        store::note_problem(dir, &Problem { study, subject, why, failed: false })?;
    }
    Ok(())
}

/// The subjects of a session, each opened when it is first needed.
struct Subjects<'a> {
    // Subjects end before their setting does. Those of other numbers of SAs stay: memory that a
    // process gave back and takes again is not seen to grow, so that the next ones would seem to
    // need none.
    open: Vec<(Key, Option<Box<dyn Runner>>)>,
    setting: Setting,
    dir: PathBuf,
    study: &'a Study,
}

/// Parameters of an opened subject.
type Key = (String, [u32; 5], Option<u8>);

impl<'a> Subjects<'a> {
    fn new(dir: &Path, study: &'a Study, setting: Setting) -> Self {
        Self { open: Vec::new(), setting, dir: dir.to_owned(), study }
    }

    fn key(&self, cell: &Cell) -> Key {
        // Between hosts, identical subjects are compared on separate hosts.
        let arm = cell.arm.filter(|_| self.study.place == Place::Namespaces);
        (cell.subject.clone(), [cell.replay, cell.sas, cell.cores, cell.batch, cell.memory_mib], arm)
    }

    /// Removes the first trial of `plan`, the remaining ones; false when its subject is missing or
    /// has failed.
    fn trials(&mut self, plan: &[Planned], keep: runner::Keep<'_>) -> Result<bool, RunError> {
        let Some(planned) = plan.first() else { return Ok(false) };
        let cell = &planned.cell;
        let key = self.key(cell);
        let at = match self.open.iter().position(|(known, _)| *known == key) {
            Some(at) => at,
            None => {
                let runner = match runner::open(self.study, cell, &self.setting) {
                    Ok(runner) => Some(runner),
                    Err(NotOpen::Interrupted) => return Err(interrupted()),
                    Err(NotOpen::Missing(why)) => {
                        self.note(cell, why, false)?;
                        None
                    }
                    Err(NotOpen::Failed(why)) => {
                        self.failed(plan, &why)?;
                        None
                    }
                };
                self.open.push((key, runner));
                self.open.len() - 1
            }
        };
        let Some(runner) = &mut self.open[at].1 else { return Ok(false) };
        let outcome = runner.trials(cell, self.study.duration, planned.seed, keep);
        let key = &self.open[at].0;
        if self.study.place == Place::Namespaces && !plan[1..].iter().any(|later| self.key(&later.cell) == *key) {
            // Its programs would take cores from the others.
            self.open[at].1 = None;
        }
        match outcome {
            Ok(()) => Ok(true),
            Err(MeterError::Interrupted) => Err(interrupted()),
            Err(MeterError::Unsupported(why)) => {
                self.note(cell, format!("{} bytes: {why}", cell.traffic), false)?;
                Ok(false)
            }
            Err(error) => {
                self.failed(plan, &error.to_string())?;
                self.open[at].1 = None;
                Ok(false)
            }
        }
    }

    /// Records the error of the first trial of `plan`, and how many trials are skipped because of
    /// it.
    fn failed(&self, plan: &[Planned], why: &str) -> Result<(), RunError> {
        let cell = &plan[0].cell;
        let lost = plan.iter().filter(|planned| self.key(&planned.cell) == self.key(cell)).count();
        self.note(cell, format!("{why}; {lost} trials of the session were not run"), true)
    }

    fn note(&self, cell: &Cell, why: String, failed: bool) -> Result<(), RunError> {
        let problem = Problem { study: self.study.name.clone(), subject: cell.subject.clone(), why, failed };
        Ok(store::note_problem(&self.dir, &problem)?)
    }
}

/// Session of a study that trials belong to.
struct Source<'a> {
    campaign: &'a Campaign,
    study: &'a Study,
    session: u32,
    env: &'a str,
}

fn trial(source: &Source<'_>, planned: &Planned, goal: Option<String>, mut measured: Measurement) -> Trial {
    let Source { campaign, study, session, env } = *source;
    let cell = &planned.cell;
    let subject = Subject::parse(&cell.subject).ok();
    let of = |read: fn(&Subject) -> &str| subject.as_ref().map_or("", read).to_owned();
    if let Some(arm) = cell.arm {
        measured.values.set(Metric::Arm, arm.into());
    }
    if let Some(load) = cell.load {
        measured.values.set(Metric::Load, load);
    }
    if study.kind == Kind::Vector {
        measured.values.set(Metric::MemoryMib, cell.memory_mib.into());
    }
    let offered_pps = measured.values.take(Metric::OfferedPps);
    if study.delay_ms > 0 {
        measured.values.set(Metric::DelayMs, study.delay_ms.into());
    }
    // A row is written when its trial is over.
    let wall_ns = measured.values.get(Metric::WallNs).map_or(measured.dur_ns, |ns| ns as u64);
    let at_ms = env::now_ms().saturating_sub(wall_ns / 1_000_000);
    let session_of = || cell.subject.parse::<crate::sessions::Subject>().ok();
    let protocol = match (study.kind, study.place) {
        (Kind::Keying, _) => "ike".into(),
        (Kind::Sessions, _) => session_of().map_or("", |subject| subject.protocol()).into(),
        (_, Place::Interfaces) if subject.is_none() => "external".into(),
        _ => of(|s| s.protocol()),
    };
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
        protocol,
        mode: session_of().map_or_else(|| of(|s| s.mode()), |subject| subject.mode_name().into()),
        suite: session_of().map_or_else(|| of(Subject::suite), |subject| subject.suite),
        place: study.place,
        direction: cell.direction,
        traffic: cell.traffic.clone(),
        size: runner::one_size(&cell.traffic),
        cores: if study.kind == Kind::Transfers { hosts::workers(cell.cores) } else { cell.cores },
        sas: cell.sas,
        replay: cell.replay,
        batch: cell.batch,
        offered_pps,
        goal,
        way: cell.way,
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

    /// A runner that works for a while.
    struct Frail(u32);

    impl Runner for Frail {
        fn trial(&mut self, _: &Cell, _: std::time::Duration, _: u64) -> Result<Measurement, MeterError> {
            self.0 -= 1;
            let gone = || MeterError::Subject { subject: "it".into(), why: "it ended with signal 9".into() };
            if self.0 == 0 { Err(gone()) } else { Ok(Measurement::default()) }
        }
    }

    #[test]
    fn a_subject_that_crashes_takes_its_trials_with_it_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let text = "name = \"t\"\n[[study]]\nkind = \"sizes\"\nsubjects = [\"plain\", \"plain,v6\"]\nrounds = 5\n";
        let campaign = format::parse("t.toml", text).unwrap();
        let study = &campaign.studies[0];
        let mut subjects = Subjects::new(dir.path(), study, Setting::default());
        let plan = schedule::session(study, 1, 0);
        for (name, trials) in [("plain", 3), ("plain,v6", 100)] {
            let cell = &plan.iter().find(|planned| planned.cell.subject == name).unwrap().cell;
            let key = subjects.key(cell);
            subjects.open.push((key, Some(Box::new(Frail(trials)))));
        }
        let made = |at: usize, subjects: &mut Subjects<'_>| subjects.trials(&plan[at..], &mut |_, _| true).unwrap();
        let count = (0..plan.len()).filter(|at| made(*at, &mut subjects)).count();
        assert_eq!((plan.len(), count), (10, 7));
        let problems = store::read_problems(dir.path()).unwrap();
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].why, "it: it ended with signal 9; 3 trials of the session were not run");
        assert!(problems[0].failed && problems[0].subject == "plain");
    }

    #[test]
    fn what_is_missing_is_named_and_does_not_stop_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let text = "name = \"t\"\n[[study]]\nkind = \"scaling\"\ncores = [1000]\n\
                    subjects = [\"weir-esp-tunnel-aes128gcm16\"]\n";
        let campaign = format::parse("t.toml", text).unwrap();
        let mut subjects = Subjects::new(dir.path(), &campaign.studies[0], Setting::default());
        let plan = schedule::session(&campaign.studies[0], 1, 0);
        for at in 0..plan.len() {
            assert!(!subjects.trials(&plan[at..], &mut |_, _| true).unwrap());
        }
        let problems = store::read_problems(dir.path()).unwrap();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].why.starts_with("1000 cores: ") && !problems[0].failed);
    }
}
