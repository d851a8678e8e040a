//! Memory that is not swapped: keys would be on the disk then, and outlive the process.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Part;

/// Locks every page that this process touches from now on. To be called before privileges are
/// dropped, because only a privileged process may raise the limit, and beyond a limit the next
/// allocation would fail.
///
/// Pages are locked when they are first touched: buffers that no packet reaches into take no
/// memory.
pub(crate) fn lock() -> Part {
    let unlimited = Rlimit { current: None, maximum: None };
    if getrlimit(Resource::Memlock) != unlimited
        && let Err(error) = setrlimit(Resource::Memlock, unlimited)
    {
        let why = "cannot raise the limit of locked memory (LimitMEMLOCK=infinity in a unit, or ulimit -l unlimited)";
        return Part::Absent(format!("{why}: {error}; keys may be swapped"));
    }
    match mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT) {
        Ok(()) => Part::Full("mlockall".into()),
        Err(error) => Part::Absent(format!("mlockall: {error}; keys may be swapped")),
    }
}
