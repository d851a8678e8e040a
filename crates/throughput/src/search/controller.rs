//! Which load is tried next: an MLRsearch controller (RFC 9971 §4.9.2) without clock, traffic or
//! subject.

use std::collections::BTreeMap;

use super::classify::{Class, Point, classify, conditional_throughput};
use super::goal::Goal;

/// A trial that a search requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// Load, e.g. in packets per second.
    pub load: f64,
    /// Duration in seconds.
    pub duration_s: f64,
    /// Index of the goal that it is for.
    pub goal: usize,
}

/// Result of a search for one goal.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Found {
    /// The goal.
    pub goal: Goal,
    /// Its code.
    pub code: String,
    /// Relevant Lower Bound.
    pub lower: Option<f64>,
    /// Relevant Upper Bound.
    pub upper: Option<f64>,
    /// Conditional Throughput at the lower bound.
    pub conditional: Option<f64>,
    /// Reason why the result is irregular; `None` for a regular one.
    pub irregular: Option<&'static str>,
}

/// Chooses loads until every goal has its two bounds.
pub struct Controller {
    goals: Vec<Goal>,
    min: f64,
    max: f64,
    /// Trials by load. Positive numbers have the order of their bits.
    points: BTreeMap<u64, Vec<Point>>,
    /// Estimate of the throughput from the trials so far.
    guess: Option<f64>,
    /// Seconds of trials so far, and how many may be made.
    spent_s: f64,
    budget_s: f64,
    /// Finished goals, with the reason if the result is irregular.
    done: Vec<Option<Option<&'static str>>>,
    /// Number of attempts in one direction for the current goal: steps double.
    steps: (usize, i32),
}

/// Bounds of a goal.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bounds {
    lower: Option<f64>,
    upper: Option<f64>,
}

const OVER_BUDGET: &str = "the time for the search was used up";
const NO_UPPER: &str = "no upper bound up to the largest load";
const NO_LOWER: &str = "no lower bound down to the smallest load";

impl Controller {
    /// A search for `goals` between the loads `min` and `max`, that makes at most `budget_s`
    /// seconds of trials. Goals that forgive less come first, whatever their order here: their
    /// results help the others.
    ///
    /// # Panics
    /// Unless `0 < min <= max` and both are finite: a bug of the caller.
    pub fn new(goals: Vec<Goal>, min: f64, max: f64, budget_s: f64) -> Self {
        assert!(min > 0.0 && min <= max && max.is_finite(), "loads {min} to {max}");
        let done = vec![None; goals.len()];
        let points = BTreeMap::new();
        Self { goals, min, max, points, guess: None, spent_s: 0.0, budget_s, done, steps: (usize::MAX, 0) }
    }

    /// The next trial; `None` when the search is over.
    pub fn next_trial(&mut self) -> Option<Ask> {
        while let Some(goal) = self.focus() {
            match self.ask(goal) {
                Ok(load) => {
                    let duration_s = self.duration(goal, load);
                    if self.spent_s + duration_s > self.budget_s {
                        self.done.iter_mut().for_each(|done| *done = Some(done.unwrap_or(Some(OVER_BUDGET))));
                        return None;
                    }
                    return Some(Ask { load, duration_s, goal });
                }
                Err(reason) => self.done[goal] = Some(reason),
            }
        }
        None
    }

    /// Extends the search beyond its maximum load, up to `factor` times that, for goals without an
    /// upper bound. False when there are none.
    pub fn raise(&mut self, factor: f64) -> bool {
        let stopped = self.done.iter_mut().filter(|done| **done == Some(Some(NO_UPPER)));
        let raised = stopped.map(|done| *done = None).count() > 0;
        if raised {
            self.max *= factor;
        }
        raised
    }

    /// Takes the result of a trial.
    pub fn tell(&mut self, point: Point) {
        self.spent_s += point.duration_s;
        // The forwarded rate is the best estimate of the throughput.
        let through = point.load * (1.0 - point.loss);
        if point.loss > 0.0 {
            self.guess = Some(self.guess.map_or(through, |guess| if point.load > guess { through } else { guess }));
        }
        self.points.entry(point.load.to_bits()).or_default().push(point);
    }

    /// Every trial, by load.
    pub fn points(&self) -> impl Iterator<Item = &Point> {
        self.points.values().flatten()
    }

    /// Seconds of trials so far.
    pub fn spent_s(&self) -> f64 {
        self.spent_s
    }

    /// Results, in the order of the goals.
    pub fn found(&self) -> Vec<Found> {
        let goals = self.goals.iter().zip(&self.done);
        goals
            .map(|(goal, done)| {
                let bounds = self.bounds(goal);
                let at_lower = bounds.lower.and_then(|load| self.points.get(&load.to_bits()));
                Found {
                    goal: goal.clone(),
                    code: goal.code(),
                    lower: bounds.lower,
                    upper: bounds.upper,
                    conditional: at_lower.and_then(|points| conditional_throughput(points, goal)),
                    irregular: done.unwrap_or(Some("the search was not finished")),
                }
            })
            .collect()
    }

    /// The goal that is searched for: the strictest one of those that are not complete.
    fn focus(&self) -> Option<usize> {
        let open = (0..self.goals.len()).filter(|goal| self.done[*goal].is_none());
        open.min_by(|a, b| self.goals[*a].loss.total_cmp(&self.goals[*b].loss))
    }

    /// Relevant bounds (RFC 9971 §4.8): the smallest upper bound, and the largest lower bound below
    /// it.
    fn bounds(&self, goal: &Goal) -> Bounds {
        let mut bounds = Bounds::default();
        for (bits, points) in &self.points {
            match classify(points, goal) {
                Class::Lower => bounds.lower = Some(f64::from_bits(*bits)),
                Class::Upper => {
                    bounds.upper = Some(f64::from_bits(*bits));
                    break;
                }
                Class::Undecided => {}
            }
        }
        bounds
    }

    /// The load to try for `goal`, or why it is done.
    fn ask(&mut self, index: usize) -> Result<f64, Option<&'static str>> {
        if self.points.is_empty() {
            return Ok(self.max);
        }
        let goal = self.goals[index].clone();
        let rough = self.bounds(&rough(&goal));
        let bounds = self.bounds(&goal);
        if self.steps.0 != index {
            self.steps = (index, 0);
        }
        let close = |lower: f64, upper: f64, width: f64| (upper - lower) / upper <= width;
        match bounds {
            Bounds { lower: Some(lower), upper: Some(upper) } => {
                if close(lower, upper, goal.width) {
                    Err(None)
                } else if let Some(inside) = self.undecided_between(&goal, lower, upper) {
                    Ok(inside)
                } else {
                    Ok((lower * upper).sqrt())
                }
            }
            Bounds { lower: None, upper: None } => Ok(self.start(&goal, rough)),
            Bounds { lower: Some(lower), upper: None } => {
                if lower >= self.max {
                    return Err(Some(NO_UPPER));
                }
                if let Some(inside) = self.undecided_between(&goal, lower, f64::INFINITY) {
                    return Ok(inside);
                }
                let up = match rough.upper.filter(|upper| *upper > lower && self.steps.1 == 0) {
                    // A little closer than the width, so that rounding leaves the two close enough.
                    Some(upper) => upper.min(lower / (1.0 - 0.99 * goal.width)),
                    None => lower * (1.0 + self.step(&goal)),
                };
                self.steps.1 += 1;
                Ok(up.min(self.max))
            }
            Bounds { lower: None, upper: Some(upper) } => {
                if upper <= self.min {
                    return Err(Some(NO_LOWER));
                }
                if let Some(inside) = self.undecided_between(&goal, 0.0, upper) {
                    return Ok(inside);
                }
                let down = match self.guess.filter(|guess| *guess < upper && *guess > 0.0 && self.steps.1 == 0) {
                    Some(guess) => guess,
                    None => upper * (1.0 - self.step(&goal).min(0.5)),
                };
                self.steps.1 += 1;
                Ok(down.max(self.min))
            }
        }
    }

    /// Start of a goal without bounds: the estimate of shorter or coarser trials.
    fn start(&self, goal: &Goal, rough: Bounds) -> f64 {
        if let Some(undecided) = self.undecided_between(goal, 0.0, f64::INFINITY).filter(|load| *load < self.max) {
            return undecided;
        }
        rough.lower.or(self.guess).unwrap_or(self.max).clamp(self.min, self.max)
    }

    /// Distance of the next attempt for a missing bound: the width, doubled each time.
    fn step(&self, goal: &Goal) -> f64 {
        goal.width.max(1e-4) * f64::from(1 << self.steps.1.clamp(0, 12))
    }

    /// The largest load strictly between two, that trials were made at in full length without
    /// deciding it.
    fn undecided_between(&self, goal: &Goal, low: f64, high: f64) -> Option<f64> {
        let full = |point: &Point| point.duration_s >= goal.final_s;
        let loads = self.points.iter().map(|(bits, points)| (f64::from_bits(*bits), points));
        let inside = loads.filter(|(load, points)| *load > low && *load < high && points.iter().any(full));
        inside.filter(|(_, points)| classify(*points, goal) == Class::Undecided).map(|(load, _)| load).next_back()
    }

    /// First attempts are short, while there is no estimate of the throughput; all others have the
    /// duration of the goal.
    fn duration(&self, goal: usize, load: f64) -> f64 {
        let goal = &self.goals[goal];
        let tries = self.points().count();
        let known = self.points.get(&load.to_bits()).is_some_and(|points| !points.is_empty());
        if tries < 2 && !known { goal.initial_s.min(goal.final_s) } else { goal.final_s }
    }
}

/// A goal that one trial of any length decides.
fn rough(goal: &Goal) -> Goal {
    Goal { final_s: 0.0, sum_s: f64::MIN_POSITIVE, ..goal.clone() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use stats::Rng;

    /// A device that lets `capacity` through and loses the rest; in a share of trials it has a bad
    /// moment and loses `hiccup` of everything.
    struct Device {
        capacity: f64,
        noise: f64,
        hiccup: f64,
        rng: Rng,
    }

    impl Device {
        fn trial(&mut self, ask: Ask) -> Point {
            let unlucky = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            let over = (1.0 - self.capacity / ask.load).max(0.0);
            let loss = if unlucky < self.noise { over.max(self.hiccup) } else { over };
            Point { load: ask.load, duration_s: ask.duration_s, effective_s: ask.duration_s, loss }
        }
    }

    fn search(device: &mut Device, goals: &[&str], max: f64) -> (Vec<Found>, Controller) {
        let goals = goals.iter().map(|goal| goal.parse().unwrap()).collect();
        let mut controller = Controller::new(goals, 1.0, max, 1e6);
        let mut trials = 0;
        while let Some(ask) = controller.next_trial() {
            assert!(ask.load >= 1.0 && ask.load <= max, "{ask:?}");
            trials += 1;
            assert!(trials < 5000, "does not end: {:?}", controller.found());
            controller.tell(device.trial(ask));
        }
        (controller.found(), controller)
    }

    fn device(capacity: f64) -> Device {
        Device { capacity, noise: 0.0, hiccup: 0.0, rng: Rng::new(1) }
    }

    #[test]
    fn two_goals_in_one_search() {
        let (found, controller) = search(&mut device(1.23e6), &["ndr", "pdr"], 1e7);
        let [ndr, pdr] = &found[..] else { panic!() };
        assert!(ndr.lower.unwrap() <= 1.23e6 && ndr.upper.unwrap() > 1.23e6, "{ndr:?}");
        let knee = 1.23e6 / (1.0 - 0.005);
        assert!(pdr.lower.unwrap() <= knee && pdr.upper.unwrap() > knee * (1.0 - 1e-9), "{pdr:?}");
        assert!(found.iter().all(|found| found.irregular.is_none()));
        assert_eq!(ndr.conditional, ndr.lower);
        // A binary search over a decade with a precision of half a percent takes nine loads of 21 s
        // for each goal.
        assert!(controller.spent_s() < 2.0 * 9.0 * 21.0, "{}", controller.spent_s());
    }

    #[test]
    fn bad_moments_are_forgiven_where_the_goal_says_so_and_nowhere_else() {
        let shaky = || Device { capacity: 1e6, noise: 0.25, hiccup: 0.1, rng: Rng::new(3) };
        let (forgiving, _) = search(&mut shaky(), &["ndr"], 4e6);
        assert!(forgiving[0].lower.unwrap() > 0.9e6, "{forgiving:?}");
        let (strict, _) = search(&mut shaky(), &["1f21d0l0e"], 4e6);
        assert!(strict[0].lower.is_none_or(|lower| lower < forgiving[0].lower.unwrap()), "{strict:?}");
    }

    #[test]
    fn a_subject_faster_than_the_largest_load_has_no_upper_bound_and_says_so() {
        let (found, _) = search(&mut device(1e9), &["short"], 1e6);
        assert_eq!((found[0].lower, found[0].upper), (Some(1e6), None));
        assert_eq!(found[0].irregular, Some(NO_UPPER));
    }

    #[test]
    fn a_dead_subject_has_no_lower_bound_and_says_so() {
        let (found, _) = search(&mut device(0.0), &["short"], 1e6);
        assert_eq!((found[0].lower, found[0].irregular), (None, Some(NO_LOWER)));
    }

    #[test]
    fn the_budget_ends_a_search_and_what_was_found_stays() {
        let goals = vec!["ndr".parse().unwrap()];
        let mut controller = Controller::new(goals, 1.0, 1e7, 12.0);
        let mut subject = device(1e6);
        while let Some(ask) = controller.next_trial() {
            controller.tell(subject.trial(ask));
        }
        assert!(controller.spent_s() <= 12.0);
        assert_eq!(controller.found()[0].irregular, Some(OVER_BUDGET));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever the capacity: both bounds are right, close enough, and found in time.
        #[test]
        fn bounds_enclose_the_truth(
            capacity in 10.0_f64..9e6, goal in prop::sample::select(vec!["rfc2544", "tst009", "ndr", "pdr", "short"]),
        ) {
            let (found, controller) = search(&mut device(capacity), &[goal], 1e7);
            let found = &found[0];
            let knee = capacity / (1.0 - found.goal.loss);
            let (lower, upper) = (found.lower.unwrap(), found.upper.unwrap());
            prop_assert!(lower <= knee && knee * (1.0 - 1e-9) < upper, "{} in {}..{}", knee, lower, upper);
            prop_assert!((upper - lower) / upper <= found.goal.width);
            prop_assert_eq!(found.irregular, None);
            // Doubling steps to reach both sides, then halves: well below forty loads.
            prop_assert!(controller.spent_s() <= 40.0 * found.goal.sum_s, "{} s", controller.spent_s());
        }

        /// With bad moments too the search ends, with bounds in order and a lower bound that the
        /// goal really allows.
        #[test]
        fn noise_does_not_break_a_search(
            capacity in 1e3_f64..1e6, noise in 0.0_f64..0.6, hiccup in 0.001_f64..0.5, seed: u64,
        ) {
            let mut subject = Device { capacity, noise, hiccup, rng: Rng::new(seed) };
            let (found, controller) = search(&mut subject, &["short", "0.2f2d0l50e"], 1e7);
            for found in found {
                if let (Some(lower), Some(upper)) = (found.lower, found.upper) {
                    prop_assert!(lower < upper);
                    let at: Vec<Point> = controller.points().filter(|p| p.load == lower).copied().collect();
                    prop_assert_eq!(classify(&at, &found.goal), Class::Lower);
                    prop_assert!(lower <= capacity / (1.0 - found.goal.loss) * 1.000_001);
                }
                prop_assert!(found.irregular.is_some() || found.upper.is_some());
            }
        }
    }
}
