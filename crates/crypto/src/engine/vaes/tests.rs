//! Every form that this processor runs against AWS-LC, over sizes, associated data, batches and
//! keys.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::engine::{Engine, State};
use crate::{Aad, CryptoOp, DerivedKeys, Key, KeyId, KeyMaterial, KeyTable, Span};

const SUITES: [&str; 9] = [
    "aes128gcm16",
    "aes192gcm16",
    "aes256gcm16",
    "aes128gcm12",
    "aes256gcm8",
    "aes128gmac",
    "aes256gmac",
    // Of another engine, in the middle of a batch.
    "chacha20poly1305",
    "aes128-sha256",
];

/// Every form that can be run: what the processor has, and what can be made up for.
fn forms() -> impl Iterator<Item = Form> {
    #[cfg(target_os = "linux")]
    let trapped = super::trap::forms();
    #[cfg(not(target_os = "linux"))]
    let trapped: &[Form] = &[];
    Form::all().iter().chain(trapped).copied()
}

/// The same keys for a form and for AWS-LC.
struct Pair {
    form: Form,
    suites: Vec<Suite>,
    own: KeyTable,
    reference: KeyTable,
    none: DerivedKeys,
}

impl Pair {
    fn new(form: Form, seed: u8) -> Self {
        Self::of(form, seed, &SUITES)
    }

    /// A key per suite; those of equal suites differ.
    fn of(form: Form, seed: u8, suites: &[&str]) -> Self {
        let mut pair = Self {
            form,
            suites: Vec::new(),
            own: KeyTable::default(),
            reference: KeyTable::default(),
            none: DerivedKeys::new(0),
        };
        for (i, name) in suites.iter().enumerate() {
            let suite = Suite::parse_esp(name).expect(name);
            let bytes = |len: usize| -> Vec<u8> { (0..len).map(|at| (at * 29 + i * 11) as u8 ^ seed).collect() };
            let (enc, integ) = (bytes(suite.enc_material_len()), bytes(suite.integ_material_len()));
            let material = KeyMaterial { enc: &enc, integ: &integ };
            let reference = || Engine::AwsLc.expand(&suite, material).expect(name);
            let own = match form.expand(&suite, material.enc) {
                Some(key) => Key { suite, icv_len: suite.icv_len(), state: State::Vaes(key), device: None },
                None => reference(),
            };
            assert_eq!(
                own.state.vaes().is_some(),
                suite.enc.is_some_and(|e| matches!(e.kind, CipherKind::AesGcm | CipherKind::AesGmac))
            );
            pair.own.insert(Arc::new(own));
            pair.reference.insert(Arc::new(reference()));
            pair.suites.push(suite);
        }
        pair
    }

    fn own(&self) -> Keys<'_> {
        Keys { table: &self.own, derived: &self.none }
    }

    fn reference(&self) -> Keys<'_> {
        Keys { table: &self.reference, derived: &self.none }
    }
}

/// One packet of a batch.
#[derive(Clone, Debug)]
struct Case {
    suite: usize,
    shape: u8,
    shift: usize,
    aad: usize,
    body: usize,
    gap: usize,
    behind: usize,
    seed: u64,
}

impl Case {
    fn bytes(&self, len: usize) -> Vec<u8> {
        let mut state = self.seed | 1;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect()
    }

    fn layout(&self, suites: &[Suite]) -> (CryptoOp, Vec<u8>) {
        let suite = &suites[self.suite];
        let gmac = suite.is_aead() && !suite.is_confidential();
        let separate = suite.integ.is_some();
        let body_len = if gmac { 0 } else { self.body / suite.block_len() * suite.block_len() };
        let aad_len = if gmac { self.body } else { self.aad };
        let body = self.shift + aad_len;
        let icv = body + body_len + if separate { 0 } else { self.gap };
        let packet = self.bytes(icv + suite.icv_len() + self.behind);
        let covered = Span::new(self.shift, if separate { icv } else { body });
        let twelve: [u8; 12] = packet[packet.len() - 12..].try_into().unwrap_or([9; 12]);
        let aad = match self.shape % 4 {
            0 if !separate => Aad::Inline([self.shape; 12]),
            1 if gmac => Aad::InlineThen(twelve, covered),
            _ => Aad::InPlace(covered),
        };
        let iv = std::array::from_fn(|i| (self.seed >> (8 * (i % 8))) as u8);
        let (body, icv) = (Span::new(body, body + body_len), Span::new(icv, icv + suite.icv_len()));
        (CryptoOp { key: KeyId(self.suite as u32), aad, body, icv, iv }, packet)
    }
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 0..100usize, 3 => 0..2000usize, 1 => (0..130usize).prop_map(|b| b * 16), 1 => 230..290usize, 1 => 2000..9000usize]
}

fn cases() -> impl Strategy<Value = Case> {
    let aad = prop_oneof![Just(8usize), Just(12), 0..20usize, 0..300usize];
    let suite = prop_oneof![3 => Just(0usize), 2 => 0..SUITES.len()];
    let room = prop_oneof![2 => Just(0usize), 1 => 0..20usize];
    (suite, any::<u8>(), 0..67usize, aad, lengths(), room.clone(), room, any::<u64>()).prop_map(
        |(suite, shape, shift, aad, body, gap, behind, seed)| Case {
            suite,
            shape,
            shift,
            aad,
            body,
            gap,
            behind,
            seed,
        },
    )
}

fn agree(pair: &Pair, cases: &[Case]) {
    let form = pair.form;
    let (ops, clear): (Vec<_>, Vec<_>) = cases.iter().map(|case| case.layout(&pair.suites)).unzip();
    let (mut ours, mut theirs) = (clear.clone(), clear.clone());
    let jobs = |packets: &mut Vec<Vec<u8>>, run: &dyn Fn(&mut [Job<'_>])| -> Vec<(bool, bool)> {
        let mut jobs: Vec<_> = ops.iter().zip(packets).map(|(op, packet)| Job::new(*op, &mut packet[..])).collect();
        run(&mut jobs);
        jobs.iter_mut().map(|job| (job.sealed(), job.take_ok().is_some())).collect()
    };
    let all = |outcome| vec![outcome; cases.len()];
    assert_eq!(jobs(&mut ours, &|jobs| form.run::<true>(pair.own(), jobs)), all((true, false)));
    jobs(&mut theirs, &|jobs| Engine::AwsLc.seal(pair.reference(), jobs));
    for (i, case) in cases.iter().enumerate() {
        assert!(ours[i] == theirs[i], "{form:?}: packet {i} of {}: {case:?} {:?}", cases.len(), ops[i]);
    }
    // Forged in every third packet, at a place that its ICV covers or is.
    let mut forged = ours.clone();
    for (i, packet) in forged.iter_mut().enumerate().step_by(3) {
        let icv = ops[i].icv.range();
        let at = match ops[i].body.is_empty() || cases[i].seed.is_multiple_of(2) {
            true => icv.start + cases[i].seed as usize % icv.len(),
            false => ops[i].body.range().start + cases[i].seed as usize % ops[i].body.len(),
        };
        packet[at] ^= 1 << (cases[i].seed % 8);
    }
    let expected: Vec<_> = (0..cases.len()).map(|i| (false, i % 3 != 0)).collect();
    assert_eq!(jobs(&mut forged, &|jobs| form.run::<false>(pair.own(), jobs)), expected, "{form:?}");
    assert_eq!(jobs(&mut ours, &|jobs| form.run::<false>(pair.own(), jobs)), all((false, true)), "{form:?}");
    for (i, case) in cases.iter().enumerate() {
        let icv = ops[i].icv.range();
        for (opened, came) in [(&ours[i], true), (&forged[i], i % 3 != 0)] {
            let same = opened[..icv.start] == clear[i][..icv.start] && opened[icv.end..] == clear[i][icv.end..];
            assert!(same || !came, "{form:?}: {case:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn batches_agree_with_aws_lc(batch in proptest::collection::vec(cases(), 1..40), seed in any::<u8>()) {
        for form in Form::all() {
            agree(&Pair::new(*form, seed), &batch);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Fewer, since an instruction that the processor lacks takes a microsecond.
    #[test]
    #[cfg(target_os = "linux")]
    fn batches_of_wider_forms_agree_with_aws_lc(batch in proptest::collection::vec(cases(), 1..40), seed in any::<u8>()) {
        for form in super::trap::forms() {
            agree(&Pair::new(*form, seed), &batch);
        }
    }
}

#[test]
fn every_length_agrees_with_aws_lc() {
    for form in forms() {
        let pair = Pair::new(form, 3);
        for suite in [0, 2, 3, 5] {
            let case =
                |body| Case { suite, shape: 2, shift: 0, aad: 8, body, gap: 0, behind: 0, seed: body as u64 + 77 };
            agree(
                &pair,
                &(0..600).step_by(if Form::all().contains(&form) { 1 } else { 7 }).map(case).collect::<Vec<_>>(),
            );
            for body in [0, 1, 15, 16, 17, 64, 239, 240, 241, 255, 256, 257, 272, 512, 1400] {
                agree(&pair, &[case(body)]);
            }
        }
    }
}

#[test]
fn each_packet_of_a_step_has_its_own_key() {
    let case = |suite, body| Case { suite, shape: 2, shift: 0, aad: 8, body, gap: 0, behind: 0, seed: body as u64 };
    for form in forms() {
        let pair = Pair::new(form, 5);
        // Keys of three lengths; some packets in a row have one key, and none begins a vector.
        let mixed: Vec<_> = (0..40).map(|i| case([0, 2, 1, 1, 0, 0, 0][i % 7], [48, 0, 64, 20, 100][i % 5])).collect();
        agree(&pair, &mixed);
        // Up to the last places of the ring of key stream: 4 blocks each, then 2, then 17. Another
        // engine ends a step early, so that steps do not end with the ring.
        for short in 50..64 {
            for two in 0..3 {
                let mut packets = vec![case(0, 48), case(7, 48)];
                packets.extend((0..short).map(|i| case(i % 3, 48)));
                packets.extend((0..two).map(|i| case(i % 2, 16)));
                packets.extend([256, 48, 256, 0, 17].iter().enumerate().map(|(i, body)| case(2 - i % 2, *body)));
                agree(&pair, &packets);
            }
        }
    }
}

/// Several keys of a suite, of all lengths; the last ones have no body, or are of another engine.
const KEYS: [&str; 13] = [
    "aes128gcm16",
    "aes128gcm16",
    "aes128gcm16",
    "aes256gcm16",
    "aes128gcm16",
    "aes256gcm16",
    "aes256gcm16",
    "aes128gcm12",
    "aes192gcm16",
    "aes256gcm8",
    "aes128gmac",
    "aes256gmac",
    "chacha20poly1305",
];

#[test]
fn calls_with_any_order_of_keys_agree_with_aws_lc() {
    // Key of packet `i`: one, two or all in turns, runs of a key, and without a pattern.
    let orders: [fn(usize) -> usize; 6] =
        [|_| 1, |i| i % 2, |i| i % 2 * 3, |i| i % KEYS.len(), |i| i / 3 % KEYS.len(), |i| (i * i + i / 5) % 10];
    let large = [224, 239, 240, 255, 256, 257, 511, 512, 516, 767, 1404, 4096, 4300, 9000];
    for form in forms() {
        let pair = Pair::of(form, 11, &KEYS);
        let (mut short, mut long) = (0, 0);
        // Emulated instructions take a microsecond.
        for count in (1..=64).step_by(if Form::all().contains(&form) { 1 } else { 21 }) {
            for order in orders {
                let case = |i| {
                    let body = if i % 11 == 10 {
                        long = (long + 1) % large.len();
                        large[long]
                    } else {
                        // In steps of 7, so that neighbours have other numbers of blocks; of all.
                        short = (short + 7) % 201;
                        short
                    };
                    let aad = [8, 12, 8, 16, 0, 8, 17][i % 7];
                    Case {
                        suite: order(i),
                        shape: i as u8,
                        shift: i % 3,
                        aad,
                        body,
                        gap: 0,
                        behind: i % 2,
                        seed: i as u64,
                    }
                };
                agree(&pair, &(0..count).map(case).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn a_source_is_copied_as_it_is_sealed() {
    for form in forms() {
        let pair = Pair::new(form, 9);
        let cases = [
            (0, 0),
            (64, 64),
            (70, 64),
            (240, 1),
            (300, 256),
            (600, 600),
            (600, 511),
            (600, 512),
            (1402, 1390),
            (1402, 100),
        ];
        for (body, taken) in cases {
            let case = Case { suite: 0, shape: 2, shift: 1, aad: 8, body, gap: 0, behind: 0, seed: 5 };
            let (op, clear) = case.layout(&pair.suites);
            let (mut whole, mut cut) = (clear.clone(), clear.clone());
            let source = clear[op.body.range()][..taken].to_vec();
            cut[op.body.range()][..taken].fill(0xaa);
            let mut foreign = cut.clone();
            form.run::<true>(pair.own(), &mut [Job::new(op, &mut whole)]);
            let mut jobs = [Job::from_source(op, &source, &mut cut)];
            form.run::<true>(pair.own(), &mut jobs);
            assert!(jobs[0].sealed());
            assert_eq!(cut, whole, "{form:?}: {taken} of {body} bytes");
            let mut jobs = [Job::from_source(op, &source, &mut foreign)];
            Engine::AwsLc.seal(pair.reference(), &mut jobs);
            assert!(jobs[0].sealed());
            assert_eq!(foreign, whole);

            let longer = vec![0; body + 1];
            let mut jobs = [Job::from_source(op, &longer, &mut cut)];
            form.run::<true>(pair.own(), &mut jobs);
            assert!(!jobs[0].sealed(), "{form:?}: a source beyond the body");
            let mut jobs = [Job::from_source(op, &longer, &mut foreign)];
            Engine::AwsLc.seal(pair.reference(), &mut jobs);
            assert!(!jobs[0].sealed());
        }
    }
}

/// A page between two that cannot be accessed.
#[cfg(target_os = "linux")]
struct Page(*mut libc::c_void);

#[cfg(target_os = "linux")]
impl Page {
    const LEN: usize = 4096;

    fn new() -> Self {
        let (none, all) = (libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping, of which the middle becomes accessible.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), 3 * Self::LEN, none, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.add(Self::LEN), Self::LEN, all), 0);
            Self(at)
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the accessible page, borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(Self::LEN).cast(), Self::LEN) }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and no slice of it is left.
        unsafe { libc::munmap(self.0, 3 * Self::LEN) };
    }
}

#[test]
#[cfg(target_os = "linux")]
fn bytes_beside_a_packet_are_not_touched() {
    let mut page = Page::new();
    for form in forms() {
        let pair = Pair::new(form, 13);
        for len in (0..=280).chain([511, 512, 516, 767, 1404]).step_by(if Form::all().contains(&form) { 1 } else { 9 })
        {
            for suite in [0, 3, 4] {
                let icv = Span::new(len, len + pair.suites[suite].icv_len());
                let (aad, body) = (Aad::Inline([3; 12]), Span::new(0, len));
                let op = CryptoOp { key: KeyId(suite as u32), aad, body, icv, iv: [5; 16] };
                let clear = vec![len as u8; icv.end as usize];
                let mut sealed = clear.clone();
                Engine::AwsLc.seal(pair.reference(), &mut [Job::new(op, &mut sealed)]);
                for start in [0, Page::LEN - clear.len()] {
                    let packet = &mut page.bytes()[start..][..clear.len()];
                    packet.copy_from_slice(&clear);
                    form.run::<true>(pair.own(), &mut [Job::new(op, packet)]);
                    assert!(packet == sealed, "{form:?}: {len} bytes at {start}");
                    let mut jobs = [Job::new(op, packet)];
                    form.run::<false>(pair.own(), &mut jobs);
                    assert!(jobs[0].take_ok().is_some() && packet[..len] == clear[..len], "{form:?}: {len} at {start}");
                }
            }
        }
    }
}

/// What [`Key::hot_lines`] counts on.
#[test]
fn short_packets_need_the_hot_lines_of_a_key() {
    for (suite, more) in [("aes128gcm16", 0), ("aes256gcm16", 1)] {
        let suite = Suite::parse_esp(suite).expect("a suite");
        let material = vec![7; suite.enc_material_len()];
        let Ok(key) = Engine::Vaes.expand(&suite, KeyMaterial { enc: &material, integ: &[] }) else { return };
        let own = key.state.vaes().expect("a key of this engine");
        let at = |address: *const u8| address as usize - std::ptr::from_ref(&key) as usize;
        for power in [6, key::POWERS] {
            assert_eq!(at(own.powers_from(power)) % 64, 0, "vectors of four powers are in one line");
        }
        let end = 64 * (Key::hot_lines(Engine::Vaes).end + more);
        // Five blocks, those before and after them, and the rest of a vector.
        let used = [own.powers_from(7), own.powers_from(1).wrapping_add(32), own.last_round_key(), own.round_key(0)];
        let used = used.into_iter().chain([own.round_key(own.rounds() - 1), own.salt.as_ptr()]);
        for address in used {
            assert!(at(address) + 16 <= end, "{}", at(address));
        }
        // Its tag.
        assert_eq!(at(std::ptr::from_ref(&key.state).cast()), 0);
    }
}
