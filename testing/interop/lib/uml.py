"""A Linux kernel as a process (User Mode Linux), and the process in it that runs commands."""

import json
import os
import select
import shlex
import signal
import subprocess
import time

from gateway import Failed

BOOT_S = 60
ANSWER_S = 45
MARK = "\x1eguest:"


class Guest:
    """Boots with the host's file system as its root, read-only, and `here`/guest.sh as its first process.

    `tap` is a tap device of this namespace, or of the one that `within` enters; the guest sees it as vec0. `kernel` is that of
    the distribution, or a file.
    """

    def __init__(self, lab, here, tap, within=(), kernel="linux.uml"):
        modules = os.path.join(lab, "kernel", "lib")
        os.makedirs(modules, exist_ok=True)
        if not os.path.exists(os.path.join(modules, "modules")):
            os.symlink("/usr/lib/uml/modules", os.path.join(modules, "modules"))
        modprobe = os.path.join(lab, "modprobe")
        with open(modprobe, "w", encoding="ascii") as file:
            file.write(f'#!/bin/sh\nexec modprobe -d {lab}/kernel "$@"\n')
        os.chmod(modprobe, 0o755)
        command = [
            *within, kernel, "mem=256M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro",
            f"vec0:transport=tap,ifname={tap},depth=128,gro=1", f"init={here}/guest.sh",
            f"g_lab={lab}", f"g_here={here}", "con0=fd:0,fd:1", "con=null", "quiet", "panic=-1"]
        # Its scratch memory is a file where TMPDIR points to, and its management socket lives below
        # HOME.
        environment = {**os.environ, "HOME": lab, "TMPDIR": "/dev/shm" if os.access("/dev/shm", os.W_OK) else lab}
        preload = os.path.join(lab, "uml_xstate.so")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", preload,
                        os.path.join(os.path.dirname(os.path.abspath(__file__)), "uml_xstate.c"), "-ldl"], check=True)
        environment["LD_PRELOAD"] = preload
        self.log = open(os.path.join(lab, "guest.log"), "wb")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.log, env=environment, start_new_session=True)
        self.pending = b""
        self.answer(BOOT_S)

    def answer(self, patience_s):
        """The next answer; messages of the kernel in between go to the log."""
        deadline = time.monotonic() + patience_s
        while True:
            line, newline, rest = self.pending.partition(b"\n")
            if newline:
                self.pending = rest
                text = line.decode(errors="replace").strip("\r")
                if text.startswith(MARK):
                    return json.loads(text.removeprefix(MARK))
                self.log.write(line + b"\n")
                continue
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise TimeoutError(f"the guest did not answer within {patience_s} s")
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                raise TimeoutError("the guest ended")
            self.pending += chunk

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        return self.answer(ANSWER_S)

    def sh(self, script):
        """Runs a script there; returns exit status and output."""
        reply = self.ask(sh=script)
        return reply["rc"], reply["out"].strip()

    def must(self, script):
        """Runs a script there, which has to succeed; returns its output."""
        code, out = self.sh(script)
        if code != 0:
            raise Failed(f"the guest: {' '.join(out.split())[-600:]}")
        return out


class GuestHost:
    """A guest in the place of a network namespace."""

    def __init__(self, guest):
        self.guest = guest

    def run(self, command, patience_s=30):
        reply = self.guest.ask(sh=shlex.join(command))

        class Done:
            returncode, stdout = reply["rc"], reply["out"]
            stderr = reply["out"]
        return Done

    def popen(self, command, **_):
        return GuestProcess(self.guest, command)

    def must(self, script):
        return self.guest.must(script)

    # As a namespace has it.
    sh = must


class GuestProcess:
    """A program that runs in the guest meanwhile, with what the suites use of `subprocess.Popen`. Its output is a file there."""

    started = 0

    def __init__(self, guest, command):
        GuestProcess.started += 1
        self.guest, self.file = guest, f"/run/job-{GuestProcess.started}"
        # Only when it has ended is there a status; the number of a process that ended stays in use.
        guest.must(f"""
            (sh -c 'echo $$ >{self.file}.pid; exec "$@"' sh {shlex.join(command)} </dev/null >{self.file}.out
             echo $? >{self.file}.rc) >/dev/null 2>&1 &
            until [ -s {self.file}.pid ]; do sleep 0.01; done""")

    @property
    def stdout(self):
        return self

    def readline(self, patience_s=20):
        """The first line of its output."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            text = self.guest.sh(f"head -n 1 {self.file}.out")[1]
            if text or self.poll() is not None:
                return text + "\n"
            time.sleep(0.05)
        raise Failed(f"the guest: {self.file} printed nothing within {patience_s} s")

    def poll(self):
        code = self.guest.sh(f"cat {self.file}.rc 2>/dev/null")[1]
        return int(code) if code else None

    def wait(self, timeout=30):
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.file, timeout)
            time.sleep(0.05)
        return code

    def communicate(self, timeout=30):
        self.wait(timeout)
        return self.guest.sh(f"cat {self.file}.out")[1], None

    def send_signal(self, number):
        self.guest.sh(f"kill -{int(number)} $(cat {self.file}.pid)")

    def kill(self):
        self.send_signal(signal.SIGKILL)
