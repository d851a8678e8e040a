#![doc = include_str!("../README.md")]
//!
//! # Design
//!
//! All input is untrusted. Nothing allocates, reads a clock or panics; only the error for a
//! selector in a configuration holds text, and the writers of captures and of IKE messages append
//! to the caller's buffer. A value of a type is the result of a check, so that no later code
//! repeats it: an [`Spi`] is not reserved, an [`IpPacket`] has lengths that agree.

pub mod aggfrag;
pub mod ah;
pub mod checksum;
pub mod eesp;
pub mod encap;
mod error;
pub mod esp;
pub mod flow;
pub mod icmp;
pub mod ike;
pub mod ip;
mod number;
pub mod pcap;
pub mod psp;
pub mod registry;
pub mod selector;
pub mod udp;

use zerocopy::{Immutable, IntoBytes};

pub use error::ParseError;
pub use flow::FlowKey;
// The fast path of weir-dataplane: no stable interface.
#[doc(hidden)]
pub use flow::{PlainFlow, PlainHeader, PlainTemplate};
pub use ip::{Fragment, IpPacket};
pub use number::{ReservedSpi, SeqNo, SessionId, Spi};
pub use registry::IpProto;
pub use selector::{AddrRange, PortRange, Selector, SelectorError, TrafficSelector};

/// Writes `header`, called `what`, to the start of `out`.
#[inline]
fn emit_prefix<T: IntoBytes + Immutable>(what: &'static str, header: &T, out: &mut [u8]) -> Result<(), ParseError> {
    let have = out.len();
    header.write_to_prefix(out).map_err(|_| ParseError::Truncated { what, need: size_of::<T>(), have })
}
