use zeroize::Zeroizing;

use super::problem::SourceFile;
use super::*;

pub(crate) mod swanctl;

pub(crate) fn read(text: &str, purpose: Purpose) -> Result<Config, Problems> {
    let file = SourceFile { name: "test.conf".into(), text: Zeroizing::new(text.into()) };
    check(&syntax::parse(file, Path::new("."))?, purpose, &Outside::nothing())
}

/// A faultless file, one setting per line so that lines can be exchanged.
pub(crate) const GOOD: &str = "\
gateway {
    addresses = 10.1.0.1/24
}
sas {
    moon {
        protocol = esp
        mode = tunnel
        local = 192.0.2.1
        remote = 192.0.2.2
        suite = aes128gcm16
        out {
            spi = 0x1001
            key = 0x000102030405060708090a0b0c0d0e0f10111213
        }
        in {
            spi = 0x1002
            key = 0x202122232425262728292a2b2c2d2e2f30313233
        }
    }
}
policies {
    sites {
        local_ts = 10.1.0.0/24
        remote_ts = 10.2.0.0/24
        sa = moon
    }
}
";

#[test]
fn a_faultless_file_is_read_as_written() {
    let config = read(GOOD, Purpose::Gateway).unwrap();
    let sa = &config.sas[0];
    assert_eq!((sa.protocol, sa.mode, sa.name.as_str()), (Protocol::Esp, Mode::Tunnel, "moon"));
    let out = sa.outbound.as_ref().unwrap();
    assert_eq!((out.seq, out.window, out.path_mtu), (1, 1024, None));
    let HalfProto::Esp { spi, enc, integ, .. } = &out.proto else { panic!("not ESP") };
    assert_eq!((spi.get(), enc.len(), integ.len()), (0x1001, 20, 0));
    assert_eq!(config.policies[0].selectors.len(), 1);
    assert!(config.warnings.is_empty());
}

#[test]
fn every_fault_is_told_with_place_and_remedy() {
    for (line, instead, place, message, help) in [
        ("spi = 0x1001", "spi = 7", "test.conf:12:19", "sas.moon.out.spi: '7'", "above 0xff"),
        ("spi = 0x1001", "", "test.conf:11:9", "'spi' is missing", "spi = "),
        ("suite = aes128gcm16", "suite = aes128gmc16", "test.conf:10:17", "sas.moon.out.suite", "aes128gcm16"),
        ("suite = aes128gcm16", "suite = aes128", "test.conf:10:17", "'aes128'", "add an integrity"),
        ("suite = aes128gcm16", "suite = des-md5", "test.conf:10:17", "'des' is too weak", "allow_legacy = yes"),
        ("suite = aes128gcm16", "suite = null-sha256", "test.conf:10:17", "'null' is too weak", "allow_legacy = yes"),
        (
            "suite = aes128gcm16",
            "suite = aes256gcm16",
            "test.conf:13:19",
            "20 bytes instead of 36",
            "32 for aes256gcm16",
        ),
        ("suite = aes128gcm16", "", "test.conf:11:9", "'suite' is missing", "suite = "),
        ("protocol = esp", "protocol = ipsec", "test.conf:6:20", "'ipsec'", "esp, ah, eesp, psp"),
        ("mode = tunnel", "mod = tunnel", "test.conf:7:9", "unknown key 'mod'", "did you mean 'mode'?"),
        ("mode = tunnel", "spi = 0x1003", "test.conf:7:9", "unknown key 'spi'", "subsection 'in' or 'out'"),
        ("mode = tunnel", "cookie = 1", "test.conf:7:9", "unknown key 'cookie'", "'in' or 'out'"),
        ("mode = tunnel", "sub_sas = 4", "test.conf:7:9", "unknown key 'sub_sas'", "not a setting of esp"),
        ("mode = tunnel", "mode = beet", "test.conf:5:5", "'inner_local' is missing", "inner_local = "),
        ("local = 192.0.2.1", "local = 2001:db8::1", "test.conf:9:18", "address families differ", "or both be IPv6"),
        ("local = 192.0.2.1", "local = 192.0.2.2", "test.conf:9:18", "are equal", "two hosts"),
        ("local = 192.0.2.1", "local = sun.example", "test.conf:8:17", "'sun.example'", "192.0.2.1"),
        ("spi = 0x1001", "spi = 0x1001\nfirst_seq = 0x100000000", "test.conf:13:13", "64 bits", "esn = yes"),
        ("spi = 0x1001", "spi = 0x1001\nreplay_window = 5", "test.conf:13:17", "'5'", "from 32 to 65536"),
        ("spi = 0x1001", "spi = 0x1001\nlocal_port = 5", "test.conf:13:14", "without UDP", "encap = yes"),
        ("spi = 0x1001", "spi = 0x1001\nprotocol = esp", "test.conf:13:1", "unknown key 'protocol'", "move it out"),
        ("addresses = 10.1.0.1/24", "metrics = 192.0.2.1:9790", "test.conf:2:15", "gateway.metrics", "metrics_cert"),
        ("addresses = 10.1.0.1/24", "metrics_cert = a.pem", "test.conf:2:20", "metrics_key is missing", "private key"),
        ("addresses = 10.1.0.1/24", "metrics_key = a.pem", "test.conf:2:19", "metrics_cert is missing", "certificate"),
        (
            "addresses = 10.1.0.1/24",
            "metrics_cert = a\nmetrics_key = b",
            "test.conf:2:20",
            "metrics is not set",
            "metrics = 0.0.0.0:9790",
        ),
        ("addresses = 10.1.0.1/24", "metrics = 9790", "test.conf:2:15", "gateway.metrics", "ADDRESS:PORT"),
        ("addresses = 10.1.0.1/24", "metrics = [::1]:0", "test.conf:2:15", "gateway.metrics", "port 0"),
        ("addresses = 10.1.0.1/24", "web = 192.0.2.1:9791", "test.conf:2:11", "gateway.web", "ssh -L"),
        ("addresses = 10.1.0.1/24", "web = 9791", "test.conf:2:11", "gateway.web", "127.0.0.1:9791"),
        ("addresses = 10.1.0.1/24", "web_hosts = a, gw:80", "test.conf:2:17", "'gw:80'", "without a port"),
        (
            "addresses = 10.1.0.1/24",
            "metrics = [::1]:1\nweb = [::1]:1",
            "test.conf:3:7",
            "same address",
            "different ports",
        ),
        ("addresses = 10.1.0.1/24", "confine = yes", "test.conf:2:15", "gateway.confine", "auto"),
        ("addresses = 10.1.0.1/24", "addresses = 10.1.0.1", "test.conf:2:17", "gateway.addresses", "10.1.0.1/24"),
        ("addresses = 10.1.0.1/24", "workers = 65", "test.conf:2:15", "'65'", "from 1 to 64"),
        (
            "addresses = 10.1.0.1/24",
            "crypto_threads = 2",
            "test.conf:2:22",
            "no effect with 'scheduler = ",
            "set 'scheduler = async', or remove it",
        ),
        (
            "addresses = 10.1.0.1/24",
            "scheduler = auto\ncrypto_threads = 2",
            "test.conf:3:18",
            "no effect with 'scheduler = auto'",
            "set 'scheduler = async', or remove it",
        ),
        (
            "addresses = 10.1.0.1/24",
            "scheduler = pipeline",
            "test.conf:2:17",
            "a pipeline of one worker",
            "set 'workers' to 2 or more",
        ),
        (
            "addresses = 10.1.0.1/24",
            "workers = 8\nscheduler = async\ncrypto_threads = 33",
            "test.conf:4:18",
            "8 workers with 33 threads each",
            "at most 32",
        ),
        ("addresses = 10.1.0.1/24", "aqm_interval = 10001", "test.conf:2:20", "'10001'", "from 0 to 10000"),
        ("addresses = 10.1.0.1/24", "xdp = eth0, eth/1", "test.conf:2:11", "gateway.xdp", "device name"),
        ("addresses = 10.1.0.1/24", "xdp = eth0, eth0", "test.conf:2:11", "eth0 is listed twice", "list it once"),
        ("addresses = 10.1.0.1/24", "log = loud", "test.conf:2:11", "'loud'", "not a log level"),
        ("addresses = 10.1.0.1/24", "eesp_protocol = 50", "test.conf:2:21", "'50'", "50 is assigned to esp"),
        ("addresses = 10.1.0.1/24", "engine = null", "test.conf:1:1", "does not encrypt", "auto"),
        ("addresses = 10.1.0.1/24", "adresses = 10.1.0.1/24", "test.conf:2:5", "unknown key", "'addresses'"),
        ("sa = moon", "sa = mon", "test.conf:25:14", "unknown SA 'mon'", "did you mean 'moon'?"),
        ("sa = moon", "", "test.conf:22:5", "'sa' is missing", "sa = NAME"),
        ("sa = moon", "sa = moon\naction = bypass", "test.conf:25:14", "only 'action = protect'", "remove it"),
        (
            "remote_ts = 10.2.0.0/24",
            "remote_ts = fd00::/64",
            "test.conf:24:21",
            "differ in address family",
            "one policy for IPv4",
        ),
        ("remote_ts = 10.2.0.0/24", "remote_ts = 10.2.0.0/33", "test.conf:24:21", "'33'", "ADDR"),
        ("remote_ts = 10.2.0.0/24", "", "test.conf:22:5", "'remote_ts' is missing", "remote_ts = "),
        ("policies {", "polices {", "test.conf:21:1", "unknown section 'polices'", "did you mean 'policies'?"),
        (
            "        }\n        in {",
            "        }\n        inn {",
            "test.conf:15:9",
            "unknown section 'inn'",
            "did you mean 'in'?",
        ),
    ] {
        assert!(GOOD.contains(line), "{line}");
        let text = GOOD.replacen(line, instead, 1);
        let problems = read(&text, Purpose::Gateway).err().unwrap_or_else(|| panic!("{instead:?} is accepted"));
        let reported = problems.to_string();
        assert!(
            reported.contains(place) && reported.contains(message) && reported.contains(help),
            "{line:?} => {instead:?}:\n{reported}\nwanted {place:?} {message:?} {help:?}"
        );
    }
}

#[test]
fn all_faults_are_told_at_once() {
    let text =
        GOOD.replace("spi = 0x1001", "spi = 1").replace("spi = 0x1002", "spi = 2").replace("sa = moon", "sa = sun");
    assert_eq!(read(&text, Purpose::Gateway).err().unwrap().0.len(), 3);
}

#[test]
fn no_key_is_ever_shown() {
    for (line, instead) in [
        ("key = 0x0001", "key = 0xx0001"),
        ("suite = aes128gcm16", "suite = aes256gcm16"),
        ("key = 0x202122232425262728292a2b2c2d2e2f30313233", "key = 0x000102030405060708090a0b0c0d0e0f10111213"),
    ] {
        let problems = read(&GOOD.replacen(line, instead, 1), Purpose::Gateway).err().unwrap();
        assert!(!problems.render(false).contains("0405060708"), "{}", problems.render(false));
    }
}

/// `sections` into `sas` of [`GOOD`], without policy.
fn with_sas(sections: &str) -> String {
    GOOD.replace("sas {\n", &format!("sas {{\n{sections}\n"))
}

#[test]
fn spis_and_keys_belong_to_one_sa() {
    let other = |protocol: &str, spi: &str, key: &str, remote: &str| {
        with_sas(&format!(
            "other {{\n protocol = {protocol}\n local = 192.0.2.1\n remote = {remote}\n suite = aes128gcm16\n \
             in {{\n spi = {spi}\n key = 0x{key}10111213\n }}\n }}"
        ))
    };
    let fresh = "404142434445464748494a4b4c4d4e4f";
    let used = "000102030405060708090a0b0c0d0e0f";
    assert!(read(&other("esp", "0x1003", fresh, "192.0.2.9"), Purpose::Gateway).is_ok());
    assert!(read(&other("eesp", "0x1002", fresh, "192.0.2.9"), Purpose::Gateway).is_ok());
    let same_spi = read(&other("esp", "0x1002", fresh, "192.0.2.9"), Purpose::Gateway).err().unwrap().to_string();
    assert!(
        same_spi.contains("SPI 0x1002 is also used by SA 'other'") && same_spi.contains("another SPI"),
        "{same_spi}"
    );
    let same_key = read(&other("esp", "0x1003", used, "192.0.2.9"), Purpose::Gateway).err().unwrap().to_string();
    assert!(same_key.contains("nonces would repeat"), "{same_key}");
}

#[test]
fn legacy_and_gmac_are_behind_their_switches() {
    let weak = GOOD
        .replace("suite = aes128gcm16", "suite = 3des-md5")
        .replace("key = 0x000102030405060708090a0b0c0d0e0f10111213", &format!("key = 0x{}", "11".repeat(40)))
        .replace("key = 0x202122232425262728292a2b2c2d2e2f30313233", &format!("key = 0x{}", "22".repeat(40)));
    assert!(read(&weak, Purpose::Gateway).is_err());
    assert!(read(&weak.replace("addresses = ", "allow_legacy = yes\n#"), Purpose::Gateway).is_ok());
    let psp = "gateway {\n}\nsas {\n a {\n protocol = psp\n mode = transport\n local = 192.0.2.1\n remote = 192.0.2.2\n \
               version = 2\n out {\n spi = 0x80000001\n key = 0s/////////////////////w==\n }\n }\n}";
    let refused = read(psp, Purpose::Offline).err().unwrap().to_string();
    assert!(refused.contains("allow_psp_gmac"), "{refused}");
    assert!(read(&psp.replace("gateway {", "gateway {\n allow_psp_gmac = yes"), Purpose::Offline).is_ok());
}

#[test]
fn eesp_and_psp_rules_hold() {
    let eesp = |more: &str, out: &str| {
        format!(
            "sas {{\n a {{\n protocol = eesp\n local = 192.0.2.1\n remote = 192.0.2.2\n suite = aes128gcm16\n{more}\n \
             out {{\n spi = 0x1001\n key = 0x000102030405060708090a0b0c0d0e0f10111213\n{out}\n }}\n }}\n}}"
        )
    };
    let reported =
        |text: String| read(&text, Purpose::Offline).err().map(|problems| problems.to_string()).unwrap_or_default();
    assert_eq!(reported(eesp("", "crypt_offset = 32\n options = 0x01020000")), "");
    for (more, out, words) in [
        ("", "crypt_offset = 33", "multiple of 4"),
        ("", "options = 0x0102", "multiple of 4 bytes"),
        ("", "max_crypt_offset = 4", "not a setting of eesp in 'out'"),
        ("sub_sas = 4", "", "32"),
        ("sskdf = sha256", "", "no Sub SAs"),
        ("sub_sas = 4\n session = 4", "", "end at 3"),
        ("suite = aes128gcm16iiv\n seq = no", "", "not sent"),
        ("suite = aes128-sha256", "", "AEAD"),
        ("replay_window = 32", "", "from 64"),
    ] {
        assert!(reported(eesp(more, out)).contains(words), "{more:?} {out:?}: {}", reported(eesp(more, out)));
    }
    let psp = |inner: &str| {
        format!(
            "sas {{\n a {{\n protocol = psp\n local = 192.0.2.1\n remote = 192.0.2.2\n in {{\n{inner}\n }}\n }}\n}}"
        )
    };
    let master = "master_key_0 = 0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    assert_eq!(reported(psp(&format!("{master}\n issued = 0x100-0x1ff, 7"))), "");
    for (inner, words) in [
        (format!("{master}\n issued = 0x80000001"), "master_key_1"),
        (format!("{master}\n issued = 0x200-0x100"), "FIRST-LAST"),
        (format!("{master}\n issued = 0"), "must not all be 0"),
        (master.to_owned(), "'issued' is missing"),
        ("master_key_0 = 0x00\n issued = 1".to_owned(), "1 bytes instead of 32"),
        (format!("{master}\n issued = 1\n suite = aes128gcm16"), "not a setting of psp"),
    ] {
        assert!(reported(psp(&inner)).contains(words), "{inner:?}: {}", reported(psp(&inner)));
    }
}

#[test]
fn transport_mode_needs_no_selectors_and_refuses_wrong_ones() {
    let transport = GOOD.replace("mode = tunnel", "mode = transport");
    let own = transport.replace("local_ts = 10.1.0.0/24", "").replace("remote_ts = 10.2.0.0/24", "");
    let config = read(&own, Purpose::Gateway).unwrap();
    let (local, remote) = config.policies[0].selectors[0].sides();
    assert_eq!((local.to_string(), remote.to_string()), ("192.0.2.1/32".into(), "192.0.2.2/32".into()));
    let wrong = read(&transport, Purpose::Gateway).err().unwrap().to_string();
    assert!(wrong.contains("carries only traffic between"), "{wrong}");
}

#[test]
fn offline_one_sa_needs_no_policy() {
    let (sas, _) = GOOD.split_once("policies").unwrap();
    let config = read(sas, Purpose::Offline).unwrap();
    assert_eq!(config.policies[0].action, PolicyAction::Protect("moon".into()));
    assert!(read(sas, Purpose::Gateway).err().unwrap().to_string().contains("no policy"));
    let second = with_sas(
        "b {\n protocol = ah\n local = 192.0.2.1\n remote = 192.0.2.3\n suite = sha1\n out {\n spi = 0x1009\n \
         key = 0x000102030405060708090a0b0c0d0e0f10111290\n }\n }",
    );
    let (second, _) = second.split_once("policies").unwrap();
    assert!(read(second, Purpose::Offline).err().unwrap().to_string().contains("--name"));
}

#[test]
fn the_other_end_sees_everything_the_other_way_round() {
    let config = read(GOOD, Purpose::Gateway).unwrap();
    let sa = &config.sas[0];
    let mirrored = sa.mirrored();
    assert_eq!(mirrored.inbound.as_ref().unwrap().proto.spi().unwrap().get(), 0x1001);
    assert_eq!(mirrored.inbound.as_ref().unwrap().seq, 0);
    assert_eq!((mirrored.peer.local, mirrored.peer.remote), (sa.peer.remote, sa.peer.local));
    let again = mirrored.mirrored();
    assert!(again.outbound == sa.outbound && again.inbound == sa.inbound && again.peer == sa.peer);
}

#[test]
fn the_examples_of_the_documentation_are_right() {
    let text = include_str!("../../../../docs/configuration.md");
    let blocks: Vec<&str> = text.split("```\n").skip(1).step_by(2).collect();
    let mut read_as_sas = 0;
    for block in blocks.iter().filter(|block| block.contains("protocol =") && !block.contains('…')) {
        if block.starts_with("gateway") {
            read(block, Purpose::Gateway).unwrap_or_else(|problems| panic!("{problems}\n{block}"));
        } else {
            read(&format!("sas {{\n{block}\n}}"), Purpose::Offline)
                .unwrap_or_else(|problems| panic!("{problems}\n{block}"));
            read_as_sas += 1;
        }
    }
    assert_eq!(read_as_sas, 4);
}

#[test]
fn a_value_of_a_reference_keeps_its_own_place() {
    let text = GOOD
        .replace("sas {\n    moon {", "templates {\n t {\n  suite = nonsense\n }\n}\nsas {\n    moon : templates.t {");
    let text = text.replace("        suite = aes128gcm16\n", "");
    let reported = read(&text, Purpose::Gateway).err().unwrap().to_string();
    assert!(reported.contains("test.conf:6:11"), "{reported}");
}

#[test]
fn no_error_shows_a_key() {
    let key = "000102030405060708090a0b0c0d0e0f10111213";
    for (line, instead) in [
        ("key = 0x0", "kye = 0x0"),
        ("key = 0x0", "key 0x0"),
        ("key = 0x0", "key =\n 0x0"),
        ("key = 0x0", "key = x0"),
        ("key = 0x0", "key = \"0x0"),
        ("spi = 0x1001", "{"),
        ("suite = aes128gcm16", "suite = aes256gcm16"),
    ] {
        let problems = read(&GOOD.replacen(line, instead, 1), Purpose::Gateway).err().unwrap();
        let reported = format!("{problems}\n{}", problems.render(false));
        assert!(!reported.contains(&key[1..]), "{instead}: {reported}");
    }
}

#[test]
fn two_psp_senders_never_have_one_key() {
    let (master, mine) = ("11".repeat(32), "22".repeat(32));
    let psp = |name: &str, remote: &str, spi: &str, receives: &str, issued: &str| {
        format!(
            "{name} {{\n protocol = psp\n local = 192.0.2.1\n remote = {remote}\n out {{\n spi = {spi}\n \
             master_key_0 = 0x{master}\n }}\n in {{\n master_key_0 = 0x{receives}\n issued = {issued}\n }}\n }}\n"
        )
    };
    let reported = |sas: [String; 2]| {
        let problems = read(&with_sas(&sas.concat()), Purpose::Gateway).err();
        problems.map(|problems| problems.to_string()).unwrap_or_default()
    };
    let first = || psp("a", "192.0.2.8", "0x100", &mine, "1");
    assert_eq!(reported([first(), psp("b", "192.0.2.9", "0x101", &mine, "2")]), "");
    let two_addresses = reported([first(), psp("b", "192.0.2.9", "0x100", &mine, "2")]);
    assert!(two_addresses.contains("also used by sas.a.out: nonces"), "{two_addresses}");
    let both_ways = reported([first(), psp("b", "192.0.2.9", "0x101", &master, "0x101-0x1ff")]);
    assert!(both_ways.contains("also used by sas.b.in: nonces"), "{both_ways}");
}

#[test]
fn an_spi_that_would_be_taken_for_eesp_is_refused() {
    let reported = |spi: &str, setting: &str, other: &str| {
        let moon = GOOD.replace("0x1002", spi).replace("mode = tunnel", setting);
        let sa = format!(
            "sas {{\n b {{\n protocol = {other}\n local = 192.0.2.1\n remote = 192.0.2.9\n suite = aes128gcm16\n \
             in {{\n spi = 0x1009\n key = 0x404142434445464748494a4b4c4d4e4f50515253\n }}\n }}\n"
        );
        let problems = read(&moon.replace("sas {\n", &sa), Purpose::Gateway).err();
        problems.map(|problems| problems.to_string()).unwrap_or_default()
    };
    let refused = reported("0x80001002", "encap = yes", "eesp");
    assert!(refused.contains("sas.moon.in.spi") && refused.contains("another SA receives EESP"), "{refused}");
    assert_eq!(reported("0x7fffffff", "encap = yes", "eesp"), "");
    assert_eq!(reported("0x80001002", "encap = no", "eesp"), "");
    assert_eq!(reported("0x80001002", "encap = yes", "esp"), "");
}

/// Problems or warnings reported for a text.
fn noted(text: &str) -> String {
    let file = SourceFile { name: "a.conf".into(), text: Zeroizing::new(text.into()) };
    match syntax::parse(file, Path::new(".")) {
        Ok(root) => root.notes.join("\n"),
        Err(problems) => problems.to_string(),
    }
}

#[test]
fn what_is_seldom_meant_is_noted_with_both_places() {
    let text = "connections {\n a {\n version = 2\n children {\n b {\n }\n b {\n }\n }\n version = 0\n }\n}\nconnections {\n}\n";
    let reported = noted(text);
    assert!(
        reported.contains("a.conf:7:2: section 'b' occurs again; it is merged with the one at a.conf:5:2"),
        "{reported}"
    );
    assert!(
        reported.contains("a.conf:10:2: 'version' is set twice; the value at a.conf:3:2 has no effect"),
        "{reported}"
    );
    assert_eq!(reported.lines().count(), 2, "sections at the top may occur again");
    let secret = |value: &str| noted(&format!("secrets {{\n ike {{\n secret = {value}\n }}\n}}\n"));
    assert!(secret("abc#def{ghi").contains("a.conf:3:2: '#' begins a comment"), "{}", secret("abc#def{ghi"));
    assert!(!secret("abc#def{ghi").contains("abc"), "no part of a secret is shown");
    assert_eq!(secret("\"abc#def{ghi\"") + &secret("abc # a comment"), "");
}

#[test]
fn the_section_whose_brace_is_missing_is_named() {
    let text = "connections {\n    a {\n        local {\n            auth = psk\n        remote {\n            auth = psk\n        }\n    }\n}\n";
    assert!(noted(text).starts_with("a.conf:3:9: section is not closed"), "{}", noted(text));
    // Without indentation the fault is found at the end of the file.
    assert!(noted("connections {\na {\n}\n").starts_with("a.conf:1:1: section is not closed"));
}

#[test]
fn files_of_other_programs_are_recognised() {
    let stroke = noted("config setup\n\tuniqueids=no\nconn %default\n\tkeyexchange=ikev2\n");
    assert!(stroke.contains("a.conf: this is ipsec.conf") && stroke.contains("swanctl.conf"), "{stroke}");
    let wireguard = noted("[Interface]\nPrivateKey = abc=\n[Peer]\nEndpoint = 192.0.2.1:51820\n");
    assert!(wireguard.contains("a file of WireGuard"), "{wireguard}");
    assert_eq!(noted("conn {\n}\n"), "", "a section may have any name");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let path = std::env::temp_dir().join(format!("weir-bom-{}.conf", std::process::id()));
    std::fs::write(&path, "\u{feff}pools {\n p {\n addrs = 10.3.0.0/24\n }\n}\n").unwrap();
    let read = syntax::read(&path).map(|root| root.sections[0].name.clone());
    std::fs::remove_file(&path).unwrap();
    assert_eq!(read.ok().as_deref(), Some("pools"));
}
