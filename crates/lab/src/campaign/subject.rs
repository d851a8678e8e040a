//! Subjects by name, so that one word means the same in a campaign, in a trial and in the report.

use std::fmt;

use crypto::Engine;

pub use crate::subject::RIVALS;
use testbed::MemorySubject;
use testbed::pair;

/// Suites of ESP that are suggested.
const ESP_SUITES: [&str; 17] = [
    "aes128gcm16",
    "aes192gcm16",
    "aes256gcm16",
    "chacha20poly1305",
    "aes128ccm16",
    "aes128-sha1",
    "aes192-sha1",
    "aes256-sha1",
    "aes128-md5",
    "aes256-md5",
    "aes128-sha256",
    "aes256-sha256",
    "3des-sha1",
    "3des-md5",
    "des-sha1",
    "null-sha1",
    "null-sha256",
];
/// Suites of EESP.
const EESP_SUITES: [&str; 3] = ["aes128gcm16", "aes256gcm16", "chacha20poly1305"];
/// Suites of AH.
const AH_SUITES: [&str; 5] = ["md5", "sha1", "sha256", "sha384", "sha512"];
/// Suites of the bare cipher.
const CIPHERS: [&str; 4] = ["aes128gcm16", "aes256gcm16", "chacha20poly1305", "aes128-sha256"];

/// A subject, taken apart.
#[derive(Clone, Debug)]
pub enum Subject {
    /// Weir's data plane, the engine alone, or plain forwarding, in buffers of one process; Weir's
    /// also between namespaces.
    Own(MemorySubject),
    /// A program by others, by name.
    Rival(&'static str),
}

impl Subject {
    /// Takes a name apart.
    ///
    /// # Errors
    /// The name is unknown; the error has the nearest one.
    pub fn parse(name: &str) -> Result<Self, UnknownSubject> {
        if let Some(rival) = RIVALS.into_iter().find(|rival| *rival == name) {
            return Ok(Self::Rival(rival));
        }
        let unknown = || {
            let base = name.split(',').next().unwrap_or_default();
            UnknownSubject {
                name: name.to_owned(),
                nearest: nearest(base, names().iter().map(String::as_str)).map(str::to_owned),
            }
        };
        let subject: MemorySubject = name.parse().map_err(|_| unknown())?;
        // Only combinations that can be keyed are subjects: the suite must be one of the
        // protocol's. Whether its engine is available depends on the machine, not on the name.
        let fits = |pair: &pair::Subject| pair::Subject { engine: Engine::best(), ..pair.clone() }.tables().is_ok();
        if subject.subject().is_none_or(fits) { Ok(Self::Own(subject)) } else { Err(unknown()) }
    }

    /// `esp`, `ah`, `eesp`, `psp`, `wireguard`, `plain`, `cipher`.
    pub fn protocol(&self) -> &str {
        match self {
            Self::Own(subject) => subject.protocol(),
            Self::Rival(name) if name.starts_with("wireguard") || *name == "boringtun" => "wireguard",
            Self::Rival(_) => "esp",
        }
    }

    /// `tunnel`, `transport`, `beet`; empty where it means nothing.
    pub fn mode(&self) -> &str {
        match self {
            Self::Own(subject) => subject.mode(),
            Self::Rival(_) => "tunnel",
        }
    }

    /// SAs of one pair of hosts.
    pub fn lanes(&self) -> pair::Lanes {
        match self {
            Self::Own(subject) => subject.subject().map_or(pair::Lanes::One, |pair| pair.lanes),
            Self::Rival(_) => pair::Lanes::One,
        }
    }

    /// By AF_XDP, or with active queue management.
    pub fn needs_namespaces(&self) -> bool {
        matches!(self, Self::Own(subject) if subject.subject().is_some_and(|pair| pair.xdp || pair.aqm))
    }

    /// The suite; empty for none.
    pub fn suite(&self) -> &str {
        match self {
            Self::Own(subject) => subject.suite(),
            Self::Rival(_) if self.protocol() == "wireguard" => "chacha20poly1305",
            Self::Rival(name) => name.split_once('-').map_or("", |(_, suite)| suite),
        }
    }
}

/// No subject has this name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnknownSubject {
    name: String,
    nearest: Option<String>,
}

impl fmt::Display for UnknownSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown subject '{}'; ", self.name)?;
        match &self.nearest {
            Some(nearest) => write!(f, "did you mean '{nearest}'?"),
            None => write!(f, "'weir lab run --subjects' lists all"),
        }
    }
}

/// The common names; `,udp`, `,esn`, `,v6` and `,engine=NAME` may follow those in memory, and other
/// suites can be used.
pub fn names() -> Vec<String> {
    let protocols: [(&str, &[&str]); 4] =
        [("esp", &ESP_SUITES), ("ah", &AH_SUITES), ("eesp", &EESP_SUITES), ("psp", &pair::PSP_SUITES)];
    let mut names = Vec::new();
    for (protocol, suites) in protocols {
        for mode in ["tunnel", "transport"] {
            names.extend(suites.iter().map(|suite| format!("weir-{protocol}-{mode}-{suite}")));
        }
    }
    names.extend(CIPHERS.iter().map(|suite| format!("cipher-esp-tunnel-{suite}")));
    names.push("plain".into());
    names.extend(RIVALS.iter().map(|name| (*name).to_owned()));
    names
}

/// The name of `known` closest to `word`, when it is close enough to be what was meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let reach = 1 + word.chars().count() / 3;
    known
        .into_iter()
        .map(|name| (strsim::levenshtein(word, name), name))
        .filter(|(distance, _)| *distance <= reach)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_name_is_known_and_says_what_it_is() {
        for name in names() {
            let subject = Subject::parse(&name).unwrap_or_else(|error| panic!("{error}"));
            assert!(name.contains(subject.suite()) || subject.protocol() == "wireguard", "{name}: {subject:?}");
        }
        let subject = Subject::parse("weir-esp-transport-aes128-sha256,udp").unwrap();
        assert_eq!((subject.protocol(), subject.mode(), subject.suite()), ("esp", "transport", "aes128-sha256"));
    }

    #[test]
    fn a_slip_is_answered_with_what_was_meant() {
        let error = Subject::parse("weir-esp-tunel-aes128gcm16").unwrap_err().to_string();
        assert_eq!(error, "unknown subject 'weir-esp-tunel-aes128gcm16'; did you mean 'weir-esp-tunnel-aes128gcm16'?");
        assert!(Subject::parse("x").unwrap_err().to_string().contains("--subjects"));
        assert!(Subject::parse("weir-ah-tunnel-aes128gcm16").is_err());
        assert!(Subject::parse("weir-esp-tunnel-nonsense,udp").is_err());
    }
}
