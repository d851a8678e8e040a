//! IP headers without options or extensions, written from a template.

use std::net::IpAddr;

use wire::checksum::Sum;
use wire::ip::{DONT_FRAGMENT, IPV4_HEADER, IPV6_HEADER};
use wire::{FlowKey, IpPacket, IpProto, SeqNo, SessionId};

use crate::DropReason;

/// An IP header with its addresses filled in and, for IPv4, their part of the checksum. Made once
/// per SA; a packet adds what is its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderTemplate {
    bytes: [u8; IPV6_HEADER],
    len: u8,
    sum: Sum,
}

/// Fields that vary between the headers of one template.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    pub(super) tos: u8,
    pub(super) hop_limit: u8,
    pub(super) proto: IpProto,
    /// IPv4 Identification.
    pub(super) id: u16,
    /// IPv4 DF.
    pub(super) dont_fragment: bool,
    /// IPv6 flow label, 20 bits.
    pub(super) flow_label: u32,
}

impl HeaderTemplate {
    /// The template of packets from `src` to `dst`. Addresses of two families are both written as
    /// IPv6 ones; no SA has such.
    pub(crate) fn new(src: IpAddr, dst: IpAddr) -> Self {
        let mut bytes = [0; IPV6_HEADER];
        if let (IpAddr::V4(src), IpAddr::V4(dst)) = (src, dst) {
            bytes[0] = 0x45;
            bytes[12..16].copy_from_slice(&src.octets());
            bytes[16..20].copy_from_slice(&dst.octets());
            return Self { bytes, len: IPV4_HEADER as u8, sum: Sum::default().add(&bytes[..IPV4_HEADER]) };
        }
        let octets = |addr| match addr {
            IpAddr::V4(v4) => std::net::Ipv4Addr::to_ipv6_mapped(&v4).octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        bytes[0] = 0x60;
        bytes[8..24].copy_from_slice(&octets(src));
        bytes[24..40].copy_from_slice(&octets(dst));
        Self { bytes, len: IPV6_HEADER as u8, sum: Sum::default() }
    }

    /// Bytes of the header.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }

    #[inline]
    pub(super) fn is_v6(&self) -> bool {
        self.len() == IPV6_HEADER
    }

    /// Writes the header at the front of `packet`, which is all that the header counts.
    ///
    /// # Errors
    /// [`DropReason::TooBig`] when its length field cannot hold the length.
    #[inline]
    pub(super) fn write(&self, packet: &mut [u8], fields: Fields) -> Result<(), DropReason> {
        if self.is_v6() { self.write_v6(packet, fields) } else { self.write_v4(packet, fields) }
    }

    #[inline]
    fn write_v4(&self, packet: &mut [u8], fields: Fields) -> Result<(), DropReason> {
        let total_len = u16::try_from(packet.len()).map_err(|_| DropReason::TooBig)?;
        let header: &mut [u8; IPV4_HEADER] = packet.first_chunk_mut().ok_or(DropReason::Inconsistent)?;
        let flags = if fields.dont_fragment { DONT_FRAGMENT } else { 0 };
        let ttl_proto = u16::from_be_bytes([fields.hop_limit, fields.proto.0]);
        // Five 16-bit words at once: in one's complement a carry into the upper half counts the
        // same.
        let words: u32 = [fields.tos.into(), total_len, fields.id, flags, ttl_proto].map(u32::from).iter().sum();
        let checksum = self.sum.add_u32(words).finish();
        header.copy_from_slice(&self.bytes[..IPV4_HEADER]);
        header[1] = fields.tos;
        header[2..4].copy_from_slice(&total_len.to_be_bytes());
        header[4..6].copy_from_slice(&fields.id.to_be_bytes());
        header[6..8].copy_from_slice(&flags.to_be_bytes());
        header[8..10].copy_from_slice(&ttl_proto.to_be_bytes());
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        Ok(())
    }

    #[inline]
    fn write_v6(&self, packet: &mut [u8], fields: Fields) -> Result<(), DropReason> {
        let payload_len = packet.len().checked_sub(IPV6_HEADER).ok_or(DropReason::Inconsistent)?;
        let payload_len = u16::try_from(payload_len).map_err(|_| DropReason::TooBig)?;
        let header: &mut [u8; IPV6_HEADER] = packet.first_chunk_mut().ok_or(DropReason::Inconsistent)?;
        let first = 6 << 28 | u32::from(fields.tos) << 20 | (fields.flow_label & 0xf_ffff);
        *header = self.bytes;
        header[0..4].copy_from_slice(&first.to_be_bytes());
        header[4..6].copy_from_slice(&payload_len.to_be_bytes());
        header[6] = fields.proto.0;
        header[7] = fields.hop_limit;
        Ok(())
    }
}

/// Flow label of a tunnel packet: the inner flow, hashed, so that routers spread flows over paths
/// (RFC 6438 §3). Never 0, which means unlabelled (RFC 6437 §3).
#[inline]
pub(super) fn flow_label(ip: &IpPacket, packet: &[u8]) -> u32 {
    (FlowKey::of(ip, packet).hash(0) as u32 & 0xf_ffff).max(1)
}

/// Identification of an outer IPv4 packet that routers may fragment, number `seq` of an SA that
/// starts with `spi` and `session`.
///
/// It counts with the SA, so that it does not repeat for 65,536 packets (RFC 6864 §4.3), and cores
/// need not share another counter. Its start is a hash of the SPI, so that it reveals nothing
/// without the SPI. Lanes of one SA, whose numbers start equal or differ at the top, have different
/// starts. Packets with DF set need none and carry 0.
#[inline]
pub(crate) fn identification(spi: u32, session: SessionId, seq: SeqNo) -> u16 {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 / golden ratio: spreads every bit upwards
    let of = u64::from(spi) ^ u64::from(session.0) << 48 ^ seq.0 >> 16;
    (of.wrapping_mul(MIX) >> 48) as u16 ^ seq.0 as u16
}
