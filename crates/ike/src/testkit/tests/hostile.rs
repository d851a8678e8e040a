//! Messages of attackers, and of peers with keys but without authorisation.

use std::cell::RefCell;
use std::rc::Rc;

use wire::ike::{ExchangeType, Header, NotifyType, PayloadType};

use super::*;
use crate::handshake::init;
use crate::output::{IkeSpi, IkeSpis};

/// Datagrams on the wire so far.
type Seen = Rc<RefCell<Vec<Transmit>>>;

fn record(net: &mut Net) -> Seen {
    let seen = Seen::default();
    let copy = seen.clone();
    net.wire = Box::new(move |datagram| {
        copy.borrow_mut().push(datagram.clone());
        Delivery::After(Duration::from_millis(5))
    });
    seen
}

/// Changed copies of a datagram, with its header left whole in length.
fn variants(of: &Transmit) -> Vec<Transmit> {
    let mut all = Vec::new();
    let mut push = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut variant = of.clone();
        change(&mut variant.datagram);
        let length = (variant.datagram.len() as u32).to_be_bytes();
        if variant.datagram.len() >= Header::LEN {
            variant.datagram[24..28].copy_from_slice(&length);
        }
        all.push(variant);
    };
    for exchange in [0, 2, 5, 32, 34, 35, 36, 37, 38, 43, 44, 255] {
        for flags in [0x00, 0x08, 0x20, 0x28] {
            for id in [0u8, 1, 2, 3] {
                push(&|bytes| (bytes[18], bytes[19], bytes[23]) = (exchange, flags, id));
            }
        }
    }
    for version in [0x00, 0x10, 0x11, 0x30, 0xf0] {
        push(&|bytes| bytes[17] = version);
    }
    for len in [28, 32, 36, 40, 60] {
        push(&|bytes| bytes.truncate(len));
    }
    push(&|bytes| bytes.extend([0; 7]));
    all
}

/// A datagram that is not about IKE_SA_INIT, which nothing protects.
fn is_protected(datagram: &Transmit) -> bool {
    datagram.datagram[18] != ExchangeType::IKE_SA_INIT.0
}

#[test]
fn strangers_change_nothing_at_any_step() {
    for step in 1..=4 {
        let mut net = pair(30, |_, _| ());
        let seen = record(&mut net);
        initiate(&mut net);
        net.pump();
        while seen.borrow().len() < step {
            net.run(Duration::from_millis(5));
        }
        let captured: Vec<Transmit> = seen.borrow().clone();
        for datagram in captured.iter().flat_map(variants) {
            // A response to IKE_SA_INIT that looks good is accepted from any sender.
            let init = datagram.datagram.get(18) == Some(&ExchangeType::IKE_SA_INIT.0);
            if captured.iter().any(|real| real.datagram == datagram.datagram) || init {
                continue;
            }
            let reflected = Transmit { local: datagram.remote, remote: datagram.local, ..datagram.clone() };
            for sent in [datagram, reflected] {
                let victim = net.hosts.iter_mut().find(|host| host.addrs.contains(&sent.remote.ip()));
                let victim = victim.expect("a host");
                let before = victim.sent.1;
                victim.endpoint.handle_datagram(net.now, sent.remote, sent.local, &sent.datagram);
                net.hosts.iter_mut().for_each(|host| {
                    while host.endpoint.poll().is_some_and(|output| {
                        host.take(net.now, output);
                        true
                    }) {}
                });
                let victim = net.hosts.iter().find(|host| host.addrs.contains(&sent.remote.ip()));
                let answered = victim.expect("a host").sent.1 - before;
                assert!(answered <= sent.datagram.len(), "{answered} bytes for {}", sent.datagram.len());
            }
        }
        net.run(30 * SECOND);
        check_up(&net);
    }
}

#[test]
fn flipped_bits_and_reflections_are_not_authentic() {
    let mut net = pair(31, |_, connection| signatures(connection));
    keys(&mut net);
    let seen = record(&mut net);
    initiate(&mut net);
    net.pump();
    let mut step = 0;
    while step < 60 {
        let fresh: Vec<Transmit> = seen.borrow_mut().drain(..).filter(is_protected).collect();
        for datagram in fresh {
            let reflected = Transmit { local: datagram.remote, remote: datagram.local, ..datagram.clone() };
            net.inject(reflected);
            for at in 0..datagram.datagram.len() {
                let mut flipped = datagram.clone();
                flipped.datagram[at] ^= 1 << (at % 8);
                net.inject(flipped);
            }
        }
        net.run(Duration::from_millis(1));
        step += 1;
    }
    check_up(&net);
    assert!(net.hosts.iter().all(|host| host.count("ike_up") == 1 && host.count("ike_failed") == 0));
    // A line now and then, not one per message.
    let lines = net.hosts[1].log(Level::Warn).lines().count();
    assert!(lines <= 2, "{}", net.hosts[1].log(Level::Warn));
}

/// Payloads that would do much if anybody believed them.
fn tempting() -> Vec<(u8, u8, Vec<u8>)> {
    let chain = |write: &dyn Fn(&mut wire::ike::Chain<'_>)| {
        let mut bytes = Vec::new();
        let mut chain = wire::ike::Chain::new(&mut bytes);
        write(&mut chain);
        (chain.first().0, bytes)
    };
    let notify = |kind| {
        chain(&|chain| {
            chain.notify(wire::ike::ProtocolId::NONE, &[], kind, &[]);
        })
    };
    let delete = chain(&|chain| {
        chain.delete(wire::ike::ProtocolId::IKE, &[]);
    });
    let child = chain(&|chain| {
        let proposals = [ChildProposal::parse(ChildProtocol::Esp, "aes128gcm16").expect("a proposal")];
        let points = wire::ike::CodePoints::default();
        crate::proposal::emit_child_offer(chain, &proposals, &[1, 2, 3, 4], false, &points);
        chain.nonce(&[9; 32]);
        let all = [ts("0.0.0.0/0").resolve(addr(1))];
        chain.ts(PayloadType::TSi, &all).ts(PayloadType::TSr, &all);
    });
    let eap = chain(&|chain| {
        chain.eap(&[3, 1, 0, 4]);
    });
    let bodies = [
        delete,
        child,
        eap,
        notify(NotifyType::AUTHENTICATION_FAILED),
        notify(NotifyType::INITIAL_CONTACT),
        notify(NotifyType::USE_PPK),
        (0, Vec::new()),
        (39, vec![0, 0, 0, 2]),
        (255, vec![0, 0x80, 0, 4]),
    ];
    let exchanges = [34, 35, 36, 37, 38, 43, 44];
    exchanges
        .iter()
        .flat_map(|exchange| bodies.iter().map(|(first, bytes)| (*exchange, *first, bytes.clone())))
        .collect()
}

#[test]
fn keys_without_authentication_are_good_for_nothing() {
    // The initiator has keys and does not send IKE_AUTH; the responder has keys and sends a
    // request.
    for forger in [0, 1] {
        for (at, (exchange, first, bytes)) in tempting().into_iter().enumerate() {
            let mut net = pair(32, |_, _| ());
            net.hosts[0].hold = true;
            net.hosts[1].hold = true;
            initiate(&mut net);
            net.run(SECOND);
            // Host 0 has keys and waits for its own signature; host 1 gets its keys with the first
            // message.
            let target = 1 - forger;
            if forger == 1 {
                net.release(0);
                net.run(SECOND);
            }
            let Some(ike) = net.hosts[forger].endpoint.ike_sas().next().map(|sa| sa.id) else { continue };
            let now = net.now;
            assert!(net.hosts[forger].endpoint.forge(now, ike, exchange, first, &bytes), "{forger} {at}");
            net.run(SECOND);
            net.release(target);
            net.run(SECOND);
            let host = &net.hosts[target];
            assert!(host.up().is_empty() && host.plane.is_empty(), "{forger} {at}: {}", host.log(Level::Trace));
            assert!(!host.events.iter().any(|event| matches!(event, Event::IkeUp(_))));
        }
    }
}

#[test]
fn whatever_an_authenticated_peer_sends_no_table_grows() {
    for (exchange, first, bytes) in tempting() {
        let mut net = pair(33, |_, _| ());
        initiate(&mut net);
        net.run(SECOND);
        let (ike, now) = (net.hosts[0].up()[0], net.now);
        assert!(net.hosts[0].endpoint.forge(now, ike, exchange, first, &bytes));
        net.run(600 * SECOND);
        assert!(net.hosts[1].endpoint.ike_sa_count() <= 1 && net.hosts[1].live().count() <= 2);
    }
}

#[test]
fn error_notifies_in_the_clear_are_waited_out() {
    for kind in [NotifyType::NO_PROPOSAL_CHOSEN, NotifyType::INVALID_SYNTAX, NotifyType::AUTHENTICATION_FAILED] {
        for truth in [true, false] {
            let mut net = pair(34, |_, _| ());
            let seen = record(&mut net);
            initiate(&mut net);
            net.pump();
            let spi = IkeSpi(seen.borrow()[0].datagram[..8].try_into().expect("eight bytes"));
            let datagram = init::message(IkeSpis::new(spi, IkeSpi::ZERO), true, |chain| {
                chain.notify(wire::ike::ProtocolId::NONE, &[], kind, &[]);
            });
            net.inject(Transmit { local: port_500(2), remote: port_500(1), datagram, dscp: 0 });
            if !truth {
                net.hosts[1].addrs.clear();
            }
            net.run(SECOND);
            assert_eq!(net.hosts[0].command(1).is_some(), truth, "without another answer it waits");
            net.run(30 * SECOND);
            assert_eq!(net.hosts[0].command(1).map(Result::is_ok), Some(truth));
        }
    }
}

/// Keeps the datagram of this number, of those for which `wanted` is true, from its destination.
fn withhold(net: &mut Net, number: usize, wanted: impl Fn(&Transmit) -> bool + 'static) -> Seen {
    let held = Seen::default();
    let (copy, mut count) = (held.clone(), 0);
    net.wire = Box::new(move |datagram| {
        count += usize::from(wanted(datagram));
        if wanted(datagram) && count == number {
            copy.borrow_mut().push(datagram.clone());
            return Delivery::Lost;
        }
        Delivery::After(Duration::from_millis(5))
    });
    held
}

/// The encrypted message `of` with a payload before its others, as another implementation with the
/// same keys would write it.
fn with_payload(of: &Transmit, secrets: &crate::output::IkeSecrets, kind: PayloadType, body: &[u8]) -> Transmit {
    const BODY_AT: usize = Header::LEN + 4;
    let suite = crypto::ike::SkSuite::new(secrets.suite.enc, secrets.suite.integ).expect("a suite");
    let from_initiator = of.datagram[19] & Header::FLAG_INITIATOR != 0;
    let (enc, integ) = match from_initiator {
        true => (&secrets.sk_e.0, &secrets.sk_a.0),
        false => (&secrets.sk_e.1, &secrets.sk_a.1),
    };
    let key = crypto::ike::SkKey::new(suite, enc, integ).expect("a key");
    let mut message = of.datagram.clone();
    let first = message[Header::LEN];
    let range = key.open(&mut message, BODY_AT).expect("authentic");
    let length = u16::try_from(4 + body.len()).expect("short").to_be_bytes();
    let inner = [&[first, 0, length[0], length[1]], body, &message[range]].concat();
    let mut changed = of.datagram[..BODY_AT].to_vec();
    changed[Header::LEN] = kind.0;
    let body_len = key.sealed_len(inner.len());
    changed[Header::LEN + 2..BODY_AT].copy_from_slice(&((4 + body_len) as u16).to_be_bytes());
    changed[24..Header::LEN].copy_from_slice(&((BODY_AT + body_len) as u32).to_be_bytes());
    key.seal(&mut changed, BODY_AT, &inner, &mut |iv| iv.fill(7));
    Transmit { datagram: changed, ..of.clone() }
}

/// A pair of [`eap_pair`] that discloses its keys.
fn disclosed_eap_pair(seed: u64) -> Net {
    let mut net = Net::with_settings(seed, 2, &Settings { log_secrets: true, ..Settings::default() });
    let of_eap = eap_pair(seed);
    for host in [0, 1] {
        let loaded = of_eap.hosts[host].endpoint.connections().iter().map(|one| Connection::clone(one)).collect();
        net.load(host, loaded);
    }
    keys(&mut net);
    net
}

/// The identity that a signature proved stays, when a later response of EAP names another one.
#[test]
fn an_identity_without_auth_does_not_replace_a_proven_one() {
    for name in [&b"host9.test"[..], b"host2.test"] {
        let mut net = disclosed_eap_pair(61);
        let is_auth = |sent: &Transmit| sent.local.ip() == addr(2) && sent.datagram[18] == ExchangeType::IKE_AUTH.0;
        let held = withhold(&mut net, 2, is_auth);
        initiate(&mut net);
        net.run(Duration::from_millis(100));
        let response = held.borrow().first().cloned().expect("the response after that with AUTH");
        let id = [&[wire::ike::IdType::FQDN.0, 0, 0, 0], name].concat();
        let changed = with_payload(&response, &net.hosts[1].secrets[0], PayloadType::IDr, &id);
        net.inject(changed);
        net.run(Duration::from_millis(100));
        check_up(&net);
        let remote = net.hosts[0].endpoint.ike_sas().next().and_then(|sa| sa.remote_id.cloned());
        assert_eq!(remote, Some(super::id("host2.test")));
    }
}

/// RFC 4555 §3.9 in IKE_AUTH.
#[test]
fn an_initiator_that_prohibits_nats_is_refused_behind_one() {
    for (source, good) in [([10, 0, 0, 1], true), ([192, 168, 0, 1], false)] {
        let mut net = disclosed_eap_pair(62);
        let is_auth = |sent: &Transmit| sent.local.ip() == addr(1) && sent.datagram[18] == ExchangeType::IKE_AUTH.0;
        let held = withhold(&mut net, 1, is_auth);
        initiate(&mut net);
        net.run(Duration::from_millis(100));
        let request = held.borrow().first().cloned().expect("a request");
        let ports = [request.local.port().to_be_bytes(), request.remote.port().to_be_bytes()].concat();
        let kind = NotifyType::NO_NATS_ALLOWED.0.to_be_bytes();
        let notify = [&[0, 0, kind[0], kind[1]], &source[..], &[10, 0, 0, 2], &ports].concat();
        let changed = with_payload(&request, &net.hosts[0].secrets[0], PayloadType::NOTIFY, &notify);
        net.inject(changed);
        net.run(SECOND);
        if good {
            check_up(&net);
            continue;
        }
        assert!(net.hosts.iter().all(|host| host.up().is_empty() && host.live().count() == 0));
        let refused = net.hosts[0].command(1);
        let named = format!("the peer answers {}", NotifyType::UNEXPECTED_NAT_DETECTED);
        assert!(matches!(refused, Some(Err(reason)) if reason.as_str().contains(&named)), "{refused:?}");
    }
}

/// Copies of responses to IKE_SA_INIT that were followed already: they arrive before the next
/// response, and are older than the time for which an error is remembered.
#[test]
fn stale_responses_to_ike_sa_init_are_ignored() {
    for cookie in [false, true] {
        let cookie_threshold = if cookie { 0 } else { Settings::default().cookie_threshold };
        let mut net = Net::with_settings(63, 2, &Settings { cookie_threshold, ..Settings::default() });
        let (mut a, mut b) = (connection(1, 2), connection(2, 1));
        a.keyingtries = 1;
        if !cookie {
            b.proposals = vec![IkeProposal::parse("aes128gcm16-prfsha256-ecp256").expect("a proposal")];
        }
        net.load(0, vec![a]);
        net.load(1, vec![b]);
        let mut responses = 0;
        net.wire = Box::new(move |datagram| {
            let after = |ms| Duration::from_millis(ms);
            responses += usize::from(datagram.local.ip() == addr(2));
            match responses {
                1 if datagram.local.ip() == addr(2) => Delivery::Twice(after(5), after(100)),
                2 if datagram.local.ip() == addr(2) => Delivery::After(after(3000)),
                _ => Delivery::After(after(5)),
            }
        });
        initiate(&mut net);
        net.run(30 * SECOND);
        check_up(&net);
        assert_eq!(net.hosts[0].sent.0, 3, "{cookie} {}", net.hosts[0].log(Level::Trace));
    }
}

#[test]
fn a_redirection_is_followed_with_the_right_nonce_only() {
    for (right, gateway) in [(true, &[1, 4, 10, 0, 0, 3][..]), (false, &[1, 4, 10, 0, 0, 3]), (true, b"\x03\x03gw3")] {
        let mut net = Net::new(35, 3);
        let mut a = connection(1, 2);
        a.remote[0].id = IdPattern::Any;
        net.load(0, vec![a]);
        net.load(1, vec![connection(2, 1)]);
        net.load(2, vec![Connection { children: connection(2, 1).children, ..connection(3, 1) }]);
        let mut nonce = Vec::new();
        net.wire = Box::new(move |datagram| {
            let bytes = &datagram.datagram;
            if bytes[18] == 34 && bytes[19] == 0x08 {
                let payloads = wire::ike::Payloads::new(PayloadType(bytes[16]), &bytes[28..]);
                nonce = payloads.flatten().find(|one| one.kind == PayloadType::NONCE).expect("a nonce").body.to_vec();
            }
            if bytes[18] == 34 && bytes[19] == 0x20 && datagram.local.ip() == addr(2) {
                if !right {
                    nonce[0] ^= 1;
                }
                let spi = IkeSpi(bytes[..8].try_into().expect("eight bytes"));
                let data = [gateway, &nonce].concat();
                datagram.datagram = init::message(IkeSpis::new(spi, IkeSpi::ZERO), true, |chain| {
                    chain.notify(wire::ike::ProtocolId::NONE, &[], NotifyType::REDIRECT, &data);
                });
            }
            Delivery::After(Duration::from_millis(5))
        });
        initiate(&mut net);
        net.run(10 * SECOND);
        assert_eq!(net.hosts[2].up().len(), usize::from(right), "{}", net.hosts[0].log(Level::Trace));
        assert_eq!(net.hosts[0].command(1).is_some_and(Result::is_ok), right);
    }
}

#[test]
fn a_flood_of_strangers_leaves_room_for_an_honest_initiator() {
    let mut net = pair(36, |host, connection| {
        if host == 1 {
            connection.remote_addrs = Vec::new();
        }
    });
    // The initiator's request, from many addresses and with many SPIs.
    let seen = record(&mut net);
    initiate(&mut net);
    net.pump();
    let request = seen.borrow()[0].clone();
    let now = net.now;
    let before = net.hosts[1].sent.1;
    for number in 0..20_000u32 {
        let mut bytes = request.datagram.clone();
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        let from = std::net::Ipv4Addr::from(0xc633_0000 + number % 5000);
        net.hosts[1].endpoint.handle_datagram(now, request.remote, (from, 500).into(), &bytes);
        while let Some(output) = net.hosts[1].endpoint.poll() {
            if let Some(sent) = net.hosts[1].take(now, output) {
                assert!(sent.datagram.len() <= bytes.len() + 60);
            }
        }
    }
    assert!(net.hosts[1].sent.1 > before);
    assert_eq!(net.hosts[1].endpoint.half_open_count(), 30, "the rest were asked for a cookie");
    net.run(2 * SECOND);
    check_up(&net);
    net.run(60 * SECOND);
    assert_eq!((net.hosts[1].endpoint.half_open_count(), net.hosts[1].endpoint.ike_sa_count()), (0, 1));
}

#[test]
fn a_public_value_without_a_secret_is_not_answered() {
    let mut net = pair(39, |_, connection| {
        connection.proposals = vec![IkeProposal::parse("aes128gcm16-prfsha256-x25519").expect("a proposal")];
    });
    let seen = record(&mut net);
    initiate(&mut net);
    net.pump();
    let mut request = seen.borrow()[0].clone();
    // The data of the KE payload, after its header and the group.
    let (mut kind, mut at) = (request.datagram[16], Header::LEN);
    while kind != PayloadType::KE.0 {
        kind = request.datagram[at];
        at += usize::from(u16::from_be_bytes([request.datagram[at + 2], request.datagram[at + 3]]));
    }
    request.datagram[at + 8..at + 40].fill(0);
    request.datagram[0] ^= 1;
    let before = net.hosts[1].sent.1;
    net.hosts[1].endpoint.handle_datagram(net.now, request.remote, request.local, &request.datagram);
    while let Some(output) = net.hosts[1].endpoint.poll() {
        net.hosts[1].take(net.now, output);
    }
    assert_eq!(net.hosts[1].sent.1, before);
    assert_eq!((net.hosts[1].count("ike_init_invalid"), net.hosts[1].endpoint.half_open_count()), (1, 0));
}

#[test]
fn one_address_has_few_half_open_ike_sas() {
    let mut net = pair(37, |_, _| ());
    let seen = record(&mut net);
    initiate(&mut net);
    net.pump();
    let request = seen.borrow()[0].clone();
    for number in 0..100u32 {
        let mut copy = request.clone();
        copy.datagram[..4].copy_from_slice(&number.to_be_bytes());
        net.inject(copy.clone());
        // The same SPI with another nonce is another beginning, not one more.
        *copy.datagram.last_mut().expect("bytes") ^= 1;
        net.inject(copy);
    }
    net.run(Duration::from_millis(1));
    assert_eq!(net.hosts[1].endpoint.half_open_count(), 3);
    assert_eq!(net.hosts[1].endpoint.ike_sa_count(), 3);
}

#[test]
fn unknown_spis_and_versions_get_few_answers() {
    let mut net = pair(38, |_, _| ());
    let (to, from) = (port_500(2), port_500(1));
    let mut send = |exchange, flags, version: u8, len: usize| {
        let mut bytes = vec![1; 16];
        bytes.extend([46, version, exchange, flags, 0, 0, 0, 9]);
        bytes.extend((len as u32).to_be_bytes());
        bytes.resize(len, 0);
        let now = net.now;
        let before = net.hosts[1].sent;
        net.hosts[1].endpoint.handle_datagram(now, to, from, &bytes);
        while let Some(output) = net.hosts[1].endpoint.poll() {
            net.hosts[1].take(now, output);
        }
        (net.hosts[1].sent.0 - before.0, net.hosts[1].sent.1 - before.1)
    };
    assert_eq!(send(37, 0x08, 0x20, 80), (1, 36));
    assert_eq!(send(37, 0x28, 0x20, 80), (0, 0), "never to a response");
    assert_eq!(send(37, 0x08, 0x20, 30), (0, 0), "never more than was sent");
    assert_eq!(send(34, 0x08, 0x30, 80), (1, 36));
    assert_eq!(send(34, 0x28, 0x30, 80), (0, 0));
    let answers: usize = (0..100).map(|_| send(37, 0x08, 0x20, 80).0).sum();
    assert!(answers <= 10);
}
