//! Which trials a study consists of, and in which order they run.
//!
//! All compared subjects are in one round. Rounds form pairs: the second is the reverse of the
//! first, so that drift of the machine affects both halves of every comparison equally (A B C C B
//! A); each pair has a new random order.

use super::{Kind, Place, Study, scaling};
use crate::cores::Spreading;
use crate::trial::{CoreSetup, Direction};
use stats::Rng;

/// One combination of all factors of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Subject by name.
    pub subject: String,
    /// Traffic specification.
    pub traffic: String,
    /// Direction.
    pub direction: Direction,
    /// Share of the capacity that is offered; `None`: as much as goes.
    pub load: Option<f64>,
    /// Replay window in packets.
    pub replay: u32,
    /// SAs.
    pub sas: u32,
    /// Cores.
    pub cores: u32,
    /// Packets per batch.
    pub batch: u32,
    /// Memory that packets go through in MiB, 0 for one batch.
    pub memory_mib: u32,
    /// Scheduling variant, in a study of cores.
    pub way: Option<CoreSetup>,
    /// Index of the two identical halves, in a study of noise.
    pub arm: Option<u8>,
}

/// A scheduled trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Round within the session.
    pub round: u32,
    /// Position within the session.
    pub order: u32,
    /// Seed of its traffic.
    pub seed: u64,
    /// Cell.
    pub cell: Cell,
}

/// All combinations of a study, in the order in which it names them.
pub fn cells(study: &Study) -> Vec<Cell> {
    let loads: Vec<Option<f64>> =
        if study.loads.is_empty() { vec![None] } else { study.loads.iter().copied().map(Some).collect() };
    let mut cells = Vec::new();
    for subject in &study.subjects {
        // Transfers and set-ups of the first subject, which the others are compared with, are made
        // twice in each round: equals show what the machine calls different.
        let compares = matches!(study.kind, Kind::Transfers | Kind::Sessions);
        let twice = study.kind == Kind::Noise || compares && *subject == study.subjects[0];
        let arms: &[Option<u8>] = if twice { &[Some(0), Some(1)] } else { &[None] };
        for traffic in &study.traffic {
            for &direction in &study.directions {
                for &load in &loads {
                    for &replay in &study.replay {
                        for (sas, cores, batch, memory_mib, way) in sizes_of(study, subject) {
                            cells.extend(arms.iter().map(|&arm| Cell {
                                subject: subject.clone(),
                                traffic: traffic.clone(),
                                direction,
                                load,
                                replay,
                                sas,
                                cores,
                                batch,
                                memory_mib,
                                way,
                                arm,
                            }));
                        }
                    }
                }
            }
        }
    }
    cells
}

/// Other parameters of a study: SAs, cores, packets per batch, memory and variants.
fn sizes_of(study: &Study, subject: &str) -> Vec<(u32, u32, u32, u32, Option<CoreSetup>)> {
    let mut all = Vec::new();
    for &sas in &study.sas {
        for &cores in &study.cores {
            let ways = if study.kind == Kind::Scaling {
                ways(study, subject, cores).into_iter().map(Some).collect()
            } else {
                vec![None]
            };
            for &batch in &study.batch {
                for &memory_mib in &study.memory_mib {
                    all.extend(ways.iter().map(|way| (sas, cores, batch, memory_mib, *way)));
                }
            }
        }
    }
    all
}

/// The distinct scheduling variants in which `subject` can use `cores`.
fn ways(study: &Study, subject: &str, cores: u32) -> Vec<CoreSetup> {
    let mut all = Vec::new();
    for &scheduler in &study.schedulers {
        for &set in study.sets.iter().filter(|set| scaling::fits(subject, **set, scheduler)) {
            // Where there is nothing to spread, each core has as much as the next.
            let spreads = if set.spreads() && cores > 1 { &study.spreads[..] } else { &[Spreading::Ideal] };
            for &spread in spreads {
                all.extend(study.flows.iter().map(|&flows| CoreSetup { scheduler, set, spread, flows }));
            }
        }
    }
    all
}

/// The trials of one session. The same for the same seed, always.
pub fn session(study: &Study, campaign_seed: u64, session: u32) -> Vec<Planned> {
    let cells = cells(study);
    let mut rng = Rng::new(campaign_seed ^ fingerprint(&study.name) ^ (u64::from(session) << 48));
    let mut order: Vec<usize> = (0..cells.len()).collect();
    let mut planned = Vec::with_capacity(cells.len() * study.rounds as usize);
    // A transfer between hosts is one series after the other: two at a time would take each other's
    // cores.
    if study.kind == Kind::Series && study.place == Place::Namespaces {
        let rounds = cells.iter().flat_map(|cell| (0..study.rounds).map(move |round| (cell, round)));
        return (0..)
            .zip(rounds)
            .map(|(order, (cell, round))| Planned { round, order, seed: rng.next_u64(), cell: cell.clone() })
            .collect();
    }
    for round in 0..study.rounds {
        // Series are in order of time, whatever else is random.
        if study.kind != Kind::Series {
            if round % 2 == 0 { shuffle(&mut order, &mut rng) } else { order.reverse() }
        }
        for &index in &order {
            planned.push(Planned {
                round,
                order: planned.len() as u32,
                seed: rng.next_u64(),
                cell: cells[index].clone(),
            });
        }
    }
    planned
}

fn shuffle(order: &mut [usize], rng: &mut Rng) {
    for at in (1..order.len()).rev() {
        order.swap(at, rng.below(at + 1));
    }
}

/// A number for a name (FNV-1a), so that studies of one campaign have different orders.
fn fingerprint(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::Set;

    fn study(text: &str) -> Study {
        let text = format!("name = \"t\"\n[[study]]\nsubjects = [\"weir-esp-tunnel-aes128gcm16\"]\n{text}");
        super::super::format::parse("t.toml", &text).unwrap().studies.remove(0)
    }

    #[test]
    fn a_second_round_is_the_first_one_backwards() {
        let study =
            study("kind = \"sizes\"\ntraffic = [64, 128, 256, 512]\ndirections = [\"out\", \"in\"]\nrounds = 4");
        let trials = session(&study, 1, 0);
        assert_eq!(trials.len(), 32);
        let cell = |at: usize| (&trials[at].cell.traffic, trials[at].cell.direction);
        for at in 0..8 {
            assert_eq!(cell(at), cell(15 - at));
            assert_eq!(cell(16 + at), cell(31 - at));
        }
        assert!((0..8).any(|at| cell(at) != cell(16 + at)), "each pair of rounds has an order of its own");
        assert!(trials.iter().enumerate().all(|(at, trial)| trial.order as usize == at));
    }

    #[test]
    fn order_and_seeds_repeat_from_the_seed_and_differ_between_sessions() {
        let study = study("kind = \"sizes\"\ntraffic = [64, 128, 256, 512]\nrounds = 2");
        assert_eq!(session(&study, 1, 0), session(&study, 1, 0));
        assert_ne!(session(&study, 1, 0), session(&study, 1, 1));
        assert_ne!(session(&study, 1, 0), session(&study, 2, 0));
    }

    #[test]
    fn what_cannot_be_spread_is_spread_evenly() {
        let study = study(
            "kind = \"scaling\"\ncores = [1, 2]\nspreads = [\"worst\", \"hashed\"]\nschedulers = [\"run-to-completion\"]",
        );
        let cells = cells(&study);
        let spreads = |set: Set, cores: u32| -> Vec<Spreading> {
            let ways = cells.iter().filter(|cell| cell.cores == cores).filter_map(|cell| cell.way);
            ways.filter(|way| way.set == set).map(|way| way.spread).collect()
        };
        assert_eq!(spreads(Set::PerCpu, 2), [Spreading::Worst, Spreading::Hashed]);
        for (set, cores) in [(Set::PerCpu, 1), (Set::One, 1), (Set::One, 2), (Set::Apart, 2)] {
            assert_eq!(spreads(set, cores), [Spreading::Ideal], "{set:?} {cores}");
        }
    }

    #[test]
    fn noise_has_both_arms_in_every_round_and_a_series_stays_in_order() {
        let noise = study("kind = \"noise\"\nrounds = 3");
        let trials = session(&noise, 1, 0);
        for round in trials.chunks(2) {
            let mut arms: Vec<_> = round.iter().map(|trial| trial.cell.arm).collect();
            arms.sort_unstable();
            assert_eq!(arms, [Some(0), Some(1)]);
        }
        let series = study("kind = \"series\"\ntraffic = [64, 128]\nrounds = 3");
        let sizes: Vec<String> = session(&series, 1, 0).into_iter().map(|trial| trial.cell.traffic).collect();
        assert_eq!(sizes, ["64", "128", "64", "128", "64", "128"]);
        let mut hosts = study("kind = \"series\"\nplace = \"namespaces\"\nrounds = 3\nduration_ms = 500");
        hosts.subjects = ["plain", "wireguard-go"].map(str::to_owned).into();
        let planned = session(&hosts, 1, 0);
        let subjects: Vec<&str> = planned.iter().map(|trial| trial.cell.subject.as_str()).collect();
        let [one, other] = ["plain", "wireguard-go"];
        assert_eq!(subjects, [one, one, one, other, other, other], "one transfer after the other");
        assert!(
            planned.iter().enumerate().all(|(at, trial)| (trial.order as usize, trial.round) == (at, at as u32 % 3))
        );
    }
}
