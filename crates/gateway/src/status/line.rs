//! One row for each IKE SA, or for a connection without one: what `weir status`, `weir top` and the
//! status page show of it.

use std::collections::HashMap;

use super::connection::{ConnectionStatus, IkeStatus, Kind, State};
use super::table::span;
use super::{SaStatus, Status};

/// Names the same row in successive samples: connection, and number of its IKE SA.
pub(crate) type Key = (String, Option<u32>);

/// Figures of a row that is up.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Figures {
    /// Plaintext bytes that were delivered.
    pub(crate) bytes_in: u64,
    /// Plaintext bytes that were protected.
    pub(crate) bytes_out: u64,
    pub(crate) drops: u64,
}

/// A row. Text of peers may contain control characters.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) key: Key,
    #[cfg_attr(not(feature = "top"), expect(dead_code, reason = "for weir top"))]
    pub(crate) kind: Kind,
    pub(crate) connection_state: State,
    /// Word for the state of the IKE SA, or of the connection where that should be up.
    pub(crate) state: String,
    /// It should be up and is not.
    pub(crate) missing: bool,
    /// Identity.
    pub(crate) peer: String,
    /// Address and port.
    pub(crate) address: String,
    /// Algorithms of the Child SAs.
    pub(crate) cipher: String,
    /// Seconds since it was established.
    pub(crate) age_s: Option<u64>,
    /// Seconds to the next rekey or reauthentication.
    pub(crate) rekey_s: Option<u64>,
    pub(crate) figures: Option<Figures>,
    /// What needs attention.
    pub(crate) remark: Option<String>,
}

impl Line {
    /// Name of the connection.
    pub(crate) fn name(&self) -> &str {
        &self.key.0
    }
}

/// Rows of every connection, in order. IKE SAs that were rekeyed or end are left out unless `all`.
pub(crate) fn lines(status: &Status, all: bool) -> Vec<Line> {
    let mut halves: HashMap<&str, Vec<&SaStatus>> = HashMap::new();
    if status.connections.iter().any(|connection| connection.kind == Kind::Manual) {
        for sa in &status.sas {
            halves.entry(&sa.name).or_default().push(sa);
        }
    }
    let of = |connection: &ConnectionStatus| {
        let halves = halves.get(connection.name.as_str()).map(Vec::as_slice).unwrap_or_default();
        of_connection(connection, halves, all)
    };
    status.connections.iter().flat_map(of).collect()
}

/// Rows of a connection: one for each IKE SA, or a single one without an IKE SA. `halves` are the
/// SAs of its name, for manual keys.
fn of_connection(connection: &ConnectionStatus, halves: &[&SaStatus], all: bool) -> Vec<Line> {
    if connection.kind == Kind::Manual {
        return vec![manual(connection, halves)];
    }
    let live: Vec<&IkeStatus> =
        connection.ike_sas.iter().filter(|sa| all || !["REKEYED", "DELETING"].contains(&&*sa.state)).collect();
    let sas = if live.is_empty() { connection.ike_sas.iter().collect() } else { live };
    if sas.is_empty() {
        return vec![without_sa(connection)];
    }
    sas.into_iter().map(|sa| of_ike(connection, sa)).collect()
}

fn without_sa(connection: &ConnectionStatus) -> Line {
    Line {
        key: (connection.name.clone(), None),
        kind: connection.kind,
        connection_state: connection.state,
        state: connection.state.word().to_owned(),
        missing: connection.is_missing(),
        peer: connection.remote_id.clone().unwrap_or_default(),
        address: connection.remote_addrs.join(" "),
        cipher: String::new(),
        age_s: None,
        rekey_s: None,
        figures: None,
        remark: remark(connection, None),
    }
}

fn of_ike(connection: &ConnectionStatus, sa: &IkeStatus) -> Line {
    let state = match sa.state.as_str() {
        _ if connection.is_missing() => connection.state.word().to_owned(),
        "ESTABLISHED" | "REKEYING" => State::Up.word().to_owned(),
        other => other.to_lowercase(),
    };
    let nat = if sa.nat_local || sa.nat_remote { " NAT" } else { "" };
    let peer = match sa.remote_eap_id.as_ref().unwrap_or(&sa.remote_id).as_str() {
        "%any" => connection.remote_id.clone().unwrap_or_default(),
        known => known.to_owned(),
    };
    let rekey = sa.children.iter().filter_map(|child| child.rekey_s).chain(sa.rekey_s).chain(sa.reauth_s).min();
    let figures = Figures { bytes_in: sa.bytes_in, bytes_out: sa.bytes_out, drops: sa.drops };
    Line {
        key: (connection.name.clone(), Some(sa.unique_id)),
        state,
        peer,
        address: format!("{}{nat}", sa.remote),
        cipher: ciphers(sa),
        age_s: sa.established_s,
        rekey_s: rekey.map(|seconds| seconds.max(0) as u64),
        figures: sa.established_s.map(|_| figures),
        remark: remark(connection, Some(sa)),
        ..without_sa(connection)
    }
}

/// Algorithms of the Child SAs, each once.
fn ciphers(sa: &IkeStatus) -> String {
    let mut ciphers: Vec<String> = Vec::new();
    for child in sa.children.iter().filter(|child| !child.suite.is_empty()) {
        let cipher = match child.sub_sas {
            0 => child.suite.clone(),
            count => format!("{} ({count} Sub SAs)", child.suite),
        };
        if !ciphers.contains(&cipher) {
            ciphers.push(cipher);
        }
    }
    ciphers.join(" ")
}

/// Remark about a connection that needs attention.
pub(super) fn remark(connection: &ConnectionStatus, sa: Option<&IkeStatus>) -> Option<String> {
    let missing = match connection.state {
        State::Partial => format!("children that are not up: {}; ", connection.missing.join(", ")),
        _ => String::new(),
    };
    let silence = sa.and_then(|sa| Some((sa, sa.unanswered?))).map(|(sa, silence)| {
        let (seconds, attempts) = (silence.since_s, silence.attempts);
        format!("no answer from {} for {} (attempt {attempts} of {})", sa.remote, span(seconds), silence.attempts_max)
    });
    let is_up = connection.state == State::Up || connection.state == State::Idle && connection.reason.is_none();
    let reason = || connection.reason.as_ref().filter(|_| !is_up).map(|reason| format!("last failure: {reason}"));
    let text = format!("{missing}{}", silence.or_else(reason).unwrap_or_default());
    let text = text.trim_end_matches("; ");
    (!text.is_empty()).then(|| text.to_owned())
}

fn manual(connection: &ConnectionStatus, halves: &[&SaStatus]) -> Line {
    let bytes = |direction| halves.iter().find(|sa| sa.direction == direction).map_or(0, |half| half.bytes);
    let cipher = halves.first().map(|half| {
        let sub_sas = half.lanes.iter().filter(|lane| lane.session > 0).count();
        let sub_sas = if sub_sas > 0 { format!(" ({} Sub SAs)", half.lanes.len()) } else { String::new() };
        format!("{}{sub_sas}", half.suite)
    });
    let drops = halves.iter().flat_map(|half| half.drops.values()).sum();
    Line {
        peer: "manual keys".to_owned(),
        cipher: cipher.unwrap_or_default(),
        figures: Some(Figures { bytes_in: bytes("in"), bytes_out: bytes("out"), drops }),
        ..without_sa(connection)
    }
}
