#!/usr/bin/env python3
"""Compares the packet path in memory with that of FD.io VPP, both on one core of this machine and in turns.

usage: vpp.py [--rounds N] [--cases WORD] [--out FILE] BUILD PROGRAM
       vpp.py --table FILE

BUILD is a build folder of VPP with its engine for intel-ipsec-mb, PROGRAM the program weir of a release build. FILE gets the trials
as JSON lines; --table prints what is in one. Needs root and an otherwise idle machine: both run on CPU 1 with SCHED_FIFO.

VPP's time is that of all its nodes from ip4-input to the output interface, as its clocks show them; its generator and what takes
packets at the end are left out. Inbound it gets its own packets again, without a replay window, which would refuse them. Weir's is that
of `weir bench path`, with a replay window, and of `weir bench sas` for several SAs. VPP routes, which Weir leaves to the kernel; Weir
checks policies, which VPP does not.

example: vpp.py --out vpp.jsonl /usr/src/vpp/build target/release/weir && vpp.py --table vpp.jsonl"""

import argparse
import json
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUITES = {
    "aes128gcm16": "crypto-alg aes-gcm-128 crypto-key 000102030405060708090a0b0c0d0e0f salt 0x01020304",
    "aes128-sha1": "crypto-alg aes-cbc-128 crypto-key 000102030405060708090a0b0c0d0e0f integ-alg sha1-96 integ-key " + "0b" * 20,
    "aes128-sha256": "crypto-alg aes-cbc-128 crypto-key 000102030405060708090a0b0c0d0e0f integ-alg sha-256-128 integ-key " + "0b" * 32,
    "3des-sha1": "crypto-alg 3des-cbc crypto-key " + "".join(f"{i:02x}" for i in range(24)) + " integ-alg sha1-96 integ-key " + "0b" * 20,
}
ENGINES = {"aes128gcm16": ["vaes", "ipsec_mb"]}
WINDOW_S = 0.25


def cases():
    """Suite, bytes of the inner packet, flows, SAs, MiB of packets (0: one batch, in the cache)."""
    for suite in SUITES:
        for size in [64, 512, 1400]:
            yield suite, size, 1, 1, 0
    for size in [64, 512, 1400]:
        yield "aes128gcm16", size, 1, 1, 21
    for flows in [64, 1024]:
        yield "aes128gcm16", 64, flows, 1, 0
    for sas in [64, 1000, 100_000]:
        yield "aes128gcm16", 64, 1, sas, 0


class Vpp:
    """One process of VPP: a tunnel from pg0 (inner) to pg1 (outer), or one for each SA."""

    def __init__(self, build, folder, suite, sas, mib):
        self.folder, self.cli, self.build = folder, folder / "cli.sock", build
        self.first = "ip4-input"
        if mib:
            self.first = "hold"
            self.compile(Path(__file__).with_name("vpp-hold.c"), folder / "hold_plugin.so")
        config = folder / "startup.conf"
        config.write_text(
            f"unix {{ nodaemon nobanner cli-listen {self.cli} runtime-dir {folder} }}\n"
            "cpu { main-core 0 corelist-workers 1 }\nmemory { main-heap-size 6G }\nstatseg { size 2G }\n"
            f"buffers {{ buffers-per-numa 32768 }}\nsocksvr {{ socket-name {folder}/api.sock }}\n"
            f"plugins {{ path {folder} }}\n"
        )
        log = open(folder / "vpp.log", "wb")
        library = {"LD_LIBRARY_PATH": str(next(Path(build).glob("lib/*")))}
        self.process = subprocess.Popen([f"{build}/bin/vpp", "-c", str(config)], stdout=log, stderr=log, env=os.environ | library)
        for _ in range(200):
            time.sleep(0.1)
            if self.cli.exists():
                break
        else:
            raise OSError(f"VPP does not start: {folder}/vpp.log")
        try:
            # "both": of packets in one buffer and in several. The engine has no 3DES, which
            # remains with the one over OpenSSL.
            self.run("set crypto handler all both ipsecmb")
            self.run(self.interfaces() + self.tunnels(suite, sas))
        except (OSError, subprocess.SubprocessError):
            self.end()
            raise

    def compile(self, source, plugin):
        """A plugin, as the build compiles its own."""
        cache = dict(line.split("=", 1) for line in Path(self.build, "CMakeCache.txt").read_text().splitlines() if "=" in line)
        include = [f"-I{cache['CMAKE_HOME_DIRECTORY:INTERNAL']}", f"-I{self.build}/CMakeFiles"]
        march = cache.get("VPP_BUILD_NATIVE_ARCH:STRING", "native")
        flags = ["-shared", "-fPIC", "-O3", f"-march={march}", "-fvisibility=hidden", "-fno-common", "-Wno-address-of-packed-member"]
        compiler = next(value for name, value in cache.items() if name.startswith("CMAKE_C_COMPILER:"))
        subprocess.run([compiler, *flags, *include, source, "-o", plugin], check=True)

    @staticmethod
    def interfaces():
        text = ""
        for name, address, peer, mac in [("pg0", "10.0.0.254/24", "10.0.0.1", 1), ("pg1", "192.0.2.1/24", "192.0.2.2", 2)]:
            text += f"create packet-generator interface {name}\nset interface state {name} up\nset interface ip address {name} {address}\n"
            text += f"set ip neighbor {name} {peer} 02:00:00:00:00:0{mac} static\n"
        return text

    @staticmethod
    def tunnels(suite, sas):
        keys, out, back = SUITES[suite], "tunnel src 192.0.2.1 dst 192.0.2.2", "tunnel src 192.0.2.2 dst 192.0.2.1"
        if sas == 1:
            text = "ipsec itf create\nset interface state ipsec0 up\nset interface unnumbered ipsec0 use pg1\n"
            text += f"ipsec sa add 1 spi 4096 esp {keys} {out}\nipsec sa add 2 spi 4096 esp {keys} {back} inbound\n"
            return text + "ipsec tunnel protect ipsec0 sa-in 2 sa-out 1\nip route add 10.1.0.0/16 via ipsec0\n"
        text = "ipsec itf create p2mp\nset interface state ipsec0 up\nset interface ip address ipsec0 100.255.255.254/8\n"
        order = list(range(sas))
        random.Random(1).shuffle(order)
        for i in order:
            host = f"{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}"
            text += f"ipsec sa add {2 * i} spi {4096 + i} esp {keys} {out}\nipsec sa add {2 * i + 1} spi {4096 + i} esp {keys} {back} inbound\n"
            text += f"ipsec tunnel protect ipsec0 100.{host} sa-in {2 * i + 1} sa-out {2 * i}\n"
            text += f"ip route add 20.{host}/32 via 100.{host} ipsec0\n"
        return text

    def run(self, commands):
        """Executes CLI commands and returns what they print."""
        script = self.folder / "commands"
        script.write_text(commands)
        lines = [commands.strip()] if "\n" not in commands.strip() else [f"exec {script}"]
        done = subprocess.run([f"{self.build}/bin/vppctl", "-s", str(self.cli), *lines], capture_output=True, text=True, timeout=300, check=True)
        if "unknown" in done.stdout or "CLI line error" in done.stdout:
            raise OSError(f"VPP refuses a command: {done.stdout}")
        return done.stdout

    def nodes(self):
        """Ticks per packet of every node of the worker that had packets, with the number of packets, in a window."""
        time.sleep(0.1)
        self.run("clear runtime")
        time.sleep(WINDOW_S)
        worker = self.run("show runtime").split("Thread 1 ")[1]
        rows = [line.split() for line in worker.splitlines()]
        found = {row[0]: (float(row[-2]), int(row[-4])) for row in rows if len(row) == 7 and row[-4].isdigit() and int(row[-4]) > 0}
        lost = [name for name in found if name.endswith("-drop")]
        if lost:
            raise OSError(f"VPP drops packets: {found}")
        return found

    def measure(self, stream):
        """Ticks per packet from ip4-input to the output interface, by node."""
        self.run(f"packet-generator new {{ name s limit -1 worker 0 {stream} }}\npacket-generator enable-stream s\n")
        nodes = self.nodes()
        self.run("packet-generator disable-stream s\npacket-generator delete s\n")
        packets = nodes["ip4-input"][1]
        return {name: ticks * count / packets for name, (ticks, count) in nodes.items() if name not in ["pg-input", "hold"] and (not name.endswith("-tx") or "midchain" in name)}

    def out(self, size, flows, sas):
        udp = f"UDP: 1000 - {999 + flows} -> 2000" if flows > 1 else "UDP: 1000 -> 2000"
        last = sas - 1
        to = "10.1.0.1" if sas == 1 else f"20.0.0.0 - 20.{last >> 16}.{last >> 8 & 255}.{last & 255}"
        return f"node {self.first} interface pg0 size {size}-{size} data {{ UDP: 10.0.0.1 -> {to} {udp} incrementing {size - 28} }}"

    def turned(self, size, flows):
        """Protected packets of the outbound direction as its peer sends them: addresses exchanged, no Ethernet header."""
        captured, turned = self.folder / f"out-{size}.pcap", self.folder / f"in-{size}.pcap"
        count = max(256, flows)
        self.run(f"packet-generator capture pg1 pcap {captured} count {count}\n")
        self.run(f"packet-generator new {{ name c limit {count} worker 0 {self.out(size, flows, 1)} }}\npacket-generator enable-stream c\n")
        time.sleep(0.2)
        self.run("packet-generator capture pg1 disable\npacket-generator delete c\n")
        data = captured.read_bytes()
        head, at, result = data[:24], 24, []
        while at < len(data):
            length = struct.unpack("<I", data[at + 8 : at + 12])[0]
            ip = data[at + 16 + 14 : at + 16 + length]
            if len(ip) <= size:
                raise OSError("VPP captures other packets than were sent")
            ip = ip[:12] + ip[16:20] + ip[12:16] + ip[20:]
            result.append(data[at : at + 8] + struct.pack("<II", len(ip), len(ip)) + ip)
            at += 16 + length
        turned.write_bytes(head + b"".join(result))
        return f"pcap {turned} node {self.first} interface pg1"

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def of_vpp(build, suite, sizes, flows, sas, mib):
    """Trials of one process of VPP."""
    with tempfile.TemporaryDirectory(prefix="vpp-") as folder:
        vpp = Vpp(build, Path(folder), suite, sas, mib)
        try:
            for thread in os.listdir(f"/proc/{vpp.process.pid}/task"):
                if "wk_0" in Path(f"/proc/{vpp.process.pid}/task/{thread}/comm").read_text():
                    subprocess.run(["chrt", "-f", "-p", "40", thread], check=True)
            for size in sizes:
                nodes = vpp.measure(vpp.out(size, flows, sas))
                yield size, "out", sum(nodes.values()), nodes
                if sas == 1:
                    stream = vpp.turned(size, flows)
                    vpp.run("ip route del 10.1.0.0/16 via ipsec0\nip route add 10.1.0.0/16 via 10.0.0.1 pg0\n")
                    nodes = vpp.measure(stream)
                    yield size, "in", sum(nodes.values()), nodes
                    vpp.run("ip route del 10.1.0.0/16 via 10.0.0.1 pg0\nip route add 10.1.0.0/16 via ipsec0\n")
        finally:
            vpp.end()


def of_weir(program, suite, engine, sizes, flows, sas, mib):
    """Trials of one process of Weir."""
    subject = f"weir-esp-tunnel-{suite},engine={engine}"
    settings = [f"traffic={','.join(map(str, sizes))}", "sessions=1", "rounds=1"]
    study = ["path", f"flows={flows}", f"memory_mib={mib}"] if sas == 1 else ["sas", f"sas={sas}", "directions=out"]
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        command = ["chrt", "-f", "40", "taskset", "-c", "1", program, "bench", study[0], "--subject", subject, "--out", f"{folder}/out"]
        for setting in settings + study[1:]:
            command += ["--set", setting]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        for line in Path(folder, "out", "trials.jsonl").read_text(encoding="utf-8").splitlines():
            trial = json.loads(line)
            yield trial["size"], trial["direction"], trial["values"]["ticks_median"], trial["values"].get("without_engine_ticks")


def trials(name, program, engine, suite, sizes, flows, sas, mib):
    """Trials of one process. Some starts of VPP end at their first packets, and are repeated twice."""
    if name != "vpp":
        return list(of_weir(program, suite, engine, sizes, flows, sas, mib))
    for _ in range(3):
        try:
            return list(of_vpp(program, suite, sizes, flows, sas, mib))
        except (OSError, subprocess.SubprocessError) as error:
            print(f"VPP failed: {error}", file=sys.stderr)
    raise OSError("VPP failed three times")


def measure(arguments):
    groups = {}
    for suite, size, flows, sas, mib in cases():
        if arguments.cases in f"{suite} {size} flows={flows} sas={sas} mib={mib}":
            groups.setdefault((suite, flows, sas, mib), []).append(size)
    with open(arguments.out, "a", encoding="utf-8") as file:
        for turn in range(arguments.rounds):
            for (suite, flows, sas, mib), sizes in groups.items():
                what = [("vpp", arguments.build, None)]
                what += [("weir", arguments.program, engine) for engine in ENGINES.get(suite, ["ipsec_mb"])]
                random.shuffle(what)
                for name, program, engine in what:
                    print(f"round {turn + 1} of {arguments.rounds}: {suite}, {flows} flows, {sas} SAs, {mib} MiB, {name} {engine or ''}", file=sys.stderr)
                    for size, direction, ticks, more in trials(name, program, engine, suite, sizes, flows, sas, mib):
                        row = {"round": turn, "suite": suite, "flows": flows, "sas": sas, "mib": mib, "bytes": size, "direction": direction}
                        row |= {"subject": name, "engine": engine, "ticks": ticks, "more": more}
                        file.write(json.dumps(row) + "\n")
                        file.flush()


def rows(path):
    """A head and a row for each case: medians over rounds with lowest and highest, and ratios within rounds."""
    found = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        trial = json.loads(line)
        direction = {"out": "protecting", "in": "opening"}[trial["direction"]]
        case = (trial["suite"], direction, *(trial[key] for key in ["bytes", "flows", "sas", "mib"]))
        found.setdefault(case, {}).setdefault(trial["engine"] or "VPP", {})[trial["round"]] = trial["ticks"]
    head = ["suite", "direction", "bytes", "flows", "SAs", "MiB"]
    for name in ["VPP", "vaes", "vaes over VPP", "ipsec_mb", "ipsec_mb over VPP"]:
        head += [name, "low", "high"]
    yield head
    suites = list(SUITES)
    for case, of in sorted(found.items(), key=lambda item: (suites.index(item[0][0]), *item[0][5:1:-1], item[0][1] != "protecting")):
        row, vpp = [str(value) for value in case], of["VPP"]
        row += spread(vpp.values())
        for engine in ["vaes", "ipsec_mb"]:
            ours = of.get(engine, {})
            row += spread(ours.values()) + spread([ours[turn] / vpp[turn] for turn in ours if turn in vpp])
        yield row


def spread(values):
    values = list(values)
    return [f"{value:.3f}" for value in (statistics.median(values), min(values), max(values))] if values else ["", "", ""]


def table(path):
    """The medians, tabulated."""
    for row in rows(path):
        cells = row[:6] + row[6::3]
        print(" ".join(cell[:17].rjust(width) for cell, width in zip(cells, [13, 11, 6, 6, 7, 4, 9, 9, 14, 9, 17])))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="", help="only those with this text, such as 'flows=64'")
    parser.add_argument("--out", default="vpp.jsonl")
    parser.add_argument("--table", metavar="FILE")
    parser.add_argument("build", nargs="?")
    parser.add_argument("program", nargs="?")
    arguments = parser.parse_args()
    if arguments.table:
        table(arguments.table)
    elif arguments.build and arguments.program:
        measure(arguments)
    else:
        parser.error("a build of VPP and a program weir are needed; see --help")


if __name__ == "__main__":
    main()
