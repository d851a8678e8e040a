//! How much a subject can take: throughput search (MLRsearch, RFC 9971), loss against load, latency
//! below throughput.
//!
//! [`Controller`] is pure arithmetic; [`search`] uses an injected [`Meter`].

use std::time::Duration;

use crate::meter::{Load, Meter, MeterError};
use crate::traffic::Rate;
use crate::trial::Measurement;
use throughput::search::{Controller, Found, Goal, Point};

/// Goals and bounds of a search.
#[derive(Clone, Debug)]
pub struct Options {
    /// Goals.
    pub goals: Vec<Goal>,
    /// Smallest load in packets per second.
    pub min_pps: f64,
    /// Largest load in packets per second; `None`: a quarter above the saturated throughput.
    pub max_pps: Option<f64>,
    /// Packets leave with exponential gaps instead of evenly.
    pub poisson: bool,
    /// Most seconds of trials.
    pub budget_s: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { goals: vec![], min_pps: 100.0, max_pps: None, poisson: false, budget_s: 3600.0 }
    }
}

/// One trial of a search.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// Offered load.
    pub load: &'a Load,
    /// Code of the goal that it was for; `None` for the trial that finds the maximum load.
    pub goal: Option<String>,
    /// Result.
    pub measured: &'a Measurement,
    /// Seconds of trials so far.
    pub spent_s: f64,
}

/// Called after each trial.
pub type OnStep<'a> = &'a mut dyn FnMut(Step<'_>);

/// Result of a search.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SearchResult {
    /// By goal.
    pub found: Vec<Found>,
    /// Largest load that was tried, in packets per second.
    pub max_pps: f64,
    /// Packets per second that came through when saturated (MRR), where the meter can do that.
    pub saturated_pps: Option<f64>,
    /// Trials.
    pub trials: usize,
    /// Seconds of trials.
    pub spent_s: f64,
}

/// The throughput of a cold subject at saturation is not the largest load: it is repeated until it
/// does not improve, at most this often.
const MOST_SATURATED: usize = 5;

/// Limit of the doublings of the largest load if it turns out not to be an upper bound, because the
/// processor was busy when it was measured.
const MOST_RAISED: usize = 4;

/// Searches for all goals with `meter`. Sizes, flows, direction and seed are those of `load`; each
/// trial has a seed derived from it.
///
/// # Errors
/// Errors of the meter; trials so far were given to `on_step`.
pub fn search(
    meter: &mut dyn Meter,
    load: &Load,
    options: &Options,
    on_step: OnStep<'_>,
) -> Result<SearchResult, MeterError> {
    let mut saturated_pps = None;
    let mut max_pps = match options.max_pps {
        Some(max) => max,
        None => {
            let first = options.goals.iter().map(|goal| goal.initial_s).fold(0.05, f64::max);
            let traffic = load.traffic.at(Rate::Saturate);
            let saturating = Load { traffic, duration: Duration::from_secs_f64(first.min(1.0)), ..load.clone() };
            let mut most: f64 = 0.0;
            for _ in 0..MOST_SATURATED {
                let measured = meter.trial(&saturating)?;
                on_step(Step { load: &saturating, goal: None, measured: &measured, spent_s: 0.0 });
                let better = measured.pps() > most * 1.02;
                most = most.max(measured.pps());
                if !better {
                    break;
                }
            }
            saturated_pps = Some(most);
            most * 1.25
        }
    };
    if !(max_pps.is_finite() && max_pps > 0.0) {
        return Err(MeterError::Unsupported("no packet arrived at saturation: the throughput is zero".into()));
    }
    let mut controller =
        Controller::new(options.goals.clone(), options.min_pps.min(max_pps), max_pps, options.budget_s);
    let (mut trials, mut raised) = (0, 0);
    loop {
        while let Some(ask) = controller.next_trial() {
            trials += 1;
            let next = at(load, ask.load, options.poisson, ask.duration_s, trials);
            let measured = meter.trial(&next)?;
            controller.tell(Point {
                load: ask.load,
                duration_s: ask.duration_s,
                effective_s: ask.duration_s,
                loss: measured.loss_ratio(),
            });
            let goal = Some(options.goals[ask.goal].code());
            on_step(Step { load: &next, goal, measured: &measured, spent_s: controller.spent_s() });
        }
        if options.max_pps.is_some() || raised == MOST_RAISED || !controller.raise(2.0) {
            break;
        }
        (max_pps, raised) = (2.0 * max_pps, raised + 1);
    }
    let (found, spent_s) = (controller.found(), controller.spent_s());
    Ok(SearchResult { found, max_pps, saturated_pps, trials: trials as usize, spent_s })
}

/// `load` at a rate.
fn at(load: &Load, pps: f64, poisson: bool, duration_s: f64, trial: u64) -> Load {
    let rate = if poisson { Rate::Poisson(pps) } else { Rate::Constant(pps) };
    Load {
        traffic: load.traffic.at(rate),
        duration: Duration::from_secs_f64(duration_s),
        seed: load.seed.wrapping_add(trial.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        ..load.clone()
    }
}

/// Loss against load (RFC 2544 §26.3): from `max_pps` down in steps of a tenth, until two loads in
/// a row lose nothing.
///
/// # Errors
/// Errors of the meter.
pub fn loss_curve(
    meter: &mut dyn Meter,
    load: &Load,
    max_pps: f64,
    on_step: OnStep<'_>,
) -> Result<Vec<(f64, Measurement)>, MeterError> {
    let (mut curve, mut clean) = (Vec::new(), 0);
    for tenths in (1..=10).rev() {
        let pps = max_pps * f64::from(tenths) / 10.0;
        let next = at(load, pps, false, load.duration.as_secs_f64(), 1000 + tenths as u64);
        let measured = meter.trial(&next)?;
        on_step(Step { load: &next, goal: None, measured: &measured, spent_s: 0.0 });
        clean = if measured.loss_ratio() > 0.0 { 0 } else { clean + 1 };
        curve.push((pps, measured));
        if clean == 2 {
            break;
        }
    }
    curve.reverse();
    Ok(curve)
}

/// Shares of the throughput that latency is measured at.
pub const LATENCY_AT: [f64; 3] = [0.1, 0.5, 0.9];

/// Latency at 10, 50 and 90 % of `throughput_pps`, with packets at exponential gaps or evenly.
///
/// # Errors
/// Errors of the meter.
pub fn latency(
    meter: &mut dyn Meter,
    load: &Load,
    throughput_pps: f64,
    poisson: bool,
    on_step: OnStep<'_>,
) -> Result<Vec<(f64, Measurement)>, MeterError> {
    let mut measurements = Vec::new();
    for (n, share) in (2000..).zip(LATENCY_AT) {
        let next = at(load, throughput_pps * share, poisson, load.duration.as_secs_f64(), n);
        let measured = meter.trial(&next)?;
        on_step(Step { load: &next, goal: None, measured: &measured, spent_s: 0.0 });
        measurements.push((share, measured));
    }
    Ok(measurements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Direction;

    /// A device of known capacity with the interface of a meter.
    struct Simulated {
        capacity_pps: f64,
        trials: Vec<Load>,
        /// The same while saturated: less, if another process uses the processor then.
        saturated_pps: f64,
    }

    impl Simulated {
        fn of(capacity_pps: f64) -> Self {
            Self { capacity_pps, trials: vec![], saturated_pps: capacity_pps }
        }
    }

    impl Meter for Simulated {
        fn trial(&mut self, load: &Load) -> Result<Measurement, MeterError> {
            self.trials.push(load.clone());
            let seconds = load.duration.as_secs_f64();
            let rate = load.traffic.rate.pps();
            let capacity = if rate.is_some() { self.capacity_pps } else { self.saturated_pps };
            let offered = rate.unwrap_or(self.capacity_pps * 3.0);
            let received = offered.min(capacity) * seconds;
            let dur_ns = load.duration.as_nanos() as u64;
            let (sent, received) = ((offered * seconds) as u64, received as u64);
            Ok(Measurement { sent, received, dur_ns, ..Measurement::default() })
        }
    }

    fn load() -> Load {
        Load {
            traffic: "1400".parse().unwrap(),
            direction: Direction::Out,
            duration: Duration::from_millis(100),
            seed: 3,
        }
    }

    #[test]
    fn a_search_finds_the_capacity_of_the_meter() {
        let mut meter = Simulated::of(1e6);
        let options = Options { goals: vec!["short".parse().unwrap()], ..Options::default() };
        let mut steps = 0;
        let outcome = search(&mut meter, &load(), &options, &mut |_| steps += 1).unwrap();
        assert_eq!(outcome.saturated_pps.map(f64::round), Some(1e6));
        assert_eq!(steps, outcome.trials + 2, "saturated twice: the second time was no better");
        let found = &outcome.found[0];
        assert!((found.lower.unwrap() / 1e6 - 1.0).abs() < 0.011, "{found:?}");
        // No two trials have the same seed, and the sent packets are as requested.
        let seeds: std::collections::HashSet<u64> = meter.trials.iter().skip(2).map(|load| load.seed).collect();
        assert_eq!(seeds.len(), outcome.trials);
        assert!(meter.trials.iter().all(|load| load.traffic.sizes == "1400".parse().unwrap()));
    }

    #[test]
    fn a_largest_load_that_was_found_too_small_is_raised() {
        let options = Options { goals: vec!["short".parse().unwrap()], ..Options::default() };
        let mut meter = Simulated { saturated_pps: 2e5, ..Simulated::of(1e6) };
        let outcome = search(&mut meter, &load(), &options, &mut |_| ()).unwrap();
        assert_eq!((outcome.max_pps, outcome.found[0].irregular), (2e6, None));
        assert!((outcome.found[0].lower.unwrap() / 1e6 - 1.0).abs() < 0.011, "{:?}", outcome.found);
        // Bounded in number and by the requested maximum.
        let mut meter = Simulated { saturated_pps: 1e3, ..Simulated::of(1e6) };
        let outcome = search(&mut meter, &load(), &options, &mut |_| ()).unwrap();
        assert_eq!((outcome.max_pps, outcome.found[0].irregular.is_some()), (2e4, true));
        let asked = Options { max_pps: Some(3e5), ..options };
        let outcome = search(&mut Simulated::of(1e6), &load(), &asked, &mut |_| ()).unwrap();
        assert_eq!((outcome.max_pps, outcome.found[0].irregular.is_some()), (3e5, true));
    }

    #[test]
    fn a_curve_stops_where_two_loads_lose_nothing() {
        let mut meter = Simulated::of(1e6);
        let curve = loss_curve(&mut meter, &load(), 2e6, &mut |_| ()).unwrap();
        let loads: Vec<_> = curve.iter().map(|(pps, _)| (pps / 1e5).round()).collect();
        assert_eq!(loads, [8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0]);
        assert!((curve.last().unwrap().1.loss_ratio() - 0.5).abs() < 1e-6);
    }

    #[test]
    fn latency_is_measured_below_throughput() {
        let mut meter = Simulated::of(1e6);
        latency(&mut meter, &load(), 1e6, true, &mut |_| ()).unwrap();
        let rates: Vec<_> = meter.trials.iter().map(|load| load.traffic.rate).collect();
        assert_eq!(rates, [Rate::Poisson(1e5), Rate::Poisson(5e5), Rate::Poisson(9e5)]);
    }

    #[test]
    fn a_dead_meter_has_no_throughput() {
        let mut meter = Simulated::of(0.0);
        let options = Options { goals: vec!["short".parse().unwrap()], ..Options::default() };
        assert!(matches!(search(&mut meter, &load(), &options, &mut |_| ()), Err(MeterError::Unsupported(_))));
    }
}
