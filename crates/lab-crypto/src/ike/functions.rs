//! Pseudorandom functions and hashes.

use super::{HashId, Secret, mirror, repeat};
use crate::meter::{Operation, is_null, timed};

mirror! {
    /// A pseudorandom function.
    Prf { HmacMd5, HmacSha1, AesXcbc, HmacSha256, HmacSha384, HmacSha512, AesCmac }
}

mirror! {
    /// A hash function.
    Hash { Md5, Sha1, Sha256, Sha384, Sha512 }
}

#[allow(missing_docs)] // As in weir-crypto.
impl Prf {
    pub fn all() -> impl Iterator<Item = Self> {
        crypto::ike::Prf::all().map(Self::of)
    }

    pub fn id(self) -> u16 {
        self.real().id()
    }

    pub fn from_id(id: u16) -> Option<Self> {
        crypto::ike::Prf::from_id(id).map(Self::of)
    }

    pub fn name(self) -> &'static str {
        self.real().name()
    }

    pub fn from_name(name: &str) -> Option<Self> {
        crypto::ike::Prf::from_name(name).map(Self::of)
    }

    pub fn vici_name(self) -> &'static str {
        self.real().vici_name()
    }

    pub fn weak(self) -> bool {
        self.real().weak()
    }

    pub fn key_len(self) -> usize {
        self.real().key_len()
    }

    pub fn out_len(self) -> usize {
        self.real().out_len()
    }

    pub fn seed_nonce_len(self) -> Option<usize> {
        self.real().seed_nonce_len()
    }

    #[track_caller]
    pub fn compute(self, key: &[u8], parts: &[&[u8]]) -> Secret {
        timed(Operation::Prf, || {
            if is_null() {
                let mut out = vec![0; self.out_len()];
                repeat(parts, &mut out);
                return Secret::new(out);
            }
            self.real().compute(key, parts)
        })
    }

    #[track_caller]
    pub fn plus(self, key: &[u8], seed: &[&[u8]], out: &mut [u8]) {
        timed(Operation::Prf, || match is_null() {
            true => repeat(seed, out),
            false => self.real().plus(key, seed, out),
        });
    }
}

#[allow(missing_docs)] // As in weir-crypto.
impl Hash {
    pub const ALL: [Self; 5] = [Self::Md5, Self::Sha1, Self::Sha256, Self::Sha384, Self::Sha512];

    pub fn len(self) -> usize {
        self.real().len()
    }

    pub fn is_empty(self) -> bool {
        self.real().is_empty()
    }

    pub fn id(self) -> Option<HashId> {
        self.real().id()
    }

    pub fn name(self) -> &'static str {
        self.real().name()
    }

    pub fn from_name(name: &str) -> Option<Self> {
        crypto::ike::Hash::from_name(name).map(Self::of)
    }

    #[track_caller]
    pub fn digest(self, parts: &[&[u8]]) -> Vec<u8> {
        timed(Operation::Hash, || {
            if is_null() {
                let mut out = vec![0; self.len()];
                repeat(parts, &mut out);
                return out;
            }
            self.real().digest(parts)
        })
    }
}
