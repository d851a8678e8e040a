//! Safe types for AWS-LC's primitives: the FFI and `unsafe` code of the packet engine.
//!
//! `aws-lc-sys` is used directly where `aws-lc-rs` costs a heap allocation per key or some 10 ns
//! per packet, or lacks the function: AEAD contexts in place with 8- and 12-byte tags, AES blocks,
//! CBC, CTR, DES, and hash states that can be copied. Each type owns a plain C structure, is made
//! once by `new`, only read afterwards, and is overwritten when dropped.
//!
//! Three rules of the library are relied on throughout:
//! - every function reads exactly the lengths it is given, and takes a dangling pointer with length
//!   0;
//! - a cipher may write where it reads (`in == out`), which is how all work in place is done here;
//! - a key or AEAD context is not changed by use ("may be used concurrently", `aead.h`, `aes.h`).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use aws_lc_sys as sys;

use crate::CipherKind;

/// Overwrites a C structure that held a key.
pub(crate) fn cleanse<T: Copy>(secret: &mut T) {
    // SAFETY: the pointer and length are those of one exclusively borrowed value, and every `T`
    // used here is a `Copy` C structure for which all-zero bytes are a valid value.
    unsafe { sys::OPENSSL_cleanse(std::ptr::from_mut(secret).cast(), size_of::<T>()) }
}

/// Compares in time that depends on the lengths alone.
pub(crate) fn equal(a: &[u8], b: &[u8]) -> bool {
    // SAFETY: both slices are readable for the common length.
    a.len() == b.len() && unsafe { sys::CRYPTO_memcmp(a.as_ptr().cast(), b.as_ptr().cast(), a.len()) } == 0
}

/// AES-GCM or ChaCha20-Poly1305 with one key and one tag length.
pub(crate) struct Aead {
    ctx: sys::EVP_AEAD_CTX,
}

// SAFETY: the only pointer inside leads to the algorithm's constant method table; after `new` the
// context is read only, which the library allows from several threads at once (aead.h).
unsafe impl Send for Aead {}
// SAFETY: as above.
unsafe impl Sync for Aead {}

impl Aead {
    /// Returns `None` if the library lacks the algorithm or the key length is invalid.
    pub(crate) fn new(kind: CipherKind, key: &[u8], tag_len: usize) -> Option<Self> {
        // SAFETY: these functions take nothing and return constant tables.
        let algorithm = unsafe {
            match (kind, key.len()) {
                (CipherKind::AesGcm | CipherKind::AesGmac, 16) => sys::EVP_aead_aes_128_gcm(),
                (CipherKind::AesGcm | CipherKind::AesGmac, 24) => sys::EVP_aead_aes_192_gcm(),
                (CipherKind::AesGcm | CipherKind::AesGmac, 32) => sys::EVP_aead_aes_256_gcm(),
                (CipherKind::ChaCha20Poly1305, 32) => sys::EVP_aead_chacha20_poly1305(),
                _ => return None,
            }
        };
        let mut ctx = MaybeUninit::<sys::EVP_AEAD_CTX>::zeroed();
        // SAFETY: the context is writable, the key readable for its length, no ENGINE is given.
        // All-zero bytes are a valid context (EVP_AEAD_CTX_zero), so it is initialised either way.
        // These algorithms keep their state inside the structure and copy it bytewise
        // (`aead_ctx_copy_state_trivial`), so it may be moved; they own no heap memory.
        unsafe {
            let done = sys::EVP_AEAD_CTX_init(
                ctx.as_mut_ptr(),
                algorithm,
                key.as_ptr(),
                key.len(),
                tag_len,
                std::ptr::null_mut(),
            );
            let aead = Self { ctx: ctx.assume_init() };
            (done == 1).then_some(aead)
        }
    }

    /// Encrypts `body` in place and writes the tag. Returns false if the tag buffer has not the tag
    /// length of the key.
    #[inline]
    pub(crate) fn seal(&self, nonce: &[u8; 12], aad: &[u8], body: &mut [u8], tag: &mut [u8]) -> bool {
        if tag.len() != usize::from(self.ctx.tag_len) {
            return false;
        }
        let mut tag_len = 0;
        // SAFETY: the context is initialised; `body` is input and output of one length; `tag` is a
        // separate slice, writable for the length given; no extra input.
        unsafe {
            sys::EVP_AEAD_CTX_seal_scatter(
                &self.ctx,
                body.as_mut_ptr(),
                tag.as_mut_ptr(),
                &mut tag_len,
                tag.len(),
                nonce.as_ptr(),
                nonce.len(),
                body.as_ptr(),
                body.len(),
                std::ptr::null(),
                0,
                aad.as_ptr(),
                aad.len(),
            ) == 1
        }
    }

    /// Verifies `tag` and decrypts `body` in place; on failure the body is zeroed.
    #[inline]
    pub(crate) fn open(&self, nonce: &[u8; 12], aad: &[u8], body: &mut [u8], tag: &[u8]) -> bool {
        // SAFETY: the context is initialised; `body` is input and output of one length; the library
        // refuses a tag of another length than the key's.
        unsafe {
            sys::EVP_AEAD_CTX_open_gather(
                &self.ctx,
                body.as_mut_ptr(),
                nonce.as_ptr(),
                nonce.len(),
                body.as_ptr(),
                body.len(),
                tag.as_ptr(),
                tag.len(),
                aad.as_ptr(),
                aad.len(),
            ) == 1
        }
    }
}

impl Drop for Aead {
    fn drop(&mut self) {
        // SAFETY: the context is initialised or all zero; cleanup takes both.
        unsafe { sys::EVP_AEAD_CTX_cleanup(&mut self.ctx) }
        // Cleanup frees memory but does not overwrite state inside the structure.
        cleanse(&mut self.ctx);
    }
}

/// AES key schedule for encryption. CTR, CMAC and XCBC need no other.
pub(crate) struct AesEnc(sys::AES_KEY);

impl AesEnc {
    /// `None` unless `key` has 16, 24 or 32 bytes.
    pub(crate) fn new(key: &[u8]) -> Option<Self> {
        let mut schedule = Self(sys::AES_KEY { rd_key: [0; 60], rounds: 0 });
        // SAFETY: reads `bits / 8` bytes of `key` and refuses bit counts other than AES's.
        let refused = unsafe { sys::AES_set_encrypt_key(key.as_ptr(), (key.len() * 8) as u32, &mut schedule.0) };
        (refused == 0).then_some(schedule)
    }

    /// Encrypts one block in place.
    #[inline]
    pub(crate) fn block(&self, block: &mut [u8; 16]) {
        // SAFETY: the schedule is initialised; one block is read and written in place.
        unsafe { sys::AES_encrypt(block.as_ptr(), block.as_mut_ptr(), &self.0) }
    }

    /// CBC encryption in place. False when `body` is not whole blocks.
    pub(crate) fn cbc_encrypt(&self, mut iv: [u8; 16], body: &mut [u8]) -> bool {
        if !body.len().is_multiple_of(16) {
            return false;
        }
        // SAFETY: the schedule is initialised; `body` is input and output of whole blocks; `iv` is
        // a block that is overwritten.
        unsafe {
            let bytes = body.as_mut_ptr();
            sys::AES_cbc_encrypt(bytes, bytes, body.len(), &self.0, iv.as_mut_ptr(), sys::AES_ENCRYPT);
        }
        true
    }

    /// CTR with a 32-bit big-endian counter in the last word of `counter` (RFC 3686 §4), in place.
    pub(crate) fn ctr(&self, mut counter: [u8; 16], body: &mut [u8]) {
        let (mut keystream, mut used) = ([0; 16], 0);
        // SAFETY: the schedule is initialised; `body` is input and output of one length; counter,
        // keystream block and its fill (0) are as the first call of a message needs them.
        unsafe {
            let (bytes, len) = (body.as_mut_ptr(), body.len());
            sys::AES_ctr128_encrypt(
                bytes,
                bytes,
                len,
                &self.0,
                counter.as_mut_ptr(),
                keystream.as_mut_ptr(),
                &mut used,
            );
        }
    }
}

impl Drop for AesEnc {
    fn drop(&mut self) {
        cleanse(&mut self.0);
    }
}

/// An AES key schedule for decryption.
pub(crate) struct AesDec(sys::AES_KEY);

impl AesDec {
    /// `None` unless `key` has 16, 24 or 32 bytes.
    pub(crate) fn new(key: &[u8]) -> Option<Self> {
        let mut schedule = Self(sys::AES_KEY { rd_key: [0; 60], rounds: 0 });
        // SAFETY: reads `bits / 8` bytes of `key` and refuses bit counts other than AES's.
        let refused = unsafe { sys::AES_set_decrypt_key(key.as_ptr(), (key.len() * 8) as u32, &mut schedule.0) };
        (refused == 0).then_some(schedule)
    }

    /// CBC decryption in place. False when `body` is not whole blocks.
    pub(crate) fn cbc_decrypt(&self, mut iv: [u8; 16], body: &mut [u8]) -> bool {
        if !body.len().is_multiple_of(16) {
            return false;
        }
        // SAFETY: the schedule is initialised; `body` is input and output of whole blocks; `iv` is
        // a block that is overwritten.
        unsafe {
            let bytes = body.as_mut_ptr();
            sys::AES_cbc_encrypt(bytes, bytes, body.len(), &self.0, iv.as_mut_ptr(), sys::AES_DECRYPT);
        }
        true
    }
}

impl Drop for AesDec {
    fn drop(&mut self) {
        cleanse(&mut self.0);
    }
}

/// DES in CBC mode with one key, or Triple DES with three.
pub(crate) struct DesCbc<const KEYS: usize>([sys::DES_key_schedule; KEYS]);

impl<const KEYS: usize> DesCbc<KEYS> {
    /// `None` unless `key` has 8 bytes for each key. Parity bits are ignored (RFC 2451 §2.2).
    pub(crate) fn new(key: &[u8]) -> Option<Self> {
        let (keys, []) = key.as_chunks::<8>() else { return None };
        if keys.len() != KEYS {
            return None;
        }
        let mut schedules = Self([sys::DES_key_schedule::default(); KEYS]);
        for (schedule, key) in schedules.0.iter_mut().zip(keys) {
            let mut block = sys::DES_cblock { bytes: *key };
            // SAFETY: reads one block, writes one schedule; a bad parity is reported but the
            // schedule is set all the same.
            unsafe { sys::DES_set_key(&block, schedule) };
            cleanse(&mut block);
        }
        Some(schedules)
    }

    /// CBC in place. False when `body` is not whole blocks.
    pub(crate) fn cbc(&self, iv: [u8; 8], body: &mut [u8], encrypt: bool) -> bool {
        if !body.len().is_multiple_of(8) {
            return false;
        }
        let mut iv = sys::DES_cblock { bytes: iv };
        let (bytes, len, encrypt) = (body.as_mut_ptr(), body.len(), i32::from(encrypt));
        match &self.0[..] {
            // SAFETY: initialised schedules; `body` is input and output of whole blocks, and each
            // block is read before it is written; `iv` is a block that is overwritten.
            [one] => unsafe { sys::DES_ncbc_encrypt(bytes, bytes, len, one, &mut iv, encrypt) },
            // SAFETY: as above.
            [one, two, three] => unsafe {
                sys::DES_ede3_cbc_encrypt(bytes, bytes, len, one, two, three, &mut iv, encrypt);
            },
            _ => return false,
        }
        true
    }
}

impl<const KEYS: usize> Drop for DesCbc<KEYS> {
    fn drop(&mut self) {
        cleanse(&mut self.0);
    }
}

/// Incremental hash. A clone copies the state: HMAC clones its two precomputed states per message.
pub(crate) trait Hash: Clone {
    /// Block size in bytes.
    const BLOCK: usize;
    /// Output size in bytes.
    const OUT: usize;
    /// Returns the initial state.
    fn start() -> Self;
    /// Hashes more bytes.
    fn update(&mut self, bytes: &[u8]);
    /// Writes the result into the first [`Hash::OUT`] bytes.
    fn finish(self, out: &mut [u8; 64]);
}

macro_rules! hash {
    ($name:ident, $state:ident, $init:ident, $update:ident, $finish:ident, block $block:literal, out $out:literal) => {
        #[derive(Clone)]
        pub(crate) struct $name(sys::$state);

        impl Hash for $name {
            const BLOCK: usize = $block;
            const OUT: usize = $out;

            fn start() -> Self {
                let mut state = MaybeUninit::zeroed();
                // SAFETY: the state is writable and made of integers only: initialised even if it
                // were not for `init`, which always succeeds.
                unsafe {
                    sys::$init(state.as_mut_ptr());
                    Self(state.assume_init())
                }
            }

            #[inline]
            fn update(&mut self, bytes: &[u8]) {
                // SAFETY: an initialised state and a readable slice.
                unsafe { sys::$update(&mut self.0, bytes.as_ptr().cast(), bytes.len()) };
            }

            #[inline]
            fn finish(mut self, out: &mut [u8; 64]) {
                // SAFETY: an initialised state; the output is at most 64 bytes long.
                unsafe { sys::$finish(out.as_mut_ptr(), &mut self.0) };
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                cleanse(&mut self.0);
            }
        }
    };
}

hash!(Md5, MD5_CTX, MD5_Init, MD5_Update, MD5_Final, block 64, out 16);
hash!(Sha1, SHA_CTX, SHA1_Init, SHA1_Update, SHA1_Final, block 64, out 20);
hash!(Sha256, SHA256_CTX, SHA256_Init, SHA256_Update, SHA256_Final, block 64, out 32);
hash!(Sha384, SHA512_CTX, SHA384_Init, SHA384_Update, SHA384_Final, block 128, out 48);
hash!(Sha512, SHA512_CTX, SHA512_Init, SHA512_Update, SHA512_Final, block 128, out 64);

#[cfg(test)]
mod tests {
    use super::*;

    fn digest<H: Hash>(parts: &[&[u8]]) -> Vec<u8> {
        let (mut hash, mut out) = (H::start(), [0; 64]);
        parts.iter().for_each(|part| hash.update(part));
        hash.finish(&mut out);
        out[..H::OUT].to_vec()
    }

    #[test]
    fn hashes_take_their_input_in_pieces() {
        assert_eq!(digest::<Md5>(&[b"a", b"", b"bc"])[..4], [0x90, 0x01, 0x50, 0x98]);
        assert_eq!(digest::<Sha1>(&[b"a", b"bc"])[..4], [0xa9, 0x99, 0x3e, 0x36]);
        assert_eq!(digest::<Sha256>(&[b"a", b"bc"])[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!(digest::<Sha384>(&[b"a", b"bc"])[..4], [0xcb, 0x00, 0x75, 0x3f]);
        assert_eq!(digest::<Sha512>(&[b"a", b"bc"])[..4], [0xdd, 0xaf, 0x35, 0xa1]);
    }

    #[test]
    fn wrong_key_lengths_make_no_key() {
        for len in [0, 1, 8, 15, 17, 23, 25, 31, 33, 64] {
            let key = vec![1; len];
            assert!(AesEnc::new(&key).is_none() && AesDec::new(&key).is_none());
            assert!(Aead::new(CipherKind::AesGcm, &key, 16).is_none());
            assert!(Aead::new(CipherKind::ChaCha20Poly1305, &key, 16).is_none());
            assert!(len == 8 || DesCbc::<1>::new(&key).is_none());
            assert!(DesCbc::<3>::new(&key).is_none());
        }
        assert!(Aead::new(CipherKind::AesCbc, &[0; 16], 16).is_none());
        assert!(Aead::new(CipherKind::AesGcm, &[0; 16], 17).is_none());
    }

    #[test]
    fn equal_compares_lengths_too() {
        assert!(equal(b"", b"") && equal(b"abc", b"abc"));
        assert!(!equal(b"abc", b"abd") && !equal(b"abc", b"ab") && !equal(b"", b"a"));
    }

    #[test]
    fn a_context_may_be_moved() {
        let key = Box::new(Aead::new(CipherKind::AesGcm, &[7; 16], 16).expect("a key"));
        let (mut tag, mut moved_tag) = ([0; 16], [0; 16]);
        assert!(key.seal(&[1; 12], b"aad", &mut [], &mut tag));
        let (_padding, moved) = (0u8, *key);
        assert!(moved.seal(&[1; 12], b"aad", &mut [], &mut moved_tag));
        assert_eq!(tag, moved_tag);
    }

    #[test]
    fn dropping_overwrites() {
        let mut aead = MaybeUninit::new(Aead::new(CipherKind::AesGcm, &[7; 32], 16).expect("a key"));
        let mut aes = MaybeUninit::new(AesEnc::new(&[7; 32]).expect("a key"));
        let mut hash = MaybeUninit::new(Sha512::start());
        // SAFETY: each value is initialised and dropped once; its memory stays, and the integers
        // read afterwards are initialised: `cleanse` wrote them.
        unsafe {
            hash.assume_init_mut().update(b"secret");
            assert_ne!(aead.assume_init_ref().ctx.state.opaque, [0; 564]);
            aead.assume_init_drop();
            aes.assume_init_drop();
            hash.assume_init_drop();
            assert_eq!((*aead.as_ptr()).ctx.state.opaque, [0; 564]);
            assert_eq!((*aes.as_ptr()).0.rd_key, [0; 60]);
            assert_eq!(((*hash.as_ptr()).0.h, (*hash.as_ptr()).0.p), ([0; 8], [0; 128]));
        }
    }
}
