//! How a benchmark is shown.

use comfy_table::{CellAlignment, Table, presets};

use super::{Options, PathResult, alone};

/// The table for people: ticks per packet and ratios, both directions. Rates, and the intervals
/// that a sweep has no room for, are in the JSON.
pub fn table(outcomes: &[PathResult]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let memory = outcomes.iter().any(|o| (o.case.batch, o.case.working_set_mb) != (outcomes[0].case.batch, 0));
    let many = outcomes.iter().any(|o| (o.case.flows, o.case.sas) != (1, 1));
    let sweep = memory || many;
    let ratio = if sweep { "ratio" } else { "ratio (95 %)" };
    let header = ["way", "size", "out", "bare", "over", ratio, "in", "bare", "over", ratio];
    let of_memory = if memory { &["batch", "MB"][..] } else { &[] };
    let of_many = if many { &["flows", "SAs"][..] } else { &[] };
    table.set_header(header.iter().chain(of_memory).chain(of_many).copied());
    for o in outcomes {
        let ratio = |d: &super::path::Direction| match sweep {
            true => format!("{:.2}", d.ratio.value),
            false => format!("{:.2} ({:.2}-{:.2})", d.ratio.value, d.ratio.low, d.ratio.high),
        };
        let mode = match o.case.mode {
            crate::pair::Shape::Tunnel => "tun",
            crate::pair::Shape::Transport => "tra",
            crate::pair::Shape::Beet => "beet",
        };
        let row = [
            format!("{} {mode} {}", o.case.protocol, o.case.suite),
            alone::marked(o.case.size, o.alone),
            format!("{:.0}", o.outbound.path.value),
            format!("{:.0}", o.outbound.engine.value),
            format!("{:.0}", o.outbound.over.value),
            ratio(&o.outbound),
            format!("{:.0}", o.inbound.path.value),
            format!("{:.0}", o.inbound.engine.value),
            format!("{:.0}", o.inbound.over.value),
            ratio(&o.inbound),
        ];
        let of_memory = [o.case.batch.to_string(), o.case.working_set_mb.to_string()];
        let of_many = [o.case.flows.to_string(), o.case.sas.to_string()];
        let shown = |columns: [String; 2], are_shown: bool| columns.into_iter().filter(move |_| are_shown);
        table.add_row(row.into_iter().chain(shown(of_memory, memory)).chain(shown(of_many, many)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let note = alone::note(outcomes.iter().map(|o| o.alone));
    note.into_iter().fold(table.to_string(), |table, note| format!("{table}\n{note}"))
}

/// The same for machines.
pub fn json(hz: f64, options: &Options, outcomes: &[PathResult]) -> serde_json::Value {
    serde_json::json!({
        "unit": "TSC ticks per packet",
        "ticks_per_second": hz,
        "rounds": options.rounds,
        "batch": options.batch,
        "engine": options.engine.name(),
        "engine_what": options.engine.describe(),
        "cpu": crate::host::cpu_model(),
        "kernel": crate::host::kernel(),
        "cases": outcomes,
    })
}

/// No line of a table is longer than a terminal of 100 columns shows.
#[cfg(test)]
#[track_caller]
fn assert_narrow(text: &str) {
    for line in text.lines() {
        let columns = line.trim_end().chars().count();
        assert!(columns <= 100, "{columns} columns:\n{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::path::{Case, Direction};
    use super::*;
    use crate::pair::Shape;
    use stats::Estimate;

    #[test]
    fn a_table_is_narrow_also_of_a_sweep() {
        let of = |value, low, high| Estimate { value, low, high };
        let ticks = of(2345.0, 2345.0, 2345.0);
        let over = of(345.0, 345.0, 345.0);
        let direction = Direction { path: ticks, engine: ticks, ratio: of(1.57, 1.42, 12.40), over, pps: 1_234_567.0 };
        let outcome = |size, working_set_mb, flows| PathResult {
            case: Case {
                protocol: "eesp",
                mode: Shape::Tunnel,
                suite: "chacha20poly1305".into(),
                size,
                batch: 1024,
                working_set_mb,
                flows,
                sas: flows,
            },
            outbound: direction,
            inbound: direction,
            free_rounds: 41,
            alone: true,
        };
        let plain = table(&[outcome(1400, 0, 1)]);
        assert_narrow(&plain);
        let sweep = table(&[outcome(1400, 0, 1), outcome(1400, 4096, 1)]);
        assert_narrow(&sweep);
        assert!(!plain.contains("MB") && sweep.contains("4096") && !sweep.contains("SAs"), "{sweep}");
        let many = table(&[outcome(1400, 0, 1), outcome(1400, 4096, 60_000)]);
        assert_narrow(&many);
        assert!(many.contains("flows") && many.contains("60000"), "{many}");
    }
}
