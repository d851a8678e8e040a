//! The rings of AF_XDP under loom: every interleaving of a side that writes and a side that takes,
//! with the memory model's reorderings.
//!
//! The rings' own source is built here a second time, with loom's atomics; the entries are loom's
//! cells, which find two sides in one place and writes that are not seen.

#![allow(dead_code, unreachable_pub, missing_docs)]

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU32, Ordering};
}

#[path = "../src/xdp/ring.rs"]
mod ring;

use loom::cell::Cell;
use loom::sync::Arc;
use loom::thread;
use ring::{Consumer, Memory, Producer};
use sync::AtomicU32;

struct Both {
    producer: AtomicU32,
    consumer: AtomicU32,
    entries: Vec<Cell<u64>>,
}

#[derive(Clone)]
struct Side(Arc<Both>);

// The protocol of the ring keeps the sides apart; loom's cells check that.
#[allow(unsafe_code)]
// SAFETY: as above: a test that is wrong about it fails under loom.
unsafe impl Send for Side {}

impl Memory for Side {
    type Entry = u64;

    fn producer(&self) -> &AtomicU32 {
        &self.0.producer
    }

    fn consumer(&self) -> &AtomicU32 {
        &self.0.consumer
    }

    fn size(&self) -> u32 {
        self.0.entries.len() as u32
    }

    fn write(&self, at: u32, entry: u64) {
        self.0.entries[at as usize].set(entry);
    }

    fn read(&self, at: u32) -> u64 {
        self.0.entries[at as usize].get()
    }
}

/// A ring with the given counter values.
fn sides(size: usize, begun: u32) -> [Side; 2] {
    let entries = (0..size).map(|_| Cell::new(0)).collect();
    let both = Both { producer: AtomicU32::new(begun), consumer: AtomicU32::new(begun), entries };
    let side = Side(Arc::new(both));
    [side.clone(), side]
}

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    // Sides that wait for each other can take turns without end: as far as this is some seconds.
    builder.max_permutations = Some(30_000);
    builder.check(check);
}

#[test]
fn everything_arrives_in_order_and_once() {
    for begun in [0, u32::MAX - 1] {
        model(move || {
            let [ours, kernel] = sides(2, begun);
            let writing = thread::spawn(move || {
                let (mut ring, mut next) = (Producer::new(ours), 0);
                while next < 3 {
                    if ring.put(next) {
                        next += 1;
                        ring.publish();
                    } else {
                        thread::yield_now();
                    }
                }
            });
            let mut ring = Consumer::new(kernel);
            let mut got = Vec::new();
            while got.len() < 3 {
                match ring.take() {
                    Some(entry) => {
                        got.push(entry);
                        ring.release();
                    }
                    None => thread::yield_now(),
                }
            }
            writing.join().unwrap();
            assert_eq!(got, [0, 1, 2]);
        });
    }
}

#[test]
fn a_full_ring_takes_no_more() {
    model(|| {
        let [ours, kernel] = sides(4, u32::MAX - 2);
        let (mut ring, mut taking) = (Producer::new(ours), Consumer::new(kernel));
        assert_eq!([0, 1, 2, 3, 4].map(|n| ring.put(n)), [true, true, true, true, false]);
        assert!(taking.take().is_none(), "nothing was shown");
        ring.publish();
        assert_eq!((ring.pending(), taking.take(), taking.take()), (4, Some(0), Some(1)));
        assert!(!ring.put(5), "the places were not given back");
        taking.release();
        assert_eq!((ring.pending(), ring.put(5), ring.put(6), ring.put(7)), (2, true, true, false));
    });
}
