//! Configurations of Weir on both hosts: with manual keys, or with credentials to negotiate them.

use std::fmt::Write;
use std::path::Path;

use crypto::Suite;
use ipsec::Protocol;

use crate::MemorySubject;
use crate::pair::{self, Lanes, PSP_SUITES, Shape};
use crate::pki::Pki;
use crate::world::{CABLE, End, Plan};

/// One direction's SPI and key.
pub(super) struct Secret {
    pub(super) spi: u32,
    pub(super) key: Vec<u8>,
}

/// Secrets that both hosts share in one row.
pub(super) struct Secrets {
    /// By sender.
    pub(super) from_sun: Secret,
    pub(super) from_moon: Secret,
}

/// What the configurations of both hosts have in common, secrets excepted.
#[derive(Clone, Debug)]
pub(super) struct Setting<'a> {
    /// Description in the first line.
    pub(super) label: String,
    /// `esp`, `ah`, `eesp` or `psp`.
    pub(super) protocol: &'static str,
    /// Proposal keyword; empty for PSP.
    pub(super) suite: String,
    pub(super) psp_version: usize,
    pub(super) tunnel: bool,
    /// In UDP; PSP always is.
    pub(super) udp: bool,
    /// By AF_XDP at the cable.
    pub(super) xdp: bool,
    /// With active queue management.
    pub(super) aqm: bool,
    pub(super) esn: bool,
    /// Sequence numbers on the wire (EESP).
    pub(super) seq: bool,
    /// Full packet format in tunnel mode (EESP).
    pub(super) full: bool,
    pub(super) lanes: Lanes,
    pub(super) workers: u32,
    pub(super) plan: &'a Plan,
    /// Directory of sockets and state.
    pub(super) dir: &'a Path,
}

/// Key material of one direction in bytes; for PSP the master key.
pub(super) fn key_bytes(subject: &pair::Subject) -> usize {
    let suite = match subject.protocol {
        Protocol::Psp => return 32,
        Protocol::Ah => Suite::parse_ah(&subject.suite),
        Protocol::Eesp if matches!(subject.lanes, Lanes::SubSas(_)) => return 32,
        Protocol::Esp | Protocol::Eesp => Suite::parse_esp(&subject.keyword()),
    };
    suite.map_or(0, |suite| suite.enc_material_len() + suite.integ_material_len())
}

impl<'a> Setting<'a> {
    /// Configuration of `subject` with so many worker threads.
    pub(super) fn of(subject: &pair::Subject, workers: u32, plan: &'a Plan, dir: &'a Path) -> Self {
        Self {
            label: MemorySubject::Path(subject.clone()).to_string(),
            protocol: subject.protocol.name(),
            suite: subject.keyword(),
            psp_version: PSP_SUITES.iter().position(|suite| *suite == subject.suite).unwrap_or(0),
            tunnel: subject.shape == Shape::Tunnel,
            udp: subject.udp,
            xdp: subject.xdp,
            aqm: subject.aqm,
            esn: subject.esn,
            seq: subject.seq,
            full: subject.crypt_offset.is_some(),
            lanes: subject.lanes,
            workers,
            plan,
            dir,
        }
    }
}

impl Setting<'_> {
    pub(super) fn is_psp(&self) -> bool {
        self.protocol == "psp"
    }

    fn sub_sas(&self) -> u32 {
        self.lanes.sub_sas(self.workers)
    }

    /// The section `gateway`, the same for all.
    fn gateway(&self, end: End) -> String {
        let (dir, workers) = (self.dir.display(), self.workers);
        // SAs with a lane for each worker take the flows as the device spreads them.
        let spread = workers > 1 && (self.lanes != Lanes::One || self.is_psp());
        let queues = if spread { "    queues = flows\n" } else { "" };
        let bypass = if self.xdp { format!("    xdp = {CABLE}\n") } else { String::new() };
        let aqm = if self.aqm { "    aqm_interval = 100\n" } else { "" };
        // Both hosts have the same files: only the network is their own.
        format!(
            "# {end}: {label}\ngateway {{\n    socket = \"{dir}/{end}.vici\"\n    \
             state_dir = \"{dir}/{end}.state\"\n    workers = {workers}\n{queues}{bypass}{aqm}}}\n",
            label = self.label,
        )
    }

    fn mode(&self) -> &'static str {
        if self.tunnel { "tunnel" } else { "transport" }
    }

    /// Selectors of a tunnel; transport mode protects all between both hosts.
    fn selectors(&self, end: End, indent: &str) -> String {
        if !self.tunnel {
            return String::new();
        }
        let (here, there) = (self.plan.network(end), self.plan.network(end.other()));
        format!("{indent}local_ts = {here}\n{indent}remote_ts = {there}\n")
    }

    /// One end with keys set by hand. There is no SA per CPU.
    pub(super) fn manual(&self, end: End, secrets: &Secrets) -> String {
        let mut text = self.gateway(end);
        let (out, inward) = match end {
            End::Sun => (&secrets.from_sun, &secrets.from_moon),
            End::Moon => (&secrets.from_moon, &secrets.from_sun),
        };
        let there = end.other();
        let _ = write!(
            text,
            "sas {{\n    {there} {{\n        protocol = {protocol}\n        mode = {mode}\n        local = {local}\n        \
             remote = {remote}\n",
            protocol = self.protocol,
            mode = self.mode(),
            local = self.plan.outer(end),
            remote = self.plan.outer(there),
        );
        let psp = self.is_psp();
        let _ = match psp {
            true => writeln!(text, "        version = {}", self.psp_version),
            false => writeln!(text, "        suite = {}", self.suite),
        };
        for (on, switch) in [(self.udp && !psp, "encap = yes"), (self.esn, "esn = yes"), (!self.seq, "seq = no")] {
            if on {
                let _ = writeln!(text, "        {switch}");
            }
        }
        if self.sub_sas() > 0 {
            let _ = writeln!(text, "        sub_sas = {}", self.sub_sas());
        }
        for (direction, secret, offset) in [("out", out, "crypt_offset"), ("in", inward, "max_crypt_offset")] {
            let key = if psp { "master_key_0" } else { "key" };
            let spi = if psp && direction == "in" { "issued" } else { "spi" };
            let full = if self.full { format!("            {offset} = 0\n") } else { String::new() };
            let _ = write!(
                text,
                "        {direction} {{\n            {spi} = {:#x}\n            {key} = 0x{}\n{full}        }}\n",
                secret.spi,
                hex(&secret.key)
            );
        }
        let selectors = self.selectors(end, "        ");
        let _ = write!(text, "    }}\n}}\npolicies {{\n    lab {{\n{selectors}        sa = {there}\n    }}\n}}\n");
        text
    }

    /// One end that agrees on keys with the other one: by IKE as soon as there is a packet for it,
    /// or by the key service of PSP.
    pub(super) fn keyed(&self, end: End) -> String {
        let mut text = self.gateway(end);
        let (there, psp) = (end.other(), self.is_psp());
        let version =
            if psp { "protocol = psp" } else { "version = 2\n        proposals = aes128gcm16-prfsha256-x25519" };
        let encap = if self.udp && !psp { "        encap = yes\n" } else { "" };
        let _ = write!(
            text,
            "connections {{\n    {there} {{\n        {version}\n{encap}        local_addrs = {local}\n        remote_addrs = {remote}\n        \
             local {{\n            auth = pubkey\n            certs = {end}.pem\n            id = {here}\n        }}\n        \
             remote {{\n            auth = pubkey\n            id = {peer}\n        }}\n        children {{\n            \
             net {{\n",
            local = self.plan.outer(end),
            remote = self.plan.outer(there),
            here = Pki::name(end),
            peer = Pki::name(there),
        );
        let indent = "                ";
        if psp {
            let _ = writeln!(text, "{indent}psp_version = {}", self.psp_version);
            if self.workers > 1 {
                // PSP has no replay protection. Weir's window takes packets that several workers
                // open out of order for old ones.
                let _ = writeln!(text, "{indent}replay_window = 0");
            }
        } else {
            let numbers = [(self.esn, "-esn"), (!self.seq, "-snnone"), (self.sub_sas() > 0, "-sskdfsha256")];
            let words: String = numbers.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect();
            let _ = writeln!(text, "{indent}{}_proposals = {}{words}", self.protocol, self.suite);
        }
        if self.sub_sas() > 0 {
            let _ = writeln!(text, "{indent}eesp_max_sub_sa_id = {}", self.sub_sas() - 1);
        }
        if self.full {
            let _ = writeln!(text, "{indent}eesp_max_crypt_offset = 0");
        }
        if self.lanes == Lanes::PerCpu {
            let _ = writeln!(text, "{indent}per_cpu_sas = yes");
        }
        let _ = writeln!(text, "{indent}mode = {}", self.mode());
        text.push_str(&self.selectors(end, indent));
        // The key service has no trap: a policy without keys drops, so one host must initiate.
        let start = if psp { "none" } else { "trap" };
        let _ = write!(text, "{indent}start_action = {start}\n            }}\n        }}\n    }}\n}}\n");
        text
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Cable;

    const SUB_SAS: &str = "weir-eesp-tunnel-aes128gcm16,sub-sas";

    /// Every protocol in the modes that it has.
    const ALL: [&str; 7] = [
        "weir-esp-tunnel-aes128gcm16",
        "weir-esp-transport-aes128-sha256",
        "weir-ah-transport-sha256",
        "weir-eesp-tunnel-aes128gcm16",
        SUB_SAS,
        "weir-psp-transport-aes128gcm16",
        "weir-psp-tunnel-aes128gcm16",
    ];

    fn subject(name: &str) -> pair::Subject {
        match name.parse::<MemorySubject>() {
            Ok(MemorySubject::Path(subject)) => subject,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn secrets(name: &str) -> Secrets {
        let key = |first| (first..).take(key_bytes(&subject(name))).collect();
        Secrets { from_sun: Secret { spi: 0x1001, key: key(0) }, from_moon: Secret { spi: 0x1002, key: key(100) } }
    }

    fn setting<'a>(name: &str, plan: &'a Plan) -> Setting<'a> {
        Setting::of(&subject(name), 2, plan, Path::new("/run/x"))
    }

    #[test]
    fn one_configuration_whole() {
        let plan = Plan { v6: false, mtu: 1500, cable: Cable::Wire };
        let text = setting(SUB_SAS, &plan).manual(End::Moon, &secrets(SUB_SAS));
        let expected = "\
# moon: weir-eesp-tunnel-aes128gcm16,sub-sas
gateway {
    socket = \"/run/x/moon.vici\"
    state_dir = \"/run/x/moon.state\"
    workers = 2
    queues = flows
}
sas {
    sun {
        protocol = eesp
        mode = tunnel
        local = 192.0.2.2
        remote = 192.0.2.1
        suite = aes128gcm16
        sub_sas = 2
        out {
            spi = 0x1002
            key = 0x6465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f80818283
        }
        in {
            spi = 0x1001
            key = 0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
        }
    }
}
policies {
    lab {
        local_ts = 10.2.0.0/24
        remote_ts = 10.1.0.0/24
        sa = sun
    }
}
";
        assert_eq!(text, expected);
    }

    /// The outbound keys of one host are the inbound keys of the other, and braces are balanced.
    #[test]
    fn both_ends_mirror_each_other() {
        for v6 in [false, true] {
            let plan = Plan { v6, mtu: 1500, cable: Cable::Wire };
            for name in ALL {
                let of = |end| setting(name, &plan).manual(end, &secrets(name));
                let (sun, moon) = (of(End::Sun), of(End::Moon));
                let section = |text: &str, name: &str| -> Vec<String> {
                    let start = text.find(&format!("        {name} {{")).expect("section is there");
                    let block = text[start..].lines().skip(1).take(2);
                    block.map(|line| line.split('=').nth(1).expect("a setting").trim().to_owned()).collect()
                };
                assert_eq!(section(&sun, "out"), section(&moon, "in"), "{name}");
                assert_eq!(section(&sun, "in"), section(&moon, "out"), "{name}");
                for text in [&sun, &moon] {
                    assert_eq!(text.matches('{').count(), text.matches('}').count(), "{name}");
                    assert_eq!(text.contains("local_ts"), name.contains("-tunnel-"));
                }
            }
        }
    }

    #[test]
    fn one_configuration_with_certificates_whole() {
        let plan = Plan { v6: false, mtu: 1500, cable: Cable::Wire };
        let text = setting(SUB_SAS, &plan).keyed(End::Moon);
        let expected = "\
# moon: weir-eesp-tunnel-aes128gcm16,sub-sas
gateway {
    socket = \"/run/x/moon.vici\"
    state_dir = \"/run/x/moon.state\"
    workers = 2
    queues = flows
}
connections {
    sun {
        version = 2
        proposals = aes128gcm16-prfsha256-x25519
        local_addrs = 192.0.2.2
        remote_addrs = 192.0.2.1
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
                eesp_proposals = aes128gcm16-sskdfsha256
                eesp_max_sub_sa_id = 1
                mode = tunnel
                local_ts = 10.2.0.0/24
                remote_ts = 10.1.0.0/24
                start_action = trap
            }
        }
    }
}
";
        assert_eq!(text, expected);
    }

    #[test]
    fn af_xdp_is_at_the_cable() {
        let plan = Plan { v6: false, mtu: 1500, cable: Cable::Veth };
        for (name, xdp) in [("weir-esp-tunnel-aes128gcm16,xdp", true), ("weir-esp-tunnel-aes128gcm16", false)] {
            let text = setting(name, &plan).keyed(End::Sun);
            assert_eq!(text.contains("    workers = 2\n    xdp = veth0\n}\n"), xdp, "{text}");
        }
        let both = setting("weir-esp-tunnel-aes128gcm16,xdp,aqm", &plan).keyed(End::Sun);
        assert!(both.contains("    xdp = veth0\n    aqm_interval = 100\n}\n"), "{both}");
    }

    #[test]
    fn each_protocol_is_negotiated_in_its_own_words() {
        let plan = Plan { v6: true, mtu: 1500, cable: Cable::Wire };
        let words = [
            "esp_proposals = aes128gcm16\n",
            "esp_proposals = aes128-sha256\n",
            "ah_proposals = sha256\n",
            "eesp_proposals = aes128gcm16\n",
            "eesp_proposals = aes128gcm16-sskdfsha256\n",
            "psp_version = 0\n",
            "psp_version = 0\n",
        ];
        for (name, words) in ALL.into_iter().zip(words) {
            let text = setting(name, &plan).keyed(End::Sun);
            assert!(text.contains(words) && text.contains("remote_addrs = 2001:db8::2\n"), "{text}");
            assert_eq!(text.matches('{').count(), text.matches('}').count());
            assert_eq!(text.contains("protocol = psp"), name.contains("-psp-"));
            assert_eq!(text.contains("local_ts = fd00:1::/64"), name.contains("-tunnel-"));
        }
    }
}
