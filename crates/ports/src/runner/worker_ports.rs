//! One worker with its ports: everything that moves when the worker moves to another thread.
//!
//! [`WorkerPorts::turn`] is one iteration of the main loop: receive from the ports, take the batch
//! through the packet path (`Worker::outbound`, `Worker::inbound`, or a scheduler that keeps
//! batches in flight), send. [`WorkerPorts::wait`] sleeps between two of them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use dataplane::{
    After, Asynchronous, Batch, CoreCounters, Port, PortDrops, Reader, Sink, Snapshot, Staged, Worker, bump,
};
use ipsec::DropReason;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::aqm::{Aqm, drop_longest};
use super::hand_over::HandOver;
use super::{Links, Shared};
use crate::{MemoryPort, prefer_huge_pages};

/// Maximum time between two iterations, and thus between two reads of the clock and the tables.
pub(super) const LONGEST_SLEEP_MS: i64 = 100;
/// Maximum sleep while a port has no descriptor to wait on (memory rings), or while packets wait
/// for the first packet of a peer.
const POLL_SLEEP_MS: i64 = 1;
/// Epoll token of the event that stops a worker; ports have their index.
const STOP: u64 = u64::MAX;
/// Epoll token of the worker's eventfd: new tables, packets from another worker, work in the
/// pipeline.
const WAKE: u64 = u64::MAX - 1;
/// Batches in flight that a worker processes between two polls of its ports.
const WORK_PER_TURN: usize = 4;
/// Iterations without progress before a worker sleeps until its crypto threads have a result: about
/// the time that these need for a batch.
const IDLE_TURNS: u32 = 64;
/// Maximum sleep while packets are in flight in crypto threads, so that their watchdog runs.
const WATCH_SLEEP_MS: i64 = 10;
/// A worker with its ports. It moves between threads as a whole, together with its SAs.
pub(super) struct WorkerPorts {
    worker: Worker,
    counters: Arc<CoreCounters>,
    links: Links,
    shared: Arc<Shared>,
    /// Packets for SAs of other workers.
    hand_over: HandOver,
    /// Epoll instance with all ports, the worker's eventfd and the request to stop.
    ready: OwnedFd,
    /// Ports that may have packets: inner first, then `outer_rx` in order.
    open: Vec<bool>,
    /// Ports that have no descriptor to wait on.
    unwaitable: Vec<bool>,
    /// Active queue management of the queues before the ports, in the same order.
    queues: Vec<Aqm>,
    /// Counts of refused packets of each port that the drop counters include already; the last is
    /// `outer_tx`.
    seen: Vec<PortDrops>,
    batch: Batch,
    /// Time of the last iteration.
    pub(super) now_ms: u64,
    /// Packets from the outer side for which the scheduler has no free slot. Reception stops until
    /// they have one.
    arrivals: Batch,
    /// Crypto threads and the packets in flight there; `None` with other schedulers.
    asynchronous: Option<Box<Asynchronous>>,
    /// Iterations since these made progress.
    idle_turns: u32,
    /// ICMP messages to the inner side that outbound processing produced.
    replies: Batch,
}

/// Ports through which batches leave a scheduler.
struct Exits<'p> {
    inner: &'p mut (dyn Port + Send),
    outer_tx: &'p mut (dyn Port + Send),
}

impl Sink for Exits<'_> {
    fn outer(&mut self, batch: &mut Batch) -> io::Result<After> {
        self.outer_tx.tx(batch)?;
        Ok(After::Done)
    }

    fn inner(&mut self, batch: &mut Batch) -> io::Result<()> {
        self.inner.tx(batch)
    }
}

/// Drops a packet of the last receive call if the queue is a standing queue. `refused` are the
/// packets that count against the limit of the call and are not in the batch.
fn shorten(queue: &mut Aqm, batch: &mut Batch, refused: u64, counters: &CoreCounters, now_ms: u64) {
    if queue.drops(batch.room() as u64 > refused, now_ms) && drop_longest(batch) {
        bump(&counters.drops[DropReason::Aqm as usize], 1);
    }
}

/// What the last receive call of an outer port refused: datagrams, of which an invalid one per
/// interval would otherwise hide a standing queue. `seen` is the number before. TUN devices read
/// until the batch is full or the queue is empty, whatever they refuse.
fn refused(port: &dyn Port, seen: &PortDrops) -> u64 {
    port.drops().not_in_batch() - seen.not_in_batch()
}

impl WorkerPorts {
    pub(super) fn new(
        links: Links,
        stop: &OwnedFd,
        shared: Arc<Shared>,
        rings: Vec<Option<MemoryPort>>,
        (worker, asynchronous): (Worker, Option<Box<Asynchronous>>),
    ) -> io::Result<Self> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let core = worker.config().core;
        let waker =
            shared.wakers.get(core).ok_or_else(|| io::Error::other("a worker's number is beyond their count"))?;
        epoll::add(&ready, waker, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        epoll::add(&ready, stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let mut unwaitable = vec![];
        for (i, port) in std::iter::once(&links.inner).chain(&links.outer_rx).enumerate() {
            if let Some(fd) = port.readable() {
                epoll::add(&ready, fd, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN)?;
            }
            unwaitable.push(port.readable().is_none());
        }
        let (packets, bytes) = (worker.config().batch, worker.config().packet_bytes);
        // Two fragments for each packet of a full batch; buffers are exchanged with batches in
        // flight.
        let whole = |packets| {
            let batch = Batch::with_reserve(packets, 2 * packets, bytes);
            prefer_huge_pages(&batch);
            batch
        };
        let arrivals = if shared.pipeline.is_some() || asynchronous.is_some() { packets } else { 0 };
        Ok(Self {
            counters: worker.counters(),
            ready,
            open: vec![true; unwaitable.len()],
            queues: vec![Aqm::new(worker.config().aqm_interval_ms); unwaitable.len()],
            seen: vec![PortDrops::default(); unwaitable.len() + 1],
            unwaitable,
            batch: whole(packets),
            now_ms: 0,
            arrivals: whole(arrivals),
            asynchronous,
            idle_turns: 0,
            replies: Batch::new(packets, bytes),
            hand_over: HandOver::new(&worker, rings, Arc::clone(&shared)),
            shared,
            links,
            worker,
        })
    }

    /// Number of the worker.
    pub(super) fn core(&self) -> usize {
        self.worker.config().core
    }

    /// Descriptor to wait on. While packets are stuck or crypto threads have no room, nothing is
    /// received, so ports with input would not let the worker sleep: then it is the worker's
    /// eventfd alone, which room in a ring or a result makes readable.
    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        if self.hand_over.is_stuck() || self.window_is_full() {
            self.shared.wakers[self.core()].as_fd()
        } else {
            self.ready.as_fd()
        }
    }

    /// Returns true while crypto threads have no room for another batch.
    fn window_is_full(&self) -> bool {
        self.asynchronous.as_ref().is_some_and(|one| !one.has_room())
    }

    /// Returns true if packets in flight in crypto threads can be processed now.
    fn has_results(&self) -> bool {
        self.asynchronous.as_ref().is_some_and(|one| one.has_work())
    }

    /// Marks the worker as about to sleep. Returns false if it has work. [`WorkerPorts::unpark`]
    /// must follow.
    pub(super) fn park(&self) -> bool {
        self.shared.park(self.core()) && !self.hand_over.has_input() && !self.has_results()
    }

    /// Marks the worker as awake.
    pub(super) fn unpark(&self) {
        self.shared.unpark(self.core());
    }

    /// Runs one iteration of the main loop: receives from every port that may have packets,
    /// processes and sends.
    pub(super) fn turn(&mut self, tables: &mut Reader) -> io::Result<()> {
        bump(&self.counters.turns, 1);
        self.now_ms = self.shared.now_ms();
        self.worker.tick(self.now_ms);
        if let Some(mut asynchronous) = self.asynchronous.take() {
            let outcome = self.turn_staged(&mut *asynchronous, tables);
            if let Some(gone) = asynchronous.take_failure() {
                tracing::error!(
                    core = self.core(),
                    "{gone}; packets in flight there are lost, and this worker encrypts by itself until a restart"
                );
            }
            self.asynchronous = Some(asynchronous);
            outcome?;
        } else if self.shared.pipeline.is_some() {
            // Here, because a reference is taken by a locked instruction.
            let shared = Arc::clone(&self.shared);
            shared.pipeline.as_ref().map_or(Ok(()), |mut pipeline| self.turn_staged(&mut pipeline, tables))?;
        } else {
            self.turn_to_completion(tables)?;
        }
        if self.worker.take_requested() {
            let _ = rustix::io::write(&self.shared.asked, &1_u64.to_ne_bytes());
        }
        Ok(())
    }

    /// One iteration of run to completion: every batch goes from a port through the path to another
    /// port at once.
    fn turn_to_completion(&mut self, tables: &mut Reader) -> io::Result<()> {
        // Held packets and new ones use the same tables, so that none overtakes the other.
        let snapshot = tables.load();
        self.worker.release(snapshot, &mut self.batch);
        if !self.batch.is_empty() {
            self.outbound(snapshot)?;
        }
        self.deliver(snapshot)?;
        if self.open[0] {
            self.links.inner.rx(&mut self.batch)?;
            self.open[0] = self.batch.room() == 0;
            shorten(&mut self.queues[0], &mut self.batch, 0, &self.counters, self.now_ms);
            self.outbound(snapshot)?;
        }
        if self.hand_over.is_stuck() {
            self.hand_over.send_stuck(self.now_ms);
        }
        for i in 0..self.links.outer_rx.len() {
            if self.open[i + 1] && !self.hand_over.is_stuck() {
                self.links.outer_rx[i].rx(&mut self.batch)?;
                self.open[i + 1] = self.batch.room() == 0;
                let refused = refused(&*self.links.outer_rx[i], &self.seen[i + 1]);
                shorten(&mut self.queues[i + 1], &mut self.batch, refused, &self.counters, self.now_ms);
                // Load the tables after the packets: a peer may send through a new SA as soon as it
                // has our answer, which leaves only after the tables with that SA were published.
                if !self.batch.is_empty() {
                    let snapshot = tables.load();
                    self.poll_again(i + 1);
                    self.hand_over.send(&mut self.worker, snapshot, &mut self.batch, self.now_ms);
                    self.inbound(snapshot)?;
                }
                self.count_refused(i + 1);
            }
        }
        self.take_over(tables)
    }

    /// Takes the batch from the inner port through the path to the outer port.
    fn outbound(&mut self, tables: &Snapshot) -> io::Result<()> {
        if !self.batch.is_empty() {
            self.poll_again(0);
            self.worker.outbound(tables, &mut self.batch, &mut self.replies);
            self.links.outer_tx.tx(&mut self.batch)?;
            self.reply()?;
            self.count_refused(self.seen.len() - 1);
        }
        self.count_refused(0);
        Ok(())
    }

    fn reply(&mut self) -> io::Result<()> {
        if self.replies.is_empty() { Ok(()) } else { self.links.inner.tx(&mut self.replies) }
    }

    /// Takes the batch from an outer port through the path to the inner port.
    fn inbound(&mut self, tables: &Snapshot) -> io::Result<()> {
        if !self.batch.is_empty() {
            self.worker.inbound(tables, &mut self.batch);
            self.links.inner.tx(&mut self.batch)?;
            self.deliver(tables)?;
            self.count_refused(0);
        }
        Ok(())
    }

    /// Delivers inner packets of AGGFRAG payloads that did not fit a batch, or that waited for
    /// missing outer packets.
    fn deliver(&mut self, tables: &Snapshot) -> io::Result<()> {
        let mut more = self.worker.awaits_time();
        while more {
            more = self.worker.unpack(tables, &mut self.batch);
            if !self.batch.is_empty() {
                self.links.inner.tx(&mut self.batch)?;
            }
        }
        Ok(())
    }

    /// Processes packets that other workers handed over to this one.
    fn take_over(&mut self, tables: &mut Reader) -> io::Result<()> {
        let mut any = false;
        for from in 0..self.hand_over.workers() {
            if self.hand_over.receive(from, &mut self.batch) {
                any = true;
                self.inbound(tables.load())?;
            }
        }
        if any {
            self.shared.wake_for_room();
        }
        Ok(())
    }

    /// One iteration with a scheduler that keeps batches in flight: received batches enter it, then
    /// this worker processes some of them.
    fn turn_staged(&mut self, staged: &mut impl Staged, tables: &mut Reader) -> io::Result<()> {
        let Self { worker, counters, links, batch, replies, open, unwaitable, queues, now_ms, .. } = self;
        // Held packets precede new ones and use the same tables, to preserve order; they stay in
        // `batch` until the scheduler has a free slot.
        let snapshot = tables.load();
        worker.release(snapshot, batch);
        let released = !batch.is_empty();
        if released || open[0] {
            let mut full = false;
            let taken = staged.take_inner(worker, snapshot, replies, |into| {
                if released {
                    std::mem::swap(into, batch);
                    return Ok(());
                }
                let outcome = links.inner.rx(into);
                full = into.room() == 0;
                shorten(&mut queues[0], into, 0, counters, *now_ms);
                outcome
            })?;
            match taken {
                None => bump(&counters.input_waits, 1),
                Some(any) if !released => open[0] = full || (any && unwaitable[0]),
                Some(_) => {}
            }
        }
        self.reply()?;
        self.count_refused(0);
        if self.hand_over.is_stuck() {
            self.hand_over.send_stuck(self.now_ms);
        }
        self.receive_outer(staged, tables)?;
        // Packets that were released may still wait in the batch for a free slot.
        if self.batch.is_empty() {
            let snapshot = tables.load();
            self.deliver(snapshot)?;
        }
        self.shared.wake_for_work();
        self.idle_turns = if staged.in_use() == 0 { 0 } else { self.idle_turns.saturating_add(1) };
        for _ in 0..WORK_PER_TURN {
            if !self.work(staged, Some(tables.load()))? {
                break;
            }
            self.idle_turns = 0;
            // The next stage of the batch may belong to another worker.
            self.shared.wake_for_work();
        }
        self.count_refused(0);
        self.count_refused(self.seen.len() - 1);
        Ok(())
    }

    /// Receives packets from the outer side and from other workers as far as the scheduler has
    /// room.
    fn receive_outer(&mut self, staged: &mut impl Staged, tables: &mut Reader) -> io::Result<()> {
        self.accept(staged, tables);
        for i in 0..self.links.outer_rx.len() {
            let may = self.arrivals.is_empty() && staged.has_room() && !self.hand_over.is_stuck();
            if self.open[i + 1] && may {
                self.links.outer_rx[i].rx(&mut self.arrivals)?;
                self.open[i + 1] = self.arrivals.room() == 0;
                let refused = refused(&*self.links.outer_rx[i], &self.seen[i + 1]);
                shorten(&mut self.queues[i + 1], &mut self.arrivals, refused, &self.counters, self.now_ms);
                if !self.arrivals.is_empty() {
                    self.poll_again(i + 1);
                    // Load the tables after the packets, as in run to completion.
                    self.hand_over.send(&mut self.worker, tables.load(), &mut self.arrivals, self.now_ms);
                    self.counters.outer_rx.bump(self.arrivals.len() as u64, self.arrivals.bytes());
                    self.accept(staged, tables);
                }
                self.count_refused(i + 1);
            }
        }
        let mut any = false;
        for from in 0..self.hand_over.workers() {
            let may = self.arrivals.is_empty() && staged.has_room();
            if may && self.hand_over.receive(from, &mut self.arrivals) {
                any = true;
                self.counters.outer_rx.bump(self.arrivals.len() as u64, self.arrivals.bytes());
                self.accept(staged, tables);
            }
        }
        if any {
            self.shared.wake_for_room();
        }
        Ok(())
    }

    /// Passes received packets to the scheduler if it has room.
    fn accept(&mut self, staged: &mut impl Staged, tables: &mut Reader) {
        if !self.arrivals.is_empty() && staged.has_room() {
            staged.take_outer(&mut self.worker, tables.load(), &mut self.arrivals);
        }
    }

    /// Processes a batch in flight; false when there is nothing to do.
    fn work(&mut self, staged: &mut impl Staged, current: Option<&Snapshot>) -> io::Result<bool> {
        let Self { worker, links: Links { inner, outer_tx, .. }, .. } = self;
        staged.work(worker, current, &mut Exits { inner: &mut **inner, outer_tx: &mut **outer_tx })
    }

    /// Completes a batch in flight before the end; false when this worker has none to do.
    pub(super) fn finish(&mut self) -> io::Result<bool> {
        let shared = Arc::clone(&self.shared);
        if let Some(mut asynchronous) = self.asynchronous.take() {
            let outcome = self.work(&mut *asynchronous, None);
            self.asynchronous = Some(asynchronous);
            return outcome;
        }
        shared.pipeline.as_ref().map_or(Ok(false), |mut pipeline| self.work(&mut pipeline, None))
    }

    /// True when no batch is in flight, here or at any other worker.
    pub(super) fn nothing_in_flight(&self) -> bool {
        self.shared.pipeline.as_ref().is_none_or(|pipeline| pipeline.in_use() == 0)
            && self.asynchronous.as_ref().is_none_or(|one| one.in_use() == 0)
    }

    /// Polls a port without a descriptor again as long as it had packets.
    fn poll_again(&mut self, port: usize) {
        self.open[port] |= self.unwaitable[port];
    }

    /// Adds the packets that a port refused since the last call to the drop counters.
    fn count_refused(&mut self, port: usize) {
        let now = match port {
            0 => self.links.inner.drops(),
            _ => self.links.outer_rx.get(port - 1).unwrap_or(&self.links.outer_tx).drops(),
        };
        count_drops(now, &mut self.seen[port], &self.counters);
    }

    /// Returns the maximum time to sleep: until work is due for which no descriptor becomes
    /// readable.
    pub(super) fn max_sleep_ms(&self) -> i64 {
        let core = self.worker.config().core;
        // Stuck packets must leave before outer packets are received, to preserve order; a freed
        // slot wakes the worker.
        let open = if self.hand_over.is_stuck() { &self.open[..1] } else { &self.open[..] };
        if let Some(one) = self.asynchronous.as_ref().filter(|one| one.in_use() > 0) {
            let input = open.contains(&true) || !self.arrivals.is_empty() || self.hand_over.has_input();
            let now = one.has_work() || (one.has_room() && input) || self.idle_turns < IDLE_TURNS;
            return if now { 0 } else { self.max_sleep_in_flight_ms() };
        }
        match () {
            () if open.contains(&true) || self.shared.has_work(core) || !self.arrivals.is_empty() => 0,
            () if self.hand_over.has_input() => 0,
            () if self.hand_over.is_stuck() => POLL_SLEEP_MS,
            () if self.unwaitable.contains(&true) || self.worker.awaits_peer_traffic() => POLL_SLEEP_MS,
            () if self.worker.awaits_time() => POLL_SLEEP_MS,
            () => LONGEST_SLEEP_MS,
        }
    }

    /// Maximum sleep while crypto threads have packets, and this worker has nothing to do.
    fn max_sleep_in_flight_ms(&self) -> i64 {
        let polls = self.unwaitable.contains(&true) || self.worker.awaits_peer_traffic() || self.worker.awaits_time();
        if polls || self.hand_over.is_stuck() { POLL_SLEEP_MS } else { WATCH_SLEEP_MS }
    }

    /// Finds out which ports have packets; sleeps up to `ms` until one has.
    pub(super) fn wait(&mut self, ms: i64) -> io::Result<()> {
        let parks = ms > 0;
        let mut ms = if parks && !self.park() { 0 } else { ms };
        if ms > 0 && (self.hand_over.is_stuck() || self.window_is_full()) {
            let mut waker = [PollFd::from_borrowed_fd(self.ready(), PollFlags::IN)];
            let _ = poll(&mut waker, Some(&Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 }));
            ms = 0;
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 };
        let mut events = [const { MaybeUninit::uninit() }; 16];
        let outcome = epoll::wait(self.ready.as_fd(), &mut events, Some(&timeout));
        if parks {
            self.unpark();
        }
        match outcome {
            Ok((events, _)) => {
                for event in events.iter() {
                    if event.data.u64() == WAKE {
                        let _ = rustix::io::read(&self.shared.wakers[self.worker.config().core], &mut [0; 8]);
                    }
                    // The tokens STOP and WAKE are beyond every index.
                    if let Some(open) = self.open.get_mut(event.data.u64() as usize) {
                        *open = true;
                    }
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for (open, unwaitable) in self.open.iter_mut().zip(&self.unwaitable) {
            *open |= unwaitable;
        }
        Ok(())
    }
}

/// Adds what a port dropped, `now` in all, to the drop counters. `seen` is what they include.
pub(super) fn count_drops(now: PortDrops, seen: &mut PortDrops, counters: &CoreCounters) {
    let seen = std::mem::replace(seen, now);
    if now == seen {
        return;
    }
    for (reason, by) in [
        (DropReason::QueueFull, now.full - seen.full),
        (DropReason::TooBig, now.too_big - seen.too_big),
        (DropReason::TxError, now.other - seen.other),
        (DropReason::NoRoom, now.cut_off - seen.cut_off),
        (DropReason::Malformed, now.unreadable - seen.unreadable),
    ] {
        bump(&counters.drops[reason as usize], by);
    }
}
