"""Configurations of both gateways for each way of keying: manual SAs, IKE with a preshared key, PSP's key service."""

import hashlib
import os

import paced
from net import FAMILIES, NETWORK, OUTER, sh
from gateway import WEIR  # noqa: E402

OTHER = {"gw": "out", "out": "gw"}
NAME = "peer{}.leak.example"
# Addresses for peers, in the remote network.
POOL = {4: "10.2.0.0/24", 6: "fd02::/112"}
# A peer that does not exist, and networks for it.
NO_HOST = "192.0.2.77"
MORE = {"local_ts": "10.8.0.0/24", "remote_ts": "10.9.0.0/24"}


def certificates(folder):
    """A CA and a certificate for each end, below `folder`."""
    os.makedirs(folder, exist_ok=True)
    pki = f"cd {folder}; exec {os.path.abspath(WEIR)} pki"
    sh(f"{pki} ca --name Leaks")
    for end in OTHER:
        sh(f"{pki} issue --peer --id {end}.lab --name {end}")
        sh(f"{pki} bundle {end} --folders {end}")


def install(certified, folder, end):
    """Puts the files of an end where its configuration is."""
    for place, name in (("x509", f"{end}.crt"), ("private", f"{end}.key"), ("x509ca", "ca.crt")):
        os.makedirs(os.path.join(folder, place), mode=0o700, exist_ok=True)
        target = os.path.join(folder, place, name)
        if not os.path.exists(target):
            os.link(os.path.join(certified, end, place, name), target)


class Keying:
    """What the gateways of a topology are configured with."""

    def __init__(self, kind, mode, rate):
        self.kind, self.mode = kind, mode
        # Settings of each child: a constant rate, or none.
        self.child = {"mode": mode, **(paced.CHILD if rate else {})}
        self.secret = os.urandom(16).hex()

    def selectors(self, end, family):
        if self.mode == "tunnel":
            return {"local_ts": NETWORK[family][end], "remote_ts": NETWORK[family][OTHER[end]]}
        bits = {4: 32, 6: 128}[family]
        return {"local_ts": f"{OUTER[family][end]}/{bits}", "remote_ts": f"{OUTER[family][OTHER[end]]}/{bits}"}

    def tree(self, end, action="none", named=False, more=False, pools=None, child=None, connection=None, sa=None):
        """A configuration. `named`: the peer is given by name. `more`: with a policy for networks that occur nowhere
        else. `pools`: peers get addresses of pools, which are (not) there. The dictionaries are added to their sections."""
        own = {"gateway": {"tun": "weir0", "workers": 1}}
        if self.kind == "manual":
            tree = self._manual(end, sa or {})
            if more:
                tree["policies"]["more"] = {**MORE, "action": "drop"}
            return {**own, **tree}
        tree = self._connections(end, action, named, child or {}, connection or {})
        if pools is not None:
            # Any peer may come; it gets an address of the remote network.
            for family in FAMILIES:
                net = tree["connections"][f"net{family}"]
                net.update(remote_addrs="%any", pools=f"pool{family}" if pools else None)
                net["children"][f"c{family}"]["remote_ts"] = "dynamic"
            tree["pools"] = {f"pool{family}": {"addrs": POOL[family]} for family in FAMILIES if pools}
        if more:
            tree["connections"]["more"] = {
                **tree["connections"]["net4"], "remote_addrs": NO_HOST, "children": {"more": {**MORE, "start_action": "none"}}}
        return {**own, **tree}

    def _half(self, family, sender):
        spi = 0x1000 + 0x10 * family + (1 if sender == "gw" else 2)
        key = hashlib.sha512(f"{self.secret} {family} {sender}".encode()).hexdigest()[:72]
        return {"spi": hex(spi), "key": "0x" + key}

    def _manual(self, end, sa):
        sas, policies = {}, {}
        for family in FAMILIES:
            name = f"c{family}"
            sas[name] = {
                "protocol": "esp", "mode": self.mode, "suite": "aes256gcm16", "local": OUTER[family][end],
                "remote": OUTER[family][OTHER[end]], **sa, "out": self._half(family, end), "in": self._half(family, OTHER[end])}
            policies[name] = {**self.selectors(end, family), "sa": name}
        return {"sas": sas, "policies": policies}

    def _connections(self, end, action, named, child, connection):
        psp = self.kind == "psp"
        connections = {}
        for family in FAMILIES:
            own = {"protocol": "psp" if psp else None, "local_addrs": OUTER[family][end] if psp else None}
            certified = {"auth": "pubkey", "certs": f"{end}.crt"}
            connections[f"net{family}"] = {
                **own, "remote_addrs": NAME.format(family) if named else OUTER[family][OTHER[end]], "keyingtries": 0,
                **connection,
                "local": {**certified, "id": f"{end}.lab"} if psp else {"auth": "psk", "id": f"{end}{family}.lab"},
                "remote": {"auth": "pubkey", "id": f"{OTHER[end]}.lab"} if psp else
                          {"auth": "psk", "id": f"{OTHER[end]}{family}.lab"},
                "children": {f"c{family}": {**self.selectors(end, family), **self.child, "start_action": action,
                                            **child}}}
        if psp:
            return {"connections": connections}
        # An identity for each family: INITIAL_CONTACT of one IKE SA ends others of the same
        # identities (RFC 7296 §2.4).
        secrets = {f"ike-{family}": {"id-1": f"gw{family}.lab", "id-2": f"out{family}.lab", "secret": f'"{self.secret}"'}
                   for family in FAMILIES}
        return {"connections": connections, "secrets": secrets}
