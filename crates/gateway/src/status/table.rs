//! Status as text for a terminal: connections and counters, details on request.

use ipsec::Drop as Reason;

use super::connection::{ConnectionStatus, IkeStatus, Kind, State};
use super::layout::{self, Row, cell, number, wrapped};
use super::{CoreStatus, SaStatus, Status, details};

/// IKE SAs shown of one connection without `--all`.
const IKE_SAS_SHOWN: usize = 8;
/// Reasons of drops shown without `--verbose`.
const REASONS_SHOWN: usize = 4;
/// Packets that Weir takes for itself: counted as drops of the data plane, and no loss of traffic.
const CONSUMED: [Reason; 4] = [Reason::Keepalive, Reason::IkeMessage, Reason::OuterIcmp, Reason::Dummy];

/// Detail level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    /// Details of SAs, policies and workers.
    pub(crate) verbose: bool,
    /// Every IKE SA of a connection.
    pub(crate) all: bool,
    /// Columns of the terminal.
    pub(crate) width: usize,
}

/// Writes a status for a person.
pub(crate) fn render(status: &Status, shown: Shown) -> String {
    let mut text = head(status);
    if !status.connections.is_empty() {
        let rows: Vec<Row> = status.connections.iter().flat_map(|connection| rows(connection, status, shown)).collect();
        text.push('\n');
        text.push_str(&layout::table(&rows, shown.width));
    }
    text.push('\n');
    text.push_str(&counters(status, shown));
    if shown.verbose {
        text.push('\n');
        text.push_str(&details::render(status, shown.width));
        text.push('\n');
        text.push_str(&packets(status));
    }
    text
}

fn head(status: &Status) -> String {
    let mut text = format!("weir {}: running for {}", status.head.version, span(status.head.uptime_s as u64));
    match status.connections.len() {
        0 => text.push_str(", no connections\n"),
        count => {
            let states = [State::Up, State::Partial, State::Connecting, State::Down, State::Trapped, State::Idle];
            let counts = states.into_iter().filter_map(|state| {
                let of_state = status.connections.iter().filter(|connection| connection.state == state).count();
                (of_state > 0).then(|| format!("{of_state} {}", state.word()))
            });
            let plural = if count == 1 { "" } else { "s" };
            text.push_str(&format!(", {count} connection{plural}: {}\n", counts.collect::<Vec<_>>().join(", ")));
        }
    }
    if !status.head.healthy {
        text.push_str("NOT HEALTHY: a worker stopped or hangs; the log has the reason\n");
    }
    text
}

/// The rows of a connection: one for each IKE SA, one where there is none.
fn rows(connection: &ConnectionStatus, status: &Status, shown: Shown) -> Vec<Row> {
    if connection.kind == Kind::Manual {
        return vec![manual(connection, status)];
    }
    let live: Vec<&IkeStatus> =
        connection.ike_sas.iter().filter(|sa| shown.all || !["REKEYED", "DELETING"].contains(&&*sa.state)).collect();
    let sas = if live.is_empty() { connection.ike_sas.iter().collect() } else { live };
    let limit = if shown.all { usize::MAX } else { IKE_SAS_SHOWN };
    let mut rows: Vec<Row> = sas.iter().take(limit).map(|sa| of_ike(connection, sa)).collect();
    if rows.is_empty() {
        rows.push(without_sa(connection));
    }
    let more = sas.len().saturating_sub(limit);
    if let (Some(last), true) = (rows.last_mut(), more > 0) {
        last.remark = Some(format!("and {more} more IKE SAs of '{}': weir status --all", connection.name));
    }
    rows
}

fn row(state: &str, name: &str, peer: [String; 2], values: [String; 6]) -> Row {
    let [peer, address] = peer;
    let [cipher, age, rekey, bytes_in, bytes_out, dropped] = values;
    Row {
        first: vec![cell("STATE", state), cell("CONNECTION", name), cell("PEER", peer), cell("ADDRESS", address)],
        second: vec![
            cell("CIPHER", cipher),
            number("AGE", "age", age),
            number("REKEY IN", "rekey in", rekey),
            number("IN", "in", bytes_in),
            number("OUT", "out", bytes_out),
            number("DROPPED", "dropped", dropped),
        ],
        remark: None,
    }
}

fn of_ike(connection: &ConnectionStatus, sa: &IkeStatus) -> Row {
    let state = match sa.state.as_str() {
        _ if connection.is_missing() => connection.state.word().to_owned(),
        "ESTABLISHED" | "REKEYING" => State::Up.word().to_owned(),
        other => other.to_lowercase(),
    };
    let nat = if sa.nat_local || sa.nat_remote { " NAT" } else { "" };
    let id = match sa.remote_eap_id.as_ref().unwrap_or(&sa.remote_id).as_str() {
        "%any" => connection.remote_id.clone().unwrap_or_default(),
        known => known.to_owned(),
    };
    let peer = [id, format!("{}{nat}", sa.remote)];
    let rekey = sa.children.iter().filter_map(|child| child.rekey_s).chain(sa.rekey_s).chain(sa.reauth_s).min();
    let up = sa.established_s.is_some();
    let if_up = |text: String| if up { text } else { String::new() };
    let values = [
        ciphers(sa),
        sa.established_s.map_or_else(String::new, span),
        rekey.map_or_else(String::new, |seconds| span(seconds.max(0) as u64)),
        if_up(scaled(sa.bytes_in)),
        if_up(scaled(sa.bytes_out)),
        if_up(sa.drops.to_string()),
    ];
    Row { remark: remark(connection, Some(sa)), ..row(&state, &connection.name, peer, values) }
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

fn without_sa(connection: &ConnectionStatus) -> Row {
    let peer = [connection.remote_id.clone().unwrap_or_default(), connection.remote_addrs.join(" ")];
    Row { remark: remark(connection, None), ..row(connection.state.word(), &connection.name, peer, Default::default()) }
}

/// Remark about a connection that needs attention.
fn remark(connection: &ConnectionStatus, sa: Option<&IkeStatus>) -> Option<String> {
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

fn manual(connection: &ConnectionStatus, status: &Status) -> Row {
    let halves: Vec<&SaStatus> = status.sas.iter().filter(|sa| sa.name == connection.name).collect();
    let bytes = |direction: &str| {
        let half = halves.iter().find(|sa| sa.direction == direction);
        half.map_or_else(|| "-".to_owned(), |half| scaled(half.bytes))
    };
    let drops: u64 = halves.iter().flat_map(|half| half.drops.values()).sum();
    let cipher = halves.first().map(|half| {
        let sub_sas = half.lanes.iter().filter(|lane| lane.session > 0).count();
        let sub_sas = if sub_sas > 0 { format!(" ({} Sub SAs)", half.lanes.len()) } else { String::new() };
        format!("{}{sub_sas}", half.suite)
    });
    let values =
        [cipher.unwrap_or_default(), String::new(), String::new(), bytes("in"), bytes("out"), drops.to_string()];
    let peer = ["manual keys".to_owned(), connection.remote_addrs.join(" ")];
    Row { remark: remark(connection, None), ..row(connection.state.word(), &connection.name, peer, values) }
}

/// Packets on both sides of the gateway, and the most frequent drops.
fn counters(status: &Status, shown: Shown) -> String {
    let total = &status.head.total;
    let side = |name: &str, rx: super::Count, tx: super::Count| {
        let count = |count: super::Count| format!("{} packets {}", count.packets, scaled(count.bytes));
        format!("{name:<9}rx {}, tx {}\n", count(rx), count(tx))
    };
    let mut text = side("LAN", total.inner_rx, total.inner_tx) + &side("WAN", total.outer_rx, total.outer_tx);
    let mut lost: Vec<(&Reason, u64)> = Reason::ALL
        .iter()
        .filter(|reason| !CONSUMED.contains(reason))
        .filter_map(|reason| Some((reason, *total.drops.get(reason.key())?)))
        .collect();
    lost.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    if lost.is_empty() {
        text.push_str("dropped  no packets\n");
    }
    let limit = if shown.verbose { lost.len() } else { REASONS_SHOWN };
    for (at, (reason, count)) in lost.iter().take(limit).enumerate() {
        let head = if at == 0 { "dropped" } else { "" };
        let body = wrapped(&format!("{count} {}: {}", reason.key(), reason.meaning()), 9, shown.width);
        text.push_str(&format!("{head:<9}{}", body.trim_start()));
    }
    if let Some(guard) = &status.head.guard {
        let of = [
            (guard.clear_in, "in clear text"),
            (guard.spoofed_in, "with a spoofed source"),
            (guard.clear_out, "out in clear text"),
        ];
        let mut of = of
            .into_iter()
            .filter(|(count, _)| count.packets > 0)
            .map(|(count, what)| format!("{} {what}", count.packets));
        let first = of.next();
        text.push_str(&match first {
            None => "guard    no clear text dropped\n".to_owned(),
            Some(first) => {
                format!("guard    dropped {}\n", std::iter::once(first).chain(of).collect::<Vec<_>>().join(", "))
            }
        });
    }
    if lost.len() > limit {
        text.push_str(&format!("         and {} more reasons: weir status --verbose\n", lost.len() - limit));
    }
    text
}

/// GSO packets, kernel bypass and workers.
fn packets(status: &Status) -> String {
    let (total, supers) = (&status.head.total, &status.head.total.supers);
    let sides = [
        ("LAN rx", total.inner_rx, supers.inner_rx),
        ("WAN tx", total.outer_tx, supers.outer_tx),
        ("WAN rx", total.outer_rx, supers.outer_rx),
        ("LAN tx", total.inner_tx, supers.inner_tx),
    ];
    let row = |(name, count, joined): (&str, super::Count, super::SuperStatus)| {
        let each = match joined.calls {
            0 => "-".to_owned(),
            calls => format!("{:.1}", joined.packets as f64 / calls as f64),
        };
        vec![name.to_owned(), count.packets.to_string(), scaled(count.bytes), joined.calls.to_string(), each]
    };
    let mut text = layout::columns(&["", "packets", "bytes", "GSO packets", "packets per GSO packet"], &sides.map(row));
    let bypass: Vec<Vec<String>> = status.head.xdp.iter().map(kernel_bypass).collect();
    if !bypass.is_empty() {
        text.push('\n');
        text.push_str(&layout::columns(&["kernel bypass", "queues", "received", "sent", "lost"], &bypass));
    }
    if status.head.cores.len() > 1 {
        text.push_str(&format!("\n{}", workers(status)));
    }
    text
}

fn kernel_bypass(it: &super::XdpStatus) -> Vec<String> {
    let name = format!("{}{}", it.interface, if it.zero_copy { ", zero-copy" } else { "" });
    std::iter::once(name).chain([it.queues, it.received, it.sent, it.lost].map(|n| n.to_string())).collect()
}

/// Distribution of packets over workers and queues, and how much arrived at another worker than its own.
fn workers(status: &Status) -> String {
    let cores = &status.head.cores;
    let row = |(at, core): (usize, &CoreStatus)| {
        let counts = [core.inner_rx.packets, core.outer_rx.packets, core.wrong_core, core.blocked, core.input_waits];
        std::iter::once(at.to_string()).chain(counts.map(|count| count.to_string())).collect()
    };
    let rows: Vec<Vec<String>> = cores.iter().enumerate().map(row).collect();
    let table = layout::columns(&["worker", "LAN rx", "WAN rx", "wrong core", "waited", "input waits"], &rows);
    let used = |of: fn(&CoreStatus) -> u64| cores.iter().filter(|core| of(core) > 0).count();
    format!(
        "{table}scheduler: {}, {} threads; {} of {} LAN queues and {} WAN queues used\n",
        status.head.scheduler,
        status.head.threads.len(),
        used(|core| core.inner_rx.packets),
        cores.len(),
        used(|core| core.outer_rx.packets),
    )
}

/// A time in its two largest units, in one from ten minutes on.
pub(super) fn span(whole: u64) -> String {
    match (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) if m < 10 && s > 0 => format!("{m} min {s} s"),
        (0, 0, m, _) => format!("{m} min"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

/// Bytes with three or four digits and a power of 1000.
pub(super) fn scaled(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB", "TB"] {
        if value < 10_000.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1000.0;
    }
    format!("{value:.1} PB")
}

#[cfg(test)]
mod tests {
    use super::super::example::status;
    use super::*;

    fn shown(width: usize) -> Shown {
        Shown { verbose: false, all: false, width }
    }

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn everything_fits_80_columns_and_no_value_is_broken() {
        for verbose in [false, true] {
            let text = render(&status(), Shown { verbose, ..shown(80) });
            assert!(widest(&text) <= 80, "{text}");
            for value in ["2001:db8:1234:5678:9abc:def0:1234:5678", "a-long-name-of-an-sa", "1 d 1 h", "seq_unsaved"] {
                assert!(text.contains(value), "{value}\n{text}");
            }
            assert_eq!(text.contains("0x80001001"), verbose, "{text}");
        }
    }

    #[test]
    fn one_tunnel_takes_a_dozen_lines_and_one_in_a_wide_terminal() {
        let mut status = status();
        status.connections.retain(|connection| connection.name == "site");
        let narrow = render(&status, shown(80));
        assert!(narrow.lines().count() <= 12, "{narrow}");
        let wide = render(&status, shown(140));
        let line = wide.lines().find(|line| line.contains("site")).unwrap();
        for value in ["up", "moon.example", "192.0.2.2:4500 NAT", "aes256gcm16", "1 h 1 min", "40 min", "12.3 MB"] {
            assert!(line.contains(value), "{value}\n{wide}");
        }
        assert!(widest(&wide) > 80 && widest(&wide) <= 140, "{wide}");
    }

    #[test]
    fn a_dead_peer_is_named_with_time_and_attempts() {
        let text = render(&status(), shown(140));
        assert!(text.contains("1 DOWN"), "{text}");
        let mut status = status();
        let lake = status.connections.iter_mut().find(|connection| connection.name == "lake").unwrap();
        let text = remark(lake, None).unwrap();
        assert_eq!(text, "last failure: 192.0.2.9:500 does not answer");
        let mut sa = super::super::example::ike_sa("lake");
        sa.unanswered = Some(super::super::connection::UnansweredStatus { since_s: 12, attempts: 3, attempts_max: 6 });
        let text = remark(lake, Some(&sa)).unwrap();
        assert_eq!(text, "no answer from 192.0.2.2:4500 for 12 s (attempt 3 of 6)");
        lake.state = State::Partial;
        lake.missing = vec!["net".into(), "lab".into()];
        lake.reason = None;
        assert_eq!(remark(lake, None).unwrap(), "children that are not up: net, lab");
    }

    #[test]
    fn many_clients_of_a_connection_are_cut_to_a_screen() {
        let mut status = status();
        let site = status.connections.iter_mut().find(|connection| connection.name == "site").unwrap();
        site.ike_sas = (0..100).map(|_| super::super::example::ike_sa("site")).collect();
        let text = render(&status, shown(140));
        assert_eq!(text.matches("192.0.2.2:4500").count(), IKE_SAS_SHOWN, "{text}");
        assert!(text.contains("and 92 more IKE SAs of 'site'"), "{text}");
        let text = render(&status, Shown { all: true, ..shown(140) });
        assert_eq!(text.matches("192.0.2.2:4500").count(), 100);
    }

    #[test]
    fn packets_that_weir_takes_for_itself_are_no_loss() {
        let mut status = status();
        status.head.total.drops = [("ike_message".to_owned(), 9)].into();
        assert!(render(&status, shown(80)).contains("dropped  no packets"));
    }
}
