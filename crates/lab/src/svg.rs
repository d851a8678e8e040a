//! A drawing, as SVG within a page: shapes with classes that the page's style sheet colours.

use std::fmt::Write;

/// Anchor of a text at its `x`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing of a fixed size in its own units; the page scales it.
pub(crate) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    pub(crate) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str) {
        let (x, y, width, height) = (short(x), short(y), short(width.max(0.0)), short(height.max(0.0)));
        let _ = write!(self.body, r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" class="{class}"/>"#);
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let (x1, y1, x2, y2) = (short(from.0), short(from.1), short(to.0), short(to.1));
        let _ = write!(self.body, r#"<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{class}"/>"#);
    }

    pub(crate) fn circle(&mut self, x: f64, y: f64, radius: f64, class: &str) {
        let (x, y, radius) = (short(x), short(y), short(radius));
        let _ = write!(self.body, r#"<circle cx="{x}" cy="{y}" r="{radius}" class="{class}"/>"#);
    }

    /// A broken line; nothing for fewer than two points.
    pub(crate) fn polyline(&mut self, points: &[(f64, f64)], class: &str) {
        if points.len() < 2 {
            return;
        }
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{},{}", short(*x), short(*y))).collect();
        let _ = write!(self.body, r#"<polyline points="{}" class="{class}"/>"#, points.join(" "));
    }

    /// A filled shape; nothing for fewer than three points.
    pub(crate) fn polygon(&mut self, points: &[(f64, f64)], class: &str) {
        if points.len() < 3 {
            return;
        }
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{},{}", short(*x), short(*y))).collect();
        let _ = write!(self.body, r#"<polygon points="{}" class="{class}"/>"#, points.join(" "));
    }

    pub(crate) fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y, text) = (short(x), short(y), escape(text));
        let _ = write!(self.body, r#"<text x="{x}" y="{y}" text-anchor="{anchor}" class="{class}">{text}</text>"#);
    }

    /// The element. `title` is for screen readers.
    pub(crate) fn finish(self, title: &str) -> String {
        let (width, height, title) = (short(self.width), short(self.height), escape(title));
        format!(
            r#"<svg viewBox="0 0 {width} {height}" role="img" aria-label="{title}"><title>{title}</title>{}</svg>"#,
            self.body
        )
    }
}

/// A coordinate with two decimal places at most; NaN is drawn at 0.
fn short(value: f64) -> String {
    if !value.is_finite() {
        return "0".into();
    }
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text for HTML and SVG, also within quotes.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Checks that elements close in the order in which they open. Good enough for what we write.
#[cfg(test)]
pub(crate) fn assert_well_formed(html: &str) {
    const VOID: [&str; 2] = ["meta", "br"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>'), "a stray '>' in {:?}", &rest[..at]);
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes pair up in <{tag}>");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().expect("a name");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "</{name}> closes what is open");
        } else if !tag.ends_with('/') && !tag.starts_with('!') && !VOID.contains(&name) {
            open.push(name);
        }
        rest = &rest[end + 1..];
        if name == "style" && !tag.starts_with('/') {
            rest = &rest[rest.find("</style>").expect("a style sheet ends")..];
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    assert!(!html.contains("NaN") && !html.contains("inf\""), "a number is none");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_is_well_formed() {
        let mut svg = Svg::new(400.0, 100.0);
        svg.rect(0.0, 1.005, 10.0, -3.0, "a");
        svg.line((0.0, f64::NAN), (1.0, 2.0), "b");
        svg.circle(1.0, 1.0, 2.0, "c");
        svg.polyline(&[(0.0, 0.0)], "d");
        svg.polyline(&[(0.0, 0.0), (1.5, 1.25)], "d");
        svg.polygon(&[(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)], "d");
        svg.text(0.0, 0.0, Anchor::Middle, "e", "a < b & \"c\"");
        let text = svg.finish("it's a <title>");
        assert_well_formed(&text);
        assert_eq!(text.matches("<polyline").count(), 1);
        assert!(text.contains(r#"points="0,0 1.5,1.25""#) && text.contains("a &lt; b &amp; &quot;c&quot;"));
        assert!(text.contains(r#"height="0""#), "{text}");
    }

    #[test]
    #[should_panic(expected = "closes what is open")]
    fn the_check_can_fail() {
        assert_well_formed("<g><text></g></text>");
    }
}
