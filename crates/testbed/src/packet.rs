//! Packets to send.

use std::net::IpAddr;

use wire::IpProto;
use wire::udp::{self, UdpHeader};

/// A UDP packet of `size` bytes in all (at least headers), payload counting up, checksums right.
pub fn udp(src: IpAddr, dst: IpAddr, src_port: u16, dst_port: u16, size: usize, proto: IpProto) -> Vec<u8> {
    let ip_len = if dst.is_ipv6() { 40 } else { 20 };
    let size = size.max(ip_len + UdpHeader::LEN);
    let mut packet = vec![0; size];
    for (i, byte) in packet.iter_mut().enumerate().skip(ip_len + UdpHeader::LEN) {
        *byte = i as u8;
    }
    let datagram = size - ip_len;
    packet[ip_len..ip_len + 2].copy_from_slice(&src_port.to_be_bytes());
    packet[ip_len + 2..ip_len + 4].copy_from_slice(&dst_port.to_be_bytes());
    packet[ip_len + 4..ip_len + 6].copy_from_slice(&(datagram as u16).to_be_bytes());
    let checksum = udp::checksum(src, dst, &packet[ip_len..]);
    packet[ip_len + 6..ip_len + 8].copy_from_slice(&checksum.to_be_bytes());
    let header = &mut packet[..ip_len];
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            header[0] = 0x45;
            header[2..4].copy_from_slice(&(size as u16).to_be_bytes());
            header[8..10].copy_from_slice(&[64, proto.0]);
            header[12..16].copy_from_slice(&src.octets());
            header[16..20].copy_from_slice(&dst.octets());
            let sum = wire::checksum::checksum(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            header[0] = 0x60;
            header[4..6].copy_from_slice(&(datagram as u16).to_be_bytes());
            header[6..8].copy_from_slice(&[proto.0, 64]);
            header[8..24].copy_from_slice(&src.octets());
            header[24..40].copy_from_slice(&dst.octets());
        }
        _ => unreachable!("both addresses are of one family"),
    }
    packet
}
