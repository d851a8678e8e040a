"""Probes and spoofed packets at a steady rate, and what became of them.

Every datagram has a marker, the number of the cell during which it was sent, and its kind. What is counted is thereby
attributed to the cell whose event happened meanwhile, however late it is received.

| kind | from | to | must |
|---|---|---|---|
| L | host behind the gateway | remote network | arrive protected |
| G | gateway itself | remote network, or the peer (transport mode) | arrive protected |
| R | remote network | host behind the gateway | arrive protected |
| r | remote network, or the peer | gateway itself | arrive protected |
| A | outside, in clear, with a source in remote_ts | host behind the gateway | be dropped |
| a | outside, in clear, with a source in remote_ts | gateway itself | be dropped |
| B | outside, in clear, with a source in local_ts | remote network | neither leave in clear nor protected |
| F | host behind the gateway, a thousand bytes, many at once | remote network | arrive protected, or be dropped |
"""

import collections
import datetime
import ipaddress
import itertools
import os
import select
import struct
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
import packet  # noqa: E402
from net import (  # noqa: E402
    FAMILIES, GW_INNER, LAN, NETWORK, OUTER, PACKET_STATISTICS, REMOTE, SOL_PACKET, SPOOFED, capture_socket, inject_socket,
    udp_socket)

PORT = 7000
PERIOD_S = 1 / float(os.environ.get("PROBES_PER_SECOND", "50"))
LEGITIMATE = {"tunnel": "LGRr", "transport": "Gr"}
SPOOFED_KINDS = {"tunnel": "AaB", "transport": "aB"}
MARKER = b"clear text:" + os.urandom(8).hex().encode()
TAIL = struct.Struct("!HcB")
FLOOD_BYTES = 1000
ESP, AH, TCP, UDP, ICMPV6 = 50, 51, 6, 17, 58
IKE_PORTS, PSP_PORT = (500, 4500), 1000


def now():
    """Time of day as in the log of the gateways."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%H:%M:%S.%f")


def payload(cell, kind, family):
    return MARKER + TAIL.pack(cell, kind.encode(), family)


def parse(data):
    """Cell, kind and family of a probe anywhere in `data`, or None."""
    at = data.find(MARKER)
    if at < 0 or len(data) < at + len(MARKER) + TAIL.size:
        return None
    cell, kind, family = TAIL.unpack_from(data, at + len(MARKER))
    return cell, kind.decode(), family


def clear_text(frame, mode):
    """Source, destination and protocol of a frame that selectors protect and that is not protected, or None."""
    kind, ip = frame[12:14], frame[14:]
    if kind == b"\x08\x00" and len(ip) >= 20:
        family, proto, src, dst, body = 4, ip[9], ip[12:16], ip[16:20], ip[(ip[0] & 15) * 4:]
    elif kind == b"\x86\xdd" and len(ip) >= 40:
        family, proto, src, dst, body = 6, ip[6], ip[8:24], ip[24:40], ip[40:]
    else:
        return None
    src, dst = str(ipaddress.ip_address(src)), str(ipaddress.ip_address(dst))
    if MARKER in frame:
        return family, f"{src} -> {dst} protocol {proto}"
    ports = struct.unpack_from("!HH", body) if proto in (TCP, UDP) and len(body) >= 4 else ()
    if proto in (ESP, AH) or proto == UDP and {*ports} & {*IKE_PORTS, PSP_PORT} or proto == TCP and PSP_PORT in ports:
        return None
    # Neighbour discovery and multicast listeners.
    if proto == ICMPV6 and body[:1] >= b"\x82" or proto == 0 and family == 6:
        return None
    if mode == "tunnel":
        inside = ipaddress.ip_address(dst) in ipaddress.ip_network(NETWORK[family]["out"])
    else:
        inside = dst == OUTER[family]["out"]
    return (family, f"{src} -> {dst} protocol {proto}") if inside else None


def esp_spi(frame):
    """SPI of an ESP packet without UDP, or None."""
    if frame[12:14] == b"\x08\x00" and frame[23:24] == bytes([ESP]):
        at = 14 + (frame[14] & 15) * 4
    elif frame[12:14] == b"\x86\xdd" and frame[20:21] == bytes([ESP]):
        at = 54
    else:
        return None
    return int.from_bytes(frame[at:at + 4], "big")


class Traffic(threading.Thread):
    """Sends and counts in a thread of its own until `finish`."""

    def __init__(self, hosts, mode):
        super().__init__(daemon=True)
        self.mode = mode
        # Number of the cell that packets are sent for; written by the main thread.
        self.cell = 0
        self.received = collections.Counter()
        self.clear = collections.Counter()
        # ESP packets by SPI.
        self.outer = collections.Counter()
        # The first packet in clear of a cell and family that left, and when the first of a kind was
        # accepted.
        self.samples, self.accepted_at = {}, {}
        self.lost = 0
        self.failure = None
        self._ended = threading.Event()
        self._senders, self._listeners = [], []
        inner = mode == "tunnel"
        for family in FAMILIES:
            ends = {"gw": (GW_INNER if inner else {4: OUTER[4]["gw"], 6: OUTER[6]["gw"]})[family],
                    "out": (REMOTE if inner else {4: OUTER[4]["out"], 6: OUTER[6]["out"]})[family]}
            if inner:
                ends["lan"] = LAN[family]
            sockets = {name: hosts.enter(name, lambda a=address: udp_socket(family, a, PORT)) for name, address in ends.items()}
            for name, listener in sockets.items():
                self._listeners.append((listener, name))
            routes = {"L": ("lan", "out"), "G": ("gw", "out"), "R": ("out", "lan"), "r": ("out", "gw")}
            for kind in LEGITIMATE[mode]:
                source, target = routes[kind]
                self._senders.append((kind, family, self._datagram(sockets[source], ends[target])))
            spoofed = SPOOFED[family] if inner else OUTER[family]
            for kind in SPOOFED_KINDS[mode]:
                pair = {"A": (spoofed["out"], ends.get("lan")), "a": (spoofed["out"], ends["gw"]),
                        "B": (spoofed["gw"], ends["out"])}[kind]
                self._senders.append((kind, family, self._frame(hosts, family, *pair)))
        self.capture = hosts.enter("out", lambda: capture_socket("wire"))

    @staticmethod
    def _datagram(source, target):
        return lambda data: source.sendto(data, (target, PORT))

    def _frame(self, hosts, family, source, target):
        injector = hosts.enter("out", lambda: inject_socket("wire"))
        head = hosts.mac("gw", "wire") + hosts.mac("out", "wire") + (b"\x08\x00" if family == 4 else b"\x86\xdd")
        # Ports of IKE and PSP as source must not open other ports.
        ports = itertools.cycle((PORT, *IKE_PORTS, PSP_PORT))
        return lambda data: injector.send(head + packet.ip_udp(source, target, data, sport=next(ports), dport=PORT))

    def run(self):
        try:
            self._loop()
        except Exception as error:  # Reported by the main thread.
            self.failure = error

    def _loop(self):
        poll = select.epoll()
        readers = {listener.fileno(): (listener, name) for listener, name in self._listeners}
        for number in [*readers, self.capture.fileno()]:
            poll.register(number, select.EPOLLIN)
        due = time.monotonic()
        while not self._ended.is_set():
            now = time.monotonic()
            if now >= due:
                self._send()
                due = max(due + PERIOD_S, now)
            for number, _ in poll.poll(max(0, due - time.monotonic())):
                if number in readers:
                    self._receive(*readers[number])
                else:
                    self._look()
        self._look()

    def _send(self):
        cell = self.cell
        for kind, family, send in self._senders:
            try:
                send(payload(cell, kind, family))
            except OSError:
                # Routes that are unreachable, packet filters and missing addresses refuse
                # datagrams.
                pass

    def flood(self, count):
        """Sends so many spoofed packets for the gateway itself of each family, at once."""
        for _, family, send in [sender for sender in self._senders if sender[0] == "a"]:
            data = payload(self.cell, "a", family)
            for _ in range(count):
                try:
                    send(data)
                except OSError:
                    pass

    def overload(self, count):
        """Sends so many packets of kind F of each family, at once."""
        for _, family, send in [sender for sender in self._senders if sender[0] == "L"]:
            data = payload(self.cell, "F", family).ljust(FLOOD_BYTES, b"f")
            for _ in range(count):
                try:
                    send(data)
                except OSError:
                    pass

    def overloaded(self):
        """Packets of kind F that arrived so far."""
        return sum(count for (_, kind, _, _), count in list(self.received.items()) if kind == "F")

    def outer_packets(self, spis):
        """ESP packets with these SPIs so far."""
        return sum(self.outer[spi] for spi in spis)

    def _receive(self, listener, name):
        for _ in range(256):
            try:
                data = listener.recv(2048)
            except OSError:
                return
            probe = parse(data)
            if probe:
                self.received[probe + (name,)] += 1
                if probe[1] in SPOOFED_KINDS[self.mode]:
                    self.accepted_at.setdefault(probe, now())

    def _look(self):
        for _ in range(512):
            try:
                frame = self.capture.recv(2048)
            except OSError:
                return
            self.outer[esp_spi(frame)] += 1
            seen = clear_text(frame, self.mode)
            if seen:
                family, text = seen
                cell, kind, family = parse(frame) or (self.cell, "?", family)
                self.clear[cell, kind, family] += 1
                self.samples.setdefault((cell, family), f"{text} kind {kind} at {now()}")

    def finish(self):
        time.sleep(0.1)
        self._ended.set()
        self.join(5)
        _, self.lost = struct.unpack("=II", self.capture.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))

    def arrivals(self, family):
        """Legitimate datagrams received so far, by kind."""
        found = dict.fromkeys(LEGITIMATE[self.mode], 0)
        for (_, kind, of, _), count in list(self.received.items()):
            if of == family and kind in found:
                found[kind] += count
        return found

    def leaks(self, cell, family):
        """Clear packets of a cell that left, and those that were accepted, as texts."""
        found = []
        out = sum(count for (of, _, version), count in self.clear.items() if (of, version) == (cell, family))
        if out:
            kinds = "".join(sorted({kind for (of, kind, version) in self.clear if (of, version) == (cell, family)}))
            found.append(f"{out} clear packets left (kinds {kinds}), the first: {self.samples[cell, family]}")
        for kind, what in (("A", "accepted by the host behind the gateway"), ("a", "accepted by the gateway"),
                           ("B", "of a spoofed local source carried to the peer")):
            count = sum(n for (of, k, version, _), n in self.received.items() if (of, k, version) == (cell, kind, family))
            if count:
                found.append(f"{count} clear packets {what}, the first at {self.accepted_at[cell, kind, family]}")
        return found
