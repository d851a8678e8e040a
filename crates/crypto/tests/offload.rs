//! How a thread of the asynchronous engine goes to rest and is woken, under loom: no wake-up is
//! lost in any interleaving.
//!
//! The source is built here a second time, with loom's atomics and threads. A lost wake-up is a
//! deadlock, which loom detects.

#![allow(dead_code, unreachable_pub, missing_docs)]

mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering, fence};
    pub(super) use loom::thread::{Thread, park};
}

#[path = "../src/offload/parking.rs"]
mod parking;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use parking::Parking;

/// A lane as its thread sees it: how many groups were put in, and whether more can come.
struct Lane {
    rest: Parking,
    given: AtomicUsize,
    abandoned: AtomicBool,
}

impl Lane {
    /// Main loop of the thread, until it has run `most` groups or the submitter is dropped. Returns
    /// the number of groups.
    fn serve(&self, most: usize) -> usize {
        let mut run = 0;
        while run < most {
            let waits = || self.given.load(Ordering::Acquire) > run;
            let abandoned = || self.abandoned.load(Ordering::Acquire);
            if waits() {
                run += 1;
            } else if abandoned() && !waits() {
                break;
            } else {
                self.rest.unless(|| waits() || abandoned());
            }
        }
        run
    }

    fn submit(&self) {
        let given = self.given.load(Ordering::Relaxed);
        self.given.store(given + 1, Ordering::Release);
    }

    fn wake(&self, server: &thread::Thread) {
        Parking::before_wakes();
        self.rest.wake(server);
    }
}

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

/// A lane, and its thread.
fn started(most: usize) -> (Arc<Lane>, thread::JoinHandle<usize>) {
    let (given, abandoned) = (AtomicUsize::new(0), AtomicBool::new(false));
    let lane = Arc::new(Lane { rest: Parking::new(), given, abandoned });
    let serving = Arc::clone(&lane);
    (lane, thread::spawn(move || serving.serve(most)))
}

#[test]
fn what_is_submitted_is_run_although_the_thread_was_about_to_rest() {
    model(|| {
        let (lane, server) = started(2);
        for _ in 0..2 {
            lane.submit();
            lane.wake(server.thread());
        }
        assert_eq!(server.join().unwrap(), 2);
    });
}

#[test]
fn groups_that_are_submitted_together_need_one_wake_up() {
    model(|| {
        let (lane, server) = started(2);
        lane.submit();
        lane.submit();
        lane.wake(server.thread());
        assert_eq!(server.join().unwrap(), 2);
    });
}

#[test]
fn a_lane_that_is_dropped_ends_its_thread_behind_the_last_group() {
    model(|| {
        let (lane, server) = started(usize::MAX);
        lane.submit();
        lane.wake(server.thread());
        lane.abandoned.store(true, Ordering::Release);
        // Also when it does not rest yet: it may be between its look and its rest.
        server.thread().unpark();
        assert_eq!(server.join().unwrap(), 1);
    });
}
