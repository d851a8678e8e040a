//! Weir beside its rivals: TCP between two hosts on this machine, taking turns.
//!
//! In each session every subject has its own two hosts and runs continuously, idle except for its
//! turns. In each round all of them carry a transfer in random order and then in the reverse order,
//! so that other load of the machine affects all equally. Ratios are over sessions. A failure
//! affects only its subject and is reported.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::demo::DemoError;
use crate::demo::child::Interrupt;
use crate::demo::iperf::Transfer;
use crate::demo::world::Cable;
use crate::host::cpu::CpuSample;
use crate::series::transfer;
use crate::stats::{Estimate, Rng, median, mirrored, over_units, paired};
use crate::subject::{Availability, Subject, SubjectMeter};

/// Default configurations of Weir. WireGuard supports ChaCha20-Poly1305 only, so one configuration
/// uses it too.
pub const OWN: [&str; 4] = [
    "weir-esp-tunnel-aes128gcm16,udp",
    "weir-esp-tunnel-chacha20poly1305,udp",
    "weir-eesp-tunnel-aes128gcm16,udp",
    "weir-psp-tunnel-aes128gcm16",
];
/// Rivals, and the multiple of their rate that Weir should reach.
pub const GOALS: [(&str, f64); 3] = [("wireguard-go", 2.0), ("boringtun", 2.0), ("strongswan-aes128gcm16", 5.0)];

/// Options of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct RivalOptions {
    /// Configurations of Weir.
    pub own: Vec<String>,
    /// Programs by others.
    pub rivals: Vec<String>,
    /// Numbers of TCP streams.
    pub flows: Vec<u32>,
    /// The cable carries one packet a frame, as a wire does; otherwise trains and super-packets
    /// cross it whole.
    pub wire: bool,
    /// Seconds of each transfer.
    pub seconds: u16,
    /// Rounds in each session; every subject has two turns in a round.
    pub rounds: u32,
    /// Sessions: hosts, processes and keys are new in each.
    pub sessions: u32,
    /// Seed of order and intervals.
    pub seed: u64,
}

/// A subject that took no part, or not always.
#[derive(Clone, Debug, Serialize)]
pub struct Absent {
    /// Subject.
    pub subject: String,
    /// Reason.
    pub why: String,
    /// Sessions in which it was so.
    pub sessions: u32,
}

/// One subject with one number of streams.
#[derive(Clone, Debug, Serialize)]
pub struct RivalRow {
    /// Subject.
    pub subject: String,
    /// TCP streams.
    pub flows: u32,
    /// Payload of all streams in Gbit/s, geometric mean over sessions with its 95 % interval.
    pub gbit_per_s: Estimate,
    /// Processor time of the whole machine in seconds per Gbit: both hosts, their kernel, the
    /// subject and iperf.
    pub cpu_s_per_gbit: Option<Estimate>,
    /// Processor time of the subject's processes alone; `None` where the kernel does the work.
    pub own_cpu_s_per_gbit: Option<Estimate>,
    /// Transfers.
    pub transfers: usize,
}

/// True if a goal is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reached {
    /// The whole interval is at or above the goal.
    Yes,
    /// The whole interval is below it.
    No,
    /// The interval contains it.
    Inconclusive,
}

/// A configuration of Weir compared with a rival.
#[derive(Clone, Debug, Serialize)]
pub struct Lead {
    /// Configuration of Weir.
    pub subject: String,
    /// The rival.
    pub rival: String,
    /// TCP streams.
    pub flows: u32,
    /// Ratio of the rates, with its 95 % interval.
    pub rate: Estimate,
    /// Ratio of the machine's processor time per Gbit.
    pub cpu: Option<Estimate>,
    /// Goal of the ratio of rates.
    pub goal: f64,
    /// True if it is.
    pub reached: Reached,
}

/// Results.
#[derive(Clone, Debug, Serialize)]
pub struct RivalOutcome {
    /// Options.
    pub options: RivalOptions,
    /// Processor.
    pub cpu: String,
    /// Cores.
    pub cores: usize,
    /// Kernel.
    pub kernel: String,
    /// Commit of this build.
    pub commit: String,
    /// Subjects and their versions.
    pub versions: BTreeMap<String, String>,
    /// Rates.
    pub rows: Vec<RivalRow>,
    /// Weir over rivals.
    pub leads: Vec<Lead>,
    /// Subjects that were not measured, or not in every session.
    pub absent: Vec<Absent>,
}

/// One transfer.
#[derive(Clone, Copy)]
struct Shot {
    gbit_per_s: f64,
    cpu_s_per_gbit: Option<f64>,
    own_cpu_s_per_gbit: Option<f64>,
}

/// Transfers of one subject with one number of streams, by session and round.
type Shots = BTreeMap<(u32, u32), Vec<Shot>>;

/// Measures with files in `dir`; `progress` is called with the number of finished transfers, the
/// total and the current one.
///
/// # Errors
/// An unknown name, nothing that can be measured, or a signal.
pub(crate) fn run(
    options: &RivalOptions,
    dir: &Path,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(u64, u64, &str),
) -> Result<RivalOutcome, DemoError> {
    let (subjects, versions, mut absent) = present(options)?;
    let steps = |session| mirrored(options.seed + u64::from(session), subjects.len(), options.rounds as usize);
    let total = u64::from(options.sessions) * steps(0).len() as u64 * options.flows.len() as u64;
    let cable = if options.wire { Cable::Wire } else { Cable::Veth };
    let mut done = 0;
    let mut shots: BTreeMap<(usize, u32), Shots> = BTreeMap::new();
    for session in 0..options.sessions {
        let folder = |number: usize| dir.join(format!("{session}-{number}"));
        let mut meters = Vec::new();
        for (number, subject) in subjects.iter().enumerate() {
            progress(done, total, &format!("session {}: starting {subject}", session + 1));
            let meter = match SubjectMeter::start(subject, &folder(number), interrupt, cable) {
                Err(DemoError::Interrupted) => return Err(DemoError::Interrupted),
                Err(error) => {
                    failed(&mut absent, subject, &folder(number), &error);
                    None
                }
                Ok(meter) => Some(meter),
            };
            meters.push(meter);
        }
        for step in steps(session) {
            for &flows in &options.flows {
                let subject = &subjects[step.variant];
                progress(done, total, &format!("session {}: {subject}, {flows} streams", session + 1));
                done += 1;
                let Some(meter) = &mut meters[step.variant] else { continue };
                match shot(meter, subject, flows, options.seconds, dir, interrupt) {
                    Err(DemoError::Interrupted) => return Err(DemoError::Interrupted),
                    Err(error) => {
                        failed(&mut absent, subject, &folder(step.variant), &error);
                        meters[step.variant] = None;
                    }
                    Ok(shot) => {
                        let all = shots.entry((step.variant, flows)).or_default();
                        all.entry((session, step.round)).or_default().push(shot);
                    }
                }
            }
        }
    }
    if shots.is_empty() {
        let why = absent.first().map_or_else(String::new, |absent| format!("{}: {}", absent.subject, absent.why));
        return Err(DemoError::Failed(format!("no transfer succeeded: {why}")));
    }
    let mut rng = Rng::new(options.seed);
    let names: Vec<String> = subjects.iter().map(ToString::to_string).collect();
    Ok(RivalOutcome {
        options: options.clone(),
        cpu: crate::host::cpu_model(),
        cores: crate::host::cpus(),
        kernel: crate::host::kernel(),
        commit: crate::host::commit(),
        versions,
        rows: rows(&names, &shots, &mut rng),
        leads: leads(options, &names, &shots, &mut rng),
        absent,
    })
}

/// In a session `subject` took no part from here on. Its `folder` is called otherwise in each, and
/// gone with it.
fn failed(absent: &mut Vec<Absent>, subject: &Subject, folder: &Path, error: &DemoError) {
    let (subject, why) = (subject.to_string(), error.to_string().replace(&*folder.to_string_lossy(), "…"));
    match absent.iter_mut().find(|known| known.subject == subject && known.why == why) {
        Some(known) => known.sessions += 1,
        None => absent.push(Absent { subject, why, sessions: 1 }),
    }
}

/// Subjects that are here, their versions, and the others.
#[allow(clippy::type_complexity)]
fn present(options: &RivalOptions) -> Result<(Vec<Subject>, BTreeMap<String, String>, Vec<Absent>), DemoError> {
    let (mut subjects, mut versions, mut absent) = (Vec::new(), BTreeMap::new(), Vec::new());
    for name in options.own.iter().chain(&options.rivals) {
        let subject: Subject = name.parse().map_err(|error| DemoError::Unable(format!("{error}")))?;
        match subject.availability() {
            Availability::Available { version } => {
                versions.insert(name.clone(), version);
                subjects.push(subject);
            }
            Availability::Missing { why, remedy } => {
                let (subject, why, sessions) = (name.clone(), format!("{why}; {remedy}"), options.sessions);
                absent.push(Absent { subject, why, sessions });
            }
        }
    }
    Ok((subjects, versions, absent))
}

fn shot(
    meter: &mut SubjectMeter,
    subject: &Subject,
    flows: u32,
    seconds: u16,
    dir: &Path,
    interrupt: &Interrupt,
) -> Result<Shot, DemoError> {
    let own_before = meter.effort()?.cpu_s;
    let mut before = None;
    let csv = transfer(meter, subject, seconds.into(), flows, dir, interrupt, || before = CpuSample::now())?;
    let after = CpuSample::now();
    let own_after = meter.effort()?.cpu_s;
    let transfer = Transfer::parse(&csv, seconds).map_err(|error| DemoError::Failed(format!("{subject}: {error}")))?;
    let gbit = transfer.bytes as f64 * 8.0 / 1e9;
    let busy = |before: &CpuSample, after: &CpuSample| -> f64 {
        after.since(before).iter().flatten().map(|times| times.busy() as f64 / 1e9).sum()
    };
    Ok(Shot {
        gbit_per_s: transfer.rate(),
        cpu_s_per_gbit: before.zip(after).map(|(before, after)| busy(&before, &after) / gbit),
        own_cpu_s_per_gbit: own_before.zip(own_after).map(|(before, after)| (after - before).max(0.0) / gbit),
    })
}

/// Logarithms of a figure by session, one value per round: the median of the turns in it.
fn sessions(shots: &Shots, figure: impl Fn(&Shot) -> Option<f64>) -> BTreeMap<u32, BTreeMap<u32, f64>> {
    let mut sessions: BTreeMap<u32, BTreeMap<u32, f64>> = BTreeMap::new();
    for ((session, round), turns) in shots {
        let logs: Vec<f64> = turns.iter().filter_map(&figure).filter(|value| *value > 0.0).map(f64::ln).collect();
        if !logs.is_empty() {
            sessions.entry(*session).or_default().insert(*round, median(&logs));
        }
    }
    sessions
}

/// A figure over sessions, over rounds when there is one session only.
fn estimate(shots: &Shots, figure: impl Fn(&Shot) -> Option<f64>, rng: &mut Rng) -> Option<Estimate> {
    let by_session = sessions(shots, figure);
    let rounds = |rounds: &BTreeMap<u32, f64>| rounds.values().copied().collect::<Vec<f64>>();
    let units: Vec<f64> = match by_session.len() {
        0 => return None,
        1 => by_session.values().flat_map(rounds).collect(),
        _ => by_session.values().map(|session| median(&rounds(session))).collect(),
    };
    Some(over_units(&units, rng).map(f64::exp))
}

fn rows(names: &[String], shots: &BTreeMap<(usize, u32), Shots>, rng: &mut Rng) -> Vec<RivalRow> {
    let row = |((subject, flows), shots): (&(usize, u32), &Shots)| {
        Some(RivalRow {
            subject: names[*subject].clone(),
            flows: *flows,
            gbit_per_s: estimate(shots, |shot| Some(shot.gbit_per_s), rng)?,
            cpu_s_per_gbit: estimate(shots, |shot| shot.cpu_s_per_gbit, rng),
            own_cpu_s_per_gbit: estimate(shots, |shot| shot.own_cpu_s_per_gbit, rng),
            transfers: shots.values().map(Vec::len).sum(),
        })
    };
    let mut rows: Vec<RivalRow> = shots.iter().filter_map(row).collect();
    rows.sort_by_key(|row| row.flows);
    rows
}

/// Ratio of a figure of `a` over that of `b`, round by round.
fn ratio(a: &Shots, b: &Shots, figure: impl Fn(&Shot) -> Option<f64> + Copy, rng: &mut Rng) -> Option<Estimate> {
    let (a, b) = (sessions(a, figure), sessions(b, figure));
    let both = a.iter().filter_map(|(session, rounds)| {
        let other = b.get(session)?;
        Some(rounds.iter().filter_map(|(round, value)| Some(value - other.get(round)?)).collect())
    });
    paired(&both.collect::<Vec<Vec<f64>>>(), rng).map(|ratio| ratio.ratio)
}

fn leads(options: &RivalOptions, names: &[String], shots: &BTreeMap<(usize, u32), Shots>, rng: &mut Rng) -> Vec<Lead> {
    let mut leads = Vec::new();
    let numbers = |wanted: &[String]| -> Vec<usize> {
        wanted.iter().filter_map(|name| names.iter().position(|known| known == name)).collect()
    };
    for &flows in &options.flows {
        for own in numbers(&options.own) {
            for rival in numbers(&options.rivals) {
                let Some(goal) = GOALS.iter().find(|(name, _)| *name == names[rival]).map(|(_, goal)| *goal) else {
                    continue;
                };
                let (Some(a), Some(b)) = (shots.get(&(own, flows)), shots.get(&(rival, flows))) else { continue };
                let Some(rate) = ratio(a, b, |shot| Some(shot.gbit_per_s), rng) else { continue };
                let reached = if rate.low >= goal {
                    Reached::Yes
                } else if rate.high < goal {
                    Reached::No
                } else {
                    Reached::Inconclusive
                };
                leads.push(Lead {
                    subject: names[own].clone(),
                    rival: names[rival].clone(),
                    flows,
                    rate,
                    cpu: ratio(a, b, |shot| shot.cpu_s_per_gbit, rng),
                    goal,
                    reached,
                });
            }
        }
    }
    leads
}

impl RivalOutcome {
    /// For people.
    pub fn text(&self) -> String {
        let interval = |estimate: &Estimate| match estimate.low.is_finite() {
            true => format!("{:.2} to {:.2}", estimate.low, estimate.high),
            false => "one round only".to_owned(),
        };
        let mut text = format!("{}, {} cores, Linux {}, commit {}\n\n", self.cpu, self.cores, self.kernel, self.commit);
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["subject", "streams", "Gbit/s", "95 % interval", "CPU s/Gbit", "its own"]);
        let value = |estimate: &Option<Estimate>| estimate.map_or("-".to_owned(), |e| format!("{:.3}", e.value));
        for row in &self.rows {
            table.add_row([
                row.subject.clone(),
                row.flows.to_string(),
                format!("{:.2}", row.gbit_per_s.value),
                interval(&row.gbit_per_s),
                value(&row.cpu_s_per_gbit),
                value(&row.own_cpu_s_per_gbit),
            ]);
        }
        align(&mut table);
        let _ = writeln!(text, "{table}");
        for (rival, goal) in GOALS {
            let mut table = Table::new();
            table.load_style(presets::NOTHING);
            let head = format!("over {rival}, goal {goal:.0}");
            table.set_header([&head, "streams", "rate", "95 % interval", "CPU/Gbit", "reached"]);
            for lead in self.leads.iter().filter(|lead| lead.rival == rival) {
                table.add_row([
                    lead.subject.clone(),
                    lead.flows.to_string(),
                    format!("{:.2}", lead.rate.value),
                    interval(&lead.rate),
                    lead.cpu.map_or("-".to_owned(), |cpu| format!("{:.2}", cpu.value)),
                    match lead.reached {
                        Reached::Yes => "yes",
                        Reached::No => "no",
                        Reached::Inconclusive => "inconclusive",
                    }
                    .to_owned(),
                ]);
            }
            align(&mut table);
            if !table.is_empty() {
                let _ = writeln!(text, "\n{table}");
            }
        }
        for absent in &self.absent {
            let sessions = match absent.sessions == self.options.sessions {
                true => String::new(),
                false => format!(" in {} of {} sessions", absent.sessions, self.options.sessions),
            };
            let _ = writeln!(text, "\nnot measured{sessions}: {}: {}", absent.subject, absent.why);
        }
        let options = &self.options;
        let _ = write!(
            text,
            "\n{} sessions of {} rounds, two transfers of {} s each,\n\
             over {};\n\
             CPU time of the whole machine, and of the subject's processes",
            options.sessions,
            options.rounds,
            options.seconds,
            if options.wire {
                "a veth pair that carries one packet per frame"
            } else {
                "a veth pair that carries GSO packets unsegmented"
            }
        );
        text
    }
}

fn align(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::assert_narrow;

    fn options() -> RivalOptions {
        RivalOptions {
            own: OWN.map(String::from).to_vec(),
            rivals: GOALS.map(|(name, _)| name.to_owned()).to_vec(),
            flows: vec![1],
            wire: false,
            seconds: 3,
            rounds: 2,
            sessions: 5,
            seed: 1,
        }
    }

    fn shots(gbit_per_s: f64) -> Shots {
        let mut shots = Shots::new();
        for session in 0..5 {
            for round in 0..2 {
                // A machine that is slower in some sessions is so for all.
                let noise = 1.0 + 0.1 * f64::from(session) + 0.01 * f64::from(round);
                let shot = Shot { gbit_per_s: gbit_per_s * noise, cpu_s_per_gbit: Some(0.5), own_cpu_s_per_gbit: None };
                shots.insert((session, round), vec![shot, shot]);
            }
        }
        shots
    }

    #[test]
    fn names_are_subjects_and_fit_their_kind() {
        for name in OWN.into_iter().chain(GOALS.map(|(name, _)| name)) {
            let subject: Subject = name.parse().expect("a subject");
            assert!(subject.is_tunnel(), "{name}");
        }
    }

    #[test]
    fn a_lead_is_what_the_same_rounds_say_and_meets_its_goal_or_not() {
        let options = options();
        let names: Vec<String> = options.own.iter().chain(&options.rivals).cloned().collect();
        let all = [((0, 1), shots(6.0)), ((4, 1), shots(2.0)), ((6, 1), shots(1.5))].into();
        let leads = leads(&options, &names, &all, &mut Rng::new(1));
        assert_eq!(leads.len(), 2);
        assert!((leads[0].rate.value - 3.0).abs() < 1e-9 && leads[0].reached == Reached::Yes, "{leads:?}");
        assert!((leads[1].rate.value - 4.0).abs() < 1e-9 && leads[1].reached == Reached::No, "{leads:?}");
        assert!((leads[0].cpu.expect("both have it").value - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_subject_is_named_once_for_each_reason_and_tables_are_narrow() {
        let subject: Subject = OWN[1].parse().expect("a subject");
        let mut absent = Vec::new();
        for (folder, why) in [("/run/0-1", "no /run/0-1/it"), ("/run/1-1", "no /run/1-1/it"), ("/run/2-1", "it ended")]
        {
            failed(&mut absent, &subject, folder.as_ref(), &DemoError::Failed(why.into()));
        }
        let sessions: Vec<u32> = absent.iter().map(|one| one.sessions).collect();
        assert_eq!(sessions, [2, 1]);
        let estimate = Estimate { value: 123.456, low: 123.456, high: 123.456 };
        let lead = |(rival, goal): (&str, f64)| Lead {
            subject: subject.to_string(),
            rival: rival.to_owned(),
            flows: 128,
            rate: estimate,
            cpu: Some(estimate),
            goal,
            reached: Reached::Inconclusive,
        };
        let outcome = RivalOutcome {
            options: options(),
            cpu: "a processor".into(),
            cores: 128,
            kernel: "6.12.48".into(),
            commit: "0123456789ab".into(),
            versions: BTreeMap::new(),
            rows: rows(&[subject.to_string()], &[((0, 128), shots(123.0))].into(), &mut Rng::new(1)),
            leads: GOALS.into_iter().map(lead).collect(),
            absent,
        };
        let text = outcome.text();
        assert_narrow(&text);
        assert!(text.contains("over strongswan-aes128gcm16, goal 5") && text.contains("inconclusive"), "{text}");
        assert!(text.contains("not measured in 2 of 5 sessions: weir-esp"), "{text}");
    }

    #[test]
    fn rates_are_over_sessions() {
        let rows = rows(&["a".into()], &[((0, 1), shots(1.0))].into(), &mut Rng::new(1));
        assert_eq!((rows[0].transfers, rows[0].own_cpu_s_per_gbit.is_none()), (20, true));
        assert!((rows[0].gbit_per_s.value - 1.2).abs() < 0.02, "{rows:?}");
        assert!(rows[0].gbit_per_s.low < 1.1 && rows[0].gbit_per_s.high > 1.3, "{rows:?}");
    }
}
