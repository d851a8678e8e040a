//! Measures the path in blocks of milliseconds on request; `weir lab compare` drives two builds
//! with it.
//!
//! The process sets everything up once and then waits. Each input line names a case and a time; the
//! response has the ticks per packet of the rounds in that time. Between two lines the process is
//! idle, so that two processes can take turns on one processor.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crypto::Engine;
use ipsec::Protocol;

use super::path::{Ends, Load};
use crate::host::at_depth;
use crate::host::clock::{CHAIN_CYCLES, chain_ticks};
use crate::many::ManyError;
use stats::{RatedTimes, quantile_sorted};
use testbed::pair::{Shape, Subject};

/// Version of the exchange. A driver refuses another one: builds with version 3 reported ticks,
/// with which cycles cannot be compared.
pub(crate) const FORMAT: u32 = 4;

/// First line of output.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct BlockHeader {
    /// Version of the exchange.
    pub format: u32,
    /// Cases in order, e.g. `esp tunnel aes128gcm16 64`.
    pub cases: Vec<String>,
}

/// Response to a line `CASE MICROSECONDS`, in cycles of the core per packet: the tenth percentile
/// of the rounds. Other load of the machine makes a round slower, never faster.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct BlockResult {
    /// Protecting.
    pub out: f64,
    /// Opening.
    #[serde(rename = "in")]
    pub inbound: f64,
    /// Rounds.
    pub rounds: usize,
}

/// Quantile of the rounds of a block.
const QUANTILE: f64 = 0.1;
/// Rounds at the start of a block that are not counted: the other process had the caches.
const WARM_UP: usize = 2;
/// Rounds that a block has at least, however short it is.
const FEWEST: usize = 3;
/// Longest block, in microseconds.
const LONGEST_US: u64 = 10_000_000;

/// Selection of the cases.
#[derive(Clone, Debug)]
pub struct Options {
    /// Protocols; all when empty.
    pub protocols: Vec<Protocol>,
    /// Suites; those of [`USUAL`] when empty.
    pub suites: Vec<String>,
    /// Inner packet sizes in bytes.
    pub sizes: Vec<usize>,
    /// Packets per batch.
    pub batch: usize,
    /// Engine.
    pub engine: Engine,
}

/// Subjects of a protocol and suite that are named; another suite is measured in tunnel mode.
const USUAL: [(Protocol, Shape, &str); 12] = [
    (Protocol::Esp, Shape::Tunnel, "aes128gcm16"),
    (Protocol::Esp, Shape::Tunnel, "aes256gcm16"),
    (Protocol::Esp, Shape::Tunnel, "chacha20poly1305"),
    (Protocol::Esp, Shape::Transport, "aes128gcm16"),
    (Protocol::Esp, Shape::Transport, "aes128-sha256"),
    (Protocol::Ah, Shape::Transport, "sha256"),
    (Protocol::Eesp, Shape::Tunnel, "aes128gcm16"),
    (Protocol::Eesp, Shape::Tunnel, "aes256gcm16"),
    (Protocol::Eesp, Shape::Transport, "aes128gcm16"),
    (Protocol::Psp, Shape::Tunnel, "aes128gcm16"),
    (Protocol::Psp, Shape::Tunnel, "aes256gcm16"),
    (Protocol::Psp, Shape::Transport, "aes128gcm16"),
];

impl Options {
    fn subjects(&self) -> Vec<Subject> {
        let wanted = |p: Protocol, s: &str| {
            (self.protocols.is_empty() || self.protocols.contains(&p))
                && (self.suites.is_empty() || self.suites.iter().any(|w| w == s))
        };
        let usual = USUAL.into_iter().filter(|(p, _, s)| wanted(*p, s));
        let others = self.suites.iter().filter(|s| !USUAL.iter().any(|(_, _, usual)| usual == *s));
        let others = others.flat_map(|s| self.protocols.iter().map(|p| (*p, Shape::Tunnel, s.as_str())));
        usual.chain(others).map(|(p, shape, s)| Subject::new(p, shape, s, self.engine)).collect()
    }
}

/// Reason why the exchange ended.
#[derive(Debug, thiserror::Error)]
pub enum BlocksError {
    /// A case cannot be built.
    #[error(transparent)]
    Many(#[from] ManyError),
    /// Nothing matches.
    #[error("no case matches; see weir lab compare --help for protocols and suites")]
    Nothing,
    /// An invalid line.
    #[error("'{0}' is not of the form 'CASE MICROSECONDS'")]
    Line(String),
    /// Input or output.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Answers lines of `input` on `output` until it ends. Every time is longer by the share
/// `slow_down`.
///
/// # Errors
/// A case that cannot be built, an invalid line, or a closed output.
pub fn serve(
    options: &Options,
    slow_down: f64,
    input: impl BufRead,
    mut output: impl Write,
) -> Result<(), BlocksError> {
    let mut ends: Vec<(Subject, Ends)> = Vec::new();
    for subject in options.subjects() {
        let built = Ends::new(&subject, &Load::plain(options.batch))?;
        ends.push((subject, built));
    }
    let sizes = &options.sizes;
    let cases: Vec<(usize, usize)> = (0..ends.len()).flat_map(|s| sizes.iter().map(move |size| (s, *size))).collect();
    if cases.is_empty() {
        return Err(BlocksError::Nothing);
    }
    let name = |(subject, size): &(usize, usize)| {
        let subject = &ends[*subject].0;
        format!(
            "{} {} {} {size}",
            subject.protocol.name(),
            format!("{:?}", subject.shape).to_lowercase(),
            subject.suite
        )
    };
    let header = BlockHeader { format: FORMAT, cases: cases.iter().map(name).collect() };
    writeln!(output, "{}", serde_json::to_string(&header).map_err(std::io::Error::from)?)?;
    output.flush()?;
    for line in input.lines() {
        let line = line?;
        let wrong = || BlocksError::Line(line.clone());
        let (case, micros) = line.split_once(' ').ok_or_else(wrong)?;
        let case: usize = case.parse().map_err(|_| wrong())?;
        let micros: u64 = micros.parse().ok().filter(|m| *m <= LONGEST_US).ok_or_else(wrong)?;
        let (subject, size) = *cases.get(case).ok_or_else(wrong)?;
        let (subject, ends) = &mut ends[subject];
        let work = Work { subject, size, batch: options.batch, slow_down };
        let result = block(ends, &work, Duration::from_micros(micros));
        writeln!(output, "{}", serde_json::to_string(&result).map_err(std::io::Error::from)?)?;
        output.flush()?;
    }
    Ok(())
}

/// Work that a block repeats.
struct Work<'a> {
    subject: &'a Subject,
    size: usize,
    batch: usize,
    slow_down: f64,
}

fn block(ends: &mut Ends, work: &Work<'_>, time: Duration) -> BlockResult {
    ends.fill(work.subject, work.size);
    for _ in 0..WARM_UP {
        ends.path_round(work.slow_down);
    }
    let (start, mut times) = (Instant::now(), RatedTimes::new(chain_ticks));
    while times.len() < FEWEST || start.elapsed() < time {
        let round = at_depth(times.len(), || ends.path_round(work.slow_down));
        times.add(round.map(|ticks| ticks as f64 / work.batch as f64));
    }
    assert_eq!(ends.packets(), work.batch, "{:?} at {} bytes lost packets", work.subject, work.size);
    let rounds = times.len();
    let rated = times.finish();
    let [out, inbound] = [0, 1].map(|direction| {
        let mut all: Vec<f64> = rated.times.iter().flatten().map(|both| both[direction]).collect();
        all.sort_by(f64::total_cmp);
        quantile_sorted(&all, QUANTILE) * CHAIN_CYCLES / rated.reading
    });
    BlockResult { out, inbound, rounds }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(input: &str, slow_down: f64) -> (Result<(), BlocksError>, Vec<String>) {
        let options = Options {
            protocols: vec![Protocol::Psp],
            suites: vec!["aes128gcm16".into()],
            sizes: vec![64, 65],
            batch: 4,
            engine: Engine::Null,
        };
        let mut output = Vec::new();
        let result = serve(&options, slow_down, input.as_bytes(), &mut output);
        (result, String::from_utf8(output).expect("text").lines().map(str::to_owned).collect())
    }

    #[test]
    fn each_line_is_answered_in_order() {
        let (result, lines) = exchange("0 0\n3 0\n", 0.0);
        result.expect("good lines");
        let header: BlockHeader = serde_json::from_str(&lines[0]).expect("a header");
        assert_eq!(
            header.cases,
            [
                "psp tunnel aes128gcm16 64",
                "psp tunnel aes128gcm16 65",
                "psp transport aes128gcm16 64",
                "psp transport aes128gcm16 65"
            ]
        );
        assert_eq!(lines.len(), 3);
        let block: BlockResult = serde_json::from_str(&lines[2]).expect("an answer");
        assert!(block.rounds >= FEWEST && block.out > 0.0 && block.inbound > 0.0, "{block:?}");
    }

    #[test]
    fn what_is_no_line_ends_the_exchange() {
        for wrong in ["x", "0", "9 100", "0 -1", "0 99999999999"] {
            let (result, _) = exchange(wrong, 0.0);
            assert_eq!(
                result.expect_err("refused").to_string(),
                format!("'{wrong}' is not of the form 'CASE MICROSECONDS'")
            );
        }
    }
}
