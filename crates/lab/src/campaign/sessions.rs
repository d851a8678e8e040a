//! A study of session set-ups in memory.

use std::time::Duration;

use super::runner::{Missing, Runner};
use super::schedule::Cell;
use crate::meter::MeterError;
use crate::sessions::{Setups, Subject};
use crate::trial::Measurement;

/// Set-ups of one subject.
pub(super) struct Sessions {
    setups: Setups,
    name: String,
}

impl Sessions {
    pub(super) fn open(cell: &Cell) -> Result<Box<dyn Runner>, Missing> {
        let subject: Subject = cell.subject.parse().map_err(|error| Missing(format!("{error}")))?;
        let no_sockets = |error: std::io::Error| Missing(format!("two UDP sockets of the loopback interface: {error}"));
        let setups = Setups::new(subject).map_err(no_sockets)?;
        Ok(Box::new(Self { setups, name: cell.subject.clone() }))
    }
}

impl Runner for Sessions {
    fn trial(&mut self, _: &Cell, duration: Duration, seed: u64) -> Result<Measurement, MeterError> {
        let failed =
            |why: crate::sessions::NoSession| MeterError::Subject { subject: self.name.clone(), why: why.to_string() };
        self.setups.trial(duration, seed).map_err(failed)
    }
}
