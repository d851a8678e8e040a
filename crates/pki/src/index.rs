//! Index of an authority: `index.toml`, with every certificate that it issued.

use std::path::Path;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use rcgen::RevocationReason;
use serde::{Deserialize, Serialize};

use crate::file::{self, Existing, Mode};
use crate::profile::Usage;

const VERSION: u32 = 1;
/// Digits of a serial number that must be given at least.
const MIN_PREFIX: usize = 4;

/// The file.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Index {
    version: u32,
    /// Number of the last CRL; 0 before the first.
    pub(crate) crl_number: u64,
    /// Where peers fetch the CRL: written into each certificate.
    #[serde(default)]
    pub(crate) crl_uris: Vec<String>,
    #[serde(default, rename = "certificate")]
    pub(crate) certificates: Vec<Entry>,
}

/// One certificate.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// Hexadecimal.
    pub(crate) serial: String,
    /// Name of its files.
    pub(crate) name: String,
    pub(crate) usage: Usage,
    /// Subject alternative names.
    pub(crate) names: Vec<String>,
    #[serde(with = "moment")]
    pub(crate) not_before: i64,
    #[serde(with = "moment")]
    pub(crate) not_after: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revoked: Option<Revoked>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Revoked {
    #[serde(with = "moment")]
    pub(crate) at: i64,
    pub(crate) reason: Reason,
}

/// Reason of a revocation (RFC 5280 §5.3.1).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Not stated
    #[default]
    Unspecified,
    /// The private key was lost or copied
    KeyCompromise,
    /// The subject belongs to another organization
    AffiliationChanged,
    /// Another certificate replaces it
    Superseded,
    /// The subject no longer needs it
    CessationOfOperation,
    /// The subject may no longer use it
    PrivilegeWithdrawn,
}

impl Reason {
    pub(crate) fn code(self) -> RevocationReason {
        match self {
            Self::Unspecified => RevocationReason::Unspecified,
            Self::KeyCompromise => RevocationReason::KeyCompromise,
            Self::AffiliationChanged => RevocationReason::AffiliationChanged,
            Self::Superseded => RevocationReason::Superseded,
            Self::CessationOfOperation => RevocationReason::CessationOfOperation,
            Self::PrivilegeWithdrawn => RevocationReason::PrivilegeWithdrawn,
        }
    }
}

/// Times as text.
mod moment {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(seconds: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&crate::date::text(*seconds))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        crate::date::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Entry {
    /// `valid`, `revoked` or `expired`.
    pub(crate) fn state(&self, now: i64) -> &'static str {
        match self.revoked {
            Some(_) => "revoked",
            None if self.not_after < now => "expired",
            None => "valid",
        }
    }
}

impl Index {
    pub(crate) fn new(crl_uris: Vec<String>) -> Self {
        Self { version: VERSION, crl_uris, ..Self::default() }
    }

    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = file::read(path)?;
        let text = std::str::from_utf8(&bytes).with_context(|| format!("{}: not UTF-8", path.display()))?;
        let index: Self = toml::from_str(text).with_context(|| format!("{}", path.display()))?;
        if index.version != VERSION {
            bail!("{}: version {} is unknown; use a newer weir", path.display(), index.version);
        }
        Ok(index)
    }

    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let head = "# Certificates that this CA issued. Written by weir pki; keep a copy with ca.key.\n";
        let text = format!("{head}{}", toml::to_string(self).context("cannot write the index")?);
        file::write(path, text.as_bytes(), Mode::Public, Existing::Replace)
    }

    /// Certificates with this name that are neither revoked nor expired.
    pub(crate) fn valid<'a>(&'a self, name: &'a str, now: i64) -> impl Iterator<Item = &'a Entry> {
        self.certificates.iter().filter(move |entry| entry.name == name && entry.state(now) == "valid")
    }

    /// The one certificate that a serial number, the beginning of one, or a name identifies.
    /// Revoked and expired ones have to be named by serial number.
    pub(crate) fn find(&mut self, which: &str, now: i64) -> anyhow::Result<&mut Entry> {
        let serial = which.to_ascii_lowercase().replace(':', "");
        let is_prefix = serial.len() >= MIN_PREFIX && serial.bytes().all(|c| c.is_ascii_hexdigit());
        let named: Vec<usize> = (0..self.certificates.len())
            .filter(|at| self.certificates[*at].name == which && self.certificates[*at].state(now) == "valid")
            .collect();
        let by_serial: Vec<usize> = (0..self.certificates.len())
            .filter(|at| is_prefix && self.certificates[*at].serial.starts_with(&serial))
            .collect();
        let found = if named.is_empty() { by_serial } else { named };
        match found[..] {
            [at] => Ok(&mut self.certificates[at]),
            [] if self.certificates.iter().any(|entry| entry.name == which) => {
                bail!("every certificate of '{which}' is revoked or expired; see 'weir pki show'")
            }
            [] => bail!("no certificate '{which}'; 'weir pki show' lists names and serial numbers"),
            _ => {
                let serials: Vec<&str> = found.iter().map(|at| &self.certificates[*at].serial[..]).collect();
                bail!("'{which}' is not unique: write one of the serial numbers {}", serials.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(serial: &str, name: &str, revoked: bool) -> Entry {
        Entry {
            serial: serial.to_owned(),
            name: name.to_owned(),
            usage: Usage::Client,
            names: vec![name.to_owned()],
            not_before: 0,
            not_after: 1000,
            revoked: revoked.then_some(Revoked { at: 5, reason: Reason::KeyCompromise }),
        }
    }

    #[test]
    fn an_index_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("index.toml");
        let mut index = Index::new(vec!["http://example.org/ca.crl".to_owned()]);
        index.crl_number = 7;
        index.certificates = vec![entry("41aa", "alice", false), entry("42bb", "bob", true)];
        index.write(&path).expect("written");
        let again = Index::read(&path).expect("read");
        assert_eq!(format!("{again:?}"), format!("{index:?}"));
        let text = std::fs::read_to_string(&path).expect("text");
        assert!(
            text.contains("not_after = \"1970-01-01T00:16:40Z\"") && text.contains("reason = \"key-compromise\""),
            "{text}"
        );
        for (from, to) in [("version = 1", "version = 2"), ("crl_number", "crl_nummer"), ("1970-01", "1970-13")] {
            std::fs::write(&path, text.replacen(from, to, 1)).expect("written");
            assert!(Index::read(&path).is_err(), "{to}");
        }
    }

    #[test]
    fn a_certificate_is_found_by_name_or_unique_prefix() {
        let mut index = Index::new(Vec::new());
        index.certificates =
            vec![entry("41aa00", "alice", true), entry("41aa11", "alice", false), entry("42bb22", "bob", true)];
        assert_eq!(index.find("alice", 10).expect("the valid one").serial, "41aa11");
        assert_eq!(index.find("41AA00", 10).expect("by serial").serial, "41aa00");
        assert_eq!(index.find("42:bb", 10).expect("by prefix").serial, "42bb22");
        let refusal = |index: &mut Index, which: &str| index.find(which, 10).map(drop).expect_err(which).to_string();
        assert!(refusal(&mut index, "41aa").contains("not unique: write one of the serial numbers 41aa00, 41aa11"));
        assert!(refusal(&mut index, "42b").contains("no certificate '42b'"), "a short prefix");
        assert!(refusal(&mut index, "bob").contains("every certificate of 'bob' is revoked"));
        assert_eq!(index.valid("alice", 10).count(), 1);
        assert_eq!(index.valid("alice", 2000).count(), 0);
    }
}
