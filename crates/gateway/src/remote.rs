//! Commands for a daemon that runs: clients of its control socket, as `swanctl` is one.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::vici::client::{Client, ClientError, Received};
use crate::vici::message::{Message, Value};
use crate::vici::names::{Command, Event};

/// The daemon answers these at once; that long means that it does not.
const SOON: Duration = Duration::from_secs(10);

/// Where the daemon is asked.
#[derive(Debug, Args)]
pub struct Where {
    /// Control socket of the gateway
    #[arg(long, value_name = "PATH", default_value = "/run/weir.vici")]
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
    /// Seconds to wait for the peer
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    #[command(flatten)]
    place: Where,
}

/// Which SAs are meant.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct Which {
    /// Every IKE SA of this connection
    #[arg(long, value_name = "NAME")]
    connection: Option<String>,
    /// Every Child SA of this name
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
    which: Which,
    /// Do not wait for the peer
    #[arg(long)]
    force: bool,
    /// Seconds to wait for the peer
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    #[command(flatten)]
    place: Where,
}

/// Options of `weir rekey`.
#[derive(Debug, Args)]
pub struct RekeyArgs {
    #[command(flatten)]
    which: Which,
    /// Authenticate anew instead
    #[arg(long)]
    reauth: bool,
    #[command(flatten)]
    place: Where,
}

/// What `weir list` lists.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Listable {
    /// IKE SAs and their Child SAs
    Sas,
    /// Connections as they are loaded
    Connections,
    /// Traps, and policies that pass or drop
    Policies,
    /// Certificates
    Certificates,
    /// Pools of virtual addresses with their leases
    Pools,
    /// Counters of exchanges and failures
    Counters,
}

/// Options of `weir list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// What
    #[arg(value_enum)]
    what: Listable,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Where,
}

/// Options of `weir log`.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Least important lines to show: 0 to 4
    #[arg(long, value_name = "LEVEL", default_value_t = 1)]
    level: i8,
    #[command(flatten)]
    place: Where,
}

/// Commands for a running gateway.
#[derive(Debug, Subcommand)]
pub enum Remote {
    /// Bring up a connection or a child of it
    #[command(
        after_help = "Example:\n  weir initiate net --connection office\n\nExit status 1 when the peer does not agree; the lines above say why."
    )]
    Initiate(InitiateArgs),
    /// End IKE SAs or Child SAs
    #[command(after_help = "Example:\n  weir terminate --connection office\n  weir terminate --child-id 12")]
    Terminate(TerminateArgs),
    /// Rekey IKE SAs or Child SAs now
    #[command(after_help = "Example:\n  weir rekey --child net")]
    Rekey(RekeyArgs),
    /// Read the configuration again; what did not change goes on
    Reload(Where),
    /// List what a running gateway has
    #[command(after_help = "Example:\n  weir list sas --json | jq '.[].ESTABLISHED'")]
    List(ListArgs),
    /// Show the log of IKE as it comes, until Ctrl-C
    Log(LogArgs),
}

/// What went wrong, and the exit status.
pub(crate) struct Failure {
    pub(crate) text: String,
    /// The daemon could not be asked at all.
    pub(crate) unusable: bool,
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self { text: error.to_string(), unusable: true }
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self { text, unusable: false }
    }
}

impl Remote {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match self {
            Self::Initiate(args) => initiate(args),
            Self::Terminate(args) => {
                let mut request = args.which.message();
                request.set_flag("force", args.force).set_display("timeout", args.timeout * 1000);
                job(&args.place, Command::Terminate, &request, args.timeout)
            }
            Self::Rekey(args) => {
                let mut request = args.which.message();
                request.set_flag("reauth", args.reauth);
                job(&args.place, Command::Rekey, &request, SOON.as_secs())
            }
            Self::Reload(place) => job(place, Command::ReloadSettings, &Message::new(), 60),
            Self::List(args) => list(args),
            Self::Log(args) => log(args),
        }
    }
}

impl Which {
    fn message(&self) -> Message {
        let mut message = Message::new();
        message.set_some("ike", self.connection.as_ref()).set_some("child", self.child.as_ref());
        message.set_some("ike-id", self.ike_id).set_some("child-id", self.child_id);
        message
    }
}

fn initiate(args: &InitiateArgs) -> Result<(), Failure> {
    let mut request = Message::new();
    request.set_some("child", args.child.as_ref()).set_some("ike", args.connection.as_ref());
    request.set_display("timeout", args.timeout * 1000).set("loglevel", "1");
    job(&args.place, Command::Initiate, &request, args.timeout)
}

/// Runs a command and shows the log lines that come meanwhile.
fn job(place: &Where, command: Command, request: &Message, timeout_s: u64) -> Result<(), Failure> {
    let mut client = Client::connect(&place.socket)?;
    client.register(Event::ControlLog, Some(SOON))?;
    let patience = Some(Duration::from_secs(timeout_s) + SOON);
    let reply = client.request(command, request, patience, &mut |received| show_line(&received))?;
    reply.outcome().map_err(Failure::from)
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
        Listable::Pools | Listable::Counters => {
            request.set("leases", "yes");
            let command = if matches!(args.what, Listable::Pools) { Command::GetPools } else { Command::GetCounters };
            let reply = client.request(command, &request, Some(SOON), &mut |_| {})?;
            show(args.json, &[reply]);
            return Ok(());
        }
    };
    let (items, reply) = client.list(command, event, &request, Some(SOON))?;
    show(args.json, &items);
    reply.outcome().map_err(Failure::from)
}

fn show(json: bool, items: &[Message]) {
    if json {
        let text = serde_json::to_string_pretty(items).unwrap_or_default();
        print(&format!("{text}\n"));
    } else {
        let mut text = String::new();
        items.iter().for_each(|item| indent(item, 0, &mut text));
        print(&text);
    }
}

/// A message as an indented list of settings; octets that are no text as their number.
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
    use super::*;

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
