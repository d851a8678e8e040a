//! Auditable events into the log (RFC 4303 §3.4, RFC 4301 §4.4), so that no peer can flood it.

use std::time::{Duration, Instant};

use dataplane::Audit;
use ipsec::DropReason;

/// Lines per reason and second.
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
struct Window {
    since: Instant,
    lines: u32,
    suppressed: u64,
}

/// Writes audit lines, a bounded number for each reason.
pub(crate) struct AuditLog {
    windows: [Window; DropReason::COUNT],
}

impl AuditLog {
    pub(crate) fn new(now: Instant) -> Self {
        Self { windows: [Window { since: now, lines: 0, suppressed: 0 }; DropReason::COUNT] }
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
            if let Some(count) = self.settle(now, *reason) {
                tracing::warn!(target: "audit", "{}: {count} more events were not logged", reason.key());
            }
        }
    }

    fn admit(&mut self, now: Instant, reason: DropReason) -> bool {
        if let Some(count) = self.settle(now, reason) {
            tracing::warn!(target: "audit", "{}: {count} more events were not logged", reason.key());
        }
        let window = &mut self.windows[reason as usize];
        let admitted = window.lines < LINES;
        if admitted {
            window.lines += 1;
        } else {
            window.suppressed += 1;
        }
        admitted
    }

    /// Starts a new period when the last one is over; returns the number of suppressed records.
    fn settle(&mut self, now: Instant, reason: DropReason) -> Option<u64> {
        let window = &mut self.windows[reason as usize];
        if now.duration_since(window.since) < PERIOD {
            return None;
        }
        let held_back = window.suppressed;
        *window = Window { since: now, lines: 0, suppressed: 0 };
        (held_back > 0).then_some(held_back)
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
        assert_eq!(log.settle(start, DropReason::BadIcv), None);
        assert_eq!(log.settle(start + PERIOD, DropReason::BadIcv), Some(990));
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
