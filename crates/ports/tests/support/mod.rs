//! What tests against the kernel share: a network namespace, packets, and what arrives at a port.
#![allow(unsafe_code, unreachable_pub)]

use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use dataplane::{Batch, Port};
use socket2::{Domain, Protocol, Socket, Type};
use wire::checksum;

/// Runs `test` on a thread in a fresh network namespace with loopback up, or returns the reason to
/// skip.
pub fn in_namespace(test: impl FnOnce() + Send + 'static) {
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

pub fn loopback_up() {
    // nlmsghdr (RTM_NEWLINK, request and acknowledge) and ifinfomsg (interface 1, IFF_UP).
    let words = [32_u32, 16 | 5 << 16, 0, 0, 0, 1, 1, 1];
    let request: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(Protocol::from(0))).unwrap();
    (&socket).write_all(&request).unwrap();
    let mut reply = [0; 256];
    let len = (&socket).read(&mut reply).unwrap();
    assert_eq!(reply[16..20], [0; 4], "{:?}", &reply[..len]);
}

pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn ipv4(proto: u8, tos: u8, src: [u8; 4], dst: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let len = (20 + payload.len() as u16).to_be_bytes();
    let mut packet = vec![0x45, tos, len[0], len[1], 0x12, 0x34, 0x40, 0, 64, proto, 0, 0];
    packet.extend(src);
    packet.extend(dst);
    let sum = checksum::checksum(&packet).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet.extend(payload);
    packet
}

pub fn ipv6(next: u8, class_flow: u32, src: &str, dst: &str, payload: &[u8]) -> Vec<u8> {
    let mut packet = (6 << 28 | class_flow).to_be_bytes().to_vec();
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next, 64]);
    for address in [src, dst] {
        packet.extend(address.parse::<std::net::Ipv6Addr>().unwrap().octets());
    }
    packet.extend(payload);
    packet
}

pub fn batch_of(packets: &[Vec<u8>]) -> Batch {
    let mut batch = Batch::new(packets.len(), 65_536);
    packets.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
    batch
}

/// Receives at `port`: `count` packets, which may take a while on a busy machine, and any that
/// follow immediately.
pub fn receive(port: &mut dyn Port, count: usize, packet_bytes: usize) -> Vec<Vec<u8>> {
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
