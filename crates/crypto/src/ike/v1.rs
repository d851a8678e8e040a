//! The cipher of IKEv1 (RFC 2409 §5): CBC with an IV chained from one message to the next.

use crate::engine::Cipher;
use crate::{CipherKind, EncAlg, KeyError};

/// AES, Triple DES or DES in CBC mode. The caller holds the IV: where it starts and how it goes on
/// is the protocol's business. Zeroed on drop; has no `Debug`. It authenticates nothing: the hash
/// payload inside does.
pub struct V1Cipher {
    enc: &'static EncAlg,
    cipher: Box<Cipher>,
}

/// The body is not whole blocks, or the IV is not one block: nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not whole cipher blocks")]
pub struct NotWholeBlocks;

impl V1Cipher {
    /// Expands a key.
    ///
    /// # Errors
    /// [`KeyError`] when the length is wrong or the algorithm is not CBC.
    pub fn new(enc: &'static EncAlg, key: &[u8]) -> Result<Self, KeyError> {
        if key.len() != enc.key_len {
            let (need, have) = (enc.key_len, key.len());
            return Err(KeyError::Length { algorithm: enc.name, what: "key", need, have });
        }
        let unsupported = KeyError::Unsupported { engine: "IKEv1", algorithm: enc.name };
        let cbc = matches!(enc.kind, CipherKind::AesCbc | CipherKind::TripleDesCbc | CipherKind::DesCbc);
        let cipher = Cipher::new(enc, key, &[]).filter(|_| cbc).ok_or(unsupported)?;
        Ok(Self { enc, cipher: Box::new(cipher) })
    }

    /// Bytes of a block and of the IV.
    pub fn block_len(&self) -> usize {
        self.enc.block_len
    }

    /// Encrypts whole blocks and leaves the last one in `iv`.
    ///
    /// # Errors
    /// [`NotWholeBlocks`], with nothing changed.
    pub fn encrypt_in_place(&self, iv: &mut [u8], body: &mut [u8]) -> Result<(), NotWholeBlocks> {
        let start = self.start(iv, body)?;
        let done = self.cipher.apply(&start, body, true);
        debug_assert!(done, "whole blocks");
        if let Some(at) = body.len().checked_sub(iv.len()) {
            iv.copy_from_slice(&body[at..]);
        }
        Ok(())
    }

    /// Decrypts whole blocks and leaves the last block of ciphertext in `iv`. If the message turns
    /// out to be invalid, continue with the previous `iv`.
    ///
    /// # Errors
    /// [`NotWholeBlocks`], with nothing changed.
    pub fn decrypt_in_place(&self, iv: &mut [u8], body: &mut [u8]) -> Result<(), NotWholeBlocks> {
        let start = self.start(iv, body)?;
        if let Some(at) = body.len().checked_sub(iv.len()) {
            iv.copy_from_slice(&body[at..]);
        }
        let done = self.cipher.apply(&start, body, false);
        debug_assert!(done, "whole blocks");
        Ok(())
    }

    fn start(&self, iv: &[u8], body: &[u8]) -> Result<[u8; 16], NotWholeBlocks> {
        if iv.len() != self.block_len() || !body.len().is_multiple_of(self.block_len()) {
            return Err(NotWholeBlocks);
        }
        let mut start = [0; 16];
        start[..iv.len()].copy_from_slice(iv);
        Ok(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_messages_are_one_chain() {
        for name in ["aes128", "aes192", "aes256", "3des", "des"] {
            let enc = EncAlg::by_name(name).expect("a name");
            let key: Vec<u8> = (0..enc.key_len as u8).collect();
            let cipher = V1Cipher::new(enc, &key).expect("a key");
            let block = cipher.block_len();
            let plain: Vec<u8> = (0..6 * block as u8).collect();
            let (mut whole, mut iv) = (plain.clone(), vec![9; block]);
            cipher.encrypt_in_place(&mut iv, &mut whole).expect("whole blocks");
            assert_eq!(iv, whole[5 * block..]);

            let (mut parts, mut iv) = (plain.clone(), vec![9; block]);
            let (first, second) = parts.split_at_mut(2 * block);
            cipher.encrypt_in_place(&mut iv, first).expect("whole blocks");
            cipher.encrypt_in_place(&mut iv, &mut []).expect("no block");
            cipher.encrypt_in_place(&mut iv, second).expect("whole blocks");
            assert_eq!(parts, whole);

            let mut iv = vec![9; block];
            let (first, second) = parts.split_at_mut(4 * block);
            cipher.decrypt_in_place(&mut iv, first).expect("whole blocks");
            cipher.decrypt_in_place(&mut iv, second).expect("whole blocks");
            assert_eq!((parts, iv), (plain.clone(), whole[5 * block..].to_vec()));

            let mut odd = plain.clone();
            assert_eq!(cipher.encrypt_in_place(&mut vec![9; block], &mut odd[1..]), Err(NotWholeBlocks));
            assert_eq!(cipher.decrypt_in_place(&mut vec![9; block + 1], &mut odd), Err(NotWholeBlocks));
            assert_eq!(odd, plain);
        }
    }

    #[test]
    fn other_ciphers_and_lengths_make_no_key() {
        for enc in EncAlg::all() {
            let cbc = matches!(enc.name, "aes128" | "aes192" | "aes256" | "3des" | "des");
            assert_eq!(V1Cipher::new(enc, &vec![1; enc.key_len]).is_ok(), cbc, "{}", enc.name);
            assert!(V1Cipher::new(enc, &vec![1; enc.key_len + 1]).is_err());
        }
    }
}
