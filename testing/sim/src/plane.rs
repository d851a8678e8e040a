//! The packet side of a host, as far as IKE decides about it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::time::Instant;

use ike::config::{Action, Connection};
use ike::output::{ChildId, ChildSa, Event, IkeId, Output, Path};

/// A Child SA as packets meet it.
pub struct Sa {
    /// As configured.
    pub child: Box<ChildSa>,
    /// Packets go out through it.
    pub used: bool,
    /// Not confirmed by the initiator yet: the first Child SA of a responder.
    pub fresh: bool,
    /// Current worker.
    pub path: Path,
    /// The peer, counted from 0.
    pub peer: usize,
    /// Time of installation; and whether its lifetime has expired.
    since: Instant,
    expired: bool,
    /// Since its removal: until when its inbound half receives.
    pub until: Option<Instant>,
}

/// The packet side.
#[derive(Default)]
pub struct Plane {
    /// Child SAs, including those that only receive.
    pub sas: BTreeMap<ChildId, Sa>,
    /// Trap policies by connection and child.
    pub traps: BTreeSet<(String, String)>,
    /// Traps that must be installed: configured, or installed when a Child SA ended unexpectedly.
    pub(crate) expected: BTreeSet<(String, String)>,
    /// Every section that is configured.
    configured: BTreeSet<(String, String)>,
    /// Virtual addresses of this host.
    pub virtual_addresses: BTreeSet<IpAddr>,
    /// Inbound SPIs that ended with the knowledge of IKE, not by being replaced.
    ended: HashSet<u32>,
    spis: HashMap<ChildId, (IkeId, u32)>,
    /// Keys and SPIs that came since they were looked at.
    pub(crate) new_keys: Vec<(Vec<u8>, u32)>,
    /// Something is different since it was looked at.
    pub(crate) changed: bool,
}

impl Plane {
    /// Executes one output in the host's time; returns its fault.
    pub(crate) fn take(&mut self, now: Instant, output: Output) -> Result<(), String> {
        self.changed = true;
        match output {
            Output::Install(sa) => self.install(now, sa),
            Output::UseOutbound(id) => self.use_outbound(id),
            Output::Remove(id, after) => {
                let sa = self.sas.get_mut(&id).ok_or_else(|| format!("{id:?} is removed and was not there"))?;
                if sa.until.is_some() {
                    return Err(format!("{id:?} is removed twice"));
                }
                (sa.used, sa.until) = (false, Some(now + after));
                Ok(())
            }
            Output::Move(id, path) => {
                let sa = self.sas.get_mut(&id).ok_or_else(|| format!("{id:?} is moved and was not there"))?;
                sa.path = path;
                Ok(())
            }
            Output::Trap(connection, child, on) => {
                let key = (connection.name.clone(), child.name.clone());
                if on {
                    self.traps.insert(key);
                } else {
                    self.traps.remove(&key);
                }
                Ok(())
            }
            Output::VirtualAddress(_, address, true) => match self.virtual_addresses.insert(address.addr) {
                true => Ok(()),
                false => Err(format!("the virtual address {} is given twice", address.addr)),
            },
            Output::VirtualAddress(_, address, false) => match self.virtual_addresses.remove(&address.addr) {
                true => Ok(()),
                false => Err(format!("the virtual address {} is taken and was not there", address.addr)),
            },
            Output::Event(event) => self.hear(&event),
            _ => Ok(()),
        }
    }

    /// New configuration: its traps must be installed from now on.
    pub(crate) fn load(&mut self, connections: &[Connection]) {
        let sections = |only_traps: bool| {
            let of = move |connection: &Connection| {
                let wanted = connection.children.iter().filter(move |child| child.start_action.trap || !only_traps);
                wanted.map(|child| (connection.name.clone(), child.name.clone())).collect::<Vec<_>>()
            };
            connections.iter().flat_map(of).collect()
        };
        (self.expected, self.configured) = (sections(true), sections(false));
    }

    fn install(&mut self, since: Instant, child: Box<ChildSa>) -> Result<(), String> {
        let (id, spi) = (child.id, child.inbound.spi.get());
        if let Some((other, _)) = self.sas.iter().find(|(_, sa)| sa.child.inbound.spi.get() == spi) {
            return Err(format!("{id:?} receives under the SPI {spi:08x} of {other:?}"));
        }
        if child.outbound_now {
            self.replace(child.replaces);
        }
        let peer = peer_of(&child.connection);
        let fresh = child.replaces.is_none() && !child.initiator;
        self.new_keys.extend([&child.inbound, &child.outbound].map(|half| (half.enc.to_vec(), half.spi.get())));
        let (used, path) = (child.outbound_now, child.path);
        self.spis.insert(id, (child.ike, spi));
        match self.sas.insert(id, Sa { child, used, fresh, path, peer, since, expired: false, until: None }) {
            Some(_) => Err(format!("{id:?} is installed twice")),
            None => Ok(()),
        }
    }

    fn replace(&mut self, old: Option<ChildId>) {
        if let Some(old) = old.and_then(|old| self.sas.get_mut(&old)) {
            old.used = false;
        }
    }

    fn use_outbound(&mut self, id: ChildId) -> Result<(), String> {
        let sa = self.sas.get_mut(&id).ok_or_else(|| format!("{id:?} is to be used and is not there"))?;
        if sa.used || sa.until.is_some() {
            return Err(format!("{id:?} is to be used and is {}", if sa.used { "already" } else { "over" }));
        }
        sa.used = true;
        let old = sa.child.replaces;
        self.replace(old);
        Ok(())
    }

    fn hear(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::ChildDown(id, reason) => {
                let Some((_, spi)) = self.spis.get(id) else { return Err(format!("{id:?} is down and never was up")) };
                self.ended.insert(*spi);
                if self.leaves_trap(*id, reason) {
                    let child = &self.sas[id].child;
                    self.expected.insert((child.connection.name.clone(), child.config.name.clone()));
                }
                Ok(())
            }
            Event::IkeDown(ike, _) => {
                self.ended.extend(self.spis.values().filter(|(of, _)| of == ike).map(|(_, spi)| *spi));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the traffic of a Child SA should stay protected after its end: by a trap
    /// policy when the peer is the cause, otherwise unless another Child SA does it.
    fn leaves_trap(&self, id: ChildId, reason: &str) -> bool {
        let Some(Sa { child, .. }) = self.sas.get(&id) else { return false };
        let traps = (child.config.close_action, child.config.dpd_action) == (Action::Trap, Action::Trap);
        let same = |other: &ChildSa| {
            other.connection.name == child.connection.name
                && other.config.name == child.config.name
                && other.cpu.is_none()
        };
        let key = (child.connection.name.clone(), child.config.name.clone());
        let wanted = reason.is_empty() || child.cpu.is_some() || !self.configured.contains(&key);
        let elsewhere = || self.used().any(|(other, sa)| *other != id && same(&sa.child));
        traps && !wanted && (reason.starts_with("the peer d") || !elsewhere())
    }

    /// The bytes of a Child SA are used up.
    pub(crate) fn expire(&mut self, id: ChildId) {
        if let Some(sa) = self.sas.get_mut(&id) {
            sa.expired = true;
        }
    }

    /// A Child SA that a responder switched to before the initiator proved that it has it: the one
    /// before is at the end of its life.
    pub(crate) fn had_to_switch(&self, now: Instant, sa: &Sa) -> bool {
        let over = |old: &Sa| {
            let life = old.child.config.time.life;
            old.expired || old.until.is_some() || (!life.is_zero() && now >= old.since + life)
        };
        let old = sa.child.replaces.map(|old| self.sas.get(&old));
        !sa.child.initiator && old.is_some_and(|old| old.is_none_or(over))
    }

    /// Returns whether it ever received under this SPI.
    pub(crate) fn had(&self, spi: u32) -> bool {
        self.spis.values().any(|(_, had)| *had == spi)
    }

    /// Everything is lost.
    pub(crate) fn crash(&mut self) {
        let lost: Vec<u32> = self.spis.values().map(|(_, spi)| *spi).collect();
        let mut ended = std::mem::take(&mut self.ended);
        ended.extend(lost);
        *self = Self { ended, changed: true, ..Self::default() };
    }

    /// Removes expired inbound halves.
    pub(crate) fn sweep(&mut self, now: Instant) {
        let before = self.sas.len();
        self.sas.retain(|_, sa| sa.until.is_none_or(|until| until > now));
        self.changed |= self.sas.len() != before;
    }

    /// Returns whether an inbound SPI ended without notice to the peer so far.
    pub(crate) fn has_ended(&self, spi: u32) -> bool {
        self.ended.contains(&spi)
    }

    /// Owner of an inbound SPI.
    pub(crate) fn inbound(&self, spi: u32) -> Option<(&ChildId, &Sa)> {
        self.sas.iter().find(|(_, sa)| sa.child.inbound.spi.get() == spi)
    }

    /// Outbound SA of packets.
    pub fn used(&self) -> impl Iterator<Item = (&ChildId, &Sa)> {
        self.sas.iter().filter(|(_, sa)| sa.used)
    }
}

/// Connections are called after both hosts, counted from 1: `2-1`.
pub(crate) fn peer_of(connection: &Connection) -> usize {
    let peer = connection.name.split('-').nth(1).and_then(|peer| peer.parse::<usize>().ok());
    peer.expect("the name of a connection of the simulation") - 1
}
