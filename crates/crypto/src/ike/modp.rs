//! The MODP groups (RFC 2409 §6.2, RFC 3526): Diffie-Hellman modulo a safe prime.

use std::sync::OnceLock;

use super::{Secret, foreign};

/// A group: generator 2 modulo a prime of `bits` bits.
pub(super) struct Group {
    bits: usize,
    /// Bytes of a private exponent: at least the larger estimate of RFC 3526 §8, so that the exponent
    /// is never the weaker half.
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

/// The second Oakley group (RFC 2409 §6.2), which AWS-LC has no more.
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
        // An exponent that leads to a public value the peer has to refuse is as likely as a guessed key.
        self.is_public(&public).then_some((exponent, public))
    }

    /// The shared secret, padded to the length of the prime. `None` unless the public value is good.
    pub(super) fn agree(&self, exponent: &Secret, peer_public: &[u8]) -> Option<Secret> {
        if !self.is_public(peer_public) {
            return None;
        }
        foreign::mod_exp(self.prime(), peer_public, exponent).map(Secret::new)
    }

    /// RFC 6989 §2.1: above 1 and below p − 1, and of the prime's length (RFC 7296 §3.4). The prime
    /// is safe, so there is no other small subgroup.
    fn is_public(&self, value: &[u8]) -> bool {
        let prime = self.prime();
        let Some((last, front)) = value.split_last().filter(|_| value.len() == prime.len()) else { return false };
        let above_one = *last > 1 || front.iter().any(|byte| *byte != 0);
        // The prime is odd: p − 1 differs in its last bit alone.
        let (prime_last, prime_front) = prime.split_last().expect("a prime has bytes");
        above_one && (front, *last) < (prime_front, prime_last ^ 1)
    }
}
