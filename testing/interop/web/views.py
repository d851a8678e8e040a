"""Two gateways with manual keys, IKE and PSP between them, a browser on one of them, and a terminal."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "daemon"))
import lab  # noqa: E402
from lab import OUTER, WEIR, Failed, Keys, Weir, at, wait_for, within  # noqa: E402
import pyte  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

PORT = 9791
URL = f"http://127.0.0.1:{PORT}"
NAMES = ["gcm", "eesp"]
SECRET = "0s" + "d2Vpcg=="


def connection(host, remote, start, number):
    """An IKE connection of sun; moon only answers."""
    nets = {"sun": f"10.9.{number}.0/25", "moon": f"10.9.{number}.128/25"}
    other = lab.PEER[host]
    return {
        "remote_addrs": remote, "local_addrs": OUTER[host], "version": 2, "keyingtries": 0,
        "local": {"auth": "psk", "id": f"{host}.example"}, "remote": {"auth": "psk", "id": f"{other}.example"},
        "children": {"net": {"local_ts": nets[host], "remote_ts": nets[other], "esp_proposals": "aes256gcm16",
                             "start_action": "start" if start else "none"}},
    }


def trees(keys, more=0):
    """The configurations of sun and moon; `more` connections of sun that wait for a command."""
    sun, moon = keys.tree("sun", NAMES, web=f"127.0.0.1:{PORT}", workers=2), keys.tree("moon", NAMES)
    sun["connections"] = {"office": connection("sun", OUTER["moon"], True, 1),
                          "lake": connection("sun", "192.0.2.99", True, 2)}
    for number in range(more):
        name = f"site-{number:04}"
        sun["connections"][name] = connection("sun", f"198.18.{number // 250}.{number % 250 + 1}", False, 3)
        nets = {"local_ts": f"10.{64 + number // 250}.{number % 250}.0/25",
                "remote_ts": f"10.{64 + number // 250}.{number % 250}.128/25"}
        sun["connections"][name]["children"]["net"].update(nets)
    moon["connections"] = {"office": connection("moon", OUTER["sun"], False, 1)}
    for tree in (sun, moon):
        tree["secrets"] = {"ike-office": {"secret": SECRET}}
    return sun, moon


@contextlib.contextmanager
def gateways(where, more=0):
    """moon and sun; `office` is up on return."""
    sun, moon = trees(Keys(), more)
    with Weir("moon", where, moon) as moon, Weir("sun", where, sun) as sun:
        wait_for("office up", lambda: state(sun, "office") == "up")
        yield sun, moon


def state(gateway, name):
    return next(entry["state"] for entry in gateway.status()["connections"] if entry["name"] == name)


def login(sun):
    """The address that `weir web` prints."""
    done = subprocess.run([WEIR, "web", sun.config], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"weir web: {done.stderr.strip()}")
    return done.stdout.strip()


def http(path, *options):
    """Status, header fields in lower case and body of a request on sun."""
    text = at("sun", ["curl", "-s", "-i", "--max-time", "10", *options, URL + path])
    head, _, body = text.replace("\r\n", "\n").partition("\n\n")
    lines = head.split("\n")
    fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    return int((lines[0].split() + ["0", "0"])[1]), fields, body


@contextlib.contextmanager
def browser(where, **options):
    """A page of Chromium on sun. Requests for other hosts end up in `page.strangers`."""
    home = os.path.join(where, "home")
    os.makedirs(home, exist_ok=True)
    start = os.path.join(where, "chromium-on-sun")
    with open(start, "w", encoding="ascii") as file:
        file.write(f'#!/bin/sh\nexport HOME={home}\nexec {" ".join(within("sun"))} chromium "$@"\n')
    os.chmod(start, 0o755)
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=start, args=["--no-sandbox", "--disable-dev-shm-usage"])
        context = chromium.new_context(**options)
        page = context.new_page()
        page.strangers, page.faults = [], []

        def watch(request):
            if not request.url.startswith((URL + "/", "data:")):
                page.strangers.append(request.url)

        page.on("request", watch)
        page.on("console", lambda line: page.faults.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        try:
            yield page
        finally:
            context.close()
            chromium.close()


class Terminal:
    """A program in a pseudo-terminal, and what its screen shows."""

    def __init__(self, *command, size=(24, 80), env=None):
        self.rows, self.columns = size
        self.screen = pyte.Screen(self.columns, self.rows)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, self.columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave, self.master = slave, master
        own = {"TERM": "xterm-256color", "LANG": "C.UTF-8", **(env or {})}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, **own}, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def read(self, seconds=0.1):
        """Takes in what the program writes."""
        until = time.monotonic() + seconds
        while select.select([self.master], [], [], max(0, until - time.monotonic()))[0]:
            data = os.read(self.master, 65536)
            self.raw += data
            self.stream.feed(data)

    def text(self):
        self.read()
        return "\n".join(line.rstrip() for line in self.screen.display)

    def shows(self, *words, patience_s=8):
        """Waits until the screen has all these words."""
        wait_for(lambda: f"{words} on the screen, which has\n{self.text()}",
                 lambda: all(word in self.text() for word in words), patience_s)

    def press(self, keys):
        os.write(self.master, keys.encode())

    def ended(self, patience_s=5):
        """Exit status."""
        deadline = time.monotonic() + patience_s
        while self.process.poll() is None:
            self.read(0.05)
            if time.monotonic() > deadline:
                raise Failed("it did not end")
        self.read(0.2)
        return self.process.returncode

    def is_restored(self):
        """The main screen, a cursor, and the modes of before."""
        left = self.raw.rfind(b"\x1b[?1049l") > self.raw.rfind(b"\x1b[?1049h") >= 0
        cursor = self.raw.rfind(b"\x1b[?25h") > self.raw.rfind(b"\x1b[?25l") >= 0
        return left and cursor and termios.tcgetattr(self.slave) == self.before


def top(sun, *options, **more):
    return Terminal(WEIR, "top", "--socket", sun.socket, *options, **more)


def stop(process, number=signal.SIGTERM):
    os.kill(process.pid, number)
