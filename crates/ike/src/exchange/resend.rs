//! Retransmission of a request until the response (RFC 7296 §2.1).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::config::Retransmit;
use crate::context::Context;
use crate::output::{IkeId, Level, Subsystem};

/// No wait is longer, whatever the configuration's factor makes of it.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Datagrams of one request and when they are due again.
pub(crate) struct Resend {
    datagrams: Vec<Vec<u8>>,
    /// Retransmissions so far.
    sent_again: u32,
    /// First transmission.
    first: Instant,
    due: Instant,
}

impl Resend {
    /// They were sent at `now`.
    pub(crate) fn new(now: Instant, retransmit: &Retransmit, datagrams: Vec<Vec<u8>>) -> Self {
        Self { datagrams, sent_again: 0, first: now, due: now + wait(retransmit, 0) }
    }

    /// Datagrams to send.
    pub(crate) fn datagrams(&self) -> &[Vec<u8>] {
        &self.datagrams
    }

    /// Time.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// As if they were sent for the first time at `now`.
    pub(crate) fn restart(&mut self, now: Instant, retransmit: &Retransmit) {
        (self.sent_again, self.first, self.due) = (0, now, now + wait(retransmit, 0));
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

/// Request without a response: for listings and the log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Unanswered {
    /// First transmission.
    pub since: Instant,
    /// Transmissions so far, at least 2.
    pub attempts: u32,
    /// Transmissions after which the peer is given up.
    pub attempts_max: u32,
}

impl Resend {
    /// State of the retransmission; `None` until the request is overdue and was sent again.
    pub(crate) fn unanswered(&self, retransmit: &Retransmit) -> Option<Unanswered> {
        let (attempts, attempts_max) = (self.sent_again + 1, retransmit.tries.saturating_add(1));
        (self.sent_again > 0).then_some(Unanswered { since: self.first, attempts, attempts_max })
    }

    /// Logs a retransmission to `remote`: at info within a rate limit that all IKE SAs share,
    /// because a network outage makes every peer silent at once.
    pub(crate) fn log(&self, ctx: &mut Context<'_>, ike: IkeId, remote: SocketAddr, retransmit: &Retransmit) {
        let Some(silence) = self.unanswered(retransmit) else { return };
        // Many peers may be unreachable at once; further lines are still available at the debug
        // level.
        let level = if ctx.names.retransmission_lines.allows(ctx.now) { Level::Info } else { Level::Debug };
        let seconds = ctx.now.saturating_duration_since(silence.since).as_secs();
        let Unanswered { attempts, attempts_max, .. } = silence;
        let text =
            format!("no answer from {remote} after {seconds} s, retransmitting (attempt {attempts} of {attempts_max})");
        ctx.log(level, Subsystem::Net, Some(ike), text);
    }
}

/// The n-th wait: `timeout * base^n`.
fn wait(retransmit: &Retransmit, n: u32) -> Duration {
    // Exponential back-off (RFC 7296 §2.1). The exponent is limited because infinity would not
    // convert to a duration.
    let factor = retransmit.base.max(1.0).powi(n.min(1000) as i32);
    let seconds = retransmit.timeout.as_secs_f64() * factor;
    // One hour at most, because a configured base could otherwise disable retransmission.
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
