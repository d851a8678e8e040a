//! Protection of IKEv2 messages: the Encrypted payload (RFC 7296 §3.14, RFC 5282) and the Encrypted
//! Fragment payload (RFC 7383).
//!
//! The packet engine encrypts; this module defines the layout of an IKE message for it. One
//! [`SkKey`] is the key of one direction of one IKE SA and is dropped with it.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Aad, CipherKind, CryptoOp, EncAlg, Engine, IntegAlg, Job, Key, KeyError, KeyId, KeyMaterial, Span, Suite};

/// Protection of the messages of an IKE SA: an AEAD, or a cipher and a MAC.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SkSuite {
    /// The cipher.
    pub enc: &'static EncAlg,
    /// The MAC; `None` for an AEAD.
    pub integ: Option<&'static IntegAlg>,
}

impl SkSuite {
    /// The suite of IANA transform IDs. `key_bits` as in the Key Length attribute, 0 without it;
    /// `integ` 0 for none.
    ///
    /// Returns `None` for suites that must not protect an IKE SA: unknown numbers, ciphers without
    /// confidentiality, those of RFC 8750 (their IV is the sequence number of ESP, and the message
    /// ID of IKE repeats in fragments and in responses), an AEAD with a MAC, a cipher without one.
    pub fn from_ids(enc: u16, key_bits: u16, integ: u16) -> Option<Self> {
        let alg = EncAlg::by_id(enc, usize::from(key_bits) / 8)?;
        // Not only the quotient: 129 bits would pass as 16 bytes.
        let bits_fit = key_bits == 0 || usize::from(key_bits) == alg.key_len * 8;
        let integ = if integ == 0 { None } else { Some(IntegAlg::by_id(integ)?) };
        Self::new(alg, integ).filter(|_| bits_fit)
    }

    /// As [`SkSuite::from_ids`], from rows of the algorithm table.
    pub fn new(enc: &'static EncAlg, integ: Option<&'static IntegAlg>) -> Option<Self> {
        let usable = enc.kind.is_confidential() && !enc.implicit_iv;
        (usable && enc.kind.is_aead() == integ.is_none()).then_some(Self { enc, integ })
    }

    /// Every suite.
    pub fn all() -> impl Iterator<Item = Self> {
        Suite::all_esp().filter_map(|suite| Self::new(suite.enc?, suite.integ))
    }

    fn suite(&self) -> Suite {
        Suite { enc: Some(self.enc), integ: self.integ }
    }

    /// Bytes of SK_e, the salt included.
    pub fn enc_key_len(&self) -> usize {
        self.enc.material_len()
    }

    /// Bytes of SK_a; 0 for an AEAD.
    pub fn integ_key_len(&self) -> usize {
        self.integ.map_or(0, |integ| integ.key_len)
    }

    /// True when one algorithm encrypts and authenticates.
    pub fn is_aead(&self) -> bool {
        self.integ.is_none()
    }

    /// Bytes of the IV in the payload.
    pub fn iv_len(&self) -> usize {
        self.enc.iv_len
    }

    /// Bytes of the ICV.
    pub fn icv_len(&self) -> usize {
        self.suite().icv_len()
    }

    /// Multiple to which the plaintext, with the Pad Length byte, is padded.
    pub fn block_len(&self) -> usize {
        self.enc.block_len
    }

    /// Bytes that [`SkKey::seal`] appends for a plaintext: IV, ciphertext, padding, Pad Length,
    /// ICV.
    pub fn sealed_len(&self, plaintext_len: usize) -> usize {
        self.iv_len() + (plaintext_len + 1).next_multiple_of(self.block_len()) + self.icv_len()
    }
}

/// Reason why a message was not opened. Its contents must not be trusted.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenFault {
    /// Too short for IV, Pad Length and ICV, or the ciphertext is not a multiple of the block size.
    #[error("the Encrypted payload has no possible length")]
    Length,
    /// Invalid ICV: not sent by the peer of this SA, or modified in transit.
    #[error("the integrity check failed")]
    Icv,
    /// Valid ICV, but more padding than plaintext: an error of the peer.
    #[error("the padding is longer than the payload")]
    Padding,
}

/// The keys of one direction, expanded. Zeroed on drop; has no `Debug`.
pub struct SkKey {
    suite: SkSuite,
    // Boxed, because a move would leave a copy of the key in memory.
    key: Box<Key>,
    sealed: AtomicU64,
    first_iv: OnceLock<u64>,
}

impl SkKey {
    /// Expands SK_e (with its salt) and SK_a.
    ///
    /// # Errors
    /// [`KeyError`] when a length is wrong.
    pub fn new(suite: SkSuite, enc: &[u8], integ: &[u8]) -> Result<Self, KeyError> {
        let key = Box::new(Engine::AwsLc.expand(&suite.suite(), KeyMaterial { enc, integ })?);
        Ok(Self { suite, key, sealed: AtomicU64::new(0), first_iv: OnceLock::new() })
    }

    /// Returns the suite of the key.
    pub fn suite(&self) -> &SkSuite {
        &self.suite
    }

    /// As [`SkSuite::sealed_len`].
    pub fn sealed_len(&self, plaintext_len: usize) -> usize {
        self.suite.sealed_len(plaintext_len)
    }

    /// Appends the body of the Encrypted payload to the buffer `message`: IV, ciphertext, ICV.
    ///
    /// `message` holds everything before it, up to the payload's generic header (for an Encrypted
    /// Fragment up to Total Fragments), and is `sk_body_at` long. The lengths in both headers must
    /// already count [`SkKey::sealed_len`], because they are authenticated. `iv_random` fills a
    /// slice with random bytes that no one can predict; it is called once per message for CBC, and
    /// once per key otherwise: the IV of a counter-based cipher need not be random but must never
    /// repeat, so it is a counter from a random start.
    ///
    /// # Panics
    /// When `message` is not `sk_body_at` long: a bug of the caller, never a property of input.
    pub fn seal(
        &self,
        message: &mut Vec<u8>,
        sk_body_at: usize,
        plaintext: &[u8],
        iv_random: &mut dyn FnMut(&mut [u8]),
    ) {
        assert_eq!(message.len(), sk_body_at, "the body is appended to what stands before it");
        let body_at = sk_body_at + self.suite.iv_len();
        let end = sk_body_at + self.sealed_len(plaintext.len());
        let icv_at = end - self.suite.icv_len();
        let iv = self.next_iv(iv_random);
        message.reserve_exact(end - sk_body_at);
        message.extend_from_slice(&iv[..self.suite.iv_len()]);
        message.extend_from_slice(plaintext);
        message.resize(end, 0);
        // Pad Length: less than a block of at most 16 bytes, so that it fits.
        message[icv_at - 1] = (icv_at - 1 - body_at - plaintext.len()) as u8;
        let op = self.op(sk_body_at, iv, body_at..icv_at, icv_at..end);
        let sealed = self.key.state.seal(&op, message, self.suite.icv_len());
        assert!(sealed, "the operation fits the message it was made for");
    }

    /// Verifies and decrypts the Encrypted payload; its body is the rest of `message` from
    /// `sk_body_at`. Returns the range of the plaintext without padding (a receiver accepts any
    /// padding bytes). `message` begins with the IKE header; the caller must have checked both
    /// lengths.
    ///
    /// # Errors
    /// [`OpenFault`]; the bytes from `sk_body_at` on may then be anything.
    pub fn open(&self, message: &mut [u8], sk_body_at: usize) -> Result<Range<usize>, OpenFault> {
        let body_at = sk_body_at.checked_add(self.suite.iv_len()).ok_or(OpenFault::Length)?;
        let end = message.len();
        let icv_at = end.checked_sub(self.suite.icv_len()).ok_or(OpenFault::Length)?;
        let body_len = icv_at.checked_sub(body_at).ok_or(OpenFault::Length)?;
        if body_len == 0 || !body_len.is_multiple_of(self.suite.block_len()) {
            return Err(OpenFault::Length);
        }
        let mut iv = [0; 16];
        iv[..self.suite.iv_len()].copy_from_slice(&message[sk_body_at..body_at]);
        let op = self.op(sk_body_at, iv, body_at..icv_at, icv_at..end);
        let mut job = Job::new(op, message);
        job.verified = self.key.state.open(&op, job.packet, self.suite.icv_len());
        job.take_ok().ok_or(OpenFault::Icv)?;
        let padding = usize::from(message[icv_at - 1]);
        let plaintext_len = (body_len - 1).checked_sub(padding).ok_or(OpenFault::Padding)?;
        Ok(body_at..body_at + plaintext_len)
    }

    /// An AEAD authenticates all before the IV as associated data (RFC 5282 §5.1), a MAC everything
    /// before the ICV (RFC 7296 §3.14): headers, IV and ciphertext.
    fn op(&self, sk_body_at: usize, iv: [u8; 16], body: Range<usize>, icv: Range<usize>) -> CryptoOp {
        let authenticated = if self.suite.is_aead() { sk_body_at } else { icv.start };
        CryptoOp {
            key: KeyId(0),
            aad: Aad::InPlace(Span::new(0, authenticated)),
            body: Span::new(body.start, body.end),
            icv: Span::new(icv.start, icv.end),
            iv,
        }
    }

    fn next_iv(&self, random: &mut dyn FnMut(&mut [u8])) -> [u8; 16] {
        let mut iv = [0; 16];
        if matches!(self.suite.enc.kind, CipherKind::AesCbc | CipherKind::TripleDesCbc | CipherKind::DesCbc) {
            random(&mut iv[..self.suite.iv_len()]);
            return iv;
        }
        let first = self.first_iv.get_or_init(|| {
            let mut first = [0; 8];
            random(&mut first);
            u64::from_be_bytes(first)
        });
        // Relaxed: only uniqueness matters, and an atomic addition returns each value once.
        let count = self.sealed.fetch_add(1, Ordering::Relaxed);
        iv[..8].copy_from_slice(&first.wrapping_add(count).to_be_bytes());
        iv
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::super::tests::unhex;
    use super::*;

    fn key(suite: SkSuite) -> SkKey {
        let material: Vec<u8> = (0..200u32).map(|at| (at * 7 + 1) as u8).collect();
        let (enc, integ) = (&material[..suite.enc_key_len()], &material[100..][..suite.integ_key_len()]);
        SkKey::new(suite, enc, integ).expect("material of the right length")
    }

    fn suite(enc: &str, integ: &str) -> SkSuite {
        let suite = Suite::parse_esp(&format!("{enc}{integ}")).expect("a suite");
        SkSuite::new(suite.enc.expect("a cipher"), suite.integ).expect("a suite of IKE")
    }

    /// RFC 7634 appendix B: an INFORMATIONAL request with SET_WINDOW_SIZE.
    #[test]
    fn chacha20_poly1305_of_rfc_7634() {
        let header = unhex("c0c1c2c3c4c5c6c7d0d1d2d3d4d5d6d72e202500000000090000004529000029");
        let material: Vec<u8> = (0x80..=0xa3).collect();
        let (plain, iv) = (unhex("0000000c000040010000000a"), unhex("1011121314151617"));
        let suite = SkSuite::from_ids(28, 0, 0).expect("a suite");
        let key = SkKey::new(suite, &material, &[]).expect("key and salt");
        let mut message = header.clone();
        assert_eq!(key.sealed_len(plain.len()), 0x45 - header.len());
        key.seal(&mut message, header.len(), &plain, &mut |bytes| bytes.copy_from_slice(&iv));
        let sealed = unhex("10111213141516176103 94701f8d017f7c12924889 6b71bfe25236efd7cdc67066906315b2");
        assert_eq!(message[header.len()..], sealed);
        assert_eq!(key.open(&mut message, header.len()).map(|range| message[range].to_vec()), Ok(plain));
    }

    #[test]
    fn ids_make_suites_of_ike_alone() {
        let name = |enc, bits, integ| SkSuite::from_ids(enc, bits, integ).map(|suite| suite.suite().to_string());
        assert_eq!(name(20, 256, 0).as_deref(), Some("aes256gcm16"));
        assert_eq!(name(12, 128, 12).as_deref(), Some("aes128-sha256"));
        assert_eq!(name(3, 0, 2).as_deref(), Some("3des-sha1"));
        assert_eq!(name(28, 0, 0).as_deref(), Some("chacha20poly1305"));
        for (enc, bits, integ) in [
            (20, 256, 12), // an AEAD with a MAC
            (12, 128, 0),  // a cipher without
            (12, 0, 12),   // no key length where there are several
            (12, 127, 12),
            (12, 129, 12),
            (28, 128, 0),
            (11, 0, 12),  // NULL
            (21, 128, 0), // GMAC
            (30, 128, 0), // implicit IV
            (0, 0, 0),
            (12, 128, 999),
            (20, 65_535, 0),
        ] {
            assert_eq!(name(enc, bits, integ), None, "{enc} {bits} {integ}");
        }
        for suite in SkSuite::all() {
            let integ = suite.integ.map_or(0, |integ| integ.id);
            assert_eq!(SkSuite::from_ids(suite.enc.id, suite.enc.key_len as u16 * 8, integ), Some(suite));
        }
    }

    #[test]
    fn wrong_material_makes_no_key() {
        for suite in SkSuite::all() {
            let (enc, integ) = (vec![1; suite.enc_key_len()], vec![2; suite.integ_key_len()]);
            assert!(SkKey::new(suite, &enc[1..], &integ).is_err() && SkKey::new(suite, &enc, &[3; 99]).is_err());
        }
    }

    #[test]
    fn impossible_lengths_are_refused_and_nothing_panics() {
        for suite in SkSuite::all() {
            let (key, least) = (key(suite), suite.sealed_len(0));
            for len in (0..least + 40).chain([100, 200]) {
                let mut message = vec![7; len];
                for at in [0, 32, len, len + 1, usize::MAX] {
                    let room = len.checked_sub(at).filter(|room| *room >= least);
                    let whole = room.is_some_and(|room| (room - least).is_multiple_of(suite.block_len()));
                    let fault = if whole { OpenFault::Icv } else { OpenFault::Length };
                    assert_eq!(key.open(&mut message, at), Err(fault), "{suite:?} {len} {at}");
                }
            }
        }
    }

    /// An authentic message with a Pad Length beyond the payload, and every smaller value.
    #[test]
    fn padding_of_any_contents_is_taken_but_not_more_than_there_is() {
        for suite in [suite("aes128", "-sha256"), suite("aes256gcm16", ""), suite("3des", "-sha1")] {
            let key = key(suite);
            let whole = suite.block_len() * 32_usize.div_ceil(suite.block_len());
            for pad_len in 0..=255_usize {
                let mut message = vec![1; 32];
                let mut body = vec![0xa5; whole];
                body[whole - 1] = pad_len as u8;
                // Laid out by hand: seal() makes the shortest padding only.
                message.extend_from_slice(&[9; 16][..suite.iv_len()]);
                let body_at = message.len();
                message.extend_from_slice(&body);
                message.resize(message.len() + suite.icv_len(), 0);
                let icv_at = body_at + whole;
                let mut iv = [0; 16];
                iv[..suite.iv_len()].fill(9);
                let op = key.op(32, iv, body_at..icv_at, icv_at..message.len());
                assert!(key.key.state.seal(&op, &mut message, suite.icv_len()));
                let want = if pad_len < whole { Ok(body_at..icv_at - 1 - pad_len) } else { Err(OpenFault::Padding) };
                assert_eq!(key.open(&mut message, 32), want);
            }
        }
    }

    #[test]
    fn ivs_of_one_key_never_repeat() {
        for suite in [suite("aes128gcm16", ""), suite("aes128ctr", "-sha256"), suite("aes128ccm8", "")] {
            let (key, mut seen, mut asked) = (key(suite), HashSet::new(), 0);
            for _ in 0..1000 {
                let mut message = vec![0; 32];
                // Close to the end of the number range, where the counter wraps.
                key.seal(&mut message, 32, b"same", &mut |bytes| {
                    asked += 1;
                    bytes.fill(0xff);
                });
                assert!(seen.insert(message[32..40].to_vec()));
            }
            assert_eq!(asked, 1);
        }
        let (key, mut next) = (key(suite("aes128", "-sha256")), 0u8);
        for _ in 0..3 {
            let mut message = vec![0; 32];
            key.seal(&mut message, 32, b"same", &mut |bytes| {
                next += 1;
                bytes.fill(next);
            });
            assert_eq!(message[32..48], [next; 16]);
        }
        assert_eq!(next, 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// Every suite: what was sealed opens, and no changed bit does.
        #[test]
        fn sealed_is_opened_unless_a_bit_changed(
            before in prop::collection::vec(any::<u8>(), 28..60),
            plain in prop::collection::vec(any::<u8>(), 0..100),
            flip in any::<prop::sample::Index>(),
            bit in 0..8u32,
        ) {
            for suite in SkSuite::all() {
                let key = key(suite);
                let mut message = before.clone();
                key.seal(&mut message, before.len(), &plain, &mut |bytes| crate::random(bytes));
                prop_assert_eq!(message.len(), before.len() + suite.sealed_len(plain.len()));
                prop_assert_eq!(&message[..before.len()], &before[..]);

                let mut changed = message.clone();
                let at = flip.index(changed.len());
                changed[at] ^= 1u8 << bit;
                prop_assert_eq!(key.open(&mut changed, before.len()), Err(OpenFault::Icv), "{:?} at {}", suite, at);

                let opened = key.open(&mut message, before.len());
                prop_assert_eq!(opened.map(|range| message[range].to_vec()), Ok(plain.clone()));
            }
        }
    }
}
