//! Which of several ways through the library is the fastest on this processor.
//!
//! Version 1.3 seals GCM faster as jobs, version 2 by direct calls; a lane of many is slower than code for
//! one packet. So the ways are timed once, before the first key is made: about 2 ms.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::expand_now;
use crate::engine::protect::State;
use crate::{Aad, CryptoOp, DerivedKeys, Job, Key, KeyId, KeyMaterial, KeyTable, Keys, Span, Suite};

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ways {
    /// AES-GCM goes in bursts, not by direct calls.
    pub(super) gcm_in_bursts: bool,
    /// Fewest bytes of a body that ChaCha20-Poly1305 goes in bursts for, not to AWS-LC.
    pub(super) chacha_from: usize,
    /// Fewest packets at once that a suite with a separate MAC is run in bursts for.
    pub(super) fewest: usize,
}

/// Jobs of a timing, as many as the packet path hands over at once.
const JOBS: usize = 16;
/// Timings of each way, of which the quickest counts: whatever disturbs makes it longer.
const TIMES: usize = 12;
/// A way that is not the usual one has to be faster by this factor.
const CLEARLY: f64 = 0.97;

const DIRECT: Ways = Ways { gcm_in_bursts: false, chacha_from: usize::MAX, fewest: usize::MAX };
const BURSTS: Ways = Ways { gcm_in_bursts: true, chacha_from: 0, fewest: 1 };

impl Ways {
    /// The ways for this processor, timed once per process.
    #[inline]
    pub(super) fn get() -> &'static Self {
        static WAYS: OnceLock<Ways> = OnceLock::new();
        WAYS.get_or_init(Self::measure)
    }

    #[cold]
    fn measure() -> Self {
        let gcm_in_bursts = || {
            let mut rig = Rig::new("aes128gcm16")?;
            let share = [64, 1400].map(|len| rig.time(len, JOBS, &BURSTS) / rig.time(len, JOBS, &DIRECT));
            Some(share.iter().sum::<f64>() / 2.0 < CLEARLY)
        };
        let chacha_from = || {
            let mut rig = Rig::new("chacha20poly1305")?;
            let lens = [64, 128, 256, 512, 1024];
            lens.into_iter().find(|len| rig.time(*len, JOBS, &BURSTS) < CLEARLY * rig.time(*len, JOBS, &DIRECT))
        };
        let fewest = || {
            let mut rig = Rig::new("aes128-sha256")?;
            let counts = [1, 2, 3, 4, 6, 8, 12];
            counts.into_iter().find(|n| rig.time(512, *n, &BURSTS) < CLEARLY * rig.time(512, *n, &DIRECT))
        };
        Self {
            gcm_in_bursts: gcm_in_bursts().unwrap_or(false),
            chacha_from: chacha_from().unwrap_or(usize::MAX),
            fewest: fewest().unwrap_or(JOBS),
        }
    }
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gcm = if self.gcm_in_bursts { "in bursts" } else { "by direct calls" };
        let chacha = match self.chacha_from {
            usize::MAX => "by AWS-LC".to_owned(),
            from => format!("in bursts from {from} bytes on"),
        };
        write!(f, "AES-GCM {gcm}, ChaCha20 {chacha}, CBC with HMAC in bursts from {} packets on", self.fewest)
    }
}

/// A key and the packets to time it with.
struct Rig {
    table: KeyTable,
    derived: DerivedKeys,
    packets: Vec<Vec<u8>>,
    separate: bool,
}

impl Rig {
    fn new(name: &str) -> Option<Self> {
        let suite = Suite::parse_esp(name).ok()?;
        let (enc, integ) = (vec![1; suite.enc_material_len()], vec![2; suite.integ_material_len()]);
        let material = KeyMaterial { enc: &enc, integ: &integ };
        let state = expand_now(&suite, material, State::new(&suite, material)?);
        let mut table = KeyTable::default();
        table.insert(Arc::new(Key { suite, icv_len: suite.icv_len(), state }));
        let packets = vec![vec![0; 2048]; JOBS];
        Some(Self { table, derived: DerivedKeys::new(0), packets, separate: suite.integ.is_some() })
    }

    /// Seconds that the quickest of several rounds takes to seal `count` packets of `len` bytes.
    fn time(&mut self, len: usize, count: usize, ways: &Ways) -> f64 {
        let body = Span::new(32, 32 + len / 16 * 16);
        let covered = if self.separate { body.end } else { 16 };
        let icv = Span { start: body.end, end: body.end + 16 };
        let aad = Aad::InPlace(Span { start: 0, end: covered });
        let op = CryptoOp { key: KeyId(0), aad, body, icv, iv: [7; 16] };
        let mut jobs: Vec<Job<'_>> = self.packets.iter_mut().take(count).map(|p| Job::new(op, &mut p[..])).collect();
        let keys = Keys { table: &self.table, derived: &self.derived };
        let once = |_| {
            let start = Instant::now();
            super::seal_by(keys, &mut jobs, ways);
            start.elapsed().as_secs_f64()
        };
        (0..TIMES).map(once).fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_seals() {
        for name in ["aes128gcm16", "chacha20poly1305", "aes128-sha256"] {
            let mut rig = Rig::new(name).unwrap();
            let mut sealed = [DIRECT, BURSTS].map(|ways| {
                rig.packets.iter_mut().for_each(|packet| packet.fill(9));
                rig.packets.iter_mut().for_each(|packet| packet.truncate(2048));
                let mut rounds = Vec::new();
                // Each round seals what the one before left.
                for count in [1, 5, JOBS] {
                    assert!(rig.time(512, count, &ways) > 0.0, "{name}");
                    rounds.push(rig.packets.clone());
                }
                rounds
            });
            let [direct, bursts] = &mut sealed;
            assert_eq!(direct, bursts, "{name}");
            assert_ne!(direct[0][0], [9; 2048], "{name}");
        }
    }

    #[test]
    fn ways_are_told() {
        let ways = Ways { gcm_in_bursts: false, chacha_from: 512, fewest: 3 };
        let text =
            "AES-GCM by direct calls, ChaCha20 in bursts from 512 bytes on, CBC with HMAC in bursts from 3 packets on";
        assert_eq!(ways.to_string(), text);
        assert!((1..=JOBS).contains(&Ways::get().fewest));
    }
}
