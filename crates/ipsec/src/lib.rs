#![doc = include_str!("../README.md")]
//!
//! # Design
//!
//! [`Context`] is for one packet at a time. Programs that work on batches call the steps
//! themselves.
//!
//! Outbound: [`prepare_out`] builds the protected packet and the operation, an engine executes it,
//! and [`finish_out`] restores the mutable header fields that AH zeroes for the MAC. Inbound:
//! [`prepare_in`] performs the cheap checks, an engine verifies and decrypts, and only with its
//! [`crypto::IcvOk`] can [`finish_in`] advance the replay window and release the payload.
//!
//! Nothing here does I/O, reads a clock or spawns. Tables ([`Sad`], [`Spd`]) are built by the
//! control side and are read-only for packets. Per-packet state (sequence counters, replay windows,
//! counters) is in atomics inside the SA, written by the core that owns it.

pub mod aggfrag;
pub mod ah;
mod checksum_fixup;
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
mod proto;
pub mod psp;
mod reassembly;
mod replay;
mod sa;
mod sad;
mod seq;
mod spd;
mod step;
mod template;
#[cfg(test)]
pub(crate) mod testkit;

pub use context::{Context, HEADROOM, TAILROOM};
pub use crypto;
pub use drop::DropReason;
pub use fragment::fragment_v4;
pub use frame::Frame;
pub use proto::{InProto, OutProto, Protocol, owner_of};
pub use reassembly::{Reassembled, Reassembler, ReassemblyDrops};
// The fast path of weir-dataplane: no stable interface.
pub use replay::{Authentic, ReplayWindow};
pub use sa::{
    Beet, DfPolicy, DscpPolicy, InLane, InboundSa, LaneTraffic, Lifetime, Mode, OutLane, OutboundSa, Outer, Peer,
    SaCommon, SaCounters, SaError, UdpPorts, owner_core,
};
pub use sad::{Sad, SadIndex};
#[doc(hidden)]
pub use sad::{SpiPlace, SpiSet};
pub use seq::{SeqCounter, SeqRange};
#[doc(hidden)]
pub use spd::SearchStep;
pub use spd::{Action, Policy, PolicyId, PolicyRef, Spd, TRAP_PER_HOST};
pub use step::{Delivered, PendingIn, PendingOut, finish_in, finish_out, needs_finish, prepare_in, prepare_out};
#[doc(hidden)]
pub use step::{InPacket, InResult, OutPacket, prepare_in_slow, prepare_out_slow};
#[doc(hidden)]
pub use template::{
    InLayout, InNumbers, InOwn, InnerFormat, InnerLayout, OutLayout, OutStamp, OutTemplate, OuterLayout,
};
pub use wire;
