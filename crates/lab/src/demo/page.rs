//! The page: plots and tables in one HTML file that needs nothing else, no network and no scripts.

use std::fmt::Write;

use super::ping;
use super::plots::{self, Axis, KINDS};
use super::probe::SetUp;
use super::report::{Report, cells, columns, shares, short, verdict};
use super::row::{DemoRow, Measured};
use super::svg::escape;
use super::world::End;

const STYLE: &str = include_str!("page.css");

/// Patterns over the colours of kinds of processor time, for readers who cannot distinguish
/// colours.
const PATTERNS: &str = r#"<svg class="defs" width="0" height="0" aria-hidden="true"><defs>
<pattern id="stripes" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="1.6" height="5" class="ink"/></pattern>
<pattern id="dots" width="5" height="5" patternUnits="userSpaceOnUse"><circle cx="2.5" cy="2.5" r="1.1" class="ink"/></pattern>
<pattern id="grid" width="4" height="4" patternUnits="userSpaceOnUse"><rect width="4" height="1" class="ink"/><rect width="1" height="4" class="ink"/></pattern>
</defs></svg>"#;

/// The whole page.
pub(super) fn html(report: &Report) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Weir demo: eight configurations between two hosts</title>\n<style>{STYLE}</style></head>\n<body>{PATTERNS}\n<main>\n"
    );
    head(&mut page, report);
    overview(&mut page, report);
    plots(&mut page, report);
    details(&mut page, report);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn head(page: &mut String, report: &Report) {
    let good = report.rows.iter().filter(|row| row.failure.is_none()).count();
    let _ = write!(
        page,
        "<header><h1>Demo: {} between the hosts sun and moon</h1>\n<p>Two hosts on one machine exchange real TCP and real pings, with and \
         without Weir between them. In {good} of {} rows the counters of both ends agree with iperf's bytes within \
         2&nbsp;%.</p>\n",
        if report.rows.len() == 8 { "Eight ways".to_owned() } else { format!("{} ways", report.rows.len()) },
        report.rows.len(),
    );
    page.push_str("<ul class=\"notes\">");
    for note in report.notes() {
        let _ = write!(page, "<li>{}</li>", escape(&note));
    }
    page.push_str("</ul></header>\n");
}

fn overview(page: &mut String, report: &Report) {
    let heads: Vec<String> = columns().into_iter().map(|(first, second)| format!("{first} {second}")).collect();
    let mut head = vec!["way".to_owned()];
    head.extend(heads);
    head.push("counters".into());
    let rows = report.rows.iter().map(|row| {
        let blank = || vec!["–".to_owned(); head.len() - 2];
        let mut line = vec![row.label.clone()];
        line.extend(row.measured.as_ref().map_or_else(blank, cells));
        line.push(verdict(row));
        line
    });
    page.push_str("<section><h2>Results</h2>\n");
    table(page, &head, rows);
    for row in &report.rows {
        if let Some(failure) = &row.failure {
            let _ =
                write!(page, "<p class=\"failure\"><b>✗ {}</b></p><pre>{}</pre>", escape(&row.label), escape(failure));
        }
    }
    page.push_str("</section>\n");
}

fn card(page: &mut String, title: &str, text: &str, plot: &str) {
    let _ = writeln!(
        page,
        "<figure><figcaption><h3>{}</h3><p>{}</p></figcaption>{plot}</figure>",
        escape(title),
        escape(text)
    );
}

fn plots(page: &mut String, report: &Report) {
    let rows = &report.rows;
    let of = |value: fn(&Measured) -> f64| move |row: &DemoRow| row.measured.as_ref().map(value);
    page.push_str("<section><h2>Throughput</h2>\n<div class=\"cards\">\n");
    let rate =
        plots::bars("Throughput by configuration", rows, of(|m| m.transfer.rate()), |v| format!("{} Gbit/s", short(v)));
    card(page, "Payload received", "Mean over the transfer, Gbit/s. Longer is better.", &rate);
    let extra = plots::bars("Bytes on the wire besides payload", rows, of(|m| m.wire_per_1000 - 1000.0), |v| {
        format!("{v:.1} B")
    });
    card(
        page,
        "Bytes besides payload, per 1,000 bytes",
        "Ethernet, IP and TCP headers, protocol header, padding, ICV, and retransmitted segments. Shorter is better.",
        &extra,
    );
    page.push_str("</div>\n<h3>Second by second</h3><p>Gbit/s by second of the transfer, all on one scale.</p>\n<div class=\"small\">\n");
    for plot in plots::series(rows) {
        let _ = writeln!(page, "<figure>{plot}</figure>");
    }
    page.push_str("</div></section>\n<section><h2>Round-trip time</h2>\n");
    page.push_str(
        "<p>Box: the middle half of the pings. Thick line: median. Thin line: from the fastest to the 99th percentile. \
         Ring: the slowest. Logarithmic axis, the same for all sizes. The path is idle otherwise.</p>\n<div class=\"cards three\">\n",
    );
    let axis = Axis::of(rows);
    for size in ping::SIZES {
        let plot = plots::round_trips(rows, size, &axis);
        card(page, &format!("{size} bytes"), &format!("{} pings, size of the IP packet.", ping::COUNT), &plot);
    }
    page.push_str("</div></section>\n<section><h2>Set-up</h2>\n<div class=\"cards one\">\n");
    let set_up = plots::bars("Time to the first packet", rows, of(Measured::set_up_ms), |v| format!("{} ms", short(v)));
    card(
        page,
        "First packet, keys included",
        "From the call that sends the first datagram on sun until a program on moon has read one: median of five fresh \
         starts, in milliseconds. With IKE the datagram meets a trap, waits for an IKE SA and a Child SA, and goes \
         through it. PSP has no trap: 'weir initiate' is started just before. Shorter is better.",
        &set_up,
    );
    page.push_str("</div></section>\n<section><h2>Processors</h2>\n<div class=\"cards\"><figure><figcaption>");
    page.push_str("<h3>Each core during the transfer</h3><p class=\"legend\">");
    for (kind, name) in KINDS {
        let _ = write!(page, "<span>{} {name}</span>", plots::swatch(kind));
    }
    let _ = writeln!(
        page,
        "</p><p>Sender, receiver and both gateways share these cores. Right: working time. The eight busiest cores.</p>\
         </figcaption>{}</figure>",
        plots::cores(rows)
    );
    let cost = plots::bars("CPU seconds per Gbit", rows, of(|m| m.cpu_s_per_gbit), |v| format!("{} s", short(v)));
    card(
        page,
        "CPU-seconds per Gbit",
        "Working time of all cores for each Gbit of payload: both hosts, iperf included. Shorter is better.",
        &cost,
    );
    page.push_str("</div></section>\n");
}

fn details(page: &mut String, report: &Report) {
    page.push_str("<section><h2>Data</h2>\n");
    let measured = || report.rows.iter().filter_map(|row| Some((row, row.measured.as_ref()?)));
    page.push_str("<h3>Counters against iperf</h3>");
    let head = [
        "way",
        "iperf bytes",
        "sun sent, packets",
        "sun sent, bytes",
        "moon received, packets",
        "moon received, bytes",
    ];
    let more = ["headers each", "sun", "moon", "lost", "TCP retransmitted", "dropped by Weir"];
    table(
        page,
        &[head, more].concat(),
        measured().map(|(row, m)| {
            let c = &m.check;
            let drops =
                m.drops.iter().zip(End::BOTH).flat_map(|(d, end)| d.iter().map(move |(k, n)| format!("{end} {n} {k}")));
            let drops: Vec<String> = drops.collect();
            vec![
                row.label.clone(),
                c.iperf_bytes.to_string(),
                c.sent.packets.to_string(),
                c.sent.bytes.to_string(),
                c.received.packets.to_string(),
                c.received.bytes.to_string(),
                c.headers.to_string(),
                format!("{:+.2} %", c.sun_deviation * 100.0),
                format!("{:+.2} %", c.moon_deviation * 100.0),
                c.lost.to_string(),
                m.cable.retransmitted.to_string(),
                if drops.is_empty() { "nothing".into() } else { drops.join(", ") },
            ]
        }),
    );
    page.push_str("<h3>Set-up in ms</h3>");
    table(
        page,
        &["way", "median", "each start", "datagrams lost before"],
        measured().map(|(row, m)| {
            let each = |text: &dyn Fn(&SetUp) -> String| m.set_ups.iter().map(text).collect::<Vec<_>>().join("  ");
            vec![row.label.clone(), short(m.set_up_ms()), each(&|s| short(s.ms)), each(&|s| s.lost.to_string())]
        }),
    );
    page.push_str("<h3>Round trips in µs</h3>");
    table(
        page,
        &["way", "IP bytes", "least", "p25", "median", "p75", "p99", "largest", "sent", "lost"],
        measured().flat_map(|(row, m)| {
            m.round_trips.iter().map(|trips| {
                let mut line = vec![row.label.clone(), trips.ip_bytes.to_string()];
                line.extend([0.0, 0.25, 0.5, 0.75, 0.99, 1.0].map(|q| short(trips.quantile(q))));
                line.extend([trips.sent.to_string(), trips.lost().to_string()]);
                line
            })
        }),
    );
    page.push_str("<h3>Throughput by second in Gbit/s</h3>");
    table(
        page,
        &["way", "mean", "by second", "fairness of the streams (Jain)"],
        measured().map(|(row, m)| {
            let seconds: Vec<String> = m.transfer.gbit_per_s.iter().map(|v| short(*v)).collect();
            vec![row.label.clone(), short(m.transfer.rate()), seconds.join("  "), format!("{:.3}", m.transfer.fairness)]
        }),
    );
    page.push_str("<h3>Cores</h3>");
    table(
        page,
        &[
            "way",
            "core",
            "programs",
            "kernel",
            "packets, interrupts",
            "steal",
            "idle",
            "Weir on sun, CPU-s",
            "Weir on moon, CPU-s",
        ],
        measured().flat_map(|(row, m)| {
            m.cores().into_iter().enumerate().map(|(number, core)| {
                let mut line = vec![row.label.clone(), number.to_string()];
                line.extend(shares(core).map(|share| format!("{:.0} %", share * 100.0)));
                let once = |seconds: f64| if number == 0 { format!("{seconds:.2}") } else { String::new() };
                line.extend(m.weir_cpu_s.map(once));
                line
            })
        }),
    );
    provenance(page, report);
    page.push_str("</section>\n");
}

fn provenance(page: &mut String, report: &Report) {
    let m = &report.machine;
    page.push_str("<h3>Where the numbers come from</h3>");
    let lines = [
        ("processor", format!("{}, {} cores", m.cpu, m.cores)),
        ("kernel", m.kernel.clone()),
        ("weir", m.weir.clone()),
        ("iperf", m.iperf.clone()),
        ("ping", m.ping.clone()),
        ("busy before the start", format!("{:.0} %", m.busy_before * 100.0)),
        ("took", format!("{:.0} s", report.took_s)),
        ("raw data", "results.json and the directory raw beside this page".into()),
    ];
    table(page, &["what", "value"], lines.into_iter().map(|(what, value)| vec![what.to_owned(), value]));
    let mut commands = report.setup.join("\n");
    for row in &report.rows {
        let _ = write!(commands, "\n\n# {}\n{}", row.label, row.commands.join("\n"));
    }
    let _ = write!(page, "<details><summary>Commands</summary><pre>{}</pre></details>", escape(&commands));
}

fn table(page: &mut String, head: &[impl AsRef<str>], rows: impl Iterator<Item = Vec<String>>) {
    page.push_str("<div class=\"scroll\"><table><thead><tr>");
    for cell in head {
        let _ = write!(page, "<th scope=\"col\">{}</th>", escape(cell.as_ref()));
    }
    page.push_str("</tr></thead><tbody>\n");
    for row in rows {
        page.push_str("<tr>");
        for (index, cell) in row.iter().enumerate() {
            let cell = escape(cell);
            let _ = if index == 0 {
                write!(page, "<th scope=\"row\">{cell}</th>")
            } else {
                write!(page, "<td>{cell}</td>")
            };
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;
    use super::super::svg::assert_well_formed;
    use super::*;

    #[test]
    fn the_page_is_well_formed_and_stands_alone() {
        let report = example();
        let page = html(&report);
        assert_well_formed(&page);
        assert!(!page.contains("<script") && !page.contains("http:") && !page.contains("https:"));
        assert!(page.contains("ended &lt;badly&gt; &amp; early") && page.contains("Processor &amp; Co"));
        assert!(report.rows.iter().all(|row| page.contains(&row.label)));
    }
}
