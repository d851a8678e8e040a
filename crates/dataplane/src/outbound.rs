//! Outbound path: from plaintext to protected packets.
//!
//! A batch is processed in chunks: classify and prepare each packet, one engine call, finish. A
//! chunk is small enough to stay in the L1 cache between these stages. Sequence numbers are
//! reserved per burst of packets of one SA, because each reservation is an atomic operation.

mod burst;
mod plan;

use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use crypto::{Job, Keys};
use ipsec::{Action, DropReason, OutboundSa, PendingOut, fragment_v4, pmtu};
use wire::ip::IPV4_HEADER;
use wire::{FlowKey, IpPacket, ShortKey};

use crate::counters::bump;
use crate::{Batch, Packet, Snapshot, Worker};
use burst::{Burst, FlowState};
pub(crate) use plan::Planned;

/// Packets per engine call. A larger chunk exceeds the L1 cache, a smaller one pays for more calls.
pub(crate) const CHUNK: usize = 16;

/// Aligns a value to a cache line. The stack has no such alignment, so that operations would
/// straddle lines or not depending on the run, and measurements would vary.
#[repr(align(64))]
pub(crate) struct Aligned<T>(pub(crate) T);

/// In-flight encryption, packed into one word: slot of the SA, length of the plaintext packet, and
/// pending state.
#[derive(Clone, Copy)]
struct InFlightEncryption(u64);

impl InFlightEncryption {
    /// No packet.
    const NONE: Self = Self(u64::MAX);

    #[inline(always)]
    fn new(slot: u32, len: usize, pending: PendingOut) -> Self {
        Self(u64::from(slot) | (len as u64 & 0xffff) << 32 | u64::from(pending.saved) << 48)
    }

    fn slot(self) -> u32 {
        self.0 as u32
    }

    fn len(self) -> u64 {
        self.0 >> 32 & 0xffff
    }

    fn pending(self) -> PendingOut {
        PendingOut { saved: (self.0 >> 48) as u16 }
    }
}

/// In-flight encryptions of a chunk, indexed by position.
type InFlightEncryptions = [InFlightEncryption; CHUNK];

impl Worker {
    /// Takes clear packets from the inner side. Afterwards `batch` holds what is to be sent on the
    /// outer side (protected, or bypassed by policy), in order; `replies` got ICMP errors for the
    /// inner side. Everything else was dropped and counted. Fragments of packets that had to be cut
    /// come last.
    pub fn outbound(&mut self, tables: &Snapshot, batch: &mut Batch, replies: &mut Batch) {
        let arrived = batch.len();
        self.counters.inner_rx.bump(arrived as u64, batch.bytes());
        self.start_batch(arrived);
        self.age(tables);
        self.oversized.clear();
        self.fragment_slots.clear();
        self.seal_from(tables, batch, 0, arrived);
        if !self.oversized.is_empty() {
            self.cut_to_size(tables, batch, replies);
            self.keep.resize(batch.len(), true);
            self.seal_from(tables, batch, arrived, arrived);
        }
        self.retain_kept(batch);
        self.counters.outer_tx.bump(batch.len() as u64, batch.bytes());
        bump(&self.counters.batches, 1);
        self.publish_lookups();
    }

    /// Protects the packets from `from` on in place; those from `arrived` on are fragments, whose
    /// SA is known.
    fn seal_from(&mut self, tables: &Snapshot, batch: &mut Batch, from: usize, arrived: usize) {
        let (mut rest, mut first) = (&mut batch.packets_mut()[from..], from);
        let mut pass = Pass { run: None, last: None, alike: None };
        rest.iter().take(CHUNK).for_each(Packet::prefetch);
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at_mut(rest.len().min(CHUNK));
            self.seal(tables, first, arrived, chunk, behind, &mut pass);
            (rest, first) = (behind, first + CHUNK);
        }
        if let Some(ended) = pass.run {
            ended.end();
        }
    }

    /// Protects one chunk, which starts at packet `first` of the batch, in place; `behind` it are
    /// the packets that come next.
    fn seal<'t>(
        &mut self,
        tables: &'t Snapshot,
        first: usize,
        arrived: usize,
        packets: &mut [Packet],
        behind: &[Packet],
        pass: &mut Pass<'t>,
    ) {
        let mut sealings = [InFlightEncryption::NONE; CHUNK];
        let sealed = {
            let mut jobs: Aligned<ArrayVec<Job<'_>, CHUNK>> = Aligned(ArrayVec::new());
            let mut finish = false;
            let count = packets.len();
            let mut rest = &mut *packets;
            loop {
                if let Pass { run: Some(run), alike: Some(alike), .. } = pass {
                    finish |= run.finish;
                    let lost = run.prepare_burst(alike, &mut rest, count, &mut jobs.0, &mut sealings);
                    if let Some(i) = lost {
                        self.gone_outbound(first + i, Some(run.sa), None, DropReason::Inconsistent);
                    }
                }
                let i = count - rest.len();
                let Some((packet, others)) = rest.split_first_mut() else { break };
                rest = others;
                finish |= self.seal_one(tables, first, i, arrived, packet, count - i, pass, &mut jobs.0, &mut sealings);
            }
            behind.iter().take(CHUNK).for_each(Packet::prefetch);
            self.config.engine.seal(Keys { table: &tables.keys, derived: &self.derived }, &mut jobs.0);
            if !finish && jobs.0.iter().all(Job::sealed) {
                return;
            }
            jobs.0.iter().map(Job::sealed).collect::<ArrayVec<bool, CHUNK>>()
        };
        if let Some(run) = &mut pass.run {
            run.count();
        }
        self.finish(tables, (first, self.config.core), packets, &sealings, &sealed);
    }

    /// Finds the SA of packet `i` of the chunk that starts at `first`, and lays it out; `left`
    /// packets of the chunk may follow, this one counted. Returns whether packets of the SA have to
    /// be finished.
    #[inline(always)] // a call would pass all of it through memory
    #[expect(clippy::too_many_arguments, reason = "what it changes lies apart, so that packets can be lent out")]
    fn seal_one<'t, 'p>(
        &mut self,
        tables: &'t Snapshot,
        first: usize,
        i: usize,
        arrived: usize,
        packet: &'p mut Packet,
        left: usize,
        Pass { run, last, alike }: &mut Pass<'t>,
        jobs: &mut ArrayVec<Job<'p>, CHUNK>,
        sealings: &mut InFlightEncryptions,
    ) -> bool {
        let known = last.as_mut().is_some_and(|last| last.covers(packet.bytes()));
        if !known {
            *alike = None;
            self.classify(tables, first + i, arrived, packet, last);
        }
        let Some(Last { ip, slot, again, .. }) = last else { return false };
        let (slot, again) = (*slot, std::mem::replace(again, known));
        let current = match run {
            Some(current) if current.slot == slot => current,
            other => {
                if let Some(ended) = other.take() {
                    ended.end();
                }
                let Some(sa) = tables.outbound.get(slot as usize) else {
                    self.gone_outbound(first + i, None, Some(ip), DropReason::NoSa);
                    return false;
                };
                other.insert(Burst::new(sa, slot, self.config.core))
            }
        };
        // Build the flow template only at the third packet in a row: after two, the flow ends as
        // often as it continues, and the cost would be lost.
        if known && again && alike.is_none() {
            *alike = FlowState::of(current.sa, current.lane, ip, packet.bytes());
        }
        if ip.total_len > current.mtu {
            if first + i < arrived {
                self.oversized.push((first + i, slot));
                self.refuse(first + i);
            } else {
                // The path became narrower since this fragment was cut.
                self.gone_outbound(first + i, Some(current.sa), Some(ip), DropReason::TooBig);
            }
            return false;
        }
        match current.prepare(ip, packet, jobs, left) {
            Ok(pending) => sealings[i] = InFlightEncryption::new(slot, ip.total_len, pending),
            Err(why) => self.gone_outbound(first + i, Some(current.sa), Some(ip), why),
        }
        current.finish
    }

    /// Reads packet `i` and finds the SA that protects it; `None` when none does and the packet has
    /// been dealt with. Never inlined, so that `last` has an address: the usual way would carry all
    /// of it in registers, which there are not enough of.
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
        *last = Some(Last { key, ip: *ip, slot, again: false });
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
                    self.request_own_sa(trap, ip, packet.bytes());
                }
                if let Some(trap) = tables.hold_trap(slot, self.hold.awaits_peer_traffic())
                    && self.hold_for_peer(tables, trap, ip, packet.bytes())
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
            Some(Action::Drop) => self.gone_outbound(i, None, Some(ip), DropReason::PolicyDrop),
            None => self.gone_outbound(i, None, Some(ip), DropReason::NoPolicy),
        }
        None
    }

    /// Appends the fragments of oversized packets to the batch, or reports the path MTU to their
    /// senders.
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
                Err(DropReason::TooBig)
            } else {
                self.fragment(batch, i, slot, &ip, mtu)
            };
            if let Err(why) = outcome {
                self.gone_outbound(i, Some(sa), Some(&ip), why);
            }
        }
    }

    /// Appends the fragments of packet `i`, all or none: a receiver cannot use an incomplete set.
    fn fragment(
        &mut self,
        batch: &mut Batch,
        i: usize,
        slot: u32,
        ip: &IpPacket,
        mtu: usize,
    ) -> Result<(), DropReason> {
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
        Err(DropReason::QueueFull)
    }

    /// The part after the engine that only some packets need. What the engine said of those in
    /// `sealings` is in `sealed`; they are counted already, in the lanes of the core `numbered_by`.
    fn finish(
        &mut self,
        tables: &Snapshot,
        (first, numbered_by): (usize, usize),
        packets: &mut [Packet],
        sealings: &InFlightEncryptions,
        sealed: &[bool],
    ) {
        let sealings = sealings.iter().enumerate().filter(|(_, sealing)| sealing.0 != InFlightEncryption::NONE.0);
        for ((i, sealing), sealed) in sealings.zip(sealed) {
            let sa = &tables.outbound[sealing.slot() as usize];
            let mut frame = packets[i].frame();
            let done =
                if *sealed { ipsec::finish_out(sa, &mut frame, sealing.pending()) } else { Err(DropReason::NoKey) };
            let range = frame.range();
            packets[i].set_range(range);
            if let Err(why) = done {
                sa.common.counters.take_back(sa.lane_of(numbered_by), 1, sealing.len());
                self.gone_outbound(first + i, Some(sa), None, why);
            }
        }
    }

    /// Drops packet `i` and counts it.
    #[cold]
    fn gone_outbound(&mut self, i: usize, sa: Option<&OutboundSa>, ip: Option<&IpPacket>, why: DropReason) {
        self.count_drop(why, sa.map(|sa| &sa.common));
        self.report(why, true, sa.map_or(0, |sa| sa.spi), 0, 0, ip);
        self.refuse(i);
    }
}

/// The packet before: packets of one flow come in runs, and what was found for one holds for the
/// next.
struct Last {
    /// `None` for packets that are not so plain that their first bytes say all.
    key: Option<ShortKey>,
    ip: IpPacket,
    slot: u32,
    /// Another one of its flow came right behind it.
    again: bool,
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
/// It comes from where the packet was to go: a host takes no packet from the device that claims to
/// be from itself, and no address of this host is known to be none of the sender's.
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

/// What goes from one chunk of a batch to the next.
struct Pass<'t> {
    run: Option<Burst<'t>>,
    last: Option<Last>,
    /// Of the run.
    alike: Option<FlowState>,
}
