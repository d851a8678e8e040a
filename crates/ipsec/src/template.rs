//! Header templates: the fast path of SAs whose packets differ in a few fields.
//!
//! These fields are at known offsets: those of a counter-based AEAD in any protocol, and of ESP
//! with a separate MAC. A template is created with its SA and lives as long; SAs of other kinds
//! have none. Packets that do not fit it use the slow path, which also determines the drop reason.

mod inbound;
mod outbound;
#[cfg(test)]
mod tests;

pub use inbound::{InLayout, InNumbers, InOwn, InnerFormat, InnerLayout, OuterLayout};
pub(crate) use inbound::{InTemplate, IvField, SeqField};
pub(crate) use outbound::FieldOffsets;
pub use outbound::{OutLayout, OutStamp, OutTemplate};

/// Authenticated data of the packets of a template.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Covered {
    /// An AEAD: a span of fixed length that starts with the header.
    Header,
    /// An AEAD: SPI and 64-bit sequence number, which are not contiguous in the packet and must be
    /// built separately.
    Inline,
    /// A separate MAC: from the header to the ICV.
    ToIcv,
    /// The same, and then the high half of the sequence number.
    ToIcvThenHigh,
}
