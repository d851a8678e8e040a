//! Key exchanges.

use super::{KeFault, Secret, mirror};
use crate::meter::{Operation, is_null, timed};

mirror! {
    /// A key exchange method.
    KeMethod {
        Modp1024, Modp1536, Modp2048, Modp3072, Modp4096, Modp6144, Modp8192,
        Ecp256, Ecp384, Ecp521, X25519, MlKem512, MlKem768, MlKem1024,
    }
}

/// Byte of which public values and secrets of the null provider consist.
const NULL: u8 = 0x55;
/// Bytes of the secret of an ML-KEM.
const KEM_SECRET: usize = 32;

#[allow(missing_docs)] // As in weir-crypto.
impl KeMethod {
    pub fn all() -> impl Iterator<Item = Self> {
        crypto::ike::KeMethod::all().map(Self::of)
    }

    pub fn id(self) -> u16 {
        self.real().id()
    }

    pub fn from_id(id: u16) -> Option<Self> {
        crypto::ike::KeMethod::from_id(id).map(Self::of)
    }

    pub fn name(self) -> &'static str {
        self.real().name()
    }

    pub fn aliases(self) -> &'static [&'static str] {
        self.real().aliases()
    }

    pub fn from_name(name: &str) -> Option<Self> {
        crypto::ike::KeMethod::from_name(name).map(Self::of)
    }

    pub fn vici_name(self) -> &'static str {
        self.real().vici_name()
    }

    pub fn weak(self) -> bool {
        self.real().weak()
    }

    pub fn is_kem(self) -> bool {
        self.real().is_kem()
    }

    pub fn initiator_public_len(self) -> usize {
        self.real().initiator_public_len()
    }

    pub fn responder_public_len(self) -> usize {
        self.real().responder_public_len()
    }

    #[track_caller]
    pub fn generate(self) -> Result<KeInitiator, KeFault> {
        timed(Operation::KeGenerate, || match is_null() {
            true => Ok(KeInitiator { method: self, public: vec![NULL; self.initiator_public_len()], real: None }),
            false => {
                let real = self.real().generate()?;
                Ok(KeInitiator { method: self, public: real.public().to_vec(), real: Some(real) })
            }
        })
    }

    /// As that of weir-crypto, with both halves of Diffie-Hellman timed apart.
    #[track_caller]
    pub fn respond(self, peer_public: &[u8]) -> Result<(Vec<u8>, Secret), KeFault> {
        self.length(self.initiator_public_len(), peer_public)?;
        if self.is_kem() {
            return timed(Operation::KeAgree, || match is_null() {
                true => Ok((vec![NULL; self.responder_public_len()], self.null_secret())),
                false => self.real().respond(peer_public),
            });
        }
        let own = self.generate()?;
        let public = own.public.clone();
        Ok((public, own.finish(peer_public)?))
    }

    #[track_caller]
    pub fn check(self, peer_public: &[u8]) -> Result<(), KeFault> {
        timed(Operation::KeCheck, || match is_null() {
            true => self.length(self.initiator_public_len(), peer_public),
            false => self.real().check(peer_public),
        })
    }

    fn length(self, need: usize, peer_public: &[u8]) -> Result<(), KeFault> {
        let (method, have) = (self.name(), peer_public.len());
        if need == have { Ok(()) } else { Err(KeFault::Length { method, need, have }) }
    }

    fn null_secret(self) -> Secret {
        Secret::new(vec![NULL; if self.is_kem() { KEM_SECRET } else { self.initiator_public_len() }])
    }
}

/// A key pair that waits for the responder's answer.
pub struct KeInitiator {
    method: KeMethod,
    public: Vec<u8>,
    /// `None` with the null provider.
    real: Option<crypto::ike::KeInitiator>,
}

#[allow(missing_docs)] // As in weir-crypto.
impl KeInitiator {
    pub fn method(&self) -> KeMethod {
        self.method
    }

    pub fn public(&self) -> &[u8] {
        &self.public
    }

    #[track_caller]
    pub fn finish(self, peer_public: &[u8]) -> Result<Secret, KeFault> {
        self.method.length(self.method.responder_public_len(), peer_public)?;
        timed(Operation::KeAgree, || match self.real {
            Some(real) => real.finish(peer_public),
            None => Ok(self.method.null_secret()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::{Provider, begin};

    #[test]
    fn both_providers_agree_with_values_of_the_same_lengths() {
        let exchange = |method: KeMethod| {
            let initiator = method.generate().expect("a key pair");
            method.check(initiator.public()).expect("a public value");
            let (public, ours) = method.respond(initiator.public()).expect("an answer");
            let lengths = (initiator.public().len(), public.len(), ours.len());
            assert!(initiator.finish(&public).expect("a secret") == ours, "{method:?}");
            lengths
        };
        for method in KeMethod::all().filter(|method| method.initiator_public_len() < 400 || method.is_kem()) {
            let real = exchange(method);
            let measuring = begin(Provider::Null, None);
            // A curve of 521 bits and one of 256 have secrets of one coordinate.
            let null = exchange(method);
            drop(measuring);
            assert_eq!((real.0, real.1), (null.0, null.1), "{method:?}");
            assert!(method.respond(&[1]).is_err());
        }
    }
}
