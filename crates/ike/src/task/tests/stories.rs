//! Stories of single tasks.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crypto::EncAlg;
use crypto::ike::KeMethod;
use crypto::kdf::SubSaKdf;
use proptest::prelude::*;
use wire::ike::{Chain, ExchangeType, NotifyType, PayloadType, Payloads, ProtocolId};

use super::pair::{A, B, InFlight, Pair, child_config, connection, esp, ts};
use super::{REST, delete_child, delete_ike, net, one_child, rekey_child, rekey_ike};
use crate::child::{CHILDREN_MAX, ChildState, Parts};
use crate::config::*;
use crate::exchange::{Inner, Plain};
use crate::output::{ChildId, CommandError, Event};
use crate::proposal::{ChildProposal, ChildProtocol, SequenceNumbers};
use crate::sa::{ChildRequest, Ending, Role};
use crate::task::{ATTEMPTS_MAX, Task, counters};

fn ke(name: &str) -> KeMethod {
    KeMethod::from_name(name).expect("in the table")
}

fn with_child(child: ChildConfig) -> Connection {
    connection(vec![child])
}

fn proposals(proposals: Vec<ChildProposal>) -> ChildConfig {
    ChildConfig { proposals, ..net() }
}

fn request(config: &ChildConfig) -> ChildRequest {
    ChildRequest { config: std::sync::Arc::new(config.clone()), packet: None, cpu: None, command: Some(7) }
}

/// Initiates `config` from A; returns the result of the command.
fn create(pair: &mut Pair, config: &ChildConfig) -> Result<(), CommandError> {
    let request = request(config);
    pair.act(A, |ctx, sa| sa.request_child(ctx, request));
    pair.run(REST);
    result(pair)
}

fn result(pair: &Pair) -> Result<(), CommandError> {
    let done = pair.hosts[A].events.iter().rev().find_map(|event| match event {
        Event::CommandDone(7, result) => Some(result.clone()),
        _ => None,
    });
    done.expect("the command has come to its end")
}

fn logged(pair: &Pair, host: usize, words: &str) -> bool {
    pair.hosts[host].events.iter().any(|event| matches!(event, Event::Log { text, .. } if text.contains(words)))
}

/// A pair of connections with a second section without Child SA: `a` at A, `b` at B.
fn pair_with_new(a: &ChildConfig, b: &ChildConfig) -> Pair {
    let mut pair = Pair::new(1, one_child());
    for (host, config) in [(A, a), (B, b)] {
        pair.act(host, |_, sa| {
            let mut connection = (*sa.connection).clone();
            connection.children.push(std::sync::Arc::new(config.clone()));
            sa.connection = std::sync::Arc::new(connection);
        });
    }
    pair
}

fn mirror(config: &ChildConfig) -> ChildConfig {
    ChildConfig { local_ts: config.remote_ts.clone(), remote_ts: config.local_ts.clone(), ..config.clone() }
}

fn second() -> ChildConfig {
    child_config("second", "10.3.0.0/16", "10.4.0.0/16")
}

#[test]
fn a_child_is_created_and_both_have_its_keys() {
    let mut pair = pair_with_new(&second(), &mirror(&second()));
    assert_eq!(create(&mut pair, &second()), Ok(()));
    pair.check_at_rest(2);
    assert_eq!(create(&mut pair, &second()), Ok(()));
    pair.check_at_rest(2);
}

#[test]
fn the_key_exchange_that_the_responder_wants_is_used() {
    let ours = ChildProposal { ke: vec![Some(ke("x25519")), Some(ke("ecp256"))], ..esp() };
    let theirs = ChildProposal { ke: vec![Some(ke("ecp256"))], ..esp() };
    let (a, b) =
        (ChildConfig { proposals: vec![ours], ..second() }, ChildConfig { proposals: vec![theirs], ..second() });
    let mut pair = pair_with_new(&a, &mirror(&b));
    assert_eq!(create(&mut pair, &a), Ok(()));
    pair.check_at_rest(2);
    assert!(logged(&pair, B, "INVALID_KE_PAYLOAD"));
    assert!(pair.hosts[A].plane.values().any(|sa| sa.suite.ke == Some(ke("ecp256"))));
}

#[test]
fn additional_key_exchanges_make_the_keys_of_children_and_ike_sas() {
    let mut additional: [Vec<Option<KeMethod>>; 7] = Default::default();
    additional[0] = vec![Some(ke("mlkem768"))];
    additional[1] = vec![Some(ke("ecp256"))];
    let proposal = ChildProposal { ke: vec![Some(ke("x25519"))], additional: additional.clone(), ..esp() };
    let mut connection = with_child(proposals(vec![proposal]));
    connection.proposals[0].additional = additional;
    for losses in 0..30 {
        let mut pair = Pair::new(losses, connection.clone());
        for step in [rekey_child, rekey_ike] {
            pair.act(A, step);
            let mut count = 0;
            while let Some(flying) = pair.wire.first().cloned() {
                count += 1;
                if count == losses {
                    pair.wire.remove(0);
                } else {
                    assert!(flying.bytes.len() < 1300, "fragments");
                    pair.deliver(0);
                }
            }
            pair.run(REST);
        }
        pair.check_at_rest(1);
        let sa = pair.hosts[A].live().expect("is there");
        assert_eq!((sa.suite.additional.len(), sa.children[0].suite.additional.len()), (2, 2));
        assert_eq!(pair.hosts[B].count(counters::IKE_REKEYED), 1);
    }
}

#[test]
fn additional_key_exchanges_collide_as_others_do() {
    let mut additional: [Vec<Option<KeMethod>>; 7] = Default::default();
    additional[0] = vec![Some(ke("ecp256"))];
    let proposal = ChildProposal { ke: vec![Some(ke("x25519"))], additional: additional.clone(), ..esp() };
    let mut connection = with_child(proposals(vec![proposal]));
    connection.proposals[0].additional = additional;
    for start in [rekey_child, rekey_ike] {
        for seed in 0..2 {
            let make = || Pair::new(seed, connection.clone());
            super::explore(make, (start, start), 0, |pair| pair.check_at_rest(1));
        }
    }
}

#[test]
fn a_peer_without_eesp_takes_esp_and_one_with_it_says_what_it_accepts() {
    let eesp = ChildProposal {
        protocol: ChildProtocol::Eesp,
        sn: vec![SequenceNumbers::Bits64],
        sskdf: vec![Some(SubSaKdf::HkdfSha256), None],
        ..esp()
    };
    let both = ChildConfig {
        proposals: vec![eesp, esp()],
        eesp_max_sub_sa_id: Some(7),
        eesp_max_crypt_offset: Some(16),
        ..second()
    };
    let mut pair = pair_with_new(&both, &mirror(&ChildConfig { proposals: vec![esp()], ..second() }));
    assert_eq!(create(&mut pair, &both), Ok(()));
    pair.check_at_rest(2);
    assert!(pair.hosts[A].plane.values().all(|sa| sa.suite.protocol == ChildProtocol::Esp));

    let limits = ChildConfig { eesp_max_sub_sa_id: Some(3), eesp_max_crypt_offset: None, ..both.clone() };
    let mut pair = pair_with_new(&both, &mirror(&limits));
    assert_eq!(create(&mut pair, &both), Ok(()));
    let rekeyed = |pair: &mut Pair| {
        pair.act(B, |ctx, sa| {
            let id = sa.children[1].id;
            assert!(sa.rekey_child(ctx, id, None));
        });
        pair.run(REST);
    };
    for _ in 0..2 {
        pair.check_at_rest(2);
        for (host, limits) in [(A, (Some(3), None)), (B, (Some(7), Some(16)))] {
            let sa =
                pair.hosts[host].plane.values().find(|sa| sa.suite.protocol == ChildProtocol::Eesp).expect("is there");
            assert_eq!((sa.limits, sa.suite.sskdf), (limits, Some(SubSaKdf::HkdfSha256)));
        }
        rekeyed(&mut pair);
    }
}

#[test]
fn selectors_are_narrowed_and_what_does_not_fit_is_refused() {
    let (wide, narrow) =
        (child_config("wide", "10.3.0.0/16", "0.0.0.0/0"), child_config("narrow", "10.4.1.0/24", "10.3.2.0/24"));
    let mut pair = pair_with_new(&wide, &narrow);
    assert_eq!(create(&mut pair, &wide), Ok(()));
    let sa = pair.hosts[A].plane.values().last().expect("is there");
    assert_eq!(sa.ts, (vec![ts("10.3.2.0/24")], vec![ts("10.4.1.0/24")]));

    let foreign = child_config("foreign", "10.8.0.0/16", "10.9.0.0/16");
    let mut pair = pair_with_new(&foreign, &narrow);
    let refused = create(&mut pair, &foreign).expect_err("it is not configured there");
    let answers = "child 'foreign' failed: the peer answers TS_UNACCEPTABLE to 10.8.0.0/16 === 10.9.0.0/16:";
    assert!(refused.as_str().starts_with(answers), "{refused}");
    pair.check_at_rest(1);

    let strong = ChildProposal { enc: vec![EncAlg::by_name("aes256gcm16").expect("in the table")], ..esp() };
    let other = ChildConfig { proposals: vec![strong], ..second() };
    let mut pair = pair_with_new(&other, &mirror(&second()));
    assert_eq!(
        create(&mut pair, &other),
        Err(CommandError::new("child 'second' failed: the peer answers NO_PROPOSAL_CHOSEN"))
    );
    assert!(logged(&pair, B, "no proposal in common"));
    pair.check_at_rest(1);
}

#[test]
fn transport_mode_crosses_a_nat() {
    let transport = |name| ChildConfig { mode: ChildMode::Transport, ..child_config(name, "dynamic", "dynamic") };
    let mut pair = pair_with_new(&transport("t"), &transport("t"));
    let public: IpAddr = "198.51.100.9".parse().expect("an address");
    // A has a NAT: it writes its private address, B sees another.
    pair.act(A, |_, sa| {
        sa.nat = (true, false);
        sa.path.local.set_ip("10.9.9.9".parse().expect("an address"));
    });
    pair.act(B, |_, sa| {
        sa.nat = (false, true);
        sa.path.remote.set_ip(public);
        sa.peer.mobike = true;
    });
    assert_eq!(create(&mut pair, &transport("t")), Ok(()));
    let of = |host: usize| pair.hosts[host].plane.values().last().expect("is there");
    assert_eq!((of(A).mode, of(B).mode), (ChildMode::Transport, ChildMode::Transport));
    assert_eq!(of(A).ts, (vec![ts("10.9.9.9/32")], vec![ts("192.0.2.2/32")]));
    assert_eq!(of(B).ts, (vec![ts("192.0.2.2/32")], vec![ts("198.51.100.9/32")]));
    // Each has the addresses with which the other computes the checksums of what it sends: source,
    // destination.
    let addr = |text: &str| text.parse::<IpAddr>().expect("an address");
    assert_eq!(of(A).original, Some((addr("192.0.2.2"), public)));
    assert_eq!(of(B).original, Some((addr("10.9.9.9"), addr("192.0.2.2"))));
    pair.act(B, |ctx, sa| assert!(sa.rekey_child(ctx, sa.children.last().expect("is there").id, None)));
    pair.run(REST);
    let last = |host: usize| pair.hosts[host].plane.values().last().expect("is there");
    assert_eq!(last(A).original, Some((addr("192.0.2.2"), public)), "a rekeying says the same");
    assert_eq!(last(B).original, Some((addr("10.9.9.9"), addr("192.0.2.2"))));

    let mut pair = pair_with_new(&transport("t"), &ChildConfig { mode: ChildMode::Tunnel, ..transport("t") });
    assert_eq!(create(&mut pair, &transport("t")), Ok(()));
    assert!(pair.hosts.iter().all(|host| host.plane.values().last().expect("is there").mode == ChildMode::Tunnel));
}

/// A section of mode `iptfs`.
fn iptfs(set: impl FnOnce(&mut IptfsConfig)) -> ChildConfig {
    let mut config = ChildConfig { mode: ChildMode::Iptfs, ..second() };
    set(&mut config.iptfs);
    config
}

#[test]
fn iptfs_is_agreed_and_kept_by_rekeyings_of_either_end() {
    let (ours, theirs) = (iptfs(|_| ()), iptfs(|iptfs| iptfs.accept_fragments = false));
    let mut pair = pair_with_new(&ours, &mirror(&theirs));
    assert_eq!(create(&mut pair, &ours), Ok(()));
    for host in [A, B, A] {
        for (host, whole_only) in [(A, true), (B, false)] {
            let sa = pair.hosts[host].plane.values().last().expect("is there");
            assert_eq!((sa.mode, sa.whole_only), (ChildMode::Iptfs, whole_only));
        }
        pair.act(host, |ctx, sa| assert!(sa.rekey_child(ctx, sa.children[1].id, None)));
        pair.run(REST);
        pair.check_at_rest(2);
    }
}

#[test]
fn iptfs_announces_no_crypt_offset() {
    let eesp = ChildProposal {
        protocol: ChildProtocol::Eesp,
        sn: vec![SequenceNumbers::Bits64],
        sskdf: vec![Some(SubSaKdf::HkdfSha256)],
        ..esp()
    };
    let config = ChildConfig {
        proposals: vec![eesp],
        eesp_max_sub_sa_id: Some(7),
        eesp_max_crypt_offset: Some(16),
        ..iptfs(|_| ())
    };
    let mut pair = pair_with_new(&config, &mirror(&config));
    assert_eq!(create(&mut pair, &config), Ok(()));
    for host in [A, B] {
        let sa = pair.hosts[host].plane.values().last().expect("is there");
        assert_eq!((sa.mode, sa.limits), (ChildMode::Iptfs, (Some(7), None)));
    }
}

#[test]
fn without_agreement_on_iptfs_the_sa_is_a_tunnel_or_is_refused() {
    let (optional, required) = (iptfs(|_| ()), iptfs(|iptfs| iptfs.required = true));
    let tunnel = second();
    for (ours, theirs) in [(&optional, &tunnel), (&tunnel, &optional)] {
        let mut pair = pair_with_new(ours, &mirror(theirs));
        assert_eq!(create(&mut pair, ours), Ok(()));
        for host in [A, B] {
            assert_eq!(pair.hosts[host].plane.values().last().expect("is there").mode, ChildMode::Tunnel);
        }
        pair.check_at_rest(2);
    }
    let mut pair = pair_with_new(&required, &mirror(&tunnel));
    let refused = create(&mut pair, &required).expect_err("the peer has another mode");
    assert!(refused.as_str().contains("'iptfs_required = yes'"), "{refused}");
    pair.run(REST);
    // The peer had installed a tunnel, and deletes it.
    pair.check_at_rest(1);
    let mut pair = pair_with_new(&tunnel, &mirror(&required));
    let refused = create(&mut pair, &tunnel).expect_err("the peer requires the mode");
    assert!(refused.as_str().contains("NO_PROPOSAL_CHOSEN"), "{refused}");
    assert!(logged(&pair, B, "the peer offers no IP-TFS, which 'iptfs_required = yes'"));
    pair.check_at_rest(1);
    let unnumbered = || {
        vec![ChildProposal {
            protocol: ChildProtocol::Eesp,
            sn: vec![SequenceNumbers::None],
            sskdf: vec![None],
            ..esp()
        }]
    };
    let ours = ChildConfig { proposals: unnumbered(), ..optional.clone() };
    let mut pair = pair_with_new(&ours, &mirror(&ChildConfig { proposals: unnumbered(), ..required.clone() }));
    assert!(create(&mut pair, &ours).is_err(), "the proposal has no sequence numbers");
    assert!(logged(&pair, B, "the chosen proposal is for AH or has no sequence numbers"));
    pair.check_at_rest(1);
}

/// The section of the peer has the mode since the Child SA was made.
#[test]
fn a_tunnel_for_lack_of_agreement_becomes_iptfs_with_the_next_rekeying() {
    let (section, tunnel) = (iptfs(|_| ()), second());
    let mut pair = pair_with_new(&section, &mirror(&tunnel));
    assert_eq!(create(&mut pair, &section), Ok(()));
    pair.act(B, |_, sa| sa.children[1].config = std::sync::Arc::new(mirror(&section)));
    pair.act(A, |ctx, sa| assert!(sa.rekey_child(ctx, sa.children[1].id, None)));
    pair.run(REST);
    for host in [A, B] {
        assert_eq!(pair.hosts[host].plane.values().last().expect("is there").mode, ChildMode::Iptfs);
    }
}

#[test]
fn as_many_child_sas_as_there_may_be_are_rekeyed_by_either_end() {
    let name = |number: usize| child_config(&format!("c{number}"), &format!("10.1.{number}.0/24"), "10.2.0.0/16");
    for host in [A, B] {
        let mut pair = Pair::new(3, connection((0..CHILDREN_MAX).map(name).collect()));
        pair.act(host, rekey_child);
        pair.run(REST);
        assert_eq!(pair.hosts[1 - host].count(counters::CHILD_REFUSED), 0);
        assert_eq!(pair.hosts[host].count(counters::CHILD_REKEYED), 1);
        pair.check_at_rest(CHILDREN_MAX);
    }
}

#[test]
fn each_cpu_gets_its_sa_after_the_fallback() {
    let per_cpu = ChildConfig { per_cpu_sas: PerCpuSas::Yes, ..second() };
    let mut pair = pair_with_new(&per_cpu, &mirror(&per_cpu));
    for cpu in [4, 1, 4] {
        let request = ChildRequest { cpu: Some(cpu), ..request(&per_cpu) };
        pair.act(A, |ctx, sa| sa.request_child(ctx, request));
        pair.run(REST);
        assert_eq!(result(&pair), Ok(()));
    }
    let cpus = |host: usize| -> Vec<Option<u32>> { pair.hosts[host].plane.values().skip(1).map(|sa| sa.cpu).collect() };
    assert_eq!(cpus(A), [None, Some(4), Some(1)]);
    assert_eq!(cpus(B), [None, Some(0), Some(1)]);
    pair.check_at_rest(4);
    for id in 0..4 {
        pair.act(B, |ctx, sa| {
            let id = sa.children[id].id;
            assert!(sa.rekey_child(ctx, id, None));
        });
    }
    pair.run(REST);
    pair.check_at_rest(4);
    let mut cpus: Vec<Option<u32>> = pair.hosts[A].plane.values().map(|sa| sa.cpu).collect();
    cpus.sort_unstable();
    assert_eq!(cpus, [None, None, Some(1), Some(4)]);

    let mut pair = pair_with_new(&per_cpu, &mirror(&second()));
    let request = ChildRequest { cpu: Some(1), ..request(&per_cpu) };
    pair.act(A, |ctx, sa| sa.request_child(ctx, request));
    pair.run(REST);
    assert_eq!(result(&pair), Err(CommandError::new("there are no per-resource SAs with this peer")));
    pair.check_at_rest(2);
}

#[test]
fn the_fallback_of_a_host_that_moves_stays_one_at_its_peer() {
    let mobile = child_config("second", "dynamic", "10.4.0.0/16");
    let per_cpu = ChildConfig { per_cpu_sas: PerCpuSas::Yes, ..mobile };
    let mut pair = pair_with_new(&per_cpu, &mirror(&per_cpu));
    let request = ChildRequest { cpu: Some(4), ..request(&per_cpu) };
    pair.act(A, |ctx, sa| sa.request_child(ctx, request));
    pair.run(REST);
    let cpus = |pair: &Pair, host: usize| -> Vec<Option<u32>> {
        let mut cpus: Vec<_> = pair.hosts[host].plane.values().skip(1).map(|sa| sa.cpu).collect();
        cpus.sort_unstable();
        cpus
    };
    assert_eq!((cpus(&pair, A), cpus(&pair, B)), (vec![None, Some(4)], vec![None, Some(0)]));
    pair.act(A, |ctx, sa| sa.local_addresses(ctx, &["203.0.113.5".parse().expect("an address")]));
    pair.run(REST);
    assert_eq!((cpus(&pair, A), cpus(&pair, B)), (vec![None, Some(4)], vec![None, Some(0)]));
}

#[test]
fn a_peer_that_wants_no_more_queues_is_not_asked_again() {
    let per_cpu = ChildConfig { per_cpu_sas: PerCpuSas::Yes, ..second() };
    let mut pair = pair_with_new(&per_cpu, &mirror(&per_cpu));
    let ask = |pair: &mut Pair, cpu| {
        let request = ChildRequest { cpu: Some(cpu), ..request(&per_cpu) };
        pair.act(A, |ctx, sa| sa.request_child(ctx, request));
        pair.run(Duration::from_secs(1));
        result(pair)
    };
    for cpu in 0..64 {
        assert_eq!(ask(&mut pair, cpu), Ok(()));
    }
    assert!(ask(&mut pair, 64).expect_err("that is one too many").as_str().contains("TS_MAX_QUEUE"));
    assert!(ask(&mut pair, 65).expect_err("not asked").as_str().contains("no per-resource SAs"));
    pair.run(REST);
    pair.check_at_rest(66);
}

#[test]
fn soft_and_hard_lifetimes() {
    let seconds = Duration::from_secs;
    let child = ChildConfig { time: Life { rekey: seconds(100), life: seconds(110), rand: seconds(10) }, ..net() };
    let mut pair = Pair::new(3, Connection { rekey_time: seconds(270), over_time: seconds(30), ..with_child(child) });
    pair.act(A, |ctx, sa| sa.children[0].rekey_at = Some(ctx.now + seconds(95)));
    pair.run(seconds(3600));
    assert!((30..80).contains(&pair.hosts[A].count(counters::CHILD_REKEYED)), "about every 95 s");
    let ike = pair.hosts[A].count(counters::IKE_REKEYED);
    assert!((12..16).contains(&ike), "every 270 s, by the peer whose timer ends first, but not {ike} times");
    let [a, b] = &pair.hosts;
    assert_eq!(a.live().map(|sa| sa.spis), b.live().map(|sa| sa.spis));
    assert_eq!(a.used().len(), 1);

    // A peer that does not rekey: the hard limit ends it.
    let child = ChildConfig { time: Life { rekey: seconds(0), life: seconds(110), rand: seconds(0) }, ..net() };
    let mut pair = Pair::new(3, with_child(child));
    pair.strict = false;
    pair.act(A, |ctx, sa| sa.children[0].expire_at = Some(ctx.now + seconds(110)));
    pair.run(seconds(109));
    pair.check_at_rest(1);
    pair.run(seconds(30));
    pair.check_at_rest(0);
}

#[test]
fn limits_of_packets_rekey_and_end() {
    let mut pair = Pair::new(3, one_child());
    pair.act(B, |ctx, sa| sa.child_expired(ctx, sa.children[0].id, false));
    pair.run(REST);
    pair.check_at_rest(1);
    assert_eq!(pair.hosts[A].count(counters::CHILD_REKEYED), 1);
    pair.strict = false;
    pair.act(B, |ctx, sa| sa.child_expired(ctx, sa.children[0].id, true));
    pair.run(REST);
    pair.check_at_rest(0);
}

#[test]
fn a_child_without_traffic_ends() {
    let mut pair = Pair::new(3, with_child(ChildConfig { inactivity: Duration::from_secs(60), ..net() }));
    pair.strict = false;
    for _ in 0..5 {
        pair.run(Duration::from_secs(50));
        for host in [A, B] {
            pair.act(host, |ctx, sa| sa.traffic(ctx, sa.children[0].id, None));
        }
    }
    pair.check_at_rest(1);
    pair.run(Duration::from_secs(70));
    pair.check_at_rest(0);
    assert!(logged(&pair, A, "it was not used"));
}

#[test]
fn a_dead_peer_is_noticed_and_its_children_come_again() {
    let dead = |action| {
        let connection = with_child(ChildConfig { dpd_action: action, ..net() });
        let mut pair = Pair::new(3, Connection { dpd_delay: Duration::from_secs(30), mobike: false, ..connection });
        pair.strict = false;
        pair.run(Duration::from_secs(100));
        assert!(pair.hosts[A].count(counters::LIVENESS_SENT) + pair.hosts[B].count(counters::LIVENESS_SENT) >= 3);
        pair.check_at_rest(1);
        pair.hosts[B].sas.clear();
        pair.run(Duration::from_secs(300));
        assert!(pair.hosts[A].sas.is_empty() && pair.hosts[A].plane.is_empty());
        assert_eq!(pair.hosts[A].count(counters::IKE_DEAD), 1);
        pair
    };
    assert!(dead(Action::Clear).hosts[A].initiations.is_empty());
    assert_eq!(dead(Action::Trap).hosts[A].traps, ["net true"]);
    let again = dead(Action::Restart);
    assert_eq!(again.hosts[A].initiations[0].children[0].config.name, "net");
    assert_eq!((again.hosts[A].initiations[0].replaces, again.hosts[A].initiations[0].attempt), (None, 1));
}

#[test]
fn what_the_peer_closes_comes_again_by_close_action() {
    let closed = |action, step: super::Step| {
        let a = with_child(ChildConfig { close_action: action, ..net() });
        let b = with_child(mirror(&net()));
        let mut pair = Pair::between(3, a, b);
        pair.strict = false;
        pair.act(B, step);
        pair.run(REST);
        pair
    };
    closed(Action::Clear, delete_child).check_at_rest(0);
    closed(Action::Restart, delete_child).check_at_rest(1);
    assert_eq!(closed(Action::Trap, delete_child).hosts[A].traps, ["net true"]);
    assert_eq!(closed(Action::Trap, delete_ike).hosts[A].traps, ["net true"]);
    assert_eq!(closed(Action::Restart, delete_ike).hosts[A].initiations.len(), 1);
    assert!(closed(Action::Restart, rekey_child).hosts[A].initiations.is_empty());
    closed(Action::Restart, rekey_ike).check_at_rest(1);
}

#[test]
fn a_lost_answer_to_the_last_delete_is_given_again() {
    let mut pair = Pair::new(3, one_child());
    pair.strict = false;
    pair.act(A, |ctx, sa| sa.terminate(ctx, false, "", Some(7)));
    pair.deliver(0);
    assert!(pair.hosts[B].live().is_none() && pair.hosts[B].sas.len() == 1, "it stays to answer");
    pair.wire.clear();
    pair.run(Duration::from_secs(20));
    assert_eq!(result(&pair), Ok(()));
    assert!(pair.hosts.iter().all(|host| host.sas.is_empty() && host.plane.is_empty()));
}

#[test]
fn a_forced_end_does_not_wait() {
    let mut pair = Pair::new(3, one_child());
    pair.strict = false;
    pair.act(A, rekey_child);
    pair.wire.clear();
    pair.act(A, |ctx, sa| sa.terminate(ctx, true, "", Some(7)));
    assert_eq!((result(&pair), pair.hosts[A].sas.len(), pair.wire.len()), (Ok(()), 0, 1));
}

#[test]
fn a_child_that_is_rekeyed_and_unwanted_ends_with_its_successor() {
    let mut pair = Pair::new(3, one_child());
    pair.strict = false;
    pair.act(A, |ctx, sa| {
        rekey_child(ctx, sa);
        sa.start_next(ctx);
        delete_child(ctx, sa);
    });
    pair.run(REST);
    pair.check_at_rest(0);
}

#[test]
fn an_ike_sa_that_is_rekeyed_and_unwanted_ends_with_its_successor() {
    let mut pair = Pair::new(3, one_child());
    pair.strict = false;
    pair.act(A, |ctx, sa| {
        rekey_ike(ctx, sa);
        sa.start_next(ctx);
        sa.terminate(ctx, false, "", Some(7));
    });
    pair.run(REST);
    super::nothing_left(&pair);
    assert_eq!(result(&pair), Ok(()));
}

#[test]
fn the_peer_does_not_know_the_child_any_more() {
    let mut pair = Pair::new(3, one_child());
    pair.strict = false;
    pair.act(B, |ctx, sa| {
        let id = sa.children[0].id;
        sa.drop_child(ctx, id, "forgotten");
    });
    pair.act(A, rekey_child);
    pair.run(REST);
    pair.check_at_rest(1);
    assert!(logged(&pair, B, "CHILD_SA_NOT_FOUND"));
}

#[test]
fn a_peer_that_puts_off_is_asked_seven_times() {
    let mut pair = Pair::new(3, one_child());
    pair.act(B, |_, sa| sa.ending = Ending::Deleting);
    pair.act(A, |ctx, sa| {
        let id = sa.children[0].id;
        sa.rekey_child(ctx, id, Some(7));
    });
    let began = pair.now;
    pair.run(REST);
    assert!(result(&pair).expect_err("the peer never does it").as_str().contains("TEMPORARY_FAILURE"));
    assert!(pair.hosts[B].count(counters::TEMPORARY_FAILURE_SENT) >= ATTEMPTS_MAX as usize);
    assert!(pair.now - began > Duration::from_secs(60), "over a period of several minutes");
    let state = pair.hosts[A].live().expect("is there").children[0].state;
    assert_eq!(state, ChildState::Installed);
}

#[test]
fn traffic_on_the_successor_switches_at_once() {
    let mut pair = Pair::new(3, one_child());
    pair.act(A, rekey_child);
    pair.deliver(0);
    pair.strict = false; // B receives a report of traffic that A has not sent
    let old = pair.hosts[B].used();
    pair.act(B, |ctx, sa| sa.traffic(ctx, sa.children[1].id, None));
    let new = pair.hosts[B].used();
    assert_ne!(old, new, "the peer sends on it, so it has it");
    pair.run(REST);
    pair.check_at_rest(1);
    assert_eq!(pair.hosts[B].used(), new);
}

#[test]
fn a_mobile_initiator_moves_and_its_peer_follows() {
    let mut pair = Pair::new(3, one_child());
    let new: IpAddr = "203.0.113.5".parse().expect("an address");
    pair.act(A, |ctx, sa| sa.local_addresses(ctx, &[new]));
    pair.run(REST);
    assert_eq!(pair.hosts[B].live().expect("is there").path.remote.ip(), new);
    assert_eq!((pair.hosts[A].moves, pair.hosts[B].moves), (1, 1));
    pair.check_at_rest(1);

    // A request is out when the address goes: it goes out once more from the new one.
    pair.act(A, rekey_child);
    pair.wire.clear();
    let newer: IpAddr = "203.0.113.6".parse().expect("an address");
    pair.act(A, |ctx, sa| sa.local_addresses(ctx, &[newer]));
    pair.run(REST);
    pair.check_at_rest(1);
    assert_eq!(pair.hosts[B].live().expect("is there").path.remote.ip(), newer);

    // The responder's further addresses are known to the initiator, for when the first one fails.
    let further: IpAddr = "192.0.2.77".parse().expect("an address");
    pair.act(B, |ctx, sa| {
        let here = sa.path.local.ip();
        sa.local_addresses(ctx, &[here, further]);
    });
    pair.run(REST);
    pair.act(A, |ctx, sa| sa.queue(ctx, Task::Liveness { cookie: false }));
    let mut tried = Vec::new();
    for _ in 0..100 {
        tried.extend(pair.wire.drain(..).filter(|flying| flying.to == B).map(|flying| flying.at().ip()));
        if tried.last() == Some(&further) {
            break;
        }
        let at = pair.next_deadline().expect("it goes on trying");
        pair.sleep_until(at);
    }
    assert_eq!(tried.last(), Some(&further));
    pair.act(A, |ctx, sa| {
        let path = sa.path;
        sa.exchanges.resend_now(ctx, &path);
    });
    pair.run(REST);
    assert_eq!(pair.hosts[B].live().expect("is there").path.local.ip(), further);
    pair.check_at_rest(1);
}

/// Hosts with two Child SAs; B has another address, which is in the list of A.
fn with_another_address() -> (Pair, [IpAddr; 2]) {
    let mut pair = Pair::new(3, super::two_sections());
    let further: IpAddr = "192.0.2.77".parse().expect("an address");
    pair.act(B, |ctx, sa| {
        let here = sa.path.local.ip();
        sa.local_addresses(ctx, &[here, further]);
    });
    pair.run(REST);
    let first = pair.hosts[B].live().expect("is there").path.local.ip();
    (pair, [first, further])
}

/// Datagrams to B at `dead` and from there are lost until A sends to `further`.
fn lose_path(pair: &mut Pair, dead: IpAddr, deliver: impl Fn(&InFlight) -> bool) {
    for _ in 0..100 {
        while let Some(at) = pair.wire.iter().position(|flying| flying.to != B || flying.at().ip() == dead) {
            let flying = pair.wire.remove(at);
            if deliver(&flying) {
                pair.receive(&flying);
            }
        }
        if !pair.wire.is_empty() {
            return;
        }
        let at = pair.next_deadline().expect("it goes on trying");
        pair.sleep_until(at);
    }
    panic!("no other path was tried");
}

/// RFC 4555 §3.5: an update that was repeated on another path does not announce that one.
#[test]
fn child_sas_follow_an_update_to_the_path_that_answers() {
    // The path is dead, or the responses to A alone are lost: then B has moved with the first
    // update.
    for requests_arrive in [false, true] {
        let (mut pair, [first, further]) = with_another_address();
        let new: IpAddr = "203.0.113.5".parse().expect("an address");
        pair.act(A, |ctx, sa| sa.local_addresses(ctx, &[new]));
        let is_request = |flying: &InFlight| flying.bytes[19] & wire::ike::Header::FLAG_RESPONSE == 0;
        lose_path(&mut pair, first, |flying| requests_arrive && (flying.to == B || is_request(flying)));
        pair.run(REST);
        let path = |host: usize| pair.hosts[host].live().expect("is there").path;
        assert_eq!((path(A).local.ip(), path(A).remote.ip()), (new, further));
        assert_eq!((path(B).local.ip(), path(B).remote.ip()), (further, new));
        for host in [A, B] {
            let children: Vec<ChildId> = pair.hosts[host].plane.keys().copied().collect();
            assert_eq!(children.len(), 2);
            for child in children {
                assert_eq!(pair.hosts[host].paths.get(&child), Some(&path(host)), "{requests_arrive} {host}");
            }
        }
        assert!(!path(A).encap && !path(B).encap, "the hashes of the repeated update are of another path");
        pair.check_at_rest(2);
    }
}

/// The address that an announcement came from is one of those to try, as those in its list.
#[test]
fn an_initiator_returns_to_the_first_address_of_the_responder() {
    let (mut pair, [first, further]) = with_another_address();
    pair.act(A, |ctx, sa| {
        let here = sa.path.local.ip();
        sa.local_addresses(ctx, &[here]);
    });
    pair.run(REST);
    for (dead, next) in [(first, further), (further, first)] {
        pair.act(A, |ctx, sa| sa.queue(ctx, Task::Liveness { cookie: false }));
        lose_path(&mut pair, dead, |_| false);
        pair.run(REST);
        let path = |host: usize| pair.hosts[host].live().expect("is there").path;
        assert_eq!((path(A).remote.ip(), path(B).local.ip()), (next, next));
        pair.check_at_rest(2);
    }
}

/// RFC 4555 §3.6: the source of the announcement is one of the responder's addresses.
#[test]
fn an_initiator_follows_a_responder_that_lost_its_address() {
    for outstanding in [false, true] {
        let (mut pair, [first, further]) = with_another_address();
        if outstanding {
            // A request to the lost address is out.
            pair.act(A, |ctx, sa| sa.queue(ctx, Task::Liveness { cookie: false }));
            pair.wire.clear();
        }
        pair.act(B, |ctx, sa| sa.local_addresses(ctx, &[further]));
        for _ in 0..100 {
            while !pair.wire.is_empty() {
                let flying = pair.wire.remove(0);
                if flying.at().ip() != first {
                    pair.receive(&flying);
                }
            }
            let Some(at) = pair.next_deadline().filter(|at| *at < pair.now + REST) else { break };
            pair.sleep_until(at);
        }
        let path = |host: usize| pair.hosts[host].live().expect("is there").path;
        assert_eq!((path(A).remote.ip(), path(B).local.ip()), (further, further));
        for host in [A, B] {
            for child in pair.hosts[host].plane.keys() {
                assert_eq!(pair.hosts[host].paths.get(child), Some(&path(host)), "{outstanding} {host}");
            }
        }
        pair.check_at_rest(2);
    }
}

/// The successor that the peer made was there before the move.
#[test]
fn a_rekey_collision_keeps_the_addresses_of_a_move_meanwhile() {
    let mut adopted = 0;
    for seed in 0..8 {
        let mut pair = Pair::new(seed, one_child());
        for host in [A, B] {
            pair.act(host, |ctx, sa| sa.rekey(ctx, false, None));
        }
        let of_b = pair.wire.iter().position(|flying| flying.to == A).expect("the request of B");
        pair.deliver(of_b);
        let new: IpAddr = "203.0.113.5".parse().expect("an address");
        pair.act(A, |ctx, sa| sa.local_addresses(ctx, &[new]));
        pair.run(REST);
        adopted += usize::from(pair.hosts[A].live().is_some_and(|sa| sa.role == Role::Responder));
        let path = |host: usize| pair.hosts[host].live().expect("is there").path;
        assert_eq!((path(A).local.ip(), path(B).remote.ip()), (new, new), "{seed}");
        pair.check_at_rest(1);
    }
    assert!((1..8).contains(&adopted), "both ends win in some of the runs");
}

/// RFC 4555 §3.9.
#[test]
fn a_peer_that_prohibits_nats_learns_of_one() {
    let mut pair = Pair::new(3, one_child());
    let path = pair.hosts[B].live().expect("is there").path;
    let update = |source: [u8; 4]| {
        move |chain: &mut Chain<'_>| {
            let data = [&source[..], &[192, 0, 2, 2, 1, 244, 1, 244]].concat();
            chain.notify(ProtocolId::NONE, &[], NotifyType::NO_NATS_ALLOWED, &data);
            chain.notify(ProtocolId::NONE, &[], NotifyType::UPDATE_SA_ADDRESSES, &[]);
            chain.notify(ProtocolId::NONE, &[], NotifyType::ADDITIONAL_IP4_ADDRESS, &[198, 51, 100, 9]);
        }
    };
    let peers = |pair: &Pair| pair.hosts[B].live().expect("is there").tasks.addresses.peer_count();
    let refused = ask(&mut pair, ExchangeType::INFORMATIONAL, update([10, 0, 0, 9]));
    assert_eq!(notifies(&refused), [NotifyType::UNEXPECTED_NAT_DETECTED]);
    assert_eq!((pair.hosts[B].live().expect("is there").path, peers(&pair)), (path, 0));
    assert!(notifies(&ask(&mut pair, ExchangeType::INFORMATIONAL, update([192, 0, 2, 1]))).is_empty());
    assert_eq!(peers(&pair), 2, "its source and the listed one");
}

#[test]
fn without_mobike_a_moved_mapping_is_followed_by_authentic_messages_only() {
    let mut pair = Pair::new(3, Connection { mobike: false, ..one_child() });
    pair.act(B, |_, sa| {
        sa.nat = (false, true);
        sa.path.encap = true;
    });
    let moved: SocketAddr = "198.51.100.7:61000".parse().expect("an address");
    pair.act(A, |ctx, sa| sa.queue(ctx, Task::Liveness { cookie: false }));
    let mut flying = pair.wire.remove(0).from(moved);
    let good = flying.bytes.clone();
    *flying.bytes.last_mut().expect("not empty") ^= 1;
    pair.receive(&flying);
    assert_ne!(pair.hosts[B].live().expect("is there").path.remote, moved);
    flying.bytes = good;
    pair.receive(&flying);
    assert_eq!(pair.hosts[B].live().expect("is there").path.remote, moved);
    let again: SocketAddr = "198.51.100.7:61001".parse().expect("an address");
    pair.act(B, |ctx, sa| sa.traffic(ctx, sa.children[0].id, Some(again)));
    assert_eq!(pair.hosts[B].live().expect("is there").path.remote, again);
    assert_eq!(pair.hosts[B].moves, 2);
}

#[test]
fn a_mapping_is_kept_alive() {
    let mut pair = Pair::new(3, one_child());
    pair.act(A, |ctx, sa| {
        sa.nat = (true, false);
        sa.begin(ctx);
    });
    pair.run(Duration::from_secs(205));
    assert_eq!((pair.hosts[A].keepalives, pair.hosts[B].keepalives), (10, 0));
}

/// A message to B as A would send it, and B's answer.
fn ask(pair: &mut Pair, exchange: ExchangeType, write: impl FnOnce(&mut Chain<'_>)) -> Inner {
    let Inner { first, bytes } = Inner::new(write).expect("a short message");
    let plain = Plain { exchange, message_id: 0, first, bytes };
    let mut answer = None;
    pair.act(B, |ctx, sa| {
        let from = sa.path;
        answer = Some(sa.handle_request(ctx, &from, &plain));
    });
    answer.expect("it is there")
}

fn notifies(inner: &Inner) -> Vec<NotifyType> {
    let parts = Parts::read(Payloads::new(inner.first, &inner.bytes)).expect("answers parse");
    parts.notifies.iter().map(|notify| notify.kind).collect()
}

#[test]
fn informational_requests_are_answered_as_the_rfcs_say() {
    let mut pair = Pair::new(3, one_child());
    let informational = ExchangeType::INFORMATIONAL;
    assert!(ask(&mut pair, informational, |_| ()).bytes.is_empty());
    let unknown = |chain: &mut Chain<'_>| {
        chain.notify(ProtocolId::NONE, &[], NotifyType(45000), &[1]);
    };
    assert!(ask(&mut pair, informational, unknown).bytes.is_empty());
    let cookie = ask(&mut pair, informational, |chain| {
        chain.notify(ProtocolId::NONE, &[], NotifyType::COOKIE2, &[9; 16]);
    });
    assert_eq!(notifies(&cookie), [NotifyType::COOKIE2]);
    let stale = ask(&mut pair, informational, |chain| {
        chain.delete(ProtocolId::ESP, &[&[1, 2, 3, 4], &[5, 6, 7, 8]]);
    });
    assert!(stale.bytes.is_empty(), "what is not there is not named");
    let critical = ask(&mut pair, informational, |chain| {
        chain.critical_payload(PayloadType(201), |_| ());
    });
    assert_eq!(notifies(&critical), [NotifyType::UNSUPPORTED_CRITICAL_PAYLOAD]);
    let spi = pair.hosts[B].used()[0].1.to_be_bytes();
    pair.strict = false;
    let deleted = ask(&mut pair, informational, |chain| {
        chain.delete(ProtocolId::ESP, &[&spi]);
    });
    let parts = Parts::read(Payloads::new(deleted.first, &deleted.bytes)).expect("answers parse");
    assert_eq!(parts.deletes[0].spis().map(<[u8]>::to_vec).collect::<Vec<_>>(), [0x2000u32.to_be_bytes()]);
    assert!(pair.hosts[B].live().is_some());

    let mut pair = Pair::new(3, one_child());
    pair.strict = false;
    pair.act(B, delete_child);
    let crossed = ask(&mut pair, informational, |chain| {
        chain.delete(ProtocolId::ESP, &[&spi]);
    });
    assert!(crossed.bytes.is_empty(), "both delete it: neither answer names it");
    assert_eq!(notifies(&ask(&mut pair, ExchangeType::CREATE_CHILD_SA, |_| ())), [NotifyType::INVALID_SYNTAX]);
    assert!(pair.hosts[B].live().is_none(), "fatal for both");
}

#[test]
fn a_redirected_client_goes_there_once() {
    let mut pair = Pair::new(3, one_child());
    pair.act(B, |_, sa| sa.tasks.origin = Role::Initiator);
    for _ in 0..2 {
        ask(&mut pair, ExchangeType::INFORMATIONAL, |chain| {
            chain.notify(ProtocolId::NONE, &[], NotifyType::REDIRECT, &[1, 4, 203, 0, 113, 9]);
        });
    }
    let initiations = &pair.hosts[B].initiations;
    assert_eq!(initiations.len(), 1);
    assert_eq!(initiations[0].remote, Some("203.0.113.9:500".parse().expect("an address")));
    assert!(initiations[0].replaces.is_some() && initiations[0].children.len() == 1);

    let mut pair = Pair::new(3, one_child());
    pair.act(B, |_, sa| sa.tasks.origin = Role::Initiator);
    ask(&mut pair, ExchangeType::INFORMATIONAL, |chain| {
        chain.notify(ProtocolId::NONE, &[], NotifyType::REDIRECT, b"\x03\x0bgw2.example");
    });
    let initiations = &pair.hosts[B].initiations;
    assert_eq!((initiations[0].remote, initiations[0].host.as_deref()), (None, Some("gw2.example")));
}

#[test]
fn reauthentication_is_made_before_the_break() {
    let seconds = Duration::from_secs;
    let mut pair = Pair::new(3, Connection { reauth_time: seconds(100), over_time: seconds(20), ..one_child() });
    pair.strict = false;
    pair.run(seconds(101));
    assert_eq!(pair.hosts[A].initiations.len(), 1);
    assert!(pair.hosts[A].live().is_some(), "it goes on until the new one is up");
    pair.run(seconds(60));
    super::nothing_left(&pair);

    let mut pair = Pair::new(3, one_child());
    ask(&mut pair, ExchangeType::INFORMATIONAL, |chain| {
        chain.notify(ProtocolId::NONE, &[], NotifyType::AUTH_LIFETIME, &1000u32.to_be_bytes());
    });
    pair.run(seconds(969));
    assert!(pair.hosts[B].initiations.is_empty());
    pair.run(seconds(10));
    assert_eq!(pair.hosts[B].initiations.len(), 1);
}

/// A peer sends CREATE_CHILD_SA with an SPI that it already uses.
#[test]
fn an_spi_that_the_peer_uses_already_is_refused() {
    let mut pair = Pair::new(3, one_child());
    let spi = pair.hosts[B].used()[0].1.to_be_bytes();
    let create = |spi: [u8; 4]| {
        move |chain: &mut Chain<'_>| {
            crate::proposal::emit_child_offer(chain, &[esp()], &spi, true, &Default::default());
            chain.nonce(&[7; 32]);
            chain.ts(PayloadType::TSi, &[ts("10.1.0.0/16")]).ts(PayloadType::TSr, &[ts("10.2.0.0/16")]);
        }
    };
    let answer = ask(&mut pair, ExchangeType::CREATE_CHILD_SA, create(spi));
    assert_eq!(notifies(&answer), [NotifyType::NO_PROPOSAL_CHOSEN]);
    assert!(logged(&pair, B, "twice"));
    pair.strict = false;
    let answer = ask(&mut pair, ExchangeType::CREATE_CHILD_SA, create([1, 2, 3, 4]));
    assert!(notifies(&answer).is_empty());
    assert_eq!(pair.hosts[B].used().len(), 2);
}

#[test]
fn a_peer_that_rekeys_the_same_child_twice_is_put_off() {
    let mut pair = Pair::new(3, one_child());
    let old = pair.hosts[B].used()[0].1.to_be_bytes();
    let rekey = |spi: [u8; 4]| {
        move |chain: &mut Chain<'_>| {
            chain.notify(ProtocolId::ESP, &old, NotifyType::REKEY_SA, &[]);
            crate::proposal::emit_child_offer(chain, &[esp()], &spi, true, &Default::default());
            chain.nonce(&[7; 32]);
            chain.ts(PayloadType::TSi, &[ts("10.1.0.0/16")]).ts(PayloadType::TSr, &[ts("10.2.0.0/16")]);
        }
    };
    assert!(notifies(&ask(&mut pair, ExchangeType::CREATE_CHILD_SA, rekey([1, 2, 3, 4]))).is_empty());
    let again = ask(&mut pair, ExchangeType::CREATE_CHILD_SA, rekey([1, 2, 3, 5]));
    assert_eq!(notifies(&again), [NotifyType::TEMPORARY_FAILURE]);
    assert_eq!(pair.hosts[B].live().expect("is there").children.len(), 2);
}

/// One payload of a hostile message.
fn payload() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let spi = prop_oneof![Just(0x1000u32), Just(0x2000), any::<u32>()];
    let notify = (
        0..4u8,
        spi.clone(),
        prop::sample::select(vec![
            11, 14, 17, 24, 43, 44, 16388, 16389, 16393, 16397, 16398, 16399, 16400, 16401, 16403, 16407, 16441, 16444,
            41000, 41001,
        ]),
        prop::collection::vec(any::<u8>(), 0..24),
    )
        .prop_map(|(protocol, spi, kind, data): (u8, u32, u16, Vec<u8>)| {
            let kind = kind.to_be_bytes();
            (41, [&[protocol, 4, kind[0], kind[1]][..], &spi.to_be_bytes(), &data].concat())
        });
    let plain = (
        prop::sample::select(vec![16388u16, 16389, 16391, 16400, 16401, 16403, 16407, 16441, 16444]),
        prop::collection::vec(any::<u8>(), 0..24),
    )
        .prop_map(|(kind, data)| (41, [&[0, 0][..], &kind.to_be_bytes(), &data].concat()));
    let delete = (prop::sample::select(vec![1u8, 2, 3, 249]), spi).prop_map(|(protocol, spi)| match protocol {
        1 => (42, vec![1, 0, 0, 0]),
        _ => (42, [&[protocol, 4, 0, 1][..], &spi.to_be_bytes()].concat()),
    });
    let sa = (any::<u32>(), any::<bool>()).prop_map(|(spi, ike)| {
        let mut bytes = Vec::new();
        let mut chain = Chain::new(&mut bytes);
        if ike {
            crate::proposal::emit_ike_offer(&mut chain, &one_child().proposals, &[spi.to_be_bytes(), [1; 4]].concat());
        } else {
            crate::proposal::emit_child_offer(&mut chain, &[esp()], &spi.to_be_bytes(), true, &Default::default());
        }
        (33, bytes[4..].to_vec())
    });
    let body = |kind: u8| prop::collection::vec(any::<u8>(), 0..48).prop_map(move |body| (kind, body));
    let ts = (44..=45u8, any::<bool>()).prop_map(|(kind, mine)| {
        let mut bytes = Vec::new();
        Chain::new(&mut bytes).ts(PayloadType::TSi, &[ts(if mine { "10.1.0.0/16" } else { "10.2.0.0/16" })]);
        (kind, bytes[4..].to_vec())
    });
    let nonce = Just((40, vec![3; 32]));
    let ke = prop::sample::select(vec![19u16, 31, 36, 999])
        .prop_map(|group| (34, [&group.to_be_bytes()[..], &[0, 0], &[9; 32]].concat()));
    prop_oneof![notify, plain, delete, sa, ts, nonce, ke, any::<u8>().prop_flat_map(body)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// No combination of payloads makes either handler panic, in any state, and every answer
    /// parses.
    #[test]
    fn any_payloads_are_answered(
        steps in prop::collection::vec((0..4usize, any::<bool>(), prop::collection::vec(payload(), 0..7)), 1..12),
    ) {
        let mut pair = Pair::new(3, one_child());
        pair.strict = false;
        for (step, response, payloads) in steps {
            let started: [super::Step; 4] = [rekey_child, rekey_ike, delete_child, |_, _| ()];
            pair.act(B, |ctx, sa| if !sa.children.is_empty() { started[step](ctx, sa) });
            pair.wire.clear();
            let write = |chain: &mut Chain<'_>| {
                payloads.iter().for_each(|(kind, body)| { chain.raw(PayloadType(*kind), body); });
            };
            if response {
                let Inner { first, bytes } = Inner::new(write).expect("a short message");
                let plain = Plain { exchange: ExchangeType::INFORMATIONAL, message_id: 0, first, bytes };
                pair.act(B, |ctx, sa| {
                    sa.exchanges.forget_request();
                    let from = sa.path;
                    sa.handle_response(ctx, &from, &plain);
                });
            } else {
                let exchange = [ExchangeType::CREATE_CHILD_SA, ExchangeType::INFORMATIONAL, ExchangeType::IKE_FOLLOWUP_KE, ExchangeType::IKE_AUTH][step];
                let answer = ask_if_live(&mut pair, exchange, write);
                prop_assert!(answer.is_none_or(|answer| Parts::read(Payloads::new(answer.first, &answer.bytes)).is_ok()));
            }
            let at = pair.now + Duration::from_secs(7);
            pair.sleep_until(at);
        }
    }
}

fn ask_if_live(pair: &mut Pair, exchange: ExchangeType, write: impl FnOnce(&mut Chain<'_>)) -> Option<Inner> {
    pair.hosts[B].live().is_some().then(|| ask(pair, exchange, write))
}
