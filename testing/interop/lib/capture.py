"""Captures of bare IP packets, and `weir pcap` over them."""

import os
import re
import struct
import subprocess

from gateway import WEIR, Failed, settings

LINKTYPE_RAW = 101


def write_pcap(path, packets):
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, LINKTYPE_RAW))
        for packet in packets:
            out.write(struct.pack("<IIII", 0, 0, len(packet), len(packet)) + packet)


def read_pcap(path):
    with open(path, "rb") as file:
        capture = file.read()
    at, packets = 24, []
    while at < len(capture):
        length = struct.unpack_from("<I", capture, at + 8)[0]
        packets.append(capture[at + 16:at + 16 + length])
        at += 16 + length
    return packets


def write_configuration(lab, tree):
    """The file that `transform` uses."""
    path = os.path.join(lab, "weir.conf")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write(settings(tree))


def transform(command, lab, packets):
    """Takes packets through `weir pcap seal` or `open`. For each what came out, or as text why it was refused."""
    source, result = os.path.join(lab, f"{command}-in.pcap"), os.path.join(lab, f"{command}-out.pcap")
    write_pcap(source, packets)
    done = subprocess.run([WEIR, "pcap", command, "--sa", os.path.join(lab, "weir.conf"), source, result],
                          capture_output=True, text=True, timeout=120, check=False)
    if done.returncode not in (0, 1) or not os.path.exists(result):
        raise Failed(f"weir pcap {command} ended with status {done.returncode}: {done.stderr.strip()[:2000]}")
    refused = {int(n): why for n, why in re.findall(r"^packet (\d+): (.*)$", done.stderr, re.M)}
    written = iter(read_pcap(result))
    outcome = [refused.get(n) or next(written, "vanished without a reason") for n in range(1, len(packets) + 1)]
    if next(written, None) is not None:
        raise Failed(f"weir pcap {command} wrote more packets than it read")
    return outcome


def report(suite, cases, directions):
    """Prints a line per case and direction. `directions` maps a direction to its faults by case. Whether all passed."""
    for direction, faults in directions.items():
        for case in cases:
            why = faults.get(case)
            name = f"{suite}/{case}-{direction}"
            print(f"FAIL {name}: {why}" if why else f"PASS {name}")
    return not any(directions.values())
