#![doc = include_str!("../README.md")]
//!
//! # Design
//!
//! The caller describes an operation ([`CryptoOp`]), an [`Engine`] executes it, and a verified ICV
//! yields an [`IcvOk`], which nothing else can construct: code that requires one cannot run for a
//! forged packet. This crate does not interpret packets: the caller specifies which bytes are
//! authenticated, which are encrypted, and the position of the ICV.
//!
//! A key lives in a [`KeyTable`] (published by the control side and shared by all cores) or in
//! one core's [`DerivedKeys`] (PSP receive keys, Sub SA keys beyond the table). Both zero their
//! material when dropped.

pub mod accelerator;
mod algorithm;
mod derived;
mod engine;
pub mod ike;
pub mod kdf;
mod key;
pub mod offload;
mod op;

#[doc(hidden)]
pub use algorithm::edit_distance;
pub use algorithm::{CipherKind, EncAlg, IntegAlg, IntegKind, Suite, SuiteError};
pub use derived::{DerivedKeys, DerivedName, DerivedStats};
pub use engine::{Choice, Engine};
pub use key::{Key, KeyError, KeyMaterial, KeyTable, Keys};
pub use op::{Aad, CryptoOp, IcvOk, Job, Jobs, KeyId, Span};

/// Version of intel-ipsec-mb that this build links, and how; `None` for a build without it.
pub const IPSEC_MB_LINKED: Option<&str> = option_env!("WEIR_IPSEC_MB_LINKED");
/// Version of intel-ipsec-mb that `scripts/ipsec-mb.sh` installs for builds.
pub const IPSEC_MB_PINNED: &str = env!("WEIR_IPSEC_MB_PINNED");

/// Fills `bytes` from the random generator of AWS-LC, which the operating system seeds. For control
/// code: keys, SPIs, first IVs.
///
/// # Panics
/// If the operating system returns no randomness, because keys must not be predictable.
pub fn random(bytes: &mut [u8]) {
    use aws_lc_rs::rand::{SecureRandom, SystemRandom};
    SystemRandom::new().fill(bytes).expect("the operating system gives random bytes");
}
