//! Reassembly of outer fragments within a bound (RFC 791 §3.2, RFC 8200 §4.5).
//!
//! A fixed number of slots is allocated once; each holds the fragments of one packet at their final
//! offset and one bit per 8 received bytes. Nothing is allocated afterwards, so that an attacker
//! cannot exhaust memory. When all slots are in use, the oldest packet is evicted.
//!
//! An overlapping fragment discards the whole packet, and its slot discards further fragments of it
//! until the timeout (RFC 5722 §3). This also applies to IPv4, where RFC 791 lets the later
//! fragment win, so that two receivers could reassemble different packets. A fragment that repeats
//! received bytes exactly is not an overlap but a duplicate and is ignored (RFC 8200 §4.5).

mod fragments;

use std::net::IpAddr;

use wire::{IpPacket, IpProto};

use crate::DropReason;
use fragments::{Fragments, Progress};

/// Result of a fragment.
#[derive(Debug)]
pub enum Reassembled<'a> {
    /// Kept; more are missing.
    Waiting,
    /// The whole packet, with an unfragmented header.
    Whole(&'a [u8]),
}

/// Reassembly buffers. Slots are searched linearly, so there should be no more than a few hundred.
pub struct Reassembler {
    slots: Box<[Slot]>,
    timeout_ms: u64,
    drops: ReassemblyDrops,
}

/// Counters of packets that were never completed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ReassemblyDrops {
    /// Timed out ([`DropReason::ReassemblyTimeout`]).
    pub timed_out: u64,
    /// Evicted by a newer packet ([`DropReason::ReassemblyFull`]).
    pub evicted: u64,
}

/// Common fields of the fragments of one packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Key {
    src: IpAddr,
    dst: IpAddr,
    id: u32,
    /// IPv4 only (RFC 791 §3.2); IPv6 packets are identified by addresses and identification.
    proto: IpProto,
}

struct Slot {
    /// `None`: free.
    key: Option<Key>,
    since_ms: u64,
    /// Discarded: the slot keeps the key only, to drop further fragments.
    spoiled: bool,
    fragments: Fragments,
}

impl Reassembler {
    /// Allocates buffers for `packets` packets of at most `packet_bytes` each (65,535 at most, the
    /// maximum length of an IP packet): about `packets * packet_bytes * 65 / 64` bytes. A packet
    /// times out after `timeout_ms`, which should be at least 15 s (RFC 791 §3.2).
    pub fn new(packets: usize, packet_bytes: usize, timeout_ms: u64) -> Self {
        let slot = |_| Slot { key: None, since_ms: 0, spoiled: false, fragments: Fragments::new(packet_bytes) };
        Self { slots: (0..packets).map(slot).collect(), timeout_ms, drops: ReassemblyDrops::default() }
    }

    /// Takes a fragment that arrived at `now_ms` (any monotonic clock).
    ///
    /// # Errors
    /// [`DropReason::ReassemblyFull`] for an overlap (RFC 5722: the whole packet is discarded), for
    /// a packet beyond the bound, or if there are no slots. [`DropReason::Malformed`] for an
    /// invalid fragment: only the fragment is dropped. [`DropReason::EcnCe`] when a congestion mark
    /// is on fragments of a sender without ECN (RFC 3168 §5.3). [`DropReason::Inconsistent`] if the
    /// packet is not a fragment.
    pub fn push(&mut self, now_ms: u64, ip: &IpPacket, packet: &[u8]) -> Result<Reassembled<'_>, DropReason> {
        let fragment = ip.fragment.ok_or(DropReason::Inconsistent)?;
        let payload = packet.get(ip.upper_at..ip.total_len).ok_or(DropReason::Truncated)?;
        if payload.is_empty() || (fragment.more && !payload.len().is_multiple_of(8)) {
            return Err(DropReason::Malformed);
        }
        let proto = if ip.is_v6() { IpProto::NONE } else { ip.upper };
        let at = self.slot_for(now_ms, Key { src: ip.src, dst: ip.dst, id: fragment.id, proto })?;
        let slot = &mut self.slots[at];
        if slot.spoiled {
            return Err(DropReason::ReassemblyFull);
        }
        match slot.fragments.take(ip, fragment, packet, payload) {
            Ok(Progress::Incomplete) => Ok(Reassembled::Waiting),
            Ok(Progress::Complete) => {
                slot.key = None;
                slot.fragments.finish(ip.is_v6()).map(Reassembled::Whole)
            }
            Err(why) => {
                slot.spoiled = true;
                Err(why)
            }
        }
    }

    /// Discards packets that have timed out. Regular calls are optional, because a new packet also
    /// frees expired slots; they keep [`Reassembler::drops`] up to date.
    pub fn expire(&mut self, now_ms: u64) {
        for slot in &mut self.slots {
            if slot.key.is_some() && now_ms.saturating_sub(slot.since_ms) >= self.timeout_ms {
                slot.key = None;
                self.drops.timed_out += u64::from(!slot.spoiled);
            }
        }
    }

    /// Returns the packets lost so far, without those for which [`Reassembler::push`] returned an
    /// error.
    pub fn drops(&self) -> ReassemblyDrops {
        self.drops
    }

    /// Returns the slot of the packet `key`, or a new one.
    fn slot_for(&mut self, now_ms: u64, key: Key) -> Result<usize, DropReason> {
        self.expire(now_ms);
        if let Some(at) = self.slots.iter().position(|slot| slot.key == Some(key)) {
            return Ok(at);
        }
        // Free slots first, then discarded packets, then the oldest packet.
        let rank = |slot: &Slot| (slot.key.is_some(), slot.key.is_some() && !slot.spoiled, slot.since_ms);
        let (at, slot) =
            self.slots.iter_mut().enumerate().min_by_key(|(_, slot)| rank(slot)).ok_or(DropReason::ReassemblyFull)?;
        self.drops.evicted += u64::from(slot.key.is_some() && !slot.spoiled);
        (slot.key, slot.since_ms, slot.spoiled) = (Some(key), now_ms, false);
        slot.fragments.clear();
        Ok(at)
    }
}

#[cfg(test)]
mod tests;
