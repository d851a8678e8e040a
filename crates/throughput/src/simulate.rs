//! Discrete-event simulation of a server that takes batches.

use std::collections::VecDeque;

use super::queue::Service;
use stats::{Rng, quantile_sorted};

/// Result of a simulated queue. Times from arrival to completion in nanoseconds.
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

/// A server that takes what waits, at most `batch` packets, and hands them on together after
/// `call_ns` and the time of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batches {
    /// Time of a call, whatever is in it.
    pub call_ns: f64,
    /// Packets per call at most.
    pub batch: usize,
    /// Packets that may wait.
    pub ring: usize,
}

/// Simulates `packets` Poisson arrivals of `pps` packets per second at such a server; `service` is
/// the time of packets besides that of the call.
pub fn batches(service: &Service, server: Batches, pps: f64, packets: usize, seed: u64) -> Simulated {
    let mut rng = Rng::new(seed);
    let gap = 1e9 / pps;
    let mut waiting: VecDeque<f64> = VecDeque::new();
    let mut times = Vec::with_capacity(packets);
    let (mut next, mut now, mut arrived, mut lost) = (0.0f64, 0.0f64, 0, 0u64);
    while arrived < packets || !waiting.is_empty() {
        if waiting.is_empty() {
            now = now.max(next);
        }
        while next <= now && arrived < packets {
            if waiting.len() < server.ring {
                waiting.push_back(next)
            } else {
                lost += 1
            }
            next -= gap * uniform(&mut rng).ln();
            arrived += 1;
        }
        let taken = waiting.len().min(server.batch);
        if taken == 0 {
            break;
        }
        now += server.call_ns + (0..taken).map(|_| draw(service, &mut rng)).sum::<f64>();
        times.extend(waiting.drain(..taken).map(|at| now - at));
    }
    summary(times, lost as f64 / packets as f64)
}

fn summary(mut times: Vec<f64>, loss: f64) -> Simulated {
    times.sort_by(f64::total_cmp);
    Simulated {
        mean: times.iter().sum::<f64>() / times.len() as f64,
        p50: quantile_sorted(&times, 0.5),
        p99: quantile_sorted(&times, 0.99),
        loss,
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
    use super::*;
    use crate::Mix;

    /// With one packet per call it is an M/D/1 queue; with many, a call is shared, so that more
    /// load makes a packet cheaper.
    #[test]
    fn batches_share_the_time_of_a_call() {
        let service = Service::of(&Mix::one(64.0).unwrap(), |_| 100.0);
        let single = Batches { call_ns: 0.0, batch: 1, ring: 1 << 20 };
        let one = batches(&service, single, 0.7e9 / 100.0, 100_000, 1);
        // Pollaczek and Khinchine's mean wait of M/D/1 is 0.5 · ρ/(1 − ρ) service times.
        assert!((one.mean / (100.0 * (1.0 + 0.5 * 0.7 / 0.3)) - 1.0).abs() < 0.05, "{one:?}");
        let shared = Batches { call_ns: 400.0, batch: 256, ring: 512 };
        let many = batches(&service, shared, 0.7e9 / 100.0, 100_000, 1);
        assert!(many.loss == 0.0 && many.p50 < 5000.0, "a call for each would be five times overloaded: {many:?}");
        let full = batches(&service, Batches { ring: 4, ..single }, 2e7, 50_000, 1);
        assert!((0.4..0.6).contains(&full.loss), "{full:?}");
    }
}
