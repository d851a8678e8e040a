//! Connections of the configuration.

use super::{Message, Mode, printable, set_items};

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
    /// Handling of a second IKE SA, as in `UNIQUE_NO`.
    pub unique: &'static str,
    /// Seconds; 0 for no dead peer detection.
    pub dpd_delay_s: u64,
    /// Seconds, of IKEv1; 0 for none.
    pub dpd_timeout_s: u64,
    /// Identity of a post-quantum preshared key.
    pub ppk_id: Option<String>,
    /// True if there must be one.
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
    /// Handling of missing revocation information.
    pub revocation: Option<String>,
    /// Groups; the peer must be a member of at least one.
    pub groups: Vec<String>,
    /// Policies; a certificate must have at least one.
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
    /// Mode, or action of a policy.
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
