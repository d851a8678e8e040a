//! Protection of messages.

use std::ops::Range;

use super::{NotWholeBlocks, OpenFault, SkSuite};
use crate::meter::{Operation, is_null, timed};
use crate::{EncAlg, KeyError};

/// The keys of one direction of IKEv2.
pub struct SkKey {
    suite: SkSuite,
    /// `None` with the null provider.
    real: Option<crypto::ike::SkKey>,
}

#[allow(missing_docs)] // As in weir-crypto.
impl SkKey {
    #[track_caller]
    pub fn new(suite: SkSuite, enc: &[u8], integ: &[u8]) -> Result<Self, KeyError> {
        timed(Operation::KeyExpand, || {
            let real = if is_null() { None } else { Some(crypto::ike::SkKey::new(suite, enc, integ)?) };
            Ok(Self { suite, real })
        })
    }

    pub fn suite(&self) -> &SkSuite {
        &self.suite
    }

    pub fn sealed_len(&self, plaintext_len: usize) -> usize {
        self.suite.sealed_len(plaintext_len)
    }

    #[track_caller]
    pub fn seal(
        &self,
        message: &mut Vec<u8>,
        sk_body_at: usize,
        plaintext: &[u8],
        iv_random: &mut dyn FnMut(&mut [u8]),
    ) {
        timed(Operation::Encrypt, || {
            if let Some(real) = &self.real {
                return real.seal(message, sk_body_at, plaintext, iv_random);
            }
            let body_at = sk_body_at + self.suite.iv_len();
            let end = sk_body_at + self.sealed_len(plaintext.len());
            message.resize(body_at, 0);
            message.extend_from_slice(plaintext);
            message.resize(end, 0);
            let pad_at = end - self.suite.icv_len() - 1;
            message[pad_at] = (pad_at - body_at - plaintext.len()) as u8;
        });
    }

    #[track_caller]
    pub fn open(&self, message: &mut [u8], sk_body_at: usize) -> Result<Range<usize>, OpenFault> {
        timed(Operation::Decrypt, || {
            if let Some(real) = &self.real {
                return real.open(message, sk_body_at);
            }
            let body_at = sk_body_at + self.suite.iv_len();
            let pad_at = (message.len() - 1).checked_sub(self.suite.icv_len()).filter(|at| *at >= body_at);
            let pad_at = pad_at.ok_or(OpenFault::Length)?;
            let end = pad_at.checked_sub(message[pad_at].into()).filter(|at| *at >= body_at);
            Ok(body_at..end.ok_or(OpenFault::Padding)?)
        })
    }
}

/// The cipher of IKEv1.
pub struct V1Cipher {
    enc: &'static EncAlg,
    /// `None` with the null provider.
    real: Option<crypto::ike::V1Cipher>,
}

#[allow(missing_docs)] // As in weir-crypto.
impl V1Cipher {
    #[track_caller]
    pub fn new(enc: &'static EncAlg, key: &[u8]) -> Result<Self, KeyError> {
        timed(Operation::KeyExpand, || {
            let real = if is_null() { None } else { Some(crypto::ike::V1Cipher::new(enc, key)?) };
            Ok(Self { enc, real })
        })
    }

    pub fn block_len(&self) -> usize {
        self.enc.block_len
    }

    #[track_caller]
    pub fn encrypt_in_place(&self, iv: &mut [u8], body: &mut [u8]) -> Result<(), NotWholeBlocks> {
        timed(Operation::Encrypt, || match &self.real {
            Some(real) => real.encrypt_in_place(iv, body),
            None => self.identity(iv, body),
        })
    }

    #[track_caller]
    pub fn decrypt_in_place(&self, iv: &mut [u8], body: &mut [u8]) -> Result<(), NotWholeBlocks> {
        timed(Operation::Decrypt, || match &self.real {
            Some(real) => real.decrypt_in_place(iv, body),
            None => self.identity(iv, body),
        })
    }

    /// Leaves the body as it is, and its last block in `iv`.
    fn identity(&self, iv: &mut [u8], body: &[u8]) -> Result<(), NotWholeBlocks> {
        if iv.len() != self.block_len() || !body.len().is_multiple_of(self.block_len()) {
            return Err(NotWholeBlocks);
        }
        if let Some(at) = body.len().checked_sub(iv.len()) {
            iv.copy_from_slice(&body[at..]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::{Provider, begin};

    #[test]
    fn a_message_of_the_null_provider_has_the_length_of_a_real_one_and_opens() {
        for (enc, integ) in [(12, 12), (20, 0), (28, 0)] {
            let suite = SkSuite::from_ids(enc, if enc == 28 { 0 } else { 128 }, integ).expect("a suite");
            let (enc, integ) = (vec![1; suite.enc_key_len()], vec![2; suite.integ_key_len()]);
            for len in [0, 1, 15, 16, 100] {
                let sealed = || {
                    let key = SkKey::new(suite, &enc, &integ).expect("a key");
                    let mut message = vec![9; 32];
                    key.seal(&mut message, 32, &vec![7; len], &mut |iv| iv.fill(3));
                    let length = message.len();
                    let range = key.open(&mut message, 32).expect("it is authentic");
                    assert_eq!(message[range], vec![7; len]);
                    length
                };
                let real = sealed();
                let measuring = begin(Provider::Null, None);
                assert_eq!(sealed(), real, "{suite:?} {len}");
                drop(measuring);
            }
        }
    }

    #[test]
    fn a_chain_of_blocks_goes_on_without_a_cipher() {
        let measuring = begin(Provider::Null, None);
        let enc = EncAlg::by_name("3des").expect("a name");
        let cipher = V1Cipher::new(enc, &[]).expect("no key is needed");
        let (mut iv, mut body) = (vec![9; 8], (0..16).collect::<Vec<u8>>());
        cipher.encrypt_in_place(&mut iv, &mut body).expect("whole blocks");
        assert_eq!((&iv[..], &body[..8]), (&body[8..], &[0, 1, 2, 3, 4, 5, 6, 7][..]));
        assert!(cipher.decrypt_in_place(&mut iv, &mut body[..7]).is_err());
        drop(measuring);
    }
}
