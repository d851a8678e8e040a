//! Two gateways in memory: packets are sealed by one and opened by the other, on the cores under
//! test.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crypto::{Engine, KeyTable, Suite};
use dataplane::{PerCoreSas, Snapshot};
use ipsec::{
    Action, DfPolicy, DscpPolicy, InboundSa, Lifetime, Mode, OutboundSa, Outer, Peer, Policy, SaCommon, Spd, eesp, esp,
    psp,
};
use wire::psp::PspSpi;
use wire::registry::{CodePoints, PORT_PSP};
use wire::{AddrRange, PortRange, Selector};

use super::Set;
use testbed::pair::{PSP_SUITES, PairError};

const INNER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 2, 0, 1)];
const OUTER: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
/// A multiple of every number of cores up to 64 that is a power of two: SPIs from here on name
/// cores from 0 on.
const SPI: u32 = 0x1000_0000;
/// Packets that may be late. Cores run apart by as many batches as there are places.
const WINDOW: u32 = 4096;

/// Tables of sender and receiver.
pub(super) struct Tables {
    pub(super) sender: Arc<Snapshot>,
    pub(super) receiver: Arc<Snapshot>,
}

/// The tables of so many cores: the same for all, or for each its own.
pub(crate) struct World(Vec<Tables>);

impl World {
    /// # Errors
    /// An unknown suite, or that the set cannot use.
    pub(crate) fn new(set: Set, suite: &str, cores: usize, engine: Engine) -> Result<Self, PairError> {
        let worlds = if set == Set::Apart { cores } else { 1 };
        (0..worlds).map(|_| Tables::new(set, suite, cores, engine)).collect::<Result<_, _>>().map(Self)
    }

    /// Tables of `core`.
    pub(super) fn tables(&self, core: usize) -> &Tables {
        &self.0[core % self.0.len()]
    }
}

impl Tables {
    fn new(set: Set, suite: &str, cores: usize, engine: Engine) -> Result<Self, PairError> {
        let (mut out_keys, mut in_keys) = (KeyTable::default(), KeyTable::default());
        let mut sas = Vec::new();
        let per_core = if set == Set::PerCpu { cores } else { 1 };
        for core in 0..per_core {
            sas.push(match set {
                Set::One | Set::PerCpu | Set::Apart => esp_pair(suite, core, engine, &mut out_keys, &mut in_keys)?,
                Set::SubSas => eesp_pair(suite, cores, engine, &mut out_keys, &mut in_keys)?,
                Set::Psp => psp_pair(suite, cores, engine, &mut out_keys, &mut in_keys)?,
            });
        }
        let (outbound, inbound): (Vec<_>, Vec<_>) = sas.into_iter().map(|(o, i)| (Arc::new(o), Arc::new(i))).unzip();
        for sa in &outbound {
            sa.set_path_mtu(9000);
        }
        let policy = |local: Ipv4Addr, remote: Ipv4Addr| {
            let range = |ip: Ipv4Addr| AddrRange { start: IpAddr::V4(ip), end: IpAddr::V4(ip) };
            Spd::new(vec![Policy {
                name: "all".into(),
                selectors: [Selector {
                    src: range(local),
                    dst: range(remote),
                    proto: None,
                    src_ports: PortRange::ANY,
                    dst_ports: PortRange::ANY,
                }]
                .into(),
                action: Action::Protect { outbound: 0, inbound: 0 },
            }])
        };
        let points = CodePoints::default();
        let mut sender = Snapshot::new(vec![], outbound, policy(INNER[0], INNER[1]), out_keys, points)?;
        if set == Set::PerCpu {
            let by_core = (0..cores as u32).map(Some).collect();
            sender.per_core = vec![PerCoreSas { slot: 0, by_core, trap: 0 }];
        }
        let groups = vec![0; inbound.len()];
        let mut receiver = Snapshot::new(inbound, vec![], policy(INNER[1], INNER[0]), in_keys, points)?;
        receiver.groups = groups;
        Ok(Self { sender: Arc::new(sender), receiver: Arc::new(receiver) })
    }
}

/// A clear packet of `size` bytes.
pub(super) fn packet(size: usize) -> Vec<u8> {
    testbed::packet::udp(INNER[0].into(), INNER[1].into(), 4000, 4001, size, wire::IpProto::UDP)
}

fn common(name: &str, [local, remote]: [Ipv4Addr; 2]) -> SaCommon {
    let outer = Outer {
        peer: Peer { local: local.into(), remote: remote.into() },
        hop_limit: 64,
        dscp: DscpPolicy::Copy,
        ecn: true,
        df: DfPolicy::Set,
        udp: None,
        udp_checksum: false,
    };
    SaCommon::new(name, Mode::Tunnel, outer, Lifetime::NONE)
}

fn ends() -> (SaCommon, SaCommon) {
    (common("sun", OUTER), common("moon", [OUTER[1], OUTER[0]]))
}

fn material() -> Vec<u8> {
    (1..=128).collect()
}

fn esp_pair(
    suite: &str,
    core: usize,
    engine: Engine,
    out_keys: &mut KeyTable,
    in_keys: &mut KeyTable,
) -> Result<(OutboundSa, InboundSa), PairError> {
    let (suite, material) = (Suite::parse_esp(suite)?, material());
    let spec = esp::Spec {
        spi: (SPI + core as u32).try_into()?,
        suite,
        enc_key: &material[..suite.enc_material_len()],
        integ_key: &material[..suite.integ_material_len()],
        esn: true,
        window: WINDOW,
        first_seq: 1,
        persistent: false,
        tfc_padding: false,
        iv: esp::CbcIv::Encrypted,
    };
    let (sun, moon) = ends();
    let receive = esp::Spec { first_seq: 0, ..spec };
    Ok((esp::outbound(sun, &spec, engine, out_keys)?, esp::inbound(moon, &receive, engine, in_keys)?))
}

fn eesp_pair(
    suite: &str,
    cores: usize,
    engine: Engine,
    out_keys: &mut KeyTable,
    in_keys: &mut KeyTable,
) -> Result<(OutboundSa, InboundSa), PairError> {
    let (suite, material) = (Suite::parse_esp(suite)?, material());
    let spec = eesp::Spec {
        sub_sas: Some((eesp::SubSaKdf::HkdfSha256, cores as u32)),
        window: WINDOW,
        ..eesp::Spec::new(SPI.try_into()?, suite, &material[..32])
    };
    let (sun, moon) = ends();
    Ok((eesp::outbound(sun, &spec, engine, out_keys)?, eesp::inbound(moon, &spec, engine, in_keys)?))
}

fn psp_pair(
    suite: &str,
    cores: usize,
    engine: Engine,
    out_keys: &mut KeyTable,
    in_keys: &mut KeyTable,
) -> Result<(OutboundSa, InboundSa), PairError> {
    let version = PSP_SUITES.iter().position(|s| *s == suite).ok_or_else(|| PairError::Psp(suite.to_owned()))? as u8;
    let material = material();
    let master = crypto::kdf::PspMasterKey::new(&std::array::from_fn(|i| material[i]));
    let spi = PspSpi::try_from(SPI + 1)?;
    let key = crypto::kdf::derive_psp_key(&master, spi.get(), version);
    let send = psp::SendSpec {
        spi,
        version,
        key: key.key(),
        iv: psp::IvCounter { first: 1, persistent: false, cores: cores as u8 },
        crypt_offset: 0,
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
        window: 0,
        first_seq: Vec::new(),
        honour_drop: false,
    };
    let (sun, moon) = ends();
    Ok((psp::outbound(sun, &send, engine, out_keys)?, psp::inbound(moon, &receive, engine, in_keys)?))
}
