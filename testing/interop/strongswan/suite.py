"""Runs scenarios, several at a time, each with hosts and daemons of its own; prints a line for each run.

Runs as the first process of its own namespaces (see run.sh): its end is the end of everything started here.
"""

import os
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
import ends  # noqa: E402
import net  # noqa: E402
import pki  # noqa: E402
from gateway import Failed  # noqa: E402
from hardship import Clock, Disk  # noqa: E402
from scenario import GUESTS, Run, Scenario  # noqa: E402
from uml import Guest, GuestHost  # noqa: E402

# Most of a scenario is waiting; of what is not, two cores carry this much.
JOBS = int(os.environ.get("JOBS", "4"))
ROOT = os.environ.get("STRONGSWAN_ROOT")
# strongSwan 6.0, the last one with IKEv1 in Debian.
V1_ROOT = os.environ.get("STRONGSWAN_V1_ROOT")
ROOTS = {"debian": None, "root": ROOT, "v1-root": V1_ROOT}
STANDS_AT = {"weir": os.environ.get("WEIR_END", "weir"), "peer": os.environ.get("PEER_END", "strongswan")}
# The kernel of a guest, by topology: that of the distribution, and one that has IP-TFS, which no
# distribution's has yet (scripts/iptfs-kernel.sh).
KERNELS = {"uml": "linux.uml", "uml-iptfs": os.environ.get("IPTFS_KERNEL", "")}
say_lock = threading.Lock()


def say(line):
    with say_lock:
        print(line, flush=True)


class Uml:
    """The wire to a guest, which is booted once; scenarios there come one after the other."""

    def __init__(self, lab, topology):
        self.network = net.Network(topology, "uml")
        weir = self.network.hosts["weir"]
        self.guest = Guest(os.path.join(lab, topology), HERE, "tap0", weir.within, KERNELS[topology])
        self.guest.must(f"""set -e
            ip link set lo up
            echo 1 >/proc/sys/net/ipv6/conf/vec0/addr_gen_mode
            ip link set vec0 up
            ip addr add {net.OUTER['peer']}/24 dev vec0
            ip addr add {net.OUTER6['peer']}/64 dev vec0 nodad
            ip addr add {net.INNER['peer']}/32 dev lo
            ip addr add {net.INNER6['peer']}/128 dev lo nodad
            ip route add default via {net.OUTER['weir']}""")
        self.network.hosts["peer"] = GuestHost(self.guest)
        self.usual = self.network.outer

    def wire(self, outer):
        """The network, with other addresses on the wire where a scenario requires them."""
        self.network.outer = outer or self.usual
        if outer:
            self.network.hosts["weir"].sh(f"ip addr replace {outer['weir']}/24 dev tap0")
            self.guest.must(f"ip addr replace {outer['peer']}/24 dev vec0")
        return self.network


class Suite:
    """Everything that the runs have in common."""

    def __init__(self, name, lab, scenarios):
        self.name, self.lab, self.scenarios = name, lab, scenarios
        self.failed = 0
        # By topology.
        self.guests = {}

    def missing(self, scenario, strongswan):
        """Why a scenario cannot run here with this strongSwan."""
        if "strongswan" in STANDS_AT.values():
            if strongswan == "root" and not ROOT:
                return "needs a newer strongSwan: scripts/peer-root.sh forky DIR, then STRONGSWAN_ROOT=DIR"
            if strongswan == "v1-root" and not V1_ROOT:
                return "needs strongSwan 6.0: scripts/peer-root.sh trixie DIR, then STRONGSWAN_V1_ROOT=DIR"
            why = ends.available(ROOTS[strongswan])
            if why:
                return why
        if scenario.topology.startswith(("nat", "lossy")) and not which("nft"):
            return "nft is not installed"
        if self.in_guest(scenario) and STANDS_AT["weir"] == "strongswan" and not ROOT:
            return "strongSwan of this machine has no raw ESP in user space"
        if scenario.topology == "uml-iptfs" and STANDS_AT["weir"] == "strongswan":
            return "strongSwan has IP-TFS in the kernel only"
        if self.in_guest(scenario) and scenario.topology == "uml" and not which("linux.uml"):
            return "linux.uml (user-mode-linux) is not installed"
        if self.in_guest(scenario) and scenario.topology == "uml-iptfs" and not os.access(KERNELS["uml-iptfs"], os.X_OK):
            return "needs a Linux kernel with IP-TFS: make iptfs-kernel, or IPTFS_KERNEL=FILE"
        return None

    def in_guest(self, scenario):
        return scenario.topology in GUESTS and STANDS_AT["peer"] == "strongswan"

    def end(self, actor, scenario, strongswan, network, folder):
        config = scenario.config(actor)
        host = network.hosts[actor]
        if STANDS_AT[actor] == "weir":
            weir = ends.Weir(actor, host, folder, config, scenario.gateway)
            weir.disk = Disk(folder, scenario.disk) if scenario.disk else None
            return weir
        root = ROOTS[strongswan]
        if self.in_guest(scenario) and actor == "peer":
            return ends.GuestCharon(actor, host, folder, config, self.guests[scenario.topology].guest, root, scenario.charon)
        if self.in_guest(scenario):
            root = ROOT
        return ends.Charon(actor, host, folder, config, root, scenario.charon)

    def run(self, scenario, name, initiator, strongswan):
        started = time.monotonic()
        folder = os.path.join(self.lab, name)
        os.makedirs(folder, exist_ok=True)
        guest, network, both, capture = self.in_guest(scenario), None, {}, None
        why, figures, under_way = None, [], None
        try:
            weirs = [actor for actor in net.OUTER if STANDS_AT[actor] == "weir"]
            topology = "direct" if scenario.topology in GUESTS else scenario.topology
            network = (self.guests[scenario.topology].wire(scenario.outer) if guest
                       else net.Network(name, topology, scenario.outer, weirs, scenario.mtu))
            capture = net.Capture(network.seen_at, network.device, os.path.join(folder, "wire.pcap"), scenario.captured)
            for actor in net.OUTER:
                both[actor] = self.end(actor, scenario, strongswan, network, os.path.join(folder, actor))
                both[actor].clock = Clock(self.lab, both[actor].folder) if scenario.clock else None
                self.certificates(scenario, actor, both[actor].folder)
                with open(os.path.join(both[actor].folder, "resolv.conf"), "w", encoding="ascii") as file:
                    file.write("nameserver 192.0.2.53\n")
            under_way = Run(scenario, initiator, network, both, capture, self.pki)
            if scenario.server:
                under_way.server("on")
            for actor in net.OUTER:
                both[actor].start()
            under_way.go()
            figures = under_way.figures
        except Failed as wrong:
            why = str(wrong)
        except Exception as error:  # A line for this run, and the others go on.
            why = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        finally:
            for end in both.values():
                if end.disk:
                    end.disk.make_room()
                    end.disk.log(os.path.join(folder, f"{end.actor}.log"))
                if not end.stop() and why is None and end.kind == "weir":
                    why = f"{end.actor} did not end in order: {end.last_words()}"
            if scenario.server and under_way:
                under_way.server("off")
            if capture:
                capture.stop()
            if network and not guest:
                network.remove()
        took = time.monotonic() - started
        if why:
            self.failed += 1
            say(f"FAIL {self.name}/{name}: {' '.join(why.split())}")
        else:
            say(f"PASS {self.name}/{name} ({took:.1f} s){': ' if figures else ''}{'; '.join(figures)}")

    def certificates(self, scenario, actor, folder):
        own = scenario.certificates.get(actor, [])
        trusted = {pki.NAMES[name] for name in scenario.certificates.get(net.OTHER[actor], [])}
        # A client of EAP-TLS is asked for its certificate by the CA of the server.
        self.pki.install(folder, actor, own, trusted | {pki.NAMES[name] for name in own}, scenario.crl)

    def lane(self, topology, runs):
        """The runs in a guest, in order."""
        if not runs:
            return
        try:
            self.guests[topology] = Uml(self.lab, topology)
        except Exception as error:  # A line for these runs, and the others go on.
            self.failed += 1
            say(f"FAIL {self.name}/{topology}: {len(runs)} not run: {type(error).__name__}: {' '.join(str(error).split())}")
            return
        for scenario, run in runs:
            self.run(scenario, *run)

    def main(self, named):
        ready = []
        for scenario in self.scenarios:
            for kind in scenario.peers() if "strongswan" in STANDS_AT.values() else scenario.peers()[:1]:
                why = self.missing(scenario, kind)
                if scenario.pending and not named:
                    why = f"pending: {scenario.pending}"
                runs = [run for run in scenario.runs() if run[2] == kind]
                if why:
                    say(f"SKIP {self.name}/{scenario.name if len(scenario.peers()) == 1 else runs[0][0]}: {why}")
                else:
                    ready += [(scenario, run) for run in runs]
        if not ready:
            return 0
        net.sh("mount --make-rprivate / && mount -t tmpfs -o mode=0755 lab /run && mkdir /run/netns && ip link set lo up")
        # Names are those of the step `name` alone: a request for DNS would be on the wire in the
        # clear.
        net.sh("cp /etc/hosts /run/hosts && mount --bind /run/hosts /etc/hosts && echo hosts: files > /run/nsswitch.conf && chmod 644 /run/hosts /run/nsswitch.conf "
               "&& mount --bind /run/nsswitch.conf /etc/nsswitch.conf")
        self.pki = pki.Pki(os.path.join(self.lab, "pki"))
        if "strongswan" in STANDS_AT.values():
            ends.Charon.program = ends.unconfined(self.lab)
        with ThreadPoolExecutor(JOBS) as pool:
            lanes = [pool.submit(self.lane, topology, [(scenario, run) for scenario, run in ready
                                                       if self.in_guest(scenario) and scenario.topology == topology])
                     for topology in GUESTS]
            # The long ones first, so that none is left alone at the end.
            for scenario, run in sorted(ready, key=lambda both: -len(both[0].steps)):
                if not self.in_guest(scenario):
                    lanes.append(pool.submit(self.run, scenario, *run))
        # An exception of a thread is raised here, so that no run is missing without an error.
        for lane in lanes:
            lane.result()
        return 1 if self.failed else 0


def which(tool):
    return any(os.access(os.path.join(folder, tool), os.X_OK) for folder in os.environ["PATH"].split(":"))


def main():
    name, lab, *names = sys.argv[1:]
    os.umask(0o077)
    own, *others = [os.path.join(folder, "scenarios") for folder in os.environ.get("SCENARIOS", HERE).split(":")]
    known = {entry: os.path.join(folder, entry) for folder in (*others, own) for entry in sorted(os.listdir(folder))}
    unknown = set(names) - set(known)
    if unknown:
        print(f"FAIL {name}/all: there is no scenario {', '.join(sorted(unknown))}")
        return 1
    try:
        scenarios = [Scenario.load(known[entry]) for entry in names or known]
        if not names:
            scenarios = [scenario for scenario in scenarios if scenario.folder.startswith(own) or scenario.two_weirs]
        return Suite(name, lab, scenarios).main(bool(names))
    except Exception as error:
        if not isinstance(error, (Failed, ValueError, TypeError, OSError)):
            traceback.print_exc()
        print(f"FAIL {name}/all: {error}")
        return 1


sys.exit(main())
