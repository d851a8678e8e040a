//! Many IKE endpoints on one thread under simulated time, over links that lose, delay, repeat, reorder,
//! damage and translate.
//!
//! A number decides everything: who is there, how it is configured, what happens and when, what becomes
//! of each datagram. [`run`] plays the story of one number and panics where an invariant breaks; the same number
//! breaks it again. After every step the packet sides of all hosts are compared ([`World`] says what has to
//! hold); when the disturbances stop, both ends of every connection have to come to the same state, and
//! nothing may be left when everything has been terminated.
//!
//! ```text
//! cargo test --release -p weir-sim                           # a few hundred numbers
//! SIM_SEEDS=10000 cargo test --release -p weir-sim --test seeds
//! SIM_SEED=123 cargo test -p weir-sim --test seeds -- --nocapture   # one, told line by line
//! ```

mod dice;
mod draw;
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
