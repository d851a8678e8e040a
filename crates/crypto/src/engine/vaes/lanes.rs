//! The widths: vectors of one, two or four blocks with the same few operations on each.
//!
//! The algorithm in `pass` is written once over [`Lanes`]; what a width brings is one row of
//! intrinsics and how it reads and writes a part of a vector.

use std::arch::asm;
use std::arch::x86_64::*;

use super::key::Block;

/// A vector of blocks.
///
/// The caller that creates a value (the `unsafe` functions without `self`) must ensure that the
/// processor has the features of the width; a value is the proof for the functions that take one.
/// All are inlined into a function that is compiled for these features.
pub(super) trait Lanes: Copy {
    /// Blocks in a vector.
    const BLOCKS: usize;

    /// Reads a whole vector; the address need not be aligned.
    ///
    /// # Safety
    /// The processor has the features; `16 * BLOCKS` bytes are readable.
    unsafe fn load(at: *const u8) -> Self;

    /// One block in every place.
    ///
    /// # Safety
    /// The processor has the features.
    unsafe fn splat(block: __m128i) -> Self;

    /// One block in the first place, zero in the others.
    ///
    /// # Safety
    /// The processor has the features.
    unsafe fn low(block: __m128i) -> Self;

    /// Writes a whole vector.
    ///
    /// # Safety
    /// `16 * BLOCKS` bytes are writable.
    unsafe fn store(self, at: *mut u8);

    /// Exclusive or.
    fn xor(self, other: Self) -> Self;

    /// Addition of 32-bit words without carry between them.
    fn add(self, other: Self) -> Self;

    /// Reverses the bytes of each block.
    fn swap(self) -> Self;

    /// The halves of each block exchanged.
    fn turned(self) -> Self;

    /// A round of AES.
    fn round(self, key: Self) -> Self;

    /// The last round of AES.
    fn last_round(self, key: Self) -> Self;

    /// Carry-less product, block by block, of the halves that the two hexadecimal digits name:
    /// the low one is of `self`, the high one of `other`.
    fn product<const HALVES: i32>(self, other: Self) -> Self;

    /// The exclusive or of all blocks.
    fn fold(self) -> __m128i;

    /// An identity that the compiler must not reorder: inputs are computed before it, users after
    /// it. It prevents the compiler from regrouping interleaved work and emits no instruction. For
    /// vectors of one block only: longer registers cannot be named outside functions that are
    /// compiled for them.
    fn pinned(self) -> Self;
}

/// A vector of which a part is read and written, for [`super::pass`].
pub(super) trait Part: Lanes {
    /// Adds a key stream to the first `len` bytes at `at`, fewer than a vector holds and at least
    /// one, and returns them as they were and as they are now, both followed by zeros.
    ///
    /// # Safety
    /// `room >= len` bytes at `at` are readable and writable.
    unsafe fn crypt_rest(self, at: *mut u8, len: usize, room: usize) -> (Self, Self);
}

/// One row per width: type, vector, blocks, and the intrinsics in the order of the macro's names.
macro_rules! lanes {
    ($name:ident($vector:ty) $blocks:literal: $load:ident $store:ident $splat:path, $low:path, $xor:ident $add:ident
        $shuffle:ident $turn:ident $round:ident $last:ident $product:ident, $fold:path, $pin:path) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name($vector);

        impl Lanes for $name {
            const BLOCKS: usize = $blocks;

            inlined! {
                unsafe fn load(at: *const u8) -> Self {
                    // SAFETY: the caller's promise; these loads need no alignment.
                    Self(unsafe { $load(at.cast()) })
                }

                unsafe fn splat(block: __m128i) -> Self {
                    // SAFETY: the caller promises the features.
                    Self(unsafe { $splat(block) })
                }

                unsafe fn low(block: __m128i) -> Self {
                    // SAFETY: the caller promises the features.
                    Self(unsafe { $low(block) })
                }

                unsafe fn store(self, at: *mut u8) {
                    // SAFETY: the caller's promise; these stores need no alignment.
                    unsafe { $store(at.cast(), self.0) }
                }

                fn xor(self, other: Self) -> Self {
                    // SAFETY: a value exists only where the features do.
                    Self(unsafe { $xor(self.0, other.0) })
                }

                fn add(self, other: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $add(self.0, other.0) })
                }

                fn swap(self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe {
                        $shuffle(self.0, Self::splat(_mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f)).0)
                    })
                }

                fn turned(self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $turn::<0x4e>(self.0) })
                }

                fn round(self, key: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $round(self.0, key.0) })
                }

                fn last_round(self, key: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $last(self.0, key.0) })
                }

                fn product<const HALVES: i32>(self, other: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $product::<HALVES>(self.0, other.0) })
                }

                fn fold(self) -> __m128i {
                    // SAFETY: as above.
                    unsafe { $fold(self.0) }
                }

                fn pinned(self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $pin(self.0) })
                }
            }
        }
    };
}

// AES-NI and PCLMULQDQ.
lanes!(X1(__m128i) 1: _mm_loadu_si128 _mm_storeu_si128 same, same, _mm_xor_si128 _mm_add_epi32
    _mm_shuffle_epi8 _mm_shuffle_epi32 _mm_aesenc_si128 _mm_aesenclast_si128 _mm_clmulepi64_si128, same, pin_1);
// VAES and VPCLMULQDQ on 256 bits.
lanes!(X2(__m256i) 2: _mm256_loadu_si256 _mm256_storeu_si256 _mm256_broadcastsi128_si256, _mm256_zextsi128_si256,
    _mm256_xor_si256 _mm256_add_epi32 _mm256_shuffle_epi8 _mm256_shuffle_epi32 _mm256_aesenc_epi128 _mm256_aesenclast_epi128
    _mm256_clmulepi64_epi128, fold_2, unpinned);
// VAES and VPCLMULQDQ on 512 bits.
lanes!(X4(__m512i) 4: _mm512_loadu_si512 _mm512_storeu_si512 _mm512_broadcast_i32x4, _mm512_zextsi128_si512,
    _mm512_xor_si512 _mm512_add_epi32 _mm512_shuffle_epi8 _mm512_shuffle_epi32 _mm512_aesenc_epi128 _mm512_aesenclast_epi128
    _mm512_clmulepi64_epi128, fold_4, unpinned);

impl Part for X1 {
    inlined! {
        unsafe fn crypt_rest(self, at: *mut u8, len: usize, room: usize) -> (Self, Self) {
            // SAFETY: the caller's promise.
            let (before, after) = unsafe { rest_1(self.0, at, len, room) };
            (Self(before), Self(after))
        }
    }
}

impl Part for X2 {
    inlined! {
        unsafe fn crypt_rest(self, at: *mut u8, len: usize, room: usize) -> (Self, Self) {
            // SAFETY: the caller's promise.
            let (before, after) = unsafe { rest_2(self.0, at, len, room) };
            (Self(before), Self(after))
        }
    }
}

impl X4 {
    inlined! {
        /// A vector.
        ///
        /// # Safety
        /// The processor has the features.
        pub(super) unsafe fn of(vector: __m512i) -> Self {
            Self(vector)
        }
    }
}

impl X1 {
    inlined! {
        /// The block itself.
        pub(super) fn block(self) -> __m128i {
            self.0
        }

        /// The first `len` bytes, 1 to 16, zero after them.
        pub(super) fn first(self, len: usize) -> Self {
            // SAFETY: a value exists only where the features do; see `mask`.
            Self(unsafe { _mm_and_si128(self.0, mask(len)) })
        }

        /// `len` bytes, 1 to 16, followed by zeros.
        ///
        /// # Safety
        /// The processor has the features; `room >= len` bytes are readable.
        pub(super) unsafe fn load_part(at: *const u8, len: usize, room: usize) -> Self {
            // SAFETY: whole blocks are read only where there is room for one, else `len` bytes.
            unsafe {
                if room >= 16 {
                    return Self::load(at).first(len);
                }
                let mut part = Block::ZERO;
                std::ptr::copy_nonoverlapping(at, part.0.as_mut_ptr(), len);
                Self::load(part.0.as_ptr())
            }
        }
    }
}

inlined! {
unsafe fn same(block: __m128i) -> __m128i {
    block
}

unsafe fn pin_1(mut block: __m128i) -> __m128i {
    // SAFETY: no instruction; every x86-64 has the register. Not `pure`, because only then places
    // keep their order.
    unsafe {
        asm!("/* {0} */", inout(xmm_reg) block, options(nomem, nostack, preserves_flags));
    }
    block
}

unsafe fn unpinned<V>(vector: V) -> V {
    vector
}

unsafe fn fold_2(v: __m256i) -> __m128i {
    // SAFETY: called by `X2` only.
    unsafe { _mm_xor_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v)) }
}

unsafe fn fold_4(v: __m512i) -> __m128i {
    // SAFETY: called by `X4` only, and its features include AVX2.
    unsafe { fold_2(_mm256_xor_si256(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64::<1>(v))) }
}
}

/// Sixteen bytes of ones, then sixteen of zeros.
static EDGE: [Block; 2] = [Block([0xff; 16]), Block([0; 16])];

inlined! {
/// Ones in the first `len` bytes, 0 to 16.
unsafe fn mask(len: usize) -> __m128i {
    debug_assert!(len <= 16);
    // SAFETY: 16 bytes from `16 - len` on are within the 32 of the table; loads are SSE2.
    unsafe { _mm_loadu_si128(EDGE.as_ptr().cast::<u8>().add(16 - len).cast()) }
}

/// The bytes that share the block with the rest are read and written back as they are, which is
/// several times cheaper than moving single bytes. Where the packet ends before the block does,
/// the bytes are moved.
unsafe fn rest_1(stream: __m128i, at: *mut u8, len: usize, room: usize) -> (__m128i, __m128i) {
    // SAFETY: the caller promises `room` bytes, which are exclusively the packet's; SSE2.
    unsafe {
        let keep = mask(len);
        let stream = _mm_and_si128(stream, keep);
        if room >= 16 {
            let block = _mm_loadu_si128(at.cast());
            _mm_storeu_si128(at.cast(), _mm_xor_si128(block, stream));
            let before = _mm_and_si128(block, keep);
            return (before, _mm_xor_si128(before, stream));
        }
        let mut part = Block::ZERO;
        std::ptr::copy_nonoverlapping(at, part.0.as_mut_ptr(), len);
        let before = _mm_loadu_si128(part.0.as_ptr().cast());
        let after = _mm_xor_si128(before, stream);
        _mm_storeu_si128(part.0.as_mut_ptr().cast(), after);
        std::ptr::copy_nonoverlapping(part.0.as_ptr(), at, len);
        (before, after)
    }
}

unsafe fn rest_2(stream: __m256i, at: *mut u8, len: usize, room: usize) -> (__m256i, __m256i) {
    // SAFETY: the first block is whole or the rest; what follows it is within `len` and `room`.
    unsafe {
        let (front, back) = (_mm256_castsi256_si128(stream), _mm256_extracti128_si256::<1>(stream));
        let (before, after) = rest_1(front, at, len.min(16), room);
        let (before, after) = (_mm256_zextsi128_si256(before), _mm256_zextsi128_si256(after));
        if len <= 16 {
            return (before, after);
        }
        let (last_before, last_after) = rest_1(back, at.add(16), len - 16, room - 16);
        let join = |front, back| _mm256_inserti128_si256::<1>(front, back);
        (join(before, last_before), join(after, last_after))
    }
}
}
