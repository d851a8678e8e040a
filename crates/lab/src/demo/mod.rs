//! The demonstration: two hosts on one machine, real traffic, eight configurations.
//!
//! [`run`] starts this program again in a sandbox of namespaces ([`testbed::sandbox`]), builds two
//! hosts there ([`testbed::world`]) and sends `ping` and `iperf` from one to the other: without
//! Weir, then through a Weir on each host ([`testbed::subject`]) with one protocol after the other
//! ([`variant`]), keyed by IKEv2 with temporary certificates ([`testbed::pki`]). Each row counts
//! only if the counters of both hosts agree with iperf ([`check`]). The result is a table, a page
//! with plots and the raw data ([`report`]).

mod check;
mod report;
mod row;
mod variant;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::host::cpu::{CpuSample, CpuTimes};
use crate::progress::Display;
use report::{Machine, Report};
use row::{DemoRow, Workplace};
use testbed::child::Interrupt;
use testbed::sandbox;
use testbed::world::{Cable, Plan, World};
pub use testbed::{INTERRUPTED, TestbedError};
pub use variant::{DemoVariant, Keys};

/// Most Sub SAs in the row that has some, and most packet threads.
const MAX_SUB_SAS: usize = 8;

/// Options of the demonstration.
#[derive(Clone, Debug)]
pub struct Options {
    /// Length of each transfer in seconds.
    pub seconds: u16,
    /// Rows, in the order of the table.
    pub rows: Vec<DemoVariant>,
    /// Folder for results; made when it is missing.
    pub out: PathBuf,
    /// MTU of the cable in bytes.
    pub mtu: u16,
    /// Traffic over IPv6.
    pub v6: bool,
    /// Source of the keys.
    pub keys: Keys,
}

/// Results.
pub struct DemoResult {
    /// For people.
    pub table: String,
    /// For machines.
    pub json: String,
    /// True if all rows are good.
    pub good: bool,
    /// The page with plots.
    pub page: PathBuf,
}

/// Runs the demonstration. Unless it is `inside` already it starts this program again with that
/// argument, in new namespaces, and does not return.
///
/// # Errors
/// A missing requirement, or a signal. Failed rows are not errors: they are part of the result.
pub fn run(options: &Options, inside: bool) -> Result<DemoResult, TestbedError> {
    let out = sandbox::outside(&options.out)?;
    if !inside {
        let path = sandbox::search_path();
        sandbox::check_tools(&path)?;
        make_folder(&out)?;
        return Err(sandbox::enter(&path));
    }
    let dir = sandbox::settle()?;
    let interrupt =
        Interrupt::install().map_err(|error| TestbedError::Unable(format!("cannot catch signals: {error}")))?;
    if options.rows.iter().any(|variant| *variant != DemoVariant::Plain) {
        sandbox::check_tun()?;
    }
    measure(options, &out, &dir, &interrupt)
}

fn make_folder(out: &Path) -> Result<(), TestbedError> {
    let made = std::fs::create_dir_all(out.join("raw"));
    made.map_err(|error| TestbedError::Unable(format!("{}: {error}; use another directory with --out", out.display())))
}

fn measure(options: &Options, out: &Path, dir: &Path, interrupt: &Interrupt) -> Result<DemoResult, TestbedError> {
    let began = Instant::now();
    let sub_sas = crate::host::cpus().clamp(2, MAX_SUB_SAS);
    let progress = Display::new("demo", "rows", options.rows.len() as u64, false);
    progress.print("building two hosts");
    let world = World::build(Plan { v6: options.v6, mtu: options.mtu, cable: Cable::Wire })?;
    let busy_before = busy(interrupt)?;
    let place = Workplace {
        world: &world,
        dir,
        out,
        interrupt,
        progress: &progress,
        seconds: options.seconds,
        sub_sas,
        keys: options.keys,
    };
    let mut rows: Vec<DemoRow> = Vec::new();
    for (number, variant) in (1..).zip(&options.rows) {
        let (row, line) = place.row(*variant)?;
        progress.at(number, options.rows.len() as u64);
        progress.print(&format!("[{number}/{}] {line}", options.rows.len()));
        rows.push(row);
    }
    progress.finish();
    let report = Report {
        machine: Machine::here(busy_before),
        seconds: options.seconds,
        mtu: options.mtu,
        v6: options.v6,
        took_s: began.elapsed().as_secs_f64(),
        setup: world.commands(),
        rows,
    };
    save(&report, out)
}

/// Share of the machine that others use, over one second, 0 to 1.
fn busy(interrupt: &Interrupt) -> Result<f64, TestbedError> {
    let before = CpuSample::now();
    interrupt.sleep(Duration::from_secs(1))?;
    let cores = CpuSample::passed(before.as_ref());
    let of = |time: fn(&CpuTimes) -> u64| cores.iter().map(time).sum::<u64>() as f64;
    let (busy, total) = (of(CpuTimes::busy), of(CpuTimes::total));
    Ok(if total > 0.0 { busy / total } else { 0.0 })
}

fn save(report: &Report, out: &Path) -> Result<DemoResult, TestbedError> {
    let json = report.json();
    let page = out.join("index.html");
    let files = [(out.join("results.json"), &json), (page.clone(), &report.html())];
    for (path, text) in files {
        std::fs::write(&path, text).map_err(|error| {
            TestbedError::Unable(format!("{}: {error}; make room, or use another directory with --out", path.display()))
        })?;
    }
    let good = report.rows.iter().all(|row| row.failure.is_none());
    Ok(DemoResult { table: report.table(), json, good, page })
}
