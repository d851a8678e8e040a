//! Writes an IKE_SA_INIT request and lists the payloads of one: `cargo run -p weir-wire --example
//! ike_message`.

use weir_wire::ParseError;
use weir_wire::ike::{
    Chain, ExchangeType, Header, HeaderFields, Ke, NotifyType, PayloadType, Payloads, ProtocolId, begin_message,
    finish_message,
};

/// Key exchange with X25519 (transform type 4).
const CURVE25519: u16 = 31;

/// A request with key exchange, nonce and one notification; the SA payload is left out.
fn emit(public: &[u8; 32], nonce: &[u8; 32]) -> Vec<u8> {
    let mut message = Vec::new();
    let fields = HeaderFields {
        spi_i: *b"initiate",
        spi_r: [0; 8],
        version: Header::VERSION_2,
        exchange: ExchangeType::IKE_SA_INIT,
        flags: Header::FLAG_INITIATOR,
        message_id: 0,
    };
    begin_message(&mut message, &fields);
    let mut chain = Chain::new(&mut message);
    chain.ke(CURVE25519, public).nonce(nonce);
    chain.notify(ProtocolId::NONE, &[], NotifyType::IKEV2_FRAGMENTATION_SUPPORTED, &[]);
    assert!(!chain.overflowed(), "every payload is far below 65,535 bytes");
    let first = chain.first();
    finish_message(&mut message, first);
    message
}

/// The types of the payloads. The iterator ends after the first error.
fn payloads(message: &[u8]) -> Result<Vec<PayloadType>, ParseError> {
    let (header, body) = Header::parse(message)?;
    Payloads::new(header.next, body).map(|payload| payload.map(|payload| payload.kind)).collect()
}

fn main() {
    let message = emit(&[9; 32], &[7; 32]);
    let kinds = payloads(&message).expect("it was just written");
    for kind in &kinds {
        println!("{kind}");
    }
    assert_eq!(kinds, [PayloadType::KE, PayloadType::NONCE, PayloadType::NOTIFY]);

    // Bodies are read one by one, as they are needed.
    let (header, body) = Header::parse(&message).expect("as above");
    let first = Payloads::new(header.next, body).next().expect("three payloads").expect("as above");
    let ke = Ke::parse(first.body).expect("a key exchange payload");
    assert_eq!((ke.group, ke.data.len()), (CURVE25519, 32));

    let error = payloads(&message[..60]).expect_err("the nonce is cut off");
    println!("cut after 60 bytes: {error}");
}

#[test]
fn runs() {
    main();
}
