//! `weir pki` and `weir new`: a certification authority in a folder, certificates for IPsec peers,
//! files that other systems import, and configurations for the usual cases.
//!
//! [`authority`] holds the folder and its index, [`profile`] the contents of certificates,
//! [`bundle`] the formats of other systems, [`setup`] the configurations of `weir new`. The daemon
//! does not use this crate: it cannot create keys or certificates.

pub mod authority;
pub mod bundle;
pub mod cli;
mod date;
mod file;
mod index;
mod inspect;
mod key;
mod passphrase;
pub mod profile;
pub mod setup;
mod text;

pub use key::KeyKind;
