//! Keys of IKEv1 (RFC 2409 §5, appendix B).

use crypto::ike::{Hash, Prf, Secret};

/// SKEYID with a shared key: prf(psk, Ni_b | Nr_b). Called by the holder of the key.
pub fn skeyid_psk(prf: Prf, shared_key: &[u8], nonces: &[u8]) -> Secret {
    prf.compute(shared_key, &[nonces])
}

/// SKEYID with signatures: prf(Ni_b | Nr_b, g^xy).
pub fn skeyid_signature(prf: Prf, nonces: &[u8], shared: &[u8]) -> Secret {
    prf.compute(nonces, &[shared])
}

/// SKEYID and the keys derived from it.
#[derive(Clone)]
pub struct V1Keys {
    /// For HASH_I and HASH_R.
    pub skeyid: Secret,
    /// For the keys of quick mode.
    pub skeyid_d: Secret,
    /// For the hashes of phase 2.
    pub skeyid_a: Secret,
    /// For the cipher.
    pub skeyid_e: Secret,
}

impl V1Keys {
    /// SKEYID_d, SKEYID_a and SKEYID_e. `cookies` are CKY-I | CKY-R.
    pub fn derive(prf: Prf, skeyid: Secret, shared: &[u8], cookies: &[u8; 16]) -> Self {
        let skeyid_d = prf.compute(&skeyid, &[shared, cookies, &[0]]);
        let skeyid_a = prf.compute(&skeyid, &[&skeyid_d, shared, cookies, &[1]]);
        let skeyid_e = prf.compute(&skeyid, &[&skeyid_a, shared, cookies, &[2]]);
        Self { skeyid, skeyid_d, skeyid_a, skeyid_e }
    }

    /// The key of the cipher, `len` bytes: SKEYID_e, or Ka where that is too short.
    pub fn cipher_key(&self, prf: Prf, len: usize) -> Secret {
        if len <= self.skeyid_e.len() {
            return Secret::from_slice(&self.skeyid_e[..len]);
        }
        // K1 = prf(SKEYID_e, 0), and each further block is made of the one before (RFC 2409
        // appendix B).
        feed_back(len, |last| prf.compute(&self.skeyid_e, &[last.unwrap_or(&[0])]))
    }

    /// HASH_I or HASH_R: prf(SKEYID, g^x of the sender | g^x of the other | its cookie | the
    /// other's | SAi_b | IDx_b). `sa_body` is the body of the initiator's SA payload, `id_body`
    /// that of the sender's ID payload, both without generic header.
    pub fn hash_phase1(&self, prf: Prf, sender: Side<'_>, other: Side<'_>, sa_body: &[u8], id_body: &[u8]) -> Vec<u8> {
        let parts = [sender.public, other.public, sender.cookie, other.cookie, sa_body, id_body];
        prf.compute(&self.skeyid, &parts).to_vec()
    }

    /// HASH(1) of quick mode, and that of INFORMATIONAL and TRANSACTION: prf(SKEYID_a, M-ID | rest
    /// of the message after the hash).
    pub fn hash_1(&self, prf: Prf, message_id: u32, rest: &[u8]) -> Vec<u8> {
        prf.compute(&self.skeyid_a, &[&message_id.to_be_bytes(), rest]).to_vec()
    }

    /// HASH(2) of quick mode: prf(SKEYID_a, M-ID | Ni_b | rest of the message after the hash).
    pub fn hash_2(&self, prf: Prf, message_id: u32, nonce_i: &[u8], rest: &[u8]) -> Vec<u8> {
        prf.compute(&self.skeyid_a, &[&message_id.to_be_bytes(), nonce_i, rest]).to_vec()
    }

    /// HASH(3) of quick mode: prf(SKEYID_a, 0 | M-ID | Ni_b | Nr_b).
    pub fn hash_3(&self, prf: Prf, message_id: u32, nonce_i: &[u8], nonce_r: &[u8]) -> Vec<u8> {
        prf.compute(&self.skeyid_a, &[&[0], &message_id.to_be_bytes(), nonce_i, nonce_r]).to_vec()
    }

    /// `len` bytes of KEYMAT of quick mode for one SA (RFC 2409 §5.5). `shared` is empty without
    /// PFS; the SPI is that of the SA's receiver; nonces without headers.
    pub fn quick_mode(&self, prf: Prf, quick: &QuickMode<'_>, len: usize) -> Secret {
        let QuickMode { shared, protocol, spi, nonce_i, nonce_r } = *quick;
        feed_back(len, |last| {
            let parts = [last.unwrap_or(&[]), shared, &[protocol], spi, nonce_i, nonce_r];
            prf.compute(&self.skeyid_d, &parts)
        })
    }
}

/// Contribution of one side to phase 1.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// Its public value.
    pub public: &'a [u8],
    /// Its cookie, 8 bytes.
    pub cookie: &'a [u8],
}

/// Inputs of KEYMAT of quick mode besides SKEYID_d.
#[derive(Clone, Copy)]
pub struct QuickMode<'a> {
    /// g(qm)^xy; empty without PFS.
    pub shared: &'a [u8],
    /// Protocol ID of the proposal: 3 for ESP, 2 for AH.
    pub protocol: u8,
    /// SPI of the receiver, 4 bytes.
    pub spi: &'a [u8],
    /// Ni of the exchange.
    pub nonce_i: &'a [u8],
    /// Nr.
    pub nonce_r: &'a [u8],
}

/// K1 | K2 | … cut to `len`, where each is made of the one before.
fn feed_back(len: usize, next: impl Fn(Option<&[u8]>) -> Secret) -> Secret {
    let mut all = zeroize::Zeroizing::new(Vec::with_capacity(len + 64));
    let mut last: Option<Secret> = None;
    while all.len() < len {
        let block = next(last.as_deref());
        all.extend_from_slice(&block);
        last = Some(block);
    }
    Secret::from_slice(&all[..len])
}

/// IV of phase 1: the first block of hash(g^xi | g^xr).
pub fn phase1_iv(hash: Hash, public_i: &[u8], public_r: &[u8], block_len: usize) -> Vec<u8> {
    first_block(hash, [public_i, public_r], block_len)
}

/// IV of an exchange of phase 2: the first block of hash(last ciphertext block of phase 1 | M-ID).
pub fn phase2_iv(hash: Hash, last_block: &[u8], message_id: u32, block_len: usize) -> Vec<u8> {
    // The message ID separates exchanges of phase 2, which may run at the same time and would share
    // an IV otherwise.
    first_block(hash, [last_block, &message_id.to_be_bytes()], block_len)
}

fn first_block(hash: Hash, parts: [&[u8]; 2], block_len: usize) -> Vec<u8> {
    let mut iv = hash.digest(&parts);
    iv.truncate(block_len);
    iv
}

#[cfg(test)]
mod tests {
    use super::super::tests::unhex;
    use super::*;

    /// NIST CAVP, SP 800-135 IKEv1 with signatures and SHA-1.
    #[test]
    fn keys_of_nist() {
        let nonces = unhex("ced5635da6796075 6244b427712fb776");
        let shared = unhex(
            "2a2e0bbe8da3657a83f3d35826e49e2d38e557e912a1b9e6c30c63577b3eab715466202862027f2c26f3090743555579\
            611771db0b92bef93834432a3a7762fc8a0f4889fd281d6082770d10a40d7bad61e832f041e620d6787e7f62ab2861dd\
            fbe272e0d9d3cdec5f1bbf750e24b8b32d6d714968ad69ce5086c32ad2742ebc",
        );
        let cookies: [u8; 16] = unhex("382e5c8b0a3fa307 ba4b7616700a2413").try_into().expect("16 bytes");
        let skeyid = skeyid_signature(Prf::HmacSha1, &nonces, &shared);
        assert_eq!(skeyid.to_vec(), unhex("dc37ac99de6dcfbd1ee74af7fb36f9b4b0a7829d"));
        let keys = V1Keys::derive(Prf::HmacSha1, skeyid, &shared, &cookies);
        assert_eq!(keys.skeyid_d.to_vec(), unhex("486293ed547adb562cefdaf43d3d8457b196f2b6"));
        assert_eq!(keys.skeyid_a.to_vec(), unhex("f4053b5ca07e59bb41b8f401037ca90b72b3917e"));
        assert_eq!(keys.skeyid_e.to_vec(), unhex("49a1d53a80fb77e663552964fbbcb45092021473"));
    }

    fn keys() -> V1Keys {
        let skeyid = skeyid_psk(Prf::HmacSha1, b"secret", b"nonces");
        assert!(skeyid == Prf::HmacSha1.compute(b"secret", &[b"nonces"]));
        V1Keys::derive(Prf::HmacSha1, skeyid, b"g^xy", &[7; 16])
    }

    #[test]
    fn a_long_cipher_key_is_expanded() {
        let (prf, keys) = (Prf::HmacSha1, keys());
        assert_eq!(keys.cipher_key(prf, 16).to_vec(), keys.skeyid_e[..16]);
        assert_eq!(keys.cipher_key(prf, 20).to_vec(), keys.skeyid_e.to_vec());
        let k1 = prf.compute(&keys.skeyid_e, &[&[0]]);
        let k2 = prf.compute(&keys.skeyid_e, &[&k1]);
        assert_eq!(keys.cipher_key(prf, 32).to_vec(), [&k1[..], &k2[..12]].concat());
    }

    #[test]
    fn quick_mode_keys_feed_back() {
        let (prf, keys) = (Prf::HmacSha1, keys());
        let quick = QuickMode { shared: b"qm", protocol: 3, spi: &[1, 2, 3, 4], nonce_i: b"ni", nonce_r: b"nr" };
        let seed = b"qm\x03\x01\x02\x03\x04ninr";
        let k1 = prf.compute(&keys.skeyid_d, &[seed]);
        let k2 = prf.compute(&keys.skeyid_d, &[&k1, seed]);
        assert_eq!(keys.quick_mode(prf, &quick, 36).to_vec(), [&k1[..], &k2[..16]].concat());
        let other = keys.quick_mode(prf, &QuickMode { spi: &[1, 2, 3, 5], ..quick }, 36);
        assert!(other != keys.quick_mode(prf, &quick, 36));
        assert!(keys.quick_mode(prf, &quick, 0).is_empty());
    }

    #[test]
    fn hashes_cover_what_the_rfc_lists() {
        let (prf, keys) = (Prf::HmacSha1, keys());
        let (i, r) = (Side { public: b"gi", cookie: b"cookie-i" }, Side { public: b"gr", cookie: b"cookie-r" });
        let skeyid = |text: &[u8]| prf.compute(&keys.skeyid, &[text]).to_vec();
        assert_eq!(keys.hash_phase1(prf, i, r, b"sa", b"id"), skeyid(b"gigrcookie-icookie-rsaid"));
        assert_eq!(keys.hash_phase1(prf, r, i, b"sa", b"id"), skeyid(b"grgicookie-rcookie-isaid"));
        let skeyid_a = |text: &[u8]| prf.compute(&keys.skeyid_a, &[text]).to_vec();
        assert_eq!(keys.hash_1(prf, 0x01020304, b"rest"), skeyid_a(b"\x01\x02\x03\x04rest"));
        assert_eq!(keys.hash_2(prf, 0x01020304, b"ni", b"rest"), skeyid_a(b"\x01\x02\x03\x04nirest"));
        assert_eq!(keys.hash_3(prf, 0x01020304, b"ni", b"nr"), skeyid_a(b"\0\x01\x02\x03\x04ninr"));
    }

    #[test]
    fn ivs_start_from_a_hash() {
        assert_eq!(phase1_iv(Hash::Sha1, b"gi", b"gr", 16), Hash::Sha1.digest(&[b"gigr"])[..16]);
        assert_eq!(phase2_iv(Hash::Md5, b"block", 1, 8), Hash::Md5.digest(&[b"block\0\0\0\x01"])[..8]);
    }
}
