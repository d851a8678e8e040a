//! What a connection with `version = 1` may not contain.

use crate::config::{AuthMethod, ChildConfig, ChildMode, Connection, PerCpuSas};
use crate::proposal::ChildProtocol;

use super::proposal::{Phase1, Phase2Terms};
use super::selectors::is_expressible;

/// A part of a connection that IKEv1 cannot express, or that is not implemented for it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Unsupported {
    /// Reason, with the child where it is about one.
    pub message: String,
    /// What to write instead.
    pub help: &'static str,
}

/// The first part of a connection that IKEv1 cannot express, or that is not implemented for it.
pub fn unsupported(connection: &Connection) -> Option<Unsupported> {
    let fault = |message: &str, help| Some(Unsupported { message: message.to_owned(), help });
    let psk = |rounds: &[crate::config::Auth]| matches!(rounds, [auth] if auth.method == AuthMethod::Psk);
    if !psk(&connection.local) || !psk(&connection.remote) {
        return fault(
            "IKEv1 is supported with shared keys only",
            "write 'auth = psk' in one section 'local' and one section 'remote', or 'version = 2'",
        );
    }
    if !connection.vips.is_empty() || !connection.pools.is_empty() {
        return fault(
            "IKEv1 is supported without virtual addresses",
            "remove 'vips' and 'pools', or write 'version = 2'",
        );
    }
    if connection.ppk_id.is_some() {
        return fault("a PPK is part of IKEv2", "remove 'ppk_id', or write 'version = 2'");
    }
    if Phase1::of(&connection.proposals).is_empty() {
        return fault(
            "IKEv1 cannot express any of the proposals",
            "write a CBC cipher, a hash and a group of 'modp' or 'ecp', for example 'proposals = aes128-sha256-modp2048'",
        );
    }
    let sections = connection.children.iter().filter(|child| !matches!(child.mode, ChildMode::Pass | ChildMode::Drop));
    sections.filter_map(|child| of_child(connection, child)).next()
}

fn of_child(connection: &Connection, child: &ChildConfig) -> Option<Unsupported> {
    let fault = |message: &str, help| Some(Unsupported { message: format!("child '{}': {message}", child.name), help });
    if child.mode == ChildMode::Beet {
        return fault("IKEv1 has no BEET mode", "write 'mode = tunnel' or 'mode = transport'");
    }
    if child.proposals.iter().any(|proposal| proposal.protocol != ChildProtocol::Esp) {
        return fault("IKEv1 is supported for ESP only", "remove 'ah_proposals' and 'eesp_proposals'");
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
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::Version;
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
            (Connection { local: vec![auth(AuthMethod::PublicKey(Vec::new()), "a")], ..connection_v1(1, 2) }, "shared"),
            (Connection { version: Version::V1, ..connection(1, 2) }, "any of the proposals"),
            (
                Connection {
                    proposals: vec![IkeProposal::parse("aes128-sha256-x25519").expect("a proposal")],
                    ..connection_v1(1, 2)
                },
                "any of the proposals",
            ),
            (Connection { pools: vec!["pool".to_owned()], ..connection_v1(1, 2) }, "virtual addresses"),
            (child(&|child| child.mode = ChildMode::Beet), "BEET"),
            (child(&|child| child.proposals = esp(ChildProtocol::Ah, "sha256")), "ESP only"),
            (child(&|child| child.proposals = esp(ChildProtocol::Esp, "chacha20poly1305")), "its proposals"),
            (child(&|child| child.per_cpu_sas = PerCpuSas::Yes), "CPUs"),
            (
                child(&|child| {
                    let ports = wire::PortRange { start: 1, end: 2 };
                    child.local_ts = vec![crate::config::TsConfig { ports, ..ts("10.1.0.0/16") }];
                }),
                "one port",
            ),
        ] {
            let found = unsupported(&connection).unwrap_or_else(|| panic!("{message} is not refused"));
            assert!(found.message.contains(message) && !found.help.is_empty(), "{}", found.message);
        }
    }
}
