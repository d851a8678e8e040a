//! What each part of the path costs, by two methods beside each other.
//!
//! *By leaving out*: seven rungs of the skeleton, each doing one thing more; a cost is the
//! difference of two rungs in the same round. *By stamps*: the time stamp counter is read at the
//! ends of stages, and its own cost is taken off. The two need not agree: work that overlaps is
//! cheap to add and dear to stamp. Rounds take everything in random order.

use dataplane::{Batch, Port};
use ports::clock::ticks;
use ports::memory_pair;

use super::skeleton::{LADDER, Skeleton, Slot};
use super::stage::{IN, OUT, Stamps, Unprobed};
use crate::host::clock::TickRate;
use crate::meter::Device;
use crate::metric::{Figures, Metric};
use crate::traffic::{Addresses, Generator, Traffic, TrafficError};
use crate::trial::{Direction, Measurement};
use crypto::Engine;
use stats::{Estimate, Rng, median_with_interval};
use testbed::MemorySubject;
use testbed::pair::{PairError, Subject};

/// Options of a study.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes of inner packets in bytes.
    pub sizes: Vec<u16>,
    /// Rounds per subject and size.
    pub rounds: usize,
    /// Packets per batch.
    pub batch: usize,
    /// Seed of order, contents and intervals.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { sizes: vec![64, 736, 1400], rounds: 31, batch: 256, seed: 1 }
    }
}

/// Reason why a study is not possible.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum StudyError {
    #[error(transparent)]
    Pair(#[from] PairError),
    #[error(transparent)]
    Traffic(#[from] TrafficError),
    #[error("{subject}: a packet of {size} bytes was dropped at ablation step '{rung}': {why}")]
    Dropped { subject: String, size: u16, rung: &'static str, why: &'static str },
    #[error("interrupted")]
    Interrupted,
}

/// Cost of one subject at one size in one direction. Ticks of the time stamp counter per packet.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SubjectCost {
    /// Name of the subject.
    pub subject: String,
    /// Direction: out or in.
    pub direction: Direction,
    /// Inner packet in bytes.
    pub size: u16,
    /// Each rung of the skeleton, whole.
    pub rungs: Vec<(&'static str, Estimate)>,
    /// Increase of each ablation step over the previous one.
    pub added: Vec<(&'static str, Estimate)>,
    /// Each stage by stamps, with all switches on but the copy's.
    pub stages: Vec<(&'static str, Estimate)>,
    /// The whole path as the gateway runs it.
    pub path: Estimate,
    /// The path with the null engine.
    pub path_null: Estimate,
    /// The engine alone.
    pub engine: Estimate,
    /// The engine on the least it can be given: what does not depend on the length.
    pub engine_least: Estimate,
    /// A call of the null engine.
    pub engine_call: Estimate,
    /// One pass that reads and writes the bytes of the packet.
    pub touch: Estimate,
    /// A memory port: receive, then send.
    pub port: [Estimate; 2],
    /// Total overhead of time stamps on the no-op path.
    pub probe_cost: f64,
    /// Ticks of one stamp, which were taken off.
    pub stamp: f64,
}

impl SubjectCost {
    /// As a trial keeps it: every figure by name, medians with `_low` and `_high` ends of their
    /// intervals.
    pub fn measurement(&self, packets: u64) -> Measurement {
        let mut values = Figures::default();
        let mut put = |part: String, estimate: &Estimate| values.set_ticks(&part, estimate);
        self.rungs.iter().for_each(|(name, estimate)| put(format!("rung.{name}"), estimate));
        self.added.iter().for_each(|(name, estimate)| put(format!("added.{name}"), estimate));
        self.stages.iter().for_each(|(name, estimate)| put(format!("stage.{name}"), estimate));
        let single = [
            ("path", &self.path),
            ("path_null", &self.path_null),
            ("engine", &self.engine),
            ("engine_least", &self.engine_least),
            ("engine_call", &self.engine_call),
            ("touch", &self.touch),
            ("port_rx", &self.port[0]),
            ("port_tx", &self.port[1]),
        ];
        single.into_iter().for_each(|(name, estimate)| put(name.to_owned(), estimate));
        values.set(Metric::ProbeCostTicks, self.probe_cost);
        values.set(Metric::StampTicks, self.stamp);
        let ticks = self.path.value * packets as f64;
        let rate = TickRate::of_this_machine();
        Measurement {
            sent: packets,
            received: packets,
            received_bytes: packets * u64::from(self.size),
            tsc: Some(ticks as u64),
            dur_ns: rate.ns(ticks as u64),
            values,
            ..Measurement::default()
        }
    }

    /// Cost of the stages that both methods separate, by leaving out and by stamps: name, ticks,
    /// ticks.
    pub fn both_methods(&self) -> Methods {
        let find = |of: &[(&'static str, Estimate)], name: &str| {
            of.iter().find(|(known, _)| *known == name).map_or(f64::NAN, |(_, estimate)| estimate.value)
        };
        both_methods(|key| match key.split_once('.') {
            Some(("added", name)) => find(&self.added, name),
            Some(("stage", name)) => find(&self.stages, name),
            _ => self.engine_call.value,
        })
    }
}

/// Parts that both methods distinguish: name, ticks by ablation, ticks by time stamps.
pub type Methods = Vec<(&'static str, f64, f64)>;

/// Both methods beside each other; `value` has figures by the names of
/// [`SubjectCost::measurement`], without `_ticks`.
pub fn both_methods(value: impl Fn(&str) -> f64) -> Methods {
    // A stage that a direction does not have costs nothing.
    let sum = |names: &[&str]| -> f64 { names.iter().map(|name| value(name)).filter(|v| v.is_finite()).sum() };
    let call = value("engine_call");
    // The replay window is moved within finish and reserved within sa; it cannot be stamped by
    // itself.
    vec![
        ("native", sum(&["added.native"]), sum(&["stage.parse"])),
        (
            "header, lookup, replay",
            sum(&["added.header", "added.lookup", "added.replay"]),
            sum(&["stage.policy", "stage.sa", "stage.prepare", "stage.finish"]) + call,
        ),
        ("authentication, cipher", sum(&["added.authentication", "added.cipher"]), sum(&["stage.engine"]) - call),
    ]
}

/// By how much both methods may differ without a word, in percent.
const AGREE: f64 = 5.0;

/// Explanation of the difference between the methods; `None` if their sums agree within five
/// percent.
pub fn methods_explained(methods: &Methods) -> Option<String> {
    let (left_out, stamped) = methods.iter().fold((0.0, 0.0), |sum, (_, a, b)| (sum.0 + a, sum.1 + b));
    let percent = 100.0 * (stamped / left_out - 1.0);
    if !percent.is_finite() || percent.abs() <= AGREE {
        return None;
    }
    let (part, a, b) = methods.iter().max_by(|x, y| (x.2 - x.1).abs().total_cmp(&(y.2 - y.1).abs()))?;
    let why = if stamped > left_out {
        "a time stamp waits for all earlier work, so that overlapping work is counted in full"
    } else {
        "removing a part also shortens the waits of adjacent parts, which time stamps on the part itself do not show"
    };
    Some(format!(
        "time stamps give {:.0} ticks {} ({percent:+.0} %), {:+.0} of them in '{part}': {why}",
        (stamped - left_out).abs(),
        if stamped > left_out { "more" } else { "less" },
        b - a
    ))
}

/// Everything that is timed in a round.
const KINDS: usize = LADDER.len() + 8;
const STAMPED: usize = LADDER.len();
const PATH: usize = STAMPED + 1;
const PATH_NULL: usize = STAMPED + 2;
const ENGINE: usize = STAMPED + 3;
const ENGINE_LEAST: usize = STAMPED + 4;
const TOUCH: usize = STAMPED + 5;
const PORT: usize = STAMPED + 6;
const ENGINE_CALL: usize = STAMPED + 7;

/// Rounds that are run and not counted.
const WARM_UP: usize = 3;
/// Tries of a kind within a round, of which the fastest counts: a batch that was pre-empted is as
/// good as never run.
const TRIES: usize = 2;

/// Measures `subject` at every size, both directions.
///
/// # Errors
/// [`StudyError`].
pub fn measure(
    subject: &Subject,
    options: &Options,
    progress: &mut dyn FnMut() -> bool,
) -> Result<Vec<SubjectCost>, StudyError> {
    let mut rows = Vec::new();
    for &size in &options.sizes {
        if !progress() {
            return Err(StudyError::Interrupted);
        }
        rows.extend(Bench::new(subject, size, options)?.run(options)?);
    }
    Ok(rows)
}

/// One subject at one size, set up.
struct Bench {
    subject: MemorySubject,
    size: u16,
    template: Vec<u8>,
    skeletons: Vec<Skeleton>,
    stamped: Skeleton,
    path: Device,
    path_null: Device,
    engine: Device,
    call: Device,
    least: Device,
    least_template: Vec<u8>,
    slots: Vec<Slot>,
    batch: Batch,
    stamp: f64,
    read_ticks: f64,
}

impl KindCost {
    fn sum(&self) -> f64 {
        self.ticks.iter().sum()
    }
}

/// Cost of one kind in one round, per packet: out and in; stages if they were stamped.
#[derive(Clone, Copy, Default)]
struct KindCost {
    ticks: [f64; 2],
    stages: [[f64; 7]; 2],
}

impl Bench {
    fn new(subject: &Subject, size: u16, options: &Options) -> Result<Self, StudyError> {
        let device = |subject: MemorySubject| Device::new(&subject, options.batch, 2048.max(size.into()));
        let null = Subject { engine: Engine::Null, ..subject.clone() };
        let memory = MemorySubject::Path(subject.clone());
        let addresses = Addresses::of(&memory);
        let made = |size: u16| {
            let generator = Generator::new(&Traffic::fixed(size), addresses, options.seed)?;
            let mut packet = vec![0; size.into()];
            generator.write(&generator.peek(), &mut packet);
            Ok::<_, TrafficError>(packet)
        };
        let least = if subject.v6 { 56 } else { 36 };
        Ok(Self {
            template: made(size)?,
            least_template: made(least)?,
            skeletons: LADDER
                .iter()
                .map(|(_, switches)| Skeleton::new(subject, *switches))
                .collect::<Result<_, _>>()?,
            stamped: Skeleton::new(subject, LADDER[LADDER.len() - 2].1)?,
            path: device(memory.clone())?,
            path_null: device(MemorySubject::Path(null.clone()))?,
            call: device(MemorySubject::Cipher(null))?,
            engine: device(MemorySubject::Cipher(subject.clone()))?,
            least: device(MemorySubject::Cipher(subject.clone()))?,
            slots: (0..options.batch).map(|_| Slot::new(size.into())).collect(),
            batch: Batch::new(options.batch, 2048.max(size.into())),
            stamp: Stamps::own_cost(),
            read_ticks: TickRate::of_this_machine().read_ticks,
            subject: memory,
            size,
        })
    }

    fn run(mut self, options: &Options) -> Result<[SubjectCost; 2], StudyError> {
        let mut rng = Rng::new(options.seed);
        let mut took: Vec<Vec<KindCost>> = vec![Vec::new(); KINDS];
        for round in 0..options.rounds + WARM_UP {
            let mut order: [usize; KINDS] = std::array::from_fn(|kind| kind);
            for at in (1..KINDS).rev() {
                order.swap(at, rng.below(at + 1));
            }
            for kind in order {
                let tries = (0..TRIES).map(|_| self.once(kind)).collect::<Result<Vec<_>, _>>()?;
                let best = tries.into_iter().min_by(|a, b| a.sum().total_cmp(&b.sum()));
                if round >= WARM_UP {
                    took[kind].extend(best);
                }
            }
        }
        Ok([(0, Direction::Out), (1, Direction::In)].map(|(way, direction)| self.row(way, direction, &took, &mut rng)))
    }

    /// One batch of one kind.
    fn once(&mut self, kind: usize) -> Result<KindCost, StudyError> {
        let n = self.slots.len() as f64;
        let each = |ticks: [u64; 2], read: f64| ticks.map(|ticks| (ticks as f64 - read).max(0.0) / n);
        let mut took = KindCost::default();
        match kind {
            PATH => took.ticks = each(through(&mut self.path, &mut self.batch, &self.template), 0.0),
            PATH_NULL => took.ticks = each(through(&mut self.path_null, &mut self.batch, &self.template), 0.0),
            ENGINE => took.ticks = each(through(&mut self.engine, &mut self.batch, &self.template), 0.0),
            ENGINE_CALL => took.ticks = each(through(&mut self.call, &mut self.batch, &self.template), 0.0),
            ENGINE_LEAST => took.ticks = each(through(&mut self.least, &mut self.batch, &self.least_template), 0.0),
            TOUCH => took.ticks = each([touch(&mut self.slots, &self.template); 2], self.read_ticks),
            PORT => took.ticks = each(port(&mut self.batch, &self.template), self.read_ticks),
            rung => {
                let stamped = rung == STAMPED;
                let skeleton = if stamped { &mut self.stamped } else { &mut self.skeletons[rung] };
                self.slots.iter_mut().for_each(|slot| slot.set(&self.template));
                let mut stamps = [Stamps::default(); 2];
                let start = ticks();
                if stamped {
                    skeleton.outbound(&mut self.slots, &mut stamps[0]);
                } else {
                    skeleton.outbound(&mut self.slots, &mut Unprobed);
                }
                let middle = ticks();
                if stamped {
                    skeleton.inbound(&mut self.slots, &mut stamps[1]);
                } else {
                    skeleton.inbound(&mut self.slots, &mut Unprobed);
                }
                let end = ticks();
                took.ticks = each([middle - start, end - middle], self.read_ticks);
                took.stages = stamps.map(|stamps| stamps.per_packet(self.stamp, self.slots.len() as u64));
                if let Some(why) = self.slots.iter().find_map(|slot| slot.dropped) {
                    let rung = LADDER.get(rung).map_or("stamps", |(name, _)| name);
                    let (subject, size, why) = (self.subject.to_string(), self.size, why.key());
                    return Err(StudyError::Dropped { subject, size, rung, why });
                }
            }
        }
        Ok(took)
    }

    fn row(&self, way: usize, direction: Direction, took: &[Vec<KindCost>], rng: &mut Rng) -> SubjectCost {
        let column = |kind: usize| took[kind].iter().map(|took| took.ticks[way]).collect::<Vec<f64>>();
        let mut estimate = |values: &[f64]| median_with_interval(values, rng);
        let rungs: Vec<_> = LADDER.iter().enumerate().map(|(at, (name, _))| (*name, estimate(&column(at)))).collect();
        let added = LADDER.iter().enumerate().map(|(at, (name, _))| {
            let before = if at == 0 { vec![0.0; took[0].len()] } else { column(at - 1) };
            let differences: Vec<f64> = column(at).iter().zip(before).map(|(with, without)| with - without).collect();
            (*name, estimate(&differences))
        });
        let added: Vec<_> = added.collect();
        let stages = if way == 0 { OUT } else { IN };
        let stages = stages.iter().enumerate().map(|(at, stage)| {
            let values: Vec<f64> = took[STAMPED].iter().map(|took| took.stages[way][at]).collect();
            (stage.key, estimate(&values))
        });
        let stages: Vec<_> = stages.collect();
        let probed = estimate(&column(STAMPED)).value - estimate(&column(LADDER.len() - 2)).value;
        let port = [0, 1].map(|end| estimate(&took[PORT].iter().map(|took| took.ticks[end]).collect::<Vec<f64>>()));
        SubjectCost {
            subject: self.subject.to_string(),
            direction,
            size: self.size,
            rungs,
            added,
            stages,
            path: estimate(&column(PATH)),
            path_null: estimate(&column(PATH_NULL)),
            engine: estimate(&column(ENGINE)),
            engine_least: estimate(&column(ENGINE_LEAST)),
            engine_call: estimate(&column(ENGINE_CALL)),
            touch: estimate(&column(TOUCH)),
            port,
            probe_cost: probed,
            stamp: self.stamp,
        }
    }
}

/// A batch of `template` through a device and back; ticks of each direction.
fn through(device: &mut Device, batch: &mut Batch, template: &[u8]) -> [u64; 2] {
    fill(batch, template);
    device.expect(batch);
    let out = device.protect(batch);
    let back = device.open(batch);
    [out, back]
}

fn fill(batch: &mut Batch, template: &[u8]) {
    batch.clear();
    while batch.push_with(|packet| packet.set(template)) {}
}

/// Reads and writes every byte of a batch, as an engine that computes nothing would.
fn touch(slots: &mut [Slot], template: &[u8]) -> u64 {
    slots.iter_mut().for_each(|slot| slot.set(template));
    let mask = std::hint::black_box(0xff_u8);
    let start = ticks();
    for slot in slots.iter_mut() {
        slot.bytes_mut().iter_mut().for_each(|byte| *byte ^= mask);
    }
    let took = ticks() - start;
    std::hint::black_box(slots);
    took
}

/// A batch through a memory port; ticks to receive it and to send it.
fn port(batch: &mut Batch, template: &[u8]) -> [u64; 2] {
    let packets = batch.room() + batch.len();
    let (mut here, mut there) = memory_pair(packets, 2048.max(template.len()));
    fill(batch, template);
    let start = ticks();
    let sent = here.tx(batch);
    let middle = ticks();
    let received = there.rx(batch);
    let end = ticks();
    debug_assert!(sent.is_ok() && received.is_ok() && batch.len() == packets);
    [end - middle, middle - start]
}

#[cfg(test)]
mod tests {
    use ipsec::Protocol;

    use super::*;

    #[test]
    fn methods_that_differ_are_explained_and_those_that_agree_are_not() {
        let agree = vec![("native", 50.0, 51.0), ("authentication, cipher", 800.0, 830.0)];
        assert_eq!(methods_explained(&agree), None);
        let overlap = vec![("native", 50.0, 60.0), ("header, lookup, replay", 100.0, 190.0), ("x", 800.0, 790.0)];
        let words = methods_explained(&overlap).unwrap();
        assert!(
            words.starts_with("time stamps give 90 ticks more (+9 %), +90 of them in 'header, lookup, replay'"),
            "{words}"
        );
        let less = vec![("native", 100.0, 60.0)];
        assert!(methods_explained(&less).unwrap().starts_with("time stamps give 40 ticks less (-40 %)"));
        assert_eq!(methods_explained(&vec![]), None);
    }
    use testbed::pair::Shape;

    #[test]
    fn both_methods_see_the_same_path() {
        let subject = Subject::new(Protocol::Esp, Shape::Tunnel, "aes128gcm16", Engine::best());
        // Far apart: in a build without optimisation a call costs more than the cipher of a usual
        // packet.
        let options = Options { sizes: vec![64, 9000], rounds: 5, batch: 64, seed: 1 };
        let rows = measure(&subject, &options, &mut || true).unwrap();
        assert_eq!(rows.len(), 4);
        for row in &rows {
            // Differences begin with the first rung itself.
            assert_eq!((row.added[0], row.added.len()), (row.rungs[0], LADDER.len()));
            assert!(row.stages.iter().all(|(_, stage)| stage.value >= 0.0));
            assert!(row.size == 64 || row.engine_least.value < row.engine.value, "{row:?}");
            let trial = row.measurement(320);
            assert!(
                trial.values.get(Metric::Ticks("path")).unwrap() > 0.0
                    && trial.values.get(Metric::TicksHigh("added.cipher")).is_some()
            );
            assert_eq!(trial.received_bytes, 320 * u64::from(row.size));
            assert_eq!(row.both_methods().len(), 3);
        }
        // The engine's share grows with the packet.
        let engine = |n: usize| rows[n].stages.iter().find(|(name, _)| *name == "engine").unwrap().1.value;
        assert!(engine(2) > engine(0) && engine(3) > engine(1), "{rows:?}");
    }

    #[test]
    fn a_study_can_be_stopped_and_refuses_what_is_no_suite() {
        let subject = Subject::new(Protocol::Esp, Shape::Tunnel, "aes128gcm16", Engine::best());
        let options = Options { sizes: vec![64], rounds: 1, batch: 4, seed: 1 };
        assert!(matches!(measure(&subject, &options, &mut || false), Err(StudyError::Interrupted)));
        let none = Subject { suite: "rot13".into(), ..subject };
        assert!(matches!(measure(&none, &options, &mut || true), Err(StudyError::Pair(_))));
    }
}
