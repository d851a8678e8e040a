//! Measurement of the cost of the cipher alone.

use crypto::{Aad, CipherKind, CryptoOp, DerivedKeys, Engine, Job, Keys, Span, Suite};
use dataplane::Batch;
use ipsec::Protocol;
use ports::clock::ticks;

use super::layout::ciphered_iv;
use crate::host::at_depth;
use crate::host::clock::{TickRate, chain_ticks};
use stats::{RatedTimes, Rng};
use testbed::pair::{PairError, Shape, Subject};
use throughput::{CostError, CostTable};

/// Packets per timed call: a batch of the path.
const BATCH: usize = 256;

/// Largest body in packet memory of the default size, as used by the path: the alignment of packets
/// to cache lines and to each other affects the cost of a cipher.
const USUAL: usize = 2048;

/// Rounds that are run and not counted.
const WARM_UP: usize = 2;

/// Calls with one length in a row; the fastest counts. The path repeats calls of one length, too,
/// and the first call after another length takes up to 5 % more.
const CALLS: usize = 3;

/// Adjacent lengths that are measured in a row. An engine may use wide vectors from one length on,
/// and a processor lowers its clock rate for them: between lengths on both sides the rate would be
/// different before and after most measurements, which then would not count.
const RUN: usize = 24;

/// ESP header.
const HEADER: usize = 8;

/// Reason why a cost cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The suite.
    #[error(transparent)]
    Suite(#[from] crypto::SuiteError),
    /// Its keys.
    #[error(transparent)]
    Pair(#[from] PairError),
    /// Too few lengths.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The engine refused an operation.
    #[error("the engine does not support {0} bytes with '{1}': lengths must be multiples of its block")]
    Refused(usize, String),
}

/// Settings of [`measure_cost`].
#[derive(Clone, Copy, Debug)]
pub struct CostPlan<'a> {
    /// Suite.
    pub suite: &'a str,
    /// Opens bodies instead of sealing them.
    pub opens: bool,
    /// Bytes through the cipher when it seals, an IV of CBC included: what
    /// [`throughput::Work::Cipher`] counts. Lengths that are not a multiple of the cipher's block,
    /// or hold an IV alone, are omitted.
    pub lengths: &'a [usize],
    /// Measurements of each length.
    pub rounds: usize,
}

/// Seals or opens bodies of every length, runs of adjacent ones in random order, and keeps the
/// lowest tenth: a busy SMT sibling makes a measurement slower, never faster. All times are at the
/// median clock rate, which is returned in MHz. `progress` gets (done, total).
///
/// # Errors
/// [`MeasureError`].
pub fn measure_cost(
    plan: CostPlan<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(CostTable, f64), MeasureError> {
    let CostPlan { suite, opens, lengths, rounds } = plan;
    let parsed = Suite::parse_esp(suite)?;
    let block = parsed.block_len().max(1);
    let fits = |len: &usize| len.is_multiple_of(block) && *len > ciphered_iv(&parsed);
    let lengths: Vec<usize> = lengths.iter().copied().filter(fits).collect();
    let tables = Subject::new(Protocol::Esp, Shape::Tunnel, suite, Engine::best()).tables()?;
    let (sending, key) = (&tables[0], tables[0].outbound[0].lanes[0].key);
    let derived = DerivedKeys::new(2);
    let keys = Keys { table: &sending.keys, derived: &derived };
    let largest = lengths.iter().max().copied().unwrap_or_default();
    let mut memory = [Batch::new(BATCH, USUAL), Batch::new(if largest > USUAL { BATCH } else { 0 }, largest)];
    for (batch, bytes) in memory.iter_mut().zip([USUAL, largest]) {
        while batch.push_with(|packet| packet.set(&vec![0x5a; bytes])) {}
    }
    let (mut rng, mut iv) = (Rng::new(1), 1u64);
    let (mut order_of_times, mut times) = (vec![], RatedTimes::new(chain_ticks));
    let total = (rounds + WARM_UP) * lengths.len();
    for round in 0..rounds + WARM_UP {
        for (done, len) in in_runs(&lengths, &mut rng).into_iter().enumerate() {
            if done % 64 == 0 {
                progress(round * lengths.len() + done, total);
            }
            let op = operation(&parsed, key, len, opens);
            let buffers = memory[usize::from(len > USUAL)].packets_mut();
            let mut jobs: Vec<Job<'_>> = buffers
                .iter_mut()
                .map(|packet| {
                    let mut op = op;
                    op.iv[..8].copy_from_slice(&iv.to_be_bytes());
                    iv += 1;
                    Job::new(op, packet.around(HEADER + parsed.iv_len(), op.icv.end as usize))
                })
                .collect();
            let (mut spent, mut sealed) = (u64::MAX, true);
            at_depth(round, || {
                for _ in 0..CALLS {
                    let sealing = ticks();
                    Engine::best().seal(keys, &mut jobs);
                    let mut call = ticks() - sealing;
                    sealed &= jobs.iter().all(Job::sealed);
                    if opens {
                        let opening = ticks();
                        Engine::best().open(keys, &mut jobs);
                        call = ticks() - opening;
                    }
                    spent = spent.min(call);
                }
            });
            if round >= WARM_UP {
                order_of_times.push(len as f64);
                times.add([spent as f64 / BATCH as f64]);
            } else if !sealed || (opens && jobs.iter_mut().any(|job| job.take_ok().is_none())) {
                return Err(MeasureError::Refused(len, suite.to_owned()));
            }
        }
    }
    let (rate, rated) = (TickRate::of_this_machine(), times.finish());
    let known = order_of_times.into_iter().zip(&rated.times);
    let points = known.filter_map(|(len, time)| time.map(|[ticks]| (len, ticks * 1e9 / rate.hz))).collect();
    Ok((CostTable::new(suite, points)?, rate.mhz(rated.reading)))
}

/// `lengths` in runs of adjacent ones, which begin at others each time, in random order.
fn in_runs(lengths: &[usize], rng: &mut Rng) -> Vec<usize> {
    let (first, rest) = lengths.split_at(rng.below(RUN).min(lengths.len()));
    let mut runs: Vec<&[usize]> = std::iter::once(first).chain(rest.chunks(RUN)).collect();
    for i in (1..runs.len()).rev() {
        runs.swap(i, rng.below(i + 1));
    }
    runs.concat()
}

/// The operation that ESP makes for `len` bytes through the cipher. A MAC covers header and IV; an
/// IV of CBC is encrypted when a packet is sealed, and only read when it is opened.
fn operation(suite: &Suite, key: crypto::KeyId, len: usize, opens: bool) -> CryptoOp {
    let payload = HEADER + suite.iv_len();
    let start = payload - ciphered_iv(suite);
    let end = start + len;
    let gmac = suite.enc.is_some_and(|enc| enc.kind == CipherKind::AesGmac);
    let (aad, body) = match (suite.is_aead(), gmac) {
        (true, false) => (Span::new(0, HEADER), Span::new(payload, end)),
        (true, true) => (Span::new(0, end), Span::new(end, end)),
        (false, _) => (Span::new(0, end), Span::new(if opens { payload } else { start }, end)),
    };
    let icv = Span::new(end, end + suite.icv_len());
    CryptoOp { key, aad: Aad::InPlace(aad), body, icv, iv: [0; 16] }
}

#[cfg(test)]
mod tests {
    use super::super::layout::subject_layout;
    use super::*;
    use crate::meter::shape_of;

    #[test]
    fn longer_bodies_take_longer_with_every_kind_of_suite() {
        for suite in ["aes128gcm16", "chacha20poly1305", "aes128gmac", "aes128-sha256"] {
            for opens in [false, true] {
                let lengths = &[64, 512, 1024, 4096];
                let plan = CostPlan { suite, opens, lengths, rounds: 5 };
                let (table, mhz) = measure_cost(plan, &mut |_, _| {}).unwrap();
                assert!((100.0..50_000.0).contains(&mhz), "{mhz} MHz");
                assert_eq!(table.points().len(), 4, "{suite}");
                assert!(table.ns(4096.0) > 1.3 * table.ns(64.0), "{suite}: {:?}", table.points());
            }
        }
    }

    #[test]
    fn neighbours_of_a_length_are_measured_beside_it() {
        let lengths: Vec<usize> = (1..=300).map(|n| 4 * n).collect();
        let mut rng = Rng::new(7);
        let orders = [(); 8].map(|()| in_runs(&lengths, &mut rng));
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, lengths, "each length once");
            let breaks = order.windows(2).filter(|pair| pair[1] != pair[0] + 4).count();
            assert!((8..=lengths.len() / RUN + 1).contains(&breaks), "{breaks}");
        }
        let borders = |order: &Vec<usize>| order.windows(2).position(|pair| pair[1] != pair[0] + 4);
        assert!(orders.iter().any(|order| borders(order) != borders(&orders[0])), "runs begin at other lengths");
        assert_eq!(in_runs(&[], &mut rng), [] as [usize; 0]);
    }

    /// Otherwise steps of the MAC's blocks are at other sizes than those of the path.
    #[test]
    fn the_cipher_alone_does_the_work_of_the_path() {
        for name in ["aes128gcm16", "chacha20poly1305", "aes128-sha256", "aes128ctr-sha256", "3des-sha1"] {
            let (suite, subject) =
                (Suite::parse_esp(name).unwrap(), Subject::new(Protocol::Esp, Shape::Tunnel, name, Engine::best()));
            let [sending, _] = subject.tables().unwrap();
            let [src, dst] = subject.packet_addresses();
            for size in 64..200 {
                let (path, _) =
                    shape_of(&sending, &testbed::packet::udp(src, dst, 4000, 4001, size, wire::IpProto::UDP));
                let len = subject_layout(&subject).unwrap().bytes(throughput::Work::Cipher, size as f64);
                let alone = operation(&suite, path.key, len as usize, false);
                let work = |op: &CryptoOp| match op.aad {
                    Aad::InPlace(covered) => [covered, op.body, op.icv].map(|span| span.end - span.start),
                    other => panic!("{other:?}"),
                };
                assert_eq!(work(&alone), work(&path), "{name} {size}");
            }
        }
    }

    #[test]
    fn lengths_that_a_block_does_not_divide_are_left_out() {
        let lengths = &[16, 20, 32, 48, 64];
        let plan = CostPlan { suite: "aes128-sha1", opens: false, lengths, rounds: 3 };
        assert_eq!(measure_cost(plan, &mut |_, _| {}).unwrap().0.points().len(), 3);
        assert!(measure_cost(CostPlan { suite: "nonsense", ..plan }, &mut |_, _| {}).is_err());
    }
}
