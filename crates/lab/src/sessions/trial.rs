//! One trial: set-ups of a subject with and without cryptography, with and without the stopwatch,
//! in drawn order.

use std::io;
use std::time::{Duration, Instant};

use lab_crypto::meter::{Measuring, Provider, begin};
use ports::clock::ticks;
use stats::Rng;

use super::host;
use super::link::{NoSession, Pair, Sockets, Took};
use super::rows::{self, ROWS};
use super::subject::{Mode, Subject};
use crate::metric::Metric;
use crate::trial::Measurement;

/// Round trips of the simulated link, in milliseconds.
pub(crate) const ROUND_TRIPS_MS: [u32; 4] = [0, 5, 20, 100];
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
    /// `None` for PSP, which has no messages.
    sockets: Option<Sockets>,
}

impl Setups {
    /// Prepares the keys of a subject, and the sockets of one of its variants.
    ///
    /// # Errors
    /// The operating system refused the sockets.
    pub(crate) fn new(subject: Subject) -> io::Result<Self> {
        Self::with(subject, Sockets::new)
    }

    fn with(subject: Subject, sockets: impl FnOnce() -> io::Result<Sockets>) -> io::Result<Self> {
        if subject.mode == Mode::Psp {
            return Ok(Self { subject, sockets: None });
        }
        let sockets = Some(sockets()?);
        host::prepare(subject.auth);
        Ok(Self { subject, sockets })
    }

    /// Sets sessions up for `duration`, each variant three times at least. Of each variant the
    /// fastest repetition counts: other load makes one slower, never faster.
    ///
    /// # Errors
    /// [`NoSession`].
    pub(crate) fn trial(&self, duration: Duration, seed: u64) -> Result<Measurement, NoSession> {
        if self.subject.mode == Mode::Psp {
            return psp(&self.subject);
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
                keep(&mut best[variant], self.variant(variant)?);
            }
            for (ike, least) in [false, true].into_iter().zip(&mut refreshes) {
                let took = self.refresh(ike)?;
                *least = Some(least.map_or(took, |least| least.min(took)));
            }
            rounds += 1;
        }
        let mut measured = Measurement { sent: rounds as u64, received: rounds as u64, ..Measurement::default() };
        let mut value = |metric: Metric<'_>, number: f64| measured.values.set(metric, number);
        for ((name, ..), took) in VARIANTS.iter().zip(&best) {
            let Some(took) = took else { continue };
            value(Metric::Ticks(&format!("{name}.initiator")), took.ticks[0] as f64);
            value(Metric::Ticks(&format!("{name}.responder")), took.ticks[1] as f64);
        }
        if let Some(timed) = &best[TIMED] {
            for (end, records) in ["initiator", "responder"].iter().zip(&timed.records) {
                for ((row, _), spent) in ROWS.iter().zip(rows::ticks(records)) {
                    value(Metric::Ticks(&format!("{end}.{row}")), spent);
                }
            }
            value(Metric::FirstMessages, timed.first as f64);
            value(Metric::QuickMessages, timed.quick as f64);
            value(Metric::WireBytes, timed.bytes as f64);
        }
        for (name, least) in ["refresh_child", "refresh_ike"].into_iter().zip(refreshes) {
            least.into_iter().for_each(|least| value(Metric::Ticks(name), least as f64));
        }
        for round_trip_ms in ROUND_TRIPS_MS {
            let measuring = begin(Provider::Library, None);
            let mut pair = Pair::new(&self.subject, Duration::from_millis(round_trip_ms.into()));
            let took = pair.set_up(&measuring, None)?;
            value(Metric::ElapsedAt(round_trip_ms), took.elapsed_ns as f64 / 1e6);
        }
        measured.dur_ns = start.elapsed().as_nanos() as u64;
        Ok(measured)
    }

    fn variant(&self, variant: usize) -> Result<Took, NoSession> {
        let (_, provider, timed, with_sockets) = VARIANTS[variant];
        let sockets = self.sockets.as_ref().filter(|_| with_sockets);
        let measuring = begin(provider, timed.then_some(ticks as fn() -> u64));
        Pair::new(&self.subject, Duration::ZERO).set_up(&measuring, sockets)
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

/// PSP: the receiver derives, and both take the key that the connection carries. Its messages and
/// their protection are those of that connection. The initiator has no figure, because it derives
/// nothing.
fn psp(subject: &Subject) -> Result<Measurement, NoSession> {
    let start = Instant::now();
    let batches = crate::derive::psp_ticks(&subject.suite).ok_or(NoSession::UNKNOWN_SUITE)?;
    let mut measured = Measurement { sent: 1, received: 1, ..Measurement::default() };
    let least = batches.into_iter().fold(f64::INFINITY, f64::min);
    measured.values.set(Metric::Ticks("full.responder"), least);
    measured.dur_ns = start.elapsed().as_nanos() as u64;
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &str) -> Measurement {
        let setups = Setups::new(name.parse().unwrap()).unwrap();
        setups.trial(Duration::ZERO, 1).unwrap_or_else(|why| panic!("{name}: {why}"))
    }

    #[test]
    fn main_mode_has_every_row_of_the_table_at_both_ends() {
        let measured = measured("ikev1-main-rsa2048-3des-md5-modp1024");
        let value =
            |metric: Metric<'_>| measured.values.get(metric).unwrap_or_else(|| panic!("{metric:?}: {measured:?}"));
        let ticks = |part: &str| value(Metric::Ticks(part));
        assert_eq!((value(Metric::FirstMessages), value(Metric::QuickMessages)), (6.0, 3.0));
        for end in ["initiator", "responder"] {
            for (row, _) in ROWS {
                // The initiator decrypts one message of quick mode.
                let expected = !(end == "initiator" && row == "p2_decrypt_3");
                assert_eq!(ticks(&format!("{end}.{row}")) > 0.0, expected, "{end} {row}");
            }
            let (full, skeleton) = (ticks(&format!("full.{end}")), ticks(&format!("skeleton.{end}")));
            assert!(full > skeleton, "{end}: {full} {skeleton}");
        }
        assert!(value(Metric::ElapsedAt(100)) > 390.0 && value(Metric::ElapsedAt(0)) < 390.0);
        assert!(ticks("refresh_child") > 0.0 && ticks("refresh_ike") > 0.0);
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
            let ticks = |part: &str| values.get(Metric::Ticks(part)).unwrap();
            let counts = [Metric::FirstMessages, Metric::QuickMessages].map(|metric| values.get(metric).unwrap());
            assert_eq!(counts, <[f64; 2]>::from(messages), "{name}");
            let signs = ticks("responder.p1_sign") > 0.0;
            assert_eq!(signs, !name.contains("-psk-"), "{name}");
            // Little is without a name.
            let sum: f64 = ROWS.iter().map(|(row, _)| ticks(&format!("responder.{row}"))).sum();
            assert!(ticks("responder.other") < 0.2 * sum, "{name}: {values:?}");
            assert!(ticks("responder.p1_keys") > 0.0 && ticks("responder.p1_hash") > 0.0, "{name}");
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

    /// Those of docs/lab-campaigns.md. The DER of an ECDSA signature in IKEv2 has no fixed length.
    #[test]
    fn datagrams_and_bytes_are_those_of_the_documentation() {
        for (name, datagrams, bytes) in [
            ("ikev1-main-rsa2048-aes128-md5-modp1024", 9, 2400),
            ("ikev1-main-rsa2048-3des-md5-modp1024", 9, 2352),
            ("ikev1-main-psk-aes128-md5-modp1024", 9, 1920),
            ("ikev1-aggressive-rsa2048-aes128-md5-modp1024", 6, 2224),
            ("ikev1-main-rsa3072-aes128-sha256-modp2048", 9, 3280),
            ("ikev1-main-ecdsa256-aes128-sha256-ecp256", 9, 1872),
            ("ikev2-psk-aes128gcm16-prfsha256-x25519", 4, 1028),
        ] {
            let subject: Subject = name.parse().unwrap();
            host::prepare(subject.auth);
            let took = Pair::new(&subject, Duration::ZERO).set_up(&begin(Provider::Library, None), None).unwrap();
            assert_eq!((took.first + took.quick, took.bytes), (datagrams, bytes), "{name}");
        }
    }

    #[test]
    fn a_key_of_psp_is_derived_without_messages() {
        let values = measured("psp-aes128gcm16").values;
        assert!(values.get(Metric::Ticks("full.responder")).unwrap() > 0.0);
        assert_eq!(values.get(Metric::Ticks("full.initiator")), None);
        assert_eq!(values.get(Metric::WireBytes), None);
    }

    #[test]
    fn sockets_that_the_system_refuses_are_an_error_except_of_psp() {
        let refused = |name: &str| {
            let sockets = || Err(io::Error::other("too many open files"));
            Setups::with(name.parse().unwrap(), sockets).err().map(|error| error.to_string())
        };
        let why = refused("ikev2-psk-aes128gcm16-prfsha256-x25519");
        assert_eq!(why.as_deref(), Some("too many open files"));
        assert_eq!(refused("psp-aes128gcm16"), None);
    }

    #[test]
    fn an_unknown_suite_of_psp_is_an_error() {
        let known: Subject = "psp-aes128gcm16".parse().unwrap();
        let setups = Setups::new(Subject { suite: "nonsense".into(), ..known }).unwrap();
        let why = setups.trial(Duration::ZERO, 1).unwrap_err().to_string();
        assert_eq!(why, "the suite is unknown to PSP after 0 datagrams");
    }
}
