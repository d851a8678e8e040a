//! The model of an asynchronous engine (equation 4 of the paper, t = max(t_fix, t_oh + A / R_alg))
//! and the scheduler `async`, in simulated time: packets take the real path through the scheduler
//! and a simulated engine, and only the times of processor and engine are given.

use std::io;
use std::sync::Arc;

use crypto::Engine;
use crypto::accelerator::{ManualClock, Properties, Simulated};
use dataplane::{After, AsyncConfig, Asynchronous, Batch, Sink, Snapshot, Staged, Worker, WorkerConfig};
use ipsec::Protocol;
use testbed::pair::{Shape, Subject};
use throughput::{Asynchronous as System, Basis, Sample, SizeFn, fit_asynchronous};
use wire::IpProto;

/// Packets of a batch: one group of the engine.
const BATCH: usize = 16;
/// Batches before the time is measured, so that the window is full.
const WARM_UP: usize = 32;
/// Batches of a sample.
const MEASURED: usize = 256;
/// Step of the simulated time while the processor waits for the engine.
const STEP_NS: u64 = 1;
/// Bytes that the cipher works on beside the inner packet: the trailer of ESP. The sizes below need
/// no padding.
const TRAILER: f64 = 2.0;

/// Number of batches that were sealed.
#[derive(Default)]
struct Sealed(usize);

impl Sink for Sealed {
    fn outer(&mut self, _: &mut Batch) -> io::Result<After> {
        self.0 += 1;
        Ok(After::Done)
    }

    fn inner(&mut self, _: &mut Batch) -> io::Result<()> {
        Ok(())
    }
}

/// Time per sealed packet of `size` bytes, with a processor and an engine as in `system`. The
/// overhead of the engine is that of a launch of one batch, divided among its packets.
fn time_ns(system: System, (tables, template): (&Arc<Snapshot>, &[u8])) -> f64 {
    let clock = ManualClock::default();
    let read = clock.clone();
    let properties = Properties {
        overhead_ns: (system.overhead_ns * BATCH as f64) as u64,
        ns_per_byte: 8e3 / system.rate_mbps,
        capacity: 8,
        ..Properties::default()
    };
    let device = Simulated::new(Engine::AwsLc, properties, move || read.now_ns());
    let config = AsyncConfig { batch: BATCH, batches: 6, owner_computes: false, ..AsyncConfig::default() };
    let mut scheduler = Asynchronous::new(config, Some(Box::new(device)), |_| ());
    let mut worker = Worker::new(WorkerConfig { batch: BATCH, engine: Engine::AwsLc, ..WorkerConfig::default() }).0;
    let (mut replies, mut exit, mut began_ns) = (Batch::new(4, 2048), Sealed::default(), 0);
    while exit.0 < WARM_UP + MEASURED {
        let fill = |batch: &mut Batch| {
            batch.clear();
            while batch.len() < BATCH && batch.push_with(|to| to.set(template)) {}
            Ok::<_, std::convert::Infallible>(())
        };
        let Ok(taken) = scheduler.take_inner(&mut worker, tables, &mut replies, fill);
        clock.advance(if taken.is_some() { (system.fixed_ns * BATCH as f64) as u64 } else { STEP_NS });
        let before = exit.0;
        while scheduler.work(&mut worker, None, &mut exit).expect("memory does not fail") {}
        if before < WARM_UP && exit.0 >= WARM_UP {
            (began_ns, exit.0) = (clock.now_ns(), WARM_UP);
        }
    }
    (clock.now_ns() - began_ns) as f64 / ((exit.0 - WARM_UP) * BATCH) as f64
}

/// Time per packet of sizes from `first` to 1400 bytes.
fn samples(system: System, first: usize, step: usize) -> Vec<Sample> {
    let subject = Subject::new(Protocol::Esp, Shape::Tunnel, "aes128gcm16", Engine::AwsLc);
    let [src, dst] = subject.packet_addresses();
    let sample = |size: usize| {
        let packet = testbed::packet::udp(src, dst, 4000, 4001, size, IpProto::UDP);
        // Tables of its own, because sequence numbers are taken from them.
        let [sending, _] = subject.tables().expect("a suite of ESP");
        Sample::new(size as f64, time_ns(system, (&Arc::new(sending), &packet)))
    };
    (first..1400).step_by(step).map(sample).collect()
}

#[test]
fn the_model_holds_at_other_sizes_and_finds_the_breakpoint() {
    for (fixed_ns, overhead_ns, rate_mbps) in
        [(400.0, 100.0, 20_000.0), (300.0, 40.0, 12_000.0), (250.0, 90.0, 50_000.0)]
    {
        let system = System { fixed_ns, overhead_ns, rate_mbps };
        let grid = samples(system, 66, 64);
        let basis = Basis { size_fn: SizeFn::len(), cost: None };
        let fit = fit_asynchronous(&basis, &grid).expect("both regimes are in the grid");
        let truth = system.breakpoint_bytes() - TRAILER;
        // Simulated times have no random error: only whole nanoseconds of a batch are lost.
        assert!((fit.breakpoint.value / truth - 1.0).abs() <= 0.005, "{:?}, not {truth}", fit.breakpoint);
        let error = |s: &Sample| 100.0 * (fit.system.time_ns(s.size) / s.time_ns - 1.0).abs();
        let mut errors: Vec<f64> = samples(system, 94, 52).iter().map(error).collect();
        errors.sort_by(f64::total_cmp);
        let p95 = errors[(errors.len() * 95).div_ceil(100) - 1];
        assert!(p95 <= 2.0, "p95 of the errors is {p95:.2} %: {errors:?}");
    }
}
