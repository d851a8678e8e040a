//! Counters of the kernel: processor time of a program, devices, TCP.

use std::fs;

use serde::Serialize;

/// Processor time and memory of a process, from /proc/PID/stat.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessUse {
    /// Seconds of the process itself.
    pub own_s: f64,
    /// Seconds of the programs that it ran and waited for.
    pub children_s: f64,
    /// Resident memory.
    pub resident_bytes: u64,
}

impl ProcessUse {
    /// Now; `None` when the process is gone.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // USER_HZ of this kernel.
        let ticks_per_s = rustix::param::clock_ticks_per_second().max(1);
        Self::parse(&stat, ticks_per_s, rustix::param::page_size() as u64)
    }

    fn parse(stat: &str, ticks_per_s: u64, page_bytes: u64) -> Option<Self> {
        // The name may hold blanks and brackets; fields are counted after it.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let seconds = |ticks: u64| ticks as f64 / ticks_per_s as f64;
        // utime, stime, cutime, cstime; rss in pages.
        Some(Self {
            own_s: seconds(field(11)? + field(12)?),
            children_s: seconds(field(13)? + field(14)?),
            resident_bytes: field(21)? * page_bytes,
        })
    }

    /// Seconds of the process and of the programs that it ran.
    pub fn cpu_s(&self) -> f64 {
        self.own_s + self.children_s
    }
}

/// Processor time of a process itself in seconds; 0 when it is gone.
pub fn process_seconds(pid: u32) -> f64 {
    ProcessUse::of(pid).map_or(0.0, |usage| usage.own_s)
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
    fn usage_of_a_process_survives_odd_names_and_separates_the_programs_that_it_ran() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 3 2 20 0 1 0 9 3133440 393 0";
        let usage = ProcessUse::parse(stat, 100, 4096).unwrap();
        assert_eq!(usage, ProcessUse { own_s: 2.0, children_s: 0.05, resident_bytes: 393 * 4096 });
        assert_eq!(usage.cpu_s(), 2.05);
        assert_eq!(ProcessUse::parse(stat, 1000, 4096).unwrap().own_s, 0.2);
        assert_eq!(ProcessUse::parse("7 (short) S 1 7", 100, 4096), None);
        assert!(ProcessUse::of(std::process::id()).is_some_and(|usage| usage.resident_bytes > 0));
        assert_eq!(process_seconds(u32::MAX), 0.0);
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
