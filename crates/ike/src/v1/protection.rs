//! Keys of an ISAKMP SA in use: IVs, encryption of messages, hashes.

use crypto::ike::{Hash, NotWholeBlocks, Prf, Secret, V1Cipher};
use wire::ike::PayloadType;

use super::fault::Fault;
use super::message::{Head, Parts, with_hash};
use super::phase1::Basis;
use super::proposal::Phase1;
use crate::config::Version;
use crate::context::Context;
use crate::keymat::v1::{Side, V1Keys, phase1_iv, phase2_iv, skeyid_signature};
use crate::output::{IkeSecrets, IkeSpis, Output};

/// Public values, nonces and the shared secret of one key exchange.
pub(super) struct Exchanged {
    pub(super) public_i: Vec<u8>,
    pub(super) public_r: Vec<u8>,
    pub(super) nonce_i: Vec<u8>,
    pub(super) nonce_r: Vec<u8>,
    pub(super) shared: Secret,
}

impl Exchanged {
    /// Ni_b | Nr_b, of which SKEYID is made.
    pub(super) fn nonces(&self) -> Vec<u8> {
        [&self.nonce_i[..], &self.nonce_r].concat()
    }

    /// SKEYID of a method with signatures.
    pub(super) fn skeyid(&self, prf: Prf) -> Secret {
        skeyid_signature(prf, &self.nonces(), &self.shared)
    }

    /// The sender of HASH_I or HASH_R, and the other end.
    fn sides<'a>(&'a self, of_initiator: bool, cookies: &'a IkeSpis) -> (Side<'a>, Side<'a>) {
        let initiator = Side { public: &self.public_i, cookie: &cookies.initiator.0 };
        let responder = Side { public: &self.public_r, cookie: &cookies.responder.0 };
        if of_initiator { (initiator, responder) } else { (responder, initiator) }
    }

    /// Everything that HASH_I or HASH_R cover before the identity of their sender.
    pub(super) fn covered(&self, of_initiator: bool, cookies: IkeSpis, sa_body: &[u8]) -> Vec<u8> {
        let (sender, other) = self.sides(of_initiator, &cookies);
        [sender.public, other.public, sender.cookie, other.cookie, sa_body].concat()
    }
}

/// Keys, cipher and hash of an ISAKMP SA.
pub(super) struct Protection {
    pub(super) prf: Prf,
    auth_prf: Prf,
    hash: Hash,
    pub(super) keys: V1Keys,
    cipher: V1Cipher,
}

/// The last block of a message: the IV of the next one in the same exchange.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Iv(pub(super) Vec<u8>);

impl Protection {
    /// Derives the keys; returns them with the IV of the first encrypted message.
    ///
    /// # Errors
    /// [`Fault::Internal`] when the cipher refuses its key.
    pub(super) fn new(
        suite: &Phase1,
        skeyid: Secret,
        exchanged: &Exchanged,
        cookies: IkeSpis,
    ) -> Result<(Self, Iv), Fault> {
        let mut both = [0; 16];
        both[..8].copy_from_slice(&cookies.initiator.0);
        both[8..].copy_from_slice(&cookies.responder.0);
        let keys = V1Keys::derive(suite.prf, skeyid, &exchanged.shared, &both);
        let cipher = V1Cipher::new(suite.enc, &keys.cipher_key(suite.prf, suite.enc.key_len))?;
        let iv = phase1_iv(suite.hash, &exchanged.public_i, &exchanged.public_r, cipher.block_len());
        let auth_prf = suite.auth_prf();
        Ok((Self { prf: suite.prf, auth_prf, hash: suite.hash, keys, cipher }, Iv(iv)))
    }

    /// Reports the key for debugging, if requested.
    pub(super) fn disclose(&self, ctx: &mut Context<'_>, basis: &Basis, suite: &Phase1) {
        if ctx.settings.log_secrets {
            let (key, none) = (self.keys.cipher_key(self.prf, suite.enc.key_len), Secret::from_slice(&[]));
            ctx.out.push_back(Output::Secrets(Box::new(IkeSecrets {
                ike: basis.id,
                version: Version::V1,
                spis: basis.cookies,
                suite: suite.suite(),
                sk_e: (key.clone(), key),
                sk_a: (none.clone(), none),
            })));
        }
    }

    /// IV of the first message of an exchange of phase 2. `base` is that after the last message of
    /// phase 1.
    pub(super) fn iv(&self, base: &Iv, message_id: u32) -> Iv {
        Iv(phase2_iv(self.hash, &base.0, message_id, self.cipher.block_len()))
    }

    /// Encrypts payloads and moves the IV on.
    pub(super) fn seal(&self, iv: &mut Iv, head: &Head, first: PayloadType, body: &[u8]) -> Vec<u8> {
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(self.cipher.block_len()), 0);
        let sealed = self.cipher.encrypt_in_place(&mut iv.0, &mut body);
        debug_assert_eq!(sealed, Ok(()), "padded to whole blocks");
        head.message(true, first, &body)
    }

    /// Decrypts the body of a message. The IV is returned, because it must not move on for a
    /// message that turns out to be invalid.
    pub(super) fn open(&self, iv: &Iv, body: &[u8]) -> Result<(Vec<u8>, Iv), NotWholeBlocks> {
        let (mut iv, mut plain) = (iv.clone(), body.to_vec());
        self.cipher.decrypt_in_place(&mut iv.0, &mut plain)?;
        Ok((plain, iv))
    }

    /// HASH_I or HASH_R, of the sender with this role.
    pub(super) fn hash_phase1(
        &self,
        of_initiator: bool,
        exchanged: &Exchanged,
        cookies: IkeSpis,
        sa_body: &[u8],
        id_body: &[u8],
    ) -> Vec<u8> {
        let (sender, other) = exchanged.sides(of_initiator, &cookies);
        self.keys.hash_phase1(self.auth_prf, sender, other, sa_body, id_body)
    }

    /// Encrypts payloads that follow HASH(1): INFORMATIONAL and the first message of quick mode.
    pub(super) fn seal_hash_1(&self, iv: &mut Iv, head: &Head, first: PayloadType, rest: &[u8]) -> Vec<u8> {
        let hash = self.keys.hash_1(self.prf, head.message_id, rest);
        self.seal(iv, head, PayloadType::HASH_V1, &with_hash(&hash, first, rest))
    }

    /// Returns whether the message has HASH(1) in front.
    pub(super) fn has_hash_1(&self, message_id: u32, parts: &Parts<'_>) -> bool {
        let hash = |rest| self.keys.hash_1(self.prf, message_id, rest);
        parts.hashed.is_some_and(|rest| is_equal(parts.hash, &hash(rest)))
    }
}

/// SHA-256 of a received message.
pub(super) type Digest = [u8; 32];

/// Digest of a received message, for the detection of duplicates.
pub(super) fn digest(datagram: &[u8]) -> Digest {
    let mut out = [0; 32];
    out.copy_from_slice(&Hash::Sha256.digest(&[datagram]));
    out
}

/// Compares a received hash in constant time.
pub(super) fn is_equal(received: Option<&[u8]>, computed: &[u8]) -> bool {
    received.is_some_and(|received| Secret::from_slice(received) == Secret::from_slice(computed))
}
