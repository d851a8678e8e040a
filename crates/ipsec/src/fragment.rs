//! Cutting an inner IPv4 packet to size before encapsulation (RFC 791 §3.2), DF clear.

use wire::IpPacket;
use wire::ip::{IPV4_HEADER, Ipv4Header, Ipv4Options, MORE_FRAGMENTS, OPT_END, update_checksum_v4};
use zerocopy::FromBytes;

use crate::DropReason;

/// Longest IPv4 header.
const MAX_HEADER: usize = 60;
/// The copied flag of an option's type: every fragment has the option (RFC 791 §3.1).
const COPIED: u8 = 0x80;
/// The flag above DF, which has no meaning but is not ours to change.
const RESERVED_FLAG: u16 = 0x8000;

/// Calls `emit` with each fragment of `packet`, none longer than `mtu` bytes. `scratch` holds one
/// fragment at a time. A packet that fits is emitted as it is; a packet that is a fragment itself
/// is cut further.
///
/// # Errors
/// [`DropReason::TooBig`] when DF is set, the packet is IPv6 or `mtu` cannot hold a header and 8
/// bytes; [`DropReason::Malformed`] when its options are; [`DropReason::NoRoom`] when `scratch` is
/// shorter than `mtu`. Nothing was emitted then.
pub fn fragment_v4(
    ip: &IpPacket,
    packet: &[u8],
    mtu: usize,
    scratch: &mut [u8],
    emit: &mut dyn FnMut(&[u8]),
) -> Result<(), DropReason> {
    let packet = packet.get(..ip.total_len).ok_or(DropReason::Truncated)?;
    if ip.dont_fragment || ip.is_v6() || ip.upper_at + 8 > mtu {
        return Err(DropReason::TooBig);
    }
    if packet.len() <= mtu {
        emit(packet);
        return Ok(());
    }
    let scratch = scratch.get_mut(..mtu).ok_or(DropReason::NoRoom)?;
    let (mut header, mut payload) = packet.split_at_checked(ip.upper_at).ok_or(DropReason::Truncated)?;
    let (later_header, later_len) = later_header(header)?;
    let (first_offset, last_has_more) = ip.fragment.map_or((0, false), |f| (f.offset, f.more));
    let mut offset = first_offset;
    while !payload.is_empty() {
        let room = mtu - header.len();
        let (piece, rest) = payload.split_at(if payload.len() <= room { payload.len() } else { room & !7 });
        let more = last_has_more || !rest.is_empty();
        emit(write(scratch, header, piece, offset, more)?);
        offset += piece.len();
        (payload, header) = (rest, &later_header[..later_len]);
    }
    Ok(())
}

fn write<'a>(
    scratch: &'a mut [u8],
    header: &[u8],
    piece: &[u8],
    offset: usize,
    more: bool,
) -> Result<&'a [u8], DropReason> {
    let len = header.len() + piece.len();
    let fragment = scratch.get_mut(..len).ok_or(DropReason::NoRoom)?;
    let (front, back) = fragment.split_at_mut(header.len());
    front.copy_from_slice(header);
    back.copy_from_slice(piece);
    let (fields, _) = Ipv4Header::mut_from_prefix(front).map_err(|_| DropReason::Truncated)?;
    let flags = fields.flags_fragment.get() & RESERVED_FLAG | if more { MORE_FRAGMENTS } else { 0 };
    fields.total_len = (len as u16).into();
    fields.flags_fragment = (flags | (offset / 8) as u16).into();
    update_checksum_v4(front)?;
    Ok(fragment)
}

/// The header of all fragments but the first: with only the options that must be copied (RFC 791
/// §3.1).
fn later_header(header: &[u8]) -> Result<([u8; MAX_HEADER], usize), DropReason> {
    let mut later = [OPT_END; MAX_HEADER];
    let mut len = IPV4_HEADER;
    later[..IPV4_HEADER].copy_from_slice(header.get(..IPV4_HEADER).ok_or(DropReason::Truncated)?);
    for option in Ipv4Options::new(header) {
        let option = option?;
        if option.kind & COPIED != 0 {
            later[len..len + option.len].copy_from_slice(&header[option.at..option.at + option.len]);
            len += option.len;
        }
    }
    let padded = len.next_multiple_of(4);
    later[0] = 0x40 | (padded / 4) as u8;
    Ok((later, padded))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testkit::{assert_ipv4_checksum, ipv4_udp, ones_complement_sum};
    use crate::{Reassembled, Reassembler};

    /// An IPv4 packet with DF clear and these options, a multiple of 4 bytes.
    fn packet(payload: usize, options: &[u8]) -> Vec<u8> {
        let mut packet = ipv4_udp([10, 0, 0, 1], [10, 0, 0, 2], payload);
        packet.splice(20..20, options.iter().copied());
        packet[0] = 0x40 | (5 + options.len() / 4) as u8;
        let total = packet.len() as u16;
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[6] = 0;
        fixup(&mut packet);
        packet
    }

    fn fixup(packet: &mut [u8]) {
        packet[10..12].fill(0);
        let header = usize::from(packet[0] & 15) * 4;
        let sum = !ones_complement_sum(&packet[..header], 0);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }

    fn cut(packet: &[u8], mtu: usize) -> Result<Vec<Vec<u8>>, DropReason> {
        let mut fragments = Vec::new();
        let ip = IpPacket::parse(packet).unwrap();
        fragment_v4(&ip, packet, mtu, &mut [0; 2000], &mut |fragment| fragments.push(fragment.to_vec()))?;
        Ok(fragments)
    }

    fn join(fragments: &[Vec<u8>]) -> Option<Vec<u8>> {
        let mut reassembler = Reassembler::new(1, 65_535, 1000);
        fragments.iter().find_map(|fragment| {
            let ip = IpPacket::parse(fragment).unwrap();
            match reassembler.push(0, &ip, fragment).unwrap() {
                Reassembled::Whole(whole) => Some(whole.to_vec()),
                Reassembled::Waiting => None,
            }
        })
    }

    proptest! {
        #[test]
        fn fragments_become_the_packet_again(
            payload in 0usize..4000, mtu in 28usize..1600, again in 28usize..1600, words in 0usize..=10,
        ) {
            let options: Vec<u8> = (0..words * 4).map(|_| 1).collect();
            let packet = packet(payload, &options);
            let header = 20 + options.len();
            prop_assume!(mtu >= header + 8 && again >= header + 8);
            let once = cut(&packet, mtu).unwrap();
            let twice: Vec<Vec<u8>> = if once.len() == 1 {
                once
            } else {
                once.iter().flat_map(|fragment| cut(fragment, again).unwrap()).collect()
            };
            for fragment in &twice {
                prop_assert!(fragment.len() <= mtu);
                assert_ipv4_checksum(fragment);
            }
            if twice.len() > 1 {
                prop_assert_eq!(join(&twice), Some(packet));
            } else {
                prop_assert_eq!(&twice[0], &packet);
            }
        }
    }

    #[test]
    fn later_fragments_have_the_copied_options_alone() {
        // Record route (7) is in the first fragment only, stream ID (136) in all of them.
        let options = [7, 3, 4, 1, 136, 4, 0xab, 0xcd];
        let fragments = cut(&packet(100, &options), 60).unwrap();
        assert_eq!(fragments[0][20..28], options);
        assert_eq!((fragments[1][0], &fragments[1][20..24]), (0x46, &[136, 4, 0xab, 0xcd][..]));
        let odd = [131, 3, 4, 0];
        assert_eq!(cut(&packet(100, &odd), 60).unwrap()[1][20..24], [131, 3, 4, OPT_END]);
    }

    #[test]
    fn what_may_not_be_cut_is_too_big() {
        let mut whole = packet(100, &[]);
        assert_eq!(cut(&whole, 27), Err(DropReason::TooBig));
        assert_eq!(cut(&whole, 28).map(|fragments| fragments.len()), Ok(14));
        assert_eq!(cut(&whole, 128).map(|fragments| fragments.len()), Ok(1));
        whole[6] = 0x40;
        fixup(&mut whole);
        assert_eq!(cut(&whole, 60), Err(DropReason::TooBig));
        assert_eq!(cut(&packet(100, &[7, 9, 4, 0]), 60), Err(DropReason::Malformed));
        let ip = IpPacket::parse(&packet(100, &[])).unwrap();
        let short = fragment_v4(&ip, &packet(100, &[]), 60, &mut [0; 59], &mut |_| panic!("nothing is emitted"));
        assert_eq!(short, Err(DropReason::NoRoom));
    }
}
