//! Main loop of a worker thread. A thread runs one worker, or several after a CPU was taken away.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use dataplane::Publisher;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::parked::MAX_WORKERS;
use super::worker_ports::WorkerPorts;
use crate::cpus;

/// Time for the transmit queues of a CPU to drain before a worker sends from another CPU: otherwise
/// its packets overtake those that still wait there.
const SETTLE: Duration = Duration::from_millis(1);
/// Maximum time that threads wait at the end for each other to complete batches in flight.
const LONGEST_END: Duration = Duration::from_millis(100);
/// Command to a worker thread.
pub(super) enum Order {
    /// Run this worker too.
    Adopt(Box<WorkerPorts>),
    /// Hand over all workers and end.
    GiveUp(mpsc::Sender<Box<WorkerPorts>>),
    /// Hand over this worker.
    Give(usize, mpsc::Sender<Box<WorkerPorts>>),
    /// Move to this CPU.
    Move(usize),
}

/// State of a worker thread: its workers, and commands from the runner.
pub(super) struct WorkerThread {
    workers: Vec<WorkerPorts>,
    orders: mpsc::Receiver<Order>,
}

impl WorkerThread {
    pub(super) fn new(worker: WorkerPorts, orders: mpsc::Receiver<Order>) -> Self {
        Self { workers: vec![worker], orders }
    }

    /// Runs the workers until `stop` is set, [`Order::GiveUp`] arrives or a port fails.
    pub(super) fn run(&mut self, tables: &Publisher, stop: &AtomicBool) -> io::Result<()> {
        let mut reader = tables.reader();
        while !stop.load(Ordering::Acquire) {
            for worker in &mut self.workers {
                worker.turn(&mut reader)?;
            }
            self.wait()?;
            while let Ok(order) = self.orders.try_recv() {
                match order {
                    Order::Adopt(worker) => self.workers.push(*worker),
                    Order::GiveUp(to) => {
                        std::thread::sleep(SETTLE);
                        // The runner waits for them on the channel.
                        self.workers.drain(..).for_each(|worker| drop(to.send(Box::new(worker))));
                        return Ok(());
                    }
                    Order::Give(core, to) => {
                        std::thread::sleep(SETTLE);
                        let given = self.workers.extract_if(.., |worker| worker.core() == core);
                        given.for_each(|worker| drop(to.send(Box::new(worker))));
                    }
                    Order::Move(cpu) => pin_to(self.workers.first().map_or(0, WorkerPorts::core), Some(cpu)),
                }
            }
        }
        self.finish()
    }

    /// Completes the batches in flight in a pipeline; the other threads do their part of it at the
    /// same time.
    fn finish(&mut self) -> io::Result<()> {
        let until = Instant::now() + LONGEST_END;
        loop {
            let mut any = false;
            for worker in &mut self.workers {
                any |= worker.finish()?;
            }
            if !any {
                if self.workers.iter().all(WorkerPorts::nothing_in_flight) || Instant::now() >= until {
                    return Ok(());
                }
                std::thread::yield_now();
            }
        }
    }

    /// Sleeps until one of the workers has something to do. One worker waits at its own epoll
    /// instance, which returns the ready ports as well; several workers wait together and then poll
    /// their ports.
    fn wait(&mut self) -> io::Result<()> {
        let ms = self.workers.iter().map(|worker| worker.max_sleep_ms()).min().unwrap_or(0);
        if let [only] = &mut self.workers[..] {
            return only.wait(ms);
        }
        if ms > 0 {
            self.sleep(ms)?;
        }
        self.workers.iter_mut().try_for_each(|worker| worker.wait(0))
    }

    /// Sleeps up to `ms` with all workers, unless one of them has work.
    fn sleep(&self, ms: i64) -> io::Result<()> {
        let mut outcome = Ok(0);
        if self.workers.iter().all(WorkerPorts::park) {
            let fds = self.workers.iter().map(|worker| PollFd::from_borrowed_fd(worker.ready(), PollFlags::IN));
            let mut ready: ArrayVec<PollFd<'_>, MAX_WORKERS> = fds.collect();
            outcome = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 }));
        }
        self.workers.iter().for_each(WorkerPorts::unpark);
        match outcome {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Keeps the calling thread, of worker `core`, on `cpu`.
pub(super) fn pin_to(core: usize, cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return;
    }
    if let Err(error) = cpus::pin(cpu) {
        tracing::warn!(core, cpu, %error, "worker is not pinned");
    }
}
