//! State of a worker that both directions use.

use std::ops::Range;
use std::sync::Arc;

use crypto::{DerivedKeys, Engine};
use ipsec::{DropReason, SaCommon};
use wire::IpPacket;

use crate::counters::bump;
use crate::{Audit, Batch, CoreCounters, WorkerConfig};

/// SA and number of a packet in an audit record; 0 where they are unknown.
#[derive(Default)]
pub(crate) struct Subject {
    pub(crate) outbound: bool,
    pub(crate) spi: u32,
    pub(crate) session: u16,
    /// Sequence number, low half.
    pub(crate) seq: u32,
}

/// Configuration, counters and time of a core, and which packets of the current batch are kept.
pub(crate) struct Shared {
    config: WorkerConfig,
    counters: Arc<CoreCounters>,
    derived: DerivedKeys,
    audit: rtrb::Producer<Audit>,
    /// Time of the current batch, in milliseconds.
    now_ms: u64,
    /// One flag per packet of the current batch: false if it was dropped or held.
    keep: Vec<bool>,
    /// True if all flags of `keep` are true.
    all_kept: bool,
}

impl Shared {
    pub(crate) fn new(config: WorkerConfig, audit: rtrb::Producer<Audit>) -> Self {
        Self {
            counters: Arc::new(CoreCounters::default()),
            derived: DerivedKeys::new(config.derived_keys.max(2 * config.batch)),
            audit,
            now_ms: 0,
            // A batch of the port, and its reserve for fragments.
            keep: Vec::with_capacity(3 * config.batch),
            all_kept: true,
            config,
        }
    }

    pub(crate) fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// Counters of the core.
    #[inline]
    pub(crate) fn counters(&self) -> &Arc<CoreCounters> {
        &self.counters
    }

    /// Keys derived from packet fields.
    #[inline]
    pub(crate) fn derived(&self) -> &DerivedKeys {
        &self.derived
    }

    /// Likewise, to add keys.
    #[inline]
    pub(crate) fn derived_mut(&mut self) -> &mut DerivedKeys {
        &mut self.derived
    }

    /// Time of the current batch, in milliseconds of any monotonic clock.
    #[inline]
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub(crate) fn set_now_ms(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Index of the worker.
    #[inline]
    pub(crate) fn core(&self) -> usize {
        self.config.core
    }

    /// See [`WorkerConfig::alone`].
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.config.alone
    }

    #[inline]
    pub(crate) fn engine(&self) -> Engine {
        self.config.engine
    }

    /// Resets the flags for a batch of `packets` packets.
    pub(crate) fn start_batch(&mut self, packets: usize) {
        self.keep.clear();
        self.keep.resize(packets, true);
        self.all_kept = true;
    }

    /// Adds flags for packets that were appended to the batch, which now has `packets`.
    pub(crate) fn extend_batch(&mut self, packets: usize) {
        self.keep.resize(packets, true);
    }

    /// Returns whether packet `i` of the current batch is kept.
    #[inline]
    pub(crate) fn is_kept(&self, i: usize) -> bool {
        self.keep[i]
    }

    /// Number of packets for which there is room without an allocation.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.keep.capacity()
    }

    /// Removes the dropped and held packets from `batch`, the current one.
    #[inline]
    pub(crate) fn retain_kept(&self, batch: &mut Batch) {
        if !self.all_kept {
            batch.retain(|i, _| self.keep[i]);
        }
    }

    /// Marks packet `i` of the current batch for removal.
    #[cold]
    pub(crate) fn refuse(&mut self, i: usize) {
        self.keep[i] = false;
        self.all_kept = false;
    }

    /// Marks packets of the current batch for removal.
    #[inline]
    pub(crate) fn refuse_all(&mut self, range: Range<usize>) {
        self.keep[range].fill(false);
        self.all_kept = false;
    }

    /// Returns whether a packet of `range` of the current batch is kept.
    #[inline]
    pub(crate) fn keeps_any(&self, range: Range<usize>) -> bool {
        self.keep[range].contains(&true)
    }

    /// Counts a dropped packet, in total and for its SA.
    pub(crate) fn count_drop(&mut self, why: DropReason, sa: Option<&SaCommon>) {
        bump(&self.counters.drops[why as usize], 1);
        if let Some(sa) = sa {
            sa.counters.count_drop(why);
        }
    }

    /// Reports an auditable event to the control side. If the ring is full, the record is lost and
    /// counted: the packet path must never wait for the log.
    pub(crate) fn report(&mut self, drop: DropReason, subject: Subject, ip: Option<&IpPacket>) {
        if !drop.is_auditable() {
            return;
        }
        let Subject { outbound, spi, session, seq } = subject;
        let (src, dst) = (ip.map(|ip| ip.src), ip.map(|ip| ip.dst));
        let record = Audit { at_ms: self.now_ms, drop, outbound, spi, session, seq, src, dst };
        if self.audit.push(record).is_err() {
            bump(&self.counters.audit_lost, 1);
        }
    }
}
