//! Active queue management (RFC 7567): a worker should not have a standing queue before it.
//!
//! The kernel's queues of TUN devices and sockets are first-in first-out. A TUN device takes
//! packets off the account of their sender, so that TCP's limit of bytes in queues does not apply:
//! windows grow until they fill what the queue holds, and every packet waits for all of it. [`Aqm`]
//! has the control law of CoDel (RFC 8289 §5), with another signal, because packets have no time of
//! arrival: a standing queue is one whose end no receive call has found for an interval, however
//! long a packet waits in it. It runs once per receive call, so that a packet costs nothing.

use dataplane::{Batch, Packet};

/// State of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Aqm {
    /// Time without a drop while the end of the queue is not found, in milliseconds; 0: forever.
    interval_ms: u64,
    /// Time of the first receive call that did not find the end of the queue; `None` after one that
    /// found it.
    since_ms: Option<u64>,
    /// Time of the next drop, or of the one that did not become necessary.
    next_ms: u64,
    /// Drops since the queue is a standing queue, or was one the last time.
    drops: u32,
    /// It is a standing queue: the dropping state of CoDel.
    dropping: bool,
}

/// Intervals within which a queue that is a standing queue again gets its earlier rate of drops
/// (RFC 8289 §5.4).
const RECENT: u64 = 16;

impl Aqm {
    pub(super) fn new(interval_ms: u64) -> Self {
        Self { interval_ms, ..Self::default() }
    }

    /// After a receive call that found the end of the queue or not: returns whether one of its
    /// packets should be dropped.
    pub(super) fn drops(&mut self, found_end: bool, now_ms: u64) -> bool {
        if found_end || self.interval_ms == 0 {
            (self.since_ms, self.dropping) = (None, false);
            return false;
        }
        if now_ms < *self.since_ms.get_or_insert(now_ms) + self.interval_ms {
            return false;
        }
        if !self.dropping {
            let recent = now_ms < self.next_ms + RECENT * self.interval_ms;
            self.drops = if recent { self.drops.saturating_sub(2).max(1) } else { 1 };
            (self.dropping, self.next_ms) = (true, now_ms);
        } else if now_ms < self.next_ms {
            return false;
        } else {
            self.drops = self.drops.saturating_add(1);
        }
        self.next_ms += ((self.interval_ms as f64 / f64::from(self.drops).sqrt()) as u64).max(1);
        true
    }
}

/// Removes the first of the longest packets of a batch. Flows that fill a queue usually have full
/// packets; a shorter packet beside one of those is never dropped. Returns false if there is none.
pub(super) fn drop_longest(batch: &mut Batch) -> bool {
    let lengths = batch.packets().iter().map(Packet::len).enumerate();
    let longest = lengths.rev().max_by_key(|(_, len)| *len).map(|(at, _)| at);
    batch.retain(|at, _| Some(at) != longest);
    longest.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls once a millisecond; returns the times of drops.
    fn times(aqm: &mut Aqm, calls: std::ops::Range<u64>, found_end: impl Fn(u64) -> bool) -> Vec<u64> {
        calls.filter(|ms| aqm.drops(found_end(*ms), *ms)).collect()
    }

    #[test]
    fn a_standing_queue_loses_packets_at_the_rate_of_codel() {
        let mut aqm = Aqm::new(100);
        assert_eq!(times(&mut aqm, 0..100, |_| false), [], "an interval is allowed");
        // 100 ms / √n after the n-th drop.
        assert_eq!(times(&mut aqm, 100..400, |_| false), [100, 200, 270, 327, 377]);
        assert_eq!(times(&mut aqm, 400..1000, |ms| ms % 100 == 0), [], "its end was found");
        // A standing queue again soon: nearly at the earlier rate.
        assert_eq!(times(&mut aqm, 1000..1300, |ms| ms == 1000), [1101, 1158, 1208, 1252, 1292]);
        assert_eq!(times(&mut aqm, 9000..9300, |ms| ms == 9000), [9101, 9201, 9271], "later from the start");
    }

    #[test]
    fn a_burst_after_a_pause_is_no_standing_queue() {
        let mut aqm = Aqm::new(100);
        assert!(!aqm.drops(true, 0) && !aqm.drops(false, 5000) && !aqm.drops(false, 5099) && aqm.drops(false, 5100));
        assert_eq!(times(&mut Aqm::new(0), 0..9000, |_| false), [], "0: never");
    }

    #[test]
    fn a_long_packet_is_dropped_and_the_order_of_the_others_is_kept() {
        let mut batch = Batch::new(4, 2000);
        for packet in [&[1; 100][..], &[2; 1400], &[3; 1400], &[4; 64]] {
            batch.push_with(|buffer| buffer.set(packet));
        }
        assert!(drop_longest(&mut batch));
        assert_eq!(batch.packets().iter().map(|packet| packet.bytes()[0]).collect::<Vec<_>>(), [1, 3, 4]);
        let mut none = Batch::new(1, 100);
        assert!(!drop_longest(&mut none), "nothing to count");
    }
}
