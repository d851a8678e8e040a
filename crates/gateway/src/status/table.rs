//! A status for people.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use ipsec::Drop as Reason;

use super::{CoreStatus, Status};

/// Writes a status for a person, within 80 columns.
pub(crate) fn render(status: &Status) -> String {
    let health = if status.head.healthy { "running" } else { "NOT HEALTHY" };
    let mut text = format!("weir {}, {health} for {}\n", status.head.version, span(status.head.uptime_s));
    // Two things of one line each: what computes, and why that.
    for (n, part) in status.head.engine_why.splitn(2, "; ").enumerate() {
        let engine = if n == 0 { format!("engine {}: ", status.head.engine) } else { "  ".to_owned() };
        text.push_str(&format!("{engine}{part}\n"));
    }
    text.push('\n');
    let mut sas = table(&["SA", "dir", "proto", "SPI", "peer", "packets", "bytes", "drops"], &[5, 6, 7]);
    for sa in &status.sas {
        let name = if sa.expired { format!("{} (expired)", sa.name) } else { sa.name.clone() };
        sas.add_row([
            name,
            sa.direction.clone(),
            format!("{} {}", sa.protocol, sa.mode),
            sa.spi.clone(),
            sa.remote.clone(),
            sa.packets.to_string(),
            scaled(sa.bytes),
            sa.drops.values().sum::<u64>().to_string(),
        ]);
    }
    text.push_str(&format!("{sas}\n\n"));
    let mut policies = table(&["policy", "action", "local === remote"], &[]);
    for policy in &status.policies {
        let action = policy.sa.as_ref().map_or_else(|| policy.action.clone(), |sa| format!("{} {sa}", policy.action));
        policies.add_row([policy.name.clone(), action, policy.selectors.join("\n")]);
    }
    text.push_str(&format!("{policies}\n\n"));
    let mut flow = table(&["", "packets", "bytes", "super-packets", "packets in each"], &[1, 2, 3, 4]);
    let supers = &status.head.total.supers;
    for (name, count, joined) in [
        ("from the inner side", status.head.total.inner_rx, supers.inner_rx),
        ("to the outer side", status.head.total.outer_tx, supers.outer_tx),
        ("from the outer side", status.head.total.outer_rx, supers.outer_rx),
        ("to the inner side", status.head.total.inner_tx, supers.inner_tx),
    ] {
        let each = match joined.calls {
            0 => String::new(),
            calls => format!("{:.1}", joined.packets as f64 / calls as f64),
        };
        let (packets, calls) = (count.packets.to_string(), joined.calls.to_string());
        flow.add_row([name.to_owned(), packets, scaled(count.bytes), calls, each]);
    }
    text.push_str(&format!("{flow}\n"));
    if !status.head.past_stack.is_empty() {
        let mut past = table(&["past the stack", "queues", "received", "sent", "lost"], &[1, 2, 3, 4]);
        for it in &status.head.past_stack {
            let name = format!("{}{}", it.interface, if it.zero_copy { ", zero-copy" } else { "" });
            past.add_row(
                std::iter::once(name).chain([it.queues, it.received, it.sent, it.lost].map(|n| n.to_string())),
            );
        }
        text.push_str(&format!("\n{past}\n"));
    }
    if status.head.cores.len() > 1 {
        text.push_str(&format!("\n{}", workers(status)));
    }
    if status.head.total.drops.is_empty() {
        text.push_str("\nNothing was dropped.\n");
    } else {
        let mut lost = table(&["dropped", "packets", "because"], &[1]);
        for reason in Reason::ALL {
            if let Some(count) = status.head.total.drops.get(reason.key()) {
                lost.add_row([reason.key().to_owned(), count.to_string(), reason.meaning().to_owned()]);
            }
        }
        text.push_str(&format!("\n{lost}\n"));
    }
    text
}

/// How the workers share the work: which queues are used, and how much arrived at the wrong place.
fn workers(status: &Status) -> String {
    let mut table =
        table(&["worker", "from inner", "from outer", "wrong core", "waited", "input waits"], &[1, 2, 3, 4, 5]);
    for (i, core) in status.head.cores.iter().enumerate() {
        let counts = [core.inner_rx.packets, core.outer_rx.packets, core.wrong_core, core.blocked, core.input_waits];
        table.add_row(std::iter::once(i.to_string()).chain(counts.map(|count| count.to_string())));
    }
    let used = |of: fn(&CoreStatus) -> u64| status.head.cores.iter().filter(|core| of(core) > 0).count();
    format!(
        "{table}\nscheduler: {}, {} threads; {} of {} inner queues and {} outer ones used\n",
        status.head.scheduler,
        status.head.threads.len(),
        used(|core| core.inner_rx.packets),
        status.head.cores.len(),
        used(|core| core.outer_rx.packets),
    )
}

fn table(head: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic).set_width(80);
    table.set_header(head);
    for column in right {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn span(seconds: f64) -> String {
    let whole = seconds as u64;
    match (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

/// Bytes with three or four digits and a power of 1000.
fn scaled(bytes: u64) -> String {
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

    #[test]
    fn the_table_fits_80_columns() {
        let text = render(&status());
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{widest:?}\n{text}");
        assert!(text.contains("1 d 1 h") && text.contains("Numbers") | text.contains("seq_unsaved"));
    }
}
