//! A worker at its ports: what is its own, wherever it runs.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ipsec::Drop as Reason;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::{Links, Team};
use crate::counters::bump;
use crate::port::{MemoryPort, NOBODY, Refused};
use crate::scheduler::{After, Sink};
use crate::snapshot::Reader;
use crate::{Batch, CoreCounters, Port, Snapshot, Worker};

/// Longest time a worker does not look at its clock and its tables.
pub(super) const LONGEST_SLEEP_MS: i64 = 100;
/// The same while one of its ports cannot be waited on (memory rings), or packets wait for a sign of the peer.
const POLL_SLEEP_MS: i64 = 1;
/// Epoll token of the event that stops a worker; ports have their index.
const STOP: u64 = u64::MAX;
/// Epoll token of the bell: new tables, packets from another worker, work in the pipeline.
const WAKE: u64 = u64::MAX - 1;
/// Pieces of work that a worker does before it looks at its ports again.
const WORK_PER_TURN: usize = 4;
/// Longest time that packets wait for a worker that takes nothing: it hangs, and the others go on.
const LONGEST_STUCK_MS: u64 = 1000;

/// A worker with its ports. It goes from thread to thread as a whole, and its SAs with it.
pub(super) struct Post {
    worker: Worker,
    counters: Arc<CoreCounters>,
    links: Links,
    team: Arc<Team>,
    /// To and from each of the other workers, for packets of SAs that they own; `None` at its own place.
    others: Vec<Option<MemoryPort>>,
    ready: OwnedFd,
    /// Ports that may have something: inner first, then `outer_rx` in order.
    open: Vec<bool>,
    /// Ports that cannot be waited on.
    unwaitable: Vec<bool>,
    /// Refusals of each port that are in the counters already; the last is `outer_tx`.
    seen: Vec<Refused>,
    batch: Batch,
    /// Packets that other workers are to have and that found their rings full, and the worker of each. Until they are gone
    /// nothing more is received.
    stuck: Batch,
    stuck_for: Vec<u32>,
    /// When one of them went last, or the first came.
    stuck_since_ms: u64,
    /// Workers that took nothing for [`LONGEST_STUCK_MS`], until they take something, a bit each: nothing waits for them.
    lost: u64,
    now_ms: u64,
    /// Packets from the outer side that found no place in the pipeline. Until they have nothing more is received.
    arrivals: Batch,
    replies: Batch,
}

/// The ports that a pipeline's work leaves through.
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

impl Post {
    pub(super) fn new(
        links: Links,
        stop: &OwnedFd,
        team: Arc<Team>,
        others: Vec<Option<MemoryPort>>,
        worker: Worker,
    ) -> io::Result<Self> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let core = worker.config.core;
        let bell = team.bells.get(core).ok_or_else(|| io::Error::other("a worker's number is beyond their count"))?;
        epoll::add(&ready, bell, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        epoll::add(&ready, stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let mut unwaitable = vec![];
        for (i, port) in std::iter::once(&links.inner).chain(&links.outer_rx).enumerate() {
            if let Some(fd) = port.readable() {
                epoll::add(&ready, fd, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN)?;
            }
            unwaitable.push(port.readable().is_none());
        }
        let (packets, bytes) = (worker.config.batch, worker.config.packet_bytes);
        let stuck = if others.iter().any(Option::is_some) { packets } else { 0 };
        // Two fragments for each packet of a full batch; packets change places with those of the pipeline's batches.
        let whole = |packets| Batch::with_reserve(packets, 2 * packets, bytes);
        let arrivals = if team.pipeline.is_some() { packets } else { 0 };
        Ok(Self {
            counters: worker.counters(),
            ready,
            open: vec![true; unwaitable.len()],
            seen: vec![Refused::default(); unwaitable.len() + 1],
            unwaitable,
            batch: whole(packets),
            stuck: Batch::new(stuck, bytes),
            stuck_for: Vec::with_capacity(stuck),
            stuck_since_ms: 0,
            lost: 0,
            now_ms: 0,
            arrivals: whole(arrivals),
            replies: Batch::new(packets, bytes),
            team,
            others,
            links,
            worker,
        })
    }

    /// Number of its worker.
    pub(super) fn core(&self) -> usize {
        self.worker.config.core
    }

    /// What to wait on. While something is stuck, the ports that nothing is received from would not let it sleep: then the
    /// bell, which room rings.
    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        if self.stuck.is_empty() { self.ready.as_fd() } else { self.team.bells[self.core()].as_fd() }
    }

    /// Says that it is about to sleep; false when there is work for it after all. [`Post::wakes`] is to follow.
    pub(super) fn rests(&self) -> bool {
        self.team.rests(self.core()) && !self.is_given_any()
    }

    /// Whether other workers left packets for this one.
    fn is_given_any(&self) -> bool {
        self.others.iter().flatten().any(MemoryPort::has_input)
    }

    /// Says that it does not sleep any more.
    pub(super) fn wakes(&self) {
        self.team.wakes(self.core());
    }

    /// Everything that is there to do, once.
    pub(super) fn turn(&mut self, now_ms: u64, tables: &mut Reader) -> io::Result<()> {
        bump(&self.counters.turns, 1);
        self.worker.tick(now_ms);
        self.now_ms = now_ms;
        if self.team.pipeline.is_some() {
            self.turn_pipeline(tables)?;
        } else {
            self.turn_to_completion(tables)?;
        }
        if self.worker.hold.take_asked() {
            let _ = rustix::io::write(&self.team.asked, &1_u64.to_ne_bytes());
        }
        Ok(())
    }

    fn turn_to_completion(&mut self, tables: &mut Reader) -> io::Result<()> {
        // What was held and what comes now by the same tables: none overtakes the other.
        let snapshot = tables.load();
        self.worker.release(snapshot, &mut self.batch);
        if !self.batch.is_empty() {
            self.outbound(snapshot)?;
        }
        if self.open[0] {
            self.links.inner.rx(&mut self.batch)?;
            self.open[0] = self.batch.room() == 0;
            self.outbound(snapshot)?;
        }
        if !self.stuck.is_empty() {
            self.push_on();
        }
        for i in 0..self.links.outer_rx.len() {
            if self.open[i + 1] && self.stuck.is_empty() {
                self.links.outer_rx[i].rx(&mut self.batch)?;
                self.open[i + 1] = self.batch.room() == 0;
                // Tables of after the packets came: a peer may use an SA as soon as it is told of it.
                if !self.batch.is_empty() {
                    let snapshot = tables.load();
                    self.poll_again(i + 1);
                    self.hand_over(snapshot);
                    self.inbound(snapshot)?;
                }
                self.count_refused(i + 1);
            }
        }
        self.take_over(tables)
    }

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

    fn inbound(&mut self, tables: &Snapshot) -> io::Result<()> {
        if !self.batch.is_empty() {
            self.worker.inbound(tables, &mut self.batch);
            self.links.inner.tx(&mut self.batch)?;
            self.count_refused(0);
        }
        Ok(())
    }

    /// Gives the packets of SAs that other workers own to them, through bounded rings. What does not fit is kept, and nothing
    /// more is received before it is gone: if that is too slow, the kernel's queue is where packets are lost. Only what is for a
    /// worker that takes nothing any more is dropped.
    fn hand_over(&mut self, tables: &Snapshot) {
        let workers = self.others.len() as u32;
        if workers <= 1 {
            return;
        }
        let own = self.worker.config.core as u32;
        let mut owners = std::mem::take(&mut self.worker.groups);
        let before = (self.batch.len(), self.batch.bytes());
        self.worker.group(tables, &mut self.batch, workers, &mut owners);
        let whole = (self.batch.len(), self.batch.bytes());
        if whole != before {
            // Fragments that wait: those that are not whole yet come to no other place that counts them.
            self.counters.outer_rx.bump((before.0 - whole.0) as u64, before.1.saturating_sub(whole.1));
        }
        let foreign = owners.iter().filter(|owner| **owner != own).count();
        if foreign > 0 {
            bump(&self.counters.wrong_core, foreign as u64);
            self.pass_to_others(&mut owners);
            let stays = |i: usize| owners[i] != own && owners[i] != NOBODY;
            self.batch.give(&mut self.stuck, stays);
            self.stuck_for.extend((0..owners.len()).filter(|i| stays(*i)).map(|i| owners[i]));
            self.batch.retain(|i, _| owners[i] == own);
            if !self.stuck.is_empty() {
                bump(&self.counters.input_waits, 1);
                self.stuck_since_ms = self.now_ms;
                self.push_on();
            }
        }
        self.worker.groups = owners;
    }

    /// Passes the packets of the batch on to those among `owners` that are others.
    fn pass_to_others(&mut self, owners: &mut [u32]) {
        let Self { others, batch, team, lost, .. } = self;
        for (owner, ring) in others.iter_mut().enumerate() {
            let Some(ring) = ring else { continue };
            if owners.contains(&(owner as u32)) && ring.pass(batch, owners, owner as u32) > 0 {
                *lost &= !(1 << owner);
                team.tell(owner);
            }
        }
    }

    /// Tries again to pass on what found a full ring.
    fn push_on(&mut self) {
        let Self { others, stuck, stuck_for, team, lost, .. } = self;
        // Before the rings are looked at, so that room which is made meanwhile is seen or rings.
        team.wants_room(self.worker.config.core);
        let mut moved = false;
        for (owner, ring) in others.iter_mut().enumerate() {
            let (Some(ring), true) = (ring, stuck_for.contains(&(owner as u32))) else { continue };
            if ring.pass(stuck, stuck_for, owner as u32) > 0 {
                moved = true;
                *lost &= !(1 << owner);
                team.tell(owner);
            }
        }
        if moved {
            self.stuck_since_ms = self.now_ms;
        } else if self.now_ms.saturating_sub(self.stuck_since_ms) >= LONGEST_STUCK_MS {
            stuck_for.iter().filter(|owner| **owner != NOBODY).for_each(|owner| *lost |= 1 << owner);
        }
        let mut dropped = 0;
        for owner in stuck_for.iter_mut().filter(|owner| **owner != NOBODY && *lost >> **owner & 1 == 1) {
            *owner = NOBODY;
            dropped += 1;
        }
        if dropped > 0 {
            bump(&self.counters.drops[Reason::QueueFull as usize], dropped);
        }
        self.stuck.retain(|i, _| self.stuck_for[i] != NOBODY);
        self.stuck_for.retain(|owner| *owner != NOBODY);
    }

    /// Takes what other workers received for this one.
    fn take_over(&mut self, tables: &mut Reader) -> io::Result<()> {
        let mut any = false;
        for i in 0..self.others.len() {
            let Some(ring) = self.others[i].as_mut().filter(|ring| ring.has_input()) else { continue };
            // Fails when the other has ended, and everything with it.
            let _ = ring.rx(&mut self.batch);
            if !self.batch.is_empty() {
                any = true;
                self.inbound(tables.load())?;
            }
        }
        if any {
            self.team.made_room();
        }
        Ok(())
    }

    fn turn_pipeline(&mut self, tables: &mut Reader) -> io::Result<()> {
        let team = Arc::clone(&self.team);
        let Some(pipeline) = &team.pipeline else { return Ok(()) };
        let Self { worker, links, batch, replies, open, unwaitable, .. } = self;
        // Packets that were held go before those that come now, by the same tables; they stay here until there is a place.
        let snapshot = tables.load();
        worker.release(snapshot, batch);
        let released = !batch.is_empty();
        if released || open[0] {
            let mut full = false;
            let taken = pipeline.take_inner(worker, snapshot, replies, |into| {
                if released {
                    std::mem::swap(into, batch);
                    return Ok(());
                }
                let outcome = links.inner.rx(into);
                full = into.room() == 0;
                outcome
            })?;
            match taken {
                None => bump(&worker.counters.input_waits, 1),
                Some(any) if !released => open[0] = full || (any && unwaitable[0]),
                Some(_) => {}
            }
        }
        self.reply()?;
        self.count_refused(0);
        if !self.arrivals.is_empty() && pipeline.has_room() {
            pipeline.take_outer(&mut self.worker, tables.load(), &mut self.arrivals);
        }
        for i in 0..self.links.outer_rx.len() {
            if self.open[i + 1] && self.arrivals.is_empty() && pipeline.has_room() {
                self.links.outer_rx[i].rx(&mut self.arrivals)?;
                self.open[i + 1] = self.arrivals.room() == 0;
                if !self.arrivals.is_empty() {
                    self.poll_again(i + 1);
                    self.counters.outer_rx.bump(self.arrivals.len() as u64, self.arrivals.bytes());
                    pipeline.take_outer(&mut self.worker, tables.load(), &mut self.arrivals);
                }
                self.count_refused(i + 1);
            }
        }
        self.team.rouse();
        for _ in 0..WORK_PER_TURN {
            if !self.work(&team)? {
                break;
            }
            // What was done may be another's to go on with.
            self.team.rouse();
        }
        self.count_refused(0);
        self.count_refused(self.seen.len() - 1);
        Ok(())
    }

    /// One piece of the pipeline's work; false when there is none.
    fn work(&mut self, team: &Team) -> io::Result<bool> {
        let Some(pipeline) = &team.pipeline else { return Ok(false) };
        let Self { worker, links: Links { inner, outer_tx, .. }, .. } = self;
        pipeline.work(worker, &mut Exits { inner: &mut **inner, outer_tx: &mut **outer_tx })
    }

    /// Before the end: what is under way and can go on here. False when there is nothing of that.
    pub(super) fn finish(&mut self) -> io::Result<bool> {
        let team = Arc::clone(&self.team);
        self.work(&team)
    }

    /// Whether nothing is under way, here or at any other worker.
    pub(super) fn nothing_under_way(&self) -> bool {
        self.team.pipeline.as_ref().is_none_or(|pipeline| pipeline.in_use() == 0)
    }

    /// A port that nothing announces is asked again as long as it had something.
    fn poll_again(&mut self, port: usize) {
        self.open[port] |= self.unwaitable[port];
    }

    /// Moves what a port refused since the last time into the counters of the core.
    fn count_refused(&mut self, port: usize) {
        let now = match port {
            0 => self.links.inner.refused(),
            _ => self.links.outer_rx.get(port - 1).unwrap_or(&self.links.outer_tx).refused(),
        };
        let seen = std::mem::replace(&mut self.seen[port], now);
        if now == seen {
            return;
        }
        for (reason, by) in [
            (Reason::QueueFull, now.full - seen.full),
            (Reason::TooBig, now.too_big - seen.too_big),
            (Reason::TxError, now.other - seen.other),
            (Reason::NoRoom, now.cut_off - seen.cut_off),
            (Reason::Malformed, now.unreadable - seen.unreadable),
        ] {
            bump(&self.counters.drops[reason as usize], by);
        }
    }

    /// How long it may sleep before there is something to do that no event announces.
    pub(super) fn patience_ms(&self) -> i64 {
        let core = self.worker.config.core;
        // What is stuck has to go before anything is received; room rings.
        let open = if self.stuck.is_empty() { &self.open[..] } else { &self.open[..1] };
        match () {
            () if open.contains(&true) || self.team.has_work(core) || !self.arrivals.is_empty() => 0,
            () if self.is_given_any() => 0,
            () if !self.stuck.is_empty() => POLL_SLEEP_MS,
            () if self.unwaitable.contains(&true) || self.worker.hold.waits_for_sign() => POLL_SLEEP_MS,
            () => LONGEST_SLEEP_MS,
        }
    }

    /// Finds out which ports have something; sleeps up to `ms` when none is known to.
    pub(super) fn wait(&mut self, ms: i64) -> io::Result<()> {
        let rests = ms > 0;
        let mut ms = if rests && !self.rests() { 0 } else { ms };
        if ms > 0 && !self.stuck.is_empty() {
            let mut bell = [PollFd::from_borrowed_fd(self.ready(), PollFlags::IN)];
            let _ = poll(&mut bell, Some(&Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 }));
            ms = 0;
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 };
        let mut events = [const { MaybeUninit::uninit() }; 16];
        let outcome = epoll::wait(self.ready.as_fd(), &mut events, Some(&timeout));
        if rests {
            self.wakes();
        }
        match outcome {
            Ok((events, _)) => {
                for event in events.iter() {
                    if event.data.u64() == WAKE {
                        let _ = rustix::io::read(&self.team.bells[self.worker.config.core], &mut [0; 8]);
                    }
                    // The events of stop and wake are beyond every index.
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
