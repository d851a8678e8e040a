#![doc = include_str!("../README.md")]
//!
//! # Design
//!
//! Bytes, time and randomness come in as arguments ([`Endpoint::handle_datagram`],
//! [`Endpoint::handle_timeout`], [`Endpoint::handle_credentials`] and the commands); one ordered
//! queue of [`Output`] goes out ([`Endpoint::poll`]). This crate opens no socket, reads no clock
//! and holds no private key, shared secret or password: the caller holds them and answers
//! [`CredentialRequest`]s.
//!
//! Life of an IKE SA: `handshake::Handshake` (IKE_SA_INIT to IKE_AUTH) turns into
//! `sa::Established`, the only type that can create, rekey or delete Child SAs. So a peer that has
//! not authenticated cannot reach those functions. IKEv1 has separate state machines, in `v1`.

mod child;
mod claims;
pub mod config;
mod context;
mod cookie;
mod endpoint;
mod error;
mod exchange;
mod handshake;
pub mod hosts;
pub mod identity;
pub mod keymat;
mod narrow;
mod nat;
pub mod output;
pub mod pool;
pub mod proposal;
mod sa;
pub mod selectors;
mod task;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod v1;

pub use crypto;
pub use endpoint::{ChildView, Endpoint, IkeState, IkeView, InitiateError, Settings};
pub use exchange::Unanswered;
pub use output::{CredentialRequest, CredentialResponse, Output};
pub use rand_core;
pub use wire;

/// Names and meanings of everything that [`output::Event::Count`] counts.
pub fn counters() -> impl Iterator<Item = (&'static str, &'static str)> {
    handshake::counters::COUNTERS.iter().chain(task::counters::COUNTERS).chain(v1::counters::COUNTERS).copied()
}
