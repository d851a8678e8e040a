//! The arithmetic of MS-CHAPv2 (RFC 2759) and its key derivation (RFC 3079), for EAP-MSCHAPv2.
//!
//! Weak by today's standards: from an observed exchange the password's hash can be found by trying
//! 2⁵⁶ DES keys. Inside IKEv2 only the authenticated server sees it.

use zeroize::{Zeroize, Zeroizing};

use super::{Hash, Secret, foreign};
use crate::engine::DesCbc;

/// MD4 of a password: what a server may keep instead of it. Zeroed on drop; has no `Debug`.
pub struct NtPasswordHash(Zeroizing<[u8; 16]>);

/// Inputs of both sides to an exchange.
#[derive(Clone, Copy)]
pub struct Exchange<'a> {
    /// The server's challenge.
    pub authenticator_challenge: &'a [u8; 16],
    /// The client's challenge.
    pub peer_challenge: &'a [u8; 16],
    /// The user's name without a domain in front, as it was sent.
    pub user_name: &'a [u8],
}

impl Exchange<'_> {
    /// ChallengeHash (RFC 2759 §8.2).
    fn hash(&self) -> [u8; 8] {
        let parts = [&self.peer_challenge[..], self.authenticator_challenge, self.user_name];
        *Hash::Sha1.digest(&parts).first_chunk().expect("SHA-1 has 20 bytes")
    }
}

const SERVER_SIGNING: &[u8] = b"Magic server to client signing constant";
const MORE_ITERATIONS: &[u8] = b"Pad to make it do more than one iteration";
const MASTER_KEY: &[u8] = b"This is the MPPE Master Key";
const TO_SERVER: &[u8] = b"On the client side, this is the send key; on the server side, it is the receive key.";
const TO_CLIENT: &[u8] = b"On the client side, this is the receive key; on the server side, it is the send key.";

impl NtPasswordHash {
    /// NtPasswordHash (RFC 2759 §8.3): of the password in UTF-16, low byte first.
    pub fn of_password(password: &str) -> Self {
        let mut unicode = Zeroizing::new(Vec::with_capacity(2 * password.len()));
        password.encode_utf16().for_each(|unit| unicode.extend_from_slice(&unit.to_le_bytes()));
        Self(Zeroizing::new(foreign::md4(&unicode)))
    }

    /// A hash that was kept. The caller zeroes its own copy.
    pub fn from_bytes(hash: &[u8; 16]) -> Self {
        Self(Zeroizing::new(*hash))
    }

    /// GenerateNTResponse (RFC 2759 §8.1): what a client sends. A server compares it with
    /// [`NtPasswordHash::is_nt_response`].
    pub fn nt_response(&self, exchange: &Exchange<'_>) -> [u8; 24] {
        let mut keys = Zeroizing::new([0; 21]);
        keys[..16].copy_from_slice(&self.0[..]);
        let challenge = exchange.hash();
        let mut response = [0; 24];
        for (key, part) in keys.as_chunks::<7>().0.iter().zip(response.chunks_exact_mut(8)) {
            part.copy_from_slice(&des(key, challenge));
        }
        response
    }

    /// True when `response` is what a client with this password sends; in constant time.
    pub fn is_nt_response(&self, exchange: &Exchange<'_>, response: &[u8; 24]) -> bool {
        crate::engine::equal(&self.nt_response(exchange), response)
    }

    /// GenerateAuthenticatorResponse (RFC 2759 §8.7): proof of the server that it has the
    /// password, `S=` and 40 hexadecimal digits.
    pub fn authenticator_response(&self, exchange: &Exchange<'_>, nt_response: &[u8; 24]) -> String {
        let digest = Hash::Sha1.digest(&[&self.hash()[..], nt_response, SERVER_SIGNING]);
        let digest = Hash::Sha1.digest(&[&digest, &exchange.hash(), MORE_ITERATIONS]);
        digest.iter().fold("S=".to_owned(), |text, byte| text + &format!("{byte:02X}"))
    }

    /// The MSK of EAP-MSCHAPv2, 64 bytes: the keys of RFC 3079 §3 towards the server and towards
    /// the client, 16 bytes each, and zeros. Both sides get the same.
    pub fn msk(&self, nt_response: &[u8; 24]) -> Secret {
        let mut master = Hash::Sha1.digest(&[&self.hash()[..], nt_response, MASTER_KEY]);
        let mut msk = vec![0; 64];
        for (key, magic) in msk.chunks_exact_mut(16).zip([TO_SERVER, TO_CLIENT]) {
            let mut digest = Hash::Sha1.digest(&[&master[..16], &[0; 40], magic, &[0xf2; 40]]);
            key.copy_from_slice(&digest[..16]);
            digest.zeroize();
        }
        master.zeroize();
        Secret::new(msk)
    }

    /// HashNtPasswordHash (RFC 2759 §8.4).
    fn hash(&self) -> Zeroizing<[u8; 16]> {
        Zeroizing::new(foreign::md4(&self.0[..]))
    }
}

/// DesEncrypt (RFC 2759 §8.6): one block, with 7 bytes of key spread over 8, parity bits zero.
fn des(key: &[u8; 7], block: [u8; 8]) -> [u8; 8] {
    let mut wide = [0; 8];
    wide[1..].copy_from_slice(key);
    let bits = u64::from_be_bytes(wide);
    let mut spread: [u8; 8] = std::array::from_fn(|at| ((bits >> (49 - 7 * at)) as u8) << 1);
    let cipher = DesCbc::<1>::new(&spread).expect("8 bytes are a DES key");
    spread.zeroize();
    wide.zeroize();
    let mut out = block;
    let done = cipher.cbc([0; 8], &mut out, true);
    debug_assert!(done, "one block");
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::unhex;
    use super::*;

    fn array<const LEN: usize>(hex: &str) -> [u8; LEN] {
        unhex(hex).try_into().expect("the length")
    }

    /// The example of RFC 2759 §9.2, and of RFC 3079 §3.5.3 with the same values.
    #[test]
    fn the_example_of_the_rfcs() {
        let (authenticator_challenge, peer_challenge) =
            (array("5B5D7C7D7B3F2F3E3C2C602132262628"), array("21402324255E262A28295F2B3A337C7E"));
        let exchange = Exchange {
            authenticator_challenge: &authenticator_challenge,
            peer_challenge: &peer_challenge,
            user_name: b"User",
        };
        let password = NtPasswordHash::of_password("clientPass");
        assert_eq!(exchange.hash(), array("D02E4386BCE91226"));
        assert_eq!(*password.0, array("44EBBA8D5312B8D611474411F56989AE"));
        assert_eq!(*password.hash(), array("41C00C584BD2D91C4017A2A12FA59F3F"));
        let response = password.nt_response(&exchange);
        assert_eq!(response, array("82309ECD8D708B5EA08FAA3981CD83544233114A3D85D6DF"));
        assert!(password.is_nt_response(&exchange, &response));
        assert!(!NtPasswordHash::of_password("clientpass").is_nt_response(&exchange, &response));
        assert_eq!(password.authenticator_response(&exchange, &response), "S=407A5589115FD0D6209F510FE9C04566932CDA56");
        let msk = password.msk(&response);
        // The RFC's SendStartKey128 is the server's: towards the client.
        assert_eq!(msk[16..32], array::<16>("8B7CDC149B993A1BA118CB153F56DCCB"));
        assert_ne!(msk[..16], msk[16..32]);
        assert_eq!((msk.len(), &msk[32..]), (64, &[0; 32][..]));
        let kept = NtPasswordHash::from_bytes(&password.0);
        assert!(kept.is_nt_response(&exchange, &response));
    }

    #[test]
    fn passwords_are_utf_16() {
        // MD4 of the empty string (RFC 1320 §A.5).
        assert_eq!(*NtPasswordHash::of_password("").0, array("31d6cfe0d16ae931b73c59d7e0c089c0"));
        assert_eq!(*NtPasswordHash::of_password("é€").0, foreign::md4(&[0xe9, 0, 0xac, 0x20]));
        assert_eq!(*NtPasswordHash::of_password("𝄞").0, foreign::md4(&[0x34, 0xd8, 0x1e, 0xdd]));
        assert_eq!(foreign::md4(b"abc"), array("a448017aaf21d8525fc10ae87aa6729d"));
    }
}
