//! A key exchange of IKE and what follows from it, and the engines of this machine:
//! `cargo run -p weir-crypto --example key_exchange`.

use weir_crypto::Engine;
use weir_crypto::ike::{KeMethod, Prf};

/// SKEYSEED and the first 32 bytes of key material (RFC 7296 §2.14).
fn key_material(prf: Prf, shared: &[u8]) -> [u8; 32] {
    let (nonce_i, nonce_r, spi_i, spi_r) = ([1; 32], [2; 32], [3; 8], [4; 8]);
    let seed = prf.compute(&[nonce_i, nonce_r].concat(), &[shared]);
    let mut material = [0; 32];
    prf.plus(&seed, &[&nonce_i, &nonce_r, &spi_i, &spi_r], &mut material);
    material
}

fn main() {
    for method in [KeMethod::X25519, KeMethod::Ecp256, KeMethod::MlKem768] {
        let initiator = method.generate().expect("memory and randomness");
        // What the responder sends back has another length with ML-KEM: it is a ciphertext.
        let (answer, responder_secret) = method.respond(initiator.public()).expect("a good public value");
        let sent = (initiator.public().len(), answer.len());
        let secret = initiator.finish(&answer).expect("a good answer");
        assert!(secret == responder_secret);
        assert_eq!(key_material(Prf::HmacSha256, &secret), key_material(Prf::HmacSha256, &responder_secret));
        println!("{}: {} bytes sent, {} returned, both ends have the same keys", method.name(), sent.0, sent.1);
    }
    // A public value of the wrong length is an error with both lengths.
    println!("{}", KeMethod::X25519.respond(&[9; 31]).map(|_| ()).expect_err("31 of 32 bytes"));

    for engine in Engine::ALL {
        match engine.unavailable() {
            None => println!("engine {}: {}", engine.name(), engine.describe()),
            Some(why) => println!("engine {}: unavailable, {why}", engine.name()),
        }
    }
}

#[test]
fn runs() {
    main();
}
