//! A figure: a drawing, its caption, and its data as a table and as CSV within the page.

use std::fmt::Write;

use super::tables;
use crate::svg::escape;

/// Numbers of a figure.
#[derive(Clone, Debug, Default)]
pub(crate) struct Data {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    /// Columns that a terminal does not show.
    pub(crate) page_only: &'static [&'static str],
}

impl Data {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { head: head.iter().map(|cell| (*cell).to_owned()).collect(), ..Self::default() }
    }

    pub(crate) fn push(&mut self, row: impl IntoIterator<Item = String>) {
        self.rows.push(row.into_iter().collect());
    }

    /// Comma-separated values (RFC 4180).
    pub(crate) fn csv(&self) -> String {
        let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
        for row in std::iter::once(&self.head).chain(&self.rows) {
            writer.write_record(row).expect("memory takes everything");
        }
        String::from_utf8(writer.into_inner().expect("memory takes everything")).expect("it was text")
    }
}

/// A figure, or the reason why it is missing.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// Anchor and name of the CSV file.
    pub(crate) id: &'static str,
    pub(crate) title: String,
    pub(crate) text: String,
    /// What follows from the numbers, without reference to the drawing.
    pub(crate) notes: String,
    pub(crate) body: Body,
}

/// A part of a page.
pub(crate) struct Section {
    pub(crate) title: &'static str,
    pub(crate) figures: Vec<Figure>,
}

impl Section {
    pub(crate) fn html(&self) -> String {
        let anchor = self.title.to_lowercase().replace([' ', ','], "-");
        let figures: String = self.figures.iter().map(Figure::html).collect();
        format!("<section id=\"{anchor}\"><h2>{}</h2>\n<div class=\"cards\">\n{figures}</div></section>\n", self.title)
    }
}

/// Contents of a figure.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// Drawings beside each other.
    Drawn(Vec<String>, Data),
    /// Reason why there is nothing to draw.
    Absent(String),
}

impl Figure {
    pub(crate) fn drawn(id: &'static str, title: &str, text: &str, drawing: String, data: Data) -> Self {
        Self::of(id, title, text, vec![drawing], data)
    }

    /// With several drawings beside each other.
    pub(crate) fn of(id: &'static str, title: &str, text: &str, drawings: Vec<String>, data: Data) -> Self {
        let body = Body::Drawn(drawings, data);
        Self { id, title: title.into(), text: text.into(), notes: String::new(), body }
    }

    /// With what follows from its numbers.
    pub(crate) fn noted(mut self, notes: impl Into<String>) -> Self {
        self.notes = notes.into();
        self
    }

    pub(crate) fn absent(id: &'static str, title: &str, why: &str) -> Self {
        Self { id, title: title.into(), text: String::new(), notes: String::new(), body: Body::Absent(why.into()) }
    }

    pub(crate) fn is_drawn(&self) -> bool {
        matches!(self.body, Body::Drawn(..))
    }

    pub(crate) fn html(&self) -> String {
        let (id, title) = (self.id, escape(&self.title));
        match &self.body {
            Body::Absent(why) => format!(
                "<figure id=\"{id}\" class=\"absent\"><figcaption><h3>{title}</h3></figcaption>\
                 <p><b>Not measured.</b> {}</p></figure>\n",
                escape(why)
            ),
            Body::Drawn(drawings, data) => {
                let wide = if drawings.len() > 1 { " class=\"wide\"" } else { "" };
                let mut html = format!(
                    "<figure id=\"{id}\"{wide}><figcaption><h3>{title}</h3><p>{}</p></figcaption>",
                    escape(format!("{} {}", self.text, self.notes).trim())
                );
                if drawings.len() > 1 {
                    let parts: String = drawings.iter().map(|drawing| format!("<div>{drawing}</div>")).collect();
                    let _ = write!(html, "<div class=\"parts\">{parts}</div>");
                } else {
                    html.extend(drawings.iter().map(String::as_str));
                }
                let _ = writeln!(
                    html,
                    "<details><summary>Data ({} rows)</summary><p><a download=\"{id}.csv\" href=\"{}\">{id}.csv</a></p>{}</details></figure>",
                    data.rows.len(),
                    data_uri(&data.csv()),
                    tables::html(&data.head, &data.rows)
                );
                html
            }
        }
    }
}

/// A text as an address that holds it.
fn data_uri(text: &str) -> String {
    use base64::Engine as _;
    format!("data:text/csv;charset=utf-8;base64,{}", base64::engine::general_purpose::STANDARD.encode(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::assert_well_formed;

    #[test]
    fn a_figure_brings_its_numbers() {
        let mut data = Data::new(&["a", "b"]);
        data.push(["1, 2".to_owned(), "<3>".to_owned()]);
        assert_eq!(data.csv(), "a,b\n\"1, 2\",<3>\n");
        let html = Figure::drawn("f", "T & t", "text", "<svg></svg>".into(), data).html();
        assert_well_formed(&html);
        assert!(html.contains("download=\"f.csv\"") && html.contains("&lt;3&gt;") && html.contains("T &amp; t"));
    }

    #[test]
    fn a_missing_figure_says_why() {
        let figure = Figure::absent("f", "T", "no <such> thing");
        assert_well_formed(&figure.html());
        assert!(figure.html().contains("no &lt;such&gt; thing") && !figure.is_drawn());
    }
}
