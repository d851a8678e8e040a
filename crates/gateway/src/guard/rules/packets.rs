//! Rules of the guard applied to packets, as nf_tables does it: packets that each exemption
//! permits, and packets that it does not.

use super::model::{Packet, is_met, verdict};
use super::*;
use crate::config::Config;
use crate::config::tests::swanctl::swanctl;
use crate::up::Listening;

/// Addresses of this host.
const HOST: [&str; 3] = ["192.0.2.1", "2001:db8::1", "10.1.0.1"];

fn packet(src: &str, dst: &str, proto: u8, transport: &[u8]) -> Packet {
    let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
    let for_host = HOST.iter().any(|host| host.parse() == Ok(dst));
    Packet { src, dst, proto, transport: transport.to_vec(), fragment: false, hop_limit: 64, for_host }
}

/// UDP or TCP between two ports, with flags of TCP.
fn ports(proto: u8, src: (&str, u16), dst: (&str, u16), flags: u8) -> Packet {
    let mut transport = [src.1.to_be_bytes(), dst.1.to_be_bytes()].concat();
    transport.resize(20, 0);
    transport[13] = flags;
    packet(src.0, dst.0, proto, &transport)
}

fn config(text: &str) -> Config {
    swanctl(text).unwrap_or_else(|problems| panic!("{problems}"))
}

const IKE: &str = "connections { net { remote_addrs = 192.0.2.2
    local { auth = psk
    id = a }
    remote { auth = psk
    id = b }
    children { net { remote_ts = 10.2.0.0/24 } } } }
secrets { ike { secret = x } }\n";
const PSP: &str = "connections { psp { protocol = psp
    remote_addrs = 192.0.2.3
    local_port = 7001
    remote_port = 7002
    local { auth = pubkey
    certs = a.pem
    id = a.lab }
    remote { auth = pubkey
    id = b.lab }
    children { net { remote_ts = 10.3.0.0/24 } } } }\n";
const MANUAL: &str = "sas { m { protocol = esp
    local = 192.0.2.1
    remote = 192.0.2.2
    encap = yes
    suite = aes128gcm16
    out { spi = 0x1001
    key = 0x0102030405060708091011121314151617181920 }
    in { spi = 0x1002
    key = 0x2122030405060708091011121314151617181920 } } }
policies { m { local_ts = 10.1.0.0/24
    remote_ts = 10.2.0.0/24
    sa = m } }\n";

fn accepts(text: &str, packet: &Packet) -> bool {
    let config = config(text);
    let exempt = Listening::of(&config).exempt(&config);
    let family = if packet.dst.is_ipv6() { Family::V6 } else { Family::V4 };
    verdict(&exempt_in(&exempt, family), packet) == Some(Expr::Accept)
}

const ACK: u8 = 0x10;
const SYN: u8 = 0x02;

#[test]
fn ports_of_ike_are_exempt_at_this_host_only() {
    for (peer, host) in [("192.0.2.2", "192.0.2.1"), ("2001:db8::2", "2001:db8::1")] {
        for port in [500, 4500] {
            assert!(accepts(IKE, &ports(UDP, (peer, port), (host, port), 0)));
            assert!(accepts(IKE, &ports(UDP, (peer, 1024), (host, port), 0)), "a NAT changes the source port");
            assert!(!accepts(IKE, &ports(UDP, (peer, port), (host, 53), 0)), "source port {port}");
            assert!(!accepts(IKE, &ports(TCP, (peer, port), (host, port), ACK)), "TCP port {port}");
        }
        for proto in [50, 51] {
            assert!(accepts(IKE, &packet(peer, host, proto, &[0; 8])));
        }
        assert!(!accepts(IKE, &packet(peer, host, 47, &[0; 8])));
    }
    for behind in ["10.1.0.5", "192.0.2.9"] {
        assert!(!accepts(IKE, &ports(UDP, ("192.0.2.2", 500), (behind, 500), 0)), "forwarded to {behind}");
        assert!(!accepts(IKE, &packet("192.0.2.2", behind, 50, &[0; 8])), "ESP forwarded to {behind}");
        let later = Packet { fragment: true, ..ports(UDP, ("192.0.2.2", 500), (behind, 500), 0) };
        assert!(!accepts(IKE, &later), "a fragment forwarded to {behind}");
    }
}

#[test]
fn ports_of_psp_are_exempt_where_psp_is_configured() {
    let (peer, host) = ("192.0.2.2", "192.0.2.1");
    let psp = ports(UDP, (peer, 50_000), (host, 1000), 0);
    assert!(accepts(PSP, &psp) && !accepts(IKE, &psp) && !accepts(MANUAL, &psp));
    // The key service has the ports of its connections, whatever the port of PSP is.
    let call = |port| ports(TCP, (peer, 50_000), (host, port), SYN);
    let reply = |port, flags| ports(TCP, (peer, port), (host, 50_000), flags);
    assert!(accepts(PSP, &call(7001)) && accepts(PSP, &reply(7002, ACK | SYN)) && accepts(PSP, &reply(7002, 0x04)));
    assert!(!accepts(PSP, &reply(7002, SYN)), "a SYN from the port of the key service");
    for port in [1000, 7002] {
        assert!(!accepts(PSP, &call(port)), "port {port} of this host");
    }
    for port in [1000, 7001] {
        assert!(!accepts(PSP, &reply(port, ACK)), "port {port} of the peer");
    }
    for text in [IKE, MANUAL] {
        for port in [1000, 7001] {
            assert!(!accepts(text, &call(port)));
        }
        assert!(!accepts(text, &reply(7002, ACK)) && !accepts(text, &reply(1000, ACK)));
    }
}

#[test]
fn manual_sas_exempt_the_addresses_and_protocols_that_they_have() {
    let (peer, host) = ("192.0.2.2", "192.0.2.1");
    let text = MANUAL;
    assert!(accepts(text, &ports(UDP, (peer, 4500), (host, 4500), 0)));
    assert!(!accepts(text, &ports(UDP, (peer, 500), (host, 500), 0)), "nothing speaks IKE");
    assert!(!accepts(text, &ports(UDP, (peer, 4500), ("10.1.0.1", 4500), 0)), "another address of this host");
    assert!(!accepts(text, &ports(UDP, ("2001:db8::2", 4500), ("2001:db8::1", 4500), 0)), "the other family");
    assert!(!accepts(text, &packet(peer, host, 50, &[0; 8])), "ESP is in UDP here");
    let raw = MANUAL.replace("encap = yes", "encap = no");
    assert!(accepts(&raw, &packet(peer, host, 50, &[0; 8])));
    assert!(!accepts(&raw, &packet(peer, host, 51, &[0; 8])), "no SA of AH");
    assert!(!accepts(&raw, &packet(peer, "10.1.0.1", 50, &[0; 8])), "another address of this host");
    assert!(!accepts(&raw, &ports(UDP, (peer, 4500), (host, 4500), 0)), "no SA in UDP");
    let later = |proto| Packet { fragment: true, ..packet(peer, host, proto, &[]) };
    assert!(accepts(&raw, &later(50)) && !accepts(&raw, &later(UDP)));
    assert!(accepts(text, &later(UDP)) && !accepts(text, &later(50)));
}

#[test]
fn errors_are_exempt_when_they_are_about_protected_packets() {
    // ICMP header, then the beginning of the packet from this host.
    let error = |kind: u8, proto: u8, ports: (u16, u16)| {
        let mut body = vec![kind, 4, 0, 0, 0, 0, 0, 0, 0x45];
        body.resize(8 + 20, 0);
        body[8 + 9] = proto;
        body.extend([ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat());
        packet("192.0.2.2", "192.0.2.1", ICMP, &body)
    };
    assert!(accepts(IKE, &error(3, 50, (0, 0))) && accepts(IKE, &error(3, UDP, (4500, 1024))));
    assert!(!accepts(IKE, &error(3, UDP, (53, 4500))), "a packet to port 4500 of the peer, not from here");
    assert!(!accepts(IKE, &error(3, TCP, (500, 500))) && !accepts(IKE, &error(3, UDP, (50_000, 1000))));
    assert!(!accepts(IKE, &error(8, 50, (0, 0))), "an echo request");
    assert!(accepts(PSP, &error(3, UDP, (50_000, 1000))) && !accepts(PSP, &error(3, UDP, (1000, 50_000))));
}

#[test]
fn neighbour_discovery_is_exempt_on_the_link_only() {
    let message = |kind: u8, hop_limit, dst| Packet { hop_limit, ..packet("fe80::2", dst, ICMPV6, &[kind, 0, 0, 0]) };
    assert!(accepts(IKE, &message(135, 255, "ff02::1:ff00:1")) && accepts(IKE, &message(136, 255, "2001:db8::1")));
    assert!(!accepts(IKE, &message(135, 64, "2001:db8::1")) && !accepts(IKE, &message(128, 255, "2001:db8::1")));
    assert!(!accepts(IKE, &message(136, 255, "fd01::5")), "forwarded");
}

#[test]
fn multicast_of_the_link_is_exempt_unless_a_policy_names_it() {
    let protect = |remote: &str| {
        let selector = Selector::between(
            if remote.contains(':') { AddrRange::ANY_V6 } else { AddrRange::ANY_V4 },
            remote.parse().unwrap(),
        );
        GuardPolicy::new(Verdict::Protect, selector)
    };
    let leaves = |policies: &[GuardPolicy], dst: &str| {
        let family = if dst.contains(':') { Family::V6 } else { Family::V4 };
        let src = if family == Family::V6 { "2001:db8::1" } else { "192.0.2.1" };
        verdict(&exempt_out(policies, family), &ports(UDP, (src, 9), (dst, 9), 0)) == Some(Expr::Accept)
    };
    for dst in ["224.0.0.5", "255.255.255.255", "ff02::5", "fe80::2"] {
        let all = [protect("0.0.0.0/0"), protect("::/0")];
        assert!(leaves(&all, dst), "{dst}");
        assert!(!leaves(&[all[0], all[1], protect(dst)], dst), "{dst} is protected by name");
        assert!(leaves(&[protect("ff02::6"), protect("224.0.0.0/4")], "224.0.0.5"), "another one is");
    }
}

#[test]
fn a_policy_for_every_source_makes_no_source_local() {
    let protect = |local: &str, remote: &str| {
        let selector = Selector::from_sides(local.parse().unwrap(), remote.parse().unwrap()).unwrap();
        GuardPolicy::new(Verdict::Protect, selector)
    };
    let whole = [protect("0.0.0.0/0", "0.0.0.0/0"), protect("::/0", "::/0")];
    assert_eq!(local_sources(whole.iter()), []);
    let both = [protect("0.0.0.0/0", "0.0.0.0/0"), protect("10.1.0.0/16", "10.2.0.0/16")];
    assert_eq!(local_sources(both.iter()), ["10.1.0.0/16".parse().unwrap()]);
    // Halves are as wide, and named.
    let halves = [protect("0.0.0.0/1", "10.2.0.0/16"), protect("128.0.0.0/1", "10.2.0.0/16")];
    assert_eq!(local_sources(halves.iter()).len(), 1);
}

#[test]
fn packets_from_outside_are_not_those_of_a_host_in_transport_mode() {
    let of = |verdict, host, local: &str, remote: &str| {
        let selector = Selector::from_sides(local.parse().unwrap(), remote.parse().unwrap()).unwrap();
        GuardPolicy { verdict, selector, host }
    };
    let host = of(Verdict::Protect, true, "192.0.2.1", "192.0.2.2");
    let tunnel = of(Verdict::Protect, false, "0.0.0.0/0", "192.0.2.2");
    let pass = of(Verdict::Pass, false, "192.0.2.1[tcp]", "192.0.2.2[tcp/80]");
    let spoofed = |policies: &[GuardPolicy], packet: &Packet| {
        let rules = forwarded(policies, if packet.dst.is_ipv6() { Family::V6 } else { Family::V4 });
        let counts = |rule: &Vec<Expr>| !rule.contains(&Expr::Drop) || rule.contains(&Expr::Count("spoofed-in"));
        assert!(rules.iter().all(counts), "{rules:?}");
        verdict(&rules, packet) == Some(Expr::Drop)
    };
    let from = |src: &str, dst: &str| packet(src, dst, 47, &[]);
    let own = from("192.0.2.1", "192.0.2.2");
    assert!(spoofed(&[host], &own) && spoofed(&[host, tunnel], &own));
    assert!(!spoofed(&[tunnel, host], &own), "the tunnel comes first");
    assert!(!spoofed(&[tunnel], &own) && forwarded(&[tunnel, pass], Family::V4).is_empty());
    assert!(!spoofed(&[host], &from("192.0.2.9", "192.0.2.2")) && !spoofed(&[host], &from("192.0.2.1", "192.0.2.9")));
    let web = |port| ports(TCP, ("192.0.2.1", 50_000), ("192.0.2.2", port), SYN);
    assert!(!spoofed(&[pass, host], &web(80)) && spoofed(&[pass, host], &web(81)) && spoofed(&[host], &web(80)));
    let host = of(Verdict::Protect, true, "2001:db8::1", "2001:db8::2");
    assert!(spoofed(&[host], &from("2001:db8::1", "2001:db8::2")) && !spoofed(&[host], &own));
    // Ports that a fragment does not show: it is dropped.
    let host = of(Verdict::Protect, true, "192.0.2.1[udp/53]", "192.0.2.2");
    let dns = ports(UDP, ("192.0.2.1", 53), ("192.0.2.2", 9), 0);
    assert!(spoofed(&[host], &dns) && spoofed(&[host], &Packet { fragment: true, ..dns.clone() }));
    assert!(!spoofed(&[host], &ports(UDP, ("192.0.2.1", 54), ("192.0.2.2", 9), 0)));
}

/// Verdict of the appended rules of policies on a packet that no rule of the table names.
fn verdict_of_appended(policies: &[GuardPolicy], base: &str, packet: &Packet) -> Option<Expr> {
    let config = config(IKE);
    let exempt = Listening::of(&config).exempt(&config);
    let fixed = Fixed { table: "weir-weir0".into(), tun: "weir0".into(), mark: 1, reverse_path: true };
    let Appended { sets, rules } = Appended::of(&fixed, policies, &mut 0);
    let in_set = |expression: &Expr| match expression {
        Expr::InSet(field, name) => {
            let addr = if matches!(field, Field::Source(_)) { packet.src } else { packet.dst };
            let (_, set) = sets.iter().find(|(number, _)| added_set(*number) == *name).expect("a set of these rules");
            set.ranges.iter().any(|range| range.contains(addr))
        }
        other => is_met(other, packet),
    };
    for (_, rule) in rules.into_iter().filter(|(chain, _)| *chain == base) {
        let (end, matches) = rule.split_last().expect("a verdict");
        if !matches.iter().all(in_set) {
            continue;
        }
        let Expr::Jump(chain) = end else { return Some(end.clone()) };
        let family = if packet.dst.is_ipv6() { Family::V6 } else { Family::V4 };
        let jumped = match chain.as_str() {
            "clear-in4" | "clear-in6" => exempt_in(&exempt, family),
            _ => exempt_out(&[], family),
        };
        if let Some(found) = verdict(&jumped, packet) {
            return Some(found);
        }
    }
    None
}

#[test]
fn appended_rules_close_what_the_table_would() {
    let policy = |local: &str, remote: &str, host| {
        let selector = Selector::from_sides(local.parse().unwrap(), remote.parse().unwrap()).unwrap();
        GuardPolicy { verdict: Verdict::Protect, selector, host }
    };
    let policies = [
        policy("10.1.0.0/16", "10.2.0.0/16", false),
        policy("10.1.0.0/16[tcp]", "10.4.0.0/16[tcp/80]", false),
        policy("2001:db8:1::/48", "2001:db8:2::/48", false),
        policy("192.0.2.1", "192.0.2.2", true),
        policy("0.0.0.0/0", "10.6.0.0/16", false),
    ];
    let clear = |base, src: (&str, u16), dst: (&str, u16), proto| {
        verdict_of_appended(&policies, base, &ports(proto, src, dst, 0))
    };
    for (local, remote, proto) in [
        (("10.1.0.5", 9), ("10.2.0.5", 7), UDP),
        (("10.1.0.5", 9), ("10.4.0.5", 80), TCP),
        (("2001:db8:1::5", 9), ("2001:db8:2::5", 7), UDP),
        (("192.0.2.1", 9), ("192.0.2.2", 7), UDP),
        (("10.1.0.5", 9), ("10.6.0.5", 7), UDP),
    ] {
        assert_eq!(clear("prerouting", remote, local, proto), Some(Expr::Drop), "{remote:?} in");
        assert_eq!(clear("postrouting", local, remote, proto), Some(Expr::Drop), "{remote:?} out");
        let spoofed = clear("prerouting", local, remote, proto);
        // A policy for every source names no source of this side.
        assert_eq!(spoofed.is_some(), remote.0 != "10.6.0.5", "{local:?} from outside");
    }
    // What none of them protects, and what is exempt.
    assert_eq!(clear("prerouting", ("10.3.0.5", 7), ("10.1.0.5", 9), UDP), None);
    assert_eq!(clear("postrouting", ("10.1.0.5", 9), ("10.4.0.5", 81), TCP), None);
    assert_eq!(clear("prerouting", ("192.0.2.2", 500), ("192.0.2.1", 500), UDP), Some(Expr::Accept));
    let esp = packet("192.0.2.2", "192.0.2.1", 50, &[0; 8]);
    assert_eq!(verdict_of_appended(&policies, "prerouting", &esp), Some(Expr::Accept));
    let lan = packet("10.1.0.5", "224.0.0.5", UDP, &[0; 8]);
    let every = [policy("10.1.0.0/16", "0.0.0.0/0", false)];
    assert_eq!(verdict_of_appended(&every, "postrouting", &lan), Some(Expr::Accept), "multicast of the link");
}

/// A gateway of many clients appends as many rules for a hundred of them as for one.
#[test]
fn policies_that_differ_in_remote_addresses_share_their_rules() {
    let policy = |local: &str, remote: &str, host| {
        let selector = Selector::from_sides(local.parse().unwrap(), remote.parse().unwrap()).unwrap();
        GuardPolicy { verdict: Verdict::Protect, selector, host }
    };
    let fixed = Fixed { table: "weir-weir0".into(), tun: "weir0".into(), mark: 1, reverse_path: true };
    let rules = |policies: &[GuardPolicy]| Appended::of(&fixed, policies, &mut 0).rules.len();
    let clients: Vec<_> = (1..=100).map(|at| policy("10.1.0.0/16", &format!("10.2.0.{at}"), false)).collect();
    assert_eq!(rules(&clients), rules(&clients[..1]));
    let others = [
        policy("10.1.0.0/16[tcp]", "10.3.0.1[tcp/80]", false),
        policy("10.4.0.0/16", "10.3.0.2", false),
        policy("192.0.2.1", "10.3.0.3", true),
        policy("10.5.0.0/16", "10.5.0.0/16", false),
        policy("10.1.0.0/16", "0.0.0.0/0", false),
        policy("2001:db8:1::/48", "2001:db8:2::1", false),
    ];
    assert_eq!(
        rules(&[&clients, &others[..]].concat()),
        rules(&clients[..1]) + others.map(|other| rules(&[other])).iter().sum::<usize>()
    );
    let drops = |base, src: &str, dst: &str| {
        verdict_of_appended(&clients, base, &ports(UDP, (src, 9), (dst, 7), 0)) == Some(Expr::Drop)
    };
    for (client, closed) in [("10.2.0.1", true), ("10.2.0.77", true), ("10.2.0.100", true), ("10.2.0.101", false)] {
        assert_eq!(drops("prerouting", client, "10.1.0.5"), closed, "{client} in");
        assert_eq!(drops("postrouting", "10.1.0.5", client), closed, "to {client}");
        assert_eq!(drops("prerouting", "10.1.0.5", client), closed, "as if from this side to {client}");
        assert!(!drops("prerouting", client, "10.9.0.5") && !drops("postrouting", "10.9.0.5", client));
    }
}

#[test]
fn nothing_is_appended_after_a_policy_that_passes_some_of_it() {
    let policy = |verdict, local: &str, remote: &str| {
        let selector = Selector::between(local.parse().unwrap(), remote.parse().unwrap());
        GuardPolicy::new(verdict, selector)
    };
    let table = |policies: &[GuardPolicy]| Rules { policies: policies.to_vec(), ..Rules::default() };
    let additions = |policy: GuardPolicy, current: &Rules, waiting: Option<&Rules>| {
        Additions::of(&[policy], current, &current.policies.iter().copied().collect(), waiting)
    };
    let to = |now: &[GuardPolicy], later: &[GuardPolicy]| Some(Additions { now: now.to_vec(), later: later.to_vec() });
    let passes = table(&[policy(Verdict::Pass, "0.0.0.0/0", "10.2.0.0/16")]);
    let empty = Rules::default();
    for (remote, passed) in [("10.2.5.0/24", true), ("10.0.0.0/8", true), ("10.3.0.0/16", false)] {
        let added = policy(Verdict::Protect, "10.1.0.0/16", remote);
        let (none, there) = (if passed { None } else { to(&[added], &[]) }, table(&[added, passes.policies[0]]));
        assert_eq!(additions(added, &passes, None), none, "{remote}");
        assert_eq!(additions(added, &there, None), to(&[], &[]), "{remote}: already before the pass");
        // The same for the table that waits, also for what the table in the kernel has.
        let none = if passed { None } else { to(&[added], &[added]) };
        assert_eq!(additions(added, &empty, Some(&passes)), none, "{remote}");
        let none = if passed { None } else { to(&[], &[added]) };
        assert_eq!(additions(added, &there, Some(&passes)), none, "{remote}: in force, and removed by what waits");
        assert_eq!(additions(added, &there, Some(&there)), to(&[], &[]), "{remote}");
    }
    let v6 = policy(Verdict::Protect, "::/0", "::/0");
    assert_eq!(additions(v6, &passes, None), to(&[v6], &[]), "the other family");
    let pass = policy(Verdict::Pass, "10.1.0.0/16", "10.2.0.0/16");
    assert_eq!(additions(pass, &passes, None), to(&[], &[]), "a policy that passes packets closes nothing");
}
