//! IKE SAs, connections, policies and pools as vici lists them.

use std::time::Instant;

use ike::config::{Action, Auth, AuthMethod, ChildConfig, ChildMode, Connection, EapType, Host, Revocation, Unique};
use ike::output::IkeSpi;
use ike::proposal::{ChildProtocol, ChildSuite, IkeSuite, SequenceNumbers};
use ike::{ChildView, IkeState, IkeView};
use ipsec::SaCounters;
use vici::listing::{
    Algorithms, AuthListing, ChildConfigListing, ChildIpsec, ChildListing, ConnListing, IkeSaListing, Lease,
    PolicyListing, PoolListing, Usage,
};
use vici::names::{ChildState, IkeState as StateName, Mode, transform_name};
use wire::TrafficSelector;

use super::selectors;
use crate::negotiated::Negotiated;

/// Subjects of certificates by fingerprint.
pub(super) type Subjects = std::collections::HashMap<[u8; 32], String>;

const ENCR: u8 = 1;
const PRF: u8 = 2;
const INTEG: u8 = 3;
const KE: u8 = 4;

/// Seconds from `now` to `at`, negative when that is over.
fn seconds_to(now: Instant, at: Instant) -> i64 {
    match at.checked_duration_since(now) {
        Some(ahead) => ahead.as_secs() as i64,
        None => -(now.duration_since(at).as_secs() as i64),
    }
}

/// An IKE SA with its Child SAs.
pub(super) fn ike_sa(view: &IkeView<'_>, negotiated: &Negotiated, now: Instant) -> IkeSaListing {
    let id = |id: Option<&ike::identity::Identity>| id.map_or_else(|| "%any".to_owned(), ToString::to_string);
    let spi = |spi: IkeSpi| u64::from_be_bytes(spi.0);
    IkeSaListing {
        name: view.connection.map_or_else(|| "(unnamed)".to_owned(), |connection| connection.name.clone()),
        unique_id: view.id.0,
        version: view.version.number(),
        state: match view.state {
            IkeState::Connecting => StateName::Connecting,
            IkeState::Established => StateName::Established,
            IkeState::Rekeying => StateName::Rekeying,
            IkeState::Rekeyed => StateName::Rekeyed,
            IkeState::Deleting => StateName::Deleting,
        },
        local: view.path.local,
        local_id: id(view.local_id),
        remote: view.path.remote,
        remote_id: id(view.remote_id),
        remote_eap_id: view.eap_name.map(str::to_owned),
        initiator: view.initiator,
        initiator_spi: spi(view.spis.initiator),
        responder_spi: spi(view.spis.responder),
        nat_local: view.nat.0,
        nat_remote: view.nat.1,
        nat_fake: view.path.encap && view.nat == (false, false) && !view.agreed_udp,
        algorithms: view.suite.map(of_ike),
        ppk: view.ppk,
        established_s: view.established.map(|at| now.saturating_duration_since(at).as_secs()),
        rekey_s: view.rekey_at.map(|at| seconds_to(now, at)),
        reauth_s: view.reauth_at.map(|at| seconds_to(now, at)),
        local_vips: view.virtual_local.iter().map(|address| address.addr).collect(),
        remote_vips: view.virtual_remote.iter().map(|leased| leased.addr).collect(),
        tasks_queued: view.tasks_queued.iter().map(|task| (*task).to_owned()).collect(),
        tasks_active: view.tasks_active.iter().map(|task| (*task).to_owned()).collect(),
        tasks_passive: Vec::new(),
        children: view.children.iter().map(|child| child_sa(child, negotiated, now)).collect(),
    }
}

/// A Child SA with its counters.
pub(super) fn child_sa(view: &ChildView<'_>, negotiated: &Negotiated, now: Instant) -> ChildListing {
    let packets = negotiated.child(view.id);
    let idle = packets.map(|child| child.idle_s(now)).unwrap_or_default();
    let usage = |counters: Option<&SaCounters>, last_s: Option<u64>| Usage {
        bytes: counters.map_or(0, |counters| counters.bytes()),
        packets: counters.map_or(0, |counters| counters.packets()),
        last_s,
    };
    let ipsec = ChildIpsec {
        protocol: protocol(view.suite.protocol).to_owned(),
        encap: view.encap,
        spi_in: view.spi_in.get(),
        spi_out: view.spi_out.get(),
        if_id_in: None,
        if_id_out: None,
        per_cpu_sas: view.per_cpu,
        cpu: view.cpu,
        algorithms: of_child(view.suite),
        esn: view.suite.sn == SequenceNumbers::Extended,
        usage_in: usage(packets.map(|child| &*child.inbound.common.counters), idle.0),
        usage_out: usage(packets.map(|child| &*child.outbound.common.counters), idle.1),
        rekey_s: view.rekey_at.map(|at| seconds_to(now, at)),
        life_s: view.expire_at.map(|at| seconds_to(now, at)),
        install_s: now.saturating_duration_since(view.installed).as_secs(),
    };
    ChildListing {
        name: view.config.name.clone(),
        unique_id: view.id.0,
        reqid: packets.map_or(view.config.reqid, |child| child.reqid),
        state: ChildState::from_name(view.state).unwrap_or(ChildState::Installed),
        mode: mode(view.mode),
        label: None,
        ipsec: Some(ipsec),
        local_ts: view.local_ts.iter().map(selectors::text).collect(),
        remote_ts: view.remote_ts.iter().map(selectors::text).collect(),
    }
}

fn protocol(protocol: ChildProtocol) -> &'static str {
    match protocol {
        ChildProtocol::Esp => "ESP",
        ChildProtocol::Ah => "AH",
        ChildProtocol::Eesp => "EESP",
    }
}

fn mode(mode: ChildMode) -> Mode {
    match mode {
        ChildMode::Tunnel => Mode::Tunnel,
        ChildMode::Transport => Mode::Transport,
        ChildMode::Beet => Mode::Beet,
        ChildMode::Iptfs => Mode::Iptfs,
        ChildMode::Pass => Mode::Pass,
        ChildMode::Drop => Mode::Drop,
    }
}

fn encryption(enc: &crypto::EncAlg) -> (String, Option<u16>) {
    (transform_name(ENCR, enc.id), ike::proposal::enc_key_bits(enc))
}

fn of_ike(suite: &IkeSuite) -> Algorithms {
    Algorithms {
        encryption: Some(encryption(suite.enc)),
        integrity: suite.integ.map(|integ| (transform_name(INTEG, integ.id), None)),
        prf: Some(transform_name(PRF, suite.prf.id())),
        key_exchange: Some(transform_name(KE, suite.ke.id())),
        additional: numbered(&suite.slots, &suite.additional),
    }
}

fn of_child(suite: &ChildSuite) -> Algorithms {
    Algorithms {
        encryption: suite.enc.map(encryption),
        integrity: suite.integ.map(|integ| (transform_name(INTEG, integ.id), None)),
        prf: None,
        key_exchange: suite.ke.map(|ke| transform_name(KE, ke.id())),
        additional: numbered(&suite.slots, &suite.additional),
    }
}

fn numbered(slots: &[u8], methods: &[crypto::ike::KeMethod]) -> Vec<(u8, String)> {
    slots.iter().zip(methods).map(|(slot, method)| (slot + 1, transform_name(KE, method.id()))).collect()
}

/// Configuration of a connection.
pub(super) fn connection(connection: &Connection, subjects: &Subjects) -> ConnListing {
    ConnListing {
        name: connection.name.clone(),
        local_addrs: addresses(&connection.local_addrs),
        remote_addrs: addresses(&connection.remote_addrs),
        local_port: connection.local_port,
        remote_port: connection.remote_port,
        version: connection.version.number(),
        reauth_s: connection.reauth_time.as_secs(),
        rekey_s: connection.rekey_time.as_secs(),
        unique: match connection.unique {
            Unique::Never => "UNIQUE_NEVER",
            Unique::No => "UNIQUE_NO",
            Unique::Replace => "UNIQUE_REPLACE",
            Unique::Keep => "UNIQUE_KEEP",
        },
        dpd_delay_s: connection.dpd_delay.as_secs(),
        dpd_timeout_s: connection.dpd_timeout.as_secs(),
        ppk_id: connection.ppk_id.as_ref().map(ToString::to_string),
        ppk_required: connection.ppk_required,
        proposals: connection.proposals.iter().map(|proposal| proposal.describe()).collect(),
        local: connection.local.iter().map(|round| auth(round, subjects)).collect(),
        remote: connection.remote.iter().map(|round| auth(round, subjects)).collect(),
        children: connection.children.iter().map(|child| section(child)).collect(),
    }
}

/// Hosts of a connection; `%any` where it names none.
pub(super) fn addresses(hosts: &[Host]) -> Vec<String> {
    match hosts {
        [] => vec!["%any".to_owned()],
        hosts => hosts.iter().map(ToString::to_string).collect(),
    }
}

fn auth(auth: &Auth, subjects: &Subjects) -> AuthListing {
    let (class, eap_type) = match &auth.method {
        AuthMethod::Any => ("any", None),
        AuthMethod::PublicKey(_) => ("public key", None),
        AuthMethod::Psk => ("pre-shared key", None),
        AuthMethod::XAuth => ("XAuth", None),
        AuthMethod::Eap(method) => (
            "EAP",
            Some(match method {
                None => "EAP_DYNAMIC",
                Some(EapType::Md5) => "EAP_MD5",
                Some(EapType::MsChapV2) => "EAP_MSCHAPV2",
                Some(EapType::Tls) => "EAP_TLS",
            }),
        ),
    };
    let revocation = match auth.revocation {
        Revocation::Relaxed => None,
        Revocation::IfUri => Some("ifuri".to_owned()),
        Revocation::Strict => Some("strict".to_owned()),
    };
    // The fingerprint where the certificate is not loaded any more.
    let hex = |print: &[u8; 32]| print.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let names = |prints: &[[u8; 32]]| {
        prints.iter().map(|print| subjects.get(print).cloned().unwrap_or_else(|| hex(print))).collect()
    };
    AuthListing {
        class: class.to_owned(),
        eap_type: eap_type.map(str::to_owned),
        id: Some(auth.id.to_string()).filter(|id| id != "%any"),
        ca_id: None,
        aaa_id: None,
        eap_id: auth.eap_id.as_ref().filter(|_| auth.method != AuthMethod::XAuth).map(ToString::to_string),
        xauth_id: auth.eap_id.as_ref().filter(|_| auth.method == AuthMethod::XAuth).map(ToString::to_string),
        revocation,
        groups: auth.groups.clone(),
        cert_policy: auth.cert_policy.clone(),
        certs: names(&auth.certs),
        cacerts: names(&auth.cacerts),
    }
}

fn action(action: Action) -> String {
    match action {
        Action::Clear => "none",
        Action::Trap => "trap",
        Action::Restart => "start",
    }
    .to_owned()
}

fn section(child: &ChildConfig) -> ChildConfigListing {
    ChildConfigListing {
        name: child.name.clone(),
        mode: mode(child.mode),
        label: None,
        rekey_s: child.time.rekey.as_secs(),
        rekey_bytes: child.bytes.rekey,
        rekey_packets: child.packets.rekey,
        dpd_action: action(child.dpd_action),
        close_action: action(child.close_action),
        local_ts: child.local_ts.iter().map(ToString::to_string).collect(),
        remote_ts: child.remote_ts.iter().map(ToString::to_string).collect(),
        interface: None,
        priority: Some(child.priority).filter(|priority| *priority > 0),
        proposals: child.proposals.iter().map(|proposal| proposal.describe()).collect(),
    }
}

/// Policies installed for sections: traps, `pass` and `drop`.
pub(super) fn policies(negotiated: &Negotiated) -> impl Iterator<Item = PolicyListing> {
    // Local and remote side of every pair, each once.
    let side = |sides: Vec<TrafficSelector>| {
        let mut texts: Vec<String> = Vec::new();
        for text in sides.iter().map(selectors::text) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        texts
    };
    negotiated.standing().map(move |(connection, child, pairs)| PolicyListing {
        ike: Some(connection.name.clone()),
        child: child.name.clone(),
        reqid: Some(negotiated.reqids.of_section(connection, child)),
        mode: mode(child.mode),
        label: None,
        local_ts: side(pairs.iter().map(|pair| pair.sides().0).collect()),
        remote_ts: side(pairs.iter().map(|pair| pair.sides().1).collect()),
    })
}

/// Pools of virtual addresses.
pub(super) fn pools(pools: &ike::pool::Pools, only: Option<&str>, leases: bool) -> Vec<PoolListing> {
    let wanted = |pool: &&ike::pool::Pool| only.is_none_or(|name| pool.config().name == name);
    let lease = |(address, lease): (std::net::IpAddr, &ike::pool::Lease)| Lease {
        address,
        identity: lease.identity.to_string(),
        online: lease.online,
    };
    let listing = |pool: &ike::pool::Pool| PoolListing {
        name: pool.config().name.clone(),
        base: pool.config().addrs.start,
        size: pool.size().try_into().unwrap_or(u64::MAX),
        online: pool.online() as u64,
        offline: pool.offline() as u64,
        leases: leases.then(|| pool.leases().map(lease).collect()),
    };
    pools.iter().filter(wanted).map(listing).collect()
}
