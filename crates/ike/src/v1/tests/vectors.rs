//! A whole exchange, recorded with every intermediate value: everything must come out of the
//! messages, the shared key and the Diffie-Hellman secrets.

use std::collections::HashMap;

use crypto::ike::Secret;
use wire::ike::{Header, PayloadType};

use crate::keymat::v1::{QuickMode, skeyid_psk};
use crate::output::IkeSpis;
use crate::proposal::{ChildProposal, ChildProtocol, IkeProposal};
use crate::v1::message::{Features, Head, Parts, with_hash};
use crate::v1::method::Method;
use crate::v1::proposal::{Phase1, Phase2Terms, accept_phase1, choose_phase1};
use crate::v1::protection::{Exchanged, Iv, Protection};
use crate::v1::selectors;

struct Record {
    frames: HashMap<u32, Vec<u8>>,
    values: HashMap<&'static str, Vec<Vec<u8>>>,
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(digit).collect()
}

impl Record {
    fn read() -> Self {
        let mut record = Self { frames: HashMap::new(), values: HashMap::new() };
        for line in include_str!("main-psk.txt").lines().filter(|line| !line.starts_with('#')) {
            if let Some((number, bytes)) = line.strip_prefix("frame ").and_then(|line| line.split_once(' ')) {
                let bytes = unhex(bytes);
                // The non-ESP marker.
                let bytes = bytes.strip_prefix(&[0; 4]).map(<[u8]>::to_vec).unwrap_or(bytes);
                record.frames.insert(number.parse().expect("a number"), bytes);
            } else {
                let (name, value) = line.split_once(" = ").expect("a value");
                record.values.entry(name).or_default().push(unhex(value));
            }
        }
        record
    }

    fn frame(&self, number: u32) -> (&Header, &[u8]) {
        Header::parse(&self.frames[&number]).expect("a message")
    }

    fn clear(&self, number: u32) -> Parts<'_> {
        let (header, body) = self.frame(number);
        Parts::read(header.next, body).expect("payloads")
    }

    fn value(&self, name: &str) -> &[u8] {
        &self.values[name][0]
    }

    fn is(&self, name: &str, at: usize, computed: &[u8]) {
        assert_eq!(computed, self.values[name][at], "{name}");
    }
}

/// Keys and exchange of phase 1.
fn phase_1(record: &Record) -> (Phase1, Exchanged, IkeSpis, Protection, Iv) {
    let (three, four) = (record.clear(3), record.clear(4));
    let exchanged = Exchanged {
        public_i: three.ke.expect("KE").to_vec(),
        public_r: four.ke.expect("KE").to_vec(),
        nonce_i: three.nonce.expect("a nonce").to_vec(),
        nonce_r: four.nonce.expect("a nonce").to_vec(),
        shared: Secret::from_slice(record.value("shared Diffie Hellman secret")),
    };
    let ours = Phase1::of(&[IkeProposal::parse("aes128-sha256-modp2048").expect("a proposal")], &[Method::PSK]);
    let cookies = IkeSpis::of(record.frame(2).0);
    let skeyid = skeyid_psk(ours[0].prf, b"lab-only-psk", &exchanged.nonces());
    let (protection, iv) = Protection::new(&ours[0], skeyid, &exchanged, cookies).expect("keys");
    (ours[0], exchanged, cookies, protection, iv)
}

#[test]
fn the_proposal_is_read_and_repeated_byte_for_byte() {
    let record = Record::read();
    let (one, two) = (record.clear(1), record.clear(2));
    let ours = Phase1::of(&[IkeProposal::parse("aes256-aes128-sha256-modp2048").expect("a proposal")], &[Method::PSK]);
    let choice = choose_phase1(&ours, one.sa.expect("SA")).expect("a choice");
    assert_eq!(choice.answer, two.sa.expect("SA"));
    assert_eq!(choice.life, Some(std::time::Duration::from_secs(15_840)));
    assert_eq!(accept_phase1(&ours, two.sa.expect("SA")).expect("an answer").0, choice.suite);
    let features = Features::of(&two.vendors);
    assert!(features.dpd && features.nat_traversal.is_some());
}

#[test]
fn every_value_of_main_mode_comes_out() {
    let record = Record::read();
    let (_, exchanged, cookies, protection, mut iv) = phase_1(&record);
    let keys = &protection.keys;
    for (name, key) in [
        ("SKEYID", &keys.skeyid),
        ("SKEYID_d", &keys.skeyid_d),
        ("SKEYID_a", &keys.skeyid_a),
        ("SKEYID_e", &keys.skeyid_e),
        ("encryption key Ka", &keys.cipher_key(protection.prf, 16)),
    ] {
        record.is(name, 0, key);
    }
    record.is("initial IV", 0, &iv.0);
    let one = record.clear(1);
    let sa_body = one.sa.expect("SA");
    for (number, name, who, initiator) in [(5, "HASH_I", "moon.lab", true), (6, "HASH_R", "sun.lab", false)] {
        let (header, body) = record.frame(number);
        let (plain, next) = protection.open(&iv, body).expect("whole blocks");
        let parts = Parts::read(header.next, &plain).expect("payloads");
        let id_body = parts.ids[0];
        assert_eq!(selectors::identity(id_body).expect("an identity").to_string(), who);
        let hash = protection.hash_phase1(initiator, &exchanged, cookies, sa_body, id_body);
        record.is(name, 0, &hash);
        assert_eq!(parts.hash, Some(&hash[..]));
        // The same payloads become the same message.
        let again = protection.seal(&mut iv, &Head::main(cookies), header.next, &plain);
        assert_eq!(again, record.frames[&number]);
        assert_eq!(iv, next);
        record.is("next IV for MID 0", usize::from(!initiator), &iv.0);
    }
}

/// The IV after phase 1.
fn base(record: &Record) -> Iv {
    Iv(record.values["next IV for MID 0"][1].clone())
}

#[test]
fn every_value_of_quick_mode_comes_out() {
    const MESSAGE_ID: u32 = 1_972_315_697;
    let record = Record::read();
    let (_, _, cookies, protection, _) = phase_1(&record);
    let (prf, keys) = (protection.prf, &protection.keys);
    let ivs = &record.values["next IV for MID 1972315697"];
    let mut iv = protection.iv(&base(&record), MESSAGE_ID);
    assert_eq!(iv.0, ivs[0]);
    let open = |number: u32, iv: &Iv| {
        let (header, body) = record.frame(number);
        assert_eq!(header.message_id.get(), MESSAGE_ID);
        let (plain, next) = protection.open(iv, body).expect("whole blocks");
        (header.next, plain, next)
    };
    let (first, seven, next) = open(7, &iv);
    assert_eq!(first, PayloadType::HASH_V1);
    let seven = Parts::read(first, &seven).expect("payloads");
    assert!(protection.has_hash_1(MESSAGE_ID, &seven));
    record.is("Hash(1)", 0, &keys.hash_1(prf, MESSAGE_ID, seven.hashed.expect("bytes")));
    let head = Head { cookies, exchange: wire::ike::ExchangeType::QUICK_MODE, message_id: MESSAGE_ID };
    let rest_first = PayloadType(record_first(&protection, &iv, &record, 7));
    let sealed = protection.seal_hash_1(&mut iv, &head, rest_first, seven.hashed.expect("bytes"));
    assert_eq!(sealed, record.frames[&7]);
    assert_eq!((&iv, &iv.0), (&next, &ivs[1]));

    let (first, eight, next) = open(8, &iv);
    let eight = Parts::read(first, &eight).expect("payloads");
    let (nonce_i, nonce_r) = (seven.nonce.expect("a nonce"), eight.nonce.expect("a nonce"));
    let hash_2 = keys.hash_2(prf, MESSAGE_ID, nonce_i, eight.hashed.expect("bytes"));
    record.is("Hash(2)", 0, &hash_2);
    assert_eq!(eight.hash, Some(&hash_2[..]));
    assert_eq!(next.0, ivs[2]);

    let (first, nine, last) = open(9, &next);
    let nine = Parts::read(first, &nine).expect("payloads");
    let hash_3 = keys.hash_3(prf, MESSAGE_ID, nonce_i, nonce_r);
    record.is("Hash(3)", 0, &hash_3);
    assert_eq!(nine.hash, Some(&hash_3[..]));
    assert_eq!(last.0, ivs[3]);
    let mut iv = next;
    let three = protection.seal(&mut iv, &head, PayloadType::HASH_V1, &with_hash(&hash_3, PayloadType::NONE, &[]));
    assert_eq!(three, record.frames[&9]);

    // Proposal, selectors and keys.
    let ours = [ChildProposal::parse(ChildProtocol::Esp, "aes128-sha256-modp2048").expect("a proposal")];
    let life = std::time::Duration::from_secs(3960);
    let terms =
        Phase2Terms::of(&ours, crate::config::ChildMode::Tunnel, life, Some(crate::v1::message::NatTraversal::Rfc));
    let plain = Phase2Terms::of(&ours, crate::config::ChildMode::Tunnel, life, None);
    let sa = seven.sa.expect("SA");
    let (terms, offered) = [terms, plain]
        .into_iter()
        .find_map(|terms| Some((terms.clone(), terms.choose(sa, &[1; 4]).ok()?)))
        .expect("a choice");
    let answered = terms.accept(eight.sa.expect("SA")).expect("an answer");
    assert_eq!(offered.suite, answered.suite);
    assert_eq!(offered.suite.ke.map(crypto::ike::KeMethod::id), Some(14));
    assert_eq!(seven.ids, eight.ids);
    assert!(seven.ids.iter().all(|id| selectors::read(id).is_ok()));
    let shared = record.value("DH secret");
    // Each key has the SPI of the receiver in it: the initiator sends with that of the answer.
    for (spi, seed, enc, integ) in [
        (answered.spi, "initiator SA seed", "encryption initiator key", "integrity initiator key"),
        (offered.spi, "responder SA seed", "encryption responder key", "integrity responder key"),
    ] {
        let spi = spi.to_be_bytes();
        let quick = QuickMode { shared, protocol: 3, spi: &spi, nonce_i, nonce_r };
        record.is(seed, 0, &[shared, &[3], &spi, nonce_i, nonce_r].concat());
        let material = keys.quick_mode(prf, &quick, 48);
        record.is(enc, 0, &material[..16]);
        record.is(integ, 0, &material[16..]);
    }
}

/// Next Payload of the HASH payload of a message.
fn record_first(protection: &Protection, iv: &Iv, record: &Record, number: u32) -> u8 {
    let (_, body) = record.frame(number);
    protection.open(iv, body).expect("whole blocks").0[0]
}

#[test]
fn the_deletes_are_authentic() {
    let record = Record::read();
    let (_, _, cookies, protection, _) = phase_1(&record);
    let both = [cookies.initiator.0, cookies.responder.0].concat();
    for (number, name, protocol, spi_len) in
        [(14, "next IV for MID 2291365416", 3, 4), (15, "next IV for MID 6111033", 1, 16)]
    {
        let (header, body) = record.frame(number);
        let message_id = header.message_id.get();
        let iv = protection.iv(&base(&record), message_id);
        record.is(name, 0, &iv.0);
        let (plain, _) = protection.open(&iv, body).expect("whole blocks");
        let parts = Parts::read(header.next, &plain).expect("payloads");
        assert!(protection.has_hash_1(message_id, &parts));
        let delete = parts.deletes[0];
        let spis: Vec<&[u8]> = delete.spis().collect();
        assert_eq!((delete.protocol.0, spis.len(), spis[0].len()), (protocol, 1, spi_len));
        assert!(protocol != 1 || spis[0] == both);
    }
}
