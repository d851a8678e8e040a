//! Results of one test in the form that FD.io CSIT publishes: `mrr`, `ndrpdr` and `soak`, old
//! (`results.ndrpdr`) or new (`result.type`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ImportError, Source};

/// Packet rates of one test.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Rates {
    /// Identifier of the test, or the file's name.
    pub name: String,
    /// `mrr`, `ndrpdr`, `soak`.
    pub kind: String,
    /// Subject with its version, as far as the file contains them.
    pub subject: String,
    /// Rates by name, in the file's unit, e.g. `ndr.lower`.
    pub rates: BTreeMap<String, f64>,
    /// `pps` or `cps`.
    pub unit: String,
    /// Rates of repeated trials (`mrr`).
    pub samples: Vec<f64>,
    /// Frame size in bytes that the bandwidths were computed with, the 20 bytes of gap and preamble
    /// included.
    pub wire_bytes: Option<f64>,
}

/// Reads the JSON.
pub(super) fn json(source: Source<'_>, value: &Value) -> Result<Rates, ImportError> {
    let text = |names: &[&str]| {
        names.iter().find_map(|name| value.get(name).and_then(Value::as_str)).unwrap_or_default().to_owned()
    };
    let name = text(&["test_id", "test-id", "test_name", "test-name-long"]);
    let subject = format!("{} {}", text(&["sut_type", "dut-type"]), text(&["sut_version", "dut-version"]));
    let mut rates = Rates {
        name: if name.is_empty() { source.name() } else { name },
        kind: String::new(),
        subject: subject.trim().to_owned(),
        rates: BTreeMap::new(),
        unit: String::new(),
        samples: vec![],
        wire_bytes: None,
    };
    if value.get("status").and_then(Value::as_str) == Some("FAIL") || value.get("passed") == Some(&Value::Bool(false)) {
        return Err(source.whole("the test failed: its rates are invalid", "import a test that passed"));
    }
    let (kind, result) = kind_of(source, value)?;
    rates.kind = kind;
    match rates.kind.as_str() {
        "mrr" => mrr(source, &mut rates, result)?,
        "soak" => bounds(source, &mut rates, result.get("critical-rate").unwrap_or(result), "soak")?,
        _ => {
            for goal in ["ndr", "pdr"] {
                let both = result.get(goal).ok_or_else(|| source.whole(format!("{goal} is missing"), HINT))?;
                bounds(source, &mut rates, both, goal)?;
            }
        }
    }
    Ok(rates)
}

const HINT: &str = "expected the result of an mrr, ndrpdr or soak test as CSIT writes it";

/// Kind of test and the object that holds its rates.
fn kind_of<'a>(source: Source<'_>, value: &'a Value) -> Result<(String, &'a Value), ImportError> {
    if let Some((kind, result)) = value.get("result").and_then(|r| Some((r.get("type")?.as_str()?, r))) {
        if ["mrr", "ndrpdr", "soak"].contains(&kind) {
            return Ok((kind.to_owned(), result));
        }
        return Err(source.whole(format!("a test of type '{kind}' has no packet rate"), HINT));
    }
    let results = value.get("results").or_else(|| value.get("result"));
    ["mrr", "ndrpdr", "soak"]
        .iter()
        .find_map(|kind| Some(((*kind).to_owned(), results?.get(kind)?)))
        .ok_or_else(|| source.whole("no mrr, ndrpdr or soak in the result", HINT))
}

fn bounds(source: Source<'_>, rates: &mut Rates, both: &Value, goal: &str) -> Result<(), ImportError> {
    let mut ends = [0.0; 2];
    for (end, name) in ends.iter_mut().zip(["lower", "upper"]) {
        let place = format!("{goal}.{name}");
        let record = both.get(name).ok_or_else(|| source.whole(format!("{place} is missing"), HINT))?;
        *end = rate(source, rates, record, &place)?;
        rates.rates.insert(place, *end);
    }
    if ends[0] > ends[1] {
        let what = format!("{goal}: the lower bound {} is above the upper bound {}", ends[0], ends[1]);
        return Err(source.whole(what, "the bounds are swapped, or have different units"));
    }
    Ok(())
}

fn mrr(source: Source<'_>, rates: &mut Rates, result: &Value) -> Result<(), ImportError> {
    let stated = if let Some(received) = result.get("receive-rate") {
        let record = received.get("rate").unwrap_or(received);
        let average = number(source, record, "avg", "receive-rate.rate.avg")?;
        rates.unit = unit(source, record, "receive-rate.rate")?;
        rates.samples = record
            .get("values")
            .and_then(Value::as_array)
            .map_or_else(Vec::new, |all| all.iter().filter_map(Value::as_f64).collect());
        average
    } else {
        let samples = result.get("samples").and_then(Value::as_array);
        let samples = samples.ok_or_else(|| source.whole("mrr.samples is missing", HINT))?;
        for (index, sample) in samples.iter().enumerate() {
            let value = rate(source, rates, sample, &format!("mrr.samples[{index}]"))?;
            rates.samples.push(value);
        }
        number(source, result, "avg", "mrr.avg")?
    };
    if !rates.samples.is_empty() {
        let mean = stats::mean(&rates.samples);
        if (mean - stated).abs() > 0.001 * mean {
            let what = format!("the stated average is {stated}, but that of the samples is {mean}");
            return Err(source.whole(what, "average and samples have different units, or are from different tests"));
        }
    }
    rates.rates.insert("mrr.avg".into(), stated);
    Ok(())
}

fn number(source: Source<'_>, record: &Value, name: &str, place: &str) -> Result<f64, ImportError> {
    let value = record.get(name).and_then(Value::as_f64).filter(|v| v.is_finite() && *v >= 0.0);
    value.ok_or_else(|| source.whole(format!("{place} is not a number"), HINT))
}

fn unit(source: Source<'_>, record: &Value, place: &str) -> Result<String, ImportError> {
    match record.get("unit").and_then(Value::as_str) {
        Some(unit @ ("pps" | "cps")) => Ok(unit.to_owned()),
        other => {
            let what = format!("{place}.unit is '{}'", other.unwrap_or("missing"));
            Err(source.whole(what, "expected pps (packets per second) or cps: convert the rate, not the label"))
        }
    }
}

/// The rate of a record, its unit and, where there is one, the bandwidth computed from it checked.
fn rate(source: Source<'_>, rates: &mut Rates, record: &Value, place: &str) -> Result<f64, ImportError> {
    let inner = record.get("rate").unwrap_or(record);
    let value = number(source, inner, "value", &format!("{place}.rate.value"))?;
    let unit = unit(source, inner, &format!("{place}.rate"))?;
    if !rates.unit.is_empty() && rates.unit != unit {
        return Err(source.whole(format!("{place} is in {unit}, rates before it in {}", rates.unit), HINT));
    }
    rates.unit = unit;
    if let Some(bandwidth) = record.get("bandwidth").filter(|_| rates.unit == "pps" && value > 0.0) {
        check_bandwidth(source, rates, value, bandwidth, place)?;
    }
    Ok(value)
}

/// Bytes that a packet can have on the wire: the smallest frame, and the largest jumbo frame with
/// gap and preamble.
const WIRE_BYTES: std::ops::RangeInclusive<f64> = 60.0..=9_250.0;

fn check_bandwidth(
    source: Source<'_>,
    rates: &mut Rates,
    pps: f64,
    bandwidth: &Value,
    place: &str,
) -> Result<(), ImportError> {
    let stated = number(source, bandwidth, "value", &format!("{place}.bandwidth.value"))?;
    let factor = match bandwidth.get("unit").and_then(Value::as_str) {
        Some("bps") => 1.0,
        Some("Gbps") => 1e9,
        other => {
            let what = format!("{place}.bandwidth.unit is '{}'", other.unwrap_or("missing"));
            return Err(source.whole(what, "expected bps or Gbps"));
        }
    };
    let bytes = stated * factor / pps / 8.0;
    if !WIRE_BYTES.contains(&bytes) {
        let reading = [
            (8.0, "the bandwidth is in bytes"),
            (1e-9, "the bandwidth is in bps"),
            (1e9, "the bandwidth is in Gbps"),
            (1e3, "a factor of 1000 is missing"),
        ]
        .into_iter()
        .find(|(factor, _)| WIRE_BYTES.contains(&(bytes * factor)))
        .map_or("rate and bandwidth are from different tests", |(_, reading)| reading);
        let what =
            format!("{place}: a bandwidth of {stated} at {pps} pps implies packets of {bytes:.3} bytes: {reading}");
        return Err(source.whole(what, "correct the unit of the bandwidth"));
    }
    match rates.wire_bytes {
        Some(before) if (before - bytes).abs() > 0.01 * before => {
            let what = format!("{place}: packets of {bytes:.1} bytes, before it of {before:.1}");
            Err(source.whole(what, "rate and bandwidth are from different tests"))
        }
        _ => {
            rates.wire_bytes = Some(bytes);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refusal;
    use super::super::{Imported, parse};
    use super::*;

    fn record(pps: f64) -> Value {
        serde_json::json!({"rate": {"value": pps, "unit": "pps"}, "bandwidth": {"value": pps * 84.0 * 8.0 / 1e9, "unit": "Gbps"}})
    }

    fn ndrpdr() -> Value {
        serde_json::json!({"test_id": "10ge2p1-64b-ipsec4tnl", "status": "PASS", "sut_type": "VPP", "sut_version": "21.06",
            "results": {"ndrpdr": {"ndr": {"lower": record(9e6), "upper": record(9.1e6)}, "pdr": {"lower": record(1e7), "upper": record(1.01e7)}}}})
    }

    fn rates(value: &Value) -> Rates {
        match parse("t.json", &value.to_string()).expect("good") {
            Imported::Rates(rates) => rates,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bounds_are_read_and_the_wire_size_found() {
        let rates = rates(&ndrpdr());
        assert_eq!((rates.rates["ndr.lower"], rates.rates["pdr.upper"]), (9e6, 1.01e7));
        assert_eq!((rates.kind.as_str(), rates.subject.as_str(), rates.unit.as_str()), ("ndrpdr", "VPP 21.06", "pps"));
        assert!((rates.wire_bytes.expect("from the bandwidth") - 84.0).abs() < 1e-6);
    }

    #[test]
    fn both_forms_of_mrr() {
        let old = serde_json::json!({"results": {"mrr": {"samples": [record(2.0e6), record(2.2e6)], "avg": 2.1e6, "stdev": 1e5}}});
        assert_eq!(
            (rates(&old).samples.len(), rates(&old).rates["mrr.avg"], rates(&old).name.as_str()),
            (2, 2.1e6, "t")
        );
        let new = serde_json::json!({"result": {"type": "mrr", "receive-rate": {"rate": {"avg": 2.1e6, "stdev": 1.0, "unit": "pps", "values": [2.0e6, 2.2e6]}}}});
        assert_eq!(rates(&new).rates, rates(&old).rates);
    }

    #[test]
    fn wrong_units_are_named() {
        let with = |pointer: &str, value: Value| {
            let mut wrong = ndrpdr();
            *wrong.pointer_mut(&format!("/results/ndrpdr{pointer}")).expect("a place") = value;
            refusal(&wrong.to_string())
        };
        let text = with("/ndr/lower/rate/unit", "Mpps".into());
        assert!(text.starts_with("f.csv: ndr.lower.rate.unit is 'Mpps'; expected pps"), "{text}");
        let bytes = with("/pdr/upper/bandwidth/value", (1.01e7 * 84.0 / 1e9).into());
        assert!(bytes.contains("pdr.upper: a bandwidth of") && bytes.contains("is in bytes"), "{bytes}");
        assert!(with("/ndr/lower/bandwidth/unit", "bps".into()).contains("the bandwidth is in Gbps"));
        assert!(
            with("/ndr/upper", record(8e6)).contains("ndr: the lower bound 9000000 is above the upper bound 8000000")
        );
        assert!(with("/pdr/lower/bandwidth/value", 15.0.into()).contains("before it of 84.0"));
        let off = serde_json::json!({"results": {"mrr": {"samples": [record(2e6)], "avg": 2.0, "stdev": 0}}});
        assert!(refusal(&off.to_string()).contains("the stated average is 2, but"));
    }

    #[test]
    fn what_has_no_rate_is_named() {
        assert!(refusal(r#"{"results": {}}"#).contains("no mrr, ndrpdr or soak"));
        assert!(refusal(r#"{"result": {"type": "hoststack"}}"#).contains("a test of type 'hoststack'"));
        assert!(refusal(r#"{"status": "FAIL", "results": {"mrr": {}}}"#).contains("the test failed"));
    }
}
