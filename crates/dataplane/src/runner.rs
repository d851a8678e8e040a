//! Run-to-completion: one thread per worker, from port to port.
//!
//! A worker takes a batch from each port that has something, through the path and out again, and
//! looks for new tables, a new time and the wish to stop between batches. It sleeps only when
//! every port is empty, and then no longer than [`LONGEST_SLEEP_MS`].

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use ipsec::Drop as Reason;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::Timespec;

use crate::counters::bump;
use crate::port::Refused;
use crate::worker::Reports;
use crate::{Acquire, Audit, Batch, CoreCounters, Port, Publisher, Worker, WorkerConfig};

/// Longest time a worker does not look at its clock and its tables.
const LONGEST_SLEEP_MS: i64 = 100;
/// The same while one of its ports cannot be waited on (memory rings), or packets wait for a sign of the peer.
const POLL_SLEEP_MS: i64 = 1;
/// Epoll token of the event that stops a worker; ports have their index.
const STOP: u64 = u64::MAX;
/// Epoll token of the event that makes a worker look at its tables.
const WAKE: u64 = u64::MAX - 1;

/// The ports of one worker.
pub struct Links {
    /// The side of clear packets: a TUN queue.
    pub inner: Box<dyn Port + Send>,
    /// Where protected packets come from. Only the first worker has any: an inbound SA belongs to
    /// one core.
    pub outer_rx: Vec<Box<dyn Port + Send>>,
    /// Where protected packets go, as whole IP packets.
    pub outer_tx: Box<dyn Port + Send>,
}

/// A worker thread that could not be started, or that ended.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The operating system refused a thread or an event descriptor.
    #[error("cannot start worker {core}: {source}")]
    Start {
        /// Which worker.
        core: usize,
        /// Why.
        source: io::Error,
    },
    /// A port failed for good.
    #[error("worker {core} stopped: {source}")]
    Port {
        /// Which worker.
        core: usize,
        /// Why.
        source: io::Error,
    },
}

/// Running workers. Stops them when dropped.
pub struct Runner {
    threads: Vec<Thread>,
    counters: Vec<Arc<CoreCounters>>,
    stop: Arc<Stop>,
    /// What packets asked for waits to be fetched.
    asked: Arc<OwnedFd>,
}

struct Thread {
    core: usize,
    handle: JoinHandle<io::Result<()>>,
    reports: Reports,
    wake: Arc<OwnedFd>,
}

/// How workers are told to stop, also while they sleep.
struct Stop {
    asked: AtomicBool,
    event: OwnedFd,
}

impl Runner {
    /// Starts one thread per worker.
    ///
    /// # Errors
    /// [`RunnerError::Start`]; nothing is left running then.
    pub fn start(workers: Vec<(WorkerConfig, Links)>, tables: Publisher) -> Result<Self, RunnerError> {
        let failed = |core| move |source| RunnerError::Start { core, source };
        let silent = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| failed(0)(e.into()));
        let (event, asked) = (silent()?, Arc::new(silent()?));
        let stop = Arc::new(Stop { asked: AtomicBool::new(false), event });
        let mut runner = Self { threads: Vec::new(), counters: Vec::new(), stop, asked };
        for (config, links) in workers {
            let core = config.core;
            runner.spawn(config, links, tables.clone()).map_err(failed(core))?;
        }
        Ok(runner)
    }

    fn spawn(&mut self, config: WorkerConfig, links: Links, tables: Publisher) -> io::Result<()> {
        let (core, pin) = (config.core, config.pin);
        let shape = (config.batch, config.packet_bytes);
        let (worker, reports) = Worker::new(config);
        let counters = worker.counters();
        let stop = Arc::clone(&self.stop);
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let bells = (Arc::clone(&wake), Arc::clone(&self.asked));
        let mut post = Post::new(links, &stop.event, bells, shape, worker)?;
        let handle = std::thread::Builder::new().name(format!("weir-{core}")).spawn(move || {
            pin_to(core, pin);
            post.run(&tables, &stop.asked)
        })?;
        self.counters.push(counters);
        self.threads.push(Thread { core, handle, reports, wake });
        Ok(())
    }

    /// Counters of every worker, in order.
    pub fn counters(&self) -> &[Arc<CoreCounters>] {
        &self.counters
    }

    /// Audit records since the last call, at most `limit`.
    pub fn audits(&mut self, limit: usize) -> Vec<Audit> {
        let records =
            self.threads.iter_mut().flat_map(|thread| std::iter::from_fn(|| thread.reports.audits.pop().ok()));
        records.take(limit).collect()
    }

    /// Readable when packets have asked for SAs since the last [`Runner::acquires`].
    pub fn asked(&self) -> BorrowedFd<'_> {
        self.asked.as_fd()
    }

    /// SAs that packets have asked for since the last call, at most `limit`.
    pub fn acquires(&mut self, limit: usize) -> Vec<Acquire> {
        // Before the rings, so that what comes meanwhile is seen or rings again.
        let _ = rustix::io::read(&*self.asked, &mut [0; 8]);
        let records =
            self.threads.iter_mut().flat_map(|thread| std::iter::from_fn(|| thread.reports.acquires.pop().ok()));
        records.take(limit).collect()
    }

    /// Has every worker look at the tables now. Without it a worker at rest looks within 100 ms.
    pub fn wake(&self) {
        for thread in &self.threads {
            // A counter that is full wakes as well.
            let _ = rustix::io::write(&*thread.wake, &1_u64.to_ne_bytes());
        }
    }

    /// True while every worker runs; false once one has stopped by itself.
    pub fn healthy(&self) -> bool {
        self.threads.iter().all(|thread| !thread.handle.is_finished())
    }

    /// Stops the workers and waits for them.
    ///
    /// # Errors
    /// What ended a worker before it was asked to.
    pub fn stop(mut self) -> Result<(), RunnerError> {
        self.ask_and_wait()
    }

    fn ask_and_wait(&mut self) -> Result<(), RunnerError> {
        self.stop.asked.store(true, Ordering::Release);
        // Cannot fail short of 2^64 stops; a worker that misses it sees `asked` when it wakes.
        let _ = rustix::io::write(&self.stop.event, &1_u64.to_ne_bytes());
        let mut outcome = Ok(());
        for Thread { core, handle, .. } in self.threads.drain(..) {
            let ended = handle.join().unwrap_or_else(|panic| Err(io::Error::other(panic_text(&*panic))));
            outcome = outcome.and(ended.map_err(|source| RunnerError::Port { core, source }));
        }
        outcome
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // The outcome was for whoever called `stop`.
        let _ = self.ask_and_wait();
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("internal error, please report: {}", text.unwrap_or("panic without a message"))
}

fn pin_to(core: usize, cpu: Option<usize>) {
    let Some(cpu) = cpu.filter(|cpu| *cpu < CpuSet::MAX_CPU) else { return };
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return;
    }
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    if let Err(error) = sched_setaffinity(None, &cpus) {
        tracing::warn!(core, cpu, %error, "worker is not pinned");
    }
}

/// A worker at its ports: what runs on one thread.
struct Post {
    worker: Worker,
    counters: Arc<CoreCounters>,
    links: Links,
    ready: OwnedFd,
    wake: Arc<OwnedFd>,
    /// Wakes the control side.
    asked: Arc<OwnedFd>,
    /// Ports that may have something: inner first, then `outer_rx` in order.
    open: Vec<bool>,
    /// Ports that cannot be waited on.
    unwaitable: Vec<bool>,
    /// Refusals of each port that are in the counters already; the last is `outer_tx`.
    seen: Vec<Refused>,
    batch: Batch,
    replies: Batch,
}

impl Post {
    fn new(
        links: Links,
        stop: &OwnedFd,
        (wake, asked): (Arc<OwnedFd>, Arc<OwnedFd>),
        (packets, bytes): (usize, usize),
        worker: Worker,
    ) -> io::Result<Self> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&ready, &*wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        epoll::add(&ready, stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let mut unwaitable = vec![];
        for (i, port) in std::iter::once(&links.inner).chain(&links.outer_rx).enumerate() {
            if let Some(fd) = port.readable() {
                epoll::add(&ready, fd, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN)?;
            }
            unwaitable.push(port.readable().is_none());
        }
        Ok(Self {
            counters: worker.counters(),
            ready,
            wake,
            asked,
            open: vec![true; unwaitable.len()],
            seen: vec![Refused::default(); unwaitable.len() + 1],
            unwaitable,
            // Two fragments for each packet of a full batch.
            batch: Batch::with_reserve(packets, 2 * packets, bytes),
            replies: Batch::new(packets, bytes),
            links,
            worker,
        })
    }

    /// Until asked to stop, or a port fails.
    fn run(&mut self, tables: &Publisher, stop: &AtomicBool) -> io::Result<()> {
        let start = Instant::now();
        let mut reader = tables.reader();
        while !stop.load(Ordering::Acquire) {
            let snapshot = reader.load();
            self.worker.tick(start.elapsed().as_millis() as u64);
            self.worker.release(snapshot, &mut self.batch);
            if !self.batch.is_empty() {
                self.outbound(snapshot)?;
            }
            if self.open[0] {
                self.links.inner.rx(&mut self.batch)?;
                self.open[0] = self.batch.room() == 0;
                self.outbound(snapshot)?;
            }
            for i in 0..self.links.outer_rx.len() {
                if self.open[i + 1] {
                    self.links.outer_rx[i].rx(&mut self.batch)?;
                    self.open[i + 1] = self.batch.room() == 0;
                    // Tables of after the packets came: a peer may use an SA as soon as it is told of it.
                    let snapshot = reader.load();
                    self.inbound(snapshot, i)?;
                }
            }
            if self.worker.hold.take_asked() {
                let _ = rustix::io::write(&*self.asked, &1_u64.to_ne_bytes());
            }
            self.wait()?;
        }
        Ok(())
    }

    fn outbound(&mut self, tables: &crate::Snapshot) -> io::Result<()> {
        if !self.batch.is_empty() {
            self.poll_again(0);
            self.worker.outbound(tables, &mut self.batch, &mut self.replies);
            self.links.outer_tx.tx(&mut self.batch)?;
            if !self.replies.is_empty() {
                self.links.inner.tx(&mut self.replies)?;
            }
            self.count_refused(self.seen.len() - 1);
        }
        self.count_refused(0);
        Ok(())
    }

    fn inbound(&mut self, tables: &crate::Snapshot, port: usize) -> io::Result<()> {
        if !self.batch.is_empty() {
            self.poll_again(port + 1);
            self.worker.inbound(tables, &mut self.batch);
            self.links.inner.tx(&mut self.batch)?;
            self.count_refused(0);
        }
        self.count_refused(port + 1);
        Ok(())
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

    /// Finds out which ports have something; sleeps when none is known to.
    fn wait(&mut self) -> io::Result<()> {
        let ms = match () {
            () if self.open.contains(&true) => 0,
            () if self.unwaitable.contains(&true) || self.worker.hold.waits_for_sign() => POLL_SLEEP_MS,
            () => LONGEST_SLEEP_MS,
        };
        let timeout = Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 };
        let mut events = [const { MaybeUninit::uninit() }; 16];
        match epoll::wait(self.ready.as_fd(), &mut events, Some(&timeout)) {
            Ok((events, _)) => {
                for event in events.iter() {
                    if event.data.u64() == WAKE {
                        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
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

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::time::Duration;

    use crypto::{Engine, KeyTable, Suite};
    use ipsec::{Action, DfPolicy, DscpPolicy, Lifetime, Mode, Outer, Peer, Policy, SaCommon, Spd, esp};
    use wire::registry::CodePoints;
    use wire::{AddrRange, PortRange, Selector};

    use super::*;
    use crate::port::{MemoryPort, memory_pair};
    use crate::{Snapshot, Totals};

    const PACKET: [u8; 28] =
        [0x45, 0, 0, 28, 0, 1, 0, 0, 9, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0, 1, 0, 2, 0, 8, 0, 0];

    fn spd(action: Action) -> Spd {
        let any = AddrRange::from_cidr([192, 0, 2, 0].into(), 24).unwrap();
        let ports = PortRange::ANY;
        let selectors = vec![Selector { src: any, dst: any, proto: None, src_ports: ports, dst_ports: ports }];
        Spd::new(vec![Policy { name: "all".into(), selectors, action }])
    }

    fn tables(action: Action) -> Publisher {
        let (spd, keys) = (spd(action), KeyTable::default());
        Publisher::new(Snapshot::new(vec![], vec![], spd, keys, CodePoints::default()).unwrap())
    }

    /// Everything through one ESP tunnel over a path of `path_mtu` bytes.
    fn tunnel(path_mtu: usize) -> Publisher {
        let outer = Outer {
            peer: Peer { local: [198, 51, 100, 1].into(), remote: [198, 51, 100, 2].into() },
            hop_limit: 64,
            dscp: DscpPolicy::Copy,
            ecn: true,
            df: DfPolicy::Copy,
            udp: None,
            udp_checksum: false,
        };
        let spec = esp::Spec {
            spi: 0x1001,
            suite: Suite::parse_esp("aes128gcm16").unwrap(),
            enc_key: &[7; 20],
            integ_key: &[],
            esn: false,
            window: 64,
            first_seq: 1,
            persistent: false,
            tfc_padding: false,
            iv: esp::CbcIv::Encrypted,
        };
        let mut keys = KeyTable::default();
        let common = SaCommon::new("moon", Mode::Tunnel, outer, Lifetime::NONE);
        let sa = esp::outbound(common, &spec, Engine::AwsLc, &mut keys).unwrap();
        sa.set_path_mtu(path_mtu);
        let spd = spd(Action::Protect { outbound: 0, inbound: 0 });
        Publisher::new(Snapshot::new(vec![], vec![Arc::new(sa)], spd, keys, CodePoints::default()).unwrap())
    }

    fn small(core: usize) -> WorkerConfig {
        WorkerConfig { core, batch: 8, reassembly: 1, derived_keys: 16, pin: Some(0), ..WorkerConfig::default() }
    }

    fn send(port: &mut MemoryPort, count: usize) {
        let mut batch = Batch::new(count, 2048);
        while batch.push_with(|to| to.set(&PACKET)) {}
        port.tx(&mut batch).unwrap();
    }

    fn receive(port: &mut MemoryPort, count: usize) -> usize {
        let (mut got, mut batch, start) = (0, Batch::new(8, 2048), Instant::now());
        while got < count && start.elapsed() < Duration::from_secs(5) {
            port.rx(&mut batch).unwrap();
            got += batch.len();
            batch.clear();
            std::thread::yield_now();
        }
        got
    }

    fn wait_for(what: impl Fn() -> bool) {
        let start = Instant::now();
        while !what() {
            assert!(start.elapsed() < Duration::from_secs(5));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A worker between memory rings of `places` packets, and their far ends: inner, outer in, outer out.
    fn between_rings(places: usize) -> (Links, MemoryPort, MemoryPort, MemoryPort) {
        let (inner, inner_end) = memory_pair(places, 2048);
        let (outer_rx, outer_rx_end) = memory_pair(places, 2048);
        let (outer_tx, outer_tx_end) = memory_pair(places, 2048);
        let links = Links { inner: Box::new(inner), outer_rx: vec![Box::new(outer_rx)], outer_tx: Box::new(outer_tx) };
        (links, inner_end, outer_rx_end, outer_tx_end)
    }

    /// A port that waits forever, or does something worse.
    struct Odd(OwnedFd, fn() -> io::Result<()>);

    impl Odd {
        fn boxed(rx: fn() -> io::Result<()>) -> Box<dyn Port + Send> {
            Box::new(Self(eventfd(0, EventfdFlags::CLOEXEC).unwrap(), rx))
        }
    }

    impl Port for Odd {
        fn rx(&mut self, _: &mut Batch) -> io::Result<()> {
            (self.1)()
        }

        fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
            from.clear();
            Ok(())
        }

        fn readable(&self) -> Option<BorrowedFd<'_>> {
            Some(self.0.as_fd())
        }
    }

    fn odd(rx: fn() -> io::Result<()>) -> Vec<(WorkerConfig, Links)> {
        let quiet = || Odd::boxed(|| Ok(()));
        vec![
            (small(0), Links { inner: quiet(), outer_rx: vec![quiet()], outer_tx: quiet() }),
            (small(1), Links { inner: Odd::boxed(rx), outer_rx: vec![], outer_tx: quiet() }),
        ]
    }

    #[test]
    fn packets_go_both_ways_and_are_counted() {
        let (links, mut inner, mut outer_in, mut outer_out) = between_rings(64);
        let runner = Runner::start(vec![(small(0), links)], tables(Action::Bypass)).unwrap();
        send(&mut inner, 30);
        send(&mut outer_in, 20);
        assert_eq!((receive(&mut outer_out, 30), receive(&mut inner, 20)), (30, 20));
        wait_for(|| Totals::of(runner.counters().iter().map(|c| &**c)).bypassed == 50);
        let totals = Totals::of(runner.counters().iter().map(|c| &**c));
        assert_eq!((totals.outer_tx, totals.inner_tx), ((30, 30 * 28), (20, 20 * 28)));
        assert!(runner.healthy());
        runner.stop().unwrap();
    }

    #[test]
    fn new_tables_are_seen_without_traffic_in_between() {
        let (links, mut inner, _outer_in, mut outer_out) = between_rings(64);
        let tables_now = tables(Action::Bypass);
        let runner = Runner::start(vec![(small(0), links)], tables_now.clone()).unwrap();
        send(&mut inner, 1);
        assert_eq!(receive(&mut outer_out, 1), 1);
        let spd = Spd::new(vec![]);
        tables_now.publish(Snapshot::new(vec![], vec![], spd, KeyTable::default(), CodePoints::default()).unwrap());
        send(&mut inner, 1);
        wait_for(|| runner.counters()[0].drops[Reason::NoPolicy as usize].load(Ordering::Relaxed) == 1);
    }

    #[test]
    fn a_packet_waits_for_the_sa_that_it_asks_for() {
        let (links, mut inner, mut outer_in, mut outer_out) = between_rings(64);
        let tables_now = tables(Action::Trap(5));
        let mut runner = Runner::start(vec![(small(0), links)], tables_now.clone()).unwrap();
        send(&mut inner, 3);
        let rings = |runner: &Runner, patience| {
            let timeout = Timespec { tv_sec: patience, tv_nsec: 0 };
            let fd = rustix::event::PollFd::new(&runner.asked, rustix::event::PollFlags::IN);
            rustix::event::poll(&mut [fd], Some(&timeout)).unwrap() == 1
        };
        assert!(rings(&runner, 5));
        let acquires = runner.acquires(10);
        assert!(!rings(&runner, 0));
        let key = acquires[0].key;
        assert_eq!((acquires.len(), acquires[0].trap, acquires[0].core), (1, 5, None));
        assert_eq!(key.proto, wire::IpProto::UDP);
        send(&mut outer_in, 1);
        wait_for(|| runner.counters()[0].drops[Reason::PlainInbound as usize].load(Ordering::Relaxed) == 1);
        tables_now.publish(
            Snapshot::new(vec![], vec![], spd(Action::Bypass), KeyTable::default(), CodePoints::default()).unwrap(),
        );
        runner.wake();
        assert_eq!(receive(&mut outer_out, 3), 3);
        runner.stop().unwrap();
    }

    #[test]
    fn a_core_without_an_sa_of_its_own_uses_the_common_one_and_asks() {
        let (links, mut inner, _outer_in, mut outer_out) = between_rings(64);
        let tables_now = tunnel(1500);
        let current = tables_now.current();
        let sa = Arc::clone(&current.outbound[0]);
        let mut next = Snapshot::new(
            vec![],
            vec![Arc::clone(&sa), sa],
            spd(Action::Protect { outbound: 0, inbound: 0 }),
            KeyTable::default(),
            CodePoints::default(),
        )
        .unwrap();
        next.keys.insert(current.keys.shared(crypto::KeyId(0)).unwrap());
        next.spread = vec![crate::Spread { slot: 0, by_core: vec![None, Some(1)], trap: 9 }];
        assert_eq!(next.on_core(0, 0), (0, Some(9)));
        assert_eq!(next.on_core(0, 1), (1, None));
        assert_eq!(next.on_core(0, 2), (0, None));
        assert_eq!(next.on_core(1, 0), (1, None));
        tables_now.publish(next);
        let mut runner = Runner::start(vec![(small(0), links)], tables_now).unwrap();
        send(&mut inner, 2);
        assert_eq!(receive(&mut outer_out, 2), 2);
        let acquires = runner.acquires(10);
        assert_eq!((acquires.len(), acquires[0].trap, acquires[0].core), (1, 9, Some(0)));
        runner.stop().unwrap();
    }

    #[test]
    fn what_a_port_refuses_is_a_counted_drop() {
        let (mut links, mut inner, _outer_in, _outer_out) = between_rings(64);
        let (narrow, _narrow_end) = memory_pair(5, 2048);
        links.outer_tx = Box::new(narrow);
        let runner = Runner::start(vec![(small(0), links)], tables(Action::Bypass)).unwrap();
        send(&mut inner, 40);
        wait_for(|| runner.counters()[0].drops[Reason::QueueFull as usize].load(Ordering::Relaxed) == 35);
        runner.stop().unwrap();
    }

    #[test]
    fn a_full_batch_of_packets_to_cut_loses_none() {
        let (links, mut inner, _outer_in, mut outer_out) = between_rings(64);
        let mut batch = Batch::new(8, 2048);
        let mut packet = [0; 700];
        packet[..PACKET.len()].copy_from_slice(&PACKET);
        packet[2..4].copy_from_slice(&700_u16.to_be_bytes());
        while batch.push_with(|to| to.set(&packet)) {}
        // All eight are there when the worker looks for the first time.
        inner.tx(&mut batch).unwrap();
        let runner = Runner::start(vec![(small(0), links)], tunnel(576)).unwrap();
        assert_eq!(receive(&mut outer_out, 16), 16);
        assert_eq!(runner.counters()[0].drops[Reason::QueueFull as usize].load(Ordering::Relaxed), 0);
        runner.stop().unwrap();
    }

    #[test]
    fn a_failed_port_stops_its_worker_and_is_told() {
        let runner = Runner::start(odd(|| Err(io::Error::other("cable pulled"))), tables(Action::Drop)).unwrap();
        wait_for(|| !runner.healthy());
        let error = runner.stop().unwrap_err();
        assert_eq!(error.to_string(), "worker 1 stopped: cable pulled");
    }

    #[test]
    fn a_panic_stops_its_worker_and_is_told() {
        let runner = Runner::start(odd(|| panic!("on purpose")), tables(Action::Drop)).unwrap();
        wait_for(|| !runner.healthy());
        assert!(runner.stop().unwrap_err().to_string().ends_with("please report: on purpose"));
    }

    #[test]
    fn sleeping_workers_stop_at_once() {
        let runner = Runner::start(odd(|| Ok(())), tables(Action::Drop)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        runner.stop().unwrap();
        assert!(start.elapsed() < Duration::from_millis(LONGEST_SLEEP_MS as u64), "{:?}", start.elapsed());
    }
}
