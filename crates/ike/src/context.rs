//! Context of a step of an IKE SA: shared state and outputs.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_core::RngCore;

use crate::claims::Claims;
use crate::config::Connection;
use crate::endpoint::Settings;
use crate::handshake::counters;
use crate::identity::Identity;
use crate::output::{ChildId, CredentialRequest, Event, IkeId, KeysV1, Level, Output, RequestId, Subsystem, VirtualIp};
use crate::pool::Pools;

/// Look-up in the routing table: the address from which this host sends to another one.
pub(crate) type Sources = Box<dyn Fn(IpAddr) -> Option<IpAddr> + Send>;

/// Network of this host that contains an address.
pub(crate) type Owned = Box<dyn Fn(IpAddr) -> Option<wire::AddrRange> + Send>;

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
    /// Queue of results.
    pub(crate) out: &'a mut VecDeque<Output>,
    /// Names and SPIs that are taken.
    pub(crate) names: &'a mut Names,
    /// The routing table.
    pub(crate) sources: &'a Sources,
    /// Networks of this host.
    pub(crate) owned: &'a Owned,
    /// New IKE SAs that this step made (rekeying, reauthentication, redirection); the endpoint
    /// takes them in.
    pub(crate) born: &'a mut Vec<crate::sa::NewSa>,
}

/// Names and SPIs.
#[derive(Default)]
pub(crate) struct Names {
    next_ike: u32,
    next_child: u32,
    next_ticket: u64,
    /// Inbound SPIs of Child SAs that are in use or were until lately.
    pub(crate) child_spis: HashMap<wire::Spi, ChildId>,
    /// Names of these Child SAs, which `next_child` skips after it wrapped.
    child_ids: HashSet<ChildId>,
    /// Recently used SPIs, and the time until which they are not assigned again.
    resting_spis: BTreeSet<(Instant, wire::Spi)>,
    /// SPIs that other key sources on this host receive with.
    reserved_spis: HashSet<wire::Spi>,
    /// IKE SAs that wait for a response.
    pub(crate) request_ids: HashMap<RequestId, IkeId>,
    /// Authenticated IKE SAs that are not ending, by the identities of this host and of the peer.
    pub(crate) peers: HashMap<(Identity, Identity), Vec<IkeId>>,
    /// Pending handshakes that send INITIAL_CONTACT, by the identities of this host and of the
    /// peer.
    contacts: HashMap<(Identity, Identity), IkeId>,
    /// The same by handshake.
    contacting: HashMap<IkeId, (Identity, Identity)>,
    /// Trusted authorities of each connection that requests certificates, by its name.
    pub(crate) authorities: HashMap<String, Vec<[u8; 20]>>,
    /// IKEv1: keys of this host and trusted authorities of each connection with signatures, by its
    /// name.
    pub(crate) keys_v1: HashMap<String, KeysV1>,
    /// Traffic selectors in use.
    pub(crate) claims: Claims,
    /// This host has post-quantum preshared keys (RFC 8784).
    pub(crate) has_ppks: bool,
    /// Number of IKE SAs per virtual address of this host: two while one replaces the other.
    virtual_addresses: HashMap<IpAddr, u32>,
    /// Rate limit of the log lines on retransmissions.
    pub(crate) retransmission_lines: crate::endpoint::limit::Limit,
    /// Rate limit of the log lines on internal errors.
    internal_error_lines: crate::endpoint::limit::Limit,
    /// Known addresses of this host.
    pub(crate) local_addresses: Vec<IpAddr>,
    /// Addresses of the hosts that connections name.
    pub(crate) hosts: crate::hosts::Hosts,
}

impl Names {
    /// A fresh name of an IKE SA.
    pub(crate) fn ike(&mut self) -> IkeId {
        self.next_ike = self.next_ike.wrapping_add(1);
        IkeId(self.next_ike)
    }

    /// A new ID for a credential request.
    pub(crate) fn request_id(&mut self) -> RequestId {
        self.next_ticket += 1;
        RequestId(self.next_ticket)
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

    /// Returns whether a handshake may send INITIAL_CONTACT: there is no IKE SA with these
    /// identities, and no other handshake that sends it. The peer would end that one, regardless of
    /// the order of completion.
    pub(crate) fn begin_contact(&mut self, ike: IkeId, identities: (Identity, Identity)) -> bool {
        let first = !self.peers.contains_key(&identities) && !self.contacts.contains_key(&identities);
        if first {
            self.contacts.insert(identities.clone(), ike);
            self.contacting.insert(ike, identities);
        }
        first
    }

    /// A handshake is over, for good or ill.
    pub(crate) fn end_contact(&mut self, ike: IkeId) {
        if let Some(identities) = self.contacting.remove(&ike) {
            self.contacts.remove(&identities);
        }
    }

    /// A fresh name of a Child SA.
    pub(crate) fn child(&mut self) -> ChildId {
        loop {
            self.next_child = self.next_child.wrapping_add(1);
            let id = ChildId(self.next_child);
            // After 2^32 Child SAs, one of the first may still be there.
            if !self.child_ids.contains(&id) {
                return id;
            }
        }
    }

    /// Takes an SPI for inbound packets of a Child SA.
    pub(crate) fn claim_spi(&mut self, spi: wire::Spi, id: ChildId) {
        self.child_spis.insert(spi, id);
        self.child_ids.insert(id);
    }

    /// Gives an SPI back that no peer has received.
    pub(crate) fn free_spi(&mut self, spi: wire::Spi) {
        if let Some(id) = self.child_spis.remove(&spi) {
            self.child_ids.remove(&id);
        }
    }
}

/// SPIs are of the same class when they are the same modulo this. A gateway gives the SAs of its
/// peers to its workers by SPI: an SA and its successor, of one class, are then opened by the same
/// worker, and packets stay in order while one takes over from the other; SAs for the CPUs of a
/// peer (RFC 9611) go to different ones. A multiple of every number of workers up to 6, and of 8,
/// 10, 12, 15, 16, 20, 24, 32, 48, 60 and 64.
pub(crate) const SPI_CLASSES: u32 = 960;

/// Largest SPI. In UDP the first bit of a packet distinguishes EESP from ESP: ESP that has it set
/// goes to workers by parts of its sequence number, one packet to the right one and the next to
/// another, and is EESP where the host receives that.
const MAX_SPI: u32 = i32::MAX as u32;

/// Time after the last expected packet for an SPI before it may be assigned again: two inbound SAs
/// with one SPI are indistinguishable, and [`Output::Remove`] may be executed late.
const SPI_REST: Duration = Duration::from_secs(10);

impl Names {
    /// A Child SA is over: packets for its inbound SPI may come until `last`.
    pub(crate) fn rest_spi(&mut self, spi: wire::Spi, last: Instant) {
        self.resting_spis.insert((last + SPI_REST, spi));
    }

    fn take_spi(&mut self, id: ChildId, class: Option<u32>, mut random: impl FnMut() -> u32) -> wire::Spi {
        loop {
            let random = random() & MAX_SPI;
            let wanted = match class {
                Some(class) => random - random % SPI_CLASSES + class % SPI_CLASSES,
                None => random,
            };
            // The class may move the number above the maximum, and SPIs below 256 are reserved (RFC
            // 4303 §2.1): another number is drawn then.
            if let Ok(spi) = wire::Spi::try_from(wanted)
                && wanted <= MAX_SPI
                && !self.child_spis.contains_key(&spi)
                && !self.reserved_spis.contains(&spi)
            {
                self.claim_spi(spi, id);
                return spi;
            }
        }
    }

    /// Sets the SPIs that other key sources on this host receive with; previous ones may be
    /// assigned again.
    pub(crate) fn reserve_spis(&mut self, spis: impl IntoIterator<Item = wire::Spi>) {
        self.reserved_spis = spis.into_iter().collect();
    }

    /// SPIs that have rested may be chosen again.
    fn wake_spis(&mut self, now: Instant) {
        while let Some((until, spi)) = self.resting_spis.first().copied()
            && until <= now
        {
            self.resting_spis.pop_first();
            self.free_spi(spi);
        }
    }

    /// Inbound SPIs of Child SAs in use.
    #[cfg(any(test, feature = "testkit"))]
    pub(crate) fn spis_in_use(&self) -> usize {
        self.child_spis.len() - self.resting_spis.len()
    }
}

impl Context<'_> {
    /// Sends a credential request; the response goes to `ike`.
    pub(crate) fn request_credentials(&mut self, ike: IkeId, request: CredentialRequest) -> RequestId {
        let request_id = self.names.request_id();
        self.names.request_ids.insert(request_id, ike);
        self.out.push_back(Output::RequestCredentials(request_id, request));
        request_id
    }

    /// Takes a random SPI for inbound packets of a Child SA, of the class `class` if one is wanted.
    pub(crate) fn child_spi(&mut self, id: ChildId, class: Option<u32>) -> wire::Spi {
        self.names.wake_spis(self.now);
        self.names.take_spi(id, class, || self.rng.next_u32())
    }

    /// An IKE SA gave this host a virtual address.
    pub(crate) fn hold_address(&mut self, ike: IkeId, address: &VirtualIp) {
        let holders = self.names.virtual_addresses.entry(address.addr).or_insert(0);
        *holders += 1;
        if *holders == 1 {
            self.out.push_back(Output::VirtualAddress(ike, address.clone(), true));
        }
    }

    /// It is over; the address goes with the last IKE SA that gave it.
    pub(crate) fn drop_address(&mut self, ike: IkeId, address: VirtualIp) {
        let Some(holders) = self.names.virtual_addresses.get_mut(&address.addr) else { return };
        *holders -= 1;
        if *holders == 0 {
            self.names.virtual_addresses.remove(&address.addr);
            self.out.push_back(Output::VirtualAddress(ike, address, false));
        }
    }

    /// Reports an event.
    pub(crate) fn event(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }

    /// A line for the log. Never a key.
    pub(crate) fn log(&mut self, level: Level, subsystem: Subsystem, ike: Option<IkeId>, text: String) {
        self.event(Event::Log { level, subsystem, ike, text });
    }

    /// Counts and logs a step that only a defect of this program can cause. Types make most of them
    /// impossible to write; the rest must not become an exchange that silently waits for its
    /// timeout.
    pub(crate) fn internal_error(&mut self, ike: IkeId, what: &str) {
        self.count(counters::INTERNAL);
        if self.names.internal_error_lines.allows(self.now) {
            self.log(Level::Error, Subsystem::Ike, Some(ike), format!("internal error: {what}"));
        }
    }

    /// Counts.
    pub(crate) fn count(&mut self, what: &'static str) {
        self.event(Event::Count(what));
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // a test begins at some time
mod tests {
    use super::*;

    /// The SPI selected for the random numbers 1920, 2880, 3840 and so on.
    fn take(names: &mut Names, now: Instant) -> u32 {
        let mut random = SPI_CLASSES;
        names.wake_spis(now);
        let next = || {
            random += SPI_CLASSES;
            random
        };
        names.take_spi(ChildId(1), Some(7), next).get()
    }

    #[test]
    fn no_spi_is_taken_for_eesp_in_udp() {
        for class in [None, Some(0), Some(SPI_CLASSES - 1)] {
            let (mut names, mut random) = (Names::default(), u32::MAX);
            for number in 0..2000 {
                let next = || {
                    random = random.wrapping_add(SPI_CLASSES / 2 + 1);
                    random
                };
                let spi = names.take_spi(ChildId(number), class, next).get();
                assert!(spi <= MAX_SPI && class.is_none_or(|class| spi % SPI_CLASSES == class), "{spi:#x}");
            }
        }
    }

    #[test]
    fn names_of_child_sas_wrap_around_those_in_use() {
        let mut names = Names::default();
        let old = [names.child(), names.child()];
        for id in old {
            names.claim_spi(wire::Spi::try_from(0x1000 + id.0).unwrap(), id);
        }
        names.next_child = u32::MAX - 1;
        assert_eq!([names.child(), names.child(), names.child()], [u32::MAX, 0, 3].map(ChildId));
        // A name is free with its SPI.
        names.free_spi(wire::Spi::try_from(0x1001).unwrap());
        names.next_child = u32::MAX;
        assert_eq!([names.child(), names.child(), names.child()], [0, 1, 3].map(ChildId));
    }

    #[test]
    fn an_spi_is_not_taken_again_while_packets_may_come_for_it() {
        let (mut names, start) = (Names::default(), Instant::now());
        let (first, second) = (take(&mut names, start), take(&mut names, start));
        assert_eq!((first, second), (2 * SPI_CLASSES + 7, 3 * SPI_CLASSES + 7));
        let last = start + Duration::from_secs(5);
        names.rest_spi(wire::Spi::try_from(first).unwrap(), last);
        assert_eq!(names.spis_in_use(), 1);
        assert_eq!(take(&mut names, last + SPI_REST - Duration::from_millis(1)), 4 * SPI_CLASSES + 7);
        assert_eq!(take(&mut names, last + SPI_REST), first);
        assert_eq!(names.spis_in_use(), 3);
        // An SPI taken by another key source during its quarantine is not assigned at all.
        names.rest_spi(wire::Spi::try_from(second).unwrap(), last);
        names.reserve_spis([wire::Spi::try_from(second).unwrap()]);
        assert_ne!(take(&mut names, last + SPI_REST), second);
        // Until it is free again.
        names.reserve_spis([wire::Spi::try_from(0x1000).unwrap()]);
        assert_eq!(take(&mut names, last + SPI_REST), second);
    }
}
