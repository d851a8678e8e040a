//! IKE SAs: before and after authentication.

use std::sync::Arc;
use std::time::Instant;

use crypto::ike::{Secret, SkKey};

use crate::child::Child;
use crate::config::Connection;
use crate::exchange::Exchanges;
use crate::handshake::Handshake;
use crate::identity::Identity;
use crate::output::{IkeId, IkeSpis, Path, VirtualIp};
use crate::pool::Leased;
use crate::proposal::IkeSuite;
use crate::task::Tasks;

/// The sender of the first IKE_SA_INIT of an IKE SA (after a rekey: its initiator).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs)]
pub(crate) enum Role {
    Initiator,
    Responder,
}

impl Role {
    /// The role of the peer.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Responder,
            Self::Responder => Self::Initiator,
        }
    }
}

/// One IKE SA.
pub(crate) enum IkeSa {
    /// IKE_SA_INIT to IKE_AUTH. Cannot do anything else.
    Handshake(Box<Handshake>),
    /// Both ends are authenticated.
    Established(Box<Established>),
}

/// An IKE SA that another one made.
pub(crate) enum NewSa {
    /// By rekeying.
    Rekeyed(Box<Established>),
    /// To be started as initiator: reauthentication, redirection, another try.
    Initiate(Initiation),
}

/// Connection to initiate.
pub(crate) struct Initiation {
    /// Connection.
    pub(crate) connection: Arc<Connection>,
    /// Children to create with it, by name; the first goes into IKE_AUTH.
    pub(crate) children: Vec<ChildRequest>,
    /// Destination, if different from the connection.
    pub(crate) remote: Option<std::net::SocketAddr>,
    /// The host name for `remote`, until it is resolved.
    pub(crate) host: Option<String>,
    /// Number of this attempt, from 1.
    pub(crate) attempt: u32,
    /// The IKE SA that ends when this one has taken its Child SAs over (make before break).
    pub(crate) replaces: Option<IkeId>,
    /// Its previous virtual addresses; they are requested again.
    pub(crate) addresses: Vec<std::net::IpAddr>,
    /// Commands that wait for it.
    pub(crate) commands: Vec<u64>,
    /// A packet that met a trap chose the peer, which is `remote`: only another packet starts
    /// another attempt.
    pub(crate) by_packet: bool,
}

impl Initiation {
    /// Applies the changes of a reload to its connection. False when that is not loaded any more.
    pub(crate) fn follow(&mut self, connections: &[Arc<Connection>]) -> bool {
        let Some(connection) = connections.iter().find(|one| one.name == self.connection.name) else { return false };
        self.connection = Arc::clone(connection);
        for child in &mut self.children {
            if let Some(config) = connection.children.iter().find(|one| one.name == child.config.name) {
                child.config = Arc::clone(config);
            }
        }
        true
    }

    /// Adds a task for when the IKE SA is established. Returns false if the queue is full.
    pub(crate) fn want(&mut self, child: Option<ChildRequest>, command: Option<u64>) -> bool {
        /// Requests that wait for one handshake, about 100 bytes each.
        const REQUESTS_MAX: usize = 256;
        let Self { children, commands, .. } = self;
        if children.len() + commands.len() >= REQUESTS_MAX {
            return false;
        }
        commands.extend(command);
        if let Some(child) = child {
            // The selectors of the packet are not compared: later packets of the section and CPU
            // would request the same Child SA again.
            let same = |other: &&mut ChildRequest| other.config.name == child.config.name && other.cpu == child.cpu;
            match children.iter_mut().find(same) {
                Some(_) if child.command.is_none() => (),
                // A request with a command is kept, because each command needs its own result.
                _ => children.push(child),
            }
        }
        true
    }
}

/// A requested Child SA.
#[derive(Clone)]
pub(crate) struct ChildRequest {
    /// Section.
    pub(crate) config: Arc<crate::config::ChildConfig>,
    /// Selectors of the triggering packet, local and remote (RFC 7296 §2.9).
    pub(crate) packet: Option<(wire::TrafficSelector, wire::TrafficSelector)>,
    /// CPU for which it is (RFC 9611).
    pub(crate) cpu: Option<u32>,
    /// Command that waits for it.
    pub(crate) command: Option<u64>,
}

/// An authenticated IKE SA. Only this type has functions that create, rekey or delete SAs.
pub(crate) struct Established {
    /// Name; stays across rekeyings.
    pub(crate) id: IkeId,
    /// Connection.
    pub(crate) connection: Arc<Connection>,
    /// Role in the exchange that made this IKE SA.
    pub(crate) role: Role,
    /// SPI of the initiator and of the responder.
    pub(crate) spis: IkeSpis,
    /// Addresses.
    pub(crate) path: Path,
    /// Algorithms.
    pub(crate) suite: IkeSuite,
    /// Keys of which others are derived.
    pub(crate) keys: DeriveKeys,
    /// Message layer: IDs, retransmission, SK.
    pub(crate) exchanges: Exchanges,
    /// Identity of this host.
    pub(crate) local_id: Identity,
    /// Identity of the peer.
    pub(crate) remote_id: Identity,
    /// Name of the peer in EAP, where it is another.
    pub(crate) eap_name: Option<String>,
    /// Announced capabilities of the peer.
    pub(crate) peer: PeerSupport,
    /// Virtual addresses of this host.
    pub(crate) virtual_local: Vec<VirtualIp>,
    /// Virtual addresses given to the peer, by pool.
    pub(crate) virtual_remote: Vec<Leased>,
    /// Child SAs.
    pub(crate) children: Vec<Child>,
    /// Active and queued tasks.
    pub(crate) tasks: Tasks,
    /// Times of authentication and of creation.
    pub(crate) established: Instant,
    /// Times of the rekey, the reauthentication and the hard end.
    pub(crate) rekey_at: Option<Instant>,
    pub(crate) reauth_at: Option<Instant>,
    pub(crate) over_at: Option<Instant>,
    /// End of the peer's certificates, which `reauth_at` is not after.
    pub(crate) certificates_end: Option<Instant>,
    /// Time of the last authentic message.
    pub(crate) last_received: Instant,
    /// Time of the next keepalive.
    pub(crate) keepalive_at: Option<Instant>,
    /// True if there is a NAT in front of this host, and of the peer.
    pub(crate) nat: (bool, bool),
    /// A PPK went into its keys.
    pub(crate) ppk: bool,
    /// It was replaced and waits for its deletion, or is being deleted.
    pub(crate) ending: Ending,
}

impl Established {
    /// Identities: the peer by its EAP identity if it has one.
    pub(crate) fn identities(&self) -> (Identity, Identity) {
        (self.local_id.clone(), eap_or_ike_id(self.eap_name.as_deref(), &self.remote_id))
    }

    /// Where the peer is, when the connection does not contain its address: it came by itself, or a
    /// packet chose it.
    pub(crate) fn peer_without_address(&self) -> Option<std::net::SocketAddr> {
        let is_one = self.connection.remote_addrs.iter().any(crate::config::Host::is_one);
        // `origin` instead of `role`, because a rekey by the peer changes the role.
        (self.tasks.origin == Role::Responder || !is_one).then_some(self.path.remote)
    }
}

/// Identity that was authenticated: that of EAP where there is one.
pub(crate) fn eap_or_ike_id(eap_name: Option<&str>, remote_id: &Identity) -> Identity {
    eap_name.and_then(|name| Identity::parse(name).ok()).unwrap_or_else(|| remote_id.clone())
}

/// State of the end of an IKE SA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    /// It does.
    No,
    /// Replaced by a rekey; its deletion is in flight.
    Replaced,
    /// A Delete was sent.
    Deleting,
    /// The peer deleted it: gone for everybody but a peer that repeats its last request.
    Lingering,
    /// It is over: the endpoint removes it.
    Ended,
}

/// SK_d and the SK_p of both sides (RFC 7296 §2.14).
pub(crate) struct DeriveKeys {
    pub(crate) sk_d: Secret,
    pub(crate) sk_pi: Secret,
    pub(crate) sk_pr: Secret,
}

/// SK_e and SK_a of both directions, ready for use.
pub(crate) struct SkKeys {
    /// For what this host sends.
    pub(crate) seal: SkKey,
    /// For what it receives.
    pub(crate) open: SkKey,
}

/// Extensions that the peer announced.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub(crate) struct PeerSupport {
    pub(crate) fragmentation: bool,
    pub(crate) mobike: bool,
    pub(crate) childless: bool,
    pub(crate) intermediate: bool,
    pub(crate) ppk: bool,
    pub(crate) redirect: bool,
    /// Announced ESP in UDP without a NAT by vendor ID, and this host agreed to it.
    pub(crate) agreed_udp: bool,
}
