"""A client that is no relative of strongSwan: aggressive mode with a group's key, XAuth, Mode Config, as Cisco has it."""

import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from gateway import Failed, Gateway  # noqa: E402
from shell import QUIET, sh, wait_for  # noqa: E402
from verdict import run_cases  # noqa: E402

SUITE, LAB = sys.argv[1:3]
SECRET, PASSWORD = "a secret for this laboratory only", "a password of this laboratory"
CLIENT = None


def network():
    """The gateway here, the client in a namespace of its own."""
    global CLIENT
    # pylint: disable=consider-using-with
    CLIENT = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    wait_for("a namespace", lambda: os.readlink(f"/proc/{CLIENT.pid}/ns/net") != os.readlink("/proc/self/ns/net"))
    sh(f"""{QUIET}
    ip link add wan type veth peer name wan netns {CLIENT.pid}
    ip addr add 192.0.2.1/24 dev wan
    ip addr add 10.1.0.1/32 dev lo
    ip link set wan up""")
    inside(f"""{QUIET}
    ip addr add 192.0.2.2/24 dev wan
    ip link set wan up""")


def inside(script, check=True):
    """Runs a script where the client is."""
    return sh(f"nsenter -t {CLIENT.pid} -n sh -ec '{script}'", check)


def tree(**more):
    """The configuration of the gateway."""
    connection = {
        "version": 1, "aggressive": True, "local_addrs": "192.0.2.1", "remote_addrs": "%any",
        "proposals": "aes256-sha1-modp2048", "pools": "clients",
        "local": {"auth": "psk", "id": "192.0.2.1"},
        "remote": {"auth": "psk", "id": "keyid:group"},
        "remote-2": {"auth": "xauth"},
        "children": {"net": {
            "local_ts": "0.0.0.0/0", "remote_ts": "dynamic", "esp_proposals": "aes256-sha1-modp2048-none", **more}},
    }
    return {
        "gateway": {"aggressive_mode_psk": True},
        "connections": {"net": connection},
        "secrets": {
            "ike-1": {"id-2": "keyid:group", "secret": f'"{SECRET}"'},
            "xauth-alice": {"id": "alice", "secret": f'"{PASSWORD}"'},
        },
        "pools": {"clients": {"addrs": "10.3.0.0/24", "dns": "10.1.0.53"}},
    }


class Client:
    """One run of vpnc; `output` is what it printed and the environment of its script."""

    def __init__(self, name, secret=SECRET, password=PASSWORD, **more):
        folder = os.path.join(LAB, name)
        self.log, self.given = os.path.join(folder, "vpnc.log"), os.path.join(folder, "given")
        script, config = os.path.join(folder, "script"), os.path.join(folder, "vpnc.conf")
        with open(script, "w", encoding="ascii") as file:
            file.write(f"""#!/bin/sh
                [ "$reason" = connect ] || exit 0
                ip addr add $INTERNAL_IP4_ADDRESS/32 dev $TUNDEV
                ip link set $TUNDEV up
                ip route add 10.1.0.0/16 dev $TUNDEV
                echo $INTERNAL_IP4_ADDRESS $INTERNAL_IP4_DNS >{self.given}.part && mv {self.given}.part {self.given}
                """)
        os.chmod(script, 0o755)
        settings = {
            "IPSec gateway": "192.0.2.1", "IPSec ID": "group", "IPSec secret": secret, "Xauth username": "alice",
            "Xauth password": password, "IKE DH Group": "dh14", "Perfect Forward Secrecy": "nopfs", "Script": script,
            "NAT Traversal Mode": "natt", "Pidfile": os.path.join(folder, "pid"), "Debug": 1, **more,
        }
        with open(os.open(config, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.writelines(f"{key} {value}\n" for key, value in settings.items())
        self.command = ["nsenter", "-t", str(CLIENT.pid), "-n", os.environ["VPNC"], config, "--no-detach"]

    def __enter__(self):
        with open(self.log, "w", encoding="ascii") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def __exit__(self, kind, error, trace):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(10)

    def output(self):
        with open(self.log, encoding="ascii", errors="replace") as log:
            return " ".join(log.read().split())[-400:]

    def up(self):
        """Waits for it, and returns the address and the resolver that it was given."""
        wait_for(self.output, lambda: os.path.exists(self.given) or self.process.poll() is not None)
        if self.process.poll() is not None:
            raise Failed(f"vpnc ended: {self.output()}")
        with open(self.given, encoding="ascii") as given:
            return given.read().split()


def connects(name, udp, pfs="nopfs", mode="natt", **child):
    """Up, packets both ways, and down by a Delete of the client."""
    with Gateway(os.path.join(LAB, name), tree(**child)) as gateway:
        with Client(name, **{"NAT Traversal Mode": mode, "Perfect Forward Secrecy": pfs}) as client:
            given = client.up()
            if given != ["10.3.0.1", "10.1.0.53"]:
                raise Failed(f"the client was given {given}")
            answered = wait_for(client.output, lambda: "0% packet loss" in inside(
                "ping -c 3 -i 0.2 -W 1 10.1.0.1", check=False))
            back = sh("ping -c 3 -i 0.2 -W 1 10.3.0.1", check=False)
            if not answered or " 0% packet loss" not in back:
                raise Failed(f"no answers from the client: {back}")
            log = " ".join(gateway.lines)
            if "XAuth of 'alice' succeeds" not in log or ("NAT here true" in log or "there true" in log) != udp:
                raise Failed(f"the log has other lines: {log[-600:]}")
            if not gateway.status()["sas"]:
                raise Failed("the status shows no SAs")
        wait_for("the end of the SAs", lambda: not gateway.status()["sas"], 10)


def refused(name, reason, **client_parts):
    """The client ends without an address: after a wrong password the server repeats its request, and there is no terminal to type at."""
    with Gateway(os.path.join(LAB, name), tree()) as gateway:
        with Client(name, **client_parts) as client:
            wait_for(lambda: f"vpnc goes on: {client.output()}", lambda: client.process.poll() is not None, 60)
            if os.path.exists(client.given):
                raise Failed("the client got an address")
            if reason not in client.output():
                raise Failed(f"vpnc printed: {client.output()}")
        if any("succeeds" in line for line in gateway.lines):
            raise Failed(gateway.last_words())


def case_client():
    connects("client", udp=False)


def case_client_in_udp():
    connects("client-in-udp", udp=True, mode="force-natt")


def case_client_with_pfs():
    connects("client-with-pfs", udp=False, pfs="dh14", esp_proposals="aes256-sha1-modp2048")


def case_wrong_password():
    refused("wrong-password", "unable to get password", password="another one")


def case_wrong_secret_of_the_group():
    refused("wrong-secret-of-the-group", "check group password", secret="another one")


if __name__ == "__main__":
    network()
    try:
        sys.exit(run_cases(SUITE, globals(), sys.argv[3:]))
    finally:
        CLIENT.kill()
