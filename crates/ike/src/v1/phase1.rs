//! Phase 1: main mode with a shared key (RFC 2409 §5.4), of both roles.
//!
//! ```text
//! initiator: SentSa -(2)→ SentKe -(4)→ Asking -(SKEYID)→ SentAuth -(6)→ [Checking -(SKEYID)→] up
//! responder: GotSa -(3)→ Asking -(SKEYID)→ GotKe -(5)→ [Switching -(SKEYID)→] up
//! ```
//!
//! A responder keeps the proposal of message 1 and nothing else: it computes no key and sends
//! nothing by itself before message 3 has returned its cookie from the same address.

use std::sync::Arc;
use std::time::Instant;

use crypto::ike::Secret;
use wire::ike::v1::NotifyType;
use wire::ike::{Chain, ExchangeType, Header};

use super::established::Established;
use super::fault::Fault;
use super::message::{Head, Parts};
use crate::config::Connection;
use crate::context::Context;
use crate::identity::{IdPattern, Identity};
use crate::output::{
    CredentialRequest, CredentialResponse, IkeId, IkeSpis, Level, Output, Path, PskQuery, RequestId, Subsystem,
    Transmit,
};
use crate::sa::{ChildRequest, Initiation};

/// Result of a step of phase 1.
pub(super) enum Outcome {
    /// It continues.
    Pending,
    /// Both ends are authenticated.
    Up(Box<Up>),
    /// It is over.
    Ended(Box<Ended>),
}

/// An authenticated ISAKMP SA and what waits for it.
pub(super) struct Up {
    pub(super) sa: Box<Established>,
    pub(super) children: Vec<ChildRequest>,
    pub(super) commands: Vec<u64>,
    /// The ISAKMP SA whose Child SAs it takes over.
    pub(super) replaces: Option<IkeId>,
    /// The peer has no other ISAKMP SA with this host.
    pub(super) initial_contact: bool,
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
}

impl Basis {
    /// Sends a message.
    pub(super) fn send(&self, ctx: &mut Context<'_>, connection: &Connection, datagram: Vec<u8>) {
        send(ctx, &self.path, connection.dscp, datagram);
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
pub(super) fn skeyid(response: CredentialResponse) -> Result<Secret, String> {
    match response {
        CredentialResponse::SharedKeyV1(found) => found.map_err(|error| error.0),
        _ => Err("internal error: a credential response of another kind".to_owned()),
    }
}

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
