//! Second half of the inbound path: replay window, headers, and the policy of the inner packet.

use std::ops::Range;

use arrayvec::ArrayVec;
use crypto::IcvOk;
use ipsec::{Action, Delivered, DropReason, InboundSa, InnerLayout, PendingIn, finish_in};
use wire::ip::IPV4_HEADER;
use wire::{FlowKey, PlainFlow, SeqNo};

use super::find::Arrived;
use super::open::{OpenedIter, OpenedPacket, OpenedRun};
use super::{Aggregate, InboundPath, Refused};
use crate::cache::{FlowCache, Located};
use crate::counters::bump;
use crate::outbound::CHUNK_MAX;
use crate::shared::Subject;
use crate::{Packet, Snapshot};

/// State from one chunk of a batch to the next.
pub(super) struct AdmitRun<'t> {
    counting: InBurst<'t>,
    /// The flow of the last packet that was let in, and the slot of its SA: the next one may come
    /// in, too. The same flow through another SA must be checked again, because its policy may name
    /// another SA (RFC 4301 §5.2 step 4).
    flow: PlainFlow,
    slot: u32,
}

impl<'t> AdmitRun<'t> {
    pub(super) fn new(tables: &'t Snapshot, core: usize) -> Self {
        Self { counting: InBurst::new(tables, core), flow: PlainFlow::NONE, slot: Arrived::GONE }
    }

    /// Ends the batch.
    pub(super) fn end(&self) {
        self.counting.end();
    }
}

/// A packet of another flow than the one before. Its policy is still to be found.
#[derive(Clone, Copy)]
struct Undecided {
    /// Index within the chunk.
    i: u8,
    /// PSP requests sampling of the packet.
    sample: bool,
    lane: u16,
    slot: u32,
    seq: SeqNo,
    flow: PlainFlow,
    /// [`Located::NONE`] if the cache has no place for the flow, or if it is that of the entry
    /// before.
    located: Located,
}

/// Packets of a chunk; their policies are looked up together.
type UndecidedPackets = ArrayVec<Undecided, CHUNK_MAX>;

/// Packets of one SA that are in one chunk.
struct Share<'p> {
    sa: &'p InboundSa,
    run: &'p OpenedRun,
    opened: &'p mut [OpenedPacket],
    packets: &'p mut [Packet],
    /// Index of the first of them within the chunk.
    at: usize,
}

/// Flows of packets of one lane of an SA.
struct Flows<'f> {
    cache: &'f FlowCache,
    /// The flow that needs no look-up.
    known: PlainFlow,
    slot: u32,
    lane: u16,
    undecided: &'f mut UndecidedPackets,
}

impl Flows<'_> {
    /// Returns whether `packet`, the `i`-th of the chunk, is of the known flow. Otherwise its place
    /// in the flow cache is located, so that the cache lines of a chunk arrive at the same time.
    #[inline]
    fn add(&mut self, i: usize, seq: SeqNo, sample: bool, packet: &[u8]) -> bool {
        let flow = PlainFlow::of(packet).unwrap_or(PlainFlow::NONE);
        if flow == self.known && flow != PlainFlow::NONE {
            return true;
        }
        let (slot, lane) = (self.slot, self.lane);
        let again = self.undecided.last().is_some_and(|last| (last.flow, last.slot) == (flow, slot));
        let located = if again || flow == PlainFlow::NONE { Located::NONE } else { self.cache.locate(flow) };
        self.undecided.push(Undecided { i: i as u8, sample, lane, slot, seq, flow, located });
        false
    }
}

/// Packets that the fast path finished.
#[derive(Default)]
struct Finished {
    count: usize,
    /// Those of the known flow, and their bytes.
    known: usize,
    bytes: usize,
    /// Reason if the next one is to be dropped.
    refused: Option<DropReason>,
}

/// Finishes the first of `packets`, of an SA in tunnel mode, as far as they are of `flow`. The next
/// packet may be one for [`finish`]. `TRAILER` is [`InnerLayout::has_trailer`].
#[inline(never)] // all registers are for this loop
fn finish_known<const TRAILER: bool>(
    layout: &InnerLayout<'_>,
    flow: &PlainFlow,
    opened: &mut [OpenedPacket],
    packets: &mut [Packet],
) -> Finished {
    // Copies that no store to a packet can change.
    let (layout, flow) = (*layout, *flow);
    let (mut count, mut bytes, mut refused) = (0, 0, None);
    // Outside of the loop: in it, mode and format are constants.
    if layout.is_transport() || layout.has_trailer() != TRAILER {
        return Finished::default();
    }
    for (state, packet) in opened.iter_mut().zip(packets) {
        let own = &state.own();
        let Some(inner) = layout.inner_of(&flow, packet.bytes(), own) else { break };
        // Taken after the checks: a packet left to the slow path still needs its proof.
        let Some(ok) = state.proof.take() else { break };
        if let Err(why) = layout.admit(own, ok) {
            refused = Some(why);
            break;
        }
        bytes += inner.len();
        packet.cut(inner);
        count += 1;
    }
    Finished { count, known: count, bytes, refused }
}

/// Finishes the first of `packets`, which start at index `at` of the chunk, as far as the fast path
/// can.
#[inline(never)] // all registers are for this loop
fn finish<const TRANSPORT: bool>(
    layout: &InnerLayout<'_>,
    at: usize,
    opened: &mut [OpenedPacket],
    packets: &mut [Packet],
    flows: &mut Flows<'_>,
) -> Finished {
    let mut all = Finished::default();
    // A copy that no store to a packet can change.
    let layout = *layout;
    for (state, packet) in opened.iter_mut().zip(packets) {
        let own = &state.own();
        let found = if TRANSPORT {
            layout.own(packet.bytes(), own)
        } else {
            layout.inner(packet.bytes(), own).map(|inner| (inner, [0; IPV4_HEADER]))
        };
        let Some((inner, header)) = found else { break };
        // Taken after the checks: a packet left to the slow path still needs its proof.
        let Some(ok) = state.proof.take() else { break };
        if let Err(why) = layout.admit(own, ok) {
            all.refused = Some(why);
            break;
        }
        // In transport mode the IP header moves up to the payload, over the protocol header.
        if TRANSPORT && let Some(own) = packet.bytes_mut()[inner.start..].first_chunk_mut() {
            *own = header;
        }
        packet.cut(inner);
        if flows.add(at + all.count, own.seq, false, packet.bytes()) {
            (all.known, all.bytes) = (all.known + 1, all.bytes + packet.len());
        }
        all.count += 1;
    }
    all
}

impl<'t> InboundPath<'_, 't> {
    /// Lets the packets of a chunk in, which starts at packet `first` of the batch, as far as their
    /// ICVs are right, they are no replays, and a policy allows them through their SA. Others are
    /// marked for removal.
    pub(super) fn admit_chunk(
        &mut self,
        first: usize,
        packets: &mut [Packet],
        opened: &mut OpenedIter<'_>,
        run: &mut AdmitRun<'t>,
    ) {
        let tables = self.tables;
        let (mut undecided, count) = (UndecidedPackets::new(), packets.len());
        let mut rest = &mut *packets;
        while !rest.is_empty() {
            let at = count - rest.len();
            let Some((of, len, states)) = opened.next(rest.len()) else {
                // Nothing may come in that was not opened.
                self.drop_unopened(first + at..first + count);
                break;
            };
            let (ours, others) = rest.split_at_mut(len);
            rest = others;
            match tables.sad.get(of.slot) {
                Some(sa) => {
                    let share = Share { sa, run: of, opened: states, packets: ours, at };
                    let is_first = of.slot != run.slot && len > 1;
                    // By value: in memory, a share is read while its parts are still being stored.
                    let share = if is_first { self.admit_first(first, share, run) } else { share };
                    self.finish_share(first, share, run, &mut undecided);
                }
                None if of.slot == Arrived::CLEAR => {}
                None => self.drop_unopened(first + at..first + at + len),
            }
        }
        if !undecided.is_empty() {
            self.decide(first, packets, &undecided, run);
        }
        run.counting.end_chunk();
    }

    /// Drops packets of the batch without a result, unless they were dropped before.
    #[cold]
    fn drop_unopened(&mut self, range: Range<usize>) {
        for i in range {
            if self.shared.is_kept(i) {
                let Refused = self.gone_inbound(None, DropReason::Inconsistent, None, None);
                self.shared.refuse(i);
            }
        }
    }

    /// Admits the first packet of `share`, so that its flow is known for those after it, which are
    /// likely to have the same one. Returns these.
    #[inline(never)] // once for each SA
    fn admit_first<'p>(&mut self, first: usize, share: Share<'p>, run: &mut AdmitRun<'_>) -> Share<'p> {
        let Share { sa, run: of, at, .. } = share;
        let (packet, packets) = share.packets.split_at_mut(1);
        let (state, opened) = share.opened.split_at_mut(1);
        let mut undecided = UndecidedPackets::new();
        let one = Share { sa, run: of, opened: state, packets: &mut *packet, at: 0 };
        self.finish_share(first + at, one, run, &mut undecided);
        self.decide(first + at, packet, &undecided, run);
        Share { sa, run: of, opened, packets, at: at + 1 }
    }

    /// Strips the headers of packets of one SA, and lets those of the last flow in.
    #[inline(always)] // a call costs 5 of 190 ticks where each packet has another SA
    fn finish_share(
        &mut self,
        first: usize,
        share: Share<'_>,
        run: &mut AdmitRun<'_>,
        undecided: &mut UndecidedPackets,
    ) {
        let Share { sa, run: &OpenedRun { slot, ref common, format, .. }, opened, packets, at } = share;
        let layout = InnerLayout::of(sa, format, common);
        let known = if slot == run.slot { run.flow } else { PlainFlow::NONE };
        let mut done = 0;
        while done < packets.len() {
            let cache = &self.own.flows;
            let mut flows = Flows { cache, known, slot, lane: common.lane, undecided: &mut *undecided };
            let mut refused = None;
            if let Some(layout) = layout.as_ref().filter(|_| known != PlainFlow::NONE) {
                let (opened, packets) = (&mut opened[done..], &mut packets[done..]);
                let some = if layout.has_trailer() {
                    finish_known::<true>(layout, &known, opened, packets)
                } else {
                    finish_known::<false>(layout, &known, opened, packets)
                };
                if some.known > 0 {
                    run.counting.add((slot, common.lane), some.known, some.bytes);
                }
                (done, refused) = (done + some.count, some.refused);
            }
            // In transport mode, and from a packet of another flow on.
            if let Some(layout) = layout.as_ref().filter(|_| refused.is_none() && done < packets.len()) {
                let (opened, packets) = (&mut opened[done..], &mut packets[done..]);
                let some = if layout.is_transport() {
                    finish::<true>(layout, at + done, opened, packets, &mut flows)
                } else {
                    finish::<false>(layout, at + done, opened, packets, &mut flows)
                };
                if some.known > 0 {
                    run.counting.add((slot, common.lane), some.known, some.bytes);
                }
                (done, refused) = (done + some.count, some.refused);
            }
            // The next one goes the slow path, or is dropped.
            let (Some(state), Some(packet)) = (opened.get_mut(done), packets.get_mut(done)) else { return };
            let own = state.own();
            let finished = match (refused, state.proof.take()) {
                (Some(why), _) => Err(why),
                (None, None) => Err(DropReason::BadIcv),
                (None, Some(ok)) => finish_slow(sa, packet, &own.pending(common), ok),
            };
            match finished {
                Ok(_) if sa.common.aggfrag().is_some() => {
                    let (len, from) = (packet.len(), Aggregate { sa, slot, lane: common.lane, seq: own.seq });
                    match self.enqueue(from, packet) {
                        Ok(()) => {
                            run.counting.add((slot, common.lane), 1, len);
                            self.shared.refuse(first + at + done);
                        }
                        Err(why) => self.drop_opened(first + at + done, sa, (common.lane, own.seq), why),
                    }
                }
                Ok(Delivered { sample }) => {
                    if flows.add(at + done, own.seq, sample, packet.bytes()) {
                        run.counting.add((slot, common.lane), 1, packet.len());
                        bump(&self.shared.counters().sampled, sample.into());
                    }
                }
                Err(why) => self.drop_opened(first + at + done, sa, (common.lane, own.seq), why),
            }
            done += 1;
        }
    }

    /// Lets packets in as far as the policies that they meet name the SA through which they came.
    fn decide(&mut self, first: usize, packets: &[Packet], undecided: &[Undecided], run: &mut AdmitRun<'_>) {
        let tables = self.tables;
        // Another packet of the flow before through the same SA has the same answer.
        let mut last = (PlainFlow::NONE, Arrived::GONE, Ok(()));
        for &Undecided { i, sample, lane, slot, seq, flow, located } in undecided {
            let packet = &packets[usize::from(i)];
            if flow == PlainFlow::NONE || (flow, slot) != (last.0, last.1) {
                last = (flow, slot, self.verdict(slot, located, packet.bytes()));
            }
            match last.2 {
                Ok(()) => {
                    run.counting.add((slot, lane), 1, packet.len());
                    bump(&self.shared.counters().sampled, sample.into());
                    (run.flow, run.slot) = (flow, slot);
                }
                Err(why) => {
                    let Some(sa) = tables.sad.get(slot) else { continue };
                    self.drop_opened(first + usize::from(i), sa, (lane, seq), why);
                }
            }
        }
    }

    /// Whether the inner packet `packet` may come in through the SA in `slot`.
    #[inline]
    pub(super) fn verdict(&mut self, slot: u32, located: Located, packet: &[u8]) -> Result<(), DropReason> {
        let tables = self.tables;
        let search = |key: &FlowKey| tables.spd.inbound(key).map(|(_, action)| action);
        let decision = match self.own.flows.known(located) {
            Some(decision) => Ok(decision),
            None => self.own.flows.decide(tables.generation, packet, search),
        };
        let verdict =
            decision.map_or(Err(DropReason::BadInner), |decision| Action::admit(decision, tables.group(slot)));
        verdict.or_else(|why| if tables.in_grace_period(slot, packet) { Ok(()) } else { Err(why) })
    }

    /// Drops packet `i` of the batch, which an SA opened.
    #[cold]
    fn drop_opened(&mut self, i: usize, sa: &InboundSa, (lane, seq): (u16, SeqNo), why: DropReason) {
        self.shared.count_drop(why, Some(&sa.common));
        self.shared.report(why, Subject { outbound: false, spi: sa.spi, session: lane, seq: seq.lo() }, None);
        self.shared.refuse(i);
    }
}

/// Finishes a packet of any kind.
fn finish_slow(sa: &InboundSa, packet: &mut Packet, pending: &PendingIn, ok: IcvOk) -> Result<Delivered, DropReason> {
    let mut frame = packet.frame();
    let delivered = finish_in(sa, &mut frame, pending, ok);
    let range = frame.range();
    packet.set_range(range);
    delivered
}

/// Consecutive packets that a core received through one lane of an SA.
struct InBurst<'t> {
    tables: &'t Snapshot,
    core: usize,
    /// Slot of the SA, and the lane.
    lane: (u32, u16),
    /// The SA has limits.
    limited: bool,
    packets: u64,
    bytes: u64,
}

impl<'t> InBurst<'t> {
    fn new(tables: &'t Snapshot, core: usize) -> Self {
        Self { tables, core, lane: (u32::MAX, 0), limited: false, packets: 0, bytes: 0 }
    }

    /// Counts packets of `bytes` bytes in all.
    #[inline]
    fn add(&mut self, lane: (u32, u16), packets: usize, bytes: usize) {
        if self.lane != lane {
            self.restart(lane);
        }
        self.packets += packets as u64;
        self.bytes += bytes as u64;
    }

    /// Ends the burst and begins one of another lane.
    fn restart(&mut self, lane: (u32, u16)) {
        self.end();
        let limited = self.tables.sad.get(lane.0).is_some_and(|sa| sa.common.is_limited());
        *self = Self { lane, limited, ..Self::new(self.tables, self.core) };
    }

    /// Ends the burst of an SA with limits, because the next chunk checks how much went through.
    #[inline]
    fn end_chunk(&mut self) {
        if self.limited {
            self.restart((u32::MAX, 0));
        }
    }

    /// Counts the burst for its SA.
    fn end(&self) {
        let Some(sa) = self.tables.sad.get(self.lane.0).filter(|_| self.packets > 0) else { return };
        sa.count(self.lane.1.into(), self.core, self.packets, self.bytes);
    }
}
