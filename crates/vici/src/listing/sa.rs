//! IKE SAs with their Child SAs, and policies.

use std::net::{IpAddr, SocketAddr};

use super::{ChildState, IkeState, Message, Mode, host, printable, set_items};

/// Text in the place of the version for a peer of the key service of PSP.
const NOT_IKE: &str = "- (PSP key service)";

/// Transforms that were agreed, by the names of [`transform_name`](crate::names::transform_name).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Algorithms {
    /// Encryption, with the key length in bits where the transform has more than one.
    pub encryption: Option<(String, Option<u16>)>,
    /// Integrity, likewise; none with an AEAD.
    pub integrity: Option<(String, Option<u16>)>,
    /// Pseudo-random function, of an IKE SA.
    pub prf: Option<String>,
    /// Key exchange; for a Child SA only if it had a separate one.
    pub key_exchange: Option<String>,
    /// Additional key exchanges with their numbers, 1 to 7 (RFC 9370).
    pub additional: Vec<(u8, String)>,
}

impl std::fmt::Display for Algorithms {
    /// As `swanctl` prints them: `AES_CBC-128/HMAC_SHA2_256_128/PRF_HMAC_SHA2_256/CURVE_25519`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sized = |(name, bits): &(String, Option<u16>)| match bits {
            Some(bits) => format!("{name}-{bits}"),
            None => name.clone(),
        };
        let sized = [&self.encryption, &self.integrity].into_iter().flatten().map(sized);
        let named = [&self.prf, &self.key_exchange].into_iter().flatten().cloned();
        let additional = self.additional.iter().map(|(number, name)| format!("KE{number}_{name}"));
        f.write_str(&sized.chain(named).chain(additional).collect::<Vec<_>>().join("/"))
    }
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
    /// 1 or 2; 0 where keys are not those of IKE.
    pub version: u8,
    /// State.
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
    /// True if this end began it.
    pub initiator: bool,
    /// SPI of the initiator.
    pub initiator_spi: u64,
    /// SPI of the responder, 0 before it answers.
    pub responder_spi: u64,
    /// True if there is a NAT in front of this host.
    pub nat_local: bool,
    /// True if the peer is.
    pub nat_remote: bool,
    /// True if encapsulation is forced without one.
    pub nat_fake: bool,
    /// Negotiated proposal; none before the negotiation.
    pub algorithms: Option<Algorithms>,
    /// True if a post-quantum preshared key took part (RFC 8784).
    pub ppk: bool,
    /// Age in seconds, once established.
    pub established_s: Option<u64>,
    /// Seconds until it is rekeyed.
    pub rekey_s: Option<i64>,
    /// Seconds until reauthentication.
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
    /// Request ID, shared by SAs that replace each other.
    pub reqid: u32,
    /// State.
    pub state: ChildState,
    /// Mode.
    pub mode: Mode,
    /// Security label.
    pub label: Option<String>,
    /// Fields that exist after installation.
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
    /// True if it is carried in UDP.
    pub encap: bool,
    /// SPI of what arrives.
    pub spi_in: u32,
    /// SPI of what leaves.
    pub spi_out: u32,
    /// Interface number inbound.
    pub if_id_in: Option<u32>,
    /// Interface number outbound.
    pub if_id_out: Option<u32>,
    /// True if there is an SA per CPU (RFC 9611).
    pub per_cpu_sas: bool,
    /// The CPU of this one; none for the fallback.
    pub cpu: Option<u32>,
    /// Negotiated proposal.
    pub algorithms: Algorithms,
    /// True if sequence numbers have 64 bits.
    pub esn: bool,
    /// Inbound traffic.
    pub usage_in: Usage,
    /// Outbound traffic.
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

impl IkeSaListing {
    /// The event of `list-sas`.
    pub fn list_sa(&self) -> Message {
        self.named(self.body(&self.children))
    }

    /// The event `ike-updown`. The section of Child SAs is present and empty, because `swanctl
    /// --monitor-sa` prints an IKE SA only when it meets that section.
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
        sa.set_display("uniqueid", self.unique_id);
        // swanctl prints it after `IKEv`.
        match self.version {
            0 => sa.set("version", NOT_IKE),
            version => sa.set_display("version", version),
        };
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
    /// Mode of its SAs, or another action.
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

    /// Returns whether a request of `list-policies` selects it.
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
