"""PSP through `weir pcap` and through scapy's contributed PSP layer, which scapy has since 2.7.

Scapy has the packet and the cipher, but no key derivation and no outer IP: these are made here.
"""

import hashlib
import ipaddress
import os
import struct
import sys
from dataclasses import dataclass

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from capture import report, transform, write_configuration  # noqa: E402
from gateway import Failed  # noqa: E402
from packet import UDP, ip_udp  # noqa: E402

try:
    from scapy.contrib.psp import PSP, PSPIntegrityError
except ImportError:
    from scapy import __version__
    print(f"SKIP scapy/psp: scapy {__version__} has no contrib.psp; 2.7 has")
    sys.exit(0)
from cryptography.hazmat.primitives.ciphers import algorithms  # noqa: E402
from cryptography.hazmat.primitives.cmac import CMAC  # noqa: E402

PSP_PORT = 1000
SIZES = (260, 261, 1400)
FIRST_IV = 0x0102_0304_FFFF_FFFE
COOKIE = (0x11223344, 0x55667788)
HOSTS = {4: ("10.1.0.1", "10.2.0.0"), 6: ("2001:db8:1::1", "2001:db8:2::")}
OUTER = {4: ("192.0.2.1", "203.0.113.1"), 6: ("2001:db8:3::1", "2001:db8:4::1")}
MASTERS = [hashlib.shake_256(f"master {n}".encode()).digest(32) for n in (0, 1)]


def derive(spi, version):
    """The traffic key: CMAC of counter, label, SPI and length under the master key that bit 31 names."""
    key = b""
    for counter in range(1, 2 + version):
        mac = CMAC(algorithms.AES(MASTERS[spi >> 31]))
        mac.update(struct.pack(">I", counter) + b"Pv" + bytes([0x30 + version, 0]) + struct.pack(">II", spi, 128 << version))
        key += mac.finalize()
    return key


@dataclass
class Sa:
    """One crypt offset of a case."""

    case: str
    version: int
    mode: str
    family: int
    cookie: bool
    offset: int
    number: int

    @property
    def hosts(self):
        local, remote = HOSTS[self.family]
        return local, str(ipaddress.ip_address(remote) + self.number + 1)

    @property
    def ends(self):
        return OUTER[self.family] if self.mode == "tunnel" else self.hosts

    def spi(self, direction):
        return (self.number & 1) << 31 | 0x100 + 2 * self.number + (direction == "open")

    def section(self):
        return {
            "protocol": "psp", "mode": self.mode, "local": self.ends[0], "remote": self.ends[1], "version": self.version,
            "out": {
                "spi": hex(self.spi("seal")), "key": "0x" + derive(self.spi("seal"), self.version).hex(),
                "crypt_offset": self.offset, "first_iv": FIRST_IV,
                "cookie": f"0x{COOKIE[0]:08x}{COOKIE[1]:08x}" if self.cookie else None,
            },
            "in": {**{f"master_key_{n}": "0x" + MASTERS[n].hex() for n in (0, 1)},
                   "issued": hex(self.spi("open")), "max_crypt_offset": self.offset, "replay_window": 64},
        }

    def policy(self):
        local, remote = self.hosts
        return {"local_ts": local, "remote_ts": remote, "sa": f"s{self.number}"}

    def plain(self, direction):
        ends = self.hosts if direction == "seal" else self.hosts[::-1]
        return [ip_udp(*ends, bytes((i * 5 + size) & 0xFF for i in range(size))) for size in SIZES]

    def covered(self, packet):
        """What goes into PSP."""
        return packet if self.mode == "tunnel" else packet[20 if self.family == 4 else 40:]

    def seal(self, direction, packet, iv):
        """The PSP packet by scapy."""
        inner = {4: 4, 6: 41}[self.family] if self.mode == "tunnel" else UDP
        cookie = {"is_virt": 1, "virtkey": COOKIE[0], "sectoken": COOKIE[1]} if self.cookie else {}
        psp = PSP(nexthdr=inner, hdrextlen=1 + self.cookie, cryptoffset=self.offset // 4, version=self.version,
                  spi=self.spi(direction), iv=struct.pack(">Q", iv), data=self.covered(packet), **cookie)
        psp.encrypt(derive(self.spi(direction), self.version))
        return bytes(psp)


def seal_fault(sa, iv, packet, ours):
    """Weir sealed `packet` to `ours`."""
    if isinstance(ours, str):
        return f"Weir refused to seal: {ours}"
    at = 28 if sa.family == 4 else 48
    psp = PSP(ours[at:])
    try:
        psp.decrypt(derive(sa.spi("seal"), sa.version))
    except PSPIntegrityError:
        return "scapy finds its ICV wrong"
    if bytes(psp.data) != sa.covered(packet):
        return f"scapy opens it to {bytes(psp.data).hex()}"
    theirs = sa.seal("seal", packet, iv)
    return None if theirs == ours[at:] else f"scapy seals it to {theirs.hex()}, Weir to {ours[at:].hex()}"


def main():
    lab, wanted = sys.argv[1], sys.argv[2:]
    sas = []
    for version in (0, 1):
        for mode in ("transport", "tunnel"):
            for family in (4, 6):
                for cookie in (False, True):
                    case = f"psp-v{version}-{mode}-ip{family}" + ("-cookie" if cookie else "")
                    if wanted and not any(part in case for part in wanted):
                        continue
                    # Scapy takes the cookie for a part of the header that is never encrypted.
                    for offset in (8, 12, 60, 252) if cookie else (0, 4, 60, 252):
                        sas.append(Sa(case, version, mode, family, cookie, offset, len(sas)))
    if not sas:
        return True
    write_configuration(lab, {
        "sas": {f"s{sa.number}": sa.section() for sa in sas}, "policies": {f"s{sa.number}": sa.policy() for sa in sas}})
    faults = {"seal": {}, "open": {}}
    traffic = [(sa, FIRST_IV + n, packet) for sa in sas for n, packet in enumerate(sa.plain("seal"))]
    for (sa, iv, packet), ours in zip(traffic, transform("seal", lab, [packet for _, _, packet in traffic])):
        why = seal_fault(sa, iv, packet, ours)
        if why:
            faults["seal"].setdefault(sa.case, f"offset {sa.offset}, {len(packet)} bytes: {why}")
    traffic = [(sa, FIRST_IV + n, packet) for sa in sas for n, packet in enumerate(sa.plain("open"))]
    theirs = [ip_udp(*sa.ends[::-1], sa.seal("open", packet, iv), dport=PSP_PORT) for sa, iv, packet in traffic]
    for (sa, _, packet), opened in zip(traffic, transform("open", lab, theirs)):
        if opened != packet:
            opened = opened if isinstance(opened, str) else opened.hex()
            faults["open"].setdefault(sa.case, f"offset {sa.offset}, {len(packet)} bytes: Weir opens it to {opened}")
    return report("scapy", list(dict.fromkeys(sa.case for sa in sas)), faults)


try:
    sys.exit(0 if main() else 1)
except Failed as failure:
    sys.exit(f"FAIL scapy/psp: {failure}")
