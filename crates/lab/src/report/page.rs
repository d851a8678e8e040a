//! The page: one file, no network, no scripts.

use std::fmt::Write;

use super::analysis::{Folder, shown};
use super::chart::{short, trimmed};
use super::checklist::{self, ChecklistRow as Line};
use super::figure::Section;
use super::figures;
use super::tables::html as table;
use super::transfers::{Answer, Compared, Table as Study};
use super::verdict::{self, Field, Table};
use crate::campaign::{Kind, store};
use crate::svg::escape;

const STYLE: &str = include_str!("page.css");

/// The whole page.
pub(super) fn html(folder: &Folder, sections: &[Section]) -> String {
    let title = if folder.campaign.title.is_empty() { &folder.campaign.name } else { &folder.campaign.title };
    let mut page = opening(title);
    let _ = writeln!(page, "<header><h1>{}</h1>", escape(title));
    head(&mut page, folder);
    answer(&mut page, folder);
    verdicts(&mut page, folder);
    reproduction(&mut page, folder);
    for section in sections {
        page.push_str(&section.html());
    }
    missing(&mut page, folder);
    provenance(&mut page, folder);
    page.push_str(CLOSING);
    page
}

/// End of a page.
pub(crate) const CLOSING: &str = "</main>\n</body>\n</html>\n";

/// Beginning of a page.
pub(crate) fn opening(title: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <link rel=\"icon\" href=\"data:,\"><title>Weir lab: {title}</title>\n<style>{STYLE}</style></head>\n<body>\n<main>\n"
    )
}

fn head(page: &mut String, folder: &Folder) {
    let env = folder.environments.first();
    let machine = env.map_or_else(String::new, |env| {
        format!("{}, {} processors, kernel {}", env.fixed.cpu, env.fixed.cpus, env.fixed.kernel)
    });
    let _ = write!(
        page,
        "<p>Campaign '{}': {} trials, {} subjects compared, on {}.</p>\n<nav>{}<a href=\"#verdict\">Verdict</a>\
         <a href=\"#papers\">Reproduction of the papers</a><a href=\"#cost-by-size\">Plots</a><a href=\"#missing\">Not measured</a>\
         <a href=\"#provenance\">Provenance</a></nav>\n<ul class=\"badges\">",
        escape(&folder.campaign.name),
        folder.trials.len(),
        verdict::subjects(folder),
        escape(&machine),
        if folder.everywhere(Kind::Transfers).is_empty() { "" } else { "<a href=\"#answer\">Answer</a>" },
    );
    for badge in verdict::badges(folder) {
        let (class, mark) = if badge.good { ("good", "✓") } else { ("care", "!") };
        let _ = write!(page, "<li class=\"{class}\">{mark} <b>{}</b> {}</li>", badge.name, escape(&badge.value));
    }
    page.push_str("</ul></header>\n");
}

/// The answer to the question of the thesis, for campaigns with transfers.
fn answer(page: &mut String, folder: &Folder) {
    let Some(answer) = Answer::of(folder) else { return };
    let [first, rest @ ..] = &answer.sentences[..] else { return };
    let _ = writeln!(page, "<section id=\"answer\"><h2>Answer</h2>\n<p class=\"answer\"><b>{}</b>", escape(first));
    rest.iter().for_each(|sentence| {
        let _ = writeln!(page, " {}", escape(sentence));
    });
    page.push_str("</p>\n");
    for note in &answer.notes {
        let _ = writeln!(page, "<p>{}</p>", escape(note));
    }
    page.push_str("<div class=\"cards\">");
    page.push_str(&figures::transfers(folder, &answer).html());
    page.push_str("</div>\n");
    answer.tables.iter().for_each(|table| transfers(page, table));
    if !answer.per_sa.is_empty() {
        let head = ["one more SA, or Sub SA", "bytes at the sender", "bytes at the receiver", "keys derived in, ns"];
        let rows: Vec<Vec<String>> = answer
            .per_sa
            .iter()
            .map(|sa| {
                let bytes =
                    sa.bytes.map_or(["–".to_owned(), "–".to_owned()], |bytes| bytes.map(super::text::bytes_shown));
                let derived = sa.derive_ns.map_or_else(|| "–".to_owned(), |ns| short(ns.value));
                [sa.shown.clone()].into_iter().chain(bytes).chain([derived]).collect()
            })
            .collect();
        page.push_str("<h3>Cost of one more SA, in memory</h3>");
        page.push_str(&table(&head.map(str::to_owned), &rows));
    }
    page.push_str("</section>\n");
}

/// One study of transfers.
fn transfers(page: &mut String, study: &Study) {
    let over = |compared: Option<&Compared>| {
        let Some(Compared { ratio, verdict, .. }) = compared else { return "<td>–</td>".to_owned() };
        format!("<td>{:.3} [{:.3}, {:.3}]<small>{}</small></td>", ratio.value, ratio.low, ratio.high, escape(verdict))
    };
    let reference = escape(&study.reference);
    let _ = writeln!(
        page,
        "<h3>{}: {} sessions</h3><div class=\"scroll\" tabindex=\"0\"><table class=\"verdict\"><thead><tr>\
         <th scope=\"col\">subject</th><th scope=\"col\">Gbit/s</th><th scope=\"col\">over {reference}</th>\
         <th scope=\"col\">CPU-s/Gbit</th><th scope=\"col\">over {reference}</th><th scope=\"col\">messages</th>\
         <th scope=\"col\">SAs</th><th scope=\"col\">first packet, ms</th><th scope=\"col\">programs, MiB</th></tr></thead><tbody>",
        escape(&study.title),
        study.sessions
    );
    for line in &study.lines {
        let first = line.subject == study.lines[0].subject;
        let [rate, cost] = match first {
            true => study.noise.each_ref().map(|noise| over(noise.as_ref()).replace("<small>", "<small>again: ")),
            false => [over(line.rate.as_ref()), over(line.cost.as_ref())],
        };
        let why = match (&line.failed, &line.missing) {
            (Some(why), _) => format!("<small class=\"failed\">✗ failed: {}</small>", escape(why)),
            (None, Some(why)) => format!("<small>not measured: {}</small>", escape(why)),
            (None, None) => String::new(),
        };
        let number = |value: Option<f64>| format!("<td>{}</td>", value.map_or_else(|| "–".to_owned(), short));
        let count = |value: Option<f64>| format!("<td>{}</td>", value.map_or_else(|| "–".to_owned(), trimmed));
        let set_up = line.set_up.as_ref();
        let _ = writeln!(
            page,
            "<tr><th scope=\"row\">{}{why}</th>{}{rate}{}{cost}{}{}{}{}</tr>",
            escape(&line.name),
            number(line.gbps.map(|gbps| gbps.value)),
            number(line.cpu_s_per_gbit.map(|cost| cost.value)),
            count(set_up.and_then(|set_up| set_up.messages)),
            count(set_up.and_then(|set_up| set_up.sas)),
            number(set_up.map(|set_up| set_up.first_packet_ms.value)),
            number(set_up.and_then(|set_up| set_up.resident_mib)),
        );
    }
    page.push_str("</tbody></table></div>\n");
}

fn verdicts(page: &mut String, folder: &Folder) {
    page.push_str("<section id=\"verdict\"><h2>Verdict</h2>\n");
    let tables = verdict::tables(folder);
    if tables.is_empty() {
        let other = "This run has other sizes than this table (64, 512 and 1400 bytes, IMIX): see the sections below.";
        let measured = !folder.of(Kind::Sizes).is_empty();
        let why = if measured { other.to_owned() } else { folder.why_not(Kind::Sizes) };
        let _ = writeln!(page, "<p>{}</p>", escape(&why));
    } else {
        page.push_str(
            "<p>One core, in memory. In each field: million packets per second, Gbit/s of inner packets, and ticks of the time-stamp counter \
             per packet with the 95 % interval over sessions. ★ stands only where the paired ratio against every other subject excludes \
             1 by more than the noise floor. The bare cipher is an upper bound, not a competitor.</p>\n",
        );
    }
    tables.iter().for_each(|table| one_verdict(page, table));
    page.push_str("</section>\n");
}

fn one_verdict(page: &mut String, table: &Table) {
    let mut title = table.direction.to_owned();
    title[..1].make_ascii_uppercase();
    let _ = write!(
        page,
        "<h3>{title}</h3><div class=\"scroll\" tabindex=\"0\"><table class=\"verdict\"><thead><tr><th scope=\"col\">subject</th>"
    );
    for column in &table.columns {
        let _ = write!(
            page,
            "<th scope=\"col\">{}</th>",
            if column == "imix" { "IMIX".to_owned() } else { format!("{column} bytes") }
        );
    }
    page.push_str("</tr></thead><tbody>\n");
    for row in &table.rows {
        let _ = write!(
            page,
            "<tr{}><th scope=\"row\">{}</th>",
            if row.ceiling { " class=\"ceiling\"" } else { "" },
            escape(&row.shown)
        );
        row.fields.iter().for_each(|field| one_field(page, field.as_ref()));
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody><tfoot><tr><th scope=\"row\">verdict</th>");
    for verdict in &table.verdicts {
        let _ = write!(page, "<td>{}</td>", escape(verdict));
    }
    page.push_str("</tr></tfoot></table></div>\n");
}

fn one_field(page: &mut String, field: Option<&Field>) {
    let Some(field) = field else {
        page.push_str("<td>–</td>");
        return;
    };
    let class = if field.fastest { " class=\"fastest\"" } else { "" };
    let Field { mpps, gbps, ticks, .. } = field;
    let _ = write!(
        page,
        "<td><span{class}>{} Mpps</span><small>{} Gbit/s</small><small>{} ticks [{}, {}]</small></td>",
        short(*mpps),
        short(*gbps),
        short(ticks.value),
        short(ticks.low),
        short(ticks.high)
    );
}

fn reproduction(page: &mut String, folder: &Folder) {
    let rows = checklist::rows(folder);
    page.push_str("<section id=\"papers\"><h2>Reproduction of the papers</h2>\n");
    let _ = writeln!(
        page,
        "<p>Every figure, table, equation and claim of the five papers: the printed value, the value with corrected arithmetic, the value of this \
         run or this program shows, and the verdict. Claims with bounds are judged by what this run measured: 'reproduced' and \
         'contradicted' when the whole 95 % interval lies inside or outside the bounds, 'inconclusive' otherwise. 'Corrected' means that a \
         printed value does not follow from its own data, which are computed again here; 'not comparable' that equipment or method \
         differ, and how. In all: {}.</p>",
        escape(&checklist::sentence(&rows))
    );
    for (paper, title) in checklist::PAPERS {
        let mine: Vec<&Line> = rows.iter().filter(|row| row.paper == paper).collect();
        let counted: Vec<Line> = mine.iter().map(|row| (*row).clone()).collect();
        let _ = write!(
            page,
            "<details id=\"paper-{}\"><summary><b>{}</b> {} rows: {}</summary>\n<table class=\"repro\"><thead><tr><th scope=\"col\">what</th>\
             <th scope=\"col\">paper</th><th scope=\"col\">corrected</th><th scope=\"col\">ours</th><th scope=\"col\">verdict</th></tr></thead><tbody>\n",
            paper.to_lowercase(),
            escape(title),
            mine.len(),
            escape(&checklist::sentence(&counted))
        );
        for row in mine {
            let cell = |name: &str, text: &str| {
                let text = if text.is_empty() { "–".to_owned() } else { escape(text) };
                format!("<td data-name=\"{name}\">{text}</td>")
            };
            let _ = writeln!(
                page,
                "<tr><th scope=\"row\"><code>{}</code> {}</th>{}{}{}<td data-name=\"verdict\"><span class=\"mark {}\">{}</span></td></tr>",
                escape(&row.id),
                escape(&row.what),
                cell("paper", &row.printed),
                cell("corrected", &row.corrected),
                ours(row),
                row.verdict.class(),
                row.verdict.shown(),
            );
        }
        page.push_str("</tbody></table></details>\n");
    }
    page.push_str("</section>\n");
}

/// Evidence in this program, and each test of the row.
fn ours(row: &Line) -> String {
    let tests: String = row.tests.iter().map(|test| format!("<li>{}</li>", escape(test))).collect();
    let list = if tests.is_empty() { tests } else { format!("<ul>{tests}</ul>") };
    format!("<td data-name=\"ours\">{}{list}</td>", escape(&row.ours))
}

fn missing(page: &mut String, folder: &Folder) {
    page.push_str("<section id=\"missing\"><h2>Not measured</h2>\n");
    if folder.problems.is_empty() {
        page.push_str("<p>Everything in the campaign was measured.</p>\n");
    } else {
        let head = ["subject", "study", "what happened", "why"].map(str::to_owned);
        let rows: Vec<Vec<String>> = folder
            .problems
            .iter()
            .map(|problem| {
                let what = if problem.failed { "failed while it was measured" } else { "not there" };
                vec![shown(&problem.subject), problem.study.clone(), what.into(), problem.why.clone()]
            })
            .collect();
        page.push_str(&table(&head, &rows));
    }
    page.push_str("</section>\n");
}

fn provenance(page: &mut String, folder: &Folder) {
    page.push_str("<section id=\"provenance\"><h2>Provenance</h2>\n");
    for env in &folder.environments {
        let fixed = &env.fixed;
        let rows: [(&str, String); 23] = [
            ("environment", env.hash.clone()),
            ("processor", fixed.cpu.clone()),
            ("identification", fixed.cpu_id.clone()),
            ("microcode", fixed.microcode.clone()),
            ("instruction sets", fixed.isa.join(" ")),
            ("engine", fixed.engine.clone()),
            ("libraries", fixed.libraries.join("; ")),
            ("programs", fixed.programs.join("; ")),
            ("processors", fixed.cpus.to_string()),
            ("frequency policy", fixed.governor.clone()),
            ("hypervisor", fixed.hypervisor.clone()),
            ("kernel", fixed.kernel.clone()),
            ("mitigations", fixed.mitigations.join(" ")),
            ("memory", format!("{} MiB", fixed.memory_mib)),
            ("time-stamp counter", format!("{:.4} GHz", env.tsc_hz / 1e9)),
            ("Weir", fixed.weir.clone()),
            ("commit", fixed.commit.clone()),
            ("build", fixed.build.clone()),
            ("compiler", fixed.compiler.clone()),
            ("flags", fixed.flags.clone()),
            ("SHA-256 of the program", format!("{}…", fixed.binary)),
            ("load before", short(env.load_before)),
            ("steal since boot", format!("{} %", short(env.steal_percent))),
        ];
        let rows: Vec<Vec<String>> = rows.into_iter().map(|(what, value)| vec![what.to_owned(), value]).collect();
        page.push_str(&table(&["what".to_owned(), "value".to_owned()], &rows));
    }
    let _ = writeln!(
        page,
        "<p>Beside this page: <code>{}</code> holds every trial and is the source of everything here; <code>trials.csv</code> and \
         <code>trials.parquet</code> hold the same as tables; <code>{}</code> the campaign; <code>{}</code> the environments. \
         <code>weir lab verify DIR</code> computes this page from them again, to the bit.</p>\n</section>",
        store::TRIALS,
        store::CAMPAIGN,
        store::ENV
    );
}

#[cfg(test)]
mod tests {
    use super::super::synthetic;
    use super::*;
    use crate::svg::assert_well_formed;

    #[test]
    fn the_page_is_well_formed_and_stands_alone() {
        let folder = synthetic::folder();
        let page = html(&folder, &figures::sections(&folder));
        assert_well_formed(&page.replace("<link rel=\"icon\" href=\"data:,\">", ""));
        assert!(!page.contains("<script") && !page.contains("http:") && !page.contains("https:"));
        assert!(page.contains("Processor &amp; Co") && page.contains("128 cores: only &lt;8&gt; are available"));
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}"));
        assert!(at("id=\"verdict\"") < at("id=\"papers\"") && at("id=\"papers\"") < at("id=\"throughput-out\""));
        assert_eq!(page, html(&folder, &figures::sections(&folder)), "the same folder gives the same page");
    }

    #[test]
    fn a_run_without_trials_has_a_page_that_says_so() {
        let mut folder = synthetic::folder();
        folder.trials.clear();
        folder.environments.clear();
        assert_well_formed(
            &html(&folder, &figures::sections(&folder)).replace("<link rel=\"icon\" href=\"data:,\">", ""),
        );
    }
}
