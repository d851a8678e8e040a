//! From the name of a subject to something that can be measured. Whoever brings a new kind of study or a new rival adds
//! a line to [`open`].

use std::time::Duration;

use super::schedule::Cell;
use super::subject::Subject;
use super::{Kind, Place, Study, memory};
use crate::meter::MeterError;
use crate::traffic::{Rate, Sizes, Traffic};
use crate::trial::Measurement;

/// A subject that is set up, and is offered one trial after the other.
pub trait Runner {
    /// One trial.
    ///
    /// # Errors
    /// The subject is gone, or cannot be offered that.
    fn trial(&mut self, cell: &Cell, duration: Duration, seed: u64) -> Result<Measurement, MeterError>;
}

/// Genome of `imix`: seven of 64, four of 512, one of 1518 bytes.
pub const IMIX: &str = "imix:aaaaaaaddddg";

/// Reads traffic as campaigns write it: sizes, without flows and rate.
///
/// # Errors
/// What is wrong, and what to write instead.
pub fn sizes(text: &str) -> Result<Sizes, String> {
    let text = if text == "imix" { IMIX } else { text };
    text.parse().map_err(|error: crate::traffic::NotationError| error.to_string())
}

/// The one size of this traffic, where it has one, in bytes.
pub fn one_size(text: &str) -> Option<u32> {
    Traffic { sizes: sizes(text).ok()?, flows: 1, rate: Rate::Saturate }.size()
}

/// Why a subject cannot be measured here.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Missing(pub String);

/// Sets a subject up for a study.
///
/// # Errors
/// What is missing, in words for the report.
pub fn open(study: &Study, cell: &Cell) -> Result<Box<dyn Runner>, Missing> {
    let subject = Subject::parse(&cell.subject).map_err(|error| Missing(error.to_string()))?;
    match (study.kind, study.place) {
        (Kind::Scaling, _) => {
            Err(Missing("not built: the data plane has no scheduler that spreads one load over cores".into()))
        }
        (Kind::Sas, _) => Err(Missing("not built: the meter in memory has one SA for each direction".into())),
        (Kind::Keying, _) => Ok(Box::new(memory::Keying)),
        (Kind::Wire, _) => memory::Wire::open(&subject),
        (Kind::Overheads, Place::Memory) => memory::Overheads::open(study, &subject),
        (_, Place::Memory) => memory::Path::open(study, &subject, cell),
        (_, Place::Namespaces) => Err(Missing(
            "campaigns run in memory; weir lab modes, series and subjects --measure run between hosts".into(),
        )),
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
        assert!(sizes("20").unwrap_err().contains("20 bytes"));
        assert!(sizes("big").unwrap_err().contains("'big'"));
        assert_eq!((one_size("1400"), one_size("imix")), (Some(1400), None));
    }
}
