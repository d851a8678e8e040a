//! Subjects in memory by their names.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crypto::Engine;
use ipsec::Protocol;

use crate::pair::{Call, Lanes, Shape, Subject};

/// Most Sub SAs: they are numbered with 16 bits.
const MAX_SUB_SAS: u32 = 1 << 16;
/// Most engine threads.
const MAX_THREADS: u8 = 64;

/// Subject in memory.
#[derive(Clone, Debug)]
pub enum MemorySubject {
    /// The whole path of Weir, as it runs in the gateway.
    Path(Subject),
    /// The engine alone, with the operations that the path would make: the ceiling.
    Cipher(Subject),
    /// The path of Weir with a policy that lets everything through in the clear.
    Plain {
        /// IPv6 inside.
        v6: bool,
    },
}

/// Reason why a name is not a subject.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "'{0}' is not a subject in memory; use plain, weir-PROTOCOL-MODE-SUITE (weir-esp-tunnel-aes128gcm16), or cipher-… for the engine alone; options may follow after a comma: v6, udp, esn, engine=NAME, of tunnels of ESP and EESP iptfs, and of EESP full, implicit-iv, no-seq and sub-sas"
)]
pub struct SubjectError(pub String);

impl MemorySubject {
    /// Protocol as trials name it: `esp`, `ah`, `eesp`, `psp`, `cipher`, `plain`.
    pub fn protocol(&self) -> &'static str {
        match self {
            Self::Path(subject) => subject.protocol.name(),
            Self::Cipher(_) => "cipher",
            Self::Plain { .. } => "plain",
        }
    }

    /// Mode as trials name it; empty for plain forwarding.
    pub fn mode(&self) -> &'static str {
        self.subject().map_or("", |subject| mode_name(subject.shape))
    }

    /// Suite; empty for plain forwarding.
    pub fn suite(&self) -> &str {
        self.subject().map_or("", |subject| &subject.suite)
    }

    /// The configuration; `None` for plain forwarding.
    pub fn subject(&self) -> Option<&Subject> {
        match self {
            Self::Path(subject) | Self::Cipher(subject) => Some(subject),
            Self::Plain { .. } => None,
        }
    }

    /// Endpoints of the traffic through it.
    pub fn addresses(&self) -> [IpAddr; 2] {
        let v6 = match self {
            Self::Plain { v6 } => *v6,
            Self::Path(subject) | Self::Cipher(subject) => subject.v6,
        };
        let plain = || Subject { v6, ..Subject::new(Protocol::Esp, Shape::Tunnel, "", Engine::Null) };
        self.subject().map_or_else(|| plain().packet_addresses(), Subject::packet_addresses)
    }
}

fn mode_name(shape: Shape) -> &'static str {
    match shape {
        Shape::Tunnel => "tunnel",
        Shape::Transport => "transport",
        Shape::Beet => "beet",
    }
}

/// The name in trials; reads back with [`MemorySubject::from_str`].
impl fmt::Display for MemorySubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, subject) = match self {
            Self::Plain { v6 } => return write!(f, "plain{}", if *v6 { ",v6" } else { "" }),
            Self::Path(subject) if subject.engine == Engine::Null => ("skeleton", subject),
            Self::Path(subject) => ("weir", subject),
            Self::Cipher(subject) => ("cipher", subject),
        };
        write!(f, "{what}-{}-{}-{}", subject.protocol.name(), mode_name(subject.shape), subject.suite)?;
        let options = [
            (subject.v6, "v6"),
            (subject.udp, "udp"),
            (subject.xdp, "xdp"),
            (subject.aqm, "aqm"),
            (subject.esn, "esn"),
            (subject.crypt_offset.is_some(), "full"),
            (subject.implicit_iv, "implicit-iv"),
            (!subject.seq, "no-seq"),
            (subject.iptfs, "iptfs"),
        ];
        for (_, name) in options.iter().filter(|(on, _)| *on) {
            write!(f, ",{name}")?;
        }
        // The name of a no-op path contains its engine; other subjects have the usual one.
        if ![Engine::best(), Engine::Null].contains(&subject.engine) {
            write!(f, ",engine={}", subject.engine.name())?;
        }
        match subject.call {
            Call::InPlace => (),
            Call::Copied => f.write_str(",copied")?,
            Call::Threads(count) => write!(f, ",threads={count}")?,
        }
        match subject.lanes {
            Lanes::One => Ok(()),
            Lanes::PerCpu => f.write_str(",per-cpu"),
            Lanes::SubSas(None) => f.write_str(",sub-sas"),
            Lanes::SubSas(Some(count)) => write!(f, ",sub-sas={count}"),
        }
    }
}

impl FromStr for MemorySubject {
    type Err = SubjectError;

    /// `plain`, `weir-esp-tunnel-aes128gcm16`, `cipher-…` for the engine alone, `skeleton-…` for
    /// the path with the null engine; options may follow: `,v6`, `,udp`, `,esn`; `,per-cpu` for an
    /// SA per worker (RFC 9611), `,xdp` for AF_XDP, and `,aqm` for active queue management, all
    /// between hosts; of EESP `,full` for the full packet format in tunnel mode, `,implicit-iv`,
    /// `,no-seq`, `,sub-sas` and `,sub-sas=COUNT`; `,engine=NAME` for another engine than the usual
    /// one; of ESP in tunnel mode `,iptfs`, and of `cipher-…` `,copied` and `,threads=COUNT`. Suite
    /// and engine are checked when the meter is made.
    fn from_str(name: &str) -> Result<Self, SubjectError> {
        let wrong = || SubjectError(name.to_owned());
        let mut parts = name.split(',');
        let first = parts.next().unwrap_or_default();
        let options: Vec<&str> = parts.collect();
        if first == "plain" {
            let v6 = options == ["v6"];
            return if v6 || options.is_empty() { Ok(Self::Plain { v6 }) } else { Err(wrong()) };
        }
        let mut words = first.splitn(4, '-');
        let mut next = || words.next().filter(|word| !word.is_empty()).ok_or_else(wrong);
        let (what, protocol, mode, suite) = (next()?, next()?, next()?, next()?);
        let protocols = [Protocol::Esp, Protocol::Ah, Protocol::Eesp, Protocol::Psp];
        let protocol = protocols.into_iter().find(|p| p.name() == protocol).ok_or_else(wrong)?;
        let shapes = [Shape::Tunnel, Shape::Transport, Shape::Beet];
        let shape = shapes.into_iter().find(|shape| mode_name(*shape) == mode).ok_or_else(wrong)?;
        let engine = if what == "skeleton" { Engine::Null } else { Engine::best() };
        let mut subject = Subject::new(protocol, shape, suite, engine);
        for option in options {
            match option {
                "v6" => subject.v6 = true,
                "udp" => subject.udp = true,
                "xdp" if what == "weir" => subject.xdp = true,
                "aqm" if what == "weir" => subject.aqm = true,
                "esn" => subject.esn = true,
                "full" if protocol == Protocol::Eesp && shape == Shape::Tunnel => subject.crypt_offset = Some(0),
                "implicit-iv" => subject.implicit_iv = true,
                "no-seq" => subject.seq = false,
                "iptfs"
                    if matches!(protocol, Protocol::Esp | Protocol::Eesp)
                        && shape == Shape::Tunnel
                        && what != "cipher" =>
                {
                    subject.iptfs = true
                }
                "per-cpu" => subject.lanes = Lanes::PerCpu,
                "sub-sas" => subject.lanes = Lanes::SubSas(None),
                "copied" if what == "cipher" => subject.call = Call::Copied,
                _ => with_value(&mut subject, option, what).ok_or_else(wrong)?,
            }
        }
        match what {
            "weir" | "skeleton" => Ok(Self::Path(subject)),
            "cipher" => Ok(Self::Cipher(subject)),
            _ => Err(wrong()),
        }
    }
}

/// Applies an option `KEY=VALUE` of a subject; `None` if there is none of this name or value.
fn with_value(subject: &mut Subject, option: &str, what: &str) -> Option<()> {
    let (key, value) = option.split_once('=')?;
    match key {
        "sub-sas" => {
            let count = value.parse().ok().filter(|count| (1..=MAX_SUB_SAS).contains(count))?;
            subject.lanes = Lanes::SubSas(Some(count));
        }
        "engine" if what != "skeleton" => {
            subject.engine = Engine::by_name(value).filter(|engine| *engine != Engine::Null)?;
        }
        "threads" if what == "cipher" => {
            subject.call = Call::Threads(value.parse().ok().filter(|count| (1..=MAX_THREADS).contains(count))?);
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_they_were() {
        // Names have the engine only if it is not the default.
        let other = [Engine::IpsecMb, Engine::Vaes].into_iter().find(|engine| *engine != Engine::best());
        let threads = format!("cipher-esp-tunnel-aes128gcm16,engine={},threads=2", other.expect("one of two").name());
        for name in [
            "plain",
            "plain,v6",
            "weir-esp-tunnel-aes128gcm16",
            "weir-esp-transport-aes128-sha256,v6,udp,esn",
            "skeleton-ah-transport-sha256",
            "cipher-psp-tunnel-aes256gcm16",
            threads.as_str(),
            "cipher-esp-tunnel-aes128gcm16,copied",
        ] {
            assert_eq!(name.parse::<MemorySubject>().unwrap().to_string(), name);
        }
        for name in ["", "weir", "weir-esp", "weir-gre-tunnel-x", "weir-esp-tunnel-", "wg-esp-tunnel-x", "plain,udp"] {
            assert!(
                name.parse::<MemorySubject>().unwrap_err().to_string().contains("not a subject in memory"),
                "{name}"
            );
        }
        let subject: MemorySubject = "weir-esp-transport-aes128-sha256".parse().unwrap();
        assert_eq!((subject.protocol(), subject.mode(), subject.suite()), ("esp", "transport", "aes128-sha256"));
    }
}
