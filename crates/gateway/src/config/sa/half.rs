//! What every direction of an SA has: numbers, the outer header, limits.

use ipsec::{DfPolicy, DscpPolicy, Lifetime, Outer, Protocol, UdpPorts};
use wire::Spi;

use super::super::value::{Fields, bytes, number, switch, time, word, word_or_number};
use super::{Direction, Half, HalfProto, Shared, eesp, esp, psp};

impl Half {
    /// `None` after an error; every key is checked in any case.
    pub(super) fn read(fields: &Fields<'_>, direction: Direction, shared: &Shared<'_>) -> Option<Self> {
        let psp = shared.protocol == Protocol::Psp;
        let seq = match (direction, psp) {
            (Direction::Out, false) => fields.get_own("first_seq", number(1..=u64::MAX - 1)).unwrap_or(1),
            (Direction::In, false) => fields.get_own("last_seq", number(0..=u64::MAX - 2)).unwrap_or(0),
            (Direction::Out, true) => fields.get_own("first_iv", number(0..=u64::MAX - 1)).unwrap_or(1),
            (Direction::In, true) => fields.get_own("last_iv", number(0..=u64::MAX - 2)).unwrap_or(0),
        };
        let outer = outer(fields, shared);
        let lifetime = Lifetime {
            packets: fields.get("life_packets", number(1..=u64::MAX)).unwrap_or(u64::MAX),
            bytes: fields.get("life_bytes", bytes).unwrap_or(u64::MAX),
        };
        let life_time = fields.get("life_time", time);
        let path_mtu = fields.get("path_mtu", word_or_number("auto", 576..=65_535)).flatten().map(|n| n as u32);
        let window = window(fields, shared.protocol);
        let proto = match shared.protocol {
            Protocol::Esp => esp::esp(fields, direction, shared),
            Protocol::Ah => esp::ah(fields, direction, shared),
            Protocol::Eesp => eesp::eesp(fields, direction, shared),
            Protocol::Psp if direction == Direction::Out => psp::outbound(fields, shared),
            Protocol::Psp => psp::inbound(fields, shared),
        };
        let half = Self { seq, window, outer, lifetime, life_time, path_mtu, proto: proto? };
        half.check_numbers(fields, direction)
    }

    /// The first number must exist.
    fn check_numbers(self, fields: &Fields<'_>, direction: Direction) -> Option<Self> {
        let short = matches!(self.proto, HalfProto::Esp { esn: false, .. } | HalfProto::Ah { esn: false, .. });
        if short && self.seq > u64::from(u32::MAX) {
            let key = if direction == Direction::Out { "first_seq" } else { "last_seq" };
            fields.fault_of(key, "numbers above 0xffffffff need 64 bits", "add 'esn = yes', or write a smaller number");
            return None;
        }
        Some(self)
    }
}

/// SPI of ESP, AH and EESP.
pub(super) fn spi(fields: &Fields<'_>) -> Option<Spi> {
    fields.need_own("spi", |text| {
        let raw = number(0..=u64::from(u32::MAX))(text)? as u32;
        Spi::try_from(raw).map_err(|reserved| reserved.to_string().into())
    })
}

fn window(fields: &Fields<'_>, protocol: Protocol) -> u32 {
    let least: u32 = if protocol == Protocol::Eesp { 64 } else { 32 };
    let parse = |text: &str| match number(0..=65_536)(text) {
        Ok(n) if n == 0 || n >= u64::from(least) => Ok(n as u32),
        _ => Err(format!("write 0 (off) or a number of packets from {least} to 65536").into()),
    };
    fields.get("replay_window", parse).unwrap_or(if protocol == Protocol::Psp { 0 } else { 1024 })
}

fn outer(fields: &Fields<'_>, shared: &Shared<'_>) -> Outer {
    let v6 = shared.peer.local.is_ipv6();
    let encap =
        matches!(shared.protocol, Protocol::Esp | Protocol::Eesp) && fields.get("encap", switch).unwrap_or(false);
    let udp = (shared.protocol == Protocol::Esp || shared.protocol == Protocol::Eesp).then(|| {
        let port = |key| fields.get(key, number(1..=65_535)).map(|n| n as u16);
        let default = shared.gateway.code_points.nat_t_port;
        let ports = (port("local_port"), port("remote_port"));
        if !encap {
            for (key, there) in [("local_port", ports.0), ("remote_port", ports.1)] {
                if there.is_some() {
                    fields.fault_of(key, "ports have no meaning without UDP", "add 'encap = yes', or remove it");
                }
            }
        }
        UdpPorts { src: ports.0.unwrap_or(default), dst: ports.1.unwrap_or(default) }
    });
    let dscp = fields.get("dscp", word_or_number("copy", 0..=63)).flatten();
    let udp_checksum = if matches!(shared.protocol, Protocol::Ah) { None } else { fields.get("udp_checksum", switch) };
    Outer {
        peer: shared.peer,
        hop_limit: fields.get("hop_limit", number(1..=255)).map_or(64, |n| n as u8),
        dscp: dscp.map_or(DscpPolicy::Copy, |n| DscpPolicy::Set(n as u8)),
        ecn: fields.get("ecn", switch).unwrap_or(true),
        df: fields
            .get("df", word(&[("copy", DfPolicy::Copy), ("set", DfPolicy::Set), ("clear", DfPolicy::Clear)]))
            .unwrap_or(DfPolicy::Copy),
        udp: udp.filter(|_| encap),
        udp_checksum: udp_checksum.unwrap_or(v6),
    }
}
