"""ESP and AH through `weir pcap` and through scapy: what one seals the other opens, byte for byte.

All cases go through one run of `weir pcap seal` and one of `weir pcap open`; policies and SPIs tell them apart.
"""

import logging
import os
import struct
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
logging.getLogger("scapy").setLevel(logging.ERROR)

from scapy.config import conf  # noqa: E402

conf.ipv6_enabled = True
from scapy.layers.inet import (  # noqa: E402
    IP, TCP, UDP, IPOption_LSRR, IPOption_NOP, IPOption_Router_Alert, IPOption_Timestamp)
from scapy.layers.inet6 import (  # noqa: E402
    HBHOptUnknown, ICMPv6EchoRequest, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop, RouterAlert)
from scapy.layers.ipsec import AH, ESP, IPSecIntegrityError, SecurityAssociation  # noqa: E402
from scapy.packet import Raw, raw  # noqa: E402

from capture import report, transform, write_configuration  # noqa: E402
from cases import cases  # noqa: E402
from gateway import Failed  # noqa: E402

ESP_PROTOCOL = 50
# Payloads in bytes: none, around the block sizes with and without a tunnel, large.
SIZES = (0, 13, 14, 15, 1400)


def plain(case, direction):
    """The packets to protect, from Weir's side for `seal` and towards it for `open`."""
    here, there = case.hosts
    src, dst = (here, there) if direction == "seal" else (there, here)
    if case.inner == 4:
        options = []
        if "options" in case.variants and case.mode == "transport":
            # Immutable, then mutable ones (RFC 4302, appendix A1).
            options = [IPOption_Router_Alert(), IPOption_NOP(),
                       IPOption_Timestamp(pointer=9, flg=0, timestamp=0x01020304)]
        head = IP(src=src, dst=dst, id=0x1234, ttl=63, tos=0x28, flags="DF", options=options)
        other = TCP(sport=40000, dport=80, flags="S", options=[("MSS", 1460)])
    else:
        head = IPv6(src=src, dst=dst, hlim=63, tc=0x28, fl=0x54321)
        if "extensions" in case.variants and case.mode == "transport":
            # 0x3e may change on its way, 0x1e may not (RFC 4302, appendix A2).
            head /= IPv6ExtHdrHopByHop(options=[RouterAlert(), HBHOptUnknown(otype=0x3E, optlen=4, optdata=b"abcd")])
            head /= IPv6ExtHdrDestOpt(options=[HBHOptUnknown(otype=0x1E, optlen=4, optdata=b"efgh")])
        other = ICMPv6EchoRequest(id=7, seq=9)
    packets = [head / UDP(sport=40000, dport=9) / Raw(bytes((i * 7 + size) & 0xFF for i in range(size))) for size in SIZES]
    packets.append(head / other / Raw(b"are you there?"))
    return [raw(packet) for packet in packets]


class EsnMac:
    """A MAC of scapy over ESP with the high half behind the packet (RFC 4303 §2.2.1), which scapy 2.5 leaves out.

    Newer versions pass the number to the MAC, and are asked for theirs.
    """

    def __init__(self, mac, high):
        self.mac, self.high, self.icv_size = mac, struct.pack("!L", high), mac.icv_size

    def _icv(self, covered, key):
        mac = self.mac.new_mac(key)
        mac.update(covered + self.high)
        return mac.finalize()[:self.icv_size]

    def sign(self, esp, key, **number):
        if number:
            return self.mac.sign(esp, key, **number)
        esp.data += self._icv(raw(esp), key)
        return esp

    def verify(self, esp, key, **number):
        if number:
            return self.mac.verify(esp, key, **number)
        covered = raw(esp)
        if self._icv(covered[:-self.icv_size], key) != covered[-self.icv_size:]:
            raise IPSecIntegrityError("ICV")
        return None


def association(case, direction, seq, tunnel_header=None):
    """Scapy's SA for one packet."""
    tunnel = None
    if case.mode == "tunnel":
        src, dst = case.ends if direction == "seal" else case.ends[::-1]
        tunnel = tunnel_header or (IP if case.outer == 4 else IPv6)(src=src, dst=dst)
        if tunnel_header is None and "options" in case.variants:
            tunnel.options = [IPOption_Router_Alert(), IPOption_LSRR(pointer=8, routers=[src])]
        if tunnel_header is None and "extensions" in case.variants:
            tunnel /= IPv6ExtHdrHopByHop(options=[RouterAlert()])
    sa = SecurityAssociation(
        ESP if case.protocol == "esp" else AH, spi=case.spi(direction), seq_num=seq & 0xFFFFFFFF,
        crypt_algo=case.cipher and case.cipher[0], crypt_key=case.cipher_key(direction) or None,
        crypt_icv_size=case.cipher and case.cipher[2],
        auth_algo=case.mac and case.mac[0], auth_key=case.mac_key(direction) or None,
        tunnel_header=tunnel, nat_t_header=UDP(sport=4500, dport=4500) if case.udp else None,
        esn_en=case.esn, esn=seq >> 32)
    if case.esn and case.mac and case.protocol == "esp":
        sa.auth_algo = EsnMac(sa.auth_algo, seq >> 32)
    return sa


def parse(packet):
    """The packet as layers of scapy."""
    return IP(packet) if packet[0] >> 4 == 4 else IPv6(packet)


def with_udp_length(sealed):
    """Scapy 2.5 writes 8 bytes in the UDP header around ESP in IPv4, whatever follows."""
    packet = bytearray(sealed)
    at = (packet[0] & 15) * 4
    packet[at + 4:at + 6] = struct.pack("!H", len(packet) - at)
    return bytes(packet)


def without_udp(packet):
    """Scapy 2.5 cannot take UDP around ESP off IPv6."""
    ip = parse(packet)
    esp = bytes(ip[UDP].payload)
    head = packet[:len(packet) - len(ip[UDP])]
    if ip.version == 4:
        return IP(raw(IP(head[:9] + bytes([ESP_PROTOCOL]) + head[10:] + esp, len=len(head) + len(esp), chksum=None)))
    return IPv6(head[:4] + struct.pack("!HB", len(esp), ESP_PROTOCOL) + head[7:] + esp)


def at_security_header(packet):
    """Offset of ESP or AH."""
    ip = parse(packet)
    layer = ip.getlayer(ESP) or ip.getlayer(AH)
    return len(packet) - len(raw(layer)) if layer else None


def check_ip(packet):
    """What any router would complain about."""
    ip = parse(packet)
    if ip.version == 4:
        if ip.len != len(packet):
            return f"its IPv4 header states {ip.len} of {len(packet)} bytes"
        fresh = IP(packet)
        del fresh.chksum
        if IP(raw(fresh)).chksum != ip.chksum:
            return "its IPv4 header checksum is wrong"
    elif ip.plen + 40 != len(packet):
        return f"its IPv6 header states {ip.plen + 40} of {len(packet)} bytes"
    return None


def expect_outer(case, packet):
    """Addresses and encapsulation as configured."""
    ip = parse(packet)
    if (ip.src, ip.dst) != case.ends:
        return f"it goes from {ip.src} to {ip.dst}"
    if case.udp != (UDP in ip and ip[UDP].dport == 4500):
        return "UDP around it is not as configured"
    return None


def scapy_opens(case, seq, before, sealed):
    """Checks one packet of Weir with scapy. Returns what is wrong."""
    fault = check_ip(sealed) or expect_outer(case, sealed)
    if fault:
        return fault
    packet = without_udp(sealed) if case.udp else parse(sealed)
    sa = association(case, "seal", seq)
    seen = packet[ESP if case.protocol == "esp" else AH].seq
    if seen != seq & 0xFFFFFFFF:
        return f"its sequence number is {seen:#x}, not {seq & 0xFFFFFFFF:#x}"
    try:
        after = raw(sa.decrypt(packet.copy()))
    except IPSecIntegrityError:
        return "scapy finds its ICV wrong"
    if after != before:
        return f"scapy opens it to {after.hex()}, not {before.hex()}"
    # The same key, number and IV leave no choice about any other byte.
    cover = raw(packet)
    at = at_security_header(cover)
    iv = None
    if case.protocol == "esp":
        iv = cover[at + 8:at + 8 + sa.crypt_algo.iv_size]
    head = parse(cover[:at]) if case.mode == "tunnel" else None
    if head is not None:
        # Scapy fills in what it finds missing.
        for name in ("proto", "nh", "len", "plen", "chksum"):
            if name in head.fields:
                delattr(head, name)
    again = association(case, "seal", seq, head)
    again.nat_t_header = None
    expected = raw(again.encrypt(parse(before), iv=iv))
    if expected[at:] != cover[at:]:
        return f"scapy seals it to {expected[at:].hex()}, Weir to {cover[at:].hex()}"
    return None


def seal_cases(every, lab):
    """Weir seals, scapy opens."""
    packets, owner = [], []
    for case in every:
        for index, packet in enumerate(plain(case, "seal")):
            packets.append(packet)
            owner.append((case, case.first() + index))
    faults = {}
    for (case, seq), before, sealed in zip(owner, packets, transform("seal", lab, packets)):
        if case.name in faults:
            continue
        if isinstance(sealed, str):
            faults[case.name] = f"{len(before)} bytes: Weir refused to seal: {sealed}"
            continue
        try:
            why = scapy_opens(case, seq, before, sealed)
        except Exception as error:  # Scapy raises anything on a packet that it cannot make sense of.
            why = f"scapy: {type(error).__name__}: {error}: {sealed.hex()}"
        if why:
            faults[case.name] = f"{len(before)} bytes, number {seq:#x}: {why}"
    return faults


def open_cases(every, lab):
    """Scapy seals, Weir opens; and refuses a copy with one bit turned."""
    packets, owner, faults = [], [], {}
    for case in every:
        for index, before in enumerate(plain(case, "open")):
            seq = case.first() + index
            try:
                sealed = raw(association(case, "open", seq).encrypt(parse(before)))
            except Exception as error:
                faults[case.name] = f"scapy cannot seal it: {type(error).__name__}: {error}"
                continue
            if case.udp and case.outer == 4:
                sealed = with_udp_length(sealed)
            # The forgery first: had it moved the window, the real one would be a replay.
            forged = bytearray(sealed)
            forged[-1 - seq % 12] ^= 1 << seq % 8
            packets += [bytes(forged), sealed]
            owner += [(case, seq, None), (case, seq, before)]
    for (case, seq, before), opened in zip(owner, transform("open", lab, packets)):
        if case.name in faults:
            continue
        where = f"number {seq:#x}"
        if before is None:
            if not isinstance(opened, str):
                faults[case.name] = f"{where}: Weir took a packet with a wrong ICV"
            elif not opened.startswith("bad_icv"):
                faults[case.name] = f"{where}: Weir refused a wrong ICV as {opened}"
        elif isinstance(opened, str):
            faults[case.name] = f"{where}, {len(before)} bytes: Weir refused to open: {opened}"
        elif opened != before:
            faults[case.name] = f"{where}: Weir opened it to {opened.hex()}, not {before.hex()}"
    return faults


def main():
    lab, wanted = sys.argv[1], sys.argv[2:]
    every = [case for case in cases() if not wanted or any(part in case.name for part in wanted)]
    if not every:
        sys.exit(0)
    write_configuration(lab, {
        "gateway": {"allow_legacy": True},
        "sas": {f"c{case.number}": case.sa() for case in every},
        "policies": {f"c{case.number}": case.policy() for case in every},
    })
    try:
        directions = {"seal": seal_cases(every, lab), "open": open_cases(every, lab)}
    except Failed as why:
        sys.exit(f"FAIL scapy/all: {why}")
    sys.exit(0 if report("scapy", [case.name for case in every], directions) else 1)


main()
