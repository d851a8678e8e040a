//! Measures the GPU engine: the kernel alone, with copies, latency, through the asynchronous
//! interface, and engines of the CPU on the same machine. Reports nothing before the device has
//! computed the same bytes as the CPU.
//!
//! Every value is that of one trial. Rounds repeat all trials of a part in another order, and the
//! table has the median, the lowest and the highest of the rounds; the JSON has all of them.

#[path = "../tests/device/random.rs"]
mod random;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crypto::accelerator::{Accelerator, Direction, GROUP, Group, Task};
use crypto::{Aad, CryptoOp, DerivedKeys, Engine, KeyId, KeyMaterial, KeyTable, Span, Suite};
use random::Random;
use serde_json::{Value, json};
use weir_gpu::{DESCRIPTOR_BYTES, Descriptor, Device, Gpu, KeyWords, Launch, Settings, Shape, lanes_shift};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Outcome<T> = Result<T, Failure>;

const AAD: usize = 8;
const ICV: usize = 16;
const KEY: [u8; 20] = [7; 20];
const SIZES: [usize; 8] = [64, 128, 256, 512, 1024, 1400, 4096, 8192];

const USAGE: &str = "usage: measure [--api cuda|opencl] [--device N] [--ptx FILE] [--json FILE] [--quick]
               [--only verify|kernel|lanes|copies|latency|feeders|cpu]...";

/// A device as this program needs it.
trait Backend: Clone + Send + Sync + 'static {
    type Ring: Device + 'static;
    fn name(&self) -> String;
    fn ring(&self, shape: Shape, zero_copy: bool) -> Outcome<Self::Ring>;
    fn has_zero_copy() -> bool;
    fn time_kernel(ring: &mut Self::Ring, launch: &Launch, launches: usize) -> Outcome<f64>;
}

#[cfg(feature = "cuda")]
impl Backend for Arc<weir_gpu::cuda::Cuda> {
    type Ring = weir_gpu::cuda::CudaRing;

    fn name(&self) -> String {
        format!("CUDA: {}", weir_gpu::cuda::Cuda::name(self))
    }

    fn ring(&self, shape: Shape, zero_copy: bool) -> Outcome<Self::Ring> {
        Ok(weir_gpu::cuda::CudaRing::new(self, shape, zero_copy)?)
    }

    fn has_zero_copy() -> bool {
        true
    }

    fn time_kernel(ring: &mut Self::Ring, launch: &Launch, launches: usize) -> Outcome<f64> {
        Ok(ring.time_kernel(0, launch, launches)?)
    }
}

#[cfg(feature = "opencl")]
impl Backend for Arc<weir_gpu::opencl::OpenCl> {
    type Ring = weir_gpu::opencl::OpenClRing;

    fn name(&self) -> String {
        format!("OpenCL: {}", weir_gpu::opencl::OpenCl::name(self))
    }

    fn ring(&self, shape: Shape, _: bool) -> Outcome<Self::Ring> {
        Ok(weir_gpu::opencl::OpenClRing::new(self, shape)?)
    }

    fn has_zero_copy() -> bool {
        false
    }

    fn time_kernel(ring: &mut Self::Ring, launch: &Launch, launches: usize) -> Outcome<f64> {
        Ok(ring.time_kernel(0, launch, launches)?)
    }
}

struct Arguments {
    api: Option<String>,
    device: usize,
    ptx: Option<String>,
    json: Option<String>,
    only: Vec<String>,
    quick: bool,
}

impl Arguments {
    fn parse() -> Outcome<Self> {
        let mut parsed = Self { api: None, device: 0, ptx: None, json: None, only: Vec::new(), quick: false };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word}: value missing\n{USAGE}"));
            match word.as_str() {
                "--api" => parsed.api = Some(value()?),
                "--device" => parsed.device = value()?.parse()?,
                "--ptx" => parsed.ptx = Some(value()?),
                "--json" => parsed.json = Some(value()?),
                "--only" => parsed.only.push(value()?),
                "--quick" => parsed.quick = true,
                _ => return Err(format!("{word}: unknown option\n{USAGE}").into()),
            }
        }
        Ok(parsed)
    }

    fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }
}

/// All trials of a run.
struct Report {
    started: Instant,
    trials: Vec<Value>,
    /// Values of a point, by part and name of the point.
    points: BTreeMap<(String, String), (&'static str, Vec<f64>)>,
    failures: Vec<String>,
    head: Value,
    path: Option<String>,
}

impl Report {
    fn progress(&self, text: impl Display) {
        println!("[{:7.1} s] {text}", self.started.elapsed().as_secs_f64());
    }

    fn add(&mut self, part: &str, point: &str, round: usize, (value, unit): (f64, &'static str)) {
        self.trials.push(json!({"part": part, "point": point, "round": round, "value": value, "unit": unit}));
        let entry = self.points.entry((part.to_owned(), point.to_owned())).or_insert((unit, Vec::new()));
        entry.1.push(value);
    }

    fn median(&self, part: &str, point: &str) -> Option<f64> {
        let (_, values) = self.points.get(&(part.to_owned(), point.to_owned()))?;
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        Some(sorted[sorted.len() / 2])
    }

    fn best(&self, part: &str, is_wanted: impl Fn(&str) -> bool) -> Option<(String, f64)> {
        let names = self.points.keys().filter(|(of, name)| of == part && is_wanted(name)).map(|(_, name)| name.clone());
        let medians = names.filter_map(|name| self.median(part, &name).map(|value| (name, value)));
        medians.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn table(&self, part: &str) {
        for ((_, point), (unit, values)) in self.points.iter().filter(|((of, _), _)| of == part) {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
            let median = sorted[sorted.len() / 2];
            println!("{part:8} {point:44} {median:10.3} {unit:8} [{low:.3}, {high:.3}] of {}", sorted.len());
        }
    }

    /// Writes what there is: after each part, so that a later failure loses nothing.
    fn save(&self) -> Outcome<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let all = json!({"head": self.head, "failures": self.failures, "trials": self.trials});
        Ok(std::fs::write(path, format!("{all:#}\n"))?)
    }
}

/// Effort of a run.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    trial: Duration,
    /// No round begins after this time of a part.
    part: Duration,
    quick: bool,
}

impl Effort {
    /// Runs `trial` once for each point in each round, in an order that differs between rounds.
    fn rounds<T>(
        &self,
        report: &mut Report,
        (part, points): (&str, &[T]),
        mut trial: impl FnMut(&mut Report, &T, usize) -> Outcome<()>,
    ) -> Outcome<()> {
        let started = Instant::now();
        let mut order: Vec<usize> = (0..points.len()).collect();
        let mut random = Random(0x1234_5678_9abc_def1);
        for round in 0..self.rounds {
            if round >= 3 && started.elapsed() > self.part {
                report.progress(format!("{part}: the time is over after {round} rounds"));
                break;
            }
            for i in (1..order.len()).rev() {
                order.swap(i, random.below(i + 1));
            }
            for point in &order {
                trial(report, &points[*point], round)?;
            }
            report.progress(format!("{part}: round {} of {}", round + 1, self.rounds));
        }
        report.table(part);
        Ok(())
    }
}

fn table(engine: Engine, suite: &str) -> Outcome<(Arc<KeyTable>, KeyId)> {
    let suite = Suite::parse_esp(suite)?;
    let material = vec![7; suite.enc_material_len()];
    let mut table = KeyTable::default();
    let key = engine.expand_for_device(&suite, KeyMaterial { enc: &material, integ: &[] })?;
    let id = table.insert(Arc::new(key));
    Ok((Arc::new(table), id))
}

fn task(key: KeyId, number: u64, len: usize) -> Task<Vec<u8>> {
    let mut packet: Vec<u8> = (0..AAD + len + ICV).map(|at| (at as u64 * 31 + number * 7) as u8).collect();
    packet[..8].copy_from_slice(&number.to_be_bytes());
    let mut iv = [0; 16];
    iv[..8].copy_from_slice(&number.to_be_bytes());
    let (body, icv) = (Span::new(AAD, AAD + len), Span::new(AAD + len, AAD + len + ICV));
    Task { op: CryptoOp { key, aad: Aad::InPlace(Span::new(0, AAD)), body, icv, iv }, packet }
}

fn wait<D: Device>(ring: &mut Gpu<D, Vec<u8>>) -> Outcome<Group<Vec<u8>>> {
    loop {
        match ring.poll() {
            Ok(Some(group)) => return Ok(group),
            Ok(None) => std::hint::spin_loop(),
            Err(gone) => return Err(format!("{gone}: {:?}", ring.error()).into()),
        }
    }
}

/// Compares bytes with those of the CPU: all lengths to 1500 and some to 9000, both directions, and
/// packets that were changed.
fn verify<B: Backend>(backend: &B, zero_copy: bool, effort: Effort) -> Outcome<usize> {
    let shape = Shape { slots: 4, bytes: 1 << 20, packets: 1024, keys: 8 };
    let settings = Settings { watchdog_ns: 60_000_000_000, ..Settings::default() };
    let mut ring = Gpu::new(backend.ring(shape, zero_copy)?, Engine::AwsLc, settings);
    let step = if effort.quick { 7 } else { 1 };
    let lens: Vec<usize> = (0..=1500).step_by(step).chain((1501..=9000).step_by(97)).collect();
    let derived = DerivedKeys::new(0);
    let mut packets = 0;
    for suite in ["aes128gcm16", "aes256gcm16"] {
        let (keys, key) = table(Engine::AwsLc, suite)?;
        let make = |lens: &[usize]| {
            let tasks = lens.iter().map(|len| task(key, *len as u64, *len)).collect();
            Group::new(Direction::Seal, Arc::clone(&keys), Box::new(tasks))
        };
        let mut pending: std::collections::VecDeque<Group<Vec<u8>>> = lens.chunks(GROUP).map(make).collect();
        let mut direct: Vec<Group<Vec<u8>>> = lens.chunks(GROUP).map(make).collect();
        direct.iter_mut().for_each(|group| group.run(Engine::AwsLc, &derived));
        for direction in [Direction::Seal, Direction::Open] {
            let mut done = Vec::new();
            while done.len() < direct.len() {
                while let Some(group) = pending.pop_front() {
                    if let Err(back) = ring.submit(group) {
                        pending.push_front(back);
                        break;
                    }
                }
                done.push(wait(&mut ring)?);
            }
            for (number, (group, direct)) in done.iter_mut().zip(&direct).enumerate() {
                let clear = make(&lens[number * GROUP..(number * GROUP + GROUP).min(lens.len())]);
                for i in 0..group.tasks.len() {
                    packets += 1;
                    let (packet, body) = (&group.tasks[i].packet, group.tasks[i].op.body.range());
                    let right = match direction {
                        Direction::Seal => group.sealed(i) && *packet == direct.tasks[i].packet,
                        // The first of each group was changed, and must be as it was submitted.
                        Direction::Open if i == 0 => {
                            packet[body] == direct.tasks[i].packet[direct.tasks[i].op.body.range()]
                        }
                        Direction::Open => packet[body.clone()] == clear.tasks[i].packet[body],
                    };
                    let verified = direction == Direction::Seal || group.take_ok(i).is_some() == (i != 0);
                    if !right || !verified {
                        return Err(format!("{suite}: {direction:?} of group {number}, packet {i} is wrong").into());
                    }
                }
            }
            pending = done
                .into_iter()
                .map(|mut group| {
                    let at = group.tasks[0].op.icv.range().start + 3;
                    group.tasks[0].packet[at] ^= 4;
                    Group::new(Direction::Open, Arc::clone(&keys), group.tasks)
                })
                .collect();
        }
        pending.clear();
    }
    if ring.counts().on_cpu > 0 {
        return Err("the CPU ran packets in place of the device".into());
    }
    Ok(packets)
}

/// Fills a slot with `packets` of `len` bytes and returns their launch.
fn fill(device: &mut impl Device, slot: usize, packets: usize, len: usize) -> Outcome<Launch> {
    let (shape, lanes) = (device.shape(), device.lanes_at_once());
    let (data_at, each) = (shape.data_at(), len.next_multiple_of(16));
    let memory = device.memory(slot)?;
    for packet in 0..packets {
        let mut nonce = [7; 12];
        nonce[4..].copy_from_slice(&(packet as u64).to_be_bytes());
        let descriptor = Descriptor {
            body_at: data_at + packet * each,
            body_len: len,
            aad_len: AAD,
            nonce,
            aad: [3; 16],
            ..Descriptor::default()
        };
        let at = data_at - DESCRIPTOR_BYTES * (packet + 1);
        memory[at..at + DESCRIPTOR_BYTES].copy_from_slice(&descriptor.bytes());
    }
    let tags_at = data_at + packets * each;
    Ok(Launch { packets, data_at, tags_at, lanes_shift: lanes_shift(packets, packets * each, lanes) })
}

fn wait_for(device: &impl Device, slot: usize) -> Outcome<()> {
    let started = Instant::now();
    while !device.is_done(slot)? {
        if started.elapsed() > Duration::from_secs(60) {
            return Err("a launch has not completed after 60 s".into());
        }
        std::hint::spin_loop();
    }
    Ok(())
}

fn install_key(device: &mut impl Device) -> Outcome<()> {
    let words = KeyWords::new(&KEY[..16]).ok_or("a key of 16 bytes")?;
    Ok(device.set_key(0, &words)?)
}

fn gbit_s(bytes: f64, seconds: f64) -> (f64, &'static str) {
    (8.0 * bytes / seconds / 1e9, "Gbit/s")
}

/// The kernel over data that is on the device.
fn kernel<B: Backend>(backend: &B, effort: Effort, report: &mut Report) -> Outcome<()> {
    let (sizes, batches) = if effort.quick {
        (vec![64, 1400], vec![1 << 8])
    } else {
        (SIZES.to_vec(), (8..=16).map(|n| 1 << n).collect())
    };
    let points: Vec<(usize, usize)> =
        sizes.iter().flat_map(|size| batches.iter().map(|batch| (*size, *batch))).collect();
    let most = points.iter().map(|(size, batch)| size.next_multiple_of(16) * batch).max().unwrap_or(0);
    let packets = batches.iter().copied().max().unwrap_or(0);
    let mut ring = backend.ring(Shape { slots: 1, bytes: most, packets, keys: 1 }, false)?;
    install_key(&mut ring)?;
    effort.rounds(report, ("kernel", &points), |report, &(size, batch), round| {
        let launch = fill(&mut ring, 0, batch, size)?;
        ring.launch(0, &launch)?;
        wait_for(&ring, 0)?;
        let once = B::time_kernel(&mut ring, &launch, 1)?;
        let launches = ((effort.trial.as_secs_f64() / 4.0 / once) as usize).clamp(1, 2000);
        let seconds = B::time_kernel(&mut ring, &launch, launches)? / launches as f64;
        let point = format!("{size:5} B, batch {batch:6}, {:2} lanes", 1 << launch.lanes_shift);
        report.add("kernel", &point, round, gbit_s((size * batch) as f64, seconds));
        Ok(())
    })
}

/// The same with other numbers of lanes than the one that is chosen.
fn lanes<B: Backend>(backend: &B, effort: Effort, report: &mut Report) -> Outcome<()> {
    let (sizes, batches) = if effort.quick {
        (vec![1400], vec![1 << 8])
    } else {
        (vec![64, 512, 1400, 8192], vec![1 << 10, 1 << 12, 1 << 16])
    };
    let mut points: Vec<(usize, usize, u32)> = Vec::new();
    for size in sizes {
        points.extend(batches.iter().flat_map(|batch| (0..=5).map(move |shift| (size, *batch, shift))));
    }
    let most = points.iter().map(|(size, batch, _)| size.next_multiple_of(16) * batch).max().unwrap_or(0);
    let packets = points.iter().map(|(_, batch, _)| *batch).max().unwrap_or(0);
    let mut ring = backend.ring(Shape { slots: 1, bytes: most, packets, keys: 1 }, false)?;
    install_key(&mut ring)?;
    let effort = Effort { rounds: effort.rounds.min(3), ..effort };
    effort.rounds(report, ("lanes", &points), |report, &(size, batch, shift), round| {
        let launch = Launch { lanes_shift: shift, ..fill(&mut ring, 0, batch, size)? };
        ring.launch(0, &launch)?;
        wait_for(&ring, 0)?;
        let once = B::time_kernel(&mut ring, &launch, 1)?;
        let launches = ((effort.trial.as_secs_f64() / 4.0 / once) as usize).clamp(1, 1000);
        let seconds = B::time_kernel(&mut ring, &launch, launches)? / launches as f64;
        let point = format!("{size:5} B, batch {batch:6}, {:2} lanes forced", 1 << shift);
        report.add("lanes", &point, round, gbit_s((size * batch) as f64, seconds));
        Ok(())
    })
}

#[derive(Clone, Copy)]
struct Copies {
    size: usize,
    slot_bytes: usize,
    streams: usize,
    zero_copy: bool,
}

/// Slots with copies both ways, launched as soon as they are complete; nothing is copied by the
/// CPU.
fn copies<B: Backend>(backend: &B, effort: Effort, report: &mut Report) -> Outcome<()> {
    let mut points = Vec::new();
    let (sizes, slots, streams) = if effort.quick {
        (vec![1400], vec![64 << 10], vec![1, 2])
    } else {
        (vec![64, 512, 1400, 8192], vec![64 << 10, 256 << 10, 1 << 20, 4 << 20], vec![1, 2, 4, 8])
    };
    for size in sizes {
        for slot_bytes in &slots {
            for streams in &streams {
                let point = Copies { size, slot_bytes: *slot_bytes, streams: *streams, zero_copy: false };
                points.push(point);
                if B::has_zero_copy() && *slot_bytes >= 1 << 20 && *streams >= 2 {
                    points.push(Copies { zero_copy: true, ..point });
                }
            }
        }
    }
    effort.rounds(report, ("copies", &points), |report, at, round| {
        let packets = (at.slot_bytes / at.size.next_multiple_of(16)).max(1);
        let bytes = at.slot_bytes.max(at.size.next_multiple_of(16));
        let mut ring = backend.ring(Shape { slots: at.streams, bytes, packets, keys: 1 }, at.zero_copy)?;
        install_key(&mut ring)?;
        let launches =
            (0..at.streams).map(|slot| fill(&mut ring, slot, packets, at.size)).collect::<Outcome<Vec<_>>>()?;
        let mut run = |time: Duration| -> Outcome<(usize, f64)> {
            let (started, mut count) = (Instant::now(), 0);
            while started.elapsed() < time {
                for (slot, launch) in launches.iter().enumerate() {
                    if ring.is_done(slot)? {
                        ring.launch(slot, launch)?;
                        count += 1;
                    }
                }
            }
            for slot in 0..launches.len() {
                wait_for(&ring, slot)?;
            }
            Ok((count, started.elapsed().as_secs_f64()))
        };
        run(effort.trial / 8)?;
        let (count, seconds) = run(effort.trial)?;
        let kind = if at.zero_copy { "zero copy" } else { "copies" };
        let point = format!("{:5} B, slot {:4} KiB, {} streams, {kind}", at.size, at.slot_bytes >> 10, at.streams);
        report.add("copies", &point, round, gbit_s((count * packets * at.size) as f64, seconds));
        Ok(())
    })
}

/// Time of one launch alone, from the call to its completion.
fn latency<B: Backend>(backend: &B, effort: Effort, report: &mut Report) -> Outcome<()> {
    let (sizes, batches) =
        if effort.quick { (vec![64], vec![1, 16]) } else { (vec![64, 512, 1400], vec![1, 4, 16, 64, 256, 1024, 4096]) };
    let samples = if effort.quick { 20 } else { 400 };
    let mut points: Vec<(usize, usize, bool)> = Vec::new();
    for zero_copy in [false, true].into_iter().take(if B::has_zero_copy() { 2 } else { 1 }) {
        for size in &sizes {
            points.extend(batches.iter().map(|batch| (*size, *batch, zero_copy)));
        }
    }
    effort.rounds(report, ("latency", &points), |report, &(size, batch, zero_copy), round| {
        let bytes = batch * size.next_multiple_of(16);
        let mut ring = backend.ring(Shape { slots: 1, bytes, packets: batch, keys: 1 }, zero_copy)?;
        install_key(&mut ring)?;
        let launch = fill(&mut ring, 0, batch, size)?;
        let mut times = Vec::with_capacity(samples);
        for sample in 0..samples + samples / 4 {
            let started = Instant::now();
            ring.launch(0, &launch)?;
            wait_for(&ring, 0)?;
            if sample >= samples / 4 {
                times.push(started.elapsed().as_secs_f64() * 1e6);
            }
        }
        times.sort_by(f64::total_cmp);
        let kind = if zero_copy { "zero copy" } else { "copies" };
        for (name, at) in [("p50", samples / 2), ("p99", samples * 99 / 100)] {
            let point = format!("{size:5} B, batch {batch:5}, {kind}, {name}");
            report.add("latency", &point, round, (times[at.min(samples - 1)], "us"));
        }
        Ok(())
    })
}

/// Runs `each` on so many threads for a time, and returns the sum of what they count per second.
/// A thread counts until the flag is set; `warm` is not counted.
fn threads(
    count: usize,
    (warm, time): (Duration, Duration),
    each: impl Fn(&AtomicBool, &AtomicU64) -> Outcome<()> + Sync,
) -> Outcome<(f64, f64)> {
    let (stop, counters) = (AtomicBool::new(false), (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
    let sum = || counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum::<u64>();
    std::thread::scope(|scope| {
        let workers: Vec<_> = counters
            .iter()
            .map(|counter| {
                let (stop, each) = (&stop, &each);
                scope.spawn(move || each(stop, counter))
            })
            .collect();
        // Threads allocate memory first, which for a device takes long.
        let patience = Instant::now();
        while counters.iter().any(|counter| counter.load(Ordering::Relaxed) == 0)
            && patience.elapsed() < Duration::from_secs(20)
            && !workers.iter().any(|worker| worker.is_finished())
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(warm);
        let (started, before) = (Instant::now(), sum());
        std::thread::sleep(time);
        let (seconds, after) = (started.elapsed().as_secs_f64(), sum());
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().map_err(|_| "a thread has panicked")??;
        }
        Ok(((after - before) as f64, seconds))
    })
}

/// Packets per thread that the CPU has in its caches, in groups of 16.
const POOL: usize = 32;

fn groups(engine: Engine, count: usize, len: usize) -> Outcome<Vec<Group<Vec<u8>>>> {
    let (keys, key) = table(engine, "aes128gcm16")?;
    let group = |number: u64| {
        let tasks = (0..GROUP as u64).map(|n| task(key, number * GROUP as u64 + n, len)).collect();
        Group::new(Direction::Seal, Arc::clone(&keys), Box::new(tasks))
    };
    Ok((0..count as u64).map(group).collect())
}

/// The asynchronous interface: each thread has a ring, submits groups of 16 packets and polls them.
fn feeders<B: Backend>(backend: &B, effort: Effort, report: &mut Report) -> Outcome<()> {
    // Size, threads, bytes of a slot, zero copy.
    let mut points: Vec<(usize, usize, usize, bool)> = Vec::new();
    let (sizes, counts) = if effort.quick { (vec![1400], vec![1]) } else { (vec![64, 512, 1400], vec![1, 2, 4, 8]) };
    for size in sizes {
        for count in &counts {
            points.push((size, *count, 256 << 10, false));
            if !effort.quick {
                points.push((size, *count, 1 << 20, false));
            }
            if B::has_zero_copy() {
                points.push((size, *count, 256 << 10, true));
            }
        }
    }
    effort.rounds(report, ("feeders", &points), |report, &(size, count, slot_bytes, zero_copy), round| {
        let kind = if zero_copy { "zero copy" } else { "copies" };
        let packets = slot_bytes / size.next_multiple_of(16);
        let bytes = packets * size.next_multiple_of(16);
        let shape = Shape { slots: 4, bytes, packets, keys: 4 };
        let launches = AtomicU64::new(0);
        let on_device = AtomicU64::new(0);
        let time = (effort.trial, 3 * effort.trial);
        let (done, seconds) = threads(count, time, |stop, counter| {
            let settings = Settings { watchdog_ns: 10_000_000_000, ..Settings::default() };
            let mut ring = Gpu::new(backend.ring(shape, zero_copy)?, Engine::AwsLc, settings);
            let mut free = groups(Engine::AwsLc, ring.capacity(), size)?;
            while !stop.load(Ordering::Relaxed) {
                while let Some(group) = free.pop() {
                    if let Err(back) = ring.submit(group) {
                        free.push(back);
                        break;
                    }
                }
                while let Some(group) = ring.poll()? {
                    counter.fetch_add(group.tasks.len() as u64, Ordering::Relaxed);
                    free.push(group);
                    if free.len() >= 4 {
                        break;
                    }
                }
            }
            launches.fetch_add(ring.counts().launches, Ordering::Relaxed);
            on_device.fetch_add(ring.counts().on_device, Ordering::Relaxed);
            while ring.under_way() > 0 {
                ring.flush();
                ring.poll()?;
            }
            if ring.counts().on_cpu > 0 { Err("the CPU ran packets".into()) } else { Ok(()) }
        })?;
        let point = format!("{size:5} B, {count} threads, slot {:4} KiB, {kind}", slot_bytes >> 10);
        report.add("feeders", &point, round, gbit_s(done * size as f64, seconds));
        let per_launch = on_device.into_inner() as f64 / launches.into_inner().max(1) as f64;
        report.add("feeders", &format!("{point}: packets per launch"), round, (per_launch, "packets"));
        Ok(())
    })
}

/// Engines of the CPU, the same groups.
fn cpu(effort: Effort, report: &mut Report) -> Outcome<()> {
    let all = std::thread::available_parallelism()?.get();
    let sizes = if effort.quick { vec![1400] } else { SIZES.to_vec() };
    let mut points = Vec::new();
    for engine in Engine::real() {
        for size in &sizes {
            points.push((engine, *size, 1));
            if [64, 512, 1400].contains(size) {
                points.extend(
                    [2, 4, 8, all].into_iter().filter(|count| *count <= all).map(|count| (engine, *size, count)),
                );
            }
        }
    }
    points.dedup();
    effort.rounds(report, ("cpu", &points), |report, &(engine, size, count), round| {
        let time = (effort.trial / 4, effort.trial);
        let (done, seconds) = threads(count, time, |stop, counter| {
            let mut pool = groups(engine, POOL, size)?;
            let derived = DerivedKeys::new(0);
            while !stop.load(Ordering::Relaxed) {
                for group in &mut pool {
                    group.run(engine, &derived);
                    counter.fetch_add(group.tasks.len() as u64, Ordering::Relaxed);
                }
            }
            Ok(())
        })?;
        let point = format!("{size:5} B, {}, {count:2} threads", engine.name());
        report.add("cpu", &point, round, gbit_s(done * size as f64, seconds));
        Ok(())
    })
}

/// The device against one core of the CPU, from the medians.
fn ratios(report: &mut Report) {
    for size in [64, 512, 1400, 8192] {
        let of_size = |name: &str| name.starts_with(&format!("{size:5} B"));
        let Some((core, core_value)) = report.best("cpu", |name| of_size(name) && name.ends_with(" 1 threads")) else {
            continue;
        };
        for part in ["kernel", "copies", "feeders"] {
            let found = report.best(part, |name| of_size(name) && !name.contains("per launch"));
            let Some((best, value)) = found else { continue };
            let ratio = value / core_value;
            println!(
                "ratio    {size:5} B: {part} {value:.1} Gbit/s ({best}) is {ratio:.2} × one core, {core_value:.1} ({core})"
            );
            report.add("ratio", &format!("{size:5} B, {part} to one core"), 0, (ratio, "times"));
        }
    }
}

fn measure<B: Backend>(backend: &B, arguments: &Arguments) -> Outcome<bool> {
    let quick = arguments.quick;
    let effort = if quick {
        Effort { rounds: 1, trial: Duration::from_millis(100), part: Duration::from_secs(10), quick }
    } else {
        Effort { rounds: 7, trial: Duration::from_millis(40), part: Duration::from_secs(40), quick }
    };
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("")
        .trim_start_matches(['\t', ' ', ':']);
    let engines: Vec<String> =
        Engine::real().map(|engine| format!("{}: {}", engine.name(), engine.describe())).collect();
    let mut report = Report {
        started: Instant::now(),
        trials: Vec::new(),
        points: BTreeMap::new(),
        failures: Vec::new(),
        head: json!({
            "device": backend.name(), "cpu": model, "engines": engines, "quick": quick,
            "threads": std::thread::available_parallelism()?.get(),
            "rounds": effort.rounds, "trial_ms": effort.trial.as_millis() as u64,
        }),
        path: arguments.json.clone(),
    };
    println!("{} on {model}; {}", backend.name(), engines.join("; "));
    for zero_copy in [false, true].into_iter().take(if B::has_zero_copy() { 2 } else { 1 }) {
        // Always first: figures of wrong bytes are none.
        match verify(backend, zero_copy, effort) {
            Ok(packets) => {
                report.progress(format!("verify: {packets} packets are those of the CPU (zero copy: {zero_copy})"))
            }
            Err(error) => return Err(format!("verify (zero copy: {zero_copy}): {error}; nothing is measured").into()),
        }
    }
    type Part<B> = fn(&B, Effort, &mut Report) -> Outcome<()>;
    let parts: [(&str, Part<B>); 6] = [
        ("copies", copies),
        ("feeders", feeders),
        ("cpu", |_, effort, report| cpu(effort, report)),
        ("kernel", kernel),
        ("latency", latency),
        ("lanes", lanes),
    ];
    for (name, part) in parts.into_iter().filter(|(name, _)| arguments.wants(name)) {
        report.progress(format!("{name}: starts"));
        if let Err(error) = part(backend, effort, &mut report) {
            report.progress(format!("{name}: FAILED: {error}"));
            report.failures.push(format!("{name}: {error}"));
        }
        report.save()?;
    }
    ratios(&mut report);
    report.save()?;
    report.progress("end");
    Ok(report.failures.is_empty())
}

fn run() -> Outcome<bool> {
    let arguments = Arguments::parse()?;
    let api = arguments.api.as_deref().unwrap_or(if cfg!(feature = "cuda") { "cuda" } else { "opencl" });
    match api {
        #[cfg(feature = "cuda")]
        "cuda" => {
            let ptx = arguments.ptx.as_ref().map(std::fs::read).transpose()?;
            measure(&weir_gpu::cuda::Cuda::open(arguments.device, ptx.as_deref())?, &arguments)
        }
        #[cfg(feature = "opencl")]
        "opencl" => measure(&weir_gpu::opencl::OpenCl::open(arguments.device)?, &arguments),
        other => Err(format!("{other}: unknown, or not in this build").into()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("measure: {error}");
            ExitCode::from(2)
        }
    }
}
