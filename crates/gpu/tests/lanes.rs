//! The choice of lanes per packet, compared with all that were measured on an H200.

use std::collections::BTreeMap;

use serde_json::Value;
use weir_gpu::{LANES_PER_UNIT, lanes_shift};

/// Multiprocessors of the H200 that was measured.
const UNITS: usize = 132;

/// Median throughput by size, packets of a launch, and lanes.
fn measured() -> BTreeMap<(usize, usize), BTreeMap<u32, f64>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/gpu-h200.json");
    let whole: Value = serde_json::from_slice(&std::fs::read(path).expect("the trials")).expect("JSON");
    let mut found = BTreeMap::<_, BTreeMap<_, _>>::new();
    for (point, trials) in whole["lanes"].as_object().expect("points") {
        // SIZE B, batch PACKETS, LANES lanes forced
        let numbers: Vec<usize> = point.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
        let [size, packets, lanes] = numbers[..] else { panic!("{point}") };
        let mut values: Vec<f64> = trials.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        values.sort_by(f64::total_cmp);
        found.entry((size, packets)).or_default().insert(lanes as u32, values[values.len() / 2]);
    }
    found
}

#[test]
fn the_choice_is_within_5_percent_of_the_best_measured() {
    let measured = measured();
    assert_eq!((measured.len(), measured.values().map(BTreeMap::len).sum::<usize>()), (12, 72));
    for ((size, packets), rates) in measured {
        let bytes = packets * size.next_multiple_of(16);
        let chosen = 1 << lanes_shift(packets, bytes, UNITS * LANES_PER_UNIT);
        let best = rates.values().copied().fold(0.0, f64::max);
        let rate = rates[&chosen];
        assert!(rate >= 0.95 * best, "{packets} of {size} bytes: {chosen} lanes have {rate}, the best {best}");
    }
}
