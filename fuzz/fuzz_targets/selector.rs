//! Traffic selectors and address ranges as text: a parsed selector should be emitted and parsed
//! again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{AddrRange, TrafficSelector};

fuzz_target!(|text: &str| {
    if let Ok(range) = text.parse::<AddrRange>() {
        assert_eq!(range.to_string().parse(), Ok(range));
    }
    if let Ok(selector) = text.parse::<TrafficSelector>() {
        assert_eq!(selector.to_string().parse(), Ok(selector));
    }
});
