//! Counters of a core, and audit records.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use ipsec::Drop;

use crate::cache::Asked;

/// Counters of one core: written by its worker with plain loads and stores, read by anybody.
#[repr(align(128))]
pub struct CoreCounters {
    /// Clear packets and bytes taken in from the inner side.
    pub inner_rx: Pair,
    /// Packets and bytes delivered to the inner side.
    pub inner_tx: Pair,
    /// Packets and bytes received from the outer side.
    pub outer_rx: Pair,
    /// Packets and bytes sent to the outer side.
    pub outer_tx: Pair,
    /// Packets passed in clear text by a policy.
    pub bypassed: AtomicU64,
    /// Packets that went no further, by reason.
    pub drops: [AtomicU64; Drop::COUNT],
    /// Audit records that found the ring full.
    pub audit_lost: AtomicU64,
    /// Batches taken through the path.
    pub batches: AtomicU64,
    /// PSP packets with a sampling request of the sender.
    pub sampled: AtomicU64,
    /// Packets from the outer side that arrived at a core which does not own their SA, and were handed over.
    pub wrong_core: AtomicU64,
    /// Pieces of work that were left because others had to come first (pipeline).
    pub blocked: AtomicU64,
    /// Times that the input had to wait: all places for work were taken (pipeline), or the ring to the owner of an SA was
    /// full (run to completion).
    pub input_waits: AtomicU64,
    /// Main-loop iterations, at least 10 per second; a constant value means that the worker hangs.
    pub turns: AtomicU64,
    /// Policy decisions of recent flows, outbound and inbound.
    pub flows: [LookUps; 2],
    /// Inbound SAs.
    pub sad: LookUps,
}

/// Look-ups in a table. Packets that reuse the result of the previous packet are not counted.
#[derive(Default)]
pub struct LookUps {
    /// Answered.
    pub hits: AtomicU64,
    /// Misses: the next table was used, or there was no entry.
    pub misses: AtomicU64,
    /// Of the misses, those where another flow had the place.
    pub collisions: AtomicU64,
}

impl LookUps {
    /// Returns the counters.
    pub(crate) fn set(&self, asked: Asked) {
        for (counter, value) in
            [(&self.hits, asked.hits), (&self.misses, asked.misses), (&self.collisions, asked.collisions)]
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
pub struct Pair {
    /// Packets.
    pub packets: AtomicU64,
    /// Bytes.
    pub bytes: AtomicU64,
}

impl Default for CoreCounters {
    fn default() -> Self {
        Self {
            inner_rx: Pair::default(),
            inner_tx: Pair::default(),
            outer_rx: Pair::default(),
            outer_tx: Pair::default(),
            bypassed: AtomicU64::new(0),
            drops: [const { AtomicU64::new(0) }; Drop::COUNT],
            audit_lost: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            sampled: AtomicU64::new(0),
            wrong_core: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
            input_waits: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            flows: Default::default(),
            sad: LookUps::default(),
        }
    }
}

/// Adds to a counter that has one writer: no locked instruction.
pub fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl Pair {
    /// Adds to both; they have one writer.
    pub fn bump(&self, packets: u64, bytes: u64) {
        bump(&self.packets, packets);
        bump(&self.bytes, bytes);
    }

    fn read(&self) -> (u64, u64) {
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
    /// By [`Drop`].
    pub drops: [u64; Drop::COUNT],
    pub audit_lost: u64,
    pub batches: u64,
    pub sampled: u64,
    pub wrong_core: u64,
    pub blocked: u64,
    pub input_waits: u64,
    /// Policy decisions of recent flows, outbound and inbound, then inbound SAs: hits, misses, collisions.
    pub look_ups: [[u64; 3]; 3],
}

impl Totals {
    /// The sum over cores.
    pub fn of<'a>(cores: impl IntoIterator<Item = &'a CoreCounters>) -> Self {
        let mut sum = Self {
            inner_rx: (0, 0),
            inner_tx: (0, 0),
            outer_rx: (0, 0),
            outer_tx: (0, 0),
            bypassed: 0,
            drops: [0; Drop::COUNT],
            audit_lost: 0,
            batches: 0,
            sampled: 0,
            wrong_core: 0,
            blocked: 0,
            input_waits: 0,
            look_ups: [[0; 3]; 3],
        };
        let add = |to: &mut (u64, u64), from: &Pair| {
            let (packets, bytes) = from.read();
            *to = (to.0 + packets, to.1 + bytes);
        };
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

/// An auditable event (RFC 4303 §3.4, RFC 4301 §4.4; EESP §7): what an administrator may want in
/// the log. Sent to the control side through a bounded ring; it writes, rate-limited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Audit {
    /// Milliseconds of the worker's monotonic clock.
    pub at_ms: u64,
    /// Reason.
    pub drop: Drop,
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
