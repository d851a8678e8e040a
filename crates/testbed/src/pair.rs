//! Two endpoints in memory: the tables of a sender and of its receiver, for one configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crypto::{Engine, KeyTable, Suite};
use dataplane::Snapshot;
use ipsec::{
    Action, Beet, DfPolicy, DscpPolicy, InboundSa, Lifetime, Mode, OutboundSa, Outer, Peer, Policy, Protocol, SaCommon,
    SaError, Spd, UdpPorts, aggfrag, ah, eesp, esp, psp,
};
use wire::psp::PspSpi;
use wire::registry::{CodePoints, PORT_IPSEC_NAT_T, PORT_PSP};
use wire::{AddrRange, Selector};

/// Addresses, inner and outer, of the two ends.
const INNER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 2, 0, 1)];
const OUTER: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
const INNER_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 1)];
const OUTER_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)];

/// SPI of the first SA; those of others follow.
const FIRST_SPI: u32 = 0x1000_0001;
/// Size of the outer packets of IP-TFS in bytes: of the path in nearly every network.
pub const AGGREGATE: u16 = 1500;
/// First destination address for many SAs: 10.128.0.0 and up.
const MANY: u32 = 0x0a80_0000;

/// Header around the protected part.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Shape {
    Tunnel,
    Transport,
    Beet,
}

/// SAs that share the flows of one policy.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Lanes {
    /// One SA.
    #[default]
    One,
    /// One SA per worker thread, and one for the rest (RFC 9611). Exists between hosts only.
    PerCpu,
    /// One EESP SA with so many Sub SAs; `None`: one per worker thread.
    SubSas(Option<u32>),
}

impl Lanes {
    /// Sub SAs with so many worker threads, 0 for none.
    pub fn sub_sas(self, workers: u32) -> u32 {
        match self {
            Self::SubSas(count) => count.unwrap_or(workers),
            Self::One | Self::PerCpu => 0,
        }
    }
}

/// How an engine by itself is called.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Call {
    /// Packets are sealed in place, on the thread of the caller.
    #[default]
    InPlace,
    /// Packets are copied from a contiguous buffer while they are sealed, as from a GSO packet.
    Copied,
    /// On so many engine threads, which receive groups of packets.
    Threads(u8),
}

/// One configuration of a protocol.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Protocol.
    pub protocol: Protocol,
    /// Mode.
    pub shape: Shape,
    /// Suite keyword, e.g. `aes128gcm16`, `aes128-sha256`, for AH `sha256`. PSP: `aes128gcm16` to
    /// `aes256gmac` are versions 0 to 3.
    pub suite: String,
    /// IPv6 inside and outside.
    pub v6: bool,
    /// Extended sequence numbers (ESP, AH).
    pub esn: bool,
    /// ESP or EESP in UDP.
    pub udp: bool,
    /// By AF_XDP at the cable, without UDP; between hosts only.
    pub xdp: bool,
    /// With active queue management; between hosts only.
    pub aqm: bool,
    /// SAs of one pair of hosts.
    pub lanes: Lanes,
    /// Crypt offset in bytes (EESP, PSP); of EESP in tunnel mode any selects the full packet
    /// format.
    pub crypt_offset: Option<u8>,
    /// The IV is not sent, because it follows from the sequence number (EESP; RFC 8750).
    pub implicit_iv: bool,
    /// Sequence numbers on the wire; EESP can do without.
    pub seq: bool,
    /// Packets share outer packets of at most [`AGGREGATE`] bytes (ESP in tunnel mode; RFC 9347).
    pub iptfs: bool,
    /// Replay window in packets.
    pub window: u32,
    /// Engine.
    pub engine: Engine,
    /// Call of an engine by itself.
    pub call: Call,
}

impl Subject {
    /// A subject with IPv4, no extras and a window of 1024 packets.
    pub fn new(protocol: Protocol, shape: Shape, suite: &str, engine: Engine) -> Self {
        Self {
            protocol,
            shape,
            suite: suite.to_owned(),
            v6: false,
            esn: false,
            udp: false,
            xdp: false,
            aqm: false,
            lanes: Lanes::One,
            crypt_offset: None,
            implicit_iv: false,
            seq: true,
            iptfs: false,
            window: 1024,
            engine,
            call: Call::InPlace,
        }
    }

    /// The suite as a proposal keyword.
    pub fn keyword(&self) -> String {
        if self.implicit_iv { format!("{}iiv", self.suite) } else { self.suite.clone() }
    }

    /// Addresses that the packets of this subject carry before protection.
    pub fn packet_addresses(&self) -> [IpAddr; 2] {
        match (self.shape, self.v6) {
            (Shape::Transport, false) => OUTER.map(IpAddr::V4),
            (Shape::Transport, true) => OUTER_V6.map(IpAddr::V6),
            (_, false) => INNER.map(IpAddr::V4),
            (_, true) => INNER_V6.map(IpAddr::V6),
        }
    }

    fn common(&self, name: &str, sender: bool) -> SaCommon {
        let outer = if self.v6 { OUTER_V6.map(IpAddr::V6) } else { OUTER.map(IpAddr::V4) };
        let inner = self.packet_addresses();
        let (here, there) = if sender { (0, 1) } else { (1, 0) };
        let mode = match self.shape {
            Shape::Tunnel if self.iptfs => {
                // Nothing is reordered in memory, and what is not opened is not awaited.
                let reorder_window = 0;
                Mode::Aggfrag(aggfrag::Settings { packet_size: AGGREGATE, reorder_window, ..Default::default() })
            }
            Shape::Tunnel => Mode::Tunnel,
            Shape::Transport => Mode::Transport,
            Shape::Beet => Mode::Beet(Beet { local: inner[here], remote: inner[there] }),
        };
        let outer = Outer {
            peer: Peer { local: outer[here], remote: outer[there] },
            hop_limit: 64,
            dscp: DscpPolicy::Copy,
            ecn: true,
            df: DfPolicy::Set,
            udp: self.udp.then_some(UdpPorts { src: PORT_IPSEC_NAT_T, dst: PORT_IPSEC_NAT_T }),
            udp_checksum: false,
        };
        SaCommon::new(name, mode, outer, Lifetime::NONE)
    }

    /// The tables of the sending and of the receiving end, with keys 0x01, 0x02, … of the right
    /// lengths.
    ///
    /// # Errors
    /// The error in the suite or the combination.
    pub fn tables(&self) -> Result<[Snapshot; 2], PairError> {
        let only_eesp = matches!(self.lanes, Lanes::SubSas(_)) || self.implicit_iv || !self.seq;
        let has_iptfs = matches!(self.protocol, Protocol::Esp | Protocol::Eesp) && self.shape == Shape::Tunnel;
        if self.iptfs && !has_iptfs {
            return Err(PairError::Option(self.protocol.name()));
        }
        // In copy mode, as between namespaces, AF_XDP carries nothing in UDP.
        if self.xdp && (self.udp || self.protocol == Protocol::Psp) {
            return Err(PairError::Option(self.protocol.name()));
        }
        let no_lanes = self.lanes == Lanes::PerCpu && self.protocol == Protocol::Psp;
        if no_lanes || self.protocol != Protocol::Eesp && only_eesp || self.protocol == Protocol::Ah && self.udp {
            return Err(PairError::Option(self.protocol.name()));
        }
        let (mut out_keys, mut in_keys) = (KeyTable::default(), KeyTable::default());
        let outbound = self.outbound(0, &mut out_keys)?;
        let inbound = self.inbound(0, 1, &mut in_keys)?;
        let ends = self.packet_addresses();
        let points = CodePoints::default();
        let sending = Spd::new(vec![policy(ends[0], one(ends[1]), 0)]);
        let receiving = Spd::new(vec![policy_of(one(ends[1]), ends[0])]);
        Ok([
            Snapshot::new(vec![], vec![Arc::new(outbound)], sending, out_keys, points)?,
            Snapshot::new(vec![Arc::new(inbound)], vec![], receiving, in_keys, points)?,
        ])
    }

    /// The tables of a sender of `count` SAs. Each has a separate policy, for packets to
    /// [`Subject::address_of`].
    ///
    /// # Errors
    /// As [`Subject::tables`]; not in tunnel mode over IPv4.
    pub fn many_outbound(&self, count: u32) -> Result<Snapshot, PairError> {
        self.check_many()?;
        let mut keys = KeyTable::default();
        let sas = (0..count).map(|number| Ok(Arc::new(self.outbound(number, &mut keys)?)));
        let sas = sas.collect::<Result<Vec<_>, PairError>>()?;
        let from = self.packet_addresses()[0];
        let policies = (0..count).map(|number| policy(from, one(Self::address_of(number)), number)).collect();
        Ok(Snapshot::new(vec![], sas, Spd::new(policies), keys, CodePoints::default())?)
    }

    /// The tables of their receiver. One policy refers to all of them as a group, so that the
    /// look-up per packet is the SA alone. PSP has one SA for all SPIs and derives their keys.
    ///
    /// # Errors
    /// As [`Subject::many_outbound`].
    pub fn many_inbound(&self, count: u32) -> Result<Snapshot, PairError> {
        self.check_many()?;
        let mut keys = KeyTable::default();
        let own = if self.protocol == Protocol::Psp { 1 } else { count };
        let sas = (0..own).map(|number| Ok(Arc::new(self.inbound(number, count, &mut keys)?)));
        let sas = sas.collect::<Result<Vec<_>, PairError>>()?;
        let all = AddrRange { start: Self::address_of(0), end: Self::address_of(count - 1) };
        let receiving = Spd::new(vec![policy_of(all, self.packet_addresses()[0])]);
        let mut tables = Snapshot::new(sas, vec![], receiving, keys, CodePoints::default())?;
        tables.groups = vec![0; own as usize];
        Ok(tables)
    }

    /// Destination of packets of SA `number` of many.
    pub fn address_of(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(MANY + number).into()
    }

    fn check_many(&self) -> Result<(), PairError> {
        if self.shape == Shape::Tunnel && !self.v6 && !self.iptfs { Ok(()) } else { Err(PairError::Many) }
    }

    /// Key material of SA `number`: 0x01, 0x02, …, with the number in the first bytes.
    fn material(number: u32) -> [u8; 128] {
        let mut material = std::array::from_fn(|at| at as u8 + 1);
        let first = u32::from_be_bytes([material[0], material[1], material[2], material[3]]) ^ number;
        material[..4].copy_from_slice(&first.to_be_bytes());
        material
    }

    fn outbound(&self, number: u32, keys: &mut KeyTable) -> Result<OutboundSa, PairError> {
        let (sender, material) = (self.common("sun", true), Self::material(number));
        let outbound = match self.protocol {
            Protocol::Esp => esp::outbound(sender, &self.esp(number, 1, &material)?, self.engine, keys)?,
            Protocol::Ah => ah::outbound(sender, &self.ah(number, 1, &material)?, self.engine, keys)?,
            Protocol::Eesp => eesp::outbound(sender, &self.eesp(number, &material)?, self.engine, keys)?,
            Protocol::Psp => {
                let (spi, version) = (PspSpi::try_from(FIRST_SPI + number)?, self.psp_version()?);
                let key = crypto::kdf::derive_psp_key(&psp_master(), spi.get(), version);
                let send = psp::SendSpec {
                    spi,
                    version,
                    key: key.key(),
                    iv: psp::IvCounter { first: 1, persistent: false, cores: 1 },
                    crypt_offset: self.crypt_offset.unwrap_or(0),
                    cookie: None,
                    sample: false,
                    drop: false,
                    port: PORT_PSP,
                    port_key: 0x5bd1_e995_97f4_a7c1,
                    source_port: None,
                };
                psp::outbound(sender, &send, self.engine, keys)?
            }
        };
        // Room for 9000 bytes inside.
        outbound.set_path_mtu(9216);
        Ok(outbound)
    }

    /// The receiving half of SA `number`; of PSP the SA of all `count` SPIs.
    fn inbound(&self, number: u32, count: u32, keys: &mut KeyTable) -> Result<InboundSa, PairError> {
        let (receiver, material) = (self.common("moon", false), Self::material(number));
        Ok(match self.protocol {
            Protocol::Esp => esp::inbound(receiver, &self.esp(number, 0, &material)?, self.engine, keys)?,
            Protocol::Ah => ah::inbound(receiver, &self.ah(number, 0, &material)?, self.engine, keys)?,
            Protocol::Eesp => eesp::inbound(receiver, &self.eesp(number, &material)?, self.engine, keys)?,
            Protocol::Psp => {
                self.psp_version()?;
                let receive = psp::ReceiveSpec {
                    masters: Arc::new(psp::MasterKeys::new([Some(psp_master()), None])),
                    issued: vec![(FIRST_SPI.try_into()?, (FIRST_SPI + count - 1).try_into()?)],
                    versions: 0b1111,
                    max_crypt_offset: 252,
                    window: self.window,
                    first_seq: Vec::new(),
                    honour_drop: false,
                };
                psp::inbound(receiver, &receive, self.engine, keys)?
            }
        })
    }

    fn esp<'m>(&self, number: u32, first_seq: u64, material: &'m [u8]) -> Result<esp::Spec<'m>, PairError> {
        let suite = Suite::parse_esp(&self.suite)?;
        Ok(esp::Spec {
            spi: (FIRST_SPI + number).try_into()?,
            suite,
            enc_key: &material[..suite.enc_material_len()],
            integ_key: &material[..suite.integ_material_len()],
            esn: self.esn,
            window: self.window,
            first_seq,
            persistent: false,
            tfc_padding: false,
            iv: esp::CbcIv::Encrypted,
        })
    }

    fn ah<'m>(&self, number: u32, first_seq: u64, material: &'m [u8]) -> Result<ah::Spec<'m>, PairError> {
        let suite = Suite::parse_ah(&self.suite)?;
        Ok(ah::Spec {
            spi: (FIRST_SPI + number).try_into()?,
            suite,
            integ_key: &material[..suite.integ_material_len()],
            esn: self.esn,
            window: self.window,
            first_seq,
            persistent: false,
            align8_v4: false,
        })
    }

    fn eesp<'m>(&self, number: u32, material: &'m [u8]) -> Result<eesp::Spec<'m>, PairError> {
        let suite = Suite::parse_esp(&self.keyword())?;
        let sub_sas = self.lanes.sub_sas(1);
        let key_len = if sub_sas > 0 { 32 } else { suite.enc_material_len() };
        Ok(eesp::Spec {
            sub_sas: (sub_sas > 0).then_some((eesp::SubSaKdf::HkdfSha256, sub_sas)),
            seq: self.seq,
            window: self.window,
            crypt_offset: self.crypt_offset,
            ..eesp::Spec::new((FIRST_SPI + number).try_into()?, suite, &material[..key_len])
        })
    }

    fn psp_version(&self) -> Result<u8, PairError> {
        let version = PSP_SUITES.iter().position(|s| *s == self.suite);
        version.map(|version| version as u8).ok_or_else(|| PairError::Psp(self.suite.clone()))
    }
}

fn psp_master() -> crypto::kdf::PspMasterKey {
    crypto::kdf::PspMasterKey::new(&std::array::from_fn(|at| at as u8 + 1))
}

fn one(addr: IpAddr) -> AddrRange {
    AddrRange { start: addr, end: addr }
}

/// Packets from `local` to `remote` go through the outbound SA in this slot.
fn policy(local: IpAddr, remote: AddrRange, outbound: u32) -> Policy {
    let action = Action::Protect { outbound, inbound: 0 };
    Policy { name: "all".into(), selectors: [Selector::between(one(local), remote)].into(), action }
}

/// Packets to `local` come from `remote` through the inbound group 0.
fn policy_of(local: AddrRange, remote: IpAddr) -> Policy {
    let action = Action::Protect { outbound: 0, inbound: 0 };
    Policy { name: "all".into(), selectors: [Selector::between(local, one(remote))].into(), action }
}

/// Suite keywords of PSP versions 0 to 3.
pub const PSP_SUITES: [&str; 4] = ["aes128gcm16", "aes256gcm16", "aes128gmac", "aes256gmac"];

/// Reason why a subject cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// Suite.
    #[error(transparent)]
    Suite(#[from] crypto::SuiteError),
    /// SPI.
    #[error(transparent)]
    Spi(#[from] wire::ReservedSpi),
    /// SPI of PSP.
    #[error(transparent)]
    PspSpi(#[from] wire::psp::ZeroPspSpi),
    /// SA.
    #[error(transparent)]
    Sa(#[from] SaError),
    /// Tables.
    #[error(transparent)]
    Tables(#[from] dataplane::SnapshotError),
    /// No thread for an engine.
    #[error("the operating system has no thread for an engine: {0}")]
    Threads(#[from] std::io::Error),
    /// Many SAs, but not in tunnel mode over IPv4.
    #[error("many SAs are distinguished by their inner addresses: use tunnel mode over IPv4, without iptfs")]
    Many,
    /// Steps of a packet that shares its outer packet.
    #[error("packets of iptfs share outer packets and their steps: measure the whole path")]
    Steps,
    /// An option of another protocol.
    #[error("{0} does not have this option")]
    Option(&'static str),
    /// No PSP version uses the suite.
    #[error("PSP has no version with '{0}'; use aes128gcm16, aes256gcm16, aes128gmac or aes256gmac")]
    Psp(String),
}
