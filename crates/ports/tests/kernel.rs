//! Raw, UDP and TUN ports against the kernel, each test in a separate network namespace.
#![allow(unsafe_code)]

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dataplane::{Batch, Packet, Port, PortDrops};
use ports::{FlowSteering, RawPort, RawProtocols, TunConfig, TunPort, UdpPort};
use proptest::prelude::*;
use socket2::{Domain, Protocol, Socket, Type};
use wire::{IpPacket, IpProto, checksum};

use support::{batch_of, in_namespace, ip, ipv4, ipv6, loopback_up, receive};

fn raw(protocols: &[u8]) -> RawPort {
    let protocols = protocols.iter().map(|proto| IpProto(*proto)).collect();
    RawPort::open(&RawProtocols { protocols, icmp: false, mark: Some(7), ..RawProtocols::default() }).unwrap()
}

/// Has the kernel cut what is sent through `socket` into datagrams of `bytes` each.
fn cut_by_kernel(socket: &impl AsRawFd, bytes: libc::c_int) {
    // SAFETY: the option's value is an integer, which is alive during the call, and its length is
    // right.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_UDP,
            libc::UDP_SEGMENT,
            (&raw const bytes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn raw_ipv4_arrives_as_it_was_sent() {
    in_namespace(|| {
        let mut port = raw(&[50, 51, 253]);
        let local = [127, 0, 0, 1];
        // More than one burst, three protocols, options and every ECN value.
        let mut sent: Vec<_> =
            (0..100).map(|n| ipv4([50, 51, 253][n % 3], 0xb8 | n as u8 & 3, local, local, &[n as u8; 80])).collect();
        sent.push(ipv4(50, 0, local, local, &[9; 3000]));
        // AH covers the identification: the kernel must leave 0 alone where DF is set.
        let mut without_id = ipv4(51, 0, local, local, &[8; 44]);
        (without_id[4], without_id[5], without_id[10], without_id[11]) = (0, 0, 0, 0);
        let sum = checksum::checksum(&without_id[..20]).to_be_bytes();
        without_id[10..12].copy_from_slice(&sum);
        sent.push(without_id);
        port.tx(&mut batch_of(&sent)).unwrap();
        let mut got = receive(&mut port, sent.len(), 4096);
        got.sort();
        sent.sort();
        assert_eq!(got, sent);
        assert_eq!(port.drops(), PortDrops::default());
    });
}

#[test]
fn raw_ipv6_headers_are_rebuilt_as_they_were() {
    in_namespace(|| {
        let mut port = raw(&[50, 51]);
        let plain = ipv6(50, 0x0b9_12345, "::1", "::1", &[5; 100]);
        let mut chain = vec![60, 0, 1, 4, 0, 0, 0, 0]; // hop-by-hop: PadN
        // Destination options: an experimental one.
        chain.extend([43, 1, 0x1e, 12, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        // Routing header of an experimental type, without segments left.
        chain.extend([60, 0, 253, 0, 1, 2, 3, 4]);
        chain.extend([51, 0, 1, 4, 0, 0, 0, 0]); // destination options again
        chain.extend([7; 44]);
        let extended = ipv6(0, 0x0bb_00000, "::1", "::1", &chain);
        port.tx(&mut batch_of(&[plain.clone(), extended.clone()])).unwrap();
        let mut got = receive(&mut port, 2, 2048);
        got.sort_by_key(Vec::len);
        assert_eq!(got, [extended, plain]);
    });
}

#[test]
fn raw_counts_what_it_cannot_carry() {
    in_namespace(|| {
        let mut port = raw(&[50]);
        let local = [127, 0, 0, 1];
        let mut sent = batch_of(&[
            ipv4(50, 0, local, local, &[1; 600]),
            vec![0x45, 0],
            vec![],
            ipv4(50, 0, local, [192, 0, 2, 1], &[1; 6]),
            ipv4(50, 0, local, local, &[2; 60]),
        ]);
        port.tx(&mut sent).unwrap();
        assert!(sent.is_empty());
        assert_eq!(receive(&mut port, 2, 500), [ipv4(50, 0, local, local, &[2; 60])]);
        assert_eq!(port.drops(), PortDrops { other: 3, cut_off: 1, ..PortDrops::default() });
    });
}

#[test]
fn raw_hears_icmp_errors_but_no_ping() {
    in_namespace(|| {
        let wanted = RawProtocols { protocols: vec![], icmp: true, ..RawProtocols::default() };
        let mut port = RawPort::open(&wanted).unwrap();
        let local = [127, 0, 0, 1];
        let mut unreachable = vec![3, 4, 0, 0, 0, 0, 5, 0];
        unreachable.extend(ipv4(50, 0, local, local, &[0; 8]));
        let sum = checksum::checksum(&unreachable).to_be_bytes();
        unreachable[2..4].copy_from_slice(&sum);
        let echo = vec![8, 0, 0xf7, 0xff, 0, 0, 0, 0];
        let icmp = |body: &[u8]| ipv4(1, 0, local, local, body);
        port.tx(&mut batch_of(&[icmp(&echo), icmp(&unreachable)])).unwrap();
        assert_eq!(receive(&mut port, 2, 2048), [icmp(&unreachable)]);
    });
}

#[test]
fn raw_hears_icmp_of_the_outer_side_only() {
    in_namespace(|| {
        let Some(mut inside) = tun_or_skip("wt4", 1) else { return };
        let addresses = vec![("10.8.0.1".parse().unwrap(), 24), ("fd00:8::1".parse().unwrap(), 64)];
        let config = TunConfig { name: "wt5".to_owned(), mtu: 1300, addresses, queues: 1, v6: true, offload: true };
        let mut outside = TunPort::open(&config).unwrap();
        let wanted = RawProtocols { protocols: vec![IpProto::ESP], ..RawProtocols::default() };
        let mut port = RawPort::open(&wanted).unwrap();
        port.ignore_icmp_from(inside[0].if_index().unwrap()).unwrap();
        let error = |net: u8| {
            let mut message = vec![3, 4, 0, 0, 0, 0, 5, 0];
            message.extend(ipv4(50, 0, [10, net, 0, 1], [10, net, 0, 2], &[0; 8]));
            let sum = checksum::checksum(&message).to_be_bytes();
            message[2..4].copy_from_slice(&sum);
            ipv4(1, 0, [10, net, 0, 2], [10, net, 0, 1], &message)
        };
        let error_v6 = |net: &str| {
            let [to, from] = [1, 2].map(|host| format!("fd00:{net}::{host}"));
            let mut message = vec![2, 0, 0, 0, 0, 0, 5, 0];
            message.extend(ipv6(50, 0, &to, &from, &[0; 8]));
            let addresses = [&from, &to].map(|text| text.parse::<std::net::Ipv6Addr>().unwrap().octets()).concat();
            let len = (message.len() as u32).to_be_bytes();
            let sum = checksum::checksum(&[&addresses[..], &len, &[0, 0, 0, 58], &message].concat()).to_be_bytes();
            message[2..4].copy_from_slice(&sum);
            ipv6(58, 0, &from, &to, &message)
        };
        let esp = |net: u8| ipv4(50, 0, [10, net, 0, 2], [10, net, 0, 1], &[net; 40]);
        // An IPv6 address that was just made may not hear yet.
        let hears = (0..10).any(|_| {
            outside[0].tx(&mut batch_of(&[error_v6("8")])).unwrap();
            !receive(&mut port, 1, 2048).is_empty()
        });
        assert!(hears);
        inside[0].tx(&mut batch_of(&[error(9), error_v6("9"), esp(9)])).unwrap();
        outside[0].tx(&mut batch_of(&[error(8), error_v6("8"), esp(8)])).unwrap();
        let mut got = receive(&mut port, 4, 2048);
        got.sort();
        let mut received = [error(8), error_v6("8"), esp(8), esp(9)];
        received.sort();
        assert_eq!(got, received);
    });
}

#[test]
fn raw_bound_to_an_address_hears_no_other() {
    in_namespace(|| {
        let local = vec!["127.0.0.2".parse().unwrap()];
        let mut bound = RawPort::open(&RawProtocols { local, icmp: false, ..RawProtocols::default() }).unwrap();
        let to = |last| ipv4(50, 0, [127, 0, 0, 1], [127, 0, 0, last], &[1; 20]);
        raw(&[]).tx(&mut batch_of(&[to(1), to(2)])).unwrap();
        assert_eq!(receive(&mut bound, 2, 2048), [to(2)]);
        let local = vec!["192.0.2.77".parse().unwrap()];
        let error = RawPort::open(&RawProtocols { local, ..RawProtocols::default() }).err().unwrap();
        assert!(error.to_string().contains("192.0.2.77"), "{error}");
    });
}

/// UDP packet with the checksum left out.
fn datagram(src: SocketAddr, dst: SocketAddr, tos: u8, payload: &[u8]) -> Vec<u8> {
    let mut udp = [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat();
    udp.extend((8 + payload.len() as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    match (src.ip(), dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => ipv4(17, tos, src.octets(), dst.octets(), &udp),
        (src, dst) => ipv6(17, u32::from(tos) << 20, &src.to_string(), &dst.to_string(), &udp),
    }
}

#[test]
fn udp_keeps_addresses_ports_tos_and_payload() {
    in_namespace(|| {
        for (a, b, any) in [("127.0.0.2", "127.0.0.3", "0.0.0.0"), ("::1", "::1", "::")] {
            let (a, b): (IpAddr, IpAddr) = (a.parse().unwrap(), b.parse().unwrap());
            let mut left = UdpPort::bind(SocketAddr::new(any.parse().unwrap(), 4500), None).unwrap();
            let mut right = UdpPort::bind(SocketAddr::new(b, 0), Some(7)).unwrap();
            let (from, to) = (SocketAddr::new(a, 4500), right.local());
            let sent: Vec<_> = (0..130).map(|n| datagram(from, to, 0xb8 | n & 3, &vec![n; usize::from(n)])).collect();
            left.tx(&mut batch_of(&sent)).unwrap();
            let got = receive(&mut right, sent.len(), 2048);
            assert_eq!(got.len(), sent.len());
            for (got, sent) in got.iter().zip(&sent) {
                let (ip, was) = (IpPacket::parse(got).unwrap(), IpPacket::parse(sent).unwrap());
                assert_eq!((ip.src, ip.dst, ip.tos, ip.total_len), (was.src, was.dst, was.tos, got.len()));
                assert_eq!(got[ip.upper_at..], sent[was.upper_at..]);
                assert!(ip.is_v6() || checksum::is_valid(&got[..20]));
                assert_ne!(ip.hop_limit, 0);
            }
            right.tx(&mut batch_of(&[datagram(to, from, 3, b"back"), datagram(from, to, 0, b"not ours")])).unwrap();
            assert_eq!(receive(&mut left, 1, 2048)[0][0] >> 4, got[0][0] >> 4);
            assert_eq!((left.drops(), right.drops().other), (PortDrops::default(), 1));
        }
    });
}

/// Sizes as a tunnel makes them: full packets, and here and there a shorter one.
fn sizes() -> Vec<usize> {
    let mut sizes = vec![1400; 50];
    sizes.extend([600, 1400, 1400, 90, 90, 91, 90, 0, 0, 1]);
    sizes.extend([1400; 140]);
    sizes.extend([1, 2, 3]);
    sizes
}

#[test]
fn gso_packets_arrive_as_datagrams() {
    in_namespace(|| {
        for (a, b, any) in [("127.0.0.2", "127.0.0.3", "0.0.0.0"), ("::1", "::1", "::")] {
            let (a, b): (IpAddr, IpAddr) = (a.parse().unwrap(), b.parse().unwrap());
            let mut receivers = [false, true].map(|joined| {
                let mut port = UdpPort::bind(SocketAddr::new(b, 0), None).unwrap();
                if joined {
                    port.join_datagrams().unwrap();
                }
                port
            });
            let mut left = [UdpPort::bind(SocketAddr::new(any.parse().unwrap(), 4500), None).unwrap()];
            left[0].join_datagrams().unwrap();
            // One port that receives, and one that a flow has chosen.
            for (source, right) in [4500, 50_001, 50_033].into_iter().flat_map(|s| [(s, 0), (s, 1)]) {
                let mut sender = raw(&[]);
                sender.enable_gso(&left, None).unwrap();
                let right = &mut receivers[right];
                let (from, to) = (SocketAddr::new(a, source), right.local());
                let packet =
                    |(n, size): (usize, usize)| datagram(from, to, if n < 70 { 0xb8 } else { 2 }, &vec![n as u8; size]);
                let sent: Vec<_> = sizes().into_iter().enumerate().map(packet).collect();
                sender.tx(&mut batch_of(&sent)).unwrap();
                // A batch of 150: trains are handed over in parts.
                let got = receive(right, sent.len(), 2048);
                assert_eq!(got.len(), sent.len());
                for (got, sent) in got.iter().zip(&sent) {
                    let (ip, was) = (IpPacket::parse(got).unwrap(), IpPacket::parse(sent).unwrap());
                    assert_eq!((ip.src, ip.dst, ip.tos, ip.hop_limit), (was.src, was.dst, was.tos, was.hop_limit));
                    assert_eq!(got[ip.upper_at..ip.upper_at + 4], sent[was.upper_at..was.upper_at + 4]);
                    assert_eq!(got[ip.upper_at + 8..], sent[was.upper_at + 8..]);
                    assert!(ip.is_v6() || checksum::is_valid(&got[..20]));
                }
                let (out, taken) = (sender.gso_counters().read(), right.gso_counters().read());
                // 50 and the shorter one; two; three and a shorter one; and 140 after the first 17
                // of another TOS.
                assert!(out.sent >= 5 && out.packets_sent > 190, "{out:?}");
                assert!(taken.received == 0 || taken.packets_received > 190, "{taken:?}");
                assert_eq!((out.refused, sender.drops()), (0, PortDrops::default()));
            }
            assert!(receivers[0].gso_counters().read().received == 0);
            assert!(receivers[1].gso_counters().read().received > 0);
        }
    });
}

#[test]
fn what_cannot_go_in_a_train_goes_alone() {
    in_namespace(|| {
        let Some(_tun) = tun_or_skip("wt7", 1) else { return };
        let mut right = UdpPort::bind("127.0.0.3:0".parse().unwrap(), None).unwrap();
        let mut sender = raw(&[]);
        sender.enable_gso(&[], None).unwrap();
        let (from, to) = ("127.0.0.2:4500".parse().unwrap(), right.local());
        // No socket has the source port, packets without DF, fragments' headers, sizes of the MTU
        // and above.
        let mut sent: Vec<_> = (0..5).map(|n| datagram(from, to, 0, &[n; 100])).collect();
        let other: SocketAddr = "127.0.0.2:60000".parse().unwrap();
        for n in 0..5 {
            let mut packet = datagram(other, to, 0, &[n; 100]);
            (packet[6], packet[10], packet[11]) = (0, 0, 0);
            let sum = checksum::checksum(&packet[..20]).to_be_bytes();
            packet[10..12].copy_from_slice(&sum);
            sent.push(packet);
        }
        sender.tx(&mut batch_of(&sent)).unwrap();
        assert_eq!(receive(&mut right, 10, 2048).len(), 10);
        assert_eq!(sender.gso_counters().read(), ports::GsoCounts::default());
        let (from, to) = ("10.9.0.1:60000".parse().unwrap(), "10.9.0.2:4500".parse().unwrap());
        let large: Vec<_> = (0..4).map(|n| datagram(from, to, 0, &[n; 1400])).collect();
        sender.tx(&mut batch_of(&large)).unwrap();
        assert_eq!(sender.drops(), PortDrops { too_big: 4, ..PortDrops::default() });
        assert_eq!(sender.gso_counters().read().refused, 1);
    });
}

#[test]
fn gso_resumes_when_the_address_is_back() {
    in_namespace(|| {
        let right = UdpPort::bind("127.0.0.3:0".parse().unwrap(), None).unwrap();
        let mut sender = raw(&[]);
        sender.enable_gso(&[], None).unwrap();
        let train =
            |n: u8| batch_of(&[n, n].map(|n| datagram("127.0.0.2:60000".parse().unwrap(), right.local(), 0, &[n])));
        let mut sent = |times: u32| {
            let before = sender.gso_counters().read();
            (0..times).for_each(|n| sender.tx(&mut train(n as u8)).unwrap());
            let now = sender.gso_counters().read();
            (now.sent - before.sent, now.refused - before.refused)
        };
        assert_eq!(sent(3), (3, 0));
        ip("addr del 127.0.0.1/8 dev lo");
        // Polled for a while, then left idle.
        assert_eq!(sent(100), (0, 16));
        ip("addr add 127.0.0.1/8 dev lo");
        let (went, refused) = sent(1100);
        assert!(went > 100 && refused == 0, "{went} {refused}");
        assert_eq!(sent(20), (20, 0));
    });
}

#[test]
fn flows_leave_each_other_their_sockets() {
    in_namespace(|| {
        let right = UdpPort::bind("127.0.0.3:0".parse().unwrap(), None).unwrap();
        let mut sender = raw(&[]);
        sender.enable_gso(&[], None).unwrap();
        let mut sent = |port: u16, datagrams: u8, times: u32| {
            let from = SocketAddr::from(([127, 0, 0, 2], port));
            let packets: Vec<_> = (0..datagrams).map(|n| datagram(from, right.local(), 0, &[n; 10])).collect();
            let before = sender.gso_counters().read().sent;
            (0..times).for_each(|_| sender.tx(&mut batch_of(&packets)).unwrap());
            assert_eq!(sender.drops(), PortDrops::default());
            sender.gso_counters().read().sent - before
        };
        // Whatever the ports are, so many flows have a socket each.
        let ports: Vec<u16> = (0..32).map(|n| 50_001 + 32 * n).collect();
        assert!(ports.iter().all(|port| sent(*port, 10, 1) == 1));
        let (first, newcomer) = (ports[0], 50_002);
        for _ in 0..200 {
            assert_eq!((sent(newcomer, 10, 1), sent(first, 2, 1)), (0, 1));
        }
        // A good while after its last train the socket of a flow is for others, but not for a few
        // datagrams.
        assert_eq!((sent(newcomer, 10, 2048 - 200), sent(newcomer, 7, 100)), (0, 0));
        assert_eq!(sent(newcomer, 10, 5), 5);
        assert_eq!((sent(first, 2, 1), sent(newcomer, 2, 1)), (1, 1));
    });
}

/// The socket of IKE, which waits so long for a message, and the port of ESP on the same address.
fn ike_and_esp(any: SocketAddr, patience: Duration) -> (Socket, UdpPort) {
    let ike = Socket::new(Domain::for_address(any), Type::DGRAM, Some(Protocol::UDP)).unwrap();
    if any.is_ipv6() {
        ike.set_only_v6(true).unwrap();
    }
    ports::share_with_esp(&ike).unwrap();
    ike.bind(&any.into()).unwrap();
    ports::keep_ike(&ike).unwrap();
    ike.set_read_timeout(Some(patience)).unwrap();
    (ike, UdpPort::bind_shared(any, None).unwrap())
}

#[test]
fn ike_in_a_gro_packet_is_forwarded() {
    in_namespace(|| {
        for any in ["0.0.0.0:4500", "[::]:4500"] {
            let any: SocketAddr = any.parse().unwrap();
            let (ike, mut esp) = ike_and_esp(any, Duration::from_secs(5));
            esp.join_datagrams().unwrap();
            let host: SocketAddr = if any.is_ipv6() { "[::1]:4500" } else { "127.0.0.1:4500" }.parse().unwrap();
            let peer = UdpSocket::bind((host.ip(), 0)).unwrap();
            cut_by_kernel(&peer, 100);
            let message = [&[0; 4][..], &[7; 50]].concat();
            peer.send_to(&[&[1; 300][..], &message].concat(), host).unwrap();
            let headers = if any.is_ipv6() { 48 } else { 28 };
            let got: Vec<Vec<u8>> =
                receive(&mut esp, 3, 2048).iter().map(|packet| packet[headers..].to_vec()).collect();
            assert_eq!(got, vec![vec![1; 100]; 3]);
            let mut buffer = [0; 256];
            let (len, from) = UdpSocket::from(ike).recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..len], from), (&message[..], peer.local_addr().unwrap()));
        }
    });
}

#[test]
fn ike_in_gro_packets_is_forwarded_within_a_limit() {
    in_namespace(|| {
        for any in ["0.0.0.0:4500", "[::]:4500"] {
            let any: SocketAddr = any.parse().unwrap();
            let (ike, mut esp) = ike_and_esp(any, Duration::from_millis(200));
            esp.join_datagrams().unwrap();
            let host: SocketAddr = if any.is_ipv6() { "[::1]:4500" } else { "127.0.0.1:4500" }.parse().unwrap();
            let peer = UdpSocket::bind((host.ip(), 0)).unwrap();
            cut_by_kernel(&peer, 100);
            let message = [&[0; 4][..], &[7; 96]].concat();
            let train = [&[1; 100][..], &message.repeat(63)].concat();
            let ike = UdpSocket::from(ike);
            let mut buffer = [0; 256];
            let mut received = || std::iter::from_fn(|| ike.recv(&mut buffer).ok()).count();
            let mut batch = Batch::new(150, 2048);
            for n in 1..3 {
                peer.send_to(&train, host).unwrap();
                esp.rx(&mut batch).unwrap();
                assert_eq!((batch.len(), received()), (n, 16));
                let n = n as u64;
                assert_eq!(esp.drops(), PortDrops { full: 47 * n, passed_on: 63 * n, ..PortDrops::default() });
            }
            // A call ends when it has looked at as many as there was room for, and the next one
            // goes on.
            let mut batch = Batch::new(20, 2048);
            (0..4).for_each(|_| assert_eq!(peer.send_to(&train, host).unwrap(), train.len()));
            for _ in 0..4 {
                let before = esp.drops().not_in_batch();
                esp.rx(&mut batch).unwrap();
                assert_eq!((batch.len(), received()), (1, 16));
                assert!(esp.drops().not_in_batch() - before >= batch.room() as u64, "the end was not found");
                batch.clear();
            }
        }
    });
}

#[test]
fn what_is_of_no_use_ends_a_call() {
    in_namespace(|| {
        for joined in [false, true] {
            let mut port = UdpPort::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
            if joined {
                port.join_datagrams().unwrap();
            }
            let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
            (0..100).for_each(|_| assert_eq!(peer.send_to(&[1; 600], port.local()).unwrap(), 600));
            assert_eq!(peer.send_to(&[2; 60], port.local()).unwrap(), 60);
            let mut batch = Batch::new(10, 500);
            for n in 1..11 {
                port.rx(&mut batch).unwrap();
                assert_eq!((batch.len(), port.drops()), (0, PortDrops { cut_off: 10 * n, ..PortDrops::default() }));
            }
            port.rx(&mut batch).unwrap();
            assert_eq!(batch.packets().iter().map(Packet::len).collect::<Vec<_>>(), [88]);
        }
    });
}

#[test]
fn gro_packets_are_split_as_they_were_joined() {
    in_namespace(|| {
        for (host, room) in [("127.0.0.1", 150), ("127.0.0.1", 7), ("::1", 64)] {
            let host: IpAddr = host.parse().unwrap();
            let mut port = UdpPort::bind((host, 0).into(), None).unwrap();
            port.join_datagrams().unwrap();
            let peer = UdpSocket::bind((host, 0)).unwrap();
            let mut sent = vec![];
            // Bytes, and the size that they are cut to: the same again and again, then others,
            // shorter and longer.
            let trains = [
                (20_000, 1000),
                (20_000, 1000),
                (17_300, 1000),
                (900, 1000),
                (9_000, 300),
                (60_000, 1400),
                (60_000, 1400),
            ];
            for (n, (bytes, size)) in
                trains.into_iter().chain([(1400, 1400), (2_500, 1400), (40_000, 1000), (8, 8)]).enumerate()
            {
                cut_by_kernel(&peer, size);
                let payload = pattern(100_000 * n, bytes);
                peer.send_to(&payload, port.local()).unwrap();
                sent.extend(payload.chunks(size as usize).map(<[u8]>::to_vec));
            }
            let (mut got, mut batch) = (vec![], Batch::new(room, 2048));
            let elsewhere = UdpSocket::bind((host, 0)).unwrap();
            let answer = datagram(port.local(), elsewhere.local_addr().unwrap(), 0, &[1; 9]);
            while got.len() < sent.len() {
                port.rx(&mut batch).unwrap();
                // What is sent in between changes nothing of what waits.
                port.tx(&mut batch_of(std::slice::from_ref(&answer))).unwrap();
                for packet in batch.packets() {
                    let ip = IpPacket::parse(packet.bytes()).unwrap();
                    assert_eq!((ip.total_len, ip.src, ip.dst, ip.upper), (packet.len(), host, host, IpProto::UDP));
                    assert!(ip.is_v6() || checksum::is_valid(&packet.bytes()[..20]));
                    let ports = [peer.local_addr().unwrap().port(), port.local().port()];
                    let udp_len = (packet.len() - ip.upper_at) as u16;
                    let header = [ports[0], ports[1], udp_len, 0].map(u16::to_be_bytes).concat();
                    assert_eq!(packet.bytes()[ip.upper_at..][..8], header);
                    got.push(packet.bytes()[ip.upper_at + 8..].to_vec());
                }
                batch.clear();
            }
            assert!(got == sent, "{} of {}", got.len(), sent.len());
            assert_eq!((port.drops(), port.gso_counters().read().received), (PortDrops::default(), 8));
        }
    });
}

#[test]
fn a_udp_port_in_use_is_explained() {
    in_namespace(|| {
        let first = UdpPort::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let error = UdpPort::bind(first.local(), None).err().unwrap();
        assert!(
            error.to_string().contains(&first.local().to_string()) && error.to_string().contains("another program")
        );
    });
}

fn tun(name: &str, queues: usize) -> std::io::Result<Vec<TunPort>> {
    let addresses = ["10.9.0.1/24", "10.9.1.1/24", "fd00:9::1/64"].map(|text| {
        let (ip, prefix) = text.split_once('/').unwrap();
        (ip.parse().unwrap(), prefix.parse().unwrap())
    });
    TunPort::open(&TunConfig {
        name: name.to_owned(),
        mtu: 1300,
        addresses: addresses.to_vec(),
        queues,
        v6: true,
        offload: true,
    })
}

/// Packets of `proto` from a TUN (the kernel sends other packets on a new interface).
fn of_proto(packets: Vec<Vec<u8>>, proto: IpProto) -> Vec<Vec<u8>> {
    packets.into_iter().filter(|packet| IpPacket::parse(packet).unwrap().upper == proto).collect()
}

/// Opens a TUN, or returns the reason to skip.
fn tun_or_skip(name: &str, queues: usize) -> Option<Vec<TunPort>> {
    match tun(name, queues) {
        Ok(ports) => Some(ports),
        Err(error) if error.to_string().contains("/dev/net/tun") => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn tun_carries_packets_both_ways() {
    in_namespace(|| {
        let Some(mut ports) = tun_or_skip("wt0", 1) else { return };
        for (to, proto) in [("10.9.0.2:9", 4), ("10.9.1.2:9", 4), ("[fd00:9::2]:9", 6)] {
            let any = if proto == 4 { "0.0.0.0:0" } else { "[::]:0" };
            std::net::UdpSocket::bind(any).unwrap().send_to(b"out of the host", to).unwrap();
            let got = of_proto(receive(&mut ports[0], 2, 2048), IpProto::UDP);
            assert!(got[0].ends_with(b"out of the host"));
            assert_eq!(IpPacket::parse(&got[0]).unwrap().dst, to.parse::<SocketAddr>().unwrap().ip());
        }
        // The kernel answers a ping from the TUN.
        let ping = ipv4(1, 0, [10, 9, 0, 2], [10, 9, 0, 1], &[8, 0, 0xf7, 0xfd, 0, 1, 0, 1]);
        ports[0].tx(&mut batch_of(&[ping, vec![0x15, 1, 2]])).unwrap();
        let got = of_proto(receive(&mut ports[0], 2, 2048), IpProto::ICMP);
        assert_eq!((got[0][12..20].to_vec(), got[0][20]), (vec![10, 9, 0, 1, 10, 9, 0, 2], 0));
        assert_eq!(ports[0].drops(), PortDrops { other: 1, ..PortDrops::default() });
    });
}

#[test]
fn tun_without_ipv6_starts_silent() {
    in_namespace(|| {
        let addresses = vec![("10.9.0.1".parse().unwrap(), 24)];
        let config = TunConfig { name: "wt6".to_owned(), mtu: 1300, addresses, queues: 1, v6: false, offload: false };
        if tun_or_skip("wt6", 1).is_none() {
            return;
        }
        let mut ports = TunPort::open(&config).unwrap();
        assert_eq!(receive(&mut ports[0], 0, 2048), [[0; 0]; 0], "no router solicitation, no report");
        // More than the kernel's 500 wait for a reader that is busy.
        let socket = std::net::UdpSocket::bind("10.9.0.1:0").unwrap();
        for _ in 0..2000 {
            socket.send_to(b"wait", "10.9.0.2:9").unwrap();
        }
        assert_eq!(receive(&mut ports[0], 2000, 2048).len(), 2000);
    });
}

/// ff02::2.
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// A router solicitation would follow a link-local address by at most a second.
#[test]
fn tun_with_ipv6_starts_silent() {
    in_namespace(|| {
        let config =
            TunConfig { name: "wt7".to_owned(), mtu: 1300, addresses: vec![], queues: 1, v6: true, offload: false };
        if tun_or_skip("wt7", 1).is_none() {
            return;
        }
        let mut ports = TunPort::open(&config).unwrap();
        std::thread::sleep(Duration::from_millis(2500));
        let to_routers = of_proto(receive(&mut ports[0], 0, 2048), IpProto::ICMPV6)
            .into_iter()
            .filter(|packet| IpPacket::parse(packet).unwrap().dst == IpAddr::V6(ALL_ROUTERS));
        assert_eq!(to_routers.collect::<Vec<_>>(), [[0; 0]; 0], "no router solicitation");
    });
}

#[test]
fn a_flow_keeps_its_queue_whoever_writes_its_answers() {
    in_namespace(|| {
        let Some(mut ports) = tun_or_skip("wt9", 2) else { return };
        match FlowSteering::load() {
            Ok(steering) => ports[0].keep_flows(&steering).unwrap(),
            Err(error) => return println!("skipped: {error}"),
        }
        let mut used = [0; 2];
        for port in 0..16 {
            let socket = std::net::UdpSocket::bind("10.9.0.1:0").unwrap();
            let (here, there) = (socket.local_addr().unwrap(), SocketAddr::from(([10, 9, 0, 2], 2000 + port)));
            let mut seen = vec![];
            for writer in 0..4 {
                socket.send_to(b"out of the host", there).unwrap();
                for (queue, port) in ports.iter_mut().enumerate() {
                    let mut batch = Batch::new(16, 2048);
                    port.rx(&mut batch).unwrap();
                    let got = batch.packets().iter().map(|packet| packet.bytes().to_vec()).collect();
                    seen.extend(of_proto(got, IpProto::UDP).iter().map(|_| queue));
                }
                ports[writer % 2].tx(&mut batch_of(&[datagram(there, here, 0, b"answer")])).unwrap();
            }
            assert_eq!(seen, [seen[0]; 4]);
            used[seen[0]] += 1;
        }
        assert!(used[0] > 1 && used[1] > 1, "{used:?}");
    });
}

#[test]
fn tun_has_several_queues_and_one_owner() {
    in_namespace(|| {
        for queues in [1, 3] {
            let Some(ports) = tun_or_skip("wt1", queues) else { return };
            assert_eq!(ports.len(), queues);
            let error = tun("wt1", queues).err().unwrap();
            assert!(error.to_string().contains("'wt1'") && error.to_string().contains("taken"), "{error}");
            drop(ports);
        }
        for name in ["", "a-name-that-is-too-long", "a/b", "a b", "."] {
            assert_eq!(tun(name, 1).err().unwrap().kind(), std::io::ErrorKind::InvalidInput, "{name}");
        }
        let addresses = vec![("192.0.2.1".parse().unwrap(), 33)];
        let wrong = TunConfig { name: "wt2".to_owned(), mtu: 1300, addresses, queues: 1, v6: true, offload: true };
        assert!(TunPort::open(&wrong).err().unwrap().to_string().contains("192.0.2.1/33"));
        let wrong =
            TunConfig { name: "wt2".to_owned(), mtu: 10, addresses: vec![], queues: 1, v6: false, offload: true };
        assert!(TunPort::open(&wrong).err().unwrap().to_string().contains("MTU"));
        assert!(tun("wt2", 1).is_ok(), "nothing was left behind");
    });
}

/// One end of a link made of two TUN interfaces, in a separate network namespace.
fn end_of_link(host: u8, offload: bool) -> TunPort {
    let addresses = [format!("10.7.0.{host}"), format!("fd00:7::{host}")].map(|text| text.parse().unwrap());
    let addresses = vec![(addresses[0], 24), (addresses[1], 64)];
    let config = TunConfig { name: format!("wl{host}"), mtu: 1300, addresses, queues: 1, v6: true, offload };
    TunPort::open(&config).unwrap().remove(0)
}

/// Carries packets between two interfaces until `stop`. Each is looked at; of the large ones each
/// 150th is lost.
fn carry(mut ends: [TunPort; 2], stop: &AtomicBool) -> [TunPort; 2] {
    let (mut batch, mut large) = (Batch::new(50, 2048), 0_u32);
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        for (from, to) in [(0, 1), (1, 0)] {
            ends[from].rx(&mut batch).unwrap();
            idle &= batch.is_empty();
            batch.retain(|_, packet| {
                assert!(packet.len() <= 1300, "{}", packet.len());
                let ip = IpPacket::parse(packet.bytes()).unwrap();
                assert_eq!(ip.total_len, packet.len());
                assert!(ip.is_v6() || checksum::is_valid(&packet.bytes()[..20]));
                if matches!(ip.upper, IpProto::TCP | IpProto::UDP) {
                    let upper = &packet.bytes()[ip.upper_at..];
                    let sum = checksum::Sum::default().pseudo(ip.src, ip.dst, ip.upper, upper.len());
                    assert!(sum.add(upper).is_valid());
                }
                large += u32::from(packet.len() > 1000 && ip.upper == IpProto::TCP);
                packet.len() <= 1000 || ip.upper != IpProto::TCP || large % 150 != 0
            });
            ends[to].tx(&mut batch).unwrap();
        }
        if idle {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    ends
}

fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect()
}

#[test]
fn connections_survive_offloads_on_either_side_and_loss() {
    const BYTES: usize = 3 << 20;
    for (near_offload, far_offload) in [(true, true), (true, false), (false, true), (false, false)] {
        in_namespace(move || {
            if tun_or_skip("wl0", 1).is_none() {
                return;
            }
            let near = end_of_link(1, near_offload);
            let (to_us, from_far) = std::sync::mpsc::channel();
            let far = std::thread::spawn(move || {
                // SAFETY: as in `in_namespace`.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
                loopback_up();
                let tun = end_of_link(2, far_offload);
                let datagrams = UdpSocket::bind("[::]:9").unwrap();
                let listener = TcpListener::bind("[::]:7").unwrap();
                to_us.send(tun).unwrap();
                for _ in 0..2 {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut got = vec![0; BYTES];
                    stream.read_exact(&mut got).unwrap();
                    assert!(got == pattern(0, BYTES));
                    stream.write_all(&got).unwrap();
                }
                let mut got = vec![];
                datagrams.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                let mut buffer = [0; 2048];
                while got.len() < 2 * 21 {
                    let (len, _) = datagrams.recv_from(&mut buffer).unwrap();
                    got.push(buffer[..len].to_vec());
                }
                got
            });
            let ends = [near, from_far.recv().unwrap()];
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = Arc::clone(&stop);
            let carrier = std::thread::spawn(move || carry(ends, &stopped));
            let sent = pattern(0, BYTES);
            for to in ["10.7.0.2:7", "[fd00:7::2]:7"] {
                let mut stream = TcpStream::connect(to).unwrap();
                let mut writer = stream.try_clone().unwrap();
                let copy = sent.clone();
                let writing = std::thread::spawn(move || writer.write_all(&copy).unwrap());
                let mut back = vec![0; BYTES];
                stream.read_exact(&mut back).unwrap();
                writing.join().unwrap();
                assert!(back == sent);
            }
            let mut datagrams = vec![];
            for (any, to) in [("0.0.0.0:0", "10.7.0.2:9"), ("[::]:0", "[fd00:7::2]:9")] {
                let socket = UdpSocket::bind(any).unwrap();
                cut_by_kernel(&socket, 1000);
                socket.send_to(&pattern(5, 20_500), to).unwrap();
                datagrams.extend(pattern(5, 20_500).chunks(1000).map(<[u8]>::to_vec));
            }
            assert_eq!(far.join().unwrap(), datagrams);
            stop.store(true, Ordering::Relaxed);
            let ends = carrier.join().unwrap();
            for (end, offload) in ends.iter().zip([near_offload, far_offload]) {
                let count = end.gso_counters().read();
                assert_eq!((count.received > 100, count.sent > 100), (offload, offload), "{count:?}");
                assert!(!offload || count.packets_received > 3 * count.received, "{count:?}");
                assert_eq!(end.offloads().0, offload);
            }
        });
    }
}

#[test]
fn packets_larger_than_the_interface_are_counted() {
    in_namespace(|| {
        let Some(_tun) = tun_or_skip("wt3", 1) else { return };
        let mut port = raw(&[]);
        let v4 = ipv4(50, 0, [10, 9, 0, 1], [10, 9, 0, 2], &[1; 1400]);
        let v6 = ipv6(50, 0, "fd00:9::1", "fd00:9::2", &[1; 1400]);
        let small = ipv4(50, 0, [10, 9, 0, 1], [10, 9, 0, 2], &[1; 140]);
        port.tx(&mut batch_of(&[v4, small, v6])).unwrap();
        assert_eq!(port.drops(), PortDrops { too_big: 2, ..PortDrops::default() });
        let mut port = UdpPort::bind("10.9.0.1:4500".parse().unwrap(), None).unwrap();
        let (from, to) = (port.local(), "10.9.0.2:4500".parse().unwrap());
        port.tx(&mut batch_of(&[datagram(from, to, 0, &[1; 1400]), datagram(from, to, 0, &[1; 14])])).unwrap();
        assert_eq!(port.drops(), PortDrops { too_big: 1, ..PortDrops::default() });
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_sent_may_be_anything(bytes in proptest::collection::vec(any::<u8>(), 0..60), version in 0..16_u8) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = version << 4 | *first & 15;
        }
        let mut batch = batch_of(&[bytes]);
        let Ok(mut port) = UdpPort::bind("127.0.0.1:0".parse().unwrap(), None) else { return Ok(()) };
        port.tx(&mut batch).unwrap();
        prop_assert!(batch.is_empty());
    }
}

#[test]
fn ike_and_esp_share_a_port() {
    in_namespace(|| {
        for any in ["0.0.0.0:4500", "[::]:4500"] {
            let any: SocketAddr = any.parse().unwrap();
            let (ike, mut esp) = ike_and_esp(any, Duration::from_millis(500));
            let host: SocketAddr = if any.is_ipv6() { "[::1]:4500" } else { "127.0.0.1:4500" }.parse().unwrap();
            let peer = std::net::UdpSocket::bind((host.ip(), 0)).unwrap();
            for datagram in [&[0, 0, 0, 0, 1, 2][..], &[0, 0, 1, 0, 9, 9], &[0xff], &[0x80, 0, 0, 0, 5]] {
                peer.send_to(datagram, host).unwrap();
            }
            let headers = if any.is_ipv6() { 48 } else { 28 };
            let payloads: Vec<Vec<u8>> =
                receive(&mut esp, 2, 2048).iter().map(|packet| packet[headers..].to_vec()).collect();
            assert_eq!(payloads, [vec![0, 0, 1, 0, 9, 9], vec![0x80, 0, 0, 0, 5]]);
            let mut ike_got = vec![];
            for _ in 0..2 {
                let mut buffer = [0; 64];
                let len = (&ike).read(&mut buffer).unwrap();
                ike_got.push(buffer[..len].to_vec());
            }
            assert_eq!(ike_got, [vec![0, 0, 0, 0, 1, 2], vec![0xff]]);
        }
    });
}
