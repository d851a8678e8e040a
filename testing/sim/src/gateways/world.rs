//! All sites, the time and the network between them, with what must hold after every step.
//!
//! * No clear packet of a protected selector leaves, by the packet path, by the routes or past the
//!   guard, and none is accepted from outside.
//! * A packet is delivered at its destination only, and once.
//! * No sequence number is used twice under the SPI of one SA.
//! * Nothing that only a defect can cause is counted, and no table grows without limit.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use gateway::simulation::{Gateway, Outgoing, RouteDecision, Sizes};

use super::packet::{PROTOCOL, Probe, Protected, addr};
use super::site::Site;
use crate::Dice;
use crate::net::Link;

/// Lines of the story that are shown when it goes wrong.
const LINES_SHOWN: usize = 80;
/// Child SAs of one gateway in the data plane at any time, for each child that is configured:
/// duplicates of both directions, their successors, those that only receive.
const CHILDREN_MAX: usize = 24;
/// Entries of each table of an endpoint, likewise.
const TABLE_MAX: usize = 200;

enum Payload {
    Ike { from: SocketAddr, to: SocketAddr, message: Vec<u8> },
    Packet { to: std::net::IpAddr, bytes: Vec<u8> },
}

/// All sites.
pub struct World {
    /// Time of the simulation.
    pub now: Instant,
    /// The sites.
    pub sites: Vec<Site>,
    /// Disturbances of each site's access to the network.
    pub links: Vec<Link>,
    /// Decides what the network does.
    pub dice: Dice,
    /// Datagrams of IKE that were sent.
    pub datagrams: usize,
    /// Packets that were delivered.
    pub delivered: usize,
    seed: u64,
    start: Instant,
    flying: BTreeMap<(Instant, u64), Payload>,
    order: u64,
    probes: HashMap<u32, Probe>,
    arrived: HashSet<u32>,
    /// Numbers used: site and its start, SPI, sequence number.
    used: HashSet<(usize, u64, u32, u32)>,
    lines: VecDeque<String>,
    tell: bool,
}

impl World {
    /// Sites without gateways.
    pub fn new(seed: u64, sites: usize, tell: bool) -> Self {
        #[allow(clippy::disallowed_methods)] // simulated time begins at some time
        let now = Instant::now();
        Self {
            now,
            sites: (0..sites).map(|number| Site::new(number, now)).collect(),
            links: vec![Link::CALM; sites],
            dice: Dice::new(seed ^ 0x5eed),
            datagrams: 0,
            delivered: 0,
            seed,
            start: now,
            flying: BTreeMap::new(),
            order: 0,
            probes: HashMap::new(),
            arrived: HashSet::new(),
            used: HashSet::new(),
            lines: VecDeque::new(),
            tell,
        }
    }

    /// Simulated time since the start.
    pub fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// Adds a line to the story.
    pub fn note(&mut self, line: &str) {
        let line = format!("{:>10.3} {line}", self.elapsed().as_secs_f64());
        if self.tell {
            eprintln!("{line}");
        }
        self.lines.push_back(line);
        if self.lines.len() > LINES_SHOWN {
            self.lines.pop_front();
        }
    }

    /// Ends the story because an invariant is violated.
    pub fn fail(&self, why: &str) -> ! {
        let mut story = String::new();
        for line in &self.lines {
            let _ = writeln!(story, "{line}");
        }
        panic!("{story}{:>10.3} {why}", self.elapsed().as_secs_f64());
    }

    /// The same for the same seed, whatever machine and build.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut arrived: Vec<u32> = self.arrived.iter().copied().collect();
        arrived.sort_unstable();
        (self.elapsed(), self.datagrams, arrived, self.order, self.used.len()).hash(&mut hasher);
        hasher.finish()
    }

    /// Starts the gateway of a site with a configuration, which protects these peers and networks.
    pub fn start(&mut self, at: usize, text: String, protected: Vec<(usize, usize)>) {
        let site = &mut self.sites[at];
        site.starts += 1;
        site.start_at = None;
        let seed = self.seed.wrapping_mul(257).wrapping_add(at as u64) ^ (site.starts << 40);
        let started = self.span(at, |world| Gateway::start(world.now, &text, &world.sites[at].kernel, seed));
        let gateway =
            started.unwrap_or_else(|why| self.fail(&format!("site {} does not start: {why}\n{text}", at + 1)));
        let site = &mut self.sites[at];
        (site.gateway, site.text, site.protected) = (Some(gateway), text, protected);
        self.note(&format!("site {} starts", at + 1));
        self.after(at);
        self.check_clear(at);
    }

    /// Reloads a site that runs; otherwise its next start has the configuration.
    pub fn reload(&mut self, at: usize, text: String, protected: Vec<(usize, usize)>) {
        self.note(&format!("site {} reloads", at + 1));
        let now = self.now;
        if self.sites[at].gateway.is_some() {
            let outcome = self.span(at, |world| world.sites[at].gateway.as_mut().map(|one| one.reload(now, &text)));
            if let Some(Err(why)) = outcome {
                self.fail(&format!("site {} refuses its configuration: {why}\n{text}", at + 1));
            }
            self.sites[at].protected = protected;
            self.after(at);
            self.check_clear(at);
        } else {
            // What the gateway before it left closed stays so until the next start.
            self.sites[at].protected.retain(|one| protected.contains(one));
        }
        self.sites[at].text = text;
    }

    /// Has the gateway of a site do something, if it runs.
    pub fn act<R>(&mut self, at: usize, act: impl FnOnce(&mut Gateway, Instant) -> R) -> Option<R> {
        let now = self.now;
        let outcome = self.span(at, |world| world.sites[at].gateway.as_mut().map(|gateway| act(gateway, now)));
        if outcome.is_some() {
            self.after(at);
        }
        outcome
    }

    /// Takes the gateway of a site away, which starts again after that time.
    pub fn stop(&mut self, at: usize, killed: bool, again: Duration) {
        let Some(gateway) = self.sites[at].gateway.take() else { return };
        self.note(&format!("site {} {}", at + 1, if killed { "is killed" } else { "stops" }));
        let now = self.now;
        self.span(at, |_| if killed { gateway.kill() } else { gateway.stop(now) });
        self.collect(at);
        self.sites[at].start_at = Some(now + again);
        self.check_clear(at);
    }

    /// Log lines of a gateway name its site.
    fn span<R>(&mut self, at: usize, act: impl FnOnce(&mut Self) -> R) -> R {
        let span = tracing::info_span!("site", number = at + 1, time = self.elapsed().as_secs_f64());
        let _entered = span.entered();
        act(self)
    }

    /// A host behind one site sends a packet to a host behind another.
    pub fn probe(&mut self, from: usize, to: usize, net: usize) -> u32 {
        let serial = self.probes.len() as u32;
        let probe = Probe { from, to, net, serial };
        self.probes.insert(serial, probe);
        let (now, packet) = (self.now, probe.emit());
        let way = self.sites[from].gateway.as_mut().map(|gateway| gateway.send_inner(now, &packet));
        let way = way.unwrap_or_else(|| {
            // The device went with the gateway, and routes that are left lead nowhere.
            let routed = self.sites[from].kernel.leads_into_device(addr(to, net).into());
            if !routed && self.lets_out(from, to, net) { RouteDecision::Clear } else { RouteDecision::Guarded }
        });
        if way == RouteDecision::Clear && self.sites[from].protected.contains(&(to, net)) {
            self.fail(&format!("site {}: a packet to network {net} of site {} leaves in clear text", from + 1, to + 1));
        }
        self.after(from);
        serial
    }

    /// Returns whether a packet has arrived.
    pub fn has_arrived(&self, serial: u32) -> bool {
        self.arrived.contains(&serial)
    }

    fn lets_out(&self, from: usize, to: usize, net: usize) -> bool {
        let transport = Probe { from, to, net, serial: 0 }.transport();
        self.sites[from].kernel.lets_clear_out(addr(from, net).into(), addr(to, net).into(), PROTOCOL, &transport)
    }

    /// What a configuration protects neither leaves past the guard nor is accepted from outside,
    /// also if another program removes the routes.
    pub fn check_clear(&self, at: usize) {
        let site = &self.sites[at];
        for (peer, net) in &site.protected {
            if self.lets_out(at, *peer, *net) {
                let why = format!("the guard lets clear text to network {net} of site {} leave", peer + 1);
                self.fail(&format!("site {}: {why}", at + 1));
            }
            let transport = Probe { from: *peer, to: at, net: *net, serial: 0 }.transport();
            let (src, dst) = (addr(*peer, *net).into(), addr(at, *net).into());
            if site.kernel.accepts_clear(src, dst, PROTOCOL, &transport) {
                let why = format!("the guard accepts clear text from network {net} of site {}", peer + 1);
                self.fail(&format!("site {}: {why}", at + 1));
            }
            if !site.kernel.leads_into_device(src) {
                let why = format!("no route leads to network {net} of site {}", peer + 1);
                self.fail(&format!("site {}: {why}", at + 1));
            }
        }
    }

    /// What follows every action of a gateway.
    fn after(&mut self, at: usize) {
        self.collect(at);
        let now = self.now;
        let site = &mut self.sites[at];
        let Some(gateway) = &mut site.gateway else { return };
        site.due = gateway.deadline(now);
        let errors = gateway.internal_errors();
        if errors > 0 {
            self.fail(&format!("site {}: {errors} internal errors", at + 1));
        }
    }

    /// Puts what a site has sent on the network.
    fn collect(&mut self, at: usize) {
        for outgoing in self.sites[at].kernel.take_sent() {
            match outgoing {
                Outgoing::Ike { from, to, message, .. } => {
                    self.datagrams += 1;
                    let payload = |message: Vec<u8>| Payload::Ike { from, to, message };
                    self.transmit(at, (from.ip(), to.ip()), &message, payload);
                }
                Outgoing::Packet(bytes) => {
                    let Some(Protected { src, dst, spi, seq }) = Protected::parse(&bytes) else {
                        self.fail(&format!("site {}: the packet path sends {bytes:02x?}", at + 1));
                    };
                    if !self.used.insert((at, self.sites[at].starts, spi, seq)) {
                        self.fail(&format!("site {}: number {seq} is used twice with SPI {spi:08x}", at + 1));
                    }
                    let payload = |bytes: Vec<u8>| Payload::Packet { to: dst.into(), bytes };
                    self.transmit(at, (src.into(), dst.into()), &bytes, payload);
                }
            }
        }
    }

    fn transmit(
        &mut self,
        at: usize,
        (from, to): (std::net::IpAddr, std::net::IpAddr),
        bytes: &[u8],
        payload: impl Fn(Vec<u8>) -> Payload,
    ) {
        // From an address that is gone nothing is routed.
        if self.sites[at].dark_until > self.now || !self.sites[at].has(from) {
            return;
        }
        let peer = self.sites.iter().position(|site| site.has(to)).unwrap_or(at);
        let link = self.links[at.max(peer)].clone();
        for (delay, damaged) in link.copies(&mut self.dice) {
            let mut bytes = bytes.to_vec();
            if damaged {
                let bit = self.dice.below(bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            self.order += 1;
            self.flying.insert((self.now + delay, self.order), payload(bytes));
        }
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let turn = |(at, site): (usize, &Site)| {
                let due = if site.gateway.is_some() { Some(site.due) } else { site.start_at };
                Some((due?, at))
            };
            let turn = self.sites.iter().enumerate().filter_map(turn).min();
            let arrival = self.flying.first_key_value().map(|(key, _)| key.0);
            let Some(due) = turn.map(|(at, _)| at).into_iter().chain(arrival).min().filter(|due| *due <= end) else {
                break;
            };
            self.now = self.now.max(due);
            if arrival == Some(due) {
                self.deliver();
            } else if let Some((_, at)) = turn {
                if self.sites[at].gateway.is_some() {
                    self.act(at, |gateway, now| gateway.turn(now));
                } else {
                    let site = &self.sites[at];
                    let (text, protected) = (site.text.clone(), site.protected.clone());
                    self.start(at, text, protected);
                }
            }
        }
        self.now = end;
    }

    fn deliver(&mut self) {
        let Some((_, payload)) = self.flying.pop_first() else { return };
        let to = match &payload {
            Payload::Ike { to, .. } => to.ip(),
            Payload::Packet { to, .. } => *to,
        };
        let Some(at) = self.sites.iter().position(|site| site.has(to)) else { return };
        if self.sites[at].dark_until > self.now {
            return;
        }
        match payload {
            Payload::Ike { from, to, message } => {
                self.act(at, |gateway, now| {
                    gateway.receive_ike(now, to, from, message);
                    gateway.turn(now);
                });
            }
            Payload::Packet { bytes, .. } => {
                let delivered = self.act(at, |gateway, now| gateway.receive_packet(now, &bytes));
                for packet in delivered.unwrap_or_default() {
                    self.arrive(at, &packet);
                }
            }
        }
    }

    /// A gateway delivers a packet to the network behind it.
    fn arrive(&mut self, at: usize, packet: &[u8]) {
        let probe = Probe::parse(packet);
        let sent = probe.and_then(|probe| self.probes.get(&probe.serial));
        let Some(probe) = probe.filter(|probe| sent == Some(probe) && probe.to == at) else {
            self.fail(&format!("site {}: delivered is {probe:?}, sent was {sent:?}", at + 1));
        };
        if !self.arrived.insert(probe.serial) {
            self.fail(&format!("site {}: {probe:?} is delivered twice", at + 1));
        }
        self.delivered += 1;
    }

    /// Bounds of memory, and clear text.
    pub fn check(&mut self) {
        for at in 0..self.sites.len() {
            self.check_clear(at);
            let site = &self.sites[at];
            let Some(gateway) = &site.gateway else { continue };
            if let Some(why) = excess(&gateway.sizes(), site.protected.len().max(1)) {
                self.fail(&format!("site {}: {why}", at + 1));
            }
        }
    }

    /// Returns whether a datagram is in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        self.flying.is_empty()
    }
}

/// What is larger than it may be with that many children.
fn excess(sizes: &Sizes, configured: usize) -> Option<String> {
    let table = sizes.endpoint.iter().any(|(_, count)| *count > TABLE_MAX * configured);
    let much = sizes.children > CHILDREN_MAX * configured || table || sizes.orphaned_keys > 0;
    much.then(|| format!("{sizes:?} for {configured} children"))
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::gateways::Plan;

    /// A world that runs, with its first connection up.
    fn world() -> (World, Plan) {
        let mut dice = Dice::new(5);
        let plan = Plan::draw(&mut dice);
        let mut world = World::new(5, plan.sites, false);
        for at in 0..plan.sites {
            world.start(at, plan.text(at), plan.protected(at));
        }
        (world, plan)
    }

    /// What a world reports after `disturb`.
    fn fault(disturb: impl FnOnce(&mut World)) -> String {
        let (mut world, _) = world();
        let outcome = catch_unwind(AssertUnwindSafe(|| disturb(&mut world)));
        let why = outcome.expect_err("nothing is noticed");
        why.downcast_ref::<String>().and_then(|why| why.lines().last()).unwrap_or_default().to_owned()
    }

    #[test]
    fn a_world_without_faults_reports_none() {
        let (mut world, _) = world();
        world.run(Duration::from_secs(60));
        world.check();
    }

    #[test]
    fn clear_text_is_noticed_without_guard_and_without_routes() {
        let why = fault(|world| {
            world.sites[0].kernel.remove_guard();
            world.check();
        });
        assert!(why.contains("the guard lets clear text"), "{why}");
        let why = fault(|world| {
            world.sites[0].kernel.remove_routes();
            world.check();
        });
        assert!(why.contains("no route leads"), "{why}");
        let why = fault(|world| {
            let (peer, net) = world.sites[0].protected[0];
            world.sites[0].kernel.remove_routes();
            world.sites[0].kernel.remove_guard();
            world.probe(0, peer, net);
        });
        assert!(why.contains("leaves in clear text"), "{why}");
    }

    #[test]
    fn packets_at_the_wrong_site_and_twice_are_noticed() {
        let probe = Probe { from: 0, to: 1, net: 0, serial: 0 };
        let arrive = |at: usize, times: usize| {
            fault(|world| {
                world.probes.insert(0, probe);
                (0..times).for_each(|_| world.arrive(at, &probe.emit()));
            })
        };
        let (wrong, twice) = (arrive(0, 1), arrive(1, 2));
        assert!(wrong.contains("site 1: delivered is"), "{wrong}");
        assert!(twice.contains("is delivered twice"), "{twice}");
        let unsent = fault(|world| world.arrive(1, &probe.emit()));
        assert!(unsent.contains("sent was None"), "{unsent}");
    }

    #[test]
    fn a_number_that_is_used_again_is_noticed() {
        let mut packet = Probe { from: 0, to: 1, net: 0, serial: 0 }.emit();
        packet[9] = 50;
        let why = fault(|world| {
            for _ in 0..2 {
                world.sites[0].kernel.send(packet.clone());
            }
            world.collect(0);
        });
        assert!(why.contains("is used twice with SPI"), "{why}");
    }

    #[test]
    fn tables_that_grow_are_noticed() {
        let (mut world, _) = world();
        world.run(Duration::from_secs(60));
        let site = &world.sites[0];
        let mut sizes = site.gateway.as_ref().expect("it runs").sizes();
        assert_eq!(excess(&sizes, 1), None);
        sizes.orphaned_keys = 1;
        assert!(excess(&sizes, 1).is_some(), "a key without an SA");
        sizes.orphaned_keys = 0;
        sizes.children = CHILDREN_MAX + 1;
        assert!(excess(&sizes, 1).is_some() && excess(&sizes, 2).is_none());
        sizes.children = 0;
        sizes.endpoint[0].1 = TABLE_MAX + 1;
        assert!(excess(&sizes, 1).is_some());
    }
}
