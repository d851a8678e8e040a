//! Messages of both versions of IKE: header, chain, every body. A parsed message should be emitted
//! and parsed again to the same value.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::ParseError;
use wire::ike::{
    Attribute, Auth, Cert, CertReq, Cfg, Chain, Delete, Eap, Header, HeaderFields, Id, Ke, MAX_DELETED_SPIS,
    MAX_PAYLOADS, MAX_PROPOSALS, MAX_TRANSFORMS, Notify, PayloadType, Payloads, ProposalOut, RawPayload, SaPayload,
    Skf, Transform, Ts, begin_message, finish_message, v1,
};

fuzz_target!(|datagram: &[u8]| {
    let Ok((header, body)) = Header::parse(datagram) else { return };
    assert_eq!(Header::LEN + body.len(), datagram.len());
    let _ = (header.next.to_string(), header.exchange.to_string());
    read(Payloads::new(header.next, body), read_v2);
    read(Payloads::v1(header.next, body), read_v1);
    rewrite(header, body);
});

fn read(payloads: Payloads<'_>, body: fn(&RawPayload<'_>) -> Result<(), ParseError>) {
    assert!(payloads.count() <= MAX_PAYLOADS + 1);
    for payload in payloads.flatten() {
        let _ = body(&payload);
    }
}

/// A message whose chain can be read comes out of our own chain as it went in, but for reserved
/// bits.
fn rewrite(header: &Header, body: &[u8]) {
    let Ok(payloads) = Payloads::new(header.next, body).collect::<Result<Vec<_>, _>>() else { return };
    let &Header { spi_i, spi_r, version, exchange, flags, message_id, .. } = header;
    let fields = HeaderFields { spi_i, spi_r, version, exchange, flags, message_id: message_id.get() };
    let mut out = Vec::new();
    begin_message(&mut out, &fields);
    let mut chain = Chain::new(&mut out);
    for RawPayload { kind, critical, body, next } in &payloads {
        match *kind {
            PayloadType::SK | PayloadType::SKF => chain.encrypted(*kind, *next, |out| out.extend(*body)),
            _ if *critical => chain.critical_payload(*kind, |out| out.extend(*body)),
            _ => chain.raw(*kind, body),
        };
    }
    assert!(!chain.overflowed());
    let first = chain.first();
    finish_message(&mut out, first);
    let (again, body) = Header::parse(&out).expect("our own message");
    assert_eq!((again.next, again.length), (header.next, header.length));
    let again: Vec<_> = Payloads::new(again.next, body).map(|payload| payload.expect("our own payload")).collect();
    let critical =
        |payload: &RawPayload<'_>| payload.critical && !matches!(payload.kind, PayloadType::SK | PayloadType::SKF);
    assert_eq!(again.len(), payloads.len());
    for (again, payload) in again.iter().zip(&payloads) {
        assert_eq!(*again, RawPayload { critical: critical(payload), ..*payload });
    }
}

/// The body that `emit` writes.
fn body(emit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    emit(&mut out);
    out
}

fn read_v2(payload: &RawPayload<'_>) -> Result<(), ParseError> {
    let bytes = payload.body;
    match payload.kind {
        PayloadType::SA => read_sa(bytes)?,
        PayloadType::KE => {
            let ke = Ke::parse(bytes)?;
            assert_eq!(Ke::parse(&body(|out| ke.emit(out))), Ok(ke));
        }
        PayloadType::IDi | PayloadType::IDr => {
            let id = Id::parse(bytes)?;
            assert_eq!(Id::parse(&body(|out| id.emit(out))), Ok(id));
        }
        PayloadType::CERT => read_cert(bytes)?,
        PayloadType::CERTREQ => read_certreq(bytes)?,
        PayloadType::AUTH => {
            let auth = Auth::parse(bytes)?;
            let _ = auth.digital_signature();
            assert_eq!(Auth::parse(&body(|out| auth.emit(out))), Ok(auth));
        }
        PayloadType::NOTIFY => {
            let notify = Notify::parse(bytes)?;
            let _ = (notify.kind.to_string(), notify.kind.is_error());
            assert_eq!(Notify::parse(&body(|out| notify.emit(out))), Ok(notify));
        }
        PayloadType::DELETE => read_delete(Delete::parse(bytes)?),
        PayloadType::TSi | PayloadType::TSr => read_ts(Ts::parse(bytes)?)?,
        PayloadType::CP => {
            let cfg = Cfg::parse(bytes)?;
            let attributes = cfg.attributes().collect::<Result<Vec<_>, _>>()?;
            let again = body(|out| Cfg::emit(cfg.kind, &attributes, out));
            assert!(Cfg::parse(&again)?.attributes().eq(attributes.into_iter().map(Ok)));
        }
        PayloadType::EAP => {
            let eap = Eap::parse(bytes)?;
            let _ = eap.method();
            assert_eq!(body(|out| Eap::emit(eap.code, eap.id, eap.data, out)), eap.whole);
        }
        // As if it were not encrypted: inside is a chain.
        PayloadType::SK => read(Payloads::new(payload.next, bytes), read_v2),
        PayloadType::SKF => {
            let skf = Skf::parse(bytes)?;
            assert!(skf.number >= 1 && skf.number <= skf.total);
            assert_eq!(body(|out| skf.emit(out)), bytes);
        }
        _ => (),
    }
    Ok(())
}

fn read_sa(bytes: &[u8]) -> Result<(), ParseError> {
    let sa = SaPayload::parse(bytes)?;
    assert!(sa.proposals().count() <= MAX_PROPOSALS + 1);
    let mut proposals = Vec::new();
    for proposal in sa.proposals() {
        let proposal = proposal?;
        let transforms = proposal.transforms().collect::<Result<Vec<_>, _>>()?;
        assert!(transforms.len() <= MAX_TRANSFORMS);
        proposals.push((proposal, transforms));
    }
    let sent: Vec<_> = proposals
        .iter()
        .map(|(proposal, transforms)| ProposalOut {
            number: proposal.number,
            protocol: proposal.protocol,
            spi: proposal.spi,
            transforms,
        })
        .collect();
    let again = body(|out| SaPayload::emit(&sent, out));
    let again = SaPayload::parse(&again)?.proposals().map(|proposal| proposal.expect("our own proposal"));
    assert_eq!(again.clone().count(), proposals.len());
    for (again, (proposal, transforms)) in again.zip(&proposals) {
        assert_eq!((again.number, again.protocol, again.spi), (proposal.number, proposal.protocol, proposal.spi));
        let known = transforms.iter().map(|transform| Ok(Transform { unknown_attributes: false, ..*transform }));
        assert!(again.transforms().eq(known));
    }
    Ok(())
}

fn read_cert(bytes: &[u8]) -> Result<(), ParseError> {
    let cert = Cert::parse(bytes)?;
    assert_eq!(body(|out| cert.emit(out)), bytes);
    Ok(())
}

fn read_certreq(bytes: &[u8]) -> Result<(), ParseError> {
    let request = CertReq::parse(bytes)?;
    assert_eq!(request.hashes().len(), request.authorities.len() / CertReq::HASH_LEN);
    assert_eq!(body(|out| request.emit(out)), bytes);
    Ok(())
}

fn read_delete(delete: Delete<'_>) {
    let spis: Vec<_> = delete.spis().collect();
    assert!(spis.len() <= MAX_DELETED_SPIS);
    let again = body(|out| Delete::emit(delete.protocol, &spis, out));
    assert!(Delete::parse(&again).expect("our own payload").spis().eq(spis));
}

fn read_ts(ts: Ts<'_>) -> Result<(), ParseError> {
    let selectors: Vec<_> = ts.selectors().filter_map(Result::transpose).collect::<Result<_, _>>()?;
    let again = body(|out| Ts::emit(&selectors, out));
    assert!(Ts::parse(&again)?.selectors().eq(selectors.into_iter().map(|selector| Ok(Some(selector)))));
    Ok(())
}

fn read_v1(payload: &RawPayload<'_>) -> Result<(), ParseError> {
    let bytes = payload.body;
    match payload.kind {
        PayloadType::SA_V1 => read_sa_v1(bytes)?,
        PayloadType::ID_V1 => {
            let id = v1::Id::parse(bytes)?;
            assert_eq!(body(|out| id.emit(out)), bytes);
        }
        PayloadType::CERT_V1 => read_cert(bytes)?,
        PayloadType::CERTREQ_V1 => read_certreq(bytes)?,
        PayloadType::NOTIFICATION_V1 => {
            let notification = v1::Notification::parse(bytes)?;
            let _ = notification.kind.to_string();
            assert_eq!(body(|out| notification.emit(out)), bytes);
        }
        PayloadType::DELETE_V1 => read_delete(v1::parse_delete(bytes)?.1),
        PayloadType::NAT_OA_V1 | PayloadType::NAT_OA_DRAFT_V1 => {
            let addr = v1::parse_nat_oa(bytes)?;
            let mut out = Vec::new();
            let first = Chain::new(&mut out).nat_oa_v1(payload.kind, addr).first();
            let again = Payloads::v1(first, &out).next().expect("a payload")?;
            assert_eq!(v1::parse_nat_oa(again.body), Ok(addr));
        }
        PayloadType::ATTRIBUTES_V1 => {
            let config = v1::Config::parse(bytes)?;
            let attributes = config.attributes().collect::<Result<Vec<_>, _>>()?;
            let again = body(|out| v1::Config::emit(config.kind, config.id, &attributes, out));
            assert_eq!(again[4..], bytes[4..]);
        }
        PayloadType::FRAGMENT_V1 => {
            let fragment = v1::FragmentPayload::parse(bytes)?;
            assert_eq!(v1::FragmentPayload::parse(&body(|out| fragment.emit(out))), Ok(fragment));
        }
        _ => (),
    }
    Ok(())
}

fn read_sa_v1(bytes: &[u8]) -> Result<(), ParseError> {
    let sa = v1::SaPayload::parse(bytes)?;
    assert!(sa.proposals().count() <= MAX_PROPOSALS + 1);
    for proposal in sa.proposals() {
        let proposal = proposal?;
        let transforms = proposal.transforms().collect::<Result<Vec<_>, _>>()?;
        let attributes: Vec<Vec<Attribute<'_>>> = transforms
            .iter()
            .map(|transform| transform.attributes().collect::<Result<_, _>>())
            .collect::<Result<_, _>>()?;
        for attribute in attributes.iter().flatten() {
            let _ = (attribute.number(), attribute.bytes());
        }
        let sent: Vec<_> = transforms
            .iter()
            .zip(&attributes)
            .map(|(transform, attributes)| v1::TransformOut { number: transform.number, id: transform.id, attributes })
            .collect();
        let v1::Proposal { number, protocol, spi, .. } = proposal;
        let sent = [v1::ProposalOut { number, protocol, spi, transforms: &sent }];
        let again = body(|out| v1::SaPayload::emit(sa.doi, sa.situation, &sent, out));
        let again = v1::SaPayload::parse(&again)?.proposals().next().expect("a proposal")?;
        assert!(again.transforms().eq(transforms.into_iter().map(Ok)));
    }
    Ok(())
}
