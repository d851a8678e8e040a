//! What a connection with `version = 1` may not contain.

use crate::config::{ChildConfig, ChildMode, Childless, Connection, Encap, PerCpuSas, TsConfig};
use crate::proposal::ChildProtocol;
use crate::sa::Role;

use super::configuring::user;
use super::method::{Method, XAuthSide};
use super::proposal::{Phase1, Phase2Terms};
use super::quick::PAIRS_MAX;
use super::selectors::is_expressible;

/// A part of a connection that IKEv1 cannot express, or that is not implemented for it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Unsupported {
    /// Section of the child that contains the key.
    pub child: Option<String>,
    /// Key that is to change; `version` where it is not one alone.
    pub key: &'static str,
    /// Reason, with the child where it is about one.
    pub message: String,
    /// What to write instead.
    pub help: &'static str,
}

impl Unsupported {
    fn version(message: String, help: &'static str) -> Self {
        Self { child: None, key: "version", message, help }
    }
}

/// A key of IKEv2 that would be ignored.
fn without_effect(connection: &Connection) -> Option<Unsupported> {
    let fault = |key, message: &str, help| Some(Unsupported { child: None, key, message: message.to_owned(), help });
    if connection.childless != Childless::Allow {
        let message = "an ISAKMP SA of IKEv1 never contains a Child SA";
        return fault("childless", message, "remove it, or write 'version = 2'");
    }
    if connection.encap == Encap::Auto {
        let message = "'auto' is agreed by a vendor ID of IKEv2";
        return fault("encap", message, "write yes or no, or 'version = 2'");
    }
    if connection.ocsp.requests() {
        let message = "IKEv1 cannot request OCSP responses of the peer";
        return fault("ocsp", message, "write 'ocsp = reply' and have them fetched, or write 'version = 2'");
    }
    let padded = connection.children.iter().find(|child| child.tfc_padding > 0)?;
    Some(Unsupported {
        child: Some(padded.name.clone()),
        key: "tfc_padding",
        message: "IKEv1 cannot negotiate TFC padding".to_owned(),
        help: "remove it, or write 'version = 2'",
    })
}

/// The first part of a connection that IKEv1 cannot express, or that is not implemented for it.
pub fn unsupported(connection: &Connection) -> Option<Unsupported> {
    let fault = |message: &str, help| Some(Unsupported::version(message.to_owned(), help));
    if let Some(without_effect) = without_effect(connection) {
        return Some(without_effect);
    }
    let methods = Method::of(connection, Role::Initiator, None);
    if methods.is_empty() {
        return fault(
            "one method of IKEv1 authenticates both ends, by shared keys or signatures, with XAuth of one end",
            "write 'auth = psk' or 'auth = pubkey' in 'local' and in 'remote', and 'auth = xauth' in 'local-2' or \
             'remote-2'; or 'version = 2'",
        );
    }
    if XAuthSide::of(connection) == Some(XAuthSide::Local) && user(connection).is_none() {
        return fault("XAuth needs the name of the user", "write 'xauth_id' beside 'auth = xauth'");
    }
    if !connection.vips.is_empty() && !connection.pools.is_empty() {
        return fault("a peer of IKEv1 requests virtual addresses or gives them", "remove 'vips' or 'pools'");
    }
    if connection.ppk_id.is_some() {
        return fault("a PPK is part of IKEv2", "remove 'ppk_id', or write 'version = 2'");
    }
    if Phase1::of(&connection.proposals, &methods).is_empty() {
        return fault(
            "IKEv1 cannot express any of the proposals",
            "write a CBC cipher, a hash and a group of 'modp' or 'ecp' or 'x25519', for example 'proposals = aes128-sha256-modp2048'",
        );
    }
    let sections = connection.children.iter().filter(|child| !matches!(child.mode, ChildMode::Pass | ChildMode::Drop));
    sections.filter_map(|child| of_child(connection, child)).next()
}

fn of_child(connection: &Connection, child: &ChildConfig) -> Option<Unsupported> {
    let fault = |message: &str, help| Some(Unsupported::version(format!("child '{}': {message}", child.name), help));
    if child.mode == ChildMode::Beet {
        return fault("IKEv1 has no BEET mode", "write 'mode = tunnel' or 'mode = transport'");
    }
    if child.mode == ChildMode::Iptfs {
        return fault("IKEv1 has no IP-TFS", "write 'mode = tunnel', or 'version = 2'");
    }
    let has = |protocol| child.proposals.iter().any(|proposal| proposal.protocol == protocol);
    if has(ChildProtocol::Eesp) {
        return fault("IKEv1 has no EESP", "remove 'eesp_proposals'");
    }
    if has(ChildProtocol::Esp) && has(ChildProtocol::Ah) {
        return fault("IKEv1 is supported for ESP or AH alone", "remove 'esp_proposals' or 'ah_proposals'");
    }
    if has(ChildProtocol::Ah) && connection.encap.is_forced() {
        return fault("AH does not go in UDP", "remove 'encap', or write 'esp_proposals'");
    }
    if Phase2Terms::of(&child.proposals, child.mode, child.time.life, None).is_empty() {
        return fault(
            "IKEv1 cannot express any of its proposals",
            "write for example 'esp_proposals = aes128gcm16' or 'aes128-sha256-modp2048'",
        );
    }
    if child.per_cpu_sas != PerCpuSas::No {
        return fault("SAs for CPUs are part of IKEv2", "remove 'per_cpu_sas'");
    }
    if connection.peer_is_destination(child) {
        return fault(
            "a trap with any peer is supported for IKEv2 only",
            "write the address of the peer in 'remote_addrs', or 'version = 2'",
        );
    }
    let mut selectors = child.local_ts.iter().chain(&child.remote_ts);
    if selectors.any(|ts| !is_expressible(ts.ports)) {
        return fault("a selector of IKEv1 has one port or all", "write one port, or none");
    }
    let alone = |one: &[TsConfig], other: &[TsConfig]| {
        one.iter().find(|ts| !other.iter().any(|counterpart| is_pair(ts, counterpart))).copied()
    };
    if let Some(alone) = alone(&child.local_ts, &child.remote_ts).or_else(|| alone(&child.remote_ts, &child.local_ts)) {
        let text = format!("the other side has no selector with the address family and protocol of '{alone}'");
        return fault(&text, "write the same protocol on both sides, or on one; or remove the selector");
    }
    let pairs_of = |local| child.remote_ts.iter().filter(move |remote| is_pair(local, remote)).count();
    let pairs: usize = child.local_ts.iter().map(pairs_of).sum();
    if pairs > PAIRS_MAX {
        let text = format!("its selectors make {pairs} pairs, each of which is a quick mode; {PAIRS_MAX} is the limit");
        return fault(&text, "write fewer or wider selectors, or several children");
    }
    None
}

/// Returns whether a quick mode may have these selectors. The address family of `dynamic` is known
/// with the addresses of the hosts.
fn is_pair(local: &TsConfig, remote: &TsConfig) -> bool {
    let family = |ts: &TsConfig| ts.addrs.map(|addrs| addrs.is_v6());
    family(local).zip(family(remote)).is_none_or(|(local, remote)| local == remote)
        && local.proto.zip(remote.proto).is_none_or(|(local, remote)| local == remote)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use wire::IpProto;

    use super::*;
    use crate::config::{AuthMethod, Ocsp, Version};
    use crate::proposal::{ChildProposal, IkeProposal};
    use crate::testkit::{auth, connection, connection_v1, ts};

    #[test]
    fn what_is_not_supported_has_a_remedy() {
        assert_eq!(unsupported(&connection_v1(1, 2)), None);
        let child = |change: &dyn Fn(&mut ChildConfig)| {
            let mut child = ChildConfig::clone(&connection_v1(1, 2).children[0]);
            change(&mut child);
            Connection { children: vec![Arc::new(child)], ..connection_v1(1, 2) }
        };
        let esp = |protocol, text: &str| vec![ChildProposal::parse(protocol, text).expect("a proposal")];
        for (connection, message) in [
            (
                Connection { local: vec![auth(AuthMethod::PublicKey(Vec::new()), "a")], ..connection_v1(1, 2) },
                "one method",
            ),
            (Connection { version: Version::V1, ..connection(1, 2) }, "any of the proposals"),
            (
                Connection {
                    proposals: vec![IkeProposal::parse("aes128gcm16-prfsha256-x25519").expect("a proposal")],
                    ..connection_v1(1, 2)
                },
                "any of the proposals",
            ),
            (
                Connection {
                    pools: vec!["pool".to_owned()],
                    vips: vec![std::net::Ipv4Addr::UNSPECIFIED.into()],
                    ..connection_v1(1, 2)
                },
                "virtual addresses",
            ),
            (
                Connection {
                    local: vec![auth(AuthMethod::Psk, "%any"), auth(AuthMethod::XAuth, "%any")],
                    ..connection_v1(1, 2)
                },
                "name of the user",
            ),
            (Connection { childless: Childless::Never, ..connection_v1(1, 2) }, "never contains"),
            (Connection { encap: Encap::Auto, ..connection_v1(1, 2) }, "vendor ID of IKEv2"),
            (Connection { ocsp: Ocsp::Both, ..connection_v1(1, 2) }, "OCSP"),
            (child(&|child| child.tfc_padding = 1400), "TFC padding"),
            (child(&|child| child.mode = ChildMode::Beet), "BEET"),
            (child(&|child| child.proposals = esp(ChildProtocol::Ah, "aescmac")), "its proposals"),
            (child(&|child| child.proposals.extend(esp(ChildProtocol::Ah, "sha256"))), "ESP or AH"),
            (child(&|child| child.proposals = esp(ChildProtocol::Eesp, "aes128gcm16")), "no EESP"),
            (
                Connection { encap: Encap::Yes, ..child(&|child| child.proposals = esp(ChildProtocol::Ah, "sha256")) },
                "in UDP",
            ),
            (child(&|child| child.proposals = esp(ChildProtocol::Esp, "chacha20poly1305")), "its proposals"),
            (child(&|child| child.per_cpu_sas = PerCpuSas::Yes), "CPUs"),
            (
                child(&|child| {
                    let ports = wire::PortRange { start: 1, end: 2 };
                    child.local_ts = vec![crate::config::TsConfig { ports, ..ts("10.1.0.0/16") }];
                }),
                "one port",
            ),
            (
                child(&|child| child.local_ts = vec![ts("2001:db8::/32")]),
                "address family and protocol of '2001:db8::/32'",
            ),
            (
                child(&|child| {
                    let of = |proto| crate::config::TsConfig { proto: Some(proto), ..ts("10.1.0.0/16") };
                    (child.local_ts, child.remote_ts) = (vec![of(IpProto::TCP)], vec![of(IpProto::UDP)]);
                }),
                "address family and protocol",
            ),
            (
                child(&|child| {
                    let networks = |count: u8| (0..count).map(|n| ts(&format!("10.{n}.0.0/16"))).collect();
                    (child.local_ts, child.remote_ts) = (networks(13), networks(5));
                }),
                "65 pairs",
            ),
        ] {
            let found = unsupported(&connection).unwrap_or_else(|| panic!("{message} is not refused"));
            assert!(found.message.contains(message) && !found.help.is_empty(), "{}", found.message);
        }
    }
}
