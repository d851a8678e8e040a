//! The key service of PSP: how two hosts hand each other SPIs and keys (`docs/psp-key-service.md`).
//!
//! PSP has no handshake of its own: the receiver makes the key and has to bring it to the sender. Here that
//! goes over TLS 1.3 with certificates on both sides. [`message`] is what is said and [`fizz`] its short
//! form, `issuer` the receiver's master keys, `peer` the state of one peer without any I/O, `link` the sockets,
//! `associations` what packets see of it, and `service` brings them together.

mod admission;
pub(crate) mod associations;
pub mod fizz;
pub(crate) mod fuzzing;
mod issuer;
pub(crate) mod link;
pub mod message;
mod peer;
pub(crate) mod service;
#[cfg(test)]
mod tests;
mod tls;

pub(crate) use associations::Traffic;
pub(crate) use peer::{Line, State};
pub(crate) use service::{ChildState, PeerListing, PspService, ROTATION, Setup};
pub(crate) use tls::Identities;
