//! Reconstruction of headers that the kernel removed from a received packet.
//!
//! An IPv4 raw socket gives whole packets. An IPv6 raw socket gives what follows the extension
//! headers, a UDP socket what follows the UDP header; addresses, traffic class, flow label, hop
//! limit and extension headers come beside it as control messages (RFC 3542). Fragments were put
//! together before, so there is never a fragment header to restore.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use arrayvec::ArrayVec;
use dataplane::Packet;
use libc::c_int;
use wire::ip::{IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header, MAX_EXTENSIONS};
use wire::udp::UdpHeader;
use wire::{IpProto, checksum};
use zerocopy::IntoBytes;

use super::mmsg::{Message, Unreadable, int_at, set_int};

/// An IPv6 extension header and its type.
type Extension<'a> = (IpProto, &'a [u8]);

/// Control data of the IP header that the kernel removed.
#[derive(Default)]
struct Removed<'a> {
    dst: Option<IpAddr>,
    tos: u8,
    flow: u32,
    hop_limit: u8,
    extensions: ArrayVec<Extension<'a>, { MAX_EXTENSIONS as usize }>,
}

/// Makes an IPv6 socket report the fields of [`Removed`].
pub(super) fn report_v6(socket: impl AsFd, extensions: bool) -> std::io::Result<()> {
    let mut options = vec![libc::IPV6_RECVPKTINFO, libc::IPV6_RECVHOPLIMIT, libc::IPV6_RECVTCLASS, IPV6_FLOWINFO];
    if extensions {
        options.extend([libc::IPV6_RECVHOPOPTS, libc::IPV6_RECVDSTOPTS, libc::IPV6_RECVRTHDR]);
    }
    options.into_iter().try_for_each(|option| set_int(socket.as_fd(), libc::IPPROTO_IPV6, option, 1))
}

/// Makes an IPv4 UDP socket report the fields of [`Removed`].
pub(super) fn report_v4(socket: impl AsFd) -> std::io::Result<()> {
    let options = [libc::IP_PKTINFO, libc::IP_RECVTOS, libc::IP_RECVTTL];
    options.into_iter().try_for_each(|option| set_int(socket.as_fd(), libc::IPPROTO_IP, option, 1))
}

/// Linux: option and control message that carry the first word of the IPv6 header, less version.
pub(super) const IPV6_FLOWINFO: c_int = 11;

impl<'a> Removed<'a> {
    fn of(message: &Message<'a>) -> Result<Self, Unreadable> {
        let mut removed = Self::default();
        for (level, kind, content) in message.controls() {
            removed.take(level, kind, content)?;
        }
        Ok(removed)
    }

    fn take(&mut self, level: c_int, kind: c_int, content: &'a [u8]) -> Result<(), Unreadable> {
        let byte = |content| int_at(content, 0).unwrap_or_default() as u8;
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) => self.tos = content.first().copied().unwrap_or_default(),
            (libc::IPPROTO_IP, libc::IP_TTL) => self.hop_limit = byte(content),
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // struct in_pktinfo: interface, local address, destination of the header.
                self.dst = content.get(8..).and_then(<[u8]>::first_chunk::<4>).map(|a| Ipv4Addr::from(*a).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                self.dst = content.first_chunk::<16>().map(|a| Ipv6Addr::from(*a).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => self.tos = byte(content),
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => self.hop_limit = byte(content),
            (libc::IPPROTO_IPV6, IPV6_FLOWINFO) => {
                self.flow = content.first_chunk().map(|word| u32::from_be_bytes(*word)).unwrap_or_default() & 0xf_ffff;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_HOPOPTS) => self.extension(IpProto::HOP_BY_HOP, content)?,
            (libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS) => self.extension(IpProto::DEST_OPTIONS, content)?,
            (libc::IPPROTO_IPV6, libc::IPV6_RTHDR) => self.extension(IpProto::ROUTING, content)?,
            _ => {}
        }
        Ok(())
    }

    fn extension(&mut self, kind: IpProto, content: &'a [u8]) -> Result<(), Unreadable> {
        let whole = content.get(1).is_some_and(|units| (usize::from(*units) + 1) * 8 == content.len());
        if !whole {
            return Err(Unreadable);
        }
        self.extensions.try_push((kind, content)).map_err(|_| Unreadable)
    }

    fn prepend_v6(self, packet: &mut Packet, src: Ipv6Addr, upper: IpProto) -> Result<(), Unreadable> {
        let Some(IpAddr::V6(dst)) = self.dst else { return Err(Unreadable) };
        let mut next = upper;
        for (kind, header) in self.extensions.into_iter().rev() {
            packet.prepend(header).map_err(|_| Unreadable)?;
            // Update the Next Header: a fragment header in between was removed.
            packet.bytes_mut()[0] = next.0;
            next = kind;
        }
        let payload_len = u16::try_from(packet.len()).map_err(|_| Unreadable)?;
        let header = Ipv6Header {
            version_class_flow: (6 << 28 | u32::from(self.tos) << 20 | self.flow).into(),
            payload_len: payload_len.into(),
            next_header: next.0,
            hop_limit: self.hop_limit,
            src: src.octets(),
            dst: dst.octets(),
        };
        packet.prepend(header.as_bytes()).map_err(|_| Unreadable)
    }

    fn prepend_v4(self, packet: &mut Packet, src: Ipv4Addr, upper: IpProto) -> Result<(), Unreadable> {
        let Some(IpAddr::V4(dst)) = self.dst else { return Err(Unreadable) };
        let total_len = u16::try_from(IPV4_HEADER + packet.len()).map_err(|_| Unreadable)?;
        let mut header = Ipv4Header {
            version_ihl: 0x45,
            tos: self.tos,
            total_len: total_len.into(),
            id: 0.into(),
            flags_fragment: 0x4000.into(),
            ttl: self.hop_limit,
            protocol: upper.0,
            checksum: 0.into(),
            src: src.octets(),
            dst: dst.octets(),
        };
        header.checksum = checksum::checksum(header.as_bytes()).into();
        packet.prepend(header.as_bytes()).map_err(|_| Unreadable)
    }
}

/// Puts the IPv6 header and the extension headers back before an upper-layer packet.
pub(super) fn ipv6(packet: &mut Packet, message: &Message<'_>, upper: IpProto) -> Result<(), Unreadable> {
    let Some(IpAddr::V6(src)) = message.from().map(|from| from.ip()) else { return Err(Unreadable) };
    Removed::of(message)?.prepend_v6(packet, src, upper)
}

/// Puts the IP and UDP header back before a datagram that came to `local_port`. The kernel checked
/// the UDP checksum; 0 marks that.
pub(super) fn udp(packet: &mut Packet, message: &Message<'_>, local_port: u16) -> Result<(), Unreadable> {
    let from = message.from().ok_or(Unreadable)?;
    let header = UdpHeader {
        src_port: from.port().into(),
        dst_port: local_port.into(),
        len: u16::try_from(UdpHeader::LEN + packet.len()).map_err(|_| Unreadable)?.into(),
        checksum: 0.into(),
    };
    packet.prepend(header.as_bytes()).map_err(|_| Unreadable)?;
    let removed = Removed::of(message)?;
    match from.ip() {
        IpAddr::V4(src) => removed.prepend_v4(packet, src, IpProto::UDP),
        IpAddr::V6(src) => removed.prepend_v6(packet, src, IpProto::UDP),
    }
}

const _: () = assert!(IPV6_HEADER + UdpHeader::LEN < dataplane::HEADROOM);
