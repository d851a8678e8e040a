//! The part of `weir-crypto` that IKE needs, with a stopwatch around every operation and a provider
//! that computes nothing.
//!
//! `weir-lab-ike` is `weir-ike` compiled against this crate. Types without cryptography are those
//! of `weir-crypto`; functions with cryptography call it, unless [`meter::begin`] selected the null
//! provider for the calling thread. The gateway depends on neither crate (a test of the workspace's
//! edges keeps it so): an endpoint without cryptography cannot be reached from a daemon.

pub mod ike;
pub mod meter;

pub use crypto::{
    CipherKind, EncAlg, IntegAlg, IntegKind, KeyError, KeyMaterial, Suite, SuiteError, edit_distance, kdf,
};

/// Fills `bytes` from the random generator of the library, or from a counter with the null
/// provider: SPIs must differ there, too.
///
/// # Panics
/// As `weir_crypto::random`.
#[track_caller]
pub fn random(bytes: &mut [u8]) {
    meter::timed(meter::Operation::Random, || match meter::is_null() {
        false => crypto::random(bytes),
        true => meter::count_into(bytes),
    });
}
