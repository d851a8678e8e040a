//! One pass over a batch: many packets in flight, for vectors of one block or two. Vectors of four
//! share the bulk of a packet and the functions of GHASH ([`super::direct`]).
//!
//! A packet has a bulk and a last part. The bulk, whole steps of [`Lanes::BLOCKS`] × `N` blocks, is
//! encrypted directly, with AES of one step interleaved with the multiplications of another. The
//! last part (up to a step, or all of a small packet) is combined with that of other packets:
//!
//! 1. *Enter*: checks the operation and appends the packet's counter blocks to those of the
//!    previous packets: first the one whose encryption masks the tag, then those of the last part.
//! 2. *Encrypt*: as soon as a step of counter blocks has come together, whosever they are, it
//!    goes through AES at once. Packets of one key share a vector, and of several keys a step.
//! 3. *Finish*: packets whose key stream was ready before this step are encrypted and hashed.
//!    Nothing in it depends on the AES just started, so the processor executes both in parallel.
//!
//! No branch and no address depends on a key, a plaintext or how an ICV is wrong.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::key::{Block, GcmKey, POWERS};
use super::lanes::{Lanes, Part, X1};
use super::others;
use crate::{Aad, Job, KeyId, Keys, Span};

/// The three sums of half products of a GHASH, reduced once at the end.
#[derive(Clone, Copy)]
pub(super) struct Sums<L> {
    low: L,
    middle: L,
    high: L,
}

impl<L: Lanes> Sums<L> {
    inlined! {
        pub(super) fn of(block: L, power: L) -> Self {
            Self {
                low: block.product::<0x00>(power),
                middle: block.product::<0x01>(power).xor(block.product::<0x10>(power)),
                high: block.product::<0x11>(power),
            }
        }

        /// See [`Lanes::pinned`].
        fn pinned(self) -> Self {
            Self { low: self.low.pinned(), middle: self.middle.pinned(), high: self.high.pinned() }
        }

        pub(super) fn plus(self, other: Self) -> Self {
            Self { low: self.low.xor(other.low), middle: self.middle.xor(other.middle), high: self.high.xor(other.high) }
        }

        /// The sum of all lanes modulo x¹²⁸ + x¹²⁷ + x¹²⁶ + x¹²¹ + 1, times x⁻¹²⁸ (POLYVAL's
        /// dot): the low quarter is cancelled by a multiple of the polynomial, then the next. Each
        /// lane is reduced before they are added: so there is one sum of lanes instead of three.
        pub(super) fn reduce(self) -> __m128i {
            // SAFETY: a value of `L` exists only where the features do.
            unsafe {
                let polynomial = L::splat(_mm_set_epi64x(0, 0xc2u64.rotate_left(56) as i64));
                let middle = self.middle.xor(self.low.turned()).xor(self.low.product::<0x00>(polynomial));
                self.high.xor(middle.turned()).xor(middle.product::<0x00>(polynomial)).fold()
            }
        }
    }
}

/// Capacity of the ring of key stream blocks; the first ones are already used when it wraps.
const CAPACITY: usize = 256;
/// The most blocks that one packet puts there: the one for the tag and a last part.
const LARGEST: usize = POWERS - 1;
/// Packets that wait to be finished: at most as many as have blocks in two steps and a packet.
const SLOTS: usize = 64;

/// Vectors in a step, which has up to sixteen blocks.
pub(super) const N: usize = 8;

// The bounds in docs/decisions/0011: a packet begins below `CAPACITY - LARGEST` and writes at most
// one block and `LARGEST`, rounded up to vectors of four; a step of 16 begins below the capacity;
// packets that wait have a block each in two steps and a packet; the first block of a last part has
// the power after those of its blocks and the lengths.
const _: () = assert!(CAPACITY - LARGEST + LARGEST.next_multiple_of(4) <= CAPACITY + 16);
const _: () = assert!(15 + LARGEST + 16 <= SLOTS && LARGEST < POWERS);

/// Bytes of a body up to which a packet has no bulk.
const SHORT: usize = 16 * (LARGEST - 1);

/// Counter blocks, which become key stream where they are; some are written beyond the last.
#[repr(C, align(64))]
struct Stream([Block; CAPACITY + 16]);

/// A width and what is called rather than inlined: each function is compiled for the features of
/// the width, and has its registers for itself.
pub(super) trait Width {
    /// The vectors.
    type L: Part;

    /// [`begin_any`].
    ///
    /// # Safety
    /// As there.
    unsafe fn begin_any<const SEAL: bool>(
        key: &GcmKey,
        job: &mut Job<'_>,
        parts: &Parts,
        stream: *mut u8,
    ) -> Option<Started>;

    /// [`encrypt`] of `vectors` vectors, fewer than a step.
    ///
    /// # Safety
    /// As there.
    unsafe fn encrypt_some(key: &GcmKey, at: *mut u8, vectors: usize);

    /// [`encrypt_each`] of `vectors` vectors, at most a step.
    ///
    /// # Safety
    /// As there.
    unsafe fn encrypt_each(keys: &[*const GcmKey; N], at: *mut u8, vectors: usize);
}

/// A packet between entering and finishing.
#[derive(Clone, Copy)]
struct Slot {
    /// First block of the hash, reversed: the associated data or the sum of all before.
    first: __m128i,
    /// The block of lengths, reversed.
    lengths: __m128i,
    key: *const GcmKey,
    /// Its blocks of key stream.
    own: *const u8,
    /// The last part.
    rest: *mut u8,
    icv: *mut u8,
    rest_len: u32,
    /// Accessible bytes from `rest` on: to the end of the packet, or more than needed.
    room: u32,
    /// End of its key stream blocks, counted over the batch.
    end: usize,
    job: usize,
    /// True if `first` is a separate block before the last part; otherwise it is the sum so far.
    is_block: bool,
}

/// Checked spans of the parts of a packet.
pub(super) struct Parts {
    pub(super) body: usize,
    pub(super) body_len: usize,
    pub(super) icv: usize,
    /// The nonce and a counter of zero, reversed, as all counters here are until they are
    /// encrypted.
    counter: X1,
}

/// Remaining work of a packet after its first step.
pub(super) struct Started {
    pub(super) first: __m128i,
    pub(super) is_block: bool,
    pub(super) aad_len: usize,
    pub(super) bulk_len: usize,
}

inlined! {
/// Seals or opens every job with a key of this engine, and passes the others on. If `SEVERAL`,
/// packets of several keys share a step; otherwise another key begins a new one.
///
/// # Safety
/// The processor has the features of `F`, and the function into which this is inlined is
/// compiled for them.
pub(super) unsafe fn run<F: Width, const SEAL: bool, const SEVERAL: bool>(keys: Keys<'_>, jobs: &mut [Job<'_>]) {
    // The ring has a step of 16 behind its last block.
    const { assert!(N * F::L::BLOCKS <= 16) };
    let lanes = F::L::BLOCKS;
    let step = N * lanes;
    let mut stream = MaybeUninit::<Stream>::uninit();
    let stream = stream.as_mut_ptr().cast::<u8>();
    let mut slots = [const { MaybeUninit::<Slot>::uninit() }; SLOTS];
    let (mut oldest, mut newest) = (0, 0);
    // Key stream blocks, counted over the batch; the index of a block is its number modulo the
    // capacity.
    let (mut written, mut encrypted) = (0, 0);
    // First block of the current key, and the keys of vectors before it that wait for encryption.
    let mut of_key = 0;
    let mut others_of = [const { MaybeUninit::<*const GcmKey>::uninit() }; CAPACITY];
    // First block of the packet that entered last.
    let mut last = 0;
    let (mut next, mut id, mut key): (usize, KeyId, Option<&GcmKey>) = (0, KeyId(0), None);
    loop {
        while next < jobs.len() && written - encrypted < step {
            let job = &mut jobs[next];
            if key.is_none() || job.op.key != id {
                let other = own_key(keys, job.op.key);
                if let Some(before) = key.filter(|_| written != encrypted) {
                    if !SEVERAL || other.is_none() {
                        break;
                    }
                    // SAFETY: the caller ensures the features; a vector from `written` on is in the
                    // stream.
                    unsafe { complete::<F::L>(stream, last, written) };
                    written = written.next_multiple_of(lanes);
                    for at in (of_key.max(encrypted)..written).step_by(lanes) {
                        others_of[at % CAPACITY].write(before);
                    }
                }
                (id, key, of_key) = (job.op.key, other, written);
            }
            let Some(key) = key else {
                let is_other = |job: &Job<'_>| own_key(keys, job.op.key).is_none();
                let count = jobs[next..].iter().take_while(|job| is_other(job)).count();
                others::<SEAL>(keys, &mut jobs[next..next + count]);
                next += count;
                continue;
            };
            // A step must not go on at the start of the ring: a vector may end with it.
            let at = written % CAPACITY;
            if at >= CAPACITY - LARGEST || SEVERAL && at == 0 && written != encrypted {
                if written != encrypted {
                    break;
                }
                written = written.next_multiple_of(CAPACITY);
                encrypted = written;
            }
            (job.sealed, job.verified) = (false, false);
            debug_assert!(newest - oldest < SLOTS);
            let slot = slots[newest % SLOTS].as_mut_ptr();
            // SAFETY: the features are the caller's; there is room for the packet's blocks.
            if let Some(end) = unsafe { enter::<F, SEAL>(key, job, next, stream, written, slot) } {
                (last, written) = (written, end);
                newest += 1;
            }
            next += 1;
        }
        let ready = encrypted;
        if let Some(key) = key.filter(|_| written != encrypted) {
            // SAFETY: the caller ensures the features. All blocks below `written` are initialised,
            // and those which complete the last vector.
            unsafe {
                let at = stream.add(16 * (encrypted % CAPACITY));
                if SEVERAL && encrypted < of_key {
                    complete::<F::L>(stream, last, written);
                    let vectors = (written - encrypted).div_ceil(lanes).min(N);
                    let mut each = [std::ptr::from_ref(key); N];
                    for (block, key) in (encrypted..of_key).step_by(lanes).zip(&mut each[..vectors]) {
                        *key = others_of[block % CAPACITY].assume_init();
                    }
                    F::encrypt_each(&each, at, vectors);
                    encrypted += vectors * lanes;
                    written = written.max(encrypted);
                } else if written - encrypted >= step {
                    encrypt::<F::L, N>(key, at);
                    encrypted += step;
                } else {
                    let vectors = (written - encrypted).div_ceil(lanes);
                    if SEVERAL {
                        complete::<F::L>(stream, last, written);
                    } else if lanes > 1 {
                        F::L::low(_mm_setzero_si128()).store(at.add(16 * (written - encrypted)));
                    }
                    F::encrypt_some(key, at, vectors);
                    encrypted += vectors * lanes;
                    written = encrypted;
                }
            }
        }
        // What has just been encrypted waits for the next step, if there is one.
        let ready = if next == jobs.len() && written == encrypted { encrypted } else { ready };
        while oldest < newest {
            // SAFETY: slots from `oldest` to `newest` are initialised.
            let slot = unsafe { slots[oldest % SLOTS].assume_init_ref() };
            if slot.end > ready {
                break;
            }
            // SAFETY: its blocks are key stream, its packet and key outlive the call.
            let done = unsafe { finish::<F::L, SEAL>(slot) };
            let job = &mut jobs[slot.job];
            if SEAL {
                job.sealed = true
            } else {
                job.verified = done
            }
            oldest += 1;
        }
        if next == jobs.len() && oldest == newest {
            return;
        }
    }
}

pub(super) fn own_key(keys: Keys<'_>, id: KeyId) -> Option<&GcmKey> {
    keys.get(id).and_then(|key| key.state.vaes())
}

/// Returns whether a span is within `len` bytes.
fn fits(span: Span, len: usize) -> bool {
    span.start <= span.end && span.end as usize <= len
}
}

impl Parts {
    inlined! {
        /// `None` when the operation does not fit packet or key: associated data, body and ICV must
        /// be in this order and disjoint.
        pub(super) fn of(key: &GcmKey, job: &Job<'_>) -> Option<Self> {
            let (op, len) = (&job.op, job.packet.len());
            let (icv, mut body) = (op.icv, op.body);
            if !fits(icv, len) || icv.end - icv.start != u32::from(key.icv_len) || !fits(body, len) {
                return None;
            }
            if body.start == body.end {
                body = Span { start: icv.start, end: icv.start };
            } else if key.gmac {
                return None;
            }
            if body.end > icv.start {
                return None;
            }
            let iv = u64::from_be_bytes([op.iv[0], op.iv[1], op.iv[2], op.iv[3], op.iv[4], op.iv[5], op.iv[6], op.iv[7]]);
            let nonce = u64::from(u32::from_be_bytes(key.salt)) << 32 | iv >> 32;
            // SAFETY: a key exists only where the processor has the features of X1.
            let counter = unsafe { X1::low(_mm_set_epi64x(nonce as i64, (iv << 32) as i64)) };
            Some(Self { body: body.start as usize, body_len: body.len(), icv: icv.start as usize, counter })
        }
    }
}

inlined! {
/// Checks the operation, starts the packet, writes the remaining counter blocks to the stream, and
/// returns their end. `None` if it does not fit.
///
/// # Safety
/// The features; `LARGEST` blocks and a vector from `at` on are within the stream; `slot` is
/// writable.
unsafe fn enter<F: Width, const SEAL: bool>(
    key: &GcmKey,
    job: &mut Job<'_>,
    index: usize,
    stream: *mut u8,
    at: usize,
    slot: *mut Slot,
) -> Option<usize> {
    let parts = Parts::of(key, job)?;
    let own = stream.wrapping_add(16 * (at % CAPACITY));
    let mut short = parts.body_len <= SHORT;
    if short && !job.fetch() {
        return None;
    }
    let packet = job.packet.as_mut_ptr();
    // SAFETY: spans were checked against the packet; `room` ends where the packet does; the
    // caller answers for the stream and the slot.
    unsafe {
        let mut begun = Started { first: _mm_setzero_si128(), is_block: true, aad_len: 12, bulk_len: 0 };
        match &job.op.aad {
            Aad::Inline(bytes) => {
                let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
                let (high, low) = (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u32::from_be_bytes([i, j, k, l]));
                begun.first = _mm_set_epi64x(high as i64, (u64::from(low) << 32) as i64);
            }
            Aad::InPlace(span) => {
                let (from, len) = (span.start as usize, (span.end.wrapping_sub(span.start)) as usize);
                // A whole block is readable at any byte of associated data that is followed by a
                // body and an ICV.
                if matches!(len, 1..=16) && span.end as usize <= parts.body && from + 16 <= job.packet.len() {
                    begun.first = X1::load(packet.add(from)).first(len).swap().block();
                    begun.aad_len = len;
                } else {
                    short = false;
                }
            }
            _ => short = false,
        }
        let rest_blocks;
        if short {
            rest_blocks = parts.body_len.div_ceil(16);
            write_counters::<F::L>(parts.counter, 1, 1 + rest_blocks.next_multiple_of(F::L::BLOCKS), own);
        } else {
            begun = F::begin_any::<SEAL>(key, job, &parts, own)?;
            rest_blocks = (parts.body_len - begun.bulk_len).div_ceil(16);
        }
        // Field by field: a slot built elsewhere would be copied by vector loads directly after the
        // stores of its fields, and stall on store forwarding.
        let (rest, end) = (parts.body + begun.bulk_len, at + 1 + rest_blocks);
        (&raw mut (*slot).first).write(begun.first);
        (&raw mut (*slot).lengths).write(_mm_set_epi64x(8 * begun.aad_len as i64, 8 * parts.body_len as i64));
        (&raw mut (*slot).key).write(key);
        (&raw mut (*slot).own).write(own);
        (&raw mut (*slot).rest).write(packet.add(rest));
        (&raw mut (*slot).icv).write(packet.add(parts.icv));
        (&raw mut (*slot).rest_len).write((parts.body_len - begun.bulk_len) as u32);
        (&raw mut (*slot).room).write((job.packet.len() - rest).min(1 << 16) as u32);
        (&raw mut (*slot).end).write(end);
        (&raw mut (*slot).job).write(index);
        (&raw mut (*slot).is_block).write(begun.is_block);
        Some(end)
    }
}

/// [`begin`], and writes the counter blocks of what is left.
///
/// # Safety
/// As there; `LARGEST` blocks and a vector are writable at `stream`.
pub(super) unsafe fn begin_any<L: Lanes, const SEAL: bool>(
    key: &GcmKey,
    job: &mut Job<'_>,
    parts: &Parts,
    stream: *mut u8,
) -> Option<Started> {
    // SAFETY: the caller's promise.
    unsafe {
        let begun = begin::<L, N, SEAL>(key, job, parts)?;
        let rest_blocks = (parts.body_len - begun.bulk_len).div_ceil(16);
        if begun.bulk_len > 0 {
            write_counters::<X1>(parts.counter, 1, 1, stream);
            // One block more, as [`complete`] expects.
            write_counters::<L>(parts.counter, 2 + begun.bulk_len as u32 / 16, rest_blocks + 1, stream.add(16));
        } else {
            // Whole vectors of the last part, which [`finish`] reads.
            write_counters::<L>(parts.counter, 1, 1 + rest_blocks.next_multiple_of(L::BLOCKS), stream);
        }
        Some(begun)
    }
}

/// Begins a packet of any kind: hashes its associated data and does its bulk. `None` when the
/// associated data do not fit.
///
/// # Safety
/// The features; `parts` are those of `job`.
pub(super) unsafe fn begin<L: Lanes, const N: usize, const SEAL: bool>(
    key: &GcmKey,
    job: &mut Job<'_>,
    parts: &Parts,
) -> Option<Started> {
    let len = job.packet.len();
    let step_len = 16 * N * L::BLOCKS;
    let steps = if parts.body_len <= SHORT { 0 } else { parts.body_len / step_len };
    let bulk_len = steps * step_len;
    // A source that has all of the bulk is read as it is encrypted.
    let source = job.source;
    let apart = steps > 0 && source.len() >= bulk_len;
    if !(if apart { job.fetch_from(bulk_len) } else { job.fetch() }) {
        return None;
    }
    let packet = job.packet.as_mut_ptr();
    // SAFETY: the spans were checked; `room` ends with the packet.
    unsafe {
        let zero = _mm_setzero_si128();
        let (mut first, mut is_block, aad_len) = match job.op.aad {
            Aad::Inline(bytes) => {
                let mut block = Block::ZERO;
                block.0[..12].copy_from_slice(&bytes);
                (X1::load(block.0.as_ptr()).swap().block(), true, 12)
            }
            Aad::InPlace(span) => {
                if !fits(span, parts.body) {
                    return None;
                }
                let (from, span_len) = (span.start as usize, span.len());
                match span_len {
                    0 => (zero, false, 0),
                    1..=16 => (X1::load_part(packet.add(from), span_len, len - from).swap().block(), true, span_len),
                    _ => (absorb::<L>(key, zero, packet.add(from), span_len, len - from), false, span_len),
                }
            }
            Aad::InlineThen(bytes, span) => {
                // No longer one is in a packet, and no engine takes it.
                if !fits(span, parts.body) || span.len() > 0xffff {
                    return None;
                }
                // The block in which both meet is put together, what follows is read where it is.
                let (from, span_len) = (span.start as usize, span.len());
                let taken = span_len.min(4);
                let mut seam = Block::ZERO;
                seam.0[..12].copy_from_slice(&bytes);
                seam.0[12..12 + taken].copy_from_slice(&job.packet[from..from + taken]);
                let sum = Sums::of(X1::load(seam.0.as_ptr()).swap(), X1::load(key.powers_from(1))).reduce();
                let from = from + taken;
                (absorb::<L>(key, sum, packet.add(from), span_len - taken, len - from), false, 12 + span_len)
            }
            Aad::InPlaceThen(..) => return None,
        };
        if steps > 0 {
            if is_block {
                first = Sums::of(X1::low(first), X1::load(key.powers_from(1))).reduce();
                is_block = false;
            }
            let to = packet.add(parts.body);
            let from = if apart { source.as_ptr() } else { to.cast_const() };
            first = bulk::<L, N, SEAL>(key, parts.counter, first, from, to, steps);
        }
        Some(Started { first, is_block, aad_len, bulk_len })
    }
}

/// Writes `count` counter blocks that count up from `from`, and more after them, so that the number
/// needed by most small packets is written without a branch.
///
/// # Safety
/// The features; as many blocks from `to` on, or eight, and a vector are writable.
unsafe fn write_counters<L: Lanes>(counter: X1, from: u32, count: usize, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut counters = counters_from::<L>(counter, from);
        let step = L::splat(_mm_set_epi32(0, 0, 0, L::BLOCKS as i32));
        for i in 0..6usize.div_ceil(L::BLOCKS) {
            counters.swap().store(to.add(16 * L::BLOCKS * i));
            counters = counters.add(step);
        }
        let mut written = 6usize.next_multiple_of(L::BLOCKS);
        while written < count {
            counters.swap().store(to.add(16 * written));
            counters = counters.add(step);
            written += L::BLOCKS;
        }
    }
}
}

inlined! {
/// Initialises what completes the last vector before block `written`. The packet that entered last,
/// at block `last`, did it unless its vectors are not those of a step. Otherwise nothing may be
/// written here: the encryption would wait for two stores instead of one.
///
/// # Safety
/// The features; a vector from block `written` on is in the stream.
unsafe fn complete<L: Lanes>(stream: *mut u8, last: usize, written: usize) {
    let initialised = last + (written - last).max(6).next_multiple_of(L::BLOCKS);
    if written.next_multiple_of(L::BLOCKS) > initialised {
        // SAFETY: the caller's promise.
        unsafe { L::low(_mm_setzero_si128()).store(stream.add(16 * (written % CAPACITY))) };
    }
}
}

/// 0, 1, 2, 3 in the places of reversed counters.
static RAMP: [Block; 4] = {
    let mut ramp = [Block::ZERO; 4];
    let mut i = 0;
    while i < 4 {
        ramp[i].0[0] = i as u8;
        i += 1;
    }
    ramp
};

/// Counters from 1 on, in the order of the cipher.
pub(super) static NUMBERS: [[Block; 4]; 5] = {
    let mut numbers = [[Block::ZERO; 4]; 5];
    let mut i = 0;
    while i < 20 {
        numbers[i / 4][i % 4].0[15] = i as u8 + 1;
        i += 1;
    }
    numbers
};

inlined! {
/// The reversed counter blocks `from`, `from + 1`, ….
///
/// # Safety
/// The features.
unsafe fn counters_from<L: Lanes>(counter: X1, from: u32) -> L {
    // SAFETY: the features are the caller's; the table holds the longest vector.
    unsafe {
        L::splat(counter.add(X1::low(_mm_set_epi32(0, 0, 0, from as i32))).block()).add(L::load(RAMP.as_ptr().cast()))
    }
}

/// Encrypts `K` vectors where they are.
///
/// # Safety
/// The features; `K` vectors at `at` are initialised.
unsafe fn encrypt<L: Lanes, const K: usize>(key: &GcmKey, at: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut blocks = [L::load(at); K];
        for (i, block) in blocks.iter_mut().enumerate() {
            *block = L::load(at.add(16 * L::BLOCKS * i));
        }
        whiten::<L, K>(key, &mut blocks);
        rounds::<L, K>(key, &mut blocks, 1, 10);
        last_rounds::<L, K>(key, &mut blocks);
        for (i, block) in blocks.iter().enumerate() {
            block.store(at.add(16 * L::BLOCKS * i));
        }
    }
}

/// Encrypts up to eight vectors where they are.
///
/// # Safety
/// As for [`encrypt`].
pub(super) unsafe fn encrypt_some<L: Lanes>(key: &GcmKey, at: *mut u8, vectors: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match vectors {
            1 => encrypt::<L, 1>(key, at),
            2 => encrypt::<L, 2>(key, at),
            3 => encrypt::<L, 3>(key, at),
            4 => encrypt::<L, 4>(key, at),
            5 => encrypt::<L, 5>(key, at),
            6 => encrypt::<L, 6>(key, at),
            7 => encrypt::<L, 7>(key, at),
            _ => encrypt::<L, 8>(key, at),
        }
    }
}

/// Encrypts up to eight vectors where they are, each with its own key.
///
/// # Safety
/// As for [`encrypt`]; the keys exist.
pub(super) unsafe fn encrypt_each<L: Lanes>(keys: &[*const GcmKey; N], at: *mut u8, vectors: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match vectors {
            1 => encrypt_by::<L, 1>(keys, at),
            2 => encrypt_by::<L, 2>(keys, at),
            3 => encrypt_by::<L, 3>(keys, at),
            4 => encrypt_by::<L, 4>(keys, at),
            5 => encrypt_by::<L, 5>(keys, at),
            6 => encrypt_by::<L, 6>(keys, at),
            7 => encrypt_by::<L, 7>(keys, at),
            _ => encrypt_by::<L, 8>(keys, at),
        }
    }
}

/// Encrypts `K` vectors where they are, each with its own key: the rounds of all are interleaved.
///
/// # Safety
/// As for [`encrypt_each`].
unsafe fn encrypt_by<L: Lanes, const K: usize>(keys: &[*const GcmKey; N], at: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut blocks = [L::load(at); K];
        for (i, block) in blocks.iter_mut().enumerate() {
            *block = L::load(at.add(16 * L::BLOCKS * i)).xor(round_key::<L>(&*keys[i], 0));
        }
        for round in 1..10 {
            for (block, key) in blocks.iter_mut().zip(keys) {
                *block = block.round(round_key::<L>(&**key, round));
            }
        }
        for (i, block) in blocks.into_iter().enumerate() {
            let mut one = [block];
            last_rounds::<L, 1>(&*keys[i], &mut one);
            one[0].store(at.add(16 * L::BLOCKS * i));
        }
    }
}

unsafe fn round_key<L: Lanes>(key: &GcmKey, round: usize) -> L {
    // SAFETY: a round key is a block; the features are the caller's.
    unsafe { L::splat(X1::load(key.round_key(round)).block()) }
}

/// The addition of the first round key.
unsafe fn whiten<L: Lanes, const K: usize>(key: &GcmKey, blocks: &mut [L; K]) {
    // SAFETY: the features are the caller's.
    let first = unsafe { round_key::<L>(key, 0) };
    for block in blocks {
        *block = block.xor(first);
    }
}

/// The rounds from `from` to below `to`.
unsafe fn rounds<L: Lanes, const K: usize>(key: &GcmKey, blocks: &mut [L; K], from: usize, to: usize) {
    for round in from..to {
        // SAFETY: the features are the caller's.
        let round_key = unsafe { round_key::<L>(key, round) };
        for block in blocks.iter_mut() {
            *block = block.round(round_key);
        }
    }
}

/// The rounds from the tenth to below the last one.
unsafe fn more_rounds<L: Lanes, const K: usize>(key: &GcmKey, blocks: &mut [L; K]) {
    // SAFETY: the features are the caller's.
    unsafe {
        let last = key.rounds();
        if last > 10 {
            rounds::<L, K>(key, blocks, 10, 12);
            if last > 12 {
                rounds::<L, K>(key, blocks, 12, 14);
            }
        }
    }
}

/// All rounds after the ninth.
unsafe fn last_rounds<L: Lanes, const K: usize>(key: &GcmKey, blocks: &mut [L; K]) {
    // SAFETY: the features are the caller's.
    unsafe {
        more_rounds::<L, K>(key, blocks);
        let last = L::splat(X1::load(key.last_round_key()).block());
        for block in blocks {
            *block = block.last_round(last);
        }
    }
}

/// Encrypts or decrypts whole steps from `from` to `to`, which are the same or apart, and adds
/// the ciphertext to the hash: between the rounds of a step the multiplications of the step
/// before (sealing: its ciphertext must be there) or of the same (opening).
///
/// # Safety
/// The features; `steps` steps, one at least, are readable at `from` and writable at `to`.
unsafe fn bulk<L: Lanes, const N: usize, const SEAL: bool>(
    key: &GcmKey,
    counter: X1,
    mut hash: __m128i,
    mut from: *const u8,
    mut to: *mut u8,
    steps: usize,
) -> __m128i {
    let step_len = 16 * N * L::BLOCKS;
    // SAFETY: the caller's promise; `from` and `to` move by one step each time.
    unsafe {
        let mut counters = Counters::<L>::new(key, counter);
        let mut left = steps;
        if SEAL {
            let mut blocks = counters.next::<N>(key);
            rounds::<L, N>(key, &mut blocks, 1, 10);
            finish_step::<L, N>(key, &mut blocks, from, to);
            (from, to, left) = (from.add(step_len), to.add(step_len), left - 1);
        }
        while left > 0 {
            let hashed = if SEAL { to.sub(step_len).cast_const() } else { from };
            let mut blocks = counters.next::<N>(key);
            let mut sums = hash_step::<L, N>(key, hash, hashed, 1, None);
            for round in 1..10 {
                rounds::<L, N>(key, &mut blocks, round, round + 1);
                if round < N {
                    sums = hash_step::<L, N>(key, hash, hashed, (round + 1) % N, Some(sums));
                }
                // Otherwise the compiler gathers the hash in front of the AES, further apart than
                // the processor looks ahead (docs/decisions/0011).
                for block in &mut blocks {
                    *block = block.pinned();
                }
                sums = sums.pinned();
            }
            hash = sums.reduce();
            finish_step::<L, N>(key, &mut blocks, from, to);
            (from, to, left) = (from.add(step_len), to.add(step_len), left - 1);
        }
        if SEAL {
            let hashed = to.sub(step_len);
            let mut sums = hash_step::<L, N>(key, hash, hashed, 1, None);
            for i in 2..=N {
                sums = hash_step::<L, N>(key, hash, hashed, i % N, Some(sums));
            }
            hash = sums.reduce();
        }
        hash
    }
}

}

/// The counters of a bulk.
struct Counters<L> {
    /// Nonce and counter zero, in the order of the cipher, with the first round key.
    base: L,
    /// The next numbers, in the order of the cipher, modulo 256.
    numbers: L,
    counter: X1,
    next: u32,
}

impl<L: Lanes> Counters<L> {
    inlined! {
        /// From the counter of a packet's first block on.
        ///
        /// # Safety
        /// The features.
        unsafe fn new(key: &GcmKey, counter: X1) -> Self {
            // SAFETY: the features are the caller's; the table holds the longest vector.
            unsafe {
                let base = L::splat(counter.swap().block()).xor(round_key::<L>(key, 0));
                Self { base, numbers: L::load(NUMBERS.as_ptr().cast::<Block>().add(1).cast()), counter, next: 2 }
            }
        }

        /// The next counters of a step, with the first round key.
        ///
        /// # Safety
        /// The features.
        unsafe fn next<const N: usize>(&mut self, key: &GcmKey) -> [L; N] {
            // SAFETY: the features are the caller's.
            unsafe {
                let mut blocks = [self.base; N];
                if self.next as usize + N * L::BLOCKS <= 256 {
                    // All are in the last byte, and no byte need be moved.
                    let step = L::splat(_mm_set_epi32((L::BLOCKS as i32) << 24, 0, 0, 0));
                    for block in &mut blocks {
                        *block = self.base.xor(self.numbers);
                        self.numbers = self.numbers.add(step);
                    }
                } else {
                    let step = L::splat(_mm_set_epi32(0, 0, 0, L::BLOCKS as i32));
                    let mut counters = counters_from::<L>(self.counter, self.next);
                    for block in &mut blocks {
                        *block = counters.swap();
                        counters = counters.add(step);
                    }
                    whiten::<L, N>(key, &mut blocks);
                }
                self.next += (N * L::BLOCKS) as u32;
                blocks
            }
        }
    }
}

inlined! {
/// The rounds after the ninth, of which the last adds the text at once.
unsafe fn finish_step<L: Lanes, const N: usize>(key: &GcmKey, blocks: &mut [L; N], from: *const u8, to: *mut u8) {
    // SAFETY: the caller's step and features.
    unsafe {
        more_rounds::<L, N>(key, blocks);
        let last = L::splat(X1::load(key.last_round_key()).block());
        for (i, block) in blocks.iter().enumerate() {
            let at = 16 * L::BLOCKS * i;
            block.last_round(last.xor(L::load(from.add(at)))).store(to.add(at));
        }
    }
}

/// Multiplies vector `i` of a step; the first takes the hash of all before with it. It comes last,
/// because the hash is there last.
unsafe fn hash_step<L: Lanes, const N: usize>(
    key: &GcmKey,
    hash: __m128i,
    step: *const u8,
    i: usize,
    sums: Option<Sums<L>>,
) -> Sums<L> {
    // SAFETY: the caller's step and features; powers from a step's number of blocks on.
    unsafe {
        let mut block = L::load(step.add(16 * L::BLOCKS * i)).pinned().swap();
        if i == 0 {
            block = block.xor(L::low(hash));
        }
        let product = Sums::of(block, L::load(key.powers_from((N - i) * L::BLOCKS)));
        match sums {
            None => product,
            Some(sums) => sums.plus(product),
        }
    }
}

/// Adds bytes, filled up with zeros to whole blocks, to a hash.
///
/// # Safety
/// The features; `room >= len` bytes are readable.
unsafe fn absorb<L: Lanes>(
    key: &GcmKey,
    mut hash: __m128i,
    mut at: *const u8,
    mut len: usize,
    mut room: usize,
) -> __m128i {
    // SAFETY: the caller's promise; `at`, `len` and `room` move together.
    unsafe {
        while len >= 16 * L::BLOCKS {
            let vectors = (len / (16 * L::BLOCKS)).min(16 / L::BLOCKS);
            let mut sums =
                Sums::of(L::load(at).swap().xor(L::low(hash)), L::load(key.powers_from(vectors * L::BLOCKS)));
            for i in 1..vectors {
                let power = L::load(key.powers_from((vectors - i) * L::BLOCKS));
                sums = sums.plus(Sums::of(L::load(at.add(16 * L::BLOCKS * i)).swap(), power));
            }
            hash = sums.reduce();
            let taken = 16 * L::BLOCKS * vectors;
            (at, len, room) = (at.add(taken), len - taken, room - taken);
        }
        while len > 0 {
            let taken = len.min(16);
            let block = X1::load_part(at, taken, room).swap().xor(X1::low(hash));
            hash = Sums::of(block, X1::load(key.powers_from(1))).reduce();
            (at, len, room) = (at.add(taken), len - taken, room - taken);
        }
        hash
    }
}

/// Encrypts or decrypts the last part, completes the hash, and writes the ICV or compares it.
///
/// # Safety
/// The features; the slot's packet and blocks of key stream are there.
unsafe fn finish<L: Part, const SEAL: bool>(slot: &Slot) -> bool {
    // SAFETY: the caller's promise; `rest_len <= room`, and the powers are as many as the blocks.
    unsafe {
        let key = &*slot.key;
        let (rest_len, own, rest) = (slot.rest_len as usize, slot.own.add(16), slot.rest);
        let before = key.powers_from(rest_len.div_ceil(16) + 1 + usize::from(slot.is_block));
        let powers = before.wrapping_add(16 * usize::from(slot.is_block));
        let ends = Sums::of(X1::low(slot.first), X1::load(before))
            .plus(Sums::of(X1::low(slot.lengths), X1::load(key.powers_from(1))));
        let mut sums = Sums {
            low: L::low(ends.low.block()),
            middle: L::low(ends.middle.block()),
            high: L::low(ends.high.block()),
        };

        let vector = 16 * L::BLOCKS;
        let mut done = 0;
        while done + vector <= rest_len {
            let before = L::load(rest.add(done));
            let after = before.xor(L::load(own.add(done)));
            after.store(rest.add(done));
            let cipher = if SEAL { after } else { before };
            sums = sums.plus(Sums::of(cipher.swap(), L::load(powers.add(done))));
            done += vector;
        }
        if done < rest_len {
            let stream = L::load(own.add(done));
            let (before, after) = stream.crypt_rest(rest.add(done), rest_len - done, slot.room as usize - done);
            let cipher = if SEAL { after } else { before };
            sums = sums.plus(Sums::of(cipher.swap(), L::load(powers.add(done))));
        }

        let tag = X1::low(sums.reduce()).swap().xor(X1::load(slot.own));
        finish_icv::<SEAL>(key, tag, slot.icv)
    }
}

/// Writes the ICV, or compares it whole and returns whether it is valid.
///
/// # Safety
/// The features; the key's length of an ICV is readable and writable at `icv`.
pub(super) unsafe fn finish_icv<const SEAL: bool>(key: &GcmKey, tag: X1, icv: *mut u8) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        if SEAL && key.icv_len == 16 {
            tag.store(icv);
            return true;
        }
        let icv_len = usize::from(key.icv_len);
        if SEAL {
            let mut whole = Block::ZERO;
            tag.store(whole.0.as_mut_ptr());
            std::ptr::copy_nonoverlapping(whole.0.as_ptr(), icv, icv_len);
            return true;
        }
        let received = X1::load_part(icv, icv_len, icv_len);
        let differ = received.xor(tag.first(icv_len)).block();
        _mm_testz_si128(differ, differ) == 1
    }
}
}
