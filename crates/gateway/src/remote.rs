//! Commands for a daemon that runs: clients of its control socket, as `swanctl` is one.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use vici::client::{Client, ClientError, Received};
use vici::message::{Message, Value};
use vici::names::{Command, Event};

/// The daemon answers these at once; that long means that it does not.
const SOON: Duration = Duration::from_secs(10);

/// Address of the daemon.
#[derive(Debug, Args)]
pub struct SocketArgs {
    /// Control socket of the gateway
    #[arg(long, value_name = "PATH", default_value = "/run/weir/weir.vici")]
    pub(crate) socket: PathBuf,
}

/// Options of `weir initiate`.
#[derive(Debug, Args)]
pub struct InitiateArgs {
    /// Child to bring up; without it only the IKE SA of --connection
    #[arg(value_name = "CHILD", required_unless_present = "connection")]
    child: Option<String>,
    /// Connection; needed when several have a child of that name
    #[arg(long, value_name = "NAME")]
    connection: Option<String>,
    /// Seconds to wait for the peer; the negotiation continues after that
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Print each line of the log, and the outcome, as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: SocketArgs,
}

/// Selection of SAs.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct SaSelection {
    /// Every Child SA of this name
    #[arg(value_name = "CHILD", conflicts_with = "child")]
    name: Option<String>,
    /// Every IKE SA of this connection
    #[arg(long, value_name = "NAME")]
    connection: Option<String>,
    /// The same as CHILD
    #[arg(long, value_name = "NAME")]
    child: Option<String>,
    /// The IKE SA with this number
    #[arg(long, value_name = "NUMBER")]
    ike_id: Option<u32>,
    /// The Child SA with this number
    #[arg(long, value_name = "NUMBER")]
    child_id: Option<u32>,
}

/// Options of `weir terminate`.
#[derive(Debug, Args)]
pub struct TerminateArgs {
    #[command(flatten)]
    which: SaSelection,
    /// Do not wait for the peer
    #[arg(long)]
    force: bool,
    /// Seconds to wait for the peer
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    #[command(flatten)]
    place: SocketArgs,
}

/// Options of `weir drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Do not wait for the peers
    #[arg(long)]
    force: bool,
    /// Seconds to wait for the peers
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    #[command(flatten)]
    place: SocketArgs,
}

/// Options of `weir rekey`.
#[derive(Debug, Args)]
pub struct RekeyArgs {
    #[command(flatten)]
    which: SaSelection,
    /// Reauthenticate instead
    #[arg(long)]
    reauth: bool,
    #[command(flatten)]
    place: SocketArgs,
}

/// Object kinds of `weir list`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Listable {
    /// IKE SAs and their Child SAs
    Sas,
    /// Connections as they are loaded
    Connections,
    /// Traps, and policies that pass or drop
    Policies,
    /// Certificates, CRLs and OCSP responses, from files and fetched
    Certificates,
    /// CAs with their URIs of CRLs and OCSP
    Authorities,
    /// Pools of virtual addresses with their leases
    Pools,
    /// Algorithms that can be negotiated
    Algorithms,
    /// Counters of exchanges and failures
    Counters,
}

/// Options of `weir list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Kind of objects
    #[arg(value_enum)]
    what: Listable,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: SocketArgs,
}

/// Options of `weir log`.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Least important lines to show: 0 to 4
    #[arg(long, value_name = "LEVEL", default_value_t = 1)]
    level: i8,
    #[command(flatten)]
    place: SocketArgs,
}

/// Commands for a running gateway.
#[derive(Debug, Subcommand)]
pub enum Remote {
    /// Bring up a connection or a child of it
    #[command(after_help = "Example:\n  weir initiate net --connection office\n\nPrints the log of the negotiation.\n\
                      Exit status 1: the peer refused. 3: no response in time. The last line states the reason.")]
    Initiate(InitiateArgs),
    /// End IKE SAs or Child SAs
    #[command(
        after_help = "Examples:\n  weir terminate net\n  weir terminate --connection office\n  weir terminate --child-id 12"
    )]
    Terminate(TerminateArgs),
    /// End all SAs in order and start none, before maintenance
    ///
    /// Peers receive a DELETE and answer it; manual SAs end at once. The gateway keeps running
    /// without SAs: it accepts and starts none until it is restarted, and the traffic that it
    /// protects stays closed.
    #[command(
        after_help = "Examples:\n  weir drain && systemctl stop weir\n  weir drain --timeout 5 || weir drain --force\n\n\
                      Exit status 3: a peer has not answered in time; its SA still waits for it."
    )]
    Drain(DrainArgs),
    /// Rekey IKE SAs or Child SAs now
    #[command(after_help = "Example:\n  weir rekey net")]
    Rekey(RekeyArgs),
    /// Read the configuration again; unchanged connections keep running
    #[command(
        after_help = "Example:\n  weir check && weir reload\n\nAn error in the file is printed and logged, and nothing changes."
    )]
    Reload(SocketArgs),
    /// List SAs, connections, policies, certificates, pools and counters
    #[command(after_help = "Example:\n  weir list sas --json | jq '.[][].state'")]
    List(ListArgs),
    /// Follow the log of IKE until Ctrl-C
    #[command(after_help = "Example:\n  weir log --level 2")]
    Log(LogArgs),
}

/// Error message and exit status.
pub(crate) struct Failure {
    pub(crate) text: String,
    /// True if the daemon could not be reached.
    pub(crate) unusable: bool,
    /// The peer has not answered in time.
    pub(crate) timed_out: bool,
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self { text: explain(&error), unusable: true, timed_out: false }
    }
}

/// Returns the text of the error with a remedy for the user.
pub(crate) fn explain(error: &ClientError) -> String {
    let advice = match error {
        ClientError::NotListening(_) => ". Is 'weir up' running? (--socket PATH if elsewhere)",
        ClientError::Denied(_) => "; run this as the user that runs 'weir up'",
        ClientError::Closed => "; its log states why",
        ClientError::Timeout(_) => "; it may still happen, 'weir status' shows it",
        ClientError::UnknownCommand(_) | ClientError::UnknownEvent(_) => "; check that both have the same version",
        _ => "",
    };
    format!("{error}{advice}")
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self { text, unusable: false, timed_out: false }
    }
}

impl Remote {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match self {
            Self::Initiate(args) => initiate(args),
            Self::Terminate(args) => job(&args.place, Command::Terminate, &args.message(), args.timeout, show_line),
            Self::Drain(args) => drain(args),
            Self::Rekey(args) => {
                let mut request = args.which.message();
                request.set_flag("reauth", args.reauth);
                job(&args.place, Command::Rekey, &request, SOON.as_secs(), show_line)
            }
            Self::Reload(place) => {
                job(place, Command::ReloadSettings, &Message::new(), 60, show_line)?;
                print("reloaded\n");
                Ok(())
            }
            Self::List(args) => list(args),
            Self::Log(args) => log(args),
        }
    }
}

/// Milliseconds of a timeout in a request. 0 would mean that the daemon waits without a limit.
fn timeout_ms(seconds: u64) -> u64 {
    seconds.saturating_mul(1000).min(i64::MAX as u64)
}

impl TerminateArgs {
    fn message(&self) -> Message {
        let mut request = self.which.message();
        request.set_flag("force", self.force).set_display("timeout", timeout_ms(self.timeout));
        request
    }
}

impl SaSelection {
    fn message(&self) -> Message {
        let mut message = Message::new();
        let child = self.name.as_ref().or(self.child.as_ref());
        message.set_some("ike", self.connection.as_ref()).set_some("child", child);
        message.set_some("ike-id", self.ike_id).set_some("child-id", self.child_id);
        message
    }
}

fn initiate(args: &InitiateArgs) -> Result<(), Failure> {
    let mut request = Message::new();
    request.set_some("child", args.child.as_ref()).set_some("ike", args.connection.as_ref());
    request.set_display("timeout", timeout_ms(args.timeout)).set("loglevel", "1");
    let show = if args.json { show_json } else { show_line };
    let outcome = job(&args.place, Command::Initiate, &request, args.timeout, show);
    if args.json {
        print(&format!("{}\n", outcome_json(outcome.as_ref().err())));
    }
    outcome
}

/// The last line of `weir initiate --json`.
fn outcome_json(failure: Option<&Failure>) -> serde_json::Value {
    match failure {
        None => serde_json::json!({"success": true}),
        Some(why) => serde_json::json!({"success": false, "timed_out": why.timed_out, "error": why.text}),
    }
}

/// Runs a command and prints its log lines.
fn job(
    place: &SocketArgs,
    command: Command,
    request: &Message,
    timeout_s: u64,
    show: fn(&Received),
) -> Result<(), Failure> {
    let mut client = Client::connect(&place.socket)?;
    client.register(Event::ControlLog, Some(SOON))?;
    let patience = Some(Duration::from_secs(timeout_s).saturating_add(SOON));
    let reply = client.request(command, request, patience, &mut |received| show(&received))?;
    reply
        .outcome()
        .map_err(|error| Failure { timed_out: reply.flag("timed-out") == Some(true), ..Failure::from(error.0) })
}

/// `weir drain`: prints how many SAs ended, and how many IKE SAs wait for their peers at the end.
fn drain(args: &DrainArgs) -> Result<(), Failure> {
    let mut client = Client::connect(&args.place.socket)?;
    let mut request = Message::new();
    request.set_flag("force", args.force).set_display("timeout", timeout_ms(args.timeout));
    let patience = Some(Duration::from_secs(args.timeout).saturating_add(SOON));
    let reply = client.request(Command::Drain, &request, patience, &mut |_| ())?;
    let count = |name| reply.number::<usize>(name).unwrap_or(0);
    let (there, ended, manual) = (count("matches"), count("terminated"), count("manual"));
    if ended < there {
        let text = format!(
            "{} of {there} IKE SAs still wait for their peers; 'weir drain --force' ends them at once",
            there - ended
        );
        return Err(Failure { text, unusable: false, timed_out: true });
    }
    reply.outcome().map_err(|error| Failure::from(error.0))?;
    print(&format!("drained: {there} IKE SAs and {manual} manual SAs ended; no SA begins until a restart\n"));
    Ok(())
}

/// Prints a line of the log as JSON.
fn show_json(received: &Received) {
    print(&format!("{}\n", json_of(&received.message)));
}

fn show_line(received: &Received) {
    if let Some(text) = received.message.text("msg") {
        let group = received.message.text("group").unwrap_or_default();
        print(&format!("[{group}] {text}\n"));
    }
}

fn print(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

fn log(args: &LogArgs) -> Result<(), Failure> {
    let mut client = Client::connect(&args.place.socket)?;
    client.register(Event::Log, Some(SOON))?;
    if std::io::stderr().is_terminal() {
        eprintln!("weir: lines up to level {}, Ctrl-C ends", args.level);
    }
    loop {
        let Some(received) = client.next_event(None)? else { continue };
        if received.message.number::<i8>("level").is_none_or(|level| level <= args.level) {
            show_line(&received);
        }
    }
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let mut client = Client::connect(&args.place.socket)?;
    let mut request = Message::new();
    let (command, event) = match args.what {
        Listable::Sas => (Command::ListSas, Event::ListSa),
        Listable::Connections => (Command::ListConns, Event::ListConn),
        Listable::Certificates => (Command::ListCerts, Event::ListCert),
        Listable::Policies => {
            request.set("trap", "yes").set("pass", "yes").set("drop", "yes");
            (Command::ListPolicies, Event::ListPolicy)
        }
        Listable::Authorities => (Command::ListAuthorities, Event::ListAuthority),
        Listable::Pools | Listable::Counters | Listable::Algorithms => {
            request.set("leases", "yes");
            let command = match args.what {
                Listable::Pools => Command::GetPools,
                Listable::Algorithms => Command::GetAlgorithms,
                _ => Command::GetCounters,
            };
            let mut reply = client.request(command, &request, Some(SOON), &mut |_| {})?;
            if command == Command::GetCounters {
                reply = named_counters(&reply);
            }
            show(args.json, &[reply]);
            return Ok(());
        }
    };
    let (items, reply) = client.list(command, event, &request, Some(SOON))?;
    show(args.json, &items);
    reply.outcome().map_err(|error| Failure::from(error.0))
}

fn show(json: bool, items: &[Message]) {
    if json {
        let items: Vec<serde_json::Value> = items.iter().map(json_of).collect();
        let text = serde_json::to_string_pretty(&items).unwrap_or_default();
        print(&format!("{text}\n"));
    } else {
        let mut text = String::new();
        items.iter().for_each(|item| indent(item, 0, &mut text));
        print(&text);
    }
}

/// Counters of the daemon under `global`: in vici its section has an empty name.
fn named_counters(reply: &Message) -> Message {
    let mut named = Message::new();
    for (name, value) in reply.section("counters").map(|all| all.entries.as_slice()).unwrap_or_default() {
        if let Value::Section(section) = value {
            named.set_section(if name.is_empty() { "global" } else { name }, section.clone());
        }
    }
    named
}

/// A message as JSON. vici has text only: what reads as a number is one, `yes` and `no` are
/// switches; binary data is hexadecimal. Identities, names and SPIs stay text.
fn json_of(message: &Message) -> serde_json::Value {
    const TEXTS: [&str; 8] =
        ["local-id", "remote-id", "remote-eap-id", "name", "spi-in", "spi-out", "initiator-spi", "responder-spi"];
    let text = |octets: &[u8]| match std::str::from_utf8(octets) {
        Ok(text) => text.to_owned(),
        Err(_) => octets.iter().map(|octet| format!("{octet:02x}")).collect(),
    };
    let scalar = |name: &str, octets: &[u8]| match text(octets) {
        text if TEXTS.contains(&name) => text.into(),
        text if text == "yes" || text == "no" => (text == "yes").into(),
        // A value with a leading zero or sign is not a count.
        text => match text.parse::<i64>() {
            Ok(number) if number.to_string() == text => number.into(),
            _ => text.into(),
        },
    };
    let entries = message.entries.iter().map(|(name, value)| {
        let value = match value {
            Value::Section(section) => json_of(section),
            Value::Text(octets) => scalar(name, octets),
            Value::List(items) => items.iter().map(|item| text(item)).collect::<Vec<String>>().into(),
        };
        (name.clone(), value)
    });
    serde_json::Value::Object(entries.collect())
}

/// A message as an indented list of settings; binary data as its length.
fn indent(message: &Message, depth: usize, text: &mut String) {
    let words = |octets: &[u8]| match std::str::from_utf8(octets) {
        Ok(text) if !text.contains(char::is_control) => text.to_owned(),
        _ => format!("({} bytes)", octets.len()),
    };
    let space = "  ".repeat(depth);
    for (name, value) in &message.entries {
        match value {
            Value::Section(section) => {
                text.push_str(&format!("{space}{name}\n"));
                indent(section, depth + 1, text);
            }
            Value::Text(octets) => text.push_str(&format!("{space}{name} = {}\n", words(octets))),
            Value::List(items) => {
                let items: Vec<String> = items.iter().map(|item| words(item)).collect();
                text.push_str(&format!("{space}{name} = {}\n", items.join(", ")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        command: Remote,
    }

    #[test]
    fn a_timeout_is_a_second_or_more() {
        for words in [&["initiate", "net"][..], &["terminate", "net"], &["drain"]] {
            let parsed = |timeout| Line::try_parse_from(["weir"].iter().chain(words).chain(&["--timeout", timeout]));
            assert!(parsed("0").is_err(), "{words:?}");
            assert!(parsed("1").is_ok(), "{words:?}");
        }
    }

    #[test]
    fn a_long_timeout_is_not_a_short_one() {
        let line = ["weir", "terminate", "net", "--timeout", "18446744073709551615"];
        let Remote::Terminate(args) = Line::try_parse_from(line).unwrap().command else { panic!("another command") };
        // The daemon reads a signed number.
        assert_eq!(args.message().number::<i64>("timeout"), Some(i64::MAX));
    }

    #[test]
    fn numbers_and_switches_of_a_listing_are_so_in_json() {
        let (mut sa, mut outer) = (Message::new(), Message::new());
        sa.set("uniqueid", "7")
            .set("rekey-time", "-3")
            .set("esn", "yes")
            .set("spi-in", "00000123")
            .set("remote-id", "42");
        sa.set("data", [0xff, 0xad]).set("version", "0.10").set_list("local-ts", ["10.1.0.0/16"]);
        outer.set_section("office", sa);
        let want = serde_json::json!({"office": {"uniqueid": 7, "rekey-time": -3, "esn": true, "spi-in": "00000123",
            "remote-id": "42", "data": "ffad", "version": "0.10", "local-ts": ["10.1.0.0/16"]}});
        assert_eq!(json_of(&outer), want);
    }

    #[test]
    fn the_outcome_of_initiate_is_one_object() {
        assert_eq!(outcome_json(None), serde_json::json!({"success": true}));
        let late = Failure { text: "timed out".into(), unusable: false, timed_out: true };
        let want = serde_json::json!({"success": false, "timed_out": true, "error": "timed out"});
        assert_eq!(outcome_json(Some(&late)), want);
    }

    #[test]
    fn counters_of_the_daemon_have_a_name() {
        let (mut counters, mut sections, mut reply) = (Message::new(), Message::new(), Message::new());
        counters.set("ike_up", "3");
        sections.set_section("", counters);
        reply.set_section("counters", sections).set("success", "yes");
        assert_eq!(json_of(&named_counters(&reply)), serde_json::json!({"global": {"ike_up": 3}}));
    }

    #[test]
    fn an_unreachable_daemon_is_explained() {
        let path = || PathBuf::from("/run/weir/weir.vici");
        let text = |error| Failure::from(error).text;
        assert_eq!(
            text(ClientError::NotListening(path())),
            "cannot connect to /run/weir/weir.vici. Is 'weir up' running? (--socket PATH if elsewhere)"
        );
        assert_eq!(
            text(ClientError::Denied(path())),
            "/run/weir/weir.vici: permission denied; run this as the user that runs 'weir up'"
        );
        assert_eq!(text(ClientError::Malformed("x".into())), "the daemon sent a malformed message: x");
    }

    #[test]
    fn messages_are_shown_as_settings() {
        let (mut sa, mut outer) = (Message::new(), Message::new());
        sa.set("state", "ESTABLISHED").set_list("local-ts", ["10.1.0.0/16", "fd01::/16"]).set("data", [0, 255, 7]);
        outer.set_section("office", sa);
        let mut text = String::new();
        indent(&outer, 0, &mut text);
        let want = "office\n  state = ESTABLISHED\n  local-ts = 10.1.0.0/16, fd01::/16\n  data = (3 bytes)\n";
        assert_eq!(text, want);
    }
}
