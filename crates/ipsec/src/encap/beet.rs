//! BEET mode (RFC 7402 appendix B): the inner IP header is not sent, because both ends know its
//! addresses; the outer header carries its other fields.
//!
//! IPv4 options travel in a pseudo header in front of the payload (protocol 94):
//!
//! ```text
//! | Next Header | Header Len | Pad Len | Reserved | padding (NOP) | IPv4 options | payload
//! ```
//!
//! Header Len counts 8-byte units after the first, so that padding is 0 or 4 bytes. IPv6
//! extension headers belong to the payload.

use std::net::IpAddr;

use wire::ip::{self, Brief, DONT_FRAGMENT, IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header};
use wire::{IpPacket, IpProto};
use zerocopy::FromBytes;

use super::header::{Fields, HeaderTemplate};
use super::{Encapsulation, Payload};
use crate::{Beet, DropReason, Frame, PendingIn};

/// Pseudo header without padding and options.
const PSEUDO_LEN: usize = 4;
/// No Operation option (RFC 791 §3.1).
const NOP: u8 = 1;
/// Longest IPv4 options.
const MAX_OPTIONS: usize = 40;

pub(super) fn payload(beet: &Beet, ip: &IpPacket, packet: &[u8]) -> Result<Payload, DropReason> {
    if (ip.src, ip.dst) != (beet.local, beet.remote) {
        return Err(DropReason::PolicyMismatch);
    }
    if ip.fragment.is_some() {
        return Err(DropReason::Fragment);
    }
    if ip.is_v6() {
        let next = IpProto(*packet.get(6).ok_or(DropReason::Truncated)?);
        return Ok(Payload { len: ip.total_len - IPV6_HEADER, next });
    }
    let next = if options_len(ip) == 0 { ip.upper } else { IpProto::BEET };
    Ok(Payload { len: ip.total_len - IPV4_HEADER + pseudo_len(ip), next })
}

/// Replaces the inner header by `outside`; returns the offset of the gap.
pub(super) fn encapsulate(
    template: &HeaderTemplate,
    ip: &IpPacket,
    frame: &mut Frame<'_>,
    outside: Encapsulation,
) -> Result<usize, DropReason> {
    let fields = carried(frame.bytes(), outside.ip_proto())?;
    if ip.is_v6() {
        frame.pull_front(IPV6_HEADER)?;
    } else {
        let pseudo = pseudo_len(ip);
        frame.pull_front(IPV4_HEADER - pseudo)?;
        write_pseudo(&mut frame.bytes_mut()[..pseudo], options_len(ip), ip.upper);
    }
    frame.push_front(template.len() + outside.len())?;
    template.write(frame.bytes_mut(), fields)?;
    outside.finish(frame.bytes_mut(), template.len())
}

/// Rebuilds the inner header in front of the payload.
pub(super) fn decapsulate(
    beet: &Beet,
    frame: &mut Frame<'_>,
    pending: &PendingIn,
    payload_start: usize,
    next: IpProto,
) -> Result<(), DropReason> {
    let template = HeaderTemplate::new(beet.remote, beet.local);
    let Options { at, len: options, next } = match next {
        IpProto::BEET => read_pseudo(beet, frame.bytes(), payload_start)?,
        next => Options { at: payload_start, len: 0, next },
    };
    let mut fields = carried(frame.bytes(), next)?;
    fields.tos = pending.outer_tos;
    match at.checked_sub(template.len()) {
        Some(surplus) => frame.pull_front(surplus)?,
        None => frame.push_front(template.len() - at)?, // IPv6 inside, IPv4 outside
    }
    template.write(frame.bytes_mut(), fields).map_err(|_| DropReason::BadInner)?;
    if options > 0 {
        admit_options(frame.bytes_mut(), options)?;
    }
    let inner = Brief::read(frame.bytes()).map_err(|_| DropReason::BadInner)?;
    if inner.total_len == frame.len() { Ok(()) } else { Err(DropReason::BadInner) }
}

/// The fields that go from the header that starts `packet` into its counterpart, with `proto`.
fn carried(packet: &[u8], proto: IpProto) -> Result<Fields, DropReason> {
    if packet.first().is_some_and(|b| b >> 4 == 6) {
        let (header, _) = Ipv6Header::ref_from_prefix(packet).map_err(|_| DropReason::Truncated)?;
        let (tos, flow_label) = (header.traffic_class(), header.flow_label());
        return Ok(Fields { tos, hop_limit: header.hop_limit, proto, id: 0, dont_fragment: true, flow_label });
    }
    let (header, _) = Ipv4Header::ref_from_prefix(packet).map_err(|_| DropReason::Truncated)?;
    let dont_fragment = header.flags_fragment.get() & DONT_FRAGMENT != 0;
    let id = header.id.get();
    Ok(Fields { tos: header.tos, hop_limit: header.ttl, proto, id, dont_fragment, flow_label: 0 })
}

fn options_len(ip: &IpPacket) -> usize {
    if ip.is_v6() { 0 } else { ip.upper_at - IPV4_HEADER }
}

/// Bytes of the pseudo header before the options: padded so that both together fill 8-byte units.
fn pseudo_len(ip: &IpPacket) -> usize {
    match options_len(ip) {
        0 => 0,
        options => PSEUDO_LEN + (4 - (options & 4)),
    }
}

fn write_pseudo(pseudo: &mut [u8], options: usize, next: IpProto) {
    let padding = pseudo.len().saturating_sub(PSEUDO_LEN);
    if let Some((fixed, pad)) = pseudo.split_first_chunk_mut::<PSEUDO_LEN>() {
        *fixed = [next.0, (options / 8) as u8, padding as u8, 0];
        pad.fill(NOP);
    }
}

/// Position of the options of a BEET payload.
struct Options {
    at: usize,
    len: usize,
    next: IpProto,
}

fn read_pseudo(beet: &Beet, packet: &[u8], at: usize) -> Result<Options, DropReason> {
    let payload = packet.get(at..).ok_or(DropReason::Truncated)?;
    let &[next, units, padding, _] = payload.first_chunk::<PSEUDO_LEN>().ok_or(DropReason::BadInner)?;
    let total = (usize::from(units) + 1) * 8;
    let before = PSEUDO_LEN + usize::from(padding);
    let options = total.checked_sub(before).ok_or(DropReason::BadInner)?;
    let fits = options.is_multiple_of(4) && options <= MAX_OPTIONS && total <= payload.len();
    match beet.local {
        IpAddr::V4(_) if fits => Ok(Options { at: at + before, len: options, next: IpProto(next) }),
        _ => Err(DropReason::BadInner),
    }
}

/// Includes the `options` bytes after a plain IPv4 header in it.
fn admit_options(packet: &mut [u8], options: usize) -> Result<(), DropReason> {
    *packet.first_mut().ok_or(DropReason::BadInner)? = 0x40 | ((IPV4_HEADER + options) / 4) as u8;
    ip::update_checksum_v4(packet).map_err(|_| DropReason::BadInner)
}
