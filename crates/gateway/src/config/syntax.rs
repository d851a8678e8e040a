//! The grammar of strongSwan's settings files: sections, settings, references, includes.
//!
//! A file becomes a tree of [`Section`]s in which every name and value has its position. This
//! module does not interpret settings. Faults are collected, and parsing continues at the next
//! line.

use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{anyhow, bail};
use zeroize::Zeroizing;

use super::problem::{Origin, Problem, Problems, SourceFile, may_hold_key};
use super::value::is_secret;

/// Limit of nested includes, and of chained references.
const MAX_DEPTH: usize = 16;
/// Largest file, in bytes. A file with 10,000 SAs takes about 5 MB.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Sections and settings that references may copy, all together: sections that refer to each other
/// several times would otherwise multiply without end. Up to about 50 MB.
const MAX_COPIES: usize = 300_000;
/// Longest name, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// `name = value`.
#[derive(Clone)]
pub struct Setting {
    /// Name.
    pub name: String,
    /// Position of the name.
    pub at: Origin,
    /// Value, without comments and quotes. May be a key, so it is zeroed.
    pub value: Zeroizing<String>,
    /// Position of the value.
    pub value_at: Origin,
    /// Items of a list, or a binary value, which only a message can contain; `value` then shows
    /// them as text.
    pub items: Option<Vec<Zeroizing<Vec<u8>>>>,
}

/// `name { … }`, or a whole file.
#[derive(Clone)]
pub struct Section {
    /// Name; empty for a whole file.
    pub name: String,
    /// First position of the name.
    pub at: Origin,
    /// Settings in the order of the file, no name twice.
    pub settings: Vec<Setting>,
    /// Sections in the order of the file, no name twice.
    pub sections: Vec<Section>,
    /// Names of sections at the top that others refer to; known for a whole file.
    pub templates: Vec<String>,
    /// Warnings about valid but suspicious syntax, one line each; complete after the whole file.
    pub notes: Vec<String>,
    references: Vec<(String, Origin)>,
}

impl Section {
    /// A section with nothing in it.
    pub(crate) fn new(name: &str, at: Origin) -> Self {
        let (settings, sections) = (Vec::new(), Vec::new());
        let (templates, notes) = (Vec::new(), Vec::new());
        Self { name: name.into(), at, settings, sections, templates, notes, references: Vec::new() }
    }

    /// The subsection of that name.
    pub fn section(&self, name: &str) -> Option<&Self> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// The setting of that name.
    pub fn setting(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }

    fn enter(&mut self, name: &str, at: &Origin) -> &mut Self {
        let index = self.sections.iter().position(|section| section.name == name).unwrap_or_else(|| {
            self.sections.push(Self::new(name, at.clone()));
            self.sections.len() - 1
        });
        &mut self.sections[index]
    }

    /// Sets a value; returns the replaced one.
    fn set(&mut self, setting: Setting) -> Option<Setting> {
        match self.settings.iter_mut().find(|known| known.name == setting.name) {
            Some(known) => Some(std::mem::replace(known, setting)),
            None => {
                self.settings.push(setting);
                None
            }
        }
    }

    /// Adds what `under` has and `self` has not.
    fn underlay(&mut self, under: Self) {
        for setting in under.settings {
            if self.setting(&setting.name).is_none() {
                self.settings.push(setting);
            }
        }
        for section in under.sections {
            let at = section.at.clone();
            self.enter(&section.name.clone(), &at).underlay(section);
        }
    }

    /// Collects the references of this section and of those below.
    fn referred(&self, to: &mut Vec<String>) {
        for (path, _) in &self.references {
            to.push(path.split('.').next().unwrap_or_default().to_owned());
        }
        self.sections.iter().for_each(|section| section.referred(to));
    }

    /// Removes empty settings after they have unset an inherited value.
    fn drop_unset(&mut self) {
        self.settings.retain(|setting| !setting.value.is_empty());
        self.sections.iter_mut().for_each(Self::drop_unset);
    }
}

/// Reads a file, everything it includes, and resolves references.
///
/// # Errors
/// All that is wrong with the grammar; the file itself when it cannot be read.
pub fn read(path: &Path) -> Result<Section, Problems> {
    let file = load(path).map_err(|why| {
        let help = "name a readable text file, for example --config /etc/weir/weir.conf";
        Problems::from(Problem::whole(format!("cannot read {}: {why}", path.display())).help(help))
    })?;
    parse(file, path.parent().unwrap_or(Path::new(".")))
}

/// Parses `file`; its includes are relative to `folder`.
///
/// # Errors
/// As [`read`].
pub fn parse(file: SourceFile, folder: &Path) -> Result<Section, Problems> {
    if let Some(problem) = foreign_format(&file) {
        return Err(problem.into());
    }
    let file = Arc::new(file);
    let mut root = Section::new("", Origin { file: Arc::clone(&file), span: 0..0 });
    let (mut problems, mut notes) = (Vec::new(), Vec::new());
    Parser {
        file,
        folder,
        at: 0,
        depth: 0,
        secret: false,
        unbalanced: None,
        problems: &mut problems,
        notes: &mut notes,
    }
    .file(&mut root);
    let mut resolved =
        Resolver { root: &root, under_way: Vec::new(), depth: 0, copies: 0, problems: &mut problems }.resolve(&root);
    resolved.notes = notes;
    resolved.drop_unset();
    root.referred(&mut resolved.templates);
    if problems.is_empty() { Ok(resolved) } else { Err(Problems(problems)) }
}

/// Recognises formats that are often mistaken for this one; parsing them would give several errors
/// per line.
fn foreign_format(file: &SourceFile) -> Option<Problem> {
    let mut lines = file.text.lines().map(str::trim_end);
    let found = lines.find_map(|line| {
        let wireguard = matches!(line.trim(), "[Interface]" | "[Peer]");
        // A section of ipsec.conf begins a line and has no brace.
        let stroke =
            line == "config setup" || line.strip_prefix("conn ").is_some_and(|name| !name.contains(['{', '=', ':']));
        match (wireguard, stroke) {
            (true, _) => {
                Some(("a file of WireGuard", "IPsec has other keys: write connections as in docs/configuration.md"))
            }
            (_, true) => Some((
                "ipsec.conf, the old format of strongSwan",
                "write swanctl.conf: https://docs.strongswan.org/docs/latest/howtos/fromIpsecConf.html explains the migration",
            )),
            _ => None,
        }
    });
    found.map(|(what, help)| Problem::whole(format!("{}: this is {what}", file.name)).help(help))
}

fn load(path: &Path) -> anyhow::Result<SourceFile> {
    let file = std::fs::File::open(path)?;
    let size = file.metadata()?.len().min(MAX_FILE_BYTES);
    // Reserve the full size at once: a buffer that grows leaves copies of secrets in freed memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(size as usize + 1));
    // A device may claim no size and never end.
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        bail!("larger than the limit of {MAX_FILE_BYTES} bytes");
    }
    let text =
        std::str::from_utf8(&bytes).map_err(|error| anyhow!("byte {} is not UTF-8 text", error.valid_up_to()))?;
    // Editors of other systems begin a file with a byte order mark, which no message could show.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    Ok(SourceFile { name: path.display().to_string(), text: Zeroizing::new(text.to_owned()) })
}

/// Follows references.
struct Resolver<'a> {
    root: &'a Section,
    /// Resolution stack: each section is contained in, or referenced by, the one before it.
    under_way: Vec<&'a Section>,
    /// References followed to get here.
    depth: usize,
    /// Sections and settings copied so far.
    copies: usize,
    problems: &'a mut Vec<Problem>,
}

impl<'a> Resolver<'a> {
    /// `section` with the sections that it refers to.
    fn resolve(&mut self, section: &'a Section) -> Section {
        let mut result = Section::new(&section.name, section.at.clone());
        if self.depth > 0 {
            self.copies += 1 + section.settings.len();
        }
        self.under_way.push(section);
        result.settings = section.settings.clone();
        result.sections = section.sections.iter().map(|child| self.resolve(child)).collect();
        for (path, at) in &section.references {
            if self.problems.len() > 100 {
                break;
            }
            if let Some(target) = self.target(path, at) {
                self.depth += 1;
                result.underlay(self.resolve(target));
                self.depth -= 1;
            }
        }
        self.under_way.pop();
        result
    }

    /// The section that a reference names, when it may be copied.
    fn target(&mut self, path: &str, at: &Origin) -> Option<&'a Section> {
        let found = path.split('.').try_fold(self.root, |section, name| section.section(name));
        let (message, help) = match found {
            None => (
                format!("reference to the unknown section '{path}'"),
                "write the name from the top of the file, with dots: 'templates.NAME'",
            ),
            Some(target) if self.under_way.iter().any(|section| std::ptr::eq(*section, target)) => (
                format!("circular reference to '{path}'"),
                "a section cannot reference itself or a section that contains it; remove one reference",
            ),
            Some(_) if self.depth == MAX_DEPTH => (
                format!("the reference to '{path}' ends a chain of more than {MAX_DEPTH} references"),
                "reference the section that contains the settings",
            ),
            Some(_) if self.copies > MAX_COPIES => (
                format!("references copy more than {MAX_COPIES} settings, the one to '{path}' among them"),
                "reference smaller sections, or sections without references",
            ),
            Some(target) => return Some(target),
        };
        self.problems.push(Problem::at(at, message).help(help));
        None
    }
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r')
}

fn is_name(c: char) -> bool {
    !c.is_whitespace() && !matches!(c, '#' | '{' | '}' | ':' | '.' | ',' | '=' | '"')
}

struct Parser<'a> {
    file: Arc<SourceFile>,
    folder: &'a Path,
    at: usize,
    depth: usize,
    /// Inside of `secrets`, where any word may be one.
    secret: bool,
    /// First section with a '}' further left than its name. If a '}' is missing, it is the one of
    /// this section.
    unbalanced: Option<Origin>,
    problems: &'a mut Vec<Problem>,
    notes: &'a mut Vec<String>,
}

impl Parser<'_> {
    /// Columns before the first character of the line with this byte.
    fn indentation(&self, at: usize) -> usize {
        let start = self.file.text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        self.file.text[start..].chars().take_while(|c| is_blank(*c)).count()
    }

    /// Returns whether nothing but blanks precedes this byte on its line.
    fn begins_line(&self, at: usize) -> bool {
        self.file.text[..at].rsplit('\n').next().is_some_and(|before| before.chars().all(is_blank))
    }

    /// Notes a section that occurs again in one file. At the top that is usual.
    fn note_again(&mut self, section: &Section, name: &str, at: &Origin) {
        let again = section.section(name).filter(|_| self.depth > 0);
        if let Some(first) = again.filter(|first| Arc::ptr_eq(&first.at.file, &at.file)) {
            self.notes.push(format!("{at}: section '{name}' occurs again; it is merged with the one at {}", first.at));
        }
    }

    fn peek(&self) -> Option<char> {
        self.file.text[self.at..].chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn skip(&mut self, mut wanted: impl FnMut(char) -> bool) {
        while self.peek().is_some_and(&mut wanted) {
            self.bump();
        }
    }

    /// Blanks, line ends and comments.
    fn skip_space(&mut self) {
        loop {
            self.skip(char::is_whitespace);
            if self.peek() != Some('#') {
                return;
            }
            self.skip(|c| c != '\n');
        }
    }

    fn origin(&self, span: Range<usize>) -> Origin {
        Origin { file: Arc::clone(&self.file), span }
    }

    /// Records an error at `span` and skips to the end of the line.
    fn fault(&mut self, span: Range<usize>, message: impl Into<String>, help: &str) {
        let at = self.origin(span);
        self.note(&at, message, help);
        self.skip(|c| c != '\n');
    }

    /// Notes a fault.
    fn note(&mut self, at: &Origin, message: impl Into<String>, help: impl Into<String>) {
        let problem = Problem::at(at, message).help(help);
        self.problems.push(if self.secret { problem.secret() } else { problem });
    }

    /// A name for an error. Half a line that lost its `key =` is read as a name.
    fn shown<'n>(&self, name: &'n str) -> &'n str {
        if self.secret || may_hold_key(name) { "…" } else { name }
    }

    fn file(&mut self, root: &mut Section) {
        loop {
            self.body(root);
            if self.peek().is_none() {
                return;
            }
            self.fault(self.at..self.at + 1, "unmatched '}'", "remove it, or add the missing '{' above");
        }
    }

    /// Statements up to `}` (not taken) or the end of the file.
    fn body(&mut self, section: &mut Section) {
        loop {
            self.skip_space();
            match self.peek() {
                None | Some('}') => return,
                Some(c) if is_name(c) => self.statement(section),
                Some(c) => {
                    let span = self.at..self.at + c.len_utf8();
                    self.fault(span, format!("'{c}' cannot start a name"), "write 'name = value' or 'name { … }'");
                }
            }
        }
    }

    fn name(&mut self) -> (String, Range<usize>) {
        let start = self.at;
        self.skip(is_name);
        (self.file.text[start..self.at].to_owned(), start..self.at)
    }

    fn statement(&mut self, section: &mut Section) {
        let (name, span) = self.name();
        if name.len() > MAX_NAME_BYTES {
            return self.fault(span, "name longer than 256 bytes", "shorten it");
        }
        let after_name = self.at;
        self.skip(is_blank);
        let next = self.peek();
        if name == "include" && after_name != self.at && !matches!(next, Some('=' | '{' | ':' | '\n') | None) {
            return self.include(section, span);
        }
        // The '=' or '{' after a name may be on a later line.
        let before = self.at;
        self.skip_space();
        let next = match self.peek() {
            Some('=' | ':' | '{') => self.peek(),
            _ => {
                self.at = before;
                next
            }
        };
        match next {
            Some('=') => {
                self.bump();
                self.setting(section, name, span);
            }
            Some(':') => {
                self.bump();
                let at = self.origin(span);
                self.note_again(section, &name, &at);
                let references = self.references();
                let entered = section.enter(&name, &at);
                entered.references.extend(references);
                self.open(entered, &at);
            }
            Some('{') => {
                let at = self.origin(span);
                self.note_again(section, &name, &at);
                self.open(section.enter(&name, &at), &at);
            }
            Some('\n' | '#') => {
                let name = self.shown(&name);
                let help = format!("write '{name} = value' or '{name} {{ … }}'");
                self.note(&self.origin(span), format!("'{name}' has no value"), help);
            }
            _ => self.fault(
                span,
                format!("'{}' is followed by neither '=' nor '{{'", self.shown(&name)),
                "write 'name = value' or 'name { … }'; names have no dots, commas or quotes",
            ),
        }
    }

    /// Parses `{ … }` of the section with its name at `at`.
    fn open(&mut self, section: &mut Section, at: &Origin) {
        self.skip_space();
        if self.peek() != Some('{') {
            return self.fault(at.span.clone(), "section without '{'", "write 'name : reference { … }'");
        }
        self.bump();
        if self.depth == MAX_DEPTH {
            return self.fault(at.span.clone(), "sections are nested too deeply", "reduce the nesting");
        }
        self.depth += 1;
        let outside = self.secret;
        self.secret |= section.name == "secrets";
        self.body(section);
        self.secret = outside;
        self.depth -= 1;
        let brace = self.at;
        if self.bump().is_none() {
            let at = self.unbalanced.take().unwrap_or_else(|| at.clone());
            self.problems.push(Problem::at(&at, "section is not closed").help("add the missing '}'"));
        } else if self.unbalanced.is_none()
            && self.begins_line(brace)
            && self.indentation(brace) < self.indentation(at.span.start)
        {
            self.unbalanced = Some(at.clone());
        }
    }

    fn references(&mut self) -> Vec<(String, Origin)> {
        let mut references = Vec::new();
        loop {
            self.skip_space();
            let start = self.at;
            self.skip(|c| is_name(c) || c == '.');
            if start != self.at {
                references.push((self.file.text[start..self.at].to_owned(), self.origin(start..self.at)));
            }
            self.skip_space();
            if self.peek() != Some(',') {
                return references;
            }
            self.bump();
        }
    }

    fn setting(&mut self, section: &mut Section, name: String, span: Range<usize>) {
        self.skip(is_blank);
        let (value, value_span) = self.value();
        let at = self.origin(span.clone());
        // An empty value has no position.
        let value_at = self.origin(if value_span.is_empty() { span } else { value_span });
        let secret = self.secret || is_secret(&name);
        if secret && self.peek() == Some('#') && !value.is_empty() && !self.file.text[..self.at].ends_with(is_blank) {
            self.notes
                .push(format!("{at}: '#' begins a comment, so the value ends before it; write it in double quotes"));
        }
        let again = section.set(Setting { name: name.clone(), at: at.clone(), value, value_at, items: None });
        if let Some(first) = again.filter(|first| Arc::ptr_eq(&first.at.file, &at.file)) {
            self.notes.push(format!("{at}: '{name}' is set twice; the value at {} has no effect", first.at));
        }
    }

    /// Words and quotes up to the end of the line, `#` or `}`, joined by single blanks.
    fn value(&mut self) -> (Zeroizing<String>, Range<usize>) {
        // Reserve the whole line at once: a buffer that grows leaves copies of the key in freed
        // memory.
        let room = self.file.text[self.at..].find('\n').unwrap_or(self.file.text.len() - self.at);
        let mut value = Zeroizing::new(String::with_capacity(room));
        let start = self.at;
        let mut end = start;
        let mut parts = 0;
        while let Some(c) = self.peek() {
            match c {
                '\n' | '#' | '}' => break,
                c if is_blank(c) => {
                    self.bump();
                    continue;
                }
                _ if parts > 0 => value.push(' '),
                _ => {}
            }
            parts += 1;
            if c == '"' {
                self.quoted(&mut value);
            } else {
                let word = self.at;
                self.skip(|c| !is_blank(c) && !matches!(c, '\n' | '#' | '}' | '"'));
                value.push_str(&self.file.text[word..self.at]);
            }
            end = self.at;
        }
        (value, start..end)
    }

    fn quoted(&mut self, value: &mut String) {
        let start = self.at;
        self.bump();
        while let Some(c) = self.bump() {
            match c {
                '"' => return,
                '\\' => match self.bump() {
                    Some('n') => value.push('\n'),
                    Some('r') => value.push('\r'),
                    Some('t') => value.push('\t'),
                    Some('\r') if self.peek() == Some('\n') => {
                        self.bump();
                    }
                    Some('\n') | None => {}
                    Some(other) => value.push(other),
                },
                '\r' => {}
                c => value.push(c),
            }
        }
        let at = self.origin(start..start + 1);
        self.note(&at, "quote is not closed", "add the missing '\"'");
    }

    fn include(&mut self, section: &mut Section, keyword: Range<usize>) {
        let (pattern, span) = self.value();
        let at = self.origin(span.clone());
        let found = glob(self.folder, &pattern);
        let wild = pattern.contains(['*', '?', '[']);
        if found.is_empty() && !wild {
            let help = "names are relative to the file with the include; use a wildcard for what may be absent";
            return self.fault(span, format!("there is no file '{}' to include", *pattern), help);
        }
        if self.depth == MAX_DEPTH {
            return self.fault(keyword, "includes are nested too deeply", "check for a file that includes itself");
        }
        for path in found {
            match load(&path) {
                Ok(file) => {
                    let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
                    let (file, depth) = (Arc::new(file), self.depth + 1);
                    let (problems, notes) = (&mut *self.problems, &mut *self.notes);
                    let secret = self.secret;
                    Parser { file, folder: &folder, at: 0, depth, secret, unbalanced: None, problems, notes }
                        .file(section);
                }
                Err(why) => {
                    let message = format!("cannot include {}: {why}", path.display());
                    self.problems.push(Problem::at(&at, message).help("make the file readable, or remove the include"));
                }
            }
        }
    }
}

/// Files that match `pattern`, sorted.
fn glob(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let start = if pattern.starts_with('/') { PathBuf::from("/") } else { folder.to_owned() };
    let mut found = vec![start];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        found = found.iter().flat_map(|base| expand(base, part)).collect();
    }
    found.retain(|path| path.is_file());
    found.sort();
    found
}

fn expand(base: &Path, part: &str) -> Vec<PathBuf> {
    if !part.contains(['*', '?', '[']) {
        return vec![base.join(part)];
    }
    let base = if base.as_os_str().is_empty() { Path::new(".") } else { base };
    let Ok(entries) = std::fs::read_dir(base) else { return Vec::new() };
    let pattern: Vec<char> = part.chars().collect();
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.') || part.starts_with('.'))
        .filter(|name| matches(&pattern, &name.chars().collect::<Vec<_>>()))
        .map(|name| base.join(name))
        .collect()
}

/// Returns whether a file name matches a pattern of `*`, `?`, `[a-z]`, `[!x]`.
fn matches(pattern: &[char], name: &[char]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some(('*', rest)), _) => {
            matches(rest, name) || name.split_first().is_some_and(|(_, tail)| matches(pattern, tail))
        }
        (Some(('?', rest)), Some((_, tail))) => matches(rest, tail),
        (Some(('[', rest)), Some((c, tail))) => match rest.iter().skip(1).position(|c| *c == ']') {
            Some(close) => in_set(&rest[..=close], *c) && matches(&rest[close + 2..], tail),
            None => *c == '[' && matches(rest, tail),
        },
        (Some((p, rest)), Some((c, tail))) => p == c && matches(rest, tail),
        _ => false,
    }
}

fn in_set(set: &[char], c: char) -> bool {
    let (set, wanted) = match set {
        ['!' | '^', rest @ ..] => (rest, false),
        _ => (set, true),
    };
    let ranged = set.windows(3).any(|w| w[1] == '-' && (w[0]..=w[2]).contains(&c));
    (ranged || set.contains(&c)) == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Result<Section, Problems> {
        let file = SourceFile { name: "test.conf".into(), text: Zeroizing::new(text.into()) };
        parse(file, Path::new("."))
    }

    fn value(section: &Section, path: &str) -> Option<String> {
        let (sections, key) = path.rsplit_once('.').unwrap_or(("", path));
        let holder = sections.split('.').filter(|s| !s.is_empty()).try_fold(section, |s, name| s.section(name))?;
        holder.setting(key).map(|setting| setting.value.to_string())
    }

    #[test]
    fn values_end_where_the_grammar_says() {
        let root = text(
            "a = one  two\t three # no\nb=\"x # } y\\n\\\"z\\\"\" tail\nc { d = 1 } e = 2\nf = a=b, c\ng\n{\nh = 1\n}\nk = pre\"x y\"post",
        )
        .unwrap();
        assert_eq!(value(&root, "a").unwrap(), "one two three");
        assert_eq!(value(&root, "b").unwrap(), "x # } y\n\"z\" tail");
        assert_eq!(value(&root, "c.d").unwrap(), "1");
        assert_eq!(value(&root, "e").unwrap(), "2");
        assert_eq!(value(&root, "f").unwrap(), "a=b, c");
        assert_eq!(value(&root, "g.h").unwrap(), "1");
        assert_eq!(value(&root, "k").unwrap(), "pre x y post");
    }

    #[test]
    fn lines_may_end_as_on_other_systems_and_names_before_what_follows() {
        let root = text("a\n = 1\r\nb = \"x\\\r\ny\r\nz\"\r\ns # why\n : t\n{ }\nt { c = 2 }").unwrap();
        assert_eq!(value(&root, "a").unwrap(), "1");
        assert_eq!(value(&root, "b").unwrap(), "xy\nz");
        assert_eq!(value(&root, "s.c").unwrap(), "2");
        assert_eq!(root.templates, ["t"]);
    }

    #[test]
    fn repeated_sections_merge_and_the_last_key_wins() {
        let root = text("s { a = 1\n b = 1 }\nt { }\ns { b = 2\n c { d = 3 } }").unwrap();
        assert_eq!(value(&root, "s.a").unwrap(), "1");
        assert_eq!(value(&root, "s.b").unwrap(), "2");
        assert_eq!(value(&root, "s.c.d").unwrap(), "3");
        assert_eq!(root.sections.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["s", "t"]);
    }

    #[test]
    fn references_lie_underneath_in_their_order() {
        let root = text(
            "base { x = base\n y = base\n z = base\n sub { p = base\n q = base } }\nother { y = other\n w = other }\n\
             mine : other, base { z =\n sub { q = mine } }\nagain : mine { }",
        )
        .unwrap();
        assert_eq!(value(&root, "mine.x").unwrap(), "base");
        assert_eq!(value(&root, "mine.y").unwrap(), "other");
        assert_eq!(value(&root, "mine.z"), None);
        assert_eq!(value(&root, "mine.sub.q").unwrap(), "mine");
        assert_eq!(value(&root, "mine.sub.p").unwrap(), "base");
        assert_eq!(value(&root, "again.w").unwrap(), "other");
    }

    #[test]
    fn every_fault_names_its_place() {
        for (input, place, words) in [
            ("a = 1\nb\nc = 2", "test.conf:2:1", "has no value"),
            ("s {\n a = 1\n", "test.conf:1:1", "not closed"),
            ("a = 1\n}\n", "test.conf:2:1", "unmatched '}'"),
            ("a = \"x", "test.conf:1:5", "quote"),
            ("= 1", "test.conf:1:1", "cannot start a name"),
            ("a.b = 1", "test.conf:1:1", "neither"),
            ("s : nowhere { }", "test.conf:1:5", "unknown section 'nowhere'"),
            ("s : s { }", "test.conf:1:5", "circular"),
            ("include nothing.conf", "test.conf:1:9", "no file"),
            ("s : \n x = 1", "test.conf:1:1", "without '{'"),
        ] {
            let problems = text(input).err().unwrap_or_else(|| panic!("{input:?} is accepted"));
            let message = problems.to_string();
            assert!(message.contains(place) && message.contains(words), "{input:?}: {message}");
        }
    }

    #[test]
    fn references_do_not_multiply_without_end() {
        // Eight copies of eight copies of …: a few hundred bytes that would be 8^12 sections.
        let children = |i: usize| (0..8).map(|c| format!("c{c} : s{i} {{ }}\n")).collect::<String>();
        let input: String = (0..12).map(|i| format!("s{} {{ a = 1\n{} }}\n", i + 1, children(i))).collect();
        let message = text(&format!("s0 {{ a = 1 }}\n{input}")).err().unwrap().to_string();
        assert!(message.contains("references copy more than 300000 settings"), "{message}");
        // Found by fuzzing: a section that contains references to itself.
        let itself = "t { w { p\n v : t.w { w { p\n v : t.w { a b { } c : t.w { } } } } } }";
        let message = text(itself).err().unwrap().to_string();
        assert!(message.contains("circular reference to 't.w'"), "{message}");
    }

    #[test]
    fn reading_goes_on_after_a_fault() {
        let problems = text("a\nb = 1\n.x\nc\n").err().unwrap();
        assert_eq!(problems.0.len(), 3);
    }

    #[test]
    fn includes_are_relative_and_go_where_they_stand() {
        let folder = std::env::temp_dir().join(format!("weir-syntax-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("d")).unwrap();
        std::fs::write(folder.join("main.conf"), "s { include d/*.conf }\ninclude d/none*.conf\n").unwrap();
        std::fs::write(folder.join("d/1.conf"), "a = 1\nb = 1").unwrap();
        std::fs::write(folder.join("d/2.conf"), "b = 2\n").unwrap();
        let root = read(&folder.join("main.conf"));
        std::fs::write(folder.join("loop.conf"), "include loop.conf").unwrap();
        let endless = read(&folder.join("loop.conf"));
        std::fs::remove_dir_all(&folder).unwrap();
        let root = root.unwrap();
        assert_eq!((value(&root, "s.a").unwrap(), value(&root, "s.b").unwrap()), ("1".into(), "2".into()));
        assert!(endless.err().unwrap().to_string().contains("too deeply"));
    }

    #[test]
    fn globs_match_like_a_shell() {
        let check = |pattern: &str, name: &str| {
            matches(&pattern.chars().collect::<Vec<_>>(), &name.chars().collect::<Vec<_>>())
        };
        assert!(check("*.conf", "a.conf") && !check("*.conf", "a.con") && check("a?c", "abc") && check("[a-c]x", "bx"));
        assert!(check("[!a]x", "bx") && !check("[!a]x", "ax") && check("**", "") && !check("?", ""));
    }

    proptest::proptest! {
        #[test]
        fn no_input_panics(input in "[a-c ={}#\":.,\\\\\n\tä]{0,60}") {
            let _ = text(&input);
        }
    }
}
