//! Both ends of an SA, by protocol and a number that chooses mode, suite and the rest.
//!
//! The first byte of an input is that number, so that one target covers every variant of its
//! protocol. Keys are fixed: seeds are packets that verify, and a fuzzer changes what needs no
//! valid ICV.

use std::net::IpAddr;
use std::sync::Arc;

use crypto::kdf::{PspMasterKey, SubSaKdf};
use crypto::{Engine, KeyTable, Suite};
use ipsec::{
    Beet, DfPolicy, DscpPolicy, InboundSa, Lifetime, Mode, OutboundSa, Outer, Peer, SaCommon, UdpPorts, ah as ah_sa,
    eesp as eesp_sa, esp as esp_sa, psp as psp_sa,
};
use wire::psp::{PspSpi, PspVersion};
use wire::{AddrRange, IpProto, PortRange, Selector};

/// Both ends of an SA, their keys, and the engine to use.
pub struct Pair {
    pub engine: Engine,
    pub keys: KeyTable,
    pub out: OutboundSa,
    pub inn: InboundSa,
}

impl Pair {
    fn new(choice: u8, make: impl FnOnce(&mut Choice, Engine, &mut KeyTable) -> (OutboundSa, InboundSa)) -> Self {
        let (mut choice, mut keys) = (Choice(choice), KeyTable::default());
        // Half of all pairs use the engine that accepts any ICV: later inputs may then be
        // arbitrary.
        let engine = if choice.flag() { Engine::Null } else { Engine::AwsLc };
        let (out, inn) = make(&mut choice, engine, &mut keys);
        Self { engine, keys, out, inn }
    }
}

/// SAs of all protocols side by side, for a whole worker.
pub struct Tables {
    pub keys: KeyTable,
    pub outbound: Vec<OutboundSa>,
    pub inbound: Vec<InboundSa>,
}

impl Tables {
    /// The same choice for each protocol.
    pub fn new(choice: u8, engine: Engine) -> Self {
        let mut tables = Self { keys: KeyTable::default(), outbound: Vec::new(), inbound: Vec::new() };
        for make in [make_esp, make_ah, make_eesp, make_psp] {
            let (out, inn) = make(&mut Choice(choice), engine, &mut tables.keys);
            tables.outbound.push(out);
            tables.inbound.push(inn);
        }
        tables
    }

    /// Traffic of the SAs in a slot of [`Tables::outbound`] and [`Tables::inbound`].
    pub fn selectors(slot: usize) -> Vec<Selector> {
        let proto = [IpProto::UDP, IpProto::ICMP, IpProto::TCP, IpProto::SCTP][slot];
        [AddrRange::ANY_V4, AddrRange::ANY_V6]
            .map(|any| Selector {
                src: any,
                dst: any,
                proto: Some(proto),
                src_ports: PortRange::ANY,
                dst_ports: PortRange::ANY,
            })
            .to_vec()
    }
}

/// Sender and receiver: documentation addresses, IPv6 where `v6`.
pub fn addresses(v6: bool) -> (IpAddr, IpAddr) {
    if v6 {
        ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(), [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2].into())
    } else {
        ([192, 0, 2, 1].into(), [192, 0, 2, 2].into())
    }
}

/// An IPv4 UDP packet between the addresses of [`addresses`].
pub fn inner_v4(payload: &[u8]) -> Vec<u8> {
    let len = (28 + payload.len()) as u16;
    let mut packet = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0x9c, 0x40, 0, 9];
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    let sum = wire::checksum::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend((len - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

/// An IPv6 packet with a hop-by-hop header between the addresses of [`addresses`].
pub fn inner_v6(payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V6(src), IpAddr::V6(dst)) = addresses(true) else { unreachable!() };
    let len = (16 + payload.len()) as u16;
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 64]);
    packet.extend(src.octets());
    packet.extend(dst.octets());
    packet.extend([17, 0, 1, 4, 0, 0, 0, 0]);
    packet.extend([0x9c, 0x40, 0, 9]);
    packet.extend((len - 8).to_be_bytes());
    packet.extend([0x12, 0x34]);
    packet.extend(payload);
    packet
}

/// The bits of the choice, taken one decision at a time.
struct Choice(u8);

impl Choice {
    fn of(&mut self, n: u8) -> u8 {
        let picked = self.0 % n;
        self.0 /= n;
        picked
    }

    fn flag(&mut self) -> bool {
        self.of(2) == 1
    }

    fn suite(&mut self, names: &[&str], parse: fn(&str) -> Result<Suite, crypto::SuiteError>) -> Suite {
        let name = names[usize::from(self.of(names.len() as u8))];
        parse(name).unwrap_or_else(|why| panic!("suite {name}: {why}"))
    }

    fn commons(&mut self, v6: bool, beet: bool, udp: Option<UdpPorts>) -> (SaCommon, SaCommon) {
        let (a, b) = addresses(v6);
        let kind = self.of(if beet { 3 } else { 2 });
        let end = |local: IpAddr, remote: IpAddr| {
            let mode = match kind {
                0 => Mode::Tunnel,
                1 => Mode::Transport,
                _ => Mode::Beet(Beet { local, remote }),
            };
            let outer = Outer {
                peer: Peer { local, remote },
                hop_limit: 64,
                dscp: DscpPolicy::Copy,
                ecn: true,
                df: DfPolicy::Copy,
                udp,
                udp_checksum: v6,
            };
            SaCommon::new("fuzz", mode, outer, Lifetime::NONE)
        };
        (end(a, b), end(b, a))
    }
}

const KEY: [u8; 96] = {
    let mut key = [0; 96];
    let mut i = 0;
    while i < key.len() {
        key[i] = i as u8;
        i += 1;
    }
    key
};
pub(crate) const SPI: u32 = 0x1122_3344;
const WINDOW: u32 = 64;
const UDP: UdpPorts = UdpPorts { src: 4500, dst: 4500 };

/// ESP by number.
pub fn esp(choice: u8) -> Pair {
    Pair::new(choice, make_esp)
}

fn make_esp(choice: &mut Choice, engine: Engine, keys: &mut KeyTable) -> (OutboundSa, InboundSa) {
    const SUITES: [&str; 5] = ["aes128gcm16", "aes128-sha256", "null-sha1", "3des-md5", "chacha20poly1305"];
    let (esn, udp) = (choice.flag(), choice.flag());
    let (out, inn) = choice.commons(false, true, udp.then_some(UDP));
    let suite = choice.suite(&SUITES, Suite::parse_esp);
    let spec = |first_seq| esp_sa::Spec {
        spi: SPI.try_into().expect("SPI"),
        suite,
        enc_key: &KEY[..suite.enc_material_len()],
        integ_key: &KEY[..suite.integ_material_len()],
        esn,
        window: WINDOW,
        first_seq,
        persistent: false,
        tfc_padding: false,
        iv: esp_sa::CbcIv::Encrypted,
    };
    let out = esp_sa::outbound(out, &spec(1), engine, keys).expect("sender");
    let inn = esp_sa::inbound(inn, &spec(0), engine, keys).expect("receiver");
    (out, inn)
}

/// AH by number.
pub fn ah(choice: u8) -> Pair {
    Pair::new(choice, make_ah)
}

fn make_ah(choice: &mut Choice, engine: Engine, keys: &mut KeyTable) -> (OutboundSa, InboundSa) {
    const SUITES: [&str; 4] = ["sha256", "sha1", "aesxcbc", "md5"];
    let (esn, v6) = (choice.flag(), choice.flag());
    let (out, inn) = choice.commons(v6, false, None);
    let suite = choice.suite(&SUITES, Suite::parse_ah);
    let key = &KEY[..suite.integ_material_len()];
    let spec = |first_seq| ah_sa::Spec {
        spi: SPI.try_into().expect("SPI"),
        suite,
        integ_key: key,
        esn,
        window: WINDOW,
        first_seq,
        persistent: false,
        align8_v4: false,
    };
    let out = ah_sa::outbound(out, &spec(1), engine, keys).expect("sender");
    let inn = ah_sa::inbound(inn, &spec(0), engine, keys).expect("receiver");
    (out, inn)
}

/// EESP by number.
pub fn eesp(choice: u8) -> Pair {
    Pair::new(choice, make_eesp)
}

fn make_eesp(choice: &mut Choice, engine: Engine, keys: &mut KeyTable) -> (OutboundSa, InboundSa) {
    const SUITES: [&str; 3] = ["aes128gcm16", "chacha20poly1305", "aes256gcm16iiv"];
    let (offset, sub, strict) = (choice.flag(), choice.flag(), choice.flag());
    let (out, inn) = choice.commons(false, true, None);
    let suite = choice.suite(&SUITES, Suite::parse_eesp);
    let key = if sub { &KEY[..SubSaKdf::HkdfSha256.root_len()] } else { &KEY[..suite.enc_material_len()] };
    let spec = |first_seq: &'static [u64]| eesp_sa::Spec {
        spi: SPI.try_into().expect("SPI"),
        suite,
        key,
        sub_sas: sub.then_some((SubSaKdf::HkdfSha256, 4)),
        session: 0,
        seq: true,
        window: WINDOW,
        first_seq,
        persistent: false,
        crypt_offset: offset.then_some(32),
        extra_options: &[],
        strict_options: strict,
        ip_proto: IpProto::EESP_DEFAULT,
        first_iv: None,
    };
    let out = eesp_sa::outbound(out, &spec(&[1]), engine, keys).expect("sender");
    let inn = eesp_sa::inbound(inn, &spec(&[]), engine, keys).expect("receiver");
    (out, inn)
}

/// PSP by number.
pub fn psp(choice: u8) -> Pair {
    Pair::new(choice, make_psp)
}

fn make_psp(choice: &mut Choice, engine: Engine, keys: &mut KeyTable) -> (OutboundSa, InboundSa) {
    const SPIS: u32 = 0x8000_0001;
    let (v6, cookie, window) = (choice.flag(), choice.flag(), choice.flag());
    let (out, inn) = choice.commons(v6, false, None);
    let (version, offset) = (choice.of(4), choice.of(2) * 32);
    let masters = Arc::new(psp_sa::MasterKeys::new([
        Some(PspMasterKey::new(KEY[..32].try_into().expect("32 bytes"))),
        Some(PspMasterKey::new(KEY[32..64].try_into().expect("32 bytes"))),
    ]));
    let spi = PspSpi::try_from(SPIS).expect("SPI");
    let key = masters.traffic_key(spi, PspVersion::try_from(version).expect("version")).expect("traffic key");
    let send = psp_sa::SendSpec {
        spi,
        version,
        key: key.key(),
        iv: psp_sa::IvCounter { first: 1, persistent: false, cores: 1 + choice.of(2) * 3 },
        crypt_offset: if version < 2 { offset } else { 0 },
        cookie: cookie.then_some(0x0102_0304_0506_0708),
        sample: false,
        drop: false,
        port: wire::registry::PORT_PSP,
        port_key: 7,
        source_port: None,
    };
    let receive = psp_sa::ReceiveSpec {
        masters: Arc::clone(&masters),
        issued: [(1, 4), (SPIS, SPIS + 3)]
            .map(|(a, b)| (a.try_into().expect("SPI"), b.try_into().expect("SPI")))
            .to_vec(),
        versions: 0b1111,
        max_crypt_offset: 252,
        window: if window { WINDOW } else { 0 },
        first_seq: Vec::new(),
        honour_drop: true,
    };
    let out = psp_sa::outbound(out, &send, engine, keys).expect("sender");
    let inn = psp_sa::inbound(inn, &receive, engine, keys).expect("receiver");
    (out, inn)
}
