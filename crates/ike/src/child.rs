//! Child SAs: offered, answered, remembered.
//!
//! [`Offer`] is the initiator's half of a negotiation and [`answer_auth`] or `task::create` the
//! responder's; both end in an [`Output::Install`] and a [`Child`], which is what an IKE SA remembers
//! of a Child SA after its keys went to the data plane. IKE_AUTH and CREATE_CHILD_SA share all of it;
//! they differ in where nonces and KE come from.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use crypto::ike::{Prf, Secret};
use wire::ike::{Chain, NotifyType, Payloads, ProtocolId};
use wire::{Spi, TrafficSelector};

use crate::config::{ChildConfig, ChildMode, Connection};
use crate::context::Context;
use crate::identity::Identity;
use crate::output::{ChildId, IkeId, Path, Virtual};
use crate::proposal::ChildSuite;
use crate::sa::{ChildRequest, PeerSupport};

/// Child SAs of one IKE SA, those being replaced included; about 600 bytes each.
pub(crate) const CHILDREN_MAX: usize = 128;

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
    /// Both ends want per-resource SAs beside it (RFC 9611).
    pub(crate) per_cpu: bool,
    /// When it was installed.
    pub(crate) installed: Instant,
    /// When it is to be rekeyed, and when it ends.
    pub(crate) rekey_at: Option<Instant>,
    pub(crate) expire_at: Option<Instant>,
    /// When the data plane told of an authentic packet last.
    pub(crate) used: Instant,
    /// Its outbound half is in use.
    pub(crate) outbound: bool,
    /// What is happening to it.
    pub(crate) state: ChildState,
    /// The Child SA whose place it takes, while that one is there.
    pub(crate) replaces: Option<ChildId>,
}

/// What is happening to a Child SA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ChildState {
    /// Nothing.
    Installed,
    /// This host asked the peer to rekey it.
    Rekeying,
    /// Another one took its place; a Delete is on the way, from here or from there.
    Rekeyed,
    /// This host asked the peer to delete it.
    Deleting,
}

/// What a negotiation takes from the IKE SA around it.
pub(crate) struct Parent<'a> {
    pub(crate) ike: IkeId,
    pub(crate) connection: &'a Arc<Connection>,
    pub(crate) path: Path,
    /// This host is behind a NAT; the peer is.
    pub(crate) nat: (bool, bool),
    pub(crate) remote_id: &'a Identity,
    pub(crate) peer: PeerSupport,
    /// Virtual addresses of this host: given by the peer, or (before the answer to a CP payload) none.
    pub(crate) virtual_local: &'a [Virtual],
    /// Virtual addresses given to the peer, by pool.
    pub(crate) virtual_remote: &'a [(String, IpAddr)],
    /// PRF of the IKE SA.
    pub(crate) prf: Prf,
    /// SK_d of the IKE SA (RFC 8784: with the PPK in it).
    pub(crate) sk_d: &'a Secret,
    /// Child SAs that are there; none in IKE_AUTH.
    pub(crate) children: &'a [Child],
}

/// Nonces without headers: of the initiator and the responder of the exchange that makes the keys.
#[derive(Clone, Copy)]
pub(crate) struct Nonces<'a> {
    pub(crate) i: &'a [u8],
    pub(crate) r: &'a [u8],
}

/// The initiator's half of a negotiation. Holds an inbound SPI: give it back with [`Offer::abandon`]
/// when the negotiation fails before [`Offer::finish`].
pub(crate) struct Offer {
    pub(crate) id: ChildId,
    pub(crate) request: ChildRequest,
    pub(crate) spi: Spi,
}

/// Why an initiator has no Child SA.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChildFault {
    /// The error notify of the peer, with its data; `None` when the peer's answer was not acceptable here.
    pub(crate) notify: Option<(NotifyType, Vec<u8>)>,
    /// For the log and for who waits.
    pub(crate) reason: String,
    /// The peer may have installed it: tell it to delete this SPI (of this host).
    pub(crate) delete: Option<(ProtocolId, Spi)>,
}

/// Why a responder makes no Child SA.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refused {
    /// What the peer is told.
    pub(crate) notify: NotifyType,
    /// Data of the notify.
    pub(crate) data: Vec<u8>,
    /// For the log of this host.
    pub(crate) reason: String,
}

impl Offer {
    /// For IKE_AUTH: no nonce, no KE. `dynamic` becomes the virtual address, or the whole family when
    /// one was asked for and is not known yet.
    pub(crate) fn for_auth(ctx: &mut Context<'_>, parent: &Parent<'_>, request: &ChildRequest) -> Self {
        let _ = (ctx, parent, request);
        todo!()
    }

    /// Writes [N(…)], SA, TSi, TSr.
    pub(crate) fn emit(&self, ctx: &Context<'_>, chain: &mut Chain<'_>) {
        let _ = (ctx, chain);
        todo!()
    }

    /// Reads the answer in an IKE_AUTH response (any order; payloads that are not about the Child SA
    /// are passed over), checks it, derives keys, pushes `Output::Install` and `Event::ChildUp`.
    pub(crate) fn finish_auth(
        self,
        ctx: &mut Context<'_>,
        parent: &Parent<'_>,
        nonces: Nonces<'_>,
        payloads: Payloads<'_>,
    ) -> Result<Child, ChildFault> {
        let _ = (ctx, parent, nonces, payloads);
        todo!()
    }

    /// Gives the SPI back.
    pub(crate) fn abandon(self, ctx: &mut Context<'_>) {
        ctx.names.child_spis.remove(&self.spi.get());
    }
}

/// Answers SA, TSi, TSr of an IKE_AUTH request: writes [N(…)], SA, TSi, TSr, pushes `Output::Install`
/// and `Event::ChildUp`. On refusal nothing was written: [`Refused::emit`] is for the caller to call.
pub(crate) fn answer_auth(
    ctx: &mut Context<'_>,
    parent: &Parent<'_>,
    nonces: Nonces<'_>,
    payloads: Payloads<'_>,
    chain: &mut Chain<'_>,
) -> Result<Child, Refused> {
    let _ = (ctx, parent, nonces, payloads, chain);
    todo!()
}

impl Refused {
    /// Writes the notify.
    pub(crate) fn emit(&self, chain: &mut Chain<'_>) {
        let _ = chain;
        todo!()
    }
}
