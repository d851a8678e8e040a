//! An engine on separate threads: groups of packets are submitted, and polled in order.

use std::io;
use std::sync::Arc;

use crypto::accelerator::{Accelerator, Direction, GROUP, Group, Task};
use crypto::offload::Offload;
use crypto::{CryptoOp, Engine, KeyTable};
use ports::clock::ticks;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Groups that a thread has room for: the largest batch of a benchmark.
const DEPTH: usize = 64;

/// Buffers of packets that have no headers, and the threads that work on them.
pub(super) struct OffloadBench {
    offload: Offload<Vec<u8>>,
    keys: Arc<KeyTable>,
    groups: Vec<Group<Vec<u8>>>,
    next_iv: u64,
}

impl OffloadBench {
    /// The threads run on all of `cpus` but the first, on which the caller stays from here on: a
    /// caller that polls on their core would block them. With a single core they share it.
    ///
    /// # Errors
    /// The operating system has no thread to give.
    pub(super) fn start(engine: Engine, threads: usize, keys: &Arc<KeyTable>, cpus: &[usize]) -> io::Result<Self> {
        if let [_, others @ ..] = cpus
            && !others.is_empty()
        {
            run_on(others)?;
        }
        let offload = Offload::start(engine, threads, DEPTH)?;
        run_on(&cpus[..cpus.len().min(1)])?;
        Ok(Self { offload, keys: Arc::clone(keys), groups: Vec::new(), next_iv: 1 })
    }

    /// From here on `count` packets, with `op` each.
    pub(super) fn prepare(&mut self, op: CryptoOp, count: usize) {
        let bytes = op.icv.end.max(op.body.end) as usize;
        let group = |first| {
            let tasks = (first..count.min(first + GROUP)).map(|_| Task { op, packet: vec![0; bytes] });
            Group::new(Direction::Seal, Arc::clone(&self.keys), Box::new(tasks.collect()))
        };
        self.groups = (0..count).step_by(GROUP).map(group).collect();
    }

    /// Seals and opens every packet; ticks of each, until the last one is back.
    pub(super) fn round(&mut self) -> [u64; 2] {
        for task in self.groups.iter_mut().flat_map(|group| group.tasks.iter_mut()) {
            task.op.iv[..8].copy_from_slice(&self.next_iv.to_be_bytes());
            self.next_iv += 1;
        }
        let took = [Direction::Seal, Direction::Open].map(|direction| self.pass(direction));
        let opened = |group: &mut Group<Vec<u8>>| (0..group.tasks.len()).all(|i| group.take_ok(i).is_some());
        assert!(self.groups.iter_mut().all(opened), "the engine failed to open its own packet");
        took
    }

    fn pass(&mut self, direction: Direction) -> u64 {
        let count = self.groups.len();
        let mut back = Vec::with_capacity(count);
        let start = ticks();
        for mut group in self.groups.drain(..) {
            group.direction = direction;
            while let Err(full) = self.offload.submit(group) {
                group = full;
                back.extend(self.offload.poll().expect("the threads go on"));
            }
        }
        while back.len() < count {
            match self.offload.poll().expect("the threads go on") {
                Some(group) => back.push(group),
                None => std::hint::spin_loop(),
            }
        }
        let took = ticks() - start;
        self.groups = back;
        took
    }
}

/// Lets this thread, and those that it starts from here on, run on these processors; none leaves it
/// as it is.
fn run_on(cpus: &[usize]) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(None, &set)?)
}
