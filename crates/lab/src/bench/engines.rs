//! The engines against each other: the operations of an ESP tunnel, without the path around them.
//!
//! In every round each engine seals and opens the same packets under the same key, one after the
//! other in random order, so that drift of the machine meets all alike; ratios are taken per round.
//! Each engine opens the packets that another one sealed, so that no engine can be fast by a wrong
//! result.

use std::sync::Arc;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use crypto::{CryptoOp, DerivedKeys, Engine, KeyTable, Keys};
use dataplane::Batch;
use ipsec::Protocol;
use ports::clock::ticks_per_second;

mod afar;

use self::afar::OffloadBench;
use super::alone::{self, UncontendedRounds};
use super::path::{Bare, WARM_UP, udp_packet};
use crate::pair::{PairError, Shape, Subject};
use stats::{Estimate, Rng, median_with_interval};

/// Suites that are measured when none is named: the most common suites, and one of each type.
const SUITES: [&str; 10] = [
    "aes128gcm16",
    "aes256gcm16",
    "chacha20poly1305",
    "aes128ccm16",
    "aes128gmac",
    "aes128-sha1",
    "aes128-sha256",
    "aes256-sha512",
    "aes128ctr-sha256",
    "3des-sha1",
];

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Engines; every real one that can be used here when empty.
    pub engines: Vec<Engine>,
    /// The engine that ratios are to.
    pub against: Engine,
    /// Suites of ESP, a list of one of each kind when empty.
    pub suites: Vec<String>,
    /// Sizes of inner packets in bytes.
    pub sizes: Vec<usize>,
    /// Packets per call of an engine.
    pub batches: Vec<usize>,
    /// Threads that each engine has once more for itself, beside the caller's; 0 for none.
    pub threads: usize,
    /// Each engine once more with the packets elsewhere: they are copied as they are sealed.
    pub copied: bool,
    /// Rounds per case; should be at least 30 for a meaningful interval.
    pub rounds: usize,
    /// Seed of order and bootstrap.
    pub seed: u64,
    /// Limit of the time that a case waits for an idle SMT sibling; zero accepts every round.
    pub patience: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            engines: vec![],
            against: Engine::AwsLc,
            suites: vec![],
            sizes: vec![64, 512, 1400],
            batches: vec![16, 256],
            threads: 0,
            copied: false,
            rounds: 41,
            seed: 1,
            patience: alone::PATIENCE,
        }
    }
}

/// One engine in one direction.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct EngineTime {
    /// Ticks per packet.
    pub ticks: Estimate,
    /// To the engine that is compared against, per round.
    pub ratio: Estimate,
}

/// One engine on one suite, size and batch.
#[derive(Clone, Debug, serde::Serialize)]
pub struct EngineOutcome {
    /// Engine.
    pub engine: &'static str,
    /// Engine threads; the caller submits groups of packets and waits for the last. 0: the engine
    /// runs on the caller's thread.
    pub threads: usize,
    /// True if packets were copied while they were sealed. Opening is always in place.
    pub copied: bool,
    /// Suite.
    pub suite: String,
    /// Inner packet in bytes.
    pub size: usize,
    /// Packets per call.
    pub batch: usize,
    /// Sealing.
    pub seal: EngineTime,
    /// Opening.
    pub open: EngineTime,
    /// True if only uncontended rounds are counted.
    pub alone: bool,
}

/// Measures every case; ticks per second come first.
///
/// # Errors
/// An unknown suite, an engine that cannot be used here, or no threads for it.
pub fn run_engines(
    options: &EngineOptions,
    progress: super::path::Progress<'_>,
) -> Result<(f64, Vec<EngineOutcome>), PairError> {
    let mut engines = if options.engines.is_empty() { Engine::real().collect() } else { options.engines.clone() };
    if !engines.contains(&options.against) {
        engines.push(options.against);
    }
    let named = SUITES.map(str::to_owned);
    let suites = if options.suites.is_empty() { &named[..] } else { &options.suites[..] };
    let largest = options.batches.iter().copied().max().unwrap_or(1);
    let total = suites.len() * options.sizes.len() * options.batches.len();
    let (mut rng, mut outcomes, mut done) = (Rng::new(options.seed), Vec::new(), 0);
    let mut alone = UncontendedRounds::new(options.patience);
    let cpus = ports::cpus::allowed();
    for suite in suites {
        let mut rigs = Vec::new();
        for place in places(options) {
            for engine in &engines {
                let rig = Rig::new(*engine, suite, place, &cpus)?;
                // Without encryption, no pass over the data could copy it.
                if !matches!(place, BufferLocation::Copied) || !rig.shape(64).0.body.is_empty() {
                    rigs.push(rig);
                }
            }
        }
        let mut packets = Batch::new(largest, 2304);
        for size in &options.sizes {
            for batch in &options.batches {
                progress(done, total);
                done += 1;
                fill(&mut packets, *size, *batch, &rigs[0].subject);
                let times = rounds(&mut rigs, &mut packets, *size, options.rounds, &mut rng, &mut alone);
                let base = engines.iter().position(|engine| *engine == options.against).unwrap_or(0);
                let estimate = |engine: usize, way: usize, rng: &mut Rng| {
                    let ticks = &times[engine][way];
                    let ratio: Vec<f64> = ticks.iter().zip(&times[base][way]).map(|(own, base)| own / base).collect();
                    EngineTime { ticks: median_with_interval(ticks, rng), ratio: median_with_interval(&ratio, rng) }
                };
                for (n, rig) in rigs.iter().enumerate() {
                    let [seal, open] = [0, 1].map(|way| estimate(n, way, &mut rng));
                    outcomes.push(EngineOutcome {
                        engine: rig.subject.engine.name(),
                        threads: if let Work::OffloadBench(_) = rig.work { options.threads } else { 0 },
                        copied: matches!(rig.work, Work::Copied(_)),
                        suite: suite.clone(),
                        size: *size,
                        batch: *batch,
                        seal,
                        open,
                        alone: alone.enough(),
                    });
                }
            }
        }
    }
    if options.threads > 0 {
        afar::run_on(&cpus)?;
    }
    Ok((ticks_per_second(), outcomes))
}

fn fill(packets: &mut Batch, size: usize, count: usize, subject: &Subject) {
    packets.clear();
    let [src, dst] = subject.packet_addresses();
    let template = udp_packet(src, dst, size);
    for _ in 0..count {
        packets.push_with(|packet| packet.set(&template));
    }
}

/// Location of the packets.
#[derive(Clone, Copy)]
enum BufferLocation {
    Here,
    Copied,
    OffloadBench(usize),
}

fn places(options: &EngineOptions) -> impl Iterator<Item = BufferLocation> {
    let afar = (options.threads > 0).then_some(BufferLocation::OffloadBench(options.threads));
    [Some(BufferLocation::Here), options.copied.then_some(BufferLocation::Copied), afar].into_iter().flatten()
}

/// Kind of work.
enum Work {
    /// Sealed in place.
    InPlace,
    /// Copied from here, where they are contiguous, as in a GSO packet.
    Copied(Vec<u8>),
    /// An engine with separate threads.
    OffloadBench(OffloadBench),
}

/// One engine with its key.
struct Rig {
    subject: Subject,
    keys: Arc<KeyTable>,
    sending: dataplane::Snapshot,
    derived: DerivedKeys,
    bare: Bare,
    work: Work,
}

impl Rig {
    fn new(engine: Engine, suite: &str, place: BufferLocation, cpus: &[usize]) -> Result<Self, PairError> {
        let subject = Subject::new(Protocol::Esp, Shape::Tunnel, suite, engine);
        let [sending, _] = subject.tables()?;
        let (keys, derived) = (Arc::new(sending.keys.clone()), DerivedKeys::new(0));
        let work = match place {
            BufferLocation::Here => Work::InPlace,
            BufferLocation::Copied => Work::Copied(Vec::new()),
            BufferLocation::OffloadBench(threads) => {
                Work::OffloadBench(OffloadBench::start(engine, threads, &keys, cpus)?)
            }
        };
        Ok(Self { subject, keys, sending, derived, bare: Bare::new(), work })
    }

    /// From here on these packets, with `op` each.
    fn prepare(&mut self, op: CryptoOp, packets: &Batch) {
        match &mut self.work {
            Work::InPlace => (),
            Work::Copied(source) => {
                source.clear();
                packets.packets().iter().for_each(|packet| source.extend_from_slice(packet.bytes()));
            }
            Work::OffloadBench(afar) => afar.prepare(op, packets.len()),
        }
    }

    /// Seals and opens every packet; ticks of each.
    fn round(&mut self, packets: &mut Batch, shape: &(CryptoOp, usize)) -> [u64; 2] {
        let source = match &mut self.work {
            Work::OffloadBench(afar) => return afar.round(),
            Work::Copied(source) => &source[..],
            Work::InPlace => &[],
        };
        let keys = Keys { table: &self.keys, derived: &self.derived };
        self.bare.round(self.subject.engine, keys, packets.packets_mut(), source, shape)
    }

    /// The operation that the path makes for a packet of `size` bytes.
    fn shape(&self, size: usize) -> (CryptoOp, usize) {
        let [src, dst] = self.subject.packet_addresses();
        Bare::shape(&self.sending, &udp_packet(src, dst, size))
    }
}

/// Ticks per packet, by engine and direction, of the rounds that count.
fn rounds(
    rigs: &mut [Rig],
    packets: &mut Batch,
    size: usize,
    rounds: usize,
    rng: &mut Rng,
    alone: &mut UncontendedRounds,
) -> Vec<[Vec<f64>; 2]> {
    alone.case();
    let mut times = vec![[Vec::new(), Vec::new()]; rigs.len()];
    let shape = rigs[0].shape(size);
    let mut order: Vec<usize> = (0..rigs.len()).collect();
    let count = packets.len() as f64;
    rigs.iter_mut().for_each(|rig| rig.prepare(shape.0, packets));
    for round in 0..rounds + WARM_UP {
        // Fisher and Yates.
        for last in (1..order.len()).rev() {
            order.swap(last, (rng.next_u64() % (last as u64 + 1)) as usize);
        }
        alone.begin();
        for &n in &order {
            let ticks = rigs[n].round(packets, &shape);
            if round >= WARM_UP {
                times[n].iter_mut().zip(ticks).for_each(|(times, ticks)| times.push(ticks as f64 / count));
            }
        }
        if round >= WARM_UP {
            alone.end();
        }
    }
    times.into_iter().map(|ways| ways.map(|ticks| alone.counted(&ticks))).collect()
}

/// The table for people.
pub fn engines_table(outcomes: &[EngineOutcome]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["suite", "size", "batch", "engine", "seal", "ratio (95 %)", "open", "ratio (95 %)"]);
    let ratio = |e: &Estimate| format!("{:.2} ({:.2}-{:.2})", e.value, e.low, e.high);
    for o in outcomes {
        table.add_row([
            o.suite.clone(),
            alone::marked(o.size, o.alone),
            o.batch.to_string(),
            match o {
                EngineOutcome { copied: true, engine, .. } => format!("{engine}, copied"),
                EngineOutcome { threads: threads @ 1.., engine, .. } => format!("{engine} on {threads}"),
                EngineOutcome { engine, .. } => (*engine).to_owned(),
            },
            format!("{:.0}", o.seal.ticks.value),
            ratio(&o.seal.ratio),
            format!("{:.0}", o.open.ticks.value),
            ratio(&o.open.ratio),
        ]);
    }
    for column in table.column_iter_mut().skip(1).filter(|column| column.index != 3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let note = alone::note(outcomes.iter().map(|o| o.alone));
    note.into_iter().fold(table.to_string(), |table, note| format!("{table}\n{note}"))
}

/// The same for machines.
pub fn engines_json(hz: f64, options: &EngineOptions, outcomes: &[EngineOutcome]) -> serde_json::Value {
    let engines: Vec<_> = Engine::ALL
        .into_iter()
        .map(|engine| {
            let (name, what, lacks) = (engine.name(), engine.describe(), engine.unavailable());
            serde_json::json!({ "name": name, "what": what, "unavailable": lacks })
        })
        .collect();
    serde_json::json!({
        "unit": "TSC ticks per packet",
        "ticks_per_second": hz,
        "rounds": options.rounds,
        "against": options.against.name(),
        "engines": engines,
        "cpu": crate::host::cpu_model(),
        "kernel": crate::host::kernel(),
        "cases": outcomes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_is_measured_on_every_case() {
        let options = EngineOptions {
            suites: vec!["aes128gcm16".into(), "aes128-sha1".into(), "aes128gmac".into()],
            sizes: vec![64, 65],
            batches: vec![1, 20],
            threads: 1,
            copied: true,
            rounds: 5,
            ..EngineOptions::default()
        };
        let (hz, outcomes) = run_engines(&options, &mut |_, _| {}).expect("suites of ESP");
        // Nothing is copied where nothing is encrypted.
        assert_eq!(outcomes.len(), 4 * (3 + 3 + 2) * Engine::real().count());
        for o in &outcomes {
            let base = o.engine == Engine::AwsLc.name() && o.threads == 0 && !o.copied;
            for time in [o.seal, o.open] {
                assert!(time.ticks.value > 0.0 && time.ratio.value > 0.0, "{o:?}");
                assert!(!base || (time.ratio.value, time.ratio.low, time.ratio.high) == (1.0, 1.0, 1.0), "{o:?}");
            }
        }
        let text = engines_table(&outcomes);
        assert!(["aes128-sha1", "aws_lc on 1", "aws_lc, copied"].iter().all(|word| text.contains(word)), "{text}");
        let json = engines_json(hz, &options, &outcomes);
        assert_eq!(json["cases"].as_array().map(Vec::len), Some(outcomes.len()));
        assert_eq!(json["engines"].as_array().map(Vec::len), Some(Engine::ALL.len()));
        assert!(json["cases"][0]["seal"]["ratio"]["low"].is_number());
    }

    #[test]
    fn what_is_no_suite_is_refused() {
        let options = EngineOptions { suites: vec!["aes512".into()], ..EngineOptions::default() };
        assert!(run_engines(&options, &mut |_, _| {}).is_err());
    }
}
