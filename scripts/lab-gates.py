#!/usr/bin/env python3
"""Runs the gates of the lab's statistics (docs/lab-statistics.md) and prints a table: the error of the model at sizes between those of
its fit, planted slow-downs, a build against itself, and the verdicts of the preset 'quick'. About ten minutes on an idle machine.
Ends with 1 if a gate is missed, and with 2 if one could not be measured."""

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Largest 95th percentile of the errors, in percent.
MODEL = {
    "weir-esp-tunnel-aes128gcm16": 1.0,
    "weir-esp-tunnel-aes256gcm16": 1.0,
    "weir-esp-tunnel-chacha20poly1305": 2.0,
    "weir-esp-tunnel-aes128-sha256": 2.0,
}
# Planted slow-down in percent, sessions, runs of a build against itself.
PLANTS = [(2, 8, 3), (1, 20, 2)]
# Largest share of rows that may differ in a build against itself, and noise floor of 'quick'.
DIFFERENT, FLOOR = 0.05, 0.02


def spin():
    while True:
        pass


@contextlib.contextmanager
def busy(count):
    """Processes that use a CPU each, for as long as the gates run."""
    spinning = [multiprocessing.Process(target=spin, daemon=True) for _ in range(count)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.join()


class Gates:
    """Results, a row each: gate, limit, found, whether it holds (None: not measured)."""

    def __init__(self, weir, out):
        self.weir, self.out, self.rows = weir, out, []

    def run(self, *words, statuses=(0,)):
        began = time.monotonic()
        print(f"weir {' '.join(map(str, words))}", file=sys.stderr, flush=True)
        done = subprocess.run([self.weir, *map(str, words)], cwd=self.out, text=True, stdout=subprocess.PIPE)
        print(f"  {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if done.returncode not in statuses:
            raise RuntimeError(f"exit status {done.returncode}")
        return done.stdout

    def add(self, gate, limit, found, holds):
        self.rows.append((gate, limit, found, holds))

    def model(self):
        self.run("lab", "run", ROOT / "scripts" / "lab-gates.toml", "--out", "model")
        self.run("lab", "model", "fit", "model", statuses=(0, 1))
        judged = json.loads(self.run("lab", "model", "validate", "model", "--json", statuses=(0, 1)))
        for subject, limit in MODEL.items():
            for direction in ("out", "in"):
                mine = [row for row in judged if (row["subject"], row["direction"]) == (subject, direction)]
                p95 = mine[0]["validation"]["errors"]["p95"] if mine else None
                measured = isinstance(p95, (int, float))
                found = f"{p95:.2f} %, {mine[0]['form']}" if measured else "not measured"
                self.add(f"model, {subject} {direction}", f"p95 <= {limit:.0f} %", found, p95 <= limit if measured else None)

    def comparisons(self):
        different, rows = 0, 0
        for plant, sessions, runs in PLANTS:
            found = json.loads(self.run("lab", "compare", "--self-check", runs, "--sessions", sessions, "--plant", plant, "--json",
                                        statuses=(0, 1)))
            gate = (f"planted {plant} %, {sessions} sessions", "every row")
            if found["rows"] == 0:
                self.add(*gate, "not measured", None)
                continue
            text = f"{found['planted_found']} of {found['rows']}, {found['planted_ratios'][0]:.4f} to {found['planted_ratios'][1]:.4f}"
            self.add(*gate, text, found["planted_found"] == found["rows"])
            different += found["verdicts"][0]
            rows += sum(found["verdicts"])
        self.add("a build against itself", f"<= {DIFFERENT:.0%} of rows", f"{different} of {rows}",
                 different <= DIFFERENT * rows if rows else None)

    def quick(self):
        self.run("lab", "run", "--preset", "quick", "--out", "quick")
        found = json.loads((self.out / "quick" / "summary.json").read_text(encoding="utf-8"))
        floor = found["noise_floor"]
        measured = isinstance(floor, (int, float))
        self.add("preset quick, noise floor", f"<= {FLOOR:.0%}", f"±{floor:.2%}" if measured else "not measured",
                 floor <= FLOOR if measured else None)
        verdicts = [verdict for table in found["verdict"] for verdict in table["verdicts"]]
        named = [verdict for verdict in verdicts if not verdict.startswith(("inconclusive", "no winner"))]
        self.add("preset quick, columns with a verdict", "all", f"{len(named)} of {len(verdicts)}",
                 len(named) == len(verdicts) if verdicts else None)

    def print(self):
        widths = [max(len(row[column]) for row in self.rows) for column in range(3)]
        for gate, limit, found, holds in self.rows:
            word = {True: "pass", False: "MISS", None: "not measured"}[holds]
            print(f"{gate:<{widths[0]}}  {limit:<{widths[1]}}  {found:<{widths[2]}}  {word}")


def load():
    return "load {:.1f}, {:.1f}, {:.1f}".format(*os.getloadavg())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default=ROOT / "target" / "release" / "weir", type=Path, help="program to measure with")
    parser.add_argument("--busy", default=0, type=int, metavar="N", help="run N processes that use a CPU each beside the gates")
    parser.add_argument("--out", type=Path, help="folder for runs and profiles; default: a temporary one")
    parser.add_argument("gates", nargs="*", choices=[[], "model", "comparisons", "quick"], help="default: all")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weir-gates-") as temporary, busy(options.busy):
        out = options.out or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        gates, before = Gates(options.weir.resolve(), out.resolve()), load()
        for name in options.gates or ["model", "comparisons", "quick"]:
            try:
                getattr(gates, name)()
            except (RuntimeError, OSError, KeyError, TypeError, ValueError) as error:
                gates.add(name, "", str(error), None)
        print(f"{os.cpu_count()} processors, {options.busy} busy processes; {before} before, {load()} after")
        gates.print()
    results = [row[3] for row in gates.rows]
    return 2 if None in results else int(False in results)


if __name__ == "__main__":
    sys.exit(main())
