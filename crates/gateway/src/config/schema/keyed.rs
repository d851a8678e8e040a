//! Keys of the sections `connections`, `secrets`, `pools` and `authorities`, named as in
//! swanctl.conf.

use super::Kind::{Bytes, Dscp, Files, List, Number, Secret, Switch, Text, Time, Words};
use super::{Key, key};

const WIDE: u64 = u32::MAX as u64;
const ACTIONS: &[&str] = &["none", "clear", "trap", "route", "start", "restart"];
const IF_ID: &str = "remove it: packets pass Weir's own device, 'tun' in the section 'gateway'; \
    with 'routes = none' there it carries what you route into it and a child selects";
const MARK: &str = "remove it and select by 'local_ts' and 'remote_ts', with protocol and ports: \
    marks select nothing here; equal networks behind two peers need NAT before the tunnel";
const SET_MARK: &str =
    "remove it and mark packets at Weir's device: nft add rule inet filter prerouting iifname weir0 meta mark set 42";
const MEDIATION: &str = "remove it: mediation is no IETF protocol; write the address of the peer";
const TOKEN: &str = "remove it and put the key or certificate into a file: tokens and smartcards are not supported";

/// `connections.NAME`.
pub(crate) const CONNECTION: &[Key] = &[
    key(
        "protocol",
        Words(&["ike", "psp"]),
        "ike",
        "How keys are agreed: IKE for ESP, AH and EESP, or the key service of PSP",
    ),
    key("version", Words(&["0", "1", "2"]), "0", "Version of IKE: 0 and 2 are IKEv2, 1 is IKEv1"),
    key(
        "local_addrs",
        List("addresses, networks, ranges, names"),
        "%any",
        "Addresses of this host; the first single address is the source of initiations",
    ),
    key(
        "remote_addrs",
        List("addresses, networks, ranges, names"),
        "%any",
        "Addresses of the peer; without a single address this host only responds",
    ),
    key("local_port", Number(1, 65_535), "500", "UDP port of this host; 4500 starts with the marker of NAT traversal"),
    key("remote_port", Number(1, 65_535), "500", "UDP port of the peer"),
    key("proposals", List("IKE proposals"), "default", "Algorithms of the IKE SA, in order of preference"),
    key("allow_legacy", Switch, "that of gateway", "Permits weak algorithms in this connection"),
    key("vips", List("addresses"), "", "Virtual addresses to request; 0.0.0.0 and :: request any"),
    key("dns", Switch, "yes", "Request name servers with virtual addresses, and use them; see 'resolver' of gateway"),
    key(
        "aggressive",
        Switch,
        "no",
        "IKEv1: initiate aggressive mode, and answer it; with a shared key see 'aggressive_mode_psk' of gateway",
    ),
    key("pull", Switch, "yes", "IKEv1: the client requests its virtual addresses; otherwise the server sends them"),
    key("dscp", Dscp, "000000", "DSCP of IKE packets"),
    key(
        "encap",
        Words(&["no", "yes", "auto"]),
        "no",
        "ESP in UDP without a NAT: `auto` if the peer has `auto` as well, see [UDP without a NAT](#udp-without-a-nat)",
    ),
    key("mobike", Switch, "yes", "Follow the peer to other addresses (RFC 4555)"),
    key("dpd_delay", Time, "0s", "Idle time after which a liveness check is sent (DPD); 0 disables it"),
    key(
        "dpd_timeout",
        Time,
        "0s",
        "IKEv1: silence after which the peer is dead; 0 waits for the retransmissions of the liveness check",
    ),
    key(
        "fragmentation",
        Words(&["yes", "accept", "no", "force"]),
        "yes",
        "Fragments of IKE messages (RFC 7383, in IKEv1 a vendor's extension); without them IP fragments what exceeds the MTU",
    ),
    key("childless", Words(&["allow", "prefer", "force", "never"]), "allow", "IKE SAs without Child SA (RFC 6023)"),
    key("send_certreq", Switch, "yes", "Request certificates by the names of the trusted CAs"),
    key("send_cert", Words(&["ifasked", "always", "never"]), "ifasked", "When to send certificates"),
    key(
        "ocsp",
        Words(&["reply", "never", "request", "both"]),
        "reply",
        "OCSP responses in IKE (RFC 4806): send them on request, or request them",
    ),
    key(
        "ppk_id",
        Text,
        "",
        "Post-quantum preshared key to use, or what the peer's must match: a name, `*@example.org`, `%any` (RFC 8784); without it a responder accepts any key of 'secrets'",
    ),
    key("ppk_required", Switch, "no", "Refuse a peer without such a key"),
    key("keyingtries", Number(0, WIDE), "1", "Attempts to reach the peer; 0 retries without limit"),
    key("unique", Words(&["no", "never", "keep", "replace"]), "no", "Handling of a second IKE SA of the same peer"),
    key(
        "ts_conflict",
        Words(&["refuse", "replace"]),
        "refuse",
        "Child SA with selectors that another peer uses: refused, or the newer peer receives the traffic",
    ),
    key("reauth_time", Time, "0s", "Time between authentications; 0 is never"),
    key("rekey_time", Time, "4h; 0s with reauth_time", "Time between rekeyings of the IKE SA; 0 is never"),
    key("over_time", Time, "10 % of the longer of both", "Time after these at which the IKE SA ends unconditionally"),
    key("rand_time", Time, "over_time, at most half of the shorter", "Maximum random reduction of the times"),
    key("pools", List("names"), "", "Pools from which clients get addresses"),
    key("retransmit_timeout", Time, "4s", "Timeout of the first retransmission"),
    key("retransmit_base", Text, "1.8", "Factor between successive timeouts, 1 to 10"),
    key("retransmit_tries", Number(0, 100), "5", "Retransmissions before the peer is considered dead"),
    key("if_id_in", Text, "0", "XFRM interface").refused(&["0"], IF_ID),
    key("if_id_out", Text, "0", "XFRM interface").refused(&["0"], IF_ID),
    key("mediation", Switch, "no", "Mediation server").refused(&["no"], MEDIATION),
    key("mediated_by", Text, "", "Mediation").refused(&[], MEDIATION),
    key("mediation_peer", Text, "", "Mediation").refused(&[], MEDIATION),
];

/// `local…` and `remote…` of a connection.
pub(crate) const AUTH: &[Key] = &[
    key(
        "auth",
        Text,
        "pubkey",
        "`pubkey`, `psk`, `eap`, `eap-md5`, `eap-mschapv2`, `eap-tls`, `xauth`; for the peer also `any`, `eap-dynamic`. Constraints as in `rsa-2048-sha256`, `ike:ecdsa-sha384`",
    ),
    key(
        "id",
        Text,
        "%any",
        "Identity; for the peer may contain `*`. `%any` uses that of the certificate, or the address",
    ),
    key("round", Number(0, WIDE), "0", "Order of several rounds (RFC 4739); default: order in the file"),
    key("certs", Files, "", "Certificates to use (local) or to accept (remote); relative to x509"),
    key("cacerts", Files, "", "CA certificates, one of which must have issued the certificate; relative to x509ca"),
    key("pubkeys", Files, "", "Raw public keys to use (local) or to accept (remote); relative to pubkey"),
    key("eap_id", Text, "id", "EAP identity; for the peer: request it and match it, `%any` for any"),
    key("xauth_id", Text, "", "IKEv1: user name of XAuth; for the peer: what its name must match"),
    key("groups", List("names"), "", "Groups, one of which the peer must belong to"),
    key("cert_policy", List("OIDs"), "", "Policies that the certificate of the peer must contain"),
    key("revocation", Words(&["relaxed", "ifuri", "strict"]), "relaxed", "Handling of a missing CRL"),
    key("aaa_id", Text, "id of the peer", "Identity of an AAA server")
        .refused(&[], "remove it: EAP-TLS expects the identity of the peer"),
    key("ca_id", Text, "", "Identity of a CA").refused(&[], "name its certificate: 'cacerts = FILE'"),
];

/// `cert…` and `cacert…` of `local…` and `remote…`.
pub(crate) const CERT: &[Key] = &[
    key("file", Text, "required", "Certificate"),
    key("handle", Text, "", "Certificate on a token").refused(&[], TOKEN),
    key("slot", Text, "", "Slot of a token").refused(&[], TOKEN),
    key("module", Text, "", "Module of a token").refused(&[], TOKEN),
];

/// `children.NAME` of a connection.
pub(crate) const CHILD: &[Key] = &[
    key("esp_proposals", List("ESP proposals"), "default, without others", "Algorithms of ESP, in order of preference"),
    key("ah_proposals", List("AH proposals"), "", "Algorithms of AH"),
    key("eesp_proposals", List("EESP proposals"), "", "Algorithms of EESP: AEAD ciphers, `sskdf…` for Sub SAs"),
    key("local_ts", List("selectors"), "dynamic", "Traffic selectors of this side"),
    key("remote_ts", List("selectors"), "dynamic", "Traffic selectors of the peer's side"),
    key(
        "mode",
        Words(&["tunnel", "transport", "beet", "pass", "drop", "transport_proxy", "iptfs"]),
        "tunnel",
        "Mode; `iptfs` see [IP-TFS](#ip-tfs). `pass` and `drop` are policies without SA. `transport_proxy` is refused",
    ),
    key(
        "iptfs_required",
        Switch,
        "no",
        "IP-TFS: refuse the Child SA if the peer does not agree; otherwise it is a tunnel",
    ),
    key("iptfs_accept_fragments", Switch, "yes", "IP-TFS: receive inner packets that are cut between outer packets"),
    key("iptfs_dont_fragment", Switch, "no", "IP-TFS: never cut an inner packet"),
    key(
        "iptfs_prefer_whole",
        Switch,
        "yes",
        "IP-TFS: begin another outer packet instead of cutting, if at most a tenth is free",
    ),
    key(
        "iptfs_packet_size",
        Number(0, 65_535),
        "0",
        "IP-TFS: size of outer packets in bytes, 256 or more; 0 is the path MTU, which limits it",
    ),
    key(
        "iptfs_rate",
        Text,
        "0",
        "IP-TFS: constant rate of outer packets with their IP headers, `64kbit` to `10gbit`, which requires `iptfs_packet_size` and implies `iptfs_required`; 0 sends on demand",
    ),
    key(
        "iptfs_reorder_window",
        Number(0, 32),
        "3",
        "IP-TFS: outer packets that may arrive after their successors without loss",
    ),
    key("iptfs_drop_time", Number(1, 10_000), "25", "IP-TFS: time to wait for a missing outer packet in ms"),
    key("rekey_time", Time, "1h, or 10 % below life_time", "Time between rekeyings; 0 is never"),
    key("life_time", Time, "10 % above rekey_time", "Time after which the Child SA ends"),
    key("rand_time", Time, "life_time − rekey_time", "Maximum random reduction of rekey_time, at most half"),
    key("rekey_bytes", Bytes, "0, or 10 % below life_bytes", "Bytes between rekeyings; 0 is never"),
    key("life_bytes", Bytes, "10 % above rekey_bytes", "Bytes after which the Child SA ends"),
    key("rand_bytes", Bytes, "life_bytes − rekey_bytes", "Maximum random reduction of rekey_bytes, at most half"),
    key("rekey_packets", Number(0, u64::MAX), "0, or 10 % below life_packets", "Packets between rekeyings; 0 is never"),
    key("life_packets", Number(0, u64::MAX), "10 % above rekey_packets", "Packets after which the Child SA ends"),
    key(
        "rand_packets",
        Number(0, u64::MAX),
        "life_packets − rekey_packets",
        "Maximum random reduction of rekey_packets, at most half",
    ),
    key(
        "start_action",
        Text,
        "none",
        "On load: `none`, `trap` waits for a packet, `start` initiates at once, `trap\\|start`",
    ),
    key("dpd_action", Words(ACTIONS), "clear", "Action when the peer is dead: `clear`, `trap`, `restart`"),
    key("close_action", Words(ACTIONS), "none", "Action when the peer closes the Child SA: `none`, `trap`, `start`"),
    key("inactivity", Time, "0s", "Closes a Child SA without traffic; 0 is never"),
    key(
        "per_cpu_sas",
        Words(&["no", "yes", "encap"]),
        "no",
        "One Child SA per CPU (RFC 9611); requires `trap` in start_action",
    ),
    key(
        "replay_window",
        Number(0, 65_536),
        "1024",
        "Anti-replay window in packets; 0 disables the check; 1 to 31 count as 32, with EESP 1 to 63 as 64",
    ),
    key("priority", Number(0, WIDE), "0", "Order of policies, lower first; 0 derives it from the selectors"),
    key("reqid", Number(0, WIDE), "0", "Request ID in listings; 0 assigns one"),
    key(
        "updown",
        Text,
        "",
        "Shell command run on up and down, see [Commands on up and down](#commands-on-up-and-down)",
    ),
    key("tfc_padding", Text, "0", "Smallest ESP packet in bytes, or `mtu`"),
    key("copy_df", Switch, "yes", "Copy DF to the outer header"),
    key("copy_ecn", Switch, "yes", "Copy ECN marks across the tunnel (RFC 6040)"),
    key(
        "copy_dscp",
        Words(&["out", "no", "in", "yes"]),
        "out",
        "Copy DSCP to the outer header; `in` and `yes` are refused",
    ),
    key(
        "sha256_96",
        Switch,
        "no",
        "Truncates the ICV of HMAC-SHA-256 to 96 bits (Linux before 2.6.33 and old peers); set it on both hosts",
    ),
    key("eesp_max_sub_sa_id", Number(0, 65_535), "no limit", "EESP: highest Sub SA ID that this side accepts"),
    key(
        "eesp_max_crypt_offset",
        Number(0, 252),
        "refuse",
        "EESP: largest crypt offset in bytes that this side accepts, a multiple of 4; no effect in `mode = iptfs`",
    ),
    key("hostaccess", Switch, "no", "Sets PLUTO_HOST_ACCESS for the updown command"),
    key("policies_fwd_out", Switch, "no", "Forward policies outwards")
        .no_effect("policies apply to forwarded packets in both directions"),
    key("icmp", Switch, "no", "ICMP errors from outside of the selectors")
        .no_effect("an error passes where the selectors include its sender"),
    key("policies", Switch, "yes", "Install policies")
        .refused(&["yes"], "remove it: without policies a Child SA protects nothing"),
    key("ipcomp", Switch, "no", "IPComp").refused(
        &["no"],
        "write 'ipcomp = no': compression is not supported, and it leaks contents through packet lengths",
    ),
    key("hw_offload", Words(&["no", "auto", "yes", "crypto", "packet"]), "no", "Offload to a device")
        .refused(&["no", "auto"], "write 'hw_offload = auto', or remove it: Weir works in user space"),
    key("interface", Text, "", "Interface of the policies")
        .refused(&[], "remove it and select the traffic by local_ts: policies apply to Weir's own device"),
    key("mark_in", Text, "0", "Netfilter mark").refused(&["0", "0/0x00000000"], MARK),
    key("mark_in_sa", Switch, "no", "Netfilter mark").refused(&["no"], MARK),
    key("mark_out", Text, "0", "Netfilter mark").refused(&["0", "0/0x00000000"], MARK),
    key("set_mark_in", Text, "0", "Netfilter mark").refused(&["0", "0/0x00000000"], SET_MARK),
    key("set_mark_out", Text, "0", "Netfilter mark").refused(&["0", "0/0x00000000"], SET_MARK),
    key("if_id_in", Text, "0", "XFRM interface").refused(&["0"], IF_ID),
    key("if_id_out", Text, "0", "XFRM interface").refused(&["0"], IF_ID),
    key("label", Text, "", "Security label")
        .refused(&[], "remove it: security labels are not supported; use local_ts and remote_ts"),
    key("label_mode", Words(&["system", "simple", "selinux"]), "system", "Handling of a label")
        .no_effect("labels are not supported"),
];

/// A connection with `protocol = psp`.
pub(crate) const PSP: &[Key] = &[
    key(
        "protocol",
        Words(&["ike", "psp"]),
        "ike",
        "`psp`: keys by the key service of PSP, over TLS 1.3 with certificates on both sides",
    ),
    key("local_addrs", List("addresses, names"), "%any", "Address of this host for the key service and for packets"),
    key(
        "remote_addrs",
        List("addresses, names"),
        "%any",
        "Addresses of the peer; without a single address this host only responds",
    ),
    key("local_port", Number(1, 65_535), "psp_port of gateway", "TCP port of this host's key service"),
    key("remote_port", Number(1, 65_535), "psp_port of gateway", "TCP port of the peer's key service"),
    key("dpd_delay", Time, "30s", "Idle time of the key channel after which a liveness check is sent; 0 disables it"),
    key("keyingtries", Number(0, WIDE), "0", "Attempts to reach the peer; 0 retries without limit"),
];

/// A child of a connection with `protocol = psp`.
pub(crate) const PSP_CHILD: &[Key] = &[
    key(
        "psp_version",
        List("0 to 3"),
        "0",
        "Versions, in order of preference: 0 AES-128-GCM, 1 AES-256-GCM; 2 and 3 are GMAC and need `allow_psp_gmac`",
    ),
    key("mode", Words(&["tunnel", "transport"]), "tunnel", "Mode"),
    key("local_ts", List("selectors"), "dynamic", "Traffic selectors of this side"),
    key("remote_ts", List("selectors"), "dynamic", "Traffic selectors of the peer's side"),
    key(
        "crypt_offset",
        Number(0, 252),
        "0",
        "Bytes after the IV to leave in clear text, a multiple of 4; the peer must accept it",
    ),
    key("max_crypt_offset", Number(0, 252), "0", "Largest crypt offset that is accepted"),
    key("cookie", Number(0, u64::MAX), "", "Virtualisation cookie to send"),
    key(
        "replay_window",
        Number(0, 65_536),
        "1024",
        "Anti-replay window in packets, used if the peer announces that its IVs count packets; 1 to 31 count as 32",
    ),
    key("rekey_time", Time, "12h", "Time between new keys, at most 24 h"),
    key("rekey_packets", Number(1, 1 << 48), "4294967296", "Packets between new keys"),
    key(
        "start_action",
        Text,
        "none",
        "On load: `none`, `trap` waits for a packet, `start` initiates at once, `trap\\|start`",
    ),
    key("copy_df", Switch, "yes", "Copy DF to the outer header"),
    key("copy_ecn", Switch, "yes", "Copy ECN marks across the tunnel (RFC 6040)"),
    key("copy_dscp", Words(&["out", "no"]), "out", "Copy DSCP to the outer header"),
];

/// A section of `secrets`.
pub(crate) const SECRET: &[Key] = &[
    key("secret", Secret, "required", "The secret, or the passphrase of a key file; of key files several: `secret-1`")
        .many(),
    key(
        "id",
        Text,
        "any identity",
        "`ike`, `eap`, `xauth`, `ntlm`, `ppk`: identity of the owner; several: `id-1`, `id-2`",
    )
    .many(),
    key(
        "file",
        Text,
        "required for key files",
        "`private`, `rsa`, `ecdsa`, `pkcs8`, `pkcs12`: file in the folder of that name",
    ),
    key("handle", Text, "", "`token`: key on a token").refused(&[], TOKEN),
    key("slot", Text, "", "`token`: slot").refused(&[], TOKEN),
    key("module", Text, "", "`token`: module").refused(&[], TOKEN),
    key("pin", Secret, "", "`token`: PIN").refused(&[], TOKEN),
];

/// A section of `pools`.
pub(crate) const POOL: &[Key] = &[
    key(
        "addrs",
        Text,
        "required",
        "Network or range to assign addresses from; the first and last address of a network are not assigned",
    ),
    key("dns", List("addresses"), "", "DNS servers"),
    key("nbns", List("addresses"), "", "NetBIOS name servers"),
    key("dhcp", List("addresses"), "", "DHCP servers"),
    key("netmask", List("addresses"), "", "Netmask of the client's network"),
    key("server", List("addresses"), "", "Attribute `INTERNAL_IP4_SERVER`, `INTERNAL_IP6_SERVER`"),
    key("subnet", List("networks"), "", "Networks of this host"),
    key("p_cscf", List("addresses"), "", "Servers of RFC 7651"),
    key("split_include", List("networks"), "", "Networks to send here (Unity)"),
    key("split_exclude", List("networks"), "", "Networks to exclude (Unity)"),
];

/// A section of `authorities`.
pub(crate) const AUTHORITY: &[Key] = &[
    key("cacert", Files, "required", "Certificate of the CA, relative to x509ca"),
    key("file", Text, "", "Certificate of the CA by its absolute path"),
    key("crl_uris", List("URIs"), "", "URIs of its CRLs: `file://` or `http://`"),
    key("ocsp_uris", List("URIs"), "", "Its OCSP servers: `http://`"),
    key("cert_uri_base", Text, "", "Hash-and-URL of certificates").no_effect("certificates are always sent in full"),
    key("handle", Text, "", "CA certificate on a token").refused(&[], TOKEN),
    key("slot", Text, "", "Slot of a token").refused(&[], TOKEN),
    key("module", Text, "", "Module of a token").refused(&[], TOKEN),
];
