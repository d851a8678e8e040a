//! The result: a table for people, JSON for machines.

use comfy_table::{CellAlignment, LineStyle, Table, presets};
use serde::Serialize;

use super::counters::CoreTime;
use super::ping;
use super::row::{DemoRow, Measured, SET_UPS};
use super::sandbox;
use super::way::Keying;

/// Load by others that is worth a warning, as a share of the machine.
const WORTH_TELLING: f64 = 0.1;

/// Context of the numbers.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) cores: usize,
    pub(super) kernel: String,
    pub(super) weir: String,
    pub(super) iperf: String,
    pub(super) ping: String,
    /// Share of all cores that was in use before the first row.
    pub(super) busy_before: f64,
}

impl Machine {
    pub(super) fn here(busy_before: f64) -> Self {
        Self {
            cpu: crate::host::cpu_model(),
            cores: crate::host::cpus(),
            kernel: crate::host::kernel(),
            weir: env!("CARGO_PKG_VERSION").into(),
            iperf: sandbox::version_of("iperf", "--version"),
            ping: sandbox::version_of("ping", "-V"),
            busy_before,
        }
    }
}

/// Everything that was found out.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) seconds: u16,
    pub(super) mtu: u16,
    pub(super) v6: bool,
    pub(super) took_s: f64,
    /// Commands that built both hosts.
    pub(super) setup: Vec<String>,
    pub(super) rows: Vec<DemoRow>,
}

/// Three significant digits.
pub(super) fn short(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The cells of a row after its label.
pub(super) fn cells(measured: &Measured) -> Vec<String> {
    let trips = measured
        .round_trips
        .iter()
        .map(|trips| format!("{}/{}", short(trips.quantile(0.5)), short(trips.quantile(0.99))));
    let mut cells = vec![short(measured.set_up_ms()), short(measured.transfer.rate())];
    cells.extend(trips);
    cells.push(short(measured.cpu_s_per_gbit));
    cells.push(format!("{:.0}", measured.wire_per_1000));
    cells
}

/// The last cell: agreement of counters and iperf.
pub(super) fn verdict(row: &DemoRow) -> String {
    match (&row.failure, &row.measured) {
        (None, Some(measured)) => format!("✓ {:+.1}%", measured.check.worst() * 100.0),
        (_, Some(measured)) => format!("✗ {:+.1}%", measured.check.worst() * 100.0),
        _ => "✗ failed".into(),
    }
}

/// The columns after the label, in two lines each.
pub(super) fn columns() -> Vec<(String, &'static str)> {
    let mut columns = vec![("set-up".to_owned(), "ms"), ("TCP".to_owned(), "Gbit/s")];
    columns.extend(ping::SIZES.iter().map(|size| (format!("RTT {size} B"), "med/p99 µs")));
    columns.push(("CPU-s".into(), "/Gbit"));
    columns.push(("wire".into(), "/1000"));
    columns
}

impl Report {
    pub(super) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has string keys and valid values") + "\n"
    }

    /// Within 100 columns.
    pub(super) fn table(&self) -> String {
        let mut table = Table::new();
        let style = presets::UTF8_HORIZONTAL_ONLY;
        table.load_style(style.header_separator(style.top_border).row_separator(LineStyle::none()));
        let head = columns().into_iter().map(|(first, second)| format!("{first}\n{second}"));
        table.set_header([String::from("way")].into_iter().chain(head).chain(["counts".to_owned()]));
        let width = columns().len();
        for row in &self.rows {
            let cells = row.measured.as_ref().map_or_else(|| vec!["–".to_owned(); width], cells);
            table.add_row([row.label.clone()].into_iter().chain(cells).chain([verdict(row)]));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 1));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!("{table}\n");
        for note in self.notes() {
            text.push_str(&format!("{note}\n"));
        }
        for row in &self.rows {
            if let Some(failure) = &row.failure {
                text.push_str(&format!("\n✗ {}: {failure}\n", row.label));
            }
        }
        text
    }

    /// Source of the keys.
    fn keys_notes(&self) -> impl Iterator<Item = String> {
        let notes = [
            (Keying::Ike, "Keys: IKEv2 on the first packet, ECDSA P-256 certificates, X25519."),
            (
                Keying::Psp,
                "Keys of PSP: its key service over TLS 1.3, by 'weir initiate' just before the first packet.",
            ),
            (Keying::Manual, "Keys: manual."),
        ];
        let used = |keying| self.rows.iter().any(|row| row.keying == keying);
        notes.into_iter().filter(move |(keying, _)| used(*keying)).map(|(_, note)| note.to_owned())
    }

    /// Notes for reading the numbers.
    pub(super) fn notes(&self) -> Vec<String> {
        let Machine { cpu, cores, kernel, busy_before, .. } = &self.machine;
        let mut notes = vec![
            format!("{cores} cores carry everything: both hosts, Weir on each, iperf and ping."),
            format!("{cpu}, Linux {kernel}."),
            format!(
                "{} TCP streams for {} s; RTT of {} pings on an idle path, size of the IP packet; cable MTU {}.",
                super::iperf::STREAMS,
                self.seconds,
                ping::COUNT,
                self.mtu
            ),
            format!(
                "Set-up: from the first datagram sent on sun to the first one received on moon; median of {SET_UPS} starts."
            ),
            "CPU-s: working time of all cores. Wire: bytes of Ethernet frames from sun to moon, one segment each."
                .into(),
            "Counts: payload bytes at both hosts compared with iperf's; the larger deviation, ✓ within 2 %.".into(),
        ];
        notes.extend(self.keys_notes());
        if *busy_before > WORTH_TELLING {
            notes.push(format!(
                "Note: other programs used {:.0} % of this machine before the start; the numbers are affected.",
                busy_before * 100.0
            ));
        }
        notes
    }
}

/// Shares of a core's time by kind: user, system, softirq, steal, idle.
pub(super) fn shares(core: CoreTime) -> [f64; 5] {
    let total = core.total();
    [core.user, core.system, core.softirq, core.steal, core.idle]
        .map(|time| if total > 0.0 { time / total } else { 0.0 })
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::super::check::{Check, Count};
    use super::super::counters::{CpuSample, NetCount};
    use super::super::iperf::Transfer;
    use super::super::ping::RoundTrips;
    use super::super::probe::SetUp;
    use super::super::way::{DemoVariant, Keys};
    use super::*;

    /// A report with every configuration, one without a result and one with inconsistent counters.
    pub(in super::super) fn example() -> Report {
        let rows = DemoVariant::ALL.into_iter().enumerate().map(|(index, way)| {
            let n = index as f64 + 1.0;
            let count = Count { packets: 1000, bytes: 1_400_000 };
            let core = CoreTime { user: 2.0, system: 3.0, softirq: 1.5, idle: 1.0 + n / 4.0, steal: 0.25 };
            let trips = |ip_bytes| RoundTrips {
                ip_bytes,
                sent: 200,
                us: (0..200u32).map(|i| 1000.0 * n + f64::from(ip_bytes) / 10.0 + f64::from(i % 37)).collect(),
            };
            let measured = Measured {
                set_ups: (0..5).map(|i| SetUp { ms: 12.5 + f64::from(i) * n, lost: 0 }).collect(),
                transfer: Transfer {
                    bytes: 1_348_000,
                    seconds: 8.0,
                    flows: 8,
                    gbit_per_s: (0..8).map(|i| 12.5 / n + f64::from(i % 3) / 10.0).collect(),
                    fairness: 0.99,
                },
                round_trips: ping::SIZES.map(trips).to_vec(),
                cpu: vec![CpuSample { at_s: 8.0, cores: vec![core; 2] }],
                cpu_s_per_gbit: n,
                weir_cpu_s: [1.0, 2.0],
                cable: NetCount::default(),
                wire_per_1000: 1045.0 + 10.0 * n,
                check: Check::new(count, count, 1_348_000, 20, false),
                drops: [BTreeMap::new(), BTreeMap::new()],
            };
            let (measured, failure) = match way {
                DemoVariant::Ah => (None, Some("weir on sun ended <badly> & early".to_owned())),
                DemoVariant::Psp => (Some(measured), Some("counters and iperf disagree".to_owned())),
                _ => (Some(measured), None),
            };
            let keying = way.keying(Keys::Ike);
            DemoRow {
                way,
                label: way.label(8),
                keying,
                failure,
                measured,
                took_s: 14.0,
                commands: vec!["sun: ping".into()],
            }
        });
        Report {
            machine: Machine {
                cpu: "Example(R) Processor & Co @ 2.50GHz".into(),
                cores: 2,
                kernel: "6.1.0".into(),
                weir: "0.1.0".into(),
                iperf: "iperf version 2.1.8".into(),
                ping: "ping from iputils".into(),
                busy_before: 0.4,
            },
            seconds: 8,
            mtu: 1500,
            v6: false,
            took_s: 120.0,
            setup: vec!["ip netns add x".into()],
            rows: rows.collect(),
        }
    }

    #[test]
    fn the_table_has_every_row_and_fits_100_columns() {
        let report = example();
        let text = report.table();
        assert!(report.rows.iter().all(|row| text.contains(&row.label)), "{text}");
        assert!(text.contains("✓ +0.0%") && text.contains("✗ failed") && text.contains("ended <badly>"), "{text}");
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{widest:?}\n{text}");
    }

    #[test]
    fn json_is_json() {
        let value: serde_json::Value = serde_json::from_str(&example().json()).unwrap();
        assert_eq!(value["rows"][1]["way"], "esp-gcm");
        assert_eq!(value["rows"][0]["measured"]["round_trips"][2]["ip_bytes"], 1400);
    }

    #[test]
    fn three_digits() {
        assert_eq!(
            [0.123, 9.994, 9.996, 99.94, 99.96, 1234.0].map(short),
            ["0.12", "9.99", "10.0", "99.9", "100", "1234"]
        );
        assert_eq!(short(f64::NAN), "–");
    }

    #[test]
    fn shares_add_up() {
        let core = CoreTime { user: 1.0, system: 2.0, softirq: 3.0, idle: 4.0, steal: 5.0 };
        assert!((shares(core).iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert_eq!(shares(CoreTime::default()), [0.0; 5]);
    }
}
