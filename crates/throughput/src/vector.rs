//! Batches and caches: fixed cost of a call of the path, and cost of packets that are in no cache.
//!
//! A batch of k packets takes T₀ + k·t₁. At a load of λ packets per unit of time, a path that takes
//! all waiting packets settles at k* = λT₀ / (1 − λt₁), so that the cost per packet decreases with
//! the load.

use serde::{Deserialize, Serialize};

use super::fit::UNDISTURBED;
use super::linear::least_squares;
use stats::{Estimate, Rng, over_clusters, quantile_sorted};

/// Packets in a batch and nanoseconds per packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchSample {
    /// Packets per batch.
    pub batch: f64,
    /// Nanoseconds per packet.
    pub ns: f64,
}

/// The cost of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct VectorCost {
    /// T₀ in nanoseconds, 95 % over sessions.
    pub call_ns: Estimate,
    /// t₁ in nanoseconds, 95 % over sessions.
    pub packet_ns: Estimate,
    /// Largest relative error at its own points, in percent.
    pub worst_percent: f64,
}

impl VectorCost {
    /// Fits sessions of samples, relative errors minimised; `None` for fewer than three different
    /// batches.
    pub fn fit(sessions: &[Vec<BatchSample>]) -> Option<Self> {
        let figures = over_clusters(sessions, line, &mut Rng::new(1))?;
        let (call_ns, packet_ns) = (figures[0], figures[1]);
        let worst = undisturbed(&sessions.concat())
            .iter()
            .map(|s| ((packet_ns.value + call_ns.value / s.batch) / s.ns - 1.0).abs() * 100.0)
            .fold(0.0, f64::max);
        Some(Self { call_ns, packet_ns, worst_percent: worst })
    }
}

fn line(samples: &[BatchSample]) -> Option<Vec<f64>> {
    let points = undisturbed(samples);
    if points.len() < 3 {
        return None;
    }
    let rows: Vec<Vec<f64>> = points.iter().map(|s| vec![1.0 / s.batch / s.ns, 1.0 / s.ns]).collect();
    least_squares(&rows, &vec![1.0; points.len()]).map(|solution| solution.coef)
}

/// Each batch size once, with the lower quartile of its times.
fn undisturbed(samples: &[BatchSample]) -> Vec<BatchSample> {
    let mut batches: Vec<f64> = samples.iter().map(|s| s.batch).collect();
    batches.sort_by(f64::total_cmp);
    batches.dedup();
    let of = |batch: f64| {
        let mut ns: Vec<f64> = samples.iter().filter(|s| s.batch == batch).map(|s| s.ns).collect();
        ns.sort_by(f64::total_cmp);
        BatchSample { batch, ns: quantile_sorted(&ns, UNDISTURBED) }
    };
    batches.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> Vec<Vec<BatchSample>> {
        let mut rng = Rng::new(2);
        (0..5)
            .map(|_| {
                let level = 1.0 + 0.01 * (rng.unit() - 0.5);
                let of = |batch: f64| BatchSample { batch, ns: (120.0 + 300.0 / batch) * level };
                [1.0, 2.0, 4.0, 16.0, 64.0, 256.0].map(of).into()
            })
            .collect()
    }

    #[test]
    fn a_call_and_a_packet_are_told_apart() {
        let cost = VectorCost::fit(&sessions()).unwrap();
        assert!((cost.call_ns.value / 300.0 - 1.0).abs() < 0.01, "{cost:?}");
        assert!((cost.packet_ns.value / 120.0 - 1.0).abs() < 0.01, "{cost:?}");
        assert!(cost.packet_ns.low < 120.5 && 119.5 < cost.packet_ns.high && cost.worst_percent < 1.0, "{cost:?}");
        assert_eq!(VectorCost::fit(&[sessions()[0][..2].to_vec()]), None);
    }
}
