//! The pings of the study, and their analysis.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::{Comparison, ENDS, ModesResult, Options, PERCENTILES, PingSummary, Variant};
use crate::demo::DemoError;
use crate::demo::child::{Interrupt, Running};
use crate::demo::ping::RoundTrips;
use crate::demo::relay::Tally;
use crate::demo::world::{Cable, ETHERNET, End};
use crate::stats::{Limits, Ratio, Rng, judge_all, mirrored, paired, quantile_sorted};
use crate::subject::{Subject, SubjectMeter};

/// Time between two pings in seconds: the least that users other than root may choose.
const INTERVAL: &str = "0.002";
/// Timeout of a ping after its last request.
const GRACE: Duration = Duration::from_secs(20);
/// Minimum number of replies beyond a percentile.
const BEHIND: f64 = 10.0;
/// Comparisons: A, B.
const PAIRS: [(Variant, Variant); 2] =
    [(Variant::Tunnel, Variant::Transport), (Variant::TunnelUdp, Variant::TransportUdp)];

/// Key of a cell: variant, host, size.
type Cell = (usize, usize, u16);

/// Results of the pings of one cell.
#[derive(Default)]
struct Seen {
    sent: usize,
    us: Vec<f64>,
    wire: (u64, u64),
    /// By session and round: the answers of that round.
    rounds: BTreeMap<(u32, u32), Vec<f64>>,
}

/// Runs the study with files in `dir`; `say` receives progress messages.
///
/// # Errors
/// A subject is missing or does not work, or a signal.
pub(crate) fn run(
    options: &Options,
    dir: &Path,
    interrupt: &Interrupt,
    mut say: impl FnMut(&str),
) -> Result<ModesResult, DemoError> {
    let mut seen: BTreeMap<Cell, Seen> = BTreeMap::new();
    let mut relays = Tally::default();
    for session in 0..options.sessions {
        let mut meters = Vec::new();
        for (number, variant) in Variant::ALL.into_iter().enumerate() {
            let subject: Subject = variant
                .subject(&options.suite)
                .parse()
                .map_err(|error| DemoError::Unable(format!("--suite {}: {error}", options.suite)))?;
            say(&format!("session {} of {}: starting {}", session + 1, options.sessions, variant.label()));
            let folder = dir.join(format!("{session}-{number}"));
            let delay = Duration::from_millis(options.delay_ms.into());
            let meter = SubjectMeter::start(&subject, &folder, interrupt, Cable::wire_of(delay))?;
            meters.push((meter, subject));
        }
        // Every variant occurs twice in a round, so each requested round is twice as long.
        for step in mirrored(options.seed + u64::from(session), meters.len(), options.rounds as usize) {
            let (meter, subject) = &mut meters[step.variant];
            for (host, end) in ENDS.into_iter().enumerate() {
                for &size in &options.sizes {
                    let (trips, wire) = ping(meter, subject, end, size, options, dir, interrupt)?;
                    let cell = seen.entry((step.variant, host, size)).or_default();
                    cell.sent += trips.sent;
                    cell.us.extend(&trips.us);
                    cell.wire = (cell.wire.0 + wire.0, cell.wire.1 + wire.1);
                    cell.rounds.entry((session, step.round)).or_default().extend(&trips.us);
                }
            }
            if (step.order as usize).is_multiple_of(2 * Variant::ALL.len()) {
                say(&format!(
                    "session {} of {}: round {} of {}",
                    session + 1,
                    options.sessions,
                    step.round + 1,
                    options.rounds
                ));
            }
        }
        meters.iter().filter_map(|(meter, _)| meter.world().relay.as_ref()).for_each(|relay| relays.add(relay));
    }
    let comparisons = compare(options, &seen);
    let relay = (options.delay_ms > 0).then(|| relays.punctuality());
    Ok(ModesResult { options: options.clone(), rows: rows(&seen), comparisons, relay })
}

/// Round trips of one cell, with packets and bytes that the initiating host sent on the cable for
/// them; absent if it sent other packets in between, such as multicast reports.
pub(crate) fn ping(
    meter: &mut SubjectMeter,
    subject: &Subject,
    end: End,
    size: u16,
    options: &Options,
    dir: &Path,
    interrupt: &Interrupt,
) -> Result<(RoundTrips, (u64, u64)), DemoError> {
    let world = meter.world();
    let target = subject.address(world, end.other()).to_string();
    let source = subject.address(world, end).to_string();
    let payload = (u64::from(size) - 8 - world.plan.ip_header()).to_string();
    let mut command = world.command(end, "ping");
    let count = options.count.to_string();
    // An answer comes two delays later.
    let patience = Duration::from_secs(2) + Duration::from_millis(u64::from(options.delay_ms) * 2);
    let seconds = patience.as_secs_f64().to_string();
    command.args(["-n", "-c", &count, "-i", INTERVAL, "-W", &seconds, "-s", &payload, "-I", &source, &target]);
    let before = crate::subject::cable(world, end)?;
    let mut running = Running::start(command, &dir.join("ping.txt"))?;
    running.wait(interrupt, GRACE + patience + Duration::from_millis(u64::from(options.count) * 4), || Ok(()))?;
    let sent = crate::subject::cable(world, end)?.since(before);
    meter.check()?;
    let output = running.output();
    let trips = RoundTrips::parse(size, &output).filter(|trips| !trips.us.is_empty());
    let trips = trips.ok_or_else(|| {
        DemoError::Failed(format!(
            "{subject}: no response to {size} bytes from {end}: '{}' {}",
            running.text,
            running.errors().trim()
        ))
    })?;
    // Each request is as many packets as the others.
    let alone = (trips.sent as u64) > 0 && sent.tx_packets.is_multiple_of(trips.sent as u64);
    Ok((trips, if alone { (sent.tx_packets, sent.tx_bytes) } else { (0, 0) }))
}

fn rows(seen: &BTreeMap<Cell, Seen>) -> Vec<PingSummary> {
    let row = |(cell, seen): (&Cell, &Seen)| {
        let mut us = seen.us.clone();
        us.sort_by(f64::total_cmp);
        let enough = |p: f64| us.len() as f64 * (1.0 - p) >= BEHIND;
        PingSummary {
            variant: Variant::ALL[cell.0],
            from: ENDS[cell.1].to_string(),
            size: cell.2,
            sent: seen.sent,
            received: us.len(),
            us: PERCENTILES.map(|p| enough(p).then(|| quantile_sorted(&us, p))),
            wire_bytes: (seen.wire.0 > 0).then(|| seen.wire.1 as f64 / seen.wire.0 as f64 - ETHERNET as f64),
        }
    };
    seen.iter().map(row).collect()
}

/// Logarithms of B over A by session and round.
fn ratios(a: &Seen, b: &Seen, p: f64, rng: &mut Rng) -> Option<Ratio> {
    let figure = |us: &[f64]| {
        let mut us = us.to_vec();
        us.sort_by(f64::total_cmp);
        quantile_sorted(&us, p)
    };
    let mut sessions: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (key, us) in &a.rounds {
        let Some(other) = b.rounds.get(key) else { continue };
        sessions.entry(key.0).or_default().push((figure(other) / figure(us)).ln());
    }
    paired(&sessions.into_values().collect::<Vec<_>>(), rng)
}

fn compare(options: &Options, seen: &BTreeMap<Cell, Seen>) -> Vec<Comparison> {
    let mut rng = Rng::new(options.seed);
    let at = |variant: Variant| Variant::ALL.iter().position(|v| *v == variant).expect("it is one of all");
    let margin = Some(options.margin.ln_1p());
    let mut found = Vec::new();
    for (a, b) in PAIRS {
        for host in 0..ENDS.len() {
            for &size in &options.sizes {
                for (figure, p) in [("p50", 0.5), ("p99", 0.99)] {
                    let cell = |variant| seen.get(&(at(variant), host, size));
                    let mut between = |a, b| ratios(cell(a)?, cell(b)?, p, &mut rng);
                    let noise = between(Variant::Tunnel, Variant::Again);
                    let (Some(ratio), Some(noise)) = (between(a, b), noise) else { continue };
                    found.push(((a, b, host, size, figure), ratio, Limits { floor: noise.reach(), margin }));
                }
            }
        }
    }
    let family: Vec<(&Ratio, Limits)> = found.iter().map(|(_, ratio, limits)| (ratio, *limits)).collect();
    let judged = judge_all(&family);
    let comparison = |(((a, b, host, size, figure), ratio, limits), judged): ((Name, Ratio, Limits), _)| Comparison {
        a,
        b,
        from: ENDS[host].to_string(),
        size,
        figure,
        ratio: ratio.ratio,
        floor: limits.floor.exp(),
        judged,
    };
    found.into_iter().zip(judged).map(comparison).collect()
}

/// A, B, host, size, figure.
type Name = (Variant, Variant, usize, u16, &'static str);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Verdict;

    /// Answers around `us` in each of 5 sessions of 6 rounds, with a spread of ±0.4 %.
    fn seen(us: f64, rng: &mut Rng) -> Seen {
        let mut seen = Seen { sent: 3000, wire: (3000, 3000 * 150), ..Seen::default() };
        for (session, round) in (0..5).flat_map(|s| (0..6).map(move |r| (s, r))) {
            let answers: Vec<f64> = (0..100).map(|_| us * (0.996 + 0.008 * rng.unit())).collect();
            seen.us.extend(&answers);
            seen.rounds.insert((session, round), answers);
        }
        seen
    }

    fn options() -> Options {
        Options {
            suite: "aes128gcm16".into(),
            sizes: vec![160],
            count: 50,
            rounds: 6,
            sessions: 5,
            margin: 0.05,
            delay_ms: 0,
            seed: 1,
        }
    }

    fn verdicts(transport: f64, again: f64) -> Vec<Verdict> {
        let mut rng = Rng::new(3);
        let mut all = BTreeMap::new();
        for (number, us) in [50.0, 100.0, again, transport, 100.0, transport].into_iter().enumerate() {
            for host in 0..2 {
                all.insert((number, host, 160), seen(us, &mut rng));
            }
        }
        compare(&options(), &all).into_iter().map(|comparison| comparison.judged.verdict).collect()
    }

    #[test]
    fn a_small_difference_is_equivalent_a_large_one_different_and_noise_decides_nothing() {
        assert_eq!(verdicts(101.0, 100.0), [Verdict::Equivalent; 8]);
        assert_eq!(verdicts(120.0, 100.0), [Verdict::Different; 8]);
        // A variant that differs from itself by more than that is inconclusive.
        assert_eq!(verdicts(104.0, 110.0), [Verdict::Inconclusive; 8]);
    }

    #[test]
    fn rare_percentiles_need_answers_behind_them() {
        let mut rng = Rng::new(3);
        let all = rows(&[((1, 0, 160), seen(100.0, &mut rng))].into());
        assert_eq!((all[0].received, all[0].us[2].is_some(), all[0].us[3]), (3000, true, None));
        assert_eq!(all[0].wire_bytes, Some(136.0));
    }
}
