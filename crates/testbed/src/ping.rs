//! Round trips, from what `ping` of iputils prints.

use std::time::Duration;

use serde::Serialize;

use stats::quantile_sorted;

/// Sizes measured: bytes of the IP packet, headers included.
pub const SIZES: [u16; 3] = [64, 736, 1400];
/// Packets per size.
pub const COUNT: u32 = 200;
/// Time between two packets.
pub const EVERY: Duration = Duration::from_millis(5);

/// Round trips of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoundTrips {
    /// Bytes of the IP packet.
    pub ip_bytes: u16,
    /// Requests.
    pub sent: usize,
    /// In the order of arrival, microseconds.
    pub us: Vec<f64>,
}

impl RoundTrips {
    /// Reads the output of ping. `None` when its summary is missing.
    pub fn parse(ip_bytes: u16, output: &str) -> Option<Self> {
        let sent = output.lines().find_map(|line| line.split_once(" packets transmitted")?.0.trim().parse().ok())?;
        let replies = output.lines().filter(|line| line.contains("icmp_seq=") && !line.contains("DUP"));
        let milliseconds =
            replies.filter_map(|line| line.split_once(" time=")?.1.split_whitespace().next()?.parse().ok());
        Some(Self { ip_bytes, sent, us: milliseconds.map(|ms: f64| (ms * 1e6).round() / 1e3).collect() })
    }

    /// A quantile in microseconds; `NaN` when nothing came back.
    pub fn quantile(&self, q: f64) -> f64 {
        let mut sorted = self.us.clone();
        sorted.sort_by(f64::total_cmp);
        quantile_sorted(&sorted, q)
    }

    /// Requests without a reply.
    pub fn lost(&self) -> usize {
        self.sent.saturating_sub(self.us.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
PING 10.2.0.1 (10.2.0.1) 36(64) bytes of data.
44 bytes from 10.2.0.1: icmp_seq=1 ttl=64 time=0.080 ms
44 bytes from 10.2.0.1: icmp_seq=2 ttl=64 time=0.035 ms
44 bytes from 10.2.0.1: icmp_seq=2 ttl=64 time=0.036 ms (DUP!)
From 10.2.0.1 icmp_seq=3 Destination Host Unreachable
44 bytes from 10.2.0.1: icmp_seq=4 ttl=64 time=12.3 ms

--- 10.2.0.1 ping statistics ---
4 packets transmitted, 3 received, +1 duplicates, +1 errors, 25% packet loss, time 30ms
rtt min/avg/max/mdev = 0.035/4.139/12.3/5.771 ms
";

    #[test]
    fn replies_are_read() {
        let trips = RoundTrips::parse(64, OUTPUT).unwrap();
        assert_eq!(trips, RoundTrips { ip_bytes: 64, sent: 4, us: vec![80.0, 35.0, 12_300.0] });
        assert_eq!((trips.lost(), trips.quantile(0.5)), (1, 80.0));
    }

    #[test]
    fn nothing_came_back() {
        let trips = RoundTrips::parse(64, "3 packets transmitted, 0 received, 100% packet loss, time 30ms\n").unwrap();
        assert_eq!(trips.lost(), 3);
        assert!(trips.quantile(0.99).is_nan());
        assert_eq!(RoundTrips::parse(64, "ping: socket: Operation not permitted\n"), None);
        assert_eq!(RoundTrips::parse(64, ""), None);
    }
}
