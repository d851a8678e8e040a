//! Path MTUs that routers reported, per outbound SA, until they age.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use ipsec::pmtu::{PathMtu, Report};
use ipsec::{OutboundSa, Protocol};

use crate::Snapshot;

/// SAs with a learned path MTU at a time; 64 bytes each. Reports beyond it are ignored.
const MAX_LEARNED: usize = 256;
/// Reports that are looked at per second: each may have to look through all SAs.
const MAX_REPORTS_PER_S: u32 = 100;

/// What one worker learned.
#[derive(Default)]
pub(crate) struct PathMtus {
    learned: Vec<Entry>,
    /// Second of the clock and reports seen in it.
    rate: (u64, u32),
}

struct Entry {
    spi: u32,
    remote: IpAddr,
    protocol: Protocol,
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

    fn add(&mut self, sa: &OutboundSa) -> Option<usize> {
        let entry = Entry {
            spi: sa.spi,
            remote: sa.common.outer.peer.remote,
            protocol: sa.protocol(),
            path: PathMtu::new(sa.path_mtu.load(Ordering::Relaxed) as usize),
        };
        (self.learned.len() < MAX_LEARNED).then(|| {
            self.learned.push(entry);
            self.learned.len() - 1
        })
    }

    /// Gives paths whose report has aged their first MTU back.
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
    fn is_of(&self, sa: &OutboundSa) -> bool {
        self.spi == sa.spi && self.remote == sa.common.outer.peer.remote && self.protocol == sa.protocol()
    }
}

/// Whether the packet that a router complains of may have been of `sa`. Without an SPI in the
/// quote every SA to that peer is meant.
fn is_about(report: &Report, sa: &OutboundSa) -> bool {
    let peer = sa.common.outer.peer;
    report.local == peer.local
        && report.remote == peer.remote
        && report.protocol.is_none_or(|protocol| protocol == sa.protocol())
        && report.spi.is_none_or(|spi| spi == sa.spi)
}
