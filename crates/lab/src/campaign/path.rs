//! The studies `path` and `engines`: the whole path beside the engine alone, and engines by
//! themselves. Both directions of a batch are timed in every round; a trial keeps its own.

use std::time::{Duration, Instant};

use super::memory::own;
use super::runner::{Missing, Runner, one_size};
use super::schedule::Cell;
use super::subject::Subject;
use super::{Kind, Study};
use crate::bench::{Ends, EngineBench, Load, WARM_UP};
use crate::host::clock::chain_ticks;
use crate::host::{Observer, at_depth};
use crate::meter::{MeterError, store_ticks};
use crate::metric::Metric;
use crate::trial::{Direction, Measurement};
use stats::{RatedTimes, Rng};
use testbed::MemorySubject;
use testbed::pair;

/// Largest packet in bytes.
const LARGEST: u32 = 2000;
/// Fewest rounds of a trial, however short it is.
const FEWEST: usize = 3;
/// A trial ends at the latest after so many times its duration, stamps of packets included.
const MAX_WALL: u32 = 8;

/// Reason why `subject` cannot be in a study of this kind.
pub(super) fn refuses(kind: Kind, subject: &Subject) -> Option<&'static str> {
    match (kind, subject) {
        (Kind::Path, Subject::Own(MemorySubject::Path(pair))) if !pair.iptfs => None,
        (Kind::Path, _) => Some("has no path of single packets; use weir-PROTOCOL-MODE-SUITE, or a study 'sizes'"),
        (Kind::Engines, Subject::Own(MemorySubject::Cipher(_))) => None,
        (Kind::Engines, _) => Some("is no engine; use cipher-PROTOCOL-MODE-SUITE"),
        (_, Subject::Own(MemorySubject::Cipher(pair))) if pair.call != pair::Call::InPlace => {
            Some("calls an engine otherwise than the path does; use a study 'engines'")
        }
        _ => None,
    }
}

fn size_of(cell: &Cell) -> Result<usize, MeterError> {
    let size = one_size(&cell.traffic).filter(|size| *size <= LARGEST);
    size.map(|size| size as usize)
        .ok_or_else(|| MeterError::Unsupported(format!("it needs one size of at most {LARGEST}")))
}

/// Ticks of a direction.
fn of(direction: Direction, [out, back]: [u64; 2]) -> f64 {
    match direction {
        Direction::Out => out as f64,
        Direction::In => back as f64,
        Direction::Both => (out + back) as f64,
    }
}

/// Times per packet of the batches of a trial.
struct Batches<const N: usize> {
    packets: usize,
    /// Ticks of all batches.
    ticks: f64,
    times: RatedTimes<N>,
}

impl<const N: usize> Batches<N> {
    fn new(packets: usize) -> Self {
        Self { packets, ticks: 0.0, times: RatedTimes::new(chain_ticks) }
    }

    /// Adds the ticks of a batch, the first of which is the trial's own.
    fn add(&mut self, ticks: [f64; N]) {
        self.ticks += ticks[0];
        self.times.add(ticks.map(|ticks| ticks / self.packets as f64));
    }

    /// Values of a trial, named as those of other trials in memory, and the times at one clock
    /// rate.
    fn measurement(self, size: usize, observer: &Observer) -> (Measurement, Vec<[f64; N]>) {
        let sent = (self.packets * self.times.len()) as u64;
        let ticks = self.ticks as u64;
        let mut measured = Measurement {
            sent,
            received: sent,
            received_bytes: sent * size as u64,
            dur_ns: observer.ticks.ns(ticks),
            tsc: Some(ticks),
            ..Measurement::default()
        };
        let rated = self.times.finish();
        store_ticks(&rated, &observer.ticks, &mut measured);
        (measured, rated.times.into_iter().flatten().collect())
    }
}

/// Calls `round` until it has taken `duration` in total; without the first rounds, which warm up.
fn repeat(
    observer: &Observer,
    duration: Duration,
    mut round: impl FnMut(bool) -> Result<u64, MeterError>,
) -> Result<(), MeterError> {
    let target = observer.ticks.ticks(duration.as_nanos() as u64);
    let limit = Instant::now() + duration * MAX_WALL;
    for _ in 0..WARM_UP {
        round(false)?;
    }
    let (mut spent, mut rounds) = (0, 0);
    while rounds < FEWEST || spent < target && Instant::now() < limit {
        spent += at_depth(rounds, || round(true))?;
        rounds += 1;
    }
    Ok(())
}

/// The path beside the engine alone.
pub(super) struct Path {
    subject: pair::Subject,
    name: String,
    load: Load,
    ends: Ends,
    observer: Observer,
}

impl Path {
    pub(super) fn open(study: &Study, subject: &Subject, cell: &Cell) -> Result<Box<dyn Runner>, Missing> {
        let MemorySubject::Path(pair) = own(subject)? else { return Err(Missing("has no path".into())) };
        let subject = pair::Subject { window: cell.replay, ..pair.clone() };
        let load = Load {
            batch: cell.batch as usize,
            memory_mib: cell.memory_mib as usize,
            flows: study.flows[0],
            sas: cell.sas,
        };
        let ends = Ends::new(&subject, &load).map_err(|error| Missing(error.to_string()))?;
        Ok(Box::new(Self { subject, name: cell.subject.clone(), load, ends, observer: Observer::open() }))
    }
}

impl Runner for Path {
    fn trial(&mut self, cell: &Cell, duration: Duration, seed: u64) -> Result<Measurement, MeterError> {
        let size = size_of(cell)?;
        let window = self.observer.start();
        let mut rng = Rng::new(seed);
        let shape = self.ends.prepare(&self.subject, size);
        let mut batches = Batches::new(self.load.batch);
        repeat(&self.observer, duration, |counts| {
            let round = self.ends.round(&self.subject, &shape, rng.next_u64() & 1 == 0).ok_or_else(|| {
                let why = format!("a packet of {size} bytes was lost, or came out other than it went in");
                MeterError::Subject { subject: self.name.clone(), why }
            })?;
            if counts {
                batches.add([round.path, round.engine].map(|ticks| of(cell.direction, ticks)));
            }
            Ok(round.path.iter().chain(&round.engine).sum())
        })?;
        let (mut measured, rounds) = batches.measurement(size, &self.observer);
        let median = |of: fn([f64; 2]) -> f64| stats::median(&rounds.iter().copied().map(of).collect::<Vec<_>>());
        let values = [
            (Metric::Ticks("engine"), median(|[_, bare]| bare)),
            (Metric::OverEngine, median(|[whole, bare]| whole / bare)),
            (Metric::Ticks("without_engine"), median(|[whole, bare]| whole - bare)),
            (Metric::Flows, self.load.flows.into()),
            (Metric::MemoryMib, self.load.memory_mib as f64),
        ];
        measured.verified = measured.sent;
        measured.values.extend(values);
        self.observer.finish(&window, &mut measured);
        Ok(measured)
    }
}

/// An engine by itself.
pub(super) struct Engines {
    bench: EngineBench,
    observer: Observer,
}

impl Engines {
    pub(super) fn open(subject: &Subject, cell: &Cell) -> Result<Box<dyn Runner>, Missing> {
        let MemorySubject::Cipher(pair) = own(subject)? else { return Err(Missing("is no engine".into())) };
        let bench = EngineBench::new(pair, cell.batch as usize).map_err(|error| Missing(error.to_string()))?;
        Ok(Box::new(Self { bench, observer: Observer::open() }))
    }
}

impl Runner for Engines {
    fn trial(&mut self, cell: &Cell, duration: Duration, _: u64) -> Result<Measurement, MeterError> {
        let size = size_of(cell)?;
        let window = self.observer.start();
        if !self.bench.prepare(size) {
            return Err(MeterError::Unsupported("the suite does not encrypt, so that it copies nothing".into()));
        }
        let mut batches = Batches::new(self.bench.batch());
        repeat(&self.observer, duration, |counts| {
            let ticks = self.bench.round();
            if counts {
                batches.add([of(cell.direction, ticks)]);
            }
            Ok(ticks.iter().sum())
        })?;
        let (mut measured, _) = batches.measurement(size, &self.observer);
        // The engine checks the ICV of each packet.
        measured.verified = measured.sent;
        self.observer.finish(&window, &mut measured);
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::format;
    use crate::campaign::runner::{Setting, open};
    use crate::campaign::schedule::cells;

    fn trials(text: &str) -> Vec<(Cell, Result<Measurement, String>)> {
        let text = format!("name = \"t\"\n[[study]]\nduration_ms = 1\n{text}");
        let study = format::parse("t.toml", &text).unwrap().studies.remove(0);
        let trial = |cell: &Cell| {
            let mut runner = open(&study, cell, &Setting::default()).map_err(|why| format!("{why:?}"))?;
            runner.trial(cell, study.duration, 1).map_err(|error| error.to_string())
        };
        cells(&study).into_iter().map(|cell| (cell.clone(), trial(&cell))).collect()
    }

    #[test]
    fn a_path_costs_its_engine_and_more() {
        let made = trials(
            "kind = \"path\"\nsubjects = [\"weir-esp-tunnel-aes128gcm16\", \"weir-ah-transport-sha256\"]\n\
             traffic = [64, 1400]\ndirections = [\"out\", \"in\", \"both\"]\nbatch = 32\n",
        );
        assert_eq!(made.len(), 12);
        for (cell, measured) in made {
            let measured = measured.unwrap();
            let value = |metric: Metric<'_>| measured.values.get(metric).unwrap();
            let engine = value(Metric::Ticks("engine"));
            let [least, p10, median] = [Metric::TicksMin, Metric::TicksP10, Metric::TicksMedian].map(value);
            assert!(engine > 0.0 && median > engine * 0.5, "{cell:?}");
            assert!(least <= p10 && p10 <= median);
            assert_eq!((measured.verified, measured.lost.total()), (measured.sent, 0));
        }
    }

    #[test]
    fn every_call_of_an_engine_is_measured() {
        let made = trials(
            "kind = \"engines\"\ndirections = [\"out\", \"in\"]\nbatch = [1, 20]\nsubjects = [\
             \"cipher-esp-tunnel-aes128-sha1,engine=aws_lc\", \"cipher-esp-tunnel-aes128gcm16\", \
             \"cipher-esp-tunnel-aes128gcm16,copied\", \"cipher-esp-tunnel-aes128gcm16,engine=aws_lc,threads=1\"]\n",
        );
        assert_eq!(made.len(), 16);
        for (cell, measured) in made {
            assert!(measured.unwrap().values.get(Metric::TicksMedian).unwrap() > 0.0, "{cell:?}");
        }
        let copied = trials("kind = \"engines\"\nsubjects = [\"cipher-esp-tunnel-aes128gmac,copied\"]\n");
        assert!(copied[0].1.as_ref().unwrap_err().contains("does not encrypt"), "{copied:?}");
    }

    #[test]
    fn subjects_of_another_kind_are_refused_with_a_remedy() {
        let why = |kind: &str, subject: &str| {
            let text = format!("name = \"t\"\n[[study]]\nkind = \"{kind}\"\nsubjects = [\"{subject}\"]\n");
            format::parse("t.toml", &text).unwrap_err().to_string()
        };
        assert!(why("path", "cipher-esp-tunnel-aes128gcm16").contains("has no path of single packets; use weir-"));
        assert!(why("path", "weir-esp-tunnel-aes128gcm16,iptfs").contains("use weir-PROTOCOL-MODE-SUITE, or"));
        assert!(why("engines", "weir-esp-tunnel-aes128gcm16").contains("is no engine; use cipher-"));
        assert!(why("sizes", "cipher-esp-tunnel-aes128gcm16,copied").contains("use a study 'engines'"));
        assert!(why("sizes", "weir-esp-tunnel-aes128gcm16,engine=openssl").contains("unknown subject"));
    }
}
