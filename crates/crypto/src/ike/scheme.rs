//! Signature schemes, and their names on the wire (RFC 7427 §3, appendix A).

use super::{Hash, HashId};

/// An elliptic curve for ECDSA.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)]
pub enum Curve {
    P256,
    P384,
    P521,
}

impl Curve {
    /// Bytes of one coordinate, and of r and s.
    pub fn coordinate_len(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
            Self::P521 => 66,
        }
    }

    /// The hash that goes with the curve in the authentication methods 9 to 11 (RFC 4754 §3).
    pub fn hash(self) -> Hash {
        match self {
            Self::P256 => Hash::Sha256,
            Self::P384 => Hash::Sha384,
            Self::P521 => Hash::Sha512,
        }
    }
}

/// Signature scheme.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum SignatureScheme {
    /// RSASSA-PKCS1-v1_5 (RFC 8017 §8.2); with SHA-1 also authentication method 1.
    RsaPkcs1(Hash),
    /// RSASSA-PSS (RFC 8017 §8.1), MGF1 with the same hash, salt as long as the hash.
    RsaPss(Hash),
    /// ECDSA on the curve of the key; the signature is a DER sequence of r and s.
    Ecdsa(Hash),
    /// ECDSA of the authentication methods 9 to 11 (RFC 4754): the hash belongs to the curve, the
    /// signature is r and s at full length.
    EcdsaClassic(Curve),
    /// Ed25519 (RFC 8420).
    Ed25519,
    /// PKCS #1 block type 1 around the data itself, without DigestInfo: IKEv1 signs its hash like
    /// this (RFC 2409 §5.1). Never for IKEv2 or certificates.
    RawRsaPkcs1,
    /// ECDSA of the data itself, which are a hash, with the signature of
    /// [`SignatureScheme::EcdsaClassic`]: IKEv1 signs its hash like this (RFC 4754 §3). Never for
    /// IKEv2 or certificates.
    RawEcdsa(Curve),
}

const fn rsa(last: u8) -> [u8; 15] {
    [0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, last, 0x05, 0x00]
}

const fn ecdsa_sha2(last: u8) -> [u8; 12] {
    [0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, last]
}

/// id-RSASSA-PSS with a SHA-2 function, MGF1 with the same, and a salt length; the trailer field
/// has its default and so, in DER, does not appear.
#[rustfmt::skip]
const fn pss(hash: u8, salt: u8) -> [u8; 67] {
    [
        0x30, 0x41, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a, 0x30, 0x34,
        0xa0, 0x0f, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, hash, 0x05, 0x00,
        0xa1, 0x1c, 0x30, 0x1a, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x08,
        0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, hash, 0x05, 0x00,
        0xa2, 0x03, 0x02, 0x01, salt,
    ]
}

/// Every scheme that has an AlgorithmIdentifier.
static TABLE: [(SignatureScheme, &[u8]); 13] = [
    (SignatureScheme::RsaPkcs1(Hash::Sha1), &rsa(5)),
    (SignatureScheme::RsaPkcs1(Hash::Sha256), &rsa(11)),
    (SignatureScheme::RsaPkcs1(Hash::Sha384), &rsa(12)),
    (SignatureScheme::RsaPkcs1(Hash::Sha512), &rsa(13)),
    (
        SignatureScheme::RsaPss(Hash::Sha1),
        &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a, 0x30, 0x00],
    ),
    (SignatureScheme::RsaPss(Hash::Sha256), &pss(1, 32)),
    (SignatureScheme::RsaPss(Hash::Sha384), &pss(2, 48)),
    (SignatureScheme::RsaPss(Hash::Sha512), &pss(3, 64)),
    (SignatureScheme::Ecdsa(Hash::Sha1), &[0x30, 0x09, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01]),
    (SignatureScheme::Ecdsa(Hash::Sha256), &ecdsa_sha2(2)),
    (SignatureScheme::Ecdsa(Hash::Sha384), &ecdsa_sha2(3)),
    (SignatureScheme::Ecdsa(Hash::Sha512), &ecdsa_sha2(4)),
    (SignatureScheme::Ed25519, &[0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70]),
];

impl SignatureScheme {
    /// Every scheme that has an AlgorithmIdentifier.
    pub fn identified() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|(scheme, _)| *scheme)
    }

    /// The AlgorithmIdentifier in DER (RFC 7427 appendix A). Empty for the schemes that no
    /// digital signature of RFC 7427 and no certificate uses, and for hashes without one.
    pub fn algorithm_identifier(&self) -> &'static [u8] {
        TABLE.iter().find(|(scheme, _)| scheme == self).map_or(&[], |(_, der)| der)
    }

    /// The scheme of an AlgorithmIdentifier. `None` for anything that is not exactly one: besides
    /// DER, what RFC 4055 §2.1 allows is taken (NULL or absent parameters of a hash, the trailer
    /// field spelled out); PSS with a salt of another length is not.
    pub fn from_algorithm_identifier(der: &[u8]) -> Option<Self> {
        if let Some((scheme, _)) = TABLE.iter().find(|(_, known)| *known == der) {
            return Some(*scheme);
        }
        TABLE.iter().find(|(scheme, _)| scheme.other_forms().iter().any(|form| form == der)).map(|(scheme, _)| *scheme)
    }

    /// Encodings of the same besides the one we send.
    fn other_forms(self) -> Vec<Vec<u8>> {
        match self {
            Self::RsaPkcs1(_) => {
                // Without NULL.
                let oid = &self.algorithm_identifier()[2..13];
                vec![tlv(0x30, &[oid])]
            }
            Self::RsaPss(hash) if hash != Hash::Sha1 => pss_forms(hash),
            _ => Vec::new(),
        }
    }

    /// The number by which a peer lists that it takes the scheme's hash (RFC 7427 §4).
    pub fn hash_id(&self) -> Option<HashId> {
        match self {
            Self::RsaPkcs1(hash) | Self::RsaPss(hash) | Self::Ecdsa(hash) => hash.id(),
            Self::EcdsaClassic(curve) => curve.hash().id(),
            Self::Ed25519 => Some(HashId::IDENTITY),
            Self::RawRsaPkcs1 | Self::RawEcdsa(_) => None,
        }
    }
}

/// A DER element of at most 127 bytes.
fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    debug_assert!(body.len() < 0x80);
    [&[tag, body.len() as u8], &body[..]].concat()
}

/// RSASSA-PSS-params with NULL or absent parameters for either hash, with and without trailer
/// field.
fn pss_forms(hash: Hash) -> Vec<Vec<u8>> {
    let known = SignatureScheme::RsaPss(hash).algorithm_identifier();
    let (pss_oid, hash_oid, mgf_oid) = (&known[2..13], &known[19..30], &known[36..47]);
    let (null, salt) = ([0x05, 0x00], &known[known.len() - 5..]);
    let mut forms = Vec::new();
    for (hash_null, mgf_null, trailer) in (0..8).map(|bits| (bits & 1, bits >> 1 & 1, bits >> 2)) {
        let hash_id = tlv(0x30, &[hash_oid, &null[..2 * hash_null]]);
        let mgf_hash = tlv(0x30, &[hash_oid, &null[..2 * mgf_null]]);
        let mgf = tlv(0x30, &[mgf_oid, &mgf_hash]);
        let trailer = &[0xa3, 0x03, 0x02, 0x01, 0x01][..5 * trailer];
        let params = tlv(0x30, &[&tlv(0xa0, &[&hash_id]), &tlv(0xa1, &[&mgf]), salt, trailer]);
        forms.push(tlv(0x30, &[pss_oid, &params]));
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::super::tests::unhex;
    use super::*;

    #[test]
    fn identifiers_lead_back_and_are_exact() {
        for scheme in SignatureScheme::identified() {
            let der = scheme.algorithm_identifier();
            assert_eq!(SignatureScheme::from_algorithm_identifier(der), Some(scheme));
            for form in scheme.other_forms() {
                assert_eq!(SignatureScheme::from_algorithm_identifier(&form), Some(scheme));
            }
            assert!(SignatureScheme::from_algorithm_identifier(&[der, &[0]].concat()).is_none());
            for at in 0..der.len() {
                assert!(SignatureScheme::from_algorithm_identifier(&der[..at]).is_none());
                let mut changed = der.to_vec();
                changed[at] ^= 0x40;
                assert!(SignatureScheme::from_algorithm_identifier(&changed).is_none(), "{scheme:?} {at}");
            }
        }
        for scheme in [
            SignatureScheme::RawRsaPkcs1,
            SignatureScheme::RawEcdsa(Curve::P256),
            SignatureScheme::EcdsaClassic(Curve::P256),
            SignatureScheme::RsaPkcs1(Hash::Md5),
            SignatureScheme::RsaPss(Hash::Md5),
            SignatureScheme::Ecdsa(Hash::Md5),
        ] {
            assert!(scheme.algorithm_identifier().is_empty());
        }
        assert_eq!(SignatureScheme::from_algorithm_identifier(&[]), None);
    }

    /// Appendix A of RFC 7427, and what else means the same.
    #[test]
    fn identifiers_of_the_rfcs() {
        let of = |hex: &str| SignatureScheme::from_algorithm_identifier(&unhex(hex));
        assert_eq!(of("300d06092a864886f70d01010b0500"), Some(SignatureScheme::RsaPkcs1(Hash::Sha256)));
        assert_eq!(of("300b06092a864886f70d01010b"), Some(SignatureScheme::RsaPkcs1(Hash::Sha256)));
        assert_eq!(of("300d06092a864886f70d0101050500"), Some(SignatureScheme::RsaPkcs1(Hash::Sha1)));
        assert_eq!(of("300a06082a8648ce3d040303"), Some(SignatureScheme::Ecdsa(Hash::Sha384)));
        assert_eq!(of("300906072a8648ce3d0401"), Some(SignatureScheme::Ecdsa(Hash::Sha1)));
        assert_eq!(of("300506032b6570"), Some(SignatureScheme::Ed25519));
        // PSS with the trailer field, then with neither NULL nor trailer field.
        let with_trailer = "304606092a864886f70d01010a3039a00f300d06096086480165030402010500\
            a11c301a06092a864886f70d010108300d06096086480165030402010500a203020120a303020101";
        let short = "303d06092a864886f70d01010a3030a00d300b0609608648016503040201\
            a11a301806092a864886f70d010108300b0609608648016503040201a203020120";
        assert_eq!(of(with_trailer), Some(SignatureScheme::RsaPss(Hash::Sha256)));
        assert_eq!(of(short), Some(SignatureScheme::RsaPss(Hash::Sha256)));
        // A salt of 20 bytes; another hash in MGF1; no parameters; MD5 with RSA; ECDSA with NULL;
        // Ed448.
        assert_eq!(of(&with_trailer.replace("a203020120", "a203020114")), None);
        assert_eq!(of(&with_trailer.replacen("0402010500a2", "0402020500a2", 1)), None);
        assert_eq!(of("300b06092a864886f70d01010a"), None);
        assert_eq!(of("300d06092a864886f70d0101040500"), None);
        assert_eq!(of("300c06082a8648ce3d0403020500"), None);
        assert_eq!(of("300506032b6571"), None);
    }

    #[test]
    fn hashes_of_schemes() {
        assert_eq!(SignatureScheme::Ed25519.hash_id(), Some(HashId::IDENTITY));
        assert_eq!(SignatureScheme::RsaPss(Hash::Sha512).hash_id(), Some(HashId::SHA2_512));
        assert_eq!(SignatureScheme::EcdsaClassic(Curve::P384).hash_id(), Some(HashId::SHA2_384));
        assert_eq!(SignatureScheme::RawRsaPkcs1.hash_id(), None);
        assert_eq!(SignatureScheme::RawEcdsa(Curve::P384).hash_id(), None);
    }
}
