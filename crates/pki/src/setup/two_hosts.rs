//! Two equal ends: gateways of two sites, hosts that speak PSP.

use anyhow::ensure;
use clap::{Args, ValueEnum};

use super::question::{ANY, Question, questions};
use super::{Common, Host, Plan, READABLE, START, host, is_address, label, names, networks, target, value};
use crate::profile::{Name, Usage};

/// Options of `weir new site-to-site`.
#[derive(Debug, Args)]
pub struct SiteArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// DNS name or address of gateway A
    #[arg(long, value_name = "HOST")]
    address_a: Option<String>,
    /// Networks behind gateway A
    #[arg(long, value_name = "NETWORK,...")]
    networks_a: Option<String>,
    /// DNS name or address of gateway B; 'any' if it changes or is behind a NAT
    #[arg(long, value_name = "HOST")]
    address_b: Option<String>,
    /// Networks behind gateway B
    #[arg(long, value_name = "NETWORK,...")]
    networks_b: Option<String>,
    #[command(flatten)]
    ids: Ids,
}

/// Options of `weir new host-to-host-psp`.
#[derive(Debug, Args)]
pub struct PspArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// DNS name or address of host A
    #[arg(long, value_name = "HOST")]
    address_a: Option<String>,
    /// DNS name or address of host B
    #[arg(long, value_name = "HOST")]
    address_b: Option<String>,
    #[command(flatten)]
    ids: Ids,
    /// Cipher
    #[arg(long, value_enum, default_value_t = PspCipher::Aes128gcm)]
    cipher: PspCipher,
}

/// Identities.
#[derive(Debug, Args)]
struct Ids {
    /// Identity of A [default: its address if that is a DNS name]
    #[arg(long, value_name = "NAME")]
    id_a: Option<String>,
    /// Identity of B [default: its address if that is a DNS name]
    #[arg(long, value_name = "NAME")]
    id_b: Option<String>,
}

/// Cipher of PSP.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum PspCipher {
    /// AES-128-GCM (version 0)
    Aes128gcm,
    /// AES-256-GCM (version 1)
    Aes256gcm,
}

/// One end.
struct End {
    id: String,
    address: String,
    networks: Vec<String>,
}

/// The identity: what was given, the DNS name, or a name of its own, because addresses change.
fn id(given: Option<&str>, address: &str, fallback: &str) -> anyhow::Result<String> {
    if let Some(given) = given {
        host(given)?;
        return Ok(given.to_owned());
    }
    let unsuitable = is_address(address) || address == ANY || address.is_empty();
    Ok(if unsuitable { fallback.to_owned() } else { address.to_owned() })
}

fn host_or_any(text: &str) -> anyhow::Result<()> {
    if text == ANY { Ok(()) } else { host(text) }
}

impl SiteArgs {
    pub(super) fn plan(&self) -> anyhow::Result<Plan> {
        let mut ask = questions();
        let list = |text: &str| networks(text).map(drop);
        let address_a = ask.ask(&Question {
            option: "--address-a",
            given: self.address_a.as_deref(),
            text: "DNS name or address of gateway A",
            default: None,
            check: &host,
        })?;
        let networks_a = ask.ask(&Question {
            option: "--networks-a",
            given: self.networks_a.as_deref(),
            text: "networks behind gateway A, such as 10.1.0.0/24",
            default: None,
            check: &list,
        })?;
        let address_b = ask.ask(&Question {
            option: "--address-b",
            given: self.address_b.as_deref(),
            text: "DNS name or address of gateway B, 'any' if it changes",
            default: None,
            check: &host_or_any,
        })?;
        let networks_b = ask.ask(&Question {
            option: "--networks-b",
            given: self.networks_b.as_deref(),
            text: "networks behind gateway B, such as 10.2.0.0/24",
            default: None,
            check: &list,
        })?;
        ask.end()?;
        let a = End {
            id: id(self.ids.id_a.as_deref(), &address_a, "gateway-a")?,
            address: address_a,
            networks: networks(&networks_a)?,
        };
        let b = End {
            id: id(self.ids.id_b.as_deref(), &address_b, "gateway-b")?,
            address: address_b,
            networks: networks(&networks_b)?,
        };
        ensure!(a.networks.iter().all(|network| !b.networks.contains(network)), "both gateways have the same network");
        let hosts = vec![end(&a, site(&a, &b), "gateway A")?, end(&b, site(&b, &a), "gateway B")?];
        let then = vec![
            "on both gateways:".to_owned(),
            READABLE.to_owned(),
            "  sysctl -w net.ipv4.ip_forward=1    # to keep it: /etc/sysctl.d".to_owned(),
            START.to_owned(),
        ];
        Ok(Plan { hosts, then })
    }
}

impl PspArgs {
    pub(super) fn plan(&self) -> anyhow::Result<Plan> {
        let mut ask = questions();
        let address_a = ask.ask(&Question {
            option: "--address-a",
            given: self.address_a.as_deref(),
            text: "DNS name or address of host A",
            default: None,
            check: &host,
        })?;
        let address_b = ask.ask(&Question {
            option: "--address-b",
            given: self.address_b.as_deref(),
            text: "DNS name or address of host B",
            default: None,
            check: &host,
        })?;
        ask.end()?;
        let a =
            End { id: id(self.ids.id_a.as_deref(), &address_a, "host-a")?, address: address_a, networks: Vec::new() };
        let b =
            End { id: id(self.ids.id_b.as_deref(), &address_b, "host-b")?, address: address_b, networks: Vec::new() };
        let hosts = vec![end(&a, psp(&a, &b, self.cipher), "host A")?, end(&b, psp(&b, &a, self.cipher), "host B")?];
        let then = vec!["on both hosts:".to_owned(), READABLE.to_owned(), START.to_owned()];
        Ok(Plan { hosts, then })
    }
}

fn end(end: &End, config: String, what: &'static str) -> anyhow::Result<Host> {
    let names: Vec<Name> = names(&end.id, &end.address)?;
    Ok(Host { id: end.id.clone(), names, usage: Usage::Peer, config, what, target: target(&end.address) })
}

fn site(own: &End, peer: &End) -> String {
    let remote = if peer.address == ANY { "%any" } else { &peer.address };
    // Without an address of the peer, packets wait for nothing: they are dropped until it connects.
    // The end that has no fixed address starts at once, because no other end can.
    let action = match (own.address == ANY, peer.address == ANY) {
        (_, true) => "start_action = trap",
        (true, _) => "start_action = trap|start\n                dpd_action = restart",
        _ => "start_action = trap\n                dpd_action = trap",
    };
    format!(
        "# Gateway {own_id}, written by weir new site-to-site. Keys: weir.conf(5).
connections {{
    {name} {{
        remote_addrs = {remote}
        dpd_delay = 30s
        keyingtries = 0
        local {{
            certs = {own_id}.crt
            id = {own_id}
        }}
        remote {{
            id = {peer_id}
        }}
        children {{
            net {{
                local_ts = {local_ts}
                remote_ts = {remote_ts}
                {action}
            }}
        }}
    }}
}}
",
        name = label(&peer.id),
        own_id = value(&own.id),
        peer_id = value(&peer.id),
        local_ts = own.networks.join(","),
        remote_ts = peer.networks.join(","),
    )
}

fn psp(own: &End, peer: &End, cipher: PspCipher) -> String {
    format!(
        "# Host {own_id}, written by weir new host-to-host-psp. Keys: weir.conf(5).
connections {{
    {name} {{
        protocol = psp
        local_addrs = {local}
        remote_addrs = {remote}
        local {{
            certs = {own_id}.crt
            id = {own_id}
        }}
        remote {{
            id = {peer_id}
        }}
        children {{
            hosts {{
                mode = transport
                psp_version = {version}
                start_action = start
            }}
        }}
    }}
}}
",
        name = label(&peer.id),
        own_id = value(&own.id),
        peer_id = value(&peer.id),
        local = own.address,
        remote = peer.address,
        version = if cipher == PspCipher::Aes128gcm { 0 } else { 1 },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (End, End) {
        let end = |id: &str, address: &str, network: &str| End {
            id: id.to_owned(),
            address: address.to_owned(),
            networks: vec![network.to_owned()],
        };
        (end("a.example.org", "a.example.org", "10.1.0.0/24"), end("gateway-b", ANY, "10.2.0.0/24"))
    }

    #[test]
    fn both_files_mirror_each_other() {
        let (a, b) = ends();
        let (of_a, of_b) = (site(&a, &b), site(&b, &a));
        for line in ["gateway-b {", "remote_addrs = %any", "certs = a.example.org.crt", "local_ts = 10.1.0.0/24"] {
            assert!(of_a.contains(line), "{line}: {of_a}");
        }
        for line in ["a-example-org {", "remote_addrs = a.example.org", "trap|start", "remote_ts = 10.1.0.0/24"] {
            assert!(of_b.contains(line), "{line}: {of_b}");
        }
        assert!(!of_a.contains("|start"), "no end can be called: {of_a}");
        assert!(psp(&a, &b, PspCipher::Aes256gcm).contains("psp_version = 1"));
    }

    #[test]
    fn identities_are_names() {
        assert_eq!(id(None, "192.0.2.1", "gateway-a").expect("an identity"), "gateway-a");
        assert_eq!(id(None, ANY, "gateway-b").expect("an identity"), "gateway-b");
        assert_eq!(id(None, "a.example.org", "x").expect("an identity"), "a.example.org");
        assert_eq!(id(Some("moon"), "a.example.org", "x").expect("an identity"), "moon");
        assert!(id(Some("a b"), "a.example.org", "x").is_err());
    }
}
