//! The time stamp counter, for measurements.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

/// Ticks of the time stamp counter; nanoseconds of the monotonic clock where there is none.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // The fence orders earlier work before the reading. SAFETY: LFENCE and RDTSC exist on every
        // x86-64 processor and touch no memory.
        unsafe {
            core::arch::x86_64::_mm_lfence();
            core::arch::x86_64::_rdtsc()
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        use std::sync::OnceLock;
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Ticks per second, measured against the monotonic clock for 50 ms.
pub fn ticks_per_second() -> f64 {
    let (t0, c0) = (Instant::now(), ticks());
    while t0.elapsed() < Duration::from_millis(50) {
        std::hint::spin_loop();
    }
    let (dt, dc) = (t0.elapsed(), ticks() - c0);
    dc as f64 / dt.as_secs_f64()
}
