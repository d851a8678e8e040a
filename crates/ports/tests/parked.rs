//! How workers go to sleep and are woken, under loom: no wake-up is lost in any interleaving of a
//! few cores.
//!
//! The source is built here a second time, with loom's atomics. A lost wake-up is a deadlock, which
//! loom detects.

#![allow(dead_code, unreachable_pub, missing_docs)]

mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
    pub(super) use loom::thread::{Thread, park};
}

#[path = "../src/runner/parked.rs"]
mod parked;

#[path = "../../crypto/src/offload/parking.rs"]
mod parking;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;
use parked::Parked;
use parking::Parking;

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

/// A worker and its crypto thread: groups that were submitted, and that have run.
struct RoundTrip {
    rest: Parking,
    worker: Parked,
    submitted: AtomicU32,
    done: AtomicU32,
    bell: Notify,
}

impl RoundTrip {
    /// Main loop of the crypto thread, for `groups` groups.
    fn serve(&self, groups: u32) {
        for group in 1..=groups {
            let submitted = || self.submitted.load(Ordering::Acquire) >= group;
            while !submitted() {
                self.rest.unless(submitted);
            }
            self.done.fetch_add(1, Ordering::Release);
            self.worker.wake(|worker| worker == 0, |_| self.bell.notify());
        }
    }

    fn submit(&self, thread: &thread::Thread) {
        self.submitted.fetch_add(1, Ordering::Release);
        Parking::before_wakes();
        self.rest.wake(thread);
    }

    /// Sleeps until `groups` have run.
    fn collect(&self, groups: u32) {
        let ready = || self.done.load(Ordering::Acquire) >= groups;
        while !ready() {
            self.worker.enter(0);
            if !ready() {
                self.bell.wait();
            }
            self.worker.leave(0);
        }
    }
}

#[test]
fn a_worker_that_sleeps_for_its_crypto_thread_is_woken_and_wakes_it() {
    model(|| {
        let (submitted, done) = (AtomicU32::new(0), AtomicU32::new(0));
        let trip = RoundTrip { rest: Parking::new(), worker: Parked::new(), submitted, done, bell: Notify::new() };
        let trip = Arc::new(trip);
        let server = {
            let trip = Arc::clone(&trip);
            thread::spawn(move || trip.serve(2))
        };
        // The second one while the worker may sleep for the first.
        for groups in 1..=2 {
            trip.submit(server.thread());
            trip.collect(groups);
        }
        server.join().unwrap();
    });
}
