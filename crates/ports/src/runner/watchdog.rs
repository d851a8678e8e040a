//! Detection of workers that hang: a port that does not return, an infinite loop, a CPU that
//! another program occupies.
//!
//! A worker counts the iterations of its main loop, at least ten per second. The control thread
//! reads the counts and reports a worker whose count is constant. Nothing else is done: the packets
//! of such a worker wait or are lost at its ports, and no other worker may use its SAs, because a
//! replay window has one writer.

use std::time::{Duration, Instant};

/// Time without an iteration after which a worker is reported to hang.
pub(super) const HANGS_AFTER: Duration = Duration::from_secs(5);
/// Maximum time between two checks. After a longer one the timers restart, because the whole
/// process may have been stopped.
const LONGEST_BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Iteration counts of all workers, and when they last changed.
#[derive(Default)]
pub(super) struct Watchdog {
    workers: Vec<Seen>,
    looked: Option<Instant>,
}

struct Seen {
    turns: u64,
    /// Time at which the count was first read.
    since: Instant,
    hangs: bool,
}

impl Watchdog {
    /// Checks the counts of all workers. Returns those that hang since the last check (`true`) and
    /// those that have resumed.
    pub(super) fn look(&mut self, now: Instant, turns: impl IntoIterator<Item = u64>) -> Vec<(usize, bool)> {
        let before = self.looked.replace(now);
        let anew = before.is_none_or(|before| now - before > LONGEST_BETWEEN_LOOKS);
        let mut changed = Vec::new();
        for (worker, turns) in turns.into_iter().enumerate() {
            let Some(seen) = self.workers.get_mut(worker) else {
                self.workers.push(Seen { turns, since: now, hangs: false });
                continue;
            };
            if seen.turns != turns || (anew && !seen.hangs) {
                (seen.turns, seen.since) = (turns, now);
            }
            let hangs = now - seen.since >= HANGS_AFTER;
            if std::mem::replace(&mut seen.hangs, hangs) != hangs {
                changed.push((worker, hangs));
            }
        }
        changed
    }

    /// Returns whether a worker hung at the last check.
    pub(super) fn any(&self) -> bool {
        self.workers.iter().any(|seen| seen.hangs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_stands_still_is_told_once_and_so_is_its_going_on() {
        let (start, mut watch, mut reported) = (Instant::now(), Watchdog::default(), vec![]);
        for tenth in 0..100 {
            // The second one stops after two seconds and goes on after nine.
            let second = if tenth < 20 { tenth } else { 20 + u64::from(tenth >= 90) };
            let now = start + Duration::from_millis(100 * tenth);
            reported.extend(watch.look(now, [tenth, second]).into_iter().map(|one| (tenth, one)));
            assert_eq!(watch.any(), (70..90).contains(&tenth), "{tenth}");
        }
        assert_eq!(reported, [(70, (1, true)), (90, (1, false))]);
    }

    #[test]
    fn a_watchdog_that_was_suspended_itself_reports_no_worker() {
        let (start, mut watch) = (Instant::now(), Watchdog::default());
        for (ms, turns) in [(0, 1), (900, 1), (60_000, 1), (60_900, 1), (64_000, 2)] {
            assert_eq!(watch.look(start + Duration::from_millis(ms), [turns]), []);
        }
        // One that hung before hangs still.
        let mut at = |s: u64| watch.look(start + Duration::from_secs(s), [2]).len();
        assert_eq!([65, 66, 67, 68, 69, 99].map(&mut at), [0, 0, 0, 0, 1, 0]);
        assert!(watch.any());
    }
}
