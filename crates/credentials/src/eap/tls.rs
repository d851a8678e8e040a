//! EAP-TLS (RFC 5216; with TLS 1.3 RFC 9190): a TLS handshake in pieces, both sides with
//! certificates of the same store and the same rules as those of IKE.

pub(crate) mod certificates;

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use crypto::ike::Secret;
use ike::config::{Auth, Connection};
use ike::identity::{IdPattern, Identity};
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, ServerConfig, ServerConnection};

use self::certificates::Verifier;
use super::super::name;
use super::super::store::Store;
use super::super::x509::Certificate;
use super::method::{Progress, Ready};

const LENGTH_INCLUDED: u8 = 0x80;
const MORE_FRAGMENTS: u8 = 0x40;
const START_FLAG: u8 = 0x20;
/// Type data of the first request.
pub(super) const START: [u8; 1] = [START_FLAG];

/// Bytes of TLS in one packet: with the headers of EAP and IKE it fits common MTUs.
const FRAGMENT: usize = 1024;
/// Bytes of TLS in one direction of one turn: several certificates of the largest keys.
const MAX_MESSAGE: usize = 64 << 10;

/// Fragments of both directions.
#[derive(Default)]
pub(super) struct Pipe {
    incoming: Vec<u8>,
    announced: Option<usize>,
    outgoing: Vec<u8>,
    sent: usize,
}

/// Received part of a message.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Received {
    Start,
    /// The peer waits for the next fragment, or for nothing.
    Ack,
    /// More fragments follow.
    Partial,
    Whole(Vec<u8>),
}

impl Pipe {
    /// Takes type data in (RFC 5216 §3.1).
    pub(super) fn receive(&mut self, data: &[u8]) -> anyhow::Result<Received> {
        let Some((&flags, mut body)) = data.split_first() else { bail!("empty type data") };
        if flags & START_FLAG != 0 {
            return if body.is_empty() { Ok(Received::Start) } else { Err(anyhow!("start message with data")) };
        }
        if flags & LENGTH_INCLUDED != 0 {
            let (length, rest) = body.split_first_chunk::<4>().context("missing length field")?;
            let length = u32::from_be_bytes(*length) as usize;
            if length > MAX_MESSAGE || self.announced.is_some_and(|announced| announced != length) {
                bail!("length field too large or changed");
            }
            (self.announced, body) = (Some(length), rest);
        }
        let more = flags & MORE_FRAGMENTS != 0;
        if body.is_empty() && !more && self.incoming.is_empty() {
            self.announced = None;
            return Ok(Received::Ack);
        }
        if body.is_empty() && more || self.incoming.len() + body.len() > self.announced.unwrap_or(MAX_MESSAGE) {
            bail!("empty fragment, or fragments longer than announced");
        }
        self.incoming.extend_from_slice(body);
        if more {
            return Ok(Received::Partial);
        }
        if self.announced.take().is_some_and(|announced| announced != self.incoming.len()) {
            bail!("fragments shorter than announced");
        }
        Ok(Received::Whole(std::mem::take(&mut self.incoming)))
    }

    /// Something is left to send.
    fn pending(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Type data of the next fragment; an acknowledgement when nothing is left.
    fn send(&mut self) -> Vec<u8> {
        let rest = &self.outgoing[self.sent..];
        let part = &rest[..rest.len().min(FRAGMENT)];
        let first = self.sent == 0 && rest.len() > FRAGMENT;
        let mut flags = 0;
        let mut length = Vec::new();
        if first {
            flags |= LENGTH_INCLUDED;
            length = (rest.len() as u32).to_be_bytes().to_vec();
        }
        if rest.len() > FRAGMENT {
            flags |= MORE_FRAGMENTS;
        }
        let data = [&[flags], &length[..], part].concat();
        self.sent += part.len();
        if !self.pending() {
            (self.outgoing, self.sent) = (Vec::new(), 0);
        }
        data
    }
}

/// One handshake.
pub(super) struct Session {
    connection: Tls,
    pipe: Pipe,
    /// A server: the certificate must contain one of these identities.
    ids: Vec<Identity>,
    /// True if the server has sent the start message.
    started: bool,
    /// The server's last word came (RFC 9190 §2.5); TLS 1.2 has none.
    committed: bool,
}

enum Tls {
    Client(Box<ClientConnection>),
    Server(Box<ServerConnection>),
}

/// Runs one expression on either connection.
macro_rules! either {
    ($tls:expr, $connection:ident => $value:expr) => {
        match $tls {
            Tls::Client($connection) => $value,
            Tls::Server($connection) => $value,
        }
    };
}

impl Session {
    /// A server that requires a certificate with one of `ids`.
    pub(super) fn server(
        store: &Store,
        connection: &Arc<Connection>,
        round: usize,
        ids: Vec<Identity>,
        now: Duration,
    ) -> anyhow::Result<Self> {
        let local = connection.local.iter().find(|auth| matches!(auth.method, ike::config::AuthMethod::PublicKey(_)));
        let own = certificates::own(store, local.or(connection.local.first()), now)?;
        let auth = connection.remote.get(round).context("the connection has no matching section remote")?;
        let verifier = Arc::new(Verifier::new(store, auth.clone(), now));
        let mut config = ServerConfig::builder_with_provider(crate::tls::provider())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(own));
        // A resumed session would skip the verification of the certificate.
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let connection = ServerConnection::new(Arc::new(config))?;
        Ok(Self::of(Tls::Server(Box::new(connection)), ids))
    }

    /// Client: the server must be the peer of the connection.
    pub(super) fn client(
        store: &Store,
        connection: &Arc<Connection>,
        auth: &Auth,
        now: Duration,
    ) -> anyhow::Result<Self> {
        let own = certificates::own(store, Some(auth), now)?;
        let remote = connection.remote.first().context("the connection has no section remote")?;
        let verifier = Arc::new(Verifier::new(store, remote.clone(), now).only(remote.id.clone()));
        let mut config = ClientConfig::builder_with_provider(crate::tls::provider())
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(Arc::new(own));
        config.resumption = rustls::client::Resumption::disabled();
        // Names are the verifier's business.
        config.enable_sni = false;
        let name = rustls_pki_types::ServerName::try_from("eap")?;
        let connection = ClientConnection::new(Arc::new(config), name)?;
        Ok(Self::of(Tls::Client(Box::new(connection)), Vec::new()))
    }

    fn of(connection: Tls, ids: Vec<Identity>) -> Self {
        Self { connection, pipe: Pipe::default(), ids, started: false, committed: false }
    }

    fn is_client(&self) -> bool {
        matches!(self.connection, Tls::Client(_))
    }

    /// Takes type data of the other side.
    pub(super) fn step(&mut self, data: &[u8]) -> Progress {
        match self.turn(data) {
            Ok(progress) => progress,
            Err(why) => Progress::Failed(format!("TLS: {why}")),
        }
    }

    fn turn(&mut self, data: &[u8]) -> anyhow::Result<Progress> {
        let received = self.pipe.receive(data)?;
        match received {
            Received::Start if self.is_client() && !self.started => self.started = true,
            Received::Start => bail!("unexpected start message"),
            _ if self.is_client() && !self.started => bail!("the server did not send a start message"),
            Received::Partial if self.pipe.pending() => bail!("fragments of both sides at once"),
            Received::Partial => return Ok(Progress::Go(vec![0])),
            Received::Ack if self.pipe.pending() => return Ok(Progress::Go(self.pipe.send())),
            Received::Ack if self.is_client() => bail!("unexpected acknowledgement"),
            Received::Ack => return self.verdict(),
            Received::Whole(_) if self.pipe.pending() => bail!("response before the request was complete"),
            Received::Whole(message) => self.feed(&message)?,
        }
        self.collect()?;
        if !self.pipe.pending() && !self.is_client() {
            bail!("the handshake makes no progress");
        }
        Ok(Progress::Go(self.pipe.send()))
    }

    /// Gives bytes to TLS.
    fn feed(&mut self, mut message: &[u8]) -> anyhow::Result<()> {
        let was_done = self.done();
        while !message.is_empty() {
            either!(&mut self.connection, connection => {
                let taken = connection.read_tls(&mut message)?;
                if taken == 0 {
                    bail!("data after the end");
                }
                connection.process_new_packets()?;
            });
        }
        let mut words = [0; 2];
        let count = either!(&mut self.connection, connection => connection.reader().read(&mut words).unwrap_or(0));
        match (&mut self.connection, count) {
            (_, 0) => {}
            // The one octet by which a server of RFC 9190 commits itself.
            (Tls::Client(_), 1) if words[0] == 0 => self.committed = true,
            _ => bail!("application data inside the handshake"),
        }
        if let (Tls::Server(connection), false) = (&mut self.connection, was_done)
            && !connection.is_handshaking()
        {
            bound(connection.peer_certificates(), &self.ids)?;
            if connection.protocol_version() == Some(ProtocolVersion::TLSv1_3) {
                connection.writer().write_all(&[0])?;
            }
        }
        Ok(())
    }

    /// Returns the bytes that TLS has to send.
    fn collect(&mut self) -> anyhow::Result<()> {
        either!(&mut self.connection, connection => {
            while connection.wants_write() {
                connection.write_tls(&mut self.pipe.outgoing)?;
            }
        });
        if self.pipe.outgoing.len() > MAX_MESSAGE { Err(anyhow!("message too long to send")) } else { Ok(()) }
    }

    fn done(&self) -> bool {
        either!(&self.connection, connection => !connection.is_handshaking())
    }

    /// Result of a server after its last message was acknowledged.
    fn verdict(&mut self) -> anyhow::Result<Progress> {
        let Tls::Server(connection) = &self.connection else { bail!("no server") };
        if !self.done() {
            bail!("the client ended the handshake early");
        }
        let id = bound(connection.peer_certificates(), &self.ids)?;
        Ok(Progress::Done(Some(self.msk()?), Some(id)))
    }

    /// Returns whether an EAP-Success is due to this client.
    pub(super) fn ready(&mut self) -> Ready {
        let Tls::Client(connection) = &self.connection else { return Ready::No };
        let committed = match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => self.committed,
            Some(ProtocolVersion::TLSv1_2) => true,
            _ => false,
        };
        if !self.done() || !committed || self.pipe.pending() {
            return Ready::No;
        }
        self.msk().map_or(Ready::No, |msk| Ready::Yes(Some(msk)))
    }

    /// The first half of the key material (RFC 5216 §2.3, RFC 9190 §2.3).
    fn msk(&self) -> anyhow::Result<Secret> {
        let mut material = zeroize::Zeroizing::new([0u8; 128]);
        either!(&self.connection, connection => {
            let (label, context): (&[u8], _) = match connection.protocol_version() {
                Some(ProtocolVersion::TLSv1_3) => (b"EXPORTER_EAP_TLS_Key_Material", Some(&[super::packet::TLS][..])),
                _ => (b"client EAP encryption", None),
            };
            connection.export_keying_material(&mut material[..], label, context)?;
        });
        Ok(Secret::from_slice(&material[..64]))
    }
}

/// The identity that the client's certificate contains.
fn bound(chain: Option<&[rustls_pki_types::CertificateDer<'_>]>, ids: &[Identity]) -> anyhow::Result<Identity> {
    let leaf = chain.and_then(<[_]>::first).context("the client has no certificate")?;
    let leaf = Certificate::from_der(leaf)?;
    let shown = || ids.iter().map(name::show_id).collect::<Vec<_>>().join("', '");
    let found = ids.iter().find(|id| name::is_of(&leaf, id)).cloned();
    found.with_context(|| format!("{leaf:?} does not belong to the claimed identity '{}'", shown()))
}

/// Returns whether a certificate belongs to a matching identity.
fn fits(certificate: &Certificate, pattern: &IdPattern) -> bool {
    match pattern {
        IdPattern::Any => true,
        IdPattern::Like(id) if name::is_of(certificate, id) => true,
        pattern => name::identities_of(certificate).iter().any(|id| pattern.matches(id).is_some()),
    }
}
