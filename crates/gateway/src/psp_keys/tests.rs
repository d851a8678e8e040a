//! Two services in one process: certificates, TLS over loopback, keys, packets through two workers.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::KeyTable;
use dataplane::{Batch, Snapshot, Worker, WorkerConfig};
use ike::config::{Auth, AuthMethod, Host, StartAction};
use ike::identity::IdPattern;
use ipsec::Spd;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, KeyUsagePurpose};
use wire::AddrRange;
use wire::psp::{PspSpi, PspVersion};

use super::associations::Associations;
use super::fizz::{self, Short};
use super::message::{Code, TrafficKey};
use super::service::{DataPlane, PeerListing, PspService, Setup};
use crate::config::{PspChild, PspConfig, PspMode};
use crate::negotiated::Assembly;
use credentials::{CertificateUse, Credentials, Origin};

const A: &str = "127.0.71.1";
const B: &str = "127.0.71.2";
const HOUR: Duration = Duration::from_secs(3600);

/// A certification authority.
struct Authority(rcgen::Issuer<'static, KeyPair>, Vec<u8>);

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let der = params.self_signed(&key).unwrap().der().to_vec();
        Self(rcgen::Issuer::new(params, key), der)
    }

    /// Certificate and key of a host.
    fn leaf(&self, name: &str) -> (Vec<u8>, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.use_authority_key_identifier_extension = true;
        (params.signed_by(&key, &self.0).unwrap().der().to_vec(), key.serialize_der())
    }
}

/// The packet side of one end.
struct Bench {
    associations: Associations,
    keys: KeyTable,
    tables: Arc<Snapshot>,
    worker: Worker,
    published: usize,
}

impl Bench {
    fn new() -> Self {
        let (associations, keys) = (Associations::default(), KeyTable::default());
        let tables = Arc::new(assemble(&associations, &keys));
        let worker = Worker::new(WorkerConfig { batch: 8, ..WorkerConfig::default() }).0;
        Self { associations, keys, tables, worker, published: 0 }
    }

    /// Takes a packet through the worker, from the inner side or from the outer one.
    fn take(&mut self, packet: &[u8], outwards: bool) -> Option<Vec<u8>> {
        let (mut batch, mut replies) = (Batch::new(8, 2048), Batch::new(8, 2048));
        assert!(batch.push_with(|slot| slot.set(packet)));
        if outwards {
            self.worker.outbound(&self.tables, &mut batch, &mut replies);
        } else {
            self.worker.inbound(&self.tables, &mut batch);
        }
        batch.packets().first().map(|packet| packet.bytes().to_vec())
    }
}

fn assemble(associations: &Associations, keys: &KeyTable) -> Snapshot {
    let mut all = Assembly::default();
    associations.assemble(&mut all);
    let Assembly { outbound, inbound, groups, policies, .. } = all;
    let points = wire::registry::CodePoints::default();
    let mut snapshot =
        Snapshot::new(inbound.finish(), outbound.finish(), Spd::new(policies), keys.clone(), points).unwrap();
    snapshot.groups = groups;
    snapshot
}

impl DataPlane for Bench {
    fn psp(&mut self, _: bool) -> (&mut Associations, &mut KeyTable) {
        (&mut self.associations, &mut self.keys)
    }

    fn associations(&self) -> &Associations {
        &self.associations
    }

    fn path_mtu(&mut self, _: Instant, _: IpAddr) -> u32 {
        1500
    }

    fn commit(&mut self, _: Instant) -> anyhow::Result<()> {
        let mut next = assemble(&self.associations, &self.keys);
        self.published += 1;
        next.generation = self.published as u64;
        self.tables = Arc::new(next);
        Ok(())
    }
}

/// One end.
struct End {
    service: PspService,
    bench: Bench,
    credentials: Arc<Credentials>,
    config: PspConfig,
}

fn free_port(addr: &str) -> u16 {
    TcpListener::bind((addr, 0)).unwrap().local_addr().unwrap().port()
}

fn auth(id: &str) -> Auth {
    Auth::new(AuthMethod::PublicKey(Vec::new()), IdPattern::parse(id).unwrap())
}

fn child(mode: PspMode, local: &str, remote: &str) -> PspChild {
    let ts = |text: &str| {
        let ts: wire::TrafficSelector = text.parse().unwrap();
        vec![ike::config::TsConfig { addrs: Some(ts.addrs), proto: ts.proto, ports: ts.ports }]
    };
    PspChild {
        name: "net".into(),
        versions: vec![0],
        mode,
        local_ts: ts(local),
        remote_ts: ts(remote),
        crypt_offset: 0,
        max_crypt_offset: 0,
        cookie: None,
        replay_window: 64,
        rekey_time: HOUR,
        rekey_packets: 1 << 32,
        start_action: StartAction::default(),
        copy_df: true,
        copy_ecn: true,
        copy_dscp: true,
    }
}

fn host(addr: &str) -> Vec<Host> {
    let addr: IpAddr = addr.parse().unwrap();
    vec![Host::Range(AddrRange { start: addr, end: addr })]
}

impl End {
    fn new(authority: &Authority, trusts: &Authority, me: (&str, &str, u16), other: (&str, &str, u16)) -> Self {
        let credentials = Arc::new(Credentials::spawn(|| {}));
        let (certificate, key) = authority.leaf(me.0);
        credentials.with_store(|store| {
            store.add_certificates(&trusts.1, CertificateUse::Authority, Origin::File).unwrap();
            store.add_certificates(&certificate, CertificateUse::EndEntity, Origin::File).unwrap();
            store.add_private_key(&key, &[], Origin::File).unwrap();
        });
        let service = PspService::start(Setup {
            port: 1000,
            mark: 0,
            rotation: HOUR,
            workers: 1,
            identities: credentials.identities(),
            waker: Box::new(|| {}),
        });
        let net = |addr: &str| if addr == A { "10.1.0.0/16" } else { "10.2.0.0/16" };
        let config = PspConfig {
            name: "peer".into(),
            local: host(me.1),
            remote: host(other.1),
            local_port: me.2,
            remote_port: other.2,
            local_auth: auth(me.0),
            remote_auth: auth(other.0),
            dpd_delay: Duration::from_secs(30),
            keyingtries: 0,
            children: vec![child(PspMode::Tunnel, net(me.1), net(other.1))],
        };
        Self { service: service.unwrap(), bench: Bench::new(), credentials, config }
    }

    fn load(&mut self) {
        let faults = self.service.load(Instant::now(), std::slice::from_ref(&self.config), &mut self.bench);
        assert_eq!(faults, [""; 0]);
    }

    fn turn(&mut self) {
        self.service.turn(Instant::now(), &mut self.bench);
    }

    fn peer(&self) -> PeerListing {
        self.service.listing(Instant::now(), &self.bench.associations).remove(0)
    }

    fn sends(&self) -> bool {
        self.service
            .listing(Instant::now(), &self.bench.associations)
            .iter()
            .any(|peer| peer.children[0].sending.is_some())
    }
}

fn pair() -> [End; 2] {
    let authority = Authority::new();
    let (a, b) = (("a.test", A, free_port(A)), ("b.test", B, free_port(B)));
    [End::new(&authority, &authority, a, b), End::new(&authority, &authority, b, a)]
}

/// Turns both until something is so.
fn until(ends: &mut [End; 2], what: &str, done: impl Fn(&[End; 2]) -> bool) {
    let start = Instant::now();
    while !done(ends) {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: {:?} {:?}", ends[0].peer(), ends[1].peer());
        ends.iter_mut().for_each(End::turn);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// UDP over IPv4, without checksums that matter here.
fn packet(src: [u8; 4], dst: [u8; 4]) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0];
    bytes.extend(src);
    bytes.extend(dst);
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend([0x13, 0x88, 0x13, 0x89, 0, 16, 0, 0]);
    bytes.extend(b"keyed!!!");
    bytes
}

#[test]
fn two_services_key_each_other_and_packets_pass_both_ways() {
    let mut ends = pair();
    ends.iter_mut().for_each(End::load);
    let (there, back) = (packet([10, 1, 0, 1], [10, 2, 0, 1]), packet([10, 2, 0, 1], [10, 1, 0, 1]));
    assert_eq!(ends[0].bench.take(&there, true), None, "without keys nothing leaves");
    let [a, _] = &mut ends;
    assert_eq!(a.service.initiate(Instant::now(), "peer", Some("net"), &mut a.bench), 1);
    until(&mut ends, "both ways", |ends| ends.iter().all(End::sends));
    let pass = |ends: &mut [End; 2], from: usize, plain: &[u8]| {
        let sealed = ends[from].bench.take(plain, true).expect("protected");
        assert_eq!(sealed[9], 17);
        assert_eq!(sealed[22..24], 1000u16.to_be_bytes());
        assert!(!sealed.windows(8).any(|window| window == b"keyed!!!"));
        let opened = ends[1 - from].bench.take(&sealed, false).expect("opened");
        assert_eq!(opened[20..], plain[20..]);
        assert_eq!(ends[1 - from].bench.take(&sealed, false), None, "replays are dropped");
        sealed
    };
    pass(&mut ends, 0, &there);
    let sealed = pass(&mut ends, 1, &back);
    // Between other addresses the SPI is worth nothing.
    let mut elsewhere = sealed.clone();
    elsewhere[15] = 9;
    assert_eq!(ends[0].bench.take(&elsewhere, false), None);

    // A new key before the old one reaches its limit: packets in flight still arrive.
    let late = ends[0].bench.take(&there, true).expect("protected");
    let before = ends[0].peer().children[0].sending.clone().unwrap().spi;
    std::thread::sleep(Duration::from_millis(1100));
    let [a, _] = &mut ends;
    assert_eq!(a.service.rekey(Instant::now(), "peer", Some("net"), &mut a.bench), 1);
    until(&mut ends, "another key", |ends| {
        ends[0].peer().children[0].sending.as_ref().is_some_and(|line| line.spi != before)
    });
    pass(&mut ends, 0, &there);
    assert!(ends[1].bench.take(&late, false).is_some());
    let traffic = ends[0].peer().children[0].traffic;
    assert_eq!((traffic.packets_out, traffic.packets_in), (3, 1));
    until(&mut ends, "a look at the packets", |ends| {
        let idle = ends[0].peer().children[0].idle_s;
        idle.0.is_some() && idle.1.is_some()
    });

    // Unloading removes the policy and all state, and notifies the peer.
    let [a, b] = &mut ends;
    assert_eq!(a.service.load(Instant::now(), &[], &mut a.bench), [""; 0]);
    assert_eq!(a.bench.associations.captured().count(), 0);
    let start = Instant::now();
    while b.sends() {
        assert!(start.elapsed() < Duration::from_secs(10));
        b.turn();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(b.bench.take(&back, true), None, "never in the clear");
    assert_eq!(b.bench.associations.captured().count(), 1);
}

/// A reload of the end that did not ask for keys: with settings that old associations may go on
/// with no packet is lost, and otherwise there are new keys at once.
#[test]
fn a_reload_of_a_changed_child_keeps_traffic_or_restores_it() {
    let spis = |ends: &[End; 2]| {
        ends.iter().map(|end| end.peer().children[0].sending.clone().map(|line| line.spi)).collect::<Vec<_>>()
    };
    let renewed = |ends: &[End; 2], before: &[Option<wire::psp::PspSpi>]| {
        spis(ends).iter().zip(before).all(|(now, before)| now.is_some() && now != before)
    };
    type Change = fn(&mut PspChild);
    let changes: [(Change, bool); 5] = [
        (|child| child.rekey_time = 2 * HOUR, true),
        (|child| child.replay_window = 256, true),
        (|child| child.copy_df = false, true),
        (|child| child.replay_window = 0, false),
        (|child| child.versions = vec![0, 1], false),
    ];
    for (change, keeps) in changes {
        let mut ends = pair();
        ends.iter_mut().for_each(End::load);
        let [a, _] = &mut ends;
        assert_eq!(a.service.initiate(Instant::now(), "peer", Some("net"), &mut a.bench), 1);
        until(&mut ends, "both ways", |ends| ends.iter().all(End::sends));
        // A key at most every second.
        std::thread::sleep(Duration::from_millis(1100));
        let before = spis(&ends);
        let [_, b] = &mut ends;
        change(&mut b.config.children[0]);
        b.load();
        let start = Instant::now();
        let mut lost = 0;
        while !renewed(&ends, &before) {
            assert!(start.elapsed() < Duration::from_secs(20), "{:?} {:?}", ends[0].peer(), ends[1].peer());
            for from in [0, 1] {
                let (mine, theirs) = ([10, 1 + from as u8, 0, 1], [10, 2 - from as u8, 0, 1]);
                let sealed = ends[from].bench.take(&packet(mine, theirs), true);
                let opened = sealed.and_then(|sealed| ends[1 - from].bench.take(&sealed, false));
                lost += usize::from(opened.is_none());
            }
            ends.iter_mut().for_each(End::turn);
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(!keeps || lost == 0, "{lost} packets were lost");
    }
}

#[test]
fn a_peer_whose_name_has_no_address_is_closed_until_it_has_one() {
    let mut ends = pair();
    for (end, other) in ends.iter_mut().zip([B, A]) {
        end.config.children[0].start_action.start = true;
        end.config.remote = vec![Host::Name("other.test".into())];
        end.load();
        let there = packet([10, if other == B { 1 } else { 2 }, 0, 1], [10, if other == B { 2 } else { 1 }, 0, 1]);
        let requests = end.service.requests();
        assert_eq!(requests.len(), 1);
        assert_eq!(end.bench.associations.captured().count(), 1, "closed before there is an answer");
        let failed = end.service.resolved(
            Instant::now(),
            requests[0].0,
            Err(ike::hosts::ResolveError::TimedOut),
            &mut end.bench,
        );
        assert_eq!(failed, ["'other.test' has no address: timed out"]);
        assert_eq!((end.bench.associations.captured().count(), end.bench.take(&there, true)), (1, None));
        // A reload triggers a new request, and so does a timeout.
        std::thread::sleep(Duration::from_millis(1100));
        end.load();
        let requests = end.service.requests();
        assert_eq!(
            end.service.resolved(Instant::now(), requests[0].0, Ok(vec![other.parse().unwrap()]), &mut end.bench),
            [""; 0]
        );
        assert_eq!(end.bench.associations.captured().count(), 1, "one policy, that of the peer");
    }
    until(&mut ends, "both ways", |ends| ends.iter().all(End::sends));
    // A reload while the resolver fails keeps the address.
    let [a, _] = &mut ends;
    std::thread::sleep(Duration::from_millis(1100));
    a.load();
    let request = a.service.requests().remove(0);
    a.service.resolved(Instant::now(), request.0, Err(ike::hosts::ResolveError::TimedOut), &mut a.bench);
    assert!(a.sends());
}

/// A hub for every certificate `*.test` in 127.0.71.0/24, and branches that connect to it, all with
/// 10.2.0.0/16.
struct Site {
    authority: Authority,
    hub: End,
}

impl Site {
    fn new() -> Self {
        let authority = Authority::new();
        let port = free_port(A);
        let mut hub = End::new(&authority, &authority, ("a.test", A, port), ("b.test", B, port));
        hub.config.remote = vec![Host::Range(AddrRange::from_cidr(A.parse().unwrap(), 24).unwrap())];
        hub.config.remote_auth = auth("*.test");
        hub.load();
        Self { authority, hub }
    }

    fn branch(&self, name: &str, addr: &str) -> End {
        let (me, hub) = ((name, addr, free_port(addr)), ("a.test", A, self.hub.config.local_port));
        let mut end = End::new(&self.authority, &self.authority, me, hub);
        end.config.children[0].start_action.start = true;
        end.load();
        end
    }

    fn peers(&self) -> Vec<PeerListing> {
        self.hub.service.listing(Instant::now(), &self.hub.bench.associations)
    }

    /// Destination to which the hub sends a packet for 10.2.0.1.
    fn target(&mut self) -> Option<u8> {
        self.hub.bench.take(&packet([10, 1, 0, 1], [10, 2, 0, 1]), true).map(|sealed| sealed[19])
    }

    fn until(&mut self, branch: &mut End, what: &str, done: impl Fn(&mut Self, &End) -> bool) {
        let start = Instant::now();
        while !done(self, branch) || !branch.sends() {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}: {:?}", self.peers());
            self.turn(branch);
        }
        // Packets in flight arrive.
        (0..20).for_each(|_| self.turn(branch));
    }

    fn turn(&mut self, branch: &mut End) {
        self.hub.turn();
        branch.turn();
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_peer_that_comes_from_another_address_gets_its_packets_there() {
    let mut site = Site::new();
    assert_eq!(site.target(), None, "closed before the first peer");
    let captured = site.hub.bench.associations.captured().count();
    assert!(captured > 0);
    let mut first = site.branch("b.test", B);
    site.until(&mut first, "the first address", |site, _| site.target() == Some(2));
    // It vanishes, and is back at another address while its keys are good still.
    drop(first);
    let mut second = site.branch("b.test", "127.0.71.3");
    site.until(&mut second, "the second address", |site, _| site.target() == Some(3));
    assert_eq!(site.peers().len(), 2);
    let sealed = site.hub.bench.take(&packet([10, 1, 0, 1], [10, 2, 0, 1]), true).unwrap();
    assert!(second.bench.take(&sealed, false).is_some());
    // It ends its associations: it is forgotten at once, and its traffic stays closed.
    second.service.shutdown(Instant::now(), &mut second.bench);
    drop(second);
    let start = Instant::now();
    while site.peers().iter().any(|peer| peer.remote.to_string() == "127.0.71.3") {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", site.peers());
        site.hub.turn();
        std::thread::sleep(Duration::from_millis(2));
    }
    // The deadline of the keys of the first address passes.
    site.hub.service.turn(Instant::now() + 3 * HOUR, &mut site.hub.bench);
    assert!(site.peers().is_empty(), "{:?}", site.peers());
    assert_eq!(site.target(), None, "closed after the last peer");
    assert_eq!(site.hub.bench.associations.captured().count(), captured);
}

#[test]
fn another_identity_does_not_take_selectors_that_are_in_use() {
    let mut site = Site::new();
    let mut first = site.branch("b.test", B);
    site.until(&mut first, "the first branch", |site, _| site.target() == Some(2));
    // At another address, and at the same one.
    for addr in ["127.0.71.4", B] {
        let mut second = site.branch("c.test", addr);
        let start = Instant::now();
        while second.peer().fault.is_none() {
            assert!(start.elapsed() < Duration::from_secs(20));
            first.turn();
            site.turn(&mut second);
        }
        assert!(!second.sends());
        assert_eq!((site.target(), site.peers().len()), (Some(2), 1));
    }
    // What the first one had is free when it has ended that.
    first.service.shutdown(Instant::now(), &mut first.bench);
    drop(first);
    let mut second = site.branch("c.test", "127.0.71.4");
    site.until(&mut second, "the other branch", |site, _| site.target() == Some(4));
}

#[test]
fn one_identity_has_a_bounded_number_of_addresses() {
    let mut site = Site::new();
    for last in 2..10 {
        let mut branch = site.branch("b.test", &format!("127.0.71.{last}"));
        site.until(&mut branch, "a branch", |site, _| site.target() == Some(last));
    }
    assert_eq!(site.peers().len(), super::service::MAX_PER_IDENTITY);
}

#[test]
fn both_ends_start_at_once_and_agree() {
    let mut ends = pair();
    for end in &mut ends {
        end.config.children[0].start_action.start = true;
        end.load();
    }
    until(&mut ends, "both ways", |ends| ends.iter().all(End::sends));
    let there = packet([10, 1, 0, 1], [10, 2, 0, 1]);
    let sealed = ends[0].bench.take(&there, true).unwrap();
    assert!(ends[1].bench.take(&sealed, false).is_some());
}

/// Repeats until one host reports a fault that contains `first`, and the other one a fault that
/// contains `second`.
fn refused(mut ends: [End; 2], first: &str, second: &str) {
    ends.iter_mut().for_each(End::load);
    let [a, _] = &mut ends;
    a.service.initiate(Instant::now(), "peer", None, &mut a.bench);
    let says = |end: &End, what: &str| what.is_empty() || end.peer().fault.is_some_and(|fault| fault.contains(what));
    until(&mut ends, "a reason", |ends| says(&ends[0], first) && says(&ends[1], second));
    assert!(!ends.iter().any(End::sends));
    assert_eq!(ends[0].bench.take(&packet([10, 1, 0, 1], [10, 2, 0, 1]), true), None);
}

#[test]
fn who_cannot_prove_who_he_is_gets_no_key() {
    let (authority, other) = (Authority::new(), Authority::new());
    let ids = || (("a.test", A, free_port(A)), ("b.test", B, free_port(B)));
    // The server's CA is not trusted by the client; then the client's not by the server.
    let (a, b) = ids();
    refused([End::new(&authority, &other, a, b), End::new(&authority, &authority, b, a)], "certificate", "");
    let (a, b) = ids();
    refused(
        [End::new(&authority, &authority, a, b), End::new(&authority, &other, b, a)],
        "rejected this host's certificate; see",
        "",
    );
    // A trusted certificate of another identity.
    let mut ends = pair();
    ends[0].config.remote_auth = auth("c.test");
    refused(ends, "does not belong to 'c.test'", "");
    let mut ends = pair();
    ends[1].config.remote_auth = auth("c.test");
    refused(ends, "rejected this host's certificate; see", "");
}

#[test]
fn a_child_that_does_not_fit_is_named_at_both_ends() {
    let mut ends = pair();
    ends[1].config.children[0].mode = PspMode::Transport;
    refused(ends, Code::OTHER_MODE.meaning(), Code::OTHER_MODE.meaning());
}

#[test]
fn keys_survive_the_control_connection_and_a_restart_brings_new_ones() {
    let mut ends = pair();
    for end in &mut ends {
        end.config.children[0].start_action.start = true;
        end.load();
    }
    until(&mut ends, "both ways", |ends| ends.iter().all(End::sends));
    let there = packet([10, 1, 0, 1], [10, 2, 0, 1]);
    let spi = ends[0].peer().children[0].sending.clone().unwrap().spi;
    // The second host restarts with new master keys.
    let [_, b] = &mut ends;
    b.service = PspService::start(Setup {
        port: 1000,
        mark: 0,
        rotation: HOUR,
        workers: 1,
        identities: b.credentials.identities(),
        waker: Box::new(|| {}),
    })
    .unwrap();
    b.bench = Bench::new();
    ends[0].turn();
    assert!(ends[0].bench.take(&there, true).is_some(), "a lost control connection changes nothing");
    std::thread::sleep(Duration::from_millis(50));
    ends[1].load();
    let renewed = |end: &End| end.peer().children[0].sending.as_ref().is_some_and(|line| line.spi != spi);
    until(&mut ends, "new keys", |ends| renewed(&ends[0]) && ends[1].sends());
    let sealed = ends[0].bench.take(&there, true).unwrap();
    assert!(ends[1].bench.take(&sealed, false).is_some());
}

/// A program with the short form: TLS, one message per direction, then the marker on the same
/// connection.
#[test]
fn a_program_with_the_short_form_gets_its_keys() {
    short_form(false);
}

#[test]
fn a_marker_that_arrives_with_the_message_of_the_short_form_is_answered() {
    short_form(true);
}

/// A program that gets keys by the short form. It sends its message and the marker `together` or
/// one after the other.
fn short_form(together: bool) {
    let [mut end, program] = pair();
    end.config.children = vec![child(PspMode::Transport, A, B)];
    end.config.remote_port = 1;
    end.load();
    let (from, to): (SocketAddr, SocketAddr) =
        (format!("{B}:0").parse().unwrap(), SocketAddr::new(A.parse().unwrap(), end.config.local_port));
    let identities = program.credentials.identities();
    let mut config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(identities.servers(&auth("a.test")).unwrap())
            .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(Arc::unwrap_or_clone(
                identities.own(&auth("b.test")).unwrap(),
            ))));
    config.alpn_protocols = vec![fizz::ALPN.to_vec()];
    let name = rustls_pki_types::ServerName::IpAddress(to.ip().into());
    let mut tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();

    let program = std::thread::spawn(move || {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&from.into()).unwrap();
        socket.connect(&to.into()).unwrap();
        let mut stream: TcpStream = socket.into();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut got = [0; fizz::MAX_LEN];
        rustls::Stream::new(&mut tls, &mut stream).read_exact(&mut got).unwrap();
        let Some((Short::Sa(spi, version, _), _)) = Short::parse(&got).unwrap() else { panic!("no SA") };
        let mine = Short::Sa(PspSpi::try_from(7).unwrap(), PspVersion::AES_128_GCM, TrafficKey::new(&[9; 16]).unwrap());
        if together {
            tls.writer().write_all(&mine.emit()).unwrap();
            let mut bytes = Vec::new();
            while tls.wants_write() {
                tls.write_tls(&mut bytes).unwrap();
            }
            stream.write_all(&[&bytes, &fizz::MARKER[..]].concat()).unwrap();
        } else {
            rustls::Stream::new(&mut tls, &mut stream).write_all(&mine.emit()).unwrap();
            stream.write_all(fizz::MARKER).unwrap();
        }
        let mut marker = [0; 8];
        stream.read_exact(&mut marker).unwrap();
        assert_eq!(&marker, fizz::MARKER);
        (spi, version)
    });
    let start = Instant::now();
    while !program.is_finished() {
        assert!(start.elapsed() < Duration::from_secs(20));
        end.turn();
        std::thread::sleep(Duration::from_millis(2));
    }
    let (spi, version) = program.join().unwrap();
    (0..20).for_each(|_| {
        end.turn();
        std::thread::sleep(Duration::from_millis(5));
    });
    let line = end.peer().children.remove(0);
    assert_eq!(line.sending.map(|line| line.spi.get()), Some(7));
    assert_eq!(line.receiving.iter().map(|line| (line.spi, line.version)).collect::<Vec<_>>(), [(spi, version.get())]);
    let out = packet([127, 0, 71, 1], [127, 0, 71, 2]);
    assert!(end.bench.take(&out, true).is_some_and(|sealed| sealed[22..24] == 1000u16.to_be_bytes()));
}

#[test]
fn nonsense_and_silence_are_turned_away() {
    let mut ends = pair();
    ends.iter_mut().for_each(End::load);
    let to = SocketAddr::new(A.parse().unwrap(), ends[0].config.local_port);
    // From an address that no connection admits: closed without a word.
    let mut stranger = TcpStream::connect(to).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    ends[0].turn();
    assert_eq!(stranger.read(&mut [0; 8]).unwrap_or(0), 0);
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let from: SocketAddr = format!("{B}:0").parse().unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream: TcpStream = socket.into();
    stream.write_all(&[0xff; 64]).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.len() < 64);
    // Others go on.
    let [a, _] = &mut ends;
    a.service.initiate(Instant::now(), "peer", None, &mut a.bench);
    until(&mut ends, "both ways", |ends| ends.iter().all(End::sends));
}

#[test]
fn a_handshake_ends_when_no_connection_admits_it_any_more() {
    let mut ends = pair();
    ends[0].load();
    let to = SocketAddr::new(A.parse().unwrap(), ends[0].config.local_port);
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let from: SocketAddr = format!("{B}:0").parse().unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream: TcpStream = socket.into();
    // Less than the time for a handshake.
    stream.set_read_timeout(Some(Duration::from_secs(6))).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let End { service, bench, .. } = &mut ends[0];
    service.drain(Instant::now(), bench);
    let outcome = stream.read_to_end(&mut Vec::new());
    assert!(!outcome.is_err_and(|why| why.kind() == std::io::ErrorKind::WouldBlock), "the handshake goes on");
}
