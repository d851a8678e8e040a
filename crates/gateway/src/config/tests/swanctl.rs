//! Files of swanctl, and the messages that it makes of them.

use std::io;
use std::time::Duration;

use ike::config::{
    Action, AuthMethod, ChildMode, EapType, Encap, IptfsConfig, PerCpuSas, Revocation, StartAction, Unique,
};
use ike::identity::IdPattern;
use ike::proposal::ChildProtocol;
use vici::Message;

use super::*;

/// A SEQUENCE: as far as a configuration looks into a certificate.
const DER: &[u8] = &[0x30, 3, 2, 1, 5];

fn a_file(path: &Path) -> io::Result<Vec<u8>> {
    if path.to_string_lossy().contains("absent") { Err(io::ErrorKind::NotFound.into()) } else { Ok(DER.to_vec()) }
}

fn outside() -> Outside<'static> {
    Outside { folder: "/etc/weir".into(), read: &a_file }
}

pub(crate) fn swanctl(text: &str) -> Result<Config, Problems> {
    let file = SourceFile { name: "swanctl.conf".into(), text: Zeroizing::new(text.into()) };
    check(&syntax::parse(file, Path::new("."))?, Purpose::Gateway, &outside())
}

fn reported(text: &str) -> String {
    swanctl(text).err().map(|problems| format!("{problems}\n{}", problems.render(false))).unwrap_or_default()
}

/// A faultless file in which lines can be exchanged.
const GOOD: &str = "\
connections {
    home {
        remote_addrs = sun.example
        version = 2
        proposals = aes256-sha256-x25519
        rekey_time = 2h
        local {
            auth = pubkey
            certs = moon.pem
            id = moon.example
        }
        remote {
            auth = pubkey
            id = sun.example
        }
        children {
            net {
                local_ts = 10.2.0.0/24
                remote_ts = 10.1.0.0/24, 10.3.0.0/24[tcp/https]
                esp_proposals = aes256gcm16-x25519
                start_action = trap
            }
        }
    }
}
secrets {
    ike-sun {
        id-1 = sun.example
        secret = \"open sesame\"
    }
}
pools {
    clients {
        addrs = 10.3.0.0/24
        dns = 10.1.0.1
    }
}
authorities {
    root {
        cacert = ca.pem
    }
}
";

#[test]
fn per_cpu_sas_over_certificates_load_as_published() {
    for (text, own, peer) in [
        (include_str!("sun.conf"), "sun.strongswan.org", "192.168.0.20"),
        (include_str!("moon.conf"), "moon.strongswan.org", "192.168.0.10"),
    ] {
        let config = swanctl(text).unwrap_or_else(|problems| panic!("{problems}"));
        let [connection] = config.keyed.connections.as_slice() else { panic!("not one connection") };
        assert_eq!((connection.name.as_str(), connection.mobike), ("lake", false));
        assert_eq!(connection.remote_addrs[0].to_string(), peer);
        let IdPattern::Like(id) = &connection.local[0].id else { panic!("no identity") };
        assert_eq!(id.data, own.as_bytes());
        assert_eq!(connection.local[0].certs.len(), 1);
        assert_eq!(config.keyed.certificates.end_entities.len(), 1);
        let [child] = connection.children.as_slice() else { panic!("not one child") };
        assert_eq!(
            (child.name.as_str(), child.mode, child.per_cpu_sas),
            ("water", ChildMode::Transport, PerCpuSas::Yes)
        );
        assert_eq!(child.start_action, StartAction { trap: true, start: false });
        assert_eq!(child.updown.as_deref(), Some("/usr/local/libexec/ipsec/_updown iptables"));
        assert!(child.local_ts[0].addrs.is_none() && child.remote_ts[0].addrs.is_none());
        assert!(child.hostaccess && config.warnings.is_empty(), "{:?}", config.warnings);
    }
}

#[test]
fn what_is_not_written_is_as_in_strongswan() {
    let config = swanctl("connections {\n a {\n children {\n b {\n }\n }\n }\n}").unwrap();
    let connection = &config.keyed.connections[0];
    assert_eq!((connection.unique, connection.keyingtries), (Unique::No, 1));
    assert_eq!((connection.local_port, connection.remote_port, connection.dscp), (500, 500, 0));
    assert!(connection.mobike && connection.send_certreq && connection.encap == Encap::No);
    assert!(connection.local_addrs.is_empty() && connection.remote_addrs.is_empty());
    assert!(!connection.proposals.is_empty());
    let s = Duration::from_secs;
    assert_eq!((connection.rekey_time, connection.over_time, connection.rand_time), (s(14_400), s(1440), s(1440)));
    assert_eq!((connection.dpd_delay, connection.reauth_time), (Duration::ZERO, Duration::ZERO));
    for auth in connection.local.iter().chain(&connection.remote) {
        assert_eq!((&auth.method, &auth.id), (&AuthMethod::PublicKey(Vec::new()), &IdPattern::Any));
    }
    let child = &connection.children[0];
    assert_eq!((child.time.rekey, child.time.life, child.time.rand), (s(3600), s(3960), s(360)));
    assert_eq!((child.bytes.rekey, child.bytes.life, child.packets.rekey), (0, 0, 0));
    assert_eq!((child.mode, child.replay_window, child.dpd_action), (ChildMode::Tunnel, 1024, Action::Clear));
    assert!(child.copy_df && child.copy_ecn && child.copy_dscp && !child.sha256_96);
    assert!(child.proposals.iter().all(|proposal| proposal.protocol == ChildProtocol::Esp));
}

#[test]
fn settings_of_iptfs_are_read() {
    let child = |lines: &str| {
        let text = format!("connections {{\n a {{\n children {{\n b {{\n{lines}\n }}\n }}\n }}\n}}");
        let config = swanctl(&text).unwrap_or_else(|problems| panic!("{problems}"));
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        config.keyed.connections[0].children[0].clone()
    };
    let plain = child("mode = iptfs");
    assert_eq!((plain.mode, plain.iptfs), (ChildMode::Iptfs, IptfsConfig::default()));
    assert_eq!(child("mode = iptfs\neesp_proposals = aes256gcm16-sskdfsha256").mode, ChildMode::Iptfs);
    let all = child(
        "mode = iptfs\niptfs_required = yes\niptfs_accept_fragments = no\niptfs_dont_fragment = yes\n\
         iptfs_prefer_whole = no\niptfs_packet_size = 1280\niptfs_reorder_window = 9\niptfs_drop_time = 40",
    );
    let expected = IptfsConfig {
        required: true,
        accept_fragments: false,
        dont_fragment: true,
        prefer_whole: false,
        packet_size: 1280,
        rate_kbps: 0,
        reorder_window: 9,
        drop_time: Duration::from_millis(40),
    };
    assert_eq!(all.iptfs, expected);
    let rate = |rate: &str| {
        let iptfs = child(&format!("mode = iptfs\niptfs_packet_size = 1400\niptfs_rate = {rate}")).iptfs;
        (iptfs.rate_kbps, iptfs.required)
    };
    assert_eq!(
        ["0", "64kbit", "100Mbit", "10 gbit"].map(rate),
        [(0, false), (64, true), (100_000, true), (10_000_000, true)]
    );
    // The bounds that the messages about intervals name.
    for (size, rate) in [(2000, "64kbit"), (977, "10gbit")] {
        let iptfs = child(&format!("mode = iptfs\niptfs_packet_size = {size}\niptfs_rate = {rate}")).iptfs;
        assert_eq!(iptfs.packet_size, size);
    }
}

#[test]
fn settings_that_iptfs_or_its_rate_makes_pointless_are_reported() {
    let warnings = |lines: &str| {
        let text = format!("connections {{\n a {{\n children {{\n b {{\n{lines}\n }}\n }}\n }}\n}}");
        swanctl(&text).unwrap_or_else(|problems| panic!("{problems}")).warnings
    };
    for setting in ["tfc_padding = 100", "eesp_max_crypt_offset = 32"] {
        let reported = warnings(&format!("mode = iptfs\neesp_proposals = aes256gcm16\n{setting}"));
        let [warning] = &reported[..] else { panic!("{setting}: {reported:?}") };
        assert!(warning.contains("no effect in 'mode = iptfs'"), "{warning}");
    }
    let trap = |action| {
        let child = "mode = iptfs\niptfs_packet_size = 1400\niptfs_rate = 1mbit\nremote_ts = 10.2.0.0/16";
        let text = format!(
            "connections {{\n a {{\n remote_addrs = 192.0.2.2\n children {{\n b {{\n{child}\nstart_action = {action}\n }}\n }}\n }}\n}}"
        );
        let reported = swanctl(&text).unwrap_or_else(|problems| panic!("{problems}")).warnings;
        reported.iter().any(|warning| warning.contains("b.start_action: the setup of the Child SA shows"))
    };
    assert_eq!(["trap", "none", "start", "trap|start"].map(trap), [true, false, false, false]);
}

#[test]
fn a_faultless_file_is_read_as_written() {
    let config = swanctl(GOOD).unwrap();
    let keyed = &config.keyed;
    let connection = &keyed.connections[0];
    assert_eq!(connection.remote_addrs, [ike::config::Host::Name("sun.example".to_owned())]);
    assert_eq!(connection.children[0].remote_ts[1].ports, wire::PortRange::single(443));
    assert_eq!(keyed.secrets[0].octets(), b"open sesame");
    assert_eq!(
        (keyed.secrets[0].kind, keyed.secrets[0].ids.as_slice()),
        (SecretKind::Ike, &["sun.example".to_owned()][..])
    );
    assert_eq!(keyed.pools[0].attributes, [(3, vec![10, 1, 0, 1])]);
    assert_eq!(keyed.certificates.authorities[0].from, "/etc/weir/x509ca/ca.pem");
}

/// The daemon resolves names by itself; only `weir check` looks.
#[test]
fn a_name_without_address_stays_a_name_and_is_never_any() {
    let mut config = swanctl(&GOOD.replace("remote_addrs = sun.example", "remote_addrs = venus.example")).unwrap();
    assert_eq!(config.keyed.connections[0].host_names().collect::<Vec<_>>(), ["venus.example"]);
    let reported = config.keyed.resolve(|_| Err(io::Error::other("no such host")));
    let wanted = "connections.home.remote_addrs: 'venus.example' does not resolve: no such host; its traffic is dropped until it does";
    assert_eq!(reported, [wanted.replace(".remote_addrs", "")]);
    assert_eq!(config.keyed.unresolved, ["home"]);
}

#[test]
fn every_fault_is_told_with_place_and_remedy() {
    let child = "start_action = trap";
    for (line, instead, place, message, help) in [
        ("version = 2", "version = 3", "swanctl.conf:4:19", "connections.home.version: '3'", "0, 1, 2"),
        (
            "version = 2\n        proposals = aes256-sha256-x25519",
            "version = 1\n        proposals = aes128gcm16-prfsha256-x25519",
            "swanctl.conf:4:19",
            "IKEv1 cannot express any of the proposals",
            "aes128-sha256-modp2048",
        ),
        (
            "version = 2\n        proposals = aes256-sha256-x25519\n        rekey_time = 2h\n        local {\n            auth = pubkey",
            "version = 1\n        proposals = aes256-sha256-modp2048\n        rekey_time = 2h\n        local {\n            auth = psk",
            "swanctl.conf:4:19",
            "one method of IKEv1 authenticates both ends",
            "write 'auth = psk' or 'auth = pubkey'",
        ),
        (
            "version = 2",
            "version = 1\n        childless = force",
            "swanctl.conf:5:21",
            "childless: an ISAKMP SA of IKEv1 never contains",
            "remove it",
        ),
        (
            "version = 2\n        proposals = aes256-sha256-x25519",
            "version = 1\n        encap = auto",
            "swanctl.conf:5:17",
            "encap: 'auto' is agreed by a vendor ID of IKEv2",
            "write yes or no",
        ),
        ("version = 2", "encap = maybe", "swanctl.conf:4:17", "encap: 'maybe'", "yes, no or auto"),
        (
            "esp_proposals = aes256gcm16-x25519",
            "ah_proposals = sha256\n    }\n   }\n  encap = auto\n  children {\n   more {",
            "swanctl.conf:23:11",
            "encap: AH of child 'net' is not carried in UDP",
            "encap = no",
        ),
        ("version = 2", "aggressive = yes", "swanctl.conf:4:22", "aggressive: 'yes' has no meaning in IKEv2", "IKEv1"),
        ("version = 2", "pull = no", "swanctl.conf:4:16", "pull: 'no' has no meaning in IKEv2", "IKEv1"),
        (
            "version = 2",
            "dpd_timeout = 150s",
            "swanctl.conf:4:23",
            "dpd_timeout: '150s' has no meaning",
            "retransmit_tries",
        ),
        ("certs = moon.pem", "xauth_id = bob", "swanctl.conf:9:24", "this round is not XAuth", "eap_id"),
        ("auth = pubkey", "auth = xauth", "swanctl.conf:8:20", "'xauth'", "XAuth is part of IKEv1"),
        ("version = 2", "verson = 2", "swanctl.conf:4:9", "unknown key 'verson'", "did you mean 'version'?"),
        ("version = 2", "local = 192.0.2.1", "swanctl.conf:4:9", "unknown key 'local'", "addresses are 'local_addrs'"),
        ("version = 2", "local_ts = 10.0.0.0/8", "swanctl.conf:4:9", "unknown key 'local_ts'", "into a child"),
        ("version = 2", "auth = psk", "swanctl.conf:4:9", "unknown key 'auth'", "section 'local' or 'remote'"),
        ("version = 2", "dscp = 46", "swanctl.conf:4:16", "'46'", "six binary digits"),
        ("version = 2", "mobike = maybe", "swanctl.conf:4:18", "'maybe'", "yes or no"),
        ("version = 2", "if_id_in = 42", "swanctl.conf:4:20", "if_id_in: '42' is not supported", "'tun'"),
        ("version = 2", "mediation = yes", "swanctl.conf:4:21", "mediation: 'yes' is not supported", "remove it"),
        ("version = 2", "ocsp = yes", "swanctl.conf:4:16", "'yes'", "request"),
        ("version = 2", "keyingtries = -1", "swanctl.conf:4:23", "'-1'", "from 0x0"),
        ("version = 2", "ppk_required = yes", "swanctl.conf:4:24", "no key is selected", "ppk_id"),
        ("version = 2", "retransmit_base = 0.5", "swanctl.conf:4:27", "'0.5'", "1 to 10"),
        ("version = 2", "pools = client", "swanctl.conf:4:17", "unknown pool 'client'", "did you mean 'clients'?"),
        ("version = 2", "pools = dhcp", "swanctl.conf:4:17", "unknown pool 'dhcp'", "of the kind 'DHCP'"),
        ("rekey_time = 2h", "rekey_time = 2w", "swanctl.conf:6:22", "'2w'", "s, m, h or d"),
        ("remote_addrs = sun.example", "remote_addrs = 192.0.2.300", "swanctl.conf:3:24", "'192.0.2.300'", "%any"),
        ("aes256-sha256-x25519", "aes256-nonsense", "swanctl.conf:5:21", "connections.home.proposals", "nonsense"),
        ("aes256-sha256-x25519", "aes256-sha256-modp1024", "swanctl.conf:5:21", "modp1024", "allow_legacy = yes"),
        ("auth = pubkey", "auth = pubkye", "swanctl.conf:8:20", "'pubkye'", "did you mean 'pubkey'?"),
        ("auth = pubkey", "auth = eap-ttls", "swanctl.conf:8:20", "'eap-ttls'", "eap-mschapv2"),
        (
            "certs = moon.pem",
            "certs = absent.pem",
            "swanctl.conf:9:21",
            "cannot read /etc/weir/x509/absent.pem",
            "absolute path",
        ),
        ("certs = moon.pem", "certs = 0x3003", "swanctl.conf:9:21", "neither DER nor PEM", "openssl"),
        ("certs = moon.pem", "groups = staff", "swanctl.conf:9:22", "only a peer", "move it to 'remote'"),
        (
            "certs = moon.pem",
            "cert1 {\n handle = 17\n }",
            "swanctl.conf:10:11",
            "handle is not supported",
            "into a file",
        ),
        ("certs = moon.pem", "aaa_id = x", "swanctl.conf:9:22", "aaa_id is not supported", "identity of the peer"),
        ("10.2.0.0/24", "10.2.0.0/33", "swanctl.conf:18:28", "net.local_ts: '10.2.0.0/33'", "dynamic"),
        ("aes256gcm16-x25519", "nonsense", "swanctl.conf:20:33", "net.esp_proposals: 'nonsense'", "nonsense"),
        (child, "start_action = begin", "swanctl.conf:21:32", "'begin'", "trap|start"),
        (child, "mark_out = 42/0xff", "swanctl.conf:21:28", "mark_out: '42/0xff' is not supported", "local_ts"),
        (child, "mark_in = %unique", "swanctl.conf:21:27", "mark_in: '%unique' is not supported", "equal networks"),
        (child, "set_mark_in = 0x2a", "swanctl.conf:21:31", "set_mark_in: '0x2a' is not supported", "meta mark set"),
        (child, "if_id_out = 7", "swanctl.conf:21:29", "if_id_out: '7' is not supported", "routes = none"),
        (child, "hw_offload = packet", "swanctl.conf:21:30", "'packet' is not supported", "hw_offload = auto"),
        (child, "ipcomp = yes", "swanctl.conf:21:26", "ipcomp: 'yes'", "ipcomp = no"),
        (child, "label = system_u", "swanctl.conf:21:25", "label is not supported", "remote_ts"),
        (child, "interface = eth0", "swanctl.conf:21:29", "interface is not supported", "local_ts"),
        (child, "mode = iptfs\nah_proposals = sha256", "swanctl.conf:21:24", "IP-TFS", "mode = tunnel"),
        (
            child,
            "mode = iptfs\neesp_proposals = aes256gcm16-snnone",
            "swanctl.conf:21:24",
            "sequence numbers",
            "mode = tunnel",
        ),
        (
            child,
            "mode = iptfs\neesp_proposals = aes256gcm16-sn64-snnone",
            "swanctl.conf:21:24",
            "sequence numbers",
            "'snnone'",
        ),
        (child, "iptfs_required = yes", "swanctl.conf:21:34", "a setting of IP-TFS", "mode = iptfs"),
        (child, "iptfs_rate = 10mbit", "swanctl.conf:21:30", "a setting of IP-TFS", "mode = iptfs"),
        (child, "mode = iptfs\niptfs_rate = 10mbit", "swanctl.conf:22:14", "one size", "iptfs_packet_size = 1400"),
        (child, "mode = iptfs\niptfs_packet_size = 1400\niptfs_rate = 10", "swanctl.conf:23:14", "'10'", "100mbit"),
        (
            child,
            "mode = iptfs\niptfs_packet_size = 1400\niptfs_rate = 63kbit",
            "swanctl.conf:23:14",
            "'63kbit'",
            "64kbit",
        ),
        (
            child,
            "mode = iptfs\niptfs_packet_size = 1400\niptfs_rate = 11gbit",
            "swanctl.conf:23:14",
            "'11gbit'",
            "10gbit",
        ),
        (
            child,
            "mode = iptfs\niptfs_packet_size = 2001\niptfs_rate = 64kbit",
            "swanctl.conf:23:14",
            "every 250.1 ms is too rare",
            "iptfs_packet_size = 2000",
        ),
        (
            child,
            "mode = iptfs\niptfs_packet_size = 976\niptfs_rate = 10gbit",
            "swanctl.conf:23:14",
            "more than 64 packets of 976 bytes in 50 µs",
            "iptfs_packet_size = 977",
        ),
        (
            child,
            "mode = iptfs\niptfs_packet_size = 1400\niptfs_rate = 1gbit\niptfs_required = no",
            "swanctl.conf:24:18",
            "without IP-TFS",
            "remove it",
        ),
        (
            child,
            "mode = iptfs\niptfs_packet_size = 1400\niptfs_rate = 1gbit\nper_cpu_sas = yes",
            "swanctl.conf:24:15",
            "whole rate",
            "iptfs_rate",
        ),
        (
            child,
            "mode = iptfs\niptfs_packet_size = 1400\niptfs_rate = 1gbit\ninactivity = 5m",
            "swanctl.conf:24:14",
            "never idle",
            "iptfs_rate",
        ),
        (child, "mode = iptfs\niptfs_packet_size = 255", "swanctl.conf:22:21", "256 to 65535", "path MTU"),
        (child, "mode = iptfs\niptfs_reorder_window = 33", "swanctl.conf:22:24", "'33'", "from 0 to 32"),
        (child, "mode = beet\nah_proposals = sha256", "swanctl.conf:21:24", "BEET", "tunnel or transport"),
        (child, "copy_dscp = yes", "swanctl.conf:21:29", "'yes'", "out or no"),
        (
            child,
            "life_time = 30m\nrekey_time = 1h",
            "swanctl.conf:21:29",
            "would expire before rekey_time",
            "remove it",
        ),
        (child, "eesp_max_sub_sa_id = 4", "swanctl.conf:21:38", "no EESP proposal", "eesp_proposals"),
        (child, "replay_window = 70000", "swanctl.conf:21:33", "'70000'", "from 0x0 to 0x10000"),
        (child, "version = 2", "swanctl.conf:21:17", "unknown key 'version'", "move it out of 'children'"),
        (child, "rekey_byte = 4g", "swanctl.conf:21:17", "unknown key 'rekey_byte'", "did you mean 'rekey_bytes'?"),
        ("children {", "childs {", "swanctl.conf:16:9", "unknown section 'childs'", "did you mean"),
        ("ike-sun {", "ikk-sun {", "swanctl.conf:27:5", "unknown kind of secret 'ikk-sun'", "begin the name"),
        ("ike-sun {", "token1 {", "swanctl.conf:27:5", "tokens and smartcards", "private"),
        ("ike-sun {", "rsa-sun {", "swanctl.conf:27:5", "'file' is missing", "folder rsa"),
        ("ike-sun {", "ntlm-sun {", "swanctl.conf:29:18", "secret: invalid value", "16 bytes"),
        (
            "addrs = 10.3.0.0/24",
            "adrs = 10.3.0.0/24",
            "swanctl.conf:34:9",
            "unknown key 'adrs'",
            "did you mean 'addrs'?",
        ),
        ("addrs = 10.3.0.0/24", "addrs = 10.3.0.255/24", "swanctl.conf:34:17", "'10.3.0.255/24'", "last address"),
        ("dns = 10.1.0.1", "dns = ns.example", "swanctl.conf:35:15", "'ns.example'", "an address"),
        ("cacert = ca.pem", "crl_uris = ca.crl", "swanctl.conf:40:20", "'ca.crl'", "file://"),
        ("cacert = ca.pem", "", "swanctl.conf:39:5", "'cacert' is missing", "x509ca"),
        (
            "connections {",
            "conections {",
            "swanctl.conf:1:1",
            "unknown section 'conections'",
            "did you mean 'connections'?",
        ),
        ("pools {", "defaults {", "swanctl.conf:32:1", "unknown section 'defaults'", "reference it"),
    ] {
        assert!(GOOD.contains(line), "{line}");
        let reported = reported(&GOOD.replacen(line, instead, 1));
        assert!(
            reported.contains(place) && reported.contains(message) && reported.contains(help),
            "{line:?} => {instead:?}:\n{reported}\nwanted {place:?} {message:?} {help:?}"
        );
    }
}

#[test]
fn no_secret_is_ever_shown() {
    for (line, instead) in [
        ("secret = \"open sesame\"", "secrt = \"open sesame\""),
        ("secret = \"open sesame\"", "secret \"open sesame\""),
        ("secret = \"open sesame\"", "secret =\nsesame"),
        ("secret = \"open sesame\"", "secret = \"open sesame"),
        ("secret = \"open sesame\"", "secret = 0ssesame"),
        ("secret = \"open sesame\"", "pin = \"open sesame\""),
        ("secret = \"open sesame\"", "handle = \"open sesame\""),
        ("ike-sun {", "ntlm {"),
        ("ike-sun {", "token {"),
        ("ike-sun {", "key = sesame\n x {"),
    ] {
        let reported = reported(&GOOD.replacen(line, instead, 1));
        assert!(!reported.is_empty() && !reported.contains("sesame"), "{instead}: {reported}");
    }
    let config = swanctl(GOOD).unwrap();
    assert!(!format!("{:?}", config.keyed).contains("sesame"));
}

#[test]
fn a_key_of_a_child_that_ikev1_ignores_is_refused_in_its_line() {
    let reported =
        reported(&GOOD.replace("version = 2", "version = 1").replace("start_action = trap", "tfc_padding = 1400"));
    assert!(reported.contains("swanctl.conf:21:31"), "{reported}");
    assert!(
        reported.contains("connections.home.children.") && reported.contains("tfc_padding: IKEv1 cannot"),
        "{reported}"
    );
}

#[test]
fn secrets_are_text_or_octets() {
    let read = |section: &str| {
        let config = swanctl(&format!("secrets {{\n{section}\n}}")).unwrap_or_else(|problems| panic!("{problems}"));
        config.keyed.secrets.iter().map(|entry| (entry.kind, entry.octets().to_vec())).collect::<Vec<_>>()
    };
    assert_eq!(read("ike {\n secret = 0x00ff\n}"), [(SecretKind::Ike, vec![0, 255])]);
    assert_eq!(read("eap-bob {\n id = bob\n secret = 0sZm9v\n}"), [(SecretKind::Eap, b"foo".to_vec())]);
    assert_eq!(read("xauth {\n secret = two  words\n}"), [(SecretKind::Eap, b"two words".to_vec())]);
    let both = read("pkcs12 {\n file = a.p12\n secret = 0x00\n secret-2 = b\n}");
    assert_eq!(both, [(SecretKind::Pkcs12, b"0x00".to_vec()), (SecretKind::Pkcs12, b"b".to_vec())]);
    assert_eq!(read("private-key {\n file = a\n secret = x\n}"), [(SecretKind::Private, b"x".to_vec())]);
}

#[test]
fn rounds_are_sorted_and_sections_of_files_may_be_referred_to() {
    let config = swanctl(
        "base {\n local-1 {\n auth = psk\n }\n}\nconnections {\n a : base {\n local-2 {\n round = 1\n auth = eap-mschapv2\n \
         eap_id = bob\n }\n remote-a {\n round = 2\n auth = eap\n revocation = strict\n }\n remote-b {\n auth = any\n }\n }\n}",
    )
    .unwrap_or_else(|problems| panic!("{problems}"));
    let connection = &config.keyed.connections[0];
    let methods = |rounds: &[ike::config::Auth]| rounds.iter().map(|auth| auth.method.clone()).collect::<Vec<_>>();
    assert_eq!(methods(&connection.local), [AuthMethod::Psk, AuthMethod::Eap(Some(EapType::MsChapV2))]);
    assert_eq!(methods(&connection.remote), [AuthMethod::Any, AuthMethod::Eap(None)]);
    assert_eq!(connection.remote[1].revocation, Revocation::Strict);
}

#[test]
fn a_client_of_eap_is_the_subject_of_the_certificate_that_it_names() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["carol.weir.test".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "carol");
    let der = params.self_signed(&key).unwrap().der().to_vec();
    let a_certificate = move |_: &Path| Ok(der.clone());
    let outside = Outside { folder: "/etc/weir".into(), read: &a_certificate };
    let id_of = |local: &str| {
        let text = format!(
            "connections {{\n a {{\n local {{\n {local}\n }}\n remote {{\n id = moon\n }}\n children {{\n net {{\n }}\n }}\n }}\n}}\n"
        );
        let file = SourceFile { name: "swanctl.conf".into(), text: Zeroizing::new(text) };
        let config = check(&syntax::parse(file, Path::new(".")).unwrap(), Purpose::Gateway, &outside).unwrap();
        config.keyed.connections[0].local[0].id.clone()
    };
    let subject = ike::identity::Identity::parse("CN=carol").unwrap();
    assert!(id_of("auth = eap-tls\n certs = carol.pem").exact().is_some_and(|id| id.is_same(&subject)));
    assert_eq!(
        id_of("auth = eap-tls\n certs = carol.pem\n id = carol@weir.test"),
        IdPattern::parse("carol@weir.test").unwrap()
    );
    assert_eq!(id_of("auth = eap-tls"), IdPattern::Any);
    // A signature takes the identity when it is made.
    assert_eq!(id_of("auth = pubkey\n certs = carol.pem"), IdPattern::Any);
}

#[test]
fn proposals_of_several_protocols_keep_the_order_of_the_file() {
    let protocols = |keys: &str| {
        let config =
            swanctl(&format!("connections {{\n a {{\n children {{\n b {{\n{keys}\n }}\n }}\n }}\n}}")).unwrap();
        let child = &config.keyed.connections[0].children[0];
        let mut protocols: Vec<ChildProtocol> = child.proposals.iter().map(|p| p.protocol).collect();
        protocols.dedup();
        (protocols, child.eesp_max_crypt_offset, child.replay_window)
    };
    let (eesp, esp, ah) = (ChildProtocol::Eesp, ChildProtocol::Esp, ChildProtocol::Ah);
    let both =
        "esp_proposals = aes128gcm16\n eesp_proposals = aes256gcm16\n eesp_max_crypt_offset = 32\n replay_window = 40";
    assert_eq!(protocols(both), (vec![esp, eesp], Some(8), 40));
    assert_eq!(protocols("eesp_proposals = default\n esp_proposals = default"), (vec![eesp, esp], None, 1024));
    assert_eq!(protocols("ah_proposals = sha256\n replay_window = 0"), (vec![ah], None, 0));
    assert_eq!(protocols("mode = drop"), (vec![], None, 1024));
}

#[test]
fn peers_of_the_psp_key_service_are_connections() {
    let psp = |out: &str, inner: &str| {
        format!(
            "connections {{\n a {{\n protocol = psp\n remote_addrs = sun.example\n{out}\n local {{\n certs = a.pem\n }}\n \
             remote {{\n id = sun.example\n }}\n children {{\n b {{\n local_ts = 10.0.0.0/8\n{inner}\n }}\n }}\n }}\n}}"
        )
    };
    let config = swanctl(&psp("", "psp_version = 1, 0\n crypt_offset = 8\n mode = transport\n cookie = 7")).unwrap();
    let [peer] = config.keyed.psp.as_slice() else { panic!("not one peer") };
    assert_eq!((peer.local_port, peer.remote_port, peer.dpd_delay), (1000, 1000, Duration::from_secs(30)));
    assert_eq!(peer.host_names().collect::<Vec<_>>(), ["sun.example"]);
    let child = &peer.children[0];
    assert_eq!((child.versions.as_slice(), child.mode, child.crypt_offset), (&[1, 0][..], PspMode::Transport, 8));
    assert_eq!((child.cookie, child.rekey_time, child.replay_window), (Some(7), Duration::from_secs(43_200), 1024));
    for (out, inner, message, help) in [
        ("", "psp_version = 2", "version 2 does not encrypt", "allow_psp_gmac"),
        ("", "esp_proposals = default", "unknown key 'esp_proposals'", "remove it"),
        ("", "crypt_offset = 5", "'5'", "multiple of 4"),
        ("", "rekey_time = 25h", "'25h'", "up to 24h"),
        ("mobike = no", "", "unknown key 'mobike'", "setting of IKE"),
        ("local-2 {\n auth = psk\n }", "", "more than one round", "remove the others"),
        ("psp_version = 1", "", "unknown key 'psp_version'", "into a child"),
    ] {
        let reported = reported(&psp(out, inner));
        assert!(reported.contains(message) && reported.contains(help), "{out:?} {inner:?}: {reported}");
    }
}

#[test]
fn messages_of_vici_carry_the_same_keys() {
    let mut local = Message::new();
    local.set("auth", "pubkey").set_list("certs", [std::str::from_utf8(DER).unwrap()]);
    let mut child = Message::new();
    child.set_list("esp_proposals", ["default"]).set("mode", "transport");
    child.set_list("remote_ts", ["10.1.0.0/24", "dynamic[udp/1701]"]);
    let mut children = Message::new();
    children.set_section("net", child);
    let mut connection = Message::new();
    connection.set_list("remote_addrs", ["192.0.2.1"]).set("version", "2");
    connection.set_section("local", local).set_section("children", children);
    let mut message = Message::new();
    message.set_section("home", connection);
    let gateway = Gateway::default();
    let loaded = load_connection(&Section::of_message("load-conn", &message), &Outside::nothing(), &gateway);
    let loaded = loaded.unwrap_or_else(|problems| panic!("{problems}"));
    let Keyed::Ike(named) = loaded.connection else { panic!("not IKE") };
    assert_eq!(named.children[0].remote_ts.len(), 2);
    assert_eq!((named.local[0].certs.len(), loaded.certificates.end_entities[0].der.as_slice()), (1, DER));
    assert_eq!(named.remote_addrs[0].to_string(), "192.0.2.1");

    let mut wrong = Message::new();
    wrong.set_section("home", {
        let mut inner = Message::new();
        inner.set("verson", "2").set_list("certs", ["x"]);
        inner
    });
    let section = Section::of_message("load-conn", &wrong);
    let reported = load_connection(&section, &Outside::nothing(), &gateway).err().unwrap().to_string();
    assert!(reported.starts_with("load-conn: home: unknown key 'verson' (did you mean 'version'?)"), "{reported}");
    assert!(load_connection(&Section::from(&Message::new()), &Outside::nothing(), &gateway).is_err());
}

#[test]
fn pools_authorities_and_secrets_come_by_vici_as_well() {
    let in_section = |name: &str, inner: Message| {
        let mut message = Message::new();
        message.set_section(name, inner);
        Section::of_message("load", &message)
    };
    let mut pool = Message::new();
    pool.set("addrs", "10.3.0.0/28").set_list("dns", ["10.1.0.1", "2001:db8::1"]).set_list("25", ["example.org"]);
    let pool = load_pool(&in_section("clients", pool)).unwrap();
    assert_eq!((pool.name.as_str(), pool.attributes.len()), ("clients", 3));
    assert_eq!(pool.attributes[2], (25, b"example.org".to_vec()));

    let mut authority = Message::new();
    authority.set("cacert", DER).set_list("crl_uris", ["file:///etc/weir/ca.crl"]);
    let authority = load_authority(&in_section("ca", authority), &Outside::nothing(), &Gateway::default()).unwrap();
    assert_eq!((authority.cacert.der.as_slice(), authority.crl_uris.len()), (DER, 1));

    let mut shared = Message::new();
    shared.set("id", "ike-1").set("type", "IKE").set("data", [0, 0xff, b','].as_slice());
    shared.set_list("owners", ["C=CH, CN=moon", "moon.example"]);
    let entry = load_shared(&Section::of_message("load-shared", &shared)).unwrap();
    assert_eq!((entry.octets(), entry.ids.len(), entry.ids[0].as_str()), (&[0, 0xff, b','][..], 2, "C=CH, CN=moon"));
    let mut wrong = Message::new();
    wrong.set("type", "IKEE").set("data", "hidden");
    let reported = load_shared(&Section::of_message("load-shared", &wrong)).err().unwrap().to_string();
    assert!(reported.contains("'IKEE' (did you mean 'ike'?)") && !reported.contains("hidden"), "{reported}");
}

#[test]
fn the_examples_of_the_documentation_are_right() {
    let text = include_str!("../../../../../docs/configuration.md");
    let blocks: Vec<&str> = text.split("```\n").skip(1).step_by(2).collect();
    let mut read = 0;
    for block in blocks.iter().filter(|block| block.starts_with("connections") || block.starts_with("secrets")) {
        swanctl(block).unwrap_or_else(|problems| panic!("{problems}\n{block}"));
        read += 1;
    }
    assert_eq!(read, 3);
}

#[test]
fn the_configurations_of_the_guides_are_right() {
    let guides = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides");
    let mut files: Vec<_> = std::fs::read_dir(guides).unwrap().map(|entry| entry.unwrap().path()).collect();
    for other in ["README.md", "docs/from-wireguard.md"] {
        files.push(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(other));
    }
    let mut read = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        // A fence without a language holds a configuration.
        for block in text.split("\n```\n").filter(|block| block.starts_with("connections {")) {
            swanctl(block).unwrap_or_else(|problems| panic!("{}: {problems}\n{block}", file.display()));
            read += 1;
        }
    }
    assert_eq!(read, 8);
}

#[test]
fn single_quotes_keep_commas_in_lists() {
    let text =
        GOOD.replace("cacert = ca.pem", "cacert = ca.pem\n crl_uris = 'ldap://x/cn=a, o=b', http://x/y, file:///z");
    let config = swanctl(&text).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(config.keyed.authorities[0].crl_uris, ["ldap://x/cn=a, o=b", "http://x/y", "file:///z"]);
    assert!(config.warnings.iter().any(|warning| warning.contains("file:// and http:// only")));
}

#[test]
fn every_word_and_default_of_the_table_is_taken() {
    use crate::config::schema::{self, Fate, Kind};
    let in_child = |line: &str| format!("connections {{\n a {{\n children {{\n b {{\n{line}\n }}\n }}\n }}\n}}");
    let in_connection = |line: &str| format!("connections {{\n a {{\n{line}\n }}\n}}");
    for (keys, child) in [(schema::CONNECTION, false), (schema::CHILD, true)] {
        for key in keys.iter().filter(|key| key.fate == Fate::Honoured) {
            let mut values: Vec<String> = match key.kind {
                Kind::Words(words) => words.iter().map(|word| (*word).to_owned()).collect(),
                Kind::Switch => vec!["yes".into(), "no".into(), "Enabled".into()],
                Kind::Number(low, high) => vec![low.to_string(), high.to_string()],
                Kind::Time => vec!["30m".into(), "1800".into()],
                Kind::Bytes => vec!["1g".into()],
                _ => Vec::new(),
            };
            values.extend((!key.default.is_empty() && !key.default.contains(' ')).then(|| key.default.to_owned()));
            let alone = [
                "dpd_timeout",
                "aggressive",
                "pull",
                "ppk_required",
                "protocol",
                "eesp_max_sub_sa_id",
                "eesp_max_crypt_offset",
                "life_bytes",
                "life_packets",
            ];
            let refused = ["transport_proxy", "in", "refuse"];
            values.retain(|value| {
                let value = value.as_str();
                let with_others = [("copy_dscp", "yes"), ("version", "1")].contains(&(key.name, value));
                let refused = refused.contains(&value) || with_others;
                !refused && !alone.contains(&key.name) && !key.name.starts_with("iptfs_")
            });
            for value in values {
                let line = format!("{} = {value}", key.name);
                let reported = reported(&if child { in_child(&line) } else { in_connection(&line) });
                // A hard limit below the default soft one is a fault of both, not of the value.
                assert!(
                    reported.is_empty() || reported.contains("would expire before"),
                    "{} = {value}: {reported}",
                    key.name
                );
            }
        }
    }
}

/// Lines of a file with everything in it.
const EVERYTHING: &str = include_str!("../../../../../fuzz/seeds/config/keyed");

#[test]
fn a_file_with_everything_is_read() {
    let config = swanctl(EVERYTHING).unwrap_or_else(|problems| panic!("{problems}"));
    let keyed = &config.keyed;
    assert_eq!((keyed.connections.len(), keyed.psp.len(), keyed.secrets.len(), keyed.pools.len()), (1, 1, 3, 1));
    let connection = &keyed.connections[0];
    assert_eq!((connection.dscp, connection.remote_addrs.len(), connection.local.len()), (46, 3, 2));
    assert!(connection.children[1].proposals.is_empty());
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(128))]
    #[test]
    fn no_mixture_of_lines_and_values_panics(
        picks in proptest::collection::vec((0..100usize, 0..100usize, 0..5u8), 0..80),
    ) {
        let lines: Vec<&str> = EVERYTHING.lines().collect();
        let mut text = String::from("connections {\n a {\n");
        for (key, value, how) in picks {
            let (line, other) = (lines[key % lines.len()], lines[value % lines.len()]);
            let exchanged = line.split_once('=').zip(other.split_once('=')).map(|((key, _), (_, value))| {
                format!("{key}={value}")
            });
            match how {
                0 | 1 => text.push_str(line),
                2 | 3 => text.push_str(&exchanged.unwrap_or_default()),
                _ => text.push('}'),
            }
            text.push('\n');
        }
        if let Err(problems) = swanctl(&text) {
            proptest::prop_assert!(!problems.render(false).is_empty());
        }
    }
}

/// A trap with neither a peer nor a network would let its packets leave in clear text.
#[test]
fn a_trap_without_an_address_is_refused_and_one_without_a_peer_is_warned_about() {
    let load = |remote: &str, action: &str, ts: &str| {
        let remote = if remote.is_empty() { String::new() } else { format!("remote_addrs = {remote}\n") };
        let ts = if ts.is_empty() { String::new() } else { format!("remote_ts = {ts}\n") };
        let text = format!(
            "connections {{\n a {{\n {remote} children {{\n b {{\n start_action = {action}\n {ts} }}\n }}\n }}\n}}"
        );
        match swanctl(&text) {
            Err(problems) => problems.to_string(),
            Ok(config) => config.warnings.join(" "),
        }
    };
    for (remote, ts) in [("", ""), ("%any", ""), ("192.0.2.0/24", "dynamic"), ("%any", "10.2.0.0/16, dynamic[udp]")] {
        let notes = load(remote, "trap", ts);
        assert!(notes.contains("would leave in clear text"), "{remote} {ts}: {notes}");
    }
    assert!(load("%any", "trap", "10.2.0.0/16").contains("are dropped until a peer connects"));
    for (remote, action, ts) in [("192.0.2.2", "trap", ""), ("%any", "none", ""), ("sun.example", "trap", "dynamic")] {
        let notes = load(remote, action, ts);
        assert!(
            !notes.contains("clear text") && !notes.contains("until a peer connects"),
            "{remote} {action}: {notes}"
        );
    }
    assert!(load("%any", "start", "").contains("start_action = start, but the peer has no address"));
}

/// As strongSwan documents it: in transport mode the destination of a packet is the peer, in tunnel
/// mode there must be one.
#[test]
fn a_trap_for_every_host_is_for_transport_mode() {
    let load = |keys: &str, child: &str| {
        let text = format!("connections {{\n a {{\n {keys}\n children {{\n b {{\n {child}\n }}\n }}\n }}\n}}");
        match swanctl(&text) {
            Err(problems) => Err(problems.to_string()),
            Ok(config) => Ok(config.warnings.join(" ")),
        }
    };
    let transport = "mode = transport\n start_action = trap";
    for keys in ["", "remote_addrs = %any", "remote_addrs = %any4", "remote_addrs = 0.0.0.0/0"] {
        let notes = load(keys, transport).unwrap();
        assert!(notes.contains("the destination of a packet is the peer of the child 'b'"), "{keys}: {notes}");
        assert!(notes.contains("add children with 'mode = pass'"), "{notes}");
    }
    // Where the hosts are named, nothing else is dropped.
    for (keys, ts) in [("", "remote_ts = 192.168.0.0/30"), ("remote_addrs = 192.0.2.0/24", "")] {
        let notes = load(keys, &format!("{transport}\n {ts}")).unwrap();
        assert!(!notes.contains("the destination of a packet"), "{keys} {ts}: {notes}");
    }
    let tunnel = load("", "start_action = trap").unwrap_err();
    assert!(tunnel.contains("with 'mode = transport' the destination of a packet is the peer"), "{tunnel}");
    let tunnel = load("", "start_action = trap\n remote_ts = 10.2.0.0/16").unwrap();
    assert!(tunnel.contains("dropped until a peer connects; only with 'mode = transport'"), "{tunnel}");
    assert!(load("", "mode = transport\n start_action = trap|start").is_err(), "there is no peer to start with");
}

#[test]
fn version_1_is_taken_with_what_it_can_express() {
    use ike::config::Version;
    let text = |version: &str, more: &str, esp: &str| {
        format!(
            "connections {{\n c {{\n  version = {version}\n  remote_addrs = 192.0.2.2\n  proposals = aes128-sha256-modp2048\n  \
             local {{\n   auth = psk\n   id = a\n  }}\n  remote {{\n   auth = psk\n   id = b\n  }}\n  {more}\n  children \
             {{\n   n {{\n    local_ts = 10.1.0.0/16\n    remote_ts = 10.2.0.0/16\n    esp_proposals = {esp}\n   }}\n  }}\n \
             }}\n}}\n"
        )
    };
    for (version, expected) in [("0", Version::V2), ("1", Version::V1), ("2", Version::V2)] {
        let config = swanctl(&text(version, "", "aes128gcm16")).expect("a configuration");
        assert_eq!(config.keyed.connections[0].version, expected);
        let obsolete = config.warnings.iter().any(|warning| warning.contains("IKEv1 is obsolete"));
        assert_eq!(obsolete, expected == Version::V1, "{:?}", config.warnings);
    }
    let config = swanctl(&text("1", "dpd_timeout = 150s", "aes128gcm16")).expect("a configuration");
    assert_eq!(config.keyed.connections[0].dpd_timeout, Duration::from_secs(150));
    let config = swanctl(&text("1", "aggressive = yes", "aes128gcm16")).expect("a configuration");
    assert!(config.keyed.connections[0].aggressive);
    assert!(config.warnings.iter().any(|warning| warning.contains("a hash of the key")), "{:?}", config.warnings);
    let switched = format!("gateway {{\n aggressive_mode_psk = yes\n}}\n{}", text("1", "", "aes128gcm16"));
    let config = swanctl(&switched).expect("a configuration");
    assert!(config.gateway.aggressive_mode_psk);
    assert!(config.warnings.iter().any(|warning| warning.contains("aggressive_mode_psk")), "{:?}", config.warnings);
    for (unity, expected) in [("", false), ("cisco_unity = yes\n", true), ("cisco_unity = no\n", false)] {
        let config = swanctl(&format!("gateway {{\n {unity}}}\n{}", text("1", "", "aes128gcm16")));
        assert_eq!(config.expect("a configuration").gateway.cisco_unity, expected);
    }
    let xauth = "pull = no\n  vips = 0.0.0.0\n  local-2 {\n   auth = xauth\n   xauth_id = alice\n  }";
    let config = swanctl(&text("1", xauth, "aes128gcm16")).expect("a configuration");
    let connection = &config.keyed.connections[0];
    assert_eq!((connection.pull, connection.local.len()), (false, 2));
    assert_eq!(connection.local[1].method, ike::config::AuthMethod::XAuth);
    assert_eq!(connection.local[1].eap_id.as_ref().map(ToString::to_string).as_deref(), Some("alice"));
    for (more, esp, message) in [
        ("remote-2 {\n   auth = xauth\n  }\n  local-2 {\n   auth = xauth\n  }", "aes128gcm16", "one method of IKEv1"),
        ("vips = 0.0.0.0\n  pools = p", "aes128gcm16", "requests virtual addresses or gives them"),
        ("", "chacha20poly1305", "child 'n': IKEv1 cannot express any of its proposals"),
    ] {
        let reported = reported(&text("1", more, esp));
        assert!(reported.contains(message), "{more} {esp}: {reported}");
    }
}
