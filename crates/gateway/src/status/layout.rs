//! Text for a terminal: rows that break between values and never within one.

/// Spaces between columns.
const GAP: usize = 2;

/// A value with its column.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// Header of its column.
    pub(super) header: &'static str,
    /// Label before the value in a layout without a header.
    pub(super) label: &'static str,
    pub(super) text: String,
    /// Aligned to the right under its header.
    pub(super) right: bool,
}

/// A row of a table, with a remark on separate lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    /// In a narrow terminal: what identifies the row.
    pub(super) first: Vec<Cell>,
    /// In a narrow terminal: the lines after it.
    pub(super) second: Vec<Cell>,
    pub(super) remark: Option<String>,
}

/// A cell without label.
pub(super) fn cell(header: &'static str, text: impl Into<String>) -> Cell {
    Cell { header, label: "", text: printable(&text.into()), right: false }
}

/// A number with its label.
pub(super) fn number(header: &'static str, label: &'static str, text: impl Into<String>) -> Cell {
    Cell { header, label, text: printable(&text.into()), right: true }
}

/// Replaces control characters: identities come from peers, and a terminal would obey them.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn len(text: &str) -> usize {
    text.chars().count()
}

/// Writes rows of the same columns: as a table where it fits into `width`, otherwise each on
/// several lines.
pub(super) fn table(rows: &[Row], width: usize) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let cells = |row: &Row| row.first.iter().chain(&row.second).cloned().collect::<Vec<Cell>>();
    let headers = cells(first);
    let mut widths: Vec<usize> = headers.iter().map(|cell| len(cell.header)).collect();
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(cells(row)) {
            *widest = (*widest).max(len(&cell.text));
        }
    }
    let total = widths.iter().sum::<usize>() + GAP * (widths.len().saturating_sub(1));
    let indent = widths.first().map_or(0, |first| first + GAP);
    let mut text = String::new();
    if total <= width {
        line(&mut text, headers.iter().map(|cell| (cell.header, cell.right)), &widths);
        for row in rows {
            let cells = cells(row);
            line(&mut text, cells.iter().map(|cell| (cell.text.as_str(), cell.right)), &widths);
            remark(&mut text, row, indent, width);
        }
    } else {
        // Columns of the first line stay aligned while that costs no line.
        for row in rows {
            stacked(&mut text, row, &widths, width);
            remark(&mut text, row, indent, width);
        }
    }
    text
}

/// Writes columns of numbers after a column of names.
pub(super) fn columns(headers: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = headers.iter().map(|header| len(header)).collect();
    for row in rows {
        for (widest, value) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(len(value));
        }
    }
    let mut text = String::new();
    line(&mut text, headers.iter().enumerate().map(|(at, header)| (*header, at > 0)), &widths);
    for row in rows {
        line(&mut text, row.iter().enumerate().map(|(at, value)| (value.as_str(), at > 0)), &widths);
    }
    text
}

fn line<'a>(text: &mut String, cells: impl Iterator<Item = (&'a str, bool)>, widths: &[usize]) {
    let mut line = String::new();
    for ((value, right), width) in cells.zip(widths) {
        let space = " ".repeat(width.saturating_sub(len(value)));
        let (before, after) = if right { (space.as_str(), "") } else { ("", space.as_str()) };
        line.push_str(&format!("{before}{value}{after}{}", " ".repeat(GAP)));
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

fn stacked(text: &mut String, row: &Row, widths: &[usize], width: usize) {
    let indent = widths.first().map_or(0, |first| first + GAP);
    let state = row.first.first().map_or("", |cell| cell.text.as_str());
    let names = row.first.iter().skip(1).filter(|cell| !cell.text.is_empty()).map(|cell| cell.text.clone());
    let values = row.second.iter().filter(|cell| !cell.text.is_empty());
    let values = values.map(|cell| match cell.label {
        "" => cell.text.clone(),
        label => format!("{label} {}", cell.text),
    });
    let mut lines = pack(names, "  ", width.saturating_sub(indent));
    lines.extend(pack(values, ", ", width.saturating_sub(indent)));
    for (at, line) in lines.iter().enumerate() {
        let head = if at == 0 { state } else { "" };
        text.push_str(&format!("{head:indent$}{line}\n"));
    }
}

fn remark(text: &mut String, row: &Row, indent: usize, width: usize) {
    if let Some(remark) = &row.remark {
        text.push_str(&wrapped(&printable(remark), indent, width));
    }
}

/// Words of a sentence on lines of at most `width`, each with `indent` spaces.
pub(crate) fn wrapped(sentence: &str, indent: usize, width: usize) -> String {
    let lines = pack(sentence.split_whitespace().map(str::to_owned), " ", width.saturating_sub(indent));
    lines.iter().map(|line| format!("{:indent$}{line}\n", "")).collect()
}

/// Puts items on as few lines as `width` allows. A longer item is on a separate line: the terminal
/// wraps it, and it can be copied in one piece.
pub(super) fn pack(items: impl Iterator<Item = String>, between: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for item in items {
        match lines.last_mut() {
            Some(line) if len(line) + len(between) + len(&item) <= width => {
                line.push_str(between);
                line.push_str(&item);
            }
            Some(line) => {
                line.push_str(between.trim_end());
                lines.push(item);
            }
            None => lines.push(item),
        }
    }
    lines
}

/// Columns of the terminal on standard output; otherwise `COLUMNS`, which `watch` sets, or 80.
pub(crate) fn width() -> usize {
    let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
    let terminal = comfy_table::Table::new().width().map(usize::from);
    terminal.or_else(columns).filter(|width| *width >= 40).unwrap_or(80)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, peer: &str) -> Row {
        Row {
            first: vec![cell("STATE", "up"), cell("NAME", name), cell("PEER", peer)],
            second: vec![number("IN", "in", "12.3 MB"), number("OUT", "out", "1.1 GB")],
            remark: None,
        }
    }

    #[test]
    fn a_wide_terminal_has_one_line_for_each_row() {
        let text = table(&[row("site", "192.0.2.2"), row("a-longer-name", "x")], 60);
        let want = "\
STATE  NAME           PEER            IN     OUT
up     site           192.0.2.2  12.3 MB  1.1 GB
up     a-longer-name  x          12.3 MB  1.1 GB
";
        assert_eq!(text, want);
    }

    #[test]
    fn a_narrow_terminal_breaks_between_values_only() {
        let peer = "2001:db8:1234:5678:9abc:def0:1234:5678";
        for width in 40..49 + peer.len() {
            let text = table(&[row("site", peer)], width);
            assert!(text.lines().all(|line| line.chars().count() <= width.max(46)), "{width}\n{text}");
            for value in ["site", peer, "12.3 MB", "1.1 GB"] {
                assert!(text.lines().any(|line| line.contains(value)), "{width}\n{text}");
            }
        }
        let want = "up     site  192.0.2.2\n       in 12.3 MB, out 1.1 GB\n       no answer from\n       192.0.2.2\n";
        let remark = Some("no answer from 192.0.2.2".to_owned());
        assert_eq!(table(&[Row { remark, ..row("site", "192.0.2.2") }], 30), want);
    }

    #[test]
    fn control_characters_of_peers_do_not_reach_the_terminal() {
        let text = table(&[row("site", "\u{1b}[2J\nup evil")], 80);
        assert!(!text.contains('\u{1b}') && text.lines().count() == 2, "{text:?}");
    }
}
