//! What an operation means: spans, order, associated data, failure.

use std::sync::Arc;

use super::*;
use crate::{Aad, CryptoOp, DerivedKeys, KeyId, KeyTable, Span};

const OP: CryptoOp = CryptoOp {
    key: KeyId(0),
    aad: Aad::InPlace(Span { start: 0, end: 0 }),
    body: Span { start: 0, end: 0 },
    icv: Span { start: 0, end: 0 },
    iv: [0; 16],
};

/// One key and the engine it is for.
struct Rig {
    engine: Engine,
    suite: Suite,
    table: KeyTable,
    derived: DerivedKeys,
}

impl Rig {
    fn new(engine: Engine, suite: Suite) -> Self {
        let (enc, integ) = material(&suite);
        let key = engine.expand(&suite, KeyMaterial { enc: &enc, integ: &integ });
        let mut table = KeyTable::default();
        table.insert(Arc::new(key.unwrap_or_else(|e| panic!("{suite}: {e}"))));
        Self { engine, suite, table, derived: DerivedKeys::new(0) }
    }

    fn keys(&self) -> Keys<'_> {
        Keys { table: &self.table, derived: &self.derived }
    }

    fn seal(&self, op: CryptoOp, packet: &mut [u8]) -> bool {
        let mut jobs = [Job::new(op, packet)];
        self.engine.seal(self.keys(), &mut jobs);
        assert!(jobs[0].take_ok().is_none());
        jobs[0].sealed()
    }

    fn open(&self, op: CryptoOp, packet: &mut [u8]) -> bool {
        let mut jobs = [Job::new(op, packet)];
        self.engine.open(self.keys(), &mut jobs);
        let ok = jobs[0].take_ok().is_some();
        assert!(jobs[0].take_ok().is_none() && !jobs[0].sealed(), "the proof is given once");
        ok
    }

    /// A packet of ESP's shape: 8 bytes of header, IV, body, ICV.
    fn esp(&self, body_len: usize) -> (CryptoOp, Vec<u8>) {
        let (header, iv_len, icv_len) = (8, self.suite.iv_len(), self.suite.icv_len());
        let body = header + iv_len..header + iv_len + body_len;
        let packet = (0..body.end + icv_len).map(|i| (i * 7 + 3) as u8).collect();
        let gmac = self.suite.is_aead() && !self.suite.is_confidential();
        let separate = self.suite.integ.is_some();
        let op = CryptoOp {
            aad: Aad::InPlace(Span::new(0, if gmac || separate { body.end } else { header })),
            body: if gmac { Span::default() } else { Span::new(body.start, body.end) },
            icv: Span::new(body.end, body.end + icv_len),
            iv: std::array::from_fn(|i| i as u8 ^ 0xa5),
            ..OP
        };
        (op, packet)
    }
}

fn material(suite: &Suite) -> (Vec<u8>, Vec<u8>) {
    let bytes = |len, seed: u8| (0..len).map(|i| (i as u8).wrapping_mul(29) ^ seed).collect();
    (bytes(suite.enc_material_len(), 0x11), bytes(suite.integ_material_len(), 0x77))
}

fn suite(name: &str) -> Suite {
    Suite::parse_esp(name).or_else(|_| Suite::parse_ah(name)).expect("a suite")
}

#[test]
fn every_suite_opens_what_it_sealed_and_nothing_else() {
    for suite in Suite::all_esp().chain(Suite::all_ah()) {
        let rig = Rig::new(Engine::AwsLc, suite);
        for blocks in [0, 1, 2, 5] {
            let (op, clear) = rig.esp(blocks * 16);
            let mut sealed = clear.clone();
            assert!(rig.seal(op, &mut sealed), "{suite}");
            let body = op.body.range();
            assert_eq!(
                sealed[body.clone()] == clear[body.clone()],
                body.is_empty() || !suite.is_confidential(),
                "{suite}"
            );
            assert_eq!(sealed[..body.start], clear[..body.start], "{suite}: bytes before the body are left alone");
            let mut opened = sealed.clone();
            assert!(rig.open(op, &mut opened), "{suite}");
            assert_eq!(opened[..op.icv.range().start], clear[..op.icv.range().start], "{suite}");
            // The IV is authenticated with the header where a separate MAC or GMAC covers it, and
            // by its use as nonce otherwise; here it does not stand in the packet for an AEAD.
            let covered = |at| !suite.is_aead() || !suite.is_confidential() || !(8..8 + suite.iv_len()).contains(&at);
            for at in (0..sealed.len()).step_by(3).chain(op.icv.range()).filter(|at| covered(*at)) {
                let mut forged = sealed.clone();
                forged[at] ^= 1 << (at % 8);
                assert!(!rig.open(op, &mut forged), "{suite}: byte {at}");
            }
            if suite.is_aead() {
                let mut other_iv = op;
                other_iv.iv[7] ^= 1;
                assert!(!rig.open(other_iv, &mut sealed.clone()), "{suite}");
            }
        }
    }
}
