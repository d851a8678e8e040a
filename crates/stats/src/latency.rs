//! Latency from the intended time of departure to the arrival.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

/// Upper bound of the histogram, in nanoseconds: a minute.
const LONGEST_NS: u64 = 60_000_000_000;
/// Digits that are kept.
const DIGITS: u8 = 3;

/// A distribution of latencies, in nanoseconds. Measured from the intended time of sending, so that
/// a stall counts for every packet that had to wait for it and no correction for coordinated
/// omission is needed afterwards.
#[derive(Clone)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("the bounds are constant and valid"))
    }
}

impl Latency {
    /// Adds a packet that arrived at `now_ns` and should have left at `intended_ns`.
    #[inline]
    pub fn record(&mut self, intended_ns: u64, now_ns: u64) {
        self.0.saturating_record(now_ns.saturating_sub(intended_ns).max(1));
    }

    /// Adds all of another distribution.
    pub fn merge(&mut self, other: &Self) {
        // Both have the same bounds, so every value fits.
        let _ = self.0.add(&other.0);
    }

    /// Packets.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Smallest time in nanoseconds, 0 without packets.
    pub fn min_ns(&self) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.min() }
    }

    /// Largest time in nanoseconds, 0 without packets.
    pub fn max_ns(&self) -> u64 {
        self.0.max()
    }

    /// Mean in nanoseconds.
    pub fn mean_ns(&self) -> f64 {
        self.0.mean()
    }

    /// A percentile, 0 to 100, in nanoseconds; `None` with fewer than 100/(1 − p) packets, which
    /// are not sufficient (RFC 8219 requires 500 for a median; this rule rejects only meaningless
    /// values).
    pub fn percentile_ns(&self, percentile: f64) -> Option<u64> {
        let least = 100.0 / (1.0 - percentile / 100.0).max(f64::EPSILON);
        (self.count() as f64 >= least.min(1e18)).then(|| self.0.value_at_percentile(percentile))
    }

    /// Times with the packets that took them, in nanoseconds.
    pub fn points(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.0.iter_recorded().map(|v| (v.value_iterated_to() as f64, v.count_at_value() as f64))
    }

    /// Packet delay variation (RFC 5481 §4.2): the 99.9 % point over the smallest, in nanoseconds.
    pub fn pdv_ns(&self) -> Option<u64> {
        Some(self.percentile_ns(99.9)?.saturating_sub(self.min_ns()))
    }

    /// As it is kept in a trial: HdrHistogram V2 deflate, base64. `None` without packets.
    pub fn encode(&self) -> Option<String> {
        let mut bytes = Vec::new();
        let wrote = V2DeflateSerializer::new().serialize(&self.0, &mut bytes);
        (self.count() > 0 && wrote.is_ok()).then(|| STANDARD.encode(bytes))
    }

    /// Reads what [`Latency::encode`] wrote; `None` when it is something else.
    pub fn decode(text: &str) -> Option<Self> {
        let bytes = STANDARD.decode(text).ok()?;
        Deserializer::new().deserialize(&mut bytes.as_slice()).ok().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_counts_for_all_who_waited() {
        let mut latency = Latency::default();
        // A packet every µs; the subject stalls for 1 ms after the first and then sends all at
        // once.
        for n in 0..1000 {
            latency.record(n * 1000, 1_000_000);
        }
        let median = latency.percentile_ns(50.0).unwrap();
        assert!(median.abs_diff(500_000) < 2000, "{median}");
        assert_eq!(latency.percentile_ns(99.0), None, "1000 packets are too few");
    }

    #[test]
    fn it_reads_back_as_it_was() {
        let mut latency = Latency::default();
        (1..=20_000).for_each(|n| latency.record(0, n * 100));
        let back = Latency::decode(&latency.encode().unwrap()).unwrap();
        assert_eq!((back.count(), back.max_ns()), (20_000, latency.max_ns()));
        assert_eq!(back.percentile_ns(99.0), latency.percentile_ns(99.0));
        assert!(latency.pdv_ns().is_none() || latency.pdv_ns() > Some(1_900_000));
        assert!(Latency::decode("?").is_none() && Latency::decode("AAAA").is_none());
        assert_eq!(Latency::default().encode(), None);
    }

    #[test]
    fn two_add_up() {
        let (mut a, mut b) = (Latency::default(), Latency::default());
        a.record(0, 10);
        b.record(5, 1_000_005);
        a.merge(&b);
        assert_eq!((a.count(), a.min_ns()), (2, 10));
    }
}
