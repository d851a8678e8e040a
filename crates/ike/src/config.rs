//! Configuration: permitted peers and their Child SAs: the connections of swanctl.conf, checked and
//! resolved. The gateway makes these; the endpoint only reads them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use wire::{AddrRange, IpProto, PortRange, TrafficSelector};

use crate::identity::IdPattern;
use crate::proposal::{ChildProposal, IkeProposal};

/// A connection: one or more peers that are treated equally.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Connection {
    /// Name of its section.
    pub name: String,
    /// Version of IKE.
    pub version: Version,
    /// Addresses of this host: any of them when empty.
    pub local_addrs: Vec<Host>,
    /// Addresses of the peer: any when empty, and then this host can only respond.
    pub remote_addrs: Vec<Host>,
    /// UDP port of this host to start from; 500 unless set, 4500 starts with the non-ESP marker.
    pub local_port: u16,
    /// UDP port of the peer.
    pub remote_port: u16,
    /// Proposals in order of preference; never empty.
    pub proposals: Vec<IkeProposal>,
    /// Virtual addresses to request: the unspecified address of a family requests any.
    pub vips: Vec<IpAddr>,
    /// Request name servers with them and use those that the peer assigns.
    pub dns: bool,
    /// ESP in UDP where there is no NAT.
    pub encap: Encap,
    /// Offer and accept MOBIKE (RFC 4555).
    pub mobike: bool,
    /// Idle time before a liveness check; zero disables it.
    pub dpd_delay: Duration,
    /// IKEv1: silence after which the peer is dead, when it was asked; zero waits for the
    /// retransmissions of the question instead.
    pub dpd_timeout: Duration,
    /// IKEv1: aggressive mode, as initiator; as responder it is accepted beside main mode.
    pub aggressive: bool,
    /// IKEv1: the client requests its virtual addresses; otherwise the server sends them by itself.
    pub pull: bool,
    /// IKE fragmentation (RFC 7383).
    pub fragmentation: Fragmentation,
    /// IKE SAs without a Child SA (RFC 6023).
    pub childless: Childless,
    /// Ask for certificates (CERTREQ).
    pub send_certreq: bool,
    /// Policy for sending certificates of this host.
    pub send_cert: SendCert,
    /// OCSP responses in IKE (RFC 4806).
    pub ocsp: Ocsp,
    /// Post-quantum preshared key (RFC 8784): the one to use as initiator; the identity that an
    /// initiator sends must match it. `None` uses none as initiator and accepts any as responder.
    pub ppk_id: Option<IdPattern>,
    /// Refuse a peer that has no such key.
    pub ppk_required: bool,
    /// Attempts of IKE_SA_INIT, 1 for a single one; 0 is unlimited.
    pub keyingtries: u32,
    /// Handling of a second IKE SA with the same peer.
    pub unique: Unique,
    /// Traffic selectors that another peer uses.
    pub ts_conflict: TsConflict,
    /// Time between authentications, zero is never.
    pub reauth_time: Duration,
    /// Time between rekeyings of the IKE SA, zero is never.
    pub rekey_time: Duration,
    /// Time after `rekey_time` or `reauth_time` at which the IKE SA ends whatever happens.
    pub over_time: Duration,
    /// Up to this much is taken off `rekey_time` and `reauth_time` by chance.
    pub rand_time: Duration,
    /// DSCP of IKE packets, 0..=63.
    pub dscp: u8,
    /// Pools from which clients get addresses, in this order.
    pub pools: Vec<String>,
    /// Authentication of this host, round by round; never empty.
    pub local: Vec<Auth>,
    /// Required authentication of the peer, round by round; never empty.
    pub remote: Vec<Auth>,
    /// Child SAs.
    pub children: Vec<Arc<ChildConfig>>,
    /// First retransmission, factor and number of tries.
    pub retransmit: Retransmit,
}

impl Connection {
    /// Names in `local_addrs` and `remote_addrs`.
    pub fn host_names(&self) -> impl Iterator<Item = &str> {
        self.local_addrs.iter().chain(&self.remote_addrs).filter_map(Host::name)
    }

    /// Returns true when the peer of a packet that meets the trap of `child` is its destination: in
    /// transport mode, where `remote_addrs` contains no single host. A trap that `dpd_action` or
    /// `close_action` leaves behind is not such a one: it would close all other traffic of a host
    /// that only answered before.
    pub fn peer_is_destination(&self, child: &ChildConfig) -> bool {
        child.mode == ChildMode::Transport && child.start_action.trap && !self.remote_addrs.iter().any(Host::is_one)
    }

    /// Addresses that a peer may have where `remote_addrs` contains no name: any without
    /// `remote_addrs`.
    pub fn peer_ranges(&self) -> Vec<AddrRange> {
        let range = |host: &Host| match host {
            Host::Range(range) => Some(*range),
            Host::Name(_) => None,
        };
        if self.remote_addrs.is_empty() {
            return vec![AddrRange::ANY_V4, AddrRange::ANY_V6];
        }
        // Names alone give an empty list, which must not be treated as any address.
        self.remote_addrs.iter().filter_map(range).collect()
    }

    /// Creates a connection with only a name: IKEv2 between any addresses, the defaults of
    /// `swanctl.conf` otherwise, no timers. The caller should add proposals, authentication and
    /// children.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: Version::V2,
            local_addrs: Vec::new(),
            remote_addrs: Vec::new(),
            local_port: 500,
            remote_port: 500,
            proposals: Vec::new(),
            vips: Vec::new(),
            dns: true,
            encap: Encap::No,
            mobike: true,
            dpd_delay: Duration::ZERO,
            dpd_timeout: Duration::ZERO,
            aggressive: false,
            pull: true,
            fragmentation: Fragmentation::Yes,
            childless: Childless::Allow,
            send_certreq: true,
            send_cert: SendCert::IfAsked,
            ocsp: Ocsp::Reply,
            ppk_id: None,
            ppk_required: false,
            keyingtries: 1,
            unique: Unique::No,
            ts_conflict: TsConflict::Refuse,
            reauth_time: Duration::ZERO,
            rekey_time: Duration::ZERO,
            over_time: Duration::ZERO,
            rand_time: Duration::ZERO,
            dscp: 0,
            pools: Vec::new(),
            local: Vec::new(),
            remote: Vec::new(),
            children: Vec::new(),
            retransmit: Retransmit::default(),
        }
    }
}

/// Version of IKE of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Version {
    /// RFC 2409.
    V1,
    /// RFC 7296.
    V2,
}

impl Version {
    /// Number, as in listings.
    pub fn number(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}

/// A host of `local_addrs` or `remote_addrs`.
#[derive(Clone, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Host {
    /// One address or several.
    Range(AddrRange),
    /// A name with changing addresses: see [`Hosts`](crate::hosts::Hosts).
    Name(String),
}

impl Host {
    /// Returns the name, where it is one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Range(_) => None,
            Self::Name(name) => Some(name),
        }
    }

    /// Returns true for one address and for a name, false for a range.
    pub fn is_one(&self) -> bool {
        match self {
            Self::Range(range) => range.start == range.end,
            Self::Name(_) => true,
        }
    }
}

impl From<AddrRange> for Host {
    fn from(range: AddrRange) -> Self {
        Self::Range(range)
    }
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Range(range) if range.start == range.end => range.start.fmt(f),
            Self::Range(range) => range.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// ESP in UDP where there is no NAT.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Encap {
    /// Only through a NAT.
    No,
    /// With a peer that is configured likewise and announces it by a vendor ID (IKEv2).
    Auto,
    /// Always: a NAT is announced even if there is none, so that both endpoints encapsulate.
    Yes,
}

impl Encap {
    /// A NAT is announced even if there is none.
    pub(crate) fn is_forced(self) -> bool {
        self == Self::Yes
    }
}

/// Use of RFC 7383.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Fragmentation {
    /// Offer, accept, and send large messages in fragments.
    Yes,
    /// Accept fragments, send none.
    Accept,
    /// Neither.
    No,
    /// Also without the peer's consent (IKEv1) and for small messages.
    Force,
}

/// Use of RFC 6023.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Childless {
    /// Accept as responder, do not start one.
    Allow,
    /// Start one where the peer can.
    Prefer,
    /// Require it.
    Force,
    /// Refuse.
    Never,
}

/// Policy for sending certificates.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum SendCert {
    /// After a CERTREQ of the peer.
    IfAsked,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// OCSP responses in IKE (RFC 4806).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Ocsp {
    /// Neither requested nor sent.
    Never,
    /// Sent to a peer that requests them.
    Reply,
    /// Requested.
    Request,
    /// Both.
    Both,
}

impl Ocsp {
    /// They are sent to a peer that requests them.
    pub fn replies(self) -> bool {
        matches!(self, Self::Reply | Self::Both)
    }

    /// They are requested of the peer.
    pub fn requests(self) -> bool {
        matches!(self, Self::Request | Self::Both)
    }
}

/// Uniqueness of a peer's IKE SAs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Unique {
    /// Ignore INITIAL_CONTACT as well.
    Never,
    /// Only IKE SAs that the peer ends by INITIAL_CONTACT.
    No,
    /// A new IKE SA replaces the older ones.
    Replace,
    /// A new IKE SA is refused while an older one lives.
    Keep,
}

/// Treatment of a Child SA with traffic selectors that another peer uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum TsConflict {
    /// Refused with TS_UNACCEPTABLE.
    Refuse,
    /// Accepted: the newer Child SA gets the traffic, and the log has a warning.
    Replace,
}

/// Retransmission of requests: the n-th wait is `timeout * base^n`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retransmit {
    /// First wait.
    pub timeout: Duration,
    /// Factor, 1.0 or more.
    pub base: f64,
    /// Retransmissions before the peer is given up.
    pub tries: u32,
}

impl Default for Retransmit {
    /// 4 s, 1.8, 5 tries: 165 s in all, as strongSwan.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(4), base: 1.8, tries: 5 }
    }
}

/// One round of authentication of one side (RFC 4739).
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Auth {
    /// Method.
    pub method: AuthMethod,
    /// Of this host: the identity to send, [`IdPattern::Any`] takes it from the certificate or the
    /// address. Of the peer: what its identity must match.
    pub id: IdPattern,
    /// Of this host: the identity inside EAP or XAuth, where it is another than `id`. Of the peer:
    /// what its answer to an EAP-Identity request must match; without it none is sent, and IDi is
    /// the EAP identity (RFC 7296 §3.16).
    pub eap_id: Option<IdPattern>,
    /// Certificates by the SHA-256 of their DER: of this host, which may be used (empty: any that
    /// fits); of the peer, which are accepted (empty: any that a CA vouches for).
    pub certs: Vec<[u8; 32]>,
    /// CA certificates by the SHA-256 of their DER, the path must contain one of them; empty: any
    /// trusted CA.
    pub cacerts: Vec<[u8; 32]>,
    /// Raw public keys that are accepted or used, SubjectPublicKeyInfo in DER.
    pub pubkeys: Vec<Vec<u8>>,
    /// Group memberships; the peer must have at least one; empty: none needed.
    pub groups: Vec<String>,
    /// Policy OIDs that the peer's certificate must carry, dotted.
    pub cert_policy: Vec<String>,
    /// Handling of a missing CRL.
    pub revocation: Revocation,
}

impl Auth {
    /// A round by `method` with this identity and no further conditions.
    pub fn new(method: AuthMethod, id: IdPattern) -> Self {
        Self {
            method,
            id,
            eap_id: None,
            certs: Vec::new(),
            cacerts: Vec::new(),
            pubkeys: Vec::new(),
            groups: Vec::new(),
            cert_policy: Vec::new(),
            revocation: Revocation::Relaxed,
        }
    }
}

/// Authentication methods.
#[derive(Clone, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum AuthMethod {
    /// Whatever the peer brings (of the peer only).
    Any,
    /// Signature with a certificate or a raw key; with constraints on keys and schemes as
    /// strongSwan writes them (`rsa-2048-sha256`, `ike:ecdsa-sha384`), empty for none.
    PublicKey(Vec<String>),
    /// Shared key.
    Psk,
    /// EAP with a method, or any that both ends have.
    Eap(Option<EapType>),
    /// IKEv1: user name and password after phase 1; the identity is `eap_id`.
    XAuth,
}

/// EAP methods (RFC 3748 §5).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum EapType {
    Md5,
    MsChapV2,
    Tls,
}

/// Revocation policy for a peer's certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Revocation {
    /// Refuse certificates that a CRL revokes; without a CRL accept.
    Relaxed,
    /// Refuse without a valid CRL if the certificate has a URI for one.
    IfUri,
    /// Refuse without a valid CRL.
    Strict,
}

/// Configuration of a Child SA.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct ChildConfig {
    /// Name of its section.
    pub name: String,
    /// Proposals in order of preference; never empty except for `pass` and `drop`. Different
    /// protocols may be mixed.
    pub proposals: Vec<ChildProposal>,
    /// Traffic selectors of this side.
    pub local_ts: Vec<TsConfig>,
    /// Traffic selectors of the peer's side.
    pub remote_ts: Vec<TsConfig>,
    /// Mode.
    pub mode: ChildMode,
    /// Settings of the mode [`ChildMode::Iptfs`].
    pub iptfs: IptfsConfig,
    /// Lifetime by time.
    pub time: Life<Duration>,
    /// Lifetime by bytes of one direction; zero is none.
    pub bytes: Life<u64>,
    /// Lifetime by packets of one direction; zero is none.
    pub packets: Life<u64>,
    /// Action when the peer is dead.
    pub dpd_action: Action,
    /// Action when the connection is loaded.
    pub start_action: StartAction,
    /// Action when the peer deletes the Child SA.
    pub close_action: Action,
    /// Ends a Child SA without traffic; zero is never.
    pub inactivity: Duration,
    /// Order among policies, lower first; 0 lets the selectors decide.
    pub priority: u32,
    /// Fixed request ID of listings; 0 chooses one.
    pub reqid: u32,
    /// Packets in the replay window; 0 is none.
    pub replay_window: u32,
    /// Per-resource Child SAs (RFC 9611).
    pub per_cpu_sas: PerCpuSas,
    /// TFC padding in bytes (RFC 4303 §2.7): 0 none, `u16::MAX` fills the MTU.
    pub tfc_padding: u16,
    /// Copy DF to the outer header.
    pub copy_df: bool,
    /// Copy ECN.
    pub copy_ecn: bool,
    /// Copy DSCP outwards.
    pub copy_dscp: bool,
    /// HMAC-SHA-256 cut to 96 bits, for old peers.
    pub sha256_96: bool,
    /// EESP: highest Sub SA ID that this side accepts (EESP_MAX_SUB_SA_ID); `None` does not limit
    /// it.
    pub eesp_max_sub_sa_id: Option<u16>,
    /// EESP: largest Crypt Offset that this side accepts, in units of 4 bytes, 1..=63; `None`
    /// refuses the option.
    pub eesp_max_crypt_offset: Option<u8>,
    /// Command to run on up and down.
    pub updown: Option<String>,
    /// Requests from that command that packets of the peer may reach this host.
    pub hostaccess: bool,
}

impl ChildConfig {
    /// Creates a tunnel with only a name: the defaults of `swanctl.conf`, no lifetimes. The caller
    /// should add proposals and selectors.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            proposals: Vec::new(),
            local_ts: Vec::new(),
            remote_ts: Vec::new(),
            mode: ChildMode::Tunnel,
            iptfs: IptfsConfig::default(),
            time: Life::default(),
            bytes: Life::default(),
            packets: Life::default(),
            dpd_action: Action::Clear,
            start_action: StartAction::default(),
            close_action: Action::Clear,
            inactivity: Duration::ZERO,
            priority: 0,
            reqid: 0,
            replay_window: 32,
            per_cpu_sas: PerCpuSas::No,
            tfc_padding: 0,
            copy_df: true,
            copy_ecn: true,
            copy_dscp: true,
            sha256_96: false,
            eesp_max_sub_sa_id: None,
            eesp_max_crypt_offset: None,
            updown: None,
            hostaccess: false,
        }
    }
}

/// Soft limit, hard limit and what chance takes off the soft one. Zero is no limit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[allow(missing_docs)]
pub struct Life<T> {
    pub rekey: T,
    pub life: T,
    pub rand: T,
}

/// Modes of a Child SA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum ChildMode {
    /// RFC 4301 tunnel.
    Tunnel,
    /// RFC 4301 transport; falls back to tunnel when the peer does not agree.
    Transport,
    /// BEET.
    Beet,
    /// AGGFRAG mode of IP-TFS (RFC 9347); a tunnel when the peer does not agree.
    Iptfs,
    /// A policy without SA: packets pass in the clear.
    Pass,
    /// A policy without SA: packets are dropped.
    Drop,
}

/// Settings of AGGFRAG mode (RFC 9347).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IptfsConfig {
    /// A Child SA without AGGFRAG mode is refused. Otherwise it becomes a tunnel.
    pub required: bool,
    /// This side receives inner packets that are cut between outer packets.
    pub accept_fragments: bool,
    /// This side never cuts an inner packet.
    pub dont_fragment: bool,
    /// This side begins another outer packet instead of cutting an inner packet, if little is free.
    pub prefer_whole: bool,
    /// Size of outer packets in bytes; 0 is the path MTU.
    pub packet_size: u16,
    /// Rate of outer packets of that size in kbit/s; 0 sends on demand.
    pub rate_kbps: u32,
    /// Outer packets that may arrive late without loss.
    pub reorder_window: u8,
    /// Time to wait for a missing outer packet.
    pub drop_time: Duration,
}

impl Default for IptfsConfig {
    fn default() -> Self {
        Self {
            required: false,
            accept_fragments: true,
            dont_fragment: false,
            prefer_whole: true,
            packet_size: 0,
            rate_kbps: 0,
            reorder_window: 3,
            drop_time: Duration::from_millis(25),
        }
    }
}

/// Action at the end of a Child SA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Action {
    /// Nothing; its trap policy, if there is one, stays.
    Clear,
    /// A trap policy is installed.
    Trap,
    /// Negotiate again at once.
    Restart,
}

/// `start_action`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StartAction {
    /// Install a trap policy: the first packet starts the negotiation.
    pub trap: bool,
    /// Negotiate at once.
    pub start: bool,
}

/// `per_cpu_sas`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum PerCpuSas {
    /// One SA.
    No,
    /// One per CPU besides the fallback SA.
    Yes,
    /// Likewise, each with a separate UDP port.
    Encap,
}

/// A traffic selector before the addresses are known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TsConfig {
    /// `None` is `dynamic`: the outer address, or the virtual one.
    pub addrs: Option<AddrRange>,
    /// Protocol; `None` is any.
    pub proto: Option<IpProto>,
    /// Ports, or ICMP type and code.
    pub ports: PortRange,
}

impl TsConfig {
    /// The selector with `dynamic` filled in.
    pub fn resolve(&self, dynamic: IpAddr) -> TrafficSelector {
        let addrs = self.addrs.unwrap_or(AddrRange { start: dynamic, end: dynamic });
        TrafficSelector { addrs, proto: self.proto, ports: self.ports }
    }
}

impl std::fmt::Display for TsConfig {
    /// As in swanctl.conf: `10.1.0.0/16[tcp/22]`, `dynamic[udp]`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.resolve(std::net::Ipv4Addr::UNSPECIFIED.into()).to_string();
        match self.addrs {
            Some(_) => f.write_str(&text),
            None => write!(f, "dynamic{}", text.find('[').map_or("", |at| &text[at..])),
        }
    }
}

/// A pool of virtual addresses, and the attributes sent with them.
#[derive(Clone, Debug, Eq, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct PoolConfig {
    /// Name of its section.
    pub name: String,
    /// Addresses that are given out.
    pub addrs: AddrRange,
    /// Attributes of the CP payload: number (RFC 7296 §3.15.1) and value.
    pub attributes: Vec<(u16, Vec<u8>)>,
}

impl PoolConfig {
    /// A pool without attributes.
    pub const fn new(name: String, addrs: AddrRange) -> Self {
        Self { name, addrs, attributes: Vec::new() }
    }
}
