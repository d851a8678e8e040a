//! Times at which outer packets leave.

/// Shortest time between two bursts in ns: shorter ones depend on the accuracy of timers.
pub const MIN_INTERVAL_NS: u64 = 50_000;
/// Most packets of a burst.
pub const MAX_BURST: u64 = 64;
/// A schedule that is further behind starts again from the present time, in ns. A host that was
/// suspended must not send for minutes what it did not send before.
const MAX_LATE_NS: u64 = 1_000_000_000;

/// Time of slot `n` after slot 0 in ns, for packets of `len` bytes at `rate_kbps` kbit/s. Exact
/// for each slot, so that rounding does not add up.
pub fn slot_ns(n: u64, len: u64, rate_kbps: u32) -> u64 {
    // Bits per kbit/s are ms.
    (u128::from(n) * u128::from(len * 8) * 1_000_000 / u128::from(rate_kbps.max(1))) as u64
}

/// Packets that leave together: one, or as many as fill the shortest interval.
pub fn burst(len: u64, rate_kbps: u32) -> u64 {
    (1..MAX_BURST).find(|count| slot_ns(*count, len, rate_kbps) >= MIN_INTERVAL_NS).unwrap_or(MAX_BURST)
}

/// The absolute schedule of a stream: slot `n` is `n` intervals after the start, whatever happened
/// to the slots before. Contains no state of the queue.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    start_ns: u64,
    /// Slots that have passed.
    passed: u64,
    /// Slots of a burst.
    pub(super) burst: u64,
    len: u64,
    rate_kbps: u32,
}

/// Deviation of a burst from its time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Punctuality {
    /// The next burst was not due yet.
    OnTime,
    /// The next burst was due.
    Late,
    /// So late that the schedule was restarted.
    Restarted,
}

impl Schedule {
    /// Starts at `now_ns`, with bursts for packets of `size` bytes, of which each has `len`.
    pub(super) fn new(now_ns: u64, burst: u64, len: u64, rate_kbps: u32) -> Self {
        Self { start_ns: now_ns, passed: 0, burst, len, rate_kbps }
    }

    /// Returns whether the schedule is for packets of this length and rate.
    pub(super) fn is_for(&self, burst: u64, len: u64, rate_kbps: u32) -> bool {
        (self.burst, self.len, self.rate_kbps) == (burst, len, rate_kbps)
    }

    /// Time of the next burst.
    pub(super) fn due_ns(&self) -> u64 {
        self.start_ns + slot_ns(self.passed, self.len, self.rate_kbps)
    }

    /// Passes the slots of a burst that is sent at `now_ns`.
    pub(super) fn pass(&mut self, now_ns: u64) -> Punctuality {
        let late_ns = now_ns.saturating_sub(self.due_ns());
        self.passed += self.burst;
        if late_ns > MAX_LATE_NS {
            // The next burst is one interval after this one.
            (self.start_ns, self.passed) = (now_ns, self.burst);
            Punctuality::Restarted
        } else if now_ns >= self.due_ns() {
            Punctuality::Late
        } else {
            Punctuality::OnTime
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_exact_after_years() {
        // 1400 bytes at 100 Mbit/s: 112 µs.
        assert_eq!(slot_ns(1, 1400, 100_000), 112_000);
        // At 3 Mbit/s a slot is no whole number of ns.
        assert_eq!(slot_ns(3, 1400, 3_000), 11_200_000);
        assert_eq!(slot_ns(3_000_000_000, 1400, 3_000), 11_200_000_000_000_000);
        assert_eq!(slot_ns(1, 1280, 8), 1_280_000_000);
    }

    #[test]
    fn short_intervals_are_joined_to_bursts() {
        let of = |len, rate| (burst(len, rate), slot_ns(burst(len, rate), len, rate));
        assert_eq!(of(1400, 100_000), (1, 112_000));
        assert_eq!(of(1400, 1_000_000), (5, 56_000));
        assert_eq!(of(256, 100_000), (3, 61_440));
        assert_eq!(of(256, 10_000_000), (64, 13_107));
    }

    #[test]
    fn no_slot_is_skipped_and_late_ones_go_at_once() {
        let mut schedule = Schedule::new(1_000, 1, 1400, 100_000);
        assert_eq!(schedule.due_ns(), 1_000);
        assert_eq!(schedule.pass(1_500), Punctuality::OnTime);
        assert_eq!(schedule.due_ns(), 113_000, "from the start, not from the time of sending");
        // 350 µs behind: three slots at once, then as before.
        assert_eq!(schedule.pass(463_000), Punctuality::Late);
        assert_eq!(schedule.pass(463_001), Punctuality::Late);
        assert_eq!(schedule.pass(463_002), Punctuality::Late);
        assert_eq!(schedule.pass(463_003), Punctuality::OnTime);
        assert_eq!(schedule.due_ns(), 1_000 + 5 * 112_000);
    }

    #[test]
    fn a_schedule_far_behind_starts_again() {
        let mut schedule = Schedule::new(0, 2, 1400, 100_000);
        assert_eq!(schedule.pass(MAX_LATE_NS), Punctuality::Late);
        assert_eq!(schedule.pass(MAX_LATE_NS + 224_001), Punctuality::Restarted);
        assert_eq!(schedule.due_ns(), MAX_LATE_NS + 224_001 + 224_000);
    }
}
