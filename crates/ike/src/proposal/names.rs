//! Names of transforms in reports, as strongSwan prints them.

use std::fmt::{self, Write};

use crypto::ike::{KeMethod, Prf};
use crypto::{CipherKind, EncAlg, IntegAlg, IntegKind};
use wire::ike::{CodePoints, Transform, TransformType};

use super::transforms::{NONE, sskdf, sskdf_words};
use super::{ChildProposal, ChildSuite, IkeProposal, IkeSuite, SequenceNumbers};

/// Name of a cipher without its key length: `AES_GCM_16`.
pub fn enc_name(enc: &EncAlg) -> String {
    let name = match enc.kind {
        CipherKind::Null => "NULL",
        CipherKind::AesGcm => "AES_GCM",
        CipherKind::AesCcm => "AES_CCM",
        CipherKind::AesGmac => "NULL_AES_GMAC",
        CipherKind::ChaCha20Poly1305 => "CHACHA20_POLY1305",
        CipherKind::AesCbc => "AES_CBC",
        CipherKind::AesCtr => "AES_CTR",
        CipherKind::TripleDesCbc => "3DES_CBC",
        CipherKind::DesCbc => "DES_CBC",
    };
    let icv = match enc.kind {
        CipherKind::AesGcm | CipherKind::AesCcm => format!("_{}", enc.icv_len),
        _ => String::new(),
    };
    format!("{name}{icv}{}", if enc.implicit_iv { "_IIV" } else { "" })
}

/// Key length in bits of a cipher that has several, which is when a transform carries it.
pub fn enc_key_bits(enc: &EncAlg) -> Option<u16> {
    // Ciphers with one key length must not have the Key Length attribute (RFC 7296 §3.3.5).
    let single = matches!(
        enc.kind,
        CipherKind::Null | CipherKind::ChaCha20Poly1305 | CipherKind::TripleDesCbc | CipherKind::DesCbc
    );
    (!single).then_some(enc.key_len as u16 * 8)
}

/// Name of an integrity algorithm: `HMAC_SHA2_256_128`.
pub fn integ_name(integ: &IntegAlg) -> &'static str {
    match integ.kind {
        IntegKind::HmacSha256 if integ.icv_len == 12 => "HMAC_SHA2_256_96",
        IntegKind::HmacMd5 => "HMAC_MD5_96",
        IntegKind::HmacSha1 => "HMAC_SHA1_96",
        IntegKind::HmacSha256 => "HMAC_SHA2_256_128",
        IntegKind::HmacSha384 => "HMAC_SHA2_384_192",
        IntegKind::HmacSha512 => "HMAC_SHA2_512_256",
        IntegKind::AesXcbc => "AES_XCBC_96",
        IntegKind::AesCmac => "AES_CMAC_96",
    }
}

/// Returns the name of any transform, including unknown ones of the peer.
pub(super) fn transform_name(transform: &Transform, points: &CodePoints) -> String {
    let Transform { kind, id, key_bits, unknown_attributes } = *transform;
    let known = match kind {
        TransformType::ENCR => {
            return cipher_name(id, key_bits) + if unknown_attributes { "?" } else { "" };
        }
        TransformType::PRF => Prf::from_id(id).map(|prf| prf.vici_name().to_owned()),
        TransformType::INTEG if id == NONE => Some("NONE".into()),
        TransformType::INTEG => IntegAlg::by_id(id).map(|integ| integ_name(integ).to_owned()),
        TransformType::KE => Some(ke_name(id)),
        TransformType::SN => Some(sn_name(id, points)),
        _ if kind == points.sskdf => sskdf(id).map(|kdf| format!("SSKDF_{}", sskdf_words(kdf).1)),
        _ => kind.additional_index().map(|index| format!("KE{}_{}", index + 1, ke_name(id))),
    };
    known.unwrap_or_else(|| format!("{kind}_{id}")) + if unknown_attributes { "?" } else { "" }
}

fn cipher_name(id: u16, key_bits: Option<u16>) -> String {
    let name = EncAlg::all().find(|enc| enc.id == id).map_or_else(|| format!("ENCR_{id}"), enc_name);
    key_bits.map_or(name.clone(), |bits| format!("{name}_{bits}"))
}

fn ke_name(id: u16) -> String {
    match (id, KeMethod::from_id(id)) {
        (_, Some(method)) => method.vici_name().to_owned(),
        (NONE, None) => "NONE".to_owned(),
        (_, None) => format!("KE_{id}"),
    }
}

fn sn_name(id: u16, points: &CodePoints) -> String {
    match SequenceNumbers::from_id(id, points) {
        Some(SequenceNumbers::Bits32) => "NO_EXT_SEQ".into(),
        Some(SequenceNumbers::Extended) => "EXT_SEQ".into(),
        Some(SequenceNumbers::Bits64) => "SEQ_64".into(),
        Some(SequenceNumbers::None) => "NO_SEQ".into(),
        None => format!("SN_{id}"),
    }
}

/// `IKE:AES_GCM_16_256/PRF_HMAC_SHA2_384/ECP_384`.
pub(super) fn write_transforms(
    f: &mut impl Write,
    protocol: &str,
    transforms: &[Transform],
    points: &CodePoints,
) -> fmt::Result {
    /// A proposal of the peer may have 255, but a log line should stay short.
    const SHOWN_MAX: usize = 40;
    write!(f, "{protocol}:")?;
    for (i, transform) in transforms.iter().take(SHOWN_MAX).enumerate() {
        write!(f, "{}{}", if i == 0 { "" } else { "/" }, transform_name(transform, points))?;
    }
    if transforms.len() > SHOWN_MAX { write!(f, "/… {} more", transforms.len() - SHOWN_MAX) } else { Ok(()) }
}

fn described(protocol: &str, transforms: &[Transform]) -> String {
    let mut text = String::new();
    // Writing to a text does not fail.
    let _ = write_transforms(&mut text, protocol, transforms, &CodePoints::default());
    text
}

impl IkeProposal {
    /// As strongSwan lists it: `IKE:AES_GCM_16_256/PRF_HMAC_SHA2_384/ECP_384`.
    pub fn describe(&self) -> String {
        described("IKE", &self.transforms())
    }
}

impl ChildProposal {
    /// As strongSwan lists it: `ESP:AES_GCM_16_256/EXT_SEQ`.
    pub fn describe(&self) -> String {
        described(self.protocol.name(), &self.transforms(true, &CodePoints::default()))
    }
}

impl fmt::Display for IkeSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_transforms(f, "IKE", &self.transforms(), &CodePoints::default())
    }
}

impl fmt::Display for ChildSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let points = CodePoints::default();
        write_transforms(f, self.protocol.name(), &self.transforms(&points), &points)
    }
}
