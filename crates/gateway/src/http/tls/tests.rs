//! Responses over TLS, to clients of the same library and to others.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;
use crate::http::{Answer, Body, Request, Response, Server, Service};
use crate::waker::Waker;

/// A folder with `cert.pem` and `key.pem`, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weir-tls-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Writes a new certificate with its key.
    fn issue(&self) -> (TlsFiles, CertificateDer<'static>) {
        let made = rcgen::generate_simple_self_signed(vec!["gw.example".to_owned()]).unwrap();
        let files = TlsFiles { certificate: self.0.join("cert.pem"), key: self.0.join("key.pem") };
        fs::write(&files.certificate, made.cert.pem()).unwrap();
        fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        (files, made.cert.der().clone())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Answers with as many bytes as the path says.
struct Bytes;

impl Service for Bytes {
    fn answer(&mut self, request: &Request<'_>, _: Instant, _: Instant) -> Answer {
        let length = request.path.trim_start_matches('/').parse().unwrap_or(0);
        let body = Body::Own(vec![b'x'; length]);
        Answer::Whole(Response { status: "200 OK", kind: "text/plain", fields: String::new(), body })
    }
}

fn started(tls: &Tls) -> Server {
    Server::start("metrics", "127.0.0.1:0".parse().unwrap(), Some(tls.clone()), Waker::new().unwrap(), Bytes).unwrap()
}

fn socket(server: &Server) -> TcpStream {
    let socket = TcpStream::connect(server.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

/// The response to a client that trusts `authority`; all of it, with the end that TLS announces.
fn get(server: &Server, authority: &CertificateDer<'static>, length: usize) -> io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connection = ClientConnection::new(Arc::new(config), "gw.example".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(connection, socket(server));
    stream.write_all(format!("GET /{length} HTTP/1.1\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn responses_of_any_length_arrive_whole() {
    let folder = Folder::new();
    let (files, authority) = folder.issue();
    let server = started(&Tls::new(files.read().unwrap()));
    for length in [0, 1, BUFFER - 1, BUFFER, 4 << 20] {
        // An end without close_notify would be an error here.
        let answer = get(&server, &authority, length).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{length}");
        assert_eq!(answer.split_once("\r\n\r\n").unwrap().1.len(), length);
    }
}

#[test]
fn what_is_not_tls_gets_nothing() {
    let folder = Folder::new();
    let (files, authority) = folder.issue();
    let server = started(&Tls::new(files.read().unwrap()));
    let mut plain = socket(&server);
    plain.write_all(b"GET /5 HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.windows(4).any(|four| four == b"HTTP"), "{answer:?}");
    // The first bytes of a handshake, then silence: others are served meanwhile.
    let mut silent = socket(&server);
    silent.write_all(&[22, 3, 1, 2]).unwrap();
    assert!(get(&server, &authority, 5).unwrap().ends_with("\r\n\r\nxxxxx"));
}

#[test]
fn a_new_certificate_is_for_the_next_connection() {
    let folder = Folder::new();
    let (files, before) = folder.issue();
    let tls = Tls::new(files.read().unwrap());
    let server = started(&tls);
    assert!(get(&server, &before, 1).is_ok());
    let (files, after) = folder.issue();
    assert!(get(&server, &after, 1).is_err(), "not before it is read");
    tls.replace(files.read().unwrap());
    assert!(get(&server, &after, 1).is_ok());
    assert!(get(&server, &before, 1).is_err());
}

#[test]
fn unusable_files_are_named() {
    let folder = Folder::new();
    let (files, _) = folder.issue();
    let refused = |files: &TlsFiles, of_key: bool, why: &str| {
        let (is_key, text) = files.read().unwrap_err();
        assert!(is_key == of_key && text.contains(why), "{is_key} {text}");
    };
    refused(&TlsFiles { certificate: folder.0.join("none"), ..files.clone() }, false, "none: No such file");
    refused(&TlsFiles { key: folder.0.join("none"), ..files.clone() }, true, "none: No such file");
    refused(&TlsFiles { certificate: files.key.clone(), ..files.clone() }, false, "no certificate");
    refused(&TlsFiles { key: files.certificate.clone(), ..files.clone() }, true, "no private key without passphrase");
    let other = Folder::new();
    let (others, _) = other.issue();
    refused(&TlsFiles { key: others.key.clone(), ..files }, true, "key.pem with");
}
