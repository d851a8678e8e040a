//! Two hosts with a veth cable between them, past their stacks.
#![allow(unsafe_code)]

use std::net::IpAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::next_hops::{Hop, NextHops};
use super::*;
use crate::support::{batch_of, in_namespace, ip, ipv4, ipv6, loopback_up, receive};
use crate::{RawProtocols, UdpPort};

/// Timeout on a busy machine.
const LONGEST: Duration = Duration::from_secs(10);

/// A device accepts frames that are longer by a VLAN tag.
const FAR_MTU: usize = 1504;

const MACS: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];

/// Sets the addresses and a static neighbor of one end of the cable.
fn set_up(host: usize) {
    let (name, own, other) = (format!("wx{host}"), host + 1, 2 - host);
    ip(&format!("link set {name} address {} mtu {} up", MACS[host], [FAR_MTU + VLAN_TAG, FAR_MTU][host]));
    ip(&format!("addr add 10.6.0.{own}/24 dev {name}"));
    ip(&format!("addr add fd00:6::{own}/64 dev {name} nodad"));
    for neighbour in [format!("10.6.0.{other}"), format!("fd00:6::{other}")] {
        ip(&format!("neigh replace {neighbour} lladdr {} nud permanent dev {name}", MACS[1 - host]));
    }
}

fn wanted(host: usize) -> BypassFilter {
    let local = [format!("10.6.0.{}", host + 1), format!("fd00:6::{}", host + 1)];
    BypassFilter {
        local: local.map(|addr| addr.parse().unwrap()).to_vec(),
        protocols: vec![IpProto::ESP, IpProto(253)],
        udp: vec![4500],
        with_ike: Some(4500),
    }
}

/// Opens one end, or returns the reason to skip.
fn open_or_skip(host: usize) -> Option<(Vec<Interface>, InterfaceMonitor)> {
    open_with_or_skip(host, true)
}

/// The same, with a packet socket to receive or with AF_XDP.
fn open_with_or_skip(host: usize, packet_socket: bool) -> Option<(Vec<Interface>, InterfaceMonitor)> {
    let name = format!("wx{host}");
    match Interface::open_with(&name, &wanted(host), packet_socket) {
        Ok((interface, watch)) => {
            let by_packet_socket = watch.describe().contains("received by a packet socket");
            if packet_socket && let Err(why) = sys::ingress_hook(Link::of(&name).unwrap().if_index) {
                println!("skipped: {why}");
                return None;
            }
            assert_eq!(by_packet_socket, packet_socket, "{}", watch.describe());
            Some((vec![interface], watch))
        }
        Err(error) => {
            println!("skipped: {error}");
            assert!(available().is_err(), "{error}");
            None
        }
    }
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONGEST, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn by_kernel() -> RawPort {
    RawPort::open(&RawProtocols { protocols: vec![], icmp: false, ..RawProtocols::default() }).unwrap()
}

/// ESP and EESP of both families, as the far host gets them: several times as many as there are
/// frames.
fn packets() -> Vec<Vec<u8>> {
    let (near, far) = ([10, 6, 0, 1], [10, 6, 0, 2]);
    let payload = |n: usize| vec![n as u8; 12 + 7 * (n % 200)];
    let v4 = (0..1500).map(|n| ipv4(if n % 3 == 0 { 253 } else { 50 }, 0xb8, near, far, &payload(n)));
    let v6 = (0..1500).map(|n| ipv6(50, 0x0b9_12345, "fd00:6::1", "fd00:6::2", &payload(n)));
    let longest = ipv4(50, 0xb8, near, far, &[9; FAR_MTU + VLAN_TAG - 20]);
    v4.chain(v6).chain([longest]).collect()
}

#[test]
fn packets_cross_the_cable_past_both_stacks() {
    cross_the_cable(false);
}

#[test]
fn packets_cross_the_cable_to_a_packet_socket_past_the_stack() {
    cross_the_cable(true);
}

/// Sends to a host that receives by a packet socket or by AF_XDP, and that has raw sockets, too,
/// which must receive none of it.
fn cross_the_cable(packet_socket: bool) {
    in_namespace(move || {
        let (to_far, from_near) = mpsc::channel();
        let (to_near, from_far) = mpsc::channel();
        let (watching, watched) = mpsc::channel();
        // SAFETY: the call returns a number.
        let near = unsafe { libc::gettid() };
        let far = std::thread::spawn(move || {
            // SAFETY: the call changes the network namespace of this thread only and touches no
            // memory.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            loopback_up();
            // SAFETY: the call returns a number.
            to_near.send(unsafe { libc::gettid() }).unwrap();
            from_near.recv().unwrap();
            set_up(1);
            let if_index = Link::of("wx1").unwrap().if_index;
            // Another program at the hook, which passes all packets to the stack.
            let passes = bpf::load(Kind::INGRESS, &program::PASSES)
                .and_then(|program| sys::attach_ingress_last(program.as_fd(), if_index));
            let (mut interfaces, watch) = open_with_or_skip(1, packet_socket)?;
            assert!(passes.is_ok() || !packet_socket);
            let mut stack = RawPort::open(&RawProtocols { icmp: false, ..RawProtocols::default() }).unwrap();
            let mut ports = ports_of_worker(&mut interfaces, 0, 1, by_kernel(), None).unwrap().0;
            let mut udp = UdpPort::bind("10.6.0.2:4500".parse().unwrap(), None).unwrap();
            watching.send(watch).unwrap();
            to_near.send(0).unwrap();
            let (mut got, mut batch, start) = (vec![], Batch::new(150, 2048), Instant::now());
            while got.len() < packets().len() && start.elapsed() < LONGEST {
                ports[0].rx(&mut batch).unwrap();
                got.extend(batch.packets().iter().map(|packet| packet.bytes().to_vec()));
                batch.clear();
            }
            assert!(ports.iter().all(|port| port.drops() == PortDrops::default()));
            let by_udp = receive(&mut udp, 1, 2048);
            // A worker that waits for a CPU.
            to_near.send(0).unwrap();
            from_near.recv().unwrap();
            let mut waited = 0;
            while {
                ports[0].rx(&mut batch).unwrap();
                !batch.is_empty() && waited <= packets().len()
            } {
                waited += batch.len();
                batch.clear();
            }
            let mut by_stack = Batch::new(1, 2048);
            stack.rx(&mut by_stack).unwrap();
            assert!(by_stack.is_empty(), "raw sockets received what had bypassed the stack");
            Some((got, by_udp, waited))
        });
        let far_thread = from_far.recv().unwrap();
        ip(&format!("link add wx0 type veth peer name wx1 netns /proc/{near}/task/{far_thread}/ns/net"));
        set_up(0);
        to_far.send(()).unwrap();
        if from_far.recv().is_err() {
            assert!(far.join().unwrap().is_none());
            return;
        }
        let Some((mut interfaces, watch)) = open_or_skip(0) else { return };
        let (_ports, mut sender) = ports_of_worker(&mut interfaces, 0, 1, by_kernel(), None).unwrap();
        let (of_far, mut sent) = (watched.recv().unwrap(), 0);
        for burst in packets().chunks(150) {
            sender.tx(&mut batch_of(burst)).unwrap();
            sent += burst.len() as u64;
            // What is between the ends of a veth holds 256.
            wait_for("what was sent arrives", || of_far.read().received == sent);
        }
        assert_eq!((watch.read().sent, of_far.read()), (sent, BypassCounts { received: sent, sent: 0, lost: 0 }));
        let mut strays = vec![ipv4(50, 0, [10, 6, 0, 1], [10, 6, 0, 2], &[1; 1500])];
        strays.push(ipv4(17, 0, [10, 6, 0, 1], [10, 6, 0, 2], &[0x11, 0x94, 0x11, 0x94, 0, 12, 0, 0, 1, 2, 3, 4]));
        sender.tx(&mut batch_of(&strays)).unwrap();
        assert_eq!(sender.drops(), PortDrops { too_big: 1, ..PortDrops::default() });
        from_far.recv().unwrap();
        for burst in packets().chunks(150) {
            sender.tx(&mut batch_of(burst)).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        to_far.send(()).unwrap();
        let (got, by_udp, waited) = far.join().unwrap().unwrap();
        // What the cable itself has no room for is none of the queue's.
        assert_eq!((of_far.read().lost, waited > 2000), (0, true), "{waited}");
        assert!(got == packets(), "{} of {}", got.len(), packets().len());
        assert_eq!(by_udp.len(), 1, "UDP goes by sockets where there is no zero-copy");
    });
}

/// Both ends of a cable in one namespace; the second is only there to be sent to.
fn cable() {
    ip("link add wx0 type veth peer name wx1");
    ip("link set wx1 up");
    set_up(0);
}

fn is_readable(port: &dyn Port) -> bool {
    let Some(fd) = port.readable() else { return false };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn an_interface_that_comes_and_goes_is_no_end() {
    comes_and_goes(false);
}

#[test]
fn an_interface_with_a_packet_socket_that_comes_and_goes_is_no_end() {
    comes_and_goes(true);
}

fn comes_and_goes(packet_socket: bool) {
    in_namespace(move || {
        cable();
        let esp = || batch_of(&[ipv4(50, 0, [10, 6, 0, 1], [10, 6, 0, 2], &[1; 90])]);
        // Opened again at once: the kernel may still have the queue of before.
        for _ in 0..3 {
            let Some((mut interfaces, watch)) = open_with_or_skip(0, packet_socket) else { return };
            let (_ports, mut sender) = ports_of_worker(&mut interfaces, 0, 1, by_kernel(), None).unwrap();
            sender.tx(&mut esp()).unwrap();
            assert_eq!(watch.read().sent, 1);
        }
        let Some((mut interfaces, mut watch)) = open_with_or_skip(0, packet_socket) else { return };
        let (mut ports, mut sender) = ports_of_worker(&mut interfaces, 0, 1, by_kernel(), None).unwrap();
        ip("link set wx0 down");
        sender.tx(&mut esp()).unwrap();
        assert_eq!(watch.trouble(), None, "an interface that is down comes up again");
        let port = &mut ports[0];
        wait_for("the worker sleeps while an interface is down", || {
            port.rx(&mut Batch::new(1, 2048)).unwrap();
            !is_readable(&**port)
        });
        ip("link set wx0 up");
        ip("neigh replace 10.6.0.2 lladdr 02:00:00:00:00:02 nud permanent dev wx0");
        wait_for("it is used again", || {
            sender.tx(&mut esp()).unwrap();
            watch.read().sent > 0
        });
        ip("link del wx0");
        for port in &mut ports {
            port.rx(&mut batch_of(&[])).unwrap();
        }
        sender.tx(&mut esp()).unwrap();
        sender.tx(&mut esp()).unwrap();
        assert_eq!((watch.trouble(), watch.trouble()), (Some("the interface was taken away"), None));
    });
}

#[test]
fn next_hops_are_those_of_the_kernel() {
    in_namespace(|| {
        cable();
        let (now, mac) = (Instant::now(), [2, 0, 0, 0, 0, 2]);
        let mut hops = NextHops::new(None).unwrap();
        let neighbour: IpAddr = "10.6.0.2".parse().unwrap();
        let Some(Hop { if_index, .. }) = hops.to(neighbour, now) else { panic!("a permanent neighbour") };
        assert_eq!(hops.to("fd00:6::2".parse().unwrap(), now), Some(Hop { if_index, mac }));
        for kernels_own in ["10.6.0.9", "127.0.0.1", "198.51.100.1"] {
            assert_eq!(hops.to(kernels_own.parse().unwrap(), now), None, "{kernels_own}");
        }
        // A stale neighbor must be probed: the first packet goes to the kernel.
        ip("neigh replace 10.6.0.2 lladdr 02:00:00:00:00:02 nud stale dev wx0");
        let later = now + Duration::from_secs(1);
        assert_eq!([hops.to(neighbour, later), hops.to(neighbour, later)], [None, Some(Hop { if_index, mac })]);
        // An unexpected response must not match the next request.
        hops.stray("127.0.0.1".parse().unwrap());
        ip("neigh replace 10.6.0.2 lladdr 02:00:00:00:00:02 nud permanent dev wx0");
        assert_eq!(hops.to(neighbour, later + Duration::from_secs(1)), Some(Hop { if_index, mac }));
    });
}

#[test]
fn the_kernel_is_asked_once_a_second_and_place() {
    let mut hops = NextHops::new(None).unwrap();
    let now = Instant::now();
    let destinations: Vec<IpAddr> = (0..20_000_u32).map(|n| Ipv4Addr::from(0x7f00_0000 | n).into()).collect();
    for _ in 0..3 {
        destinations.iter().for_each(|dst| assert_eq!(hops.to(*dst, now), None, "an address of this host"));
    }
    assert!(hops.asked() <= 4096, "{}", hops.asked());
    let asked = hops.asked();
    hops.to(destinations[0], now + Duration::from_secs(1));
    assert_eq!(hops.asked(), asked + 1);
}

#[test]
fn what_cannot_be_opened_says_why() {
    in_namespace(|| {
        let local = (0..257_u32).map(|n| Ipv4Addr::from(0x0a00_0000 | n).into()).collect();
        ip("link add wx0 type veth peer name wx1");
        let error = Interface::open("wx0", &BypassFilter { local, ..wanted(0) }).err().unwrap();
        assert!(error.to_string().contains("257 addresses"), "{error}");
        let Some(_first) = open_or_skip(0) else { return };
        let error = Interface::open("wx0", &wanted(0)).err().unwrap();
        assert!(error.to_string().contains("another program has the queue"), "{error}");
        for (name, why) in [("wx9", "no such interface"), ("lo", "not an Ethernet")] {
            let error = Interface::open(name, &wanted(0)).err().unwrap();
            assert!(error.to_string().contains(why), "{error}");
        }
    });
}

#[test]
fn a_veth_device_receives_by_a_packet_socket_where_it_can() {
    in_namespace(|| {
        cable();
        let Some(_) = open_or_skip(0) else { return };
        for local in [&["10.6.0.1"][..], &["fd00:6::1"], &["10.6.0.1", "10.6.0.7", "fd00:6::1", "fd00:6::7"]] {
            let local = local.iter().map(|addr| addr.parse().unwrap()).collect();
            let (_interface, watch) = Interface::open("wx0", &BypassFilter { local, ..wanted(0) }).unwrap();
            assert_eq!(watch.describe(), "wx0: 1 queue, copy mode, received by a packet socket");
        }
        // No more programs than these have room at the hook.
        let if_index = Link::of("wx0").unwrap().if_index;
        let program = || bpf::load(Kind::INGRESS, &program::PASSES);
        let attach = || program().and_then(|program| sys::attach_ingress_last(program.as_fd(), if_index));
        let passes: Vec<_> = std::iter::repeat_with(attach).map_while(Result::ok).collect();
        let (_interface, watch) = Interface::open("wx0", &wanted(0)).unwrap();
        let text = watch.describe();
        assert!(
            text.contains("program in the driver, no packet socket: ingress hook: ") && watch.queues() == 1,
            "{text}"
        );
        drop(passes);
        // With several queues in use several workers receive.
        ip("link add wx2 numrxqueues 2 numtxqueues 2 type veth peer name wx3 numrxqueues 2 numtxqueues 2");
        let (_interface, watch) = Interface::open("wx2", &wanted(0)).unwrap();
        assert_eq!(watch.describe(), "wx2: 2 queues, copy mode, program in the driver");
    });
}

#[test]
fn frames_are_as_small_as_they_can_be() {
    assert_eq!(
        [1280, 1500, 1774, 1775, 3822, 3823, 9000].map(frame_bytes),
        [Some(2048), Some(2048), Some(2048), Some(4096), Some(4096), None, None]
    );
}

#[test]
fn many_queues_have_fewer_frames_each() {
    let frames = [(1, 2048), (4, 2048), (8, 2048), (9, 2048), (64, 2048), (1, 4096), (4, 4096)];
    let frames = frames.map(|(queues, bytes)| receive_frames(queues, bytes));
    assert_eq!(frames, [8192, 8192, 4096, 2048, 1024, 8192, 4096]);
}

#[test]
fn fewer_frames_are_used_where_little_memory_may_be_locked() {
    let limited = |limit: u32, code: i32| {
        let mut frames = FrameCounts { received: RECEIVE_FRAMES, sent: SEND_FRAMES };
        let open = |frames: FrameCounts| match frames.received + frames.sent > limit {
            true => Err(std::io::Error::from_raw_os_error(code)),
            false => Ok(frames.received),
        };
        (with_fewer(&mut frames, open).map_err(|error| error.raw_os_error()), frames.received)
    };
    assert_eq!(limited(RECEIVE_FRAMES + SEND_FRAMES, libc::ENOBUFS), (Ok(8192), 8192));
    // 8 MiB, the default of Linux.
    assert_eq!(limited(4096, libc::ENOBUFS), (Ok(2048), 2048));
    assert_eq!(limited(4096, libc::ENOMEM), (Ok(2048), 2048));
    assert_eq!(limited(1024, libc::ENOBUFS), (Ok(512), 512));
    assert_eq!(limited(512, libc::ENOBUFS), (Ok(256), 256));
    assert_eq!(limited(511, libc::ENOBUFS), (Err(Some(libc::ENOBUFS)), 256));
    // A packet socket receives.
    let sending = |limit: u32| {
        let mut frames = FrameCounts { received: LEAST_FRAMES, sent: SEND_FRAMES };
        let open = |frames: FrameCounts| match frames.received + frames.sent > limit {
            true => Err(std::io::Error::from_raw_os_error(libc::ENOBUFS)),
            false => Ok((frames.received, frames.sent)),
        };
        with_fewer(&mut frames, open).ok()
    };
    assert_eq!([1280, 1279, 767, 511].map(sending), [Some((256, 1024)), Some((256, 512)), Some((256, 256)), None]);
    // Another error is one at once.
    assert_eq!(limited(0, libc::EBUSY), (Err(Some(libc::EBUSY)), 8192));
}

#[test]
fn a_frame_holds_the_packet_and_what_ethernet_fills_it_up_with() {
    let packet = ipv4(50, 0, [1; 4], [2; 4], &[7; 9]);
    let frame = [&[0; 14][..], &packet, &[0; 17]].concat();
    assert_eq!(packet_in(&frame), Some(&packet[..]));
    for len in 0..14 + packet.len() {
        assert_eq!(packet_in(&frame[..len]), None, "{len}");
    }
}
