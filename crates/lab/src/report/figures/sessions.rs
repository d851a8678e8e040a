//! Sessions: set-up by operation, with and without cryptography, by round trip, against packets and
//! by lifetime; printed values of paper 001 beside those of this run.

use std::collections::BTreeSet;

use super::{cells, exact, style};
use crate::campaign::Kind;
use crate::campaign::runner::one_size;
use crate::metric::Metric;
use crate::report::analysis::{Folder, shown, undisturbed, values};
use crate::report::chart::{Axis, Bar, Chart, STYLES, Series, divided_bars, exactly, short, trimmed};
use crate::report::figure::{Data, Figure};
use crate::report::sessions::{self, End, both, cryptography, extra_per_packet, is_again, over, sum, value};
use crate::report::tables;
use crate::sessions::{Mode, ROUND_TRIPS_MS, ROWS, Subject};
use crate::trial::Trial;
use stats::Estimate;

/// Table 1 of the paper, in milliseconds: key of a row in trials, then 3DES, AES-128 and AES-256.
/// Diffie-Hellman is one row there.
const PRINTED: [(&str, [f64; 3]); 15] = [
    ("p1_dh", [17.59, 17.64, 17.55]),
    ("p1_keys", [0.18, 0.13, 0.13]),
    ("p1_decrypt", [0.17, 0.06, 0.06]),
    ("p1_verify", [1.07, 1.09, 1.06]),
    ("p1_hash", [0.04, 0.04, 0.04]),
    ("p1_sign", [78.82, 79.10, 78.96]),
    ("p1_encrypt", [0.06, 0.16, 0.16]),
    ("p2_decrypt", [0.11, 0.03, 0.03]),
    ("p2_hash_1", [0.02, 0.02, 0.02]),
    ("p2_dh", [17.91, 17.95, 17.95]),
    ("p2_hash_2", [0.03, 0.03, 0.03]),
    ("p2_encrypt", [0.08, 0.18, 0.18]),
    ("p2_decrypt_3", [0.07, 0.02, 0.02]),
    ("p2_hash_3", [0.01, 0.02, 0.01]),
    ("p2_keys", [0.09, 0.10, 0.10]),
];
/// Ciphers of its columns.
const COLUMNS: [&str; 3] = ["3des", "aes128", "aes256"];

/// Parts of a set-up in the drawing: name, rows.
const PARTS: [(&str, &[&str]); 4] = [
    ("Diffie-Hellman", &["p1_dh_generate", "p1_dh_agree", "p2_dh"]),
    ("signature generation", &["p1_sign"]),
    ("signature verification", &["p1_verify"]),
    (
        "hashes, keys, encryption",
        &[
            "p1_keys",
            "p1_decrypt",
            "p1_hash",
            "p1_encrypt",
            "p2_decrypt",
            "p2_hash_1",
            "p2_hash_2",
            "p2_encrypt",
            "p2_decrypt_3",
            "p2_hash_3",
            "p2_keys",
            "other",
        ],
    ),
];

/// Lifetimes of SAs, in minutes.
const LIFETIMES_MIN: [f64; 5] = [5.0, 15.0, 60.0, 240.0, 480.0];
/// Rates at which the packets of a break-even pass, in bit/s.
const RATES: [(&str, f64); 2] = [("s at 1 Mbit/s", 1e6), ("s at 1 Gbit/s", 1e9)];

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    let study = Study::of(folder);
    vec![
        study.table(),
        study.operations(),
        study.whole(),
        study.set_ups(),
        study.round_trips(),
        study.break_even(),
        study.lifetimes(),
    ]
}

/// Trials of a study, by subject.
struct Study<'a> {
    folder: &'a Folder,
    subjects: Vec<(Subject, Vec<&'a Trial>)>,
    /// Second times of the first subject.
    again: Vec<&'a Trial>,
}

impl<'a> Study<'a> {
    fn of(folder: &'a Folder) -> Self {
        let trials = folder.of(Kind::Sessions);
        let mut subjects: Vec<(Subject, Vec<&Trial>)> = Vec::new();
        let names = folder.studies(Kind::Sessions).flat_map(|study| &study.subjects);
        for subject in names.filter_map(|name| name.parse::<Subject>().ok()) {
            let name = subject.to_string();
            let mine: Vec<&Trial> =
                trials.iter().filter(|trial| trial.subject == name && !is_again(trial)).copied().collect();
            if !mine.is_empty() && subjects.iter().all(|(known, _)| *known != subject) {
                subjects.push((subject, mine));
            }
        }
        Self { folder, subjects, again: trials.into_iter().filter(|trial| is_again(trial)).collect() }
    }

    /// Those with messages.
    fn exchanges(&self) -> impl Iterator<Item = &(Subject, Vec<&'a Trial>)> {
        self.subjects.iter().filter(|(subject, _)| subject.mode != Mode::Psp)
    }

    fn absent(&self, id: &'static str, title: &str) -> Figure {
        Figure::absent(id, title, &self.folder.why_not(Kind::Sessions))
    }

    /// An estimate of ticks in microseconds.
    fn us(&self, trials: &[&Trial], ticks: impl Fn(&Trial) -> Option<f64>) -> Estimate {
        let (hz, sessions) = (self.folder.hz(), values(trials, ticks));
        // An operation that a set-up does not have: its logarithm would be none.
        if !sessions.is_empty() && sessions.iter().flatten().all(|ticks| *ticks == 0.0) {
            return exactly(0.0);
        }
        undisturbed(&sessions).map(|ticks| ticks / hz * 1e6)
    }

    /// The paper's table: printed, and the responder of its three suites here.
    fn table(&self) -> Figure {
        let (id, title) = ("session-table", "Table 1 of paper 001: cryptography of the responder");
        let column = |cipher: &str| {
            self.subjects.iter().find(|(subject, _)| {
                subject.mode == Mode::Main
                    && subject.auth_word().starts_with("rsa")
                    && subject.suite.starts_with(&format!("{cipher}-md5"))
            })
        };
        let here: Vec<_> =
            COLUMNS.iter().enumerate().filter_map(|(at, name)| Some((at, *name, column(name)?))).collect();
        if here.is_empty() {
            return self.absent(id, title);
        }
        let mut head = vec!["operation".to_owned()];
        for (_, name, _) in &here {
            head.extend([format!("{name} printed, ms"), format!("{name} here, µs")]);
        }
        let mut data = Data { head, ..Data::default() };
        let rows_of = |key: &str| -> Vec<String> {
            match key {
                "p1_dh" => vec!["p1_dh_generate".into(), "p1_dh_agree".into()],
                key => vec![key.to_owned()],
            }
        };
        let mut totals = vec![[0.0; 2]; here.len()];
        for (key, printed) in PRINTED.iter().map(|(key, printed)| (*key, Some(printed))).chain([("other", None)]) {
            let mut row = vec![name_of(key)];
            for ((at, _, (_, trials)), total) in here.iter().zip(&mut totals) {
                let ours = self.us(trials, |trial| sum(trial, End::Responder, &rows_of(key))).value;
                row.extend([printed.map_or_else(|| "–".into(), |ms| format!("{:.2}", ms[*at])), exact(ours)]);
                total[0] += printed.map_or(0.0, |ms| ms[*at]);
                total[1] += ours;
            }
            data.push(row);
        }
        let total = totals.iter().flat_map(|[printed, ours]| [format!("{printed:.2}"), exact(*ours)]);
        data.push(["sum".to_owned()].into_iter().chain(total));
        let text = "Main mode with RSA signatures and quick mode with PFS. Printed: a Pentium 4 with 1.66 GHz, of which the paper \
                    gives no key size; here MODP-1024 and RSA-2048. The sums of the printed rows are 1.34 to 1.36 ms below the printed \
                    totals of 117.59, 117.93 and 117.66 ms: the row 'other' is not listed there. Of each trial the fastest set-up \
                    counts, of each session the fastest trial.";
        // The table itself is in sight: it has the printed values.
        let drawing = tables::html(&data.head, &data.rows) + &self.bars(title, End::Responder);
        Figure::drawn(id, title, text, drawing, data).noted(self.encrypted_nonces().unwrap_or_default())
    }

    /// The authentication that neither the paper nor Weir runs, priced.
    fn encrypted_nonces(&self) -> Option<String> {
        let (subject, trials) = self.exchanges().find(|(subject, _)| subject.auth_word().starts_with("rsa"))?;
        let of = |row: &str| self.us(trials, |trial| sum(trial, End::Responder, &[row.to_owned()])).value;
        let (sign, verify) = (of("p1_sign"), of("p1_verify"));
        Some(format!(
            "Authentication by public key encryption (RFC 2409 §5.2) was not measured there and is not run here (CVE-2018-5389). \
             Counted: each end would encrypt two payloads and decrypt two instead of one signature and one verification; at the RSA \
             times of {} that is {} instead of {} µs at each end.",
            subject.shown(),
            short(2.0 * (sign + verify)),
            short(sign + verify)
        ))
    }

    /// Every operation of both ends with its interval.
    fn operations(&self) -> Figure {
        let (id, title) = ("session-operations", "Operations of both ends");
        let mut data =
            Data::new(&["subject", "operation", "initiator, µs", "low", "high", "responder, µs", "low", "high"]);
        for (subject, trials) in self.exchanges() {
            for (key, name) in ROWS {
                let of = |end| self.us(trials, |trial| sum(trial, end, &[key.to_owned()]));
                let both = End::BOTH.map(of);
                if both.iter().all(|estimate| estimate.value == 0.0) {
                    continue;
                }
                let cells = both.into_iter().flat_map(cells);
                data.push([subject.shown(), name.to_owned()].into_iter().chain(cells));
            }
        }
        if data.rows.is_empty() {
            return self.absent(id, title);
        }
        let text = "Bars: the initiator of each subject by kind of operation. The table has each operation of both ends with the 95 % \
                    interval over sessions; rows of phase 2 are of quick mode. Signature and verification are of keys that both ends \
                    have: there is no certificate path.";
        Figure::drawn(id, title, text, self.bars(title, End::Initiator), data)
            .noted(self.stopwatch().unwrap_or_default())
    }

    /// Cost of the stopwatch itself.
    fn stopwatch(&self) -> Option<String> {
        let dearest = self.exchanges().map(|(subject, trials)| {
            let ratio = |trial: &Trial| Some(both(trial, "timed")? / both(trial, "full")?);
            (stats::median(&values(trials, ratio).concat()), subject.shown())
        });
        let (ratio, name) = dearest.filter(|(ratio, _)| ratio.is_finite()).max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(format!("The stopwatch changes a set-up by {} % at most ({name}).", short((ratio - 1.0) * 100.0)))
    }

    /// Bars of an end: kinds of operations, and all else.
    fn bars(&self, title: &str, end: End) -> String {
        let bar = |(subject, trials): &(Subject, Vec<&Trial>)| {
            let part = |(_, rows): &(&str, &[&str])| {
                let rows: Vec<String> = rows.iter().map(|row| (*row).to_owned()).collect();
                self.us(trials, |trial| sum(trial, end, &rows)).value
            };
            let total = self.us(trials, |t| value(t, Metric::Ticks(&format!("timed.{}", end.name())))).value;
            let text = format!("{} µs", short(total));
            let parts: Vec<f64> = PARTS.iter().map(part).collect();
            (Bar { name: subject.shown(), text, value: exactly(total), style: 0 }, parts)
        };
        let (all, parts): (Vec<Bar>, Vec<Vec<f64>>) = self.exchanges().map(bar).unzip();
        divided_bars(title, &all, &parts, &PARTS.map(|(name, _)| name))
    }

    /// Complete and without cryptography.
    fn whole(&self) -> Figure {
        let (id, title) = ("session-skeleton", "Set-up with and without cryptography");
        let head = [
            "subject",
            "complete, µs",
            "low",
            "high",
            "skeleton, µs",
            "low",
            "high",
            "timers, µs",
            "timers / difference",
            "low",
            "high",
            "through sockets, µs",
            "low",
            "high",
            "cryptography, %",
        ];
        let mut data = Data::new(&head);
        let (mut bars, mut parts) = (Vec::new(), Vec::new());
        for (subject, trials) in self.exchanges() {
            let full = self.us(trials, |trial| both(trial, "full"));
            let skeleton = self.us(trials, |trial| both(trial, "skeleton"));
            let timers = self.us(trials, sessions::cryptography_of_both).value;
            let sockets = self.us(trials, |trial| both(trial, "sockets"));
            let methods = quantity(self.folder, &sessions::Quantity::Methods { of: subject.to_string() });
            let mut row = vec![subject.shown()];
            row.extend(cells(full).into_iter().chain(cells(skeleton)));
            row.push(exact(timers));
            row.extend(cells(methods).into_iter().chain(cells(sockets)));
            row.push(exact(timers / sockets.value * 100.0));
            data.push(row);
            let share = (1.0 - skeleton.value / full.value) * 100.0;
            let text = format!("{} µs, {share:.0} % cryptography", short(full.value));
            bars.push(Bar { name: subject.shown(), text, value: exactly(full.value), style: 0 });
            parts.push(vec![skeleton.value]);
        }
        if data.rows.is_empty() {
            return self.absent(id, title);
        }
        let text = "Both ends together. The skeleton is the same endpoint with a provider that computes nothing: messages have the same \
                    lengths, and every field is parsed. 'Timers / difference' compares the sum of timed operations with complete \
                    less skeleton: 1 means that both methods agree. Printed for AES-128 in the paper: 370.86 ms complete, 141.16 ms \
                    skeleton, 0.97. The share of cryptography is that of the set-up through sockets of the loopback interface.";
        let drawing = divided_bars(title, &bars, &parts, &["skeleton"]);
        Figure::drawn(id, title, text, drawing, data).noted(self.against_itself().unwrap_or_default())
    }

    /// The first subject against itself.
    fn against_itself(&self) -> Option<String> {
        let of = self.again.first()?.subject.clone();
        let ratio = quantity(self.folder, &sessions::Quantity::Again { of: of.clone() });
        let differs = ratio.low > 1.0 || ratio.high < 1.0;
        ratio.value.is_finite().then(|| {
            format!(
                "{} measured twice in each round: ratio {} [{}, {}], {}.",
                shown(&of),
                trimmed(ratio.value),
                trimmed(ratio.low),
                trimmed(ratio.high),
                if differs {
                    "different although it is the same: smaller differences say nothing"
                } else {
                    "no difference"
                }
            )
        })
    }

    /// Set-ups side by side.
    fn set_ups(&self) -> Figure {
        let (id, title) = ("session-setups", "Set-ups side by side");
        let head = ["set-up", "datagrams", "bytes", "initiator, µs", "low", "high", "responder, µs", "low", "high"];
        let mut data = Data::new(&head);
        let mut chart = Chart::new(title, Axis::log("bytes on the wire"), Axis::log("responder, µs"));
        for (subject, trials) in &self.subjects {
            let count = |metric| trials.first().and_then(|trial| value(trial, metric));
            let messages =
                count(Metric::FirstMessages).map(|first| first + count(Metric::QuickMessages).unwrap_or(0.0));
            let bytes = undisturbed(&values(trials, |trial| value(trial, Metric::WireBytes))).value;
            let [initiator, responder] = End::BOTH
                .map(|end| self.us(trials, |trial| value(trial, Metric::Ticks(&format!("full.{}", end.name())))));
            let mut row = vec![subject.shown(), messages.map_or_else(|| "–".into(), trimmed), exact(bytes)];
            row.extend(cells(initiator).into_iter().chain(cells(responder)));
            data.push(row);
            if bytes.is_finite() {
                let mut series = Series::new(&subject.shown(), style(self.folder, &subject.to_string()));
                series.points.push((bytes, responder));
                chart.series.push(series);
            }
        }
        if data.rows.is_empty() {
            return self.absent(id, title);
        }
        let text = "Processor time of each end, and bytes of all datagrams with IPv4 and UDP headers, without certificates. PSP has no \
                    exchange of its own: the receiver derives a key, and what carries it is a connection that exists. Its initiator \
                    derives nothing.";
        Figure::drawn(id, title, text, chart.draw(), data).noted(self.wireguard().unwrap_or_default())
    }

    /// What WireGuard would take: not measured.
    fn wireguard(&self) -> Option<String> {
        let of_x25519 = |(subject, _): &&(Subject, Vec<&Trial>)| {
            subject.mode == Mode::V2 && subject.suite.contains("x25519") && !subject.suite.contains("ke1")
        };
        let (_, trials) = self.exchanges().find(of_x25519)?;
        let of = |row: &str| self.us(trials, |trial| sum(trial, End::Responder, &[row.to_owned()])).value;
        let priced = of("p1_dh_generate") + 3.0 * of("p1_dh_agree");
        Some(format!(
            "WireGuard: not measured, because this program has no handshake of it. Counted: two messages of 148 and 92 bytes, 296 \
             bytes with IPv4 and UDP headers, and at each end one key pair and three shared secrets of X25519, the one of both \
             static keys being known: {} µs at the times above, without hashes and the cipher.",
            short(priced)
        ))
    }

    /// Time until the initiator can send data, by round trip.
    fn round_trips(&self) -> Figure {
        let (id, title) = ("session-rtt", "Time until data can be sent, by round trip");
        let head = ["set-up", "round trip, ms", "ms", "low", "high", "round trips"];
        let mut data = Data::new(&head);
        let mut chart = Chart::new(title, Axis::linear("round trip, ms"), Axis::linear("ms").covering(0.0, 1.0));
        for (subject, trials) in self.exchanges() {
            let at = |ms: u32| undisturbed(&values(trials, |t| value(t, Metric::ElapsedAt(ms))));
            let first = at(ROUND_TRIPS_MS[0]).value;
            let mut series = Series::new(&subject.shown(), style(self.folder, &subject.to_string()));
            for round_trip_ms in ROUND_TRIPS_MS {
                let elapsed = at(round_trip_ms);
                let trips = (elapsed.value - first) / f64::from(round_trip_ms);
                let mut row = vec![subject.shown(), round_trip_ms.to_string()];
                row.extend(cells(elapsed));
                row.push(if round_trip_ms == 0 { "–".into() } else { format!("{trips:.2}") });
                data.push(row);
                series.points.push((f64::from(round_trip_ms), elapsed));
            }
            chart.series.push(series);
        }
        if data.rows.is_empty() {
            return self.absent(id, title);
        }
        let text = "The link between both ends is simulated: a datagram arrives half a round trip after the end that sent it was done, \
                    and each end takes the processor time that was measured. The initiator can send once its Child SA is up.";
        let saved = self.saved().unwrap_or_default();
        Figure::drawn(id, title, text, chart.draw(), data).noted(saved)
    }

    fn saved(&self) -> Option<String> {
        let (of, over) = self.modes()?;
        let saved = quantity(
            self.folder,
            &sessions::Quantity::RoundTrips { of: of.to_string(), over: over.to_string(), round_trip_ms: 20 },
        );
        Some(format!(
            "Aggressive mode saves {} round trips [{}, {}] against main mode ({}).",
            trimmed(saved.value),
            trimmed(saved.low),
            trimmed(saved.high),
            of.suite
        ))
    }

    /// Aggressive mode and main mode that differ in nothing else.
    fn modes(&self) -> Option<(&Subject, &Subject)> {
        self.exchanges().find_map(|(of, _)| {
            let like = |(other, _): &&(Subject, Vec<&Trial>)| {
                *other == Subject { mode: Mode::Main, ..of.clone() } && of.mode == Mode::Aggressive
            };
            Some((of, &self.exchanges().find(like)?.0))
        })
    }

    /// Packets of each size that cost as much as a set-up.
    fn break_even(&self) -> Figure {
        let (id, title) = ("session-break-even", "Set-up against packets");
        let packets: Vec<(String, u32, Estimate)> = self.packets();
        if self.subjects.is_empty() {
            return self.absent(id, title);
        }
        if packets.is_empty() {
            let why = "The break-even needs a study 'sizes' with 'plain' and with protected subjects, both directions.";
            return Figure::absent(id, title, why);
        }
        let mut head = vec!["set-up", "packets of", "bytes", "packets", "low", "high", "MB"];
        head.extend(RATES.map(|(name, _)| name));
        let mut data = Data::new(&head);
        let mut chart = Chart::new(title, Axis::linear("inner packet, bytes"), Axis::log("packets"));
        for (subject, trials) in &self.subjects {
            let set_up = undisturbed(&values(trials, |trial| value(trial, Metric::Ticks("full.responder"))));
            let own = subject.packets();
            let mut series = Series::new(&subject.shown(), style(self.folder, &subject.to_string()));
            for (name, bytes, extra) in packets.iter().filter(|(name, ..)| *name == own) {
                let count = over(set_up, *extra);
                let sent = count.value * f64::from(*bytes);
                let mut row = vec![subject.shown(), shown(name), bytes.to_string()];
                row.extend(cells(count));
                row.push(exact(sent / 1e6));
                row.extend(RATES.map(|(_, rate)| exact(sent * 8.0 / rate)));
                data.push(row);
                series.points.push((f64::from(*bytes), count));
            }
            if !series.points.is_empty() {
                chart.series.push(series);
            }
        }
        if data.rows.is_empty() {
            let why = "No packets of the suites of these set-ups were measured.";
            return Figure::absent(id, title, why);
        }
        data.page_only = &["packets of"];
        let text = "Processor time of the responder for a set-up over what a packet costs it more than plain forwarding, as the mean of \
                    protecting and opening; the interval is that of the extremes of both. Packets are of the suite of the Child SA. From \
                    the paper's figures: 1,249 round trips of pings with 3DES, 1,876 with AES-128.";
        Figure::drawn(id, title, text, chart.draw(), data)
    }

    /// Extra cost of a packet, by subject and size.
    fn packets(&self) -> Vec<(String, u32, Estimate)> {
        let studies = || self.folder.studies(Kind::Sizes);
        let names: BTreeSet<&str> = studies()
            .flat_map(|study| &study.subjects)
            .map(String::as_str)
            .filter(|name| name.starts_with("weir-"))
            .collect();
        let sizes: BTreeSet<u32> =
            studies().flat_map(|study| &study.traffic).filter_map(|text| one_size(text)).collect();
        let of = |name: &str, bytes: u32| {
            let (extra, _) = extra_per_packet(self.folder, name, bytes).filter(|(extra, _)| extra.low > 0.0)?;
            Some((name.to_owned(), bytes, extra))
        };
        names.iter().flat_map(|name| sizes.iter().filter_map(|bytes| of(name, *bytes))).collect()
    }

    /// Cost of rekeying per hour.
    fn lifetimes(&self) -> Figure {
        let (id, title) = ("session-lifetimes", "Rekeying by lifetime");
        let head = ["set-up", "lifetime, min", "Child SA, ms/h", "IKE SA, ms/h"];
        let mut data = Data::new(&head);
        let mut chart =
            Chart::new(title, Axis::log("lifetime of the Child SA, minutes"), Axis::log("ms of both ends per hour"));
        for (subject, trials) in self.exchanges() {
            let once = |part| self.us(trials, |trial| value(trial, Metric::Ticks(part))).value / 1e3;
            let (child, ike) = (once("refresh_child"), once("refresh_ike"));
            let mut series = Series::new(&subject.shown(), style(self.folder, &subject.to_string()));
            for minutes in LIFETIMES_MIN {
                let per_hour = 60.0 / minutes;
                data.push([subject.shown(), trimmed(minutes), exact(child * per_hour), exact(ike * per_hour)]);
                series.push(minutes, child * per_hour);
            }
            chart.series.push(series);
        }
        if data.rows.is_empty() {
            return self.absent(id, title);
        }
        let text = "Processor time of both ends for rekeyings in an hour: each measured rekeying, times their number. In IKEv1 the Child SA \
                    is rekeyed by quick mode, the IKE SA by phase 1; in IKEv2 both by CREATE_CHILD_SA. Defaults are one hour for Child SAs \
                    and four or eight for IKE SAs.";
        Figure::drawn(id, title, text, chart.draw(), data)
    }
}

impl Subject {
    /// `psk`, `rsa2048`, …
    fn auth_word(&self) -> String {
        let name = self.to_string();
        let at = if self.mode_name().is_empty() { 1 } else { 2 };
        name.split('-').nth(at).unwrap_or_default().to_owned()
    }

    /// Packets of the Child SA, as a study of sizes calls them.
    fn packets(&self) -> String {
        match self.mode {
            Mode::Psp => format!("weir-psp-tunnel-{}", self.suite),
            _ => {
                let suite: Vec<&str> = self.child_suite().split('-').take(2).collect();
                format!("weir-esp-tunnel-{}", suite.join("-"))
            }
        }
    }
}

fn name_of(key: &str) -> String {
    let known = ROWS.iter().find(|(row, _)| *row == key).map(|(_, name)| *name);
    known.unwrap_or("P1 DH, both halves").to_owned()
}

/// A figure with the interval over sessions.
fn quantity(folder: &Folder, quantity: &sessions::Quantity) -> Estimate {
    match quantity.measure(folder) {
        Some(sessions::Found::Sessions(found)) => crate::report::analysis::over_sessions(&found),
        Some(sessions::Found::Combined(estimate, _)) => estimate,
        Some(sessions::Found::Exact(found)) => exactly(stats::median(&found)),
        None => exactly(f64::NAN),
    }
}

/// The set-ups for a terminal of 80 columns; `None` without any.
pub(in crate::report) fn terminal(folder: &Folder) -> Option<String> {
    let study = Study::of(folder);
    let mut text = format!(
        "{:<46} {:>3} {:>5} {:>7} {:>8} {:>5}\n",
        "set-up, µs of both ends", "msg", "bytes", "µs", "skeleton", "crypt"
    );
    for (subject, trials) in &study.subjects {
        // The receiver of a key of PSP derives it alone.
        let ticks = |trial: &Trial, variant| match subject.mode {
            Mode::Psp => value(trial, Metric::Ticks(&format!("{variant}.responder"))),
            _ => both(trial, variant),
        };
        let us = |variant| {
            let us = study.us(trials, |trial| ticks(trial, variant)).value;
            if us.is_finite() { short(us) } else { "–".into() }
        };
        let count = |metric| trials.first().and_then(|trial| value(trial, metric));
        let messages = count(Metric::FirstMessages).map(|first| first + count(Metric::QuickMessages).unwrap_or(0.0));
        let share = quantity(folder, &sessions::Quantity::Share { of: subject.to_string() }).value;
        let shown = |value: Option<f64>| value.map_or_else(|| "–".into(), |value| format!("{value:.0}"));
        text.push_str(&format!(
            "{:<46} {:>3} {:>5} {:>7} {:>8} {:>5}\n",
            subject.shown(),
            shown(messages),
            shown(count(Metric::WireBytes)),
            us("full"),
            us("skeleton"),
            if share.is_finite() { format!("{:.0} %", share * 100.0) } else { "–".into() },
        ));
    }
    let again = study.against_itself().map(|text| tables::wrapped(&text, 80));
    text.push_str(&again.unwrap_or_default());
    (!study.subjects.is_empty()).then(|| text + "\n")
}

/// Facts for the rows of paper 001.
pub(in crate::report) fn facts(folder: &Folder) -> Vec<(&'static str, Option<String>)> {
    let study = Study::of(folder);
    let ms = |us: f64| short(us / 1e3);
    // The subject of the paper with a cipher, an authentication and a mode; the first one without.
    let find = |mode: Mode, auth: &str| {
        study.exchanges().find(|(subject, _)| {
            subject.mode == mode && subject.auth_word().starts_with(auth) && subject.suite.contains("-md5-")
        })
    };
    let main = find(Mode::Main, "rsa");
    let full = |(_, trials): &(Subject, Vec<&Trial>)| study.us(trials, |t| both(t, "full")).value;
    let messages = main.and_then(|(_, trials)| {
        let count = |metric| value(trials[0], metric);
        let (first, quick) = (count(Metric::FirstMessages)?, count(Metric::QuickMessages)?);
        Some(format!("main mode {}, quick mode {} messages", trimmed(first), trimmed(quick)))
    });
    let operations = main.map(|(subject, trials)| {
        let of = |rows: &[&str]| {
            let rows: Vec<String> = rows.iter().map(|row| (*row).to_owned()).collect();
            short(study.us(trials, |trial| sum(trial, End::Responder, &rows)).value)
        };
        let total = short(study.us(trials, |trial| cryptography(trial, End::Responder)).value);
        let parts: Vec<String> = PARTS.iter().map(|(name, rows)| format!("{name} {}", of(rows))).collect();
        format!("{}: {total} µs, of which {}", subject.shown(), parts.join(", "))
    });
    let ends = main.map(|(subject, trials)| {
        let of = |end| short(study.us(trials, |trial| cryptography(trial, end)).value);
        format!("{}: initiator {} µs, responder {} µs", subject.shown(), of(End::Initiator), of(End::Responder))
    });
    let whole = main.map(|found| {
        let skeleton = study.us(&found.1, |trial| both(trial, "skeleton")).value;
        format!("{}: {} ms of both ends, {} ms without cryptography", found.0.shown(), ms(full(found)), ms(skeleton))
    });
    let compare = |other: Option<&(Subject, Vec<&Trial>)>, name: &str| {
        let (one, other) = (main?, other?);
        Some(format!("signatures in main mode {} ms of both ends, {name} {} ms", ms(full(one)), ms(full(other))))
    };
    let psk = compare(find(Mode::Main, "psk"), "a shared key");
    let aggressive = compare(find(Mode::Aggressive, "rsa"), "in aggressive mode").map(|text| {
        let saved = study.saved().unwrap_or_default();
        format!("{text}. {saved}").trim_end_matches(['.', ' ']).to_owned()
    });
    let shares: Vec<String> = study
        .exchanges()
        .map(|(subject, _)| {
            let share = quantity(folder, &sessions::Quantity::Share { of: subject.to_string() });
            format!("{} {:.0} %", subject.shown(), share.value * 100.0)
        })
        .take(6)
        .collect();
    let shares = (!shares.is_empty()).then(|| format!("through sockets: {}", shares.join("; ")));
    let packets = study.packets();
    let break_even: Vec<String> = study
        .exchanges()
        .filter_map(|(subject, trials)| {
            let (_, _, extra) = packets.iter().find(|(name, bytes, _)| *name == subject.packets() && *bytes == 736)?;
            let set_up = undisturbed(&values(trials, |trial| value(trial, Metric::Ticks("full.responder"))));
            Some(format!("{} {:.0}", subject.shown(), over(set_up, *extra).value))
        })
        .take(4)
        .collect();
    let break_even =
        (!break_even.is_empty()).then(|| format!("packets of 736 B that cost as much: {}", break_even.join("; ")));
    vec![
        ("session_messages", messages),
        ("session_operations", operations),
        ("session_ends", ends),
        ("session_whole", whole),
        ("session_psk", psk),
        ("session_aggressive", aggressive),
        ("session_shares", shares),
        ("session_break_even", break_even),
    ]
}

const _: () = assert!(PARTS.len() <= STYLES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::synthetic;

    /// A set-up of IKEv2 and one of PSP.
    const PSP: &str = r#"
name = "t"
[[study]]
kind = "sessions"
subjects = ["ikev2-psk-aes128gcm16-prfsha256-x25519", "psp-aes128gcm16"]
rounds = 3
"#;

    /// Two studies of the same packets, in another order.
    const PACKETS: &str = r#"
name = "t"
[[study]]
name = "one"
kind = "sizes"
subjects = ["plain", "weir-esp-tunnel-aes128-md5", "weir-esp-tunnel-3des-md5"]
traffic = [736, 512]
directions = ["out", "in"]
[[study]]
name = "two"
kind = "sizes"
subjects = ["plain", "weir-esp-tunnel-3des-md5", "weir-esp-tunnel-aes128-md5"]
traffic = [736]
directions = ["out", "in"]
"#;

    #[test]
    fn printed_rows_are_those_of_the_table_and_sum_up_below_its_totals() {
        for (at, total) in [117.59, 117.93, 117.66].into_iter().enumerate() {
            let sum: f64 = PRINTED.iter().map(|(_, printed)| printed[at]).sum();
            assert!((total - sum - 1.35).abs() < 0.02, "{sum} {total}");
        }
        for (key, _) in PRINTED {
            assert!(key == "p1_dh" || ROWS.iter().any(|(row, _)| *row == key), "{key}");
        }
        let parts: Vec<&str> = PARTS.iter().flat_map(|(_, rows)| rows.iter().copied()).collect();
        assert_eq!(parts.len(), ROWS.len());
        assert!(ROWS.iter().all(|(row, _)| parts.contains(row)));
    }

    #[test]
    fn a_subject_that_differs_from_itself_is_named() {
        let mut folder = synthetic::folder();
        let text = |folder: &Folder| Study::of(folder).against_itself().unwrap();
        for trial in folder.trials.iter_mut().filter(|t| is_again(t) && t.study == "sessions") {
            for end in End::BOTH {
                trial.measured.values.scale(|key| key == format!("full.{}_ticks", end.name()), 1.5);
            }
        }
        assert!(text(&folder).contains("different although"), "{}", text(&folder));
    }

    #[test]
    fn the_table_fits_a_terminal() {
        let text = terminal(&synthetic::folder()).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 80) && text.contains("IKEv1 main PSK"), "{text}");
        assert_eq!(
            terminal(&synthetic::folder_of("name = \"t\"\n[[study]]\nkind = \"keying\"\nsubjects = [\"plain\"]\n")),
            None
        );
    }

    /// Only the responder has a figure, and both tables show it.
    #[test]
    fn a_key_of_psp_has_no_time_of_the_initiator() {
        let folder = synthetic::folder_of(PSP);
        let figure = Study::of(&folder).set_ups();
        let crate::report::figure::Body::Drawn(_, data) = &figure.body else { panic!("{figure:?}") };
        let row = data.rows.iter().find(|row| row[0].starts_with("PSP key")).unwrap();
        assert_eq!(row[..6], ["PSP key aes128gcm16", "–", "–", "–", "–", "–"], "{row:?}");
        assert!(row[6..].iter().all(|cell| cell.parse::<f64>().is_ok_and(|us| us > 0.0)), "{row:?}");
        let text = terminal(&folder).unwrap();
        let line: Vec<&str> =
            text.lines().find(|line| line.starts_with("PSP key")).unwrap().split_whitespace().collect();
        assert!(line[5].parse::<f64>().is_ok_and(|us| us > 0.0), "{text}");
        assert_eq!((line[3], line[4], line[6], line[7]), ("–", "–", "–", "–"), "{text}");
    }

    /// Without these packets a set-up would have no break-even.
    #[test]
    fn the_preset_measures_the_packets_of_every_set_up() {
        let campaign = crate::campaign::Preset::Sessions.campaign().unwrap();
        let of = |kind: Kind| campaign.studies.iter().filter(move |study| study.kind == kind);
        let sizes: Vec<&String> = of(Kind::Sizes).flat_map(|study| &study.subjects).collect();
        for name in of(Kind::Sessions).flat_map(|study| &study.subjects) {
            let packets = name.parse::<Subject>().unwrap().packets();
            assert!(sizes.contains(&&packets), "{name}: {packets}");
        }
    }

    #[test]
    fn packets_of_every_study_count_once() {
        let folder = synthetic::folder_of(PACKETS);
        let packets = Study::of(&folder).packets();
        let found: Vec<(&str, u32)> = packets.iter().map(|(name, bytes, _)| (name.as_str(), *bytes)).collect();
        let (first, second) = ("weir-esp-tunnel-3des-md5", "weir-esp-tunnel-aes128-md5");
        assert_eq!(found, [(first, 512), (first, 736), (second, 512), (second, 736)]);
    }

    #[test]
    fn packets_are_those_of_the_child_sa() {
        let packets = |name: &str| name.parse::<Subject>().unwrap().packets();
        assert_eq!(packets("ikev1-main-psk-3des-md5-modp1024"), "weir-esp-tunnel-3des-md5");
        assert_eq!(packets("ikev2-psk-aes128gcm16-prfsha256-x25519"), "weir-esp-tunnel-aes128gcm16");
        assert_eq!(packets("psp-aes128gcm16"), "weir-psp-tunnel-aes128gcm16");
    }
}
