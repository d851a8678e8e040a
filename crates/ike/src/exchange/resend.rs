//! A request that goes out again until it is answered (RFC 7296 §2.1).

use std::time::{Duration, Instant};

use crate::config::Retransmit;

/// No wait is longer, whatever the configuration's factor makes of it.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Datagrams of one request and when they are due again.
pub(crate) struct Resend {
    datagrams: Vec<Vec<u8>>,
    /// Retransmissions so far.
    sent_again: u32,
    due: Instant,
}

impl Resend {
    /// They were sent at `now`.
    pub(crate) fn new(now: Instant, retransmit: &Retransmit, datagrams: Vec<Vec<u8>>) -> Self {
        Self { datagrams, sent_again: 0, due: now + wait(retransmit, 0) }
    }

    /// What to send.
    pub(crate) fn datagrams(&self) -> &[Vec<u8>] {
        &self.datagrams
    }

    /// When.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// As if they were sent for the first time at `now`.
    pub(crate) fn restart(&mut self, now: Instant, retransmit: &Retransmit) {
        (self.sent_again, self.due) = (0, now + wait(retransmit, 0));
    }

    /// Counts one more retransmission at `now`; false when there were enough.
    pub(crate) fn again(&mut self, now: Instant, retransmit: &Retransmit) -> bool {
        if self.sent_again >= retransmit.tries {
            return false;
        }
        self.sent_again += 1;
        self.due = now + wait(retransmit, self.sent_again);
        true
    }
}

/// The n-th wait: `timeout * base^n`.
fn wait(retransmit: &Retransmit, n: u32) -> Duration {
    let factor = retransmit.base.max(1.0).powi(n.min(1000) as i32);
    let seconds = retransmit.timeout.as_secs_f64() * factor;
    Duration::try_from_secs_f64(seconds).unwrap_or(WAIT_MAX).min(WAIT_MAX)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // a test begins at some time
mod tests {
    use super::*;

    #[test]
    fn the_default_gives_up_after_165_seconds() {
        let (start, retransmit) = (Instant::now(), Retransmit::default());
        let mut resend = Resend::new(start, &retransmit, Vec::new());
        let mut sends = 1;
        while resend.again(resend.due(), &retransmit) {
            sends += 1;
        }
        assert_eq!((sends, (resend.due() - start).as_secs()), (6, 165));
    }

    #[test]
    fn absurd_factors_do_not_overflow() {
        let retransmit = Retransmit { timeout: Duration::MAX, base: 1e300, tries: 3 };
        assert_eq!(wait(&retransmit, 2), WAIT_MAX);
        assert_eq!(wait(&Retransmit { base: f64::NAN, ..Retransmit::default() }, 2), Duration::from_secs(4));
    }
}
