//! Observable activity of the machine during a trial.

use crate::metric::Metric;
use crate::trial::Measurement;

use super::Unavailable;
use super::clock::{TickRate, raw_ns};
use super::cpu::{CpuSample, CpuTimes};
use super::energy::Energy;
use super::perf::Perf;

/// Everything that can be counted here. Made once; trials are taken between [`Observer::start`] and
/// [`Observer::finish`].
pub struct Observer {
    /// The time stamp counter.
    pub ticks: TickRate,
    energy: Option<Energy>,
    /// Cycles and instructions of the thread that made the observer.
    pub perf: Option<Perf>,
}

/// The start of a trial.
pub struct Window {
    at_ns: u64,
    cpus: Option<CpuSample>,
    energy: Vec<Option<u64>>,
    perf: (Option<u64>, Option<u64>),
}

impl Observer {
    /// Opens what there is.
    pub fn open() -> Self {
        Self { ticks: TickRate::of_this_machine(), energy: Energy::open().ok(), perf: Perf::open().ok() }
    }

    /// Before a trial.
    pub fn start(&mut self) -> Window {
        Window {
            cpus: CpuSample::now(),
            energy: self.energy.as_ref().map(Energy::read).unwrap_or_default(),
            perf: self.perf.as_mut().map_or((None, None), Perf::read),
            at_ns: raw_ns(),
        }
    }

    /// After a trial: fills in the counters. Cycles and instructions are those between
    /// [`Observer::resume`] and [`Observer::pause`]; all else is of the whole machine and of the
    /// whole trial, preparation included.
    pub fn finish(&mut self, window: &Window, measured: &mut Measurement) {
        measured.values.set(Metric::WallNs, (raw_ns() - window.at_ns) as f64);
        if let Some(energy) = &self.energy {
            measured.joules = energy.joules(&window.energy, &energy.read());
        }
        if let Some(perf) = &mut self.perf {
            let (cycles, instructions) = perf.read();
            let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
            measured.cycles = since(cycles, window.perf.0);
            measured.instructions = since(instructions, window.perf.1);
        }
        let (Some(before), Some(now)) = (&window.cpus, CpuSample::now()) else { return };
        let cpus = now.since(before);
        let sum = |part: fn(&CpuTimes) -> u64| Some(cpus.iter().flatten().map(part).sum());
        measured.steal_ns = sum(|times| times.steal);
        measured.softirq_ns = sum(|times| times.softirq);
        for (number, times) in cpus.iter().enumerate() {
            let Some(times) = times else { continue };
            let shares = [
                ("busy", times.busy()),
                ("user", times.user + times.nice),
                ("system", times.system),
                ("softirq", times.softirq),
                ("steal", times.steal),
            ];
            for (name, part) in shares {
                if let Some(percent) = times.percent(part) {
                    measured.values.set(Metric::Processor(number, name), percent);
                }
            }
        }
    }

    /// Starts cycles and instructions.
    #[inline]
    pub fn resume(&mut self) {
        if let Some(perf) = &mut self.perf {
            perf.resume();
        }
    }

    /// Stops cycles and instructions.
    #[inline]
    pub fn pause(&mut self) {
        if let Some(perf) = &mut self.perf {
            perf.pause();
        }
    }
}

/// One property that a machine for measurements should have.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Finding {
    /// Subject of the check.
    pub what: &'static str,
    /// True if the machine has it.
    pub there: bool,
    /// Result.
    pub found: String,
    /// Consequence for measurements.
    pub meaning: &'static str,
}

/// Checks all properties that a machine for measurements should have. Changes nothing.
pub fn examine() -> Vec<Finding> {
    let ticks = TickRate::of_this_machine();
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let invariant = flags.contains("constant_tsc") && flags.contains("nonstop_tsc");
    let cores = super::cpus();
    let guest = flags.lines().any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "hypervisor"));
    let of = |what, result: Result<String, Unavailable>, meaning| {
        let (there, found) = match result {
            Ok(found) => (true, found),
            Err(why) => (false, why.to_string()),
        };
        Finding { what, there, found, meaning }
    };
    vec![
        Finding {
            what: "time stamp counter",
            there: invariant,
            found: format!(
                "{:.4} GHz to {:.1} ppm, {} ticks to read, {}",
                ticks.hz / 1e9,
                ticks.ppm,
                ticks.read_ticks,
                if invariant { "invariant" } else { "may vary with the clock rate of the core" }
            ),
            meaning: "the clock of every measurement; ticks are not cycles of the core",
        },
        of(
            "performance counters",
            Perf::open().map(|_| "cycles, instructions".to_owned()),
            "without them trials have no cycles and instructions",
        ),
        of("energy", Energy::open().map(|_| "RAPL packages".to_owned()), "without it trials have no joules"),
        of(
            "processor times",
            CpuSample::now()
                .map(|sample| format!("{} processors, with softirq and steal", sample.cpus.iter().flatten().count()))
                .ok_or_else(|| Unavailable("/proc/stat cannot be read".to_owned())),
            "busy shares per core, without gaps",
        ),
        Finding {
            what: "cores",
            there: cores > 1,
            found: format!("{cores} usable"),
            meaning: "with one, generator and subject in real time share it; trials in virtual time are not affected",
        },
        Finding {
            what: "bare metal",
            there: !guest,
            found: if guest { "a virtual machine".to_owned() } else { "yes".to_owned() },
            meaning: "in a virtual machine time may be stolen; trials record how much",
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_none_and_never_zero() {
        let mut observer = Observer::open();
        let window = observer.start();
        observer.resume();
        std::thread::sleep(std::time::Duration::from_millis(30));
        observer.pause();
        let mut measured = Measurement::default();
        observer.finish(&window, &mut measured);
        assert_eq!(measured.joules.is_some(), observer.energy.is_some());
        assert_eq!(measured.cycles.is_some(), observer.perf.is_some());
        assert!(measured.values.get(Metric::WallNs).unwrap() >= 30e6);
        if CpuSample::now().is_some() {
            assert!(measured.steal_ns.is_some() && measured.softirq_ns.is_some());
            assert!(measured.values.iter().any(|(key, _)| key.ends_with("_steal_percent")), "{:?}", measured.values);
        }
    }

    #[test]
    fn an_examination_names_what_is_missing() {
        let findings = examine();
        assert!(findings.iter().all(|finding| !finding.found.is_empty() && !finding.meaning.is_empty()));
        let perf = findings.iter().find(|finding| finding.what == "performance counters").unwrap();
        assert_eq!(perf.there, Perf::open().is_ok());
    }
}
