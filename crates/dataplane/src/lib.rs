//! Packets in batches: memory, ports, tables as packets see them, and the path between.
//!
//! A worker owns one core. It receives a batch from a port, takes it through the path
//! (classify, prepare, engine, finish) and hands it to the next port. Tables come as a
//! [`Snapshot`] that the control side publishes whole; a worker looks for a new one between
//! batches. Nothing on the path allocates, locks or logs.

mod cache;
pub mod clock;
mod counters;
pub mod cpus;
mod hold;
mod inbound;
mod outbound;
mod packet;
mod path_mtu;
pub mod port;
mod runner;
mod scheduler;
mod snapshot;
mod steer;
mod worker;

pub use counters::{Audit, CoreCounters, LookUps, Totals};
pub use hold::Acquire;
pub use packet::{Batch, HEADROOM, Packet, TAILROOM};
pub use port::Port;
pub use runner::{Links, MAX_WORKERS, Runner, RunnerError};
pub use scheduler::{
    After, CipherTag, FlowId, Held, MAX_PLACES, Pipeline, PipelineConfig, Scheduler, Sink, Tag, WorkQueue,
};
pub use snapshot::{Ending, Publisher, Snapshot, SnapshotError, Spread, Unproven};
pub use worker::{Reports, Worker, WorkerConfig};
