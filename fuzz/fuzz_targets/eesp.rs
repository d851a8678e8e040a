//! EESP: base header, options, Payload Info Header, inner packets of the optimised format.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::eesp::{EespHeader, Options, PayloadInfo, infer_inner};

fuzz_target!(|bytes: &[u8]| {
    let _ = EespHeader::parse(bytes);
    if let Ok((header, options, rest)) = EespHeader::parse_v0(bytes) {
        assert_eq!(options.len(), usize::from(header.opt_len));
        assert_eq!(EespHeader::LEN + options.len() + rest.len(), bytes.len());
        let _ = Options::parse(options);
    }
    let _ = Options::parse(bytes);
    if let Ok((_, rest)) = PayloadInfo::parse(bytes) {
        assert!(rest.len() <= bytes.len() - PayloadInfo::LEN);
    }
    if let Ok((_, len)) = infer_inner(bytes) {
        assert!((20..=bytes.len()).contains(&len));
    }
});
