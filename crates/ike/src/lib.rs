//! IKEv2 (RFC 7296) and IKEv1 as a state machine without I/O.
//!
//! Bytes, time and randomness come in as arguments ([`Endpoint::handle_datagram`],
//! [`Endpoint::handle_timeout`], [`Endpoint::answer`] and the commands); one ordered queue of
//! [`Output`] goes out ([`Endpoint::poll`]). Nothing here opens a socket, reads a clock, knows a
//! private key, a shared secret or a password: whoever holds those answers [`Question`]s.
//!
//! Life of an IKE SA: `sa::Handshake` (IKE_SA_INIT to IKE_AUTH) turns into `sa::Established`, the
//! only type that can create, rekey or delete Child SAs. What was not authenticated cannot reach
//! those functions.

mod child;
pub mod config;
mod context;
mod cookie;
mod endpoint;
mod exchange;
mod handshake;
pub mod identity;
pub mod keymat;
mod narrow;
mod nat;
pub mod output;
pub mod pool;
pub mod proposal;
mod sa;
mod task;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

pub use endpoint::{ChildView, Endpoint, IkeState, IkeView, InitiateError, Settings};
pub use output::{Answer, Output, Question};

/// Names and meanings of everything that [`output::Event::Count`] counts.
pub fn counters() -> impl Iterator<Item = (&'static str, &'static str)> {
    handshake::counters::COUNTERS.iter().chain(task::counters::COUNTERS).copied()
}
