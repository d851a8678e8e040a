//! Key derivation for PSP and for EESP Sub SAs.

/// A PSP master key (256 bits). Zeroed on drop.
pub struct PspMasterKey(#[allow(dead_code)] [u8; 32]);
