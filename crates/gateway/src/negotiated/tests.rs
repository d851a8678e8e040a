use std::path::PathBuf;

use crypto::ike::Secret;
use crypto::{EncAlg, Engine};
use dataplane::{Batch, Publisher, Reports, Snapshot, Worker, WorkerConfig};
use ike::identity::Identity;
use ike::output::{ChildSa, IkeId, Path, SimplexSa};
use ike::proposal::{ChildProtocol, ChildSuite, SequenceNumbers};
use ipsec::Spd;
use wire::Spi;
use wire::registry::CodePoints;

use super::*;
use crate::config::{self, Purpose};

const WORKERS: usize = 2;
/// Packets between the two hosts, one per direction.
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
    // It holds a secret.
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
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
    spare: SpareTables,
    /// References that the last snapshot took: to keys, SAs in and out, names of policies.
    taken: [usize; 4],
    worker: Worker,
    reports: Reports,
    batch: Batch,
    /// 1 and 2: number of its inner network, and of its SPIs.
    number: u8,
    /// IKE SA of the next Child SA.
    ike: u32,
    /// Remote networks of the next Child SA, if they are not those of the section.
    networks: Vec<TrafficSelector>,
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
            spare: SpareTables::default(),
            taken: [0; 4],
            worker,
            reports,
            batch: Batch::new(8, 2048),
            number,
            ike: 1,
            networks: Vec::new(),
        };
        let (connection, config) = (Arc::clone(&host.connection), Arc::clone(&host.connection.children[0]));
        assert!(host.negotiated.stand(&connection, &config, true, true, (None, None)));
        host.publish();
        host
    }

    fn publish(&mut self) {
        // In the memory of the one before the current one, as the gateway does.
        let (mut all, mut keys, index) = Assembly::over(std::mem::take(&mut self.spare));
        self.taken = [keys.follow(&self.keys), 0, 0, 0];
        self.negotiated.assemble(WORKERS, &mut all);
        self.taken[1..].copy_from_slice(&[all.inbound.taken(), all.outbound.taken(), all.policies_taken]);
        let (sas, spd) = ((all.inbound, all.outbound, index), Spd::new(all.policies));
        let mut next = Snapshot::over(sas, spd, keys, CodePoints::default()).unwrap();
        (next.groups, next.per_core) = (all.groups, all.per_core);
        (next.unconfirmed, next.grace_period, next.paced) = (all.unconfirmed, all.grace_period, all.paced);
        let retired = self.published.current();
        self.published.publish(next);
        if let Some(retired) = Arc::into_inner(retired) {
            self.spare = SpareTables::of(retired, &self.published.current(), &self.keys);
        }
    }

    /// The `id`th Child SA of the two comes up; its SPIs are 0x1000 and 0x2000 more than `id`.
    fn up(&mut self, id: u32, cpu: Option<u32>, answered: bool, suite: ChildSuite, now: Instant) {
        self.install_of("b", id, (cpu, answered, true), suite, now);
    }

    fn install_of(
        &mut self,
        peer: &str,
        id: u32,
        (cpu, answered, outbound_now): (Option<u32>, bool, bool),
        suite: ChildSuite,
        now: Instant,
    ) {
        let [inbound, outbound] = [self.number, 3 - self.number].map(|number| SimplexSa {
            spi: Spi::try_from(u32::from(number) * 0x1000 + id).unwrap(),
            enc: Secret::new(vec![number * 16 + id as u8; if suite.sskdf.is_some() { 32 } else { 20 }]),
            integ: Secret::new(Vec::new()),
        });
        let inner = |number: u8| -> Vec<TrafficSelector> { vec![format!("10.{number}.0.0/16").parse().unwrap()] };
        let outer = |number: u8| format!("192.0.2.{number}:500").parse().unwrap();
        let child = ChildSa {
            id: ChildId(id),
            ike: IkeId(self.ike),
            connection: Arc::clone(&self.connection),
            config: Arc::clone(&self.connection.children[0]),
            remote_id: Identity::parse(peer).unwrap(),
            peer_id: Identity::parse(peer).unwrap(),
            suite,
            mode: self.connection.children[0].mode,
            peer_refuses_fragments: false,
            inbound,
            outbound,
            local_ts: inner(self.number),
            remote_ts: if self.networks.is_empty() { inner(3 - self.number) } else { self.networks.clone() },
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

    /// Packets that leave for the other host, including those held before, with the SPIs on the
    /// wire.
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

    /// Sections that packets triggered, and the core.
    fn requested(&mut self) -> Vec<(String, Option<u32>)> {
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

/// Both hosts matched a trap; this host responded to the peer first.
#[test]
fn what_a_peer_asked_for_carries_nothing_until_the_peer_has_it() {
    let (t0, mut host, mut peer) = (Instant::now(), Host::new(1, ""), Host::new(2, ""));
    assert!(host.sends(Some(&PING)).is_empty());
    assert_eq!(host.requested(), [("water".to_owned(), None)]);
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
    assert!(host.requested().is_empty(), "there is an SA");
}

#[test]
fn a_silent_peer_is_waited_for_half_a_second() {
    let (t0, mut host) = (Instant::now(), Host::new(1, ""));
    host.up(1, None, true, gcm(), t0);
    assert!(host.sends(Some(&PING)).is_empty());
    assert!(!host.negotiated.prove(t0 + CONFIRM - Duration::from_millis(1)));
    assert!(host.sends(None).is_empty());
    assert!(!host.negotiated.prove(t0 + CONFIRM), "there is no other, and packets see it without new tables");
    assert_eq!(spis(&host.sends(None)), [0x2001]);
}

#[test]
fn the_request_id_stays_and_idle_times_are_sampled() {
    let (t0, mut host) = (Instant::now(), Host::new(1, ""));
    let at = |seconds| t0 + Duration::from_secs(seconds);
    host.up(1, None, false, gcm(), t0);
    host.up(2, None, false, gcm(), t0);
    let trap = host.negotiated.reqids.of_section(&host.connection, &host.connection.children[0]);
    let reqids: Vec<u32> = host.negotiated.children().map(|child| child.reqid).collect();
    assert_eq!((trap, reqids), (1, vec![1, 1]));
    assert!(host.negotiated.end(ChildId(1), at(1)) && host.negotiated.end(ChildId(2), at(1)));
    assert!(host.negotiated.reap(at(1), &mut host.keys));
    host.up(3, None, false, gcm(), at(2));
    let child = host.negotiated.child_mut(ChildId(3)).unwrap();
    assert_eq!(child.reqid, 1, "reauthentication");
    assert!(!child.look(at(2)));
    assert_eq!(child.idle_s(at(9)), (None, None));
    child.outbound.common.counters.of(0).add_owned(1, 28);
    assert!(!child.look(at(10)));
    child.inbound.common.counters.of(0).add_owned(1, 28);
    assert!(child.look(at(13)));
    assert!(!child.look(at(14)));
    assert_eq!(child.idle_s(at(15)), (Some(2), Some(5)));
}

/// Of two Child SAs for two CPUs (RFC 9611) the peer makes the second.
#[test]
fn beside_another_one_it_is_used_once_the_peer_uses_it() {
    let (t0, mut host) = (Instant::now(), Host::new(1, "per_cpu_sas = yes"));
    host.up(1, None, false, gcm(), t0);
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2001]);
    assert_eq!(host.requested(), [("water".to_owned(), Some(0))]);
    host.up(2, Some(0), true, gcm(), t0);
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2001]);
    assert!(host.requested().is_empty(), "it is on its way");
    assert!(!host.negotiated.prove(t0 + CONFIRM));
    host.negotiated.child(ChildId(2)).unwrap().inbound.common.counters.of(0).add_owned(1, 28);
    assert!(host.negotiated.prove(t0 + CONFIRM));
    host.publish();
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2002]);
}

/// A peer has restarted without INITIAL_CONTACT: it sends nothing by itself, and has no SA but the
/// new one.
#[test]
fn a_new_ike_sa_of_a_peer_that_lost_the_old_one_is_used_after_half_a_second() {
    let (t0, mut host) = (Instant::now(), Host::new(1, ""));
    host.up(1, None, false, gcm(), t0);
    host.ike = 2;
    host.up(2, None, true, gcm(), t0);
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2001], "the peer may not have the new one yet");
    assert!(!host.negotiated.prove(t0 + CONFIRM - Duration::from_millis(1)));
    assert!(host.negotiated.prove(t0 + CONFIRM));
    host.publish();
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2002]);
}

/// With an SA for each CPU (RFC 9611) the restarted peer makes several.
#[test]
fn all_sas_of_a_new_ike_sa_are_used_after_half_a_second() {
    let (t0, mut host) = (Instant::now(), Host::new(1, "per_cpu_sas = yes"));
    host.up(1, None, false, gcm(), t0);
    host.up(2, Some(0), false, gcm(), t0);
    host.ike = 2;
    host.up(3, None, true, gcm(), t0);
    host.up(4, Some(0), true, gcm(), t0);
    assert!(host.negotiated.prove(t0 + CONFIRM));
    host.publish();
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2004]);
    // A rekeying of the new IKE SA: it works, whatever the old one does.
    host.up(5, Some(0), true, gcm(), t0 + CONFIRM);
    assert!(!host.negotiated.prove(t0 + 2 * CONFIRM));
}

/// An SA that only receives until its grace period is over proves nothing, and neither does its
/// end.
#[test]
fn an_sa_in_its_grace_period_does_not_show_that_the_old_ones_work() {
    let (t0, mut host) = (Instant::now(), Host::new(1, ""));
    host.up(1, None, false, gcm(), t0);
    host.negotiated.child(ChildId(1)).unwrap().inbound.common.counters.of(0).add_owned(9, 28);
    host.up(2, None, false, gcm(), t0);
    assert!(host.negotiated.end(ChildId(1), t0 + CONFIRM / 2));
    host.ike = 2;
    host.up(3, None, true, gcm(), t0);
    assert!(host.negotiated.reap(t0 + CONFIRM / 2, &mut host.keys));
    assert!(host.negotiated.prove(t0 + CONFIRM));
}

/// A reauthentication whose response was lost: the peer still uses the old IKE SA.
#[test]
fn an_old_sa_that_receives_carries_the_packets_until_the_new_one_is_confirmed() {
    let (t0, mut host) = (Instant::now(), Host::new(1, ""));
    host.up(1, None, false, gcm(), t0);
    host.ike = 2;
    host.up(2, None, true, gcm(), t0);
    host.negotiated.child(ChildId(1)).unwrap().inbound.common.counters.of(0).add_owned(1, 28);
    assert!(!host.negotiated.prove(t0 + CONFIRM_BESIDE - Duration::from_millis(1)));
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2001]);
    assert!(host.negotiated.prove(t0 + CONFIRM_BESIDE));
}

/// Another peer has the same selectors: it gets no packet of the first one, and its packets are not
/// those of the first.
#[test]
fn two_peers_with_the_same_selectors_share_no_policy() {
    let (t0, mut host, mut peer) = (Instant::now(), Host::new(1, ""), Host::new(2, ""));
    host.up(1, None, false, gcm(), t0);
    peer.up(1, None, false, gcm(), t0);
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2001]);
    let from_first = peer.sends(Some(&PONG));
    // The newer peer takes over (it was allowed to come up), and nothing of the older one is taken
    // any more.
    host.install_of("c", 2, (None, false, true), gcm(), t0);
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2002]);
    assert!(!host.receives(&from_first[0]));
    // A rekeying of the older one does not take it back.
    host.install_of("b", 3, (None, false, true), gcm(), t0);
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2002]);
    assert!(host.negotiated.end(ChildId(1), t0));
    host.publish();
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2002]);
    assert!(host.negotiated.end(ChildId(2), t0));
    host.publish();
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2003]);
}

/// A virtual address goes to another client as soon as the first one has left.
#[test]
fn packets_in_flight_of_a_former_peer_are_not_those_of_the_next_one() {
    for (next, taken) in [("c", false), ("b", true)] {
        let (t0, mut host, mut peer) = (Instant::now(), Host::new(1, ""), Host::new(2, ""));
        host.up(1, None, false, gcm(), t0);
        peer.up(1, None, false, gcm(), t0);
        let (first, second) = (peer.sends(Some(&PONG)), peer.sends(Some(&PONG)));
        assert!(host.negotiated.end(ChildId(1), t0 + CONFIRM));
        host.publish();
        assert!(host.receives(&first[0]), "nothing else has its selectors");
        host.install_of(next, 2, (None, false, true), gcm(), t0);
        assert_eq!(host.receives(&second[0]), taken, "{next}");
    }
}

/// Make before break: the peer deletes the old one as soon as it has the new one.
#[test]
fn the_end_of_the_other_one_is_a_sign_as_well() {
    let (t0, mut host) = (Instant::now(), Host::new(1, ""));
    host.up(1, None, false, gcm(), t0);
    host.up(2, None, true, gcm(), t0);
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2001]);
    assert!(host.negotiated.end(ChildId(1), t0 + CONFIRM));
    host.publish();
    assert_eq!(spis(&host.sends(Some(&PING))), [0x2002]);
}

#[test]
fn after_an_end_what_is_under_way_comes_in_and_the_next_packet_asks_anew() {
    let (t0, mut host, mut peer) = (Instant::now(), Host::new(1, ""), Host::new(2, ""));
    assert!(peer.sends(Some(&PONG)).is_empty());
    assert_eq!(peer.requested().len(), 1);
    host.up(1, None, false, gcm(), t0);
    peer.up(1, None, false, gcm(), t0);
    assert_eq!(spis(&peer.sends(None)), [0x1001]);
    let under_way = host.sends(Some(&PING));
    // All of this within the second in which a trap is reported once.
    assert!(peer.negotiated.end(ChildId(1), t0 + CONFIRM));
    peer.publish();
    assert!(peer.receives(&under_way[0]));
    assert!(!peer.receives(&under_way[0]), "a replay");
    assert!(peer.sends(Some(&PONG)).is_empty());
    assert_eq!(peer.requested(), [("water".to_owned(), None)]);
    assert!(peer.negotiated.reap(t0 + CONFIRM, &mut peer.keys));
    peer.publish();
    assert!(!peer.receives(&host.sends(Some(&PING))[0]), "it has ended");
    assert!(peer.requested().is_empty(), "the trap is the same");
}

/// The order of a rekeying (RFC 7296 §2.8): the responder installs first and starts sending on the
/// new SA last.
#[test]
fn a_rekeying_loses_nothing_however_long_packets_are_under_way() {
    for steps_under_way in 0..4 {
        let (t0, mut host, mut peer) = (Instant::now(), Host::new(1, ""), Host::new(2, ""));
        host.up(1, None, false, gcm(), t0);
        peer.up(1, None, false, gcm(), t0);
        let mut under_way = std::collections::VecDeque::new();
        for step in 0..10 {
            match step {
                2 => peer.install_of("b", 2, (None, true, false), gcm(), t0),
                3 => host.install_of("b", 2, (None, false, true), gcm(), t0),
                4 => {
                    // The Delete is there.
                    peer.negotiated.child_mut(ChildId(2)).unwrap().sending = true;
                    assert!(peer.negotiated.end(ChildId(1), t0 + CONFIRM));
                    peer.publish();
                }
                5 => {
                    assert!(host.negotiated.end(ChildId(1), t0 + CONFIRM));
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
fn a_constant_rate_has_one_stream_that_goes_on_through_a_rekeying() {
    let section = "mode = iptfs\n iptfs_packet_size = 1400\n iptfs_rate = 10mbit";
    let (t0, mut host) = (Instant::now(), Host::new(1, section));
    let streams = |host: &Host| {
        let tables = host.published.current();
        let of = |paced: &dataplane::PacedSa| (Arc::as_ptr(&paced.stream), tables.outbound[paced.slot as usize].spi);
        tables.paced.iter().map(of).collect::<Vec<_>>()
    };
    host.up(1, None, false, gcm(), t0);
    let [(stream, 0x2001)] = streams(&host)[..] else { panic!("{:?}", streams(&host)) };
    assert!(host.sends(Some(&PING)).is_empty(), "the pacer sends");
    // The peer asks for the next one, which waits for its traffic: the old one sends meanwhile.
    host.up(2, None, true, gcm(), t0);
    assert_eq!(streams(&host), [(stream, 0x2001)]);
    host.negotiated.prove(t0 + CONFIRM_BESIDE);
    host.publish();
    assert_eq!(streams(&host), [(stream, 0x2002)]);
    let queued = |host: &Host| host.negotiated.child(ChildId(2)).unwrap().paced.as_ref().unwrap().queued_bytes();
    assert_eq!(queued(&host), PING.len());
    assert!(host.negotiated.end(ChildId(1), t0 + CONFIRM));
    host.publish();
    assert_eq!((streams(&host), queued(&host)), (vec![(stream, 0x2002)], PING.len()));
    // Nothing of it is left after the last one.
    assert!(host.negotiated.end(ChildId(2), t0 + CONFIRM));
    host.publish();
    assert!(streams(&host).is_empty() && host.negotiated.children().all(|child| child.paced.is_none()));
    assert!(host.sends(Some(&PING)).is_empty());
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
    assert!(host.requested().is_empty());
}

#[test]
fn traffic_of_an_ike_sa_is_summed_over_rekeyings_and_ends_with_it() {
    let (t0, mut host) = (Instant::now(), Host::new(1, ""));
    let count = |host: &Host, id: u32| {
        let child = host.negotiated.child(ChildId(id)).unwrap();
        child.inbound.common.counters.of(0).add_owned(2, 200);
        child.outbound.common.counters.of(0).add_owned(3, 300);
    };
    host.up(1, None, false, gcm(), t0);
    count(&host, 1);
    host.up(2, None, false, gcm(), t0);
    count(&host, 2);
    assert!(host.negotiated.end(ChildId(1), t0 + CONFIRM));
    assert_eq!(host.negotiated.totals.gone(IkeId(1)), Sums::default(), "packets may still come");
    assert_eq!(host.negotiated.sums()[&IkeId(1)].packets_in, 4);
    count(&host, 1);
    assert!(host.negotiated.reap(t0 + CONFIRM, &mut host.keys));
    let gone = host.negotiated.totals.gone(IkeId(1));
    assert_eq!((gone.packets_in, gone.bytes_in, gone.packets_out, gone.bytes_out), (4, 400, 6, 600));
    let sums = host.negotiated.sums()[&IkeId(1)];
    assert_eq!((sums.packets_in, sums.bytes_out), (6, 900));
    // After the end of the IKE SA nothing is kept for it.
    host.negotiated.totals.end(IkeId(1));
    assert!(host.negotiated.end(ChildId(2), t0 + CONFIRM));
    assert!(host.negotiated.reap(t0 + CONFIRM, &mut host.keys));
    assert_eq!(host.negotiated.totals.gone(IkeId(1)), Sums::default());
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
    assert_eq!(pairs(&many, &many).len(), ike::selectors::MAX_SELECTORS);
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

/// A reference is counted in the memory of its object. A snapshot beside many Child SAs takes
/// references to the new ones only, and none is kept to those that are gone.
#[test]
fn a_snapshot_takes_references_to_what_changed_only() {
    let (t0, mut host) = (Instant::now(), Host::new(1, ""));
    let network = |number: u32| vec![format!("10.2.{number}.0/24").parse().unwrap()];
    for id in 1..=100 {
        host.networks = network(id);
        host.up(id, None, false, gcm(), t0);
        assert_eq!(host.taken, [2, 1, 1, 1], "Child SA {id}");
    }
    // A rekeying: the old one only receives, and moves behind all others.
    host.networks = network(50);
    host.up(101, None, false, gcm(), t0);
    assert_eq!(host.taken[0], 2);
    let gone = host.negotiated.child(ChildId(50)).map(|child| Arc::downgrade(&child.inbound)).unwrap();
    host.negotiated.end(ChildId(50), t0);
    host.publish();
    assert!(host.negotiated.reap(t0, &mut host.keys));
    // One snapshot without it, and one in whose memory the next is made.
    host.publish();
    host.publish();
    assert_eq!((host.taken, host.published.current().keys.count()), ([0; 4], 200));
    assert!(gone.upgrade().is_none());
}

/// Selectors do not depend on the address of the peer, except `dynamic` ones.
#[test]
fn policies_stand_before_the_address_of_the_peer_is_known() {
    let ts = |addrs: Option<&str>| ike::config::TsConfig {
        addrs: addrs.map(|range| range.parse().unwrap()),
        proto: None,
        ports: PortRange::ANY,
    };
    let config = |name: &str, remote| {
        Arc::new(ChildConfig { local_ts: vec![ts(None)], remote_ts: vec![ts(remote)], ..ChildConfig::new(name) })
    };
    let connection = Arc::new(Connection::new("office"));
    let (net, host) = (config("net", Some("10.2.0.0/16")), config("host", None));
    let mut negotiated = Negotiated::default();
    assert!(negotiated.stand(&connection, &net, true, false, (None, None)));
    assert!(!negotiated.stand(&connection, &host, true, false, (None, None)), "nothing to protect yet");
    let policies = |negotiated: &mut Negotiated| {
        let mut all = Assembly::default();
        negotiated.assemble(1, &mut all);
        let text = |policy: &Policy| {
            let sides = policy.selectors.iter().map(|s| format!("{} to {}", s.src, s.dst)).collect::<Vec<_>>();
            format!("{} {:?} {}", policy.name, policy.action, sides.join(", "))
        };
        all.policies.iter().map(text).collect::<Vec<_>>()
    };
    assert_eq!(policies(&mut negotiated), ["office.net Drop 0.0.0.0/0 to 10.2.0.0/16"]);
    assert_eq!(negotiated.policies().iter().map(|line| line.selectors.len()).sum::<usize>(), 1);
    let dynamic = (Some([192, 0, 2, 1].into()), Some([192, 0, 2, 2].into()));
    assert!(negotiated.stand_again(&connection, dynamic) && !negotiated.stand_again(&connection, dynamic));
    let known = ["office.host Drop 192.0.2.1/32 to 192.0.2.2/32", "office.net Drop 192.0.2.1/32 to 10.2.0.0/16"];
    assert_eq!(policies(&mut negotiated), known);
}

/// The listing, from which the guard is built, has the order in which packets meet policies.
#[test]
fn policies_are_listed_in_the_order_of_packets() {
    let ts =
        |addrs: &str| ike::config::TsConfig { addrs: Some(addrs.parse().unwrap()), proto: None, ports: PortRange::ANY };
    let config = |name: &str, local: &str, remote: &str, mode| {
        let (local_ts, remote_ts) = (vec![ts(local)], vec![ts(remote)]);
        Arc::new(ChildConfig { local_ts, remote_ts, mode, ..ChildConfig::new(name) })
    };
    let connection = Arc::new(Connection::new("c"));
    let mut negotiated = Negotiated::default();
    // What only closes has the narrowest selectors, and comes after the trap that protects the same
    // packets.
    for (name, local, remote, mode, trap) in [
        ("narrow", "10.1.0.0/24", "10.2.0.0/16", ChildMode::Tunnel, false),
        ("wide", "10.1.0.0/16", "10.2.0.0/16", ChildMode::Tunnel, true),
        ("elsewhere", "10.1.0.0/24", "10.9.0.0/24", ChildMode::Tunnel, false),
        ("pass", "10.0.0.0/8", "10.2.0.0/16", ChildMode::Pass, false),
        ("full", "10.0.0.0/8", "0.0.0.0/0", ChildMode::Tunnel, true),
    ] {
        assert!(negotiated.stand(&connection, &config(name, local, remote, mode), true, trap, (None, None)));
    }
    let mut all = Assembly::default();
    negotiated.assemble(1, &mut all);
    let met: Vec<String> = all.policies.iter().map(|policy| policy.name.to_string()).collect();
    let listed: Vec<String> = negotiated.policies().iter().map(|line| line.name().into_owned()).collect();
    assert_eq!(met, ["c.wide", "c.narrow", "c.pass", "c.full", "c.elsewhere"]);
    assert_eq!(listed, met);
}

/// A client with a virtual address: closed for every source until it has one, then for that one.
#[test]
fn standing_policies_of_a_client_wait_for_its_virtual_address() {
    let one = |vips: &[&str], local: &str, mode| {
        let local_ts = match local {
            "dynamic" => crate::config::ts::dynamic(),
            fixed => ike::config::TsConfig { addrs: Some(ts(fixed).addrs), ..crate::config::ts::dynamic() },
        };
        let remote = ike::config::TsConfig { addrs: Some(ts("10.2.0.0/16").addrs), ..crate::config::ts::dynamic() };
        let config = ChildConfig { local_ts: vec![local_ts], remote_ts: vec![remote], mode, ..ChildConfig::new("net") };
        let vips = vips.iter().map(|vip| vip.parse().unwrap()).collect();
        (Arc::new(Connection { vips, ..Connection::new("client") }), Arc::new(config))
    };
    let outer: Dynamic = (Some("192.0.2.1".parse().unwrap()), Some("192.0.2.2".parse().unwrap()));
    let sources = |negotiated: &Negotiated| -> Vec<String> {
        negotiated.policies().iter().flat_map(|line| line.selectors).map(|selector| selector.src.to_string()).collect()
    };
    let given: IpAddr = "10.3.0.1".parse().unwrap();
    for (trap, vips, local, mode, before, after) in [
        (false, &["0.0.0.0"][..], "dynamic", ChildMode::Tunnel, "0.0.0.0/0", "10.3.0.1/32"),
        (true, &["0.0.0.0"], "dynamic", ChildMode::Tunnel, "0.0.0.0/0", "10.3.0.1/32"),
        (true, &["10.3.0.1"], "dynamic", ChildMode::Tunnel, "0.0.0.0/0", "10.3.0.1/32"),
        (true, &["0.0.0.0"], "10.1.0.0/16", ChildMode::Tunnel, "10.1.0.0/16", "10.1.0.0/16"),
        (true, &[], "dynamic", ChildMode::Tunnel, "192.0.2.1/32", "192.0.2.1/32"),
        // What passes in the clear is not widened.
        (false, &["0.0.0.0"], "dynamic", ChildMode::Pass, "192.0.2.1/32", "192.0.2.1/32"),
    ] {
        let (connection, config) = one(vips, local, mode);
        let mut negotiated = Negotiated::default();
        assert!(negotiated.stand(&connection, &config, true, trap, outer));
        assert_eq!(sources(&negotiated), [before]);
        assert_eq!(negotiated.virtual_address(Some("client"), given, true), before != after);
        assert_eq!(sources(&negotiated), [after]);
        assert!(!negotiated.virtual_address(Some("another"), "10.4.0.1".parse().unwrap(), true));
        // The same after a reload, and closed for every source again when the address is lost.
        assert!(negotiated.stand(&connection, &config, true, trap, outer));
        assert_eq!(sources(&negotiated), [after]);
        negotiated.virtual_address(None, given, false);
        assert_eq!(sources(&negotiated), [before]);
    }
}

/// strongSwan and many others agree to 32-bit numbers only.
#[test]
fn an_sa_is_replaced_before_its_sequence_numbers_run_out() {
    let worn = |suite: ChildSuite, packets: u64| {
        let mut host = Host::new(1, "");
        host.up(1, None, false, suite, Instant::now());
        let child = host.negotiated.child(ChildId(1)).unwrap();
        child.outbound.common.counters.of(0).add(packets, packets);
        child.worn()
    };
    assert_eq!(worn(gcm(), (1 << 32) - (1 << 28) - 1), (false, false));
    assert_eq!(worn(gcm(), (1 << 32) - (1 << 28)), (true, false));
    let extended = ChildSuite { sn: SequenceNumbers::Extended, ..gcm() };
    assert_eq!(worn(extended, 1 << 33), (false, false));
}

/// A gateway that gives addresses to its peers: what no peer has is closed, from the load of the
/// pool to the unload.
#[test]
fn addresses_of_pools_are_closed_while_no_peer_has_them() {
    let config = ChildConfig {
        local_ts: vec![ike::config::TsConfig { addrs: Some(ts("10.1.0.0/16").addrs), ..crate::config::ts::dynamic() }],
        remote_ts: vec![crate::config::ts::dynamic()],
        ..ChildConfig::new("net")
    };
    let config = Arc::new(config);
    let connection =
        Arc::new(Connection { pools: vec!["four".to_owned(), "six".to_owned()], ..Connection::new("clients") });
    let pool = |name: &str, addrs: &str| PoolConfig {
        name: name.to_owned(),
        addrs: addrs.parse().unwrap(),
        attributes: Vec::new(),
    };
    let closed = |negotiated: &Negotiated| -> Vec<String> {
        negotiated.policies().iter().flat_map(|line| line.selectors).map(|selector| selector.dst.to_string()).collect()
    };
    let mut negotiated = Negotiated::default();
    assert!(!negotiated.stand(&connection, &config, true, false, (None, None)), "no pool yet");
    let four = pool("four", "10.99.0.0/24");
    assert!(negotiated.set_pools(&[four.clone(), pool("other", "10.98.0.0/24")]));
    assert_eq!(closed(&negotiated), ["10.99.0.0/24"]);
    assert!(!negotiated.set_pools(std::slice::from_ref(&four)), "a pool of no connection");
    // The address family of the local networks decides.
    assert!(!negotiated.set_pools(&[four.clone(), pool("six", "fd99::/64")]));
    // The address of a single peer, too.
    let peer: Dynamic = (None, Some("192.0.2.2".parse().unwrap()));
    assert!(negotiated.stand_again(&connection, peer));
    assert_eq!(closed(&negotiated), ["192.0.2.2/32", "10.99.0.0/24"]);
    assert!(negotiated.stand(&connection, &config, true, false, peer), "loaded again");
    assert_eq!(closed(&negotiated), ["192.0.2.2/32", "10.99.0.0/24"]);
    assert!(negotiated.set_pools(&[]));
    assert_eq!(closed(&negotiated), ["192.0.2.2/32"]);
    assert!(negotiated.set_pools(&[four]));
    assert!(negotiated.stand(&connection, &config, false, false, peer));
    assert_eq!(closed(&negotiated), [""; 0]);
}

/// A reload that makes `start_action = start` of `trap` closes the section first, and the trap goes
/// afterwards.
#[test]
fn a_trap_that_goes_leaves_the_section_closed() {
    let connection = connection(1, "");
    let config = &connection.children[0];
    let mut negotiated = Negotiated::default();
    let actions = |negotiated: &Negotiated| negotiated.policies().iter().map(|line| line.action).collect::<Vec<_>>();
    assert!(negotiated.stand(&connection, config, true, true, (None, None)));
    assert_eq!(actions(&negotiated), ["trap"]);
    assert!(negotiated.stand(&connection, config, true, false, (None, None)));
    assert!(!negotiated.stand(&connection, config, false, true, (None, None)));
    assert_eq!(actions(&negotiated), ["drop"]);
    // The section itself goes.
    assert!(negotiated.stand(&connection, config, false, false, (None, None)));
    assert!(actions(&negotiated).is_empty());
}

/// Where the destination of a packet is the peer, every packet that can have one is closed, and
/// each host requests its own SA.
#[test]
fn a_trap_of_every_host_closes_all_of_them() {
    let trapped = |mode, trap, remote_addrs: &[&str], remote: Option<&str>| {
        let mut connection = Connection::new("any");
        connection.remote_addrs = remote_addrs.iter().map(|range| range.parse::<AddrRange>().unwrap().into()).collect();
        let mut config = ChildConfig::new("net");
        let dynamic = crate::config::ts::dynamic;
        let named = |remote: &str| ike::config::TsConfig { addrs: Some(ts(remote).addrs), ..dynamic() };
        (config.local_ts, config.remote_ts) = (vec![dynamic()], vec![remote.map_or_else(dynamic, named)]);
        (config.mode, config.start_action.trap) = (mode, trap);
        let mut negotiated = Negotiated::default();
        negotiated.stand(&Arc::new(connection), &Arc::new(config), true, true, (None, None));
        let mut all = Assembly::default();
        negotiated.assemble(1, &mut all);
        let selectors = all.policies.iter().flat_map(|policy| policy.selectors.iter());
        let text = selectors.map(|s| format!("{} to {}", s.src, s.dst)).collect::<Vec<_>>();
        let number = all.policies.first().map(|policy| policy.action);
        (text, matches!(number, Some(Action::Trap(number)) if number & TRAP_PER_HOST != 0))
    };
    let every = ["0.0.0.0/0 to 0.0.0.0/0".to_owned(), "::/0 to ::/0".to_owned()];
    assert_eq!(trapped(ChildMode::Transport, true, &[], None), (every.to_vec(), true));
    assert_eq!(trapped(ChildMode::Transport, true, &["0.0.0.0/0"], None), (every[..1].to_vec(), true));
    let few = vec!["0.0.0.0/0 to 192.0.2.0/30".to_owned()];
    assert_eq!(trapped(ChildMode::Transport, true, &["192.0.2.0/30"], None), (few.clone(), true));
    assert_eq!(trapped(ChildMode::Transport, true, &[], Some("192.0.2.0/30")), (few.clone(), true));
    // One that an SA left behind would close everything for a host that only answered.
    assert_eq!(trapped(ChildMode::Transport, false, &[], None), (vec![], false));
    assert_eq!(trapped(ChildMode::Tunnel, true, &[], Some("192.0.2.0/30")), (few, false));
}

/// Without a route to the peer the address of this host is not known, and with `%any` that of the
/// peer is not.
#[test]
fn an_unknown_address_of_this_host_leaves_no_gap() {
    let ts_of = |addrs: Option<&str>| ike::config::TsConfig {
        addrs: addrs.map(|addrs| ts(addrs).addrs),
        ..crate::config::ts::dynamic()
    };
    let connection = Connection::new("c");
    let config = |remote, mode| ChildConfig {
        local_ts: vec![ts_of(None)],
        remote_ts: vec![ts_of(remote)],
        mode,
        ..ChildConfig::new("net")
    };
    let resolved = |remote, mode, addresses| {
        let selectors =
            dynamic::resolve(&connection, &config(remote, mode), dynamic::Given { own: &[], pools: &[] }, addresses)?;
        Some(selectors.iter().map(|s| format!("{}-{}", s.src, s.dst)).collect::<Vec<_>>())
    };
    let peer: IpAddr = "192.0.2.2".parse().unwrap();
    let closed = resolved(Some("10.2.0.0/16"), ChildMode::Tunnel, (None, None));
    assert_eq!(closed, Some(vec!["0.0.0.0/0-10.2.0.0/16".to_owned()]));
    assert_eq!(resolved(None, ChildMode::Tunnel, (None, Some(peer))), Some(vec!["0.0.0.0/0-192.0.2.2/32".to_owned()]));
    assert_eq!(resolved(Some("10.2.0.0/16"), ChildMode::Pass, (None, None)), None);
    assert_eq!(resolved(None, ChildMode::Tunnel, (None, None)), None);
}

/// A peer narrowed the selectors, or a server with Unity listed its networks: packets to the rest
/// of the section do not leave, also where a wider section passes clear text.
#[test]
fn the_rest_of_a_narrowed_section_stays_closed() {
    for (trap, passes) in [(true, false), (true, true), (false, false), (false, true)] {
        let (t0, mut host) = (Instant::now(), Host::new(1, ""));
        let (connection, config) = (Arc::clone(&host.connection), Arc::clone(&host.connection.children[0]));
        host.negotiated.stand(&connection, &config, true, trap, (None, None));
        if passes {
            let wide =
                |addrs: &str| ike::config::TsConfig { addrs: Some(ts(addrs).addrs), ..crate::config::ts::dynamic() };
            let (mode, local_ts) = (ChildMode::Pass, vec![wide("10.0.0.0/8")]);
            let pass = ChildConfig { mode, local_ts, remote_ts: vec![wide("10.0.0.0/8")], ..ChildConfig::new("pass") };
            assert!(host.negotiated.stand(&connection, &Arc::new(pass), true, true, (None, None)));
        }
        host.networks = vec![ts("10.2.0.0/24"), ts("10.2.7.0/24")];
        host.up(1, None, false, gcm(), t0);
        assert_eq!(spis(&host.sends(Some(&PING))), [0x2001], "{trap} {passes}");
        let mut rest = PING;
        rest[18] = 9;
        assert!(host.sends(Some(&rest)).is_empty(), "{trap} {passes}");
        assert_eq!(host.requested().len(), usize::from(trap));
        // What the wider section is for does pass.
        let mut other = PING;
        other[17] = 3;
        assert_eq!(host.sends(Some(&other)).len(), usize::from(passes));
    }
}
