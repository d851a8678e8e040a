//! `weir up --log-secrets`: keys for Wireshark, so that a capture can be decrypted for debugging.
//!
//! Writes three tables in Wireshark's format, `esp_sa`, `ikev2_decryption_table` and
//! `ikev1_decryption_table`, with one line per SA or direction. With `WIRESHARK_CONFIG_DIR` set to
//! the directory, tshark and Wireshark read them directly. These files decrypt the traffic: only
//! their owner can read them, they are written on request only, and a warning is printed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crypto::{CipherKind, EncAlg, IntegAlg, IntegKind};
use ike::config::Version;
use ike::output::{ChildSa, IkeSecrets, IkeSpis, SimplexSa};
use ike::proposal::{ChildProtocol, ChildSuite, IkeSuite};
use zeroize::Zeroizing;

/// Maximum size of one table, in bytes: 150,000 SAs. Further SAs are not logged, which is reported
/// once.
const MAX_BYTES: u64 = 64 << 20;
const ESP: &str = "esp_sa";
const IKE: &str = "ikev2_decryption_table";
const IKE_V1: &str = "ikev1_decryption_table";
/// Without these, Wireshark looks at no table.
const PREFERENCES: &str = "esp.enable_encryption_decode: TRUE\nesp.enable_authentication_check: TRUE\n";

/// The tables.
pub(crate) struct KeyLog {
    esp: Table,
    ike: Table,
    ike_v1: Table,
}

impl KeyLog {
    /// Opens the tables in `folder`, which is made when it is missing, and warns. The folder is not
    /// needed afterwards.
    ///
    /// # Errors
    /// Errors of the file system, and files that belong to another user or are readable by others.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let explained = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("--log-secrets {}: {error}; choose a directory that belongs to this user", folder.display()),
            )
        };
        let open = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            let [esp, ike, ike_v1] = [ESP, IKE, IKE_V1].map(|name| Table::open(&folder.join(name)));
            let log = Self { esp: esp?, ike: ike?, ike_v1: ike_v1? };
            let mut preferences = Table::open(&folder.join("preferences"))?;
            if preferences.bytes == 0 {
                preferences.line(PREFERENCES.trim_end());
            }
            Ok(log)
        };
        let log = open().map_err(explained)?;
        let warning = format!(
            "KEYS ARE WRITTEN TO {0}: {0}/{ESP}, {0}/{IKE} and {0}/{IKE_V1} decrypt all traffic of their SAs, now and \
             later. For debugging only; remove the files when done",
            folder.display()
        );
        crate::log::say(tracing::Level::WARN, format_args!("weir: WARNING: {warning}"));
        tracing::warn!(target: "control", "{warning}");
        Ok(log)
    }

    /// Both halves of a Child SA.
    pub(crate) fn child(&mut self, child: &ChildSa) {
        let v6 = child.path.remote.is_ipv6();
        for half in [&child.inbound, &child.outbound] {
            self.esp.line(&esp_line(v6, &child.suite, half));
        }
    }

    /// An IKE SA, again when its keys are replaced within a handshake.
    pub(crate) fn ike(&mut self, secrets: &IkeSecrets) {
        match secrets.version {
            Version::V1 => self.ike_v1.line(&ike_v1_line(secrets)),
            Version::V2 => self.ike.line(&ike_line(secrets)),
        }
    }
}

/// A file that lines are added to.
struct Table {
    file: File,
    bytes: u64,
    reported: bool,
}

impl Table {
    fn open(path: &Path) -> io::Result<Self> {
        // Neither a symbolic link nor a pipe.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let file =
            File::options().create(true).append(true).mode(0o600).custom_flags(flags.bits() as i32).open(path)?;
        let meta = file.metadata()?;
        let own = meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw() && meta.nlink() == 1;
        if !own {
            let why = format!("{} does not belong to this user, or has other hard links", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        Ok(Self { file, bytes: meta.len(), reported: false })
    }

    /// One write per line, so that two writers do not mix theirs.
    fn line(&mut self, line: &str) {
        let mut whole = Zeroizing::new(String::with_capacity(line.len() + 1));
        whole.push_str(line);
        whole.push('\n');
        let written = if self.bytes + whole.len() as u64 > MAX_BYTES {
            Err(io::Error::new(io::ErrorKind::FileTooLarge, "the table is full"))
        } else {
            self.file.write_all(whole.as_bytes()).inspect_err(|_| {
                // No half of a line: the tables would not be read. With a second writer there the
                // end is not ours.
                if self.file.metadata().is_ok_and(|meta| meta.len() < self.bytes + whole.len() as u64) {
                    let _ = self.file.set_len(self.bytes);
                }
            })
        };
        match written {
            Ok(()) => (self.bytes, self.reported) = (self.bytes + whole.len() as u64, false),
            Err(error) if !self.reported => {
                self.reported = true;
                tracing::warn!(target: "control", "--log-secrets: {error}; further keys may be missing");
            }
            Err(_) => (),
        }
    }
}

/// A row of `esp_sa`. Addresses are wildcards: a capture after a NAT, or after a MOBIKE update, has
/// others. The columns are those of Wireshark 4.0, which has none for 64-bit numbers: it decrypts
/// such packets and reports their ICV as wrong.
fn esp_line(v6: bool, suite: &ChildSuite, half: &SimplexSa) -> Zeroizing<String> {
    let spi = half.spi.get();
    let names = esp_names(suite);
    let Some((enc, integ)) = names else {
        return Zeroizing::new(format!("# SPI {spi:#010x}: {}", unknown(suite.enc, suite.integ)));
    };
    let family = if v6 { "IPv6" } else { "IPv4" };
    let (enc_key, integ_key) = (key("0x", &half.enc), key("0x", &half.integ));
    let mut line = Zeroizing::new(String::with_capacity(512));
    let parts: [&str; 8] = [family, "*", "*", &format!("{spi:#010x}"), enc, &enc_key, integ, &integ_key];
    parts.iter().for_each(|part| quoted(part, &mut line));
    line
}

/// A row of `ikev1_decryption_table`: the initiator's cookie and the key of the cipher. The
/// algorithm is in the capture.
fn ike_v1_line(secrets: &IkeSecrets) -> Zeroizing<String> {
    let mut line = key("", &secrets.spis.initiator.0);
    line.push(',');
    line.push_str(&key("", &secrets.sk_e.0));
    line
}

/// A row of `ikev2_decryption_table`.
fn ike_line(secrets: &IkeSecrets) -> Zeroizing<String> {
    let suite = &secrets.suite;
    let IkeSpis { initiator, responder } = secrets.spis;
    let (spi_i, spi_r) = (key("", &initiator.0), key("", &responder.0));
    let Some((enc, integ)) = ike_names(suite) else {
        return Zeroizing::new(format!("# SPIs {} {}: {}", *spi_i, *spi_r, unknown(Some(suite.enc), suite.integ)));
    };
    let mut line = Zeroizing::new(String::with_capacity(1024));
    let add = |text: &str, line: &mut String| {
        line.push_str(if line.is_empty() { "" } else { "," });
        line.push_str(text);
    };
    for bytes in [&initiator.0[..], &responder.0, &secrets.sk_e.0, &secrets.sk_e.1] {
        add(&key("", bytes), &mut line);
    }
    quoted(enc, &mut line);
    add(&key("", &secrets.sk_a.0), &mut line);
    add(&key("", &secrets.sk_a.1), &mut line);
    quoted(integ, &mut line);
    line
}

fn quoted(text: &str, line: &mut String) {
    line.push_str(if line.is_empty() { "\"" } else { ",\"" });
    line.push_str(text);
    line.push('"');
}

/// Bytes in hexadecimal; nothing at all when there are none.
fn key(prefix: &str, bytes: &[u8]) -> Zeroizing<String> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = Zeroizing::new(String::with_capacity(prefix.len() + 2 * bytes.len()));
    if !bytes.is_empty() {
        text.push_str(prefix);
    }
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

fn unknown(enc: Option<&EncAlg>, integ: Option<&IntegAlg>) -> String {
    let names: Vec<&str> = enc.map(|enc| enc.name).into_iter().chain(integ.map(|integ| integ.name)).collect();
    format!("{} is not decrypted by Wireshark 4.0", names.join("-"))
}

/// Names that Wireshark has for the algorithms of a Child SA; `None` when it cannot open packets of
/// it.
fn esp_names(suite: &ChildSuite) -> Option<(&'static str, &'static str)> {
    let enc = suite.enc.filter(|enc| suite.protocol == ChildProtocol::Esp && !enc.implicit_iv)?;
    let cipher = match (enc.kind, enc.icv_len) {
        (CipherKind::AesGcm, 8) => "AES-GCM with 8 octet ICV [RFC4106]",
        (CipherKind::AesGcm, 12) => "AES-GCM with 12 octet ICV [RFC4106]",
        (CipherKind::AesGcm, 16) => "AES-GCM with 16 octet ICV [RFC4106]",
        (CipherKind::AesCbc, _) => "AES-CBC [RFC3602]",
        (CipherKind::AesCtr, _) => "AES-CTR [RFC3686]",
        (CipherKind::TripleDesCbc, _) => "TripleDES-CBC [RFC2451]",
        (CipherKind::Null, _) => "NULL",
        _ => return None,
    };
    let Some(integ) = suite.integ else { return Some((cipher, "NULL")) };
    let mac = match integ.kind {
        IntegKind::HmacMd5 => "HMAC-MD5-96 [RFC2403]",
        IntegKind::HmacSha1 => "HMAC-SHA-1-96 [RFC2404]",
        IntegKind::HmacSha256 if integ.icv_len == 12 => "HMAC-SHA-256-96 [draft-ietf-ipsec-ciph-sha-256-00]",
        IntegKind::HmacSha256 => "HMAC-SHA-256-128 [RFC4868]",
        IntegKind::HmacSha384 => "HMAC-SHA-384-192 [RFC4868]",
        IntegKind::HmacSha512 => "HMAC-SHA-512-256 [RFC4868]",
        // The length is known; the content is not checked.
        IntegKind::AesXcbc | IntegKind::AesCmac => "ANY 96 bit authentication [no checking]",
    };
    Some((cipher, mac))
}

/// Likewise for an IKE SA; its names include the key length.
fn ike_names(suite: &IkeSuite) -> Option<(&'static str, &'static str)> {
    let enc = match (suite.enc.kind, suite.enc.key_len, suite.enc.icv_len) {
        (CipherKind::AesCbc, 16, _) => "AES-CBC-128 [RFC3602]",
        (CipherKind::AesCbc, 24, _) => "AES-CBC-192 [RFC3602]",
        (CipherKind::AesCbc, 32, _) => "AES-CBC-256 [RFC3602]",
        (CipherKind::AesCtr, 16, _) => "AES-CTR-128 [RFC5930]",
        (CipherKind::AesCtr, 24, _) => "AES-CTR-192 [RFC5930]",
        (CipherKind::AesCtr, 32, _) => "AES-CTR-256 [RFC5930]",
        (CipherKind::AesGcm, 16, 8) => "AES-GCM-128 with 8 octet ICV [RFC5282]",
        (CipherKind::AesGcm, 16, 12) => "AES-GCM-128 with 12 octet ICV [RFC5282]",
        (CipherKind::AesGcm, 16, 16) => "AES-GCM-128 with 16 octet ICV [RFC5282]",
        (CipherKind::AesGcm, 24, 8) => "AES-GCM-192 with 8 octet ICV [RFC5282]",
        (CipherKind::AesGcm, 24, 12) => "AES-GCM-192 with 12 octet ICV [RFC5282]",
        (CipherKind::AesGcm, 24, 16) => "AES-GCM-192 with 16 octet ICV [RFC5282]",
        (CipherKind::AesGcm, 32, 8) => "AES-GCM-256 with 8 octet ICV [RFC5282]",
        (CipherKind::AesGcm, 32, 12) => "AES-GCM-256 with 12 octet ICV [RFC5282]",
        (CipherKind::AesGcm, 32, 16) => "AES-GCM-256 with 16 octet ICV [RFC5282]",
        (CipherKind::AesCcm, 16, 8) => "AES-CCM-128 with 8 octet ICV [RFC5282]",
        (CipherKind::AesCcm, 16, 12) => "AES-CCM-128 with 12 octet ICV [RFC5282]",
        (CipherKind::AesCcm, 16, 16) => "AES-CCM-128 with 16 octet ICV [RFC5282]",
        (CipherKind::AesCcm, 24, 8) => "AES-CCM-192 with 8 octet ICV [RFC5282]",
        (CipherKind::AesCcm, 24, 12) => "AES-CCM-192 with 12 octet ICV [RFC5282]",
        (CipherKind::AesCcm, 24, 16) => "AES-CCM-192 with 16 octet ICV [RFC5282]",
        (CipherKind::AesCcm, 32, 8) => "AES-CCM-256 with 8 octet ICV [RFC5282]",
        (CipherKind::AesCcm, 32, 12) => "AES-CCM-256 with 12 octet ICV [RFC5282]",
        (CipherKind::AesCcm, 32, 16) => "AES-CCM-256 with 16 octet ICV [RFC5282]",
        (CipherKind::TripleDesCbc, ..) => "3DES [RFC2451]",
        _ => return None,
    };
    let integ = match suite.integ.map(|integ| integ.kind) {
        None => "NONE [RFC4306]",
        Some(IntegKind::HmacMd5) => "HMAC_MD5_96 [RFC2403]",
        Some(IntegKind::HmacSha1) => "HMAC_SHA1_96 [RFC2404]",
        Some(IntegKind::HmacSha256) => "HMAC_SHA2_256_128 [RFC4868]",
        Some(IntegKind::HmacSha384) => "HMAC_SHA2_384_192 [RFC4868]",
        Some(IntegKind::HmacSha512) => "HMAC_SHA2_512_256 [RFC4868]",
        Some(_) => return None,
    };
    Some((enc, integ))
}

#[cfg(test)]
mod tests;
