//! The key service of PSP: how two hosts hand each other SPIs and keys (`docs/psp-key-service.md`).
//!
//! PSP defines no handshake: the receiver derives the key and must deliver it to the sender. Here
//! this uses TLS 1.3 with certificates on both sides. [`message`] defines the messages and [`fizz`]
//! the short form, `issuer` holds the receiver's master keys, `peer` is the state machine of one
//! peer without I/O, `link` the sockets, `associations` the state for the data plane, and `service`
//! combines them.

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
