"""A bare Debian with Weir from packages, as a host of the network: chroot, dpkg, and the unit started as systemd would."""

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from gateway import Failed  # noqa: E402
from shell import sh  # noqa: E402

CLONE_NEWNET = 0x40000000
# What stands in for systemd's tools in the chroot: it writes down how it was called.
FAKE = """#!/bin/sh
echo "${0##*/} $*" >>/run/called
"""


def within(host):
    return ("nsenter", f"--net=/run/netns/{host}")


def udp_socket(host):
    """A socket in the network namespace of a host."""
    libc = ctypes.CDLL(None, use_errno=True)
    own, other = os.open("/proc/thread-self/ns/net", os.O_RDONLY), os.open(f"/run/netns/{host}", os.O_RDONLY)
    try:
        if libc.setns(other, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    finally:
        libc.setns(own, CLONE_NEWNET)
        os.close(own)
        os.close(other)


class Debian:
    """A copy of a bare root; programs in it run in the network namespace of a host."""

    def __init__(self, release, host):
        self.host, self.root = host, f"/run/root-{release}"
        bare = os.path.join(os.environ["BARE_ROOTS"], f"bare-{release}")
        if not os.path.exists(f"{bare}/usr/bin/dpkg"):
            raise FileNotFoundError(f"debootstrap cannot make {bare} (no mirror?)")
        sh(f"""mkdir -p {self.root} {self.root}.upper {self.root}.work
               mount -t overlay -o lowerdir={bare},upperdir={self.root}.upper,workdir={self.root}.work overlay {self.root} 2>/dev/null ||
                   cp -a {bare}/. {self.root}/
               mount -t proc proc {self.root}/proc
               mount -t tmpfs -o mode=0755 run {self.root}/run
               mount -t tmpfs -o mode=0755 dev {self.root}/dev
               mkdir {self.root}/dev/net
               for node in "null 1 3" "zero 1 5" "random 1 8" "urandom 1 9" "net/tun 10 200"; do
                   set -- $node; mknod -m 666 {self.root}/dev/$1 c $2 $3
               done""")
        # A running systemd, as far as maintainer scripts look.
        os.makedirs(f"{self.root}/run/systemd/system")
        for tool in ("systemctl", "systemd-tmpfiles"):
            with open(f"{self.root}/usr/local/bin/{tool}", "w", encoding="ascii") as file:
                file.write(FAKE)
            os.chmod(f"{self.root}/usr/local/bin/{tool}", 0o755)

    def run(self, *command, check=True):
        """Runs a program in it as root; returns its output."""
        done = subprocess.run([*within(self.host), "chroot", self.root, *command], capture_output=True, text=True, timeout=60,
                              check=False, env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"})
        if check and done.returncode != 0:
            raise Failed(f"{' '.join(command)}: status {done.returncode}: {done.stdout.strip()[-300:]} {done.stderr.strip()[-500:]}")
        return done.stdout + done.stderr

    def path(self, name):
        return self.root + name

    def dpkg(self, *arguments):
        """Runs dpkg; the file named last is put into the root."""
        *options, last = arguments
        if last.endswith(".deb"):
            sh(f"cp {last} {self.root}/run/")
            last = f"/run/{os.path.basename(last)}"
        return self.run("dpkg", *options, last)

    def calls(self):
        """How systemd's tools were called since the last question."""
        path = self.path("/run/called")
        lines = open(path, encoding="ascii").read().splitlines() if os.path.exists(path) else []
        if lines:
            os.remove(path)
        return lines

    def files(self):
        """Everything that a package may have changed, with owner and mode."""
        found = set()
        for top in ("etc", "usr", "var", "run"):
            for folder, folders, files in os.walk(self.path(f"/{top}")):
                for name in folders + files:
                    path = os.path.join(folder, name)
                    found.add(path[len(self.root):])
        # What dpkg writes about itself, and the copies that shadow makes.
        own = re.compile(r"^/var/(lib/dpkg|log|cache)(/|$)|^/etc/(passwd|shadow|group|gshadow|subuid|subgid)-?$|^/run/")
        return {path for path in found if not own.match(path)}


class Unit:
    """A unit of the package, started by its own words: user, capabilities, folders, ExecStart, watchdog."""

    def __init__(self, debian, name="weir.service"):
        self.debian, self.settings, self.notifications, self.lines = debian, {}, [], []
        with open(debian.path(f"/usr/lib/systemd/system/{name}"), encoding="utf-8") as file:
            for line in file:
                if "=" in line and not line.startswith("#"):
                    key, value = line.rstrip("\n").split("=", 1)
                    self.settings.setdefault(key, value)

    def start(self):
        words = self.settings
        user = words["User"]
        for kind, base in (("State", "/var/lib"), ("Runtime", "/run")):
            folder = f"{base}/{words[kind + 'Directory']}"
            self.debian.run("install", "-d", "-m", words[f"{kind}DirectoryMode"], "-o", user, "-g", words["Group"], folder)
        bound = lambda key: "-all," + ",".join("+" + name.lower().removeprefix("cap_") for name in words[key].split())  # noqa: E731
        path = self.debian.path("/run/notify")
        if os.path.exists(path):
            os.remove(path)
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(path)
        os.chmod(path, 0o666)
        seconds = int(words["WatchdogSec"].removesuffix("s"))
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET": "/run/notify",
                       "WATCHDOG_USEC": str(seconds * 1_000_000)}
        self.process = subprocess.Popen(
            [*within(self.debian.host), "chroot", self.debian.root, "setpriv", "--reuid", user, "--regid", words["Group"],
             "--init-groups", "--no-new-privs", "--inh-caps=" + bound("AmbientCapabilities"),
             "--ambient-caps=" + bound("AmbientCapabilities"), "--bounding-set=" + bound("CapabilityBoundingSet"),
             *words["ExecStart"].split()],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        threading.Thread(target=lambda: self.lines.extend(line.rstrip() for line in self.process.stdout), daemon=True).start()
        self.notifications = []
        threading.Thread(target=self._listen, args=(self.manager,), daemon=True).start()
        self.wait_for("READY=1")
        return self

    def _listen(self, manager):
        while True:
            try:
                text = manager.recv(256).decode("ascii")
            except OSError:
                return
            self.notifications.append((time.monotonic(), text))

    def wait_for(self, words, patience_s=20):
        deadline = time.monotonic() + patience_s
        while not any(text.startswith(words) for _, text in self.notifications):
            if self.process.poll() is not None:
                raise Failed(f"the unit ended with status {self.process.returncode}: {self.last_words()}")
            if time.monotonic() > deadline:
                raise Failed(f"no '{words}' within {patience_s} s, but {[text for _, text in self.notifications]}: {self.last_words()}")
            time.sleep(0.02)

    def last_words(self):
        return " | ".join(self.lines[-4:])

    def check_confined(self):
        """Every thread is of the user weir, and has the three capabilities and no way to others."""
        number = self.debian.run("id", "-u", "weir").strip()
        wanted = {"Uid": [number] * 4, "CapEff": ["0000000000003400"], "CapPrm": ["0000000000003400"],
                  "CapBnd": ["0000000000003400"], "NoNewPrivs": ["1"], "Seccomp": ["2"]}
        for thread in os.listdir(f"/proc/{self.process.pid}/task"):
            with open(f"/proc/{self.process.pid}/task/{thread}/status", encoding="ascii") as file:
                status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            wrong = {key: status[key] for key, value in wanted.items() if status[key].split() != value}
            if wrong:
                raise Failed(f"thread {status['Name']}: {wrong}")

    def stop(self):
        """As `systemctl stop`."""
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(int(self.settings["TimeoutStopSec"].removesuffix("s")))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failed(f"it did not stop: {self.last_words()}") from None
        self.manager.close()
        if status != 0:
            raise Failed(f"it ended with status {status}: {self.last_words()}")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
