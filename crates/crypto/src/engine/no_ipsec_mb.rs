//! Stub of `ipsec_mb` for builds without the library.

use super::protect::State;
use crate::{Job, KeyMaterial, Keys, Suite};

/// No key is of this engine.
pub(crate) enum Expanded {}

pub(crate) fn unavailable() -> Option<&'static str> {
    Some("this build has no intel-ipsec-mb; install libipsec-mb-dev (Debian's name; x86-64 only) and build again")
}

pub(crate) fn describe() -> String {
    String::new()
}

pub(crate) fn is_multi_buffer(key: &Expanded) -> bool {
    match *key {}
}

pub(crate) fn expand(_: &Suite, _: KeyMaterial<'_>, single: State) -> State {
    single
}

pub(crate) fn seal(_: Keys<'_>, jobs: &mut [Job<'_>]) {
    jobs.iter_mut().for_each(|job| (job.sealed, job.verified) = (false, false));
}

pub(crate) fn open(keys: Keys<'_>, jobs: &mut [Job<'_>]) {
    seal(keys, jobs);
}
