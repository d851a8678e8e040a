//! Outputs of an [`Endpoint`](crate::Endpoint), and the responses to its credential requests.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crypto::ike::{Prf, Secret};
use wire::TrafficSelector;

use crate::config::{ChildConfig, Connection, Version};
use crate::identity::Identity;
use crate::proposal::{ChildSuite, IkeSuite};

/// Names an IKE SA for as long as the endpoint lives, across rekeyings (`uniqueid` of vici).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct IkeId(pub u32);

/// SPI of an IKE SA (RFC 7296 §3.1), chosen by one of its ends; zero until that end has chosen.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct IkeSpi(pub [u8; 8]);

impl IkeSpi {
    /// The peer has not chosen yet.
    pub const ZERO: Self = Self([0; 8]);

    /// The end has not chosen yet.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
}

impl fmt::Display for IkeSpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// Both SPIs of an IKE SA.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct IkeSpis {
    /// Of the end that sent the first IKE_SA_INIT, or that started the rekeying.
    pub initiator: IkeSpi,
    /// Of the other end.
    pub responder: IkeSpi,
}

impl IkeSpis {
    /// Both SPIs; the second one is zero before the first response.
    pub(crate) fn new(initiator: IkeSpi, responder: IkeSpi) -> Self {
        Self { initiator, responder }
    }

    /// The SPIs in the header of a message.
    pub(crate) fn of(header: &wire::ike::Header) -> Self {
        Self::new(IkeSpi(header.spi_i), IkeSpi(header.spi_r))
    }
}

/// Identifier of a Child SA. A rekeyed Child SA gets a new one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ChildId(pub u32);

/// Identifier of a credential request until the response.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RequestId(pub u64);

/// Outputs, to be executed in order.
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Output {
    /// Send an IKE message; on port 4500 of this host with the non-ESP marker in front.
    Transmit(Transmit),
    /// The holder of the credentials must respond with
    /// [`Endpoint::handle_credentials`](crate::Endpoint::handle_credentials).
    RequestCredentials(RequestId, CredentialRequest),
    /// The response to this request is no longer needed.
    CancelRequest(RequestId),
    /// A Child SA: install its inbound half, and its outbound half too when `outbound_now`.
    Install(Box<ChildSa>),
    /// Outbound packets must use this Child SA from now on, not the one that it replaces.
    UseOutbound(ChildId),
    /// A Child SA ends: remove its outbound SA at once, its inbound SA after this duration. Packets
    /// in flight would be lost otherwise.
    Remove(ChildId, Duration),
    /// The addresses of a Child SA changed (MOBIKE, NAT).
    Move(ChildId, Path),
    /// Assign (`true`) or remove a virtual address of this host.
    VirtualAddress(IkeId, VirtualIp, bool),
    /// Install (`true`) or remove the trap policy of a configured child (connection, child).
    Trap(Arc<Connection>, Arc<ChildConfig>, bool),
    /// A byte of 0xff to keep a NAT mapping alive (RFC 3948 §2.3).
    Keepalive(Path),
    /// Resolve this name and report the result once with
    /// [`Endpoint::resolved`](crate::Endpoint::resolved): a connection has it, or a peer redirects
    /// to it (RFC 5685).
    Resolve(u64, String),
    /// The addresses of this host name of a connection have changed.
    Resolved(String),
    /// New keys of an IKE SA, for a debugger; only with
    /// [`Settings::log_secrets`](crate::Settings::log_secrets).
    Secrets(Box<IkeSecrets>),
    /// An event for the log and for monitoring.
    Event(Event),
}

/// One datagram.
#[derive(Clone, Debug, Eq, PartialEq)]
#[allow(missing_docs)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Transmit {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// The IKE message, without non-ESP marker.
    pub datagram: Vec<u8>,
    /// 0..=63.
    pub dscp: u8,
}

/// Between which addresses an IKE SA and its Child SAs run.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Path {
    /// This host.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// ESP goes in UDP between these ports (RFC 3948).
    pub encap: bool,
}

impl Path {
    /// Addresses of one IKE datagram; the encapsulation of ESP is unknown.
    pub(crate) const fn of_datagram(local: SocketAddr, remote: SocketAddr) -> Self {
        Self { local, remote, encap: false }
    }

    /// The same addresses for ESP in UDP, or for ESP alone.
    pub(crate) const fn with_encap(self, encap: bool) -> Self {
        Self { encap, ..self }
    }
}

/// A request to the holder of the credentials.
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum CredentialRequest {
    /// Authenticate this host for `octets` (RFC 7296 §2.15).
    Sign(Box<SignRequest>),
    /// Verify the identity of the peer.
    Verify(Box<VerifyRequest>),
    /// One step of an EAP conversation.
    Eap(Box<EapStep>),
    /// The post-quantum preshared key with this PPK_ID (RFC 8784).
    Ppk(Identity),
    /// IKEv1: the shared key of the peer, of which SKEYID is made.
    SharedKeyV1(Box<PskQuery>),
    /// SHA-1 hashes of the public keys of trusted CAs, for a CERTREQ payload.
    TrustedAuthorities(Arc<Connection>),
    /// IKEv1: keys by which this host can sign for a connection, and trusted CAs.
    KeysV1(Arc<Connection>),
    /// IKEv1: the password of a user of this host, for XAuth.
    PasswordV1(Identity),
    /// IKEv1: verify the password of a user of the peer.
    XAuth(Box<XAuthQuery>),
}

/// XAuth of a peer.
pub struct XAuthQuery {
    /// Connection.
    pub connection: Arc<Connection>,
    /// Name of the user, as received.
    pub user: Vec<u8>,
    /// Password.
    pub password: Secret,
}

/// Owner of the shared key.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct PskQuery {
    pub local_id: Option<Identity>,
    pub remote_id: Option<Identity>,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub prf: Prf,
    /// IKEv1: SKEYID = prf(psk, this).
    pub nonces: Vec<u8>,
}

/// Authentication of this host.
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct SignRequest {
    /// Connection and which of its `local` rounds.
    pub connection: Arc<Connection>,
    /// Index into `connection.local`.
    pub round: usize,
    /// IKEv1: what phase 1 agreed to; `None` for IKEv2.
    pub v1: Option<SignV1>,
    /// The identity that is or will be sent; `None` when the certificate decides.
    pub local_id: Option<Identity>,
    /// Identity of the peer if known, for the selection of a shared key.
    pub remote_id: Option<Identity>,
    /// Addresses, for the choice of a shared key.
    pub path: Path,
    /// PRF of the IKE SA.
    pub prf: Prf,
    /// Octets to authenticate before the identity is known: message and nonce. For IKEv1 what
    /// HASH_I or HASH_R cover before the identity.
    pub message_and_nonce: Vec<u8>,
    /// SK_pi or SK_pr: the holder of the key must append prf(this, IDx') to `message_and_nonce`
    /// (and what follows, RFC 9242). For IKEv1 SKEYID: prf(this, `message_and_nonce` | IDx) is
    /// HASH_I or HASH_R, which is signed without DigestInfo or another hash.
    pub sk_p: Secret,
    /// Appended after prf(SK_p, IDx'): IntAuth and message ID of RFC 9242, else empty.
    pub int_auth: Vec<u8>,
    /// Hash algorithms of the peer's SIGNATURE_HASH_ALGORITHMS (RFC 7427); empty: it cannot do
    /// method 14.
    pub peer_hashes: Vec<wire::ike::HashId>,
    /// CAs that the peer requested: SHA-1 of their public keys.
    pub peer_authorities: Vec<[u8; 20]>,
    /// The peer requests OCSP responses about the certificates (RFC 4806).
    pub peer_ocsp: bool,
    /// The MSK of EAP takes the place of the shared key (RFC 7296 §2.16).
    pub eap_msk: Option<Secret>,
}

/// Signature of phase 1 of IKEv1.
pub struct SignV1 {
    /// Kind of key: RSA, or ECDSA on one of the curves.
    pub method: wire::ike::AuthMethodId,
    /// CAs that the peer requested: their names in DER.
    pub authorities: Vec<Vec<u8>>,
}

/// Claims of the peer.
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct VerifyRequest {
    /// Connections that are still possible, best first; the answer names one of them.
    pub candidates: Vec<Arc<Connection>>,
    /// Index into `connection.remote`.
    pub round: usize,
    /// IKE version.
    pub version: u8,
    /// Claimed identity of the peer.
    pub remote_id: Identity,
    /// Identity that it expects of this host (IDr of an initiator).
    pub local_id: Option<Identity>,
    /// Addresses.
    pub path: Path,
    /// PRF of the IKE SA.
    pub prf: Prf,
    /// Everything that the AUTH payload covers, IDx' hash included.
    pub octets: Vec<u8>,
    /// Method of the AUTH payload.
    pub method: wire::ike::AuthMethodId,
    /// Its data.
    pub auth: Vec<u8>,
    /// CERT payloads in their order: encoding and data.
    pub certs: Vec<(wire::ike::CertEncoding, Vec<u8>)>,
    /// The MSK of EAP takes the place of the shared key.
    pub eap_msk: Option<Secret>,
}

/// One step of EAP (RFC 3748), inside IKE_AUTH.
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct EapStep {
    /// Connection.
    pub connection: Arc<Connection>,
    /// A server: connections to which the EAP identity may switch, best first (`remote.eap_id`).
    pub alternatives: Vec<Arc<Connection>>,
    /// The round, of `local` for a client and of `remote` for a server.
    pub round: usize,
    /// True if this host authenticates.
    pub client: bool,
    /// The IKE SA: steps of one conversation carry the same.
    pub conversation: u64,
    /// IKE identity of the client.
    pub client_id: Identity,
    /// EAP packet of the other side; empty starts a server.
    pub packet: Vec<u8>,
}

/// Response to a credential request.
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum CredentialResponse {
    /// To [`CredentialRequest::Sign`].
    Signed(Result<Signed, CredentialError>),
    /// To [`CredentialRequest::Verify`].
    Verified(Result<Verified, CredentialError>),
    /// To [`CredentialRequest::Eap`].
    Eap(EapResult),
    /// To [`CredentialRequest::Ppk`].
    Ppk(Option<Secret>),
    /// To [`CredentialRequest::SharedKeyV1`]: SKEYID.
    SharedKeyV1(Result<Secret, CredentialError>),
    /// To [`CredentialRequest::TrustedAuthorities`].
    TrustedAuthorities(Vec<[u8; 20]>),
    /// To [`CredentialRequest::KeysV1`].
    KeysV1(KeysV1),
    /// To [`CredentialRequest::PasswordV1`].
    PasswordV1(Result<Secret, CredentialError>),
    /// To [`CredentialRequest::XAuth`]: the name of the user.
    XAuth(Result<String, CredentialError>),
}

/// IKEv1: keys of this host and trusted CAs for a connection.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KeysV1 {
    /// Kinds of keys by which this host can sign, best first, and the identities under which it
    /// does.
    pub signers: Vec<(wire::ike::AuthMethodId, Identity)>,
    /// The reason, where there are none.
    pub refusal: Option<CredentialError>,
    /// Names of trusted CAs in DER.
    pub authorities: Vec<Vec<u8>>,
}

/// AUTH payload of this host.
pub struct Signed {
    /// The identity under which it was made.
    pub local_id: Identity,
    /// Method.
    pub method: wire::ike::AuthMethodId,
    /// Data of the AUTH payload; for method 14 with its AlgorithmIdentifier.
    pub auth: Vec<u8>,
    /// Certificates to send, end entity first.
    pub certs: Vec<(wire::ike::CertEncoding, Vec<u8>)>,
}

/// The peer is authenticated.
pub struct Verified {
    /// Index of the matching candidate.
    pub connection: Arc<Connection>,
    /// Until when its certificate is good, from now.
    pub valid_for: Option<Duration>,
    /// Name in listings, if different (EAP identity).
    pub name: Option<String>,
}

/// Step of EAP.
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum EapResult {
    /// Send this packet.
    Packet(Vec<u8>),
    /// A server: the EAP identity belongs to this one of the alternatives; send this packet.
    Switch(Arc<Connection>, Vec<u8>),
    /// Done: a server sends this EAP-Success; both have this MSK, if the method makes one.
    Success {
        /// EAP-Success to send; empty for a client.
        packet: Vec<u8>,
        /// Master session key.
        msk: Option<Secret>,
        /// EAP identity of the client.
        identity: Option<Identity>,
    },
    /// Over; a server sends this EAP-Failure.
    Failure(Vec<u8>, CredentialError),
}

/// Reason why credentials are insufficient: text for the log of this host, never for the peer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CredentialError(pub String);

/// A Child SA with its keys. Keys are zeroed on drop.
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct ChildSa {
    /// Its name.
    pub id: ChildId,
    /// Its IKE SA.
    pub ike: IkeId,
    /// Connection.
    pub connection: Arc<Connection>,
    /// Child section.
    pub config: Arc<ChildConfig>,
    /// Identity of the peer, for listings and policies.
    pub remote_id: Identity,
    /// The identity that was authenticated: that of EAP if it was used. Together with the
    /// connection it identifies the peer.
    pub peer_id: Identity,
    /// Algorithms.
    pub suite: ChildSuite,
    /// Mode as negotiated.
    pub mode: crate::config::ChildMode,
    /// AGGFRAG mode: the peer does not receive cut inner packets.
    pub peer_refuses_fragments: bool,
    /// The half from the peer; SPI chosen here.
    pub inbound: SimplexSa,
    /// The half to the peer; SPI chosen there.
    pub outbound: SimplexSa,
    /// Selectors of this side, narrowed.
    pub local_ts: Vec<TrafficSelector>,
    /// Selectors of the other side.
    pub remote_ts: Vec<TrafficSelector>,
    /// Addresses.
    pub path: Path,
    /// The Child SA that it replaces.
    pub replaces: Option<ChildId>,
    /// The outbound half may be used at once; otherwise [`Output::UseOutbound`] follows.
    pub outbound_now: bool,
    /// This host started the exchange that made it.
    pub initiator: bool,
    /// The resource of RFC 9611, and its CPU on this host; `None` for the fallback SA.
    pub cpu: Option<u32>,
    /// Highest Sub SA ID that the peer accepts.
    pub peer_max_sub_sa_id: Option<u16>,
    /// Largest Crypt Offset that the peer accepts, in units of 4 bytes.
    pub peer_max_crypt_offset: Option<u8>,
    /// The peer accepts TFC padding.
    pub tfc: bool,
    /// Transport mode through a NAT: the source and the destination that the peer gives its
    /// packets, from which it computes the checksums inside (RFC 7296 §2.23.1, RFC 3948 §3.1.2). On
    /// the wire and here they have others.
    pub original: Option<(IpAddr, IpAddr)>,
}

/// SPI and keys of one direction: an SA is simplex (RFC 4301 §4.1).
pub struct SimplexSa {
    /// SPI.
    pub spi: wire::Spi,
    /// Key of the cipher with its salt, or the root key of EESP with Sub SAs.
    pub enc: Secret,
    /// Key of the integrity algorithm.
    pub integ: Secret,
}

/// Protection of the messages of an IKE SA (RFC 7296 §2.14, RFC 2409 appendix B). Keys are zeroed
/// on drop.
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct IkeSecrets {
    /// The IKE SA.
    pub ike: IkeId,
    /// Version of IKE.
    pub version: Version,
    /// SPIs of the initiator and of the responder.
    pub spis: IkeSpis,
    /// Algorithms.
    pub suite: IkeSuite,
    /// SK_ei and SK_er, with their salts; in IKEv1 the key of the cipher, twice.
    pub sk_e: (Secret, Secret),
    /// SK_ai and SK_ar; empty with an AEAD and in IKEv1.
    pub sk_a: (Secret, Secret),
}

/// A virtual address of this host, given by the peer.
#[derive(Clone, Debug, Eq, PartialEq)]
#[allow(missing_docs)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct VirtualIp {
    pub addr: IpAddr,
    pub dns: Vec<IpAddr>,
}

/// A command that did not succeed: the reason, in one line.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct CommandError(String);

impl CommandError {
    /// An error with that reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    /// The reason.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Event {
    IkeUp(IkeId),
    /// The reason is empty when it was wanted.
    IkeDown(IkeId, String),
    IkeRekeyed(IkeId),
    IkeMoved(IkeId),
    ChildUp(ChildId),
    ChildDown(ChildId, String),
    /// Old, new.
    ChildRekeyed(ChildId, ChildId),
    /// A command has come to its end: its number, and the error.
    CommandDone(u64, Result<(), CommandError>),
    /// A line for the log.
    Log {
        level: Level,
        subsystem: Subsystem,
        ike: Option<IkeId>,
        text: String,
    },
    /// A counter of exchanges or failures, by name (docs/metrics.md).
    Count(&'static str),
}

/// Importance of a line.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[allow(missing_docs)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Source of a log line, in strongSwan's groups.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Subsystem {
    Ike,
    Child,
    Config,
    Enc,
    Net,
}
