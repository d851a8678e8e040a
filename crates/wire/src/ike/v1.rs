//! What only IKEv1 has (RFC 2407 to 2409, RFC 3947): the DOI in many payloads, transforms made of
//! attributes, selectors as identities, Mode Config with an identifier.
//!
//! Header and chain are those of IKEv2: read a chain with [`Payloads::v1`](super::Payloads::v1).
//! CERT and CERTREQ payloads have the same bodies as well. Bodies of KE, hash, signature, nonce,
//! vendor ID and NAT-D payloads are the bytes themselves.

mod numbers;

use std::net::IpAddr;

pub use numbers::{
    AhTransform, DOI_IPSEC, EncapsulationMode, EspTransform, KEY_IKE, LifeType, NotifyType, Phase1Attr, Phase1Auth,
    Phase1Encryption, Phase1Hash, Phase2Attr, Phase2Integrity, SIT_IDENTITY_ONLY, vendor,
};

use super::body::short;
use super::sa::{Parts, ProposalFrame, emit_part};
use super::{Attribute, Attributes, CfgType, Chain, Delete, IdType, PayloadType, ProtocolId, take, take_slice};
use crate::{IpProto, ParseError};

/// Security Association (RFC 2408 §3.4). Its body, as received, enters the hashes of phase 1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SaPayload<'a> {
    /// Domain of interpretation; [`DOI_IPSEC`] is what there is.
    pub doi: u32,
    /// Situation: always [`SIT_IDENTITY_ONLY`].
    pub situation: u32,
    proposals: &'a [u8],
}

impl<'a> SaPayload<'a> {
    /// Reads the body of an SA payload; the proposals are read one by one.
    ///
    /// # Errors
    /// [`ParseError`] below 8 bytes, and for a situation that adds labels.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "IKEv1 SA payload";
        let (doi, rest) = take(WHAT, body)?;
        let (situation, proposals) = take(WHAT, rest)?;
        let (doi, situation) = (u32::from_be_bytes(*doi), u32::from_be_bytes(*situation));
        // Other situations put labels between this field and the proposals (RFC 2407 §4.6.1). The
        // label bytes would be parsed as proposals.
        if situation != SIT_IDENTITY_ONLY {
            return Err(ParseError::Malformed { what: WHAT, why: "situation is not identity only" });
        }
        Ok(Self { doi, situation, proposals })
    }

    /// The proposals. Those of one number belong together: all of them or none.
    pub const fn proposals(&self) -> Proposals<'a> {
        Proposals(Parts::proposals(self.proposals))
    }

    /// Appends a body with these proposals.
    pub fn emit(doi: u32, situation: u32, proposals: &[ProposalOut<'_>], out: &mut Vec<u8>) {
        out.extend(doi.to_be_bytes());
        out.extend(situation.to_be_bytes());
        for (i, proposal) in proposals.iter().enumerate() {
            // The marker is the payload type of the next part: 2 for a proposal, below 3 for a
            // transform (RFC 2408 §3.1).
            emit_part(out, if i + 1 < proposals.len() { 2 } else { 0 }, |out| proposal.emit(out));
        }
    }
}

/// Reads proposals one after the other; ends after the first error.
#[derive(Clone, Copy, Debug)]
pub struct Proposals<'a>(Parts<'a>);

impl<'a> Iterator for Proposals<'a> {
    type Item = Result<Proposal<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        let frame = self.0.next_as(ProposalFrame::parse)?;
        Some(frame.map(|ProposalFrame { number, protocol, spi, transforms }| Proposal {
            number,
            protocol,
            spi,
            transforms,
        }))
    }
}

/// One proposal: a protocol and alternatives for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Proposal<'a> {
    /// Number, which an answer repeats.
    pub number: u8,
    /// Protocol of the SA.
    pub protocol: ProtocolId,
    /// SPI of the sender's inbound SA: 4 bytes for ESP and AH; for ISAKMP it should be ignored.
    pub spi: &'a [u8],
    transforms: Parts<'a>,
}

impl<'a> Proposal<'a> {
    /// The transforms in the order of the sender's preference; one of them is chosen.
    pub const fn transforms(&self) -> Transforms<'a> {
        Transforms(self.transforms)
    }
}

/// Reads transforms one after the other; ends after the first error.
#[derive(Clone, Copy, Debug)]
pub struct Transforms<'a>(Parts<'a>);

impl<'a> Iterator for Transforms<'a> {
    type Item = Result<Transform<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_as(Transform::parse)
    }
}

/// One transform: a whole suite.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Transform<'a> {
    /// Number, which an answer repeats.
    pub number: u8,
    /// [`KEY_IKE`], an [`EspTransform`] or an [`AhTransform`].
    pub id: u8,
    attributes: &'a [u8],
}

impl<'a> Transform<'a> {
    fn parse(part: &'a [u8]) -> Result<Self, ParseError> {
        // Not the parser of IKEv2: the ID has 8 bits and two reserved bytes follow it (RFC 2408
        // §3.6).
        let ([number, id, _, _], attributes) = take("IKEv1 transform", part)?;
        Ok(Self { number: *number, id: *id, attributes })
    }

    /// Its attributes: [`Phase1Attr`] or [`Phase2Attr`].
    pub const fn attributes(&self) -> Attributes<'a> {
        Attributes::new(self.attributes)
    }
}

/// A proposal to be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProposalOut<'a> {
    /// Number.
    pub number: u8,
    /// Protocol.
    pub protocol: ProtocolId,
    /// SPI of our inbound SA; empty in phase 1.
    pub spi: &'a [u8],
    /// Transforms, at most [`MAX_TRANSFORMS`](super::MAX_TRANSFORMS).
    pub transforms: &'a [TransformOut<'a>],
}

/// A transform to be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TransformOut<'a> {
    /// Number: 1, 2, … in an offer, that of the chosen one in an answer.
    pub number: u8,
    /// [`KEY_IKE`], an [`EspTransform`] or an [`AhTransform`].
    pub id: u8,
    /// Attributes; an answer repeats those of the offer.
    pub attributes: &'a [Attribute<'a>],
}

impl ProposalOut<'_> {
    fn emit(&self, out: &mut Vec<u8>) {
        ProposalFrame::emit(self.number, self.protocol, self.spi, self.transforms.len(), out);
        for (i, transform) in self.transforms.iter().enumerate() {
            emit_part(out, if i + 1 < self.transforms.len() { 3 } else { 0 }, |out| {
                out.extend([transform.number, transform.id, 0, 0]);
                transform.attributes.iter().for_each(|attribute| attribute.emit(out));
            });
        }
    }
}

/// Identification (RFC 2407 §4.6.2): the identity in phase 1, the selectors in phase 2.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Id<'a> {
    /// Identification Type.
    pub kind: IdType,
    /// Protocol; `None` is any.
    pub proto: Option<IpProto>,
    /// Port; 0 is any.
    pub port: u16,
    /// The identity, or addresses.
    pub data: &'a [u8],
}

impl<'a> Id<'a> {
    /// Parses the body of an ID payload. The identity is not validated.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 4 bytes.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let ([kind, proto, p0, p1], data) = take("IKEv1 ID payload", body)?;
        // In phase 1 a peer may send UDP and port 500 instead of zeros (RFC 2407 §4.6.2). Hence
        // neither value is validated here.
        let proto = (*proto != 0).then_some(IpProto(*proto));
        Ok(Self { kind: IdType(*kind), proto, port: u16::from_be_bytes([*p0, *p1]), data })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend([self.kind.0, self.proto.map_or(0, |proto| proto.0)]);
        out.extend(self.port.to_be_bytes());
        out.extend(self.data);
    }
}

/// Notification (RFC 2408 §3.14).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Notification<'a> {
    /// Domain of interpretation.
    pub doi: u32,
    /// Protocol of the SA that the notification concerns.
    pub protocol: ProtocolId,
    /// Its SPI; for ISAKMP both cookies or nothing. At most 255 bytes.
    pub spi: &'a [u8],
    /// Notify Message Type.
    pub kind: NotifyType,
    /// Notification Data.
    pub data: &'a [u8],
}

impl<'a> Notification<'a> {
    /// Reads the body of a notification.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 8 bytes or when the SPI is not there.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "IKEv1 notification";
        let (doi, rest) = take(WHAT, body)?;
        let ([protocol, spi_len, k0, k1], rest) = take(WHAT, rest)?;
        let (spi, data) = take_slice(WHAT, rest, (*spi_len).into())?;
        Ok(Self {
            doi: u32::from_be_bytes(*doi),
            protocol: ProtocolId(*protocol),
            spi,
            kind: NotifyType(u16::from_be_bytes([*k0, *k1])),
            data,
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let (spi_len, spi) = short(self.spi);
        out.extend(self.doi.to_be_bytes());
        out.extend([self.protocol.0, spi_len]);
        out.extend(self.kind.0.to_be_bytes());
        out.extend(spi);
        out.extend(self.data);
    }
}

/// Splits the body of a Delete payload (RFC 2408 §3.15) into the domain of interpretation and what
/// is as in IKEv2.
///
/// # Errors
/// [`ParseError`] below 8 bytes, and as [`Delete::parse`].
pub fn parse_delete(body: &[u8]) -> Result<(u32, Delete<'_>), ParseError> {
    let (doi, rest) = take("IKEv1 Delete payload", body)?;
    Ok((u32::from_be_bytes(*doi), Delete::parse(rest)?))
}

/// Reads the body of a NAT-OA payload: an original address (RFC 3947 §5.2).
///
/// # Errors
/// [`ParseError`] below 4 bytes and when type and length are not those of an address.
pub fn parse_nat_oa(body: &[u8]) -> Result<IpAddr, ParseError> {
    const WHAT: &str = "NAT-OA payload";
    let ([kind, ..], addr) = take::<4>(WHAT, body)?;
    let addr = match IdType(*kind) {
        // The conversion requires the exact length, so that trailing bytes are an error.
        IdType::IPV4_ADDR => addr.try_into().ok().map(|addr: [u8; 4]| IpAddr::from(addr)),
        IdType::IPV6_ADDR => addr.try_into().ok().map(|addr: [u8; 16]| IpAddr::from(addr)),
        _ => None,
    };
    addr.ok_or(ParseError::Malformed { what: WHAT, why: "not one address" })
}

/// Mode Config and XAuth (draft-ietf-ipsec-isakmp-mode-cfg): attributes are
/// [`CfgAttr`](super::CfgAttr), some with the value in place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config<'a> {
    /// Request, reply, set or acknowledgement.
    pub kind: CfgType,
    /// Links the messages of one transaction.
    pub id: u16,
    attributes: &'a [u8],
}

impl<'a> Config<'a> {
    /// Reads the body of an attributes payload; the attributes are read one by one.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 4 bytes.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let ([kind, _, i0, i1], attributes) = take("attributes payload", body)?;
        Ok(Self { kind: CfgType(*kind), id: u16::from_be_bytes([*i0, *i1]), attributes })
    }

    /// The attributes.
    pub const fn attributes(&self) -> Attributes<'a> {
        Attributes::new(self.attributes)
    }

    /// Appends a body with these attributes.
    pub fn emit(kind: CfgType, id: u16, attributes: &[Attribute<'_>], out: &mut Vec<u8>) {
        out.extend([kind.0, 0]);
        out.extend(id.to_be_bytes());
        attributes.iter().for_each(|attribute| attribute.emit(out));
    }
}

/// One fragment of a message, header included (a vendor's extension).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FragmentPayload<'a> {
    /// Links the fragments of one message.
    pub id: u16,
    /// Fragment Number, from 1.
    pub number: u8,
    /// True for the last.
    pub last: bool,
    /// Bytes of the message.
    pub data: &'a [u8],
}

impl<'a> FragmentPayload<'a> {
    /// Bytes before the data.
    pub const HEADER_LEN: usize = 4;

    /// Reads the body of a fragment payload.
    ///
    /// # Errors
    /// [`ParseError`] below 4 bytes and for fragment 0.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let ([i0, i1, number, flags], data) = take("IKEv1 fragment", body)?;
        if *number == 0 {
            return Err(ParseError::Malformed { what: "IKEv1 fragment", why: "fragments are counted from 1" });
        }
        // The total is unknown until the fragment with the last bit arrives; RFC 7383 has it in
        // each.
        Ok(Self { id: u16::from_be_bytes([*i0, *i1]), number: *number, last: flags & 1 != 0, data })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.id.to_be_bytes());
        out.extend([self.number, self.last.into()]);
        out.extend(self.data);
    }
}

/// Payloads of IKEv1; for opaque bodies see [`Chain::raw`].
impl Chain<'_> {
    /// Appends an SA payload of IKEv1.
    pub fn sa_v1(&mut self, doi: u32, situation: u32, proposals: &[ProposalOut<'_>]) -> &mut Self {
        self.payload(PayloadType::SA_V1, |out| SaPayload::emit(doi, situation, proposals, out))
    }

    /// Appends an ID payload of IKEv1.
    pub fn id_v1(&mut self, id: &Id<'_>) -> &mut Self {
        self.payload(PayloadType::ID_V1, |out| id.emit(out))
    }

    /// Appends a notification of IKEv1.
    pub fn notification_v1(&mut self, notification: &Notification<'_>) -> &mut Self {
        self.payload(PayloadType::NOTIFICATION_V1, |out| notification.emit(out))
    }

    /// Appends a Delete payload of IKEv1. SPIs are of one length; that of an ISAKMP SA is both its
    /// cookies.
    pub fn delete_v1(&mut self, doi: u32, protocol: ProtocolId, spis: &[&[u8]]) -> &mut Self {
        self.payload(PayloadType::DELETE_V1, |out| {
            out.extend(doi.to_be_bytes());
            Delete::emit(protocol, spis, out);
        })
    }

    /// Appends a NAT-OA payload, [`PayloadType::NAT_OA_V1`] or that of the drafts.
    pub fn nat_oa_v1(&mut self, payload: PayloadType, addr: IpAddr) -> &mut Self {
        // `super::Id` has three reserved bytes after the type, as NAT-OA. [`Id`] of IKEv1 would
        // write protocol and port there.
        self.payload(payload, |out| match addr {
            IpAddr::V4(addr) => super::Id { kind: IdType::IPV4_ADDR, data: &addr.octets() }.emit(out),
            IpAddr::V6(addr) => super::Id { kind: IdType::IPV6_ADDR, data: &addr.octets() }.emit(out),
        })
    }

    /// Appends an attributes payload: Mode Config or XAuth.
    pub fn config_v1(&mut self, kind: CfgType, id: u16, attributes: &[Attribute<'_>]) -> &mut Self {
        self.payload(PayloadType::ATTRIBUTES_V1, |out| Config::emit(kind, id, attributes, out))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::Payloads;
    use super::*;

    /// The body of the one payload that `payload` appends.
    fn body(kind: PayloadType, payload: impl FnOnce(&mut Chain<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        let mut chain = Chain::new(&mut out);
        payload(&mut chain);
        assert_eq!((chain.first(), chain.overflowed()), (kind, false));
        let payload = Payloads::v1(kind, &out).next().expect("a payload").expect("a good one");
        payload.body.to_vec()
    }

    /// An offer of main mode: AES-CBC-256, SHA-256, pre-shared key, group 14, 28800 s.
    #[rustfmt::skip]
    const OFFER: [u8; 56] = [
        0, 0, 0, 1, 0, 0, 0, 1,
        0, 0, 0, 48, 1, 1, 0, 1,
        0, 0, 0, 40, 1, 1, 0, 0,
        0x80, 1, 0, 7, 0x80, 14, 1, 0, 0x80, 2, 0, 4, 0x80, 3, 0, 1, 0x80, 4, 0, 14, 0x80, 11, 0, 1,
        0, 12, 0, 4, 0, 0, 0x70, 0x80,
    ];

    #[test]
    fn an_offer_of_main_mode() {
        let short = |kind: Phase1Attr, value| Attribute::short(kind.0, value);
        let attributes = [
            short(Phase1Attr::ENCRYPTION, Phase1Encryption::AES_CBC.0),
            short(Phase1Attr::KEY_LENGTH, 256),
            short(Phase1Attr::HASH, Phase1Hash::SHA2_256.0),
            short(Phase1Attr::AUTHENTICATION, Phase1Auth::PSK.0),
            short(Phase1Attr::GROUP, 14),
            short(Phase1Attr::LIFE_TYPE, LifeType::SECONDS.0),
            Attribute::long(Phase1Attr::LIFE_DURATION.0, &[0, 0, 0x70, 0x80]),
        ];
        let transform = TransformOut { number: 1, id: KEY_IKE, attributes: &attributes };
        let proposal = ProposalOut { number: 1, protocol: ProtocolId::IKE, spi: &[], transforms: &[transform] };
        let sent = body(PayloadType::SA_V1, |chain| {
            chain.sa_v1(DOI_IPSEC, SIT_IDENTITY_ONLY, &[proposal]);
        });
        assert_eq!(sent, OFFER);

        let sa = SaPayload::parse(&OFFER).unwrap();
        let proposal = sa.proposals().next().unwrap().unwrap();
        assert_eq!((sa.doi, proposal.number, proposal.protocol), (DOI_IPSEC, 1, ProtocolId::IKE));
        let transform = proposal.transforms().next().unwrap().unwrap();
        assert_eq!((transform.number, transform.id), (1, KEY_IKE));
        let read: Vec<_> = transform.attributes().map(Result::unwrap).collect();
        assert_eq!(read, attributes);
        assert_eq!(read[6].number(), Some(28_800));
    }

    fn sa_is_good(body: &[u8]) -> Result<usize, ParseError> {
        let mut attributes = 0;
        for proposal in SaPayload::parse(body)?.proposals() {
            for transform in proposal?.transforms() {
                for attribute in transform?.attributes() {
                    attribute?.number();
                    attributes += 1;
                }
            }
        }
        Ok(attributes)
    }

    #[test]
    fn an_offer_that_is_cut_is_refused() {
        assert_eq!(sa_is_good(&OFFER), Ok(7));
        for len in (0..OFFER.len()).filter(|len| *len != 8) {
            assert!(sa_is_good(&OFFER[..len]).is_err(), "{len}");
        }
        let mut secrecy = OFFER;
        secrecy[7] = 3;
        assert!(sa_is_good(&secrecy).is_err());
    }

    #[test]
    fn dead_peer_detection_of_rfc_3706() {
        let cookies = [7; 16];
        let ask = Notification {
            doi: DOI_IPSEC,
            protocol: ProtocolId::IKE,
            spi: &cookies,
            kind: NotifyType::R_U_THERE,
            data: &[0, 0, 0, 9],
        };
        let sent = body(PayloadType::NOTIFICATION_V1, |chain| {
            chain.notification_v1(&ask);
        });
        assert_eq!(sent[..8], [0, 0, 0, 1, 1, 16, 0x8d, 0x28]);
        assert_eq!(Notification::parse(&sent), Ok(ask));
        for len in 0..24 {
            assert!(Notification::parse(&sent[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn deletes_original_addresses_and_fragments() {
        let sent = body(PayloadType::DELETE_V1, |chain| {
            chain.delete_v1(DOI_IPSEC, ProtocolId::ESP, &[&[1, 2, 3, 4]]);
        });
        assert_eq!(sent, [0, 0, 0, 1, 3, 4, 0, 1, 1, 2, 3, 4]);
        let (doi, delete) = parse_delete(&sent).unwrap();
        assert_eq!((doi, delete.protocol), (DOI_IPSEC, ProtocolId::ESP));
        assert!(delete.spis().eq([[1, 2, 3, 4]]));
        for len in 0..sent.len() {
            assert!(parse_delete(&sent[..len]).is_err(), "{len}");
        }
        for addr in ["192.0.2.1", "2001:db8::1"].map(|addr| addr.parse::<IpAddr>().unwrap()) {
            let sent = body(PayloadType::NAT_OA_V1, |chain| {
                chain.nat_oa_v1(PayloadType::NAT_OA_V1, addr);
            });
            assert_eq!(parse_nat_oa(&sent), Ok(addr));
            for len in 0..sent.len() {
                assert!(parse_nat_oa(&sent[..len]).is_err(), "{len}");
            }
        }
        assert!(parse_nat_oa(&[4, 0, 0, 0, 1, 2, 3, 4]).is_err());
        assert!(FragmentPayload::parse(&[0, 1, 0, 0]).is_err());
        assert!(!FragmentPayload::parse(&[0, 1, 1, 2]).unwrap().last);
    }

    proptest! {
        #[test]
        fn what_was_emitted_is_read(
            numbers: (u8, u8, u16, u32),
            data in vec(any::<u8>(), 0..40),
            attributes in vec((0u16..0x8000, any::<Option<u16>>(), vec(any::<u8>(), 0..9)), 0..6),
            lens in vec(0usize..4, 0..4),
        ) {
            let (a, b, c, doi) = numbers;
            let attributes: Vec<_> = attributes
                .iter()
                .map(|(kind, short, long)| match short {
                    Some(value) => Attribute::short(*kind, *value),
                    None => Attribute::long(*kind, long),
                })
                .collect();

            let id = Id { kind: IdType(a), proto: (b != 0).then_some(IpProto(b)), port: c, data: &data };
            let sent = body(PayloadType::ID_V1, |chain| { chain.id_v1(&id); });
            prop_assert_eq!(Id::parse(&sent), Ok(id));

            let spi = &data[..data.len() / 2];
            let notification = Notification { doi, protocol: ProtocolId(a), spi, kind: NotifyType(c), data: &data };
            let sent = body(PayloadType::NOTIFICATION_V1, |chain| { chain.notification_v1(&notification); });
            prop_assert_eq!(Notification::parse(&sent), Ok(notification));

            let sent = body(PayloadType::ATTRIBUTES_V1, |chain| { chain.config_v1(CfgType(a), c, &attributes); });
            let config = Config::parse(&sent).unwrap();
            prop_assert_eq!((config.kind, config.id), (CfgType(a), c));
            prop_assert_eq!(config.attributes().collect::<Result<Vec<_>, _>>(), Ok(attributes.clone()));

            let mut sent = Vec::new();
            let fragment = FragmentPayload { id: c, number: a.max(1), last: b & 1 != 0, data: &data };
            fragment.emit(&mut sent);
            prop_assert_eq!(FragmentPayload::parse(&sent), Ok(fragment));

            let transforms: Vec<Vec<_>> = lens
                .iter()
                .map(|len| (0..*len as u8).map(|i| TransformOut { number: i, id: b, attributes: &attributes }).collect())
                .collect();
            let proposals: Vec<_> = transforms
                .iter()
                .map(|transforms| ProposalOut { number: a, protocol: ProtocolId(b), spi, transforms })
                .collect();
            let sent = body(PayloadType::SA_V1, |chain| { chain.sa_v1(doi, SIT_IDENTITY_ONLY, &proposals); });
            let sa = SaPayload::parse(&sent).unwrap();
            prop_assert_eq!((sa.doi, sa.proposals().count()), (doi, proposals.len()));
            for (read, sent) in sa.proposals().map(Result::unwrap).zip(&proposals) {
                prop_assert_eq!((read.number, read.protocol, read.spi), (sent.number, sent.protocol, sent.spi));
                prop_assert_eq!(read.transforms().count(), sent.transforms.len());
                for (read, sent) in read.transforms().map(Result::unwrap).zip(sent.transforms) {
                    prop_assert_eq!((read.number, read.id), (sent.number, sent.id));
                    prop_assert_eq!(read.attributes().collect::<Result<Vec<_>, _>>(), Ok(attributes.clone()));
                }
            }
        }

        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..80)) {
            let _ = sa_is_good(&bytes);
            let _ = sa_is_good(&[&[0, 0, 0, 1, 0, 0, 0, 1], &bytes[..]].concat());
            let _ = (Id::parse(&bytes), Notification::parse(&bytes), parse_nat_oa(&bytes), FragmentPayload::parse(&bytes));
            if let Ok((_, delete)) = parse_delete(&bytes) {
                delete.spis().for_each(drop);
            }
            if let Ok(config) = Config::parse(&bytes) {
                config.attributes().for_each(drop);
            }
            Payloads::v1(PayloadType::SA_V1, &bytes).for_each(drop);
        }
    }
}
