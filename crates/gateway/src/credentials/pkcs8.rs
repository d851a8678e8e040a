//! Private keys in files: PKCS #8 in the clear or encrypted with a passphrase (PBES2, RFC 8018 §6.2),
//! and the forms of single algorithms.

use std::num::NonZeroU32;

use aws_lc_rs::pbkdf2;
use crypto::EncAlg;
use crypto::ike::{PrivateKey, V1Cipher};
use zeroize::Zeroizing;

use super::der::{OCTET_STRING, OID, Reader, SEQUENCE};
use super::pem::{self, Block};

/// Iterations beyond which a key file is refused: minutes of computing.
const MAX_ITERATIONS: u32 = 50_000_000;

const PBES2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0d];
const PBKDF2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0c];
/// Prefix of rsadsi digestAlgorithm hmacWith…; the last byte selects the hash.
const HMAC: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x02];
/// Prefix of the AES OIDs; the last byte selects key length and mode.
const AES: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x01];
const TRIPLE_DES: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x03, 0x07];

/// A key file that cannot be used, in words for its owner.
pub(super) type KeyFileFault = String;

const CONVERT: &str = "convert it with 'openssl pkcs8 -topk8 -v2 aes-256-cbc -v2prf hmacWithSHA256 -in FILE'";

/// Reads the first private key of a file. `passphrases` are tried in their order.
///
/// # Errors
/// What is wrong with it, and what to do.
pub(super) fn private_key(file: &[u8], passphrases: &[&[u8]]) -> Result<PrivateKey, KeyFileFault> {
    let blocks = pem::blocks(file)?;
    let is_key = |block: &&Block| block.label.is_empty() || block.label.ends_with("PRIVATE KEY");
    let block = blocks.iter().find(is_key).ok_or("contains no private key")?;
    if block.old_encryption {
        return Err(format!("encrypted with a weak legacy scheme; {CONVERT}"));
    }
    if is_pkcs12(&block.der) {
        return Err(
            "PKCS #12 is not supported; convert the file with 'openssl pkcs12 -in FILE -nodes -nocerts -out private/NAME.pem' and \
             'openssl pkcs12 -in FILE -nokeys -out x509/NAME.pem'"
                .into(),
        );
    }
    let Some(sealed) = Sealed::parse(&block.der) else {
        return PrivateKey::from_der(&block.der).map_err(|fault| fault.to_string());
    };
    if passphrases.is_empty() {
        return Err("encrypted; write its passphrase into a section 'private' of 'secrets'".into());
    }
    let method = Method::parse(&sealed)?;
    let opened = |passphrase: &&[u8]| method.open(passphrase, sealed.body);
    let found = passphrases.iter().filter_map(opened).find_map(|der| PrivateKey::from_der(&der).ok());
    found.ok_or_else(|| "no passphrase decrypts it, or it contains no usable key".into())
}

/// Reads a file as one with a private key, with a passphrase and without. For fuzzing: a derivation that takes long is left out,
/// as the owner of a file may have chosen it.
#[doc(hidden)]
pub fn check_private_key(file: &[u8]) {
    const MAX_FUZZ_ITERATIONS: u32 = 100;
    let _ = private_key(file, &[]);
    let Ok(blocks) = pem::blocks(file) else { return };
    for block in blocks {
        let Some(sealed) = Sealed::parse(&block.der) else { continue };
        let Ok(method) = Method::parse(&sealed) else { continue };
        if method.iterations.get() <= MAX_FUZZ_ITERATIONS {
            let _ = method.open(b"weir", sealed.body).map(|der| PrivateKey::from_der(&der));
        }
    }
}

/// PFX begins with version 3 and a ContentInfo.
pub(super) fn is_pkcs12(der: &[u8]) -> bool {
    let inside = Reader::new(der).inside(SEQUENCE);
    inside.is_some_and(|mut pfx| {
        pfx.number() == Some(3) && pfx.inside(SEQUENCE).is_some_and(|mut c| c.one(OID).is_some())
    })
}

/// EncryptedPrivateKeyInfo (RFC 5958 §3).
struct Sealed<'a> {
    algorithm: &'a [u8],
    parameters: Reader<'a>,
    body: &'a [u8],
}

impl<'a> Sealed<'a> {
    fn parse(der: &'a [u8]) -> Option<Self> {
        let mut inside = Reader::new(der).inside(SEQUENCE)?;
        let mut algorithm = inside.inside(SEQUENCE)?;
        let body = inside.one(OCTET_STRING)?.body;
        Some(Self { algorithm: algorithm.one(OID)?.body, parameters: algorithm, body }).filter(|_| inside.is_empty())
    }
}

/// OID and parameters.
type Algorithm<'a> = (&'a [u8], Reader<'a>);

/// PBES2 with PBKDF2 and a cipher in CBC mode.
struct Method<'a> {
    prf: pbkdf2::Algorithm,
    salt: &'a [u8],
    iterations: NonZeroU32,
    cipher: &'static EncAlg,
    iv: &'a [u8],
}

impl<'a> Method<'a> {
    fn parse(sealed: &Sealed<'a>) -> Result<Self, KeyFileFault> {
        let other = |what: &str| format!("encrypted with {what}; {CONVERT}");
        if sealed.algorithm != PBES2 {
            return Err(other("a scheme other than PBES2"));
        }
        let (kdf, cipher) = Self::halves(sealed.parameters).ok_or("malformed encryption parameters")?;
        let ((kdf, mut kdf_parameters), (cipher, mut cipher_parameters)) = (kdf, cipher);
        if kdf != PBKDF2 {
            return Err(other("a key derivation other than PBKDF2"));
        }
        let malformed = "malformed PBKDF2 parameters";
        let mut kdf = kdf_parameters.inside(SEQUENCE).ok_or(malformed)?;
        let salt = kdf.one(OCTET_STRING).ok_or(malformed)?.body;
        let iterations =
            kdf.number().filter(|count| *count <= MAX_ITERATIONS).and_then(NonZeroU32::new).ok_or(malformed)?;
        if kdf.peek() == Some(super::der::INTEGER) {
            kdf.number().ok_or(malformed)?;
        }
        let prf = match kdf.inside(SEQUENCE) {
            None => 7,
            Some(mut prf) => {
                let oid = prf.one(OID).ok_or(malformed)?.body;
                oid.strip_prefix(HMAC).and_then(<[u8]>::first).copied().unwrap_or(0)
            }
        };
        let prf = match prf {
            7 => pbkdf2::PBKDF2_HMAC_SHA1,
            9 => pbkdf2::PBKDF2_HMAC_SHA256,
            10 => pbkdf2::PBKDF2_HMAC_SHA384,
            11 => pbkdf2::PBKDF2_HMAC_SHA512,
            _ => return Err(other("PBKDF2 with an unsupported hash")),
        };
        let cipher = match (cipher, cipher.strip_prefix(AES)) {
            (TRIPLE_DES, _) => "3des",
            (_, Some([2])) => "aes128",
            (_, Some([22])) => "aes192",
            (_, Some([42])) => "aes256",
            _ => return Err(other("an unsupported cipher")),
        };
        let cipher = EncAlg::by_name(cipher).ok_or_else(|| other("an unsupported cipher"))?;
        let iv = cipher_parameters.one(OCTET_STRING).ok_or("malformed encryption parameters")?.body;
        Ok(Self { prf, salt, iterations, cipher, iv })
    }

    fn halves(mut parameters: Reader<'a>) -> Option<(Algorithm<'a>, Algorithm<'a>)> {
        let mut inside = parameters.inside(SEQUENCE)?;
        let mut half = || {
            let mut algorithm = inside.inside(SEQUENCE)?;
            Some((algorithm.one(OID)?.body, algorithm))
        };
        Some((half()?, half()?))
    }

    /// The key in the clear; whether it is one shows when it is parsed.
    fn open(&self, passphrase: &[u8], body: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let mut key = Zeroizing::new(vec![0; self.cipher.key_len]);
        pbkdf2::derive(self.prf, self.iterations, self.salt, passphrase, &mut key);
        let (mut plain, mut iv) = (Zeroizing::new(body.to_vec()), self.iv.to_vec());
        V1Cipher::new(self.cipher, &key).ok()?.decrypt_in_place(&mut iv, &mut plain).ok()?;
        let padding = usize::from(*plain.last()?);
        let kept = plain.len().checked_sub(padding).filter(|_| padding > 0)?;
        plain.truncate(kept);
        Some(plain)
    }
}
