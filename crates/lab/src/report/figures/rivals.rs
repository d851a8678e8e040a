//! Transfers of Weir compared with those of other programs.

use super::compare::{ForestRow, draw};
use super::{cells, style};
use crate::campaign::{Kind, Study};
use crate::metric::Metric;
use crate::report::analysis::{Folder, log_ratios, over_sessions, shown, typical, values};
use crate::report::chart::trimmed;
use crate::report::figure::{Data, Figure};
use crate::trial::Trial;

/// Rivals, and the multiple of their rate that Weir should reach.
const GOALS: [(&str, f64); 3] = [("wireguard-go", 2.0), ("boringtun", 2.0), ("strongswan-aes128gcm16", 5.0)];
/// Band of the plot as a share.
const BAND: f64 = 0.05;

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    vec![rates(folder), leads(folder)]
}

/// Trials of each subject in each study of transfers.
fn studies<'a>(folder: &'a Folder) -> impl Iterator<Item = (&'a Study, Vec<(&'a str, Vec<&'a Trial>)>)> {
    folder.campaign.studies.iter().filter(|study| study.kind == Kind::Transfers).map(|study| {
        let of = |name: &'a String| {
            let mine = folder.trials.iter().filter(|trial| trial.study == study.name && trial.subject == *name);
            (name.as_str(), mine.collect())
        };
        (study, study.subjects.iter().map(of).collect())
    })
}

fn machine(trial: &Trial) -> Option<f64> {
    trial.measured.values.get(Metric::MachineSPerGbit)
}

fn gbps(trial: &Trial) -> Option<f64> {
    Some(trial.measured.bps() / 1e9)
}

fn rates(folder: &Folder) -> Figure {
    let (id, title) = ("transfer-rates", "Transfers: rate and cost");
    let head = ["subject", "streams", "Gbit/s", "low", "high", "machine, s/Gbit", "low", "high", "programs, s/Gbit"];
    let head =
        [&head[..], &["RTT, µs", "low", "high", "RTT p99, µs", "low", "high", "pings lost, %", "study"]].concat();
    let (mut data, mut rows) = (Data::new(&head), Vec::new());
    for (study, subjects) in studies(folder) {
        let flows = study.flows[0];
        for (name, mine) in subjects.into_iter().filter(|(_, mine)| !mine.is_empty()) {
            let rate = typical(&values(&mine, gbps));
            let own = typical(&values(&mine, |trial| trial.measured.values.get(Metric::CpuSPerGbit)));
            let mut row = vec![shown(name), flows.to_string()];
            row.extend(cells(rate).into_iter().chain(cells(typical(&values(&mine, machine)))));
            row.push(super::exact(own.value));
            for of in [Metric::RttP50, Metric::RttP99] {
                row.extend(cells(typical(&values(&mine, |trial| trial.measured.values.get(of)))));
            }
            // A median would hide losses of a few trials.
            let lost = values(&mine, |trial| trial.measured.values.get(Metric::PingsLost)).concat();
            row.extend([super::exact(lost.iter().sum::<f64>() / lost.len() as f64), study.name.clone()]);
            data.push(row);
            let note = "Gbit/s".to_owned();
            rows.push(ForestRow {
                name: format!("{}, {flows} streams", shown(name)),
                style: style(folder, name),
                ratio: rate,
                note,
            });
        }
    }
    if rows.is_empty() {
        return Figure::absent(id, title, &folder.why_not_outside(Kind::Transfers));
    }
    let text = "TCP through each subject, all streams together, with the 95 % interval over sessions. Seconds per Gbit are of all processors \
                (both hosts, their kernel, iperf and the subject), and of the programs of the subject alone. RTT: median and 99th percentile of \
                those pings of 736 bytes beside the TCP streams that got a response; lost: the share of the others.";
    Figure::drawn(id, title, text, draw(title, &rows, 0.0), data)
}

fn leads(folder: &Folder) -> Figure {
    let (id, title) = ("rivals", "Weir over its rivals");
    let head =
        ["over", "subject", "streams", "rate", "low", "high", "machine's cost", "low", "high", "goal", "reached"];
    let (mut data, mut rows) = (Data::new(&head), Vec::new());
    for (rival, goal) in GOALS {
        for (study, subjects) in studies(folder) {
            let flows = study.flows[0];
            let Some((_, other)) = subjects.iter().find(|(name, _)| *name == rival) else { continue };
            for (name, mine) in subjects.iter().filter(|(name, _)| name.starts_with("weir-")) {
                let ratio = |of: fn(&Trial) -> Option<f64>| over_sessions(&log_ratios(mine, other, of)).map(f64::exp);
                let (rate, cost) = (ratio(gbps), ratio(machine));
                let reached = match () {
                    () if !rate.value.is_finite() => continue,
                    () if rate.low >= goal => "yes",
                    () if rate.high < goal => "no",
                    () => "inconclusive",
                };
                let mut row = vec![rival.to_owned(), shown(name), flows.to_string()];
                row.extend(cells(rate).into_iter().chain(cells(cost)));
                row.extend([trimmed(goal), reached.to_owned()]);
                data.push(row);
                let name_of = format!("{} over {rival}, {flows} streams", shown(name));
                let note = format!("goal {}: {reached}", trimmed(goal));
                rows.push(ForestRow { name: name_of, style: style(folder, name), ratio: rate, note });
            }
        }
    }
    if rows.is_empty() {
        return Figure::absent(id, title, "No study of transfers has Weir and one of its rivals.");
    }
    let text = "Ratio of the rates within rounds, with its 95 % interval over sessions. A goal is reached when the whole interval is at or \
                above it. The cost is that of the whole machine per Gbit, as a ratio.";
    Figure::drawn(id, title, text, draw(title, &rows, BAND), data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::synthetic;

    #[test]
    fn a_lead_is_of_the_same_rounds_and_meets_its_goal_or_not() {
        let own = "weir-psp-tunnel-aes128gcm16".to_owned();
        let mut folder = synthetic::folder_of(
            "name = \"t\"\n[[study]]\nkind = \"transfers\"\nrounds = 2\nduration_ms = 500\n\
             subjects = [\"weir-esp-tunnel-aes128gcm16,udp\", \"weir-psp-tunnel-aes128gcm16\"]\n",
        );
        let study = &mut folder.campaign.studies[0];
        study.subjects.extend(["wireguard-go".to_owned(), "boringtun".to_owned()]);
        // A machine that is slower in some rounds is so for all.
        for (rival, factor) in [("wireguard-go", 2.5), ("boringtun", 1.5)] {
            let copies = folder.trials.iter().filter(|trial| trial.subject == own);
            let mut copies: Vec<Trial> = copies.cloned().collect();
            for copy in &mut copies {
                copy.subject = rival.into();
                copy.measured.received_bytes = (copy.measured.received_bytes as f64 / factor) as u64;
            }
            folder.trials.extend(copies);
        }
        // A pause of one ping in a hundred: the median does not show it.
        for (figure, at, us) in [(Metric::RttP50, 9, 200.0), (Metric::RttP99, 12, 900.0), (Metric::PingsLost, 15, 2.5)]
        {
            folder.trials.iter_mut().for_each(|trial| trial.measured.values.set(figure, us));
            let crate::report::figure::Body::Drawn(_, data) = rates(&folder).body else { panic!("no rates") };
            assert!(data.rows.iter().all(|row| row[at].parse() == Ok(us) && row[16] == "transfers"), "{data:?}");
            assert!(at != 9 || data.rows[0][15] == "–", "trials before they were stored");
        }
        let figure = leads(&folder);
        let crate::report::figure::Body::Drawn(_, data) = &figure.body else { panic!("{figure:?}") };
        let of = |rival: &str| data.rows.iter().find(|row| row[0] == rival && row[1] == shown(&own)).unwrap();
        assert_eq!((of("wireguard-go")[10].as_str(), of("boringtun")[10].as_str()), ("yes", "no"));
        assert!(of("wireguard-go")[3].starts_with("2.5"), "{data:?}");
    }
}
