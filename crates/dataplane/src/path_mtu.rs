//! Path MTU discovery: values reported by routers, per outbound SA, until they expire.

use std::iter;
use std::sync::{Arc, Weak};

use ipsec::OutboundSa;
use ipsec::pmtu::Report;

use crate::Snapshot;

/// Maximum number of SAs with a path MTU that one worker learned (8 bytes each). Further reports
/// are ignored.
const MAX_LEARNED: usize = 256;
/// Reports about SAs processed per second. Others are not counted, because forged ones would
/// otherwise suppress those of the routers; each costs a look-up.
const MAX_REPORTS_PER_S: u32 = 100;

/// SAs with a path MTU that this worker learned. The values are in the SAs, because several workers
/// receive reports about one SA.
#[derive(Default)]
pub(crate) struct PathMtus {
    /// By identity: the replacement of an SA after a reload has a different initial MTU.
    learned: Vec<Weak<OutboundSa>>,
    /// Current second and the number of reports in it.
    rate: (u64, u32),
}

impl PathMtus {
    pub(crate) fn new() -> Self {
        Self { learned: Vec::with_capacity(MAX_LEARNED), rate: (0, 0) }
    }

    /// Applies a report about a packet of one of the outbound SAs. The quote must contain the SPI:
    /// otherwise an off-path attacker with the two addresses could reduce the MTU between
    /// them.
    pub(crate) fn learn(&mut self, now_ms: u64, report: &Report, tables: &Snapshot) {
        let mut about = report.sas.into_iter().flatten().flat_map(|(protocol, spi)| {
            let sas = tables.outbound_by_spi(protocol, spi, report.remote);
            sas.filter(|sa| sa.common.outer.peer.local == report.local)
        });
        let Some(first) = about.next() else { return };
        let second = now_ms / 1000;
        self.rate = if self.rate.0 == second { (second, self.rate.1 + 1) } else { (second, 1) };
        if self.rate.1 > MAX_REPORTS_PER_S {
            return;
        }
        for sa in iter::once(first).chain(about) {
            if !self.learned.iter().any(|entry| is_of(entry, sa)) {
                if self.learned.len() == MAX_LEARNED {
                    return;
                }
                self.learned.push(Arc::downgrade(sa));
            }
            sa.learn_path_mtu(now_ms, report.mtu);
        }
    }

    /// Resets paths with an expired report to their initial MTU.
    pub(crate) fn expire(&mut self, now_ms: u64, tables: &Snapshot) {
        self.learned.retain(|entry| {
            // Every entry of the SA, because all slots of one are the same object.
            tables.outbound.iter().find(|sa| is_of(entry, sa)).is_some_and(|sa| sa.expire_path_mtu(now_ms))
        });
    }
}

fn is_of(entry: &Weak<OutboundSa>, sa: &Arc<OutboundSa>) -> bool {
    // The weak reference keeps the allocation, so that a new SA cannot have the same address.
    std::ptr::eq(entry.as_ptr(), Arc::as_ptr(sa))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::atomic::Ordering;

    use crypto::{Engine, KeyTable, Suite};
    use ipsec::pmtu::AGE_MS;
    use ipsec::{DfPolicy, DscpPolicy, Lifetime, Mode, Outer, Peer, Protocol, SaCommon, Spd, UdpPorts, esp};
    use wire::icmp::{MAX_ERROR_V4, emit_too_big};
    use wire::ip::{IPV4_HEADER, Ipv4Header};
    use wire::registry::CodePoints;
    use wire::udp::UdpHeader;
    use wire::{IpPacket, IpProto};

    use super::*;

    const SPI: u32 = 0x1001;

    fn peer() -> Peer {
        Peer { local: IpAddr::from([192, 0, 2, 1]), remote: IpAddr::from([192, 0, 2, 2]) }
    }

    fn tables(path_mtu: usize) -> Snapshot {
        tables_with(SPI, None, path_mtu)
    }

    fn tables_with(spi: u32, udp: Option<UdpPorts>, path_mtu: usize) -> Snapshot {
        let outer = Outer {
            peer: peer(),
            hop_limit: 64,
            dscp: DscpPolicy::Copy,
            ecn: true,
            df: DfPolicy::Copy,
            udp,
            udp_checksum: false,
        };
        let spec = esp::Spec {
            spi: spi.try_into().unwrap(),
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

    fn report(protocol: Protocol, spi: u32) -> Report {
        let sas = [Some((protocol, spi)), None];
        Report { local: peer().local, remote: peer().remote, sas, udp: None, mtu: 1300 }
    }

    /// Response of a router with an MTU of 1300 bytes to an ESP packet of 1400 bytes in UDP.
    fn response(ports: UdpPorts, spi: u32) -> Vec<u8> {
        let (local, remote) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let mut packet = vec![0; 1400];
        let (ip, datagram) = packet.split_at_mut(IPV4_HEADER);
        let header = Ipv4Header::new(local, remote, IpProto::UDP, datagram.len()).expect("a header");
        header.with_checksum().emit(ip).expect("room");
        let payload_len = datagram.len() - UdpHeader::LEN;
        UdpHeader::new(ports.src, ports.dst, payload_len).expect("a header").emit(datagram).expect("room");
        datagram[UdpHeader::LEN..][..4].copy_from_slice(&spi.to_be_bytes());
        let ip = IpPacket::parse(&packet).expect("a packet");
        let mut response = vec![0; MAX_ERROR_V4];
        let router = [192, 0, 2, 254].into();
        let len = emit_too_big(&mut response, &ip, &packet, router, 1300).expect("room");
        response.truncate(len);
        response
    }

    fn path_mtu(tables: &Snapshot) -> u32 {
        tables.outbound[0].path_mtu.load(Ordering::Relaxed)
    }

    #[test]
    fn a_report_counts_when_it_shows_the_spi_until_it_ages() {
        let (tables, mut mtus) = (tables(1500), PathMtus::new());
        let right = report(Protocol::Esp, SPI);
        for wrong in [
            Report { sas: [None; 2], ..right },
            report(Protocol::Esp, SPI + 1),
            report(Protocol::Ah, SPI),
            Report { local: peer().remote, ..right },
            Report { remote: peer().local, ..right },
        ] {
            mtus.learn(0, &wrong, &tables);
            assert_eq!(path_mtu(&tables), 1500, "{wrong:?}");
        }
        mtus.learn(0, &right, &tables);
        assert_eq!(path_mtu(&tables), 1300);
        mtus.expire(AGE_MS - 1, &tables);
        assert_eq!(path_mtu(&tables), 1300);
        mtus.expire(AGE_MS, &tables);
        assert_eq!(path_mtu(&tables), 1500);
    }

    /// SPIs of strongSwan start with 0xc.
    #[test]
    fn the_first_bit_of_an_spi_in_udp_may_be_set() {
        let (ports, spi) = (UdpPorts { src: 4500, dst: 33000 }, 0xc000_0001);
        let (tables, mut mtus) = (tables_with(spi, Some(ports), 1500), PathMtus::new());
        let response = response(ports, spi);
        let ip = IpPacket::parse(&response).expect("a packet");
        let report = Report::parse(&ip, &response, &CodePoints::default()).expect("a report");
        mtus.learn(0, &report, &tables);
        assert_eq!(path_mtu(&tables), 1300);
    }

    #[test]
    fn forged_reports_do_not_suppress_those_of_routers() {
        let (tables, mut mtus) = (tables(1500), PathMtus::new());
        (1..=MAX_REPORTS_PER_S).for_each(|n| mtus.learn(0, &report(Protocol::Esp, SPI + n), &tables));
        mtus.learn(999, &report(Protocol::Esp, SPI), &tables);
        assert_eq!(path_mtu(&tables), 1300);
    }

    #[test]
    fn reports_about_sas_are_limited() {
        let (tables, mut mtus) = (tables(1500), PathMtus::new());
        let about = |mtu| Report { mtu, ..report(Protocol::Esp, SPI) };
        (0..MAX_REPORTS_PER_S).for_each(|_| mtus.learn(0, &about(1400), &tables));
        mtus.learn(999, &about(1300), &tables);
        assert_eq!(path_mtu(&tables), 1400);
        mtus.learn(1000, &about(1300), &tables);
        assert_eq!(path_mtu(&tables), 1300);
    }

    #[test]
    fn an_sa_that_replaces_another_learns_for_itself() {
        let (old, new, mut mtus) = (tables(1500), tables(1400), PathMtus::new());
        let report = report(Protocol::Esp, SPI);
        mtus.learn(0, &report, &old);
        mtus.learn(1000, &report, &new);
        assert_eq!((path_mtu(&old), path_mtu(&new)), (1300, 1300));
        mtus.expire(1000 + AGE_MS, &new);
        assert_eq!(path_mtu(&new), 1400);
    }

    /// Each worker receives the reports about its own packets.
    #[test]
    fn workers_with_reports_about_one_sa_agree() {
        let (tables, mut first, mut second) = (tables(1500), PathMtus::new(), PathMtus::new());
        let about = |mtu| Report { mtu, ..report(Protocol::Esp, SPI) };
        first.learn(0, &about(1300), &tables);
        second.learn(1000, &about(1280), &tables);
        let expire = |first: &mut PathMtus, second: &mut PathMtus, now_ms| {
            first.expire(now_ms, &tables);
            second.expire(now_ms, &tables);
            path_mtu(&tables)
        };
        // The older report is not the younger one's end.
        assert_eq!(expire(&mut first, &mut second, AGE_MS), 1280);
        assert_eq!(expire(&mut first, &mut second, 1000 + AGE_MS), 1500);
        assert!(first.learned.is_empty() && second.learned.is_empty());
        // In the other order, too.
        second.learn(2000 + AGE_MS, &about(1400), &tables);
        first.learn(3000 + AGE_MS, &about(1350), &tables);
        assert_eq!(expire(&mut second, &mut first, 3000 + 2 * AGE_MS), 1500);
    }
}
