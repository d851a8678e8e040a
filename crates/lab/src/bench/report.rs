//! How a benchmark is shown.

use comfy_table::{CellAlignment, Table, presets};

use super::{Options, Outcome, alone};

/// The table for people: ticks per packet and ratios, both directions.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let sweep = outcomes.iter().any(|o| (o.case.batch, o.case.working_set_mb) != (outcomes[0].case.batch, 0));
    let header = ["way", "size", "out", "bare", "over", "ratio (95 %)", "in", "bare", "over", "ratio (95 %)", "Mpps"];
    table.set_header(header.iter().copied().chain(if sweep { &["batch", "set, MB"][..] } else { &[] }.iter().copied()));
    for o in outcomes {
        let ratio =
            |d: &super::path::Direction| format!("{:.2} ({:.2}-{:.2})", d.ratio.value, d.ratio.low, d.ratio.high);
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
            format!("{:.2}/{:.2}", o.outbound.pps / 1e6, o.inbound.pps / 1e6),
        ];
        let of_sweep = if sweep { vec![o.case.batch.to_string(), o.case.working_set_mb.to_string()] } else { vec![] };
        table.add_row(row.into_iter().chain(of_sweep));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let note = alone::note(outcomes.iter().map(|o| o.alone));
    note.into_iter().fold(table.to_string(), |table, note| format!("{table}\n{note}"))
}

/// The same for machines.
pub fn json(hz: f64, options: &Options, outcomes: &[Outcome]) -> serde_json::Value {
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
