//! Seals one packet with an engine and opens it: `cargo run -p weir-crypto --example seal_open`.

use std::sync::Arc;

use weir_crypto::{Aad, CryptoOp, DerivedKeys, Engine, Job, KeyMaterial, KeyTable, Keys, Span, Suite};

/// Header (authenticated), body (encrypted), ICV (written by the engine).
const HEADER: usize = 8;
const BODY: usize = 24;
const ICV: usize = 16;

fn main() {
    let suite = Suite::parse_esp("aes128gcm16").expect("a suite that this crate has");
    let engine = Engine::best();
    // 16 bytes of key, 4 bytes of salt: KEYMAT of RFC 4106.
    let key = engine.expand(&suite, KeyMaterial { enc: &[7; 20], integ: &[] }).expect("20 bytes, as asked");
    let mut table = KeyTable::default();
    let key = table.insert(Arc::new(key));
    // No keys are derived here: a cache without slots.
    let derived = DerivedKeys::new(0);
    let keys = Keys { table: &table, derived: &derived };

    let op = CryptoOp {
        key,
        aad: Aad::InPlace(Span::new(0, HEADER)),
        body: Span::new(HEADER, HEADER + BODY),
        icv: Span::new(HEADER + BODY, HEADER + BODY + ICV),
        // The IV must never repeat under one key. 8 of the 16 bytes are used.
        iv: 1u128.to_le_bytes(),
    };
    let mut packet = *b"header..this must remain secret...............??";

    let mut jobs = [Job::new(op, &mut packet)];
    engine.seal(keys, &mut jobs);
    assert!(jobs[0].sealed(), "a packet that was not sealed must not be sent");
    println!("{}: {packet:02x?}", engine.name());
    assert_eq!(&packet[..HEADER], b"header..");
    assert_ne!(&packet[HEADER..HEADER + 4], b"this");

    let mut forged = packet;
    forged[HEADER] ^= 1;
    let mut jobs = [Job::new(op, &mut packet), Job::new(op, &mut forged)];
    engine.open(keys, &mut jobs);
    // The proof that the ICV is right. Only engines make it.
    let (good, bad) = (jobs[0].take_ok(), jobs[1].take_ok());
    assert!(good.is_some() && bad.is_none());
    assert_eq!(&packet[HEADER..HEADER + BODY], b"this must remain secret.");
    println!("opened; the forged copy was refused");
}

#[test]
fn runs() {
    main();
}
