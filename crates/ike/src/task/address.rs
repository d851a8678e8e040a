//! Addresses that change: MOBIKE (RFC 4555), and without it the moves of a NAT mapping (RFC 7296
//! §2.23).
//!
//! With MOBIKE the initiator of the first IKE SA decides which addresses are used; the responder
//! announces its own. Without it a host without a NAT follows a peer with one, by authentic new
//! messages and packets only.

use std::net::IpAddr;
use std::time::Instant;

use wire::ike::{Chain, ExchangeType, NotifyType, ProtocolId};

use super::{Active, Task, counters};
use crate::child::Parts;
use crate::context::Context;
use crate::nat;
use crate::output::{Event, IkeSpis, Level, Output, Path};
use crate::sa::{Ending, Established, Role};

/// Bytes of the COOKIE2 data that this host sends.
pub(super) const COOKIE2_LEN: usize = 16;
/// Addresses that are remembered of either end.
const ADDRESSES_MAX: usize = 16;

/// Addresses of both ends.
#[derive(Clone, Default)]
pub(super) struct Addresses {
    /// Addresses of this host; at most `ADDRESSES_MAX`.
    local: Vec<IpAddr>,
    /// Announced addresses of the peer; at most `ADDRESSES_MAX`.
    peer: Vec<IpAddr>,
    /// Paths that were tried since the peer answered last.
    tried: Vec<(IpAddr, IpAddr)>,
    /// A path was changed without a word to the peer.
    unannounced: bool,
    /// Address of this host as seen by the peer: its NAT_DETECTION_DESTINATION_IP.
    mapping: Option<Vec<u8>>,
    /// Time of the last request.
    probed: Option<Instant>,
}

#[cfg(test)]
impl Addresses {
    /// Number of addresses that the peer announced.
    pub(super) fn peer_count(&self) -> usize {
        self.peer.len()
    }
}

/// The path over which NAT_DETECTION notifies are written; `None` where they are not wanted.
pub(super) struct NatProbe(Option<Path>);

impl NatProbe {
    pub(super) fn emit(&self, chain: &mut Chain<'_>, spis: IkeSpis, fake: bool) {
        if let Some(path) = &self.0 {
            nat::emit(chain, spis, path, fake);
        }
    }
}

impl Established {
    /// Addresses of this host changed.
    pub(crate) fn local_addresses(&mut self, ctx: &mut Context<'_>, addresses: &[IpAddr]) {
        let usable = |addr: &&IpAddr| !addr.is_loopback() && !addr.is_unspecified() && !addr.is_multicast();
        let local: Vec<IpAddr> = addresses.iter().filter(usable).take(ADDRESSES_MAX).copied().collect();
        let changed = self.tasks.addresses.local != local;
        self.tasks.addresses.local = local;
        if self.ending != Ending::No {
            return;
        }
        let lost = !addresses.contains(&self.path.local.ip());
        match (lost, self.peer.mobike, self.tasks.origin) {
            (true, true, Role::Initiator) => self.leave_path(ctx),
            (true, true, Role::Responder) => {
                // The initiator decides about the path. The responder changes its source address
                // only because nothing can be sent from the old one: neither the announcement, nor
                // packets of Child SAs.
                if let Some(local) = self.local_for(ctx, self.path.remote.ip()) {
                    self.path.local.set_ip(local);
                    self.moved(ctx);
                }
                self.queue(ctx, Task::Addresses { update: false });
            }
            (true, false, _) if self.local_for(ctx, self.path.remote.ip()).is_some() => {
                self.log(ctx, Level::Info, "the local address is gone and the peer has no MOBIKE".to_owned());
                self.reauthenticate(ctx, None);
            }
            (false, true, _) if changed => self.queue(ctx, Task::Addresses { update: false }),
            _ => (),
        }
    }

    /// An address of this host that can reach `remote`: that of the routing table, otherwise the
    /// first of its family, not link-local unless both are.
    fn local_for(&self, ctx: &Context<'_>, remote: IpAddr) -> Option<IpAddr> {
        let routed = (ctx.sources)(remote).filter(|addr| self.tasks.addresses.local.contains(addr));
        if routed.is_some() {
            return routed;
        }
        let fits =
            |addr: &&IpAddr| addr.is_ipv6() == remote.is_ipv6() && is_link_local(**addr) == is_link_local(remote);
        self.tasks.addresses.local.iter().find(fits).copied()
    }

    /// The local address is gone: uses the next path and notifies the peer.
    fn leave_path(&mut self, ctx: &mut Context<'_>) {
        self.tasks.addresses.tried.clear();
        if !self.take_next_path(ctx) {
            return self.log(ctx, Level::Warn, "no address of this host can reach the peer any more".to_owned());
        }
        // The outstanding request occupies the window: until it is answered on the new path, no
        // update can be sent (RFC 4555 §3.5).
        self.exchanges.resend_now(ctx, &self.path);
        self.queue(ctx, Task::Addresses { update: true });
    }

    /// Changes to a path that was not tried since the peer answered last.
    fn take_next_path(&mut self, ctx: &mut Context<'_>) -> bool {
        let now = (self.path.local.ip(), self.path.remote.ip());
        let addresses = &mut self.tasks.addresses;
        if !addresses.tried.contains(&now) {
            addresses.tried.push(now);
        }
        let remotes = std::iter::once(now.1).chain(addresses.peer.clone());
        let paths: Vec<(IpAddr, IpAddr)> = remotes
            .flat_map(|remote| {
                // First that of the routing table: the others may have no route to the peer.
                let routed = (ctx.sources)(remote).filter(|addr| addresses.local.contains(addr));
                let locals = routed.into_iter().chain(addresses.local.iter().copied());
                locals.map(move |local| (local, remote)).collect::<Vec<_>>()
            })
            .collect();
        let fits = |(local, remote): &&(IpAddr, IpAddr)| {
            local.is_ipv6() == remote.is_ipv6() && is_link_local(*local) == is_link_local(*remote)
        };
        let Some((local, remote)) = paths.iter().filter(fits).find(|path| !addresses.tried.contains(path)).copied()
        else {
            return false;
        };
        addresses.unannounced = true;
        self.path.local.set_ip(local);
        self.path.remote.set_ip(remote);
        let text = format!("trying the path from {} to {}", self.path.local, self.path.remote);
        self.log(ctx, Level::Info, text);
        true
    }

    /// The peer does not answer on this path: if there is another one, the request should be sent
    /// there (RFC 4555 §3.5).
    pub(super) fn try_other_path(&mut self, ctx: &mut Context<'_>) -> bool {
        let may = self.peer.mobike && self.tasks.origin == Role::Initiator && self.tasks.active.is_some();
        may && self.take_next_path(ctx) && self.exchanges.try_again(ctx, &self.path)
    }

    /// A response came: the path works, and the peer must be notified if it is new.
    pub(super) fn path_works(&mut self, ctx: &mut Context<'_>) {
        self.tasks.addresses.tried.clear();
        if self.tasks.addresses.unannounced && !matches!(self.tasks.active, Some(Active::Addresses { update: true })) {
            self.queue(ctx, Task::Addresses { update: true });
        }
    }

    pub(super) fn start_addresses(&mut self, ctx: &mut Context<'_>, update: bool) {
        if !self.peer.mobike || (update && self.tasks.origin == Role::Responder) {
            return;
        }
        let probe = NatProbe(update.then_some(self.path));
        let (spis, fake) = (self.spis, self.connection.encap.is_forced());
        let here = self.path.local.ip();
        let others: Vec<IpAddr> = self.tasks.addresses.local.iter().filter(|addr| **addr != here).copied().collect();
        if update {
            // A later change of path sets it again. The response then belongs to an abandoned path.
            self.tasks.addresses.unannounced = false;
        }
        self.send(ctx, Active::Addresses { update }, ExchangeType::INFORMATIONAL, |chain| {
            if update {
                chain.notify(ProtocolId::NONE, &[], NotifyType::UPDATE_SA_ADDRESSES, &[]);
            }
            probe.emit(chain, spis, fake);
            emit_addresses(chain, &others);
        });
    }

    pub(super) fn addresses_answered(&mut self, ctx: &mut Context<'_>, update: bool, parts: &Parts<'_>) {
        if let Some(error) = parts.error() {
            let text = format!("the peer refuses the path from {}: {}", self.path.local, error.kind);
            self.log(ctx, Level::Warn, text);
            if update && self.take_next_path(ctx) {
                self.queue(ctx, Task::Addresses { update: true });
            }
            return;
        }
        if update && self.tasks.addresses.unannounced {
            // The path changed while the request was repeated. It was written for another path, and
            // the peer may have answered it from its cache: a new one is required (RFC 4555 §3.5,
            // §3.6), whose response moves the Child SAs.
            self.queue(ctx, Task::Addresses { update: true });
        } else if update {
            self.tasks.addresses.mapping = mapping(parts);
            self.detect_nat(parts);
            self.moved(ctx);
        }
    }

    /// UPDATE_SA_ADDRESSES, ADDITIONAL_*_ADDRESS and NAT detection in a request.
    pub(super) fn answer_addresses(
        &mut self,
        ctx: &mut Context<'_>,
        from: &Path,
        parts: &Parts<'_>,
        chain: &mut Chain<'_>,
    ) {
        if !self.peer.mobike || self.ending != Ending::No {
            return;
        }
        if let Some(sent) = parts.notify(NotifyType::NO_NATS_ALLOWED)
            && !nat::is_as_sent(sent, from)
        {
            // Addresses of such a request must not be used (RFC 4555 §3.9).
            chain.notify(ProtocolId::NONE, &[], NotifyType::UNEXPECTED_NAT_DETECTED, &[]);
            let text = format!("a NAT changed a request from {}, and the peer prohibits NATs", from.remote);
            return self.log(ctx, Level::Warn, text);
        }
        let update = parts.notify(NotifyType::UPDATE_SA_ADDRESSES).is_some();
        if self.learn_addresses(parts, from.remote.ip()) && !update && self.tasks.origin == Role::Initiator {
            self.follow_responder(ctx, from);
        }
        if update && self.tasks.origin == Role::Responder {
            let old = self.path;
            self.path = from.with_encap(old.encap);
            self.detect_nat(parts);
            if self.path != old {
                self.moved(ctx);
                // Is the peer really there? (§3.7)
                self.queue(ctx, Task::Liveness { cookie: true });
            }
        }
        if parts.notify(NotifyType::NAT_DETECTION_SOURCE_IP).is_some() {
            let path = from.with_encap(false);
            nat::emit(chain, self.spis, &path, self.connection.encap.is_forced());
        }
    }

    /// The responder announced its addresses: one is the source of the message, the others are in
    /// it (RFC 4555 §3.6). Leaves the path when its address is not among them.
    fn follow_responder(&mut self, ctx: &mut Context<'_>, from: &Path) {
        if !self.tasks.addresses.peer.contains(&self.path.remote.ip()) {
            (self.path.local, self.path.remote) = (from.local, from.remote);
            self.tasks.addresses.tried.clear();
            // An outstanding request occupies the window, and would be repeated to no one.
            self.exchanges.resend_now(ctx, &self.path);
            self.queue(ctx, Task::Addresses { update: true });
        }
    }

    /// Returns whether the message, which came from `source`, has a list of addresses.
    fn learn_addresses(&mut self, parts: &Parts<'_>, source: IpAddr) -> bool {
        let listed: Vec<IpAddr> = parts.notifies.iter().filter_map(address).collect();
        // The list is complete each time (§3.6); an absent list means no change unless it is
        // explicitly empty.
        let is_list = !listed.is_empty() || parts.notify(NotifyType::NO_ADDITIONAL_ADDRESSES).is_some();
        if is_list {
            // The source is one of the addresses, and not in the list: the path may return to it.
            let others = listed.into_iter().filter(|addr| *addr != source);
            self.tasks.addresses.peer = std::iter::once(source).chain(others).take(ADDRESSES_MAX).collect();
        }
        is_list
    }

    /// The addresses of this host announced in IKE_AUTH.
    pub(crate) fn announced_addresses(&mut self, addresses: &[IpAddr]) {
        let usable = |addr: &&IpAddr| !addr.is_loopback() && !addr.is_unspecified() && !addr.is_multicast();
        self.tasks.addresses.local = addresses.iter().filter(usable).take(ADDRESSES_MAX).copied().collect();
    }

    /// The addresses of the IKE SA that the handshake has found: ADDITIONAL_*_ADDRESS in IKE_AUTH.
    pub(crate) fn learn_peer_addresses(&mut self, payloads: wire::ike::Payloads<'_>) {
        if let Ok(parts) = Parts::read(payloads) {
            let source = self.path.remote.ip();
            self.learn_addresses(&parts, source);
        }
    }

    /// NAT detection by the peer's hashes over its view of the addresses.
    fn detect_nat(&mut self, parts: &Parts<'_>) {
        let mut detection = nat::Detection::default();
        for notify in &parts.notifies {
            detection.take(notify.kind, notify.data, self.spis, &self.path);
        }
        if detection.supported() {
            self.nat = detection.nat();
            self.path.encap = nat::encapsulates(self.nat, &self.connection, &self.peer);
        }
    }

    /// Packets use another path from now on.
    fn moved(&mut self, ctx: &mut Context<'_>) {
        ctx.count(counters::MOVED);
        for child in self.children.iter().filter(|child| !child.removed) {
            ctx.out.push_back(Output::Move(child.id, self.path));
        }
        for leased in &self.virtual_remote {
            ctx.pools.moved(leased, self.path.remote);
        }
        ctx.event(Event::IkeMoved(self.id));
        let text = format!("the IKE SA runs from {} to {} now", self.path.local, self.path.remote);
        self.log(ctx, Level::Info, text);
        self.follow_addresses(ctx);
        self.put_off_keepalive(ctx);
    }

    /// Without MOBIKE: the mapping of the NAT of the peer has changed.
    pub(super) fn follow_nat(&mut self, ctx: &mut Context<'_>, from: &Path) {
        let remote = from.remote;
        // A host behind a NAT must not follow, because that allows a DoS attack (RFC 7296 §2.23).
        let follows = !self.peer.mobike && self.nat == (false, true) && self.ending == Ending::No;
        if follows && remote != self.path.remote {
            self.path.remote = remote;
            self.moved(ctx);
        }
    }

    /// A liveness check of an initiator with MOBIKE requests its address as seen by the peer
    /// (§3.8).
    pub(super) fn mapping_probe(&mut self, now: Instant) -> NatProbe {
        let watches = self.watches_mapping();
        if watches {
            self.tasks.addresses.probed = Some(now);
        }
        NatProbe(watches.then_some(self.path))
    }

    fn watches_mapping(&self) -> bool {
        self.peer.mobike && self.tasks.origin == Role::Initiator && self.nat.0
    }

    /// Time since the last liveness check. A host that monitors its mapping sends one even while
    /// other messages are exchanged: responses to those arrive, but packets of Child SAs may not.
    pub(super) fn unasked_since(&self) -> Instant {
        match self.tasks.addresses.probed {
            Some(probed) if self.watches_mapping() => self.last_received.min(probed),
            None if self.watches_mapping() => self.last_received.min(self.established),
            _ => self.last_received,
        }
    }

    /// Processes the response: a changed mapping must be announced. So must the first one, because
    /// it may differ from that of IKE_AUTH, which used another port.
    pub(super) fn watch_mapping(&mut self, ctx: &mut Context<'_>, parts: &Parts<'_>) {
        let Some(mapping) = mapping(parts) else { return };
        let old = self.tasks.addresses.mapping.replace(mapping);
        if old != self.tasks.addresses.mapping {
            self.queue(ctx, Task::Addresses { update: true });
        }
    }
}

fn mapping(parts: &Parts<'_>) -> Option<Vec<u8>> {
    parts.notify(NotifyType::NAT_DETECTION_DESTINATION_IP).filter(|hash| hash.len() == 20).map(<[u8]>::to_vec)
}

fn emit_addresses(chain: &mut Chain<'_>, addresses: &[IpAddr]) {
    if addresses.is_empty() {
        chain.notify(ProtocolId::NONE, &[], NotifyType::NO_ADDITIONAL_ADDRESSES, &[]);
    }
    for addr in addresses {
        match addr {
            IpAddr::V4(v4) => chain.notify(ProtocolId::NONE, &[], NotifyType::ADDITIONAL_IP4_ADDRESS, &v4.octets()),
            IpAddr::V6(v6) => chain.notify(ProtocolId::NONE, &[], NotifyType::ADDITIONAL_IP6_ADDRESS, &v6.octets()),
        };
    }
}

fn address(notify: &wire::ike::Notify<'_>) -> Option<IpAddr> {
    match notify.kind {
        NotifyType::ADDITIONAL_IP4_ADDRESS => <[u8; 4]>::try_from(notify.data).ok().map(IpAddr::from),
        NotifyType::ADDITIONAL_IP6_ADDRESS => <[u8; 16]>::try_from(notify.data).ok().map(IpAddr::from),
        _ => None,
    }
}

fn is_link_local(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}
