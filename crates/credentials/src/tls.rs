//! What every use of TLS here shares: EAP-TLS and the key service of PSP.

use std::sync::Arc;

use ike::config::Auth;
use rustls::SignatureScheme;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;

/// The one library of cryptography.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Source of certificates, keys and trust anchors; read for each handshake, so that later loads
/// take effect.
pub trait Identities: Send + Sync {
    /// This host's certificate and key.
    ///
    /// # Errors
    /// No certificate or key is usable; the text states the reason.
    fn own(&self, local: &Auth) -> anyhow::Result<Arc<CertifiedKey>>;
    /// Verifier of clients: certificate path and identity.
    ///
    /// # Errors
    /// No trust anchor is usable; the text states the reason.
    fn clients(&self, remote: &Auth) -> anyhow::Result<Arc<dyn ClientCertVerifier>>;
    /// Verifier of servers: certificate path and identity.
    ///
    /// # Errors
    /// No trust anchor is usable; the text states the reason.
    fn servers(&self, remote: &Auth) -> anyhow::Result<Arc<dyn ServerCertVerifier>>;
}

/// Presents one certificate to every peer.
pub struct Own(pub Arc<CertifiedKey>);

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[certificate of this host]")
    }
}

impl rustls::server::ResolvesServerCert for Own {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

impl rustls::client::ResolvesClientCert for Own {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}
