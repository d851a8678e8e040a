//! Endpoints of the measurement and the memory between them.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crypto::ike::{PrivateKey, PublicKey, SignatureScheme};
use ike::config::*;
use ike::identity::{IdPattern, Identity};
use ike::keymat::auth_octets;
use ike::output::{
    ChildId, CredentialError, CredentialRequest, CredentialResponse, Event, IkeId, Output, SignRequest, Signed,
    Transmit, Verified, VerifyRequest,
};
use ike::proposal::{ChildProposal, ChildProtocol, IkeProposal};
use ike::{Endpoint, Settings};
use wire::ike::{Auth as AuthPayload, AuthMethodId, CertEncoding};
use wire::{AddrRange, PortRange};

use crate::random::Random;

/// Address of the responder.
pub(super) const GATEWAY: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 500);

/// An endpoint with randomness of the operating system.
pub(super) type Host = Endpoint<Random>;

/// Credentials and trust anchors of a host.
pub(super) struct Credentials {
    /// Identity; the owners of one set may also have others.
    pub(super) name: String,
    /// Both hosts authenticate with this key instead of signatures.
    pub(super) shared: Option<Vec<u8>>,
    pub(super) key: PrivateKey,
    /// Certificates that go with each signature, DER.
    pub(super) certs: Vec<Vec<u8>>,
    pub(super) peer: PublicKey,
}

/// The key pair of RFC 6979 §A.2.5 for both hosts: the owner does not affect the cost.
pub(super) static SHARED: LazyLock<Credentials> = LazyLock::new(|| {
    const X: &str = "c9afa9d845ba75166b5c215767b1d6934e50c3db36e89b127b8a622b120f6721";
    const U: &str = "60fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6\
                     7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299";
    let bytes = |hex: &str| -> Vec<u8> {
        let digits = hex.as_bytes().chunks_exact(2);
        digits.map(|two| u8::from_str_radix(str::from_utf8(two).expect("ASCII"), 16).expect("hex")).collect()
    };
    // ECPrivateKey (RFC 5915) on the curve prime256v1.
    let curve = [0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    let parts = [&[0x02, 1, 1, 0x04, 32][..], &bytes(X), &curve, &[0xa1, 0x44, 0x03, 0x42, 0x00, 0x04], &bytes(U)];
    let body = parts.concat();
    let key = PrivateKey::from_der(&[&[0x30, body.len() as u8][..], &body].concat()).expect("the key of the RFC");
    let peer = key.public().clone();
    Credentials { name: String::new(), shared: None, key, certs: Vec::new(), peer }
});

/// Code of a shared key (RFC 7296 §2.15).
fn code(secret: &[u8], prf: crypto::ike::Prf, octets: &[u8]) -> Vec<u8> {
    prf.compute(&prf.compute(secret, &[b"Key Pad for IKEv2"]), &[octets]).to_vec()
}

/// An initiator with its one connection.
pub(super) struct Client {
    pub(super) host: Host,
    /// The IKE SA and the Child SA that it has.
    ike: Option<IkeId>,
    child: Option<ChildId>,
}

/// The responder of every client.
pub(super) fn gateway() -> Host {
    let mut host = Endpoint::new(Settings::default(), Random(crypto::random));
    let now = Instant::now();
    host.local_addresses(now, &[GATEWAY.ip()]);
    let mut one = connection("gateway", "gateway.test");
    one.remote[0].id = IdPattern::Any;
    host.load(now, vec![Arc::new(one)]);
    host
}

/// The client of a number below 2²⁴.
pub(super) fn client(number: usize) -> Client {
    client_of(number, connection("client", &format!("c{number}.test")), "gateway.test")
}

/// The client of a number below 2²⁴ for a gateway of that name. It has the identity of `who`, and
/// inside the tunnel the address of its number.
pub(super) fn client_named(number: usize, who: &Credentials, gateway: &str) -> Client {
    let mut one = connection("client", &who.name);
    if who.shared.is_some() {
        one.local[0].method = AuthMethod::Psk;
        one.remote[0].method = AuthMethod::Psk;
    }
    one.unique = Unique::Never;
    one.send_cert = SendCert::Always;
    let mut child = child();
    let SocketAddr::V4(own) = address(number) else { unreachable!("clients have IPv4 addresses") };
    let inner = IpAddr::from(std::net::Ipv4Addr::from_bits(own.ip().to_bits() ^ 0x6e00_0000));
    child.local_ts[0].addrs = Some(AddrRange { start: inner, end: inner });
    child.remote_ts[0].addrs = Some("10.200.0.0/16".parse().expect("a network"));
    one.children = vec![Arc::new(child)];
    client_of(number, one, gateway)
}

fn client_of(number: usize, mut one: Connection, gateway: &str) -> Client {
    let mut host = Endpoint::new(Settings::default(), Random(crypto::random));
    let now = Instant::now();
    host.local_addresses(now, &[address(number).ip()]);
    one.remote_addrs = vec![AddrRange { start: GATEWAY.ip(), end: GATEWAY.ip() }.into()];
    one.remote[0].id = IdPattern::Like(Identity::parse(gateway).expect("an identity"));
    host.load(now, vec![Arc::new(one)]);
    Client { host, ike: None, child: None }
}

/// Address of the client with a number below 2²⁴.
pub(super) fn address(number: usize) -> SocketAddr {
    let [_, a, b, c] = (number as u32).to_be_bytes();
    ([10, a, b, c], 500).into()
}

fn connection(name: &str, own: &str) -> Connection {
    let auth = |id: IdPattern| Auth::new(AuthMethod::PublicKey(Vec::new()), id);
    Connection {
        proposals: vec![IkeProposal::parse("aes128gcm16-prfsha256-x25519").expect("a proposal")],
        send_certreq: false,
        send_cert: SendCert::Never,
        rekey_time: Duration::from_secs(14_400),
        over_time: Duration::from_secs(1_440),
        rand_time: Duration::from_secs(1_440),
        local: vec![auth(IdPattern::Like(Identity::parse(own).expect("an identity")))],
        remote: vec![auth(IdPattern::Any)],
        children: vec![Arc::new(child())],
        ..Connection::new(name)
    }
}

fn child() -> ChildConfig {
    ChildConfig {
        proposals: vec![ChildProposal::parse(ChildProtocol::Esp, "aes128gcm16-x25519").expect("a proposal")],
        local_ts: vec![TsConfig { addrs: None, proto: None, ports: PortRange::ANY }],
        remote_ts: vec![TsConfig { addrs: None, proto: None, ports: PortRange::ANY }],
        time: Life {
            rekey: Duration::from_secs(3_600),
            life: Duration::from_secs(3_960),
            rand: Duration::from_secs(360),
        },
        ..ChildConfig::new("net")
    }
}

/// Executes the outputs of an endpoint except transmissions; datagrams and events come back.
pub(super) fn pump(host: &mut Host, now: Instant, sent: &mut VecDeque<Transmit>, events: &mut Vec<Output>) {
    pump_with(host, &SHARED, now, sent, events);
}

/// The same for a host with these credentials.
pub(super) fn pump_with(
    host: &mut Host,
    who: &Credentials,
    now: Instant,
    sent: &mut VecDeque<Transmit>,
    events: &mut Vec<Output>,
) {
    while let Some(output) = host.poll() {
        match output {
            Output::Transmit(transmit) => sent.push_back(transmit),
            Output::RequestCredentials(request_id, question) => {
                let answer = answer(who, &question);
                host.handle_credentials(now, request_id, answer);
            }
            Output::Event(Event::Log { .. } | Event::Count(_)) => (),
            output => events.push(output),
        }
    }
}

fn answer(who: &Credentials, question: &CredentialRequest) -> CredentialResponse {
    match question {
        CredentialRequest::Sign(request) => CredentialResponse::Signed(sign(who, request)),
        CredentialRequest::Verify(request) => CredentialResponse::Verified(verify(who, request)),
        CredentialRequest::TrustedAuthorities(_) => CredentialResponse::TrustedAuthorities(Vec::new()),
        _ => unreachable!("the connections of the measurement authenticate with signatures"),
    }
}

fn sign(who: &Credentials, request: &SignRequest) -> Result<Signed, CredentialError> {
    let refuse = |text: &str| CredentialError(text.to_owned());
    let local_id = request.local_id.clone().ok_or_else(|| refuse("no identity"))?;
    let octets = auth_octets(&request.message_and_nonce, request.prf, &request.sk_p, &local_id, &request.int_auth);
    if let Some(secret) = &who.shared {
        let auth = code(secret, request.prf, &octets);
        return Ok(Signed { local_id, method: AuthMethodId::PSK, auth, certs: Vec::new() });
    }
    let hashes: Vec<crypto::ike::HashId> = request.peer_hashes.iter().map(|hash| crypto::ike::HashId(hash.0)).collect();
    let scheme = who.key.best_scheme(&hashes).ok_or_else(|| refuse("no scheme"))?;
    let signature = who.key.sign(scheme, &[&octets]).map_err(|error| CredentialError(error.to_string()))?;
    let algorithm = scheme.algorithm_identifier();
    let auth = [&[algorithm.len() as u8][..], algorithm, &signature].concat();
    let certs = who.certs.iter().map(|der| (CertEncoding::X509_SIGNATURE, der.clone())).collect();
    Ok(Signed { local_id, method: AuthMethodId::DIGITAL_SIGNATURE, auth, certs })
}

fn verify(who: &Credentials, request: &VerifyRequest) -> Result<Verified, CredentialError> {
    if let Some(secret) = &who.shared {
        let right = code(secret, request.prf, &request.octets) == request.auth;
        let verified = Verified { connection: request.candidates[0].clone(), valid_for: None, name: None };
        return right.then_some(verified).ok_or(CredentialError("another shared key".to_owned()));
    }
    let auth = AuthPayload { method: request.method, data: &request.auth };
    let (algorithm, signature) = auth.digital_signature().map_err(|error| CredentialError(error.to_string()))?;
    let scheme =
        SignatureScheme::from_algorithm_identifier(algorithm).ok_or(CredentialError("which scheme?".to_owned()))?;
    who.peer.verify(scheme, &[&request.octets], signature).map_err(|error| CredentialError(error.to_string()))?;
    Ok(Verified { connection: request.candidates[0].clone(), valid_for: None, name: None })
}

/// A responder and its clients, connected directly in memory.
pub(super) struct Net {
    pub(super) gateway: Host,
}

impl Net {
    pub(super) fn new(gateway: Host) -> Self {
        Self { gateway }
    }

    /// An IKE SA with its Child SA comes up.
    pub(super) fn bring_up(&mut self, mut client: Client) -> Client {
        client.host.initiate(Instant::now(), "client", Some("net"), 1).expect("the connection is loaded");
        self.exchange(&mut client);
        assert!(client.ike.is_some() && client.child.is_some(), "an IKE SA came up in memory");
        client
    }

    /// Its IKE SA or its Child SA is rekeyed.
    pub(super) fn rekey(&mut self, client: &mut Client, ike: bool) {
        let now = Instant::now();
        let (Some(sa), Some(child)) = (client.ike, client.child) else { return };
        let started =
            if ike { client.host.rekey_ike(now, sa, false, 2) } else { client.host.rekey_child(now, child, 2) };
        assert!(started && self.exchange(client), "a rekeying ended well");
    }

    /// Exchanges datagrams until both sides are idle; returns whether a command succeeded.
    fn exchange(&mut self, client: &mut Client) -> bool {
        let (mut to_gateway, mut to_client, mut done) = (VecDeque::new(), VecDeque::new(), false);
        loop {
            let (now, mut events, mut there) = (Instant::now(), Vec::new(), Vec::new());
            pump(&mut client.host, now, &mut to_gateway, &mut events);
            for event in events {
                done |= client.hear(event);
            }
            pump(&mut self.gateway, now, &mut to_client, &mut there);
            if let Some(Transmit { local, remote, datagram, .. }) = to_gateway.pop_front() {
                self.gateway.handle_datagram(now, remote, local, &datagram);
            } else if let Some(Transmit { local, remote, datagram, .. }) = to_client.pop_front() {
                client.host.handle_datagram(now, remote, local, &datagram);
            } else {
                return done;
            }
        }
    }
}

impl Client {
    /// Begins its IKE SA with the Child SA.
    pub(super) fn initiate(&mut self, now: Instant) {
        self.host.initiate(now, "client", Some("net"), 1).expect("the connection is loaded");
    }

    /// Returns whether a command ended well.
    pub(super) fn hear(&mut self, output: Output) -> bool {
        match output {
            Output::Event(Event::IkeUp(ike)) => self.ike = Some(ike),
            Output::Install(child) => self.child = Some(child.id),
            Output::Event(Event::CommandDone(_, result)) => return result.is_ok(),
            _ => (),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ike_sas_come_up_and_are_rekeyed() {
        let mut net = Net::new(gateway());
        let mut clients: Vec<Client> = (0..3).map(|number| net.bring_up(client(number))).collect();
        let before = clients[1].child;
        net.rekey(&mut clients[1], false);
        net.rekey(&mut clients[1], true);
        net.rekey(&mut clients[1], false);
        assert_ne!(clients[1].child, before);
        // A replaced IKE SA still responds for a while.
        let up = net.gateway.ike_sas().filter(|sa| sa.state == ike::IkeState::Established);
        assert_eq!(up.map(|sa| sa.children.len()).collect::<Vec<_>>(), [1; 3]);
    }
}
