//! In-place modifications of a packet. The IPv4 header checksum is updated incrementally (RFC
//! 1624): a correct one stays correct, and a wrong one stays wrong, so that corruption remains
//! detectable.
//!
//! Every function judges only what it needs: the version, and that the bytes it touches are there.

use zerocopy::FromBytes;

use super::{IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header};
use crate::checksum;
use crate::{IpProto, ParseError};

enum Header<'a> {
    V4(&'a mut Ipv4Header),
    V6(&'a mut Ipv6Header),
}

#[inline]
fn header(packet: &mut [u8]) -> Result<Header<'_>, ParseError> {
    let have = packet.len();
    match packet.first().map(|first| first >> 4) {
        Some(4) => Ipv4Header::mut_from_prefix(packet)
            .map(|(header, _)| Header::V4(header))
            .map_err(|_| ParseError::Truncated { what: "IPv4 header", need: IPV4_HEADER, have }),
        Some(6) => Ipv6Header::mut_from_prefix(packet)
            .map(|(header, _)| Header::V6(header))
            .map_err(|_| ParseError::Truncated { what: "IPv6 header", need: IPV6_HEADER, have }),
        Some(_) => Err(ParseError::Malformed { what: "IP packet", why: "version is neither 4 nor 6" }),
        None => Err(ParseError::Truncated { what: "IP packet", need: 1, have }),
    }
}

#[inline]
fn repair(header: &mut Ipv4Header, old: [u8; 2], new: [u8; 2]) {
    // Incremental, so that an invalid checksum stays invalid. A recomputed one would hide an error
    // of the sender.
    let sum = checksum::update(header.checksum.get(), u16::from_be_bytes(old), u16::from_be_bytes(new));
    header.checksum = sum.into();
}

/// Sets DSCP and ECN: the IPv4 TOS or the IPv6 traffic class.
///
/// # Errors
/// [`ParseError`] when the packet has no complete IPv4 or IPv6 header.
#[inline]
pub fn set_tos(packet: &mut [u8], tos: u8) -> Result<(), ParseError> {
    match header(packet)? {
        Header::V4(header) => {
            let old = [header.version_ihl, header.tos];
            header.tos = tos;
            repair(header, old, [header.version_ihl, tos]);
        }
        Header::V6(header) => {
            // IPv6 has no header checksum to update.
            let rest = header.version_class_flow.get() & !(0xff << 20);
            header.version_class_flow = (rest | u32::from(tos) << 20).into();
        }
    }
    Ok(())
}

/// Sets the ECN field alone, of which two bits count (RFC 3168 §5).
///
/// # Errors
/// As [`set_tos`].
#[inline]
pub fn set_ecn(packet: &mut [u8], ecn: u8) -> Result<(), ParseError> {
    let tos = match header(packet)? {
        Header::V4(header) => header.tos,
        Header::V6(header) => header.traffic_class(),
    };
    // ECN is the lower two bits of the TOS byte (RFC 3168 §5).
    set_tos(packet, tos & !3 | ecn & 3)
}

/// Sets the length field to that of a packet of `total_len` bytes, its header included.
///
/// # Errors
/// As [`set_tos`]; [`ParseError::Malformed`] when `total_len` is less than the header or more than
/// the field can say.
#[inline]
pub fn set_total_len(packet: &mut [u8], total_len: usize) -> Result<(), ParseError> {
    const BAD: ParseError = ParseError::Malformed { what: "IP packet", why: "length does not fit its field" };
    match header(packet)? {
        Header::V4(header) => {
            let old = header.total_len.to_bytes();
            // A total length below the header length would make the packet invalid.
            if total_len < usize::from(header.version_ihl & 15) * 4 {
                return Err(BAD);
            }
            header.total_len = u16::try_from(total_len).map_err(|_| BAD)?.into();
            repair(header, old, header.total_len.to_bytes());
        }
        Header::V6(header) => {
            let payload_len = total_len.checked_sub(IPV6_HEADER).and_then(|len| u16::try_from(len).ok());
            header.payload_len = payload_len.ok_or(BAD)?.into();
        }
    }
    Ok(())
}

/// Sets the byte that names the upper layer, which is at `proto_at` (see
/// [`IpPacket::proto_at`](super::IpPacket::proto_at)).
///
/// # Errors
/// As [`set_tos`]; [`ParseError::Truncated`] when `proto_at` is outside the packet.
#[inline]
pub fn set_proto(packet: &mut [u8], proto_at: usize, proto: IpProto) -> Result<(), ParseError> {
    match header(packet)? {
        Header::V4(header) => {
            let old = [header.ttl, header.protocol];
            header.protocol = proto.0;
            repair(header, old, [header.ttl, proto.0]);
        }
        Header::V6(_) => {
            let have = packet.len();
            let cut = ParseError::Truncated { what: "IPv6 extension header", need: proto_at + 1, have };
            *packet.get_mut(proto_at).ok_or(cut)? = proto.0;
        }
    }
    Ok(())
}

/// Recomputes the checksum of the IPv4 header at the start of `packet`, including options.
///
/// # Errors
/// [`ParseError`] when the packet has no complete IPv4 header.
pub fn update_checksum_v4(packet: &mut [u8]) -> Result<(), ParseError> {
    let have = packet.len();
    let len = packet.first().map_or(0, |first| usize::from(first & 15) * 4).max(IPV4_HEADER);
    let cut = ParseError::Truncated { what: "IPv4 header", need: len, have };
    let header = packet.get_mut(..len).ok_or(cut)?;
    // The field counts as zero in its own checksum (RFC 791 §3.1).
    header[10..12].fill(0);
    let sum = checksum::checksum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::IpPacket;
    use crate::ip::tests::{packet_like, v4, v4_with_options, v6};

    #[test]
    fn each_field_changes_alone() {
        for packet in [v4(IpProto::TCP, &[0; 8]), v4_with_options(&[7; 8], &[0; 4]), v6(IpProto::TCP, &[0; 8])] {
            let before = IpPacket::parse(&packet).unwrap();
            let edited = |edit: &dyn Fn(&mut [u8])| {
                let mut packet = packet.clone();
                edit(&mut packet);
                if !before.is_v6() {
                    assert!(checksum::is_valid(&packet[..before.upper_at]));
                }
                IpPacket::parse(&packet).unwrap()
            };
            for tos in [0, 1, 0xb8, 0xff] {
                assert_eq!(edited(&|p| set_tos(p, tos).unwrap()), IpPacket { tos, ..before });
            }
            let marked = edited(&|p| set_tos(p, 0xb9).and_then(|()| set_ecn(p, 0xff)).unwrap());
            assert_eq!(marked.tos, 0xbb);
            assert_eq!(
                edited(&|p| set_proto(p, before.proto_at, IpProto::ESP).unwrap()),
                IpPacket { upper: IpProto::ESP, ..before }
            );
            let total_len = before.total_len - 3;
            assert_eq!(edited(&|p| set_total_len(p, total_len).unwrap()), IpPacket { total_len, ..before });
        }
    }

    #[test]
    fn the_flow_label_survives_a_new_class() {
        let mut packet = v6(IpProto::TCP, &[]);
        packet[1..4].copy_from_slice(&[0x0a, 0xbc, 0xde]);
        set_tos(&mut packet, 0x5f).unwrap();
        assert_eq!(packet[..4], [0x65, 0xfa, 0xbc, 0xde]);
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let mut packet = v4_with_options(&[1; 4], &[]);
        assert!(set_total_len(&mut packet, 23).is_err());
        assert!(set_total_len(&mut packet, 65_536).is_err());
        assert!(set_total_len(&mut packet, 65_535).is_ok());
        let mut packet = v6(IpProto::TCP, &[]);
        assert!(set_total_len(&mut packet, 39).is_err());
        assert!(set_total_len(&mut packet, 65_576).is_err());
        assert!(set_total_len(&mut packet, 65_575).is_ok());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(mut bytes in packet_like(), value: u8, len in 0usize..70_000) {
            let _ = set_tos(&mut bytes, value);
            let _ = set_ecn(&mut bytes, value);
            let _ = set_proto(&mut bytes, value.into(), IpProto(value));
            let _ = set_total_len(&mut bytes, len);
            let _ = update_checksum_v4(&mut bytes);
        }
    }
}
