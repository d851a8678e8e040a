//! The widest form: one packet after another, each from its counters to its ICV in registers.
//!
//! A small packet has the key stream of its body and the mask of its tag in one or two vectors of
//! four blocks: 230 instructions with all checks, none of which waits for another packet. The
//! processor begins the next packets while one waits for its rounds, whatever their keys are, so
//! that neither a queue of key stream nor steps shared by packets are needed (docs/decisions/0011).
//! A change here should keep a packet short and its branches predictable, or packets no longer
//! overlap.
//!
//! Layout of a small packet, or of the last part of one that has a bulk, in blocks:
//!
//! ```text
//! key stream   mask of the tag   block 1   block 2   …   block n
//! GHASH        associated data   block 1   block 2   …   block n   lengths
//! power of H   n + 2             n + 1     n         …   2         1
//! ```
//!
//! So the powers are read from one address on. After a bulk the sum so far is added to block 1.
//!
//! No branch and no address depends on a key, a plaintext or how an ICV is wrong.

use std::arch::x86_64::*;

use super::key::{GcmKey, POWERS};
use super::lanes::{Lanes, X1, X4};
use super::others;
use super::pass::{self, NUMBERS, Parts, Started, Sums, own_key};
use crate::{Aad, Job, Keys};

/// Bytes of a body up to which a packet is processed without a call: two vectors.
const SHORT: usize = 16 * 7;

/// The most blocks of a last part; with the mask of the tag, which is in front, five vectors.
const LARGEST: usize = 16;

// The bounds in docs/decisions/0011: the first block of a last part is preceded by one more and
// followed by the lengths.
const _: () = assert!(LARGEST + 2 <= POWERS && LARGEST / 4 < NUMBERS.len());

/// Last part of a packet, or all of a small one.
struct Tail {
    /// First block of the hash, reversed: the associated data, or the sum of all before.
    first: __m128i,
    /// True if `first` is a separate block before the last part; otherwise it is the sum so far.
    is_block: bool,
    aad_len: usize,
    body_len: usize,
    /// First byte of the last part.
    rest: *mut u8,
    rest_len: usize,
    icv: *mut u8,
    /// Counter of the first block of the last part.
    counter: u32,
}

/// Seals or opens every job with a key of this engine, and passes the others on.
///
/// # Safety
/// The processor has the features.
#[target_feature(enable = "avx2,aes,pclmulqdq,vaes,vpclmulqdq,avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn run<const SEAL: bool>(keys: Keys<'_>, jobs: &mut [Job<'_>]) {
    let mut next = 0;
    while let Some(job) = jobs.get_mut(next) {
        let Some(key) = own_key(keys, job.op.key) else {
            let is_other = |job: &Job<'_>| own_key(keys, job.op.key).is_none();
            let count = jobs[next..].iter().take_while(|job| is_other(job)).count();
            others::<SEAL>(keys, &mut jobs[next..next + count]);
            next += count;
            continue;
        };
        // SAFETY: this function is compiled for the features, and the caller has them.
        let done = unsafe { packet::<SEAL>(key, job) };
        (job.sealed, job.verified) = if SEAL { (done, false) } else { (false, done) };
        next += 1;
    }
}

/// Seals or opens a packet of any kind. False if it does not fit, or if its ICV is wrong.
///
/// # Safety
/// As for [`run`]; `parts` are those of `job`.
#[target_feature(enable = "avx2,aes,pclmulqdq,vaes,vpclmulqdq,avx512f,avx512bw,avx512vl")]
#[inline(never)]
unsafe fn packet_any<const SEAL: bool>(key: &GcmKey, job: &mut Job<'_>, parts: &Parts) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(begun) = pass::begin::<X4, 4, SEAL>(key, job, parts) else { return false };
        let Started { first, is_block, aad_len, bulk_len } = begun;
        let packet = job.packet.as_mut_ptr();
        let (rest, icv) = (packet.add(parts.body + bulk_len), packet.add(parts.icv));
        let (body_len, rest_len) = (parts.body_len, parts.body_len - bulk_len);
        let counter = 2 + bulk_len as u32 / 16;
        let tail = Tail { first, is_block, aad_len, body_len, rest, rest_len, icv, counter };
        debug_assert!(rest_len <= 16 * LARGEST);
        match rest_len.div_ceil(16) / 4 {
            0 => finish::<1, SEAL>(key, job, &tail),
            1 => finish::<2, SEAL>(key, job, &tail),
            2 => finish::<3, SEAL>(key, job, &tail),
            3 => finish::<4, SEAL>(key, job, &tail),
            _ => finish::<5, SEAL>(key, job, &tail),
        }
    }
}

inlined! {
/// Seals or opens a packet. False if it does not fit, or if its ICV is wrong.
///
/// # Safety
/// As for [`run`].
unsafe fn packet<const SEAL: bool>(key: &GcmKey, job: &mut Job<'_>) -> bool {
    let Some(parts) = Parts::of(key, job) else { return false };
    if parts.body_len > SHORT {
        // SAFETY: the caller's promise.
        return unsafe { packet_any::<SEAL>(key, job, &parts) };
    }
    // SAFETY: the caller's promise; the spans were checked.
    unsafe {
        if !job.fetch() {
            return false;
        }
        let packet = job.packet.as_mut_ptr();
        let (first, aad_len) = match &job.op.aad {
            Aad::Inline(bytes) => {
                let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
                let (high, low) = (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u32::from_be_bytes([i, j, k, l]));
                (_mm_set_epi64x(high as i64, (u64::from(low) << 32) as i64), 12)
            }
            Aad::InPlace(span) => {
                let (from, len) = (span.start as usize, (span.end.wrapping_sub(span.start)) as usize);
                // A whole block is readable at any byte of associated data that is followed by a
                // body and an ICV.
                if !(matches!(len, 1..=16) && span.end as usize <= parts.body && from + 16 <= job.packet.len()) {
                    return packet_any::<SEAL>(key, job, &parts);
                }
                (X1::load(packet.add(from)).first(len).swap().block(), len)
            }
            _ => return packet_any::<SEAL>(key, job, &parts),
        };
        let (rest, icv, len) = (packet.add(parts.body), packet.add(parts.icv), parts.body_len);
        let tail = Tail { first, is_block: true, aad_len, body_len: len, rest, rest_len: len, icv, counter: 2 };
        // The mask of the tag and up to three blocks, or up to seven.
        if len <= 48 { finish::<1, SEAL>(key, job, &tail) } else { finish::<2, SEAL>(key, job, &tail) }
    }
}

/// The counter blocks of a last part, with the first round key added; the first one masks the tag.
///
/// # Safety
/// The features.
unsafe fn counters<const V: usize>(key: &GcmKey, iv: &[u8; 16], first: u32) -> [__m512i; V] {
    // SAFETY: the features are the caller's; eight bytes of the IV are read; the table has as many
    // vectors.
    unsafe {
        let iv = _mm_slli_si128::<4>(_mm_loadl_epi64(iv.as_ptr().cast()));
        let nonce = _mm_or_si128(iv, _mm_cvtsi32_si128(i32::from_le_bytes(key.salt)));
        let base = _mm512_xor_si512(_mm512_broadcast_i32x4(nonce), round_key(key, 0));
        let mut blocks = [base; V];
        for (v, block) in blocks.iter_mut().enumerate() {
            let mut numbers = _mm512_loadu_si512(NUMBERS[v].as_ptr().cast());
            if first != 2 {
                // From the last byte of a block to a number, and back with the high byte first.
                let plus = _mm512_maskz_set1_epi32(if v == 0 { 0x8880 } else { 0x8888 }, first as i32 - 2);
                numbers = _mm512_add_epi32(_mm512_srli_epi32::<24>(numbers), plus);
                numbers = _mm512_shuffle_epi8(numbers, _mm512_set4_epi32(0x0c0d_0e0f, -1, -1, -1));
            }
            *block = _mm512_xor_si512(base, numbers);
        }
        blocks
    }
}

unsafe fn round_key(key: &GcmKey, round: usize) -> __m512i {
    // SAFETY: a round key is a block; the features are the caller's.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(key.round_key(round).cast())) }
}

unsafe fn rounds<const V: usize>(key: &GcmKey, blocks: &mut [__m512i; V], from: usize, to: usize) {
    for round in from..to {
        // SAFETY: the features are the caller's.
        unsafe {
            let round_key = round_key(key, round);
            for block in blocks.iter_mut() {
                *block = _mm512_aesenc_epi128(*block, round_key);
            }
        }
    }
}

/// Encrypts or decrypts the last part, completes the hash, and writes the ICV or compares it. The
/// last part and the mask of the tag are in `V` vectors.
///
/// # Safety
/// The features; `tail` is of `job`, and has more than `4 * V - 5` blocks and at most `4 * V - 1`.
unsafe fn finish<const V: usize, const SEAL: bool>(key: &GcmKey, job: &Job<'_>, tail: &Tail) -> bool {
    // SAFETY: the caller's promise. Vectors before the last one are inside the last part except for
    // the block in front of it; that one and bytes behind the last part are under mask bits that
    // are clear, and such memory is neither read nor written.
    unsafe {
        let blocks = tail.rest_len.div_ceil(16);
        let mut state = counters::<V>(key, &job.op.iv, tail.counter);
        rounds(key, &mut state, 1, 10);
        if key.rounds() > 10 {
            rounds(key, &mut state, 10, 12);
            if key.rounds() > 12 {
                rounds(key, &mut state, 12, 14);
            }
        }
        let last = _mm512_broadcast_i32x4(_mm_loadu_si128(key.last_round_key().cast()));
        let swap = _mm512_set4_epi32(0x0001_0203, 0x0405_0607, 0x0809_0a0b, 0x0c0d_0e0f);
        let lengths = _mm_set_epi64x(8 * tail.aad_len as i64, 8 * tail.body_len as i64);
        let (start, powers) = (tail.rest.wrapping_sub(16), key.powers_from(blocks + 2));
        let (mut mask_of_tag, mut sums) = (last, None::<Sums<X4>>);
        for (v, state) in state.into_iter().enumerate() {
            let mut bytes = u64::MAX;
            if v == V - 1 {
                bytes >>= 64 * V - 16 - tail.rest_len;
            }
            if v == 0 {
                bytes &= !0xffff;
            }
            let whole = v > 0 && v < V - 1;
            let at = start.wrapping_add(64 * v);
            let before = if whole { _mm512_loadu_si512(at.cast()) } else { _mm512_maskz_loadu_epi8(bytes, at.cast()) };
            // The last round adds its key and the text at once.
            let after = _mm512_aesenclast_epi128(state, _mm512_xor_si512(last, before));
            if whole {
                _mm512_storeu_si512(at.cast(), after);
            } else {
                _mm512_mask_storeu_epi8(at.cast(), bytes, after);
            }
            let cipher = if SEAL { _mm512_maskz_mov_epi8(bytes, after) } else { before };
            let mut hashed = _mm512_shuffle_epi8(cipher, swap);
            if v == 0 {
                mask_of_tag = after;
                let (first, zero) = (_mm512_zextsi128_si512(tail.first), _mm512_setzero_si512());
                let first = if tail.is_block { first } else { _mm512_alignr_epi64::<6>(first, zero) };
                hashed = _mm512_xor_si512(hashed, first);
            }
            if v == V - 1 {
                // After the last block, unless that ends the vector.
                let place = (0xf << (4 * ((blocks + 1) % 4))) & 0xfff0;
                hashed = _mm512_xor_si512(hashed, _mm512_maskz_broadcast_i32x4(place, lengths));
            }
            let product = Sums::of(X4::of(hashed), X4::load(powers.wrapping_add(64 * v)));
            sums = Some(sums.map_or(product, |sums| sums.plus(product)));
        }
        let Some(mut sums) = sums else { return false };
        if blocks % 4 == 3 {
            sums = sums.plus(Sums::of(X4::low(lengths), X4::load(key.powers_from(1))));
        }
        let tag = X1::low(sums.reduce()).swap().xor(X1::low(_mm512_castsi512_si128(mask_of_tag)));
        pass::finish_icv::<SEAL>(key, tag, tail.icv)
    }
}
}
