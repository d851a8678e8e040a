//! Opens a subject by name for measurement. A new kind of study or a new rival needs a line in
//! [`open`].

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::schedule::Cell;
use super::subject::Subject;
use super::{Kind, Place, Study, hosts, memory, path, sas, scaling, search, sessions};
use crate::meter::MeterError;
use crate::traffic::{NotationError, Rate, Sizes, Traffic};
use crate::trial::Measurement;
use testbed::child::Interrupt;

/// Receives each completed trial, with the goal of the search that requested it; returns false to
/// stop.
pub type Keep<'a> = &'a mut dyn FnMut(Measurement, Option<String>) -> bool;

/// A subject that is set up, and is offered one trial after the other.
pub trait Runner {
    /// One trial.
    ///
    /// # Errors
    /// The subject is gone, or cannot be offered that.
    fn trial(&mut self, cell: &Cell, duration: Duration, seed: u64) -> Result<Measurement, MeterError>;

    /// All that a planned trial consists of: usually one, of a search many. Each is kept before the
    /// next one starts.
    ///
    /// # Errors
    /// As [`Runner::trial`]; [`MeterError::Interrupted`] when `keep` returns false.
    fn trials(&mut self, cell: &Cell, duration: Duration, seed: u64, keep: Keep<'_>) -> Result<(), MeterError> {
        let measured = self.trial(cell, duration, seed)?;
        if keep(measured, None) { Ok(()) } else { Err(MeterError::Interrupted) }
    }
}

/// State shared by the subjects of a session.
#[derive(Default)]
pub(crate) struct Setting {
    /// A folder in the namespace sandbox of a session with hosts.
    pub(crate) private: Option<PathBuf>,
    /// True if a stop of the session was requested.
    pub(crate) interrupt: Interrupt,
    pairs: AtomicU32,
}

impl Setting {
    pub(crate) fn new(private: Option<PathBuf>, stop: Arc<std::sync::atomic::AtomicBool>) -> Self {
        Self { private, interrupt: Interrupt::watching(stop), ..Self::default() }
    }

    /// A number that no other pair of hosts has.
    pub(super) fn number(&self) -> u32 {
        self.pairs.fetch_add(1, Ordering::Relaxed)
    }
}

/// Reads traffic as campaigns write it: sizes, without flows and rate.
///
/// # Errors
/// What is wrong, and what to write instead.
pub fn sizes(text: &str) -> Result<Sizes, NotationError> {
    if text == "imix" { throughput::IMIX } else { text }.parse()
}

/// The one size of this traffic, where it has one, in bytes.
pub fn one_size(text: &str) -> Option<u32> {
    Traffic { sizes: sizes(text).ok()?, flows: 1, rate: Rate::Saturate }.size()
}

/// Missing requirement of a subject.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Missing(pub String);

/// Reason why a subject was not set up.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum NotOpen {
    /// A prerequisite is missing on this machine.
    Missing(String),
    /// It is available but did not start.
    Failed(String),
    /// A stop was requested.
    Interrupted,
}

impl From<Missing> for NotOpen {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing.0)
    }
}

/// Sets a subject up for a study.
///
/// # Errors
/// The missing prerequisite or the error, as text for the report.
pub(crate) fn open(study: &Study, cell: &Cell, setting: &Setting) -> Result<Box<dyn Runner>, NotOpen> {
    match (study.kind, study.place) {
        (Kind::Scaling, _) => Ok(scaling::Scaling::open(&subject(cell)?, cell)?),
        (Kind::Search, place) => Ok(Box::new(search::Search::over(load(place, study, cell, setting)?, study))),
        (Kind::Series, Place::Namespaces) => hosts::Flows::open(study, cell, setting),
        (Kind::Transfers, _) => hosts::Transfers::open(study, cell, setting),
        (Kind::Modes | Kind::Noise, Place::Namespaces) => hosts::Pings::open(study, cell, setting),
        (Kind::Keying, Place::Namespaces) => Ok(hosts::Daemon::open(setting)?),
        (Kind::Keying, _) => Ok(Box::new(memory::Keying::default())),
        (Kind::Sessions, _) => Ok(sessions::Sessions::open(cell)?),
        (Kind::Sas, _) => Ok(sas::Many::open(&subject(cell)?, cell)?),
        (Kind::Wire, _) => Ok(memory::Wire::open(&subject(cell)?)?),
        (Kind::Cipher, _) => Ok(memory::Cipher::open(&subject(cell)?)?),
        (Kind::Path, _) => Ok(path::Path::open(study, &subject(cell)?, cell)?),
        (Kind::Engines, _) => Ok(path::Engines::open(&subject(cell)?, cell)?),
        (Kind::Overheads, _) => Ok(memory::Overheads::open(cell, &subject(cell)?)?),
        (_, place) => Ok(Box::new(load(place, study, cell, setting)?)),
    }
}

fn subject(cell: &Cell) -> Result<Subject, NotOpen> {
    let subject = Subject::parse(&cell.subject).map_err(|error| NotOpen::Missing(error.to_string()))?;
    match &subject {
        Subject::Own(own) => match own.subject().and_then(|pair| pair.engine.unavailable()) {
            Some(why) => Err(NotOpen::Missing(format!("skipped: {why}"))),
            None => Ok(subject),
        },
        Subject::Rival(_) => Ok(subject),
    }
}

/// The generator, connected to the subject of a place.
fn load(place: Place, study: &Study, cell: &Cell, setting: &Setting) -> Result<memory::Loaded, NotOpen> {
    match place {
        Place::Memory => Ok(memory::path(study, &subject(cell)?, cell, &setting.interrupt)?),
        Place::Namespaces => hosts::load(study, cell, setting),
        Place::Interfaces => hosts::between(study, cell, setting),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_they_are_written() {
        assert_eq!(sizes("1400"), Ok(Sizes::Fixed(1400)));
        assert_eq!(sizes("64..1500"), Ok(Sizes::Random { min: 64, max: 1500 }));
        assert!(matches!(sizes("imix"), Ok(Sizes::Genome(_))));
        assert!(sizes("20").unwrap_err().to_string().contains("20 bytes"));
        assert!(sizes("big").unwrap_err().to_string().contains("'big'"));
        assert_eq!((one_size("1400"), one_size("imix")), (Some(1400), None));
    }
}
