//! `weir lab model`: fits, judges and explains the throughput model, and recomputes the paper it
//! comes from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use comfy_table::{ContentArrangement, LineStyle, Table, presets};
use crypto::Engine;
use ipsec::Protocol;

use super::model_run;
use crate::campaign::{Campaign, Kind};
use crate::model::{
    Calibration, CostPlan, Machine, Profile, Selection, Validation, calibrate, default_size_fn, layout_of,
    measure_cost, read_measurements, read_run_folder, subject_layout, validate,
};
use crate::trial::Direction;
use stats::Rng;
use testbed::pair::{Shape, Subject};
use throughput::{
    Basis, Candidate, CostTable, Curve, Errors, Family, Form, Interval, Layout, ROUNDINGS, Rounding, SizeFn, Standing,
    Verdict, Verification, Work, fit_asynchronous, pipeline, verify_paper,
};

/// `weir lab model`.
#[derive(Debug, Subcommand)]
pub enum Model {
    /// Recompute Tables 1 to 8 of the paper that the model comes from
    ///
    /// Prints every printed number beside what follows from the paper's own inputs, the size
    /// function, and a verdict.
    #[command(after_help = "Example:\n  weir lab model verify-paper\n\n\
        Exit status: 0 the audit is reproduced, 1 it is not.")]
    VerifyPaper(Json),
    /// List the size functions: how many bytes are worked on for a packet of L bytes
    #[command(after_help = "Example:\n  weir lab model sizes --protocol esp --suite aes128gcm16 --length 64,1400")]
    Sizes(SizesArgs),
    /// Measure what the cipher alone costs, for fit --cost-table
    #[command(after_help = "Example:\n  weir lab model cost aes128gcm16 --out aes128gcm16.csv")]
    Cost(CostArgs),
    /// Fit a profile to measured sizes and times
    ///
    /// For a results directory every variant of its 'sizes' studies is fitted, with the run's
    /// cipher times; sizes of 'validate' studies are held out. Otherwise FILE is trials.jsonl, or
    /// CSV with the columns size (bytes of the inner packet) and one of time_ns, time_us, time_ms,
    /// mbps, gbps, pps, mpps; optionally weight, session, round.
    #[command(
        after_help = "Examples:\n  weir lab run --preset model --out model-out && weir lab model fit model-out\n  \
        weir lab model fit model-out --subject weir-esp-tunnel-aes128gcm16 --direction out --out esp.toml\n  \
        weir lab model fit times.csv --sizes s2-esp16 --out old.toml\n  \
        weir lab model fit lab-out --cost-table aes128gcm16.csv --out esp.toml\n\n\
        Exit status: 0 fitted, 1 fitted but no better than the two-point line, 2 no fit possible."
    )]
    Fit(FitArgs),
    /// Judge profiles by measurements that were not used to fit them
    ///
    /// For a results directory: validates its profiles with its 'validate' studies, which run in
    /// separate sessions, or with those of another run; also with packets of 9000 bytes, mixes,
    /// cores and latency, if the run has them.
    #[command(after_help = "Examples:\n  weir lab model validate model-out\n  \
        weir lab model validate model-out other-day --subject weir-esp-tunnel-aes128gcm16 --strict\n  \
        weir lab model validate esp.toml other-day/trials.jsonl\n\n\
        Exit status: 0 accepted, 1 not accepted, 2 no verdict possible.")]
    Validate(ValidateArgs),
    /// Fit the asynchronous form: a processor and an engine that work at the same time, and their
    /// breakpoint
    #[command(after_help = "Example:\n  weir lab model engine offload.csv --sizes s2-esp16 --ring 64")]
    Engine(EngineArgs),
}

/// Options of `weir lab model engine`.
#[derive(Debug, Args)]
pub struct EngineArgs {
    /// Measurements, as for fit
    file: PathBuf,
    /// Subject, where the file has several
    #[arg(long)]
    subject: Option<String>,
    /// Direction, where the file has several
    #[arg(long, value_parser = direction)]
    direction: Option<Direction>,
    /// Size function (weir lab model sizes)
    #[arg(long, value_name = "NAME")]
    sizes: Option<String>,
    #[command(flatten)]
    protection: Protection,
    /// Packets that fit between processor and engine: what it costs is simulated with exponential
    /// times
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    ring: u32,
}

/// `--json` alone.
#[derive(Debug, Args)]
pub struct Json {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A configuration of a protocol.
#[derive(Debug, Args)]
pub(super) struct Protection {
    /// Protocol: esp, ah, eesp or psp
    #[arg(long, value_parser = super::protocol)]
    protocol: Option<Protocol>,
    /// tunnel, transport or beet
    #[arg(long, value_enum, default_value_t = ModeName::Tunnel)]
    mode: ModeName,
    /// Suite, as in a configuration
    #[arg(long)]
    suite: Option<String>,
}

/// Modes on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(missing_docs)]
pub(super) enum ModeName {
    Tunnel,
    Transport,
    Beet,
}

impl ModeName {
    fn shape(self) -> Shape {
        match self {
            Self::Tunnel => Shape::Tunnel,
            Self::Transport => Shape::Transport,
            Self::Beet => Shape::Beet,
        }
    }
}

impl Protection {
    /// Returns whether no option is set.
    fn is_none(&self) -> bool {
        self.protocol.is_none() && self.suite.is_none()
    }

    /// Layout on the wire; `None` if neither protocol nor suite is given.
    pub(super) fn layout(&self) -> Result<Option<Layout>, String> {
        let (protocol, suite) = match (self.protocol, &self.suite) {
            (None, None) => return Ok(None),
            (Some(protocol), Some(suite)) => (protocol, suite),
            _ => return Err("--protocol and --suite go together".into()),
        };
        layout(protocol, self.mode.shape(), suite).map(Some)
    }
}

fn layout(protocol: Protocol, shape: Shape, suite: &str) -> Result<Layout, String> {
    subject_layout(&Subject::new(protocol, shape, suite, Engine::best()))
        .ok_or_else(|| format!("{} does not support the suite '{suite}'", protocol.name()))
}

/// Options of `weir lab model sizes`.
#[derive(Debug, Args)]
pub struct SizesArgs {
    #[command(flatten)]
    protection: Protection,
    /// Inner packets in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [64, 128, 512, 1280, 1420], value_parser = clap::value_parser!(u16).range(20..))]
    length: Vec<u16>,
}

/// Options of `weir lab model cost`.
#[derive(Debug, Args)]
pub struct CostArgs {
    /// Suite of ESP
    suite: String,
    /// Largest length in bytes
    #[arg(long, default_value_t = 1536, value_parser = clap::value_parser!(u32).range(64..=9000))]
    max: u32,
    /// Step between lengths in bytes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    step: u32,
    /// Rounds over all lengths, in random order each; the lowest tenth counts
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u32).range(3..=1001))]
    rounds: u32,
    /// Time opening instead of sealing
    #[arg(long)]
    opening: bool,
    /// File to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Options of `weir lab model fit`.
#[derive(Debug, Args)]
pub struct FitArgs {
    /// Measurements: the folder of a run, trials.jsonl, or CSV
    pub(super) file: PathBuf,
    /// Subject, where there are several; may be given again for the folder of a run
    #[arg(long)]
    pub(super) subject: Vec<String>,
    /// Direction, where there are several
    #[arg(long, value_parser = direction)]
    pub(super) direction: Option<Direction>,
    /// Only these sessions of the file
    #[arg(long, value_delimiter = ',')]
    sessions: Vec<u32>,
    /// Size function (weir lab model sizes); default: bytes through the cipher where the protocol
    /// is known, else the packet
    #[arg(long, value_name = "NAME")]
    sizes: Option<String>,
    #[command(flatten)]
    protection: Protection,
    /// Cost of the cipher alone, from weir lab model cost
    #[arg(long, value_name = "FILE")]
    pub(super) cost_table: Option<PathBuf>,
    /// Form to use instead of the one with the least error at left-out sizes
    #[arg(long, value_enum)]
    pub(super) form: Option<FormName>,
    /// Profile to write; for the folder of a run a folder (default: profiles in it)
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Forms on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(missing_docs)]
pub(super) enum FormName {
    Line,
    Blocks,
    Stride,
    Regimes,
    Spline,
    Crypto,
}

impl FormName {
    pub(super) fn family(self) -> Family {
        match self {
            Self::Line => Family::Line,
            Self::Blocks => Family::Blocks,
            Self::Stride => Family::Stride,
            Self::Regimes => Family::Regimes,
            Self::Spline => Family::Spline,
            Self::Crypto => Family::Crypto,
        }
    }
}

/// Options of `weir lab model validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// A profile; or a folder of profiles, or of a run with profiles
    #[arg(value_name = "PROFILE|DIR")]
    pub(super) profile: PathBuf,
    /// Measurements at other sizes, in other sessions (default: the run in the folder)
    pub(super) trials: Option<PathBuf>,
    /// Only this subject of a folder; may be given again
    #[arg(long)]
    pub(super) subject: Vec<String>,
    /// Only this direction of a folder
    #[arg(long, value_parser = direction)]
    pub(super) direction: Option<Direction>,
    /// Only these sessions of a file
    #[arg(long, value_delimiter = ',')]
    sessions: Vec<u32>,
    /// Require the limits beyond sizes as well: large packets, mixes, cores, latency
    #[arg(long)]
    pub(super) strict: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

fn direction(name: &str) -> Result<Direction, String> {
    match name {
        "out" => Ok(Direction::Out),
        "in" => Ok(Direction::In),
        "both" => Ok(Direction::Both),
        _ => Err("expected out, in or both".to_owned()),
    }
}

/// Nothing could be done: status 2.
pub(super) const REFUSED: u8 = 2;

impl Model {
    /// Runs the command, prints errors, and returns the exit status.
    pub fn run(self) -> ExitCode {
        let outcome = match self {
            Self::VerifyPaper(args) => verify(args.json),
            Self::Sizes(args) => sizes(&args),
            Self::Cost(args) => cost(&args),
            Self::Fit(args) => fit(&args),
            Self::Validate(args) => judge(&args),
            Self::Engine(args) => engine(&args),
        };
        match outcome {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("weir: model: {error}");
                ExitCode::from(REFUSED)
            }
        }
    }
}

/// Columns of a terminal that a table may take.
pub(super) const WIDTH: u16 = 100;

/// A table as all commands of the model print it.
pub(super) fn table(header: &[&str]) -> Table {
    let style = presets::UTF8_HORIZONTAL_ONLY;
    let mut table = Table::new();
    table.load_style(style.header_separator(style.top_border).row_separator(LineStyle::none()));
    table.set_header(header.iter().copied());
    table
}

/// `value` with enough digits to distinguish it from others.
pub(super) fn digits(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "unlimited".into(),
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        v if v >= 1.0 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

pub(super) fn json(value: &impl serde::Serialize) -> Result<(), String> {
    println!("{}", serde_json::to_string_pretty(value).map_err(|e| e.to_string())?);
    Ok(())
}

fn verify(as_json: bool) -> Result<bool, String> {
    let verification = verify_paper();
    if as_json {
        json(&verification)?;
    } else {
        print!("{}", verification_text(&verification));
    }
    for unexpected in &verification.unexpected {
        eprintln!("weir: model: unexpected: {unexpected}");
    }
    Ok(verification.unexpected.is_empty())
}

/// The whole recomputation as text.
fn verification_text(v: &Verification) -> String {
    let mut text = String::new();
    let mut by_table: BTreeMap<u8, Vec<_>> = BTreeMap::new();
    for check in &v.checks {
        by_table.entry(check.table).or_default().push(check);
    }
    for (number, checks) in by_table {
        let mut rows =
            table(&["system", "quantity", "printed", "recomputed", "inputs allow", "size function", "verdict"]);
        for check in &checks {
            let Interval { value, low, high } = check.ours;
            // One digit more than is printed.
            let decimals = check.printed.split_once('.').map_or(0, |(_, d)| d.len()) + 1;
            let fixed = |value: f64| format!("{value:.decimals$}");
            let range = if low < high { format!("{} to {}", fixed(low), fixed(high)) } else { String::new() };
            let size_fn = match check.also.len() {
                0 | 1 => check.size_fn.clone(),
                n => format!("{} (and {} more)", check.size_fn, n - 1),
            };
            rows.add_row([
                check.system,
                &check.what,
                check.printed,
                &digits(value),
                &range,
                &size_fn,
                check.verdict.name(),
            ]);
        }
        text += &format!("Table {number}\n{rows}\n");
        for check in checks.iter().filter(|c| c.note.is_some()) {
            text += &format!("  {}, {}: {}\n", check.system, check.what, check.note.unwrap_or_default());
        }
        text.push('\n');
    }
    let mut rows = table(&[
        "system",
        "size function",
        "two-point max %",
        "t_fix us",
        "R_alg Mbps",
        "least squares max %",
        "left-out max %",
        "signs",
    ]);
    for r in &v.regressions {
        let percent = |value: f64| format!("{value:.2}");
        rows.add_row([
            r.system.clone(),
            r.size_fn.clone(),
            percent(r.two_point_max_percent),
            digits(r.line.fixed_ns / 1e3),
            digits(r.line.rate_mbps),
            percent(r.max_percent),
            percent(r.left_out_max_percent),
            r.two_point_signs.clone(),
        ]);
    }
    text += &format!("All sizes, weighted least squares on relative error\n{rows}\n");
    let times: Vec<String> = v.falling_times_us.iter().map(|t| format!("{t:.2}")).collect();
    text += &format!(
        "  {} of 7 suites of Table 2 are slower than predicted at 1420 B and faster at 512 B: curvature, not noise.\n  \
         64 bits more of AES key cost {:.1} and {:.1} us.\n  \
         Table 7 below its breakpoint: {} us; the model has one time for all.\n\n",
        v.curved_suites,
        v.key_step_us[0],
        v.key_step_us[1],
        times.join(", ")
    );
    let mut rows = table(&["", "equation", "", "note"]);
    for e in v.equations {
        let standing = if e.standing == Standing::Corrected { "corrected" } else { "" };
        rows.add_row([e.number.to_string().as_str(), e.printed, standing, e.note]);
    }
    text += &format!("Equations\n{rows}\n");
    let count = |verdict| v.checks.iter().filter(|c| c.verdict == verdict).count();
    text += &format!(
        "{} printed numbers: {} reproduced, {} within the rounding of their inputs, {} do not follow.\n",
        v.checks.len(),
        count(Verdict::Reproduces),
        count(Verdict::WithinRounding),
        count(Verdict::Differs)
    );
    text
}

fn sizes(args: &SizesArgs) -> Result<bool, String> {
    let lengths: Vec<f64> = args.length.iter().map(|l| f64::from(*l)).collect();
    let heads: Vec<String> = lengths.iter().map(|l| format!("{l} B")).collect();
    let mut header = vec!["name", "what"];
    header.extend(heads.iter().map(String::as_str));
    let mut rows = table(&header);
    let line = |name: String, what: &str, bytes: &dyn Fn(f64) -> f64| {
        let mut cells = vec![name, what.to_owned()];
        cells.extend(lengths.iter().map(|l| bytes(*l).to_string()));
        cells
    };
    if let Some(layout) = args.protection.layout()? {
        for (name, work, what) in [
            ("weir-cipher/1", Work::Cipher, "bytes through the cipher"),
            ("weir-auth/1", Work::Auth, "bytes under the ICV"),
            ("weir-wire/1", Work::Wire, "IP packet that leaves"),
        ] {
            rows.add_row(line(name.to_owned(), what, &|l| layout.bytes(work, l)));
        }
    }
    for r in ROUNDINGS {
        rows.add_row(line(r.id(), r.what, &|l| r.bytes(l)));
    }
    println!("{rows}");
    Ok(true)
}

fn cost(args: &CostArgs) -> Result<bool, String> {
    let lengths: Vec<usize> = (args.step..=args.max).step_by(args.step as usize).map(|l| l as usize).collect();
    let bar = super::progress_bar();
    let plan = CostPlan { suite: &args.suite, opens: args.opening, lengths: &lengths, rounds: args.rounds as usize };
    let (table, _) =
        measure_cost(plan, &mut |done, total| bar.at(done as u64, total as u64)).map_err(|e| e.to_string())?;
    bar.finish();
    let mut text = format!(
        "# {} alone on {}, {}, nanoseconds\nsize,time_ns\n",
        table.suite,
        crate::host::cpu_model(),
        if args.opening { "open" } else { "seal" }
    );
    for (bytes, ns) in table.points() {
        text += &format!("{bytes},{ns:.3}\n");
    }
    std::fs::write(&args.out, text).map_err(|e| format!("cannot write {}: {e}", args.out.display()))?;
    println!("{} lengths to {} bytes in {}", table.points().len(), args.max, args.out.display());
    Ok(true)
}

pub(super) fn read_cost(path: &Path, suite: &str) -> Result<CostTable, String> {
    let read = read_measurements(path, &Selection::default()).map_err(|e| e.to_string())?;
    let points = read.rows.iter().map(|m| (m.sample.size, m.sample.time_ns)).collect();
    CostTable::new(suite, points).map_err(|e| format!("{}: {e}", path.display()))
}

fn fit(args: &FitArgs) -> Result<bool, String> {
    let plain = args.sizes.is_none() && args.protection.is_none() && args.sessions.is_empty();
    if let (true, Some(run)) = (plain, model_run::Run::read(&args.file)?) {
        return model_run::fit(args, &run);
    }
    if args.subject.len() > 1 {
        return Err("--subject may be repeated only for a results directory".into());
    }
    let subject = args.subject.first().cloned();
    let studies = studies(&args.file, Kind::Sizes)?;
    let selection = Selection { subject, direction: args.direction, sessions: args.sessions.clone(), studies };
    let measurements = read_measurements(&args.file, &selection).map_err(|e| e.to_string())?;
    for note in &measurements.notes {
        eprintln!("weir: model: note: {note}");
    }
    let layout = args.protection.layout()?.or_else(|| layout_of(&measurements.identity));
    let suite = args.protection.suite.as_deref().unwrap_or(&measurements.identity.suite);
    let cost = args.cost_table.as_deref().map(|path| read_cost(path, suite)).transpose()?;
    let basis = Basis { size_fn: size_fn(args.sizes.as_deref(), layout.as_ref())?, cost };
    let machine = Machine {
        cpu: crate::host::cpu_model(),
        tsc_hz: ports::clock::ticks_per_second(),
        commit: crate::host::commit(),
    };
    let family = args.form.map(FormName::family);
    let calibration = calibrate(&measurements, basis, layout, machine, family).map_err(|e| e.to_string())?;
    let profile = &calibration.profile;
    if args.json {
        json(&serde_json::json!({
            "profile": profile,
            "candidates": calibration.candidates.iter().map(candidate_json).collect::<Vec<_>>(),
            "baselines": calibration.baselines,
            "residuals_percent": calibration.residuals,
            "sign_runs": calibration.runs,
        }))?;
    } else {
        print!("{}", calibration_text(&calibration));
    }
    if let Some(out) = &args.out {
        profile.save(out).map_err(|e| e.to_string())?;
        eprintln!("weir: model: profile in {}, sha256 {}", out.display(), &profile.hash[..16]);
    }
    if !profile.beats_two_point() {
        eprintln!(
            "weir: model: no better than the two-point line at held-out sizes; do not use it for more than that line"
        );
    }
    Ok(profile.beats_two_point())
}

/// Names of the studies of a kind in the folder of a run; none where it has none, or is no such
/// folder.
fn studies(path: &Path, kind: Kind) -> Result<Vec<String>, String> {
    let run = if path.is_dir() { read_run_folder(path).map_err(|e| e.to_string())? } else { None };
    let of = |(campaign, ..): (Campaign, _, _)| {
        campaign.studies.into_iter().filter(|s| s.kind == kind).map(|s| s.name).collect()
    };
    Ok(run.map(of).unwrap_or_default())
}

fn size_fn(name: Option<&str>, layout: Option<&Layout>) -> Result<SizeFn, String> {
    let of = |work, layout: &Layout| SizeFn::Layout { work, layout: layout.clone() };
    match (name, layout) {
        (None, layout) => Ok(default_size_fn(layout)),
        (Some(name), _) if name.starts_with("weir-") => {
            let layout = layout.ok_or("this size function needs --protocol and --suite")?;
            let works = [Work::Cipher, Work::Auth, Work::Wire];
            let found = works
                .into_iter()
                .find(|work| of(*work, layout).id().trim_end_matches("/1") == name.trim_end_matches("/1"));
            found.map(|work| of(work, layout)).ok_or_else(|| format!("unknown size function '{name}'"))
        }
        (Some(name), _) => Rounding::by_name(name)
            .map(|r| SizeFn::Rounding(r.id()))
            .ok_or_else(|| format!("unknown size function '{name}'; weir lab model sizes lists them")),
    }
}

fn candidate_json(c: &Candidate) -> serde_json::Value {
    serde_json::json!({
        "form": c.fitted.family, "parameters": c.fitted.parameters, "held_out": c.held_out,
        "aicc": if c.aicc.is_finite() { Some(c.aicc) } else { None },
    })
}

fn parameters_text(calibration: &Calibration) -> String {
    let profile = &calibration.profile;
    let Curve::Linear { form, fit } = &profile.fitted.curve else {
        return format!("  monotone spline through {} sizes\n", profile.fitted.parameters);
    };
    let names: &[&str] = match form {
        Form::Line => &["fixed, ns", "per byte, ns"],
        Form::Blocks { .. } => &["fixed, ns", "per byte of whole blocks, ns"],
        Form::Stride { .. } => &["fixed, ns", "per stride, ns", "per block of 16 beyond, ns"],
        Form::Regimes { .. } => &[
            "fixed below, ns",
            "per stride below, ns",
            "per block of 16 below, ns",
            "fixed above, ns",
            "per stride above, ns",
            "per block of 16 above, ns",
        ],
        Form::Crypto => &["fixed, ns", "per byte beside the cipher, ns", "k, times the cipher alone"],
    };
    let mut text = match form {
        Form::Blocks { block } => format!("  blocks of {block} bytes\n"),
        Form::Stride { stride } => format!("  strides of {stride} bytes\n"),
        Form::Regimes { at, stride } => format!("  strides of {stride} bytes, regimes switch at {at} bytes\n"),
        _ => String::new(),
    };
    for (i, name) in names.iter().enumerate() {
        let Interval { value, low, high } = calibration.parameters.get(i).copied().unwrap_or(fit.parameter(i, 0.95));
        text += &format!("  {name:<32} {:>10}  95 %: {} to {}\n", digits(value), digits(low), digits(high));
    }
    text
}

fn errors_row(name: &str, parameters: String, errors: &Errors, rest: [String; 2]) -> [String; 8] {
    let [aicc, mark] = rest;
    let percent = |v: f64| format!("{v:.2}");
    let signed = format!("{:+.2}", errors.bias);
    [name.to_owned(), parameters, signed, percent(errors.median), percent(errors.p95), percent(errors.max), aicc, mark]
}

pub(super) fn calibration_text(c: &Calibration) -> String {
    let p = &c.profile;
    let mut text = format!(
        "{} measurements at {} sizes, {} to {} bytes, in {} sessions; time over {}\n\n",
        p.samples,
        p.sizes.len(),
        p.range[0],
        p.range[1],
        p.sessions.len(),
        p.basis.size_fn.id()
    );
    let mut rows = table(&["form", "parameters", "bias %", "median %", "p95 %", "max %", "AICc", ""]);
    for (i, candidate) in c.candidates.iter().enumerate() {
        let aicc = if candidate.aicc.is_finite() { format!("{:.1}", candidate.aicc) } else { String::new() };
        let mark = if i == c.chosen { "chosen" } else { "" };
        let name = candidate.fitted.family.name();
        rows.add_row(errors_row(
            name,
            candidate.fitted.parameters.to_string(),
            &candidate.held_out,
            [aicc, mark.into()],
        ));
    }
    for (baseline, errors) in &c.baselines {
        rows.add_row(errors_row(baseline.name(), String::new(), errors, [String::new(), "baseline".into()]));
    }
    text += &format!("Errors at sizes left out of the fit\n{rows}\n\n{}\n", p.fitted.family.name());
    text += &parameters_text(c);
    text += &format!("  {:<32} {:>10}\n", "time at the smallest size, ns", digits(p.time_ns(p.range[0])));
    text += &format!("  residuals by size: {} ({} runs, p = {:.3})\n\n", c.runs.signs, c.runs.runs, c.runs.p);
    let line = &c.line;
    let rate = |per_byte: f64| digits(8e3 / per_byte);
    text += "line\n";
    text += &format!(
        "  t_fix {} ns (95 %: {} to {}), R_alg {} Mbps ({} to {}), correlation {:.2}\n",
        digits(line.fixed_ns.value),
        digits(line.fixed_ns.low),
        digits(line.fixed_ns.high),
        rate(line.per_byte_ns.value),
        rate(line.per_byte_ns.high),
        rate(line.per_byte_ns.low),
        line.correlation
    );
    let half_way = line.fixed_ns.value / line.per_byte_ns.value;
    text += &format!(
        "  limits {} packets/s and {} Mbps, equal parts at {:.0} bytes\n",
        digits(1e9 / line.fixed_ns.value),
        rate(line.per_byte_ns.value),
        half_way
    );
    text += if c.parameters.is_empty() {
        "  intervals are over measurements: with one session, differences between sessions are not included\n"
    } else {
        "  intervals are over sessions\n"
    };
    let two = &p.two_point;
    text += &format!(
        "two-point line through {} and {} bytes: t_fix {} ns, R_alg {} Mbps\n",
        two.sizes[0],
        two.sizes[1],
        digits(two.line.fixed_ns),
        digits(two.line.rate_mbps)
    );
    text
}

fn judge(args: &ValidateArgs) -> Result<bool, String> {
    if args.profile.is_dir() {
        return model_run::validate(args);
    }
    let trials = args.trials.as_ref().ok_or("validation needs measurements: give a run or a file")?;
    let profile = Profile::load(&args.profile).map_err(|e| e.to_string())?;
    let subject = Some(profile.identity.subject.clone()).filter(|s| !s.is_empty());
    let direction = direction(&profile.identity.direction).ok();
    let selection =
        Selection { subject, direction, sessions: args.sessions.clone(), studies: studies(trials, Kind::Validate)? };
    let measurements = read_measurements(trials, &selection).map_err(|e| e.to_string())?;
    let validation = validate(&profile, &measurements.rows).map_err(|e| e.to_string())?;
    if args.json {
        json(&serde_json::json!({ "accepted": validation.accepted(), "validation": validation }))?;
    } else {
        print!("{}", judgement_text(&validation));
        println!("{}", if validation.accepted() { "accepted" } else { "not accepted" });
    }
    Ok(validation.accepted())
}

/// Every size, and every criterion.
pub(super) fn judgement_text(validation: &Validation) -> String {
    let mut rows = table(&["size", "measured ns", "predicted ns", "error %"]);
    for (size, measured, predicted, error) in &validation.points {
        rows.add_row([size.to_string(), digits(*measured), digits(*predicted), format!("{error:+.2}")]);
    }
    let mut text = format!("{rows}\n");
    if let Some(errors) = validation.at_switch {
        text += &format!(
            "within one stride of a switch of regimes, reported apart: {} sizes, max {:.2} %\n",
            errors.sizes, errors.max
        );
    }
    let mut rows = table(&["criterion", "found", ""]);
    rows.set_width(WIDTH).set_content_arrangement(ContentArrangement::Dynamic);
    for c in &validation.criteria {
        rows.add_row([c.what, &c.found, if c.holds { "holds" } else { "FAILS" }]);
    }
    text + &format!("{rows}\n")
}

fn engine(args: &EngineArgs) -> Result<bool, String> {
    let selection = Selection { subject: args.subject.clone(), direction: args.direction, ..Selection::default() };
    let measurements = read_measurements(&args.file, &selection).map_err(|e| e.to_string())?;
    let layout = args.protection.layout()?.or_else(|| layout_of(&measurements.identity));
    let basis = Basis { size_fn: size_fn(args.sizes.as_deref(), layout.as_ref())?, cost: None };
    let samples: Vec<_> = measurements.rows.iter().map(|m| m.sample).collect();
    let fit = fit_asynchronous(&basis, &samples).ok_or(
        "no breakpoint can be fitted: measure at least two sizes with equal times and two larger ones with longer times",
    )?;
    println!("time over {}", basis.size_fn.id());
    println!(
        "t_fix {} ns, t_oh {} ns, R_alg {} Mbps, largest error {:.2} %",
        digits(fit.system.fixed_ns),
        digits(fit.system.overhead_ns),
        digits(fit.system.rate_mbps),
        fit.max_percent
    );
    let b = fit.breakpoint;
    println!("breakpoint {} bytes (95 %: {} to {})", digits(b.value), digits(b.low), digits(b.high));
    let stages = [fit.system.fixed_ns; 2];
    let mut rng = Rng::new(1);
    let drawn: Vec<[f64; 2]> = (0..50_000)
        .map(|_| stages.map(|mean| -mean * (((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64).ln()))
        .collect();
    let with = |ring| pipeline(2, drawn.len(), ring, |stage, n| drawn[n][stage]);
    println!(
        "at the breakpoint, if times vary exponentially, a ring of {} is {:.1} % slower than an unlimited one",
        args.ring,
        100.0 * (with(Some(args.ring as usize)) / with(None) - 1.0)
    );
    Ok(true)
}
