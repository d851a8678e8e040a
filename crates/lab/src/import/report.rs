//! Combined results of imported files: each series with its phases, and the CPU cost of a transfer.

use std::collections::BTreeMap;
use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use super::{Cpu, Imported, Throughput};
use stats::{Analysis, Rng, analyse, jain, mean};

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Report {
    /// Transfers.
    pub series: Vec<SeriesReport>,
    /// Processors.
    pub cpus: Vec<CpuReport>,
}

/// A transfer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct SeriesReport {
    /// File.
    pub name: String,
    /// Tool.
    pub tool: String,
    /// Usual length of an interval in seconds.
    pub interval_s: f64,
    /// Analysis in Gbit/s (10⁹ bit/s).
    pub gbit_per_s: Analysis,
    /// Distribution over flows.
    pub flows: Flows,
    /// Processors sampled during the transfer.
    pub cpus: Vec<String>,
    /// Core-seconds per Gbit; `None` without CPU samples.
    pub core_s_per_gbit: Option<f64>,
    /// The same for each phase, if there is more than one.
    pub core_s_per_gbit_by_phase: Vec<f64>,
    /// Remarks.
    pub notes: Vec<String>,
}

/// Distribution of a transfer over flows.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Flows {
    /// Mean of each in Gbit/s.
    pub gbit_per_s: Vec<(String, f64)>,
    /// Jain's index of the means, `None` for fewer than two.
    pub jain: Option<f64>,
    /// Largest mean over smallest.
    pub largest_over_smallest: Option<f64>,
}

/// Processors of one host.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct CpuReport {
    /// File.
    pub name: String,
    /// Samples in which the host worked, first and last, counted from 0.
    pub active: [usize; 2],
    /// Distance of samples in seconds.
    pub interval_s: f64,
    /// Cores, during these samples.
    pub cores: Vec<Core>,
    /// Mean over cores, percent.
    pub mean_percent: f64,
    /// Remarks.
    pub notes: Vec<String>,
}

/// One core.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Core {
    /// Name.
    pub name: String,
    /// Mean, percent busy.
    pub mean_percent: f64,
}

/// Analyses the data. `block` overrides the length of bootstrap blocks in samples.
///
/// Processors belong to a transfer when the time in which they worked covers at least four fifths
/// of it.
pub fn report(imported: &[Imported], block: Option<usize>, seed: u64) -> Report {
    let mut rng = Rng::new(seed);
    let cpus: Vec<&Cpu> =
        imported.iter().filter_map(|i| if let Imported::Cpu(cpu) = i { Some(cpu) } else { None }).collect();
    let mut report = Report::default();
    for file in imported {
        match file {
            Imported::Throughput(throughput) => report.series.extend(series(throughput, &cpus, block, &mut rng)),
            Imported::Cpu(cpu) => report.cpus.push(host(cpu)),
        }
    }
    report
}

fn series(read: &Throughput, cpus: &[&Cpu], block: Option<usize>, rng: &mut Rng) -> Option<SeriesReport> {
    let analysis = analyse(&read.gbit_per_s(), block, rng)?;
    let linked: Vec<&Cpu> = cpus.iter().copied().filter(|cpu| covers(cpu, read)).collect();
    let mut sorted = read.seconds.clone();
    sorted.sort_by(f64::total_cmp);
    let interval_s = stats::quantile_sorted(&sorted, 0.5);
    let cost = |range: &dyn Fn(&Cpu) -> std::ops::Range<usize>, gbit_per_s: f64| {
        let cores: f64 = linked.iter().map(|cpu| cpu.means(range(cpu)).iter().sum::<f64>() / 100.0).sum();
        (!linked.is_empty()).then_some(cores / gbit_per_s)
    };
    let by_phase = |phase: &stats::Phase| {
        let (from, to) = (phase.from as f64 * interval_s, (phase.to + 1) as f64 * interval_s);
        cost(&|cpu| within(cpu, from, to), phase.mean.value)
    };
    let several = analysis.phases.len() > 1;
    Some(SeriesReport {
        name: read.name.clone(),
        tool: read.tool.clone(),
        interval_s,
        flows: flows(read),
        cpus: linked.iter().map(|cpu| cpu.name.clone()).collect(),
        core_s_per_gbit: cost(&|cpu| cpu.active(), analysis.mean),
        core_s_per_gbit_by_phase: if several { analysis.phases.iter().filter_map(by_phase).collect() } else { vec![] },
        gbit_per_s: analysis,
        notes: read.notes.clone(),
    })
}

fn flows(read: &Throughput) -> Flows {
    let duration = read.duration_s();
    let gbit_per_s: Vec<(String, f64)> =
        read.flows.iter().map(|(id, bytes)| (id.clone(), 8.0 * bytes.iter().sum::<f64>() / duration / 1e9)).collect();
    let means: Vec<f64> = gbit_per_s.iter().map(|(_, mean)| *mean).collect();
    let (smallest, largest) = means.iter().fold((f64::INFINITY, 0.0f64), |(s, l), m| (s.min(*m), l.max(*m)));
    let several = means.len() > 1 && largest > 0.0;
    Flows {
        gbit_per_s,
        jain: several.then(|| jain(&means)),
        largest_over_smallest: several.then_some(largest / smallest),
    }
}

/// Returns whether the time in which a host worked covers at least four fifths of a transfer.
fn covers(cpu: &Cpu, read: &Throughput) -> bool {
    let active = cpu.active();
    let (from, to) = (cpu.at_s[active.start], cpu.at_s[active.end - 1]);
    let (start, end) = (read.start_s, read.start_s + read.duration_s());
    to.min(end) - from.max(start) >= 0.8 * (end - start)
}

/// Samples between two times of the transfer. Clocks of hosts differ by seconds, so the transfer
/// begins where the host begins to work, and the samples next to either end are left out.
fn within(cpu: &Cpu, from_s: f64, to_s: f64) -> std::ops::Range<usize> {
    let active = cpu.active();
    let start = cpu.at_s[active.start];
    let margin = cpu.interval_s();
    let inside = |i: &usize| {
        let at = cpu.at_s[*i] - start;
        at >= from_s + margin && at < to_s - margin
    };
    let first = active.clone().find(inside).unwrap_or(active.start);
    let last = active.clone().rev().find(inside).unwrap_or(active.end - 1);
    first..last + 1
}

fn host(cpu: &Cpu) -> CpuReport {
    let active = cpu.active();
    let means = cpu.means(active.clone());
    CpuReport {
        name: cpu.name.clone(),
        active: [active.start, active.end - 1],
        interval_s: cpu.interval_s(),
        mean_percent: mean(&means),
        cores: cpu.cores.iter().cloned().zip(means).map(|(name, mean_percent)| Core { name, mean_percent }).collect(),
        notes: cpu.notes.clone(),
    }
}

impl Report {
    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.series.iter().for_each(|series| series.write(&mut text));
        if !self.cpus.is_empty() {
            let _ = writeln!(text, "percent busy of each core, while its host was working\n{}\n", self.cores());
        }
        let mut notes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for cpu in &self.cpus {
            cpu.notes.iter().for_each(|note| notes.entry(note).or_default().push(&cpu.name));
        }
        for (note, names) in notes {
            let _ = writeln!(text, "  note: {note} ({})", names.join(", "));
        }
        text
    }

    fn cores(&self) -> Table {
        let most = self.cpus.iter().map(|cpu| cpu.cores.len()).max().unwrap_or(0);
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(
            ["host".into()]
                .into_iter()
                .chain((0..most).map(|core| core.to_string()))
                .chain(["mean".into(), "samples".into()]),
        );
        for cpu in &self.cpus {
            let cores =
                (0..most).map(|i| cpu.cores.get(i).map_or(String::new(), |core| format!("{:.1}", core.mean_percent)));
            let end = [format!("{:.1}", cpu.mean_percent), (cpu.active[1] - cpu.active[0] + 1).to_string()];
            table.add_row([cpu.name.clone()].into_iter().chain(cores).chain(end));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

impl SeriesReport {
    fn write(&self, text: &mut String) {
        let a = &self.gbit_per_s;
        let interval = self.interval_s;
        let _ = writeln!(
            text,
            "{}: {}, {} samples of {interval:.1} s, {} flows",
            self.name,
            self.tool,
            a.samples,
            self.flows.gbit_per_s.len()
        );
        let sure = match a.interval {
            Some([low, high]) => format!("95 % {low:.3} to {high:.3} (blocks of {})", a.block),
            None => "no interval: see the phases below".into(),
        };
        let _ = writeln!(text, "  mean {:.8} Gbit/s, {sure}", a.mean);
        let _ = writeln!(
            text,
            "  CV {:.1} %, autocorrelation (lag 1) {:.2}, {:.0} effective samples, min {:.9}, max {:.9}",
            100.0 * a.cv,
            a.lag1,
            a.effective_samples,
            a.min,
            a.max
        );
        for change in &a.changes {
            let _ = writeln!(
                text,
                "  change between sample {} and {} (from 0; p {:.3})",
                change.at - 1,
                change.at,
                change.p
            );
        }
        for (i, phase) in a.phases.iter().enumerate().filter(|_| a.phases.len() > 1) {
            let m = phase.mean;
            let cost =
                self.core_s_per_gbit_by_phase.get(i).map_or(String::new(), |c| format!(", {c:.3} core-s per Gbit"));
            let _ = writeln!(
                text,
                "  phase {} to {}: mean {:.2} Gbit/s, 95 % {:.2} to {:.2}, CV {:.1} %, min {:.2}, max {:.2}{cost}",
                phase.from,
                phase.to,
                m.value,
                m.low,
                m.high,
                100.0 * phase.cv,
                phase.min,
                phase.max
            );
        }
        if let (Some(jain), Some(ratio)) = (self.flows.jain, self.flows.largest_over_smallest) {
            let _ = writeln!(text, "  flows: Jain {jain:.3}, largest over smallest {ratio:.2}");
        }
        if let Some(cost) = self.core_s_per_gbit {
            let _ = writeln!(text, "  processors ({}): {cost:.3} core-seconds per Gbit", self.cpus.join(", "));
        }
        self.notes.iter().for_each(|note| {
            let _ = writeln!(text, "  note: {note}");
        });
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;

    /// The thesis' published raw data (testing/data/thesis/README.md), against what was computed
    /// from it independently.
    fn thesis() -> &'static Report {
        static REPORT: std::sync::LazyLock<Report> = std::sync::LazyLock::new(read_thesis);
        &REPORT
    }

    fn read_thesis() -> Report {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testing/data/thesis");
        let file = |name: String| read(format!("{folder}/{name}.csv").as_ref()).expect("the file is in the repository");
        let runs = ["unenc", "esp", "pcpu"];
        let all = runs.iter().flat_map(|run| ["", "_send_cpu", "_recv_cpu"].map(|end| file(format!("{run}{end}"))));
        report(&all.collect::<Vec<Imported>>(), Some(30), 1)
    }

    fn close(ours: f64, theirs: f64, within: f64) {
        assert!((ours - theirs).abs() <= within, "{ours} is not {theirs} ± {within}");
    }

    #[test]
    fn the_thesis_data_give_the_recomputed_figures() {
        let report = thesis();
        let [unencrypted, single, per_cpu] = report.series.as_slice() else { panic!("three runs") };

        close(single.gbit_per_s.mean, 0.987_523_63, 5e-9);
        close(single.gbit_per_s.max, 1.311_768_576, 1e-12);
        close(single.gbit_per_s.min, 0.657_457_152, 1e-12);
        close(per_cpu.gbit_per_s.mean, 2.466_038_65, 5e-9);
        close(per_cpu.gbit_per_s.max, 2.665, 5e-4);
        close(per_cpu.gbit_per_s.min, 2.163, 5e-4);
        assert_eq!([unencrypted, single, per_cpu].map(|s| s.gbit_per_s.samples), [610, 600, 610]);

        let [low, high] = single.gbit_per_s.interval.expect("one phase");
        close(low, 0.962, 0.002);
        close(high, 1.017, 0.002);
        let [low, high] = per_cpu.gbit_per_s.interval.expect("one phase");
        close(low, 2.461, 0.001);
        close(high, 2.474, 0.001);
        close(single.gbit_per_s.cv, 0.133, 5e-4);
        close(per_cpu.gbit_per_s.cv, 0.031, 5e-4);
        close(single.gbit_per_s.lag1, 0.71, 5e-3);
        close(unencrypted.gbit_per_s.lag1, 0.98, 5e-3);
        // Between 3 in 4 and all of "about 100", which supposes a first-order process.
        assert!((70.0..110.0).contains(&single.gbit_per_s.effective_samples));
        close(single.flows.jain.expect("eight flows"), 0.972, 5e-4);
        close(unencrypted.flows.jain.expect("eight flows"), 0.975, 5e-4);
        close(per_cpu.flows.jain.expect("eight flows"), 0.76, 5e-3);
        close(per_cpu.flows.largest_over_smallest.expect("eight flows"), 4.0, 0.05);
    }

    #[test]
    fn the_drop_of_the_thesis_unencrypted_run_is_found_and_nothing_else() {
        let report = thesis();
        let at = |i: usize| report.series[i].gbit_per_s.changes.iter().map(|c| c.at).collect::<Vec<usize>>();
        assert_eq!((at(0), at(1), at(2)), (vec![216], vec![], vec![]));
        let [before, after] = report.series[0].gbit_per_s.phases.as_slice() else { panic!("two phases") };
        assert_eq!(([before.from, before.to], [after.from, after.to]), ([0, 214], [216, 609]));
        close(before.mean.value, 39.68, 5e-3);
        close(after.mean.value, 23.03, 5e-3);
        close(before.min, 36.97, 5e-3);
        close(before.max, 53.89, 5e-3);
        close(after.min, 20.63, 5e-3);
        close(after.max, 24.49, 5e-3);
        close(before.cv, 0.062, 5e-4);
        close(after.cv, 0.032, 5e-4);
    }

    #[test]
    fn the_thesis_cores_and_what_they_cost() {
        let report = thesis();
        let cores = |name: &str| {
            let cpu = report.cpus.iter().find(|cpu| cpu.name == name).expect("the host");
            cpu.cores.iter().map(|core| core.mean_percent.round() as u32).collect::<Vec<u32>>()
        };
        assert_eq!(cores("esp_send_cpu"), [4, 100, 10, 8, 7, 10, 6, 5]);
        assert_eq!(cores("esp_recv_cpu"), [6, 6, 6, 90, 6, 6, 6, 6]);
        assert_eq!(cores("pcpu_send_cpu"), [62, 56, 81, 26, 40, 74, 79, 71]);
        // Core 6 is 14.5 to the last digit that was sampled: 14 or 15.
        assert_eq!(cores("pcpu_recv_cpu")[..6], [13, 90, 19, 100, 17, 15]);
        assert!([14, 15].contains(&cores("pcpu_recv_cpu")[6]) && cores("pcpu_recv_cpu")[7] == 100);
        close(report.series[1].core_s_per_gbit.expect("both hosts"), 2.85, 0.01);
        close(report.series[2].core_s_per_gbit.expect("both hosts"), 3.47, 0.01);
        let [first, second] = report.series[0].core_s_per_gbit_by_phase.as_slice() else { panic!("two phases") };
        close(*first, 0.132, 0.001_5);
        close(*second, 0.130, 0.001);
        let both = report.cpus.iter().filter(|cpu| cpu.name.starts_with("unenc")).map(|cpu| cpu.mean_percent);
        close(both.sum::<f64>() / 2.0, 23.5, 0.15);
    }

    /// Figure 5.9 of the thesis, and the eight flows of the first second of figure 5.7.
    #[test]
    fn the_thesis_printed_samples() {
        let rows = [
            [95, 33, 88, 40, 25, 28, 100, 72],
            [64, 15, 92, 22, 26, 100, 53, 75],
            [74, 98, 89, 30, 37, 38, 47, 75],
            [70, 39, 86, 25, 21, 83, 79, 79],
            [18, 25, 92, 35, 73, 100, 76, 79],
            [17, 9, 88, 54, 79, 100, 94, 58],
            [64, 21, 86, 32, 63, 41, 70, 71],
            [100, 9, 73, 23, 79, 49, 99, 59],
            [100, 24, 70, 25, 72, 21, 98, 76],
        ];
        let values: Vec<f64> = rows.iter().flatten().map(|v| f64::from(*v)).collect();
        close(mean(&values), 60.0, 0.05);
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testing/data/thesis");
        let Ok(Imported::Throughput(read)) = read(format!("{folder}/pcpu.csv").as_ref()) else { panic!("a transfer") };
        let first: f64 = read.flows.values().map(|flow| flow[0]).sum();
        assert_eq!((first, read.bytes[0], read.flows.len()), (296_747_520.0, 296_747_520.0, 8));
    }

    #[test]
    fn the_text_says_what_matters() {
        let text = thesis().text();
        for part in [
            "mean 0.98752363 Gbit/s, 95 % 0.96",
            "mean 2.46603865 Gbit/s",
            "change between sample 215 and 216",
            "phase 0 to 214: mean 39.68",
            "phase 216 to 609: mean 23.03",
            "2.85",
            "Jain 0.972",
            "esp_recv_cpu",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
