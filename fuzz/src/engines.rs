//! The engines against each other: for a batch of operations, valid or invalid, every engine should
//! return the same result.
//!
//! Two bytes choose the suite, one the number of packets; the rest are operations and packets, read
//! as far as they go.

use std::sync::Arc;

use crypto::{Aad, CryptoOp, DerivedKeys, Engine, Job, KeyId, KeyMaterial, KeyTable, Keys, Span, Suite};

/// Bytes of the input, zeros behind its end.
struct Bytes<'i>(&'i [u8]);

impl Bytes<'_> {
    fn take(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, self.0), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    fn number(&mut self, below: usize) -> usize {
        (usize::from(self.take()) << 8 | usize::from(self.take())) % below.max(1)
    }
}

/// An operation that mostly fits its packet.
fn operation(bytes: &mut Bytes<'_>, suite: &Suite) -> (CryptoOp, Vec<u8>) {
    let (header, iv_len, icv_len) = (8 + bytes.number(20), suite.iv_len(), suite.icv_len());
    let whole = if bytes.take() & 7 == 0 { 1 } else { suite.block_len() };
    let start = header + iv_len;
    let end = start + bytes.number(1500) / whole * whole;
    let seed = bytes.take();
    let packet: Vec<u8> = (0..end + icv_len).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
    let gmac = suite.is_aead() && !suite.is_confidential();
    let covered = if gmac || suite.integ.is_some() { end } else { header };
    let mut odd = || if bytes.take() & 15 == 0 { bytes.number(40) } else { 0 };
    let (cut, moved, shift) = (odd(), odd(), odd());
    let span = Span::new(shift.min(covered), covered);
    let first = std::array::from_fn(|i| seed ^ i as u8);
    let aad = match bytes.take() & 7 {
        0 => Aad::Inline(first),
        1 => Aad::InlineThen(first, span),
        2 => Aad::InPlaceThen(span, [seed, 1, 2, 3]),
        _ => Aad::InPlace(span),
    };
    let body =
        if gmac { Span::default() } else { Span::new(start.min(end), end.saturating_sub(cut).max(start.min(end))) };
    let at = end.saturating_sub(moved);
    let op = CryptoOp { key: KeyId(0), aad, body, icv: Span::new(at, at + icv_len), iv: [seed; 16] };
    (op, packet)
}

/// Runs one input through every engine.
///
/// # Panics
/// When two engines disagree.
pub fn engines(input: &[u8]) {
    let mut bytes = Bytes(input);
    let suites: Vec<Suite> = Suite::all_esp().chain(Suite::all_ah()).collect();
    let suite = suites[bytes.number(suites.len())];
    let count = 1 + usize::from(bytes.take() % 40);
    let (ops, packets): (Vec<_>, Vec<_>) = (0..count).map(|_| operation(&mut bytes, &suite)).unzip();
    let flips: Vec<(usize, u8)> = (0..count).map(|_| (bytes.number(1600), bytes.take())).collect();
    let material: Vec<u8> = (0..128).map(|i| i ^ bytes.take()).collect();
    let (enc, integ) = (&material[..suite.enc_material_len()], &material[..suite.integ_material_len()]);
    let derived = DerivedKeys::new(0);

    let outcomes = Engine::real().map(|engine| {
        let mut table = KeyTable::default();
        table.insert(Arc::new(engine.expand(&suite, KeyMaterial { enc, integ }).expect("lengths fit")));
        let keys = Keys { table: &table, derived: &derived };
        let mut work = packets.clone();
        let mut jobs: Vec<_> = ops.iter().zip(&mut work).map(|(op, packet)| Job::new(*op, &mut packet[..])).collect();
        engine.seal(keys, &mut jobs);
        let sealed: Vec<Option<Vec<u8>>> = jobs.iter().map(|job| job.sealed().then(|| job.packet.to_vec())).collect();
        // The content of a packet that was not sealed is undefined: all engines continue with the
        // plaintext packet then.
        let next = sealed.iter().zip(&packets).map(|(sealed, clear)| sealed.as_ref().unwrap_or(clear).clone());
        let mut next: Vec<Vec<u8>> = next.collect();
        for (packet, (at, bits)) in next.iter_mut().zip(&flips) {
            if let Some(byte) = packet.get_mut(*at) {
                *byte ^= bits & (at & 1) as u8;
            }
        }
        let mut jobs: Vec<_> = ops.iter().zip(&mut next).map(|(op, packet)| Job::new(*op, &mut packet[..])).collect();
        engine.open(keys, &mut jobs);
        let opened: Vec<Option<Vec<u8>>> =
            jobs.iter_mut().map(|job| job.take_ok().is_some().then(|| job.packet.to_vec())).collect();
        (engine, sealed, opened)
    });
    let all: Vec<_> = outcomes.collect();
    for (engine, sealed, opened) in &all[1..] {
        assert!(*sealed == all[0].1, "{} and {} seal {suite} differently", engine.name(), all[0].0.name());
        assert!(*opened == all[0].2, "{} and {} open {suite} differently", engine.name(), all[0].0.name());
    }
}
