//! What is listed, as messages.
//!
//! The structs hold what the daemon knows; the functions write it with the keys of the reference daemon and in its
//! order. The order is part of the interface: `swanctl` prints an IKE SA when it meets the section `child-sas`, and a
//! connection's addresses when it meets their list, with what came before. Nothing here looks anything up, so that a
//! listing can be tested against the printers without a daemon.

use std::net::{IpAddr, SocketAddr};

use super::message::{MAX_VALUE, Message, Value};
pub use super::names::{CertFlag, CertKind, ChildState, IkeState, Mode, transform_name};

/// Transforms that were agreed, by the names of [`transform_name`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Algorithms {
    /// Encryption, with the key length in bits where the transform has more than one.
    pub encryption: Option<(String, Option<u16>)>,
    /// Integrity, likewise; none with an AEAD.
    pub integrity: Option<(String, Option<u16>)>,
    /// Pseudo-random function, of an IKE SA.
    pub prf: Option<String>,
    /// Key exchange; of a Child SA only with one of its own.
    pub key_exchange: Option<String>,
    /// Additional key exchanges with their numbers, 1 to 7 (RFC 9370).
    pub additional: Vec<(u8, String)>,
}

impl Algorithms {
    fn write(&self, message: &mut Message) {
        let mut sized = |name: &str, transform: &Option<(String, Option<u16>)>| {
            if let Some((transform, bits)) = transform {
                message.set(&format!("{name}-alg"), transform).set_some(&format!("{name}-keysize"), *bits);
            }
        };
        sized("encr", &self.encryption);
        sized("integ", &self.integrity);
        message.set_some("prf-alg", self.prf.as_ref()).set_some("dh-group", self.key_exchange.as_ref());
        for (number, method) in &self.additional {
            message.set(&format!("ake{number}"), method);
        }
    }
}

/// An IKE SA.
#[derive(Clone, Debug, PartialEq)]
pub struct IkeSaListing {
    /// Name of its connection.
    pub name: String,
    /// Its number, by which a person may choose it.
    pub unique_id: u32,
    /// 1 or 2.
    pub version: u8,
    /// Where in its life it is.
    pub state: IkeState,
    /// Own address and port.
    pub local: SocketAddr,
    /// Own identity.
    pub local_id: String,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// The peer's identity, `%any` before it is known.
    pub remote_id: String,
    /// Identity of EAP (IKEv2) or XAuth (IKEv1) where it is another.
    pub remote_eap_id: Option<String>,
    /// Whether this end began it.
    pub initiator: bool,
    /// SPI of the initiator.
    pub initiator_spi: u64,
    /// SPI of the responder, 0 before it answers.
    pub responder_spi: u64,
    /// Whether this end is behind a NAT.
    pub nat_local: bool,
    /// Whether the peer is.
    pub nat_remote: bool,
    /// Whether encapsulation is forced without one.
    pub nat_fake: bool,
    /// What was agreed; none before that.
    pub algorithms: Option<Algorithms>,
    /// Whether a post-quantum preshared key took part (RFC 8784).
    pub ppk: bool,
    /// Age in seconds, once established.
    pub established_s: Option<u64>,
    /// Seconds until it is rekeyed.
    pub rekey_s: Option<i64>,
    /// Seconds until it is authenticated anew.
    pub reauth_s: Option<i64>,
    /// Virtual addresses that the peer gave.
    pub local_vips: Vec<IpAddr>,
    /// Virtual addresses given to the peer.
    pub remote_vips: Vec<IpAddr>,
    /// Exchanges not begun, such as `CHILD_CREATE`.
    pub tasks_queued: Vec<String>,
    /// Exchanges begun here.
    pub tasks_active: Vec<String>,
    /// Exchanges begun by the peer.
    pub tasks_passive: Vec<String>,
    /// Its Child SAs.
    pub children: Vec<ChildListing>,
}

/// A Child SA.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildListing {
    /// Name in the configuration.
    pub name: String,
    /// Its number.
    pub unique_id: u32,
    /// Number shared by those that stand for each other.
    pub reqid: u32,
    /// Where in its life it is.
    pub state: ChildState,
    /// How it carries packets.
    pub mode: Mode,
    /// Security label.
    pub label: Option<String>,
    /// What exists once it is installed.
    pub ipsec: Option<ChildIpsec>,
    /// Own selectors, as in `10.1.0.0/16[tcp/80]`.
    pub local_ts: Vec<String>,
    /// The peer's.
    pub remote_ts: Vec<String>,
}

/// The installed part of a Child SA.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildIpsec {
    /// ESP, AH, EESP or PSP.
    pub protocol: String,
    /// Whether it is carried in UDP.
    pub encap: bool,
    /// SPI of what arrives.
    pub spi_in: u32,
    /// SPI of what leaves.
    pub spi_out: u32,
    /// Interface number inbound.
    pub if_id_in: Option<u32>,
    /// Interface number outbound.
    pub if_id_out: Option<u32>,
    /// Whether there is an SA per CPU (RFC 9611).
    pub per_cpu_sas: bool,
    /// The CPU of this one; none for the fallback.
    pub cpu: Option<u32>,
    /// What was agreed.
    pub algorithms: Algorithms,
    /// Whether sequence numbers have 64 bits.
    pub esn: bool,
    /// What arrived.
    pub usage_in: Usage,
    /// What left.
    pub usage_out: Usage,
    /// Seconds until it is rekeyed.
    pub rekey_s: Option<i64>,
    /// Seconds until it ends.
    pub life_s: Option<i64>,
    /// Age in seconds.
    pub install_s: u64,
}

/// Use of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Seconds since the last; none if there was none.
    pub last_s: Option<u64>,
}

/// An address as printed; one that is not decided is `%any`.
fn host(address: IpAddr) -> String {
    match address {
        IpAddr::V4(any) if any.is_unspecified() => "%any".into(),
        IpAddr::V6(any) if any.is_unspecified() => "%any6".into(),
        known => known.to_string(),
    }
}

/// Makes every text one that printers take: they leave a value with anything but printable ASCII out, and would show
/// `(null)` for an identity with an umlaut. Bytes under `data` stay.
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

impl IkeSaListing {
    /// The event of `list-sas`.
    pub fn list_sa(&self) -> Message {
        self.named(self.body(&self.children))
    }

    /// The event `ike-updown`. The section of Child SAs is there and empty, since `swanctl --monitor-sa` prints an IKE SA
    /// only when it meets that.
    pub fn updown(&self, up: bool) -> Message {
        updown(up, self.named(self.body(&[])))
    }

    /// The event `child-updown`: this IKE SA and one of its Child SAs.
    pub fn child_updown(&self, up: bool, child: &ChildListing) -> Message {
        updown(up, self.named(self.body(std::slice::from_ref(child))))
    }

    /// The event `ike-rekey`: this one is replaced by another.
    pub fn rekeyed(&self, by: &Self) -> Message {
        let mut both = Message::new();
        both.set_section("old", self.own()).set_section("new", by.own());
        self.named(both)
    }

    /// The event `child-rekey`.
    pub fn child_rekeyed(&self, old: &ChildListing, new: &ChildListing) -> Message {
        let (mut both, mut children, mut body) = (Message::new(), Message::new(), self.own());
        both.set_section("old", old.body()).set_section("new", new.body());
        children.set_section(&old.name, both);
        body.set_section("child-sas", children);
        self.named(body)
    }

    /// The event `ike-update`: the addresses are about to become others.
    pub fn moved(&self, local: SocketAddr, remote: SocketAddr) -> Message {
        let mut message = Message::new();
        message.set("local-host", host(local.ip())).set_display("local-port", local.port());
        message.set("remote-host", host(remote.ip())).set_display("remote-port", remote.port());
        message.set_section(&self.name, self.own());
        printable(message)
    }

    fn named(&self, body: Message) -> Message {
        let mut message = Message::new();
        message.set_section(&self.name, body);
        printable(message)
    }

    fn body(&self, children: &[ChildListing]) -> Message {
        let (mut body, mut sas) = (self.own(), Message::new());
        for child in children {
            sas.set_section(&format!("{}-{}", child.name, child.unique_id), child.body());
        }
        body.set_section("child-sas", sas);
        body
    }

    /// Everything but the Child SAs.
    fn own(&self) -> Message {
        let mut sa = Message::new();
        sa.set_display("uniqueid", self.unique_id).set_display("version", self.version);
        sa.set("state", self.state.name());
        sa.set("local-host", host(self.local.ip())).set_display("local-port", self.local.port());
        sa.set("local-id", &self.local_id);
        sa.set("remote-host", host(self.remote.ip())).set_display("remote-port", self.remote.port());
        sa.set("remote-id", &self.remote_id);
        let eap = if self.version == 1 { "remote-xauth-id" } else { "remote-eap-id" };
        sa.set_some(eap, self.remote_eap_id.as_ref()).set_flag("initiator", self.initiator);
        sa.set("initiator-spi", format!("{:016x}", self.initiator_spi));
        sa.set("responder-spi", format!("{:016x}", self.responder_spi));
        sa.set_flag("nat-local", self.nat_local).set_flag("nat-remote", self.nat_remote);
        sa.set_flag("nat-fake", self.nat_fake);
        sa.set_flag("nat-any", self.nat_local || self.nat_remote || self.nat_fake);
        if let Some(algorithms) = &self.algorithms {
            algorithms.write(&mut sa);
        }
        sa.set_flag("ppk", self.ppk).set_some("established", self.established_s);
        sa.set_some("rekey-time", self.rekey_s).set_some("reauth-time", self.reauth_s);
        set_items(&mut sa, "local-vips", &self.local_vips);
        set_items(&mut sa, "remote-vips", &self.remote_vips);
        set_items(&mut sa, "tasks-queued", &self.tasks_queued);
        set_items(&mut sa, "tasks-active", &self.tasks_active);
        set_items(&mut sa, "tasks-passive", &self.tasks_passive);
        sa
    }
}

fn updown(up: bool, sa: Message) -> Message {
    let mut message = Message::new();
    message.set_flag("up", up).entries.extend(sa.entries);
    message
}

impl ChildListing {
    fn body(&self) -> Message {
        let mut sa = Message::new();
        sa.set("name", &self.name).set_display("uniqueid", self.unique_id).set_display("reqid", self.reqid);
        sa.set("state", self.state.name()).set("mode", self.mode.name()).set_some("label", self.label.as_ref());
        if let Some(ipsec) = &self.ipsec {
            ipsec.write(&mut sa);
        }
        sa.set_list("local-ts", &self.local_ts).set_list("remote-ts", &self.remote_ts);
        sa
    }
}

impl ChildIpsec {
    fn write(&self, sa: &mut Message) {
        let hex = |number: u32| format!("{number:08x}");
        sa.set("protocol", &self.protocol).set_flag("encap", self.encap);
        sa.set("spi-in", hex(self.spi_in)).set("spi-out", hex(self.spi_out));
        sa.set_some("if-id-in", self.if_id_in.map(hex)).set_some("if-id-out", self.if_id_out.map(hex));
        sa.set_flag("per-cpu-sas", self.per_cpu_sas).set_some("cpu", self.cpu);
        self.algorithms.write(sa);
        if self.esn {
            sa.set("esn", "1");
        }
        for (direction, usage) in [("in", self.usage_in), ("out", self.usage_out)] {
            sa.set_display(&format!("bytes-{direction}"), usage.bytes);
            sa.set_display(&format!("packets-{direction}"), usage.packets);
            sa.set_some(&format!("use-{direction}"), usage.last_s);
        }
        sa.set_some("rekey-time", self.rekey_s).set_some("life-time", self.life_s);
        sa.set_display("install-time", self.install_s);
    }
}

/// A trap, or a policy that passes or drops.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyListing {
    /// Connection, where there is one.
    pub ike: Option<String>,
    /// Name of the child in the configuration.
    pub child: String,
    /// Number shared with its SAs, of a trap.
    pub reqid: Option<u32>,
    /// Mode of its SAs, or what else it does.
    pub mode: Mode,
    /// Security label.
    pub label: Option<String>,
    /// Own selectors.
    pub local_ts: Vec<String>,
    /// The peer's.
    pub remote_ts: Vec<String>,
}

impl PolicyListing {
    /// The event of `list-policies`.
    pub fn list_policy(&self) -> Message {
        let mut policy = Message::new();
        // The printer takes the number for granted, and would print "(null)".
        policy.set("child", &self.child).set_display("reqid", self.reqid.unwrap_or(0));
        policy.set_some("ike", self.ike.as_ref());
        policy.set("mode", self.mode.name()).set_some("label", self.label.as_ref());
        policy.set_list("local-ts", &self.local_ts).set_list("remote-ts", &self.remote_ts);
        let name = self.ike.as_ref().map_or_else(|| self.child.clone(), |ike| format!("{ike}/{}", self.child));
        let mut message = Message::new();
        message.set_section(&name, policy);
        printable(message)
    }

    /// Whether a request of `list-policies` asks for it.
    pub fn is_asked_for(&self, request: &Message) -> bool {
        let kind = match self.mode {
            Mode::Pass => "pass",
            Mode::Drop => "drop",
            _ => "trap",
        };
        request.get(kind).is_some()
            && request.text("child").is_none_or(|child| child == self.child)
            && request.text("ike").is_none_or(|ike| Some(ike) == self.ike.as_deref())
    }
}

/// A connection of the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnListing {
    /// Its name.
    pub name: String,
    /// Own addresses as configured.
    pub local_addrs: Vec<String>,
    /// The peer's.
    pub remote_addrs: Vec<String>,
    /// Own port.
    pub local_port: u16,
    /// The peer's.
    pub remote_port: u16,
    /// 1, 2, or 0 for both.
    pub version: u8,
    /// Seconds; 0 for never.
    pub reauth_s: u64,
    /// Seconds; 0 for never.
    pub rekey_s: u64,
    /// What happens to a second IKE SA, as in `UNIQUE_NO`.
    pub unique: &'static str,
    /// Seconds; 0 for no dead peer detection.
    pub dpd_delay_s: u64,
    /// Seconds, of IKEv1; 0 for none.
    pub dpd_timeout_s: u64,
    /// Identity of a post-quantum preshared key.
    pub ppk_id: Option<String>,
    /// Whether there must be one.
    pub ppk_required: bool,
    /// Proposals in configuration words.
    pub proposals: Vec<String>,
    /// Own rounds of authentication.
    pub local: Vec<AuthListing>,
    /// The peer's.
    pub remote: Vec<AuthListing>,
    /// Children.
    pub children: Vec<ChildConfigListing>,
}

/// A round of authentication.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuthListing {
    /// `public key`, `pre-shared key`, `EAP`, `XAuth` or `any`.
    pub class: String,
    /// Method of EAP as in `EAP_MSCHAPV2`.
    pub eap_type: Option<String>,
    /// Identity.
    pub id: Option<String>,
    /// Identity of the authority.
    pub ca_id: Option<String>,
    /// Identity of the EAP server.
    pub aaa_id: Option<String>,
    /// Identity within EAP.
    pub eap_id: Option<String>,
    /// Identity within XAuth.
    pub xauth_id: Option<String>,
    /// What a missing answer about revocation means.
    pub revocation: Option<String>,
    /// Groups of which the peer has to be in one.
    pub groups: Vec<String>,
    /// Policies of which a certificate has to have one.
    pub cert_policy: Vec<String>,
    /// Subjects of certificates.
    pub certs: Vec<String>,
    /// Subjects of authorities.
    pub cacerts: Vec<String>,
}

/// A child of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildConfigListing {
    /// Its name.
    pub name: String,
    /// How it carries packets, or what else it does.
    pub mode: Mode,
    /// Security label.
    pub label: Option<String>,
    /// Seconds; 0 for never.
    pub rekey_s: u64,
    /// Bytes; 0 for never.
    pub rekey_bytes: u64,
    /// Packets; 0 for never.
    pub rekey_packets: u64,
    /// `none`, `trap`, `start` or `trap|start`.
    pub dpd_action: String,
    /// Likewise.
    pub close_action: String,
    /// Own selectors, `dynamic` before they are known.
    pub local_ts: Vec<String>,
    /// The peer's.
    pub remote_ts: Vec<String>,
    /// Interface.
    pub interface: Option<String>,
    /// Priority that was set by hand.
    pub priority: Option<u32>,
    /// Proposals in configuration words.
    pub proposals: Vec<String>,
}

impl ConnListing {
    /// The event of `list-conns`.
    pub fn list_conn(&self) -> Message {
        let mut conn = Message::new();
        conn.set_list("local_addrs", &self.local_addrs).set_list("remote_addrs", &self.remote_addrs);
        conn.set_display("local_port", self.local_port).set_display("remote_port", self.remote_port);
        conn.set(
            "version",
            match self.version {
                1 => "IKEv1",
                2 => "IKEv2",
                _ => "IKEv1/2",
            },
        );
        conn.set_display("reauth_time", self.reauth_s).set_display("rekey_time", self.rekey_s);
        conn.set("unique", self.unique);
        let some = |seconds: u64| (seconds > 0).then_some(seconds);
        conn.set_some("dpd_delay", some(self.dpd_delay_s)).set_some("dpd_timeout", some(self.dpd_timeout_s));
        conn.set_some("ppk_id", self.ppk_id.as_ref()).set_flag("ppk_required", self.ppk_required);
        set_items(&mut conn, "proposals", &self.proposals);
        for (side, rounds) in [("local", &self.local), ("remote", &self.remote)] {
            for (i, round) in rounds.iter().enumerate() {
                conn.set_section(&format!("{side}-{}", i + 1), round.body());
            }
        }
        let mut children = Message::new();
        for child in &self.children {
            children.set_section(&child.name, child.body());
        }
        conn.set_section("children", children);
        let mut message = Message::new();
        message.set_section(&self.name, conn);
        printable(message)
    }
}

impl AuthListing {
    fn body(&self) -> Message {
        let mut auth = Message::new();
        auth.set("class", &self.class).set_some("eap-type", self.eap_type.as_ref());
        auth.set_some("revocation", self.revocation.as_ref());
        auth.set_some("id", self.id.as_ref()).set_some("ca_id", self.ca_id.as_ref());
        auth.set_some("aaa_id", self.aaa_id.as_ref()).set_some("eap_id", self.eap_id.as_ref());
        auth.set_some("xauth_id", self.xauth_id.as_ref());
        auth.set_list("groups", &self.groups).set_list("cert_policy", &self.cert_policy);
        auth.set_list("certs", &self.certs).set_list("cacerts", &self.cacerts);
        auth
    }
}

impl ChildConfigListing {
    fn body(&self) -> Message {
        let mut child = Message::new();
        child.set("mode", self.mode.name()).set_some("label", self.label.as_ref());
        child.set_display("rekey_time", self.rekey_s).set_display("rekey_bytes", self.rekey_bytes);
        child.set_display("rekey_packets", self.rekey_packets);
        child.set("dpd_action", &self.dpd_action).set("close_action", &self.close_action);
        child.set_list("local-ts", &self.local_ts).set_list("remote-ts", &self.remote_ts);
        child.set_some("interface", self.interface.as_ref()).set_some("priority", self.priority);
        set_items(&mut child, "proposals", &self.proposals);
        child
    }
}

/// A certificate, or what goes with one.
#[derive(Clone, Debug, PartialEq)]
pub struct CertListing {
    /// What it is.
    pub kind: CertKind,
    /// What an X.509 certificate is for; not said of others.
    pub flag: CertFlag,
    /// Whether the private key is here.
    pub has_private_key: bool,
    /// DER; of a public key its SubjectPublicKeyInfo.
    pub der: Vec<u8>,
    /// Of a public key: whose it is.
    pub subject: Option<String>,
}

impl CertListing {
    /// The event of `list-certs`.
    pub fn list_cert(&self) -> Message {
        let mut cert = Message::new();
        cert.set("type", self.kind.name());
        if self.kind == CertKind::X509 {
            cert.set("flag", self.flag.name());
        }
        cert.set_flag("has_privkey", self.has_private_key).set("data", &self.der);
        cert.set_some("subject", self.subject.as_ref());
        printable(cert)
    }

    /// Whether a request of `list-certs` or `flush-certs` asks for it by type and flag. Old names such as `x509ca` stand
    /// for both at once.
    pub fn is_asked_for(&self, request: &Message) -> bool {
        let is = |text: &str, name: &str| text.eq_ignore_ascii_case(name);
        let kind = request.text("type").unwrap_or("ANY");
        if is(kind, "x509") || is(kind, "ANY") {
            let flag = request.text("flag").unwrap_or("ANY");
            return is(kind, "ANY") || self.kind == CertKind::X509 && (is(flag, "ANY") || is(flag, self.flag.name()));
        }
        let old = [("x509ca", CertFlag::Ca), ("x509aa", CertFlag::Aa), ("x509ocsp", CertFlag::Ocsp)];
        match old.iter().find(|(name, _)| is(kind, name)) {
            Some((_, flag)) => self.kind == CertKind::X509 && self.flag == *flag,
            None => {
                is(kind, self.kind.name())
                    || self.kind == CertKind::AttributeCert && is(kind, "x509ac")
                    || self.kind == CertKind::Crl && is(kind, "x509crl")
            }
        }
    }
}

/// A certification authority of the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuthorityListing {
    /// Its name.
    pub name: String,
    /// Subject of its certificate.
    pub cacert: String,
    /// Where its revocation lists are.
    pub crl_uris: Vec<String>,
    /// Where it is asked by OCSP.
    pub ocsp_uris: Vec<String>,
    /// Where its certificates are.
    pub cert_uri_base: Option<String>,
}

impl AuthorityListing {
    /// The event of `list-authorities`.
    pub fn list_authority(&self) -> Message {
        let mut authority = Message::new();
        authority.set("cacert", &self.cacert);
        authority.set_list("crl_uris", &self.crl_uris).set_list("ocsp_uris", &self.ocsp_uris);
        authority.set_some("cert_uri_base", self.cert_uri_base.as_ref());
        let mut message = Message::new();
        message.set_section(&self.name, authority);
        printable(message)
    }
}

/// A pool of virtual addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolListing {
    /// Its name.
    pub name: String,
    /// First address.
    pub base: IpAddr,
    /// Addresses in all.
    pub size: u64,
    /// Leased to somebody who is connected.
    pub online: u64,
    /// Kept for somebody who is not.
    pub offline: u64,
    /// Leases, if asked for.
    pub leases: Option<Vec<Lease>>,
}

/// A lease of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// What was leased.
    pub address: IpAddr,
    /// To whom.
    pub identity: String,
    /// Whether they are connected.
    pub online: bool,
}

/// The reply to `get-pools`.
pub fn get_pools(pools: &[PoolListing]) -> Message {
    let mut message = Message::new();
    for pool in pools {
        let mut section = Message::new();
        section.set("base", host(pool.base)).set_display("size", pool.size);
        section.set_display("online", pool.online).set_display("offline", pool.offline);
        if let Some(leases) = &pool.leases {
            let mut list = Message::new();
            for (i, lease) in leases.iter().enumerate() {
                let mut one = Message::new();
                one.set("address", host(lease.address)).set("identity", &lease.identity);
                one.set("status", if lease.online { "online" } else { "offline" });
                list.set_section(&i.to_string(), one);
            }
            section.set_section("leases", list);
        }
        message.set_section(&pool.name, section);
    }
    printable(message)
}

/// What the daemon says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatsListing {
    /// Since the start, in seconds.
    pub uptime_s: u64,
    /// The start, in seconds since 1970.
    pub started_unix_s: u64,
    /// Threads in all.
    pub workers_total: u32,
    /// Threads without work.
    pub workers_idle: u32,
    /// Threads at work: critical, high, medium and low priority.
    pub workers_active: [u32; 4],
    /// What waits, likewise.
    pub queues: [u64; 4],
    /// Timers.
    pub scheduled: u64,
    /// IKE SAs in all.
    pub ike_sas: u64,
    /// Those not yet established.
    pub half_open: u64,
    /// Parts that are loaded.
    pub plugins: Vec<String>,
}

impl StatsListing {
    /// The reply to `stats`.
    pub fn stats(&self) -> Message {
        let by_priority = |counts: [u64; 4]| {
            let mut section = Message::new();
            for (name, count) in ["critical", "high", "medium", "low"].iter().zip(counts) {
                section.set_display(name, count);
            }
            section
        };
        let (mut uptime, mut workers, mut ike_sas) = (Message::new(), Message::new(), Message::new());
        uptime.set("running", span(self.uptime_s)).set("since", date(self.started_unix_s));
        workers.set_display("total", self.workers_total).set_display("idle", self.workers_idle);
        workers.set_section("active", by_priority(self.workers_active.map(u64::from)));
        ike_sas.set_display("total", self.ike_sas).set_display("half-open", self.half_open);
        let mut message = Message::new();
        message.set_section("uptime", uptime).set_section("workers", workers);
        message.set_section("queues", by_priority(self.queues)).set_display("scheduled", self.scheduled);
        message.set_section("ikesas", ike_sas).set_list("plugins", &self.plugins);
        message
    }
}

/// A time span in its largest unit, as in `3 hours`.
fn span(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..=119 => (seconds, "second"),
        120..=7199 => (seconds / 60, "minute"),
        7200..=172_799 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// A point in time as in `Nov 21 05:07:43 UTC 2026`.
fn date(unix_s: u64) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Years begin in March, so that the leap day is their last; 719,468 days lie between March of year 0 and 1970.
    let day = days + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{} {day_of_month:02} {hour:02}:{minute:02}:{second:02} UTC {year}", MONTHS[month as usize])
}

/// The reply to `version`.
pub fn version(daemon: &str, version: &str) -> Message {
    let system = rustix::system::uname();
    let mut message = Message::new();
    message.set("daemon", daemon).set("version", version);
    message.set("sysname", system.sysname().to_bytes()).set("release", system.release().to_bytes());
    message.set("machine", system.machine().to_bytes());
    message
}

/// The reply to `get-algorithms`: kinds such as `encryption`, in each the algorithms and who provides them.
pub fn get_algorithms<'a, I>(kinds: impl IntoIterator<Item = (&'a str, I)>) -> Message
where
    I: IntoIterator<Item = (String, &'a str)>,
{
    let mut message = Message::new();
    for (kind, algorithms) in kinds {
        let mut section = Message::new();
        for (name, provider) in algorithms {
            section.set(&name, provider);
        }
        message.set_section(kind, section);
    }
    message
}

/// The reply to `get-counters`: a section per connection, with an empty name for the whole daemon.
pub fn get_counters<'a>(counters: impl IntoIterator<Item = (&'a str, Vec<(&'a str, u64)>)>) -> Message {
    let mut sections = Message::new();
    for (connection, values) in counters {
        let mut section = Message::new();
        for (name, value) in values {
            section.set_display(name, value);
        }
        sections.set_section(connection, section);
    }
    let mut message = Message::new();
    message.set_section("counters", sections).set("success", "yes");
    message
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
    /// What it says.
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

/// What of a text fits into a value.
fn fitting(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_VALUE)]
}

/// A reply that says that it was done.
pub fn success() -> Message {
    let mut message = Message::new();
    message.set("success", "yes");
    message
}

/// A reply that says why not.
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

impl Message {
    /// What a reply says of its command. One without `success` is a listing, which succeeds.
    ///
    /// # Errors
    /// With the daemon's text.
    pub fn outcome(&self) -> Result<(), String> {
        match self.flag("success") {
            None | Some(true) => Ok(()),
            Some(false) => Err(self.text("errmsg").unwrap_or("the daemon gave no reason").to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sa() -> IkeSaListing {
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

    fn child() -> ChildListing {
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
        // Without Child SAs the section is there all the same, and last.
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
    fn dates_and_spans() {
        assert_eq!(date(0), "Jan 01 00:00:00 UTC 1970");
        assert_eq!(date(951_782_400), "Feb 29 00:00:00 UTC 2000");
        assert_eq!(date(951_868_799), "Feb 29 23:59:59 UTC 2000");
        assert_eq!(date(4_107_542_400), "Mar 01 00:00:00 UTC 2100");
        assert_eq!(date(1_795_237_663), "Nov 21 05:07:43 UTC 2026");
        assert_eq!(
            [1, 119, 120, 7200, 172_800].map(span),
            ["1 second", "119 seconds", "2 minutes", "2 hours", "2 days"]
        );
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
        assert_eq!(failure("no such connection").outcome(), Err("no such connection".into()));
        assert_eq!(failure_because("a", "auth").text("reason"), Some("auth"));
        assert_eq!([terminated(0, 0), terminated(2, 0), terminated(2, 1)].map(|m| m.outcome().is_err()), [true; 3]);
        assert_eq!(terminated(2, 2).outcome(), Ok(()));
        assert!(matched(0, "rekey").outcome().unwrap_err().contains("rekey"));
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
