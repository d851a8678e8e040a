//! Two hosts with a connection of IKEv1, in every variant of phase 1 and of what follows it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{Net, auth, child, connection_v1, id, network, range, ts};
use crate::Settings;
use crate::config::{Auth, AuthMethod, ChildConfig, Connection, Fragmentation, PoolConfig};
use crate::identity::IdPattern;
use crate::proposal::{ChildProposal, ChildProtocol};

/// Variant of a connection between host 1, the client where there is one, and host 2.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct VariantV1 {
    /// Aggressive mode, otherwise main mode.
    pub aggressive: bool,
    /// Signatures, otherwise a shared key.
    pub signatures: bool,
    /// Host 1 authenticates a user by XAuth.
    pub xauth: bool,
    /// Host 1 has a virtual address by Mode Config.
    pub vips: bool,
    /// Host 2 sends the virtual address without a request.
    pub push: bool,
    /// Quick mode has a key exchange.
    pub pfs: bool,
    /// All messages are sent in fragments.
    pub fragments: bool,
}

impl VariantV1 {
    /// The variant of a number; every variant has one below 128.
    pub fn of(number: u8) -> Self {
        let has = |bit: u8| number & 1 << bit != 0;
        Self {
            aggressive: has(0),
            signatures: has(1),
            xauth: has(2),
            vips: has(3),
            push: has(4),
            pfs: has(5),
            fragments: has(6),
        }
    }

    /// Connections of both hosts.
    pub fn connections(&self) -> [Connection; 2] {
        let mut client = connection_v1(1, 2);
        let mut server = connection_v1(2, 1);
        for connection in [&mut client, &mut server] {
            connection.aggressive = self.aggressive;
            connection.pull = !self.push;
            if self.fragments {
                connection.fragmentation = Fragmentation::Force;
            }
            if self.signatures {
                for auth in connection.local.iter_mut().chain(&mut connection.remote) {
                    auth.method = AuthMethod::PublicKey(Vec::new());
                }
            }
        }
        if self.xauth {
            let user = IdPattern::parse("alice").ok();
            client.local.push(Auth { eap_id: user, ..auth(AuthMethod::XAuth, "%any") });
            server.remote.push(auth(AuthMethod::XAuth, "%any"));
        }
        let mut children = [child("net", &network(1), &network(2)), child("net", &network(2), &network(1))];
        if self.vips {
            client.vips = vec![IpAddr::from([0, 0, 0, 0])];
            server.pools = vec!["pool".to_owned()];
            (children[0].local_ts, children[1].remote_ts) = (vec![ts("dynamic")], vec![ts("dynamic")]);
        }
        if self.pfs {
            for child in &mut children {
                child.proposals =
                    ChildProposal::parse(ChildProtocol::Esp, "aes128-sha256-ecp256").into_iter().collect();
            }
        }
        let [of_client, of_server]: [ChildConfig; 2] = children;
        (client.children, server.children) = (vec![Arc::new(of_client)], vec![Arc::new(of_server)]);
        [client, server]
    }

    /// Both hosts, with credentials and `change` applied to each connection.
    pub fn net(&self, seed: u64, change: &dyn Fn(&mut Connection)) -> Net {
        let settings = Settings { aggressive_mode_psk: true, cisco_unity: true, ..Settings::default() };
        let mut net = Net::with_settings(seed, 2, &settings);
        let pool = PoolConfig { name: "pool".to_owned(), addrs: range("10.9.0.0/24"), attributes: Vec::new() };
        net.hosts[1].endpoint.load_pools(vec![pool]);
        for (host, mut connection) in self.connections().into_iter().enumerate() {
            let (local, remote) = (host as u8 + 1, 2 - host as u8);
            let name = |number: u8| id(&format!("host{number}.test"));
            let credentials = &mut net.hosts[host].credentials;
            if self.signatures {
                credentials.with_keys_v1((name(local), local), &[(name(remote), remote)]);
                credentials.certs = vec![vec![local; 300]];
                credentials.rsa = self.xauth;
            }
            credentials.passwords.insert(b"alice".to_vec(), b"a password".to_vec());
            connection.dpd_delay = Duration::from_secs(10);
            change(&mut connection);
            net.load(host, vec![connection]);
        }
        net
    }
}
