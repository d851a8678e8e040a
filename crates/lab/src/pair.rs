//! Two ends in memory: the tables of a sender and of its receiver, for one way of protecting.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crypto::{Engine, KeyTable, Suite};
use dataplane::Snapshot;
use ipsec::{
    Action, Beet, DfPolicy, DscpPolicy, Lifetime, Mode, Outer, Peer, Policy, Protocol, SaCommon, SaError, Spd,
    UdpPorts, ah, eesp, esp, psp,
};
use wire::registry::{CodePoints, PORT_IPSEC_NAT_T, PORT_PSP};
use wire::{AddrRange, PortRange, Selector};

/// Addresses, inner and outer, of the two ends.
const INNER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 2, 0, 1)];
const OUTER: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
const INNER_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 1)];
const OUTER_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)];

/// Which header goes around the protected part.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Shape {
    Tunnel,
    Transport,
    Beet,
}

/// One way of protecting packets.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Protocol.
    pub protocol: Protocol,
    /// Mode.
    pub shape: Shape,
    /// Suite keyword, e.g. `aes128gcm16`, `aes128-sha256`, for AH `sha256`. PSP: `aes128gcm16` to
    /// `aes256gmac` stand for versions 0 to 3.
    pub suite: String,
    /// IPv6 inside and outside.
    pub v6: bool,
    /// Extended sequence numbers (ESP, AH).
    pub esn: bool,
    /// ESP or EESP in UDP.
    pub udp: bool,
    /// Sub SAs (EESP), 0 for none.
    pub sub_sas: u32,
    /// Crypt offset in bytes (EESP, PSP).
    pub crypt_offset: Option<u8>,
    /// Replay window in packets.
    pub window: u32,
    /// Engine.
    pub engine: Engine,
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
            sub_sas: 0,
            crypt_offset: None,
            window: 1024,
            engine,
        }
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
    /// What is wrong with the suite or the combination.
    pub fn tables(&self) -> Result<[Snapshot; 2], PairError> {
        let (mut out_keys, mut in_keys) = (KeyTable::default(), KeyTable::default());
        let (sender, receiver) = (self.common("sun", true), self.common("moon", false));
        let material: Vec<u8> = (1..=128).collect();
        let (outbound, inbound) = match self.protocol {
            Protocol::Esp => {
                let suite = Suite::parse_esp(&self.suite)?;
                let spec = esp::Spec {
                    spi: 0x1000_0001,
                    suite,
                    enc_key: &material[..suite.enc_material_len()],
                    integ_key: &material[..suite.integ_material_len()],
                    esn: self.esn,
                    window: self.window,
                    first_seq: 1,
                    persistent: false,
                    tfc_padding: false,
                    iv: esp::CbcIv::Encrypted,
                };
                let receive = esp::Spec { first_seq: 0, ..spec };
                (
                    esp::outbound(sender, &spec, self.engine, &mut out_keys)?,
                    esp::inbound(receiver, &receive, self.engine, &mut in_keys)?,
                )
            }
            Protocol::Ah => {
                let suite = Suite::parse_ah(&self.suite)?;
                let spec = ah::Spec {
                    spi: 0x1000_0001,
                    suite,
                    integ_key: &material[..suite.integ_material_len()],
                    esn: self.esn,
                    window: self.window,
                    first_seq: 1,
                    persistent: false,
                    align8_v4: false,
                };
                let receive = ah::Spec { first_seq: 0, ..spec };
                (
                    ah::outbound(sender, &spec, self.engine, &mut out_keys)?,
                    ah::inbound(receiver, &receive, self.engine, &mut in_keys)?,
                )
            }
            Protocol::Eesp => {
                let suite = Suite::parse_esp(&self.suite)?;
                let key_len = if self.sub_sas > 0 { 32 } else { suite.enc_material_len() };
                let spec = eesp::Spec {
                    spi: 0x1000_0001,
                    suite,
                    key: &material[..key_len],
                    sub_sas: (self.sub_sas > 0).then_some((eesp::SubSaKdf::HkdfSha256, self.sub_sas)),
                    session: 0,
                    seq: true,
                    window: self.window,
                    first_seq: &[],
                    persistent: false,
                    crypt_offset: self.crypt_offset,
                    extra_options: &[],
                    strict_options: false,
                    ip_proto: CodePoints::default().eesp_protocol,
                    first_iv: None,
                };
                (
                    eesp::outbound(sender, &spec, self.engine, &mut out_keys)?,
                    eesp::inbound(receiver, &spec, self.engine, &mut in_keys)?,
                )
            }
            Protocol::Psp => {
                let version = PSP_SUITES
                    .iter()
                    .position(|s| *s == self.suite)
                    .ok_or_else(|| PairError::Psp(self.suite.clone()))? as u8;
                let master = crypto::kdf::PspMasterKey::new(&std::array::from_fn(|i| material[i]));
                let spi = 0x1000_0001;
                let key = crypto::kdf::derive_psp_key(&master, spi, version);
                let send = psp::SendSpec {
                    spi,
                    version,
                    key: key.key(),
                    iv: psp::IvCounter { first: 1, persistent: false },
                    crypt_offset: self.crypt_offset.unwrap_or(0),
                    cookie: None,
                    sample: false,
                    drop: false,
                    port: PORT_PSP,
                    port_key: 0x5bd1_e995_97f4_a7c1,
                    source_port: None,
                };
                let receive = psp::ReceiveSpec {
                    masters: Arc::new(psp::MasterKeys::new([Some(master), None])),
                    issued: vec![(spi, spi)],
                    versions: 0b1111,
                    max_crypt_offset: 252,
                    window: self.window,
                    first_seq: Vec::new(),
                    honour_drop: false,
                };
                (
                    psp::outbound(sender, &send, self.engine, &mut out_keys)?,
                    psp::inbound(receiver, &receive, self.engine, &mut in_keys)?,
                )
            }
        };
        outbound.set_path_mtu(9000);
        let ends = self.packet_addresses();
        let policy = |local: IpAddr, remote: IpAddr| {
            Spd::new(vec![Policy {
                name: "all".into(),
                selectors: vec![Selector {
                    src: AddrRange { start: local, end: local },
                    dst: AddrRange { start: remote, end: remote },
                    proto: None,
                    src_ports: PortRange::ANY,
                    dst_ports: PortRange::ANY,
                }],
                action: Action::Protect { outbound: 0, inbound: 0 },
            }])
        };
        let points = CodePoints::default();
        Ok([
            Snapshot::new(vec![], vec![Arc::new(outbound)], policy(ends[0], ends[1]), out_keys, points)?,
            Snapshot::new(vec![Arc::new(inbound)], vec![], policy(ends[1], ends[0]), in_keys, points)?,
        ])
    }
}

/// Suite keywords of PSP versions 0 to 3.
pub const PSP_SUITES: [&str; 4] = ["aes128gcm16", "aes256gcm16", "aes128gmac", "aes256gmac"];

/// Why a subject cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// Suite.
    #[error(transparent)]
    Suite(#[from] crypto::SuiteError),
    /// SA.
    #[error(transparent)]
    Sa(#[from] SaError),
    /// Tables.
    #[error(transparent)]
    Tables(#[from] dataplane::SnapshotError),
    /// No PSP version uses the suite.
    #[error("PSP has no version with '{0}'; use aes128gcm16, aes256gcm16, aes128gmac or aes256gmac")]
    Psp(String),
}
