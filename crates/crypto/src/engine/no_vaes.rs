//! Stub of `vaes` for processors other than x86-64.

use super::protect::State;
use crate::{Job, KeyMaterial, Keys, Suite};

/// No key is of this engine.
pub(crate) enum GcmKey {}

pub(crate) fn unavailable() -> Option<&'static str> {
    Some("it is made of instructions of x86-64")
}

pub(crate) fn not_default() -> Option<&'static str> {
    unavailable()
}

pub(crate) fn describe() -> String {
    String::new()
}

pub(crate) fn expand(_: &Suite, _: KeyMaterial<'_>, other: State) -> State {
    other
}

pub(crate) fn seal(_: Keys<'_>, jobs: &mut [Job<'_>]) {
    jobs.iter_mut().for_each(|job| (job.sealed, job.verified) = (false, false));
}

pub(crate) fn open(keys: Keys<'_>, jobs: &mut [Job<'_>]) {
    seal(keys, jobs);
}
