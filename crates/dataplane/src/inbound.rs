//! Inbound path: from protected to plaintext packets.
//!
//! Two halves, so that one SA can use several cores: [`Worker::open_chunk`] finds the SA of each
//! packet, checks what is cheap and has the engine verify and decrypt, and changes nothing that
//! packets share; [`Worker::admit_chunk`] moves the replay window, strips headers and checks the
//! policy, in order. It requires the engine's proof of the ICV, because a forged packet must not
//! advance the window (RFC 4303 §3.4.3). [`Worker::inbound`] runs both on one core, chunk by chunk:
//! a chunk is small enough to stay in the L1 cache between them. In the pipeline [`Worker::open`]
//! is for any core, and [`Worker::admit`] for one core at a time for each SA.

mod admit;
mod find;
mod open;

use ipsec::{DropReason, InboundSa};
use wire::IpPacket;

use crate::counters::bump;
use crate::outbound::CHUNK;
use crate::worker::Subject;
use crate::{Batch, Packet, Snapshot, Worker};
use admit::AdmitRun;
use open::OpenRun;
pub(crate) use open::Opened;

/// A packet that was dropped and counted, or that waits for further fragments.
struct Refused;

impl Worker {
    /// Takes packets from the outer side. Afterwards `batch` holds what is to be delivered on the
    /// inner side, in order. Everything else was dropped and counted.
    pub fn inbound(&mut self, tables: &Snapshot, batch: &mut Batch) {
        self.counters.outer_rx.bump(batch.len() as u64, batch.bytes());
        self.begin_inbound(tables, batch);
        let mut opened = std::mem::take(&mut self.opened);
        let (mut open, mut admit) = (OpenRun::new(), AdmitRun::new(tables, self.config.core));
        let (mut rest, mut first) = (batch.packets_mut(), 0);
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at_mut(rest.len().min(CHUNK));
            opened.clear();
            self.open_chunk(tables, first, (&mut *chunk, behind), &mut open, &mut opened);
            self.admit_chunk(tables, first, chunk, &mut opened.iter(), &mut admit);
            (rest, first) = (behind, first + CHUNK);
        }
        self.opened = opened;
        admit.end();
        self.retain_kept(batch);
        self.counters.inner_tx.bump(batch.len() as u64, batch.bytes());
        bump(&self.counters.batches, 1);
        self.publish_lookups();
    }

    /// The first half of [`Worker::inbound`]. Packets with a result in `opened`, and those that a
    /// policy passes in clear text, remain in `batch`.
    pub(crate) fn open(&mut self, tables: &Snapshot, batch: &mut Batch, opened: &mut Opened) {
        self.begin_inbound(tables, batch);
        opened.clear();
        let mut run = OpenRun::new();
        let (mut rest, mut first) = (batch.packets_mut(), 0);
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at_mut(rest.len().min(CHUNK));
            self.open_chunk(tables, first, (chunk, behind), &mut run, opened);
            (rest, first) = (behind, first + CHUNK);
        }
        opened.retain_kept();
        self.retain_kept(batch);
        bump(&self.counters.batches, 1);
    }

    /// The second half of [`Worker::inbound`], for packets that any worker opened. Windows are
    /// checked again with the proof, because other batches of the SA may have moved them. Afterwards
    /// `batch` holds what is to be delivered, in order.
    pub(crate) fn admit(&mut self, tables: &Snapshot, batch: &mut Batch, opened: &mut Opened) {
        self.start_batch(batch.len());
        self.inbound_flows.renew(tables.generation);
        let (mut run, mut opened, mut first) = (AdmitRun::new(tables, self.config.core), opened.iter(), 0);
        for chunk in batch.packets_mut().chunks_mut(CHUNK) {
            self.admit_chunk(tables, first, chunk, &mut opened, &mut run);
            first += CHUNK;
        }
        run.end();
        self.retain_kept(batch);
        self.publish_lookups();
        self.counters.inner_tx.bump(batch.len() as u64, batch.bytes());
    }

    fn begin_inbound(&mut self, tables: &Snapshot, batch: &Batch) {
        self.start_batch(batch.len());
        // Keys derived for a batch must stay cached until the engine has used them. This call makes
        // those of the previous batch evictable.
        self.derived.begin_batch();
        self.age(tables);
        self.inbound_flows.renew(tables.generation);
        // Only for the first chunk; the others are prefetched while the one before is processed.
        batch.packets().iter().take(CHUNK).for_each(Packet::prefetch_head);
    }

    /// Expires learned path MTUs and incomplete fragments, once a second.
    pub(crate) fn age(&mut self, tables: &Snapshot) {
        if self.now_ms < self.next_age_ms {
            return;
        }
        self.next_age_ms = self.now_ms + 1000;
        self.path_mtus.expire(self.now_ms, tables);
        self.reassembler.expire(self.now_ms);
        let lost = self.reassembler.drops();
        // The reassembler reports totals; the counters get the difference.
        let before = std::mem::replace(&mut self.fragments_lost, lost);
        let drops = &self.counters.drops;
        bump(&drops[DropReason::ReassemblyTimeout as usize], lost.timed_out - before.timed_out);
        bump(&drops[DropReason::ReassemblyFull as usize], lost.evicted - before.evicted);
    }

    #[cold]
    fn gone_inbound(
        &mut self,
        sa: Option<&InboundSa>,
        why: DropReason,
        spi: Option<u32>,
        ip: Option<&IpPacket>,
    ) -> Refused {
        self.count_drop(why, sa.map(|sa| &sa.common));
        self.report(why, Subject { spi: spi.unwrap_or(0), ..Subject::default() }, ip);
        Refused
    }
}
