//! Discrete-event simulations that check the formulas.

use std::collections::VecDeque;

use super::queue::Service;
use crate::stats::{Rng, quantile_sorted};

/// How packets arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// With exponential gaps.
    Poisson,
    /// In bursts of this many at once, bursts with exponential gaps: how sensitive a prediction is to bursts.
    Bursts(u32),
}

/// What a simulated queue did. Times from arrival to completion in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Simulated {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Share of packets that found no room.
    pub loss: f64,
}

fn uniform(rng: &mut Rng) -> f64 {
    // Never 0: its logarithm is taken.
    ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// Simulates `packets` packets at load `rho` with room for `room` packets, the one in service included; endless for `None`.
pub fn queue(
    service: &Service,
    rho: f64,
    room: Option<usize>,
    arrivals: Arrivals,
    packets: usize,
    seed: u64,
) -> Simulated {
    let mut rng = Rng::new(seed);
    let burst = if let Arrivals::Bursts(n) = arrivals { n.max(1) } else { 1 };
    let mean_gap = service.moment(1) / rho * f64::from(burst);
    let mut leaves: VecDeque<f64> = VecDeque::new();
    let mut times = Vec::with_capacity(packets);
    let (mut now, mut free_at, mut lost) = (0.0, 0.0f64, 0u64);
    for i in 0..packets {
        if (i as u32).is_multiple_of(burst) {
            now -= mean_gap * uniform(&mut rng).ln();
        }
        while leaves.front().is_some_and(|at| *at <= now) {
            leaves.pop_front();
        }
        if room.is_some_and(|room| leaves.len() >= room) {
            lost += 1;
            continue;
        }
        free_at = free_at.max(now) + draw(service, &mut rng);
        leaves.push_back(free_at);
        times.push(free_at - now);
    }
    times.sort_by(f64::total_cmp);
    Simulated {
        mean: times.iter().sum::<f64>() / times.len() as f64,
        p50: quantile_sorted(&times, 0.5),
        p99: quantile_sorted(&times, 0.99),
        loss: lost as f64 / packets as f64,
    }
}

fn draw(service: &Service, rng: &mut Rng) -> f64 {
    let mut left = uniform(rng);
    for (time, share) in service.parts() {
        left -= share;
        if left <= 0.0 {
            return *time;
        }
    }
    service.parts().last().map_or(0.0, |p| p.0)
}

#[cfg(test)]
mod tests {
    use super::super::Mix;
    use super::*;

    #[test]
    fn bursts_wait_longer_and_a_seed_repeats_exactly() {
        let service = Service::of(&Mix::one(64.0).unwrap(), |_| 100.0);
        let poisson = queue(&service, 0.7, None, Arrivals::Poisson, 50_000, 1);
        let bursts = queue(&service, 0.7, None, Arrivals::Bursts(16), 50_000, 1);
        assert!(bursts.p99 > 3.0 * poisson.p99 && bursts.mean > poisson.mean);
        assert_eq!(poisson, queue(&service, 0.7, None, Arrivals::Poisson, 50_000, 1));
        assert_eq!(poisson.loss, 0.0);
    }
}
