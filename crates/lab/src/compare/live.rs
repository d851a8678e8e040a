//! Two builds measured live: processes of both wait on one processor and take turns in blocks of
//! milliseconds.
//!
//! A session starts four processes, A twice more than needed: one pair compares A with B, the other
//! A with A. Blocks run ABBA or BAAB, at random, the two pairs alternating, so that other load of
//! the machine affects all four equally. New processes in each session have new memory layouts;
//! otherwise a difference caused by addresses would be attributed to the code.
//!
//! The time of a process in a session is the least of its blocks, each of which reports its tenth
//! percentile: other load, and a busy SMT sibling, make a block slower, never faster.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{Comparison, Criteria, Measured};
use crate::bench::{BlockHeader, BlockResult};
use crate::metric::Metric;
use crate::trial::{self, Direction, Measurement, SCHEMA, Trial};
use stats::{Ratio, Rng, mean, median, mirrored, paired};

/// Options of the comparison.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    /// A and B.
    pub binaries: [PathBuf; 2],
    /// Options of `weir bench path` that choose cases.
    pub cases: Vec<String>,
    /// Sessions, each with new processes. At least 2.
    pub sessions: usize,
    /// ABBA rounds per case and session. At least 1.
    pub rounds: usize,
    /// Length of a block in microseconds.
    pub block_us: u64,
    /// Processor that all processes share; the last one that may run us when `None`.
    pub cpu: Option<usize>,
    /// Share by which B is slowed down on purpose, to see that it is found.
    pub plant: f64,
    /// Gate, margin and seed.
    pub criteria: Criteria,
}

/// Measures and compares. `progress` is called with (done, total) blocks.
///
/// # Errors
/// A binary that cannot be started or does not support blocks, or builds that measure different
/// cases.
pub fn live(options: &LiveOptions, progress: &mut dyn FnMut(u64, u64)) -> anyhow::Result<Comparison> {
    live_recorded(options, progress, &mut |_| {})
}

/// [`live`], and every block in each direction as a trial, in the order in which they were
/// measured, to `keep`: cycles in `cycles`, its purpose in `pair` and `block`.
///
/// # Errors
/// As [`live`].
pub fn live_recorded(
    options: &LiveOptions,
    progress: &mut dyn FnMut(u64, u64),
    keep: &mut dyn FnMut(Trial),
) -> anyhow::Result<Comparison> {
    ensure!(options.sessions >= 2, "{} sessions are too few: an interval needs at least 2", options.sessions);
    ensure!(options.rounds >= 1, "at least 1 round is needed");
    let cpu = options.cpu.map_or_else(last_cpu, Ok)?;
    let mut rng = Rng::new(options.criteria.seed);
    let mut seen: Option<Tables> = None;
    for session in 0..options.sessions {
        let mut four = Four::start(options, cpu)?;
        let tables = seen.get_or_insert_with(|| Tables::new(four.cases.clone()));
        let total = (options.sessions * options.rounds * tables.cases.len() * 8) as u64;
        let before = total / options.sessions as u64 * session as u64;
        let mut done = 0;
        let mut record = Record { session: session as u32, order: 0, seed: options.criteria.seed, keep };
        four.session(options, tables, &mut rng, &mut record, &mut || {
            done += 1;
            progress(before + done, total);
        })?;
    }
    let tables = seen.expect("there was a session");
    let notes = notes(options, cpu);
    let sides = [0, 1].map(|side| options.binaries[side].display().to_string());
    Ok(Comparison::new(sides, options.criteria, tables.measured(&mut rng)?, notes))
}

fn notes(options: &LiveOptions, cpu: usize) -> Vec<String> {
    let mut notes = vec![format!(
        "{} sessions of {} ABBA rounds per case in blocks of {:.1} ms, all on processor {cpu}, seed {}",
        options.sessions,
        options.rounds,
        options.block_us as f64 / 1e3,
        options.criteria.seed
    )];
    if options.plant > 0.0 {
        notes.push(format!("B is slowed down deliberately by {:.1} %", 100.0 * options.plant));
    }
    notes
}

/// The last processor that may run this process.
fn last_cpu() -> anyhow::Result<usize> {
    let set = sched_getaffinity(None).context("CPU mask of this process")?;
    (0..CpuSet::MAX_CPU).rev().find(|cpu| set.is_set(*cpu)).context("empty CPU mask of this process")
}

/// Packets per batch: few, so that a block has many rounds and some of them are undisturbed.
const BATCH: &str = "64";

/// Directions of a case.
const DIRECTIONS: [&str; 2] = ["out", "in"];

/// Logarithms of ratios by case and direction, then by session; and cycles of A and B.
struct Tables {
    cases: Vec<String>,
    ab: Vec<Vec<f64>>,
    aa: Vec<Vec<f64>>,
    cycles: Vec<[Vec<f64>; 2]>,
}

impl Tables {
    fn new(cases: Vec<String>) -> Self {
        let rows = cases.len() * DIRECTIONS.len();
        Self { cases, ab: vec![vec![]; rows], aa: vec![vec![]; rows], cycles: vec![Default::default(); rows] }
    }

    fn measured(&self, rng: &mut Rng) -> anyhow::Result<Vec<Measured>> {
        let labels = self.cases.iter().flat_map(|case| DIRECTIONS.map(|direction| format!("{case} {direction}")));
        let mut rows: Vec<Measured> = labels
            .enumerate()
            .map(|(row, label)| {
                let ratio = over(&self.ab[row], rng).with_context(|| format!("{label}: measured time is 0"))?;
                let [a, b] = [0, 1].map(|side| median(&self.cycles[row][side]));
                Ok(Measured { label, metric: "cycles/packet".into(), a, b, ratio, floor: over(&self.aa[row], rng) })
            })
            .collect::<anyhow::Result<_>>()?;
        if let ([_, _, ..], Some(ratio)) = (&rows[..], over(&pooled(&self.ab), rng)) {
            let side = |of: fn(&Measured) -> f64| mean(&rows.iter().map(|row| of(row).ln()).collect::<Vec<_>>()).exp();
            let (a, b, floor) = (side(|row| row.a), side(|row| row.b), over(&pooled(&self.aa), rng));
            rows.push(Measured { label: POOLED.into(), metric: "cycles/packet".into(), a, b, ratio, floor });
        }
        Ok(rows)
    }
}

/// Label of the row that summarises all others.
const POOLED: &str = "geometric mean of all";

/// Ratio over sessions.
fn over(sessions: &[f64], rng: &mut Rng) -> Option<Ratio> {
    paired(&sessions.iter().map(|log| vec![*log]).collect::<Vec<_>>(), rng)
}

/// Mean of all rows in each session.
fn pooled(rows: &[Vec<f64>]) -> Vec<f64> {
    let sessions = rows.iter().map(Vec::len).min().unwrap_or(0);
    (0..sessions).map(|session| mean(&rows.iter().map(|row| row[session]).collect::<Vec<_>>())).collect()
}

/// Blocks as trials.
struct Record<'a> {
    session: u32,
    order: u32,
    seed: u64,
    keep: &'a mut dyn FnMut(Trial),
}

/// Position of a block.
struct BlockPosition<'a> {
    case: &'a str,
    round: usize,
    /// 0: A with B. 1: A with A.
    pair: usize,
    /// Position within the ABBA of its pair, from 0.
    at: usize,
    /// Side of its pair.
    side: usize,
}

impl Record<'_> {
    /// Both directions of a block.
    fn block(&mut self, place: &BlockPosition<'_>, result: &BlockResult) {
        let mut words = place.case.split(' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        let (protocol, mode, suite, size) = (word(), word(), word(), word());
        let subject = match (place.pair, place.side) {
            (0, 1) => "B",
            (0, _) => "A",
            (_, 1) => "A twice, second",
            _ => "A twice, first",
        };
        for (direction, cycles) in [(Direction::Out, result.out), (Direction::In, result.inbound)] {
            let values = [
                (Metric::BlockCycles, cycles),
                (Metric::ComparePair, place.pair as f64),
                (Metric::CompareBlock, place.at as f64),
                (Metric::CompareRounds, result.rounds as f64),
            ];
            (self.keep)(Trial {
                schema: SCHEMA,
                run: "compare".into(),
                session: self.session,
                round: place.round as u32,
                order: self.order,
                seed: self.seed,
                at_ms: crate::campaign::env::now_ms(),
                study: "compare".into(),
                subject: subject.into(),
                protocol: protocol.clone(),
                mode: mode.clone(),
                suite: suite.clone(),
                place: trial::Place::Memory,
                direction,
                traffic: size.clone(),
                size: size.parse().ok(),
                cores: 1,
                sas: 1,
                replay: 0,
                batch: BATCH.parse().unwrap_or(0),
                offered_pps: None,
                goal: None,
                way: None,
                measured: Measurement { values: values.into(), ..Measurement::default() },
                env: String::new(),
            });
        }
        self.order += 1;
    }
}

/// The processes of a session: A and B, then A and A.
struct Four {
    children: [Child; 4],
    cases: Vec<String>,
}

impl Four {
    fn start(options: &LiveOptions, cpu: usize) -> anyhow::Result<Self> {
        let [a, b] = &options.binaries;
        let start = |binary: &Path, plant: f64| Child::start(binary, &options.cases, plant, cpu);
        let children = [start(a, 0.0)?, start(b, options.plant)?, start(a, 0.0)?, start(a, 0.0)?];
        let cases = children[0].cases.clone();
        for child in &children[1..] {
            ensure!(
                child.cases == cases,
                "{} measures {:?}, {} measures {cases:?}; select cases that both support with --protocol, --suite and --size",
                child.name,
                child.cases,
                children[0].name
            );
        }
        Ok(Self { children, cases })
    }

    /// All rounds of all cases, cases in random order. Adds to `tables`.
    fn session(
        &mut self,
        options: &LiveOptions,
        tables: &mut Tables,
        rng: &mut Rng,
        record: &mut Record<'_>,
        done: &mut dyn FnMut(),
    ) -> anyhow::Result<()> {
        let mut order: Vec<usize> = (0..self.cases.len()).collect();
        rng.shuffle(&mut order);
        for case in order {
            for child in &mut self.children {
                child.block(case, options.block_us)?; // Warms it up.
            }
            let plans = [0, 1].map(|_| mirrored(rng.next_u64(), 2, options.rounds));
            // Least cycles by pair, side and direction.
            let mut least = [[[f64::INFINITY; 2]; 2]; 2];
            for round in 0..options.rounds {
                let first = rng.below(2);
                for pair in [first, 1 - first] {
                    for (at, step) in plans[pair][4 * round..4 * round + 4].iter().enumerate() {
                        let result = self.children[2 * pair + step.variant].block(case, options.block_us)?;
                        record.block(
                            &BlockPosition { case: &self.cases[case], round, pair, at, side: step.variant },
                            &result,
                        );
                        let least = &mut least[pair][step.variant];
                        for (least, cycles) in least.iter_mut().zip([result.out, result.inbound]) {
                            *least = least.min(cycles);
                        }
                        done();
                    }
                }
            }
            for direction in 0..DIRECTIONS.len() {
                let row = case * DIRECTIONS.len() + direction;
                for (tables, [a, b]) in [&mut tables.ab, &mut tables.aa].into_iter().zip(&least) {
                    tables[row].push((b[direction] / a[direction]).ln());
                }
                for (side, cycles) in tables.cycles[row].iter_mut().enumerate() {
                    cycles.push(least[0][side][direction]);
                }
            }
        }
        Ok(())
    }
}

/// A process that measures blocks; it ends with this value.
struct Child {
    name: String,
    process: std::process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    cases: Vec<String>,
}

impl Child {
    fn start(binary: &Path, cases: &[String], plant: f64, cpu: usize) -> anyhow::Result<Self> {
        let name = binary.display().to_string();
        let mut command = Command::new(binary);
        command.args(["bench", "path", "--blocks", "--batch", BATCH]).args(cases);
        if plant > 0.0 {
            command.arg(format!("--slow-down={plant}"));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let mut cpus = CpuSet::new();
        ensure!(cpu < CpuSet::MAX_CPU, "no processor {cpu}");
        cpus.set(cpu);
        let pid = rustix::process::Pid::from_child(&process);
        let pinned = sched_setaffinity(Some(pid), &cpus)
            .with_context(|| format!("cannot run on processor {cpu}; choose another with --cpu"));
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (input, output) = pipes.expect("both are piped");
        let mut child = Self { name, process, input, output: BufReader::new(output), cases: vec![] };
        pinned?;
        let header: BlockHeader = serde_json::from_str(&child.line()?).with_context(|| {
            format!("{} does not support block measurements: build both from this version or a later one", child.name)
        })?;
        ensure!(
            header.format == crate::bench::BLOCK_FORMAT,
            "{} uses version {} of the exchange, this build {}: use a build between both",
            child.name,
            header.format,
            crate::bench::BLOCK_FORMAT
        );
        child.cases = header.cases;
        Ok(child)
    }

    fn block(&mut self, case: usize, micros: u64) -> anyhow::Result<BlockResult> {
        if writeln!(self.input, "{case} {micros}").and_then(|()| self.input.flush()).is_err() {
            self.line()?; // Returns the reason of the exit.
        }
        let line = self.line()?;
        let result: BlockResult =
            serde_json::from_str(&line).with_context(|| format!("{} answered '{}'", self.name, line.trim()))?;
        ensure!(result.out > 0.0 && result.inbound > 0.0, "{} measured a time of 0", self.name);
        Ok(result)
    }

    /// The next line of output.
    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? > 0 {
            return Ok(line);
        }
        let mut errors = String::new();
        if let Some(stderr) = &mut self.process.stderr {
            let _ = stderr.take(4096).read_to_string(&mut errors);
        }
        let last = errors
            .lines()
            .map(str::trim)
            .find(|l| l.starts_with("error") || l.starts_with("weir"))
            .or(errors.lines().last());
        bail!("{} ended: {}", self.name, last.unwrap_or("it printed nothing"));
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It ends by itself when its input does; a hung one must not outlive us.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A substitute for a build: a shell script that responds to every line with the same time.
    fn script(folder: &Path, name: &str, body: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
        path
    }

    fn answering(cycles: &str) -> String {
        format!(
            "echo '{{\"format\":4,\"cases\":[\"x 64\",\"x 65\"]}}'\nwhile read -r line; do echo '{{\"out\":{cycles},\"in\":50,\"rounds\":3}}'; done"
        )
    }

    fn options(binaries: [PathBuf; 2]) -> LiveOptions {
        LiveOptions {
            binaries,
            cases: vec![],
            sessions: 3,
            rounds: 2,
            block_us: 0,
            cpu: None,
            plant: 0.0,
            criteria: Criteria { gate: 0.01, margin: 0.01, seed: 1 },
        }
    }

    #[test]
    fn every_block_is_a_row_with_its_place_in_the_order() {
        let folder = tempfile::tempdir().expect("a folder");
        let (a, b) = (script(folder.path(), "a", &answering("100")), script(folder.path(), "b", &answering("110")));
        let (options, mut rows) = (options([a, b]), Vec::new());
        live_recorded(&options, &mut |_, _| {}, &mut |trial| rows.push(trial)).expect("measured");
        // Two cases, two pairs, four blocks a round, two directions.
        assert_eq!(rows.len(), options.sessions * options.rounds * 2 * 2 * 4 * 2);
        let orders: Vec<u32> = rows.iter().filter(|row| row.session == 1).map(|row| row.order).collect();
        assert!(orders.is_sorted() && orders.iter().max() == Some(&(orders.len() as u32 / 2 - 1)));
        for rounds in rows.chunks(8) {
            let sides: String = rounds.iter().step_by(2).map(|row| row.subject.chars().last().unwrap_or('?')).collect();
            assert!(["ABBA", "BAAB", "tddt", "dttd"].contains(&sides.as_str()), "{sides}");
        }
        let cycles = |row: &Trial| row.measured.values.get(Metric::BlockCycles).unwrap();
        let of_b: Vec<f64> =
            rows.iter().filter(|row| row.subject == "B" && row.direction == Direction::Out).map(cycles).collect();
        assert!(!of_b.is_empty() && of_b.iter().all(|cycles| *cycles == 110.0));
    }

    #[test]
    fn blocks_of_both_are_paired_and_each_case_has_both_directions() {
        let folder = tempfile::tempdir().expect("a folder");
        let (a, b) = (script(folder.path(), "a", &answering("100")), script(folder.path(), "b", &answering("103")));
        let mut last = (0, 0);
        let comparison = live(&options([a, b]), &mut |done, total| last = (done, total)).expect("both answer");
        let rows: Vec<(&str, f64)> =
            comparison.rows.iter().map(|r| (r.label.as_str(), (1e4 * r.ratio.ratio.value).round() / 1e4)).collect();
        let pooled = (POOLED, 1.0149); // √1.03
        assert_eq!(rows, [("x 64 out", 1.03), ("x 64 in", 1.0), ("x 65 out", 1.03), ("x 65 in", 1.0), pooled]);
        assert_eq!(comparison.regressions().len(), 3);
        assert_eq!(comparison.rows[0].floor.as_ref().expect("A against itself").reach(), 0.0);
        assert_eq!(last, (96, 96));
    }

    #[test]
    fn what_does_not_answer_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let good = script(folder.path(), "a", &answering("100"));
        let refusal = |name: &str, body: &str| {
            let other = script(folder.path(), name, body);
            format!("{:#}", live(&options([good.clone(), other]), &mut |_, _| {}).expect_err("refused"))
        };
        assert!(
            refusal("old", "echo \"error: unexpected argument '--blocks'\" >&2; exit 2")
                .contains("old ended: error: unexpected argument")
        );
        assert!(refusal("talks", "echo hello").contains("does not support block measurements"));
        assert!(
            refusal("few", "echo '{\"format\":4,\"cases\":[\"x 64\"]}'; read -r x")
                .contains("select cases that both support")
        );
        assert!(refusal("next", "echo '{\"format\":9,\"cases\":[]}'; read -r x").contains("uses version 9"));
        assert!(
            refusal(
                "dies",
                "echo '{\"format\":4,\"cases\":[\"x 64\",\"x 65\"]}'; read -r x; echo 'weir: out of memory' >&2; exit 1"
            )
            .contains("dies ended: weir: out of memory")
        );
        let missing = live(&options([good.clone(), folder.path().join("missing")]), &mut |_, _| {});
        assert!(format!("{:#}", missing.expect_err("refused")).contains("cannot start"));
    }
}
