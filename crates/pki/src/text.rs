//! Text for a terminal of 80 columns.

/// Columns of a terminal that is assumed.
pub(crate) const WIDTH: usize = 80;
/// Spaces between columns.
const GAP: usize = 2;

/// Rows under a header. The last column may be cut to fit into [`WIDTH`], with `…` at the end.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let len = |text: &str| text.chars().count();
    let mut widths: Vec<usize> = header.iter().map(|name| len(name)).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(len(cell));
        }
    }
    let before: usize = widths.iter().take(widths.len().saturating_sub(1)).map(|width| width + GAP).sum();
    let room = WIDTH.saturating_sub(before).max(8);
    let mut text = String::new();
    let header: Vec<String> = header.iter().map(|name| (*name).to_owned()).collect();
    for row in std::iter::once(&header).chain(rows) {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let cell = printable(cell);
            if at + 1 == widths.len() {
                line.push_str(&cut(&cell, room));
            } else {
                line.push_str(&cell);
                line.push_str(&" ".repeat(width + GAP - len(&cell)));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Lines `name: value` with aligned values; values are wrapped at blanks.
pub(crate) fn fields(rows: &[(&str, String)]) -> String {
    let indent = rows.iter().map(|(name, _)| name.len() + 1).max().unwrap_or(0) + 1;
    let mut text = String::new();
    for (name, value) in rows {
        let mut line = format!("{:indent$}", format!("{name}:"));
        let mut empty = true;
        for word in printable(value).split(' ') {
            if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
                text.push_str(line.trim_end());
                text.push('\n');
                line = " ".repeat(indent);
                empty = true;
            }
            if !empty {
                line.push(' ');
            }
            line.push_str(word);
            empty = false;
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Replaces control characters: names in a certificate are those of its owner, and a terminal would
/// obey them.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(room.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of hexadecimal digits.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let value = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let pairs = digits.chunks(2).map(|pair| Some(value(pair[0])? << 4 | value(*pair.get(1)?)?));
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_fields_fit_80_columns() {
        let rows = [
            vec!["a.example.org".to_owned(), "2026-11-23".to_owned(), "x".repeat(90)],
            vec!["b".to_owned(), String::new(), "evil\u{1b}[2J".to_owned()],
        ];
        let shown = table(&["name", "expires", "names"], &rows);
        assert!(shown.lines().all(|line| line.chars().count() <= WIDTH), "{shown}");
        assert!(shown.starts_with("name           expires     names\na.example.org  2026-11-23  xxx"), "{shown}");
        assert!(shown.contains('…') && !shown.contains('\u{1b}'), "{shown}");
        let shown = fields(&[("a", "word ".repeat(40).trim().to_owned()), ("longer", String::new())]);
        assert!(shown.lines().all(|line| line.len() <= WIDTH) && shown.starts_with("a:      word word"), "{shown}");
        assert!(shown.lines().count() == 4 && shown.ends_with("\nlonger:\n"), "{shown}");
        assert_eq!(unhex(&hex(&[0, 15, 255])), Some(vec![0, 15, 255]));
        assert!(unhex("abc").is_none() && unhex("zz").is_none());
    }
}
