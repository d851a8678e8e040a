"""Two hosts with `weir up`, ping between them, and tshark over what went through the wire.

Runs as the first process of its own namespaces (see run.sh): its end is the end of everything started here. This side is
sun, a namespace further is moon.
"""

import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent import futures

sys.dont_write_bytecode = True
import esp  # noqa: E402
from gateway import Failed, Gateway  # noqa: E402
from shell import sh  # noqa: E402

LINKTYPE_ETHERNET = 1
ETH_P_ALL = 3
PINGS = 3
BYTES = 700
FIELDS = ("ip.src", "ipv6.src", "esp.spi", "esp.sequence", "esp.icv_good", "esp.icv_bad", "icmp.type", "icmp.seq",
          "icmpv6.type", "icmpv6.echo.sequence_number")

# Name: suite, mode, UDP around it, outer addresses of sun and moon, inner ones.
CASES = {
    "aes128gcm16-tunnel-v4": ("aes128gcm16", "tunnel", False, ("192.0.2.1", "192.0.2.2"), ("10.1.0.1", "10.2.0.1")),
    "aes256gcm16-tunnel-v6": ("aes256gcm16", "tunnel", False, ("2001:db8::1", "2001:db8::2"),
                              ("2001:db8:1::1", "2001:db8:2::1")),
    "aes128-sha256-transport-v4": ("aes128-sha256", "transport", False, ("192.0.2.3", "192.0.2.4"), None),
    "aes128-sha256-transport-v6": ("aes128-sha256", "transport", False, ("2001:db8::3", "2001:db8::4"), None),
    "aes256gcm16-tunnel-v4-udp": ("aes256gcm16", "tunnel", True, ("192.0.2.1", "192.0.2.2"), ("10.1.0.2", "10.2.0.2")),
    "aes256ctr-sha512-tunnel-v4": ("aes256ctr-sha512", "tunnel", False, ("192.0.2.1", "192.0.2.2"),
                                   ("10.1.0.3", "10.2.0.3")),
    "3des-sha1-tunnel-v4": ("3des-sha1", "tunnel", False, ("192.0.2.1", "192.0.2.2"), ("10.1.0.4", "10.2.0.4")),
    "null-sha256-transport-v4": ("null-sha256", "transport", False, ("192.0.2.5", "192.0.2.6"), None),
}


class Case:
    """A pair of SAs, and what to ping."""

    def __init__(self, name, number):
        self.name, self.sa = name, f"c{number}"
        self.suite, self.mode, self.udp, self.outer, inner = CASES[name]
        self.inner = inner or self.outer
        self.version = 6 if ":" in self.outer[0] else 4
        # Of sun's packets, of moon's.
        self.spis = 0x30000 + 2 * number, 0x30001 + 2 * number
        self.keys = [esp.Keys(self.suite, f"{name} from {host}") for host in ("sun", "moon")]

    def section(self, side):
        half = lambda host: {"spi": hex(self.spis[host]), "key": self.keys[host].weir}  # noqa: E731
        return {"protocol": "esp", "mode": self.mode, "suite": self.suite, "local": self.outer[side],
                "remote": self.outer[1 - side], "encap": self.udp, "out": half(side), "in": half(1 - side)}

    def policy(self, side):
        return {"local_ts": self.inner[side], "remote_ts": self.inner[1 - side], "sa": self.sa}

    def table(self):
        """tshark's lines for both directions."""
        return [self.keys[side].tshark(self.version, self.outer[side], self.outer[1 - side], self.spis[side])
                for side in (0, 1)]

    @property
    def echoes(self):
        """Types of request and reply, as tshark names the field and shows it."""
        return ("icmpv6.type", "icmpv6.echo.sequence_number", "128", "129") if self.version == 6 else (
            "icmp.type", "icmp.seq", "8", "0")


class Wire(threading.Thread):
    """Writes every frame of an interface to a file."""

    def __init__(self, interface, path):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.bind((interface, 0))
        self.socket.settimeout(0.2)
        self.path, self.ending = path, False

    def run(self):
        with open(self.path, "wb") as out:
            out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, LINKTYPE_ETHERNET))
            while True:
                try:
                    frame = self.socket.recv(65535)
                except TimeoutError:
                    if self.ending:
                        return
                    continue
                now = time.time_ns()
                out.write(struct.pack("<IIII", now // 10**9, now // 1000 % 10**6, len(frame), len(frame)) + frame)

    def stop(self):
        self.ending = True
        self.join(5)


def prepare(cases, moon):
    """A cable, and the addresses of all cases at its ends: inner ones on loopback, so that routes decide."""
    script = """
        for conf in all default; do echo 0 >/proc/sys/net/ipv4/conf/$conf/rp_filter; done
        echo 1 >/proc/sys/net/ipv6/conf/default/addr_gen_mode
        ip link set lo up
    """
    sh(script)
    sh(f"ip link add eth0 type veth peer name eth0 netns {moon.pid}")
    sh(f"nsenter -t {moon.pid} -n -m sh -ec '{script}'")
    for side, enter in ((0, ""), (1, f"nsenter -t {moon.pid} -n ")):
        wide = {case.outer[side] for case in cases}
        narrow = {case.inner[side] for case in cases} - wide
        for address in sorted(wide | narrow):
            six = ":" in address
            prefix = (64 if six else 24) if address in wide else (128 if six else 32)
            sh(f"{enter}ip addr add {address}/{prefix} dev {'eth0' if address in wide else 'lo'} {'nodad' if six else ''}")
        sh(f"{enter}ip link set eth0 up")


def configuration(cases, side):
    return {
        "gateway": {"allow_legacy": True},
        "sas": {case.sa: case.section(side) for case in cases},
        "policies": {case.sa: case.policy(side) for case in cases},
    }


def ping(case):
    """Returns what is wrong. Once there was an answer, ping waits for the last one no longer than for the interval."""
    done = subprocess.run(
        ["ping", "-n", "-c", str(PINGS), "-i", "1", "-s", str(BYTES), "-I", case.inner[0], case.inner[1]],
        capture_output=True, text=True, check=False)
    if done.returncode == 0 and f" {PINGS} received" in done.stdout:
        return None
    return "ping: " + (re.sub(r"\s+", " ", done.stdout + done.stderr).strip()[-200:] or "no answer")


def check(case, rows):
    """What is wrong with what tshark saw: every echo has to be in there, once, with a good ICV."""
    kind, number, request, reply = case.echoes
    for side, (spi, expected) in enumerate(zip(case.spis, (request, reply))):
        mine = [row for row in rows if row["esp.spi"] and int(row["esp.spi"][0], 16) == spi]
        source = case.outer[side]
        for row in mine:
            if (row["ipv6.src"] if case.version == 6 else row["ip.src"])[:1] != [source]:
                return f"SPI {spi:#x} came from {row}"
            fault = esp.icv_fault(row)
            if fault:
                return fault
        numbers = [int(row["esp.sequence"][0]) for row in mine]
        if numbers != list(range(1, len(mine) + 1)):
            return f"SPI {spi:#x}: sequence numbers {numbers}"
        echoes = [row[number][0] for row in mine if row[kind] == [expected]]
        if echoes != [str(n) for n in range(1, PINGS + 1)]:
            return f"SPI {spi:#x}: tshark found echoes {echoes} in {len(mine)} packets, {PINGS} went through"
    return None


def main():
    lab, wanted = sys.argv[1], sys.argv[2:]
    names = [name for name in CASES if not wanted or any(part in f"live-{name}" for part in wanted)]
    cases = [Case(name, number) for number, name in enumerate(names)]
    if not cases:
        return True
    moon = subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c", "mount -t sysfs sysfs /sys; echo; exec sleep 1000"],
                            stdout=subprocess.PIPE)
    moon.stdout.readline()
    prepare(cases, moon)
    capture = os.path.join(lab, "wire.pcap")
    sun, other = (Gateway(os.path.join(lab, host), configuration(cases, side)) for side, host in enumerate(("sun", "moon")))
    other.within = ("nsenter", "-t", str(moon.pid), "-n", "-m")
    with sun, other:
        wire = Wire("eth0", capture)
        wire.start()
        with futures.ThreadPoolExecutor(len(cases)) as pool:
            faults = dict(zip(names, pool.map(ping, cases)))
        wire.stop()
    rows = esp.dissect(lab, capture, [line for case in cases for line in case.table()], FIELDS)
    failed = False
    for case in cases:
        why = faults[case.name] or check(case, rows)
        failed |= why is not None
        print(f"FAIL tshark/live-{case.name}: {why}" if why else f"PASS tshark/live-{case.name}")
    return not failed


try:
    sys.exit(0 if main() else 1)
except Failed as failure:
    print(f"FAIL tshark/live: {failure}")
    sys.exit(1)
