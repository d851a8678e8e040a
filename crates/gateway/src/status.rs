//! `weir status`: connections, SAs, policies and workers with their counters, requested over the
//! control socket.
//!
//! The command is `status`. Connections, IKE SAs, SAs and policies come as events, `status-entry`,
//! one each, so that any number of them fits; the reply after them has the rest. Names are those of
//! `weir status --json`.

pub(crate) mod connection;
pub(crate) mod details;
mod layout;
pub(crate) mod line;
mod table;
mod view;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vici::client::{Client, ClientError};
use vici::message::Message;
use vici::names::{Command, Event};

use connection::{ConnectionStatus, IkeStatus};
#[cfg(feature = "top")]
pub(crate) use layout::wrapped;
pub(crate) use layout::{printable, width};
pub(crate) use table::{Shown, render};
pub(crate) use table::{scaled, span};
pub(crate) use view::View;

/// Timeout of a response, which is immediate.
const SOON: Duration = Duration::from_secs(10);

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Count {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

/// Sequence numbers of a lane.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Lane {
    /// Session ID of a Sub SA, otherwise 0.
    pub(crate) session: u32,
    /// Outbound: next number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<u64>,
    /// Outbound of manual SAs: numbers below are on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) saved: Option<u64>,
    /// Inbound: highest number seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top: Option<u64>,
}

/// GSO and GRO packets, each with one system call, and their segments.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct SuperStatus {
    pub(crate) calls: u64,
    pub(crate) packets: u64,
}

/// GSO and GRO packets by direction.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct SupersStatus {
    pub(crate) inner_rx: SuperStatus,
    pub(crate) inner_tx: SuperStatus,
    pub(crate) outer_rx: SuperStatus,
    pub(crate) outer_tx: SuperStatus,
}

/// An interface that uses AF_XDP (kernel bypass), and its counters.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct XdpStatus {
    pub(crate) interface: String,
    pub(crate) queues: u64,
    pub(crate) zero_copy: bool,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// Arrived, and lost before they were taken off a queue.
    pub(crate) lost: u64,
}

/// One direction of an SA.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct SaStatus {
    pub(crate) name: String,
    pub(crate) direction: String,
    pub(crate) protocol: String,
    pub(crate) spi: String,
    pub(crate) mode: String,
    pub(crate) suite: String,
    pub(crate) local: String,
    pub(crate) remote: String,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) drops: BTreeMap<String, u64>,
    pub(crate) unknown_options: u64,
    pub(crate) expired: bool,
    /// Outbound: largest inner packet in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inner_mtu: Option<u32>,
    pub(crate) lanes: Vec<Lane>,
    /// Outbound, with a constant rate: its packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) paced: Option<PacedStatus>,
}

/// Outer packets of an SA with a constant rate, those of its predecessors included.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct PacedStatus {
    pub(crate) rate_kbps: u32,
    pub(crate) packet_size: u16,
    /// Packets that leave together, and time from one such burst to the next.
    pub(crate) burst: u64,
    pub(crate) interval_ns: u64,
    /// False while the SA cannot send, for instance because of the path MTU.
    pub(crate) running: bool,
    pub(crate) packets: u64,
    /// Those without inner packets.
    pub(crate) padding: u64,
    /// Those that were sent after the next burst was due.
    pub(crate) late: u64,
    /// Times that the schedule was started, the first time included.
    pub(crate) restarts: u64,
    pub(crate) queued_bytes: u64,
}

/// One policy.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct PolicyStatus {
    pub(crate) name: String,
    pub(crate) selectors: Vec<String>,
    pub(crate) action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sa: Option<String>,
}

/// Counters of table look-ups.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct LookupsStatus {
    pub(crate) outbound_flows: LookupStatus,
    pub(crate) inbound_flows: LookupStatus,
    pub(crate) sad: LookupStatus,
}

/// Counters of look-ups in one table.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct LookupStatus {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) collisions: u64,
}

/// Counters of the data plane.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct CoreStatus {
    pub(crate) inner_rx: Count,
    pub(crate) inner_tx: Count,
    pub(crate) outer_rx: Count,
    pub(crate) outer_tx: Count,
    pub(crate) bypassed: u64,
    pub(crate) audit_lost: u64,
    pub(crate) batches: u64,
    pub(crate) supers: SupersStatus,
    pub(crate) wrong_core: u64,
    pub(crate) blocked: u64,
    pub(crate) input_waits: u64,
    #[serde(default)]
    pub(crate) offloaded: u64,
    #[serde(default)]
    pub(crate) engines_gone: u64,
    /// Outer packets with a constant rate, those without inner packets, and late ones. In the total
    /// only.
    #[serde(default)]
    pub(crate) paced: u64,
    #[serde(default)]
    pub(crate) paced_padding: u64,
    #[serde(default)]
    pub(crate) paced_late: u64,
    pub(crate) look_ups: LookupsStatus,
    pub(crate) drops: BTreeMap<String, u64>,
}

/// Clear text that the nftables guard dropped since the start.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct GuardStatus {
    /// Arrived although a policy protects it.
    pub(crate) clear_in: Count,
    /// Arrived from outside with a source of this side.
    pub(crate) spoofed_in: Count,
    /// Would have left although a policy protects it.
    pub(crate) clear_out: Count,
}

/// The reply.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Head {
    pub(crate) version: String,
    pub(crate) uptime_s: f64,
    pub(crate) healthy: bool,
    pub(crate) engine: String,
    pub(crate) engine_why: String,
    /// Scheduler of the workers, and the reason of its choice.
    pub(crate) scheduler: String,
    #[serde(default)]
    pub(crate) scheduler_why: String,
    /// Crypto threads of each worker; 0 without the scheduler `async`.
    #[serde(default)]
    pub(crate) crypto_threads: usize,
    /// Threads, each by the numbers of the workers that it takes care of.
    pub(crate) threads: Vec<String>,
    /// CPU time of each thread since its start.
    #[serde(default)]
    pub(crate) threads_cpu_s: Vec<f64>,
    /// Interfaces that use AF_XDP.
    pub(crate) xdp: Vec<XdpStatus>,
    /// Clear text that the guard dropped; absent with `guard = none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) guard: Option<GuardStatus>,
    pub(crate) total: CoreStatus,
    pub(crate) cores: Vec<CoreStatus>,
}

/// Subject of an event.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Entry {
    Connection(ConnectionStatus),
    /// An IKE SA of the connection before it.
    Ike(IkeStatus),
    Sa(SaStatus),
    Policy(PolicyStatus),
}

/// Everything.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Status {
    #[serde(flatten)]
    pub(crate) head: Head,
    pub(crate) connections: Vec<ConnectionStatus>,
    pub(crate) sas: Vec<SaStatus>,
    pub(crate) policies: Vec<PolicyStatus>,
}

/// Requests the status of a running gateway.
///
/// # Errors
/// Error with the path and a remedy.
pub(crate) fn ask(path: &Path) -> Result<Status, ClientError> {
    let mut client = Client::connect(path)?;
    let (entries, reply) = client.list(Command::Status, Event::StatusEntry, &Message::new(), Some(SOON))?;
    reply.outcome().map_err(|error| ClientError::Malformed(error.0))?;
    Status::of(&entries, &reply).map_err(|error| ClientError::Malformed(error.to_string()))
}

impl Status {
    fn of(entries: &[Message], reply: &Message) -> Result<Self, serde::de::value::Error> {
        let head = reply.read()?;
        let mut connections: Vec<ConnectionStatus> = Vec::new();
        let (mut sas, mut policies) = (Vec::new(), Vec::new());
        for entry in entries {
            match entry.read()? {
                Entry::Connection(connection) => connections.push(connection),
                Entry::Ike(sa) => connections.iter_mut().last().map_or((), |connection| connection.ike_sas.push(sa)),
                Entry::Sa(sa) => sas.push(sa),
                Entry::Policy(policy) => policies.push(policy),
            }
        }
        Self::sort(&mut sas);
        Ok(Self { head, connections, sas, policies })
    }

    /// By name, outbound SAs first.
    fn sort(sas: &mut [SaStatus]) {
        sas.sort_by(|a, b| a.name.cmp(&b.name).then(b.direction.cmp(&a.direction)));
    }

    /// Returns whether the data plane works and every connection is up that should be.
    pub(crate) fn is_healthy(&self) -> bool {
        self.head.healthy && !self.connections.iter().any(ConnectionStatus::is_missing)
    }
}

#[cfg(test)]
pub(crate) mod example {
    use super::connection::{ChildStatus, Kind, State};
    use super::*;

    fn manual() -> ConnectionStatus {
        ConnectionStatus {
            name: "a-long-name-of-an-sa".into(),
            kind: Kind::Manual,
            state: State::Up,
            wanted: true,
            missing: vec![],
            remote_addrs: vec!["2001:db8:1234:5678:9abc:def0:1234:5679".into()],
            remote_id: None,
            reason: None,
            ike_sas: vec![],
        }
    }

    fn lake() -> ConnectionStatus {
        ConnectionStatus {
            name: "lake".into(),
            kind: Kind::IkeV2,
            state: State::Down,
            missing: vec!["water".into()],
            remote_addrs: vec!["192.0.2.9".into(), "2001:db8:1234:5678:9abc:def0:1234:5678".into()],
            remote_id: Some("C=CH, O=A long name of an organization, OU=Research, CN=lake.example".into()),
            reason: Some("192.0.2.9:500 does not answer".into()),
            ..manual()
        }
    }

    fn site() -> ConnectionStatus {
        ConnectionStatus {
            name: "site".into(),
            kind: Kind::IkeV2,
            remote_addrs: vec!["192.0.2.2".into()],
            ike_sas: vec![ike_sa("site")],
            ..manual()
        }
    }

    pub(crate) fn ike_sa(connection: &str) -> IkeStatus {
        IkeStatus {
            connection: connection.into(),
            unique_id: 7,
            state: "ESTABLISHED".into(),
            initiator: true,
            local: "192.0.2.1:4500".into(),
            remote: "192.0.2.2:4500".into(),
            local_id: "sun.example".into(),
            remote_id: "moon.example".into(),
            remote_eap_id: None,
            nat_local: false,
            nat_remote: true,
            suite: Some("AES_GCM_16-256/PRF_HMAC_SHA2_384/ECP_384".into()),
            established_s: Some(3700),
            rekey_s: Some(9000),
            reauth_s: None,
            unanswered: None,
            virtual_addresses: vec!["10.3.0.1".into()],
            packets_in: 12_000,
            bytes_in: 12_345_678,
            packets_out: 1,
            bytes_out: 1_100_000_000,
            drops: 3,
            children: vec![ChildStatus {
                name: "net".into(),
                unique_id: 9,
                reqid: 1,
                state: "INSTALLED".into(),
                mode: "tunnel".into(),
                protocol: "EESP".into(),
                suite: "aes256gcm16".into(),
                encap: false,
                spi_in: "0xc7c8a412".into(),
                spi_out: "0x0c81a2b3".into(),
                cpu: None,
                sub_sas: 2,
                local_ts: vec!["10.1.0.0/16".into(), "2001:db8:1234:5678::/64".into()],
                remote_ts: vec!["10.2.0.0/16".into(), "2001:db8:9abc:def0::/64".into()],
                packets_in: 12,
                bytes_in: 12,
                packets_out: 1,
                bytes_out: 1,
                drops: 3,
                use_in_s: Some(2),
                use_out_s: None,
                age_s: 300,
                rekey_s: Some(2400),
                life_s: Some(3000),
            }],
        }
    }

    pub(crate) fn status() -> Status {
        let core = || CoreStatus {
            inner_rx: Count { packets: u64::MAX / 1000, bytes: u64::MAX },
            inner_tx: Count::default(),
            outer_rx: Count::default(),
            outer_tx: Count::default(),
            bypassed: 0,
            audit_lost: 0,
            batches: 0,
            supers: SupersStatus {
                inner_rx: SuperStatus { calls: u64::MAX / 1000, packets: u64::MAX / 30 },
                ..SupersStatus::default()
            },
            wrong_core: 7,
            blocked: 0,
            input_waits: 0,
            offloaded: 0,
            engines_gone: 0,
            paced: 0,
            paced_padding: 0,
            paced_late: 0,
            look_ups: LookupsStatus {
                sad: LookupStatus { hits: 3, misses: 2, collisions: 1 },
                ..LookupsStatus::default()
            },
            drops: BTreeMap::from([("bad_icv".into(), 3), ("seq_unsaved".into(), 12_345_678)]),
        };
        let sa = |direction: &str| SaStatus {
            name: "a-long-name-of-an-sa".into(),
            direction: direction.into(),
            protocol: "eesp".into(),
            spi: "0x80001001".into(),
            mode: "transport".into(),
            suite: "aes256gcm16".into(),
            local: "2001:db8:1234:5678:9abc:def0:1234:5678".into(),
            remote: "2001:db8:1234:5678:9abc:def0:1234:5679".into(),
            packets: 123_456_789_012,
            bytes: 99_999_999_999_999,
            drops: BTreeMap::from([("bad_icv".into(), 3)]),
            unknown_options: 0,
            expired: true,
            inner_mtu: None,
            lanes: Vec::new(),
            paced: None,
        };
        Status {
            head: Head {
                version: "0.1.0".into(),
                uptime_s: 90_061.0,
                healthy: true,
                engine: "aws_lc".into(),
                engine_why: "AWS-LC; required by the configuration".into(),
                scheduler: "pipeline".into(),
                scheduler_why: "required by the configuration".into(),
                crypto_threads: 0,
                threads: vec!["0 1".into(), "2".into()],
                threads_cpu_s: vec![1.5, 0.25],
                guard: Some(GuardStatus { clear_in: Count { packets: 3, bytes: 252 }, ..GuardStatus::default() }),
                xdp: vec![XdpStatus {
                    interface: "fifteen-letters".into(),
                    queues: 64,
                    zero_copy: true,
                    received: u64::MAX / 1000,
                    sent: u64::MAX / 1000,
                    lost: 3,
                }],
                total: core(),
                cores: vec![core()],
            },
            connections: vec![manual(), lake(), site()],
            sas: vec![sa("out"), sa("in")],
            policies: vec![PolicyStatus {
                name: "sites".into(),
                selectors: vec!["10.1.0.0/16[tcp/80] === 2001:db8:1234:5678::/64[tcp]".into()],
                action: "protect".into(),
                sa: Some("a-long-name-of-an-sa".into()),
            }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_survives_json_and_the_control_socket() {
        let json = |status: &Status| serde_json::to_string(status).unwrap();
        let want = json(&example::status());
        let again: Status = serde_json::from_str(&want).unwrap();
        assert_eq!(json(&again), want);
        let Status { head, connections, sas, policies } = again;
        let reply = Message::of(&head);
        let sas = sas.into_iter().rev().map(Entry::Sa);
        let connections = connections.into_iter().flat_map(view::connection_entries);
        let entries: Vec<Message> =
            connections.chain(sas).chain(policies.into_iter().map(Entry::Policy)).map(|e| Message::of(&e)).collect();
        assert_eq!(entries[4].text("sa.direction"), Some("in"));
        assert_eq!(json(&Status::of(&entries, &reply).unwrap()), want);
        let why = Status::of(&entries, &Message::new()).unwrap_err().to_string();
        assert!(why.contains("missing field"), "{why}");
    }
}
