//! Weir on both hosts, and the cable without it.

use std::path::{Path, PathBuf};

use ipsec::Protocol;

use super::configuration::{Secret, Secrets, Setting, key_bytes};
use super::gateway::Gateway;
use super::{Count, Counters, Keying, Started};
use crate::TestbedError;
use crate::child::{Interrupt, Running};
use crate::counters::NetCount;
use crate::pair::{self, Lanes};
use crate::pki::Pki;
use crate::random;
use crate::world::{CABLE, End, World};

/// The cable: the kernel forwards, and its counters count.
pub(super) struct Cable;

impl Started for Cable {
    fn check(&mut self) -> Result<(), TestbedError> {
        Ok(())
    }

    fn counters(&self, world: &World) -> Result<[Counters; 2], TestbedError> {
        let one = |end| {
            let count = cable(world, end)?;
            Ok(Counters {
                sent: Count { packets: Some(count.tx_packets), bytes: count.tx_bytes },
                received: Count { packets: Some(count.rx_packets), bytes: count.rx_bytes },
                ..Counters::default()
            })
        };
        Ok([one(End::Sun)?, one(End::Moon)?])
    }

    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// Counters of a host's end of the cable.
pub fn cable(world: &World, end: End) -> Result<NetCount, TestbedError> {
    let text = world.read(end, &["/proc/net/dev", "/proc/net/snmp"])?;
    NetCount::parse(&text, CABLE).ok_or_else(|| TestbedError::Failed(format!("no counters of {CABLE} on {end}")))
}

/// `weir up` twice.
pub(super) struct Weir {
    gateways: Vec<Gateway>,
    /// Keys are requested by a command, not by the first packet.
    initiates: bool,
    dir: PathBuf,
}

impl Weir {
    pub(super) fn start(
        subject: &pair::Subject,
        keying: Keying,
        world: &World,
        dir: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self, TestbedError> {
        let setting = Setting::of(subject, keying.workers(), &world.plan, dir);
        let (texts, pki) = match keying {
            Keying::Manual { .. } if subject.lanes == Lanes::PerCpu => {
                return Err(TestbedError::Unable("SAs per CPU are negotiated: use a study 'transfers'".into()));
            }
            Keying::Manual { .. } => {
                let secret = |spi| Secret { spi, key: random(key_bytes(subject)) };
                let secrets = Secrets { from_sun: secret(0x1001), from_moon: secret(0x1002) };
                (End::BOTH.map(|end| setting.manual(end, &secrets)), None)
            }
            Keying::Negotiated { .. } => {
                let pki = Pki::make()
                    .map_err(|error| TestbedError::Failed(format!("cannot make certificates: {error:#}")))?;
                (End::BOTH.map(|end| setting.keyed(end)), Some(pki))
            }
        };
        let mut gateways = Vec::new();
        for (end, text) in End::BOTH.into_iter().zip(&texts) {
            gateways.push(Gateway::start(world, end, text, pki.as_ref(), dir)?);
        }
        for gateway in &mut gateways {
            gateway.wait_until_ready(interrupt)?;
        }
        let initiates = subject.protocol == Protocol::Psp && matches!(keying, Keying::Negotiated { .. });
        Ok(Self { gateways, initiates, dir: dir.to_owned() })
    }
}

impl Started for Weir {
    fn check(&mut self) -> Result<(), TestbedError> {
        self.gateways.iter_mut().try_for_each(Gateway::check)
    }

    fn counters(&self, world: &World) -> Result<[Counters; 2], TestbedError> {
        let one = |gateway: &Gateway| Ok(gateway.status(world)?.counters());
        Ok([one(&self.gateways[0])?, one(&self.gateways[1])?])
    }

    fn initiate(&self, world: &World) -> Result<Option<Running>, TestbedError> {
        match (self.initiates, &self.gateways[..]) {
            (true, [sun, _]) => sun.initiate(world, &self.dir).map(Some),
            _ => Ok(None),
        }
    }

    fn processes(&self) -> Vec<u32> {
        self.gateways.iter().map(Gateway::process).collect()
    }

    fn commands(&self) -> Vec<String> {
        self.gateways.iter().zip(End::BOTH).map(|(gateway, end)| format!("{end}: {}", gateway.command())).collect()
    }

    fn log_tail(&self) -> String {
        self.gateways.iter().map(Gateway::log_tail).collect()
    }
}
