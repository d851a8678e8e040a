//! Key derivation of IKEv2: from shared secrets to the keys of messages, Child SAs and AUTH.
//!
//! All functions are pure. After IKE_SA_INIT, [`skeyseed`] yields SKEYSEED and [`IkeKeys::derive`]
//! the keys; each IKE_INTERMEDIATE with a key exchange replaces them
//! ([`IkeKeys::after_intermediate`]); [`IkeKeys::mix_ppk`] mixes a post-quantum preshared key in; a
//! rekey starts again from [`skeyseed_rekey`]. [`child_keys`] derives the keys of Child SAs from
//! SK_d.

pub mod v1;

use crypto::ike::{Prf, Secret, SkKey, SkSuite};
use wire::ike::{HashId, PayloadType};

use crate::config::Version;
use crate::context::Context;
use crate::identity::Identity;
use crate::output::{IkeId, IkeSecrets, IkeSpis, Output};
use crate::proposal::{ChildSuite, IkeSuite};

/// The keys of one IKE SA (RFC 7296 §2.14).
pub(crate) struct IkeKeys {
    /// Source of the keys of Child SAs and of the next IKE SA.
    pub(crate) sk_d: Secret,
    /// Integrity, initiator to responder; empty with an AEAD.
    pub(crate) sk_ai: Secret,
    /// Integrity, responder to initiator.
    pub(crate) sk_ar: Secret,
    /// Encryption, initiator to responder, with the salt.
    pub(crate) sk_ei: Secret,
    /// Encryption, responder to initiator.
    pub(crate) sk_er: Secret,
    /// MAC over the ID payload of the initiator, a part of AUTH (RFC 7296 §2.15).
    pub(crate) sk_pi: Secret,
    /// MAC over the ID payload of the responder.
    pub(crate) sk_pr: Secret,
}

/// Nonces of an exchange and SPIs of the IKE SA that it creates; `i` is the initiator of the
/// exchange, which for a rekey may have been the responder of the old IKE SA.
#[derive(Clone, Copy)]
pub(crate) struct Seed<'a> {
    pub(crate) nonce_i: &'a [u8],
    pub(crate) nonce_r: &'a [u8],
    pub(crate) spis: IkeSpis,
}

/// SKEYSEED of IKE_SA_INIT (RFC 7296 §2.14).
pub(crate) fn skeyseed(prf: Prf, seed: &Seed<'_>, shared: &[u8]) -> Secret {
    // AES-XCBC and AES-CMAC once had fixed keys of 128 bits: 64 from each nonce.
    let cut = |nonce| -> &[u8] { prf.seed_nonce_len().and_then(|len| <[u8]>::get(nonce, ..len)).unwrap_or(nonce) };
    // Cut for this key only: prf+ takes the whole nonces, also with these functions (RFC 7296
    // §2.14).
    let key = Secret::new([cut(seed.nonce_i), cut(seed.nonce_r)].concat());
    prf.compute(&key, &[shared])
}

/// SKEYSEED of a rekeyed IKE SA (RFC 7296 §2.18, RFC 9370 §2.2.4), computed with the PRF and SK_d
/// of the old one. `shared` has the secrets of the key exchanges in their order, that of the KE
/// payload first.
pub(crate) fn skeyseed_rekey(old_prf: Prf, old_sk_d: &Secret, shared: &[Secret], seed: &Seed<'_>) -> Secret {
    // The PRF of the old IKE SA, even if the new suite has another one: SK_d is a key of the old
    // PRF.
    old_prf.compute(old_sk_d, &around_nonces(shared, seed.nonce_i, seed.nonce_r))
}

/// SK(0) | Ni | Nr | SK(1) | … | SK(n).
fn around_nonces<'a>(shared: &'a [Secret], nonce_i: &'a [u8], nonce_r: &'a [u8]) -> Vec<&'a [u8]> {
    // RFC 9370 §2.2.4: the first shared secret precedes the nonces, those of additional key
    // exchanges follow them.
    let (first, additional) = shared.split_at(shared.len().min(1));
    let first = first.iter().map(Secret::as_slice);
    first.chain([nonce_i, nonce_r]).chain(additional.iter().map(Secret::as_slice)).collect()
}

impl IkeKeys {
    /// {SK_d | SK_ai | SK_ar | SK_ei | SK_er | SK_pi | SK_pr} = prf+(SKEYSEED, Ni | Nr | SPIi |
    /// SPIr).
    pub(crate) fn derive(suite: &IkeSuite, skeyseed: &Secret, seed: &Seed<'_>) -> Self {
        let prf_len = suite.prf.key_len();
        let (integ, enc) = (suite.integ.map_or(0, |integ| integ.key_len), suite.enc.material_len());
        // Order and lengths of RFC 7296 §2.14: SK_d, SK_a, SK_e, SK_p, each for the initiator
        // first.
        let parts = [prf_len, integ, integ, enc, enc, prf_len, prf_len];
        let IkeSpis { initiator, responder } = &seed.spis;
        let input = [seed.nonce_i, seed.nonce_r, &initiator.0, &responder.0];
        let [sk_d, sk_ai, sk_ar, sk_ei, sk_er, sk_pi, sk_pr] = expand(suite.prf, skeyseed, &input, parts);
        Self { sk_d, sk_ai, sk_ar, sk_ei, sk_er, sk_pi, sk_pr }
    }

    /// The keys after an IKE_INTERMEDIATE with a key exchange (RFC 9370 §2.2.2):
    /// SKEYSEED(n) = prf(SK_d(n-1), SK(n) | Ni | Nr).
    pub(crate) fn after_intermediate(&self, suite: &IkeSuite, shared: &Secret, seed: &Seed<'_>) -> Self {
        let skeyseed = suite.prf.compute(&self.sk_d, &[shared, seed.nonce_i, seed.nonce_r]);
        Self::derive(suite, &skeyseed, seed)
    }

    /// Mixes a post-quantum preshared key in, before AUTH is computed (RFC 8784 §3). The keys of
    /// messages do not change.
    pub(crate) fn mix_ppk(&mut self, prf: Prf, ppk: &Secret) {
        // RFC 8784 §3: only these three keys. SK_e and SK_a were already used to send the PPK_ID.
        for key in [&mut self.sk_d, &mut self.sk_pi, &mut self.sk_pr] {
            let [mixed] = expand(prf, ppk, &[key], [key.len()]);
            *key = mixed;
        }
    }

    /// Reports new keys for debugging, if requested.
    pub(crate) fn disclose(&self, ctx: &mut Context<'_>, ike: IkeId, spis: IkeSpis, suite: &IkeSuite) {
        if ctx.settings.log_secrets {
            let (sk_e, sk_a) = ((self.sk_ei.clone(), self.sk_er.clone()), (self.sk_ai.clone(), self.sk_ar.clone()));
            let secrets = IkeSecrets { ike, version: Version::V2, spis, suite: suite.clone(), sk_e, sk_a };
            ctx.out.push_back(Output::Secrets(Box::new(secrets)));
        }
    }

    /// Keys for the messages that the initiator sends, and for those of the responder.
    ///
    /// # Errors
    /// The crypto engine's, for a suite that cannot protect messages; [`crate::proposal`] chooses
    /// none.
    pub(crate) fn message_keys(&self, suite: &IkeSuite) -> Result<(SkKey, SkKey), crypto::KeyError> {
        let unsupported = crypto::KeyError::Unsupported { engine: "IKE", algorithm: suite.enc.name };
        let sk = SkSuite::new(suite.enc, suite.integ).ok_or(unsupported)?;
        Ok((SkKey::new(sk, &self.sk_ei, &self.sk_ai)?, SkKey::new(sk, &self.sk_er, &self.sk_ar)?))
    }
}

/// prf+ cut into parts of these lengths.
fn expand<const N: usize>(prf: Prf, key: &[u8], seed: &[&[u8]], lengths: [usize; N]) -> [Secret; N] {
    // Zeroed on drop, because the buffer contains all keys.
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

/// KEYMAT (RFC 7296 §2.17, RFC 9370 §2.2.4), split into the keys of packets from the initiator of
/// the exchange and of packets to it. `shared` has the secrets of the key exchanges in their order;
/// it is empty for a Child SA without PFS.
///
/// EESP with a key derivation function for Sub SAs takes a root key per direction instead of cipher
/// key and salt (draft-ietf-ipsecme-eesp-ikev2).
pub(crate) fn child_keys(
    prf: Prf,
    sk_d: &Secret,
    shared: &[Secret],
    nonce_i: &[u8],
    nonce_r: &[u8],
    suite: &ChildSuite,
) -> (HalfKeys, HalfKeys) {
    let cipher = suite.enc.map_or(0, |enc| enc.material_len());
    // With Sub SAs, the key material is a root key, from which the keys of the Sub SAs are derived.
    let enc = suite.sskdf.map_or(cipher, crypto::kdf::SubSaKdf::root_len);
    let integ = suite.integ.map_or(0, |integ| integ.key_len);
    let seed = around_nonces(shared, nonce_i, nonce_r);
    // Initiator to responder first, and in each direction encryption before integrity (RFC 7296
    // §2.17).
    let [enc_i, integ_i, enc_r, integ_r] = expand(prf, sk_d, &seed, [enc, integ, enc, integ]);
    (HalfKeys { enc: enc_i, integ: integ_i }, HalfKeys { enc: enc_r, integ: integ_r })
}

/// Contribution of IKE_INTERMEDIATE exchanges to AUTH (RFC 9242 §3.3.2). Constant in size, because
/// each exchange is chained to the previous ones by the PRF.
#[derive(Default)]
pub(crate) struct IntAuth {
    of_initiator: Vec<u8>,
    of_responder: Vec<u8>,
}

impl IntAuth {
    /// Adds a request. `header` is its IKE header (all fragments share exchange, flags and message
    /// ID), `first` the type of the first payload inside the Encrypted payload and `inner` the
    /// payloads. `sk_pi` belongs to the keys that protected the request, not to those that its key
    /// exchange yields.
    pub(crate) fn request(&mut self, prf: Prf, sk_pi: &[u8], header: &[u8; 28], first: PayloadType, inner: &[u8]) {
        self.of_initiator = chain(prf, sk_pi, &self.of_initiator, header, first, inner);
    }

    /// Adds a response, with SK_pr of the same keys.
    pub(crate) fn response(&mut self, prf: Prf, sk_pr: &[u8], header: &[u8; 28], first: PayloadType, inner: &[u8]) {
        self.of_responder = chain(prf, sk_pr, &self.of_responder, header, first, inner);
    }

    /// IntAuth, which both peers append to the signed octets: the two chains and the message ID of
    /// the first IKE_AUTH. Empty when there was no IKE_INTERMEDIATE.
    pub(crate) fn octets(&self, auth_message_id: u32) -> Vec<u8> {
        // Without IKE_INTERMEDIATE not even the message ID is appended: the octets must be those of
        // RFC 7296 §2.15.
        if self.of_initiator.is_empty() {
            return Vec::new();
        }
        [&self.of_initiator[..], &self.of_responder, &auth_message_id.to_be_bytes()].concat()
    }
}

/// IntAuth_N = prf(SK_p, IntAuth_(N-1) | A | P). A is the IKE header and the generic header of the
/// Encrypted payload; P are the payloads in it before encryption. The lengths in A do not count IV,
/// padding and ICV, so that they are the same with every cipher.
fn chain(prf: Prf, sk_p: &[u8], before: &[u8], header: &[u8; 28], first: PayloadType, inner: &[u8]) -> Vec<u8> {
    let mut clear = *header;
    // RFC 9242 §3.3.2 signs the header of the unfragmented message. Its next payload is SK, where
    // that of a fragment is SKF.
    clear[16] = PayloadType::SK.0;
    clear[24..].copy_from_slice(&(inner.len() as u32 + 28 + 4).to_be_bytes());
    let payload_len = (inner.len() as u16 + 4).to_be_bytes();
    let generic = [first.0, 0, payload_len[0], payload_len[1]];
    prf.compute(sk_p, &[before, &clear, &generic, inner]).to_vec()
}

/// Octets covered by the AUTH payload (RFC 7296 §2.15): own IKE_SA_INIT message | nonce of the peer
/// | prf(SK_p, IDx') | IntAuth. `message_and_nonce` has the first two; IDx' is the ID payload
/// without its generic header.
pub fn auth_octets(message_and_nonce: &[u8], prf: Prf, sk_p: &[u8], id: &Identity, int_auth: &[u8]) -> Vec<u8> {
    let hash = prf.compute(sk_p, &[&[id.kind.0, 0, 0, 0], &id.data]);
    [message_and_nonce, &hash, int_auth].concat()
}

/// AUTH of a shared key (RFC 7296 §2.15), the MSK of an EAP method (§2.16) included.
pub fn psk_auth(prf: Prf, shared_key: &[u8], octets: &[u8]) -> Secret {
    // The fixed pad lets a host store prf(key, pad) instead of a password: a thief of it can
    // authenticate by IKEv2, but not where else the password is used (RFC 7296 §2.15).
    prf.compute(&prf.compute(shared_key, &[b"Key Pad for IKEv2"]), &[octets])
}

/// Data of SIGNATURE_HASH_ALGORITHMS (RFC 7427 §4): the algorithms that this implementation can
/// verify.
pub(crate) fn signature_hashes() -> Vec<u8> {
    crypto::ike::HashId::OFFERED.iter().flat_map(|id| id.0.to_be_bytes()).collect()
}

/// Algorithms of a peer's SIGNATURE_HASH_ALGORITHMS, each once; an odd byte at the end is ignored.
pub(crate) fn parse_signature_hashes(data: &[u8]) -> Vec<HashId> {
    /// Bound of the list, which a peer fills. IANA has assigned fewer numbers.
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::output::IkeSpi;
    use crate::proposal::{ChildProposal, ChildProtocol, SequenceNumbers};

    pub(crate) fn unhex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("digits");
        digits.chunks(2).map(pair).collect()
    }

    fn secret(text: &str) -> Secret {
        Secret::new(unhex(text))
    }

    fn suite(prf: Prf, enc: &str, integ: Option<&str>) -> IkeSuite {
        IkeSuite {
            enc: crypto::EncAlg::by_name(enc).expect("a cipher"),
            integ: integ.map(|name| crypto::IntegAlg::by_name(name).expect("an integrity algorithm")),
            prf,
            ke: crypto::ike::KeMethod::X25519,
            additional: vec![],
            slots: vec![],
        }
    }

    fn child(protocol: ChildProtocol, words: &str, sskdf: bool) -> ChildSuite {
        let proposal = ChildProposal::parse(protocol, words).expect("a proposal");
        ChildSuite {
            protocol,
            enc: proposal.enc.first().copied(),
            integ: proposal.integ.first().copied(),
            ke: None,
            additional: vec![],
            slots: vec![],
            sn: SequenceNumbers::Bits64,
            sskdf: proposal.sskdf.first().copied().flatten().filter(|_| sskdf),
        }
    }

    const NI: &str = "3651fef5c9c35e93";
    const NR: &str = "c09a8b90a3f04d59";
    const GIR: &str = "d084a30166a50fb7325c3960874a839449ef9741c2f4f947d0201dd8c1269273d79509f37e3ca3eb4fa2fe2a28254e28\
        9cd3f34dad4eb4df1a07685a4b8a94fa61e2491f7598b3ce65547ff133b3f63d1ac4175eaa695033f3cedb026a6873a3\
        6455172a8540b8a5d23a0143bed0390ee49b168269d75fffee9fb62be965993c";
    const GIR_NEW: &str = "52f00ab174c25d5b7139ae5ff4e8e9eddee5992d2e36adf8a559ffd90dab1442e4fbe429d320c0f33552a17d1557fa41\
        ea70e8fb916c4fa27ed52b5f8ebd8461afa78f1159159a64055ac5f6319e29c28eae58cbc6847770f32c3fed1d047504\
        84f854790f95e9ec01bc5bc461f24966462e359511329305038e94deb6dd42c2";
    const SPIS: IkeSpis = IkeSpis {
        initiator: IkeSpi([0x8e, 0x5c, 0x3a, 0xe5, 0x07, 0x22, 0x16, 0x84]),
        responder: IkeSpi([0xb1, 0xf2, 0x01, 0xbb, 0x15, 0x5c, 0x3a, 0xcd]),
    };

    fn with_seed<T>(test: impl FnOnce(&Seed<'_>) -> T) -> T {
        let (ni, nr) = (unhex(NI), unhex(NR));
        test(&Seed { nonce_i: &ni, nonce_r: &nr, spis: SPIS })
    }

    fn all(keys: &IkeKeys) -> Vec<u8> {
        let parts = [&keys.sk_d, &keys.sk_ai, &keys.sk_ar, &keys.sk_ei, &keys.sk_er, &keys.sk_pi, &keys.sk_pr];
        parts.map(Secret::as_slice).concat()
    }

    fn both((i, r): (HalfKeys, HalfKeys)) -> Vec<u8> {
        [&i.enc[..], &i.integ, &r.enc, &r.integ].concat()
    }

    /// NIST CAVP, SP 800-135 IKEv2 with SHA-1: IKE SA, Child SA without and with key exchange,
    /// rekeying.
    #[test]
    fn keys_of_nist() {
        with_seed(|seed| {
            let suite = suite(Prf::HmacSha1, "aes128", Some("sha1"));
            let skeyseed = skeyseed(suite.prf, seed, &unhex(GIR));
            assert_eq!(skeyseed.to_vec(), unhex("cd2e8050137832245f1dbacc6e4f0a92f94d45d6"));
            let keys = IkeKeys::derive(&suite, &skeyseed, seed);
            let dkm = "6f1b12cad3cbe097b35430356d869d54cddb0198ec859174d53ceb92dddedbe2436db69f60977c58fa63bbb667f8d369\
                20b109baae8f6c61a9ac49feda01843225d080ec5539d5881a25521ffb2a0a91874a9c0a27fcc2d717eb8963a9e3a89c\
                7ab264757284c28cf8c3ca40576f4220b052b1fb8e9ad60ba3c80557323331a8cbb89f20";
            assert_eq!(all(&keys), unhex(dkm));
            assert_eq!((keys.sk_ei.len(), keys.sk_ai.len(), keys.sk_d.len()), (16, 20, 20));

            let esp = child(ChildProtocol::Esp, "aes128-sha1", false);
            let plain = child_keys(suite.prf, &keys.sk_d, &[], seed.nonce_i, seed.nonce_r, &esp);
            let dkm = "4727dc0ef94eb326ce131cf282fb652faa638ad0ddae3786a11bcc0309876009f8c485de011ad962c5b1ca8a41ff8145\
                445749079c5686e26ffebbc342f06981f3da745e11ca0976";
            assert_eq!(both(plain), unhex(dkm));
            let new = [secret(GIR_NEW)];
            let with_ke = child_keys(suite.prf, &keys.sk_d, &new, seed.nonce_i, seed.nonce_r, &esp);
            let dkm = "b109c21ad4c0797768c1cec9e63554681e48f224bca7f23c20c4ea7041983451e9aa1d5408656c8a975ff1b9d9a12c75\
                ffeb64bdecb30174664cccb4e14f1c377b7f6d1525af77c7";
            assert_eq!(both(with_ke), unhex(dkm));

            let rekeyed = skeyseed_rekey(suite.prf, &keys.sk_d, &new, seed);
            assert_eq!(rekeyed.to_vec(), unhex("3b03bce748c96d5e8306918d2ff89b68f0648da3"));
        });
    }

    /// The same inputs with SHA-256.
    #[test]
    fn keys_of_nist_with_sha256() {
        with_seed(|seed| {
            let suite = suite(Prf::HmacSha256, "aes128gcm16", None);
            let skeyseed = skeyseed(suite.prf, seed, &unhex(GIR));
            assert_eq!(skeyseed.to_vec(), unhex("efaa7ab0eaa85a3d0be2100cd4b6fe00ff5025a9eafddb3ef518e9f0d3fe60e6"));
            let keys = IkeKeys::derive(&suite, &skeyseed, seed);
            assert_eq!(
                all(&keys)[..64],
                unhex(
                    "462b9dd525d4fd71169174272779e704baf62c6231779ae9efe8c58b21916b42\
                    010164af2111ebd762f6916ca9a6f0ee05c8b320e4ee27705521de2589adea18"
                )
            );
            // An AEAD has a salt after its key and no SK_a (RFC 5282 §7.1).
            assert_eq!((keys.sk_ai.len(), keys.sk_ei.len()), (0, 20));
            assert!(keys.message_keys(&suite).is_ok());
            let rekeyed = skeyseed_rekey(suite.prf, &keys.sk_d, &[secret(GIR_NEW)], seed);
            assert_eq!(rekeyed.to_vec(), unhex("90722c42bd849e9b72d240fc254174270fa8295de6f0338dafc303a9ec104f12"));
        });
    }

    #[test]
    fn old_aes_functions_take_64_bits_of_each_nonce() {
        let (ni, nr) = ([1; 32], [2; 20]);
        let seed = Seed { nonce_i: &ni, nonce_r: &nr, spis: SPIS };
        for prf in [Prf::AesXcbc, Prf::AesCmac] {
            let key = [[1; 8], [2; 8]].concat();
            assert!(skeyseed(prf, &seed, b"shared") == prf.compute(&key, &[b"shared"]));
        }
        let key = [&ni[..], &nr].concat();
        assert!(skeyseed(Prf::HmacSha256, &seed, b"shared") == Prf::HmacSha256.compute(&key, &[b"shared"]));
    }

    /// RFC 9370: SK(0) is before the nonces and the others after them.
    #[test]
    fn additional_secrets_have_their_places() {
        let prf = Prf::HmacSha256;
        let (sk_d, shared) = (secret("0102"), [secret("aa"), secret("bb"), secret("cc")]);
        with_seed(|seed| {
            let input = [&[0xaa][..], seed.nonce_i, seed.nonce_r, &[0xbb, 0xcc]].concat();
            assert!(skeyseed_rekey(prf, &sk_d, &shared, seed) == prf.compute(&sk_d, &[&input]));
            let esp = child(ChildProtocol::Esp, "aes256gcm16", false);
            let mut want = vec![0; 72];
            prf.plus(&sk_d, &[&input], &mut want);
            assert_eq!(both(child_keys(prf, &sk_d, &shared, seed.nonce_i, seed.nonce_r, &esp)), want);

            let suite = suite(prf, "aes256gcm16", None);
            let first = IkeKeys::derive(&suite, &sk_d, seed);
            let second = first.after_intermediate(&suite, &shared[0], seed);
            let input = [&[0xaa][..], seed.nonce_i, seed.nonce_r].concat();
            let again = IkeKeys::derive(&suite, &prf.compute(&first.sk_d, &[&input]), seed);
            assert_eq!(all(&second), all(&again));
            assert_ne!(all(&second), all(&first));
        });
    }

    #[test]
    fn roots_of_eesp_take_the_place_of_keys() {
        let (prf, sk_d) = (Prf::HmacSha256, secret("0102"));
        let derive = |suite: &ChildSuite| child_keys(prf, &sk_d, &[], b"nonce i", b"nonce r", suite);
        let mut want = vec![0; 96];
        prf.plus(&sk_d, &[b"nonce inonce r"], &mut want);
        let suite = child(ChildProtocol::Eesp, "aes128gcm16-sskdfsha384", true);
        let (i, r) = derive(&suite);
        assert_eq!((&i.enc[..], &r.enc[..]), (&want[..48], &want[48..]));
        assert!(i.integ.is_empty() && r.integ.is_empty());
        let (i, r) = derive(&child(ChildProtocol::Eesp, "aes128gcm16-sskdfsha384", false));
        assert_eq!((&i.enc[..], &r.enc[..]), (&want[..20], &want[20..40]));
        let (i, r) = derive(&child(ChildProtocol::Ah, "sha256", false));
        assert_eq!((&i.integ[..], &r.integ[..], i.enc.len()), (&want[..32], &want[32..64], 0));
    }

    #[test]
    fn a_ppk_changes_what_is_derived_and_not_what_protects() {
        let suite = suite(Prf::HmacSha384, "aes256gcm16", None);
        with_seed(|seed| {
            let before = IkeKeys::derive(&suite, &secret("01"), seed);
            let mut after = IkeKeys::derive(&suite, &secret("01"), seed);
            after.mix_ppk(suite.prf, &secret("77"));
            for (old, new) in
                [(&before.sk_d, &after.sk_d), (&before.sk_pi, &after.sk_pi), (&before.sk_pr, &after.sk_pr)]
            {
                let mut want = vec![0; 48];
                suite.prf.plus(&[0x77], &[old], &mut want);
                assert_eq!(new.to_vec(), want);
            }
            assert!(before.sk_ei == after.sk_ei && before.sk_er == after.sk_er);
        });
    }

    #[test]
    fn intermediate_exchanges_are_chained() {
        let (prf, mut int_auth) = (Prf::HmacSha256, IntAuth::default());
        assert!(int_auth.octets(1).is_empty());
        let mut header = [0x11; 28];
        (header[16], header[24]) = (53, 0xff);
        let first = PayloadType::KE;
        int_auth.request(prf, b"pi", &header, first, b"inner");
        int_auth.response(prf, b"pr", &header, first, b"answer");
        // Written out: 5 bytes inside, 4 + 5 of payload, 28 + 4 + 5 of message.
        let mut clear = header;
        clear[16] = 46;
        clear[24..].copy_from_slice(&[0, 0, 0, 37]);
        let i1 = prf.compute(b"pi", &[&clear, &[34, 0, 0, 9], b"inner"]);
        clear[27] = 38;
        let r1 = prf.compute(b"pr", &[&clear, &[34, 0, 0, 10], b"answer"]);
        assert_eq!(int_auth.octets(2), [&i1[..], &r1, &[0, 0, 0, 2]].concat());
        int_auth.request(prf, b"pi2", &header, first, b"inner");
        int_auth.response(prf, b"pr2", &header, first, b"answer");
        let r2 = prf.compute(b"pr2", &[&r1, &clear, &[34, 0, 0, 10], b"answer"]);
        clear[27] = 37;
        let i2 = prf.compute(b"pi2", &[&i1, &clear, &[34, 0, 0, 9], b"inner"]);
        assert_eq!(int_auth.octets(3), [&i2[..], &r2, &[0, 0, 0, 3]].concat());
    }

    #[test]
    fn auth_covers_message_nonce_and_identity() {
        let id = Identity::parse("moon").expect("an identity");
        let prf = Prf::HmacSha256;
        let octets = auth_octets(b"message nonce", prf, b"sk_p", &id, b"int");
        let hash = prf.compute(b"sk_p", &[b"\x02\0\0\0moon"]);
        assert_eq!(octets, [&b"message nonce"[..], &hash, b"int"].concat());
        let padded = prf.compute(b"secret", &[b"Key Pad for IKEv2"]);
        assert!(psk_auth(prf, b"secret", &octets) == prf.compute(&padded, &[&octets]));
        assert!(psk_auth(prf, b"secret", &octets) != psk_auth(prf, b"secret ", &octets));
    }

    #[test]
    fn hash_lists_are_read_with_a_bound() {
        assert_eq!(signature_hashes(), [0, 2, 0, 3, 0, 4, 0, 5]);
        assert_eq!(parse_signature_hashes(&[0, 2, 0, 9, 0, 2, 0]), [HashId(2), HashId(9)]);
        let many: Vec<u8> = (0..5000u16).flat_map(u16::to_be_bytes).collect();
        assert_eq!(parse_signature_hashes(&many).len(), 32);
    }
}
