//! PKCS #12 files (RFC 7292): a private key with its certificates, protected by a password.

use std::num::NonZeroU32;

use anyhow::{Context as _, bail};
use crypto::ike::{Hash, Pkcs12, V1Cipher, open_pkcs12};
use crypto::{EncAlg, random};
use zeroize::Zeroizing;

use super::der::{BMP_STRING, NULL, OCTET_STRING, OID, SEQUENCE, SET, context, element, integer, primitive};
use super::pkcs8;

/// Iterations of the key derivations. Windows refuses files with more than 600,000 in all.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(50_000).expect("not zero");
const SALT_LEN: usize = 16;

const DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x01];
const ENCRYPTED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x06];
/// Prefix of the bags; the last byte is 2 for an encrypted key, 3 for a certificate.
const BAG: [u8; 10] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x0c, 0x0a, 0x01];
const X509_CERTIFICATE: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x16, 0x01];
const FRIENDLY_NAME: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x14];
const LOCAL_KEY_ID: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x15];
/// pbeWithSHAAnd3-KeyTripleDES-CBC.
const SHA1_TRIPLE_DES: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x0c, 0x01, 0x03];
const SHA1: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];
const SHA256: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01];

/// Encryption and MAC of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Protection {
    /// AES-256-CBC by PBES2 and an HMAC with SHA-256, as OpenSSL 3 and Windows 10 write it.
    Aes256,
    /// Triple DES and an HMAC with SHA-1, both by the key derivation of PKCS #12: what Apple's
    /// systems and Windows before version 1709 read. The strength is that of the password, at most
    /// 112 bits.
    TripleDes,
}

/// Reads a file. The passphrases are tried in order, then none.
///
/// # Errors
/// The error and the remedy.
pub fn open(file: &[u8], passphrases: &[&[u8]]) -> anyhow::Result<Pkcs12> {
    let found = passphrases.iter().chain(&[&b""[..]]).find_map(|passphrase| open_pkcs12(file, passphrase));
    match found {
        Some(found) if found.key.is_none() && found.certificates.is_empty() => bail!("contains no certificate"),
        Some(found) => Ok(found),
        None if !passphrases.is_empty() => bail!("no passphrase opens it, or it is not a PKCS #12 file"),
        None => bail!("encrypted, or not a PKCS #12 file; write its passphrase into a section 'pkcs12' of 'secrets'"),
    }
}

/// Makes a file of a private key (PKCS #8), its certificate and those of the CAs above it, DER.
/// `name` is shown by the programs that import it.
///
/// # Errors
/// The password contains control characters, or characters that BMPString does not have.
pub fn seal(
    key: &[u8],
    certificate: &[u8],
    authorities: &[&[u8]],
    name: &str,
    password: &str,
    protection: Protection,
) -> anyhow::Result<Vec<u8>> {
    let password_chars = bmp(password).context("the password has characters outside of Unicode's first plane")?;
    if password.is_empty() || password.chars().any(char::is_control) {
        bail!("the password is empty or has control characters");
    }
    let mut scheme = Scheme { protection, password, password_chars: &password_chars };
    // The same identifier in the bags of the key and of its certificate joins both.
    let attributes = attributes(&Hash::Sha1.digest(&[certificate]), name);
    let mut bags = vec![certificate_bag(certificate, &attributes)];
    bags.extend(authorities.iter().map(|authority| certificate_bag(authority, &[])));
    let certificates = element(SEQUENCE, &[&bags.concat()]);
    let sealed_key = scheme.encrypted_key(key)?;
    let key_bag = bag(2, &sealed_key, &attributes);
    let contents = element(
        SEQUENCE,
        &[&scheme.encrypted_data(&certificates)?, &content(DATA, &octets(&element(SEQUENCE, &[&key_bag])))],
    );
    let mac = scheme.mac(&contents);
    Ok(element(SEQUENCE, &[&integer(3), &content(DATA, &octets(&contents)), &mac]))
}

struct Scheme<'a> {
    protection: Protection,
    password: &'a str,
    password_chars: &'a [u8],
}

impl Scheme<'_> {
    /// EncryptedPrivateKeyInfo.
    fn encrypted_key(&mut self, key: &[u8]) -> anyhow::Result<Vec<u8>> {
        let (algorithm, body) = self.encrypt(key)?;
        Ok(element(SEQUENCE, &[&algorithm, &octets(&body)]))
    }

    /// ContentInfo with EncryptedData (RFC 5652 §8).
    fn encrypted_data(&mut self, plain: &[u8]) -> anyhow::Result<Vec<u8>> {
        let (algorithm, body) = self.encrypt(plain)?;
        let inner = element(SEQUENCE, &[&element(OID, &[DATA]), &algorithm, &element(primitive(0), &[&body])]);
        Ok(content(ENCRYPTED_DATA, &element(SEQUENCE, &[&integer(0), &inner])))
    }

    /// AlgorithmIdentifier and ciphertext.
    fn encrypt(&mut self, plain: &[u8]) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
        if self.protection == Protection::Aes256 {
            return pkcs8::encrypt(plain, self.password.as_bytes(), ITERATIONS);
        }
        let cipher = EncAlg::by_name("3des").context("Triple DES is not available")?;
        let salt = salt();
        let key = Zeroizing::new(derive(Hash::Sha1, 1, self.password_chars, &salt, ITERATIONS, cipher.key_len));
        let mut iv = derive(Hash::Sha1, 2, self.password_chars, &salt, ITERATIONS, cipher.block_len);
        let mut body = pkcs8::padded(plain, cipher.block_len);
        V1Cipher::new(cipher, &key)?.encrypt_in_place(&mut iv, &mut body)?;
        let parameters = element(SEQUENCE, &[&octets(&salt), &integer(ITERATIONS.get())]);
        let algorithm = element(SEQUENCE, &[&element(OID, &[SHA1_TRIPLE_DES]), &parameters]);
        Ok((algorithm, std::mem::take(&mut *body)))
    }

    /// MacData (RFC 7292 §4) over the contents.
    fn mac(&self, contents: &[u8]) -> Vec<u8> {
        let (hash, oid) = match self.protection {
            Protection::Aes256 => (Hash::Sha256, SHA256),
            Protection::TripleDes => (Hash::Sha1, SHA1),
        };
        let salt = salt();
        let key = Zeroizing::new(derive(hash, 3, self.password_chars, &salt, ITERATIONS, hash.len()));
        let algorithm = match hash {
            Hash::Sha1 => aws_lc_rs::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            _ => aws_lc_rs::hmac::HMAC_SHA256,
        };
        let tag = aws_lc_rs::hmac::sign(&aws_lc_rs::hmac::Key::new(algorithm, &key), contents);
        let algorithm = element(SEQUENCE, &[&element(OID, &[oid]), &element(NULL, &[])]);
        let digest = element(SEQUENCE, &[&algorithm, &octets(tag.as_ref())]);
        element(SEQUENCE, &[&digest, &octets(&salt), &integer(ITERATIONS.get())])
    }
}

fn salt() -> [u8; SALT_LEN] {
    let mut salt = [0; SALT_LEN];
    random(&mut salt);
    salt
}

/// Key derivation of PKCS #12 (RFC 7292 §B.2). `purpose` is 1 for a key, 2 for an IV, 3 for a MAC.
fn derive(hash: Hash, purpose: u8, password: &[u8], salt: &[u8], iterations: NonZeroU32, len: usize) -> Vec<u8> {
    // Bytes of a block of both hashes in use.
    const BLOCK: usize = 64;
    let filled = |bytes: &[u8]| -> Vec<u8> {
        let len = bytes.len().div_ceil(BLOCK) * BLOCK;
        bytes.iter().copied().cycle().take(len).collect()
    };
    let diversifier = [purpose; BLOCK];
    let mut input = Zeroizing::new([filled(salt), filled(password)].concat());
    let mut out = Vec::with_capacity(len + hash.len());
    while out.len() < len {
        let mut part = Zeroizing::new(hash.digest(&[&diversifier, &input]));
        for _ in 1..iterations.get() {
            part = Zeroizing::new(hash.digest(&[&part]));
        }
        out.extend_from_slice(&part);
        let addend: Vec<u8> = part.iter().copied().cycle().take(BLOCK).collect();
        for block in input.chunks_mut(BLOCK) {
            // block = block + addend + 1 modulo 2^512, big-endian.
            let mut carry = 1u16;
            for (byte, add) in block.iter_mut().zip(&addend).rev() {
                let sum = u16::from(*byte) + u16::from(*add) + carry;
                (*byte, carry) = (sum as u8, sum >> 8);
            }
        }
    }
    out.truncate(len);
    out
}

/// Two bytes per character, big-endian, with a NUL at the end: how PKCS #12 takes passwords.
fn bmp(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let mut out = Zeroizing::new(Vec::with_capacity(2 * text.len() + 2));
    for character in text.chars() {
        out.extend_from_slice(&u16::try_from(u32::from(character)).ok()?.to_be_bytes());
    }
    out.extend_from_slice(&[0, 0]);
    Some(out)
}

fn attributes(key_id: &[u8], name: &str) -> Vec<u8> {
    let attribute = |oid: &[u8], value: &[u8]| element(SEQUENCE, &[&element(OID, &[oid]), &element(SET, &[value])]);
    let local = attribute(LOCAL_KEY_ID, &octets(key_id));
    // Characters outside of the first plane are left out: the name is for display only.
    let name: Vec<u8> =
        name.encode_utf16().filter(|unit| !(0xd800..0xe000).contains(unit)).flat_map(u16::to_be_bytes).collect();
    let name = attribute(FRIENDLY_NAME, &element(BMP_STRING, &[&name]));
    // DER sorts the elements of a SET OF (X.690 §11.6).
    let mut all = [local, name];
    all.sort();
    element(SET, &[&all.concat()])
}

fn certificate_bag(certificate: &[u8], attributes: &[u8]) -> Vec<u8> {
    let value = element(context(0), &[&octets(certificate)]);
    bag(3, &element(SEQUENCE, &[&element(OID, &[X509_CERTIFICATE]), &value]), attributes)
}

/// SafeBag (RFC 7292 §4.2).
fn bag(kind: u8, value: &[u8], attributes: &[u8]) -> Vec<u8> {
    let oid = element(OID, &[&BAG, &[kind]]);
    element(SEQUENCE, &[&oid, &element(context(0), &[value]), attributes])
}

/// ContentInfo.
fn content(kind: &[u8], value: &[u8]) -> Vec<u8> {
    element(SEQUENCE, &[&element(OID, &[kind]), &element(context(0), &[value])])
}

fn octets(bytes: &[u8]) -> Vec<u8> {
    element(OCTET_STRING, &[bytes])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(name: &str) -> (Vec<u8>, Vec<u8>) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name");
        (key.serialize_der(), params.self_signed(&key).expect("a certificate").der().to_vec())
    }

    #[test]
    fn sealed_files_are_opened_with_their_password_alone() {
        let ((key, own), (_, authority)) = (certificate("alice.example.org"), certificate("ca.example.org"));
        for protection in [Protection::Aes256, Protection::TripleDes] {
            let file = seal(&key, &own, &[&authority], "Alice ä", "päss word", protection).expect("a file");
            let found = open(&file, &[b"wrong", "päss word".as_bytes()]).expect("opens");
            assert!(found.key.expect("a key")[..] == key[..], "{protection:?}");
            assert_eq!(found.certificates, [own.clone(), authority.clone()], "{protection:?}");
            let refusal =
                |passphrases: &[&[u8]], file: &[u8]| open(file, passphrases).err().expect("refused").to_string();
            assert!(refusal(&[b"wrong"], &file).starts_with("no passphrase opens it"));
            assert!(refusal(&[], &file).contains("a section 'pkcs12' of 'secrets'"));
            let mut changed = file.clone();
            let middle = changed.len() / 2;
            changed[middle] ^= 1;
            assert!(open(&changed, &["päss word".as_bytes()]).is_err(), "the MAC covers the contents");
        }
        assert!(seal(&key, &own, &[], "", "", Protection::Aes256).is_err());
        assert!(seal(&key, &own, &[], "", "a\0b", Protection::Aes256).is_err());
        assert!(seal(&key, &own, &[], "", "\u{1f511}", Protection::Aes256).is_err());
    }

    #[test]
    fn keys_are_derived_as_in_the_vectors_of_other_libraries() {
        // Test vectors of GnuTLS and BouncyCastle: password "smeg" and "queeg".
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let one = NonZeroU32::new(1).expect("not zero");
        let many = NonZeroU32::new(1000).expect("not zero");
        let smeg = bmp("smeg").expect("a password");
        let queeg = bmp("queeg").expect("a password");
        let salt = [0x0a, 0x58, 0xcf, 0x64, 0x53, 0x0d, 0x82, 0x3f];
        assert_eq!(
            hex(&derive(Hash::Sha1, 1, &smeg, &salt, one, 24)),
            "8aaae6297b6cb04642ab5b077851284eb7128f1a2a7fbca3"
        );
        assert_eq!(hex(&derive(Hash::Sha1, 2, &smeg, &salt, one, 8)), "79993dfe048d3b76");
        let salt = [0x05, 0xde, 0xc9, 0x59, 0xac, 0xff, 0x72, 0xf7];
        assert_eq!(
            hex(&derive(Hash::Sha1, 1, &queeg, &salt, many, 24)),
            "ed2034e36328830ff09df1e1a07dd357185dac0d4f9eb3d4"
        );
        assert_eq!(hex(&derive(Hash::Sha1, 2, &queeg, &salt, many, 8)), "11dedad7758d4860");
    }
}
