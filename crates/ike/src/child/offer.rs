//! The initiator's half of a negotiation.

use std::net::IpAddr;

use wire::ike::{Chain, NotifyType, PayloadType, Payloads, ProtocolId};
use wire::{Spi, TrafficSelector};

use super::aggfrag::{self, AggfragFault, UseAggfrag};
use super::{Agreement, Child, ChildFault, Nonces, Parent, Parts, protocol_id};
use crate::config::{ChildConfig, ChildMode, PerCpuSas};
use crate::context::Context;
use crate::error::IkeError;
use crate::narrow;
use crate::output::{ChildId, Event};
use crate::proposal::{self, ChildProposal, ChildProtocol, ChildSuite};
use crate::sa::{ChildRequest, PeerSupport};

/// An offer. Holds an inbound SPI: return it with [`Offer::abandon`] when the negotiation fails
/// before [`Offer::finish_auth`].
pub(crate) struct Offer {
    pub(crate) id: ChildId,
    pub(crate) request: ChildRequest,
    pub(crate) spi: Spi,
    proposals: Vec<ChildProposal>,
    mode: ChildMode,
    local_ts: Vec<TrafficSelector>,
    remote_ts: Vec<TrafficSelector>,
    /// True if it goes with a KE payload, if the proposals have methods.
    with_ke: bool,
    /// The Child SA that it replaces: name, protocol and the SPI that the peer sends to.
    replaces: Option<(ChildId, ChildProtocol, Spi)>,
}

impl Offer {
    /// For IKE_AUTH: no nonce, no KE. `dynamic` becomes the virtual address, or the whole family if
    /// one was requested and is not known yet.
    pub(crate) fn for_auth(ctx: &mut Context<'_>, parent: &Parent<'_>, request: &ChildRequest) -> Self {
        // IKE_AUTH has no KE payload: the keys of its Child SA are derived from SK_d and the nonces
        // of IKE_SA_INIT (RFC 7296 §2.17).
        Self { with_ke: false, ..Self::for_create(ctx, parent, request) }
    }

    /// For a new Child SA by CREATE_CHILD_SA.
    pub(crate) fn for_create(ctx: &mut Context<'_>, parent: &Parent<'_>, request: &ChildRequest) -> Self {
        let config = &request.config;
        let (mut local_ts, mut remote_ts) = if parent.connection.peer_is_destination(config) {
            parent.host_selectors(config)
        } else {
            (parent.local_selectors(&config.local_ts), parent.remote_selectors(&config.remote_ts))
        };
        if let Some((local, remote)) = request.packet {
            // The packet that triggered the Child SA should be the first selector of each list (RFC
            // 7296 §2.9).
            put_first(&mut local_ts, local);
            put_first(&mut remote_ts, remote);
        }
        let id = ctx.names.child();
        Self {
            id,
            spi: ctx.child_spi(id, request.cpu),
            proposals: super::proposals_for(parent.peer, &config.proposals),
            mode: config.mode,
            local_ts,
            remote_ts,
            with_ke: true,
            replaces: None,
            request: request.clone(),
        }
    }

    /// For the successor of `old`: same section, protocol and selectors (RFC 7296 §2.9.2).
    pub(crate) fn for_rekey(ctx: &mut Context<'_>, peer: PeerSupport, old: &Child, command: Option<u64>) -> Self {
        let id = ctx.names.child();
        // A rekeyed SA may change its algorithms but not its protocol: REKEY_SA names one protocol
        // and SPI.
        let same_protocol = |proposal: &ChildProposal| proposal.protocol == old.suite.protocol;
        Self {
            id,
            spi: ctx.child_spi(id, Some(old.spi_in.get())),
            proposals: super::proposals_for(peer, &old.config.proposals).into_iter().filter(same_protocol).collect(),
            // A tunnel for lack of agreement on IP-TFS may get the mode of its section.
            mode: if old.config.mode == ChildMode::Iptfs { ChildMode::Iptfs } else { old.mode },
            local_ts: old.local_ts.clone(),
            remote_ts: old.remote_ts.clone(),
            with_ke: true,
            replaces: Some((old.id, old.suite.protocol, old.spi_in)),
            request: ChildRequest { config: old.config.clone(), packet: None, cpu: old.cpu, command },
        }
    }

    /// The methods for a KE payload in order of preference; empty without PFS.
    pub(crate) fn ke_methods(&self) -> Vec<crypto::ike::KeMethod> {
        let mut methods = Vec::new();
        if self.with_ke {
            for method in self.proposals.iter().flat_map(|proposal| proposal.ke.iter().flatten()) {
                if !methods.contains(method) {
                    methods.push(*method);
                }
            }
        }
        methods
    }

    /// Offers only the packet that triggered the Child SA (after SINGLE_PAIR_REQUIRED); returns
    /// false if there is none or it was already tried.
    pub(crate) fn single_pair(&mut self) -> bool {
        // With one selector on each side the peer has seen this offer; repeating it would loop.
        let several = self.local_ts.len() > 1 || self.remote_ts.len() > 1;
        let Some((local, remote)) = self.request.packet.filter(|_| several) else { return false };
        (self.local_ts, self.remote_ts) = (vec![local], vec![remote]);
        true
    }

    /// Writes [N(…)], SA, TSi, TSr. For CREATE_CHILD_SA also the nonce and KE, in the RFC's order.
    pub(crate) fn emit(&self, ctx: &Context<'_>, chain: &mut Chain<'_>) {
        self.emit_with(ctx, chain, |_| ());
    }

    /// Likewise, with what `middle` writes between SA and TSi.
    pub(crate) fn emit_with(&self, ctx: &Context<'_>, chain: &mut Chain<'_>, middle: impl FnOnce(&mut Chain<'_>)) {
        if let Some((_, protocol, spi)) = self.replaces {
            // REKEY_SA has the SPI that this host receives with, not the outbound one (RFC 7296
            // §1.3.3).
            let spi = spi.get().to_be_bytes();
            chain.notify(protocol_id(ctx, protocol), &spi, NotifyType::REKEY_SA, &[]);
        }
        let config = &self.request.config;
        emit_mode(ctx, chain, self.mode, config);
        if config.per_cpu_sas != PerCpuSas::No {
            let resource = self.request.cpu.map(u32::to_be_bytes);
            let resource = resource.as_ref().map_or(&[][..], |bytes| &bytes[..]);
            chain.notify(ProtocolId::NONE, &[], NotifyType::SA_RESOURCE_INFO, resource);
        }
        if self.proposals.iter().any(|proposal| proposal.protocol == ChildProtocol::Eesp) {
            emit_eesp_limits(ctx, chain, config, self.proposals.iter().any(|proposal| !proposal.sskdf.is_empty()));
        }
        let spi = self.spi.get().to_be_bytes();
        proposal::emit_child_offer(chain, &self.proposals, &spi, self.with_ke, &ctx.settings.code_points.ike);
        middle(chain);
        chain.ts(PayloadType::TSi, &self.local_ts);
        chain.ts(PayloadType::TSr, &self.remote_ts);
    }

    /// Reads the answer in an IKE_AUTH response (any order; payloads that are not about the Child
    /// SA are passed over), checks it, derives keys, pushes `Output::Install`, `Event::ChildUp` and
    /// the end of the command that waits.
    pub(crate) fn finish_auth(
        self,
        ctx: &mut Context<'_>,
        parent: &Parent<'_>,
        nonces: Nonces<'_>,
        payloads: Payloads<'_>,
    ) -> Result<Child, ChildFault> {
        let agreed = Parts::read(payloads)
            .map_err(|error| self.fault(ctx, None, error))
            .and_then(|parts| self.check(ctx, parent, &parts));
        match agreed {
            Ok(agreement) => {
                let child = agreement.install(ctx, parent, nonces, &[], true);
                if let Some(command) = self.request.command {
                    ctx.event(Event::CommandDone(command, Ok(())));
                }
                Ok(child)
            }
            Err(fault) => {
                self.abandon(ctx);
                Err(fault)
            }
        }
    }

    /// Gives the SPI back.
    pub(crate) fn abandon(self, ctx: &mut Context<'_>) {
        ctx.names.free_spi(self.spi);
    }

    /// Checks that the selection of the peer is within the offer.
    pub(crate) fn check(
        &self,
        ctx: &Context<'_>,
        parent: &Parent<'_>,
        parts: &Parts<'_>,
    ) -> Result<Agreement, ChildFault> {
        if let Some(error) = parts.error() {
            let mut reason = format!("the peer answers {}", error.kind);
            if error.kind == NotifyType::TS_UNACCEPTABLE {
                let (local, remote) = (super::list(&self.local_ts), super::list(&self.remote_ts));
                reason +=
                    &format!(" to {local} === {remote}: its configuration has others, or another peer uses these");
            }
            return Err(self.fault(ctx, Some((error.kind, error.data.to_vec())), reason));
        }
        let wrong = |reason: &str| self.fault(ctx, None, reason);
        let (Some(sa), Some(ts_i), Some(ts_r)) = (&parts.sa, &parts.ts_i, &parts.ts_r) else {
            return Err(wrong("the answer lacks SA, TSi or TSr"));
        };
        let points = &ctx.settings.code_points.ike;
        let (suite, spi) = proposal::accept_child(&self.proposals, sa, self.with_ke, points)
            .map_err(|reason| self.fault(ctx, None, reason))?;
        let spi_out = peer_spi(parent, &suite, &spi).map_err(|reason| self.fault(ctx, None, reason))?;
        let mode = self.mode_of_answer(ctx, parts, &suite).map_err(|fault| wrong(&fault.to_string()))?;
        let (mut local, mut remote) = (
            super::selectors(ts_i).map_err(|error| self.fault(ctx, None, error))?,
            super::selectors(ts_r).map_err(|error| self.fault(ctx, None, error))?,
        );
        // Before `substitute` overwrites the addresses that the checksums of the peer cover.
        let original = original(parent, mode, &remote, &local);
        if mode == ChildMode::Transport {
            substitute(&mut local, parent.nat.0, parent.path.local.ip());
            substitute(&mut remote, parent.nat.1, parent.path.remote.ip());
        }
        // The response to CP is processed by now, so that `dynamic` may be narrower than in the
        // offer. The intersection keeps the SA inside both.
        let ours = self.local_now(parent);
        let local_ts = narrow::narrow(&ours, &local);
        let remote_ts = narrow::narrow(&self.remote_ts, &remote);
        if local_ts.is_empty() || remote_ts.is_empty() {
            return Err(wrong("the peer's traffic selectors are outside of those that were offered"));
        }
        let per_cpu =
            self.request.config.per_cpu_sas != PerCpuSas::No && parts.notify(NotifyType::SA_RESOURCE_INFO).is_some();
        let limits = EespLimits::read(ctx, parts, &suite);
        let eesp = suite.protocol == ChildProtocol::Eesp;
        let agreement = Agreement {
            id: self.id,
            config: self.request.config.clone(),
            mode,
            peer_refuses_fragments: matches!(UseAggfrag::read(parts), Ok(Some(notify)) if notify.dont_fragment),
            remark: UseAggfrag::read(parts).err().map(|fault| fault.to_string()),
            spi_in: self.spi,
            spi_out,
            local_ts,
            remote_ts,
            cpu: self.request.cpu,
            per_cpu,
            replaces: self.replaces.map(|(id, ..)| id),
            initiator: true,
            peer_max_sub_sa_id: limits.sub_sa_id,
            peer_max_crypt_offset: limits.crypt_offset,
            tfc: eesp || parts.notify(NotifyType::ESP_TFC_PADDING_NOT_SUPPORTED).is_none(),
            original,
            suite,
        };
        match agreement.refusal(ctx, parent) {
            Some(reason) => Err(self.fault(ctx, None, reason)),
            None => Ok(agreement),
        }
    }

    /// The selectors of this side with the virtual addresses that are known by now.
    fn local_now(&self, parent: &Parent<'_>) -> Vec<TrafficSelector> {
        if self.replaces.is_some() || self.request.packet.is_some() {
            return self.local_ts.clone();
        }
        parent.local_selectors(&self.request.config.local_ts)
    }

    fn mode_of_answer(
        &self,
        ctx: &Context<'_>,
        parts: &Parts<'_>,
        suite: &ChildSuite,
    ) -> Result<ChildMode, AggfragFault> {
        let mode = match self.mode {
            ChildMode::Transport if parts.notify(NotifyType::USE_TRANSPORT_MODE).is_some() => ChildMode::Transport,
            ChildMode::Beet if parts.notify(ctx.settings.code_points.ike.use_beet_mode).is_some() => ChildMode::Beet,
            ChildMode::Iptfs => aggfrag::agreed(UseAggfrag::read(parts), suite)?,
            _ => ChildMode::Tunnel,
        };
        if mode != ChildMode::Iptfs && self.request.config.iptfs.required {
            return Err(AggfragFault::Required);
        }
        Ok(mode)
    }

    /// A fault; when the peer did not refuse it may have installed its SAs and must delete them.
    pub(crate) fn fault(
        &self,
        ctx: &Context<'_>,
        notify: Option<(NotifyType, Vec<u8>)>,
        reason: impl ToString,
    ) -> ChildFault {
        let protocol = self.proposals.first().map_or(ChildProtocol::Esp, |proposal| proposal.protocol);
        let delete = notify.is_none().then(|| (protocol_id(ctx, protocol), self.spi));
        ChildFault { notify, reason: reason.to_string(), delete }
    }
}

/// Requests a mode other than tunnel.
pub(super) fn emit_mode(ctx: &Context<'_>, chain: &mut Chain<'_>, mode: ChildMode, config: &ChildConfig) {
    let kind = match mode {
        ChildMode::Transport => NotifyType::USE_TRANSPORT_MODE,
        ChildMode::Beet => ctx.settings.code_points.ike.use_beet_mode,
        ChildMode::Iptfs => return UseAggfrag::emit(chain, config),
        ChildMode::Tunnel | ChildMode::Pass | ChildMode::Drop => return,
    };
    chain.notify(ProtocolId::NONE, &[], kind, &[]);
}

/// Limits of this host for an EESP SA (EESP_MAX_SUB_SA_ID, EESP_MAX_CRYPT_OFFSET).
pub(super) fn emit_eesp_limits(ctx: &Context<'_>, chain: &mut Chain<'_>, config: &ChildConfig, sub_sas: bool) {
    let points = &ctx.settings.code_points.ike;
    if let Some(max) = config.eesp_max_sub_sa_id.filter(|_| sub_sas) {
        chain.notify(ProtocolId::NONE, &[], points.eesp_max_sub_sa_id, &max.to_be_bytes());
    }
    // AGGFRAG payloads are encrypted as a whole (draft-ietf-ipsecme-eesp §2.7).
    let crypt_offset = config.eesp_max_crypt_offset.filter(|_| config.mode != ChildMode::Iptfs);
    if let Some(max) = crypt_offset.filter(|max| *max > 0) {
        chain.notify(ProtocolId::NONE, &[], points.eesp_max_crypt_offset, &[max]);
    }
}

/// Limits of the peer for an EESP SA.
#[derive(Default)]
pub(super) struct EespLimits {
    pub(super) sub_sa_id: Option<u16>,
    pub(super) crypt_offset: Option<u8>,
}

impl EespLimits {
    /// The field for Crypt Offsets has six bits.
    const CRYPT_OFFSET_MAX: u8 = 63;

    /// Notifies with a protocol, an SPI or a wrong length are as if they were not there, and so is
    /// a Crypt Offset of 0.
    pub(super) fn read(ctx: &Context<'_>, parts: &Parts<'_>, suite: &ChildSuite) -> Self {
        if suite.protocol != ChildProtocol::Eesp {
            return Self::default();
        }
        let points = &ctx.settings.code_points.ike;
        let plain = |kind| {
            let notify = parts.notifies.iter().find(|notify| notify.kind == kind)?;
            (notify.protocol == ProtocolId::NONE && notify.spi.is_empty()).then_some(notify.data)
        };
        let sub_sa_id = plain(points.eesp_max_sub_sa_id).and_then(|data| data.try_into().ok()).map(u16::from_be_bytes);
        let crypt_offset = plain(points.eesp_max_crypt_offset).and_then(|data| match data {
            [max] if *max > 0 => Some((*max).min(Self::CRYPT_OFFSET_MAX)),
            _ => None,
        });
        Self { sub_sa_id: sub_sa_id.filter(|_| suite.sskdf.is_some()), crypt_offset }
    }
}

/// The peer's SPI: four bytes, not reserved, not that of another Child SA with it. With the same
/// SPI twice the peer could not tell two SAs apart, and deleting one would delete the other.
pub(super) fn peer_spi(parent: &Parent<'_>, suite: &ChildSuite, spi: &[u8]) -> Result<Spi, IkeError> {
    let raw: [u8; 4] =
        spi.try_into().map_err(|_| IkeError::proposal(format!("the peer's SPI has {} bytes", spi.len())))?;
    let spi = Spi::try_from(u32::from_be_bytes(raw)).map_err(|error| IkeError::proposal(error.to_string()))?;
    let same = |child: &&Child| child.spi_out == spi && child.suite.protocol == suite.protocol;
    match parent.children.iter().find(same) {
        Some(child) => {
            let text = format!("the peer uses SPI {:08x} twice: '{}' has it", spi.get(), child.config.name);
            Err(IkeError::proposal(text))
        }
        None => Ok(spi),
    }
}

/// RFC 7296 §2.23.1: in transport mode the single address of a selector is that of an end, and
/// where a NAT is in between it is known here under another one.
pub(super) fn substitute(selectors: &mut [TrafficSelector], natted: bool, addr: IpAddr) {
    if !natted {
        return;
    }
    for ts in selectors {
        if ts.addrs.start == ts.addrs.end && ts.addrs.is_v6() == addr.is_ipv6() {
            (ts.addrs.start, ts.addrs.end) = (addr, addr);
        }
    }
}

/// The single addresses that a peer in transport mode through a NAT uses for itself (`source`) and
/// for this host.
pub(super) fn original(
    parent: &Parent<'_>,
    mode: ChildMode,
    source: &[TrafficSelector],
    destination: &[TrafficSelector],
) -> Option<(IpAddr, IpAddr)> {
    let single = |written: &[TrafficSelector]| {
        let mut addrs = written.iter().map(|ts| ts.addrs);
        addrs.find(|addrs| addrs.start == addrs.end).map(|addrs| addrs.start)
    };
    let natted = mode == ChildMode::Transport && (parent.nat.0 || parent.nat.1);
    single(source).zip(single(destination)).filter(|_| natted)
}

fn put_first(selectors: &mut Vec<TrafficSelector>, packet: TrafficSelector) {
    selectors.retain(|ts| *ts != packet);
    selectors.insert(0, packet);
    selectors.truncate(wire::ike::Ts::MAX_SELECTORS);
}
