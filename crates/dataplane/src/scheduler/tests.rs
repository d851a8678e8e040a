//! The work queue on several threads: a stress test, and under Miri a search for data races.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::queue::{Claim, FlowId, Tag, WorkQueue};

const CORES: usize = 3;
const IN: FlowId = FlowId(0);
const OUT: FlowId = FlowId(1);
/// Core 0 is its home.
const HOME: FlowId = FlowId(3);

#[derive(Clone, Copy, Default)]
struct Work {
    number: u64,
    folded: u64,
    stage: u8,
}

/// Number of the next item in a flow with exclusive access. Neither access synchronizes: a core
/// that does not see what the previous holder of the turn wrote reads an old number.
#[derive(Default)]
struct Expected(AtomicU64);

impl Expected {
    fn next(&self, number: u64) {
        assert_eq!(self.0.load(Ordering::Relaxed), number);
        self.0.store(number + 1, Ordering::Relaxed);
    }
}

/// Function of a number that cores compute concurrently.
fn folded(number: u64) -> u64 {
    (0..number % 7).fold(number, |sum, n| sum.rotate_left(7) ^ n)
}

/// Takes an item that `core` holds as far as its turns permit. Returns true if it left.
fn advance(queue: &WorkQueue<Work>, mut held: Claim, core: usize, [out, home]: &[Expected; 2]) -> bool {
    loop {
        if !queue.may_run(&held, core) {
            queue.publish(held);
            return false;
        }
        let work = queue.with(&mut held, |work| {
            if work.stage == 0 {
                work.folded = folded(work.number);
            }
            work.stage += 1;
            *work
        });
        let next = match work.stage {
            1 => Tag::Atomic(OUT),
            2 => {
                out.next(work.number);
                assert_eq!(work.folded, folded(work.number), "as another core wrote it");
                Tag::Home(HOME)
            }
            _ => {
                assert_eq!(core, 0, "home of the flow");
                home.next(work.number);
                queue.leave(held);
                return true;
            }
        };
        match queue.switch(held, next) {
            Some(on) => held = on,
            None => return false,
        }
    }
}

/// Ends the other cores, also when an assertion fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "threads are for tests here")]
fn items_pass_every_tag_in_order_on_several_cores() {
    let items = if cfg!(miri) { 40 } else { 20_000 };
    let queue = WorkQueue::new(vec![Work::default(); 5], 4, CORES);
    let (expected, done) = (Default::default(), AtomicBool::new(false));
    let serve = |core| {
        while !done.load(Ordering::Relaxed) {
            match queue.take(core) {
                Some(held) => drop(advance(&queue, held, core, &expected)),
                None => std::thread::yield_now(),
            }
        }
    };
    std::thread::scope(|threads| {
        let _end = Done(&done);
        let serve = &serve;
        let cores: Vec<_> = (1..CORES).map(|core| threads.spawn(move || serve(core))).collect();
        // Core 0 receives, and offers each item to all cores. All items leave there.
        let (mut sent, mut left) = (0, 0);
        while left < items && cores.iter().all(|core| !core.is_finished()) {
            if sent < items
                && let Some(mut held) = queue.claim()
            {
                queue.with(&mut held, |work| *work = Work { number: sent, ..Work::default() });
                queue.publish(queue.switch(held, Tag::Ordered(IN)).expect("concurrent"));
                sent += 1;
            } else if let Some(held) = queue.take(0) {
                left += u64::from(advance(&queue, held, 0, &expected));
            } else {
                std::thread::yield_now();
            }
        }
    });
    assert!(expected.iter().all(|flow| flow.0.load(Ordering::Relaxed) == items));
    assert_eq!(queue.in_use(), 0);
}
