//! Private keys in files: PKCS #8 in the clear or encrypted with a passphrase (PBES2, RFC 8018
//! §6.2), and the forms of single algorithms.

use std::num::NonZeroU32;

use anyhow::{Context as _, anyhow, bail};
use aws_lc_rs::pbkdf2;
use crypto::ike::{PrivateKey, V1Cipher};
use crypto::{EncAlg, random};
use zeroize::Zeroizing;

use super::der::{NULL, OCTET_STRING, OID, Reader, SEQUENCE, element, integer};
use super::pem::{self, Block};

/// Iterations beyond which a key file is refused: minutes of computing.
const MAX_ITERATIONS: u32 = 50_000_000;

/// Iterations of PBKDF2 for a passphrase that is chosen by a person: about a quarter of a second.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(600_000).expect("not zero");

const PBES2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0d];
const PBKDF2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0c];
/// Prefix of rsadsi digestAlgorithm hmacWith…; the last byte selects the hash.
const HMAC: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x02];
/// Prefix of the AES OIDs; the last byte selects key length and mode.
const AES: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x01];
const TRIPLE_DES: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x03, 0x07];

const CONVERT: &str = "convert it with 'openssl pkcs8 -topk8 -v2 aes-256-cbc -v2prf hmacWithSHA256 -in FILE'";

/// Reads the first private key of a file. `passphrases` are tried in their order.
///
/// # Errors
/// The error and the remedy.
pub(super) fn private_key(file: &[u8], passphrases: &[&[u8]]) -> anyhow::Result<PrivateKey> {
    Ok(PrivateKey::from_der(&open(file, passphrases)?)?)
}

/// DER of the first private key of a file: PKCS #8, or the form of one algorithm. `passphrases` are
/// tried in their order.
///
/// # Errors
/// The error and the remedy.
pub fn open(file: &[u8], passphrases: &[&[u8]]) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let blocks = pem::blocks(file)?;
    let is_key = |block: &&Block| block.label.is_empty() || block.label.ends_with("PRIVATE KEY");
    let block = blocks.iter().find(is_key).context("contains no private key")?;
    if block.old_encryption {
        bail!("encrypted with a weak legacy scheme; {CONVERT}");
    }
    if is_pkcs12(&block.der) {
        bail!("a PKCS #12 file; move it into the folder pkcs12");
    }
    let Some(sealed) = Sealed::parse(&block.der) else {
        PrivateKey::from_der(&block.der)?;
        return Ok(block.der.clone());
    };
    if passphrases.is_empty() {
        bail!("encrypted; write its passphrase into a section 'private' of 'secrets'");
    }
    let method = Method::parse(&sealed)?;
    let opened = |passphrase: &&[u8]| method.open(passphrase, sealed.body);
    let found = passphrases.iter().filter_map(opened).find(|der| PrivateKey::from_der(der).is_ok());
    found.context("no passphrase decrypts it, or it contains no usable key")
}

/// Encrypts a private key (PKCS #8) with a passphrase, as PEM: PBES2 with AES-256-CBC and PBKDF2
/// with HMAC-SHA-256.
///
/// # Errors
/// The passphrase is empty.
pub fn seal(key: &[u8], passphrase: &[u8]) -> anyhow::Result<Zeroizing<String>> {
    if passphrase.is_empty() {
        bail!("the passphrase is empty");
    }
    let (algorithm, body) = encrypt(key, passphrase, ITERATIONS)?;
    let sealed = element(SEQUENCE, &[&algorithm, &element(OCTET_STRING, &[&body])]);
    Ok(pem::encode("ENCRYPTED PRIVATE KEY", &sealed))
}

/// AlgorithmIdentifier of PBES2 (RFC 8018 §A.4) and the ciphertext.
pub(super) fn encrypt(plain: &[u8], passphrase: &[u8], iterations: NonZeroU32) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
    let cipher = EncAlg::by_name("aes256").context("AES-256-CBC is not available")?;
    let (mut salt, mut iv) = ([0; 16], [0; 16]);
    random(&mut salt);
    random(&mut iv);
    let mut key = Zeroizing::new(vec![0; cipher.key_len]);
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, &salt, passphrase, &mut key);
    let mut body = padded(plain, cipher.block_len);
    V1Cipher::new(cipher, &key)?.encrypt_in_place(&mut iv.clone(), &mut body)?;
    let prf = element(SEQUENCE, &[&element(OID, &[HMAC, &[9]]), &element(NULL, &[])]);
    let kdf = element(SEQUENCE, &[&element(OCTET_STRING, &[&salt]), &integer(iterations.get()), &prf]);
    let kdf = element(SEQUENCE, &[&element(OID, &[PBKDF2]), &kdf]);
    let cipher = element(SEQUENCE, &[&element(OID, &[AES, &[42]]), &element(OCTET_STRING, &[&iv])]);
    let parameters = element(SEQUENCE, &[&kdf, &cipher]);
    Ok((element(SEQUENCE, &[&element(OID, &[PBES2]), &parameters]), std::mem::take(&mut *body)))
}

/// With the padding of CBC (RFC 8018 §6.1.1): one to `block` bytes that hold their number.
pub(super) fn padded(plain: &[u8], block: usize) -> Zeroizing<Vec<u8>> {
    let padding = block - plain.len() % block;
    let mut body = Zeroizing::new(Vec::with_capacity(plain.len() + padding));
    body.extend_from_slice(plain);
    body.resize(plain.len() + padding, padding as u8);
    body
}

/// Reads a file as one with a private key, with a passphrase and without. For fuzzing: a derivation
/// that takes long is left out, as the owner of a file may have chosen it.
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
    fn parse(sealed: &Sealed<'a>) -> anyhow::Result<Self> {
        let other = |what: &str| anyhow!("encrypted with {what}; {CONVERT}");
        if sealed.algorithm != PBES2 {
            return Err(other("a scheme other than PBES2"));
        }
        let (kdf, cipher) = Self::halves(sealed.parameters).context("malformed encryption parameters")?;
        let ((kdf, mut kdf_parameters), (cipher, mut cipher_parameters)) = (kdf, cipher);
        if kdf != PBKDF2 {
            return Err(other("a key derivation other than PBKDF2"));
        }
        let malformed = "malformed PBKDF2 parameters";
        let mut kdf = kdf_parameters.inside(SEQUENCE).context(malformed)?;
        let salt = kdf.one(OCTET_STRING).context(malformed)?.body;
        let iterations =
            kdf.number().filter(|count| *count <= MAX_ITERATIONS).and_then(NonZeroU32::new).context(malformed)?;
        if kdf.peek() == Some(super::der::INTEGER) {
            kdf.number().context(malformed)?;
        }
        let prf = match kdf.inside(SEQUENCE) {
            None => 7,
            Some(mut prf) => {
                let oid = prf.one(OID).context(malformed)?.body;
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
        let iv = cipher_parameters.one(OCTET_STRING).context("malformed encryption parameters")?.body;
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
