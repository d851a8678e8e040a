//! Message authentication: HMAC (RFC 2104), AES-CMAC (RFC 4493) and AES-XCBC-MAC (RFC 3566).
//!
//! A key is prepared once; per packet its state is copied on the stack. The message comes in
//! pieces, because the data that AH and ESP authenticate is not always contiguous.

use zeroize::Zeroize;

use super::aws_lc::{AesEnc, Hash, Md5, Sha1, Sha256, Sha384, Sha512};
use crate::{IntegAlg, IntegKind};

/// The longest MAC before truncation, in bytes.
pub(crate) const MAX_OUT: usize = 64;

/// HMAC with precomputed inner and outer state.
pub(crate) struct Hmac<H> {
    inner: H,
    outer: H,
}

impl<H: Hash> Hmac<H> {
    /// Any key length, as RFC 2104 §2 has it.
    pub(crate) fn new(key: &[u8]) -> Self {
        let mut block = [0; 128];
        if key.len() <= H::BLOCK {
            block[..key.len()].copy_from_slice(key);
        } else {
            let (mut hash, mut out) = (H::start(), [0; MAX_OUT]);
            hash.update(key);
            hash.finish(&mut out);
            block[..H::OUT].copy_from_slice(&out[..H::OUT]);
            out.zeroize();
        }
        let padded = |block: &mut [u8; 128], pad: u8| {
            block.iter_mut().for_each(|byte| *byte ^= pad);
            let mut hash = H::start();
            hash.update(&block[..H::BLOCK]);
            hash
        };
        let inner = padded(&mut block, 0x36);
        let outer = padded(&mut block, 0x36 ^ 0x5c);
        block.zeroize();
        Self { inner, outer }
    }

    /// The MAC of the concatenated pieces, in the first `H::OUT` bytes of `out`.
    pub(crate) fn compute<'m>(&self, pieces: impl Iterator<Item = &'m [u8]>, out: &mut [u8; MAX_OUT]) {
        let mut hash = self.inner.clone();
        pieces.for_each(|piece| hash.update(piece));
        hash.finish(out);
        let mut hash = self.outer.clone();
        hash.update(&out[..H::OUT]);
        hash.finish(out);
    }
}

/// AES-CMAC and AES-XCBC-MAC: CBC-MAC with a masked last block; the mask depends on whether it was
/// padded.
pub(crate) struct AesMac {
    key: AesEnc,
    whole: [u8; 16],
    padded: [u8; 16],
}

impl AesMac {
    /// AES-CMAC. `None` unless `key` is an AES key.
    pub(crate) fn cmac(key: &[u8]) -> Option<Self> {
        let key = AesEnc::new(key)?;
        let mut subkey = [0; 16];
        key.block(&mut subkey);
        let whole = double(subkey);
        let padded = double(whole);
        subkey.zeroize();
        Some(Self { key, whole, padded })
    }

    /// AES-XCBC-MAC. `None` unless `key` has 16 bytes.
    pub(crate) fn xcbc(key: &[u8]) -> Option<Self> {
        let master = AesEnc::new(key).filter(|_| key.len() == 16)?;
        let [mut first, mut whole, mut padded] = [[1; 16], [2; 16], [3; 16]];
        master.block(&mut first);
        master.block(&mut whole);
        master.block(&mut padded);
        let key = AesEnc::new(&first);
        first.zeroize();
        Some(Self { key: key?, whole, padded })
    }

    /// The MAC of exactly one block: what a key derivation needs.
    pub(crate) fn one_block(&self, block: [u8; 16]) -> [u8; 16] {
        let mut mac = block;
        xor(&mut mac, &self.whole);
        self.key.block(&mut mac);
        mac
    }

    /// The MAC of the concatenated pieces, in the first 16 bytes of `out`.
    pub(crate) fn compute<'m>(&self, pieces: impl Iterator<Item = &'m [u8]>, out: &mut [u8; MAX_OUT]) {
        let mut chain = [0; 16];
        // Buffer for the last bytes: a full block stays here until more data follows, because the
        // last block is masked.
        let (mut held, mut len) = ([0; 16], 0);
        for mut piece in pieces {
            while !piece.is_empty() {
                if len == 16 {
                    xor(&mut chain, &held);
                    self.key.block(&mut chain);
                    len = 0;
                    // All whole blocks of this piece except the last bypass the buffer.
                    while let Some((block, rest)) = piece.split_first_chunk::<16>().filter(|(_, r)| !r.is_empty()) {
                        xor(&mut chain, block);
                        self.key.block(&mut chain);
                        piece = rest;
                    }
                }
                let (now, later) = piece.split_at(piece.len().min(16 - len));
                held[len..len + now.len()].copy_from_slice(now);
                (len, piece) = (len + now.len(), later);
            }
        }
        if len == 16 {
            xor(&mut held, &self.whole);
        } else {
            held[len] = 0x80;
            held[len + 1..].fill(0);
            xor(&mut held, &self.padded);
        }
        xor(&mut chain, &held);
        self.key.block(&mut chain);
        out[..16].copy_from_slice(&chain);
    }
}

impl Drop for AesMac {
    fn drop(&mut self) {
        self.whole.zeroize();
        self.padded.zeroize();
    }
}

fn xor(into: &mut [u8; 16], with: &[u8; 16]) {
    *into = (u128::from_ne_bytes(*into) ^ u128::from_ne_bytes(*with)).to_ne_bytes();
}

/// Multiplication by x in GF(2¹²⁸) (RFC 4493 §2.3), without a branch on the secret.
fn double(block: [u8; 16]) -> [u8; 16] {
    let value = u128::from_be_bytes(block);
    ((value << 1) ^ ((value >> 127) * 0x87)).to_be_bytes()
}

/// A MAC key of any kind.
#[allow(clippy::large_enum_variant)] // One indirection per packet costs more than the bytes.
pub(crate) enum Mac {
    Md5(Hmac<Md5>),
    Sha1(Hmac<Sha1>),
    Sha256(Hmac<Sha256>),
    Sha384(Hmac<Sha384>),
    Sha512(Hmac<Sha512>),
    Aes(AesMac),
}

impl Mac {
    /// `None` when the key's length is not the algorithm's.
    pub(crate) fn new(alg: &IntegAlg, key: &[u8]) -> Option<Self> {
        if key.len() != alg.key_len {
            return None;
        }
        Some(match alg.kind {
            IntegKind::HmacMd5 => Self::Md5(Hmac::new(key)),
            IntegKind::HmacSha1 => Self::Sha1(Hmac::new(key)),
            IntegKind::HmacSha256 => Self::Sha256(Hmac::new(key)),
            IntegKind::HmacSha384 => Self::Sha384(Hmac::new(key)),
            IntegKind::HmacSha512 => Self::Sha512(Hmac::new(key)),
            IntegKind::AesXcbc => Self::Aes(AesMac::xcbc(key)?),
            IntegKind::AesCmac => Self::Aes(AesMac::cmac(key)?),
        })
    }

    /// The MAC of the concatenated pieces, from the start of `out`; the rest of `out` is
    /// unspecified.
    pub(crate) fn compute<'m>(&self, pieces: impl Iterator<Item = &'m [u8]>, out: &mut [u8; MAX_OUT]) {
        match self {
            Self::Md5(key) => key.compute(pieces, out),
            Self::Sha1(key) => key.compute(pieces, out),
            Self::Sha256(key) => key.compute(pieces, out),
            Self::Sha384(key) => key.compute(pieces, out),
            Self::Sha512(key) => key.compute(pieces, out),
            Self::Aes(key) => key.compute(pieces, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hmac<H: Hash>(key: &[u8], message: &[u8]) -> Vec<u8> {
        let mut out = [0; MAX_OUT];
        Hmac::<H>::new(key).compute([message].into_iter(), &mut out);
        out[..H::OUT].to_vec()
    }

    /// RFC 4231 test cases 1 and 6: keys shorter and longer than a block, which IPsec never has.
    #[test]
    fn hmac_takes_keys_of_any_length() {
        let start = |mac: Vec<u8>| u64::from_be_bytes(*mac.first_chunk().expect("8 bytes"));
        let (short, hi) = ([0x0b; 20], b"Hi There");
        assert_eq!(start(hmac::<Sha256>(&short, hi)), 0xb0344c61d8db3853);
        assert_eq!(start(hmac::<Sha384>(&short, hi)), 0xafd03944d8489562);
        assert_eq!(start(hmac::<Sha512>(&short, hi)), 0x87aa7cdea5ef619d);
        let (long, text) = ([0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First");
        assert_eq!(start(hmac::<Sha256>(&long, text)), 0x60e431591ee0b67f);
        assert_eq!(start(hmac::<Sha384>(&long, text)), 0x4ece084485813e90);
        assert_eq!(start(hmac::<Sha512>(&long, text)), 0x80b24263c7c1a3eb);
        // RFC 2202 cases 6.
        let long = [0xaa; 80];
        assert_eq!(start(hmac::<Md5>(&long, text)), 0x6b1ab7fe4bd7bf8f);
        assert_eq!(start(hmac::<Sha1>(&long, text)), 0xaa4ae5e15272d00e);
    }

    #[test]
    fn pieces_make_no_difference() {
        let message: Vec<u8> = (0..200).collect();
        let integ = |name| IntegAlg::by_name(name).expect("a name");
        for alg in [integ("aescmac"), integ("aesxcbc"), integ("sha256")] {
            let mac = Mac::new(alg, &[5; 32][..alg.key_len]).expect("a key");
            for len in [0, 1, 15, 16, 17, 31, 32, 33, 48, 200] {
                let (mut whole, mut parts) = ([0; MAX_OUT], [0; MAX_OUT]);
                mac.compute([&message[..len]].into_iter(), &mut whole);
                for size in [1, 3, 15, 16, 17, 32, 47] {
                    mac.compute(message[..len].chunks(size), &mut parts);
                    assert_eq!(whole, parts, "{} bytes by {size}", len);
                }
            }
        }
    }

    /// RFC 4493 §4, subkey generation.
    #[test]
    fn cmac_subkeys() {
        let key = 0x2b7e151628aed2a6abf7158809cf4f3c_u128.to_be_bytes();
        let mac = AesMac::cmac(&key).expect("a key");
        assert_eq!(mac.whole, 0xfbeed618357133667c85e08f7236a8de_u128.to_be_bytes());
        assert_eq!(mac.padded, 0xf7ddac306ae266ccf90bc11ee46d513b_u128.to_be_bytes());
        let (block, mut out) = ([9; 16], [0; MAX_OUT]);
        mac.compute([&block[..]].into_iter(), &mut out);
        assert_eq!(mac.one_block(block), out[..16]);
    }
}
