//! Multi-core scaling: by number of cores, by size, by scheduler, by spread of flows.

use std::collections::BTreeMap;

use super::{cells, exact, style};
use crate::campaign::Kind;
use crate::cores::{Scheduler, Set, Spreading};
use crate::metric::Metric;
use crate::report::analysis::{Folder, log_ratios, over_sessions, shown, typical, values};
use crate::report::chart::{Axis, Chart, Series, short, trimmed};
use crate::report::figure::{Data, Figure};
use crate::trial::{CoreSetup, Trial};
use stats::{Estimate, Judged, Limits, Ratio, Rng, judge, paired};
use throughput::{MIN_CORE_COUNTS, Usl, UslFit, used_queues};

/// The difference between Sub SAs and one SA per CPU that does not matter.
const MARGIN: f64 = 0.01;
/// Flows of the figures that do not vary them, where the campaign has them.
const FLOWS: u32 = 64;

/// Lines drawn over cores, each with its own style; the rest is in the data.
const LINES: [(Set, Scheduler, &str); 8] = [
    (Set::One, Scheduler::RunToCompletion, "one SA"),
    (Set::One, Scheduler::Pipeline, "one SA, pipeline"),
    (Set::PerCpu, Scheduler::RunToCompletion, "SA per CPU"),
    (Set::SubSas, Scheduler::RunToCompletion, "Sub SA per CPU"),
    (Set::Psp, Scheduler::RunToCompletion, "PSP"),
    (Set::Apart, Scheduler::RunToCompletion, "separate gateways: limit of the machine"),
    (Set::PerCpu, Scheduler::Pipeline, "SA per CPU, pipeline"),
    (Set::One, Scheduler::Async, "one SA, crypto threads"),
];
/// Style of the ceiling that is stated.
const CEILING: usize = 8;

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    let study = Cores::of(folder);
    if study.rows.is_empty() {
        let why = folder.why_not(Kind::Scaling);
        return [
            ("scaling", "Throughput by cores"),
            ("scaling-size", "Throughput by size, on all cores"),
            ("schedulers", "Pipeline over run to completion"),
            ("scaling-spread", "How flows are spread"),
        ]
        .map(|(id, title)| Figure::absent(id, title, &why))
        .to_vec();
    }
    vec![study.by_cores(), study.by_size(folder), study.by_scheduler(), study.by_spread()]
}

/// Results of this run for rows of the papers.
pub(in crate::report) fn facts(folder: &Folder) -> Vec<(&'static str, String)> {
    let study = Cores::of(folder);
    let all = [
        ("scaling", study.summary_of_sets()),
        ("law", study.summary_of_laws()),
        ("schedulers", study.summary_of_schedulers()),
        ("cores_by_size", study.summary_of_sizes()),
        ("spread", study.summary_of_spreads()),
        ("sub_sas", study.summary_of_sub_sas()),
    ];
    all.into_iter().filter_map(|(name, summary)| Some((name, summary?))).collect()
}

fn pps(trial: &Trial) -> Option<f64> {
    Some(trial.measured.pps())
}

/// One combination of all factors.
struct Combination<'a> {
    subject: &'a str,
    traffic: &'a str,
    size: u32,
    way: CoreSetup,
    cores: u32,
    trials: Vec<&'a Trial>,
}

/// All trials of studies of cores, and the selection for the figures.
pub(in crate::report) struct Cores<'a> {
    rows: Vec<Combination<'a>>,
    /// Suite of the first subject.
    suite: &'a str,
    flows: u32,
    most: u32,
    /// Smallest and largest, or the only one.
    sizes: Vec<u32>,
}

impl<'a> Cores<'a> {
    pub(in crate::report) fn of(folder: &'a Folder) -> Self {
        let mut groups: BTreeMap<(&str, u32, CoreSetup, u32), Vec<&'a Trial>> = BTreeMap::new();
        let trials = folder.of(Kind::Scaling);
        for trial in trials.iter().filter(|trial| trial.measured.received > 0) {
            // The model of an engine has a separate figure.
            let way = trial.way.filter(|way| way.scheduler != Scheduler::AsyncSplit);
            if let (Some(way), Some(size)) = (way, trial.size) {
                groups.entry((&trial.subject, size, way, trial.cores)).or_default().push(trial);
            }
        }
        let rows: Vec<Combination<'a>> = groups
            .into_iter()
            .map(|((_, size, way, cores), trials)| {
                let (subject, traffic) = (trials[0].subject.as_str(), trials[0].traffic.as_str());
                Combination { subject, traffic, size, way, cores, trials }
            })
            .collect();
        let numbers = |read: fn(&Combination<'a>) -> u32| rows.iter().map(read);
        let flows = numbers(|row| row.way.flows).find(|flows| *flows == FLOWS);
        let flows = flows.or_else(|| numbers(|row| row.way.flows).max()).unwrap_or(FLOWS);
        let most = numbers(|row| row.cores).max().unwrap_or(1);
        let mut sizes: Vec<u32> =
            [numbers(|row| row.size).min(), numbers(|row| row.size).max()].into_iter().flatten().collect();
        sizes.dedup();
        // A suite that EESP and PSP have too, if there is one.
        let of =
            |what: &str| rows.iter().find(|row| row.subject.contains(what)).map(|row| row.trials[0].suite.as_str());
        let suite = of("-eesp-").or_else(|| of("-psp-")).or_else(|| of("-esp-")).unwrap_or_default();
        Self { suite, flows, most, sizes, rows }
    }

    /// The row of a set and scheduler with the suite, flows and spread that the figures are about.
    fn row(&self, set: Set, scheduler: Scheduler, size: u32, cores: u32) -> Option<&Combination<'a>> {
        self.spread_row(set, scheduler, size, cores, None)
    }

    fn spread_row(
        &self,
        set: Set,
        scheduler: Scheduler,
        size: u32,
        cores: u32,
        spread: Option<Spreading>,
    ) -> Option<&Combination<'a>> {
        let fits = |row: &&Combination<'a>| {
            let way = row.way;
            (way.set, way.scheduler, way.flows) == (set, scheduler, self.flows)
                && (row.size, row.cores) == (size, cores)
                && row.trials[0].suite == self.suite
                && spread.is_none_or(|spread| spread == way.spread)
        };
        // Variants are sorted: ideal is first.
        self.rows.iter().find(fits)
    }

    /// Returns whether the flows of a row are spread as in figures that do not vary that: evenly,
    /// or as the campaign has it instead.
    fn usually_spread(&self, row: &Combination<'a>) -> bool {
        let CoreSetup { scheduler, set, flows, .. } = row.way;
        let like = |other: &Combination<'a>| {
            (other.subject, other.size, other.cores) == (row.subject, row.size, row.cores)
                && (other.way.scheduler, other.way.set, other.way.flows) == (scheduler, set, flows)
        };
        !self.rows.iter().any(|other| like(other) && other.way.spread < row.way.spread)
    }

    /// Baseline of a speed-up: one core that runs to completion, or the same scheduler on one.
    fn alone(&self, row: &Combination<'a>) -> Option<&Combination<'a>> {
        let same = |other: &&Combination<'a>, scheduler: Scheduler| {
            (other.subject, other.size, other.cores) == (row.subject, row.size, 1)
                && (other.way.set, other.way.flows) == (row.way.set, row.way.flows)
                && other.way.scheduler == scheduler
        };
        let find = |scheduler| self.rows.iter().find(|other| same(other, scheduler));
        find(Scheduler::RunToCompletion).or_else(|| find(row.way.scheduler))
    }

    /// Times one core, within rounds.
    fn speed_up(&self, row: &Combination<'a>) -> Option<Estimate> {
        let logs = log_ratios(&row.trials, &self.alone(row)?.trials, |trial| Some(trial.measured.pps()));
        let speed_up = over_sessions(&logs).map(f64::exp);
        speed_up.value.is_finite().then_some(speed_up)
    }

    /// Logarithms of packets per second on all cores over those on one, by session, run to
    /// completion; and how many cores that are. `None` on one core.
    pub(in crate::report) fn over_one_core(&self, set: Set) -> Option<(Vec<Vec<f64>>, u32)> {
        let row = self.on_all(set, Scheduler::RunToCompletion)?;
        Some((log_ratios(&row.trials, &self.alone(row)?.trials, pps), self.most))
    }

    /// Logarithms of packets per second of a set of SAs over those of another one on all cores, by
    /// session.
    pub(in crate::report) fn sets(&self, of: Set, over: Set) -> Option<Vec<Vec<f64>>> {
        let row = |set| self.on_all(set, Scheduler::RunToCompletion);
        Some(log_ratios(&row(of)?.trials, &row(over)?.trials, pps))
    }

    /// Logarithms of packets per second of a scheduler over those of run to completion on all
    /// cores, by session.
    pub(in crate::report) fn schedulers(&self, set: Set, scheduler: Scheduler) -> Option<Vec<Vec<f64>>> {
        let row = |scheduler| self.on_all(set, scheduler);
        Some(log_ratios(&row(scheduler)?.trials, &row(Scheduler::RunToCompletion)?.trials, pps))
    }

    /// The row on all cores, which are several, at the smallest size.
    fn on_all(&self, set: Set, scheduler: Scheduler) -> Option<&Combination<'a>> {
        let size = self.sizes.first()?;
        (self.most > 1).then(|| self.row(set, scheduler, *size, self.most))?
    }

    /// Gunther's law of a line.
    fn law(&self, set: Set, scheduler: Scheduler, size: u32) -> Option<UslFit> {
        let of = |cores: u32| self.row(set, scheduler, size, cores);
        let rows = (1..=self.most).filter_map(of);
        let points: Vec<(f64, f64)> =
            rows.flat_map(|row| row.trials.iter().map(|trial| (f64::from(row.cores), trial.measured.pps()))).collect();
        Usl::fit(&points)
    }

    fn by_cores(&self) -> Figure {
        let drawings = self.sizes.iter().map(|size| self.chart(*size).draw()).collect();
        let mut text = format!(
            "Packets per second on so many cores over those on one, {} with {} flows, {}. Everything runs in memory: protected, \
             opened, looked at; the flows are spread evenly where the campaign has that. The line without marks is the ceiling: what \
             cores would give without contention. ",
            self.suite,
            self.flows,
            self.sizes.iter().map(|size| format!("{size} bytes")).collect::<Vec<_>>().join(" and "),
        );
        text += "Separate gateways share nothing, not even tables: they show the limit of this machine. ";
        let all = [self.summary_of_laws(), self.summary_of_sub_sas(), self.summary_of_schedulers()];
        let mut notes: String = all.into_iter().flatten().map(|summary| format!("{}. ", capital(&summary))).collect();
        notes += &self.summary_of_order();
        Figure::of("scaling", "Throughput by cores", text.trim(), drawings, self.data()).noted(notes)
    }

    fn chart(&self, size: u32) -> Chart {
        let mut counts: Vec<u32> = self.rows.iter().map(|row| row.cores).collect();
        counts.sort_unstable();
        counts.dedup();
        let x = Axis { ticks: Some(counts.iter().map(|n| f64::from(*n)).collect()), ..Axis::linear("cores") };
        let mut chart = Chart::new(
            &format!("Times one core, {size} bytes"),
            x.covering(1.0, 2.0),
            Axis::linear("times one core").covering(0.0, 1.0),
        );
        let mut ceiling = Series { marked: false, ..Series::new("ceiling", CEILING) };
        counts
            .iter()
            .for_each(|n| ceiling.push(f64::from(*n), f64::from(self.flows) / f64::from(self.flows.div_ceil(*n))));
        chart.series.push(ceiling);
        for (style, (set, scheduler, name)) in LINES.into_iter().enumerate() {
            let mut series = Series::new(name, style);
            for row in counts.iter().filter_map(|cores| self.row(set, scheduler, size, *cores)) {
                series.points.extend(self.speed_up(row).map(|times| (f64::from(row.cores), times)));
            }
            if series.points.is_empty() {
                continue;
            }
            if let Some(UslFit { law, .. }) = self.law(set, scheduler, size) {
                series.joined = false;
                let start = series.points[0].1.value / (law.throughput(series.points[0].0) / law.one);
                let mut curve = Series { marked: false, ..Series::new("", style) };
                let steps = 4 * self.most;
                (4..=steps)
                    .map(|step| f64::from(step) / 4.0)
                    .for_each(|n| curve.push(n, start * law.throughput(n) / law.one));
                chart.series.push(curve);
            }
            chart.series.push(series);
        }
        chart
    }

    /// All combinations.
    fn data(&self) -> Data {
        let mut data = Data::new(&[
            "subject",
            "bytes",
            "set",
            "scheduler",
            "spread",
            "flows",
            "cores",
            "Mpps",
            "low",
            "high",
            "times one core",
            "low",
            "high",
            "ceiling",
            "used queues",
            "expected at random",
            "Jain",
            "on the wrong core",
            "out of order",
            "lost",
        ]);
        data.page_only = &["spread", "expected at random", "used queues", "Jain", "ceiling"];
        for row in &self.rows {
            let CoreSetup { scheduler, set, spread, flows } = row.way;
            let mean = |of: Metric<'_>| over_sessions(&values(&row.trials, |t| t.measured.values.get(of))).value;
            let sum = |of: Metric<'_>| row.trials.iter().filter_map(|t| t.measured.values.get(of)).sum::<f64>();
            let mut line = vec![row.subject.to_owned(), row.traffic.to_owned()];
            line.extend([set.name(), scheduler.name(), spread.name()].map(str::to_owned));
            line.extend([flows.to_string(), row.cores.to_string()]);
            line.extend(cells(typical(&values(&row.trials, |trial| Some(trial.measured.pps() / 1e6)))));
            line.extend(self.speed_up(row).map_or_else(|| [const { String::new() }; 3], cells));
            let lost = row.trials.iter().map(|trial| trial.measured.lost.total()).sum::<u64>();
            line.extend([
                exact(row.way.ceiling(row.cores)),
                exact(mean(Metric::UsedQueues)),
                exact(used_queues(row.cores, flows)),
                exact(mean(Metric::Jain)),
                exact(sum(Metric::WrongCore)),
                exact(sum(Metric::Disordered)),
                lost.to_string(),
            ]);
            data.push(line);
        }
        data
    }

    fn by_size(&self, folder: &Folder) -> Figure {
        let (id, title) = ("scaling-size", "Throughput by size, on all cores");
        let mut chart = Chart::new(title, Axis::log("bytes"), Axis::linear("Gbit/s").covering(0.0, 1.0));
        let mut data = Data::new(&["subject", "set", "cores", "bytes", "Gbit/s", "low", "high"]);
        for line in self.lines_by_size() {
            let mut series = Series::new(&shown(line[0].subject), style(folder, line[0].subject));
            for row in line {
                let rate = typical(&values(&row.trials, |trial| Some(trial.measured.bps() / 1e9)));
                series.points.push((f64::from(row.size), rate));
                let mut cell = vec![row.subject.to_owned(), row.way.set.name().into(), row.cores.to_string()];
                cell.push(row.size.to_string());
                cell.extend(cells(rate));
                data.push(cell);
            }
            chart.series.push(series);
        }
        if chart.series.is_empty() {
            return Figure::absent(id, title, "This campaign has no set of SAs that uses several cores.");
        }
        let text = format!(
            "Inner packets, protected and opened, on {}: one SA, one Sub SA or one counter prefix per CPU, run to completion, flows spread \
             evenly where the campaign has that.",
            cores(self.most)
        );
        Figure::drawn(id, title, &text, chart.draw(), data)
    }

    /// Subjects on all cores, by size: those that use several by themselves.
    fn lines_by_size(&self) -> Vec<Vec<&Combination<'a>>> {
        let mut lines: Vec<Vec<&Combination<'a>>> = Vec::new();
        for row in self.rows.iter().filter(|row| {
            let CoreSetup { scheduler, set, flows, .. } = row.way;
            (row.cores, flows, scheduler) == (self.most, self.flows, Scheduler::RunToCompletion)
                && set.spreads()
                && self.usually_spread(row)
        }) {
            match lines.iter_mut().find(|line| line[0].subject == row.subject) {
                Some(line) => line.push(row),
                None => lines.push(vec![row]),
            }
        }
        lines
    }

    /// Pipeline over run to completion by number of flows, for one SA and for one per CPU.
    fn scheduler_ratios(&self) -> Vec<(Set, u32, Estimate)> {
        let size = self.sizes.first().copied().unwrap_or_default();
        let mut found = Vec::new();
        for row in self.rows.iter().filter(|row| {
            row.way.scheduler == Scheduler::Pipeline
                && [Set::One, Set::PerCpu].contains(&row.way.set)
                && (row.cores, row.size) == (self.most, size)
                && (row.trials[0].suite == self.suite)
                && self.usually_spread(row)
        }) {
            let plain = CoreSetup { scheduler: Scheduler::RunToCompletion, ..row.way };
            let other = self.rows.iter().find(|other| {
                (other.subject, other.size, other.cores, other.way) == (row.subject, row.size, row.cores, plain)
            });
            let Some(other) = other else { continue };
            let logs = log_ratios(&row.trials, &other.trials, |trial| Some(trial.measured.pps()));
            let ratio = over_sessions(&logs).map(f64::exp);
            if ratio.value.is_finite() {
                found.push((row.way.set, row.way.flows, ratio));
            }
        }
        found
    }

    fn by_scheduler(&self) -> Figure {
        let (id, title) = ("schedulers", "Pipeline over run to completion");
        let ratios = self.scheduler_ratios();
        if ratios.is_empty() {
            return Figure::absent(id, title, "This campaign does not have both schedulers on the same cores.");
        }
        let mut chart =
            Chart::new(title, Axis::log("flows"), Axis::linear("times run to completion").covering(0.0, 1.0));
        let mut data = Data::new(&["set", "flows", "pipeline / run to completion", "low", "high"]);
        for (set, style) in [(Set::One, 0), (Set::PerCpu, 2)] {
            let name = if set == Set::One { "one SA" } else { "SA per CPU" };
            let mut series = Series::new(name, style);
            for (_, flows, ratio) in ratios.iter().filter(|(of, ..)| *of == set) {
                series.points.push((f64::from(*flows), *ratio));
                let mut row = vec![name.to_owned(), flows.to_string()];
                row.extend(cells(*ratio));
                data.push(row);
            }
            if !series.points.is_empty() {
                chart.series.push(series);
            }
        }
        let text = format!(
            "Packets per second of the pipeline over those of run to completion, within rounds, {} of {} bytes on {}. One SA uses several \
             cores only in the pipeline; where each core has its own SA and its share of the flows, the pipeline has nothing to give and costs \
             what its queue costs.",
            self.suite,
            self.sizes.first().copied().unwrap_or_default(),
            cores(self.most)
        );
        Figure::drawn(id, title, &text, chart.draw(), data)
    }

    /// Times one core on all of them by spread, for each set that spreads.
    fn spreads(&self) -> Vec<BySpread> {
        let Some(&size) = self.sizes.first() else { return vec![] };
        let several = LINES.into_iter().enumerate().filter(|(_, (set, ..))| set.spreads());
        let of = |(style, (set, scheduler, name)): (usize, (Set, Scheduler, &'static str))| {
            let points = Spreading::ALL.into_iter().filter_map(|spread| {
                let row = self.spread_row(set, scheduler, size, self.most, Some(spread))?;
                Some((spread, self.speed_up(row)?))
            });
            (name, style, points.collect::<Vec<_>>())
        };
        several.map(of).filter(|(.., points)| points.len() > 1).collect()
    }

    fn by_spread(&self) -> Figure {
        let (id, title) = ("scaling-spread", "How flows are spread");
        let lines = self.spreads();
        if lines.is_empty() {
            return Figure::absent(
                id,
                title,
                "This campaign has one spread of flows, or one core; list several in 'spreads'.",
            );
        }
        let place = |spread: Spreading| Spreading::ALL.iter().position(|one| *one == spread).unwrap_or(0) as f64 + 1.0;
        let text =
            |at: f64| ["even", "hashed", "all on one"].get(at as usize - 1).map_or_else(String::new, |s| (*s).into());
        let x = Axis { text, ticks: Some(vec![1.0, 2.0, 3.0]), ..Axis::linear("spread") };
        let mut chart = Chart::new(title, x.covering(0.8, 3.2), Axis::linear("times one core").covering(0.0, 1.0));
        let mut data = Data::new(&["set", "spread", "times one core", "low", "high", "ceiling"]);
        for (name, style, points) in lines {
            let mut series = Series::new(name, style);
            for (spread, times) in points {
                series.points.push((place(spread), times));
                let (set, scheduler, _) = LINES[style];
                let ceiling = CoreSetup { scheduler, set, spread, flows: self.flows }.ceiling(self.most);
                let mut row = vec![name.to_owned(), spread.name().into()];
                row.extend(cells(times));
                row.push(exact(ceiling));
                data.push(row);
            }
            chart.series.push(series);
        }
        let text = format!(
            "{} flows of {} bytes on {}: spread evenly, by a hash, all on one core. A set of SAs gains nothing if the flows do not reach the \
             cores: of {} queues a hash uses {} on average.",
            self.flows,
            self.sizes.first().copied().unwrap_or_default(),
            cores(self.most),
            self.most,
            short(used_queues(self.most, self.flows))
        );
        Figure::drawn(id, title, &text, chart.draw(), data)
    }

    fn summary_of_order(&self) -> String {
        let trials = self.rows.iter().flat_map(|row| &row.trials);
        let wrong = |trial: &&&Trial| {
            trial.measured.lost.total() > 0 || trial.measured.values.get(Metric::Disordered).is_some_and(|n| n > 0.0)
        };
        match trials.filter(wrong).count() {
            0 => "Every packet of every trial came back, in order within its flow.".into(),
            wrong => format!("In {wrong} trials packets were lost or reordered within their flow."),
        }
    }

    fn summary_of_sets(&self) -> Option<String> {
        let times_at = |size: &u32| {
            let times: Vec<String> = LINES
                .into_iter()
                .filter_map(|(set, scheduler, name)| {
                    let times = self.speed_up(self.row(set, scheduler, *size, self.most)?)?;
                    let name = name.split(':').next().unwrap_or(name);
                    Some(format!("{name} {} [{}, {}]", short(times.value), short(times.low), short(times.high)))
                })
                .collect();
            (!times.is_empty()).then(|| format!("{size} B: {}", times.join(", ")))
        };
        let lines: Vec<String> = self.sizes.iter().filter_map(times_at).collect();
        (!lines.is_empty() && self.most > 1)
            .then(|| format!("{} over one, {}, {}", cores(self.most), self.suite, lines.join("; ")))
    }

    fn summary_of_laws(&self) -> Option<String> {
        let &size = self.sizes.first()?;
        let lines: Vec<String> = LINES
            .into_iter()
            .filter_map(|(set, scheduler, name)| {
                let UslFit { contention, coherency, .. } = self.law(set, scheduler, size)?;
                Some(format!(
                    "{name}: contention {} [{}, {}], coherency {} [{}, {}]",
                    trimmed(contention.value),
                    trimmed(contention.low),
                    trimmed(contention.high),
                    trimmed(coherency.value),
                    trimmed(coherency.low),
                    trimmed(coherency.high)
                ))
            })
            .collect();
        Some(if lines.is_empty() {
            format!("Gunther's law needs at least {MIN_CORE_COUNTS} core counts")
        } else {
            format!("Gunther's law at {size} bytes, {}", lines.join("; "))
        })
    }

    fn summary_of_schedulers(&self) -> Option<String> {
        let ratios = self.scheduler_ratios();
        let ratios_of = |set: Set, name: &str| {
            let all: Vec<String> = ratios
                .iter()
                .filter(|(of, ..)| *of == set)
                .map(|(_, flows, ratio)| format!("{} with {flows} flows", short(ratio.value)))
                .collect();
            (!all.is_empty()).then(|| format!("{name} {}", all.join(", ")))
        };
        let lines: Vec<String> =
            [ratios_of(Set::One, "one SA"), ratios_of(Set::PerCpu, "SA per CPU")].into_iter().flatten().collect();
        let size = self.sizes.first()?;
        (!lines.is_empty()).then(|| {
            format!(
                "pipeline over run to completion on {}, {} of {size} B: {}",
                cores(self.most),
                self.suite,
                lines.join("; ")
            )
        })
    }

    fn summary_of_sizes(&self) -> Option<String> {
        let lines = self.lines_by_size();
        // The suite of the paper, if the campaign has it.
        let line = lines.iter().find(|line| line[0].subject.ends_with("aes128-sha1")).or_else(|| lines.first())?;
        let rate = |row: &&Combination<'a>| {
            let rate = typical(&values(&row.trials, |trial| Some(trial.measured.bps() / 1e9))).value;
            format!("{} at {} B", short(rate), row.size)
        };
        let list: Vec<String> = line.iter().map(rate).collect();
        Some(format!("{} on {}, Gbit/s: {}", shown(line[0].subject), cores(self.most), list.join(", ")))
    }

    fn summary_of_spreads(&self) -> Option<String> {
        let all = self.spreads();
        let line = |(name, _, points): &BySpread| {
            let each = points.iter().map(|(spread, times)| format!("{} {}", spread.name(), short(times.value)));
            format!("{name} {}", each.collect::<Vec<_>>().join(", "))
        };
        let lines: Vec<String> = all.iter().map(line).collect();
        (!lines.is_empty()).then(|| format!("{} over one by spread: {}", cores(self.most), lines.join("; ")))
    }

    fn summary_of_sub_sas(&self) -> Option<String> {
        let &size = self.sizes.first()?;
        let Equivalence { ratio, judged } = self.equivalence(size)?;
        Some(format!(
            "scaling of Sub SAs over that of SAs per CPU on {} at {size} B: {} [{}, {}], {} within {} %",
            cores(self.most),
            trimmed(ratio.ratio.value),
            trimmed(ratio.ratio.low),
            trimmed(ratio.ratio.high),
            judged.verdict,
            trimmed(MARGIN * 100.0)
        ))
    }

    /// Returns whether Sub SAs scale as SAs per CPU do: two one-sided tests over sessions.
    fn equivalence(&self, size: u32) -> Option<Equivalence> {
        let logs = |set: Set, cores: u32| -> Option<BTreeMap<(u32, u32), f64>> {
            let row = self.row(set, Scheduler::RunToCompletion, size, cores)?;
            Some(row.trials.iter().map(|t| ((t.session, t.round), t.measured.pps().ln())).collect())
        };
        let all = [Set::SubSas, Set::PerCpu].map(|set| Some([logs(set, self.most)?, logs(set, 1)?]));
        let [Some([sub, sub_one]), Some([per, per_one])] = all else { return None };
        let mut sessions: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for (at, a) in &sub {
            if let (Some(b), Some(c), Some(d)) = (sub_one.get(at), per.get(at), per_one.get(at)) {
                sessions.entry(at.0).or_default().push((a - b) - (c - d));
            }
        }
        let ratio = paired(&sessions.into_values().collect::<Vec<_>>(), &mut Rng::new(1))?;
        let judged = judge(&ratio, Limits { floor: 0.0, margin: Some(MARGIN.ln_1p()) });
        (self.most > 1).then_some(Equivalence { ratio, judged })
    }
}

/// A line's name and style, and its times one core by spread.
type BySpread = (&'static str, usize, Vec<(Spreading, Estimate)>);

struct Equivalence {
    ratio: Ratio,
    judged: Judged,
}

/// With a capital first letter.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn cores(number: u32) -> String {
    if number == 1 { "1 core".into() } else { format!("{number} cores") }
}

#[cfg(test)]
mod tests {
    use super::super::super::synthetic;
    use super::*;

    #[test]
    fn a_study_says_what_was_put_into_it() {
        let folder = synthetic::folder();
        let study = Cores::of(&folder);
        assert_eq!((study.most, study.flows, &study.sizes[..], study.suite), (8, 64, &[64][..], "aes128gcm16"));
        let times = |set, scheduler| study.speed_up(study.row(set, scheduler, 64, 8).unwrap()).unwrap().value;
        let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.02;
        assert!(near(times(Set::PerCpu, Scheduler::RunToCompletion), 8.0 / 1.35));
        assert!(near(times(Set::One, Scheduler::RunToCompletion), 1.0 / 1.35));
        assert!(near(times(Set::One, Scheduler::Pipeline), 0.8 * 8.0 / 1.35), "against one core that has no pipeline");
        let law = study.law(Set::PerCpu, Scheduler::RunToCompletion, 64).unwrap();
        assert!((law.contention.value - 0.05).abs() < 0.02, "{law:?}");
        let facts: BTreeMap<_, _> = facts(&folder).into_iter().collect();
        assert!(facts["spread"].contains("ideal") && facts["spread"].contains("worst"), "{facts:?}");
        assert!(facts["schedulers"].contains("with 64 flows"), "{facts:?}");
        assert!(facts["sub_sas"].contains(" at 64 B: "), "{facts:?}");
    }

    #[test]
    fn what_was_measured_is_shown_although_no_flows_were_spread_evenly() {
        let mut folder = synthetic::folder();
        folder.trials.retain(|trial| {
            trial.way.is_none_or(|way| way.spread != Spreading::Ideal || trial.cores == 1 || !way.set.spreads())
        });
        let drawn: Vec<bool> = figures(&folder).iter().map(Figure::is_drawn).collect();
        assert_eq!(drawn, [true, true, true, false], "one spread is nothing to compare");
        let study = Cores::of(&folder);
        assert!(study.lines_by_size().iter().flatten().all(|row| row.way.spread == Spreading::Worst));
        assert!(study.scheduler_ratios().iter().any(|(set, ..)| *set == Set::PerCpu));
    }

    #[test]
    fn one_core_and_one_way_have_no_figures_of_several() {
        let mut folder = synthetic::folder();
        folder
            .trials
            .retain(|trial| trial.way.is_none_or(|way| trial.cores == 1 && (way.set, way.flows) == (Set::One, 64)));
        let drawn: Vec<bool> = figures(&folder).iter().map(Figure::is_drawn).collect();
        assert_eq!(drawn, [true, false, true, false]);
        let study = Cores::of(&folder);
        assert_eq!((study.summary_of_sets(), study.summary_of_sub_sas()), (None, None));
        assert!(study.summary_of_laws().unwrap().contains("at least 6 core counts"));
    }
}
