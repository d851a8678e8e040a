//! Keys of lanes: the SA's own, or those of its Sub SAs.

use crypto::kdf::SubSaRoot;
use crypto::{Engine, Key, KeyError, KeyMaterial, Suite};
use zeroize::Zeroizing;

use super::{Spec, SubSaKdf};
use crate::SaError;

/// Longest key with salt of an AEAD: ChaCha20 and AES-256.
const MAX_MATERIAL: usize = 36;

/// Checks a specification with Sub SAs.
pub(super) fn check(kdf: SubSaKdf, root: &[u8], count: u32, session: u16) -> Result<(), SaError> {
    if !(1..=1 << 16).contains(&count) {
        return Err(SaError::Conflict("there are 1 to 65536 Sub SAs"));
    }
    if u32::from(session) >= count {
        return Err(SaError::Conflict("the Session ID to send on is not below the number of Sub SAs"));
    }
    if root.len() != kdf.root_len() {
        let (need, have) = (kdf.root_len(), root.len());
        return Err(KeyError::Length { algorithm: "the Sub SA key derivation", what: "root key", need, have }.into());
    }
    Ok(())
}

/// Makes the keys of an SA's lanes.
pub(super) struct KeySource {
    suite: Suite,
    engine: Engine,
    origin: Origin,
}

enum Origin {
    /// Key with salt.
    Key(Zeroizing<Vec<u8>>),
    Root(Box<SubSaRoot>),
}

impl KeySource {
    /// Only a specification that was checked has keys of the right length here.
    pub(super) fn new(spec: &Spec<'_>, engine: Engine) -> Self {
        let root = spec.sub_sas.and_then(|(kdf, _)| SubSaRoot::new(kdf, spec.key));
        let origin =
            root.map_or_else(|| Origin::Key(Zeroizing::new(spec.key.to_vec())), |root| Origin::Root(Box::new(root)));
        Self { suite: spec.suite, engine, origin }
    }

    /// The key of `session`, expanded for the engine.
    pub(super) fn key(&self, session: u16) -> Result<Key, KeyError> {
        let expand = |enc: &[u8]| self.engine.expand(&self.suite, KeyMaterial { enc, integ: &[] });
        match &self.origin {
            Origin::Key(key) => expand(key),
            Origin::Root(root) => {
                let mut material = Zeroizing::new([0; MAX_MATERIAL]);
                let material = &mut material[..self.suite.enc_material_len()];
                root.derive(session, material);
                expand(material)
            }
        }
    }
}
