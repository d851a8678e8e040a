//! Choosing from a peer's proposals, and checking its choice (RFC 7296 §2.7, §3.3; RFC 9370 §2.2).
//!
//! Both are one comparison of transforms: ours in the order of our preference against theirs. A
//! transform counts when it is exactly one of ours, key length included, so that everything
//! unknown, malformed or out of place falls away by itself. A transform type without NONE on either
//! side must be agreed on.

use std::fmt;

use wire::ike::{CodePoints, Proposal, ProtocolId, SaPayload, Transform, TransformType};

use super::names::{transform_name, write_transforms};
use super::transforms::NONE;
use super::{ChildProposal, ChildProtocol, ChildSuite, IkeProposal, IkeSuite};
use crate::error::IkeError;

/// Combinations of key exchanges that are tried for one pair of proposals: a peer's lists may
/// be long, and only silly ones need more.
const KE_CHOICES_MAX: u32 = 4096;

/// Rules of one protocol.
#[derive(Clone, Copy)]
struct Rules<'a> {
    name: &'static str,
    id: ProtocolId,
    enc: bool,
    prf: bool,
    sn: bool,
    sskdf: bool,
    /// An IKE SA cannot do without; a Child SA in IKE_AUTH has no separate one.
    ke: Ke,
    points: &'a CodePoints,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Ke {
    /// Not looked at.
    Ignored,
    /// NONE where both allow it.
    Optional,
    Needed,
}

/// Mismatch of two proposals: the later in the order, the closer they are.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Difference {
    /// Another protocol.
    Protocol,
    /// A transform type that makes a proposal unusable (RFC 7296 §3.3.6).
    Type(TransformType),
    /// No cipher in common.
    Enc,
    /// Ciphers in common, but none with an integrity algorithm in common.
    Integ,
    Prf,
    /// Position of the first key exchange that is not agreed on: 0 is KE, then the additional ones.
    Ke(usize),
    /// Key exchanges in common, but only with one method twice.
    KeTwice,
    Sn,
    /// Sequence numbers in common, but not with the cipher's implicit IV.
    SnWithCipher,
    Sskdf,
}

impl Difference {
    /// The transform type in question; `None` if there is no preference.
    fn kind(&self, points: &CodePoints) -> Option<TransformType> {
        match self {
            Self::Protocol | Self::KeTwice => None,
            Self::Type(kind) => Some(*kind),
            Self::Enc => Some(TransformType::ENCR),
            Self::Integ => Some(TransformType::INTEG),
            Self::Prf => Some(TransformType::PRF),
            Self::Ke(0) => Some(TransformType::KE),
            Self::Ke(index) => TransformType::additional(index - 1),
            Self::Sn | Self::SnWithCipher => Some(TransformType::SN),
            Self::Sskdf => Some(points.sskdf),
        }
    }
}

impl Rules<'_> {
    fn allows(&self, kind: TransformType) -> bool {
        match kind {
            TransformType::ENCR => self.enc,
            TransformType::PRF => self.prf,
            TransformType::INTEG | TransformType::KE => true,
            TransformType::SN => self.sn,
            _ => kind.additional_index().is_some() || (self.sskdf && kind == self.points.sskdf),
        }
    }

    /// The best of ours that is in theirs; NONEs are left out of the result.
    fn select(&self, ours: &[Transform], theirs: &[Transform]) -> Result<Vec<Transform>, Difference> {
        // An unknown transform type rules out the proposal; an unknown transform ID rules out that
        // transform only (RFC 7296 §3.3.6).
        if let Some(strange) = theirs.iter().find(|transform| !self.allows(transform.kind)) {
            return Err(Difference::Type(strange.kind));
        }
        let mut chosen = self.select_cipher(ours, theirs)?;
        if self.prf {
            chosen.push(first_common(ours, theirs, TransformType::PRF).ok_or(Difference::Prf)?);
        }
        if self.ke != Ke::Ignored {
            chosen.extend(self.select_ke(ours, theirs)?);
        }
        if self.sn {
            let implicit_iv = self.implicit_iv(&chosen);
            chosen.push(self.select_sn(ours, theirs, implicit_iv)?);
        }
        if self.sskdf {
            chosen.push(first_or_none(ours, theirs, self.points.sskdf).ok_or(Difference::Sskdf)?);
        }
        // ID 0 of type SN is 32-bit sequence numbers, not NONE.
        chosen.retain(|transform| transform.id != NONE || transform.kind == TransformType::SN);
        Ok(chosen)
    }

    fn select_cipher(&self, ours: &[Transform], theirs: &[Transform]) -> Result<Vec<Transform>, Difference> {
        let integ = |aead: bool| {
            // An AEAD takes no integrity algorithm. RFC 5282 §8 forbids one beside it, but peers
            // mix ciphers in a proposal: the algorithm is then for the others.
            if aead {
                Some(Transform::new(TransformType::INTEG, NONE))
            } else {
                first_common(ours, theirs, TransformType::INTEG)
            }
        };
        if !self.enc {
            return Ok(vec![integ(false).ok_or(Difference::Integ)?]);
        }
        let mut difference = Difference::Enc;
        for enc in of_kind(ours, TransformType::ENCR).filter(|enc| theirs.contains(enc)) {
            difference = Difference::Integ;
            let Some(integ) = integ(is_aead(enc)) else { continue };
            // Sequence numbers may rule this cipher out, not the next.
            if !self.sn || self.select_sn(ours, theirs, self.implicit_iv(&[*enc])).is_ok() || !is_implicit_iv(enc) {
                return Ok(vec![*enc, integ]);
            }
            difference = Difference::SnWithCipher;
        }
        Err(difference)
    }

    fn implicit_iv(&self, chosen: &[Transform]) -> bool {
        self.sskdf && chosen.iter().any(is_implicit_iv)
    }

    fn select_sn(&self, ours: &[Transform], theirs: &[Transform], implicit_iv: bool) -> Result<Transform, Difference> {
        let mut common = of_kind(ours, TransformType::SN).filter(|sn| theirs.contains(sn)).peekable();
        let none = if common.peek().is_some() { Difference::SnWithCipher } else { Difference::Sn };
        // An implicit IV is the sequence number (RFC 8750). Without sequence numbers, IVs would
        // repeat.
        common.find(|sn| !(implicit_iv && sn.id == self.points.sn_none)).copied().ok_or(none)
    }

    fn select_ke(&self, ours: &[Transform], theirs: &[Transform]) -> Result<Vec<Transform>, Difference> {
        let additional = (0..TransformType::ADDITIONAL).filter_map(TransformType::additional);
        let kinds = std::iter::once(TransformType::KE).chain(additional);
        let mut slots: Vec<Vec<Transform>> = Vec::new();
        for (index, kind) in kinds.enumerate() {
            let mut common = common_or_none(ours, theirs, kind);
            if index == 0 && self.ke == Ke::Needed {
                common.retain(|ke| ke.id != NONE);
            }
            if common.is_empty() {
                return Err(Difference::Ke(index));
            }
            slots.push(common);
        }
        let mut chosen = Vec::new();
        let found = distinct(&slots, &mut chosen, &mut KE_CHOICES_MAX.clone());
        if found { Ok(chosen) } else { Err(Difference::KeTwice) }
    }
}

/// Chooses one of each slot so that no method occurs twice (RFC 9370 §2.2.1), and nothing
/// additional without a first one; earlier ones are preferred.
fn distinct(slots: &[Vec<Transform>], chosen: &mut Vec<Transform>, steps: &mut u32) -> bool {
    let Some((slot, rest)) = slots.split_first() else { return true };
    for transform in slot {
        let Some(left) = steps.checked_sub(1) else { return false };
        *steps = left;
        let clash = chosen.iter().any(|before| before.id == transform.id);
        let baseless = chosen.first().is_some_and(|first| first.id == NONE);
        if transform.id != NONE && (clash || baseless) {
            continue;
        }
        chosen.push(*transform);
        // The remaining methods of later slots are checked first, so that a hopeless branch ends
        // early: the search could otherwise take exponential time.
        let open =
            |transform: &Transform| transform.id == NONE || chosen.iter().all(|before| before.id != transform.id);
        if rest.iter().all(|slot| slot.iter().any(open)) && distinct(rest, chosen, steps) {
            return true;
        }
        chosen.pop();
    }
    false
}

fn of_kind(transforms: &[Transform], kind: TransformType) -> impl Iterator<Item = &Transform> {
    transforms.iter().filter(move |transform| transform.kind == kind)
}

fn first_common(ours: &[Transform], theirs: &[Transform], kind: TransformType) -> Option<Transform> {
    of_kind(ours, kind).find(|transform| theirs.contains(transform)).copied()
}

/// Returns our transforms that the peer also offers; a type without transforms counts as NONE.
fn common_or_none(ours: &[Transform], theirs: &[Transform], kind: TransformType) -> Vec<Transform> {
    let or_none = |side: &[Transform]| -> Vec<Transform> {
        let all: Vec<Transform> = of_kind(side, kind).copied().collect();
        if all.is_empty() { vec![Transform::new(kind, NONE)] } else { all }
    };
    let (mut ours, theirs) = (or_none(ours), or_none(theirs));
    ours.retain(|transform| theirs.contains(transform));
    ours
}

fn first_or_none(ours: &[Transform], theirs: &[Transform], kind: TransformType) -> Option<Transform> {
    common_or_none(ours, theirs, kind).first().copied()
}

fn cipher(transform: &Transform) -> Option<&'static crypto::EncAlg> {
    let bytes = usize::from(transform.key_bits.unwrap_or(0)) / 8;
    crypto::EncAlg::by_id(transform.id, bytes).filter(|_| transform.kind == TransformType::ENCR)
}

fn is_aead(transform: &Transform) -> bool {
    cipher(transform).is_some_and(|enc| enc.kind.is_aead())
}

fn is_implicit_iv(transform: &Transform) -> bool {
    cipher(transform).is_some_and(|enc| enc.implicit_iv)
}

const IKE_POINTS: CodePoints = CodePoints {
    eesp: ProtocolId::EESP,
    sskdf: TransformType::SSKDF,
    sn_64_bit: 1024,
    sn_none: 1025,
    eesp_max_sub_sa_id: wire::ike::NotifyType::EESP_MAX_SUB_SA_ID,
    eesp_max_crypt_offset: wire::ike::NotifyType::EESP_MAX_CRYPT_OFFSET,
    use_beet_mode: wire::ike::NotifyType::USE_BEET_MODE,
};

const IKE_RULES: Rules<'static> = Rules {
    name: "IKE",
    id: ProtocolId::IKE,
    enc: true,
    prf: true,
    sn: false,
    sskdf: false,
    ke: Ke::Needed,
    points: &IKE_POINTS,
};

fn child_rules(protocol: ChildProtocol, with_ke: bool, points: &CodePoints) -> Rules<'_> {
    Rules {
        name: protocol.name(),
        id: protocol.id(points),
        enc: protocol != ChildProtocol::Ah,
        prf: false,
        sn: true,
        sskdf: protocol == ChildProtocol::Eesp,
        ke: if with_ke { Ke::Optional } else { Ke::Ignored },
        points,
    }
}

/// Some choice from this proposal is a suite.
pub(super) fn is_possible_ike(proposal: &IkeProposal) -> bool {
    let transforms = proposal.transforms();
    IKE_RULES.select(&transforms, &transforms).is_ok()
}

/// As [`is_possible_ike`].
pub(super) fn is_possible_child(proposal: &ChildProposal) -> bool {
    let points = CodePoints::default();
    let transforms = proposal.transforms(true, &points);
    child_rules(proposal.protocol, true, &points).select(&transforms, &transforms).is_ok()
}

/// Reason why no proposal of a peer is acceptable: the proposals of both hosts, and the mismatch of
/// the closest two. For the log.
#[derive(Clone, Debug)]
pub(crate) struct Mismatch {
    ours: String,
    theirs: String,
    closest: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ours, theirs, closest } = self;
        write!(f, "no proposal in common: {closest}; this host has {ours}; the peer has {theirs}")
    }
}

impl From<Mismatch> for IkeError {
    fn from(mismatch: Mismatch) -> Self {
        Self::proposal(mismatch.to_string())
    }
}

/// A proposal with its transforms read.
struct Read<'a> {
    proposal: Proposal<'a>,
    transforms: Vec<Transform>,
}

fn read<'a>(sa: &SaPayload<'a>) -> Result<Vec<Read<'a>>, wire::ParseError> {
    let each = |proposal: Result<Proposal<'a>, _>| {
        let proposal = proposal?;
        let transforms = proposal.transforms().collect::<Result<_, _>>()?;
        Ok(Read { proposal, transforms })
    };
    sa.proposals().map(each).collect()
}

/// One of ours: its rules and its transforms.
struct OurTransforms<'a> {
    rules: Rules<'a>,
    transforms: Vec<Transform>,
}

/// Indices of the local and the peer's proposal, and the selected one.
type Chosen = (usize, usize, Vec<Transform>);

fn choose(ours: &[OurTransforms<'_>], theirs: &[Read<'_>], spi_lens: &[usize]) -> Result<Chosen, Mismatch> {
    let mut closest: Option<(Difference, usize, usize)> = None;
    // Own proposals are the outer loop: the local order of preference decides, not that of the
    // peer.
    for (our_index, own) in ours.iter().enumerate() {
        for (their_index, read) in theirs.iter().enumerate() {
            let fits = read.proposal.protocol == own.rules.id && spi_lens.contains(&read.proposal.spi.len());
            let selected =
                if fits { own.rules.select(&own.transforms, &read.transforms) } else { Err(Difference::Protocol) };
            match selected {
                Ok(chosen) => return Ok((our_index, their_index, chosen)),
                Err(difference) if closest.as_ref().is_none_or(|(known, ..)| *known < difference) => {
                    closest = Some((difference, our_index, their_index));
                }
                Err(_) => {}
            }
        }
    }
    Err(explain(ours, theirs, closest))
}

fn explain(ours: &[OurTransforms<'_>], theirs: &[Read<'_>], closest: Option<(Difference, usize, usize)>) -> Mismatch {
    /// A peer may send 64 proposals, but a log line should stay short.
    const SHOWN_MAX: usize = 6;
    let list = |all: Vec<String>| {
        let more = all.len().saturating_sub(SHOWN_MAX);
        let shown = all.into_iter().take(SHOWN_MAX).collect::<Vec<_>>().join(", ");
        if more > 0 { format!("{shown} and {more} more") } else { shown }
    };
    let text = |name: &str, transforms: &[Transform], points: &CodePoints| {
        let mut text = String::new();
        let _ = write_transforms(&mut text, name, transforms, points);
        text
    };
    let points = ours.first().map_or(&IKE_POINTS, |own| own.rules.points);
    let mine = ours.iter().map(|own| text(own.rules.name, &own.transforms, points)).collect();
    let yours =
        theirs.iter().map(|read| text(&protocol_name(read.proposal.protocol, points), &read.transforms, points));
    let closest = match closest {
        Some((difference, own, other)) => difference_text(&difference, &ours[own], &theirs[other], own + 1),
        None => "one side has none".to_owned(),
    };
    Mismatch { ours: list(mine), theirs: list(yours.collect()), closest }
}

fn protocol_name(id: ProtocolId, points: &CodePoints) -> String {
    if id == points.eesp { "EESP".to_owned() } else { id.to_string() }
}

fn difference_text(difference: &Difference, own: &OurTransforms<'_>, read: &Read<'_>, our_number: usize) -> String {
    let points = own.rules.points;
    let Some(kind) = difference.kind(points) else {
        return match difference {
            Difference::KeTwice => "the key exchanges in common would use one method twice".into(),
            _ => {
                let protocol = protocol_name(read.proposal.protocol, points);
                let (name, len) = (own.rules.name, read.proposal.spi.len());
                format!("{name} is wanted here, {protocol} with an SPI of {len} bytes there")
            }
        };
    };
    let of = |transforms: &[Transform]| {
        let names: Vec<_> = of_kind(transforms, kind).take(24).map(|one| transform_name(one, points)).collect();
        if names.is_empty() { "nothing".to_owned() } else { names.join("/") }
    };
    let (here, there, number) = (of(&own.transforms), of(&read.transforms), read.proposal.number);
    let name = if kind == points.sskdf { "SSKDF".to_owned() } else { kind.to_string() };
    let note = if *difference == Difference::SnWithCipher { " (with an implicit IV)" } else { "" };
    format!("our proposal {our_number} and the peer's {number} differ in {name}{note}: {here} here, {there} there")
}

fn unreadable(error: wire::ParseError) -> Mismatch {
    let nothing = String::from("unread proposals");
    Mismatch { ours: nothing.clone(), theirs: nothing, closest: error.to_string() }
}

fn own_ike(proposals: &[IkeProposal]) -> Vec<OurTransforms<'static>> {
    proposals.iter().map(|proposal| OurTransforms { rules: IKE_RULES, transforms: proposal.transforms() }).collect()
}

fn own_child<'a>(proposals: &[ChildProposal], with_ke: bool, points: &'a CodePoints) -> Vec<OurTransforms<'a>> {
    let own = |proposal: &ChildProposal| OurTransforms {
        rules: child_rules(proposal.protocol, with_ke, points),
        transforms: proposal.transforms(with_ke, points),
    };
    proposals.iter().map(own).collect()
}

/// The responder's choice for an IKE SA by our order of preference, with the peer's SPI (empty in
/// IKE_SA_INIT) and the number of its proposal. A peer without IKE_INTERMEDIATE is given
/// [`IkeProposal::without_additional`].
pub(crate) fn choose_ike(ours: &[IkeProposal], sa: &SaPayload<'_>) -> Result<(IkeSuite, Vec<u8>, u8), Mismatch> {
    let theirs = read(sa).map_err(unreadable)?;
    let own = own_ike(ours);
    let (_, index, chosen) = choose(&own, &theirs, &[0, 8])?;
    let Proposal { spi, number, .. } = theirs[index].proposal;
    Ok((IkeSuite::of(&chosen).ok_or_else(|| explain(&own, &theirs, None))?, spi.to_vec(), number))
}

/// Likewise for a Child SA. Without `with_ke` (in IKE_AUTH) key exchanges of both sides are passed
/// over.
pub(crate) fn choose_child(
    ours: &[ChildProposal],
    sa: &SaPayload<'_>,
    with_ke: bool,
    points: &CodePoints,
) -> Result<(ChildSuite, Vec<u8>, u8), Mismatch> {
    let theirs = read(sa).map_err(unreadable)?;
    let own = own_child(ours, with_ke, points);
    let (ours_at, index, chosen) = choose(&own, &theirs, &[4])?;
    let Proposal { spi, number, .. } = theirs[index].proposal;
    let suite = ChildSuite::of(ours[ours_at].protocol, &chosen, points);
    Ok((suite.ok_or_else(|| explain(&own, &theirs, None))?, spi.to_vec(), number))
}

/// The single proposal of a response, which must be a selection from the offer of its number:
/// otherwise an attacker could downgrade it.
fn answer<'a>(
    own: &[OurTransforms<'_>],
    sa: &SaPayload<'a>,
    spi_lens: &[usize],
) -> Result<(usize, Read<'a>, Vec<Transform>), IkeError> {
    let mut theirs = read(sa)?;
    let (Some(read), true) = (theirs.pop(), theirs.is_empty()) else {
        return Err(IkeError::violation("the answer has several proposals: one had to be chosen"));
    };
    let number = usize::from(read.proposal.number);
    let Some(offered) = number.checked_sub(1).and_then(|at| own.get(at)) else {
        return Err(IkeError::violation(format!("the answer chooses proposal {number}, which was not offered")));
    };
    let mut kinds: Vec<_> = read.transforms.iter().map(|transform| transform.kind).collect();
    // Key exchange transforms have no effect in IKE_AUTH, so that several of them do no harm.
    if offered.rules.ke == Ke::Ignored {
        kinds.retain(|kind| *kind != TransformType::KE && kind.additional_index().is_none());
    }
    kinds.sort_unstable();
    if let Some(pair) = kinds.windows(2).find(|pair| pair[0] == pair[1]) {
        let text = format!("the answer has several transforms of type {}: one had to be chosen", pair[0]);
        return Err(IkeError::violation(text));
    }
    let theirs = [read];
    let (_, _, chosen) = choose(std::slice::from_ref(offered), &theirs, spi_lens).map_err(|mismatch| {
        let Mismatch { closest, theirs, .. } = mismatch;
        IkeError::violation(format!("the answer is not a choice from the offer: {closest}; it is {theirs}"))
    })?;
    let [read] = theirs;
    Ok((number - 1, read, chosen))
}

/// Checks the answer to an offer of an IKE SA; gives the suite and the peer's SPI (empty in
/// IKE_SA_INIT). The error is for the log.
pub(crate) fn accept_ike(ours: &[IkeProposal], sa: &SaPayload<'_>) -> Result<(IkeSuite, Vec<u8>), IkeError> {
    let (_, read, chosen) = answer(&own_ike(ours), sa, &[0, 8])?;
    let suite = IkeSuite::of(&chosen).ok_or(IkeError::Violation("the answer is not a suite".into()))?;
    Ok((suite, read.proposal.spi.to_vec()))
}

/// Likewise for a Child SA.
pub(crate) fn accept_child(
    ours: &[ChildProposal],
    sa: &SaPayload<'_>,
    with_ke: bool,
    points: &CodePoints,
) -> Result<(ChildSuite, Vec<u8>), IkeError> {
    let (at, read, chosen) = answer(&own_child(ours, with_ke, points), sa, &[4])?;
    let suite = ChildSuite::of(ours[at].protocol, &chosen, points)
        .ok_or(IkeError::Violation("the answer is not a suite".into()))?;
    Ok((suite, read.proposal.spi.to_vec()))
}
