//! Counters of a core, and audit records.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use ipsec::DropReason;

use crate::cache::LookupStats;

/// Counters of one core: written by its worker with plain loads and stores, read by any thread.
// 128 bytes, not 64: prefetchers fetch pairs of lines, so that two cores would still share.
#[repr(align(128))]
pub struct CoreCounters {
    /// Plaintext packets and bytes received from the inner side.
    pub inner_rx: TrafficCounter,
    /// Packets and bytes delivered to the inner side.
    pub inner_tx: TrafficCounter,
    /// Packets and bytes received from the outer side.
    pub outer_rx: TrafficCounter,
    /// Packets and bytes sent to the outer side.
    pub outer_tx: TrafficCounter,
    /// Packets passed in clear text by a policy.
    pub bypassed: AtomicU64,
    /// Dropped packets by reason.
    pub drops: [AtomicU64; DropReason::COUNT],
    /// Audit records lost because the ring was full.
    pub audit_lost: AtomicU64,
    /// Processed batches.
    pub batches: AtomicU64,
    /// PSP packets whose sender requested sampling.
    pub sampled: AtomicU64,
    /// Packets from the outer side that arrived at a core that does not own their SA and were
    /// handed over.
    pub wrong_core: AtomicU64,
    /// Work items that were deferred because earlier ones must come first (pipeline).
    pub blocked: AtomicU64,
    /// Times that input was deferred: no free slot (pipeline, async), or the ring to the owner of
    /// an SA was full (run to completion, async).
    pub input_waits: AtomicU64,
    /// Packets that an asynchronous engine was given.
    pub offloaded: AtomicU64,
    /// Asynchronous engines that failed: the worker runs its synchronous engine since then.
    pub engines_gone: AtomicU64,
    /// Outer packets of SAs with a constant rate, those of them that are padding alone, and those
    /// that were sent after the next burst was due.
    pub paced: AtomicU64,
    #[allow(missing_docs)]
    pub paced_padding: AtomicU64,
    #[allow(missing_docs)]
    pub paced_late: AtomicU64,
    /// Main-loop iterations, at least 10 per second; a constant value means that the worker hangs.
    pub turns: AtomicU64,
    /// Policy decisions of recent flows, outbound and inbound.
    pub flows: [LookupCounters; 2],
    /// Inbound SAs.
    pub sad: LookupCounters,
}

/// Look-ups in a table. Packets that reuse the result of the previous packet are not counted.
#[derive(Default)]
pub struct LookupCounters {
    /// Hits.
    pub hits: AtomicU64,
    /// Misses: the next table was used, or there was no entry.
    pub misses: AtomicU64,
    /// Misses whose entry belonged to another flow.
    pub collisions: AtomicU64,
}

impl LookupCounters {
    /// Sets the counters.
    pub(crate) fn set(&self, stats: LookupStats) {
        for (counter, value) in
            [(&self.hits, stats.hits), (&self.misses, stats.misses), (&self.collisions, stats.collisions)]
        {
            counter.store(value, Ordering::Relaxed);
        }
    }

    fn read(&self) -> [u64; 3] {
        [&self.hits, &self.misses, &self.collisions].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// Packets and bytes.
#[derive(Default)]
pub struct TrafficCounter {
    /// Packets.
    pub packets: AtomicU64,
    /// Bytes.
    pub bytes: AtomicU64,
}

impl Default for CoreCounters {
    fn default() -> Self {
        Self {
            inner_rx: TrafficCounter::default(),
            inner_tx: TrafficCounter::default(),
            outer_rx: TrafficCounter::default(),
            outer_tx: TrafficCounter::default(),
            bypassed: AtomicU64::new(0),
            drops: [const { AtomicU64::new(0) }; DropReason::COUNT],
            audit_lost: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            sampled: AtomicU64::new(0),
            wrong_core: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
            input_waits: AtomicU64::new(0),
            offloaded: AtomicU64::new(0),
            engines_gone: AtomicU64::new(0),
            paced: AtomicU64::new(0),
            paced_padding: AtomicU64::new(0),
            paced_late: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            flows: Default::default(),
            sad: LookupCounters::default(),
        }
    }
}

/// Adds to a counter without a locked instruction. The counter must have a single writer; otherwise
/// updates are lost.
pub fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl TrafficCounter {
    /// Adds to both counters, which must have a single writer.
    pub fn bump(&self, packets: u64, bytes: u64) {
        bump(&self.packets, packets);
        bump(&self.bytes, bytes);
    }

    fn read(&self) -> (u64, u64) {
        // Two loads: a reader may see the packets of a batch without their bytes.
        (self.packets.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// Counters of all cores added up, as plain numbers; pairs are (packets, bytes).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs)]
pub struct Totals {
    pub inner_rx: (u64, u64),
    pub inner_tx: (u64, u64),
    pub outer_rx: (u64, u64),
    pub outer_tx: (u64, u64),
    pub bypassed: u64,
    /// By [`DropReason`].
    pub drops: [u64; DropReason::COUNT],
    pub audit_lost: u64,
    pub batches: u64,
    pub sampled: u64,
    pub wrong_core: u64,
    pub blocked: u64,
    pub input_waits: u64,
    pub offloaded: u64,
    pub engines_gone: u64,
    pub paced: u64,
    pub paced_padding: u64,
    pub paced_late: u64,
    /// Policy decisions of recent flows, outbound and inbound, then inbound SAs: hits, misses,
    /// collisions.
    pub look_ups: [[u64; 3]; 3],
}

impl Totals {
    /// Returns the sum over all cores.
    pub fn of<'a>(cores: impl IntoIterator<Item = &'a CoreCounters>) -> Self {
        let mut sum = Self {
            inner_rx: (0, 0),
            inner_tx: (0, 0),
            outer_rx: (0, 0),
            outer_tx: (0, 0),
            bypassed: 0,
            drops: [0; DropReason::COUNT],
            audit_lost: 0,
            batches: 0,
            sampled: 0,
            wrong_core: 0,
            blocked: 0,
            input_waits: 0,
            offloaded: 0,
            engines_gone: 0,
            paced: 0,
            paced_padding: 0,
            paced_late: 0,
            look_ups: [[0; 3]; 3],
        };
        let add = |to: &mut (u64, u64), from: &TrafficCounter| {
            let (packets, bytes) = from.read();
            *to = (to.0 + packets, to.1 + bytes);
        };
        // `turns` is not summed: a sum would hide a worker that hangs.
        for core in cores {
            add(&mut sum.inner_rx, &core.inner_rx);
            add(&mut sum.inner_tx, &core.inner_tx);
            add(&mut sum.outer_rx, &core.outer_rx);
            add(&mut sum.outer_tx, &core.outer_tx);
            sum.bypassed += core.bypassed.load(Ordering::Relaxed);
            sum.audit_lost += core.audit_lost.load(Ordering::Relaxed);
            sum.batches += core.batches.load(Ordering::Relaxed);
            sum.sampled += core.sampled.load(Ordering::Relaxed);
            sum.wrong_core += core.wrong_core.load(Ordering::Relaxed);
            sum.blocked += core.blocked.load(Ordering::Relaxed);
            sum.input_waits += core.input_waits.load(Ordering::Relaxed);
            sum.offloaded += core.offloaded.load(Ordering::Relaxed);
            sum.engines_gone += core.engines_gone.load(Ordering::Relaxed);
            sum.paced += core.paced.load(Ordering::Relaxed);
            sum.paced_padding += core.paced_padding.load(Ordering::Relaxed);
            sum.paced_late += core.paced_late.load(Ordering::Relaxed);
            for (to, from) in sum.look_ups.iter_mut().zip([&core.flows[0], &core.flows[1], &core.sad]) {
                to.iter_mut().zip(from.read()).for_each(|(to, from)| *to += from);
            }
            for (to, from) in sum.drops.iter_mut().zip(&core.drops) {
                *to += from.load(Ordering::Relaxed);
            }
        }
        sum
    }
}

/// An auditable event (RFC 4303 §3.4, RFC 4301 §4.4; EESP §7): an event that should appear in the
/// log. The record goes through a bounded ring to the control side, which logs it with a rate
/// limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Audit {
    /// Milliseconds of the worker's monotonic clock.
    pub at_ms: u64,
    /// Reason.
    pub drop: DropReason,
    /// True for an outbound packet.
    pub outbound: bool,
    /// SPI, 0 when there is none.
    pub spi: u32,
    /// Session ID (EESP), 0 otherwise.
    pub session: u16,
    /// Low half of the sequence number as received, 0 when there is none.
    pub seq: u32,
    /// Source address of the packet.
    pub src: Option<IpAddr>,
    /// Destination address.
    pub dst: Option<IpAddr>,
}
