//! The CPUs that this process may use, and which of them a thread runs on.

use rustix::io;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs that are in the affinity mask of the calling thread and online, in order. Empty if unknown.
pub fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Keeps the calling thread on `cpu`.
///
/// # Errors
/// The operating system's: the CPU is not there (any more), or is not allowed. Nothing has changed
/// then.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the affinity of a thread of its own is changed")]
    fn a_thread_stays_where_it_was_put() {
        let first = *allowed().first().unwrap();
        std::thread::spawn(move || {
            pin(first).unwrap();
            assert_eq!(allowed(), [first]);
            assert!(pin(usize::MAX).is_err());
            assert_eq!(allowed(), [first]);
        })
        .join()
        .unwrap();
    }
}
