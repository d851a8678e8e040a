//! What listings and metrics show of an endpoint.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use rand_core::CryptoRng;
use wire::{Spi, TrafficSelector};

use super::Endpoint;
use crate::child::{Child, ChildState};
use crate::config::{ChildConfig, ChildMode, Connection, Version};
use crate::exchange::Unanswered;
use crate::handshake::Handshake;
use crate::identity::Identity;
use crate::output::{ChildId, IkeId, IkeSpis, Path, VirtualIp};
use crate::pool::Leased;
use crate::proposal::{ChildSuite, IkeSuite};
use crate::sa::{Ending, Established, IkeSa, Role};

/// State of an IKE SA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum IkeState {
    /// Handshake.
    Connecting,
    /// Both ends are authenticated.
    Established,
    /// A successor is being negotiated.
    Rekeying,
    /// A successor took its place.
    Rekeyed,
    /// A Delete is in flight.
    Deleting,
}

impl IkeState {
    /// Name in vici.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "CONNECTING",
            Self::Established => "ESTABLISHED",
            Self::Rekeying => "REKEYING",
            Self::Rekeyed => "REKEYED",
            Self::Deleting => "DELETING",
        }
    }
}

/// One IKE SA. Fields that are unknown during a handshake are `None`.
#[allow(missing_docs)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct IkeView<'a> {
    pub id: IkeId,
    pub version: Version,
    /// Of a responder that does not know its peer: `None`, or the best candidate.
    pub connection: Option<&'a Arc<Connection>>,
    pub state: IkeState,
    /// This host started it.
    pub initiator: bool,
    /// SPIs of the initiator and of the responder.
    pub spis: IkeSpis,
    pub path: Path,
    pub local_id: Option<&'a Identity>,
    pub remote_id: Option<&'a Identity>,
    /// Name of the peer in EAP.
    pub eap_name: Option<&'a str>,
    pub suite: Option<&'a IkeSuite>,
    /// Time of authentication.
    pub established: Option<Instant>,
    pub rekey_at: Option<Instant>,
    /// By configuration or by request of the peer; the expiry of certificates is not listed.
    pub reauth_at: Option<Instant>,
    /// True if there is a NAT in front of this host, and of the peer.
    pub nat: (bool, bool),
    /// Both ends agreed to use UDP without a NAT.
    pub agreed_udp: bool,
    /// A PPK went into its keys.
    pub ppk: bool,
    /// Virtual addresses of this host.
    pub virtual_local: &'a [VirtualIp],
    /// Virtual addresses of the peer, by pool.
    pub virtual_remote: &'a [Leased],
    /// Request that the peer has not answered in time.
    pub unanswered: Option<Unanswered>,
    /// Queued tasks, and the active one.
    pub tasks_queued: Vec<&'static str>,
    pub tasks_active: Option<&'static str>,
    pub children: Vec<ChildView<'a>>,
}

/// One Child SA.
#[allow(missing_docs)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct ChildView<'a> {
    pub id: ChildId,
    pub config: &'a Arc<ChildConfig>,
    /// Name of its state in vici.
    pub state: &'static str,
    pub suite: &'a ChildSuite,
    pub mode: ChildMode,
    pub encap: bool,
    pub spi_in: Spi,
    pub spi_out: Spi,
    pub local_ts: &'a [TrafficSelector],
    pub remote_ts: &'a [TrafficSelector],
    /// CPU for which it is (RFC 9611).
    pub cpu: Option<u32>,
    pub per_cpu: bool,
    pub installed: Instant,
    pub rekey_at: Option<Instant>,
    pub expire_at: Option<Instant>,
}

impl<R: CryptoRng> Endpoint<R> {
    /// Every IKE SA, in the order of their names; of one being replaced both the old and the new.
    /// An IKE SA that the peer deleted is not listed, although it still responds to retransmissions
    /// for a while.
    pub fn ike_sas(&self) -> impl Iterator<Item = IkeView<'_>> {
        let views = self.sas.values().filter_map(|slot| view(&slot.sa));
        let mut views: Vec<IkeView<'_>> = views.chain(self.v1.views()).collect();
        views.sort_by_key(|view| (view.id, view.established.is_none()));
        views.into_iter()
    }

    /// The IKE SA of a name, the newest of those that share it.
    pub fn ike_sa(&self, id: IkeId) -> Option<IkeView<'_>> {
        let Some(spi) = self.by_id.get(&id) else { return self.v1.view(id) };
        self.sas.get(spi).and_then(|slot| view(&slot.sa))
    }

    /// The IKE SA of a Child SA.
    pub fn ike_of(&self, child: ChildId) -> Option<IkeId> {
        self.children.get(&child).copied()
    }

    /// IKE SAs in all: those in handshakes, those being replaced and those that only answer
    /// repetitions included.
    pub fn ike_sa_count(&self) -> usize {
        self.sas.len() + self.v1.len()
    }

    /// Half-open IKE SAs: those of initiators that have not authenticated themselves.
    pub fn half_open_count(&self) -> usize {
        self.half_open.len() + self.v1.half_open_len()
    }

    /// Returns whether an initiator at this address has a half-open IKE SA of version 2.
    pub fn has_half_open(&self, addr: IpAddr) -> bool {
        self.half_open.from(addr) > 0
    }
}

fn view(sa: &IkeSa) -> Option<IkeView<'_>> {
    match sa {
        IkeSa::Handshake(handshake) => Some(connecting(handshake)),
        IkeSa::Established(sa) if sa.ending == Ending::Lingering => None,
        IkeSa::Established(sa) => Some(established(sa)),
    }
}

impl<'a> IkeView<'a> {
    /// An IKE SA that is not authenticated.
    pub(crate) fn connecting(
        (id, version): (IkeId, Version),
        connection: Option<&'a Arc<Connection>>,
        initiator: bool,
        (spis, path): (IkeSpis, Path),
    ) -> Self {
        Self {
            id,
            version,
            connection,
            state: IkeState::Connecting,
            initiator,
            spis,
            path,
            local_id: None,
            remote_id: None,
            eap_name: None,
            suite: None,
            established: None,
            rekey_at: None,
            reauth_at: None,
            nat: (false, false),
            agreed_udp: false,
            ppk: false,
            virtual_local: &[],
            virtual_remote: &[],
            unanswered: None,
            tasks_queued: Vec::new(),
            tasks_active: None,
            children: Vec::new(),
        }
    }
}

fn connecting(handshake: &Handshake) -> IkeView<'_> {
    let initiator = matches!(handshake, Handshake::Initiator(_));
    let ends = (handshake.spis(), handshake.path());
    let view = IkeView::connecting((handshake.id(), Version::V2), handshake.connection(), initiator, ends);
    IkeView { unanswered: handshake.unanswered(), ..view }
}

fn established(sa: &Established) -> IkeView<'_> {
    let (tasks_queued, tasks_active) = sa.tasks.names();
    IkeView {
        id: sa.id,
        version: Version::V2,
        connection: Some(&sa.connection),
        state: match sa.ending {
            Ending::No if tasks_active == Some("IKE_REKEY") => IkeState::Rekeying,
            Ending::No => IkeState::Established,
            Ending::Replaced => IkeState::Rekeyed,
            Ending::Deleting | Ending::Lingering | Ending::Ended => IkeState::Deleting,
        },
        initiator: sa.role == Role::Initiator,
        spis: sa.spis,
        path: sa.path,
        local_id: Some(&sa.local_id),
        remote_id: Some(&sa.remote_id),
        eap_name: sa.eap_name.as_deref(),
        suite: Some(&sa.suite),
        established: Some(sa.established),
        rekey_at: sa.rekey_at,
        reauth_at: sa.reauth_at.filter(|at| sa.certificates_end != Some(*at)),
        nat: sa.nat,
        agreed_udp: sa.peer.agreed_udp,
        ppk: sa.ppk,
        virtual_local: &sa.virtual_local,
        virtual_remote: &sa.virtual_remote,
        unanswered: sa.exchanges.unanswered(),
        tasks_queued,
        tasks_active,
        children: sa.children.iter().map(|child| child_view(sa, child)).collect(),
    }
}

fn child_view<'a>(sa: &Established, child: &'a Child) -> ChildView<'a> {
    ChildView {
        id: child.id,
        config: &child.config,
        state: match child.state {
            ChildState::Installed => "INSTALLED",
            ChildState::Rekeying => "REKEYING",
            ChildState::Rekeyed => "REKEYED",
            ChildState::Deleting => "DELETING",
        },
        suite: &child.suite,
        mode: child.mode,
        encap: sa.path.encap,
        spi_in: child.spi_in,
        spi_out: child.spi_out,
        local_ts: &child.local_ts,
        remote_ts: &child.remote_ts,
        cpu: child.cpu,
        per_cpu: child.per_cpu,
        installed: child.installed,
        rekey_at: child.rekey_at,
        expire_at: child.expire_at,
    }
}
