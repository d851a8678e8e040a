//! The MODP groups (RFC 2409 §6.2, RFC 3526): Diffie-Hellman modulo a safe prime.

use std::sync::OnceLock;

use super::{Secret, foreign};

/// A group: generator 2 modulo a prime of `bits` bits.
pub(super) struct Group {
    bits: usize,
    /// Bytes of a private exponent: at least the larger estimate of RFC 3526 §8, so that the
    /// exponent is never the weaker half.
    exponent_len: usize,
    prime: OnceLock<Vec<u8>>,
}

impl Group {
    const fn new(bits: usize, exponent_len: usize) -> Self {
        Self { bits, exponent_len, prime: OnceLock::new() }
    }
}

pub(super) static MODP1024: Group = Group::new(1024, 32);
pub(super) static MODP1536: Group = Group::new(1536, 32);
pub(super) static MODP2048: Group = Group::new(2048, 40);
pub(super) static MODP3072: Group = Group::new(3072, 56);
pub(super) static MODP4096: Group = Group::new(4096, 64);
pub(super) static MODP6144: Group = Group::new(6144, 72);
pub(super) static MODP8192: Group = Group::new(8192, 80);

/// The second Oakley group (RFC 2409 §6.2), which AWS-LC no longer has.
const PRIME_1024: [u32; 32] = [
    0xffffffff, 0xffffffff, 0xc90fdaa2, 0x2168c234, 0xc4c6628b, 0x80dc1cd1, 0x29024e08, 0x8a67cc74, 0x020bbea6,
    0x3b139b22, 0x514a0879, 0x8e3404dd, 0xef9519b3, 0xcd3a431b, 0x302b0a6d, 0xf25f1437, 0x4fe1356d, 0x6d51c245,
    0xe485b576, 0x625e7ec6, 0xf44c42e9, 0xa637ed6b, 0x0bff5cb6, 0xf406b7ed, 0xee386bfb, 0x5a899fa5, 0xae9f2411,
    0x7c4b1fe6, 0x49286651, 0xece65381, 0xffffffff, 0xffffffff,
];

impl Group {
    /// The prime, big-endian.
    pub(super) fn prime(&self) -> &[u8] {
        self.prime.get_or_init(|| match self.bits {
            1024 => PRIME_1024.iter().flat_map(|word| word.to_be_bytes()).collect(),
            bits => foreign::rfc3526_prime(bits).expect("AWS-LC has the primes of RFC 3526"),
        })
    }

    /// Bytes of a public value and of the shared secret.
    pub(super) fn len(&self) -> usize {
        self.bits / 8
    }

    /// A random private exponent with its public value. `None` when memory is short.
    pub(super) fn generate(&self) -> Option<(Secret, Vec<u8>)> {
        let mut exponent = vec![0; self.exponent_len];
        crate::random(&mut exponent);
        let exponent = Secret::new(exponent);
        let public = foreign::mod_exp(self.prime(), &[2], &exponent)?;
        // An exponent whose public value the peer must refuse is as likely as a guessed key.
        self.is_public(&public).then_some((exponent, public))
    }

    /// The shared secret, padded to the length of the prime. `None` unless the public value is
    /// good.
    pub(super) fn agree(&self, exponent: &Secret, peer_public: &[u8]) -> Option<Secret> {
        if !self.is_public(peer_public) {
            return None;
        }
        foreign::mod_exp(self.prime(), peer_public, exponent).map(Secret::new)
    }

    /// RFC 6989 §2.1: above 1 and below p − 1, and of the prime's length (RFC 7296 §3.4). The prime
    /// is safe, so there is no other small subgroup.
    pub(super) fn is_public(&self, value: &[u8]) -> bool {
        let prime = self.prime();
        let Some((last, front)) = value.split_last().filter(|_| value.len() == prime.len()) else { return false };
        let above_one = *last > 1 || front.iter().any(|byte| *byte != 0);
        // The prime is odd: p − 1 differs in its last bit alone.
        let (prime_last, prime_front) = prime.split_last().expect("a prime has bytes");
        above_one && (front, *last) < (prime_front, prime_last ^ 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fixed-point number: 32-bit digits, the most significant first, the first one whole.
    type Fixed = Vec<u32>;

    fn divide(number: &mut Fixed, by: u32) {
        let mut rest = 0u64;
        for digit in number {
            let value = rest << 32 | u64::from(*digit);
            (*digit, rest) = ((value / u64::from(by)) as u32, value % u64::from(by));
        }
    }

    fn add(to: &mut Fixed, number: &[u32]) {
        let mut carry = 0;
        for (digit, other) in to.iter_mut().zip(number).rev() {
            let value = u64::from(*digit) + u64::from(*other) + carry;
            (*digit, carry) = (value as u32, value >> 32);
        }
    }

    fn subtract(from: &mut Fixed, number: &[u32]) {
        let inverse: Fixed = number.iter().map(|digit| !digit).collect();
        let mut one = vec![0; number.len()];
        one[number.len() - 1] = 1;
        add(from, &inverse);
        add(from, &one);
    }

    /// `factor` times the arc tangent of 1/`x`.
    fn arctan(factor: u32, x: u32, digits: usize) -> Fixed {
        let mut power = vec![0; digits];
        power[0] = factor;
        divide(&mut power, x);
        let (mut sum, mut n) = (power.clone(), 1);
        while power.iter().any(|digit| *digit != 0) {
            divide(&mut power, x * x);
            n += 2;
            let mut term = power.clone();
            divide(&mut term, n);
            if n % 4 == 3 { subtract(&mut sum, &term) } else { add(&mut sum, &term) }
        }
        sum
    }

    /// Machin: π/4 = 4 arctan 1/5 − arctan 1/239.
    fn pi(digits: usize) -> Fixed {
        let mut pi = arctan(16, 5, digits);
        subtract(&mut pi, &arctan(4, 239, digits));
        pi
    }

    /// The primes are what RFC 2409 and RFC 3526 say: 2^n − 2^(n−64) − 1 + 2^64 ([2^(n−130) π] +
    /// k).
    #[test]
    fn primes_are_made_of_pi() {
        let pi = pi(8192 / 32 + 4);
        assert_eq!(pi[..3], [3, 0x243f6a88, 0x85a308d3]);
        for (group, k) in [
            (&MODP1024, 129_093),
            (&MODP1536, 741_804),
            (&MODP2048, 124_476),
            (&MODP3072, 1_690_314),
            (&MODP4096, 240_904),
            (&MODP6144, 929_484),
            (&MODP8192, 4_743_158),
        ] {
            let words: Vec<u32> =
                group.prime().chunks(4).map(|w| u32::from_be_bytes(w.try_into().expect("4"))).collect();
            assert_eq!(words.len(), group.bits / 32);
            let (middle_at, last_at) = (2, words.len() - 2);
            assert!(words[..middle_at].iter().chain(&words[last_at..]).all(|word| *word == u32::MAX));
            // π 2^(n−130) has n − 128 bits, the first two of which are its whole part: shifted left
            // by 30 bits the fixed-point digits are the words between.
            let shifted = |at: usize| pi[at] << 30 | pi[at + 1] >> 2;
            let mut want: Vec<u32> = (0..last_at - middle_at).map(shifted).collect();
            let mut addend = vec![0; want.len()];
            // The 1 that is taken away makes the lowest 64 bits ones, and one more goes from here.
            *addend.last_mut().expect("words") = k - 1;
            add(&mut want, &addend);
            assert_eq!(words[middle_at..last_at], want, "{} bits", group.bits);
        }
    }

    #[test]
    fn powers_are_powers() {
        // 2^10 and 3^4 modulo 1000003, and edges.
        let modulus = [0x0f, 0x42, 0x43];
        for (base, exponent, want) in [(2, 10, 1024u32), (3, 4, 81), (2, 0, 1), (0, 5, 0), (1, 255, 1)] {
            let power = foreign::mod_exp(&modulus, &[base], &[exponent]).expect("a power");
            assert_eq!(power, want.to_be_bytes()[1..]);
        }
        assert!(foreign::mod_exp(&modulus, &[0x0f, 0x42, 0x43], &[1]).is_none(), "not reduced");
        assert!(foreign::mod_exp(&[0x0f, 0x42, 0x42], &[2], &[1]).is_none(), "even");
    }
}
