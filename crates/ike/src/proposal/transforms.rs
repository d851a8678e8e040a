//! Proposals and suites as the transforms of an SA payload (RFC 7296 §3.3), and back.

use crypto::ike::{KeMethod, Prf};
use crypto::kdf::SubSaKdf;
use crypto::{EncAlg, IntegAlg};
use wire::ike::{Chain, CodePoints, ProposalOut, ProtocolId, Transform, TransformType};

use super::{ChildProposal, ChildProtocol, ChildSuite, IkeProposal, IkeSuite, SequenceNumbers, enc_key_bits};

/// The ID of NONE in every transform type that has it.
pub(super) const NONE: u16 = 0;

fn enc(alg: &EncAlg) -> Transform {
    Transform { key_bits: enc_key_bits(alg), ..Transform::new(TransformType::ENCR, alg.id) }
}

fn integ(alg: &IntegAlg) -> Transform {
    Transform::new(TransformType::INTEG, alg.id)
}

fn prf(prf: Prf) -> Transform {
    Transform::new(TransformType::PRF, prf.id())
}

fn ke(kind: TransformType, method: Option<KeMethod>) -> Transform {
    Transform::new(kind, method.map_or(NONE, KeMethod::id))
}

fn additional(slots: &[Vec<Option<KeMethod>>; 7]) -> impl Iterator<Item = Transform> {
    let kinds = (0..TransformType::ADDITIONAL).filter_map(TransformType::additional);
    kinds.zip(slots).flat_map(|(kind, methods)| methods.iter().map(move |method| ke(kind, *method)))
}

/// The function of a transform ID; `None` inside is NONE.
pub(super) fn sskdf(id: u16) -> Option<Option<SubSaKdf>> {
    let known = SubSaKdf::ALL.into_iter().find(|kdf| kdf.id() == id).map(Some);
    if id == NONE { Some(None) } else { known }
}

/// Word in a configuration and in reports.
pub(super) fn sskdf_words(kdf: Option<SubSaKdf>) -> (&'static str, &'static str) {
    match kdf {
        Some(SubSaKdf::HkdfSha256) => ("sskdfsha256", "HKDF_SHA2_256"),
        Some(SubSaKdf::HkdfSha384) => ("sskdfsha384", "HKDF_SHA2_384"),
        Some(SubSaKdf::HkdfSha512) => ("sskdfsha512", "HKDF_SHA2_512"),
        None => ("sskdfnone", "NONE"),
    }
}

impl SequenceNumbers {
    /// Every kind.
    pub(super) const ALL: [Self; 4] = [Self::Bits32, Self::Extended, Self::Bits64, Self::None];

    fn id(self, points: &CodePoints) -> u16 {
        match self {
            Self::Bits32 => 0,
            Self::Extended => 1,
            Self::Bits64 => points.sn_64_bit,
            Self::None => points.sn_none,
        }
    }

    pub(super) fn from_id(id: u16, points: &CodePoints) -> Option<Self> {
        Self::ALL.into_iter().find(|sn| sn.id(points) == id)
    }
}

impl ChildProtocol {
    /// The number in payloads.
    pub(super) fn id(self, points: &CodePoints) -> ProtocolId {
        match self {
            Self::Esp => ProtocolId::ESP,
            Self::Ah => ProtocolId::AH,
            Self::Eesp => points.eesp,
        }
    }
}

impl IkeProposal {
    pub(super) fn transforms(&self) -> Vec<Transform> {
        let ciphers = self.enc.iter().map(|alg| enc(alg)).chain(self.integ.iter().map(|alg| integ(alg)));
        let prfs = self.prf.iter().map(|function| prf(*function));
        let kes = self.ke.iter().map(|method| ke(TransformType::KE, Some(*method)));
        ciphers.chain(prfs).chain(kes).chain(additional(&self.additional)).collect()
    }
}

impl ChildProposal {
    /// Without key exchange for IKE_AUTH.
    pub(super) fn transforms(&self, with_ke: bool, points: &CodePoints) -> Vec<Transform> {
        let ciphers = self.enc.iter().map(|alg| enc(alg)).chain(self.integ.iter().map(|alg| integ(alg)));
        let kes = self.ke.iter().map(|method| ke(TransformType::KE, *method)).chain(additional(&self.additional));
        let sns = self.sn.iter().map(|sn| Transform::new(TransformType::SN, sn.id(points)));
        // NONE alone is better left away: a peer that does not know the type must refuse it.
        let some = self.sskdf.iter().any(Option::is_some);
        let kdfs = self.sskdf.iter().filter(|_| some).map(|kdf| kdf.map_or(NONE, SubSaKdf::id));
        let kdfs = kdfs.map(|id| Transform::new(points.sskdf, id));
        ciphers.chain(kes.filter(|_| with_ke)).chain(sns).chain(kdfs).collect()
    }
}

impl IkeSuite {
    pub(super) fn transforms(&self) -> Vec<Transform> {
        let fixed = [Some(enc(self.enc)), self.integ.map(integ), Some(prf(self.prf))];
        let kes = [ke(TransformType::KE, Some(self.ke))];
        fixed.into_iter().flatten().chain(kes).chain(in_slots(&self.additional, &self.slots)).collect()
    }

    /// The suite of transforms that were chosen: one of a type, NONE left out.
    pub(super) fn of(chosen: &[Transform]) -> Option<Self> {
        let (additional, slots) = chosen_additional(chosen);
        Some(Self {
            enc: chosen_enc(chosen)?,
            integ: id_of(chosen, TransformType::INTEG).and_then(IntegAlg::by_id),
            prf: id_of(chosen, TransformType::PRF).and_then(Prf::from_id)?,
            ke: id_of(chosen, TransformType::KE).and_then(KeMethod::from_id)?,
            additional,
            slots,
        })
    }
}

impl ChildSuite {
    pub(super) fn transforms(&self, points: &CodePoints) -> Vec<Transform> {
        let fixed = [
            self.enc.map(enc),
            self.integ.map(integ),
            self.ke.map(|method| ke(TransformType::KE, Some(method))),
            Some(Transform::new(TransformType::SN, self.sn.id(points))),
            self.sskdf.map(|kdf| Transform::new(points.sskdf, kdf.id())),
        ];
        fixed.into_iter().flatten().chain(in_slots(&self.additional, &self.slots)).collect()
    }

    /// As [`IkeSuite::of`].
    pub(super) fn of(protocol: ChildProtocol, chosen: &[Transform], points: &CodePoints) -> Option<Self> {
        let (additional, slots) = chosen_additional(chosen);
        Some(Self {
            protocol,
            enc: chosen_enc(chosen),
            integ: id_of(chosen, TransformType::INTEG).and_then(IntegAlg::by_id),
            ke: id_of(chosen, TransformType::KE).and_then(KeMethod::from_id),
            additional,
            slots,
            sn: id_of(chosen, TransformType::SN).and_then(|id| SequenceNumbers::from_id(id, points))?,
            sskdf: id_of(chosen, points.sskdf).and_then(sskdf).flatten(),
        })
    }
}

fn id_of(chosen: &[Transform], kind: TransformType) -> Option<u16> {
    chosen.iter().find(|transform| transform.kind == kind).map(|transform| transform.id)
}

fn chosen_enc(chosen: &[Transform]) -> Option<&'static EncAlg> {
    let transform = chosen.iter().find(|transform| transform.kind == TransformType::ENCR)?;
    EncAlg::by_id(transform.id, usize::from(transform.key_bits.unwrap_or(0)) / 8)
}

/// Additional methods in the order of their types, and which types those are.
fn chosen_additional(chosen: &[Transform]) -> (Vec<KeMethod>, Vec<u8>) {
    let of = |index: usize| {
        let id = TransformType::additional(index).and_then(|kind| id_of(chosen, kind))?;
        Some((KeMethod::from_id(id)?, index as u8))
    };
    (0..TransformType::ADDITIONAL).filter_map(of).unzip()
}

fn in_slots(methods: &[KeMethod], slots: &[u8]) -> impl Iterator<Item = Transform> {
    let of = |(method, slot): (&KeMethod, &u8)| {
        TransformType::additional((*slot).into()).map(|kind| ke(kind, Some(*method)))
    };
    methods.iter().zip(slots).filter_map(of)
}

/// Writes the SA payload of an offer for an IKE SA. `spi` is empty in IKE_SA_INIT.
pub(crate) fn emit_ike_offer(chain: &mut Chain<'_>, proposals: &[IkeProposal], spi: &[u8]) {
    emit(chain, proposals.iter().map(|proposal| (ProtocolId::IKE, proposal.transforms())), spi);
}

/// Writes the SA payload of an answer: what was chosen from proposal `number`.
pub(crate) fn emit_ike_choice(chain: &mut Chain<'_>, suite: &IkeSuite, number: u8, spi: &[u8]) {
    let transforms = &suite.transforms();
    chain.sa(&[ProposalOut { number, protocol: ProtocolId::IKE, spi, transforms }]);
}

/// Writes the SA payload of an offer for a Child SA. `with_ke` is false in IKE_AUTH.
pub(crate) fn emit_child_offer(
    chain: &mut Chain<'_>,
    proposals: &[ChildProposal],
    spi: &[u8],
    with_ke: bool,
    points: &CodePoints,
) {
    let each = proposals.iter();
    emit(chain, each.map(|proposal| (proposal.protocol.id(points), proposal.transforms(with_ke, points))), spi);
}

/// Writes the SA payload of an answer: what was chosen from proposal `number`.
pub(crate) fn emit_child_choice(
    chain: &mut Chain<'_>,
    suite: &ChildSuite,
    number: u8,
    spi: &[u8],
    points: &CodePoints,
) {
    let transforms = &suite.transforms(points);
    chain.sa(&[ProposalOut { number, protocol: suite.protocol.id(points), spi, transforms }]);
}

fn emit(chain: &mut Chain<'_>, proposals: impl Iterator<Item = (ProtocolId, Vec<Transform>)>, spi: &[u8]) {
    // Their number is one byte, and peers parse no more than this.
    let proposals: Vec<_> = proposals.take(wire::ike::MAX_PROPOSALS).collect();
    // Consecutive from 1 (RFC 7296 §3.3.1). The number in the response is used as an index into the
    // offer.
    let numbered = (1..).zip(&proposals);
    let out =
        numbered.map(|(number, (protocol, transforms))| ProposalOut { number, protocol: *protocol, spi, transforms });
    chain.sa(&out.collect::<Vec<_>>());
}
