//! The study `scaling`: multi-core scaling, by scheduler, by set of SAs and by spread of flows over
//! them.

use std::collections::BTreeMap;
use std::time::Duration;

use crypto::Engine;
use ipsec::Protocol;

use super::memory::own;
use super::runner::{Missing, Runner, one_size};
use super::schedule::Cell;
use super::subject::Subject;
use crate::cores::{Case, Scheduler, Set, TrialCounts, World, run_trial};
use crate::meter::MeterError;
use crate::metric::{Figures, Metric};
use crate::trial::{CoreSetup, Lost, Measurement};
use stats::jain;
use testbed::MemorySubject;
use testbed::pair::{self, Lanes, Shape};

/// Largest packet in bytes.
const LARGEST: u32 = 1900;

/// Returns whether a subject can be a set, run by a scheduler: ESP is one SA, one per CPU or
/// gateways apart, EESP a Sub SA per CPU, PSP a counter prefix per CPU.
pub(super) fn fits(subject: &str, set: Set, scheduler: Scheduler) -> bool {
    let Some(pair) = tunnel(subject) else { return false };
    let of_protocol = match pair.protocol {
        Protocol::Esp => matches!(set, Set::One | Set::PerCpu | Set::Apart),
        Protocol::Eesp => set == Set::SubSas,
        Protocol::Psp => set == Set::Psp,
        Protocol::Ah => false,
    };
    of_protocol && set.runs_by(scheduler)
}

/// The subject as a tunnel over IPv4 without extras, which the study is made with.
fn tunnel(name: &str) -> Option<pair::Subject> {
    let Ok(Subject::Own(MemorySubject::Path(pair))) = Subject::parse(name) else { return None };
    let plain = pair::Subject::new(pair.protocol, Shape::Tunnel, &pair.suite, pair.engine);
    (!pair.v6 && !pair.udp && pair.lanes == Lanes::One && pair.crypt_offset.is_none() && pair.shape == plain.shape)
        .then_some(pair)
}

/// A suite on so many cores.
pub(super) struct Scaling {
    suite: String,
    engine: Engine,
    worlds: BTreeMap<Set, World>,
}

impl Scaling {
    pub(super) fn open(subject: &Subject, cell: &Cell) -> Result<Box<dyn Runner>, Missing> {
        own(subject)?;
        let pair =
            tunnel(&cell.subject).ok_or_else(|| Missing("is not a tunnel of ESP, EESP or PSP over IPv4".into()))?;
        let here = ports::cpus::allowed().len().min(dataplane::MAX_SLOTS);
        if cell.cores as usize > here {
            return Err(Missing(format!("{} cores: only {here} are available", cell.cores)));
        }
        Ok(Box::new(Self { suite: pair.suite, engine: pair.engine, worlds: BTreeMap::new() }))
    }
}

impl Runner for Scaling {
    fn trial(&mut self, cell: &Cell, duration: Duration, _: u64) -> Result<Measurement, MeterError> {
        let way = cell.way.ok_or_else(|| MeterError::Unsupported("it needs a scheduler and a set of SAs".into()))?;
        let size = one_size(&cell.traffic).filter(|size| *size <= LARGEST);
        let size = size.ok_or_else(|| MeterError::Unsupported(format!("it needs one size of at most {LARGEST}")))?;
        let case = case(cell, way, size, self.engine);
        if let std::collections::btree_map::Entry::Vacant(entry) = self.worlds.entry(way.set) {
            let world = World::new(way.set, &self.suite, case.cores, self.engine)
                .map_err(|error| MeterError::Unsupported(error.to_string()))?;
            // Caches, pages and clock settle.
            run_trial(&case, entry.insert(world), duration / 4);
        }
        Ok(measurement(&run_trial(&case, &self.worlds[&way.set], duration), size, duration))
    }
}

fn case(cell: &Cell, way: CoreSetup, size: u32, engine: Engine) -> Case {
    Case {
        scheduler: way.scheduler,
        set: way.set,
        size: size as usize,
        flows: way.flows as usize,
        cores: cell.cores as usize,
        spread: way.spread,
        engine,
    }
}

fn measurement(passed: &TrialCounts, size: u32, duration: Duration) -> Measurement {
    let received: u64 = passed.packets.iter().sum();
    let shares: Vec<f64> = passed.packets.iter().map(|packets| *packets as f64).collect();
    let mut values = Figures::from([
        (Metric::UsedQueues, shares.iter().filter(|share| **share > 0.0).count() as f64),
        (Metric::WrongCore, passed.wrong_core as f64),
        (Metric::Blocked, passed.blocked as f64),
        (Metric::Disordered, passed.disordered as f64),
    ]);
    if received > 0 {
        values.set(Metric::Jain, jain(&shares));
    }
    values.extend(shares.iter().enumerate().map(|(core, share)| (Metric::CorePackets(core), *share)));
    Measurement {
        sent: received + passed.lost,
        received,
        received_bytes: received * u64::from(size),
        // Flow and number of each were looked at.
        verified: received,
        lost: Lost { other: passed.lost, ..Lost::default() },
        // Cores start and stop each for itself: the time in which all of them together would have
        // passed so many.
        dur_ns: if received > 0 { (received as f64 / passed.rate * 1e9) as u64 } else { duration.as_nanos() as u64 },
        values,
        ..Measurement::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::{format, schedule};

    #[test]
    fn a_subject_is_what_its_protocol_has() {
        use Scheduler::{Pipeline, RunToCompletion};
        let [esp, eesp, psp] = ["esp", "eesp", "psp"].map(|protocol| format!("weir-{protocol}-tunnel-aes128gcm16"));
        for (subject, sets) in
            [(&esp, vec![Set::One, Set::PerCpu, Set::Apart]), (&eesp, vec![Set::SubSas]), (&psp, vec![Set::Psp])]
        {
            let fit: Vec<Set> = Set::ALL.into_iter().filter(|set| fits(subject, *set, RunToCompletion)).collect();
            assert_eq!(fit, sets, "{subject}");
        }
        assert!(fits(&esp, Set::One, Pipeline) && !fits(&esp, Set::Apart, Pipeline));
        for other in ["plain", "wireguard-go", "weir-esp-transport-aes128gcm16", "weir-esp-tunnel-aes128gcm16,udp"] {
            assert!(Set::ALL.iter().all(|set| !fits(other, *set, RunToCompletion)), "{other}");
        }
    }

    #[test]
    fn every_planned_trial_of_a_study_can_be_made() {
        let text = "name = \"t\"\n[[study]]\nkind = \"scaling\"\ntraffic = [64]\ncores = [1, 2]\nflows = [4]\nrounds = 1\n\
                    subjects = [\"weir-esp-tunnel-aes128gcm16\", \"weir-eesp-tunnel-aes128gcm16\", \"weir-psp-tunnel-aes128gcm16\"]\n\
                    spreads = [\"ideal\", \"worst\"]\n";
        let study = format::parse("t.toml", text).unwrap().studies.remove(0);
        let cells = schedule::cells(&study);
        // One core: sets by schedulers, of which gateways apart have one. Two cores: as many, and
        // again spread otherwise where that makes a difference.
        assert_eq!(cells.len(), 9 + 9 + 6);
        let here = ports::cpus::allowed().len() as u32;
        for cell in cells.iter().filter(|cell| cell.cores <= here) {
            let mut runner = Scaling::open(&Subject::parse(&cell.subject).unwrap(), cell).ok().unwrap();
            // A busy machine may let nothing through in so little time.
            let mut trial = || runner.trial(cell, Duration::from_millis(2), 1).unwrap();
            let measured = (0..100).map(|_| trial()).find(|measured| measured.received > 0).unwrap();
            assert_eq!((measured.lost.total(), measured.values.get(Metric::Disordered).unwrap()), (0, 0.0), "{cell:?}");
            assert!(measured.values.iter().all(|(_, value)| value.is_finite()), "{measured:?}");
            assert!(
                measurement(&TrialCounts::default(), 64, Duration::from_millis(2))
                    .values
                    .iter()
                    .all(|(_, v)| v.is_finite())
            );
        }
        let many = Cell { cores: 1000, ..cells[0].clone() };
        let why = Scaling::open(&Subject::parse(&many.subject).unwrap(), &many).err().unwrap();
        assert!(why.0.starts_with("1000 cores: "), "{why:?}");
    }
}
