//! Whole gateways under simulated time: configuration text in, packets and SAs out.
//!
//! [`run`] executes the scenario of one seed: sites with a network each, connections between them,
//! reloads, restarts, changes of addresses, commands, traffic, over links that lose, delay, repeat
//! and reorder. After every step [`World`] checks the invariants; when the disturbances stop, every
//! connection must pass packets through exactly the Child SAs that are configured.

mod packet;
mod plan;
mod scenario;
mod site;
mod world;

pub use packet::Probe;
pub use plan::{Link, Plan};
pub use scenario::{Report, run};
pub use site::Site;
pub use world::World;
