//! Subjects of the study by name: protocol, mode, authentication and suite.

use std::fmt;
use std::str::FromStr;

use lab_ike::proposal::{ChildProposal, ChildProtocol, IkeProposal};

/// Exchanges of a set-up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// IKEv1: main mode, then quick mode with PFS.
    Main,
    /// IKEv1: aggressive mode, then quick mode with PFS.
    Aggressive,
    /// IKEv2: IKE_SA_INIT and IKE_AUTH, and IKE_INTERMEDIATE where the suite needs it.
    V2,
    /// PSP: the receiver derives the key of an SPI, which travels on a connection that exists.
    Psp,
}

/// Authentication of both ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Auth {
    /// Shared key.
    Psk,
    /// RSA signatures with a key of so many bits.
    Rsa(usize),
    /// ECDSA signatures with P-256.
    Ecdsa256,
    /// That of the connection on which keys of PSP travel: not a part of the measurement.
    None,
}

/// A set-up that is measured.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Subject {
    pub(crate) mode: Mode,
    pub(crate) auth: Auth,
    /// Proposal of the IKE SA in words; of PSP the suite.
    pub(crate) suite: String,
}

/// Not a subject of the study.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "'{0}' is no set-up; write ikev1-main-AUTH-SUITE, ikev1-aggressive-AUTH-SUITE or ikev2-AUTH-SUITE with psk, rsa2048, \
     rsa3072 or ecdsa256, or psp-SUITE"
)]
pub(crate) struct NoSetup(String);

const MODES: [(&str, Mode); 4] =
    [("ikev1-main-", Mode::Main), ("ikev1-aggressive-", Mode::Aggressive), ("ikev2-", Mode::V2), ("psp-", Mode::Psp)];

const AUTHS: [(&str, Auth); 4] =
    [("psk", Auth::Psk), ("rsa2048", Auth::Rsa(2048)), ("rsa3072", Auth::Rsa(3072)), ("ecdsa256", Auth::Ecdsa256)];

impl FromStr for Subject {
    type Err = NoSetup;

    fn from_str(name: &str) -> Result<Self, NoSetup> {
        let none = || NoSetup(name.to_owned());
        let (rest, mode) = MODES
            .iter()
            .find_map(|(prefix, mode)| name.strip_prefix(prefix).map(|rest| (rest, *mode)))
            .ok_or_else(none)?;
        if mode == Mode::Psp {
            let known = testbed::pair::PSP_SUITES.contains(&rest);
            return known.then(|| Self { mode, auth: Auth::None, suite: rest.to_owned() }).ok_or_else(none);
        }
        let (word, suite) = rest.split_once('-').ok_or_else(none)?;
        let auth = AUTHS.iter().find(|(known, _)| *known == word).map(|(_, auth)| *auth).ok_or_else(none)?;
        let subject = Self { mode, auth, suite: suite.to_owned() };
        let parses = IkeProposal::parse(suite).is_ok()
            && ChildProposal::parse(ChildProtocol::Esp, subject.child_suite()).is_ok();
        if parses { Ok(subject) } else { Err(none()) }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = MODES.iter().find(|(_, mode)| *mode == self.mode).map_or("", |(prefix, _)| prefix);
        match AUTHS.iter().find(|(_, auth)| *auth == self.auth) {
            Some((auth, _)) => write!(f, "{prefix}{auth}-{}", self.suite),
            None => write!(f, "{prefix}{}", self.suite),
        }
    }
}

impl Subject {
    /// `ikev1`, `ikev2` or `psp`.
    pub(crate) fn protocol(&self) -> &'static str {
        match self.mode {
            Mode::Main | Mode::Aggressive => "ikev1",
            Mode::V2 => "ikev2",
            Mode::Psp => "psp",
        }
    }

    /// `main` or `aggressive` in IKEv1; empty otherwise.
    pub(crate) fn mode_name(&self) -> &'static str {
        match self.mode {
            Mode::Main => "main",
            Mode::Aggressive => "aggressive",
            Mode::V2 | Mode::Psp => "",
        }
    }

    /// Proposal of the Child SA: in quick mode that of the IKE SA, with its group for PFS, as in
    /// the paper; in IKE_AUTH there is no key exchange.
    pub(crate) fn child_suite(&self) -> &str {
        match self.mode {
            Mode::Main | Mode::Aggressive => &self.suite,
            Mode::V2 | Mode::Psp => "aes128gcm16",
        }
    }

    /// The subject for people: `IKEv1 main RSA-2048 3des-md5-modp1024`, in 46 characters at most
    /// with the usual suites: without the PRF and without the number of an additional exchange.
    pub(crate) fn shown(&self) -> String {
        let auth = match self.auth {
            Auth::Psk => "PSK ".to_owned(),
            Auth::Rsa(bits) => format!("RSA-{bits} "),
            Auth::Ecdsa256 => "ECDSA ".to_owned(),
            Auth::None => String::new(),
        };
        let mode = match self.mode {
            Mode::Main => "IKEv1 main",
            Mode::Aggressive => "IKEv1 aggressive",
            Mode::V2 => "IKEv2",
            Mode::Psp => "PSP key",
        };
        let words = self.suite.split('-').filter(|word| !word.starts_with("prf"));
        let words: Vec<&str> = words.map(|word| word.strip_prefix("ke1_").unwrap_or(word)).collect();
        format!("{mode} {auth}{}", words.join("-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_for_people_are_short() {
        let shown = |name: &str| name.parse::<Subject>().unwrap().shown();
        let kem = shown("ikev2-ecdsa256-aes128gcm16-prfsha256-x25519-ke1_mlkem768");
        assert_eq!(kem, "IKEv2 ECDSA aes128gcm16-x25519-mlkem768");
        assert!(shown("ikev1-aggressive-rsa2048-aes128-md5-modp1024").chars().count() <= 46);
    }

    #[test]
    fn names_read_back_and_what_is_none_is_refused() {
        for name in [
            "ikev1-main-rsa2048-3des-md5-modp1024",
            "ikev1-aggressive-psk-aes256-md5-modp1024",
            "ikev2-ecdsa256-aes128gcm16-prfsha256-x25519-ke1_mlkem768",
            "psp-aes128gcm16",
        ] {
            assert_eq!(name.parse::<Subject>().unwrap().to_string(), name);
        }
        for name in ["ikev1-psk-aes128-md5-modp1024", "ikev2-psk-nonsense", "ikev2-dsa-aes128gcm16-x25519", "psp-x"] {
            let error = name.parse::<Subject>().unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("ikev1-main-AUTH-SUITE"), "{error}");
        }
    }
}
