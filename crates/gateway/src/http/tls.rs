//! TLS 1.3 for servers that other hosts reach.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use credentials::tls::provider;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::pem::{self, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Size of the buffer for plaintext that a client has not read yet, in bytes. The rest of a
/// response should wait until there is room in it.
const BUFFER: usize = 64 << 10;

/// Certificate and private key of a server; both can be replaced while it runs.
#[derive(Clone)]
pub(crate) struct Tls(Arc<RwLock<Arc<ServerConfig>>>);

impl Tls {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Self {
        Self(Arc::new(RwLock::new(config)))
    }

    /// Sets certificate and key of later connections.
    pub(crate) fn replace(&self, config: Arc<ServerConfig>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Certificate and key of the next connection.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Paths of a certificate with its chain and of its private key, both PEM.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TlsFiles {
    /// The certificate of this host first, then those of its issuers.
    pub certificate: PathBuf,
    /// The private key, without a passphrase.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Reads both.
    ///
    /// # Errors
    /// A file cannot be read, contains none, or the key is that of another certificate. The flag is
    /// true if the key is the cause.
    pub(crate) fn read(&self) -> Result<Arc<ServerConfig>, (bool, String)> {
        read(&self.certificate, &self.key)
    }
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, (bool, String)> {
    let fault = |of_key: bool, why: pem::Error, what: &str| {
        let path = if of_key { key } else { certificate };
        let why = match why {
            pem::Error::Io(error) => error.to_string(),
            pem::Error::NoItemsFound => format!("no {what} in PEM format"),
            other => other.to_string(),
        };
        (of_key, format!("{}: {why}", path.display()))
    };
    let of_certificate = |why| fault(false, why, "certificate");
    let chain = CertificateDer::pem_file_iter(certificate).map_err(of_certificate)?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(of_certificate)?;
    if chain.is_empty() {
        return Err(of_certificate(pem::Error::NoItemsFound));
    }
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|why| fault(true, why, "private key without passphrase"))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|why| (true, format!("{} with {}: {why}", key.display(), certificate.display())))?;
    // A scrape is one connection; tickets would only be memory.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The connection of a client. Reads and writes return `WouldBlock` as those of the socket do.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Stream {
    /// # Errors
    /// Those of the socket, or of the TLS library.
    pub(super) fn new(socket: TcpStream, tls: Option<&Tls>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let Some(tls) = tls else { return Ok(Self::Plain(socket)) };
        let mut connection = ServerConnection::new(tls.current()).map_err(io::Error::other)?;
        connection.set_buffer_limit(Some(BUFFER));
        Ok(Self::Tls(Box::new(StreamOwned::new(connection, socket))))
    }

    /// Returns whether the buffer has bytes that should be written when the socket accepts them.
    pub(super) fn must_write(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.conn.wants_write())
    }

    /// Hands bytes that wait to the socket. False if some of them still wait.
    ///
    /// # Errors
    /// Those of the socket.
    pub(super) fn push(&mut self) -> io::Result<bool> {
        let Self::Tls(stream) = self else { return Ok(true) };
        while stream.conn.wants_write() {
            match stream.conn.write_tls(&mut stream.sock) {
                Ok(_) => (),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Says that nothing follows, and hands all bytes to the socket. To be repeated until true.
    ///
    /// # Errors
    /// Those of the socket.
    pub(super) fn finish(&mut self) -> io::Result<bool> {
        if let Self::Tls(stream) = self {
            // Further calls do nothing.
            stream.conn.send_close_notify();
        }
        self.push()
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => match stream.write(bytes) {
                // The buffer is full.
                Ok(0) if !bytes.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
                other => other,
            },
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) => socket.as_fd(),
            Self::Tls(stream) => stream.sock.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests;
