//! Run-to-completion: one thread per worker, from port to port.

use std::io;
use std::sync::Arc;

use crate::{Audit, CoreCounters, Port, Publisher, WorkerConfig};

/// The ports of one worker.
pub struct Links {
    /// The side of clear packets: a TUN queue.
    pub inner: Box<dyn Port + Send>,
    /// Where protected packets come from. Only the first worker has any: an inbound SA belongs to
    /// one core.
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
}

/// Running workers. Stops them when dropped.
pub struct Runner {}

impl Runner {
    /// Starts one thread per worker.
    ///
    /// # Errors
    /// [`RunnerError::Start`]; nothing is left running then.
    pub fn start(workers: Vec<(WorkerConfig, Links)>, tables: Publisher) -> Result<Self, RunnerError> {
        let _ = (workers, tables);
        todo!("ports helper")
    }

    /// Counters of every worker, in order.
    pub fn counters(&self) -> &[Arc<CoreCounters>] {
        todo!("ports helper")
    }

    /// Audit records since the last call, at most `limit`.
    pub fn audits(&mut self, limit: usize) -> Vec<Audit> {
        let _ = limit;
        todo!("ports helper")
    }

    /// True while every worker runs; false once one has stopped by itself.
    pub fn healthy(&self) -> bool {
        todo!("ports helper")
    }

    /// Stops the workers and waits for them.
    ///
    /// # Errors
    /// What ended a worker before it was asked to.
    pub fn stop(self) -> Result<(), RunnerError> {
        todo!("ports helper")
    }
}
