//! The two halves of every protocol, by SA.

use crypto::{CryptoOp, DerivedKeys, IcvOk, Span};
use wire::{IpPacket, IpProto, SeqNo};

use crate::{Drop, Frame, InProto, InboundSa, OutLane, OutProto, OutboundSa, Protocol, ah, eesp, encap, esp, psp};

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
    /// Protocol's own: AH keeps the length of the saved header, EESP the crypt offset, PSP S and D.
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

/// A packet that came through an inbound SA; it now fills the frame.
#[derive(Clone, Copy, Debug)]
pub struct Delivered {
    /// PSP requests sampling of this packet.
    pub sample: bool,
}

/// Takes the operation that [`prepare_out_usual`] makes. A closure does; a type of the caller's can besides insist on being
/// inlined, without which the operation is written twice.
pub trait PutOp {
    /// Takes it.
    fn put(self, op: CryptoOp);
}

impl<F: FnOnce(CryptoOp)> PutOp for F {
    #[inline(always)]
    fn put(self, op: CryptoOp) {
        self(op)
    }
}

/// As [`PutOp`], for [`crate::OutNext::prepare`].
pub trait PutJob<'p> {
    /// Takes the operation, and the packet that it is for.
    fn put(self, op: CryptoOp, packet: &'p mut [u8]);
}

/// As [`PutOp`], for [`prepare_in_usual`].
pub trait PutIn {
    /// Takes the operation, and what is to be remembered meanwhile.
    fn put(self, op: CryptoOp, pending: PendingIn);
}

/// As [`PutOp`], for [`crate::InNext::prepare`].
pub trait PutInJob<'p> {
    /// Takes the operation, the packet that it is for, and what is to be remembered meanwhile.
    fn put(self, op: CryptoOp, packet: &'p mut [u8], pending: PendingIn);
}

impl<F: FnOnce(CryptoOp, PendingIn)> PutIn for F {
    #[inline(always)]
    fn put(self, op: CryptoOp, pending: PendingIn) {
        self(op, pending)
    }
}

/// Lays out the protected form of the packet in `frame` (headers read into `ip`) and says what
/// is to be encrypted. `seq` was reserved from `lane.seq`. Afterwards the frame starts with the
/// outer IP header, whose lengths and checksum are final.
///
/// # Errors
/// The reason to drop; the frame's content is then undefined.
pub fn prepare_out(
    sa: &OutboundSa,
    lane: &OutLane,
    seq: SeqNo,
    ip: &IpPacket,
    frame: &mut Frame<'_>,
) -> Result<(CryptoOp, PendingOut), Drop> {
    let mut op = CryptoOp::EMPTY;
    if prepare_out_usual(sa, lane, seq, ip, frame, |made| op = made)? {
        return Ok((op, PendingOut::default()));
    }
    let pending = prepare_out_any(sa, lane, seq, ip, frame, &mut op)?;
    Ok((op, pending))
}

/// [`prepare_out`] for packets of the usual kind, without [`PendingOut`]; false, and nothing has
/// changed, for others.
///
/// All of it is inlined, and `put` is called once with the operation, so that it is made where the
/// caller keeps it: copying what was only just written stalls the processor, which is a tenth of a
/// small packet's cost.
///
/// # Errors
/// As [`prepare_out`].
#[inline(always)]
pub fn prepare_out_usual(
    sa: &OutboundSa,
    lane: &OutLane,
    seq: SeqNo,
    ip: &IpPacket,
    frame: &mut Frame<'_>,
    put: impl PutOp,
) -> Result<bool, Drop> {
    frame.truncate(ip.total_len)?;
    match &sa.recipe {
        Some(recipe) => recipe.prepare(sa, lane, seq, ip, frame, put),
        None => Ok(false),
    }
}

/// [`prepare_out`] for packets of every kind, from the settings of their SA, that writes the
/// operation where it will be used.
///
/// # Errors
/// As [`prepare_out`].
#[inline(never)] // beside the usual way, not within it
pub fn prepare_out_any(
    sa: &OutboundSa,
    lane: &OutLane,
    seq: SeqNo,
    ip: &IpPacket,
    frame: &mut Frame<'_>,
    op: &mut CryptoOp,
) -> Result<PendingOut, Drop> {
    match &sa.proto {
        OutProto::Esp(esp) => esp::prepare_out(sa, esp, lane, seq, ip, frame, op),
        OutProto::Ah(ah) => ah::prepare_out(sa, ah, lane, seq, ip, frame, op),
        OutProto::Eesp(eesp) => eesp::prepare_out(sa, eesp, lane, seq, ip, frame, op),
        OutProto::Psp(psp) => psp::prepare_out(sa, psp, lane, seq, ip, frame, op),
    }
}

/// Whether packets of `sa` have to go through [`finish_out`]; for the others it changes nothing.
pub fn needs_finish(sa: &OutboundSa) -> bool {
    matches!(sa.proto, OutProto::Ah(_)) || sa.common.outer.udp_checksum
}

/// Completes an outbound packet after the engine.
///
/// # Errors
/// The reason to drop.
pub fn finish_out(sa: &OutboundSa, frame: &mut Frame<'_>, pending: PendingOut) -> Result<(), Drop> {
    if matches!(sa.proto, OutProto::Ah(_)) {
        ah::finish_out(frame, pending)?;
    }
    let outer = &sa.common.outer;
    let in_udp = outer.udp.is_some() || sa.protocol() == Protocol::Psp;
    if outer.udp_checksum && in_udp { encap::finish_udp_checksum(frame) } else { Ok(()) }
}

/// Checks what can be checked before decryption and says what is to be verified. `outer` are the
/// headers of the packet in `frame`, `at` the offset of the protocol header (behind UDP if any).
/// Changes no state of the SA; `derived` may gain a key.
///
/// # Errors
/// The reason to drop.
pub fn prepare_in(
    sa: &InboundSa,
    outer: &IpPacket,
    at: usize,
    frame: &mut Frame<'_>,
    derived: &mut DerivedKeys,
) -> Result<(CryptoOp, PendingIn), Drop> {
    let (mut op, mut pending) = (CryptoOp::EMPTY, PendingIn::EMPTY);
    if prepare_in_usual(sa, outer, at, frame.bytes(), |made, kept| (op, pending) = (made, kept))? {
        return Ok((op, pending));
    }
    prepare_in_any(sa, outer, at, frame, derived, &mut op, &mut pending)?;
    Ok((op, pending))
}

/// [`prepare_in`] for packets of the usual kind; false, and nothing has changed, for others. Inlined
/// like [`prepare_out_usual`].
///
/// # Errors
/// As [`prepare_in`].
#[inline(always)]
pub fn prepare_in_usual(
    sa: &InboundSa,
    outer: &IpPacket,
    at: usize,
    packet: &[u8],
    put: impl PutIn,
) -> Result<bool, Drop> {
    match &sa.recipe {
        Some(recipe) => recipe.prepare(sa, outer, at, packet, put),
        None => Ok(false),
    }
}

/// [`prepare_in`] for packets of every kind, from the settings of their SA, that writes its results
/// where they will be used.
///
/// # Errors
/// As [`prepare_in`].
#[inline(never)] // beside the usual way, not within it
pub fn prepare_in_any(
    sa: &InboundSa,
    outer: &IpPacket,
    at: usize,
    frame: &mut Frame<'_>,
    derived: &mut DerivedKeys,
    op: &mut CryptoOp,
    pending: &mut PendingIn,
) -> Result<(), Drop> {
    match &sa.proto {
        InProto::Esp(esp) => esp::prepare_in(sa, esp, outer, at, frame, op, pending),
        InProto::Ah(ah) => ah::prepare_in(sa, ah, outer, at, frame, op, pending),
        InProto::Eesp(eesp) => eesp::prepare_in(sa, eesp, outer, at, frame, derived, op, pending),
        InProto::Psp(psp) => psp::prepare_in(sa, psp, outer, at, frame, derived, op, pending),
    }
}

/// Whether [`finish_in_usual`] is for a packet.
#[inline]
pub fn finishes_usual(sa: &InboundSa, pending: &PendingIn) -> bool {
    sa.recipe.as_ref().is_some_and(|recipe| recipe.finishes(pending))
}

/// [`finish_in`] for packets of the usual kind; returns where in `packet` the inner one is.
///
/// # Errors
/// As [`finish_in`].
#[inline(always)]
pub fn finish_in_usual(
    sa: &InboundSa,
    packet: &mut [u8],
    pending: &PendingIn,
    ok: IcvOk,
) -> Result<std::ops::Range<usize>, Drop> {
    sa.recipe.as_ref().ok_or(Drop::Inconsistent)?.finish(sa, packet, pending, ok)
}

/// Releases the payload of a packet whose ICV an engine found right: moves the replay window,
/// strips what the protocol added, restores or checks the inner IP header. Afterwards the frame
/// is the inner packet, whose own length agrees; upper layers and extension headers were not read.
///
/// # Errors
/// The reason to drop; the window may have moved, because the packet was authentic.
#[inline(never)] // beside the usual way, not within it
pub fn finish_in(sa: &InboundSa, frame: &mut Frame<'_>, pending: &PendingIn, ok: IcvOk) -> Result<Delivered, Drop> {
    match &sa.proto {
        InProto::Esp(_) => esp::finish_in(sa, frame, pending, ok),
        InProto::Ah(_) => ah::finish_in(sa, frame, pending, ok),
        InProto::Eesp(eesp) => eesp::finish_in(sa, eesp, frame, pending, ok),
        InProto::Psp(psp) => psp::finish_in(sa, psp, frame, pending, ok),
    }
}
