//! One trial: set-ups of a subject with and without cryptography, with and without the stopwatch,
//! in drawn order.

use std::time::{Duration, Instant};

use lab_crypto::meter::{Measuring, Provider, begin};
use ports::clock::ticks;
use stats::Rng;

use super::host;
use super::link::{NoSession, Pair, Sockets, Took};
use super::rows::{self, ROWS};
use super::subject::{Mode, Subject};
use crate::trial::Measurement;

/// Round trips of the simulated link, in milliseconds.
pub(crate) const DELAYS_MS: [u32; 4] = [0, 5, 20, 100];
/// Repetitions of a trial at least.
const LEAST: usize = 3;

/// Variants of a set-up: key in trials, provider, stopwatch, sockets.
const VARIANTS: [(&str, Provider, bool, bool); 4] = [
    ("full", Provider::Library, false, false),
    ("skeleton", Provider::Null, false, false),
    ("timed", Provider::Library, true, false),
    ("sockets", Provider::Library, false, true),
];
const TIMED: usize = 2;

/// Set-ups of one subject.
pub(crate) struct Setups {
    subject: Subject,
    sockets: Option<Sockets>,
}

impl Setups {
    /// Prepares the keys of a subject.
    pub(crate) fn new(subject: Subject) -> Self {
        if subject.mode != Mode::Psp {
            host::prepare(subject.auth);
        }
        Self { subject, sockets: Sockets::new().ok() }
    }

    /// Sets sessions up for `duration`, each variant three times at least. Of each variant the
    /// fastest repetition counts: other load makes one slower, never faster.
    ///
    /// # Errors
    /// [`NoSession`].
    pub(crate) fn trial(&self, duration: Duration, seed: u64) -> Result<Measurement, NoSession> {
        if self.subject.mode == Mode::Psp {
            return Ok(psp(&self.subject));
        }
        let (start, mut rng) = (Instant::now(), Rng::new(seed));
        let mut best: [Option<Took>; VARIANTS.len()] = Default::default();
        let mut refreshes: [Option<u64>; 2] = [None; 2];
        let mut order: [usize; VARIANTS.len()] = std::array::from_fn(|at| at);
        let mut rounds = 0;
        while rounds < LEAST || start.elapsed() < duration {
            for at in (1..order.len()).rev() {
                order.swap(at, rng.below(at + 1));
            }
            for &variant in &order {
                if let Some(took) = self.variant(variant)? {
                    keep(&mut best[variant], took);
                }
            }
            for (ike, least) in [false, true].into_iter().zip(&mut refreshes) {
                let took = self.refresh(ike)?;
                *least = Some(least.map_or(took, |least| least.min(took)));
            }
            rounds += 1;
        }
        let mut measured = Measurement { sent: rounds as u64, received: rounds as u64, ..Measurement::default() };
        let mut value = |name: String, number: f64| {
            measured.values.insert(name, number);
        };
        for ((name, ..), took) in VARIANTS.iter().zip(&best) {
            let Some(took) = took else { continue };
            value(format!("{name}.initiator_ticks"), took.ticks[0] as f64);
            value(format!("{name}.responder_ticks"), took.ticks[1] as f64);
        }
        if let Some(timed) = &best[TIMED] {
            for (end, records) in ["initiator", "responder"].iter().zip(&timed.records) {
                for ((row, _), spent) in ROWS.iter().zip(rows::ticks(records)) {
                    value(format!("{end}.{row}_ticks"), spent);
                }
            }
            value("first_messages".into(), timed.first as f64);
            value("quick_messages".into(), timed.quick as f64);
            value("wire_bytes".into(), timed.bytes as f64);
        }
        for (name, least) in ["refresh_child_ticks", "refresh_ike_ticks"].into_iter().zip(refreshes) {
            least.into_iter().for_each(|least| value(name.into(), least as f64));
        }
        for delay in DELAYS_MS {
            let measuring = begin(Provider::Library, None);
            let mut pair = Pair::new(&self.subject, Duration::from_millis(delay.into()));
            let took = pair.set_up(&measuring, None)?;
            value(format!("elapsed_ms_at_{delay}_ms"), took.elapsed_ns as f64 / 1e6);
        }
        measured.dur_ns = start.elapsed().as_nanos() as u64;
        Ok(measured)
    }

    /// One set-up; `None` for sockets that this machine does not have.
    fn variant(&self, variant: usize) -> Result<Option<Took>, NoSession> {
        let (_, provider, timed, with_sockets) = VARIANTS[variant];
        let sockets = self.sockets.as_ref().filter(|_| with_sockets);
        if with_sockets && sockets.is_none() {
            return Ok(None);
        }
        let measuring = begin(provider, timed.then_some(ticks as fn() -> u64));
        Pair::new(&self.subject, Duration::ZERO).set_up(&measuring, sockets).map(Some)
    }

    /// Ticks of both ends for a rekeying.
    fn refresh(&self, ike: bool) -> Result<u64, NoSession> {
        let measuring = begin(Provider::Library, None);
        let mut pair = Pair::new(&self.subject, Duration::ZERO);
        pair.set_up(&measuring, None)?;
        let refresh: fn(&mut Pair, &Measuring) -> _ = if ike { Pair::refresh_ike } else { Pair::refresh_child };
        Ok(refresh(&mut pair, &measuring)?.ticks.iter().sum())
    }
}

fn keep(best: &mut Option<Took>, took: Took) {
    let total = |took: &Took| took.ticks.iter().sum::<u64>();
    if best.as_ref().is_none_or(|best| total(&took) < total(best)) {
        *best = Some(took);
    }
}

/// The derivation of one key at its receiver, in ticks: the least of a batch of batches.
fn psp_ticks(suite: &str) -> f64 {
    use crypto::kdf::{PspMasterKey, derive_psp_key};
    const BATCH: u32 = 200;
    let version = crate::pair::PSP_SUITES.iter().position(|known| *known == suite).unwrap_or(0) as u8;
    let master = PspMasterKey::new(&std::array::from_fn(|at| at as u8 + 1));
    let batch = |_| {
        let start = ticks();
        (0..BATCH).for_each(|number| {
            std::hint::black_box(derive_psp_key(&master, 0x100 + number, version).key());
        });
        (ticks() - start) as f64 / f64::from(BATCH)
    };
    (0..15).map(batch).fold(f64::INFINITY, f64::min)
}

/// PSP: the receiver derives, and both take the key that the connection carries. Its messages and
/// their protection are those of that connection.
fn psp(subject: &Subject) -> Measurement {
    let start = Instant::now();
    let derived = psp_ticks(&subject.suite);
    let mut measured = Measurement { sent: 1, received: 1, ..Measurement::default() };
    measured.values.insert("full.responder_ticks".into(), derived);
    measured.values.insert("full.initiator_ticks".into(), 0.0);
    measured.dur_ns = start.elapsed().as_nanos() as u64;
    measured
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &str) -> Measurement {
        let setups = Setups::new(name.parse().unwrap());
        setups.trial(Duration::ZERO, 1).unwrap_or_else(|why| panic!("{name}: {why}"))
    }

    #[test]
    fn main_mode_has_every_row_of_the_table_at_both_ends() {
        let measured = measured("ikev1-main-rsa2048-3des-md5-modp1024");
        let value = |name: &str| *measured.values.get(name).unwrap_or_else(|| panic!("{name}: {:?}", measured.values));
        assert_eq!((value("first_messages"), value("quick_messages")), (6.0, 3.0));
        for end in ["initiator", "responder"] {
            for (row, _) in ROWS {
                // The initiator decrypts one message of quick mode.
                let expected = !(end == "initiator" && row == "p2_decrypt_3");
                assert_eq!(value(&format!("{end}.{row}_ticks")) > 0.0, expected, "{end} {row}");
            }
            let (full, skeleton) = (value(&format!("full.{end}_ticks")), value(&format!("skeleton.{end}_ticks")));
            assert!(full > skeleton, "{end}: {full} {skeleton}");
        }
        assert!(value("elapsed_ms_at_100_ms") > 390.0 && value("elapsed_ms_at_0_ms") < 390.0);
        assert!(value("refresh_child_ticks") > 0.0 && value("refresh_ike_ticks") > value("refresh_child_ticks"));
    }

    #[test]
    fn every_mode_and_authentication_comes_up() {
        for (name, messages) in [
            ("ikev1-main-psk-aes128-md5-modp1024", (6.0, 3.0)),
            ("ikev1-aggressive-psk-aes256-md5-modp1024", (3.0, 3.0)),
            ("ikev1-aggressive-rsa2048-aes128-md5-modp1024", (3.0, 3.0)),
            ("ikev1-main-ecdsa256-aes128-sha256-ecp256", (6.0, 3.0)),
            ("ikev2-psk-aes128gcm16-prfsha256-x25519", (4.0, 0.0)),
            ("ikev2-ecdsa256-aes128gcm16-prfsha256-x25519", (4.0, 0.0)),
            // The public value of ML-KEM needs two fragments.
            ("ikev2-ecdsa256-aes128gcm16-prfsha256-x25519-ke1_mlkem768", (7.0, 0.0)),
        ] {
            let values = measured(name).values;
            assert_eq!((values["first_messages"], values["quick_messages"]), messages, "{name}");
            let signs = values["responder.p1_sign_ticks"] > 0.0;
            assert_eq!(signs, !name.contains("-psk-"), "{name}");
            // Little is without a name.
            let sum: f64 = ROWS.iter().map(|(row, _)| values[&format!("responder.{row}_ticks")]).sum();
            assert!(values["responder.other_ticks"] < 0.2 * sum, "{name}: {values:?}");
            assert!(values["responder.p1_keys_ticks"] > 0.0 && values["responder.p1_hash_ticks"] > 0.0, "{name}");
        }
    }

    #[test]
    fn datagrams_of_the_skeleton_have_the_lengths_of_real_ones() {
        let subject: Subject = "ikev1-main-rsa2048-aes128-md5-modp1024".parse().unwrap();
        host::prepare(subject.auth);
        let bytes = |provider| {
            let measuring = begin(provider, None);
            Pair::new(&subject, Duration::ZERO).set_up(&measuring, None).unwrap().bytes
        };
        assert_eq!(bytes(Provider::Null), bytes(Provider::Library));
    }

    #[test]
    fn a_key_of_psp_is_derived_without_messages() {
        let values = measured("psp-aes128gcm16").values;
        assert!(values["full.responder_ticks"] > 0.0 && !values.contains_key("wire_bytes"));
    }
}
