//! Raw, UDP and TUN ports against the kernel, each test in a network namespace of its own.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use socket2::{Domain, Protocol, Socket, Type};
use wire::{IpPacket, IpProto, checksum};

use super::{Port, RawPort, RawProtocols, Refused, TunConfig, TunPort, UdpPort};
use crate::Batch;

/// Runs `test` on a thread in a fresh network namespace with loopback up, or says why not.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        // SAFETY: the call changes the network namespace of this thread only and touches no memory.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            println!("skipped: no network namespace: {}", std::io::Error::last_os_error());
            return;
        }
        loopback_up();
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn loopback_up() {
    // nlmsghdr (RTM_NEWLINK, request and acknowledge) and ifinfomsg (interface 1, IFF_UP).
    let words = [32_u32, 16 | 5 << 16, 0, 0, 0, 1, 1, 1];
    let request: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(Protocol::from(0))).unwrap();
    (&socket).write_all(&request).unwrap();
    let mut reply = [0; 256];
    let len = (&socket).read(&mut reply).unwrap();
    assert_eq!(reply[16..20], [0; 4], "{:?}", &reply[..len]);
}

fn ipv4(proto: u8, tos: u8, src: [u8; 4], dst: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let len = (20 + payload.len() as u16).to_be_bytes();
    let mut packet = vec![0x45, tos, len[0], len[1], 0x12, 0x34, 0x40, 0, 64, proto, 0, 0];
    packet.extend(src);
    packet.extend(dst);
    let sum = checksum::checksum(&packet).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet.extend(payload);
    packet
}

fn ipv6(next: u8, class_flow: u32, src: &str, dst: &str, payload: &[u8]) -> Vec<u8> {
    let mut packet = (6 << 28 | class_flow).to_be_bytes().to_vec();
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next, 64]);
    for address in [src, dst] {
        packet.extend(address.parse::<std::net::Ipv6Addr>().unwrap().octets());
    }
    packet.extend(payload);
    packet
}

fn batch_of(packets: &[Vec<u8>]) -> Batch {
    let mut batch = Batch::new(packets.len(), 65_536);
    packets.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
    batch
}

/// What arrives at `port`: `count` packets, for which a busy machine may need a while, and whatever comes
/// right behind them.
fn receive(port: &mut dyn Port, count: usize, packet_bytes: usize) -> Vec<Vec<u8>> {
    let (mut got, start) = (vec![], Instant::now());
    let mut batch = Batch::new(150, packet_bytes);
    let mut quiet_since = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        port.rx(&mut batch).unwrap();
        if !batch.is_empty() || got.len() < count {
            quiet_since = Instant::now();
        }
        got.extend(batch.packets().iter().map(|packet| packet.bytes().to_vec()));
        batch.clear();
        if quiet_since.elapsed() > Duration::from_millis(50) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    got
}

fn raw(protocols: &[u8]) -> RawPort {
    let protocols = protocols.iter().map(|proto| IpProto(*proto)).collect();
    RawPort::open(&RawProtocols { protocols, icmp: false, mark: Some(7), ..RawProtocols::default() }).unwrap()
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
        assert_eq!(port.refused(), Refused::default());
    });
}

#[test]
fn raw_ipv6_headers_are_rebuilt_as_they_were() {
    in_namespace(|| {
        let mut port = raw(&[50, 51]);
        let plain = ipv6(50, 0x0b9_12345, "::1", "::1", &[5; 100]);
        let mut chain = vec![60, 0, 1, 4, 0, 0, 0, 0]; // hop-by-hop: PadN
        chain.extend([43, 1, 0x1e, 12, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]); // destination options: experiment
        chain.extend([60, 0, 253, 0, 1, 2, 3, 4]); // routing header of an experimental type, used up
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
        assert_eq!(port.refused(), Refused { other: 3, cut_off: 1, ..Refused::default() });
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
        let config = TunConfig { name: "wt5".to_owned(), mtu: 1300, addresses, queues: 1, v6: true };
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
        let mut heard = [error(8), error_v6("8"), esp(8), esp(9)];
        heard.sort();
        assert_eq!(got, heard);
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
            assert_eq!((left.refused(), right.refused().other), (Refused::default(), 1));
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
    TunPort::open(&TunConfig { name: name.to_owned(), mtu: 1300, addresses: addresses.to_vec(), queues, v6: true })
}

/// Packets of `proto` from what a TUN gives (the kernel says this and that on a new interface).
fn of_proto(packets: Vec<Vec<u8>>, proto: IpProto) -> Vec<Vec<u8>> {
    packets.into_iter().filter(|packet| IpPacket::parse(packet).unwrap().upper == proto).collect()
}

/// Opens a TUN, or says why that cannot be tried here.
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
        // A ping from the far side is answered by the kernel behind the TUN.
        let ping = ipv4(1, 0, [10, 9, 0, 2], [10, 9, 0, 1], &[8, 0, 0xf7, 0xfd, 0, 1, 0, 1]);
        ports[0].tx(&mut batch_of(&[ping, vec![0x15, 1, 2]])).unwrap();
        let got = of_proto(receive(&mut ports[0], 2, 2048), IpProto::ICMP);
        assert_eq!((got[0][12..20].to_vec(), got[0][20]), (vec![10, 9, 0, 1, 10, 9, 0, 2], 0));
        assert_eq!(ports[0].refused(), Refused { other: 1, ..Refused::default() });
    });
}

#[test]
fn tun_without_ipv6_starts_silent() {
    in_namespace(|| {
        let addresses = vec![("10.9.0.1".parse().unwrap(), 24)];
        let config = TunConfig { name: "wt6".to_owned(), mtu: 1300, addresses, queues: 1, v6: false };
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
        let wrong = TunConfig { name: "wt2".to_owned(), mtu: 1300, addresses, queues: 1, v6: true };
        assert!(TunPort::open(&wrong).err().unwrap().to_string().contains("192.0.2.1/33"));
        let wrong = TunConfig { name: "wt2".to_owned(), mtu: 10, addresses: vec![], queues: 1, v6: false };
        assert!(TunPort::open(&wrong).err().unwrap().to_string().contains("MTU"));
        assert!(tun("wt2", 1).is_ok(), "nothing was left behind");
    });
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
        assert_eq!(port.refused(), Refused { too_big: 2, ..Refused::default() });
        let mut port = UdpPort::bind("10.9.0.1:4500".parse().unwrap(), None).unwrap();
        let (from, to) = (port.local(), "10.9.0.2:4500".parse().unwrap());
        port.tx(&mut batch_of(&[datagram(from, to, 0, &[1; 1400]), datagram(from, to, 0, &[1; 14])])).unwrap();
        assert_eq!(port.refused(), Refused { too_big: 1, ..Refused::default() });
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
            let ike = Socket::new(Domain::for_address(any), Type::DGRAM, Some(Protocol::UDP)).unwrap();
            if any.is_ipv6() {
                ike.set_only_v6(true).unwrap();
            }
            super::share_with_esp(&ike).unwrap();
            ike.bind(&any.into()).unwrap();
            super::keep_ike(&ike).unwrap();
            ike.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            let mut esp = UdpPort::bind_shared(any, None).unwrap();
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
