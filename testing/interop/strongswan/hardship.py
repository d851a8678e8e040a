"""What befalls a host: a disk that is full, a clock that jumps."""

import errno
import mmap
import os
import shutil
import struct
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from gateway import Failed  # noqa: E402


class Disk:
    """A small file system in the place of a folder."""

    def __init__(self, folder, size):
        self.folder, self.filler = folder, os.path.join(folder, "filler")
        self.full = False
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=0700,size={size}", "disk", folder], check=True)

    def fill(self):
        self.full = True
        # A page that a log has begun would still take some lines.
        for log in self.logs():
            with open(log, "ab") as file:
                file.write(b"\n" * (-file.tell() % mmap.PAGESIZE))
        with open(self.filler, "ab", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(256))
                except OSError as error:
                    if error.errno == errno.ENOSPC:
                        return
                    raise

    def make_room(self):
        self.full = False
        if os.path.exists(self.filler):
            os.unlink(self.filler)

    def log(self, path):
        """What is on it and goes with it."""
        for log in self.logs():
            shutil.copy(log, path)

    def logs(self):
        return [os.path.join(self.folder, name) for name in os.listdir(self.folder) if name.endswith(".log")]


class Clock:
    """The time of day as the processes of one end see it, by a library between them and the C library. Clocks that
    cannot be set, CLOCK_MONOTONIC above all, are as always."""

    building = threading.Lock()

    def __init__(self, lab, folder):
        library = os.path.join(lab, "clock.so")
        with self.building:
            if not os.path.exists(library):
                done = subprocess.run(["cc", "-shared", "-fPIC", "-O", "-o", library, os.path.join(HERE, "clock.c"), "-ldl"],
                                      capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise Failed(f"cc clock.c: {done.stderr.strip()}")
        path = os.path.join(folder, "clock")
        with open(path, "wb") as file:
            file.write(bytes(8))
        with open(path, "r+b") as file:
            self.offset = mmap.mmap(file.fileno(), 8)
        self.environment = {"LD_PRELOAD": library, "LAB_CLOCK": path}

    def set(self, offset_s):
        self.offset[:] = struct.pack("=q", offset_s)
