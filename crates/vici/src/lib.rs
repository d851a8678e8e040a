#![doc = include_str!("../README.md")]
//!
//! # Design
//!
//! A connection carries [`packet`]s: a command and its reply, or the registration for an event and the events. What a
//! packet says is a [`message`], a tree of text. The [`server`] only moves packets: each command goes through one bounded
//! queue to the thread that owns the daemon's state, and replies and events come back by a [`server::ViciHandle`] that
//! never waits for a client. [`listing`] writes what is listed in the words and in the order that swanctl's printers
//! rely on. The [`client`] is the other end.
//!
//! Who may open the socket file may do everything; there is no other authorisation in vici.

pub mod client;
mod doorbell;
pub mod listing;
pub mod message;
pub mod names;
pub mod packet;
pub mod server;
mod socket;
mod typed;

pub use client::{Client, ClientError};
pub use message::{Message, Value};
pub use names::{Command, Event};
pub use server::{ClientId, Incoming, Requests, Server, ViciHandle};
pub use socket::group_id;
