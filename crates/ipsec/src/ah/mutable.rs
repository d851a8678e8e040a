//! The fields that are mutable in transit, as covered by the MAC of AH (RFC 4302 §3.3.3.1, appendix
//! A).

use wire::IpProto;
use wire::ip::{Extension, Extensions, IPV4_HEADER, IPV6_HEADER, Ipv4Options, Ipv6Options};

use crate::DropReason;

/// Side that computes the ICV: the sender must predict the values at the receiver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Role {
    Sender,
    Receiver,
}

/// IPv4 loose and strict source route options.
const SOURCE_ROUTES: [u8; 2] = [131, 137];

/// IPv6 routing header of Mobile IPv6 (RFC 6275 §6.4): one address, to be swapped with the
/// destination once.
const ROUTING_TYPE_2: u8 = 2;

/// Makes `masked`, a copy of `headers` (an IP header with its options or extension headers, up to
/// AH), what the MAC sees: mutable fields zero, predictable ones as they arrive.
///
/// # Errors
/// [`DropReason::Malformed`] for options or extension headers that cannot be walked and for routing
/// headers whose end is not predicted; [`DropReason::Fragment`] for a fragment header: AH comes
/// before fragmentation and after reassembly.
pub(super) fn mask(headers: &[u8], masked: &mut [u8], role: Role) -> Result<(), DropReason> {
    match headers.first().map(|b| b >> 4) {
        Some(4) if headers.len() >= IPV4_HEADER => mask_v4(headers, masked, role),
        Some(6) if headers.len() >= IPV6_HEADER => mask_v6(headers, masked, role),
        _ => Err(DropReason::Truncated),
    }
}

fn mask_v4(header: &[u8], masked: &mut [u8], role: Role) -> Result<(), DropReason> {
    masked[1] = 0; // TOS
    masked[6..9].fill(0); // flags, fragment offset, TTL
    masked[10..12].fill(0); // checksum
    for option in Ipv4Options::new(header) {
        let option = option?;
        if !option.is_mutable() {
            continue;
        }
        let bytes = option.at..option.at + option.len;
        if role == Role::Sender && SOURCE_ROUTES.contains(&option.kind) {
            predict_destination(&header[bytes.clone()], masked)?;
        }
        masked[bytes].fill(0);
    }
    Ok(())
}

/// The destination at the end of a source route that is not used up: its last address.
fn predict_destination(source_route: &[u8], masked: &mut [u8]) -> Result<(), DropReason> {
    let &[_, len, pointer, ref route @ ..] = source_route else { return Err(DropReason::Malformed) };
    if pointer <= len {
        masked[16..20].copy_from_slice(route.last_chunk::<4>().ok_or(DropReason::Malformed)?);
    }
    Ok(())
}

fn mask_v6(headers: &[u8], masked: &mut [u8], role: Role) -> Result<(), DropReason> {
    masked[0] &= 0xf0;
    masked[1..4].fill(0); // traffic class, flow label
    masked[7] = 0; // hop limit
    for extension in Extensions::new(headers) {
        let Extension { proto, at, len, .. } = extension?;
        match proto {
            IpProto::HOP_BY_HOP | IpProto::DEST_OPTIONS => {
                mask_options(&headers[at..at + len], &mut masked[at..at + len])?;
            }
            IpProto::ROUTING => mask_routing(&headers[at..at + len], at, masked, role)?,
            _ => return Err(DropReason::Fragment),
        }
    }
    Ok(())
}

/// Zeroes the data of the options that may change; type and length stay.
fn mask_options(header: &[u8], masked: &mut [u8]) -> Result<(), DropReason> {
    for option in Ipv6Options::new(header) {
        let option = option?;
        if option.is_mutable() {
            masked[option.at + 2..option.at + option.len].fill(0);
        }
    }
    Ok(())
}

/// Brings the routing header at `at` to the state it has at its end: no segments left.
fn mask_routing(header: &[u8], at: usize, masked: &mut [u8], role: Role) -> Result<(), DropReason> {
    let (kind, segments_left) = (header[2], header[3]);
    match (role, kind, segments_left) {
        (_, _, 0) => Ok(()),
        (Role::Sender, ROUTING_TYPE_2, 1) if header.len() == 24 => {
            masked[at + 3] = 0;
            let (fixed, extensions) = masked.split_at_mut(IPV6_HEADER);
            fixed[24..40].swap_with_slice(&mut extensions[at - IPV6_HEADER + 8..][..16]);
            Ok(())
        }
        // Type 0 is forbidden (RFC 5095); others do not say what a packet looks like at its end.
        _ => Err(DropReason::Malformed),
    }
}
