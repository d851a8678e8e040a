//! Workers on threads, from port to port.
//!
//! A worker takes a batch from each port that has something, through the path and out again, and looks for new tables,
//! a new time and the wish to stop between batches. It sleeps only when every port is empty, and then no longer than
//! 100 ms.
//!
//! A worker is not a thread: it is what one core owns, its ports and SAs. A thread takes care of one worker or, when a
//! core was taken away, of several: nothing is lost and nothing changes hands between workers.

mod asleep;
mod post;
mod sync;
mod team;
mod watch;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use crate::port::{MemoryPort, memory_pair};
use crate::scheduler::{Pipeline, PipelineConfig, Scheduler};
use crate::worker::Reports;
use crate::{Acquire, Audit, CoreCounters, Port, Publisher, Worker, WorkerConfig, cpus};
pub use asleep::MAX_WORKERS;
#[cfg(test)]
use post::LONGEST_SLEEP_MS;
use post::Post;
use team::Team;
use watch::Watch;

/// Packets under way from one worker to each other one, for SAs that it owns: all rings to a worker together. At worst, when
/// strangers send the largest packets that there are to the wrong cores, that is 64 MiB for each worker; the memory of packets
/// that nobody sends is never touched.
const HANDED_OVER: usize = 1024;
/// The fewest for one ring: from 17 workers on there are more than [`HANDED_OVER`], with 64 four times as many.
const LEAST_HANDED_OVER: usize = 64;
/// Batches under way in a pipeline, for each worker. At worst, each full of the largest packets and with twice as many
/// fragments, that is 72 MiB for each worker, and 768 MiB for all of them.
const PLACES: usize = 6;
/// Packets of a batch in a pipeline: with more, cores wait for each other longer.
const PIPELINE_BATCH: usize = 64;

/// The ports of one worker.
pub struct Links {
    /// The side of clear packets: a TUN queue.
    pub inner: Box<dyn Port + Send>,
    /// Where protected packets come from. Any worker may have any: packets of SAs that others own are handed over.
    pub outer_rx: Vec<Box<dyn Port + Send>>,
    /// Where protected packets go, as whole IP packets.
    pub outer_tx: Box<dyn Port + Send>,
}

/// A worker thread that could not be started, or that ended.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The operating system refused a thread or an event descriptor.
    #[error("cannot start worker {core}: {source}")]
    Start {
        /// Which worker.
        core: usize,
        /// Why.
        source: io::Error,
    },
    /// A port failed for good.
    #[error("worker {core} stopped: {source}")]
    Port {
        /// Which worker.
        core: usize,
        /// Why.
        source: io::Error,
    },
    /// It does not do what it is told; it is left alone, and ends with the process.
    #[error("worker {core} hangs: it has not answered for {seconds} s; please report what it was doing")]
    Hangs {
        /// Which worker.
        core: usize,
        /// How long it was waited for.
        seconds: u64,
    },
}

impl RunnerError {
    /// The same once more, for another who has to know.
    fn again(&self) -> Self {
        let copy = |source: &io::Error| io::Error::new(source.kind(), source.to_string());
        match self {
            Self::Start { core, source } => Self::Start { core: *core, source: copy(source) },
            Self::Port { core, source } => Self::Port { core: *core, source: copy(source) },
            Self::Hangs { core, seconds } => Self::Hangs { core: *core, seconds: *seconds },
        }
    }
}

/// Time for the queues of a CPU to run empty before what a worker sends next leaves from another one: packets that wait there
/// would be overtaken.
const SETTLE: Duration = Duration::from_millis(1);
/// Longest time that threads wait at the end for each other's part of what is under way.
const LONGEST_END: Duration = Duration::from_millis(100);
/// Longest time that a thread is waited for which was told something. It looks at least ten times a second.
const LONGEST_ANSWER: Duration = Duration::from_secs(10);

/// Running workers. Stops them when dropped.
pub struct Runner {
    threads: Vec<Thread>,
    /// CPU that each worker is to have.
    cpus: Vec<Option<usize>>,
    tables: Publisher,
    counters: Vec<Arc<CoreCounters>>,
    reports: Vec<Reports>,
    stop: Arc<Stop>,
    team: Arc<Team>,
    scheduler: Scheduler,
    watch: Watch,
    /// What was lost with a thread that was told to give its workers away.
    fault: Option<RunnerError>,
    /// [`LONGEST_ANSWER`], or less in tests.
    patience: Duration,
}

struct Thread {
    core: usize,
    /// CPU that it was put on.
    cpu: Option<usize>,
    handle: JoinHandle<io::Result<()>>,
    orders: mpsc::Sender<Order>,
    /// Workers that it takes care of.
    workers: Vec<usize>,
}

/// What a thread is told.
enum Order {
    /// Take care of this worker too.
    Adopt(Box<Post>),
    /// Give all workers away and end.
    GiveUp(mpsc::Sender<Box<Post>>),
    /// Give this worker away.
    Give(usize, mpsc::Sender<Box<Post>>),
    /// Go to this CPU.
    Move(usize),
}

/// How workers are told to stop, also while they sleep.
struct Stop {
    asked: AtomicBool,
    event: OwnedFd,
}

impl Runner {
    /// Starts one thread per worker, with [`Scheduler::usual`].
    ///
    /// # Errors
    /// [`RunnerError::Start`]; nothing is left running then.
    pub fn start(workers: Vec<(WorkerConfig, Links)>, tables: Publisher) -> Result<Self, RunnerError> {
        Self::start_with(workers, tables, Scheduler::usual())
    }

    /// Starts one thread per worker. The workers are numbered from 0 on; there are at most [`MAX_WORKERS`].
    ///
    /// # Errors
    /// [`RunnerError::Start`]; nothing is left running then.
    pub fn start_with(
        mut workers: Vec<(WorkerConfig, Links)>,
        tables: Publisher,
        scheduler: Scheduler,
    ) -> Result<Self, RunnerError> {
        let failed = |core| move |source| RunnerError::Start { core, source };
        let count = workers.len();
        if count > MAX_WORKERS {
            let why = format!("{count} workers were asked for, and there can be {MAX_WORKERS}");
            return Err(failed(MAX_WORKERS)(io::Error::new(io::ErrorKind::InvalidInput, why)));
        }
        let pipeline = (scheduler == Scheduler::Pipeline).then(|| {
            workers.iter_mut().for_each(|(config, _)| config.batch = config.batch.min(PIPELINE_BATCH));
            let packet_bytes = workers.iter().map(|(config, _)| config.packet_bytes).max().unwrap_or(0);
            let batch = workers.iter().map(|(config, _)| config.batch).max().unwrap_or(PIPELINE_BATCH);
            let places = (PLACES * count).clamp(1, crate::MAX_PLACES);
            Pipeline::new(&PipelineConfig { workers: count, places, batch, packet_bytes, ..PipelineConfig::default() })
        });
        let silent = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| failed(0)(e.into()));
        let stop = Arc::new(Stop { asked: AtomicBool::new(false), event: silent()? });
        let mut rings = match scheduler {
            Scheduler::RunToCompletion => rings(&workers),
            Scheduler::Pipeline => workers.iter().map(|_| Vec::new()).collect(),
        };
        let team = Arc::new(Team::new(count, pipeline).map_err(failed(0))?);
        let cpus = workers.iter().map(|(config, _)| config.pin).collect();
        let mut runner = Self {
            threads: Vec::new(),
            cpus,
            tables,
            counters: Vec::new(),
            reports: Vec::new(),
            stop,
            team,
            scheduler,
            watch: Watch::default(),
            fault: None,
            patience: LONGEST_ANSWER,
        };
        for ((config, links), others) in workers.into_iter().zip(rings.drain(..)) {
            let core = config.core;
            runner.add(config, links, others).map_err(failed(core))?;
        }
        Ok(runner)
    }

    fn add(&mut self, config: WorkerConfig, links: Links, others: Vec<Option<MemoryPort>>) -> io::Result<()> {
        let (worker, reports) = Worker::new(config);
        self.counters.push(worker.counters());
        self.reports.push(reports);
        let post = Post::new(links, &self.stop.event, Arc::clone(&self.team), others, worker)?;
        self.spawn(post)
    }

    /// Starts the thread of a worker.
    fn spawn(&mut self, post: Post) -> io::Result<()> {
        let core = post.core();
        let (cpu, stop, tables) = (self.cpus[core], Arc::clone(&self.stop), self.tables.clone());
        let (orders, received) = mpsc::channel();
        let handle = std::thread::Builder::new().name(format!("weir-{core}")).spawn(move || {
            pin_to(core, cpu);
            Crew { posts: vec![post], orders: received }.run(&tables, &stop.asked)
        })?;
        self.threads.push(Thread { core, cpu, handle, orders, workers: vec![core] });
        Ok(())
    }

    /// How work is divided.
    pub fn scheduler(&self) -> Scheduler {
        self.scheduler
    }

    /// Counters of every worker, in order.
    pub fn counters(&self) -> &[Arc<CoreCounters>] {
        &self.counters
    }

    /// Audit records since the last call, at most `limit`.
    pub fn audits(&mut self, limit: usize) -> Vec<Audit> {
        let records = self.reports.iter_mut().flat_map(|reports| std::iter::from_fn(|| reports.audits.pop().ok()));
        records.take(limit).collect()
    }

    /// Readable when packets have asked for SAs since the last [`Runner::acquires`].
    pub fn asked(&self) -> BorrowedFd<'_> {
        self.team.asked.as_fd()
    }

    /// SAs that packets have asked for since the last call, at most `limit`.
    pub fn acquires(&mut self, limit: usize) -> Vec<Acquire> {
        // Before the rings, so that what comes meanwhile is seen or rings again.
        let _ = rustix::io::read(&self.team.asked, &mut [0; 8]);
        let records = self.reports.iter_mut().flat_map(|reports| std::iter::from_fn(|| reports.acquires.pop().ok()));
        records.take(limit).collect()
    }

    /// Has every worker look at the tables now. Without it a worker at rest looks within 100 ms.
    pub fn wake(&self) {
        (0..self.counters.len()).for_each(|worker| self.team.ring(worker));
    }

    /// True while every worker runs; false once one has stopped by itself.
    pub fn healthy(&self) -> bool {
        self.fault.is_none() && self.threads.iter().all(|thread| !thread.handle.is_finished())
    }

    /// Looks for workers that run and do nothing, not even look at their ports: returns those that hang from now on (`true`)
    /// and those that go on again. To be called several times a second.
    pub fn watch(&mut self, now: Instant) -> Vec<(usize, bool)> {
        self.watch.look(now, self.counters.iter().map(|core| core.turns.load(Ordering::Relaxed)))
    }

    /// Whether some worker hung when [`Runner::watch`] was called last.
    pub fn hangs(&self) -> bool {
        self.watch.any()
    }

    /// Threads that run, each with the numbers of the workers that it takes care of.
    pub fn threads(&self) -> impl Iterator<Item = &[usize]> {
        self.threads.iter().map(|thread| &*thread.workers)
    }

    /// Ends the thread that takes care of worker `core`; another one does so from here on. Its packets wait at their
    /// ports meanwhile. Nothing happens, and false is returned, when no other thread is there.
    ///
    /// # Errors
    /// What ended the thread before it was asked to, or that it hangs. Its workers are lost, and [`Runner::healthy`] says so.
    pub fn retire(&mut self, core: usize) -> Result<bool, RunnerError> {
        let outcome = self.try_retire(core);
        self.note(outcome)
    }

    fn try_retire(&mut self, core: usize) -> Result<bool, RunnerError> {
        let Some(at) = self.threads.iter().position(|thread| thread.workers.contains(&core)) else { return Ok(false) };
        if self.threads.len() < 2 {
            return Ok(false);
        }
        let gone = self.threads.remove(at);
        let (give, given) = mpsc::channel();
        let asked = gone.orders.send(Order::GiveUp(give)).is_ok();
        gone.workers.iter().for_each(|worker| self.team.ring(*worker));
        let heir = self.threads.iter_mut().min_by_key(|thread| thread.workers.len());
        if let (true, Some(heir)) = (asked, heir) {
            loop {
                match given.recv_timeout(self.patience) {
                    // An heir that has ended is told by `healthy`.
                    Ok(post) => drop(heir.orders.send(Order::Adopt(post))),
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                    Err(mpsc::RecvTimeoutError::Timeout) => return Err(self.hung(gone.core)),
                }
            }
            heir.workers.extend(&gone.workers);
            heir.workers.iter().for_each(|worker| self.team.ring(*worker));
        }
        ended(gone, self.patience)?;
        Ok(true)
    }

    /// Gives worker `core` a thread of its own again, after [`Runner::retire`]. Nothing happens, and false is returned, when it
    /// has one.
    ///
    /// # Errors
    /// The operating system refuses a thread: the worker ends with it. Or what ended the thread that had it, or that it hangs.
    /// [`Runner::healthy`] says so.
    pub fn restore(&mut self, core: usize) -> Result<bool, RunnerError> {
        let outcome = self.try_restore(core);
        self.note(outcome)
    }

    fn try_restore(&mut self, core: usize) -> Result<bool, RunnerError> {
        let Some(at) = self.threads.iter().position(|thread| thread.core != core && thread.workers.contains(&core))
        else {
            return Ok(false);
        };
        let (give, given) = mpsc::channel();
        let carer = &mut self.threads[at];
        let asked = carer.orders.send(Order::Give(core, give)).is_ok();
        self.team.ring(core);
        let Some(post) = asked.then(|| given.recv_timeout(self.patience).ok()).flatten() else {
            let gone = self.threads.remove(at);
            let core = gone.core;
            ended(gone, self.patience)?;
            return Err(RunnerError::Port { core, source: io::Error::other("its thread has ended") });
        };
        self.threads[at].workers.retain(|worker| *worker != core);
        self.spawn(*post).map_err(|source| RunnerError::Start { core, source })?;
        Ok(true)
    }

    /// Keeps in mind that a worker was lost.
    fn note<T>(&mut self, outcome: Result<T, RunnerError>) -> Result<T, RunnerError> {
        if let Err(error) = &outcome {
            self.fault.get_or_insert_with(|| error.again());
        }
        outcome
    }

    fn hung(&self, core: usize) -> RunnerError {
        RunnerError::Hangs { core, seconds: self.patience.as_secs() }
    }

    /// Looks whether the CPUs that workers are to have are there and allowed: retires the threads of those whose is not, and
    /// gives those whose is there again a thread on it.
    ///
    /// # Errors
    /// As [`Runner::retire`] and [`Runner::restore`].
    pub fn follow_cpus(&mut self) -> Result<(), RunnerError> {
        self.follow(&cpus::allowed())
    }

    fn follow(&mut self, allowed: &[usize]) -> Result<(), RunnerError> {
        // While one hangs nothing changes hands: whoever asks it for something waits with it.
        if allowed.is_empty() || self.hangs() {
            return Ok(());
        }
        // Those that are back come first: they can take care of the others.
        for core in 0..self.cpus.len() {
            let Some(cpu) = self.cpus[core].filter(|cpu| allowed.contains(cpu)) else { continue };
            match self.threads.iter_mut().find(|thread| thread.core == core) {
                Some(thread) if thread.cpu.is_none() => {
                    thread.cpu = Some(cpu);
                    let _ = thread.orders.send(Order::Move(cpu));
                    self.team.ring(core);
                }
                Some(_) => {}
                None => {
                    if self.restore(core)? {
                        tracing::info!(core, cpu, "the CPU of a worker is back: it has a thread of its own again");
                    }
                }
            }
        }
        let lost = |thread: &Thread| thread.cpu.is_some_and(|cpu| !allowed.contains(&cpu));
        while let Some(core) = self.threads.iter().find(|thread| lost(thread)).map(|thread| thread.core) {
            if self.retire(core)? {
                tracing::warn!(core, "the CPU of a worker is gone: another thread takes care of it");
            } else {
                // The last one: the operating system has put it where it may run.
                self.threads.iter_mut().for_each(|thread| thread.cpu = None);
            }
        }
        Ok(())
    }

    /// Stops the workers and waits for them, but not for one that hangs.
    ///
    /// # Errors
    /// What ended a worker before it was asked to, or that it hangs.
    pub fn stop(mut self) -> Result<(), RunnerError> {
        self.ask_and_wait()
    }

    fn ask_and_wait(&mut self) -> Result<(), RunnerError> {
        self.stop.asked.store(true, Ordering::Release);
        // Cannot fail short of 2^64 stops; a worker that misses it sees `asked` when it wakes.
        let _ = rustix::io::write(&self.stop.event, &1_u64.to_ne_bytes());
        let mut outcome = self.fault.take().map_or(Ok(()), Err);
        for thread in self.threads.drain(..) {
            outcome = outcome.and(ended(thread, self.patience));
        }
        outcome
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // The outcome was for whoever called `stop`.
        let _ = self.ask_and_wait();
    }
}

/// Waits for a thread that was told to end.
fn ended(thread: Thread, patience: Duration) -> Result<(), RunnerError> {
    let Thread { core, handle, .. } = thread;
    let until = Instant::now() + patience;
    while !handle.is_finished() {
        if Instant::now() >= until {
            return Err(RunnerError::Hangs { core, seconds: patience.as_secs() });
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let outcome = handle.join().unwrap_or_else(|panic| Err(io::Error::other(panic_text(&*panic))));
    outcome.map_err(|source| RunnerError::Port { core, source })
}

/// Rings between every two workers, both ways.
fn rings(workers: &[(WorkerConfig, Links)]) -> Vec<Vec<Option<MemoryPort>>> {
    let count = workers.len();
    let mut rings: Vec<Vec<Option<MemoryPort>>> = (0..count).map(|_| (0..count).map(|_| None).collect()).collect();
    let packets = (HANDED_OVER / count.max(1)).max(LEAST_HANDED_OVER);
    for a in 0..count {
        for b in a + 1..count {
            let bytes = workers[a].0.packet_bytes.max(workers[b].0.packet_bytes);
            let (left, right) = memory_pair(packets, bytes);
            (rings[a][b], rings[b][a]) = (Some(left), Some(right));
        }
    }
    rings
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("internal error, please report: {}", text.unwrap_or("panic without a message"))
}

fn pin_to(core: usize, cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return;
    }
    if let Err(error) = cpus::pin(cpu) {
        tracing::warn!(core, cpu, %error, "worker is not pinned");
    }
}

/// What runs on one thread.
struct Crew {
    posts: Vec<Post>,
    orders: mpsc::Receiver<Order>,
}

impl Crew {
    /// Until asked to stop or to give up, or a port fails.
    fn run(&mut self, tables: &Publisher, stop: &AtomicBool) -> io::Result<()> {
        let start = Instant::now();
        let mut reader = tables.reader();
        while !stop.load(Ordering::Acquire) {
            for post in &mut self.posts {
                post.turn(start.elapsed().as_millis() as u64, &mut reader)?;
            }
            self.wait()?;
            while let Ok(order) = self.orders.try_recv() {
                match order {
                    Order::Adopt(post) => self.posts.push(*post),
                    Order::GiveUp(to) => {
                        std::thread::sleep(SETTLE);
                        // Whoever asked waits for them.
                        self.posts.drain(..).for_each(|post| drop(to.send(Box::new(post))));
                        return Ok(());
                    }
                    Order::Give(core, to) => {
                        std::thread::sleep(SETTLE);
                        let given = self.posts.extract_if(.., |post| post.core() == core);
                        given.for_each(|post| drop(to.send(Box::new(post))));
                    }
                    Order::Move(cpu) => pin_to(self.posts.first().map_or(0, Post::core), Some(cpu)),
                }
            }
        }
        self.finish()
    }

    /// What is still under way in a pipeline: the other threads do their part of it now, too.
    fn finish(&mut self) -> io::Result<()> {
        let until = Instant::now() + LONGEST_END;
        loop {
            let mut any = false;
            for post in &mut self.posts {
                any |= post.finish()?;
            }
            if !any {
                if self.posts.iter().all(Post::nothing_under_way) || Instant::now() >= until {
                    return Ok(());
                }
                std::thread::yield_now();
            }
        }
    }

    /// Sleeps until one of the workers has something to do.
    fn wait(&mut self) -> io::Result<()> {
        let ms = self.posts.iter().map(|post| post.patience_ms()).min().unwrap_or(0);
        if let [only] = &mut self.posts[..] {
            return only.wait(ms);
        }
        if ms > 0 {
            self.sleep(ms)?;
        }
        self.posts.iter_mut().try_for_each(|post| post.wait(0))
    }

    /// Sleeps up to `ms` with all workers, unless there is work for one of them after all.
    fn sleep(&self, ms: i64) -> io::Result<()> {
        let mut outcome = Ok(0);
        if self.posts.iter().all(Post::rests) {
            let fds = self.posts.iter().map(|post| PollFd::from_borrowed_fd(post.ready(), PollFlags::IN));
            let mut ready: ArrayVec<PollFd<'_>, MAX_WORKERS> = fds.collect();
            outcome = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 }));
        }
        self.posts.iter().for_each(Post::wakes);
        match outcome {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use crypto::{Engine, KeyTable, Suite};
    use ipsec::{Action, DfPolicy, DscpPolicy, Lifetime, Mode, Outer, Peer, Policy, SaCommon, Spd, esp};
    use wire::registry::CodePoints;
    use wire::{AddrRange, PortRange, Selector};

    use ipsec::Drop as Reason;

    use super::*;
    use crate::{Batch, Snapshot, Totals};

    const PACKET: [u8; 28] =
        [0x45, 0, 0, 28, 0, 1, 0, 0, 9, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0, 1, 0, 2, 0, 8, 0, 0];

    fn spd(action: Action) -> Spd {
        let any = AddrRange::from_cidr([192, 0, 2, 0].into(), 24).unwrap();
        let ports = PortRange::ANY;
        let selectors = vec![Selector { src: any, dst: any, proto: None, src_ports: ports, dst_ports: ports }];
        Spd::new(vec![Policy { name: "all".into(), selectors, action }])
    }

    fn tables(action: Action) -> Publisher {
        let (spd, keys) = (spd(action), KeyTable::default());
        Publisher::new(Snapshot::new(vec![], vec![], spd, keys, CodePoints::default()).unwrap())
    }

    fn common() -> SaCommon {
        let outer = Outer {
            peer: Peer { local: [198, 51, 100, 1].into(), remote: [198, 51, 100, 2].into() },
            hop_limit: 64,
            dscp: DscpPolicy::Copy,
            ecn: true,
            df: DfPolicy::Copy,
            udp: None,
            udp_checksum: false,
        };
        SaCommon::new("moon", Mode::Tunnel, outer, Lifetime::NONE)
    }

    fn spec(first_seq: u64) -> esp::Spec<'static> {
        esp::Spec {
            spi: 0x1001,
            suite: Suite::parse_esp("aes128gcm16").unwrap(),
            enc_key: &[7; 20],
            integ_key: &[],
            esn: false,
            window: 64,
            first_seq,
            persistent: false,
            tfc_padding: false,
            iv: esp::CbcIv::Encrypted,
        }
    }

    /// Everything through one ESP tunnel over a path of `path_mtu` bytes.
    fn tunnel(path_mtu: usize) -> Publisher {
        let mut keys = KeyTable::default();
        let sa = esp::outbound(common(), &spec(1), Engine::best(), &mut keys).unwrap();
        sa.set_path_mtu(path_mtu);
        let spd = spd(Action::Protect { outbound: 0, inbound: 0 });
        Publisher::new(Snapshot::new(vec![], vec![Arc::new(sa)], spd, keys, CodePoints::default()).unwrap())
    }

    fn small(core: usize) -> WorkerConfig {
        WorkerConfig { core, batch: 8, reassembly: 1, derived_keys: 16, pin: Some(0), ..WorkerConfig::default() }
    }

    fn send(port: &mut MemoryPort, count: usize) {
        let mut batch = Batch::new(count, 2048);
        while batch.push_with(|to| to.set(&PACKET)) {}
        port.tx(&mut batch).unwrap();
    }

    fn receive(port: &mut MemoryPort, count: usize) -> usize {
        let (mut got, mut batch, start) = (0, Batch::new(8, 2048), Instant::now());
        while got < count && start.elapsed() < Duration::from_secs(5) {
            port.rx(&mut batch).unwrap();
            got += batch.len();
            batch.clear();
            std::thread::yield_now();
        }
        got
    }

    fn wait_for(what: impl Fn() -> bool) {
        let start = Instant::now();
        while !what() {
            assert!(start.elapsed() < Duration::from_secs(5));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A worker between memory rings of `places` packets, and their far ends: inner, outer in, outer out.
    fn between_rings(places: usize) -> (Links, MemoryPort, MemoryPort, MemoryPort) {
        let (inner, inner_end) = memory_pair(places, 2048);
        let (outer_rx, outer_rx_end) = memory_pair(places, 2048);
        let (outer_tx, outer_tx_end) = memory_pair(places, 2048);
        let links = Links { inner: Box::new(inner), outer_rx: vec![Box::new(outer_rx)], outer_tx: Box::new(outer_tx) };
        (links, inner_end, outer_rx_end, outer_tx_end)
    }

    /// A port that waits forever, or does something worse.
    struct Odd(OwnedFd, fn() -> io::Result<()>);

    impl Odd {
        fn boxed(rx: fn() -> io::Result<()>) -> Box<dyn Port + Send> {
            Box::new(Self(eventfd(0, EventfdFlags::CLOEXEC).unwrap(), rx))
        }
    }

    impl Port for Odd {
        fn rx(&mut self, _: &mut Batch) -> io::Result<()> {
            (self.1)()
        }

        fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
            from.clear();
            Ok(())
        }

        fn readable(&self) -> Option<BorrowedFd<'_>> {
            Some(self.0.as_fd())
        }
    }

    fn odd(rx: fn() -> io::Result<()>) -> Vec<(WorkerConfig, Links)> {
        let quiet = || Odd::boxed(|| Ok(()));
        vec![
            (small(0), Links { inner: quiet(), outer_rx: vec![quiet()], outer_tx: quiet() }),
            (small(1), Links { inner: Odd::boxed(rx), outer_rx: vec![], outer_tx: quiet() }),
        ]
    }

    #[test]
    fn packets_go_both_ways_and_are_counted() {
        let (links, mut inner, mut outer_in, mut outer_out) = between_rings(64);
        let runner = Runner::start(vec![(small(0), links)], tables(Action::Bypass)).unwrap();
        send(&mut inner, 30);
        send(&mut outer_in, 20);
        assert_eq!((receive(&mut outer_out, 30), receive(&mut inner, 20)), (30, 20));
        wait_for(|| Totals::of(runner.counters().iter().map(|c| &**c)).bypassed == 50);
        let totals = Totals::of(runner.counters().iter().map(|c| &**c));
        assert_eq!((totals.outer_tx, totals.inner_tx), ((30, 30 * 28), (20, 20 * 28)));
        assert!(runner.healthy());
        runner.stop().unwrap();
    }

    #[test]
    fn new_tables_are_seen_without_traffic_in_between() {
        let (links, mut inner, _outer_in, mut outer_out) = between_rings(64);
        let tables_now = tables(Action::Bypass);
        let runner = Runner::start(vec![(small(0), links)], tables_now.clone()).unwrap();
        send(&mut inner, 1);
        assert_eq!(receive(&mut outer_out, 1), 1);
        let spd = Spd::new(vec![]);
        tables_now.publish(Snapshot::new(vec![], vec![], spd, KeyTable::default(), CodePoints::default()).unwrap());
        send(&mut inner, 1);
        wait_for(|| runner.counters()[0].drops[Reason::NoPolicy as usize].load(Ordering::Relaxed) == 1);
    }

    #[test]
    fn a_packet_waits_for_the_sa_that_it_asks_for() {
        let (links, mut inner, mut outer_in, mut outer_out) = between_rings(64);
        let tables_now = tables(Action::Trap(5));
        let mut runner = Runner::start(vec![(small(0), links)], tables_now.clone()).unwrap();
        send(&mut inner, 3);
        let rings = |runner: &Runner, patience| {
            let timeout = Timespec { tv_sec: patience, tv_nsec: 0 };
            let fd = rustix::event::PollFd::new(&runner.team.asked, rustix::event::PollFlags::IN);
            rustix::event::poll(&mut [fd], Some(&timeout)).unwrap() == 1
        };
        assert!(rings(&runner, 5));
        let acquires = runner.acquires(10);
        assert!(!rings(&runner, 0));
        let key = acquires[0].key;
        assert_eq!((acquires.len(), acquires[0].trap, acquires[0].core), (1, 5, None));
        assert_eq!(key.proto, wire::IpProto::UDP);
        send(&mut outer_in, 1);
        wait_for(|| runner.counters()[0].drops[Reason::PlainInbound as usize].load(Ordering::Relaxed) == 1);
        tables_now.publish(
            Snapshot::new(vec![], vec![], spd(Action::Bypass), KeyTable::default(), CodePoints::default()).unwrap(),
        );
        runner.wake();
        assert_eq!(receive(&mut outer_out, 3), 3);
        runner.stop().unwrap();
    }

    #[test]
    fn nothing_overtakes_what_waits_for_a_sign() {
        let mut keys = KeyTable::default();
        let sa = esp::outbound(common(), &spec(1), Engine::best(), &mut keys).unwrap();
        let sign = Arc::new(esp::inbound(common(), &spec(0), Engine::best(), &mut keys).unwrap());
        let ripe = Arc::new(AtomicBool::new(false));
        let protect = spd(Action::Protect { outbound: 0, inbound: 0 });
        let mut tables = Snapshot::new(vec![], vec![Arc::new(sa)], protect, keys, CodePoints::default()).unwrap();
        tables.unproven = vec![crate::Unproven { slot: 0, trap: 9, sign, ripe: Arc::clone(&ripe) }];
        let (mut worker, _reports) = Worker::new(small(0));
        let (mut batch, mut replies) = (Batch::new(8, 2048), Batch::new(8, 2048));
        let put = |batch: &mut Batch, n: u8| {
            let packet = |to: &mut crate::Packet| to.set(&PACKET) && std::mem::replace(&mut to.bytes_mut()[27], n) == 0;
            assert!(batch.push_with(packet));
        };
        put(&mut batch, 1);
        worker.outbound(&tables, &mut batch, &mut replies);
        ripe.store(true, Ordering::Relaxed);
        put(&mut batch, 2);
        worker.outbound(&tables, &mut batch, &mut replies);
        assert!(batch.is_empty(), "the second went before the first");
        worker.release(&tables, &mut batch);
        let order: Vec<u8> = batch.packets().iter().map(|packet| packet.bytes()[27]).collect();
        assert_eq!(order, [1, 2]);
        batch.clear();
        put(&mut batch, 3);
        worker.outbound(&tables, &mut batch, &mut replies);
        assert_eq!(batch.len(), 1);
    }

    #[test]
    fn packets_that_a_plan_says_nothing_of_are_dropped() {
        let tables = tunnel(1500).current();
        let (mut worker, _reports) = Worker::new(small(0));
        let (mut batch, mut replies, mut plan) = (Batch::new(8, 2048), Batch::new(8, 2048), Vec::with_capacity(8));
        let fill =
            |batch: &mut Batch, most: usize| while batch.len() < most && batch.push_with(|to| to.set(&PACKET)) {};
        fill(&mut batch, 2);
        worker.plan(&tables, &mut batch, &mut replies, &mut plan);
        fill(&mut batch, 5);
        worker.seal_planned(&tables, &mut batch, &plan, 0);
        assert_eq!(batch.packets().iter().map(crate::Packet::len).collect::<Vec<_>>(), [batch.packets()[0].len(); 2]);
        assert!(batch.packets()[0].len() > PACKET.len());
        assert_eq!(worker.counters().drops[Reason::Inconsistent as usize].load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_core_without_an_sa_of_its_own_uses_the_common_one_and_asks() {
        let (links, mut inner, _outer_in, mut outer_out) = between_rings(64);
        let tables_now = tunnel(1500);
        let current = tables_now.current();
        let sa = Arc::clone(&current.outbound[0]);
        let mut next = Snapshot::new(
            vec![],
            vec![Arc::clone(&sa), sa],
            spd(Action::Protect { outbound: 0, inbound: 0 }),
            KeyTable::default(),
            CodePoints::default(),
        )
        .unwrap();
        next.keys.insert(current.keys.shared(crypto::KeyId(0)).unwrap());
        next.spread = vec![crate::Spread { slot: 0, by_core: vec![None, Some(1)], trap: 9 }];
        assert_eq!(next.on_core(0, 0), (0, Some(9)));
        assert_eq!(next.on_core(0, 1), (1, None));
        assert_eq!(next.on_core(0, 2), (0, None));
        assert_eq!(next.on_core(1, 0), (1, None));
        tables_now.publish(next);
        let mut runner = Runner::start(vec![(small(0), links)], tables_now).unwrap();
        send(&mut inner, 2);
        assert_eq!(receive(&mut outer_out, 2), 2);
        let acquires = runner.acquires(10);
        assert_eq!((acquires.len(), acquires[0].trap, acquires[0].core), (1, 9, Some(0)));
        runner.stop().unwrap();
    }

    #[test]
    fn what_a_port_refuses_is_a_counted_drop() {
        let (mut links, mut inner, _outer_in, _outer_out) = between_rings(64);
        let (narrow, _narrow_end) = memory_pair(5, 2048);
        links.outer_tx = Box::new(narrow);
        let runner = Runner::start(vec![(small(0), links)], tables(Action::Bypass)).unwrap();
        send(&mut inner, 40);
        wait_for(|| runner.counters()[0].drops[Reason::QueueFull as usize].load(Ordering::Relaxed) == 35);
        runner.stop().unwrap();
    }

    #[test]
    fn a_full_batch_of_packets_to_cut_loses_none() {
        let (links, mut inner, _outer_in, mut outer_out) = between_rings(64);
        let mut batch = Batch::new(8, 2048);
        let mut packet = [0; 700];
        packet[..PACKET.len()].copy_from_slice(&PACKET);
        packet[2..4].copy_from_slice(&700_u16.to_be_bytes());
        while batch.push_with(|to| to.set(&packet)) {}
        // All eight are there when the worker looks for the first time.
        inner.tx(&mut batch).unwrap();
        let runner = Runner::start(vec![(small(0), links)], tunnel(576)).unwrap();
        assert_eq!(receive(&mut outer_out, 16), 16);
        assert_eq!(runner.counters()[0].drops[Reason::QueueFull as usize].load(Ordering::Relaxed), 0);
        runner.stop().unwrap();
    }

    /// A worker that has other things to do.
    struct Slow;

    impl Port for Slow {
        fn rx(&mut self, _: &mut Batch) -> io::Result<()> {
            std::thread::sleep(Duration::from_millis(2));
            Ok(())
        }

        fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
            from.clear();
            Ok(())
        }
    }

    #[test]
    fn packets_for_a_worker_that_is_slow_wait_and_are_not_dropped() {
        const PACKETS: usize = 1500;
        let (links, _inner, mut outer_in, _outer_out) = between_rings(PACKETS);
        let slow = Links { inner: Box::new(Slow), outer_rx: vec![], outer_tx: Odd::boxed(|| Ok(())) };
        let config = |core| WorkerConfig { batch: 64, derived_keys: 128, ..small(core) };
        let workers = vec![(config(0), links), (config(1), slow)];
        let runner = Runner::start_with(workers, tables(Action::Drop), Scheduler::RunToCompletion).unwrap();
        // More than the ring to the other worker holds.
        let mut batch = Batch::new(PACKETS, 2048);
        while batch.push_with(|to| to.set(&esp_for(1))) {}
        outer_in.tx(&mut batch).unwrap();
        let counted = |core: usize, why: Reason| runner.counters()[core].drops[why as usize].load(Ordering::Relaxed);
        wait_for(|| counted(1, Reason::NoSa) == PACKETS as u64);
        assert_eq!((counted(0, Reason::QueueFull), counted(1, Reason::QueueFull)), (0, 0));
        let [wrong, waits] = [&runner.counters()[0].wrong_core, &runner.counters()[0].input_waits]
            .map(|counter| counter.load(Ordering::Relaxed));
        assert!(wrong == PACKETS as u64 && waits > 0, "{wrong} {waits}");
        runner.stop().unwrap();
    }

    /// ESP that belongs to worker `owner` of two.
    fn esp_for(owner: u8) -> [u8; 36] {
        let mut packet = [0; 36];
        packet[..PACKET.len()].copy_from_slice(&PACKET);
        (packet[3], packet[9], packet[22], packet[23]) = (36, 50, 1, owner);
        packet
    }

    /// A port that has nothing before it is opened.
    struct Gated(MemoryPort, Arc<AtomicBool>);

    impl Port for Gated {
        fn rx(&mut self, into: &mut Batch) -> io::Result<()> {
            if self.1.load(Ordering::Acquire) { self.0.rx(into) } else { Ok(()) }
        }

        fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
            self.0.tx(from)
        }
    }

    #[test]
    fn rings_that_are_full_both_ways_run_empty_again() {
        // More than a ring between two workers holds comes at once, and all of it is the other's.
        const AT_ONCE: usize = 600;
        const PACKETS: usize = 3000;
        const _: () = assert!(AT_ONCE > HANDED_OVER / 2);
        for threads in [2, 1] {
            let gate = Arc::new(AtomicBool::new(false));
            let mut ends = vec![];
            let mut worker = |core| {
                let (mut links, inner, _, outer_out) = between_rings(8);
                let (here, mut outer_in) = memory_pair(PACKETS, 2048);
                links.outer_rx = vec![Box::new(Gated(here, Arc::clone(&gate)))];
                let mut batch = Batch::new(PACKETS, 2048);
                while batch.push_with(|to| to.set(&esp_for(1 - core as u8))) {}
                outer_in.tx(&mut batch).unwrap();
                ends.push((inner, outer_in, outer_out));
                (WorkerConfig { batch: AT_ONCE, derived_keys: 2 * AT_ONCE, ..small(core) }, links)
            };
            let workers = (0..2).map(&mut worker).collect();
            let mut runner = Runner::start_with(workers, tables(Action::Drop), Scheduler::RunToCompletion).unwrap();
            assert!(threads == 2 || runner.retire(1).unwrap());
            gate.store(true, Ordering::Release);
            let counted =
                |core: usize, why: Reason| runner.counters()[core].drops[why as usize].load(Ordering::Relaxed);
            for core in 0..2 {
                wait_for(|| counted(core, Reason::NoSa) == PACKETS as u64);
                assert_eq!(counted(core, Reason::QueueFull), 0);
                // On one thread nobody makes room while a batch is handed over; on two it may be quick enough.
                let waits = runner.counters()[core].input_waits.load(Ordering::Relaxed);
                assert!(threads == 2 || waits > 0, "the ring of {core} was never full");
            }
            runner.stop().unwrap();
        }
    }

    #[test]
    fn workers_that_share_a_thread_are_found_when_they_sleep() {
        let quiet = || Odd::boxed(|| Ok(()));
        let links = || Links { inner: quiet(), outer_rx: vec![quiet()], outer_tx: quiet() };
        let workers = (0..3).map(|core| (small(core), links())).collect();
        let mut runner = Runner::start_with(workers, tables(Action::Drop), Scheduler::Pipeline).unwrap();
        assert!(runner.retire(1).unwrap());
        // Whoever makes work for one of them rings for those that say so, and for no others.
        let team = Arc::clone(&runner.team);
        wait_for(|| team.asleep() == 0b111);
        runner.stop().unwrap();
        assert_eq!(team.asleep(), 0);
    }

    #[test]
    fn a_failed_port_leaves_nothing_in_the_pipeline() {
        struct Broken;
        impl crate::Sink for Broken {
            fn outer(&mut self, _: &mut Batch) -> io::Result<crate::After> {
                Err(io::Error::other("cable pulled"))
            }
            fn inner(&mut self, _: &mut Batch) -> io::Result<()> {
                Err(io::Error::other("cable pulled"))
            }
        }
        let (mut worker, _reports) = Worker::new(small(0));
        let pipeline = Pipeline::new(&PipelineConfig { places: 1, batch: 8, ..PipelineConfig::default() });
        let (now, mut replies) = (tables(Action::Bypass).current(), Batch::new(8, 2048));
        let mut take = |worker: &mut Worker, packets: usize| {
            let taken = pipeline.take_inner(worker, &now, &mut replies, |into| {
                assert!(into.is_empty(), "packets of before are in the place");
                (0..packets).for_each(|_| assert!(into.push_with(|to| to.set(&PACKET))));
                if packets > 3 { Err(io::Error::other("a queue that is gone")) } else { Ok(()) }
            });
            taken.is_ok_and(|any| any == Some(true))
        };
        assert!(take(&mut worker, 3));
        assert!(pipeline.work(&mut worker, &mut Broken).is_err());
        assert!(!take(&mut worker, 4));
        assert!(take(&mut worker, 2));
        assert_eq!(pipeline.in_use(), 1);
    }

    #[test]
    fn a_worker_goes_with_its_cpu_and_comes_back_with_it() {
        for scheduler in Scheduler::ALL {
            let ends: Vec<_> = (0..3).map(|_| between_rings(64)).collect();
            let (mut workers, mut others) = (vec![], vec![]);
            for (core, (links, inner, outer_in, outer_out)) in ends.into_iter().enumerate() {
                workers.push((WorkerConfig { pin: Some(core), ..small(core) }, links));
                others.push((inner, outer_in, outer_out));
            }
            let mut runner = Runner::start_with(workers, tables(Action::Bypass), scheduler).unwrap();
            let carried = |runner: &Runner| {
                let mut all: Vec<Vec<usize>> = runner.threads().map(<[usize]>::to_vec).collect();
                all.iter_mut().for_each(|thread| thread.sort_unstable());
                all.sort_unstable();
                all
            };
            let mut pass = || {
                others.iter_mut().all(|(inner, _, outer_out)| {
                    send(inner, 5);
                    receive(outer_out, 5) == 5
                })
            };
            for (allowed, threads) in [
                (&[0, 1, 2][..], vec![vec![0], vec![1], vec![2]]),
                (&[0, 2], vec![vec![0, 1], vec![2]]),
                (&[1], vec![vec![0, 1, 2]]),
                (&[1, 2], vec![vec![0, 1], vec![2]]),
                (&[], vec![vec![0, 1], vec![2]]),
                (&[0, 1, 2], vec![vec![0], vec![1], vec![2]]),
            ] {
                runner.follow(allowed).unwrap();
                // Which of the others takes care of a worker says nothing.
                let now = carried(&runner);
                assert_eq!(now.len(), threads.len(), "{allowed:?}: {now:?}");
                let alone: Vec<_> = allowed.iter().filter(|cpu| !now.iter().any(|t| t.contains(cpu))).collect();
                assert!(alone.is_empty() && pass(), "{scheduler:?} {allowed:?}: {now:?}");
            }
            assert!(runner.healthy() && !runner.restore(1).unwrap(), "it has a thread");
            runner.stop().unwrap();
        }
    }

    #[test]
    fn a_failed_port_stops_its_worker_and_is_told() {
        let runner = Runner::start(odd(|| Err(io::Error::other("cable pulled"))), tables(Action::Drop)).unwrap();
        wait_for(|| !runner.healthy());
        let error = runner.stop().unwrap_err();
        assert_eq!(error.to_string(), "worker 1 stopped: cable pulled");
    }

    #[test]
    fn a_panic_stops_its_worker_and_is_told() {
        let runner = Runner::start(odd(|| panic!("on purpose")), tables(Action::Drop)).unwrap();
        wait_for(|| !runner.healthy());
        assert!(runner.stop().unwrap_err().to_string().ends_with("please report: on purpose"));
    }

    #[test]
    fn a_worker_that_is_lost_on_its_way_is_told() {
        let mut runner = Runner::start(odd(|| panic!("on purpose")), tables(Action::Drop)).unwrap();
        wait_for(|| !runner.healthy());
        assert!(runner.retire(1).is_err());
        // Its thread is not among those that run any more.
        assert_eq!((runner.threads().count(), runner.healthy()), (1, false));
        assert!(runner.stop().unwrap_err().to_string().ends_with("please report: on purpose"));
    }

    #[test]
    fn a_worker_that_hangs_is_not_waited_for() {
        static LEFT_ALONE: AtomicBool = AtomicBool::new(false);
        let rx = || {
            while !LEFT_ALONE.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        };
        let mut runner = Runner::start(odd(rx), tables(Action::Drop)).unwrap();
        runner.patience = Duration::from_millis(50);
        // The one beside it goes on.
        let turns = |core: usize| runner.counters()[core].turns.load(Ordering::Relaxed);
        wait_for(|| turns(1) == 1 && turns(0) > 2);
        assert_eq!((turns(1), runner.healthy()), (1, true));
        assert!(matches!(runner.retire(1), Err(RunnerError::Hangs { core: 1, .. })));
        assert!(!runner.healthy());
        assert!(runner.stop().unwrap_err().to_string().starts_with("worker 1 hangs"));
        LEFT_ALONE.store(true, Ordering::Relaxed);
    }

    /// What others do not wait for is lost and counted, and comes through again when the worker goes on.
    #[test]
    fn a_worker_that_hangs_holds_nobody_up() {
        const PACKETS: usize = 2000;
        static LEFT_ALONE: AtomicBool = AtomicBool::new(false);
        let (links, _inner, mut outer_in, _outer_out) = between_rings(PACKETS);
        let hangs = || {
            while !LEFT_ALONE.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        };
        let hung = Links { inner: Odd::boxed(hangs), outer_rx: vec![], outer_tx: Odd::boxed(|| Ok(())) };
        let config = |core| WorkerConfig { batch: 64, derived_keys: 128, ..small(core) };
        let workers = vec![(config(0), links), (config(1), hung)];
        let runner = Runner::start_with(workers, tables(Action::Drop), Scheduler::RunToCompletion).unwrap();
        let counted = |core: usize, why: Reason| runner.counters()[core].drops[why as usize].load(Ordering::Relaxed);
        let mut batch = Batch::new(PACKETS, 2048);
        while batch.push_with(|to| to.set(&esp_for(1))) {}
        batch.packets_mut()[PACKETS - 1].set(&esp_for(0));
        outer_in.tx(&mut batch).unwrap();
        wait_for(|| counted(0, Reason::NoSa) == 1);
        let lost = counted(0, Reason::QueueFull);
        assert!(lost > 0 && lost + HANDED_OVER as u64 >= PACKETS as u64 - 1, "{lost}");
        // From here on nothing waits for it, not even for a moment.
        batch.push_with(|to| to.set(&esp_for(1)));
        outer_in.tx(&mut batch).unwrap();
        wait_for(|| counted(0, Reason::QueueFull) == lost + 1);
        LEFT_ALONE.store(true, Ordering::Relaxed);
        wait_for(|| counted(1, Reason::NoSa) == PACKETS as u64 - 1 - lost);
        batch.push_with(|to| to.set(&esp_for(1)));
        outer_in.tx(&mut batch).unwrap();
        wait_for(|| counted(1, Reason::NoSa) == PACKETS as u64 - lost);
        assert_eq!(counted(0, Reason::QueueFull), lost + 1);
        runner.stop().unwrap();
    }

    #[test]
    fn there_are_no_more_workers_than_a_set_holds() {
        let links = || Links { inner: Odd::boxed(|| Ok(())), outer_rx: vec![], outer_tx: Odd::boxed(|| Ok(())) };
        let workers = (0..=MAX_WORKERS).map(|core| (small(core), links())).collect();
        let error = Runner::start(workers, tables(Action::Drop)).err().unwrap().to_string();
        assert!(error.contains("65 workers were asked for"), "{error}");
    }

    #[test]
    fn sleeping_workers_stop_at_once() {
        let runner = Runner::start(odd(|| Ok(())), tables(Action::Drop)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        runner.stop().unwrap();
        assert!(start.elapsed() < Duration::from_millis(LONGEST_SLEEP_MS as u64), "{:?}", start.elapsed());
    }
}
