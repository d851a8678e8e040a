//! All hosts, the time and the wires.
//!
//! After every step: each outbound half in use has its inbound twin at the peer, alive and with the
//! same keys, unless the peer ended it knowingly (a Delete in flight, a peer considered dead, a
//! crash) or cannot have it yet (the first Child SA of a responder); no two SAs have a key in
//! common; no host receives twice under an SPI; every policy that prevents clear text is installed;
//! no table is above its limit.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ike::Settings;
use ike::output::{ChildId, Transmit};

use crate::net::Link;
use crate::{Dice, Host};

/// Lines of the story that are shown when it goes wrong.
const LINES_SHOWN: usize = 120;
/// IKE SAs per connection that a host may have at any time, half-open ones not counted: duplicates
/// of both directions, their successors, attempts, and those that wait for their deletion.
const IKE_SAS_MAX: usize = 40;

/// Something on the wire.
#[derive(Clone)]
enum Packet {
    /// A datagram of IKE.
    Ike(Vec<u8>),
    /// A packet of a Child SA, by the SPI and key of its receiver.
    Protected { spi: u32, key: Vec<u8> },
}

struct Flying {
    from: SocketAddr,
    to: SocketAddr,
    packet: Packet,
}

/// All hosts.
pub struct World {
    /// Time of the simulation.
    pub now: Instant,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// Disturbances of each link, by the host other than host 0.
    pub links: Vec<Link>,
    /// Until when a host can neither send nor receive.
    pub dark: Vec<Instant>,
    /// Decides what links do.
    pub dice: Dice,
    /// Datagrams that were sent, counted.
    pub sent: usize,
    /// Numbers of datagrams that are lost whatever the link does.
    pub lose: Vec<usize>,
    /// A request of IKE_SA_INIT that was seen, for a flood.
    pub init: Option<(SocketAddr, Vec<u8>)>,
    start: Instant,
    flying: BTreeMap<(Instant, u64), Flying>,
    order: u64,
    keys: HashMap<Vec<u8>, u32>,
    lines: VecDeque<String>,
    tell: bool,
    hash: DefaultHasher,
}

impl World {
    /// `count` hosts that know nothing of each other.
    pub fn new(seed: u64, count: u8, settings: &Settings, tell: bool) -> Self {
        #[allow(clippy::disallowed_methods)]
        let now = Instant::now();
        Self {
            now,
            hosts: (1..=count).map(|number| Host::new(seed, number, settings.clone(), now)).collect(),
            links: vec![Link::CALM; count.into()],
            dark: vec![now; count.into()],
            dice: Dice::new(seed ^ 0x1_0000_0000),
            sent: 0,
            lose: Vec::new(),
            init: None,
            start: now,
            flying: BTreeMap::new(),
            order: 0,
            keys: HashMap::new(),
            lines: VecDeque::new(),
            tell,
            hash: DefaultHasher::new(),
        }
    }

    /// Time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// A fingerprint of everything that happened.
    pub fn fingerprint(&self) -> u64 {
        self.hash.finish()
    }

    /// Adds a line to the story.
    pub fn note(&mut self, text: &str) {
        let line = format!("{:10.3} {text}", self.elapsed().as_secs_f64());
        if self.tell {
            eprintln!("{line}");
        }
        if self.lines.len() == LINES_SHOWN {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Ends the story badly.
    pub fn fail(&self, why: &str) -> ! {
        let story: Vec<&str> = self.lines.iter().map(String::as_str).collect();
        panic!("{}\nafter {:.3} s: {why}", story.join("\n"), self.elapsed().as_secs_f64());
    }

    /// Runs an action on a host, and executes its outputs.
    pub fn act<T>(&mut self, host: usize, run: impl FnOnce(&mut Host, Instant) -> T) -> T {
        let now = self.hosts[host].now(self.now);
        let result = run(&mut self.hosts[host], now);
        self.pump(host);
        result
    }

    /// A host loads its configuration.
    pub fn load(&mut self, host: usize) {
        self.hosts[host].load(self.now);
        self.pump(host);
    }

    /// A host crashes and restarts.
    pub fn restart(&mut self, host: usize) {
        self.hosts[host].restart(self.now);
        self.pump(host);
    }

    fn pump(&mut self, host: usize) {
        match self.hosts[host].pump(self.now) {
            Ok((sent, lines)) => {
                for line in lines {
                    self.note(&format!("[{}] {line}", host + 1));
                }
                for transmit in sent {
                    self.transmit(host, transmit);
                }
            }
            Err(why) => self.fail(&format!("host {}: {why}", host + 1)),
        }
        self.check();
    }

    fn transmit(&mut self, host: usize, transmit: Transmit) {
        let Transmit { local, remote, datagram, .. } = transmit;
        // Exchange, flags, message ID and length: keys and nonces are drawn by the library, not by
        // the seed.
        (host, self.elapsed(), &datagram[17..24], datagram.len()).hash(&mut self.hash);
        if self.tell {
            let (kind, flags, id) = (datagram[18], datagram[19], &datagram[20..24]);
            let text = format!(
                "{local} > {remote} #{} exchange {kind} flags {flags:02x} id {id:02x?} {} bytes",
                self.sent,
                datagram.len()
            );
            self.note(&text);
        }
        if datagram[18] == 34 && datagram[19] & 0x20 == 0 {
            self.init = Some((remote, datagram.clone()));
        }
        let number = self.sent;
        self.sent += 1;
        if !self.lose.contains(&number) {
            self.send(host, local, remote, Packet::Ike(datagram));
        }
    }

    /// A packet is sent through a Child SA in use, if the peer still has an address.
    pub fn protect(&mut self, host: usize, child: ChildId) {
        let Some(sa) = self.hosts[host].plane.sas.get(&child).filter(|sa| sa.used) else { return };
        let (path, packet) =
            (sa.path, Packet::Protected { spi: sa.child.outbound.spi.get(), key: sa.child.outbound.enc.to_vec() });
        if self.hosts[host].addrs.contains(&path.local.ip()) {
            self.send(host, path.local, path.remote, packet);
        }
    }

    fn send(&mut self, host: usize, local: SocketAddr, remote: SocketAddr, packet: Packet) {
        let from = self.hosts[host].nat.as_mut().map_or(local, |nat| nat.out(local));
        let to = self.hosts.iter().position(|other| other.receives(remote).is_some()).unwrap_or(host);
        if [host, to].iter().any(|end| self.dark[*end] > self.now) {
            return;
        }
        let link = self.links[host.max(to)].clone();
        for (delay, damaged) in link.copies(&mut self.dice) {
            let mut packet = packet.clone();
            if damaged {
                let Packet::Ike(datagram) = &mut packet else { continue };
                let bit = self.dice.below(datagram.len() * 8);
                datagram[bit / 8] ^= 1 << (bit % 8);
            }
            self.fly(delay, Flying { from, to: remote, packet });
        }
    }

    fn fly(&mut self, delay: Duration, flying: Flying) {
        self.order += 1;
        self.flying.insert((self.now + delay, self.order), flying);
    }

    /// An outside attacker sends a datagram with a spoofed source address.
    pub fn spoof(&mut self, from: SocketAddr, to: SocketAddr, datagram: Vec<u8>) {
        self.fly(Duration::ZERO, Flying { from, to, packet: Packet::Ike(datagram) });
    }

    /// Returns whether a datagram is in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        self.flying.is_empty()
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let timers = self.hosts.iter().enumerate().filter_map(|(at, host)| Some((host.deadline()?, at)));
            let timer = timers.min();
            let arrival = self.flying.first_key_value().map(|(key, _)| key.0);
            let Some(due) = timer.map(|(at, _)| at).into_iter().chain(arrival).min().filter(|due| *due <= end) else {
                break;
            };
            self.now = self.now.max(due);
            if arrival == Some(due) {
                self.deliver();
            } else if let Some((_, host)) = timer {
                self.act(host, |host, now| host.endpoint.handle_timeout(now));
            }
        }
        self.now = end;
    }

    fn deliver(&mut self) {
        let Some((_, Flying { from, to, packet })) = self.flying.pop_first() else { return };
        let arrives = self.hosts.iter().enumerate().find_map(|(at, host)| Some((at, host.receives(to)?)));
        let Some((host, local)) = arrives.filter(|(host, _)| self.dark[*host] <= self.now) else { return };
        match packet {
            Packet::Ike(datagram) => {
                self.act(host, |host, now| host.endpoint.handle_datagram(now, local, from, &datagram));
            }
            Packet::Protected { spi, key } => {
                let now = self.hosts[host].now(self.now);
                self.hosts[host].plane.sweep(now);
                let Some((id, sa)) = self.hosts[host].plane.inbound(spi) else { return };
                if *sa.child.inbound.enc != *key {
                    self.fail(&format!("host {}: a packet under {spi:08x} has another key than {id:?}", host + 1));
                }
                let (id, source) = (*id, sa.path.encap.then_some(from));
                self.act(host, |host, now| host.endpoint.traffic(now, id, source));
            }
        }
    }

    /// Invariants after every step.
    fn check(&mut self) {
        let mut changed = false;
        for at in 0..self.hosts.len() {
            let now = self.hosts[at].now(self.now);
            let plane = &mut self.hosts[at].plane;
            plane.sweep(now);
            changed |= std::mem::take(&mut plane.changed);
            for (key, spi) in std::mem::take(&mut plane.new_keys) {
                if *self.keys.entry(key).or_insert(spi) != spi {
                    self.fail(&format!("host {}: the SA {spi:08x} has the key of another", at + 1));
                }
            }
        }
        if changed && let Err(why) = self.check_twins().and_then(|()| self.check_tables()) {
            self.fail(&why);
        }
    }

    fn check_twins(&self) -> Result<(), String> {
        for (at, host) in self.hosts.iter().enumerate() {
            for (id, sa) in host.plane.used() {
                let (peer, spi) = (&self.hosts[sa.peer].plane, sa.child.outbound.spi.get());
                let whose = || format!("host {}: {id:?} to {} ({spi:08x})", at + 1, sa.peer + 1);
                match peer.inbound(spi) {
                    Some((_, twin)) if twin.peer != at => {
                        return Err(format!("{} reaches an SA with host {}", whose(), twin.peer + 1));
                    }
                    Some((_, twin)) if twin.child.inbound.enc != sa.child.outbound.enc => {
                        return Err(format!("{}: the peer has another key", whose()));
                    }
                    Some(_) => (),
                    None if peer.has_ended(spi) || sa.fresh => (),
                    None if !peer.had(spi) && host.plane.had_to_switch(host.now(self.now), sa) => (),
                    None => return Err(format!("{}: the peer has no inbound half for what is in use", whose())),
                }
            }
        }
        Ok(())
    }

    fn check_tables(&self) -> Result<(), String> {
        for (at, host) in self.hosts.iter().enumerate() {
            if let Some((connection, child)) = host.plane.expected.difference(&host.plane.traps).next() {
                return Err(format!("host {}: nothing keeps packets of {connection} {child} from leaving", at + 1));
            }
            let half_open = host.endpoint.half_open_count();
            let others = host.endpoint.ike_sa_count() - half_open;
            if half_open > host.settings.half_open_max || others > IKE_SAS_MAX * host.connections.len().max(1) {
                return Err(format!("host {} has {half_open} half-open and {others} other IKE SAs", at + 1));
            }
        }
        Ok(())
    }
}
