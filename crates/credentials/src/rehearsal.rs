//! A rehearsal of authentication for `weir check`: the daemon's own functions are called with the
//! configured identities and a peer that accepts everything, so that a fault has the sentence that
//! the daemon would log when a packet comes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crypto::ike::{Prf, Secret};
use ike::config::{AuthMethod, Connection, EapType, Host, Version};
use ike::output::{Path, SignRequest};

use super::shared::{self, SharedKind};
use super::{Store, sign};

/// Faults that would prevent this host and its peer from authenticating each other, one line each.
pub fn faults(store: &Store, connection: &Arc<Connection>, now: Duration) -> Vec<String> {
    let name = &connection.name;
    let mut faults = Vec::new();
    for (round, auth) in connection.local.iter().enumerate() {
        let why = match &auth.method {
            // The peer's identity decides which secret it is; it must be one.
            AuthMethod::Psk if !names_peer(connection, round) => no_secret(store),
            AuthMethod::PublicKey(_) if connection.version == Version::V1 => {
                sign::keys_v1(store, connection, now).refusal.map(|refusal| refusal.0)
            }
            AuthMethod::XAuth => no_password(store, connection, round),
            AuthMethod::Psk | AuthMethod::PublicKey(_) => {
                sign::sign(store, &request(connection, round), now).err().map(|refusal| refusal.0)
            }
            AuthMethod::Eap(Some(EapType::MsChapV2 | EapType::Md5)) => no_password(store, connection, round),
            _ => None,
        };
        faults.extend(why.map(|why| format!("connections.{name}.local: {why}")));
    }
    for auth in &connection.remote {
        let why = match &auth.method {
            AuthMethod::Psk if !connection.local.iter().any(|auth| auth.method == AuthMethod::Psk) => no_secret(store),
            AuthMethod::PublicKey(_) | AuthMethod::Eap(Some(EapType::Tls))
                if auth.certs.is_empty() && auth.cacerts.is_empty() && auth.pubkeys.is_empty() =>
            {
                let none = store.trust().anchors.is_empty();
                none.then(|| "no CA certificate, so every peer is refused; put one into x509ca".to_owned())
            }
            _ => None,
        };
        faults.extend(why.map(|why| format!("connections.{name}.remote: {why}")));
    }
    faults
}

/// Shared keys that can be guessed, by the names of their sections.
pub fn weak_secrets(store: &Store) -> Vec<String> {
    let weak = store.shared().filter(|shared| shared.kind == SharedKind::Ike && shared.is_weak());
    weak.map(|shared| format!("secrets.{}: {}", super::name::printable(&shared.id), shared::WEAK)).collect()
}

fn names_peer(connection: &Connection, round: usize) -> bool {
    // The address of a name is not resolved here.
    let one = |hosts: &[Host]| matches!(hosts, [Host::Range(range)] if range.start == range.end);
    connection.remote.get(round).is_some_and(|auth| auth.id.exact().is_some()) || one(&connection.remote_addrs)
}

fn no_secret(store: &Store) -> Option<String> {
    let none = !store.shared().any(|shared| shared.kind == SharedKind::Ike);
    none.then(|| "no shared key; add a section 'ike' to 'secrets'".to_owned())
}

fn no_password(store: &Store, connection: &Connection, round: usize) -> Option<String> {
    let auth = connection.local.get(round)?;
    let named = auth.eap_id.as_ref().and_then(|id| id.exact());
    let user = named.or_else(|| auth.id.exact()).cloned()?;
    let kinds = [SharedKind::Eap, SharedKind::Ntlm];
    let found = shared::of_user(store.shared(), &kinds, std::slice::from_ref(&user)).is_some();
    let user = super::name::show_id(&user);
    (!found).then(|| format!("no password for '{user}'; add a section 'eap' to 'secrets' with 'id = {user}'"))
}

/// Signature request for a peer that accepts every hash and names no CA.
fn request(connection: &Arc<Connection>, round: usize) -> SignRequest {
    let address = |hosts: &[Host], port| {
        let first = match hosts.first() {
            Some(Host::Range(range)) => range.start,
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        SocketAddr::new(first, port)
    };
    SignRequest {
        connection: Arc::clone(connection),
        round,
        v1: None,
        local_id: None,
        remote_id: None,
        path: Path {
            local: address(&connection.local_addrs, connection.local_port),
            remote: address(&connection.remote_addrs, connection.remote_port),
            encap: false,
        },
        prf: Prf::HmacSha256,
        message_and_nonce: Vec::new(),
        sk_p: Secret::from_slice(&[0; 32]),
        int_auth: Vec::new(),
        peer_hashes: crypto::ike::HashId::OFFERED.iter().map(|hash| wire::ike::HashId(hash.0)).collect(),
        peer_authorities: Vec::new(),
        peer_ocsp: false,
        eap_msk: None,
    }
}
