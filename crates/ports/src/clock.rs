//! The time stamp counter, for measurements, and the CPU time of threads.
#![allow(unsafe_code)]

use std::os::unix::thread::JoinHandleExt as _;
use std::thread::JoinHandle;
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

/// CPU time that a thread has used, in user space and in the kernel; `None` once it has ended.
pub fn cpu_time<T>(thread: &JoinHandle<T>) -> Option<Duration> {
    let mut clock = 0;
    // SAFETY: the handle borrows a thread that was neither joined nor detached, so that its
    // identifier is valid; `clock` is written, not kept.
    if unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &mut clock) } != 0 {
        return None;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is written, not kept. The clock of a thread that has ended is refused.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return None;
    }
    Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the time of a thread of its own is read")]
    fn the_time_of_a_thread_is_that_on_a_cpu() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            while ticks() > 0 && receiver.try_recv().is_err() {}
            receiver.recv()
        });
        let started = Instant::now();
        while cpu_time(&thread).unwrap() < Duration::from_millis(30) {
            assert!(started.elapsed() < Duration::from_secs(60));
        }
        sender.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        // Asleep in recv: its time stands still.
        let before = cpu_time(&thread).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(cpu_time(&thread).unwrap() - before < Duration::from_millis(20));
        sender.send(()).unwrap();
        thread.join().unwrap().unwrap();
    }
}
