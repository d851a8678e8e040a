//! Proposals of both phases as SA payloads, and the choice among those of a peer.
//!
//! A transform is a whole suite (RFC 2409 appendix A, RFC 2407 §4.5). Sections of a connection list
//! algorithms of each kind, as for IKEv2; every combination that IKEv1 can express is one
//! transform. An answer repeats the chosen transform attribute by attribute, because some peers
//! compare them.

use std::time::Duration;

use crypto::ike::{Hash, KeMethod, Prf};
use crypto::{CipherKind, EncAlg, IntegAlg, IntegKind};
use wire::ike::v1::{
    AhTransform, DOI_IPSEC, EncapsulationMode, EspTransform, KEY_IKE, LifeType, Notification, Phase1Attr,
    Phase1Encryption, Phase1Hash, Phase2Attr, Phase2Integrity, Proposal, ProposalOut, SIT_IDENTITY_ONLY, SaPayload,
    Transform, TransformOut,
};
use wire::ike::{Attribute, Attributes, ProtocolId};

use super::fault::Fault;
use super::message::NatTraversal;
use super::method::Method;
use crate::config::ChildMode;
use crate::proposal::{ChildProposal, ChildProtocol, ChildSuite, IkeProposal, IkeSuite, SequenceNumbers, enc_key_bits};

/// Transforms of an offer: with seven attributes each about 3 KiB.
const TRANSFORMS_MAX: usize = 80;

/// Algorithms of an ISAKMP SA and the authentication method. The PRF is HMAC with the hash.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Phase1 {
    pub(super) method: Method,
    pub(super) enc: &'static EncAlg,
    /// The HMAC of the hash, by which listings name it.
    integ: &'static IntegAlg,
    pub(super) hash: Hash,
    pub(super) prf: Prf,
    pub(super) ke: KeMethod,
}

/// Returns whether a method is a Diffie-Hellman group. The registry of IKEv1 ends with group 30,
/// but strongSwan has Curve25519 by its number in IKEv2, 31, which its examples use; libreswan has
/// it in phase 1.
fn is_group(method: KeMethod) -> bool {
    !method.is_kem()
}

/// Number and PRF of the hash whose HMAC is `integ`.
fn hash_of(integ: &IntegAlg) -> Option<(Phase1Hash, Hash, Prf)> {
    Some(match integ.kind {
        IntegKind::HmacMd5 => (Phase1Hash::MD5, Hash::Md5, Prf::HmacMd5),
        IntegKind::HmacSha1 => (Phase1Hash::SHA1, Hash::Sha1, Prf::HmacSha1),
        IntegKind::HmacSha256 => (Phase1Hash::SHA2_256, Hash::Sha256, Prf::HmacSha256),
        IntegKind::HmacSha384 => (Phase1Hash::SHA2_384, Hash::Sha384, Prf::HmacSha384),
        IntegKind::HmacSha512 => (Phase1Hash::SHA2_512, Hash::Sha512, Prf::HmacSha512),
        IntegKind::AesXcbc | IntegKind::AesCmac => return None,
    })
}

fn phase1_encryption(enc: &EncAlg) -> Option<Phase1Encryption> {
    match enc.kind {
        CipherKind::AesCbc => Some(Phase1Encryption::AES_CBC),
        CipherKind::TripleDesCbc => Some(Phase1Encryption::TRIPLE_DES_CBC),
        CipherKind::DesCbc => Some(Phase1Encryption::DES_CBC),
        _ => None,
    }
}

/// The group of an offer that has one only: the first one of the registry of IKEv1, because the
/// default proposals begin with Curve25519, which few peers have in IKEv1.
pub(super) fn group_of_all(suites: &[Phase1]) -> Option<KeMethod> {
    let registered = suites.iter().find(|suite| suite.ke != KeMethod::X25519);
    registered.or(suites.first()).map(|suite| suite.ke)
}

impl Phase1 {
    /// Every suite of these proposals that IKEv1 can express, with each of the methods, in order of
    /// preference: some responders take the method of the first transform whatever else is offered.
    pub(super) fn of(proposals: &[IkeProposal], methods: &[Method]) -> Vec<Self> {
        let mut suites = Vec::new();
        for (&method, proposal) in methods.iter().flat_map(|method| proposals.iter().map(move |one| (method, one))) {
            for &enc in proposal.enc.iter().filter(|enc| phase1_encryption(enc).is_some()) {
                for &integ in &proposal.integ {
                    let Some((_, hash, prf)) = hash_of(integ) else { continue };
                    let groups = proposal.ke.iter().copied().filter(|ke| is_group(*ke));
                    suites.extend(groups.map(|ke| Self { method, enc, integ, hash, prf, ke }));
                }
            }
        }
        suites.truncate(TRANSFORMS_MAX);
        suites
    }

    /// PRF of HASH_I and HASH_R.
    pub(super) fn auth_prf(&self) -> Prf {
        self.method.auth_prf(self.prf)
    }

    /// For listings.
    pub(super) fn suite(&self) -> IkeSuite {
        let Self { enc, integ, prf, ke, .. } = *self;
        IkeSuite { enc, integ: Some(integ), prf, ke, additional: Vec::new(), slots: Vec::new() }
    }

    /// Attributes in the order of other implementations.
    fn attributes<'a>(&self, life: &'a Life) -> Vec<Attribute<'a>> {
        let short = |kind: Phase1Attr, value: u16| Attribute::short(kind.0, value);
        let mut attributes = Vec::new();
        let encryption = phase1_encryption(self.enc).unwrap_or(Phase1Encryption::AES_CBC);
        attributes.push(short(Phase1Attr::ENCRYPTION, encryption.0));
        attributes.extend(enc_key_bits(self.enc).map(|bits| short(Phase1Attr::KEY_LENGTH, bits)));
        let hash = hash_of(self.integ).map_or(Phase1Hash::SHA2_256, |(hash, ..)| hash);
        attributes.push(short(Phase1Attr::HASH, hash.0));
        attributes.push(short(Phase1Attr::GROUP, self.ke.id()));
        attributes.push(short(Phase1Attr::AUTHENTICATION, self.method.number.0));
        attributes.extend(life.attributes(Phase1Attr::LIFE_TYPE.0, Phase1Attr::LIFE_DURATION.0));
        attributes
    }

    /// The suite and the lifetime of a transform; `None` for one with an attribute that is unknown
    /// or not supported.
    fn read(transform: &Transform<'_>) -> Option<(PhaseOneOffer, Option<Duration>)> {
        let (mut enc, mut bits, mut hash, mut group, mut auth) = (None, None, None, None, None);
        let mut life = LifeReader::default();
        for attribute in transform.attributes() {
            let attribute = attribute.ok()?;
            let value = attribute.number()?;
            match Phase1Attr(attribute.kind) {
                Phase1Attr::ENCRYPTION => enc = Some(value),
                Phase1Attr::KEY_LENGTH => bits = Some(value),
                Phase1Attr::HASH => hash = Some(value),
                Phase1Attr::GROUP => group = Some(value),
                Phase1Attr::AUTHENTICATION => auth = Some(value),
                Phase1Attr::LIFE_TYPE => life.unit = Some(value),
                Phase1Attr::LIFE_DURATION => life.take(value),
                _ => return None,
            }
        }
        let offer = PhaseOneOffer { enc: enc?, bits, hash: hash?, group: group?, method: auth? };
        (transform.id == KEY_IKE).then_some((offer, life.seconds))
    }
}

/// Numbers of a transform of phase 1.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PhaseOneOffer {
    enc: u64,
    bits: Option<u64>,
    hash: u64,
    group: u64,
    method: u64,
}

impl PhaseOneOffer {
    fn is(&self, suite: &Phase1) -> bool {
        let enc = phase1_encryption(suite.enc).map(|enc| u64::from(enc.0));
        let hash = hash_of(suite.integ).map(|(hash, ..)| u64::from(hash.0));
        enc == Some(self.enc)
            && hash == Some(self.hash)
            && u64::from(suite.ke.id()) == self.group
            && u64::from(suite.method.number.0) == self.method
            && enc_key_bits(suite.enc).map(u64::from) == self.bits
    }
}

/// A lifetime to be sent.
struct Life([u8; 4]);

impl Life {
    fn new(life: Duration) -> Self {
        Self(u32::try_from(life.as_secs()).unwrap_or(u32::MAX).to_be_bytes())
    }

    /// Nothing for an unlimited one.
    fn attributes(&self, kind: u16, duration: u16) -> impl Iterator<Item = Attribute<'_>> {
        let seconds = u32::from_be_bytes(self.0);
        let unit = Attribute::short(kind, LifeType::SECONDS.0);
        let value = match u16::try_from(seconds) {
            Ok(short) => Attribute::short(duration, short),
            Err(_) => Attribute::long(duration, &self.0),
        };
        [unit, value].into_iter().filter(move |_| seconds > 0)
    }
}

/// Lifetimes of a peer: each duration is in the unit before it.
#[derive(Default)]
struct LifeReader {
    unit: Option<u64>,
    seconds: Option<Duration>,
}

impl LifeReader {
    fn take(&mut self, value: u64) {
        if self.unit == Some(LifeType::SECONDS.0.into()) {
            // An attribute may have eight bytes, but no `Instant` is that far away.
            self.seconds = Some(Duration::from_secs(value.min(u32::MAX.into())));
        }
    }
}

/// The lifetime in seconds in a RESPONDER-LIFETIME notification, which has the attributes of the SA
/// that it is about; `None` without one.
pub(super) fn responder_lifetime(notification: &Notification<'_>) -> Option<Duration> {
    let (unit, duration) = match notification.protocol {
        ProtocolId::IKE => (Phase1Attr::LIFE_TYPE.0, Phase1Attr::LIFE_DURATION.0),
        _ => (Phase2Attr::LIFE_TYPE.0, Phase2Attr::LIFE_DURATION.0),
    };
    let mut life = LifeReader::default();
    for attribute in Attributes::new(notification.data) {
        let attribute = attribute.ok()?;
        match attribute.kind {
            kind if kind == unit => life.unit = attribute.number(),
            kind if kind == duration => life.take(attribute.number()?),
            _ => (),
        }
    }
    life.seconds.filter(|life| !life.is_zero())
}

/// Data of a RESPONDER-LIFETIME notification about a Child SA.
pub(super) fn child_lifetime(life: Duration) -> Vec<u8> {
    let (life, mut data) = (Life::new(life), Vec::new());
    let attributes = life.attributes(Phase2Attr::LIFE_TYPE.0, Phase2Attr::LIFE_DURATION.0);
    attributes.for_each(|attribute| attribute.emit(&mut data));
    data
}

/// Body of the SA payload of an offer in phase 1.
pub(super) fn phase1_offer(suites: &[Phase1], life: Duration) -> Vec<u8> {
    let life = Life::new(life);
    let attributes: Vec<Vec<Attribute<'_>>> = suites.iter().map(|suite| suite.attributes(&life)).collect();
    let numbered = (1..).zip(&attributes);
    let transforms: Vec<TransformOut<'_>> =
        numbered.map(|(number, attributes)| TransformOut { number, id: KEY_IKE, attributes }).collect();
    sa_body(&ProposalOut { number: 1, protocol: ProtocolId::IKE, spi: &[], transforms: &transforms })
}

fn sa_body(proposal: &ProposalOut<'_>) -> Vec<u8> {
    let mut body = Vec::new();
    SaPayload::emit(DOI_IPSEC, SIT_IDENTITY_ONLY, std::slice::from_ref(proposal), &mut body);
    body
}

/// The body of an SA payload that repeats one transform of a proposal.
fn answer(proposal: &Proposal<'_>, transform: &Transform<'_>, spi: &[u8]) -> Result<Vec<u8>, Fault> {
    let attributes: Vec<Attribute<'_>> = transform.attributes().collect::<Result<_, _>>()?;
    let transforms = [TransformOut { number: transform.number, id: transform.id, attributes: &attributes }];
    Ok(sa_body(&ProposalOut { number: proposal.number, protocol: proposal.protocol, spi, transforms: &transforms }))
}

fn read(body: &[u8]) -> Result<Vec<(Proposal<'_>, Vec<Transform<'_>>)>, Fault> {
    let sa = SaPayload::parse(body)?;
    if sa.doi != DOI_IPSEC {
        return Err(Fault::violation(format!("domain of interpretation {}", sa.doi)));
    }
    let mut all = Vec::new();
    for proposal in sa.proposals() {
        let proposal = proposal?;
        all.push((proposal, proposal.transforms().collect::<Result<_, _>>()?));
    }
    Ok(all)
}

/// The agreement about phase 1.
#[derive(Debug)]
pub(super) struct Phase1Choice {
    pub(super) suite: Phase1,
    /// Lifetime that the initiator sent.
    pub(super) life: Option<Duration>,
    /// Body of the SA payload of the answer.
    pub(super) answer: Vec<u8>,
}

/// Chooses from an offer: the first of `ours` that is in it.
pub(super) fn choose_phase1(ours: &[Phase1], body: &[u8]) -> Result<Phase1Choice, Fault> {
    let theirs = read(body)?;
    for suite in ours {
        for (proposal, transforms) in theirs.iter().filter(|(proposal, _)| proposal.protocol == ProtocolId::IKE) {
            for transform in transforms {
                if let Some((offer, life)) = Phase1::read(transform)
                    && offer.is(suite)
                {
                    // The SPI of a proposal in phase 1 should be ignored; the cookies are the SPIs.
                    return Ok(Phase1Choice { suite: *suite, life, answer: answer(proposal, transform, &[])? });
                }
            }
        }
    }
    let ours = ours.iter().map(|suite| format!("{} with {}", suite.suite(), suite.method.number));
    Err(no_proposal("phase 1", ours))
}

fn no_proposal(phase: &str, ours: impl Iterator<Item = String>) -> Fault {
    /// A log line should stay short.
    const SHOWN_MAX: usize = 4;
    let all: Vec<String> = ours.collect();
    let more = all.len().saturating_sub(SHOWN_MAX);
    let mut list = all.into_iter().take(SHOWN_MAX).collect::<Vec<_>>().join(", ");
    if more > 0 {
        list = format!("{list} and {more} more");
    }
    Fault::proposal(format!("no proposal of {phase} in common; this host has {list}"))
}

/// Checks the answer to an offer in phase 1: one transform of it.
pub(super) fn accept_phase1(ours: &[Phase1], body: &[u8]) -> Result<(Phase1, Option<Duration>), Fault> {
    let theirs = read(body)?;
    let [(proposal, transforms)] = &theirs[..] else {
        return Err(Fault::violation("the answer has several proposals"));
    };
    let [transform] = &transforms[..] else {
        return Err(Fault::violation("the answer has several transforms"));
    };
    let read = Phase1::read(transform).filter(|_| proposal.protocol == ProtocolId::IKE);
    let chosen = read.and_then(|(offer, life)| Some((*ours.iter().find(|suite| offer.is(suite))?, life)));
    chosen.ok_or_else(|| Fault::violation("the answer is not one of the offered transforms"))
}

/// Algorithms of a Child SA.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Phase2 {
    /// None for AH.
    enc: Option<&'static EncAlg>,
    integ: Option<&'static IntegAlg>,
    sn: SequenceNumbers,
}

impl Phase2 {
    fn protocol(&self) -> ProtocolId {
        if self.enc.is_some() { ProtocolId::ESP } else { ProtocolId::AH }
    }

    /// Number of the transform, for its protocol.
    fn transform(&self) -> Option<u8> {
        match self.enc {
            Some(enc) => esp_transform(enc).map(|id| id.0),
            None => self.integ.and_then(ah_transform).map(|id| id.0),
        }
    }

    fn key_bits(&self) -> Option<u16> {
        self.enc.and_then(enc_key_bits)
    }
}

/// The protocol of a Child SA in payloads.
pub(super) fn protocol_of(suite: &ChildSuite) -> ProtocolId {
    match suite.protocol {
        ChildProtocol::Ah => ProtocolId::AH,
        ChildProtocol::Esp | ChildProtocol::Eesp => ProtocolId::ESP,
    }
}

fn esp_transform(enc: &EncAlg) -> Option<EspTransform> {
    Some(match (enc.kind, enc.icv_len) {
        // An implicit IV has numbers in IKEv2 only (RFC 8750).
        _ if enc.implicit_iv => return None,
        (CipherKind::AesGcm, 8) => EspTransform::AES_GCM_8,
        (CipherKind::AesGcm, 12) => EspTransform::AES_GCM_12,
        (CipherKind::AesGcm, 16) => EspTransform::AES_GCM_16,
        (CipherKind::AesCcm, 8) => EspTransform::AES_CCM_8,
        (CipherKind::AesCcm, 12) => EspTransform::AES_CCM_12,
        (CipherKind::AesCcm, 16) => EspTransform::AES_CCM_16,
        (CipherKind::AesGmac, _) => EspTransform::NULL_AES_GMAC,
        (CipherKind::AesCbc, _) => EspTransform::AES_CBC,
        (CipherKind::AesCtr, _) => EspTransform::AES_CTR,
        (CipherKind::TripleDesCbc, _) => EspTransform::TRIPLE_DES,
        (CipherKind::DesCbc, _) => EspTransform::DES,
        (CipherKind::Null, _) => EspTransform::NULL,
        _ => return None,
    })
}

fn ah_transform(integ: &IntegAlg) -> Option<AhTransform> {
    Some(match integ.kind {
        IntegKind::HmacMd5 => AhTransform::MD5,
        IntegKind::HmacSha1 => AhTransform::SHA1,
        IntegKind::HmacSha256 => AhTransform::SHA2_256,
        IntegKind::HmacSha384 => AhTransform::SHA2_384,
        IntegKind::HmacSha512 => AhTransform::SHA2_512,
        IntegKind::AesXcbc => AhTransform::AES_XCBC_MAC,
        IntegKind::AesCmac => return None,
    })
}

fn integrity(integ: &IntegAlg) -> Option<Phase2Integrity> {
    Some(match integ.kind {
        // The truncated variant is configured at both ends and has the number of the other one.
        IntegKind::HmacMd5 => Phase2Integrity::HMAC_MD5,
        IntegKind::HmacSha1 => Phase2Integrity::HMAC_SHA1,
        IntegKind::HmacSha256 => Phase2Integrity::HMAC_SHA2_256,
        IntegKind::HmacSha384 => Phase2Integrity::HMAC_SHA2_384,
        IntegKind::HmacSha512 => Phase2Integrity::HMAC_SHA2_512,
        IntegKind::AesXcbc => Phase2Integrity::AES_XCBC_MAC,
        IntegKind::AesCmac => return None,
    })
}

/// Key exchange of quick mode (PFS): it is one group for the whole offer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pfs {
    /// Groups in order of preference.
    groups: Vec<KeMethod>,
    /// Without PFS as well.
    optional: bool,
}

impl Pfs {
    fn of(proposals: &[ChildProposal]) -> Self {
        let methods = || proposals.iter().flat_map(|proposal| &proposal.ke);
        let mut groups: Vec<KeMethod> = Vec::new();
        for method in methods().flatten().copied().filter(|method| is_group(*method)) {
            if !groups.contains(&method) {
                groups.push(method);
            }
        }
        Self { optional: groups.is_empty() || methods().any(Option::is_none), groups }
    }

    /// The group to offer. A peer without PFS refuses every offer with a group, and one offer
    /// cannot contain both: where PFS is optional, none is offered.
    pub(super) fn offered(&self) -> Option<KeMethod> {
        self.groups.first().copied().filter(|_| !self.optional)
    }

    fn admits(&self, group: Option<u64>) -> Option<Option<KeMethod>> {
        match group {
            None => self.optional.then_some(None),
            Some(id) => self.groups.iter().find(|method| u64::from(method.id()) == id).map(|method| Some(*method)),
        }
    }
}

/// Configuration of a Child SA in the terms of quick mode.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Phase2Terms {
    suites: Vec<Phase2>,
    pub(super) pfs: Pfs,
    mode: ChildMode,
    life: Duration,
    /// ESP goes in UDP, with these numbers.
    encap: Option<NatTraversal>,
}

impl Phase2Terms {
    pub(super) fn of(
        proposals: &[ChildProposal],
        mode: ChildMode,
        life: Duration,
        encap: Option<NatTraversal>,
    ) -> Self {
        let mut suites = Vec::new();
        for proposal in proposals {
            let integs = || proposal.integ.iter().filter(|integ| integrity(integ).is_some()).map(|it| Some(*it));
            let mut pairs: Vec<(Option<&'static EncAlg>, Option<&'static IntegAlg>)> = Vec::new();
            match proposal.protocol {
                ChildProtocol::Esp => {
                    for &enc in proposal.enc.iter().filter(|enc| esp_transform(enc).is_some()) {
                        match enc.kind.is_aead() {
                            true => pairs.push((Some(enc), None)),
                            false => pairs.extend(integs().map(|integ| (Some(enc), integ))),
                        }
                    }
                }
                // RFC 3948 has UDP for ESP only.
                ChildProtocol::Ah if encap.is_none() => pairs.extend(integs().map(|integ| (None, integ))),
                ChildProtocol::Ah | ChildProtocol::Eesp => (),
            }
            for (enc, integ) in pairs {
                suites.extend(proposal.sn.iter().map(|sn| Phase2 { enc, integ, sn: *sn }));
            }
        }
        suites.truncate(TRANSFORMS_MAX);
        Self { suites, pfs: Pfs::of(proposals), mode, life, encap }
    }

    /// IKEv1 can express nothing of the configuration.
    pub(super) fn is_empty(&self) -> bool {
        self.suites.is_empty()
    }

    /// ESP or AH: the suites of a section are of one.
    pub(super) fn protocol(&self) -> ProtocolId {
        self.suites.first().map_or(ProtocolId::ESP, Phase2::protocol)
    }

    fn encapsulation(&self) -> EncapsulationMode {
        match (self.mode, self.encap) {
            (ChildMode::Transport, None) => EncapsulationMode::TRANSPORT,
            (ChildMode::Transport, Some(NatTraversal::Rfc)) => EncapsulationMode::UDP_TRANSPORT,
            (ChildMode::Transport, Some(NatTraversal::Draft)) => EncapsulationMode::UDP_TRANSPORT_DRAFT,
            (_, None) => EncapsulationMode::TUNNEL,
            (_, Some(NatTraversal::Rfc)) => EncapsulationMode::UDP_TUNNEL,
            (_, Some(NatTraversal::Draft)) => EncapsulationMode::UDP_TUNNEL_DRAFT,
        }
    }

    /// Body of the SA payload of an offer.
    pub(super) fn offer(&self, spi: &[u8]) -> Vec<u8> {
        let life = Life::new(self.life);
        let attributes: Vec<(u8, Vec<Attribute<'_>>)> =
            self.suites.iter().filter_map(|suite| Some((suite.transform()?, self.attributes(suite, &life)))).collect();
        let numbered = (1..).zip(&attributes);
        let transforms: Vec<TransformOut<'_>> =
            numbered.map(|(number, (id, attributes))| TransformOut { number, id: *id, attributes }).collect();
        sa_body(&ProposalOut { number: 1, protocol: self.protocol(), spi, transforms: &transforms })
    }

    fn attributes<'a>(&self, suite: &Phase2, life: &'a Life) -> Vec<Attribute<'a>> {
        let short = |kind: Phase2Attr, value: u16| Attribute::short(kind.0, value);
        let mut attributes = Vec::new();
        attributes.extend(self.pfs.offered().map(|group| short(Phase2Attr::GROUP, group.id())));
        attributes.push(short(Phase2Attr::ENCAPSULATION_MODE, self.encapsulation().0));
        attributes.extend(suite.integ.and_then(integrity).map(|id| short(Phase2Attr::AUTHENTICATION, id.0)));
        attributes.extend(suite.key_bits().map(|bits| short(Phase2Attr::KEY_LENGTH, bits)));
        if suite.sn == SequenceNumbers::Extended {
            attributes.push(short(Phase2Attr::EXTENDED_SEQUENCE_NUMBERS, 1));
        }
        attributes.extend(life.attributes(Phase2Attr::LIFE_TYPE.0, Phase2Attr::LIFE_DURATION.0));
        attributes
    }

    /// Chooses from an offer; `spi` is that of this host for the answer.
    pub(super) fn choose(&self, body: &[u8], spi: &[u8]) -> Result<Phase2Choice, Fault> {
        let theirs = read(body)?;
        let alone = |number: u8| theirs.iter().filter(|(proposal, _)| proposal.number == number).count() == 1;
        for suite in &self.suites {
            // Proposals of one number are wanted together, for example with IPComp.
            for (proposal, transforms) in theirs.iter().filter(|(proposal, _)| alone(proposal.number)) {
                for transform in transforms {
                    if let Some(mut choice) = self.fits(suite, proposal, transform) {
                        choice.answer = answer(proposal, transform, spi)?;
                        return Ok(choice);
                    }
                }
            }
        }
        Err(no_proposal("phase 2", self.suites.iter().map(|suite| self.suite(suite, self.pfs.offered()).to_string())))
    }

    /// Checks the answer to an offer.
    pub(super) fn accept(&self, body: &[u8]) -> Result<Phase2Choice, Fault> {
        let theirs = read(body)?;
        let [(proposal, transforms)] = &theirs[..] else {
            return Err(Fault::violation("the answer has several proposals"));
        };
        let [transform] = &transforms[..] else {
            return Err(Fault::violation("the answer has several transforms"));
        };
        let chosen = self.suites.iter().find_map(|suite| self.fits(suite, proposal, transform));
        // The KE payload was of one group, which the answer must name.
        let chosen = chosen.filter(|choice| choice.suite.ke == self.pfs.offered());
        chosen.ok_or_else(|| Fault::violation("the answer is not one of the offered transforms"))
    }

    fn suite(&self, suite: &Phase2, ke: Option<KeMethod>) -> ChildSuite {
        ChildSuite {
            protocol: if suite.enc.is_some() { ChildProtocol::Esp } else { ChildProtocol::Ah },
            enc: suite.enc,
            integ: suite.integ,
            ke,
            additional: Vec::new(),
            slots: Vec::new(),
            sn: suite.sn,
            sskdf: None,
        }
    }

    fn fits(&self, suite: &Phase2, proposal: &Proposal<'_>, transform: &Transform<'_>) -> Option<Phase2Choice> {
        let spi = <[u8; 4]>::try_from(proposal.spi).ok().and_then(|spi| u32::from_be_bytes(spi).try_into().ok())?;
        let (mut bits, mut auth, mut group, mut mode, mut esn) = (None, None, None, None, 0);
        let mut life = LifeReader::default();
        for attribute in transform.attributes() {
            let attribute = attribute.ok()?;
            let value = attribute.number()?;
            match Phase2Attr(attribute.kind) {
                Phase2Attr::LIFE_TYPE => life.unit = Some(value),
                Phase2Attr::LIFE_DURATION => life.take(value),
                Phase2Attr::GROUP => group = Some(value),
                Phase2Attr::ENCAPSULATION_MODE => mode = Some(value),
                Phase2Attr::AUTHENTICATION => auth = Some(value),
                Phase2Attr::KEY_LENGTH => bits = Some(value),
                Phase2Attr::EXTENDED_SEQUENCE_NUMBERS => esn = value,
                _ => return None,
            }
        }
        let extended = suite.sn == SequenceNumbers::Extended;
        let fits = proposal.protocol == suite.protocol()
            && suite.transform() == Some(transform.id)
            && suite.key_bits().map(u64::from) == bits
            && suite.integ.and_then(integrity).map(|id| u64::from(id.0)) == auth
            && u64::from(extended) == esn
            // Without the attribute the mode is "host-dependent" (RFC 2407 §4.5).
            && mode.is_none_or(|mode| mode == u64::from(self.encapsulation().0));
        let ke = self.pfs.admits(group).filter(|_| fits)?;
        Some(Phase2Choice { suite: self.suite(suite, ke), spi, life: life.seconds, answer: Vec::new() })
    }
}

/// The agreement about a Child SA.
pub(super) struct Phase2Choice {
    pub(super) suite: ChildSuite,
    /// SPI of the peer.
    pub(super) spi: wire::Spi,
    /// Lifetime that the peer sent.
    pub(super) life: Option<Duration>,
    /// Body of the SA payload of the answer; empty for an initiator.
    pub(super) answer: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase1(text: &str) -> Vec<Phase1> {
        Phase1::of(&[IkeProposal::parse(text).expect("a proposal")], &[Method::PSK])
    }

    fn terms(text: &str) -> Phase2Terms {
        let proposals = [ChildProposal::parse(ChildProtocol::Esp, text).expect("a proposal")];
        Phase2Terms::of(&proposals, ChildMode::Tunnel, Duration::from_secs(3960), None)
    }

    #[test]
    fn phase_1_is_chosen_by_the_responder_and_repeated() {
        let offered = phase1("aes256-aes128-sha256-sha1-modp2048-ecp256");
        assert_eq!(offered.len(), 8);
        let body = phase1_offer(&offered, Duration::from_secs(86_400));
        let ours = phase1("aes128-sha256-ecp256");
        let choice = choose_phase1(&ours, &body).expect("a choice");
        assert_eq!((choice.suite, choice.life), (ours[0], Some(Duration::from_secs(86_400))));
        assert_eq!(accept_phase1(&offered, &choice.answer).expect("an answer"), (ours[0], choice.life));
        // What was not offered is not accepted, and neither is the whole offer.
        let other = phase1_offer(&phase1("aes192-sha256-ecp256"), Duration::ZERO);
        assert!(matches!(accept_phase1(&offered, &other), Err(Fault::Violation(_))));
        assert!(matches!(accept_phase1(&offered, &body), Err(Fault::Violation(_))));
        let fault = choose_phase1(&phase1("aes192-sha256-ecp256"), &body).expect_err("nothing in common");
        assert_eq!(fault.notify(), wire::ike::v1::NotifyType::NO_PROPOSAL_CHOSEN);
        assert!(fault.to_string().contains("AES_CBC_192"), "{fault}");
    }

    #[test]
    fn what_ikev1_cannot_express_is_left_out() {
        assert!(phase1("aes128gcm16-prfsha256-modp2048").is_empty());
        assert!(phase1("aes128-sha256-mlkem768").is_empty());
        assert_eq!(phase1("aes128-sha256-x25519")[0].ke.id(), 31);
        let defaults = Phase1::of(&IkeProposal::defaults(), &[Method::PSK]);
        assert_eq!(defaults.len(), 3 * 3 * 7);
        assert_eq!(group_of_all(&defaults), Some(KeMethod::Ecp256));
        assert_eq!(group_of_all(&phase1("aes128-sha256-x25519")), Some(KeMethod::X25519));
        assert_eq!(group_of_all(&[]), None);
        assert!(terms("chacha20poly1305").suites.is_empty());
    }

    #[test]
    fn a_transform_with_an_unknown_attribute_is_passed_over() {
        let ours = phase1("aes128-sha256-modp2048");
        let life = Life::new(Duration::ZERO);
        let mut attributes = ours[0].attributes(&life);
        let with = |attributes: &[Attribute<'_>]| {
            let transforms = [TransformOut { number: 1, id: KEY_IKE, attributes }];
            sa_body(&ProposalOut { number: 1, protocol: ProtocolId::IKE, spi: &[], transforms: &transforms })
        };
        assert!(choose_phase1(&ours, &with(&attributes)).is_ok());
        attributes.push(Attribute::short(Phase1Attr::PRF.0, 1));
        assert!(choose_phase1(&ours, &with(&attributes)).is_err());
    }

    #[test]
    fn phase_2_has_one_group_or_none() {
        let spi = [0, 0, 0x10, 1];
        for (offered, ours, expected) in [
            ("aes128gcm16", "aes128gcm16", Some(None)),
            ("aes128-sha256-modp2048", "aes256-aes128-sha1-sha256-modp2048", Some(Some(KeMethod::Modp2048))),
            ("aes128gcm16-x25519", "aes128gcm16-x25519", Some(Some(KeMethod::X25519))),
            ("aes128-sha256-modp2048-none", "aes128-sha256", Some(None)),
            ("aes128-sha256", "aes128-sha256-modp2048-none", Some(None)),
            ("aes128-sha256-modp2048", "aes128-sha256", None),
            ("aes128-sha256", "aes128-sha256-modp2048", None),
            ("aes128-sha256-modp2048", "aes128-sha256-ecp256", None),
            ("aes128-sha256-esn", "aes128-sha256-noesn", None),
            ("aes128-sha256-esn", "aes128-sha256-esn", Some(None)),
            ("3des-sha1", "3des-sha1", Some(None)),
        ] {
            let (offer, ours) = (terms(offered), terms(ours));
            let choice = ours.choose(&offer.offer(&spi), &[0, 0, 0x20, 2]).ok();
            assert_eq!(choice.as_ref().map(|choice| choice.suite.ke), expected, "{offered}");
            let Some(choice) = choice else { continue };
            assert_eq!((choice.spi.get(), choice.life), (0x1001, Some(Duration::from_secs(3960))));
            let accepted = offer.accept(&choice.answer).expect("an answer");
            assert_eq!((accepted.suite, accepted.spi.get()), (choice.suite, 0x2002));
        }
    }

    #[test]
    fn ah_has_numbers_of_its_own_and_no_udp() {
        let of = |protocol, text: &str, encap| {
            let proposals = [ChildProposal::parse(protocol, text).expect("a proposal")];
            Phase2Terms::of(&proposals, ChildMode::Tunnel, Duration::ZERO, encap)
        };
        let ah = |text| of(ChildProtocol::Ah, text, None);
        let body = ah("sha256").offer(&[0, 0, 0x10, 1]);
        let (proposal, transforms) = read(&body).expect("an offer").remove(0);
        assert_eq!((proposal.protocol, transforms[0].id), (ProtocolId::AH, AhTransform::SHA2_256.0));
        let choice = ah("sha384-sha256-esn-noesn").choose(&body, &[0, 0, 0x20, 2]).expect("a choice");
        assert_eq!((choice.suite.protocol, choice.suite.enc), (ChildProtocol::Ah, None));
        assert_eq!(protocol_of(&choice.suite), ProtocolId::AH);
        assert_eq!(ah("sha256").accept(&choice.answer).expect("an answer").suite, choice.suite);
        // The number of the transform and the attribute are one algorithm.
        let integrity = Attribute::short(Phase2Attr::AUTHENTICATION.0, Phase2Integrity::HMAC_SHA2_256.0);
        let mode = Attribute::short(Phase2Attr::ENCAPSULATION_MODE.0, EncapsulationMode::TUNNEL.0);
        for (protocol, id, fits) in [
            (ProtocolId::AH, AhTransform::SHA2_256.0, true),
            (ProtocolId::AH, AhTransform::SHA2_384.0, false),
            (ProtocolId::ESP, AhTransform::SHA2_256.0, false),
        ] {
            let transforms = [TransformOut { number: 1, id, attributes: &[mode, integrity] }];
            let offer = sa_body(&ProposalOut { number: 1, protocol, spi: &[0, 0, 0x10, 1], transforms: &transforms });
            assert_eq!(ah("sha256-sha384").choose(&offer, &[0, 0, 0x20, 2]).is_ok(), fits);
        }
        assert!(of(ChildProtocol::Esp, "null-sha256", None).choose(&body, &[0, 0, 0x20, 2]).is_err());
        assert!(of(ChildProtocol::Ah, "sha256", Some(NatTraversal::Rfc)).is_empty());
    }

    #[test]
    fn the_encapsulation_mode_shows_udp() {
        let proposals = [ChildProposal::parse(ChildProtocol::Esp, "aes128gcm16").expect("a proposal")];
        let of = |mode, encap| Phase2Terms::of(&proposals, mode, Duration::ZERO, encap);
        let all = [None, Some(NatTraversal::Rfc), Some(NatTraversal::Draft)]
            .map(|encap| [of(ChildMode::Tunnel, encap), of(ChildMode::Transport, encap)])
            .concat();
        let numbers: Vec<u16> = all.iter().map(|terms| terms.encapsulation().0).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 61_443, 61_444]);
        for one in &all {
            for other in &all {
                let fits = one.choose(&other.offer(&[0, 0, 0x10, 1]), &[0, 0, 0x20, 2]).is_ok();
                assert_eq!(fits, one == other);
            }
        }
    }
}
