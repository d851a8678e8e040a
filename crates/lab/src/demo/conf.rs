//! Configurations of both hosts for each variant: with manual keys, or with credentials.

use std::fmt::Write;
use std::path::Path;

use super::pki::Pki;
use super::way::{Family, Keying, Way};
use super::world::{End, Plan};

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

/// Parameters of the configurations of a row besides secrets.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) way: Way,
    pub(super) plan: &'a Plan,
    /// Directory of sockets and state.
    pub(super) dir: &'a Path,
    pub(super) sub_sas: usize,
}

impl Setting<'_> {
    /// The section `gateway`, the same for all.
    fn gateway(&self, end: End) -> String {
        let dir = self.dir.display();
        let workers = if self.way == Way::EespSub { self.sub_sas } else { 1 };
        // Both hosts have the same files: only the network is their own.
        format!(
            "# {end}: {label}\ngateway {{\n    socket = \"{dir}/{end}.vici\"\n    \
             state_dir = \"{dir}/{end}.state\"\n    workers = {workers}\n}}\n",
            label = self.way.label(self.sub_sas),
        )
    }

    fn mode(&self) -> &'static str {
        if self.way.is_tunnel() { "tunnel" } else { "transport" }
    }

    /// Selectors of a tunnel; transport mode protects all between both hosts.
    fn selectors(&self, end: End, indent: &str) -> String {
        if !self.way.is_tunnel() {
            return String::new();
        }
        let (here, there) = (self.plan.network(end), self.plan.network(end.other()));
        format!("{indent}local_ts = {here}\n{indent}remote_ts = {there}\n")
    }

    /// One end with keys set by hand.
    pub(super) fn manual(&self, end: End, secrets: &Secrets) -> String {
        let mut text = self.gateway(end);
        let way = self.way;
        let (out, inward) = match end {
            End::Sun => (&secrets.from_sun, &secrets.from_moon),
            End::Moon => (&secrets.from_moon, &secrets.from_sun),
        };
        let there = end.other();
        let _ = write!(
            text,
            "sas {{\n    {there} {{\n        protocol = {protocol}\n        mode = {mode}\n        local = {local}\n        \
             remote = {remote}\n",
            protocol = way.protocol(),
            mode = self.mode(),
            local = self.plan.outer(end),
            remote = self.plan.outer(there),
        );
        if let Some(suite) = way.suite() {
            let _ = writeln!(text, "        suite = {suite}");
        }
        if way == Way::EespSub {
            let _ = writeln!(text, "        sub_sas = {}", self.sub_sas);
        }
        for (direction, secret) in [("out", out), ("in", inward)] {
            let key = if way.family() == Family::Psp { "master_key_0" } else { "key" };
            let spi = if way.family() == Family::Psp && direction == "in" { "issued" } else { "spi" };
            let _ = write!(
                text,
                "        {direction} {{\n            {spi} = {:#x}\n            {key} = 0x{}\n        }}\n",
                secret.spi,
                hex(&secret.key)
            );
        }
        let selectors = self.selectors(end, "        ");
        let _ = write!(text, "    }}\n}}\npolicies {{\n    demo {{\n{selectors}        sa = {there}\n    }}\n}}\n");
        text
    }

    /// One end that agrees on keys with the other one; by IKE as soon as there is a packet for it.
    pub(super) fn keyed(&self, end: End, keying: Keying) -> String {
        let mut text = self.gateway(end);
        let there = end.other();
        let version = if keying == Keying::Psp {
            "protocol = psp"
        } else {
            "version = 2\n        proposals = aes128gcm16-prfsha256-x25519"
        };
        let _ = write!(
            text,
            "connections {{\n    {there} {{\n        {version}\n        local_addrs = {local}\n        remote_addrs = {remote}\n        \
             local {{\n            auth = pubkey\n            certs = {end}.pem\n            id = {here}\n        }}\n        \
             remote {{\n            auth = pubkey\n            id = {peer}\n        }}\n        children {{\n            \
             net {{\n",
            local = self.plan.outer(end),
            remote = self.plan.outer(there),
            here = Pki::name(end),
            peer = Pki::name(there),
        );
        let indent = "                ";
        let _ = match (self.way.suite(), self.way) {
            (Some(suite), Way::EespSub) => write!(
                text,
                "{indent}eesp_proposals = {suite}-sskdfsha256\n{indent}eesp_max_sub_sa_id = {}\n",
                self.sub_sas - 1
            ),
            (Some(suite), way) => writeln!(text, "{indent}{}_proposals = {suite}", way.protocol()),
            (None, _) => writeln!(text, "{indent}psp_version = 0"),
        };
        let _ = writeln!(text, "{indent}mode = {}", self.mode());
        text.push_str(&self.selectors(end, indent));
        // The key service has no trap: a policy without keys drops, so one host must initiate.
        let start = if keying == Keying::Psp { "none" } else { "trap" };
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
    use crate::demo::world::Cable;

    fn secrets(way: Way) -> Secrets {
        let key = |first| (first..).take(way.key_bytes()).collect();
        Secrets { from_sun: Secret { spi: 0x1001, key: key(0) }, from_moon: Secret { spi: 0x1002, key: key(100) } }
    }

    fn setting(way: Way, plan: &Plan) -> Setting<'_> {
        Setting { way, plan, dir: Path::new("/run/x"), sub_sas: 2 }
    }

    #[test]
    fn one_configuration_whole() {
        let plan = Plan { v6: false, mtu: 1500, cable: Cable::Wire };
        let text = setting(Way::EespSub, &plan).manual(End::Moon, &secrets(Way::EespSub));
        let expected = "\
# moon: EESP tunnel, 2 Sub SAs
gateway {
    socket = \"/run/x/moon.vici\"
    state_dir = \"/run/x/moon.state\"
    workers = 2
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
    demo {
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
            for way in Way::ALL.into_iter().filter(|way| *way != Way::Plain) {
                let of = |end| setting(way, &plan).manual(end, &secrets(way));
                let (sun, moon) = (of(End::Sun), of(End::Moon));
                let section = |text: &str, name: &str| -> Vec<String> {
                    let start = text.find(&format!("        {name} {{")).expect("section is there");
                    let block = text[start..].lines().skip(1).take(2);
                    block.map(|line| line.split('=').nth(1).expect("a setting").trim().to_owned()).collect()
                };
                assert_eq!(section(&sun, "out"), section(&moon, "in"), "{way:?}");
                assert_eq!(section(&sun, "in"), section(&moon, "out"), "{way:?}");
                for text in [&sun, &moon] {
                    assert_eq!(text.matches('{').count(), text.matches('}').count(), "{way:?}");
                    assert_eq!(text.contains("local_ts"), way.is_tunnel());
                }
            }
        }
    }

    #[test]
    fn one_configuration_with_certificates_whole() {
        let plan = Plan { v6: false, mtu: 1500, cable: Cable::Wire };
        let text = setting(Way::EespSub, &plan).keyed(End::Moon, Keying::Ike);
        let expected = "\
# moon: EESP tunnel, 2 Sub SAs
gateway {
    socket = \"/run/x/moon.vici\"
    state_dir = \"/run/x/moon.state\"
    workers = 2
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
    fn each_protocol_is_negotiated_in_its_own_words() {
        let plan = Plan { v6: true, mtu: 1500, cable: Cable::Wire };
        for (way, keying, words) in [
            (Way::EspGcm, Keying::Ike, "esp_proposals = aes128gcm16\n"),
            (Way::EspCbc, Keying::Ike, "esp_proposals = aes128-sha256\n"),
            (Way::Ah, Keying::Ike, "ah_proposals = sha256\n"),
            (Way::Eesp, Keying::Ike, "eesp_proposals = aes128gcm16\n"),
            (Way::Psp, Keying::Psp, "psp_version = 0\n"),
        ] {
            let text = setting(way, &plan).keyed(End::Sun, keying);
            assert!(text.contains(words) && text.contains("remote_addrs = 2001:db8::2\n"), "{text}");
            assert_eq!(text.matches('{').count(), text.matches('}').count());
            assert_eq!(text.contains("protocol = psp"), keying == Keying::Psp);
            assert_eq!(text.contains("local_ts = fd00:1::/64"), way.is_tunnel());
        }
    }
}
