//! IP headers around a protocol: tunnel, transport and BEET, with or without UDP.
//!
//! Outbound a protocol first appends its trailer and ICV room to the packet, then calls
//! [`encapsulate`], which makes room for the protocol header and writes everything outside of it.
//! Inbound, after the ICV, it calls [`decapsulate`] with where the payload lies.

use wire::{IpPacket, IpProto};

use crate::{Drop, Frame, Mode, PendingIn, SaCommon, UdpPorts};

/// What of the packet becomes the payload of the protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Payload {
    /// Bytes, a BEET pseudo header included.
    pub len: usize,
    /// Its protocol, for the Next Header field.
    pub next: IpProto,
}

/// The payload that `mode` takes from the packet `ip`.
///
/// # Errors
/// [`Drop::Fragment`] for a fragment in transport or BEET mode; [`Drop::PolicyMismatch`] when
/// BEET addresses differ from the packet's.
pub fn payload(mode: &Mode, ip: &IpPacket, packet: &[u8]) -> Result<Payload, Drop> {
    let _ = (mode, ip, packet);
    todo!("encap helper")
}

/// Puts the outer part in front of the payload. The frame holds the original packet followed by
/// whatever the protocol appended (trailer, ICV). Afterwards it holds: IP header (new, original or
/// BEET), UDP header if `udp`, `gap` bytes for the protocol to fill, payload, appended bytes; all
/// IP and UDP lengths and the IPv4 checksum are final. Returns the offset of the gap.
///
/// `proto` is the number in the IP header when there is no UDP. A UDP checksum that was asked for
/// is not written here (the payload is not final): see [`finish_udp_checksum`].
///
/// # Errors
/// [`Drop::NoRoom`], [`Drop::TooBig`] beyond 65535 bytes.
pub fn encapsulate(
    common: &SaCommon,
    ip: &IpPacket,
    frame: &mut Frame<'_>,
    gap: usize,
    proto: IpProto,
    udp: Option<UdpPorts>,
) -> Result<usize, Drop> {
    let _ = (common, ip, frame, gap, proto, udp);
    todo!("encap helper")
}

/// Writes the checksum of the UDP header behind the outer IP header, after the engine.
pub fn finish_udp_checksum(frame: &mut Frame<'_>) -> Result<(), Drop> {
    let _ = frame;
    todo!("encap helper")
}

/// Turns the frame (outer packet, decrypted) into the inner packet: the payload
/// `payload_start..payload_end` (trailer already excluded), of protocol `next`.
///
/// Tunnel: the payload is the packet; its version must agree with `next`; ECN per RFC 6040 into
/// the inner header. Transport: original header with protocol, lengths and checksum restored.
/// BEET: inner header rebuilt from the SA's addresses, RFC 7402 pseudo header undone.
///
/// # Errors
/// [`Drop::BadInner`], [`Drop::EcnCe`], [`Drop::Truncated`].
pub fn decapsulate(
    common: &SaCommon,
    frame: &mut Frame<'_>,
    pending: &PendingIn,
    payload_start: usize,
    payload_end: usize,
    next: IpProto,
) -> Result<IpPacket, Drop> {
    let _ = (common, frame, pending, payload_start, payload_end, next);
    todo!("encap helper")
}

/// Bytes that the outer part adds in front of the protocol header for `common` (new IP header in
/// tunnel mode, UDP), and bytes of the inner packet that do not become payload (its IP header in
/// transport and BEET mode, taken as `inner_header`).
pub fn fixed_overhead(common: &SaCommon, udp: bool) -> usize {
    let _ = (common, udp);
    todo!("encap helper")
}
