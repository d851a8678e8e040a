//! The fragments of one packet, each at its final offset.

use wire::ip::{
    Extensions, IPV4_HEADER, IPV6_HEADER, Ipv4Header, MORE_FRAGMENTS, set_ecn, set_total_len, update_checksum_v4,
};
use wire::{Fragment, IpPacket};
use zerocopy::FromBytes;

use crate::DropReason;
use crate::ecn::Ecn;

/// Longest header of a fragment: IPv4 with options has 60 bytes, IPv6 extension headers before the
/// fragment header are few and short. Longer ones are refused.
const MAX_HEADER: usize = 256;
/// Bytes per bit of the map: fragments start at multiples of it.
const UNIT: usize = 8;
/// Maximum length of an IP packet.
const MAX_PACKET: usize = 65_535;

/// Result of a fragment.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Progress {
    Incomplete,
    /// All fragments have arrived.
    Complete,
}

pub(super) struct Fragments {
    /// The header of the first fragment ends, and the payload starts, at offset `MAX_HEADER`.
    buffer: Box<[u8]>,
    /// One bit per received unit of payload.
    map: Box<[u64]>,
    /// Number of received units.
    units: usize,
    /// Header of the first fragment without the IPv6 fragment header, once that fragment came.
    header_len: Option<usize>,
    /// Bytes of payload, once the last fragment came.
    payload_len: Option<usize>,
    /// End of the highest fragment.
    highest: usize,
    /// ECN fields that were seen, a bit for each value.
    ecn_seen: u8,
}

impl Fragments {
    pub(super) fn new(packet_bytes: usize) -> Self {
        let packet_bytes = packet_bytes.min(MAX_PACKET);
        Self {
            buffer: vec![0; MAX_HEADER + packet_bytes].into(),
            map: vec![0; packet_bytes.div_ceil(UNIT * 64)].into(),
            units: 0,
            header_len: None,
            payload_len: None,
            highest: 0,
            ecn_seen: 0,
        }
    }

    /// Resets the buffer for another packet.
    pub(super) fn clear(&mut self) {
        self.map[..self.highest.div_ceil(UNIT * 64)].fill(0);
        (self.units, self.highest, self.ecn_seen) = (0, 0, 0);
        (self.header_len, self.payload_len) = (None, None);
    }

    /// Takes the fragment with this `payload`.
    ///
    /// # Errors
    /// Reason to discard the whole packet.
    pub(super) fn take(
        &mut self,
        ip: &IpPacket,
        fragment: Fragment,
        packet: &[u8],
        payload: &[u8],
    ) -> Result<Progress, DropReason> {
        let (start, end) = (fragment.offset, fragment.offset + payload.len());
        let room = self.buffer.len() - MAX_HEADER;
        let header = if ip.is_v6() { IPV6_HEADER } else { IPV4_HEADER };
        // Fragments with different ends of the packet count as an overlap.
        let too_long =
            header + end > room || self.payload_len.is_some_and(|len| end > len || (!fragment.more && end != len));
        if too_long || (!fragment.more && end < self.highest) {
            return Err(DropReason::ReassemblyFull);
        }
        let kept = &mut self.buffer[MAX_HEADER + start..MAX_HEADER + end];
        let units = start / UNIT..end.div_ceil(UNIT);
        match count(&self.map, units.clone()) {
            0 => {}
            n if n == units.len() && kept == payload => return Ok(Progress::Incomplete),
            _ => return Err(DropReason::ReassemblyFull),
        }
        kept.copy_from_slice(payload);
        set(&mut self.map, units.clone());
        self.units += units.len();
        self.highest = self.highest.max(end);
        self.ecn_seen |= 1 << Ecn::of(ip.tos).bits();
        if !fragment.more {
            self.payload_len = Some(end);
        }
        if start == 0 {
            self.keep_header(ip, packet)?;
        }
        let whole = self.payload_len.is_some_and(|len| self.units == len.div_ceil(UNIT));
        Ok(if whole { Progress::Complete } else { Progress::Incomplete })
    }

    /// The packet, after [`Fragments::take`] reported that it is complete.
    pub(super) fn finish(&mut self, v6: bool) -> Result<&[u8], DropReason> {
        let (Some(header_len), Some(payload_len)) = (self.header_len, self.payload_len) else {
            return Err(DropReason::Inconsistent);
        };
        let total = header_len + payload_len;
        let start = MAX_HEADER - header_len;
        if total > self.buffer.len() - MAX_HEADER {
            return Err(DropReason::ReassemblyFull);
        }
        let packet = &mut self.buffer[start..start + total];
        if !v6 {
            let (header, _) = Ipv4Header::mut_from_prefix(packet).map_err(|_| DropReason::Inconsistent)?;
            header.flags_fragment = (header.flags_fragment.get() & !MORE_FRAGMENTS).into();
            update_checksum_v4(packet)?;
        }
        set_total_len(packet, total).map_err(|_| DropReason::ReassemblyFull)?;
        let seen = |ecn: Ecn| self.ecn_seen >> ecn.bits() & 1 == 1;
        if seen(Ecn::CE) {
            if seen(Ecn::NOT_ECT) {
                return Err(DropReason::EcnCe);
            }
            set_ecn(packet, Ecn::CE.bits())?;
        }
        Ok(packet)
    }

    /// Keeps the header of the first fragment, which becomes that of the packet.
    fn keep_header(&mut self, ip: &IpPacket, packet: &[u8]) -> Result<(), DropReason> {
        // The fragment header, 8 bytes before its payload, is no part of the packet.
        let len = if ip.is_v6() { ip.upper_at - UNIT } else { ip.upper_at };
        let header = packet.get(..len).ok_or(DropReason::Truncated)?;
        let start = MAX_HEADER.checked_sub(len).ok_or(DropReason::ReassemblyFull)?;
        self.buffer[start..MAX_HEADER].copy_from_slice(header);
        if ip.is_v6() {
            // Whatever named the fragment header now names what it named.
            let before = Extensions::new(packet).map_while(Result::ok).take_while(|extension| extension.at < len);
            let names_next = before.last().map_or(6, |extension| extension.at);
            self.buffer[start + names_next] = ip.upper.0;
        }
        self.header_len = Some(len);
        Ok(())
    }
}

/// Bits set among `units`.
fn count(map: &[u64], units: std::ops::Range<usize>) -> usize {
    masks(units).map(|(word, mask)| (map[word] & mask).count_ones() as usize).sum()
}

fn set(map: &mut [u64], units: std::ops::Range<usize>) {
    for (word, mask) in masks(units) {
        map[word] |= mask;
    }
}

/// The words that hold `units`, each with the bits that are among them.
fn masks(units: std::ops::Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    (units.start / 64..units.end.div_ceil(64)).map(move |word| {
        let below = units.start.saturating_sub(word * 64);
        let above = (word * 64 + 64).saturating_sub(units.end);
        (word, (u64::MAX << below) & (u64::MAX >> above))
    })
}
