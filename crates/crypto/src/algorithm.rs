//! The one table of algorithms.

/// How an encryption algorithm works.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
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

/// How an integrity algorithm works.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
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
#[derive(Debug)]
pub struct EncAlg {
    /// strongSwan proposal keyword, e.g. `aes128gcm16`.
    pub name: &'static str,
    /// IANA IKEv2 transform ID (type 1).
    pub id: u16,
    /// How it works.
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
    pub weak: bool,
}

/// An integrity algorithm. Lengths in bytes.
#[derive(Debug)]
pub struct IntegAlg {
    /// strongSwan proposal keyword, e.g. `sha256`.
    pub name: &'static str,
    /// IANA IKEv2 transform ID (type 3).
    pub id: u16,
    /// How it works.
    pub kind: IntegKind,
    /// Key.
    pub key_len: usize,
    /// ICV after truncation.
    pub icv_len: usize,
    /// Refused without `allow_legacy`.
    pub weak: bool,
}

/// What protects the packets of an SA: an AEAD, or a cipher with a separate MAC; for AH a MAC alone.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// The cipher; `None` for AH.
    pub enc: Option<&'static EncAlg>,
    /// The MAC; `None` for an AEAD.
    pub integ: Option<&'static IntegAlg>,
}

/// A proposal keyword or a combination that names no usable suite.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SuiteError {
    /// No algorithm has this name.
    #[error("unknown algorithm '{name}'; did you mean '{nearest}'?")]
    Unknown {
        /// What was written.
        name: String,
        /// The known name closest to it.
        nearest: &'static str,
    },
    /// The algorithms do not make a suite.
    #[error("'{proposal}' is not a suite: {why}")]
    Combination {
        /// What was written.
        proposal: String,
        /// Why not, and what to write.
        why: &'static str,
    },
}

impl Suite {
    /// ICV in bytes.
    pub fn icv_len(&self) -> usize {
        self.integ.map_or_else(|| self.enc.map_or(0, |e| e.icv_len), |i| i.icv_len)
    }

    /// IV in the packet in bytes.
    pub fn iv_len(&self) -> usize {
        self.enc.map_or(0, |e| e.iv_len)
    }

    /// Multiple to which the cipher wants its plaintext padded.
    pub fn block_len(&self) -> usize {
        self.enc.map_or(1, |e| e.block_len)
    }

    /// True when one algorithm does both, GMAC included.
    pub fn is_aead(&self) -> bool {
        self.integ.is_none()
    }
}
