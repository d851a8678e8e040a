//! Messages of IKE_SA_INIT: the only ones that are not encrypted.

use std::net::IpAddr;

use wire::ike::{
    CertEncoding, CertReq, Chain, ExchangeType, HashId, Header, HeaderFields, NotifyType, PayloadType, Payloads,
    ProtocolId, begin_message, finish_message,
};

use crate::child::Parts;
use crate::config::{AuthMethod, Connection, Fragmentation};
use crate::context::Context;
use crate::keymat;
use crate::nat::{self, Detection};
use crate::output::{IkeSpi, IkeSpis, Path};
use crate::sa::PeerSupport;

/// Bytes of an IKE_SA_INIT message beyond which it is dropped: the largest public values (MODP-8192
/// and ML-KEM-1024) with a generous list of proposals.
pub(crate) const INIT_MAX: usize = 4096;
/// Hashes of authorities that are remembered of a peer, 20 bytes each.
const AUTHORITIES_MAX: usize = 128;
/// Hashes of authorities that are sent, 20 bytes each: IKE_SA_INIT stays below [`INIT_MAX`].
const REQUESTED_MAX: usize = 64;
/// Bytes of a nonce: at least half of the key of every PRF (RFC 7296 §2.10).
const NONCE_LEN: usize = 32;

/// Capabilities of a peer in IKE_SA_INIT.
pub(super) struct Announced {
    pub(super) peer: PeerSupport,
    pub(super) hashes: Vec<HashId>,
    pub(super) nat: Detection,
    /// CAs that it trusts, by the SHA-1 of their keys; `None` when it did not ask for a
    /// certificate.
    pub(super) authorities: Option<Requested>,
}

/// Contents of a peer's CERTREQ payloads.
#[derive(Default)]
pub(super) struct Requested {
    /// A certificate of one of these authorities, named by the SHA-1 of their keys; of any when
    /// empty.
    pub(super) authorities: Vec<[u8; 20]>,
    /// OCSP responses about it (RFC 4806).
    pub(super) ocsp: bool,
}

impl Requested {
    /// Adds what another message requests.
    pub(super) fn extend(&mut self, more: Self) {
        self.authorities.extend(more.authorities);
        self.ocsp |= more.ocsp;
    }
}

impl Announced {
    pub(super) fn read(parts: &Parts<'_>, payloads: Payloads<'_>, spis: IkeSpis, path: &Path) -> Self {
        let mut announced = Self {
            peer: PeerSupport::default(),
            hashes: Vec::new(),
            nat: Detection::default(),
            authorities: certificate_requests(payloads),
        };
        // A request so far: the caller decides with its connection whether this host agrees.
        let mut vendors = payloads.flatten().filter(|payload| payload.kind == PayloadType::VENDOR);
        announced.peer.agreed_udp = vendors.any(|payload| payload.body == nat::UDP_VENDOR_ID);
        for notify in &parts.notifies {
            let peer = &mut announced.peer;
            match notify.kind {
                NotifyType::IKEV2_FRAGMENTATION_SUPPORTED => peer.fragmentation = true,
                NotifyType::INTERMEDIATE_EXCHANGE_SUPPORTED => peer.intermediate = true,
                NotifyType::CHILDLESS_IKEV2_SUPPORTED => peer.childless = true,
                NotifyType::USE_PPK => peer.ppk = true,
                NotifyType::REDIRECT_SUPPORTED | NotifyType::REDIRECTED_FROM => peer.redirect = true,
                NotifyType::SIGNATURE_HASH_ALGORITHMS => announced.hashes = keymat::parse_signature_hashes(notify.data),
                kind => announced.nat.take(kind, notify.data, spis, path),
            }
        }
        announced
    }
}

/// The CERTREQ payloads of a message: `None` without any. An empty list accepts every authority.
pub(super) fn certificate_requests(payloads: Payloads<'_>) -> Option<Requested> {
    let mut found = None;
    for payload in payloads.flatten().filter(|payload| payload.kind == PayloadType::CERTREQ) {
        let requested = found.get_or_insert_with(Requested::default);
        match CertReq::parse(payload.body) {
            Ok(request) if request.encoding == CertEncoding::X509_SIGNATURE => {
                // Unauthenticated input: the limit bounds the memory per half-open IKE SA.
                let room = AUTHORITIES_MAX - requested.authorities.len();
                requested.authorities.extend(request.hashes().take(room));
            }
            // Responders that the peer trusts may be named; that of the CA is always trusted.
            Ok(request) if request.encoding == CertEncoding::OCSP => requested.ocsp = true,
            _ => {}
        }
    }
    found
}

/// Writes a CERTREQ for the authorities of connections, where their peers may come with a
/// certificate. A responder does not know yet which of several it will be.
pub(super) fn emit_certreq<'a>(
    ctx: &Context<'_>,
    connections: impl IntoIterator<Item = &'a Connection>,
    chain: &mut Chain<'_>,
) {
    let wanted = |method: &AuthMethod| matches!(method, AuthMethod::Any | AuthMethod::PublicKey(_));
    let (mut authorities, mut ocsp): (Vec<[u8; 20]>, bool) = (Vec::new(), false);
    for connection in connections {
        if !connection.send_certreq || !connection.remote.iter().any(|auth| wanted(&auth.method)) {
            continue;
        }
        ocsp |= connection.ocsp.requests();
        for authority in ctx.names.authorities.get(&connection.name).into_iter().flatten() {
            // A responder sends the list in IKE_SA_INIT, which cannot be fragmented (RFC 7383), so
            // its length is bounded.
            if !authorities.contains(authority) && authorities.len() < REQUESTED_MAX {
                authorities.push(*authority);
            }
        }
    }
    // An empty list would not help the peer to select a certificate.
    if !authorities.is_empty() {
        chain.certreq(CertEncoding::X509_SIGNATURE, authorities.as_flattened());
    }
    if ocsp {
        chain.certreq(CertEncoding::OCSP, &[]);
    }
}

/// Status notifies without data that do not depend on the negotiation.
pub(super) fn emit_features(connection: &Connection, chain: &mut Chain<'_>) {
    if connection.fragmentation != Fragmentation::No {
        status(chain, NotifyType::IKEV2_FRAGMENTATION_SUPPORTED, &[]);
    }
    status(chain, NotifyType::SIGNATURE_HASH_ALGORITHMS, &keymat::signature_hashes());
}

/// Returns a Notify that concerns no SA.
pub(super) fn status(chain: &mut Chain<'_>, kind: NotifyType, data: &[u8]) {
    chain.notify(ProtocolId::NONE, &[], kind, data);
}

/// A whole IKE_SA_INIT message.
pub(crate) fn message(spis: IkeSpis, response: bool, write: impl FnOnce(&mut Chain<'_>)) -> Vec<u8> {
    // In IKE_SA_INIT, the sender of a request is always the original initiator.
    let flags = if response { Header::FLAG_RESPONSE } else { Header::FLAG_INITIATOR };
    unprotected(ExchangeType::IKE_SA_INIT, spis, flags, 0, write)
}

/// A message without SK.
pub(crate) fn unprotected(
    exchange: ExchangeType,
    spis: IkeSpis,
    flags: u8,
    message_id: u32,
    write: impl FnOnce(&mut Chain<'_>),
) -> Vec<u8> {
    let IkeSpis { initiator: IkeSpi(spi_i), responder: IkeSpi(spi_r) } = spis;
    let mut message = Vec::new();
    begin_message(
        &mut message,
        &HeaderFields { spi_i, spi_r, version: Header::VERSION_2, exchange, flags, message_id },
    );
    let mut chain = Chain::new(&mut message);
    write(&mut chain);
    let first = chain.first();
    finish_message(&mut message, first);
    message
}

/// Returns the addresses of this host except `here`, the one in use (RFC 4555 §3.4).
pub(super) fn emit_addresses(ctx: &Context<'_>, here: IpAddr, chain: &mut Chain<'_>) {
    /// As many as a peer remembers.
    const ADDRESSES_MAX: usize = 16;
    let usable =
        |addr: &&IpAddr| **addr != here && !addr.is_loopback() && !addr.is_unspecified() && !addr.is_multicast();
    for addr in ctx.names.local_addresses.iter().filter(usable).take(ADDRESSES_MAX) {
        match addr {
            IpAddr::V4(addr) => status(chain, NotifyType::ADDITIONAL_IP4_ADDRESS, &addr.octets()),
            IpAddr::V6(addr) => status(chain, NotifyType::ADDITIONAL_IP6_ADDRESS, &addr.octets()),
        }
    }
}

/// A fresh nonce.
pub(super) fn nonce(ctx: &mut Context<'_>) -> Vec<u8> {
    let mut nonce = vec![0; NONCE_LEN];
    ctx.rng.fill_bytes(&mut nonce);
    nonce
}
