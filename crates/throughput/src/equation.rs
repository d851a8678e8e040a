//! The equations of the throughput model (Tisovsky and Baronak 2012), as printed, and as corrected
//! where they need it.
//!
//! Times are nanoseconds, sizes bytes, rates 10⁶ bit/s ("Mbps"). [`EQUATIONS`] lists all of them
//! with their errors.

use serde::{Deserialize, Serialize};

/// Nanoseconds that a packet of `len` bytes takes at `mbps` (equation 7).
pub fn time_ns(len: f64, mbps: f64) -> f64 {
    8e3 * len / mbps
}

/// Rate in 10⁶ bit/s at which packets of `len` bytes pass that take `ns` each (equation 12, its
/// outer division).
pub fn rate_mbps(len: f64, ns: f64) -> f64 {
    8e3 * len / ns
}

/// Equation 3: one processor does everything, one packet after the other.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Synchronous {
    /// Time of a packet that is independent of its size, t_fix.
    pub fixed_ns: f64,
    /// Rate of what depends on size, R_alg.
    pub rate_mbps: f64,
}

impl Synchronous {
    /// Equations 8 to 11: the line through two measurements, each (size function's bytes, time).
    /// `None` when the larger packet does not take longer.
    pub fn through(small: (f64, f64), large: (f64, f64)) -> Option<Self> {
        let slope = (large.1 - small.1) / (large.0 - small.0);
        (slope > 0.0 && slope.is_finite()).then(|| Self { fixed_ns: small.1 - slope * small.0, rate_mbps: 8e3 / slope })
    }

    /// Equation 3: time of a packet of which `bytes` are worked on.
    pub fn time_ns(&self, bytes: f64) -> f64 {
        self.fixed_ns + time_ns(bytes, self.rate_mbps)
    }

    /// Equation 12: throughput of packets of `len` bytes, of which `bytes` are worked on.
    pub fn throughput_mbps(&self, len: f64, bytes: f64) -> f64 {
        rate_mbps(len, self.time_ns(bytes))
    }

    /// The size at which fixed and length-dependent time are equal, in bytes of the size function.
    pub fn half_way_bytes(&self) -> f64 {
        self.fixed_ns * self.rate_mbps / 8e3
    }

    /// The limit for small packets in packets per second.
    pub fn packets_limit_pps(&self) -> f64 {
        1e9 / self.fixed_ns
    }
}

/// Equation 4: processor and engine work at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Asynchronous {
    /// Time of the processor for a packet, t_fix.
    pub fixed_ns: f64,
    /// Time of the engine that is independent of size, t_oh.
    pub overhead_ns: f64,
    /// Rate of the engine, R_alg.
    pub rate_mbps: f64,
}

impl Asynchronous {
    /// Equation 4.
    pub fn time_ns(&self, bytes: f64) -> f64 {
        self.fixed_ns.max(self.engine_ns(bytes))
    }

    fn engine_ns(&self, bytes: f64) -> f64 {
        self.overhead_ns + time_ns(bytes, self.rate_mbps)
    }

    /// Equation 13: throughput where the processor is the bottleneck.
    pub fn processor_mbps(&self, len: f64) -> f64 {
        rate_mbps(len, self.fixed_ns)
    }

    /// Equation 14: throughput where the engine is the bottleneck.
    pub fn engine_mbps(&self, len: f64, bytes: f64) -> f64 {
        rate_mbps(len, self.engine_ns(bytes))
    }

    /// Equation 15: the size at which both take the same time, in bytes of the size function.
    pub fn breakpoint_bytes(&self) -> f64 {
        self.rate_mbps * (self.fixed_ns - self.overhead_ns) / 8e3
    }

    /// Equation 16: the branch of equation 13 up to the breakpoint, that of equation 14 above.
    pub fn throughput_mbps(&self, len: f64, bytes: f64) -> f64 {
        if bytes <= self.breakpoint_bytes() { self.processor_mbps(len) } else { self.engine_mbps(len, bytes) }
    }
}

/// Equation 4 corrected: the processor also puts packets into the ring and takes them out, and
/// serves an interrupt for every `per_interrupt` completions, a number that grows with load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessorTime {
    /// Protocol work, ns.
    pub fixed_ns: f64,
    /// Enqueue and dequeue, ns.
    pub ring_ns: f64,
    /// One interrupt, ns.
    pub interrupt_ns: f64,
    /// Completions per interrupt, at least 1.
    pub per_interrupt: f64,
}

impl ProcessorTime {
    /// Time per packet in nanoseconds.
    pub fn per_packet_ns(&self) -> f64 {
        self.fixed_ns + self.ring_ns + self.interrupt_ns / self.per_interrupt.max(1.0)
    }
}

/// Assessment of an equation.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// Used as printed.
    Printed,
    /// Used as printed to reproduce the paper; there is also a corrected form.
    Corrected,
}

/// One equation.
#[derive(Debug, Serialize)]
pub struct Equation {
    /// Its number in the paper.
    pub number: u8,
    /// As printed.
    pub printed: &'static str,
    /// Standing.
    pub standing: Standing,
    /// The corrected form and the reason, or its purpose.
    pub note: &'static str,
}

macro_rules! equations {
    ($($number:literal $standing:ident $printed:literal : $note:literal;)*) => {
        /// Equations 1 to 16.
        pub const EQUATIONS: &[Equation] = &[$(Equation {
            number: $number, printed: $printed, standing: Standing::$standing, note: $note,
        }),*];
    };
}

equations! {
    1 Printed "t_fix = t_IP + t_IPsec + t_com + t_key": "cost of a packet of any size";
    2 Printed "L/R_alg = L/R*_alg + L/R_rw": "cipher and copying in series";
    3 Printed "t_S = t_fix + L_alg/R_alg": "synchronous; a link is a further limit: min(R_link, ·)";
    4 Corrected "t_S = max(t_fix, t_oh + L_alg/R_alg)":
        "valid for an unlimited ring and constant times; the processor also pays t_enq + t_deq + t_irq/k";
    5 Corrected "L_AH = ceil((L + 12 + 24)/64) * 64":
        "64 * ceil((L + 20 + 24 + 9)/64): the whole outer header is hashed, hash padding is 9 bytes at least";
    6 Corrected "L_ESP = ceil((L + 2)/B) * B":
        "GCM aligns to 4; encryption with a separate MAC needs L_enc/R_enc + L_auth/R_auth";
    7 Printed "t_M = L_M/R_M": "a rate is a time";
    8 Printed "L_M1/R_M1 = t_fix + L_alg1/R_alg": "first measurement";
    9 Printed "L_M2/R_M2 = t_fix + L_alg2/R_alg": "second measurement";
    10 Printed "R_alg = (L_alg2 - L_alg1) R_M1 R_M2 / (L_M2 R_M1 - L_M1 R_M2)": "slope of the line through both";
    11 Printed "t_fix = L_M1/R_M1 - L_alg1/R_alg": "its intercept, meaningful only next to the size function";
    12 Printed "R_calc = L_calc / (t_fix + L_alg/R_alg)": "prediction, synchronous";
    13 Printed "R_calcA = L_calc / t_fix": "prediction, the processor is the bottleneck";
    14 Printed "R_calcB = L_calc / (t_oh + L_alg/R_alg)": "prediction, the engine is the bottleneck";
    15 Printed "L_bp = R_alg (t_fix - t_oh)": "breakpoint";
    16 Printed "R_calc = R_calcA up to L_bp, R_calcB above": "prediction, asynchronous";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64, relative: f64) {
        assert!((a / b - 1.0).abs() <= relative, "{a} is not {b}");
    }

    /// The slope form used here is equation 10, and the line passes through both points.
    #[test]
    fn equations_8_to_12_hold_for_the_line_through_two_points() {
        let (l1, r1, a1, l2, r2, a2): (f64, f64, f64, f64, f64, f64) = (128.0, 2.079, 144.0, 1280.0, 10.285, 1296.0);
        let line = Synchronous::through((a1, time_ns(l1, r1)), (a2, time_ns(l2, r2))).unwrap();
        close(line.rate_mbps, (a2 - a1) * r1 * r2 / (l2 * r1 - l1 * r2), 1e-12);
        close(line.fixed_ns, time_ns(l1, r1) - time_ns(a1, line.rate_mbps), 1e-12);
        close(line.throughput_mbps(l1, a1), r1, 1e-12);
        close(line.throughput_mbps(l2, a2), r2, 1e-12);
        close(line.fixed_ns, 429_660.0, 1e-5);
        close(line.rate_mbps, 18.319, 1e-4);
    }

    #[test]
    fn a_larger_packet_that_is_not_slower_makes_no_line() {
        assert_eq!(Synchronous::through((64.0, 100.0), (128.0, 100.0)), None);
        assert_eq!(Synchronous::through((64.0, 100.0), (64.0, 200.0)), None);
    }

    /// Half-way sizes: Cisco aes128 1,086 B, Cavium 297 B.
    #[test]
    fn half_way_sizes_of_the_papers_systems() {
        let cisco = Synchronous { fixed_ns: 410_230.0, rate_mbps: 21.183 };
        close(cisco.half_way_bytes(), 1086.0, 1e-3);
        let cavium = Synchronous { fixed_ns: 91.697, rate_mbps: 25_870.0 };
        close(cavium.half_way_bytes(), 297.0, 3e-3);
        close(cavium.packets_limit_pps(), 10.905e6, 1e-3);
    }

    #[test]
    fn the_asynchronous_branches_meet_at_the_breakpoint() {
        let both = Asynchronous { fixed_ns: 20_687.0, overhead_ns: 8_263.0, rate_mbps: 626.3 };
        let at = both.breakpoint_bytes();
        close(at, 972.6, 1e-4);
        close(both.processor_mbps(1000.0), both.engine_mbps(1000.0, at), 1e-12);
        for bytes in [10.0, at - 1.0, at, at + 1.0, 1500.0] {
            close(both.throughput_mbps(1000.0, bytes), rate_mbps(1000.0, both.time_ns(bytes)), 1e-12);
        }
    }

    #[test]
    fn completions_share_an_interrupt() {
        let quiet = ProcessorTime { fixed_ns: 10.0, ring_ns: 2.0, interrupt_ns: 8.0, per_interrupt: 1.0 };
        assert_eq!(quiet.per_packet_ns(), 20.0);
        assert_eq!(ProcessorTime { per_interrupt: 8.0, ..quiet }.per_packet_ns(), 13.0);
    }

    #[test]
    fn all_sixteen_are_listed() {
        assert!(EQUATIONS.iter().map(|e| e.number).eq(1..=16));
    }
}
