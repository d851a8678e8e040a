//! What a step of an IKE SA may use besides the SA itself.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use rand_core::RngCore;

use crate::config::Connection;
use crate::endpoint::Settings;
use crate::identity::Identity;
use crate::output::{ChildId, Event, IkeId, Level, Output, Question, Subsystem, Ticket, Virtual};
use crate::pool::Pools;

/// The part of an endpoint that all its IKE SAs share. Borrowed for one step.
pub(crate) struct Context<'a> {
    /// Now.
    pub(crate) now: Instant,
    /// Randomness for SPIs, nonces, jitter, cookies.
    pub(crate) rng: &'a mut dyn RngCore,
    /// Limits.
    pub(crate) settings: &'a Settings,
    /// Loaded connections in their order.
    pub(crate) connections: &'a [Arc<Connection>],
    /// Virtual addresses that are given out.
    pub(crate) pools: &'a mut Pools,
    /// Where results go.
    pub(crate) out: &'a mut VecDeque<Output>,
    /// Names and SPIs that are taken.
    pub(crate) names: &'a mut Names,
    /// New IKE SAs that this step made (rekeying, reauthentication, redirection); the endpoint takes them in.
    pub(crate) born: &'a mut Vec<crate::sa::Birth>,
}

/// Names and SPIs.
#[derive(Default)]
pub(crate) struct Names {
    next_ike: u32,
    next_child: u32,
    next_ticket: u64,
    /// Inbound SPIs of Child SAs that are in use, and SPIs that belong to somebody else on this host.
    pub(crate) child_spis: HashMap<u32, Option<ChildId>>,
    /// Which IKE SA waits for an answer.
    pub(crate) tickets: HashMap<Ticket, IkeId>,
    /// Authenticated IKE SAs that are not ending, by the identities of this host and of the peer.
    pub(crate) peers: HashMap<(Identity, Identity), Vec<IkeId>>,
    /// Trusted authorities of each connection that asks for certificates, by its name.
    pub(crate) authorities: HashMap<String, Vec<[u8; 20]>>,
    /// How many IKE SAs gave this host each of its virtual addresses: two while one takes the other's place.
    virtual_addresses: HashMap<IpAddr, u32>,
    /// Addresses of this host, as far as it was told.
    pub(crate) local_addresses: Vec<IpAddr>,
}

impl Names {
    /// A fresh name of an IKE SA.
    pub(crate) fn ike(&mut self) -> IkeId {
        self.next_ike = self.next_ike.wrapping_add(1);
        IkeId(self.next_ike)
    }

    /// A fresh name of a question.
    pub(crate) fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// Authenticated IKE SAs between two identities.
    pub(crate) fn with_peer(&self, local: &Identity, remote: &Identity) -> impl Iterator<Item = IkeId> {
        self.peers.get(&(local.clone(), remote.clone())).into_iter().flatten().copied()
    }

    /// An IKE SA between two identities has ended or is about to.
    pub(crate) fn forget_peer(&mut self, identities: &(Identity, Identity), ike: IkeId) {
        if let Some(ids) = self.peers.get_mut(identities) {
            ids.retain(|other| *other != ike);
            if ids.is_empty() {
                self.peers.remove(identities);
            }
        }
    }

    /// A fresh name of a Child SA.
    pub(crate) fn child(&mut self) -> ChildId {
        self.next_child += 1;
        ChildId(self.next_child)
    }
}

impl Context<'_> {
    /// Asks; the answer comes to `ike`.
    pub(crate) fn ask(&mut self, ike: IkeId, question: Question) -> Ticket {
        let ticket = self.names.ticket();
        self.names.tickets.insert(ticket, ike);
        self.out.push_back(Output::Ask(ticket, question));
        ticket
    }

    /// Takes a random SPI for inbound packets of a Child SA.
    pub(crate) fn child_spi(&mut self, id: ChildId) -> wire::Spi {
        loop {
            if let Ok(spi) = wire::Spi::try_from(self.rng.next_u32())
                && !self.names.child_spis.contains_key(&spi.get())
            {
                self.names.child_spis.insert(spi.get(), Some(id));
                return spi;
            }
        }
    }

    /// An IKE SA gave this host a virtual address.
    pub(crate) fn hold_address(&mut self, ike: IkeId, address: &Virtual) {
        let holders = self.names.virtual_addresses.entry(address.addr).or_insert(0);
        *holders += 1;
        if *holders == 1 {
            self.out.push_back(Output::VirtualAddress(ike, address.clone(), true));
        }
    }

    /// It is over; the address goes with the last IKE SA that gave it.
    pub(crate) fn drop_address(&mut self, ike: IkeId, address: Virtual) {
        let Some(holders) = self.names.virtual_addresses.get_mut(&address.addr) else { return };
        *holders -= 1;
        if *holders == 0 {
            self.names.virtual_addresses.remove(&address.addr);
            self.out.push_back(Output::VirtualAddress(ike, address, false));
        }
    }

    /// Tells of something.
    pub(crate) fn event(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }

    /// A line for the log. Never a key.
    pub(crate) fn log(&mut self, level: Level, subsystem: Subsystem, ike: Option<IkeId>, text: String) {
        self.event(Event::Log { level, subsystem, ike, text });
    }

    /// Counts.
    pub(crate) fn count(&mut self, what: &'static str) {
        self.event(Event::Count(what));
    }
}
