//! AGGFRAG mode and tunnel mode in one batch, padding after inner packets, failures and limits.

use super::*;

/// Packets of a batch.
const MOST: usize = 128;
/// Path MTU of the SAs in AGGFRAG mode: payloads of 346 bytes with 342 bytes of inner packets.
const PATH_MTU: usize = 400;
const ROOM: usize = 342;

/// SAs of a test: SA `n` is for packets to 192.0.2.`2 + n` and 2001:db8::`2 + n`, and has the SPI
/// `SPI + n`. Even ones are in AGGFRAG mode, odd ones are tunnels.
#[derive(Clone, Copy, Debug)]
struct Mixed {
    sas: u8,
    /// See [`WorkerConfig::alone`].
    alone: bool,
    /// See [`Snapshot::many_sas`].
    many_sas: bool,
    /// Path MTU of the tunnels.
    tunnel_mtu: usize,
    /// Hard limits of SA 0.
    limit: Lifetime,
    /// The key of SA 0 is missing.
    without_key: bool,
}

impl Mixed {
    const TWO: Self =
        Self { sas: 2, alone: false, many_sas: false, tunnel_mtu: 1500, limit: Lifetime::NONE, without_key: false };

    /// Each kind of worker, with few and with many SAs.
    fn variants(self) -> impl Iterator<Item = Self> {
        let kinds = [(false, false), (false, true), (true, false), (true, true)];
        kinds.into_iter().map(move |(alone, many_sas)| Self { alone, many_sas, ..self })
    }

    fn common(self, n: u8, receiving: bool) -> SaCommon {
        let limit = if n == 0 && !receiving { self.limit } else { Lifetime::NONE };
        let mut common = mode(cutting(), limit, receiving);
        if n % 2 == 1 {
            common.mode = Mode::Tunnel;
        }
        common
    }

    fn policies(self, selector: impl Fn(AddrRange, AddrRange) -> Selector) -> Spd {
        let any = ["192.0.2.0", "2001:db8::"].map(|any| AddrRange::from_cidr(any.parse().unwrap(), 24).unwrap());
        let one = |n: u8| {
            let hosts = [format!("192.0.2.{}", 2 + n), format!("2001:db8::{:x}", 2 + n)];
            let hosts = hosts.map(|host| host.parse().unwrap()).map(|host| AddrRange { start: host, end: host });
            let selectors = [selector(any[0], hosts[0]), selector(any[1], hosts[1])].into();
            let action = Action::Protect { outbound: n.into(), inbound: n.into() };
            Policy { name: "one".into(), selectors, action }
        };
        Spd::new((0..self.sas).map(one).collect())
    }

    fn ends(self) -> Ends {
        let spec = |n: u8, first_seq| esp::Spec { spi: (SPI + u32::from(n)).try_into().unwrap(), ..spec(first_seq) };
        let (mut keys, mut their_keys) = (KeyTable::default(), KeyTable::default());
        // The key of SA 0 comes last, so that a table without it has all others.
        let mut out: Vec<_> = (1..self.sas)
            .map(|n| {
                let sa = esp::outbound(self.common(n, false), &spec(n, 1), Engine::AwsLc, &mut keys).unwrap();
                sa.set_path_mtu(if n % 2 == 1 { self.tunnel_mtu } else { PATH_MTU });
                Arc::new(sa)
            })
            .collect();
        let others = keys.clone();
        let first = esp::outbound(self.common(0, false), &spec(0, 1), Engine::AwsLc, &mut keys).unwrap();
        first.set_path_mtu(PATH_MTU);
        out.insert(0, Arc::new(first));
        let keys = if self.without_key { others } else { keys };
        let inn = (0..self.sas).map(|n| {
            let spec = esp::Spec { window: 1024, ..spec(n, 0) };
            Arc::new(esp::inbound(self.common(n, true), &spec, Engine::AwsLc, &mut their_keys).unwrap())
        });
        let inn = inn.collect();
        let sending = Snapshot::new(vec![], out, self.policies(Selector::between), keys, CodePoints::default());
        let receiving = self.policies(|any, host| Selector::between(host, any));
        let receiving = Snapshot::new(inn, vec![], receiving, their_keys, CodePoints::default());
        let tables = [sending, receiving].map(|tables| {
            let mut tables = tables.unwrap();
            tables.many_sas = self.many_sas;
            Publisher::new(tables).current()
        });
        let config = WorkerConfig { engine: Engine::AwsLc, batch: MOST, alone: self.alone, ..small(0) };
        let (sender, receiver) = (Worker::new(config.clone()).0, Worker::new(config).0);
        Ends { tables, sender, receiver, most: MOST, replies: Batch::new(4, 2048) }
    }
}

/// A packet to the host of SA `n` with a number.
fn numbered(n: usize, len: usize, id: usize) -> Vec<u8> {
    let mut packet = packet(2 + n as u8, len, id as u8);
    packet[4..6].copy_from_slice(&(id as u16).to_be_bytes());
    packet
}

/// The same with IPv6, in which the number is the source port.
fn numbered_v6(n: usize, len: usize, id: usize) -> Vec<u8> {
    let mut packet = vec![id as u8; len];
    let (src, dst) = ("2001:db8::1".parse().unwrap(), format!("2001:db8::{:x}", 2 + n).parse().unwrap());
    Ipv6Header::new(src, dst, IpProto::UDP, len - IPV6_HEADER).unwrap().emit(&mut packet).unwrap();
    UdpHeader::new(id as u16, 2, len - IPV6_HEADER - 8).unwrap().emit(&mut packet[IPV6_HEADER..]).unwrap();
    packet
}

/// Returns the SA and the sequence number of a packet, which should be protected.
///
/// # Panics
/// If it is in the clear.
fn protected(outer: &[u8]) -> (usize, u32) {
    assert_eq!((outer[9], &outer[12..20]), (50, &[198, 51, 100, 1, 198, 51, 100, 2][..]), "in the clear");
    let [spi, seq] = [20, 24].map(|at| u32::from_be_bytes(outer[at..at + 4].try_into().unwrap()));
    ((spi - SPI) as usize, seq)
}

/// Number and payload of each IPv4 packet to the host of SA `n`, in order; fragments are joined.
fn of_sa<'p>(packets: impl IntoIterator<Item = &'p Vec<u8>>, n: usize) -> Vec<(u16, Vec<u8>)> {
    let mut joined: Vec<(u16, Vec<u8>)> = Vec::new();
    for packet in packets.into_iter().filter(|packet| usize::from(packet[19]) == 2 + n) {
        let id = u16::from_be_bytes([packet[4], packet[5]]);
        let offset = 8 * usize::from(u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff);
        match joined.last_mut().filter(|(last, _)| offset > 0 && *last == id) {
            Some((_, payload)) => payload.extend(&packet[20..]),
            None => joined.push((id, packet[20..].to_vec())),
        }
    }
    joined
}

fn drops(worker: &Worker) -> u64 {
    worker.counters().drops.iter().map(|count| count.load(Ordering::Relaxed)).sum()
}

/// Packets and bytes that the sender counts for SA `n`.
fn counted(ends: &Ends, n: usize) -> (u64, u64) {
    let counters = &ends.tables[0].outbound[n].common.counters;
    (counters.packets(), counters.bytes())
}

#[test]
fn sas_in_aggfrag_and_tunnel_mode_alternate_in_a_chunk() {
    // Chunks of 64 packets with few SAs and short packets; otherwise of 16. In narrow tunnels,
    // fragments come between the packets that arrived and the payloads.
    let kinds = [(2, 60, 1500), (2, 700, 1500), (5, 61, 1500), (100, 60, 1500), (140, 60, 1500), (2, 700, 600)];
    let variants = kinds.into_iter().flat_map(|(sas, len, tunnel_mtu)| {
        Mixed { sas, tunnel_mtu, ..Mixed::TWO }.variants().map(move |variant| (variant, len))
    });
    let variants = variants.flat_map(|(variant, len)| Halves::ALL.map(|halves| (variant, len, halves)));
    for (variant, len, halves) in variants {
        let at = format!("{variant:?} {len} {halves:?}");
        let (mut ends, sas) = (variant.ends(), usize::from(variant.sas));
        assert_eq!(ends.tables[0].long_chunks, sas <= 100);
        let (mut sent, mut received, mut seqs) = (Vec::new(), Vec::new(), vec![0; sas]);
        // The payloads and fragments of a batch should fit its reserve.
        let counts = if len > 100 { [1, 2, 15, 17, 32, 64] } else { [2, 15, 17, 63, 65, 128] };
        for count in counts {
            let packets: Vec<_> = (sent.len()..).take(count).map(|id| numbered(id % sas, len, id)).collect();
            let outer = ends.send(&packets, halves);
            let mut payloads = vec![0; sas];
            for outer in &outer {
                let (n, seq) = protected(outer);
                seqs[n] += 1;
                payloads[n] += 1;
                assert_eq!(seq, seqs[n], "{at}");
            }
            for n in (0..sas).step_by(2) {
                let bytes = len * packets.iter().filter(|packet| usize::from(packet[19]) == 2 + n).count();
                assert_eq!(payloads[n], bytes.div_ceil(ROOM), "payloads of one batch are filled: {at}");
            }
            received.extend(ends.receive(&outer, halves));
            sent.extend(packets);
        }
        for (n, last_seq) in seqs.into_iter().enumerate() {
            assert_eq!(of_sa(&received, n), of_sa(&sent, n), "SA {n}: {at}");
            assert_eq!(counted(&ends, n).0, u64::from(last_seq), "SA {n}: {at}");
        }
        if variant.tunnel_mtu >= len {
            assert_eq!(received.len(), sent.len(), "{at}");
        }
        assert_eq!((drops(&ends.sender), drops(&ends.receiver)), (0, 0), "{at}");
    }
}

#[test]
fn bytes_after_an_inner_packet_are_not_sent() {
    let variants = Mixed::TWO.variants().flat_map(|variant| Halves::ALL.map(|halves| (variant, halves)));
    // With padding after all packets, after some, and after the first or the last of a run.
    let patterns = [0xffff_u32, 0x5555, 0x0001, 0x8000];
    for ((variant, halves), pattern) in variants.flat_map(|variant| patterns.map(|pattern| (variant, pattern))) {
        // Packets of SA 0 alone, as one flow and as several, and by turns with a tunnel.
        for (v6, turns, flows) in
            [false, true].into_iter().flat_map(|v6| [(v6, 1, false), (v6, 1, true), (v6, 2, false), (v6, 2, true)])
        {
            let at = format!("{variant:?} {halves:?} {pattern:x} {v6} {turns} {flows}");
            let mut ends = variant.ends();
            for count in [1, 2, 3, 16, 40] {
                let inner: Vec<_> = (0..count)
                    .map(|n| match v6 {
                        true => numbered_v6(n % turns, 61, if flows { n } else { 1 }),
                        false => {
                            let mut packet = numbered(n % turns, 61, n);
                            packet[21] = if flows { n as u8 } else { 1 };
                            packet
                        }
                    })
                    .collect();
                let padded: Vec<Vec<u8>> = inner
                    .iter()
                    .enumerate()
                    .map(|(n, packet)| {
                        let padding: &[u8] = if pattern >> (n % 16) & 1 == 1 { &[0x45; 7] } else { &[] };
                        [packet, padding].concat()
                    })
                    .collect();
                let outer = ends.send(&padded, halves);
                let payloads = outer.iter().filter(|outer| protected(outer).0 == 0).count();
                assert_eq!(payloads, (61 * inner.iter().step_by(turns).count()).div_ceil(ROOM), "{at}");
                let received = ends.receive(&outer, halves);
                for n in 0..turns {
                    let host = |packet: &&Vec<u8>| usize::from(packet[if v6 { 39 } else { 19 }]) == 2 + n;
                    assert!(received.iter().filter(host).eq(inner.iter().filter(host)), "{count} {at}");
                }
                assert_eq!(received.len(), count, "{at}");
            }
            assert_eq!((drops(&ends.sender), drops(&ends.receiver)), (0, 0), "{at}");
        }
    }
}

#[test]
fn payloads_that_cannot_be_sealed_are_not_counted_and_use_up_no_limit() {
    for limit in [Lifetime::NONE, Lifetime { packets: 10, bytes: u64::MAX }, Lifetime { packets: 99, bytes: 3000 }] {
        let variants = Mixed { without_key: true, limit, ..Mixed::TWO }.variants();
        for (variant, halves) in variants.flat_map(|variant| Halves::ALL.map(|halves| (variant, halves))) {
            let (mut ends, at) = (variant.ends(), format!("{variant:?} {halves:?}"));
            for batch in 1..6 {
                // Three full payloads and one of 72 bytes, between tunnel packets.
                let packets: Vec<_> = (0..36).map(|id| numbered(id % 2, 61, id)).collect();
                let outer = ends.send(&packets, halves);
                assert!(outer.iter().all(|outer| protected(outer).0 == 1), "{at}");
                assert_eq!(of_sa(&ends.receive(&outer, halves), 1), of_sa(&packets, 1), "{at}");
                assert_eq!((counted(&ends, 0), counted(&ends, 1)), ((0, 0), (18 * batch, 18 * 61 * batch)), "{at}");
            }
            // The SA counts outer packets, and drops should be in the same unit.
            let sa = &ends.tables[0].outbound[0];
            let (payloads, dropped) = (5 * (18 * 61_u64).div_ceil(ROOM as u64), DropReason::NoKey);
            assert_eq!(sa.lanes[0].seq.next() - 1, payloads, "{at}");
            if halves != Halves::Split {
                // In the pipeline another worker counts them.
                assert_eq!((Ends::dropped(&ends.sender, dropped), drops(&ends.sender)), (payloads, payloads), "{at}");
            }
            assert!(sa.common.check_lifetime().is_ok(), "{at}");
        }
    }
}

#[test]
fn payloads_beyond_a_limit_are_dropped_in_the_middle_of_a_batch() {
    let limits = (0..6).map(|packets| Lifetime { packets, bytes: u64::MAX });
    // Payloads have 346 bytes with the header.
    let limits = limits.chain([345, 346, 1000, 1038, 1384].map(|bytes| Lifetime { packets: 99, bytes }));
    for limit in limits {
        let variants = Mixed { limit, ..Mixed::TWO }.variants();
        for (variant, halves) in variants.flat_map(|variant| Halves::ALL.map(|halves| (variant, halves))) {
            let (mut ends, at) = (variant.ends(), format!("{variant:?} {halves:?}"));
            let packets: Vec<_> = (0..60).map(|id| numbered(id % 2, 61, id)).collect();
            // 30 inner packets of 61 bytes.
            let (payloads, full) = ((30 * 61_u64).div_ceil(ROOM as u64), 4 + ROOM as u64);
            let sent = limit.packets.min(limit.bytes / full).min(payloads);
            let outer = ends.send(&packets, halves);
            assert_eq!(outer.iter().filter(|outer| protected(outer).0 == 0).count() as u64, sent, "{at}");
            assert_eq!((counted(&ends, 0), counted(&ends, 1)), ((sent, sent * full), (30, 30 * 61)), "{at}");
            let expired = |ends: &Ends| (Ends::dropped(&ends.sender, DropReason::Expired), drops(&ends.sender));
            assert_eq!(expired(&ends), (payloads - sent, payloads - sent), "{at}");
            let received = ends.receive(&outer, halves);
            assert_eq!(of_sa(&received, 1), of_sa(&packets, 1), "{at}");
            // The packet that the limit cuts is lost.
            let whole = sent as usize * ROOM / 61;
            assert_eq!(of_sa(&received, 0), of_sa(&packets, 0)[..whole], "{at}");
            // The SA has expired, and the other one has not.
            let outer = ends.send(&packets, halves);
            assert!(outer.len() == 30 && outer.iter().all(|outer| protected(outer).0 == 1), "{at}");
            assert_eq!(expired(&ends), (2 * payloads - sent, 2 * payloads - sent), "{at}");
        }
    }
}
