//! Key exchange methods (transform type 4): Diffie-Hellman groups and ML-KEM.
//!
//! An initiator makes a [`KeInitiator`], sends its public value and finishes it with the answer; a
//! responder does it all in [`KeMethod::respond`]. Private values live no longer than that.

use aws_lc_rs::{agreement, kem};

use super::Secret;
use super::modp::{self, Group};

/// A key exchange method.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)]
pub enum KeMethod {
    Modp1024,
    Modp1536,
    Modp2048,
    Modp3072,
    Modp4096,
    Modp6144,
    Modp8192,
    Ecp256,
    Ecp384,
    Ecp521,
    X25519,
    MlKem512,
    MlKem768,
    MlKem1024,
}

/// Kind of a method.
#[derive(Clone, Copy)]
enum Kind {
    Modp(&'static Group),
    /// With the length of one coordinate.
    Ecp(&'static agreement::Algorithm, usize),
    X25519,
    MlKem(&'static kem::Algorithm, KemLen),
}

/// Bytes of an ML-KEM encapsulation key and ciphertext (FIPS 203 §8).
#[derive(Clone, Copy)]
struct KemLen {
    key: usize,
    ciphertext: usize,
}

struct KeRow {
    method: KeMethod,
    id: u16,
    name: &'static str,
    aliases: &'static [&'static str],
    vici_name: &'static str,
    kind: Kind,
}

macro_rules! methods {
    ($( $id:literal => $method:ident $name:literal [$($alias:literal)*] $vici:literal $kind:expr; )*) => {
        static TABLE: &[KeRow] = &[ $( KeRow {
            method: KeMethod::$method,
            id: $id,
            name: $name,
            aliases: &[$($alias),*],
            vici_name: $vici,
            kind: $kind,
        } ),* ];
    };
}

methods! { // IANA number, name, proposal keyword, other keywords, name in reports
    2 => Modp1024 "modp1024" [] "MODP_1024" Kind::Modp(&modp::MODP1024);
    5 => Modp1536 "modp1536" [] "MODP_1536" Kind::Modp(&modp::MODP1536);
    14 => Modp2048 "modp2048" [] "MODP_2048" Kind::Modp(&modp::MODP2048);
    15 => Modp3072 "modp3072" [] "MODP_3072" Kind::Modp(&modp::MODP3072);
    16 => Modp4096 "modp4096" [] "MODP_4096" Kind::Modp(&modp::MODP4096);
    17 => Modp6144 "modp6144" [] "MODP_6144" Kind::Modp(&modp::MODP6144);
    18 => Modp8192 "modp8192" [] "MODP_8192" Kind::Modp(&modp::MODP8192);
    19 => Ecp256 "ecp256" [] "ECP_256" Kind::Ecp(&agreement::ECDH_P256, 32);
    20 => Ecp384 "ecp384" [] "ECP_384" Kind::Ecp(&agreement::ECDH_P384, 48);
    21 => Ecp521 "ecp521" [] "ECP_521" Kind::Ecp(&agreement::ECDH_P521, 66);
    31 => X25519 "x25519" ["curve25519"] "CURVE_25519" Kind::X25519;
    35 => MlKem512 "mlkem512" [] "ML_KEM_512" Kind::MlKem(&kem::ML_KEM_512, KemLen { key: 800, ciphertext: 768 });
    36 => MlKem768 "mlkem768" [] "ML_KEM_768" Kind::MlKem(&kem::ML_KEM_768, KemLen { key: 1184, ciphertext: 1088 });
    37 => MlKem1024 "mlkem1024" [] "ML_KEM_1024" Kind::MlKem(&kem::ML_KEM_1024, KemLen { key: 1568, ciphertext: 1568 });
}

/// Reason why a key exchange gave no secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KeFault {
    /// The peer's public value has not the method's length.
    #[error("a public value of {method} has {need} bytes, not {have}")]
    Length {
        /// Proposal keyword of the method.
        method: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes received.
        have: usize,
    },
    /// The peer's public value is none: out of range, not on the curve, of small order, or an
    /// encapsulation key that is not reduced.
    #[error("the peer's public value is not one of {method}")]
    Invalid {
        /// Proposal keyword of the method.
        method: &'static str,
    },
    /// The library failed on our own side: no memory.
    #[error("cannot run {method}")]
    Failed {
        /// Proposal keyword of the method.
        method: &'static str,
    },
}

impl KeMethod {
    /// Every method, in the order of the IANA numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.method)
    }

    fn row(self) -> &'static KeRow {
        TABLE.iter().find(|row| row.method == self).expect("each method has a row")
    }

    /// IANA transform ID (type 4).
    pub fn id(self) -> u16 {
        self.row().id
    }

    /// The method of a transform ID.
    pub fn from_id(id: u16) -> Option<Self> {
        TABLE.iter().find(|row| row.id == id).map(|row| row.method)
    }

    /// Proposal keyword: `x25519`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Other keywords for the same: `curve25519`.
    pub fn aliases(self) -> &'static [&'static str] {
        self.row().aliases
    }

    /// The method of a keyword or one of its aliases.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.name == name || row.aliases.contains(&name)).map(|row| row.method)
    }

    /// Name in reports: `CURVE_25519`.
    pub fn vici_name(self) -> &'static str {
        self.row().vici_name
    }

    /// Refused without being allowed by name (RFC 8247 §2.4: SHOULD NOT).
    pub fn weak(self) -> bool {
        matches!(self, Self::Modp1024 | Self::Modp1536)
    }

    /// True when the responder encapsulates: its answer depends on the initiator's key and has
    /// another length.
    pub fn is_kem(self) -> bool {
        matches!(self.row().kind, Kind::MlKem(..))
    }

    /// Bytes of what an initiator sends.
    pub fn initiator_public_len(self) -> usize {
        match self.row().kind {
            Kind::Modp(group) => group.len(),
            Kind::Ecp(_, coordinate) => 2 * coordinate,
            Kind::X25519 => 32,
            Kind::MlKem(_, len) => len.key,
        }
    }

    /// Bytes of what a responder sends.
    pub fn responder_public_len(self) -> usize {
        match self.row().kind {
            Kind::MlKem(_, len) => len.ciphertext,
            _ => self.initiator_public_len(),
        }
    }

    /// Makes a key pair.
    ///
    /// # Errors
    /// [`KeFault::Failed`].
    pub fn generate(self) -> Result<KeInitiator, KeFault> {
        let (private, public) = self.generate_pair().ok_or(KeFault::Failed { method: self.name() })?;
        Ok(KeInitiator { method: self, private, public })
    }

    /// Answers an initiator: gives our public value (for ML-KEM the ciphertext) and the secret.
    ///
    /// # Errors
    /// [`KeFault`] when the peer's value is not good.
    pub fn respond(self, peer_public: &[u8]) -> Result<(Vec<u8>, Secret), KeFault> {
        self.length(self.initiator_public_len(), peer_public)?;
        if let Kind::MlKem(algorithm, _) = self.row().kind {
            let encapsulated =
                kem::EncapsulationKey::new(algorithm, peer_public).ok().and_then(|key| key.encapsulate().ok());
            let (ciphertext, secret) = encapsulated.ok_or(KeFault::Invalid { method: self.name() })?;
            return Ok((ciphertext.as_ref().to_vec(), Secret::from_slice(secret.as_ref())));
        }
        let own = self.generate()?;
        let secret = own.agree(peer_public)?;
        Ok((own.public, secret))
    }

    /// Checks an initiator's public value without a key of our own: a responder refuses what is
    /// none before it answers. A good value takes a comparison, or for ECP a test of the curve's
    /// equation, and no exponentiation.
    ///
    /// # Errors
    /// [`KeFault::Length`] and [`KeFault::Invalid`].
    pub fn check(self, peer_public: &[u8]) -> Result<(), KeFault> {
        self.length(self.initiator_public_len(), peer_public)?;
        let good = match self.row().kind {
            Kind::Modp(group) => group.is_public(peer_public),
            Kind::Ecp(algorithm, _) => {
                let tagged = [&[4][..], peer_public].concat();
                let key = agreement::UnparsedPublicKey::new(algorithm, tagged);
                agreement::ParsedPublicKey::try_from(&key).is_ok()
            }
            Kind::X25519 => !has_small_order(peer_public),
            Kind::MlKem(algorithm, _) => {
                kem::EncapsulationKey::new(algorithm, peer_public).is_ok() && is_reduced(peer_public)
            }
        };
        if good { Ok(()) } else { Err(KeFault::Invalid { method: self.name() }) }
    }

    fn length(self, need: usize, peer_public: &[u8]) -> Result<(), KeFault> {
        let (method, have) = (self.name(), peer_public.len());
        if need == have { Ok(()) } else { Err(KeFault::Length { method, need, have }) }
    }

    fn generate_pair(self) -> Option<(Private, Vec<u8>)> {
        match self.row().kind {
            Kind::Modp(group) => {
                let (exponent, public) = group.generate()?;
                Some((Private::Modp(group, exponent), public))
            }
            Kind::Ecp(algorithm, _) => Private::curve(agreement::PrivateKey::generate(algorithm).ok()?, 1),
            Kind::X25519 => Private::curve(agreement::PrivateKey::generate(&agreement::X25519).ok()?, 0),
            Kind::MlKem(algorithm, _) => {
                let key = kem::DecapsulationKey::generate(algorithm).ok()?;
                let public = key.encapsulation_key().ok()?.key_bytes().ok()?.as_ref().to_vec();
                Some((Private::MlKem(Box::new(key)), public))
            }
        }
    }
}

/// Returns true when each coefficient of an ML-KEM encapsulation key is below q (FIPS 203 §7.2).
/// The library checks that in the encapsulation only. Coefficients have 12 bits, two in three
/// bytes; the last 32 bytes of the key are the seed.
fn is_reduced(key: &[u8]) -> bool {
    const Q: u16 = 3329;
    let (coefficients, _seed) = key.split_at(key.len().saturating_sub(32));
    coefficients.chunks_exact(3).all(|bytes| {
        let [low, middle, high] = [bytes[0], bytes[1], bytes[2]].map(u16::from);
        low | (middle & 0x0f) << 8 < Q && middle >> 4 | high << 4 < Q
    })
}

/// Returns true for a u-coordinate of small order on Curve25519 or its twist, for which the secret
/// is zero (RFC 7748 §6.1). The highest bit is ignored, as in the exchange, and values from the
/// prime on are not reduced there.
fn has_small_order(public: &[u8]) -> bool {
    // 2²⁵⁵ − 19 little-endian, and the two values of order 8.
    let prime_and = |add: i16| -> [u8; 32] {
        let mut value = [0xff; 32];
        (value[0], value[31]) = ((0xed + add) as u8, 0x7f);
        value
    };
    const ORDER_8: [[u8; 32]; 2] = [
        [
            0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4, 0x6a, 0xda, 0x09,
            0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00,
        ],
        [
            0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef, 0x5b, 0x04, 0x44,
            0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f, 0x11, 0x57,
        ],
    ];
    let Ok(mut value) = <[u8; 32]>::try_from(public) else { return true };
    value[31] &= 0x7f;
    let is_small = value[1..].iter().all(|byte| *byte == 0) && value[0] <= 1;
    is_small || ORDER_8.contains(&value) || [-1, 0, 1].map(prime_and).contains(&value)
}

/// The private half of a pair.
enum Private {
    Modp(&'static Group, Secret),
    /// With how many bytes of the library's encoding IKE leaves away: the 4 in front of x and y.
    Curve(Box<agreement::PrivateKey>, usize),
    MlKem(Box<kem::DecapsulationKey>),
}

impl Private {
    fn curve(key: agreement::PrivateKey, tag_len: usize) -> Option<(Self, Vec<u8>)> {
        let public = key.compute_public_key().ok()?.as_ref().get(tag_len..)?.to_vec();
        Some((Self::Curve(Box::new(key), tag_len), public))
    }

    fn agree(&self, peer_public: &[u8]) -> Option<Secret> {
        match self {
            Self::Modp(group, exponent) => group.agree(exponent, peer_public),
            Self::Curve(key, tag_len) => {
                // X9.62's "uncompressed" tag, where the curve has one.
                let tagged = [&[4][..*tag_len], peer_public].concat();
                let peer = agreement::UnparsedPublicKey::new(key.algorithm(), tagged);
                agreement::agree(key, peer, (), |secret| Ok(Secret::from_slice(secret))).ok()
            }
            Self::MlKem(key) => {
                let secret = key.decapsulate(peer_public.into()).ok()?;
                Some(Secret::from_slice(secret.as_ref()))
            }
        }
    }
}

/// A key pair that waits for the responder's answer. The private half is zeroed on drop; there is
/// no `Debug`.
pub struct KeInitiator {
    method: KeMethod,
    private: Private,
    public: Vec<u8>,
}

impl KeInitiator {
    /// The method.
    pub fn method(&self) -> KeMethod {
        self.method
    }

    /// Contents of the Key Exchange payload.
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// The shared secret; g^ir of RFC 7296 §2.14, as long as the group has it: all of p for MODP, x
    /// alone for ECP (RFC 5903 §9).
    ///
    /// An ML-KEM ciphertext that was made for another key gives a secret that no one else has (FIPS
    /// 203 §6.3), which the authentication of the messages finds out.
    ///
    /// # Errors
    /// [`KeFault`] when the peer's value is not good.
    pub fn finish(self, peer_public: &[u8]) -> Result<Secret, KeFault> {
        self.agree(peer_public)
    }

    fn agree(&self, peer_public: &[u8]) -> Result<Secret, KeFault> {
        self.method.length(self.method.responder_public_len(), peer_public)?;
        self.private.agree(peer_public).ok_or(KeFault::Invalid { method: self.method.name() })
    }
}

#[cfg(test)]
mod tests;
