//! A cable with a delay: two TAP devices, and a thread for each direction that holds every frame
//! for as long.
//!
//! Many kernels have no netem, and a delay emulator should report its timing error. A relay is made
//! with its world and ends with it; frames are only ever in one of its two queues, which are
//! bounded.

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tun_rs::SyncDevice;

use stats::Latency;

/// Frames that are held at once in each direction: 16 MiB of full frames. More are dropped and
/// counted.
const MOST_FRAMES: usize = 8192;
/// Ethernet header and VLAN tag beyond the MTU, in bytes.
const HEADER: usize = 18;
/// Maximum sleep of a thread before it checks for its end.
const LOOK: Duration = Duration::from_millis(50);

/// Both directions of a cable that holds frames back.
pub struct Relay {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    directions: [Arc<Mutex<Direction>>; 2],
}

/// Statistics of one direction.
#[derive(Default)]
struct Direction {
    late: Latency,
    forwarded: u64,
    dropped: u64,
}

/// Timing accuracy of a relay since its start, over both directions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Punctuality {
    /// Frames that went through.
    pub forwarded: u64,
    /// Frames that found no room, or that the other host did not take.
    pub dropped: u64,
    /// Microseconds by which frames left later than intended: median, 99th percentile, largest;
    /// `None` with too few frames for it.
    pub late_us: [Option<f64>; 3],
}

impl Relay {
    /// Holds frames between `devices` back for `delay`. `mtu` is theirs, in bytes.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn start(devices: [SyncDevice; 2], mtu: u16, delay: Duration) -> io::Result<Self> {
        devices.iter().try_for_each(|device| device.set_nonblocking(true))?;
        let devices = devices.map(Arc::new);
        let mut relay = Self { stop: Arc::default(), threads: vec![], directions: Default::default() };
        for (way, seen) in relay.directions.iter().enumerate() {
            let one = OneWay {
                from: Arc::clone(&devices[way]),
                to: Arc::clone(&devices[1 - way]),
                delay,
                held: VecDeque::new(),
                spare: vec![],
                frame: vec![0; usize::from(mtu) + HEADER],
                seen: Arc::clone(seen),
            };
            let stop = Arc::clone(&relay.stop);
            let name = format!("relay-{way}");
            relay.threads.push(std::thread::Builder::new().name(name).spawn(move || one.run(&stop))?);
        }
        Ok(relay)
    }

    /// Its timing accuracy so far.
    pub fn punctuality(&self) -> Punctuality {
        let mut all = Direction::default();
        for direction in &self.directions {
            let seen = direction.lock().unwrap_or_else(PoisonError::into_inner);
            all.late.merge(&seen.late);
            all.forwarded += seen.forwarded;
            all.dropped += seen.dropped;
        }
        let us = |ns: u64| ns as f64 / 1e3;
        let [median, p99] = [50.0, 99.0].map(|percent| all.late.percentile_ns(percent).map(us));
        let largest = (all.late.count() > 0).then(|| us(all.late.max_ns()));
        Punctuality { forwarded: all.forwarded, dropped: all.dropped, late_us: [median, p99, largest] }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A frame and when it is to leave.
struct Held {
    due: Instant,
    frame: Vec<u8>,
}

struct OneWay {
    from: Arc<SyncDevice>,
    to: Arc<SyncDevice>,
    delay: Duration,
    held: VecDeque<Held>,
    /// Buffers of frames that left.
    spare: Vec<Vec<u8>>,
    frame: Vec<u8>,
    seen: Arc<Mutex<Direction>>,
}

impl OneWay {
    fn run(mut self, stop: &AtomicBool) {
        // The kernel may extend a sleep by 50 µs unless the timer slack is reduced.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            let wait = self.held.front().map_or(LOOK, |first| first.due.saturating_duration_since(now).min(LOOK));
            let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
            let mut ready = [PollFd::from_borrowed_fd(self.from.as_fd(), PollFlags::IN)];
            let readable = poll(&mut ready, Some(&timeout)).is_ok_and(|n| n > 0);
            if readable && !self.take_in() {
                return;
            }
            self.let_out();
        }
    }

    /// Buffers received frames; false when the device is gone.
    fn take_in(&mut self) -> bool {
        loop {
            match self.from.recv(&mut self.frame) {
                Ok(bytes) if self.held.len() < MOST_FRAMES => {
                    let mut frame = self.spare.pop().unwrap_or_default();
                    frame.clear();
                    frame.extend_from_slice(&self.frame[..bytes]);
                    self.held.push_back(Held { due: Instant::now() + self.delay, frame });
                }
                Ok(_) => self.count(|seen| seen.dropped += 1),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// Sends everything that is due.
    fn let_out(&mut self) {
        while self.held.front().is_some_and(|first| first.due <= Instant::now()) {
            let Some(Held { due, frame }) = self.held.pop_front() else { return };
            let sent = self.to.send(&frame).is_ok();
            let late = due.elapsed().as_nanos() as u64;
            self.count(|seen| {
                if sent {
                    seen.forwarded += 1;
                    seen.late.record(0, late);
                } else {
                    seen.dropped += 1;
                }
            });
            self.spare.push(frame);
        }
    }

    fn count(&self, add: impl FnOnce(&mut Direction)) {
        add(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_are_added_up() {
        let relay = Relay { stop: Arc::default(), threads: vec![], directions: Default::default() };
        assert_eq!(relay.punctuality(), Punctuality::default());
        for (direction, late_ns) in relay.directions.iter().zip([20_000, 40_000]) {
            let mut seen = direction.lock().unwrap();
            (seen.forwarded, seen.dropped) = (6000, 1);
            (0..6000).for_each(|_| seen.late.record(0, late_ns));
        }
        let found = relay.punctuality();
        assert_eq!((found.forwarded, found.dropped), (12_000, 2));
        let late = found.late_us.map(Option::unwrap);
        assert!(late.iter().zip([20.0, 40.0, 40.0]).all(|(us, expected)| (us - expected).abs() < 0.1), "{found:?}");
    }
}
