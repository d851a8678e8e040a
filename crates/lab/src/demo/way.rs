//! The eight ways, and the configuration of both ends for each.

use std::fmt::Write;
use std::path::Path;

use super::world::{End, Plan};

/// A way for traffic from sun to moon.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Way {
    /// Without Weir.
    Plain,
    /// ESP in tunnel mode with AES-128-GCM.
    EspGcm,
    /// ESP in transport mode with AES-128-CBC and HMAC-SHA2-256.
    EspCbc,
    /// AH in transport mode with HMAC-SHA2-256.
    Ah,
    /// EESP in tunnel mode with AES-128-GCM.
    Eesp,
    /// The same with Sub SAs, and as many packet threads.
    EespSub,
    /// PSP in transport mode.
    Psp,
    /// PSP in tunnel mode.
    PspTunnel,
}

/// What a protocol looks like in a plot; plain traffic has none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Family {
    Plain,
    Esp,
    Ah,
    Eesp,
    Psp,
}

impl Way {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 8] =
        [Self::Plain, Self::EspGcm, Self::EspCbc, Self::Ah, Self::Eesp, Self::EespSub, Self::Psp, Self::PspTunnel];

    /// Name in files and on the command line.
    pub fn key(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::EspGcm => "esp-gcm",
            Self::EspCbc => "esp-cbc",
            Self::Ah => "ah",
            Self::Eesp => "eesp",
            Self::EespSub => "eesp-sub",
            Self::Psp => "psp",
            Self::PspTunnel => "psp-tunnel",
        }
    }

    /// Name for people, at most 23 characters.
    pub(super) fn label(self, sub_sas: usize) -> String {
        match self {
            Self::Plain => "plain, no Weir".into(),
            Self::EspGcm => "ESP tunnel, AES-GCM".into(),
            Self::EspCbc => "ESP transport, CBC+SHA2".into(),
            Self::Ah => "AH transport, SHA2".into(),
            Self::Eesp => "EESP tunnel, AES-GCM".into(),
            Self::EespSub => format!("EESP tunnel, {sub_sas} Sub SAs"),
            Self::Psp => "PSP transport, AES-GCM".into(),
            Self::PspTunnel => "PSP tunnel, AES-GCM".into(),
        }
    }

    pub(super) fn family(self) -> Family {
        match self {
            Self::Plain => Family::Plain,
            Self::EspGcm | Self::EspCbc => Family::Esp,
            Self::Ah => Family::Ah,
            Self::Eesp | Self::EespSub => Family::Eesp,
            Self::Psp | Self::PspTunnel => Family::Psp,
        }
    }

    /// Whether traffic runs between the networks behind both hosts.
    pub(super) fn is_tunnel(self) -> bool {
        matches!(self, Self::EspGcm | Self::Eesp | Self::EespSub | Self::PspTunnel)
    }

    fn protocol(self) -> &'static str {
        match self.family() {
            Family::Plain => unreachable!("plain traffic has no configuration"),
            Family::Esp => "esp",
            Family::Ah => "ah",
            Family::Eesp => "eesp",
            Family::Psp => "psp",
        }
    }

    /// `None` where the protocol knows only one.
    fn suite(self) -> Option<&'static str> {
        match self {
            Self::EspGcm | Self::Eesp | Self::EespSub => Some("aes128gcm16"),
            Self::EspCbc => Some("aes128-sha256"),
            Self::Ah => Some("sha256"),
            Self::Plain | Self::Psp | Self::PspTunnel => None,
        }
    }

    /// Key material of one direction in bytes; for PSP the master key, for Sub SAs the root key.
    pub(super) fn key_bytes(self) -> usize {
        match self {
            Self::Plain => 0,
            Self::EspGcm | Self::Eesp => 20,
            Self::EspCbc => 48,
            Self::Ah | Self::EespSub | Self::Psp | Self::PspTunnel => 32,
        }
    }
}

/// One direction's SPI and key.
pub(super) struct Secret {
    pub(super) spi: u32,
    pub(super) key: Vec<u8>,
}

/// What both ends share in one row.
pub(super) struct Secrets {
    /// By sender.
    pub(super) from_sun: Secret,
    pub(super) from_moon: Secret,
}

/// Writes the configuration of one end. Its socket and state stand in `dir`.
pub(super) fn configuration(way: Way, end: End, plan: &Plan, secrets: &Secrets, dir: &Path, sub_sas: usize) -> String {
    let mut text = String::new();
    let dir = dir.display();
    let workers = if way == Way::EespSub { sub_sas } else { 1 };
    let mode = if way.is_tunnel() { "tunnel" } else { "transport" };
    let (out, inward) = match end {
        End::Sun => (&secrets.from_sun, &secrets.from_moon),
        End::Moon => (&secrets.from_moon, &secrets.from_sun),
    };
    let there = end.other();
    let _ = write!(
        text,
        "# {end}: {label}\ngateway {{\n    socket = \"{dir}/{end}.sock\"\n    state_dir = \"{dir}/{end}.state\"\n    \
         workers = {workers}\n}}\nsas {{\n    {there} {{\n        protocol = {protocol}\n        mode = {mode}\n        \
         local = {local}\n        remote = {remote}\n",
        label = way.label(sub_sas),
        protocol = way.protocol(),
        local = plan.outer(end),
        remote = plan.outer(there),
    );
    if let Some(suite) = way.suite() {
        let _ = writeln!(text, "        suite = {suite}");
    }
    if way == Way::EespSub {
        let _ = writeln!(text, "        sub_sas = {sub_sas}");
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
    text.push_str("    }\n}\npolicies {\n    demo {\n");
    if way.is_tunnel() {
        let _ = writeln!(text, "        local_ts = {}", plan.network(end));
        let _ = writeln!(text, "        remote_ts = {}", plan.network(there));
    }
    let _ = write!(text, "        sa = {there}\n    }}\n}}\n");
    text
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

    fn secrets(way: Way) -> Secrets {
        let key = |first| (first..).take(way.key_bytes()).collect();
        Secrets { from_sun: Secret { spi: 0x1001, key: key(0) }, from_moon: Secret { spi: 0x1002, key: key(100) } }
    }

    #[test]
    fn one_configuration_whole() {
        let plan = Plan { v6: false, mtu: 1500 };
        let text = configuration(Way::EespSub, End::Moon, &plan, &secrets(Way::EespSub), Path::new("/run/x"), 2);
        let expected = "\
# moon: EESP tunnel, 2 Sub SAs
gateway {
    socket = \"/run/x/moon.sock\"
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

    /// What one end sends with is what the other one receives with, and braces close.
    #[test]
    fn both_ends_mirror_each_other() {
        for v6 in [false, true] {
            let plan = Plan { v6, mtu: 1500 };
            for way in Way::ALL.into_iter().filter(|way| *way != Way::Plain) {
                let of = |end| configuration(way, end, &plan, &secrets(way), Path::new("/run/x"), 4);
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
    fn labels_fit_their_column() {
        assert!(Way::ALL.iter().all(|way| way.label(16).chars().count() <= 23));
    }
}
