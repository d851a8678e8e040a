//! One host that speaks IKE.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_core::CryptoRng;

use crate::config::{Connection, PoolConfig};
use crate::output::{Answer, ChildId, IkeId, Output, Ticket};

/// Limits and habits of an endpoint.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Half-open IKE SAs above which initiators need a cookie (RFC 7296 §2.6).
    pub cookie_threshold: usize,
    /// Likewise from one address.
    pub cookie_threshold_per_address: usize,
    /// Half-open IKE SAs from one address above which IKE_SA_INIT is dropped.
    pub block_threshold: usize,
    /// Half-open IKE SAs in all above which IKE_SA_INIT is dropped; about 2 KiB each.
    pub half_open_max: usize,
    /// How long an IKE SA may stay half open.
    pub half_open_timeout: Duration,
    /// IKE SAs in all; about 40 KiB each at worst.
    pub ike_sas_max: usize,
    /// Interval of NAT keepalives; zero is never.
    pub keepalive: Duration,
    /// Largest datagram that is sent unfragmented over IPv4 and IPv6, in bytes with IP and UDP headers.
    pub fragment_size: usize,
    /// Bytes of a message put together from fragments.
    pub reassembly_max: usize,
    /// How long the inbound half of a replaced Child SA still receives.
    pub old_inbound: Duration,
    /// Algorithms that RFC 8247 rules out may be used.
    pub allow_legacy: bool,
    /// Numbers that no registry has fixed.
    pub code_points: wire::registry::CodePoints,
}

/// Why nothing was started.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InitiateError {
    /// No such connection or child.
    #[error("no connection '{0}' is loaded")]
    NoSuchConnection(String),
    /// No such child.
    #[error("no child '{0}' is loaded")]
    NoSuchChild(String),
    /// The peer has no address to send to.
    #[error("connection '{0}' names no single remote address: it can only respond")]
    NoRemoteAddress(String),
    /// The limit of IKE SAs is reached.
    #[error("there are {0} IKE SAs, which is the limit")]
    TooMany(usize),
}

/// An IKE endpoint: every IKE SA of one host.
pub struct Endpoint<R> {
    rng: R,
    settings: Settings,
}
