//! The daemon and the command line.
//!
//! [`config`] turns a file into specifications, [`tables`] turns those into the tables of the
//! packet path, [`up`] runs them. Everything here is the control side: nothing of it is on the path
//! of a packet.

mod account;
mod audit;
mod border;
mod bypass;
pub mod check;
pub mod cli;
pub mod config;
mod confine;
mod control;
mod device_mtu;
mod doctor;
mod down;
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod host;
mod http;
mod keyed;
mod keying;
mod keylog;
mod log;
mod lookup;
mod metrics;
mod negotiated;
mod netlink;
mod notify;
mod offline;
mod plane;
pub mod psp_keys;
mod rates;
mod ready;
pub mod remote;
mod resolver;
mod routes;
mod scheduling;
#[cfg(feature = "simulation")]
pub mod simulation;
mod state;
mod status;
mod tables;
#[cfg(feature = "top")]
mod top;
mod up;
mod updown;
mod waker;
mod web;
