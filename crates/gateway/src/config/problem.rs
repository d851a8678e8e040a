//! Configuration problems: error, location and remedy.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{Diagnostic, LabeledSpan, MietteError, MietteSpanContents, SourceCode, SourceSpan, SpanContents};
use zeroize::Zeroizing;

/// One file of a configuration, kept for messages. Its text may hold keys, so it is zeroed.
pub struct SourceFile {
    /// The name as a person wrote it.
    pub name: String,
    /// Contents.
    pub text: Zeroizing<String>,
}

/// Characters of a line that are quoted: with number and frame they fit a terminal of 80 columns.
const QUOTED_MAX: usize = 72;
/// Characters before the fault where a longer line is cut.
const QUOTED_BEFORE: usize = 24;

impl SourceFile {
    /// The bytes to quote for a fault: its line, cut to [`QUOTED_MAX`] characters around the fault;
    /// of a line that may hold a secret the fault alone.
    fn quoted(&self, span: Range<usize>) -> Range<usize> {
        let text = self.text.as_str();
        let (Some(before), Some(after)) = (text.get(..span.start), text.get(span.end..)) else { return span };
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let end = span.end + after.find('\n').unwrap_or(after.len());
        let line = &text[start..end];
        if line.to_ascii_lowercase().contains("secret") {
            return span;
        }
        let end = start + line.trim_end().len().max(span.end - start);
        if text[start..end].chars().count() <= QUOTED_MAX {
            return start..end;
        }
        let left = text[start..span.start].char_indices().rev().nth(QUOTED_BEFORE).map_or(start, |(at, _)| start + at);
        let right = text[left..end].char_indices().nth(QUOTED_MAX).map_or(end, |(at, _)| left + at);
        left..right.max(span.end)
    }
}

impl SourceCode for SourceFile {
    /// If the span has lines of context, only its own line is shown: adjacent lines may contain
    /// keys.
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        before: usize,
        _after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let own = span.offset()..span.offset() + span.len();
        let shown = if before == 0 { own } else { self.quoted(own) };
        let part = self.text.as_str().read_span(&SourceSpan::from((shown.start, shown.len())), 0, 0)?;
        Ok(Box::new(MietteSpanContents::new_named(
            self.name.clone(),
            part.data(),
            *part.span(),
            part.line(),
            part.column(),
            part.line_count(),
        )))
    }
}

/// A place in a file.
#[derive(Clone)]
pub struct Origin {
    /// The file.
    pub file: Arc<SourceFile>,
    /// Bytes in its text.
    pub span: Range<usize>,
}

impl Origin {
    /// Line and column, both from 1; the column counts characters.
    pub fn line_column(&self) -> (usize, usize) {
        let before = self.file.text.get(..self.span.start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    /// The place in a message, of which only the name of its sender is known.
    pub fn message(name: &str) -> Self {
        Self { file: Arc::new(SourceFile { name: name.into(), text: Zeroizing::default() }), span: 0..0 }
    }

    /// Returns whether one of its lines may contain a key: then it is not for a screen.
    fn shows_key(&self) -> bool {
        let text = self.file.text.as_str();
        let start = text.get(..self.span.start).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
        let end =
            text.get(self.span.end..).and_then(|after| after.find('\n')).map_or(text.len(), |n| self.span.end + n);
        text.get(start..end).is_some_and(may_hold_key)
    }
}

/// Returns whether there is a word in `text` as long as octets of a key: those of the shortest, 8,
/// with their prefix, or more without one.
pub(crate) fn may_hold_key(text: &str) -> bool {
    let is_octet = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/');
    text.split(|c| !is_octet(c)).any(|word| match word.as_bytes() {
        [b'0', b'x' | b'X', octets @ ..] => octets.len() >= 16,
        [b'0', b's', octets @ ..] => octets.len() >= 10,
        word => word.len() >= 24 && word.iter().any(u8::is_ascii_digit),
    })
}

impl fmt::Display for Origin {
    /// `FILE:LINE:COLUMN`; only the name if it has no lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.file.text.is_empty() {
            return f.write_str(&self.file.name);
        }
        let (line, column) = self.line_column();
        write!(f, "{}:{line}:{column}", self.file.name)
    }
}

/// One thing that is wrong.
pub struct Problem {
    at: Option<Origin>,
    message: String,
    help: Option<String>,
    quoted: bool,
}

impl Problem {
    /// A problem at a place; the line is shown with it.
    pub fn at(at: &Origin, message: impl Into<String>) -> Self {
        Self { at: Some(at.clone()), message: message.into(), help: None, quoted: true }
    }

    /// A problem of the file as a whole, or of no file.
    pub fn whole(message: impl Into<String>) -> Self {
        Self { at: None, message: message.into(), help: None, quoted: false }
    }

    /// Description of the fault.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Location: file, line and column, if known.
    pub fn place(&self) -> Option<(&str, usize, usize)> {
        let at = self.at.as_ref()?;
        let (line, column) = at.line_column();
        Some((&at.file.name, line, column))
    }

    /// Sort key: position in the file.
    pub(crate) fn order(&self) -> Option<(String, usize)> {
        self.at.as_ref().map(|at| (at.file.name.clone(), at.span.start))
    }

    /// Correction, if any.
    pub fn remedy(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// Adds the correction.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Names the place but does not show the line: it holds a key.
    #[must_use]
    pub fn secret(mut self) -> Self {
        self.quoted = false;
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Some(at) => write!(f, "{at}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl fmt::Debug for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Problem {}

impl Diagnostic for Problem {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        let at = self.at.as_ref().filter(|at| self.quoted && !at.file.text.is_empty() && !at.shows_key())?;
        Some(at.file.as_ref())
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let at = self.at.as_ref().filter(|at| self.quoted && !at.file.text.is_empty() && !at.shows_key())?;
        let span = (at.span.start, at.span.len());
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(None, span))))
    }
}

/// Everything that is wrong with a configuration; never empty.
#[derive(Debug)]
pub struct Problems(pub Vec<Problem>);

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl fmt::Display for Problems {
    /// One line per problem, with its remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
            if let Some(help) = &problem.help {
                write!(f, " ({help})")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

impl Problems {
    /// Writes them for a person, with the lines they are about, see [`SourceFile`].
    pub fn render(&self, colour: bool) -> String {
        let theme = if colour { miette::GraphicalTheme::unicode() } else { miette::GraphicalTheme::unicode_nocolor() };
        let handler = miette::GraphicalReportHandler::new_themed(theme)
            .with_context_lines(1)
            .with_links(false)
            .with_width(100)
            .with_wrap_lines(false);
        let mut text = String::new();
        for problem in &self.0 {
            if handler.render_report(&mut text, problem).is_err() {
                text.push_str(&format!("{problem}\n"));
            }
        }
        text
    }
}

/// Returns the name of `known` closest to `word`, if it is close enough for a typing error.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Nothing here has a long name; comparing takes the product of both lengths.
    let reach = (word.len() <= 64).then(|| 1 + word.chars().count() / 3)?;
    known
        .into_iter()
        .map(|name| (strsim::levenshtein(word, name), name))
        .filter(|(distance, _)| *distance <= reach)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_by_line_and_column() {
        let file = Arc::new(SourceFile { name: "a.conf".into(), text: Zeroizing::new("x\n  ä = y".into()) });
        let at = Origin { file, span: 7..8 };
        assert_eq!(at.to_string(), "a.conf:2:5");
    }

    #[test]
    fn suggestions_are_close_or_absent() {
        assert_eq!(nearest("reply_window", ["replay_window", "suite"]), Some("replay_window"));
        assert_eq!(nearest("colour", ["replay_window", "suite"]), None);
    }

    #[test]
    fn a_line_with_a_key_is_not_shown() {
        let file = Arc::new(SourceFile { name: "a.conf".into(), text: Zeroizing::new("key = 0xsecret".into()) });
        let at = Origin { file, span: 6..14 };
        let shown = Problems::from(Problem::at(&at, "not octets")).render(false);
        let hidden = Problems::from(Problem::at(&at, "not octets").secret()).render(false);
        assert!(shown.contains("0xsecret") && shown.contains("a.conf:1:7"));
        assert!(!hidden.contains("0xsecret") && hidden.contains("a.conf:1:7"));
    }

    #[test]
    fn the_whole_line_is_quoted_and_nothing_around_it() {
        let text = "before = 1\n    remotes_ts = 10.1.0.0/16 # office\nafter = 2";
        let file = Arc::new(SourceFile { name: "a.conf".into(), text: Zeroizing::new(text.into()) });
        let at = Origin { file, span: 15..25 };
        let shown = Problems::from(Problem::at(&at, "unknown key")).render(false);
        assert!(shown.contains("    remotes_ts = 10.1.0.0/16 # office") && shown.contains("a.conf:2:5"), "{shown}");
        assert!(!shown.contains("before") && !shown.contains("after"), "{shown}");
    }

    #[test]
    fn a_long_line_is_cut_around_the_fault() {
        let text = format!("a = {}fault{} end", "ä, ".repeat(60), ", y".repeat(60));
        let from = text.find("fault").expect("it is there");
        let file = Arc::new(SourceFile { name: "a.conf".into(), text: Zeroizing::new(text) });
        let shown = Problems::from(Problem::at(&Origin { file, span: from..from + 5 }, "wrong")).render(false);
        assert!(shown.contains("ä, fault, y") && !shown.contains("a = ") && !shown.contains("end"), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    }

    #[test]
    fn of_a_line_with_a_secret_the_fault_alone_is_quoted() {
        let text = "secrets { ike { secret = abc } } conections { }";
        let from = text.find("conections").expect("it is there");
        let file = Arc::new(SourceFile { name: "a.conf".into(), text: Zeroizing::new(text.into()) });
        let shown = Problems::from(Problem::at(&Origin { file, span: from..from + 10 }, "unknown")).render(false);
        assert!(shown.contains("conections") && !shown.contains("abc"), "{shown}");
    }

    #[test]
    fn what_looks_like_a_key_is_one() {
        for (line, key) in [
            ("kye = 0x0001020304050607", true),
            ("0sAAECAwQFBgc=", true),
            ("key 000102030405060708090a0b0c0d0e0f", true),
            ("suite = chacha20poly1305iiv", false),
            ("local = 2001:db8:1234:5678:9abc:def0:1234:5678", false),
            ("spi = 0x80000001", false),
        ] {
            assert_eq!(may_hold_key(line), key, "{line}");
        }
    }
}
