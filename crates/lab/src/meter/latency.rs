//! Latency in measurements.

use crate::metric::Metric;
use crate::trial::Measurement;
use stats::Latency;

/// Percentiles that are reported.
pub const PERCENTILES: [(f64, Metric<'static>); 5] = [
    (50.0, Metric::LatencyP50),
    (90.0, Metric::LatencyP90),
    (99.0, Metric::LatencyP99),
    (99.9, Metric::LatencyP999),
    (99.99, Metric::LatencyP9999),
];

/// Puts a distribution and its usual figures into a measurement.
pub(crate) fn store(latency: &Latency, measured: &mut Measurement) {
    measured.latency = latency.encode();
    if latency.count() == 0 {
        return;
    }
    let known = PERCENTILES.iter().filter_map(|(p, key)| Some((*key, latency.percentile_ns(*p)?)));
    let ends = [(Metric::LatencyMin, latency.min_ns()), (Metric::LatencyMax, latency.max_ns())];
    let pdv = latency.pdv_ns().map(|pdv| (Metric::LatencyPdv, pdv));
    measured.values.extend(known.chain(ends).chain(pdv).map(|(metric, ns)| (metric, ns as f64)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_need_sufficient_packets() {
        let mut latency = Latency::default();
        (1..=20_000).for_each(|n| latency.record(0, n * 100));
        let mut measured = Measurement::default();
        store(&latency, &mut measured);
        assert!(measured.values.get(Metric::LatencyP50).unwrap() > 990_000.0);
        assert!(measured.values.get(Metric::LatencyP9999).is_none());
        assert_eq!(measured.latency, latency.encode());
    }
}
