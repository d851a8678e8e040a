//! From clear packets to protected ones.
//!
//! A batch goes through in chunks small enough that what one stage touched is still in the first
//! cache for the next: classify all, reserve sequence numbers per run of packets of one SA,
//! prepare all, one engine call, finish.

use arrayvec::ArrayVec;
use crypto::{Job, Keys};
use ipsec::{Action, Drop, Frame, OutboundSa, PendingOut, fragment_v4, pmtu, prepare_out};
use wire::{FlowKey, IpPacket, SeqNo};

use crate::counters::bump;
use crate::{Batch, Packet, Snapshot, Worker};

/// Packets per engine call. Larger costs first-level cache, smaller costs calls; measured with
/// `weir bench path --chunk`.
pub(crate) const CHUNK: usize = 32;

/// In place of an SA's slot: the packet passes as it is.
const BYPASS: u32 = u32::MAX;
/// In place of an SA's slot: dropped and counted, or replaced by its fragments.
const GONE: u32 = u32::MAX - 1;

/// What classification found for the packets of a chunk.
#[derive(Default)]
struct Plans {
    /// Per packet: the slot of its SA, [`BYPASS`] or [`GONE`].
    slots: ArrayVec<u32, CHUNK>,
    /// Headers of those that have an SA, in order.
    ips: ArrayVec<IpPacket, CHUNK>,
}

impl Worker {
    /// Takes clear packets from the inner side. Afterwards `batch` holds what is to be sent on the
    /// outer side (protected, or bypassed by policy), in order; `replies` got ICMP errors for the
    /// inner side. Everything else was dropped and counted.
    pub fn outbound(&mut self, tables: &Snapshot, batch: &mut Batch, replies: &mut Batch) {
        let arrived = batch.len();
        self.counters.inner_rx.bump(arrived as u64, batch.bytes());
        self.keep_all(arrived);
        self.fragment_slots.clear();
        let mut done = 0;
        // Fragments are appended behind the packets that arrived, so the end moves.
        while done < batch.len() {
            let n = CHUNK.min(batch.len() - done);
            self.keep.resize(batch.len(), true);
            let mut plans = Plans::default();
            batch.packets()[done..done + n].iter().for_each(Packet::prefetch);
            for i in done..done + n {
                let slot = self.classify_outbound(tables, batch, i, arrived, replies, &mut plans.ips);
                plans.slots.push(slot);
            }
            self.protect(tables, done, &mut batch.packets_mut()[done..done + n], &plans);
            done += n;
        }
        if !self.all_kept {
            let keep = &self.keep;
            batch.retain(|i, _| keep[i]);
        }
        self.counters.outer_tx.bump(batch.len() as u64, batch.bytes());
        bump(&self.counters.batches, 1);
    }

    /// Decides about packet `i`; packets from `arrived` on are fragments already decided.
    #[inline]
    fn classify_outbound(
        &mut self,
        tables: &Snapshot,
        batch: &mut Batch,
        i: usize,
        arrived: usize,
        replies: &mut Batch,
        ips: &mut ArrayVec<IpPacket, CHUNK>,
    ) -> u32 {
        let bytes = batch.packets()[i].bytes();
        let parsed = IpPacket::parse(bytes);
        let ip = match &parsed {
            Ok(ip) => ip,
            Err(fault) => return self.gone_outbound(None, None, (*fault).into()),
        };
        let slot = if i >= arrived {
            self.fragment_slots[i - arrived]
        } else {
            let ask = |key: &FlowKey| tables.spd.outbound(key).map(|(_, action)| action);
            match self.outbound_flows.decide(tables.generation, ip, bytes, ask) {
                Some(Action::Protect { outbound, .. }) => outbound,
                Some(Action::Bypass) => return BYPASS,
                Some(Action::Drop) => return self.gone_outbound(None, Some(ip), Drop::PolicyDrop),
                None => return self.gone_outbound(None, Some(ip), Drop::NoPolicy),
            }
        };
        let Some(sa) = tables.outbound.get(slot as usize) else {
            return self.gone_outbound(None, Some(ip), Drop::NoSa);
        };
        let mtu = sa.inner_mtu.load(std::sync::atomic::Ordering::Relaxed) as usize;
        if ip.total_len <= mtu {
            ips.push(*ip);
            return slot;
        }
        self.too_big(tables, batch, i, slot, ip, mtu, replies)
    }

    /// Fragments packet `i` behind the batch, or tells its sender what would fit.
    #[cold]
    #[allow(clippy::too_many_arguments)]
    fn too_big(
        &mut self,
        tables: &Snapshot,
        batch: &mut Batch,
        i: usize,
        slot: u32,
        ip: &IpPacket,
        mtu: usize,
        replies: &mut Batch,
    ) -> u32 {
        let sa = &tables.outbound[slot as usize];
        let whole_only = !matches!(sa.common.mode, ipsec::Mode::Tunnel);
        if ip.dont_fragment || whole_only {
            let outer = sa.common.outer.peer.local;
            // Of the inner packet's family; the destination itself when this host has no such address.
            let router =
                tables.icmp_source(ip.is_v6()).unwrap_or(if outer.is_ipv6() == ip.is_v6() { outer } else { ip.dst });
            let packet = &batch.packets()[i];
            replies.push_with(|reply| {
                let built = pmtu::too_big_reply(ip, packet.bytes(), mtu, router, reply.receive_area());
                built.is_some_and(|len| {
                    reply.received(0, len);
                    true
                })
            });
            return self.gone_outbound(Some(sa), Some(ip), Drop::TooBig);
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(&batch.packets()[i].bytes()[..ip.total_len]);
        let (original, piece) = (&self.scratch, &mut self.fragment);
        let slots = &mut self.fragment_slots;
        let mut lost = false;
        let cut = fragment_v4(ip, original, mtu, piece, &mut |fragment| {
            let kept = slots.len() < slots.capacity() && batch.push_with(|packet| packet.set(fragment));
            if kept {
                slots.push(slot);
            }
            lost |= !kept;
        });
        match cut {
            Ok(()) if lost => self.gone_outbound(Some(sa), Some(ip), Drop::QueueFull),
            Ok(()) => GONE,
            Err(why) => self.gone_outbound(Some(sa), Some(ip), why),
        }
    }

    /// Protects one chunk, which starts at packet `first` of the batch, in place.
    fn protect(&mut self, tables: &Snapshot, first: usize, packets: &mut [Packet], plans: &Plans) {
        let mut jobs: ArrayVec<Job<'_>, CHUNK> = ArrayVec::new();
        let mut places: ArrayVec<(u8, u8, PendingOut), CHUNK> = ArrayVec::new();
        let mut run = Run::default();
        let mut finish = false;
        let mut next_ip = 0;
        for (i, (packet, &slot)) in packets.iter_mut().zip(&plans.slots).enumerate() {
            if slot >= GONE {
                self.pass_over(slot, first + i);
                continue;
            }
            let sa = &*tables.outbound[slot as usize];
            if run.left == 0 {
                run = self.reserve(sa, slot, &plans.slots[i..], &plans.ips[next_ip..]);
                finish |= run.finish;
            }
            let ip = &plans.ips[next_ip];
            match prepare(sa, &mut run, ip, packet) {
                Ok((job, pending)) => {
                    jobs.push(job);
                    places.push((i as u8, next_ip as u8, pending));
                }
                Err(why) => {
                    self.gone_outbound(Some(sa), Some(ip), why);
                    self.refuse(first + i);
                }
            }
            next_ip += 1;
        }
        self.config.engine.seal(Keys { table: &tables.keys, derived: &self.derived }, &mut jobs);
        if finish || !jobs.iter().all(Job::sealed) {
            let sealed: ArrayVec<bool, CHUNK> = jobs.iter().map(Job::sealed).collect();
            drop(jobs);
            self.finish(tables, first, packets, plans, &places, &sealed);
        }
    }

    /// A packet of the chunk that no SA protects.
    #[cold]
    fn pass_over(&mut self, slot: u32, i: usize) {
        if slot == BYPASS {
            bump(&self.counters.bypassed, 1);
        } else {
            self.refuse(i);
        }
    }

    /// Takes sequence numbers for the packets at the start of `slots` that go through one SA.
    fn reserve(&mut self, sa: &OutboundSa, slot: u32, slots: &[u32], ips: &[IpPacket]) -> Run {
        let lane = self.config.core % sa.lanes.len();
        let count = slots.iter().take_while(|other| **other == slot).count() as u32;
        let bytes: u64 = ips[..count as usize].iter().map(|ip| ip.total_len as u64).sum();
        let finish = ipsec::needs_finish(sa);
        let mut run = Run { lane, next: 0, granted: 0, left: count, finish, why: Drop::SeqExhausted };
        match sa.common.check_lifetime().and_then(|()| sa.lanes[lane].seq.reserve(count)) {
            Ok(range) => {
                (run.next, run.granted) = (range.first, range.count);
                // Short only at the end of a number space or of the saved mark.
                if range.count == count {
                    sa.common.counters.add(u64::from(count), bytes);
                } else {
                    sa.common.counters.add(u64::from(range.count), bytes * u64::from(range.count) / u64::from(count));
                    run.why = sa.lanes[lane].seq.reserve(1).err().unwrap_or(Drop::SeqUnsaved);
                }
            }
            Err(why) => run.why = why,
        }
        run
    }

    /// The part after the engine that only some packets need.
    fn finish(
        &mut self,
        tables: &Snapshot,
        first: usize,
        packets: &mut [Packet],
        plans: &Plans,
        places: &[(u8, u8, PendingOut)],
        sealed: &[bool],
    ) {
        for ((i, ip, pending), sealed) in places.iter().zip(sealed) {
            let (i, ip) = (usize::from(*i), &plans.ips[usize::from(*ip)]);
            let sa = &tables.outbound[plans.slots[i] as usize];
            let mut frame = packets[i].frame();
            let done = if *sealed { ipsec::finish_out(sa, &mut frame, *pending) } else { Err(Drop::NoKey) };
            if let Err(why) = done {
                self.gone_outbound(Some(sa), Some(ip), why);
                self.refuse(first + i);
            }
        }
    }

    /// Counts a packet that goes no further.
    #[cold]
    fn gone_outbound(&mut self, sa: Option<&OutboundSa>, ip: Option<&IpPacket>, why: Drop) -> u32 {
        self.count_drop(why, sa.map(|sa| &sa.common));
        self.report(why, true, sa.map_or(0, |sa| sa.spi), 0, 0, ip);
        GONE
    }
}

/// Lays out one packet and its operation.
#[inline]
fn prepare<'p>(
    sa: &OutboundSa,
    run: &mut Run,
    ip: &IpPacket,
    packet: &'p mut Packet,
) -> Result<(Job<'p>, PendingOut), Drop> {
    let seq = run.take()?;
    let (buffer, start, end) = packet.parts();
    let mut frame = Frame::new(buffer, *start as usize..*end as usize)?;
    frame.truncate(ip.total_len)?;
    let (op, pending) = prepare_out(sa, &sa.lanes[run.lane], SeqNo(seq), ip, &mut frame)?;
    let range = frame.range();
    (*start, *end) = (range.start as u32, range.end as u32);
    Ok((Job::new(op, frame.into_bytes()), pending))
}

/// Consecutive packets of one SA and the sequence numbers that were reserved for them.
struct Run {
    lane: usize,
    next: u64,
    granted: u32,
    left: u32,
    finish: bool,
    /// Why a packet without a number goes no further.
    why: Drop,
}

impl Default for Run {
    fn default() -> Self {
        Self { lane: 0, next: 0, granted: 0, left: 0, finish: false, why: Drop::Inconsistent }
    }
}

impl Run {
    fn take(&mut self) -> Result<u64, Drop> {
        self.left -= 1;
        if self.granted == 0 {
            return Err(self.why);
        }
        self.granted -= 1;
        let seq = self.next;
        self.next += 1;
        Ok(seq)
    }
}
