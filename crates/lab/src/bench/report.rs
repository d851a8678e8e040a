//! How a benchmark is shown.

use comfy_table::{CellAlignment, Table, presets};

use super::Outcome;

/// The table for people: ticks per packet and ratios, both directions.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["way", "size", "out", "bare", "ratio (95 %)", "in", "bare", "ratio (95 %)", "Mpps"]);
    for o in outcomes {
        let ratio =
            |d: &super::path::Direction| format!("{:.2} ({:.2}-{:.2})", d.ratio.value, d.ratio.low, d.ratio.high);
        let mode = match o.case.mode {
            crate::pair::Shape::Tunnel => "tun",
            crate::pair::Shape::Transport => "tra",
            crate::pair::Shape::Beet => "beet",
        };
        table.add_row([
            format!("{} {mode} {}", o.case.protocol, o.case.suite),
            o.case.size.to_string(),
            format!("{:.0}", o.outbound.path.value),
            format!("{:.0}", o.outbound.engine.value),
            ratio(&o.outbound),
            format!("{:.0}", o.inbound.path.value),
            format!("{:.0}", o.inbound.engine.value),
            ratio(&o.inbound),
            format!("{:.2}/{:.2}", o.outbound.pps / 1e6, o.inbound.pps / 1e6),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// The same for machines.
pub fn json(hz: f64, rounds: usize, batch: usize, outcomes: &[Outcome]) -> serde_json::Value {
    serde_json::json!({
        "unit": "TSC ticks per packet",
        "ticks_per_second": hz,
        "rounds": rounds,
        "batch": batch,
        "cpu": crate::host::cpu_model(),
        "kernel": crate::host::kernel(),
        "cases": outcomes,
    })
}
