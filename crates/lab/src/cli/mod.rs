//! The lab's part of the command line.

mod compare;
mod doctor;
mod explain;
mod ike_rivals;
mod import;
mod log;
mod model;
mod model_run;
mod plan;
mod reader;
mod run;
mod subjects;
mod verify;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use crypto::Engine;
use ipsec::Protocol;

use crate::bench;
use crate::campaign::Kind;
use crate::demo::{self, DemoVariant, Keys, TestbedError};
use crate::progress::Display;

pub use compare::CompareArgs;
pub use import::ImportArgs;
pub use reader::while_read;

/// `weir bench`.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// TSC ticks per packet of the whole in-memory path, compared with the engine alone
    ///
    /// Short for weir lab run --study path. Both process the same buffers in every round.
    #[command(after_help = "Examples:\n  weir bench path\n  \
        weir bench path --subject weir-esp-tunnel-aes128gcm16,v6 --set traffic=64,512,1400\n  \
        weir bench path --subject weir-psp-tunnel-aes128gcm16 --set flows=1,64,1024 --set sas=1,1000")]
    Path(PathArgs),
    /// The engines against each other on the same operations: ticks per packet, and ratios with
    /// intervals
    ///
    /// Short for weir lab run --study engines. Operations are those of an ESP tunnel, a batch goes
    /// to the engine in one call. Ratios are to the first engine of a suite.
    #[command(
        after_help = "Examples:\n  weir bench engines\n  weir bench engines --set traffic=64,1400 --set batch=16 \
        --subject cipher-esp-tunnel-aes128gcm16,engine=aws_lc \
        --subject cipher-esp-tunnel-aes128gcm16,engine=vaes,threads=1"
    )]
    Engines(run::StudyArgs),
    /// IKE SAs per second and per megabyte, rekeyings, and a flood of spoofed requests
    ///
    /// Short for weir lab run --study keying. Two endpoints in memory on one thread, with real
    /// cryptography: ECDSA P-256, X25519, AES-128-GCM. With place=namespaces a complete `weir up`
    /// and its peers, on one core each.
    #[command(after_help = "Examples:\n  weir bench ike\n  weir bench ike --set sas=50000 --set rounds=21\n  \
        weir bench ike --set place=namespaces --set sas=2000 --set sessions=1 --set rounds=1")]
    Ike(run::StudyArgs),
    /// IKE SAs per second of `weir up` and of strongSwan, in turns, with their ratio
    ///
    /// Both daemons answer the same peers, one after the other on the same core; the peers are on a
    /// second one. ECDSA P-256 certificates or a shared key, X25519, AES-128-GCM, one Child SA for
    /// each. strongSwan has its data plane in user space. Nothing on this host changes.
    #[command(after_help = "Examples:\n  weir bench ike-rivals\n  \
        weir bench ike-rivals --root target/peers/forky --sas 2000 --rounds 9   # strongSwan 6.1\n\n\
        Exit status: 0 measured, 1 something failed, 2 cannot run on this host, 130 after a signal.")]
    IkeRivals(ike_rivals::IkeRivalsArgs),
    /// Weir compared with wireguard-go, boringtun and strongSwan in user space: TCP through each
    ///
    /// Short for weir lab run --study transfers. Two hosts on this machine for each; nothing on
    /// this host changes. 'scripts/rivals.sh' builds the first two, the other is Debian's; what is
    /// missing is named. Method: docs/lab-rivals.md.
    #[command(after_help = "Examples:\n  weir bench rivals\n  \
        weir bench rivals --subject weir-psp-tunnel-aes128gcm16 --subject wireguard-go --set flows=1 --set sessions=9\n\n\
        Exit status: 0 measured, 1 something failed, 2 cannot run on this host, 130 after a signal.")]
    Rivals(run::StudyArgs),
    /// Multi-core scaling: one SA, one per CPU, Sub SAs, PSP; run to completion, pipeline, async
    ///
    /// Short for weir lab run --study scaling. Packets go round in memory on the cores under test
    /// and nothing else. Order within every flow is checked. Speed-up is against one core that runs
    /// to completion.
    #[command(after_help = "Examples:\n  weir bench cores --set traffic=64,512 --set rounds=10\n  \
        weir bench cores --set sets=one --set flows=1 --set schedulers=pipeline,pipeline-atomic\n\n\
        Exit status: 0 measured, 1 packets were lost or reordered, 2 cannot run, 130 after a signal.")]
    Cores(run::StudyArgs),
    /// Many SAs: ticks per packet and memory by their number, keys stored (ESP, AH, EESP) or
    /// derived (PSP)
    ///
    /// Short for weir lab run --study sas. Packets use all SAs in turn, so that their SA is cold in
    /// the caches. Memory is RSS, reported from 10,000 SAs.
    #[command(after_help = "Examples:\n  weir bench sas\n  \
        weir bench sas --subject weir-psp-tunnel-aes128gcm16 --set sas=1,1000,1000000")]
    Sas(run::StudyArgs),
}

/// `weir lab`.
#[derive(Debug, Subcommand)]
pub enum Lab {
    /// Demo: two hosts on this machine, real ping and iperf, eight configurations; a table and a
    /// page with plots
    ///
    /// Runs as root, or without root where the kernel allows user namespaces. Nothing on this host
    /// changes: both hosts are network namespaces that end with the demonstration.
    #[command(after_help = "Examples:\n  weir lab demo\n  weir lab demo --rows plain,esp-gcm,psp --seconds 20\n\n\
        Exit status: 0 all rows passed, 1 a row failed, 2 cannot run on this host, 130 after a signal.")]
    Demo(DemoArgs),
    /// Two builds, two runs or two subjects: ratios with intervals, against how much A differs from
    /// itself
    ///
    /// Builds are measured side by side in blocks that take turns (ABBA), so that the noise of the
    /// machine meets both. A verdict is "different", "equivalent" within the margin, or
    /// "inconclusive". Method: docs/lab-statistics.md.
    #[command(after_help = "Examples:\n  weir lab compare --binaries old/weir target/release/weir\n  \
        weir lab compare before-dir after-dir --gate 2 --json\n  \
        weir lab compare run-dir --subjects weir-esp-tunnel-aes128gcm16,weir-psp-tunnel-aes128gcm16\n  \
        weir lab compare --self-check 20\n\n\
        Exit status: 0 no significant slow-down, 1 significant slow-down (or the self-check failed), 2 no comparison.")]
    Compare(CompareArgs),
    /// Results of iperf2, iperf3 and mpstat: units checked, series analysed
    ///
    /// Finds changes of level, reports each phase with an interval that accounts for
    /// autocorrelation, shares of flows, and, for CPU samples of the same time, core-seconds per
    /// Gbit. Rates are in Gbit/s: 10⁹ bit/s.
    #[command(after_help = "Examples:\n  weir lab import iperf.csv sun_cpu.csv moon_cpu.csv\n  \
        weir lab import run.json --out imported --json\n\n\
        Exit status: 0 valid, 2 a file is malformed or inconsistent.")]
    Import(ImportArgs),
    /// Throughput of a subject by RFC 9971, loss against load, latency below throughput
    ///
    /// Short for weir lab run --study search.
    #[command(
        hide = true,
        after_help = "Examples:\n  weir lab search --set goals=ndr,pdr\n  \
        weir lab search --subject weir-psp-transport-aes128gcm16 --set traffic=imix --set gaps=poisson\n  \
        weir lab search --subject my-box --set place=interfaces --set from=10.1.0.1@left --set to=10.2.0.1@right\n\n\
        Exit status: 0 measured, 1 something failed, 2 cannot be measured, 130 after a signal."
    )]
    Search(run::StudyArgs),
    /// Cost of protection besides the cipher, by stage and by two methods; one ping through each
    /// suite
    ///
    /// Short for weir lab run --study overheads. Direction both is the ping; the subject 'all'
    /// stands for every protocol with every suite it has.
    #[command(
        hide = true,
        after_help = "Examples:\n  weir lab overheads\n  \
        weir lab overheads --subject weir-esp-tunnel-3des-md5 --set traffic=64,736\n  \
        weir lab overheads --subject all --set directions=both --set traffic=736"
    )]
    Overheads(run::StudyArgs),
    /// List rivals and configurations of Weir that can be measured between two hosts, and missing
    /// requirements
    #[command(after_help = "Example:\n  weir lab subjects --json\n\n\
        weir lab run --study sizes --set place=namespaces --subject NAME measures one.")]
    Subjects(subjects::SubjectsArgs),
    /// Tunnel against transport: round trips by size and direction, bytes on the wire, with and
    /// without UDP
    ///
    /// Short for weir lab run --study modes. A difference below 5 % counts as equivalent only if a
    /// test of equivalence (TOST) confirms it, relative to the noise of the tunnel against itself.
    /// Two hosts on this machine for each variant; nothing on this host changes.
    #[command(
        hide = true,
        after_help = "Examples:\n  weir lab modes\n  \
        weir lab modes --set traffic=160 --set delay_ms=10 --set sessions=3\n\n\
        Exit status: 0 measured, 1 something failed, 2 cannot run on this host, 130 after a signal."
    )]
    Modes(run::StudyArgs),
    /// TCP through a subject over time: one sample a second, every core, analysed as imports are
    ///
    /// Short for weir lab run --study series. Two hosts on this machine; nothing on this host
    /// changes. The defaults are the thesis' experiment.
    #[command(
        hide = true,
        after_help = "Examples:\n  weir lab series --set rounds=60\n  \
        weir lab series --subject wireguard-go --set rounds=60 --out wg-series\n\n\
        Exit status: 0 measured, 1 something failed, 2 cannot run on this host, 130 after a signal."
    )]
    Series(run::StudyArgs),
    /// Check the measurement capabilities of this machine
    #[command(after_help = "Example:\n  weir lab doctor --json")]
    Doctor(doctor::DoctorArgs),
    /// The throughput model: fit it, judge it, recompute the paper it comes from
    #[command(
        subcommand,
        after_help = "Example:\n  weir lab run --preset model --out model-out && weir lab model fit model-out"
    )]
    Model(model::Model),
    /// Size a gateway: cores, throughput and bottleneck for given traffic
    ///
    /// Reads a profile of weir lab model fit, or two numbers of a data sheet. Without a rate it
    /// prints the capacity of the cores.
    #[command(
        after_help = "Examples:\n  weir lab plan esp.toml --mix 64:28,570:16,1518:4 --rate 10Gbps --peak 1.5 --sas 64 --link 25Gbps\n  \
        weir lab plan esp.toml --mix 1400 --cores 4 --max-load 0.7\n  \
        weir lab plan --datasheet 64:1.2Gbps,1400:9.5Gbps --mix aaaaaaaddddg --rate 3Gbps\n\n\
        Exit status: 0 the demand is met, 1 it is not, 2 wrong input."
    )]
    Plan(Box<plan::PlanArgs>),
    /// Name the bottleneck of each result of a run: fixed cost, cost per byte, cipher, link, rings,
    /// or something else
    #[command(after_help = "Example:\n  weir lab explain lab-out --profile esp.toml --link 10Gbps")]
    Explain(explain::ExplainArgs),
    /// Run a campaign: subjects, traffic, repetitions; trials and a report in a folder
    ///
    /// Every trial is on disk before the next one starts. The same command resumes an interrupted
    /// run.
    #[command(
        after_help = "Examples:\n  weir lab run --preset quick\n  weir lab run mine.toml --out mine\n  weir lab run --out mine        # resumes it\n  weir lab run --study scaling --set cores=1,2\n  weir lab run --preset model --print > mine.toml\n\n\
        Exit status: 0 everything that can be measured here was, 1 something failed while it was measured, 2 it cannot run, \
        130 after a signal."
    )]
    Run(run::RunArgs),
    /// History of the runs of one campaign on one machine, with regressions marked
    #[command(after_help = "Examples:\n  weir lab log runs\n  weir lab log monday tuesday --page history.html\n\n\
        Exit status: 0 the latest run is no slower than the one before, 1 it is slower in a case, 2 no history.")]
    Log(log::LogArgs),
    /// Recompute the report of a run from its trials, and print the differences
    #[command(after_help = "Example:\n  weir lab verify lab-out\n\n\
        Exit status: 0 bit-identical, 1 a difference was found, 2 not a results directory.")]
    Verify(verify::VerifyArgs),
}

/// Options of `weir lab demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Seconds of TCP per row
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(2..=3600))]
    seconds: u16,
    /// Only these rows
    #[arg(long, value_delimiter = ',', value_enum)]
    rows: Vec<DemoVariant>,
    /// Folder for the page, results.json and raw data
    #[arg(long, value_name = "DIR", default_value = "demo-out")]
    out: PathBuf,
    /// MTU of the cable between both hosts, in bytes
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1500..=9000))]
    mtu: u16,
    /// IPv6 inside and outside
    #[arg(long)]
    ipv6: bool,
    /// Source of the keys: IKEv2 with certificates, or manual keys
    #[arg(long, value_enum, default_value_t = Keys::Ike)]
    keys: Keys,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
    /// Set by the demonstration itself
    #[arg(long, hide = true)]
    inside: bool,
}

impl Lab {
    /// Runs the command, prints errors, and returns the exit status.
    pub fn run(self) -> ExitCode {
        match self {
            Self::Demo(args) => args.run(),
            Self::Compare(args) => args.run(),
            Self::Import(args) => args.run(),
            Self::Search(args) => args.run(Kind::Search),
            Self::Overheads(args) => args.run(Kind::Overheads),
            Self::Subjects(args) => args.run(),
            Self::Modes(args) => args.run(Kind::Modes),
            Self::Series(args) => args.run(Kind::Series),
            Self::Doctor(args) => args.run(),
            Self::Model(command) => command.run(),
            Self::Plan(args) => args.run(),
            Self::Explain(args) => args.run(),
            Self::Run(args) => args.run(),
            Self::Log(args) => args.run(),
            Self::Verify(args) => args.run(),
        }
    }
}

impl DemoArgs {
    fn run(self) -> ExitCode {
        let args = self;
        let rows = DemoVariant::ALL.into_iter().filter(|way| args.rows.is_empty() || args.rows.contains(way)).collect();
        let DemoArgs { seconds, out, mtu, ipv6: v6, keys, .. } = args;
        let options = demo::Options { seconds, rows, out, mtu, v6, keys };
        match demo::run(&options, args.inside) {
            Ok(outcome) => {
                print!("{}", if args.json { &outcome.json } else { &outcome.table });
                eprintln!("demo: plots in {}", outcome.page.display());
                if outcome.good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            }
            Err(error) => {
                eprintln!("weir: demo: {error}");
                ExitCode::from(if matches!(error, TestbedError::Interrupted) { demo::INTERRUPTED } else { 2 })
            }
        }
    }
}

/// Options of `weir bench path`: those of a study, and those by which `weir lab compare` selects
/// blocks.
#[derive(Debug, Args)]
pub struct PathArgs {
    #[command(flatten)]
    of: run::StudyArgs,
    /// Measure block by block as requested on standard input
    #[arg(long, hide = true)]
    blocks: bool,
    /// Protocols of the blocks; all when empty
    #[arg(long, hide = true, requires = "blocks", value_delimiter = ',', value_parser = protocol)]
    protocol: Vec<Protocol>,
    /// Suites of the blocks
    #[arg(long, hide = true, requires = "blocks", value_delimiter = ',')]
    suite: Vec<String>,
    /// Inner packet sizes of the blocks, in bytes
    #[arg(long, hide = true, requires = "blocks", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(28..=2000))]
    size: Vec<u16>,
    /// Packets per batch of the blocks
    #[arg(long, hide = true, requires = "blocks", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// Make every time longer by this share
    #[arg(long, hide = true, requires = "blocks", default_value_t = 0.0, value_parser = share)]
    slow_down: f64,
}

impl PathArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        if !self.blocks {
            return Ok(self.of.run(Kind::Path));
        }
        let options = bench::BlockOptions {
            protocols: self.protocol,
            suites: self.suite,
            sizes: self.size.into_iter().map(usize::from).collect(),
            batch: self.batch.into(),
            engine: Engine::best(),
        };
        bench::serve(&options, self.slow_down, std::io::stdin().lock(), std::io::stdout().lock())?;
        Ok(ExitCode::SUCCESS)
    }
}

fn share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "expected 0 to 1".to_owned())
}

/// An error with its causes, each once: the text of many contains their cause.
fn with_causes(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| match cause.to_string() {
        cause if text.contains(&cause) => text,
        cause if text.is_empty() => cause,
        cause => format!("{text}: {cause}"),
    })
}

/// Writes files into a folder that is made if it is missing.
fn write_files(folder: &std::path::Path, files: &[(&str, &[u8])]) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (name, content) in files {
        let path = folder.join(name);
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn protocol(name: &str) -> Result<Protocol, String> {
    [Protocol::Esp, Protocol::Ah, Protocol::Eesp, Protocol::Psp]
        .into_iter()
        .find(|p| p.name() == name)
        .ok_or_else(|| "expected esp, ah, eesp or psp".to_owned())
}

impl Bench {
    /// Runs the benchmark, prints its result, and returns the exit status.
    ///
    /// # Errors
    /// Blocks that cannot be measured.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Path(args) => args.run(),
            Self::Engines(args) => Ok(args.run(Kind::Engines)),
            Self::Ike(args) => Ok(args.run(Kind::Keying)),
            Self::IkeRivals(args) => Ok(args.run()),
            Self::Rivals(args) => Ok(args.run(Kind::Transfers)),
            Self::Cores(args) => Ok(args.run(Kind::Scaling)),
            Self::Sas(args) => Ok(args.run(Kind::Sas)),
        }
    }
}

fn progress_bar() -> Display {
    Display::new("lab", "cases, {eta} left", 0, !std::io::stderr().is_terminal())
}
