"""IP packets to protect, built by hand."""

import ipaddress
import struct

UDP = 17


def checksum(data):
    """The Internet checksum; 0 over data that contains a right one."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def ip_udp(src, dst, payload, sport=40000, dport=9):
    """An IPv4 or IPv6 packet with a UDP datagram."""
    src, dst = ipaddress.ip_address(src).packed, ipaddress.ip_address(dst).packed
    length = 8 + len(payload)
    udp = struct.pack(">HHHH", sport, dport, length, 0) + payload
    pseudo = src + dst + struct.pack(">IHBB", length, 0, 0, UDP)
    udp = udp[:6] + struct.pack(">H", checksum(pseudo + udp) or 0xFFFF) + udp[8:]
    if len(src) == 16:
        return struct.pack(">IHBB", 0x60000000, length, UDP, 64) + src + dst + udp
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + length, 0x1234, 0x4000, 64, UDP, 0, src, dst)
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + udp
