//! Constraints on keys and signatures as strongSwan writes them: `rsa-2048-sha256`,
//! `ike:ecdsa-sha384`.

use crypto::ike::{Curve, Hash, PublicKeyKind, SignatureScheme};

/// RSA keys shorter than this need a constraint that names a shorter length.
const RSA_DEFAULT_BITS: usize = 2048;

/// Allowed keys and signature schemes.
pub(super) struct Constraints(Vec<Constraint>);

struct Constraint {
    /// For the signature of IKE only.
    ike: bool,
    key: Key,
    bits: Option<usize>,
    /// Any but the broken ones when empty.
    hashes: Vec<Option<Hash>>,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Key {
    Any,
    Rsa,
    RsaPss,
    Ecdsa,
    Ed25519,
    /// A kind that no key here has.
    None,
}

impl Constraints {
    /// Reads the words of a connection; they were checked by the parser, so an unknown form must
    /// not permit anything.
    pub(super) fn parse(words: &[String]) -> Self {
        Self(words.iter().map(|word| Constraint::parse(word)).collect())
    }

    /// Returns whether the constraints permit this signature on a certificate or revocation list.
    pub(super) fn chain(&self, key: PublicKeyKind, scheme: SignatureScheme) -> bool {
        allowed(self.0.iter().filter(|constraint| !constraint.ike), key, scheme)
    }

    /// Returns whether they permit this signature of an AUTH payload. Constraints for IKE alone,
    /// where there are any, take the place of the general ones.
    pub(super) fn ike(&self, key: PublicKeyKind, scheme: SignatureScheme) -> bool {
        let own = self.0.iter().any(|constraint| constraint.ike);
        allowed(self.0.iter().filter(|constraint| constraint.ike == own), key, scheme)
    }

    /// True if PSS is not configured: as in strongSwan, because peers may not support it.
    pub(super) fn prefer_pkcs1(&self) -> bool {
        !self.0.iter().any(|constraint| constraint.key == Key::RsaPss)
    }
}

fn allowed<'a>(rules: impl Iterator<Item = &'a Constraint>, key: PublicKeyKind, scheme: SignatureScheme) -> bool {
    let mut rules = rules.peekable();
    if rules.peek().is_none() {
        return Constraint { ike: false, key: Key::Any, bits: None, hashes: Vec::new() }.allows(key, scheme);
    }
    rules.any(|rule| rule.allows(key, scheme))
}

impl Constraint {
    fn parse(word: &str) -> Self {
        let (ike, rest) = word.strip_prefix("ike:").map_or((false, word), |rest| (true, rest));
        let mut tokens = rest.split('-');
        let key = match tokens.next().unwrap_or_default() {
            "pubkey" => Key::Any,
            "rsa" => Key::Rsa,
            "rsa/pss" => Key::RsaPss,
            "ecdsa" => Key::Ecdsa,
            "ed25519" => Key::Ed25519,
            _ => Key::None,
        };
        let mut found = Self { ike, key, bits: None, hashes: Vec::new() };
        for token in tokens {
            match token.parse() {
                Ok(bits) => found.bits = Some(bits),
                // An unknown hash matches no signature.
                Err(_) => found.hashes.push(Hash::from_name(token).or(Some(Hash::Md5).filter(|_| token != "identity"))),
            }
        }
        found
    }

    fn allows(&self, key: PublicKeyKind, scheme: SignatureScheme) -> bool {
        let (bits, least) = match key {
            PublicKeyKind::Rsa { bits } => (bits, RSA_DEFAULT_BITS),
            PublicKeyKind::Ecdsa(Curve::P256) => (256, 0),
            PublicKeyKind::Ecdsa(Curve::P384) => (384, 0),
            PublicKeyKind::Ecdsa(Curve::P521) => (521, 0),
            PublicKeyKind::Ed25519 => (256, 0),
        };
        let kind = match self.key {
            Key::Any => true,
            Key::Rsa => matches!(key, PublicKeyKind::Rsa { .. }),
            Key::RsaPss => matches!(scheme, SignatureScheme::RsaPss(_)),
            Key::Ecdsa => matches!(key, PublicKeyKind::Ecdsa(_)),
            Key::Ed25519 => key == PublicKeyKind::Ed25519,
            Key::None => false,
        };
        let hash = match scheme {
            SignatureScheme::RsaPkcs1(hash) | SignatureScheme::RsaPss(hash) | SignatureScheme::Ecdsa(hash) => {
                Some(hash)
            }
            SignatureScheme::EcdsaClassic(curve) => Some(curve.hash()),
            SignatureScheme::Ed25519 => None,
            // IKEv1 has nothing else; the hash was negotiated.
            SignatureScheme::RawRsaPkcs1 | SignatureScheme::RawEcdsa(_) => {
                return kind && bits >= self.bits.unwrap_or(least);
            }
        };
        let hashed = match (self.hashes.is_empty(), hash) {
            (true, Some(Hash::Md5 | Hash::Sha1)) => false,
            (true, _) => true,
            (false, hash) => self.hashes.contains(&hash),
        };
        kind && hashed && bits >= self.bits.unwrap_or(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RSA: PublicKeyKind = PublicKeyKind::Rsa { bits: 2048 };
    const P384: PublicKeyKind = PublicKeyKind::Ecdsa(Curve::P384);

    fn of(words: &[&str]) -> Constraints {
        Constraints::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn without_words_everything_but_the_broken() {
        let none = of(&[]);
        assert!(
            none.ike(RSA, SignatureScheme::RsaPss(Hash::Sha256))
                && none.chain(P384, SignatureScheme::Ecdsa(Hash::Sha384))
        );
        assert!(!none.chain(RSA, SignatureScheme::RsaPkcs1(Hash::Sha1)));
        assert!(!none.ike(PublicKeyKind::Rsa { bits: 1024 }, SignatureScheme::RsaPkcs1(Hash::Sha256)));
        assert!(none.ike(PublicKeyKind::Ed25519, SignatureScheme::Ed25519));
    }

    #[test]
    fn words_allow_what_they_name() {
        let rules = of(&["rsa-3072-sha256", "ike:ecdsa-sha384"]);
        assert!(!rules.chain(RSA, SignatureScheme::RsaPkcs1(Hash::Sha256)));
        assert!(rules.chain(PublicKeyKind::Rsa { bits: 3072 }, SignatureScheme::RsaPkcs1(Hash::Sha256)));
        assert!(!rules.chain(PublicKeyKind::Rsa { bits: 3072 }, SignatureScheme::RsaPkcs1(Hash::Sha384)));
        assert!(!rules.ike(PublicKeyKind::Rsa { bits: 3072 }, SignatureScheme::RsaPkcs1(Hash::Sha256)));
        assert!(rules.ike(P384, SignatureScheme::Ecdsa(Hash::Sha384)));
        assert!(rules.ike(P384, SignatureScheme::EcdsaClassic(Curve::P384)));
        assert!(of(&["rsa-1024-sha1"]).ike(RSA, SignatureScheme::RsaPkcs1(Hash::Sha1)));
        assert!(!of(&["rsa/pss-sha256"]).ike(RSA, SignatureScheme::RsaPkcs1(Hash::Sha256)));
        assert!(of(&["ed25519-identity"]).ike(PublicKeyKind::Ed25519, SignatureScheme::Ed25519));
        assert!(!of(&["ed25519-sha224"]).ike(PublicKeyKind::Ed25519, SignatureScheme::Ed25519));
        assert!(!of(&["ed448"]).ike(PublicKeyKind::Ed25519, SignatureScheme::Ed25519));
        assert!(of(&["rsa"]).prefer_pkcs1() && !of(&["rsa", "rsa/pss"]).prefer_pkcs1() && of(&[]).prefer_pkcs1());
    }
}
