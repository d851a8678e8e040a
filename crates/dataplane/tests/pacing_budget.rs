//! The budget of a paced queue under loom: two workers with a ring each, and the pacer.
//!
//! Its own source is built here a second time, with loom's atomics. A ring is modelled by the
//! number of its bytes in use, which its reader lowers with the ordering of `rtrb`.

#![allow(dead_code, unreachable_pub, missing_docs)]

mod sync {
    pub(super) use loom::sync::atomic::{AtomicUsize, Ordering};
}

#[path = "../src/pacing/budget.rs"]
mod budget;

use budget::Budget;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

const LIMIT: usize = 3;

/// Ring of one worker: positions of the writer, and of the reader.
#[derive(Default)]
struct Ring {
    written: AtomicUsize,
    read: AtomicUsize,
}

/// A worker appends `bytes` if the budget permits it. A ring with room for the whole budget must
/// have room then; a shorter one may be full.
fn push(budget: &Budget, ring: &Ring, bytes: usize, ring_len: usize) -> bool {
    if !budget.take(bytes) {
        return false;
    }
    let (written, read) = (ring.written.load(Ordering::Relaxed), ring.read.load(Ordering::Acquire));
    if written - read + bytes > ring_len {
        assert!(ring_len < LIMIT, "the ring is full within the budget");
        budget.give_back(bytes);
        return false;
    }
    ring.written.store(written + bytes, Ordering::Release);
    true
}

/// The pacer removes what is in the ring.
fn pop(budget: &Budget, ring: &Ring) {
    let (written, read) = (ring.written.load(Ordering::Acquire), ring.read.load(Ordering::Relaxed));
    if written > read {
        ring.read.store(written, Ordering::Release);
        budget.give_back(written - read);
    }
}

#[test]
fn two_workers_and_the_pacer_stay_within_limit_and_rings() {
    check(LIMIT);
}

#[test]
fn a_full_ring_gives_its_bytes_back_to_the_budget() {
    check(LIMIT - 1);
}

fn check(ring_len: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let budget = Arc::new(Budget::new(LIMIT));
        let rings: [Arc<Ring>; 2] = [Arc::new(Ring::default()), Arc::new(Ring::default())];
        let workers = rings.clone().map(|ring| {
            let budget = Arc::clone(&budget);
            thread::spawn(move || {
                let pushed = [2, 2].map(|bytes| push(&budget, &ring, bytes, ring_len));
                assert!(budget.used() <= LIMIT);
                pushed.iter().filter(|pushed| **pushed).count()
            })
        });
        rings.iter().for_each(|ring| pop(&budget, ring));
        let pushed: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert!(pushed > 0, "the first packet fits");
        rings.iter().for_each(|ring| pop(&budget, ring));
        assert_eq!(budget.used(), 0);
    });
}
