//! Connections with their state, for `weir status`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Instant;

use ike::config::{ChildMode, Connection, Version};
use ike::output::Event as IkeEvent;
use ike::{IkeView, Unanswered};
use vici::listing::{ChildListing, IkeSaListing};
use vici::names::{ChildState, IkeState};

use super::{ControlContext, listings, psp};
use crate::metrics;
use crate::negotiated::{Negotiated, Sums, drops};
use crate::plane::Plane;
use crate::psp_keys::PeerListing;
use crate::status::connection::{ChildStatus, ConnectionStatus, IkeStatus, Kind, State, UnansweredStatus};

/// Limit of connections for which the last failure is stored.
const FAILURES_MAX: usize = 1024;

/// Last failure of each connection since a child of it came up.
#[derive(Default)]
pub(super) struct Failures(HashMap<String, String>);

impl Failures {
    /// Records an event. `owner` is the name of its connection, if known.
    pub(super) fn note(&mut self, event: &IkeEvent, owner: Option<&str>) {
        match event {
            IkeEvent::ChildUp(_) => {
                if let Some(owner) = owner {
                    self.0.remove(owner);
                }
            }
            IkeEvent::IkeDown(_, reason) | IkeEvent::ChildDown(_, reason) if !reason.is_empty() => {
                if let Some(owner) = owner {
                    self.insert(owner, reason);
                }
            }
            IkeEvent::Log { text, .. } => {
                if let Some((connection, reason)) = metrics::failure(text, owner) {
                    self.insert(connection, reason);
                }
            }
            _ => (),
        }
    }

    fn insert(&mut self, connection: &str, reason: &str) {
        if self.0.len() < FAILURES_MAX || self.0.contains_key(connection) {
            self.0.insert(connection.to_owned(), reason.to_owned());
        }
    }

    fn of(&self, connection: &str) -> Option<String> {
        self.0.get(connection).cloned()
    }
}

/// Manual SAs as rows of the summary: up until a lifetime expires or the gateway is drained.
pub(super) fn manual(plane: &Plane) -> Vec<ConnectionStatus> {
    let ended = if plane.is_draining() { "drained" } else { "lifetime expired" };
    let row = |entry: &crate::tables::Entry| {
        let halves = entry.outbound.iter().map(|live| &live.sa.common);
        let halves = halves.chain(entry.inbound.iter().map(|live| &live.sa.common));
        let expired = halves.clone().any(|common| common.expired.load(Ordering::Relaxed));
        ConnectionStatus {
            name: entry.sa.name.clone(),
            kind: Kind::Manual,
            state: if expired { State::Down } else { State::Up },
            wanted: true,
            missing: Vec::new(),
            remote_addrs: vec![entry.sa.peer.remote.to_string()],
            remote_id: None,
            reason: expired.then(|| ended.to_owned()),
            ike_sas: Vec::new(),
        }
    };
    plane.tables.entries.iter().map(row).collect()
}

/// Connections in the order of their names, each with its IKE SAs, newest first.
pub(super) fn connections(context: &ControlContext<'_>, failures: &Failures, now: Instant) -> Vec<ConnectionStatus> {
    let negotiated = &context.plane.negotiated;
    let mut sas: BTreeMap<String, Vec<IkeStatus>> = BTreeMap::new();
    let views = context.keying.endpoint.ike_sas();
    let sums = negotiated.sums();
    let of_ike = views.map(|view| ike_status(&view, negotiated, sums.get(&view.id), now));
    let peers = context.psp.listing(now, &negotiated.psp);
    let of_psp = peers.iter().map(|peer| psp_status(peer, now));
    for sa in of_ike.chain(of_psp) {
        sas.entry(sa.connection.clone()).or_default().push(sa);
    }
    let trapped: HashSet<&str> =
        negotiated.policies().iter().filter(|line| line.action == "trap").map(|line| &*line.connection.name).collect();
    let mut all = Vec::new();
    for connection in context.keying.endpoint.connections() {
        let ike_sas = sas.remove(&connection.name).unwrap_or_default();
        let (state, missing) = state(&wanted(connection), &ike_sas, trapped.contains(connection.name.as_str()));
        all.push(ConnectionStatus {
            name: connection.name.clone(),
            kind: match connection.version {
                Version::V1 => Kind::IkeV1,
                Version::V2 => Kind::IkeV2,
            },
            wanted: connection.children.iter().any(|child| child.start_action.start && has_sa(child.mode)),
            state,
            missing,
            remote_addrs: listings::addresses(&connection.remote_addrs),
            remote_id: connection.remote.first().map(|auth| auth.id.to_string()),
            reason: failures.of(&connection.name).or_else(|| context.keying.endpoint.unresolved_host(connection)),
            ike_sas,
        });
    }
    for config in &context.plane.config.keyed.psp {
        let ike_sas = sas.remove(&config.name).unwrap_or_default();
        let starts = |child: &&crate::config::PspChild| child.start_action.start || child.start_action.trap;
        let names: Vec<String> = config.children.iter().filter(starts).map(|child| child.name.clone()).collect();
        // Without an address of the peer this host only responds.
        let names = if config.remote.is_empty() { Vec::new() } else { names };
        let (state, missing) = state(&names, &ike_sas, false);
        let reason = psp::fault(&peers, &config.name).filter(|_| state != State::Up);
        all.push(ConnectionStatus {
            name: config.name.clone(),
            kind: Kind::Psp,
            wanted: !names.is_empty(),
            state,
            missing,
            remote_addrs: listings::addresses(&config.remote),
            remote_id: Some(config.remote_auth.id.to_string()),
            reason,
            ike_sas,
        });
    }
    // IKE SAs of a connection that is no longer loaded or not yet known.
    for (name, ike_sas) in sas {
        let (state, missing) = state(&[], &ike_sas, false);
        let (remote_addrs, kind) = (Vec::new(), Kind::IkeV2);
        all.push(ConnectionStatus {
            name,
            kind,
            state,
            wanted: false,
            missing,
            remote_addrs,
            remote_id: None,
            reason: None,
            ike_sas,
        });
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.iter_mut().for_each(|connection| connection.ike_sas.reverse());
    all
}

fn has_sa(mode: ChildMode) -> bool {
    !matches!(mode, ChildMode::Pass | ChildMode::Drop)
}

/// Children that should be up.
fn wanted(connection: &Connection) -> Vec<String> {
    let starts = connection.children.iter().filter(|child| child.start_action.start && has_sa(child.mode));
    starts.map(|child| child.name.clone()).collect()
}

/// State of a connection by its IKE SAs, and the children of `wanted` that are not up.
fn state(wanted: &[String], sas: &[IkeStatus], trapped: bool) -> (State, Vec<String>) {
    let live: Vec<&IkeStatus> = sas.iter().filter(|sa| is_live(sa)).collect();
    let up: HashSet<&str> =
        live.iter().flat_map(|sa| &sa.children).filter(|child| is_up(child)).map(|child| &*child.name).collect();
    let missing: Vec<String> = wanted.iter().filter(|name| !up.contains(name.as_str())).cloned().collect();
    let connecting = sas.iter().any(|sa| sa.state == IkeState::Connecting.name());
    let state = if wanted.is_empty() {
        match (live.is_empty(), connecting, trapped) {
            (false, ..) => State::Up,
            (_, true, _) => State::Connecting,
            (.., true) => State::Trapped,
            _ => State::Idle,
        }
    } else if missing.is_empty() {
        State::Up
    } else if missing.len() < wanted.len() {
        State::Partial
    } else if connecting || !live.is_empty() {
        State::Connecting
    } else {
        State::Down
    };
    (state, missing)
}

fn is_live(sa: &IkeStatus) -> bool {
    [IkeState::Established.name(), IkeState::Rekeying.name()].contains(&sa.state.as_str())
}

fn is_up(child: &ChildStatus) -> bool {
    let states = [ChildState::Installed, ChildState::Rekeying, ChildState::Rekeyed].map(ChildState::name);
    states.contains(&child.state.as_str()) && child.spi_out != NO_SPI
}

/// SPI of a direction without keys.
const NO_SPI: &str = "0x00000000";

fn ike_status(view: &IkeView<'_>, negotiated: &Negotiated, sums: Option<&Sums>, now: Instant) -> IkeStatus {
    let mut status = of_listing(&listings::ike_sa(view, negotiated, now));
    status.unanswered = view.unanswered.map(|silence| unanswered(&silence, now));
    for (child, view) in status.children.iter_mut().zip(&view.children) {
        let Some(known) = negotiated.child(view.id) else { continue };
        child.suite = known.suite.to_string();
        child.drops = drops(&known.inbound.common.counters) + drops(&known.outbound.common.counters);
        child.sub_sas = if view.suite.sskdf.is_some() { known.outbound.lanes.len() as u32 } else { 0 };
    }
    status.set_sums(&sums.copied().unwrap_or_else(|| negotiated.totals.gone(view.id)));
    status
}

fn unanswered(silence: &Unanswered, now: Instant) -> UnansweredStatus {
    let since_s = now.saturating_duration_since(silence.since).as_secs();
    UnansweredStatus { since_s, attempts: silence.attempts, attempts_max: silence.attempts_max }
}

/// Row of a peer of the PSP key service.
fn psp_status(peer: &PeerListing, now: Instant) -> IkeStatus {
    let mut status = of_listing(&psp::sa(peer, now));
    let mut sums = Sums::default();
    for (child, known) in status.children.iter_mut().zip(&peer.children) {
        child.drops = known.traffic.drops;
        sums.packets_in += child.packets_in;
        sums.bytes_in += child.bytes_in;
        sums.packets_out += child.packets_out;
        sums.bytes_out += child.bytes_out;
        sums.drops += child.drops;
    }
    status.set_sums(&sums);
    status
}

impl IkeStatus {
    fn set_sums(&mut self, sums: &Sums) {
        (self.packets_in, self.bytes_in) = (sums.packets_in, sums.bytes_in);
        (self.packets_out, self.bytes_out) = (sums.packets_out, sums.bytes_out);
        self.drops = sums.drops;
    }
}

fn of_listing(sa: &IkeSaListing) -> IkeStatus {
    IkeStatus {
        connection: sa.name.clone(),
        unique_id: sa.unique_id,
        state: sa.state.name().to_owned(),
        initiator: sa.initiator,
        local: sa.local.to_string(),
        remote: sa.remote.to_string(),
        local_id: sa.local_id.clone(),
        remote_id: sa.remote_id.clone(),
        remote_eap_id: sa.remote_eap_id.clone(),
        nat_local: sa.nat_local,
        nat_remote: sa.nat_remote,
        suite: sa.algorithms.as_ref().map(ToString::to_string),
        established_s: sa.established_s,
        rekey_s: sa.rekey_s,
        reauth_s: sa.reauth_s,
        unanswered: None,
        virtual_addresses: sa.local_vips.iter().chain(&sa.remote_vips).map(ToString::to_string).collect(),
        packets_in: 0,
        bytes_in: 0,
        packets_out: 0,
        bytes_out: 0,
        drops: 0,
        children: sa.children.iter().map(child).collect(),
    }
}

fn child(child: &ChildListing) -> ChildStatus {
    let ipsec = child.ipsec.as_ref();
    let usage = ipsec.map(|ipsec| (ipsec.usage_in, ipsec.usage_out)).unwrap_or_default();
    let spi = |pick: fn(&vici::listing::ChildIpsec) -> u32| {
        ipsec.map_or_else(|| NO_SPI.to_owned(), |ipsec| format!("{:#010x}", pick(ipsec)))
    };
    ChildStatus {
        name: child.name.clone(),
        unique_id: child.unique_id,
        reqid: child.reqid,
        state: child.state.name().to_owned(),
        mode: child.mode.name().to_lowercase(),
        protocol: ipsec.map_or_else(String::new, |ipsec| ipsec.protocol.clone()),
        suite: ipsec.map_or_else(String::new, |ipsec| ipsec.algorithms.to_string()),
        encap: ipsec.is_some_and(|ipsec| ipsec.encap),
        spi_in: spi(|ipsec| ipsec.spi_in),
        spi_out: spi(|ipsec| ipsec.spi_out),
        cpu: ipsec.and_then(|ipsec| ipsec.cpu),
        sub_sas: 0,
        local_ts: child.local_ts.clone(),
        remote_ts: child.remote_ts.clone(),
        packets_in: usage.0.packets,
        bytes_in: usage.0.bytes,
        packets_out: usage.1.packets,
        bytes_out: usage.1.bytes,
        drops: 0,
        use_in_s: usage.0.last_s,
        use_out_s: usage.1.last_s,
        age_s: ipsec.map_or(0, |ipsec| ipsec.install_s),
        rekey_s: ipsec.and_then(|ipsec| ipsec.rekey_s),
        life_s: ipsec.and_then(|ipsec| ipsec.life_s),
    }
}

#[cfg(test)]
mod tests {
    use ike::output::{ChildId, IkeId};

    use super::*;

    fn sa(state: IkeState, children: &[(&str, ChildState)]) -> IkeStatus {
        let listing = IkeSaListing {
            state,
            children: children.iter().map(|(name, state)| listed(name, *state)).collect(),
            ..vici::listing::example::sa()
        };
        of_listing(&listing)
    }

    fn listed(name: &str, state: ChildState) -> ChildListing {
        ChildListing { name: name.to_owned(), state, ..vici::listing::example::child() }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_connection_is_up_when_every_child_that_should_be_is() {
        use ChildState::Installed;
        let both = names(&["a", "b"]);
        let up = sa(IkeState::Established, &[("a", Installed), ("b", Installed)]);
        assert_eq!(state(&both, &[up], false), (State::Up, names(&[])));
        let partial = sa(IkeState::Rekeying, &[("a", Installed), ("b", ChildState::Deleting)]);
        assert_eq!(state(&both, &[partial], false), (State::Partial, names(&["b"])));
        let none = sa(IkeState::Established, &[]);
        assert_eq!(state(&both, &[none], true), (State::Connecting, both.clone()));
        assert_eq!(state(&both, &[sa(IkeState::Connecting, &[])], true), (State::Connecting, both.clone()));
        // An IKE SA that is being deleted does not count.
        let ending = sa(IkeState::Deleting, &[("a", Installed), ("b", Installed)]);
        assert_eq!(state(&both, &[ending], true), (State::Down, both.clone()));
        assert_eq!(state(&both, &[], true), (State::Down, both));
    }

    #[test]
    fn a_connection_that_need_not_be_up_is_never_down() {
        let one = |ike| [sa(ike, &[])];
        assert_eq!(state(&[], &[], false).0, State::Idle);
        assert_eq!(state(&[], &[], true).0, State::Trapped);
        assert_eq!(state(&[], &one(IkeState::Connecting), true).0, State::Connecting);
        assert_eq!(state(&[], &one(IkeState::Established), true).0, State::Up);
        assert_eq!(state(&[], &one(IkeState::Deleting), true).0, State::Trapped);
    }

    #[test]
    fn an_association_without_keys_for_sending_is_not_up() {
        let mut one = sa(IkeState::Established, &[("a", ChildState::Installed)]);
        assert_eq!(state(&names(&["a"]), std::slice::from_ref(&one), false).0, State::Up);
        one.children[0].spi_out = NO_SPI.to_owned();
        assert_eq!(state(&names(&["a"]), &[one], false).0, State::Connecting);
    }

    #[test]
    fn the_last_failure_stays_until_a_child_is_up() {
        let mut failures = Failures::default();
        let log = |text: &str| IkeEvent::Log {
            level: ike::output::Level::Error,
            subsystem: ike::output::Subsystem::Ike,
            ike: None,
            text: text.to_owned(),
        };
        failures.note(&log("the IKE SA of 'site' did not come up: 192.0.2.2:500 does not answer"), None);
        assert_eq!(failures.of("site").as_deref(), Some("192.0.2.2:500 does not answer"));
        failures.note(&IkeEvent::ChildDown(ChildId(1), String::new()), Some("site"));
        assert!(failures.of("site").is_some(), "an orderly end is no failure and no success");
        failures.note(&IkeEvent::ChildUp(ChildId(1)), Some("site"));
        assert_eq!(failures.of("site"), None);
        for i in 0..2 * FAILURES_MAX {
            failures.note(&IkeEvent::IkeDown(IkeId(1), "refused".into()), Some(&i.to_string()));
        }
        assert_eq!(failures.0.len(), FAILURES_MAX);
    }
}
