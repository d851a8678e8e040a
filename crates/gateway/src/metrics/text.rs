//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write as _;

use ipsec::DropReason;

use super::table::{self, Metric};
use super::{Cause, STATES, Snapshot};
use credentials::FetchCounts;

/// Content type for HTTP.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A text that grows.
struct Page(String);

impl Page {
    /// HELP, TYPE and one line per sample.
    fn family<'a>(&mut self, metric: &Metric, samples: impl IntoIterator<Item = (Vec<&'a str>, f64)>) {
        let help = metric.meaning.replace('\\', "\\\\");
        let (name, unit) = (metric.name, metric.unit);
        let _ = writeln!(self.0, "# HELP {name} {help} ({unit})\n# TYPE {name} {}", metric.kind.name());
        for (values, number) in samples {
            debug_assert_eq!(values.len(), metric.labels.len(), "{}", metric.name);
            self.0.push_str(metric.name);
            for (i, (label, value)) in metric.labels.iter().zip(values).enumerate() {
                let _ = write!(self.0, "{}{label}=\"", if i == 0 { '{' } else { ',' });
                escape(value, &mut self.0);
                self.0.push('"');
            }
            let _ = writeln!(self.0, "{} {number}", if metric.labels.is_empty() { "" } else { "}" });
        }
    }

    fn one(&mut self, metric: &Metric, number: f64) {
        self.family(metric, [(Vec::new(), number)]);
    }
}

/// Backslash, quote and newline of a label's value are escaped; other control characters have no
/// place in a name.
fn escape(value: &str, into: &mut String) {
    for c in value.chars() {
        match c {
            '\\' => into.push_str("\\\\"),
            '"' => into.push_str("\\\""),
            '\n' => into.push_str("\\n"),
            c if c.is_control() => into.push('\u{fffd}'),
            c => into.push(c),
        }
    }
}

/// Everything as text.
pub(super) fn render(snapshot: &Snapshot) -> String {
    let mut page = Page(String::with_capacity(16 << 10));
    page.family(&table::INFO, [(vec![env!("CARGO_PKG_VERSION")], 1.0)]);
    page.one(&table::UPTIME, snapshot.taken.duration_since(snapshot.started).as_secs_f64());
    page.one(&table::HEALTHY, f64::from(u8::from(snapshot.healthy)));
    ike(&mut page, snapshot);
    connections(&mut page, snapshot);
    traffic(&mut page, snapshot);
    path(&mut page, snapshot);
    page.one(&table::FOLDED, snapshot.folded as f64);
    page.0
}

fn ike(page: &mut Page, snapshot: &Snapshot) {
    let states = STATES.iter().map(|state| state.name().to_lowercase()).collect::<Vec<_>>();
    let counts = states.iter().zip(snapshot.ike_sas).map(|(state, count)| (vec![state.as_str()], count as f64));
    page.family(&table::IKE_SAS, counts);
    page.one(&table::HALF_OPEN, snapshot.half_open as f64);
    page.family(&table::EVENTS, snapshot.events.iter().map(|(name, count)| (vec![*name], *count as f64)));
}

fn connections(page: &mut Page, snapshot: &Snapshot) {
    let all = &snapshot.connections;
    let down = all.values().filter(|connection| connection.configured == Some(true) && connection.ike_sas == 0).count();
    page.one(&table::DOWN, down as f64);
    let shown = all.iter().filter(|(_, connection)| connection.configured.is_some() || connection.ike_sas > 0);
    page.family(
        &table::CONNECTION_IKE,
        shown.map(|(name, connection)| (vec![name.as_str()], connection.ike_sas as f64)),
    );
    let children = all.iter().flat_map(|(name, connection)| {
        connection.children.iter().map(move |(child, figures)| (vec![name.as_str(), child], figures.sas as f64))
    });
    page.family(&table::CONNECTION_CHILD, children);
    let failures = all.iter().flat_map(|(name, connection)| {
        let failures = &connection.failures;
        let known = Cause::ALL.into_iter().filter_map(|cause| Some((cause, *failures.get(&cause)?)));
        known.map(move |(cause, count)| (vec![name.as_str(), cause.name()], count as f64))
    });
    page.family(&table::FAILURES, failures);
    let ages = all.iter().filter_map(|(name, connection)| {
        let age = snapshot.taken.duration_since(connection.rekeyed?);
        Some((vec![name.as_str()], age.as_secs_f64()))
    });
    page.family(&table::REKEY_AGE, ages);
}

fn traffic(page: &mut Page, snapshot: &Snapshot) {
    let children = || {
        snapshot.connections.iter().flat_map(|(name, connection)| {
            connection.children.iter().map(move |(child, figures)| (name.as_str(), child.as_str(), figures.traffic))
        })
    };
    let both = |pick: fn((u64, u64)) -> u64| {
        children().flat_map(move |(name, child, traffic)| {
            [("in", traffic.inbound), ("out", traffic.outbound)]
                .map(|(direction, pair)| (vec![name, child, direction], pick(pair) as f64))
        })
    };
    page.family(&table::PACKETS, both(|pair| pair.0));
    page.family(&table::BYTES, both(|pair| pair.1));
}

fn path(page: &mut Page, snapshot: &Snapshot) {
    let totals = &snapshot.totals;
    let ways = [
        ("inner", "rx", totals.inner_rx),
        ("inner", "tx", totals.inner_tx),
        ("outer", "rx", totals.outer_rx),
        ("outer", "tx", totals.outer_tx),
    ];
    page.family(&table::PATH_PACKETS, ways.map(|(side, way, pair)| (vec![side, way], pair.0 as f64)));
    page.family(&table::PATH_BYTES, ways.map(|(side, way, pair)| (vec![side, way], pair.1 as f64)));
    let (inner, outer) = snapshot.supers;
    let supers = [
        ("inner", "rx", inner.received, inner.packets_received),
        ("inner", "tx", inner.sent, inner.packets_sent),
        ("outer", "rx", outer.received, outer.packets_received),
        ("outer", "tx", outer.sent, outer.packets_sent),
    ];
    page.family(&table::GSO_PACKETS, supers.map(|(side, way, calls, _)| (vec![side, way], calls as f64)));
    page.family(&table::GSO_SEGMENTS, supers.map(|(side, way, _, packets)| (vec![side, way], packets as f64)));
    let past = &snapshot.xdp;
    let ways = past.iter().flat_map(|it| [("rx", it.received), ("tx", it.sent)].map(|(way, count)| (it, way, count)));
    page.family(&table::XDP_PACKETS, ways.map(|(it, way, count)| (vec![it.interface.as_str(), way], count as f64)));
    page.family(&table::XDP_LOST, past.iter().map(|it| (vec![it.interface.as_str()], it.lost as f64)));
    page.family(&table::UPDOWN, crate::updown::runs().map(|(outcome, runs)| (vec![outcome], runs as f64)));
    page.one(&table::BYPASSED, totals.bypassed as f64);
    page.one(&table::OFFLOADED, totals.offloaded as f64);
    page.one(&table::ENGINES_GONE, totals.engines_gone as f64);
    let padding = totals.paced_padding;
    let paced = [("data", totals.paced.saturating_sub(padding)), ("padding", padding)];
    page.family(&table::PACED, paced.map(|(content, count)| (vec![content], count as f64)));
    page.one(&table::PACED_LATE, totals.paced_late as f64);
    let drops = DropReason::ALL.iter().map(|reason| (vec![reason.key()], totals.drops[*reason as usize] as f64));
    page.family(&table::DROPS, drops);
    let FetchCounts { crl, ocsp } = snapshot.fetches;
    let fetches = [("crl", "ok", crl.0), ("crl", "failed", crl.1), ("ocsp", "ok", ocsp.0), ("ocsp", "failed", ocsp.1)];
    page.family(&table::FETCHES, fetches.map(|(kind, result, count)| (vec![kind, result], count as f64)));
    if let Some(guard) = snapshot.guard {
        let kinds = [("clear-in", guard.clear_in), ("spoofed-in", guard.spoofed_in), ("clear-out", guard.clear_out)];
        page.family(&table::GUARD_DROPS, kinds.map(|(kind, (packets, _))| (vec![kind], packets as f64)));
    }
    page.one(&table::AUDIT_LOST, totals.audit_lost as f64);
}
