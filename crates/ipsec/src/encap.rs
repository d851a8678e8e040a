//! IP headers around a protocol: tunnel, transport and BEET, with or without UDP.
//!
//! Outbound a protocol first appends its trailer and ICV room to the packet, then calls
//! [`encapsulate`], which makes room for the protocol header and writes everything around it.
//! Inbound, after the ICV, it calls [`decapsulate`] with the position of the payload.
//!
//! Hop limits are not decremented here: the host forwarded the packet before it got here, and does
//! so again with what comes out (RFC 4301 §5.1.2).

mod beet;
mod header;

use std::net::IpAddr;

use wire::ip::{self, IPV4_HEADER, IPV6_HEADER};
use wire::udp::{self, UdpHeader};
use wire::{IpPacket, IpProto, checksum};

pub(crate) use header::{HeaderTemplate, identification};

use crate::checksum_fixup::ChecksumFixup;
use crate::ecn::{self, Ecn};
use crate::{DfPolicy, DropReason, DscpPolicy, Frame, Mode, Outer, PendingIn, SaCommon, UdpPorts};

/// Part of the packet that becomes the payload of the protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Payload {
    /// Bytes, a BEET pseudo header included.
    pub len: usize,
    /// Its protocol, for the Next Header field.
    pub next: IpProto,
}

/// The payload that `mode` takes from the packet `ip`, which fills `packet`.
///
/// In transport mode over IPv6 every extension header that [`IpPacket::parse`] walks over stays
/// outside, destination options too: RFC 4303 §3.1.1 allows them on either side.
///
/// # Errors
/// [`DropReason::Fragment`] for a fragment in transport or BEET mode;
/// [`DropReason::PolicyMismatch`] when BEET addresses differ from the packet's;
/// [`DropReason::Inconsistent`] when bytes follow the packet (the trailer would go behind them).
#[inline]
pub fn payload(mode: &Mode, ip: &IpPacket, packet: &[u8]) -> Result<Payload, DropReason> {
    if packet.len() != ip.total_len {
        return Err(DropReason::Inconsistent);
    }
    match mode {
        Mode::Tunnel => Ok(Payload { len: ip.total_len, next: ip.ip_in_ip() }),
        // In transport mode, only whole datagrams may be protected (RFC 4303 §3.3.4): a fragment
        // would not match the selectors of the upper layer at the receiver.
        Mode::Transport if ip.fragment.is_some() => Err(DropReason::Fragment),
        Mode::Transport => Ok(Payload { len: ip.total_len - ip.upper_at, next: ip.upper }),
        Mode::Beet(beet) => beet::payload(beet, ip, packet),
        Mode::Aggfrag(_) => Ok(Payload { len: ip.total_len, next: IpProto::AGGFRAG }),
    }
}

/// Puts the outer part in front of the payload. The frame holds the original packet followed by
/// whatever the protocol appended (trailer, ICV). Afterwards it holds: IP header (new, original or
/// BEET), UDP header if there is one, the gap for the protocol to fill, payload, appended bytes;
/// all IP and UDP lengths and the IPv4 checksum are final. Returns the offset of the gap.
///
/// A requested UDP checksum is not written here (the payload is not final): see
/// [`finish_udp_checksum`].
///
/// # Errors
/// [`DropReason::NoRoom`], [`DropReason::TooBig`] beyond 65535 bytes.
#[inline(always)]
pub fn encapsulate(
    common: &SaCommon,
    ip: &IpPacket,
    frame: &mut Frame<'_>,
    outside: Encapsulation,
) -> Result<usize, DropReason> {
    match common.mode {
        Mode::Tunnel | Mode::Aggfrag(_) => tunnel(common, ip, frame, outside),
        Mode::Transport => transport(ip, frame, outside),
        Mode::Beet(_) => beet::encapsulate(&common.header, ip, frame, outside),
    }
}

/// Writes the checksum of the UDP header after the outer IP header, after the engine.
///
/// # Errors
/// [`DropReason::Inconsistent`] when the frame is not a UDP packet.
pub(crate) fn finish_udp_checksum(frame: &mut Frame<'_>) -> Result<(), DropReason> {
    let ip = IpPacket::parse(frame.bytes()).map_err(|_| DropReason::Inconsistent)?;
    // `parse` has checked both offsets against the buffer.
    let datagram = &mut frame.bytes_mut()[ip.upper_at..ip.total_len];
    if ip.upper != IpProto::UDP || datagram.len() < UdpHeader::LEN {
        return Err(DropReason::Inconsistent);
    }
    datagram[6..8].fill(0);
    let sum = udp::checksum(ip.src, ip.dst, datagram);
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

/// Turns the frame (outer packet, decrypted) into the inner packet: the payload
/// `payload_start..payload_end` (trailer already excluded), of protocol `next`.
///
/// Tunnel: the payload is the packet, and what follows it (RFC 4303 §2.7) is cut off; its version
/// must agree with `next`; ECN per RFC 6040 into the inner header. Transport: original header with
/// protocol, lengths and checksum restored, and with a NAT the inner checksum. BEET: inner header
/// rebuilt from the SA's addresses and the outer header, RFC 7402 pseudo header undone.
///
/// # Errors
/// [`DropReason::BadInner`], [`DropReason::EcnCe`], [`DropReason::Truncated`].
#[inline(always)]
pub fn decapsulate(
    common: &SaCommon,
    frame: &mut Frame<'_>,
    pending: &PendingIn,
    payload_start: usize,
    payload_end: usize,
    next: IpProto,
) -> Result<(), DropReason> {
    if payload_start > payload_end {
        return Err(DropReason::Truncated);
    }
    frame.truncate(payload_end)?;
    match &common.mode {
        Mode::Tunnel => untunnel(&common.outer, frame, pending, payload_start, next),
        Mode::Transport => untransport(frame, pending, payload_start, next, common.fixup),
        Mode::Beet(beet) => beet::decapsulate(beet, frame, pending, payload_start, next),
        // Nothing else may arrive through such an SA (RFC 9347 §2.3).
        Mode::Aggfrag(_) if next != IpProto::AGGFRAG => Err(DropReason::BadInner),
        Mode::Aggfrag(_) => frame.pull_front(payload_start),
    }
}

/// Bytes in front of the protocol header on the wire: IP header (new, original or BEET, without
/// options and extension headers) and UDP header.
pub(crate) fn fixed_overhead(common: &SaCommon, udp: bool) -> usize {
    common.header.len() + if udp { UdpHeader::LEN } else { 0 }
}

/// Bytes of the inner packet that do not become payload: its IP header in transport and BEET mode,
/// without options and extension headers; 0 in tunnel mode. An inner packet of
/// `inner_header + n` bytes has a payload of `n`.
pub(crate) fn inner_header(common: &SaCommon) -> usize {
    let len = |addr| if IpAddr::is_ipv6(addr) { IPV6_HEADER } else { IPV4_HEADER };
    match &common.mode {
        Mode::Tunnel | Mode::Aggfrag(_) => 0,
        Mode::Transport => len(&common.outer.peer.remote),
        Mode::Beet(beet) => len(&beet.remote),
    }
}

/// Headers between IP header and payload.
#[derive(Clone, Copy)]
pub struct Encapsulation {
    /// Bytes of the protocol header.
    pub gap: usize,
    /// Number of the protocol in the IP header, without UDP.
    pub proto: IpProto,
    /// Ports of the UDP header, if there is one.
    pub udp: Option<UdpPorts>,
    /// Identification of a new IPv4 header.
    pub id: u16,
}

impl Encapsulation {
    fn len(&self) -> usize {
        self.gap + if self.udp.is_some() { UdpHeader::LEN } else { 0 }
    }

    fn ip_proto(&self) -> IpProto {
        if self.udp.is_some() { IpProto::UDP } else { self.proto }
    }

    /// Writes the UDP header at `at`, if there is one; returns the offset of the gap.
    #[inline]
    fn finish(&self, packet: &mut [u8], at: usize) -> Result<usize, DropReason> {
        let Some(ports) = self.udp else { return Ok(at) };
        let datagram = packet.get_mut(at..).ok_or(DropReason::Inconsistent)?;
        let len = u16::try_from(datagram.len()).map_err(|_| DropReason::TooBig)?;
        let header = datagram.first_chunk_mut::<{ UdpHeader::LEN }>().ok_or(DropReason::Inconsistent)?;
        header[0..2].copy_from_slice(&ports.src.to_be_bytes());
        header[2..4].copy_from_slice(&ports.dst.to_be_bytes());
        header[4..6].copy_from_slice(&len.to_be_bytes());
        // Zero: the ICV protects the datagram. If a checksum is configured, it is computed after
        // encryption.
        header[6..8].fill(0);
        Ok(at + UdpHeader::LEN)
    }
}

#[inline]
fn tunnel(
    common: &SaCommon,
    ip: &IpPacket,
    frame: &mut Frame<'_>,
    outside: Encapsulation,
) -> Result<usize, DropReason> {
    let fields = outer_fields(common, ip, frame.bytes(), outside);
    let template = &common.header;
    frame.push_front(template.len() + outside.len())?;
    template.write(frame.bytes_mut(), fields)?;
    outside.finish(frame.bytes_mut(), template.len())
}

/// The outer header of a tunnel around `packet` (RFC 4301 §5.1.2).
#[inline]
fn outer_fields(common: &SaCommon, ip: &IpPacket, packet: &[u8], outside: Encapsulation) -> header::Fields {
    let outer = &common.outer;
    let v6 = common.header.is_v6();
    let dscp = match outer.dscp {
        // DSCP is the upper six bits of the TOS byte, ECN the lower two (RFC 2474, RFC 3168).
        DscpPolicy::Copy => ip.tos & 0xfc,
        DscpPolicy::Set(dscp) => dscp << 2,
    };
    let dont_fragment = match outer.df {
        DfPolicy::Copy => ip.dont_fragment,
        // IPv6 with DF clear is a packet that exceeds the path MTU and must pass.
        DfPolicy::Set => ip.dont_fragment || !ip.is_v6(),
        DfPolicy::Clear => false,
    };
    header::Fields {
        tos: dscp | ecn::ingress(Ecn::of(ip.tos), outer.ecn).bits(),
        hop_limit: outer.hop_limit,
        proto: outside.ip_proto(),
        // An atomic datagram needs no identification (RFC 6864 §4.1).
        id: if v6 || dont_fragment { 0 } else { outside.id },
        dont_fragment,
        flow_label: if v6 { header::flow_label(ip, packet) } else { 0 },
    }
}

#[inline]
fn transport(ip: &IpPacket, frame: &mut Frame<'_>, outside: Encapsulation) -> Result<usize, DropReason> {
    frame.open_gap(ip.upper_at, outside.len())?;
    relabel(frame.bytes_mut(), ip.proto_at, outside.ip_proto())?;
    outside.finish(frame.bytes_mut(), ip.upper_at)
}

#[inline]
fn untunnel(
    outer: &Outer,
    frame: &mut Frame<'_>,
    pending: &PendingIn,
    payload_start: usize,
    next: IpProto,
) -> Result<(), DropReason> {
    frame.pull_front(payload_start)?;
    let len = check_inner(outer, frame.bytes_mut(), pending.outer_tos, next)?;
    frame.truncate(len)
}

/// Checks the packet at the start of `payload` from a tunnel with `outer_tos` in its header; `next`
/// is the next header of the tunnel protocol. Writes its ECN field (RFC 6040) and returns its
/// length.
///
/// # Errors
/// [`DropReason::BadInner`], [`DropReason::EcnCe`].
#[inline(always)]
pub(crate) fn check_inner(
    outer: &Outer,
    payload: &mut [u8],
    outer_tos: u8,
    next: IpProto,
) -> Result<usize, DropReason> {
    // Only version and length are read: the authenticated peer vouches for the rest, and the policy
    // check parses the headers that it needs.
    let inner = ip::Brief::read(payload).map_err(|_| DropReason::BadInner)?;
    // Next Header must name the family of the inner packet (RFC 4303 §2.6).
    if inner.ip_in_ip() != next {
        return Err(DropReason::BadInner);
    }
    if outer.ecn {
        let ecn = ecn::egress(Ecn::of(inner.tos), Ecn::of(outer_tos))?;
        let tos = (inner.tos & 0xfc) | ecn.bits();
        // Most packets need no change: skip the checksum update for them.
        if tos != inner.tos {
            ip::set_tos(payload, tos)?;
        }
    }
    Ok(inner.total_len)
}

#[inline]
fn untransport(
    frame: &mut Frame<'_>,
    pending: &PendingIn,
    payload_start: usize,
    next: IpProto,
    fixup: Option<ChecksumFixup>,
) -> Result<(), DropReason> {
    // Closes the gap of the UDP and protocol headers, so that the payload follows the original IP
    // header again.
    let ip_end = usize::from(pending.ip_end);
    frame.close_gap(ip_end, payload_start.checked_sub(ip_end).ok_or(DropReason::Inconsistent)?)?;
    // The offset points into the last header before the protocol, which in IPv6 may be an extension
    // header.
    relabel(frame.bytes_mut(), usize::from(pending.proto_at), next)?;
    if let Some(fixup) = fixup {
        fixup.apply(frame.bytes_mut());
    }
    Ok(())
}

/// The IPv4 header `own` as [`relabel`] leaves it, in registers: read and written whole.
#[inline(always)]
pub(crate) fn rewritten_header(own: [u8; IPV4_HEADER], proto: IpProto, total_len: u16) -> [u8; IPV4_HEADER] {
    let field = |at: usize| u16::from_be_bytes([own[at], own[at + 1]]);
    let ttl_proto = u16::from_be_bytes([own[8], proto.0]);
    // RFC 1624 §3, equation 3, for both fields that change.
    let sum = [!field(10), !field(2), total_len, !field(8), ttl_proto].map(u32::from).iter().sum();
    let middle = u32::from(ttl_proto) << 16 | u32::from(checksum::of_sum(sum));
    let mut header = own;
    header[2..4].copy_from_slice(&total_len.to_be_bytes());
    header[8..12].copy_from_slice(&middle.to_be_bytes());
    header
}

/// Makes the header of `packet` name `proto` at `proto_at` and count all of `packet`.
#[inline]
fn relabel(packet: &mut [u8], proto_at: usize, proto: IpProto) -> Result<(), DropReason> {
    let len = packet.len();
    ip::set_total_len(packet, len).map_err(|_| DropReason::TooBig)?;
    Ok(ip::set_proto(packet, proto_at, proto)?)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use crypto::Span;
    use proptest::prelude::*;
    use wire::SeqNo;

    use super::*;
    use crate::testkit::{assert_ipv4_checksum, ipv4_udp, ipv6_udp, ones_complement_sum};
    use crate::{Beet, Lifetime, Peer};

    const GAP: usize = 24;
    const TRAILER: usize = 18;
    const PORTS: UdpPorts = UdpPorts { src: 4500, dst: 4501 };

    fn v4(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    fn v6(last: u16) -> IpAddr {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).into()
    }

    fn outer(v6_outside: bool) -> Outer {
        let peer = if v6_outside { Peer { local: v6(1), remote: v6(2) } } else { Peer { local: v4(1), remote: v4(2) } };
        Outer {
            peer,
            hop_limit: 64,
            dscp: DscpPolicy::Copy,
            ecn: true,
            df: DfPolicy::Copy,
            udp: None,
            udp_checksum: false,
        }
    }

    fn sa(mode: Mode, outer: Outer) -> SaCommon {
        SaCommon::new("test", mode, outer, Lifetime::NONE)
    }

    /// The same SA at the peer, with reversed inner addresses.
    fn mirrored(common: &SaCommon) -> SaCommon {
        let mode = match common.mode {
            Mode::Beet(beet) => Mode::Beet(Beet { local: beet.remote, remote: beet.local }),
            mode => mode,
        };
        sa(mode, common.outer)
    }

    fn inner(v6_inside: bool, len: usize) -> Vec<u8> {
        if v6_inside {
            let octets = |last: u8| {
                let mut a = [0; 16];
                (a[0], a[1], a[15]) = (0xfd, 1, last);
                a
            };
            ipv6_udp(octets(1), octets(2), len)
        } else {
            ipv4_udp([10, 0, 0, 1], [10, 0, 0, 2], len)
        }
    }

    fn beet(v6_inside: bool) -> Mode {
        let ip = IpPacket::parse(&inner(v6_inside, 0)).unwrap();
        Mode::Beet(Beet { local: ip.src, remote: ip.dst })
    }

    /// Recomputes the IPv4 checksum after a test changed the header.
    fn fixup(packet: &mut [u8]) {
        let header = usize::from(packet[0] & 15) * 4;
        packet[10..12].fill(0);
        let sum = !ones_complement_sum(&packet[..header], 0);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }

    fn with_options(packet: &[u8], options: usize) -> Vec<u8> {
        let mut out = packet[..20].to_vec();
        out[0] = 0x40 | (5 + options / 4) as u8;
        out.extend((0..options).map(|i| if i + 1 == options { 0 } else { 1 }));
        out.extend(&packet[20..]);
        let total = out.len() as u16;
        out[2..4].copy_from_slice(&total.to_be_bytes());
        fixup(&mut out);
        out
    }

    struct Wrapped {
        packet: Vec<u8>,
        at: usize,
        payload: Payload,
    }

    fn wrap(common: &SaCommon, packet: &[u8], udp: Option<UdpPorts>) -> Result<Wrapped, DropReason> {
        let ip = IpPacket::parse(packet).unwrap();
        let payload = payload(&common.mode, &ip, packet)?;
        let mut buffer = [vec![0; 256], packet.to_vec(), vec![0; 256]].concat();
        let mut frame = Frame::new(&mut buffer, 256..256 + packet.len())?;
        frame.push_back(TRAILER)?.fill(0xee);
        let outside = Encapsulation { gap: GAP, proto: IpProto::ESP, udp, id: 0x1234 };
        let at = encapsulate(common, &ip, &mut frame, outside)?;
        assert_eq!(frame.len(), at + GAP + payload.len + TRAILER);
        Ok(Wrapped { packet: frame.bytes().to_vec(), at, payload })
    }

    fn unwrap(common: &SaCommon, wrapped: &Wrapped) -> Result<Vec<u8>, DropReason> {
        let outer = IpPacket::parse(&wrapped.packet).unwrap();
        let pending = PendingIn {
            seq: SeqNo(1),
            lane: 0,
            ip_end: outer.upper_at as u16,
            proto_at: outer.proto_at as u16,
            payload: Span::new(0, 0),
            next: IpProto::NONE,
            outer_tos: outer.tos,
            extra: 0,
        };
        let mut buffer = [vec![0; 64], wrapped.packet.clone()].concat();
        let mut frame = Frame::new(&mut buffer, 64..64 + wrapped.packet.len())?;
        let start = wrapped.at + GAP;
        decapsulate(common, &mut frame, &pending, start, start + wrapped.payload.len, wrapped.payload.next)?;
        let ip = IpPacket::parse(frame.bytes()).map_err(|_| DropReason::BadInner)?;
        assert_eq!(frame.len(), ip.total_len);
        Ok(frame.bytes().to_vec())
    }

    proptest! {
        #[test]
        fn every_mode_gives_back_what_went_in(
            mode in 0..3, inside: bool, outside: bool, udp: bool, len in 0usize..1500, tos: u8, ttl: u8, words in 0usize..=10,
        ) {
            let mut packet = inner(inside, len);
            if inside {
                packet[0..2].copy_from_slice(&(0x6000 | u16::from(tos) << 4).to_be_bytes());
                packet[7] = ttl;
            } else {
                (packet[1], packet[8]) = (tos, ttl);
                packet = with_options(&packet, words * 4);
            }
            // Transport mode keeps the header; the SA's family is that of its packets.
            let outside = if mode == 1 { inside } else { outside };
            let mode = [Mode::Tunnel, Mode::Transport, beet(inside)][mode as usize];
            let common = sa(mode, outer(outside));
            let wrapped = wrap(&common, &packet, udp.then_some(PORTS)).unwrap();

            let ip = IpPacket::parse(&wrapped.packet).unwrap();
            assert_ipv4_checksum(&wrapped.packet);
            prop_assert_eq!(ip.total_len, wrapped.packet.len());
            prop_assert_eq!(ip.upper, if udp { IpProto::UDP } else { IpProto::ESP });
            prop_assert_eq!(ip.tos, tos);
            if udp {
                let (header, rest) = UdpHeader::parse(&wrapped.packet[ip.upper_at..]).unwrap();
                prop_assert_eq!((header.src_port.get(), header.dst_port.get()), (PORTS.src, PORTS.dst));
                prop_assert_eq!((usize::from(header.len.get()), header.checksum.get()), (8 + rest.len(), 0));
            }
            let mut expected = packet;
            if matches!(mode, Mode::Beet(_)) && inside != outside && !inside {
                expected[4..6].fill(0); // IPv6 outside has no Identification,
                expected[6] = 0x40; // and it was not fragmented
                fixup(&mut expected);
            }
            prop_assert_eq!(unwrap(&mirrored(&common), &wrapped), Ok(expected));
        }

        #[test]
        fn decapsulation_survives_any_payload(
            payload: Vec<u8>, next: u8, mode in 0..3, inside: bool, start in 0usize..64,
        ) {
            let mode = [Mode::Tunnel, Mode::Transport, beet(inside)][mode as usize];
            let common = sa(mode, outer(false));
            let outside = wrap(&sa(Mode::Tunnel, outer(false)), &inner(false, 8), None).unwrap();
            let mut packet = [&outside.packet[..outside.at + GAP], &payload].concat();
            let total = packet.len() as u16;
            packet[2..4].copy_from_slice(&total.to_be_bytes());
            let payload = Payload { len: payload.len().saturating_sub(start), next: IpProto(next) };
            let _ = unwrap(&common, &Wrapped { packet, at: outside.at + start, payload });
        }
    }

    #[test]
    fn tunnel_header_follows_its_policies() {
        let mut packet = inner(false, 100);
        (packet[1], packet[6]) = (0xb9, 0); // EF with ECT(1), DF clear
        fixup(&mut packet);
        let policies = Outer { dscp: DscpPolicy::Set(10), ecn: false, df: DfPolicy::Set, hop_limit: 7, ..outer(false) };
        let ip = IpPacket::parse(&wrap(&sa(Mode::Tunnel, policies), &packet, None).unwrap().packet).unwrap();
        assert_eq!((ip.tos, ip.dont_fragment, ip.hop_limit), (10 << 2, true, 7));
        assert_eq!((ip.src, ip.dst), (v4(1), v4(2)));
        let copied = wrap(&sa(Mode::Tunnel, outer(false)), &packet, None).unwrap().packet;
        let ip = IpPacket::parse(&copied).unwrap();
        assert_eq!((ip.tos, ip.dont_fragment), (0xb9, false));
        assert_ne!(copied[4..6], [0, 0], "a packet that may be fragmented needs an Identification");
        let atomic = wrap(&sa(Mode::Tunnel, outer(false)), &inner(false, 100), None).unwrap().packet;
        assert_eq!(atomic[4..8], [0, 0, 0x40, 0]);
    }

    #[test]
    fn an_identification_does_not_come_again_soon_and_lanes_begin_apart() {
        let of = |spi, session, seq| identification(spi, wire::SessionId(session), SeqNo(seq));
        for start in [1, 0xfff0, 1 << 56, (5 << 56) - 9] {
            let all: std::collections::HashSet<u16> = (0..1 << 16).map(|n| of(7, 0, start + n)).collect();
            // At most two blocks of 65,536 numbers, each of which repeats none.
            assert!(all.len() > 1 << 15, "{}", all.len());
        }
        let aligned: std::collections::HashSet<u16> = (0..1 << 16).map(|n| of(7, 0, 3 << 16 | n)).collect();
        assert_eq!(aligned.len(), 1 << 16);
        let begins = [of(7, 0, 1), of(8, 0, 1), of(7, 1, 1), of(7, 2, 1), of(7, 0, 1 << 56 | 1), of(7, 0, 2 << 56 | 1)];
        let apart: std::collections::HashSet<u16> = begins.into_iter().collect();
        assert_eq!(apart.len(), begins.len());
    }

    #[test]
    fn only_packets_that_may_be_fragmented_have_an_identification() {
        for (df, id) in [(DfPolicy::Clear, [0x12, 0x34]), (DfPolicy::Set, [0, 0])] {
            let common = sa(Mode::Tunnel, Outer { df, ..outer(false) });
            assert_eq!(wrap(&common, &inner(false, 100), None).unwrap().packet[4..6], id);
        }
    }

    #[test]
    fn flow_labels_tell_flows_apart() {
        let label = |packet: &[u8]| wrap(&sa(Mode::Tunnel, outer(true)), packet, None).unwrap().packet[1..4].to_vec();
        let mut other = inner(false, 100);
        other[5] ^= 1;
        fixup(&mut other);
        assert_eq!(label(&inner(false, 100)), label(&other), "one flow takes one path");
        let mut other_flow = inner(false, 100);
        other_flow[21] ^= 1;
        assert_ne!(label(&inner(false, 100)), label(&other_flow));
    }

    #[test]
    fn congestion_outside_reaches_the_inner_header() {
        for inside in [false, true] {
            let mut packet = inner(inside, 64);
            let tos_at = |p: &mut Vec<u8>, tos| {
                ip::set_tos(p, tos).unwrap();
                assert_ipv4_checksum(p);
            };
            tos_at(&mut packet, 2);
            let common = sa(Mode::Tunnel, outer(false));
            let mut wrapped = wrap(&common, &packet, None).unwrap();
            tos_at(&mut wrapped.packet, 3);
            let got = unwrap(&common, &wrapped).unwrap();
            assert_ipv4_checksum(&got);
            assert_eq!(IpPacket::parse(&got).unwrap().tos, 3);

            tos_at(&mut packet, 0);
            let mut wrapped = wrap(&common, &packet, None).unwrap();
            tos_at(&mut wrapped.packet, 3);
            assert_eq!(unwrap(&common, &wrapped), Err(DropReason::EcnCe));
            let ignores = sa(Mode::Tunnel, Outer { ecn: false, ..outer(false) });
            assert_eq!(unwrap(&ignores, &wrapped), Ok(packet));
        }
    }

    #[test]
    fn what_follows_the_inner_packet_is_cut_off() {
        let packet = inner(false, 10);
        let common = sa(Mode::Tunnel, outer(true));
        let mut wrapped = wrap(&common, &packet, None).unwrap();
        wrapped.payload.len += TRAILER;
        assert_eq!(unwrap(&common, &wrapped), Ok(packet));
    }

    #[test]
    fn tunnel_refuses_what_is_not_the_packet_it_claims() {
        let common = sa(Mode::Tunnel, outer(false));
        let mut wrapped = wrap(&common, &inner(false, 10), None).unwrap();
        wrapped.payload.next = IpProto::IPV6;
        assert_eq!(unwrap(&common, &wrapped), Err(DropReason::BadInner));
        wrapped.payload = Payload { next: IpProto::IPV4, len: wrapped.payload.len - 1 };
        assert_eq!(unwrap(&common, &wrapped), Err(DropReason::BadInner));
    }

    #[test]
    fn transport_and_beet_refuse_fragments_and_strangers() {
        let mut packet = inner(false, 64);
        packet[6] = 0x20;
        fixup(&mut packet);
        let refused = |mode, packet: &[u8]| wrap(&sa(mode, outer(false)), packet, None).err();
        assert_eq!(refused(Mode::Transport, &packet), Some(DropReason::Fragment));
        assert_eq!(refused(beet(false), &packet), Some(DropReason::Fragment));
        assert_eq!(refused(Mode::Tunnel, &packet), None);
        let Mode::Beet(pair) = beet(false) else { unreachable!() };
        let reversed = Mode::Beet(Beet { local: pair.remote, remote: pair.local });
        assert_eq!(refused(reversed, &inner(false, 64)), Some(DropReason::PolicyMismatch));
    }

    #[test]
    fn transport_goes_behind_ipv6_extension_headers() {
        let mut packet = inner(true, 32);
        packet.splice(40..40, [60, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0]);
        packet[6] = 0;
        let payload_len = (packet.len() - 40) as u16;
        packet[4..6].copy_from_slice(&payload_len.to_be_bytes());
        let common = sa(Mode::Transport, outer(true));
        let wrapped = wrap(&common, &packet, None).unwrap();
        assert_eq!((wrapped.at, wrapped.payload.next), (56, IpProto::UDP));
        assert_eq!((wrapped.packet[6], wrapped.packet[40], wrapped.packet[48]), (0, 60, 50));
        assert_eq!(unwrap(&common, &wrapped), Ok(packet.clone()));
        let common = sa(beet(true), outer(true));
        let wrapped = wrap(&common, &packet, None).unwrap();
        assert_eq!((wrapped.at, wrapped.payload.next), (40, IpProto::HOP_BY_HOP));
        assert_eq!(unwrap(&mirrored(&common), &wrapped), Ok(packet));
    }

    #[test]
    fn beet_pseudo_header_is_that_of_rfc_7402() {
        for (options, pseudo) in
            [(4, vec![17, 0, 0, 0]), (8, vec![17, 1, 4, 0, 1, 1, 1, 1]), (40, vec![17, 5, 4, 0, 1, 1, 1, 1])]
        {
            let packet = with_options(&inner(false, 20), options);
            let wrapped = wrap(&sa(beet(false), outer(false)), &packet, None).unwrap();
            assert_eq!(wrapped.payload.next, IpProto::BEET);
            let at = wrapped.at + GAP;
            assert_eq!(wrapped.packet[at..at + pseudo.len()], pseudo);
            assert_eq!(wrapped.packet[at + pseudo.len()..][..options], packet[20..20 + options]);
        }
    }

    #[test]
    fn overhead_agrees_with_the_layout() {
        for (inside, outside, udp) in
            [(false, true, true), (true, false, false), (false, false, true), (true, true, false)]
        {
            for mode in [Mode::Tunnel, beet(inside), Mode::Transport] {
                if mode == Mode::Transport && inside != outside {
                    continue;
                }
                let common = sa(mode, outer(outside));
                let packet = inner(inside, 100);
                let wrapped = wrap(&common, &packet, udp.then_some(PORTS)).unwrap();
                assert_eq!(wrapped.at, fixed_overhead(&common, udp));
                assert_eq!(packet.len(), inner_header(&common) + wrapped.payload.len);
            }
        }
    }

    #[test]
    fn udp_checksum_covers_what_the_engine_wrote() {
        for outside in [false, true] {
            let mut wrapped = wrap(&sa(Mode::Tunnel, outer(outside)), &inner(false, 33), Some(PORTS)).unwrap();
            let len = wrapped.packet.len();
            let mut frame = Frame::new(&mut wrapped.packet, 0..len).unwrap();
            finish_udp_checksum(&mut frame).unwrap();
            let ip = IpPacket::parse(frame.bytes()).unwrap();
            let datagram = &frame.bytes()[ip.upper_at..];
            assert_ne!(datagram[6..8], [0, 0]);
            assert!(udp::is_valid(ip.src, ip.dst, datagram));
        }
    }

    #[test]
    fn sizes_end_where_length_fields_end() {
        let fits = 65535 - 20 - GAP - TRAILER - 28;
        let common = sa(Mode::Tunnel, outer(false));
        assert_eq!(wrap(&common, &inner(false, fits), None).map(|w| w.packet.len()), Ok(65535));
        assert_eq!(wrap(&common, &inner(false, fits + 1), None).err(), Some(DropReason::TooBig));
        assert_eq!(wrap(&common, &inner(false, fits), Some(PORTS)).err(), Some(DropReason::TooBig));
        assert_eq!(
            wrap(&sa(Mode::Tunnel, outer(true)), &inner(false, fits + 21), None).err(),
            Some(DropReason::TooBig)
        );
        assert_eq!(
            wrap(&sa(Mode::Transport, outer(false)), &inner(false, fits + 21), None).err(),
            Some(DropReason::TooBig)
        );
    }
}
