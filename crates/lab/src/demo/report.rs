//! The result: a table and a page by the renderer of reports, JSON for machines.

use std::fmt::Write;

use serde::Serialize;

use super::row::{DemoRow, Measured, SET_UPS};
use super::variant::Keying;
use crate::host::cpu::CpuTimes;
use crate::report::chart::{Axis, Bar, Chart, Series, bars, exactly, short};
use crate::report::figure::{Data, Figure, Section};
use crate::report::{page, tables};
use crate::svg::escape;
use stats::Estimate;
use testbed::ping::{self, RoundTrips};
use testbed::probe::SetUp;
use testbed::sandbox;
use testbed::world::End;

/// Columns of the table.
const COLUMNS: usize = 100;

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
            kernel: testbed::kernel(),
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

/// The last cell: agreement of counters and iperf.
fn verdict(row: &DemoRow) -> String {
    match (&row.failure, &row.measured) {
        (None, Some(measured)) => format!("✓ {:+.1}%", measured.check.worst() * 100.0),
        (_, Some(measured)) => format!("✗ {:+.1}%", measured.check.worst() * 100.0),
        _ => "✗ failed".into(),
    }
}

/// Median and 99th percentile.
fn trips_shown(trips: &RoundTrips) -> String {
    format!("{}/{}", short(trips.quantile(0.5)), short(trips.quantile(0.99)))
}

/// A figure of the demonstration: `of` each measured row, drawn as bars.
fn bars_of(rows: &[DemoRow], title: &str, unit: &str, of: fn(&Measured) -> f64) -> String {
    let bar = |(style, row): (usize, &DemoRow)| {
        let value = row.measured.as_ref().map_or(f64::NAN, of);
        let text = if value.is_finite() { format!("{} {unit}", short(value)) } else { "no result".into() };
        Bar { name: row.label.clone(), text, value: exactly(value), style }
    };
    bars(title, &rows.iter().enumerate().map(bar).collect::<Vec<_>>())
}

impl Report {
    pub(super) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has string keys and valid values") + "\n"
    }

    fn measured(&self) -> impl Iterator<Item = (usize, &DemoRow, &Measured)> {
        self.rows.iter().enumerate().filter_map(|(style, row)| Some((style, row, row.measured.as_ref()?)))
    }

    /// One line per row: what the terminal shows, and the first table of the page.
    fn results(&self) -> Data {
        let trips = ping::SIZES.map(|size| format!("RTT {size} B p50/p99"));
        // The last columns are left out first where a terminal has no room.
        let mut head = vec!["configuration", "counters", "set-up (ms)", "TCP, Gbit/s"];
        head.extend(trips.iter().map(String::as_str));
        head.extend(["CPU-s /Gbit", "wire"]);
        let mut data = Data::new(&head);
        for row in &self.rows {
            let blank = || vec!["–".to_owned(); head.len() - 2];
            let cells = row.measured.as_ref().map_or_else(blank, |m| {
                let mut cells = vec![short(m.set_up_ms()), short(m.transfer.rate())];
                cells.extend(m.round_trips.iter().map(trips_shown));
                cells.extend([short(m.cpu_s_per_gbit), format!("{:.0}", m.wire_per_1000)]);
                cells
            });
            data.push([vec![row.label.clone(), verdict(row)], cells].concat());
        }
        data
    }

    /// Within 100 columns.
    pub(super) fn table(&self) -> String {
        let mut text = tables::of_data(&self.results(), COLUMNS);
        for note in self.notes() {
            text += &tables::wrapped(&note, COLUMNS);
        }
        for row in &self.rows {
            if let Some(failure) = &row.failure {
                text.push_str(&format!("\n✗ {}: {failure}\n", row.label));
            }
        }
        text
    }

    /// The page: one file that needs nothing else.
    pub(super) fn html(&self) -> String {
        let mut page = page::opening("demo");
        let good = self.rows.iter().filter(|row| row.failure.is_none()).count();
        let _ = writeln!(
            page,
            "<header><h1>Demo: {} configurations between the hosts sun and moon</h1>\n<p>Two hosts on one machine exchange \
             real TCP and real pings, with and without Weir between them. In {good} of {} rows the counters of both ends \
             agree with iperf's bytes within 2&nbsp;%.</p>",
            self.rows.len(),
            self.rows.len(),
        );
        let notes: String = self.notes().iter().map(|note| format!("<li>{}</li>", escape(note))).collect();
        let results = self.results();
        let _ = writeln!(page, "<ul>{notes}</ul></header>\n<section><h2>Results</h2>");
        page.push_str(&tables::html(&results.head, &results.rows));
        for row in &self.rows {
            if let Some(failure) = &row.failure {
                let _ = writeln!(page, "<p><b>✗ {}</b></p><pre>{}</pre>", escape(&row.label), escape(failure));
            }
        }
        page.push_str("</section>\n");
        self.sections().iter().for_each(|section| page.push_str(&section.html()));
        self.provenance(&mut page);
        page.push_str(page::CLOSING);
        page
    }

    fn sections(&self) -> Vec<Section> {
        let section = |title, figures| Section { title, figures };
        vec![
            section("Throughput", vec![self.throughput(), self.seconds(), self.counters()]),
            section("Round-trip time", vec![self.round_trips()]),
            section("Set-up", vec![self.set_up()]),
            section("Processors", vec![self.processors()]),
        ]
    }

    fn throughput(&self) -> Figure {
        let mut data = Data::new(&["configuration", "Gbit/s", "fairness of the streams (Jain)"]);
        for (_, row, m) in self.measured() {
            data.push([row.label.clone(), short(m.transfer.rate()), format!("{:.3}", m.transfer.fairness)]);
        }
        let title = "Payload received";
        let drawing = bars_of(&self.rows, title, "Gbit/s", |m| m.transfer.rate());
        Figure::drawn("rate", title, "Mean over the transfer. Longer is better.", drawing, data)
    }

    fn seconds(&self) -> Figure {
        let title = "Second by second";
        let mut data = Data::new(&["configuration", "second", "Gbit/s"]);
        let mut chart = Chart::new(title, Axis::linear("second"), Axis::linear("Gbit/s").covering(0.0, 0.1));
        for (style, row, m) in self.measured() {
            let mut series = Series::new(&row.label, style);
            for (second, rate) in (1u32..).zip(&m.transfer.gbit_per_s) {
                series.push(second.into(), *rate);
                data.push([row.label.clone(), second.to_string(), short(*rate)]);
            }
            chart.series.push(series);
        }
        Figure::drawn("seconds", title, "All streams together.", chart.draw(), data)
    }

    fn counters(&self) -> Figure {
        let head = ["configuration", "iperf bytes", "sun sent, packets", "sun sent, bytes", "moon received, packets"];
        let more =
            ["moon received, bytes", "headers each", "sun", "moon", "lost", "TCP retransmitted", "dropped by Weir"];
        let mut data = Data::new(&[&head[..], &more[..]].concat());
        for (_, row, m) in self.measured() {
            let c = &m.check;
            let drops = m.drops.iter().zip(End::BOTH);
            let drops: Vec<String> =
                drops.flat_map(|(d, end)| d.iter().map(move |(reason, n)| format!("{end} {n} {reason}"))).collect();
            let counts = [c.iperf_bytes, c.sent.packets, c.sent.bytes, c.received.packets, c.received.bytes, c.headers];
            let mut cells = vec![row.label.clone()];
            cells.extend(counts.map(|count| count.to_string()));
            cells.extend([c.sun_deviation, c.moon_deviation].map(|share| format!("{:+.2} %", share * 100.0)));
            cells.extend([c.lost.to_string(), m.cable.retransmitted.to_string()]);
            cells.push(if drops.is_empty() { "nothing".into() } else { drops.join(", ") });
            data.push(cells);
        }
        let title = "Bytes besides payload, per 1,000 bytes";
        let drawing = bars_of(&self.rows, title, "B", |m| m.wire_per_1000 - 1000.0);
        let text = "Ethernet, IP and TCP headers, protocol header, padding, ICV, and retransmitted segments. Shorter is better. \
                    The data are the counters of both hosts beside iperf's.";
        Figure::drawn("counters", title, text, drawing, data)
    }

    fn round_trips(&self) -> Figure {
        let title = "Round trips by size";
        let mut data = Data::new(&[
            "configuration",
            "IP bytes",
            "least",
            "p25",
            "median",
            "p75",
            "p99",
            "largest",
            "sent",
            "lost",
        ]);
        let mut chart = Chart::new(title, Axis::linear("bytes of the IP packet"), Axis::log("µs"));
        for (style, row, m) in self.measured() {
            let mut series = Series::new(&row.label, style);
            for trips in &m.round_trips {
                let quantiles = [0.0, 0.25, 0.5, 0.75, 0.99, 1.0].map(|q| trips.quantile(q));
                let mut cells = vec![row.label.clone(), trips.ip_bytes.to_string()];
                cells.extend(quantiles.map(short));
                cells.extend([trips.sent.to_string(), trips.lost().to_string()]);
                data.push(cells);
                let [low, _, value, _, high, _] = quantiles;
                if value.is_finite() {
                    series.points.push((trips.ip_bytes.into(), Estimate { value, low, high }));
                }
            }
            chart.series.push(series);
        }
        let text = format!(
            "Median of {} pings, with a line from the fastest to the 99th percentile. Logarithmic axis. The path is idle otherwise.",
            ping::COUNT
        );
        Figure::drawn("round-trips", title, &text, chart.draw(), data)
    }

    fn set_up(&self) -> Figure {
        let mut data = Data::new(&["configuration", "median, ms", "each start, ms", "datagrams lost before"]);
        for (_, row, m) in self.measured() {
            let each = |text: &dyn Fn(&SetUp) -> String| m.set_ups.iter().map(text).collect::<Vec<_>>().join("  ");
            data.push([row.label.clone(), short(m.set_up_ms()), each(&|s| short(s.ms)), each(&|s| s.lost.to_string())]);
        }
        let title = "First packet, keys included";
        let text = "From the call that sends the first datagram on sun until a program on moon has read one: median of five fresh \
                    starts, in milliseconds. With IKE the datagram meets a trap, waits for an IKE SA and a Child SA, and goes \
                    through it. PSP has no trap: 'weir initiate' is started just before. Shorter is better.";
        Figure::drawn("set-up", title, text, bars_of(&self.rows, title, "ms", Measured::set_up_ms), data)
    }

    fn processors(&self) -> Figure {
        let kinds = ["programs", "kernel", "packets, interrupts", "steal", "idle"];
        let head = [&["configuration", "core"][..], &kinds, &["Weir on sun, CPU-s", "Weir on moon, CPU-s"]].concat();
        let mut data = Data::new(&head);
        for (_, row, m) in self.measured() {
            for (number, core) in m.cpu.iter().enumerate() {
                let mut cells = vec![row.label.clone(), number.to_string()];
                cells.extend(shares(core).map(|share| format!("{:.0} %", share * 100.0)));
                cells.extend(m.weir_cpu_s.map(|s| if number == 0 { format!("{s:.2}") } else { String::new() }));
                data.push(cells);
            }
        }
        let title = "CPU-seconds per Gbit";
        let text = "Working time of all cores for each Gbit of payload: both hosts, iperf included. Shorter is better. The data have \
                    the time of each core by kind: sender, receiver and both gateways share them.";
        Figure::drawn("processors", title, text, bars_of(&self.rows, title, "s", |m| m.cpu_s_per_gbit), data)
    }

    fn provenance(&self, page: &mut String) {
        let m = &self.machine;
        let rows = [
            ("processor", format!("{}, {} cores", m.cpu, m.cores)),
            ("kernel", m.kernel.clone()),
            ("weir", m.weir.clone()),
            ("iperf", m.iperf.clone()),
            ("ping", m.ping.clone()),
            ("busy before the start", format!("{:.0} %", m.busy_before * 100.0)),
            ("took", format!("{:.0} s", self.took_s)),
            ("raw data", "results.json and the directory raw beside this page".into()),
        ];
        let mut commands = self.setup.join("\n");
        for row in &self.rows {
            let _ = write!(commands, "\n\n# {}\n{}", row.label, row.commands.join("\n"));
        }
        let rows = rows.map(|(what, value)| vec![what.to_owned(), value]);
        let _ = writeln!(
            page,
            "<section><h2>Provenance</h2>\n{}<details><summary>Commands</summary><pre>{}</pre></details></section>",
            tables::html(&["what".into(), "value".into()], &rows),
            escape(&commands)
        );
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
    fn notes(&self) -> Vec<String> {
        let Machine { cpu, cores, kernel, busy_before, .. } = &self.machine;
        let mut notes = vec![
            format!("{cores} cores carry everything: both hosts, Weir on each, iperf and ping."),
            format!("{cpu}, Linux {kernel}."),
            format!(
                "{} TCP streams for {} s; RTT in µs of {} pings on an idle path, size of the IP packet; cable MTU {}.",
                testbed::iperf::STREAMS,
                self.seconds,
                ping::COUNT,
                self.mtu
            ),
            format!(
                "Set-up: from the first datagram sent on sun to the first one received on moon; median of {SET_UPS} starts."
            ),
            "CPU-s: working time of all cores. Wire: bytes of Ethernet frames from sun to moon per 1,000 of payload."
                .into(),
            "Counts: payload bytes at both hosts compared with iperf's and what TCP sent again; the larger deviation, \
             ✓ within 2 %."
                .into(),
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
fn shares(core: &CpuTimes) -> [f64; 5] {
    let kinds = [core.user + core.nice, core.system, core.irq + core.softirq, core.steal, core.idle + core.iowait];
    kinds.map(|time| core.percent(time).unwrap_or(0.0) / 100.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::check::{Check, Count};
    use super::super::variant::{DemoVariant, Keys};
    use super::*;
    use crate::svg::assert_well_formed;
    use testbed::counters::NetCount;
    use testbed::iperf::TransferResult;

    /// A report with every configuration, one without a result and one with inconsistent counters.
    fn example() -> Report {
        let rows = DemoVariant::ALL.into_iter().enumerate().map(|(index, variant)| {
            let n = index as f64 + 1.0;
            let count = Count { packets: 1000, bytes: 1_400_000 };
            let core = CpuTimes { user: 200, system: 300, softirq: 150, idle: 100, steal: 25, ..CpuTimes::default() };
            let trips = |ip_bytes| RoundTrips {
                ip_bytes,
                sent: 200,
                us: (0..200u32).map(|i| 1000.0 * n + f64::from(ip_bytes) / 10.0 + f64::from(i % 37)).collect(),
            };
            let measured = Measured {
                set_ups: (0..5).map(|i| SetUp { ms: 12.5 + f64::from(i) * n, lost: 0 }).collect(),
                transfer: TransferResult {
                    bytes: 1_348_000,
                    seconds: 8.0,
                    flows: 8,
                    gbit_per_s: (0..8).map(|i| 12.5 / n + f64::from(i % 3) / 10.0).collect(),
                    fairness: 0.99,
                },
                round_trips: ping::SIZES.map(trips).to_vec(),
                cpu: vec![core; 2],
                cpu_s_per_gbit: n,
                weir_cpu_s: [1.0, 2.0],
                cable: NetCount::default(),
                wire_per_1000: 1045.0 + 10.0 * n,
                check: Check::new(count, count, 1_348_000, 20, false),
                drops: [BTreeMap::new(), BTreeMap::new()],
            };
            let (measured, failure) = match variant {
                DemoVariant::Ah => (None, Some("weir on sun ended <badly> & early".to_owned())),
                DemoVariant::Psp => (Some(measured), Some("counters and iperf disagree".to_owned())),
                _ => (Some(measured), None),
            };
            let keying = variant.keying(Keys::Ike);
            DemoRow {
                variant,
                label: variant.label(8),
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
        assert_eq!(value["rows"][1]["configuration"], "esp-gcm");
        assert_eq!(value["rows"][0]["measured"]["round_trips"][2]["ip_bytes"], 1400);
    }

    #[test]
    fn the_page_is_well_formed_and_stands_alone() {
        let mut report = example();
        // No round trip at all came back in this one.
        if let Some(measured) = &mut report.rows[1].measured {
            measured.round_trips[0].us.clear();
            measured.transfer.gbit_per_s.clear();
        }
        for _ in 0..2 {
            let page = report.html();
            assert_well_formed(&page.replace("<link rel=\"icon\" href=\"data:,\">", ""));
            assert!(!page.contains("<script") && !page.contains("http:") && !page.contains("https:"));
            assert!(page.contains("ended &lt;badly&gt; &amp; early") && page.contains("Processor &amp; Co"));
            assert!(report.rows.iter().all(|row| page.contains(&row.label)) && page.contains("no result"));
            report.rows.iter_mut().for_each(|row| row.measured = None);
        }
    }

    #[test]
    fn shares_add_up() {
        let core = CpuTimes { user: 1, nice: 1, system: 2, irq: 1, softirq: 3, idle: 4, iowait: 2, steal: 5 };
        assert!((shares(&core).iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert!((shares(&core)[0] - 2.0 / 19.0).abs() < 1e-9);
        assert_eq!(shares(&CpuTimes::default()), [0.0; 5]);
    }
}
