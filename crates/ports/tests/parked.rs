//! How workers go to sleep and are woken, under loom: no wake-up is lost in any interleaving of a
//! few cores.
//!
//! The source is built here a second time, with loom's atomics. A lost wake-up is a deadlock, which
//! loom detects.

#![allow(dead_code, unreachable_pub, missing_docs)]

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

#[path = "../src/runner/parked.rs"]
mod parked;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;
use parked::Parked;

/// Model of an eventfd: it stores a wake-up until it is read.
struct Place {
    parked: Parked,
    made: AtomicU32,
    bells: Vec<Notify>,
}

impl Place {
    fn new(workers: usize) -> Arc<Self> {
        let bells = (0..workers).map(|_| Notify::new()).collect();
        Arc::new(Self { parked: Parked::new(), made: AtomicU32::new(0), bells })
    }

    fn make(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
        self.parked.wake(|_| self.made.load(Ordering::Relaxed) > 0, |worker| self.bells[worker].notify());
    }

    /// Takes one, and sleeps until there is one.
    fn take(&self, worker: usize) {
        loop {
            self.parked.enter(worker);
            let mut there = self.made.load(Ordering::Relaxed);
            while there > 0 {
                match self.made.compare_exchange(there, there - 1, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return self.parked.leave(worker),
                    Err(now) => there = now,
                }
            }
            self.bells[worker].wait();
            self.parked.leave(worker);
        }
    }
}

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

#[test]
fn a_worker_that_falls_asleep_is_woken() {
    model(|| {
        let place = Place::new(1);
        let maker = {
            let place = Arc::clone(&place);
            thread::spawn(move || (0..2).for_each(|_| place.make()))
        };
        place.take(0);
        place.take(0);
        maker.join().unwrap();
    });
}

#[test]
fn two_workers_get_one_each() {
    model(|| {
        let place = Place::new(2);
        let other = {
            let place = Arc::clone(&place);
            thread::spawn(move || place.take(1))
        };
        place.make();
        place.make();
        place.take(0);
        other.join().unwrap();
    });
}
