//! Shared by the examples: a connection with a pre-shared key, and the responses of its holder.

use std::net::IpAddr;
use std::sync::Arc;

use weir_ike::config::{Auth, AuthMethod, ChildConfig, Connection, TsConfig};
use weir_ike::crypto::ike::Secret;
use weir_ike::identity::{IdPattern, Identity};
use weir_ike::keymat::{auth_octets, psk_auth};
use weir_ike::output::{CredentialError, CredentialRequest, CredentialResponse, Signed, Verified};
use weir_ike::proposal::{ChildProposal, ChildProtocol, IkeProposal};
use weir_ike::wire::ike::AuthMethodId;
use weir_ike::wire::{AddrRange, PortRange};

/// The pre-shared key of both ends. A real one has 256 bits of randomness.
const PSK: &[u8] = b"not a good key, because it is in the source";

/// One end: its address, its identity, and the network that it protects.
pub(crate) struct End {
    pub(crate) addr: IpAddr,
    pub(crate) id: &'static str,
    pub(crate) network: IpAddr,
}

pub(crate) fn moon() -> End {
    End { addr: [192, 0, 2, 1].into(), id: "moon.example", network: [10, 1, 0, 0].into() }
}

pub(crate) fn sun() -> End {
    End { addr: [192, 0, 2, 2].into(), id: "sun.example", network: [10, 2, 0, 0].into() }
}

/// The connection `net` from `local` to `remote` with the child `lan`.
pub(crate) fn connection(local: &End, remote: &End) -> Connection {
    let psk = |end: &End| Auth::new(AuthMethod::Psk, IdPattern::Like(Identity::parse(end.id).expect("a name")));
    let network = |end: &End| {
        let addrs = Some(AddrRange::from_cidr(end.network, 16).expect("a prefix length"));
        vec![TsConfig { addrs, proto: None, ports: PortRange::ANY }]
    };
    let one = |addr: IpAddr| vec![AddrRange { start: addr, end: addr }.into()];
    let mut child = ChildConfig::new("lan");
    child.proposals = vec![ChildProposal::parse(ChildProtocol::Esp, "aes128gcm16").expect("a proposal")];
    (child.local_ts, child.remote_ts) = (network(local), network(remote));
    let mut connection = Connection::new("net");
    (connection.local_addrs, connection.remote_addrs) = (one(local.addr), one(remote.addr));
    connection.proposals = vec![IkeProposal::parse("aes128gcm16-prfsha256-x25519").expect("a proposal")];
    (connection.local, connection.remote) = (vec![psk(local)], vec![psk(remote)]);
    connection.children = vec![Arc::new(child)];
    connection
}

/// Answers as a process that holds the credentials would. The endpoint itself never has the key.
pub(crate) fn answer(question: &CredentialRequest) -> CredentialResponse {
    match question {
        CredentialRequest::Sign(request) => {
            let Some(local_id) = request.local_id.clone() else {
                return CredentialResponse::Signed(Err(CredentialError(
                    "the connection names no local identity".into(),
                )));
            };
            let (prf, sk_p) = (request.prf, &request.sk_p);
            let octets = auth_octets(&request.message_and_nonce, prf, sk_p, &local_id, &request.int_auth);
            let auth = psk_auth(prf, PSK, &octets).to_vec();
            CredentialResponse::Signed(Ok(Signed { local_id, method: AuthMethodId::PSK, auth, certs: Vec::new() }))
        }
        CredentialRequest::Verify(request) => {
            // Secrets are compared in constant time.
            let is_right = request.method == AuthMethodId::PSK
                && psk_auth(request.prf, PSK, &request.octets) == Secret::from_slice(&request.auth);
            let admits = |connection: &&Arc<Connection>| {
                let round = connection.remote.get(request.round);
                round.is_some_and(|auth| auth.id.matches(&request.remote_id).is_some())
            };
            let verified = match request.candidates.iter().find(admits).filter(|_| is_right) {
                Some(connection) => Ok(Verified { connection: connection.clone(), valid_for: None, name: None }),
                None => Err(CredentialError("wrong key or identity".into())),
            };
            CredentialResponse::Verified(verified)
        }
        CredentialRequest::TrustedAuthorities(_) => CredentialResponse::TrustedAuthorities(Vec::new()),
        // A connection with pre-shared keys makes no other requests.
        _ => CredentialResponse::Ppk(None),
    }
}
