//! State that both endpoints should agree on without disturbance, and state that may remain at the
//! end.

use std::net::IpAddr;
use std::time::Duration;

use ike::IkeState;
use ike::output::ChildId;

use crate::{Edge, World};

/// Duplicates that crossing initiations may leave when either end may start.
const DUPLICATES_MAX: usize = 6;

impl World {
    /// Lets time pass until no host has anything to do but to wait.
    pub fn settle(&mut self, limit: Duration) {
        let end = self.now + limit;
        while let Some(busy) = self.busy() {
            if self.now > end {
                self.fail(&format!("it does not come to rest: {busy}"));
            }
            self.run(Duration::from_millis(500));
            for host in &mut self.hosts {
                let now = host.now(self.now);
                host.plane.sweep(now);
            }
        }
    }

    /// Pending work of a host.
    fn busy(&self) -> Option<String> {
        if !self.is_quiet() {
            return Some("a datagram is on its way".to_owned());
        }
        self.hosts.iter().enumerate().find_map(|(at, host)| {
            let who = |what: String| Some(format!("host {} {what}", at + 1));
            for sa in host.endpoint.ike_sas() {
                if sa.state != IkeState::Established || sa.tasks_active.is_some() || !sa.tasks_queued.is_empty() {
                    let (state, active) = (sa.state.name(), sa.tasks_active);
                    return who(format!("has an IKE SA that is {state}, doing {active:?}, then {:?}", sa.tasks_queued));
                }
                if let Some(child) = sa.children.iter().find(|child| child.state != "INSTALLED") {
                    return who(format!("has {:?} that is {}", child.id, child.state));
                }
            }
            if host.plane.sas.values().any(|sa| sa.until.is_some()) {
                return who("has a Child SA that only receives".to_owned());
            }
            let tables = host.endpoint.tables();
            let (name, _) = tables.into_iter().find(|(name, count)| *name == "later" && *count > 0)?;
            who(format!("has something {name}"))
        })
    }

    /// At rest both ends of a connection have the same.
    pub fn check_agreement(&mut self, edge: &Edge) {
        if let Err(why) = self.agreement(edge) {
            self.fail(&format!("{edge:?}: {why}"));
        }
    }

    fn agreement(&self, edge: &Edge) -> Result<(), String> {
        let (hub, spoke) = (self.ends(0, edge.host), self.ends(edge.host, 0));
        if hub != spoke {
            return Err(format!("the IKE SAs are {hub:02x?} here and {spoke:02x?} there"));
        }
        let most = if edge.both { DUPLICATES_MAX } else { 1 };
        if hub.is_empty() || hub.len() > most {
            return Err(format!("there are {} IKE SAs", hub.len()));
        }
        for name in (0..edge.children).map(|at| format!("c{at}")) {
            let (here, there) = (self.used(0, edge.host, &name), self.used(edge.host, 0, &name));
            let mut mirrored: Vec<_> = there.iter().map(|(_, spi_in, spi_out)| (*spi_out, *spi_in)).collect();
            let mut own: Vec<_> = here.iter().map(|(_, spi_in, spi_out)| (*spi_in, *spi_out)).collect();
            mirrored.sort_unstable();
            own.sort_unstable();
            if own != mirrored {
                return Err(format!("{name} is {here:x?} here and {there:x?} there"));
            }
            let for_all = |host: usize, used: &[(ChildId, u32, u32)]| {
                used.iter().filter(|(id, ..)| self.hosts[host].plane.sas[id].child.cpu.is_none()).count()
            };
            let count = (for_all(0, &here), for_all(edge.host, &there));
            if !(1..=most).contains(&count.0) || !(1..=most).contains(&count.1) || (!edge.per_cpu && own.len() > most) {
                return Err(format!("there are {count:?} of {name} for all CPUs, {} together", own.len()));
            }
            for ((a, ..), (b, ..)) in here.iter().zip(&there).filter(|_| own.len() == 1) {
                self.check_paths(edge, *a, *b)?;
            }
        }
        self.check_virtual_address(edge)?;
        for (host, peer) in [(0, edge.host), (edge.host, 0)] {
            let known: usize = self.hosts[host].endpoint.ike_sas().map(|sa| sa.children.len()).sum();
            let installed = self.hosts[host].plane.sas.len();
            let unused = self.hosts[host].plane.sas.values().find(|sa| sa.peer == peer && !sa.used);
            if known != installed || unused.is_some() {
                let unused = unused.map(|sa| sa.child.id);
                return Err(format!("host {} knows {known} Child SAs and has {installed}; {unused:?}", host + 1));
            }
        }
        Ok(())
    }

    /// A client has the one address that the lease of its identity is about.
    fn check_virtual_address(&self, edge: &Edge) -> Result<(), String> {
        let has: Vec<IpAddr> = self.hosts[edge.host].plane.virtual_addresses.iter().copied().collect();
        let pool = self.hosts[0].endpoint.pools().get(&format!("pool{}", edge.host + 1));
        let lent: Vec<IpAddr> = pool.map_or_else(Vec::new, |pool| {
            pool.leases().filter(|(_, lease)| lease.online).map(|(addr, _)| addr).collect()
        });
        match has == lent && has.len() == usize::from(edge.client) {
            true => Ok(()),
            false => Err(format!("the client has the virtual addresses {has:?}, lent are {lent:?}")),
        }
    }

    /// Packets of one host arrive at the other.
    fn check_paths(&self, edge: &Edge, hub: ChildId, spoke: ChildId) -> Result<(), String> {
        let (a, b) = (self.hosts[0].plane.sas[&hub].path, self.hosts[edge.host].plane.sas[&spoke].path);
        let arrives = self.hosts[edge.host].receives(a.remote) == Some(b.local);
        if !arrives || a.local != b.remote || a.encap != b.encap || (edge.nat && !a.encap) {
            return Err(format!("packets go over {a:?} here and {b:?} there"));
        }
        Ok(())
    }

    fn ends(&self, host: usize, peer: usize) -> Vec<ike::output::IkeSpis> {
        let names = self.hosts[host].ikes(peer);
        let sas = self.hosts[host].endpoint.ike_sas().filter(|sa| names.contains(&sa.id));
        let mut spis: Vec<_> = sas.map(|sa| sa.spis).collect();
        spis.sort_unstable();
        spis
    }

    /// Name, inbound and outbound SPI.
    fn used(&self, host: usize, peer: usize, child: &str) -> Vec<(ChildId, u32, u32)> {
        let used = self.hosts[host].plane.used();
        let of = used.filter(|(_, sa)| sa.peer == peer && sa.child.config.name == child);
        of.map(|(id, sa)| (*id, sa.child.inbound.spi.get(), sa.child.outbound.spi.get())).collect()
    }

    /// Everything was terminated: nothing may be left.
    pub fn check_empty(&mut self) {
        for at in 0..self.hosts.len() {
            let now = self.hosts[at].now(self.now);
            self.hosts[at].plane.sweep(now);
            let host = &self.hosts[at];
            let tables = host.endpoint.tables();
            let left: Vec<_> = tables.into_iter().filter(|(_, count)| *count > 0).collect();
            let (sas, traps, due) = (host.plane.sas.len(), host.plane.traps.len(), host.endpoint.deadline());
            let lent: usize = host.endpoint.pools().iter().map(ike::pool::Pool::online).sum();
            let addresses = lent + host.plane.virtual_addresses.len();
            if addresses > 0 {
                self.fail(&format!("host {}: {addresses} virtual addresses are left", at + 1));
            }
            if !left.is_empty() || sas + traps > 0 || due.is_some() {
                self.fail(&format!("host {}: left are {left:?}, {sas} SAs, {traps} traps, a timer: {due:?}", at + 1));
            }
        }
    }
}
