//! `weir lab search`: how much one subject can take.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};

use crate::meter::{
    Load, MemoryMeter, MemoryOptions, MemorySubject, Meter, MeterError, Place, PortMeter, PortOptions, ReceivePort,
    SendPort,
};
use crate::search::{self, Goal, Options, SearchResult, Step};
use crate::traffic::{Addresses, Traffic};
use crate::trial::{Direction, Lost, Measurement};

/// Options of `weir lab search`.
#[derive(Debug, Args)]
pub struct SearchArgs {
    /// Subject in memory: plain, weir-PROTOCOL-MODE-SUITE, cipher-PROTOCOL-MODE-SUITE
    #[arg(value_name = "SUBJECT", required_unless_present_all = ["from", "to"], conflicts_with_all = ["from", "to"])]
    subject: Option<MemorySubject>,
    /// Instead: send from this address of this host, ADDR or ADDR@NETNS, in real time
    #[arg(long, value_name = "ADDR[@NETNS]", requires = "to")]
    from: Option<Place>,
    /// and receive at this one; the path between them is measured
    #[arg(long, value_name = "ADDR[@NETNS]", requires = "from")]
    to: Option<Place>,
    /// Goals: rfc2544, tst009, ndr, pdr, short, or codes such as 1f21d0.5l50e
    #[arg(long, value_delimiter = ',', default_value = "short")]
    goal: Vec<Goal>,
    /// Traffic: 1400, 64..1500, imix:GENOME or pcap:FILE, with ,flows=N
    #[arg(long, default_value = "1400")]
    traffic: Traffic,
    /// Direction through the subject: out, in or both
    #[arg(long, default_value = "both", value_parser = direction)]
    direction: Direction,
    /// Packets leave with exponential gaps instead of evenly
    #[arg(long)]
    poisson: bool,
    /// Also measure the share of lost packets from the largest load down
    #[arg(long)]
    curve: bool,
    /// Also measure latency at 10, 50 and 90 % of the throughput of the last goal
    #[arg(long)]
    latency: bool,
    /// In real time, with the subject on a separate thread, instead of virtual time
    #[arg(long)]
    real_time: bool,
    /// Largest load in packets per second (default: a quarter above what comes through when
    /// saturated, more where that was no upper bound)
    #[arg(long, value_name = "PPS")]
    max_pps: Option<f64>,
    /// Most seconds of trials
    #[arg(long, value_name = "S", default_value_t = 3600.0)]
    budget: f64,
    /// Seed of sizes, gaps and contents
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn direction(name: &str) -> Result<Direction, String> {
    match name {
        "out" => Ok(Direction::Out),
        "in" => Ok(Direction::In),
        "both" => Ok(Direction::Both),
        _ => Err("expected out, in or both".to_owned()),
    }
}

/// Measurements in addition to the throughput.
#[derive(Default)]
struct Extra {
    curve: Vec<(f64, Measurement)>,
    latency: Vec<(f64, Measurement)>,
}

impl SearchArgs {
    /// Searches, prints the results, and returns the exit status.
    pub(super) fn run(self) -> ExitCode {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // Without a handler the signal simply ends us.
            let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
        }
        match self.search(stop) {
            Ok(regular) => ExitCode::from(u8::from(!regular)),
            Err(error) => {
                eprintln!("weir: lab search: {error:#}");
                let interrupted = matches!(error.downcast_ref(), Some(MeterError::Interrupted));
                ExitCode::from(if interrupted { 130 } else { 2 })
            }
        }
    }

    fn search(&self, stop: Arc<AtomicBool>) -> anyhow::Result<bool> {
        let max_pps = self.max_pps.map(|max| {
            anyhow::ensure!(max.is_finite() && max > 0.0, "--max-pps {max}: use a number above 0");
            Ok(max)
        });
        let options = Options {
            goals: self.goal.clone(),
            max_pps: max_pps.transpose()?,
            poisson: self.poisson,
            budget_s: self.budget,
            ..Options::default()
        };
        let mut meter = self.meter(stop)?;
        let meter = meter.as_mut();
        let load = Load {
            traffic: self.traffic.clone(),
            direction: self.direction,
            duration: Duration::from_millis(500),
            seed: self.seed,
        };
        let bar = super::spinner();
        let mut show = |step: Step<'_>| {
            let goal = step.goal.unwrap_or_default();
            let (kpps, loss) =
                (step.measured.sent as f64 / step.load.duration.as_secs_f64() / 1e3, step.measured.loss_ratio());
            bar.set_message(format!(
                "{goal} {kpps:.0} kpps, {:.3} % lost, {:.0} s of trials",
                loss * 100.0,
                step.spent_s
            ));
            bar.tick();
        };
        let outcome = search::search(meter, &load, &options, &mut show)?;
        let mut extra = Extra::default();
        if self.curve {
            extra.curve = search::loss_curve(meter, &load, outcome.max_pps, &mut show)?;
        }
        let throughput = outcome.found.last().and_then(|found| found.lower);
        if self.latency
            && let Some(pps) = throughput
        {
            extra.latency = search::latency(meter, &load, pps, self.poisson, &mut show)?;
        }
        bar.finish_and_clear();
        if self.json {
            println!("{}", serde_json::to_string_pretty(&self.to_json(&outcome, &extra))?);
        } else {
            println!("{}", self.table(&outcome, &extra));
        }
        Ok(outcome.found.iter().all(|found| found.irregular.is_none()))
    }

    /// System under test: a subject in memory, or the path between two addresses.
    fn meter(&self, stop: Arc<AtomicBool>) -> anyhow::Result<Box<dyn Meter>> {
        if let (Some(from), Some(to)) = (&self.from, &self.to) {
            anyhow::ensure!(from.addr.is_ipv4() == to.addr.is_ipv4(), "{from} and {to} differ in address family");
            let addresses = Addresses { src: from.addr, dst: to.addr };
            let options = PortOptions { stop, packet_bytes: 9500, ..PortOptions::default() };
            let rx = ReceivePort::open(to, from.addr)?;
            let tx = SendPort::open(from, to.addr, self.traffic.flows)?;
            let lost = Box::new(Lost::default);
            return Ok(Box::new(PortMeter::new(&self.name(), Box::new(tx), Box::new(rx), addresses, lost, options)));
        }
        let subject = self.subject.clone().context("give a subject, or --from and --to")?;
        let memory = MemoryOptions { real_time: self.real_time, stop, packet_bytes: 9500, ..MemoryOptions::default() };
        let meter = MemoryMeter::new(subject, memory).with_context(|| format!("subject '{}'", self.name()))?;
        Ok(Box::new(meter))
    }

    fn name(&self) -> String {
        match (&self.subject, &self.from, &self.to) {
            (Some(subject), ..) => subject.to_string(),
            (_, Some(from), Some(to)) => format!("{from} to {to}"),
            _ => String::new(),
        }
    }

    /// Returns whether trials are in virtual time.
    fn virtual_time(&self) -> bool {
        self.subject.is_some() && !self.real_time
    }

    fn to_json(&self, outcome: &SearchResult, extra: &Extra) -> serde_json::Value {
        let points = |points: &[(f64, Measurement)]| {
            points.iter().map(|(at, measured)| serde_json::json!({"at": at, "measured": measured})).collect::<Vec<_>>()
        };
        serde_json::json!({
            "subject": self.name(),
            "traffic": self.traffic,
            "direction": self.direction,
            "virtual_time": self.virtual_time(),
            "cpu": crate::host::cpu_model(),
            "kernel": crate::host::kernel(),
            "commit": crate::host::commit(),
            "outcome": outcome,
            "loss_curve": points(&extra.curve),
            "latency": points(&extra.latency),
        })
    }

    fn table(&self, outcome: &SearchResult, extra: &Extra) -> String {
        let time = if self.virtual_time() { "in virtual time, on one core" } else { "in real time, on a core" };
        let mut text = format!(
            "{}, traffic {}, {time} of {}; {} trials of {:.1} s in all\n",
            self.name(),
            self.traffic,
            crate::host::cpu_model(),
            outcome.trials,
            outcome.spent_s
        );
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{:.1}", value / 1e3));
        let mut table = new_table(&["goal", "code", "lower kpps", "upper kpps", "conditional kpps", ""]);
        for found in &outcome.found {
            table.add_row([
                found.goal.name.clone(),
                found.code.clone(),
                number(found.lower),
                number(found.upper),
                number(found.conditional),
                found.irregular.unwrap_or_default().to_owned(),
            ]);
        }
        text += &table.to_string();
        if let Some(pps) = outcome.saturated_pps {
            text += &format!("\nsaturated: {:.1} kpps\n", pps / 1e3);
        }
        if !extra.curve.is_empty() {
            let mut table = new_table(&["offered kpps", "lost %", "ring", "replay", "icv", "other"]);
            for (pps, measured) in &extra.curve {
                let lost = measured.lost;
                let counts = [lost.ring, lost.replay, lost.auth, lost.other].map(|count| count.to_string());
                let first = [format!("{:.1}", pps / 1e3), format!("{:.3}", measured.loss_ratio() * 100.0)];
                table.add_row(first.into_iter().chain(counts));
            }
            text += &format!("\n{table}\n");
        }
        if !extra.latency.is_empty() {
            let mut table =
                new_table(&["of throughput", "p50 µs", "p90 µs", "p99 µs", "p99.9 µs", "max µs", "packets"]);
            for (share, measured) in &extra.latency {
                let micros = |key: &str| {
                    measured.values.get(key).map_or_else(|| "-".to_owned(), |ns| format!("{:.2}", ns / 1e3))
                };
                table.add_row([
                    format!("{:.0} %", share * 100.0),
                    micros("latency_p50_ns"),
                    micros("latency_p90_ns"),
                    micros("latency_p99_ns"),
                    micros("latency_p99.9_ns"),
                    micros("latency_max_ns"),
                    measured.received.to_string(),
                ]);
            }
            text += &format!("\n{table}\n");
        }
        text
    }
}

fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
