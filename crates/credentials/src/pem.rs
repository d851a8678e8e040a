//! Files of certificates and keys: DER, or any number of PEM blocks (RFC 7468).

use anyhow::{Context as _, anyhow, bail};
use zeroize::Zeroizing;

use super::der::is_one_sequence;

/// Blocks of one file beyond which it is refused: bundles of all public CAs have fewer.
const MAX_BLOCKS: usize = 4096;

/// One object of a file.
pub struct Block {
    /// `CERTIFICATE`, `PRIVATE KEY`, …; empty for a file that is DER.
    pub label: String,
    /// Encrypted in the format used before PKCS #8 (`Proc-Type: 4,ENCRYPTED`).
    pub old_encryption: bool,
    /// The bytes; zeroed on drop because they may be a key.
    pub der: Zeroizing<Vec<u8>>,
}

/// The objects of a file.
///
/// # Errors
/// The error and the remedy, without any of the contents.
pub fn blocks(bytes: &[u8]) -> anyhow::Result<Vec<Block>> {
    if is_one_sequence(bytes) {
        let der = Zeroizing::new(bytes.to_vec());
        return Ok(vec![Block { label: String::new(), old_encryption: false, der }]);
    }
    let neither = || anyhow!("neither DER nor PEM; write the output of 'openssl x509' or 'openssl pkey'");
    let mut rest = std::str::from_utf8(bytes).map_err(|_| neither())?;
    let mut blocks = Vec::new();
    while let Some((_, after)) = rest.split_once("-----BEGIN ") {
        let (label, after) = after.split_once("-----").context("a PEM block starts with a truncated line")?;
        let (body, after) = after
            .split_once(&format!("-----END {label}-----"))
            .with_context(|| format!("the PEM block {label} has no end; is the file complete?"))?;
        if blocks.len() == MAX_BLOCKS {
            bail!("more than {MAX_BLOCKS} PEM blocks; split the file");
        }
        let encrypted = body.contains("Proc-Type:") && body.contains("ENCRYPTED");
        // Headers end with an empty line.
        let text = match body.contains(':') {
            true => body.split_once("\n\n").or_else(|| body.split_once("\r\n\r\n")).map_or("", |(_, text)| text),
            false => body,
        };
        let der = from_base64(text).with_context(|| format!("the PEM block {label} is not base64"))?;
        blocks.push(Block { label: label.to_owned(), old_encryption: encrypted, der });
        rest = after;
    }
    if blocks.is_empty() { Err(neither()) } else { Ok(blocks) }
}

/// A PEM block; zeroed on drop because it may be a key.
pub fn encode(label: &str, der: &[u8]) -> Zeroizing<String> {
    /// Bytes of a line (RFC 7468 §2).
    const LINE: usize = 48;
    // Reserve the full size at once: a string that grows leaves copies of the key in freed memory.
    let size = der.len().div_ceil(3) * 4 + der.len().div_ceil(LINE) + 2 * label.len() + 40;
    let mut text = Zeroizing::new(String::with_capacity(size));
    for part in ["-----BEGIN ", label, "-----\n"] {
        text.push_str(part);
    }
    for line in der.chunks(LINE) {
        push_base64(line, &mut text);
        text.push('\n');
    }
    for part in ["-----END ", label, "-----\n"] {
        text.push_str(part);
    }
    text
}

/// Base64 (RFC 4648 §4) in one line; zeroed on drop.
pub fn base64(bytes: &[u8]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(bytes.len().div_ceil(3) * 4));
    push_base64(bytes, &mut text);
    text
}

fn push_base64(bytes: &[u8], text: &mut String) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0u32, |bits, at| bits << 8 | u32::from(group.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= group.len() { char::from(digit) } else { '=' });
        }
    }
}

/// Base64 (RFC 4648 §4) with white space anywhere.
fn from_base64(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    // Reserve the full size at once: a buffer that grows leaves copies of the key in freed memory.
    let mut out = Zeroizing::new(Vec::with_capacity(text.len() / 4 * 3 + 3));
    let (mut bits, mut count, mut padding) = (0u32, 0usize, 0usize);
    for c in text.bytes().filter(|c| !c.is_ascii_whitespace()) {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'=' => {
                padding += 1;
                continue;
            }
            _ => return None,
        };
        if padding > 0 {
            return None;
        }
        (bits, count) = (bits << 6 | u32::from(value), count + 1);
        if count.is_multiple_of(4) {
            out.extend_from_slice(&bits.to_be_bytes()[1..]);
        }
    }
    match (count % 4, padding) {
        (0, 0) => {}
        (2, 2) => out.push((bits >> 4) as u8),
        (3, 1) => out.extend_from_slice(&[(bits >> 10) as u8, (bits >> 2) as u8]),
        _ => return None,
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_block_is_read_again() {
        for len in [0, 1, 2, 3, 47, 48, 49, 96, 200] {
            let der: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            let text = encode("PRIVATE KEY", &der);
            assert!(text.capacity() >= text.len() && text.lines().all(|line| line.len() <= 64), "{}", *text);
            let found = blocks(text.as_bytes()).expect("a block");
            assert_eq!((&*found[0].label, &found[0].der[..]), ("PRIVATE KEY", &der[..]), "{len}");
        }
        assert_eq!(*base64(b"any carnal pleas"), "YW55IGNhcm5hbCBwbGVhcw==");
        assert_eq!(*base64(b"any carnal pleasu"), "YW55IGNhcm5hbCBwbGVhc3U=");
    }

    #[test]
    fn several_blocks_and_what_stands_between() {
        let text =
            b"bag\n-----BEGIN A B-----\nMAMC\r\nAQU=\n-----END A B-----\nx\n-----BEGIN C-----\nMAA=\n-----END C-----";
        let found = blocks(text).expect("two blocks");
        assert_eq!((&*found[0].label, &found[0].der[..]), ("A B", &[0x30, 3, 2, 1, 5][..]));
        assert_eq!((&*found[1].label, &found[1].der[..]), ("C", &[0x30, 0][..]));
        assert_eq!(blocks(&[0x30, 0]).expect("DER")[0].label, "");
        let old = b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: X\n\nMAA=\n-----END RSA PRIVATE KEY-----";
        let found = blocks(old).expect("a block");
        assert!(found[0].old_encryption && found[0].der.len() == 2);
        for bad in [
            &b""[..],
            b"text",
            &[0x30, 1],
            b"-----BEGIN A-----\nMAA=\n-----END B-----",
            b"-----BEGIN A-----\nM%A=\n-----END A-----",
            b"-----BEGIN A-----\nMAA\n-----END A-----",
            b"-----BEGIN A-----\nMA=A\n-----END A-----",
            b"-----BEGIN A",
        ] {
            assert!(blocks(bad).is_err());
        }
    }
}
