//! JSON of iperf3 (`iperf3 -c HOST -J`).

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ImportError, Source, Throughput};

/// Reads the JSON.
pub(super) fn json(source: Source<'_>, value: &Value) -> Result<Throughput, ImportError> {
    if let Some(error) = value.get("error").and_then(Value::as_str) {
        return Err(source.whole(format!("iperf3 failed: {error}"), "run it again"));
    }
    let empty = Vec::new();
    let intervals = value.get("intervals").and_then(Value::as_array).unwrap_or(&empty);
    let mut read = Throughput {
        name: source.name(),
        tool: "iperf3".into(),
        start_s: value.pointer("/start/timestamp/timesecs").and_then(Value::as_f64).unwrap_or(0.0),
        seconds: vec![],
        bytes: vec![],
        flows: BTreeMap::new(),
        notes: vec![],
    };
    for (index, interval) in intervals.iter().enumerate() {
        let place = format!("intervals[{index}].sum");
        let sum = interval.get("sum").ok_or_else(|| source.whole(format!("{place} is missing"), HINT))?;
        if sum.get("omitted").and_then(Value::as_bool) == Some(true) {
            continue; // The warm-up of -O.
        }
        let (seconds, bytes) = checked(source, &place, sum)?;
        // The last interval ends with the transfer, a few packets after the one before it.
        if read.seconds.first().is_some_and(|first| seconds < 0.5 * first) {
            read.notes.push(format!("{place} lasts {seconds:.3} s and is omitted"));
            continue;
        }
        for (number, stream) in interval.get("streams").and_then(Value::as_array).unwrap_or(&empty).iter().enumerate() {
            let (_, bytes) = checked(source, &format!("intervals[{index}].streams[{number}]"), stream)?;
            let id = stream.get("socket").map_or_else(|| number.to_string(), ToString::to_string);
            let flow = read.flows.entry(id).or_default();
            flow.resize(read.bytes.len(), 0.0);
            flow.push(bytes);
        }
        read.seconds.push(seconds);
        read.bytes.push(bytes);
    }
    if read.bytes.is_empty() {
        return Err(source.whole("no interval", "run iperf3 -J with -i 1, for longer than its -O"));
    }
    let samples = read.bytes.len();
    read.flows.values_mut().for_each(|flow| flow.resize(samples, 0.0));
    let percent = |side: &str| value.pointer(&format!("/end/cpu_utilization_percent/{side}")).and_then(Value::as_f64);
    if let (Some(here), Some(there)) = (percent("host_total"), percent("remote_total")) {
        read.notes.push(format!("iperf3 itself used {here:.1} % of a core here and {there:.1} % there"));
    }
    Ok(read)
}

const HINT: &str = "expected what iperf3 -J writes, unchanged";

/// Seconds and bytes of a record; checks that its bits per second are 8 · bytes / seconds.
fn checked(source: Source<'_>, place: &str, record: &Value) -> Result<(f64, f64), ImportError> {
    let number = |name: &str| {
        record
            .get(name)
            .and_then(Value::as_f64)
            .filter(|v| v.is_finite() && *v >= 0.0)
            .ok_or_else(|| source.whole(format!("{place}.{name} is not a number"), HINT))
    };
    let (seconds, bytes, rate) = (number("seconds")?, number("bytes")?, number("bits_per_second")?);
    if seconds <= 0.0 {
        return Err(source.whole(format!("{place}.seconds is 0"), HINT));
    }
    let expected = 8.0 * bytes / seconds;
    if (rate - expected).abs() > 0.01 * expected + 8.0 {
        let unit = if (rate - expected / 8.0).abs() <= 0.01 * expected { ": the unit is bytes per second" } else { "" };
        let what = format!(
            "{place}: {bytes:.0} bytes in {seconds:.3} s are {expected:.0} bit/s, but bits_per_second is {rate:.0}{unit}"
        );
        return Err(source.whole(what, "import the output of iperf3 unchanged"));
    }
    Ok((seconds, bytes))
}

#[cfg(test)]
mod tests {
    use super::super::tests::refusal;
    use super::super::{Imported, parse};
    use super::*;
    use crate::metric::Metric;

    fn interval(from: f64, seconds: f64, flows: [f64; 2]) -> Value {
        let record = |bytes: f64, socket: u64| {
            serde_json::json!({"socket": socket, "start": from, "end": from + seconds, "seconds": seconds,
                "bytes": bytes, "bits_per_second": 8.0 * bytes / seconds, "omitted": false})
        };
        serde_json::json!({"streams": [record(flows[0], 5), record(flows[1], 7)], "sum": record(flows[0] + flows[1], 0)})
    }

    fn run() -> Value {
        serde_json::json!({
            "start": {"timestamp": {"timesecs": 1_749_147_151u64}},
            "intervals": [interval(0.0, 1.0, [1e6, 2e6]), interval(1.0, 1.0001, [3e6, 0.0]), interval(2.0, 0.01, [1e3, 0.0])],
            "end": {"cpu_utilization_percent": {"host_total": 98.25, "remote_total": 44.0}},
        })
    }

    #[test]
    fn a_run_is_read() {
        let Ok(Imported::Throughput(read)) = parse("a/run.json", &run().to_string()) else { panic!("a transfer") };
        assert_eq!((read.name.as_str(), read.bytes.as_slice()), ("run", [3e6, 3e6].as_slice()));
        assert_eq!(read.flows["7"], [2e6, 0.0]);
        assert!(
            read.notes.join(";").contains("intervals[2].sum lasts 0.010 s") && read.notes.join(";").contains("98.2 %")
        );
        assert!((read.trials()[1].measured.values.get(Metric::Flow("5")).unwrap() - 0.024 / 1.0001).abs() < 1e-12);
    }

    #[test]
    fn bytes_where_bits_should_be_are_named_with_their_place() {
        let mut wrong = run();
        wrong["intervals"][1]["streams"][0]["bits_per_second"] = (3e6 / 1.0001).into();
        let text = refusal(&wrong.to_string());
        assert!(text.starts_with("f.csv: intervals[1].streams[0]: 3000000 bytes in 1.000 s are"), "{text}");
        assert!(text.contains("the unit is bytes per second"), "{text}");
    }

    #[test]
    fn failures_are_named() {
        assert!(refusal(r#"{"error": "unable to connect"}"#).contains("iperf3 failed: unable to connect"));
        assert!(refusal(r#"{"start": {}, "intervals": []}"#).contains("no interval"));
        assert!(refusal(r#"{"intervals": [{}]}"#).contains("intervals[0].sum is missing"));
        let text = run().to_string();
        assert!(refusal(&text[..text.len() / 2]).contains("the file is truncated"));
    }
}
