//! An accelerator with given properties, for tests and models: it computes with an engine of this
//! host, and returns results when a device with these properties would.
//!
//! An idle device launches a group at once. Otherwise groups collect until a launch has its maximum
//! or until [`Accelerator::flush`]. Launches run one after the other; each takes an overhead and a
//! time per byte.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Accelerator, Direction, Gone, Group};
use crate::{DerivedKeys, Engine};

/// Clock in nanoseconds that its holder advances.
#[derive(Clone, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Current time in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Advances the clock.
    pub fn advance(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

/// Properties of a simulated device.
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// Time of a launch in ns, whatever it contains.
    pub overhead_ns: u64,
    /// Time per byte of the operations' bodies in ns.
    pub ns_per_byte: f64,
    /// Maximum number of groups per launch, at least 1.
    pub batch: usize,
    /// Maximum number of groups under way, at least 1.
    pub capacity: usize,
    /// Failure, if any.
    pub fault: Option<Fault>,
}

impl Default for Properties {
    fn default() -> Self {
        Self { overhead_ns: 0, ns_per_byte: 0.0, batch: 1, capacity: 64, fault: None }
    }
}

/// A failure, from one launch on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fault {
    /// Number of the launch, from 0.
    pub launch: u64,
    /// Kind.
    pub kind: FaultKind,
}

/// Kind of a failure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FaultKind {
    /// The device fails when the groups of the launch have reached this state.
    Gone(State),
    /// The launch never completes, without an error.
    Silent,
    /// The launch and those after it take so many times as long.
    Slow(u32),
    /// The results are wrong: sealed packets have a wrong ICV, and received packets fail
    /// verification, with their plaintext in the buffer.
    Wrong,
}

/// State of a group on its way through the device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// Submitted, not launched.
    Filling,
    /// Launched.
    InFlight,
    /// Complete, and no group of the launch was polled.
    Done,
    /// The first group of the launch was polled.
    Draining,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Filling, Self::InFlight, Self::Done, Self::Draining];
}

struct Launch<P> {
    number: u64,
    groups: VecDeque<Group<P>>,
    /// Time of completion; `None` before the launch.
    done_ns: Option<u64>,
    polled: bool,
}

/// The accelerator.
pub struct Simulated<P> {
    engine: Engine,
    properties: Properties,
    now_ns: Box<dyn Fn() -> u64 + Send>,
    /// Only the last one may not be launched yet.
    launches: VecDeque<Launch<P>>,
    /// Completion of the last launch.
    busy_until_ns: u64,
    next_launch: u64,
    under_way: usize,
    gone: bool,
    derived: DerivedKeys,
}

impl<P: AsMut<[u8]> + Send> Simulated<P> {
    /// Creates a device that computes with `engine` and reads the time in nanoseconds from
    /// `now_ns`.
    pub fn new(engine: Engine, properties: Properties, now_ns: impl Fn() -> u64 + Send + 'static) -> Self {
        let properties =
            Properties { batch: properties.batch.max(1), capacity: properties.capacity.max(1), ..properties };
        Self {
            engine,
            properties,
            now_ns: Box::new(now_ns),
            launches: VecDeque::new(),
            busy_until_ns: 0,
            next_launch: 0,
            under_way: 0,
            gone: false,
            derived: DerivedKeys::new(0),
        }
    }

    fn fault(&self, launch: u64) -> Option<FaultKind> {
        self.properties.fault.filter(|fault| launch >= fault.launch).map(|fault| fault.kind)
    }

    fn is_gone_at(&self, launch: u64, state: State) -> bool {
        self.fault(launch) == Some(FaultKind::Gone(state))
    }

    /// Launches the groups that were collected.
    fn launch(&mut self) {
        let now_ns = (self.now_ns)();
        let Some(number) = self.launches.back().filter(|last| last.done_ns.is_none()).map(|last| last.number) else {
            return;
        };
        let slow = match self.fault(number) {
            Some(FaultKind::Slow(times)) => u64::from(times),
            _ => 1,
        };
        let wrong = self.fault(number) == Some(FaultKind::Wrong);
        let Some(last) = self.launches.back_mut() else { return };
        let mut bytes = 0;
        for group in &mut last.groups {
            bytes += group.tasks.iter().map(|task| task.op.body.len()).sum::<usize>();
            group.run(self.engine, &self.derived);
            if wrong {
                spoil(group);
            }
        }
        let took_ns = self.properties.overhead_ns + (bytes as f64 * self.properties.ns_per_byte) as u64;
        self.busy_until_ns = self.busy_until_ns.max(now_ns) + took_ns * slow;
        last.done_ns = Some(self.busy_until_ns);
        self.gone |= self.is_gone_at(number, State::InFlight);
    }
}

/// Gives every task of a group a wrong result.
fn spoil<P: AsMut<[u8]>>(group: &mut Group<P>) {
    group.results.verified = 0;
    for task in group.tasks.iter_mut().filter(|_| group.direction == Direction::Seal) {
        let icv = task.op.icv.range();
        if let Some(first) = task.packet.as_mut().get_mut(icv).and_then(<[u8]>::first_mut) {
            *first ^= 1;
        }
    }
}

impl<P: AsMut<[u8]> + Send> Accelerator<P> for Simulated<P> {
    fn submit(&mut self, group: Group<P>) -> Result<(), Group<P>> {
        if self.gone || self.under_way == self.properties.capacity {
            return Err(group);
        }
        let idle = self.busy_until_ns <= (self.now_ns)();
        match self.launches.back_mut().filter(|last| last.done_ns.is_none()) {
            Some(last) => last.groups.push_back(group),
            None => {
                let groups = VecDeque::from([group]);
                self.launches.push_back(Launch { number: self.next_launch, groups, done_ns: None, polled: false });
                self.next_launch += 1;
            }
        }
        self.under_way += 1;
        let full = self.launches.back().is_some_and(|last| last.groups.len() >= self.properties.batch);
        self.gone |= self.is_gone_at(self.next_launch - 1, State::Filling);
        if !self.gone && (full || idle) {
            self.launch();
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Group<P>>, Gone> {
        if self.gone {
            return Err(Gone::DeviceFailed);
        }
        let now_ns = (self.now_ns)();
        let Some(first) = self.launches.front() else { return Ok(None) };
        let (number, polled) = (first.number, first.polled);
        if first.done_ns.is_none_or(|done_ns| done_ns > now_ns) || self.fault(number) == Some(FaultKind::Silent) {
            return Ok(None);
        }
        let state = if polled { State::Draining } else { State::Done };
        if self.is_gone_at(number, state) {
            self.gone = true;
            return Err(Gone::DeviceFailed);
        }
        let Some(first) = self.launches.front_mut() else { return Ok(None) };
        first.polled = true;
        let group = first.groups.pop_front();
        if first.groups.is_empty() {
            self.launches.pop_front();
        }
        self.under_way -= usize::from(group.is_some());
        Ok(group)
    }

    fn flush(&mut self) {
        if !self.gone {
            self.launch();
        }
    }

    fn ready(&self) -> bool {
        let now_ns = (self.now_ns)();
        let silent = |launch: &Launch<P>| self.fault(launch.number) == Some(FaultKind::Silent);
        let first = self.launches.front().filter(|first| !silent(first));
        self.gone || first.and_then(|first| first.done_ns).is_some_and(|done_ns| done_ns <= now_ns)
    }

    fn under_way(&self) -> usize {
        self.under_way
    }

    fn capacity(&self) -> usize {
        self.properties.capacity
    }

    fn abandon(self: Box<Self>) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accelerator::{TEST_SUITE, Task};
    use crate::{Aad, CryptoOp, KeyId, KeyMaterial, KeyTable, Span, Suite};

    const LEN: usize = 100;

    fn keys() -> Arc<KeyTable> {
        let suite = Suite::parse_esp(TEST_SUITE).unwrap();
        let mut table = KeyTable::default();
        let material = KeyMaterial { enc: &[7; 20][..suite.enc_material_len()], integ: &[] };
        table.insert(Arc::new(Engine::AwsLc.expand(&suite, material).unwrap()));
        Arc::new(table)
    }

    fn group(number: u8) -> Group<Vec<u8>> {
        let op = CryptoOp {
            key: KeyId(0),
            aad: Aad::InPlace(Span::new(0, 8)),
            body: Span::new(8, 8 + LEN),
            icv: Span::new(8 + LEN, 24 + LEN),
            iv: [number; 16],
        };
        let task = Task { op, packet: vec![number; 24 + LEN] };
        Group::new(Direction::Seal, keys(), Box::new(std::iter::once(task).collect()))
    }

    fn device(properties: Properties) -> (Simulated<Vec<u8>>, ManualClock) {
        let clock = ManualClock::default();
        let read = clock.clone();
        (Simulated::new(Engine::AwsLc, properties, move || read.now_ns()), clock)
    }

    fn first_byte(group: Option<Group<Vec<u8>>>) -> Option<u8> {
        Some(group?.tasks[0].packet[0])
    }

    #[test]
    fn a_launch_takes_its_overhead_and_the_time_of_its_bytes() {
        let (mut device, clock) =
            device(Properties { overhead_ns: 1000, ns_per_byte: 2.0, batch: 2, ..Properties::default() });
        // An idle device starts the first group at once; the next two form one launch.
        (1..=4).for_each(|number| assert!(device.submit(group(number)).is_ok()));
        assert_eq!((device.under_way(), device.ready()), (4, false));
        clock.advance(1199);
        assert!(device.poll().unwrap().is_none());
        clock.advance(1);
        assert!(device.ready());
        assert_eq!(first_byte(device.poll().unwrap()), Some(1));
        clock.advance(1399);
        assert!(device.poll().unwrap().is_none());
        clock.advance(1);
        assert_eq!([2, 3].map(|_| first_byte(device.poll().unwrap())), [Some(2), Some(3)]);
        // The last one waits for more until the flush.
        clock.advance(1_000_000);
        assert!(device.poll().unwrap().is_none() && !device.ready());
        device.flush();
        clock.advance(1200);
        assert_eq!(first_byte(device.poll().unwrap()), Some(4));
        assert!(device.poll().unwrap().is_none() && device.under_way() == 0);
    }

    #[test]
    fn a_full_device_returns_the_group() {
        let (mut device, clock) = device(Properties { overhead_ns: 10, capacity: 2, ..Properties::default() });
        assert!(device.submit(group(1)).is_ok() && device.submit(group(2)).is_ok());
        assert_eq!(first_byte(device.submit(group(3)).err()), Some(3));
        clock.advance(10);
        assert!(device.poll().unwrap().is_some());
        assert!(device.submit(group(3)).is_ok());
    }

    #[test]
    fn it_fails_at_any_state() {
        for state in State::ALL {
            let fault = Some(Fault { launch: 1, kind: FaultKind::Gone(state) });
            let (mut device, clock) = device(Properties { overhead_ns: 10, batch: 2, fault, ..Properties::default() });
            (1..=3).for_each(|number| drop(device.submit(group(number))));
            let mut polled = 0;
            let gone = loop {
                clock.advance(10);
                match device.poll() {
                    Ok(group) => polled += usize::from(group.is_some()),
                    Err(gone) => break gone,
                }
            };
            assert_eq!(gone, Gone::DeviceFailed, "{state:?}");
            let expected = match state {
                State::Filling | State::InFlight => 0,
                State::Done => 1,
                State::Draining => 2,
            };
            assert_eq!(polled, expected, "{state:?}");
            assert!(device.ready() && device.poll().is_err() && device.submit(group(9)).is_err());
        }
    }

    #[test]
    fn silent_slow_and_wrong() {
        let with = |kind| {
            let fault = Some(Fault { launch: 0, kind });
            device(Properties { overhead_ns: 10, fault, ..Properties::default() })
        };
        let (mut silent, clock) = with(FaultKind::Silent);
        assert!(silent.submit(group(1)).is_ok());
        clock.advance(u64::from(u32::MAX));
        assert!(silent.poll().unwrap().is_none() && !silent.ready());
        Box::new(silent).abandon();

        let (mut slow, clock) = with(FaultKind::Slow(100));
        assert!(slow.submit(group(1)).is_ok());
        clock.advance(999);
        assert!(slow.poll().unwrap().is_none());
        clock.advance(1);
        assert!(slow.poll().unwrap().is_some());

        let (mut wrong, clock) = with(FaultKind::Wrong);
        assert!(wrong.submit(group(1)).is_ok());
        clock.advance(10);
        let mut sealed = wrong.poll().unwrap().unwrap();
        let mut direct = group(1);
        direct.run(Engine::AwsLc, &DerivedKeys::new(0));
        assert_ne!(sealed.tasks[0].packet, direct.tasks[0].packet);
        sealed.direction = Direction::Open;
        sealed.run(Engine::AwsLc, &DerivedKeys::new(0));
        assert!(sealed.take_ok(0).is_none(), "the peer must reject it");
        // A correct packet that the device claims not to verify has no proof.
        direct.direction = Direction::Open;
        assert!(wrong.submit(direct).is_ok());
        clock.advance(10);
        assert!(wrong.poll().unwrap().unwrap().take_ok(0).is_none());
    }
}
