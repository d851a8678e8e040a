//! Status as text for a terminal: connections and counters, details on request.

use ipsec::DropReason;

use super::connection::State;
use super::layout::{self, Row, cell, number, wrapped};
use super::line::{Figures, Line, lines};
use super::{CoreStatus, Status, details};
use crate::rates::{CONSUMED, guarded};

/// IKE SAs shown of one connection without `--all`.
const IKE_SAS_SHOWN: usize = 8;
/// Reasons of drops shown without `--verbose`.
const REASONS_SHOWN: usize = 4;
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
        let lines = lines(status, shown.all);
        let of_one = lines.chunk_by(|a, b| a.name() == b.name());
        let rows: Vec<Row> = of_one.flat_map(|lines| rows(lines, shown)).collect();
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

/// The rows of a connection, cut to a few without `--all`.
fn rows(lines: &[Line], shown: Shown) -> Vec<Row> {
    let limit = if shown.all { usize::MAX } else { IKE_SAS_SHOWN };
    let mut rows: Vec<Row> = lines.iter().take(limit).map(row).collect();
    let more = lines.len().saturating_sub(limit);
    if let (Some(last), true) = (rows.last_mut(), more > 0) {
        last.remark = Some(format!("and {more} more IKE SAs of '{}': weir status --all", lines[0].name()));
    }
    rows
}

fn row(line: &Line) -> Row {
    let figure = |of: fn(Figures) -> String| line.figures.map_or_else(String::new, of);
    let seconds = |seconds: Option<u64>| seconds.map_or_else(String::new, span);
    Row {
        first: vec![
            cell("STATE", &*line.state),
            cell("CONNECTION", line.name()),
            cell("PEER", &*line.peer),
            cell("ADDRESS", &*line.address),
        ],
        second: vec![
            cell("CIPHER", &*line.cipher),
            number("AGE", "age", seconds(line.age_s)),
            number("REKEY IN", "rekey in", seconds(line.rekey_s)),
            number("IN", "in", figure(|figures| scaled(figures.bytes_in))),
            number("OUT", "out", figure(|figures| scaled(figures.bytes_out))),
            number("DROPPED", "dropped", figure(|figures| figures.drops.to_string())),
        ],
        remark: line.remark.clone(),
    }
}

/// Packets on both sides of the gateway, and the most frequent drops.
fn counters(status: &Status, shown: Shown) -> String {
    let total = &status.head.total;
    let side = |name: &str, rx: super::Count, tx: super::Count| {
        let count = |count: super::Count| format!("{} packets {}", count.packets, scaled(count.bytes));
        format!("{name:<9}rx {}, tx {}\n", count(rx), count(tx))
    };
    let mut text = side("LAN", total.inner_rx, total.inner_tx) + &side("WAN", total.outer_rx, total.outer_tx);
    let mut lost: Vec<(&DropReason, u64)> = DropReason::ALL
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
        let mut of = guarded(guard).into_iter().map(|(packets, what)| format!("{packets} {what}"));
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
    if status.head.cores.len() > 1 || status.head.crypto_threads > 0 {
        text.push_str(&format!("\n{}", workers(status)));
    }
    text
}

fn kernel_bypass(it: &super::XdpStatus) -> Vec<String> {
    let name = format!("{}{}", it.interface, if it.zero_copy { ", zero-copy" } else { "" });
    std::iter::once(name).chain([it.queues, it.received, it.sent, it.lost].map(|n| n.to_string())).collect()
}

/// Distribution of packets over workers and queues, and how much arrived at another worker than its
/// own.
fn workers(status: &Status) -> String {
    let cores = &status.head.cores;
    let row = |(at, core): (usize, &CoreStatus)| {
        let counts = [core.inner_rx.packets, core.outer_rx.packets, core.wrong_core, core.blocked, core.input_waits];
        std::iter::once(at.to_string()).chain(counts.map(|count| count.to_string())).collect()
    };
    let rows: Vec<Vec<String>> = cores.iter().enumerate().map(row).collect();
    let table = layout::columns(&["worker", "LAN rx", "WAN rx", "wrong core", "waited", "input waits"], &rows);
    let used = |of: fn(&CoreStatus) -> u64| cores.iter().filter(|core| of(core) > 0).count();
    let crypto = match (status.head.crypto_threads, &status.head.total) {
        (0, _) => String::new(),
        (threads, total) => {
            let failed = match total.engines_gone {
                0 => String::new(),
                workers => format!("; failed, with {workers} of the workers"),
            };
            format!("crypto threads: {threads} per worker, {} packets{failed}\n", total.offloaded)
        }
    };
    format!(
        "{table}scheduler: {} ({}), {} threads; {} of {} LAN queues and {} WAN queues used\n{crypto}",
        status.head.scheduler,
        status.head.scheduler_why,
        status.head.threads.len(),
        used(|core| core.inner_rx.packets),
        cores.len(),
        used(|core| core.outer_rx.packets),
    )
}

/// A time in its two largest units, in one from ten minutes on.
pub(crate) fn span(whole: u64) -> String {
    match (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) if m < 10 && s > 0 => format!("{m} min {s} s"),
        (0, 0, m, _) => format!("{m} min"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

/// Bytes with three or four digits and a power of 1000.
pub(crate) fn scaled(bytes: u64) -> String {
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
    use super::super::connection::UnansweredStatus;
    use super::super::example::status;
    use super::super::line::remark;
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
        sa.unanswered = Some(UnansweredStatus { since_s: 12, attempts: 3, attempts_max: 6 });
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
    fn packets_for_weir_or_for_a_link_are_no_loss() {
        let mut status = status();
        status.head.total.drops = [("ike_message".to_owned(), 9), ("link_local".to_owned(), 3)].into();
        assert!(render(&status, shown(80)).contains("dropped  no packets"));
    }
}
