//! `weir lab overheads`: what protection costs besides the cipher, and where.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};

use crate::host::clock::TickRate;
use crate::meter::MemorySubject;
use crate::overhead::{
    self, FixedCost, IN, LADDER, OUT, Options, Ping, STEPS, StudyError, SubjectCost, every_subject, usual_subjects,
};
use crate::pair::Subject;
use crate::trial::Direction;

/// Options of `weir lab overheads`.
#[derive(Debug, Args)]
pub struct OverheadsArgs {
    /// Only these subjects, e.g. weir-esp-tunnel-aes128gcm16 (default: the paper's suites and the
    /// usual ones)
    #[arg(long, value_delimiter = ';', value_name = "SUBJECT[;SUBJECT]")]
    subject: Vec<MemorySubject>,
    /// Table 3 for every protocol with every suite it has
    #[arg(long, conflicts_with = "subject")]
    all: bool,
    /// Inner packet sizes in bytes, 36 to 9000
    #[arg(long, value_delimiter = ',', default_values_t = [64_u16, 256, 736, 1400],
          value_parser = clap::value_parser!(u16).range(36..=9000))]
    size: Vec<u16>,
    /// Rounds per subject and size
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u16).range(3..))]
    rounds: u16,
    /// Pings per subject
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(3..=1_000_000))]
    pings: u32,
    /// Seed of order, contents and intervals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl OverheadsArgs {
    /// Measures, prints the tables, and returns the exit status.
    pub(super) fn run(self) -> ExitCode {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // Without a handler the signal simply ends us.
            let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
        }
        match self.study(&stop) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("weir: lab overheads: {error}");
                let interrupted = matches!(error.downcast_ref(), Some(StudyError::Interrupted));
                ExitCode::from(if interrupted { 130 } else { 2 })
            }
        }
    }

    /// The subjects that are taken apart, and those that are only pinged.
    fn subjects(&self) -> anyhow::Result<(Vec<Subject>, Vec<Subject>)> {
        if self.all {
            return Ok((usual_subjects(), every_subject()));
        }
        if self.subject.is_empty() {
            return Ok((usual_subjects(), usual_subjects()));
        }
        let named = self.subject.iter().map(|subject| match subject {
            MemorySubject::Path(subject) => Ok(subject.clone()),
            other => anyhow::bail!("'{other}' has no path to analyse; use weir-PROTOCOL-MODE-SUITE"),
        });
        let named: Vec<Subject> = named.collect::<Result<_, _>>()?;
        Ok((named.clone(), named))
    }

    fn study(&self, stop: &AtomicBool) -> anyhow::Result<()> {
        let options =
            Options { sizes: self.size.clone(), rounds: self.rounds.into(), seed: self.seed, ..Options::default() };
        let (taken_apart, pinged) = self.subjects()?;
        let bar = super::progress_bar();
        bar.set_length((taken_apart.len() * options.sizes.len() + pinged.len()) as u64);
        let mut rows = Vec::new();
        for subject in &taken_apart {
            rows.extend(overhead::measure(subject, &options, &mut || {
                bar.inc(1);
                !stop.load(Ordering::Relaxed)
            })?);
        }
        let mut pings = Vec::new();
        // Over IPv4 alone: the paper's ping is one.
        for subject in pinged.iter().filter(|subject| !subject.v6) {
            bar.inc(1);
            if stop.load(Ordering::Relaxed) {
                return Err(StudyError::Interrupted.into());
            }
            pings.push(overhead::ping(subject, self.pings as usize, self.seed)?);
        }
        bar.finish_and_clear();
        let fixed = overhead::fixed_costs(&rows.iter().map(Into::into).collect::<Vec<_>>());
        if self.json {
            let rate = TickRate::of_this_machine();
            let json = serde_json::json!({
                "unit": "TSC ticks per packet", "ticks": rate, "cpu": crate::host::cpu_model(),
                "kernel": crate::host::kernel(), "commit": crate::host::commit(), "rounds": self.rounds,
                "rows": rows, "pings": pings, "fixed": fixed, "steps": STEPS, "stages_out": OUT, "stages_in": IN,
            });
            println!("{}", serde_json::to_string_pretty(&json)?);
        } else {
            print_all(&rows, &pings, &fixed);
        }
        Ok(())
    }
}

fn print_all(rows: &[SubjectCost], pings: &[Ping], fixed: &[FixedCost]) {
    let rate = TickRate::of_this_machine();
    println!(
        "TSC ticks per packet at {:.3} GHz on {}; medians. A time stamp costs {:.0} ticks, which are subtracted.",
        rate.hz / 1e9,
        crate::host::cpu_model(),
        rows.first().map_or(f64::NAN, |row| row.stamp),
    );
    println!("\nAblation: cost that each step adds, and the whole path\n{}", ladder(rows));
    println!("\nTime stamps: stages, and the overhead of time stamps\n{}", stages(rows));
    println!("\nBoth methods compared: ablation / time stamps\n{}", methods(rows));
    for row in rows {
        if let Some(words) = overhead::methods_explained(&row.both_methods()) {
            println!("{} {} {} B: {words}", row.subject, way(row.direction), row.size);
        }
    }
    if !fixed.is_empty() {
        println!("\nFixed cost: line through sizes compared with the no-op path\n{}", fixed_table(fixed));
        for cost in fixed {
            if let Some(words) = cost.explanation() {
                println!("{} {}: {words}", cost.subject, way(cost.direction));
            }
        }
    }
    println!(
        "\nOne ping of {} bytes, in and out (table 3 of the paper)\n{}",
        overhead::PING_BYTES,
        table3(pings, &rate)
    );
    for ping in pings.iter().take(3) {
        println!("\nWaterfall of {}\n{}", ping.subject, waterfall(ping));
    }
}

fn way(direction: Direction) -> &'static str {
    if direction == Direction::Out { "out" } else { "in" }
}

fn table(header: Vec<String>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn head(row: &SubjectCost) -> [String; 3] {
    [row.subject.clone(), way(row.direction).to_owned(), row.size.to_string()]
}

fn ladder(rows: &[SubjectCost]) -> String {
    let names = LADDER.iter().map(|(name, _)| (*name).to_owned());
    let first = ["subject", "way", "size"].map(str::to_owned).into_iter();
    let mut table = table(first.chain(names).chain(["skeleton", "path"].map(str::to_owned)).collect());
    for row in rows {
        let added = row.added.iter().map(|(_, added)| format!("{:.0}", added.value));
        // Without the copy, which the path does not make.
        let whole = row.rungs[LADDER.len() - 2].1.value;
        let last = [format!("{whole:.0}"), format!("{:.0}", row.path.value)];
        table.add_row(head(row).into_iter().chain(added).chain(last));
    }
    table.to_string()
}

fn stages(rows: &[SubjectCost]) -> String {
    let names = OUT.iter().map(|stage| stage.key.to_owned());
    let first = ["subject", "way", "size", "receive"].map(str::to_owned).into_iter();
    let mut table = table(first.chain(names).chain(["send", "stamping"].map(str::to_owned)).collect());
    for row in rows {
        let of =
            |key: &str| row.stages.iter().find(|(name, _)| *name == key).map_or(f64::NAN, |(_, stage)| stage.value);
        let cells = OUT.iter().map(|stage| format!("{:.0}", of(stage.key)));
        let receive = format!("{:.0}", row.port[0].value);
        let last = [format!("{:.0}", row.port[1].value), format!("{:+.0}", row.probe_cost)];
        table.add_row(head(row).into_iter().chain([receive]).chain(cells).chain(last));
    }
    table.to_string()
}

fn methods(rows: &[SubjectCost]) -> String {
    let first = ["subject", "way", "size"].map(str::to_owned).into_iter();
    let names: Vec<String> = rows
        .first()
        .map(|row| row.both_methods().iter().map(|(name, ..)| (*name).to_owned()).collect())
        .unwrap_or_default();
    let mut table = table(first.chain(names).chain(["difference".to_owned()]).collect());
    for row in rows {
        let both = row.both_methods();
        let (left_out, stamped) = both.iter().fold((0.0, 0.0), |sum, (_, a, b)| (sum.0 + a, sum.1 + b));
        let cells = both.iter().map(|(_, a, b)| format!("{a:.0} / {b:.0}"));
        let difference = format!("{:+.1} %", (stamped / left_out - 1.0) * 100.0);
        table.add_row(head(row).into_iter().chain(cells).chain([difference]));
    }
    table.to_string()
}

fn fixed_table(fixed: &[FixedCost]) -> String {
    let names = ["subject", "way", "line", "skeleton", "of which engine", "difference"];
    let mut table = table(names.map(str::to_owned).into());
    for cost in fixed {
        table.add_row([
            cost.subject.clone(),
            way(cost.direction).to_owned(),
            format!("{:.0}", cost.regression),
            format!("{:.0}", cost.skeleton),
            format!("{:.0}", cost.engine),
            format!("{:+.1} %", cost.difference_percent),
        ]);
    }
    table.to_string()
}

fn table3(pings: &[Ping], rate: &TickRate) -> String {
    let names = ["subject", "native µs", "skeleton µs", "full µs", "cryptography"];
    let mut table = table(names.map(str::to_owned).into());
    let micros = |ticks: f64| format!("{:.3}", ticks * 1e6 / rate.hz);
    for ping in pings {
        table.add_row([
            ping.subject.clone(),
            micros(ping.native.value),
            micros(ping.skeleton.value),
            micros(ping.full.value),
            format!("{:.0} %", ping.crypto_share * 100.0),
        ]);
    }
    table.to_string()
}

/// Widest bar in characters.
const BAR: f64 = 48.0;

fn waterfall(ping: &Ping) -> String {
    let whole: f64 = ping.waterfall.iter().map(|fall| fall.ticks.value).sum();
    let mut at = 0.0;
    let lines = ping.waterfall.iter().map(|fall| {
        let before = (at / whole * BAR) as usize;
        at += fall.ticks.value;
        let length = ((at / whole * BAR) as usize).saturating_sub(before).max(1);
        let bar = format!("{}{}", " ".repeat(before), "#".repeat(length));
        format!(
            "  {:4} {:8} {:7.0} {:>5.1} %  {bar}",
            fall.way,
            fall.stage,
            fall.ticks.value,
            fall.ticks.value * 100.0 / whole
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}
