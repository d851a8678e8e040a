//! Constant rate of outer packets (RFC 9347 §2.4.1, without congestion control).
//!
//! Outer packets of an SA in AGGFRAG mode with a rate all have one size and leave at times that do
//! not depend on the inner packets. Workers append inner packets to the queue of a
//! [`PacedStream`]; one thread, which is in the crate `ports`, owns a [`Pacer`] and does the rest:
//!
//! ```text
//! workers: classify ──► queue of the stream (one ring per worker, bounded, tail drop)
//! pacer:   fill with data or padding ──► number ──► seal ──► wait for the slot ──► send
//! ```
//!
//! A burst is sealed as soon as the one before was sent, and sent at the time of its slot, so that
//! the time for copying and sealing does not show. Nothing else sends packets of such an SA: if
//! the pacer stops, the queue overflows and nothing leaves.
//!
//! A stream belongs to a policy with its peer. It outlives the SA: after a rekeying the next slot
//! uses the new SA, and a packet that was cut is sent again from its beginning, because pieces of
//! two SAs cannot be joined. The stream ends when no published SA refers to it; what it queues is
//! then overwritten with zeros.

mod budget;
mod pacer;
mod queue;
mod schedule;
mod sync;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use pacer::Pacer;
pub(crate) use pacer::usable;
pub(crate) use queue::{Queue, Writer};
pub use schedule::{MAX_BURST, MIN_INTERVAL_NS, burst, slot_ns};

/// Time of packets at the rate that a queue holds, in ms: its share in the latency.
const QUEUE_MS: u64 = 20;
/// Smallest queue in bytes: one packet of the maximum length.
const QUEUE_MIN: u64 = 1 << 16;

/// A stream of outer packets with a constant rate. Shared by the control side, workers and pacer.
pub struct PacedStream {
    pub(crate) queue: Queue,
    pub(crate) counters: PacedCounters,
}

/// Counters of a stream, written by the pacer.
#[derive(Default)]
pub(crate) struct PacedCounters {
    pub(crate) packets: AtomicU64,
    pub(crate) padding: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) restarts: AtomicU64,
    pub(crate) running: AtomicBool,
}

/// Values of the counters of a stream.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PacedCounts {
    /// Outer packets sent.
    pub packets: u64,
    /// Those of them with nothing but padding.
    pub padding: u64,
    /// Those of them that were sent after the next burst was due.
    pub late: u64,
    /// Times that the schedule was started: at first, after a stop, or more than a second behind.
    pub restarts: u64,
    /// Packets are being sent.
    pub running: bool,
}

impl PacedStream {
    /// A stream of `rate_kbps` kbit/s for packets of `workers` workers.
    pub fn new(rate_kbps: u32, workers: usize) -> Arc<Self> {
        // Bits per ms are kbit per s.
        let bytes = (u64::from(rate_kbps) * QUEUE_MS / 8).max(QUEUE_MIN);
        Arc::new(Self { queue: Queue::new(workers, bytes as usize), counters: PacedCounters::default() })
    }

    /// Current values of the counters.
    pub fn counts(&self) -> PacedCounts {
        let PacedCounters { packets, padding, late, restarts, running } = &self.counters;
        let [packets, padding, late, restarts] =
            [packets, padding, late, restarts].map(|counter| counter.load(Ordering::Relaxed));
        PacedCounts { packets, padding, late, restarts, running: running.load(Ordering::Relaxed) }
    }

    /// Bytes of inner packets in the queue.
    pub fn queued_bytes(&self) -> usize {
        self.queue.len()
    }
}

/// An outbound slot with a constant rate.
#[derive(Clone)]
pub struct PacedSa {
    /// The slot.
    pub slot: u32,
    /// Its stream. No two slots have the same one.
    pub stream: Arc<PacedStream>,
}
