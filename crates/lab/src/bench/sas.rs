//! Many SAs: ticks per packet and memory by their number, with stored and with derived keys.
//!
//! Setting up and taking down a million SAs with stored keys takes 7 GB and most of the time. If
//! all protocols together would fill more than half of the free memory, they are measured one after
//! the other in separate processes: the memory of such a process is that of its SAs, and all of it
//! is freed at its end.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use crypto::Engine;
use ipsec::Protocol;

use crate::host;
use crate::many::{Many, ManyError, need_bytes};
use crate::pair::{Shape, Subject};
use crate::stats::{Estimate, Rng, median_with_interval, mirrored};
use crate::trial::Direction;

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct SasOptions {
    /// Protocols: ESP, AH and EESP store a key for each SA, a receiver of PSP derives it.
    pub protocols: Vec<Protocol>,
    /// Suite; AH has another for itself.
    pub suite: String,
    /// Numbers of SAs.
    pub sas: Vec<u32>,
    /// Inner packet in bytes.
    pub size: usize,
    /// Timed rounds of each case.
    pub rounds: usize,
    /// Time of the subject in each round.
    pub round: Duration,
    /// Packets per batch.
    pub batch: usize,
    /// Engine of both ends.
    pub engine: Engine,
    /// Seed of order and intervals.
    pub seed: u64,
}

/// One protocol with so many SAs.
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
pub struct SasOutcome {
    /// Protocol.
    pub protocol: String,
    /// True if the receiver derives keys instead of storing them.
    pub derives: bool,
    /// SAs.
    pub sas: u32,
    /// True if it was measured in a separate process, because all protocols together would have
    /// exceeded the memory.
    pub apart: bool,
    /// Reason why a measurement failed.
    pub missing: Option<String>,
    /// Ticks per packet, protecting.
    pub out: Option<Estimate>,
    /// Ticks per packet, opening.
    pub inbound: Option<Estimate>,
    /// Bytes of memory that an SA takes at sender and receiver; `None` for fewer than tell.
    pub each_bytes: Option<[f64; 2]>,
}

/// Progress.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SasStep {
    /// Completed cases.
    pub done: usize,
    /// Cases in all.
    pub total: usize,
    /// SAs of the case in hand.
    pub sas: u32,
    /// Current step, as text.
    pub doing: String,
}

/// Measures every protocol with every number. `progress` is called before each slow step, `alone`
/// to measure one protocol with one number in a separate process.
///
/// # Errors
/// An unknown suite, or a packet that came out wrong. Those of `alone`.
pub fn run(
    options: &SasOptions,
    alone: &mut dyn FnMut(Protocol, u32) -> anyhow::Result<SasOutcome>,
    progress: &mut dyn FnMut(&SasStep),
) -> anyhow::Result<Vec<SasOutcome>> {
    let total = options.sas.len() * options.protocols.len();
    let mut rng = Rng::new(options.seed);
    let mut outcomes = Vec::new();
    for &sas in &options.sas {
        if fit_together(sas, options.protocols.len(), host::available_bytes()) {
            let mut tell = |done, doing| progress(&SasStep { done: outcomes.len() + done, total, sas, doing });
            let measured = measure(options, sas, &mut rng, &mut tell)?;
            outcomes.extend(measured);
            continue;
        }
        for &protocol in &options.protocols {
            let doing = format!("{}: {sas} SAs in a separate process", protocol.name());
            progress(&SasStep { done: outcomes.len(), total, sas, doing });
            outcomes.push(SasOutcome { apart: true, ..alone(protocol, sas)? });
        }
    }
    Ok(outcomes)
}

/// Returns whether the SAs of all `protocols` together fit into half of the free memory.
fn fit_together(sas: u32, protocols: usize, free_bytes: u64) -> bool {
    protocols < 2 || need_bytes(sas) * protocols as u64 <= free_bytes / 2
}

/// Measures all protocols with one number of SAs, interleaved in each round, so that other load of
/// the machine affects all equally.
fn measure(
    options: &SasOptions,
    sas: u32,
    rng: &mut Rng,
    tell: &mut dyn FnMut(usize, String),
) -> anyhow::Result<Vec<SasOutcome>> {
    let mut open = Vec::new();
    for &protocol in &options.protocols {
        tell(open.len(), format!("{}: setting up {sas} SAs", protocol.name()));
        let suite = if protocol == Protocol::Ah { "sha256" } else { &options.suite };
        let subject = Subject::new(protocol, Shape::Tunnel, suite, options.engine);
        open.push((protocol, refused(Many::new(&subject, sas, options.batch))?));
    }
    let names: Vec<&str> = options.protocols.iter().map(|protocol| protocol.name()).collect();
    tell(0, format!("{}: measuring {sas} SAs", names.join(", ")));
    let mut ticks = vec![[vec![], vec![]]; open.len()];
    for step in mirrored(rng.next_u64(), open.len(), options.rounds.div_ceil(2)) {
        let (protocol, Ok(many)) = &mut open[step.variant] else { continue };
        for (way, direction) in [Direction::Out, Direction::In].into_iter().enumerate() {
            let measured = many.trial(direction, options.size, options.round);
            let measured = measured.map_err(|why| anyhow::anyhow!("{}, {sas} SAs: {why}", protocol.name()))?;
            ticks[step.variant][way].push(measured.values["ticks_median"]);
        }
    }
    tell(open.len(), format!("{}: taking down {sas} SAs", names.join(", ")));
    let outcomes = open.into_iter().zip(ticks).map(|((protocol, many), ticks)| {
        let [out, inbound] = ticks.map(|ticks| (!ticks.is_empty()).then(|| median_with_interval(&ticks, rng)));
        SasOutcome {
            protocol: protocol.name().to_owned(),
            derives: protocol == Protocol::Psp,
            sas,
            apart: false,
            out,
            inbound,
            each_bytes: many.as_ref().ok().and_then(Many::each_bytes),
            missing: many.err(),
        }
    });
    Ok(outcomes.collect())
}

/// A case that exceeds the memory is missing; every other failure is an error.
fn refused(many: Result<Many, ManyError>) -> anyhow::Result<Result<Many, String>> {
    match many {
        Ok(many) => Ok(Ok(many)),
        Err(error @ ManyError::Memory { .. }) => Ok(Err(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// From how many SAs on a derived key costs a receiver less than a stored one; `None` when that is
/// never so, or only one kind was measured.
pub fn sas_crossover(outcomes: &[SasOutcome]) -> Option<u32> {
    let ticks = |protocol: &str, sas: u32| {
        let found = outcomes.iter().find(|outcome| outcome.protocol == protocol && outcome.sas == sas)?;
        found.inbound.map(|ticks| ticks.value)
    };
    let mut numbers: Vec<u32> = outcomes.iter().map(|outcome| outcome.sas).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let cheaper = |sas: &u32| matches!((ticks("psp", *sas), ticks("esp", *sas)), (Some(a), Some(b)) if a < b);
    let both = |sas: &u32| ticks("psp", *sas).is_some() && ticks("esp", *sas).is_some();
    numbers.into_iter().rev().filter(both).take_while(cheaper).last()
}

/// The table for people.
pub fn sas_table(outcomes: &[SasOutcome]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "SAs",
        "protocol",
        "receiver's keys",
        "out ticks",
        "95 %",
        "in ticks",
        "95 %",
        "sender B",
        "receiver B",
    ]);
    let mut reasons = String::new();
    for outcome in outcomes {
        let keys = if outcome.derives { "derived" } else { "stored" };
        if let Some(why) = &outcome.missing {
            reasons += &format!("\nnot measured: {}: {why}", outcome.protocol);
        }
        let none = || ["-".to_owned(), "-".to_owned()];
        let ticks = |ticks: Option<Estimate>| {
            ticks.map_or_else(none, |t| [format!("{:.0}", t.value), format!("{:.0}-{:.0}", t.low, t.high)])
        };
        let [out, out_spread]: [String; 2] = ticks(outcome.out);
        let [inbound, in_spread]: [String; 2] = ticks(outcome.inbound);
        let bytes = outcome.each_bytes.map(|each| each.map(|bytes| format!("{bytes:.0}")));
        let [sender, receiver] = bytes.unwrap_or_else(none);
        let first = [outcome.sas.to_string(), outcome.protocol.clone(), keys.to_owned()];
        table.add_row(first.into_iter().chain([out, out_spread, inbound, in_spread, sender, receiver]));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    for column in [0, 3, 4, 5, 6, 7, 8] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let said = match sas_crossover(outcomes) {
        Some(sas) => format!("\nderived keys of a receiver (psp) are cheaper than stored ones (esp) from {sas} SAs on"),
        None => String::new(),
    };
    let mut apart: Vec<String> = outcomes.iter().filter(|one| one.apart).map(|one| one.sas.to_string()).collect();
    apart.dedup();
    let apart = match apart.is_empty() {
        true => String::new(),
        false => {
            format!(
                "\n{} SAs: each protocol in a separate process, because all together would exceed the memory",
                apart.join(", ")
            )
        }
    };
    format!("{table}{reasons}{said}{apart}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::assert_narrow;

    fn outcome(protocol: &str, sas: u32, ticks: f64) -> SasOutcome {
        let inbound = Some(Estimate { value: ticks, low: ticks, high: ticks });
        let derives = protocol == "psp";
        SasOutcome {
            protocol: protocol.to_owned(),
            derives,
            sas,
            apart: false,
            missing: None,
            out: inbound,
            inbound,
            each_bytes: None,
        }
    }

    #[test]
    fn a_crossover_holds_from_there_on() {
        let rows = |psp: [f64; 3]| -> Vec<SasOutcome> {
            let esp = [500.0, 700.0, 1500.0];
            let numbers = [1, 1000, 1_000_000];
            numbers
                .iter()
                .enumerate()
                .flat_map(|(at, sas)| [outcome("esp", *sas, esp[at]), outcome("psp", *sas, psp[at])])
                .collect()
        };
        assert_eq!(sas_crossover(&rows([600.0, 900.0, 1200.0])), Some(1_000_000));
        assert_eq!(sas_crossover(&rows([400.0, 900.0, 1200.0])), Some(1_000_000), "one alone is none");
        assert_eq!(sas_crossover(&rows([400.0, 600.0, 1200.0])), Some(1));
        assert_eq!(sas_crossover(&rows([400.0, 600.0, 1800.0])), None);
        assert!(sas_table(&rows([600.0, 900.0, 1200.0])).contains("from 1000000 SAs on"));
    }

    #[test]
    fn a_table_is_narrow_and_reasons_stand_below_it() {
        let ticks = Some(Estimate { value: 12_345.0, low: 10_123.0, high: 15_678.0 });
        let each_bytes = Some([3495.0, 3353.0]);
        let large = SasOutcome { out: ticks, inbound: ticks, each_bytes, ..outcome("eesp", 1_000_000, 1.0) };
        let missing = Some("1000000 SAs may take 7812 MiB at both ends and 900 MiB are free: ask for fewer".to_owned());
        let absent = SasOutcome { missing, out: None, inbound: None, ..outcome("psp", 1_000_000, 1.0) };
        let text = sas_table(&[large, absent]);
        assert_narrow(&text);
        assert!(text.contains("\nnot measured: psp: 1000000 SAs may"), "{text}");
    }

    #[test]
    fn what_would_fill_the_memory_together_is_measured_apart() {
        let gib = |n: u64| n << 30;
        assert!(fit_together(100_000, 3, gib(8)) && fit_together(1_000_000, 3, gib(64)));
        assert!(!fit_together(1_000_000, 3, gib(24)) && !fit_together(1_000_000, 2, gib(24)));
        assert!(fit_together(1_000_000, 1, gib(1)), "alone it is apart already, and refused if it does not fit");
        let apart = |sas| SasOutcome { apart: true, ..outcome("esp", sas, 1.0) };
        let text = sas_table(&[outcome("esp", 10, 1.0), apart(500), apart(500), apart(1000)]);
        assert!(text.contains("\n500, 1000 SAs: each protocol in a separate process"), "{text}");
    }

    #[test]
    fn a_small_run_has_a_row_for_each_case() {
        let options = SasOptions {
            protocols: vec![Protocol::Esp, Protocol::Ah, Protocol::Psp],
            suite: "aes128gcm16".into(),
            sas: vec![1, 100],
            size: 64,
            rounds: 4,
            round: Duration::from_millis(1),
            batch: 64,
            engine: Engine::best(),
            seed: 1,
        };
        let mut nowhere = |_, _| anyhow::bail!("so few are never alone");
        let mut steps = vec![];
        let outcomes = run(&options, &mut nowhere, &mut |step| steps.push((step.done, step.doing.clone()))).unwrap();
        assert_eq!(outcomes.len(), 6);
        assert_eq!(steps[..2], [(0, "esp: setting up 1 SAs".to_owned()), (1, "ah: setting up 1 SAs".to_owned())]);
        assert_eq!(steps[9], (6, "esp, ah, psp: taking down 100 SAs".to_owned()));
        assert!(outcomes.iter().all(|outcome| outcome.inbound.is_some_and(|ticks| ticks.value > 0.0)));
        let wrong = SasOptions { suite: "aes1".into(), ..options };
        assert!(run(&wrong, &mut nowhere, &mut |_| ()).is_err());
    }
}
