//! Clients and servers of each method run against each other, and against peers that violate the
//! protocol.

use std::sync::{Arc, OnceLock};

use ike::config::{Auth, AuthMethod, Connection, EapType};
use ike::identity::IdPattern;
use proptest::prelude::*;

use super::super::shared::{Shared, SharedKind};
use super::super::store::Origin;
use super::super::tests::{Entity, NOW, auth, connection, id, like, public_key, store};
use super::*;

/// Results of client and server, and the number of the last turn.
type Run = (Result<Option<Secret>, String>, Result<Option<Secret>, String>, usize);

struct Pair {
    client: (Conversations, Store),
    server: (Conversations, Store),
    connections: [Arc<Connection>; 2],
    /// Connections of the server to which the EAP identity may switch.
    alternatives: Vec<Arc<Connection>>,
    who: Identity,
}

fn eap(method: Option<EapType>) -> Auth {
    auth(AuthMethod::Eap(method))
}

/// Of a server that requests the EAP identity.
fn asking(method: Option<EapType>) -> Auth {
    Auth { eap_id: Some(IdPattern::Any), ..eap(method) }
}

fn secret(kind: SharedKind, owner: &str, secret: &[u8]) -> Shared {
    Shared::new(owner, kind, vec![like(owner)], Secret::from_slice(secret))
}

impl Pair {
    fn new(client: Store, server: Store, client_auth: Auth, server_auth: Auth) -> Self {
        let gateway = || Auth { id: like("moon.weir.test"), ..auth(public_key(&[])) };
        let connections = [connection(client_auth, gateway()), connection(gateway(), server_auth)].map(Arc::new);
        let who = id("carol@weir.test");
        Self {
            client: (Conversations::default(), client),
            server: (Conversations::default(), server),
            connections,
            alternatives: Vec::new(),
            who,
        }
    }

    /// With a password on both sides.
    fn password(client: Option<EapType>, server: Option<EapType>, theirs: &[u8], ours: &[u8]) -> Self {
        let (mut client_store, mut server_store) = (Store::default(), Store::default());
        client_store.add_shared(secret(SharedKind::Eap, "carol@weir.test", theirs), Origin::Vici);
        server_store.add_shared(secret(SharedKind::Eap, "carol@weir.test", ours), Origin::Vici);
        Self::new(client_store, server_store, eap(client), asking(server))
    }

    /// A server that requests no EAP identity.
    fn not_asking(mut self) -> Self {
        let auth = &mut Arc::make_mut(&mut self.connections[1]).remote[0];
        auth.eap_id = None;
        self
    }

    fn step(&mut self, client: bool, packet: &[u8]) -> EapResult {
        let step = EapStep {
            connection: Arc::clone(&self.connections[usize::from(!client)]),
            alternatives: if client { Vec::new() } else { self.alternatives.clone() },
            round: 0,
            client,
            conversation: 1,
            client_id: self.who.clone(),
            packet: packet.to_vec(),
        };
        let (conversations, store) = if client { &mut self.client } else { &mut self.server };
        conversations.step(store, &step, NOW)
    }

    /// Runs to the end: what each side has at last, and how many packets went to the client.
    fn run(&mut self, mut change: impl FnMut(usize, bool, &mut Vec<u8>)) -> Run {
        let mut packet = Vec::new();
        for turn in 0..300 {
            let (mut request, verdict) = match self.step(false, &packet) {
                EapResult::Packet(request) => (request, None),
                EapResult::Switch(connection, request) => {
                    self.connections[1] = connection;
                    (request, None)
                }
                EapResult::Success { packet, msk, .. } => (packet, Some(Ok(msk))),
                EapResult::Failure(packet, why) => (packet, Some(Err(why.0))),
            };
            change(turn, true, &mut request);
            let answer = self.step(true, &request);
            packet = match (answer, verdict) {
                (EapResult::Packet(response), None) => response,
                (EapResult::Success { msk, .. }, Some(verdict)) => return (Ok(msk), verdict, turn),
                (EapResult::Failure(_, why), verdict) => {
                    return (Err(why.0), verdict.unwrap_or(Err("no verdict".into())), turn);
                }
                (EapResult::Switch(..), _) => panic!("a client switches no connection"),
                (EapResult::Packet(_), Some(verdict)) => return (Err("no verdict".into()), verdict, turn),
                (EapResult::Success { msk, .. }, None) => return (Ok(msk), Err("no verdict".into()), turn),
            };
            change(turn, false, &mut packet);
        }
        panic!("no end");
    }
}

fn same(result: &Run) -> bool {
    matches!(result, (Ok(Some(a)), Ok(Some(b)), _) if a == b && a.len() == 64)
}

fn why(result: Result<Option<Secret>, String>) -> String {
    result.map(drop).expect_err("a failure")
}

#[test]
fn passwords() {
    for (client, server) in [
        (Some(EapType::MsChapV2), Some(EapType::MsChapV2)),
        (None, None),
        (None, Some(EapType::MsChapV2)),
        (Some(EapType::MsChapV2), None),
    ] {
        assert!(same(&Pair::password(client, server, b"Passw\xc3\xb6rd", b"Passw\xc3\xb6rd").run(|_, _, _| {})));
        let (client, server, _) = Pair::password(client, server, b"one", b"two").run(|_, _, _| {});
        assert!(why(client).contains("rejected the password"));
        assert!(server.is_err());
    }
    // The hash instead of the password.
    let mut pair = Pair::password(None, None, b"clientPass", b"unused");
    pair.server.1.clear(Origin::Vici);
    let hash = [0x44, 0xeb, 0xba, 0x8d, 0x53, 0x12, 0xb8, 0xd6, 0x11, 0x47, 0x44, 0x11, 0xf5, 0x69, 0x89, 0xae];
    pair.server.1.add_shared(secret(SharedKind::Ntlm, "carol@weir.test", &hash), Origin::Vici);
    assert!(same(&pair.run(|_, _, _| {})));
    let md5 = || Some(EapType::Md5);
    let (client, server, _) = Pair::password(md5(), md5(), b"word", b"word").run(|_, _, _| {});
    assert!(matches!((client, server), (Ok(None), Ok(None))));
    let (_, server, _) = Pair::password(md5(), md5(), b"word", b"other").run(|_, _, _| {});
    assert!(why(server).contains("password is wrong"));
    // Methods that are not configured are refused.
    let (_, server, _) = Pair::password(md5(), Some(EapType::MsChapV2), b"word", b"word").run(|_, _, _| {});
    assert!(why(server).contains("none of the allowed methods"));
}

#[test]
fn nothing_succeeds_early_or_under_another_name() {
    // An EAP-Success in place of each packet of the server but the last.
    for method in [EapType::Md5, EapType::MsChapV2] {
        let last = Pair::password(Some(method), Some(method), b"word", b"word").run(|_, _, _| {}).2;
        for early in 0..last {
            let (client, _, _) =
                Pair::password(Some(method), Some(method), b"word", b"word").run(|turn, to_client, packet| {
                    if to_client && turn == early {
                        *packet = packet::success(packet[1]);
                    }
                });
            // MD5 has no proof of the server: after its answer the client should accept the server.
            assert!(client.is_err(), "{method:?} {early}");
        }
    }
    // The proof of the server is changed.
    let (client, _, _) = Pair::password(None, None, b"word", b"word").run(|turn, to_client, packet| {
        if to_client && turn == 2 {
            packet[12] ^= 1;
        }
    });
    assert!(why(client).contains("cannot verify the password"));
    // Another name inside MSCHAPv2 than in the EAP identity.
    let mut pair = Pair::password(None, None, b"word", b"word");
    pair.server.1.add_shared(secret(SharedKind::Eap, "alice@weir.test", b"other"), Origin::Vici);
    let mut last = 0;
    let (client, _, _) = pair.run(|turn, to_client, packet| {
        last = packet.get(1).copied().unwrap_or(last);
        if !to_client && turn == 0 {
            *packet = packet::emit(packet::RESPONSE, packet[1], packet::IDENTITY, b"alice@weir.test");
        }
    });
    assert!(why(client).contains("rejected the password"));
    let end = pair.step(false, &packet::emit(packet::RESPONSE, last, packet::MSCHAPV2, &[4]));
    assert!(
        matches!(end, EapResult::Failure(packet, why) if packet == packet::failure(last) && why.0.contains("differs from"))
    );
    // An EAP identity that the configuration does not want.
    let mut pair = Pair::password(None, None, b"word", b"word");
    let wanted = Auth { eap_id: Some(like("alice@weir.test")), ..eap(None) };
    pair.connections[1] = Arc::new(connection(auth(public_key(&[])), wanted));
    assert!(why(pair.run(|_, _, _| {}).1).contains("eap_id"));
    // A conversation that is over does not go on.
    let mut pair = Pair::password(None, None, b"word", b"word");
    assert!(same(&pair.run(|_, _, _| {})));
    let response = packet::emit(packet::RESPONSE, 0, packet::IDENTITY, b"carol@weir.test");
    assert!(matches!(pair.step(false, &response), EapResult::Failure(..)));
}

/// Result of a conversation: the client has the identity `claimed` and sends `named` in its
/// MSCHAPv2 Response.
fn run_with_names(claimed: &str, named: &str, password: &[u8], known: &[(&str, &[u8])]) -> Run {
    let mut client = Store::default();
    client.add_shared(secret(SharedKind::Eap, named, password), Origin::Vici);
    let mut server = Store::default();
    for (owner, word) in known {
        server.add_shared(secret(SharedKind::Eap, owner, word), Origin::Vici);
    }
    let mut pair = Pair::new(client, server, eap(Some(EapType::MsChapV2)), asking(Some(EapType::MsChapV2)));
    pair.who = id(named);
    pair.run(|turn, to_client, packet| {
        if !to_client && turn == 0 {
            *packet = packet::emit(packet::RESPONSE, packet[1], packet::IDENTITY, claimed.as_bytes());
        }
    })
}

#[test]
fn mschapv2_names_are_of_one_domain() {
    let known: &[(&str, &[u8])] = &[("CORP\\alice", b"corp"), ("EVIL\\alice", b"evil"), ("bob", b"word")];
    // Another domain's password does not prove this domain's user.
    for (claimed, named, password) in [
        ("CORP\\alice", "EVIL\\alice", &b"evil"[..]),
        ("CORP\\alice", "alice", b"evil"),
        ("CORP\\alice", "EVIL\\alice", b"corp"),
        ("bob", "EVIL\\alice", b"evil"),
    ] {
        let result = run_with_names(claimed, named, password, known);
        assert!(!same(&result) && result.0.is_err(), "{claimed} {named}");
    }
    // One domain, without regard to case, and left out in one of the two places or in the file.
    for (claimed, named, password) in [
        ("CORP\\alice", "corp\\Alice", &b"corp"[..]),
        ("CORP\\alice", "alice", b"corp"),
        ("CORP\\bob", "bob", b"word"),
        ("bob", "CORP\\bob", b"word"),
        ("CORP\\bob", "CORP\\bob", b"word"),
    ] {
        assert!(same(&run_with_names(claimed, named, password, known)), "{claimed} {named}");
    }
}

#[test]
fn the_method_begins_at_once_where_no_eap_id_is_set() {
    for method in [EapType::MsChapV2, EapType::Md5] {
        let mut kinds = Vec::new();
        let mut pair = Pair::password(Some(method), Some(method), b"word", b"word").not_asking();
        let result = pair.run(|_, to_client, packet| kinds.extend(packet.get(4).filter(|_| to_client).copied()));
        assert!(result.0.is_ok() && result.1.is_ok());
        assert!(!kinds.contains(&packet::IDENTITY) && kinds[0] == number(method), "{kinds:?}");
    }
    let first = Pair::password(None, None, b"word", b"word").step(false, &[]);
    assert!(matches!(first, EapResult::Packet(packet) if packet[4] == packet::IDENTITY));
    // A client that refuses to answer the request, and one with an empty answer, which is the one
    // of IDi.
    let mut pair = Pair::password(None, None, b"word", b"word");
    let refused = pair.run(|turn, to_client, packet| {
        if turn == 0 && !to_client {
            *packet = packet::emit(packet::RESPONSE, packet[1], packet::NAK, &[packet::MSCHAPV2]);
        }
    });
    assert!(why(refused.1).contains("remove 'remote.eap_id'"));
    let empty = Pair::password(None, None, b"word", b"word").run(|turn, to_client, packet| {
        if turn == 0 && !to_client {
            *packet = packet::emit(packet::RESPONSE, packet[1], packet::IDENTITY, b"");
        }
    });
    assert!(same(&empty));
}

#[test]
fn the_name_of_the_response_counts_where_no_identity_was_requested() {
    let run = |idi: &str, named: &str, pattern: &str| {
        let mut pair = Pair::password(None, Some(EapType::MsChapV2), b"word", b"word").not_asking();
        Arc::make_mut(&mut pair.connections[1]).remote[0].id = like(pattern);
        Arc::make_mut(&mut pair.connections[0]).local[0].eap_id = Some(like(named));
        for store in [&mut pair.client.1, &mut pair.server.1] {
            store.add_shared(secret(SharedKind::Eap, "dave", b"dave's"), Origin::Vici);
        }
        pair.who = id(idi);
        let (mut packet, mut last) = (Vec::new(), None);
        for _ in 0..8 {
            packet = match pair.step(false, &packet) {
                EapResult::Packet(packet) => packet,
                EapResult::Success { identity, .. } => return identity.ok_or_else(|| "no identity".to_owned()),
                EapResult::Failure(_, why) => return Err(why.0),
                EapResult::Switch(..) => panic!("there is no alternative"),
            };
            packet = match pair.step(true, &packet) {
                EapResult::Packet(packet) => packet,
                // Refused: acknowledges, so that the server comes to its verdict.
                _ => packet::emit(packet::RESPONSE, packet[1], packet::MSCHAPV2, &[4]),
            };
            assert_ne!(last.replace(packet.clone()), Some(packet.clone()));
        }
        Err("no end".into())
    };
    // Windows and others send an address as IDi; the user name comes in the Response.
    assert_eq!(run("192.0.2.7", "dave", "%any"), Ok(id("dave")));
    assert_eq!(run("carol@weir.test", "carol@weir.test", "%any"), Ok(id("carol@weir.test")));
    assert_eq!(run("carol@weir.test", "dave", "%any"), Ok(id("dave")));
    // A connection for carol must refuse a client that sends carol as IDi and proves another user's
    // password.
    assert!(run("carol@weir.test", "dave", "carol@weir.test").unwrap_err().contains("differs from IDi"));
    assert!(run("carol@weir.test", "dave", "*@weir.test").unwrap_err().contains("remote.eap_id"));
    assert_eq!(run("carol@weir.test", "carol@weir.test", "*@weir.test"), Ok(id("carol@weir.test")));
}

#[test]
fn the_eap_identity_chooses_the_connection() {
    let with = |pattern: Option<&str>, method| {
        let remote = Auth { eap_id: pattern.map(like), ..eap(method) };
        Arc::new(connection(auth(public_key(&[])), remote))
    };
    let run = |first: Arc<Connection>, others: &[Arc<Connection>]| {
        let mut pair = Pair::password(None, None, b"word", b"word");
        (pair.connections[1], pair.alternatives) = (first, others.to_vec());
        let result = pair.run(|_, _, _| {});
        (result, Arc::clone(&pair.connections[1]))
    };
    let (alice, carol) = (with(Some("alice@weir.test"), None), with(Some("carol@weir.test"), Some(EapType::MsChapV2)));
    let (any, pattern) = (with(Some("%any"), Some(EapType::MsChapV2)), with(Some("*@weir.test"), None));
    let silent = with(None, None);
    for (first, others, chosen) in [
        (&alice, &[silent.clone(), carol.clone(), any.clone()][..], &carol),
        (&alice, &[any.clone(), carol.clone()][..], &any),
        (&alice, &[pattern.clone()][..], &pattern),
        (&pattern, &[carol.clone()][..], &pattern),
    ] {
        let (result, last) = run(first.clone(), others);
        assert!(same(&result) && Arc::ptr_eq(&last, chosen));
    }
    // A connection that requests no identity is no alternative.
    assert!(why(run(alice.clone(), &[silent]).0.1).contains("remote.eap_id"));
    // The method of the connection that was switched to is the one that counts.
    let tls_only = with(Some("carol@weir.test"), Some(EapType::Tls));
    assert!(run(alice, &[tls_only]).0.1.is_err());
}

#[test]
fn a_client_that_leaves_the_method_open_answers_md5() {
    let pair = || Pair::password(None, Some(EapType::Md5), b"word", b"word");
    let result = pair().run(|_, _, _| {});
    assert!(matches!((result.0, result.1), (Ok(None), Ok(None))));
    // Reasons of an EAP-Failure: the methods differ; the identity is refused; anything else.
    let failed = |mut pair: Pair, at: usize| {
        why(pair
            .run(|turn, to_client, packet| {
                if to_client && turn == at {
                    *packet = packet::failure(packet[1]);
                }
            })
            .0)
    };
    let other = Pair::password(Some(EapType::MsChapV2), Some(EapType::Md5), b"word", b"word");
    let text = failed(other, 2);
    assert!(text.contains("offers eap-md5") && text.contains("eap-mschapv2"), "{text}");
    assert!(failed(pair(), 1).contains("rejected the EAP identity 'carol@weir.test'"));
    assert!(failed(pair(), 2).contains("rejected this client"));
}

#[test]
fn mschapv2_ignores_a_wrong_ms_length() {
    for delta in [1u8, 0xff] {
        // The lengths of the Challenge and of the Success of a server, and of the Response of a
        // client.
        let result = Pair::password(None, None, b"word", b"word").run(|_, _, packet| {
            if packet.len() > 9 && packet[4] == packet::MSCHAPV2 {
                packet[8] = packet[8].wrapping_add(delta);
            }
        });
        assert!(same(&result), "{:?} {:?}", result.0.err(), result.1.err());
    }
}

#[test]
fn conversations_end_and_are_bounded() {
    let mut pair = Pair::password(None, None, b"word", b"word");
    let step = |conversation, packet: Vec<u8>, pair: &mut Pair, now| {
        let connection = Arc::clone(&pair.connections[1]);
        let client_id = pair.who.clone();
        let alternatives = Vec::new();
        let step = EapStep { connection, alternatives, round: 0, client: false, conversation, client_id, packet };
        pair.server.0.step(&pair.server.1, &step, now)
    };
    for conversation in 0..MAX_CONVERSATIONS as u64 {
        assert!(matches!(step(conversation, Vec::new(), &mut pair, NOW), EapResult::Packet(_)));
    }
    assert!(
        matches!(step(9999, Vec::new(), &mut pair, NOW), EapResult::Failure(_, why) if why.0.contains("512 others"))
    );
    assert!(matches!(step(9999, Vec::new(), &mut pair, NOW + MAX_AGE), EapResult::Packet(_)));
    assert_eq!(pair.server.0.0.len(), 1);
}

/// Both sides with certificates of one CA; `big` makes them larger than a fragment.
fn tls(big: bool) -> Pair {
    // Made once: RSA keys take their time.
    static MADE: [OnceLock<[Entity; 4]>; 2] = [OnceLock::new(), OnceLock::new()];
    let [root, between, carol, moon] = MADE[usize::from(big)].get_or_init(|| authority_and_peers(big));
    let (client, server) = (eap(Some(EapType::Tls)), asking(Some(EapType::Tls)));
    Pair::new(store(&[root], &[carol], &[between]), store(&[root], &[moon], &[between]), client, server)
}

fn authority_and_peers(big: bool) -> [Entity; 4] {
    let root = Entity::ca("Root", None);
    let kind = if big { &rcgen::PKCS_RSA_SHA256 } else { &rcgen::PKCS_ECDSA_P256_SHA256 };
    let between = Entity::make(super::super::tests::ca_params("Between"), Some(&root), kind);
    let make = |name: &str, san: &str| Entity::make(super::super::tests::params(name, &[san]), Some(&between), kind);
    let (carol, moon) = (make("carol", "carol@weir.test"), make("moon", "moon.weir.test"));
    [root, between, carol, moon]
}

#[test]
fn certificates_in_fragments() {
    for big in [false, true] {
        let result = tls(big).run(|_, _, packet| assert!(packet.len() <= 1100));
        assert!(same(&result), "{:?} {:?}", result.0.err(), result.1.err());
        assert!(!big || result.2 > 6, "{}", result.2);
    }
    // Another name than that of the certificate.
    let mut pair = tls(false);
    let result = pair.run(|turn, to_client, packet| {
        if !to_client && turn == 0 {
            *packet = packet::emit(packet::RESPONSE, packet[1], packet::IDENTITY, b"alice@weir.test");
        }
    });
    // The IKE identity is still carol's, and it counts where any EAP identity is allowed.
    assert!(same(&result));
    let mut pair = tls(false);
    Arc::make_mut(&mut pair.connections[1]).remote[0].eap_id = Some(like("alice@weir.test"));
    let result = pair.run(|turn, to_client, packet| {
        if !to_client && turn == 0 {
            *packet = packet::emit(packet::RESPONSE, packet[1], packet::IDENTITY, b"alice@weir.test");
        }
    });
    assert!(result.0.is_err() && why(result.1).contains("does not belong to the claimed identity 'alice@weir.test'"));
    pair.who = id("alice@weir.test");
    assert!(why(pair.run(|_, _, _| {}).1).contains("does not belong to"));
    // A server of the same CA that is not the gateway.
    let mut pair = tls(false);
    let other = Auth { id: like("sun.weir.test"), ..auth(public_key(&[])) };
    pair.connections[0] = Arc::new(connection(eap(Some(EapType::Tls)), other));
    assert!(why(pair.run(|_, _, _| {}).0).contains("does not belong to 'sun.weir.test'"));
    // A client of another CA; a client without a certificate.
    let mut pair = tls(false);
    let [root, between, carol, _] = authority_and_peers(false);
    pair.client.1 = store(&[&root], &[&carol], &[&between]);
    assert!(why(pair.run(|_, _, _| {}).0).contains("no trusted CA"));
    let mut pair = tls(false);
    pair.client.1 = Store::default();
    let result = pair.run(|_, _, _| {});
    assert!(result.0.is_err() || result.1.is_err());
}

#[test]
fn tls_without_a_method_of_passwords() {
    let mut pair = tls(false);
    pair.connections[1] = Arc::new(connection(auth(public_key(&[])), asking(None)));
    assert!(same(&pair.run(|_, _, _| {})));
    assert!(same(&tls(false).not_asking().run(|_, _, _| {})));
}

#[test]
fn tls_survives_no_tampering() {
    let last = tls(true).run(|_, _, _| {}).2;
    for at in 1..=last {
        for to in [true, false] {
            // Cut, swallowed, turned into a success, and with a bit changed.
            for kind in 0..4 {
                let result = tls(at % 3 == 0).run(|turn, to_client, packet| {
                    if turn != at || to_client != to || packet.len() < 6 {
                        return;
                    }
                    match kind {
                        0 => {
                            *packet =
                                packet::emit(packet[0], packet[1], packet[4], &packet[5..5 + (packet.len() - 5) / 2])
                        }
                        1 => *packet = packet::emit(packet[0], packet[1], packet[4], &[0]),
                        2 => *packet = packet::success(packet[1]),
                        _ => {
                            let middle = packet.len() / 2;
                            packet[middle] ^= 0x10;
                        }
                    }
                });
                let changed = !matches!((&result.0, &result.1), (Ok(Some(a)), Ok(Some(b))) if a == b);
                // Where nothing was left to change the two still agree; never does one side alone
                // get a key that the other has not.
                if changed {
                    assert!(!(result.0.is_ok() && result.1.is_ok()), "{at} {to} {kind}");
                }
            }
        }
    }
}

#[test]
fn fragments_have_rules() {
    use tls::{Pipe, Received};
    let take = |parts: &[&[u8]]| {
        let mut pipe = Pipe::default();
        parts.iter().map(|part| pipe.receive(part)).last().expect("a part").map_err(|why| why.to_string())
    };
    assert_eq!(take(&[&[0]]), Ok(Received::Ack));
    assert_eq!(take(&[&[0x20]]), Ok(Received::Start));
    assert_eq!(take(&[&[0xc0, 0, 0, 0, 3, 1, 2], &[0, 3]]), Ok(Received::Whole(vec![1, 2, 3])));
    assert_eq!(take(&[&[0x40, 1], &[0x40, 2], &[0, 3]]), Ok(Received::Whole(vec![1, 2, 3])));
    for bad in [
        &[&[][..]][..],
        &[&[0x20, 1]],
        &[&[0x80, 0, 0]],
        &[&[0x80, 0, 2, 0, 0, 1]],
        &[&[0xc0, 0, 0, 0, 3, 1, 2], &[0, 3, 4]],
        &[&[0xc0, 0, 0, 0, 3, 1], &[0, 3]],
        &[&[0xc0, 0, 0, 0, 3, 1], &[0xc0, 0, 0, 0, 4, 3]],
        &[&[0x40]],
    ] {
        assert!(take(bad).is_err(), "{bad:?}");
    }
}

proptest! {
    #[test]
    fn hostile_packets(bytes in prop::collection::vec(any::<u8>(), 0..80), kind in prop::sample::select(vec![1u8, 2, 3, 4, 13, 26, 254]), code in 0u8..6, at in 0usize..4) {
        parse_anything(&bytes);
        let mut pair = Pair::password(None, None, b"word", b"word");
        for client in [true, false] {
            let result = pair.run(|turn, to_client, packet| {
                if turn == at && to_client == client {
                    *packet = packet::emit(code, packet.get(1).copied().unwrap_or(0), kind, &bytes);
                }
            });
            prop_assert!(!(result.0.is_ok() && result.1.is_ok()) || same(&result));
        }
        super::super::parse_anything(&bytes);
    }
}
