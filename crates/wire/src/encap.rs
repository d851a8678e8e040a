//! Classification of UDP payloads on the IPsec port (RFC 3948 §2.2, EESP draft on UDP
//! encapsulation).

/// The kinds of datagram that share UDP port 4500.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NatT {
    /// One byte 0xff: ignore.
    Keepalive,
    /// Four zero bytes, an IKE message follows them.
    Ike,
    /// An ESP packet starts at the first byte.
    Esp,
    /// An EESP packet starts at the first byte.
    Eesp,
    /// None of these.
    Unknown,
}

/// The four zero bytes before an IKE message on port 4500 (RFC 3948 §2.2).
pub const NON_ESP_MARKER: [u8; 4] = [0; 4];

/// The payload of a NAT keepalive (RFC 3948 §2.3).
pub const KEEPALIVE: [u8; 1] = [0xff];

/// Classifies `payload`. If EESP is disabled, a first bit of 1 belongs to an ordinary ESP SPI; if
/// it is enabled, ESP SPIs assigned to peers must have a top bit of 0.
///
/// Only the first four bytes are read. The caller must check that the packet is complete and, for
/// EESP, that its version is known.
#[inline]
pub fn classify(payload: &[u8], eesp_enabled: bool) -> NatT {
    // The keepalive must be tested first, because its first bit is set, as in EESP.
    let Some(head) = payload.first_chunk::<4>() else {
        return if payload == KEEPALIVE { NatT::Keepalive } else { NatT::Unknown };
    };
    match u32::from_be_bytes(*head) {
        0 => NatT::Ike,
        1..=0xff => NatT::Unknown, // reserved SPIs; 2 is WESP (RFC 5840), which is not spoken here
        0x8000_0000.. if eesp_enabled => NatT::Eesp,
        _ => NatT::Esp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_from_the_others() {
        for (payload, with_eesp, without) in [
            (&b"\xff"[..], NatT::Keepalive, NatT::Keepalive),
            (b"", NatT::Unknown, NatT::Unknown),
            (b"\xfe", NatT::Unknown, NatT::Unknown),
            (b"\xff\xff", NatT::Unknown, NatT::Unknown),
            (b"\x80\0\0", NatT::Unknown, NatT::Unknown),
            (b"\0\0\0\0", NatT::Ike, NatT::Ike),
            (b"\0\0\0\0abc", NatT::Ike, NatT::Ike),
            (b"\0\0\0\x01", NatT::Unknown, NatT::Unknown),
            (b"\0\0\0\x02", NatT::Unknown, NatT::Unknown),
            (b"\0\0\0\xff", NatT::Unknown, NatT::Unknown),
            (b"\0\0\x01\0", NatT::Esp, NatT::Esp),
            (b"\x7f\xff\xff\xff", NatT::Esp, NatT::Esp),
            (b"\x80\0\0\0\x11\x22\x33\x44", NatT::Eesp, NatT::Esp),
            (b"\xff\xff\xff\xff", NatT::Eesp, NatT::Esp),
        ] {
            assert_eq!(classify(payload, true), with_eesp, "{payload:02x?}");
            assert_eq!(classify(payload, false), without, "{payload:02x?}");
        }
    }
}
