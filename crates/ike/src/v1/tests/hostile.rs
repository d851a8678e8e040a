//! Messages of attackers: other versions, floods, forged and repeated messages.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use wire::ike::v1::{DOI_IPSEC, EspTransform, LifeType, ProposalOut, SIT_IDENTITY_ONLY, SaPayload, TransformOut};
use wire::ike::{Attribute, ExchangeType, Header, PayloadType, ProtocolId};

use super::stories::{assert_up, initiate, pair, pair_with, twins};
use crate::Settings;
use crate::config::{ChildConfig, Connection};
use crate::output::{Level, Transmit};
use crate::testkit::*;
use crate::v1::message::payloads;
use crate::v1::selectors;

type Seen = Rc<RefCell<Vec<Transmit>>>;

/// Records every datagram.
fn record(net: &mut Net) -> Seen {
    let seen = Seen::default();
    let all = Rc::clone(&seen);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        all.borrow_mut().push(datagram.clone());
        Delivery::After(Duration::from_millis(5))
    });
    seen
}

/// Counters that messages of the other version must not move.
fn counted(host: &Host, prefix: &str) -> usize {
    let is_it = |name: &&str| name.starts_with(prefix);
    let all = crate::counters().map(|(name, _)| name).filter(is_it);
    all.map(|name| host.count(name)).sum()
}

#[test]
fn no_message_of_one_version_reaches_the_other() {
    // Version 1 where only version 2 is configured.
    let mut net = pair();
    net.load(1, vec![connection(2, 1)]);
    initiate(&mut net, 0);
    net.run(Duration::from_secs(200));
    assert!(net.hosts[1].count("ike_version_refused") > 0);
    assert_eq!(counted(&net.hosts[1], "ikev1_"), 0);
    assert_eq!((net.hosts[1].sent.0, net.hosts[1].endpoint.ike_sa_count()), (0, 0));

    // Version 2 where only version 1 is configured.
    let mut net = pair();
    net.load(0, vec![connection(1, 2)]);
    initiate(&mut net, 0);
    net.run(Duration::from_secs(200));
    assert!(net.hosts[1].count("ike_init_no_connection") > 0);
    assert_eq!(counted(&net.hosts[1], "ikev1_"), 0);
    assert_eq!(net.hosts[1].endpoint.ike_sa_count(), 0);

    // Every message of an exchange with the version of the other one: nothing but counters of that
    // version moves, and nothing is answered.
    let record_one = |v1: bool| {
        let mut net = pair();
        if !v1 {
            net.load(0, vec![connection(1, 2)]);
            net.load(1, vec![connection(2, 1)]);
        }
        let seen = record(&mut net);
        initiate(&mut net, 0);
        net.run(Duration::from_secs(3));
        assert_up(&net);
        (net, seen)
    };
    for v1 in [true, false] {
        let (mut net, seen) = record_one(v1);
        let other = if v1 { Header::VERSION_2 } else { Header::VERSION_1 };
        let messages: Vec<Transmit> = seen.borrow().clone();
        let before: Vec<usize> =
            net.hosts.iter().map(|host| counted(host, if v1 { "ikev1_" } else { "child_" })).collect();
        for message in &messages {
            // Byte 17 of the header is the version.
            let mut message = message.clone();
            message.datagram[17] = other;
            net.inject(message);
            net.run(Duration::from_millis(20));
        }
        let after: Vec<usize> =
            net.hosts.iter().map(|host| counted(host, if v1 { "ikev1_" } else { "child_" })).collect();
        assert_eq!(before, after, "version 1: {v1}");
        assert_up(&net);
    }
}

#[test]
fn a_flood_costs_no_key_exchange_and_is_not_amplified() {
    let settings = Settings { half_open_max: 100, ..Settings::default() };
    let mut net = Net::with_settings(20, 2, &settings);
    net.load(0, vec![connection_v1(1, 2)]);
    let mut any = connection_v1(2, 1);
    any.remote_addrs = Vec::new();
    net.load(1, vec![any]);
    // Message 1 of the honest peer is the pattern of those with spoofed addresses.
    let seen = record(&mut net);
    net.hosts[1].addrs = vec![addr(2)];
    initiate(&mut net, 0);
    let message_1 = seen.borrow()[0].clone();
    net.run(Duration::from_secs(3));
    assert_up(&net);
    seen.borrow_mut().clear();
    let (mut bytes_in, requests) = (HashMap::<IpAddr, usize>::new(), net.hosts[1].credentials.requests);
    for number in 0..2000u32 {
        let mut spoofed = message_1.clone();
        spoofed.datagram[..4].copy_from_slice(&number.to_be_bytes());
        let source: SocketAddr = (IpAddr::from([10, 9, (number % 7) as u8, (number % 251) as u8]), 500).into();
        // A flood with small messages, too: the shortest that is understood.
        *bytes_in.entry(source.ip()).or_default() += spoofed.datagram.len();
        net.hosts[1].endpoint.handle_datagram(net.now, spoofed.remote, source, &spoofed.datagram);
        assert!(net.hosts[1].endpoint.half_open_count() <= 100);
        net.pump();
    }
    net.run(Duration::from_millis(50));
    assert_eq!(net.hosts[1].credentials.requests, requests, "a credential request before message 3");
    assert_eq!(net.hosts[1].count("ikev1_half_open_evicted"), 1900);
    let mut bytes_out = HashMap::<IpAddr, usize>::new();
    for sent in seen.borrow().iter().filter(|sent| sent.local.ip() == addr(2)) {
        *bytes_out.entry(sent.remote.ip()).or_default() += sent.datagram.len();
    }
    for (address, bytes) in &bytes_out {
        assert!(*bytes <= bytes_in.get(address).copied().unwrap_or(usize::MAX), "{address}: {bytes}");
    }
    assert!(bytes_out.len() > 100);
    // An honest peer gets through while the flood goes on, and what it left ends by itself.
    let id = net.hosts[0].up()[0];
    net.hosts[0].endpoint.rekey_ike(net.now, id, false, 31);
    net.run(Duration::from_secs(2));
    assert_eq!(net.hosts[0].command(31), Some(&Ok(())));
    net.run(Duration::from_secs(40));
    assert_eq!(net.hosts[1].endpoint.half_open_count(), 0);
    // By itself it sent nothing: no retransmission to an unproven address.
    assert_eq!(net.hosts[1].count("ike_retransmissions"), 0);
}

#[test]
fn one_address_gets_few_key_exchanges() {
    // Message 3 with garbage in place of message 5: DH was computed.
    let mut net = pair();
    let seen = record(&mut net);
    net.hosts[1].credentials.psk = b"another".to_vec();
    for _ in 0..20 {
        initiate(&mut net, 0);
        net.run(Duration::from_millis(100));
        let id = net.hosts[0].endpoint.ike_sas().next().map(|sa| sa.id);
        if let Some(id) = id {
            net.hosts[0].endpoint.terminate_ike(net.now, id, true, 1);
        }
    }
    assert_eq!(net.hosts[1].credentials.requests, Settings::default().block_threshold);
    assert!(net.hosts[1].count("ikev1_blocked") > 0);
    assert!(!seen.borrow().is_empty());
    net.run(Duration::from_secs(60));
    assert_eq!(net.hosts[1].endpoint.half_open_count(), 0);
}

#[test]
fn all_addresses_get_a_bounded_number_of_key_exchanges_at_once() {
    let settings = Settings { half_open_max: 3, ..Settings::default() };
    let mut net = Net::with_settings(22, 2, &settings);
    net.load(0, vec![connection_v1(1, 2)]);
    let any = Connection { remote_addrs: Vec::new(), ..connection_v1(2, 1) };
    net.load(1, vec![any]);
    // Each attempt comes from another address, returns the cookie, and never authenticates itself.
    let source = Rc::new(Cell::new(20u8));
    let outside = Rc::clone(&source);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        match datagram.local.ip() == addr(1) {
            true => datagram.local.set_ip(addr(outside.get())),
            false => datagram.remote.set_ip(addr(1)),
        }
        Delivery::After(Duration::from_millis(5))
    });
    net.hosts[1].credentials.psk = b"another".to_vec();
    for number in 0..20 {
        source.set(20 + number);
        initiate(&mut net, 0);
        net.run(Duration::from_millis(100));
        let id = net.hosts[0].endpoint.ike_sas().next().map(|sa| sa.id);
        if let Some(id) = id {
            net.hosts[0].endpoint.terminate_ike(net.now, id, true, 1);
        }
    }
    assert_eq!(net.hosts[1].credentials.requests, 3);
    assert!(net.hosts[1].count("ikev1_blocked") > 0);
    // The time of half-open ones ends, and the next initiator is served.
    net.run(Duration::from_secs(60));
    assert_eq!(net.hosts[1].endpoint.half_open_count(), 0);
    net.hosts[1].credentials.psk = net.hosts[0].credentials.psk.clone();
    initiate(&mut net, 0);
    net.run(Duration::from_secs(3));
    assert_up(&net);
}

#[test]
fn forged_messages_change_nothing() {
    // Each message of an exchange: each byte changed, and cut short, before the honest one.
    let mut net = pair();
    let seen = record(&mut net);
    initiate(&mut net, 0);
    net.run(Duration::from_secs(3));
    let lengths: Vec<usize> = seen.borrow().iter().map(|message| message.datagram.len()).collect();
    assert_eq!(lengths.len(), 9);
    for (number, len) in lengths.iter().enumerate() {
        let mut net = pair_with(1, &|_, _| ());
        let mut count = 0;
        let forged = Rc::new(RefCell::new(Vec::new()));
        let honest = Rc::clone(&forged);
        net.wire = Box::new(move |datagram: &mut Transmit| {
            count += 1;
            if count - 1 == number {
                honest.borrow_mut().push(datagram.clone());
                return Delivery::After(Duration::from_millis(50));
            }
            Delivery::After(Duration::from_millis(5))
        });
        initiate(&mut net, 0);
        for _ in 0..200 {
            if !forged.borrow().is_empty() {
                break;
            }
            net.run(Duration::from_millis(1));
        }
        let honest = forged.borrow()[0].clone();
        // From the end, because a changed hash alone is a message with the same contents.
        // In clear messages a changed byte is a different message that may be acceptable; these are
        // authenticated later, by the hashes.
        let encrypted = number >= 4;
        // HASH_I does not cover the notification, the last two blocks of message 5: who changes it
        // on the way can stop phase 1, as well as by dropping the message.
        let end = if number == 4 { len - 32 } else { *len };
        for at in (0..end).rev().step_by(if encrypted { 1 } else { 7 }) {
            let host = net.hosts.iter_mut().find(|host| host.addrs.contains(&honest.remote.ip())).expect("a host");
            let mut changed = honest.datagram.clone();
            changed[at] ^= 0x55;
            if encrypted {
                host.endpoint.handle_datagram(net.now, honest.remote, honest.local, &changed);
            }
            let mut short = honest.datagram[..at].to_vec();
            if short.len() >= Header::LEN {
                let len = short.len() as u32;
                short[24..28].copy_from_slice(&len.to_be_bytes());
            }
            host.endpoint.handle_datagram(net.now, honest.remote, honest.local, &short);
        }
        net.pump();
        net.run(Duration::from_secs(40));
        assert_up(&net);
        assert_eq!(twins(&net), 2);
        let _ = net.hosts[0].log(Level::Debug);
    }
}

#[test]
fn repeated_messages_of_the_past_change_nothing() {
    let mut net = pair();
    let seen = record(&mut net);
    initiate(&mut net, 0);
    net.run(Duration::from_secs(3));
    let child = net.hosts[0].live().next().expect("a child").sa.id;
    net.hosts[0].endpoint.rekey_child(net.now, child, 1);
    // Longer than the last message of a quick mode is repeated.
    net.run(Duration::from_secs(100));
    let messages = seen.borrow().clone();
    let state = |net: &Net| {
        let of = |host: &Host| (host.plane.len(), host.live().count(), host.up().len(), host.endpoint.ike_sa_count());
        (of(&net.hosts[0]), of(&net.hosts[1]))
    };
    let before = state(&net);
    for message in &messages {
        net.inject(message.clone());
        net.run(Duration::from_millis(20));
    }
    net.run(Duration::from_secs(60));
    assert_eq!(state(&net), before);
    assert_up(&net);
}

#[test]
fn messages_of_the_past_prove_nothing_about_the_peer() {
    let dpd = |connection: &mut Connection, _: &mut ChildConfig| connection.dpd_delay = Duration::from_secs(10);
    let mut net = pair_with(1, &dpd);
    let any = Connection { remote_addrs: Vec::new(), dpd_delay: Duration::from_secs(10), ..connection_v1(2, 1) };
    net.load(1, vec![any]);
    let (seen, cut) = (Seen::default(), Rc::new(Cell::new(false)));
    let (all, is_cut) = (Rc::clone(&seen), Rc::clone(&cut));
    let outside = addr(9);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        if is_cut.get() {
            return Delivery::Lost;
        }
        if datagram.local.ip() == addr(1) {
            datagram.local.set_ip(outside);
        } else if datagram.remote.ip() == outside {
            datagram.remote.set_ip(addr(1));
        }
        all.borrow_mut().push(datagram.clone());
        Delivery::After(Duration::from_millis(5))
    });
    initiate(&mut net, 0);
    net.run(Duration::from_secs(103));
    let is_dpd = |message: &&Transmit| ExchangeType(message.datagram[18]) == ExchangeType::INFORMATIONAL_V1;
    // Those of the peer from another port of its NAT, and those of the host itself.
    let recorded: Vec<Transmit> = seen
        .borrow()
        .iter()
        .filter(is_dpd)
        .map(|message| Transmit { local: (outside, 61_000).into(), remote: (addr(2), 4500).into(), ..message.clone() })
        .collect();
    assert!(recorded.len() > 10, "{}", recorded.len());
    net.run(Duration::from_secs(3300));
    assert!(net.hosts.iter().map(|host| host.count("liveness_sent")).sum::<usize>() > 300);
    let path = |net: &Net| net.hosts[1].endpoint.ike_sas().next().expect("an IKE SA").path;
    let before = path(&net);
    for message in &recorded {
        net.inject(message.clone());
        net.run(Duration::from_millis(20));
    }
    assert_eq!(path(&net), before);
    // The peer is dead, but the recorded messages arrive all the same.
    cut.set(true);
    for _ in 0..200 {
        for message in &recorded {
            net.inject(message.clone());
        }
        net.run(Duration::from_secs(1));
    }
    assert_eq!(net.hosts[1].count("ike_peer_dead"), 1);
}

#[test]
fn many_message_ids_replace_the_isakmp_sa() {
    let dpd = |connection: &mut Connection, _: &mut ChildConfig| connection.dpd_delay = Duration::from_secs(1);
    let mut net = pair_with(1, &dpd);
    initiate(&mut net, 0);
    net.run(Duration::from_secs(6000));
    assert_up(&net);
    for host in &net.hosts {
        assert_eq!((host.count("ike_rekeyed"), host.count("ike_down"), host.count("child_down")), (1, 0, 0));
    }
}

/// Attributes of the longest lifetime in seconds; life type and life duration have these numbers.
fn longest_life(kind: u16, duration: u16) -> [Attribute<'static>; 2] {
    [Attribute::short(kind, LifeType::SECONDS.0), Attribute::long(duration, &[0xff; 8])]
}

#[test]
fn the_longest_lifetime_of_a_peer_is_a_time() {
    let mut net = pair();
    let mut number = 0;
    net.wire = Box::new(move |datagram: &mut Transmit| {
        number += 1;
        if number == 2 {
            // The only transform of message 2, after the headers of message, SA payload and
            // proposal.
            let bytes = &mut datagram.datagram;
            let mut added = Vec::new();
            longest_life(11, 12).iter().for_each(|attribute| attribute.emit(&mut added));
            let end = 48 + usize::from(u16::from_be_bytes([bytes[50], bytes[51]]));
            bytes.splice(end..end, added.iter().copied());
            for length in [26, 30, 42, 50] {
                let longer = u16::from_be_bytes([bytes[length], bytes[length + 1]]) + added.len() as u16;
                bytes[length..length + 2].copy_from_slice(&longer.to_be_bytes());
            }
        }
        Delivery::After(Duration::from_millis(5))
    });
    initiate(&mut net, 0);
    net.run(Duration::from_secs(3));
    assert_up(&net);
    let view = net.hosts[0].endpoint.ike_sas().next().expect("an IKE SA");
    assert!(view.rekey_at.is_some(), "the lifetime was not read");

    let [life_type, duration] = longest_life(1, 2);
    let attributes = [Attribute::short(4, 1), Attribute::short(6, 128), life_type, duration];
    let transforms = [TransformOut { number: 1, id: EspTransform::AES_GCM_16.0, attributes: &attributes }];
    let proposal = ProposalOut { number: 1, protocol: ProtocolId::ESP, spi: &[0, 0, 9, 9], transforms: &transforms };
    let mut sa = Vec::new();
    SaPayload::emit(DOI_IPSEC, SIT_IDENTITY_ONLY, &[proposal], &mut sa);
    let selector = |text: &str| selectors::emit(&text.parse().expect("a selector"));
    let (first, rest) = payloads(|chain| {
        chain.raw(PayloadType::SA_V1, &sa).raw(PayloadType::NONCE_V1, &[7; 16]);
        chain.raw(PayloadType::ID_V1, &selector("10.1.0.0/16")).raw(PayloadType::ID_V1, &selector("10.2.0.0/16"));
    });
    let ike = net.hosts[0].up()[0];
    assert!(net.hosts[0].endpoint.forge(net.now, ike, 32, first.0, &rest));
    net.run(Duration::from_secs(3));
    assert_eq!(net.hosts[1].plane.len(), 2, "{}", net.hosts[1].log(Level::Debug));
    assert_up(&net);
}

#[test]
fn exchanges_that_are_not_supported_are_counted() {
    let mut net = pair();
    let seen = record(&mut net);
    initiate(&mut net, 0);
    net.run(Duration::from_secs(3));
    let mut aggressive = seen.borrow()[0].clone();
    aggressive.datagram[18] = 4;
    let quick = seen.borrow()[6].clone();
    for exchange in [6, 33, 99] {
        let mut message = quick.clone();
        message.datagram[18] = exchange;
        net.inject(message);
    }
    net.inject(aggressive);
    net.run(Duration::from_millis(50));
    // A TRANSACTION without its payload is one of those that are.
    assert_eq!(net.hosts[1].count("ikev1_exchange_refused"), 2);
    assert_eq!(net.hosts[1].count("ikev1_aggressive_refused"), 1);
    assert_up(&net);
}
