//! From clear packets to protected ones.

use crate::{Batch, Snapshot, Worker};

impl Worker {
    /// Takes clear packets from the inner side. Afterwards `batch` holds what is to be sent on the
    /// outer side (protected, or bypassed by policy), in order; `replies` got ICMP errors for the
    /// inner side. Everything else was dropped and counted.
    pub fn outbound(&mut self, tables: &Snapshot, batch: &mut Batch, replies: &mut Batch) {
        let _ = (tables, batch, replies);
        todo!("lead")
    }
}
