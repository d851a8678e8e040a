//! Path MTUs that routers reported, per outbound SA, until they age.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use ipsec::OutboundSa;
use ipsec::pmtu::{PathMtu, Report};

use crate::Snapshot;

/// SAs with a learned path MTU at a time; 40 bytes each. Reports beyond it are ignored.
const MAX_LEARNED: usize = 256;
/// Reports that are looked at per second: each may have to look through all SAs.
const MAX_REPORTS_PER_S: u32 = 100;

/// Path MTUs learned by one worker.
#[derive(Default)]
pub(crate) struct PathMtus {
    learned: Vec<Entry>,
    /// Second of the clock and reports seen in it.
    rate: (u64, u32),
}

struct Entry {
    /// Identity of the SA: its replacement after a reload has a different initial MTU.
    sa: Weak<OutboundSa>,
    path: PathMtu,
}

impl PathMtus {
    pub(crate) fn new() -> Self {
        Self { learned: Vec::with_capacity(MAX_LEARNED), rate: (0, 0) }
    }

    /// Believes a report about packets of one of our SAs.
    pub(crate) fn learn(&mut self, now_ms: u64, report: &Report, tables: &Snapshot) {
        let second = now_ms / 1000;
        self.rate = if self.rate.0 == second { (second, self.rate.1 + 1) } else { (second, 1) };
        if self.rate.1 > MAX_REPORTS_PER_S {
            return;
        }
        for sa in tables.outbound.iter().filter(|sa| is_about(report, sa)) {
            let at = self.learned.iter().position(|entry| entry.is_of(sa)).or_else(|| self.add(sa));
            let Some(at) = at else { return };
            if let Some(mtu) = self.learned[at].path.learn(now_ms, report.mtu) {
                sa.set_path_mtu(mtu);
            }
        }
    }

    fn add(&mut self, sa: &Arc<OutboundSa>) -> Option<usize> {
        let path = PathMtu::new(sa.path_mtu.load(Ordering::Relaxed) as usize);
        let entry = Entry { sa: Arc::downgrade(sa), path };
        (self.learned.len() < MAX_LEARNED).then(|| {
            self.learned.push(entry);
            self.learned.len() - 1
        })
    }

    /// Resets paths with an expired report to their initial MTU.
    pub(crate) fn expire(&mut self, now_ms: u64, tables: &Snapshot) {
        self.learned.retain(|entry| {
            if entry.path.deadline_ms().is_some_and(|deadline| now_ms < deadline) {
                return true;
            }
            for sa in tables.outbound.iter().filter(|sa| entry.is_of(sa)) {
                sa.set_path_mtu(entry.path.get(now_ms));
            }
            false
        });
    }
}

impl Entry {
    fn is_of(&self, sa: &Arc<OutboundSa>) -> bool {
        std::ptr::eq(self.sa.as_ptr(), Arc::as_ptr(sa))
    }
}

/// Returns whether the reported packet was sent through `sa`. The quote must contain the SPI:
/// otherwise an attacker who knows the two addresses could reduce the MTU between them.
fn is_about(report: &Report, sa: &OutboundSa) -> bool {
    let peer = sa.common.outer.peer;
    report.local == peer.local
        && report.remote == peer.remote
        && report.protocol == Some(sa.protocol())
        && report.spi == Some(sa.spi)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use crypto::{Engine, KeyTable, Suite};
    use ipsec::pmtu::AGE_MS;
    use ipsec::{DfPolicy, DscpPolicy, Lifetime, Mode, Outer, Peer, Protocol, SaCommon, Spd, esp};
    use wire::registry::CodePoints;

    use super::*;

    const SPI: u32 = 0x1001;

    fn peer() -> Peer {
        Peer { local: IpAddr::from([192, 0, 2, 1]), remote: IpAddr::from([192, 0, 2, 2]) }
    }

    fn tables(path_mtu: usize) -> Snapshot {
        let outer = Outer {
            peer: peer(),
            hop_limit: 64,
            dscp: DscpPolicy::Copy,
            ecn: true,
            df: DfPolicy::Copy,
            udp: None,
            udp_checksum: false,
        };
        let spec = esp::Spec {
            spi: SPI,
            suite: Suite::parse_esp("aes128gcm16").expect("a suite"),
            enc_key: &[7; 20],
            integ_key: &[],
            esn: false,
            window: 64,
            first_seq: 1,
            persistent: false,
            tfc_padding: false,
            iv: esp::CbcIv::Encrypted,
        };
        let mut keys = KeyTable::default();
        let common = SaCommon::new("moon", Mode::Tunnel, outer, Lifetime::NONE);
        let sa = esp::outbound(common, &spec, Engine::best(), &mut keys).expect("an SA");
        sa.set_path_mtu(path_mtu);
        Snapshot::new(vec![], vec![Arc::new(sa)], Spd::new(vec![]), keys, CodePoints::default()).expect("a snapshot")
    }

    fn report(protocol: Option<Protocol>, spi: Option<u32>) -> Report {
        Report { local: peer().local, remote: peer().remote, protocol, spi, udp: None, mtu: 1300 }
    }

    fn path_mtu(tables: &Snapshot) -> u32 {
        tables.outbound[0].path_mtu.load(Ordering::Relaxed)
    }

    #[test]
    fn a_report_counts_when_it_shows_the_spi_until_it_ages() {
        let (tables, mut mtus) = (tables(1500), PathMtus::new());
        for (protocol, spi) in [
            (None, None),
            (Some(Protocol::Esp), None),
            (Some(Protocol::Esp), Some(SPI + 1)),
            (Some(Protocol::Eesp), Some(SPI)),
        ] {
            mtus.learn(0, &report(protocol, spi), &tables);
            assert_eq!(path_mtu(&tables), 1500, "{protocol:?} {spi:?}");
        }
        mtus.learn(0, &report(Some(Protocol::Esp), Some(SPI)), &tables);
        assert_eq!(path_mtu(&tables), 1300);
        mtus.expire(AGE_MS - 1, &tables);
        assert_eq!(path_mtu(&tables), 1300);
        mtus.expire(AGE_MS, &tables);
        assert_eq!(path_mtu(&tables), 1500);
    }

    #[test]
    fn an_sa_that_replaces_another_learns_for_itself() {
        let (old, new, mut mtus) = (tables(1500), tables(1400), PathMtus::new());
        let report = report(Some(Protocol::Esp), Some(SPI));
        mtus.learn(0, &report, &old);
        mtus.learn(1000, &report, &new);
        assert_eq!((path_mtu(&old), path_mtu(&new)), (1300, 1300));
        mtus.expire(1000 + AGE_MS, &new);
        assert_eq!(path_mtu(&new), 1400);
    }
}
