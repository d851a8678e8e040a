//! Packet path: batches of packets, the tables that they use, and the processing between ports.
//!
//! A worker owns one core. It receives a batch from a port, takes it through the path (classify,
//! prepare, engine, finish) and hands it to the next port. Tables come as a [`Snapshot`] that the
//! control side publishes whole; a worker checks for a new one between batches. Nothing on the path
//! allocates, locks or logs; only AGGFRAG mode allocates buffers when it first needs them, up to
//! named limits.
//!
//! Nothing here does I/O, reads a clock or starts a thread: `clippy.toml` and the dependencies
//! forbid it, and `unsafe` is in two modules, the prefetch of packet buffers and the work queue.
//! Threads and ports are in the crate `ports`, above.

mod cache;
mod counters;
mod driver;
mod hold;
mod inbound;
mod outbound;
mod pacing;
mod packet;
mod path_mtu;
mod port;
mod prefetch;
mod scheduler;
mod shared;
mod snapshot;
mod spare;
mod steer;
#[cfg(test)]
mod tests;
mod worker;

pub use counters::{Audit, CoreCounters, LookupCounters, Totals, bump};
pub use hold::Acquire;
pub use pacing::{MAX_BURST, MIN_INTERVAL_NS, PacedCounts, PacedSa, PacedStream, Pacer, burst, slot_ns};
pub use packet::{Batch, HEADROOM, Packet, TAILROOM};
pub use port::{Port, PortDrops};
pub use scheduler::{
    After, AsyncConfig, Asynchronous, CipherTag, EnginePacket, MAX_SLOTS, Pipeline, PipelineConfig, Scheduler, Sink,
    Staged,
};
pub use snapshot::{GracePeriodSa, PerCoreSas, Publisher, Reader, Snapshot, SnapshotError, UnconfirmedSa};
pub use spare::{SlotList, SpareIndex, SpareTables};
pub use steer::nat_t_owner;
pub use worker::{Reports, Worker, WorkerConfig};
