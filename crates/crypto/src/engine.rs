//! Engines: interchangeable ways to run operations.

use crate::{Job, Key, KeyError, KeyMaterial, Keys, Suite};

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
    /// Expands key material for this engine.
    ///
    /// # Errors
    /// [`KeyError`] when a length is wrong or the engine cannot run the suite.
    pub fn expand(self, suite: &Suite, material: KeyMaterial<'_>) -> Result<Key, KeyError> {
        let _ = (suite, material);
        todo!("crypto helper")
    }

    /// Encrypts and writes the ICV of every job.
    pub fn seal(self, keys: Keys<'_>, jobs: &mut [Job<'_>]) {
        let _ = (keys, jobs);
        todo!("crypto helper")
    }

    /// Verifies and decrypts every job; [`Job::take_ok`] tells the outcome of each. The packet of
    /// a job whose ICV is wrong may hold anything afterwards and must not be delivered.
    pub fn open(self, keys: Keys<'_>, jobs: &mut [Job<'_>]) {
        let _ = (keys, jobs);
        todo!("crypto helper")
    }
}
