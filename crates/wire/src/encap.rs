//! What a UDP payload on the IPsec port is (RFC 3948 §2.2, EESP draft on UDP encapsulation).

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
