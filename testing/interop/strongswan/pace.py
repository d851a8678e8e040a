"""Do outer packets at a constant rate show what is inside? Count, sizes and gaps of two kinds of captures are compared."""

import bisect
import math
import random
import statistics
import struct

# Gaps of each side in one comparison: with all of them, differences of a microsecond would count,
# which the machine makes.
SAMPLE = 200
COMPARISONS = 101
LEAST_P = 0.01


def read(path):
    """Times in seconds and lengths in bytes of a capture of Ethernet frames with times in ns; lengths are those of IP."""
    with open(path, "rb") as file:
        capture = file.read()
    magic, = struct.unpack_from("<I", capture)
    if magic != 0xA1B23C4D:
        raise ValueError(f"{path}: not a capture with times in ns")
    at, seen = 24, []
    while at + 16 <= len(capture):
        s, ns, kept, length = struct.unpack_from("<IIII", capture, at)
        seen.append((s + ns / 1e9, length - 14))
        at += 16 + kept
    return seen


def window(seen, seconds):
    """The packets of so many seconds in the middle."""
    if not seen:
        return []
    start = seen[0][0] + (seen[-1][0] - seen[0][0] - seconds) / 2
    return [packet for packet in seen if start <= packet[0] < start + seconds]


def gaps(seen):
    return [after[0] - before[0] for before, after in zip(seen, seen[1:])]


def kolmogorov_smirnov(one, other):
    """Probability of so large a distance if both samples are from one distribution (asymptotic)."""
    one, other = sorted(one), sorted(other)
    distance = max(abs(bisect.bisect_right(one, x) / len(one) - bisect.bisect_right(other, x) / len(other)) for x in one + other)
    size = math.sqrt(len(one) * len(other) / (len(one) + len(other)))
    scaled = (size + 0.12 + 0.11 / size) * distance
    if scaled < 0.2:
        return 1.0
    return min(1.0, max(0.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))))


def compare(idle, busy, chance=None):
    """Median p of comparisons of some gaps of both sides. A single one would fail once in a hundred times."""
    chance = chance or random.Random(1)
    draw = lambda all_gaps: chance.sample(all_gaps, min(SAMPLE, len(all_gaps)))  # noqa: E731
    return statistics.median(kolmogorov_smirnov(draw(idle), draw(busy)) for _ in range(COMPARISONS))


def faults(idle, busy, seconds, slot_s, size):
    """What tells captures without load from those with load, if anything: lists of captures, of each so many seconds."""
    found = []
    expected = seconds / slot_s
    for name, captures in (("idle", idle), ("busy", busy)):
        for seen in captures:
            sizes = {length for _, length in seen}
            if sizes != {size}:
                found.append(f"{name}: outer packets of {sorted(sizes)} bytes, not of {size} alone")
            # One at each end of the window, and those of some 15 ms that waited for a CPU.
            if abs(len(seen) - expected) > 1 + expected / 100:
                found.append(f"{name}: {len(seen)} packets in {seconds} s, not {expected:.0f}")
    if found:
        return found, 0.0
    both = [[gap for seen in captures for gap in gaps(seen)] for captures in (idle, busy)]
    p = compare(*both)
    if p < LEAST_P:
        quartiles = [" ".join(f"{1e6 * q:.0f}" for q in statistics.quantiles(side, n=20)[::6]) for side in both]
        found.append(f"gaps differ: p = {p:.4f}; 5, 35, 65, 95 % in µs: idle {quartiles[0]}, busy {quartiles[1]}")
    return found, p
