//! Systems under test between two hosts: Weir, plain forwarding, and programs by others. Each is
//! defined once.
//!
//! A [`Subject`] describes itself ([`Subject::protocol`], [`Subject::mode`], [`Subject::suite`]),
//! checks its requirements on this machine ([`Subject::availability`]), and starts on both hosts of
//! a [`World`]. A running subject ([`Started`]) reports its state, its counters and its processes;
//! dropping it stops it.

mod charon;
mod configuration;
mod find;
mod gateway;
mod own;
mod wireguard;
mod xfrm;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use ipsec::Protocol;
use serde::Serialize;

use crate::MemorySubject;
use crate::TestbedError;
use crate::child::{Interrupt, Running};
use crate::pair::{self, Lanes, Shape};
use crate::world::{End, World};
pub use find::versions;
pub use own::cable;

/// Subjects that are listed: others of Weir are named in the same way.
const USUAL: [&str; 13] = [
    "plain",
    "weir-esp-tunnel-aes128gcm16",
    "weir-esp-tunnel-aes256gcm16",
    "weir-esp-tunnel-chacha20poly1305",
    "weir-esp-tunnel-aes128gcm16,udp",
    "weir-esp-transport-aes128gcm16",
    "weir-esp-transport-aes128gcm16,udp",
    "weir-esp-transport-aes128-sha256",
    "weir-ah-transport-sha256",
    "weir-eesp-tunnel-aes128gcm16",
    "weir-eesp-transport-aes128gcm16",
    "weir-psp-tunnel-aes128gcm16",
    "weir-psp-transport-aes128gcm16",
];

/// Programs by others that carry packets between hosts.
pub const RIVALS: [&str; 4] = ["wireguard-go", "boringtun", "strongswan-aes128gcm16", "xfrm-aes128gcm16"];

/// What the protected packets travel in.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Encapsulation {
    /// UDP.
    Udp,
    /// Their own IP protocol.
    Raw,
}

impl fmt::Display for Encapsulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Udp => "in UDP",
            Self::Raw => "raw IP",
        })
    }
}

/// Something that carries packets from one host to the other.
#[derive(Clone, Debug)]
pub struct Subject {
    name: String,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// The cable alone.
    Plain { v6: bool },
    /// `weir up` on both hosts, with keys in its configuration.
    Weir(pair::Subject),
    /// A program that speaks WireGuard and is configured through its socket.
    WireGuard(&'static wireguard::Program),
    /// strongSwan with its data plane in user space.
    Charon,
    /// ESP by Linux itself.
    Xfrm,
}

/// No subject has this name.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "unknown subject '{0}'; 'weir lab subjects' lists the common ones; other variants of Weir follow the same pattern"
)]
pub struct UnknownSubject(String);

impl FromStr for Subject {
    type Err = UnknownSubject;

    fn from_str(name: &str) -> Result<Self, UnknownSubject> {
        let unknown = || UnknownSubject(name.to_owned());
        let kind = match name {
            "wireguard-go" => Kind::WireGuard(&wireguard::WIREGUARD_GO),
            "boringtun" => Kind::WireGuard(&wireguard::BORINGTUN),
            "strongswan-aes128gcm16" => Kind::Charon,
            "xfrm-aes128gcm16" => Kind::Xfrm,
            // A gateway's engine is not selected here.
            _ if name.contains(",engine=") => return Err(unknown()),
            _ => match name.parse::<MemorySubject>().map_err(|_| unknown())? {
                MemorySubject::Plain { v6 } => Kind::Plain { v6 },
                // Keys of the right lengths exist for the suites of a protocol. BEET also needs
                // fixed addresses, and IP-TFS needs IKE.
                MemorySubject::Path(own) if own.engine != crypto::Engine::Null && own.tables().is_ok() => {
                    if own.shape == Shape::Beet || own.iptfs {
                        return Err(unknown());
                    }
                    Kind::Weir(own)
                }
                MemorySubject::Path(_) | MemorySubject::Cipher(_) => return Err(unknown()),
            },
        };
        Ok(Self { name: name.to_owned(), kind })
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

/// True if a subject can be measured here.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum Availability {
    /// It can.
    Available {
        /// Version.
        version: String,
    },
    /// It cannot.
    Missing {
        /// Reason.
        why: String,
        /// Remedy.
        remedy: String,
    },
}

impl Availability {
    fn missing(why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Missing { why: why.into(), remedy: remedy.into() }
    }
}

/// Packets and bytes of one direction at one host. Packets are `None` where the subject does not
/// count them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Count {
    /// Packets.
    pub packets: Option<u64>,
    /// Bytes, as the subject counts them: inner packets, except for plain forwarding (frames) and
    /// WireGuard (messages).
    pub bytes: u64,
}

/// Counters of a subject on one host since its start.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Counters {
    /// Sent.
    pub sent: Count,
    /// Received.
    pub received: Count,
    /// Packets that went no further, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Outbound SAs, and those that carried a packet; 0 where they are not counted.
    pub sas: [u32; 2],
}

/// Keys and threads of Weir between hosts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Keying {
    /// One SA in the configuration, with so many worker threads.
    Manual {
        /// Worker threads.
        workers: u32,
    },
    /// Negotiated by IKE or by the key service of PSP, with so many worker threads.
    Negotiated {
        /// Worker threads.
        workers: u32,
    },
}

impl Keying {
    fn workers(self) -> u32 {
        match self {
            Self::Manual { workers } | Self::Negotiated { workers } => workers,
        }
    }
}

/// A subject at work on both hosts. Dropping it ends it.
pub trait Started: Send {
    /// That it still runs.
    fn check(&mut self) -> Result<(), TestbedError>;
    /// Starts a negotiation that no packet triggers.
    fn initiate(&self, _: &World) -> Result<Option<Running>, TestbedError> {
        Ok(None)
    }
    /// Its counters, on sun and on moon.
    fn counters(&self, world: &World) -> Result<[Counters; 2], TestbedError>;
    /// Its processes: their CPU time is its cost. Empty where the kernel does the work.
    fn processes(&self) -> Vec<u32>;
    /// The commands that started it, with their hosts.
    fn commands(&self) -> Vec<String> {
        Vec::new()
    }
    /// The ends of its logs, on separate lines, for an error.
    fn log_tail(&self) -> String {
        String::new()
    }
}

impl Subject {
    /// All subjects that have a usual name.
    pub fn usual() -> Vec<Self> {
        let names = USUAL.iter().chain(&RIVALS);
        names.map(|name| name.parse().expect("a test reads all of them")).collect()
    }

    /// `plain`, `esp`, `ah`, `eesp`, `psp` or `wireguard`.
    pub fn protocol(&self) -> &'static str {
        match &self.kind {
            Kind::Plain { .. } => "plain",
            Kind::Weir(own) => own.protocol.name(),
            Kind::WireGuard(_) => "wireguard",
            Kind::Charon | Kind::Xfrm => "esp",
        }
    }

    /// `tunnel` or `transport`; empty for plain forwarding.
    pub fn mode(&self) -> &'static str {
        match &self.kind {
            Kind::Plain { .. } => "",
            Kind::Weir(own) if own.shape == Shape::Transport => "transport",
            _ => "tunnel",
        }
    }

    /// Suite; empty for plain forwarding.
    pub fn suite(&self) -> &str {
        match &self.kind {
            Kind::Plain { .. } => "",
            Kind::Weir(own) => &own.suite,
            Kind::WireGuard(_) => "chacha20poly1305",
            Kind::Charon | Kind::Xfrm => "aes128gcm16",
        }
    }

    /// Source of its keys.
    pub fn keys(&self) -> &'static str {
        match &self.kind {
            Kind::Plain { .. } => "none",
            Kind::Weir(_) | Kind::Xfrm => "random, manual keying",
            Kind::WireGuard(_) => "WireGuard handshake, with the key pairs of RFC 7748 §6.1",
            Kind::Charon => "IKEv2 with a random pre-shared key",
        }
    }

    /// MTU of the interface that inner packets enter, in bytes, over a cable of 1500. `None`: what
    /// fits is found per packet.
    pub fn mtu_bytes(&self) -> Option<u16> {
        match &self.kind {
            Kind::Plain { .. } => Some(1500),
            Kind::Weir(_) | Kind::Xfrm => None,
            Kind::WireGuard(_) => Some(wireguard::MTU),
            Kind::Charon => Some(charon::MTU),
        }
    }

    /// Encapsulation in UDP; `None` for plain forwarding, which has none. Comparisons are made
    /// between equals only, because the kernel offloads UDP otherwise than raw IP.
    pub fn encapsulation(&self) -> Option<Encapsulation> {
        match &self.kind {
            Kind::Plain { .. } => None,
            Kind::Weir(own) if own.udp || own.protocol == Protocol::Psp => Some(Encapsulation::Udp),
            Kind::Weir(_) | Kind::Xfrm => Some(Encapsulation::Raw),
            // charon's data plane in user space has a UDP socket only.
            Kind::WireGuard(_) | Kind::Charon => Some(Encapsulation::Udp),
        }
    }

    /// Returns whether the first packet starts the negotiation, or none is needed. Otherwise the
    /// time of the first packet does not determine it.
    pub fn is_keyed_on_demand(&self) -> bool {
        !matches!(self.kind, Kind::Charon)
    }

    /// SAs of one pair of hosts.
    pub fn lanes(&self) -> Lanes {
        match &self.kind {
            Kind::Weir(own) => own.lanes,
            _ => Lanes::One,
        }
    }

    /// Returns whether traffic runs between the inner networks of the hosts; otherwise between the
    /// hosts.
    pub fn is_tunnel(&self) -> bool {
        self.mode() == "tunnel"
    }

    /// Traffic and hosts speak IPv6.
    pub fn is_v6(&self) -> bool {
        match &self.kind {
            Kind::Plain { v6 } => *v6,
            Kind::Weir(own) => own.v6,
            _ => false,
        }
    }

    /// Returns whether it can run here. Starts nothing that lasts.
    pub fn availability(&self) -> Availability {
        match &self.kind {
            Kind::Plain { .. } => Availability::Available { version: crate::kernel() },
            Kind::Weir(_) => Availability::Available { version: env!("CARGO_PKG_VERSION").to_owned() },
            Kind::WireGuard(program) => program.availability(),
            Kind::Charon => charon::availability(),
            Kind::Xfrm => xfrm::availability(),
        }
    }

    /// Address of a host that traffic of this subject carries.
    pub fn address(&self, world: &World, end: End) -> IpAddr {
        if self.is_tunnel() { world.plan.inner(end) } else { world.plan.outer(end) }
    }

    /// Starts it on both hosts, with its output in `dir`, and waits until it is ready.
    ///
    /// # Errors
    /// It is missing, ended at once, or is not ready in time; with the end of its log.
    pub fn start(
        &self,
        keying: Keying,
        world: &World,
        dir: &Path,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn Started>, TestbedError> {
        if let Availability::Missing { why, remedy } = self.availability() {
            return Err(TestbedError::Failed(format!("{self} is missing: {why}; {remedy}")));
        }
        std::fs::create_dir_all(dir).map_err(|error| TestbedError::Failed(format!("{}: {error}", dir.display())))?;
        Ok(match &self.kind {
            Kind::Plain { .. } => Box::new(own::Cable),
            Kind::Weir(own) => Box::new(own::Weir::start(own, keying, world, dir, interrupt)?),
            Kind::WireGuard(program) => Box::new(wireguard::Pair::start(program, world, dir, interrupt)?),
            Kind::Charon => Box::new(charon::Pair::start(world, dir, interrupt)?),
            Kind::Xfrm => Box::new(xfrm::Pair::start(world)?),
        })
    }
}

/// A line of `weir lab subjects`.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// Name.
    pub name: String,
    /// Protocol.
    pub protocol: &'static str,
    /// Mode.
    pub mode: &'static str,
    /// Suite.
    pub suite: String,
    /// Origin of its keys.
    pub keys: &'static str,
    /// MTU of its interface, in bytes.
    pub mtu_bytes: Option<u16>,
    /// True if it can run.
    pub availability: Availability,
}

/// The usual subjects, and whether they can run here.
pub fn list() -> Vec<Listed> {
    let listed = |subject: Subject| Listed {
        protocol: subject.protocol(),
        mode: subject.mode(),
        suite: subject.suite().to_owned(),
        keys: subject.keys(),
        mtu_bytes: subject.mtu_bytes(),
        availability: subject.availability(),
        name: subject.name,
    };
    Subject::usual().into_iter().map(listed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_names_read_and_say_what_they_are() {
        for subject in Subject::usual() {
            let name = subject.to_string();
            assert_eq!(subject.protocol() == "plain", name == "plain");
            assert_eq!(subject.is_tunnel(), subject.mode() == "tunnel");
            assert!(!subject.is_v6());
        }
        let subject: Subject = "weir-esp-transport-aes128-sha256,v6,udp".parse().unwrap();
        assert_eq!((subject.protocol(), subject.mode(), subject.suite()), ("esp", "transport", "aes128-sha256"));
        assert!(subject.is_v6());
    }

    #[test]
    fn what_cannot_run_between_hosts_is_no_subject() {
        for name in
            ["", "weir", "cipher-esp-tunnel-aes128gcm16", "skeleton-ah-transport-sha256", "weir-ah-tunnel-aes128gcm16"]
        {
            let error = name.parse::<Subject>().unwrap_err().to_string();
            assert!(error.contains("weir lab subjects"), "{error}");
        }
    }

    #[test]
    fn a_missing_subject_says_what_would_help() {
        for listed in list() {
            if let Availability::Missing { why, remedy } = listed.availability {
                assert!(!why.is_empty() && !remedy.is_empty(), "{}", listed.name);
            }
        }
    }
}
