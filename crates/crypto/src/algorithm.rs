//! The one table of algorithms, and the suites they combine to.
//!
//! Names are the proposal keywords of strongSwan, numbers are IANA's IKEv2 transform IDs. All other
//! properties (lengths, whether an algorithm is refused by default, the meaning of a proposal) are
//! derived from the rows below. A new algorithm should need only a new row.

use std::fmt;

/// Kind of an encryption algorithm.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)]
pub enum CipherKind {
    Null,
    AesGcm,
    AesCcm,
    /// Integrity only (RFC 4543): the body is empty, everything is associated data.
    AesGmac,
    ChaCha20Poly1305,
    AesCbc,
    AesCtr,
    TripleDesCbc,
    DesCbc,
}

impl CipherKind {
    /// True when the algorithm brings its own ICV and takes no separate integrity algorithm.
    pub fn is_aead(self) -> bool {
        matches!(self, Self::AesGcm | Self::AesCcm | Self::AesGmac | Self::ChaCha20Poly1305)
    }

    /// True if it provides confidentiality; false for NULL and GMAC.
    pub fn is_confidential(self) -> bool {
        !matches!(self, Self::Null | Self::AesGmac)
    }
}

/// Kind of an integrity algorithm.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)]
pub enum IntegKind {
    HmacMd5,
    HmacSha1,
    HmacSha256,
    HmacSha384,
    HmacSha512,
    AesXcbc,
    AesCmac,
}

/// An encryption algorithm with one key length. Lengths in bytes.
#[derive(Debug, Eq, PartialEq)]
pub struct EncAlg {
    /// strongSwan proposal keyword, e.g. `aes128gcm16`.
    pub name: &'static str,
    /// Alternative keywords, e.g. `aes128gcm128`.
    pub aliases: &'static [&'static str],
    /// IANA IKEv2 transform ID (type 1).
    pub id: u16,
    /// Kind.
    pub kind: CipherKind,
    /// Key without salt.
    pub key_len: usize,
    /// Salt or CTR nonce that follows the key in the keying material.
    pub salt_len: usize,
    /// IV in the packet; 0 for implicit-IV forms and NULL.
    pub iv_len: usize,
    /// Multiple to which the plaintext is padded (1 when there is none).
    pub block_len: usize,
    /// ICV of an AEAD, 0 otherwise.
    pub icv_len: usize,
    /// RFC 8750: the IV is the sequence number.
    pub implicit_iv: bool,
    /// Refused without `allow_legacy` (RFC 8221: MUST NOT or SHOULD NOT, or no confidentiality).
    /// GMAC is accepted, because its name implies that it does not encrypt.
    pub weak: bool,
}

/// An integrity algorithm. Lengths in bytes.
#[derive(Debug, Eq, PartialEq)]
pub struct IntegAlg {
    /// strongSwan proposal keyword, e.g. `sha256`.
    pub name: &'static str,
    /// Alternative keywords, e.g. `sha2_256`.
    pub aliases: &'static [&'static str],
    /// IANA IKEv2 transform ID (type 3).
    pub id: u16,
    /// Kind.
    pub kind: IntegKind,
    /// Key.
    pub key_len: usize,
    /// ICV after truncation.
    pub icv_len: usize,
    /// Refused without `allow_legacy`.
    pub weak: bool,
}

/// Writes the table. A row is `id => "name" ("aliases") Kind { lengths that are not zero }`.
macro_rules! algorithms {
    (
        $( enc $enc_id:literal => $enc:literal ( $($enc_alias:literal)* ) $cipher:ident
            { $($len:ident : $val:expr),* } ; )*
        $( integ $integ_id:literal => $integ:literal ( $($integ_alias:literal)* ) $mac:ident
            { key: $mac_key:expr, icv: $mac_icv:expr $(, weak: $mac_weak:literal)? } ; )*
    ) => {
        static ENC: &[EncAlg] = &[
            $( row(EncAlg {
                name: $enc,
                aliases: &[$($enc_alias),*],
                id: $enc_id,
                kind: CipherKind::$cipher,
                ..BLANK
            }, Lengths { $($len: $val,)* ..ZERO }), )*
        ];
        static INTEG: &[IntegAlg] = &[
            $( IntegAlg {
                name: $integ,
                aliases: &[$($integ_alias),*],
                id: $integ_id,
                kind: IntegKind::$mac,
                key_len: $mac_key,
                icv_len: $mac_icv,
                weak: false $(|| $mac_weak)?,
            }, )*
        ];
    };
}

/// Field names of the rows.
struct Lengths {
    key: usize,
    salt: usize,
    iv: usize,
    block: usize,
    icv: usize,
    implicit: bool,
    weak: bool,
}

const ZERO: Lengths = Lengths { key: 0, salt: 0, iv: 0, block: 1, icv: 0, implicit: false, weak: false };
const BLANK: EncAlg = EncAlg {
    name: "",
    aliases: &[],
    id: 0,
    kind: CipherKind::Null,
    key_len: 0,
    salt_len: 0,
    iv_len: 0,
    block_len: 1,
    icv_len: 0,
    implicit_iv: false,
    weak: false,
};

const fn row(named: EncAlg, len: Lengths) -> EncAlg {
    EncAlg {
        key_len: len.key,
        salt_len: len.salt,
        iv_len: len.iv,
        block_len: len.block,
        icv_len: len.icv,
        implicit_iv: len.implicit,
        weak: len.weak,
        ..named
    }
}

algorithms! {
    // AES-GCM, RFC 4106. The most common tag length should come first, because of two similar names
    // the first is suggested.
    enc 20 => "aes128gcm16" ("aes128gcm128" "aes128gcm") AesGcm { key: 16, salt: 4, iv: 8, icv: 16 };
    enc 20 => "aes192gcm16" ("aes192gcm128" "aes192gcm") AesGcm { key: 24, salt: 4, iv: 8, icv: 16 };
    enc 20 => "aes256gcm16" ("aes256gcm128" "aes256gcm") AesGcm { key: 32, salt: 4, iv: 8, icv: 16 };
    enc 19 => "aes128gcm12" ("aes128gcm96")  AesGcm { key: 16, salt: 4, iv: 8, icv: 12 };
    enc 19 => "aes192gcm12" ("aes192gcm96")  AesGcm { key: 24, salt: 4, iv: 8, icv: 12 };
    enc 19 => "aes256gcm12" ("aes256gcm96")  AesGcm { key: 32, salt: 4, iv: 8, icv: 12 };
    enc 18 => "aes128gcm8"  ("aes128gcm64")  AesGcm { key: 16, salt: 4, iv: 8, icv: 8 };
    enc 18 => "aes192gcm8"  ("aes192gcm64")  AesGcm { key: 24, salt: 4, iv: 8, icv: 8 };
    enc 18 => "aes256gcm8"  ("aes256gcm64")  AesGcm { key: 32, salt: 4, iv: 8, icv: 8 };
    enc 30 => "aes128gcm16iiv" ("aes128gcm128iiv") AesGcm { key: 16, salt: 4, icv: 16, implicit: true };
    enc 30 => "aes192gcm16iiv" ("aes192gcm128iiv") AesGcm { key: 24, salt: 4, icv: 16, implicit: true };
    enc 30 => "aes256gcm16iiv" ("aes256gcm128iiv") AesGcm { key: 32, salt: 4, icv: 16, implicit: true };
    // ChaCha20-Poly1305, RFC 7634.
    enc 28 => "chacha20poly1305" () ChaCha20Poly1305 { key: 32, salt: 4, iv: 8, icv: 16 };
    enc 31 => "chacha20poly1305iiv" () ChaCha20Poly1305 { key: 32, salt: 4, icv: 16, implicit: true };
    // AES-CCM, RFC 4309.
    enc 14 => "aes128ccm8"  ("aes128ccm64")  AesCcm { key: 16, salt: 3, iv: 8, icv: 8 };
    enc 14 => "aes192ccm8"  ("aes192ccm64")  AesCcm { key: 24, salt: 3, iv: 8, icv: 8 };
    enc 14 => "aes256ccm8"  ("aes256ccm64")  AesCcm { key: 32, salt: 3, iv: 8, icv: 8 };
    enc 15 => "aes128ccm12" ("aes128ccm96")  AesCcm { key: 16, salt: 3, iv: 8, icv: 12 };
    enc 15 => "aes192ccm12" ("aes192ccm96")  AesCcm { key: 24, salt: 3, iv: 8, icv: 12 };
    enc 15 => "aes256ccm12" ("aes256ccm96")  AesCcm { key: 32, salt: 3, iv: 8, icv: 12 };
    enc 16 => "aes128ccm16" ("aes128ccm128" "aes128ccm") AesCcm { key: 16, salt: 3, iv: 8, icv: 16 };
    enc 16 => "aes192ccm16" ("aes192ccm128" "aes192ccm") AesCcm { key: 24, salt: 3, iv: 8, icv: 16 };
    enc 16 => "aes256ccm16" ("aes256ccm128" "aes256ccm") AesCcm { key: 32, salt: 3, iv: 8, icv: 16 };
    enc 29 => "aes128ccm8iiv" ("aes128ccm64iiv") AesCcm { key: 16, salt: 3, icv: 8, implicit: true };
    enc 29 => "aes192ccm8iiv" ("aes192ccm64iiv") AesCcm { key: 24, salt: 3, icv: 8, implicit: true };
    enc 29 => "aes256ccm8iiv" ("aes256ccm64iiv") AesCcm { key: 32, salt: 3, icv: 8, implicit: true };
    // Integrity only, RFC 4543.
    enc 21 => "aes128gmac" () AesGmac { key: 16, salt: 4, iv: 8, icv: 16 };
    enc 21 => "aes192gmac" () AesGmac { key: 24, salt: 4, iv: 8, icv: 16 };
    enc 21 => "aes256gmac" () AesGmac { key: 32, salt: 4, iv: 8, icv: 16 };
    // Ciphers that need a separate MAC: RFC 3602, 3686, 2451, 2405, 2410.
    enc 12 => "aes128" ("aes") AesCbc { key: 16, iv: 16, block: 16 };
    enc 12 => "aes192" () AesCbc { key: 24, iv: 16, block: 16 };
    enc 12 => "aes256" () AesCbc { key: 32, iv: 16, block: 16 };
    enc 13 => "aes128ctr" () AesCtr { key: 16, salt: 4, iv: 8 };
    enc 13 => "aes192ctr" () AesCtr { key: 24, salt: 4, iv: 8 };
    enc 13 => "aes256ctr" () AesCtr { key: 32, salt: 4, iv: 8 };
    enc 3 => "3des" () TripleDesCbc { key: 24, iv: 8, block: 8, weak: true };
    enc 2 => "des" () DesCbc { key: 8, iv: 8, block: 8, weak: true };
    enc 11 => "null" () Null { weak: true };

    integ 1 => "md5" ("md5_96") HmacMd5 { key: 16, icv: 12, weak: true };
    integ 2 => "sha1" ("sha" "sha1_96") HmacSha1 { key: 20, icv: 12 };
    integ 12 => "sha256" ("sha2_256" "sha256_128") HmacSha256 { key: 32, icv: 16 };
    // Truncation of a draft before RFC 4868. It has no IANA number: peers negotiate 12, and both
    // must be configured to truncate. This number of private use is strongSwan's.
    integ 1027 => "sha256_96" ("sha2_256_96") HmacSha256 { key: 32, icv: 12 };
    integ 13 => "sha384" ("sha2_384" "sha384_192") HmacSha384 { key: 48, icv: 24 };
    integ 14 => "sha512" ("sha2_512" "sha512_256") HmacSha512 { key: 64, icv: 32 };
    integ 5 => "aesxcbc" ("aesxcbc96") AesXcbc { key: 16, icv: 12 };
    integ 8 => "aescmac" ("aescmac96") AesCmac { key: 16, icv: 12 };
}

impl EncAlg {
    /// Every encryption algorithm, in the order of the table.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        ENC.iter()
    }

    /// Returns the algorithm with this proposal keyword or alias.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        ENC.iter().find(|alg| alg.name == name || alg.aliases.contains(&name))
    }

    /// The algorithm of an IANA transform ID (type 1). `key_len` in bytes, without the salt;
    /// ignored where the ID allows one key length only.
    pub fn by_id(id: u16, key_len: usize) -> Option<&'static Self> {
        let mut of_id = ENC.iter().filter(|alg| alg.id == id);
        match (of_id.next(), of_id.next()) {
            (Some(only), None) => Some(only),
            _ => ENC.iter().find(|alg| alg.id == id && alg.key_len == key_len),
        }
    }

    /// Key and salt together, in bytes: a configuration or key exchange must provide that many.
    pub fn material_len(&self) -> usize {
        self.key_len + self.salt_len
    }
}

/// First transform ID of private use (RFC 7296 §3.3.2): such a row is configured at both ends,
/// never negotiated.
const PRIVATE_USE: u16 = 1024;

impl IntegAlg {
    /// Returns whether a proposal may contain it. The others are for manually configured SAs.
    pub fn is_negotiable(&self) -> bool {
        self.id < PRIVATE_USE
    }

    /// The algorithm with the ICV truncated to 96 bits that old peers use under the same number:
    /// HMAC-SHA-256-96 for HMAC-SHA-256-128, otherwise the algorithm itself.
    pub fn truncated_to_96(&'static self) -> &'static Self {
        let short = INTEG.iter().find(|alg| !alg.is_negotiable() && alg.kind == self.kind && alg.icv_len == 12);
        short.unwrap_or(self)
    }

    /// Every integrity algorithm, in the order of the table.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        INTEG.iter()
    }

    /// Returns the algorithm with this proposal keyword or alias.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        INTEG.iter().find(|alg| alg.name == name || alg.aliases.contains(&name))
    }

    /// The algorithm of an IANA transform ID (type 3).
    pub fn by_id(id: u16) -> Option<&'static Self> {
        INTEG.iter().find(|alg| alg.id == id)
    }
}

/// Protection of the packets of an SA: an AEAD, or a cipher with a separate MAC; for AH a MAC
/// alone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Suite {
    /// The cipher; `None` for AH.
    pub enc: Option<&'static EncAlg>,
    /// The MAC; `None` for an AEAD.
    pub integ: Option<&'static IntegAlg>,
}

/// Error in a proposal: unknown keyword or invalid combination.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// No algorithm has this name.
    #[error("unknown algorithm '{name}'; did you mean '{nearest}'?")]
    Unknown {
        /// The input.
        name: String,
        /// The known name closest to it.
        nearest: &'static str,
    },
    /// Invalid combination of algorithms.
    #[error("'{proposal}' is not a suite: {why}")]
    Combination {
        /// The input.
        proposal: String,
        /// Reason and correction.
        why: &'static str,
    },
}

const WHY_IKE: &str = "key exchange groups and PRFs belong to IKE; leave them out of a suite with manual keys";
const WHY_ESN: &str = "extended sequence numbers are chosen with the key 'esn' of the SA, not in the suite";
const WHY_TWO: &str = "name one cipher and at most one integrity algorithm";
const WHY_AEAD_INTEG: &str = "this cipher authenticates by itself; leave the integrity algorithm out";
const WHY_NO_INTEG: &str = "this cipher does not authenticate; add an integrity algorithm, e.g. '-sha256'";
const WHY_NO_ENC: &str = "a cipher is missing; for integrity alone write e.g. 'aes128gmac' or 'null-sha256'";
const WHY_AH_ENC: &str = "AH encrypts nothing; name one integrity algorithm, e.g. 'sha256'";
const WHY_NOT_AEAD: &str = "EESP version 0 takes AEADs only (e.g. 'aes128gcm16'), not a cipher with a separate MAC";

/// The words of one proposal, sorted into the two tables.
struct Words {
    enc: Option<&'static EncAlg>,
    integ: Option<&'static IntegAlg>,
}

impl Words {
    fn parse(proposal: &str) -> Result<Self, SuiteError> {
        let refuse = |why| SuiteError::Combination { proposal: proposal.to_owned(), why };
        let mut words = Self { enc: None, integ: None };
        for word in proposal.split('-').map(str::trim) {
            let twice = if let Some(enc) = EncAlg::by_name(word) {
                words.enc.replace(enc).is_some()
            } else if let Some(integ) = IntegAlg::by_name(word) {
                words.integ.replace(integ).is_some()
            } else if matches!(word, "esn" | "noesn") {
                return Err(refuse(WHY_ESN));
            } else if is_ike_word(word) {
                return Err(refuse(WHY_IKE));
            } else {
                return Err(SuiteError::Unknown { name: word.to_owned(), nearest: nearest(word) });
            };
            if twice {
                return Err(refuse(WHY_TWO));
            }
        }
        Ok(words)
    }
}

impl Suite {
    /// Parses an ESP proposal such as `aes128gcm16` or `aes128-sha256`.
    ///
    /// # Errors
    /// [`SuiteError`] for an unknown keyword or an invalid combination.
    pub fn parse_esp(proposal: &str) -> Result<Self, SuiteError> {
        let refuse = |why| Err(SuiteError::Combination { proposal: proposal.to_owned(), why });
        let Words { enc, integ } = Words::parse(proposal)?;
        match enc {
            None => refuse(WHY_NO_ENC),
            Some(cipher) if cipher.kind.is_aead() && integ.is_some() => refuse(WHY_AEAD_INTEG),
            Some(cipher) if !cipher.kind.is_aead() && integ.is_none() => refuse(WHY_NO_INTEG),
            Some(_) => Ok(Self { enc, integ }),
        }
    }

    /// Parses an AH proposal such as `sha256`.
    ///
    /// # Errors
    /// As [`Suite::parse_esp`].
    pub fn parse_ah(proposal: &str) -> Result<Self, SuiteError> {
        match Words::parse(proposal)? {
            Words { enc: None, integ: Some(integ) } => Ok(Self { enc: None, integ: Some(integ) }),
            _ => Err(SuiteError::Combination { proposal: proposal.to_owned(), why: WHY_AH_ENC }),
        }
    }

    /// Parses an EESP proposal: as for ESP, but it must be an AEAD.
    ///
    /// # Errors
    /// As [`Suite::parse_esp`].
    pub fn parse_eesp(proposal: &str) -> Result<Self, SuiteError> {
        let suite = Self::parse_esp(proposal)?;
        if suite.is_aead() {
            Ok(suite)
        } else {
            Err(SuiteError::Combination { proposal: proposal.to_owned(), why: WHY_NOT_AEAD })
        }
    }

    /// Every suite of ESP: the AEADs, and each other cipher with each MAC.
    pub fn all_esp() -> impl Iterator<Item = Self> {
        EncAlg::all().flat_map(|enc| {
            let alone = enc.kind.is_aead().then_some(None);
            let paired = IntegAlg::all().filter(|_| !enc.kind.is_aead()).map(Some);
            alone.into_iter().chain(paired).map(|integ| Self { enc: Some(enc), integ })
        })
    }

    /// Every suite of AH.
    pub fn all_ah() -> impl Iterator<Item = Self> {
        IntegAlg::all().map(|integ| Self { enc: None, integ: Some(integ) })
    }

    /// ICV in bytes.
    pub fn icv_len(&self) -> usize {
        self.integ.map_or_else(|| self.enc.map_or(0, |e| e.icv_len), |i| i.icv_len)
    }

    /// IV in the packet in bytes.
    pub fn iv_len(&self) -> usize {
        self.enc.map_or(0, |e| e.iv_len)
    }

    /// Block size in bytes: the plaintext must be padded to a multiple of it.
    pub fn block_len(&self) -> usize {
        self.enc.map_or(1, |e| e.block_len)
    }

    /// Bytes of [`crate::KeyMaterial::enc`]: cipher key and salt.
    pub fn enc_material_len(&self) -> usize {
        self.enc.map_or(0, EncAlg::material_len)
    }

    /// Bytes of [`crate::KeyMaterial::integ`].
    pub fn integ_material_len(&self) -> usize {
        self.integ.map_or(0, |i| i.key_len)
    }

    /// Returns true if one algorithm encrypts and authenticates (AEAD, GMAC included).
    pub fn is_aead(&self) -> bool {
        self.integ.is_none()
    }

    /// Returns true if the suite encrypts the payload: false for AH, NULL and GMAC.
    pub fn is_confidential(&self) -> bool {
        self.enc.is_some_and(|e| e.kind.is_confidential())
    }

    /// Returns the name of the first algorithm that is refused without `allow_legacy`.
    pub fn weak(&self) -> Option<&'static str> {
        let enc = self.enc.filter(|e| e.weak).map(|e| e.name);
        enc.or_else(|| self.integ.filter(|i| i.weak).map(|i| i.name))
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.enc, self.integ) {
            (Some(enc), Some(integ)) => write!(f, "{}-{}", enc.name, integ.name),
            (Some(enc), None) => f.pad(enc.name),
            (None, Some(integ)) => f.pad(integ.name),
            (None, None) => f.pad("none"),
        }
    }
}

/// Keywords that strongSwan accepts in the same proposal but that have no meaning without a key
/// exchange.
fn is_ike_word(word: &str) -> bool {
    const PREFIXES: [&str; 10] = ["modp", "ecp", "x25519", "x448", "curve", "ke", "prf", "mlkem", "ntru", "newhope"];
    PREFIXES.iter().any(|prefix| word.starts_with(prefix))
}

/// The known keyword closest to `word`.
fn nearest(word: &str) -> &'static str {
    let enc = ENC.iter().flat_map(|a| std::iter::once(a.name).chain(a.aliases.iter().copied()));
    let integ = INTEG.iter().flat_map(|a| std::iter::once(a.name).chain(a.aliases.iter().copied()));
    // A truncated keyword should match the keyword that it is a prefix of, regardless of the edit
    // distance.
    let distance =
        |known: &&str| if word.len() > 2 && known.starts_with(word) { 1 } else { edit_distance(word, known) };
    enc.chain(integ).min_by_key(distance).unwrap_or("aes128gcm16")
}

/// Returns the edit distance of `a` and `b`. Quadratic time is acceptable because only words of the
/// configuration are compared; the length is bounded nevertheless.
pub fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(64).enumerate() {
        let mut left = i + 1;
        let mut diagonal = std::mem::replace(&mut above[0], left);
        for (j, &cb) in b.iter().enumerate() {
            let here = (diagonal + usize::from(ca != cb)).min(left + 1).min(above[j + 1] + 1);
            diagonal = std::mem::replace(&mut above[j + 1], here);
            left = here;
        }
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_lead_back_to_their_row() {
        let mut seen = HashSet::new();
        for alg in EncAlg::all() {
            for name in std::iter::once(&alg.name).chain(alg.aliases) {
                assert!(seen.insert(*name), "{name} twice");
                assert_eq!(EncAlg::by_name(name), Some(alg));
            }
            assert_eq!(EncAlg::by_id(alg.id, alg.key_len), Some(alg));
        }
        for alg in IntegAlg::all() {
            for name in std::iter::once(&alg.name).chain(alg.aliases) {
                assert!(seen.insert(*name), "{name} twice");
                assert_eq!(IntegAlg::by_name(name), Some(alg));
            }
            assert_eq!(IntegAlg::by_id(alg.id), Some(alg));
        }
        let names: Vec<&str> = IntegAlg::all().filter(|alg| !alg.is_negotiable()).map(|alg| alg.name).collect();
        assert_eq!(names, ["sha256_96"]);
        for alg in IntegAlg::all() {
            let short = alg.truncated_to_96();
            let expected = if alg.name == "sha256" { "sha256_96" } else { alg.name };
            assert_eq!((short.name, short.key_len), (expected, alg.key_len));
        }
        assert_eq!(EncAlg::by_id(20, 17), None);
        assert_eq!(EncAlg::by_id(28, 0).map(|a| a.name), Some("chacha20poly1305"));
    }

    #[test]
    fn every_suite_is_parsed_back_from_what_it_displays() {
        for suite in Suite::all_esp() {
            assert_eq!(Suite::parse_esp(&suite.to_string()), Ok(suite));
            assert_eq!(suite.is_aead(), suite.enc.is_some_and(|e| e.kind.is_aead()));
            assert!(suite.icv_len() >= 8);
        }
        for suite in Suite::all_ah() {
            assert_eq!(Suite::parse_ah(&suite.to_string()), Ok(suite));
        }
        assert_eq!(Suite::all_esp().count(), 29 + 9 * 8);
        assert_eq!(Suite::parse_esp("sha256-aes128"), Suite::parse_esp("aes128-sha256"));
    }

    #[test]
    fn refusals_say_what_to_write() {
        let why = |proposal| match Suite::parse_esp(proposal) {
            Err(SuiteError::Combination { why, .. }) => why,
            other => panic!("{proposal}: {other:?}"),
        };
        assert_eq!(why("aes128gcm16-sha256"), WHY_AEAD_INTEG);
        assert_eq!(why("aes128"), WHY_NO_INTEG);
        assert_eq!(why("sha256"), WHY_NO_ENC);
        assert_eq!(why("aes128-sha256-x25519"), WHY_IKE);
        assert_eq!(why("aes128gcm16-modp2048"), WHY_IKE);
        assert_eq!(why("aes128gcm16-prfsha256-ecp256"), WHY_IKE);
        assert_eq!(why("aes128gcm16-esn"), WHY_ESN);
        assert_eq!(why("aes128gcm16-noesn"), WHY_ESN);
        assert_eq!(why("aes128-aes256"), WHY_TWO);
        assert_eq!(why("aes128-sha1-sha256"), WHY_TWO);
        assert!(matches!(Suite::parse_ah("aes128-sha256"), Err(SuiteError::Combination { why: WHY_AH_ENC, .. })));
        assert!(matches!(Suite::parse_eesp("aes128-sha256"), Err(SuiteError::Combination { why: WHY_NOT_AEAD, .. })));
        assert!(Suite::parse_eesp("chacha20poly1305iiv").is_ok());
    }

    #[test]
    fn unknown_words_name_the_nearest() {
        let text = |proposal| Suite::parse_esp(proposal).unwrap_err().to_string();
        assert_eq!(text("aes128gcm6"), "unknown algorithm 'aes128gcm6'; did you mean 'aes128gcm16'?");
        assert_eq!(text("aes128-sha265"), "unknown algorithm 'sha265'; did you mean 'sha256'?");
        assert_eq!(text("chacha20"), "unknown algorithm 'chacha20'; did you mean 'chacha20poly1305'?");
        assert_eq!(text("aes512-sha256"), "unknown algorithm 'aes512'; did you mean 'aes128'?");
        assert!(text("").contains("did you mean"));
        assert!(text(&"x".repeat(10_000)).contains("did you mean"));
    }

    #[test]
    fn edit_distance_counts() {
        for (a, b, d) in [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("ab", "ba", 2), ("aes", "aes", 0)] {
            assert_eq!((edit_distance(a, b), edit_distance(b, a)), (d, d));
        }
    }

    #[test]
    fn weak_is_what_rfc_8221_says() {
        let weak: Vec<_> = EncAlg::all().filter(|a| a.weak).map(|a| a.name).collect();
        assert_eq!(weak, ["3des", "des", "null"]);
        let suite = |s| Suite::parse_esp(s).expect("a suite");
        assert_eq!(suite("aes128-md5").weak(), Some("md5"));
        assert_eq!(suite("3des-md5").weak(), Some("3des"));
        assert_eq!(suite("aes128gmac").weak(), None);
        assert!(!suite("aes128gmac").is_confidential());
        assert!(!suite("null-sha256").is_confidential());
        assert!(suite("aes128-sha256").is_confidential());
    }
}
