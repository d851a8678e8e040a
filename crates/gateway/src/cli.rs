//! The gateway's part of the command line.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tracing::Level;
use wire::registry::CodePoints;

use crate::config::problem::Problems;
use crate::down::{self, Removed};
use crate::offline::{self, Capture, Direction};
use crate::remote::{self, Failure, Remote, SocketArgs};
use crate::resolver::{self, Resolver};
#[cfg(feature = "top")]
use crate::top::TopArgs;
use crate::{check, config, doctor, status, up, web};

/// Default path of the configuration.
pub(crate) const DEFAULT_CONFIG: &str = "/etc/weir/weir.conf";
/// Packets were refused, or something is not healthy.
const UNHEALTHY: u8 = 1;
/// The peer has not answered in time.
const TIMED_OUT: u8 = 3;
/// Usage, configuration, input or privilege; nothing was started or written.
const UNUSABLE: u8 = 2;

/// The commands of the gateway.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a gateway in the foreground
    ///
    /// Protects traffic according to the configuration until SIGTERM or SIGINT; SIGHUP reloads it.
    #[command(after_help = "Example:\n  weir up /etc/weir/weir.conf\n\nThe format of the file: docs/configuration.md")]
    Up(UpArgs),
    /// Stop a gateway and let what it protected leave in clear text again
    ///
    /// After a stop, a crash or a kill, what a gateway protected stays unreachable until the next
    /// start. This removes its routing rule, its routes and its nftables table.
    #[command(after_help = "Example:\n  weir down /etc/weir/weir.conf\n\n\
        Without FILE and without /etc/weir/weir.conf: the default socket, device and routing table.")]
    Down(DownArgs),
    /// Check a configuration without starting anything
    #[command(after_help = "Examples:\n  weir check /etc/weir/weir.conf\n  \
        weir check --schema | jq -r '.sections[].keys[].name'\n\nExit status 2 if the file has errors.")]
    Check(CheckArgs),
    /// Show connections, SAs, policies, counters and drop reasons of a running gateway
    #[command(
        after_help = "Examples:\n  weir status\n  weir status --json | jq '.connections[] | select(.state != \"up\") | .name'\n\n\
        Exit status 0: healthy. 1: a worker stopped or hangs, or a connection that should be up is down. 2: no response."
    )]
    Status(StatusArgs),
    /// Watch connections, SAs, drops, workers and the log in the terminal
    #[cfg(feature = "top")]
    #[command(
        after_help = "Examples:\n  weir top\n  weir top --once\n\nKeys: arrows and pages, Enter, Esc, Tab, t terminate, r rekey, s sort, ? help, q quit.\n\
        Exit status 2: no response, or no usable terminal."
    )]
    Top(TopArgs),
    /// Print the address of the status page, with its token
    #[command(after_help = "Examples:\n  weir web\n  xdg-open \"$(sudo weir web)\"\n  \
        curl -H \"Authorization: Bearer $(sudo weir web --token)\" http://127.0.0.1:9791/status.json\n\n\
        From another host: ssh -L 9791:127.0.0.1:9791 GATEWAY, then open the address there.\n\
        Exit status 2: the configuration has no 'web', or the token cannot be read.")]
    Web(WebArgs),
    /// Commands for a gateway that runs
    #[command(flatten)]
    Remote(Remote),
    /// Protect, decrypt and inspect captures, offline
    #[command(subcommand, after_help = "Example:\n  weir pcap seal --sa sun.conf clear.pcap sealed.pcap")]
    Pcap(Pcap),
    /// Put name servers where the resolver looks for them, for weir up, which starts this
    #[command(hide = true)]
    KeepResolver(KeepResolverArgs),
    /// Run the commands of updown, for weir up, which starts this
    #[command(hide = true)]
    RunUpdown(RunUpdownArgs),
    /// Resolve host names, for weir up, which starts this
    #[command(hide = true)]
    LookUpNames,
    /// Check this host: privileges, kernel features, ports, engine
    #[command(after_help = "Example:\n  weir doctor\n\nExit status 1 if weir up cannot run on this host.")]
    Doctor(DoctorArgs),
}

/// The configuration of `weir up` and `weir check`.
#[derive(Debug, Args)]
pub struct ConfigFile {
    /// Configuration [default: /etc/weir/weir.conf]
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    /// The same as FILE
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigFile {
    fn path(&self) -> PathBuf {
        self.named().unwrap_or_else(|| DEFAULT_CONFIG.into())
    }

    /// The file that the command line names.
    fn named(&self) -> Option<PathBuf> {
        self.file.as_ref().or(self.config.as_ref()).cloned()
    }

    /// Like [`Self::path`], but `None` where no file is named and the default one does not exist.
    fn existing(&self) -> Option<PathBuf> {
        self.named().or_else(|| Path::new(DEFAULT_CONFIG).exists().then(|| DEFAULT_CONFIG.into()))
    }
}

/// Options of `weir up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Log one JSON object per line
    #[arg(long)]
    log_json: bool,
    /// Write the keys of all SAs into a folder, for Wireshark
    ///
    /// For debugging only: the files decrypt the traffic.
    #[arg(long, value_name = "DIR")]
    log_secrets: Option<PathBuf>,
}

/// Options of `weir down`.
#[derive(Debug, Args)]
pub struct DownArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Control socket of the gateway, if not that of the configuration
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Options of `weir check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print every key that there is, as JSON, instead
    #[arg(long)]
    schema: bool,
}

/// Options of `weir status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Show details: IKE SAs, Child SAs, policies, GSO packets, workers
    #[arg(long, short)]
    verbose: bool,
    /// Show every IKE SA of a connection, also those that are ending
    #[arg(long)]
    all: bool,
    /// Print JSON, always complete
    #[arg(long)]
    json: bool,
    /// Print nothing; the exit status is the result
    #[arg(long, conflicts_with_all = ["json", "verbose", "all"])]
    exit_code: bool,
    #[command(flatten)]
    place: SocketArgs,
}

/// Options of `weir web`.
#[derive(Debug, Args)]
pub struct WebArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Print the token alone
    #[arg(long)]
    token: bool,
}

/// Options of `weir doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// List the suites and the lengths of their keys instead
    #[arg(long)]
    suites: bool,
}

/// Options of `weir keep-resolver`.
#[derive(Debug, Args)]
pub struct KeepResolverArgs {
    /// Device of the gateway
    #[arg(long, value_name = "NAME")]
    tun: String,
    /// Change this file; otherwise resolvconf is run
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
}

/// Options of `weir run-updown`.
#[derive(Debug, Args)]
pub struct RunUpdownArgs {
    /// Run only commands of this configuration
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The commands of `weir pcap`.
#[derive(Debug, Subcommand)]
pub enum Pcap {
    /// Protect the packets of a capture
    #[command(after_help = "Example:\n  weir pcap seal --sa sun.conf clear.pcap sealed.pcap\n\n\
        Never with keys that are in use elsewhere: the same numbers would be used again.\n\
        Exit status 1 and one line per packet when packets were refused.")]
    Seal(TransformArgs),
    /// Verify and decrypt the packets of a capture
    #[command(after_help = "Example:\n  weir pcap open --sa moon.conf sealed.pcap clear.pcap\n  \
        weir pcap open --mirror --sa sun.conf sealed.pcap clear.pcap\n\n\
        Exit status 1 and one line per packet when packets were refused.")]
    Open(TransformArgs),
    /// Show the cleartext fields of each packet
    #[command(after_help = "Example:\n  weir pcap inspect sealed.pcap")]
    Inspect(InspectArgs),
}

/// Options of `weir pcap seal` and `open`.
#[derive(Debug, Args)]
pub struct TransformArgs {
    /// SAs and policies, in the format of weir up
    #[arg(long, value_name = "FILE")]
    sa: PathBuf,
    /// Use this SA for everything it can carry, whatever the policies say
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Use the file of the peer: its outbound SAs are inbound here, and the reverse
    #[arg(long)]
    mirror: bool,
    /// Capture to read, pcap or pcapng
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Capture to write, in the same format
    #[arg(value_name = "OUT")]
    output: PathBuf,
}

/// Options of `weir pcap inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Print one JSON object per packet
    #[arg(long)]
    json: bool,
    /// IP protocol number of EESP
    #[arg(long, value_name = "NUMBER", default_value_t = wire::IpProto::EESP_DEFAULT.0)]
    eesp_protocol: u8,
    /// Capture to read, pcap or pcapng
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Command {
    /// Runs the command, prints errors, and returns the exit status.
    pub fn run(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Up(args) => run_up(&args),
            Self::Down(args) => run_down(args),
            Self::Check(args) => run_check(&args),
            Self::Status(args) => run_status(&args),
            #[cfg(feature = "top")]
            Self::Top(args) => ended(args.run()),
            Self::Web(args) => run_web(&args),
            Self::Remote(remote) => ended(remote.run()),
            Self::Pcap(Pcap::Seal(args)) => run_transform(&args, Direction::Seal),
            Self::Pcap(Pcap::Open(args)) => run_transform(&args, Direction::Open),
            Self::Pcap(Pcap::Inspect(args)) => run_inspect(&args),
            Self::Doctor(args) => run_doctor(&args),
            Self::KeepResolver(args) => run_keep_resolver(args),
            Self::LookUpNames => run_look_up_names(),
            Self::RunUpdown(args) => {
                crate::updown::run_helper(args.config.as_deref(), std::io::stdin().lock(), std::io::stdout().lock());
                0
            }
        })
    }
}

fn tell(problems: &Problems) -> u8 {
    crate::log::say(Level::ERROR, format_args!("{}", problems.render(std::io::stderr().is_terminal())));
    UNUSABLE
}

fn complain(error: &anyhow::Error, status: u8) -> u8 {
    crate::log::say(Level::ERROR, format_args!("weir: {error:#}"));
    status
}

/// Writes to standard output; a reader that went away is no error.
fn print(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

fn run_up(args: &UpArgs) -> u8 {
    match up::run(&args.file.path(), args.log_json, args.log_secrets.clone()) {
        Ok(()) => 0,
        Err(up::Failure::Config(problems)) => tell(&problems),
        Err(up::Failure::Start(error)) => complain(&error, UNUSABLE),
        Err(up::Failure::Running(error)) => complain(&error, UNHEALTHY),
    }
}

fn run_down(args: DownArgs) -> u8 {
    match down::run(args.file.existing().as_deref(), args.socket) {
        Ok(Removed { running, left }) => {
            let text = match (running, left) {
                (true, _) => "stopped; protected traffic now leaves in clear text",
                (false, true) => "not running; removed its remaining guard and routes",
                (false, false) => "not running; no guard or routes left",
            };
            crate::log::say(Level::INFO, format_args!("weir: {text}"));
            0
        }
        Err(down::Failure::Config(problems)) => tell(&problems),
        Err(down::Failure::Other(error)) => complain(&error, UNUSABLE),
    }
}

fn run_check(args: &CheckArgs) -> u8 {
    if args.schema {
        print(&format!("{:#}\n", config::schema::to_json()));
        return 0;
    }
    let result = check::read(&args.file.path());
    if args.json {
        print(&format!("{:#}\n", check::to_json(&result)));
        return if result.is_ok() { 0 } else { UNUSABLE };
    }
    match result {
        Ok(config) => {
            print(&check::render(&config));
            0
        }
        Err(problems) => tell(&problems),
    }
}

fn run_status(args: &StatusArgs) -> u8 {
    let status = match status::ask(&args.place.socket) {
        Ok(status) => status,
        Err(error) => return complain(&anyhow::anyhow!(remote::explain(&error)), UNUSABLE),
    };
    if args.exit_code {
        return if status.is_healthy() { 0 } else { UNHEALTHY };
    }
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&status).unwrap_or_default()));
    } else {
        let shown = status::Shown { verbose: args.verbose, all: args.all, width: status::width() };
        print(&status::render(&status, shown));
    }
    if status.is_healthy() { 0 } else { UNHEALTHY }
}

fn run_web(args: &WebArgs) -> u8 {
    let path = args.file.path();
    let gateway = match config::load(&path, config::Purpose::Gateway) {
        Ok(config) => config.gateway,
        Err(problems) => return tell(&problems),
    };
    let Some(address) = gateway.web else {
        let text = "no status page: set 'web = 127.0.0.1:9791' in the section 'gateway' and restart weir";
        return complain(&anyhow::anyhow!("{}: {text}", path.display()), UNUSABLE);
    };
    match crate::http::token::read(&web::access::token_path(&gateway.state_dir)) {
        Ok(token) if args.token => print(&format!("{}\n", *token)),
        Ok(token) => print(&format!("http://{address}/login?token={}\n", *token)),
        Err(error) => {
            let advice = match error.kind() {
                std::io::ErrorKind::NotFound => "; 'weir up' makes it at its start",
                std::io::ErrorKind::PermissionDenied => "; run this as root or as the user that runs 'weir up'",
                _ => "",
            };
            return complain(&anyhow::anyhow!("{error}{advice}"), UNUSABLE);
        }
    }
    0
}

fn ended(outcome: Result<(), Failure>) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            crate::log::say(Level::ERROR, format_args!("weir: {}", failure.text));
            match (failure.unusable, failure.timed_out) {
                (true, _) => UNUSABLE,
                (_, true) => TIMED_OUT,
                _ => UNHEALTHY,
            }
        }
    }
}

fn run_keep_resolver(args: KeepResolverArgs) -> u8 {
    let resolver = args.file.map_or(Resolver::Resolvconf, Resolver::File);
    match resolver::keep(&resolver, &args.tun, std::io::stdin().lock(), std::io::stdout().lock()) {
        Ok(()) => 0,
        Err(()) => UNUSABLE,
    }
}

fn run_look_up_names() -> u8 {
    // A terminal or a service manager signals every process; the helper ends with its input.
    let ignored = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        let _ = signal_hook::flag::register(signal, std::sync::Arc::clone(&ignored));
    }
    crate::confine::enter_lookup();
    // Threads that still wait for a name server end with the process.
    match crate::lookup::run(std::io::stdin().lock(), std::io::stdout(), config::resolve_name) {
        Ok(()) => 0,
        Err(_) => UNUSABLE,
    }
}

fn run_transform(args: &TransformArgs, direction: Direction) -> u8 {
    let config = match config::load_offline(&args.sa, args.name.as_deref(), args.mirror) {
        Ok(config) => config,
        Err(problems) => return tell(&problems),
    };
    for warning in &config.warnings {
        crate::log::say(Level::WARN, format_args!("weir: warning: {warning}"));
    }
    match offline::run(&config, direction, &args.input, &args.output) {
        Ok(outcome) => {
            let mut stderr = std::io::stderr().lock();
            for line in &outcome.refused {
                let _ = writeln!(stderr, "{line}");
            }
            let word = if direction == Direction::Seal { "sealed" } else { "opened" };
            let _ = writeln!(
                stderr,
                "weir: {word} {}: {} IP packets read, {} refused, {} other frames copied, {} written to {}",
                args.input.display(),
                outcome.packets,
                outcome.refused.len(),
                outcome.copied,
                outcome.written,
                args.output.display()
            );
            if outcome.refused.is_empty() { 0 } else { UNHEALTHY }
        }
        Err(offline::Failure::Config(problems)) => tell(&problems),
        Err(offline::Failure::Other(error)) => complain(&error, UNUSABLE),
    }
}

fn run_inspect(args: &InspectArgs) -> u8 {
    let points = CodePoints { eesp_protocol: wire::IpProto(args.eesp_protocol), ..CodePoints::default() };
    let capture = match Capture::read(&args.file) {
        Ok(capture) => capture,
        Err(error) => return complain(&error, UNUSABLE),
    };
    match capture.records() {
        Ok(records) => {
            let mut text = String::new();
            for (index, record) in records.iter().enumerate() {
                text.push_str(&offline::inspect(index + 1, record, &points, args.json));
                text.push('\n');
            }
            print(&text);
            0
        }
        Err(error) => complain(&error, UNUSABLE),
    }
}

fn run_doctor(args: &DoctorArgs) -> u8 {
    if args.suites {
        print(&doctor::suites());
        return 0;
    }
    let findings = doctor::examine();
    if args.json {
        let report = serde_json::json!({ "healthy": doctor::healthy(&findings), "findings": findings });
        print(&format!("{report:#}\n"));
    } else {
        print(&doctor::render(&findings));
    }
    if doctor::healthy(&findings) { 0 } else { UNHEALTHY }
}
