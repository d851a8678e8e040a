//! Engines: interchangeable implementations of cryptographic operations.

mod aws_lc;
mod ccm;
#[cfg_attr(not(ipsec_mb), path = "engine/no_ipsec_mb.rs")]
mod ipsec_mb;
pub(crate) mod mac;
mod protect;
#[cfg_attr(not(target_arch = "x86_64"), path = "engine/no_vaes.rs")]
mod vaes;

use std::sync::OnceLock;

use crate::accelerator::DeviceKey;
use crate::{Job, Key, KeyError, KeyMaterial, Keys, Span, Suite};
pub(crate) use aws_lc::{DesCbc, Hash, Md5, Sha1, Sha256, Sha384, Sha512, equal};
pub(crate) use protect::{Cipher, State, aead_spans, nonce};

/// An engine. Chosen once per gateway or measurement; matched once per batch, not per packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Engine {
    /// AWS-LC. Runs everywhere.
    AwsLc,
    /// intel-ipsec-mb: processes several packets at once. Available on x86-64 in builds with the
    /// library; operations that it does not support use AWS-LC, with the same key.
    IpsecMb,
    /// AES-GCM and AES-GMAC of this crate with x86-64 intrinsics, over many packets of a batch at a
    /// time. Other suites use `IpsecMb` if available, otherwise AWS-LC.
    Vaes,
    /// No cryptography: accepts any ICV, encrypts nothing. For overhead studies only; `weir up`
    /// refuses it.
    Null,
}

/// The default engine and the reason for it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Choice {
    /// The engine.
    pub engine: Engine,
    /// Reason of the selection, as text.
    pub why: String,
}

/// Environment variable that overrides the default engine, for tests.
const FORCE: &str = "WEIR_ENGINE";

impl Engine {
    /// Every engine, available or not, the fastest first. The default is the first one that
    /// [`Engine::not_default`] has nothing against (docs/decisions/0011).
    pub const ALL: [Self; 4] = [Self::Vaes, Self::IpsecMb, Self::AwsLc, Self::Null];

    /// Returns the engines that are available on this host.
    pub fn usable() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|engine| engine.unavailable().is_none())
    }

    /// Returns the available engines that encrypt.
    pub fn real() -> impl Iterator<Item = Self> {
        Self::usable().filter(|engine| *engine != Self::Null)
    }

    /// Returns the default engine: the fastest available one, unless the environment variable
    /// `WEIR_ENGINE` names another.
    pub fn best() -> Self {
        Self::choice().engine
    }

    /// [`Engine::best`] with its reason. Decided once per process.
    pub fn choice() -> &'static Choice {
        static CHOICE: OnceLock<Choice> = OnceLock::new();
        CHOICE.get_or_init(|| Self::choose(std::env::var(FORCE).ok().as_deref()))
    }

    fn choose(forced: Option<&str>) -> Choice {
        let fastest = Self::ALL.into_iter().find(|engine| engine.not_default().is_none()).unwrap_or(Self::AwsLc);
        let chosen = |engine: Self, why: String| Choice { engine, why };
        match forced.map(|name| (name, Self::by_name(name).filter(|engine| Self::real().any(|real| real == *engine)))) {
            Some((_, Some(engine))) => return chosen(engine, format!("set by {FORCE}")),
            Some((name, None)) if !name.is_empty() => {
                let why = format!("selected automatically; {FORCE}={name} is unknown or unavailable");
                return chosen(fastest, why);
            }
            _ => {}
        }
        let not = Self::ALL.into_iter().take_while(|engine| *engine != fastest);
        let lacks = not.filter_map(|engine| Some(format!("not {}: {}", engine.name(), engine.not_default()?)));
        let why = std::iter::once("selected automatically".to_owned()).chain(lacks).collect::<Vec<_>>().join("; ");
        chosen(fastest, why)
    }

    /// Reason why this engine is not available in this build or on this processor; `None` if it is.
    pub fn unavailable(self) -> Option<&'static str> {
        match self {
            Self::IpsecMb => ipsec_mb::unavailable(),
            Self::Vaes => vaes::unavailable(),
            Self::AwsLc | Self::Null => None,
        }
    }

    /// Reason why this engine cannot be the default on this host; `None` if it can.
    pub fn not_default(self) -> Option<&'static str> {
        self.unavailable().or(match self {
            Self::Vaes => vaes::not_default(),
            Self::Null => Some("nothing is encrypted"),
            Self::IpsecMb | Self::AwsLc => None,
        })
    }

    /// Implementation: library, version, instructions.
    pub fn describe(self) -> String {
        match self {
            Self::AwsLc => "AWS-LC".to_owned(),
            Self::IpsecMb => ipsec_mb::describe(),
            Self::Vaes => vaes::describe(),
            Self::Null => "nothing is encrypted".to_owned(),
        }
    }

    /// Name in configurations and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::AwsLc => "aws_lc",
            Self::IpsecMb => "ipsec_mb",
            Self::Vaes => "vaes",
            Self::Null => "null",
        }
    }

    /// The engine of a name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|engine| engine.name() == name)
    }

    /// Expands key material for this engine.
    ///
    /// # Errors
    /// [`KeyError`] for an invalid length, an unsupported suite, or an unavailable engine.
    pub fn expand(self, suite: &Suite, material: KeyMaterial<'_>) -> Result<Key, KeyError> {
        if let Some(why) = self.unavailable() {
            return Err(KeyError::Unavailable { engine: self.name(), why });
        }
        let (enc, integ) = (suite.enc.map_or("", |e| e.name), suite.integ.map_or("", |i| i.name));
        // The error names the algorithm of the other half if one half has no algorithm.
        let name = |own: &'static str, other: &'static str| match (own, other) {
            ("", "") => "none",
            ("", other) => other,
            (own, _) => own,
        };
        let what = if suite.enc.is_some_and(|e| e.salt_len > 0) { "key and salt" } else { "key" };
        length(name(enc, integ), what, suite.enc_material_len(), material.enc.len())?;
        length(name(integ, enc), "integrity key", suite.integ_material_len(), material.integ.len())?;
        let unsupported = || KeyError::Unsupported { engine: self.name(), algorithm: name(enc, integ) };
        // The null engine must also refuse an invalid suite, so that a change of the engine changes
        // nothing else.
        let state = State::new(suite, material).ok_or_else(unsupported)?;
        let state = match self {
            Self::AwsLc => state,
            Self::IpsecMb => ipsec_mb::expand(suite, material, state),
            Self::Vaes => vaes::expand(suite, material, state),
            Self::Null => State::Nothing,
        };
        Ok(Key { suite: *suite, icv_len: suite.icv_len(), state, device: None })
    }

    /// As [`Engine::expand`], and keeps the AES key of AES-GCM for an accelerator with a device
    /// ([`crate::accelerator::DeviceKey`]). Other suites are keys of this engine alone.
    ///
    /// # Errors
    /// As [`Engine::expand`].
    pub fn expand_for_device(self, suite: &Suite, material: KeyMaterial<'_>) -> Result<Key, KeyError> {
        let mut key = self.expand(suite, material)?;
        key.device = DeviceKey::new(suite, material);
        Ok(key)
    }

    /// Encrypts and writes the ICV of every job; [`Job::sealed`] returns the result of each. The
    /// packet of a failed job may contain anything, including plaintext, and must not be sent.
    pub fn seal(self, keys: Keys<'_>, jobs: &mut [Job<'_>]) {
        self.fetch(jobs);
        match self {
            Self::AwsLc => run(keys, jobs, |key, job| {
                job.verified = false;
                job.sealed = key.state.seal(&job.op, job.packet, key.icv_len);
            }),
            Self::IpsecMb => ipsec_mb::seal(keys, jobs),
            Self::Vaes => vaes::seal(keys, jobs),
            Self::Null => run(keys, jobs, |key, job| {
                job.verified = false;
                job.sealed = protect::fits(&job.op, job.packet.len(), key.icv_len);
                if job.sealed {
                    job.packet[job.op.icv.range()].fill(0);
                }
            }),
        }
    }

    /// Copies the source buffers of jobs into their packets, unless the engine reads them directly.
    /// A source that does not fit turns the operation into one that fails.
    #[inline]
    fn fetch(self, jobs: &mut [Job<'_>]) {
        if self != Self::Vaes {
            for job in jobs {
                if !job.fetch() {
                    job.op = crate::CryptoOp { icv: Span { start: u32::MAX, end: u32::MAX }, ..job.op };
                }
            }
        }
    }

    /// Verifies and decrypts every job; [`Job::take_ok`] returns the result of each. The packet of
    /// a job with an invalid ICV may contain anything and must not be delivered.
    pub fn open(self, keys: Keys<'_>, jobs: &mut [Job<'_>]) {
        self.fetch(jobs);
        match self {
            Self::AwsLc => run(keys, jobs, |key, job| {
                job.sealed = false;
                job.verified = key.state.open(&job.op, job.packet, key.icv_len);
            }),
            Self::IpsecMb => ipsec_mb::open(keys, jobs),
            Self::Vaes => vaes::open(keys, jobs),
            Self::Null => run(keys, jobs, |key, job| {
                job.sealed = false;
                job.verified = protect::fits(&job.op, job.packet.len(), key.icv_len);
            }),
        }
    }
}

fn length(algorithm: &'static str, what: &'static str, need: usize, have: usize) -> Result<(), KeyError> {
    if need == have { Ok(()) } else { Err(KeyError::Length { algorithm, what, need, have }) }
}

/// Runs each job with its key; a job with an unknown key fails.
#[inline]
fn run(keys: Keys<'_>, jobs: &mut [Job<'_>], one: impl Fn(&Key, &mut Job<'_>)) {
    for job in jobs {
        match keys.get(job.op.key) {
            Some(key) => one(key, job),
            None => (job.sealed, job.verified) = (false, false),
        }
    }
}

#[cfg(test)]
mod tests;
