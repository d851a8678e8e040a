//! Inner packets of AGGFRAG payloads (RFC 9347), after the replay check of the outer packets.
//!
//! The second half of the inbound path moves each payload out of its batch into the receiver of its
//! stream; an empty buffer takes its index. Afterwards inner packets are appended to the batch, as
//! many as have room, each after the policy check of any other packet. The last one of a payload
//! stays in its buffer, others are copied. The streams belong to the worker that owns their SA.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use ipsec::aggfrag::{Buffers, DEADLINES, Inner, Receiver, Taken};
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
    /// Times in ms at which the stream is in [`Waiting`], one for each of the deadlines of its
    /// receiver; `u64::MAX` if it is not.
    waits_until_ms: [u64; DEADLINES],
    /// Counted among the waiting streams.
    waits: bool,
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

    /// Enters the stream of `key` into `waiting` if it waits for missing packets, with times from
    /// `least_ms` on.
    fn wait(&mut self, key: Key, least_ms: u64, waiting: &mut Waiting) {
        let deadlines = self.receiver.deadlines_ms();
        waiting.streams -= usize::from(self.waits);
        self.waits = deadlines.iter().any(Option::is_some);
        waiting.streams += usize::from(self.waits);
        for (which, deadline_ms) in deadlines.into_iter().enumerate() {
            let at_ms = deadline_ms.map_or(u64::MAX, |deadline| deadline.max(least_ms));
            if at_ms < self.waits_until_ms[which] {
                waiting.by_time.push(Reverse((at_ms, key, which)));
                self.waits_until_ms[which] = at_ms;
            }
        }
    }
}

/// Streams that wait for missing packets.
#[derive(Default)]
struct Waiting {
    /// By the time in ms at which they may give them up, with the number of the deadline. One entry
    /// for each deadline of a stream counts, at that time or before; others, and the entry of what
    /// no longer waits, are removed at their time.
    by_time: BinaryHeap<Reverse<(u64, Key, usize)>>,
    /// Number of streams that wait.
    streams: usize,
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
    streams: HashMap<Key, Stream, RandomState>,
    /// Streams that have results, in order.
    ready: VecDeque<Key>,
    buffers: Buffers,
    /// Empty buffers in exchange for payloads.
    spare: Vec<Packet>,
    /// Buffers that were allocated for payloads; at most twice a batch.
    allocated: usize,
    waiting: Waiting,
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
        let entries = DEADLINES * (self.streams.len() + 1);
        let stream = self.streams.entry(key).or_insert_with(|| {
            // All that its streams need, so that later packets allocate nothing.
            self.waiting.by_time.reserve(entries.saturating_sub(self.waiting.by_time.len()));
            Stream {
                lanes: Arc::clone(&from.sa.lanes),
                lane: from.lane,
                slot: from.slot,
                generation: tables.generation,
                receiver: Receiver::new(settings),
                queued: false,
                waits_until_ms: [u64::MAX; DEADLINES],
                waits: false,
            }
        });
        (stream.slot, stream.generation) = (from.slot, tables.generation);
        self.spare.extend(stream.receiver.push(now_ms, from.seq.0, payload));
        // One batch of buffers is for payloads in order: those that wait for missing ones must not
        // keep out the packets of other SAs.
        if limit - self.allocated + self.spare.len() < config.batch {
            stream.receiver.give_up_missing();
        }
        stream.wait(key, 0, &mut self.waiting);
        if stream.receiver.is_ready() && !std::mem::replace(&mut stream.queued, true) {
            self.ready.push_back(key);
        }
        Ok(())
    }

    /// Gives up packets that are missing for too long.
    fn expire(&mut self, now_ms: u64) {
        while let Some(&Reverse((due_ms, key, which))) = self.waiting.by_time.peek()
            && due_ms <= now_ms
        {
            self.waiting.by_time.pop();
            let Some(stream) = self.streams.get_mut(&key) else { continue };
            // An earlier time was entered after this one, and its entry is the one that counts.
            if stream.waits_until_ms[which] != due_ms {
                continue;
            }
            stream.waits_until_ms[which] = u64::MAX;
            if stream.receiver.expire(now_ms, &mut self.buffers) && !std::mem::replace(&mut stream.queued, true) {
                self.ready.push_back(key);
            }
            // A complete packet that has not left its buffer yet is still due, and must not be
            // taken again at this time.
            stream.wait(key, now_ms + 1, &mut self.waiting);
        }
    }

    /// Ends streams of SAs that are in no tables any more. Returns the number of payloads that are
    /// dropped with them.
    pub(super) fn end_streams(&mut self) -> usize {
        let Self { streams, ready, buffers, spare, waiting, .. } = self;
        let mut dropped = 0;
        streams.retain(|key, stream| {
            let used = Arc::strong_count(&stream.lanes) > 1;
            if !used {
                dropped += stream.receiver.payloads();
                stream.receiver.clear(buffers, &mut |payload| spare.push(payload));
                ready.retain(|ready| ready != key);
                waiting.streams -= usize::from(stream.waits);
            }
            used
        });
        waiting.by_time.retain(|Reverse((_, key, _))| streams.contains_key(key));
        dropped
    }

    /// True if inner packets remain, or a stream waits for missing packets: no descriptor becomes
    /// readable when they are due.
    pub(crate) fn awaits_time(&self) -> bool {
        self.waiting.streams > 0 || !self.ready.is_empty()
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
        let Aggregates { streams, ready, buffers, spare, waiting, .. } = aggregates;
        while let Some((key, stream)) = ready.front().and_then(|key| Some((*key, streams.get_mut(key)?))) {
            let (slot, lane) = (stream.slot(tables), stream.lane);
            let sa = tables.sad.get(slot).map(|sa| &**sa);
            let mut last = (PlainFlow::NONE, Ok(()));
            loop {
                if batch.room() == 0 {
                    return true;
                }
                // Most packets of a payload, in a loop without the cases of the others.
                stream.receiver.take_whole(|packet| {
                    let room = batch.room() > 0;
                    if room && let Err(why) = self.append_inner((slot, sa), packet, &mut last, batch) {
                        self.drop_inner(sa, lane, why);
                    }
                    room
                });
                if batch.room() == 0 {
                    return true;
                }
                let Some(taken) = stream.receiver.take(buffers, &mut |payload| spare.push(payload)) else {
                    break;
                };
                let admitted = match (taken, sa) {
                    (Taken::Inner(Inner::Packet(packet)), _) => self.append_inner((slot, sa), packet, &mut last, batch),
                    (Taken::Last(mut packet, range), Some(_)) => {
                        packet.cut(range);
                        let verdict = self.check_inner(slot, packet.bytes(), &mut last);
                        // The batch has room, and as many empty buffers.
                        spare.extend(if verdict.is_ok() { batch.exchange(packet) } else { Some(packet) });
                        verdict
                    }
                    (Taken::Last(packet, _), None) => {
                        spare.push(packet);
                        Err(DropReason::NoSa)
                    }
                    (Taken::Inner(Inner::Dropped(why)), _) => Err(why),
                };
                if let Err(why) = admitted {
                    self.drop_inner(sa, lane, why);
                }
            }
            // A payload may have left pieces that wait for missing ones.
            stream.wait(key, 0, waiting);
            stream.queued = false;
            ready.pop_front();
        }
        false
    }

    /// Appends a copy of an inner packet to `batch`, which has room, unless the policy refuses it.
    #[inline]
    fn append_inner(
        &mut self,
        (slot, sa): (u32, Option<&InboundSa>),
        packet: &[u8],
        last: &mut (PlainFlow, Result<(), DropReason>),
        batch: &mut Batch,
    ) -> Result<(), DropReason> {
        if sa.is_none() {
            return Err(DropReason::NoSa);
        }
        self.check_inner(slot, packet, last)?;
        let appended = batch.push_with(|to| to.set_short(packet));
        appended.then_some(()).ok_or(DropReason::NoRoom)
    }

    /// Counts an inner packet of `sa` that is dropped.
    #[cold]
    fn drop_inner(&mut self, sa: Option<&InboundSa>, lane: u16, why: DropReason) {
        self.shared.count_drop(why, sa.map(|sa| &sa.common));
        let spi = sa.map_or(0, |sa| sa.spi);
        self.shared.report(why, Subject { outbound: false, spi, session: lane, seq: 0 }, None);
    }

    /// Returns the verdict of the policy for an inner packet of the SA in `slot`. Another packet of
    /// the `last` flow has the same.
    #[inline]
    fn check_inner(
        &mut self,
        slot: u32,
        packet: &[u8],
        last: &mut (PlainFlow, Result<(), DropReason>),
    ) -> Result<(), DropReason> {
        if last.0.next(packet).is_some() {
            return last.1;
        }
        let flow = PlainFlow::of(packet).unwrap_or(PlainFlow::NONE);
        if flow == PlainFlow::NONE || flow != last.0 {
            let located = if flow == PlainFlow::NONE { Located::NONE } else { self.own.flows.locate(flow) };
            *last = (flow, self.verdict(slot, located, packet));
        }
        last.1
    }
}

impl Inbound {
    /// See [`Aggregates::awaits_time`].
    pub(crate) fn awaits_time(&self) -> bool {
        self.aggregates.awaits_time()
    }
}

#[cfg(test)]
mod tests {
    use ipsec::aggfrag::Settings;

    use super::*;

    fn stream() -> Stream {
        Stream {
            lanes: Arc::new([]),
            lane: 0,
            slot: 0,
            generation: 0,
            receiver: Receiver::new(Settings { reorder_window: 32, ..Settings::default() }),
            queued: false,
            waits_until_ms: [u64::MAX; DEADLINES],
            waits: false,
        }
    }

    #[test]
    fn streams_give_up_in_the_order_of_their_deadlines_and_wait_once() {
        let mut all = Aggregates::default();
        for (n, arrived_ms) in [7, 3, 5, 11].into_iter().enumerate() {
            let (key, mut stream) = ((n, 0), stream());
            // Packet 1 is missing, and each of the others enters nothing again.
            for seq in 2..20 {
                assert!(stream.receiver.push(arrived_ms, seq, Packet::new(64)).is_none());
                stream.wait(key, 0, &mut all.waiting);
            }
            all.streams.insert(key, stream);
        }
        assert_eq!((all.waiting.by_time.len(), all.waiting.streams), (4, 4));
        let mut order = Vec::new();
        for now_ms in 0..100 {
            all.expire(now_ms);
            order.extend(all.ready.drain(..).map(|(n, _)| (now_ms, n)));
        }
        assert_eq!(order, [(28, 1), (30, 2), (32, 0), (36, 3)]);
        assert!(all.waiting.by_time.is_empty() && !all.awaits_time());
    }
}
