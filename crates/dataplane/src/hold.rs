//! Hold queue: packets that wait for the negotiation of an SA, and the requests for SAs.
//!
//! A packet that matches a trap policy is copied into one of a fixed number of buffers, and its
//! flow is reported to the control side through a bounded ring. When tables are published the
//! packets whose policy has become another go their way, in order. The others are dropped after
//! [`HOLD_MS`].
//!
//! Packets also wait here for proof that the peer has an SA which it requested
//! ([`crate::UnconfirmedSa`]).
//!
//! A trap that is installed again after an SA has another number: earlier reports of it are
//! ignored, and held packets request an SA again.

use std::collections::VecDeque;
use std::net::IpAddr;

use ipsec::TRAP_PER_HOST;
use wire::{FlowKey, IpPacket};

use crate::{Batch, Packet};

/// Maximum time that a packet is held, in milliseconds.
const HOLD_MS: u64 = 10_000;
/// Packets held per trap: enough for the first packets of connections, too few to buffer a stream.
const MAX_PER_TRAP: usize = 16;
/// Packets held per host of a trap with [`TRAP_PER_HOST`], so that a scan of silent hosts cannot
/// use up all buffers.
const MAX_PER_HOST: usize = 4;
/// Minimum time between two reports of a trap, in milliseconds.
const QUIET_MS: u64 = 1_000;
/// Number of remembered reports, a power of two.
const REMEMBERED: usize = 64;

/// Destination of a packet without a readable header.
const NOWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

/// A request for an SA.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Acquire {
    /// Trap policy that the packet matched.
    pub trap: u32,
    /// Core without an SA of its own; the fallback SA carries its packets until then (RFC 9611).
    pub core: Option<u32>,
    /// Flow of the packet.
    pub key: FlowKey,
}

/// Hold queue of one worker.
pub(crate) struct Hold {
    held: VecDeque<Held>,
    spare: Vec<Packet>,
    /// Generation of the tables in which the held packets were last looked up.
    generation: u64,
    /// Some packets wait for proof of the peer, which does not depend on the tables.
    for_sign: bool,
    acquires: rtrb::Producer<Acquire>,
    /// An SA was requested since the last [`Hold::take_requested`].
    requested: bool,
    /// Recent reports, and the times from which they may be repeated.
    reported: [(Option<About>, u64); REMEMBERED],
}

/// Reason to hold a packet further.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HoldReason {
    /// It matches the trap with this number.
    Trapped(u32),
    /// The peer may not have the SA yet.
    Unconfirmed,
}

struct Held {
    at_ms: u64,
    trap: u32,
    packet: Packet,
}

/// Subject of a report: trap, whether for a core, and the host where each has SAs of its own.
#[derive(Clone, Copy, Eq, PartialEq)]
struct About(u32, bool, Option<IpAddr>);

impl About {
    fn of(acquire: &Acquire) -> Self {
        Self(acquire.trap, acquire.core.is_some(), host(acquire.trap, || acquire.key.addresses().1))
    }

    /// Slot that it is remembered in.
    fn slot(&self) -> usize {
        let of_host = match self.2 {
            Some(IpAddr::V4(addr)) => addr.to_bits(),
            Some(IpAddr::V6(addr)) => (addr.to_bits() ^ (addr.to_bits() >> 64)) as u32,
            None => 0,
        };
        // Hosts of one network differ in the last bits; traps in theirs.
        (self.0 ^ of_host ^ (of_host >> 8)) as usize & (REMEMBERED - 1)
    }
}

/// The destination, where packets for different ones request different SAs.
fn host(trap: u32, destination: impl FnOnce() -> IpAddr) -> Option<IpAddr> {
    (trap & TRAP_PER_HOST != 0).then(destination)
}

impl Hold {
    /// Allocates buffers for `places` packets of `bytes` bytes. Unused pages are never touched, so
    /// that they take no physical memory.
    pub(crate) fn new(places: usize, bytes: usize, acquires: rtrb::Producer<Acquire>) -> Self {
        Self {
            held: VecDeque::with_capacity(places),
            spare: (0..places).map(|_| Packet::new(bytes)).collect(),
            generation: 0,
            for_sign: false,
            acquires,
            requested: false,
            reported: [(None, 0); REMEMBERED],
        }
    }

    /// Stores a copy of `packet`. Returns false without a free buffer.
    pub(crate) fn keep(&mut self, now_ms: u64, generation: u64, trap: u32, packet: &[u8]) -> bool {
        let destination = |packet: &[u8]| host(trap, || IpPacket::parse(packet).map_or(NOWHERE, |ip| ip.dst));
        let (to, most) = (destination(packet), if trap & TRAP_PER_HOST == 0 { MAX_PER_TRAP } else { MAX_PER_HOST });
        let same_request = |held: &&Held| held.trap == trap && (to.is_none() || destination(held.packet.bytes()) == to);
        if self.held.iter().filter(same_request).count() >= most {
            return false;
        }
        let Some(mut place) = self.spare.pop() else { return false };
        if !place.set(packet) {
            self.spare.push(place);
            return false;
        }
        // A queue with packets keeps the older generation, in which they were last looked up.
        if self.held.is_empty() {
            self.generation = generation;
        }
        self.held.push_back(Held { at_ms: now_ms, trap, packet: place });
        true
    }

    /// [`Hold::keep`] for a packet that waits for proof of the peer.
    pub(crate) fn keep_for_peer(&mut self, now_ms: u64, generation: u64, trap: u32, packet: &[u8]) -> bool {
        let kept = self.keep(now_ms, generation, trap, packet);
        self.for_sign |= kept;
        kept
    }

    /// Requests an SA from the control side, unless it was requested recently. A full ring is not
    /// an error, because the next packet repeats the request.
    pub(crate) fn report(&mut self, now_ms: u64, acquire: Acquire) {
        let about = About::of(&acquire);
        let last = &mut self.reported[about.slot()];
        if last.0 == Some(about) && now_ms < last.1 {
            return;
        }
        // Not remembered if the ring is full: otherwise the trap would be silent for `QUIET_MS`.
        if self.acquires.push(acquire).is_ok() {
            *last = (Some(about), now_ms + QUIET_MS);
            self.requested = true;
        }
    }

    /// Returns true if an SA was requested since the last call: the caller should wake the control
    /// side.
    #[inline]
    pub(crate) fn take_requested(&mut self) -> bool {
        std::mem::take(&mut self.requested)
    }

    /// Returns true if no packet is held.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns true if tables of `generation`, or proof of the peer, may release a held packet.
    pub(crate) fn needs_release(&self, generation: u64) -> bool {
        !self.held.is_empty() && (self.generation != generation || self.for_sign)
    }

    /// Returns true if a held packet waits for proof of the peer: the queue should be checked
    /// often.
    pub(crate) fn awaits_peer_traffic(&self) -> bool {
        self.for_sign && !self.held.is_empty()
    }

    /// Moves packets without a reason to wait into `batch`, as many as fit. `hold_reason` returns
    /// the reason to hold a packet further. Each packet is looked up again: it may be for another
    /// SA, or for another trap, than before.
    pub(crate) fn release(
        &mut self,
        now_ms: u64,
        generation: u64,
        hold_reason: impl Fn(&FlowKey) -> Option<HoldReason>,
        batch: &mut Batch,
    ) {
        let mut complete = true;
        self.for_sign = false;
        // Every packet goes through the queue once, so that those that remain keep their order.
        // `age` and delivery depend on it.
        for _ in 0..self.held.len() {
            let Some(mut held) = self.held.pop_front() else { break };
            let bytes = held.packet.bytes();
            let key = IpPacket::parse(bytes).ok().map(|ip| FlowKey::of(&ip, bytes));
            match key.and_then(|key| Some((hold_reason(&key)?, key))) {
                Some((HoldReason::Trapped(trap), key)) => {
                    if std::mem::replace(&mut held.trap, trap) != trap {
                        self.report(now_ms, Acquire { trap, core: None, key });
                    }
                    self.held.push_back(held);
                }
                Some((HoldReason::Unconfirmed, _)) => {
                    self.for_sign = true;
                    self.held.push_back(held);
                }
                None if batch.push_with(|to| to.set(bytes)) => self.spare.push(held.packet),
                None => {
                    complete = false;
                    self.held.push_back(held);
                }
            }
        }
        // If the batch was full, the old generation stays, so that the next call tries the
        // remaining packets again.
        if complete {
            self.generation = generation;
        }
    }

    /// Drops packets that timed out and returns their number.
    pub(crate) fn age(&mut self, now_ms: u64) -> u64 {
        // The queue is sorted by arrival.
        let mut given_up = 0;
        while let Some(held) = self.held.pop_front_if(|held| now_ms.saturating_sub(held.at_ms) >= HOLD_MS) {
            self.spare.push(held.packet);
            given_up += 1;
        }
        given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(last: u8) -> [u8; 28] {
        let mut packet = [0; 28];
        (packet[0], packet[3], packet[8], packet[9]) = (0x45, 28, 64, 17);
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, last]);
        packet[27] = 0;
        packet[24..26].copy_from_slice(&8u16.to_be_bytes());
        packet
    }

    /// Everything waits behind the trap of this number.
    fn trapped(trap: u32) -> impl Fn(&FlowKey) -> Option<HoldReason> {
        move |_| Some(HoldReason::Trapped(trap))
    }

    fn free(_: &FlowKey) -> Option<HoldReason> {
        None
    }

    fn hold(places: usize) -> (Hold, rtrb::Consumer<Acquire>) {
        let (producer, consumer) = rtrb::RingBuffer::new(4);
        (Hold::new(places, 2048, producer), consumer)
    }

    #[test]
    fn packets_wait_for_other_tables_and_go_in_order() {
        let (mut hold, _acquires) = hold(8);
        for last in 2..5 {
            assert!(hold.keep(0, 1, 7, &packet(last)));
        }
        assert!(!hold.needs_release(1));
        assert!(hold.needs_release(2));
        let mut batch = Batch::new(8, 2048);
        hold.release(0, 2, trapped(7), &mut batch);
        assert!(batch.is_empty() && !hold.needs_release(2));
        hold.release(0, 3, free, &mut batch);
        let order: Vec<u8> = batch.packets().iter().map(|packet| packet.bytes()[19]).collect();
        assert_eq!(order, [2, 3, 4]);
        assert!(!hold.needs_release(4));
    }

    #[test]
    fn a_batch_without_room_leaves_the_rest_for_the_next() {
        let (mut hold, _acquires) = hold(8);
        for last in 2..5 {
            assert!(hold.keep(0, 1, 7, &packet(last)));
        }
        let mut batch = Batch::new(2, 2048);
        hold.release(0, 2, free, &mut batch);
        assert_eq!(batch.len(), 2);
        assert!(hold.needs_release(2));
        batch.clear();
        hold.release(0, 2, free, &mut batch);
        assert_eq!(batch.packets()[0].bytes()[19], 4);
        assert!(!hold.needs_release(2));
    }

    #[test]
    fn one_trap_cannot_fill_every_place_and_nothing_is_held_for_ever() {
        let (mut hold, _acquires) = hold(MAX_PER_TRAP + 2);
        let kept = (0..40).filter(|_| hold.keep(5, 1, 7, &packet(2))).count();
        assert_eq!(kept, MAX_PER_TRAP);
        assert!(hold.keep(100, 1, 8, &packet(2)) && hold.keep(100, 1, 9, &packet(2)));
        assert!(!hold.keep(100, 1, 10, &packet(2)), "no place is left");
        assert_eq!(hold.age(5 + HOLD_MS - 1), 0);
        assert_eq!(hold.age(5 + HOLD_MS), MAX_PER_TRAP as u64);
        assert_eq!(hold.age(100 + HOLD_MS), 2);
        assert!(hold.keep(0, 1, 7, &packet(2)));
    }

    #[test]
    fn a_trap_is_reported_once_in_a_while() {
        let (mut hold, mut acquires) = hold(1);
        let key = FlowKey::of(&IpPacket::parse(&packet(2)).unwrap(), &packet(2));
        let mut requested = |now, trap, core| {
            hold.report(now, Acquire { trap, core, key });
            acquires.pop().is_ok()
        };
        assert!(requested(10, 1, None));
        assert!(!requested(10 + QUIET_MS - 1, 1, None));
        assert!(requested(10 + QUIET_MS, 1, None));
        assert!(requested(10 + QUIET_MS, 2, None));
        assert!(requested(10 + QUIET_MS, 1, Some(3)));
    }

    #[test]
    fn each_host_behind_a_trap_of_its_own_is_reported_and_has_places() {
        let (mut hold, mut acquires) = hold(64);
        let trap = 3 | TRAP_PER_HOST;
        let mut requested = |now, last| {
            let key = FlowKey::of(&IpPacket::parse(&packet(last)).unwrap(), &packet(last));
            hold.report(now, Acquire { trap, core: None, key });
            acquires.pop().is_ok()
        };
        assert!(requested(10, 2) && requested(11, 3), "another host is another request");
        assert!(!requested(12, 2) && !requested(12, 3));
        assert!(requested(10 + QUIET_MS, 2));
        let mut kept = |last| (0..40).filter(|_| hold.keep(5, 1, trap, &packet(last))).count();
        assert_eq!((kept(2), kept(3)), (MAX_PER_HOST, MAX_PER_HOST));
    }

    #[test]
    fn a_packet_whose_trap_stands_anew_asks_anew() {
        let (mut hold, mut acquires) = hold(2);
        let key = FlowKey::of(&IpPacket::parse(&packet(2)).unwrap(), &packet(2));
        let mut batch = Batch::new(8, 2048);
        hold.report(10, Acquire { trap: 7, core: None, key });
        assert!(acquires.pop().is_ok());
        // An SA came and went within moments; the trap behind it has another number now.
        assert!(hold.keep(20, 4, 7, &packet(2)));
        hold.report(20, Acquire { trap: 7, core: None, key });
        assert!(acquires.pop().is_err());
        hold.release(20, 5, trapped(8), &mut batch);
        assert_eq!(acquires.pop(), Ok(Acquire { trap: 8, core: None, key }));
        hold.release(21, 6, trapped(8), &mut batch);
        assert!(acquires.pop().is_err() && batch.is_empty());
    }

    #[test]
    fn a_packet_that_waits_for_a_sign_is_looked_at_without_new_tables() {
        let (mut hold, mut acquires) = hold(2);
        let mut batch = Batch::new(8, 2048);
        assert!(hold.keep_for_peer(0, 1, 7, &packet(2)));
        assert!(hold.needs_release(1) && hold.awaits_peer_traffic());
        hold.release(0, 1, |_| Some(HoldReason::Unconfirmed), &mut batch);
        assert!(batch.is_empty() && hold.needs_release(1) && hold.awaits_peer_traffic());
        hold.release(1, 1, free, &mut batch);
        assert!(batch.len() == 1 && hold.is_empty() && !hold.awaits_peer_traffic());
        assert!(acquires.pop().is_err(), "nothing is requested");
    }
}
