//! Common interface of all methods, and the smallest of them: MD5-Challenge (RFC 3748 §5.4).

use crypto::ike::{Hash, Secret};
use ike::identity::Identity;
use subtle::ConstantTimeEq;

/// Result of a method for one packet of its type.
pub(super) enum Progress {
    /// Goes on with these type data; of a server in a request, of a client in a response.
    Go(Vec<u8>),
    /// A server: succeeded, with its MSK and the owner of the credentials.
    Done(Option<Secret>, Option<Identity>),
    /// Failed.
    Failed(String),
}

/// Meaning of an EAP-Success for a client in this state.
pub(super) enum Ready {
    /// The method has succeeded.
    Yes(Option<Secret>),
    No,
}

const CHALLENGE_LEN: usize = 16;

/// Type data of a challenge, and the challenge.
pub(super) fn md5_challenge() -> ([u8; CHALLENGE_LEN], Vec<u8>) {
    let mut challenge = [0; CHALLENGE_LEN];
    crypto::random(&mut challenge);
    let data = [&[CHALLENGE_LEN as u8], &challenge[..]].concat();
    (challenge, data)
}

/// The value of a challenge or response; a name may follow it.
fn value(data: &[u8]) -> Option<&[u8]> {
    let (len, rest) = data.split_first()?;
    rest.get(..usize::from(*len)).filter(|value| !value.is_empty())
}

/// Type data of a response.
pub(super) fn md5_response(id: u8, challenge: &[u8], secret: &[u8]) -> Option<Vec<u8>> {
    let digest = Hash::Md5.digest(&[&[id], secret, value(challenge)?]);
    Some([&[digest.len() as u8], &digest[..]].concat())
}

/// Returns whether the response is right.
pub(super) fn is_md5_response(id: u8, challenge: &[u8], secret: &[u8], response: &[u8]) -> bool {
    let digest = Hash::Md5.digest(&[&[id], secret, challenge]);
    value(response).is_some_and(|value| value.ct_eq(&digest).into())
}
