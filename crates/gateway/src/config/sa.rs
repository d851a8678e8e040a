//! The sections of `sas`: both directions between two hosts, as specifications.

mod eesp;
mod esp;
mod half;
mod keys;
mod psp;

use std::time::Duration;

use crypto::Suite;
use crypto::kdf::SubSaKdf;
use ipsec::{Beet, Lifetime, Mode, Outer, Peer, Protocol, UdpPorts};
use wire::Spi;
use wire::psp::PspSpi;

use super::gateway::Gateway;
use super::problem::Origin;
use super::value::{Fields, Secret, parsed, word};

/// One section of `sas`.
#[derive(Clone)]
pub struct Sa {
    /// Name.
    pub name: String,
    /// Location in the file.
    pub at: Origin,
    /// Protocol of both directions.
    pub protocol: Protocol,
    /// Mode of both directions.
    pub mode: Mode,
    /// Outer addresses, seen from this host.
    pub peer: Peer,
    /// Outbound direction.
    pub outbound: Option<Half>,
    /// Inbound direction.
    pub inbound: Option<Half>,
}

/// One direction of an SA.
#[derive(Clone, Debug, PartialEq)]
pub struct Half {
    /// Outbound the first number to send, inbound the highest one seen.
    pub seq: u64,
    /// Replay window in packets (inbound).
    pub window: u32,
    /// Outer header.
    pub outer: Outer,
    /// Hard limits that packets see.
    pub lifetime: Lifetime,
    /// Hard limit in time.
    pub life_time: Option<Duration>,
    /// Largest outer packet in bytes; `None`: that of the route.
    pub path_mtu: Option<u32>,
    /// Particulars.
    pub proto: HalfProto,
}

/// Settings of one protocol.
#[derive(Clone, Debug, PartialEq)]
pub enum HalfProto {
    /// ESP.
    Esp {
        /// SPI.
        spi: Spi,
        /// Suite.
        suite: Suite,
        /// Cipher key and salt.
        enc: Secret,
        /// MAC key.
        integ: Secret,
        /// 64-bit numbers.
        esn: bool,
        /// Pad to the path MTU.
        tfc_padding: bool,
        /// CBC IV of every packet.
        iv: Option<[u8; 16]>,
    },
    /// AH.
    Ah {
        /// SPI.
        spi: Spi,
        /// Suite.
        suite: Suite,
        /// MAC key.
        integ: Secret,
        /// 64-bit numbers.
        esn: bool,
        /// Over IPv4 pad to 8 bytes, as Linux does by default.
        align8: bool,
    },
    /// EESP.
    Eesp {
        /// SPI.
        spi: Spi,
        /// Suite.
        suite: Suite,
        /// Key and salt, or root key.
        key: Secret,
        /// Function and number of Sub SAs.
        sub_sas: Option<(SubSaKdf, u32)>,
        /// First Session ID.
        session: u16,
        /// 64-bit numbers.
        seq: bool,
        /// Bytes in the clear: sent, or permitted.
        crypt_offset: Option<u8>,
        /// Further options to send.
        options: Vec<u8>,
        /// Refuse unknown options.
        strict_options: bool,
        /// First explicit IV.
        first_iv: Option<u64>,
    },
    /// PSP, sending.
    PspOut {
        /// SPI.
        spi: PspSpi,
        /// Version.
        version: u8,
        /// Traffic key; `None`: derived from `masters`.
        key: Option<Secret>,
        /// The receiver's master keys.
        masters: [Option<Secret>; 2],
        /// Bytes in the clear.
        crypt_offset: u8,
        /// Cookie.
        cookie: Option<u64>,
        /// S bit.
        sample: bool,
        /// D bit.
        drop: bool,
        /// UDP source port.
        source_port: Option<u16>,
    },
    /// PSP, receiving.
    PspIn {
        /// Master keys.
        masters: [Option<Secret>; 2],
        /// SPIs of the peer, ranges with both ends.
        issued: Vec<(PspSpi, PspSpi)>,
        /// Accepted versions, one bit each.
        versions: u8,
        /// Largest crypt offset.
        max_crypt_offset: u8,
        /// Honour the D bit.
        honour_drop: bool,
    },
}

impl HalfProto {
    /// SPI of ESP, AH and EESP.
    pub fn spi(&self) -> Option<Spi> {
        match *self {
            Self::Esp { spi, .. } | Self::Ah { spi, .. } | Self::Eesp { spi, .. } => Some(spi),
            Self::PspOut { .. } | Self::PspIn { .. } => None,
        }
    }

    /// Suite in words, for reports.
    pub fn suite_name(&self) -> String {
        match self {
            Self::Esp { suite, .. } | Self::Ah { suite, .. } | Self::Eesp { suite, .. } => suite.to_string(),
            Self::PspOut { version, .. } => format!("psp v{version}"),
            Self::PspIn { versions, .. } => psp_versions(*versions),
        }
    }

    /// Everything secret in it, for names of state files and to find keys used twice.
    pub fn secrets(&self) -> Vec<&Secret> {
        match self {
            Self::Esp { enc, integ, .. } => vec![enc, integ],
            Self::Ah { integ, .. } => vec![integ],
            Self::Eesp { key, .. } => vec![key],
            Self::PspOut { key, masters, .. } => key.iter().chain(masters.iter().flatten()).collect(),
            Self::PspIn { masters, .. } => masters.iter().flatten().collect(),
        }
    }
}

/// Versions of PSP that are accepted, bit n for version n, for people.
pub(crate) fn psp_versions(versions: u8) -> String {
    let list: Vec<String> = (0..4).filter(|v| versions >> v & 1 == 1).map(|v| format!("v{v}")).collect();
    format!("psp {}", list.join(","))
}

/// Keys that belong into the section itself.
const SECTION_KEYS: &[&str] = &["protocol", "mode", "local", "remote", "inner_local", "inner_remote"];
/// Keys that belong into `in` or `out`.
const HALF_KEYS: &[&str] = &[
    "spi",
    "key",
    "enc_key",
    "integ_key",
    "first_seq",
    "last_seq",
    "tfc_padding",
    "iv",
    "max_crypt_offset",
    "options",
    "strict_options",
    "first_iv",
    "last_iv",
    "master_key_0",
    "master_key_1",
    "issued",
    "versions",
    "cookie",
    "sample",
    "drop",
    "honour_drop",
    "source_port",
    "crypt_offset",
    "align8",
];
/// Keys that exist for some protocol.
const OTHER_KEYS: &[&str] = &[
    "suite",
    "esn",
    "encap",
    "local_port",
    "remote_port",
    "udp_checksum",
    "seq",
    "sub_sas",
    "sskdf",
    "session",
    "version",
    "replay_window",
];

fn elsewhere(protocol: Protocol, inside: Option<Direction>) -> impl Fn(&str) -> Option<String> {
    move |key| {
        let of = protocol.name();
        match inside {
            None if HALF_KEYS.contains(&key) => Some(format!("'{key}' belongs into the subsection 'in' or 'out'")),
            Some(_) if SECTION_KEYS.contains(&key) => {
                Some(format!("'{key}' applies to both directions: move it out of 'in' and 'out'"))
            }
            Some(direction) if HALF_KEYS.contains(&key) => {
                Some(format!("'{key}' is not a setting of {of} in '{}'; remove it", direction.name()))
            }
            _ if OTHER_KEYS.contains(&key) => Some(format!("'{key}' is not a setting of {of}; remove it")),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Direction {
    Out,
    In,
}

impl Direction {
    fn name(self) -> &'static str {
        if self == Self::Out { "out" } else { "in" }
    }
}

/// Values of the section that a direction needs.
struct Shared<'a> {
    protocol: Protocol,
    mode: Mode,
    peer: Peer,
    gateway: &'a Gateway,
}

impl Half {
    /// The SPI, or the SPIs that PSP handed out, for people.
    pub fn spi_text(&self) -> String {
        match &self.proto {
            HalfProto::PspIn { issued, .. } => {
                let (first, last) = issued.first().map_or((0, 0), |(first, last)| (first.get(), last.get()));
                let more = if issued.len() > 1 { ",…" } else { "" };
                if first == last { format!("{first:#010x}{more}") } else { format!("{first:#x}-{last:x}{more}") }
            }
            HalfProto::PspOut { spi, .. } => format!("{:#010x}", spi.get()),
            HalfProto::Esp { spi, .. } | HalfProto::Ah { spi, .. } | HalfProto::Eesp { spi, .. } => {
                format!("{:#010x}", spi.get())
            }
        }
    }
}

impl Sa {
    pub(crate) fn read(name: &str, fields: &Fields<'_>, gateway: &Gateway) -> Option<Self> {
        let protocol = fields.need(
            "protocol",
            word(&[("esp", Protocol::Esp), ("ah", Protocol::Ah), ("eesp", Protocol::Eesp), ("psp", Protocol::Psp)]),
        );
        let peer = addresses(fields, "local", "remote", true);
        let mode = mode(fields, protocol);
        // Without the protocol the set of valid keys is unknown.
        let protocol = protocol?;
        let some_mode = mode.unwrap_or(Mode::Tunnel);
        let any = Peer { local: [0, 0, 0, 0].into(), remote: [0, 0, 0, 0].into() };
        let shared = Shared { protocol, mode: some_mode, peer: peer.unwrap_or(any), gateway };
        let half = |direction: Direction| {
            let section = fields.section().section(direction.name())?;
            let fields = fields.below(section);
            let half = Half::read(&fields, direction, &shared);
            fields.finish(&[], elsewhere(protocol, Some(direction)));
            Some(half)
        };
        let (outbound, inbound) = (half(Direction::Out), half(Direction::In));
        if outbound.is_none() && inbound.is_none() {
            fields.fault(
                "'out' and 'in' are both missing",
                "add 'out { spi = …  key = … }' and 'in { … }', one setting per line",
            );
        }
        fields.finish(&["out", "in"], elsewhere(protocol, None));
        Some(Self {
            name: name.into(),
            at: fields.at().clone(),
            protocol,
            mode: mode?,
            peer: peer?,
            outbound: unfailed(outbound)?,
            inbound: unfailed(inbound)?,
        })
    }

    /// The SA as the other end sees it: what goes out here comes in there.
    pub fn mirrored(&self) -> Self {
        let flip = |half: &Half, outward: bool| {
            let mut half = half.clone();
            half.outer.peer = Peer { local: half.outer.peer.remote, remote: half.outer.peer.local };
            half.outer.udp = half.outer.udp.map(|udp| UdpPorts { src: udp.dst, dst: udp.src });
            half.seq = if outward { half.seq + 1 } else { half.seq.saturating_sub(1) };
            half.proto = half.proto.mirrored();
            half
        };
        Self {
            mode: match self.mode {
                Mode::Beet(beet) => Mode::Beet(Beet { local: beet.remote, remote: beet.local }),
                mode => mode,
            },
            peer: Peer { local: self.peer.remote, remote: self.peer.local },
            outbound: self.inbound.as_ref().map(|half| flip(half, true)),
            inbound: self.outbound.as_ref().map(|half| flip(half, false)),
            ..self.clone()
        }
    }
}

impl HalfProto {
    fn mirrored(self) -> Self {
        // A peer sends with the first of the SPIs that it was given.
        let given = match &self {
            Self::PspIn { issued, .. } => issued.first().map(|(first, _)| *first),
            _ => None,
        };
        match (self, given) {
            (Self::PspOut { spi, version, masters, crypt_offset, drop, .. }, _) => Self::PspIn {
                masters,
                issued: vec![(spi, spi)],
                versions: 1 << version,
                max_crypt_offset: crypt_offset,
                honour_drop: drop,
            },
            (Self::PspIn { masters, versions, max_crypt_offset, .. }, Some(spi)) => Self::PspOut {
                spi,
                version: versions.trailing_zeros() as u8,
                key: None,
                masters,
                crypt_offset: max_crypt_offset,
                cookie: None,
                sample: false,
                drop: false,
                source_port: None,
            },
            (other, _) => other,
        }
    }
}

/// Turns "there, but faulty" inside out: `None` when the half has faults.
fn unfailed(half: Option<Option<Half>>) -> Option<Option<Half>> {
    match half {
        Some(None) => None,
        Some(Some(half)) => Some(Some(half)),
        None => Some(None),
    }
}

fn addresses(fields: &Fields<'_>, local: &'static str, remote: &'static str, need: bool) -> Option<Peer> {
    let parse = parsed("write an IP address, for example 192.0.2.1 or 2001:db8::1");
    let read = |key| if need { fields.need_own(key, &parse) } else { fields.get_own(key, &parse) };
    let (ours, theirs): (Option<std::net::IpAddr>, _) = (read(local), read(remote));
    let peer = Peer { local: ours?, remote: theirs? };
    if peer.local.is_ipv4() != peer.remote.is_ipv4() {
        let message = format!("{local} is {} and {remote} is {}: address families differ", peer.local, peer.remote);
        fields.fault_of(remote, message, "outer addresses must both be IPv4 or both be IPv6");
        return None;
    }
    if peer.local == peer.remote {
        fields.fault_of(remote, format!("{local} and {remote} are equal"), "an SA connects two hosts");
        return None;
    }
    if let Some(bad) = [peer.local, peer.remote].into_iter().find(|a| a.is_unspecified() || a.is_multicast()) {
        fields.fault_of(remote, format!("{bad} is not a unicast address"), "write the address of an interface");
        return None;
    }
    Some(peer)
}

fn mode(fields: &Fields<'_>, protocol: Option<Protocol>) -> Option<Mode> {
    #[derive(Clone, Copy)]
    enum Word {
        Tunnel,
        Transport,
        Beet,
    }
    let written = fields.setting("mode").is_some();
    let word =
        fields.get_own("mode", word(&[("tunnel", Word::Tunnel), ("transport", Word::Transport), ("beet", Word::Beet)]));
    let inner = addresses(fields, "inner_local", "inner_remote", matches!(word, Some(Word::Beet)));
    if !matches!(word, Some(Word::Beet)) && fields.section().setting("inner_local").is_some() {
        fields.fault_of("inner_local", "only BEET mode has fixed inner addresses", "use 'mode = beet', or remove it");
    }
    match word {
        None if written => None,
        None | Some(Word::Tunnel) => Some(Mode::Tunnel),
        Some(Word::Transport) => Some(Mode::Transport),
        Some(Word::Beet) => {
            if matches!(protocol, Some(Protocol::Ah | Protocol::Psp)) {
                fields.fault_of("mode", "BEET exists for ESP and EESP only", "use tunnel or transport");
                return None;
            }
            inner.map(|inner| Mode::Beet(Beet { local: inner.local, remote: inner.remote }))
        }
    }
}
