//! The short form: one message each way in a finished TLS 1.3 session, as defined by fizz, after
//! which the same TCP connection continues under PSP.
//!
//! Tag, length, value. TLS ends after it, and the first data that a program sends under PSP is the
//! [`MARKER`]. Otherwise a truncation by an attacker before the switch would go unnoticed.

use wire::psp::{PspSpi, PspVersion};
use zeroize::Zeroizing;

use super::message::{MessageFault, TrafficKey};

/// ALPN name of this form.
pub const ALPN: &[u8] = b"psp-sa-v0";
/// First bytes of each direction under PSP.
pub const MARKER: &[u8; 8] = b"PSP-ON\r\n";
/// Longest message, in bytes.
pub const MAX_LEN: usize = 2 + SA_LEN;

const SA_LEN: usize = 40;

/// A message of the short form.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Short {
    /// SPI, version and key with which the other end is to send.
    Sa(PspSpi, PspVersion, TrafficKey),
    /// There will be no PSP; the code is the low octet of a [`Code`](super::message::Code).
    Error(u8),
}

impl Short {
    /// Reads a message at the start of `bytes`, with its length; `None` while it is not complete.
    ///
    /// # Errors
    /// [`MessageFault`].
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, MessageFault> {
        let Some((&[tag, len], rest)) = bytes.split_first_chunk() else { return Ok(None) };
        let wanted = match tag {
            0 => 1,
            1 => SA_LEN,
            other => return Err(MessageFault::Type(other)),
        };
        if usize::from(len) != wanted {
            return Err(MessageFault::Length(tag));
        }
        let Some(value) = rest.get(..wanted) else { return Ok(None) };
        if tag == 0 {
            return Ok(Some((Self::Error(value[0]), 3)));
        }
        let (spi, after) = value.split_first_chunk().ok_or(MessageFault::Length(tag))?;
        let spi = PspSpi::try_from(u32::from_be_bytes(*spi)).map_err(|_| MessageFault::Value("SPI"))?;
        let version = PspVersion::try_from(after[0]).ok().filter(|version| version.key_len().is_some());
        let version = version.ok_or(MessageFault::Value("PSP version"))?;
        let key = TrafficKey::new(&after[4..]).ok_or(MessageFault::Length(tag))?;
        Ok(Some((Self::Sa(spi, version, key), MAX_LEN)))
    }

    /// Writes it.
    pub fn emit(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(MAX_LEN));
        match self {
            Self::Sa(spi, version, key) => {
                out.extend([1, SA_LEN as u8]);
                out.extend(spi.to_be_bytes());
                out.extend([version.get(), 0, 0, 0]);
                out.extend(&key.0);
            }
            Self::Error(code) => out.extend([0, 1, *code]),
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> impl Strategy<Value = Short> {
        let spi = any::<u32>().prop_filter_map("low bits", |raw| PspSpi::try_from(raw).ok());
        let sa = (spi, 0u8..4, any::<[u8; 32]>())
            .prop_map(|(spi, version, key)| Short::Sa(spi, PspVersion::try_from(version).unwrap(), TrafficKey(key)));
        prop_oneof![sa, any::<u8>().prop_map(Short::Error)]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_the_marker_after_it_is_left(message in messages()) {
            let bytes = message.emit();
            for cut in 0..bytes.len() {
                prop_assert_eq!(Short::parse(&bytes[..cut]), Ok(None));
            }
            let stream = [&bytes[..], MARKER].concat();
            prop_assert_eq!(Short::parse(&stream), Ok(Some((message, bytes.len()))));
        }
    }

    #[test]
    fn documented_bytes() {
        let key = TrafficKey::new(&[0xaa; 16]).unwrap();
        let sa = Short::Sa(PspSpi::try_from(0x1234_5678).unwrap(), PspVersion::AES_128_GCM, key);
        let hex: String = sa.emit().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, format!("01281234567800000000{}{}", "aa".repeat(16), "00".repeat(16)));
        assert_eq!(Short::Error(7).emit()[..], [0, 1, 7]);
        assert_eq!(Short::parse(&[2, 1]), Err(MessageFault::Type(2)));
        assert_eq!(Short::parse(&[1, 39]), Err(MessageFault::Length(1)));
        assert_eq!(Short::parse(&[0, 2, 1, 1]), Err(MessageFault::Length(0)));
    }
}
