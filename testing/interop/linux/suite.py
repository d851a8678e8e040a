"""Boots the guest once, then case by case: the same pair of SAs on both ends, traffic, counters.

Runs as the first process of its own namespaces (see run.sh): its end is the end of everything started here.
"""

import hashlib
import os
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
import transfer  # noqa: E402
from cases import CASES, INNER, NETWORK, OUTER, PREFIX, algorithms  # noqa: E402
from gateway import Failed, Gateway  # noqa: E402
from shell import sh  # noqa: E402
from uml import Guest  # noqa: E402

TAP = "tap0"
TRANSFER_BYTES = 1_000_000
# Host to guest, and back.
SPI_OUT, SPI_IN = 0x1001, 0x2002


class Refused(Exception):
    """The guest's kernel does not know what a case needs."""


def prepare_host():
    """The tap and its addresses. No link-local addresses and no source checks by the kernel: less of a surprise."""
    addresses = "\n".join(f"ip addr add {OUTER[v][0]}/{PREFIX[v]} dev {TAP} {'nodad' if v == 6 else ''}" for v in OUTER)
    sh(f"""
        ip link set lo up
        echo 1 >/proc/sys/net/ipv6/conf/default/addr_gen_mode
        for conf in all default; do echo 0 >/proc/sys/net/ipv4/conf/$conf/rp_filter; done
        ip tuntap add {TAP} mode tap
        ip link set {TAP} up
        {addresses}
    """)


def prepare_guest(guest):
    addresses = "\n".join(
        f"ip addr add {OUTER[v][1]}/{PREFIX[v]} dev vec0 {'nodad' if v == 6 else ''}\n"
        f"ip addr add {INNER[v][1]}/{32 if v == 4 else 128} dev lo\n"
        f"ip route add {NETWORK[v][0]} via {OUTER[v][0]} src {INNER[v][1]}" for v in OUTER)
    code, out = guest.sh(f"""set -e
        ip link set lo up
        echo 1 >/proc/sys/net/ipv6/conf/vec0/addr_gen_mode
        ip link set vec0 up
        {addresses}
        """)
    if code != 0:
        raise Failed(f"cannot set up the guest: {out}")


def hex_keys(suite):
    """Fresh keys for one direction: of the whole suite for Weir, of each part for the kernel."""
    parts = [os.urandom(length).hex() for length, _ in algorithms(suite)]
    return "0x" + "".join(parts), ["0x" + part for part in parts]


def guest_commands(case, keys_to_guest, keys_to_host):
    """What `ip -batch` reads."""
    host, guest = OUTER[case.outer]
    near, far = (f"{address}/{32 if ':' not in address else 128}" for address in case.ends)
    if case.mode == "tunnel":
        near, far = NETWORK[case.inner]
    lines = []
    # What the kernel would otherwise take for traffic to protect, in transport mode: neighbour
    # discovery, and the UDP around ESP, which it checks before it takes the ESP out.
    clear = [("::/0", f"ipv6-icmp type {kind}", way) for kind in (135, 136) for way in ("in", "out")]
    clear += [(everything, "udp dport 4500", "in") for everything in ("0.0.0.0/0", "::/0")]
    for everything, what, direction in clear:
        lines.append(f"xfrm policy add src {everything} dst {everything} proto {what} dir {direction} priority 1 action allow")
    flags = [flag for flag, on in (
        ("esn", case.esn),
        ("align4", case.protocol == "ah" and case.outer == 4 and not case.align8),
        # Without it an SA carries packets of the family of its own addresses only.
        ("af-unspec", case.inner != case.outer and not case.fixed)) if on]
    for src, dst, spi, keys, inner in (
            (host, guest, SPI_OUT, keys_to_guest, (near, far)), (guest, host, SPI_IN, keys_to_host, (far, near))):
        words = [words.format(key) for (_, words), key in zip(algorithms(case.suite), keys)]
        last = case.first_seq - 1
        lines.append(" ".join([
            f"xfrm state add src {src} dst {dst} proto {case.protocol} spi {spi:#x} reqid 1 mode {case.mode}",
            f"{'replay-oseq' if src == guest else 'replay-seq'} {last:#x}",
            f"replay-window {case.window}", *(["flag", *flags] if flags else []), *words,
            *(["encap espinudp 4500 4500", "::" if case.outer == 6 else "0.0.0.0"] if case.encap else []),
            *([f"sel src {inner[0]} dst {inner[1]}"] if case.fixed else [])]))
    for direction, src, dst, inner in (("out", guest, host, (far, near)), ("in", host, guest, (near, far))):
        lines.append(f"xfrm policy add src {inner[0]} dst {inner[1]} dir {direction} priority 100 "
                     f"tmpl src {src} dst {dst} proto {case.protocol} reqid 1 mode {case.mode}")
    return "\n".join(lines) + "\n"


def weir_tree(case, key_out, key_in):
    """Weir's configuration of a case."""
    host, guest = OUTER[case.outer]
    near, far = case.ends
    tunnel = case.mode == "tunnel"
    return {
        "gateway": {
            "on_stop": "open",
            "addresses": None if case.mode == "transport" else f"{near}/{PREFIX[case.inner]}",
            "allow_legacy": True if case.legacy else None, "workers": case.workers,
        },
        "sas": {"peer": {
            "protocol": case.protocol, "mode": case.mode, "local": host, "remote": guest, "suite": case.suite,
            "inner_local": near if case.fixed else None, "inner_remote": far if case.fixed else None,
            "esn": True if case.esn else None, "encap": True if case.encap else None,
            "out": {"spi": hex(SPI_OUT), "key": key_out, "align8": True if case.align8 else None,
                    "first_seq": case.first_seq if case.first_seq > 1 else None},
            "in": {"spi": hex(SPI_IN), "key": key_in, "last_seq": case.first_seq - 1 if case.first_seq > 1 else None},
        }},
        "policies": {"peer": {
            "local_ts": NETWORK[case.inner][0] if tunnel else None,
            "remote_ts": NETWORK[case.inner][1] if tunnel else None, "sa": "peer",
        }},
    }


def ping(target, source, size):
    # -M dont clears DF, so that what is too large is cut and not refused. With -w it is over when
    # three are answered, however late on a busy machine.
    return f"ping -n -q -c 3 -i 0.05 -w 4 -s {size} -M dont -I {source} {target}"


def traffic(case, guest):
    """Both ways: pings of many sizes, then connections."""
    near, far = case.ends
    for size in case.ping_bytes:
        done = subprocess.run(ping(far, near, size).split(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"ping of {size} bytes to the guest: {verdict(done.stdout + done.stderr)}")
        code, out = guest.sh(ping(near, far, size))
        if code != 0:
            raise Failed(f"ping of {size} bytes from the guest: {verdict(out)}")
    large_datagram(near, far, guest)
    wrong = transfer.exchange(far, TRANSFER_BYTES, near)
    if wrong:
        raise Failed(f"TCP to the guest: {wrong}")
    wrong = guest.ask(exchange=near, bytes=TRANSFER_BYTES, source=far)["wrong"]
    if wrong:
        raise Failed(f"TCP from the guest: {wrong}")


def large_datagram(near, far, guest):
    """One beyond the MTU, from the guest: Linux protects it whole in every mode and cuts afterwards."""
    with transfer.datagram_socket(near) as listener:
        listener.settimeout(5)
        reply = guest.ask(datagram=near, bytes=3000, source=far)
        if "sha256" not in reply:
            raise Failed(f"a datagram of 3000 bytes did not leave the guest: {reply['wrong']}")
        try:
            received = listener.recv(65536)
        except TimeoutError:
            raise Failed("a datagram of 3000 bytes from the guest did not arrive") from None
        if hashlib.sha256(received).hexdigest() != reply["sha256"]:
            raise Failed("a datagram of 3000 bytes from the guest arrived as another")


def verdict(text):
    """The line of ping with its result."""
    lines = [line for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "packet loss" in line), lines[-1] if lines else "it printed nothing")


def check_counters(case, gateway, guest):
    """Everything went through the SAs, and neither end threw anything away."""
    status = gateway.status()
    # At least the bytes of the transfers, each way; a packet holds less than 1500.
    least = 4 * TRANSFER_BYTES // 2 // 1500
    wrong = []
    for sa in status["sas"]:
        if sa["drops"]:
            wrong.append(f"SA {sa['direction']} dropped {sa['drops']}")
        if sa["packets"] < least:
            wrong.append(f"SA {sa['direction']} saw {sa['packets']} packets instead of {least} or more")
        numbers = [lane.get("next", 0) + lane.get("top", 0) for lane in sa["lanes"]]
        if case.first_seq > 1 and max(numbers) <= 0xFFFF_FFFF:
            wrong.append(f"SA {sa['direction']} never came to numbers beyond 32 bits: {numbers}")
    # Packets of the host's kernel on a new device belongs to no policy.
    drops = {reason: n for reason, n in status["total"]["drops"].items() if reason != "no_policy" or n > 20}
    if drops:
        wrong.append(f"dropped {drops}")
    if status["total"]["bypassed"]:
        wrong.append(f"{status['total']['bypassed']} packets in the clear")
    errors = xfrm_errors(guest)
    if errors:
        wrong.append(f"the guest counted {errors}")
    if wrong:
        raise Failed("; ".join(wrong))


def check_traces():
    """A gateway that has stopped leaves no rule behind."""
    rules = subprocess.run("ip -4 rule; ip -6 rule", shell=True, capture_output=True, text=True, check=True).stdout
    if "fwmark" in rules:
        raise Failed(f"weir left a rule behind: {rules}")


def xfrm_errors(guest):
    _, out = guest.sh("cat /proc/net/xfrm_stat")
    counts = {name: int(n) for name, n in (line.split() for line in out.splitlines() if line)}
    fresh = {name: n - xfrm_errors.before.get(name, 0) for name, n in counts.items()}
    xfrm_errors.before = counts
    return {name: n for name, n in fresh.items() if n}


xfrm_errors.before = {}


def run(case, guest, lab):
    key_out, keys_to_guest = hex_keys(case.suite)
    key_in, keys_to_host = hex_keys(case.suite)
    # File names are new for each case: the guest remembers what it read.
    batch = os.path.join(lab, case.name, "xfrm.batch")
    os.makedirs(os.path.dirname(batch), exist_ok=True)
    with open(batch, "w", encoding="ascii") as file:
        file.write(guest_commands(case, keys_to_guest, keys_to_host))
    try:
        code, out = guest.sh(f"ip -batch {batch}")
        if code != 0:
            raise Refused(out.replace("\n", " "))
        xfrm_errors(guest)
        tree = weir_tree(case, key_out, key_in)
        for kill in (False, True, False) if case.restart else (False,):
            with Gateway(os.path.dirname(batch), tree) as gateway:
                try:
                    traffic(case, guest)
                    check_counters(case, gateway, guest)
                except Failed as wrong:
                    # The counters of both ends explain more than the loss.
                    seen = {sa["direction"]: (sa["packets"], sa["drops"]) for sa in gateway.status()["sas"]}
                    raise Failed(f"{wrong}; weir: {seen}, {gateway.status()['total']['drops']}; "
                                 f"guest: {xfrm_errors(guest)}") from None
                if kill:
                    gateway.kill()
        check_traces()
    finally:
        guest.sh("ip xfrm policy flush; ip xfrm state flush")


def main():
    lab, *names = sys.argv[1:]
    cases = [case for case in CASES if not names or case.name in names]
    unknown = set(names) - {case.name for case in CASES}
    if unknown:
        print(f"FAIL linux/all: there is no case {', '.join(sorted(unknown))}; see cases.py")
        return 1
    os.umask(0o077)
    try:
        prepare_host()
        transfer.serve_forever()
        started = time.monotonic()
        guest = Guest(lab, HERE, TAP)
        print(f"guest: {guest.sh('uname -sr')[1]}, ready after {time.monotonic() - started:.1f} s")
        prepare_guest(guest)
    except (Failed, OSError) as error:
        print(f"FAIL linux/all: {error}")
        return 1
    failed = 0
    for case in cases:
        started = time.monotonic()
        try:
            run(case, guest, lab)
            print(f"PASS linux/{case.name} ({time.monotonic() - started:.1f} s)")
        except Refused as why:
            print(f"SKIP linux/{case.name}: this kernel refuses: {why}")
        except Failed as why:
            failed += 1
            print(f"FAIL linux/{case.name}: {why}")
        except OSError as error:
            # Without the guest nothing more can be tested.
            print(f"FAIL linux/{case.name}: {error}")
            return 1
    return 1 if failed else 0


sys.exit(main())
