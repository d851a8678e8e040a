//! What the workers of a runner have in common: bells, and the pipeline if there is one.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

use super::asleep::Asleep;
use crate::Pipeline;

/// Shared by all workers.
pub(super) struct Team {
    /// Wakes each worker.
    pub(super) bells: Box<[OwnedFd]>,
    /// Wakes the control side.
    pub(super) asked: OwnedFd,
    /// The work under way; `None` when every worker runs to completion.
    pub(super) pipeline: Option<Pipeline>,
    /// Workers that sleep.
    resting: Asleep,
    /// Workers that have packets for another one whose ring is full.
    crowded: Asleep,
}

impl Team {
    pub(super) fn new(workers: usize, pipeline: Option<Pipeline>) -> io::Result<Self> {
        let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from);
        let bells = (0..workers).map(|_| bell()).collect::<io::Result<_>>()?;
        Ok(Self { bells, asked: bell()?, pipeline, resting: Asleep::new(), crowded: Asleep::new() })
    }

    /// Wakes a worker.
    pub(super) fn ring(&self, worker: usize) {
        // A counter that is full wakes as well.
        let _ = self.bells.get(worker).map(|bell| rustix::io::write(bell, &1_u64.to_ne_bytes()));
    }

    /// Wakes a worker for which something was left, if it sleeps: otherwise it looks by itself.
    pub(super) fn tell(&self, worker: usize) {
        self.resting.wake(|sleeper| sleeper == worker, |worker| self.ring(worker));
    }

    /// Wakes workers that sleep while there is work for them: each one's own, and one for what any may do.
    pub(super) fn rouse(&self) {
        let Some(pipeline) = &self.pipeline else { return };
        let mut any = pipeline.waiting() > 0;
        let wanted = |worker| {
            let own = pipeline.waiting_at(worker) > 0;
            own || std::mem::take(&mut any)
        };
        self.resting.wake(wanted, |worker| self.ring(worker));
    }

    /// Whether `worker` could go on with something.
    pub(super) fn has_work(&self, worker: usize) -> bool {
        self.pipeline.as_ref().is_some_and(|pipeline| pipeline.waiting() > 0 || pipeline.waiting_at(worker) > 0)
    }

    /// Says that `worker` is about to sleep; false when it should not, because there is work after all. It is to look for what
    /// others left for it once more, too.
    pub(super) fn rests(&self, worker: usize) -> bool {
        self.resting.enter(worker);
        !self.has_work(worker)
    }

    /// Says that `worker` does not sleep any more.
    pub(super) fn wakes(&self, worker: usize) {
        self.resting.leave(worker);
    }

    /// Workers that sleep, a bit each.
    #[cfg(test)]
    pub(super) fn asleep(&self) -> u64 {
        self.resting.waiting()
    }

    /// Says that `worker` waits for room in a ring to another. It is to look at the ring once more afterwards.
    pub(super) fn wants_room(&self, worker: usize) {
        self.crowded.enter(worker);
    }

    /// Wakes those that wait for room, after some was made.
    pub(super) fn made_room(&self) {
        self.crowded.wake(|_| true, |worker| self.ring(worker));
    }
}
