//! Worker threads: start, control and stop.
//!
//! From thread to packet, in reading order:
//!
//! | step | file |
//! |---|---|
//! | start, move and stop threads | this file |
//! | main loop of a thread: turn, wait, commands | `runner/thread.rs` |
//! | one worker: receive, process, send, sleep | `runner/worker_ports.rs` |
//! | standing queues before a worker | `runner/aqm.rs` |
//! | packets for SAs of other workers | `runner/hand_over.rs` |
//! | wake-ups between workers | `runner/shared.rs`, `runner/parked.rs` |
//! | run to completion: a batch through the path | `dataplane`: `worker.rs`, `outbound.rs`, `inbound.rs` |
//! | pipeline: the same path in stages on several cores | `dataplane`: `scheduler/pipeline.rs`, `scheduler/queue.rs` |
//! | constant rate: outer packets at their times | `runner/pacer.rs`; `dataplane`: `pacing/` |
//! | async: the same path with the engine on crypto threads | `runner/crypto_threads.rs`; `dataplane`: `scheduler/asynchronous.rs` |
//!
//! A worker takes a batch from each port that has packets through the path and out again. Between
//! batches it looks for new tables, the time and the request to stop. It sleeps only when every
//! port is empty, and then at most 100 ms.
//!
//! A worker is not a thread: it is what one core owns, its ports and SAs. A thread runs one worker
//! or, when a CPU was taken away, several: no packet is lost and no SA changes its worker.

mod aqm;
mod crypto_threads;
mod hand_over;
mod pacer;
mod parked;
mod shared;
mod sync;
mod thread;
mod watchdog;
mod worker_ports;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dataplane::{
    Acquire, Audit, CoreCounters, MAX_SLOTS, Pipeline, PipelineConfig, Port, Publisher, Reports, Scheduler, Worker,
    WorkerConfig,
};
use rustix::event::{EventfdFlags, eventfd};

use crate::{MemoryPort, cpus, memory_pair, prefer_huge_pages};
use pacer::PacerThread;
pub use parked::MAX_WORKERS;
use shared::Shared;
use thread::{Order, WorkerThread, pin_to};
use watchdog::Watchdog;
#[cfg(test)]
use worker_ports::LONGEST_SLEEP_MS;
use worker_ports::WorkerPorts;

/// Packets in flight to one worker from all others, for SAs that it owns. Worst case, if an
/// attacker sends packets of the maximum size to the wrong cores: 64 MiB per worker. Unused buffers
/// are never touched.
const HANDED_OVER: usize = 1024;
/// Minimum for one ring: from 17 workers on all rings hold more than [`HANDED_OVER`], with 64
/// workers four times as many.
const LEAST_HANDED_OVER: usize = 64;
/// Batches in flight in a pipeline, per worker. Worst case, each full of packets of the maximum
/// size and twice as many fragments: 72 MiB per worker, 768 MiB for all of them.
const SLOTS_PER_WORKER: usize = 6;
/// Packets per batch in a pipeline, and with crypto threads. With larger batches, cores wait for
/// each other longer.
const PIPELINE_BATCH: usize = 64;

/// Environment variable that overrides the default scheduler, for whole test suites.
const FORCE: &str = "WEIR_SCHEDULER";

/// Returns the default scheduler: run to completion, unless the environment variable
/// `WEIR_SCHEDULER` names another.
pub fn usual_scheduler() -> Scheduler {
    let forced = std::env::var(FORCE).ok();
    Scheduler::ALL.into_iter().find(|one| forced.as_deref() == Some(one.name())).unwrap_or_default()
}

/// The ports of one worker.
pub struct Links {
    /// Port of plaintext packets: a TUN queue.
    pub inner: Box<dyn Port + Send>,
    /// Source of protected packets. Any worker may receive any packet: packets of SAs of other
    /// workers are handed over.
    pub outer_rx: Vec<Box<dyn Port + Send>>,
    /// Sink of protected packets, as whole IP packets.
    pub outer_tx: Box<dyn Port + Send>,
}

/// Error of a worker thread that could not be started or that ended.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The operating system could not create a thread or an event descriptor.
    #[error("cannot start worker {core}: {source}")]
    Start {
        /// Worker.
        core: usize,
        /// Error.
        source: io::Error,
    },
    /// The thread of the pacer could not be started, or it ended.
    #[error("the pacer of SAs with a constant rate stopped: {source}")]
    Pacer {
        /// Reason.
        source: io::Error,
    },
    /// A port failed permanently.
    #[error("worker {core} stopped: {source}")]
    Port {
        /// Worker.
        core: usize,
        /// Reason.
        source: io::Error,
    },
    /// A worker does not execute commands; its thread is abandoned and ends with the process.
    #[error("worker {core} hangs: it has not answered for {seconds} s; please report what it was doing")]
    Hangs {
        /// Worker.
        core: usize,
        /// Duration of the wait.
        seconds: u64,
    },
}

impl RunnerError {
    /// Copy of the error for a second reporter (`io::Error` is not `Clone`).
    fn again(&self) -> Self {
        let copy = |source: &io::Error| io::Error::new(source.kind(), source.to_string());
        match self {
            Self::Start { core, source } => Self::Start { core: *core, source: copy(source) },
            Self::Port { core, source } => Self::Port { core: *core, source: copy(source) },
            Self::Pacer { source } => Self::Pacer { source: copy(source) },
            Self::Hangs { core, seconds } => Self::Hangs { core: *core, seconds: *seconds },
        }
    }
}

/// Maximum time to wait for a thread to execute a command. Threads should check for commands at
/// least ten times a second.
const LONGEST_ANSWER: Duration = Duration::from_secs(10);

/// Running workers. Stops them when dropped.
pub struct Runner {
    threads: Vec<Thread>,
    /// Thread for SAs with a constant rate; `None` where packets of such SAs cannot be sent.
    pacer: Option<PacerThread>,
    /// Configured CPU of each worker.
    cpus: Vec<Option<usize>>,
    tables: Publisher,
    counters: Vec<Arc<CoreCounters>>,
    reports: Vec<Reports>,
    stop: Arc<Stop>,
    shared: Arc<Shared>,
    scheduler: Scheduler,
    watch: Watchdog,
    /// Error of a thread that failed while it handed over its workers.
    fault: Option<RunnerError>,
    /// [`LONGEST_ANSWER`], or less in tests.
    patience: Duration,
}

struct Thread {
    core: usize,
    /// CPU to which the thread is pinned.
    cpu: Option<usize>,
    handle: JoinHandle<io::Result<()>>,
    orders: mpsc::Sender<Order>,
    /// Workers that it runs.
    workers: Vec<usize>,
}

/// Request to stop, which also wakes workers that sleep.
struct Stop {
    asked: AtomicBool,
    event: OwnedFd,
}

impl Stop {
    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

impl Runner {
    /// Starts one thread per worker, with [`usual_scheduler`].
    ///
    /// # Errors
    /// [`RunnerError::Start`]; nothing is left running then.
    pub fn start(workers: Vec<(WorkerConfig, Links)>, tables: Publisher) -> Result<Self, RunnerError> {
        Self::start_with(workers, tables, usual_scheduler())
    }

    /// Starts one thread per worker. The workers are numbered from 0 on; there are at most
    /// [`MAX_WORKERS`].
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
        mark_alone(&mut workers);
        if scheduler != Scheduler::RunToCompletion {
            workers.iter_mut().for_each(|(config, _)| config.batch = config.batch.min(PIPELINE_BATCH));
        }
        let pipeline = (scheduler == Scheduler::Pipeline).then(|| {
            let packet_bytes = workers.iter().map(|(config, _)| config.packet_bytes).max().unwrap_or(0);
            let batch = workers.iter().map(|(config, _)| config.batch).max().unwrap_or(PIPELINE_BATCH);
            let slots = (SLOTS_PER_WORKER * count).clamp(1, MAX_SLOTS);
            let config = PipelineConfig { workers: count, slots, batch, packet_bytes, ..PipelineConfig::default() };
            Pipeline::with_memory(&config, prefer_huge_pages)
        });
        let silent = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| failed(0)(e.into()));
        let stop = Arc::new(Stop { asked: AtomicBool::new(false), event: silent()? });
        let mut rings = match scheduler {
            Scheduler::RunToCompletion | Scheduler::Async => rings(&workers),
            Scheduler::Pipeline => workers.iter().map(|_| Vec::new()).collect(),
        };
        let shared = Arc::new(Shared::new(count, pipeline).map_err(failed(0))?);
        let cpus = workers.iter().map(|(config, _)| config.pin).collect();
        let mut runner = Self {
            threads: Vec::new(),
            pacer: None,
            cpus,
            tables,
            counters: Vec::new(),
            reports: Vec::new(),
            stop,
            shared,
            scheduler,
            watch: Watchdog::default(),
            fault: None,
            patience: LONGEST_ANSWER,
        };
        for ((config, links), others) in workers.into_iter().zip(rings.drain(..)) {
            let core = config.core;
            runner.add(config, links, others).map_err(failed(core))?;
        }
        Ok(runner)
    }

    /// Starts the thread that sends the packets of SAs with a constant rate through `port`. The
    /// number `core` of `config` should be the number of workers.
    ///
    /// # Errors
    /// [`RunnerError::Pacer`]: the operating system cannot create a thread.
    pub fn start_pacer(&mut self, config: WorkerConfig, port: Box<dyn Port + Send>) -> Result<(), RunnerError> {
        let pacer = PacerThread::start(config, port, self.tables.clone(), Arc::clone(&self.stop));
        self.pacer = Some(pacer.map_err(|source| RunnerError::Pacer { source })?);
        Ok(())
    }

    /// Controls workers that the caller drives itself, without threads. `workers` are their
    /// counters and reports, in order.
    ///
    /// # Errors
    /// [`RunnerError::Start`]: the operating system has no descriptor left.
    pub fn detached(workers: Vec<(Arc<CoreCounters>, Reports)>, tables: Publisher) -> Result<Self, RunnerError> {
        let mut runner = Self::start_with(Vec::new(), tables, Scheduler::RunToCompletion)?;
        (runner.counters, runner.reports) = workers.into_iter().unzip();
        Ok(runner)
    }

    fn add(&mut self, config: WorkerConfig, links: Links, others: Vec<Option<MemoryPort>>) -> io::Result<()> {
        let asynchronous = match self.scheduler {
            Scheduler::Async => Some(crypto_threads::start(&config, &self.shared)?),
            Scheduler::RunToCompletion | Scheduler::Pipeline => None,
        };
        let (worker, reports) = Worker::new(config);
        self.counters.push(worker.counters());
        self.reports.push(reports);
        let shared = Arc::clone(&self.shared);
        let worker = WorkerPorts::new(links, &self.stop.event, shared, others, (worker, asynchronous))?;
        self.spawn(worker)
    }

    /// Starts the thread of a worker.
    fn spawn(&mut self, worker: WorkerPorts) -> io::Result<()> {
        let core = worker.core();
        let (cpu, stop, tables) = (self.cpus[core], Arc::clone(&self.stop), self.tables.clone());
        let (orders, received) = mpsc::channel();
        let handle = std::thread::Builder::new().name(format!("weir-{core}")).spawn(move || {
            pin_to(core, cpu);
            WorkerThread::new(worker, received).run(&tables, &stop.asked)
        })?;
        self.threads.push(Thread { core, cpu, handle, orders, workers: vec![core] });
        Ok(())
    }

    /// Scheduler.
    pub fn scheduler(&self) -> Scheduler {
        self.scheduler
    }

    /// Counters of every worker, in order.
    pub fn counters(&self) -> &[Arc<CoreCounters>] {
        &self.counters
    }

    /// Counters of every worker, and of the pacer.
    pub fn all_counters(&self) -> impl Iterator<Item = &Arc<CoreCounters>> {
        self.counters.iter().chain(self.pacer.as_ref().map(|pacer| &pacer.counters))
    }

    /// Audit records since the last call, at most `limit`.
    pub fn audits(&mut self, limit: usize) -> Vec<Audit> {
        let pacer = self.pacer.as_mut().map(|pacer| &mut pacer.reports);
        let records =
            self.reports.iter_mut().chain(pacer).flat_map(|reports| std::iter::from_fn(|| reports.audits.pop().ok()));
        records.take(limit).collect()
    }

    /// Readable if packets have requested SAs since the last [`Runner::acquires`].
    pub fn asked(&self) -> BorrowedFd<'_> {
        self.shared.asked.as_fd()
    }

    /// SAs that packets have requested since the last call, at most `limit`.
    pub fn acquires(&mut self, limit: usize) -> Vec<Acquire> {
        // Cleared before the rings are read, so that concurrent requests are either seen or
        // signalled again.
        let _ = rustix::io::read(&self.shared.asked, &mut [0; 8]);
        let records = self.reports.iter_mut().flat_map(|reports| std::iter::from_fn(|| reports.acquires.pop().ok()));
        records.take(limit).collect()
    }

    /// Makes every worker check the tables now. Otherwise a sleeping worker checks within 100 ms.
    pub fn wake(&self) {
        (0..self.counters.len()).for_each(|worker| self.shared.wake(worker));
        self.pacer.iter().for_each(PacerThread::wake);
    }

    /// True while every worker runs; false once one has stopped by itself.
    pub fn healthy(&self) -> bool {
        let pacer_runs = self.pacer.as_ref().is_none_or(|pacer| !pacer.handle.is_finished());
        self.fault.is_none() && pacer_runs && self.threads.iter().all(|thread| !thread.handle.is_finished())
    }

    /// Detects hanging workers. Returns those that hang since the last call (`true`) and those that
    /// have resumed. Should be called several times a second.
    pub fn watch(&mut self, now: Instant) -> Vec<(usize, bool)> {
        self.watch.look(now, self.counters.iter().map(|core| core.turns.load(Ordering::Relaxed)))
    }

    /// Returns whether a worker hung at the last [`Runner::watch`].
    pub fn hangs(&self) -> bool {
        self.watch.any()
    }

    /// Returns the running threads, each with the numbers of its workers.
    pub fn threads(&self) -> impl Iterator<Item = &[usize]> {
        self.threads.iter().map(|thread| &*thread.workers)
    }

    /// CPU time of each thread of [`Runner::threads`]; zero for one that has ended.
    pub fn cpu_times(&self) -> Vec<Duration> {
        self.threads.iter().map(|thread| crate::clock::cpu_time(&thread.handle).unwrap_or_default()).collect()
    }

    /// Stops the thread of worker `core`; another thread takes the worker over. Its packets wait at
    /// their ports during the change. Returns false without effect if there is no other thread.
    ///
    /// # Errors
    /// The error that ended the thread prematurely, or that it hangs. Its workers are lost, which
    /// [`Runner::healthy`] reports.
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
        gone.workers.iter().for_each(|worker| self.shared.wake(*worker));
        let heir = self.threads.iter_mut().min_by_key(|thread| thread.workers.len());
        if let (true, Some(heir)) = (asked, heir) {
            loop {
                match given.recv_timeout(self.patience) {
                    // If the new thread has ended, `healthy` reports it.
                    Ok(worker) => drop(heir.orders.send(Order::Adopt(worker))),
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                    Err(mpsc::RecvTimeoutError::Timeout) => return Err(self.hung(gone.core)),
                }
            }
            heir.workers.extend(&gone.workers);
            heir.workers.iter().for_each(|worker| self.shared.wake(*worker));
        }
        ended(gone, self.patience)?;
        Ok(true)
    }

    /// Starts a separate thread for worker `core` again, after [`Runner::retire`]. Returns false
    /// without effect if it has one.
    ///
    /// # Errors
    /// The operating system cannot create a thread, which ends the worker; or the previous thread
    /// failed or hangs. [`Runner::healthy`] reports it.
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
        self.shared.wake(core);
        let Some(worker) = asked.then(|| given.recv_timeout(self.patience).ok()).flatten() else {
            let gone = self.threads.remove(at);
            let core = gone.core;
            ended(gone, self.patience)?;
            return Err(RunnerError::Port { core, source: io::Error::other("its thread has ended") });
        };
        self.threads[at].workers.retain(|worker| *worker != core);
        self.spawn(*worker).map_err(|source| RunnerError::Start { core, source })?;
        Ok(true)
    }

    /// Records that a worker was lost.
    fn note<T>(&mut self, outcome: Result<T, RunnerError>) -> Result<T, RunnerError> {
        if let Err(error) = &outcome {
            self.fault.get_or_insert_with(|| error.again());
        }
        outcome
    }

    fn hung(&self, core: usize) -> RunnerError {
        RunnerError::Hangs { core, seconds: self.patience.as_secs() }
    }

    /// Checks whether the CPUs of the workers are online and allowed: retires threads whose CPU is
    /// missing, and restarts threads whose CPU has returned.
    ///
    /// # Errors
    /// As [`Runner::retire`] and [`Runner::restore`].
    pub fn follow_cpus(&mut self) -> Result<(), RunnerError> {
        // Workers that are not pinned run anywhere.
        if self.cpus.iter().all(Option::is_none) { Ok(()) } else { self.follow(&cpus::allowed()) }
    }

    fn follow(&mut self, allowed: &[usize]) -> Result<(), RunnerError> {
        // No worker should move while a thread hangs, because a request to that thread would block
        // as well.
        if allowed.is_empty() || self.hangs() {
            return Ok(());
        }
        // CPUs that are back come first, because their threads can run the other workers.
        for core in 0..self.cpus.len() {
            let Some(cpu) = self.cpus[core].filter(|cpu| allowed.contains(cpu)) else { continue };
            match self.threads.iter_mut().find(|thread| thread.core == core) {
                Some(thread) if thread.cpu.is_none() => {
                    thread.cpu = Some(cpu);
                    let _ = thread.orders.send(Order::Move(cpu));
                    self.shared.wake(core);
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
                // The last thread: the operating system has moved it to an allowed CPU.
                self.threads.iter_mut().for_each(|thread| thread.cpu = None);
            }
        }
        Ok(())
    }

    /// Stops the workers and waits for them, except for hanging ones.
    ///
    /// # Errors
    /// The error that ended a worker prematurely, or that it hangs.
    pub fn stop(mut self) -> Result<(), RunnerError> {
        self.ask_and_wait()
    }

    fn ask_and_wait(&mut self) -> Result<(), RunnerError> {
        self.stop.asked.store(true, Ordering::Release);
        // Cannot fail before 2^64 stops; a worker that misses it reads the stop flag when it wakes.
        let _ = rustix::io::write(&self.stop.event, &1_u64.to_ne_bytes());
        let mut outcome = self.fault.take().map_or(Ok(()), Err);
        self.pacer.iter().for_each(PacerThread::wake);
        for thread in self.threads.drain(..) {
            outcome = outcome.and(ended(thread, self.patience));
        }
        if let Some(pacer) = self.pacer.take() {
            outcome = outcome.and(pacer.ended(self.patience));
        }
        outcome
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // The result is for the caller of `stop`.
        let _ = self.ask_and_wait();
    }
}

/// Waits for a thread to stop after a request.
fn ended(thread: Thread, patience: Duration) -> Result<(), RunnerError> {
    let Thread { core, handle, .. } = thread;
    let outcome = joined(handle, patience).ok_or(RunnerError::Hangs { core, seconds: patience.as_secs() })?;
    outcome.map_err(|source| RunnerError::Port { core, source })
}

/// Result of a thread that was asked to stop; `None` if it takes longer than `patience`.
fn joined(handle: JoinHandle<io::Result<()>>, patience: Duration) -> Option<io::Result<()>> {
    let until = Instant::now() + patience;
    while !handle.is_finished() {
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Some(handle.join().unwrap_or_else(|panic| Err(io::Error::other(panic_text(&*panic)))))
}

/// Only one worker may take sequence numbers and count packets of SAs without locked instructions.
fn mark_alone(workers: &mut [(WorkerConfig, Links)]) {
    let alone = workers.len() == 1;
    workers.iter_mut().for_each(|(config, _)| config.alone = alone);
}

/// Rings between every two workers, in both directions.
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

#[cfg(test)]
mod tests;
