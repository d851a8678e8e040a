//! Header templates: the fast path of SAs with a counter-based AEAD.
//!
//! The packets of such an SA differ in a few fields at known offsets. A template is created with
//! its SA and lives as long; SAs of other kinds have none. Packets that do not fit it use the slow
//! path, which also determines the drop reason.

mod inbound;
mod outbound;
#[cfg(test)]
mod tests;

pub use inbound::{InLayout, InNumbers, InOwn, InnerFormat, InnerLayout, OuterLayout};
pub(crate) use inbound::{InTemplate, SeqField};
pub(crate) use outbound::FieldOffsets;
pub use outbound::{OutLayout, OutStamp, OutTemplate};
