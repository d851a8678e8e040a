//! Phase 1: main mode with a shared key (RFC 2409 §5.4) or signatures (§5.1), of both roles.
//!
//! ```text
//! initiator: [Preparing -(own keys)→] SentSa -(2)→ SentKe -(4)→
//!            shared key: KeyRequested -(SKEYID)→ SentAuth -(6)→ [Checking -(SKEYID)→] up
//!            signatures: Signing -(SIG_I)→ SentAuth -(6)→ Verifying -(verified)→ up
//! responder: GotSa -(3)→
//!            shared key: KeyRequested -(SKEYID)→ GotKe -(5)→ [Switching -(SKEYID)→] up
//!            signatures: GotKe -(5)→ Verifying -(verified)→ Signing -(SIG_R)→ up
//! ```
//!
//! Aggressive mode (§5.1, §5.4) has three messages, in modules of both roles:
//!
//! ```text
//! initiator: [Preparing →] SentAll -(2)→ Step (SKEYID, verified, SIG_I) → up
//! responder: (1)→ Step (SKEYID or SIG_R) → SentAll -(3)→ [Confirming -(verified)→] up
//! ```
//!
//! A responder of main mode keeps the proposal of message 1 and nothing else: it computes no key
//! and sends nothing by itself before message 3 has returned its cookie from the same address. In
//! aggressive mode it cannot do without, which is limited instead.

use std::sync::Arc;
use std::time::Instant;

use crypto::ike::Secret;
use wire::ike::v1::NotifyType;
use wire::ike::{AuthMethodId, CertEncoding, Chain, ExchangeType, Header, PayloadType};

use super::established::Established;
use super::fault::Fault;
use super::fragment;
use super::message::{Head, Parts, Requested};
use super::method::Proof;
use super::proposal::Phase1;
use super::protection::{Digest, Exchanged, Iv, Protection, is_equal};
use crate::config::{Connection, SendCert};
use crate::context::Context;
use crate::identity::{IdPattern, Identity};
use crate::output::{
    CredentialRequest, CredentialResponse, IkeId, IkeSpis, Level, Output, Path, PskQuery, RequestId, SignRequest,
    SignV1, Signed, Subsystem, Transmit, VerifyRequest,
};
use crate::sa::{ChildRequest, Initiation, Role};

/// Signatures of one peer that are verified in one phase 1: the first may be a forged one.
pub(super) const VERIFICATIONS_MAX: u32 = 4;
/// Reason of a failure that only a defect can cause.
pub(super) const OTHER_RESPONSE: &str = "internal error: a credential response of another kind";
/// Bytes of all certificates of one message.
const CERT_BYTES_MAX: usize = 64 * 1024;

/// Result of a step of phase 1.
pub(super) enum Outcome {
    /// It continues.
    Pending,
    /// Both ends are authenticated by phase 1.
    Up(Box<Up>),
    /// XAuth and Mode Config are done.
    Configured,
    /// It is over.
    Ended(Box<Ended>),
}

impl Outcome {
    /// `current` stays `phase`, in which another message is awaited: one that is not acceptable may
    /// be forged, and must not end phase 1. It was counted and logged.
    pub(super) fn stay<P>(current: &mut P, phase: P) -> Self {
        *current = phase;
        Self::Pending
    }
}

/// An authenticated ISAKMP SA and what waits for it.
pub(super) struct Up {
    pub(super) sa: Box<Established>,
    pub(super) rest: Rest,
}

/// What waits for an ISAKMP SA, and what it replaces.
#[derive(Default)]
pub(super) struct Rest {
    pub(super) children: Vec<ChildRequest>,
    pub(super) commands: Vec<u64>,
    /// The ISAKMP SA whose Child SAs it takes over.
    pub(super) replaces: Option<IkeId>,
    /// The peer has no other ISAKMP SA with this host.
    pub(super) initial_contact: bool,
    /// Virtual addresses of before, which are requested again.
    pub(super) addresses: Vec<std::net::IpAddr>,
}

/// A phase 1 that failed.
#[derive(Default)]
pub(super) struct Ended {
    /// For the log and for the waiting command.
    pub(super) reason: String,
    /// Another attempt, after a wait.
    pub(super) again: Option<Initiation>,
    pub(super) commands: Vec<u64>,
    pub(super) children: Vec<ChildRequest>,
}

impl Outcome {
    pub(super) fn ended(reason: impl Into<String>) -> Self {
        Self::Ended(Box::new(Ended { reason: reason.into(), ..Ended::default() }))
    }
}

/// Names and addresses of an ISAKMP SA.
#[derive(Clone)]
pub(super) struct Basis {
    pub(super) id: IkeId,
    pub(super) cookies: IkeSpis,
    pub(super) path: Path,
    /// Long messages are sent in pieces.
    pub(super) fragments: bool,
}

impl Basis {
    /// Sends a message.
    pub(super) fn send(&self, ctx: &mut Context<'_>, connection: &Connection, datagram: Vec<u8>) {
        self.send_to(ctx, &self.path, connection, datagram);
    }

    /// Sends a message to other addresses than those of the ISAKMP SA.
    pub(super) fn send_to(&self, ctx: &mut Context<'_>, path: &Path, connection: &Connection, datagram: Vec<u8>) {
        if !self.fragments {
            return send(ctx, path, connection.dscp, datagram);
        }
        let room = crate::exchange::room(ctx.settings.fragment_size, path.remote);
        let id = ctx.rng.next_u32() as u16;
        for piece in fragment::split(datagram, self.cookies, room, id) {
            send(ctx, path, connection.dscp, piece);
        }
    }

    pub(super) fn log(&self, ctx: &mut Context<'_>, level: Level, text: String) {
        ctx.log(level, Subsystem::Ike, Some(self.id), text);
    }
}

/// Sends a message.
pub(super) fn send(ctx: &mut Context<'_>, path: &Path, dscp: u8, datagram: Vec<u8>) {
    let Path { local, remote, .. } = *path;
    ctx.out.push_back(Output::Transmit(Transmit { local, remote, datagram, dscp }));
}

/// A notification in clear text: the peer has no keys yet, or other ones.
pub(super) fn clear_notification(ctx: &mut Context<'_>, cookies: IkeSpis, kind: NotifyType) -> Vec<u8> {
    let head = Head { cookies, exchange: ExchangeType::INFORMATIONAL_V1, message_id: message_id(ctx) };
    head.clear(|chain| notification(chain, kind, &[], &[]))
}

/// A notification about the ISAKMP SA.
pub(super) fn notification(chain: &mut Chain<'_>, kind: NotifyType, spi: &[u8], data: &[u8]) {
    let protocol = wire::ike::ProtocolId::IKE;
    chain.notification_v1(&wire::ike::v1::Notification { doi: wire::ike::v1::DOI_IPSEC, protocol, spi, kind, data });
}

/// SPI of an ISAKMP SA in notifications: both cookies.
pub(super) fn both_cookies(cookies: IkeSpis) -> [u8; 16] {
    let mut both = [0; 16];
    both[..8].copy_from_slice(&cookies.initiator.0);
    both[8..].copy_from_slice(&cookies.responder.0);
    both
}

/// A message ID: random, not zero.
pub(super) fn message_id(ctx: &mut Context<'_>) -> u32 {
    ctx.rng.next_u32().max(1)
}

/// A nonce.
pub(super) fn nonce(ctx: &mut Context<'_>) -> Vec<u8> {
    let mut nonce = vec![0; 32];
    ctx.rng.fill_bytes(&mut nonce);
    nonce
}

/// The identity of this host: that of the connection, or its address.
pub(super) fn local_identity(connection: &Connection, path: &Path) -> Identity {
    match connection.local.first().map(|auth| &auth.id) {
        Some(IdPattern::Like(identity)) => identity.clone(),
        _ => Identity::of_addr(path.local.ip()),
    }
}

/// Requests SKEYID of the shared key with a peer. Its identity is known before message 5 only where
/// the connection names a single one.
pub(super) fn request_skeyid(
    ctx: &mut Context<'_>,
    basis: &Basis,
    connection: &Arc<Connection>,
    remote: Option<&Identity>,
    (prf, nonces): (crypto::ike::Prf, Vec<u8>),
) -> RequestId {
    let named = connection.remote.first().and_then(|auth| auth.id.exact());
    let query = PskQuery {
        local_id: Some(local_identity(connection, &basis.path)),
        remote_id: remote.or(named).cloned(),
        local: basis.path.local,
        remote: basis.path.remote,
        prf,
        nonces,
    };
    ctx.request_credentials(basis.id, CredentialRequest::SharedKeyV1(Box::new(query)))
}

/// SKEYID in a response.
pub(super) fn skeyid(response: CredentialResponse) -> Result<Secret, Fault> {
    match response {
        CredentialResponse::SharedKeyV1(found) => found.map_err(|error| Fault::authentication(error.0)),
        _ => Err(Fault::Internal("a credential response of another kind".into())),
    }
}

/// Phase 1 with keys.
pub(super) struct Keyed {
    pub(super) suite: Phase1,
    pub(super) exchanged: Exchanged,
    /// There is a NAT in front of this host, and of the peer.
    pub(super) nat: (bool, bool),
    pub(super) protection: Protection,
    /// After the last message.
    pub(super) iv: Iv,
}

/// Body of the initiator's SA payload, which hashes cover, and the cookies.
#[derive(Clone, Copy)]
pub(super) struct Covered<'a> {
    pub(super) offer: &'a [u8],
    pub(super) cookies: IkeSpis,
}

impl Keyed {
    /// HASH_I or HASH_R of an end with this ID payload.
    pub(super) fn hash(&self, of: Role, covered: Covered<'_>, id_body: &[u8]) -> Vec<u8> {
        let of_initiator = of == Role::Initiator;
        self.protection.hash_phase1(of_initiator, &self.exchanged, covered.cookies, covered.offer, id_body)
    }

    /// Requests SIG_I or SIG_R of this host. The holder of the keys selects the identity where the
    /// connection names none.
    pub(super) fn request_signature(
        &self,
        ctx: &mut Context<'_>,
        basis: &Basis,
        (connection, role, local_id): (&Arc<Connection>, Role, Option<Identity>),
        covered: Covered<'_>,
        (kind, requested): (AuthMethodId, &Requested),
    ) -> RequestId {
        let Covered { offer, cookies } = covered;
        let request = SignRequest {
            connection: Arc::clone(connection),
            round: 0,
            v1: Some(SignV1 { method: kind, authorities: requested.authorities.clone() }),
            local_id: local_id.or_else(|| connection.local.first().and_then(|auth| auth.id.exact()).cloned()),
            remote_id: None,
            path: basis.path,
            prf: self.suite.auth_prf(),
            message_and_nonce: self.exchanged.covered(role == Role::Initiator, cookies, offer),
            sk_p: self.protection.keys.skeyid.clone(),
            int_auth: Vec::new(),
            peer_hashes: Vec::new(),
            peer_authorities: Vec::new(),
            peer_ocsp: false,
            eap_msk: None,
        };
        ctx.request_credentials(basis.id, CredentialRequest::Sign(Box::new(request)))
    }

    /// Requests the verification of the signature of the peer.
    pub(super) fn request_verification(
        &self,
        ctx: &mut Context<'_>,
        basis: &Basis,
        candidates: Vec<Arc<Connection>>,
        (covered, role): (Covered<'_>, Role),
        claim: &Claim,
    ) -> RequestId {
        let request = VerifyRequest {
            candidates,
            round: 0,
            version: 1,
            remote_id: claim.remote_id.clone(),
            local_id: None,
            path: basis.path,
            prf: self.suite.auth_prf(),
            octets: self.hash(role.other(), covered, &claim.id_body),
            method: claim.kind,
            auth: claim.signature.clone(),
            certs: claim.certs.clone(),
            eap_msk: None,
        };
        ctx.request_credentials(basis.id, CredentialRequest::Verify(Box::new(request)))
    }

    /// Checks how the peer authenticates itself in a message: its hash at once. A signature is
    /// returned, to be verified.
    ///
    /// # Errors
    /// [`Fault`] for a wrong hash, and for a message without the proof that was agreed to.
    pub(super) fn claim(
        &self,
        of: Role,
        covered: Covered<'_>,
        parts: &Parts<'_>,
        id_body: &[u8],
    ) -> Result<(Identity, Option<Claim>), Fault> {
        match self.suite.method.proof(of) {
            Proof::Hash => {
                if !is_equal(parts.hash, &self.hash(of, covered, id_body)) {
                    return Err(self.unreadable());
                }
                Ok((super::selectors::identity(id_body)?, None))
            }
            Proof::Signature(kind) => {
                let signature = needed(parts.signature, "SIG")?.to_vec();
                let remote_id = super::selectors::identity(id_body)?;
                if parts.certs.iter().map(|cert| cert.data.len()).sum::<usize>() > CERT_BYTES_MAX {
                    return Err(Fault::violation("too many certificates in one message"));
                }
                let certs = parts.certs.iter().map(|cert| (cert.encoding, cert.data.to_vec())).collect();
                let id_body = id_body.to_vec();
                Ok((remote_id.clone(), Some(Claim { remote_id, id_body, kind, signature, certs })))
            }
        }
    }

    /// A message that the keys of this host do not turn into what is expected. With a shared key
    /// the keys of the peer are most likely others; with signatures both ends have them from the
    /// key exchange.
    pub(super) fn unreadable(&self) -> Fault {
        match self.suite.method.shared_key {
            true => Fault::key(),
            false => Fault::violation("its message cannot be decrypted or has a wrong hash"),
        }
    }
}

/// The last message of the peer in phase 1 and its answer. The peer repeats it when the answer was
/// lost.
pub(super) struct Last {
    pub(super) seen: Digest,
    /// Empty where nothing answers it.
    pub(super) reply: Vec<u8>,
    /// Message 3 of aggressive mode, until the peer sends something authentic.
    pub(super) unconfirmed: Option<Vec<u8>>,
}

/// Claim of a peer that signs.
pub(super) struct Claim {
    pub(super) remote_id: Identity,
    id_body: Vec<u8>,
    kind: AuthMethodId,
    signature: Vec<u8>,
    certs: Vec<(CertEncoding, Vec<u8>)>,
}

/// Writes the payloads by which this host authenticates itself: its signature, with certificates
/// where the peer requests them or by `send_cert`.
pub(super) fn emit_signed(chain: &mut Chain<'_>, connection: &Connection, requested: &Requested, signed: &Signed) {
    let sends = match connection.send_cert {
        SendCert::IfAsked => requested.any,
        SendCert::Always => true,
        SendCert::Never => false,
    };
    for (encoding, cert) in
        signed.certs.iter().filter(|(encoding, _)| sends && *encoding == CertEncoding::X509_SIGNATURE)
    {
        chain.raw(PayloadType::CERT_V1, &[&[encoding.0], &cert[..]].concat());
    }
    chain.raw(PayloadType::SIG_V1, &signed.auth);
}

/// Writes CERTREQ payloads where the peer is to sign: one for each trusted authority, or one for
/// any.
pub(super) fn emit_certreq<'a>(
    ctx: &Context<'_>,
    connections: impl Iterator<Item = &'a Connection>,
    proof: Proof,
    chain: &mut Chain<'_>,
) {
    let mut names: Vec<&[u8]> = Vec::new();
    let mut any = false;
    for connection in connections.filter(|connection| connection.send_certreq && proof != Proof::Hash) {
        any = true;
        let keys = ctx.names.keys_v1.get(&connection.name);
        for name in keys.into_iter().flat_map(|keys| &keys.authorities) {
            if !names.contains(&&name[..]) && names.len() < REQUESTED_MAX {
                names.push(name);
            }
        }
    }
    if any && names.is_empty() {
        names.push(&[]);
    }
    for name in names {
        chain.raw(PayloadType::CERTREQ_V1, &[&[CertEncoding::X509_SIGNATURE.0], name].concat());
    }
}

/// CERTREQ payloads of one message.
const REQUESTED_MAX: usize = 16;

/// Payloads of a message of main mode in clear text.
pub(super) fn clear_parts<'a>(header: &Header, body: &'a [u8]) -> Result<Parts<'a>, Fault> {
    if header.flags & Header::FLAG_V1_ENCRYPTION != 0 {
        return Err(Fault::violation("an encrypted message before there are keys"));
    }
    Parts::read(header.next, body)
}

/// A payload that must be there.
pub(super) fn needed<T>(payload: Option<T>, what: &'static str) -> Result<T, Fault> {
    payload.ok_or_else(|| Fault::violation(format!("{what} is missing")))
}

/// The earlier of two times.
pub(super) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
