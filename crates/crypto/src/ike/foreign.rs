//! Functions of AWS-LC for IKE that `aws-lc-rs` does not expose: modular exponentiation, the primes
//! of RFC 3526, MD4, and one type for all kinds of public keys, with the legacy signatures of old
//! peers (SHA-1, no DigestInfo). The other `unsafe` module of this crate is the packet engine.
//!
//! Rules of the library that are relied on throughout:
//! - every function reads exactly the lengths it is given;
//! - a function that returns an owned pointer returns null when it fails;
//! - `OPENSSL_free`, which every `*_free` ends in, overwrites what it frees (`mem.h`);
//! - an `EVP_PKEY` may be used by several threads at once, as long as none changes it (`evp.h`).
#![allow(unsafe_code)]

pub(super) mod pkcs12;

use std::mem::MaybeUninit;
use std::ptr::{NonNull, null, null_mut};

use aws_lc_sys as sys;
use zeroize::Zeroizing;

use super::{Curve, Hash, PublicKeyKind};

/// A C object with its destructor.
struct Owned<T> {
    object: NonNull<T>,
    free: unsafe extern "C" fn(*mut T),
}

impl<T> Owned<T> {
    /// `None` for null.
    ///
    /// # Safety
    /// `object` is null, or valid, owned by the caller, and to be freed by `free`.
    unsafe fn new(object: *mut T, free: unsafe extern "C" fn(*mut T)) -> Option<Self> {
        NonNull::new(object).map(|object| Self { object, free })
    }

    fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: `new` was promised that the object is owned and freed by this function; it is
        // freed once, here.
        unsafe { (self.free)(self.object.as_ptr()) }
    }
}

/// A number, overwritten when dropped.
fn number(bytes: &[u8]) -> Option<Owned<sys::BIGNUM>> {
    // SAFETY: reads `bytes`; makes an owned number or null.
    unsafe { Owned::new(sys::BN_bin2bn(bytes.as_ptr(), bytes.len(), null_mut()), sys::BN_clear_free) }
}

fn empty_number() -> Option<Owned<sys::BIGNUM>> {
    // SAFETY: makes an owned number or null.
    unsafe { Owned::new(sys::BN_new(), sys::BN_clear_free) }
}

/// `base` to the power of `exponent` modulo the odd number `modulus`, big-endian, padded to the
/// length of `modulus`. Takes the same time for every exponent of the same length.
///
/// `None` when memory is short, or `base` is not below `modulus`.
pub(super) fn mod_exp(modulus: &[u8], base: &[u8], exponent: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0; modulus.len()];
    let (modulus, base, exponent) = (number(modulus)?, number(base)?, number(exponent)?);
    let result = empty_number()?;
    // SAFETY: makes an owned context or null.
    let context = unsafe { Owned::new(sys::BN_CTX_new(), sys::BN_CTX_free) }?;
    // SAFETY: all pointers are to valid objects that live on; null lets the function make the
    // Montgomery form itself; it refuses an even modulus and a base that is not reduced. The
    // output is writable for the length given.
    let done = unsafe {
        sys::BN_mod_exp_mont_consttime(
            result.as_ptr(),
            base.as_ptr(),
            exponent.as_ptr(),
            modulus.as_ptr(),
            context.as_ptr(),
            null(),
        ) == 1
            && sys::BN_bn2bin_padded(out.as_mut_ptr(), out.len(), result.as_ptr()) == 1
    };
    done.then_some(out)
}

/// The prime of RFC 3526 with so many bits, big-endian. `None` when there is none.
pub(super) fn rfc3526_prime(bits: usize) -> Option<Vec<u8>> {
    let prime = empty_number()?;
    let mut out = vec![0; bits / 8];
    // SAFETY: each function writes a constant into the number it is given, and returns it.
    let done = unsafe {
        let number = prime.as_ptr();
        let made = match bits {
            1536 => sys::BN_get_rfc3526_prime_1536(number),
            2048 => sys::BN_get_rfc3526_prime_2048(number),
            3072 => sys::BN_get_rfc3526_prime_3072(number),
            4096 => sys::BN_get_rfc3526_prime_4096(number),
            6144 => sys::BN_get_rfc3526_prime_6144(number),
            8192 => sys::BN_get_rfc3526_prime_8192(number),
            _ => null_mut(),
        };
        !made.is_null() && sys::BN_bn2bin_padded(out.as_mut_ptr(), out.len(), number) == 1
    };
    done.then_some(out)
}

/// MD4 (RFC 1320): what Windows makes of a password.
pub(super) fn md4(bytes: &[u8]) -> [u8; 16] {
    let mut out = [0; 16];
    // SAFETY: reads `bytes` and writes 16 bytes.
    unsafe { sys::MD4(bytes.as_ptr(), bytes.len(), out.as_mut_ptr()) };
    out
}

fn md(hash: Hash) -> *const sys::EVP_MD {
    // SAFETY: these take nothing and return constant tables.
    unsafe {
        match hash {
            Hash::Md5 => sys::EVP_md5(),
            Hash::Sha1 => sys::EVP_sha1(),
            Hash::Sha256 => sys::EVP_sha256(),
            Hash::Sha384 => sys::EVP_sha384(),
            Hash::Sha512 => sys::EVP_sha512(),
        }
    }
}

/// Encoding of a hash for the signature.
#[derive(Clone, Copy)]
pub(super) enum Encoding {
    /// RSASSA-PKCS1-v1_5 with the DigestInfo of the hash.
    Pkcs1(Hash),
    /// PKCS #1 block type 1 around the bare bytes.
    Pkcs1Bare,
    /// RSASSA-PSS, MGF1 with the same hash, salt as long as the hash.
    Pss(Hash),
    /// ECDSA; the signature is a DER sequence.
    Ecdsa,
}

/// A public key, or a key pair.
pub(super) struct PKey(Owned<sys::EVP_PKEY>);

// SAFETY: after it was made nothing here changes the key, and the library allows the use of an
// unchanging key from several threads: its reference count and lazily made parts are locked.
unsafe impl Send for PKey {}
// SAFETY: as above.
unsafe impl Sync for PKey {}

/// Runs a parser of the library over `der` and requires that it consumed every byte.
fn whole<T>(der: &[u8], parse: impl FnOnce(*mut sys::CBS) -> Option<T>) -> Option<T> {
    let mut bytes = MaybeUninit::<sys::CBS>::uninit();
    // SAFETY: `CBS_init` initialises the structure, which points into `der`; `der` outlives it.
    let (parsed, left) = unsafe {
        sys::CBS_init(bytes.as_mut_ptr(), der.as_ptr(), der.len());
        let parsed = parse(bytes.as_mut_ptr());
        (parsed, sys::CBS_len(bytes.as_ptr()))
    };
    parsed.filter(|_| left == 0)
}

impl PKey {
    /// SubjectPublicKeyInfo (RFC 5280 §4.1) without trailing data.
    pub(super) fn from_spki(der: &[u8]) -> Option<Self> {
        // SAFETY: `bytes` is initialised; the function makes an owned key or null.
        whole(der, |bytes| unsafe { Owned::new(sys::EVP_parse_public_key(bytes), sys::EVP_PKEY_free) }).map(Self)
    }

    /// PKCS #8, version 1 or 2 (RFC 5958).
    pub(super) fn from_pkcs8(der: &[u8]) -> Option<Self> {
        // SAFETY: `bytes` is initialised; the function makes an owned key or null.
        whole(der, |bytes| unsafe { Owned::new(sys::EVP_parse_private_key(bytes), sys::EVP_PKEY_free) }).map(Self)
    }

    /// `RSAPrivateKey` of PKCS #1 (RFC 8017 §A.1.2).
    pub(super) fn from_rsa(der: &[u8]) -> Option<Self> {
        // SAFETY: `bytes` is initialised; the function makes an owned key or null.
        let rsa = whole(der, |bytes| unsafe { Owned::new(sys::RSA_parse_private_key(bytes), sys::RSA_free) })?;
        let key = Self::empty()?;
        // SAFETY: both are valid; the new key takes its own reference.
        (unsafe { sys::EVP_PKEY_set1_RSA(key.0.as_ptr(), rsa.as_ptr()) } == 1).then_some(key)
    }

    /// `ECPrivateKey` of SEC 1 with its curve named (RFC 5915).
    pub(super) fn from_sec1(der: &[u8]) -> Option<Self> {
        let ec = whole(der, |bytes| {
            // SAFETY: `bytes` is initialised; null leaves the curve to the structure; the function
            // makes an owned key or null.
            unsafe { Owned::new(sys::EC_KEY_parse_private_key(bytes, null()), sys::EC_KEY_free) }
        })?;
        let key = Self::empty()?;
        // SAFETY: both are valid; the new key takes its own reference.
        (unsafe { sys::EVP_PKEY_set1_EC_KEY(key.0.as_ptr(), ec.as_ptr()) } == 1).then_some(key)
    }

    fn empty() -> Option<Self> {
        // SAFETY: makes an owned key or null.
        unsafe { Owned::new(sys::EVP_PKEY_new(), sys::EVP_PKEY_free) }.map(Self)
    }

    /// Kind of the key. `None` for unsupported kinds, including curves with explicit parameters.
    pub(super) fn kind(&self) -> Option<PublicKeyKind> {
        // SAFETY: a valid key.
        match unsafe { sys::EVP_PKEY_id(self.0.as_ptr()) } {
            sys::EVP_PKEY_RSA => {
                // SAFETY: a valid key.
                let bits = unsafe { sys::EVP_PKEY_bits(self.0.as_ptr()) };
                Some(PublicKeyKind::Rsa { bits: usize::try_from(bits).ok()? })
            }
            sys::EVP_PKEY_EC => self.curve().map(PublicKeyKind::Ecdsa),
            sys::EVP_PKEY_ED25519 => Some(PublicKeyKind::Ed25519),
            _ => None,
        }
    }

    fn curve(&self) -> Option<Curve> {
        // SAFETY: a valid key; the pointers borrow from it and are used at once. Every EC key that
        // a parser returned has a group.
        let (explicit, curve) = unsafe {
            let ec = sys::EVP_PKEY_get0_EC_KEY(self.0.as_ptr());
            if ec.is_null() {
                return None;
            }
            let curve = sys::EC_GROUP_get_curve_name(sys::EC_KEY_get0_group(ec));
            (sys::EC_KEY_decoded_from_explicit_params(ec) != 0, curve)
        };
        match curve {
            _ if explicit => None,
            sys::NID_X9_62_prime256v1 => Some(Curve::P256),
            sys::NID_secp384r1 => Some(Curve::P384),
            sys::NID_secp521r1 => Some(Curve::P521),
            _ => None,
        }
    }

    /// SubjectPublicKeyInfo of the key or of the pair's public half.
    pub(super) fn spki(&self) -> Option<Vec<u8>> {
        // SAFETY: a valid builder and a valid key.
        self.marshal(|builder, key| unsafe { sys::EVP_marshal_public_key(builder, key) })
            .map(|mut der| std::mem::take(&mut *der))
    }

    /// PKCS #8, version 1 (RFC 5958). `None` without a private half.
    pub(super) fn pkcs8(&self) -> Option<Zeroizing<Vec<u8>>> {
        // SAFETY: a valid builder and a valid key.
        self.marshal(|builder, key| unsafe { sys::EVP_marshal_private_key(builder, key) })
    }

    fn marshal(&self, write: impl FnOnce(*mut sys::CBB, *const sys::EVP_PKEY) -> i32) -> Option<Zeroizing<Vec<u8>>> {
        let mut builder = MaybeUninit::<sys::CBB>::uninit();
        let (mut bytes, mut len) = (null_mut(), 0);
        // SAFETY: `CBB_init` initialises the builder whatever it returns (`CBB_zero`), so cleanup
        // is allowed on every path; after `CBB_finish` the bytes are ours, readable for `len`, and
        // freed once, which overwrites them.
        unsafe {
            sys::CBB_zero(builder.as_mut_ptr());
            let done = sys::CBB_init(builder.as_mut_ptr(), 512) == 1
                && write(builder.as_mut_ptr(), self.0.as_ptr()) == 1
                && sys::CBB_finish(builder.as_mut_ptr(), &mut bytes, &mut len) == 1;
            if !done {
                sys::CBB_cleanup(builder.as_mut_ptr());
                return None;
            }
            let der = Zeroizing::new(std::slice::from_raw_parts(bytes, len).to_vec());
            sys::OPENSSL_free(bytes.cast());
            Some(der)
        }
    }

    /// True when the two have the same public half.
    pub(super) fn same_public(&self, other: &Self) -> bool {
        // SAFETY: two valid keys, compared without change.
        unsafe { sys::EVP_PKEY_cmp(self.0.as_ptr(), other.0.as_ptr()) == 1 }
    }

    /// Signs a hash. `None` when the key cannot, for instance because it is too short.
    pub(super) fn sign_digest(&self, encoding: Encoding, digest: &[u8]) -> Option<Vec<u8>> {
        let context = self.context(encoding, |context| {
            // SAFETY: a valid context.
            unsafe { sys::EVP_PKEY_sign_init(context) }
        })?;
        // SAFETY: a valid key.
        let mut len = unsafe { sys::EVP_PKEY_size(self.0.as_ptr()) }.try_into().ok()?;
        let mut signature = vec![0; len];
        // SAFETY: a context made ready to sign; the output is writable for `len`, which is updated
        // to what was written; `digest` is readable.
        let done = unsafe {
            sys::EVP_PKEY_sign(context.as_ptr(), signature.as_mut_ptr(), &mut len, digest.as_ptr(), digest.len())
        };
        signature.truncate(len);
        (done == 1).then_some(signature)
    }

    /// True when `signature` is one of this hash.
    pub(super) fn verify_digest(&self, encoding: Encoding, digest: &[u8], signature: &[u8]) -> bool {
        let context = self.context(encoding, |context| {
            // SAFETY: a valid context.
            unsafe { sys::EVP_PKEY_verify_init(context) }
        });
        let Some(context) = context else { return false };
        // SAFETY: a context made ready to verify; both slices are readable. Only 1 means valid.
        unsafe {
            sys::EVP_PKEY_verify(context.as_ptr(), signature.as_ptr(), signature.len(), digest.as_ptr(), digest.len())
                == 1
        }
    }

    fn context(
        &self,
        encoding: Encoding,
        init: impl FnOnce(*mut sys::EVP_PKEY_CTX) -> i32,
    ) -> Option<Owned<sys::EVP_PKEY_CTX>> {
        // SAFETY: the context takes its own reference to the valid key; no ENGINE is given.
        let context =
            unsafe { Owned::new(sys::EVP_PKEY_CTX_new(self.0.as_ptr(), null_mut()), sys::EVP_PKEY_CTX_free) }?;
        if init(context.as_ptr()) != 1 {
            return None;
        }
        let raw = context.as_ptr();
        // SAFETY: a valid context made ready; hashes are constant tables. Each function fails when
        // the key is of another kind.
        let done = unsafe {
            match encoding {
                Encoding::Pkcs1(hash) => {
                    sys::EVP_PKEY_CTX_set_rsa_padding(raw, sys::RSA_PKCS1_PADDING) == 1
                        && sys::EVP_PKEY_CTX_set_signature_md(raw, md(hash)) == 1
                }
                Encoding::Pkcs1Bare => sys::EVP_PKEY_CTX_set_rsa_padding(raw, sys::RSA_PKCS1_PADDING) == 1,
                Encoding::Pss(hash) => {
                    sys::EVP_PKEY_CTX_set_rsa_padding(raw, sys::RSA_PKCS1_PSS_PADDING) == 1
                        && sys::EVP_PKEY_CTX_set_signature_md(raw, md(hash)) == 1
                        && sys::EVP_PKEY_CTX_set_rsa_mgf1_md(raw, md(hash)) == 1
                        && sys::EVP_PKEY_CTX_set_rsa_pss_saltlen(raw, sys::RSA_PSS_SALTLEN_DIGEST) == 1
                }
                Encoding::Ecdsa => sys::EVP_PKEY_id(self.0.as_ptr()) == sys::EVP_PKEY_EC,
            }
        };
        done.then_some(context)
    }

    /// Signs a whole message with a key that hashes for itself: Ed25519 (RFC 8032).
    pub(super) fn sign_message(&self, message: &[u8]) -> Option<Vec<u8>> {
        // SAFETY: makes an owned context or null.
        let context = unsafe { Owned::new(sys::EVP_MD_CTX_new(), sys::EVP_MD_CTX_free) }?;
        let mut signature = vec![0; 64];
        let mut len = signature.len();
        // SAFETY: a valid context and key; no hash, no ENGINE; the output is writable for `len`,
        // which is updated to what was written.
        let done = unsafe {
            sys::EVP_DigestSignInit(context.as_ptr(), null_mut(), null(), null_mut(), self.0.as_ptr()) == 1
                && sys::EVP_DigestSign(
                    context.as_ptr(),
                    signature.as_mut_ptr(),
                    &mut len,
                    message.as_ptr(),
                    message.len(),
                ) == 1
        };
        signature.truncate(len);
        done.then_some(signature)
    }

    /// True when `signature` is one of this message.
    pub(super) fn verify_message(&self, message: &[u8], signature: &[u8]) -> bool {
        // SAFETY: makes an owned context or null.
        let context = unsafe { Owned::new(sys::EVP_MD_CTX_new(), sys::EVP_MD_CTX_free) };
        let Some(context) = context else { return false };
        // SAFETY: a valid context and key; no hash, no ENGINE; both slices are readable. Only 1
        // means valid.
        unsafe {
            sys::EVP_DigestVerifyInit(context.as_ptr(), null_mut(), null(), null_mut(), self.0.as_ptr()) == 1
                && sys::EVP_DigestVerify(
                    context.as_ptr(),
                    signature.as_ptr(),
                    signature.len(),
                    message.as_ptr(),
                    message.len(),
                ) == 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_used_by_several_threads() {
        let der = aws_lc_rs::signature::EcdsaKeyPair::generate_pkcs8(
            &aws_lc_rs::signature::ECDSA_P256_SHA256_ASN1_SIGNING,
            &aws_lc_rs::rand::SystemRandom::new(),
        );
        let key = PKey::from_pkcs8(der.expect("a key").as_ref()).expect("a key");
        let public = PKey::from_spki(&key.spki().expect("its public half")).expect("a key");
        assert!(key.same_public(&public));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (key, public) = (&key, &public);
                scope.spawn(move || {
                    for _ in 0..20 {
                        let signature = key.sign_digest(Encoding::Ecdsa, &[thread; 32]).expect("a signature");
                        assert!(public.verify_digest(Encoding::Ecdsa, &[thread; 32], &signature));
                    }
                });
            }
        });
        assert!(public.sign_digest(Encoding::Ecdsa, &[0; 32]).is_none(), "a public key signs nothing");
        assert!(key.sign_digest(Encoding::Pkcs1(Hash::Sha256), &[0; 32]).is_none() && key.sign_message(b"").is_none());
    }

    #[test]
    fn parsers_take_all_or_nothing() {
        for der in [&[][..], &[0x30], &[0x30, 0], &[0x30, 0x80, 0, 0], &[0xff; 64]] {
            let parsers = [PKey::from_spki, PKey::from_pkcs8, PKey::from_rsa, PKey::from_sec1];
            assert!(parsers.iter().all(|parse| parse(der).is_none()));
        }
        assert!(PKey::empty().is_some_and(|key| key.kind().is_none() && key.spki().is_none()));
        assert!(rfc3526_prime(1024).is_none());
    }
}
