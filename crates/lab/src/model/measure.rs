//! Measuring what the cipher alone costs.

use crypto::{Aad, CipherKind, CryptoOp, DerivedKeys, Engine, Job, Keys, Span, Suite};
use dataplane::clock::{ticks, ticks_per_second};
use ipsec::Protocol;

use super::cost::{CostError, CostTable};
use crate::pair::{PairError, Shape, Subject};
use crate::stats::Rng;

/// Packets per timed call: more than a batch of the path, few enough to stay in the second-level cache.
const BATCH: usize = 64;

/// Rounds that are run and not counted.
const WARM_UP: usize = 2;

/// ESP header and the longest IV: where a body begins.
const BODY_AT: usize = 24;

/// Bytes behind the body for the longest ICV.
const ICV_ROOM: usize = 32;

/// Why a cost cannot be measured.
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
    #[error("the engine does not seal {0} bytes with '{1}': lengths are multiples of its block")]
    Refused(usize, String),
}

/// Seals bodies of every length of `lengths` with `suite`, `rounds` times in random order, and keeps the lowest tenth. Lengths that
/// the cipher's block does not divide are left out. `progress` gets (done, total).
///
/// # Errors
/// [`MeasureError`].
pub fn measure_cost(
    suite: &str,
    lengths: &[usize],
    rounds: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<CostTable, MeasureError> {
    let parsed = Suite::parse_esp(suite)?;
    let block = parsed.block_len().max(1);
    let lengths: Vec<usize> = lengths.iter().copied().filter(|l| l.is_multiple_of(block)).collect();
    let tables = Subject::new(Protocol::Esp, Shape::Tunnel, suite, Engine::AwsLc).tables()?;
    let (sending, key) = (&tables[0], tables[0].outbound[0].lanes[0].key);
    let derived = DerivedKeys::new(2);
    let keys = Keys { table: &sending.keys, derived: &derived };
    let largest = lengths.iter().max().copied().unwrap_or_default();
    let mut buffers = vec![vec![0x5a; BODY_AT + largest + ICV_ROOM]; BATCH];
    let per_tick = 1e9 / ticks_per_second();
    let mut rng = Rng::new(1);
    let (mut points, mut iv) = (vec![], 1u64);
    let total = (rounds + WARM_UP) * lengths.len();
    for round in 0..rounds + WARM_UP {
        let mut order = lengths.clone();
        for i in (1..order.len()).rev() {
            order.swap(i, rng.below(i + 1));
        }
        for (done, len) in order.into_iter().enumerate() {
            if done % 64 == 0 {
                progress(round * lengths.len() + done, total);
            }
            let op = operation(&parsed, key, len);
            let mut jobs: Vec<Job<'_>> = buffers
                .iter_mut()
                .map(|buffer| {
                    let mut op = op;
                    op.iv[..8].copy_from_slice(&iv.to_be_bytes());
                    iv += 1;
                    Job::new(op, &mut buffer[..op.icv.end as usize])
                })
                .collect();
            let before = ticks();
            Engine::AwsLc.seal(keys, &mut jobs);
            let spent = ticks() - before;
            if round >= WARM_UP {
                points.push((len as f64, spent as f64 * per_tick / BATCH as f64));
            } else if jobs.iter().any(|job| !job.sealed()) {
                return Err(MeasureError::Refused(len, suite.to_owned()));
            }
        }
    }
    Ok(CostTable::new(suite, points)?)
}

/// The operation that ESP makes for a body of `len` bytes.
fn operation(suite: &Suite, key: crypto::KeyId, len: usize) -> CryptoOp {
    let end = BODY_AT + len;
    let gmac = suite.enc.is_some_and(|enc| enc.kind == CipherKind::AesGmac);
    let (aad, body) = match (suite.is_aead(), gmac) {
        (true, false) => (Span::new(0, 8), Span::new(BODY_AT, end)),
        (true, true) => (Span::new(0, end), Span::new(end, end)),
        (false, _) => (Span::new(0, end), Span::new(BODY_AT, end)),
    };
    let icv = Span::new(end, end + suite.icv_len());
    CryptoOp { key, aad: Aad::InPlace(aad), body, icv, iv: [0; 16] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_bodies_take_longer_with_every_kind_of_suite() {
        for suite in ["aes128gcm16", "chacha20poly1305", "aes128gmac", "aes128-sha256"] {
            let table = measure_cost(suite, &[64, 512, 1024, 4096], 5, &mut |_, _| {}).unwrap();
            assert_eq!(table.points().len(), 4, "{suite}");
            assert!(table.ns(4096.0) > 2.0 * table.ns(64.0), "{suite}: {:?}", table.points());
        }
    }

    #[test]
    fn lengths_that_a_block_does_not_divide_are_left_out() {
        assert_eq!(measure_cost("aes128-sha1", &[16, 20, 32, 48], 3, &mut |_, _| {}).unwrap().points().len(), 3);
        assert!(measure_cost("nonsense", &[64], 3, &mut |_, _| {}).is_err());
    }
}
