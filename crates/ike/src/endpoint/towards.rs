//! Traps of connections without the address of a peer, in transport mode: the destination of a
//! packet is the peer.
//!
//! A packet starts a handshake with its destination, unless one is under way; an IKE SA of the
//! connection with that host gets the Child SA otherwise. An attempt that fails is not repeated by
//! itself: the next packet starts another one.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use rand_core::CryptoRng;

use super::{Endpoint, Slot};
use crate::config::Connection;
use crate::handshake::{Handshake, Redirects, counters};
use crate::sa::{ChildRequest, Ending, IkeSa, Initiation};

/// Handshakes with peers that packets chose, about 4 KiB each: a program that scans a network
/// starts no more at a time.
const TOWARDS_MAX: usize = 64;

impl<R: CryptoRng> Endpoint<R> {
    /// A packet met a trap of which its destination is the peer.
    pub(super) fn acquire_towards(&mut self, now: Instant, connection: &Arc<Connection>, child: ChildRequest) {
        let Some((local, remote)) = child.packet else { return };
        let (source, peer) = (local.addrs.start, remote.addrs.start);
        // Transport mode protects packets between the two hosts only, so a forwarded packet must
        // not start a handshake.
        if !self.is_own(source) || !is_peer(connection, peer) || self.is_own(peer) {
            return self.shared.count(counters::TOWARDS_NOBODY);
        }
        let Some(child) = self.join_towards(now, connection, peer, child) else { return };
        let waiting = self.awaiting.iter().filter(|(initiation, _)| initiation.by_packet).count();
        if self.towards.len() + waiting >= TOWARDS_MAX || self.sas.len() >= self.shared.settings.ike_sas_max {
            return self.shared.count(counters::TOWARDS_LIMITED);
        }
        let initiation = Initiation {
            connection: Arc::clone(connection),
            children: vec![child],
            remote: Some((peer, connection.remote_port).into()),
            host: None,
            attempt: 1,
            replaces: None,
            addresses: Vec::new(),
            commands: Vec::new(),
            by_packet: true,
        };
        self.initiate_now(now, initiation, Redirects::default());
    }

    /// Adds the request to an IKE SA with `peer`, or to an attempt that is under way; returns it
    /// when there is none.
    fn join_towards(
        &mut self,
        now: Instant,
        connection: &Arc<Connection>,
        peer: IpAddr,
        child: ChildRequest,
    ) -> Option<ChildRequest> {
        // The newest first, because an older IKE SA may be about to end.
        for spi in self.spis_of(&connection.name).into_iter().rev() {
            let Some(Slot { sa, .. }) = self.sas.get_mut(&spi) else { continue };
            match sa {
                IkeSa::Established(sa) if sa.path.remote.ip() == peer && sa.ending == Ending::No => {
                    self.with(now, &spi, |sa, ctx| sa.request_child(ctx, child));
                    return None;
                }
                IkeSa::Handshake(handshake) => {
                    if let Handshake::Initiator(initiator) = handshake.as_mut()
                        && initiator.path().remote.ip() == peer
                    {
                        // Without room the packet is dropped: others wait for the same handshake.
                        initiator.want(Some(child), None);
                        return None;
                    }
                }
                IkeSa::Established(_) => (),
            }
        }
        let towards = |waiting: &Initiation| {
            waiting.connection.name == connection.name && waiting.remote.is_some_and(|remote| remote.ip() == peer)
        };
        if let Some((waiting, _)) = self.awaiting.iter_mut().find(|(waiting, _)| towards(waiting)) {
            waiting.want(Some(child), None);
            return None;
        }
        // An attempt of another origin, such as a reauthentication that failed.
        let at = self.later.iter().position(|(_, waiting, _)| towards(waiting));
        if let Some((_, mut waiting, redirects)) = at.map(|at| self.later.swap_remove(at)) {
            waiting.want(Some(child), None);
            self.initiate_now(now, waiting, redirects);
            return None;
        }
        Some(child)
    }

    fn is_own(&self, addr: IpAddr) -> bool {
        self.shared.names.local_addresses.contains(&addr)
    }
}

/// Returns true when a host at `addr` can be a peer of the connection.
fn is_peer(connection: &Connection, addr: IpAddr) -> bool {
    let is_broadcast = matches!(addr, IpAddr::V4(addr) if addr.is_broadcast());
    let is_host = !addr.is_multicast() && !addr.is_unspecified() && !addr.is_loopback() && !is_broadcast;
    is_host && connection.peer_ranges().iter().any(|range| range.contains(addr))
}
