//! Cookies: proof that an initiator receives at its address, without state here (RFC 7296 §2.6).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crypto::ike::Prf;
use rand_core::RngCore;
use subtle::ConstantTimeEq;

use crate::output::IkeSpi;

/// Lifetime of a secret for new cookies; it verifies them for the same time again.
const ROTATION: Duration = Duration::from_secs(120);
/// Bytes of the MAC.
const MAC_LEN: usize = 16;
/// Bytes of a cookie: generation of the secret and MAC.
pub(crate) const COOKIE_LEN: usize = 4 + MAC_LEN;

/// The secrets of an endpoint: the newest and the one before.
#[derive(Default)]
pub(crate) struct Cookies {
    secrets: Option<[[u8; 32]; 2]>,
    generation: u32,
    made: Option<Instant>,
}

impl Cookies {
    fn rotate(&mut self, now: Instant, rng: &mut dyn RngCore) {
        let age = self.made.map(|made| now.saturating_duration_since(made));
        // Rotated on demand, so that an idle endpoint needs no timer.
        if age.is_some_and(|age| age < ROTATION) {
            return;
        }
        let mut fresh = [0; 32];
        rng.fill_bytes(&mut fresh);
        // After a long time without requests both secrets are too old.
        let mut before = self.secrets.map_or(fresh, |[newest, _]| newest);
        if age.is_none_or(|age| age >= 2 * ROTATION) {
            rng.fill_bytes(&mut before);
        }
        self.secrets = Some([fresh, before]);
        // VersionIDofSecret of RFC 7296 §2.6: it selects the secret, so that a check computes one
        // MAC instead of two.
        self.generation = self.generation.wrapping_add(1);
        self.made = Some(now);
    }

    /// The cookie for an initiator.
    pub(crate) fn make(&mut self, now: Instant, rng: &mut dyn RngCore, initiator: Initiator<'_>) -> [u8; COOKIE_LEN] {
        self.rotate(now, rng);
        let [secret, _] = self.secrets.unwrap_or_default();
        cookie(&secret, self.generation, initiator)
    }

    /// Was this cookie made for this initiator, not too long ago?
    pub(crate) fn check(
        &mut self,
        now: Instant,
        rng: &mut dyn RngCore,
        initiator: Initiator<'_>,
        shown: &[u8],
    ) -> bool {
        self.rotate(now, rng);
        let Some((generation, _)) = shown.split_first_chunk().filter(|_| shown.len() == COOKIE_LEN) else {
            return false;
        };
        let generation = u32::from_be_bytes(*generation);
        // The previous secret stays valid, because a cookie may be returned after a rotation.
        let [newest, before] = self.secrets.unwrap_or_default();
        let secret = match self.generation.wrapping_sub(generation) {
            0 => newest,
            1 => before,
            _ => return false,
        };
        // Constant time: otherwise an attacker could guess the MAC byte by byte.
        cookie(&secret, generation, initiator).ct_eq(shown).into()
    }
}

/// Properties of an initiator that its cookie covers.
#[derive(Clone, Copy)]
pub(crate) struct Initiator<'a> {
    pub(crate) from: IpAddr,
    pub(crate) spi: IkeSpi,
    pub(crate) nonce: &'a [u8],
}

fn cookie(secret: &[u8; 32], generation: u32, initiator: Initiator<'_>) -> [u8; COOKIE_LEN] {
    let Initiator { from, spi, nonce } = initiator;
    // One length for both families. With a variable length, the border between address and nonce
    // would be ambiguous in the MAC input.
    let address = match from {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    // RFC 7296 §2.6: a function of the nonce, the address and SPIi, so that this host needs no
    // state until the initiator has proved its address. The port is not included, because a NAT may
    // change it.
    let mac = Prf::HmacSha256.compute(secret, &[&spi.0, &address, nonce]);
    let mut cookie = [0; COOKIE_LEN];
    cookie[..4].copy_from_slice(&generation.to_be_bytes());
    cookie[4..].copy_from_slice(&mac[..MAC_LEN]);
    cookie
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // a test begins at some time
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng;

    use super::*;

    #[test]
    fn a_cookie_is_good_for_its_initiator_between_two_and_four_minutes() {
        let (mut cookies, mut rng, start) = (Cookies::default(), ChaCha20Rng::seed_from_u64(1), Instant::now());
        let (from, spi, nonce) = (IpAddr::from([192, 0, 2, 1]), IkeSpi([7; 8]), [9; 32]);
        let cookie = cookies.make(start, &mut rng, Initiator { from, spi, nonce: &nonce });
        let mut check = |after, from, spi: IkeSpi, nonce: [u8; 32], shown: &[u8]| {
            cookies.check(start + Duration::from_secs(after), &mut rng, Initiator { from, spi, nonce: &nonce }, shown)
        };
        assert!(check(0, from, spi, nonce, &cookie));
        assert!(!check(0, IpAddr::from([192, 0, 2, 2]), spi, nonce, &cookie));
        assert!(!check(0, from, IkeSpi([8; 8]), nonce, &cookie) && !check(0, from, spi, [8; 32], &cookie));
        assert!(!check(0, from, spi, nonce, &cookie[1..]) && !check(0, from, spi, nonce, &[]));
        let mut changed = cookie;
        changed[COOKIE_LEN - 1] ^= 1;
        assert!(!check(0, from, spi, nonce, &changed));
        assert!(check(119, from, spi, nonce, &cookie) && check(121, from, spi, nonce, &cookie));
        assert!(check(239, from, spi, nonce, &cookie));
        assert!(!check(242, from, spi, nonce, &cookie));
    }

    #[test]
    fn after_a_long_pause_nothing_old_is_accepted() {
        let (mut cookies, mut rng, start) = (Cookies::default(), ChaCha20Rng::seed_from_u64(1), Instant::now());
        let from = IpAddr::from([192, 0, 2, 1]);
        let initiator = Initiator { from, spi: IkeSpi([7; 8]), nonce: &[9; 32] };
        let cookie = cookies.make(start, &mut rng, initiator);
        let later = start + Duration::from_secs(3600);
        assert!(!cookies.check(later, &mut rng, initiator, &cookie));
    }
}
