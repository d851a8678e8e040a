//! Models of what a gateway finds around it: kernel, routes, guard, sockets, randomness.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use dataplane::Reader;
use wire::AddrRange;

use super::Outgoing;
use crate::border::{Closes, Filter, Paths};
use crate::config::Config;
use crate::guard::{Counters, GuardPolicy, Rules, model};
use crate::host::HostNetwork;
use crate::keying::sockets::Transport;
use crate::routes::{self, RouteError, Target};

/// What the kernel of a host keeps: it survives the gateway.
#[derive(Clone, Default)]
pub struct Kernel(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Addresses that packets may be sent from; the first is the usual one.
    addresses: Vec<IpAddr>,
    /// Networks behind this host.
    networks: Vec<AddrRange>,
    /// Datagrams of IKE that wait in its sockets: local address, sender, message.
    inbox: VecDeque<(SocketAddr, SocketAddr, Vec<u8>)>,
    sent: Vec<Outgoing>,
    /// Datagrams that could not be sent.
    unsent: u64,
    /// Routes of the gateway's table.
    routes: BTreeMap<routes::Network, Target>,
    /// Table of the guard: what it is made of, and itself once a packet has met it.
    guard: Option<(u32, bool, Rules)>,
    table: Option<model::Table>,
    /// The process was killed: nothing cleans up.
    killed: bool,
}

impl State {
    fn table(&mut self) -> Option<&model::Table> {
        let (mark, reverse_path, rules) = self.guard.as_ref()?;
        Some(self.table.get_or_insert_with(|| model::Table::new(*mark, *reverse_path, rules)))
    }
}

/// Datagrams that wait in the sockets of IKE at most, like the buffers of a kernel.
const INBOX: usize = 1024;

impl Kernel {
    /// The kernel of a host with these addresses outside and these networks behind it.
    #[must_use]
    pub fn new(addresses: Vec<IpAddr>, networks: Vec<AddrRange>) -> Self {
        Self(Arc::new(Mutex::new(State { addresses, networks, ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the addresses outside.
    pub fn set_addresses(&self, addresses: Vec<IpAddr>) {
        self.state().addresses = addresses;
    }

    /// Addresses outside.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.state().addresses.clone()
    }

    /// Another program removes the rules of the guard.
    pub fn remove_guard(&self) {
        let mut state = self.state();
        (state.guard, state.table) = (None, None);
    }

    /// Another program removes the routes.
    pub fn remove_routes(&self) {
        self.state().routes.clear();
    }

    /// Datagrams that could not be sent so far.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.state().unsent
    }

    /// What a gateway that was killed leaves behind is kept; otherwise its end cleans up.
    pub(super) fn set_killed(&self, killed: bool) {
        self.state().killed = killed;
    }

    pub(super) fn push(&self, local: SocketAddr, from: SocketAddr, message: Vec<u8>) {
        let mut state = self.state();
        if state.inbox.len() < INBOX {
            state.inbox.push_back((local, from, message));
        }
    }

    pub(super) fn has_input(&self) -> bool {
        !self.state().inbox.is_empty()
    }

    /// Forgets the datagrams that nothing receives any more.
    pub(super) fn close_sockets(&self) {
        self.state().inbox.clear();
    }

    /// The packet path sends a packet.
    pub fn send(&self, packet: Vec<u8>) {
        self.state().sent.push(Outgoing::Packet(packet));
    }

    /// Takes what was sent since the last call, in order.
    #[must_use]
    pub fn take_sent(&self) -> Vec<Outgoing> {
        std::mem::take(&mut self.state().sent)
    }

    /// Returns whether routes lead packets to `to` into the TUN device.
    #[must_use]
    pub fn leads_into_device(&self, to: IpAddr) -> bool {
        let state = self.state();
        let of = |(network, _): &(&routes::Network, &Target)| network.range().is_some_and(|range| range.contains(to));
        let longest = state.routes.iter().filter(of).max_by_key(|(network, _)| network.prefix);
        longest.is_some_and(|(_, target)| matches!(target, Target::Tunnel(_)))
    }

    /// Returns whether the guard accepts a clear packet that arrives from outside.
    #[must_use]
    pub fn accepts_clear(&self, src: IpAddr, dst: IpAddr, proto: u8, transport: &[u8]) -> bool {
        let packet = self.packet(src, dst, proto, transport);
        self.state().table().is_none_or(|table| table.accepts(&packet))
    }

    /// Returns whether the guard lets a clear packet out.
    #[must_use]
    pub fn lets_clear_out(&self, src: IpAddr, dst: IpAddr, proto: u8, transport: &[u8]) -> bool {
        let packet = self.packet(src, dst, proto, transport);
        self.state().table().is_none_or(|table| table.lets_out(&packet))
    }

    fn packet(&self, src: IpAddr, dst: IpAddr, proto: u8, transport: &[u8]) -> model::Packet {
        let for_host = self.state().addresses.contains(&dst);
        model::Packet { src, dst, proto, transport: transport.to_vec(), fragment: false, hop_limit: 64, for_host }
    }
}

/// Addresses and networks.
pub(super) struct ModelHost(pub(super) Kernel);

impl HostNetwork for ModelHost {
    fn addresses(&self) -> Result<Vec<IpAddr>, RouteError> {
        Ok(self.0.addresses())
    }

    fn source_towards(&self, remote: IpAddr) -> Option<IpAddr> {
        self.0.addresses().into_iter().find(|addr| addr.is_ipv6() == remote.is_ipv6())
    }

    fn network_of(&self, addr: IpAddr) -> Option<AddrRange> {
        self.0.state().networks.iter().find(|network| network.contains(addr)).copied()
    }

    fn private_networks(&self) -> Vec<AddrRange> {
        Vec::new()
    }

    fn sources(&self) -> Vec<(IpAddr, AddrRange)> {
        self.0.addresses().into_iter().map(|addr| (addr, AddrRange::ANY_V4)).collect()
    }

    fn route_mtu(&self, _: IpAddr) -> Option<u32> {
        Some(1500)
    }

    fn device_address(&self, _: IpAddr, _: bool) -> Result<(), RouteError> {
        Ok(())
    }

    fn device_mtu(&self, _: u32) -> Result<(), RouteError> {
        Ok(())
    }
}

/// The sockets of IKE.
pub(super) struct ModelTransport {
    pub(super) kernel: Kernel,
    /// The tables of packets, which a message must not precede.
    pub(super) tables: Mutex<Reader>,
}

impl Transport for ModelTransport {
    fn receive(&mut self, take: &mut dyn FnMut(SocketAddr, SocketAddr, &[u8])) {
        let arrived = std::mem::take(&mut self.kernel.state().inbox);
        for (local, from, message) in arrived {
            take(local, from, &message);
        }
    }

    fn send(&self, mut local: SocketAddr, remote: SocketAddr, message: &[u8]) -> io::Result<()> {
        let inbound_sas = self.tables.lock().unwrap_or_else(PoisonError::into_inner).load().sad.iter().len();
        let mut state = self.kernel.state();
        if local.ip().is_unspecified() {
            let first = state.addresses.first().copied();
            local.set_ip(first.ok_or(io::ErrorKind::NetworkUnreachable)?);
        }
        if !state.addresses.contains(&local.ip()) {
            state.unsent += 1;
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        state.sent.push(Outgoing::Ike { from: local, to: remote, message: message.to_vec(), inbound_sas });
        Ok(())
    }

    fn keep_alive(&self, _: SocketAddr, _: SocketAddr) -> io::Result<()> {
        Ok(())
    }

    fn readable(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// Routes into the TUN device.
pub(super) struct ModelRoutes {
    kernel: Kernel,
    stays: bool,
}

impl ModelRoutes {
    pub(super) fn new(kernel: Kernel) -> Self {
        Self { kernel, stays: false }
    }
}

impl Closes for ModelRoutes {
    fn tick(&mut self, _: Instant) {}

    fn stay(&mut self) {
        self.stays = true;
    }

    fn give_up(&mut self) {}

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Paths for ModelRoutes {
    fn apply(&mut self, policies: &[GuardPolicy], own: &[IpAddr]) -> anyhow::Result<()> {
        let mut state = self.kernel.state();
        state.routes = routes::wanted(policies, own, &state.addresses).0;
        Ok(())
    }

    fn add(&mut self, policies: &[GuardPolicy], own: &[IpAddr]) -> anyhow::Result<bool> {
        let mut state = self.kernel.state();
        let (wanted, _) = routes::wanted(policies, own, &state.addresses);
        if wanted.keys().any(|network| state.routes.get(network) == Some(&Target::Throw)) {
            return Ok(false);
        }
        for (network, target) in wanted {
            state.routes.entry(network).or_insert(target);
        }
        Ok(true)
    }
}

impl Drop for ModelRoutes {
    fn drop(&mut self) {
        let mut state = self.kernel.state();
        if !self.stays && !state.killed {
            state.routes.clear();
        }
    }
}

/// The guard.
pub(super) struct ModelGuard {
    kernel: Kernel,
    mark: u32,
    reverse_path: bool,
    stays: bool,
}

impl ModelGuard {
    pub(super) fn new(kernel: Kernel, config: &Config) -> Self {
        Self { kernel, mark: config.gateway.fwmark, reverse_path: config.gateway.guard_rpf, stays: false }
    }
}

impl Closes for ModelGuard {
    fn tick(&mut self, _: Instant) {}

    fn stay(&mut self) {
        self.stays = true;
    }

    fn give_up(&mut self) {}

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Filter for ModelGuard {
    fn apply(&mut self, rules: Rules) -> anyhow::Result<()> {
        let mut state = self.kernel.state();
        (state.guard, state.table) = (Some((self.mark, self.reverse_path, rules)), None);
        Ok(())
    }

    fn add(&mut self, _: &[GuardPolicy]) -> anyhow::Result<bool> {
        Ok(false)
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

impl Drop for ModelGuard {
    fn drop(&mut self) {
        let mut state = self.kernel.state();
        if !self.stays && !state.killed {
            (state.guard, state.table) = (None, None);
        }
    }
}

/// Bytes that depend on `seed` alone.
pub(super) fn random(seed: u64) -> impl Fn(&mut [u8]) + Send + Sync + 'static {
    let state = Mutex::new(seed);
    move |bytes: &mut [u8]| {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        for chunk in bytes.chunks_mut(8) {
            // SplitMix64.
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = *state;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^= word >> 31;
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}
