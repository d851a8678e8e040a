//! State of a worker that its thread reads between batches, beside [`Worker::outbound`] and
//! [`Worker::inbound`].

use crate::{Worker, WorkerConfig};

impl Worker {
    /// Returns the configuration that the worker was made with.
    pub fn config(&self) -> &WorkerConfig {
        self.shared.config()
    }

    /// Returns true if packets have requested an SA since the last call.
    pub fn take_requested(&mut self) -> bool {
        self.outbound.take_requested()
    }

    /// Returns true if inner packets of AGGFRAG payloads are due at some time. No descriptor
    /// becomes readable then, so the thread must call [`Worker::unpack`] often.
    pub fn awaits_time(&self) -> bool {
        self.inbound.awaits_time()
    }

    /// Returns true while packets wait for the first inbound packet of an SA. No descriptor becomes
    /// readable when they may leave, so the thread must look often.
    pub fn awaits_peer_traffic(&self) -> bool {
        self.outbound.awaits_peer_traffic()
    }
}
