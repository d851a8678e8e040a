//! From clear packets to protected ones.
//!
//! A batch goes through in chunks small enough that what one stage touched is still in the first
//! cache for the next: classify and prepare each packet, one engine call, finish. Sequence numbers
//! are reserved for a run of packets of one SA at a time.

use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use crypto::{CryptoOp, Job, Keys};
use ipsec::{Action, Drop, Frame, OutLane, OutboundSa, PendingOut, SeqRange, fragment_v4, pmtu};
use ipsec::{prepare_out_any, prepare_out_usual};
use wire::ip::IPV4_HEADER;
use wire::{FlowKey, IpPacket, SeqNo, ShortKey};

use crate::counters::bump;
use crate::{Batch, Packet, Snapshot, Worker};

/// Packets per engine call. Larger costs first-level cache, smaller costs calls.
pub(crate) const CHUNK: usize = 16;

/// Starts where a cache line does. A stack starts anywhere, and whether the operations of a chunk
/// straddle lines would change from run to run.
#[repr(align(64))]
pub(crate) struct Aligned<T>(pub(crate) T);

/// A packet that is with the engine.
struct Sealing {
    /// Index within the chunk.
    i: u8,
    slot: u32,
    /// Bytes of the clear packet.
    len: u16,
    pending: PendingOut,
}

impl Worker {
    /// Takes clear packets from the inner side. Afterwards `batch` holds what is to be sent on the
    /// outer side (protected, or bypassed by policy), in order; `replies` got ICMP errors for the
    /// inner side. Everything else was dropped and counted. Fragments of packets that had to be cut
    /// come last.
    pub fn outbound(&mut self, tables: &Snapshot, batch: &mut Batch, replies: &mut Batch) {
        let arrived = batch.len();
        self.counters.inner_rx.bump(arrived as u64, batch.bytes());
        self.keep_all(arrived);
        self.age(tables);
        self.oversized.clear();
        self.fragment_slots.clear();
        self.seal_from(tables, batch, 0, arrived);
        if !self.oversized.is_empty() {
            self.cut_to_size(tables, batch, replies);
            self.keep.resize(batch.len(), true);
            self.seal_from(tables, batch, arrived, arrived);
        }
        if !self.all_kept {
            let keep = &self.keep;
            batch.retain(|i, _| keep[i]);
        }
        self.counters.outer_tx.bump(batch.len() as u64, batch.bytes());
        bump(&self.counters.batches, 1);
    }

    /// Protects the packets from `from` on in place; those from `arrived` on are fragments, whose SA
    /// is known.
    fn seal_from(&mut self, tables: &Snapshot, batch: &mut Batch, from: usize, arrived: usize) {
        for (n, chunk) in batch.packets_mut()[from..].chunks_mut(CHUNK).enumerate() {
            self.seal(tables, from + n * CHUNK, arrived, chunk);
        }
    }

    /// Protects one chunk, which starts at packet `first` of the batch, in place.
    fn seal(&mut self, tables: &Snapshot, first: usize, arrived: usize, packets: &mut [Packet]) {
        let mut jobs: Aligned<ArrayVec<Job<'_>, CHUNK>> = Aligned(ArrayVec::new());
        let mut sealings: ArrayVec<Sealing, CHUNK> = ArrayVec::new();
        let mut run: Option<Run<'_>> = None;
        let mut last: Option<Last> = None;
        let mut finish = false;
        packets.iter().for_each(Packet::prefetch);
        let count = packets.len();
        for (i, packet) in packets.iter_mut().enumerate() {
            if !last.as_mut().is_some_and(|last| last.covers(packet.bytes())) {
                self.classify(tables, first + i, arrived, packet, &mut last);
            }
            let Some(Last { ip, slot, .. }) = &last else { continue };
            let slot = *slot;
            let current = match &mut run {
                Some(current) if current.slot == slot => current,
                other => {
                    if let Some(ended) = other.take() {
                        ended.end();
                    }
                    let Some(sa) = tables.outbound.get(slot as usize) else {
                        self.gone_outbound(first + i, None, Some(ip), Drop::NoSa);
                        continue;
                    };
                    finish |= ipsec::needs_finish(sa);
                    other.insert(Run::new(sa, slot, self.config.core))
                }
            };
            if ip.total_len > current.mtu {
                if first + i < arrived {
                    self.oversized.push((first + i, slot));
                    self.refuse(first + i);
                } else {
                    // The path became narrower since this fragment was cut.
                    self.gone_outbound(first + i, Some(current.sa), Some(ip), Drop::TooBig);
                }
                continue;
            }
            match current.prepare(ip, packet, &mut jobs.0, count - i) {
                Ok(pending) => sealings.push(Sealing { i: i as u8, slot, len: ip.total_len as u16, pending }),
                Err(why) => self.gone_outbound(first + i, Some(current.sa), Some(ip), why),
            }
        }
        if let Some(ended) = run {
            ended.end();
        }
        self.config.engine.seal(Keys { table: &tables.keys, derived: &self.derived }, &mut jobs.0);
        if finish || !jobs.0.iter().all(Job::sealed) {
            let sealed: ArrayVec<bool, CHUNK> = jobs.0.iter().map(Job::sealed).collect();
            drop(jobs);
            self.finish(tables, first, packets, &sealings, &sealed);
        }
    }

    /// Reads packet `i` and finds the SA that protects it; `None` when none does and the packet has
    /// been dealt with. Never inlined, so that `last` has an address: the usual way would carry all of
    /// it in registers, which there are not enough of.
    #[inline(never)]
    fn classify(&mut self, tables: &Snapshot, i: usize, arrived: usize, packet: &Packet, last: &mut Option<Last>) {
        *last = None;
        let parsed = IpPacket::parse(packet.bytes());
        let ip = match &parsed {
            Ok(ip) => ip,
            Err(fault) => return self.gone_outbound(i, None, None, (*fault).into()),
        };
        let Some(slot) = self.find_sa(tables, i, arrived, ip, packet) else { return };
        // A fragment's SA was found by the packet that it was cut from.
        let key = if i < arrived { ShortKey::of(&packet.bytes()[..ip.total_len]) } else { None };
        *last = Some(Last { key, ip: *ip, slot });
    }

    /// The slot of the SA that protects packet `i`; `None` when none does and the packet has been
    /// dealt with.
    fn find_sa(&mut self, tables: &Snapshot, i: usize, arrived: usize, ip: &IpPacket, packet: &Packet) -> Option<u32> {
        if let Some(fragment) = i.checked_sub(arrived) {
            return self.fragment_slots.get(fragment).copied();
        }
        let ask = |key: &FlowKey| tables.spd.outbound(key).map(|(_, action)| action);
        let decision = self.outbound_flows.decide(tables.generation, &packet.bytes()[..ip.total_len], ask);
        match decision.unwrap_or(None) {
            Some(Action::Protect { outbound, .. }) => {
                let (slot, trap) = tables.on_core(outbound, self.config.core);
                if let Some(trap) = trap {
                    self.wants_own(trap, ip, packet.bytes());
                }
                if let Some(trap) = tables.held_as(slot)
                    && self.wait_for_sign(tables, trap, ip, packet.bytes())
                {
                    self.refuse(i);
                    return None;
                }
                return Some(slot);
            }
            Some(Action::Trap(trap)) => match self.trapped(tables, trap, ip, packet.bytes()) {
                Ok(()) => self.refuse(i),
                Err(why) => self.gone_outbound(i, None, Some(ip), why),
            },
            Some(Action::Bypass) => bump(&self.counters.bypassed, 1),
            Some(Action::Drop) => self.gone_outbound(i, None, Some(ip), Drop::PolicyDrop),
            None => self.gone_outbound(i, None, Some(ip), Drop::NoPolicy),
        }
        None
    }

    /// Fragments the oversized packets behind the batch, or tells their senders what would fit.
    #[cold]
    fn cut_to_size(&mut self, tables: &Snapshot, batch: &mut Batch, replies: &mut Batch) {
        for n in 0..self.oversized.len() {
            let (i, slot) = self.oversized[n];
            let (Some(sa), Ok(ip)) = (tables.outbound.get(slot as usize), IpPacket::parse(batch.packets()[i].bytes()))
            else {
                continue;
            };
            let mtu = sa.inner_mtu.load(Ordering::Relaxed) as usize;
            let whole_only = !matches!(sa.common.mode, ipsec::Mode::Tunnel);
            let outcome = if ip.dont_fragment || whole_only {
                tell_sender(&ip, &batch.packets()[i], mtu, replies);
                Err(Drop::TooBig)
            } else {
                self.fragment(batch, i, slot, &ip, mtu)
            };
            if let Err(why) = outcome {
                self.gone_outbound(i, Some(sa), Some(&ip), why);
            }
        }
    }

    /// Appends the fragments of packet `i`, all or none: a receiver could not use some of them.
    fn fragment(&mut self, batch: &mut Batch, i: usize, slot: u32, ip: &IpPacket, mtu: usize) -> Result<(), Drop> {
        self.scratch.clear();
        self.scratch.extend_from_slice(&batch.packets()[i].bytes()[..ip.total_len]);
        let (original, piece) = (&self.scratch, &mut self.fragment);
        let slots = &mut self.fragment_slots;
        let before = (batch.len(), slots.len());
        let mut room = true;
        fragment_v4(ip, original, mtu, piece, &mut |fragment| {
            room = room && slots.len() < slots.capacity() && batch.push_with(|packet| packet.set(fragment));
            if room {
                slots.push(slot);
            }
        })?;
        if room {
            return Ok(());
        }
        batch.truncate(before.0);
        slots.truncate(before.1);
        Err(Drop::QueueFull)
    }

    /// The part after the engine that only some packets need.
    fn finish(
        &mut self,
        tables: &Snapshot,
        first: usize,
        packets: &mut [Packet],
        sealings: &[Sealing],
        sealed: &[bool],
    ) {
        for (sealing, sealed) in sealings.iter().zip(sealed) {
            let i = usize::from(sealing.i);
            let sa = &tables.outbound[sealing.slot as usize];
            let mut frame = packets[i].frame();
            let done = if *sealed { ipsec::finish_out(sa, &mut frame, sealing.pending) } else { Err(Drop::NoKey) };
            let range = frame.range();
            packets[i].set_range(range);
            if let Err(why) = done {
                sa.common.counters.take_back(1, sealing.len.into());
                self.gone_outbound(first + i, Some(sa), None, why);
            }
        }
    }

    /// Counts packet `i`, which goes no further.
    #[cold]
    fn gone_outbound(&mut self, i: usize, sa: Option<&OutboundSa>, ip: Option<&IpPacket>, why: Drop) {
        self.count_drop(why, sa.map(|sa| &sa.common));
        self.report(why, true, sa.map_or(0, |sa| sa.spi), 0, 0, ip);
        self.refuse(i);
    }
}

/// The packet before: packets of one flow come in runs, and what was found for one holds for the next.
struct Last {
    /// `None` for packets that are not so plain that their first bytes say all.
    key: Option<ShortKey>,
    ip: IpPacket,
    slot: u32,
}

impl Last {
    /// Whether `bytes` are the next packet of the same flow; if so `ip` is now theirs.
    #[inline]
    fn covers(&mut self, bytes: &[u8]) -> bool {
        let Some(head) = bytes.first_chunk::<{ IPV4_HEADER + 4 }>() else { return false };
        let total_len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let alike =
            self.key.is_some() && ShortKey::of(bytes) == self.key && (head.len()..=bytes.len()).contains(&total_len);
        if alike {
            (self.ip.total_len, self.ip.tos, self.ip.hop_limit) = (total_len, head[1], head[8]);
            self.ip.dont_fragment = head[6] & 0x40 != 0;
        }
        alike
    }
}

/// Puts the ICMP error "too big" about `packet` into `replies`.
///
/// It comes from where the packet was to go: a host takes no packet from the device that claims to be from
/// itself, and no address of this host is known to be none of the sender's.
fn tell_sender(ip: &IpPacket, packet: &Packet, mtu: usize, replies: &mut Batch) {
    let router = ip.dst;
    replies.push_with(|reply| {
        let built = pmtu::too_big_reply(ip, packet.bytes(), mtu, router, reply.receive_area());
        built.is_some_and(|len| {
            reply.received(0, len);
            true
        })
    });
}

/// Consecutive packets of one SA and the sequence numbers that were reserved for them.
struct Run<'t> {
    sa: &'t OutboundSa,
    lane: &'t OutLane,
    slot: u32,
    /// Largest packet that fits.
    mtu: usize,
    /// Numbers not used yet.
    numbers: SeqRange,
    /// Packets and bytes prepared.
    packets: u64,
    bytes: u64,
}

impl<'t> Run<'t> {
    fn new(sa: &'t OutboundSa, slot: u32, core: usize) -> Self {
        Self {
            sa,
            lane: &sa.lanes[core % sa.lanes.len()],
            slot,
            mtu: sa.inner_mtu.load(Ordering::Relaxed) as usize,
            numbers: SeqRange { first: 0, count: 0 },
            packets: 0,
            bytes: 0,
        }
    }

    /// Lays out one packet and appends its operation to `jobs`. `left` packets of the chunk may follow, this one counted.
    #[inline]
    fn prepare<'p>(
        &mut self,
        ip: &IpPacket,
        packet: &'p mut Packet,
        jobs: &mut ArrayVec<Job<'p>, CHUNK>,
        left: usize,
    ) -> Result<PendingOut, Drop> {
        if self.numbers.count == 0 {
            let common = &self.sa.common;
            common.check_lifetime()?;
            let sent = common.counters.packets.load(Ordering::Relaxed) + self.packets;
            let allowed = common.lifetime.packets.checked_sub(sent).filter(|n| *n > 0).ok_or(Drop::Expired)?;
            self.numbers = self.lane.seq.reserve(allowed.min(left as u64) as u32)?;
        }
        let seq = SeqNo(self.numbers.first);
        self.numbers = SeqRange { first: seq.0 + 1, count: self.numbers.count - 1 };
        let (buffer, start, end) = packet.parts();
        let mut frame = Frame::new(buffer, *start as usize..*end as usize)?;
        let mut pending = PendingOut::default();
        if !prepare_out_usual(self.sa, self.lane, seq, ip, &mut frame, |op| jobs.push(Job::new(op, &mut [])))? {
            // Written where it stays: a copy of what was only just written would wait for it.
            jobs.push(Job::new(CryptoOp::EMPTY, &mut []));
            let Some(job) = jobs.last_mut() else { return Err(Drop::Inconsistent) };
            match prepare_out_any(self.sa, self.lane, seq, ip, &mut frame, &mut job.op) {
                Ok(kept) => pending = kept,
                Err(why) => {
                    jobs.pop();
                    return Err(why);
                }
            }
        }
        let range = frame.range();
        (*start, *end) = (range.start as u32, range.end as u32);
        if let Some(job) = jobs.last_mut() {
            job.packet = frame.into_bytes();
        }
        self.packets += 1;
        self.bytes += ip.total_len as u64;
        Ok(pending)
    }

    /// Gives numbers that were not needed back and counts the packets that were prepared. Those which
    /// the engine then refuses are not counted in the end.
    fn end(self) {
        self.lane.seq.give_back(self.numbers);
        if self.packets > 0 {
            self.sa.common.counters.add(self.packets, self.bytes);
        }
    }
}
