"""Suites whose peer is an IKE daemon of another Debian, in a kernel of its own (User Mode Linux): what they have in common.

The daemon runs in a `chroot` to IKE_PEERS_ROOT (scripts/peer-root.sh), the guest's kernel does ESP. A suite defines a subclass of
`Peer` and a list of `Case`. Each case runs with either end as the initiator: up, pings, every rekey the case names, pings after
each of them, down; in the end nothing may have been on the wire in the clear.
"""

import os
import sys
import time
import traceback
from dataclasses import dataclass, field

LIB = os.path.dirname(os.path.abspath(__file__))
STRONGSWAN = os.path.join(LIB, "..", "strongswan")
sys.path.insert(0, STRONGSWAN)
sys.path.insert(0, LIB)
import ends  # noqa: E402
import net  # noqa: E402
import pki  # noqa: E402
from gateway import Failed  # noqa: E402
from scenario import established, installed  # noqa: E402
from uml import Guest, GuestHost  # noqa: E402

ROOT = os.environ.get("IKE_PEERS_ROOT", "")
SECRET = "a secret for this laboratory only"
WEIR_CONF = """connections {{
    net {{
        version = {version}
        local_addrs = {outer[weir]}
        remote_addrs = {outer[peer]}
        retransmit_timeout = 1s
        {connection}
        local {{
            id = weir.lab
            {local}
        }}
        remote {{
            id = peer.lab
            {remote}
        }}
        children {{
            net {{
                local_ts = 10.1.0.0/16
                remote_ts = 10.2.0.0/16
                {child}
            }}
        }}
    }}
}}
secrets {{
    ike-1 {{
        id-1 = weir.lab
        id-2 = peer.lab
        secret = "{secret}"
    }}
}}
"""
ALL_REKEYS = [("child", "weir"), ("child", "peer"), ("ike", "weir"), ("ike", "peer")]
# More than what net.WIRE names: an IKE message that IP has cut.
WIRE = {**net.WIRE, "ip-fragment": "ip proto 17 and (ip[6:2] & 0x3fff != 0)"}


@dataclass
class Case:
    """One configuration of both ends."""

    name: str
    # Lines of the peer's configuration; each suite defines them.
    peer: dict = field(default_factory=dict)
    # Name of the certificates (pki.py); None is a PSK.
    certificate: str = None
    # Version of IKE.
    version: int = 2
    # Lines of the connection and of the Child SA of Weir.
    connection: str = ""
    child: str = ""
    # Which SA is rekeyed, and by which end.
    rekeys: list = field(default_factory=lambda: list(ALL_REKEYS))
    # Words for packets that must (not) be on the wire, see WIRE; or that must be there when Weir is
    # the initiator.
    wire: list = field(default_factory=list)
    wire_by_weir: list = field(default_factory=list)
    not_on_wire: list = field(default_factory=list)
    # Secret of Weir, where it is not that of the peer; texts that the log of Weir, and that of the
    # peer, must then contain as the responder.
    secret: str = SECRET
    refused: str = ""
    refused_by_peer: str = ""
    # Weir is killed after the first pings, without a Delete, and starts a second time.
    restart: bool = False


class Peer:
    """The daemon in the guest. Its files are in /run/peer there, which is the same folder inside of the `chroot`."""

    log_file = ""

    def __init__(self, host, pki_folder):
        self.host, self.pki_folder = host, pki_folder

    def prepare(self):
        """Once, before all cases."""

    def load(self, case, initiator):
        """Configures the daemon for a case."""
        raise NotImplementedError

    def initiate(self, case):
        """Begins, where `load` has not done so."""

    def try_to_initiate(self, case):
        """Begins something that fails."""
        self.initiate(case)

    def rekey(self, kind):
        """Rekeys by a command; a daemon without one waits for a lifetime."""

    def terminate(self):
        """Ends the IKE SA."""
        raise NotImplementedError

    def log(self):
        return self.host.guest.sh(f"tail -n 6 {self.log_file} | cut -c 1-200")[1]

    def log_size(self):
        """Bytes in the log."""
        return int(self.host.must(f"wc -c <{self.log_file}"))

    def has_logged(self, text, since):
        """Whether the log contains a text after so many bytes."""
        return self.host.guest.sh(f"tail -c +{since + 1} {self.log_file} | grep -qF '{text}'")[0] == 0

    def inside(self, command):
        """Runs a command in the folder of the daemon."""
        return self.host.must(f"chroot {ROOT} env PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/libexec/ipsec {command}")

    def write(self, name, text):
        # A line of the console holds less than 4096 bytes.
        self.host.must(f"mkdir -p /run/peer; cat >/run/peer/{name} <<'END'\n{text}END\n")


class Suite:
    """All cases, one after the other."""

    # How long an exchange may take on a busy machine.
    PATIENCE_S = 30

    def __init__(self, name, lab, peer, cases):
        self.name, self.lab, self.cases = name, lab, cases
        net.sh("mount --make-rprivate / && mount -t tmpfs -o mode=0755 lab /run && mkdir /run/netns && ip link set lo up")
        self.pki = pki.Pki(os.path.join(lab, "pki"))
        self.network = net.Network(name, "uml")
        guest = Guest(lab, STRONGSWAN, "tap0", self.network.hosts["weir"].within)
        self.host = self.network.hosts["peer"] = GuestHost(guest)
        self.host.must(f"""set -e
            ip link set lo up
            echo 1 >/proc/sys/net/ipv6/conf/vec0/addr_gen_mode
            ip link set vec0 up
            ip addr add {net.OUTER['peer']}/24 dev vec0
            ip addr add {net.INNER['peer']}/32 dev lo
            ip route add default via {net.OUTER['weir']}
            mount -t proc proc {ROOT}/proc
            mount --bind /dev {ROOT}/dev
            mount -t tmpfs tmp {ROOT}/tmp
            mkdir /run/peer
            mount --bind /run {ROOT}/run""")
        self.peer = peer(self.host, self.pki.folder)
        self.peer.prepare()

    def run(self, case, initiator):
        name = f"{case.name}-by-{initiator}"
        folder, started, why = os.path.join(self.lab, name), time.monotonic(), None
        weir = ends.Weir("weir", self.network.hosts["weir"], os.path.join(folder, "weir"), self.weir_conf(case))
        capture = net.Capture(self.network.hosts["weir"], self.network.device, os.path.join(folder, "wire.pcap"))
        if case.certificate:
            kind = pki.NAMES[case.certificate]
            self.pki.install(weir.folder, "weir", [case.certificate], {kind}, False)
        try:
            weir.start()
            if case.refused:
                self.refusal(case, initiator, weir)
            else:
                self.exchange(case, initiator, weir)
            capture.stop()
            self.look_at(case, capture, case.wire + (case.wire_by_weir if initiator == "weir" else []))
        except Failed as wrong:
            why = f"{wrong}; weir: {weir.last_words()}; peer: {self.peer.log()}"
        except Exception as error:  # A line for this run, and the others go on.
            why = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        finally:
            if not weir.stop() and why is None:
                why = f"weir did not end in order: {weir.last_words()}"
            capture.stop()
        took = time.monotonic() - started
        print(f"FAIL {self.name}/{name}: {' '.join(why.split())}" if why else f"PASS {self.name}/{name} ({took:.1f} s)", flush=True)
        return why is None

    @staticmethod
    def weir_conf(case):
        local = f"auth = pubkey\n            certs = {case.certificate}-weir.pem" if case.certificate else "auth = psk"
        return WEIR_CONF.format(outer=net.OUTER, secret=case.secret, version=case.version, local=local,
                                remote="auth = pubkey" if case.certificate else "auth = psk",
                                connection=case.connection, child=case.child)

    def exchange(self, case, initiator, weir):
        self.peer.load(case, initiator)
        if initiator == "weir":
            self.swanctl(weir, "--initiate", "--child", "net", "--timeout", str(self.PATIENCE_S))
        else:
            self.peer.initiate(case)
        net.wait_for("not up", lambda: len(self.keys(weir, "child")) == 1, self.PATIENCE_S)
        if case.version == 1:
            # A responder sends through its SA after message 3, which nothing acknowledges.
            time.sleep(1)
        self.pings(weir, "after the start")
        if case.restart:
            self.restart(weir)
        for kind, by in case.rekeys:
            before = self.keys(weir, kind)
            if by == "weir":
                self.swanctl(weir, "--rekey", f"--{kind}", "net")
            else:
                self.peer.rekey(kind)
            net.wait_for(f"{kind} rekey by {by}: not replaced", lambda: self.replaced(weir, kind, before), self.PATIENCE_S)
            self.pings(weir, f"after the {kind} rekey by {by}")
        # An initiator with a command to be up would begin again when the responder ends it.
        # After a restart only the peer has all SAs.
        if initiator == "peer" or case.restart:
            self.peer.terminate()
        else:
            self.swanctl(weir, "--terminate", "--ike", "net")
        net.wait_for("the kernel of the peer keeps SAs", lambda: "src" not in self.host.must("ip xfrm state"), self.PATIENCE_S)

    def restart(self, weir):
        """Weir comes back without its SAs, and the peer sends through the new one."""
        weir.kill()
        weir.start()
        self.swanctl(weir, "--initiate", "--child", "net", "--timeout", str(self.PATIENCE_S))
        self.pings(weir, "after the restart")

    def refusal(self, case, initiator, weir):
        """No SA comes up at either end, and the responder reports the reason: it has run and read the messages."""
        self.peer.load(case, initiator)
        if initiator == "weir":
            since = self.peer.log_size()
            code, out = weir.swanctl("--initiate", "--child", "net", "--timeout", "20")
            if code == 0:
                raise Failed(f"swanctl: {out}")
            net.wait_for(f"no line '{case.refused_by_peer}' of the peer",
                         lambda: self.peer.has_logged(case.refused_by_peer, since), self.PATIENCE_S)
        else:
            self.peer.try_to_initiate(case)
            net.wait_for(f"no line '{case.refused}'", lambda: case.refused in weir.log(), self.PATIENCE_S)
        if self.keys(weir, "ike") or "src" in self.host.must("ip xfrm state"):
            raise Failed("an SA is there")

    def swanctl(self, weir, *arguments):
        code, out = weir.swanctl(*arguments)
        if code != 0:
            raise Failed(f"swanctl {' '.join(arguments)}: {' | '.join(out.strip().splitlines()[-3:])}")

    @staticmethod
    def keys(weir, kind):
        sas = established(weir.sas())
        if kind == "ike":
            return {sa["initiator-spi"] + sa["responder-spi"] for sa in sas}
        return {child["spi-in"] for child in installed(sas)}

    def replaced(self, weir, kind, before):
        now = self.keys(weir, kind)
        return len(now) == 1 and not now & before

    def pings(self, weir, when):
        """Every ping from either end is answered. The peer may install its SAs a moment after its last message.

        On a busy machine the network card of the guest loses packets. A loss counts when Weir counts a drop, or when it
        occurs twice in a row."""
        def ping(end, count, size=56, patience_s=2):
            command = net.ping(net.INNER[end], net.INNER[net.OTHER[end]], count, size=size, patience_s=patience_s)
            return net.answered(self.network.hosts[end].run(command).stdout)

        for end in net.OTHER:
            net.wait_for(f"pings from {end} {when}: no answer", lambda end=end: ping(end, 1, patience_s=0.5)[1], 5)
            for size in (56, 1300):
                before = weir.drops()
                sent, came = ping(end, 4, size)
                dropped = {why: count for why, count in weir.drops().items() if count != before.get(why)}
                if came != sent and not dropped:
                    sent, came = ping(end, 4, size)
                if came != sent:
                    raise Failed(f"pings from {end} {when}, {size} bytes: {sent} sent, {came} answered, dropped by weir: {dropped}")

    @staticmethod
    def look_at(case, capture, wanted):
        if bool(capture.matching(WIRE["esp"])) == bool(case.refused):
            raise Failed("ESP on the wire" if case.refused else "no ESP on the wire")
        clear = capture.matching(f"not ({net.PROTECTED})")
        if clear:
            raise Failed(f"{len(clear)} packets on the wire in the clear, the first: {clear[0]}")
        for word in wanted:
            if not capture.matching(WIRE[word]):
                raise Failed(f"no {word} on the wire")
        for word in case.not_on_wire:
            if capture.matching(WIRE[word]):
                raise Failed(f"{word} on the wire")


def main(peer, cases):
    """Runs the cases that the command line names, or all of them."""
    name, lab, *wanted = sys.argv[1:]
    os.umask(0o077)
    unknown = set(wanted) - {case.name for case in cases}
    if unknown:
        print(f"FAIL {name}/all: no case is named {', '.join(sorted(unknown))}")
        return 1
    try:
        suite = Suite(name, lab, peer, cases)
    except (Failed, OSError) as error:
        print(f"FAIL {name}/all: {' '.join(str(error).split())}")
        return 1
    passed = [suite.run(case, initiator) for case in cases if not wanted or case.name in wanted for initiator in net.OTHER]
    return 0 if all(passed) else 1
