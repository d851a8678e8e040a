//! Auditable events into the log (RFC 4303 §3.4, RFC 4301 §4.4), so that no peer can flood it.

use std::time::{Duration, Instant};

use dataplane::Audit;
use ipsec::DropReason;

/// Lines per reason and second.
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);

/// Limit of log lines that unauthenticated hosts can cause. The others are counted.
#[derive(Clone, Copy)]
pub(crate) struct LineLimit {
    per_second: u32,
    since: Instant,
    lines: u32,
    suppressed: u64,
}

impl LineLimit {
    pub(crate) fn new(now: Instant, per_second: u32) -> Self {
        Self { per_second, since: now, lines: 0, suppressed: 0 }
    }

    /// Returns whether an event may be logged; otherwise it is counted. [`LineLimit::settle`] must
    /// have been called with the same time.
    pub(crate) fn admit(&mut self) -> bool {
        let admitted = self.lines < self.per_second;
        if admitted {
            self.lines += 1;
        } else {
            self.suppressed += 1;
        }
        admitted
    }

    /// Starts a new period when the last one is over; returns the number of events that were not
    /// logged in it, if there were any.
    pub(crate) fn settle(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) < PERIOD {
            return None;
        }
        let suppressed = self.suppressed;
        *self = Self::new(now, self.per_second);
        (suppressed > 0).then_some(suppressed)
    }
}

/// Writes audit lines, a bounded number for each reason.
pub(crate) struct AuditLog {
    limits: [LineLimit; DropReason::COUNT],
}

impl AuditLog {
    pub(crate) fn new(now: Instant) -> Self {
        Self { limits: [LineLimit::new(now, LINES); DropReason::COUNT] }
    }

    /// Logs an event, or counts that it was not logged.
    pub(crate) fn record(&mut self, now: Instant, audit: &Audit) {
        if self.admit(now, audit.drop) {
            tracing::warn!(target: "audit", "{}", line(audit));
        }
    }

    /// Reports the number of events suppressed in periods that are over.
    pub(crate) fn flush(&mut self, now: Instant) {
        for reason in DropReason::ALL {
            self.settle(now, *reason);
        }
    }

    fn admit(&mut self, now: Instant, reason: DropReason) -> bool {
        self.settle(now, reason);
        self.limits[reason as usize].admit()
    }

    fn settle(&mut self, now: Instant, reason: DropReason) {
        if let Some(count) = self.limits[reason as usize].settle(now) {
            tracing::warn!(target: "audit", "{}: {count} more events were not logged", reason.key());
        }
    }
}

fn line(audit: &Audit) -> String {
    let mut line = format!("{}: {}", audit.drop.key(), audit.drop.meaning());
    line.push_str(if audit.outbound { ", outbound" } else { ", inbound" });
    if audit.spi != 0 {
        line.push_str(&format!(", spi {:#010x}", audit.spi));
    }
    if audit.session != 0 {
        line.push_str(&format!(", session {}", audit.session));
    }
    if audit.seq != 0 {
        line.push_str(&format!(", seq {}", audit.seq));
    }
    for (word, addr) in [("from", audit.src), ("to", audit.dst)] {
        if let Some(addr) = addr {
            line.push_str(&format!(", {word} {addr}"));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_reason_leaves_room_for_the_others() {
        let start = Instant::now();
        let mut log = AuditLog::new(start);
        let admitted = (0..1000).filter(|_| log.admit(start, DropReason::BadIcv)).count();
        assert_eq!(admitted, LINES as usize);
        assert!(log.admit(start, DropReason::Replay));
        let limit = &mut log.limits[DropReason::BadIcv as usize];
        assert_eq!(limit.settle(start), None);
        assert_eq!(limit.settle(start + PERIOD), Some(990));
        assert!(log.admit(start + PERIOD, DropReason::BadIcv));
    }

    #[test]
    fn a_line_names_what_is_known() {
        let audit = Audit {
            at_ms: 0,
            drop: DropReason::BadIcv,
            outbound: false,
            spi: 0x1001,
            session: 0,
            seq: 9,
            src: Some([192, 0, 2, 1].into()),
            dst: None,
        };
        assert_eq!(line(&audit), "bad_icv: ICV is wrong, inbound, spi 0x00001001, seq 9, from 192.0.2.1");
    }
}
