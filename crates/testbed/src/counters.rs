//! Counters of the kernel: processor time of a program, devices, TCP.

use std::fs;

use serde::Serialize;

/// Processor time of a process in seconds, from /proc/PID/stat; 0 when it is gone.
pub fn process_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // USER_HZ of this kernel.
    process_time(&stat, rustix::param::clock_ticks_per_second().max(1)).unwrap_or(0.0)
}

fn process_time(stat: &str, ticks_per_s: u64) -> Option<f64> {
    // The name may hold blanks and brackets; fields are counted after it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / ticks_per_s as f64)
}

/// Packets and bytes of a device and of TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct NetCount {
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Segments that TCP retransmitted.
    pub retransmitted: u64,
}

impl NetCount {
    /// Reads /proc/net/dev and /proc/net/snmp, one after the other; `None` without the device.
    pub fn parse(text: &str, device: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))?;
        let counts: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let at = |index: usize| counts.get(index).copied();
        Some(Self {
            rx_bytes: at(0)?,
            rx_packets: at(1)?,
            tx_bytes: at(8)?,
            tx_packets: at(9)?,
            retransmitted: tcp(text, "RetransSegs").unwrap_or(0),
        })
    }

    /// Difference to an earlier reading.
    pub fn since(self, before: Self) -> Self {
        Self {
            rx_bytes: self.rx_bytes.saturating_sub(before.rx_bytes),
            rx_packets: self.rx_packets.saturating_sub(before.rx_packets),
            tx_bytes: self.tx_bytes.saturating_sub(before.tx_bytes),
            tx_packets: self.tx_packets.saturating_sub(before.tx_packets),
            retransmitted: self.retransmitted.saturating_sub(before.retransmitted),
        }
    }
}

/// A counter of TCP by name: names are in one line, numbers in the next.
fn tcp(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let index = lines.next()?.split_whitespace().position(|word| word == name)?;
    lines.next()?.split_whitespace().nth(index)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_times_survive_odd_names() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 7 7 20 0 1 0 9 0 0\n";
        assert_eq!(process_time(stat, 100), Some(2.0));
        assert_eq!(process_time(stat, 1000), Some(0.2));
        assert_eq!(process_time("", 100), None);
        assert!(process_seconds(std::process::id()) >= 0.0);
    }

    #[test]
    fn devices_and_tcp_are_read() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
 veth0:  906070   12351    0    0    0     0          0         0 500945370  330911    0    0    0     0       0          0
Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm MaxConn InSegs OutSegs RetransSegs InErrs
Tcp: 1 -1 12351 330911 17 0
";
        let count = NetCount::parse(text, "veth0").unwrap();
        let expected = NetCount {
            rx_bytes: 906_070,
            rx_packets: 12_351,
            tx_bytes: 500_945_370,
            tx_packets: 330_911,
            retransmitted: 17,
        };
        assert_eq!(count, expected);
        assert_eq!(count.since(count), NetCount::default());
        assert_eq!(NetCount::parse(text, "veth"), None);
    }
}
