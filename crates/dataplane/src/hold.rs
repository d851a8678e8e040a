//! Packets that wait for an SA to be negotiated, and the request for it.
//!
//! A packet that meets a trap policy is copied into one of a fixed number of places; the control side
//! hears of the flow through a bounded ring. When tables are published the packets whose policy has
//! become another go their way, in order. The others are dropped after [`HOLD_MS`].

use std::collections::VecDeque;

use ipsec::{Action, Spd};
use wire::{FlowKey, IpPacket};

use crate::{Batch, Packet};

/// How long a packet is held.
const HOLD_MS: u64 = 10_000;
/// Packets held for one trap: enough for the handshakes that wait, not for a stream.
const MAX_PER_TRAP: usize = 16;
/// A trap is not reported again for this long.
const QUIET_MS: u64 = 1_000;
/// Traps whose last report is remembered, a power of two.
const REMEMBERED: usize = 64;

/// A request for an SA.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Acquire {
    /// Which trap policy was met.
    pub trap: u32,
    /// The core that has no SA of its own, when another SA carries its packets meanwhile (RFC 9611).
    pub core: Option<u32>,
    /// The packet.
    pub key: FlowKey,
}

/// What one worker holds.
pub(crate) struct Hold {
    held: VecDeque<Held>,
    spare: Vec<Packet>,
    /// Generation of the tables that the held packets were last looked up in.
    generation: u64,
    acquires: rtrb::Producer<Acquire>,
    /// Trap, whether for a core, and when it may be reported again.
    reported: [(u32, bool, u64); REMEMBERED],
}

struct Held {
    at_ms: u64,
    trap: u32,
    packet: Packet,
}

impl Hold {
    /// Room for `places` packets of `bytes` bytes; pages that no packet reaches into are never touched.
    pub(crate) fn new(places: usize, bytes: usize, acquires: rtrb::Producer<Acquire>) -> Self {
        Self {
            held: VecDeque::with_capacity(places),
            spare: (0..places).map(|_| Packet::new(bytes)).collect(),
            generation: 0,
            acquires,
            reported: [(0, false, 0); REMEMBERED],
        }
    }

    /// Takes a copy of `packet`; false when there is no room for it.
    pub(crate) fn keep(&mut self, now_ms: u64, generation: u64, trap: u32, packet: &[u8]) -> bool {
        if self.held.iter().filter(|held| held.trap == trap).count() >= MAX_PER_TRAP {
            return false;
        }
        let Some(mut place) = self.spare.pop() else { return false };
        if !place.set(packet) {
            self.spare.push(place);
            return false;
        }
        if self.held.is_empty() {
            self.generation = generation;
        }
        self.held.push_back(Held { at_ms: now_ms, trap, packet: place });
        true
    }

    /// Asks the control side, unless it has just been asked. A full ring is no loss: the next packet asks again.
    pub(crate) fn report(&mut self, now_ms: u64, acquire: Acquire) {
        let last = &mut self.reported[acquire.trap as usize & (REMEMBERED - 1)];
        let about = (acquire.trap, acquire.core.is_some());
        if (last.0, last.1) == about && now_ms < last.2 {
            return;
        }
        if self.acquires.push(acquire).is_ok() {
            *last = (about.0, about.1, now_ms + QUIET_MS);
        }
    }

    /// True when nothing is held.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// True when tables of `generation` may let a held packet go.
    pub(crate) fn stirs(&self, generation: u64) -> bool {
        !self.held.is_empty() && self.generation != generation
    }

    /// Moves the packets that no trap holds any longer into `batch`, as many as it takes.
    pub(crate) fn release(&mut self, generation: u64, spd: &Spd, batch: &mut Batch) {
        let mut complete = true;
        for _ in 0..self.held.len() {
            let Some(held) = self.held.pop_front() else { break };
            let bytes = held.packet.bytes();
            let action = IpPacket::parse(bytes).ok().and_then(|ip| spd.outbound(&FlowKey::of(&ip, bytes)));
            let trapped = matches!(action, Some((_, Action::Trap(_))));
            if !trapped && batch.push_with(|to| to.set(bytes)) {
                self.spare.push(held.packet);
            } else {
                complete &= trapped;
                self.held.push_back(held);
            }
        }
        if complete {
            self.generation = generation;
        }
    }

    /// Gives up what was held too long; returns how many packets that were.
    pub(crate) fn age(&mut self, now_ms: u64) -> u64 {
        // In the order of their times.
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
    use ipsec::Policy;
    use wire::{AddrRange, Selector};

    use super::*;

    fn packet(last: u8) -> [u8; 28] {
        let mut packet = [0; 28];
        (packet[0], packet[3], packet[8], packet[9]) = (0x45, 28, 64, 17);
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, last]);
        packet[27] = 0;
        packet[24..26].copy_from_slice(&8u16.to_be_bytes());
        packet
    }

    fn spd(action: Action) -> Spd {
        let any = AddrRange::from_cidr([10, 0, 0, 0].into(), 24).unwrap();
        Spd::new(vec![Policy { name: "p".into(), selectors: vec![Selector::between(any, any)], action }])
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
        assert!(!hold.stirs(1));
        assert!(hold.stirs(2));
        let mut batch = Batch::new(8, 2048);
        hold.release(2, &spd(Action::Trap(7)), &mut batch);
        assert!(batch.is_empty() && !hold.stirs(2));
        hold.release(3, &spd(Action::Protect { outbound: 0, inbound: 0 }), &mut batch);
        let order: Vec<u8> = batch.packets().iter().map(|packet| packet.bytes()[19]).collect();
        assert_eq!(order, [2, 3, 4]);
        assert!(!hold.stirs(4));
    }

    #[test]
    fn a_batch_without_room_leaves_the_rest_for_the_next() {
        let (mut hold, _acquires) = hold(8);
        for last in 2..5 {
            assert!(hold.keep(0, 1, 7, &packet(last)));
        }
        let mut batch = Batch::new(2, 2048);
        hold.release(2, &spd(Action::Bypass), &mut batch);
        assert_eq!(batch.len(), 2);
        assert!(hold.stirs(2));
        batch.clear();
        hold.release(2, &spd(Action::Bypass), &mut batch);
        assert_eq!(batch.packets()[0].bytes()[19], 4);
        assert!(!hold.stirs(2));
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
        let mut asked = |now, trap, core| {
            hold.report(now, Acquire { trap, core, key });
            acquires.pop().is_ok()
        };
        assert!(asked(10, 1, None));
        assert!(!asked(10 + QUIET_MS - 1, 1, None));
        assert!(asked(10 + QUIET_MS, 1, None));
        assert!(asked(10 + QUIET_MS, 2, None));
        assert!(asked(10 + QUIET_MS, 1, Some(3)));
    }
}
