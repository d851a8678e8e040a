//! The file that describes a campaign: TOML, read once, with errors that name the line and say what to write instead.

use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::subject::{Subject, nearest};
use super::{Campaign, Kind, Place, Study};
use crate::trial::Direction;

/// Most trials of a campaign: two weeks of the shortest ones.
const MAX_TRIALS: u64 = 10_000_000;

/// What is wrong with a campaign.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct CampaignError {
    /// The file as its user calls it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong and what to write instead.
    pub what: String,
}

/// Reads a campaign. `file` is its name in errors.
///
/// # Errors
/// The first thing that is wrong, with its line.
pub fn parse(file: &str, text: &str) -> Result<Campaign, CampaignError> {
    let source = Source { file, text };
    let root = DeTable::parse(text)
        .map_err(|error| source.error(error.span().unwrap_or(0..0), first_line(error.message())))?;
    let table = Keys::new(source, root.get_ref(), 0..0, "a campaign", &["name", "title", "seed", "study"])?;
    let name = table.required("name", word)?;
    let title = table.or("title", String::new(), |value| text_of(value).map(str::to_owned))?;
    let seed = table.or("seed", 1, |value| whole(value, 0, i64::MAX as u64))?;
    let mut studies: Vec<Study> = Vec::new();
    for entry in table.tables("study")? {
        let (study, at) = read_study(source, entry)?;
        if studies.iter().any(|other| other.name == study.name) {
            return Err(source.error(at, format!("study '{}' is there twice; give each a name of its own", study.name)));
        }
        studies.push(study);
    }
    let campaign = Campaign { name, title, seed, studies };
    match campaign.trials() {
        0 => Err(source.error(0..0, "this campaign has no trial; add a [[study]] with subjects and traffic".into())),
        trials if trials > MAX_TRIALS => {
            Err(source.error(0..0, format!("{trials} trials; at most {MAX_TRIALS}: fewer rounds, sessions or sizes")))
        }
        _ => Ok(campaign),
    }
}

const STUDY_KEYS: [&str; 15] = [
    "name",
    "kind",
    "place",
    "subjects",
    "traffic",
    "directions",
    "sessions",
    "rounds",
    "duration_ms",
    "flows",
    "loads",
    "replay",
    "sas",
    "cores",
    "batch",
];

fn read_study(source: Source<'_>, entry: &Spanned<DeValue<'_>>) -> Result<(Study, Range<usize>), CampaignError> {
    let table = match entry.get_ref() {
        DeValue::Table(table) => table,
        other => {
            return Err(source.error(entry.span(), format!("expected a table [[study]], found {}", name_of(other))));
        }
    };
    let keys = Keys::new(source, table, entry.span(), "a study", &STUDY_KEYS)?;
    let kind = keys.required("kind", |value| one_of(value, &Kind::ALL))?;
    let subjects = keys.required("subjects", |value| list(value, subject))?;
    let directions = [("out", Direction::Out), ("in", Direction::In), ("both", Direction::Both)];
    let places = [("memory", Place::Memory), ("namespaces", Place::Namespaces)];
    let counts = |most: u64| move |value: &DeValue<'_>| list(value, |v| whole(v, 0, most).map(|n| n as u32));
    let study = Study {
        name: keys.or("name", kind.name().to_owned(), word)?,
        kind,
        place: keys.or("place", Place::Memory, |value| one_of(value, &places))?,
        subjects,
        traffic: keys.or("traffic", vec!["1400".into()], |value| list(value, traffic))?,
        directions: keys.or("directions", vec![Direction::Both], |value| list(value, |v| one_of(v, &directions)))?,
        sessions: keys.or("sessions", 5, |value| whole(value, 1, 1000))? as u32,
        rounds: keys.or("rounds", 5, |value| whole(value, 1, 1_000_000))? as u32,
        duration: Duration::from_millis(keys.or("duration_ms", 20, |value| whole(value, 1, 86_400_000))?),
        flows: keys.or("flows", 1, |value| whole(value, 1, 65_536))? as u32,
        loads: keys.or("loads", vec![], |value| list(value, |v| number(v, 0.001, 10.0)))?,
        replay: keys.or("replay", vec![1024], counts(65_536))?,
        sas: keys.or("sas", vec![1], |value| list(value, |v| whole(v, 1, 1_000_000).map(|n| n as u32)))?,
        cores: keys.or("cores", vec![1], |value| list(value, |v| whole(v, 1, 1024).map(|n| n as u32)))?,
        batch: keys.or("batch", 256, |value| whole(value, 1, 1024))? as u32,
    };
    Ok((study, entry.span()))
}

/// A text and its name, to say where something is wrong.
#[derive(Clone, Copy)]
struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn error(self, at: Range<usize>, what: String) -> CampaignError {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        CampaignError { file: self.file.to_owned(), line: before.matches('\n').count() + 1, what }
    }
}

/// A table whose keys are all known.
struct Keys<'a> {
    source: Source<'a>,
    table: &'a DeTable<'a>,
    at: Range<usize>,
    what: &'static str,
}

impl<'a> Keys<'a> {
    fn new(
        source: Source<'a>,
        table: &'a DeTable<'a>,
        at: Range<usize>,
        what: &'static str,
        known: &[&str],
    ) -> Result<Self, CampaignError> {
        let strange = table.iter().map(|(key, _)| key).find(|key| !known.contains(&key.get_ref().as_ref()));
        if let Some(key) = strange {
            let name = key.get_ref().as_ref();
            let hint = nearest(name, known.iter().copied())
                .map_or_else(|| format!("{what} has {}", known.join(", ")), |near| format!("did you mean '{near}'?"));
            return Err(source.error(key.span(), format!("unknown key '{name}'; {hint}")));
        }
        Ok(Self { source, table, at, what })
    }

    fn or<T>(
        &self,
        key: &str,
        default: T,
        read: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Result<T, CampaignError> {
        let Some(value) = self.table.get(key) else { return Ok(default) };
        read(value.get_ref()).map_err(|what| self.source.error(place(value, &what), format!("{key}: {what}")))
    }

    fn required<T>(&self, key: &str, read: impl Fn(&DeValue<'_>) -> Result<T, String>) -> Result<T, CampaignError> {
        if self.table.get(key).is_none() {
            return Err(self.source.error(self.at.clone(), format!("{} needs the key '{key}'", self.what)));
        }
        self.or(key, None, |value| read(value).map(Some)).map(|value| value.expect("it is there"))
    }

    fn tables(&self, key: &str) -> Result<&'a [Spanned<DeValue<'a>>], CampaignError> {
        let Some(value) = self.table.get(key) else { return Ok(&[]) };
        match value.get_ref() {
            DeValue::Array(array) => Ok(array),
            _ => {
                Err(self.source.error(value.span(), format!("write [[{key}]] with two brackets: there may be several")))
            }
        }
    }
}

/// Where in a value something is wrong: the element of a list that the message quotes, or the value itself.
fn place(value: &Spanned<DeValue<'_>>, what: &str) -> Range<usize> {
    let DeValue::Array(array) = value.get_ref() else { return value.span() };
    let quoted = |item: &&Spanned<DeValue<'_>>| {
        let text = item.get_ref().as_str().map_or_else(|| literal(item.get_ref()), str::to_owned);
        what.contains(&format!("'{text}'"))
    };
    array.iter().find(quoted).map_or_else(|| value.span(), Spanned::span)
}

fn literal(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(n) => n.as_str().to_owned(),
        DeValue::Float(n) => n.as_str().to_owned(),
        DeValue::Boolean(b) => b.to_string(),
        other => name_of(other).to_owned(),
    }
}

fn name_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or("not TOML").to_owned()
}

fn text_of<'a>(value: &'a DeValue<'_>) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| format!("expected a text in quotes, found {}", name_of(value)))
}

/// A name that can be part of a file name.
fn word(value: &DeValue<'_>) -> Result<String, String> {
    let text = text_of(value)?;
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.is_empty() || text.len() > 64 || !text.chars().all(good) || text.starts_with('.') {
        return Err(format!("'{text}' is no name; use up to 64 letters, digits, '-', '_' and '.'"));
    }
    Ok(text.to_owned())
}

fn whole(value: &DeValue<'_>, least: u64, most: u64) -> Result<u64, String> {
    let DeValue::Integer(n) = value else {
        return Err(format!("expected a whole number from {least} to {most}, found {}", name_of(value)));
    };
    let number = u64::from_str_radix(n.as_str(), n.radix()).ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| format!("'{}' is out of range; use {least} to {most}", n.as_str()))
}

fn number(value: &DeValue<'_>, least: f64, most: f64) -> Result<f64, String> {
    let text = match value {
        DeValue::Integer(n) => n.as_str(),
        DeValue::Float(n) => n.as_str(),
        other => return Err(format!("expected a number from {least} to {most}, found {}", name_of(other))),
    };
    let number = text.parse().ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| format!("'{text}' is out of range; use {least} to {most}"))
}

fn list<T>(value: &DeValue<'_>, read: impl Fn(&DeValue<'_>) -> Result<T, String>) -> Result<Vec<T>, String> {
    let array = value.as_array().ok_or_else(|| format!("expected a list in brackets, found {}", name_of(value)))?;
    if array.is_empty() {
        return Err("the list is empty: leave the key out, or name something".into());
    }
    array.iter().map(|item| read(item.get_ref())).collect()
}

fn one_of<T: Copy>(value: &DeValue<'_>, known: &[(&str, T)]) -> Result<T, String> {
    let text = text_of(value)?;
    if let Some((_, found)) = known.iter().find(|(name, _)| *name == text) {
        return Ok(*found);
    }
    let names = || known.iter().map(|(name, _)| *name);
    Err(match nearest(text, names()) {
        Some(near) => format!("unknown '{text}'; did you mean '{near}'?"),
        None => format!("unknown '{text}'; use {}", names().collect::<Vec<_>>().join(", ")),
    })
}

fn subject(value: &DeValue<'_>) -> Result<String, String> {
    let text = text_of(value)?;
    Subject::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// A size, a range, a genome or a capture; sizes may be written without quotes.
fn traffic(value: &DeValue<'_>) -> Result<String, String> {
    let text = match value {
        DeValue::Integer(n) => n.as_str(),
        other => text_of(other)?,
    };
    crate::campaign::runner::sizes(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
name = "mine"
seed = 7

[[study]]
kind = "sizes"
subjects = ["weir-esp-tunnel-aes128gcm16", "weir-psp-tunnel-aes128gcm16"]
traffic = [64, "1400", "imix"]
directions = ["out", "in"]
sessions = 2
rounds = 4
"#;

    fn wrong(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        parse("c.toml", &GOOD.replace(from, to)).unwrap_err().to_string()
    }

    #[test]
    fn a_campaign_reads_with_its_defaults() {
        let campaign = parse("c.toml", GOOD).unwrap();
        assert_eq!((campaign.name.as_str(), campaign.seed, campaign.trials()), ("mine", 7, 2 * 3 * 2 * 2 * 4));
        let study = &campaign.studies[0];
        assert_eq!((study.name.as_str(), study.batch, study.replay.as_slice()), ("sizes", 256, &[1024][..]));
        assert_eq!(study.duration, Duration::from_millis(20));
    }

    #[test]
    fn every_error_names_its_line_and_a_remedy() {
        let table = [
            (
                "tunnel-aes128gcm16\", \"weir-psp",
                "tunel-aes128gcm16\", \"weir-psp",
                "c.toml:7: subjects: unknown subject 'weir-esp-tunel-aes128gcm16'; did you mean 'weir-esp-tunnel-aes128gcm16'?",
            ),
            ("rounds = 4", "round = 4", "c.toml:11: unknown key 'round'; did you mean 'rounds'?"),
            ("rounds = 4", "rounds = 0", "c.toml:11: rounds: '0' is out of range; use 1 to 1000000"),
            (
                "rounds = 4",
                "rounds = \"4\"",
                "c.toml:11: rounds: expected a whole number from 1 to 1000000, found a text",
            ),
            ("\"sizes\"", "\"size\"", "c.toml:6: kind: unknown 'size'; did you mean 'sizes'?"),
            ("[[study]]", "[study]", "c.toml:5: write [[study]] with two brackets: there may be several"),
            ("kind = \"sizes\"\n", "", "c.toml:5: a study needs the key 'kind'"),
            (
                "[64, \"1400\", \"imix\"]",
                "[]",
                "c.toml:8: traffic: the list is empty: leave the key out, or name something",
            ),
            (
                "name = \"mine\"",
                "name = \"../mine\"",
                "c.toml:2: name: '../mine' is no name; use up to 64 letters, digits, '-', '_' and '.'",
            ),
            ("\"in\"", "\"inn\"", "c.toml:9: directions: unknown 'inn'; did you mean 'in'?"),
        ];
        for (from, to, expected) in table {
            assert_eq!(wrong(from, to), expected);
        }
        assert!(wrong("seed = 7", "seed = ").starts_with("c.toml:3: "), "{}", wrong("seed = 7", "seed = "));
        assert!(wrong("64, \"1400\"", "20, \"1400\"").starts_with("c.toml:8: traffic: "));
    }

    #[test]
    fn a_campaign_without_trials_is_none() {
        let error = parse("c.toml", "name = \"empty\"\n").unwrap_err().to_string();
        assert!(error.contains("no trial") && error.contains("[[study]]"), "{error}");
    }

    #[test]
    fn a_study_cannot_come_twice() {
        let twice = format!("{GOOD}\n[[study]]\nkind = \"sizes\"\nsubjects = [\"weir-ah-tunnel-sha1\"]\n");
        assert!(
            parse("c.toml", &twice).unwrap_err().to_string().starts_with("c.toml:13: study 'sizes' is there twice")
        );
    }
}
