//! The independent check of the AES-GCM of this crate (docs/decisions/0011): results against two
//! libraries, and a search for times that depend on secrets. Also the time of a packet with one key
//! or many.
//!
//! ```text
//! cargo run --release -p weir-crypto --example aes_gcm_check -- compare 1000000000   # blocks
//! cargo run --release -p weir-crypto --example aes_gcm_check -- timing 60            # seconds
//! cargo run --release -p weir-crypto --example aes_gcm_check -- keys 30              # seconds
//! ```
//!
//! Exit status 1: a result differs, or a time depends on a secret.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use aes_gcm::aead::consts::U12;
use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::aes::{Aes128, Aes192, Aes256};
use weir_crypto::{Aad, CryptoOp, DerivedKeys, Engine, Job, KeyId, KeyMaterial, KeyTable, Keys, Span, Suite};

/// A generator of reproducible numbers (SplitMix64), fast enough not to be what takes the time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.next().to_le_bytes()[..part.len()]);
        }
    }
}

/// AES-GCM of RustCrypto, in the key lengths.
enum Second {
    Aes128(Box<aes_gcm::AesGcm<Aes128, U12>>),
    Aes192(Box<aes_gcm::AesGcm<Aes192, U12>>),
    Aes256(Box<aes_gcm::AesGcm<Aes256, U12>>),
}

impl Second {
    fn new(key: &[u8]) -> Self {
        let fits = "a key of this length";
        match key.len() {
            16 => Self::Aes128(Box::new(aes_gcm::AesGcm::new_from_slice(key).expect(fits))),
            24 => Self::Aes192(Box::new(aes_gcm::AesGcm::new_from_slice(key).expect(fits))),
            _ => Self::Aes256(Box::new(aes_gcm::AesGcm::new_from_slice(key).expect(fits))),
        }
    }

    fn seal(&self, nonce: &[u8; 12], aad: &[u8], body: &mut [u8]) -> [u8; 16] {
        let (nonce, body) = (nonce.into(), InOutBuf::from(body));
        let tag = match self {
            Self::Aes128(key) => key.encrypt_inout_detached(nonce, aad, body),
            Self::Aes192(key) => key.encrypt_inout_detached(nonce, aad, body),
            Self::Aes256(key) => key.encrypt_inout_detached(nonce, aad, body),
        };
        tag.expect("a short message").into()
    }
}

/// Suites of the comparison, each with several keys.
const SUITES: [&str; 6] = ["aes128gcm16", "aes256gcm16", "aes192gcm16", "aes128gcm12", "aes256gcm12", "aes256gcm8"];
/// Keys of a table.
const KEYS: usize = 24;
/// Tables are replaced after so many batches.
const BATCHES_PER_TABLE: u64 = 200;

/// The same keys for three implementations.
struct Table {
    suites: Vec<Suite>,
    salts: Vec<[u8; 4]>,
    own: KeyTable,
    first: KeyTable,
    second: Vec<Second>,
}

impl Table {
    fn new(engine: Engine, numbers: &mut Numbers) -> Self {
        let (mut own, mut first) = (KeyTable::default(), KeyTable::default());
        let (mut suites, mut salts, mut second) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..KEYS {
            let suite = Suite::parse_esp(SUITES[i % SUITES.len()]).expect("a suite of this crate");
            let mut enc = vec![0; suite.enc_material_len()];
            numbers.fill(&mut enc);
            let (key, salt) = enc.split_at(enc.len() - 4);
            let material = KeyMaterial { enc: &enc, integ: &[] };
            own.insert(Arc::new(engine.expand(&suite, material).expect("a key of the right length")));
            first.insert(Arc::new(Engine::AwsLc.expand(&suite, material).expect("the same key")));
            second.push(Second::new(key));
            salts.push(salt.try_into().expect("four bytes"));
            suites.push(suite);
        }
        Self { suites, salts, own, first, second }
    }

    /// A packet of up to `largest` bytes of a random key.
    fn packet(&self, numbers: &mut Numbers, largest: u64) -> (CryptoOp, Vec<u8>) {
        let key = numbers.below(KEYS as u64) as usize;
        let body_len = match numbers.below(8) {
            0 => numbers.below(20),
            1 => 16 * numbers.below(largest / 16),
            2 => 230 + numbers.below(60),
            3 => numbers.below(largest),
            _ => numbers.below(1600),
        } as usize;
        let aad_len =
            [8, 12, 8, 12, 16, 0, numbers.below(17) as usize, numbers.below(200) as usize][numbers.below(8) as usize];
        let shift = numbers.below(67) as usize;
        let body = Span::new(shift + aad_len, shift + aad_len + body_len);
        let end = body.end as usize + self.suites[key].icv_len();
        let mut packet = vec![0; end + numbers.below(20) as usize];
        numbers.fill(&mut packet);
        let mut iv = [0; 16];
        numbers.fill(&mut iv[..8]);
        let aad = match numbers.below(4) {
            0 => {
                let mut inline = [0; 12];
                numbers.fill(&mut inline);
                Aad::Inline(inline)
            }
            _ => Aad::InPlace(Span::new(shift, shift + aad_len)),
        };
        let icv = Span::new(body.end as usize, end);
        (CryptoOp { key: KeyId(key as u32), aad, body, icv, iv }, packet)
    }

    /// The packet as RustCrypto seals it.
    fn seal_second(&self, op: &CryptoOp, packet: &mut [u8]) {
        let key = op.key.0 as usize;
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.salts[key]);
        nonce[4..].copy_from_slice(&op.iv[..8]);
        let aad = match op.aad {
            Aad::Inline(bytes) => bytes.to_vec(),
            Aad::InPlace(span) => packet[span.range()].to_vec(),
            _ => unreachable!("not made above"),
        };
        let tag = self.second[key].seal(&nonce, &aad, &mut packet[op.body.range()]);
        let icv = op.icv.range();
        let len = icv.len();
        packet[icv].copy_from_slice(&tag[..len]);
    }
}

/// Blocks that were compared, or what differed first.
struct Compared {
    blocks: u64,
    packets: u64,
    difference: Option<String>,
}

/// Seals and opens random batches until `blocks` blocks are done. `spoil` changes the engine's
/// result, so that a test sees a difference found.
fn compare(engine: Engine, blocks: u64, seed: u64, progress: bool, spoil: impl Fn(u64, &mut [u8])) -> Compared {
    let (mut numbers, none) = (Numbers(seed), DerivedKeys::new(0));
    let mut done = Compared { blocks: 0, packets: 0, difference: None };
    let (began, mut shown) = (Instant::now(), Instant::now());
    let mut table = Table::new(engine, &mut numbers);
    for batch in 1.. {
        if done.blocks >= blocks {
            break;
        }
        if batch % BATCHES_PER_TABLE == 0 {
            table = Table::new(engine, &mut numbers);
        }
        let largest = if numbers.below(16) == 0 { 9000 } else { 2000 };
        let most = if numbers.below(2) == 0 { 64 } else { 6 };
        let count = 1 + numbers.below(most);
        let (ops, clear): (Vec<_>, Vec<_>) = (0..count).map(|_| table.packet(&mut numbers, largest)).unzip();
        let run = |table: &KeyTable, engine: Engine, packets: &mut Vec<Vec<u8>>, opens: bool| -> Vec<bool> {
            let mut jobs: Vec<_> = ops.iter().zip(packets).map(|(op, packet)| Job::new(*op, packet)).collect();
            let keys = Keys { table, derived: &none };
            if opens {
                engine.open(keys, &mut jobs)
            } else {
                engine.seal(keys, &mut jobs)
            }
            jobs.iter_mut().map(|job| if opens { job.take_ok().is_some() } else { job.sealed() }).collect()
        };
        let [mut own, mut first, mut second] = [(); 3].map(|()| clear.clone());
        let sealed = run(&table.own, engine, &mut own, false);
        run(&table.first, Engine::AwsLc, &mut first, false);
        for (op, packet) in ops.iter().zip(&mut second) {
            table.seal_second(op, packet);
        }
        spoil(batch, &mut own[0]);
        // Every fourth packet is forged in one bit that the ICV covers, or is.
        let mut received = own.clone();
        let forged: Vec<bool> = (0..ops.len()).map(|_| numbers.below(4) == 0).collect();
        for ((op, packet), _) in ops.iter().zip(&mut received).zip(&forged).filter(|(_, forged)| **forged) {
            let first = if let Aad::InPlace(aad) = op.aad { aad.start } else { op.body.start };
            let (from, to) = (u64::from(first), u64::from(op.icv.end));
            packet[(from + numbers.below(to - from)) as usize] ^= 1 << numbers.below(8);
        }
        let opened = run(&table.own, engine, &mut received, true);
        for i in 0..ops.len() {
            let suite = table.suites[ops[i].key.0 as usize].to_string();
            let what = || format!("packet {i} of {count} in batch {batch}, {suite}, {:?}", ops[i]);
            let wrong = if !sealed[i] {
                "was not sealed"
            } else if own[i] != first[i] {
                "differs from AWS-LC"
            } else if own[i] != second[i] {
                "differs from RustCrypto"
            } else if opened[i] == forged[i] {
                if forged[i] { "was forged and accepted" } else { "was not opened" }
            } else if opened[i] && received[i][..ops[i].icv.start as usize] != clear[i][..ops[i].icv.start as usize] {
                "was opened to another text"
            } else {
                done.blocks += ops[i].body.len().div_ceil(16) as u64;
                done.packets += 1;
                continue;
            };
            done.difference = Some(format!("{} {wrong}", what()));
            return done;
        }
        if progress && shown.elapsed() > Duration::from_secs(2) {
            shown = Instant::now();
            let share = (done.blocks as f64 / blocks as f64).clamp(1e-9, 1.0);
            let left = began.elapsed().mul_f64((1.0 - share) / share).as_secs();
            eprintln!("aes_gcm_check: {:.0} % of {blocks} blocks, {left} s left", 100.0 * share);
        }
    }
    done
}

/// Samples of two classes: count, mean and sum of squared deviations of each (Welford).
#[derive(Clone, Copy, Default)]
struct Classes([(f64, f64, f64); 2]);

impl Classes {
    fn add(&mut self, class: usize, value: f64) {
        let (n, mean, squares) = &mut self.0[class];
        *n += 1.0;
        let off = value - *mean;
        *mean += off / *n;
        *squares += off * (value - *mean);
    }

    /// Welch's t: the difference of the means in standard errors.
    fn t(&self) -> f64 {
        let [(n, mean, squares), (m, other, more)] = self.0;
        if n < 2.0 || m < 2.0 {
            return 0.0;
        }
        (mean - other) / (squares / (n - 1.0) / n + more / (m - 1.0) / m).sqrt()
    }
}

/// Shares of the samples below which a test counts them: an interruption is longer than any
/// dependence on data, which some of the cuts therefore leave alone (Reparaz and others, "Dude, is
/// my code constant time?", 2017).
const CUTS: [f64; 6] = [0.5, 0.7, 0.8, 0.9, 0.95, 1.0];
/// Above it a time depends on the class; the authors call 4.5 a hint and 10 a proof.
const LIMIT: f64 = 4.5;
/// Samples of the first round, whose quantiles are the cuts.
const FIRST: usize = 20_000;

/// What distinguishes the classes of a test of times.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Secret {
    /// The key is zero, or random.
    Key,
    /// The text is zero, or random.
    SealedText,
    /// The same when opened.
    OpenedText,
    /// The ICV is wrong in its first byte, or in its last.
    WrongIcv,
    /// Control: a comparison of bytes that ends with the first difference has to be found.
    EarlyExit,
}

/// A test of times: the secret, the suite, keys that the packets of a call take in turns, bytes of
/// a packet.
type Timed = (Secret, &'static str, usize, usize);

/// The greatest |t| over the cuts, and the samples.
fn timing(engine: Engine, (secret, suite, keys_of_call, len): Timed, time: Duration) -> (f64, usize) {
    let mut numbers = Numbers(len as u64 ^ 0xd1ce);
    let suite = Suite::parse_esp(suite).expect("a suite of this crate");
    // A new key replaces the one before in the same memory, so that classes do not differ by
    // addresses.
    let table_of = |enc: &[u8]| {
        let mut table = KeyTable::default();
        for _ in 0..keys_of_call {
            table.insert(Arc::new(engine.expand(&suite, KeyMaterial { enc, integ: &[] }).expect("its length")));
        }
        table
    };
    let mut enc = vec![0x5a; suite.enc_material_len()];
    let mut table = table_of(&enc);
    let none = DerivedKeys::new(0);
    /// Packets of a call.
    const BATCH: usize = 8;
    let mut fresh = vec![0; 8 + len + 16];
    let (mut packets, mut kept) = (vec![fresh.clone(); BATCH], Vec::with_capacity(FIRST));
    let (mut limits, mut tests) = ([f64::INFINITY; CUTS.len()], [Classes::default(); CUTS.len()]);
    let (began, mut samples) = (Instant::now(), 0);
    while began.elapsed() < time || samples < 2 * FIRST {
        let class = (numbers.next() & 1) as usize;
        let random = class == 1;
        let (body, icv) = (Span::new(8, 8 + len), Span::new(8 + len, 8 + len + 16));
        let aad = Aad::InPlace(Span::new(0, 8));
        let mut op = CryptoOp { key: KeyId(0), aad, body, icv, iv: [0; 16] };
        numbers.fill(&mut enc);
        if secret == Secret::Key {
            let mask = black_box(0u8.wrapping_sub(class as u8));
            enc.iter_mut().for_each(|byte| *byte &= mask);
            drop(table);
            table = table_of(&enc);
        }
        let keys = Keys { table: &table, derived: &none };
        // Up to the clock, both classes run the same instructions on the same addresses, and none
        // branches on the class: its history would change the predictions of what is measured.
        let texts = matches!(secret, Secret::SealedText | Secret::OpenedText);
        let mask = black_box(0u8.wrapping_sub(class as u8 | u8::from(!texts)));
        for packet in &mut packets {
            numbers.fill(&mut fresh);
            fresh.iter_mut().for_each(|byte| *byte &= mask);
            packet.copy_from_slice(&fresh);
        }
        numbers.fill(&mut op.iv[..8]);
        let job = |(i, packet)| Job::new(CryptoOp { key: KeyId((i % keys_of_call) as u32), ..op }, packet);
        let mut jobs: Vec<_> = packets.iter_mut().map(Vec::as_mut_slice).enumerate().map(job).collect();
        let ticks = match secret {
            Secret::Key | Secret::SealedText => timed(|| engine.seal(keys, &mut jobs)),
            Secret::OpenedText | Secret::WrongIcv => {
                engine.seal(keys, &mut jobs);
                if secret == Secret::WrongIcv {
                    // Both bytes are written in both classes.
                    for job in &mut jobs {
                        job.packet[icv.start as usize] ^= u8::from(!random);
                        job.packet[icv.end as usize - 1] ^= u8::from(random);
                    }
                }
                timed(|| engine.open(keys, &mut jobs))
            }
            Secret::EarlyExit => {
                let (expected, mut found) = (vec![7u8; len], vec![7u8; len]);
                found[if random { len - 1 } else { 0 }] ^= 1;
                timed(|| {
                    for _ in 0..BATCH {
                        let differs = |(a, b): (&u8, &u8)| black_box(a) != b;
                        black_box(expected.iter().zip(&found).position(differs));
                    }
                })
            }
        };
        samples += 1;
        if kept.len() < FIRST {
            kept.push(ticks);
            if kept.len() == FIRST {
                kept.sort_by(f64::total_cmp);
                limits = CUTS.map(|cut| kept[((FIRST - 1) as f64 * cut) as usize]);
                limits[CUTS.len() - 1] = f64::INFINITY;
            }
        } else {
            let counts = tests.iter_mut().zip(limits).filter(|(_, limit)| ticks <= *limit);
            counts.for_each(|(test, _)| test.add(class, ticks));
        }
    }
    (tests.iter().map(|test| test.t().abs()).fold(0.0, f64::max), samples)
}

/// Nanoseconds that `work` takes.
fn timed(work: impl FnOnce()) -> f64 {
    // What was written before is in the cache then.
    fence(Ordering::SeqCst);
    let began = Instant::now();
    work();
    began.elapsed().as_nanos() as f64
}

/// Packets of calls in [`packet_time`].
const PACKETS: usize = 64;

/// Nanoseconds of a packet, in calls of `call` packets of all keys in turns: the median of rounds
/// over all keys. To seal, and to open, which takes as long with the invalid ICVs that it has here.
fn packet_time(engine: Engine, suite: &Suite, (len, keys, call): (usize, usize, usize), time: Duration) -> [f64; 2] {
    let mut numbers = Numbers(3);
    let mut made: Vec<_> = (0..keys)
        .map(|_| {
            let mut enc = vec![0; suite.enc_material_len()];
            numbers.fill(&mut enc);
            Arc::new(engine.expand(suite, KeyMaterial { enc: &enc, integ: &[] }).expect("its length"))
        })
        .collect();
    // Neighbours in the table are not neighbours in memory.
    let mut table = KeyTable::default();
    while !made.is_empty() {
        table.insert(made.swap_remove(numbers.below(made.len() as u64) as usize));
    }
    let none = DerivedKeys::new(0);
    let keys_of = Keys { table: &table, derived: &none };
    let mut packets = vec![vec![0; 16 + len + 16]; PACKETS];
    let aad = Aad::InPlace(Span::new(0, 8));
    let op =
        CryptoOp { key: KeyId(0), aad, body: Span::new(16, 16 + len), icv: Span::new(16 + len, 32 + len), iv: [0; 16] };
    let mut jobs: Vec<_> = packets.iter_mut().map(|packet| Job::new(op, packet)).collect();
    let mut clock: Vec<_> = (0..101).map(|_| timed(|| ())).collect();
    clock.sort_by(f64::total_cmp);
    let (mut rounds, began) = ([Vec::new(), Vec::new()], Instant::now());
    while began.elapsed() < time || rounds[1].is_empty() {
        for (open, rounds) in rounds.iter_mut().enumerate() {
            let (mut sum, mut count) = (0.0, 0);
            while count < keys.max(PACKETS) {
                for (i, job) in jobs.iter_mut().enumerate() {
                    job.op.key = KeyId(((count + i) % keys) as u32);
                    job.op.iv[7] = i as u8;
                }
                sum -= clock[50];
                sum += timed(|| {
                    for jobs in jobs.chunks_mut(call) {
                        if open == 1 { engine.open(keys_of, jobs) } else { engine.seal(keys_of, jobs) }
                    }
                });
                count += PACKETS;
            }
            rounds.push(sum / count as f64);
        }
    }
    rounds.map(|mut rounds| {
        rounds.sort_by(f64::total_cmp);
        rounds[rounds.len() / 2]
    })
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let engine = Engine::Vaes;
    if let Some(why) = engine.unavailable() {
        println!("skipped: {why}");
        return ExitCode::SUCCESS;
    }
    match (words.first().map(String::as_str), words.get(1).and_then(|number| number.parse::<u64>().ok())) {
        (Some("compare"), Some(blocks)) => {
            let began = Instant::now();
            let done = compare(engine, blocks, 1, true, |_, _| {});
            let (packets, seconds) = (done.packets, began.elapsed().as_secs());
            let failed = done.difference.is_some() || done.blocks < blocks;
            println!("{}: {} blocks of {packets} packets in {seconds} s", engine.describe(), done.blocks);
            match done.difference {
                None => println!("all as AWS-LC and RustCrypto have them"),
                Some(difference) => println!("DIFFERENT: {difference}"),
            }
            ExitCode::from(u8::from(failed))
        }
        (Some("timing"), Some(seconds)) => {
            println!("{}; |t| above {LIMIT}: the time depends on the class", engine.describe());
            let (short, long) = ("aes128gcm16", "aes256gcm16");
            let cases: [Timed; 10] = [
                (Secret::Key, short, 1, 64),
                (Secret::Key, long, 1, 1400),
                (Secret::Key, short, 3, 64),
                (Secret::SealedText, short, 1, 64),
                (Secret::SealedText, long, 1, 1400),
                (Secret::SealedText, long, 3, 64),
                (Secret::OpenedText, short, 3, 64),
                (Secret::OpenedText, short, 1, 1400),
                (Secret::WrongIcv, short, 1, 64),
                (Secret::EarlyExit, short, 1, 16),
            ];
            let mut wrong = 0;
            for case in cases {
                let time = Duration::from_secs(seconds) / cases.len() as u32;
                let (t, samples) = timing(engine, case, time);
                let (secret, suite, keys, len) = case;
                let expected = (t > LIMIT) == (secret == Secret::EarlyExit);
                wrong += u8::from(!expected);
                let verdict = if expected { "as expected" } else { "UNEXPECTED" };
                println!("{secret:?}, {suite}, {keys} keys, {len} bytes: |t| {t:.1} of {samples} samples, {verdict}");
            }
            ExitCode::from(u8::from(wrong > 0))
        }
        (Some("keys"), Some(seconds)) => {
            println!("ns per packet, sealed / opened, calls of 16 packets; {}", engine.describe());
            let cases = [68, 516, 1404].map(|len| [1, 64, 1000].map(|keys| (len, keys, 16)));
            for (suite, case) in ["aes128gcm16", "aes256gcm16"]
                .iter()
                .flat_map(|suite| cases.concat().into_iter().map(move |case| (suite, case)))
            {
                let parsed = Suite::parse_esp(suite).expect("a suite of this crate");
                for engine in Engine::real() {
                    let time = Duration::from_secs(seconds) / 54;
                    let [seal, open] = packet_time(engine, &parsed, case, time);
                    println!("{suite}, {} bytes, {} keys, {}: {seal:.1} / {open:.1}", case.0, case.1, engine.name());
                }
            }
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: aes_gcm_check compare BLOCKS | timing SECONDS | keys SECONDS");
            ExitCode::from(2)
        }
    }
}

#[test]
fn every_engine_is_as_two_libraries_and_a_wrong_bit_is_found() {
    for engine in Engine::real() {
        let done = compare(engine, 20_000, 3, false, |_, _| {});
        assert_eq!(done.difference, None, "{}", engine.name());
        assert!(done.blocks >= 20_000);
        let spoilt = compare(engine, 20_000, 3, false, |batch, packet| {
            let last = packet.len() / 2;
            packet[last] ^= u8::from(batch == 5) << 6;
        });
        assert!(spoilt.difference.is_some_and(|text| text.contains("batch 5")), "{}", engine.name());
    }
}

#[test]
fn a_comparison_that_ends_early_is_found_by_its_time() {
    let (t, samples) = timing(Engine::AwsLc, (Secret::EarlyExit, "aes128gcm16", 1, 16), Duration::ZERO);
    assert!(t > LIMIT && samples >= 2 * FIRST, "{t}");
}

#[test]
fn a_longer_packet_takes_longer_with_every_number_of_keys() {
    let suite = Suite::parse_esp("aes128gcm16").expect("a suite of this crate");
    for keys in [1, 3, 100] {
        let time = |len| packet_time(Engine::AwsLc, &suite, (len, keys, 16), Duration::ZERO);
        let (short, long) = (time(0), time(60_000));
        assert!(short[0] > 0.0 && short[0] < long[0] && short[1] > 0.0 && short[1] < long[1], "{short:?} {long:?}");
    }
}
