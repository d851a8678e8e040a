//! The scenario of one seed: disturbances, then calm and agreement.

use std::time::Duration;

use gateway::simulation::{ChildState, IkeSaState};
use vici::names::Command;

use super::plan::{Link, Plan};
use super::site::usual_addr;
use super::world::World;
use crate::Dice;
use crate::net::Link as Wire;

/// IKE SAs and Child SAs that crossing initiations may leave when either end may start.
const DUPLICATES_MAX: usize = 6;
/// Time after which everything must be up when nothing disturbs it.
const HEALING: Duration = Duration::from_secs(260);
/// The same with connections of IKEv1: every SA that one end alone has is replaced or over.
const HEALING_V1: Duration = Duration::from_secs(700);
const SECOND: Duration = Duration::from_secs(1);

/// Result of a scenario.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Report {
    /// Simulated time.
    pub time: Duration,
    /// Datagrams of IKE that were sent.
    pub datagrams: usize,
    /// Packets that were delivered.
    pub packets: usize,
    /// The same for the same seed, whatever machine and build.
    pub fingerprint: u64,
}

/// Plays the scenario of a seed; with `tell` line by line on standard error.
///
/// # Panics
/// When an invariant is violated, with the last lines of the story.
pub fn run(seed: u64, tell: bool) -> Report {
    let mut dice = Dice::new(seed);
    let mut plan = Plan::draw(&mut dice);
    plan.draw_versions(&mut Dice::new(seed ^ 0x1f1));
    let mut world = World::new(seed, plan.sites, tell);
    for link in &plan.links {
        world.note(&format!("{link:?}"));
    }
    for at in 0..plan.sites {
        world.start(at, plan.text(at), plan.protected(at));
    }
    for _ in 0..dice.pick(&[3, 5, 10]) {
        disturb_network(&mut world, &mut dice, plan.noise);
        disturb(&mut world, &mut dice, &mut plan);
        if dice.chance(400) {
            traffic(&mut world, &mut dice, &plan);
        }
        let long = dice.chance(300);
        world.run(if long { dice.ms(10_000, 200_000) } else { dice.ms(0, 3_000) });
        world.check();
    }
    calm(&mut world, &mut dice, &plan);
    end(&mut world);
    let fingerprint = world.fingerprint();
    Report { time: world.elapsed(), datagrams: world.datagrams, packets: world.delivered, fingerprint }
}

fn disturb_network(world: &mut World, dice: &mut Dice, noise: usize) {
    for link in &mut world.links {
        let delay = dice.pick(&[(1, 2), (5, 40), (20, 400), (1, 2_000)]);
        let mut part = |of: usize| dice.below(1 + noise / of);
        *link = Wire { loss: part(1), twice: part(2), damage: part(4), late: part(4), delay };
    }
}

/// Events, by number.
const EVENTS: usize = 15;

fn disturb(world: &mut World, dice: &mut Dice, plan: &mut Plan) {
    let at = dice.below(plan.links.len());
    let link = plan.links[at].clone();
    // The acting end; sometimes both do the same at the same time.
    let ends: &[usize] = match dice.below(4) {
        0 => &[link.ends[0], link.ends[1]],
        1 => &[link.ends[1]],
        _ => &[link.ends[0]],
    };
    let mut what = dice.below(EVENTS);
    for &site in ends {
        event(world, dice, plan, (at, &link), (site, what));
        // Or something else: a rekey meets a deletion, a move meets a restart.
        if dice.chance(300) {
            what = dice.below(EVENTS);
        }
    }
}

fn event(
    world: &mut World,
    dice: &mut Dice,
    plan: &mut Plan,
    (at, link): (usize, &Link),
    (site, what): (usize, usize),
) {
    let name = Plan::name(link, site);
    let child = format!("n{}", link.children[dice.below(link.children.len())].net);
    match what {
        0 => command(world, site, Command::Rekey, &[("ike", &name)]),
        1 | 2 => command(world, site, Command::Rekey, &[("ike", &name), ("child", &child)]),
        3 => command(world, site, Command::Terminate, &[("ike", &name), ("child", &child)]),
        4 => {
            let force = if dice.chance(300) { "yes" } else { "no" };
            command(world, site, Command::Terminate, &[("ike", &name), ("force", force)]);
        }
        5 if site == link.ends[0] || link.both => {
            command(world, site, Command::Initiate, &[("ike", &name), ("child", &child)]);
        }
        6 | 7 => {
            let sites = plan.change(dice, at);
            world.note(&format!("site {}: {:?}", site + 1, plan.links[at]));
            for site in sites {
                world.reload(site, plan.text(site), plan.protected(site));
                if dice.chance(500) {
                    world.run(dice.ms(0, 20_000));
                }
            }
        }
        8 => world.reload(site, plan.text(site), plan.protected(site)),
        9 | 10 => {
            let (killed, again) = (what == 9, dice.ms(0, 100_000));
            world.stop(site, killed, again);
        }
        11 if link.moves => move_away(world, link.ends[0]),
        12 => {
            let dark = dice.ms(1_000, 200_000);
            world.note(&format!("site {} has no network for {dark:?}", site + 1));
            world.sites[site].dark_until = world.now + dark;
        }
        _ => traffic(world, dice, plan),
    }
}

fn command(world: &mut World, site: usize, command: Command, elements: &[(&str, &str)]) {
    world.note(&format!("site {}: {} {elements:?}", site + 1, command.name()));
    if let Some(Some(why)) = world.act(site, |gateway, now| gateway.command(now, command, elements)) {
        world.note(&format!("site {}: refused: {why}", site + 1));
    }
}

/// Packets between some networks, in both directions.
fn traffic(world: &mut World, dice: &mut Dice, plan: &Plan) {
    for link in &plan.links {
        for child in &link.children {
            for (from, to) in [(link.ends[0], link.ends[1]), (link.ends[1], link.ends[0])] {
                for _ in 0..dice.below(4) {
                    world.probe(from, to, child.net);
                }
            }
        }
    }
}

/// A site gets another address; its peer accepts it from anywhere.
fn move_away(world: &mut World, site: usize) {
    let mut octets = usual_addr(site).octets();
    octets[3] = 20 + world.dice.below(200) as u8;
    octets[2] = 3 + site as u8;
    world.note(&format!("site {} moves to {octets:?}", site + 1));
    world.sites[site].kernel.set_addresses(vec![octets.into()]);
}

/// Nothing is disturbed any more: everything configured comes up by what is configured, by packets
/// or by a command, and passes packets in both directions.
fn calm(world: &mut World, dice: &mut Dice, plan: &Plan) {
    world.note("calm");
    world.links.fill(Wire::CALM);
    for at in 0..plan.sites {
        world.sites[at].dark_until = world.now;
        world.sites[at].start_at = world.sites[at].start_at.map(|at| at.min(world.now + 5 * SECOND));
    }
    world.run(10 * SECOND);
    for at in 0..plan.sites {
        world.reload(at, plan.text(at), plan.protected(at));
    }
    world.run(if plan.has_v1() { HEALING_V1 } else { HEALING });
    for link in &plan.links {
        let end = if link.both && dice.chance(500) { 1 } else { 0 };
        let (from, to) = (link.ends[end], link.ends[1 - end]);
        for child in &link.children {
            if child.starts_by_packet(end) {
                world.probe(from, to, child.net);
            } else {
                let (name, child) = (Plan::name(link, from), format!("n{}", child.net));
                command(world, from, Command::Initiate, &[("ike", &name), ("child", &child)]);
            }
            world.run(2 * SECOND);
        }
    }
    settle(world);
    let serials: Vec<(u32, String)> = plan
        .links
        .iter()
        .flat_map(|link| link.children.iter().map(move |child| (link, child.net)))
        .flat_map(|(link, net)| [(link.ends[0], link.ends[1], net), (link.ends[1], link.ends[0], net)])
        .map(|(from, to, net)| (from, to, net, world.probe(from, to, net)))
        .map(|(from, to, net, serial)| (serial, format!("network {net} of site {} to site {}", from + 1, to + 1)))
        .collect();
    world.run(SECOND);
    if let Some((_, what)) = serials.iter().find(|(serial, _)| !world.has_arrived(*serial)) {
        world.fail(&format!("a packet from {what} does not arrive"));
    }
    settle(world);
    world.check();
    for link in &plan.links {
        if let Err(why) = agreement(world, link) {
            world.fail(&format!("{link:?}: {why}"));
        }
    }
    orphans(world);
}

/// Lets time pass until no gateway has anything to do but to wait.
fn settle(world: &mut World) {
    let limit = world.now + Duration::from_secs(900);
    while let Some(busy) = busy(world) {
        if world.now > limit {
            world.fail(&format!("it does not come to rest: {busy}"));
        }
        world.run(SECOND / 2);
    }
}

fn busy(world: &World) -> Option<String> {
    if !world.is_quiet() {
        return Some("a datagram is in flight".to_owned());
    }
    world.sites.iter().enumerate().find_map(|(at, site)| {
        let Some(gateway) = &site.gateway else { return Some(format!("site {} does not run", at + 1)) };
        let sas = gateway.ike_sas();
        let is_busy = |sa: &&IkeSaState| !sa.rests || sa.children.iter().any(|child| child.state != "INSTALLED");
        if let Some(sa) = sas.iter().find(is_busy) {
            return Some(format!("site {} has {sa:?}", at + 1));
        }
        let ending = gateway.ending();
        (ending > 0).then(|| format!("site {} has {ending} Child SAs that only receive", at + 1))
    })
}

/// Both ends of a connection have the same SAs, as many as are configured.
fn agreement(world: &World, link: &Link) -> Result<(), String> {
    let of = |site: usize| {
        let name = Plan::name(link, site);
        let gateway = world.sites[site].gateway.as_ref();
        let sas = gateway.into_iter().flat_map(|gateway| gateway.ike_sas());
        let mut sas: Vec<IkeSaState> = sas.filter(|sa| sa.connection == name).collect();
        sas.sort_by(|a, b| a.spis.cmp(&b.spis));
        sas
    };
    let (here, there) = (of(link.ends[0]), of(link.ends[1]));
    let spis = |sas: &[IkeSaState]| sas.iter().map(|sa| sa.spis.clone()).collect::<Vec<_>>();
    if spis(&here) != spis(&there) {
        return Err(format!("the IKE SAs are {here:?} here and {there:?} there"));
    }
    let most = if link.both { DUPLICATES_MAX } else { 1 };
    if here.is_empty() || here.len() > most {
        return Err(format!("there are {} IKE SAs", here.len()));
    }
    let children = |sas: &[IkeSaState], mirrored: bool| {
        let all = sas.iter().flat_map(|sa| &sa.children);
        let turn = |child: &ChildState| (child.spis.1, child.spis.0);
        let spis = |child: &ChildState| if mirrored { turn(child) } else { child.spis };
        let mut all: Vec<_> = all.map(|child| (child.name.clone(), spis(child))).collect();
        all.sort();
        all
    };
    let (own, mirrored) = (children(&here, false), children(&there, true));
    if own != mirrored {
        return Err(format!("the Child SAs are {own:x?} here and {mirrored:x?} there"));
    }
    for child in &link.children {
        let name = format!("n{}", child.net);
        let count = own.iter().filter(|(of, _)| *of == name).count();
        if !(1..=most).contains(&count) {
            return Err(format!("there are {count} Child SAs of {name}"));
        }
    }
    let known = |name: &String| link.children.iter().any(|child| *name == format!("n{}", child.net));
    match own.iter().find(|(name, _)| !known(name)) {
        Some((name, _)) => Err(format!("a Child SA of {name} is left, which is not configured")),
        None => Ok(()),
    }
}

/// Packet path and IKE of each gateway have the same Child SAs.
fn orphans(world: &World) {
    for (at, site) in world.sites.iter().enumerate() {
        let Some(gateway) = &site.gateway else { continue };
        let mut installed: Vec<(u32, u32)> = gateway.installed().iter().map(|(_, child)| child.spis).collect();
        let sas = gateway.ike_sas();
        let mut known: Vec<(u32, u32)> = sas.iter().flat_map(|sa| &sa.children).map(|child| child.spis).collect();
        installed.sort_unstable();
        known.sort_unstable();
        if installed != known {
            world.fail(&format!("site {}: installed are {installed:x?}, known to IKE {known:x?}", at + 1));
        }
        if let Some((_, child)) = gateway.installed().iter().find(|(_, child)| child.state != "sends") {
            world.fail(&format!("site {}: {child:?} does not send", at + 1));
        }
    }
}

/// Everything stops: what is protected stays closed.
fn end(world: &mut World) {
    for at in 0..world.sites.len() {
        world.stop(at, false, Duration::from_secs(1_000_000));
    }
    world.run(10 * SECOND);
    world.check();
}
