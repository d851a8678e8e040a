"""PSP through `weir pcap` and through the crate psp_security: what one seals the other opens, byte for byte.

A case is a version, mode, family and cookie; it holds an SA for each crypt offset, and each SA several sizes.
"""

import hashlib
import ipaddress
import os
import struct
import subprocess
import sys
from dataclasses import dataclass

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from capture import report, transform, write_configuration  # noqa: E402
from gateway import Failed  # noqa: E402
from packet import UDP, checksum, ip_udp  # noqa: E402

PSP_PORT = 1000
ICV = 16
# Bytes. A cookie is the first 8 of what may stay clear, so 4 splits it.
OFFSETS = (0, 4, 8, 12, 20, 40, 60, 100, 200, 252)
# UDP payloads in bytes.
SIZES = (260, 261, 735, 1400)
# With offset 0 the crate takes any size.
SMALL = (0, 1, 15, 16)
FIRST_IV = 0x0102_0304_FFFF_FFFE
COOKIE = 0x1122_3344_5566_7788
HOSTS = {4: ("10.1.0.1", "10.2.0.0"), 6: ("2001:db8:1::1", "2001:db8:2::")}


def secret(words, length):
    return hashlib.shake_256(words.encode()).digest(length)


# Who receives owns the master keys.
MASTERS = {d: [secret(f"{d} master {n}", 32) for n in (0, 1)] for d in ("seal", "open")}


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
    def name(self):
        return f"s{self.number}"

    @property
    def hosts(self):
        """Addresses inside and outside: the crate's tunnel repeats the inner ones. The outer one distinguishes SAs."""
        local, remote = HOSTS[self.family]
        return local, str(ipaddress.ip_address(remote) + self.number + 1)

    def spi(self, direction):
        """Both master keys have their turn."""
        return (self.number & 1) << 31 | 0x100 + 2 * self.number + (direction == "open")

    def section(self):
        local, remote = self.hosts
        masters = lambda direction: {f"master_key_{n}": "0x" + MASTERS[direction][n].hex() for n in (0, 1)}  # noqa: E731
        return {
            "protocol": "psp", "mode": self.mode, "local": local, "remote": remote, "version": self.version,
            "out": {
                **masters("seal"), "spi": hex(self.spi("seal")), "crypt_offset": self.offset, "first_iv": FIRST_IV,
                "cookie": hex(COOKIE) if self.cookie else None, "source_port": PSP_PORT,
            },
            "in": {**masters("open"), "issued": hex(self.spi("open")), "max_crypt_offset": self.offset,
                   "replay_window": 64},
        }

    def policy(self):
        local, remote = self.hosts
        return {"local_ts": local, "remote_ts": remote, "sa": self.name}

    def plain(self, direction):
        ends = self.hosts if direction == "seal" else self.hosts[::-1]
        sizes = SIZES + (SMALL if self.offset == 0 else ())
        return [ip_udp(*ends, bytes((i * 5 + size) & 0xFF for i in range(size))) for size in sizes]

    def seal_order(self, direction, packet, iv):
        cookie = f"{COOKIE:x}" if self.cookie else "-"
        masters = " ".join(key.hex() for key in MASTERS[direction])
        return (f"seal {self.version} {self.mode} {self.spi(direction):x} {iv:x} {self.offset // 4:x} {cookie} {masters} "
                + frame(packet).hex())


def frame(packet):
    return bytes(12) + (b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd") + packet


def crate(orders):
    """What the crate answers to each order: a packet, or text."""
    done = subprocess.run([os.environ["PEER"]], input="\n".join(orders) + "\n", capture_output=True, text=True,
                          timeout=120, check=False)
    answers = done.stdout.splitlines()
    if done.returncode != 0 or len(answers) != len(orders):
        raise Failed(f"the peer ended with status {done.returncode} after {len(answers)} of {len(orders)} orders")
    return [answer if answer.startswith("error: ") else bytes.fromhex(answer)[14:] for answer in answers]


def comparable(packet):
    """The packet without what each program may choose: identification, flow label and UDP checksum."""
    if packet[0] >> 4 == 4:
        return packet[:4] + packet[6:10] + packet[12:26] + packet[28:]
    return packet[:1] + packet[4:46] + packet[48:]


def wrong_checksum(packet):
    """Whether checksums of the outer headers are wrong; 0 in UDP is none."""
    if packet[0] >> 4 == 4:
        return checksum(packet[:20]) != 0 or packet[26:28] != b"\0\0"
    udp = packet[40:]
    return udp[6:8] != b"\0\0" and checksum(packet[8:40] + struct.pack(">IHBB", len(udp), 0, 0, UDP) + udp) != 0


def forge(packet, turn):
    """One bit turned in the ICV or before it."""
    forged = bytearray(packet)
    forged[-1 - turn % (ICV + 4)] ^= 1 << turn % 8
    return bytes(forged)


def traffic(sas, direction):
    return [(sa, FIRST_IV + n, packet) for sa in sas for n, packet in enumerate(sa.plain(direction))]


def seal_cases(sas, lab):
    """Weir seals, the crate opens, and refuses forgeries; and seals the same."""
    plain = traffic(sas, "seal")
    sealed = transform("seal", lab, [packet for _, _, packet in plain])
    masters = " ".join(key.hex() for key in MASTERS["seal"])
    orders = []
    for n, ((sa, iv, packet), ours) in enumerate(zip(plain, sealed)):
        ours = b"" if isinstance(ours, str) else ours
        orders += [f"open {masters} {frame(ours).hex()}", f"open {masters} {frame(forge(ours, n) if ours else ours).hex()}",
                   sa.seal_order("seal", packet, iv)]
    answers = crate(orders)
    faults = {}
    for n, ((sa, iv, packet), ours) in enumerate(zip(plain, sealed)):
        opened, forged, theirs = answers[3 * n:3 * n + 3]
        if isinstance(ours, str):
            why = f"Weir refused to seal: {ours}"
        elif opened != packet:
            why = f"the crate opens it to {text(opened)}, not {packet.hex()}"
        elif not isinstance(forged, str):
            why = "the crate opens it with one bit turned"
        elif isinstance(theirs, str):
            why = f"the crate does not seal it: {theirs}"
        elif wrong_checksum(ours):
            why = f"a checksum is wrong: {ours.hex()}"
        elif comparable(ours) != comparable(theirs):
            why = f"Weir seals it to {ours.hex()}, the crate to {theirs.hex()}"
        else:
            continue
        faults.setdefault(sa.case, f"offset {sa.offset}, {len(packet)} bytes, IV {iv:#x}: {why}")
    return faults


def open_cases(sas, lab):
    """The crate seals, Weir opens, and refuses a forgery before."""
    plain = traffic(sas, "open")
    sealed = crate([sa.seal_order("open", packet, iv) for sa, iv, packet in plain])
    packets = []
    for n, theirs in enumerate(sealed):
        theirs = b"" if isinstance(theirs, str) else theirs
        packets += [forge(theirs, n) if theirs else theirs, theirs]
    outcome = transform("open", lab, packets)
    faults = {}
    for n, ((sa, iv, packet), theirs) in enumerate(zip(plain, sealed)):
        forged, opened = outcome[2 * n:2 * n + 2]
        if isinstance(theirs, str):
            why = f"the crate does not seal it: {theirs}"
        elif not (isinstance(forged, str) and forged.startswith("bad_icv")):
            why = f"with one bit turned, Weir prints {text(forged)}"
        elif opened != packet:
            why = f"Weir opens it to {text(opened)}, not {packet.hex()}"
        else:
            continue
        faults.setdefault(sa.case, f"offset {sa.offset}, {len(packet)} bytes, IV {iv:#x}: {why}")
    return faults


def text(outcome):
    return outcome if isinstance(outcome, str) else outcome.hex()


def main():
    lab, wanted = sys.argv[1], sys.argv[2:]
    sas = []
    for version in (0, 1):
        for mode in ("transport", "tunnel"):
            for family in (4, 6):
                for cookie in (False, True):
                    case = f"v{version}-{mode}-ip{family}" + ("-cookie" if cookie else "")
                    if wanted and not any(part in case for part in wanted):
                        continue
                    for offset in OFFSETS:
                        sas.append(Sa(case, version, mode, family, cookie, offset, len(sas)))
    if not sas:
        sys.exit(0)
    write_configuration(lab, {
        "sas": {sa.name: sa.section() for sa in sas}, "policies": {sa.name: sa.policy() for sa in sas}})
    try:
        directions = {"seal": seal_cases(sas, lab), "open": open_cases(sas, lab)}
    except Failed as why:
        sys.exit(f"FAIL psp/all: {why}")
    sys.exit(0 if report("psp", list(dict.fromkeys(sa.case for sa in sas)), directions) else 1)


main()
