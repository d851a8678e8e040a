//! Times at one clock rate, of a machine that changes its own.
//!
//! A fixed piece of work that takes a constant number of cycles is timed between all measurements:
//! its time is a *reading* of the clock rate, in any unit.

use super::{mean, median};

/// Largest difference between readings of one clock rate, as a share. Clock rates differ by steps
/// of 2 % and more; a reading that was interrupted is longer than the others.
const AGREE: f64 = 0.012;
/// Readings before a time, and after it, that must agree.
const AROUND: usize = 2;
/// Fewest times with agreeing readings, and their least share: otherwise all count as they are.
const FEWEST: (usize, f64) = (8, 0.1);

/// Times in the order in which they were measured, `N` at a time, with a reading of the clock rate
/// between one and the next.
#[derive(Debug)]
pub struct RatedTimes<const N: usize> {
    read: fn() -> f64,
    readings: Vec<f64>,
    times: Vec<[f64; N]>,
}

/// Times at one clock rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Rated<const N: usize> {
    /// Each time at the median clock rate of all; `None` where the rate changed meanwhile, or is
    /// not known because a reading was interrupted.
    pub times: Vec<Option<[f64; N]>>,
    /// The reading at that rate.
    pub reading: f64,
}

impl<const N: usize> RatedTimes<N> {
    /// No times yet; `read` times the fixed piece of work.
    pub fn new(read: fn() -> f64) -> Self {
        Self { read, readings: (0..AROUND).map(|_| read()).collect(), times: Vec::new() }
    }

    /// The last reading.
    pub fn last(&self) -> f64 {
        self.readings.last().copied().unwrap_or(f64::NAN)
    }

    /// Adds times of the same moment, and reads the clock rate.
    pub fn add(&mut self, times: [f64; N]) {
        self.times.push(times);
        self.readings.push((self.read)());
    }

    /// How often times were added.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Returns whether there are no times.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// All times at their median clock rate.
    pub fn finish(mut self) -> Rated<N> {
        self.readings.push((self.read)());
        let agreed = |around: &[f64]| {
            let least = around.iter().copied().fold(f64::INFINITY, f64::min);
            around.iter().all(|reading| *reading <= least * (1.0 + AGREE)).then(|| mean(around))
        };
        let rates: Vec<Option<f64>> = self.readings.windows(2 * AROUND).map(agreed).collect();
        let known: Vec<f64> = rates.iter().flatten().copied().collect();
        let (fewest, share) = FEWEST;
        let all = self.times.len();
        if known.is_empty() || known.len() < fewest.min(all) || (known.len() as f64) < share * all as f64 {
            // An interruption makes a reading longer, never shorter.
            let least = self.readings.iter().copied().fold(f64::INFINITY, f64::min);
            return Rated { times: self.times.into_iter().map(Some).collect(), reading: least };
        }
        let usual = median(&known);
        let at_usual = |(times, rate): (&[f64; N], &Option<f64>)| rate.map(|rate| times.map(|t| t * usual / rate));
        Rated { times: self.times.iter().zip(&rates).map(at_usual).collect(), reading: usual }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work of 100 cycles at clock rates that fall in two steps, and one interrupted reading.
    fn stepped() -> RatedTimes<1> {
        let slower = |n: usize| [1.0, 1.025, 1.1][n / 20];
        let reading = |n: usize| if n == 30 { 9e3 } else { 5e3 * slower(n.clamp(1, 60) - 1) };
        let times = (0..60).map(|n| [100.0 * slower(n)]).collect();
        RatedTimes { read: || 5.5e3, readings: (0..62).map(reading).collect(), times }
    }

    #[test]
    fn times_of_different_clock_rates_become_equal() {
        let rated = stepped().finish();
        assert!(rated.times.iter().flatten().all(|[time]| (time - 102.5).abs() < 1e-9), "{rated:?}");
        assert_eq!(rated.reading, 5e3 * 1.025);
        let unknown: Vec<usize> = (0..60).filter(|n| rated.times[*n].is_none()).collect();
        assert_eq!(unknown, [18, 19, 20, 27, 28, 29, 30, 38, 39, 40], "at the steps, and at the interruption");
    }

    #[test]
    fn times_of_unknown_clock_rates_all_count_as_they_are() {
        let mut times = stepped();
        times.readings.iter_mut().step_by(2).for_each(|reading| *reading *= 1.5);
        let least = times.readings.iter().copied().fold(f64::INFINITY, f64::min);
        let rated = times.finish();
        assert_eq!(rated.reading, least.min(5.5e3));
        assert_eq!(rated.times.iter().flatten().count(), 60);
        assert_eq!([rated.times[0], rated.times[59]], [Some([100.0]), Some([100.0 * 1.1])]);
    }

    #[test]
    fn few_times_are_enough_where_readings_agree() {
        let mut two = RatedTimes::new(|| 3.0);
        assert!(two.is_empty());
        two.add([1.0, 2.0]);
        assert_eq!((two.len(), two.last()), (1, 3.0));
        assert_eq!(two.finish(), Rated { times: vec![Some([1.0, 2.0])], reading: 3.0 });
    }
}
