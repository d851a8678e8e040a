//! Engines: interchangeable ways to run operations.

mod aws_lc;
mod ccm;
pub(crate) mod mac;
mod protect;

use crate::{Job, Key, KeyError, KeyMaterial, Keys, Suite};
pub(crate) use aws_lc::{DesCbc, Hash, Md5, Sha1, Sha256, Sha384, Sha512, equal};
pub(crate) use protect::{Cipher, State};

/// An engine. Chosen once per gateway or measurement; matched once per batch, not per packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Engine {
    /// AWS-LC. The default.
    AwsLc,
    /// Does everything but the arithmetic: accepts any ICV, encrypts nothing. For overhead
    /// studies; `weir up` refuses it.
    Null,
}

impl Engine {
    /// Every engine.
    pub const ALL: [Self; 2] = [Self::AwsLc, Self::Null];

    /// Name in configurations and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::AwsLc => "aws_lc",
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
    /// [`KeyError`] when a length is wrong or the engine cannot run the suite.
    pub fn expand(self, suite: &Suite, material: KeyMaterial<'_>) -> Result<Key, KeyError> {
        let (enc, integ) = (suite.enc.map_or("", |e| e.name), suite.integ.map_or("", |i| i.name));
        // The half that is there gives the half that is not its name in the error.
        let name = |own: &'static str, other: &'static str| match (own, other) {
            ("", "") => "none",
            ("", other) => other,
            (own, _) => own,
        };
        let what = if suite.enc.is_some_and(|e| e.salt_len > 0) { "key and salt" } else { "key" };
        length(name(enc, integ), what, suite.enc_material_len(), material.enc.len())?;
        length(name(integ, enc), "integrity key", suite.integ_material_len(), material.integ.len())?;
        let unsupported = || KeyError::Unsupported { engine: self.name(), algorithm: name(enc, integ) };
        // The null engine too refuses what is no suite, so that switching engines changes nothing else.
        let state = State::new(suite, material).ok_or_else(unsupported)?;
        let state = if self == Self::Null { State::Nothing } else { state };
        Ok(Key { suite: *suite, icv_len: suite.icv_len(), state })
    }

    /// Encrypts and writes the ICV of every job; [`Job::sealed`] tells the outcome of each. The
    /// packet of a job that failed may hold anything, plaintext included, and must not be sent.
    pub fn seal(self, keys: Keys<'_>, jobs: &mut [Job<'_>]) {
        match self {
            Self::AwsLc => run(keys, jobs, |key, job| {
                job.verified = false;
                job.sealed = key.state.seal(&job.op, job.packet, key.icv_len);
            }),
            Self::Null => run(keys, jobs, |key, job| {
                job.verified = false;
                job.sealed = protect::fits(&job.op, job.packet.len(), key.icv_len);
                if job.sealed {
                    job.packet[job.op.icv.range()].fill(0);
                }
            }),
        }
    }

    /// Verifies and decrypts every job; [`Job::take_ok`] tells the outcome of each. The packet of
    /// a job whose ICV is wrong may hold anything afterwards and must not be delivered.
    pub fn open(self, keys: Keys<'_>, jobs: &mut [Job<'_>]) {
        match self {
            Self::AwsLc => run(keys, jobs, |key, job| {
                job.sealed = false;
                job.verified = key.state.open(&job.op, job.packet, key.icv_len);
            }),
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

/// Runs each job with its key; a job that names no key fails.
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
