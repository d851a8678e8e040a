//! Rate limit of responses and log lines that unauthenticated peers can cause.

use std::time::{Duration, Instant};

/// So many per second, and as many at once.
pub(crate) struct Limit {
    per_second: u32,
    left: u32,
    since: Option<Instant>,
}

impl Default for Limit {
    /// Five per second: enough for log lines of one fault, too few to fill a disk.
    fn default() -> Self {
        Self::new(5)
    }
}

impl Limit {
    pub(crate) fn new(per_second: u32) -> Self {
        Self { per_second, left: per_second, since: None }
    }

    /// Returns whether one more is allowed at `now`; counts it.
    pub(crate) fn allows(&mut self, now: Instant) -> bool {
        let second = Duration::from_secs(1);
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= second) {
            (self.since, self.left) = (Some(now), self.per_second);
        }
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // a test begins at some time
mod tests {
    use super::*;

    #[test]
    fn each_second_has_its_share() {
        let (start, mut limit) = (Instant::now(), Limit::new(3));
        let mut allowed = |after| (0..5).filter(|_| limit.allows(start + Duration::from_millis(after))).count();
        assert_eq!((allowed(0), allowed(999), allowed(1000), allowed(60_000)), (3, 0, 3, 3));
    }
}
