//! PSP packets into the receiving half: the first byte chooses the SA, the rest is the outer
//! packet. It comes twice, as the second time meets a window that may have moved.

#![no_main]

use ipsec::DropReason;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((choice, packet)) = input.split_first() else { return };
    let pair = weir_fuzz::psp(*choice);
    let first = weir_fuzz::open(&pair, packet);
    let again = weir_fuzz::open(&pair, packet);
    if first.is_ok() && pair.inn.window > 0 {
        assert_eq!(again, Err(DropReason::Replay));
    }
});
