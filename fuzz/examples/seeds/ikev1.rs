//! Inputs of `ikev1_message`: bytes for the decoders, and messages that each state accepts.

use wire::IpProto;
use wire::ike::{Attribute, CfgAttr, CfgType, Chain, IdType, PayloadType, ProtocolId, v1};

/// A chain of payloads, padded as the format counts it, and the type of its first one.
fn chain(build: impl FnOnce(&mut Chain<'_>)) -> (u8, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut chain = Chain::new(&mut bytes);
    build(&mut chain);
    let first = chain.first().0;
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    (first, bytes)
}

/// Bytes of one payload without its generic header, for the decoders.
fn body(build: impl FnOnce(&mut Chain<'_>)) -> Vec<u8> {
    let (_, bytes) = chain(build);
    [&[0x80], &bytes[4..]].concat()
}

fn phase_1(chain: &mut Chain<'_>) {
    let attributes = [
        Attribute::short(v1::Phase1Attr::ENCRYPTION.0, v1::Phase1Encryption::AES_CBC.0),
        Attribute::short(v1::Phase1Attr::KEY_LENGTH.0, 128),
        Attribute::short(v1::Phase1Attr::HASH.0, v1::Phase1Hash::SHA2_256.0),
        Attribute::short(v1::Phase1Attr::GROUP.0, 19),
        Attribute::short(v1::Phase1Attr::AUTHENTICATION.0, 1),
        Attribute::short(v1::Phase1Attr::LIFE_TYPE.0, v1::LifeType::SECONDS.0),
        Attribute::long(v1::Phase1Attr::LIFE_DURATION.0, &[0, 0, 0x70, 0x80]),
    ];
    let transforms = [v1::TransformOut { number: 1, id: v1::KEY_IKE, attributes: &attributes }];
    let proposal = v1::ProposalOut { number: 1, protocol: ProtocolId::IKE, spi: &[], transforms: &transforms };
    chain.sa_v1(v1::DOI_IPSEC, v1::SIT_IDENTITY_ONLY, &[proposal]);
}

fn phase_2(chain: &mut Chain<'_>) {
    let attributes = [
        Attribute::short(v1::Phase2Attr::ENCAPSULATION_MODE.0, v1::EncapsulationMode::TUNNEL.0),
        Attribute::short(v1::Phase2Attr::KEY_LENGTH.0, 128),
    ];
    let transforms = [v1::TransformOut { number: 1, id: v1::EspTransform::AES_GCM_16.0, attributes: &attributes }];
    let spi = [0, 0, 9, 9];
    let proposal = v1::ProposalOut { number: 1, protocol: ProtocolId::ESP, spi: &spi, transforms: &transforms };
    chain.sa_v1(v1::DOI_IPSEC, v1::SIT_IDENTITY_ONLY, &[proposal]).raw(PayloadType::NONCE_V1, &[7; 16]);
    for network in [1, 2] {
        let data = [10, network, 0, 0, 255, 255, 0, 0];
        chain.id_v1(&v1::Id { kind: IdType::IPV4_ADDR_SUBNET, proto: None, port: 0, data: &data });
    }
}

fn identity(chain: &mut Chain<'_>) {
    chain.id_v1(&v1::Id { kind: IdType::FQDN, proto: Some(IpProto::UDP), port: 500, data: b"host1.test" });
}

fn notification(chain: &mut Chain<'_>) {
    let (doi, protocol, kind) = (v1::DOI_IPSEC, ProtocolId::IKE, v1::NotifyType::R_U_THERE);
    chain.notification_v1(&v1::Notification { doi, protocol, spi: &[], kind, data: &[0, 0, 0, 1] });
}

fn config(kind: CfgType) -> impl Fn(&mut Chain<'_>) {
    move |chain| {
        let attributes = [
            Attribute::long(CfgAttr::XAUTH_USER_NAME.0, b"alice"),
            Attribute::long(CfgAttr::XAUTH_USER_PASSWORD.0, b"a password"),
            Attribute::long(CfgAttr::INTERNAL_IP4_ADDRESS.0, &[10, 9, 0, 1]),
            Attribute::short(CfgAttr::XAUTH_STATUS.0, 1),
        ];
        chain.config_v1(kind, 3, &attributes);
    }
}

fn fragment(chain: &mut Chain<'_>) {
    let fragment = v1::FragmentPayload { id: 1, number: 1, last: false, data: &[1, 2, 3] };
    chain.payload(PayloadType::FRAGMENT_V1, |out| fragment.emit(out));
}

/// A setup of endpoints with operations: variant, datagrams that arrive, stopped credentials.
fn setup(variant: u8, delivered: u8, holds: u8, operations: &[Vec<u8>]) -> Vec<u8> {
    [&[variant, delivered, holds][..], &operations.concat()].concat()
}

/// A message for host 2: `exchange` is its index in the list of the target.
fn message(exchange: u8, message_id: u8, build: impl FnOnce(&mut Chain<'_>)) -> Vec<u8> {
    let (first, payloads) = chain(build);
    let len = (payloads.len() / 4) as u8;
    [&[0x80, exchange, first, 3, message_id, len][..], &payloads].concat()
}

/// Name and bytes of each seed.
pub fn all() -> Vec<(String, Vec<u8>)> {
    let delete = |chain: &mut Chain<'_>| {
        chain.delete_v1(v1::DOI_IPSEC, ProtocolId::ESP, &[&[1, 2, 3, 4]]);
    };
    let mut seeds = vec![
        ("decode-phase-1".to_owned(), body(phase_1)),
        ("decode-phase-2".to_owned(), body(phase_2)),
        ("decode-identity".to_owned(), body(identity)),
        ("decode-notification".to_owned(), body(notification)),
        ("decode-config".to_owned(), body(config(CfgType::REPLY))),
        ("decode-fragment".to_owned(), [&[0x80], &chain(fragment).1[..]].concat()),
        ("decode-chain".to_owned(), [&[0x80], &chain(phase_2).1[..]].concat()),
        (
            "established".to_owned(),
            setup(
                0,
                40,
                0,
                &[
                    message(4, 200, phase_2),
                    message(2, 201, notification),
                    message(2, 202, delete),
                    vec![0x85, 1],
                    vec![0x02, 30],
                ],
            ),
        ),
        ("quick-answered".to_owned(), setup(32, 8, 0, &[message(4, 0, |_| ()), message(4, 0, phase_2)])),
        ("re-established".to_owned(), setup(0, 40, 0, &[vec![0x05, 2], vec![0x04], vec![0x85, 3], vec![0x02, 60]])),
    ];
    // Messages of every kind after each number of datagrams.
    for (variant, name, exchange) in [
        (0, "main-psk", 0),
        (1, "aggressive-psk", 1),
        (2, "main-signature", 0),
        (12, "xauth-pull", 3),
        (28, "xauth-push", 3),
    ] {
        for delivered in 0..8 {
            let operations = [
                message(exchange, 0, identity),
                message(3, 0, config(CfgType::REPLY)),
                message(3, 200, config(CfgType::SET)),
                vec![0x01, delivered, 40, 1],
                vec![0x04],
                vec![0x02, 10],
            ];
            seeds.push((format!("{name}-{delivered}"), setup(variant, delivered, 0, &operations)));
        }
    }
    // Credential responses come late.
    seeds.extend((0..4).map(|count| {
        (format!("held-{count}"), setup(14, 40, 3 | count << 2, &[vec![0x02, 5], vec![0x03], vec![0x83]]))
    }));
    seeds.into_iter().map(|(name, bytes)| (format!("ikev1_message/{name}"), bytes)).collect()
}
