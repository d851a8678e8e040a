//! Whole messages of IKEv2: there and back, known bytes, cut and arbitrary ones.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::{AddrRange, IpProto, PortRange, TrafficSelector};

fn message(fields: &HeaderFields, payloads: impl FnOnce(&mut Chain<'_>)) -> Vec<u8> {
    let mut out = b"what was there before".to_vec();
    begin_message(&mut out, fields);
    let mut chain = Chain::new(&mut out);
    payloads(&mut chain);
    let (first, overflowed) = (chain.first(), chain.overflowed());
    assert!(!overflowed);
    finish_message(&mut out, first);
    out
}

const FIELDS: HeaderFields = HeaderFields {
    spi_i: [1; 8],
    spi_r: [2; 8],
    version: Header::VERSION_2,
    exchange: ExchangeType::CREATE_CHILD_SA,
    flags: Header::FLAG_INITIATOR,
    message_id: 5,
};

/// The bytes of a chain without header.
fn chain(payloads: impl FnOnce(&mut Chain<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    payloads(&mut Chain::new(&mut out));
    out
}

fn only(kind: PayloadType, bytes: &[u8]) -> &[u8] {
    let mut payloads = Payloads::new(kind, bytes);
    let body = payloads.next().expect("a payload").expect("a good one").body;
    assert!(payloads.next().is_none());
    body
}

/// A payload with everything that its view shows.
#[derive(Clone, Debug, PartialEq)]
enum Model {
    Sa(Vec<(u8, ProtocolId, Vec<u8>, Vec<Transform>)>),
    Ke(u16, Vec<u8>),
    Id(PayloadType, IdType, Vec<u8>),
    Cert(CertEncoding, Vec<u8>),
    CertReq(CertEncoding, Vec<[u8; 20]>),
    Auth(AuthMethodId, Vec<u8>),
    Nonce(Vec<u8>),
    Notify(ProtocolId, Vec<u8>, NotifyType, Vec<u8>),
    Delete(ProtocolId, Vec<Vec<u8>>),
    Vendor(Vec<u8>),
    Ts(PayloadType, Vec<TrafficSelector>),
    Cfg(CfgType, Vec<(CfgAttr, Vec<u8>)>),
    Eap(u8, u8, Vec<u8>),
}

impl Model {
    fn emit(&self, chain: &mut Chain<'_>) {
        match self {
            Self::Sa(proposals) => {
                let proposals: Vec<_> = proposals
                    .iter()
                    .map(|(number, protocol, spi, transforms)| ProposalOut {
                        number: *number,
                        protocol: *protocol,
                        spi,
                        transforms,
                    })
                    .collect();
                chain.sa(&proposals)
            }
            Self::Ke(group, data) => chain.ke(*group, data),
            Self::Id(payload, kind, data) => chain.id(*payload, *kind, data),
            Self::Cert(encoding, data) => chain.cert(*encoding, data),
            Self::CertReq(encoding, hashes) => chain.certreq(*encoding, hashes.as_flattened()),
            Self::Auth(method, data) => chain.auth(*method, data),
            Self::Nonce(nonce) => chain.nonce(nonce),
            Self::Notify(protocol, spi, kind, data) => chain.notify(*protocol, spi, *kind, data),
            Self::Delete(protocol, spis) => {
                chain.delete(*protocol, &spis.iter().map(Vec::as_slice).collect::<Vec<_>>())
            }
            Self::Vendor(id) => chain.vendor(id),
            Self::Ts(payload, selectors) => chain.ts(*payload, selectors),
            Self::Cfg(kind, attributes) => {
                chain.cfg(*kind, &attributes.iter().map(|(attr, value)| (*attr, &value[..])).collect::<Vec<_>>())
            }
            Self::Eap(code, id, data) => {
                let mut packet = Vec::new();
                Eap::emit(*code, *id, data, &mut packet);
                chain.eap(&packet)
            }
        };
    }

    /// `None` for payloads that are not parsed here.
    fn parse(RawPayload { kind, body, .. }: RawPayload<'_>) -> Result<Option<Self>, ParseError> {
        Ok(Some(match kind {
            PayloadType::SA => {
                let read = |proposal: Result<Proposal<'_>, _>| {
                    let proposal = proposal?;
                    let transforms = proposal.transforms().collect::<Result<_, _>>()?;
                    Ok((proposal.number, proposal.protocol, proposal.spi.to_vec(), transforms))
                };
                Self::Sa(SaPayload::parse(body)?.proposals().map(read).collect::<Result<_, _>>()?)
            }
            PayloadType::KE => Ke::parse(body).map(|ke| Self::Ke(ke.group, ke.data.to_vec()))?,
            PayloadType::IDi | PayloadType::IDr => {
                Id::parse(body).map(|id| Self::Id(kind, id.kind, id.data.to_vec()))?
            }
            PayloadType::CERT => Cert::parse(body).map(|cert| Self::Cert(cert.encoding, cert.data.to_vec()))?,
            PayloadType::CERTREQ => CertReq::parse(body)
                .map(|request| Self::CertReq(request.encoding, request.hashes().copied().collect()))?,
            PayloadType::AUTH => {
                let auth = Auth::parse(body)?;
                let _ = auth.digital_signature();
                Self::Auth(auth.method, auth.data.to_vec())
            }
            PayloadType::NONCE => Self::Nonce(body.to_vec()),
            PayloadType::NOTIFY => {
                let Notify { protocol, spi, kind, data } = Notify::parse(body)?;
                Self::Notify(protocol, spi.to_vec(), kind, data.to_vec())
            }
            PayloadType::DELETE => {
                let delete = Delete::parse(body)?;
                Self::Delete(delete.protocol, delete.spis().map(<[u8]>::to_vec).collect())
            }
            PayloadType::VENDOR => Self::Vendor(body.to_vec()),
            PayloadType::TSi | PayloadType::TSr => {
                let selectors = Ts::parse(body)?.selectors().filter_map(Result::transpose);
                Self::Ts(kind, selectors.collect::<Result<_, _>>()?)
            }
            PayloadType::CP => {
                let cfg = Cfg::parse(body)?;
                let read = cfg.attributes().map(|attribute| attribute.map(|(attr, value)| (attr, value.to_vec())));
                Self::Cfg(cfg.kind, read.collect::<Result<_, _>>()?)
            }
            PayloadType::EAP => Eap::parse(body).map(|eap| Self::Eap(eap.code, eap.id, eap.data.to_vec()))?,
            PayloadType::SKF => {
                Skf::parse(body)?;
                return Ok(None);
            }
            _ => return Ok(None),
        }))
    }
}

fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..=most)
}

fn transform() -> impl Strategy<Value = Transform> {
    (any::<u8>(), any::<u16>(), any::<Option<u16>>()).prop_map(|(kind, id, key_bits)| Transform {
        kind: TransformType(kind),
        id,
        key_bits,
        unknown_attributes: false,
    })
}

fn selector() -> impl Strategy<Value = TrafficSelector> {
    let ports = prop_oneof![
        Just(PortRange::ANY),
        Just(PortRange::OPAQUE),
        any::<(u16, u16)>().prop_map(|(a, b)| PortRange { start: a.min(b), end: a.max(b) }),
    ];
    (any::<bool>(), any::<u128>(), any::<u128>(), any::<u8>(), ports).prop_map(|(v6, a, b, proto, ports)| {
        let ip = |bits: u128| match v6 {
            true => std::net::IpAddr::from(bits.to_be_bytes()),
            false => std::net::IpAddr::from((bits as u32).to_be_bytes()),
        };
        let addrs = AddrRange::new(ip(a).min(ip(b)), ip(a).max(ip(b))).expect("in order");
        TrafficSelector { addrs, proto: (proto != 0).then_some(IpProto(proto)), ports }
    })
}

fn model() -> impl Strategy<Value = Model> {
    let proposal = (any::<u8>(), any::<u8>(), bytes(9), vec(transform(), 0..5))
        .prop_map(|(number, protocol, spi, transforms)| (number, ProtocolId(protocol), spi, transforms));
    let side = |i, r| any::<bool>().prop_map(move |first| if first { i } else { r });
    prop_oneof![
        vec(proposal, 1..4).prop_map(Model::Sa),
        (any::<u16>(), bytes(40)).prop_map(|(group, data)| Model::Ke(group, data)),
        (side(PayloadType::IDi, PayloadType::IDr), any::<u8>(), bytes(9)).prop_map(|(payload, kind, data)| Model::Id(
            payload,
            IdType(kind),
            data
        )),
        (any::<u8>(), bytes(9)).prop_map(|(encoding, data)| Model::Cert(CertEncoding(encoding), data)),
        (any::<u8>(), vec(any::<[u8; 20]>(), 0..4))
            .prop_map(|(encoding, hashes)| Model::CertReq(CertEncoding(encoding), hashes)),
        (any::<u8>(), bytes(9)).prop_map(|(method, data)| Model::Auth(AuthMethodId(method), data)),
        bytes(40).prop_map(Model::Nonce),
        (any::<u8>(), prop_oneof![bytes(9), Just(vec![7; 255])], any::<u16>(), bytes(9))
            .prop_map(|(protocol, spi, kind, data)| Model::Notify(ProtocolId(protocol), spi, NotifyType(kind), data)),
        (any::<u8>(), 1usize..9, bytes(20)).prop_map(|(protocol, len, spis)| {
            Model::Delete(ProtocolId(protocol), spis.chunks_exact(len).map(<[u8]>::to_vec).collect())
        }),
        bytes(20).prop_map(Model::Vendor),
        (side(PayloadType::TSi, PayloadType::TSr), vec(selector(), 0..4))
            .prop_map(|(payload, selectors)| Model::Ts(payload, selectors)),
        (any::<u8>(), vec((0u16..0x8000, bytes(17)), 0..4)).prop_map(|(kind, attributes)| {
            Model::Cfg(CfgType(kind), attributes.into_iter().map(|(attr, value)| (CfgAttr(attr), value)).collect())
        }),
        (any::<u8>(), any::<u8>(), bytes(20)).prop_map(|(code, id, data)| Model::Eap(code, id, data)),
    ]
}

proptest! {
    #[test]
    fn what_was_emitted_is_read(models in vec(model(), 0..8), spis: [[u8; 8]; 2], numbers: (u8, u8, u8, u32)) {
        let (version, exchange, flags, message_id) = numbers;
        let exchange = ExchangeType(exchange);
        let fields = HeaderFields { spi_i: spis[0], spi_r: spis[1], version, exchange, flags, message_id };
        let sent = message(&fields, |chain| models.iter().for_each(|model| model.emit(chain)));

        let (header, body) = Header::parse(&sent).expect("our header");
        prop_assert_eq!([header.spi_i, header.spi_r], spis);
        prop_assert_eq!((header.version, header.exchange, header.flags), (version, exchange, flags));
        prop_assert_eq!(header.message_id.get(), message_id);
        let read: Result<Option<Vec<_>>, _> =
            Payloads::new(header.next, body).map(|payload| Model::parse(payload?)).collect();
        prop_assert_eq!(read, Ok(Some(models)));
        for len in 0..sent.len() {
            prop_assert!(Header::parse(&sent[..len]).is_err());
            if len >= Header::LEN {
                let cut = &body[..len - Header::LEN];
                prop_assert!(Payloads::new(header.next, cut).any(|payload| payload.is_err()));
            }
        }
    }

    /// A body that is cut is refused, or shows less; it never shows what was not there.
    #[test]
    fn cut_bodies_are_refused_or_show_less(model in model()) {
        let mut kind = PayloadType::NONE;
        let sent = chain(|chain| {
            model.emit(chain);
            kind = chain.first();
        });
        let whole = RawPayload { kind, critical: false, body: only(kind, &sent), next: PayloadType::NONE };
        prop_assert_eq!(Model::parse(whole), Ok(Some(model.clone())));
        let has_lengths = matches!(model, Model::Sa(_) | Model::Ts(..) | Model::Eap(..) | Model::Delete(..));
        for len in 0..whole.body.len() {
            let cut = Model::parse(RawPayload { body: &whole.body[..len], ..whole });
            prop_assert!(cut != Ok(Some(model.clone())) || matches!(model, Model::CertReq(..)));
            prop_assert!(!has_lengths || cut.is_err(), "{len} of {}", whole.body.len());
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(kind: u8, body in bytes(80)) {
        let payload = RawPayload { kind: PayloadType(kind), critical: false, body: &body, next: PayloadType::NONE };
        for kind in 33..=54 {
            if let Ok(Some(model)) = Model::parse(RawPayload { kind: PayloadType(kind), ..payload })
                && !matches!(&model, Model::Sa(proposals) if proposals.iter().any(|p| p.3.iter().any(|t| t.unknown_attributes)))
            {
                let again = chain(|chain| model.emit(chain));
                let again = RawPayload { kind: PayloadType(kind), body: only(PayloadType(kind), &again), ..payload };
                prop_assert_eq!(Model::parse(again), Ok(Some(model)));
            }
        }
        if let Ok((header, rest)) = Header::parse(&body) {
            Payloads::new(header.next, rest).for_each(drop);
        }
        prop_assert!(Payloads::new(payload.kind, &body).count() <= MAX_PAYLOADS + 1);
    }
}

/// The example of RFC 7296 §3.3: ESP with three key lengths of AES-CBC, two integrity algorithms
/// and both kinds of sequence numbers; or with an AEAD cipher, two key lengths and both kinds.
#[test]
fn the_example_of_rfc_7296_3_3() {
    #[rustfmt::skip]
    let body = [
        2, 0, 0, 80, 1, 3, 4, 7, 0x05, 0x23, 0x57, 0xbb,
        3, 0, 0, 12, 1, 0, 0, 12, 0x80, 14, 0, 128,
        3, 0, 0, 12, 1, 0, 0, 12, 0x80, 14, 0, 192,
        3, 0, 0, 12, 1, 0, 0, 12, 0x80, 14, 1, 0,
        3, 0, 0, 8, 3, 0, 0, 2,
        3, 0, 0, 8, 3, 0, 0, 5,
        3, 0, 0, 8, 5, 0, 0, 1,
        0, 0, 0, 8, 5, 0, 0, 0,
        0, 0, 0, 52, 2, 3, 4, 4, 0x35, 0xa1, 0xd6, 0xf2,
        3, 0, 0, 12, 1, 0, 0, 18, 0x80, 14, 0, 128,
        3, 0, 0, 12, 1, 0, 0, 18, 0x80, 14, 1, 0,
        3, 0, 0, 8, 5, 0, 0, 1,
        0, 0, 0, 8, 5, 0, 0, 0,
    ];
    let encr = |id, bits| Transform::new(TransformType::ENCR, id).with_key_bits(bits);
    let (integ, sn) = (|id| Transform::new(TransformType::INTEG, id), |id| Transform::new(TransformType::SN, id));
    let cbc = [encr(12, 128), encr(12, 192), encr(12, 256), integ(2), integ(5), sn(1), sn(0)];
    let gcm = [encr(18, 128), encr(18, 256), sn(1), sn(0)];
    let offer = [(1, 0x0523_57bb_u32, &cbc[..]), (2, 0x35a1_d6f2, &gcm)];

    let read: Vec<_> = SaPayload::parse(&body).unwrap().proposals().map(Result::unwrap).collect();
    assert_eq!(read.len(), offer.len());
    for (read, (number, spi, transforms)) in read.iter().zip(offer) {
        assert_eq!((read.number, read.protocol, read.spi), (number, ProtocolId::ESP, &spi.to_be_bytes()[..]));
        assert_eq!(read.transforms().map(Result::unwrap).collect::<Vec<_>>(), transforms);
    }
    let spis = offer.map(|(_, spi, _)| spi.to_be_bytes());
    let proposal = |i: usize| {
        let (number, _, transforms) = offer[i];
        ProposalOut { number, protocol: ProtocolId::ESP, spi: &spis[i], transforms }
    };
    let sent = chain(|chain| {
        chain.sa(&[proposal(0), proposal(1)]);
    });
    assert_eq!(only(PayloadType::SA, &sent), body);
}

#[test]
fn transforms_are_counted_and_marked() {
    let good = [0, 0, 0, 24, 1, 1, 0, 2, 3, 0, 0, 8, 2, 0, 0, 5, 0, 0, 0, 8, 4, 0, 0, 31];
    let all_good = |body: &[u8]| {
        SaPayload::parse(body)
            .unwrap()
            .proposals()
            .all(|proposal| proposal.is_ok_and(|proposal| proposal.transforms().all(|transform| transform.is_ok())))
    };
    assert!(all_good(&good));
    for (at, wrong) in
        [(0, 2), (0, 1), (3, 23), (3, 25), (3, 3), (6, 1), (7, 1), (7, 3), (8, 0), (11, 7), (16, 3), (19, 9)]
    {
        let mut bad = good;
        bad[at] = wrong;
        assert!(!all_good(&bad), "byte {at} as {wrong}");
    }
    assert!(SaPayload::parse(&[]).is_err());
    // 65 empty proposals are one too many.
    let mut many = [2, 0, 0, 8, 1, 1, 0, 0].repeat(MAX_PROPOSALS + 1);
    many[8 * MAX_PROPOSALS] = 0;
    assert!(!all_good(&many));
    many[8 * (MAX_PROPOSALS - 1)] = 0;
    assert!(all_good(&many[..8 * MAX_PROPOSALS]));
}

#[test]
fn a_transform_with_another_attribute_is_marked() {
    let one = |attributes: &[u8]| {
        let (len, transform_len) = (16 + attributes.len() as u8, 8 + attributes.len() as u8);
        let body = [&[0, 0, 0, len, 1, 3, 0, 1, 0, 0, 0, transform_len, 1, 0, 0, 12], attributes].concat();
        let proposal = SaPayload::parse(&body).unwrap().proposals().next().unwrap().unwrap();
        proposal.transforms().next().unwrap()
    };
    assert_eq!(one(&[0x80, 14, 0, 128]), Ok(Transform::new(TransformType::ENCR, 12).with_key_bits(128)));
    assert!(one(&[0x80, 15, 0, 128]).unwrap().unknown_attributes);
    assert!(one(&[0x80, 14, 0, 128, 0x80, 14, 1, 0]).unwrap().unknown_attributes);
    assert!(one(&[0, 14, 0, 2, 0, 128]).unwrap().unknown_attributes);
    assert!(one(&[0, 14, 0, 3, 0, 128]).is_err());
}

#[test]
fn notifications_of_eesp() {
    let code_points = CodePoints::default();
    let none = ProtocolId::NONE;
    let sub_sa = chain(|chain| {
        chain.notify(none, &[], code_points.eesp_max_sub_sa_id, &7u16.to_be_bytes());
    });
    assert_eq!(sub_sa, [0, 0, 0, 10, 0, 0, 0xa0, 0x28, 0, 7]);
    let offset = chain(|chain| {
        chain.notify(none, &[], code_points.eesp_max_crypt_offset, &[16]);
    });
    assert_eq!(offset, [0, 0, 0, 9, 0, 0, 0xa0, 0x29, 0x10]);
    let read = Notify::parse(only(PayloadType::NOTIFY, &offset)).unwrap();
    assert_eq!((read.kind, read.data), (NotifyType::EESP_MAX_CRYPT_OFFSET, &[16][..]));
}

/// Bytes as RFC 7296 draws them in §3.10, §3.11, §3.13 and §3.15.
#[test]
fn payloads_as_drawn_in_rfc_7296() {
    let rekey = [0, 0, 0, 12, 3, 4, 0x40, 0x09, 0xc0, 0xff, 0xee, 0x01];
    assert_eq!(
        chain(|chain| {
            chain.notify(ProtocolId::ESP, &[0xc0, 0xff, 0xee, 1], NotifyType::REKEY_SA, &[]);
        }),
        rekey
    );
    let delete = [0, 0, 0, 16, 3, 4, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(
        chain(|chain| {
            chain.delete(ProtocolId::ESP, &[&[1, 2, 3, 4], &[5, 6, 7, 8]]);
        }),
        delete
    );
    assert_eq!(
        chain(|chain| {
            chain.delete(ProtocolId::IKE, &[]);
        }),
        [0, 0, 0, 8, 1, 0, 0, 0]
    );
    let ts = [0, 0, 0, 24, 1, 0, 0, 0, 7, 6, 0, 16, 0, 80, 0, 90, 198, 51, 100, 66, 198, 51, 100, 66];
    let web = TrafficSelector {
        addrs: AddrRange::from_cidr([198, 51, 100, 66].into(), 32).unwrap(),
        proto: Some(IpProto::TCP),
        ports: PortRange { start: 80, end: 90 },
    };
    assert_eq!(
        chain(|chain| {
            chain.ts(PayloadType::TSi, &[web]);
        }),
        ts
    );
    let request = [0, 0, 0, 16, 1, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0];
    let wanted = [(CfgAttr::INTERNAL_IP4_ADDRESS, &[][..]), (CfgAttr::INTERNAL_IP4_DNS, &[])];
    assert_eq!(
        chain(|chain| {
            chain.cfg(CfgType::REQUEST, &wanted);
        }),
        request
    );
    // The reserved bit before an attribute's type is ignored, not read as IKEv1 reads it.
    let reserved = [2, 0, 0, 0, 0x80, 1, 0, 4, 10, 0, 0, 1];
    let read: Vec<_> = Cfg::parse(&reserved).unwrap().attributes().collect();
    assert_eq!(read, [Ok((CfgAttr::INTERNAL_IP4_ADDRESS, &[10, 0, 0, 1][..]))]);
    let critical = chain(|chain| {
        chain.critical_payload(PayloadType(200), |out| out.push(9));
    });
    assert_eq!(critical, [0, 0x80, 0, 5, 9]);
}

#[test]
fn selectors_that_are_wrong_or_unknown() {
    let v4 = |proto: u8, ports: [u8; 4], start: [u8; 4], end: [u8; 4]| {
        [&[1, 0, 0, 0, 7, proto, 0, 16][..], &ports, &start, &end].concat()
    };
    let first = |body: &[u8]| Ts::parse(body).unwrap().selectors().next().unwrap();
    let (low, high) = ([10, 0, 0, 0], [10, 0, 0, 255]);
    assert_eq!(first(&v4(17, [0xff, 0xff, 0, 0], low, high)).unwrap().unwrap().ports, PortRange::OPAQUE);
    assert_eq!(first(&v4(0, [0, 0, 0xff, 0xff], low, high)).unwrap().unwrap().proto, None);
    assert!(first(&v4(17, [0, 2, 0, 1], low, high)).is_err());
    assert!(first(&v4(17, [0xff, 0xff, 0, 1], low, high)).is_err());
    assert!(first(&v4(17, [0, 1, 0, 1], high, low)).is_err());
    // Echo request, any code, as type and code in the ports (§3.13.1).
    let echo = first(&v4(1, [8, 0, 8, 255], low, high)).unwrap().unwrap();
    assert_eq!((echo.ports.start, echo.ports.end), (8 << 8, 8 << 8 | 255));
    // A security label is skipped; what follows is read; counts must fit.
    let mut two = [&[2, 0, 0, 0, 10, 0, 0, 7, 1, 2, 3][..], &v4(0, [0, 0, 0xff, 0xff], low, high)[4..]].concat();
    let read: Vec<_> = Ts::parse(&two).unwrap().selectors().collect();
    assert!(matches!(read[..], [Ok(None), Ok(Some(_))]));
    for count in [0, 1, 3] {
        two[0] = count;
        assert!(Ts::parse(&two).unwrap().selectors().any(|selector| selector.is_err()), "{count}");
    }
    let mut short = v4(0, [0; 4], low, high);
    short[7] = 15;
    assert!(first(&short).is_err());
    short[7] = 3;
    assert!(first(&short).is_err());
}

#[test]
fn deletes_fragments_and_eap_packets_that_are_wrong() {
    assert!(Delete::parse(&[3, 0, 0, 1]).is_err());
    assert!(Delete::parse(&[3, 4, 0, 1, 1, 2, 3]).is_err());
    assert!(Delete::parse(&[3, 4, 0, 1, 1, 2, 3, 4, 5]).is_err());
    let mut many = vec![3, 1, 0x10, 0x01];
    many.resize(4 + 4097, 0);
    assert!(Delete::parse(&many).is_err());
    many[3] = 0;
    many.pop();
    assert_eq!(Delete::parse(&many).unwrap().spis().count(), MAX_DELETED_SPIS);

    assert_eq!(Skf::parse(&[0, 2, 0, 3, 9]), Ok(Skf { number: 2, total: 3, body: &[9] }));
    assert!(Skf::parse(&[0, 0, 0, 3]).is_err() && Skf::parse(&[0, 4, 0, 3]).is_err());

    assert!(Eap::parse(&[1, 2, 0, 3]).is_err() && Eap::parse(&[1, 2, 0, 6, 1]).is_err());
    let padded = Eap::parse(&[1, 2, 0, 5, 26, 99]).unwrap();
    assert_eq!((padded.method(), padded.data, padded.whole.len()), (Some(26), &[26][..], 5));
    assert_eq!(Eap::parse(&[3, 2, 0, 4]).unwrap().method(), None);

    let signature = [3, 0x30, 1, 2, 0xaa, 0xbb];
    let auth = Auth { method: AuthMethodId::DIGITAL_SIGNATURE, data: &signature };
    assert_eq!(auth.digital_signature(), Ok((&[0x30, 1, 2][..], &[0xaa, 0xbb][..])));
    assert!(Auth { data: &signature[..3], ..auth }.digital_signature().is_err());
}

#[test]
fn the_encrypted_payload_names_what_is_inside() {
    let mut inner = Vec::new();
    let mut chain = Chain::new(&mut inner);
    chain.nonce(&[1]).vendor(&[2]);
    let first = chain.first();
    let sent = message(&FIELDS, |chain| {
        chain.notify(ProtocolId::NONE, &[], NotifyType::COOKIE, &[3]);
        chain.encrypted(PayloadType::SKF, first, |out| Skf { number: 1, total: 1, body: &inner }.emit(out));
    });
    let (header, body) = Header::parse(&sent).unwrap();
    let read: Vec<_> = Payloads::new(header.next, body).map(Result::unwrap).collect();
    assert_eq!(read.iter().map(|payload| payload.kind).collect::<Vec<_>>(), [PayloadType::NOTIFY, PayloadType::SKF]);
    assert_eq!(read[1].next, PayloadType::NONCE);
    let skf = Skf::parse(read[1].body).unwrap();
    assert_eq!(Payloads::new(read[1].next, skf.body).count(), 2);
}

#[test]
fn a_payload_too_long_is_left_out_and_reported() {
    let mut out = Vec::new();
    let mut chain = Chain::new(&mut out);
    chain.nonce(&[1]).raw(PayloadType::VENDOR, &[0; 65_531]);
    assert!(!chain.overflowed());
    chain.raw(PayloadType::VENDOR, &[0; 65_532]);
    assert!(chain.overflowed());
    let first = chain.first();
    assert_eq!(Payloads::new(first, &out).filter(|payload| payload.is_ok()).count(), 2);
    let any = TrafficSelector::any(AddrRange::ANY_V4);
    let mut out = Vec::new();
    assert!(!Chain::new(&mut out).ts(PayloadType::TSi, &[any; 255]).overflowed());
    assert!(Chain::new(&mut out).ts(PayloadType::TSi, &[any; 256]).overflowed());
}
