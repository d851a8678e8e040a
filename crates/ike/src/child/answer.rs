//! The responder's half of a negotiation.

use std::net::IpAddr;
use std::sync::Arc;

use wire::TrafficSelector;
use wire::ike::{Chain, NotifyType, PayloadType, Payloads, ProtocolId};

use super::aggfrag::{self, UseAggfrag};
use super::offer::{EespLimits, emit_eesp_limits, emit_mode, original, peer_spi, substitute};
use super::{Agreement, Child, Parent, Parts};
use crate::config::{ChildConfig, ChildMode, PerCpuSas};
use crate::context::Context;
use crate::error::{IkeError, Mismatch};
use crate::narrow;
use crate::output::ChildId;
use crate::proposal::{self, ChildProposal, ChildProtocol, ChildSuite};

/// Per-resource SAs beside one fallback SA (RFC 9611).
pub(crate) const RESOURCES_MAX: usize = 64;

/// Response to the initiator.
pub(crate) struct Answer {
    pub(crate) agreement: Agreement,
    proposal: u8,
    mode: ChildMode,
    resource: bool,
    /// Selectors that were cut off may be had in another SA.
    additional: bool,
}

/// Selects the response to SA, TSi, TSr of an IKE_AUTH request. Takes an SPI only when it succeeds.
pub(crate) fn answer_auth(
    ctx: &mut Context<'_>,
    parent: &Parent<'_>,
    payloads: Payloads<'_>,
) -> Result<Answer, IkeError> {
    answer(ctx, parent, &Parts::read(payloads)?, None, false)
}

/// Chooses for CREATE_CHILD_SA (`with_ke`) or IKE_AUTH: the section, the proposal, the selectors.
/// `old` is the Child SA that the peer rekeys. Takes an SPI only when it succeeds.
pub(crate) fn answer(
    ctx: &mut Context<'_>,
    parent: &Parent<'_>,
    parts: &Parts<'_>,
    old: Option<&Child>,
    with_ke: bool,
) -> Result<Answer, IkeError> {
    let (Some(sa), Some(ts_i), Some(ts_r)) = (&parts.sa, &parts.ts_i, &parts.ts_r) else {
        return Err(IkeError::violation("the request lacks SA, TSi or TSr"));
    };
    // A successor takes the place of one of them, which ends with its lifetime otherwise.
    let most = if old.is_some() { super::WITH_SUCCESSORS_MAX } else { super::CHILDREN_MAX };
    if parent.children.len() >= most {
        let reason = format!("there are {most} Child SAs, which is the limit");
        return Err(IkeError::Configuration(Mismatch::ChildSas, reason.into()));
    }
    let asked =
        Requested { ts_i: super::selectors(ts_i)?, ts_r: super::selectors(ts_r)?, mode: asked_mode(ctx, parts) };
    let candidates = candidates(parent, &asked, old);
    if candidates.is_empty() {
        let reason = format!(
            "no child of '{}' has traffic selectors that meet {} === {}",
            parent.connection.name,
            super::list(&asked.ts_r),
            super::list(&asked.ts_i)
        );
        return Err(IkeError::selectors(reason));
    }
    let (mut refused, several) = (None, candidates.len() > 1);
    for candidate in candidates {
        let ours: Vec<ChildProposal> = super::proposals_for(parent.peer, &candidate.config.proposals)
            .into_iter()
            .filter(|proposal| old.is_none_or(|old| old.suite.protocol == proposal.protocol))
            .collect();
        match proposal::choose_child(&ours, sa, with_ke, &ctx.settings.code_points.ike) {
            Ok(chosen) => {
                let mode = aggfrag::mode_for(candidate.mode, &chosen.0);
                if candidate.config.iptfs.required && mode != ChildMode::Iptfs {
                    let name = &candidate.config.name;
                    let why = match candidate.mode {
                        ChildMode::Iptfs => {
                            "the chosen proposal is for AH or has no sequence numbers, and allows no IP-TFS"
                        }
                        _ => "the peer offers no IP-TFS",
                    };
                    let reason = format!("child '{name}': {why}, which 'iptfs_required = yes' requires");
                    refused.get_or_insert(IkeError::proposal(reason));
                    continue;
                }
                let candidate = Candidate { mode, ..candidate };
                let mut answer = settle(ctx, parent, parts, old, candidate, chosen)?;
                if let Some(reason) = answer.agreement.refusal(ctx, parent) {
                    answer.agreement.abandon(ctx);
                    refused.get_or_insert(IkeError::selectors(reason));
                    continue;
                }
                // With a single section, a further request would receive the same selectors again.
                answer.additional &= several;
                return Ok(answer);
            }
            Err(reason) => {
                let reason = format!("child '{}': {reason}", candidate.config.name);
                refused.get_or_insert(IkeError::proposal(reason));
            }
        }
    }
    Err(refused.expect("there was a candidate"))
}

/// Request of the peer.
struct Requested {
    ts_i: Vec<TrafficSelector>,
    ts_r: Vec<TrafficSelector>,
    mode: ChildMode,
}

/// A section with selectors that intersect those of the peer.
struct Candidate {
    config: Arc<ChildConfig>,
    mode: ChildMode,
    local: Vec<TrafficSelector>,
    remote: Vec<TrafficSelector>,
    /// As [`crate::output::ChildSa::original`].
    original: Option<(IpAddr, IpAddr)>,
    narrowed: bool,
}

/// Sections that fit, those first that need no narrowing.
fn candidates(parent: &Parent<'_>, asked: &Requested, old: Option<&Child>) -> Vec<Candidate> {
    let configs = match old {
        Some(old) => std::slice::from_ref(&old.config),
        None => &parent.connection.children[..],
    };
    let mut fitting: Vec<Candidate> =
        configs.iter().filter_map(|config| candidate(parent, config, asked, old)).collect();
    fitting.sort_by_key(|candidate| (candidate.narrowed, candidate.mode != asked.mode));
    fitting
}

fn candidate(
    parent: &Parent<'_>,
    config: &Arc<ChildConfig>,
    asked: &Requested,
    old: Option<&Child>,
) -> Option<Candidate> {
    if matches!(config.mode, ChildMode::Pass | ChildMode::Drop) {
        return None;
    }
    // Without agreement on another mode the SA is a tunnel, and the response lacks the mode notify
    // (RFC 7296 §1.3.1).
    let mode = match old {
        Some(old) if old.mode == asked.mode => old.mode,
        _ if config.mode == asked.mode => config.mode,
        _ => ChildMode::Tunnel,
    };
    let (mut ts_i, mut ts_r) = (asked.ts_i.clone(), asked.ts_r.clone());
    let original = original(parent, mode, &ts_i, &ts_r);
    if mode == ChildMode::Transport {
        substitute(&mut ts_i, parent.nat.1, parent.path.remote.ip());
        substitute(&mut ts_r, parent.nat.0, parent.path.local.ip());
    }
    let (ours, theirs) = match old {
        // A rekeying may widen the selectors to those of the section, but must not narrow those in
        // use (RFC 7296 §2.9.2).
        Some(old) if ts_r == old.local_ts && ts_i == old.remote_ts => (old.local_ts.clone(), old.remote_ts.clone()),
        _ => (parent.local_selectors(&config.local_ts), parent.remote_selectors(&config.remote_ts)),
    };
    let (local, remote) = (narrow::narrow(&ours, &ts_r), narrow::narrow(&theirs, &ts_i));
    if !narrow::families_meet(&local, &remote) {
        return None;
    }
    let narrowed = !super::same(&local, &ts_r) || !super::same(&remote, &ts_i);
    Some(Candidate { config: config.clone(), mode, local, remote, original, narrowed })
}

/// Turns a choice into an agreement.
fn settle(
    ctx: &mut Context<'_>,
    parent: &Parent<'_>,
    parts: &Parts<'_>,
    old: Option<&Child>,
    candidate: Candidate,
    (suite, spi, proposal): (ChildSuite, Vec<u8>, u8),
) -> Result<Answer, IkeError> {
    let spi_out = peer_spi(parent, &suite, &spi)?;
    check_ke(parts, &suite)?;
    let (cpu, per_cpu) = resource(parent, parts, old, &candidate)?;
    let limits = EespLimits::read(ctx, parts, &suite);
    let eesp = suite.protocol == ChildProtocol::Eesp;
    // After every check that can fail: an error return below `child_spi` would leak the SPI.
    let id: ChildId = ctx.names.child();
    Ok(Answer {
        agreement: Agreement {
            id,
            config: candidate.config,
            suite,
            mode: candidate.mode,
            peer_refuses_fragments: matches!(UseAggfrag::read(parts), Ok(Some(notify)) if notify.dont_fragment),
            remark: UseAggfrag::read(parts).err().map(|fault| format!("{fault}: ignored")),
            spi_in: ctx.child_spi(id, old.map(|old| old.spi_in.get()).or(cpu)),
            spi_out,
            local_ts: candidate.local,
            remote_ts: candidate.remote,
            cpu,
            per_cpu,
            replaces: old.map(|old| old.id),
            initiator: false,
            peer_max_sub_sa_id: limits.sub_sa_id,
            peer_max_crypt_offset: limits.crypt_offset,
            tfc: eesp || parts.notify(NotifyType::ESP_TFC_PADDING_NOT_SUPPORTED).is_none(),
            original: candidate.original,
        },
        proposal,
        mode: candidate.mode,
        resource: per_cpu,
        additional: candidate.narrowed,
    })
}

/// The KE payload must be of the chosen method; otherwise the response is INVALID_KE_PAYLOAD (RFC
/// 7296 §1.3).
pub(crate) fn check_ke(parts: &Parts<'_>, suite: &ChildSuite) -> Result<(), IkeError> {
    match (suite.ke, &parts.ke) {
        (Some(method), Some(ke)) if ke.group == method.id() => Ok(()),
        (Some(method), _) => Err(IkeError::wrong_method(method)),
        (None, _) => Ok(()),
    }
}

/// RFC 9611: is this one of several SAs with the same selectors, and for which CPU of this host?
fn resource(
    parent: &Parent<'_>,
    parts: &Parts<'_>,
    old: Option<&Child>,
    candidate: &Candidate,
) -> Result<(Option<u32>, bool), IkeError> {
    let Some(info) = parts.notify(NotifyType::SA_RESOURCE_INFO) else { return Ok((None, false)) };
    if candidate.config.per_cpu_sas == PerCpuSas::No {
        return Ok((None, false));
    }
    if let Some(old) = old {
        return Ok((old.cpu, true));
    }
    // Those with the selectors of before, of a peer that has moved, are another group.
    let has_selectors = |child: &Child| {
        super::same(&child.local_ts, &candidate.local) && super::same(&child.remote_ts, &candidate.remote)
    };
    let of_group =
        |child: &&Child| child.is_live() && child.config.name == candidate.config.name && has_selectors(child);
    let group: Vec<&Child> = parent.children.iter().filter(of_group).collect();
    if info.is_empty() && group.iter().all(|child| child.cpu.is_some()) {
        return Ok((None, true));
    }
    let taken: Vec<u32> = group.iter().filter_map(|child| child.cpu).collect();
    match (0..RESOURCES_MAX as u32).find(|cpu| !taken.contains(cpu)) {
        Some(cpu) => Ok((Some(cpu), true)),
        None => {
            let reason = format!("child '{}' has {RESOURCES_MAX} per-resource SAs, the limit", candidate.config.name);
            Err(IkeError::Configuration(Mismatch::Resources, reason.into()))
        }
    }
}

fn asked_mode(ctx: &Context<'_>, parts: &Parts<'_>) -> ChildMode {
    let asked = |kind| parts.notify(kind).is_some();
    let beet = asked(ctx.settings.code_points.ike.use_beet_mode);
    aggfrag::requested(asked(NotifyType::USE_TRANSPORT_MODE), beet, UseAggfrag::read(parts).unwrap_or_default())
}

impl Answer {
    /// Writes [N(…)], SA, what `middle` writes (nonce and KE), TSi, TSr.
    pub(crate) fn emit(&self, ctx: &Context<'_>, chain: &mut Chain<'_>, middle: impl FnOnce(&mut Chain<'_>)) {
        let agreement = &self.agreement;
        emit_mode(ctx, chain, self.mode, &agreement.config);
        if self.resource {
            let resource = agreement.cpu.map(u32::to_be_bytes);
            let resource = resource.as_ref().map_or(&[][..], |bytes| &bytes[..]);
            chain.notify(ProtocolId::NONE, &[], NotifyType::SA_RESOURCE_INFO, resource);
        }
        if agreement.suite.protocol == ChildProtocol::Eesp {
            emit_eesp_limits(ctx, chain, &agreement.config, agreement.suite.sskdf.is_some());
        }
        if self.additional {
            chain.notify(ProtocolId::NONE, &[], NotifyType::ADDITIONAL_TS_POSSIBLE, &[]);
        }
        let spi = agreement.spi_in.get().to_be_bytes();
        proposal::emit_child_choice(chain, &agreement.suite, self.proposal, &spi, &ctx.settings.code_points.ike);
        middle(chain);
        // Through a NAT those of this host's side of it: with these its checksums are computed, and
        // the peer needs them to correct the checksums of packets that it receives. It substitutes
        // in turn (RFC 7296 §2.23.1).
        chain.ts(PayloadType::TSi, &agreement.remote_ts);
        chain.ts(PayloadType::TSr, &agreement.local_ts);
    }
}
