//! The last step for runs of packets that came through one lane of an SA.

use crypto::IcvOk;
use ipsec::{DropReason, InFlowTemplate, InnerTemplate, PendingIn};
use wire::PlainFlow;
use wire::ip::IPV4_HEADER;

use super::in_flight::{InFlightDecryptions, Kind, Own};
use super::{Admitted, Last};
use crate::Packet;

impl<'t> Last<'t> {
    /// What a packet has in common with others, when it came through this SA and may be finished as
    /// one of a run.
    #[inline(always)]
    fn alike<'o>(
        &self,
        next: &InFlowTemplate<'_>,
        openings: &'o InFlightDecryptions<'t>,
        kind: u8,
    ) -> Option<&'o Kind<'t>> {
        let kind = openings.kind(kind)?;
        let ours = kind.slot == self.slot && std::ptr::eq(kind.sa, self.sa) && next.shares_lane(&kind.pending);
        Some(kind).filter(|kind| ours && kind.alike)
    }

    /// Finishes the packets from `done` on as far as they came through this SA and are of the flow
    /// `admitted`.
    pub(super) fn finish_burst(
        &self,
        next: &InFlowTemplate<'_>,
        admitted: &mut Admitted,
        (openings, done): (&InFlightDecryptions<'t>, usize),
        proofs: &mut [Option<IcvOk>],
        packets: &mut [Packet],
    ) -> Finished {
        let own = openings.from(done);
        // Without a proof the first packet must not become a template: its bytes may be forged.
        let (Some(first), Some(Some(_))) = (own.first(), proofs.first()) else { return Finished::default() };
        let Some(Kind { pending, .. }) = self.alike(next, openings, first.kind) else { return Finished::default() };
        if next.is_transport() {
            return finish_each::<true>(next, &admitted.flow, pending, own, proofs, packets);
        }
        // A template fits packets of one length only. With mixed lengths most attempts would fail.
        if !are_mixed(own.iter().map(|own| own.end)) {
            let pending = first.pending(pending);
            let known = admitted.inside.filter(|inside| inside.is_for(&pending));
            let packet = || packets.get(usize::from(first.i));
            admitted.inside = known.or_else(|| next.inside(packet()?.bytes(), &pending, &admitted.flow));
            let inside = |inside| finish_inside(next, inside, &pending, own, proofs, packets);
            let some = admitted.inside.as_ref().map(inside).unwrap_or_default();
            if some.count > 0 || some.refused.is_some() {
                return some;
            }
        }
        finish_each::<false>(next, &admitted.flow, pending, own, proofs, packets)
    }
}

/// Finishes the first of `packets` as far as they are of one kind, with `pending` in common, and of
/// a flow.
#[inline(never)] // all registers are for this loop
fn finish_each<const TRANSPORT: bool>(
    next: &InFlowTemplate<'_>,
    flow: &PlainFlow,
    pending: &PendingIn,
    openings: &[Own],
    proofs: &mut [Option<IcvOk>],
    packets: &mut [Packet],
) -> Finished {
    let mut all = Finished::default();
    let Some(Own { kind, .. }) = openings.first() else { return all };
    for (own, proof) in openings.iter().zip(proofs) {
        let Some(packet) = packets.get_mut(usize::from(own.i)).filter(|_| own.kind == *kind) else { break };
        let pending = own.pending(pending);
        let found = if TRANSPORT {
            next.own(packet.bytes(), &pending, flow)
        } else {
            next.inner(packet.bytes(), &pending, flow).map(|inner| (inner, [0; IPV4_HEADER]))
        };
        let Some((inner, header)) = found else { break };
        // Taken after the comparison: a packet left to the slow path still needs its proof.
        let Some(ok) = proof.take() else { break };
        if let Err(why) = next.admit(&pending, ok) {
            all.refused = Some(why);
            break;
        }
        // In transport mode the IP header moves up to the payload, over the protocol header.
        if TRANSPORT && let Some(own) = packet.bytes_mut()[inner.start..].first_chunk_mut() {
            *own = header;
        }
        (all.count, all.bytes) = (all.count + 1, all.bytes + inner.len());
        packet.cut(inner);
    }
    all
}

/// As [`finish_each`], as far as they are like the first one, of which `pending` is known and which
/// has `inside` inside.
#[inline(never)] // all registers are for this loop
fn finish_inside(
    next: &InFlowTemplate<'_>,
    inside: &InnerTemplate,
    pending: &PendingIn,
    openings: &[Own],
    proofs: &mut [Option<IcvOk>],
    packets: &mut [Packet],
) -> Finished {
    let (mut count, mut refused) = (0, None);
    let Some(Own { kind, .. }) = openings.first() else { return Finished::default() };
    for (own, proof) in openings.iter().zip(proofs) {
        let like = own.kind == *kind && own.end == pending.payload.end && own.outer_tos == pending.outer_tos;
        let Some(packet) = packets.get_mut(usize::from(own.i)).filter(|_| like) else { break };
        let Some(inner) = inside.inner(packet.bytes()) else { break };
        let Some(ok) = proof.take() else { break };
        if let Err(why) = next.admit(&own.pending(pending), ok) {
            refused = Some(why);
            break;
        }
        packet.cut(inner);
        count += 1;
    }
    Finished { count, bytes: count * inside.inner_len(), refused }
}

/// Whether the `lengths` of packets change so soon that each has to be looked at by itself.
fn are_mixed<T: PartialEq>(lengths: impl Iterator<Item = T>) -> bool {
    const LOOKED_AT: usize = 4;
    let mut lengths = lengths.take(LOOKED_AT);
    let first = lengths.next();
    !lengths.all(|length| Some(length) == first)
}

/// What was finished of a run: how many packets, and their bytes; and why the one behind them is to
/// be dropped.
#[derive(Default)]
pub(super) struct Finished {
    pub(super) count: usize,
    pub(super) bytes: usize,
    pub(super) refused: Option<DropReason>,
}
