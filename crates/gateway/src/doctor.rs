//! `weir doctor`: checks of this host, with their consequences.

use std::fs;
use std::num::NonZeroU32;
use std::process::{Command, Stdio};

use comfy_table::{ContentArrangement, Table, presets};
use crypto::{EncAlg, Engine, IntegAlg};
use ports::FlowSteering;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};
use serde::Serialize;

use crate::confine;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// As good as it gets.
    Good,
    /// Weir works, but a feature is missing or slower.
    Fair,
    /// `weir up` does not work.
    Bad,
}

/// One check.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) what: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) found: String,
    pub(crate) meaning: String,
}

fn finding(what: &'static str, verdict: Verdict, found: impl Into<String>, meaning: impl Into<String>) -> Finding {
    Finding { what, verdict, found: found.into(), meaning: meaning.into() }
}

/// Looks at everything. Changes nothing.
pub(crate) fn examine() -> Vec<Finding> {
    let cpu = read("/proc/cpuinfo");
    vec![
        privileges(),
        tun(),
        tun_offload(),
        tun_queues(),
        raw_sockets(),
        port(500, "IKE"),
        port(4500, "NAT traversal"),
        forwarding(),
        reverse_path(),
        nf_tables(),
        clock(),
        configuration(),
        iproute2(),
        namespaces(),
        cores(),
        aes(&cpu),
        wide(&cpu),
        linked(crypto::IPSEC_MB_LINKED),
        engine(),
        own_engine(),
        socket_buffers(),
        udp_gso(),
        af_xdp(),
        kernel_ipsec(),
        landlock(),
        seccomp(),
    ]
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn privileges() -> Finding {
    let status = read("/proc/self/status");
    let effective =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok()).unwrap_or(0);
    let missing: Vec<&str> = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (10, "CAP_NET_BIND_SERVICE")]
        .into_iter()
        .filter_map(|(bit, name)| (effective >> bit & 1 == 0).then_some(name))
        .collect();
    if missing.is_empty() {
        let found = "CAP_NET_ADMIN, CAP_NET_RAW, CAP_NET_BIND_SERVICE";
        finding("privileges", Verdict::Good, found, "weir up can create its device and sockets")
    } else {
        let meaning = "run weir up as root, or: setcap cap_net_admin,cap_net_raw,cap_net_bind_service+ep weir, with a 'state_dir' and a \
             'socket' of that user; weir pcap and weir bench need nothing";
        finding("privileges", Verdict::Bad, format!("without {}", missing.join(", ")), meaning)
    }
}

fn tun() -> Finding {
    match fs::File::options().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => finding("TUN", Verdict::Good, "/dev/net/tun", "cleartext packets pass through a TUN device"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => finding(
            "TUN",
            Verdict::Bad,
            "/dev/net/tun is missing",
            "modprobe tun, or: mkdir -p /dev/net && mknod /dev/net/tun c 10 200; in a container: --device /dev/net/tun",
        ),
        Err(error) => finding("TUN", Verdict::Bad, error.to_string(), "run as root, or open the device to this user"),
    }
}

fn tun_offload() -> Finding {
    let (major, minor) = kernel();
    let found = format!("kernel {major}.{minor}");
    if (major, minor) >= (6, 2) {
        let meaning = "GSO and GRO for TCP (TSO) and UDP (USO)";
        finding("TUN offload", Verdict::Good, found, meaning)
    } else {
        let meaning = "GSO and GRO for TCP (TSO); UDP (USO) requires Linux 6.2";
        finding("TUN offload", Verdict::Fair, found, meaning)
    }
}

fn tun_queues() -> Finding {
    match FlowSteering::load() {
        Ok(_) => {
            finding("TUN queues", Verdict::Good, "bpf(2) allowed", "'queues = flows' can pin a flow to one worker")
        }
        Err(error) => finding(
            "TUN queues",
            Verdict::Fair,
            error.to_string(),
            "'queues = flows' requires CAP_BPF; without it the kernel selects the queue by return traffic",
        ),
    }
}

fn opens(family: AddressFamily, kind: SocketType, protocol: u32) -> Result<(), rustix::io::Errno> {
    let protocol = NonZeroU32::new(protocol).map(Protocol::from_raw);
    socket_with(family, kind, SocketFlags::CLOEXEC, protocol).map(drop)
}

fn raw_sockets() -> Finding {
    match opens(AddressFamily::INET, SocketType::RAW, 50) {
        Ok(()) => finding("raw sockets", Verdict::Good, "yes", "ESP, AH and EESP without UDP"),
        Err(error) => finding("raw sockets", Verdict::Bad, error.to_string(), "CAP_NET_RAW is missing: run as root"),
    }
}

/// A UDP port of IKE.
fn port(number: u16, of: &'static str) -> Finding {
    let what = if number == 500 { "UDP port 500" } else { "UDP port 4500" };
    match std::net::UdpSocket::bind(("0.0.0.0", number)) {
        Ok(_) => finding(what, Verdict::Good, "free", format!("available for {of}; a firewall must permit it")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let meaning = format!(
                "expected while weir is running; otherwise stop the program that uses it: ss -ulpn sport = :{number}"
            );
            finding(what, Verdict::Fair, "in use", meaning)
        }
        Err(error) => finding(what, Verdict::Bad, error.to_string(), "CAP_NET_BIND_SERVICE is missing: run as root"),
    }
}

fn forwarding() -> Finding {
    let on = |path: &str| read(path).trim() == "1";
    let (v4, v6) = (on("/proc/sys/net/ipv4/ip_forward"), on("/proc/sys/net/ipv6/conf/all/forwarding"));
    let off = "hosts of networks behind this host are not reached: sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1, and \
               keep it in /etc/sysctl.d; for tunnels of this host alone it is not needed";
    match (v4, v6) {
        (true, true) => {
            finding("forwarding", Verdict::Good, "IPv4, IPv6", "hosts of networks behind this host can use tunnels")
        }
        (true, false) => {
            finding("forwarding", Verdict::Good, "IPv4", "hosts of networks behind this host can use IPv4 tunnels")
        }
        (false, true) => finding("forwarding", Verdict::Fair, "IPv6 only", off),
        (false, false) => finding("forwarding", Verdict::Fair, "off", off),
    }
}

fn reverse_path() -> Finding {
    match read("/proc/sys/net/ipv4/conf/all/rp_filter").trim() {
        "1" => finding(
            "rp_filter",
            Verdict::Fair,
            "1 (strict)",
            "packets of a peer whose own address is protected are dropped: sysctl -w net.ipv4.conf.all.rp_filter=2",
        ),
        "" => finding("rp_filter", Verdict::Fair, "unknown", "cannot read net.ipv4.conf.all.rp_filter"),
        value => finding("rp_filter", Verdict::Good, value, "the kernel accepts packets from tunnels"),
    }
}

fn nf_tables() -> Finding {
    let loaded = std::path::Path::new("/sys/module/nf_tables").exists() || has_builtin("nf_tables");
    if loaded {
        finding("nf_tables", Verdict::Good, "yes", "cleartext packets that a policy protects can be dropped")
    } else {
        let meaning = "the kernel loads it on first use; otherwise: modprobe nf_tables";
        finding("nf_tables", Verdict::Fair, "not loaded", meaning)
    }
}

/// First second that a clock can show without having been set: the start of 2025.
const CLOCK_SET_S: u64 = 1_735_689_600;

fn clock() -> Finding {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    if now < CLOCK_SET_S {
        let meaning = "no certificate is valid yet: set the clock, and start a time service before weir";
        finding("clock", Verdict::Fair, "before 2025", meaning)
    } else {
        finding("clock", Verdict::Good, "set", "certificates and revocation lists are compared with it")
    }
}

fn configuration() -> Finding {
    let path = std::path::Path::new(crate::cli::DEFAULT_CONFIG);
    if !path.exists() {
        let found = format!("no {}", path.display());
        return finding("configuration", Verdict::Fair, found, "write it, or name another file: weir up FILE");
    }
    match crate::check::read(path) {
        Ok(config) if config.warnings.is_empty() => {
            finding("configuration", Verdict::Good, path.display().to_string(), "weir up reads it")
        }
        Ok(config) => {
            let found = format!("{} warnings", config.warnings.len());
            finding("configuration", Verdict::Fair, found, "weir check lists them")
        }
        Err(problems) => {
            let found = format!("{} errors", problems.0.len());
            finding("configuration", Verdict::Bad, found, "weir check lists them, with the remedies")
        }
    }
}

fn iproute2() -> Finding {
    match Command::new("ip").arg("-V").output() {
        Ok(output) if output.status.success() => {
            let version = String::from_utf8_lossy(&output.stdout);
            let version = version.trim().rsplit([' ', ',']).next().unwrap_or_default().to_owned();
            finding("iproute2", Verdict::Good, version, "used by the demo and the lab")
        }
        _ => finding(
            "iproute2",
            Verdict::Fair,
            "not found",
            "weir up does without; the demo and the lab need it: apt install iproute2",
        ),
    }
}

fn runs(program: &str, args: &[&str]) -> bool {
    let quiet =
        Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

fn namespaces() -> Finding {
    if runs("unshare", &["-n", "true"]) {
        finding(
            "namespaces",
            Verdict::Good,
            "network namespaces",
            "the demo and the lab can create hosts in namespaces",
        )
    } else if runs("unshare", &["-Urn", "true"]) {
        finding("namespaces", Verdict::Good, "user and network namespaces", "the demo runs without root")
    } else {
        let meaning = "the demo and the lab cannot run: run them as root, or allow user namespaces \
                       (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)";
        finding("namespaces", Verdict::Fair, "none", meaning)
    }
}

fn cores() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let verdict = if cores > 1 { Verdict::Good } else { Verdict::Fair };
    let meaning =
        if cores > 1 { "upper limit of 'workers'" } else { "the worker shares its core with everything else" };
    finding("cores", verdict, cores.to_string(), meaning)
}

fn has(cpu: &str, flag: &str) -> bool {
    cpu.lines()
        .filter(|line| line.starts_with("flags") || line.starts_with("Features"))
        .any(|line| line.split_whitespace().any(|word| word == flag))
}

fn aes(cpu: &str) -> Finding {
    if has(cpu, "aes") {
        finding("AES instructions", Verdict::Good, "yes", "AES-GCM is the fastest suite on this host")
    } else {
        finding("AES instructions", Verdict::Fair, "no", "AES is slow and not constant-time: use chacha20poly1305")
    }
}

fn wide(cpu: &str) -> Finding {
    let found: Vec<&str> = [("vaes", "VAES"), ("vpclmulqdq", "VPCLMULQDQ"), ("avx512f", "AVX-512")]
        .into_iter()
        .filter_map(|(flag, name)| has(cpu, flag).then_some(name))
        .collect();
    match found.len() {
        3 => finding("wide vectors", Verdict::Good, found.join(", "), "AES-GCM processes four blocks at a time"),
        0 => finding("wide vectors", Verdict::Fair, "none", "AES-GCM takes two to three times as long as with VAES"),
        _ => finding(
            "wide vectors",
            Verdict::Fair,
            found.join(", "),
            "AES-GCM is not as fast as with all three of VAES, VPCLMULQDQ, AVX-512",
        ),
    }
}

/// Library of ciphers that this build links: it decides which engines there are.
fn linked(library: Option<&str>) -> Finding {
    match library {
        Some(version) if is_at_least(version, crypto::IPSEC_MB_PINNED) => {
            finding("intel-ipsec-mb", Verdict::Good, version, "in this build")
        }
        Some(version) => {
            let why = format!(
                "version {} is faster; run scripts/ipsec-mb.sh before the build, without WEIR_IPSEC_MB",
                crypto::IPSEC_MB_PINNED
            );
            finding("intel-ipsec-mb", Verdict::Fair, version, why)
        }
        None => {
            let why = "run scripts/ipsec-mb.sh before the build; this build uses AWS-LC";
            finding("intel-ipsec-mb", Verdict::Fair, "none", why)
        }
    }
}

/// Compares versions at the start of both texts, number by number.
fn is_at_least(version: &str, least: &str) -> bool {
    let numbers = |text: &str| {
        let dotted = text.split(|c: char| c != '.' && !c.is_ascii_digit()).next().unwrap_or_default();
        dotted.split('.').map(|number| number.parse().unwrap_or(0)).collect::<Vec<u32>>()
    };
    numbers(version) >= numbers(least)
}

fn engine() -> Finding {
    let choice = Engine::choice();
    let verdict = if choice.engine == Engine::AwsLc { Verdict::Fair } else { Verdict::Good };
    finding("engine", verdict, format!("{}: {}", choice.engine.name(), choice.engine.describe()), choice.why.clone())
}

fn own_engine() -> Finding {
    match Engine::Vaes.unavailable() {
        None => {
            let auto =
                if Engine::Vaes.not_default().is_none() { "engine = auto uses it" } else { "engine = vaes uses it" };
            finding("engine vaes", Verdict::Good, Engine::Vaes.describe(), auto)
        }
        Some(why) => finding("engine vaes", Verdict::Fair, "none", why),
    }
}

fn socket_buffers() -> Finding {
    let bytes: u64 = read("/proc/sys/net/core/rmem_max").trim().parse().unwrap_or(0);
    if bytes == 0 {
        return finding(
            "socket buffers",
            Verdict::Fair,
            "unknown",
            "cannot read net.core.rmem_max; root may exceed it",
        );
    }
    if bytes >= 4 << 20 {
        finding("socket buffers", Verdict::Good, format!("{bytes} bytes"), "the receive buffer holds bursts")
    } else {
        let meaning =
            "bursts may be lost: sysctl -w net.core.rmem_max=4194304 (root with CAP_NET_ADMIN exceeds it anyway)";
        finding("socket buffers", Verdict::Fair, format!("{bytes} bytes"), meaning)
    }
}

/// Major and minor version of the kernel.
fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut parts = release.split(['.', '-']).map_while(|part| part.parse().ok());
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn udp_gso() -> Finding {
    let (major, minor) = kernel();
    let found = format!("kernel {major}.{minor}");
    if (major, minor) >= (5, 0) {
        let meaning = "UDP GSO and GRO for PSP, and for ESP and EESP in UDP";
        finding("UDP GSO, GRO", Verdict::Good, found, meaning)
    } else {
        finding("UDP GSO, GRO", Verdict::Fair, found, "one datagram per call: GSO requires Linux 4.18, GRO 5.0")
    }
}

fn af_xdp() -> Finding {
    match ports::xdp::available() {
        Ok(()) => finding(
            "AF_XDP",
            Verdict::Good,
            "yes",
            "'xdp = INTERFACE' in the section 'gateway' sends and receives ESP, AH and EESP by AF_XDP; where the driver has \
             zero-copy, UDP too",
        ),
        Err(error) => finding("AF_XDP", Verdict::Fair, error.to_string(), "sockets are used, even if 'xdp' is set"),
    }
}

fn kernel_ipsec() -> Finding {
    let xfrm = opens(AddressFamily::NETLINK, SocketType::RAW, 6).is_ok();
    let modules = read("/proc/modules");
    let esp = modules.lines().any(|line| line.starts_with("esp4 ")) || has_builtin("esp4");
    match (xfrm, esp) {
        (true, true) => finding(
            "kernel IPsec",
            Verdict::Good,
            "XFRM and ESP",
            "ip xfrm can be Weir's peer or the reference on this host",
        ),
        (true, false) => finding(
            "kernel IPsec",
            Verdict::Fair,
            "XFRM, ESP not loaded",
            "not needed; for comparisons: modprobe esp4 esp6 ah4 ah6",
        ),
        (false, _) => finding("kernel IPsec", Verdict::Fair, "none", "not needed: Weir does not use XFRM"),
    }
}

fn has_builtin(module: &str) -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let file = format!("/{module}.ko");
    read(&format!("/lib/modules/{release}/modules.builtin")).lines().any(|line| line.ends_with(&file))
}

fn landlock() -> Finding {
    match confine::files_available() {
        Some((version, true)) => finding(
            "Landlock",
            Verdict::Good,
            format!("version {version}"),
            "weir up reads and writes only the files it needs, starts no program, and signals no other process",
        ),
        Some((version, false)) => finding(
            "Landlock",
            Verdict::Fair,
            format!("version {version}"),
            "weir up is confined to the files it needs; confinement of signals requires version 6 (Linux 6.12)",
        ),
        None => finding(
            "Landlock",
            Verdict::Fair,
            "none",
            "weir up can access every file of its user: boot with lsm=landlock,... (Linux 5.13), or confine it by systemd",
        ),
    }
}

fn seccomp() -> Finding {
    if confine::calls_available() {
        let meaning = "weir up blocks unused system calls: mount, ptrace, bpf, namespaces, modules";
        finding("seccomp", Verdict::Good, "yes", meaning)
    } else {
        let meaning = "weir up keeps every system call its privileges allow; use a kernel with CONFIG_SECCOMP_FILTER";
        finding("seccomp", Verdict::Fair, "none", meaning)
    }
}

/// Writes findings for a person, within 80 columns.
pub(crate) fn render(findings: &[Finding]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic).set_width(80);
    table.set_header(["", "", "found", "which means"]);
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Good => "good",
            Verdict::Fair => "fair",
            Verdict::Bad => "BAD",
        };
        table.add_row([finding.what, mark, &finding.found, &finding.meaning]);
    }
    let verdict =
        if healthy(findings) { "This host can run weir up." } else { "This host cannot run weir up; see BAD above." };
    format!("{table}\n\n{verdict}\n")
}

/// True when nothing keeps `weir up` from working.
pub(crate) fn healthy(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.verdict != Verdict::Bad)
}

/// The suites, and the key material each takes.
pub(crate) fn suites() -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic).set_width(80);
    table.set_header(["name", "kind", "key", "salt", "IV", "ICV", ""]);
    let legacy = |weak: bool| if weak { "legacy" } else { "" };
    for enc in EncAlg::all() {
        let kind = if enc.kind.is_aead() { "alone" } else { "with a MAC" };
        let lengths = [enc.key_len, enc.salt_len, enc.iv_len, enc.icv_len].map(|n| n.to_string());
        let [key, salt, iv, icv] = lengths;
        table.add_row([enc.name.into(), kind.into(), key, salt, iv, icv, legacy(enc.weak).to_owned()]);
    }
    for integ in IntegAlg::all() {
        let row =
            [integ.name, "MAC", &integ.key_len.to_string(), "0", "0", &integ.icv_len.to_string(), legacy(integ.weak)];
        table.add_row(row.map(str::to_owned));
    }
    format!("{table}\n\nLengths in bytes. Key material is key, salt, then the key of the MAC.\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_says_what_it_means_within_80_columns() {
        let findings = examine();
        assert!(findings.iter().all(|finding| !finding.found.is_empty() && !finding.meaning.is_empty()));
        for text in [render(&findings), suites()] {
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
    }

    #[test]
    fn a_library_older_than_the_one_that_builds_install_is_reported() {
        let verdict = |library| linked(library).verdict;
        assert_eq!(crypto::IPSEC_MB_PINNED, "2.0.2");
        for good in ["2.0.2, linked statically", "2.1", "3.0.0, linked statically", "10.0"] {
            assert_eq!(verdict(Some(good)), Verdict::Good, "{good}");
        }
        for fair in ["1.3.0, linked statically, installed from /usr", "2.0", "2.0.1", "of an unknown version"] {
            assert_eq!(verdict(Some(fair)), Verdict::Fair, "{fair}");
            assert!(linked(Some(fair)).meaning.contains("scripts/ipsec-mb.sh"), "{fair}");
        }
        assert_eq!(verdict(None), Verdict::Fair);
    }

    #[test]
    fn flags_are_whole_words() {
        let cpu = "flags\t\t: fpu vaes sse\n";
        assert!(has(cpu, "vaes") && !has(cpu, "aes"));
    }
}
