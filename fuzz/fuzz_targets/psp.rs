//! PSP: header, cookie, extensions.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::psp::{PspCookie, PspHeader, PspSpi};

fuzz_target!(|bytes: &[u8]| {
    let _ = PspHeader::parse(bytes);
    if let Ok((header, extensions, rest)) = PspHeader::parse_full(bytes) {
        assert_eq!(PspHeader::LEN + extensions.len() + rest.len(), bytes.len());
        assert_eq!(PspHeader::LEN + extensions.len(), header.total_len());
        assert!(header.crypt_offset_bytes() <= 252);
        let _ = (header.version().key_len(), header.version().is_gmac());
        let _ = PspSpi::try_from(header.spi.get()).map(PspSpi::master_key);
        if header.has_cookie() {
            let _ = PspCookie::parse(extensions);
        }
    }
});
