//! Cutting an inner IPv4 packet to size before encapsulation (RFC 791 §3.2), DF clear.

use wire::IpPacket;

use crate::Drop;

/// Calls `emit` with each fragment of `packet`, none longer than `mtu` bytes. `scratch` holds one
/// fragment at a time.
///
/// # Errors
/// [`Drop::TooBig`] when DF is set, the packet is IPv6 or `mtu` cannot hold a header and 8 bytes.
pub fn fragment_v4(
    ip: &IpPacket,
    packet: &[u8],
    mtu: usize,
    scratch: &mut [u8],
    emit: &mut dyn FnMut(&[u8]),
) -> Result<(), Drop> {
    let _ = (ip, packet, mtu, scratch, emit);
    todo!("tables helper")
}
