//! Subjects by name, so that one word means the same in a campaign, in a trial and in the report.

use std::fmt;

use ipsec::Protocol;

use crate::pair::{self, Shape};

/// Suites that ESP and EESP are measured with.
const ESP_SUITES: [&str; 22] = [
    "aes128gcm16", "aes192gcm16", "aes256gcm16", "chacha20poly1305", "aes128ccm16", "aes256ccm16", "aes128gmac", "aes256gmac",
    "aes128-sha1", "aes192-sha1", "aes256-sha1", "aes128-md5", "aes192-md5", "aes256-md5", "aes128-sha256", "aes256-sha256",
    "aes128-sha512", "3des-sha1", "3des-md5", "des-sha1", "null-sha1", "null-sha256",
];
/// Suites of AH.
const AH_SUITES: [&str; 5] = ["md5", "sha1", "sha256", "sha384", "sha512"];
/// Suites of the bare cipher.
const CIPHERS: [&str; 4] = ["aes128gcm16", "aes256gcm16", "chacha20poly1305", "aes128-sha256"];

/// Programs by others that carry packets between namespaces.
pub const RIVALS: [&str; 5] = ["wireguard-go", "boringtun", "strongswan-aes128gcm16", "xfrm-aes128gcm16", "plain"];

/// A subject, taken apart.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Subject {
    /// Weir's data plane.
    Weir {
        /// Protocol.
        protocol: Protocol,
        /// Mode.
        shape: Shape,
        /// Suite.
        suite: String,
        /// In UDP.
        udp: bool,
        /// With the engine that does no arithmetic.
        null: bool,
    },
    /// The engine alone, the ceiling of everything.
    Cipher {
        /// Suite.
        suite: String,
    },
    /// A program by others, or no protection at all; by name.
    Rival(String),
}

impl Subject {
    /// Takes a name apart.
    ///
    /// # Errors
    /// The name is none; says which is nearest.
    pub fn parse(name: &str) -> Result<Self, UnknownSubject> {
        Self::known(name).ok_or_else(|| UnknownSubject {
            name: name.to_owned(),
            nearest: nearest(name, names().iter().map(String::as_str)).map(str::to_owned),
        })
    }

    fn known(name: &str) -> Option<Self> {
        if RIVALS.contains(&name) {
            return Some(Self::Rival(name.to_owned()));
        }
        if let Some(suite) = name.strip_prefix("cipher-") {
            return CIPHERS.contains(&suite).then(|| Self::Cipher { suite: suite.to_owned() });
        }
        let rest = name.strip_prefix("weir-")?;
        let (rest, null) = rest.strip_suffix("-null").map_or((rest, false), |rest| (rest, true));
        let (rest, udp) = rest.strip_suffix("-udp").map_or((rest, false), |rest| (rest, true));
        let (protocol, rest) = rest.split_once('-')?;
        let (mode, suite) = rest.split_once('-')?;
        let shape = match mode {
            "tunnel" => Shape::Tunnel,
            "transport" => Shape::Transport,
            "beet" => Shape::Beet,
            _ => return None,
        };
        let (protocol, suites): (_, &[&str]) = match protocol {
            "esp" => (Protocol::Esp, &ESP_SUITES),
            "eesp" => (Protocol::Eesp, &ESP_SUITES[..8]),
            "ah" => (Protocol::Ah, &AH_SUITES),
            "psp" => (Protocol::Psp, &pair::PSP_SUITES),
            _ => return None,
        };
        let udp_fits = !udp || matches!(protocol, Protocol::Esp | Protocol::Eesp);
        (suites.contains(&suite) && udp_fits).then(|| Self::Weir { protocol, shape, suite: suite.to_owned(), udp, null })
    }

    /// `esp`, `ah`, `eesp`, `psp`, `wireguard`, `plain`, `cipher`.
    pub fn protocol(&self) -> &'static str {
        match self {
            Self::Weir { protocol, .. } => protocol.name(),
            Self::Cipher { .. } => "cipher",
            Self::Rival(name) if name == "plain" => "plain",
            Self::Rival(name) if name.starts_with("wireguard") || name == "boringtun" => "wireguard",
            Self::Rival(_) => "esp",
        }
    }

    /// `tunnel`, `transport`, `beet`; empty where it means nothing.
    pub fn mode(&self) -> &'static str {
        match self {
            Self::Weir { shape: Shape::Tunnel, .. } => "tunnel",
            Self::Weir { shape: Shape::Transport, .. } => "transport",
            Self::Weir { shape: Shape::Beet, .. } => "beet",
            Self::Rival(name) if name != "plain" => "tunnel",
            _ => "",
        }
    }

    /// The suite; empty for none.
    pub fn suite(&self) -> &str {
        match self {
            Self::Weir { suite, .. } | Self::Cipher { suite } => suite,
            Self::Rival(name) if self.protocol() == "wireguard" && !name.is_empty() => "chacha20poly1305",
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

/// Every name, without the suffixes `-udp` and `-null`.
pub fn names() -> Vec<String> {
    let protocols: [(&str, &[&str]); 4] =
        [("esp", &ESP_SUITES), ("ah", &AH_SUITES), ("eesp", &ESP_SUITES[..8]), ("psp", &pair::PSP_SUITES)];
    let mut names: Vec<String> = Vec::new();
    for (protocol, suites) in protocols {
        for mode in ["tunnel", "transport", "beet"] {
            if mode != "beet" || matches!(protocol, "esp" | "eesp") {
                names.extend(suites.iter().map(|suite| format!("weir-{protocol}-{mode}-{suite}")));
            }
        }
    }
    names.extend(CIPHERS.iter().map(|suite| format!("cipher-{suite}")));
    names.extend(RIVALS.iter().map(|name| (*name).to_owned()));
    names
}

/// The name of `known` closest to `word`, when it is close enough to be what was meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let reach = 1 + word.chars().count() / 3;
    known
        .into_iter()
        .map(|name| (distance(word, name), name))
        .filter(|(distance, _)| *distance <= reach)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Insertions, deletions and replacements from `a` to `b`, of at most 64 characters each.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(64).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
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
        let subject = Subject::parse("weir-esp-transport-aes128-sha256-udp-null").unwrap();
        assert_eq!((subject.protocol(), subject.mode(), subject.suite()), ("esp", "transport", "aes128-sha256"));
    }

    #[test]
    fn a_slip_is_answered_with_what_was_meant() {
        let error = Subject::parse("weir-esp-tunel-aes128gcm16").unwrap_err().to_string();
        assert_eq!(error, "unknown subject 'weir-esp-tunel-aes128gcm16'; did you mean 'weir-esp-tunnel-aes128gcm16'?");
        assert!(Subject::parse("x").unwrap_err().to_string().contains("--subjects"));
        assert!(Subject::parse("weir-ah-tunnel-aes128gcm16").is_err());
        assert!(Subject::parse("weir-psp-tunnel-aes128gcm16-udp").is_err());
    }
}
