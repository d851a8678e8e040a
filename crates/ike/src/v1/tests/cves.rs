//! Classes of vulnerabilities that other implementations of IKEv1 had.
//!
//! In other files: confusion of versions (CVE-2015-3991) in `dispatch` and `hostile`, the hash of
//! aggressive mode (CVE-2002-1623) in `aggressive`, amplification (CVE-2016-5361) in `hostile`,
//! Child SAs before XAuth (CVE-2015-8023) in `xauth`, fragments (CVE-2013-6076) in `fragments`.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use wire::ike::v1::{DOI_IPSEC, Notification, NotifyType};
use wire::ike::{Chain, ExchangeType, PayloadType, ProtocolId};

use super::stories::{assert_up, initiate, pair, pair_with};
use crate::config::Action;
use crate::output::{Event, IkeId, Transmit};
use crate::testkit::*;
use crate::v1::Forged;
use crate::v1::message::payloads;
use crate::v1::phase1::both_cookies;

fn up() -> Net {
    let mut net = pair();
    initiate(&mut net, 0);
    net.run(Duration::from_secs(3));
    assert_up(&net);
    net
}

fn cookies(net: &Net) -> [u8; 16] {
    both_cookies(net.hosts[1].endpoint.ike_sas().next().expect("an IKE SA").spis)
}

fn delete(chain: &mut Chain<'_>, cookies: &[u8; 16]) {
    chain.delete_v1(DOI_IPSEC, ProtocolId::IKE, &[cookies]);
}

fn notify(chain: &mut Chain<'_>, kind: NotifyType, spi: &[u8], data: &[u8]) {
    chain.notification_v1(&Notification { doi: DOI_IPSEC, protocol: ProtocolId::IKE, spi, kind, data });
}

/// Sends an INFORMATIONAL message to host 2, as host 1 would.
fn inform(net: &mut Net, ike: IkeId, message: Forged<'_>) {
    let datagram = net.hosts[1].endpoint.forged(ike, &message).expect("a message");
    net.inject(Transmit { local: port_500(1), remote: port_500(2), datagram, dscp: 0 });
    net.run(Duration::from_millis(20));
}

fn informational(first: PayloadType, payloads: &[u8], message_id: u32) -> Forged<'_> {
    let exchange = ExchangeType::INFORMATIONAL_V1.0;
    Forged { exchange, message_id, first: first.0, payloads, encrypted: true, hashed: true }
}

#[test]
fn an_informational_message_without_its_hash_in_front_changes_nothing_cve_2019_10155() {
    let mut net = up();
    let (ike, cookies) = (net.hosts[1].up()[0], cookies(&net));
    let (first, body) = payloads(|chain| delete(chain, &cookies));
    let right = informational(first, &body, 0x1000);
    let (late, with_late_hash) = payloads(|chain| {
        delete(chain, &cookies);
        chain.raw(PayloadType::HASH_V1, &[0; 32]);
    });
    let (wrong, with_wrong_hash) = payloads(|chain| {
        chain.raw(PayloadType::HASH_V1, &[0; 32]);
        delete(chain, &cookies);
    });
    let (empty, with_empty_hash) = payloads(|chain| {
        chain.raw(PayloadType::HASH_V1, &[]);
        delete(chain, &cookies);
    });
    let forged = [
        Forged { encrypted: false, hashed: false, ..right },
        Forged { hashed: false, ..right },
        Forged { hashed: false, ..informational(late, &with_late_hash, 0x1000) },
        Forged { hashed: false, ..informational(wrong, &with_wrong_hash, 0x1000) },
        Forged { hashed: false, ..informational(empty, &with_empty_hash, 0x1000) },
    ];
    for (number, message) in forged.into_iter().enumerate() {
        inform(&mut net, ike, message);
        assert_eq!(net.hosts[1].count("ikev1_messages_not_authentic"), number + 1);
    }
    assert_up(&net);
    inform(&mut net, ike, right);
    assert_eq!(net.hosts[1].up().len(), 0, "the right message is refused, so that the test proves nothing");
}

#[test]
fn nothing_in_a_message_follows_the_delete_of_its_isakmp_sa_cve_2023_38712() {
    for error_first in [false, true] {
        let mut net = pair_with(1, &|_, child| child.close_action = Action::Restart);
        initiate(&mut net, 0);
        net.run(Duration::from_secs(3));
        let (ike, cookies) = (net.hosts[1].up()[0], cookies(&net));
        let exchanges: Rc<RefCell<Vec<u8>>> = Rc::default();
        let sent = Rc::clone(&exchanges);
        net.wire = Box::new(move |datagram: &mut Transmit| {
            if datagram.local.ip() == addr(2) {
                sent.borrow_mut().push(datagram.datagram[18]);
            }
            Delivery::Lost
        });
        let spi = net.hosts[1].live().next().expect("a child").sa.outbound.spi.to_be_bytes();
        let (first, body) = payloads(|chain| {
            if error_first {
                notify(chain, NotifyType::NO_PROPOSAL_CHOSEN, &[], &[]);
            }
            delete(chain, &cookies);
            delete(chain, &cookies);
            chain.delete_v1(DOI_IPSEC, ProtocolId::ESP, &[&spi]);
            notify(chain, NotifyType::INVALID_ID_INFORMATION, &spi, &[]);
        });
        inform(&mut net, ike, informational(first, &body, 0x1000));
        let downs = net.hosts[1].events.iter().filter(|event| matches!(event, Event::IkeDown(..))).count();
        assert_eq!((net.hosts[1].up().len(), downs, net.hosts[1].live().count()), (0, 1, 0));
        assert_eq!(net.hosts[1].count("child_down"), 1);
        // The Child SA is requested of another ISAKMP SA, not of the one that is gone.
        assert_eq!(exchanges.borrow().first(), Some(&ExchangeType::ID_PROT.0), "{:?}", exchanges.borrow());
    }
}

#[test]
fn dead_peer_detection_of_an_isakmp_sa_that_is_gone_is_ignored_cve_2009_0790() {
    let mut net = up();
    let (ike, cookies) = (net.hosts[1].up()[0], cookies(&net));
    let forge = |net: &Net, kind, number| {
        let (first, body) = payloads(|chain| notify(chain, kind, &cookies, &[0, 0, 0, 1]));
        let datagram = net.hosts[1].endpoint.forged(ike, &informational(first, &body, number)).expect("a message");
        Transmit { local: port_500(1), remote: port_500(2), datagram, dscp: 0 }
    };
    let recorded = [forge(&net, NotifyType::R_U_THERE, 0x1000), forge(&net, NotifyType::R_U_THERE_ACK, 0x1001)];
    // Of this ISAKMP SA, but about another one: it is not answered.
    let (first, body) = payloads(|chain| notify(chain, NotifyType::R_U_THERE, &[9; 16], &[0, 0, 0, 1]));
    let sent = net.hosts[1].sent.0;
    inform(&mut net, ike, informational(first, &body, 0x1002));
    assert_eq!(net.hosts[1].sent.0, sent);
    net.hosts[1].endpoint.terminate_ike(net.now, ike, false, 8);
    net.run(Duration::from_secs(30));
    let sent = net.hosts[1].sent.0;
    for message in recorded {
        net.inject(message);
        net.run(Duration::from_millis(20));
    }
    assert_eq!((net.hosts[1].sent.0, net.hosts[1].count("ikev1_unknown_cookies")), (sent, 2));
}

#[test]
fn authentication_by_public_key_encryption_is_never_chosen_cve_2018_5389() {
    for method in [4u8, 5] {
        let mut net = pair();
        net.wire = Box::new(move |datagram: &mut Transmit| {
            // The attribute of the authentication method in message 1.
            let bytes = &mut datagram.datagram;
            if bytes[8..16] == [0; 8] && bytes[18] == ExchangeType::ID_PROT.0 {
                let at = bytes.windows(4).position(|bytes| bytes == [0x80, 3, 0, 1]).expect("the attribute");
                bytes[at + 3] = method;
            }
            Delivery::After(Duration::from_millis(5))
        });
        initiate(&mut net, 0);
        net.run(Duration::from_secs(200));
        assert!(net.hosts[1].count("ikev1_no_proposal") > 0);
        assert_eq!((net.hosts[1].up().len(), net.hosts[1].credentials.requests), (0, 0));
    }
}

#[test]
fn an_offer_of_another_protocol_is_refused_cve_2024_3652() {
    // AH where ESP is configured: libreswan had no algorithm for it and ended.
    let mut net = up();
    let ike = net.hosts[1].up()[0];
    let attributes = [wire::ike::Attribute::short(4, 1), wire::ike::Attribute::short(5, 5)];
    let transforms = [wire::ike::v1::TransformOut { number: 1, id: 5, attributes: &attributes }];
    for protocol in [ProtocolId::AH, ProtocolId::IKE, ProtocolId(9)] {
        let spi = [0, 0, 9, 9];
        let proposal = wire::ike::v1::ProposalOut { number: 1, protocol, spi: &spi, transforms: &transforms };
        let (first, body) = payloads(|chain| {
            chain.sa_v1(DOI_IPSEC, wire::ike::v1::SIT_IDENTITY_ONLY, &[proposal]);
            chain.raw(PayloadType::NONCE_V1, &[7; 16]);
            for text in ["10.1.0.0/16", "10.2.0.0/16"] {
                chain.raw(PayloadType::ID_V1, &crate::v1::selectors::emit(&text.parse().expect("a selector")));
            }
        });
        let refused = net.hosts[1].count("child_refused");
        let message_id = 0x2000 + u32::from(protocol.0);
        inform(
            &mut net,
            ike,
            Forged { exchange: ExchangeType::QUICK_MODE.0, ..informational(first, &body, message_id) },
        );
        assert_eq!(
            net.hosts[1].count("child_refused"),
            refused + 1,
            "{}",
            net.hosts[1].log(crate::output::Level::Debug)
        );
    }
    assert_up(&net);
}
