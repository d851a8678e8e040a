//! Tables of the numbers of figures: on the page, and on a terminal of 80 columns.

use std::fmt::Write;

use super::analysis::shown;
use super::chart::short;
use super::figure::{Body, Data, Section};
use crate::svg::escape;

/// Columns of a terminal, for reports.
pub(crate) const COLUMNS: usize = 80;
/// Rows of a table on a terminal; all are on the page.
const ROWS: usize = 64;
/// Characters of a line of a heading.
const HEADING: usize = 10;

/// A table of the page that scrolls by itself when it is too wide.
pub(crate) fn html(head: &[String], rows: &[Vec<String>]) -> String {
    let mut html = String::from("<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>");
    for cell in head {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(cell));
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for (index, cell) in row.iter().enumerate() {
            let tag = if index == 0 { ("th scope=\"row\"", "th") } else { ("td", "td") };
            let _ = write!(html, "<{}>{}</{}>", tag.0, escape(cell), tag.1);
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    html
}

/// The figures that were drawn, as tables with what follows from them.
pub(crate) fn text(sections: &[Section]) -> String {
    let mut text = String::new();
    for figure in sections.iter().flat_map(|section| &section.figures) {
        let Body::Drawn(_, data) = &figure.body else { continue };
        let _ = writeln!(text, "{}\n\n{}", figure.title, of_data(data, COLUMNS));
        if !figure.notes.is_empty() {
            let _ = writeln!(text, "{}", wrapped(&figure.notes, COLUMNS));
        }
    }
    text
}

/// A paragraph in lines of at most `width` characters; longer words have a line of their own.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push_str(&std::mem::take(&mut line));
            lines.push('\n');
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines + &line + "\n"
}

/// A column of a terminal's table.
struct Column {
    head: String,
    cells: Vec<String>,
}

impl Column {
    fn is_constant(&self) -> bool {
        self.cells.len() > 1 && self.cells.iter().all(|cell| *cell == self.cells[0])
    }

    fn is_numeric(&self) -> bool {
        let number =
            |cell: &String| cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit() || "–-".contains(c));
        self.cells.iter().all(number)
    }

    /// Rows that begin with the same value as the one before.
    fn repeats(&self) -> bool {
        let same = self.cells.windows(2).filter(|pair| pair[0] == pair[1]).count();
        !self.is_numeric() && 2 * same >= self.cells.len().max(2) - 1
    }

    fn heading(&self) -> Vec<String> {
        wrapped(&self.head, HEADING).lines().map(str::to_owned).collect()
    }

    fn width(&self) -> usize {
        let width = |text: &String| text.chars().count();
        self.cells.iter().chain(&self.heading()).map(width).max().unwrap_or(0)
    }
}

/// The data in a terminal of `room` columns. A value that all rows share is printed once, a value
/// that all rows of a subject share above them; columns that do not fit are named.
pub(crate) fn of_data(data: &Data, room: usize) -> String {
    let mut columns = columns(data);
    let mut text = String::new();
    if let [_] = &data.rows[..] {
        let width = columns.iter().map(|column| column.head.chars().count()).max().unwrap_or(0);
        let line = |column: Column| format!("  {:<width$}  {}\n", column.head, column.cells[0]);
        return columns
            .into_iter()
            .filter(|column| column.cells[0].chars().count() + width < room - 4)
            .map(line)
            .collect();
    }
    let constant: Vec<String> =
        columns.iter().filter(|c| c.is_constant()).map(|c| format!("{} {}", c.head, c.cells[0])).collect();
    columns.retain(|column| !column.is_constant());
    if !constant.is_empty() {
        text += &indented(&format!("In all rows: {}.", constant.join(", ")));
    }
    let groups = columns.first().is_some_and(Column::repeats).then(|| columns.remove(0));
    let mut left = Vec::new();
    while columns.len() > 1 && 2 + columns.iter().map(|column| column.width() + 2).sum::<usize>() > room + 2 {
        left.extend(columns.pop().map(|column| column.head));
    }
    let heads: Vec<Vec<String>> = columns.iter().map(Column::heading).collect();
    let lines = heads.iter().map(Vec::len).max().unwrap_or(0);
    for line in 0..lines {
        // At the bottom, next to the numbers.
        let cell =
            |head: &Vec<String>| (line + head.len()).checked_sub(lines).map_or("", |at| head[at].as_str()).to_owned();
        text += &row(&columns, heads.iter().map(cell));
    }
    let rows = data.rows.len();
    for at in 0..rows.min(ROWS) {
        if let Some(groups) = &groups
            && (at == 0 || groups.cells[at] != groups.cells[at - 1])
        {
            text += &format!("{}\n", groups.cells[at]);
        }
        text += &row(&columns, columns.iter().map(|column| column.cells[at].clone()));
    }
    if rows > ROWS {
        text += &format!("  ({} more rows in the report)\n", rows - ROWS);
    }
    if !left.is_empty() {
        left.reverse();
        text += &indented(&format!("Also in the report: {}.", left.join("; ")));
    }
    text
}

fn indented(text: &str) -> String {
    wrapped(text, COLUMNS - 2).lines().map(|line| format!("  {line}\n")).collect()
}

fn row(columns: &[Column], cells: impl Iterator<Item = String>) -> String {
    let cell = |(column, cell): (&Column, String)| match column.is_numeric() {
        true => format!("  {cell:>width$}", width = column.width()),
        false => format!("  {cell:<width$}", width = column.width()),
    };
    let line: String = columns.iter().zip(cells).map(cell).collect();
    format!("{}\n", line.trim_end())
}

/// The columns of a terminal: an estimate is one with its interval, and numbers are short.
fn columns(data: &Data) -> Vec<Column> {
    let mut columns = Vec::new();
    let mut at = 0;
    while at < data.head.len() {
        let head = &data.head[at];
        let cells = |of: usize| data.rows.iter().map(move |row| row.get(of).map_or("", String::as_str));
        let is = |offset: usize, name: &str| data.head.get(at + offset).is_some_and(|head| head == name);
        if is(1, "low") && is(2, "high") {
            let cells = cells(at).zip(cells(at + 1)).zip(cells(at + 2));
            let cells = cells.map(|((value, low), high)| interval(value, low, high)).collect();
            columns.push(Column { head: head.clone(), cells });
            at += 3;
            continue;
        }
        let cells = cells(at).map(|cell| match head.as_str() {
            "subject" => shown(cell),
            _ => number(cell),
        });
        columns.push(Column { head: head.clone(), cells: cells.collect() });
        at += 1;
    }
    columns.retain(|column| !data.page_only.contains(&column.head.as_str()));
    columns
}

/// `1.95 ±0.5 %`; the larger half of the interval.
fn interval(value: &str, low: &str, high: &str) -> String {
    let all = [value, low, high].map(|cell| cell.parse::<f64>().ok());
    let [Some(centre), Some(low), Some(high)] = all else { return number(value) };
    let percent = (high - centre).max(centre - low) / centre.abs() * 100.0;
    match percent {
        p if !p.is_finite() || low == high => number(value),
        p if p > 99.0 => format!("{} ±>99 %", number(value)),
        p if p >= 9.95 => format!("{} ±{p:.0} %", number(value)),
        p => format!("{} ±{p:.1} %", number(value)),
    }
}

/// Three digits, where there are more after the decimal point.
fn number(cell: &str) -> String {
    match cell.parse::<f64>() {
        Ok(value) if cell.contains('.') => short(value),
        _ => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{figures, synthetic};
    use super::*;

    #[test]
    fn every_figure_of_a_whole_run_fits_a_terminal() {
        let all = text(&figures::sections(&synthetic::folder()));
        for line in all.lines() {
            assert!(line.chars().count() <= COLUMNS, "{line}\n{all}");
        }
        for title in ["Throughput by cores", "Number of SAs", "Throughput and cores over time"] {
            assert!(all.contains(title), "{title}\n{all}");
        }
    }

    #[test]
    fn what_rows_share_is_said_once_and_an_interval_is_one_column() {
        let mut data = Data::new(&["subject", "place", "bytes", "ticks", "low", "high", "hidden"]);
        for (bytes, ticks) in [("64", "100.456"), ("1400", "1000")] {
            let cells = ["weir-esp-tunnel-aes128gcm16", "here", bytes, ticks, ticks, "1100", "x"];
            data.push(cells.map(str::to_owned));
        }
        data.page_only = &["hidden"];
        let expected = "  In all rows: subject ESP tunnel aes128gcm16, place here.\n  bytes       ticks\n     64  100 ±>99 %\n   \
                        1400  1000 ±10 %\n";
        assert_eq!(of_data(&data, COLUMNS), expected);
        data.rows.truncate(1);
        assert!(
            of_data(&data, COLUMNS).ends_with("  place    here\n  bytes    64\n  ticks    100 ±>99 %\n"),
            "{}",
            of_data(&data, COLUMNS)
        );
    }

    #[test]
    fn columns_without_room_and_rows_of_a_subject_are_named() {
        let heads = ["subject", "one", "another column with a long name", "the last"];
        let mut data = Data::new(&heads);
        for number in 0..100 {
            let name = if number < 50 { "a" } else { "b" };
            data.push([name.to_owned(), number.to_string(), format!("{number}{}", "x".repeat(76)), number.to_string()]);
        }
        let text = of_data(&data, COLUMNS);
        assert!(text.starts_with("  one\na\n"), "{text}");
        assert!(
            text.contains("Also in the report: another column with a long name; the last.") && text.contains("b\n")
        );
        assert!(text.contains("(36 more rows in the report)"));
    }
}
