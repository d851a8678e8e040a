//! Peers of the key service of PSP over vici: started, ended, rekeyed and listed beside IKE SAs.
//!
//! A command returns at once; keys are reported by the log and by the listing. In a listing a peer
//! is an IKE SA without a version.

use std::net::SocketAddr;
use std::time::Instant;

use ike::InitiateError;
use vici::listing::{self, Algorithms, ChildIpsec, ChildListing, IkeSaListing, Usage};
use vici::message::Message;
use vici::names::{self, IkeState, Mode};

use super::ControlContext;
use crate::psp_keys::{ChildState, PeerListing, State, Traffic};

/// Carries out `initiate` where it speaks of the key service.
pub(super) fn initiate(context: &mut ControlContext<'_>, request: &Message, now: Instant) -> Option<Message> {
    let (ike, child) = (request.text("ike"), request.text("child"));
    let name = context.psp.named(ike, child)?;
    if context.psp.is_draining() {
        return Some(listing::failure(&InitiateError::Draining.to_string()));
    }
    let found = context.psp.initiate(now, &name, child, context.plane);
    Some(match found {
        0 => listing::failure("no peer of this connection has an address: the peer must connect"),
        _ => listing::success(),
    })
}

/// Carries out `terminate` where it speaks of the key service.
pub(super) fn terminate(context: &mut ControlContext<'_>, request: &Message, now: Instant) -> Option<Message> {
    let (ike, child) = (request.text("ike"), request.text("child"));
    let name = context.psp.named(ike, child)?;
    let found = context.psp.terminate(now, &name, child, context.plane);
    Some(listing::terminated(found, found))
}

/// Carries out `rekey`; how many children it speaks of.
pub(super) fn rekey(context: &mut ControlContext<'_>, request: &Message, now: Instant) -> usize {
    let (ike, child) = (request.text("ike"), request.text("child"));
    let Some(name) = context.psp.named(ike, child) else { return 0 };
    context.psp.rekey(now, &name, child, context.plane)
}

/// Last fault of a connection with a key service.
pub(super) fn fault(peers: &[PeerListing], connection: &str) -> Option<String> {
    let peer = peers.iter().filter(|peer| peer.connection == connection);
    let faults = |peer: &PeerListing| {
        peer.fault.clone().into_iter().chain(peer.children.iter().filter_map(|child| child.fault.clone())).next()
    };
    peer.filter_map(faults).next()
}

/// All peers as `list-sas` shows them.
pub(super) fn list(context: &ControlContext<'_>, now: Instant) -> Vec<IkeSaListing> {
    let peers = context.psp.listing(now, &context.plane.negotiated.psp);
    peers.iter().map(|peer| sa(peer, now)).collect()
}

pub(super) fn sa(peer: &PeerListing, now: Instant) -> IkeSaListing {
    let reached = peer.state == State::Reached;
    IkeSaListing {
        name: peer.connection.clone(),
        unique_id: peer.number as u32,
        version: 0,
        state: match peer.state {
            State::Reached => IkeState::Established,
            State::Waiting => IkeState::Connecting,
            State::Idle => IkeState::Created,
        },
        local: SocketAddr::new(peer.local, peer.ports.0),
        local_id: peer.ids.0.clone(),
        remote: SocketAddr::new(peer.remote, peer.ports.1),
        remote_id: peer.ids.1.clone(),
        remote_eap_id: None,
        initiator: peer.configured,
        initiator_spi: 0,
        responder_spi: 0,
        nat_local: false,
        nat_remote: false,
        nat_fake: false,
        algorithms: None,
        ppk: false,
        established_s: peer.reached_for.filter(|_| reached).map(|since| since.as_secs()),
        rekey_s: None,
        reauth_s: None,
        local_vips: Vec::new(),
        remote_vips: Vec::new(),
        // The reason for missing keys is in the field for pending tasks of IKE.
        tasks_queued: peer
            .fault
            .iter()
            .chain(peer.children.iter().filter_map(|child| child.fault.as_ref()))
            .cloned()
            .collect(),
        tasks_active: Vec::new(),
        tasks_passive: Vec::new(),
        children: peer.children.iter().enumerate().map(|(at, child)| child_sa(peer, at, child, now)).collect(),
    }
}

fn child_sa(peer: &PeerListing, at: usize, child: &ChildState, now: Instant) -> ChildListing {
    // The newest that the peer uses; one that was only announced if there is none.
    let newest = child.receiving.iter().rev().find(|line| line.used).or(child.receiving.last());
    let sending = child.sending.as_ref();
    let version = sending.or(newest).map_or(0, |line| line.version);
    let Traffic { packets_in, bytes_in, packets_out, bytes_out, .. } = child.traffic;
    let spi = |line: Option<&crate::psp_keys::Line>| line.map_or(0, |line| line.spi.get());
    let left = |line: &crate::psp_keys::Line| line.until.saturating_duration_since(now).as_secs() as i64;
    let ipsec = ChildIpsec {
        protocol: "PSP".to_owned(),
        encap: false,
        spi_in: spi(newest),
        spi_out: spi(sending),
        if_id_in: None,
        if_id_out: None,
        per_cpu_sas: false,
        cpu: None,
        algorithms: Algorithms {
            encryption: Some(match version {
                0 => ("AES_GCM_16".to_owned(), Some(128)),
                1 => ("AES_GCM_16".to_owned(), Some(256)),
                2 => ("NULL_AES_GMAC".to_owned(), Some(128)),
                _ => ("NULL_AES_GMAC".to_owned(), Some(256)),
            }),
            integrity: None,
            prf: None,
            key_exchange: None,
            additional: Vec::new(),
        },
        esn: false,
        usage_in: Usage { bytes: bytes_in, packets: packets_in, last_s: child.idle_s.0 },
        usage_out: Usage { bytes: bytes_out, packets: packets_out, last_s: child.idle_s.1 },
        rekey_s: None,
        life_s: sending.or(newest).map(left),
        install_s: child.since.map_or(0, |since| since.as_secs()),
    };
    ChildListing {
        name: child.name.clone(),
        unique_id: peer.number as u32 * 256 + at as u32,
        reqid: 0,
        state: match (sending, newest) {
            (None, None) => names::ChildState::Created,
            _ => names::ChildState::Installed,
        },
        mode: match child.mode {
            crate::psp_keys::message::Mode::Tunnel => Mode::Tunnel,
            crate::psp_keys::message::Mode::Transport => Mode::Transport,
        },
        label: None,
        ipsec: (sending.is_some() || newest.is_some()).then_some(ipsec),
        local_ts: child.selectors.0.clone(),
        remote_ts: child.selectors.1.clone(),
    }
}
