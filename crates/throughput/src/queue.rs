//! Queueing: Poisson arrivals at one server with the service times of a mix (M/G/1), with and
//! without a limit to the queue.

use serde::Serialize;
use statrs::function::gamma::gamma_lr;

use super::mix::Mix;

/// Service times with their probabilities, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    parts: Vec<(f64, f64)>,
}

/// Cells per largest service time that distributions are computed on.
const CELLS: usize = 512;

/// Largest number of cells: far more than any load below 0.99 needs for the 99.9th percentile.
const MAX_CELLS: usize = 1 << 20;

/// Largest queue that [`Queue::loss`] computes, in packets.
pub const MAX_QUEUE: usize = 16_384;

impl Service {
    /// The times of a mix.
    pub fn of(mix: &Mix, time_ns: impl Fn(f64) -> f64) -> Self {
        Self { parts: mix.parts().iter().map(|(size, share)| (time_ns(*size), *share)).collect() }
    }

    /// E\[tⁿ\].
    pub fn moment(&self, n: i32) -> f64 {
        self.parts.iter().map(|(t, p)| p * t.powi(n)).sum()
    }

    /// Squared coefficient of variation.
    pub fn scv(&self) -> f64 {
        self.moment(2) / self.moment(1).powi(2) - 1.0
    }

    /// The queue that forms at load `rho`, 0 < ρ < 1.
    pub fn at(&self, rho: f64) -> Option<Queue> {
        (rho > 0.0 && rho < 1.0).then(|| Queue { service: self.clone(), rho, per_ns: rho / self.moment(1) })
    }

    /// Times and probabilities.
    pub fn parts(&self) -> &[(f64, f64)] {
        &self.parts
    }
}

/// A server at a load.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    service: Service,
    rho: f64,
    /// Arrivals per nanosecond.
    per_ns: f64,
}

/// The exponential tail of waiting: P(W > x) ≈ factor · e^(−rate·x).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tail {
    /// θ, per nanosecond.
    pub rate_per_ns: f64,
    /// C.
    pub factor: f64,
}

impl Tail {
    /// Waiting time that a share `p` of packets exceeds, in nanoseconds.
    pub fn exceeded_by(&self, p: f64) -> f64 {
        ((self.factor / p).ln() / self.rate_per_ns).max(0.0)
    }
}

/// Quantiles of the time from arrival to completion, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

impl Queue {
    /// Load.
    pub fn rho(&self) -> f64 {
        self.rho
    }

    /// Mean waiting time in nanoseconds (Pollaczek, Khinchine).
    pub fn mean_wait(&self) -> f64 {
        self.per_ns * self.service.moment(2) / (2.0 * (1.0 - self.rho))
    }

    /// The tail of waiting: λ(M(θ) − 1) = θ.
    pub fn tail(&self) -> Tail {
        let excess = |theta: f64| {
            self.per_ns * self.service.parts.iter().map(|(t, p)| p * (theta * t).exp_m1()).sum::<f64>() - theta
        };
        // Below the root the difference is negative, above it grows without bound.
        let mut high = 1.0 / self.service.moment(1);
        while excess(high) < 0.0 {
            high *= 2.0;
        }
        let mut low = 0.0;
        for _ in 0..200 {
            let middle = (low + high) / 2.0;
            if excess(middle) < 0.0 { low = middle } else { high = middle }
        }
        let theta = (low + high) / 2.0;
        let slope: f64 = self.service.parts.iter().map(|(t, p)| p * t * (theta * t).exp()).sum();
        Tail { rate_per_ns: theta, factor: (1.0 - self.rho) / (self.per_ns * slope - 1.0) }
    }

    /// Mean and quantiles of the time in the system.
    ///
    /// Waiting is a geometric sum of residual service times; its distribution is computed on a grid
    /// of a 512th of the largest service time (Panjer's recursion), and a packet's own service is
    /// added. Quantiles beyond the grid follow the tail.
    pub fn latency(&self) -> Latency {
        let largest = self.service.parts.iter().fold(0.0, |a: f64, p| a.max(p.0));
        let cell = largest / CELLS as f64;
        let wait = self.wait_cells(cell);
        let quantile = |q: f64| self.quantile(&wait, cell, q);
        Latency {
            mean: self.mean_wait() + self.service.moment(1),
            p50: quantile(0.5),
            p99: quantile(0.99),
            p999: quantile(0.999),
        }
    }

    /// Probability of each cell of waiting time, up to where 0.01 % remain.
    fn wait_cells(&self, cell: f64) -> Vec<f64> {
        // Residual service time has the density P(t > x) / E[t]; each cell counts at its middle,
        // the first is half a cell.
        let mean = self.service.moment(1);
        let first = self.service.parts.iter().map(|(t, p)| p * t.min(cell / 2.0)).sum::<f64>() / mean;
        // A service time covers whole cells and a part of the last.
        let spans: Vec<(f64, usize, f64)> = self
            .service
            .parts
            .iter()
            .map(|(t, p)| {
                let last = (t / cell + 0.5).floor();
                (p * cell / mean, last as usize, t / cell - (last - 0.5))
            })
            .filter(|(_, last, _)| *last > 0)
            .collect();
        let scale = self.rho / (1.0 - self.rho * first);
        let mut wait = vec![(1.0 - self.rho) / (1.0 - self.rho * first)];
        // below[i]: sum of the first i cells, so that whole cells cost one difference.
        let mut below = vec![0.0, wait[0]];
        while below[wait.len()] < 0.9999 && wait.len() < MAX_CELLS {
            let k = wait.len();
            let sum: f64 = spans
                .iter()
                .map(|(weight, last, part)| {
                    let whole = below[k] - below[k - (last - 1).min(k)];
                    let rest = if *last <= k { part * wait[k - last] } else { 0.0 };
                    weight * (whole + rest)
                })
                .sum();
            wait.push(scale * sum);
            below.push(below[k] + scale * sum);
        }
        wait
    }

    /// Smallest time that a share `q` of packets does not exceed.
    fn quantile(&self, wait: &[f64], cell: f64, q: f64) -> f64 {
        let cumulative: Vec<f64> = wait
            .iter()
            .scan(0.0, |sum, p| {
                *sum += p;
                Some(*sum)
            })
            .collect();
        let within = |x: f64| -> f64 {
            let at = |left: f64| {
                if left < 0.0 { 0.0 } else { cumulative[((left / cell + 0.5) as usize).min(cumulative.len() - 1)] }
            };
            self.service.parts.iter().map(|(t, p)| p * at(x - t)).sum()
        };
        let (mut low, mut high) = (0.0, cell * (wait.len() + CELLS) as f64);
        if within(high) < q {
            return self.tail().exceeded_by(1.0 - q) + self.service.moment(1);
        }
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if within(middle) < q { low = middle } else { high = middle }
        }
        high
    }

    /// Share of packets lost when at most `room` packets, the one in service included, are in the
    /// system; `room` from 1 to [`MAX_QUEUE`].
    ///
    /// Exact for Poisson arrivals: (1−ρ)Q / (1−ρQ), where Q is the probability of `room` or more in
    /// an endless queue.
    pub fn loss(&self, room: usize) -> f64 {
        let beyond = self.at_least(room.clamp(1, MAX_QUEUE));
        (1.0 - self.rho) * beyond / (1.0 - self.rho * beyond)
    }

    /// Probability of at least `room` packets in an endless queue.
    fn at_least(&self, room: usize) -> f64 {
        let mean_of = |t: f64| self.per_ns * t;
        let none: f64 = self.service.parts.iter().map(|(t, p)| p * (-mean_of(*t)).exp()).sum();
        // More than `k` arrivals during a service; by the incomplete gamma function, which keeps
        // its digits when they are few.
        let more = |k: usize| -> f64 {
            self.service
                .parts
                .iter()
                .map(|(t, p)| p * gamma_lr((k + 1) as f64, mean_of(*t).max(f64::MIN_POSITIVE)))
                .sum()
        };
        let mut exceed = vec![];
        let mut levels = vec![1.0 - self.rho];
        let (mut sum, mut ratio, mut steady) = (levels[0], 0.0f64, 0);
        while levels.len() < room {
            let j = levels.len() - 1;
            exceed.push(more(j));
            // Crossing a level upwards is as frequent as downwards.
            let up: f64 = levels[0] * exceed[j] + (1..=j).map(|i| levels[i] * exceed[j + 1 - i]).sum::<f64>();
            let next = up / none;
            let now = next / levels[j];
            steady = if (now / ratio - 1.0).abs() < 1e-9 { steady + 1 } else { 0 };
            ratio = now;
            sum += next;
            levels.push(next);
            // The levels become geometric long before a sum of thousands of terms would lose its
            // digits.
            if steady >= 8 {
                return next * ratio / (1.0 - ratio) * ratio.powf((room - levels.len()) as f64);
            }
        }
        (1.0 - sum).max(0.0)
    }
}

/// The highest load at which the 99th percentile of latency stays within `limit_ns`; `None` when
/// even an idle server is slower.
pub fn load_for_p99(service: &Service, limit_ns: f64) -> Option<f64> {
    let within = |rho: f64| service.at(rho).is_some_and(|q| q.latency().p99 <= limit_ns);
    let (mut low, mut high) = (0.01, 0.98);
    if !within(low) {
        return None;
    }
    if within(high) {
        return Some(high);
    }
    for _ in 0..12 {
        let middle = (low + high) / 2.0;
        if within(middle) { low = middle } else { high = middle }
    }
    Some(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{self, Arrivals};

    fn close(a: f64, b: f64, relative: f64) {
        assert!((a / b - 1.0).abs() <= relative, "{a} is not {b}");
    }

    fn imix(a: f64, b: f64) -> Service {
        Service::of(&Mix::parse("64:28,570:16,1518:4").unwrap(), |l| a + b * l)
    }

    #[test]
    fn golden_waits_in_service_times() {
        let service = imix(440.1 / 3.0, 0.9364 / 3.0);
        for (rho, wait) in [(0.5, 0.631), (0.8, 2.523), (0.95, 11.985)] {
            close(service.at(rho).unwrap().mean_wait() / service.moment(1), wait, 5e-4);
        }
        assert_eq!((service.at(0.0), service.at(1.0)), (None, None));
    }

    /// M/M/1 has everything in closed form; 200 exponential quantiles approximate its service
    /// times.
    #[test]
    fn nearly_exponential_service_gives_what_m_m_1_has() {
        let parts = (0..2000).map(|i| (-(1.0f64 - (f64::from(i) + 0.5) / 2000.0).ln() * 100.0, 1.0 / 2000.0)).collect();
        let queue = Service { parts }.at(0.8).unwrap();
        close(queue.tail().rate_per_ns, 0.2 / 100.0, 0.01);
        close(queue.tail().factor, 0.8, 0.02);
        close(queue.loss(10), 0.2 * 0.8f64.powi(10) / (1.0 - 0.8f64.powi(11)), 0.01);
        close(queue.loss(60), 0.2 * 0.8f64.powi(60) / (1.0 - 0.8f64.powi(61)), 0.05);
        close(queue.latency().p50, 100.0 / 0.2 * 2f64.ln(), 0.01);
        close(queue.latency().p99, 100.0 / 0.2 * 100f64.ln(), 0.01);
    }

    #[test]
    fn the_tail_meets_the_distribution() {
        let queue = imix(100.0, 0.4).at(0.9).unwrap();
        let latency = queue.latency();
        close(queue.tail().exceeded_by(0.001) + queue.service.moment(1), latency.p999, 0.03);
        assert!(latency.p50 < latency.p99 && latency.p99 < latency.p999);
    }

    /// Predicted p50 within 10 % and p99 within 20 % of a simulation at loads 0.5, 0.8, 0.9, for a
    /// gateway that is mostly fixed cost and one that is mostly cipher.
    #[test]
    fn a_discrete_event_simulation_agrees() {
        for service in [imix(400.0, 0.1), imix(90.0, 0.9)] {
            for rho in [0.5, 0.8, 0.9] {
                let queue = service.at(rho).unwrap();
                let simulated = simulate::queue(&service, rho, None, Arrivals::Poisson, 200_000, 7);
                let predicted = queue.latency();
                close(predicted.p50, simulated.p50, 0.10);
                close(predicted.p99, simulated.p99, 0.20);
                close(predicted.mean, simulated.mean, 0.10);
            }
        }
    }

    #[test]
    fn a_simulation_with_a_short_queue_loses_what_was_predicted() {
        let service = imix(90.0, 0.9);
        for (rho, room) in [(0.8, 4), (0.9, 8), (0.95, 16)] {
            let simulated = simulate::queue(&service, rho, Some(room), Arrivals::Poisson, 300_000, 3);
            close(service.at(rho).unwrap().loss(room), simulated.loss, 0.15);
        }
        assert!(service.at(0.5).unwrap().loss(4096) < 1e-30);
    }

    #[test]
    fn the_load_for_a_latency_is_the_load_that_has_it() {
        let service = imix(100.0, 0.4);
        let rho = load_for_p99(&service, 5_000.0).unwrap();
        close(service.at(rho).unwrap().latency().p99, 5_000.0, 0.02);
        assert_eq!(load_for_p99(&service, 50.0), None);
        assert_eq!(load_for_p99(&service, 1e9), Some(0.98));
    }
}
