//! Programs that speak WireGuard: a TUN interface, and a socket through which they are configured.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Availability, Count, Counters, Started, find};
use crate::TestbedError;
use crate::child::{Interrupt, Running};
use crate::world::{End, World};

/// A program.
#[derive(Debug)]
pub(super) struct Program {
    file: &'static str,
    /// Prefix of the interface name.
    arguments: &'static [&'static str],
}

pub(super) static WIREGUARD_GO: Program = Program { file: "wireguard-go", arguments: &["--foreground"] };
/// It keeps its privileges: dropping them needs a log-in name, which a user namespace has not.
pub(super) static BORINGTUN: Program =
    Program { file: "boringtun-cli", arguments: &["--foreground", "--disable-drop-privileges"] };

/// MTU of the interface in bytes: 1500 less IPv6, UDP and the 32 bytes of a message, as all
/// implementations have it.
pub(super) const MTU: u16 = 1420;
/// UDP port of both hosts.
const PORT: u16 = 51820;
/// Timeout of its socket.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// Key pairs, private and public, of RFC 7748 §6.1. They are published: they protect nothing but
/// packets between two namespaces, and need no generator.
const KEYS: [[&str; 2]; 2] = [
    [
        "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
    ],
    [
        "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
    ],
];

impl Program {
    pub(super) fn availability(&self) -> Availability {
        let remedy = "scripts/rivals.sh builds it; WEIR_RIVALS sets its directory";
        let Some(path) = find::program(self.file) else {
            return Availability::missing(format!("no program {}", self.file), remedy);
        };
        if !Path::new("/dev/net/tun").exists() {
            return Availability::missing("no /dev/net/tun", "modprobe tun loads it");
        }
        let first = |text: String| text.lines().next().unwrap_or_default().to_owned();
        match find::ask(&path, &["--version"]) {
            Ok(text) => Availability::Available { version: first(text) },
            Err(why) => Availability::missing(format!("{} --version fails: {why}", path.display()), remedy),
        }
    }
}

/// The program on both hosts.
pub(super) struct Pair {
    name: &'static str,
    running: Vec<Running>,
    sockets: [PathBuf; 2],
}

fn interface(end: End) -> String {
    format!("wg-{end}")
}

impl Pair {
    pub(super) fn start(
        program: &'static Program,
        world: &World,
        dir: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self, TestbedError> {
        let path =
            find::program(program.file).ok_or_else(|| TestbedError::Failed(format!("no program {}", program.file)))?;
        let sockets = End::BOTH.map(|end| dir.join(format!("{end}.run/{}.sock", interface(end))));
        let mut pair = Self { name: program.file, running: Vec::new(), sockets };
        for end in End::BOTH {
            let folder = dir.join(format!("{end}.run"));
            std::fs::create_dir_all(&folder)
                .map_err(|error| TestbedError::Failed(format!("{}: {error}", folder.display())))?;
            // Both hosts, and other pairs, have the same names: the folder of sockets is each one's
            // own.
            let script = "mkdir -p /run/wireguard && mount --bind \"$0\" /run/wireguard && exec \"$@\"";
            let mut command = world.command(end, "unshare");
            command.args(["--mount", "sh", "-c", script]).arg(&folder).arg(&path);
            command.args(program.arguments).arg(interface(end));
            pair.running.push(Running::start(command, &dir.join(format!("{end}.log")))?);
        }
        for end in End::BOTH {
            pair.configure(world, end, interrupt)?;
        }
        Ok(pair)
    }

    fn configure(&mut self, world: &World, end: End, interrupt: &Interrupt) -> Result<(), TestbedError> {
        let (here, there) = (end as usize, end.other() as usize);
        let limit = Instant::now() + READY_WITHIN;
        while !self.sockets[here].exists() {
            self.check()?;
            if Instant::now() > limit {
                return Err(self.complaint(here, "was not ready in time"));
            }
            interrupt.tick()?;
        }
        let mut request = format!("set=1\nprivate_key={}\nlisten_port={PORT}\n", KEYS[here][0]);
        let _ = write!(
            request,
            "public_key={}\nendpoint={}:{PORT}\nallowed_ip={}\n\n",
            KEYS[there][1],
            world.plan.outer(end.other()),
            world.plan.network(end.other())
        );
        let answer = self.ask(here, &request)?;
        if !answer.lines().any(|line| line == "errno=0") {
            return Err(self.complaint(here, &format!("rejects its configuration: {}", answer.trim())));
        }
        let (namespace, device) = (world.namespace(end), interface(end));
        world.ip(&format!("-n {namespace} link set {device} up mtu {MTU}"))?;
        let (network, from) = (world.plan.network(end.other()), world.plan.inner(end));
        world.ip(&format!("-n {namespace} route replace {network} dev {device} src {from}"))
    }

    fn ask(&self, host: usize, request: &str) -> Result<String, TestbedError> {
        let socket = &self.sockets[host];
        let talk = || -> std::io::Result<String> {
            let mut stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(request.as_bytes())?;
            // An answer ends with an empty line; the connection may stay.
            let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
            while !answer.ends_with(b"\n\n") {
                match stream.read(&mut buffer)? {
                    0 => break,
                    read => answer.extend(&buffer[..read]),
                }
            }
            Ok(String::from_utf8_lossy(&answer).into_owned())
        };
        talk().map_err(|error| self.complaint(host, &format!("no response at {}: {error}", socket.display())))
    }

    fn complaint(&self, host: usize, why: &str) -> TestbedError {
        let output = self.running.get(host).map_or_else(String::new, |running| running.output() + &running.errors());
        let last: Vec<&str> = output.lines().rev().take(3).collect();
        TestbedError::Failed(format!("{} on {} {why}: {}", self.name, End::BOTH[host], last.join(" | ")))
    }
}

impl Started for Pair {
    fn check(&mut self) -> Result<(), TestbedError> {
        for host in 0..self.running.len() {
            if let Some(status) = self.running[host].poll() {
                return Err(self.complaint(host, &format!("ended with {status}")));
            }
        }
        Ok(())
    }

    fn counters(&self, _: &World) -> Result<[Counters; 2], TestbedError> {
        let one = |host| Ok(parse(&self.ask(host, "get=1\n\n")?));
        Ok([one(0)?, one(1)?])
    }

    fn processes(&self) -> Vec<u32> {
        self.running.iter().map(Running::id).collect()
    }
}

/// The counters of the only peer.
fn parse(answer: &str) -> Counters {
    let value = |key: &str| {
        let line = answer.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    let count = |key| Count { packets: None, bytes: value(key) };
    Counters { sent: count("tx_bytes"), received: count("rx_bytes"), ..Counters::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_the_peer_are_read() {
        let counters = parse("private_key=00\npublic_key=11\ntx_bytes=1480\nrx_bytes=92\nerrno=0\n\n");
        assert_eq!((counters.sent.bytes, counters.received.bytes, counters.sent.packets), (1480, 92, None));
        assert_eq!(parse("errno=1\n\n"), Counters::default());
    }

    #[test]
    fn key_pairs_have_32_octets_each() {
        for text in KEYS.iter().flatten() {
            assert!(text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
        }
    }
}
