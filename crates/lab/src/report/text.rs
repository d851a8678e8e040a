//! The verdict for a terminal and for machines.

use comfy_table::{CellAlignment, LineStyle, Table, presets};
use serde_json::json;

use super::analysis::{Folder, shown};
use super::chart::{short, trimmed};
use super::figure::Section;
use super::tables::{COLUMNS, wrapped};
use super::transfers::{Answer, Compared, SetUp};
use super::{checklist, verdict};
use crate::campaign::env::short_hash;

/// Within 100 columns for three kinds of traffic.
pub(super) fn table(folder: &Folder) -> String {
    let mut text = Answer::of(folder).map_or_else(String::new, |answer| answered(&answer));
    text.push_str(&super::figures::session_table(folder).unwrap_or_default());
    for table in verdict::tables(folder) {
        let mut shown_table = horizontal();
        let head = table.columns.iter().map(|c| format!("{c}{}\nGbit/s, ticks", if c == "imix" { "" } else { " B" }));
        shown_table.set_header([table.direction.to_owned()].into_iter().chain(head));
        for row in &table.rows {
            let fields = row.fields.iter().map(|field| {
                field.as_ref().map_or_else(
                    || "–".to_owned(),
                    |f| format!("{}{}, {}", if f.fastest { "★ " } else { "" }, short(f.gbps), short(f.ticks.value)),
                )
            });
            shown_table.add_row([row.shown.clone()].into_iter().chain(fields));
        }
        align(&mut shown_table);
        text.push_str(&format!("{shown_table}\n"));
        for (column, verdict) in table.columns.iter().zip(&table.verdicts) {
            text.push_str(&format!("{column}: {verdict}\n"));
        }
        text.push('\n');
    }
    for badge in verdict::badges(folder) {
        text.push_str(&format!("{} {}: {}\n", if badge.good { "✓" } else { "!" }, badge.name, badge.value));
    }
    for problem in &folder.problems {
        text.push_str(&format!(
            "{} {} ({}): {}\n",
            if problem.failed { "✗" } else { "–" },
            shown(&problem.subject),
            problem.study,
            problem.why
        ));
    }
    text
}

/// Bytes of memory, for people.
pub(super) fn bytes_shown(bytes: f64) -> String {
    trimmed(bytes.round())
}

/// The answer, a table for each study, and the cost of SAs.
fn answered(answer: &Answer) -> String {
    let paragraphs = answer.paragraphs().map(|paragraph| wrapped(&paragraph, COLUMNS) + "\n");
    let mut text = paragraphs.concat();
    for table in &answer.tables {
        text.push_str(&format!("{} (study '{}', {} sessions)\n", table.title, table.study, table.sessions));
        let mut rates = horizontal();
        rates.set_header([
            "subject".to_owned(),
            "Gbit/s".to_owned(),
            format!("over {}", table.reference),
            "CPU-s/Gbit".to_owned(),
            format!("over {}", table.reference),
        ]);
        let mut set_up = horizontal();
        set_up.set_header(["set-up", "messages", "SAs", "first packet, ms", "programs, MiB"]);
        for line in &table.lines {
            let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), short);
            let cell = |compared: Option<&Compared>| {
                compared.map_or_else(
                    || "–".to_owned(),
                    |c| format!("{:.3} [{:.3}, {:.3}]\n{}", c.ratio.value, c.ratio.low, c.ratio.high, c.verdict),
                )
            };
            // The reference is compared with itself.
            let first = line.subject == table.lines[0].subject;
            let [rate, cost] = match first {
                true => table.noise.each_ref().map(|noise| cell(noise.as_ref()).replace('\n', " again\n")),
                false => [cell(line.rate.as_ref()), cell(line.cost.as_ref())],
            };
            let why = match (&line.failed, &line.missing) {
                (Some(_), _) => format!("\n✗ failed, {} transfers", line.trials),
                (None, Some(_)) => "\nnot measured".to_owned(),
                (None, None) => String::new(),
            };
            let name = format!("{}{why}", line.name);
            rates.add_row([
                name,
                number(line.gbps.map(|gbps| gbps.value)),
                rate,
                number(line.cpu_s_per_gbit.map(|cost| cost.value)),
                cost,
            ]);
            if let Some(SetUp { messages, sas, first_packet_ms, resident_mib }) = &line.set_up {
                let count = |value: &Option<f64>| value.map_or_else(|| "–".to_owned(), trimmed);
                let numbers = [Some(first_packet_ms.value), *resident_mib].map(number);
                set_up.add_row([line.name.clone(), count(messages), count(sas)].into_iter().chain(numbers));
            }
        }
        for table in [&mut rates, &mut set_up] {
            align(table);
        }
        text.push_str(&format!("{rates}\n{set_up}\n\n"));
    }
    if !answer.per_sa.is_empty() {
        let mut table = horizontal();
        table.set_header(["one more SA, or Sub SA", "bytes, sender", "bytes, receiver", "keys derived in, ns"]);
        for sa in &answer.per_sa {
            let bytes = sa.bytes.map_or(["–".to_owned(), "–".to_owned()], |bytes| bytes.map(bytes_shown));
            let derived = sa.derive_ns.map_or_else(|| "–".to_owned(), |ns| short(ns.value));
            table.add_row([sa.shown.clone()].into_iter().chain(bytes).chain([derived]));
        }
        align(&mut table);
        text.push_str(&format!("{table}\n\n"));
    }
    text
}

fn align(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

fn horizontal() -> Table {
    let mut table = Table::new();
    let style = presets::UTF8_HORIZONTAL_ONLY;
    table.load_style(style.header_separator(style.top_border).row_separator(LineStyle::none()));
    table
}

/// Hash of all trials as they are written.
pub(super) fn hash(folder: &Folder) -> String {
    let lines = folder.trials.iter().map(|trial| serde_json::to_string(trial).expect("a trial has string keys"));
    short_hash(lines.collect::<Vec<_>>().join("\n").as_bytes())
}

/// The summary, with the hash of the trials.
pub(super) fn json(folder: &Folder, sections: &[Section], hash: &str) -> String {
    let figures: Vec<_> = sections
        .iter()
        .flat_map(|section| &section.figures)
        .map(|figure| json!({ "id": figure.id, "title": figure.title, "drawn": figure.is_drawn() }))
        .collect();
    let answer = Answer::of(folder);
    let counts = checklist::counts(&checklist::rows(folder));
    let value = json!({
        "campaign": folder.campaign.name,
        "trials": folder.trials.len(),
        // A change that no figure depends on is found, too.
        "trials_sha256": hash,
        "noise_floor": folder.noise(),
        "answer": answer.as_ref().map(|answer| answer.paragraphs()[0].clone()),
        "transfers": answer,
        "verdict": verdict::tables(folder),
        "badges": verdict::badges(folder),
        "checklist": counts,
        "figures": figures,
        "problems": folder.problems,
    });
    serde_json::to_string_pretty(&value).expect("a summary has string keys") + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::synthetic;
    use super::*;

    #[test]
    fn the_table_has_verdicts_badges_and_what_is_missing() {
        let text = table(&synthetic::folder());
        assert!(
            text.contains("★ ") && text.contains("noise floor") && text.contains("128 cores: only <8> are available"),
            "{text}"
        );
        assert!(
            text.lines()
                .filter(|line| !line.contains(" B ") && !line.contains(':'))
                .all(|line| line.chars().count() <= 110)
        );
    }

    #[test]
    fn the_summary_is_json() {
        let value: serde_json::Value = {
            let folder = synthetic::folder();
            serde_json::from_str(&json(&folder, &super::super::figures::sections(&folder), "")).unwrap()
        };
        assert_eq!(value["campaign"], "synthetic");
        assert!(value["figures"].as_array().unwrap().len() > 10 && value["noise_floor"].is_number());
    }
}
