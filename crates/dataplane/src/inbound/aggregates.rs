//! Inner packets of AGGFRAG payloads (RFC 9347), after the replay check of the outer packets.
//!
//! The second half of the inbound path moves each payload out of its batch into the receiver of its
//! stream; an empty buffer takes its index. Afterwards inner packets are appended to the batch, as
//! many as have room, each after the policy check of any other packet. The streams belong to the
//! worker that owns their SA.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ipsec::aggfrag::{Buffers, Inner, Receiver};
use ipsec::{DropReason, InLane, InboundSa};
use wire::{PlainFlow, SeqNo};

use super::find::Arrived;
use super::{Inbound, InboundPath};
use crate::cache::Located;
use crate::shared::Subject;
use crate::{Batch, Packet, Snapshot, WorkerConfig};

/// Buffers that are allocated at a time.
const SPARE_STEP: usize = 16;

/// Identity of a stream: the lanes that an SA shares with its copies of other addresses, and the
/// lane.
type Key = (usize, u16);

struct Stream {
    /// Keeps the address of the key in use.
    lanes: Arc<[InLane]>,
    lane: u16,
    /// Slot of the SA in the tables of `generation`.
    slot: u32,
    generation: u64,
    receiver: Receiver<Packet>,
    /// In the queue of streams that have results.
    queued: bool,
}

impl Stream {
    /// Slot of the SA in `tables`.
    fn slot(&mut self, tables: &Snapshot) -> u32 {
        if self.generation != tables.generation {
            let own = tables.sad.iter().position(|sa| Arc::ptr_eq(&sa.lanes, &self.lanes));
            (self.slot, self.generation) = (own.map_or(Arrived::GONE, |slot| slot as u32), tables.generation);
        }
        self.slot
    }
}

/// An outer packet.
#[derive(Clone, Copy)]
pub(super) struct Aggregate<'t> {
    pub(super) sa: &'t InboundSa,
    pub(super) slot: u32,
    pub(super) lane: u16,
    pub(super) seq: SeqNo,
}

/// Streams of a worker.
#[derive(Default)]
pub(crate) struct Aggregates {
    streams: HashMap<Key, Stream>,
    /// Streams that have results, in order.
    ready: VecDeque<Key>,
    buffers: Buffers,
    /// Empty buffers in exchange for payloads.
    spare: Vec<Packet>,
    /// Buffers that were allocated for payloads; at most twice a batch.
    allocated: usize,
    /// Earliest time at which a stream gives up missing packets, in ms.
    deadline_ms: Option<u64>,
}

impl Aggregates {
    fn enqueue(
        &mut self,
        (now_ms, tables): (u64, &Snapshot),
        config: &WorkerConfig,
        from: Aggregate<'_>,
        packet: &mut Packet,
    ) -> Result<(), DropReason> {
        let Some(&settings) = from.sa.common.aggfrag() else { return Err(DropReason::Inconsistent) };
        let limit = 2 * config.batch;
        if self.spare.is_empty() {
            let more = SPARE_STEP.min(limit - self.allocated);
            self.spare.extend((0..more).map(|_| Packet::new(config.packet_bytes)));
            self.allocated += more;
        }
        let Some(mut payload) = self.spare.pop() else { return Err(DropReason::QueueFull) };
        std::mem::swap(packet, &mut payload);
        let key = (from.sa.lanes.as_ptr().addr(), from.lane);
        let stream = self.streams.entry(key).or_insert_with(|| Stream {
            lanes: Arc::clone(&from.sa.lanes),
            lane: from.lane,
            slot: from.slot,
            generation: tables.generation,
            receiver: Receiver::new(settings),
            queued: false,
        });
        (stream.slot, stream.generation) = (from.slot, tables.generation);
        self.spare.extend(stream.receiver.push(now_ms, from.seq.0, payload));
        // One batch of buffers is for payloads in order: those that wait for missing ones must not
        // keep out the packets of other SAs.
        if limit - self.allocated + self.spare.len() < config.batch {
            stream.receiver.give_up_missing();
        }
        if let Some(deadline) = stream.receiver.deadline_ms() {
            self.deadline_ms = Some(self.deadline_ms.map_or(deadline, |earliest| earliest.min(deadline)));
        }
        if stream.receiver.is_ready() && !std::mem::replace(&mut stream.queued, true) {
            self.ready.push_back(key);
        }
        Ok(())
    }

    /// Gives up packets that are missing for too long.
    fn expire(&mut self, now_ms: u64) {
        if self.deadline_ms.is_none_or(|deadline| now_ms < deadline) {
            return;
        }
        self.deadline_ms = None;
        for (key, stream) in &mut self.streams {
            if stream.receiver.expire(now_ms, &mut self.buffers) && !std::mem::replace(&mut stream.queued, true) {
                self.ready.push_back(*key);
            }
            let earliest = self.deadline_ms.into_iter().chain(stream.receiver.deadline_ms()).min();
            self.deadline_ms = earliest;
        }
    }

    /// Ends streams of SAs that are in no tables any more. Returns the number of payloads that are
    /// dropped with them.
    pub(super) fn end_streams(&mut self) -> usize {
        let (buffers, spare, ready) = (&mut self.buffers, &mut self.spare, &mut self.ready);
        let mut dropped = 0;
        self.streams.retain(|key, stream| {
            let used = Arc::strong_count(&stream.lanes) > 1;
            if !used {
                dropped += stream.receiver.payloads();
                stream.receiver.clear(buffers, &mut |payload| spare.push(payload));
                ready.retain(|ready| ready != key);
            }
            used
        });
        dropped
    }

    /// True if inner packets remain, or a stream waits for missing packets: no descriptor becomes
    /// readable when they are due.
    pub(crate) fn awaits_time(&self) -> bool {
        self.deadline_ms.is_some() || !self.ready.is_empty()
    }
}

impl InboundPath<'_, '_> {
    /// Moves the payload `packet` of an outer packet to its stream. Afterwards `packet` is an empty
    /// buffer.
    pub(super) fn enqueue(&mut self, from: Aggregate<'_>, packet: &mut Packet) -> Result<(), DropReason> {
        let now = (self.shared.now_ms(), self.tables);
        self.own.aggregates.enqueue(now, self.shared.config(), from, packet)
    }

    /// Appends inner packets of payloads to `batch`. Returns true if others remain.
    pub(crate) fn unpack(&mut self, batch: &mut Batch) -> bool {
        self.own.aggregates.expire(self.shared.now_ms());
        if self.own.aggregates.ready.is_empty() {
            return false;
        }
        let mut aggregates = std::mem::take(&mut self.own.aggregates);
        let before = (batch.len(), batch.bytes());
        let more = self.unpack_streams(&mut aggregates, batch);
        self.own.aggregates = aggregates;
        let (packets, bytes) = (batch.len() - before.0, batch.bytes() - before.1);
        self.shared.counters().inner_tx.bump(packets as u64, bytes);
        more
    }

    fn unpack_streams(&mut self, aggregates: &mut Aggregates, batch: &mut Batch) -> bool {
        let tables = self.tables;
        self.own.flows.renew(tables.generation);
        let Aggregates { streams, ready, buffers, spare, deadline_ms, .. } = aggregates;
        while let Some(stream) = ready.front().and_then(|key| streams.get_mut(key)) {
            let (slot, lane) = (stream.slot(tables), stream.lane);
            let sa = tables.sad.get(slot);
            let mut last = (PlainFlow::NONE, Ok(()));
            loop {
                if batch.room() == 0 {
                    return true;
                }
                let Some(inner) = stream.receiver.next(buffers, &mut |payload| spare.push(payload)) else { break };
                let admitted = match (inner, sa) {
                    (Inner::Packet(packet), Some(_)) => self.admit_inner(slot, packet, &mut last, batch),
                    (Inner::Packet(_), None) => Err(DropReason::NoSa),
                    (Inner::Dropped(why), _) => Err(why),
                };
                if let Err(why) = admitted {
                    self.shared.count_drop(why, sa.map(|sa| &sa.common));
                    let spi = sa.map_or(0, |sa| sa.spi);
                    self.shared.report(why, Subject { outbound: false, spi, session: lane, seq: 0 }, None);
                }
            }
            // A payload may have left pieces that wait for missing ones.
            *deadline_ms = deadline_ms.iter().copied().chain(stream.receiver.deadline_ms()).min();
            stream.queued = false;
            ready.pop_front();
        }
        false
    }

    /// Appends an inner packet of the SA in `slot` to `batch` if a policy allows it. Another packet
    /// of the `last` flow has the same verdict.
    #[inline]
    fn admit_inner(
        &mut self,
        slot: u32,
        packet: &[u8],
        last: &mut (PlainFlow, Result<(), DropReason>),
        batch: &mut Batch,
    ) -> Result<(), DropReason> {
        let flow = PlainFlow::of(packet).unwrap_or(PlainFlow::NONE);
        if flow == PlainFlow::NONE || flow != last.0 {
            let located = if flow == PlainFlow::NONE { Located::NONE } else { self.own.flows.locate(flow) };
            *last = (flow, self.verdict(slot, located, packet));
        }
        last.1?;
        if batch.push_with(|to| to.set(packet)) { Ok(()) } else { Err(DropReason::NoRoom) }
    }
}

impl Inbound {
    /// See [`Aggregates::awaits_time`].
    pub(crate) fn awaits_time(&self) -> bool {
        self.aggregates.awaits_time()
    }
}
