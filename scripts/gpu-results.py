#!/usr/bin/env python3
"""Tables of the documentation about the GPU, from all trials in docs/results/gpu-h200.json. Each table follows a comment
`<!-- gpu NAME -->`. With --check, writes nothing and ends with 1 if a table differs from the trials. With --pack FILE
[VARIANT=FILE]…, makes the trials from the output of `measure --json`; a variant is a kernel with another limit of registers."""

import json
import random
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "results" / "gpu-h200.json"
MARK = re.compile(r"(<!-- gpu (\S+) -->)\n\n(?:\|.*\n)*\n?")
SIZES = (64, 512, 1400)


def pack(files):
    whole = {}
    for name in files:
        variant, _, path = name.rpartition("=")
        source = json.loads(Path(path).read_text(encoding="utf-8"))
        if source["failures"]:
            sys.exit(f"{path}: {source['failures']}")
        if not variant:
            whole["head"] = source["head"]
        for trial in sorted(source["trials"], key=lambda trial: trial["round"]):
            if trial["part"] != "ratio":
                part = trial["part"] + (f", {variant} registers" if variant else "")
                point = re.sub(r" +", " ", trial["point"].strip())
                whole.setdefault(part, {}).setdefault(point, []).append(float(f"{trial['value']:.5g}"))
    lines = []
    for part, points in whole.items():
        rows = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in points.items())
        lines.append(f"{json.dumps(part)}: {{\n  {rows}\n}}")
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


class Trials:
    def __init__(self):
        self.whole = json.loads(DATA.read_text(encoding="utf-8"))

    def values(self, part, point):
        return self.whole[part][point]

    def median(self, part, point):
        return statistics.median(self.values(part, point))

    def best(self, part, wanted):
        """The point with the highest median."""
        return max(filter(wanted, self.whole[part]), key=lambda point: self.median(part, point))

    def cell(self, part, point):
        values = self.values(part, point)
        return f"{number(statistics.median(values))} ({number(min(values))}–{number(max(values))})"


def number(value):
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}"


def rows(head, body):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in body]) + "\n\n"


def lanes(trials):
    counts = (1, 2, 4, 8, 16, 32)
    body = [
        [size, batch, *(number(trials.median("lanes", f"{size} B, batch {batch}, {n} lanes forced")) for n in counts)]
        for size in (64, 512, 1400, 8192)
        for batch in (1024, 4096, 65536)
    ]
    return rows(["bytes", "packets a launch", *(f"{n} lanes" if n > 1 else "1 lane" for n in counts)], body)


def registers(trials):
    parts = {"124, no limit": "lanes", **{str(n): f"lanes, {n} registers" for n in (96, 80, 64)}}
    body = []
    for name, part in parts.items():
        if part not in trials.whole:
            continue
        best = []
        for size in (*SIZES, 8192):
            for batch in (4096, 65536):
                point = trials.best(part, lambda point, start=f"{size} B, batch {batch}, ": point.startswith(start))
                best.append(number(trials.median(part, point)))
        body.append([name, *(" / ".join(best[i:i + 2]) for i in range(0, len(best), 2))])
    return rows(["registers", *(f"{size} B" for size in (*SIZES, 8192))], body)


def copies(trials):
    body = []
    for size in (*SIZES, 8192):
        for slot, kind in ((256, "copies"), (1024, "copies"), (4096, "copies"), (1024, "zero copy"), (4096, "zero copy")):
            points = [f"{size} B, slot {slot} KiB, {n} streams, {kind}" for n in (1, 2, 4, 8)]
            cells = [trials.cell("copies", point) if point in trials.whole["copies"] else "" for point in points]
            body.append([size, f"{kind}, {slot} KiB", *cells])
    return rows(["bytes", "slot", "1 stream", "2 streams", "4 streams", "8 streams"], body)


def latency(trials):
    body = []
    for size in SIZES:
        for batch in (1, 16, 64, 256, 1024, 4096):
            cells = []
            for kind in ("copies", "zero copy"):
                at = [f"{size} B, batch {batch}, {kind}, {which}" for which in ("p50", "p99")]
                cells += [trials.cell("latency", point) for point in at]
            body.append([size, batch, *cells])
    return rows(["bytes", "packets", "copies, p50", "copies, p99", "zero copy, p50", "zero copy, p99"], body)


FEEDERS = ((256, "copies"), (1024, "copies"), (256, "zero copy"))


def feeders(trials):
    body = []
    for size in SIZES:
        for slot, kind in FEEDERS:
            points = [f"{size} B, {n} threads, slot {slot} KiB, {kind}" for n in (1, 2, 4, 8)]
            body.append([size, f"{kind}, {slot} KiB", *(trials.cell("feeders", point) for point in points)])
    return rows(["bytes", "slot", "1 thread", "2 threads", "4 threads", "8 threads"], body)


def cpu(trials):
    body = []
    for size in SIZES:
        for engine in ("ipsec_mb", "vaes", "aws_lc"):
            points = [f"{size} B, {engine}, {n} threads" for n in (1, 2, 4, 8, 16)]
            body.append([size, f"`{engine}`", *(trials.cell("cpu", point) for point in points)])
    return rows(["bytes", "engine", "1 thread", *(f"{n} threads" for n in (2, 4, 8, 16))], body)


def scaling(trials):
    """Throughput of each number of threads over that of one."""
    body = []
    for size in SIZES:
        for engine in ("ipsec_mb", "vaes", "aws_lc"):
            rates = [trials.median("cpu", f"{size} B, {engine}, {n} threads") for n in (1, 2, 4, 8, 16)]
            body.append([size, f"`{engine}`", *(f"{rate / rates[0]:.1f}" for rate in rates[1:]), number(rates[-1])])
    head = ["bytes", "engine", *(f"{n} threads" for n in (2, 4, 8, 16)), "16 threads, Gbit/s"]
    return rows(head, body)


def ratio(trials):
    body = []
    for size in (*SIZES, 8192):
        of_size = lambda point, start=f"{size} B, ": point.startswith(start) and "per launch" not in point
        core = trials.best("cpu", lambda point: of_size(point) and point.endswith(", 1 threads"))
        one = trials.median("cpu", core)
        cells = [f"{trials.cell('cpu', core)} `{core.split(', ')[1]}`"]
        for part, more in (("lanes", ""), ("copies", "streams, copies"), ("feeders", "1 threads"), ("feeders", "8 threads")):
            if part == "feeders" and size not in SIZES:
                cells.append("")
                continue
            best = trials.median(part, trials.best(part, lambda point: of_size(point) and more in point))
            cells.append(f"{number(best)}: {best / one:.1f}")
        body.append([size, *cells])
    return rows(["bytes", "one core", "kernel alone", "with copies", "1 feeder", "8 feeders"], body)


def breakpoints(trials):
    """t(L) = max(t_fix, t_oh + L/R) in ns per packet: t_oh and R from 512 and 1400 bytes, t_fix from 64. Intervals are of
    2,000 samples of the rounds."""

    def fit(times):
        slope = (times[2] - times[1]) / (SIZES[2] - SIZES[1])
        overhead = times[1] - slope * SIZES[1]
        return overhead, slope, (times[0] - overhead) / slope

    draw, body = random.Random(1), []
    for slot, kind in FEEDERS:
        # Zero copy of the device alone was measured with 1 MiB.
        alone = [f"{size} B, slot {max(slot, 1024) if kind != 'copies' else slot} KiB, 8 streams, {kind}" for size in SIZES]
        limits = [8 * size / trials.median("copies", point) for size, point in zip(SIZES, alone)]
        for count in (1, 2, 4, 8):
            values = [
                [8 * size / rate for rate in trials.values("feeders", f"{size} B, {count} threads, slot {slot} KiB, {kind}")]
                for size in SIZES
            ]
            medians = [statistics.median(of_size) for of_size in values]
            overhead, slope, at = fit(medians)
            samples = sorted(
                fit([statistics.median(draw.choices(of_size, k=len(of_size))) for of_size in values])[2] for _ in range(2000)
            )
            low, high = samples[50], samples[1949]
            found = "none" if at <= SIZES[0] else f"{at:.0f}"
            body.append([
                f"{kind}, {slot} KiB", count, " / ".join(map(number, medians)),
                " / ".join(f"{time / limit:.1f}" for time, limit in zip(medians, limits)),
                f"{overhead:.1f}", f"{8 / slope:.0f}", f"{found} ({low:.0f} to {high:.0f})",
            ])
    head = ["slot", "feeders", "ns at 64 / 512 / 1400 B", "over the device alone", "t_oh, ns", "R, Gbit/s", "breakpoint, bytes"]
    return rows(head, body)


TABLES = {
    "lanes": lanes, "registers": registers, "copies": copies, "latency": latency, "feeders": feeders, "cpu": cpu,
    "scaling": scaling, "ratio": ratio, "breakpoints": breakpoints,
}


def main():
    if sys.argv[1:2] == ["--pack"]:
        pack(sys.argv[2:])
    check, wrong, trials, found = "--check" in sys.argv[1:], 0, Trials(), set()
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        found.update(name for _, name in MARK.findall(text))
        new = MARK.sub(lambda match: f"{match[1]}\n\n{TABLES[match[2]](trials)}", text)
        if new != text and check:
            print(f"{path.relative_to(ROOT)}: a table differs from {DATA.name}; run scripts/gpu-results.py")
            wrong = 1
        elif new != text:
            path.write_text(new, encoding="utf-8")
    if check and found != set(TABLES):
        print(f"tables that no page has: {', '.join(sorted(set(TABLES) - found))}")
        wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
