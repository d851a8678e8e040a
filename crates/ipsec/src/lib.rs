#![doc = include_str!("../README.md")]
//!
//! # Design
//!
//! [`Context`] is for one packet at a time. Programs that work on batches call the steps themselves.
//!
//! Outbound: [`prepare_out`] lays out the protected packet and says what to encrypt, an engine
//! does it, [`finish_out`] puts back what had to be hidden from the MAC (AH). Inbound:
//! [`prepare_in`] checks what is cheap, an engine verifies and decrypts, and only with its
//! [`crypto::IcvOk`] does [`finish_in`] move the replay window and release the payload.
//!
//! Nothing here does I/O, reads a clock or spawns. Tables ([`Sad`], [`Spd`]) are built by the
//! control side and only read by packets; what packets change (sequence counters, replay windows,
//! counters) lives in atomics inside the SA, written by the core that owns it.

pub mod ah;
mod context;
mod drop;
pub mod ecn;
pub mod eesp;
pub mod encap;
pub mod esp;
mod fragment;
mod frame;
mod lane;
pub mod pmtu;
pub mod psp;
mod reassembly;
mod recipe;
mod repair;
mod replay;
mod sa;
mod sad;
mod seq;
mod spd;
mod step;
#[cfg(test)]
pub(crate) mod testkit;

pub use context::{Context, HEADROOM, TAILROOM};
pub use crypto;
pub use drop::Drop;
pub use fragment::fragment_v4;
pub use frame::Frame;
pub use reassembly::{Lost, Reassembled, Reassembler};
// The fast path of weir-dataplane: no stable interface.
#[doc(hidden)]
pub use recipe::{InNext, InsideLike, OutNext, OutShape};
pub use replay::{Authentic, ReplayWindow};
pub use sa::{
    Beet, DfPolicy, DscpPolicy, InLane, InProto, InboundSa, Lifetime, Mode, OutLane, OutProto, OutboundSa, Outer, Peer,
    Protocol, SaCommon, SaCounters, SaError, UdpPorts, home,
};
pub use sad::Sad;
pub use seq::{SeqCounter, SeqRange};
pub use spd::{Action, Policy, PolicyId, Spd, TRAP_PER_HOST};
pub use step::{Delivered, PendingIn, PendingOut, finish_in, finish_out, needs_finish, prepare_in, prepare_out};
#[doc(hidden)]
pub use step::{
    PutIn, PutInJob, PutJob, PutOp, finish_in_usual, finishes_usual, prepare_in_any, prepare_in_usual, prepare_out_any,
    prepare_out_usual,
};
pub use wire;
