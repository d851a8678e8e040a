//! The stages of the path, and the 16 steps of the paper that they do.

/// One stage that is timed by itself.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Stage {
    /// Key of its value: `stage.KEY_ticks`.
    pub key: &'static str,
    /// Numbers of the steps (figure 4 of Tisovsky and Baronak) that it does.
    pub steps: &'static [u8],
    /// Description.
    pub what: &'static str,
}

const fn stage(key: &'static str, steps: &'static [u8], what: &'static str) -> Stage {
    Stage { key, steps, what }
}

/// Stages of a packet on the outbound path, in order. Combined steps are executed as one in Weir:
/// headers, trailer and the request to the engine are written together, before the engine starts.
pub const OUT: [Stage; 7] = [
    stage("parse", &[3], "headers read and checked"),
    stage("policy", &[3], "SPD: the flow's decision"),
    stage("sa", &[4], "SA found, sequence number reserved"),
    stage("prepare", &[5, 6, 12, 13], "padding, headers, tunnel header; request to the engine"),
    stage("engine", &[7, 8, 9, 10, 11], "engine called; key set up; bytes read, ciphered, authenticated, written"),
    stage("finish", &[12, 14], "post-processing; counters"),
    stage("copy", &[9, 11], "one copy of the packet, where a port makes one"),
];

/// Stages of a packet on the inbound path, in order.
pub const IN: [Stage; 7] = [
    stage("parse", &[3], "outer headers read and checked"),
    stage("sa", &[4], "SAD: the SA of SPI and addresses"),
    stage("prepare", &[5, 6], "lengths and replay window checked; request to the engine"),
    stage("engine", &[7, 8, 9, 10, 11], "engine called; key set up; bytes read, verified, deciphered, written"),
    stage("finish", &[12, 13], "replay window moved, headers stripped, inner header checked"),
    stage("policy", &[3, 14], "SPD: whether the inner packet may come out of this SA"),
    stage("copy", &[9, 11], "one copy of the packet, where a port makes one"),
];

/// The steps of the paper, and which of them are measured.
pub const STEPS: [&str; 16] = [
    "frame received by the adapter: in parallel, not measured",
    "handed to the processor: memory port, receive",
    "header checked, policy looked up: parse, policy",
    "security association looked up: sa",
    "trailer added: within prepare",
    "request to the engine built: within prepare",
    "engine called: the null engine's share of engine",
    "key set up: engine time for the smallest input",
    "bytes read: with 11, a pass over the bytes",
    "cryptography: engine without 7, 8, 9, 11",
    "bytes written: with 9",
    "AH or ESP header added: within prepare; AH's end within finish",
    "tunnel header made: within prepare",
    "rest of the network layer: within finish and policy",
    "handed to the adapter: memory port, send",
    "frame sent by the adapter: in parallel, not measured",
];

/// Stamps at the ends of stages.
pub(crate) trait Probe {
    /// A packet or chunk starts here.
    fn begin(&mut self);
    /// Stage `at` ends here, for one packet.
    fn end(&mut self, at: usize);
}

/// No stamps: the code between them runs as if there were no probe.
pub(crate) struct Unprobed;

impl Probe for Unprobed {
    #[inline]
    fn begin(&mut self) {}
    #[inline]
    fn end(&mut self, _: usize) {}
}

/// Ticks and stamps of each stage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stamps {
    last: u64,
    pub(crate) ticks: [u64; 7],
    pub(crate) stamps: [u64; 7],
}

impl Probe for Stamps {
    #[inline]
    fn begin(&mut self) {
        self.last = ports::clock::ticks();
    }

    #[inline]
    fn end(&mut self, at: usize) {
        let now = ports::clock::ticks();
        self.ticks[at] += now - self.last;
        self.stamps[at] += 1;
        self.last = now;
    }
}

impl Stamps {
    /// Ticks that one stamp adds to the stage it ends: the least mean of many runs of stamps with
    /// nothing between.
    pub(crate) fn own_cost() -> f64 {
        const RUN: u64 = 256;
        let runs = (0..200).map(|_| {
            let mut stamps = Self::default();
            stamps.begin();
            (0..RUN).for_each(|_| stamps.end(std::hint::black_box(0)));
            stamps.ticks[0] as f64 / RUN as f64
        });
        runs.fold(f64::INFINITY, f64::min)
    }

    /// Ticks of each stage per packet, the stamps' own cost taken off; never below zero.
    pub(crate) fn per_packet(&self, own_cost: f64, packets: u64) -> [f64; 7] {
        std::array::from_fn(|at| {
            (self.ticks[at] as f64 - own_cost * self.stamps[at] as f64).max(0.0) / packets.max(1) as f64
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_of_the_main_processor_has_a_stage() {
        for stages in [OUT, IN] {
            for step in 3..=12 {
                assert!(stages.iter().any(|stage| stage.steps.contains(&step)), "step {step}");
            }
        }
    }

    #[test]
    fn the_cost_of_a_stamp_is_taken_off() {
        let own = Stamps::own_cost();
        assert!(own > 0.0 && own < 1e5, "{own}");
        let stamps = Stamps { last: 0, ticks: [1000, 0, 0, 0, 0, 0, 0], stamps: [10, 5, 0, 0, 0, 0, 0] };
        assert_eq!(stamps.per_packet(20.0, 10), [80.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }
}
