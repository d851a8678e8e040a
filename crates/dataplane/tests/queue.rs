//! The work queue under loom: every interleaving of a few cores, with the memory model's
//! reorderings.
//!
//! The queue's own source is built here a second time, with loom's atomics and cells: they find two
//! cores in one place, a wake-up that is lost, and writes that are not seen.

#![allow(dead_code, unreachable_pub, missing_docs)]

mod sync {
    pub(super) use loom::cell::UnsafeCell;
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

#[path = "../src/scheduler/queue.rs"]
mod queue;

use loom::sync::{Arc, Mutex};
use loom::thread;
use queue::{Claim, FlowId, Tag, WorkQueue};

const IN: FlowId = FlowId(0);
const OUT: FlowId = FlowId(1);
const CORES: usize = 2;

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

type Queue = WorkQueue<u32>;

/// Takes a place and fills it with `number`.
fn fill(queue: &Queue, number: u32) -> Claim {
    let mut held = queue.claim().expect("a place is free");
    queue.with(&mut held, |work| *work = number);
    held
}

/// The stage behind: notes what came, and gives the place back.
fn output(queue: &Queue, mut held: Claim, log: &Mutex<Vec<u32>>) {
    log.lock().unwrap().push(queue.with(&mut held, |work| *work));
    queue.leave(held);
}

/// Whatever has become ready is output, until `count` have been.
fn finish(queue: &Queue, log: &Mutex<Vec<u32>>, count: usize) {
    while log.lock().unwrap().len() < count {
        match queue.take(0) {
            Some(held) => output(queue, held, log),
            None => thread::yield_now(),
        }
    }
}

#[test]
fn order_is_restored_behind_work_on_two_cores() {
    model(|| {
        let queue = Arc::new(Queue::new(vec![0, 0], 2, CORES));
        let log = Arc::new(Mutex::new(Vec::new()));
        let held: Vec<Claim> = (1..3)
            .map(|number| queue.switch(fill(&queue, number), Tag::Ordered(IN)).expect("ordered work runs"))
            .collect();
        let cores: Vec<_> = held
            .into_iter()
            .map(|held| {
                let (queue, log) = (Arc::clone(&queue), Arc::clone(&log));
                thread::spawn(move || {
                    if let Some(held) = queue.switch(held, Tag::Atomic(OUT)) {
                        output(&queue, held, &log);
                    }
                })
            })
            .collect();
        cores.into_iter().for_each(|core| core.join().unwrap());
        finish(&queue, &log, 2);
        assert_eq!(*log.lock().unwrap(), [1, 2]);
        assert_eq!(queue.in_use(), 0);
    });
}

#[test]
fn a_place_in_the_order_that_is_given_up_holds_nobody_back() {
    model(|| {
        let queue = Arc::new(Queue::new(vec![0, 0, 0], 2, CORES));
        let log = Arc::new(Mutex::new(Vec::new()));
        let held: Vec<Claim> = (1..4)
            .map(|number| queue.switch(fill(&queue, number), Tag::Ordered(IN)).expect("ordered work runs"))
            .collect();
        let mut held = held.into_iter();
        let (first, second, third) = (held.next().unwrap(), held.next().unwrap(), held.next().unwrap());
        let leaver = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.leave(second))
        };
        // Atomic in the flow it is in: its turn is all that it needs.
        if let Some(third) = queue.switch(third, Tag::Atomic(IN)) {
            output(&queue, third, &log);
        }
        if let Some(first) = queue.switch(first, Tag::Atomic(IN)) {
            output(&queue, first, &log);
        }
        leaver.join().unwrap();
        finish(&queue, &log, 2);
        assert_eq!(*log.lock().unwrap(), [1, 3]);
        assert_eq!(queue.in_use(), 0);
    });
}

#[test]
fn atomic_work_is_never_on_two_cores() {
    model(|| {
        let queue = Arc::new(Queue::new(vec![0, 0], 1, CORES));
        // Accessed by atomic items only: loom reports concurrent access.
        let shared = Arc::new(loom::cell::UnsafeCell::new(0u32));
        let done = Arc::new(Mutex::new(0));
        let step = |queue: &Queue, held: Claim, shared: &loom::cell::UnsafeCell<u32>, done: &Mutex<u32>| {
            // SAFETY: this test asserts exclusive access here, and loom checks it.
            #[allow(unsafe_code)]
            shared.with_mut(|shared| unsafe { *shared += 1 });
            queue.leave(held);
            *done.lock().unwrap() += 1;
        };
        let cores: Vec<_> = (0..2)
            .map(|number| {
                let (queue, shared, done) = (Arc::clone(&queue), Arc::clone(&shared), Arc::clone(&done));
                thread::spawn(move || {
                    let held = fill(&queue, number);
                    if let Some(held) = queue.switch(held, Tag::Atomic(IN)) {
                        step(&queue, held, &shared, &done);
                    }
                    if let Some(held) = queue.take(0) {
                        step(&queue, held, &shared, &done);
                    }
                })
            })
            .collect();
        cores.into_iter().for_each(|core| core.join().unwrap());
        while *done.lock().unwrap() < 2 {
            match queue.take(0) {
                Some(held) => step(&queue, held, &shared, &done),
                None => thread::yield_now(),
            }
        }
    });
}

#[test]
fn published_work_is_taken_once() {
    model(|| {
        let queue = Arc::new(Queue::new(vec![0], 1, CORES));
        queue.publish(fill(&queue, 7));
        let taken =
            |queue: &Queue| queue.take(0).map(|mut held| queue.with(&mut held, |work| std::mem::replace(work, 8)));
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || taken(&queue))
        };
        let mine = taken(&queue);
        let all = [mine, other.join().unwrap()];
        assert!(all == [Some(7), None] || all == [None, Some(7)], "{all:?}");
    });
}

#[test]
fn work_that_has_a_home_is_done_there_in_order() {
    model(|| {
        let queue = Arc::new(Queue::new(vec![0, 0], 2, CORES));
        let held: Vec<Claim> = (1..3)
            .map(|number| queue.switch(fill(&queue, number), Tag::Ordered(IN)).expect("ordered work runs"))
            .collect();
        let mut held = held.into_iter();
        let (first, second) = (held.next().unwrap(), held.next().unwrap());
        // Flow OUT belongs to core 1; the first piece is on core 0.
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let on = queue.switch(first, Tag::Home(OUT)).expect("the first is at its turn");
                assert!(!queue.may_run(&on, 0));
                queue.publish(on);
                assert!(queue.take(0).is_none(), "core 0 took what belongs to core 1");
            })
        };
        let log = Mutex::new(Vec::new());
        if let Some(second) = queue.switch(second, Tag::Home(OUT)) {
            output(&queue, second, &log);
        }
        while log.lock().unwrap().len() < 2 {
            match queue.take(1) {
                Some(held) => output(&queue, held, &log),
                None => thread::yield_now(),
            }
        }
        other.join().unwrap();
        assert_eq!(*log.lock().unwrap(), [1, 2]);
        assert_eq!((queue.in_use(), queue.waiting(), queue.waiting_at(1)), (0, 0, 0));
    });
}
