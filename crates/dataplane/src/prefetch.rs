//! Prefetch of packet buffers: the processor loads cache lines of the next buffers in a batch
//! while it processes the buffers before them.
#![allow(unsafe_code)]

use crypto::{Engine, Key};

/// Requests the cache line of `bytes[at]`, also outside of the buffer.
#[inline]
pub(crate) fn prefetch(bytes: &[u8], at: usize) {
    prefetch_at(bytes.as_ptr().wrapping_add(at));
}

/// Asks for the first cache line of `value`.
#[inline]
pub(crate) fn prefetch_line<T>(value: &T) {
    prefetch_at(std::ptr::from_ref(value).cast());
}

/// Asks for the cache lines of `key` that `engine` needs for a short packet.
#[inline]
pub(crate) fn prefetch_key(key: &Key, engine: Engine) {
    let start: *const u8 = std::ptr::from_ref(key).cast();
    Key::hot_lines(engine).for_each(|line| prefetch_at(start.wrapping_add(CACHE_LINE * line)));
}

const CACHE_LINE: usize = 64;

/// Asks for the cache line at `line`, whatever is there.
#[inline]
pub(crate) fn prefetch_at(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that a program can see, and of an address where nothing
        // is it is ignored.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
