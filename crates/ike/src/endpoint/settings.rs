//! Limits and habits of an endpoint.

use std::time::Duration;

/// Limits and habits of an endpoint.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Settings {
    /// Half-open IKE SAs above which initiators need a cookie (RFC 7296 §2.6).
    pub cookie_threshold: usize,
    /// Likewise from one address.
    pub cookie_threshold_per_address: usize,
    /// Half-open IKE SAs from one address above which IKE_SA_INIT is dropped.
    pub block_threshold: usize,
    /// Half-open IKE SAs in all above which IKE_SA_INIT is dropped; about 3 KiB each, 10 KiB at
    /// worst.
    pub half_open_max: usize,
    /// Timeout of a half-open IKE SA.
    pub half_open_timeout: Duration,
    /// IKE SAs in all; about 40 KiB each at worst.
    pub ike_sas_max: usize,
    /// Of these, IKE SAs that peers of one identity may start; with `unique = no` they are not
    /// replaced.
    pub ike_sas_per_identity_max: usize,
    /// Interval of NAT keepalives; zero is never.
    pub keepalive: Duration,
    /// Largest datagram that is sent unfragmented over IPv4 and IPv6, in bytes with IP and UDP
    /// headers.
    pub fragment_size: usize,
    /// Bytes of a message put together from fragments.
    pub reassembly_max: usize,
    /// Grace period of the inbound half of a replaced Child SA.
    pub old_inbound: Duration,
    /// IKEv1: aggressive mode with shared keys is answered. Every host gets a hash of the key on
    /// request, so it should be used only where peers support nothing else.
    pub aggressive_mode_psk: bool,
    /// IKEv1: announces Unity, as a client with `vips` and as a server with `pools`. A client
    /// without it does not read the attributes of Unity.
    pub cisco_unity: bool,
    /// Algorithms that RFC 8247 rules out may be used.
    pub allow_legacy: bool,
    /// Keys of IKE SAs come out as [`Output::Secrets`](crate::Output::Secrets).
    pub log_secrets: bool,
    /// Numbers that no registry has fixed.
    pub code_points: wire::registry::CodePoints,
}

impl Default for Settings {
    /// The thresholds of strongSwan; room for ten thousand half-open and a hundred thousand IKE
    /// SAs.
    fn default() -> Self {
        Self {
            cookie_threshold: 30,
            cookie_threshold_per_address: 3,
            // Above `cookie_threshold_per_address`. Otherwise requests with a spoofed address would
            // block its owner without a single cookie.
            block_threshold: 5,
            half_open_max: 10_000,
            half_open_timeout: Duration::from_secs(30),
            ike_sas_max: 100_000,
            ike_sas_per_identity_max: 10_000,
            keepalive: Duration::from_secs(20),
            // The minimum link MTU of IPv6 (RFC 8200 §5): fragments of this size pass every IPv6
            // path without IP fragmentation.
            fragment_size: 1280,
            reassembly_max: 65_536,
            old_inbound: Duration::from_secs(5),
            aggressive_mode_psk: false,
            cisco_unity: false,
            allow_legacy: false,
            log_secrets: false,
            code_points: wire::registry::CodePoints::default(),
        }
    }
}

/// Reason why no negotiation was started.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
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
    /// As many requests as can wait do wait for one attempt to reach the peer.
    #[error("too many requests already wait for connection '{0}'")]
    QueueFull(String),
    /// [`Endpoint::drain`](super::Endpoint::drain) was called.
    #[error("the gateway is being drained: it starts no SA until it is restarted")]
    Draining,
}
