//! Campaigns: plan of the measurements, fixed before they start.
//!
//! A campaign is a list of studies; a study is subjects × traffic × directions × further factors,
//! measured in rounds, rounds in sessions. [`mod@format`] reads it, [`schedule`] puts its trials in
//! order, [`run`] starts one process per session, which opens subjects through [`runner`] and
//! appends each trial to the folder ([`store`]). [`crate::report`] reads that folder and nothing
//! else.

pub mod env;
pub mod format;
mod hosts;
mod memory;
mod path;
pub mod preset;
mod progress;
pub mod run;
pub mod runner;
mod sas;
mod scaling;
pub mod schedule;
pub mod search;
mod sessions;
pub mod single;
pub mod store;
pub mod subject;

use std::time::Duration;

pub use format::CampaignError;
pub use preset::Preset;
pub use run::{Finish, RunError};
use serde::Serialize;
pub use single::{Setting, Single};
pub use subject::Subject;

use crate::cores::{Scheduler, Set, Spreading};
use crate::trial::Direction;
pub use crate::trial::Place;
use throughput::search::Goal;

/// Kind of a study; determines how its trials are made and which part of the report shows them.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The same subject against itself: differences that this machine measures between equal
    /// subjects.
    Noise,
    /// Cost of a packet by size: verdict, throughput, model.
    Sizes,
    /// Held-out sizes, in separate processes.
    Validate,
    /// Loss and latency at shares of the capacity.
    Loss,
    /// Throughput of a subject (RFC 9971), loss around it and latency below it.
    Search,
    /// The path beside the engine alone, on the same buffers.
    Path,
    /// Engines on the same operations.
    Engines,
    /// Cost of the stages of a packet.
    Overheads,
    /// Tunnel against transport, with and without UDP.
    Modes,
    /// Bytes on the wire.
    Wire,
    /// Throughput and cores over time.
    Series,
    /// Short TCP transfers between hosts, in drawn order: protocols and sets of SAs compared.
    Transfers,
    /// Replay windows.
    Replay,
    /// Numbers of SAs.
    Sas,
    /// Cores, schedulers, and how SAs and flows are spread over them.
    Scaling,
    /// IKE SAs, rekeyings.
    Keying,
    /// Set-up of sessions by IKEv1, IKEv2 and others, operation by operation, with and without
    /// cryptography.
    Sessions,
    /// Cost by packets in a batch, and with packets that are in no cache.
    Vector,
    /// The cipher alone at every few bytes, for the model's curve.
    Cipher,
}

impl Kind {
    /// All, with the word that a campaign uses.
    pub const ALL: [(&'static str, Self); 19] = [
        ("noise", Self::Noise),
        ("sizes", Self::Sizes),
        ("validate", Self::Validate),
        ("loss", Self::Loss),
        ("search", Self::Search),
        ("path", Self::Path),
        ("engines", Self::Engines),
        ("overheads", Self::Overheads),
        ("modes", Self::Modes),
        ("wire", Self::Wire),
        ("series", Self::Series),
        ("transfers", Self::Transfers),
        ("replay", Self::Replay),
        ("sas", Self::Sas),
        ("scaling", Self::Scaling),
        ("keying", Self::Keying),
        ("sessions", Self::Sessions),
        ("vector", Self::Vector),
        ("cipher", Self::Cipher),
    ];

    /// The word that a campaign uses.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).expect("every kind is in the list").0
    }

    /// Returns whether its packet trials can offer a share of the maximum load of a subject.
    pub fn has_loads(self) -> bool {
        match self {
            Self::Scaling | Self::Search | Self::Keying | Self::Sas | Self::Wire | Self::Cipher => false,
            Self::Overheads | Self::Transfers | Self::Path | Self::Engines | Self::Sessions => false,
            Self::Noise | Self::Sizes | Self::Validate | Self::Loss | Self::Modes => true,
            Self::Series | Self::Replay | Self::Vector => true,
        }
    }
}

/// One study of a campaign.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Study {
    /// Its name, once in a campaign.
    pub name: String,
    /// Kind.
    pub kind: Kind,
    /// Place.
    pub place: Place,
    /// Addresses of the interfaces of the user, `ADDR` or `ADDR@NETNS`, from and to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between: Option<[String; 2]>,
    /// Subjects by name.
    pub subjects: Vec<String>,
    /// Traffic specification, e.g. `1400`, `imix:aaaaaaaddddg`, `64-1500`.
    pub traffic: Vec<String>,
    /// Directions.
    pub directions: Vec<Direction>,
    /// Processes, each with new memory and keys.
    pub sessions: u32,
    /// Rounds in each session; every round measures everything once.
    pub rounds: u32,
    /// Length of a trial.
    pub duration: Duration,
    /// Flows that packets belong to in turn; a study of cores may have several numbers of them,
    /// others have one.
    pub flows: Vec<u32>,
    /// Shares of the capacity that are offered; empty: as much as goes.
    pub loads: Vec<f64>,
    /// Replay windows in packets.
    pub replay: Vec<u32>,
    /// Numbers of SAs.
    pub sas: Vec<u32>,
    /// Numbers of cores; 0 stands for all that there are, in a study of transfers.
    pub cores: Vec<u32>,
    /// Schedulers; empty in other kinds of studies, as are the next two.
    pub schedulers: Vec<Scheduler>,
    /// Kinds of SAs of an outbound policy.
    pub sets: Vec<Set>,
    /// Distributions of flows to cores.
    pub spreads: Vec<Spreading>,
    /// Numbers of packets per batch.
    pub batch: Vec<u32>,
    /// Memory that packets go through in MiB; 0 for one batch again and again, which stays in the
    /// caches.
    pub memory_mib: Vec<u32>,
    /// Delay that each host adds to sent packets, in milliseconds.
    pub delay_ms: u32,
    /// The cable of transfers has the default offloads of veth instead of one packet per frame.
    pub veth: bool,
    /// Goals of a search, in the order in which the report names them; empty in other studies.
    pub goals: Vec<Goal>,
    /// Most seconds of trials in a search.
    pub budget_s: f64,
    /// Trials of a search have exponential gaps between packets instead of even ones.
    pub poisson: bool,
    /// Largest load of a search in packets per second; `None`: above what comes through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pps: Option<f64>,
    /// A search in memory is in real time, with the subject on a thread of its own, instead of
    /// virtual time.
    pub real_time: bool,
}

/// A campaign.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Campaign {
    /// Name; the run is called after it.
    pub name: String,
    /// One sentence for people.
    pub title: String,
    /// Seed of order, sizes and contents.
    pub seed: u64,
    /// Studies in the order in which they run.
    pub studies: Vec<Study>,
}

impl Campaign {
    /// Trials in all.
    pub fn trials(&self) -> u64 {
        self.studies.iter().map(Study::trials).sum()
    }
}

impl Study {
    /// Trials in all.
    pub fn trials(&self) -> u64 {
        schedule::cells(self).len() as u64 * u64::from(self.rounds) * u64::from(self.sessions)
    }
}
