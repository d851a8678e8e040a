//! The daemon and the command line.
//!
//! [`config`] turns a file into specifications, [`tables`] turns those into what packets see,
//! [`up`] runs it. Everything here is the control side: nothing of it is on the path of a packet.

mod account;
mod audit;
mod border;
mod bypass;
mod check;
pub mod cli;
pub mod config;
mod confine;
mod control;
#[doc(hidden)]
pub mod credentials;
mod device_mtu;
mod doctor;
mod down;
#[doc(hidden)]
pub mod fuzzing;
mod guard;
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
mod ready;
pub mod remote;
mod resolver;
mod routes;
mod state;
mod status;
mod tables;
mod tls;
mod up;
mod updown;
