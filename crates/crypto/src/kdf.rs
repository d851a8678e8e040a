//! Key derivation for PSP and for EESP Sub SAs.
//!
//! Both derive a key for a label (an SPI, a Session ID) from a long-lived root. The roots are
//! expanded on creation, so that a derivation is fast enough for the packet path.

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

/// A derived key, followed by the salt that its cipher needs. Zeroed on drop; has no `Debug`.
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
    /// nonce is SPI and IV as in the header.
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
/// An unknown version returns an empty key, whose length is invalid for every suite.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn master(high: u128, low: u128) -> PspMasterKey {
        let mut key = [0; 32];
        key[..16].copy_from_slice(&high.to_be_bytes());
        key[16..].copy_from_slice(&low.to_be_bytes());
        PspMasterKey::new(&key)
    }

    /// The check values of the PSP Architecture Specification, and one more of its reference
    /// program.
    #[test]
    fn psp_keys_of_the_specification() {
        let k0 = master(0x34448a064292601b11a0978f56a2d34c, 0xf3fc35ede1a6bc04f8db3e5243a2b0ca);
        let k1 = master(0x563952565d3a78ae773ec1b779f2f2d9, 0x9f4a7f53a6fbb9b07d5b71f39364d739);
        for (key, spi, version, want) in [
            (&k0, 0x12345678, 0, "96c22dc799198090b74b70ae468e4e30"),
            (&k1, 0x9a345678, 0, "3946da2554eae46ad1ef77a64372edc4"),
            (&k0, 0x12345678, 1, "2b7d72074e42ca334487f2990e3f8c4037e436f38283449b76463e9b7fb2e3de"),
            (&k1, 0x9a345678, 1, "fa00f609df6020289a1c93d6027081a637ad45b24a5576b36e6f49dd43114d80"),
        ] {
            let derived = derive_psp_key(key, spi, version);
            assert_eq!(hex(derived.key()), want);
            assert_eq!(hex(derived.material()), format!("{want}{spi:08x}"));
        }
    }

    #[test]
    fn psp_versions_differ_in_label_and_length() {
        let master = master(1, 2);
        let keys: Vec<_> = (0..4).map(|version| derive_psp_key(&master, 0x1000, version)).collect();
        assert_eq!(keys.iter().map(|key| key.key().len()).collect::<Vec<_>>(), [16, 32, 16, 32]);
        assert_ne!(keys[0].key(), keys[2].key());
        assert_ne!(keys[1].key(), keys[3].key());
        for version in [4, 15, 255] {
            assert!(derive_psp_key(&master, 0x1000, version).material().is_empty());
        }
    }

    #[test]
    fn sub_sa_keys() {
        use SubSaKdf::{HkdfSha256, HkdfSha384, HkdfSha512};
        let root: Vec<u8> = (0..64).collect();
        for (kdf, session_id, want) in [
            (HkdfSha256, 0x0000, "472a557f71f01e8d125da03ec21f6b770f62b36f2d7938df3fb55ab3960795166e16532b"),
            (HkdfSha256, 0x0001, "bfb9feca177e0964367d975ca7e41bd64f44224af8851afaa04f7a2d92707dfdaeb0b4a1"),
            (HkdfSha256, 0x1234, "6d241a8efb1df3c0d7d5c3e3d8f51d78d4f48342dca2479c2483e3d7eb74a33338eeef45"),
            (HkdfSha256, 0x0005, "072343f6409488f693bf8b4fe73a9d74b3abb8e6b950e2526ee4d609f02aef0986902d09"),
            (HkdfSha384, 0x0000, "d3266d3e311626f32d13ab1919138a35fb33f3f7a465df1d5cd222528563feb2239dacf5"),
            (HkdfSha384, 0x0001, "bc435472e3a65f445e39ed5960b0f5c1f3a2e83994592b3a52d3cc860f9e6c4258d74111"),
            (HkdfSha384, 0x1234, "1832a39b620d987f75f4c367d9b477df3a257acd86220dd3821868041c9776079b89dd52"),
            (HkdfSha512, 0x0000, "cf1221a0ad1803e87fd967d3811dc310dd622071ed279f082d95bb061cdd0b9de2293fd5"),
            (HkdfSha512, 0x0001, "988a26eeb4c69dfd7829f454d63e66913bc60577a13f33b91e65886236739c0a9134f558"),
            (HkdfSha512, 0x1234, "a06c347ba9abf863dea602c293389179d8ee81291450fbc68bee77bba0519b691c870f93"),
        ] {
            let root = SubSaRoot::new(kdf, &root[..kdf.root_len()]).expect("a root key");
            let mut keymat = [0xee; 36];
            root.derive(session_id, &mut keymat);
            assert_eq!(hex(&keymat), want, "{kdf:?} {session_id:04x}");
            // A shorter output is the beginning of a longer one.
            let mut short = [0xee; 20];
            root.derive(session_id, &mut short);
            assert_eq!(hex(&short), want[..40]);
            root.derive(session_id, &mut []);
        }
        assert!(SubSaRoot::new(HkdfSha256, &root).is_none());
        assert!(SubSaRoot::new(HkdfSha512, &root[1..]).is_none());
    }

    #[test]
    fn expansion_goes_on_to_its_last_block() {
        let root = SubSaRoot::new(SubSaKdf::HkdfSha256, &[1; 32]).expect("a root key");
        let mut long = vec![0; SubSaRoot::MAX_LEN];
        root.derive(7, &mut long);
        let mut again = vec![0; 100];
        root.derive(7, &mut again);
        assert_eq!(long[..100], again);
        assert!(long[SubSaRoot::MAX_LEN - 32..].iter().any(|byte| *byte != 0));
    }
}
