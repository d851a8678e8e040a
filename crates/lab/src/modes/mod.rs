//! Tunnel against transport: round trips by size and direction, and bytes on the wire.
//!
//! Every variant has its own two hosts and runs for a whole session; the tunnel runs twice, which
//! gives the noise floor. In each round all variants are pinged in random order and in the reverse
//! order. A comparison is over sessions, of the medians and of the 99th percentiles of a round,
//! against a predefined margin.

mod study;

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::demo::relay::Punctuality;
use crate::demo::world::End;
use crate::stats::{Estimate, Judged};
pub(crate) use study::{ping, run};

/// Options of the study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Options {
    /// ESP suite.
    pub suite: String,
    /// Sizes of inner packets in bytes, IP header included.
    pub sizes: Vec<u16>,
    /// Pings of one size, direction and variant at a time.
    pub count: u32,
    /// Rounds in each session.
    pub rounds: u32,
    /// Sessions: hosts, processes and keys are new in each.
    pub sessions: u32,
    /// Ratio that does not matter, less 1: 0.05 is 5 %.
    pub margin: f64,
    /// Time that the cable holds every frame back, in milliseconds.
    pub delay_ms: u32,
    /// Seed of order and intervals.
    pub seed: u64,
}

/// Compared variants.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// The cable alone.
    Plain,
    /// ESP in tunnel mode.
    Tunnel,
    /// The same variant again, on separate hosts.
    Again,
    /// ESP in transport mode.
    Transport,
    /// Tunnel mode in UDP.
    TunnelUdp,
    /// Transport mode in UDP.
    TransportUdp,
}

impl Variant {
    /// All.
    pub const ALL: [Self; 6] =
        [Self::Plain, Self::Tunnel, Self::Again, Self::Transport, Self::TunnelUdp, Self::TransportUdp];

    /// The subject with this suite.
    pub fn subject(self, suite: &str) -> String {
        match self {
            Self::Plain => "plain".into(),
            Self::Tunnel | Self::Again => format!("weir-esp-tunnel-{suite}"),
            Self::Transport => format!("weir-esp-transport-{suite}"),
            Self::TunnelUdp => format!("weir-esp-tunnel-{suite},udp"),
            Self::TransportUdp => format!("weir-esp-transport-{suite},udp"),
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Tunnel => "tunnel",
            Self::Again => "tunnel again",
            Self::Transport => "transport",
            Self::TunnelUdp => "tunnel, UDP",
            Self::TransportUdp => "transport, UDP",
        }
    }
}

/// Round trips of one variant, direction and size, over all rounds and sessions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PingSummary {
    /// Variant.
    pub variant: Variant,
    /// Initiating host: `sun` or `moon`.
    pub from: String,
    /// Bytes of the inner packet.
    pub size: u16,
    /// Requests.
    pub sent: usize,
    /// Answers.
    pub received: usize,
    /// 50th, 90th, 99th and 99.9th percentile in microseconds; `None` with fewer than 100 / (1 − p)
    /// replies.
    pub us: [Option<f64>; 4],
    /// Bytes of an outer IP packet, by the counters of the cable; `None` if the host sent something
    /// else in every round.
    pub wire_bytes: Option<f64>,
}

/// Percentiles of a [`PingSummary`].
const PERCENTILES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// B over A.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// A.
    pub a: Variant,
    /// B.
    pub b: Variant,
    /// Initiating host.
    pub from: String,
    /// Bytes of the inner packet.
    pub size: u16,
    /// `p50` or `p99`.
    pub figure: &'static str,
    /// Ratio with its 95 % interval.
    pub ratio: Estimate,
    /// Difference of the tunnel from itself, as a ratio.
    pub floor: f64,
    /// Verdict.
    pub judged: Judged,
}

/// Result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModesResult {
    /// Options.
    pub options: Options,
    /// Round trips.
    pub rows: Vec<PingSummary>,
    /// Transport over tunnel, with and without UDP.
    pub comparisons: Vec<Comparison>,
    /// Timing accuracy of the cable, if it delays frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) relay: Option<Punctuality>,
}

impl ModesResult {
    /// For people.
    pub fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            "variant",
            "from",
            "size B",
            "p50 µs",
            "p90 µs",
            "p99 µs",
            "p99.9 µs",
            "lost",
            "on the wire B",
        ]);
        for row in &self.rows {
            let mut cells = vec![row.variant.label().to_owned(), row.from.clone(), row.size.to_string()];
            cells.extend(row.us.map(|us| us.map_or("-".to_owned(), |us| format!("{us:.0}"))));
            let wire = row.wire_bytes.map_or("-".to_owned(), |bytes| format!("{bytes:.1}"));
            cells.extend([(row.sent - row.received).to_string(), wire]);
            table.add_row(cells);
        }
        align(&mut table, 2);
        let mut text = format!("{table}\n\n");
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["transport over tunnel", "from", "size B", "ratio", "95 % interval", "verdict"]);
        for c in &self.comparisons {
            let what = if c.a == Variant::Tunnel { c.figure.to_owned() } else { format!("{}, both in UDP", c.figure) };
            table.add_row([
                what,
                c.from.clone(),
                c.size.to_string(),
                format!("{:.3}", c.ratio.value),
                format!("{:.3} to {:.3}", c.ratio.low, c.ratio.high),
                format!("{}: {}", c.judged.verdict, c.judged.why),
            ]);
        }
        let _ = writeln!(text, "{table}");
        let _ = writeln!(
            text,
            "{} sessions of {} rounds, margin ±{:.1} %, delay {} ms each way; the paper's table says 1.0037 and 1.0081",
            self.options.sessions,
            self.options.rounds,
            100.0 * self.options.margin,
            self.options.delay_ms
        );
        if let Some(relay) = &self.relay {
            text += &self.delay_text(relay);
        }
        text
    }
}

impl ModesResult {
    /// The actual delay: by the relay's clock, and by the round trips over the cable alone.
    fn delay_text(&self, relay: &Punctuality) -> String {
        let us = |late: Option<f64>| late.map_or("–".to_owned(), |us| format!("{us:.0}"));
        let [median, p99, largest] = relay.late_us.map(us);
        let asked = 2000.0 * f64::from(self.options.delay_ms);
        let plain: Vec<f64> =
            self.rows.iter().filter(|row| row.variant == Variant::Plain).filter_map(|row| row.us[0]).collect();
        format!(
            "the cable delayed {} frames, which left {median} µs late (median; 99th percentile {p99}, largest {largest}), and dropped {}; \
             a round trip over the cable alone took {:.0} µs more than both delays (median)\n",
            relay.forwarded,
            relay.dropped,
            crate::stats::median(&plain) - asked
        )
    }
}

fn align(table: &mut Table, from: usize) {
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// Hosts that ask.
const ENDS: [End; 2] = End::BOTH;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Subject;

    #[test]
    fn every_variant_is_a_subject() {
        for variant in Variant::ALL {
            let subject: Subject = variant.subject("aes128gcm16").parse().unwrap();
            let transport = matches!(variant, Variant::Transport | Variant::TransportUdp | Variant::Plain);
            assert_eq!(subject.is_tunnel(), !transport);
        }
    }
}
