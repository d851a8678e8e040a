//! Traffic between two hosts with a subject between them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Counters, Keying, Started, Subject};
use crate::host;
use crate::meter::{Load, Meter, MeterError, Place, PortMeter, PortOptions, ReceivePort, SendPort};
use crate::metric::Metric;
use crate::traffic::Addresses;
use crate::trial::{Direction, Lost, Measurement};
use testbed::TestbedError;
use testbed::child::Interrupt;
use testbed::counters::process_seconds;
use testbed::exchange::Exchange;
use testbed::pair::Lanes;
use testbed::probe::{self, SetUp};
use testbed::world::{Cable, End, Plan, World};

/// MTU of the cable in bytes.
const CABLE_MTU: u16 = 1500;

/// Timeout of the SAs that follow the first one.
const ALL_WITHIN: Duration = Duration::from_secs(10);
/// Flows that are offered so that every worker requests its SA.
const SPREAD_FLOWS: usize = 64;

/// Cost of the start of a subject.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Establishment {
    /// First packet.
    pub(crate) first: SetUp,
    /// Messages of the key exchange ([`Exchange::messages`]).
    pub(crate) messages: u64,
    /// Outbound SAs of sun, Sub SAs not counted.
    pub(crate) sas: u32,
    /// Resident memory of the processes on both hosts, in bytes.
    pub(crate) resident_bytes: u64,
}

/// Snapshot of the processes and counters of a subject.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Processor time of the subject's processes on sun and moon, in seconds; `None` where the
    /// kernel does the work.
    pub cpu_s: Option<f64>,
    /// Counters of sun and moon.
    pub counters: [Counters; 2],
}

/// Two hosts with a subject between them, which packets of the generator cross from sun to moon.
/// Both hosts are gone with it.
pub struct SubjectMeter {
    name: String,
    source: Place,
    target: Place,
    // Before the world: processes end before their hosts do.
    started: Box<dyn Started>,
    world: World,
    interrupt: Interrupt,
}

impl SubjectMeter {
    /// Makes both hosts, starts `subject` on them with its files in `dir`, and waits for the first
    /// packet that arrives.
    ///
    /// # Errors
    /// The kernel refuses namespaces, the subject is missing, or nothing arrives.
    pub(crate) fn start(
        subject: &Subject,
        dir: &Path,
        interrupt: &Interrupt,
        cable: Cable,
    ) -> Result<Self, TestbedError> {
        Self::start_with(subject, Keying::Manual { workers: 1 }, dir, interrupt, cable).map(|(meter, ..)| meter)
    }

    /// The same with negotiated keys, and waits until every worker thread has its SA.
    ///
    /// # Errors
    /// As [`SubjectMeter::start`], or not all SAs come up.
    pub(crate) fn establish(
        subject: &Subject,
        workers: u32,
        dir: &Path,
        interrupt: &Interrupt,
        cable: Cable,
    ) -> Result<(Self, Establishment), TestbedError> {
        let keying = Keying::Negotiated { workers };
        let (mut meter, first, exchange) = Self::start_with(subject, keying, dir, interrupt, cable)?;
        // The SA of the first packet serves whatever has none of its own.
        let expected = if subject.lanes() == Lanes::PerCpu { workers + 1 } else { 1 };
        let sas = meter.all_sas(expected)?;
        let messages = exchange.messages(&meter.world);
        let resident_bytes = meter.started.processes().into_iter().map(host::resident_bytes_of).sum();
        Ok((meter, Establishment { first, messages, sas, resident_bytes }))
    }

    fn start_with(
        subject: &Subject,
        keying: Keying,
        dir: &Path,
        interrupt: &Interrupt,
        cable: Cable,
    ) -> Result<(Self, SetUp, Exchange), TestbedError> {
        let world = World::build(Plan { v6: subject.is_v6(), mtu: CABLE_MTU, cable })?;
        let exchange = Exchange::open(&world)?;
        let started = subject.start(keying, &world, dir, interrupt)?;
        let place = |end| Place {
            addr: subject.address(&world, end),
            netns: Some(PathBuf::from("/run/netns").join(world.namespace(end))),
        };
        let (source, target) = (place(End::Sun), place(End::Moon));
        let mut meter =
            Self { name: subject.to_string(), source, target, started, world, interrupt: interrupt.clone() };
        let initiated = meter.started.initiate(&meter.world)?;
        let first = probe::first_packet(&meter.world, meter.target.addr, interrupt)?;
        if let Some(mut initiated) = initiated {
            initiated.wait(interrupt, ALL_WITHIN, || Ok(()))?;
        }
        meter.started.check()?;
        Ok((meter, first, exchange))
    }

    /// Sends packets of many flows until sun has `expected` outbound SAs. Returns their number.
    fn all_sas(&mut self, expected: u32) -> Result<u32, TestbedError> {
        let limit = Instant::now() + ALL_WITHIN;
        loop {
            let [sas, _] = self.started.counters(&self.world)?[0].sas;
            if sas >= expected || sas == 0 && expected == 1 {
                return Ok(sas);
            }
            if Instant::now() > limit {
                return Err(TestbedError::Failed(format!(
                    "{sas} of {expected} SAs came up in {} s",
                    ALL_WITHIN.as_secs()
                )));
            }
            probe::many_flows(&self.world, self.target.addr, SPREAD_FLOWS)?;
            self.interrupt.tick()?;
            self.check()?;
        }
    }

    /// Current snapshot of the subject.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) fn effort(&self) -> Result<Effort, TestbedError> {
        Ok(Effort { cpu_s: self.cpu_s(), counters: self.started.counters(&self.world)? })
    }

    /// Processor time of the subject's processes so far, in seconds; `None` where the kernel does
    /// the work.
    pub(crate) fn cpu_s(&self) -> Option<f64> {
        let processes = self.started.processes();
        (!processes.is_empty()).then(|| processes.into_iter().map(process_seconds).sum())
    }

    /// That the subject still runs.
    ///
    /// # Errors
    /// It ended.
    pub(crate) fn check(&mut self) -> Result<(), TestbedError> {
        self.started.check()
    }

    /// Both hosts.
    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    fn subject_error(&self, error: TestbedError) -> MeterError {
        match error {
            TestbedError::Interrupted => MeterError::Interrupted,
            other => MeterError::Subject { subject: self.name.clone(), why: other.to_string() },
        }
    }
}

impl Meter for SubjectMeter {
    /// Every packet passes both endpoints of the subject, so [`Direction::Both`] is the only
    /// direction.
    fn trial(&mut self, load: &Load) -> Result<Measurement, MeterError> {
        if load.direction != Direction::Both {
            return Err(MeterError::Unsupported("between hosts a packet passes both ends: use direction both".into()));
        }
        let io = |what: &str| {
            let what = format!("{}: cannot {what}", self.name);
            move |source| MeterError::Io { what, source }
        };
        let rx = ReceivePort::open(&self.target, self.source.addr).map_err(io("receive"))?;
        let tx = SendPort::open(&self.source, self.target.addr, load.traffic.flows).map_err(io("send"))?;
        let addresses = Addresses { src: self.source.addr, dst: self.target.addr };
        let options = PortOptions { stop: self.interrupt.flag(), ..PortOptions::default() };
        let lost = Box::new(Lost::default);
        let mut ports = PortMeter::new(&self.name, Box::new(tx), Box::new(rx), addresses, lost, options);
        self.interrupt.check().map_err(|error| self.subject_error(error))?;
        let before = self.effort().map_err(|error| self.subject_error(error))?;
        let mut measured = ports.trial(load)?;
        self.check().map_err(|error| self.subject_error(error))?;
        let after = self.effort().map_err(|error| self.subject_error(error))?;
        account(&mut measured, &before, &after);
        self.interrupt.check().map_err(|error| self.subject_error(error))?;
        Ok(measured)
    }
}

/// Adds data of the subject: CPU time, counters, and drop reasons.
pub(crate) fn account(measured: &mut Measurement, before: &Effort, after: &Effort) {
    if let (Some(then), Some(now)) = (before.cpu_s, after.cpu_s) {
        measured.cpu_ns = Some(Duration::from_secs_f64((now - then).max(0.0)).as_nanos() as u64);
    }
    for (host, (then, now)) in ["sun", "moon"].iter().zip(before.counters.iter().zip(&after.counters)) {
        for (way, then, now) in [("sent", then.sent, now.sent), ("received", then.received, now.received)] {
            let bytes = now.bytes.saturating_sub(then.bytes);
            measured.values.set(Metric::SubjectBytes(host, way), bytes as f64);
            if let (Some(then), Some(now)) = (then.packets, now.packets) {
                measured.values.set(Metric::SubjectPackets(host, way), now.saturating_sub(then) as f64);
            }
        }
        for (reason, count) in &now.drops {
            let count = count - then.drops.get(reason).copied().unwrap_or(0).min(*count);
            if count > 0 {
                measured.values.set(Metric::SubjectDropped(host, reason), count as f64);
                move_cause(&mut measured.lost, reason, count);
            }
        }
    }
}

/// Losses without a cause are assigned the cause that the subject counted. Drops of packets that
/// were not the generator's find none to move.
fn move_cause(lost: &mut Lost, reason: &str, count: u64) {
    let count = count.min(lost.other);
    let cause = match reason {
        "replay" => &mut lost.replay,
        "bad_icv" | "icv" => &mut lost.auth,
        "queue_full" | "ring_full" => &mut lost.ring,
        _ => return,
    };
    *cause += count;
    lost.other -= count;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Count;

    fn effort(cpu_s: f64, packets: u64, replay: u64) -> Effort {
        let sent = Count { packets: Some(packets), bytes: packets * 100 };
        let drops = [("replay".to_owned(), replay)].into();
        Effort {
            cpu_s: Some(cpu_s),
            counters: [Counters { sent, ..Counters::default() }, Counters { drops, ..Counters::default() }],
        }
    }

    #[test]
    fn what_the_subject_counted_stands_in_the_trial() {
        let mut measured = Measurement { lost: Lost { other: 5, ..Lost::default() }, ..Measurement::default() };
        account(&mut measured, &effort(1.0, 10, 1), &effort(1.5, 110, 4));
        assert_eq!(measured.cpu_ns, Some(500_000_000));
        assert_eq!(measured.values.get(Metric::SubjectPackets("sun", "sent")), Some(100.0));
        assert_eq!(measured.values.get(Metric::SubjectBytes("sun", "sent")), Some(10_000.0));
        assert_eq!(measured.lost, Lost { replay: 3, other: 2, ..Lost::default() });
    }

    #[test]
    fn more_drops_than_losses_move_no_more_than_there_are() {
        let mut lost = Lost { other: 2, ..Lost::default() };
        move_cause(&mut lost, "bad_icv", 7);
        move_cause(&mut lost, "no_policy", 7);
        assert_eq!(lost, Lost { auth: 2, ..Lost::default() });
    }
}
