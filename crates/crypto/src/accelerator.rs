//! The asynchronous form of an engine: groups of operations are submitted, run elsewhere, and
//! polled in the order in which they were submitted.
//!
//! A caller creates a [`Group`], submits it, and polls until it returns. An accelerator is bounded:
//! without room it returns the group, and the caller should poll and try again, or run the group
//! itself with [`Group::run`]. Once it has failed ([`Gone`]) it never returns another group. The
//! sequence numbers of lost groups are spent: a caller must never seal other data with their IVs.

mod device;
mod simulated;

use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::{CryptoOp, DerivedKeys, Engine, IcvOk, Jobs, KeyTable, Keys};
pub use device::{DeviceKey, DeviceOp};
pub use simulated::{Fault, FaultKind, ManualClock, Properties, Simulated, State};

/// Suite of the tests. Miri runs no C code: AES-CCM is Rust, with IV and ICV of the same lengths.
#[cfg(test)]
pub(crate) const TEST_SUITE: &str = if cfg!(miri) { "aes128ccm16" } else { "aes128gcm16" };

/// Usual number of operations per group: the chunk size of most engines.
pub const GROUP: usize = Jobs::SINGLE_BUFFER;
/// Maximum operations per group: the chunk size of multi-buffer engines.
pub const GROUP_MAX: usize = Jobs::MOST;

/// Direction of a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// [`Engine::seal`].
    Seal,
    /// [`Engine::open`].
    Open,
}

/// One operation with its packet buffer.
pub struct Task<P> {
    /// Operation.
    pub op: CryptoOp,
    /// The packet. Spans of the operation count from its first byte.
    pub packet: P,
}

/// Tasks of one group. In a box, because a group passes through rings and must be small to move.
pub type Tasks<P> = Box<ArrayVec<Task<P>, GROUP_MAX>>;

/// Tasks that are submitted together.
pub struct Group<P> {
    /// Seal or open.
    pub direction: Direction,
    /// Keys of the operations. A group keeps its keys until it returns, whatever is published
    /// meanwhile. Derived keys belong to one core and are not available to an accelerator.
    pub keys: Arc<KeyTable>,
    /// The tasks.
    pub tasks: Tasks<P>,
    /// Results. Apart from the tasks, so that a thread that runs them does not write their cache
    /// lines, which would have to move back to the submitter.
    results: Results,
}

/// Results of a group, one bit per task.
#[derive(Default)]
pub struct Results {
    sealed: u64,
    verified: u64,
}
const _: () = assert!(GROUP_MAX <= u64::BITS as usize);

impl Results {
    /// [`crate::Job::sealed`] of task `i`.
    #[inline]
    pub fn sealed(&self, i: usize) -> bool {
        i < GROUP_MAX && self.sealed >> i & 1 == 1
    }

    /// [`crate::Job::take_ok`] of task `i`.
    #[inline]
    pub fn take_ok(&mut self, i: usize) -> Option<IcvOk> {
        let bit = if i < GROUP_MAX { 1 << i } else { 0 };
        let verified = self.verified & bit != 0;
        self.verified &= !bit;
        verified.then_some(IcvOk(()))
    }
}

impl<P> Group<P> {
    /// Creates a group of tasks that have not run.
    pub fn new(direction: Direction, keys: Arc<KeyTable>, tasks: Tasks<P>) -> Self {
        Self { direction, keys, tasks, results: Results::default() }
    }

    /// Tasks with their results.
    #[inline]
    pub fn parts(&mut self) -> (&mut Tasks<P>, &mut Results) {
        (&mut self.tasks, &mut self.results)
    }

    /// [`crate::Job::sealed`] of task `i`.
    pub fn sealed(&self, i: usize) -> bool {
        self.results.sealed(i)
    }

    /// [`crate::Job::take_ok`] of task `i`.
    pub fn take_ok(&mut self, i: usize) -> Option<IcvOk> {
        self.results.take_ok(i)
    }
}

impl<P: AsMut<[u8]>> Group<P> {
    /// Runs the group on the calling thread.
    pub fn run(&mut self, engine: Engine, derived: &DerivedKeys) {
        self.run_some(u64::MAX, engine, derived);
    }

    /// Runs the tasks whose bits are set in `wanted` on the calling thread, and leaves the others
    /// and their results.
    pub fn run_some(&mut self, wanted: u64, engine: Engine, derived: &DerivedKeys) {
        let is_wanted = |i: usize| wanted >> i & 1 == 1;
        let keys = Keys { table: &self.keys, derived };
        let mut jobs = Jobs::new();
        for (_, task) in self.tasks.iter_mut().enumerate().filter(|(i, _)| is_wanted(*i)) {
            jobs.add(&task.op, task.packet.as_mut());
        }
        match self.direction {
            Direction::Seal => engine.seal(keys, &mut jobs),
            Direction::Open => engine.open(keys, &mut jobs),
        }
        let places = (0..GROUP_MAX).filter(|i| is_wanted(*i));
        let kept = (self.results.sealed & !wanted, self.results.verified & !wanted);
        let (sealed, verified) = jobs.iter().zip(places).fold(kept, |(sealed, verified), (job, i)| {
            (sealed | u64::from(job.sealed) << i, verified | u64::from(job.verified) << i)
        });
        self.results = Results { sealed, verified };
    }
}

/// Error: the accelerator has failed. The groups under way are lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Gone {
    /// A thread of [`crate::offload::Offload`] has panicked.
    #[error("a thread of the asynchronous engine has ended")]
    ThreadEnded,
    /// The device reported an error, or returned other groups than it was given.
    #[error("the device of the asynchronous engine has failed")]
    DeviceFailed,
    /// No group returned for too long; reported by the caller's watchdog.
    #[error("the asynchronous engine has not returned a result for {ms} ms")]
    TimedOut {
        /// Time without a result.
        ms: u64,
    },
}

/// An asynchronous engine. Used by one caller.
pub trait Accelerator<P>: Send {
    /// Submits a group. An empty group is valid.
    ///
    /// # Errors
    /// The group itself without room for it, or after a failure, which [`Accelerator::poll`]
    /// reports.
    fn submit(&mut self, group: Group<P>) -> Result<(), Group<P>>;

    /// Returns the oldest group under way once it has run; `None` if it has not or if there is
    /// none. Never waits.
    ///
    /// # Errors
    /// [`Gone`]: it and the groups after it are lost.
    fn poll(&mut self) -> Result<Option<Group<P>>, Gone>;

    /// Starts the groups that were submitted: no others follow soon. Without it an accelerator may
    /// wait for more.
    fn flush(&mut self);

    /// Returns true if [`Accelerator::poll`] would return a group or an error.
    fn ready(&self) -> bool;

    /// Number of groups that were submitted and not polled.
    fn under_way(&self) -> usize;

    /// Maximum number of groups under way.
    fn capacity(&self) -> usize;

    /// Ends an accelerator that may not respond any more. Unlike a drop, this never waits for it.
    fn abandon(self: Box<Self>);
}
