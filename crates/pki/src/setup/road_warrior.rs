//! A gateway, and clients with virtual addresses.

use anyhow::{Context as _, ensure};
use clap::Args;

use super::question::{Question, questions};
use super::{Common, Host, Plan, READABLE, START, host, label, networks, target, value};
use crate::profile::{Name, Usage};

/// Options of `weir new road-warrior`.
#[derive(Debug, Args)]
pub struct RoadArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// DNS name or address that clients connect to
    #[arg(long, value_name = "HOST")]
    address: Option<String>,
    /// Networks that clients reach; 0.0.0.0/0 for all traffic
    #[arg(long, value_name = "NETWORK,...")]
    networks: Option<String>,
    /// Networks of the virtual addresses
    #[arg(long, value_name = "NETWORK,...")]
    pool: Option<String>,
    /// Name servers for clients
    #[arg(long, value_name = "ADDRESS,...")]
    dns: Option<String>,
    /// Names or e-mail addresses of the first clients
    #[arg(long, value_name = "NAME,...")]
    clients: Option<String>,
}

/// The answers.
struct Road {
    address: String,
    networks: Vec<String>,
    pool: Vec<String>,
    dns: Vec<String>,
    clients: Vec<String>,
}

fn list(text: &str) -> Vec<String> {
    text.split([',', ' ']).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn addresses(text: &str) -> anyhow::Result<()> {
    let bad = list(text).into_iter().find(|part| !super::is_address(part));
    ensure!(bad.is_none(), "'{}' is not an IP address", bad.unwrap_or_default());
    Ok(())
}

fn clients(text: &str) -> anyhow::Result<()> {
    let all = list(text);
    ensure!(!all.is_empty(), "a client is missing, such as alice");
    all.iter().try_for_each(|name| {
        ensure!(!super::is_address(name), "'{name}': the identity of a client is a name, its addresses change");
        Name::parse(name).map(drop)
    })
}

impl RoadArgs {
    pub(super) fn plan(&self) -> anyhow::Result<Plan> {
        let mut ask = questions();
        let many = |text: &str| networks(text).map(drop);
        let address = ask.ask(&Question {
            option: "--address",
            given: self.address.as_deref(),
            text: "DNS name or address that clients connect to",
            default: None,
            check: &host,
        })?;
        let reached = ask.ask(&Question {
            option: "--networks",
            given: self.networks.as_deref(),
            text: "networks that clients reach, such as 10.2.0.0/16",
            default: None,
            check: &many,
        })?;
        let pool = ask.ask(&Question {
            option: "--pool",
            given: self.pool.as_deref(),
            text: "network of the virtual addresses",
            default: Some("10.3.0.0/24"),
            check: &many,
        })?;
        let dns = ask.ask(&Question {
            option: "--dns",
            given: self.dns.as_deref(),
            text: "name servers for clients, empty for none",
            default: Some(""),
            check: &addresses,
        })?;
        let names = ask.ask(&Question {
            option: "--clients",
            given: self.clients.as_deref(),
            text: "names of the first clients, such as alice,bob@example.org",
            default: None,
            check: &clients,
        })?;
        ask.end()?;
        Road { address, networks: networks(&reached)?, pool: networks(&pool)?, dns: list(&dns), clients: list(&names) }
            .plan()
    }
}

impl Road {
    fn plan(&self) -> anyhow::Result<Plan> {
        let gateway = Host {
            id: self.address.replace(':', "-"),
            names: vec![Name::parse(&self.address)?],
            usage: Usage::Server,
            config: self.gateway(),
            what: "gateway",
            target: target(&self.address),
        };
        let clients = self.clients.iter().map(|name| {
            Ok(Host {
                id: name.clone(),
                names: vec![Name::parse(name)?],
                usage: Usage::Client,
                config: self.client(name),
                what: "client with Weir",
                target: None,
            })
        });
        let hosts = std::iter::once(Ok(gateway)).chain(clients).collect::<anyhow::Result<Vec<_>>>()?;
        let first = self.clients.first().context("a client is missing")?;
        let networks = self.networks.join(",");
        let then = vec![
            "on the gateway:".to_owned(),
            "  sysctl -w net.ipv4.ip_forward=1    # to keep it: /etc/sysctl.d".to_owned(),
            "on each host:".to_owned(),
            READABLE.to_owned(),
            START.to_owned(),
            "a client with another system (--sswan, --windows, --p12):".to_owned(),
            format!(
                "  weir pki bundle --ca CA_DIR {first} --mobileconfig \\\n      --server {} --networks {networks}",
                self.address
            ),
            "another client:".to_owned(),
            "  weir pki issue --ca CA_DIR --client --id carol".to_owned(),
        ];
        Ok(Plan { hosts, then })
    }

    fn gateway(&self) -> String {
        let dns = match self.dns.is_empty() {
            true => String::new(),
            false => format!("\n        dns = {}", self.dns.join(",")),
        };
        format!(
            "# Gateway {id}, written by weir new road-warrior. Keys: weir.conf(5).
connections {{
    clients {{
        pools = clients
        send_cert = always
        unique = replace
        dpd_delay = 60s
        local {{
            certs = {file}.crt
            id = {id}
        }}
        remote {{
            auth = pubkey
        }}
        children {{
            lan {{
                local_ts = {networks}
            }}
        }}
    }}
}}
pools {{
    clients {{
        addrs = {pool}{dns}
    }}
}}
",
            id = self.address,
            file = self.address.replace(':', "-"),
            networks = self.networks.join(","),
            pool = self.pool.join(","),
        )
    }

    fn client(&self, name: &str) -> String {
        let has_family = |v6: bool| self.pool.iter().any(|network| network.contains(':') == v6);
        let vips: Vec<&str> = [(has_family(false), "0.0.0.0"), (has_family(true), "::")]
            .into_iter()
            .filter_map(|(wanted, vip)| wanted.then_some(vip))
            .collect();
        format!(
            "# Client {name}, written by weir new road-warrior. Keys: weir.conf(5).
connections {{
    {label} {{
        remote_addrs = {gateway}
        vips = {vips}
        keyingtries = 0
        dpd_delay = 60s
        local {{
            certs = {file}
            id = {id}
        }}
        remote {{
            id = {gateway}
        }}
        children {{
            lan {{
                remote_ts = {networks}
                start_action = start
                dpd_action = restart
            }}
        }}
    }}
}}
",
            label = label(&self.address),
            gateway = self.address,
            vips = vips.join(","),
            file = value(&format!("{name}.crt")),
            id = value(name),
            networks = self.networks.join(","),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_and_clients_have_their_files() {
        let road = Road {
            address: "2001:db8::1".to_owned(),
            networks: vec!["10.2.0.0/16".to_owned(), "2001:db8:2::/48".to_owned()],
            pool: vec!["10.3.0.0/24".to_owned(), "2001:db8:3::/64".to_owned()],
            dns: vec!["10.2.0.53".to_owned()],
            clients: vec!["alice".to_owned(), "bob@example.org".to_owned()],
        };
        let plan = road.plan().expect("a plan");
        let ids: Vec<(&str, Usage)> = plan.hosts.iter().map(|host| (host.id.as_str(), host.usage)).collect();
        assert_eq!(ids, [("2001-db8--1", Usage::Server), ("alice", Usage::Client), ("bob@example.org", Usage::Client)]);
        let (gateway, bob) = (&plan.hosts[0].config, &plan.hosts[2].config);
        assert!(gateway.contains("certs = 2001-db8--1.crt") && gateway.contains("dns = 10.2.0.53"), "{gateway}");
        assert!(bob.contains("vips = 0.0.0.0,::") && bob.contains("id = bob@example.org"), "{bob}");
        let plain = Road { dns: Vec::new(), pool: vec!["10.3.0.0/24".to_owned()], ..road };
        assert!(!plain.gateway().contains("dns =") && plain.client("alice").contains("vips = 0.0.0.0\n"));
    }

    #[test]
    fn clients_have_names_and_servers_addresses() {
        assert!(clients("alice, bob@example.org").is_ok());
        assert!(clients("").is_err() && clients("192.0.2.1").is_err() && clients("a b/c").is_err());
        assert!(addresses("10.0.0.1,::1").is_ok() && addresses("").is_ok() && addresses("dns.example").is_err());
    }
}
