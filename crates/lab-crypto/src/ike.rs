//! Cryptography of IKE: the interface of `weir_crypto::ike` as far as `weir-ike` uses it.

mod cipher;
mod exchange;
mod functions;
mod sign;

pub use cipher::{SkKey, V1Cipher};
pub use crypto::ike::{
    Curve, HashId, KeFault, KeyFault, NotWholeBlocks, OpenFault, PublicKey, PublicKeyKind, Secret, SignatureFault,
    SignatureScheme, SkSuite,
};
pub use exchange::{KeInitiator, KeMethod};
pub use functions::{Hash, Prf};
pub use sign::PrivateKey;

/// An enum with the variants of another one, so that functions of the same names can be timed. A
/// variant that is missing here does not compile.
macro_rules! mirror {
    ($(#[$doc:meta])* $name:ident { $($variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[allow(missing_docs)]
        pub enum $name { $($variant),+ }

        impl $name {
            pub(super) fn real(self) -> crypto::ike::$name {
                match self { $(Self::$variant => crypto::ike::$name::$variant),+ }
            }

            fn of(real: crypto::ike::$name) -> Self {
                match real { $(crypto::ike::$name::$variant => Self::$variant),+ }
            }
        }
    };
}
use mirror;

/// Result of a function of the null provider: the first bytes of its input, repeated, and the
/// length of the input, so that messages of one header differ.
fn repeat(parts: &[&[u8]], out: &mut [u8]) {
    let mut first = [0_u8; 32];
    let bytes = parts.iter().flat_map(|part| part.iter().copied());
    first.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    let len: usize = parts.iter().map(|part| part.len()).sum();
    first[0] ^= len as u8;
    first[1] ^= (len >> 8) as u8;
    out.chunks_mut(first.len()).for_each(|chunk| chunk.copy_from_slice(&first[..chunk.len()]));
}
