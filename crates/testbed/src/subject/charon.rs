//! strongSwan with its data plane in user space (kernel-libipsec): ESP in UDP over a separate TUN
//! interface.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{Availability, Count, Counters, Started, find};
use crate::TestbedError;
use crate::child::{Interrupt, Running};
use crate::pki::write_private;
use crate::random;
use crate::world::{End, World};

const CHARON: &str = "/usr/lib/ipsec/charon";
const DATA_PLANE: &str = "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so";
const PACKAGES: &str = "on Debian: apt install strongswan-charon strongswan-swanctl libcharon-extra-plugins";
/// MTU that it gives to its interface, in bytes.
pub(super) const MTU: u16 = 1400;
/// Timeouts of its socket, and of an SA.
const READY_WITHIN: Duration = Duration::from_secs(20);

pub(super) fn availability() -> Availability {
    for file in [CHARON, DATA_PLANE] {
        if !Path::new(file).exists() {
            return Availability::missing(format!("no {file}"), PACKAGES);
        }
    }
    let Some(swanctl) = find::program("swanctl") else { return Availability::missing("swanctl not found", PACKAGES) };
    let version = find::ask(Path::new(CHARON), &["--version"]).or_else(|_| find::ask(&swanctl, &["--version"]));
    Availability::Available { version: version.unwrap_or_else(|_| "unknown".into()).trim().to_owned() }
}

/// charon on both hosts.
pub(super) struct Pair {
    running: Vec<Running>,
    dir: PathBuf,
}

impl Pair {
    pub(super) fn start(world: &World, dir: &Path, interrupt: &Interrupt) -> Result<Self, TestbedError> {
        let secret: String = random(32).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut pair = Self { running: Vec::new(), dir: dir.to_owned() };
        for end in End::BOTH {
            let folder = pair.folder(end);
            let files = [
                ("strongswan.conf", daemon()),
                ("swanctl.conf", connection(world, end, &secret)),
                ("plain.conf", String::new()),
            ];
            let written = std::fs::create_dir_all(&folder)
                .and_then(|()| files.iter().try_for_each(|(name, text)| write_private(&folder.join(name), text)));
            written.map_err(|error| TestbedError::Failed(format!("{}: {error}", folder.display())))?;
            // A private /run for its PID file; its directory is bind-mounted, because it is in the
            // /run that this hides.
            let script = "mount --bind \"$0\" /mnt && mount -t tmpfs run /run && exec env STRONGSWAN_CONF=/mnt/strongswan.conf \"$1\"";
            let mut command = world.command(end, "unshare");
            command.args(["--mount", "sh", "-c", script]).arg(&folder).arg(CHARON);
            pair.running.push(Running::start(command, &dir.join(format!("{end}.log")))?);
        }
        for end in End::BOTH {
            pair.wait(interrupt, "did not create its socket", |pair| pair.folder(end).join("vici").exists())?;
            pair.swanctl(world, end, &["--load-all"])?;
        }
        // The exit status reports the result of the negotiation.
        pair.swanctl(world, End::Sun, &["--initiate", "--child", "lab", "--timeout", "15"])?;
        Ok(pair)
    }

    fn folder(&self, end: End) -> PathBuf {
        self.dir.join(format!("{end}.charon"))
    }

    fn wait(&mut self, interrupt: &Interrupt, why: &str, done: impl Fn(&Self) -> bool) -> Result<(), TestbedError> {
        let limit = Instant::now() + READY_WITHIN;
        while !done(self) {
            self.check()?;
            if Instant::now() > limit {
                return Err(TestbedError::Failed(format!("charon {why}: {}", self.last_words())));
            }
            interrupt.tick()?;
        }
        Ok(())
    }

    fn swanctl(&self, world: &World, end: End, arguments: &[&str]) -> Result<String, TestbedError> {
        let folder = self.folder(end);
        let mut command = world.command(end, "swanctl");
        command.args(arguments).arg("--uri").arg(format!("unix://{}/vici", folder.display()));
        command.env("SWANCTL_DIR", &folder).env("STRONGSWAN_CONF", folder.join("plain.conf")).stderr(Stdio::piped());
        let output = command.output().map_err(|error| TestbedError::Failed(format!("cannot run swanctl: {error}")))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(TestbedError::Failed(format!("swanctl {} on {end}: {errors}; {}", arguments.join(" "), self.last_words())))
    }

    fn last_words(&self) -> String {
        let log = |end| std::fs::read_to_string(self.folder(end).join("charon.log")).unwrap_or_default();
        let last = |end: End| format!("{end}: {}", log(end).lines().last().unwrap_or("it printed nothing"));
        End::BOTH.map(last).join("; ")
    }
}

impl Started for Pair {
    fn check(&mut self) -> Result<(), TestbedError> {
        for (host, end) in End::BOTH.into_iter().enumerate() {
            if let Some(status) = self.running.get_mut(host).and_then(Running::poll) {
                return Err(TestbedError::Failed(format!(
                    "charon on {end} ended with {status}: {}",
                    self.last_words()
                )));
            }
        }
        Ok(())
    }

    fn counters(&self, world: &World) -> Result<[Counters; 2], TestbedError> {
        let one = |end| Ok(parse(&self.swanctl(world, end, &["--list-sas", "--raw"])?));
        Ok([one(End::Sun)?, one(End::Moon)?])
    }

    fn processes(&self) -> Vec<u32> {
        self.running.iter().map(Running::id).collect()
    }
}

/// The sums over all Child SAs in what `swanctl --list-sas --raw` prints.
fn parse(text: &str) -> Counters {
    let sum = |key: &str| {
        let values = text.split([' ', '{', '}']).filter_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        values.filter_map(|value| value.parse::<u64>().ok()).sum()
    };
    let count = |packets: &str, bytes: &str| Count { packets: Some(sum(packets)), bytes: sum(bytes) };
    Counters {
        sent: count("packets-out", "bytes-out"),
        received: count("packets-in", "bytes-in"),
        ..Counters::default()
    }
}

fn daemon() -> String {
    let plugins = "random nonce aes aesni sha1 sha2 hmac kdf curve25519 x509 pubkey pem openssl gcm kernel-libipsec \
                   kernel-netlink socket-default vici";
    format!(
        "charon {{\n  load_modular = no\n  load = {plugins}\n  filelog {{\n    log {{\n      path = /mnt/charon.log\n      \
         default = 1\n      flush_line = yes\n    }}\n  }}\n  plugins {{\n    vici {{\n      socket = unix:///mnt/vici\n    \
         }}\n  }}\n}}\n"
    )
}

fn connection(world: &World, end: End, secret: &str) -> String {
    let there = end.other();
    format!(
        "connections {{\n  lab {{\n    version = 2\n    proposals = aes128gcm16-prfsha256-x25519\n    local_addrs = {here}\n    \
         remote_addrs = {peer}\n    local {{\n      auth = psk\n      id = {end}.example\n    }}\n    remote {{\n      \
         auth = psk\n      id = {there}.example\n    }}\n    children {{\n      lab {{\n        esp_proposals = aes128gcm16\n        \
         local_ts = {near}\n        remote_ts = {far}\n        rekey_time = 0\n      }}\n    }}\n  }}\n}}\n\
         secrets {{\n  ike-lab {{\n    secret = 0x{secret}\n  }}\n}}\n",
        here = world.plan.outer(end),
        peer = world.plan.outer(there),
        near = world.plan.network(end),
        far = world.plan.network(there),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_child_sas_are_added() {
        let text = "list-sa event {lab {uniqueid=1 child-sas {lab-1 {bytes-in=84 packets-in=1 bytes-out=168 packets-out=2} \
                    lab-2 {bytes-in=1 packets-in=1 bytes-out=2 packets-out=2}}}}\n";
        let counters = parse(text);
        assert_eq!((counters.received.packets, counters.received.bytes), (Some(2), 85));
        assert_eq!((counters.sent.packets, counters.sent.bytes), (Some(4), 170));
    }
}
