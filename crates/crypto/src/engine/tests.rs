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

/// Packets at once: enough for an engine that works on several to do so, and no multiple of
/// anything.
const MANY: usize = 37;

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
        self.alone_and_together(
            packet,
            |jobs| {
                self.engine.seal(self.keys(), jobs);
                assert!(jobs.iter_mut().all(|job| job.take_ok().is_none()));
                jobs.iter().map(Job::sealed).collect()
            },
            op,
        )
    }

    fn open(&self, op: CryptoOp, packet: &mut [u8]) -> bool {
        self.alone_and_together(
            packet,
            |jobs| {
                self.engine.open(self.keys(), jobs);
                let ok = jobs.iter_mut().map(|job| job.take_ok().is_some()).collect();
                let again = |job: &mut Job<'_>| job.take_ok().is_some() || job.sealed();
                assert!(!jobs.iter_mut().any(again), "the proof is given once");
                ok
            },
            op,
        )
    }

    /// The outcome of `run` for one packet, which must be the same when there are many.
    fn alone_and_together(&self, packet: &mut [u8], run: impl Fn(&mut [Job<'_>]) -> Vec<bool>, op: CryptoOp) -> bool {
        let mut many = vec![packet.to_vec(); MANY];
        let mut jobs: Vec<_> = many.iter_mut().map(|packet| Job::new(op, &mut packet[..])).collect();
        let all = run(&mut jobs);
        let alone = run(&mut [Job::new(op, packet)])[0];
        assert_eq!(all, vec![alone; MANY], "{} {}", self.engine.name(), self.suite);
        assert!(!alone || many.iter().all(|other| other == packet), "{} {}", self.engine.name(), self.suite);
        alone
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

fn engines_and_suites() -> impl Iterator<Item = (Engine, Suite)> {
    Engine::real().flat_map(|engine| Suite::all_esp().chain(Suite::all_ah()).map(move |suite| (engine, suite)))
}

fn suite(name: &str) -> Suite {
    Suite::parse_esp(name).or_else(|_| Suite::parse_ah(name)).expect("a suite")
}

#[test]
fn every_suite_opens_what_it_sealed_and_nothing_else() {
    for (engine, suite) in engines_and_suites() {
        let rig = Rig::new(engine, suite);
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
            // by its use as nonce otherwise; here it is not in the packet for an AEAD.
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

#[test]
fn icv_bytes_within_the_span_count_as_zero() {
    for engine in Engine::real() {
        // AH: the ICV is in the middle of the authenticated data, and the high sequence half
        // follows.
        let rig = Rig::new(engine, suite("sha256"));
        let mut packet: Vec<u8> = (0..100).collect();
        let mut zeroed = packet.clone();
        zeroed[40..56].fill(0);
        let span = Span::new(4, 90);
        let op = CryptoOp { aad: Aad::InPlaceThen(span, [1, 2, 3, 4]), icv: Span::new(40, 56), ..OP };
        assert!(rig.seal(op, &mut packet));

        // The same bytes in another order of pieces: one span that ends before the ICV.
        let mut joined = [&zeroed[4..90], &[1, 2, 3, 4], &[0; 16]].concat();
        let whole = CryptoOp { aad: Aad::InPlace(Span::new(0, 90)), icv: Span::new(90, 106), ..OP };
        assert!(rig.seal(whole, &mut joined));
        assert_eq!(packet[40..56], joined[90..]);

        assert!(rig.open(op, &mut packet.clone()));
        for (at, outside) in [(3, true), (4, false), (39, false), (48, false), (56, false), (89, false), (90, true)] {
            let mut changed = packet.clone();
            changed[at] ^= 0x80;
            assert_eq!(rig.open(op, &mut changed), outside, "byte {at}");
        }
        let other_half = CryptoOp { aad: Aad::InPlaceThen(span, [1, 2, 3, 5]), ..op };
        assert!(!rig.open(other_half, &mut packet));
    }
}

#[test]
fn inline_data_equals_the_same_data_in_place() {
    for engine in Engine::real() {
        for name in ["aes128gcm16", "aes256ccm8", "chacha20poly1305"] {
            let rig = Rig::new(engine, suite(name));
            let icv_len = rig.suite.icv_len();
            let mut packet: Vec<u8> = (0..12 + 50 + icv_len as u8).collect();
            let mut short = packet[12..].to_vec();
            let inline = Aad::Inline(packet[..12].try_into().expect("12 bytes"));
            let in_place = CryptoOp { body: Span::new(12, 62), icv: Span::new(62, 62 + icv_len), ..OP };
            let in_place = CryptoOp { aad: Aad::InPlace(Span::new(0, 12)), ..in_place };
            let inline = CryptoOp { aad: inline, body: Span::new(0, 50), icv: Span::new(50, 50 + icv_len), ..OP };
            assert!(rig.seal(in_place, &mut packet) && rig.seal(inline, &mut short));
            assert_eq!(packet[12..], short);
            assert!(rig.open(inline, &mut short));
        }
    }
}

#[test]
fn gmac_joins_the_extended_number_with_what_follows() {
    for engine in Engine::real() {
        let rig = Rig::new(engine, suite("aes256gmac"));
        for len in [0, 8, 1400, 2036, 2037, 9000, 65_535] {
            let mut joined: Vec<u8> = (0..12 + len + 16).map(|i| i as u8).collect();
            let mut packet = joined[12..].to_vec();
            let first = joined[..12].try_into().expect("12 bytes");
            let whole =
                CryptoOp { aad: Aad::InPlace(Span::new(0, 12 + len)), icv: Span::new(12 + len, 28 + len), ..OP };
            let split =
                CryptoOp { aad: Aad::InlineThen(first, Span::new(0, len)), icv: Span::new(len, len + 16), ..OP };
            assert!(rig.seal(whole, &mut joined) && rig.seal(split, &mut packet));
            assert_eq!(joined[12..], packet);
            assert!(rig.open(split, &mut packet));
            assert!(!rig.open(CryptoOp { aad: Aad::InlineThen([0; 12], Span::new(0, len)), ..split }, &mut packet));
        }
        // No such packet exists, so none is copied.
        let mut packet = vec![0; 65_536 + 16];
        let span = Span::new(0, 65_536);
        let split = CryptoOp { aad: Aad::InlineThen([0; 12], span), icv: Span::new(65_536, 65_552), ..OP };
        assert!(!rig.seal(split, &mut packet) && !rig.open(split, &mut packet));
    }
}

#[test]
fn a_cbc_body_may_begin_at_the_iv_field() {
    // A zero-IV chain over [nonce block | payload] leaves an unpredictable IV on the wire, and the
    // receiver uses it as explicit IV: both methods must give the same ciphertext.
    for engine in Engine::real() {
        for (name, iv_len) in [("aes192-sha1", 16), ("3des-md5", 8)] {
            let rig = Rig::new(engine, suite(name));
            let (mut op, mut packet) = rig.esp(64);
            let clear = packet.clone();
            let nonce_block = 8..8 + iv_len;
            op.iv = [0; 16];
            op.body = Span::new(8, op.body.range().end);
            assert!(rig.seal(op, &mut packet));
            assert_ne!(packet[nonce_block.clone()], clear[nonce_block.clone()]);

            let mut receive = op;
            receive.iv[..iv_len].copy_from_slice(&packet[nonce_block]);
            receive.body = Span::new(8 + iv_len, op.body.range().end);
            assert!(rig.open(receive, &mut packet));
            assert_eq!(packet[8 + iv_len..8 + iv_len + 64], clear[8 + iv_len..8 + iv_len + 64]);
        }
    }
}

#[test]
fn a_body_of_broken_blocks_fails() {
    for engine in Engine::real() {
        for name in ["aes128-sha256", "3des-sha1", "des-md5"] {
            let rig = Rig::new(engine, suite(name));
            let (op, mut packet) = rig.esp(41);
            assert!(!rig.seal(op, &mut packet), "{name}");
            // A peer that holds the key can authenticate such a body; the MAC alone is right then.
            let mac = Rig::new(engine, Suite { enc: None, integ: rig.suite.integ });
            assert!(mac.seal(CryptoOp { body: Span::default(), ..op }, &mut packet));
            assert!(!rig.open(op, &mut packet), "{name}");
        }
    }
}

#[test]
fn spans_that_do_not_fit_fail_and_never_panic() {
    let (far, wrong) = (Span { start: 0, end: 500 }, Span { start: 20, end: 10 });
    let huge = Span { start: u32::MAX - 1, end: u32::MAX };
    let suites = ["aes128gcm16", "aes128gcm8", "aes128ccm12", "aes128gmac", "chacha20poly1305", "aes128-sha256"];
    let more = ["aes128ctr-aesxcbc", "null-sha512", "3des-md5", "sha384", "aescmac"];
    for name in suites.into_iter().chain(more) {
        for engine in Engine::usable() {
            let rig = Rig::new(engine, suite(name));
            let (good, packet) = rig.esp(32);
            let mut bad = Vec::new();
            for span in [far, wrong, huge] {
                bad.push(CryptoOp { body: span, ..good });
                bad.push(CryptoOp { icv: span, ..good });
                bad.push(CryptoOp { aad: Aad::InPlace(span), ..good });
                bad.push(CryptoOp { aad: Aad::InPlaceThen(span, [0; 4]), ..good });
                bad.push(CryptoOp { aad: Aad::InlineThen([0; 12], span), ..good });
            }
            let icv = good.icv;
            bad.push(CryptoOp { icv: Span { end: icv.end - 1, ..icv }, ..good });
            bad.push(CryptoOp { icv: Span { start: icv.start - 1, ..icv }, ..good });
            bad.push(CryptoOp { key: KeyId(1), ..good });
            bad.push(CryptoOp { key: KeyId(KeyId::DERIVED), ..good });
            bad.push(CryptoOp { key: KeyId(u32::MAX), ..good });
            for op in bad {
                assert!(!rig.seal(op, &mut packet.clone()), "{name}: {op:?}");
                assert!(!rig.open(op, &mut packet.clone()), "{name}: {op:?}");
                assert!(!rig.seal(op, &mut []) && !rig.open(op, &mut []), "{name}: {op:?}");
            }
            // Spans that fit the packet but not each other; the null engine does not look.
            if engine != Engine::Null {
                let into_icv = Span { end: icv.end, ..good.body };
                assert!(!rig.seal(CryptoOp { body: into_icv, ..good }, &mut packet.clone()), "{name}");
                assert!(!rig.open(CryptoOp { body: into_icv, ..good }, &mut packet.clone()), "{name}");
            }
        }
    }
}

#[test]
fn a_body_outside_its_mac_fails() {
    for engine in Engine::real() {
        let rig = Rig::new(engine, suite("aes128ctr-sha256"));
        let (good, packet) = rig.esp(32);
        for aad in [Aad::InPlace(Span::new(0, 40)), Aad::InPlace(Span::new(20, 48)), Aad::Inline([0; 12])] {
            let op = CryptoOp { aad, ..good };
            assert!(!rig.seal(op, &mut packet.clone()) && !rig.open(op, &mut packet.clone()));
        }
        // An AEAD's associated data must not reach into its body either.
        let rig = Rig::new(engine, suite("aes128gcm16"));
        let (good, mut packet) = rig.esp(32);
        let op = CryptoOp { aad: Aad::InPlace(Span::new(0, good.body.range().start + 1)), ..good };
        assert!(!rig.seal(op, &mut packet) && !rig.open(op, &mut packet));
    }
}

#[test]
fn the_null_engine_leaves_bodies_and_accepts_everything() {
    let rig = Rig::new(Engine::Null, suite("aes256gcm16"));
    let (op, clear) = rig.esp(100);
    let mut packet = clear.clone();
    assert!(rig.seal(op, &mut packet));
    assert_eq!(packet[..op.icv.range().start], clear[..op.icv.range().start]);
    assert_eq!(packet[op.icv.range()], [0; 16]);
    packet.fill(0xff);
    assert!(rig.open(op, &mut packet));

    // Its keys are of no use to the real ones.
    let mut jobs = [Job::new(op, &mut packet)];
    for engine in Engine::real() {
        engine.open(rig.keys(), &mut jobs);
        assert!(jobs[0].take_ok().is_none());
        engine.seal(rig.keys(), &mut jobs);
        assert!(!jobs[0].sealed());
    }
}

#[test]
fn outcomes_do_not_outlive_the_next_run() {
    for engine in Engine::real() {
        let rig = Rig::new(engine, suite("aes128gcm16"));
        let (op, mut packet) = rig.esp(20);
        let mut jobs = [Job::new(op, &mut packet)];
        rig.engine.seal(rig.keys(), &mut jobs);
        rig.engine.open(rig.keys(), &mut jobs);
        assert!(!jobs[0].sealed());
        jobs[0].packet[9] ^= 1;
        rig.engine.open(rig.keys(), &mut jobs);
        assert!(jobs[0].take_ok().is_none(), "the first proof was not taken, and is void now");
    }
}

#[test]
fn wrong_lengths_are_said_when_the_key_is_made() {
    for engine in Engine::real() {
        let refuse = |suite: &Suite, enc: usize, integ: usize| {
            let (enc, integ) = (vec![0; enc], vec![0; integ]);
            engine.expand(suite, KeyMaterial { enc: &enc, integ: &integ }).err().map(|e| e.to_string())
        };
        let text = |s: &str| Some(s.to_owned());
        assert_eq!(refuse(&suite("aes128gcm16"), 16, 0), text("aes128gcm16 needs 20 bytes of key and salt, not 16"));
        assert_eq!(refuse(&suite("aes128-sha256"), 16, 20), text("sha256 needs 32 bytes of integrity key, not 20"));
        assert_eq!(refuse(&suite("sha1"), 16, 20), text("sha1 needs 0 bytes of key, not 16"));
        assert_eq!(refuse(&suite("null-md5"), 0, 16), None);
        for suite in Suite::all_esp().chain(Suite::all_ah()) {
            let (enc, integ) = (suite.enc_material_len(), suite.integ_material_len());
            assert_eq!(refuse(&suite, enc, integ), None);
            assert!(refuse(&suite, enc + 1, integ).is_some() && refuse(&suite, enc, integ + 1).is_some());
            assert!(enc == 0 || refuse(&suite, enc - 1, integ).is_some());
        }
        let none = Suite { enc: None, integ: None };
        assert_eq!(refuse(&none, 0, 0), text(&format!("engine {} cannot run none", engine.name())));
        let bare = Suite { enc: crate::EncAlg::by_name("aes128"), integ: None };
        assert_eq!(refuse(&bare, 16, 0), text(&format!("engine {} cannot run aes128", engine.name())));
        let both = Suite { enc: crate::EncAlg::by_name("aes128gcm16"), integ: crate::IntegAlg::by_name("sha1") };
        assert_eq!(refuse(&both, 20, 20), text(&format!("engine {} cannot run aes128gcm16", engine.name())));
    }
}

/// Every kind of job in one batch, good ones and bad ones in turn: each has its own outcome, and
/// that of AWS-LC.
#[test]
fn a_mixed_batch_comes_out_as_its_jobs_would_alone() {
    for engine in Engine::real().filter(|engine| *engine != Engine::AwsLc) {
        let names = [
            "aes128gcm16",
            "aes128-sha256",
            "chacha20poly1305",
            "aes256ccm16",
            "3des-sha1",
            "aes256-sha512",
            "sha1",
            "aes192ctr-sha384",
            "null-md5",
            "des-md5",
            "aes128-aesxcbc",
            "aes256gmac",
            "aes192ccm8",
            "aescmac",
        ];
        let rigs: Vec<[Rig; 2]> = names.map(|name| [engine, Engine::AwsLc].map(|e| Rig::new(e, suite(name)))).into();
        let mut tables = [KeyTable::default(), KeyTable::default()];
        let derived = DerivedKeys::new(0);
        let (mut ops, mut packets) = (Vec::new(), Vec::new());
        for n in 0..150 {
            let rigs = &rigs[n * 5 % rigs.len()];
            for (table, rig) in tables.iter_mut().zip(rigs) {
                table.insert(rig.table.shared(KeyId(0)).expect("its key"));
            }
            let (op, packet) = rigs[0].esp(n * 37 % 90 * 16);
            let mut op = CryptoOp { key: KeyId(n as u32), ..op };
            match n % 11 {
                3 => op.body.end += 7,
                5 => op.key = KeyId(9999),
                7 => op.icv.start += 1,
                // The high half of an extended number is not in the packet.
                8 => {
                    if let Aad::InPlace(span) = op.aad {
                        op.aad = Aad::InPlaceThen(span, [1, 2, 3, n as u8]);
                    }
                }
                _ => {}
            }
            ops.push(op);
            packets.push(packet);
        }
        let all = |engine: Engine, table: &KeyTable, packets: &mut [Vec<u8>], seal: bool| -> Vec<bool> {
            let keys = Keys { table, derived: &derived };
            let mut jobs: Vec<_> = ops.iter().zip(packets).map(|(op, packet)| Job::new(*op, &mut packet[..])).collect();
            if seal {
                engine.seal(keys, &mut jobs)
            } else {
                engine.open(keys, &mut jobs)
            }
            jobs.iter_mut().map(|job| if seal { job.sealed() } else { job.take_ok().is_some() }).collect()
        };
        let same = |ours: &[Vec<u8>], theirs: &[Vec<u8>], ok: &[bool], what: &str| {
            for (n, ((ours, theirs), _)) in ours.iter().zip(theirs).zip(ok).enumerate().filter(|(_, (_, ok))| **ok) {
                assert_eq!(ours, theirs, "{what} {n} {} {:?}", names[n * 5 % names.len()], ops[n]);
            }
        };
        let (mut ours, mut theirs) = (packets.clone(), packets);
        let sealed = all(engine, &tables[0], &mut ours, true);
        assert_eq!(sealed, all(Engine::AwsLc, &tables[1], &mut theirs, true));
        same(&ours, &theirs, &sealed, "sealed");
        assert!(sealed.iter().filter(|ok| **ok).count() > 75 && sealed.iter().filter(|ok| !**ok).count() > 20);
        for (n, packet) in theirs.iter_mut().enumerate().filter(|(n, _)| n % 4 == 1) {
            let at = ops[n].icv.end.min(packet.len() as u32) as usize - 1 - n % 8;
            packet[at] ^= 1 << (n % 7);
        }
        ours = theirs.clone();
        let opened = all(engine, &tables[0], &mut ours, false);
        assert_eq!(opened, all(Engine::AwsLc, &tables[1], &mut theirs, false));
        same(&ours, &theirs, &opened, "opened");
        assert!(opened.iter().filter(|ok| **ok).count() > 50);
    }
}

#[test]
fn the_fastest_is_chosen_unless_another_is_forced() {
    let fastest = Engine::real().find(|engine| engine.not_default().is_none()).expect("AWS-LC runs everywhere");
    #[cfg(target_arch = "x86_64")]
    {
        use super::vaes::Form;
        let second = |text: &str| !text.starts_with("1.");
        let beside_second = crate::IPSEC_MB_LINKED.is_some_and(second) && Engine::IpsecMb.unavailable().is_none();
        let faster = match Form::best() {
            Some(Form::Zmm) => true,
            Some(Form::Ymm | Form::XmmVl) => !beside_second,
            Some(Form::Xmm) | None => false,
        };
        assert_eq!(fastest == Engine::Vaes, faster, "the default where it was found to be faster");
    }
    assert_eq!(Engine::choose(None).engine, fastest);
    assert!(Engine::choose(None).why.starts_with("selected automatically"));
    assert_eq!(Engine::choose(Some("")), Engine::choose(None));
    let forced = Engine::choose(Some("aws_lc"));
    assert_eq!((forced.engine, forced.why.as_str()), (Engine::AwsLc, "set by WEIR_ENGINE"));
    // One that encrypts nothing is never used because of the environment.
    for none in ["null", "nonsense"] {
        let choice = Engine::choose(Some(none));
        assert_eq!(choice.engine, fastest);
        assert!(choice.why.contains(none), "{}", choice.why);
    }
    for engine in Engine::ALL {
        assert_eq!(Engine::by_name(engine.name()), Some(engine));
        let suite = suite("aes128gcm16");
        let key = engine.expand(&suite, KeyMaterial { enc: &[1; 20], integ: &[] });
        assert_eq!(key.is_ok(), engine.unavailable().is_none());
        assert!(engine.unavailable().is_some() || !engine.describe().is_empty());
    }
    assert_eq!(Engine::by_name("aws-lc"), None);
}
