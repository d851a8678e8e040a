//! The thread's part: bursts sealed ahead, and sent at the times of their slots.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ipsec::aggfrag::{Filled, Filler, Settings};
use ipsec::{DropReason, OutboundSa};

use super::schedule::{Punctuality, Schedule, burst};
use super::{MAX_BURST, PacedCounters, PacedStream};
use crate::counters::bump;
use crate::{Batch, CoreCounters, Reports, Snapshot, Worker, WorkerConfig};

/// Time between two looks at an SA that cannot send, in ns.
const RETRY_NS: u64 = 10_000_000;
/// Estimate of the time to fill and seal a burst in ns, to which a ns per byte is added. A burst of
/// another stream that is due earlier is sent before.
const SEAL_NS: u64 = 10_000;

/// Owner of the sending side of all SAs with a constant rate.
///
/// The caller has the clock and the port: it calls [`Pacer::prepare`], waits until
/// [`Pacer::due_ns`], calls [`Pacer::send`], and so on. Times are those of any monotonic clock.
pub struct Pacer {
    worker: Worker,
    streams: Vec<Stream>,
    /// Generation of the tables that `streams` follow.
    generation: u64,
    /// A burst that is missing waits until one that is sealed was sent.
    postponed: bool,
    /// Attempts to seal a burst so far.
    turn: u64,
}

/// A stream and the SA that it uses.
struct Stream {
    shared: Arc<PacedStream>,
    slot: u32,
    sa: Arc<OutboundSa>,
    filler: Filler,
    /// Estimate of the time to seal a burst.
    seal_ns: u64,
    /// `None` until a packet was sealed, and after the SA could not send.
    schedule: Option<Schedule>,
    /// Sealed packets of the next burst.
    burst: Batch,
    /// How many of them are padding alone.
    padding: u64,
    /// Time of the next attempt to seal a burst.
    retry_ns: u64,
    /// Number of the last attempt, counted over all streams.
    turn: u64,
}

impl Pacer {
    /// A pacer, with the numbers and buffers of `config`, and the consumers of its reports.
    pub fn new(config: WorkerConfig) -> (Self, Reports) {
        let config = WorkerConfig { batch: MAX_BURST as usize, held: 0, reassembly: 1, alone: false, ..config };
        let (worker, reports) = Worker::new(config);
        (Self { worker, streams: Vec::new(), generation: 0, postponed: false, turn: 0 }, reports)
    }

    /// Counters.
    pub fn counters(&self) -> Arc<CoreCounters> {
        self.worker.counters()
    }

    /// Returns whether there is a stream.
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Follows the tables, and seals the burst that is due first of those that are missing. A burst
    /// of another stream that is due before the end of that is sent first. The only allocations are
    /// the buffers of a stream that is new.
    pub fn prepare(&mut self, now_ns: u64, tables: &Snapshot) {
        self.worker.tick(now_ns / 1_000_000);
        if self.generation != tables.generation {
            self.generation = tables.generation;
            self.follow(tables);
        }
        let sealed = self.streams.iter().filter(|stream| !stream.burst.is_empty()).map(Stream::due_ns).min();
        let missing = self.streams.iter_mut().filter(|stream| stream.is_missing(now_ns));
        // Slots that have passed count as one time: otherwise a stream that is behind would precede
        // all others until it has caught up.
        let slot_ns = |stream: &Stream| stream.slot_ns().max(now_ns);
        let Some(stream) = missing.min_by_key(|stream| (slot_ns(stream), stream.turn)) else {
            self.postponed = false;
            return;
        };
        // One burst is sent for each time that another waits, so that each waits for a burst of
        // each other stream at most.
        let before_the_end = slot_ns(stream).min(now_ns + stream.seal_ns);
        self.postponed = sealed.is_some_and(|due_ns| due_ns <= before_the_end);
        if !self.postponed {
            self.turn += 1;
            stream.turn = self.turn;
            stream.seal(now_ns, tables, &mut self.worker);
        }
    }

    /// Time of the next call of [`Pacer::send`] and [`Pacer::prepare`]; `None` without a stream.
    pub fn due_ns(&self) -> Option<u64> {
        let streams = self.streams.iter().filter(|stream| !self.postponed || !stream.burst.is_empty());
        streams.map(Stream::due_ns).min()
    }

    /// Sends the bursts that are due at `now_ns` with `tx`, which empties the batch.
    ///
    /// # Errors
    /// Those of `tx`.
    pub fn send(&mut self, now_ns: u64, mut tx: impl FnMut(&mut Batch) -> io::Result<()>) -> io::Result<()> {
        let counters = self.worker.counters();
        for stream in &mut self.streams {
            if !stream.burst.is_empty() && stream.due_ns() <= now_ns {
                let (packets, padding) = (stream.burst.len() as u64, std::mem::take(&mut stream.padding));
                tx(&mut stream.burst)?;
                stream.burst.clear();
                stream.passed(now_ns, packets, padding, &counters);
            }
        }
        Ok(())
    }

    /// Takes the streams of new tables over.
    #[cold]
    fn follow(&mut self, tables: &Snapshot) {
        let is_in = |stream: &Stream| tables.paced.iter().any(|paced| Arc::ptr_eq(&paced.stream, &stream.shared));
        for gone in self.streams.extract_if(.., |stream| !is_in(stream)) {
            gone.shared.counters.running.store(false, Ordering::Relaxed);
        }
        for paced in &tables.paced {
            let Some(sa) = tables.outbound.get(paced.slot as usize) else { continue };
            let Some(settings) = sa.common.aggfrag() else { continue };
            match self.streams.iter_mut().find(|stream| Arc::ptr_eq(&paced.stream, &stream.shared)) {
                Some(stream) => stream.use_sa(paced.slot, sa, settings),
                None => self.streams.push(Stream::new(&paced.stream, paced.slot, sa, settings)),
            }
        }
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.streams.iter().for_each(|stream| stream.shared.counters.running.store(false, Ordering::Relaxed));
    }
}

impl Stream {
    fn new(shared: &Arc<PacedStream>, slot: u32, sa: &Arc<OutboundSa>, settings: &Settings) -> Self {
        let burst = burst(settings.packet_size.into(), settings.rate_kbps);
        let seal_ns = SEAL_NS + burst * u64::from(settings.packet_size);
        Self {
            shared: Arc::clone(shared),
            slot,
            sa: Arc::clone(sa),
            filler: Filler::new(settings),
            seal_ns,
            schedule: None,
            burst: Batch::new(burst as usize, settings.packet_size.into()),
            padding: 0,
            retry_ns: 0,
            turn: 0,
        }
    }

    /// Uses the SA in `slot` from the next burst on. Packets that are sealed already leave through
    /// the one before.
    fn use_sa(&mut self, slot: u32, sa: &Arc<OutboundSa>, settings: &Settings) {
        self.slot = slot;
        // An SA with other addresses has the sequence numbers of the one before. Another one starts
        // with a whole packet, and its peer may refuse cut ones.
        if !Arc::ptr_eq(&self.sa.lanes, &sa.lanes) {
            self.filler = Filler::new(settings);
        }
        self.sa = Arc::clone(sa);
        self.retry_ns = 0;
    }

    fn due_ns(&self) -> u64 {
        match &self.schedule {
            Some(schedule) if !self.burst.is_empty() => schedule.due_ns(),
            _ => self.retry_ns,
        }
    }

    /// Time of the slot of a burst, sealed or not.
    fn slot_ns(&self) -> u64 {
        self.schedule.as_ref().map_or(self.retry_ns, Schedule::due_ns)
    }

    /// Returns whether the next burst is to be sealed.
    fn is_missing(&self, now_ns: u64) -> bool {
        self.burst.is_empty() && (self.schedule.is_some() || self.retry_ns <= now_ns)
    }

    /// Fills and seals the next burst. Data and padding take the same path; the time for it depends
    /// on the queue, up to the limits of [`Filler`], and does not show if it ends before the slot.
    fn seal(&mut self, now_ns: u64, tables: &Snapshot, worker: &mut Worker) {
        match self.try_seal(tables, worker) {
            Some((count, len, rate_kbps)) => {
                let schedule = self.schedule.take().filter(|schedule| schedule.is_for(count, len, rate_kbps));
                self.schedule = Some(schedule.unwrap_or_else(|| {
                    bump(&self.shared.counters.restarts, 1);
                    Schedule::new(now_ns, count, len, rate_kbps)
                }));
                self.shared.counters.running.store(true, Ordering::Relaxed);
            }
            None => {
                (self.padding, self.schedule, self.retry_ns) = (0, None, now_ns + RETRY_NS);
                self.filler.restart();
                self.shared.counters.running.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of packets in the burst, their length and their rate; `None` if the SA
    /// cannot send.
    fn try_seal(&mut self, tables: &Snapshot, worker: &mut Worker) -> Option<(u64, u64, u32)> {
        let settings = self.sa.common.aggfrag()?;
        // The peer may not have the SA yet. A stream that runs does not pause.
        if self.schedule.is_none() && tables.hold_trap(self.slot, false).is_some() {
            return None;
        }
        usable(&self.sa, settings).ok()?;
        let (room, count) = (self.sa.payload_len(), burst(settings.packet_size.into(), settings.rate_kbps));
        // Before packets leave the queue: without numbers for all payloads some would be lost.
        self.sa.check_room(count, count * room as u64).ok()?;
        let mut source = self.shared.queue.reader()?;
        let mut too_big = 0;
        for _ in 0..count {
            let mut filled = Filled::default();
            let pushed = self
                .burst
                .push_with(|packet| packet.set_with(room, |payload| filled = self.filler.fill(payload, &mut source)));
            if !pushed {
                self.burst.wipe();
                return None;
            }
            self.padding += u64::from(filled.used == 0);
            too_big += filled.too_big;
        }
        drop(source);
        let mut path = worker.outbound_path(tables);
        path.count_queued(&self.sa, DropReason::TooBig, too_big);
        path.seal_payloads(&mut self.burst, self.slot);
        if self.burst.len() as u64 != count {
            // Payloads that were not sealed are clear text.
            self.burst.wipe();
            return None;
        }
        let len = self.burst.packets().first()?.len();
        Some((count, len as u64, settings.rate_kbps))
    }

    /// Notes that the burst was sent.
    fn passed(&mut self, now_ns: u64, packets: u64, padding: u64, core: &CoreCounters) {
        let Some(schedule) = &mut self.schedule else { return };
        let punctuality = schedule.pass(now_ns);
        let PacedCounters { packets: all, padding: empty, late, restarts, .. } = &self.shared.counters;
        for (counter, by) in [(all, packets), (&core.paced, packets), (empty, padding), (&core.paced_padding, padding)]
        {
            bump(counter, by);
        }
        match punctuality {
            Punctuality::OnTime => {}
            Punctuality::Late => {
                bump(late, packets);
                bump(&core.paced_late, packets);
            }
            Punctuality::Restarted => {
                bump(late, packets);
                bump(&core.paced_late, packets);
                bump(restarts, 1);
            }
        }
    }
}

/// Reason why an SA with a constant rate cannot send, if there is one.
///
/// # Errors
/// [`DropReason::Expired`]; [`DropReason::TooBig`] if the path MTU is smaller than the packets:
/// their size must not change.
pub(crate) fn usable(sa: &OutboundSa, settings: &Settings) -> Result<(), DropReason> {
    sa.common.check_lifetime()?;
    let fits = sa.path_mtu.load(Ordering::Relaxed) >= u32::from(settings.packet_size);
    if fits { Ok(()) } else { Err(DropReason::TooBig) }
}
