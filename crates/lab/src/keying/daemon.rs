//! The same figures of `weir up` itself: a whole daemon, real sockets, certificates, SAs in the
//! data plane.
//!
//! The daemon runs on one core in a separate network namespace; on another core this process
//! simulates all of its peers on one TUN device, each with a different address. The metrics are
//! those of an operator: established Child SAs on both sides, resident memory and CPU time of the
//! daemon.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use base64::Engine as _;
use crypto::ike::PrivateKey;
use dataplane::{Batch, Port};
use ike::output::{Output, Transmit};
use ports::{TunConfig, TunPort};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::Timespec;
use wire::IpProto;
use wire::ip::{IPV4_HEADER, Ipv4Header};
use wire::udp::UdpHeader;

use super::FLOOD_PPS;
use super::host::{Client, Credentials, GATEWAY, client_named, pump_with};
use crate::metric::Metric;
use testbed::child::{Interrupt, Running};
use testbed::counters::ProcessUse;
use testbed::pki::{Pki, write_private};
use testbed::world::End;

/// Device that all peers use.
const DEVICE: &str = "peers";
/// NAT-T port; messages there start with the marker of RFC 3948 §2.2.
const NAT_T: u16 = 4500;
/// Peers that are in the middle of their handshake at the same time.
const WINDOW: usize = 256;
/// Timeout of the daemon's start, and of an IKE SA.
const PATIENCE: Duration = Duration::from_secs(20);
/// Seconds of the flood; honest peers come from the second one on, so many a second.
const FLOOD_SECONDS: u64 = 6;
const HONEST_PER_S: u64 = 5;

/// Result of the measurement.
#[derive(Clone, Debug)]
pub(crate) struct DaemonOutcome {
    /// IKE SAs with one Child SA each that came up and were held.
    sas: usize,
    /// Seconds until the last of them was up.
    seconds: f64,
    /// IKE SAs per second over the first, second … tenth part of them.
    rates: Vec<f64>,
    /// Processor time of the daemon for them, in seconds.
    cpu_s: f64,
    /// Resident memory of the daemon before and with them, in bytes.
    rss: [u64; 2],
    /// Spoofed requests per second.
    flood_pps: f64,
    /// Seconds that each honest peer needed in the flood; `None` for one that did not come up.
    honest_s: Vec<Option<f64>>,
    /// Processor time of the daemon over the time of the flood.
    flood_load: f64,
    /// Resident memory of the daemon before the flood and at most, in bytes.
    flood_rss: [u64; 2],
    /// Bytes that the daemon sent for each byte of the flood.
    amplification: f64,
}

impl DaemonOutcome {
    /// As a trial keeps it.
    pub(crate) fn values(&self) -> impl Iterator<Item = (Metric<'static>, f64)> {
        let took: Vec<f64> = self.honest_s.iter().flatten().copied().collect();
        let sas = self.sas as f64;
        let figures = [
            (Metric::IkeSasPerS, sas / self.seconds),
            (Metric::IkeSasPerSSlowest, self.rates.iter().copied().fold(f64::MAX, f64::min)),
            (Metric::IkeSasPerCpuS, sas / self.cpu_s),
            (Metric::IkeSaBytes, self.rss[1].saturating_sub(self.rss[0]) as f64 / sas),
            (Metric::DaemonBytes, self.rss[0] as f64),
            (Metric::FloodPps, self.flood_pps),
            (Metric::FloodHonestMissing, (self.honest_s.len() - took.len()) as f64),
            (Metric::FloodCorePercent, self.flood_load * 100.0),
            (Metric::FloodBytes, self.flood_rss[1].saturating_sub(self.flood_rss[0]) as f64),
            (Metric::FloodAmplification, self.amplification),
        ];
        // They are sorted.
        let slowest = took.last().map(|slowest| (Metric::FloodUpMs, slowest * 1e3));
        figures.into_iter().chain(slowest)
    }
}

/// Measures a daemon with so many IKE SAs, one Child SA each, and a flood, within a private network
/// namespace, with files in `dir`.
///
/// # Errors
/// A daemon that does not start, an IKE SA that is not established, a signal.
pub(crate) fn run(sas: usize, dir: &Path, interrupt: &Interrupt) -> anyhow::Result<DaemonOutcome> {
    let pki = Pki::make().context("cannot make certificates")?;
    let mut peers = Peers::open(vec![credentials(&pki, pki.leaf(End::Moon), &Pki::name(End::Moon))?])?;

    let mut daemon = Daemon::start(&dir.join("sas"), &pki, None)?;
    let before = daemon.usage()?;
    let start = Instant::now();
    let mut marks = vec![(0, start)];
    let part = sas.div_ceil(10).max(1);
    peers.bring_up(sas, &mut |up| {
        if up % part == 0 || up == sas {
            marks.push((up, Instant::now()));
        }
        Ok(interrupt.check()?)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let after = daemon.usage()?;
    daemon.stop();

    let mut daemon = Daemon::start(&dir.join("flood"), &pki, None)?;
    let flood = peers.flood(&mut daemon, interrupt)?;
    daemon.stop();
    let rate = |pair: &[(usize, Instant)]| (pair[1].0 - pair[0].0) as f64 / (pair[1].1 - pair[0].1).as_secs_f64();
    let rates = marks.windows(2).map(rate).collect();
    Ok(DaemonOutcome {
        sas,
        seconds,
        rates,
        cpu_s: after.cpu_s() - before.cpu_s(),
        rss: [before, after].map(|usage| usage.resident_bytes),
        ..flood
    })
}

fn ip(arguments: &str) -> anyhow::Result<()> {
    let done = Command::new("ip").args(arguments.split(' ')).output().context("cannot run 'ip'")?;
    ensure!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(())
}

/// Credentials of peers with that certificate and private key, towards the gateway.
pub(super) fn credentials(pki: &Pki, (cert, key): (&str, &str), name: &str) -> anyhow::Result<Credentials> {
    let read = |pem: &str| PrivateKey::from_der(&der(pem)).context("a private key");
    let (name, certs) = (name.to_owned(), vec![der(cert)]);
    let peer = read(pki.leaf(End::Sun).1)?.public().clone();
    Ok(Credentials { name, shared: None, key: read(key)?, certs, peer })
}

/// Contents of a PEM text.
fn der(pem: &str) -> Vec<u8> {
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    base64::engine::general_purpose::STANDARD.decode(body.trim()).unwrap_or_default()
}

/// Processor time and memory of a daemon.
pub(super) fn usage(process: u32) -> anyhow::Result<ProcessUse> {
    ProcessUse::of(process).context("the daemon exited")
}

/// `weir up` on the first core that this process may use.
pub(super) struct Daemon {
    running: Running,
    log: PathBuf,
}

impl Daemon {
    /// Starts it with certificates, or with a key that it shares with all peers.
    pub(super) fn start(dir: &Path, pki: &Pki, shared: Option<&str>) -> anyhow::Result<Self> {
        fs::create_dir_all(dir)?;
        pki.write(End::Sun, dir)?;
        let file = dir.join("swanctl.conf");
        write_private(&file, &config(dir, shared))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(std::env::current_exe()?).args(["up", "--config"]).arg(&file);
        let log = dir.join("log");
        let mut daemon = Self { running: on_first_core(command, &log)?, log };
        let end = Instant::now() + PATIENCE;
        while !daemon.running.errors().contains("weir: ready") {
            let ended = daemon.running.poll().is_some() || Instant::now() > end;
            ensure!(!ended, "weir up is not ready ({}): {}", daemon.log.display(), daemon.running.errors());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }

    pub(super) fn usage(&self) -> anyhow::Result<ProcessUse> {
        usage(self.running.id())
    }

    pub(super) fn stop(&mut self) {
        self.running.stop();
    }
}

/// Starts a daemon on the first core that this process may use, which itself moves to the second.
pub(super) fn on_first_core(command: Command, log: &Path) -> anyhow::Result<Running> {
    // The child takes the affinity of this thread with it.
    let cores = cores();
    pin(&cores, 0)?;
    let running = Running::start(command, log);
    pin(&cores, 1)?;
    Ok(running?)
}

fn cores() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect()
}

/// Pins this thread and its children to one core.
fn pin(cores: &[usize], which: usize) -> anyhow::Result<()> {
    let Some(core) = cores.get(which % cores.len().max(1)) else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(*core);
    sched_setaffinity(None, &set).context("cannot choose a core")
}

/// The responder of every peer.
fn config(dir: &Path, shared: Option<&str>) -> String {
    let dir = dir.display();
    format!(
        "gateway {{\n    socket = \"{dir}/weir.vici\"\n    state_dir = \"{dir}/state\"\n    \
         log = warn\n}}\n{}",
        connections(shared)
    )
}

/// The part of the configuration that Weir and strongSwan have in common.
pub(super) fn connections(shared: Option<&str>) -> String {
    let own = Pki::name(End::Sun);
    let (auth, certs) = if shared.is_some() { ("psk", "") } else { ("pubkey", "certs = sun.pem\n            ") };
    let secrets =
        shared.map_or_else(String::new, |key| format!("secrets {{\n    ike {{\n        secret = {key}\n    }}\n}}\n"));
    format!(
        "connections {{\n    peers {{\n        version = 2\n        local_addrs = {local}\n        \
         proposals = aes128gcm16-prfsha256-x25519\n        unique = never\n        \
         local {{\n            auth = {auth}\n            {certs}id = {own}\n        }}\n        \
         remote {{\n            auth = {auth}\n            id = %any\n        }}\n        \
         children {{\n            net {{\n                local_ts = 10.200.0.0/16\n                remote_ts = 100.0.0.0/8\n                \
         esp_proposals = aes128gcm16-x25519\n            }}\n        }}\n    }}\n}}\n{secrets}",
        local = GATEWAY.ip(),
    )
}

/// All peers, on one device.
pub(super) struct Peers {
    /// Credentials, which peers have in turn.
    pub(super) who: Vec<Credentials>,
    device: TunPort,
    batch: Batch,
    /// In the middle of their handshake, by number; since when.
    busy: HashMap<usize, (Client, Instant)>,
    next: usize,
    /// Bytes without a matching peer.
    stray_bytes: u64,
    /// Peers that are in the middle of their handshake at the same time, at most.
    pub(super) window: usize,
}

impl Peers {
    pub(super) fn open(who: Vec<Credentials>) -> anyhow::Result<Self> {
        for arguments in ["link set lo up", "addr replace 10.200.0.1/16 dev lo"] {
            ip(arguments)?;
        }
        let config = TunConfig {
            name: DEVICE.to_owned(),
            mtu: 1500,
            addresses: vec![(GATEWAY.ip(), 32)],
            queues: 1,
            v6: false,
            offload: false,
        };
        let device = TunPort::open(&config)?.pop().context("a device without queue")?;
        for of in ["all", DEVICE] {
            let _ = fs::write(format!("/proc/sys/net/ipv4/conf/{of}/rp_filter"), "0");
        }
        for network in ["10.0.0.0/8", "198.18.0.0/15"] {
            ip(&format!("route replace {network} dev {DEVICE}"))?;
        }
        Ok(Self {
            who,
            device,
            batch: Batch::new(256, 2048),
            busy: HashMap::new(),
            next: 0,
            stray_bytes: 0,
            window: WINDOW,
        })
    }

    /// Establishes `count` IKE SAs, some at a time, and reports progress to `report`.
    pub(super) fn bring_up(
        &mut self,
        count: usize,
        report: &mut dyn FnMut(usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (first, mut up) = (self.next, 0);
        while up < count {
            while self.busy.len() < self.window && self.next < first + count {
                self.begin()?;
            }
            for _ in 0..self.turn(Duration::from_millis(5))?.len() {
                up += 1;
                report(up)?;
            }
            if let Some((number, _)) = self.busy.iter().find(|(_, (_, since))| since.elapsed() > PATIENCE) {
                bail!("the IKE SA of peer {number} was not established within {} s", PATIENCE.as_secs());
            }
        }
        Ok(())
    }

    fn who(&self, number: usize) -> &Credentials {
        &self.who[number % self.who.len()]
    }

    /// The next peer begins.
    fn begin(&mut self) -> anyhow::Result<usize> {
        let (number, now) = (self.next, Instant::now());
        self.next += 1;
        let mut client = client_named(number, self.who(number), &Pki::name(End::Sun));
        client.initiate(now);
        self.busy.insert(number, (client, now));
        self.work(number, now)?;
        Ok(number)
    }

    /// Receives datagrams, with a timeout. Peers that are up now, and how long they took.
    fn turn(&mut self, longest: Duration) -> anyhow::Result<Vec<(usize, Duration)>> {
        let mut batch = std::mem::replace(&mut self.batch, Batch::new(1, 0));
        self.device.rx(&mut batch)?;
        if batch.is_empty() {
            let timeout = Timespec { tv_sec: 0, tv_nsec: longest.subsec_nanos().into() };
            let readable = self.device.readable().context("cannot poll the device")?;
            let _ = poll(&mut [PollFd::from_borrowed_fd(readable, PollFlags::IN)], Some(&timeout));
            self.device.rx(&mut batch)?;
        }
        let (now, mut up) = (Instant::now(), Vec::new());
        for packet in batch.packets() {
            let Some((from, to, message)) = datagram(packet.bytes()) else { continue };
            let [_, a, b, c] = to.ip().octets();
            let number = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some((client, _)) = self.busy.get_mut(&number).filter(|_| to.ip().octets()[0] == 10) else {
                self.stray_bytes += message.len() as u64;
                continue;
            };
            client.host.handle_datagram(now, to.into(), from.into(), message);
            if self.work(number, now)? {
                let took = self.busy.remove(&number).map_or(Duration::ZERO, |(_, since)| now - since);
                up.push((number, took));
            }
        }
        batch.clear();
        self.batch = batch;
        let due: Vec<usize> = self
            .busy
            .iter()
            .filter(|(_, (c, _))| c.host.deadline().is_some_and(|at| at <= now))
            .map(|(n, _)| *n)
            .collect();
        for number in due {
            if let Some((client, _)) = self.busy.get_mut(&number) {
                client.host.handle_timeout(now);
            }
            self.work(number, now)?;
        }
        Ok(up)
    }

    /// Executes the outputs of a peer; whether it is up.
    fn work(&mut self, number: usize, now: Instant) -> anyhow::Result<bool> {
        let Some((client, _)) = self.busy.get_mut(&number) else { return Ok(false) };
        let (mut sent, mut events, mut up) = (Default::default(), Vec::new(), false);
        let who = &self.who[number % self.who.len()];
        pump_with(&mut client.host, who, now, &mut sent, &mut events);
        for event in events {
            if let Output::Event(ike::output::Event::CommandDone(_, Err(why))) = &event {
                bail!("the IKE SA of peer {number} did not come up: {why}");
            }
            up |= client.hear(event);
        }
        for Transmit { local, remote, datagram, .. } in sent {
            self.send(local, remote, &datagram)?;
        }
        Ok(up)
    }

    fn send(&mut self, from: SocketAddr, to: SocketAddr, message: &[u8]) -> anyhow::Result<()> {
        let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { bail!("peers have IPv4 addresses") };
        let mut one = Batch::new(1, 2048);
        let marker: &[u8] = if to.port() == NAT_T { &[0; 4] } else { &[] };
        let packet = packet(from, to, &[marker, message]).context("a message is too long")?;
        ensure!(one.push_with(|slot| slot.set(&packet)), "a message of {} bytes is too long", message.len());
        self.device.tx(&mut one)?;
        Ok(())
    }

    /// Floods a daemon with spoofed requests while honest peers come.
    fn flood(&mut self, daemon: &mut Daemon, interrupt: &Interrupt) -> anyhow::Result<DaemonOutcome> {
        let mut template = self.template()?;
        // One-time memory of the first peer.
        self.bring_up(1, &mut |_| Ok(()))?;
        self.stray_bytes = 0;
        let before = daemon.usage()?;
        let (start, length) = (Instant::now(), Duration::from_secs(FLOOD_SECONDS));
        let (mut spoofed, mut began, mut rss_max) = (0_u64, 0, before.resident_bytes);
        let mut honest: HashMap<usize, Option<f64>> = HashMap::new();
        loop {
            interrupt.check()?;
            let elapsed = start.elapsed();
            let over = elapsed >= length;
            if over && (self.busy.is_empty() || elapsed > length + PATIENCE / 4) {
                break;
            }
            let due = if over { spoofed } else { (elapsed.as_secs_f64() * f64::from(FLOOD_PPS)) as u64 };
            for _ in 0..due.saturating_sub(spoofed).min(256) {
                spoofed += 1;
                let source = SocketAddrV4::new(Ipv4Addr::from_bits(0xc612_0000 + (spoofed & 0x1_ffff) as u32), 500);
                template[..8].copy_from_slice(&spoofed.to_be_bytes());
                self.send(source.into(), GATEWAY, &template)?;
            }
            let mine = elapsed.saturating_sub(Duration::from_secs(1)).as_secs_f64() * HONEST_PER_S as f64;
            if !over && began < mine as u64 {
                began += 1;
                honest.insert(self.begin()?, None);
            }
            for (number, took) in self.turn(Duration::from_micros(200))? {
                honest.insert(number, Some(took.as_secs_f64()));
            }
            if spoofed % 1024 < 16 {
                rss_max = rss_max.max(daemon.usage()?.resident_bytes);
            }
        }
        let (after, took) = (daemon.usage()?, start.elapsed());
        self.busy.clear();
        let mut honest_s: Vec<Option<f64>> = honest.into_values().collect();
        honest_s.sort_by(|a, b| a.unwrap_or(f64::MAX).total_cmp(&b.unwrap_or(f64::MAX)));
        Ok(DaemonOutcome {
            sas: 0,
            seconds: 0.0,
            rates: Vec::new(),
            cpu_s: 0.0,
            rss: [0; 2],
            flood_pps: spoofed as f64 / length.as_secs_f64(),
            honest_s,
            flood_load: (after.cpu_s() - before.cpu_s()) / took.as_secs_f64(),
            flood_rss: [before.resident_bytes, rss_max.max(after.resident_bytes)],
            amplification: self.stray_bytes as f64 / (spoofed.max(1) * template.len() as u64) as f64,
        })
    }

    /// A request as a peer sends it first.
    fn template(&mut self) -> anyhow::Result<Vec<u8>> {
        let (mut client, now) = (client_named((1 << 24) - 1, self.who(0), &Pki::name(End::Sun)), Instant::now());
        client.initiate(now);
        let (mut sent, mut events) = (std::collections::VecDeque::new(), Vec::new());
        pump_with(&mut client.host, self.who(0), now, &mut sent, &mut events);
        Ok(sent.pop_front().context("a request")?.datagram)
    }
}

/// A UDP datagram in an IPv4 packet; over IPv4 it needs no checksum.
fn packet(from: SocketAddrV4, to: SocketAddrV4, message: &[&[u8]]) -> Option<Vec<u8>> {
    const HEADERS: usize = IPV4_HEADER + UdpHeader::LEN;
    let message = message.concat();
    let mut packet = [&[0; HEADERS][..], &message].concat();
    let ip = Ipv4Header::new(*from.ip(), *to.ip(), IpProto::UDP, UdpHeader::LEN + message.len())?;
    ip.emit(&mut packet).ok()?;
    UdpHeader::new(from.port(), to.port(), message.len())?.emit(&mut packet[IPV4_HEADER..]).ok()?;
    Some(packet)
}

/// Sender, receiver and IKE message of a packet, if it is one.
fn datagram(packet: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4, &[u8])> {
    if packet.len() < 28 || packet[0] != 0x45 || packet[9] != IpProto::UDP.0 {
        return None;
    }
    let addr = |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
    let (udp, message) = UdpHeader::parse_exact(&packet[20..]).ok()?;
    let message = if udp.src_port.get() == NAT_T { message.strip_prefix(&[0; 4])? } else { message };
    let at = |addr, port: u16| SocketAddrV4::new(addr, port);
    Some((at(addr(12), udp.src_port.get()), at(addr(16), udp.dst_port.get()), message))
}

#[cfg(test)]
mod tests {
    use super::super::host::address;
    use super::*;

    #[test]
    fn a_message_arrives_as_it_was_sent() {
        for port in [500, NAT_T] {
            let (from, to) =
                (SocketAddrV4::new([10, 0, 1, 2].into(), port), SocketAddrV4::new([192, 0, 2, 1].into(), port));
            let marker: &[u8] = if port == NAT_T { &[0; 4] } else { &[] };
            let sent = packet(from, to, &[marker, b"message"]).unwrap();
            assert_eq!(datagram(&sent), Some((from, to, &b"message"[..])));
        }
        assert_eq!(datagram(&[0x45; 27]), None);
        let SocketAddr::V4(third) = address(3) else { panic!() };
        assert_eq!(third.ip().octets(), [10, 0, 0, 3]);
    }
}
