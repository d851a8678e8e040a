//! Messages of both versions of IKE, unencrypted, with every payload there is a view for.

use wire::ike::{
    Attribute, AuthMethodId, CertEncoding, CfgAttr, CfgType, Chain, Eap, ExchangeType, Header, HeaderFields, IdType,
    NotifyType, PayloadType, ProposalOut, ProtocolId, Skf, Transform, TransformType, begin_message, finish_message, v1,
};
use wire::{IpProto, TrafficSelector};

fn message(version: u8, exchange: ExchangeType, payloads: impl FnOnce(&mut Chain<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    let (spi_i, spi_r, flags) = ([1; 8], [2; 8], Header::FLAG_INITIATOR);
    begin_message(&mut out, &HeaderFields { spi_i, spi_r, version, exchange, flags, message_id: 1 });
    let mut chain = Chain::new(&mut out);
    payloads(&mut chain);
    let first = chain.first();
    finish_message(&mut out, first);
    out
}

fn init(chain: &mut Chain<'_>) {
    let transforms = [
        Transform::new(TransformType::ENCR, 20).with_key_bits(256),
        Transform::new(TransformType::PRF, 5),
        Transform::new(TransformType::KE, 31),
        Transform::new(TransformType::ADDKE1, 36),
    ];
    let proposal = |number| ProposalOut { number, protocol: ProtocolId::IKE, spi: &[], transforms: &transforms };
    chain
        .notify(ProtocolId::NONE, &[], NotifyType::COOKIE, &[5; 8])
        .sa(&[proposal(1), proposal(2)])
        .ke(31, &[9; 32])
        .nonce(&[8; 32])
        .notify(ProtocolId::NONE, &[], NotifyType::SIGNATURE_HASH_ALGORITHMS, &[0, 2, 0, 3, 0, 5])
        .vendor(b"weir");
}

fn auth(chain: &mut Chain<'_>) {
    let side = |text: &str| text.parse::<TrafficSelector>().expect("a good selector");
    let transforms = [Transform::new(TransformType::ENCR, 20).with_key_bits(128), Transform::new(TransformType::SN, 1)];
    let proposal = ProposalOut { number: 1, protocol: ProtocolId::ESP, spi: &[1, 2, 3, 4], transforms: &transforms };
    let mut eap = Vec::new();
    Eap::emit(Eap::RESPONSE, 1, b"\x01moon", &mut eap);
    chain
        .id(PayloadType::IDi, IdType::FQDN, b"moon.lab")
        .id(PayloadType::IDr, IdType::IPV4_ADDR, &[10, 0, 0, 1])
        .cert(CertEncoding::X509_SIGNATURE, &[0x30, 0])
        .certreq(CertEncoding::X509_SIGNATURE, &[7; 40])
        .auth(AuthMethodId::DIGITAL_SIGNATURE, &[2, 0x30, 0, 1, 2, 3])
        .cfg(CfgType::REQUEST, &[(CfgAttr::INTERNAL_IP4_ADDRESS, &[]), (CfgAttr::APPLICATION_VERSION, b"1")])
        .sa(&[proposal])
        .ts(PayloadType::TSi, &[side("10.1.0.0/16[tcp/80]"), side("10.1.0.0/16[udp/opaque]")])
        .ts(PayloadType::TSr, &[side("fd00::/64")])
        .eap(&eap)
        .notify(ProtocolId::ESP, &[1, 2, 3, 4], NotifyType::REKEY_SA, &[])
        .delete(ProtocolId::ESP, &[&[1, 2, 3, 4], &[5, 6, 7, 8]])
        .critical_payload(PayloadType(200), |out| out.push(1));
}

fn phase_1(chain: &mut Chain<'_>) {
    let attributes = [
        Attribute::short(v1::Phase1Attr::ENCRYPTION.0, v1::Phase1Encryption::AES_CBC.0),
        Attribute::short(v1::Phase1Attr::KEY_LENGTH.0, 128),
        Attribute::long(v1::Phase1Attr::LIFE_DURATION.0, &[0, 0, 0x70, 0x80]),
    ];
    let transform = |number| v1::TransformOut { number, id: v1::KEY_IKE, attributes: &attributes };
    let transforms = [transform(1), transform(2)];
    let proposal = v1::ProposalOut { number: 1, protocol: ProtocolId::IKE, spi: &[], transforms: &transforms };
    chain
        .sa_v1(v1::DOI_IPSEC, v1::SIT_IDENTITY_ONLY, &[proposal])
        .raw(PayloadType::VENDOR_V1, &v1::vendor::NAT_T)
        .raw(PayloadType::KE_V1, &[9; 16])
        .raw(PayloadType::NONCE_V1, &[8; 16]);
}

fn phase_2(chain: &mut Chain<'_>) {
    let id = v1::Id {
        kind: IdType::IPV4_ADDR_SUBNET,
        proto: Some(IpProto::TCP),
        port: 80,
        data: &[10, 0, 0, 0, 255, 0, 0, 0],
    };
    let (doi, protocol, kind) = (v1::DOI_IPSEC, ProtocolId::IKE, v1::NotifyType::R_U_THERE);
    let config = [Attribute::short(CfgAttr::XAUTH_TYPE.0, 0), Attribute::long(CfgAttr::XAUTH_USER_NAME.0, b"carol")];
    let fragment = v1::FragmentPayload { id: 1, number: 1, last: true, data: &[1, 2, 3] };
    chain
        .raw(PayloadType::HASH_V1, &[7; 20])
        .id_v1(&id)
        .notification_v1(&v1::Notification { doi, protocol, spi: &[6; 16], kind, data: &[0, 0, 0, 1] })
        .delete_v1(doi, ProtocolId::ESP, &[&[1, 2, 3, 4]])
        .nat_oa_v1(PayloadType::NAT_OA_V1, [192, 0, 2, 1].into())
        .nat_oa_v1(PayloadType::NAT_OA_DRAFT_V1, [0x20; 16].into())
        .config_v1(CfgType::REPLY, 3, &config)
        .payload(PayloadType::FRAGMENT_V1, |out| fragment.emit(out));
}

/// Name and bytes of each message.
pub fn messages() -> [(&'static str, Vec<u8>); 6] {
    let mut inner = Vec::new();
    let mut chain = Chain::new(&mut inner);
    auth(&mut chain);
    let first = chain.first();
    let (two, one) = (Header::VERSION_2, Header::VERSION_1);
    [
        ("init", message(two, ExchangeType::IKE_SA_INIT, init)),
        ("auth", message(two, ExchangeType::IKE_AUTH, auth)),
        (
            "encrypted",
            message(two, ExchangeType::IKE_AUTH, |chain| {
                chain.encrypted(PayloadType::SK, first, |out| out.extend(&inner));
            }),
        ),
        (
            "fragment",
            message(two, ExchangeType::IKE_AUTH, |chain| {
                chain.encrypted(PayloadType::SKF, first, |out| Skf { number: 1, total: 2, body: &inner }.emit(out));
            }),
        ),
        ("v1-main", message(one, ExchangeType::ID_PROT, phase_1)),
        ("v1-quick", message(one, ExchangeType::QUICK_MODE, phase_2)),
    ]
}
