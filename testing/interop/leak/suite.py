"""Topology by topology: a gateway, its peer, and what happens to them while probes and spoofed packets go on.

Runs as the first process of its own namespaces (see run.sh): its end is the end of everything started here.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

sys.dont_write_bytecode = True
import keying  # noqa: E402
from paced import Paced  # noqa: E402
from net import FAMILIES, MOVED, OUTER, OUTER_PREFIX, Failed, Hosts, sh, wait_for  # noqa: E402
from traffic import PERIOD_S, Traffic  # noqa: E402
from gateway import WEIR, Gateway, settings  # noqa: E402

TABLE = "30565"
# Paced: IKE, with a constant rate of IP-TFS.
TOPOLOGIES = [("paced", "tunnel")] + [(kind, mode) for kind in ("manual", "ike", "psp") for mode in ("tunnel", "transport")]
# Most of a topology is waiting.
JOBS = int(os.environ.get("JOBS", "3"))
# How long an end may take for what it does by itself; other work may have the processors.
PATIENCE_S = 25
# How long probes go on in a state that is to be looked at.
LOOK_S = 0.5
# Reloads under a flood.
ROUNDS = 10
GUARDS = ("rule", "routes", "nft-in", "nft-out")
HOSTS_FILE = "127.0.0.1 localhost\n"


class End(Gateway):
    """`weir up` of one end."""

    def __init__(self, hosts, name, folder, tree):
        super().__init__(os.path.join(folder, name), tree)
        self.within = hosts.within(name)
        self.hosts, self.name = hosts, name

    def _read(self):
        super()._read()
        with open(os.path.join(os.path.dirname(self.config), "weir.log"), "a", encoding="utf-8") as log:
            log.write("".join(f"{line}\n" for line in self.lines))

    def start(self):
        self.__enter__()

    def stop(self):
        self.__exit__(None, None, None)

    def signal(self, number):
        self._process.send_signal(number)

    def alive(self):
        return self._process is not None and self._process.poll() is None

    def ended(self):
        """Waits until it has ended by itself."""
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"weir up did not end: {self.last_words()}") from None
        self._killed = True

    def configure(self, tree):
        """Writes another configuration, for a reload."""
        own = {"state_dir": os.path.join(os.path.dirname(self.config), "state"), "socket": self.socket}
        with open(self.config, "w", encoding="ascii") as file:
            file.write(settings({**tree, "gateway": {**own, **tree.get("gateway", {})}}))

    def count(self, words):
        return sum(words in line for line in self.lines)

    def reload(self, words="reloaded"):
        before = self.count(words)
        self.signal(signal.SIGHUP)
        wait_for(lambda: f"no '{words}' after SIGHUP: {self.last_words()}", lambda: self.count(words) > before)

    def weir(self, *arguments):
        """One of the commands that use the control socket."""
        done = subprocess.run([*self.within, WEIR, *arguments, "--socket", self.socket], capture_output=True, text=True,
                              timeout=60, check=False)
        if done.returncode != 0:
            raise Failed(f"weir {' '.join(arguments)}: {(done.stderr or done.stdout).strip()[-300:]}")
        return done.stdout

    def open_up(self):
        """`weir down`: removes what a stopped gateway left."""
        done = subprocess.run([*self.within, WEIR, "down", "--config", self.config], capture_output=True, text=True,
                              timeout=60, check=False)
        if done.returncode != 0:
            raise Failed(f"weir down: {(done.stderr or done.stdout).strip()[-300:]}")

    def thread(self, name):
        """Number of a thread. Packet threads are called weir-0, weir-1 and so on."""
        tasks, names = f"/proc/{self.pid}/task", []
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/comm", encoding="ascii") as file:
                names.append(file.read().strip())
            if names[-1] == name:
                return int(task)
        raise Failed(f"no thread {name} among {names}")


class Topology(Paced):
    """One kind of keying in one mode, over IPv4 and IPv6 at once. The methods event_… are its cells, in this order."""

    def __init__(self, kind, mode, lab, wanted):
        self.name, self.rate = f"{kind}-{mode}", kind == "paced"
        kind = "ike" if self.rate else kind
        self.kind, self.mode, self.wanted = kind, mode, wanted
        self.folder = os.path.join(lab, self.name)
        self.keying = keying.Keying(kind, mode, self.rate)
        self.hosts = Hosts(self.name)
        self.traffic = Traffic(self.hosts, mode)
        # Names of cells by number, faults by number and family, cells in which clear text is
        # wanted.
        self.cells, self.faults, self.wanted_clear = [], {}, set()
        self.gw = self.out = None
        for end in keying.OTHER:
            os.makedirs(os.path.join(self.folder, end), exist_ok=True)
            if kind == "psp":
                keying.install(os.path.join(lab, "pki"), os.path.join(self.folder, end), end)
        self.names(True)

    # Helpers.

    def fault(self, cell, why, families=FAMILIES):
        for family in families:
            self.faults.setdefault((cell, family), []).append(why)

    def judge(self):
        """From now on packets are those of the present cell: what was sent before is not counted for it."""
        self.traffic.cell = len(self.cells)

    def unjudged(self):
        """From now on packets are those of no cell; the packets of the one before have been sent."""
        self.traffic.cell = 0
        time.sleep(2 * PERIOD_S)

    @contextlib.contextmanager
    def cell(self, name, judged=True):
        """Attributes everything meanwhile to a cell; a failure is that of the cell, and the next one finds ends that run."""
        self.cells.append(name)
        number = len(self.cells)
        if judged:
            self.traffic.cell = number
        try:
            yield
        except (Failed, OSError, subprocess.SubprocessError) as why:
            self.fault(number, str(why))
            self.recover()
        self.unjudged()

    def recover(self):
        """Restarts both ends after a cell that failed."""
        for end in (self.gw, self.out):
            if end is not None and end.alive():
                end.signal(signal.SIGCONT)
                end.kill()
        self.hosts.at("gw", f"ip addr del {MOVED[4]}/24 dev wire; ip addr del {MOVED[6]}/64 dev wire", check=False)
        self.move(MOVED, OUTER_OF_GW)
        self.names(True)
        try:
            self.peer()
            self.up("start")
        except (Failed, OSError, subprocess.SubprocessError):
            # The next cell reports it.
            pass

    def names(self, resolvable):
        """Whether the name of the peer has an address: what /etc/hosts contains in the mount namespace of this topology."""
        lines = [f"{OUTER[family]['out']} {keying.NAME.format(family)}\n" for family in FAMILIES] if resolvable else []
        with open("/etc/hosts", "w", encoding="ascii") as file:
            file.write(HOSTS_FILE + "".join(lines))

    def peer(self, **options):
        """Starts the peer, instead of the one that runs."""
        if self.out is not None and self.out.alive():
            self.out.stop()
        self.out = End(self.hosts, "out", self.folder, self.keying.tree("out", **options))
        self.out.start()

    def up(self, action="start", **options):
        """Starts the gateway, instead of the one that runs."""
        self.down()
        self.gw = End(self.hosts, "gw", self.folder, self.keying.tree("gw", action, **options))
        self.gw.start()

    def down(self):
        if self.gw is not None and self.gw.alive():
            self.gw.stop()

    def passing(self, more=5):
        """Waits until so many more datagrams of each kind have arrived; reports which families and kinds did not."""
        cell = len(self.cells)
        before = {family: self.traffic.arrivals(family) for family in FAMILIES}

        def missing():
            return {family: "".join(kind for kind, count in self.traffic.arrivals(family).items()
                                    if count < before[family][kind] + more) for family in FAMILIES}

        deadline = time.monotonic() + PATIENCE_S
        while any(missing().values()) and time.monotonic() < deadline and not self.traffic.failure:
            time.sleep(0.03)
        failed = False
        for family, kinds in missing().items():
            if kinds:
                failed = True
                self.fault(cell, f"no protected traffic of kinds {kinds} within {PATIENCE_S} s", [family])
        if failed:
            raise Failed(f"gateway: {self.gw.last_words()}; peer: {self.out.last_words()}"[:400])

    def abort(self, thread):
        """Aborts a thread of the gateway, and the process with it."""
        task = self.gw.thread(thread)
        subprocess.run([*self.gw.within, "/usr/bin/python3", "-c",
                        f"import ctypes; ctypes.CDLL(None).syscall(234, {self.gw.pid}, {task}, {int(signal.SIGABRT)})"],
                       check=True)
        self.gw.ended()

    def look(self, seconds=LOOK_S):
        time.sleep(seconds)

    def move(self, old, new):
        """Gives the gateway's interface other addresses."""
        for family in FAMILIES:
            flag, prefix = ("-6", OUTER_PREFIX[family]) if family == 6 else ("-4", OUTER_PREFIX[family])
            nodad = "nodad" if family == 6 else ""
            self.hosts.at("gw", f"""ip {flag} addr replace {new[family]}/{prefix} dev wire {nodad}
                                    ip {flag} addr del {old[family]}/{prefix} dev wire || true""")
        self.hosts.default_routes()

    def remove(self, guards):
        """Takes guards out of the system as an administrator would."""
        if "rule" in guards:
            self.hosts.at("gw", f"ip rule del pref {TABLE}; ip -6 rule del pref {TABLE}", check=False)
        if "routes" in guards:
            self.hosts.at("gw", f"ip route flush table {TABLE}; ip -6 route flush table {TABLE}", check=False)
        for guard, hooks in (("nft-in", ("prerouting", "input", "ingress")), ("nft-out", ("forward", "output", "postrouting"))):
            if guard in guards:
                for family, table, chain in self.chains(hooks):
                    self.hosts.at("gw", f"nft flush chain {family} {table} {chain}")

    def chains(self, hooks):
        """Base chains at these hooks, in any table: the gateway's namespace has no others than Weir's."""
        listing = json.loads(self.hosts.at("gw", "nft -j list ruleset") or "{}")
        return [(item["chain"]["family"], item["chain"]["table"], item["chain"]["name"]) for item in listing.get("nftables", [])
                if item.get("chain", {}).get("hook") in hooks]

    def sas(self):
        return [sa for sa in self.gw.status()["sas"] if sa["direction"] == "out"]

    # Cells.

    def sees(self, name, left, accepted):
        """A cell in which clear text is wanted: the kinds `left` outside, the kinds `accepted` inside and at the peer."""
        self.cells.append(name)
        number = self.traffic.cell = len(self.cells)
        self.wanted_clear.add(number)

        def missing(family):
            seen = {kind for cell, kind, of in list(self.traffic.clear) if (cell, of) == (number, family)}
            taken = {kind for cell, kind, of, _ in list(self.traffic.received) if (cell, of) == (number, family)}
            return "".join(sorted(set(left) - seen)), "".join(sorted(set(accepted) - taken))

        deadline = time.monotonic() + PATIENCE_S
        while any(any(missing(family)) for family in FAMILIES) and time.monotonic() < deadline:
            time.sleep(0.03)
        self.unjudged()
        for family in FAMILIES:
            if any(missing(family)):
                self.fault(number, "not seen outside: kinds '{}', not received: '{}'".format(*missing(family)), [family])

    def event_the_capture_sees_clear_text(self):
        """Without any gateway: clear text leaves and is accepted, in each way that the other cells look for."""
        self.sees("the-capture-sees-clear-text",
                  *{"tunnel": ("LGB", "AaLGRrB"), "transport": ("G", "aGr")}[self.mode])

    def event_start(self):
        with self.cell("start", judged=False):
            self.peer()
            self.up("start")
            self.judge()
            self.passing()

    def event_reload(self):
        """The same, a changed and a wrong configuration."""
        with self.cell("reload"):
            self.gw.reload()
            changed = {"sa": {"hop_limit": 17}} if self.kind == "manual" else {"child": {"replay_window": 2048}}
            self.gw.configure(self.keying.tree("gw", "start", **changed))
            self.gw.reload()
            self.passing()
            self.gw.configure({"connections": {"net4": {"nonsense": "yes"}}})
            self.gw.reload("configuration unchanged")
            self.gw.configure(self.keying.tree("gw", "start"))
            self.gw.reload()
            self.passing()

    def event_policies(self):
        """Policies of other networks come and go, and routes and packet filter with them, under a flood of spoofed packets."""
        with self.cell("policies"):
            for turn in range(ROUNDS):
                reloaded = self.gw.count("reloaded")
                self.gw.configure(self.keying.tree("gw", "start", more=turn % 2 == 0))
                self.gw.signal(signal.SIGHUP)
                deadline = time.monotonic() + PATIENCE_S
                while self.gw.count("reloaded") == reloaded and time.monotonic() < deadline:
                    self.traffic.flood(1000)
            self.passing()

    def event_rekey(self):
        if self.kind == "manual":
            return
        with self.cell("rekey"):
            for _ in range(2):
                for family in FAMILIES:
                    self.gw.weir("rekey", "--child", f"c{family}")
                self.passing()
            if self.kind == "ike":
                for family in FAMILIES:
                    self.gw.weir("rekey", "--connection", f"net{family}")
                self.passing()

    def event_address_change(self):
        """The outer addresses go to others of the same network, and come back."""
        with self.cell("address-change"):
            self.move(OUTER_OF_GW, MOVED)
            if (self.kind, self.mode) == ("ike", "tunnel"):
                self.passing()
            else:
                self.look()
            self.move(MOVED, OUTER_OF_GW)
            self.passing()

    def event_route_flush(self):
        """Rule and routes are removed: the packet filter holds until the gateway has made them again."""
        with self.cell("route-flush"):
            self.remove(("rule", "routes"))
            self.passing()

    def event_nft_flush(self):
        """`nft flush ruleset`: until the gateway has made its table again, routes alone hold back what leaves."""
        with self.cell("nft-flush", judged=False):
            if not self.chains(("prerouting",)):
                raise Failed("there is no packet filter to flush")
            self.hosts.at("gw", "nft flush ruleset")
            wait_for("the table of the gateway is not there again", lambda: self.chains(("prerouting",)))
            self.judge()
            self.look()
            self.passing()

    def event_kill(self):
        with self.cell("kill"):
            self.gw.kill()
            self.look()
            self.up("start")
            self.passing()

    def event_stop_start(self):
        with self.cell("stop-start"):
            self.gw.stop()
            self.look()
            self.up("start")
            self.passing()

    def event_device_deleted(self):
        with self.cell("device-deleted"):
            self.hosts.at("gw", "ip link del weir0")
            self.gw.ended()
            self.look()
            self.up("start")
            self.passing()

    def event_worker_fault(self):
        """A packet thread stops for a while; then it aborts, and the process with it."""
        with self.cell("worker-fault"):
            self.gw.signal(signal.SIGSTOP)
            self.look()
            self.gw.signal(signal.SIGCONT)
            self.passing()
            self.abort("weir-0")
            self.look()
            self.up("start")
            self.passing()

    def event_trap(self):
        if self.kind == "manual":
            return
        with self.cell("trap"):
            self.up("trap")
            self.passing()

    def event_name_at_start(self):
        if self.kind == "manual":
            return
        with self.cell("name-at-start"):
            self.names(False)
            self.up("trap", named=True)
            self.look()
            self.names(True)
            self.gw.reload()
            self.passing()

    def event_name_at_reload(self):
        if self.kind == "manual":
            return
        with self.cell("name-at-reload"):
            self.up("trap", named=True)
            self.passing()
            self.names(False)
            self.gw.reload()
            self.look()
            self.names(True)
            self.gw.reload()
            self.passing()

    def event_no_sa(self):
        """`start_action = none`, and the peer does not initiate; then it does, and ends the SA."""
        if self.kind == "manual":
            return
        with self.cell("no-sa"):
            self.up("none")
            self.look()
            for family in FAMILIES:
                self.out.weir("initiate", f"c{family}")
            self.passing()
        with self.cell("closed-by-peer"):
            for family in FAMILIES:
                self.out.weir("terminate", "--connection" if self.kind == "ike" else "--child",
                              f"net{family}" if self.kind == "ike" else f"c{family}")
            self.look()

    def event_drain(self):
        """`weir drain`: neither packets nor the peer bring up an SA until a restart; manual SAs end as if expired."""
        with self.cell("drain"):
            self.up("trap")
            self.passing()
            self.gw.weir("drain", "--timeout", "10")
            self.look()
            if self.kind == "manual":
                wait_for("a drained gateway has SAs", lambda: all(sa["drops"].get("expired") for sa in self.sas()))
            else:
                wait_for("a drained gateway has SAs", lambda: not self.sas())
            self.look()
            self.gw.stop()
            self.up("trap")
            self.passing()

    def event_peer_killed(self):
        """The peer is killed, and declared dead where that can be; then it is started again and initiates."""
        quick = {"dpd_delay": "1s", "retransmit_timeout": "1", "retransmit_base": "1", "retransmit_tries": 2}
        with self.cell("peer-killed"):
            if self.kind == "ike":
                self.up("none", connection=quick)
                for family in FAMILIES:
                    self.out.weir("initiate", f"c{family}")
                self.passing()
            elif self.kind == "psp":
                self.up("start")
                self.passing()
            self.out.kill()
            if self.kind == "ike":
                wait_for("the peer is not declared dead", lambda: not self.sas())
            self.look()
            self.peer(action="start")
            self.passing()

    def event_expired(self):
        """The life of the SAs is over and nothing replaces them."""
        if self.kind == "psp":
            return
        with self.cell("expired"):
            if self.kind == "manual":
                self.up(sa={"life_time": "2s"})
            else:
                self.up("none", child={"life_time": "2s", "rekey_time": "0"}, connection={"rekey_time": "0"})
                for family in FAMILIES:
                    self.out.weir("initiate", f"c{family}")
            self.passing()
            if self.kind == "ike":
                wait_for("the SAs do not expire", lambda: not self.sas())
            else:
                wait_for("the SAs do not expire", lambda: all(sa["drops"].get("expired") for sa in self.sas()))
            self.look()

    def event_pool(self):
        """Peers get addresses of a pool, and none has one: what is for them is closed until the pool is unloaded."""
        if (self.kind, self.mode) != ("ike", "tunnel"):
            return
        with self.cell("pool-without-sa", judged=False):
            self.up("none", pools=True)
            self.judge()
            self.look()
            self.unjudged()
            self.gw.configure(self.keying.tree("gw", "none", pools=False))
            self.gw.reload()
        self.sees("pool-unloaded", "LG", "Aa")

    def event_guards(self):
        """Each guard is needed: a killed gateway leaves them, and they are removed one after the other."""
        left, accepted = {"tunnel": ("LG", "Aa"), "transport": ("G", "a")}[self.mode]
        with self.cell("routes-alone-hold-back", judged=False):
            self.up("start")
            self.passing()
            self.gw.kill()
            self.remove(("nft-out",))
            self.judge()
            self.look()
        self.remove(("rule",))
        self.sees("routes-and-nft-out-are-needed", left, "")
        self.remove(("nft-in",))
        self.sees("nft-in-is-needed", "", accepted)

    def event_down(self):
        """`weir down` after a stop removes every guard: clear text leaves again, and is accepted."""
        left, accepted = {"tunnel": ("LG", "Aa"), "transport": ("G", "a")}[self.mode]
        # The cell before has removed the guards.
        with self.cell("closed-before-weir-down", judged=False):
            self.up("start")
            self.judge()
            self.passing()
            self.gw.stop()
            self.look()
            self.unjudged()
            self.gw.open_up()
        self.sees("weir-down-opens", left, accepted)

    # The whole.

    def events(self):
        names = [*vars(Topology), *(vars(Paced) if self.rate else ())]
        return [(name[6:].replace("_", "-"), getattr(self, name)) for name in names if name.startswith("event_")]

    def run(self):
        self.traffic.start()
        try:
            for name, event in self.events():
                needed = not self.wanted or any(part in name for part in self.wanted)
                if needed or name in ("start",):
                    event()
        finally:
            for end in (self.gw, self.out):
                with contextlib.suppress(Exception):
                    if end is not None and end.alive():
                        end.signal(signal.SIGCONT)
                        end.kill()
            self.traffic.finish()

    def run_without(self, guards):
        """One cell: a killed gateway whose guards are removed."""
        self.traffic.start()
        with self.cell(f"without-{'-'.join(guards)}", judged=False):
            self.peer()
            self.up("start")
            self.passing()
            self.gw.kill()
            self.remove(guards)
            self.judge()
            self.look(1)
        self.out.kill()
        self.traffic.finish()

    def report(self):
        """Prints a line for each cell and family; returns the number of failures."""
        failures = 0
        for number, name in enumerate(self.cells, 1):
            for family in FAMILIES:
                why = list(self.faults.get((number, family), []))
                if number not in self.wanted_clear:
                    why += self.traffic.leaks(number, family)
                if self.traffic.failure:
                    why.append(f"the traffic stopped: {self.traffic.failure}")
                if self.traffic.lost:
                    why.append(f"the capture lost {self.traffic.lost} packets")
                failures += bool(why)
                line = f"leak/{self.name}-ipv{family}-{name}"
                print(f"FAIL {line}: {' '.join('; '.join(why).split())[:700]}" if why else f"PASS {line}", flush=True)
        return failures


OUTER_OF_GW = {family: OUTER[family]["gw"] for family in FAMILIES}


def one(kind, mode, lab, arguments):
    """One topology, in a process and mount namespace of its own."""
    hosts = os.path.join(lab, f"{kind}-{mode}.hosts")
    with open(hosts, "w", encoding="ascii") as file:
        file.write(HOSTS_FILE)
    resolv = hosts.replace(".hosts", ".resolv")
    with open(resolv, "w", encoding="ascii") as file:
        # Nothing listens there: names that /etc/hosts does not contain fail at once.
        file.write("nameserver 127.0.0.1\noptions attempts:1 timeout:1\n")
    sh(f"mount --bind {hosts} /etc/hosts; mount --bind {resolv} /etc/resolv.conf")
    guards = arguments[0][len("--without="):].split(",") if arguments[:1] and arguments[0].startswith("--without=") else None
    topology = Topology(kind, mode, lab, [] if guards else arguments)
    try:
        if guards:
            topology.run_without(guards)
        else:
            topology.run()
    except Exception:  # What was seen until then is reported, too.
        topology.fault(max(1, len(topology.cells)), traceback.format_exc(limit=-3))
        topology.cells = topology.cells or ["all"]
    return 1 if topology.report() else 0


def main():
    lab, *wanted = sys.argv[1:]
    if wanted[:1] == ["--one"]:
        return one(*wanted[1:3], lab, wanted[3:])
    if wanted[:1] == ["--without"]:
        unknown = set(wanted[1].split(",")) - set(GUARDS) if len(wanted) > 1 else {"nothing"}
        if unknown:
            print(f"FAIL leak/all: --without {','.join(sorted(unknown))}: use some of {','.join(GUARDS)}")
            return 1
        wanted = [f"--without={wanted[1]}", *wanted[2:]]
    options, parts = [w for w in wanted if w.startswith("--")], [w for w in wanted if not w.startswith("--")]
    chosen = [pair for pair in TOPOLOGIES if any(part in "-".join(pair) for part in parts)] or TOPOLOGIES
    events = [part for part in parts if not any(part in "-".join(pair) for pair in TOPOLOGIES)]
    try:
        sh("mount --make-rprivate / && mount -t tmpfs -o mode=0755 lab /run && mkdir -p /run/netns")
        keying.certificates(os.path.join(lab, "pki"))
    except (Failed, OSError) as error:
        print(f"FAIL leak/all: {error}")
        return 1

    def run(pair):
        command = ["unshare", "--mount", "/usr/bin/python3", "-u", __file__, lab, "--one", *pair, *options, *events]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        print(done.stdout, end="", flush=True)
        return done.returncode

    with ThreadPoolExecutor(JOBS) as pool:
        codes = list(pool.map(run, chosen))
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
