#![doc = include_str!("../README.md")]
//!
//! # Design
//!
//! A connection carries [`packet`]s: a command and its reply, or the registration for an event and
//! the events. The body of a packet is a [`message`], a tree of text. The [`server`] only moves
//! packets: each command goes through one bounded queue to the thread that owns the daemon's state,
//! and replies and events return by a [`server::ViciHandle`], which never waits for a client.
//! [`listing`] formats listings with the names and order that swanctl requires. The [`client`] is
//! the counterpart.
//!
//! Access to the socket file permits everything; vici has no other authorisation.

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
