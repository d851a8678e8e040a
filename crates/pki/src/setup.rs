//! `weir new`: a CA, certificates and configurations for the usual cases, in folders that are ready
//! to copy.
//!
//! Everything is created in a folder beside the target and checked there as `weir check` does it;
//! then the folder gets its name. A failure leaves nothing behind.

mod question;
mod road_warrior;
mod two_hosts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::authority::{Authority, NewAuthority, Request, Signer};
use crate::cli::{check_network, finish, write_folders};
use crate::date;
use crate::file::{self, Existing, Mode};
use crate::key::KeyKind;
use crate::profile::{self, Name, Usage};

/// Checks a configuration file. The error lists all faults, for the operator.
pub type Check = fn(&Path) -> anyhow::Result<()>;

/// The commands of `weir new`.
#[derive(Debug, Subcommand)]
pub enum New {
    /// Connect the networks behind two gateways
    #[command(after_help = "Examples:\n  weir new site-to-site\n  \
        weir new site-to-site office --address-a a.example.org --networks-a 10.1.0.0/24 \\\n      \
        --address-b 192.0.2.2 --networks-b 10.2.0.0/24\n\n\
        On a terminal, prompts for missing options.")]
    SiteToSite(two_hosts::SiteArgs),
    /// Connect clients with virtual addresses to the networks of a gateway
    #[command(after_help = "Examples:\n  weir new road-warrior\n  \
        weir new road-warrior office --address vpn.example.org --networks 10.2.0.0/16 \\\n      \
        --pool 10.3.0.0/24 --clients alice,bob@example.org\n\n\
        On a terminal, prompts for missing options. 'weir pki bundle' makes files for other systems.")]
    RoadWarrior(road_warrior::RoadArgs),
    /// Protect the traffic between two hosts with PSP
    #[command(after_help = "Examples:\n  weir new host-to-host-psp\n  \
        weir new host-to-host-psp pair --address-a 192.0.2.1 --address-b 192.0.2.2\n\n\
        On a terminal, prompts for missing options.")]
    HostToHostPsp(two_hosts::PspArgs),
}

/// Options of every kind.
#[derive(Debug, Args)]
struct Common {
    /// Folder to create [default: the name of the command]
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Kind of the private keys
    #[arg(long, value_enum, default_value_t = KeyKind::EcdsaP256)]
    key: KeyKind,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Gives what was copied to a host to the user of the service, which reads it as its group.
const READABLE: &str = "  chown -R root:weir /etc/weir && chmod -R u=rwX,g=rX,o= /etc/weir";
/// Starts the service.
const START: &str = "  weir check && systemctl enable --now weir && weir status";

/// One host of the result.
struct Host {
    /// Identity, and name of its folder and files.
    id: String,
    /// Names in its certificate.
    names: Vec<Name>,
    usage: Usage,
    /// `weir.conf`.
    config: String,
    /// What it is, for the operator.
    what: &'static str,
    /// Where scp reaches it, if that is known.
    target: Option<String>,
}

/// What is to be created.
struct Plan {
    hosts: Vec<Host>,
    /// Commands on the gateways, after their folder was copied.
    then: Vec<String>,
}

impl New {
    /// Runs the command, prints errors, and returns the exit status. `check` is that of
    /// `weir check`.
    pub fn run(self, check: Check) -> ExitCode {
        let (common, name, plan) = match self {
            Self::SiteToSite(args) => {
                let plan = args.plan();
                (args.common, "site-to-site", plan)
            }
            Self::RoadWarrior(args) => {
                let plan = args.plan();
                (args.common, "road-warrior", plan)
            }
            Self::HostToHostPsp(args) => {
                let plan = args.plan();
                (args.common, "host-to-host-psp", plan)
            }
        };
        let folder = common.folder.clone().unwrap_or_else(|| name.into());
        finish(common.json, plan.and_then(|plan| create(&folder, &common, &plan, check)))
    }
}

fn create(folder: &Path, common: &Common, plan: &Plan, check: Check) -> anyhow::Result<(String, Value)> {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.with_context(|| format!("{} is not the name of a new folder", folder.display()))?;
    ensure!(!folder.exists(), "{} exists; name another folder, or remove it", folder.display());
    let mut ids: Vec<&str> = plan.hosts.iter().map(|host| host.id.as_str()).chain(["ca"]).collect();
    ids.sort_unstable();
    if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!("the name '{}' is used twice, or is that of the folder of the CA", twice[0]);
    }
    let temporary = file::temporary(folder);
    let until = fill(&temporary, &name, common.key, plan, check).and_then(|until| {
        // Unlike a file, a folder is not replaced by this unless it is empty.
        fs::rename(&temporary, folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(until)
    });
    if until.is_err() {
        let _ = fs::remove_dir_all(&temporary);
    }
    Ok(report(folder, plan, until?))
}

/// Creates CA, certificates and configurations. Returns until when the certificates are valid.
fn fill(folder: &Path, name: &str, key: KeyKind, plan: &Plan, check: Check) -> anyhow::Result<i64> {
    let ca_name = format!("{name} CA");
    let new =
        NewAuthority { name: &ca_name, days: profile::CA_DAYS, key, permit: &[], crl_uris: &[], passphrase: None };
    let mut ca = Authority::create(&folder.join("ca"), &new)?;
    let signer: Signer = ca.unlock(None)?;
    let mut until = i64::MAX;
    for host in &plan.hosts {
        let request = Request {
            usage: host.usage,
            names: &host.names,
            file: Some(&host.id),
            days: profile::DAYS,
            key,
            force: false,
        };
        until = until.min(ca.issue(&signer, &request)?.not_after);
        let own = folder.join(&host.id);
        write_folders(&mut ca, &host.id, &own, Existing::Refuse)?;
        let config = own.join("weir.conf");
        file::write(&config, host.config.as_bytes(), Mode::Secret, Existing::Refuse)?;
        if let Err(fault) = check(&config) {
            bail!("the new configuration is invalid, nothing was written: {fault}");
        }
    }
    Ok(until)
}

fn report(folder: &Path, plan: &Plan, until: i64) -> (String, Value) {
    let shown = |id: &str| folder.join(id).display().to_string();
    let width = plan.hosts.iter().map(|host| shown(&host.id).len()).max().unwrap_or(0);
    let mut text = String::new();
    for host in &plan.hosts {
        text.push_str(&format!("{:width$}  {}\n", shown(&host.id), host.what));
    }
    text.push_str(&format!("{:width$}  CA with its private key: not for the hosts\n", shown("ca")));
    text.push_str(&format!("certificates are valid until {}\n\nnext:\n", date::day(until)));
    for host in &plan.hosts {
        match &host.target {
            Some(target) => text.push_str(&format!("  scp -r {}/. root@{target}:/etc/weir/\n", shown(&host.id))),
            None => text.push_str(&format!("  copy {}/. to /etc/weir of {}\n", shown(&host.id), host.id)),
        }
    }
    for line in &plan.then {
        text.push_str(&format!("  {}\n", line.replace("CA_DIR", &shown("ca"))));
    }
    let hosts = plan.hosts.iter().map(|host| json!({ "id": host.id, "folder": folder.join(&host.id) }));
    let value = json!({
        "folder": folder,
        "ca": folder.join("ca"),
        "not_after": date::text(until),
        "hosts": hosts.collect::<Vec<_>>(),
    });
    (text, value)
}

/// A name of a section: without dots, which separate sections.
fn label(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '-' }).collect()
}

/// A value of the configuration; quoted where a character has a meaning there.
fn value(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".:@_-/%".contains(c);
    if text.chars().all(plain) { text.to_owned() } else { format!("\"{text}\"") }
}

fn networks(text: &str) -> anyhow::Result<Vec<String>> {
    let list: Vec<String> = text.split([',', ' ']).filter(|part| !part.is_empty()).map(str::to_owned).collect();
    ensure!(!list.is_empty(), "a network is missing, such as 10.1.0.0/24");
    list.iter().try_for_each(|network| check_network(network))?;
    Ok(list)
}

/// A DNS name or an IP address.
fn host(text: &str) -> anyhow::Result<()> {
    ensure!(!text.contains('@'), "'{text}' is neither a DNS name nor an IP address");
    Name::parse(text).map(drop)
}

/// An address as scp takes it; none if it changes.
fn target(address: &str) -> Option<String> {
    let address = Some(address).filter(|address| *address != question::ANY)?;
    Some(if address.contains(':') { format!("[{address}]") } else { address.to_owned() })
}

fn is_address(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok()
}

/// Names in the certificate of a host: its identity, and its address if that is another.
fn names(id: &str, address: &str) -> anyhow::Result<Vec<Name>> {
    let mut names = vec![Name::parse(id)?];
    if address != id && address != question::ANY {
        names.push(Name::parse(address)?);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common() -> Common {
        Common { folder: None, key: KeyKind::EcdsaP256, json: false }
    }

    fn plan() -> Plan {
        let host = |id: &str| Host {
            id: id.to_owned(),
            names: vec![Name::parse(id).expect("a name")],
            usage: Usage::Peer,
            config: format!("# {id}\n"),
            what: "a host",
            target: target(id),
        };
        Plan {
            hosts: vec![host("a.example.org"), host("b.example.org")],
            then: vec!["weir pki --ca CA_DIR".to_owned()],
        }
    }

    #[test]
    fn folders_are_complete_and_are_not_replaced() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("office");
        let (text, json) = create(&folder, &common(), &plan(), |_| Ok(())).expect("created");
        for file in
            ["a.example.org/weir.conf", "a.example.org/private/a.example.org.key", "b.example.org/x509ca/ca.crt"]
        {
            assert!(folder.join(file).is_file(), "{file}");
        }
        assert!(!folder.join("a.example.org/private/ca.key").exists() && folder.join("ca/ca.key").is_file());
        assert!(text.contains("root@b.example.org:/etc/weir/") && !text.contains("CA_DIR"), "{text}");
        assert_eq!(json["hosts"][1]["id"], "b.example.org");
        let refusal = create(&folder, &common(), &plan(), |_| Ok(())).expect_err("again").to_string();
        assert!(refusal.contains("office exists"), "{refusal}");
    }

    #[test]
    fn a_failure_leaves_nothing() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("office");
        let refusal = create(&folder, &common(), &plan(), |_| bail!("no")).expect_err("invalid").to_string();
        assert!(refusal.contains("invalid, nothing was written: no"), "{refusal}");
        assert_eq!(fs::read_dir(root.path()).expect("a folder").count(), 0);
        let mut twice = plan();
        twice.hosts[1].id = "a.example.org".to_owned();
        assert!(create(&folder, &common(), &twice, |_| Ok(())).is_err());
        twice.hosts[1].id = "ca".to_owned();
        assert!(create(&folder, &common(), &twice, |_| Ok(())).is_err());
        assert_eq!(fs::read_dir(root.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn values_and_labels_suit_the_grammar() {
        assert_eq!((label("a.example.org"), label("x@y")), ("a-example-org".to_owned(), "x-y".to_owned()));
        assert_eq!((value("a@example.org"), value("a#b")), ("a@example.org".to_owned(), "\"a#b\"".to_owned()));
        assert_eq!(networks("10.1.0.0/24, 10.2.0.0/24").expect("two"), ["10.1.0.0/24", "10.2.0.0/24"]);
        assert!(networks(" ").is_err() && networks("10.1.0.1/24").is_err());
        assert!(host("a@b").is_err() && host("192.0.2.1").is_ok() && host("a.example.org").is_ok());
    }
}
