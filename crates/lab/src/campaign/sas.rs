//! The study `sas`: one factor, the number of SAs.

use std::time::Duration;

use super::memory::own;
use super::runner::{Missing, Runner, one_size};
use super::schedule::Cell;
use super::subject::Subject;
use crate::many::{self, ManyError};
use crate::meter::MeterError;
use crate::trial::Measurement;
use testbed::MemorySubject;

/// Largest packet.
const LARGEST: u32 = 1900;

/// So many SAs of a subject.
pub(super) struct Many {
    many: many::Many,
    name: String,
}

impl Many {
    pub(super) fn open(subject: &Subject, cell: &Cell) -> Result<Box<dyn Runner>, Missing> {
        let MemorySubject::Path(pair) = own(subject)? else {
            return Err(Missing("has no SAs to count".into()));
        };
        let pair = testbed::pair::Subject { window: cell.replay, ..pair.clone() };
        let many = many::Many::new(&pair, cell.sas, cell.batch as usize);
        let many = many.map_err(|error| Missing(format!("{} SAs: {error}", cell.sas)))?;
        Ok(Box::new(Self { many, name: cell.subject.clone() }))
    }
}

impl Runner for Many {
    fn trial(&mut self, cell: &Cell, duration: Duration, _: u64) -> Result<Measurement, MeterError> {
        let size = one_size(&cell.traffic).filter(|size| *size <= LARGEST);
        let size = size.ok_or_else(|| MeterError::Unsupported(format!("it needs one size of at most {LARGEST}")))?;
        let wrong = |error: ManyError| MeterError::Subject { subject: self.name.clone(), why: error.to_string() };
        self.many.trial(cell.direction, size as usize, duration).map_err(wrong)
    }
}
