//! Cost of a session: what the set-up of an IKE SA and its Child SA takes, operation by operation,
//! with and without cryptography, for the study of paper 001 (Shue and others).
//!
//! Both endpoints run in one thread, and datagrams pass in buffers of memory ([`link`]). They are
//! those of `weir-lab-ike`: the sources of `weir-ike`, compiled against a provider with a stopwatch
//! ([`rows`] names what it saw), which can also compute nothing: the paper's skeleton. Credentials
//! are keys that both ends have, as in the paper: there is no certificate path.

mod host;
pub(crate) mod link;
mod rows;
mod subject;
mod trial;

pub(crate) use link::NoSession;
pub(crate) use rows::ROWS;
pub(crate) use subject::{Mode, Subject};
pub(crate) use trial::{ROUND_TRIPS_MS, Setups};
