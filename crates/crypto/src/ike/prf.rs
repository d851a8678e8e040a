//! Pseudorandom functions of IKEv2 (transform type 2) and prf+ (RFC 7296 §2.13).

use zeroize::Zeroize;

use super::Secret;
use crate::engine::mac::{AesMac, Hmac, MAX_OUT};
use crate::engine::{Md5, Sha1, Sha256, Sha384, Sha512};

/// A pseudorandom function.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)]
pub enum Prf {
    HmacMd5,
    HmacSha1,
    /// AES-XCBC-PRF-128 (RFC 4434).
    AesXcbc,
    HmacSha256,
    HmacSha384,
    HmacSha512,
    /// AES-CMAC-PRF-128 (RFC 4615).
    AesCmac,
}

struct PrfRow {
    prf: Prf,
    id: u16,
    name: &'static str,
    vici_name: &'static str,
    out_len: usize,
}

/// The one table: IANA number, proposal keyword, name in reports, bytes of the result.
const TABLE: [PrfRow; 7] = [
    PrfRow { prf: Prf::HmacMd5, id: 1, name: "prfmd5", vici_name: "PRF_HMAC_MD5", out_len: 16 },
    PrfRow { prf: Prf::HmacSha1, id: 2, name: "prfsha1", vici_name: "PRF_HMAC_SHA1", out_len: 20 },
    PrfRow { prf: Prf::AesXcbc, id: 4, name: "prfaesxcbc", vici_name: "PRF_AES128_XCBC", out_len: 16 },
    PrfRow { prf: Prf::HmacSha256, id: 5, name: "prfsha256", vici_name: "PRF_HMAC_SHA2_256", out_len: 32 },
    PrfRow { prf: Prf::HmacSha384, id: 6, name: "prfsha384", vici_name: "PRF_HMAC_SHA2_384", out_len: 48 },
    PrfRow { prf: Prf::HmacSha512, id: 7, name: "prfsha512", vici_name: "PRF_HMAC_SHA2_512", out_len: 64 },
    PrfRow { prf: Prf::AesCmac, id: 8, name: "prfaescmac", vici_name: "PRF_AES128_CMAC", out_len: 16 },
];

impl Prf {
    /// Every function, in the order of the IANA numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.prf)
    }

    fn row(self) -> &'static PrfRow {
        TABLE.iter().find(|row| row.prf == self).expect("each function has a row")
    }

    /// IANA transform ID (type 2).
    pub fn id(self) -> u16 {
        self.row().id
    }

    /// The function of a transform ID.
    pub fn from_id(id: u16) -> Option<Self> {
        TABLE.iter().find(|row| row.id == id).map(|row| row.prf)
    }

    /// Proposal keyword: `prfsha256`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The function of a proposal keyword.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.prf)
    }

    /// Name in reports: `PRF_HMAC_SHA2_256`.
    pub fn vici_name(self) -> &'static str {
        self.row().vici_name
    }

    /// Refused without being allowed by name (RFC 8247 §2.2: MUST NOT).
    pub fn weak(self) -> bool {
        self == Self::HmacMd5
    }

    /// Preferred key length in bytes (RFC 7296 §2.13): that of SK_d, SK_pi and SK_pr.
    pub fn key_len(self) -> usize {
        self.out_len()
    }

    /// Bytes of the result.
    pub fn out_len(self) -> usize {
        self.row().out_len
    }

    /// Number of bytes of each nonce in the key for SKEYSEED: `None` for all of them, 8 for the two
    /// functions that once had a fixed key length (RFC 7296 §2.14).
    pub fn seed_nonce_len(self) -> Option<usize> {
        matches!(self, Self::AesXcbc | Self::AesCmac).then_some(8)
    }

    /// The function of the concatenated parts; [`Prf::out_len`] bytes. Keys of any length.
    pub fn compute(self, key: &[u8], parts: &[&[u8]]) -> Secret {
        let mut out = [0; MAX_OUT];
        self.keyed(key).compute(parts.iter().copied(), &mut out);
        let result = Secret::from_slice(&out[..self.out_len()]);
        out.zeroize();
        result
    }

    /// prf+ (RFC 7296 §2.13): fills `out` from the concatenated parts of `seed`.
    ///
    /// # Panics
    /// When `out` is longer than 255 results, for which prf+ is not defined: no set of IKE keys is.
    pub fn plus(self, key: &[u8], seed: &[&[u8]], out: &mut [u8]) {
        let len = self.out_len();
        assert!(out.len() <= 255 * len, "prf+ gives at most 255 blocks");
        let (keyed, mut block, mut last, mut last_len) = (self.keyed(key), [0; MAX_OUT], [0; MAX_OUT], 0);
        for (counter, part) in (1u8..=255).zip(out.chunks_mut(len)) {
            last = block;
            let counter = [counter];
            let pieces = std::iter::once(&last[..last_len]).chain(seed.iter().copied()).chain([&counter[..]]);
            keyed.compute(pieces, &mut block);
            part.copy_from_slice(&block[..part.len()]);
            last_len = len;
        }
        block.zeroize();
        last.zeroize();
    }

    fn keyed(self, key: &[u8]) -> Keyed {
        match self {
            Self::HmacMd5 => Keyed::Md5(Hmac::new(key)),
            Self::HmacSha1 => Keyed::Sha1(Hmac::new(key)),
            Self::HmacSha256 => Keyed::Sha256(Hmac::new(key)),
            Self::HmacSha384 => Keyed::Sha384(Hmac::new(key)),
            Self::HmacSha512 => Keyed::Sha512(Hmac::new(key)),
            Self::AesXcbc => Keyed::Aes(xcbc(key)),
            Self::AesCmac => Keyed::Aes(cmac(key)),
        }
    }
}

/// A function with its key taken in.
#[allow(clippy::large_enum_variant)] // It lives on the stack for one computation.
enum Keyed {
    Md5(Hmac<Md5>),
    Sha1(Hmac<Sha1>),
    Sha256(Hmac<Sha256>),
    Sha384(Hmac<Sha384>),
    Sha512(Hmac<Sha512>),
    Aes(AesMac),
}

impl Keyed {
    fn compute<'m>(&self, pieces: impl Iterator<Item = &'m [u8]>, out: &mut [u8; MAX_OUT]) {
        let pieces = pieces.filter(|piece| !piece.is_empty());
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

const BLOCK_KEY: &str = "16 bytes are an AES-128 key";

/// AES-XCBC keyed as RFC 4434 §2 has it: shorter keys are padded with zeros, longer ones hashed.
fn xcbc(key: &[u8]) -> AesMac {
    let mut block = [0; MAX_OUT];
    if key.len() <= 16 {
        block[..key.len()].copy_from_slice(key);
    } else {
        AesMac::xcbc(&[0; 16]).expect(BLOCK_KEY).compute([key].into_iter(), &mut block);
    }
    let mac = AesMac::xcbc(&block[..16]).expect(BLOCK_KEY);
    block.zeroize();
    mac
}

/// AES-CMAC keyed as RFC 4615 §3 has it: keys of any length but 16 are hashed.
fn cmac(key: &[u8]) -> AesMac {
    let mut block = [0; MAX_OUT];
    if key.len() == 16 {
        block[..16].copy_from_slice(key);
    } else {
        AesMac::cmac(&[0; 16]).expect(BLOCK_KEY).compute([key].into_iter(), &mut block);
    }
    let mac = AesMac::cmac(&block[..16]).expect(BLOCK_KEY);
    block.zeroize();
    mac
}

#[cfg(test)]
mod tests {
    use super::super::tests::unhex;
    use super::*;

    #[test]
    fn numbers_and_names_lead_back() {
        for prf in Prf::all() {
            assert_eq!((Prf::from_id(prf.id()), Prf::from_name(prf.name())), (Some(prf), Some(prf)));
            assert_eq!(prf.compute(b"key", &[]).len(), prf.out_len());
        }
        assert_eq!((Prf::from_id(0), Prf::from_id(3), Prf::from_id(9)), (None, None, None));
    }

    /// RFC 2202 and RFC 4231, test cases 2 and 6.
    #[test]
    fn hmac() {
        let (what, long) = (b"what do ya want for nothing?", [0xaa; 131]);
        let text = b"Test Using Larger Than Block-Size Key - Hash Key First";
        for (prf, short_key, long_key) in [
            (Prf::HmacMd5, "750c783e6ab0b503eaa86e310a5db738", "6b1ab7fe4bd7bf8f0b62e6ce61b9d0cd"),
            (Prf::HmacSha1, "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79", "aa4ae5e15272d00e95705637ce8a3b55ed402112"),
            (
                Prf::HmacSha256,
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
            (Prf::HmacSha384, "af45d2e376484031617f78d2b58a6b1b9c7ef464f5a01b47", "4ece084485813e9088d2c63a041bc5b4"),
            (Prf::HmacSha512, "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd6", "80b24263c7c1a3ebb71493c1dd7be8b4"),
        ] {
            let long = if prf.out_len() < 32 { &long[..80] } else { &long[..] };
            assert!(prf.compute(b"Jefe", &[&what[..7], &what[7..]]).starts_with(&unhex(short_key)), "{prf:?}");
            assert!(prf.compute(long, &[text]).starts_with(&unhex(long_key)), "{prf:?}");
        }
    }

    /// The test cases of RFC 4434 §3 and RFC 4615 §4: one message, keys of 16, 10 and 18 bytes.
    #[test]
    fn aes_with_keys_of_any_length() {
        let key = unhex("000102030405060708090a0b0c0d0e0fedcb");
        let message: Vec<u8> = (0..20).collect();
        for (prf, key_len, want) in [
            (Prf::AesXcbc, 16, "47f51b4564966215b8985c63055ed308"),
            (Prf::AesXcbc, 10, "0fa087af7d866e7653434e602fdde835"),
            (Prf::AesXcbc, 18, "8cd3c93ae598a9803006ffb67c40e9e4"),
            (Prf::AesCmac, 18, "84a348a4a45d235babfffc0d2b4da09a"),
            (Prf::AesCmac, 16, "980ae87b5f4c9c5214f5b6a8455e4c2d"),
            (Prf::AesCmac, 10, "290d9e112edb09ee141fcf64c0b72f3d"),
        ] {
            assert_eq!(prf.compute(&key[..key_len], &[&message]).as_slice(), unhex(want), "{prf:?} {key_len}");
        }
    }

    /// The definition, written out.
    fn slow_plus(prf: Prf, key: &[u8], seed: &[u8], len: usize) -> Vec<u8> {
        let (mut all, mut last) = (Vec::new(), Vec::new());
        for counter in 1..=255 {
            last = prf.compute(key, &[&[&last[..], seed, &[counter]].concat()]).to_vec();
            all.extend_from_slice(&last);
        }
        all.truncate(len);
        all
    }

    #[test]
    fn plus_is_its_definition_up_to_the_last_block() {
        for prf in Prf::all() {
            for len in [0, 1, prf.out_len() - 1, prf.out_len(), prf.out_len() + 1, 300, 255 * prf.out_len()] {
                let mut out = vec![0xee; len];
                prf.plus(b"the key", &[b"Ni", b"", b"Nr and SPIs"], &mut out);
                assert_eq!(out, slow_plus(prf, b"the key", b"NiNr and SPIs", len), "{prf:?} {len}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "at most 255 blocks")]
    fn plus_has_an_end() {
        Prf::HmacMd5.plus(b"", &[], &mut [0; 255 * 16 + 1]);
    }
}
