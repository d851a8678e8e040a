//! The thread of the pacer: it sends the outer packets of SAs with a constant rate, each at its
//! time.
//!
//! Waiting has three parts. A thread without a stream is parked until new tables are published. A
//! longer wait is a park with a timeout, so that the thread notices new tables and the end. The
//! last part is a sleep until an absolute time, and then a loop that reads the clock: a sleep ends
//! when the timer of the CPU and its idle state permit, which depends on how busy the host is.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use dataplane::{CoreCounters, Pacer, Port, PortDrops, Publisher, Reports, WorkerConfig};
use rustix::thread::{ClockId, clock_nanosleep_absolute, set_current_timer_slack};
use rustix::time::{Timespec, clock_gettime};

use super::worker_ports::count_drops;
use super::{RunnerError, Stop, joined};

/// Waits below this end with an absolute sleep, in ns; the rest of longer ones is parked.
const SLEEP_NS: u64 = 2_000_000;
/// Longest time without a look at the tables and at the request to stop, in ns.
const LONGEST_PARK_NS: u64 = 100_000_000;
/// Time before a slot at which the sleep ends and the thread polls the clock, in ns. Longer than
/// most wake-ups take; it costs this share of each interval of a CPU.
const POLL_NS: u64 = 20_000;

/// The running thread.
pub(super) struct PacerThread {
    pub(super) handle: JoinHandle<io::Result<()>>,
    pub(super) counters: Arc<CoreCounters>,
    pub(super) reports: Reports,
}

impl PacerThread {
    /// Starts the thread, which sends through `port`.
    ///
    /// # Errors
    /// The operating system cannot create a thread.
    pub(super) fn start(
        config: WorkerConfig,
        port: Box<dyn Port + Send>,
        tables: Publisher,
        stop: Arc<Stop>,
    ) -> io::Result<Self> {
        let (pacer, reports) = Pacer::new(config);
        let counters = pacer.counters();
        let handle = std::thread::Builder::new()
            .name("weir-pacer".into())
            .spawn(move || Running { pacer, port, seen: PortDrops::default() }.run(&tables, &stop))?;
        Ok(Self { handle, counters, reports })
    }

    /// Waits for the thread to stop after a request.
    ///
    /// # Errors
    /// The error that ended it before, or that it hangs.
    pub(super) fn ended(self, patience: Duration) -> Result<(), RunnerError> {
        let hangs = || Err(io::Error::other("it has not stopped when it was asked to"));
        joined(self.handle, patience).unwrap_or_else(hangs).map_err(|source| RunnerError::Pacer { source })
    }

    /// Makes the thread look at the tables and at the request to stop.
    pub(super) fn wake(&self) {
        self.handle.thread().unpark();
    }
}

struct Running {
    pacer: Pacer,
    port: Box<dyn Port + Send>,
    /// Packets that the port refused, as far as the counters include them.
    seen: PortDrops,
}

impl Running {
    fn run(&mut self, tables: &Publisher, stop: &Stop) -> io::Result<()> {
        // The kernel may otherwise delay the end of a sleep by 50 µs. Without the permission the
        // schedule is less exact.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mut reader = Some(tables.reader());
        while !stop.is_asked() {
            let snapshot = reader.get_or_insert_with(|| tables.reader()).load();
            self.pacer.prepare(now_ns(), snapshot);
            let Some(due_ns) = self.pacer.due_ns() else {
                // A reader keeps its snapshot, with the keys of SAs that are gone.
                reader = None;
                std::thread::park();
                continue;
            };
            if wait_until(due_ns) {
                self.pacer.send(now_ns(), |batch| self.port.tx(batch))?;
                count_drops(self.port.drops(), &mut self.seen, &self.pacer.counters());
            }
        }
        Ok(())
    }
}

/// Time of the monotonic clock in ns.
fn now_ns() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    tv_sec as u64 * 1_000_000_000 + tv_nsec as u64
}

/// Waits until `due_ns`. Returns false after a part of a longer wait: there may be other tables.
fn wait_until(due_ns: u64) -> bool {
    let left_ns = due_ns.saturating_sub(now_ns());
    if left_ns > SLEEP_NS {
        std::thread::park_timeout(Duration::from_nanos((left_ns - SLEEP_NS).min(LONGEST_PARK_NS)));
        return false;
    }
    if left_ns > POLL_NS {
        let wake_ns = due_ns - POLL_NS;
        let at = Timespec { tv_sec: (wake_ns / 1_000_000_000) as i64, tv_nsec: (wake_ns % 1_000_000_000) as i64 };
        // An early end only makes the loop longer.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &at);
    }
    while now_ns() < due_ns {
        std::hint::spin_loop();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_at_its_time_or_in_parts() {
        let start = now_ns();
        assert!(wait_until(start), "the time has passed");
        assert!(wait_until(start + 500_000) && now_ns() >= start + 500_000);
        let far = now_ns() + 50 * LONGEST_PARK_NS;
        assert!(!wait_until(far) && now_ns() < far);
    }
}
