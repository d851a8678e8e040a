//! The verdict for a terminal and for machines.

use comfy_table::{CellAlignment, LineStyle, Table, presets};
use serde_json::json;

use super::analysis::{Folder, shown};
use super::chart::short;
use super::{checklist, figures, verdict};

/// Within 100 columns for three kinds of traffic.
pub(super) fn table(folder: &Folder) -> String {
    let mut text = String::new();
    for table in verdict::tables(folder) {
        let mut shown_table = Table::new();
        let style = presets::UTF8_HORIZONTAL_ONLY;
        shown_table.load_style(style.header_separator(style.top_border).row_separator(LineStyle::none()));
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
        for column in shown_table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
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

/// The summary.
pub(super) fn json(folder: &Folder) -> String {
    let figures: Vec<_> = figures::sections(folder)
        .into_iter()
        .flat_map(|section| section.figures)
        .map(|figure| json!({ "id": figure.id, "title": figure.title, "drawn": figure.is_drawn() }))
        .collect();
    let counts = checklist::counts(&checklist::rows(folder));
    let value = json!({
        "campaign": folder.campaign.name,
        "trials": folder.trials.len(),
        "noise_floor": folder.noise(),
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
        let value: serde_json::Value = serde_json::from_str(&json(&synthetic::folder())).unwrap();
        assert_eq!(value["campaign"], "synthetic");
        assert!(value["figures"].as_array().unwrap().len() > 10 && value["noise_floor"].is_number());
    }
}
