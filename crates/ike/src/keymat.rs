//! Keys of IKEv2: from shared secrets to what protects messages, Child SAs and identities.
//!
//! Everything here is a function of its arguments. IKE_SA_INIT makes [`skeyseed`] and of it
//! [`IkeKeys::derive`]; each IKE_INTERMEDIATE with a key exchange replaces them by
//! [`IkeKeys::after_intermediate`]; a post-quantum key goes in by [`IkeKeys::mix_ppk`]; rekeying starts
//! anew from [`skeyseed_rekey`]. The keys of Child SAs come from SK_d by [`child_keys`].

pub mod v1;

use crypto::ike::{Prf, Secret, SkKey, SkSuite};
use wire::ike::{HashId, PayloadType};

use crate::identity::Identity;
use crate::proposal::{ChildSuite, IkeSuite};

/// The keys of one IKE SA (RFC 7296 §2.14).
pub(crate) struct IkeKeys {
    /// Of which the keys of Child SAs and of the next IKE SA are made.
    pub(crate) sk_d: Secret,
    /// Integrity, initiator to responder; empty with an AEAD.
    pub(crate) sk_ai: Secret,
    /// Integrity, responder to initiator.
    pub(crate) sk_ar: Secret,
    /// Encryption, initiator to responder, with the salt.
    pub(crate) sk_ei: Secret,
    /// Encryption, responder to initiator.
    pub(crate) sk_er: Secret,
    /// AUTH of the initiator.
    pub(crate) sk_pi: Secret,
    /// AUTH of the responder.
    pub(crate) sk_pr: Secret,
}

/// Nonces of an exchange and SPIs of the IKE SA that it makes; `i` is who started the exchange.
#[derive(Clone, Copy)]
pub(crate) struct Seed<'a> {
    pub(crate) nonce_i: &'a [u8],
    pub(crate) nonce_r: &'a [u8],
    pub(crate) spi_i: &'a [u8; 8],
    pub(crate) spi_r: &'a [u8; 8],
}

/// SKEYSEED of IKE_SA_INIT (RFC 7296 §2.14).
pub(crate) fn skeyseed(prf: Prf, seed: &Seed<'_>, shared: &[u8]) -> Secret {
    // Two functions had keys of 128 bits once: 64 from each nonce.
    let cut = |nonce| -> &[u8] { prf.seed_nonce_len().and_then(|len| <[u8]>::get(nonce, ..len)).unwrap_or(nonce) };
    let key = Secret::new([cut(seed.nonce_i), cut(seed.nonce_r)].concat());
    prf.compute(&key, &[shared])
}

/// SKEYSEED of a rekeyed IKE SA (RFC 7296 §2.18, RFC 9370 §2.2.4), computed with the PRF and SK_d of the
/// old one. `shared` are the secrets of the key exchanges in their order; the first is that of KE.
pub(crate) fn skeyseed_rekey(old_prf: Prf, old_sk_d: &Secret, shared: &[Secret], seed: &Seed<'_>) -> Secret {
    old_prf.compute(old_sk_d, &around_nonces(shared, seed.nonce_i, seed.nonce_r))
}

/// SK(0) | Ni | Nr | SK(1) | … | SK(n).
fn around_nonces<'a>(shared: &'a [Secret], nonce_i: &'a [u8], nonce_r: &'a [u8]) -> Vec<&'a [u8]> {
    let (first, additional) = shared.split_at(shared.len().min(1));
    let first = first.iter().map(Secret::as_slice);
    first.chain([nonce_i, nonce_r]).chain(additional.iter().map(Secret::as_slice)).collect()
}

impl IkeKeys {
    /// {SK_d | SK_ai | SK_ar | SK_ei | SK_er | SK_pi | SK_pr} = prf+(SKEYSEED, Ni | Nr | SPIi | SPIr).
    pub(crate) fn derive(suite: &IkeSuite, skeyseed: &Secret, seed: &Seed<'_>) -> Self {
        let prf_len = suite.prf.key_len();
        let (integ, enc) = (suite.integ.map_or(0, |integ| integ.key_len), suite.enc.material_len());
        let parts = [prf_len, integ, integ, enc, enc, prf_len, prf_len];
        let input = [seed.nonce_i, seed.nonce_r, seed.spi_i, seed.spi_r];
        let [sk_d, sk_ai, sk_ar, sk_ei, sk_er, sk_pi, sk_pr] = expand(suite.prf, skeyseed, &input, parts);
        Self { sk_d, sk_ai, sk_ar, sk_ei, sk_er, sk_pi, sk_pr }
    }

    /// The keys after an IKE_INTERMEDIATE with a key exchange (RFC 9370 §2.2.2):
    /// SKEYSEED(n) = prf(SK_d(n-1), SK(n) | Ni | Nr).
    pub(crate) fn after_intermediate(&self, suite: &IkeSuite, shared: &Secret, seed: &Seed<'_>) -> Self {
        let skeyseed = suite.prf.compute(&self.sk_d, &[shared, seed.nonce_i, seed.nonce_r]);
        Self::derive(suite, &skeyseed, seed)
    }

    /// Mixes a post-quantum preshared key in, before AUTH is computed (RFC 8784 §3). The keys that
    /// protect messages stay.
    pub(crate) fn mix_ppk(&mut self, prf: Prf, ppk: &Secret) {
        for key in [&mut self.sk_d, &mut self.sk_pi, &mut self.sk_pr] {
            let [mixed] = expand(prf, ppk, &[key], [key.len()]);
            *key = mixed;
        }
    }

    /// Keys for the messages that the initiator sends, and for those of the responder.
    ///
    /// # Errors
    /// The crypto engine's, for a suite that cannot protect messages; [`crate::proposal`] chooses none.
    pub(crate) fn message_keys(&self, suite: &IkeSuite) -> Result<(SkKey, SkKey), crypto::KeyError> {
        let unsupported = crypto::KeyError::Unsupported { engine: "IKE", algorithm: suite.enc.name };
        let sk = SkSuite::new(suite.enc, suite.integ).ok_or(unsupported)?;
        Ok((SkKey::new(sk, &self.sk_ei, &self.sk_ai)?, SkKey::new(sk, &self.sk_er, &self.sk_ar)?))
    }
}

/// prf+ cut into parts of these lengths.
fn expand<const N: usize>(prf: Prf, key: &[u8], seed: &[&[u8]], lengths: [usize; N]) -> [Secret; N] {
    let mut all = zeroize::Zeroizing::new(vec![0; lengths.iter().sum()]);
    prf.plus(key, seed, &mut all);
    let mut at = 0;
    lengths.map(|len| {
        at += len;
        Secret::from_slice(&all[at - len..at])
    })
}

/// Keys of one direction of a Child SA.
pub(crate) struct HalfKeys {
    /// Cipher key and salt, the root key of EESP with Sub SAs; empty for AH.
    pub(crate) enc: Secret,
    /// Integrity key; empty with an AEAD.
    pub(crate) integ: Secret,
}

/// KEYMAT (RFC 7296 §2.17, RFC 9370 §2.2.4) cut into the keys of packets that the exchange's initiator
/// sends and of those that it receives. `shared` are the secrets of the key exchanges in their order:
/// none without.
///
/// EESP with a Sub SA function takes a root key per direction instead of cipher key and salt.
pub(crate) fn child_keys(
    prf: Prf,
    sk_d: &Secret,
    shared: &[Secret],
    nonce_i: &[u8],
    nonce_r: &[u8],
    suite: &ChildSuite,
) -> (HalfKeys, HalfKeys) {
    let cipher = suite.enc.map_or(0, |enc| enc.material_len());
    let enc = suite.sskdf.map_or(cipher, crypto::kdf::SubSaKdf::root_len);
    let integ = suite.integ.map_or(0, |integ| integ.key_len);
    let seed = around_nonces(shared, nonce_i, nonce_r);
    let [enc_i, integ_i, enc_r, integ_r] = expand(prf, sk_d, &seed, [enc, integ, enc, integ]);
    (HalfKeys { enc: enc_i, integ: integ_i }, HalfKeys { enc: enc_r, integ: integ_r })
}

/// What IKE_INTERMEDIATE exchanges add to AUTH (RFC 9242 §3.3.2). Grows with no message: each replaces
/// the one before.
#[derive(Default)]
pub(crate) struct IntAuth {
    of_initiator: Vec<u8>,
    of_responder: Vec<u8>,
}

impl IntAuth {
    /// Takes a request in: `header` is that of its IKE message (unfragmented: with the exchange, flags and
    /// message ID that all fragments share), `first` and `inner` the payloads inside the Encrypted payload.
    /// `sk_pi` is of the keys that protected it.
    pub(crate) fn request(&mut self, prf: Prf, sk_pi: &[u8], header: &[u8; 28], first: PayloadType, inner: &[u8]) {
        self.of_initiator = chain(prf, sk_pi, &self.of_initiator, header, first, inner);
    }

    /// Likewise a response, with SK_pr.
    pub(crate) fn response(&mut self, prf: Prf, sk_pr: &[u8], header: &[u8; 28], first: PayloadType, inner: &[u8]) {
        self.of_responder = chain(prf, sk_pr, &self.of_responder, header, first, inner);
    }

    /// IntAuth, which both sides append to what they sign: the two chains and the message ID of the first
    /// IKE_AUTH. Empty when there was no IKE_INTERMEDIATE.
    pub(crate) fn octets(&self, auth_message_id: u32) -> Vec<u8> {
        if self.of_initiator.is_empty() {
            return Vec::new();
        }
        [&self.of_initiator[..], &self.of_responder, &auth_message_id.to_be_bytes()].concat()
    }
}

/// IntAuth_N = prf(SK_p, IntAuth_(N-1) | A | P). A is the IKE header and the generic header of the
/// Encrypted payload as if nothing were encrypted: their lengths leave out IV, padding and ICV.
fn chain(prf: Prf, sk_p: &[u8], before: &[u8], header: &[u8; 28], first: PayloadType, inner: &[u8]) -> Vec<u8> {
    let mut clear = *header;
    clear[16] = PayloadType::SK.0;
    clear[24..].copy_from_slice(&(inner.len() as u32 + 28 + 4).to_be_bytes());
    let payload_len = (inner.len() as u16 + 4).to_be_bytes();
    let generic = [first.0, 0, payload_len[0], payload_len[1]];
    prf.compute(sk_p, &[before, &clear, &generic, inner]).to_vec()
}

/// What the AUTH payload covers (RFC 7296 §2.15): message | nonce of the other side | prf(SK_p, IDx') |
/// IntAuth. `message_and_nonce` is the first two.
pub fn auth_octets(message_and_nonce: &[u8], prf: Prf, sk_p: &[u8], id: &Identity, int_auth: &[u8]) -> Vec<u8> {
    let hash = prf.compute(sk_p, &[&[id.kind.0, 0, 0, 0], &id.data]);
    [message_and_nonce, &hash, int_auth].concat()
}

/// AUTH of a shared key (RFC 7296 §2.15), the MSK of an EAP method (§2.16) included.
pub fn psk_auth(prf: Prf, shared_key: &[u8], octets: &[u8]) -> Secret {
    prf.compute(&prf.compute(shared_key, &[b"Key Pad for IKEv2"]), &[octets])
}

/// Data of SIGNATURE_HASH_ALGORITHMS (RFC 7427 §4): what this implementation can verify.
pub(crate) fn signature_hashes() -> Vec<u8> {
    crypto::ike::HashId::OFFERED.iter().flat_map(|id| id.0.to_be_bytes()).collect()
}

/// Algorithms of a peer's SIGNATURE_HASH_ALGORITHMS, each once; a half number at the end is ignored.
pub(crate) fn parse_signature_hashes(data: &[u8]) -> Vec<HashId> {
    /// More than there are numbers in the registry; a peer cannot make the list longer.
    const HASHES_MAX: usize = 32;
    let mut hashes = Vec::new();
    for pair in data.chunks_exact(2) {
        let hash = HashId(u16::from_be_bytes([pair[0], pair[1]]));
        if hashes.len() < HASHES_MAX && !hashes.contains(&hash) {
            hashes.push(hash);
        }
    }
    hashes
}
