//! AES-CCM as ESP uses it (RFC 4309): 11-byte nonces, tags of 8, 12 or 16 bytes. From RustCrypto,
//! because AWS-LC offers CCM with other tag and nonce lengths only.

use aes::cipher::{BlockCipherEncrypt, BlockSizeUser};
use aes::{Aes128Enc, Aes192Enc, Aes256Enc};
use ccm::aead::array::ArraySize;
use ccm::consts::{U8, U11, U12, U16};
use ccm::{AeadInOut, Ccm, KeyInit, TagSize};

/// A key schedule; the tag's length is that of the slice that holds it. Overwritten when dropped
/// (by `aes`, feature `zeroize`).
#[allow(clippy::large_enum_variant)] // One indirection per packet costs more than the bytes.
pub(crate) enum AesCcm {
    Aes128(Aes128Enc),
    Aes192(Aes192Enc),
    Aes256(Aes256Enc),
}

impl AesCcm {
    /// `None` unless `key` is an AES key.
    pub(crate) fn new(key: &[u8]) -> Option<Self> {
        Some(match key.len() {
            16 => Self::Aes128(Aes128Enc::new_from_slice(key).ok()?),
            24 => Self::Aes192(Aes192Enc::new_from_slice(key).ok()?),
            32 => Self::Aes256(Aes256Enc::new_from_slice(key).ok()?),
            _ => return None,
        })
    }

    /// Encrypts `body` in place and writes the tag. False when there is no tag of that length.
    pub(crate) fn seal(&self, nonce: &[u8; 11], aad: &[u8], body: &mut [u8], tag: &mut [u8]) -> bool {
        match self {
            Self::Aes128(aes) => seal(aes, nonce, aad, body, tag),
            Self::Aes192(aes) => seal(aes, nonce, aad, body, tag),
            Self::Aes256(aes) => seal(aes, nonce, aad, body, tag),
        }
    }

    /// Decrypts `body` in place if the tag is right, and zeroes it otherwise.
    pub(crate) fn open(&self, nonce: &[u8; 11], aad: &[u8], body: &mut [u8], tag: &[u8]) -> bool {
        match self {
            Self::Aes128(aes) => open(aes, nonce, aad, body, tag),
            Self::Aes192(aes) => open(aes, nonce, aad, body, tag),
            Self::Aes256(aes) => open(aes, nonce, aad, body, tag),
        }
    }
}

/// Common interface of the three AES types.
trait Aes: BlockCipherEncrypt + BlockSizeUser<BlockSize = U16> {}
impl<C: BlockCipherEncrypt + BlockSizeUser<BlockSize = U16>> Aes for C {}

fn seal<C: Aes>(aes: &C, nonce: &[u8; 11], aad: &[u8], body: &mut [u8], tag: &mut [u8]) -> bool {
    match tag.len() {
        8 => seal_tag::<C, U8>(aes, nonce, aad, body, tag),
        12 => seal_tag::<C, U12>(aes, nonce, aad, body, tag),
        16 => seal_tag::<C, U16>(aes, nonce, aad, body, tag),
        _ => false,
    }
}

fn open<C: Aes>(aes: &C, nonce: &[u8; 11], aad: &[u8], body: &mut [u8], tag: &[u8]) -> bool {
    match tag.len() {
        8 => open_tag::<C, U8>(aes, nonce, aad, body, tag),
        12 => open_tag::<C, U12>(aes, nonce, aad, body, tag),
        16 => open_tag::<C, U16>(aes, nonce, aad, body, tag),
        _ => false,
    }
}

fn seal_tag<C: Aes, T>(aes: &C, nonce: &[u8; 11], aad: &[u8], body: &mut [u8], tag: &mut [u8]) -> bool
where
    T: ArraySize + TagSize,
{
    let made = Ccm::<&C, T, U11>::from(aes).encrypt_inout_detached(nonce.into(), aad, body.into());
    made.map(|made| tag.copy_from_slice(&made)).is_ok()
}

fn open_tag<C: Aes, T>(aes: &C, nonce: &[u8; 11], aad: &[u8], body: &mut [u8], tag: &[u8]) -> bool
where
    T: ArraySize + TagSize,
{
    let Ok(tag) = tag.try_into() else { return false };
    Ccm::<&C, T, U11>::from(aes).decrypt_inout_detached(nonce.into(), aad, body.into(), tag).is_ok()
}
