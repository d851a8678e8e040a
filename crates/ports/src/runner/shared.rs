//! State that the workers of a runner share: an eventfd for each of them, and the pipeline if there
//! is one.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use dataplane::Pipeline;
use rustix::event::{EventfdFlags, eventfd};

use super::parked::Parked;

/// Shared by all workers of a runner.
pub(super) struct Shared {
    /// Wakes each worker.
    pub(super) wakers: Box<[OwnedFd]>,
    /// Wakes the control thread when packets request SAs.
    pub(super) asked: OwnedFd,
    /// Beginning of the time of all workers: an SA has times that several of them write, and a
    /// worker that another thread takes over must not go back in time.
    start: Instant,
    /// Batches in flight; `None` when every worker runs to completion.
    pub(super) pipeline: Option<Pipeline>,
    /// Workers that sleep.
    parked: Parked,
    /// Workers that have packets for another worker with a full ring.
    wait_for_room: Parked,
}

impl Shared {
    pub(super) fn new(workers: usize, pipeline: Option<Pipeline>) -> io::Result<Self> {
        let waker = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from);
        let wakers = (0..workers).map(|_| waker()).collect::<io::Result<_>>()?;
        let start = Instant::now();
        Ok(Self { wakers, asked: waker()?, start, pipeline, parked: Parked::new(), wait_for_room: Parked::new() })
    }

    /// Milliseconds since the start of the runner.
    pub(super) fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Wakes a worker, whether it sleeps or not.
    pub(super) fn wake(&self, worker: usize) {
        // An eventfd with a full counter wakes as well.
        let _ = self.wakers.get(worker).map(|waker| rustix::io::write(waker, &1_u64.to_ne_bytes()));
    }

    /// Wakes a worker after packets were handed over, if it sleeps. A running worker checks its
    /// rings anyway.
    pub(super) fn wake_if_parked(&self, worker: usize) {
        self.parked.wake(|parked| parked == worker, |worker| self.wake(worker));
    }

    /// Wakes sleeping workers if the pipeline has work: each worker with work assigned to it, and
    /// one for work that any worker can do.
    pub(super) fn wake_for_work(&self) {
        let Some(pipeline) = &self.pipeline else { return };
        let mut any = pipeline.waiting() > 0;
        let wanted = |worker| {
            let own = pipeline.waiting_at(worker) > 0;
            own || std::mem::take(&mut any)
        };
        self.parked.wake(wanted, |worker| self.wake(worker));
    }

    /// True when the pipeline has work that `worker` can do.
    pub(super) fn has_work(&self, worker: usize) -> bool {
        self.pipeline.as_ref().is_some_and(|pipeline| pipeline.waiting() > 0 || pipeline.waiting_at(worker) > 0)
    }

    /// Marks `worker` as about to sleep. Returns false if there is work: it must not sleep then.
    /// The worker must also check its rings again.
    pub(super) fn park(&self, worker: usize) -> bool {
        self.parked.enter(worker);
        !self.has_work(worker)
    }

    /// Marks `worker` as awake.
    pub(super) fn unpark(&self, worker: usize) {
        self.parked.leave(worker);
    }

    /// Workers that sleep, one bit each.
    #[cfg(test)]
    pub(super) fn asleep(&self) -> u64 {
        self.parked.waiting()
    }

    /// Marks `worker` as waiting for a free slot in the ring to another one. It must check the ring
    /// again afterwards.
    pub(super) fn wait_for_room(&self, worker: usize) {
        self.wait_for_room.enter(worker);
    }

    /// Wakes the workers that wait for free slots. Must be called after slots were freed.
    pub(super) fn wake_for_room(&self) {
        self.wait_for_room.wake(|_| true, |worker| self.wake(worker));
    }
}
