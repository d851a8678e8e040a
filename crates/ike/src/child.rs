//! Child SAs: offered, answered, remembered.
//!
//! [`Offer`] is the initiator's half of a negotiation and [`answer_auth`] or `task::create` the
//! responder's; both end in an [`Output::Install`] and a [`Child`], the state that an IKE SA keeps
//! of a Child SA after its keys were passed to the data plane. IKE_AUTH and CREATE_CHILD_SA share
//! all of it; they differ in where nonces and KE come from.

mod aggfrag;
mod agreement;
mod answer;
mod offer;
mod parts;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::ike::{Prf, Secret};
use wire::ike::{NotifyType, ProtocolId, Ts};
use wire::{AddrRange, ParseError, Spi, TrafficSelector};

pub(crate) use agreement::{Agreement, list};
pub(crate) use answer::{answer, answer_auth};
pub(crate) use offer::Offer;
pub(crate) use parts::Parts;

use crate::config::{ChildConfig, ChildMode, Connection, TsConfig};
use crate::context::Context;
use crate::identity::Identity;
use crate::narrow;
use crate::output::{ChildId, IkeId, Output, Path, VirtualIp};
use crate::pool::Leased;
use crate::proposal::{ChildProposal, ChildProtocol, ChildSuite};
use crate::sa::PeerSupport;

/// Child SAs of one IKE SA, those being replaced included, before another one is refused; about 600
/// bytes each.
pub(crate) const CHILDREN_MAX: usize = 128;
/// The same before a successor is refused. A peer must delete what it has replaced.
pub(crate) const WITH_SUCCESSORS_MAX: usize = 2 * CHILDREN_MAX;

/// An installed Child SA as its IKE SA remembers it.
pub(crate) struct Child {
    /// Name.
    pub(crate) id: ChildId,
    /// Section.
    pub(crate) config: Arc<ChildConfig>,
    /// Algorithms.
    pub(crate) suite: ChildSuite,
    /// Mode as negotiated.
    pub(crate) mode: ChildMode,
    /// SPI of packets from the peer.
    pub(crate) spi_in: Spi,
    /// SPI of packets to the peer.
    pub(crate) spi_out: Spi,
    /// Selectors of this side, narrowed.
    pub(crate) local_ts: Vec<TrafficSelector>,
    /// Selectors of the other side.
    pub(crate) remote_ts: Vec<TrafficSelector>,
    /// CPU for which it is (RFC 9611); `None` for the fallback SA and all others.
    pub(crate) cpu: Option<u32>,
    /// Both endpoints support per-resource SAs in addition to it (RFC 9611).
    pub(crate) per_cpu: bool,
    /// Time of installation.
    pub(crate) installed: Instant,
    /// Times of the rekey and of the end.
    pub(crate) rekey_at: Option<Instant>,
    pub(crate) expire_at: Option<Instant>,
    /// Time of the last authentic packet reported by the data plane.
    pub(crate) used: Instant,
    /// Its outbound half is in use.
    pub(crate) outbound: bool,
    /// True if its removal was requested from the data plane.
    pub(crate) removed: bool,
    /// State.
    pub(crate) state: ChildState,
    /// The Child SA that it replaces, while that one exists.
    pub(crate) replaces: Option<ChildId>,
}

/// State of a Child SA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ChildState {
    /// Nothing.
    Installed,
    /// This host has requested a rekey.
    Rekeying,
    /// Replaced; a Delete is in flight, in either direction.
    Rekeyed,
    /// This host has sent a Delete.
    Deleting,
}

/// Properties of the IKE SA for a negotiation.
pub(crate) struct Parent<'a> {
    pub(crate) ike: IkeId,
    pub(crate) connection: &'a Arc<Connection>,
    pub(crate) path: Path,
    /// True if there is a NAT in front of this host, and of the peer.
    pub(crate) nat: (bool, bool),
    pub(crate) remote_id: &'a Identity,
    /// As [`crate::output::ChildSa::peer_id`].
    pub(crate) peer_id: Identity,
    pub(crate) peer: PeerSupport,
    /// Virtual addresses of this host: given by the peer, or (before the answer to a CP payload)
    /// none.
    pub(crate) virtual_local: &'a [VirtualIp],
    /// Virtual addresses given to the peer, by pool.
    pub(crate) virtual_remote: &'a [Leased],
    /// PRF of the IKE SA.
    pub(crate) prf: Prf,
    /// SK_d of the IKE SA (RFC 8784: with the PPK in it).
    pub(crate) sk_d: &'a Secret,
    /// Existing Child SAs; none in IKE_AUTH.
    pub(crate) children: &'a [Child],
}

/// Nonces without headers: of the initiator and the responder of the exchange that makes the keys.
#[derive(Clone, Copy)]
pub(crate) struct Nonces<'a> {
    pub(crate) i: &'a [u8],
    pub(crate) r: &'a [u8],
}

/// Reason why an initiator has no Child SA.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChildFault {
    /// The error notify of the peer, with its data; `None` when the peer's answer was not
    /// acceptable here.
    pub(crate) notify: Option<(NotifyType, Vec<u8>)>,
    /// For the log and for the waiting command.
    pub(crate) reason: String,
    /// The peer may have installed it: tell it to delete this SPI (of this host).
    pub(crate) delete: Option<(ProtocolId, Spi)>,
}

impl Child {
    /// Its protocol as payloads name it.
    pub(crate) fn protocol(&self, ctx: &Context<'_>) -> ProtocolId {
        protocol_id(ctx, self.suite.protocol)
    }

    /// Requests its removal from the data plane, once.
    pub(crate) fn remove(&mut self, ctx: &mut Context<'_>, inbound_after: Duration) {
        if !std::mem::replace(&mut self.removed, true) {
            ctx.out.push_back(Output::Remove(self.id, inbound_after));
            ctx.names.rest_spi(self.spi_in, ctx.now + inbound_after);
        }
    }

    /// True if it carries or will carry traffic: neither replaced nor being deleted.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state, ChildState::Installed | ChildState::Rekeying)
    }
}

/// The number of a protocol.
pub(crate) fn protocol_id(ctx: &Context<'_>, protocol: ChildProtocol) -> ProtocolId {
    match protocol {
        ChildProtocol::Esp => ProtocolId::ESP,
        ChildProtocol::Ah => ProtocolId::AH,
        ChildProtocol::Eesp => ctx.settings.code_points.ike.eesp,
    }
}

impl Parent<'_> {
    /// Selectors of this side. Until a requested virtual address is known, `dynamic` is the whole
    /// family (RFC 7296 §2.19).
    pub(crate) fn local_selectors(&self, selectors: &[TsConfig]) -> Vec<TrafficSelector> {
        let known: Vec<IpAddr> = self.virtual_local.iter().map(|address| address.addr).collect();
        if known.is_empty() && !self.connection.vips.is_empty() && selectors.iter().any(|ts| ts.addrs.is_none()) {
            let any = |vip: &IpAddr| if vip.is_ipv6() { AddrRange::ANY_V6 } else { AddrRange::ANY_V4 };
            let families = self.connection.vips.iter().map(any);
            return resolve(selectors, families.collect());
        }
        self.side(selectors, &known, self.path.local.ip())
    }

    /// Selectors of the other side.
    pub(crate) fn remote_selectors(&self, selectors: &[TsConfig]) -> Vec<TrafficSelector> {
        let known: Vec<IpAddr> = self.virtual_remote.iter().map(|leased| leased.addr).collect();
        self.side(selectors, &known, self.path.remote.ip())
    }

    /// Selectors of both sides between the two hosts alone, for a Child SA whose peer is the
    /// destination of a packet.
    pub(crate) fn host_selectors(&self, config: &ChildConfig) -> (Vec<TrafficSelector>, Vec<TrafficSelector>) {
        let narrowed = |selectors: Vec<TrafficSelector>, host: IpAddr| {
            let inside = selectors.into_iter().filter(|ts| ts.addrs.contains(host));
            inside.map(|ts| TrafficSelector { addrs: AddrRange { start: host, end: host }, ..ts }).collect()
        };
        let (local, remote) = (self.path.local.ip(), self.path.remote.ip());
        (
            narrowed(self.local_selectors(&config.local_ts), local),
            narrowed(self.remote_selectors(&config.remote_ts), remote),
        )
    }

    fn side(&self, selectors: &[TsConfig], known: &[IpAddr], outer: IpAddr) -> Vec<TrafficSelector> {
        let known = if known.is_empty() { &[outer][..] } else { known };
        resolve(selectors, known.iter().map(|addr| AddrRange { start: *addr, end: *addr }).collect())
    }
}

/// Proposals for a peer: one without IKE_INTERMEDIATE may know no additional key exchanges (RFC
/// 9370 §2.2.1) and would refuse what names their transform types. Without another configuration it
/// receives them anyway.
fn proposals_for(peer: PeerSupport, proposals: &[ChildProposal]) -> Vec<ChildProposal> {
    let plain = |proposal: &ChildProposal| {
        let optional = proposal.additional.iter().all(|slot| slot.is_empty() || slot.contains(&None));
        optional.then(|| ChildProposal { additional: Default::default(), ..proposal.clone() })
    };
    let plain: Vec<ChildProposal> = proposals.iter().filter_map(plain).collect();
    if peer.intermediate || plain.is_empty() { proposals.to_vec() } else { plain }
}

/// Selectors of a payload; unknown types are left out.
fn selectors(payload: &Ts<'_>) -> Result<Vec<TrafficSelector>, ParseError> {
    payload.selectors().filter_map(Result::transpose).collect()
}

/// Both mean the same packets.
fn same(a: &[TrafficSelector], b: &[TrafficSelector]) -> bool {
    narrow::check_subset(a, b).is_ok() && narrow::check_subset(b, a).is_ok()
}

/// Fills `dynamic` in with each of its addresses.
fn resolve(selectors: &[TsConfig], dynamic: Vec<AddrRange>) -> Vec<TrafficSelector> {
    let mut dynamic = dynamic;
    dynamic.dedup();
    let mut resolved: Vec<TrafficSelector> = Vec::new();
    for ts in selectors {
        let addrs = ts.addrs.map_or(dynamic.clone(), |addrs| vec![addrs]);
        resolved.extend(addrs.into_iter().map(|addrs| TrafficSelector { addrs, proto: ts.proto, ports: ts.ports }));
    }
    // A TS payload counts its selectors in one byte (RFC 7296 §3.13).
    resolved.truncate(wire::ike::Ts::MAX_SELECTORS);
    resolved
}
