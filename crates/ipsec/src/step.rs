//! Prepare and finish steps of every protocol, selected by the SA.

use crypto::{CryptoOp, DerivedKeys, IcvOk, Jobs, Span};
use wire::{IpPacket, IpProto, SeqNo};

use crate::template::{InLayout, OuterLayout};
use crate::{DropReason, Frame, InboundSa, OutLane, OutboundSa, Protocol, ah, encap};

/// Fields that [`finish_out`] restores.
#[derive(Clone, Copy, Debug, Default)]
pub struct PendingOut {
    /// Bytes of the original IP header saved right before the packet (AH), 0 otherwise.
    pub saved: u16,
}

/// State for [`finish_in`] of a packet in the engine.
#[derive(Clone, Copy, Debug)]
pub struct PendingIn {
    /// Sequence number, inferred in full.
    pub seq: SeqNo,
    /// Lane (EESP Sub SA), 0 otherwise.
    pub lane: u16,
    /// Offset of the IP header's end: of the UDP header when encapsulated, else of the protocol's.
    pub ip_end: u16,
    /// Offset of the byte in the outer IP header chain that names the protocol.
    pub proto_at: u16,
    /// Payload between protocol header and ICV: with trailer (ESP), payload info (EESP).
    pub payload: Span,
    /// Next header, if it is in clear text (AH, PSP).
    pub next: IpProto,
    /// DSCP and ECN of the outer header.
    pub outer_tos: u8,
    /// Protocol-specific state: length of the saved header (AH), crypt offset (EESP), S and D
    /// (PSP).
    pub extra: u16,
}

impl PendingIn {
    /// Initial contents of a slot.
    pub const EMPTY: Self = Self {
        seq: SeqNo(0),
        lane: 0,
        ip_end: 0,
        proto_at: 0,
        payload: Span { start: 0, end: 0 },
        next: IpProto::NONE,
        outer_tos: 0,
        extra: 0,
    };
}

/// Packet for [`prepare_out_slow`], which must be all of `frame`.
pub struct OutPacket<'a, 'f> {
    /// Lane that its number was reserved from.
    pub lane: &'a OutLane,
    /// Sequence number.
    pub seq: SeqNo,
    /// Its headers.
    pub ip: &'a IpPacket,
    /// The packet; afterwards the protected one.
    pub frame: &'a mut Frame<'f>,
    /// Buffer for the operation.
    pub op: &'a mut CryptoOp,
}

/// Packet for [`prepare_in_slow`].
pub struct InPacket<'a, 'f> {
    /// Its headers.
    pub outer: &'a IpPacket,
    /// Offset of the protocol header.
    pub at: usize,
    /// The packet.
    pub frame: &'a mut Frame<'f>,
}

/// Buffers for the results of [`prepare_in_slow`]. They belong to the caller, because a copy would
/// read bytes right after they were written.
pub struct InResult<'a> {
    /// The operation.
    pub op: &'a mut CryptoOp,
    /// State for [`finish_in`].
    pub pending: &'a mut PendingIn,
}

/// A packet that was decrypted by an inbound SA and now fills the frame.
#[derive(Clone, Copy, Debug)]
pub struct Delivered {
    /// PSP requests sampling of this packet.
    pub sample: bool,
}

/// Builds the protected packet in `frame` (headers parsed into `ip`) and returns the operation for
/// the engine. `seq` was reserved from `lane.seq`. Afterwards the frame starts with the outer IP
/// header, whose lengths and checksum are final.
///
/// # Errors
/// The reason to drop; the frame's content is then undefined.
pub fn prepare_out(
    sa: &OutboundSa,
    lane: &OutLane,
    seq: SeqNo,
    ip: &IpPacket,
    frame: &mut Frame<'_>,
) -> Result<(CryptoOp, PendingOut), DropReason> {
    frame.truncate(ip.total_len)?;
    let template = sa.template().filter(|_| !sa.exceeds_path(ip.total_len));
    if let Some(op) = template.and_then(|template| template.prepare_one(lane, seq, frame)) {
        return Ok((op, PendingOut::default()));
    }
    let mut op = CryptoOp::EMPTY;
    let pending = prepare_out_slow(sa, OutPacket { lane, seq, ip, frame, op: &mut op })?;
    Ok((op, pending))
}

/// Slow path of [`prepare_out`] for every SA and packet. Writes the operation into the caller's
/// buffer.
///
/// # Errors
/// As [`prepare_out`].
#[inline(never)] // keeps the fast path small
pub fn prepare_out_slow(sa: &OutboundSa, packet: OutPacket<'_, '_>) -> Result<PendingOut, DropReason> {
    if !sa.exceeds_path(packet.ip.total_len) || !sa.may_exceed_path(packet.ip) {
        return sa.proto.prepare(sa, packet);
    }
    // Read as the DF bit of the outer header.
    let ip = IpPacket { dont_fragment: false, ..*packet.ip };
    sa.proto.prepare(sa, OutPacket { ip: &ip, ..packet })
}

/// Returns whether packets of `sa` must go through [`finish_out`], which changes nothing for
/// others.
pub fn needs_finish(sa: &OutboundSa) -> bool {
    sa.finishes
}

/// Completes an outbound packet after the engine.
///
/// # Errors
/// The reason to drop.
pub fn finish_out(sa: &OutboundSa, frame: &mut Frame<'_>, pending: PendingOut) -> Result<(), DropReason> {
    if sa.protocol() == Protocol::Ah {
        ah::finish_out(frame, pending)?;
    }
    let outer = &sa.common.outer;
    // The checksum covers the ciphertext, so it can only be computed after the engine. PSP is
    // always in UDP.
    let in_udp = outer.udp.is_some() || sa.protocol() == Protocol::Psp;
    if outer.udp_checksum && in_udp { encap::finish_udp_checksum(frame) } else { Ok(()) }
}

/// Performs the checks that precede decryption and returns the operation for the engine. `outer`
/// holds the headers of the packet in `frame`, `at` is the offset of the protocol header (after
/// UDP, if any). Changes no state of the SA; `derived` may gain a key.
///
/// # Errors
/// The reason to drop.
pub fn prepare_in(
    sa: &InboundSa,
    outer: &IpPacket,
    at: usize,
    frame: &mut Frame<'_>,
    derived: &mut DerivedKeys,
) -> Result<(CryptoOp, PendingIn), DropReason> {
    if let Some(prepared) = prepare_in_fast(sa, outer, at, frame) {
        return prepared;
    }
    let (mut op, mut pending) = (CryptoOp::EMPTY, PendingIn::EMPTY);
    let result = InResult { op: &mut op, pending: &mut pending };
    prepare_in_slow(sa, InPacket { outer, at, frame }, derived, result)?;
    Ok((op, pending))
}

/// Fast path of [`prepare_in`]; `None` if the packet does not fit the template of the SA.
fn prepare_in_fast(
    sa: &InboundSa,
    outer: &IpPacket,
    at: usize,
    frame: &mut Frame<'_>,
) -> Option<Result<(CryptoOp, PendingIn), DropReason>> {
    // In UDP the datagram may end before the IP packet does.
    if at != outer.upper_at || outer.fragment.is_some() || frame.len() != outer.total_len {
        return None;
    }
    let at = u16::try_from(at).ok()?;
    let layout = InLayout::of(sa, OuterLayout { ip_end: at, at, proto_at: outer.proto_at as u16 })?;
    let outer_tos = layout.fits(frame.bytes())?;
    match layout.check(frame.bytes()) {
        Ok(numbers) => {
            let mut jobs = Jobs::new();
            let own = layout.prepare(frame.bytes_mut(), outer_tos, numbers, &mut jobs);
            Some(Ok((jobs.pop()?.op, own.pending(layout.common()))))
        }
        Err(why) => Some(Err(why)),
    }
}

/// Slow path of [`prepare_in`] for every SA and packet. Writes its results into the caller's
/// buffers.
///
/// # Errors
/// As [`prepare_in`].
#[inline(never)] // keeps the fast path small
pub fn prepare_in_slow(
    sa: &InboundSa,
    packet: InPacket<'_, '_>,
    derived: &mut DerivedKeys,
    result: InResult<'_>,
) -> Result<(), DropReason> {
    sa.proto.prepare(sa, packet, derived, result)
}

/// Releases the payload of a packet whose ICV an engine has verified: advances the replay window,
/// strips the headers and trailer of the protocol, restores or checks the inner IP header.
/// Afterwards the frame is the inner packet, whose length field is valid. Callers should not assume
/// more: upper layers and extension headers were not parsed.
///
/// # Errors
/// The reason to drop; the window may have moved, because the packet was authentic.
#[inline(never)] // keeps the fast path small
pub fn finish_in(
    sa: &InboundSa,
    frame: &mut Frame<'_>,
    pending: &PendingIn,
    ok: IcvOk,
) -> Result<Delivered, DropReason> {
    sa.proto.finish(sa, frame, pending, ok)
}
