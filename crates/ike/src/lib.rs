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

pub mod config;
mod endpoint;
pub mod identity;
pub mod keymat;
mod narrow;
pub mod output;
pub mod pool;
pub mod proposal;

pub use endpoint::{Endpoint, InitiateError, Settings};
pub use output::{Answer, Output, Question};
