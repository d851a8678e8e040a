"""`weir up` as a child process: written configuration, readiness, status, a clean stop."""

import json
import os
import signal
import subprocess
import threading
import time

WEIR = os.environ.get("WEIR", "weir")


class Failed(Exception):
    """What a case found wrong."""


def settings(tree, indent=""):
    """A dictionary as sections and settings; None leaves a setting out."""
    lines = []
    for key, value in tree.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key} {{", *settings(value, indent + "    ").splitlines(), f"{indent}}}"]
        elif value is not None:
            text = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
            lines.append(f"{indent}{key} = {text}")
    return "\n".join(lines) + "\n"


class Gateway:
    """One run of `weir up` with everything it writes in `directory`."""

    # What goes before the command, to run it elsewhere.
    within = ()

    def __init__(self, directory, tree):
        os.makedirs(directory, exist_ok=True)
        self.socket = os.path.join(directory, "weir.sock")
        self.config = os.path.join(directory, "weir.conf")
        own = {"state_dir": os.path.join(directory, "state"), "socket": self.socket}
        tree = {**tree, "gateway": {**own, **tree.get("gateway", {})}}
        with open(os.open(self.config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(settings(tree))
        self.lines = []
        self._ready = threading.Event()
        self._process = None
        self._killed = False

    def __enter__(self):
        self._process = subprocess.Popen(
            [*self.within, WEIR, "up", "--config", self.config], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        deadline = time.monotonic() + 15
        while not self._ready.wait(0.05):
            if self._process.poll() is not None:
                self._reader.join(2)
                raise Failed(f"weir up ended with status {self._process.returncode}: {self.last_words()}")
            if time.monotonic() > deadline:
                self._process.kill()
                raise Failed(f"weir up was not ready after 15 s: {self.last_words()}")
        return self

    def _read(self):
        for line in self._process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith("weir: ready"):
                self._ready.set()

    @property
    def pid(self):
        return self._process.pid

    def kill(self):
        """Ends it without a chance to save anything."""
        self._process.kill()
        self._process.wait()
        self._killed = True

    def __exit__(self, kind, error, trace):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            code = None
        self._reader.join(2)
        if error is None and code != 0 and not self._killed:
            raise Failed(f"weir up {'did not stop' if code is None else f'ended with status {code}'}: {self.last_words()}")

    def last_words(self):
        return " | ".join(self.lines[-4:]) or "it printed nothing"

    def status(self):
        """Output of `weir status --json`."""
        done = subprocess.run([WEIR, "status", "--json", "--socket", self.socket], capture_output=True, text=True,
                              timeout=15, check=False)
        # 1: a connection that should be up is not, which is for the caller to judge.
        if done.returncode not in (0, 1):
            raise Failed(f"weir status ended with status {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)
