"""The hosts of one scenario, the wire between them, traffic through it, and what was seen on it."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from gateway import Failed  # noqa: E402
from shell import QUIET, sh, wait_for  # noqa: E402

OUTER = {"weir": "192.0.2.1", "peer": "192.0.2.2"}
OUTER6 = {"weir": "2001:db8::1", "peer": "2001:db8::2"}
INNER = {"weir": "10.1.0.1", "peer": "10.2.0.1"}
INNER6 = {"weir": "fd01::1", "peer": "fd02::1"}
BEHIND_NAT, ROUTER_IN, ROUTER_OUT, ROUTER_NEXT = "192.168.7.2", "192.168.7.1", "192.0.2.254", "192.0.2.253"
OTHER = {"weir": "peer", "peer": "weir"}
# What may be on the wire: the key exchange (port 1000 is PSP and its key service), protected
# packets, what a link needs to work, errors about these. 253 is EESP. Fragments after the first one
# carry no ports.
PROTECTED = ("arp or udp port 500 or udp port 4500 or esp or ah or ip proto 253 or ip6 proto 253 "
             "or tcp port 1000 or udp dst port 1000 "
             "or (ip[6:2] & 0x1fff != 0) or ip6 proto 44 or icmp[icmptype] = icmp-unreach "
             "or ip6 dst net ff02::/16 or (icmp6 and (icmp6[0] = 1 or icmp6[0] >= 130))")
# Words for what to look for in a capture. Behind "port 4500" four bytes of zero precede IKE. Byte
# 16 of an IKE header is the first payload, byte 18 the exchange; 53 is an encrypted fragment, 43
# IKE_INTERMEDIATE, 41 a notification.
WIRE = {
    "esp": "esp",
    "esp6": "ip6 proto 50",
    "ah": "ah",
    "eesp": "ip proto 253 or ip6 proto 253",
    "psp": "udp dst port 1000",
    "esp-in-udp": "udp port 4500 and udp[8:4] > 0",
    "ike-fragment": "(udp port 500 and udp[24] = 53) or (udp port 4500 and udp[8:4] = 0 and udp[28] = 53)",
    "ip-fragment": "ip[6:2] & 0x1fff != 0",
    "ike-intermediate": "(udp port 500 and udp[26] = 43) or (udp port 4500 and udp[8:4] = 0 and udp[30] = 43)",
    "cookie": "udp port 500 and udp[26] = 34 and udp[24] = 41 and udp[42:2] = 16390",
    "invalid-ke": "udp port 500 and udp[26] = 34 and udp[24] = 41 and udp[42:2] = 17",
    "keepalive": "udp port 4500 and udp[4:2] = 9",
    "echo": "icmp[icmptype] = icmp-echo",
    "other-port": "udp dst port 4500 and udp src port not 4500",
}


class Host:
    """A network namespace."""

    def __init__(self, scenario, name):
        self.name = name
        self.namespace = f"{scenario}.{name}"
        self.within = ("nsenter", f"--net=/run/netns/{self.namespace}")
        sh(f"ip netns add {self.namespace}")
        self.sh(QUIET + """
            echo 1 >/proc/sys/net/ipv6/conf/default/addr_gen_mode
            echo 1 >/proc/sys/net/ipv4/ip_forward""")

    def sh(self, script):
        return sh(f"exec {' '.join(self.within)} sh -ec '{script}'")

    def run(self, command, patience_s=30):
        return subprocess.run([*self.within, *command], capture_output=True, text=True, errors="replace",
                              timeout=patience_s, check=False)

    def popen(self, command, **options):
        return subprocess.Popen([*self.within, *command], **options)


class Network:
    """Two hosts and what lies between them."""

    def __init__(self, scenario, topology, outer=None, weirs=("weir",), mtu=1500):
        self.outer = outer or OUTER
        self.hosts = {name: Host(scenario, name) for name in OUTER}
        self.device = "wire"
        weir, peer = self.hosts["weir"], self.hosts["peer"]
        behind_nat = {"nat-weir": "weir", "nat-peer": "peer"}.get(topology)
        if topology == "uml":
            self.device = "tap0"
            weir.sh("ip tuntap add tap0 mode tap; ip link set tap0 up")
            self.address(weir, "tap0", self.outer["weir"], OUTER6["weir"])
        elif behind_nat:
            self.nat(scenario, behind_nat)
        else:
            sh(f"ip link add wire netns {weir.namespace} type veth peer name wire netns {peer.namespace}")
            for host in self.hosts.values():
                self.address(host, "wire", self.outer[host.name], None if topology == "ipv4" else OUTER6[host.name])
                host.sh(f"ip link set wire mtu {mtu}")
        for host in self.hosts.values():
            if topology == "lossy":
                self.lose(host)
            host.sh(f"ip addr add {INNER[host.name]}/32 dev lo; ip addr add {INNER6[host.name]}/128 dev lo nodad")
        if not behind_nat:
            # What a Weir protects would have another way: out on the wire, in the clear.
            for end in weirs:
                self.hosts[end].sh(f"ip route add default via {self.outer[OTHER[end]]}")
                if topology != "ipv4":
                    self.hosts[end].sh(f"ip -6 route add default via {OUTER6[OTHER[end]]}")
        # Where addresses are translated, what leaves the router counts.
        self.seen_at = peer if behind_nat == "weir" else weir

    @staticmethod
    def address(host, device, v4, v6=None):
        host.sh(f"ip addr add {v4}/24 dev {device}; {f'ip addr add {v6}/64 dev {device} nodad;' if v6 else ''}"
                f"ip link set {device} up")

    def nat(self, scenario, inside):
        """Puts a router in front of `inside` that changes addresses and ports."""
        hidden, outside = self.hosts[inside], self.hosts[OTHER[inside]]
        router = self.router = Host(scenario, "router")
        sh(f"ip link add wire netns {hidden.namespace} type veth peer name inside netns {router.namespace}")
        sh(f"ip link add wire netns {outside.namespace} type veth peer name outside netns {router.namespace}")
        self.address(hidden, "wire", BEHIND_NAT)
        self.address(router, "inside", ROUTER_IN)
        self.address(router, "outside", ROUTER_OUT)
        self.address(outside, "wire", OUTER[outside.name])
        hidden.sh(f"ip route add default via {ROUTER_IN}")
        router.sh("""nft -f - <<NAT
            table ip nat {
                chain out {
                    type nat hook postrouting priority 100;
                    oifname "outside" masquerade random
                }
            }
            NAT""".replace("\n            NAT", "\nNAT"))

    def rebind(self):
        """The translations go with the address."""
        self.router.sh(f"ip addr del {ROUTER_OUT}/24 dev outside; ip addr add {ROUTER_NEXT}/24 dev outside")

    @staticmethod
    def lose(host):
        """Every fourth IKE message to `host` is lost; on port 4500 it begins with four bytes of zero."""
        host.sh("""nft -f - <<LOSS
            table inet lossy {
                chain in {
                    type filter hook input priority 0;
                    udp dport 500 numgen random mod 4 0 drop
                    udp dport 4500 @th,64,32 0 numgen random mod 4 0 drop
                }
            }
            LOSS""".replace("\n            LOSS", "\nLOSS"))

    def remove(self):
        for host in [*self.hosts.values(), getattr(self, "router", None)]:
            if host:
                subprocess.run(["ip", "netns", "del", host.namespace], check=False)


ANSWERED = re.compile(r"(\d+) sent, (\d+) answered")


def ping(source, target, count, interval_s=0.02, size=56, patience_s=3):
    """The command that pings, see pings.py."""
    numbers = map(str, (count, interval_s, size, patience_s))
    return ["/usr/bin/python3", os.path.join(HERE, "pings.py"), source, target, *numbers]


def answered(text):
    """How many pings were sent, and how many answered."""
    seen = ANSWERED.search(text)
    if not seen or "altered" in text:
        raise Failed(f"pings: {text.strip()[-300:]}")
    return tuple(map(int, seen.groups()))


class Pings:
    """Pings in the background; `stop` ends them and returns how many were sent, and how many answered."""

    # What they go through may take no time at all; so many seconds are enough to see losses in.
    LEAST_S = 0.5

    def __init__(self, host, source, target, interval_s):
        self.process = host.popen(ping(source, target, 0, interval_s), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True)
        self.process.stdout.readline()
        self.since = time.monotonic()

    def stop(self):
        time.sleep(max(0, self.since + self.LEAST_S - time.monotonic()))
        self.process.send_signal(signal.SIGINT)
        try:
            return answered(self.process.communicate(timeout=30)[0])
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failed("pings do not end") from None


class Capture:
    """Everything on one end of the wire for as long as the scenario lasts."""

    def __init__(self, host, device, path, what=""):
        self.path = path
        self.log = open(path + ".log", "w", encoding="utf-8")
        # Without -Z it would become a user that may not write here.
        self.process = host.popen(["tcpdump", "-Z", "root", "-i", device, "--immediate-mode", "-U", "-n", "-s", "600",
                                   "-B", "16384", "-w", path, what], stderr=self.log)
        wait_for("tcpdump", lambda: os.path.exists(path) and os.path.getsize(path) >= 24)

    def stop(self):
        if self.process.poll() is None:
            time.sleep(0.1)
            self.process.send_signal(signal.SIGINT)
            self.process.wait(10)
            self.log.close()

    def matching(self, expression):
        done = subprocess.run(["tcpdump", "-n", "-r", self.path, expression], capture_output=True, text=True, check=False)
        if done.returncode != 0 and "truncated dump file" not in done.stderr:
            raise Failed(f"tcpdump -r: {done.stderr.strip()}")
        return done.stdout.splitlines()

    def last_payload(self, expression):
        """The payload of the last UDP datagram over IPv4 like this."""
        with tempfile.NamedTemporaryFile() as file:
            subprocess.run(["tcpdump", "-Z", "root", "-n", "-r", self.path, "-w", file.name, expression],
                           capture_output=True, check=False)
            capture = file.read()
        at, frame = 24, b""
        while at < len(capture):
            length = int.from_bytes(capture[at + 8:at + 12], "little")
            frame = capture[at + 16:at + 16 + length]
            at += 16 + length
        if len(frame) < 42:
            raise Failed(f"nothing like '{expression}' on the wire")
        ip = frame[14:]
        return ip[(ip[0] & 15) * 4 + 8:]
