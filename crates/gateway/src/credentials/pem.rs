//! Files of certificates and keys: DER, or any number of PEM blocks (RFC 7468).

use zeroize::Zeroizing;

use super::der::is_one_sequence;

/// Blocks of one file beyond which it is refused: bundles of all public CAs have fewer.
const MAX_BLOCKS: usize = 4096;

/// One object of a file.
pub(super) struct Block {
    /// `CERTIFICATE`, `PRIVATE KEY`, …; empty for a file that is DER.
    pub(super) label: String,
    /// Encrypted in the format used before PKCS #8 (`Proc-Type: 4,ENCRYPTED`).
    pub(super) old_encryption: bool,
    /// The bytes; zeroed on drop because they may be a key.
    pub(super) der: Zeroizing<Vec<u8>>,
}

/// The objects of a file.
///
/// # Errors
/// What is wrong and what to do, without any of the contents.
pub(super) fn blocks(bytes: &[u8]) -> Result<Vec<Block>, String> {
    if is_one_sequence(bytes) {
        let der = Zeroizing::new(bytes.to_vec());
        return Ok(vec![Block { label: String::new(), old_encryption: false, der }]);
    }
    let neither = "neither DER nor PEM; write the output of 'openssl x509' or 'openssl pkey'";
    let mut rest = std::str::from_utf8(bytes).map_err(|_| neither)?;
    let mut blocks = Vec::new();
    while let Some((_, after)) = rest.split_once("-----BEGIN ") {
        let (label, after) = after.split_once("-----").ok_or("a PEM block starts with a truncated line")?;
        let (body, after) = after
            .split_once(&format!("-----END {label}-----"))
            .ok_or_else(|| format!("the PEM block {label} has no end; is the file complete?"))?;
        if blocks.len() == MAX_BLOCKS {
            return Err(format!("more than {MAX_BLOCKS} PEM blocks; split the file"));
        }
        let encrypted = body.contains("Proc-Type:") && body.contains("ENCRYPTED");
        // Headers end with an empty line.
        let text = match body.contains(':') {
            true => body.split_once("\n\n").or_else(|| body.split_once("\r\n\r\n")).map_or("", |(_, text)| text),
            false => body,
        };
        let der = from_base64(text).ok_or_else(|| format!("the PEM block {label} is not base64"))?;
        blocks.push(Block { label: label.to_owned(), old_encryption: encrypted, der });
        rest = after;
    }
    if blocks.is_empty() { Err(neither.into()) } else { Ok(blocks) }
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
