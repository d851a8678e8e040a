//! Execution of one operation on one packet.
//!
//! A [`CryptoOp`] may be invalid for its packet: each span is checked here once, and an invalid
//! span makes the operation fail. Otherwise it could read or write outside the packet buffer.

use std::ops::Range;

use super::aws_lc::{Aead, AesDec, AesEnc, DesCbc, equal};
use super::ccm::AesCcm;
use super::ipsec_mb;
use super::mac::{MAX_OUT, Mac};
use super::vaes;
use crate::{Aad, CipherKind, CryptoOp, EncAlg, KeyMaterial, Span, Suite};

/// The expanded key of a suite.
#[allow(clippy::large_enum_variant)] // One indirection per packet costs more than the bytes.
pub(crate) enum State {
    /// Key of [`crate::Engine::Null`], without key material.
    Nothing,
    /// AES-GCM, AES-GMAC or ChaCha20-Poly1305.
    Aead { aead: Aead, salt: [u8; 4], gmac: bool },
    /// AES-CCM.
    Ccm { ccm: AesCcm, salt: [u8; 3] },
    /// Encrypt, then MAC; or a MAC alone.
    Separate { cipher: Cipher, mac: Mac },
    /// A key of [`crate::Engine::IpsecMb`], which alone can use it.
    #[cfg_attr(not(ipsec_mb), expect(dead_code, reason = "there is no such key without the library"))]
    IpsecMb(ipsec_mb::Expanded),
    /// A key of [`crate::Engine::Vaes`], which alone can use it.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the engine is for x86-64"))]
    Vaes(vaes::GcmKey),
}

/// A cipher that does not authenticate.
#[allow(clippy::large_enum_variant)] // As above.
pub(crate) enum Cipher {
    Null,
    AesCbc { enc: AesEnc, dec: AesDec },
    AesCtr { enc: AesEnc, nonce: [u8; 4] },
    TripleDes(DesCbc<3>),
    Des(DesCbc<1>),
}

impl State {
    /// Returns `None` if the suite is invalid: no ICV, or two of them. The caller must have checked
    /// the lengths.
    pub(crate) fn new(suite: &Suite, material: KeyMaterial<'_>) -> Option<Self> {
        let Some(enc) = suite.enc else {
            let mac = Mac::new(suite.integ?, material.integ)?;
            return Some(Self::Separate { cipher: Cipher::Null, mac });
        };
        let (key, salt) = material.enc.split_at_checked(enc.key_len)?;
        if let Some(integ) = suite.integ {
            let cipher = Cipher::new(enc, key, salt)?;
            return Some(Self::Separate { cipher, mac: Mac::new(integ, material.integ)? });
        }
        match enc.kind {
            CipherKind::AesCcm => Some(Self::Ccm { ccm: AesCcm::new(key)?, salt: salt.try_into().ok()? }),
            kind => Some(Self::Aead {
                aead: Aead::new(kind, key, enc.icv_len)?,
                salt: salt.try_into().ok()?,
                gmac: kind == CipherKind::AesGmac,
            }),
        }
    }

    /// [`crate::Key::is_multi_buffer`].
    #[inline]
    pub(crate) fn is_multi_buffer(&self) -> bool {
        if let Self::IpsecMb(key) = self { ipsec_mb::is_multi_buffer(key) } else { false }
    }

    /// The key of [`crate::Engine::Vaes`], if it is one.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the engine is for x86-64"))]
    #[inline]
    pub(super) fn vaes(&self) -> Option<&vaes::GcmKey> {
        if let Self::Vaes(key) = self { Some(key) } else { None }
    }

    /// Encrypts and writes the ICV. Returns false if the operation does not fit the packet or the
    /// key; the packet must not be sent then.
    #[inline]
    pub(crate) fn seal(&self, op: &CryptoOp, packet: &mut [u8], icv_len: usize) -> bool {
        match self {
            Self::Nothing | Self::IpsecMb(_) | Self::Vaes(_) => false,
            Self::Aead { aead, salt, gmac } => {
                let nonce = nonce::<4, 12>(salt, &op.iv);
                with_parts(op, packet, icv_len, *gmac, |aad, body, icv| aead.seal(&nonce, aad, body, icv))
            }
            Self::Ccm { ccm, salt } => {
                let nonce = nonce::<3, 11>(salt, &op.iv);
                with_parts(op, packet, icv_len, false, |aad, body, icv| ccm.seal(&nonce, aad, body, icv))
            }
            Self::Separate { cipher, mac } => seal_separate(cipher, mac, op, packet, icv_len),
        }
    }

    /// Verifies the ICV and decrypts. Returns false if the ICV is invalid or the operation does not
    /// fit.
    #[inline]
    pub(crate) fn open(&self, op: &CryptoOp, packet: &mut [u8], icv_len: usize) -> bool {
        match self {
            Self::Nothing | Self::IpsecMb(_) | Self::Vaes(_) => false,
            Self::Aead { aead, salt, gmac } => {
                let nonce = nonce::<4, 12>(salt, &op.iv);
                with_parts(op, packet, icv_len, *gmac, |aad, body, icv| aead.open(&nonce, aad, body, icv))
            }
            Self::Ccm { ccm, salt } => {
                let nonce = nonce::<3, 11>(salt, &op.iv);
                with_parts(op, packet, icv_len, false, |aad, body, icv| ccm.open(&nonce, aad, body, icv))
            }
            Self::Separate { cipher, mac } => open_separate(cipher, mac, op, packet, icv_len),
        }
    }
}

impl Cipher {
    /// Returns `None` for an invalid length or an AEAD.
    pub(crate) fn new(enc: &EncAlg, key: &[u8], salt: &[u8]) -> Option<Self> {
        match enc.kind {
            CipherKind::Null => Some(Self::Null),
            CipherKind::AesCbc => Some(Self::AesCbc { enc: AesEnc::new(key)?, dec: AesDec::new(key)? }),
            CipherKind::AesCtr => Some(Self::AesCtr { enc: AesEnc::new(key)?, nonce: salt.try_into().ok()? }),
            CipherKind::TripleDesCbc => Some(Self::TripleDes(DesCbc::new(key)?)),
            CipherKind::DesCbc => Some(Self::Des(DesCbc::new(key)?)),
            _ => None,
        }
    }

    /// Encrypts or decrypts in place. False when `body` is not whole blocks.
    pub(crate) fn apply(&self, iv: &[u8; 16], body: &mut [u8], encrypt: bool) -> bool {
        let half = u64::to_be_bytes((u128::from_be_bytes(*iv) >> 64) as u64);
        match self {
            Self::Null => true,
            Self::AesCbc { enc, .. } if encrypt => enc.cbc_encrypt(*iv, body),
            Self::AesCbc { dec, .. } => dec.cbc_decrypt(*iv, body),
            Self::AesCtr { enc, nonce } => {
                enc.ctr(first_counter(*nonce, *iv), body);
                true
            }
            Self::TripleDes(des) => des.cbc(half, body, encrypt),
            Self::Des(des) => des.cbc(half, body, encrypt),
        }
    }
}

/// First counter block of AES-CTR (RFC 3686 §4).
#[inline]
pub(super) fn first_counter(nonce: [u8; 4], iv: [u8; 16]) -> [u8; 16] {
    let mut counter = [0; 16];
    counter[..4].copy_from_slice(&nonce);
    counter[4..12].copy_from_slice(&iv[..8]);
    counter[15] = 1;
    counter
}

/// Salt, then the first 8 bytes of the IV.
#[inline]
pub(crate) fn nonce<const SALT: usize, const LEN: usize>(salt: &[u8; SALT], iv: &[u8; 16]) -> [u8; LEN] {
    let mut nonce = [0; LEN];
    nonce[..SALT].copy_from_slice(salt);
    nonce[SALT..].copy_from_slice(&iv[..LEN - SALT]);
    nonce
}

/// Returns the span as a range if it is within the packet buffer.
fn fit(span: Span, packet_len: usize) -> Option<Range<usize>> {
    let range = span.range();
    (range.start <= range.end && range.end <= packet_len).then_some(range)
}

/// Spans of an AEAD's three parts: associated data, body, ICV, in this order and disjoint. `None`
/// if they are not. The span of associated data outside of the packet is empty.
#[inline]
pub(crate) fn aead_spans(op: &CryptoOp, packet_len: usize, icv_len: usize, gmac: bool) -> Option<[Range<usize>; 3]> {
    let (icv, mut body) = (fit(op.icv, packet_len)?, fit(op.body, packet_len)?);
    if body.is_empty() {
        body = icv.start..icv.start;
    } else if gmac {
        return None;
    }
    if icv.len() != icv_len || body.end > icv.start {
        return None;
    }
    let aad = match op.aad {
        Aad::InPlace(span) | Aad::InlineThen(_, span) => fit(span, body.start)?,
        Aad::Inline(_) => 0..0,
        Aad::InPlaceThen(..) => return None,
    };
    Some([aad, body, icv])
}

/// Passes the three parts to an AEAD. False if their layout is not that of [`aead_spans`].
#[inline]
pub(super) fn with_parts(
    op: &CryptoOp,
    packet: &mut [u8],
    icv_len: usize,
    gmac: bool,
    run: impl FnOnce(&[u8], &mut [u8], &mut [u8]) -> bool,
) -> bool {
    let Some([aad, body, icv]) = aead_spans(op, packet.len(), icv_len, gmac) else { return false };
    let (front, icv) = packet[..icv.end].split_at_mut(icv.start);
    let (head, body) = front[..body.end].split_at_mut(body.start);
    match op.aad {
        Aad::InPlace(_) => run(&head[aad], body, icv),
        Aad::Inline(bytes) => run(&bytes, body, icv),
        Aad::InlineThen(bytes, _) => with_joined(&bytes, &head[aad], |aad| run(aad, body, icv)),
        Aad::InPlaceThen(..) => false,
    }
}

/// Joins non-contiguous associated data. Only GMAC with extended sequence numbers comes here: the
/// AEAD interface takes the associated data in one piece, so it is copied, on the stack.
#[cold]
fn with_joined(bytes: &[u8; 12], span: &[u8], run: impl FnOnce(&[u8]) -> bool) -> bool {
    fn join<'j>(joined: &'j mut [u8], bytes: &[u8; 12], span: &[u8]) -> Option<&'j [u8]> {
        let joined = joined.get_mut(..12 + span.len())?;
        joined[..12].copy_from_slice(bytes);
        joined[12..].copy_from_slice(span);
        Some(joined)
    }
    if span.len() <= 2048 - 12 {
        join(&mut [0; 2048], bytes, span).is_some_and(run)
    } else {
        // The longest IP packet and the joined bytes.
        join(&mut [0; 65_535 + 12], bytes, span).is_some_and(run)
    }
}

/// Coverage of a separate MAC, checked against the packet.
pub(super) struct Cover {
    first: [u8; 12],
    pub(super) first_len: usize,
    pub(super) before: Range<usize>,
    pub(super) icv: Range<usize>,
    pub(super) after: Range<usize>,
    pub(super) last: [u8; 4],
    pub(super) last_len: usize,
    pub(super) body: Range<usize>,
    /// Bytes of the ICV within the span: they count as zero.
    zeros: usize,
}

impl Cover {
    /// `None` when a span does not fit, the ICV has not the suite's length, or a byte of the body
    /// would be encrypted without being authenticated.
    pub(super) fn new(op: &CryptoOp, packet_len: usize, icv_len: usize) -> Option<Self> {
        let icv = fit(op.icv, packet_len).filter(|icv| icv.len() == icv_len)?;
        let body = fit(op.body, packet_len)?;
        let (first, first_len, span, last, last_len) = match op.aad {
            Aad::InPlace(span) => ([0; 12], 0, span, [0; 4], 0),
            Aad::InPlaceThen(span, last) => ([0; 12], 0, span, last, 4),
            Aad::InlineThen(first, span) => (first, 12, span, [0; 4], 0),
            Aad::Inline(_) => return None,
        };
        let span = fit(span, packet_len)?;
        let within = |at: usize| at.clamp(span.start, span.end);
        let (before, after) = (span.start..within(icv.start), within(icv.end)..span.end);
        let body_covered = body.start >= span.start && body.end <= span.end;
        let body_apart = body.end <= icv.start || icv.end <= body.start;
        if !(body.is_empty() || body_covered && body_apart) {
            return None;
        }
        let zeros = after.start - before.end;
        Some(Self { first, first_len, before, icv, after, last, last_len, body, zeros })
    }

    fn mac(&self, mac: &Mac, packet: &[u8], out: &mut [u8; MAX_OUT]) {
        let pieces = [
            &self.first[..self.first_len],
            &packet[self.before.clone()],
            &[0; MAX_OUT][..self.zeros],
            &packet[self.after.clone()],
            &self.last[..self.last_len],
        ];
        mac.compute(pieces.into_iter().filter(|piece| !piece.is_empty()), out);
    }
}

fn seal_separate(cipher: &Cipher, mac: &Mac, op: &CryptoOp, packet: &mut [u8], icv_len: usize) -> bool {
    let Some(cover) = Cover::new(op, packet.len(), icv_len) else { return false };
    if !cipher.apply(&op.iv, &mut packet[cover.body.clone()], true) {
        return false;
    }
    let mut made = [0; MAX_OUT];
    cover.mac(mac, packet, &mut made);
    packet[cover.icv].copy_from_slice(&made[..icv_len]);
    true
}

fn open_separate(cipher: &Cipher, mac: &Mac, op: &CryptoOp, packet: &mut [u8], icv_len: usize) -> bool {
    let Some(cover) = Cover::new(op, packet.len(), icv_len) else { return false };
    let mut made = [0; MAX_OUT];
    cover.mac(mac, packet, &mut made);
    equal(&made[..icv_len], &packet[cover.icv]) && cipher.apply(&op.iv, &mut packet[cover.body], false)
}

/// Check of [`crate::Engine::Null`]: the spans of an operation must fit.
pub(crate) fn fits(op: &CryptoOp, packet_len: usize, icv_len: usize) -> bool {
    let aad = match op.aad {
        Aad::InPlace(span) | Aad::InPlaceThen(span, _) | Aad::InlineThen(_, span) => fit(span, packet_len),
        Aad::Inline(_) => Some(0..0),
    };
    let icv = fit(op.icv, packet_len).filter(|icv| icv.len() == icv_len);
    aad.is_some() && icv.is_some() && fit(op.body, packet_len).is_some()
}
