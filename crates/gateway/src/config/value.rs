//! Typed values out of a section, with every fault noted and every unknown key found.

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use zeroize::Zeroizing;

use super::problem::{Origin, Problem, nearest};
use super::schema::{self, Fate, Key};
use super::syntax::{Section, Setting};

/// Octets that must not be shown: no `Debug`, zeroed when dropped.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes the octets over.
    pub fn new(octets: Vec<u8>) -> Self {
        Self(Zeroizing::new(octets))
    }

    /// The octets.
    pub fn octets(&self) -> &[u8] {
        &self.0
    }

    /// Number of settings.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} secret bytes]", self.0.len())
    }
}

/// A value that cannot be read. The text is its expected form or what to write instead.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ValueError(String);

impl<T: Into<String>> From<T> for ValueError {
    fn from(expected: T) -> Self {
        Self(expected.into())
    }
}

/// Collector of all faults and warnings of a configuration.
#[derive(Default)]
pub(crate) struct Sink {
    problems: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<String>>,
}

impl Sink {
    pub(crate) fn push(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    pub(crate) fn warn(&self, warning: String) {
        self.warnings.borrow_mut().push(warning);
    }

    pub(crate) fn take(&self) -> Vec<Problem> {
        self.problems.take()
    }

    pub(crate) fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    pub(crate) fn count(&self) -> usize {
        self.problems.borrow().len()
    }
}

/// A section that is being read. Keys that were requested are known; [`Fields::finish`] reports the
/// others.
pub(crate) struct Fields<'a> {
    section: &'a Section,
    /// Section that may contain the key instead.
    above: Option<&'a Fields<'a>>,
    path: String,
    asked: RefCell<Vec<&'static str>>,
    /// Every key that the section may have, when there is a table of them.
    table: &'static [Key],
    /// No line of the section is for a screen.
    secret: bool,
    sink: &'a Sink,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(section: &'a Section, path: String, sink: &'a Sink) -> Self {
        Self { section, above: None, path, asked: RefCell::default(), table: &[], secret: false, sink }
    }

    /// A section with the keys of `table`.
    pub(crate) fn of(section: &'a Section, path: String, table: &'static [Key], sink: &'a Sink) -> Self {
        Self { table, ..Self::new(section, path, sink) }
    }

    /// Likewise, and it holds secrets.
    pub(crate) fn secret(section: &'a Section, path: String, table: &'static [Key], sink: &'a Sink) -> Self {
        Self { secret: true, ..Self::of(section, path, table, sink) }
    }

    /// The subsection `name`; keys missing there are looked up here.
    pub(crate) fn below(&'a self, section: &'a Section) -> Self {
        let path = format!("{}.{}", self.path, section.name);
        Self { above: Some(self), ..Self::new(section, path, self.sink) }
    }

    pub(crate) fn section(&self) -> &'a Section {
        self.section
    }

    pub(crate) fn at(&self) -> &'a Origin {
        &self.section.at
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn sink(&self) -> &'a Sink {
        self.sink
    }

    /// Notes a fault of the section as a whole.
    pub(crate) fn fault(&self, message: impl fmt::Display, help: impl Into<String>) {
        self.push(Problem::at(self.at(), format!("{}: {message}", self.path)).help(help), "");
    }

    fn push(&self, problem: Problem, key: &str) {
        self.sink.push(if self.secret || is_secret(key) { problem.secret() } else { problem });
    }

    /// Records a hint about one of its keys.
    pub(crate) fn warn(&self, key: &'static str, message: impl fmt::Display) {
        let at = self.section.setting(key).map_or(self.at(), |setting| &setting.at);
        self.sink.warn(format!("{at}: {}.{key}: {message}", self.path));
    }

    /// Notes a fault of one of its keys; of the section when the key is absent.
    pub(crate) fn fault_of(&self, key: &'static str, message: impl fmt::Display, help: impl Into<String>) {
        match self.setting(key) {
            Some(setting) => {
                let message = format!("{}.{key}: {message}", self.path);
                self.push(Problem::at(&setting.value_at, message).help(help), key);
            }
            None => self.fault(message, help),
        }
    }

    /// The setting, here only.
    fn own(&self, key: &'static str) -> Option<&'a Setting> {
        debug_assert!(self.table.is_empty() || schema::find(self.table, key).is_some(), "{key} is not in the table");
        self.asked.borrow_mut().push(key);
        self.section.setting(key)
    }

    /// The setting, here or above.
    pub(crate) fn setting(&self, key: &'static str) -> Option<&'a Setting> {
        let above = self.above.and_then(|above| above.setting(key));
        self.own(key).or(above)
    }

    fn read<T>(
        &self,
        key: &'static str,
        setting: Option<&Setting>,
        parse: impl FnOnce(&str) -> Result<T, ValueError>,
    ) -> Option<T> {
        let setting = setting?;
        match parse(&setting.value) {
            Ok(value) => Some(value),
            Err(expected) => {
                let message = if self.secret || is_secret(key) {
                    format!("{}.{key}: invalid value", self.path)
                } else {
                    format!("{}.{key}: '{}' is invalid", self.path, *setting.value)
                };
                self.push(Problem::at(&setting.value_at, message).help(expected.0), key);
                None
            }
        }
    }

    /// Items of a list, each read by `parse`; `None` when the key is absent or an item is invalid.
    pub(crate) fn list<T>(&self, key: &'static str, parse: impl Fn(&str) -> Result<T, ValueError>) -> Option<Vec<T>> {
        let setting = self.own(key)?;
        let mut read = Vec::new();
        let before = self.sink.count();
        for item in items(setting) {
            let text = std::str::from_utf8(&item).map_err(|_| ValueError::from("write text"));
            match text.and_then(&parse) {
                Ok(value) => read.push(value),
                Err(expected) => {
                    let shown = String::from_utf8_lossy(&item);
                    let message = format!("{}.{key}: '{shown}' is invalid", self.path);
                    self.push(Problem::at(&setting.value_at, message).help(expected.0), key);
                }
            }
        }
        (self.sink.count() == before).then_some(read)
    }

    /// Reads a value from this section or the one above.
    pub(crate) fn get<T>(&self, key: &'static str, parse: impl FnOnce(&str) -> Result<T, ValueError>) -> Option<T> {
        self.read(key, self.setting(key), parse)
    }

    /// Reads a value from this section only.
    pub(crate) fn get_own<T>(&self, key: &'static str, parse: impl FnOnce(&str) -> Result<T, ValueError>) -> Option<T> {
        self.read(key, self.own(key), parse)
    }

    /// As [`Fields::get`]; its absence is a fault.
    pub(crate) fn need<T>(&self, key: &'static str, parse: impl FnOnce(&str) -> Result<T, ValueError>) -> Option<T> {
        self.check_there(key, self.setting(key).is_some());
        self.get(key, parse)
    }

    /// As [`Fields::get_own`]; its absence is a fault.
    pub(crate) fn need_own<T>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, ValueError>,
    ) -> Option<T> {
        self.check_there(key, self.own(key).is_some());
        self.get_own(key, parse)
    }

    fn check_there(&self, key: &'static str, there: bool) {
        if !there {
            self.fault(format!("'{key}' is missing"), format!("add '{key} = …' to this section"));
        }
    }

    /// Reports keys that were not requested, and sections other than `sections`. `elsewhere`
    /// returns the correct section of a key that is known but not valid here.
    pub(crate) fn finish(&self, sections: &[&str], elsewhere: impl Fn(&str) -> Option<String>) {
        let asked = self.asked.borrow();
        for setting in &self.section.settings {
            if asked.contains(&setting.name.as_str()) {
                continue;
            }
            if let Some(key) = schema::find(self.table, &setting.name) {
                self.unasked(key, setting, elsewhere(&setting.name));
                continue;
            }
            let table = self.table.iter().map(|key| key.name);
            let known = table.chain(asked.iter().copied()).chain(sections.iter().copied());
            let help = elsewhere(&setting.name).unwrap_or_else(|| suggestion(&setting.name, known));
            let message = format!("{}: unknown key '{}'", self.path, setting.name);
            self.push(Problem::at(&setting.at, message).help(help), &setting.name);
        }
        for section in &self.section.sections {
            if !sections.contains(&section.name.as_str()) {
                let message = format!("{}: unknown section '{}'", self.path, section.name);
                let known = sections.iter().chain(asked.iter()).copied().chain(self.table.iter().map(|key| key.name));
                let help = elsewhere(&section.name).unwrap_or_else(|| suggestion(&section.name, known));
                self.push(Problem::at(&section.at, message).help(help), "");
            }
        }
    }

    /// A key of the table that no reader wanted: it has no effect, or it is refused.
    fn unasked(&self, key: &Key, setting: &Setting, elsewhere: Option<String>) {
        let name = &setting.name;
        if let Err(expected) = key.kind.check(&setting.value) {
            let message = format!("{}.{name}: '{}' is invalid", self.path, *setting.value);
            return self.push(Problem::at(&setting.value_at, message).help(expected.0), name);
        }
        match key.fate {
            Fate::Honoured => {
                let message = format!("{}.{name} does not apply here", self.path);
                let help = elsewhere.unwrap_or_else(|| "remove it".into());
                self.push(Problem::at(&setting.at, message).help(help), name);
            }
            Fate::NoEffect(why) if !means(&setting.value, key.default) => {
                self.sink.warn(format!("{}: {}.{name} has no effect: {why}", setting.at, self.path));
            }
            Fate::Refused(fine, instead) if !fine.iter().any(|fine| means(&setting.value, fine)) => {
                let message = match fine {
                    [] => format!("{}.{name} is not supported", self.path),
                    _ => format!("{}.{name}: '{}' is not supported", self.path, *setting.value),
                };
                self.push(Problem::at(&setting.value_at, message).help(instead), name);
            }
            Fate::NoEffect(_) | Fate::Refused(..) => {}
        }
    }
}

pub(crate) fn suggestion<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    match nearest(word, known) {
        Some(name) => format!("did you mean '{name}'?"),
        None => "remove it; docs/configuration.md lists all keys".into(),
    }
}

/// Returns whether two spellings are one value.
fn means(text: &str, other: &str) -> bool {
    let switches = matches!((switch(text), switch(other)), (Ok(a), Ok(b)) if a == b);
    let any = number(0..=u64::MAX);
    switches || text.eq_ignore_ascii_case(other) || matches!((any(text), any(other)), (Ok(a), Ok(b)) if a == b)
}

/// Items of a list: those of a message, or the text between commas; `'…'` keeps commas.
pub(crate) fn items(setting: &Setting) -> Vec<Zeroizing<Vec<u8>>> {
    match &setting.items {
        Some(items) => items.clone(),
        None => {
            let mut parts = Vec::new();
            let mut rest = setting.value.trim_start();
            while !rest.is_empty() {
                let quoted = rest.strip_prefix('\'').and_then(|inner| inner.split_once('\''));
                let (item, tail) = quoted.unwrap_or_else(|| rest.split_at(rest.find(',').unwrap_or(rest.len())));
                parts.push(item.trim());
                rest = tail.split_once(',').map_or("", |(_, rest)| rest.trim_start());
            }
            parts.retain(|item| !item.is_empty());
            parts.into_iter().map(|item| Zeroizing::new(item.as_bytes().to_vec())).collect()
        }
    }
}

pub(crate) fn is_secret(key: &str) -> bool {
    key == "key" || key.ends_with("_key") || key.starts_with("master_key") || key.contains("secret") || key == "pin"
}

/// `yes` or `no`, in the spellings that strongSwan accepts.
pub(crate) fn switch(text: &str) -> Result<bool, ValueError> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "true" | "enabled" | "1" => Ok(true),
        "no" | "false" | "disabled" | "0" => Ok(false),
        _ => Err("write yes or no".into()),
    }
}

/// A number in C notation within `range`.
pub(crate) fn number(range: std::ops::RangeInclusive<u64>) -> impl Fn(&str) -> Result<u64, ValueError> {
    move |text| {
        let read = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(hex) => digits(hex, 16),
            None if text.len() > 1 && text.starts_with('0') => digits(text, 8),
            None => digits(text, 10),
        };
        read.filter(|n| range.contains(n)).ok_or_else(|| {
            let (low, high) = (range.start(), range.end());
            if *high > 0xffff {
                format!("write a number from {low:#x} to {high:#x}").into()
            } else {
                format!("write a number from {low} to {high}").into()
            }
        })
    }
}

/// Digits alone: no sign, which `from_str_radix` would take.
fn digits(text: &str, radix: u32) -> Option<u64> {
    text.chars().all(|c| c.is_digit(radix)).then(|| u64::from_str_radix(text, radix).ok())?
}

/// As [`number`], but `word` gives `None`.
pub(crate) fn word_or_number(
    word: &'static str,
    range: std::ops::RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<Option<u64>, ValueError> {
    let number = number(range);
    let either = move |error: ValueError| format!("{error}, or '{word}'").into();
    move |text| if text == word { Ok(None) } else { number(text).map(Some).map_err(either) }
}

/// Longest time, in seconds: a hundred years, so that sums of times and clocks stay in range.
const LONGEST_S: u64 = 36_500 * 86_400;

/// A number with a unit of time; seconds without.
pub(crate) fn duration(text: &str) -> Result<Duration, ValueError> {
    scaled(text, &[("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)])
        .filter(|seconds| *seconds <= LONGEST_S)
        .map(Duration::from_secs)
        .ok_or_else(|| "write a number with s, m, h or d, for example 8h, up to 36500d".into())
}

/// As [`duration`], but not zero.
pub(crate) fn time(text: &str) -> Result<Duration, ValueError> {
    duration(text).and_then(|time| {
        let zero = || "write a time that is not zero, or remove it for no limit".into();
        (!time.is_zero()).then_some(time).ok_or_else(zero)
    })
}

/// A number of bytes, with k, m or g for powers of 1024.
pub(crate) fn volume(text: &str) -> Result<u64, ValueError> {
    scaled(text, &[("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30)])
        .ok_or_else(|| "write a number of bytes, with k, m or g for powers of 1024, for example 4g".into())
}

/// As [`volume`], but not zero.
pub(crate) fn bytes(text: &str) -> Result<u64, ValueError> {
    volume(text).and_then(|bytes| {
        let zero = || "write a number of bytes that is not zero, or remove it for no limit".into();
        (bytes > 0).then_some(bytes).ok_or_else(zero)
    })
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let any = number(0..=u64::MAX);
    // The last digit of a hexadecimal number is not a unit.
    if let Ok(plain) = any(text) {
        return Some(plain);
    }
    let lower = text.to_ascii_lowercase();
    let (digits, factor) = units.iter().find_map(|(unit, factor)| Some((lower.strip_suffix(unit)?, *factor)))?;
    any(digits.trim_end()).ok()?.checked_mul(factor)
}

/// A number of bytes in the clear: a crypt offset of EESP or PSP.
pub(crate) fn offset(text: &str) -> Result<u8, ValueError> {
    match number(0..=252)(text) {
        Ok(n) if n % 4 == 0 => Ok(n as u8),
        _ => Err("write a multiple of 4 from 0 to 252".into()),
    }
}

/// A version of PSP; those that do not encrypt only with `gmac`.
pub(crate) fn psp_version(gmac: bool) -> impl Fn(&str) -> Result<u8, ValueError> {
    move |text| match number(0..=3)(text) {
        Ok(n) if n < 2 || gmac => Ok(n as u8),
        Ok(n) => {
            let permit = "'allow_psp_gmac = yes' in the section 'gateway'";
            Err(format!("version {n} does not encrypt; to permit it: {permit}").into())
        }
        Err(_) => Err("write 0 (AES-128-GCM) or 1 (AES-256-GCM); 2 and 3 are GMAC".into()),
    }
}

/// Octets as `0x…` or `0s…`.
pub(crate) fn octets(text: &str) -> Result<Secret, ValueError> {
    let decoded = match (text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")), text.strip_prefix("0s")) {
        (Some(hex), _) => from_hex(hex),
        (_, Some(base64)) => from_base64(base64),
        _ => None,
    };
    decoded.map(Secret::new).ok_or_else(|| "write 0x and an even number of hexadecimal digits, or 0s and base64".into())
}

pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let nibble = |c: u8| char::from(c).to_digit(16);
    let pairs = text.as_bytes();
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return None;
    }
    // Reserve the full size at once: a buffer that grows leaves copies of the key in freed memory.
    let mut octets = Vec::with_capacity(pairs.len() / 2);
    for pair in pairs.chunks_exact(2) {
        octets.push((nibble(pair[0])? << 4 | nibble(pair[1])?) as u8);
    }
    Some(octets)
}

/// Base64 of RFC 4648 §4, padding required.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let text = text.as_bytes();
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|c| **c == b'=').count();
    let body = &text[..text.len() - padding.min(2)];
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    for group in body.chunks(4) {
        let mut bits = 0u32;
        for c in group {
            bits = bits << 6 | u32::from(value(*c)?);
        }
        bits <<= 6 * (4 - group.len());
        let whole = group.len() * 6 / 8;
        // Bits beyond the last whole octet must be zero: one octet string, one spelling.
        if group.len() < 2 || bits & ((1 << (24 - 8 * whole)) - 1) != 0 {
            return None;
        }
        out.extend_from_slice(&bits.to_be_bytes()[1..=whole]);
    }
    Some(out)
}

/// One of some words.
pub(crate) fn word<T: Copy>(choices: &'static [(&'static str, T)]) -> impl Fn(&str) -> Result<T, ValueError> {
    move |text| {
        choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            format!("write one of: {}", names.join(", ")).into()
        })
    }
}

/// Parses any `FromStr` type; `expected` describes the syntax.
pub(crate) fn parsed<T: std::str::FromStr>(expected: &'static str) -> impl Fn(&str) -> Result<T, ValueError> {
    move |text| text.parse().map_err(|_| expected.into())
}

/// A comma-separated list.
pub(crate) fn list<T>(parse: impl Fn(&str) -> Result<T, ValueError>) -> impl Fn(&str) -> Result<Vec<T>, ValueError> {
    move |text| text.split(',').map(|item| parse(item.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_c_notation() {
        let any = number(0..=u64::MAX);
        assert_eq!((any("10"), any("0x1F"), any("010"), any("0")), (Ok(10), Ok(31), Ok(8), Ok(0)));
        assert!(
            any("-1").is_err() && any("+1").is_err() && any("08").is_err() && any("").is_err() && any("1 ").is_err()
        );
        assert!(number(256..=u64::from(u32::MAX))("255").is_err());
    }

    #[test]
    fn units_multiply() {
        assert_eq!(time("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!((bytes("4k"), bytes("1 G")), (Ok(4096), Ok(1 << 30)));
        assert!(time("h").is_err() && bytes("99999999999g").is_err() && bytes("0").is_err());
        assert_eq!((duration("0s"), duration("0"), volume("0")), (Ok(Duration::ZERO), Ok(Duration::ZERO), Ok(0)));
        assert_eq!(
            (duration("0x1d"), duration("2 D")),
            (Ok(Duration::from_secs(29)), Ok(Duration::from_secs(172_800)))
        );
        assert!(duration("36501d").is_err() && time("0s").is_err() && duration("1 h 2").is_err());
    }

    #[test]
    fn octets_are_hex_or_base64() {
        let read = |text: &str| octets(text).ok().map(|s| s.octets().to_vec());
        assert_eq!(read("0x00ff"), Some(vec![0, 255]));
        for (text, octets) in
            [("0sZg==", "f"), ("0sZm8=", "fo"), ("0sZm9v", "foo"), ("0sZm9vYg==", "foob"), ("0sZm9vYmFy", "foobar")]
        {
            assert_eq!(read(text), Some(octets.as_bytes().to_vec()), "{text}");
        }
        for bad in ["0x0", "0x", "0xgg", "00ff", "0s", "0sZg=", "0sZh==", "0s====", "0sZm9vYmE", "secret", "0sZm9=vYg="]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
