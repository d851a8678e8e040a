//! Transfers between hosts: ratios to the reference, with their intervals.

use super::compare::{ForestRow, draw};
use super::{cells, exact, style};
use crate::report::analysis::Folder;
use crate::report::figure::{Data, Figure};
use crate::report::transfers::{Answer, Compared, Line, Table};
use crate::svg::escape;
use stats::Estimate;

/// Band of the plots as a share: the wider margin of equivalence.
const BAND: f64 = 0.05;

pub(in crate::report) fn figure(folder: &Folder, answer: &Answer) -> Figure {
    let (id, title) = ("transfers", "Transfers against the first subject");
    let head = [
        "study",
        "subject",
        "transfers",
        "Gbit/s",
        "low",
        "high",
        "CPU-s/Gbit",
        "low",
        "high",
        "Gbit/s ratio",
        "low",
        "high",
        "verdict",
        "CPU ratio",
        "low",
        "high",
        "verdict",
        "messages",
        "SAs",
        "first packet, ms",
        "memory of the programs, MiB",
    ];
    let mut data = Data::new(&head);
    let mut drawings = Vec::new();
    for table in &answer.tables {
        for (what, of) in [("Gbit/s", rate as fn(&Line) -> Option<&Compared>), ("CPU-seconds per Gbit", cost)] {
            let again = table.noise[usize::from(what != "Gbit/s")].as_ref();
            let again = again.map(|noise| row(&format!("{}, again", table.reference), 0, noise));
            let others =
                table.lines.iter().filter_map(|line| Some(row(&line.name, style(folder, &line.subject), of(line)?)));
            let rows: Vec<ForestRow> = again.into_iter().chain(others).collect();
            if !rows.is_empty() {
                let title = format!("{}: {what} over {}", table.title, table.reference);
                drawings.push(format!("<h4>{}</h4>{}", escape(&title), draw(&title, &rows, BAND)));
            }
        }
        table.lines.iter().for_each(|line| data.push(record(table, line)));
    }
    if drawings.is_empty() {
        let why = "Fewer than two sessions with both subjects of a comparison.";
        return Figure::absent(id, title, why);
    }
    let text = "Ratio to the first subject within rounds, with its 95 % interval over sessions; grey: ±5 %. 'again' is the first subject against itself: \
                what this machine calls different although it is not. Left of 1 is less, which is better for processor time. Studies in UDP and raw \
                are not comparable with each other: the kernel offloads them differently.";
    Figure::of(id, title, text, drawings, data)
}

fn rate(line: &Line) -> Option<&Compared> {
    line.rate.as_ref()
}

fn cost(line: &Line) -> Option<&Compared> {
    line.cost.as_ref()
}

fn row(name: &str, style: usize, compared: &Compared) -> ForestRow {
    // A plot has no room for reasons.
    let verdict = if compared.verdict.starts_with("inconclusive") { "inconclusive" } else { &compared.verdict };
    ForestRow { name: name.to_owned(), style, ratio: compared.ratio, note: verdict.to_owned() }
}

fn record(table: &Table, line: &Line) -> Vec<String> {
    let none = Estimate { value: f64::NAN, low: f64::NAN, high: f64::NAN };
    let mut record = vec![table.study.clone(), line.name.clone(), line.trials.to_string()];
    record.extend(cells(line.gbps.unwrap_or(none)));
    record.extend(cells(line.cpu_s_per_gbit.unwrap_or(none)));
    for compared in [&line.rate, &line.cost] {
        record.extend(cells(compared.as_ref().map_or(none, |compared| compared.ratio)));
        record.push(compared.as_ref().map_or_else(|| "–".into(), |compared| compared.verdict.clone()));
    }
    let set_up = line.set_up.as_ref();
    let of = |value: Option<f64>| value.map_or_else(|| "–".into(), exact);
    record.push(of(set_up.and_then(|set_up| set_up.messages)));
    record.push(of(set_up.and_then(|set_up| set_up.sas)));
    record.push(of(set_up.map(|set_up| set_up.first_packet_ms.value)));
    record.push(of(set_up.and_then(|set_up| set_up.resident_mib)));
    record
}
