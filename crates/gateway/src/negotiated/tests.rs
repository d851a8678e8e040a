use std::path::PathBuf;

use crypto::ike::Secret;
use crypto::{EncAlg, Engine};
use dataplane::{Batch, Publisher, Reports, Snapshot, Worker, WorkerConfig};
use ike::identity::Identity;
use ike::output::{ChildSa, HalfSa, IkeId, Path};
use ike::proposal::{ChildProtocol, ChildSuite, SequenceNumbers};
use ipsec::Spd;
use wire::Spi;
use wire::registry::CodePoints;

use super::*;
use crate::config::{self, Purpose};

const WORKERS: usize = 2;
/// What the first host sends to the second, and the other way.
const PING: [u8; 28] = [0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0, 10, 1, 0, 1, 10, 2, 0, 1, 0, 9, 0, 9, 0, 8, 0, 0];
const PONG: [u8; 28] = [0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0, 10, 2, 0, 1, 10, 1, 0, 1, 0, 9, 0, 9, 0, 8, 0, 0];

/// A connection with one section, which traps.
fn connection(number: u8, section: &str) -> Arc<Connection> {
    let other = 3 - number;
    let path: PathBuf = std::env::temp_dir().join(format!("weir-negotiated-{}.conf", std::process::id()));
    let text = format!(
        "connections {{ lake {{ remote_addrs = 192.0.2.2\n local {{ auth = psk\n id = a\n }}\n remote {{ auth = psk\n \
         id = b\n }}\n children {{ water {{ local_ts = 10.{number}.0.0/16\n remote_ts = 10.{other}.0.0/16\n start_action = trap\n \
         {section}\n }} }} }} }}\nsecrets {{ ike-1 {{ secret = \"a secret for this test only\"\n }} }}"
    );
    // One after the other: the name is the same.
    static FILE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _file = FILE.lock().unwrap();
    std::fs::write(&path, text).unwrap();
    let config = config::load(&path, Purpose::Gateway);
    std::fs::remove_file(&path).unwrap();
    config.unwrap_or_else(|problems| panic!("{problems}")).keyed.connections.remove(0)
}

/// One of two hosts, and its first worker.
struct Host {
    connection: Arc<Connection>,
    negotiated: Negotiated,
    keys: KeyTable,
    published: Publisher,
    worker: Worker,
    reports: Reports,
    batch: Batch,
    /// 1 and 2: number of its inner network, and of its SPIs.
    number: u8,
}

impl Host {
    fn new(number: u8, section: &str) -> Self {
        let (worker, reports) = Worker::new(WorkerConfig { batch: 8, ..WorkerConfig::default() });
        let nothing = Snapshot::new(vec![], vec![], Spd::new(vec![]), KeyTable::default(), CodePoints::default());
        let mut host = Self {
            connection: connection(number, section),
            negotiated: Negotiated::default(),
            keys: KeyTable::default(),
            published: Publisher::new(nothing.unwrap()),
            worker,
            reports,
            batch: Batch::new(8, 2048),
            number,
        };
        let (connection, config) = (Arc::clone(&host.connection), Arc::clone(&host.connection.children[0]));
        assert!(host.negotiated.stand(&connection, &config, true, true, None));
        host.publish();
        host
    }

    fn publish(&mut self) {
        let mut all = Assembly::default();
        self.negotiated.assemble(WORKERS, &mut all);
        let spd = Spd::new(all.policies);
        let mut next = Snapshot::new(all.inbound, all.outbound, spd, self.keys.clone(), CodePoints::default()).unwrap();
        (next.groups, next.spread) = (all.groups, all.spread);
        (next.unproven, next.ending) = (all.unproven, all.ending);
        self.published.publish(next);
    }

    /// The `id`th Child SA of the two comes up; its SPIs are 0x1000 and 0x2000 more than `id`.
    fn up(&mut self, id: u32, cpu: Option<u32>, answered: bool, suite: ChildSuite, now: Instant) {
        self.install(id, cpu, answered, true, suite, now);
    }

    fn install(
        &mut self,
        id: u32,
        cpu: Option<u32>,
        answered: bool,
        outbound_now: bool,
        suite: ChildSuite,
        now: Instant,
    ) {
        let [inbound, outbound] = [self.number, 3 - self.number].map(|number| HalfSa {
            spi: Spi::try_from(u32::from(number) * 0x1000 + id).unwrap(),
            enc: Secret::new(vec![number * 16 + id as u8; if suite.sskdf.is_some() { 32 } else { 20 }]),
            integ: Secret::new(Vec::new()),
        });
        let inner = |number: u8| -> Vec<TrafficSelector> { vec![format!("10.{number}.0.0/16").parse().unwrap()] };
        let outer = |number: u8| format!("192.0.2.{number}:500").parse().unwrap();
        let child = ChildSa {
            id: ChildId(id),
            ike: IkeId(1),
            connection: Arc::clone(&self.connection),
            config: Arc::clone(&self.connection.children[0]),
            remote_id: Identity::parse("b").unwrap(),
            suite,
            mode: ChildMode::Tunnel,
            inbound,
            outbound,
            local_ts: inner(self.number),
            remote_ts: inner(3 - self.number),
            path: Path { local: outer(self.number), remote: outer(3 - self.number), encap: false },
            replaces: None,
            outbound_now,
            initiator: !answered,
            cpu,
            peer_max_sub_sa_id: None,
            peer_max_crypt_offset: None,
            tfc: true,
            original: None,
        };
        let site =
            Site { engine: Engine::best(), workers: WORKERS, code_points: CodePoints::default(), path_mtu: &|_| 1500 };
        let child = Child::new(&child, &site, 0.0, &mut self.keys).unwrap();
        self.negotiated.install(child, answered, now);
        self.publish();
    }

    /// What comes of a packet to the other host, and of those that waited for it, by the SPIs on the wire.
    fn sends(&mut self, packet: Option<&[u8]>) -> Vec<Vec<u8>> {
        let (tables, mut replies) = (self.published.current(), Batch::new(8, 2048));
        self.batch.clear();
        self.worker.release(&tables, &mut self.batch);
        if let Some(packet) = packet {
            assert!(self.batch.push_with(|slot| slot.set(packet)));
        }
        self.worker.outbound(&tables, &mut self.batch, &mut replies);
        self.batch.packets().iter().map(|packet| packet.bytes().to_vec()).collect()
    }

    fn receives(&mut self, packet: &[u8]) -> bool {
        let tables = self.published.current();
        self.batch.clear();
        assert!(self.batch.push_with(|slot| slot.set(packet)));
        self.worker.inbound(&tables, &mut self.batch);
        self.batch.packets().first().is_some_and(|packet| [PING, PONG].iter().any(|sent| sent == packet.bytes()))
    }

    /// Sections that packets asked for, and for which core.
    fn asks(&mut self) -> Vec<(String, Option<u32>)> {
        let acquires: Vec<Acquire> = std::iter::from_fn(|| self.reports.acquires.pop().ok()).collect();
        let wanted = acquires.iter().filter_map(|acquire| self.negotiated.wanted(acquire));
        wanted.map(|wanted| (wanted.config.name.clone(), wanted.cpu)).collect()
    }
}

fn spis(packets: &[Vec<u8>]) -> Vec<u32> {
    packets.iter().map(|packet| u32::from_be_bytes(packet[20..24].try_into().unwrap())).collect()
}

fn gcm() -> ChildSuite {
    ChildSuite {
        protocol: ChildProtocol::Esp,
        enc: EncAlg::by_name("aes128gcm16"),
        integ: None,
        ke: None,
        additional: Vec::new(),
        slots: Vec::new(),
        sn: SequenceNumbers::Bits32,
        sskdf: None,
    }
}

/// Both ends have met a trap of their own; this host answered the peer first.
#[test]
fn what_a_peer_asked_for_carries_nothing_until_the_peer_has_it() {
    let (t0, mut host, mut peer) = (Instant::now(), Host::new(1, ""), Host::new(2, ""));
    assert!(host.sends(Some(&PING)).is_empty());
    assert_eq!(host.asks(), [("water".to_owned(), None)]);
    host.up(1, None, true, gcm(), t0);
    assert!(host.sends(Some(&PING)).is_empty(), "the peer would drop them");
    peer.up(1, None, false, gcm(), t0);
    let from_peer = peer.sends(Some(&PONG));
    assert_eq!(spis(&from_peer), [0x1001]);
    assert!(host.receives(&from_peer[0]));
    // Held ones first, in order.
    let sent = host.sends(Some(&PING));
    assert_eq!(spis(&sent), [0x2001, 0x2001, 0x2001]);
    assert!(sent.iter().all(|packet| peer.receives(packet)));
    assert!(host.asks().is_empty(), "there is an SA");
}

#[test]
fn a_silent_peer_is_waited_for_half_a_second() {
    let (t0, mut host) = (Instant::now(), Host::new(1, ""));
    host.up(1, None, true, gcm(), t0);
    assert!(host.sends(Some(&PING)).is_empty());
    assert!(!host.negotiated.prove(t0 + SIGN - Duration::from_millis(1)));
    assert!(host.sends(None).is_empty());
    assert!(!host.negotiated.prove(t0 + SIGN), "there is no other, and packets see it without new tables");
    assert_eq!(spis(&host.sends(None)), [0x2001]);
}

/// Of two Child SAs for two CPUs (RFC 9611) the peer makes the second.
#[test]
fn beside_another_one_it_is_used_once_the_peer_uses_it() {
    let (t0, mut host) = (Instant::now(), Host::new(1, "per_cpu_sas = yes"));
    host.up(1, None, false, gcm(), t0);
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2001]);
    assert_eq!(host.asks(), [("water".to_owned(), Some(0))]);
    host.up(2, Some(0), true, gcm(), t0);
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2001]);
    assert!(host.asks().is_empty(), "it is on its way");
    assert!(!host.negotiated.prove(t0 + SIGN));
    host.negotiated.child(ChildId(2)).unwrap().inbound.common.counters.add_owned(0, 1, 28);
    assert!(host.negotiated.prove(t0 + SIGN));
    host.publish();
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2002]);
}

/// Make before break: the peer deletes the old one as soon as it has the new one.
#[test]
fn the_end_of_the_other_one_is_a_sign_as_well() {
    let (t0, mut host) = (Instant::now(), Host::new(1, ""));
    host.up(1, None, false, gcm(), t0);
    host.up(2, None, true, gcm(), t0);
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2001]);
    assert!(host.negotiated.end(ChildId(1), t0 + SIGN));
    host.publish();
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2002]);
}

#[test]
fn after_an_end_what_is_under_way_comes_in_and_the_next_packet_asks_anew() {
    let (t0, mut host, mut peer) = (Instant::now(), Host::new(1, ""), Host::new(2, ""));
    assert!(peer.sends(Some(&PONG)).is_empty());
    assert_eq!(peer.asks().len(), 1);
    host.up(1, None, false, gcm(), t0);
    peer.up(1, None, false, gcm(), t0);
    assert_eq!(spis(&peer.sends(None)), [0x1001]);
    let under_way = host.sends(Some(&PING));
    // All of this within the second in which a trap is reported once.
    assert!(peer.negotiated.end(ChildId(1), t0 + SIGN));
    peer.publish();
    assert!(peer.receives(&under_way[0]));
    assert!(!peer.receives(&under_way[0]), "a replay");
    assert!(peer.sends(Some(&PONG)).is_empty());
    assert_eq!(peer.asks(), [("water".to_owned(), None)]);
    assert!(peer.negotiated.reap(t0 + SIGN, &mut peer.keys));
    peer.publish();
    assert!(!peer.receives(&host.sends(Some(&PING))[0]), "it has ended");
    assert!(peer.asks().is_empty(), "the trap is the same");
}

/// The order of a rekeying (RFC 7296 §2.8): whoever answers installs first and sends on the new one last.
#[test]
fn a_rekeying_loses_nothing_however_long_packets_are_under_way() {
    for steps_under_way in 0..4 {
        let (t0, mut host, mut peer) = (Instant::now(), Host::new(1, ""), Host::new(2, ""));
        host.up(1, None, false, gcm(), t0);
        peer.up(1, None, false, gcm(), t0);
        let mut under_way = std::collections::VecDeque::new();
        for step in 0..10 {
            match step {
                2 => peer.install(2, None, true, false, gcm(), t0),
                3 => host.install(2, None, false, true, gcm(), t0),
                4 => {
                    // The Delete is there.
                    peer.negotiated.child_mut(ChildId(2)).unwrap().sending = true;
                    assert!(peer.negotiated.end(ChildId(1), t0 + SIGN));
                    peer.publish();
                }
                5 => {
                    assert!(host.negotiated.end(ChildId(1), t0 + SIGN));
                    host.publish();
                }
                _ => (),
            }
            under_way.extend([(step, host.sends(Some(&PING)), true), (step, peer.sends(Some(&PONG)), false)]);
            while let Some((_, packets, to_peer)) = under_way.pop_front_if(|(sent, ..)| *sent + steps_under_way <= step)
            {
                assert_eq!(packets.len(), 1, "sent in step {step}");
                let receiver = if to_peer { &mut peer } else { &mut host };
                assert!(receiver.receives(&packets[0]), "step {step}, {steps_under_way} under way, to peer: {to_peer}");
            }
        }
        assert_eq!((spis(&host.sends(Some(&PING))), spis(&peer.sends(Some(&PONG)))), (vec![0x2002], vec![0x1002]));
    }
}

#[test]
fn sub_sas_for_every_cpu_leave_nothing_to_ask_for() {
    let suite = ChildSuite {
        protocol: ChildProtocol::Eesp,
        enc: EncAlg::by_name("aes256gcm16"),
        sn: SequenceNumbers::Bits64,
        sskdf: Some(crypto::kdf::SubSaKdf::HkdfSha256),
        ..gcm()
    };
    let (t0, mut host) = (Instant::now(), Host::new(1, "per_cpu_sas = yes\n eesp_proposals = aes256gcm16-sskdfsha256"));
    host.up(1, None, false, suite, t0);
    assert_eq!(host.sends(Some(&PING)).len(), 1);
    assert!(host.asks().is_empty());
}

fn ts(text: &str) -> TrafficSelector {
    text.parse().unwrap()
}

fn rank(priority: u32, local: &str, remote: &str, order: Order) -> Rank {
    let config = ChildConfig { priority, ..ChildConfig::new("net") };
    Rank::new(&config, &pairs(&[ts(local)], &[ts(remote)]), order)
}

#[test]
fn narrower_policies_come_first_and_sas_before_their_traps() {
    let order = [
        rank(7, "0.0.0.0/0", "0.0.0.0/0", Order::Standing),
        rank(0, "10.1.0.1", "10.2.0.1[tcp/22]", Order::Sa),
        rank(0, "10.1.0.1", "10.2.0.1[tcp]", Order::Sa),
        rank(0, "10.1.0.1", "10.2.0.1", Order::Sa),
        rank(0, "10.1.0.1", "10.2.0.1", Order::Standing),
        rank(0, "10.1.0.0/16", "10.2.0.0/16", Order::Sa),
        rank(0, "10.1.0.0/16", "0.0.0.0/0", Order::Sa),
        rank(0, "0.0.0.0/0", "0.0.0.0/0", Order::Sa),
    ];
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(rank(0, "::/0", "::/0", Order::Sa), rank(0, "0.0.0.0/0", "0.0.0.0/0", Order::Sa));
}

#[test]
fn both_sides_of_a_family_make_pairs_within_a_bound() {
    let made = pairs(&[ts("10.1.0.0/16"), ts("fd01::/16")], &[ts("10.2.0.0/16[tcp]"), ts("fd02::/16"), ts("fd03::1")]);
    assert_eq!(made.len(), 3);
    let many: Vec<_> = (0..200).map(|i| ts(&format!("10.0.{i}.0/24"))).collect();
    assert_eq!(pairs(&many, &many).len(), MAX_SELECTORS);
}

#[test]
fn a_packet_asks_in_the_words_of_its_protocol() {
    use wire::IpProto;
    let key = |proto, ports: (u16, u16)| {
        of_packet(&FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), proto, ports.0, ports.1))
    };
    assert_eq!(key(IpProto::TCP, (1000, 22)), (ts("10.0.0.1[tcp/1000]"), ts("10.0.0.2[tcp/22]")));
    let (local, remote) = key(IpProto::ICMP, (8 << 8, 0));
    assert_eq!((local.ports, remote.ports), (PortRange::single(8 << 8), PortRange::ANY));
    assert_eq!(key(IpProto::GRE, (0, 0)), (ts("10.0.0.1[gre]"), ts("10.0.0.2[gre]")));
    let v6 = FlowKey::new("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), IpProto::UDP, 5, 6);
    assert_eq!(of_packet(&v6), (ts("fd00::1[udp/5]"), ts("fd00::2[udp/6]")));
}
