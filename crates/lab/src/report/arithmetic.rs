//! Printed numbers that follow, or do not follow, from other numbers of the same paper or from its
//! raw data. They are computed again for every report.

use std::sync::OnceLock;

use serde::Deserialize;

use super::checklist::Verdict;
use crate::import::{Cpu, Imported};
use stats::{Rng, mean};
use throughput::verify_paper;

/// One printed number.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    /// Description of the number, with its unit.
    says: String,
    from: Source,
    /// The printed number: its digits state the precision that the recomputed value should have.
    printed: String,
    /// The check finds a number that was calculated where the paper states that it was measured.
    #[serde(default)]
    calculated: bool,
}

/// Where a number comes from.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Source {
    Sum(Vec<f64>),
    Quotient([f64; 2]),
    Product([f64; 2]),
    /// The share of cryptography in percent: times of the whole, without cryptography, without
    /// IPsec.
    CryptographyShare([f64; 3]),
    /// Printed numbers of a table of the model's paper that do not follow from its inputs.
    TableErrors(u8),
    /// Mean of a run of the thesis in Gbit/s.
    RunMean(Run),
    /// Mean of one run of the thesis over that of another one.
    RunRatio([Run; 2]),
    /// Mean in Gbit/s of a phase, counted from 0, of a run of the thesis.
    PhaseMean(Run, usize),
    /// Samples of a run of the thesis before its level changes.
    ChangeAt(Run),
    /// Mean of all cores of these hosts of the thesis, percent busy.
    Busy(Vec<Host>),
}

/// A run of the thesis.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Run {
    Unencrypted,
    OneSa,
    SaPerCpu,
}

/// Processors of a host during a run of the thesis.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Host {
    UnencryptedSender,
    UnencryptedReceiver,
    OneSaSender,
    OneSaReceiver,
    SaPerCpuSender,
    SaPerCpuReceiver,
}

/// What became of a printed number.
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    /// Printed and computed, in words.
    pub(super) text: String,
}

impl Check {
    pub(super) fn judge(&self) -> Judged {
        let computed = self.from.compute();
        let follows = self.printed.parse::<f64>().is_ok_and(|printed| {
            // A little more than half a unit: half itself may be rounded either way.
            (computed - printed).abs() <= 1.000_001 * throughput::half_unit(&self.printed)
        });
        let verdict = if follows != self.calculated { Verdict::Reproduced } else { Verdict::Corrected };
        let digits = self.printed.split_once('.').map_or(0, |(_, digits)| digits.len());
        let shown = format!("{computed:.*}", if follows { digits } else { digits + 2 });
        Judged { verdict, text: format!("{}: printed {}, computed {shown}", self.says, self.printed) }
    }
}

impl Source {
    fn compute(&self) -> f64 {
        match self {
            Self::Sum(values) => values.iter().sum(),
            Self::Quotient([a, b]) => a / b,
            Self::Product([a, b]) => a * b,
            Self::CryptographyShare([whole, without, native]) => (whole - without) / (whole - native) * 100.0,
            Self::TableErrors(table) => {
                let differs =
                    |check: &&throughput::Check| check.table == *table && check.verdict == throughput::Verdict::Differs;
                verify_paper().checks.iter().filter(differs).count() as f64
            }
            Self::RunMean(run) => mean(&run.gbit_per_s()),
            Self::RunRatio([a, b]) => mean(&a.gbit_per_s()) / mean(&b.gbit_per_s()),
            Self::PhaseMean(run, phase) => run.analysed().phases.get(*phase).map_or(f64::NAN, |p| p.mean.value),
            Self::ChangeAt(run) => run.analysed().phases.first().map_or(f64::NAN, |phase| phase.to as f64 + 1.0),
            Self::Busy(hosts) => mean(&hosts.iter().map(|host| mean(&host.means())).collect::<Vec<_>>()),
        }
    }
}

impl Run {
    /// Samples of one second.
    fn gbit_per_s(self) -> Vec<f64> {
        // Sums over all flows in bytes, from the raw data in testing/data/thesis.
        let samples = include_str!("thesis.csv").lines().skip(1);
        let bytes = samples.filter_map(|line| line.split(',').nth(self as usize)?.parse::<f64>().ok());
        bytes.map(|bytes| 8.0 * bytes / 1e9).collect()
    }

    fn analysed(self) -> stats::Analysis {
        static ALL: [OnceLock<stats::Analysis>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
        let analyse = || stats::analyse(&self.gbit_per_s(), None, &mut Rng::new(1)).expect("there are samples");
        ALL[self as usize].get_or_init(analyse).clone()
    }
}

impl Host {
    /// Mean of each core in percent, while the host worked.
    fn means(self) -> Vec<f64> {
        macro_rules! file {
            ($name:literal) => {
                ($name, include_str!(concat!("../../../../testing/data/thesis/", $name)))
            };
        }
        let (name, text) = match self {
            Self::UnencryptedSender => file!("unenc_send_cpu.csv"),
            Self::UnencryptedReceiver => file!("unenc_recv_cpu.csv"),
            Self::OneSaSender => file!("esp_send_cpu.csv"),
            Self::OneSaReceiver => file!("esp_recv_cpu.csv"),
            Self::SaPerCpuSender => file!("pcpu_send_cpu.csv"),
            Self::SaPerCpuReceiver => file!("pcpu_recv_cpu.csv"),
        };
        match crate::import::parse(name, text) {
            Ok(Imported::Cpu(cpu)) => Cpu::means(&cpu, cpu.active()),
            _ => vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(from: Source, printed: &str) -> Check {
        Check { says: "a number".into(), from, printed: printed.into(), calculated: false }
    }

    #[test]
    fn digits_decide_what_follows() {
        let verdict = |printed: &str| check(Source::Quotient([1.0, 3.0]), printed).judge().verdict;
        assert_eq!(verdict("0.33"), Verdict::Reproduced);
        assert_eq!(verdict("0.333"), Verdict::Reproduced);
        assert_eq!(verdict("0.34"), Verdict::Corrected);
        assert_eq!(verdict("1/3"), Verdict::Corrected, "not a number");
        let text = check(Source::Sum(vec![1.0, 2.5]), "3.6").judge().text;
        assert_eq!(text, "a number: printed 3.6, computed 3.500");
    }

    #[test]
    fn what_was_calculated_is_not_a_measurement() {
        let check = Check { calculated: true, ..check(Source::Product([9208.0, 1.04]), "9576.3") };
        assert_eq!(check.judge().verdict, Verdict::Corrected);
        assert_eq!(Check { printed: "9580.0".into(), ..check }.judge().verdict, Verdict::Reproduced);
    }

    /// The sums that are shipped are those of the raw data; figures as `weir lab import` prints
    /// them.
    #[test]
    fn the_thesis_is_what_its_raw_data_say() {
        for (run, name) in [(Run::Unencrypted, "unenc"), (Run::OneSa, "esp"), (Run::SaPerCpu, "pcpu")] {
            let path = format!("{}/../../testing/data/thesis/{name}.csv", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).expect("it is in the repository");
            let Ok(Imported::Throughput(raw)) = crate::import::parse(name, &text) else { panic!("{name}") };
            let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
            assert_eq!(raw.bytes.len(), run.gbit_per_s().len(), "{name}");
            assert!(raw.gbit_per_s().iter().zip(&run.gbit_per_s()).all(close), "{name}");
        }
        let near = |source: Source, value: f64| {
            let computed = source.compute();
            assert!((computed - value).abs() < 0.06, "{source:?}: {computed}");
        };
        near(Source::RunMean(Run::OneSa), 0.98752363);
        near(Source::RunRatio([Run::SaPerCpu, Run::OneSa]), 2.497);
        near(Source::PhaseMean(Run::Unencrypted, 0), 39.68);
        near(Source::PhaseMean(Run::Unencrypted, 1), 23.03);
        near(Source::ChangeAt(Run::Unencrypted), 215.0);
        near(Source::Busy(vec![Host::SaPerCpuSender]), 61.0);
        near(Source::Busy(vec![Host::OneSaReceiver]), 16.4);
        near(Source::Busy(vec![Host::UnencryptedSender, Host::UnencryptedReceiver]), 23.6);
    }

    #[test]
    fn tables_of_the_models_paper_are_recomputed() {
        assert_eq!(check(Source::TableErrors(3), "0").judge().verdict, Verdict::Corrected);
        assert_eq!(check(Source::TableErrors(9), "0").judge().verdict, Verdict::Reproduced, "there is no such table");
    }
}
