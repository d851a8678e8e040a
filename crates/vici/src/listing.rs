//! Listings as messages.
//!
//! The structs contain the state of the daemon; the functions write it with the keys of the
//! reference daemon and in its order. The order is part of the interface: `swanctl` prints an IKE
//! SA when it meets the section `child-sas`, and a connection's addresses when it meets their list,
//! with what came before. Nothing here looks anything up, so that a listing can be tested against
//! the printers without a daemon.

mod conn;
mod creds;
mod daemon;
mod sa;

use std::net::IpAddr;

use super::message::{MAX_VALUE, Message, Value};
pub use super::names::{CertFlag, CertKind, ChildState, IkeState, Mode, transform_name};
pub use conn::{AuthListing, ChildConfigListing, ConnListing};
pub use creds::{AuthorityListing, CertListing, Lease, PoolListing, get_pools};
pub use daemon::{StatsListing, get_algorithms, get_counters, version};
pub use sa::{Algorithms, ChildIpsec, ChildListing, IkeSaListing, PolicyListing, Usage};

/// An address as printed; one that is not decided is `%any`.
fn host(address: IpAddr) -> String {
    match address {
        IpAddr::V4(any) if any.is_unspecified() => "%any".into(),
        IpAddr::V6(any) if any.is_unspecified() => "%any6".into(),
        known => known.to_string(),
    }
}

/// Makes every text one that printers take: they leave a value with anything but printable ASCII
/// out, and would show `(null)` for an identity with an umlaut. Bytes under `data` stay.
fn printable(mut message: Message) -> Message {
    let plain = |text: &mut Vec<u8>| {
        for byte in text.iter_mut().filter(|byte| !matches!(byte, b' '..=b'~')) {
            *byte = b'?';
        }
    };
    for (name, value) in &mut message.entries {
        match value {
            Value::Text(text) if name != "data" => plain(text),
            Value::Text(_) => {}
            Value::List(items) => items.iter_mut().for_each(|item| plain(item)),
            Value::Section(section) => *section = printable(std::mem::take(section)),
        }
    }
    message
}

/// A list that is left out when it is empty, as printers ask for its presence.
fn set_items<T: std::fmt::Display>(message: &mut Message, name: &str, items: &[T]) {
    if !items.is_empty() {
        message.set_list(name, items);
    }
}

/// A line of the log: the events `log` and `control-log`.
#[derive(Clone, Debug, PartialEq)]
pub struct LogListing<'a> {
    /// Subsystem in three letters, as in `IKE`.
    pub group: &'a str,
    /// 0 for what everybody should read, up to 4.
    pub level: i8,
    /// Name and number of the IKE SA that it is about.
    pub ike_sa: Option<(&'a str, u32)>,
    /// Message.
    pub text: &'a str,
}

impl LogListing<'_> {
    /// The event `log`, with a number for the thread: one for each line of the text.
    pub fn log(&self, thread: u32) -> impl Iterator<Item = Message> {
        self.lines(Some(thread))
    }

    /// The event `control-log`, likewise.
    pub fn control_log(&self) -> impl Iterator<Item = Message> {
        self.lines(None)
    }

    fn lines(&self, thread: Option<u32>) -> impl Iterator<Item = Message> {
        self.text.lines().map(move |line| {
            let mut message = Message::new();
            message.set("group", self.group).set_display("level", self.level).set_some("thread", thread);
            if let Some((name, number)) = self.ike_sa {
                message.set("ikesa-name", name).set_display("ikesa-uniqueid", number);
            }
            message.set("msg", fitting(line));
            printable(message)
        })
    }
}

/// Truncates a text to the size of a value.
fn fitting(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_VALUE)]
}

/// A reply that reports success.
pub fn success() -> Message {
    let mut message = Message::new();
    message.set("success", "yes");
    message
}

/// A reply that reports a failure.
pub fn failure(why: &str) -> Message {
    let mut message = Message::new();
    message.set("success", "no").set("errmsg", fitting(why));
    printable(message)
}

/// A failure with its cause in one word for programs, besides the text for persons.
pub fn failure_because(why: &str, reason: &str) -> Message {
    let mut message = failure(why);
    message.set("reason", reason);
    message
}

/// The reply to `load-key` and `load-token`: the SHA-1 of the SubjectPublicKey.
pub fn loaded_key(id: &[u8; 20]) -> Message {
    let mut message = success();
    message.set("id", id.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    message
}

/// The reply to `get-conns`, `get-keys`, `get-shared` (both `keys`) and `get-authorities`.
pub fn names<'a>(key: &str, names: impl IntoIterator<Item = &'a str>) -> Message {
    let mut message = Message::new();
    message.set_list(key, names);
    message
}

/// The reply to `rekey` and `redirect`: how many SAs were meant. Without any it is a failure.
pub fn matched(matches: usize, what: &str) -> Message {
    let mut message = Message::new();
    message.set("success", if matches > 0 { "yes" } else { "no" }).set_display("matches", matches);
    if matches == 0 {
        message.set("errmsg", format!("no matching SAs to {what} found"));
    }
    message
}

/// The reply to `terminate`: how many SAs were meant, and how many of them have ended.
pub fn terminated(matches: usize, terminated: usize) -> Message {
    let problem = match (matches, terminated) {
        (0, _) => Some("no matching SAs to terminate found"),
        (_, 0) => Some("terminating SA failed"),
        _ if terminated < matches => Some("not all matching SAs could be terminated"),
        _ => None,
    };
    let mut message = Message::new();
    message.set("success", if problem.is_none() { "yes" } else { "no" });
    message.set_display("matches", matches).set_display("terminated", terminated).set_some("errmsg", problem);
    message
}

/// A command that the daemon did not carry out: its text.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct CommandError(pub String);

impl Message {
    /// Result in a reply. A reply without `success` is a listing, which has succeeded.
    ///
    /// # Errors
    /// The command failed.
    pub fn outcome(&self) -> Result<(), CommandError> {
        match self.flag("success") {
            None | Some(true) => Ok(()),
            Some(false) => Err(CommandError(self.text("errmsg").unwrap_or("the daemon gave no reason").to_owned())),
        }
    }
}

/// Listings with made-up values.
#[cfg(any(test, feature = "testkit"))]
pub mod example {
    use super::*;

    /// An IKE SA with one Child SA.
    pub fn sa() -> IkeSaListing {
        IkeSaListing {
            name: "site".into(),
            unique_id: 7,
            version: 2,
            state: IkeState::Established,
            local: "192.0.2.1:4500".parse().unwrap(),
            local_id: "moon".into(),
            remote: "[2001:db8::2]:500".parse().unwrap(),
            remote_id: "sun".into(),
            remote_eap_id: Some("carol".into()),
            initiator: true,
            initiator_spi: 0x0123_4567_89ab_cdef,
            responder_spi: 1,
            nat_local: true,
            nat_remote: false,
            nat_fake: false,
            algorithms: Some(Algorithms {
                encryption: Some(("AES_GCM_16".into(), Some(256))),
                integrity: None,
                prf: Some("PRF_HMAC_SHA2_384".into()),
                key_exchange: Some("ECP_384".into()),
                additional: vec![(1, "ML_KEM_768".into())],
            }),
            ppk: true,
            established_s: Some(10),
            rekey_s: Some(-3),
            reauth_s: None,
            local_vips: vec![],
            remote_vips: vec!["10.3.0.1".parse().unwrap()],
            tasks_queued: vec!["CHILD_CREATE".into()],
            tasks_active: vec![],
            tasks_passive: vec![],
            children: vec![child()],
        }
    }

    /// A Child SA.
    pub fn child() -> ChildListing {
        ChildListing {
            name: "net".into(),
            unique_id: 9,
            reqid: 1,
            state: ChildState::Installed,
            mode: Mode::Tunnel,
            label: None,
            ipsec: Some(ChildIpsec {
                protocol: "ESP".into(),
                encap: true,
                spi_in: 0xc1,
                spi_out: 0xdead_beef,
                if_id_in: None,
                if_id_out: Some(42),
                per_cpu_sas: true,
                cpu: None,
                algorithms: Algorithms { encryption: Some(("NULL".into(), None)), ..Algorithms::default() },
                esn: true,
                usage_in: Usage { bytes: 1, packets: 2, last_s: Some(3) },
                usage_out: Usage::default(),
                rekey_s: Some(4),
                life_s: None,
                install_s: 5,
            }),
            local_ts: vec!["10.1.0.0/16".into()],
            remote_ts: vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::example::{child, sa};
    use super::*;

    fn keys(message: &Message) -> Vec<&str> {
        message.entries.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn the_order_that_printers_rely_on() {
        let message = sa().list_sa();
        assert_eq!(
            keys(message.section("site").unwrap()),
            [
                "uniqueid",
                "version",
                "state",
                "local-host",
                "local-port",
                "local-id",
                "remote-host",
                "remote-port",
                "remote-id",
                "remote-eap-id",
                "initiator",
                "initiator-spi",
                "responder-spi",
                "nat-local",
                "nat-any",
                "encr-alg",
                "encr-keysize",
                "prf-alg",
                "dh-group",
                "ake1",
                "ppk",
                "established",
                "rekey-time",
                "remote-vips",
                "tasks-queued",
                "child-sas",
            ]
        );
        assert_eq!(message.text("site.initiator-spi"), Some("0123456789abcdef"));
        assert_eq!(message.text("site.responder-spi"), Some("0000000000000001"));
        assert_eq!(message.text("site.rekey-time"), Some("-3"));
        let child = message.section("site.child-sas.net-9").unwrap();
        assert_eq!(
            keys(child),
            [
                "name",
                "uniqueid",
                "reqid",
                "state",
                "mode",
                "protocol",
                "encap",
                "spi-in",
                "spi-out",
                "if-id-out",
                "per-cpu-sas",
                "encr-alg",
                "esn",
                "bytes-in",
                "packets-in",
                "use-in",
                "bytes-out",
                "packets-out",
                "rekey-time",
                "install-time",
                "local-ts",
                "remote-ts",
            ]
        );
        assert_eq!((child.text("spi-in"), child.text("if-id-out")), (Some("000000c1"), Some("0000002a")));
        // Without Child SAs the section must still exist, as the last one.
        for message in [IkeSaListing { children: vec![], ..sa() }.list_sa(), sa().updown(true), sa().updown(false)] {
            let last = message.section("site").unwrap().entries.last().unwrap();
            assert_eq!(last, &("child-sas".into(), Value::Section(Message::new())));
        }
        assert_eq!(sa().updown(true).text("up"), Some("yes"));
        assert_eq!(keys(&sa().updown(false)), ["site"]);
        assert!(sa().child_updown(true, &child_named("other")).section("site.child-sas.other-9").is_some());
        assert!(sa().rekeyed(&sa()).section("site.new").is_some_and(|new| new.get("child-sas").is_none()));
        assert!(sa().child_rekeyed(&child_named("a"), &child_named("a")).section("site.child-sas.a.old").is_some());
        assert_eq!(keys(&sa().moved(sa().local, sa().remote))[4], "site");
    }

    fn child_named(name: &str) -> ChildListing {
        ChildListing { name: name.into(), ..child() }
    }

    #[test]
    fn what_printers_would_leave_out_is_made_plain() {
        let sa = IkeSaListing { remote_id: "C=DE, CN=Jürgen\n".into(), ..sa() }.list_sa();
        assert_eq!(sa.text("site.remote-id"), Some("C=DE, CN=J??rgen?"));
        let cert = CertListing {
            kind: CertKind::X509,
            flag: CertFlag::None,
            has_private_key: false,
            der: (0..=255).collect(),
            subject: None,
        };
        assert_eq!(cert.list_cert().bytes("data"), Some(&cert.der[..]));
    }

    #[test]
    fn a_connection_has_its_ports_before_its_sections_and_children_last() {
        let conn = ConnListing {
            name: "c".into(),
            unique: "UNIQUE_NO",
            version: 2,
            local: vec![AuthListing { class: "public key".into(), ..AuthListing::default() }],
            remote: vec![AuthListing::default(), AuthListing::default()],
            ..ConnListing::default()
        };
        assert_eq!(
            keys(conn.list_conn().section("c").unwrap()),
            [
                "local_addrs",
                "remote_addrs",
                "local_port",
                "remote_port",
                "version",
                "reauth_time",
                "rekey_time",
                "unique",
                "local-1",
                "remote-1",
                "remote-2",
                "children",
            ]
        );
        assert_eq!(conn.list_conn().text("c.version"), Some("IKEv2"));
    }

    #[test]
    fn filters() {
        let ask = |pairs: &[(&str, &str)]| {
            let mut message = Message::new();
            for (name, value) in pairs {
                message.set(name, value);
            }
            message
        };
        let policy = PolicyListing {
            ike: Some("site".into()),
            child: "net".into(),
            reqid: Some(1),
            mode: Mode::Tunnel,
            label: None,
            local_ts: vec![],
            remote_ts: vec![],
        };
        assert!(policy.is_asked_for(&ask(&[("trap", "yes"), ("child", "net"), ("ike", "site")])));
        assert!(!policy.is_asked_for(&ask(&[("trap", "yes"), ("child", "other")])));
        assert!(!policy.is_asked_for(&ask(&[("pass", "yes"), ("drop", "yes")])));
        let pass = PolicyListing { ike: None, mode: Mode::Pass, ..policy };
        assert!(pass.is_asked_for(&ask(&[("pass", "yes")])));
        assert!(!pass.is_asked_for(&ask(&[("pass", "yes"), ("ike", "site")])));

        let ca = CertListing {
            kind: CertKind::X509,
            flag: CertFlag::Ca,
            has_private_key: false,
            der: vec![0x30],
            subject: None,
        };
        let crl = CertListing { kind: CertKind::Crl, ..ca.clone() };
        for (request, of_ca, of_crl) in [
            (ask(&[]), true, true),
            (ask(&[("type", "x509")]), true, false),
            (ask(&[("type", "X509"), ("flag", "ca")]), true, false),
            (ask(&[("type", "X509"), ("flag", "NONE")]), false, false),
            (ask(&[("type", "x509ca")]), true, false),
            (ask(&[("type", "x509aa")]), false, false),
            (ask(&[("type", "x509_crl")]), false, true),
            (ask(&[("type", "x509crl")]), false, true),
            (ask(&[("type", "pubkey")]), false, false),
        ] {
            assert_eq!((ca.is_asked_for(&request), crl.is_asked_for(&request)), (of_ca, of_crl), "{request:?}");
        }
        assert!(crl.list_cert().get("flag").is_none());
    }

    #[test]
    fn replies_say_what_came_of_it() {
        assert_eq!(success().outcome(), Ok(()));
        assert_eq!(Message::new().outcome(), Ok(()));
        assert_eq!(failure("no such connection").outcome(), Err(CommandError("no such connection".into())));
        assert_eq!(failure_because("a", "auth").text("reason"), Some("auth"));
        assert_eq!([terminated(0, 0), terminated(2, 0), terminated(2, 1)].map(|m| m.outcome().is_err()), [true; 3]);
        assert_eq!(terminated(2, 2).outcome(), Ok(()));
        assert!(matched(0, "rekey").outcome().unwrap_err().0.contains("rekey"));
        assert_eq!(matched(1, "rekey").text("matches"), Some("1"));
        assert_eq!(loaded_key(&[0xab; 20]).text("id"), Some("ab".repeat(20).as_str()));
        let long = "ä".repeat(40_000);
        let log = LogListing { group: "IKE", level: 1, ike_sa: Some(("site", 1)), text: &long };
        assert!(log.log(3).all(|line| line.emit().is_ok()) && failure(&long).emit().is_ok());
        assert_eq!(log.control_log().count(), 1);
        let log = LogListing { text: "first\n\tsecönd", ..log };
        let lines: Vec<_> = log.log(3).collect();
        assert_eq!(lines.iter().map(|line| line.text("msg").unwrap()).collect::<Vec<_>>(), ["first", "?sec??nd"]);
        assert_eq!(keys(&lines[0]), ["group", "level", "thread", "ikesa-name", "ikesa-uniqueid", "msg"]);
    }
}
