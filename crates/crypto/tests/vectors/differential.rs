//! Every algorithm against a second library, over random sizes, alignments and contents.
//!
//! The second opinion is RustCrypto; for AES-CCM, which comes from there itself, it is the
//! definition of RFC 3610 written out over AWS-LC's AES (CTR and CBC through this crate's engine
//! are checked separately).

use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::aes::{Aes128, Aes192, Aes256};
use cbc::cipher::{BlockCipherEncrypt, BlockModeEncrypt, KeyIvInit, StreamCipher};
use hmac::Mac;
use proptest::prelude::*;
use weir_crypto::{CipherKind, IntegKind, Suite};

use super::Rig;

/// Inputs of one operation.
#[derive(Clone, Debug)]
struct Case {
    key: [u8; 36],
    mac_key: [u8; 64],
    iv: [u8; 16],
    aad: Vec<u8>,
    clear: Vec<u8>,
    shift: usize,
}

fn cases(max: usize) -> impl Strategy<Value = Case> {
    let len = prop_oneof![4 => 0..max, 1 => (0..max / 16).prop_map(|blocks| blocks * 16), 1 => 0..20usize];
    let bytes = |len: usize| proptest::collection::vec(any::<u8>(), len);
    let aad_len = prop_oneof![Just(8usize), Just(12), Just(16), Just(24), 0..100usize];
    let keys = (any::<[u8; 32]>(), any::<[u8; 4]>(), any::<[u8; 32]>(), any::<[u8; 32]>(), any::<[u8; 16]>());
    (keys, len.prop_flat_map(bytes), aad_len.prop_flat_map(bytes), 0..17usize).prop_map(
        |((key, salt, mac_low, mac_high, iv), clear, aad, shift)| {
            let (mut whole, mut mac_key) = ([0; 36], [0; 64]);
            whole[..32].copy_from_slice(&key);
            whole[32..].copy_from_slice(&salt);
            mac_key[..32].copy_from_slice(&mac_low);
            mac_key[32..].copy_from_slice(&mac_high);
            Case { key: whole, mac_key, iv, aad, clear, shift }
        },
    )
}

/// Result of the second library: body and full-length ICV.
fn second(suite: &Suite, case: &Case) -> (Vec<u8>, Vec<u8>) {
    let Some(enc) = suite.enc else { return (case.clear.clone(), second_mac(suite, case, &case.clear)) };
    let (key, salt) = case.key[..enc.material_len()].split_at(enc.key_len);
    let nonce = [salt, &case.iv[..8]].concat();
    match enc.kind {
        CipherKind::ChaCha20Poly1305 => aead(chacha20poly1305::ChaCha20Poly1305::new_from_slice(key), &nonce, case),
        CipherKind::AesGcm | CipherKind::AesGmac => match enc.key_len {
            16 => aead(aes_gcm::AesGcm::<Aes128, aes_gcm::aead::consts::U12>::new_from_slice(key), &nonce, case),
            24 => aead(aes_gcm::AesGcm::<Aes192, aes_gcm::aead::consts::U12>::new_from_slice(key), &nonce, case),
            _ => aead(aes_gcm::AesGcm::<Aes256, aes_gcm::aead::consts::U12>::new_from_slice(key), &nonce, case),
        },
        CipherKind::AesCcm => rfc_3610(&block_cipher(key), &nonce, enc.icv_len, case),
        kind => {
            let body = second_cipher(kind, key, salt, case);
            let icv = second_mac(suite, case, &body);
            (body, icv)
        }
    }
}

fn aead<A: AeadInOut, E: std::fmt::Debug>(key: Result<A, E>, nonce: &[u8], case: &Case) -> (Vec<u8>, Vec<u8>) {
    let mut body = case.clear.clone();
    let nonce = nonce.try_into().expect("a nonce of 12 bytes");
    let tag = key.expect("a key").encrypt_inout_detached(nonce, &case.aad, InOutBuf::from(&mut body[..]));
    (body, tag.expect("a short message").to_vec())
}

fn second_cipher(kind: CipherKind, key: &[u8], salt: &[u8], case: &Case) -> Vec<u8> {
    fn chain<M: KeyIvInit + BlockModeEncrypt>(key: &[u8], iv: &[u8], body: &mut [u8]) {
        let mut mode = M::new_from_slices(key, &iv[..M::iv_size()]).expect("lengths that fit");
        for block in body.chunks_exact_mut(M::block_size()) {
            mode.encrypt_block(block.try_into().expect("a block"));
        }
    }
    fn stream<M: KeyIvInit + StreamCipher>(key: &[u8], counter: &[u8], body: &mut [u8]) {
        M::new_from_slices(key, counter).expect("lengths that fit").apply_keystream(body);
    }
    let mut body = case.clear.clone();
    let counter = [salt, &case.iv[..8], &[0, 0, 0, 1]].concat();
    match (kind, key.len()) {
        (CipherKind::AesCbc, 16) => chain::<cbc::Encryptor<Aes128>>(key, &case.iv, &mut body),
        (CipherKind::AesCbc, 24) => chain::<cbc::Encryptor<Aes192>>(key, &case.iv, &mut body),
        (CipherKind::AesCbc, 32) => chain::<cbc::Encryptor<Aes256>>(key, &case.iv, &mut body),
        (CipherKind::AesCtr, 16) => stream::<ctr::Ctr32BE<Aes128>>(key, &counter, &mut body),
        (CipherKind::AesCtr, 24) => stream::<ctr::Ctr32BE<Aes192>>(key, &counter, &mut body),
        (CipherKind::AesCtr, 32) => stream::<ctr::Ctr32BE<Aes256>>(key, &counter, &mut body),
        (CipherKind::TripleDesCbc, _) => chain::<cbc::Encryptor<des::TdesEde3>>(key, &case.iv, &mut body),
        (CipherKind::DesCbc, _) => chain::<cbc::Encryptor<des::Des>>(key, &case.iv, &mut body),
        (CipherKind::Null, _) => {}
        other => panic!("{other:?}"),
    }
    body
}

fn second_mac(suite: &Suite, case: &Case, body: &[u8]) -> Vec<u8> {
    fn compute<M: Mac + KeyInit>(key: &[u8], parts: [&[u8]; 2]) -> Vec<u8> {
        let mut mac = <M as KeyInit>::new_from_slice(key).expect("a key");
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().to_vec()
    }
    let (key, parts) = (&case.mac_key[..suite.integ_material_len()], [&case.aad[..], body]);
    match suite.integ.expect("a MAC").kind {
        IntegKind::HmacMd5 => compute::<hmac::Hmac<md5::Md5>>(key, parts),
        IntegKind::HmacSha1 => compute::<hmac::Hmac<sha1::Sha1>>(key, parts),
        IntegKind::HmacSha256 => compute::<hmac::Hmac<sha2::Sha256>>(key, parts),
        IntegKind::HmacSha384 => compute::<hmac::Hmac<sha2::Sha384>>(key, parts),
        IntegKind::HmacSha512 => compute::<hmac::Hmac<sha2::Sha512>>(key, parts),
        IntegKind::AesCmac => compute::<cmac::Cmac<Aes128>>(key, parts),
        IntegKind::AesXcbc => rfc_3566(key, &parts.concat()),
    }
}

/// One block of AES, by CBC with a zero IV in this crate's engine: AWS-LC's.
fn block_cipher(key: &[u8]) -> impl Fn([u8; 16]) -> [u8; 16] {
    let suite = super::esp(&format!("aes{}-sha1", key.len() * 8));
    let rig = Rig::new(suite, key, &[0; 20]);
    move |block| {
        let (op, mut packet) = rig.layout(0, &[], [0; 16], &block, &[0; 12]);
        rig.seal(op, &mut packet);
        packet[..16].try_into().expect("a block")
    }
}

fn xor(a: &[u8], b: &[u8]) -> [u8; 16] {
    std::array::from_fn(|i| a.get(i).unwrap_or(&0) ^ b.get(i).unwrap_or(&0))
}

/// CCM as RFC 3610 §2 writes it down, with L = 4.
fn rfc_3610(aes: &impl Fn([u8; 16]) -> [u8; 16], nonce: &[u8], icv_len: usize, case: &Case) -> (Vec<u8>, Vec<u8>) {
    let flags = 64 * u8::from(!case.aad.is_empty()) + 8 * ((icv_len as u8 - 2) / 2) + 3;
    let mut input = [&[flags], nonce, &(case.clear.len() as u32).to_be_bytes()].concat();
    if !case.aad.is_empty() {
        input.extend((case.aad.len() as u16).to_be_bytes());
        input.extend(&case.aad);
        input.resize(input.len().next_multiple_of(16), 0);
    }
    input.extend(&case.clear);
    let mac = input.chunks(16).fold([0; 16], |mac, block| aes(xor(&mac, block)));
    let stream = |counter: u32| aes([&[3], nonce, &counter.to_be_bytes()].concat().try_into().expect("a block"));
    let sealed = (1..).zip(case.clear.chunks(16)).flat_map(|(i, part)| xor(part, &stream(i))[..part.len()].to_vec());
    (sealed.collect(), xor(&mac, &stream(0))[..icv_len].to_vec())
}

/// AES-XCBC-MAC as RFC 3566 §4 writes it down.
fn rfc_3566(key: &[u8], message: &[u8]) -> Vec<u8> {
    let one = |key: &[u8], block: [u8; 16]| {
        let mut block = block.into();
        Aes128::new_from_slice(key).expect("a key").encrypt_block(&mut block);
        <[u8; 16]>::from(block)
    };
    let [k1, k2, k3] = [1, 2, 3].map(|n| one(key, [n; 16]));
    let blocks: Vec<&[u8]> = if message.is_empty() { vec![message] } else { message.chunks(16).collect() };
    let (last, front) = blocks.split_last().expect("a last block");
    let chain = front.iter().fold([0; 16], |chain, block| one(&k1, xor(&chain, block)));
    let masked = if last.len() == 16 { xor(last, &k2) } else { xor(&[last, &[0x80][..]].concat(), &k3) };
    one(&k1, xor(&chain, &masked)).to_vec()
}

fn agree(suite: Suite, case: &Case) {
    let mut case = case.clone();
    case.clear.truncate(case.clear.len() / suite.block_len() * suite.block_len());
    if suite.is_aead() && !suite.is_confidential() {
        case.aad.append(&mut case.clear);
    }
    let rig = Rig::new(suite, &case.key[..suite.enc_material_len()], &case.mac_key[..suite.integ_material_len()]);
    let (body, mut icv) = second(&suite, &case);
    icv.truncate(suite.icv_len());
    let ours = rig.check(case.shift, &case.aad, case.iv, &case.clear);
    assert_eq!(ours, (body, icv), "{suite}: {} + {} bytes, shift {}", case.aad.len(), case.clear.len(), case.shift);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn aeads_agree(case in cases(2000)) {
        let fast = |s: &Suite| s.is_aead() && s.enc.is_some_and(|e| e.kind != CipherKind::AesCcm);
        Suite::all_esp().filter(fast).for_each(|suite| agree(suite, &case));
    }

    #[test]
    fn ciphers_with_macs_agree(case in cases(2000)) {
        // Each cipher and each MAC is included; pairs are combined by the same code.
        let pairs = ["aes128-sha256", "aes192-sha1", "aes256-sha512", "aes128ctr-aesxcbc", "aes192ctr-aescmac",
            "aes256ctr-sha384", "3des-md5", "des-sha1", "null-aescmac"];
        pairs.iter().for_each(|pair| agree(super::esp(pair), &case));
        Suite::all_ah().for_each(|suite| agree(suite, &case));
    }

    #[test]
    fn ccm_agrees(case in cases(300)) {
        let ccm = |s: &Suite| s.enc.is_some_and(|e| e.kind == CipherKind::AesCcm);
        Suite::all_esp().filter(ccm).for_each(|suite| agree(suite, &case));
    }
}
