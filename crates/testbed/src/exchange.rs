//! Messages of a key exchange, counted on the cable.

use std::io;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};

use crate::TestbedError;
use crate::world::{End, World};

/// Every protocol of a device (ETH_P_ALL), in network order.
const EVERY_PROTOCOL: u32 = (0x0003_u16.to_be()) as u32;
/// Ports of IKE; on the second one, messages begin with four zeros (RFC 7296 §3.1).
const IKE: u16 = 500;
const IKE_IN_UDP: u16 = 4500;
/// Longest part of a packet that is read: all headers and the first bytes of the payload.
const SNAP: usize = 128;

/// A tap on sun's devices.
pub struct Exchange(OwnedFd);

impl Exchange {
    /// Starts to listen.
    pub fn open(world: &World) -> Result<Self, TestbedError> {
        let made = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let every = NonZeroU32::new(EVERY_PROTOCOL).map(Protocol::from_raw);
            // Without the link-layer header.
            Ok(socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, every)?)
        };
        let failed = |error: io::Error| TestbedError::Failed(format!("cannot listen on the cable: {error}"));
        world.within(End::Sun, made).map(Self).map_err(failed)
    }

    /// Messages since the start, or since the last call: datagrams of IKE, and segments of TCP with
    /// a payload, which are those of the key service of PSP.
    pub fn messages(&self, world: &World) -> u64 {
        let hosts = End::BOTH.map(|end| world.plan.outer(end));
        let (mut count, mut packet) = (0, [0; SNAP]);
        while let Ok((read, whole)) = recv(&self.0, &mut packet, RecvFlags::TRUNC) {
            count += u64::from(is_message(&packet[..read.min(SNAP)], whole, hosts));
        }
        count
    }
}

/// Returns whether a packet of `whole` bytes that begins with `start` carries a message between
/// `hosts`.
fn is_message(start: &[u8], whole: usize, hosts: [IpAddr; 2]) -> bool {
    let at = |index: usize| start.get(index).copied().unwrap_or(0);
    let word = |index: usize| u16::from_be_bytes([at(index), at(index + 1)]);
    let address = |from: usize, len: usize| -> Option<IpAddr> {
        let bytes = start.get(from..from + len)?;
        match len {
            4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
            _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        }
    };
    let (protocol, payload, ends) = match at(0) >> 4 {
        4 => (at(9), usize::from(at(0) & 15) * 4, [address(12, 4), address(16, 4)]),
        6 => (at(6), 40, [address(8, 16), address(24, 16)]),
        _ => return false,
    };
    let [one, other] = hosts.map(Some);
    if ends != [one, other] && ends != [other, one] {
        return false;
    }
    match protocol {
        17 => {
            let is = |port: u16| word(payload) == port || word(payload + 2) == port;
            let marked = start.get(payload + 8..payload + 12) == Some(&[0; 4]);
            is(IKE) || is(IKE_IN_UDP) && marked
        }
        6 => whole > payload + usize::from(at(payload + 12) >> 4) * 4,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: [[u8; 4]; 2] = [[192, 0, 2, 1], [192, 0, 2, 2]];

    fn packet(protocol: u8, [from, to]: [[u8; 4]; 2], payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
        packet.extend(from);
        packet.extend(to);
        packet.extend(payload);
        packet
    }

    fn counts(packet: &[u8]) -> bool {
        is_message(packet, packet.len(), HOSTS.map(IpAddr::from))
    }

    #[test]
    fn messages_of_ike_count_and_packets_in_udp_do_not() {
        let udp = |port: u16, data: [u8; 4]| [&port.to_be_bytes()[..], &port.to_be_bytes(), &[0; 4], &data].concat();
        assert!(counts(&packet(17, HOSTS, &udp(500, [1, 2, 3, 4]))));
        assert!(counts(&packet(17, [HOSTS[1], HOSTS[0]], &udp(4500, [0; 4]))));
        assert!(!counts(&packet(17, HOSTS, &udp(4500, [0, 0, 0x10, 1]))), "ESP in UDP");
        assert!(!counts(&packet(17, HOSTS, &udp(9, [0; 4]))), "a probe");
        assert!(!counts(&packet(17, [[10, 1, 0, 1], HOSTS[1]], &udp(500, [0; 4]))), "inner addresses");
        assert!(!counts(&packet(50, HOSTS, &[0; 40])), "ESP");
    }

    #[test]
    fn segments_with_a_payload_count() {
        let tcp = |data: &[u8]| [&[0; 12][..], &[0x50], &[0; 7], data].concat();
        assert!(counts(&packet(6, HOSTS, &tcp(b"hello"))));
        assert!(!counts(&packet(6, HOSTS, &tcp(b""))));
        assert!(!counts(&[]) && !counts(&[0x45]) && !counts(&[0x60; 7]));
    }
}
