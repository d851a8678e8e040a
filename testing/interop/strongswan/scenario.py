"""A scenario as its folder describes it, and what the words of its steps do.

A step is a line of words; the first names a method of `Run` (with `_` for `-`), the rest are its arguments. "weir" and
"peer" are the two ends; "initiator" and "responder" are who they are in this run.
"""

import json
import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
import pace  # noqa: E402
from gateway import WEIR, Failed  # noqa: E402
from net import INNER, INNER6, OTHER, OUTER6, PROTECTED, WIRE, Pings, answered, ping, wait_for  # noqa: E402

# Where the peer is a guest: with the kernel of the distribution, with one that has IP-TFS.
GUESTS = ("uml", "uml-iptfs")
TOPOLOGIES = ("direct", "ipv4", "lossy", "nat-weir", "nat-peer", *GUESTS)


@dataclass
class Scenario:
    """scenario.toml."""

    name: str
    folder: str
    purpose: str
    steps: list
    # What the scenario shows.
    rfc: list = field(default_factory=list)
    # What lies between: a wire, one without IPv6, one that loses every fourth IKE message, a router
    # that translates the addresses of one end, the wire of a guest kernel.
    topology: str = "direct"
    # Each is a run of its own.
    initiators: list = field(default_factory=lambda: ["weir", "peer"])
    # Addresses of the two on the wire, instead of the usual ones.
    outer: dict = field(default_factory=dict)
    # MTU of the wire.
    mtu: int = 1500
    # What is captured of what is on the wire: everything, unless that would be too much.
    captured: str = ""
    # What pings go between: "inner" networks, or the "outer" addresses themselves.
    pings: str = "inner"
    # Which strongSwan: "debian" that of this machine, "root" that in $STRONGSWAN_ROOT, "v1-root"
    # that in $STRONGSWAN_V1_ROOT. With a list each is a run of its own.
    strongswan: str | list = "debian"
    # Names of certificates of each end, see pki.py; whether both get the CRL.
    certificates: dict = field(default_factory=dict)
    crl: bool = False
    # Weir's host has a server of CRLs and OCSP from the start; see revocation.py and the steps
    # `server` and `flush`.
    server: bool = False
    # Lines for the section `charon` of strongswan.conf.
    charon: str = ""
    # Lines for the section `gateway` of Weir.
    gateway: str = ""
    # Also one of ../ike, with Weir in the place of the peer.
    two_weirs: bool = False
    # Each Weir has a disk of this size for its state, its log and its sockets; see the step `fill`.
    disk: str = ""
    # The clocks of the ends can be set; see the step `clock`.
    clock: bool = False
    # What may be on the wire in the clear, as a filter of tcpdump: what a shunt lets pass.
    clear: str = ""
    # Why it cannot pass yet; it is then run only when it is named.
    pending: str = ""

    @classmethod
    def load(cls, folder):
        with open(os.path.join(folder, "scenario.toml"), "rb") as file:
            loaded = cls(name=os.path.basename(folder), folder=folder, **tomllib.load(file))
        if loaded.topology not in TOPOLOGIES:
            raise ValueError(f"{folder}: topology is one of {', '.join(TOPOLOGIES)}")
        for step in loaded.steps:
            word = shlex.split(step)[0].replace("-", "_")
            if not hasattr(Run, word):
                raise ValueError(f"{folder}: there is no step '{step}'")
        return loaded

    def config(self, end):
        name = {"weir": "weir.conf", "peer": "swanctl.conf"}[end]
        with open(os.path.join(self.folder, name), encoding="utf-8") as file:
            return file.read()

    def runs(self):
        """Name of a run, who initiates in it, and which strongSwan it is with."""
        of_initiator = {initiator: f"{self.name}-by-{initiator}" for initiator in self.initiators}
        if len(self.initiators) == 1:
            of_initiator = {self.initiators[0]: self.name}
        names = {"root": "-newest", "v1-root": "-6.0"}
        suffix = {kind: names.get(kind, "") if len(self.peers()) > 1 else "" for kind in self.peers()}
        return [(name + suffix[kind], initiator, kind) for kind in suffix for initiator, name in of_initiator.items()]

    def peers(self):
        return [self.strongswan] if isinstance(self.strongswan, str) else self.strongswan


def children(sa):
    return list(sa.get("child-sas", {}).values())


def established(sas):
    return [sa for sa in sas if sa.get("state") == "ESTABLISHED"]


def installed(sas):
    """Child SAs in use: those that were replaced stay listed for a while."""
    return [child for sa in sas for child in children(sa) if child.get("state") == "INSTALLED"]


class Run:
    """One scenario under way. The methods are its steps."""

    def __init__(self, scenario, initiator, network, ends, capture, pki):
        self.scenario, self.network, self.ends, self.capture, self.pki = scenario, network, ends, capture, pki
        self.who = {"weir": "weir", "peer": "peer", "initiator": initiator, "responder": OTHER[initiator]}
        self.pings = {}
        # How long an exchange may take. Where messages are lost there is time for all
        # retransmissions, and for the second try of what the other end refused for now (RFC 7296
        # 2.25): a strongSwan waits 10 to 15 s before it.
        self.patience_s = 90 if scenario.topology == "lossy" else 15
        # Figures for who reads the line of this run.
        self.figures = []
        self.outer = network.outer
        self.inner = dict(INNER if scenario.pings == "inner" else self.outer)
        self.inner6 = dict(INNER6 if scenario.pings == "inner" else OUTER6)

    def go(self):
        for step in self.scenario.steps:
            word, *arguments = shlex.split(step)
            try:
                getattr(self, word.replace("-", "_"))(*[self.who.get(argument, argument) for argument in arguments])
            except Failed as why:
                raise Failed(f"{step}: {why}") from None
        self.capture.stop()
        self.nothing_in_the_clear()

    def nothing_in_the_clear(self):
        allowed = f" or {self.scenario.clear}" if self.scenario.clear else ""
        clear = self.capture.matching(f"not ({PROTECTED}{allowed})")
        if clear:
            raise Failed(f"{len(clear)} packets on the wire in the clear, the first: {clear[0]}")

    # Steps: actions.

    def initiate(self, outcome="works", child="net"):
        """The initiator brings up its Child SA; or `fails` to."""
        self._initiate(["--child", child], outcome)

    def initiate_ike(self, name, outcome="works"):
        """The initiator brings up an IKE SA without Child SA."""
        self._initiate(["--ike", name], outcome)

    def _initiate(self, what, outcome):
        patience_s = 2 * self.patience_s
        code, out = self.ends[self.who["initiator"]].swanctl("--initiate", *what, "--timeout", str(patience_s),
                                                             patience_s=patience_s + 10)
        if outcome == "works" and code != 0:
            raise Failed(f"swanctl: {' | '.join(out.strip().splitlines()[-4:])}; {self._last_words()}")
        if outcome == "fails" and code == 0:
            raise Failed("it was expected to fail")

    def rekey(self, what, end, name="net"):
        """`end` replaces the `ike` SA or the `child` SA; waits until both ends use the new one, and only that."""
        before = self._keys(what)
        self._swanctl(end, "--rekey", f"--{what}", name)
        wait_for(lambda: f"the {what} SA was not replaced on both ends: {before} then {self._keys(what)}; {self._last_words()}",
                 lambda: self._replaced(what, before), self.patience_s)

    def reauth(self, end, name="net"):
        """`end` authenticates again; both ends then have one IKE SA, another one."""
        before = self._keys("ike")
        self._swanctl(end, "--rekey", "--ike", name, "--reauth")
        wait_for(lambda: f"no new IKE SA: {before} then {self._keys('ike')}; {self._last_words()}",
                 lambda: self._replaced("ike", before), self.patience_s)
        self.up()

    def terminate(self, what, end, name="net"):
        self._swanctl(end, "--terminate", f"--{what}", name)

    def kill(self, end):
        self.ends[end].kill()

    def start(self, end):
        self.ends[end].start()

    def mend(self, end, old, new):
        """`end` gets a configuration with `new` in the place of `old`, and reads it."""
        if old not in self.ends[end].config:
            raise Failed(f"{end} has no '{old}'")
        self.ends[end].config = self.ends[end].config.replace(old, new)
        self.ends[end].reload()

    def renew(self, end):
        """`end` gets certificates that are valid, in the files of those that it has, and reads them."""
        for name in self.scenario.certificates[end]:
            self.pki.renew(self.ends[end].folder, end, name)
        self.ends[end].reload()

    def server(self, order):
        """The server of CRLs and OCSP goes `off`, or `on` again. It is at Weir's own address: nothing of it is on the wire."""
        if order == "on":
            before = self._served() if hasattr(self, "served") else ""
            log = open(os.path.join(self.ends["weir"].folder, "server.log"), "a", encoding="utf-8")
            program = [os.path.join(HERE, "revocation.py"), self.pki.folder, self.outer["weir"], "8880"]
            self.served = self.network.hosts["weir"].popen(["/usr/bin/python3", *program], stdout=log, stderr=subprocess.STDOUT)
            wait_for("the server of revocation information", lambda: "listens" in self._served()[len(before):], 10)
        else:
            self.served.kill()
            self.served.wait()

    def _served(self):
        with open(os.path.join(self.ends["weir"].folder, "server.log"), encoding="utf-8") as file:
            return file.read()

    def fetched(self, what):
        """Weir has got this from the server."""
        wait_for(lambda: f"the server was asked for {self._served().split()}", lambda: what in self._served(), 10)

    def lists(self, what, text):
        """`weir list` with this word has a text in its output."""
        socket = self.ends["weir"].socket
        done = subprocess.run([WEIR, "list", what, "--socket", socket], capture_output=True, text=True, timeout=10, check=False)
        if text not in done.stdout:
            raise Failed(f"weir list {what}: {done.stdout}{done.stderr}")

    def checks(self, outcome, *texts):
        """`weir check` accepts (`ok`) or refuses (`refused`) Weir's file, and prints each of these texts."""
        end = self.ends["weir"]
        if end.kind != "weir":
            return
        done = subprocess.run([WEIR, "check", "--config", end.write("checked.conf", end.config)], capture_output=True, text=True,
                              timeout=30, check=False, cwd=end.folder)
        output = done.stdout + done.stderr
        missing = [text for text in texts if text not in " ".join(output.split())]
        if done.returncode != {"ok": 0, "refused": 2}[outcome] or missing:
            raise Failed(f"weir check ended with {done.returncode}, without {missing}: {output}")

    def flush(self):
        """Weir forgets what it fetched."""
        self._swanctl("weir", "--flush-certs")

    def listed(self, end, *arguments):
        """`swanctl` with these words has the last one in its output."""
        code, out = self.ends[end].swanctl(*arguments[:-1])
        if code != 0 or arguments[-1] not in out:
            raise Failed(f"swanctl {' '.join(arguments[:-1])}: {out}")

    def clock(self, end, offset):
        """The clock of `end` jumps to so far from the right time: `+3h`, `-2d`, `+10y`, `0`. What it has measures of passing time stay."""
        units = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "y": 31_557_600}
        self.ends[end].clock.set(0 if offset == "0" else int(offset[:-1]) * units[offset[-1]])

    def fill(self, end):
        """There is no room left on the disk of `end`."""
        self.ends[end].disk.fill()

    def make_room(self, end):
        self.ends[end].disk.make_room()

    def stop(self, end):
        if not self.ends[end].stop():
            raise Failed(f"{end} did not end in order: {self.ends[end].last_words()}")

    def move(self, end, address):
        """Another address takes the place of the first one of `end`."""
        host = self.network.hosts[end]
        host.sh(f"ip addr add {address}/24 dev wire; ip addr del {self.outer[end]}/24 dev wire")
        if end == "weir":
            host.sh(f"ip route replace default via {self.outer['peer']}")

    def rebind(self):
        """The router gets another address, so that what it translates comes from elsewhere."""
        self.network.rebind()

    def half_open(self, count):
        """Begins so many IKE SAs with the responder and leaves them there: the last first message of the
        initiator, each time with another SPI."""
        first = self.capture.last_payload("udp dst port 500 and udp[26] = 34 and udp[16:4] = 0 and udp[20:4] = 0")
        request = "import os, socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); " + \
            f"m = bytes.fromhex('{first.hex()}'); " + \
            f"[s.sendto(os.urandom(8) + m[8:], ('{self.outer[self.who['responder']]}', 500)) for _ in range({int(count)})]"
        self.network.hosts[self.who["initiator"]].run(["/usr/bin/python3", "-c", request])

    def name(self, host, address):
        """`host` has `address` in the file that the resolver reads, or `none`. Names are unique in all scenarios."""
        with open("/etc/hosts", "r+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            lines = [line for line in file if host not in line.split()]
            if address != "none":
                lines.append(f"{address} {host}\n")
            file.seek(0)
            file.truncate()
            file.writelines(lines)

    def wait(self, seconds):
        time.sleep(float(seconds))

    # Steps: traffic.

    def ping(self, *options):
        """Pings of two sizes from each end to the other, all answered. `v6`, `from END`, `size BYTES`."""
        addresses = self.inner6 if "v6" in options else self.inner
        senders = [options[options.index("from") + 1]] if "from" in options else OTHER
        sizes = (int(options[options.index("size") + 1]),) if "size" in options else (56, 1300)
        for end in senders:
            for size in sizes:
                before = self._weir_drops()
                sent, came = self._ping(end, addresses, 5, size=size)
                # On a busy machine the guest loses packets. A loss counts there when Weir counts a
                # drop, or when it occurs twice in a row.
                if came != sent and self.scenario.topology in GUESTS and self._weir_drops() == before:
                    sent, came = self._ping(end, addresses, 5, size=size)
                if came != sent:
                    raise Failed(f"from {end}, {size} bytes: {sent} sent, {came} answered; {self._counts()}; "
                                 f"{self._dropped()}; {self._last_words()}")

    def between(self, ours, theirs):
        """Pings go between these addresses from now on."""
        for end, address in (("weir", ours), ("peer", theirs)):
            self.network.hosts[end].sh(f"ip addr replace {address}/32 dev lo")
            self.inner[end] = address

    def device_mtu(self, end):
        """The TUN device of a Weir has the MTU that its narrowest SA leaves, less than that of the wire."""
        def mtus():
            status = json.loads(self.ends[end].status())
            inner = min((sa["inner_mtu"] for sa in status["sas"] if sa.get("inner_mtu")), default=None)
            device = re.search(r" mtu (\d+) ", self.network.hosts[end].run(["ip", "-o", "link", "show", "weir0"]).stdout)
            return inner, int(device[1]) if device else None

        def same():
            inner, device = mtus()
            return inner and inner == device and 1280 <= device < self.scenario.mtu

        wait_for(lambda: "inner MTU {}, MTU of the device {}".format(*mtus()), same)

    def use(self, end, address):
        """Pings of `end` are to and from this address from now on, which it has already."""
        self.inner[end] = address

    def first_packet(self, end, patience_s="10"):
        """One ping from `end`, held until there is an SA for it, is answered."""
        if self._ping(end, self.inner, 1, patience_s=patience_s)[1] != 1:
            raise Failed(f"not answered; {self._last_words()}")

    def blocked(self, end):
        """Pings from `end` are not answered. That they do not leave in the clear either is looked at in the end."""
        if self._ping(end, self.inner, 3, patience_s=1)[1]:
            raise Failed(f"pings from {end} were answered")

    def recovers(self, end, patience_s="20"):
        """Pings from `end` are answered again before long."""
        def fine():
            sent, came = self._ping(end, self.inner, 2, patience_s=1)
            return sent == came
        wait_for(lambda: f"no answers; {self._last_words()}", fine, float(patience_s))

    def traffic(self, order, allowed="0", end="weir"):
        """`on`: 100 pings a second from `end` until `off`; then no more than `allowed` of them were lost."""
        if order == "on":
            self.pings[end] = Pings(self.network.hosts[end], self.inner[end], self.inner[OTHER[end]], 0.01)
            return
        sent, came = self.pings.pop(end).stop()
        if sent < 20:
            raise Failed(f"only {sent} pings were sent")
        if sent - came > int(allowed):
            raise Failed(f"{sent - came} of {sent} packets were lost; {self._dropped()}")

    def load(self, sender, mbit, size, during, count):
        """Datagrams with so many bytes of payload from `sender` at so many Mbit/s `for` so many seconds, or during so many
        `rekeys` of Child SA and IKE SA by either end in turn; none is lost. LOAD_MBIT, LOAD_FOR and LOAD_REKEYS in the
        environment say otherwise."""
        mbit, count = os.environ.get("LOAD_MBIT", mbit), int(os.environ.get(f"LOAD_{during.upper()}", count))
        receiver = self._load(OTHER[sender], "receive", self.inner[OTHER[sender]])
        source = None
        try:
            receiver.stdout.readline()
            source = self._load(sender, "send", self.inner[sender], self.inner[OTHER[sender]], mbit, size)
            time.sleep(count if during == "for" else 0.5)
            for n in range(count if during == "rekeys" else 0):
                self.rekey(("child", "ike")[n // 2 % 2], ("weir", "peer")[n % 2])
            outputs = []
            for process in (source, receiver):
                process.send_signal(signal.SIGINT)
                outputs.append(process.communicate(timeout=60)[0].strip())
        finally:
            for process in (receiver, source):
                if process and process.poll() is None:
                    process.kill()
        sent, rate = map(int, re.search(r"(\d+) sent at (\d+)", outputs[0]).groups())
        lost = sent - int(re.search(r"(\d+) came", outputs[1])[1])
        rekeys = f"during {count} rekeys" if during == "rekeys" else "without a rekey"
        self.figures.append(f"from {sender} {rekeys} {sent} packets of {size} bytes at {rate} Mbit/s, {lost} lost")
        if lost:
            raise Failed(f"{'; '.join(self.figures)}; {outputs[1]}; {self._dropped()}")
        return sent

    def aggregates(self, sender, mbit, size, seconds, least):
        """`load` for so many seconds, of which a protected packet on the wire carries `least` packets or more on average."""
        on_wire = f"({WIRE['esp']} or ({WIRE['esp-in-udp']})) and src host {self.outer[sender]}"
        before = len(self.capture.matching(on_wire))
        inner = self.load(sender, mbit, size, "for", seconds)
        outer = len(self.capture.matching(on_wire)) - before
        self.figures.append(f"{inner / max(outer, 1):.1f} in a packet on the wire")
        if not outer or inner < float(least) * outer:
            raise Failed(f"from {sender} {inner} packets in {outer} on the wire; {'; '.join(self.figures)}")

    def constant(self, end, mbit, size, seconds="1.5", rounds="3", tries="3"):
        """Outer packets from `end` have that rate and that size, and neither their number nor their gaps show whether there
        is load: captures without and with five times as much as the rate carries, in turn. Other programs on the machine
        delay packets too, so that one of some tries suffices; a pacer that depends on the load fails all."""
        seconds, mbit, size, found, p = float(seconds), float(mbit), int(size), [], 0
        for _ in range(int(tries)):
            captures = {False: [], True: []}
            for n in range(2 * int(rounds)):
                captures[bool(n % 2)].append(self._sent_by(end, seconds, 5 * mbit if n % 2 else 0))
            found, p = pace.faults(captures[False], captures[True], seconds, size * 8 / mbit / 1e6, size)
            if not found:
                break
        self.figures.append(f"from {end} {len(captures[False][0])} and {len(captures[True][0])} packets in {seconds} s, p {p:.2f}")
        if found:
            raise Failed("; ".join(found))

    def _sent_by(self, end, seconds, load_mbit):
        """Times and lengths of protected packets that `end` sends for so long, under load or without."""
        path = os.path.join(os.path.dirname(self.capture.path), f"sent-by-{end}.pcap")
        kinds = " or ".join(f"({WIRE[kind]})" for kind in ("esp", "eesp", "esp-in-udp"))
        command = ["tcpdump", "-Z", "root", "-i", self.network.device, "-Q", "out", "-s", "64", "-B", "16384", "--immediate-mode",
                   "-U", "--time-stamp-precision=nano", "-w", path, kinds]
        if os.path.exists(path):
            os.remove(path)
        source = receiver = capture = None
        try:
            if load_mbit:
                receiver = self._load(OTHER[end], "receive", self.inner[OTHER[end]])
                receiver.stdout.readline()
                source = self._load(end, "send", self.inner[end], self.inner[OTHER[end]], str(load_mbit), "1000")
                time.sleep(0.3)
            capture = self.network.hosts[end].popen(command, stderr=subprocess.DEVNULL)
            wait_for("tcpdump", lambda: os.path.exists(path) and os.path.getsize(path) > 24)
            time.sleep(seconds + 0.3)
            capture.send_signal(signal.SIGINT)
            capture.wait(10)
        finally:
            for process in (source, receiver, capture):
                if process and process.poll() is None:
                    process.kill()
                    process.wait()
        # What the queue holds is gone then.
        time.sleep(0.3)
        return pace.window(pace.read(path), seconds)

    def _weir_drops(self):
        """Dropped packets of each Weir, by reason."""
        return {name: end.drops() for name, end in self.ends.items() if end.kind == "weir"}

    def _dropped(self):
        """Where packets were dropped, for each end: at its devices, its sockets, by Weir."""
        found = []
        for name, host in self.network.hosts.items():
            for line in host.run(["sh", "-c", "cat /proc/net/dev /proc/net/raw /proc/net/udp"]).stdout.splitlines():
                words = line.split()
                device = len(words) == 17 and [words[4], words[12]] != ["0", "0"]
                if device or len(words) == 13 and words[12] not in ("0", "drops"):
                    dropped = f"{words[4]} in, {words[12]} out" if device else f"socket {words[1]}, {words[12]}"
                    found.append(f"{name} {words[0]} {dropped}")
            drops = self.ends[name].drops()
            found += [f"{name} {reason} {count}" for reason, count in drops.items() if count]
        return f"dropped: {', '.join(found) or 'nowhere'}"

    def _load(self, end, *arguments):
        return self.network.hosts[end].popen(["/usr/bin/python3", os.path.join(HERE, "load.py"), *arguments],
                                             stdout=subprocess.PIPE, text=True)

    def iperf(self, seconds="2"):
        """TCP through the tunnel, Weir to peer."""
        server = self.network.hosts["peer"].popen(["iperf", "-s", "-B", self.inner["peer"]], stdout=-3, stderr=-3)
        try:
            time.sleep(0.3)
            out = self.network.hosts["weir"].run(["iperf", "-c", self.inner["peer"], "-B", self.inner["weir"], "-t", seconds, "-f", "m"]).stdout
            rates = re.findall(r"([\d.]+) Mbits/sec", out)
            if not rates or float(rates[-1]) < 1:
                raise Failed(f"iperf: {' | '.join(out.strip().splitlines()[-3:])}")
        finally:
            server.kill()
            server.wait()

    def streams(self, end, target, at="0.0.0.0"):
        """TCP and UDP from `end` to the other end, which is `target` there, come back as they went. The server is `at` an address
        of its host where replies would have another one."""
        program = ["/usr/bin/python3", os.path.join(HERE, "streams.py")]
        server = self.network.hosts[OTHER[end]].popen([*program, "serve", at], stdout=subprocess.PIPE, text=True)
        try:
            server.stdout.readline()
            asked = self.network.hosts[end].run([*program, "ask", target])
            if asked.returncode != 0:
                raise Failed(f"{' '.join(asked.stderr.split())[-300:]}; {self._counts()}; {self._dropped()}; {self._last_words()}")
        finally:
            server.kill()
            server.wait()

    # Steps: what has to hold.

    def up(self, *expected):
        """Both ends use one IKE SA and the same Child SAs; what was replaced may be listed for a while. KEY=VALUE: what both say of
        them, `%` is any text."""
        wanted = [word.split("=", 1) for word in expected]

        def agree():
            sas = {name: established(end.sas()) for name, end in self.ends.items()}
            return self._mirrored(*sas.values()) and sas

        sas = wait_for(lambda: f"not up: {self._states()}; {self._last_words()}", agree, 10)
        for end, (sa,) in sas.items():
            of_both = {**sa, **installed([sa])[0]}
            for key, value in wanted:
                if not re.fullmatch(value.replace("%", ".*"), str(of_both.get(key, ""))):
                    raise Failed(f"{end} has {key}={of_both.get(key)} instead of {value}")

    def children(self, count):
        """So many Child SAs on both ends."""
        wait_for(lambda: f"{self._states()}", lambda: all(len(installed(end.sas())) == int(count) for end in self.ends.values()))

    def children_at_least(self, count):
        wait_for(lambda: f"{self._states()}", lambda: all(len(installed(end.sas())) >= int(count) for end in self.ends.values()))

    def gone(self, *ends):
        """No IKE SA is left, but for one whose end is confirmed and that only answers the same question again."""
        def over(end):
            return all(sa["state"] in ("DELETING", "DESTROYING") for sa in self.ends[end].sas())
        for end in ends or self.ends:
            wait_for(lambda: f"{end} still has {self._states()}", lambda: over(end), 25)

    def selectors(self, ours, theirs):
        """The traffic selectors that were agreed, Weir's first."""
        for end, local, remote in (("weir", ours, theirs), ("peer", theirs, ours)):
            for child in installed(self.ends[end].sas()):
                if (child["local-ts"], child["remote-ts"]) != ([local], [remote]):
                    raise Failed(f"{end}: {child['local-ts']} === {child['remote-ts']}")

    def located(self, end, address):
        """Both ends say that `end` is at this address."""
        def agree():
            ours, theirs = self.ends[end].sas(), self.ends[OTHER[end]].sas()
            return [sa["local-host"] for sa in ours] == [sa["remote-host"] for sa in theirs] == [address]
        wait_for(lambda: f"{self._states()}; {self._last_words()}", agree)

    def counters(self):
        """What one end's SAs sent, the other's received, and neither counts nothing."""
        def agree():
            (a, b) = (self._count(end) for end in ("weir", "peer"))
            return min(a) > 0 and a == b[::-1]
        wait_for(lambda: f"packets (in, out): {self._counts()}", agree, 5)

    def no_xfrm_error(self, end, *counters):
        """None of these counters of the kernel of `end` has changed since its daemon was started, without names none at all."""
        if self.ends[end].kind == "weir":
            return
        changed = self.ends[end].xfrm_errors(counters)
        if changed:
            raise Failed(f"the kernel of {end} counted {changed}; {self._dropped()}")

    def vip(self, end, address):
        """`end` has got a virtual address; pings use it from now on."""
        sas = {name: self.ends[name].sas()[0] for name in self.ends}
        # charon lists the address once more for a request that was retransmitted.
        if sas[end].get("local-vips") != [address] or set(sas[OTHER[end]].get("remote-vips") or []) != {address}:
            raise Failed(f"local {sas[end].get('local-vips')}, remote {sas[OTHER[end]].get('remote-vips')}")
        self.inner[end] = address
        held = self.network.hosts[end].run(["ip", "-o", "addr", "show", "to", address]).stdout
        if not held:
            raise Failed(f"{end} did not give itself {address}")

    def source(self, end, address):
        """What a program on `end` sends to the other end has this source address by itself."""
        def route():
            return self.network.hosts[end].run(["ip", "route", "get", self.inner[OTHER[end]]]).stdout.split()
        wait_for(lambda: f"{end}: {' '.join(route())}; {self._last_words()}", lambda: ("src", address) in zip(route(), route()[1:]))

    def resolves(self, end, *servers):
        """The file of the resolver of `end` names these servers, in this order, before those of its own."""
        path = os.path.join(self.ends[end].folder, "resolv.conf")

        def lines():
            with open(path, encoding="utf-8") as file:
                return [line.split("#")[0].split() for line in file.read().splitlines()]
        want = [["nameserver", server] for server in (*servers, "192.0.2.53")]
        wait_for(lambda: f"{end} has {lines()}", lambda: lines() == want, 5)

    def says(self, end, pattern, patience_s="10"):
        """The log of `end` has a line like this."""
        found = re.compile(pattern)
        wait_for(lambda: f"{end} never logged it: {self.ends[end].last_words()}",
                 lambda: found.search(self.ends[end].log()), float(patience_s))

    def never(self, end, pattern):
        """The log of `end` has no line like this so far."""
        found = re.search(pattern, self.ends[end].log())
        if found:
            raise Failed(f"{end} logged '{found.group(0)}'")

    def wire(self, what, least="1"):
        """So many packets of a kind were seen, see WIRE in net.py."""
        wait_for(f"fewer than {least} packets '{WIRE[what]}' on the wire",
                 lambda: len(self.capture.matching(WIRE[what])) >= int(least), 5)

    def not_on_wire(self, what):
        seen = self.capture.matching(WIRE[what])
        if seen:
            raise Failed(f"{len(seen)} packets '{WIRE[what]}' on the wire, the first: {seen[0]}")

    # Help for the steps.

    def _swanctl(self, end, *arguments):
        code, out = self.ends[end].swanctl(*arguments)
        if code != 0:
            raise Failed(f"swanctl: {' | '.join(out.strip().splitlines()[-3:])}; {self._last_words()}")

    def _ping(self, end, addresses, count, **how):
        return answered(self.network.hosts[end].run(ping(addresses[end], addresses[OTHER[end]], count, **how)).stdout)

    def _keys(self, what):
        """Numbers that distinguish the SAs in use from earlier ones, for each end; None while there is not exactly one kind of them."""
        keys = {}
        for name, end in self.ends.items():
            sas = established(end.sas())
            if what == "ike":
                keys[name] = sorted(sa["initiator-spi"] + sa["responder-spi"] for sa in sas)
            else:
                keys[name] = sorted(child["spi-in"] for child in installed(sas))
        return keys

    def _replaced(self, what, before):
        now = self._keys(what)
        return all(now[end] and len(now[end]) == len(before[end]) and not set(now[end]) & set(before[end]) for end in now)

    def _mirrored(self, a, b):
        """One IKE SA with the same SPIs, Child SAs that are each other's mirror image, with keys in both directions."""
        if not len(a) == len(b) == 1:
            return False
        ours = sorted((child["spi-in"], child["spi-out"]) for child in installed(a))
        theirs = sorted((child["spi-out"], child["spi-in"]) for child in installed(b))
        agreed = bool(ours) and all(int(spi, 16) for pair in ours for spi in pair)
        return agreed and ours == theirs and all(a[0][key] == b[0][key] for key in ("initiator-spi", "responder-spi"))

    def _states(self):
        return {name: [(sa["name"], sa["state"], [(c["name"], c["state"]) for c in children(sa)]) for sa in end.sas()]
                for name, end in self.ends.items() if end.alive()}

    def _count(self, end):
        kids = installed(self.ends[end].sas())
        return tuple(sum(int(child.get(key, 0)) for child in kids) for key in ("packets-in", "packets-out"))

    def _counts(self):
        return {end: self._count(end) for end in self.ends if self.ends[end].alive()}

    def _last_words(self):
        return "; ".join(f"{name} logged: {end.last_words()}" for name, end in self.ends.items())
