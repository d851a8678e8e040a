//! Checks that the counters of both hosts agree with iperf's result.

use serde::Serialize;

use testbed::world::{ETHERNET, TCP};

/// Tolerance between counters and iperf.
const TOLERANCE: f64 = 0.02;

/// Packets and bytes that one end counted in the direction of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Count {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

impl Count {
    pub(super) fn since(self, before: Self) -> Self {
        Self { packets: self.packets.saturating_sub(before.packets), bytes: self.bytes.saturating_sub(before.bytes) }
    }
}

/// The comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Check {
    /// Sent by sun: inner packets of its outbound SA, or frames on the cable without Weir.
    pub(super) sent: Count,
    /// Received by moon.
    pub(super) received: Count,
    /// Headers in each packet that iperf does not count, in bytes.
    pub(super) headers: u64,
    /// Bytes that iperf's server received.
    pub(super) iperf_bytes: u64,
    /// Sun's payload over iperf's, minus one.
    pub(super) sun_deviation: f64,
    /// Moon's payload over iperf's, minus one.
    pub(super) moon_deviation: f64,
    /// Packets that left sun and did not come to moon.
    pub(super) lost: i64,
}

impl Check {
    /// Compares. `on_cable`: the counts include Ethernet headers.
    pub(super) fn new(sent: Count, received: Count, iperf_bytes: u64, ip_header: u64, on_cable: bool) -> Self {
        let headers = ip_header + TCP + if on_cable { ETHERNET } else { 0 };
        let payload = |count: Count| count.bytes as f64 - (count.packets * headers) as f64;
        let deviation = |count| payload(count) / iperf_bytes as f64 - 1.0;
        Self {
            sent,
            received,
            headers,
            iperf_bytes,
            sun_deviation: deviation(sent),
            moon_deviation: deviation(received),
            lost: sent.packets as i64 - received.packets as i64,
        }
    }

    /// Both ends within 2 %. Segments that TCP sent again count at both ends, and iperf counts each
    /// byte once: on a busy machine these alone may be several percent.
    pub(super) fn agrees(&self, retransmitted: u64) -> bool {
        let payload = self.sent.bytes as f64 / self.sent.packets as f64 - self.headers as f64;
        let again = retransmitted as f64 * payload / self.iperf_bytes as f64;
        let most = TOLERANCE + if again.is_finite() { again } else { 0.0 };
        [self.sun_deviation, self.moon_deviation].iter().all(|deviation| (-TOLERANCE..=most).contains(deviation))
    }

    /// The larger deviation, with its sign.
    pub(super) fn worst(&self) -> f64 {
        if self.sun_deviation.abs() >= self.moon_deviation.abs() { self.sun_deviation } else { self.moon_deviation }
    }

    /// For a row that failed.
    pub(super) fn complaint(&self, retransmitted: u64) -> String {
        format!(
            "counters and iperf disagree: without headers sun counted {:+.1} % and moon {:+.1} % against iperf's {} bytes \
             ({} packets lost on the way, {retransmitted} segments sent again)",
            self.sun_deviation * 100.0,
            self.moon_deviation * 100.0,
            self.iperf_bytes,
            self.lost
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sent: u64, received: u64) -> Check {
        let count = |packets: u64| Count { packets, bytes: packets * 1400 };
        Check::new(count(sent), count(received), 1000 * 1348, 20, false)
    }

    #[test]
    fn headers_are_taken_off() {
        let same = check(1000, 1000);
        assert_eq!((same.headers, same.worst(), same.lost), (52, 0.0, 0));
        assert!(same.agrees(0));
        let cable = Count { packets: 10, bytes: 10 * 1514 };
        let plain = Check::new(cable, cable, 10 * 1448, 20, true);
        assert_eq!((plain.headers, plain.worst()), (66, 0.0));
    }

    #[test]
    fn two_per_cent_is_the_limit_at_each_end() {
        assert!(check(1019, 1000).agrees(0));
        assert!(!check(1021, 1000).agrees(0));
        assert!(!check(1000, 979).agrees(0));
        // What was sent again explains more, and no less.
        assert!(check(1029, 1029).agrees(10));
        assert!(!check(1031, 1029).agrees(10) && !check(1000, 979).agrees(30));
        assert_eq!(check(1021, 1000).lost, 21);
        assert!(check(1021, 1000).complaint(3).contains("sun counted +2.1 %"));
    }

    /// No traffic must not count as agreement.
    #[test]
    fn nothing_agrees_with_nothing() {
        assert!(!Check::new(Count::default(), Count::default(), 0, 20, false).agrees(0));
    }
}
