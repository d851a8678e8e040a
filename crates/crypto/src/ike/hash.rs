//! Hash functions, by name and by the numbers of RFC 7427.

use crate::engine::{self, Hash as _};

/// A hash function.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)]
pub enum Hash {
    Md5,
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

/// A hash algorithm as the notification `SIGNATURE_HASH_ALGORITHMS` lists it (RFC 7427 §4, §7).
/// Peers may list numbers that are not known here.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct HashId(pub u16);

#[allow(missing_docs)]
impl HashId {
    pub const SHA1: Self = Self(1);
    pub const SHA2_256: Self = Self(2);
    pub const SHA2_384: Self = Self(3);
    pub const SHA2_512: Self = Self(4);
    /// No separate hash: the signature algorithm hashes the message itself (RFC 8420 §2), as
    /// Ed25519 does.
    pub const IDENTITY: Self = Self(5);

    /// Hashes to announce: all except SHA-1 (RFC 8247 §3.2).
    pub const OFFERED: [Self; 4] = [Self::SHA2_256, Self::SHA2_384, Self::SHA2_512, Self::IDENTITY];

    /// The function of the number; `None` for IDENTITY and for numbers that are not known.
    pub fn hash(self) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.id() == Some(self))
    }
}

impl Hash {
    /// Every function.
    pub const ALL: [Self; 5] = [Self::Md5, Self::Sha1, Self::Sha256, Self::Sha384, Self::Sha512];

    /// Bytes of the result.
    pub fn len(self) -> usize {
        match self {
            Self::Md5 => engine::Md5::OUT,
            Self::Sha1 => engine::Sha1::OUT,
            Self::Sha256 => engine::Sha256::OUT,
            Self::Sha384 => engine::Sha384::OUT,
            Self::Sha512 => engine::Sha512::OUT,
        }
    }

    /// Always false: every function has a result. Exists because clippy requires it beside `len`.
    pub fn is_empty(self) -> bool {
        false
    }

    /// Number of RFC 7427; MD5 has none.
    pub fn id(self) -> Option<HashId> {
        match self {
            Self::Md5 => None,
            Self::Sha1 => Some(HashId::SHA1),
            Self::Sha256 => Some(HashId::SHA2_256),
            Self::Sha384 => Some(HashId::SHA2_384),
            Self::Sha512 => Some(HashId::SHA2_512),
        }
    }

    /// Name in configurations: `sha256`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// The function of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.name() == name)
    }

    /// The hash of the concatenated parts; [`Hash::len`] bytes.
    pub fn digest(self, parts: &[&[u8]]) -> Vec<u8> {
        fn run<H: engine::Hash>(parts: &[&[u8]]) -> Vec<u8> {
            // The longest result, that of SHA-512.
            let (mut hash, mut out) = (H::start(), [0; 64]);
            parts.iter().for_each(|part| hash.update(part));
            hash.finish(&mut out);
            out[..H::OUT].to_vec()
        }
        match self {
            Self::Md5 => run::<engine::Md5>(parts),
            Self::Sha1 => run::<engine::Sha1>(parts),
            Self::Sha256 => run::<engine::Sha256>(parts),
            Self::Sha384 => run::<engine::Sha384>(parts),
            Self::Sha512 => run::<engine::Sha512>(parts),
        }
    }
}

/// SHA-1 of one slice: identifies the public keys of CAs in CERTREQ payloads (RFC 7296 §3.7). Not
/// a signature hash, so that collisions gain an attacker nothing.
pub(crate) fn sha1(bytes: &[u8]) -> [u8; 20] {
    let mut name = [0; 20];
    name.copy_from_slice(&Hash::Sha1.digest(&[bytes]));
    name
}

#[cfg(test)]
mod tests {
    use super::super::tests::unhex;
    use super::*;

    /// "abc" of FIPS 180 and RFC 1321, in two parts.
    #[test]
    fn known_hashes() {
        for (hash, start) in [
            (Hash::Md5, "900150983cd24fb0d6963f7d28e17f72"),
            (Hash::Sha1, "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (Hash::Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (Hash::Sha384, "cb00753f45a35e8bb5a03d699ac65007"),
            (Hash::Sha512, "ddaf35a193617abacc417349ae204131"),
        ] {
            let digest = hash.digest(&[b"a", b"", b"bc"]);
            assert!(digest.starts_with(&unhex(start)), "{hash:?}");
            assert_eq!(digest.len(), hash.len());
        }
        assert_eq!(sha1(b"abc")[..2], [0xa9, 0x99]);
    }

    #[test]
    fn numbers_and_names_lead_back() {
        for hash in Hash::ALL {
            assert_eq!(Hash::from_name(hash.name()), Some(hash));
            assert_eq!(hash.id().map(|id| id.hash()), (hash != Hash::Md5).then_some(Some(hash)));
        }
        assert_eq!((HashId::IDENTITY.hash(), HashId(0).hash(), HashId(6).hash()), (None, None, None));
        assert!(!HashId::OFFERED.contains(&HashId::SHA1));
    }
}
