//! Keys, expanded once and read by every packet.

use crate::{DerivedKeys, KeyId, Suite};

/// Keying material as the configuration or a key exchange gives it. Zeroed on drop by its owner.
#[derive(Clone, Copy)]
pub struct KeyMaterial<'a> {
    /// Cipher key followed by its salt or nonce (KEYMAT of RFC 4106 §8.1); empty for AH.
    pub enc: &'a [u8],
    /// MAC key; empty for an AEAD.
    pub integ: &'a [u8],
}

/// Why a key could not be made.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeyError {
    /// The material has the wrong length.
    #[error("{algorithm} needs {need} bytes of {what}, not {have}")]
    Length {
        /// Algorithm name.
        algorithm: &'static str,
        /// "key and salt" or "key".
        what: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes given.
        have: usize,
    },
    /// The engine cannot run the algorithm; said here, never on a packet.
    #[error("engine {engine} cannot run {algorithm}")]
    Unsupported {
        /// Engine name.
        engine: &'static str,
        /// Algorithm name.
        algorithm: &'static str,
    },
}

/// An expanded key of one suite for one engine. Zeroed on drop; has no `Debug`.
pub struct Key {
    pub(crate) suite: Suite,
}

/// The keys of one published snapshot.
#[derive(Default)]
pub struct KeyTable {
    slots: Vec<std::sync::Arc<Key>>,
}

impl KeyTable {
    /// Adds a key and returns its name.
    pub fn insert(&mut self, key: std::sync::Arc<Key>) -> KeyId {
        self.slots.push(key);
        KeyId(self.slots.len() as u32 - 1)
    }
}

/// Where an engine finds the key of an operation.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    /// Keys published by the control side.
    pub table: &'a KeyTable,
    /// Keys this core derived.
    pub derived: &'a DerivedKeys,
}
