//! Commands of the control socket, driven by a fuzzer: every command except `load-*`, on a gateway
//! with connections of IKE and PSP and without sockets, device and workers.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use dataplane::Scheduler;
use ike::hosts::ResolveError;
use ports::Runner;
use vici::ClientId;
use vici::message::Message;
use vici::names::Command;
use vici::packet::{Kind, Packet};
use vici::server::Detached;
use zeroize::Zeroizing;

use super::{Control, ControlBackend, ControlContext, DaemonRequest, Loaded};
use crate::config::problem::SourceFile;
use crate::config::{Config, Outside, Purpose, check, syntax};
use crate::host::{HostNetwork, Kernel};
use crate::keying::names::Names;
use crate::keying::sockets::NoTransport;
use crate::keying::{Keying, Random, Surroundings};
use crate::plane::{Plane, PlaneBuilder};
use crate::psp_keys::PspService;
use crate::resolver::Servers;
use crate::scheduling::Scheduling;
use crate::state::Store;
use crate::up::Attached;
use crate::updown::Updown;
use crate::waker::Waker;
use credentials::Credentials;

const CLIENTS: usize = 3;
const EVENTS: usize = 60;

const CONFIG: &str = r#"
gateway {
    tun = weir-fuzz
    mtu = 1400
    routes = none
    guard = none
    confine = no
    bypass_lan = no
}
connections {
    moon {
        local_addrs = 192.0.2.1
        remote_addrs = 192.0.2.2
        proposals = aes256gcm16-prfsha384-x25519
        pools = clients
        local { auth = psk
            id = a.test }
        remote { auth = psk
            id = b.test }
        children {
            net { local_ts = 10.1.0.0/16
                remote_ts = 10.2.0.0/16 }
            trap { local_ts = 10.1.0.0/16
                remote_ts = 10.3.0.0/16
                start_action = trap }
            leak { mode = pass
                local_ts = 10.1.0.0/16
                remote_ts = 10.4.0.0/16 }
        }
    }
    any {
        local_addrs = 192.0.2.1
        remote_addrs = %any
        local { auth = psk }
        remote { auth = psk }
        children { net { local_ts = 10.5.0.0/16 } }
    }
    keys {
        protocol = psp
        local_addrs = 192.0.2.1
        remote_addrs = 192.0.2.3
        local { auth = pubkey
            id = a.test }
        remote { auth = pubkey
            id = c.test }
        children { fast { local_ts = 10.1.0.0/16
            remote_ts = 10.6.0.0/16 } }
    }
}
pools { clients { addrs = 10.9.0.0/30 } }
secrets { ike { secret = "of the fuzzer" } }
"#;

/// Keys and values that commands look for.
const KEYS: [&str; 20] = [
    "ike", "child", "ike-id", "child-id", "timeout", "loglevel", "force", "reauth", "noblock", "leases", "name",
    "subject", "type", "flag", "id", "trap", "drop", "pass", "all", "uris",
];
const VALUES: [&str; 22] = [
    "moon",
    "any",
    "keys",
    "net",
    "trap",
    "leak",
    "fast",
    "clients",
    "1",
    "0",
    "-1",
    "yes",
    "no",
    "",
    "4294967295",
    "9223372036854775807",
    "-9223372036854775808",
    "X509",
    "CA",
    "%any",
    "65536",
    "X509_CRL",
];

fn config() -> &'static Config {
    static CONFIG_READ: OnceLock<Config> = OnceLock::new();
    CONFIG_READ.get_or_init(|| read(CONFIG))
}

fn read(text: &str) -> Config {
    let file = SourceFile { name: "fuzz.conf".into(), text: Zeroizing::new(text.to_owned()) };
    let checked =
        syntax::parse(file, Path::new(".")).and_then(|root| check(&root, Purpose::Gateway, &Outside::nothing()));
    checked.unwrap_or_else(|problems| panic!("{problems}"))
}

/// A gateway and its clients.
struct Bench {
    control: Control,
    server: Detached,
    clients: Vec<ClientId>,
    keying: Keying,
    psp: PspService,
    plane: Plane,
    loaded: Loaded,
}

impl Bench {
    fn new() -> Self {
        Self::with(config())
    }

    fn with(config: &Config) -> Self {
        let now = Instant::now();
        let host: Arc<dyn HostNetwork> =
            Arc::new(Kernel { tun: config.gateway.tun.clone(), mark: config.gateway.fwmark });
        // One folder for each thread: it is locked.
        let owner = format!("{}-{:?}", std::process::id(), std::thread::current().id());
        let dir = std::env::temp_dir().join(format!("weir-fuzz-{owner}"));
        let store = Store::open(&dir).unwrap_or_else(|why| panic!("{why}"));
        let foundation = PlaneBuilder::build(now, config, &*host, store).unwrap_or_else(|why| panic!("{why}"));
        let publisher = foundation.publisher(config).unwrap_or_else(|why| panic!("{why}"));
        let startup = foundation.keep_numbers(now, config).unwrap_or_else(|why| panic!("{why}"));
        let runner = Runner::start_with(Vec::new(), publisher.clone(), Scheduler::RunToCompletion);
        let runner = runner.unwrap_or_else(|why| panic!("{why}"));
        let attached = Attached {
            host: Arc::clone(&host),
            runner,
            scheduling: Scheduling::default(),
            routes: None,
            guard: None,
            supers: Vec::new(),
        };
        let mut plane = Plane::new(now, startup, publisher, attached, config.clone());
        let servers = Servers::start(None, &config.gateway.tun).expect("there is nothing to start");
        let updown = Updown::start(Path::new("fuzz.conf"), config).expect("there is nothing to start");
        let surroundings = Surroundings {
            host,
            transport: Box::new(NoTransport),
            credentials: Credentials::spawn(|| ()),
            names: Names::immediate(|_| Err(ResolveError::Busy)),
            servers,
            updown,
            waker: Waker::new().expect("a descriptor"),
            random: Random::of_system(),
        };
        let mut keying = Keying::new(now, config, surroundings).expect("there is no file to open");
        let loaded = Loaded::new(config.keyed.clone(), PathBuf::from("/nonexistent"));
        keying.credentials.with_store(|store| loaded.fill(store));
        keying.credentials_changed(now);
        keying.load(now, loaded.connections(), loaded.pools(), &mut plane);
        let mut psp = crate::psp_keys::service::fuzzing::detached(now);
        let faults = psp.load(now, &config.keyed.psp, &mut plane);
        assert!(faults.is_empty(), "{faults:?}");
        let (mut server, requests) = Detached::new().expect("a descriptor");
        let clients = (0..CLIENTS).map(|_| server.connect()).collect();
        let control = Control::with((now, SystemTime::now()), None, requests, server.handle());
        let mut bench = Self { control, server, clients, keying, psp, plane, loaded };
        // Traps of loaded connections are installed by the first iteration.
        bench.turn(false);
        bench
    }

    /// State that read-only commands must not change.
    fn state(&self) -> (usize, usize, usize) {
        let connections = self.keying.endpoint.connections().len();
        let sas = self.keying.endpoint.ike_sas().count() + self.keying.endpoint.half_open_count();
        (connections, sas, self.plane.negotiated.policies().len())
    }

    /// One iteration of the control loop.
    fn turn(&mut self, manual: bool) {
        self.carry_out(manual);
        self.control.release();
    }

    /// A turn up to the moment when routes and guard are set.
    fn carry_out(&mut self, manual: bool) {
        let now = Instant::now();
        let Self { control, keying, psp, plane, loaded, .. } = self;
        let backend = if manual {
            ControlBackend::Manual(plane)
        } else {
            ControlBackend::Keyed(ControlContext { now, keying, psp, plane, loaded })
        };
        for request in control.turn(now, backend) {
            if let DaemonRequest::Reload(client) = request {
                control.reloaded(client, Err(anyhow::anyhow!("not here")));
            }
        }
        let mut happened = Vec::new();
        keying.turn(now, plane, |what| happened.push(what));
        for what in &happened {
            control.tell(now, keying, plane, what);
        }
        psp.turn(now, plane);
    }

    fn request(&mut self, at: usize, command: Command, message: Message, manual: bool) {
        let client = self.clients[at];
        let before = self.state();
        // The command of another client may have ended the previous one of this client.
        assert!(self.read(client, command) <= 1, "the command before {} was answered again", command.name());
        self.server.request(client, command, message);
        self.turn(manual);
        let replies = self.read(client, command);
        assert!(replies <= 1, "{} was answered {replies} times", command.name());
        assert_eq!(self.server.is_busy(client), replies == 0, "{}: one reply, or a busy client", command.name());
        let changes = [
            Command::Initiate,
            Command::Terminate,
            Command::Drain,
            Command::Rekey,
            Command::Install,
            Command::Uninstall,
            Command::UnloadConn,
            Command::UnloadPool,
        ];
        if !changes.contains(&command) {
            assert_eq!(self.state(), before, "{} changed something", command.name());
        }
        self.check();
    }

    /// Reads the responses to a client; how many replies there were.
    fn read(&self, client: ClientId, command: Command) -> usize {
        let mut replies = 0;
        for segment in self.server.read(client) {
            let packet = Packet::parse(&segment[4..]).unwrap_or_else(|why| panic!("{}: {why}", command.name()));
            let message = Message::parse(packet.body).unwrap_or_else(|why| panic!("{}: {why}", command.name()));
            match packet.kind {
                Kind::Response => {
                    replies += 1;
                    let refused = message.text("success") == Some("no");
                    let why = message.text("errmsg").unwrap_or_default();
                    assert!(!refused || !why.trim().is_empty(), "{} was refused without a reason", command.name());
                }
                kind => assert_eq!(kind, Kind::Event, "a client is sent replies and events"),
            }
        }
        replies
    }

    /// Each waiting client has exactly one job, and other clients have none.
    fn check(&self) {
        for client in &self.clients {
            let jobs = self.control.jobs.values().filter(|job| job.client == *client).count();
            assert_eq!(jobs, usize::from(self.server.is_busy(*client)), "jobs of a client");
        }
        assert!(self.control.jobs.len() <= CLIENTS, "jobs of clients that are gone");
        let open = self.control.jobs.values().map(|job| job.left).sum::<usize>();
        let of_jobs = self.control.jobs_of.values().filter(|id| self.control.jobs.contains_key(id)).count();
        assert_eq!(of_jobs, open, "commands of jobs");
    }

    fn leave(&mut self, at: usize) {
        self.server.leave(self.clients[at]);
        self.clients[at] = self.server.connect();
        self.turn(false);
        self.check();
    }

    /// All clients go, and everything ends: nothing may be left of any command.
    fn end(mut self) {
        (0..CLIENTS).for_each(|at| self.leave(at));
        let now = Instant::now();
        self.keying.load(now, Vec::new(), Vec::new(), &mut self.plane);
        let mut happened = Vec::new();
        self.keying.shutdown(now, &mut self.plane, |what| happened.push(what));
        for what in &happened {
            self.control.tell(now, &self.keying, &self.plane, what);
        }
        assert!(self.control.jobs.is_empty(), "a job is left");
        assert!(self.control.jobs_of.is_empty(), "{} commands without an end are left", self.control.jobs_of.len());
    }
}

/// A message: elements as the input has them, or names and values that commands look for.
fn message(input: &mut &[u8], depth: usize) -> Message {
    let mut message = Message::new();
    while let Some((what, rest)) = input.split_first() {
        *input = rest;
        let mut next = || {
            let (first, rest) = input.split_first().map_or((0, *input), |(first, rest)| (*first, rest));
            *input = rest;
            usize::from(first)
        };
        let key = KEYS[next() % KEYS.len()];
        match what % 8 {
            0 => return message,
            1 => {
                let values: Vec<&str> = (0..next() % 4).map(|_| VALUES[next() % VALUES.len()]).collect();
                message.set_list(key, values);
            }
            2 if depth < 4 => {
                let inner = self::message(input, depth + 1);
                message.set_section(key, inner);
            }
            3 => {
                let len = next().min(input.len());
                let (bytes, rest) = input.split_at(len);
                *input = rest;
                message.set(key, bytes);
            }
            _ => drop(message.set(key, VALUES[next() % VALUES.len()])),
        }
    }
    message
}

/// Runs one input: events, each a byte for the kind and one for the client. A request continues
/// with the command and its message, either length-prefixed bytes or built from names that commands
/// read.
///
/// # Panics
/// When a command has more or less than one reply, a refusal has no reason, a command that only
/// looks changes something, or something of a command is left at the end.
pub fn vici_commands(mut input: &[u8]) {
    let Some((manual, rest)) = input.split_first() else { return };
    let manual = manual & 7 == 7;
    input = rest;
    let mut bench = Bench::new();
    for _ in 0..EVENTS {
        let [what, which, rest @ ..] = input else { break };
        input = rest;
        let at = usize::from(*which) % CLIENTS;
        if what % 8 == 0 {
            bench.leave(at);
            continue;
        }
        let Some((name, rest)) = input.split_first() else { break };
        input = rest;
        let command = Command::ALL[usize::from(*name) % Command::ALL.len()];
        let message = if what % 8 < 3 {
            let [high, low, rest @ ..] = input else { break };
            let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
            let (body, rest) = rest.split_at(len);
            input = rest;
            Message::parse(body).ok()
        } else {
            Some(message(&mut input, 0))
        };
        // A client has one command at a time. Loading has a separate target.
        let free = !bench.server.is_busy(bench.clients[at]);
        let loads = command.name().starts_with("load-");
        if let Some(message) = message.filter(|_| free && !loads) {
            bench.request(at, command, message, manual);
        }
    }
    bench.end();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The response to a request.
    fn response(bench: &mut Bench, command: Command, elements: &[(&str, &str)], manual: bool) -> Message {
        let mut message = Message::new();
        for (key, value) in elements {
            message.set(key, *value);
        }
        let client = bench.clients[0];
        bench.server.request(client, command, message);
        bench.turn(manual);
        let segments = bench.server.read(client).into_iter();
        let mut packets = segments.map(|segment| Packet::parse(&segment[4..]).map(|packet| packet.body.to_vec()));
        Message::parse(&packets.next_back().expect("a response").expect("a packet")).expect("a message")
    }

    /// [`CONFIG`] with a manual SA that has this key.
    fn with_manual_sa(digit: &str) -> Config {
        let half = |name: &str, spi: u32| {
            let key = digit.repeat(39);
            format!("{name} {{ spi = {spi}\n key = 0x{}{key} }}\n", spi & 1)
        };
        read(&format!(
            "{CONFIG}\nsas {{ hand {{ protocol = esp\n mode = tunnel\n local = 192.0.2.1\n remote = 192.0.2.9\n \
             suite = aes128gcm16\n {}{} }} }}\npolicies {{ hand {{ local_ts = 10.1.0.0/16\n \
             remote_ts = 10.7.0.0/16\n sa = hand }} }}\n",
            half("out", 4096),
            half("in", 4097)
        ))
    }

    #[test]
    fn a_drained_gateway_has_no_manual_sas_until_a_restart() {
        let ended = |bench: &Bench| {
            let entries = bench.plane.tables.entries.iter();
            let expired = |common: &ipsec::SaCommon| common.check_lifetime().is_err();
            entries
                .map(|entry| {
                    let (out, inbound) = (entry.outbound.as_ref().unwrap(), entry.inbound.as_ref().unwrap());
                    expired(&out.sa.common) && expired(&inbound.sa.common)
                })
                .collect::<Vec<_>>()
        };
        for manual in [false, true] {
            let mut bench = Bench::with(&with_manual_sa("1"));
            assert_eq!(ended(&bench), [false]);
            let reply = response(&mut bench, Command::Drain, &[("timeout", "1000")], manual);
            assert_eq!((reply.text("success"), reply.number("manual")), (Some("yes"), Some(1)), "{manual}");
            assert_eq!(ended(&bench), [true]);
            let policies = bench.plane.config.policies.len();
            assert_eq!(policies, 1, "its packets are dropped");
            // A reload with another key makes another SA.
            assert!(bench.plane.reload(Instant::now(), with_manual_sa("2")).is_ok());
            assert_eq!(ended(&bench), [true]);
            let reply = response(&mut bench, Command::Drain, &[("timeout", "1000")], manual);
            assert_eq!(reply.number("manual"), Some(0), "they have ended already");
        }
    }

    #[test]
    fn a_drained_gateway_initiates_nothing() {
        let mut bench = Bench::new();
        assert_eq!(response(&mut bench, Command::Initiate, &[("child", "fast")], false).text("success"), Some("yes"));
        response(&mut bench, Command::Drain, &[("timeout", "1000")], false);
        for child in ["fast", "net"] {
            let reply = response(&mut bench, Command::Initiate, &[("child", child)], false);
            assert_eq!(reply.text("success"), Some("no"), "{child}");
            assert!(reply.text("errmsg").is_some_and(|why| why.contains("drained")), "{child}");
        }
    }

    #[test]
    fn a_command_that_another_client_ends_is_answered_before_the_next_one() {
        let mut bench = Bench::new();
        let message = |key: &str, value: &str| {
            let mut message = Message::new();
            message.set(key, value);
            message
        };
        bench.request(0, Command::Initiate, message("ike", "moon"), false);
        assert!(bench.server.is_busy(bench.clients[0]));
        bench.request(1, Command::Drain, message("timeout", "1000"), false);
        assert!(!bench.server.is_busy(bench.clients[0]));
        bench.request(0, Command::ReloadSettings, Message::new(), false);
        bench.end();
    }

    #[test]
    fn a_change_of_policies_is_answered_after_they_are_in_force() {
        let mut bench = Bench::new();
        let client = bench.clients[0];
        let changes = [
            (Command::Uninstall, "child", "trap"),
            (Command::Install, "child", "trap"),
            (Command::UnloadConn, "name", "moon"),
        ];
        for (command, key, value) in changes {
            let mut message = Message::new();
            message.set(key, value);
            bench.server.request(client, command, message);
            bench.carry_out(false);
            assert_eq!(bench.read(client, command), 0, "{} was answered too early", command.name());
            bench.control.release();
            assert_eq!(bench.read(client, command), 1, "{} was not answered", command.name());
        }
        bench.server.request(client, Command::Version, Message::new());
        bench.carry_out(false);
        assert_eq!(bench.read(client, Command::Version), 1, "nothing has to be waited for");
        bench.end();
    }
}
