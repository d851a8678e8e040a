//! The accelerator that every machine has: an engine on separate threads, the crypto cores.
//!
//! Groups are submitted to the threads in round-robin order and polled in the same order, so that
//! no sequence numbers are needed: the next group is always at the head of the next thread's ring.
//! The cost is head-of-line blocking by slow groups. All rings are bounded; if a ring is full the
//! group is returned, and the caller must wait or run it itself.

mod parking;
mod sync;

use std::io;
use std::sync::Arc;
use std::thread::{JoinHandle, Thread};

use parking::Parking;

use crate::accelerator::{Accelerator, Gone, Group};
use crate::{DerivedKeys, Engine};

/// Number of polls of an empty ring before a thread sleeps: about 50 µs. A wake-up costs the
/// submitter a system call of several µs, the time of a whole batch of small packets.
const LOOKS: u32 = 1024;
/// Maximum number of threads.
const MOST_THREADS: usize = u64::BITS as usize;

/// Functions of the owner that the threads call.
pub trait Hooks: Send + Sync {
    /// Called by each thread when it starts, with its number: to pin it to a CPU.
    fn started(&self, _thread: usize) {}

    /// Called by a thread after each group that it has run, to wake the caller if it sleeps.
    fn completed(&self) {}
}

/// No hooks.
impl Hooks for () {}

/// An engine on separate threads. A drop waits for the threads, and groups that were not polled are
/// lost.
pub struct Offload<P> {
    lanes: Vec<Lane<P>>,
    /// Lane of the next group in, and of the next group out.
    next_in: usize,
    next_out: usize,
    /// Groups that were submitted and not polled.
    under_way: usize,
    /// Lanes with new groups whose threads may sleep, one bit each. They are woken at the next poll
    /// or flush: once for several groups, because it takes a fence, which waits until everything
    /// that was written for the groups is in the cache.
    to_wake: u64,
}

struct Lane<P> {
    /// `None` only while it is dropped: the thread ends when it sees that.
    to: Option<rtrb::Producer<Group<P>>>,
    from: rtrb::Consumer<Group<P>>,
    rest: Arc<Parking>,
    thread: Thread,
    handle: Option<JoinHandle<()>>,
    /// Groups in either ring or in the thread. Must not exceed the capacity of one ring, so that
    /// the ring of results never overflows.
    has: usize,
    capacity: usize,
}

impl<P: AsMut<[u8]> + Send + 'static> Offload<P> {
    /// Starts `threads` (1 to 64) that run `engine`, each with rings of `depth` (at least 1)
    /// groups. All buffers are allocated now.
    ///
    /// # Errors
    /// The operating system cannot create a thread.
    pub fn start(engine: Engine, threads: usize, depth: usize) -> io::Result<Self> {
        Self::start_with(engine, threads, depth, &(Arc::new(()) as Arc<dyn Hooks>))
    }

    /// [`Offload::start`] with `hooks` in the threads.
    ///
    /// # Errors
    /// The operating system cannot create a thread.
    pub fn start_with(engine: Engine, threads: usize, depth: usize, hooks: &Arc<dyn Hooks>) -> io::Result<Self> {
        let lane = |number| Lane::start(engine, number, depth.max(1), Arc::clone(hooks));
        let lanes = (0..threads.clamp(1, MOST_THREADS)).map(lane).collect::<io::Result<_>>()?;
        Ok(Self { lanes, next_in: 0, next_out: 0, under_way: 0, to_wake: 0 })
    }
}

impl<P> Offload<P> {
    /// Wakes threads that sleep and have new groups.
    #[inline]
    fn wake(&mut self) {
        let mut lanes = std::mem::take(&mut self.to_wake);
        if lanes != 0 {
            Parking::before_wakes();
        }
        while lanes != 0 {
            let lane = &self.lanes[lanes.trailing_zeros() as usize];
            lane.rest.wake(&lane.thread);
            lanes &= lanes - 1;
        }
    }
}

impl<P: AsMut<[u8]> + Send + 'static> Accelerator<P> for Offload<P> {
    fn submit(&mut self, group: Group<P>) -> Result<(), Group<P>> {
        let lane = &mut self.lanes[self.next_in];
        if lane.has == lane.capacity {
            return Err(group);
        }
        let Some(to) = &mut lane.to else { return Err(group) };
        to.push(group).map_err(|rtrb::PushError::Full(group)| group)?;
        lane.has += 1;
        self.to_wake |= 1 << self.next_in;
        self.under_way += 1;
        self.next_in = (self.next_in + 1) % self.lanes.len();
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Group<P>>, Gone> {
        self.wake();
        let lane = &mut self.lanes[self.next_out];
        match lane.from.pop() {
            Ok(group) => {
                lane.has -= 1;
                self.under_way -= 1;
                self.next_out = (self.next_out + 1) % self.lanes.len();
                Ok(Some(group))
            }
            // Check the ring again, because the thread may have pushed its last group before it
            // ended.
            Err(_) if lane.has > 0 && lane.from.is_abandoned() && lane.from.is_empty() => Err(Gone::ThreadEnded),
            Err(_) => Ok(None),
        }
    }

    fn flush(&mut self) {
        self.wake();
    }

    fn ready(&self) -> bool {
        let lane = &self.lanes[self.next_out];
        !lane.from.is_empty() || (lane.has > 0 && lane.from.is_abandoned())
    }

    fn under_way(&self) -> usize {
        self.under_way
    }

    fn capacity(&self) -> usize {
        self.lanes.iter().map(|lane| lane.capacity).sum()
    }

    /// Threads that still run end after their current group.
    fn abandon(mut self: Box<Self>) {
        self.lanes.iter_mut().for_each(|lane| drop(lane.handle.take()));
    }
}

impl<P: AsMut<[u8]> + Send + 'static> Lane<P> {
    fn start(engine: Engine, number: usize, depth: usize, hooks: Arc<dyn Hooks>) -> io::Result<Self> {
        let (to, work) = rtrb::RingBuffer::new(depth);
        let (done, from) = rtrb::RingBuffer::new(depth);
        let rest = Arc::new(Parking::new());
        let own = Arc::clone(&rest);
        let name = format!("weir-crypto-{number}");
        let handle = std::thread::Builder::new().name(name).spawn(move || {
            hooks.started(number);
            serve(engine, work, done, (&own, &*hooks));
        })?;
        let thread = handle.thread().clone();
        Ok(Self { to: Some(to), from, rest, thread, handle: Some(handle), has: 0, capacity: depth })
    }
}

impl<P> Drop for Lane<P> {
    fn drop(&mut self) {
        self.to = None;
        self.thread.unpark();
        if let Some(handle) = self.handle.take() {
            // A panic has been reported by the thread, and by `Gone`.
            let _ = handle.join();
        }
    }
}

/// Main loop of a thread, until the submitter is dropped.
fn serve<P: AsMut<[u8]>>(
    engine: Engine,
    mut work: rtrb::Consumer<Group<P>>,
    mut done: rtrb::Producer<Group<P>>,
    (rest, hooks): (&Parking, &dyn Hooks),
) {
    let none = DerivedKeys::new(1);
    let mut looks = 0;
    loop {
        let Ok(mut group) = work.pop() else {
            if work.is_abandoned() && work.is_empty() {
                return;
            }
            if looks < LOOKS {
                looks += 1;
                std::hint::spin_loop();
            } else {
                rest.unless(|| !work.is_empty() || work.is_abandoned());
            }
            continue;
        };
        looks = 0;
        group.run(engine, &none);
        // The ring cannot be full: the number of groups in flight is at most its size.
        if done.push(group).is_err() {
            return;
        }
        hooks.completed();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::accelerator::{Direction, GROUP, TEST_SUITE, Task};
    use crate::{Aad, CryptoOp, Job, KeyId, KeyMaterial, KeyTable, Keys, Span, Suite};

    const AAD: usize = 8;
    const ICV: usize = 16;

    fn table(engine: Engine) -> (Arc<KeyTable>, KeyId) {
        let suite = Suite::parse_esp(TEST_SUITE).unwrap();
        let mut table = KeyTable::default();
        let enc = &[7; 20][..suite.enc_material_len()];
        let key = engine.expand(&suite, KeyMaterial { enc, integ: &[] }).unwrap();
        let id = table.insert(Arc::new(key));
        (Arc::new(table), id)
    }

    /// A packet of `len` octets to protect, each the low byte of its number.
    fn task(key: KeyId, number: u64, len: usize) -> Task<Vec<u8>> {
        let mut packet = vec![number as u8; AAD + len + ICV];
        packet[..8].copy_from_slice(&number.to_be_bytes());
        let mut iv = [0; 16];
        iv[..8].copy_from_slice(&number.to_be_bytes());
        let op = CryptoOp {
            key,
            aad: Aad::InPlace(Span::new(0, AAD)),
            body: Span::new(AAD, AAD + len),
            icv: Span::new(AAD + len, AAD + len + ICV),
            iv,
        };
        Task { op, packet }
    }

    fn group(
        keys: &Arc<KeyTable>,
        direction: Direction,
        tasks: impl IntoIterator<Item = Task<Vec<u8>>>,
    ) -> Group<Vec<u8>> {
        Group::new(direction, Arc::clone(keys), Box::new(tasks.into_iter().collect()))
    }

    fn wait(offload: &mut Offload<Vec<u8>>) -> Group<Vec<u8>> {
        loop {
            match offload.poll().expect("threads run") {
                Some(group) => return group,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn groups_come_back_in_order_and_as_the_engine_itself_makes_them() {
        for engine in Engine::real() {
            let (keys, key) = table(engine);
            let mut offload = Offload::start(engine, 3, 4).unwrap();
            let (mut sent, mut seen) = (0, 0);
            let (groups, long) = if cfg!(miri) { (5, 100) } else { (200, 9000) };
            while seen < groups {
                if sent < groups {
                    // Groups of very different sizes, so that threads finish in another order.
                    let len = if sent % 3 == 0 { long } else { 64 };
                    let tasks = (0..1 + sent % GROUP as u64).map(|n| task(key, 1000 * sent + n, len));
                    match offload.submit(group(&keys, Direction::Seal, tasks)) {
                        Ok(()) => sent += 1,
                        Err(back) => assert_eq!(back.tasks.len() as u64, 1 + sent % GROUP as u64),
                    }
                }
                let Some(done) = offload.poll().unwrap() else { continue };
                assert_eq!(done.tasks.len() as u64, 1 + seen % GROUP as u64);
                for (n, got) in done.tasks.iter().enumerate() {
                    let number = 1000 * seen + n as u64;
                    assert_eq!(got.packet[..8], number.to_be_bytes(), "order");
                    assert!(done.sealed(n));
                    let mut direct = task(key, number, got.op.body.len());
                    let mut jobs = [Job::new(direct.op, &mut direct.packet)];
                    engine.seal(Keys { table: &keys, derived: &DerivedKeys::new(1) }, &mut jobs);
                    assert_eq!(got.packet, direct.packet);
                }
                seen += 1;
            }
            assert_eq!(offload.under_way(), 0);
        }
    }

    #[test]
    fn what_is_opened_brings_its_proof_and_what_was_changed_does_not() {
        let (keys, key) = table(Engine::AwsLc);
        let mut offload = Offload::start(Engine::AwsLc, 2, 2).unwrap();
        let tasks = (0..3).map(|number| task(key, number, 100));
        assert!(offload.submit(group(&keys, Direction::Seal, tasks)).is_ok());
        let mut sealed = wait(&mut offload);
        sealed.direction = Direction::Open;
        sealed.tasks[1].packet[50] ^= 1;
        assert!(offload.submit(sealed).is_ok());
        let mut opened = wait(&mut offload);
        let proofs: Vec<bool> = (0..3).map(|i| opened.take_ok(i).is_some()).collect();
        assert_eq!(proofs, [true, false, true]);
        assert!(opened.take_ok(0).is_none(), "a proof is given once");
        assert!(opened.tasks[2].packet[8..108].iter().all(|byte| *byte == 2));
    }

    #[test]
    fn a_full_ring_hands_the_group_back() {
        let (keys, key) = table(Engine::AwsLc);
        let mut offload = Offload::start(Engine::AwsLc, 2, 3).unwrap();
        assert_eq!(offload.capacity(), 6);
        for number in 0..6 {
            assert!(offload.submit(group(&keys, Direction::Seal, [task(key, number, 64)])).is_ok());
        }
        // Whether or not they have run: none was fetched.
        let back = offload.submit(group(&keys, Direction::Seal, [task(key, 6, 64)])).expect_err("no room");
        assert_eq!(wait(&mut offload).tasks[0].packet[..8], 0_u64.to_be_bytes());
        assert!(offload.submit(back).is_ok());
        assert_eq!(offload.under_way(), 6);
    }

    #[test]
    fn a_key_that_is_none_fails_the_operation_alone() {
        let (keys, key) = table(Engine::AwsLc);
        let mut offload = Offload::start(Engine::AwsLc, 1, 1).unwrap();
        let tasks = [task(KeyId(99), 0, 64), task(key, 1, 64), task(KeyId(KeyId::DERIVED), 2, 64)];
        assert!(offload.submit(group(&keys, Direction::Seal, tasks)).is_ok());
        let done = wait(&mut offload);
        let sealed: Vec<bool> = (0..3).map(|i| done.sealed(i)).collect();
        assert_eq!(sealed, [false, true, false]);
    }

    /// A packet that breaks the thread it is on.
    struct Broken;

    impl AsMut<[u8]> for Broken {
        fn as_mut(&mut self) -> &mut [u8] {
            panic!("a test's own packet");
        }
    }

    #[test]
    fn a_thread_that_ended_is_reported() {
        let (keys, _) = table(Engine::AwsLc);
        let mut offload = Offload::start(Engine::AwsLc, 1, 2).unwrap();
        let task = Task { op: CryptoOp::EMPTY, packet: Broken };
        let broken = Group::new(Direction::Seal, keys, Box::new(std::iter::once(task).collect()));
        assert!(offload.submit(broken).is_ok() && offload.under_way() == 1);
        let error = loop {
            match offload.poll() {
                Ok(Some(_)) => panic!("it cannot have run"),
                Ok(None) => std::thread::yield_now(),
                Err(gone) => break gone,
            }
        };
        assert_eq!(error, Gone::ThreadEnded);
        assert!(offload.ready(), "a failure must wake the caller");
    }

    #[test]
    fn a_thread_that_sleeps_wakes() {
        let (keys, key) = table(Engine::AwsLc);
        let mut offload = Offload::start(Engine::AwsLc, 2, 2).unwrap();
        for number in 0..if cfg!(miri) { 3 } else { 20 } {
            while !offload.lanes.iter().all(|lane| lane.rest.rests()) {
                std::thread::yield_now();
            }
            assert!(offload.submit(group(&keys, Direction::Seal, [task(key, number, 64)])).is_ok());
            assert!(wait(&mut offload).sealed(0));
        }
    }

    /// A packet that holds the thread it is on until it is released.
    struct Held(Arc<AtomicBool>);

    impl AsMut<[u8]> for Held {
        fn as_mut(&mut self) -> &mut [u8] {
            while !self.0.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            &mut []
        }
    }

    #[test]
    fn what_hangs_is_abandoned_without_a_wait() {
        let (keys, _) = table(Engine::AwsLc);
        let released = Arc::new(AtomicBool::new(false));
        let mut offload = Offload::start(Engine::AwsLc, 1, 2).unwrap();
        let task = Task { op: CryptoOp::EMPTY, packet: Held(Arc::clone(&released)) };
        assert!(offload.submit(Group::new(Direction::Seal, keys, Box::new(std::iter::once(task).collect()))).is_ok());
        Box::new(offload).abandon();
        assert!(!released.load(Ordering::Acquire), "it would still wait");
        released.store(true, Ordering::Release);
        // The thread ends, and drops what it had.
        while Arc::strong_count(&released) > 1 {
            std::thread::yield_now();
        }
    }

    #[derive(Default)]
    struct Counts(AtomicUsize, AtomicUsize);

    impl Hooks for Counts {
        fn started(&self, thread: usize) {
            self.0.fetch_add(1 + thread, Ordering::Relaxed);
        }

        fn completed(&self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn hooks_run_at_the_start_and_after_each_group() {
        let (keys, key) = table(Engine::AwsLc);
        let counts = Arc::new(Counts::default());
        let hooks: Arc<dyn Hooks> = Arc::clone(&counts) as _;
        let mut offload = Offload::start_with(Engine::AwsLc, 2, 2, &hooks).unwrap();
        for number in 0..4 {
            assert!(offload.submit(group(&keys, Direction::Seal, [task(key, number, 64)])).is_ok());
        }
        (0..4).for_each(|_| drop(wait(&mut offload)));
        drop(offload);
        assert_eq!((counts.0.load(Ordering::Relaxed), counts.1.load(Ordering::Relaxed)), (3, 4));
    }
}
