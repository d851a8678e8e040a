//! Set-up rates of `weir up` and of strongSwan's charon, in turns: the same peers, suites and
//! credentials, each daemon alone on the same core.
//!
//! charon runs with its data plane in user space (kernel-libipsec), so that both daemons install
//! SAs, policies and routes of a device of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use stats::{Estimate, Rng};

use super::daemon::{Daemon, Peers, connections, credentials, on_first_core, usage};
use super::host::Credentials;
use testbed::child::{Interrupt, Running};
use testbed::pki::{Pki, write_private};
use testbed::world::End;

/// Certificates of peers: more than charon's cache has room for (32 issuers and subjects), because
/// peers of a gateway rarely come back within a cache's lifetime.
const CERTIFICATES: usize = 128;
/// Shared key of the variant without certificates.
const SHARED: &str = "0x6d6f6f6e6c6967687420616e642073756e6c69676874";
/// Peers at the same time: more than 64 overflow charon's receive buffer, and what is lost comes
/// again after seconds.
const WINDOW: usize = 64;
const CHARON: &str = "usr/lib/ipsec/charon";
/// Timeout of charon's start.
const PATIENCE: Duration = Duration::from_secs(20);

/// Authentication of both hosts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Proof {
    /// Certificates and signatures with ECDSA P-256.
    Ecdsa,
    /// A shared key.
    Psk,
}

impl Proof {
    pub(crate) const ALL: [Self; 2] = [Self::Ecdsa, Self::Psk];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ecdsa => "ECDSA P-256",
            Self::Psk => "PSK",
        }
    }

    fn shared(self) -> Option<&'static str> {
        (self == Self::Psk).then_some(SHARED)
    }
}

/// IKE SAs per second: by the clock, and by the processor time of the daemon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) wall: f64,
    pub(crate) cpu: f64,
}

/// Rates of each round.
pub(crate) struct Outcome {
    pub(crate) proof: Proof,
    pub(crate) weir: Vec<Rate>,
    pub(crate) charon: Vec<Rate>,
}

impl Outcome {
    /// Weir's rate over charon's, from the rounds as pairs.
    pub(crate) fn ratio(&self, of: fn(&Rate) -> f64) -> Option<Estimate> {
        let pairs = self.weir.iter().zip(&self.charon);
        let logs: Vec<f64> = pairs.map(|(weir, charon)| (of(weir) / of(charon)).ln()).collect();
        stats::paired(&[logs], &mut Rng::new(1)).map(|ratio| ratio.ratio)
    }
}

/// What to measure.
pub(crate) struct Plan {
    pub(crate) proofs: Vec<Proof>,
    /// IKE SAs of one measurement, each with a Child SA.
    pub(crate) sas: usize,
    /// IKE SAs that exist before.
    pub(crate) existing: usize,
    pub(crate) rounds: usize,
    /// Also strongSwan.
    pub(crate) rival: bool,
    /// System that charon is taken from.
    pub(crate) root: PathBuf,
}

impl Plan {
    /// Version of charon.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn version(&self) -> anyhow::Result<String> {
        let output = Command::new("chroot").arg(&self.root).args([&format!("/{CHARON}"), "--version"]).output();
        let output = output.context("cannot run chroot")?;
        let packages = "strongswan-charon, strongswan-swanctl and libcharon-extra-plugins";
        ensure!(output.status.success(), "no {CHARON} in {}; on Debian: {packages}", self.root.display());
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Measures within a private network namespace, with files in `dir`. `report` receives each
    /// rate.
    ///
    /// # Errors
    /// A daemon that does not start, an IKE SA that is not established, a signal.
    pub(crate) fn run(
        &self,
        dir: &Path,
        interrupt: &Interrupt,
        report: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Vec<Outcome>> {
        let pki = Pki::with_peers(CERTIFICATES).context("cannot make certificates")?;
        let mut peers = Peers::open(who(&pki, Proof::Ecdsa)?)?;
        peers.window = WINDOW;
        let new = |proof: &Proof| Outcome { proof: *proof, weir: Vec::new(), charon: Vec::new() };
        let mut outcomes: Vec<Outcome> = self.proofs.iter().map(new).collect();
        for round in 0..self.rounds {
            for outcome in &mut outcomes {
                let proof = outcome.proof;
                peers.who = who(&pki, proof)?;
                // A round is a pair; every second one begins with the other daemon.
                for charon in [round % 2 == 1, round % 2 == 0] {
                    if charon && !self.rival {
                        continue;
                    }
                    let dir = dir.join(format!("{round}-{proof:?}-{charon}"));
                    let rate = match charon {
                        true => self.measure(&mut peers, Charon::start(&self.root, &dir, &pki, proof)?, interrupt)?,
                        false => self.measure(&mut peers, Daemon::start(&dir, &pki, proof.shared())?, interrupt)?,
                    };
                    let name = if charon { "strongSwan" } else { "weir up" };
                    report(&format!(
                        "round {} of {}, {}: {name} {:.0} IKE SAs per second, {:.0} per second of its processor time",
                        round + 1,
                        self.rounds,
                        proof.name(),
                        rate.wall,
                        rate.cpu
                    ));
                    if charon { outcome.charon.push(rate) } else { outcome.weir.push(rate) }
                }
            }
        }
        Ok(outcomes)
    }

    fn measure(&self, peers: &mut Peers, mut daemon: impl Responder, interrupt: &Interrupt) -> anyhow::Result<Rate> {
        let tick = &mut |_| Ok(interrupt.check()?);
        // At least one-time work of the first peers.
        peers.bring_up(self.existing.max(16), tick)?;
        let (before, start) = (daemon.cpu_s()?, Instant::now());
        peers.bring_up(self.sas, tick)?;
        let (seconds, sas) = (start.elapsed().as_secs_f64(), self.sas as f64);
        let cpu_s = daemon.cpu_s()? - before;
        daemon.end();
        Ok(Rate { wall: sas / seconds, cpu: sas / cpu_s })
    }
}

fn who(pki: &Pki, proof: Proof) -> anyhow::Result<Vec<Credentials>> {
    let of = |(number, (cert, key)): (usize, &(String, String))| {
        let mut who = credentials(pki, (cert, key), &Pki::peer_name(number))?;
        who.shared = proof.shared().map(|_| secret());
        Ok(who)
    };
    pki.peers.iter().enumerate().map(of).collect()
}

/// Octets of [`SHARED`].
fn secret() -> Vec<u8> {
    let digits = SHARED.as_bytes()[2..].chunks_exact(2);
    digits.map(|two| u8::from_str_radix(str::from_utf8(two).expect("ASCII"), 16).expect("hex")).collect()
}

/// A daemon under load.
trait Responder {
    fn cpu_s(&self) -> anyhow::Result<f64>;
    fn end(&mut self);
}

impl Responder for Daemon {
    fn cpu_s(&self) -> anyhow::Result<f64> {
        Ok(self.usage()?.cpu_s())
    }

    fn end(&mut self) {
        self.stop();
    }
}

/// charon of a system in a folder.
struct Charon(Running);

impl Charon {
    fn start(root: &Path, dir: &Path, pki: &Pki, proof: Proof) -> anyhow::Result<Self> {
        fs::create_dir_all(dir)?;
        pki.write(End::Sun, dir)?;
        write_private(&dir.join("strongswan.conf"), CONFIG)?;
        write_private(&dir.join("swanctl.conf"), &connections(proof.shared()))?;
        write_private(&dir.join("plain.conf"), "")?;
        // A mount namespace of its own: its files are at /mnt of its system, and its PID file in a
        // private /run. `setpriv` ends it with this process.
        let script = "mount --bind \"$0\" \"$1/mnt\" && mount -t tmpfs run \"$1/run\" && mount --rbind /dev \"$1/dev\" && \
                      mount -t proc proc \"$1/proc\" && exec chroot \"$1\" env STRONGSWAN_CONF=/mnt/strongswan.conf \"/$2\"";
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "--mount", "sh", "-c", script]).arg(dir).arg(root).arg(CHARON);
        let mut charon = Self(on_first_core(command, &dir.join("charon.out"))?);
        let (socket, end) = (dir.join("vici"), Instant::now() + PATIENCE);
        while !socket.exists() {
            let ended = charon.0.poll().is_some() || Instant::now() > end;
            ensure!(!ended, "charon did not create its socket: {}", charon.0.errors());
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut load = Command::new("swanctl");
        load.args(["--load-all", "--uri"]).arg(format!("unix://{}", socket.display()));
        load.env("SWANCTL_DIR", dir).env("STRONGSWAN_CONF", dir.join("plain.conf")).stdin(Stdio::null());
        let output = load.output().context("cannot run swanctl")?;
        ensure!(output.status.success(), "swanctl: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(charon)
    }
}

impl Responder for Charon {
    fn cpu_s(&self) -> anyhow::Result<f64> {
        Ok(usage(self.0.id())?.cpu_s())
    }

    fn end(&mut self) {
        self.0.stop();
    }
}

/// Cookies from as many half-open IKE SAs as with weir, tables for many IKE SAs, and a log as terse
/// as `log = warn`.
const CONFIG: &str = "charon {
  load_modular = no
  load = random nonce aes aesni sha1 sha2 hmac kdf curve25519 x509 pubkey pem openssl gcm kernel-libipsec kernel-netlink socket-default vici
  cookie_threshold = 30
  ikesa_table_size = 16384
  ikesa_table_segments = 16
  filelog {
    log {
      path = /mnt/charon.log
      default = -1
    }
  }
  plugins {
    vici {
      socket = unix:///mnt/vici
    }
  }
}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_that_of_pairs() {
        let rate = |cpu: f64| Rate { wall: cpu / 2.0, cpu };
        let (weir, charon) = ([900.0, 1010.0, 990.0].map(rate), [300.0, 337.0, 329.0].map(rate));
        let outcome = Outcome { proof: Proof::Psk, weir: weir.to_vec(), charon: charon.to_vec() };
        let ratio = outcome.ratio(|rate| rate.cpu).unwrap();
        assert!((ratio.value - 3.0).abs() < 0.01 && ratio.low > 2.9 && ratio.high < 3.1, "{ratio:?}");
        assert_eq!(secret().len(), 22);
    }

    /// Both daemons read the same text.
    #[test]
    fn connections_differ_in_their_credentials_only() {
        let (ecdsa, psk) = (connections(Proof::Ecdsa.shared()), connections(Proof::Psk.shared()));
        assert!(ecdsa.contains("certs = sun.pem") && !ecdsa.contains("secret"));
        assert!(psk.contains(SHARED) && !psk.contains("certs"));
        let rest = |text: &str| text.split("local {").next().map(str::to_owned);
        assert_eq!(rest(&ecdsa), rest(&psk));
    }
}
