//! Derivation of the keys of one more SA, in both directions, where the hosts already share a
//! secret: what SAs per CPU (RFC 9611), Sub SAs (EESP) and SPIs (PSP) differ in (figure 3.7 of the
//! thesis). Messages and Diffie-Hellman are not part of it.

use std::hint::black_box;
use std::time::Instant;

use ports::clock::ticks;

use crypto::Suite;
use crypto::ike::Prf;
use crypto::kdf::{PspMasterKey, SubSaKdf, SubSaRoot, derive_psp_key};
use ipsec::Protocol;

use crate::host::clock::TickRate;
use stats::median;
use testbed::pair::{Lanes, PSP_SUITES, Subject};

/// Derivations of a batch, and batches: together a few milliseconds.
const BATCH: u32 = 200;
const BATCHES: usize = 15;
/// Length of nonces of IKE in bytes.
const NONCE: usize = 32;

/// Median nanoseconds of the derivation of the keys of both directions: of Sub SAs by HKDF-Expand,
/// of PSP from the master key, of others by prf+ of IKEv2 (RFC 7296 §2.17) with HMAC-SHA-256.
/// `None` for a suite that is none.
pub(crate) fn derive_ns(subject: &Subject) -> Option<f64> {
    let secret: [u8; 32] = std::array::from_fn(|at| at as u8 + 1);
    let mut keymat = [0; 256];
    match (subject.protocol, subject.lanes) {
        (Protocol::Psp, _) => {
            let of_one = median(&psp_ticks(&subject.suite)?);
            Some(2.0 * of_one * 1e9 / TickRate::of_this_machine().hz)
        }
        (Protocol::Eesp, Lanes::SubSas(_)) => {
            let length = Suite::parse_esp(&subject.keyword()).ok()?.enc_material_len();
            let root = SubSaRoot::new(SubSaKdf::HkdfSha256, &secret)?;
            Some(timed(|number| {
                for _ in 0..2 {
                    root.derive(number as u16, &mut keymat[..length]);
                    black_box(&keymat);
                }
            }))
        }
        (protocol, _) => {
            let suite = match protocol {
                Protocol::Ah => Suite::parse_ah(&subject.suite),
                _ => Suite::parse_esp(&subject.keyword()),
            };
            let suite = suite.ok()?;
            let length = 2 * (suite.enc_material_len() + suite.integ_material_len());
            let prf = Prf::from_name("prfsha256")?;
            let mut nonces = [0; 2 * NONCE];
            Some(timed(|number| {
                nonces[..4].copy_from_slice(&number.to_be_bytes());
                prf.plus(&secret, &[&nonces], &mut keymat[..length]);
                black_box(&keymat);
            }))
        }
    }
}

/// Ticks of the derivation of the key of one SPI of PSP at its receiver, by batch; `None` for an
/// unknown suite.
pub(crate) fn psp_ticks(suite: &str) -> Option<[f64; BATCHES]> {
    let version = PSP_SUITES.iter().position(|known| *known == suite)? as u8;
    let master = PspMasterKey::new(&std::array::from_fn(|at| at as u8 + 1));
    Some(std::array::from_fn(|at| {
        let start = ticks();
        for number in 0..BATCH {
            // SPIs below 0x100 are reserved.
            black_box(derive_psp_key(&master, 0x100 + at as u32 * BATCH + number, version).key());
        }
        (ticks() - start) as f64 / f64::from(BATCH)
    }))
}

fn timed(mut derive: impl FnMut(u32)) -> f64 {
    let batch = |at: usize| {
        let began = Instant::now();
        (0..BATCH).for_each(|number| derive(at as u32 * BATCH + number));
        began.elapsed().as_nanos() as f64 / f64::from(BATCH)
    };
    median(&(0..BATCHES).map(batch).collect::<Vec<f64>>())
}

#[cfg(test)]
mod tests {
    use crypto::Engine;

    use super::*;
    use testbed::pair::Shape;

    #[test]
    fn every_kind_of_sa_has_a_derivation() {
        let subject = |protocol, suite: &str| Subject::new(protocol, Shape::Tunnel, suite, Engine::AwsLc);
        for (subject, known) in [
            (subject(Protocol::Esp, "aes128gcm16"), true),
            (subject(Protocol::Ah, "sha256"), true),
            (subject(Protocol::Psp, "aes128gcm16"), true),
            (Subject { lanes: Lanes::SubSas(None), ..subject(Protocol::Eesp, "aes128gcm16") }, true),
            (subject(Protocol::Psp, "aes128-sha1"), false),
            (subject(Protocol::Esp, "nothing"), false),
        ] {
            assert_eq!(derive_ns(&subject).is_some_and(|ns| ns > 0.0), known, "{subject:?}");
        }
    }

    #[test]
    fn every_suite_of_psp_has_a_derivation_and_others_have_none() {
        for suite in PSP_SUITES {
            assert!(psp_ticks(suite).is_some_and(|batches| batches.iter().all(|ticks| *ticks > 0.0)), "{suite}");
        }
        assert_eq!(psp_ticks("aes128-sha1"), None);
    }
}
