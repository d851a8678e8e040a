//! From protected packets to clear ones.

use crate::{Batch, Snapshot, Worker};

impl Worker {
    /// Takes packets from the outer side. Afterwards `batch` holds what is to be delivered on the
    /// inner side, in order. Everything else was dropped and counted.
    pub fn inbound(&mut self, tables: &Snapshot, batch: &mut Batch) {
        let _ = (tables, batch);
        todo!("lead")
    }
}
