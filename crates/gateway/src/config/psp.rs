//! Connections with `protocol = psp`: peers that hand each other SPIs and keys of PSP over TLS 1.3.
//!
//! The receiver chooses SPI and key, so IKE does not fit; the key service requests them from the
//! peer, both hosts authenticate by the certificates of `local` and `remote`, and each direction is
//! negotiated separately.

use std::time::Duration;

use ike::config::{Auth, AuthMethod, Host, StartAction, TsConfig};

use super::auth::{Side, rounds};
use super::cert::Context;
use super::child::{each, selectors, start_action};
use super::connection::hosts;
use super::schema::PSP_CHILD;
use super::value::{Fields, ValueError, duration, number, offset, psp_version, switch, word};

/// Longest time between new keys: a master key may be gone two rotations later.
const LONGEST_REKEY: Duration = Duration::from_secs(24 * 3600);

/// A peer of the key service.
#[derive(Clone, Debug, PartialEq)]
pub struct PspConfig {
    /// Name of its section.
    pub name: String,
    /// Addresses of this host; any when empty.
    pub local: Vec<Host>,
    /// Addresses of the peer; any when empty, and then this host only answers.
    pub remote: Vec<Host>,
    /// TCP port of this host's key service.
    pub local_port: u16,
    /// TCP port of the peer's.
    pub remote_port: u16,
    /// Certificate and identity of this host; the method is always a certificate.
    pub local_auth: Auth,
    /// Required authentication of the peer.
    pub remote_auth: Auth,
    /// Idle time of the key channel before a liveness check; zero disables it.
    pub dpd_delay: Duration,
    /// Attempts to reach the peer; 0 retries without limit.
    pub keyingtries: u32,
    /// Associations.
    pub children: Vec<PspChild>,
}

/// One pair of associations.
#[derive(Clone, Debug, PartialEq)]
pub struct PspChild {
    /// Name of its section.
    pub name: String,
    /// Versions, the best first; never empty.
    pub versions: Vec<u8>,
    /// Mode.
    pub mode: PspMode,
    /// Traffic selectors of this side.
    pub local_ts: Vec<TsConfig>,
    /// Traffic selectors of the peer's side.
    pub remote_ts: Vec<TsConfig>,
    /// Bytes after the IV to leave in the clear, a multiple of 4.
    pub crypt_offset: u8,
    /// Largest such number that is accepted.
    pub max_crypt_offset: u8,
    /// Virtualisation cookie to send.
    pub cookie: Option<u64>,
    /// Anti-replay window in packets; 0 checks nothing.
    pub replay_window: u32,
    /// Time between new keys.
    pub rekey_time: Duration,
    /// Packets between new keys.
    pub rekey_packets: u64,
    /// Action when the child is loaded.
    pub start_action: StartAction,
    /// Copy DF outwards.
    pub copy_df: bool,
    /// Copy ECN.
    pub copy_ecn: bool,
    /// Copy DSCP outwards.
    pub copy_dscp: bool,
}

/// Modes of PSP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PspMode {
    /// The whole packet is inside.
    Tunnel,
    /// The payload of the IP header is protected.
    Transport,
}

impl PspConfig {
    pub(crate) fn read(fields: &Fields<'_>, context: &Context<'_>) -> Self {
        let default_port = context.gateway.code_points.psp_port;
        let port = |key| fields.get(key, number(1..=65_535)).map_or(default_port, |port| port as u16);
        let gmac = context.gateway.allow_psp_gmac;
        let read = Self {
            name: fields.section().name.clone(),
            local: hosts(fields, "local_addrs"),
            remote: hosts(fields, "remote_addrs"),
            local_port: port("local_port"),
            remote_port: port("remote_port"),
            local_auth: certificate(fields, Side::Local, context),
            remote_auth: certificate(fields, Side::Remote, context),
            dpd_delay: fields.get("dpd_delay", duration).unwrap_or(Duration::from_secs(30)),
            keyingtries: fields.get("keyingtries", number(0..=u64::from(u32::MAX))).map_or(0, |n| n as u32),
            children: each(fields, PSP_CHILD, |fields| PspChild::read(fields, gmac)),
        };
        if read.children.is_empty() {
            fields.fault("no child", "add 'children { NAME { local_ts = …  remote_ts = … } }', one setting per line");
        }
        if read.remote.is_empty() && read.children.iter().any(|child| child.start_action.start) {
            fields.fault_of(
                "remote_addrs",
                "a child has start_action = start, but the peer has no address",
                "write the address of the peer",
            );
        }
        read
    }

    /// Names in `local_addrs` and `remote_addrs`.
    pub fn host_names(&self) -> impl Iterator<Item = &str> {
        self.local.iter().chain(&self.remote).filter_map(Host::name)
    }
}

/// The one round of a side, by certificate.
fn certificate(fields: &Fields<'_>, side: Side, context: &Context<'_>) -> Auth {
    let mut rounds = rounds(fields, (side, ike::config::Version::V2), false, context);
    let several = rounds.len() > 1;
    let first = rounds.swap_remove(0);
    if several {
        fields.fault(
            format!("more than one round of '{}'", side.name()),
            "the PSP key service supports one; remove the others",
        );
    }
    if !matches!(first.method, AuthMethod::PublicKey(_)) {
        let message = format!("'{}' does not authenticate by certificate", side.name());
        fields.fault(message, "the PSP key service uses TLS: write 'auth = pubkey' and 'certs = FILE'");
    }
    first
}

impl PspChild {
    fn read(fields: &Fields<'_>, gmac: bool) -> Self {
        let flag = |key| fields.get(key, switch).unwrap_or(true);
        let window = fields.get("replay_window", number(0..=65_536)).map_or(1024, |packets| packets as u32);
        Self {
            name: fields.section().name.clone(),
            versions: fields.list("psp_version", psp_version(gmac)).filter(|v| !v.is_empty()).unwrap_or(vec![0]),
            mode: fields
                .get("mode", word(&[("tunnel", PspMode::Tunnel), ("transport", PspMode::Transport)]))
                .unwrap_or(PspMode::Tunnel),
            local_ts: selectors(fields, "local_ts"),
            remote_ts: selectors(fields, "remote_ts"),
            crypt_offset: fields.get("crypt_offset", offset).unwrap_or(0),
            max_crypt_offset: fields.get("max_crypt_offset", offset).unwrap_or(0),
            cookie: fields.get("cookie", number(0..=u64::MAX)),
            replay_window: if window == 0 { 0 } else { window.max(32) },
            rekey_time: fields.get("rekey_time", rekey_time).unwrap_or(LONGEST_REKEY / 2),
            rekey_packets: fields.get("rekey_packets", number(1..=1 << 48)).unwrap_or(1 << 32),
            start_action: fields.get("start_action", start_action).unwrap_or_default(),
            copy_df: flag("copy_df"),
            copy_ecn: flag("copy_ecn"),
            copy_dscp: fields.get("copy_dscp", word(&[("out", true), ("no", false)])).unwrap_or(true),
        }
    }
}

fn rekey_time(text: &str) -> Result<Duration, ValueError> {
    let limit = || "write a time up to 24h: a key ends when the receiver replaces its master key".into();
    super::value::time(text).and_then(|time| (time <= LONGEST_REKEY).then_some(time).ok_or_else(limit))
}
