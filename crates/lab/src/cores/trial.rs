//! One trial: workers on their cores for a while, and what each of them passed.

use std::io;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crypto::accelerator::Accelerator;
use crypto::offload::{Hooks, Offload};
use dataplane::{
    After, AsyncConfig, Asynchronous, Batch, CipherTag, EnginePacket, Pipeline, PipelineConfig, Sink, Snapshot, Staged,
    Worker, WorkerConfig,
};
use ports::cpus;

use super::world::{Tables, World, packet};
use super::{Case, Scheduler, Set, Spreading};

/// Bytes of the largest packet, protected.
const PACKET_BYTES: usize = 2048;
/// Packets of a batch: enough to amortise the cost of a batch, few enough that several fit into the
/// L2 cache.
const BATCH: usize = 64;
/// Batches in flight in a pipeline, per worker.
const PLACES: usize = 6;
/// In the UDP payload: flow, then its count.
const STAMP: std::ops::Range<usize> = 28..40;

/// Result of a trial.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrialCounts {
    /// Packets that made the round, by worker.
    pub(crate) packets: Vec<u64>,
    /// Packets per second of all workers, each measured from its own first packet, because the
    /// thread that starts the trial may be scheduled late.
    pub(crate) rate: f64,
    /// Packets that came back before one that was sent earlier in their flow, or that never came
    /// back.
    pub(crate) disordered: u64,
    pub(crate) lost: u64,
    /// Work items that were deferred until their turn.
    pub(crate) blocked: u64,
    /// Packets that came to another core than that of their SA.
    pub(crate) wrong_core: u64,
}

/// Flows of a line.
const TOGETHER: usize = 8;

/// Next sequence numbers to send and to receive of some flows. All of them belong to one core, and
/// no other core writes this cache line or its prefetch pair: otherwise the benchmark would measure
/// its own false sharing.
#[derive(Default)]
#[repr(align(128))]
struct Line {
    next: [AtomicU64; TOGETHER],
    expected: [AtomicU64; TOGETHER],
}
const _: () = assert!(size_of::<Line>() == 128);

/// A flow at the core that sends it.
#[derive(Clone, Copy)]
struct Flow {
    /// Its place among [`Flows`].
    place: u32,
    port: u16,
}

/// The flows of a case, by place.
struct Flows {
    lines: Vec<Line>,
    disordered: AtomicU64,
    lost: AtomicU64,
}

impl Flows {
    /// Gives the flows of each core their places.
    fn new(dealt: &[Vec<u32>]) -> (Self, Vec<Vec<Flow>>) {
        let mut lines = 0;
        let placed = dealt.iter().map(|own| {
            let first = lines * TOGETHER;
            lines += own.len().div_ceil(TOGETHER);
            let at = |(i, flow): (usize, &u32)| Flow { place: (first + i) as u32, port: 1024 + *flow as u16 };
            own.iter().enumerate().map(at).collect()
        });
        let placed = placed.collect();
        let lines = (0..lines).map(|_| Line::default()).collect();
        (Self { lines, disordered: AtomicU64::new(0), lost: AtomicU64::new(0) }, placed)
    }

    /// Writes flow and number into a clear packet. A flow is written by one core.
    #[inline]
    fn stamp(&self, Flow { place, port }: Flow, packet: &mut [u8]) {
        let next = &self.lines[place as usize / TOGETHER].next[place as usize % TOGETHER];
        let number = next.load(Ordering::Relaxed);
        next.store(number + 1, Ordering::Relaxed);
        packet[20..22].copy_from_slice(&port.to_be_bytes());
        packet[STAMP.start..STAMP.start + 4].copy_from_slice(&place.to_be_bytes());
        packet[STAMP.start + 4..STAMP.end].copy_from_slice(&number.to_be_bytes());
    }

    /// Checks a packet that came back. A flow comes back to one core at a time.
    #[inline]
    fn check(&self, packet: &[u8]) {
        let stamp: [u8; 12] = packet[STAMP].try_into().expect("packets are longer than that");
        let place = u32::from_be_bytes([stamp[0], stamp[1], stamp[2], stamp[3]]) as usize;
        let number = u64::from_be_bytes(*stamp.last_chunk().expect("eight of twelve"));
        let expected = &self.lines[place / TOGETHER].expected[place % TOGETHER];
        let due = expected.load(Ordering::Relaxed);
        expected.store(due.max(number + 1), Ordering::Relaxed);
        if number != due {
            self.wrong(number, due);
        }
    }

    /// Packets that were sent and never came back.
    fn missing(&self) -> u64 {
        let flows = self.lines.iter().flat_map(|line| line.next.iter().zip(&line.expected));
        flows.map(|(sent, got)| sent.load(Ordering::Relaxed).saturating_sub(got.load(Ordering::Relaxed))).sum()
    }

    #[cold]
    fn wrong(&self, number: u64, due: u64) {
        if number < due {
            // It was taken for lost when the one after it came.
            self.disordered.fetch_add(1, Ordering::Relaxed);
            self.lost.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.lost.fetch_add(number - due, Ordering::Relaxed);
        }
    }
}

/// The packets that one core sends: its flows in turn.
struct Source<'f> {
    flows: &'f Flows,
    own: Vec<Flow>,
    at: usize,
    template: Vec<u8>,
}

impl Source<'_> {
    /// Fills `batch` with the next packets. Packets that returned are reused in place.
    #[inline]
    fn fill(&mut self, batch: &mut Batch) {
        if batch.len() != BATCH {
            batch.clear();
            while batch.len() < BATCH && batch.push_with(|packet| packet.set(&self.template)) {}
        }
        for packet in batch.packets_mut() {
            let flow = self.own[self.at];
            self.at = if self.at + 1 == self.own.len() { 0 } else { self.at + 1 };
            self.flows.stamp(flow, packet.bytes_mut());
        }
    }
}

/// Port that receives the packets that completed the round.
struct Round<'f> {
    flows: &'f Flows,
    receiver: Arc<Snapshot>,
    passed: u64,
}

impl Sink for Round<'_> {
    fn outer(&mut self, _: &mut Batch) -> io::Result<After> {
        Ok(After::Arrive(Arc::clone(&self.receiver)))
    }

    fn inner(&mut self, batch: &mut Batch) -> io::Result<()> {
        self.passed += batch.len() as u64;
        batch.packets().iter().for_each(|packet| self.flows.check(packet.bytes()));
        Ok(())
    }
}

/// Flows that arrive at each core. With a single SA and no pipeline, one core must process all of
/// them.
fn dealt(case: &Case) -> Vec<Vec<u32>> {
    let mut own = vec![Vec::new(); case.cores];
    for flow in 0..case.flows as u32 {
        let core = match (case.set, case.spread) {
            (Set::One, _) => 0,
            (Set::Apart, _) | (_, Spreading::Ideal) => flow as usize % case.cores,
            (_, Spreading::Worst) => 0,
            (_, Spreading::Hashed) => {
                (u64::from(flow + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % case.cores
            }
        };
        own[core].push(flow);
    }
    own
}

/// CPUs of crypto cores.
struct CryptoCpus(Vec<usize>);

impl Hooks for CryptoCpus {
    fn started(&self, thread: usize) {
        // Where it may not, the operating system decides.
        let _ = self.0.get(thread).copied().map(cpus::pin);
    }
}

/// The scheduler of a worker with `cores - 1` crypto cores beside its own.
fn asynchronous(case: &Case, allowed: &[usize]) -> Asynchronous {
    let hooks: Arc<dyn Hooks> = Arc::new(CryptoCpus(allowed.get(1..).unwrap_or_default().to_vec()));
    let threads = (case.cores > 1).then(|| {
        let depth = AsyncConfig::GROUPS_PER_THREAD;
        let threads = Offload::<EnginePacket>::start_with(case.engine, case.cores - 1, depth, &hooks);
        Box::new(threads.expect("the system has a thread for each core")) as Box<dyn Accelerator<EnginePacket>>
    });
    let owner_computes = case.scheduler == Scheduler::Async;
    // A worker of a trial has no clock: nothing is ever overdue.
    let window = AsyncConfig::for_threads(case.cores - 1);
    let config = AsyncConfig { batch: BATCH, packet_bytes: PACKET_BYTES, owner_computes, ..window };
    Asynchronous::new(config, threads, |_| ())
}

/// Runs `case` for `time`.
pub(crate) fn run(case: &Case, world: &World, time: Duration) -> TrialCounts {
    let (flows, mut placed) = Flows::new(&dealt(case));
    let is_async = matches!(case.scheduler, Scheduler::Async | Scheduler::AsyncSplit);
    // The other cores seal and open.
    placed.truncate(if is_async { 1 } else { case.cores });
    let pipeline = matches!(case.scheduler, Scheduler::Pipeline | Scheduler::PipelineAtomic).then(|| {
        Pipeline::new(&PipelineConfig {
            workers: case.cores,
            slots: (PLACES * case.cores).min(dataplane::MAX_SLOTS),
            batch: BATCH,
            packet_bytes: PACKET_BYTES,
            cipher: if case.scheduler == Scheduler::PipelineAtomic { CipherTag::Atomic } else { CipherTag::Ordered },
        })
    });
    let allowed = cpus::allowed();
    let (stop, start) = (AtomicBool::new(false), Barrier::new(placed.len() + 1));
    let mut passed = TrialCounts::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = placed
            .into_iter()
            .enumerate()
            .map(|(core, own)| {
                let cpu = allowed.get(core).copied();
                let (flows, stop, start, pipeline) = (&flows, &stop, &start, pipeline.as_ref());
                let tables = world.tables(core);
                let asynchronous = is_async.then(|| asynchronous(case, &allowed));
                scope.spawn(move || {
                    // Where it may not, the operating system decides.
                    let _ = cpu.map(cpus::pin);
                    let source = Source { flows, own, at: 0, template: packet(case.size) };
                    let config = WorkerConfig {
                        // Apart from each other all of them are the first.
                        core: if case.set == Set::Apart { 0 } else { core },
                        batch: BATCH,
                        engine: case.engine,
                        reassembly: 1,
                        ..WorkerConfig::default()
                    };
                    let worker = Worker::new(config).0;
                    start.wait();
                    let end = End::new(stop, time);
                    match (pipeline, asynchronous) {
                        (Some(pipeline), _) => through(pipeline, worker, source, tables, end),
                        (_, Some(asynchronous)) => through(asynchronous, worker, source, tables, end),
                        (None, None) => to_completion(worker, source, tables, end),
                    }
                })
            })
            .collect();
        start.wait();
        std::thread::sleep(time);
        stop.store(true, Ordering::Release);
        for thread in threads {
            let worked = thread.join().expect("a worker does not panic");
            passed.packets.push(worked.packets);
            passed.rate += worked.packets as f64 / worked.time.as_secs_f64();
            passed.blocked += worked.blocked;
            passed.wrong_core += worked.wrong_core;
        }
    });
    passed.disordered = flows.disordered.load(Ordering::Relaxed);
    passed.lost = flows.missing() + flows.lost.load(Ordering::Relaxed);
    passed
}

/// Result of one worker.
struct Worked {
    packets: u64,
    time: Duration,
    blocked: u64,
    wrong_core: u64,
}

impl Worked {
    fn new(packets: u64, time: Duration, worker: &Worker) -> Self {
        let counters = worker.counters();
        let [blocked, wrong_core] =
            [&counters.blocked, &counters.wrong_core].map(|count| count.load(Ordering::Relaxed));
        Self { packets, time, blocked, wrong_core }
    }
}

/// End of a trial. The thread that started the workers ends it, or the first worker that finds that
/// its time is over: with a real-time policy (`chrt -f`) on one CPU a worker leaves no time to any
/// other thread of its priority, which the one that sleeps until the end is.
struct End<'s> {
    stop: &'s AtomicBool,
    began: Instant,
    time: Duration,
    /// Calls until the clock is read next.
    unread: u32,
}

impl<'s> End<'s> {
    /// Calls for each reading of the clock, so that it does not count against the packets.
    const READ_EVERY: u32 = 16;

    fn new(stop: &'s AtomicBool, time: Duration) -> Self {
        Self { stop, began: Instant::now(), time, unread: Self::READ_EVERY }
    }

    fn is_reached(&mut self) -> bool {
        self.unread -= 1;
        if self.unread == 0 {
            self.unread = Self::READ_EVERY;
            if self.began.elapsed() >= self.time {
                self.stop.store(true, Ordering::Release);
            }
        }
        self.stop.load(Ordering::Acquire)
    }
}

/// Run to completion on one core, both directions.
fn to_completion(mut worker: Worker, mut source: Source<'_>, tables: &Tables, mut end: End<'_>) -> Worked {
    let (mut batch, mut replies) = (Batch::new(BATCH, PACKET_BYTES), Batch::new(4, PACKET_BYTES));
    let mut passed = 0;
    while !end.is_reached() {
        if source.own.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        source.fill(&mut batch);
        worker.outbound(&tables.sender, &mut batch, &mut replies);
        worker.inbound(&tables.receiver, &mut batch);
        batch.packets().iter().for_each(|packet| source.flows.check(packet.bytes()));
        passed += batch.len() as u64;
    }
    Worked::new(passed, end.began.elapsed(), &worker)
}

/// A core of a scheduler that keeps batches in flight: it receives its own packets, and processes
/// those that the scheduler gives it.
fn through(
    mut staged: impl Staged,
    mut worker: Worker,
    mut source: Source<'_>,
    tables: &Tables,
    mut end: End<'_>,
) -> Worked {
    let mut replies = Batch::new(4, PACKET_BYTES);
    let mut sink = Round { flows: source.flows, receiver: Arc::clone(&tables.receiver), passed: 0 };
    let mut until_stop = None;
    loop {
        let stopped = end.is_reached();
        if stopped && until_stop.is_none() {
            until_stop = Some((sink.passed, end.began.elapsed()));
        }
        if !stopped && !source.own.is_empty() && staged.wants_input() {
            let filled: Result<_, std::convert::Infallible> =
                staged.take_inner(&mut worker, &tables.sender, &mut replies, |batch| {
                    source.fill(batch);
                    Ok(())
                });
            if matches!(filled, Ok(Some(true))) {
                continue;
            }
        }
        let worked = staged.work(&mut worker, None, &mut sink).expect("memory does not fail");
        if !worked {
            if stopped && staged.in_use() == 0 {
                break;
            }
            if stopped {
                // Batches that are left belong to workers that may wait for this CPU.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
    let (packets, time) = until_stop.unwrap_or((sink.passed, end.began.elapsed()));
    Worked::new(packets, time, &worker)
}

#[cfg(test)]
mod tests {
    use crypto::Engine;

    use super::*;

    /// As with `chrt -f` on one CPU, where the thread that ends the trial does not run while a
    /// worker does.
    #[test]
    fn a_worker_ends_by_itself_when_its_time_is_over() {
        let (world, time) = (World::new(Set::One, "aes128gcm16", 1, Engine::AwsLc).unwrap(), Duration::from_millis(20));
        let (flows, placed) = Flows::new(&[vec![7]]);
        let source = || Source { flows: &flows, own: placed[0].clone(), at: 0, template: packet(64) };
        let worker = || Worker::new(WorkerConfig { batch: BATCH, engine: Engine::AwsLc, ..WorkerConfig::default() }).0;
        let stop = AtomicBool::new(false);
        let worked = to_completion(worker(), source(), world.tables(0), End::new(&stop, time));
        assert!(worked.packets > 0 && worked.time >= time && stop.load(Ordering::Relaxed));

        let cipher = CipherTag::Ordered;
        let config = PipelineConfig { workers: 1, slots: PLACES, batch: BATCH, packet_bytes: PACKET_BYTES, cipher };
        let (pipeline, stop) = (Pipeline::new(&config), AtomicBool::new(false));
        let worked = through(&pipeline, worker(), source(), world.tables(0), End::new(&stop, time));
        assert!(worked.packets > 0 && worked.time >= time && stop.load(Ordering::Relaxed));
    }

    #[test]
    fn crypto_cores_pass_every_packet_in_order() {
        let world = World::new(Set::One, "aes128gcm16", 2, Engine::AwsLc).unwrap();
        for (cores, size) in [(1, 64), (2, 64), (2, 1400), (3, 512)] {
            let case = Case {
                scheduler: Scheduler::Async,
                set: Set::One,
                size,
                flows: 7,
                cores,
                spread: Spreading::Ideal,
                engine: Engine::AwsLc,
            };
            let passed = run(&case, &world, Duration::from_millis(20));
            assert!(passed.packets[0] > 0 && passed.packets.len() == 1, "{cores} cores: {passed:?}");
            assert_eq!((passed.disordered, passed.lost), (0, 0), "{cores} cores: {passed:?}");
        }
    }

    #[test]
    fn what_comes_late_is_out_of_order_and_not_lost() {
        let (flows, placed) = Flows::new(&[vec![7]]);
        let mut sent = vec![packet(64); 6];
        sent.iter_mut().for_each(|packet| flows.stamp(placed[0][0], packet));
        let counted = || [&flows.disordered, &flows.lost].map(|count| count.load(Ordering::Relaxed));
        let come = |order: &[usize]| order.iter().for_each(|i| flows.check(&sent[*i]));
        come(&[1]);
        assert_eq!((counted(), flows.missing()), ([0, 1], 4));
        come(&[0, 2]);
        assert_eq!((counted(), flows.missing()), ([1, 0], 3));
        // The fourth never comes, and the last one is still to come.
        come(&[4]);
        assert_eq!((counted(), flows.missing()), ([1, 1], 1));
    }
}
