//! Connections, their IKE SAs and Child SAs: the first block of `weir status`.

use serde::{Deserialize, Serialize};

/// State of a connection.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// All children that should be up are up.
    Up,
    /// Some of the children that should be up are missing.
    Partial,
    /// The negotiation is in progress.
    Connecting,
    /// No child that should be up is up, and no negotiation is in progress.
    Down,
    /// The first packet starts the negotiation.
    Trapped,
    /// The peer or `weir initiate` starts the negotiation.
    Idle,
}

impl State {
    /// Word in the table.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Partial => "PARTIAL",
            Self::Connecting => "connecting",
            Self::Down => "DOWN",
            Self::Trapped => "trapped",
            Self::Idle => "idle",
        }
    }
}

/// Source of a connection's keys.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// IKEv1.
    IkeV1,
    /// IKEv2.
    IkeV2,
    /// Key service of PSP.
    Psp,
    /// Manual keys.
    Manual,
}

/// A connection, or a manual SA, which has the name of its SA and no IKE SAs.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ConnectionStatus {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) state: State,
    /// It should be up: `start_action = start`, a configured peer of the PSP key service, or manual
    /// keys.
    pub(crate) wanted: bool,
    /// Children that should be up and are not.
    pub(crate) missing: Vec<String>,
    /// Addresses of the peer in the configuration.
    pub(crate) remote_addrs: Vec<String>,
    /// Identity of the peer in the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remote_id: Option<String>,
    /// Last failure since it was up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    pub(crate) ike_sas: Vec<IkeStatus>,
}

impl ConnectionStatus {
    /// Returns whether it should be up and is not.
    pub(crate) fn is_missing(&self) -> bool {
        self.wanted && self.state != State::Up
    }
}

/// An IKE SA, or a peer of the PSP key service.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct IkeStatus {
    pub(crate) connection: String,
    pub(crate) unique_id: u32,
    /// State as vici names it.
    pub(crate) state: String,
    pub(crate) initiator: bool,
    /// Address and port.
    pub(crate) local: String,
    /// Address and port.
    pub(crate) remote: String,
    pub(crate) local_id: String,
    pub(crate) remote_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remote_eap_id: Option<String>,
    /// This host is behind a NAT.
    pub(crate) nat_local: bool,
    /// The peer is behind a NAT.
    pub(crate) nat_remote: bool,
    /// Algorithms of the IKE SA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) suite: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) established_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rekey_s: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reauth_s: Option<i64>,
    /// Request without a response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unanswered: Option<UnansweredStatus>,
    /// Virtual addresses of this host and of the peer.
    pub(crate) virtual_addresses: Vec<String>,
    /// This and the next four fields: totals since authentication, with Child SAs that have ended.
    pub(crate) packets_in: u64,
    pub(crate) bytes_in: u64,
    pub(crate) packets_out: u64,
    pub(crate) bytes_out: u64,
    pub(crate) drops: u64,
    pub(crate) children: Vec<ChildStatus>,
}

/// A request that was sent more than once.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct UnansweredStatus {
    pub(crate) since_s: u64,
    pub(crate) attempts: u32,
    pub(crate) attempts_max: u32,
}

/// A Child SA, or a pair of associations of PSP.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ChildStatus {
    pub(crate) name: String,
    pub(crate) unique_id: u32,
    pub(crate) reqid: u32,
    /// State as vici names it.
    pub(crate) state: String,
    pub(crate) mode: String,
    pub(crate) protocol: String,
    /// Algorithms.
    pub(crate) suite: String,
    /// UDP encapsulation.
    pub(crate) encap: bool,
    pub(crate) spi_in: String,
    pub(crate) spi_out: String,
    /// CPU that the SA is for (RFC 9611).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<u32>,
    /// Sub SAs of EESP in each direction; 0 for others.
    pub(crate) sub_sas: u32,
    pub(crate) local_ts: Vec<String>,
    pub(crate) remote_ts: Vec<String>,
    pub(crate) packets_in: u64,
    pub(crate) bytes_in: u64,
    pub(crate) packets_out: u64,
    pub(crate) bytes_out: u64,
    pub(crate) drops: u64,
    /// Seconds since the last inbound packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) use_in_s: Option<u64>,
    /// Seconds since the last outbound packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) use_out_s: Option<u64>,
    pub(crate) age_s: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rekey_s: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) life_s: Option<i64>,
}
