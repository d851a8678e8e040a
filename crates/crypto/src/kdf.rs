//! Key derivation for PSP and for EESP Sub SAs.
//!
//! Both give one key for one label (an SPI, a Session ID) from a long-lived root, cheaply enough to
//! run when a packet arrives: the roots are expanded when they are made.

use zeroize::Zeroize;

use crate::engine::mac::{AesMac, Hmac, MAX_OUT};
use crate::engine::{Sha256, Sha384, Sha512};

/// A PSP device key of one receiver: every traffic key it hands out derives from it. Expanded once;
/// zeroed on drop.
pub struct PspMasterKey(AesMac);

impl PspMasterKey {
    /// Expands a 256-bit master key. The caller zeroes its own copy.
    pub fn new(key: &[u8; 32]) -> Self {
        Self(AesMac::cmac(key).expect("32 bytes are an AES-256 key"))
    }
}

/// A key that was derived, with the salt its cipher wants behind it. Zeroed on drop; has no `Debug`.
pub struct DerivedKeyBytes {
    bytes: [u8; 36],
    key_len: usize,
    material_len: usize,
}

impl DerivedKeyBytes {
    /// The key alone; 16 or 32 bytes.
    pub fn key(&self) -> &[u8] {
        &self.bytes[..self.key_len]
    }

    /// Key and salt, as [`crate::KeyMaterial::enc`] takes them. PSP's salt is the SPI, because its
    /// nonce is SPI and IV as they stand in the header.
    pub fn material(&self) -> &[u8] {
        &self.bytes[..self.material_len]
    }
}

impl Drop for DerivedKeyBytes {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

/// The traffic key of `spi` in PSP `version` 0 to 3: NIST SP 800-108 in counter mode with
/// AES-256-CMAC, whatever the size of the traffic key (PSP Architecture Specification, "Key
/// derivation"). 128 bits for the even versions, 256 for the odd ones; bit 31 of the SPI, which
/// selects the master key, is part of the input.
///
/// An unknown version gives an empty key, which every suite refuses for its length.
pub fn derive_psp_key(master: &PspMasterKey, spi: u32, version: u8) -> DerivedKeyBytes {
    let mut derived = DerivedKeyBytes { bytes: [0; 36], key_len: 0, material_len: 0 };
    if version > 3 {
        return derived;
    }
    derived.key_len = if version.is_multiple_of(2) { 16 } else { 32 };
    derived.material_len = derived.key_len + 4;
    for (counter, half) in (1u32..).zip(derived.bytes[..derived.key_len].chunks_exact_mut(16)) {
        let mut input = [0; 16];
        input[..4].copy_from_slice(&counter.to_be_bytes());
        input[4..8].copy_from_slice(&[b'P', b'v', b'0' | version, 0]);
        input[8..12].copy_from_slice(&spi.to_be_bytes());
        input[12..].copy_from_slice(&(derived.key_len as u32 * 8).to_be_bytes());
        let mut output = master.0.one_block(input);
        half.copy_from_slice(&output);
        output.zeroize();
    }
    derived.bytes[derived.key_len..derived.material_len].copy_from_slice(&spi.to_be_bytes());
    derived
}

/// A key derivation function for EESP Sub SAs (draft-ietf-ipsecme-eesp): HKDF-Expand of RFC 5869.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)]
pub enum SubSaKdf {
    HkdfSha256,
    HkdfSha384,
    HkdfSha512,
}

impl SubSaKdf {
    /// Every function.
    pub const ALL: [Self; 3] = [Self::HkdfSha256, Self::HkdfSha384, Self::HkdfSha512];

    /// Bytes of a root key: those of the hash output.
    pub fn root_len(self) -> usize {
        match self {
            Self::HkdfSha256 => 32,
            Self::HkdfSha384 => 48,
            Self::HkdfSha512 => 64,
        }
    }

    /// Transform ID of the type SSKDF in the draft.
    pub fn id(self) -> u16 {
        match self {
            Self::HkdfSha256 => 1,
            Self::HkdfSha384 => 2,
            Self::HkdfSha512 => 3,
        }
    }
}

/// The root key of an EESP SA in one direction, from which its Sub SA keys come. Expanded once;
/// zeroed on drop.
pub struct SubSaRoot(Root);

enum Root {
    Sha256(Hmac<Sha256>),
    Sha384(Hmac<Sha384>),
    Sha512(Hmac<Sha512>),
}

impl SubSaRoot {
    /// The longest keying material: 255 blocks of the shortest hash (RFC 5869 §2.3).
    pub const MAX_LEN: usize = 255 * 32;

    /// `None` unless `root` has [`SubSaKdf::root_len`] bytes.
    pub fn new(kdf: SubSaKdf, root: &[u8]) -> Option<Self> {
        (root.len() == kdf.root_len()).then(|| {
            Self(match kdf {
                SubSaKdf::HkdfSha256 => Root::Sha256(Hmac::new(root)),
                SubSaKdf::HkdfSha384 => Root::Sha384(Hmac::new(root)),
                SubSaKdf::HkdfSha512 => Root::Sha512(Hmac::new(root)),
            })
        })
    }

    /// Fills `keymat` with the key, and its salt, of the Sub SA `session_id`.
    ///
    /// # Panics
    /// When `keymat` is longer than [`SubSaRoot::MAX_LEN`]: no suite's is.
    pub fn derive(&self, session_id: u16, keymat: &mut [u8]) {
        assert!(keymat.len() <= Self::MAX_LEN, "HKDF-Expand gives at most 255 blocks");
        match &self.0 {
            Root::Sha256(root) => expand(session_id, keymat, 32, |pieces, out| root.compute(pieces.into_iter(), out)),
            Root::Sha384(root) => expand(session_id, keymat, 48, |pieces, out| root.compute(pieces.into_iter(), out)),
            Root::Sha512(root) => expand(session_id, keymat, 64, |pieces, out| root.compute(pieces.into_iter(), out)),
        }
    }
}

/// HKDF-Expand with the Session ID, two bytes in network order, as its whole `info`.
fn expand(session_id: u16, keymat: &mut [u8], hash_len: usize, hmac: impl Fn([&[u8]; 3], &mut [u8; MAX_OUT])) {
    let (mut block, mut last) = ([0; MAX_OUT], [0; MAX_OUT]);
    for (index, part) in keymat.chunks_mut(hash_len).enumerate() {
        let previous = if index == 0 { 0 } else { hash_len };
        hmac([&last[..previous], &session_id.to_be_bytes(), &[index as u8 + 1]], &mut block);
        part.copy_from_slice(&block[..part.len()]);
        last = block;
    }
    block.zeroize();
    last.zeroize();
}
