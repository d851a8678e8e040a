//! The key slot of the device: round keys as bit planes, and powers of the hash key.
//!
//! AES and the field of GCM are computed here as the kernel does it, in time that does not depend
//! on the key: there is no table.

use zeroize::Zeroize;

/// Words of a key slot.
pub const KEY_WORDS: usize = 384;
/// Place of the number of rounds, after fifteen round keys.
pub(crate) const ROUNDS: usize = 120;
/// Place of H¹ … H⁶⁴, four words each, the highest first.
pub(crate) const POWERS: usize = 128;

/// Contents of a key slot. Zeroed on drop; has no `Debug`.
pub struct KeyWords(Box<[u32; KEY_WORDS]>);

impl KeyWords {
    /// Expands an AES key of 16, 24 or 32 bytes. `None` for other lengths.
    pub fn new(key: &[u8]) -> Option<Self> {
        if !matches!(key.len(), 16 | 24 | 32) {
            return None;
        }
        let mut words = Self(Box::new([0; KEY_WORDS]));
        words.expand(key);
        words.raise();
        Some(words)
    }

    /// A key slot of these words, as a device has it.
    #[cfg(test)]
    pub(crate) fn from_words(words: &[u32; KEY_WORDS]) -> Self {
        Self(Box::new(*words))
    }

    /// The words.
    pub fn words(&self) -> &[u32; KEY_WORDS] {
        &self.0
    }

    /// The key schedule (FIPS 197 §5.2), then each round key as the planes of two equal blocks.
    fn expand(&mut self, key: &[u8]) {
        let (len, rounds) = (key.len() / 4, key.len() / 4 + 6);
        let mut schedule = [0_u32; 60];
        for (word, bytes) in schedule.iter_mut().zip(key.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let mut constant = 1_u32;
        for i in len..4 * (rounds + 1) {
            let mut word = schedule[i - 1];
            if i % len == 0 {
                word = substitute(word.rotate_right(8)) ^ constant;
                constant = (constant << 1) ^ ((constant >> 7) * 0x11b);
            } else if len > 6 && i % len == 4 {
                word = substitute(word);
            }
            schedule[i] = schedule[i - len] ^ word;
        }
        for (planes, words) in self.0.chunks_exact_mut(8).zip(schedule.chunks_exact(4)).take(rounds + 1) {
            let mut q = [0; 8];
            (0..8).for_each(|i| q[i] = words[i / 2]);
            transpose(&mut q);
            planes.copy_from_slice(&q);
            q.zeroize();
        }
        self.0[ROUNDS] = rounds as u32;
        schedule.zeroize();
    }

    /// The powers of the hash key, which is the encrypted zero block.
    fn raise(&mut self) {
        let mut blocks = self.encrypt([[0; 4]; 2]);
        let mut h = blocks[0].map(u32::swap_bytes);
        blocks.zeroize();
        let mut power = h;
        for words in self.0[POWERS..].chunks_exact_mut(4) {
            words.copy_from_slice(&power);
            power = multiply(power, h);
        }
        h.zeroize();
        power.zeroize();
    }

    /// Encrypts two blocks of four words, each as it is in memory.
    pub(crate) fn encrypt(&self, blocks: [[u32; 4]; 2]) -> [[u32; 4]; 2] {
        let mut q = [0; 8];
        (0..8).for_each(|i| q[i] = blocks[i % 2][i / 2]);
        let rounds = self.0[ROUNDS] as usize;
        let add = |q: &mut [u32; 8], round: usize| (0..8).for_each(|i| q[i] ^= self.0[8 * round + i]);
        transpose(&mut q);
        add(&mut q, 0);
        for round in 1..=rounds {
            sub_bytes(&mut q);
            q = q.map(shift_rows);
            if round < rounds {
                mix_columns(&mut q);
            }
            add(&mut q, round);
        }
        transpose(&mut q);
        let blocks = [0, 1].map(|block| [0, 1, 2, 3].map(|word| q[2 * word + block]));
        // The hash key, at the expansion of a key.
        q.zeroize();
        blocks
    }
}

impl Drop for KeyWords {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Product in the field of GCM. Words from the highest; the first bit of a block is the highest.
pub(crate) fn multiply(x: [u32; 4], y: [u32; 4]) -> [u32; 4] {
    let whole = |words: [u32; 4]| words.iter().fold(0_u128, |whole, word| whole << 32 | u128::from(*word));
    let (x, mut y, mut z) = (whole(x), whole(y), 0_u128);
    for i in (0..128).rev() {
        z ^= y & 0_u128.wrapping_sub(x >> i & 1);
        y = y >> 1 ^ 0_u128.wrapping_sub(y & 1) & 0xe1 << 120;
    }
    [96, 64, 32, 0].map(|shift| (z >> shift) as u32)
}

/// The S-box on each byte of a word.
fn substitute(word: u32) -> u32 {
    let mut q = [word, 0, 0, 0, 0, 0, 0, 0];
    transpose(&mut q);
    sub_bytes(&mut q);
    transpose(&mut q);
    q[0]
}

fn exchange(q: &mut [u32; 8], i: usize, j: usize, low: u32, shift: u32) {
    let (a, b) = (q[i], q[j]);
    q[i] = a & low | (b & low) << shift;
    q[j] = (a & !low) >> shift | b & !low;
}

/// Transposes the 8 × 8 bits of each byte.
fn transpose(q: &mut [u32; 8]) {
    for i in [0, 2, 4, 6] {
        exchange(q, i, i + 1, 0x5555_5555, 1);
    }
    for i in [0, 1, 4, 5] {
        exchange(q, i, i + 2, 0x3333_3333, 2);
    }
    for i in 0..4 {
        exchange(q, i, i + 4, 0x0f0f_0f0f, 4);
    }
}

fn shift_rows(x: u32) -> u32 {
    let row = |byte: u32, right: u32| {
        let bits = x >> (8 * byte) & 0xff;
        ((bits >> right | bits << (8 - right)) & 0xff) << (8 * byte)
    };
    x & 0xff | row(1, 2) | row(2, 4) | row(3, 6)
}

fn mix_columns(q: &mut [u32; 8]) {
    let next = q.map(|x| x.rotate_right(8));
    let sum: [u32; 8] = std::array::from_fn(|i| q[i] ^ next[i]);
    for i in 0..8 {
        let doubled = if i > 0 { sum[i - 1] } else { 0 };
        let carried = if matches!(i, 0 | 1 | 3 | 4) { sum[7] } else { 0 };
        q[i] = next[i] ^ sum[i].rotate_right(16) ^ doubled ^ carried;
    }
}

/// The S-box on eight planes: the inverse as x²⁵⁴, then the affine map (FIPS 197 §5.1.1). Short and
/// slow: a key is expanded once.
fn sub_bytes(q: &mut [u32; 8]) {
    let x = *q;
    let x2 = multiply_planes(&x, &x);
    let x3 = multiply_planes(&x2, &x);
    let x6 = multiply_planes(&x3, &x3);
    let x12 = multiply_planes(&x6, &x6);
    let x15 = multiply_planes(&x12, &x3);
    let x30 = multiply_planes(&x15, &x15);
    let x60 = multiply_planes(&x30, &x30);
    let x120 = multiply_planes(&x60, &x60);
    let x240 = multiply_planes(&x120, &x120);
    let x252 = multiply_planes(&x240, &x12);
    let inverse = multiply_planes(&x252, &x2);
    for (i, plane) in q.iter_mut().enumerate() {
        let rotated = (4..8).fold(inverse[i], |sum, by| sum ^ inverse[(i + by) % 8]);
        *plane = rotated ^ 0_u32.wrapping_sub(0x63 >> i & 1);
    }
}

/// Product in the field of AES, plane by plane.
fn multiply_planes(x: &[u32; 8], y: &[u32; 8]) -> [u32; 8] {
    let mut product = [0; 15];
    for i in 0..8 {
        for j in 0..8 {
            product[i + j] ^= x[i] & y[j];
        }
    }
    // x⁸ = x⁴ + x³ + x + 1.
    for i in (8..15).rev() {
        let high = product[i];
        [8, 7, 5, 4].into_iter().for_each(|down| product[i - down] ^= high);
    }
    std::array::from_fn(|i| product[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(bytes: [u8; 16]) -> [u32; 4] {
        std::array::from_fn(|i| u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()))
    }

    #[test]
    fn blocks_are_encrypted_as_in_fips_197() {
        let plain = words(std::array::from_fn(|i| 0x11 * i as u8));
        let key: Vec<u8> = (0..32).collect();
        for (len, first, last) in
            [(16, 0x69c4_e0d8, 0x70b4_c55a), (24, 0xdda9_7ca4, 0xec0d_7191), (32, 0x8ea2_b7ca, 0x6089)]
        {
            let words = KeyWords::new(&key[..len]).unwrap();
            let [zero, block] = words.encrypt([[0; 4], plain]);
            assert_eq!((block[0].swap_bytes(), zero), (first, words.encrypt([[0; 4]; 2])[1]));
            assert_eq!(block[3].swap_bytes() & (if last > 0xffff { u32::MAX } else { 0xffff }), last);
        }
        assert!(KeyWords::new(&key[..20]).is_none());
    }

    #[test]
    fn a_product_has_its_neutral_element_and_its_order_does_not_matter() {
        let (one, x, y) = ([1 << 31, 0, 0, 0], [1, 2, 3, 0xffff_0004], [5, 0x8000_0006, 7, 9]);
        assert_eq!((multiply(x, one), multiply(one, y)), (x, y));
        assert_eq!(multiply(x, y), multiply(y, x));
        // x¹²⁷ · x = x⁷ + x² + x + 1.
        assert_eq!(multiply([0, 0, 0, 1], [1 << 30, 0, 0, 0]), [0xe100_0000, 0, 0, 0]);
    }

    #[test]
    fn powers_follow_one_another() {
        let key = KeyWords::new(&[3; 16]).unwrap();
        let power = |n: usize| <[u32; 4]>::try_from(&key.words()[POWERS + 4 * (n - 1)..][..4]).unwrap();
        assert_eq!(multiply(power(31), power(33)), power(64));
        assert_eq!(power(1), key.encrypt([[0; 4]; 2])[0].map(u32::swap_bytes));
    }
}
