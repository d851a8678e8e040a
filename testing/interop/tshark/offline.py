"""Every suite that tshark supports, sealed by `weir pcap seal`: one run of each program."""

import ipaddress
import os
import sys

sys.dont_write_bytecode = True
import esp  # noqa: E402
from capture import transform, write_configuration, write_pcap  # noqa: E402
from gateway import Failed  # noqa: E402
from packet import ip_udp  # noqa: E402

SIZES = (0, 1, 13, 14, 15, 1400)
FIRST_SPI = 0x20000
# Name: mode, version outside, version inside, UDP around it.
SHAPES = {
    "tunnel-v4": ("tunnel", 4, 4, False),
    "tunnel-v6": ("tunnel", 6, 6, False),
    "transport-v4": ("transport", 4, 4, False),
    "transport-v6": ("transport", 6, 6, False),
    "tunnel-v4-udp": ("tunnel", 4, 4, True),
    "transport-v4-udp": ("transport", 4, 4, True),
}
OUTER = {4: ("192.0.2.1", "203.0.113.1"), 6: ("2001:db8:1::1", "2001:db8:2::1")}
REMOTE = {4: "10.2.0.0", 6: "2001:db8:b::"}
FIELDS = ("esp.spi", "esp.sequence", "esp.icv_good", "esp.icv_bad", "udp.dstport", "udp.payload")


class Case:
    """One suite in one shape."""

    def __init__(self, suite, shape, number):
        self.name, self.spi = f"{suite}-{shape}", FIRST_SPI + number
        self.suite = suite
        self.mode, self.outer, inner, self.udp = SHAPES[shape]
        self.keys = esp.Keys(suite, self.name)
        self.hosts = OUTER[inner][0], str(ipaddress.ip_address(REMOTE[inner]) + number + 1)
        self.ends = OUTER[self.outer] if self.mode == "tunnel" else self.hosts

    def section(self):
        return {"protocol": "esp", "mode": self.mode, "suite": self.suite, "local": self.ends[0], "remote": self.ends[1],
                "encap": self.udp, "out": {"spi": hex(self.spi), "key": self.keys.weir}}

    def policy(self):
        return {"local_ts": self.hosts[0], "remote_ts": self.hosts[1], "sa": f"c{self.spi}"}

    def payloads(self):
        return [bytes((i * 7 + size) & 0xFF for i in range(size)) for size in SIZES]


def suites():
    """AEADs alone, ciphers with each MAC."""
    for cipher in esp.CIPHERS:
        yield from [cipher] if "gcm" in cipher else [f"{cipher}-{mac}" for mac in esp.MACS]


def check(case, rows):
    """What is wrong with what tshark saw of a case; the last packet is a forgery."""
    if len(rows) != len(SIZES) + 1:
        return f"tshark saw {len(rows)} of {len(SIZES) + 1} packets"
    for seq, (payload, row) in enumerate(zip(case.payloads(), rows), 1):
        if row["esp.sequence"] != [str(seq)]:
            return f"number {row['esp.sequence']} instead of {seq}"
        fault = esp.icv_fault(row)
        if fault:
            return fault
        if row["udp.dstport"][-1:] != ["9"]:
            return f"{len(payload)} bytes: tshark did not find the datagram inside: {row}"
        if payload and row["udp.payload"][-1:] != [payload.hex()]:
            return f"{len(payload)} bytes: tshark found {row['udp.payload']} inside"
    if not esp.icv_fault(rows[-1]):
        return "tshark called the ICV of a forgery good: this case proves nothing"
    return None


def main():
    lab, wanted = sys.argv[1], sys.argv[2:]
    cases = []
    for suite in suites():
        for shape in SHAPES:
            # Shapes and MACs are independent of the cipher: all shapes for some suites.
            if shape in ("tunnel-v4", "transport-v6") or suite in ("aes128gcm16", "aes256gcm16", "aes128-sha256"):
                cases.append(Case(suite, shape, len(cases)))
    cases = [case for case in cases if not wanted or any(part in case.name for part in wanted)]
    if not cases:
        return True
    write_configuration(lab, {
        "gateway": {"allow_legacy": True},
        "sas": {f"c{case.spi}": case.section() for case in cases},
        "policies": {f"c{case.spi}": case.policy() for case in cases},
    })
    plain = [ip_udp(*case.hosts, payload) for case in cases for payload in case.payloads()]
    sealed = transform("seal", lab, plain)
    refused = [why for why in sealed if isinstance(why, str)]
    if refused:
        raise Failed(f"Weir refused {len(refused)} packets, first as {refused[0]}")
    packets = []
    for at in range(0, len(sealed), len(SIZES)):
        forged = bytearray(sealed[at + len(SIZES) - 1])
        forged[-1] ^= 1
        packets += [*sealed[at:at + len(SIZES)], bytes(forged)]
    capture = os.path.join(lab, "for-tshark.pcap")
    write_pcap(capture, packets)
    rows = {}
    for row in esp.dissect(lab, capture, [case.keys.tshark(case.outer, *case.ends, case.spi) for case in cases], FIELDS):
        rows.setdefault(int(row["esp.spi"][0], 16), []).append(row)
    failed = False
    for case in cases:
        why = check(case, rows.get(case.spi, []))
        failed |= why is not None
        name = f"tshark/offline-{case.name}"
        print(f"FAIL {name}: {why}" if why else f"PASS {name}")
    return not failed


try:
    sys.exit(0 if main() else 1)
except Failed as failure:
    print(f"FAIL tshark/offline: {failure}")
    sys.exit(1)
