//! Reassembly of outer fragments within a bound (RFC 791 §3.2, RFC 8200 §4.5).
//!
//! A fixed number of places is made once; each holds the fragments of one packet at their final
//! offset and a bit per 8 bytes that came. Nothing is allocated afterwards, whatever arrives. When
//! all places are taken the oldest packet is given up.
//!
//! A fragment that overlaps others gives the whole packet up, and its place goes on to swallow
//! what else belongs to it until the timeout (RFC 5722 §3; for IPv4 as well, where RFC 791 would
//! let the later one win and so lets two receivers see two packets). A fragment that repeats what
//! is there, byte for byte, is no overlap but a duplicate and is ignored (RFC 8200 §4.5).

mod place;

use std::net::IpAddr;

use wire::{IpPacket, IpProto};

use crate::Drop;
use place::{Place, Took};

/// Result of a fragment.
#[derive(Debug)]
pub enum Reassembled<'a> {
    /// Kept; more are missing.
    Waiting,
    /// The whole packet, with an unfragmented header.
    Whole(&'a [u8]),
}

/// Fragments that wait for the rest of their packet. Places are searched one by one: meant for
/// some hundreds of them at most.
pub struct Reassembler {
    places: Box<[Slot]>,
    timeout_ms: u64,
    lost: Lost,
}

/// Packets that never became whole.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Lost {
    /// Their time ran out ([`Drop::ReassemblyTimeout`]).
    pub timed_out: u64,
    /// They had to make room for a newer one ([`Drop::ReassemblyFull`]).
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
    /// Given up: holds the key only, to swallow what else comes.
    spoiled: bool,
    place: Place,
}

impl Reassembler {
    /// Room for `packets` packets at a time, of at most `packet_bytes` each (65,535 at most, as no
    /// IP packet is longer): about `packets * packet_bytes * 65 / 64` bytes in all, allocated now.
    /// Given up after `timeout_ms`.
    pub fn new(packets: usize, packet_bytes: usize, timeout_ms: u64) -> Self {
        let slot = |_| Slot { key: None, since_ms: 0, spoiled: false, place: Place::new(packet_bytes) };
        Self { places: (0..packets).map(slot).collect(), timeout_ms, lost: Lost::default() }
    }

    /// Takes a fragment that arrived at `now_ms` (any monotonic clock).
    ///
    /// # Errors
    /// [`Drop::ReassemblyFull`] on overlap (RFC 5722: the whole packet is given up), on a packet
    /// beyond the bound, or when no room can be made. [`Drop::Malformed`] for a fragment that
    /// breaks the format: it alone is dropped. [`Drop::EcnCe`] when a congestion mark is on
    /// fragments of a sender without ECN (RFC 3168 §5.3). [`Drop::Inconsistent`] when the packet is
    /// no fragment.
    pub fn push(&mut self, now_ms: u64, ip: &IpPacket, packet: &[u8]) -> Result<Reassembled<'_>, Drop> {
        let fragment = ip.fragment.ok_or(Drop::Inconsistent)?;
        let payload = packet.get(ip.upper_at..ip.total_len).ok_or(Drop::Truncated)?;
        if payload.is_empty() || (fragment.more && !payload.len().is_multiple_of(8)) {
            return Err(Drop::Malformed);
        }
        let proto = if ip.is_v6() { IpProto::NONE } else { ip.upper };
        let at = self.slot_for(now_ms, Key { src: ip.src, dst: ip.dst, id: fragment.id, proto })?;
        let slot = &mut self.places[at];
        if slot.spoiled {
            return Err(Drop::ReassemblyFull);
        }
        match slot.place.take(ip, fragment, packet, payload) {
            Ok(Took::Part) => Ok(Reassembled::Waiting),
            Ok(Took::Last) => {
                slot.key = None;
                slot.place.finish(ip.is_v6()).map(Reassembled::Whole)
            }
            Err(why) => {
                slot.spoiled = true;
                Err(why)
            }
        }
    }

    /// Gives up what has waited too long. Needs no regular call, since a place is also freed when
    /// another packet wants it; regular calls make [`Reassembler::lost`] timely.
    pub fn expire(&mut self, now_ms: u64) {
        for slot in &mut self.places {
            if slot.key.is_some() && now_ms.saturating_sub(slot.since_ms) >= self.timeout_ms {
                slot.key = None;
                self.lost.timed_out += u64::from(!slot.spoiled);
            }
        }
    }

    /// Packets lost so far, those not counted that were given up with an error from
    /// [`Reassembler::push`].
    pub fn lost(&self) -> Lost {
        self.lost
    }

    /// The place of the packet `key`, a fresh one if it has none yet.
    fn slot_for(&mut self, now_ms: u64, key: Key) -> Result<usize, Drop> {
        self.expire(now_ms);
        if let Some(at) = self.places.iter().position(|slot| slot.key == Some(key)) {
            return Ok(at);
        }
        // Free ones first, then the oldest, spoiled ones before others.
        let rank = |slot: &Slot| (slot.key.is_some(), slot.key.is_some() && !slot.spoiled, slot.since_ms);
        let (at, slot) =
            self.places.iter_mut().enumerate().min_by_key(|(_, slot)| rank(slot)).ok_or(Drop::ReassemblyFull)?;
        self.lost.evicted += u64::from(slot.key.is_some() && !slot.spoiled);
        (slot.key, slot.since_ms, slot.spoiled) = (Some(key), now_ms, false);
        slot.place.clear();
        Ok(at)
    }
}

#[cfg(test)]
mod tests;
