//! PKCS #12 files (RFC 7292), read by AWS-LC: it takes the ciphers of old writers (RC2, Triple DES)
//! and BER, which Windows and Java still write.

use std::ffi::c_char;
use std::ptr::null_mut;

use aws_lc_sys as sys;
use zeroize::Zeroizing;

use super::{Owned, PKey};

/// Contents of a PKCS #12 file.
pub struct Pkcs12 {
    /// PKCS #8; a file has one key or none.
    pub key: Option<Zeroizing<Vec<u8>>>,
    /// DER, in the order of the file.
    pub certificates: Vec<Vec<u8>>,
}

/// Reads a file: its MAC is checked with the password first, so that nothing of a changed file is
/// used.
///
/// `None` when the password is wrong or contains a NUL, or when the file is malformed, has several
/// keys, or uses an unknown algorithm.
pub(in crate::ike) fn open(file: &[u8], password: &[u8]) -> Option<Pkcs12> {
    if password.contains(&0) {
        return None;
    }
    let password = Zeroizing::new([password, &[0]].concat());
    // SAFETY: makes an owned empty stack or null; the stack is freed without its elements, which
    // are taken out below.
    let stack = unsafe { Owned::new(sys::OPENSSL_sk_new_null(), sys::OPENSSL_sk_free) }?;
    let mut key = null_mut();
    // SAFETY: `bytes` is initialised by `whole`, the password ends with NUL, the stack holds X509
    // objects only. The function makes an owned key or null in `key`, and appends owned X509.
    let read = super::whole(file, |bytes| unsafe {
        let password = password.as_ptr().cast::<c_char>();
        Some(sys::PKCS12_get_key_and_certs(&mut key, stack.as_ptr().cast(), bytes, password) == 1)
    });
    // SAFETY: an owned key or null.
    let key = unsafe { Owned::new(key, sys::EVP_PKEY_free) }.map(PKey);
    let mut certificates = Vec::new();
    loop {
        // SAFETY: a valid stack of X509; its last element becomes ours, or null when it is empty.
        let last = unsafe { Owned::new(sys::OPENSSL_sk_pop(stack.as_ptr()).cast::<sys::X509>(), sys::X509_free) };
        let Some(last) = last else { break };
        certificates.push(der(&last)?);
    }
    certificates.reverse();
    let key = match key {
        Some(key) => Some(key.pkcs8()?),
        None => None,
    };
    read.filter(|read| *read).map(|_| Pkcs12 { key, certificates })
}

fn der(certificate: &Owned<sys::X509>) -> Option<Vec<u8>> {
    let mut bytes = null_mut();
    // SAFETY: a valid certificate; with a null target the function allocates what it returns the
    // length of, which is ours and freed once.
    unsafe {
        let len = usize::try_from(sys::i2d_X509(certificate.as_ptr(), &mut bytes)).ok().filter(|len| *len > 0)?;
        let der = std::slice::from_raw_parts(bytes, len).to_vec();
        sys::OPENSSL_free(bytes.cast());
        Some(der)
    }
}
