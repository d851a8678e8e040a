//! How scaling is shown.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use super::super::alone;
use super::{CoresOptions, CoresReport, Scheduler, Set};

fn scheduler(scheduler: Scheduler, atomic: bool) -> &'static str {
    match (scheduler, atomic) {
        (Scheduler::RunToCompletion, _) => "completion",
        (Scheduler::Pipeline, false) => "pipeline",
        (Scheduler::Pipeline, true) => "pipe-atomic",
    }
}

fn set(set: Set) -> &'static str {
    match set {
        Set::One => "one SA",
        Set::PerCpu => "SA/CPU",
        Set::SubSas => "Sub SAs",
        Set::Psp => "PSP",
        Set::Apart => "apart",
    }
}

/// The table for people: a line for each case, then results from several cases.
pub fn cores_table(report: &CoresReport) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "suite",
        "size",
        "flows",
        "scheduler",
        "set",
        "cores",
        "Mpps",
        "Gbit/s",
        "speed-up (95 %)",
        "of",
        "used",
        "Jain",
    ]);
    for o in &report.outcomes {
        let case = &o.case;
        let speed_up = o.speed_up.map_or_else(String::new, |s| format!("{:.2} ({:.2}-{:.2})", s.value, s.low, s.high));
        table.add_row([
            case.suite.clone(),
            alone::marked(case.size, o.alone),
            case.flows.to_string(),
            scheduler(case.scheduler, case.atomic_cipher).into(),
            set(case.set).into(),
            case.cores.to_string(),
            format!("{:.3}", o.pps.value / 1e6),
            format!("{:.2}", o.bps / 1e9),
            speed_up,
            format!("{:.2}", o.ceiling),
            o.used_queues.to_string(),
            format!("{:.2}", o.jain),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    for column in table.column_iter_mut().skip(5).chain([]) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = table.to_string();
    if let Some(note) = alone::note(report.outcomes.iter().map(|o| o.alone)) {
        text += &format!("\n{note}");
    }
    for one in &report.scaling {
        if let Some(fit) = &one.usl {
            text += &format!(
                "\n{} {} {} {} bytes: contention {:.4} ({:.4}-{:.4}), coherency {:.5} ({:.5}-{:.5})",
                scheduler(one.case.scheduler, one.case.atomic_cipher),
                set(one.case.set),
                one.case.suite,
                one.case.size,
                fit.law.contention,
                fit.contention.low,
                fit.contention.high,
                fit.law.coherency,
                fit.coherency.low,
                fit.coherency.high,
            );
        }
    }
    if report.scaling.iter().any(|one| one.usl.is_none()) {
        text += "\nScaling laws need at least six core counts.";
    }
    for one in &report.equivalence {
        let ratio = &one.ratio.ratio;
        text += &format!(
            "\nSub SAs over SAs per CPU: {:.4} ({:.4}-{:.4}), {} {} B, {} flows, {}: {}",
            ratio.value,
            ratio.low,
            ratio.high,
            one.case.suite,
            one.case.size,
            one.case.flows,
            scheduler(one.case.scheduler, one.case.atomic_cipher),
            one.verdict,
        );
    }
    let wrong: u64 = report.outcomes.iter().map(|o| o.disordered + o.lost).sum();
    text += &match wrong {
        0 => "\nEvery packet returned, in order within its flow.".to_owned(),
        wrong => format!("\n{wrong} packets were lost or reordered within their flow."),
    };
    text
}

/// The same for machines.
pub fn cores_json(options: &CoresOptions, report: &CoresReport) -> Value {
    json!({
        "unit": "packets per second, sealed and opened",
        "cpu": crate::host::cpu_model(),
        "kernel": crate::host::kernel(),
        "engine": options.engine.name(),
        "rounds": options.rounds,
        "trial_ms": options.trial.as_millis() as u64,
        "seed": options.seed,
        "packets_per_batch": super::trial::BATCH,
        "outcomes": report.outcomes,
        "scaling": report.scaling,
        "equivalence": report.equivalence,
    })
}
