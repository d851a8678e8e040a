//! The log: lines on standard error, as text or as JSON.
//!
//! Logging never blocks and never fails: lines that cannot be written, because the disk for
//! standard error is full, are counted, and the count precedes the next line that can be written.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, reload};

use crate::config::value::ValueError;

const LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace", "off"];
/// Names in the configuration, with their log targets.
const SUBSYSTEMS: &[(&str, &str)] = &[
    ("control", "control"),
    ("routes", "routes"),
    ("state", "state"),
    ("audit", "audit"),
    ("path", "dataplane"),
    ("ike", "ike"),
    ("child", "child"),
    ("cfg", "cfg"),
    ("enc", "enc"),
    ("net", "net"),
    ("psp", "psp"),
    ("vici", "vici"),
];

/// Checks a filter of the configuration and returns it in the form that [`init`] takes.
pub(crate) fn check_filter(text: &str) -> Result<String, ValueError> {
    let mut directives = Vec::new();
    for item in text.split(',').map(str::trim) {
        let (subsystem, level) = item.split_once('=').map_or((None, item), |(s, l)| (Some(s.trim()), l.trim()));
        if !LEVELS.contains(&level) {
            return Err(format!("'{level}' is not a log level; write one of: {}", LEVELS.join(", ")).into());
        }
        match subsystem {
            None => directives.push(level.to_owned()),
            Some(name) => match SUBSYSTEMS.iter().find(|(known, _)| *known == name) {
                Some((_, target)) => directives.push(format!("{target}={level}")),
                None => {
                    let known: Vec<&str> = SUBSYSTEMS.iter().map(|(name, _)| *name).collect();
                    return Err(format!("'{name}' is not a subsystem; write one of: {}", known.join(", ")).into());
                }
            },
        }
    }
    Ok(directives.join(","))
}

/// Starts logging; a second call changes nothing.
pub(crate) fn init(filter: &str, json: bool) {
    let info = || Targets::new().with_default(LevelFilter::INFO);
    let (filter, handle) = reload::Layer::new(targets(filter).unwrap_or_else(info));
    let journal = has_journal();
    let lines = tracing_subscriber::fmt::layer().with_writer(move || writer(journal));
    let lines: Box<dyn Layer<_> + Send + Sync> = if json {
        Box::new(lines.event_format(Json))
    } else if journal {
        Box::new(lines.with_ansi(false).event_format(Journal))
    } else {
        Box::new(lines.with_ansi(io::stderr().is_terminal()))
    };
    if tracing_subscriber::registry().with(filter).with(lines).try_init().is_ok() {
        drop(FILTER.set(handle));
    }
}

/// Filter of the log that [`init`] started.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Changes the filter; `filter` as for [`init`].
pub(crate) fn set_filter(filter: &str) {
    if let (Some(handle), Some(filter)) = (FILTER.get(), targets(filter)) {
        drop(handle.reload(filter));
    }
}

/// The filter of a text that [`check_filter`] returned. Subsystems that it does not name log errors
/// only.
fn targets(filter: &str) -> Option<Targets> {
    let targets: Targets = filter.parse().ok()?;
    let others = targets.default_level().unwrap_or(LevelFilter::ERROR);
    Some(targets.with_default(others))
}

/// Prints lines to standard error, bypassing the log.
pub(crate) fn say(level: Level, text: fmt::Arguments<'_>) {
    let journal = has_journal();
    let prefix = if journal { format!("<{}>", priority(level)) } else { String::new() };
    let _ = writer(journal).write_all(prefixed(&prefix, &text.to_string()).as_bytes());
}

/// The same as a JSON object, for a log in JSON.
pub(crate) fn say_json(subsystem: &str, message: &str) {
    let _ = writer(has_journal()).write_all(format!("{}\n", json_line("info", subsystem, message)).as_bytes());
}

/// Priority of lines in the journal (sd-daemon(3)).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// `text` with `prefix` before each line. The journal takes each line by itself: without a priority
/// it would have the usual one, and with `<0>` at its start, which a peer may have sent, any other.
fn prefixed(prefix: &str, text: &str) -> String {
    text.trim_end_matches('\n').split('\n').map(|line| format!("{prefix}{line}\n")).collect()
}

fn json_line(level: &str, subsystem: &str, message: &str) -> serde_json::Value {
    serde_json::json!({ "time_s": now_s(), "level": level, "subsystem": subsystem, "message": message })
}

/// Seconds since 1970, to the millisecond.
fn now_s() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    (now * 1000.0).round() / 1000.0
}

/// Lines lost since the last one that was written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Writer that ignores I/O errors: the library reports them with `eprintln!`, which panics if
/// standard error is closed.
struct CountingWriter<W> {
    out: W,
    lost: &'static AtomicU64,
    /// What precedes the notice of lost lines.
    prefix: &'static str,
}

/// The log on standard error.
fn writer(journal: bool) -> CountingWriter<io::Stderr> {
    CountingWriter { out: io::stderr(), lost: &LOST, prefix: if journal { "<4>" } else { "" } }
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let Self { out, lost, prefix } = self;
        let missing = lost.swap(0, Ordering::Relaxed);
        // The last one may have been cut.
        let written = match missing {
            0 => Ok(()),
            _ => writeln!(out, "\n{prefix}weir: {missing} log lines could not be written and are missing here"),
        };
        if written.and_then(|()| out.write_all(line)).is_err() {
            lost.fetch_add(missing + 1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.out.flush();
        Ok(())
    }
}

/// Returns whether standard error of this process is the journal of systemd.
fn has_journal() -> bool {
    is_journal(std::env::var_os("JOURNAL_STREAM").as_deref())
}

/// Returns whether standard error is the journal of systemd: `stream` is the variable
/// `JOURNAL_STREAM` (systemd.exec(5)), device and inode of a socket. Both are compared, because a
/// process that redirects its output inherits the variable.
fn is_journal(stream: Option<&OsStr>) -> bool {
    let numbers = stream.and_then(OsStr::to_str).and_then(|text| text.split_once(':'));
    let Some((Ok(device), Ok(inode))) = numbers.map(|(device, inode)| (device.parse::<u64>(), inode.parse::<u64>()))
    else {
        return false;
    };
    rustix::fs::fstat(io::stderr()).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (device, inode))
}

/// Lines for the journal of systemd: priority (sd-daemon(3)), subsystem, message. The journal has
/// the time.
struct Journal;

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let prefix = format!("<{}>{}: ", priority(*event.metadata().level()), event.metadata().target());
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        writer.write_str(&prefixed(&prefix, &text))
    }
}

/// One object per line: `time_s`, `level`, `subsystem`, `message`, and fields by their names.
struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields(serde_json::Map::new());
        fields.0.insert("time_s".into(), now_s().into());
        fields.0.insert("level".into(), event.metadata().level().as_str().to_lowercase().into());
        fields.0.insert("subsystem".into(), event.metadata().target().into());
        event.record(&mut fields);
        writeln!(writer, "{}", serde_json::Value::Object(fields.0))
    }
}

struct Fields(serde_json::Map<String, serde_json::Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().into(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }
}

/// What `act` logs, in the format of the journal.
#[cfg(test)]
pub(crate) fn captured(act: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Lines(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().with_ansi(false).event_format(Journal).with_writer(move || writer.clone());
    tracing::subscriber::with_default(log.with_max_level(Level::DEBUG).finish(), act);
    String::from_utf8(lines.0.lock().expect("no panic").clone()).expect("text")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for some writes; the last of them is cut.
    struct Disk<'a> {
        room: &'a std::cell::Cell<usize>,
        text: &'a std::cell::RefCell<Vec<u8>>,
    }

    impl Write for Disk<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room.get());
            self.room.set(self.room.get() - taken);
            self.text.borrow_mut().extend_from_slice(&bytes[..taken]);
            if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn the_filter_changes_while_the_log_runs() {
        init("error,ike=warn", true);
        let debug = || tracing::enabled!(target: "ike", tracing::Level::DEBUG);
        assert!(!debug());
        set_filter("error,ike=debug");
        assert!(debug() && !tracing::enabled!(target: "net", tracing::Level::DEBUG));
        set_filter("error");
        assert!(!debug());
    }

    #[test]
    fn a_full_disk_costs_lines_and_says_how_many() {
        static MISSING: AtomicU64 = AtomicU64::new(0);
        let (room, text) = (std::cell::Cell::new(8), std::cell::RefCell::default());
        let mut log = CountingWriter { out: Disk { room: &room, text: &text }, lost: &MISSING, prefix: "<4>" };
        for line in ["one\n", "second\n", "third\n"] {
            log.write_all(line.as_bytes()).unwrap();
            log.flush().unwrap();
        }
        room.set(1000);
        log.write_all(b"fourth\n").unwrap();
        log.write_all(b"fifth\n").unwrap();
        let text = String::from_utf8(text.take()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines[1], lines[3], lines[4]), ("one", "seco", "fourth", "fifth"), "{text}");
        assert!(lines[2].starts_with("<4>weir: 2 log lines"), "{text}");
    }

    #[test]
    fn a_line_beside_the_log_is_json_when_the_log_is() {
        let line = json_line("info", "control", "ready: 1 connection (moon: trap)").to_string();
        let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&parsed["level"], &parsed["subsystem"]), (&"info".into(), &"control".into()));
        assert!(parsed["time_s"].as_f64() > Some(0.0) && parsed["message"].as_str().unwrap().starts_with("ready"));
    }

    #[test]
    fn the_journal_is_known_by_its_socket() {
        let stat = rustix::fs::fstat(io::stderr()).unwrap();
        let own = format!("{}:{}", stat.st_dev, stat.st_ino);
        assert!(is_journal(Some(OsStr::new(&own))));
        let other = format!("{}:{}", stat.st_dev, stat.st_ino + 1);
        for stream in [Some(OsStr::new(&other)), Some(OsStr::new("")), Some(OsStr::new("8")), None] {
            assert!(!is_journal(stream), "{stream:?}");
        }
    }

    #[test]
    fn lines_of_the_journal_have_a_priority_and_no_time() {
        let text = captured(|| {
            tracing::error!(target: "ike", "no answer");
            tracing::warn!(target: "net", "slow");
            tracing::info!(target: "control", peer = "moon", "up");
            tracing::debug!(target: "enc", "proposal");
        });
        assert_eq!(text, "<3>ike: no answer\n<4>net: slow\n<6>control: up peer=\"moon\"\n<7>enc: proposal\n");
    }

    #[test]
    fn each_line_of_an_event_has_a_priority() {
        let text = captured(|| tracing::error!(target: "cfg", "first\n<0>second\n\nlast\n"));
        assert_eq!(text, "<3>cfg: first\n<3>cfg: <0>second\n<3>cfg: \n<3>cfg: last\n");
    }

    #[test]
    fn lines_beside_the_log_are_prefixed_one_by_one() {
        assert_eq!(prefixed("<3>", "weir: a\n  b\n"), "<3>weir: a\n<3>  b\n");
        assert_eq!(prefixed("", "weir: a"), "weir: a\n");
    }

    #[test]
    fn a_filter_names_levels_and_subsystems() {
        assert_eq!(check_filter("info"), Ok("info".into()));
        assert_eq!(check_filter("info, path=debug,audit=warn"), Ok("info,dataplane=debug,audit=warn".into()));
        assert!(check_filter("loud").is_err() && check_filter("nothing=info").is_err() && check_filter("").is_err());
    }
}
