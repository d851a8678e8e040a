//! TLS of the key service: version 1.3 and no other, certificates on both sides, nothing resumed.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context as _;
use ike::config::Auth;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName, Error, ServerConfig};
use rustls::{ServerConnection, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use wire::AddrRange;

use super::{fizz, message};
use credentials::tls::{Identities, Own, provider};

/// Admission and authentication settings of a connection.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// Name of the connection.
    pub(crate) name: String,
    /// Addresses of this host; any when empty.
    pub(crate) local: Vec<AddrRange>,
    /// Addresses of the peer; any when empty.
    pub(crate) remote: Vec<AddrRange>,
    pub(crate) local_auth: Auth,
    pub(crate) remote_auth: Auth,
}

impl Entry {
    /// Returns whether a connection between these addresses may be this one.
    pub(crate) fn fits(&self, local: IpAddr, remote: IpAddr) -> bool {
        let within = |ranges: &[AddrRange], addr| ranges.is_empty() || ranges.iter().any(|range| range.contains(addr));
        within(&self.local, local) && within(&self.remote, remote)
    }
}

/// Accepts a client that at least one of several connections accepts.
pub(crate) struct Candidates(Vec<(Arc<Entry>, Arc<dyn ClientCertVerifier>)>);

impl Candidates {
    /// The connections that may admit the peer.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.0.iter().map(|(entry, _)| entry)
    }

    /// The connection that admits this peer.
    pub(crate) fn admits(&self, chain: Option<&[CertificateDer<'_>]>) -> Option<&Arc<Entry>> {
        let (leaf, others) = chain?.split_first()?;
        let now = UnixTime::now();
        let admits = |verifier: &Arc<dyn ClientCertVerifier>| verifier.verify_client_cert(leaf, others, now).is_ok();
        self.0.iter().find(|(_, verifier)| admits(verifier)).map(|(entry, _)| entry)
    }
}

impl std::fmt::Debug for Candidates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(entry, _)| &entry.name)).finish()
    }
}

impl ClientCertVerifier for Candidates {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // With several connections those of one would mislead.
        if let [(_, only)] = self.0.as_slice() { only.root_hint_subjects() } else { &[] }
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let mut outcome = Err(Error::General("no connection matches this peer".into()));
        for (_, verifier) in &self.0 {
            outcome = verifier.verify_client_cert(leaf, others, now);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        self.first()?.verify_tls12_signature(message, leaf, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        self.first()?.verify_tls13_signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.first().map(|first| first.supported_verify_schemes()).unwrap_or_default()
    }
}

impl Candidates {
    /// All of them verify signatures in the same way.
    fn first(&self) -> Result<&Arc<dyn ClientCertVerifier>, Error> {
        self.0.first().map(|(_, verifier)| verifier).ok_or(Error::General("no connection matches this peer".into()))
    }
}

/// The end that was connected to. The certificate shown is that of the first of `entries`.
///
/// # Errors
/// Without a certificate or without anybody to trust, in words.
pub(crate) fn server(
    identities: &dyn Identities,
    entries: Vec<Arc<Entry>>,
) -> anyhow::Result<(ServerConnection, Arc<Candidates>)> {
    let mut faults = Vec::new();
    let mut own = None;
    let mut candidates = Vec::new();
    for entry in entries {
        let both = identities.own(&entry.local_auth).and_then(|key| Ok((key, identities.clients(&entry.remote_auth)?)));
        match both {
            Ok((key, verifier)) => {
                own.get_or_insert(key);
                candidates.push((entry, verifier));
            }
            Err(why) => faults.push(format!("{}: {why}", entry.name)),
        }
    }
    let own = own.with_context(|| faults.join("; "))?;
    let candidates = Arc::new(Candidates(candidates));
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::clone(&candidates) as Arc<dyn ClientCertVerifier>)
        .with_cert_resolver(Arc::new(Own(own)));
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![message::ALPN.to_vec(), fizz::ALPN.to_vec()];
    let connection = ServerConnection::new(Arc::new(config))?;
    Ok((connection, candidates))
}

/// The end that connects.
///
/// # Errors
/// Without a certificate or without anybody to trust, in words.
pub(crate) fn client(identities: &dyn Identities, entry: &Entry, to: IpAddr) -> anyhow::Result<ClientConnection> {
    let own = identities.own(&entry.local_auth)?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(identities.servers(&entry.remote_auth)?)
        .with_client_cert_resolver(Arc::new(Own(own)));
    config.resumption = rustls::client::Resumption::disabled();
    config.alpn_protocols = vec![message::ALPN.to_vec()];
    // Names are the verifier's business.
    config.enable_sni = false;
    Ok(ClientConnection::new(Arc::new(config), ServerName::IpAddress(to.into()))?)
}
