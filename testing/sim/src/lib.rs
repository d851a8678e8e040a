//! Many IKE endpoints on one thread under simulated time, over links that lose, delay, repeat,
//! reorder, damage and translate.
//!
//! A seed determines everything: hosts, configuration, events, and the fate of each datagram.
//! [`run`] executes the scenario of one seed and panics if an invariant is violated; the same seed
//! reproduces it. After every step the SAs of all hosts are compared ([`World`] defines the
//! invariants); when the disturbances stop, both hosts of every connection must reach the same
//! state, and no state may remain when everything has been terminated.
//!
//! ```text
//! cargo test --release -p weir-sim                           # a few hundred numbers
//! SIM_SEEDS=10000 cargo test --release -p weir-sim --test seeds
//! SIM_SEED=123 cargo test -p weir-sim --test seeds -- --nocapture   # one, with its story
//! ```

mod dice;
mod draw;
pub mod gateways;
mod host;
mod net;
mod plane;
mod rest;
mod story;
mod world;

pub use dice::Dice;
pub use draw::{Edge, Plan};
pub use host::Host;
pub use net::Link;
pub use plane::Plane;
pub use story::{Summary, run};
pub use world::World;
