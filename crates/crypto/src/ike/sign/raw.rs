//! Minimal DER for keys and signatures: the position of the key's bits, and ECDSA signatures with
//! and without their sequence.

/// Splits the first element with this tag off: its contents, and what follows. Definite, shortest
/// lengths below 64 KiB only, as DER has them.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (len, rest) = match (first, rest) {
        (0..=0x7f, _) => (usize::from(*first), rest),
        (0x81, [len @ 0x80..=0xff, rest @ ..]) => (usize::from(*len), rest),
        (0x82, [high @ 1..=0xff, low, rest @ ..]) => (usize::from(*high) << 8 | usize::from(*low), rest),
        _ => return None,
    };
    rest.split_at_checked(len).filter(|_| *found == tag)
}

/// Offset of the key in SubjectPublicKeyInfo: after the algorithm and the count of unused bits,
/// which is 0.
pub(super) fn key_bits_at(spki: &[u8]) -> Option<usize> {
    let (body, []) = element(spki, 0x30)? else { return None };
    let (_, rest) = element(body, 0x30)?;
    let ([0, bits @ ..], []) = element(rest, 0x03)? else { return None };
    Some(spki.len() - bits.len())
}

/// r and s at full length (RFC 4754 §7) as a DER sequence. `None` when the length is not exactly
/// that.
pub(super) fn to_der(raw: &[u8], coordinate_len: usize) -> Option<Vec<u8>> {
    if raw.len() != 2 * coordinate_len {
        return None;
    }
    let (r, s) = raw.split_at(coordinate_len);
    let body = [integer(r), integer(s)].concat();
    // Two integers of at most 67 bytes and their headers: at most 138.
    let header: &[u8] = if body.len() < 0x80 { &[0x30] } else { &[0x30, 0x81] };
    Some([header, &[body.len() as u8], &body].concat())
}

/// An unsigned number as a DER INTEGER: no leading zeros, but one where the first bit is set.
fn integer(number: &[u8]) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count().min(number.len() - 1);
    let digits = &number[zeros..];
    let sign = if digits[0] & 0x80 == 0 { &[][..] } else { &[0] };
    [&[0x02, (sign.len() + digits.len()) as u8], sign, digits].concat()
}

/// The reverse of [`to_der`].
pub(super) fn from_der(der: &[u8], coordinate_len: usize) -> Option<Vec<u8>> {
    let (body, []) = element(der, 0x30)? else { return None };
    let (r, rest) = element(body, 0x02)?;
    let (s, []) = element(rest, 0x02)? else { return None };
    let mut raw = vec![0; 2 * coordinate_len];
    for (number, place) in [r, s].into_iter().zip(raw.chunks_mut(coordinate_len)) {
        let digits = number.strip_prefix(&[0]).unwrap_or(number);
        let at = place.len().checked_sub(digits.len())?;
        place[at..].copy_from_slice(digits);
    }
    Some(raw)
}
