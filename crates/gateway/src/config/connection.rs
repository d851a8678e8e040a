//! The sections of `connections`: how one kind of peer is reached, trusted and served.
//!
//! Names of hosts stay names here: the daemon resolves them, as often as it needs them.

use std::net::IpAddr;
use std::time::Duration;

use ike::config::{
    ChildConfig, ChildMode, Childless, Connection, Encap, Fragmentation, Host, Ocsp, Retransmit, SendCert, TsConflict,
    Unique, Version,
};
use ike::proposal::ChildProtocol;
use wire::AddrRange;

use super::auth::{Side, pattern, rounds};
use super::cert::Context;
use super::child;
use super::proposal;
use super::psp::PspConfig;
use super::schema::{CHILD, CONNECTION, PSP};
use super::syntax::Section;
use super::value::{Fields, Sink, ValueError, duration, number, parsed, switch, word};

/// Contents of a section of `connections`.
#[derive(Clone, Debug, PartialEq)]
pub enum Keyed {
    /// Keys by IKE.
    Ike(Box<Connection>),
    /// Keys by the key service of PSP.
    Psp(Box<PspConfig>),
}

/// Reads one section; after errors the caller must ignore the result.
pub(crate) fn read(section: &Section, path: &str, context: &Context<'_>, sink: &Sink) -> Keyed {
    let psp = section.setting("protocol").is_some_and(|setting| setting.value.eq_ignore_ascii_case("psp"));
    let table = if psp { PSP } else { CONNECTION };
    let fields = Fields::of(section, path.to_owned(), table, sink);
    let _ = fields.get("protocol", word(&[("ike", false), ("psp", true)]));
    let read = if psp {
        Keyed::Psp(Box::new(PspConfig::read(&fields, context)))
    } else {
        Keyed::Ike(Box::new(ike_connection(&fields, context)))
    };
    let named = |name: &&str| *name == "children" || name.starts_with("local") || name.starts_with("remote");
    let sections: Vec<&str> = section.sections.iter().map(|section| section.name.as_str()).filter(named).collect();
    fields.finish(&sections, |key| elsewhere(key, psp));
    read
}

/// Returns the correct section of a key that does not belong in the connection itself.
fn elsewhere(key: &str, psp: bool) -> Option<String> {
    use super::schema::{AUTH, CHILD, PSP_CHILD, find};
    let child = if psp { PSP_CHILD } else { CHILD };
    if matches!(key, "local" | "remote") {
        return Some(format!(
            "'{key}' is a section: '{key} {{ auth = …  id = … }}', one setting per line; addresses are '{key}_addrs'"
        ));
    }
    if find(child, key).is_some() {
        return Some(format!("move '{key}' into a child: 'children {{ NAME {{ {key} = … }} }}'"));
    }
    if find(AUTH, key).is_some() {
        return Some(format!("move '{key}' into the section 'local' or 'remote'"));
    }
    (psp && find(CONNECTION, key).is_some()).then(|| format!("'{key}' is a setting of IKE; remove it"))
}

fn ike_connection(fields: &Fields<'_>, context: &Context<'_>) -> Connection {
    let legacy = fields.get("allow_legacy", switch).unwrap_or(context.gateway.allow_legacy);
    let flag = |key, default| fields.get(key, switch).unwrap_or(default);
    let time = |key| fields.get(key, duration);
    let port = |key| fields.get(key, number(1..=65_535)).map_or(500, |port| port as u16);
    let wide = |key, default| fields.get(key, number(0..=u64::from(u32::MAX))).map_or(default, |n| n as u32);
    let life = Lifetimes::of(time("rekey_time"), time("reauth_time"), time("over_time"), time("rand_time"));
    let proposals: Vec<_> = fields
        .list("proposals", |text| proposal::ike(text, legacy))
        .map(|read| read.into_iter().flatten().collect())
        .filter(|read: &Vec<_>| !read.is_empty())
        .unwrap_or_else(ike::proposal::IkeProposal::defaults);
    let text = |text: &str| Ok::<_, ValueError>(text.to_owned());
    let version = fields.get("version", word(&[("0", Version::V2), ("1", Version::V1), ("2", Version::V2)]));
    let version = version.unwrap_or(Version::V2);
    let connection = Connection {
        name: fields.section().name.clone(),
        version,
        local_addrs: hosts(fields, "local_addrs"),
        remote_addrs: hosts(fields, "remote_addrs"),
        local_port: port("local_port"),
        remote_port: port("remote_port"),
        proposals,
        vips: fields.list("vips", vip).unwrap_or_default(),
        dns: flag("dns", true),
        encap: fields.get("encap", encap).unwrap_or(Encap::No),
        mobike: flag("mobike", true),
        dpd_delay: time("dpd_delay").unwrap_or_default(),
        dpd_timeout: time("dpd_timeout").unwrap_or_default(),
        aggressive: flag("aggressive", false),
        pull: flag("pull", true),
        fragmentation: fields
            .get(
                "fragmentation",
                word(&[
                    ("yes", Fragmentation::Yes),
                    ("accept", Fragmentation::Accept),
                    ("no", Fragmentation::No),
                    ("force", Fragmentation::Force),
                ]),
            )
            .unwrap_or(Fragmentation::Yes),
        childless: fields
            .get(
                "childless",
                word(&[
                    ("allow", Childless::Allow),
                    ("prefer", Childless::Prefer),
                    ("force", Childless::Force),
                    ("never", Childless::Never),
                ]),
            )
            .unwrap_or(Childless::Allow),
        send_certreq: flag("send_certreq", true),
        send_cert: fields
            .get(
                "send_cert",
                word(&[("ifasked", SendCert::IfAsked), ("always", SendCert::Always), ("never", SendCert::Never)]),
            )
            .unwrap_or(SendCert::IfAsked),
        ocsp: fields
            .get(
                "ocsp",
                word(&[
                    ("reply", Ocsp::Reply),
                    ("never", Ocsp::Never),
                    ("request", Ocsp::Request),
                    ("both", Ocsp::Both),
                ]),
            )
            .unwrap_or(Ocsp::Reply),
        ppk_id: fields.get("ppk_id", pattern),
        ppk_required: flag("ppk_required", false),
        keyingtries: wide("keyingtries", 1),
        unique: fields
            .get(
                "unique",
                word(&[
                    ("no", Unique::No),
                    ("never", Unique::Never),
                    ("keep", Unique::Keep),
                    ("replace", Unique::Replace),
                ]),
            )
            .unwrap_or(Unique::No),
        ts_conflict: fields
            .get("ts_conflict", word(&[("refuse", TsConflict::Refuse), ("replace", TsConflict::Replace)]))
            .unwrap_or(TsConflict::Refuse),
        reauth_time: life.reauth,
        rekey_time: life.rekey,
        over_time: life.over,
        rand_time: life.rand,
        dscp: fields.get("dscp", dscp).unwrap_or(0),
        pools: fields.list("pools", text).unwrap_or_default(),
        local: rounds(fields, (Side::Local, version), legacy, context),
        remote: rounds(fields, (Side::Remote, version), legacy, context),
        children: child::children(fields, legacy),
        retransmit: retransmit(fields),
    };
    if connection.ppk_required && connection.ppk_id.is_none() {
        fields.fault_of(
            "ppk_required",
            "no key is selected",
            "add 'ppk_id = …', the 'id' of a section 'ppk' of 'secrets', or to respond '%any'",
        );
    }
    check_version(fields, &connection);
    check_reachable(fields, &connection);
    connection
}

/// Settings of the other version of IKE, and those that IKEv1 cannot express.
fn check_version(fields: &Fields<'_>, connection: &Connection) {
    if connection.version == Version::V2 {
        if !connection.dpd_timeout.is_zero() {
            let message = format!("'{}s' has no meaning in IKEv2", connection.dpd_timeout.as_secs());
            let help = "remove it: it belongs to IKEv1; with IKEv2 'retransmit_timeout', 'retransmit_base' and \
                        'retransmit_tries' decide";
            fields.fault_of("dpd_timeout", message, help);
        }
        if !connection.pull {
            fields.fault_of("pull", "'no' has no meaning in IKEv2", "remove it: it belongs to IKEv1");
        }
        if connection.aggressive {
            fields.fault_of("aggressive", "'yes' has no meaning in IKEv2", "remove it: it belongs to IKEv1");
        }
        check_encap(fields, connection);
        return;
    }
    if let Some(ike::v1::Unsupported { child, key, message, help }) = ike::v1::unsupported(connection) {
        let section = child.and_then(|name| fields.section().section("children")?.section(&name));
        return match section {
            Some(section) => {
                let path = format!("{}.children.{}", fields.path(), section.name);
                Fields::of(section, path, CHILD, fields.sink()).fault_of(key, message, help);
            }
            None => fields.fault_of(key, message, help),
        };
    }
    let psk = connection.local.iter().any(|auth| auth.method == ike::config::AuthMethod::Psk);
    if connection.aggressive && psk {
        let warning = "aggressive mode with a shared key gives a false responder, and everybody who hears an answer, a \
                       hash of the key, of which they can test guesses; write a random key";
        fields.warn("aggressive", warning);
    }
    fields.warn("version", "IKEv1 is obsolete (RFC 9395); use it only with a peer that cannot do IKEv2");
}

/// AH has no UDP encapsulation (RFC 3948), so its SAs could not be installed.
fn check_encap(fields: &Fields<'_>, connection: &Connection) {
    let has_ah = |child: &ChildConfig| child.proposals.iter().any(|proposal| proposal.protocol == ChildProtocol::Ah);
    if connection.encap != Encap::No
        && let Some(child) = connection.children.iter().find(|child| has_ah(child))
    {
        let message = format!("AH of child '{}' is not carried in UDP", child.name);
        fields.fault_of("encap", message, "write 'encap = no', or remove 'ah_proposals'");
    }
}

fn encap(text: &str) -> Result<Encap, ValueError> {
    if text.eq_ignore_ascii_case("auto") {
        return Ok(Encap::Auto);
    }
    let yes = switch(text).map_err(|_| "write yes, no or auto".to_owned())?;
    Ok(if yes { Encap::Yes } else { Encap::No })
}

/// A child that is to begin needs the address of a peer.
fn check_reachable(fields: &Fields<'_>, connection: &Connection) {
    if connection.remote_addrs.iter().any(Host::is_one) {
        return;
    }
    let begins = |child: &&std::sync::Arc<ChildConfig>| !matches!(child.mode, ChildMode::Pass | ChildMode::Drop);
    for child in connection.children.iter().filter(begins) {
        let action = child.start_action;
        if action.start {
            let message = format!("child '{}' has start_action = start, but the peer has no address", child.name);
            let help = "write the address or the name of the peer, or remove 'start_action'";
            return fields.fault_of("remote_addrs", message, help);
        }
        if connection.peer_is_destination(child) {
            warn_of_every_host(fields, connection, child);
            continue;
        }
        if action.trap && child.remote_ts.iter().any(|ts| ts.addrs.is_none()) {
            let message = format!(
                "child '{}' has a trap, but neither the peer nor 'remote_ts' has an address: its packets would leave \
                 in clear text",
                child.name
            );
            let help = "write the address or the name of the peer, or the peer's networks in 'remote_ts'; with \
                        'mode = transport' the destination of a packet is the peer";
            return fields.fault_of("remote_addrs", message, help);
        }
        if action.trap {
            let message = format!(
                "the peer has no address, so a packet cannot start the child '{}': its packets are dropped until a \
                 peer connects; only with 'mode = transport' the destination of a packet is the peer",
                child.name
            );
            fields.warn("remote_addrs", message);
        }
    }
}

/// The destination of a packet is the peer of the child: where every host can be one, nothing else
/// leaves.
fn warn_of_every_host(fields: &Fields<'_>, connection: &Connection, child: &ChildConfig) {
    let is_every = |range: &AddrRange| range.prefix() == Some(0);
    let every_peer = connection.peer_ranges().iter().any(is_every);
    let is_every = |ts: &ike::config::TsConfig| ts.addrs.map_or(every_peer, |range| is_every(&range));
    if child.remote_ts.iter().any(is_every) {
        let message = format!(
            "the destination of a packet is the peer of the child '{}', and every host can be one: all other packets of this \
             host are dropped; limit 'remote_ts', or add children with 'mode = pass' for what is to leave in clear text",
            child.name
        );
        fields.warn("remote_addrs", message);
    }
}

/// `local_addrs` or `remote_addrs`; empty for any.
pub(crate) fn hosts(fields: &Fields<'_>, key: &'static str) -> Vec<Host> {
    let listed = fields.list(key, host).unwrap_or_default();
    if listed.contains(&None) { Vec::new() } else { listed.into_iter().flatten().collect() }
}

/// One host; `None` for any.
fn host(text: &str) -> Result<Option<Host>, ValueError> {
    match text {
        "%any" | "0.0.0.0" | "::" => return Ok(None),
        "%any4" => return Ok(Some(Host::Range(AddrRange::ANY_V4))),
        "%any6" => return Ok(Some(Host::Range(AddrRange::ANY_V6))),
        _ => {}
    }
    if let Ok(range) = text.parse() {
        return Ok(Some(Host::Range(range)));
    }
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    let labels: Vec<&str> = text.strip_suffix('.').unwrap_or(text).split('.').collect();
    // A last label of digits would be an address that was mistyped.
    let is_name = text.len() <= 253
        && labels.iter().copied().all(label)
        && labels.last().is_some_and(|last| !last.bytes().all(|b| b.is_ascii_digit()));
    is_name
        .then(|| Some(Host::Name(text.to_owned())))
        .ok_or_else(|| "write an address, a network, FIRST-LAST, the name of a host, or %any".into())
}

fn vip(text: &str) -> Result<IpAddr, ValueError> {
    match text {
        "%any" | "%any4" | "%config" | "%config4" => Ok([0, 0, 0, 0].into()),
        "%any6" | "%config6" => Ok(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)),
        _ => parsed("write an address, 0.0.0.0 or :: for any of the family")(text),
    }
}

fn dscp(text: &str) -> Result<u8, ValueError> {
    let six = text.len() <= 6 && text.bytes().all(|b| matches!(b, b'0' | b'1'));
    u8::from_str_radix(text, 2)
        .ok()
        .filter(|_| six)
        .ok_or_else(|| "write six binary digits, for example 101110 for EF".into())
}

/// Times of an IKE SA.
struct Lifetimes {
    rekey: Duration,
    reauth: Duration,
    over: Duration,
    rand: Duration,
}

impl Lifetimes {
    /// With strongSwan's defaults: 4 h unless reauthentication is configured; over_time is 10 %;
    /// the random reduction is at most half.
    fn of(rekey: Option<Duration>, reauth: Option<Duration>, over: Option<Duration>, rand: Option<Duration>) -> Self {
        let rekey = rekey.unwrap_or(if reauth.is_some() { Duration::ZERO } else { Duration::from_secs(4 * 3600) });
        let reauth = reauth.unwrap_or_default();
        let (longer, shorter) = (rekey.max(reauth), rekey.min(reauth));
        let over = over.unwrap_or(longer / 10);
        let sooner = if shorter.is_zero() { longer } else { shorter };
        Self { rekey, reauth, over, rand: rand.unwrap_or(over).min(sooner / 2) }
    }
}

fn retransmit(fields: &Fields<'_>) -> Retransmit {
    let default = Retransmit::default();
    let factor = |text: &str| {
        let read = text.parse::<f64>().ok().filter(|factor| (1.0..=10.0).contains(factor));
        read.ok_or_else(|| "write a factor from 1 to 10, for example 1.8".into())
    };
    Retransmit {
        timeout: fields.get("retransmit_timeout", super::value::time).unwrap_or(default.timeout),
        base: fields.get("retransmit_base", factor).unwrap_or(default.base),
        tries: fields.get("retransmit_tries", number(0..=100)).map_or(default.tries, |tries| tries as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_or_names() {
        for (text, there) in [
            ("192.0.2.1", "192.0.2.1/32"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.0.0.1-10.0.0.7", "10.0.0.1-10.0.0.7"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("%any6", "::/0"),
            ("sun.example.org", "sun.example.org"),
            ("localhost", "localhost"),
            ("a-b.example.", "a-b.example."),
        ] {
            let shown = match host(text) {
                Ok(Some(Host::Range(range))) => range.to_string(),
                Ok(Some(Host::Name(name))) => name,
                other => panic!("{text}: {other:?}"),
            };
            assert_eq!(shown, there);
        }
        assert_eq!(host("%any"), Ok(None));
        for bad in ["192.0.2.300", "10.0.0.0/33", "sun..example", "sun example", "%an", "1.2.3", ""] {
            assert!(host(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_of_an_ike_sa_default_as_in_strongswan() {
        let s = Duration::from_secs;
        let of = |rekey: Option<u64>, reauth: Option<u64>, over: Option<u64>, rand: Option<u64>| {
            let life = Lifetimes::of(rekey.map(s), reauth.map(s), over.map(s), rand.map(s));
            (life.rekey.as_secs(), life.reauth.as_secs(), life.over.as_secs(), life.rand.as_secs())
        };
        assert_eq!(of(None, None, None, None), (14_400, 0, 1440, 1440));
        assert_eq!(of(None, Some(3600), None, None), (0, 3600, 360, 360));
        assert_eq!(of(Some(600), Some(3600), None, None), (600, 3600, 360, 300));
        assert_eq!(of(Some(600), None, Some(500), None), (600, 0, 500, 300));
        assert_eq!(of(Some(0), None, None, None), (0, 0, 0, 0));
        assert_eq!(of(Some(600), None, None, Some(0)), (600, 0, 60, 0));
        assert_eq!(of(Some(600), None, None, Some(599)), (600, 0, 60, 300));
    }

    #[test]
    fn dscp_is_binary() {
        assert_eq!((dscp("101110"), dscp("000000"), dscp("0")), (Ok(46), Ok(0), Ok(0)));
        assert!(dscp("46").is_err() && dscp("1011100").is_err() && dscp("+1").is_err() && dscp("").is_err());
    }
}
