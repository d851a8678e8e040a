//! What all packets of a usual SA have in common, put together once.
//!
//! Most SAs have a counter-based AEAD, and their packets differ in a few fields at known places. A
//! recipe is made with its SA and ends with it; SAs of other kinds have none. Packets that do not
//! fit it use the slow path, which also determines the drop reason.

mod inbound;
mod outbound;
#[cfg(test)]
mod tests;

pub use inbound::{InNext, InsideLike};
pub(crate) use inbound::{InRecipe, Inside, Number};
pub use outbound::{OutNext, OutShape};
pub(crate) use outbound::{OutRecipe, Places};
