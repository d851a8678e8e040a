//! The file that describes a campaign: TOML, parsed once, with errors that name the line and the
//! correction.

use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::subject::{Subject, nearest};
use super::{Campaign, Kind, Place, Study, path, scaling};
use crate::cores::{MAX_FLOWS, Scheduler, Set, Spreading};
use crate::trial::Direction;
use crate::{meter, subject as hosts};
use testbed::pair::Lanes;
use throughput::search::Goal;

/// Most trials of a campaign: two weeks of the shortest ones.
const MAX_TRIALS: u64 = 10_000_000;

/// Error in a campaign.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct CampaignError {
    /// The file as its user calls it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Description and correction.
    pub what: String,
}

/// A value that is wrong: what is expected instead.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Invalid(String);

impl<T: Into<String>> From<T> for Invalid {
    fn from(what: T) -> Self {
        Self(what.into())
    }
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
            return Err(source.error(at, format!("duplicate study '{}'; use unique names", study.name)));
        }
        studies.push(study);
    }
    let campaign = Campaign { name, title, seed, studies };
    match campaign.trials() {
        0 => Err(source.error(0..0, "the campaign has no trials; add a [[study]] with subjects and traffic".into())),
        trials if trials > MAX_TRIALS => {
            Err(source.error(0..0, format!("{trials} trials; at most {MAX_TRIALS}: fewer rounds, sessions or sizes")))
        }
        _ => Ok(campaign),
    }
}

const STUDY_KEYS: [&str; 28] = [
    "name",
    "kind",
    "place",
    "from",
    "to",
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
    "schedulers",
    "sets",
    "spreads",
    "batch",
    "memory_mib",
    "delay_ms",
    "goals",
    "budget_s",
    "gaps",
    "max_pps",
    "real_time",
    "cable",
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
    let places = [("memory", Place::Memory), ("namespaces", Place::Namespaces), ("interfaces", Place::Interfaces)];
    let (usual, name) = match kind {
        Kind::Transfers => (Place::Namespaces, "namespaces"),
        _ => (Place::Memory, "memory"),
    };
    let place = keys.or("place", usual, |value| match one_of(value, &places)? {
        place if runs_in(kind, place) => Ok(place),
        _ => Err(format!("a study '{}' runs in {name}: remove the key", kind.name()).into()),
    })?;
    let subjects = keys.required("subjects", |value| list(value, |v| subject(v, kind, place)))?;
    let directions = [("out", Direction::Out), ("in", Direction::In), ("both", Direction::Both)];
    // Between hosts a packet passes both endpoints of a subject; a ping has an initiating host.
    let pings = place == Place::Namespaces && matches!(kind, Kind::Modes | Kind::Noise);
    let direction = |value: &DeValue<'_>| match one_of(value, &directions)? {
        way if place == Place::Memory || pings || way == Direction::Both => Ok(way),
        _ => Err("between hosts a packet passes both endpoints: remove the key, or write [\"both\"]".into()),
    };
    let counts = |most: u64| move |value: &DeValue<'_>| list(value, |v| whole(v, 0, most).map(|n| n as u32));
    let study = Study {
        name: keys.or("name", kind.name().to_owned(), word)?,
        kind,
        place,
        between: between(&keys, place)?,
        subjects,
        traffic: keys.or("traffic", vec!["1400".into()], |value| list(value, traffic))?,
        directions: keys.or("directions", vec![Direction::Both], |value| list(value, direction))?,
        sessions: keys.or("sessions", 5, |value| whole(value, 1, 1000))? as u32,
        rounds: keys.or("rounds", 5, |value| whole(value, 1, 1_000_000))? as u32,
        duration: Duration::from_millis(keys.or("duration_ms", 20, |value| whole(value, 1, 86_400_000))?),
        flows: flows(&keys, kind)?,
        loads: keys.or("loads", vec![], |value| list(value, |v| number(v, 0.001, 10.0)))?,
        replay: keys.or("replay", vec![1024], counts(65_536))?,
        sas: keys.or("sas", vec![1], |value| list(value, |v| whole(v, 1, 1_000_000).map(|n| n as u32)))?,
        cores: keys.or("cores", vec![if kind == Kind::Transfers { 0 } else { 1 }], |value| {
            list(value, |v| whole(v, 1, 1024).map(|n| n as u32))
        })?,
        schedulers: match of_cores(&keys, kind, "schedulers", &Scheduler::ALL, Scheduler::name)? {
            all if all.is_empty() || keys.table.get("schedulers").is_some() => all,
            _ => Scheduler::USUAL.to_vec(),
        },
        sets: of_cores(&keys, kind, "sets", &Set::ALL, Set::name)?,
        // Only the requested one: the others are less informative.
        spreads: match of_cores(&keys, kind, "spreads", &Spreading::ALL, Spreading::name)? {
            all if all.is_empty() || keys.table.get("spreads").is_some() => all,
            _ => vec![Spreading::Ideal],
        },
        batch: keys.or("batch", vec![256], |value| one_or_list(value, |v| whole(v, 1, 1024).map(|n| n as u32)))?,
        memory_mib: keys
            .or("memory_mib", vec![0], |value| one_or_list(value, |v| whole(v, 0, 4096).map(|n| n as u32)))?,
        delay_ms: keys.or("delay_ms", 0, |value| match whole(value, 0, 1000)? {
            ms if ms > 0 && !pings => Err(format!("'{ms}': only pings between namespaces are delayed").into()),
            ms => Ok(ms as u32),
        })?,
        veth: keys.or("cable", false, |value| match kind {
            Kind::Transfers => one_of(value, &[("wire", false), ("veth", true)]),
            _ => Err("only a study 'transfers' selects its cable".into()),
        })?,
        goals: goals(&keys, kind)?,
        budget_s: keys.or("budget_s", 600.0, |value| number(value, 0.1, 86_400.0))?,
        poisson: keys.or("gaps", false, |value| {
            of_search(kind, "gaps").and_then(|()| one_of(value, &[("even", false), ("poisson", true)]))
        })?,
        max_pps: keys.or("max_pps", None, |value| {
            of_search(kind, "max_pps").and_then(|()| number(value, 1.0, 1e12)).map(Some)
        })?,
        real_time: keys.or("real_time", false, |value| {
            of_search(kind, "real_time")?;
            match value {
                DeValue::Boolean(true) if place != Place::Memory => {
                    Err("other places are in real time anyway: remove the key".into())
                }
                DeValue::Boolean(real) => Ok(*real),
                other => Err(format!("expected true or false, found {}", name_of(other)).into()),
            }
        })?,
    };
    if kind == Kind::Scaling {
        of_tunnels(&keys, &study)?;
    }
    if kind == Kind::Transfers || kind == Kind::Series && place == Place::Namespaces {
        of_tcp(&keys, &study)?;
    }
    if kind == Kind::Transfers {
        of_equals(&keys, &study)?;
    }
    let no_loads = match kind {
        _ if study.loads.is_empty() => None,
        _ if pings => Some("pings are sent one after the other, without a load".to_owned()),
        _ if kind.has_loads() => None,
        _ => Some(format!("a study '{}' sends at the maximum rate, or selects the rate itself", kind.name())),
    };
    if let Some(why) = no_loads {
        return Err(source.error(keys.at("loads"), format!("loads: {why}: remove the key")));
    }
    Ok((study, entry.span()))
}

/// Settings of a search.
fn of_search(kind: Kind, key: &str) -> Result<(), Invalid> {
    if kind == Kind::Search { Ok(()) } else { Err(format!("only a study 'search' has {key}").into()) }
}

/// Numbers of flows: one, or in a study of cores several.
fn flows(keys: &Keys<'_>, kind: Kind) -> Result<Vec<u32>, CampaignError> {
    let (usual, most) = match kind {
        Kind::Scaling => (64, MAX_FLOWS as u64),
        Kind::Transfers => (8, 128),
        _ => (1, 65_536),
    };
    keys.or("flows", vec![usual], |value| match one_or_list(value, |v| whole(v, 1, most).map(|n| n as u32))? {
        several if several.len() > 1 && kind != Kind::Scaling => Err("only a study 'scaling' has several".into()),
        flows => Ok(flows),
    })
}

/// Settings of a study of cores; all values by default.
fn of_cores<T: Copy>(
    keys: &Keys<'_>,
    kind: Kind,
    key: &str,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<Vec<T>, CampaignError> {
    let known: Vec<(&str, T)> = all.iter().map(|one| (name(*one), *one)).collect();
    let default = if kind == Kind::Scaling { all.to_vec() } else { vec![] };
    keys.or(key, default, |value| match kind {
        Kind::Scaling => list(value, |v| one_of(v, &known)),
        _ => Err(format!("only a study 'scaling' has {key}").into()),
    })
}

/// A study of cores is made with tunnels, each of which is at least one of the sets, through both
/// of their ends.
fn of_tunnels(keys: &Keys<'_>, study: &Study) -> Result<(), CampaignError> {
    if study.directions != [Direction::Both] {
        let what = "directions: on several cores packets pass both endpoints: remove the key".into();
        return Err(keys.source.error(keys.at("directions"), what));
    }
    let fits = |subject: &str| {
        let schedulers = || study.schedulers.iter();
        study.sets.iter().any(|set| schedulers().any(|scheduler| scaling::fits(subject, *set, *scheduler)))
    };
    let Some(other) = study.subjects.iter().find(|subject| !fits(subject)) else { return Ok(()) };
    let what = format!(
        "subjects: '{other}' supports none of these sets; use tunnels over IPv4: of esp for one, per-cpu and apart (run-to-completion), \
         of eesp for sub-sas, of psp for psp"
    );
    Err(keys.source.error(keys.at("subjects"), what))
}

/// A transfer of TCP is one from its first sample to its last, and chooses its packets and its rate
/// itself.
fn of_tcp(keys: &Keys<'_>, study: &Study) -> Result<(), CampaignError> {
    let (key, what) = if study.duration < SHORTEST_SAMPLE {
        ("duration_ms", format!("a sample of TCP takes at least {} ms", SHORTEST_SAMPLE.as_millis()))
    } else if study.traffic.len() > 1 {
        ("traffic", "TCP determines its packet sizes: remove the key".into())
    } else if !study.loads.is_empty() {
        ("loads", "TCP sends at the maximum rate: remove the key".into())
    } else {
        return Ok(());
    };
    Err(keys.source.error(keys.at(key), format!("{key}: {what}")))
}

/// The shortest interval that iperf accepts.
pub(super) const SHORTEST_SAMPLE: Duration = Duration::from_millis(500);

/// Weir's configurations in a study have one encapsulation and one number of worker threads: the
/// kernel offloads UDP otherwise than raw IP, so that a comparison would be one of offloads. Rivals
/// have their own encapsulation.
fn of_equals(keys: &Keys<'_>, study: &Study) -> Result<(), CampaignError> {
    let encapsulation = |name: &String| name.parse::<hosts::Subject>().ok().and_then(|s| s.encapsulation());
    let all = || study.subjects.iter().filter_map(|name| Some((name, encapsulation(name)?)));
    let mut own = all().filter(|(name, _)| name.starts_with("weir-"));
    let (key, what) = match own.next().and_then(|(name, one)| Some((name, one, own.find(|(_, other)| *other != one)?)))
    {
        Some((name, one, (other, another))) => {
            let what = format!(
                "'{other}' is {another} and '{name}' {one}: a comparison has one encapsulation; use a study for each"
            );
            ("subjects", what)
        }
        None if all().next().is_none() => ("subjects", "nothing is protected: add a subject besides plain".into()),
        None if study.cores.len() > 1 => {
            ("cores", "a comparison has one number of workers; use a study for each".into())
        }
        None if study.directions != [Direction::Both] => {
            ("directions", "a transfer passes both endpoints: remove the key".into())
        }
        None => return Ok(()),
    };
    Err(keys.source.error(place_of(keys, key, &what), format!("{key}: {what}")))
}

/// Position of the quoted element of the list `key`.
fn place_of(keys: &Keys<'_>, key: &str, what: &str) -> Range<usize> {
    keys.table.get(key).map_or(keys.at.clone(), |value| place(value, what))
}

/// Returns whether a study of this kind can be made there.
fn runs_in(kind: Kind, place: Place) -> bool {
    let loads = matches!(kind, Kind::Sizes | Kind::Validate | Kind::Loss | Kind::Search | Kind::Series);
    match place {
        Place::Memory => kind != Kind::Transfers,
        Place::Namespaces => {
            loads || kind == Kind::Transfers || matches!(kind, Kind::Modes | Kind::Noise | Kind::Keying)
        }
        Place::Interfaces => loads,
    }
}

/// Both addresses of the user's interfaces, where packets run between such.
fn between(keys: &Keys<'_>, place: Place) -> Result<Option<[String; 2]>, CampaignError> {
    let address = |value: &DeValue<'_>| {
        let text = text_of(value)?;
        let place = text.parse::<meter::Place>().map_err(|error| error.to_string())?;
        Ok((text.to_owned(), place.addr.is_ipv4()))
    };
    if place == Place::Interfaces {
        let (from, to) = (keys.required("from", address)?, keys.required("to", address)?);
        if from.1 != to.1 {
            let what = format!("to: {} and {} differ in address family", from.0, to.0);
            return Err(keys.source.error(keys.at("to"), what));
        }
        return Ok(Some([from.0, to.0]));
    }
    match ["from", "to"].into_iter().find(|key| keys.table.get(*key).is_some()) {
        Some(key) => Err(keys.source.error(keys.at(key), format!("{key}: only with place = \"interfaces\""))),
        None => Ok(None),
    }
}

/// Goals of a search, each once; none in other studies.
fn goals(keys: &Keys<'_>, kind: Kind) -> Result<Vec<Goal>, CampaignError> {
    let goal = |value: &DeValue<'_>| text_of(value)?.parse::<Goal>().map_err(|error| error.to_string().into());
    let default = if kind == Kind::Search { vec!["short".parse().expect("it is a preset")] } else { vec![] };
    keys.or("goals", default, |value| {
        if kind != Kind::Search {
            return Err("only a study 'search' has goals".into());
        }
        let goals: Vec<Goal> = list(value, goal)?;
        let twice = (1..goals.len()).find(|at| goals[..*at].iter().any(|other| other.code() == goals[*at].code()));
        match twice {
            Some(at) => Err(format!("duplicate '{}'", goals[at].name).into()),
            None => Ok(goals),
        }
    })
}

/// A text and its name, for the location of errors.
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

/// A table with known keys only.
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
        read: impl Fn(&DeValue<'_>) -> Result<T, Invalid>,
    ) -> Result<T, CampaignError> {
        let Some(value) = self.table.get(key) else { return Ok(default) };
        read(value.get_ref()).map_err(|Invalid(what)| self.source.error(place(value, &what), format!("{key}: {what}")))
    }

    fn required<T>(&self, key: &str, read: impl Fn(&DeValue<'_>) -> Result<T, Invalid>) -> Result<T, CampaignError> {
        if self.table.get(key).is_none() {
            return Err(self.source.error(self.at.clone(), format!("{} needs the key '{key}'", self.what)));
        }
        self.or(key, None, |value| read(value).map(Some)).map(|value| value.expect("it is there"))
    }

    /// Position of the value of a key, or of the table.
    fn at(&self, key: &str) -> Range<usize> {
        self.table.get(key).map_or(self.at.clone(), |value| value.span())
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

/// Position of an error in a value: the list element that the message quotes, or the value itself.
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

fn text_of<'a>(value: &'a DeValue<'_>) -> Result<&'a str, Invalid> {
    value.as_str().ok_or_else(|| format!("expected a text in quotes, found {}", name_of(value)).into())
}

/// A name that can be part of a file name.
fn word(value: &DeValue<'_>) -> Result<String, Invalid> {
    let text = text_of(value)?;
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.is_empty() || text.len() > 64 || !text.chars().all(good) || text.starts_with('.') {
        return Err(format!("'{text}' is not a valid name; use up to 64 letters, digits, '-', '_' and '.'").into());
    }
    Ok(text.to_owned())
}

fn whole(value: &DeValue<'_>, least: u64, most: u64) -> Result<u64, Invalid> {
    let DeValue::Integer(n) = value else {
        return Err(format!("expected a whole number from {least} to {most}, found {}", name_of(value)).into());
    };
    let number = u64::from_str_radix(n.as_str(), n.radix()).ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| format!("'{}' is out of range; use {least} to {most}", n.as_str()).into())
}

fn number(value: &DeValue<'_>, least: f64, most: f64) -> Result<f64, Invalid> {
    let text = match value {
        DeValue::Integer(n) => n.as_str(),
        DeValue::Float(n) => n.as_str(),
        other => return Err(format!("expected a number from {least} to {most}, found {}", name_of(other)).into()),
    };
    let number = text.parse().ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| format!("'{text}' is out of range; use {least} to {most}").into())
}

fn list<T>(value: &DeValue<'_>, read: impl Fn(&DeValue<'_>) -> Result<T, Invalid>) -> Result<Vec<T>, Invalid> {
    let array = value.as_array().ok_or_else(|| format!("expected a list in brackets, found {}", name_of(value)))?;
    if array.is_empty() {
        return Err("the list is empty: remove the key, or add an element".into());
    }
    array.iter().map(|item| read(item.get_ref())).collect()
}

/// A list, or one value without brackets.
fn one_or_list<T>(value: &DeValue<'_>, read: impl Fn(&DeValue<'_>) -> Result<T, Invalid>) -> Result<Vec<T>, Invalid> {
    if value.as_array().is_some() { list(value, read) } else { read(value).map(|one| vec![one]) }
}

fn one_of<T: Copy>(value: &DeValue<'_>, known: &[(&str, T)]) -> Result<T, Invalid> {
    let text = text_of(value)?;
    if let Some((_, found)) = known.iter().find(|(name, _)| *name == text) {
        return Ok(*found);
    }
    let names = || known.iter().map(|(name, _)| *name);
    let hint = match nearest(text, names()) {
        Some(near) => format!("did you mean '{near}'?"),
        None => format!("use {}", names().collect::<Vec<_>>().join(", ")),
    };
    Err(format!("unknown '{text}'; {hint}").into())
}

/// A subject that can be in this place; between interfaces of the user it is theirs, and any name
/// is good.
fn subject(value: &DeValue<'_>, kind: Kind, place: Place) -> Result<String, Invalid> {
    let text = text_of(value)?;
    if place == Place::Interfaces {
        return word(value);
    }
    if kind == Kind::Sessions {
        let subject = text.parse::<crate::sessions::Subject>().map_err(|error| error.to_string())?;
        return Ok(subject.to_string());
    }
    let parsed = Subject::parse(text).map_err(|error| error.to_string())?;
    if let Some(why) = path::refuses(kind, &parsed) {
        return Err(format!("'{text}' {why}").into());
    }
    if kind != Kind::Transfers && parsed.lanes() == Lanes::PerCpu {
        return Err(format!("'{text}' is negotiated between hosts; use a study 'transfers'").into());
    }
    if place != Place::Namespaces && parsed.needs_namespaces() {
        return Err(format!("'{text}' is for interfaces between hosts; use 'place = \"namespaces\"'").into());
    }
    if place == Place::Namespaces && text.parse::<hosts::Subject>().is_err() {
        return Err(format!(
            "'{text}' cannot run between hosts, only in memory; 'weir lab subjects' lists those that can"
        )
        .into());
    }
    Ok(text.to_owned())
}

/// A size, a range, a genome or a capture; sizes may be written without quotes.
fn traffic(value: &DeValue<'_>) -> Result<String, Invalid> {
    let text = match value {
        DeValue::Integer(n) => n.as_str(),
        other => text_of(other)?,
    };
    crate::campaign::runner::sizes(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
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
        assert_eq!((study.name.as_str(), &study.batch[..], &study.replay[..]), ("sizes", &[256][..], &[1024][..]));
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
                "c.toml:8: traffic: the list is empty: remove the key, or add an element",
            ),
            (
                "name = \"mine\"",
                "name = \"../mine\"",
                "c.toml:2: name: '../mine' is not a valid name; use up to 64 letters, digits, '-', '_' and '.'",
            ),
            ("\"in\"", "\"inn\"", "c.toml:9: directions: unknown 'inn'; did you mean 'in'?"),
        ];
        for (from, to, expected) in table {
            assert_eq!(wrong(from, to), expected);
        }
        assert!(wrong("seed = 7", "seed = ").starts_with("c.toml:3: "), "{}", wrong("seed = 7", "seed = "));
        assert!(wrong("64, \"1400\"", "20, \"1400\"").starts_with("c.toml:8: traffic: "));
    }

    fn refused(study: &str) -> String {
        let text = format!("name = \"t\"\n[[study]]\n{study}");
        parse("c.toml", &text).unwrap_err().to_string()
    }

    #[test]
    fn places_goals_and_delays_are_checked_where_they_are_written() {
        let plain = "subjects = [\"plain\"]\n";
        let table = [
            (
                "kind = \"overheads\"\nplace = \"namespaces\"\n",
                "c.toml:4: place: a study 'overheads' runs in memory: remove the key",
            ),
            (
                "kind = \"sizes\"\nplace = \"namespaces\"\ndirections = [\"both\", \"out\"]\n",
                "c.toml:5: directions: between hosts a packet",
            ),
            ("kind = \"sizes\"\nplace = \"interfaces\"\nfrom = \"10.0.0.1\"\n", "c.toml:2: a study needs the key 'to'"),
            (
                "kind = \"sizes\"\nplace = \"interfaces\"\nfrom = \"10.0.0.1\"\nto = \"::1\"\n",
                "c.toml:6: to: 10.0.0.1 and ::1 differ in address family",
            ),
            (
                "kind = \"sizes\"\nplace = \"interfaces\"\nfrom = \"here\"\nto = \"::1\"\n",
                "c.toml:5: from: 'here' is not an address",
            ),
            ("kind = \"sizes\"\nfrom = \"10.0.0.1\"\n", "c.toml:4: from: only with place = \"interfaces\""),
            ("kind = \"sizes\"\ngoals = [\"ndr\"]\n", "c.toml:4: goals: only a study 'search' has goals"),
            ("kind = \"sizes\"\ncable = \"veth\"\n", "c.toml:4: cable: only a study 'transfers' selects its cable"),
            ("kind = \"sizes\"\nmax_pps = 5\n", "c.toml:4: max_pps: only a study 'search' has max_pps"),
            ("kind = \"search\"\ngaps = \"odd\"\n", "c.toml:4: gaps: unknown 'odd'; "),
            (
                "kind = \"search\"\nplace = \"namespaces\"\nreal_time = true\n",
                "c.toml:5: real_time: other places are in real time anyway",
            ),
            ("kind = \"search\"\ngoals = [\"fast\"]\n", "c.toml:4: goals: 'fast' is not a goal; use"),
            ("kind = \"search\"\ngoals = [\"ndr\", \"1f21d0l50e\"]\n", "c.toml:4: goals: duplicate '1f21d0l50e'"),
            ("kind = \"sizes\"\nsets = [\"one\"]\n", "c.toml:4: sets: only a study 'scaling' has sets"),
            ("kind = \"sizes\"\nflows = [1, 4]\n", "c.toml:4: flows: only a study 'scaling' has several"),
            ("kind = \"scaling\"\n", "c.toml:4: subjects: 'plain' supports none of these sets; use tunnels"),
            ("kind = \"scaling\"\nsets = [\"on\"]\n", "c.toml:4: sets: unknown 'on'; did you mean 'one'?"),
            (
                "kind = \"scaling\"\ndirections = [\"out\"]\n",
                "c.toml:4: directions: on several cores packets pass both endpoints: remove the key",
            ),
            ("kind = \"modes\"\ndelay_ms = 5\n", "c.toml:4: delay_ms: '5': only pings between namespaces"),
            (
                "kind = \"series\"\nplace = \"namespaces\"\nduration_ms = 100\n",
                "c.toml:5: duration_ms: a sample of TCP takes at least 500 ms",
            ),
            (
                "kind = \"series\"\nplace = \"namespaces\"\nduration_ms = 500\ntraffic = [64, 1400]\n",
                "c.toml:6: traffic: TCP determines its packet sizes: remove the key",
            ),
            (
                "kind = \"series\"\nplace = \"namespaces\"\nduration_ms = 500\nloads = [0.5]\n",
                "c.toml:6: loads: TCP sends at the maximum rate: remove the key",
            ),
            (
                "kind = \"modes\"\nplace = \"namespaces\"\nloads = [0.5]\n",
                "c.toml:5: loads: pings are sent one after the other, without a load: remove the key",
            ),
            (
                "kind = \"noise\"\nplace = \"namespaces\"\nloads = [0.5]\n",
                "c.toml:5: loads: pings are sent one after the other",
            ),
            (
                "kind = \"sas\"\nloads = [0.5]\n",
                "c.toml:4: loads: a study 'sas' sends at the maximum rate, or selects the rate itself: remove the key",
            ),
            (
                "kind = \"modes\"\nplace = \"namespace\"\n",
                "c.toml:4: place: unknown 'namespace'; did you mean 'namespaces'?",
            ),
        ];
        for (study, expected) in table {
            let message = refused(&format!("{study}{plain}"));
            assert!(message.starts_with(expected), "{message}\n{expected}");
        }
        let message =
            refused("kind = \"modes\"\nplace = \"namespaces\"\nsubjects = [\"cipher-esp-tunnel-aes128gcm16\"]\n");
        assert!(
            message.starts_with("c.toml:5: subjects: 'cipher-esp-tunnel-aes128gcm16' cannot run between hosts"),
            "{message}"
        );
    }

    #[test]
    fn a_study_between_interfaces_has_names_of_its_own() {
        let text = "name = \"t\"\n[[study]]\nkind = \"search\"\nplace = \"interfaces\"\nfrom = \"10.0.0.1@left\"\nto = \"10.0.0.2\"\n\
                    subjects = [\"my-box\"]\ngoals = [\"ndr\", \"pdr\"]\n";
        let study = parse("c.toml", text).unwrap().studies.remove(0);
        assert_eq!(study.between, Some(["10.0.0.1@left".into(), "10.0.0.2".into()]));
        assert_eq!((study.place, study.goals.len(), study.subjects[0].as_str()), (Place::Interfaces, 2, "my-box"));
    }

    #[test]
    fn a_campaign_without_trials_is_none() {
        let error = parse("c.toml", "name = \"empty\"\n").unwrap_err().to_string();
        assert!(error.contains("no trial") && error.contains("[[study]]"), "{error}");
    }

    #[test]
    fn a_study_cannot_come_twice() {
        let twice = format!("{GOOD}\n[[study]]\nkind = \"sizes\"\nsubjects = [\"weir-ah-tunnel-sha1\"]\n");
        assert!(parse("c.toml", &twice).unwrap_err().to_string().starts_with("c.toml:13: duplicate study 'sizes'"));
    }

    fn transfers(subjects: &str, more: &str) -> Result<Campaign, CampaignError> {
        let text = format!("name = \"t\"\n[[study]]\nkind = \"transfers\"\nsubjects = [{subjects}]\n{more}");
        parse("t.toml", &text)
    }

    /// The kernel offloads UDP otherwise than raw IP: 1.8 against 3.1 Gbit/s for the same protocol.
    #[test]
    fn a_comparison_of_udp_with_raw_ip_is_refused() {
        let esp = "\"weir-esp-tunnel-aes128gcm16\"";
        let error = transfers(&format!("{esp}, \"weir-psp-tunnel-aes128gcm16\""), "duration_ms = 500").unwrap_err();
        assert_eq!(error.line, 4);
        assert_eq!(
            error.what,
            "subjects: 'weir-psp-tunnel-aes128gcm16' is in UDP and 'weir-esp-tunnel-aes128gcm16' raw IP: a comparison has one \
             encapsulation; use a study for each"
        );
        for rival in ["wireguard-go", "strongswan-aes128gcm16"] {
            assert!(transfers(&format!("{esp}, \"{rival}\""), "duration_ms = 500").is_ok(), "{rival}");
        }
        let raw = format!("{esp}, \"xfrm-aes128gcm16\", \"weir-ah-tunnel-sha256\", \"plain\"");
        let study = transfers(&raw, "duration_ms = 500").unwrap().studies.remove(0);
        assert_eq!((study.place, &study.cores[..], &study.flows[..]), (Place::Namespaces, &[0][..], &[8][..]));
    }

    #[test]
    fn transfers_are_of_tcp_between_hosts_with_one_number_of_workers() {
        let esp = "\"weir-esp-tunnel-aes128gcm16\"";
        let why = |subjects: &str, more: &str| transfers(subjects, more).unwrap_err().what;
        assert!(why(esp, "duration_ms = 500\nplace = \"memory\"").contains("runs in namespaces"));
        assert!(why(esp, "duration_ms = 500\ncores = [1, 2]").contains("one number of workers"));
        assert!(why(esp, "duration_ms = 100").contains("at least 500 ms"));
        assert!(why(esp, "duration_ms = 500\nloads = [0.5]").contains("maximum rate"));
        assert!(why("\"plain\"", "duration_ms = 500").contains("nothing is protected"));
        let lanes = "\"weir-esp-tunnel-aes128gcm16,per-cpu\"";
        assert!(transfers(lanes, "duration_ms = 500").is_ok());
        let memory = format!("name = \"t\"\n[[study]]\nkind = \"sizes\"\nsubjects = [{lanes}]\n");
        assert!(parse("t.toml", &memory).unwrap_err().what.contains("use a study 'transfers'"));
        let bypass = lanes.replace("per-cpu", "xdp");
        assert!(transfers(&bypass, "duration_ms = 500").is_ok());
        assert!(parse("t.toml", &memory.replace(lanes, &bypass)).unwrap_err().what.contains("between hosts"));
        for other in [
            "esp-tunnel-aes128gcm16,sub-sas",
            "esp-tunnel-aes128gcm16,full",
            "ah-tunnel-sha256,udp",
            "psp-tunnel-aes128gcm16,per-cpu",
            "psp-tunnel-aes128gcm16,xdp",
            "esp-tunnel-aes128gcm16,udp,xdp",
        ] {
            assert!(why(&format!("\"weir-{other}\""), "duration_ms = 500").contains("unknown subject"), "{other}");
        }
    }
}
