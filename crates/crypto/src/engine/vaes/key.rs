//! A key: AES round keys and the powers of the hash key.

use std::arch::x86_64::*;
use std::mem::offset_of;

use zeroize::Zeroize;

use super::lanes::{Lanes, X1};
use super::pass::Sums;

/// Sixteen bytes.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Block(pub(super) [u8; 16]);

impl Block {
    pub(super) const ZERO: Self = Self([0; 16]);
}

/// Highest power of the hash key that is kept: a packet's last part has up to sixteen blocks,
/// preceded by one block of associated data or the sum so far, and followed by the block of
/// lengths.
pub(super) const POWERS: usize = 18;

/// Highest power that is kept a second time, for packets of up to five blocks.
pub(super) const LOW_POWERS: usize = 7;

/// The expanded key of AES-GCM or AES-GMAC: 0.7 KiB. Overwritten when dropped; has no `Debug`.
///
/// In this order, so that what a packet of up to five blocks needs of a 128-bit key is in five
/// cache lines: from the start of [`crate::Key`] to the ninth round key.
#[repr(C)]
pub(crate) struct GcmKey {
    pub(super) salt: [u8; 4],
    rounds: u8,
    pub(super) icv_len: u8,
    pub(super) gmac: bool,
    /// The sixth of the low powers starts a cache line of [`crate::Key`], so that a vector of four
    /// for a packet of 64 bytes is in one.
    gap: [u8; 9],
    /// Key of the last round.
    last: Block,
    /// Copies of the lowest powers. A vector that is longer than the rest goes on in what follows
    /// them, which is multiplied by zeros only.
    low: [Block; LOW_POWERS],
    /// Keys of the other rounds; the first `rounds` are used.
    schedule: [Block; 14],
    /// The hash key to the power of 18, 17, … 1, in the form of POLYVAL (RFC 8452, appendix A):
    /// GHASH of bytes as they come is then POLYVAL of reversed blocks, which needs no shift of the
    /// product. The blocks after them complete a vector, as after the low ones.
    powers: [Block; POWERS + 3],
}

impl GcmKey {
    /// `None` unless `key` is an AES key. ICVs have 8, 12 or 16 bytes.
    ///
    /// # Safety
    /// The processor has AVX, AES and PCLMULQDQ.
    pub(super) unsafe fn new(key: &[u8], salt: [u8; 4], icv_len: usize, gmac: bool) -> Option<Self> {
        if !matches!(key.len(), 16 | 24 | 32) || !matches!(icv_len, 8 | 12 | 16) {
            return None;
        }
        let mut made = Self {
            last: Block::ZERO,
            low: [Block::ZERO; LOW_POWERS],
            schedule: [Block::ZERO; 14],
            powers: [Block::ZERO; POWERS + 3],
            salt,
            gap: [0; 9],
            rounds: key.len() as u8 / 4 + 6,
            icv_len: icv_len as u8,
            gmac,
        };
        // SAFETY: the caller promises the features.
        unsafe {
            made.expand(key);
            made.raise();
        }
        Some(made)
    }

    inlined! {
        /// Rounds of AES: 10, 12 or 14.
        pub(super) fn rounds(&self) -> usize {
            usize::from(self.rounds)
        }

        /// The key of a round before the last one.
        pub(super) fn round_key(&self, round: usize) -> *const u8 {
            self.schedule[round].0.as_ptr()
        }

        /// The key of the last round.
        pub(super) fn last_round_key(&self) -> *const u8 {
            self.last.0.as_ptr()
        }

        /// The powers `n`, `n - 1`, … of the hash key, one after the other.
        pub(super) fn powers_from(&self, n: usize) -> *const u8 {
            debug_assert!((1..=POWERS).contains(&n));
            let at = if n <= LOW_POWERS {
                offset_of!(Self, low) + size_of::<Block>() * (LOW_POWERS - n)
            } else {
                offset_of!(Self, powers) + size_of::<Block>() * (POWERS - n)
            };
            // Of the whole key, because a vector may include blocks after the last power.
            std::ptr::from_ref(self).cast::<u8>().wrapping_add(at)
        }
    }

    /// The key schedule (FIPS 197 §5.2), word by word.
    #[target_feature(enable = "avx,aes,pclmulqdq")]
    unsafe fn expand(&mut self, key: &[u8]) {
        let words = key.len() / 4;
        let mut schedule = [0u32; 60];
        for (word, bytes) in schedule.iter_mut().zip(key.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let mut constant = 1u32;
        for i in words..4 * (self.rounds() + 1) {
            let mut word = schedule[i - 1];
            if i % words == 0 {
                word = substitute(word.rotate_right(8)) ^ constant;
                constant = (constant << 1) ^ ((constant >> 7) * 0x11b);
            } else if words > 6 && i % words == 4 {
                word = substitute(word);
            }
            schedule[i] = schedule[i - words] ^ word;
        }
        let rounds = self.rounds();
        let blocks = self.schedule[..rounds].iter_mut().chain([&mut self.last]);
        for (block, words) in blocks.zip(schedule.chunks_exact(4)) {
            for (bytes, word) in block.0.chunks_exact_mut(4).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        schedule.zeroize();
    }

    /// The powers of the hash key: those above 2ⁿ from those up to it, so that the products of a
    /// step do not wait for one another.
    #[target_feature(enable = "avx,aes,pclmulqdq")]
    unsafe fn raise(&mut self) {
        // SAFETY: the features are this function's; every address is that of a block of `self`.
        unsafe {
            let mut zero = X1::load(self.round_key(0));
            for round in 1..self.rounds() {
                zero = zero.round(X1::load(self.round_key(round)));
            }
            zero = zero.last_round(X1::load(self.last_round_key()));
            let mut hash_key = Block::ZERO;
            zero.store(hash_key.0.as_mut_ptr());
            // Multiplied by x once (mulX_POLYVAL), without a branch on the bit that falls out.
            let reversed = u128::from_be_bytes(hash_key.0);
            let overflow = 0u128.wrapping_sub(reversed >> 127);
            let first = reversed << 1 ^ overflow & 0xc200_0000_0000_0000_0000_0000_0000_0001;
            self.powers[POWERS - 1] = Block(first.to_le_bytes());
            hash_key.0.zeroize();
            let mut known = 1;
            while known < POWERS {
                let top = X1::load(self.powers[POWERS - known].0.as_ptr());
                for n in 1..=known.min(POWERS - known) {
                    let power = Sums::of(top, X1::load(self.powers[POWERS - n].0.as_ptr())).reduce();
                    X1::low(power).store(self.powers[POWERS - known - n].0.as_mut_ptr());
                }
                known *= 2;
            }
        }
        self.low.copy_from_slice(&self.powers[POWERS - LOW_POWERS..POWERS]);
    }
}

impl Drop for GcmKey {
    fn drop(&mut self) {
        self.schedule.iter_mut().for_each(|block| block.0.zeroize());
        self.powers.iter_mut().for_each(|block| block.0.zeroize());
        self.low.iter_mut().for_each(|block| block.0.zeroize());
        self.last.0.zeroize();
        self.salt.zeroize();
    }
}

/// The S-box on each byte of a word: a last round over four equal columns, which ShiftRows leaves
/// as they are.
#[target_feature(enable = "avx,aes,pclmulqdq")]
fn substitute(word: u32) -> u32 {
    _mm_cvtsi128_si32(_mm_aesenclast_si128(_mm_set1_epi32(word as i32), _mm_setzero_si128())) as u32
}
