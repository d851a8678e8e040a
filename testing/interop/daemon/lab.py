"""Two hosts on one wire, the gateways on them, and what was seen in between."""

import collections
import os
import signal
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from gateway import WEIR, Failed, Gateway  # noqa: E402
from shell import sh, wait_for  # noqa: E402

OUTER = {"sun": "192.0.2.1", "moon": "192.0.2.2"}
PEER = {"sun": "moon", "moon": "sun"}
EESP, PSP_PORT = 253, 1000
TABLE = "30565"
# The SAs: name, number of the inner networks 10.NUMBER.1.0/24 (sun) and 10.NUMBER.2.0/24 (moon).
TUNNELS = {"gcm": 1, "cbc": 2, "eesp": 3, "psp": 4, "ah": 5}
SUB_SAS = 2
NAMES = [*TUNNELS, "host"]
SPI = {name: 0x1000 + 0x100 * i for i, name in enumerate(NAMES)}


def within(host):
    return ("nsenter", f"--net=/run/netns/{host}")


def at(host, command, **options):
    """Runs a command on a host; returns its output."""
    done = subprocess.run([*within(host), *command], capture_output=True, text=True, check=False, **options)
    return done.stdout


def build():
    """The hosts. /run is ours alone, and so is what is mounted below."""
    sh("mount --make-rprivate / && mount -t tmpfs -o mode=0755 lab /run && ip netns add sun && ip netns add moon")
    sh("ip link add wire netns sun type veth peer name wire netns moon")
    for host, address in OUTER.items():
        sh(f"""exec nsenter --net=/run/netns/{host} sh -ec '
            echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
            echo 0 >/proc/sys/net/ipv4/conf/default/rp_filter
            echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
            ip link set lo up
            ip addr add {address}/24 dev wire
            ip link set wire up'""")
        # What is protected would have another way: the wire.
        sh(f"ip -n {host} route add default via {OUTER[PEER[host]]}")


def address(name, host):
    """Where traffic for an SA goes to."""
    return OUTER[host] if name == "host" else f"10.{TUNNELS[name]}.{1 if host == 'sun' else 2}.1"


KEY_BYTES = {"gcm": 36, "cbc": 48, "eesp": 32, "psp": 16, "ah": 32, "host": 20}


class Keys:
    """Keys of one case only."""

    def __init__(self):
        self.of = {(name, host): os.urandom(size) for name, size in KEY_BYTES.items() for host in OUTER}
        self.master = {host: os.urandom(32) for host in OUTER}

    def half(self, name, sender, direction):
        """The section `in` or `out` of packets that `sender` sends."""
        spi = SPI[name] + (1 if sender == "sun" else 2)
        if name != "psp":
            return {"spi": hex(spi), "key": "0x" + self.of[name, sender].hex()}
        master = {"master_key_0": "0x" + self.master[PEER[sender]].hex()}
        if direction == "in":
            return {**master, "issued": hex(spi), "replay_window": 1024}
        return {**master, "spi": hex(spi)}

    def tree(self, host, names=NAMES, **gateway):
        """The configuration of a host."""
        protocols = {
            "gcm": {"protocol": "esp", "suite": "aes256gcm16"},
            "cbc": {"protocol": "esp", "suite": "aes128-sha256"},
            "eesp": {"protocol": "eesp", "suite": "aes256gcm16", "sub_sas": SUB_SAS},
            "psp": {"protocol": "psp"},
            "ah": {"protocol": "ah", "suite": "sha256"},
            "host": {"protocol": "esp", "suite": "aes128gcm16", "mode": "transport"},
        }
        ends = {"local": OUTER[host], "remote": OUTER[PEER[host]]}
        sas, policies = {}, {}
        for name in names:
            sas[name] = {**protocols[name], **ends, "out": self.half(name, host, "out"),
                         "in": self.half(name, PEER[host], "in")}
            sides = {}
            if name != "host":
                sides = {"local_ts": network(name, host), "remote_ts": network(name, PEER[host])}
            policies[name] = {**sides, "sa": name}
        addresses = ", ".join(f"{address(name, host)}/24" for name in names if name != "host")
        settings = {"addresses": addresses, "workers": SUB_SAS, "log_json": False, "on_stop": "open", **gateway}
        return {"gateway": settings, "sas": sas, "policies": policies}


def network(name, host):
    return address(name, host).rsplit(".", 1)[0] + ".0/24"


class Weir(Gateway):
    """`weir up` on one of the hosts."""

    def __init__(self, host, directory, tree):
        super().__init__(os.path.join(directory, host), tree)
        self.within = within(host)
        self.host = host

    def signal(self, number):
        self._process.send_signal(number)

    def ended(self, patience_s=10):
        """Exit status, once it has ended by itself."""
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"it did not end: {self.last_words()}") from None
        self._reader.join(2)
        self._killed = True
        return code

    def die_while_starting(self, after_s):
        """Starts it and kills it so long after."""
        self._process = subprocess.Popen([*self.within, WEIR, "up", "--config", self.config],
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(after_s)
        self.kill()

    def logged(self, words, patience_s=5):
        """The lines with these words; waits for the first one."""
        deadline = time.monotonic() + patience_s
        while True:
            lines = [line for line in self.lines if words in line]
            if lines or time.monotonic() > deadline:
                return lines
            time.sleep(0.02)

    def must_log(self, words, patience_s=5):
        lines = self.logged(words, patience_s)
        if not lines:
            raise Failed(f"weir on {self.host} never logged '{words}': {self.last_words()}")
        return lines[0]

    def sas(self, direction):
        return {sa["name"]: sa for sa in self.status()["sas"] if sa["direction"] == direction}


def refused(host, config, prefix=()):
    """Message of a `weir up` that refuses to start; it has to end with status 2."""
    try:
        done = subprocess.run([*within(host), *prefix, WEIR, "up", "--config", config], capture_output=True, text=True,
                              timeout=10, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"it was started instead of refused: {' '.join(prefix)} {config}") from None
    if done.returncode != 2:
        raise Failed(f"it ended with status {done.returncode} instead of 2: {done.stderr.strip()}")
    if "weir: ready" in done.stderr:
        raise Failed(f"it reported that it was ready: {done.stderr.strip()}")
    return done.stderr.strip()


class Blast:
    """Traffic from sun to moon for as long as the block lasts."""

    def __init__(self, names=NAMES, per_second=300, host="sun"):
        self.command = [*within(host), "/usr/bin/python3", os.path.join(HERE, "blast.py"), str(per_second),
                        *(address(name, PEER[host]) for name in names)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class Capture:
    """Everything on sun's end of the wire, while the block lasts and afterwards."""

    def __init__(self, directory):
        os.makedirs(directory, exist_ok=True)
        self.path = os.path.join(directory, "wire.pcap")

    def __enter__(self):
        self.log = open(self.path + ".log", "w+", encoding="utf-8")
        # Without --immediate-mode packets of the last second may still be in the kernel's block
        # when it receives the signal to stop.
        self.process = subprocess.Popen(
            [*within("sun"), "tcpdump", "-Z", "root", "-i", "wire", "--immediate-mode", "-U", "-n", "-s", "400",
             "-B", "32768", "-w", self.path, "ip"], stderr=self.log)
        wait_for("tcpdump", lambda: os.path.exists(self.path) and os.path.getsize(self.path) >= 24)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            time.sleep(0.1)
            self.process.send_signal(signal.SIGINT)
            self.process.wait(10)
        self.log.close()

    def frames(self):
        with open(self.path, "rb") as file:
            data = file.read()
        offset = 24
        while offset + 16 <= len(data):
            length = struct.unpack_from("<I", data, offset + 8)[0]
            if offset + 16 + length > len(data):
                return
            yield data[offset + 16:offset + 16 + length]
            offset += 16 + length

    def sent(self, sender="sun"):
        """What a host sent, in order: the packets of each SA by (name, session), and those in the clear."""
        packets, clear = collections.defaultdict(list), []
        for frame in self.frames():
            seen = parse(frame)
            if seen is None or seen.src != OUTER[sender] and not seen.src.startswith("10."):
                continue
            if seen.name is None:
                clear.append(seen)
            else:
                packets[seen.name, seen.session].append(seen)
        return packets, clear


Seen = collections.namedtuple("Seen", "src dst proto name session seq iv frame")
NAME_OF = {SPI[name] + way: name for name in SPI for way in (1, 2)}
IV_BYTES = {"gcm": 8, "host": 8, "cbc": 16}


def parse(frame):
    """One Ethernet frame with an IPv4 packet; `name` is None when it is in the clear."""
    if len(frame) < 34 or frame[12:14] != b"\x08\x00":
        return None
    ip = frame[14:]
    src, dst = (".".join(map(str, ip[i:i + 4])) for i in (12, 16))
    body, proto = ip[(ip[0] & 15) * 4:], ip[9]
    name, session, seq, iv = None, 0, None, None
    if proto == 50:
        spi, seq = struct.unpack_from("!II", body)
        name = NAME_OF.get(spi)
        iv = body[8:8 + IV_BYTES[name]] if name in IV_BYTES else None
    elif proto == 51:
        spi, seq = struct.unpack_from("!II", body, 4)
        name = NAME_OF.get(spi)
    elif proto == EESP:
        session, spi = struct.unpack_from("!HI", body, 2)
        start = 8 + body[1]
        seq, iv = struct.unpack_from("!Q", body, start)[0], body[start + 8:start + 16]
        name = NAME_OF.get(spi)
    elif proto == 17 and struct.unpack_from("!H", body, 2)[0] == PSP_PORT:
        spi, seq = struct.unpack_from("!IQ", body, 12)
        name = NAME_OF.get(spi)
    return Seen(src, dst, proto, name, session, seq, iv, frame)


def no_repeats(packets):
    """Fails when a number or an IV occurs twice under one key."""
    for (name, session), seen in packets.items():
        for what, values in (("number", [p.seq for p in seen]), ("IV", [p.iv for p in seen if p.iv is not None])):
            repeated = len(values) - len(set(values))
            if repeated:
                twice = [value for value, count in collections.Counter(values).items() if count > 1]
                raise Failed(f"SA {name}, session {session}: {repeated} of {len(values)} packets repeat a {what}: {twice[:4]}")


def no_clear(clear):
    if clear:
        what = collections.Counter((p.src, p.dst, p.proto) for p in clear)
        raise Failed(f"{len(clear)} packets left in the clear: {what.most_common(3)}")


def traces(host):
    """Rules, routes, nftables tables and devices of a gateway on a host."""
    found = []
    if "weir" in at(host, ["nft", "list", "tables"]):
        found.append("nftables table")
    if "fwmark" in at(host, ["ip", "rule"]):
        found.append("rule")
    if at(host, ["ip", "route", "show", "table", TABLE]).strip():
        found.append("routes")
    if "tun" in at(host, ["ip", "-d", "-o", "link"]).replace("tunnel", ""):
        found.append("TUN device")
    return found


def clean_up(host):
    """What the tests left behind by killing."""
    sh(f"while ip -n {host} rule del pref {TABLE}; do :; done; ip -n {host} route flush table {TABLE} || true; "
       f"ip netns exec {host} nft delete table inet weir-weir0 || true", check=False)
