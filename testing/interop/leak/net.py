"""The hosts of one topology and sockets in their network namespaces.

    lan ── gw ── wire ── out

`lan` is a host behind the gateway `gw`; `out` is the peer with the network behind it, and everything else that is outside.
Both gateways have a default route over the wire, so that clear text really leaves.
"""

import ctypes
import ipaddress
import os
import socket
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from gateway import Failed  # noqa: E402,F401
from shell import QUIET, sh, wait_for  # noqa: E402,F401

FAMILIES = (4, 6)
OUTER = {4: {"gw": "192.0.2.1", "out": "192.0.2.2"}, 6: {"gw": "2001:db8::1", "out": "2001:db8::2"}}
# The address that the gateway moves to.
MOVED = {4: "192.0.2.11", 6: "2001:db8::11"}
OUTER_PREFIX = {4: 24, 6: 64}
NETWORK = {4: {"gw": "10.1.0.0/24", "out": "10.2.0.0/24"}, 6: {"gw": "fd01::/64", "out": "fd02::/64"}}
LAN = {4: "10.1.0.5", 6: "fd01::5"}
GW_INNER = {4: "10.1.0.1", 6: "fd01::1"}
REMOTE = {4: "10.2.0.5", 6: "fd02::5"}
# Sources of spoofed packets in tunnel mode: addresses of both networks that no host has.
SPOOFED = {4: {"gw": "10.1.0.66", "out": "10.2.0.66"}, 6: {"gw": "fd01::66", "out": "fd02::66"}}
CLONE_NEWNET = 0x40000000
AF = {4: socket.AF_INET, 6: socket.AF_INET6}


class Hosts:
    """The three network namespaces of a topology."""

    NAMES = ("lan", "gw", "out")

    def __init__(self, topology):
        self.topology = topology
        for name in self.NAMES:
            sh(f"ip netns add {self.of(name)}")
            self.at(name, QUIET)
        sh(f"ip link add inside netns {self.of('lan')} type veth peer name inside netns {self.of('gw')}")
        sh(f"ip link add wire netns {self.of('gw')} type veth peer name wire netns {self.of('out')}")
        self.at("lan", f"""
            ip addr add {LAN[4]}/24 dev inside; ip addr add {LAN[6]}/64 dev inside nodad; ip link set inside up
            ip route add default via {GW_INNER[4]}; ip -6 route add default via {GW_INNER[6]}""")
        for name in ("gw", "out"):
            self.at(name, f"""
                ip addr add {OUTER[4][name]}/24 dev wire; ip addr add {OUTER[6][name]}/64 dev wire nodad
                ip link set wire up
                echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding""")
        self.at("gw", f"""
            ip addr add {GW_INNER[4]}/24 dev inside; ip addr add {GW_INNER[6]}/64 dev inside nodad
            ip link set inside up""")
        self.at("out", f"ip addr add {REMOTE[4]}/32 dev lo; ip addr add {REMOTE[6]}/128 dev lo nodad")
        self.default_routes()

    def default_routes(self):
        """The ways that clear text would take. A change of addresses removes them."""
        for name, other in (("gw", "out"), ("out", "gw")):
            self.at(name, f"""ip route replace default via {OUTER[4][other]} dev wire
                              ip -6 route replace default via {OUTER[6][other]} dev wire""")

    def of(self, name):
        return f"{self.topology}-{name}"

    def within(self, name):
        return ("nsenter", f"--net=/run/netns/{self.of(name)}")

    def at(self, name, script, check=True):
        return sh(f"exec {' '.join(self.within(name))} sh -ec '{script}'", check)

    def mac(self, name, device):
        line = self.at(name, f"ip -o link show {device}")
        return bytes.fromhex(line.split("link/ether ")[1].split()[0].replace(":", ""))

    def enter(self, name, make):
        """The result of `make`, called by this thread within a namespace: sockets stay where they were made."""
        libc = ctypes.CDLL(None, use_errno=True)
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.of(name)}", os.O_RDONLY)
        try:
            if libc.setns(there, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            return make()
        finally:
            libc.setns(home, CLONE_NEWNET)
            os.close(home)
            os.close(there)

    def remove(self):
        for name in self.NAMES:
            sh(f"ip netns del {self.of(name)}", check=False)


IP_FREEBIND, IPV6_FREEBIND, SO_RCVBUFFORCE = 15, 78, 33


def udp_socket(family, address, port):
    """A UDP socket of an address, which may go and come back later."""
    made = socket.socket(AF[family], socket.SOCK_DGRAM)
    if family == 4:
        made.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
    else:
        made.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
    made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 20)
    made.bind((address, port))
    made.setblocking(False)
    return made


SOL_PACKET, PACKET_STATISTICS, PACKET_IGNORE_OUTGOING, ETH_P_ALL = 263, 6, 23, 3


def capture_socket(device):
    """Every frame that arrives over a device."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
    made.bind((device, ETH_P_ALL))
    made.setblocking(False)
    return made


def inject_socket(device):
    """Sends whole frames past every packet filter of the sender, and receives none."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.bind((device, 0))
    made.setblocking(False)
    return made


def network_holds(network, address):
    return ipaddress.ip_address(address) in ipaddress.ip_network(network)
