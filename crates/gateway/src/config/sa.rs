//! The sections of `sas`: both directions between two hosts, as specifications.

use std::time::Duration;

use crypto::kdf::SubSaKdf;
use crypto::{Suite, SuiteError};
use ipsec::{Beet, DfPolicy, DscpPolicy, Lifetime, Mode, Outer, Peer, Protocol, UdpPorts};

use super::gateway::Gateway;
use super::problem::Origin;
use super::value::{Fields, Refusal, Secret, bytes, list, number, octets, parsed, switch, time, word, word_or_number};

/// One section of `sas`.
#[derive(Clone)]
pub struct Sa {
    /// Name.
    pub name: String,
    /// Where it stands.
    pub at: Origin,
    /// Protocol of both directions.
    pub protocol: Protocol,
    /// Mode of both directions.
    pub mode: Mode,
    /// Outer addresses, seen from this host.
    pub peer: Peer,
    /// What this host sends.
    pub outbound: Option<Half>,
    /// What it receives.
    pub inbound: Option<Half>,
}

/// One direction of an SA.
#[derive(Clone, Debug, PartialEq)]
pub struct Half {
    /// SPI; 0 for what PSP receives.
    pub spi: u32,
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

/// What is particular to a protocol.
#[derive(Clone, Debug, PartialEq)]
pub enum HalfProto {
    /// ESP.
    Esp {
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
        /// Suite.
        suite: Suite,
        /// MAC key.
        integ: Secret,
        /// 64-bit numbers.
        esn: bool,
        /// Over IPv4 pad to 8 bytes, as Linux does unless told otherwise.
        align8: bool,
    },
    /// EESP.
    Eesp {
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
        /// SPIs of the peer.
        issued: Vec<(u32, u32)>,
        /// Accepted versions, one bit each.
        versions: u8,
        /// Largest crypt offset.
        max_crypt_offset: u8,
        /// Honour the D bit.
        honour_drop: bool,
    },
}

impl HalfProto {
    /// Suite in words, for reports.
    pub fn suite_name(&self) -> String {
        match self {
            Self::Esp { suite, .. } | Self::Ah { suite, .. } | Self::Eesp { suite, .. } => suite.to_string(),
            Self::PspOut { version, .. } => format!("psp v{version}"),
            Self::PspIn { versions, .. } => {
                let list: Vec<String> = (0..4).filter(|v| versions >> v & 1 == 1).map(|v| format!("v{v}")).collect();
                format!("psp {}", list.join(","))
            }
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
                Some(format!("'{key}' is the same in both directions: move it out of 'in' and 'out'"))
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

/// What a half needs to know of its section.
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
                let (first, last) = issued.first().copied().unwrap_or_default();
                let more = if issued.len() > 1 { ",…" } else { "" };
                if first == last { format!("{first:#010x}{more}") } else { format!("{first:#x}-{last:x}{more}") }
            }
            _ => format!("{:#010x}", self.spi),
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
        // Without the protocol nobody knows which keys there are.
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
                "there is neither 'out' nor 'in'",
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
            half.proto = half.proto.mirrored(&mut half.spi);
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
    fn mirrored(self, spi: &mut u32) -> Self {
        match self {
            Self::PspOut { version, masters, crypt_offset, drop, .. } => {
                let issued = vec![(*spi, *spi)];
                *spi = 0;
                Self::PspIn {
                    masters,
                    issued,
                    versions: 1 << version,
                    max_crypt_offset: crypt_offset,
                    honour_drop: drop,
                }
            }
            Self::PspIn { masters, issued, versions, max_crypt_offset, .. } => {
                *spi = issued.first().map_or(0, |(first, _)| *first);
                Self::PspOut {
                    version: versions.trailing_zeros() as u8,
                    key: None,
                    masters,
                    crypt_offset: max_crypt_offset,
                    cookie: None,
                    sample: false,
                    drop: false,
                    source_port: None,
                }
            }
            other => other,
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
        let message = format!("{local} is {} and {remote} is {}: two address families", peer.local, peer.remote);
        fields.fault_of(remote, message, "both outer addresses are IPv4, or both IPv6");
        return None;
    }
    if peer.local == peer.remote {
        fields.fault_of(remote, format!("{local} and {remote} are the same"), "an SA is between two hosts");
        return None;
    }
    if let Some(bad) = [peer.local, peer.remote].into_iter().find(|a| a.is_unspecified() || a.is_multicast()) {
        fields.fault_of(remote, format!("{bad} is not the address of one host"), "write the address of an interface");
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
        fields.fault_of("inner_local", "only BEET has fixed inner addresses", "use 'mode = beet', or remove it");
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

impl Half {
    /// `None` after a fault; everything is looked at in any case.
    fn read(fields: &Fields<'_>, direction: Direction, shared: &Shared<'_>) -> Option<Self> {
        let psp = shared.protocol == Protocol::Psp;
        let spi = match (psp, direction) {
            (true, Direction::In) => Some(0),
            (true, Direction::Out) => fields.need_own("spi", psp_spi),
            (false, _) => fields.need_own("spi", spi),
        };
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
            Protocol::Esp => esp(fields, direction, shared),
            Protocol::Ah => ah(fields, direction, shared),
            Protocol::Eesp => eesp(fields, direction, shared),
            Protocol::Psp if direction == Direction::Out => psp_out(fields, shared, spi.unwrap_or(1)),
            Protocol::Psp => psp_in(fields, shared),
        };
        let half = Self { spi: spi?, seq, window, outer, lifetime, life_time, path_mtu, proto: proto? };
        half.check_numbers(fields, direction)
    }

    /// The first number has to exist.
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

fn spi(text: &str) -> Result<u32, Refusal> {
    let raw = number(0..=u64::from(u32::MAX))(text)? as u32;
    wire::Spi::try_from(raw).map(wire::Spi::get).map_err(|reserved| reserved.to_string())
}

fn psp_spi(text: &str) -> Result<u32, Refusal> {
    let raw = number(0..=u64::from(u32::MAX))(text)? as u32;
    if raw & 0x7fff_ffff == 0 { Err("the low 31 bits of a PSP SPI must not all be 0".into()) } else { Ok(raw) }
}

fn window(fields: &Fields<'_>, protocol: Protocol) -> u32 {
    let least: u32 = if protocol == Protocol::Eesp { 64 } else { 32 };
    let parse = |text: &str| match number(0..=65_536)(text) {
        Ok(n) if n == 0 || n >= u64::from(least) => Ok(n as u32),
        _ => Err(format!("write 0 (off) or a number of packets from {least} to 65536")),
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

fn suite(fields: &Fields<'_>, shared: &Shared<'_>, parse: fn(&str) -> Result<Suite, SuiteError>) -> Option<Suite> {
    let suite = fields.need("suite", |text| parse(text).map_err(|why| why.to_string()))?;
    if let Some(weak) = suite.weak().filter(|_| !shared.gateway.allow_legacy) {
        let help = "choose another, for example aes128gcm16; where a peer has nothing better: 'allow_legacy = yes' in the section 'gateway'";
        fields.fault_of("suite", format!("'{weak}' is too weak to be used by default"), help);
        return None;
    }
    Some(suite)
}

/// Cipher key with salt, and MAC key, from `key` or from `enc_key` and `integ_key`.
fn keys(fields: &Fields<'_>, suite: &Suite) -> Option<(Secret, Secret)> {
    let (enc_len, integ_len) = (suite.enc_material_len(), suite.integ_material_len());
    let whole = fields.get_own("key", octets);
    let parts = (fields.get_own("enc_key", octets), fields.get_own("integ_key", octets));
    let written = |key: &str| fields.section().setting(key).is_some();
    if written("key") && (written("enc_key") || written("integ_key")) {
        fields.fault_of("key", "both 'key' and its parts are there", "write 'key', or 'enc_key' and 'integ_key'");
        return None;
    }
    if written("key") {
        let whole = whole?;
        check_length(fields, "key", &whole, enc_len + integ_len, &made_of(suite))?;
        let (enc, integ) = whole.octets().split_at(enc_len);
        return Some((Secret::new(enc.to_vec()), Secret::new(integ.to_vec())));
    }
    let part = |key: &'static str, value: Option<Secret>, need: usize, what: &str| {
        if need > 0 && !written(key) {
            let message = if written("enc_key") || written("integ_key") { key } else { "key" };
            fields.fault(
                format!("'{message}' is missing"),
                format!("add '{message} = 0x…'; {suite} needs {} bytes ({})", enc_len + integ_len, made_of(suite)),
            );
            return None;
        }
        let value = value.or_else(|| (need == 0 && !written(key)).then(|| Secret::new(Vec::new())))?;
        check_length(fields, key, &value, need, what)?;
        Some(value)
    };
    let enc = part("enc_key", parts.0, enc_len, "cipher key and salt")?;
    let integ = part("integ_key", parts.1, integ_len, "MAC key")?;
    Some((enc, integ))
}

fn check_length(fields: &Fields<'_>, key: &'static str, value: &Secret, need: usize, what: &str) -> Option<()> {
    if value.len() == need {
        return Some(());
    }
    let help = if need == 0 { "remove it".into() } else { format!("write {need} bytes: {what}") };
    fields.fault_of(key, format!("wrong length: {} bytes instead of {need}", value.len()), help);
    None
}

fn made_of(suite: &Suite) -> String {
    let mut parts = Vec::new();
    if let Some(enc) = suite.enc.filter(|enc| enc.key_len > 0) {
        parts.push(format!("{} for {}", enc.key_len, enc.name));
        if enc.salt_len > 0 {
            parts.push(format!("{} of salt", enc.salt_len));
        }
    }
    if let Some(integ) = suite.integ {
        parts.push(format!("{} for {}", integ.key_len, integ.name));
    }
    parts.join(", then ")
}

fn esp(fields: &Fields<'_>, direction: Direction, shared: &Shared<'_>) -> Option<HalfProto> {
    let suite = suite(fields, shared, Suite::parse_esp);
    let esn = fields.get("esn", switch).unwrap_or(false);
    let tfc_padding = direction == Direction::Out && fields.get_own("tfc_padding", switch).unwrap_or(false);
    if tfc_padding && shared.mode != Mode::Tunnel {
        fields.fault_of(
            "tfc_padding",
            "only tunnel mode knows where padding ends",
            "remove it, or use 'mode = tunnel'",
        );
    }
    let iv = if direction == Direction::Out { fields.get_own("iv", octets) } else { None };
    let keys = match &suite {
        Some(suite) => keys(fields, suite),
        None => ask_keys(fields),
    };
    let (suite, (enc, integ)) = (suite?, keys?);
    let block = suite.enc.filter(|enc| enc.iv_len == enc.block_len).map_or(0, |enc| enc.iv_len);
    let iv = match iv {
        None => None,
        Some(_) if block == 0 => {
            fields.fault_of(
                "iv",
                format!("{suite} makes its IV from the sequence number"),
                "use first_seq, or remove it",
            );
            return None;
        }
        Some(iv) => {
            check_length(fields, "iv", &iv, block, "the IV of every packet")?;
            let mut whole = [0; 16];
            whole[..block].copy_from_slice(iv.octets());
            Some(whole)
        }
    };
    Some(HalfProto::Esp { suite, enc, integ, esn, tfc_padding, iv })
}

/// Marks the keys as known when nobody can say how long they have to be.
fn ask_keys<T>(fields: &Fields<'_>) -> Option<T> {
    for key in ["key", "enc_key", "integ_key"] {
        let _ = fields.get_own(key, octets);
    }
    None
}

fn ah(fields: &Fields<'_>, direction: Direction, shared: &Shared<'_>) -> Option<HalfProto> {
    let suite = suite(fields, shared, Suite::parse_ah);
    let esn = fields.get("esn", switch).unwrap_or(false);
    let align8 = direction == Direction::Out && fields.get_own("align8", switch).unwrap_or(false);
    let keys = match &suite {
        Some(suite) => keys(fields, suite),
        None => ask_keys(fields),
    };
    let (suite, (_, integ)) = (suite?, keys?);
    Some(HalfProto::Ah { suite, integ, esn, align8 })
}

/// A number of bytes in the clear.
fn offset(text: &str) -> Result<u8, Refusal> {
    match number(0..=252)(text) {
        Ok(n) if n % 4 == 0 => Ok(n as u8),
        _ => Err("write a multiple of 4 from 0 to 252".into()),
    }
}

fn eesp(fields: &Fields<'_>, direction: Direction, shared: &Shared<'_>) -> Option<HalfProto> {
    let out = direction == Direction::Out;
    let suite = suite(fields, shared, Suite::parse_eesp);
    let seq = fields.get("seq", switch).unwrap_or(true);
    let count = fields.get("sub_sas", number(0..=65_536)).unwrap_or(0) as u32;
    let kdf = fields.get(
        "sskdf",
        word(&[("sha256", SubSaKdf::HkdfSha256), ("sha384", SubSaKdf::HkdfSha384), ("sha512", SubSaKdf::HkdfSha512)]),
    );
    let session = fields.get("session", number(0..=65_535)).unwrap_or(0) as u16;
    let crypt_offset = fields.get_own(if out { "crypt_offset" } else { "max_crypt_offset" }, offset);
    let options = if out { fields.get_own("options", octets) } else { None };
    let strict_options = !out && fields.get_own("strict_options", switch).unwrap_or(false);
    let first_iv = if out { fields.get_own("first_iv", number(0..=u64::MAX)) } else { None };
    let key = fields.need_own("key", octets);

    if kdf.is_some() && count == 0 {
        fields.fault_of("sskdf", "there are no Sub SAs to derive keys for", "add 'sub_sas = NUMBER', or remove it");
    }
    if count > 0 && u32::from(session) >= count {
        fields.fault_of(
            "session",
            format!("Session IDs of {count} Sub SAs end at {}", count - 1),
            "write a smaller one",
        );
        return None;
    }
    let options = options.map(|o| o.octets().to_vec()).unwrap_or_default();
    if options.len() % 4 != 0 || options.len() > 252 {
        fields.fault_of(
            "options",
            format!("{} bytes do not fit", options.len()),
            "pad the options with PadN to a multiple of 4 bytes, at most 252",
        );
        return None;
    }
    let (suite, key) = (suite?, key?);
    let sub_sas = (count > 0).then(|| (kdf.unwrap_or(SubSaKdf::HkdfSha256), count));
    match sub_sas {
        Some((kdf, _)) => check_length(fields, "key", &key, kdf.root_len(), "the root key, as long as the hash")?,
        None => check_length(fields, "key", &key, suite.enc_material_len(), &made_of(&suite))?,
    }
    if !seq && suite.iv_len() == 0 {
        let help = format!("use '{}', or 'seq = yes'", suite.to_string().trim_end_matches("iiv"));
        fields.fault_of("seq", format!("{suite} makes its IV from sequence numbers that are not sent"), help);
        return None;
    }
    if first_iv.is_some() && suite.iv_len() == 0 {
        fields.fault_of("first_iv", format!("{suite} sends no IV"), "use first_seq, or remove it");
        return None;
    }
    Some(HalfProto::Eesp { suite, key, sub_sas, session, seq, crypt_offset, options, strict_options, first_iv })
}

fn version(shared: &Shared<'_>) -> impl Fn(&str) -> Result<u8, Refusal> {
    let gmac = shared.gateway.allow_psp_gmac;
    move |text| match number(0..=3)(text) {
        Ok(n) if n < 2 || gmac => Ok(n as u8),
        Ok(n) => Err(format!(
            "version {n} does not encrypt; where that is meant: 'allow_psp_gmac = yes' in the section 'gateway'"
        )),
        Err(_) => Err("write 0 (AES-128-GCM) or 1 (AES-256-GCM); 2 and 3 are GMAC".into()),
    }
}

fn masters(fields: &Fields<'_>) -> [Option<Secret>; 2] {
    ["master_key_0", "master_key_1"].map(|key| {
        let master = fields.get_own(key, octets)?;
        check_length(fields, key, &master, 32, "a master key")?;
        Some(master)
    })
}

fn psp_out(fields: &Fields<'_>, shared: &Shared<'_>, spi: u32) -> Option<HalfProto> {
    let version_written = fields.setting("version").is_some();
    let version = fields.get("version", version(shared)).or((!version_written).then_some(0));
    let key = fields.get_own("key", octets);
    let masters = masters(fields);
    let crypt_offset = fields.get_own("crypt_offset", offset).unwrap_or(0);
    let cookie = fields.get_own("cookie", number(0..=u64::MAX));
    let sample = fields.get_own("sample", switch).unwrap_or(false);
    let drop = fields.get_own("drop", switch).unwrap_or(false);
    let source_port = fields.get_own("source_port", number(1..=65_535)).map(|n| n as u16);
    let version = version?;
    let slot = (spi >> 31) as usize;
    let names = ["master_key_0", "master_key_1"];
    let written = |key: &str| fields.section().setting(key).is_some();
    if written("key") {
        check_length(
            fields,
            "key",
            key.as_ref()?,
            if version % 2 == 0 { 16 } else { 32 },
            "the traffic key of this version",
        )?;
    } else if !written(names[slot]) {
        let help =
            format!("write the traffic key that the receiver derived for SPI {spi:#x}, or its '{}'", names[slot]);
        fields.fault("'key' is missing", help);
        return None;
    } else if masters[slot].is_none() {
        return None;
    }
    Some(HalfProto::PspOut { version, key, masters, crypt_offset, cookie, sample, drop, source_port })
}

fn spi_range(text: &str) -> Result<(u32, u32), Refusal> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (psp_spi(first.trim())?, psp_spi(last.trim())?);
    if first > last || first >> 31 != last >> 31 {
        return Err("write FIRST-LAST, both with the same bit 31".into());
    }
    Ok((first, last))
}

fn psp_in(fields: &Fields<'_>, shared: &Shared<'_>) -> Option<HalfProto> {
    let written = fields.setting("version").is_some();
    let version_of = fields.get("version", version(shared)).or((!written).then_some(0));
    let masters = masters(fields);
    let issued = fields.need_own("issued", list(spi_range));
    let versions = fields.get_own("versions", list(version(shared)));
    let max_crypt_offset = fields.get_own("max_crypt_offset", offset).unwrap_or(0);
    let honour_drop = fields.get_own("honour_drop", switch).unwrap_or(false);
    let issued = issued?;
    for (first, last) in &issued {
        let slot = (first >> 31) as usize;
        let name = ["master_key_0", "master_key_1"][slot];
        if fields.section().setting(name).is_none() {
            let message = format!("SPIs {first:#x} to {last:#x} belong to '{name}', which is missing");
            fields.fault_of("issued", message, format!("add '{name} = 0x…' (32 bytes)"));
            return None;
        }
    }
    let versions = match versions {
        Some(list) => list.iter().fold(0, |bits, version| bits | 1 << version),
        None => 1 << version_of?,
    };
    Some(HalfProto::PspIn { masters, issued, versions, max_crypt_offset, honour_drop })
}
