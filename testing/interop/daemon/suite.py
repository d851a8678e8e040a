"""Case by case: gateways come up on two hosts, and something happens to one of them.

Runs as the first process of its own namespaces (see run.sh): its end is the end of everything started here.
"""

import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket as socket_module
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from lab import (  # noqa: E402
    HERE, NAMES, OUTER, PEER, TABLE, TUNNELS, WEIR, Blast, Capture, Failed, Keys, Weir, address, at, build, clean_up, no_clear,
    no_repeats, refused, sh, traces, wait_for, within)


def arrived(moon, more=60, since=None, names=NAMES):
    """Waits until so many more packets of each SA were accepted by moon."""
    since = since or {}

    def enough():
        sas = moon.sas("in")
        return all(sas[name]["packets"] >= since.get(name, 0) + more for name in names)

    try:
        wait_for("traffic", enough)
    except Failed:
        seen = {name: (sa["packets"] - since.get(name, 0), sa["drops"]) for name, sa in moon.sas("in").items()}
        raise Failed(f"not {more} packets of each SA: {seen}, in all {moon.status()['total']['drops']}") from None


def counts(gateway, direction="in"):
    return {name: sa["packets"] for name, sa in gateway.sas(direction).items()}


def crash(where):
    """The sender is killed: while it sends, while it starts, right after it started."""
    keys, starts = Keys(), 1
    with contextlib.ExitStack() as stack:
        capture = stack.enter_context(Capture(where))
        moon = stack.enter_context(Weir("moon", where, keys.tree("moon")))
        sun = Weir("sun", where, keys.tree("sun"))
        with sun:
            blast = stack.enter_context(Blast())
            arrived(moon)
            sun.kill()
        time.sleep(0.2)
        before = counts(moon)
        stated = {}
        with Weir("sun", where, keys.tree("sun")) as sun:
            for name in NAMES:
                line = sun.must_log(f"sa {name}: numbers below ")
                stated[name] = int(re.search(r"continuing at (\d+)", line)[1])
            arrived(moon, since=before)
            sun.kill()
        for _ in range(5):
            starts += 1
            Weir("sun", where, keys.tree("sun")).die_while_starting(random.uniform(0, 0.5))
        for _ in range(5):
            starts += 1
            with Weir("sun", where, keys.tree("sun")) as sun:
                time.sleep(random.uniform(0, 0.05))
                sun.kill()
        before = counts(moon)
        with Weir("sun", where, keys.tree("sun")) as sun:
            arrived(moon, since=before)
            blast.__exit__()
            total = moon.status()["total"]["drops"]
    packets, clear = capture.sent()
    no_repeats(packets)
    no_clear(clear)
    if total.get("replay"):
        raise Failed(f"moon dropped {total}")
    for name, at_least in stated.items():
        sent = [p for (of, _), seen in packets.items() if of == name for p in seen]
        after = [p.seq for p in sent if p.seq >= at_least]
        if not after or len(after) == len(sent):
            raise Failed(f"SA {name}: went on at other numbers than {at_least}")
    sessions = [session for name, session in packets if name == "eesp"]
    if len(sessions) < 2:
        raise Failed("all of EESP went through one Sub SA")
    return f"{starts + 2} starts, {sum(map(len, packets.values()))} packets, none in the clear"


def receiver(where):
    """The receiver is killed: what it had seen a second before stays refused."""
    keys = Keys()
    with contextlib.ExitStack() as stack:
        capture = stack.enter_context(Capture(where))
        stack.enter_context(Weir("sun", where, keys.tree("sun")))
        with Weir("moon", where, keys.tree("moon")) as moon:
            with Blast():
                arrived(moon)
            time.sleep(1.3)
            moon.kill()
        capture.__exit__()
        packets, _ = capture.sent()
        frames = [p.frame.hex() for seen in packets.values() for p in seen[-40:]]
        with Weir("moon", where, keys.tree("moon")) as moon:
            at("sun", ["/usr/bin/python3", os.path.join(HERE, "replay.py")], input="\n".join(frames))
            time.sleep(0.2)
            for name, sa in moon.sas("in").items():
                sent = sum(min(40, len(seen)) for (of, _), seen in packets.items() if of == name)
                if sa["packets"] or sa["drops"] != {"replay": sent}:
                    raise Failed(f"SA {name}: of {sent} old packets {sa['packets']} were accepted, dropped {sa['drops']}")
            with Blast():
                arrived(moon)
    return f"{len(frames)} old packets refused"


def disk(where):
    """The disk is full: packets go on to the saved number, and again when there is room."""
    keys, tiny = Keys(), os.path.join(where, "tiny")
    os.makedirs(tiny)
    sh(f"mount -t tmpfs -o size=256k tiny {tiny}")
    filler = os.path.join(tiny, "filler")

    def tree():
        return keys.tree("sun", state_dir=os.path.join(tiny, "state"), state_block=1024)

    def fill():
        sh(f"dd if=/dev/zero of={filler} bs=4096", check=False)

    with contextlib.ExitStack() as stack:
        capture = stack.enter_context(Capture(where))
        moon = stack.enter_context(Weir("moon", where, keys.tree("moon")))
        with Weir("sun", where, tree()) as sun:
            with Blast(per_second=700):
                arrived(moon)
                fill()
                at_full = counts(moon)

                def starved():
                    return all(sa["drops"].get("seq_unsaved") for sa in sun.sas("out").values())

                wait_for("every SA out of saved numbers", starved, 20)
                sun.must_log("cannot save sequence numbers in")
                for name, sa in sun.sas("out").items():
                    if any(lane["next"] > lane["saved"] for lane in sa["lanes"]):
                        raise Failed(f"SA {name} went beyond what is saved: {sa['lanes']}")
                if all(counts(moon)[name] == at_full[name] for name in NAMES):
                    raise Failed("traffic ended with the room on the disk")
                os.remove(filler)
                arrived(moon, since=counts(moon))
                fill()
                sun.kill()
                output = refused("sun", sun.config)
                if "make room" not in output:
                    raise Failed(f"it does not state the remedy: {output}")
                os.remove(filler)
                before = counts(moon)
                sun = stack.enter_context(Weir("sun", where, tree()))
                arrived(moon, since=before)
    sh(f"umount {tiny}")
    packets, clear = capture.sent()
    no_repeats(packets)
    no_clear(clear)
    return f"{sum(map(len, packets.values()))} packets"


def reload(where):
    """SIGHUP: what is the same goes on, what is not is replaced, what is wrong changes nothing."""
    keys = Keys()
    with contextlib.ExitStack() as stack:
        capture = stack.enter_context(Capture(where))
        moon = stack.enter_context(Weir("moon", where, keys.tree("moon")))
        sun = stack.enter_context(Weir("sun", where, keys.tree("sun")))
        stack.enter_context(Blast())
        arrived(moon)

        def hup(times):
            sun.signal(signal.SIGHUP)
            wait_for("reload", lambda: len(sun.logged("reloaded", 0)) >= times)

        before = sun.sas("out")
        hup(1)
        after = sun.sas("out")
        for name in NAMES:
            was, now = before[name], after[name]
            if now["packets"] < was["packets"] or now["lanes"][0]["saved"] != was["lanes"][0]["saved"]:
                raise Failed(f"an unchanged file changed SA {name}: {was} {now}")
        # Another window on the receiving side is another SA; so is another hop limit.
        with open(sun.config, encoding="ascii") as file:
            good = file.read()
        changed = good.replace("suite = aes256gcm16\n", "suite = aes256gcm16\n        hop_limit = 17\n", 1)
        write(sun.config, changed)
        before = sun.sas("out")
        hup(2)
        after = sun.sas("out")
        if after["gcm"]["packets"] >= before["gcm"]["packets"]:
            raise Failed("a changed SA kept its counters")
        if after["gcm"]["lanes"][0]["next"] < before["gcm"]["lanes"][0]["saved"]:
            raise Failed("a changed SA went back in its numbers")
        if after["cbc"]["packets"] < before["cbc"]["packets"]:
            raise Failed("an unchanged SA lost its counters")
        arrived(moon, since=counts(moon))
        write(sun.config, changed.replace("spi = 0x1001", "spi = 0x01", 1).replace("aes128-sha256", "aes128-sha257"))
        sun.signal(signal.SIGHUP)
        sun.must_log("configuration unchanged")
        errors = " ".join(sun.logged("ERROR control"))
        if "reserved" not in errors or "sha257" not in errors:
            raise Failed(f"the log does not name every mistake: {errors}")
        arrived(moon, since=counts(moon))
        # A removed SA and its policy: clear text is permitted again, because the file no
        # longer names it.
        write(sun.config, good)
        hup(3)
    packets, clear = capture.sent()
    no_repeats(packets)
    no_clear(clear)
    hops = {p.frame[22] for p in packets["gcm", 0]}
    if hops != {64, 17}:
        raise Failed(f"hop limits on the wire: {hops}")
    return None


def write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def sub_sas(where):
    """Sub SAs of the sender that a reload takes away and another brings back do not start again.

    Those of the receiver stay: without the replay window of one, its packets could be replayed."""
    keys = Keys()
    tree = keys.tree("sun", ["eesp"])
    sa = tree["sas"]["eesp"]
    count = sa.pop("sub_sas")
    sa["out"]["sub_sas"] = sa["in"]["sub_sas"] = count
    with contextlib.ExitStack() as stack:
        capture = stack.enter_context(Capture(where))
        moon = stack.enter_context(Weir("moon", where, keys.tree("moon", ["eesp"])))
        sun = stack.enter_context(Weir("sun", where, tree))
        stack.enter_context(Blast(["eesp"]))
        arrived(moon, 100, names=["eesp"])
        with open(sun.config, encoding="ascii") as file:
            both = file.read()
        before_in, begin, within_in = both.partition("in {")
        if not begin or "sub_sas = 2" not in before_in or "sub_sas = 2" not in within_in:
            raise Failed("`out` with its Sub SAs does not precede `in`")
        fewer = before_in.replace("sub_sas = 2", "sub_sas = 1") + begin + within_in
        for times, text in ((1, fewer), (2, both)):
            before = counts(moon)
            write(sun.config, text)
            sun.signal(signal.SIGHUP)
            wait_for("reload", lambda: len(sun.logged("reloaded", 0)) >= times)
            arrived(moon, 100, since=before, names=["eesp"])
        before = counts(moon)
        write(sun.config, before_in + begin + within_in.replace("sub_sas = 2", "sub_sas = 1"))
        sun.signal(signal.SIGHUP)
        sun.must_log("number of Sub SAs cannot change while the key is in use")
        arrived(moon, 100, since=before, names=["eesp"])
    packets, clear = capture.sent()
    no_repeats(packets)
    no_clear(clear)
    if len(packets["eesp", 1]) < 10:
        raise Failed("the second Sub SA was not in use")
    return None


def stop(where):
    """SIGTERM: everything that was made is gone, and the next start goes on at the next number."""
    keys = Keys()
    with contextlib.ExitStack() as stack:
        capture = stack.enter_context(Capture(where))
        moon = stack.enter_context(Weir("moon", where, keys.tree("moon")))
        with Weir("sun", where, keys.tree("sun")) as sun:
            with Blast():
                arrived(moon)
            sun.signal(signal.SIGTERM)
            if sun.ended() != 0:
                raise Failed(f"it ended with a status other than 0: {sun.last_words()}")
            if traces("sun") or os.path.exists(sun.socket):
                raise Failed(f"it left {traces('sun') or 'its socket'}")
        stated = {}
        with Weir("sun", where, keys.tree("sun")) as sun:
            for name in NAMES:
                stated[name] = int(sun.must_log(f"sa {name}: continuing at ").rsplit(" ", 1)[1])
            if sun.logged("may have been used", 0):
                raise Failed("it speaks of a crash after a clean stop")
        capture.__exit__()
        with Capture(os.path.join(where, "after")) as after, Blast():
            # The other half of the promise, and the proof that these tests would see it.
            wait_for("packets in the clear after a clean stop", lambda: len(after.sent()[1]) > 10)
    packets, clear = capture.sent()
    no_repeats(packets)
    no_clear(clear)
    for name, number in stated.items():
        last = max(p.seq for (of, _), seen in packets.items() if of == name for p in seen)
        if number != last + 1:
            raise Failed(f"SA {name}: the last number was {last}, the next is {number}")
    return None


def closed(where):
    """SIGTERM with on_stop = closed: nothing leaves in clear text until `weir down`, which removes every trace."""
    keys = Keys()
    capture = Capture(where)
    with capture, Weir("sun", where, keys.tree("sun", on_stop="closed")) as sun, Blast():
        wait_for("protected packets", lambda: sum(len(seen) for seen in capture.sent()[0].values()) > 10)
        sun.signal(signal.SIGTERM)
        if sun.ended() != 0:
            raise Failed(f"it ended with a status other than 0: {sun.last_words()}")
        time.sleep(1)
        missing = {"rule", "routes", "nftables table"} - set(traces("sun"))
        if missing:
            raise Failed(f"after the stop there is no {missing}")
    no_clear(capture.sent()[1])
    down = [WEIR, "down", sun.config]
    with Capture(os.path.join(where, "after")) as after, Blast():
        time.sleep(0.5)
        no_clear(after.sent()[1])
        at("sun", down)
        if traces("sun"):
            raise Failed(f"weir down left {traces('sun')}")
        wait_for("packets in clear text after weir down", lambda: len(after.sent()[1]) > 10)
    # A gateway that runs is stopped by it.
    with Weir("sun", where, keys.tree("sun", on_stop="closed")) as sun:
        at("sun", down)
        if sun.ended() != 0 or traces("sun"):
            raise Failed(f"weir down left {traces('sun') or 'a gateway with a bad exit status'}: {sun.last_words()}")
    return None


def full_tunnel(where):
    """A policy for all addresses leaves private networks on the links reachable, unless bypass_lan = no."""
    sh("ip link add lan netns sun type veth peer name lan netns moon")
    try:
        for host, number in (("sun", 1), ("moon", 2)):
            sh(f"ip -n {host} addr add 192.168.77.{number}/24 dev lan && ip -n {host} link set lan up")

        def reached(host, target):
            return " 0 received" not in at(host, ["ping", "-c", "2", "-i", "0.2", "-W", "1", target])

        for bypass_lan in (True, False):
            tree = Keys().tree("sun", ["gcm"], bypass_lan=bypass_lan)
            tree["policies"] = {"all": {"local_ts": "0.0.0.0/0", "remote_ts": "0.0.0.0/0", "action": "drop"}}
            with Weir("sun", where, tree):
                seen = reached("sun", "192.168.77.2"), reached("moon", "192.168.77.1")
                if seen != (bypass_lan, bypass_lan):
                    raise Failed(f"bypass_lan = {bypass_lan}: the private network was reached (out, in): {seen}")
                if reached("sun", OUTER["moon"]) or reached("moon", OUTER["sun"]):
                    raise Failed("a network of public addresses on the link was reached in clear text")
        if not reached("sun", OUTER["moon"]):
            raise Failed("the wire does not work without the gateway, so nothing was tested")
    finally:
        sh("ip -n sun link del lan", check=False)
    return None


# Networks behind sun (1) and moon (2), and the hosts in them, by family.
LAN = {4: ("10.81.{}.0/24", "10.81.{}.1/24", "10.81.{}.5/24"), 6: ("fd81:{}::/64", "fd81:{}::1/64", "fd81:{}::5/64")}
TCP_PORT = 5201


def lans():
    """A host on a link of 1500 bytes behind each gateway; both gateways forward."""
    for number, host in enumerate(OUTER, 1):
        sh(f"ip netns add {host}-lan && ip link add lan netns {host} type veth peer name lan netns {host}-lan")
        sh(f"""exec nsenter --net=/run/netns/{host} sh -ec '
            echo 0 >/proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
            echo 1 >/proc/sys/net/ipv4/ip_forward'""")
        for family, (_, gateway, inside) in LAN.items():
            nodad = "nodad" if family == 6 else ""
            sh(f"""ip -n {host} addr add {gateway.format(number)} dev lan {nodad}; ip -n {host} link set lan up
                   ip -n {host}-lan addr add {inside.format(number)} dev lan {nodad}; ip -n {host}-lan link set lan up
                   ip -n {host}-lan -{family} route add default via {gateway.format(number).split("/")[0]}""")


def no_lans():
    for host in OUTER:
        sh(f"""ip netns del {host}-lan; ip -n {host} link del lan
               exec nsenter --net=/run/netns/{host} sh -c 'echo 0 >/proc/sys/net/ipv4/ip_forward
                   echo 0 >/proc/sys/net/ipv6/conf/all/forwarding; echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6'""",
           check=False)


def offered(family):
    """MSS in bytes that each host behind a gateway receives from the other one: in SYN/ACK and in SYN."""
    server = LAN[family][2].format(2).split("/")[0]
    talk = ("import sys; sys.path.insert(0, sys.argv[1]); import transfer\n"
            "if sys.argv[2] == 'serve': transfer.serve_forever(); print('ready', flush=True); sys.stdin.read()\n"
            "else: sys.exit(transfer.exchange(sys.argv[2], 300_000))")
    python = ["/usr/bin/python3", "-B", "-c", talk, os.path.join(HERE, "..", "lib")]
    with contextlib.ExitStack() as stack:
        serving = subprocess.Popen([*within("moon-lan"), *python, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        stack.callback(serving.wait)
        stack.callback(serving.kill)
        serving.stdout.readline()
        captures = {}
        for host in OUTER:
            captures[host] = subprocess.Popen(
                [*within(f"{host}-lan"), "tcpdump", "--immediate-mode", "-l", "-n", "-Q", "in", "-i", "lan", f"tcp port {TCP_PORT}"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.callback(captures[host].wait)
            stack.callback(captures[host].kill)
            captures[host].stderr.readline()
            if "listening" not in captures[host].stderr.readline():
                raise Failed("tcpdump does not listen")
        done = subprocess.run([*within("sun-lan"), *python, server], capture_output=True, text=True, check=False, timeout=60)
        if done.returncode != 0:
            raise Failed(f"IPv{family}: the transfer failed: {done.stderr.strip()}")
        found = []
        for capture, flags in ((captures["sun"], "[S.]"), (captures["moon"], "[S]")):
            lines = (line for line in iter(capture.stdout.readline, "") if f"Flags {flags}" in line)
            found.append(int(re.search(r"mss (\d+)", next(lines))[1]))
        return tuple(found)


def mss(where):
    """TCP between hosts behind the gateways has an MSS that fits the tunnel, a given one, or its own."""
    lans()
    try:
        for setting in ("auto", "no", "1200"):
            keys = Keys()
            with contextlib.ExitStack() as stack:
                for number, host in enumerate(OUTER, 1):
                    tree = keys.tree(host, ["gcm"], addresses=None, mss=setting)
                    side = {"local_ts": number, "remote_ts": 3 - number}
                    networks = {key: ", ".join(LAN[family][0].format(of) for family in LAN) for key, of in side.items()}
                    tree["policies"] = {"lans": {**networks, "sa": "gcm"}}
                    stack.enter_context(Weir(host, where, tree))
                mtu = int(re.search(r" mtu (\d+)", at("sun", ["ip", "link", "show", "weir0"]))[1])
                limit = {"auto": mtu - 40, "no": 1460, "1200": 1200}[setting]
                if setting == "auto" and not 1300 < limit < 1460:
                    raise Failed(f"the device has an MTU of {mtu} bytes, which limits nothing")
                for family, less in ((4, 0), (6, 20)):
                    seen = offered(family)
                    if seen != (limit - less,) * 2:
                        raise Failed(f"mss = {setting}, IPv{family}: an MSS of {seen} bytes (in SYN/ACK, in SYN), not {limit - less}")
    finally:
        no_lans()
    return None


def fault(where):
    """The device is taken away: the gateway ends, and what was protected stays at home."""
    keys = Keys()
    with contextlib.ExitStack() as stack:
        capture = stack.enter_context(Capture(where))
        moon = stack.enter_context(Weir("moon", where, keys.tree("moon")))
        with Weir("sun", where, keys.tree("sun")) as sun:
            blast = stack.enter_context(Blast())
            arrived(moon)
            at("sun", ["ip", "link", "del", "weir0"])
            code = sun.ended()
            if code != 1:
                raise Failed(f"it ended with status {code}: {sun.last_words()}")
            sun.must_log("protected traffic stays blocked", 0)
            time.sleep(0.3)
        before = counts(moon)
        with Weir("sun", where, keys.tree("sun")):
            arrived(moon, since=before)
            blast.__exit__()
    packets, clear = capture.sent()
    no_repeats(packets)
    no_clear(clear)
    if traces("sun"):
        raise Failed(f"the next start did not clean up: {traces('sun')}")
    return None


def start(where):
    """A gateway that cannot start reports the reason in one message, leaves nothing, and disturbs no other."""
    keys = Keys()
    second = Weir("sun", where, keys.tree("sun"))
    no_tun = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro none /dev/net && exec "$@"', "sh")
    caps = "-net_admin,-net_raw,-sys_admin"
    no_right = ("setpriv", f"--bounding-set={caps}", f"--inh-caps={caps}")
    only_raw = ("setpriv", "--bounding-set=-net_admin,-sys_admin", "--inh-caps=-net_admin,-sys_admin")
    for prefix, words in ((no_tun, "/dev/net/tun is missing"), (no_right, "CAP_NET_RAW"), (only_raw, "CAP_NET_ADMIN")):
        expect(second, prefix, words)
        if traces("sun") or os.path.exists(second.socket):
            raise Failed(f"'{words}': it left {traces('sun') or 'its socket'}")
    with Weir("moon", where, keys.tree("moon")) as moon, Weir("sun", where, keys.tree("sun")) as sun:
        other = os.path.join(where, "other")
        apart = {"state_dir": os.path.join(other, "state"), "socket": os.path.join(other, "weir.sock"), "tun": "weir1",
                 "addresses": "10.99.1.1/24"}
        rules = at("sun", ["ip", "rule"]) + at("sun", ["ip", "route", "show", "table", TABLE])
        for what, words in (
                ({"tun": "weir0"}, "'weir0': the name is taken"),
                ({"socket": sun.socket}, "another daemon answers there"),
                ({"state_dir": os.path.join(where, "sun", "state")}, "in use by another weir"),
                ({}, f"routing table {TABLE} already leads to weir0")):
            second = Weir("sun", other, Keys().tree("sun", ["gcm"], **{**apart, **what}))
            expect(second, (), words)
            now = at("sun", ["ip", "rule"]) + at("sun", ["ip", "route", "show", "table", TABLE])
            if now != rules:
                raise Failed(f"'{words}': it changed the routes of the one that runs: {now}")
            if "weir1" in at("sun", ["ip", "-o", "link"]) or os.path.exists(apart["socket"]):
                raise Failed(f"'{words}': it left its device or its socket")
        with Blast():
            arrived(moon)
        sun.status()
    return None


def expect(gateway, prefix, words):
    output = refused("sun", gateway.config, prefix)
    joined = " ".join(output.split())
    if words not in joined:
        raise Failed(f"it does not say '{words}': {joined}")
    if len([line for line in output.splitlines() if "rror" in line]) > 1:
        raise Failed(f"more than one error: {output}")


def damaged(where):
    """Saved numbers that cannot be read are not guessed."""
    keys = Keys()
    with Weir("sun", where, keys.tree("sun", ["gcm"])) as sun:
        pass
    folder = os.path.join(where, "sun", "state")
    files = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".state")]
    if not files:
        raise Failed("there is no state file")
    for path in files:
        with open(path, "rb") as file:
            whole = file.read()
        for bad in (b"", whole[:len(whole) // 2], whole[:-1], os.urandom(200), whole.replace(b"0 ", b"0 1", 1), b"\0" * 4096):
            with open(path, "wb") as file:
                file.write(bad)
            expect(sun, (), "set new keys for this SA, then remove the file")
            if traces("sun") or os.path.exists(sun.socket):
                raise Failed(f"it left {traces('sun') or 'its socket'}")
        with open(path, "wb") as file:
            file.write(whole)
    with Weir("sun", where, keys.tree("sun", ["gcm"])) as sun:
        sun.must_log("sa gcm: continuing at 1")
    tree = keys.tree("sun", ["eesp"])
    tree["sas"]["eesp"]["out"]["first_iv"] = 1000
    with Weir("sun", where, tree):
        pass
    tree["sas"]["eesp"]["out"]["first_iv"] = 500
    expect(Weir("sun", where, tree), (), "set a new key, or 'first_iv = 1000' as before")
    return "6 ways"


def user(where):
    """An ordinary user, in a user namespace."""
    home = "/run/nobody"
    os.makedirs(home)
    shutil.copy(WEIR, os.path.join(home, "weir"))
    tree = Keys().tree("sun", ["gcm", "psp"], state_dir=f"{home}/state", socket=f"{home}/weir.sock")
    shutil.copy(Weir("sun", where, tree).config, os.path.join(home, "weir.conf"))
    sh(f"chown -R 65534:65534 {home} && chmod 700 {home} && chmod 755 {home}/weir")
    # As udev makes it; here it may be root's alone.
    sh("mknod -m 666 /run/tun c 10 200 && mount --bind /run/tun /dev/net/tun")
    ordinary = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
    own = [*ordinary, "unshare", "--user", "--map-root-user", "--net"]
    trial = subprocess.run([*own, "ip", "tuntap", "add", "probe", "mode", "tun"], capture_output=True, text=True, check=False)
    if trial.returncode != 0:
        raise Skipped(f"this kernel gives an ordinary user no network: {trial.stderr.strip()}")
    script = f"""
        ip link set lo up; ip addr add {OUTER['sun']}/24 dev lo
        {home}/weir up --config {home}/weir.conf 2>{home}/log & weir=$!
        for i in $(seq 100); do
            grep -q "weir: ready" {home}/log && break
            kill -0 $weir || {{ cat {home}/log; exit 3; }}
            sleep 0.1
        done
        ping -c 1 -W 1 {address('gcm', 'moon')}
        {home}/weir status --json --socket {home}/weir.sock >{home}/output || exit 4
        kill $weir; wait $weir || exit 5
        ip rule; ip -o link"""
    done = subprocess.run([*own, "sh", "-c", script], capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0 or "fwmark" in done.stdout or "weir0" in done.stdout:
        raise Failed(f"status {done.returncode}: {done.stdout.strip()} {done.stderr.strip()}")
    with open(f"{home}/output", encoding="utf-8") as file:
        sas = json.load(file)["sas"]
    if [sa["packets"] for sa in sas if (sa["name"], sa["direction"]) == ("gcm", "out")] != [1]:
        raise Failed(f"the ping did not go through it: {sas}")
    return None


OWN = 4711


def negotiated(host, names, numbers=(1,), **gateway):
    """The configuration of a host with a connection for each number, to networks 10.NUMBER.1.0/24 and 10.NUMBER.2.0/24."""
    mine, other = (1, 2) if host == "sun" else (2, 1)
    connections = {}
    for number in numbers:
        child = {"local_ts": f"10.{number}.{mine}.0/24", "remote_ts": f"10.{number}.{other}.0/24",
                 "start_action": "trap" if host == "sun" else "none", "esp_proposals": "aes128gcm16"}
        connections[f"peer{number}"] = {
            "local_addrs": OUTER[host], "remote_addrs": names.get(number, OUTER[PEER[host]]),
            "proposals": "aes128gcm16-prfsha256-x25519", "local": {"auth": "psk", "id": f"{host}{number}"},
            "remote": {"auth": "psk", "id": f"{PEER[host]}{number}"}, "children": {f"net{number}": child}}
    addresses = ", ".join(f"10.{number}.{mine}.1/24" for number in (1, 2))
    secrets = {f"ike-{number}": {"id-1": f"sun{number}", "id-2": f"moon{number}", "secret": "for this test alone"}
               for number in numbers}
    return {"gateway": {"addresses": addresses, "log_json": False, **gateway}, "connections": connections, "secrets": secrets}


def process(pid):
    """State of a process in /proc."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def is_own_user(gateway, bounded=True):
    """All threads run as the user, with three capabilities that no program can get."""
    for thread in os.listdir(f"/proc/{gateway.pid}/task"):
        status = process(f"{gateway.pid}/task/{thread}")
        wanted = {"Uid": "\t".join([str(OWN)] * 4), "Gid": "\t".join([str(OWN)] * 4), "CapEff": "0000000000003400",
                  "CapPrm": "0000000000003400", "CapInh": "0" * 16, "CapAmb": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
        if bounded:
            wanted["CapBnd"] = "0000000000003400"
        wrong = {key: status[key] for key, value in wanted.items() if status[key] != value}
        if wrong:
            raise Failed(f"thread {status['Name']}: {wrong}")


def own_user(where):
    """Started by root it becomes a user of its own; started as that user it does the same."""
    home = "/run/own-user"
    os.makedirs(f"{home}/etc/private")
    # As udev makes it; here it may be root's alone.
    sh(f"""mknod -m 666 /run/own-tun c 10 200; mount --bind /run/own-tun /dev/net/tun
           cp {WEIR} /run/own-weir; chmod 755 /run/own-weir
           chown -R 0:{OWN} {home}; chmod 755 {home}; chmod 750 {home}/etc {home}/etc/private""")
    own = {"user": OWN, "state_dir": f"{home}/state", "socket": f"{home}/run/weir.vici", "on_stop": "closed"}

    def gateway(numbers=(1,), prefix=()):
        sun = Weir("sun", where, negotiated("sun", {}, numbers, **own))
        shutil.copy(sun.config, f"{home}/etc/weir.conf")
        sh(f"chown 0:{OWN} {home}/etc/weir.conf; chmod 640 {home}/etc/weir.conf")
        sun.config, sun.socket = f"{home}/etc/weir.conf", f"{home}/run/weir.vici"
        # In a place that the user can reach.
        sun.within = (*sun.within, *prefix, "sh", "-c", 'shift; exec /run/own-weir "$@"', "sh")
        return sun

    # A key of root's alone would be lost with the first reload.
    key = f"{home}/etc/private/gw.pem"
    write(key, "-----BEGIN PRIVATE KEY-----\n")
    sh(f"chmod 600 {key}")
    expect(gateway(), (), f"{key}: not readable by user {OWN}")
    if f"{key}: not readable by user {OWN}" not in " ".join(at("sun", ["sh", "-c", f"{WEIR} check {home}/etc/weir.conf 2>&1"]).split()):
        raise Failed("weir check does not name the key that the user cannot read")
    os.remove(key)
    config = gateway().config
    write(config, open(config, encoding="ascii").read().replace(f"user = {OWN}", "user = no-such-user"))
    output = refused("sun", config)
    if "has no user 'no-such-user'" not in output:
        raise Failed(f"an unknown user: {output}")

    as_user = ("setpriv", f"--reuid={OWN}", f"--regid={OWN}", "--clear-groups", "--no-new-privs",
               "--inh-caps=-all,+net_admin,+net_raw,+net_bind_service", "--ambient-caps=-all,+net_admin,+net_raw,+net_bind_service",
               "--bounding-set=-all,+net_admin,+net_raw,+net_bind_service")
    with Weir("moon", where, negotiated("moon", {}, (1, 2))):
        for prefix in ((), as_user):
            capture = Capture(os.path.join(where, "user" if prefix else "root"))
            manager = socket_module.socket(socket_module.AF_UNIX, socket_module.SOCK_DGRAM)
            manager.bind(f"{home}/notify")
            manager.settimeout(5)
            os.chmod(f"{home}/notify", 0o666)
            os.environ["NOTIFY_SOCKET"] = f"{home}/notify"

            def expect_notification(words):
                output = "STATUS="
                # A change of the status comes at any time.
                while output.startswith("STATUS="):
                    output = manager.recv(256).decode("ascii")
                if not output.startswith(words):
                    raise Failed(f"the service manager was sent '{output}' instead of '{words}'")

            with capture, gateway(prefix=prefix) as sun:
                is_own_user(sun)
                expect_notification("READY=1")
                wait_for("the tunnel", lambda: pings("10.1.2.1"))
                if os.stat(f"{home}/state").st_uid != OWN:
                    raise Failed("the state is not the user's")
                gateway((1, 2))
                sun.signal(signal.SIGHUP)
                sun.must_log("reloaded")
                expect_notification("RELOADING=1\nMONOTONIC_USEC=")
                expect_notification("READY=1")
                wait_for("the connection of the reload", lambda: pings("10.2.2.1"))
                status = subprocess.run([WEIR, "status", "--socket", sun.socket], capture_output=True, text=True, check=False)
                if "peer2" not in status.stdout:
                    raise Failed(f"weir status: {status.stdout}{status.stderr}")
                # It dies; what is protected stays closed, the next start goes on.
                sun.kill()
                at("sun", ["ping", "-c", "3", "-i", "0.2", "-W", "1", "10.1.2.1"])
            again = Capture(os.path.join(where, "user-again" if prefix else "root-again"))
            with again, gateway((1, 2), prefix) as sun:
                is_own_user(sun)
                wait_for("the tunnel after a crash", lambda: pings("10.1.2.1") and pings("10.2.2.1"))
                sun.signal(signal.SIGTERM)
                if sun.ended() != 0:
                    raise Failed(f"it ended with a status other than 0: {sun.last_words()}")
                expect_notification("READY=1")
                expect_notification("STOPPING=1")
                at("sun", ["ping", "-c", "3", "-i", "0.2", "-W", "1", "10.1.2.1"])
            del os.environ["NOTIFY_SOCKET"]
            manager.close()
            os.remove(f"{home}/notify")
            for seen in (capture, again):
                no_clear([packet for packet in seen.sent()[1] if packet.dst.startswith("10.")])
            if {"rule", "routes", "nftables table"} - set(traces("sun")):
                raise Failed(f"after a stop with on_stop = closed there is only {traces('sun')}")
            at("sun", [WEIR, "down", "--config", config])
            if traces("sun"):
                raise Failed(f"weir down left {traces('sun')}")
        with gateway() as sun:
            at("sun", [WEIR, "down", "--config", config])
            if sun.ended() != 0 or traces("sun"):
                raise Failed(f"weir down left {traces('sun') or 'a gateway with a bad exit status'}")
    other = ("setpriv", f"--reuid={OWN + 1}", f"--regid={OWN}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all",
             "sh", "-c", 'shift; exec /run/own-weir "$@"', "sh")
    expect(gateway(), other, f"user {OWN + 1} cannot become '{OWN}'")
    return None


# Adds and removes peer2 by turns; as soon as the daemon reports that it is there, a packet goes to
# its network.
AT_ONCE = """
import shutil, socket, sys
import vici
control, config, one, two = sys.argv[1:]
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(25):
    for file in (two, one):
        shutil.copy(file, config + ".next")
        shutil.move(config + ".next", config)
        reply = vici.listing(control, "reload-settings", "log")[1]
        if reply.get("success") != "yes":
            sys.exit(f"the reload failed: {reply}")
        if file == two:
            udp.sendto(b"not to be seen", ("10.2.2.1", 9))
"""


def answered(where):
    """A reload is answered when what it protects is closed, not before."""
    trees = {number: negotiated("sun", {}, range(1, number + 1)) for number in (1, 2)}
    files = {}
    for number, tree in trees.items():
        path = Weir("sun", where, tree).config
        files[number] = shutil.copy(path, f"{path}.{number}")
    capture = Capture(os.path.join(where, "capture"))
    with capture, Weir("sun", where, trees[1]) as sun:
        lib = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib")
        done = subprocess.run([*within("sun"), sys.executable, "-c", AT_ONCE, sun.socket, sun.config, files[1], files[2]],
                              env={**os.environ, "PYTHONPATH": lib}, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise Failed(done.stderr.strip())
    no_clear([packet for packet in capture.sent()[1] if packet.dst.startswith("10.")])
    return "25 reloads"


# Sends a packet in clear text to the inner address of the other host from each source that it
# reads.
CLEAR_FROM = """
import socket, sys
import packet
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
for source in map(str.strip, sys.stdin):
    raw.sendto(packet.ip_udp(source, "10.1.1.1", source.encode(), sport=9, dport=9), ("10.1.1.1", 0))
    print(flush=True)
"""

# Loads connections by file and over the socket. As soon as one is answered, a packet of it goes
# out, and one comes in in clear text.
MANY = """
import contextlib, shutil, socket, subprocess, sys
import vici
control, config, clear_from, *files = sys.argv[1:]
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("10.1.1.1", 0))
inside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
inside.bind(("10.1.1.1", 9))
inside.settimeout(5)
moon = subprocess.Popen(["nsenter", "--net=/run/netns/moon", sys.executable, "-c", clear_from],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def arrives(source):
    print(source, file=moon.stdin, flush=True)
    moon.stdout.readline()
def done(command, message=None):
    reply = vici.listing(control, command, "log", message=message)[1]
    if reply.get("success") != "yes":
        sys.exit(f"{command} failed: {reply}")
for file in files:
    shutil.copy(file, config + ".next")
    shutil.move(config + ".next", config)
    done("reload-settings")
    number = file.rpartition(".")[2]
    if f"10.{number}.2.0/24" not in subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True).stdout:
        sys.exit(f"the guard does not contain 10.{number}.2.0/24 after the reload")
end = {"auth": "psk"}
for number in range(110, 250):
    child = {"local_ts": ["10.1.1.0/24"], "remote_ts": [f"10.{number}.2.0/24"], "start_action": "trap"}
    done("load-conn", {f"more{number}": {
        "remote_addrs": ["192.0.2.99"], "local": end, "remote": end, "children": {"net": child}}})
    # EPERM: the guard drops it.
    with contextlib.suppress(PermissionError):
        udp.sendto(b"not to be seen", (f"10.{number}.2.1", 9))
    arrives(f"10.{number}.2.1")
# No policy names this source.
arrives("10.251.2.1")
accepted = [inside.recv(100).decode()]
while accepted[-1] != "10.251.2.1":
    accepted.append(inside.recv(100).decode())
if accepted[:-1]:
    sys.exit(f"{len(accepted) - 1} packets were accepted in clear text: from {', '.join(accepted[:3])}")
"""


def many(where):
    """With many policies a reload or a connection over the socket is answered when its traffic is closed, in both directions."""
    for routes in ("auto", "none"):
        files = []
        for number in range(90, 96):
            path = Weir("sun", where, negotiated("sun", {}, range(1, number + 1), routes=routes, on_stop="open")).config
            files.append(shutil.copy(path, f"{path}.{number}"))
        capture = Capture(os.path.join(where, f"capture-{routes}"))
        with capture, Weir("sun", where, negotiated("sun", {}, range(1, 90), routes=routes, on_stop="open")) as sun:
            lib = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib")
            command = [*within("sun"), sys.executable, "-c", MANY, sun.socket, sun.config, CLEAR_FROM, *files]
            done = subprocess.run(command, env={**os.environ, "PYTHONPATH": lib}, capture_output=True, text=True,
                                  check=False, timeout=120)
            if done.returncode:
                raise Failed(f"routes = {routes}: {done.stderr.strip()}")
        no_clear([packet for packet in capture.sent()[1] if packet.dst.startswith("10.") and packet.dst != "10.1.1.1"])
    return f"{len(files)} reloads, 140 connections, with routes and without"


def resolver_files(where):
    """/etc/hosts and /etc/resolv.conf that another file replaces by a rename are read, also by a confined daemon."""
    etc = "/run/etc"
    sh(f"cp -a /etc {etc}; echo hosts: files dns >{etc}/nsswitch.conf; echo 127.0.0.1 localhost >{etc}/hosts; rm -f {etc}/resolv.conf; "
       f"printf 'nameserver 192.0.2.99\\noptions timeout:1 attempts:1\\n' >{etc}/resolv.conf; "
       f"chmod 644 {etc}/hosts {etc}/resolv.conf {etc}/nsswitch.conf; mount --bind {etc} /etc")

    def replace(name, text):
        with open(os.open(f"/etc/{name}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "w", encoding="ascii") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        os.rename(f"/etc/{name}.new", f"/etc/{name}")

    def initiates(number):
        command = [*within("sun"), WEIR, "initiate", f"net{number}", "--socket", sun.socket]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode == 0

    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(Weir("moon", where, negotiated("moon", {}, (1, 2))))
            tree = negotiated("sun", {1: "moon.hosts.test", 2: "moon.dns.test"}, (1, 2))
            for number in (1, 2):
                tree["connections"][f"peer{number}"]["children"][f"net{number}"]["start_action"] = "none"
            sun = stack.enter_context(Weir("sun", where, tree))
            if initiates(1) or initiates(2):
                raise Failed("a name has an address before it was given one")
            replace("hosts", f"127.0.0.1 localhost\n{OUTER['moon']} moon.hosts.test\n")
            wait_for("/etc/hosts that was replaced", lambda: initiates(1), 30)
            serving = subprocess.Popen([*within("sun"), "/usr/bin/python3", os.path.join(HERE, "names.py"), OUTER["moon"]],
                                       stdout=subprocess.PIPE, text=True)
            stack.callback(serving.wait)
            stack.callback(serving.kill)
            serving.stdout.readline()
            replace("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
            wait_for("/etc/resolv.conf that was replaced", lambda: initiates(2), 30)
            helpers = [pid for pid in os.listdir("/proc") if pid.isdigit() and is_helper(pid, sun.pid)]
            if len(helpers) != 1:
                raise Failed(f"processes that resolve names: {helpers}")
            status = process(helpers[0])
            if status["Uid"].split("\t")[0] != "65534" or int(status["CapEff"], 16) or status["Seccomp"] != "2":
                raise Failed(f"the process that resolves names: {status}")
            sun.kill()
            # Its parent is this process now, which does not wait for it.
            wait_for("the helper to end with the daemon", lambda: process(helpers[0])["State"].startswith("Z"))
    finally:
        sh("umount -l /etc")
    return None


def is_helper(pid, parent):
    """Whether a process resolves names for a daemon."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/cmdline", encoding="ascii") as file:
            return "look-up-names" in file.read() and process(pid)["PPid"] == str(parent)
    return False


def socket(where):
    """One socket serves every command, here with manual keys only; who may open it, and what was left there."""
    keys = Keys()
    tree = keys.tree("sun")

    def ask(*words, status=0):
        done = subprocess.run([WEIR, *words, "--socket", sun.socket], capture_output=True, text=True, timeout=15, check=False)
        if done.returncode != status:
            raise Failed(f"weir {words[0]} ended with status {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    with Weir("sun", where, tree) as sun:
        mode = os.stat(sun.socket).st_mode
        if oct(mode & 0o7777) != "0o600":
            raise Failed(f"its mode is {oct(mode)}")
        output = ask("list", "sas") + ask("list", "connections")
        if ask("reload").strip() != "reloaded":
            raise Failed("weir reload does not print that it has reloaded")
        if output:
            raise Failed(f"it has connections: {output}")
        if "manual keys only" not in ask("initiate", "net", status=1):
            raise Failed("it does not say why there is nothing to initiate")
        if "gcm" not in ask("status"):
            raise Failed("its status does not tell of its SAs")
        os.chown(sun.socket, 65534, 65534)
        sun.kill()
    if not os.path.exists(sun.socket):
        raise Failed("kill -9 took the socket away, which shows nothing")
    with Weir("sun", where, tree) as sun:
        if os.stat(sun.socket).st_uid != 0:
            raise Failed("the socket of the one that was killed is still there")
        sun.status()
    with open(sun.socket, "w", encoding="ascii") as file:
        file.write("precious")
    expect(sun, (), "path exists and is not a socket")
    with open(sun.socket, encoding="ascii") as file:
        if file.read() != "precious":
            raise Failed("a start that was refused changed a file")
    os.unlink(sun.socket)
    return None


def offload(where):
    """Super-packets on both sides, on one, on none: TCP and UDP in both families bring back the bytes they were given."""
    results = []
    for ours, theirs in [("auto", "auto"), ("auto", "no"), ("no", "auto"), ("no", "no")]:
        keys = Keys()

        def tree(host, offload):
            of = keys.tree(host, offload=offload, workers=1)
            for name in ("gcm", "eesp"):
                of["sas"][name]["encap"] = True
            for name, number in TUNNELS.items():
                mine, other = (1, 2) if host == "sun" else (2, 1)
                of["gateway"]["addresses"] += f", fd00:{number}:{mine}::1/64"
                of["policies"][f"{name}-v6"] = {
                    "sa": name, "local_ts": f"fd00:{number}:{mine}::/64", "remote_ts": f"fd00:{number}:{other}::/64"}
            return of

        for host in OUTER:
            at(host, ["sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/all/disable_ipv6; "
                                  "echo 0 >/proc/sys/net/ipv6/conf/default/disable_ipv6"])
        place = os.path.join(where, f"{ours}-{theirs}")
        with contextlib.ExitStack() as stack:
            moon = stack.enter_context(Weir("moon", place, tree("moon", theirs)))
            sun = stack.enter_context(Weir("sun", place, tree("sun", ours)))
            carry = ["/usr/bin/python3", os.path.join(HERE, "carry.py")]
            serving = subprocess.Popen([*within("moon"), *carry, "serve"], stdout=subprocess.PIPE, text=True)
            stack.callback(serving.wait)
            stack.callback(serving.kill)
            serving.stdout.readline()
            far = [address for number in TUNNELS.values() for address in (f"10.{number}.2.1", f"fd00:{number}:2::1")]
            done = subprocess.run([*within("sun"), *carry, "ask", *far], capture_output=True, text=True, timeout=120,
                                  check=False)
            if done.returncode != 0:
                raise Failed(f"offload {ours} and {theirs}: {done.stderr.strip()}")
            for size in (0, 1, 1200, 1253, 3001):
                ping = at("sun", ["ping", "-c", "1", "-W", "5", "-s", str(size), "10.1.2.1"])
                if " 0% packet loss" not in ping:
                    raise Failed(f"offload {ours} and {theirs}: ping of {size} bytes: {ping.strip()}")
            for gateway, offload in ((sun, ours), (moon, theirs)):
                total = gateway.status()["total"]
                joined = {way: total["supers"][way]["packets"] for way in total["supers"]}
                wanted = {way for way in joined if offload == "auto" and (way != "outer_rx" or ours == theirs)}
                if {way for way, packets in joined.items() if packets > 1000} != wanted:
                    raise Failed(f"offload {ours} and {theirs}: {gateway.host} joined {joined} packets")
                wrong = {why: total["drops"].get(why) for why in ("bad_icv", "malformed", "too_big", "replay")}
                if any(wrong.values()):
                    raise Failed(f"offload {ours} and {theirs}: {gateway.host} dropped {total['drops']}")
                if offload == "auto":
                    results.append(f"{joined['inner_rx'] / total['supers']['inner_rx']['calls']:.0f}")
        for host in OUTER:
            clean_up(host)
            at(host, ["sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6"])
    return f"{', '.join(results)} packets in a GSO packet"


def workers(gateway):
    """Names of its threads that take care of workers."""
    folder = f"/proc/{gateway.pid}/task"
    names = []
    for task in os.listdir(folder):
        with contextlib.suppress(OSError), open(f"{folder}/{task}/comm", encoding="ascii") as file:
            names.append(file.read().strip())
    return sorted(name for name in names if re.fullmatch(r"weir-\d+", name))


def spis(gateway):
    return {sa["spi"] for sa in gateway.status()["sas"]}


def numbered(stack, address):
    """Datagrams with numbers from sun to an address of moon, and back, until its input ends."""
    count = ["/usr/bin/python3", os.path.join(HERE, "order.py")]
    serving = subprocess.Popen([*within("moon"), *count, "serve"], stdout=subprocess.PIPE, text=True)
    stack.callback(serving.wait)
    stack.callback(serving.kill)
    serving.stdout.readline()
    asking = subprocess.Popen([*within("sun"), *count, "ask", address], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
    stack.callback(asking.kill)
    return asking


def in_order(asking, sun, moon, what):
    """How many came back, when none was lost or out of order."""
    out, error = asking.communicate(timeout=60)
    if asking.returncode != 0:
        drops = {gateway.host: gateway.status()["total"]["drops"] for gateway in (sun, moon)}
        raise Failed(f"{what}: {error.strip()}; dropped {drops}")
    return int(out)


def answers(where):
    """Sub SAs whose SPIs, one odd and one even, have them at different workers: each answer comes to the worker that sent."""
    keys = Keys()
    with contextlib.ExitStack() as stack:
        moon = stack.enter_context(Weir("moon", where, keys.tree("moon", ["eesp"])))
        sun = stack.enter_context(Weir("sun", where, keys.tree("sun", ["eesp"])))
        asking = numbered(stack, address("eesp", "moon"))
        time.sleep(2)
        echoed = in_order(asking, sun, moon, "EESP")
        there, back = ({lane["session"]: lane["next"] for lane in gateway.sas("out")["eesp"]["lanes"]} for gateway in (sun, moon))
        if there != back:
            raise Failed(f"by Session ID sun is at {there} and moon, who answers each packet, at {back}")
    return f"{echoed} datagrams there and back, by Session ID {[count - 1 for count in there.values()]}"


def order(where):
    """Every scheduler: keys are changed, tables swapped, and a CPU goes and comes back; no flow is reordered, nothing is lost."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise Skipped("one CPU cannot go")
    results = []
    for scheduler in ("pipeline", "run-to-completion", "async"):
        place = os.path.join(where, scheduler)

        def tree(host):
            mine, other = (1, 2) if host == "sun" else (2, 1)
            end = {"auth": "psk"}
            child = {"local_ts": f"10.1.{mine}.0/24", "remote_ts": f"10.1.{other}.0/24", "esp_proposals": "aes128gcm16",
                     "start_action": "trap", "rekey_time": "1s", "life_time": "1m", "rekey_packets": 500, "life_packets": 0}
            connection = {
                "local_addrs": OUTER[host], "remote_addrs": OUTER[PEER[host]], "version": 2,
                "proposals": "aes128gcm16-prfsha256-x25519", "local": {**end, "id": host}, "remote": {**end, "id": PEER[host]},
                "children": {"net": child}}
            return {"gateway": {"addresses": f"10.1.{mine}.1/24", "workers": 2, "scheduler": scheduler, "log_json": False,
                                "queues": "flows" if scheduler == "pipeline" else "answers"},
                    "connections": {"peer": connection},
                    "secrets": {"ike-all": {"id-1": "sun", "id-2": "moon", "secret": "for this test alone"}}}

        with contextlib.ExitStack() as stack:
            moon = stack.enter_context(Weir("moon", place, tree("moon")))
            sun = stack.enter_context(Weir("sun", place, tree("sun")))
            # Few packets wait for an SA.
            wait_for("keys", lambda: " 0% packet loss" in at("sun", ["ping", "-c", "1", "-W", "1", "10.1.2.1"]))
            asking = numbered(stack, "10.1.2.1")
            first = [spis(sun), spis(moon)]
            time.sleep(0.5)
            for gateway in (sun, moon):
                gateway.signal(signal.SIGHUP)
                gone = workers(gateway)[-1]
                # Its first thread follows the CPUs.
                os.sched_setaffinity(gateway.pid, {cpus[0]})
                wait_for("one thread for both workers", lambda: gone not in workers(gateway))
                time.sleep(0.5)
                os.sched_setaffinity(gateway.pid, cpus)
                wait_for("a thread for each worker", lambda: gone in workers(gateway))
                time.sleep(0.3)
            wait_for("new keys", lambda: not first[0] & spis(sun) and not first[1] & spis(moon))
            echoed = in_order(asking, sun, moon, scheduler)
            keys = len(sun.logged("child 'net' {"))
            if keys < 5:
                raise Failed(f"{scheduler}: keys were changed only {keys - 1} times")
            results.append(f"{scheduler} {echoed} through {keys} SAs")
        for host in OUTER:
            clean_up(host)
    return f"datagrams there and back: {', '.join(results)}"


# Prints how many programs are at the ingress hook of the wire: BPF_PROG_QUERY for BPF_TCX_INGRESS.
INGRESS_PROGRAMS = """
import ctypes, os, socket, struct
attr = ctypes.create_string_buffer(struct.pack("IIII", socket.if_nametoindex("wire"), 46, 0, 0), 64)
rc = ctypes.CDLL(None).syscall({"x86_64": 321, "aarch64": 280}[os.uname().machine], 16, attr, 64)
print(struct.unpack_from("I", attr, 24)[0] if rc == 0 else 0)
"""


# From Linux 6.6 on a packet socket receives at veth devices.
TCX = [int(number) for number in re.match(r"(\d+)\.(\d+)", os.uname().release).groups()] >= [6, 6]


def has_program(host):
    """Whether a program is before the wire: XDP, or at the ingress hook beside a packet socket."""
    at_ingress = at(host, ["/usr/bin/python3", "-c", INGRESS_PROGRAMS]).strip()
    return at_ingress != "0" or "prog/xdp" in at(host, ["ip", "-d", "link", "show", "wire"])


def xdp_counters(gateway):
    """Packets of a gateway: past the stack, lost there, and in all; skips where there is no AF_XDP."""
    output = gateway.must_log("AF_XDP: wire: ")
    if "sockets are used for it" in output:
        doctor = json.loads(at(gateway.host, [WEIR, "doctor", "--json"]))
        finding = next(finding for finding in doctor["findings"] if finding["what"] == "AF_XDP")
        if finding["verdict"] == "good":
            raise Failed(f"AF_XDP is there and not used: {output}")
        raise Skipped(finding["found"])
    if TCX and "received by a packet socket" not in output:
        raise Failed(f"no packet socket receives at a veth device: {output}")
    status = gateway.status()
    wire = next(wire for wire in status["xdp"] if wire["interface"] == "wire")
    in_all = {way: status["total"][f"outer_{way}"]["packets"] for way in ("tx", "rx")}
    return {"sent": wire["sent"], "received": wire["received"], "lost": wire["lost"], **in_all}


def pings(address):
    return " 0% packet loss" in at("sun", ["ping", "-c", "1", "-W", "1", address])


def xdp(where):
    """One host exchanges ESP and EESP past its stack, the other by sockets; its interface goes down, it is killed."""
    keys, names = Keys(), ["gcm", "eesp"]
    far = [address(name, "moon") for name in names]

    def sun():
        return Weir("sun", where, keys.tree("sun", names, workers=1, xdp="wire, spare"))

    def comes_and_goes(gateway):
        """Pings until the kernel knows the next hop and leaves the rest to the gateway."""
        before = xdp_counters(gateway)

        def both_ways():
            now = xdp_counters(gateway)
            return all(map(pings, far)) and now["sent"] > before["sent"] and now["received"] > before["received"]

        wait_for("packets past the stack", both_ways)

    sh("ip link add spare netns sun type veth peer name other")
    with contextlib.ExitStack() as stack:
        stack.callback(sh, "ip -n sun link del spare", check=False)
        moon = stack.enter_context(Weir("moon", where, keys.tree("moon", names, workers=1)))
        carry = ["/usr/bin/python3", os.path.join(HERE, "carry.py")]
        serving = subprocess.Popen([*within("moon"), *carry, "serve"], stdout=subprocess.PIPE, text=True)
        stack.callback(serving.wait)
        stack.callback(serving.kill)
        serving.stdout.readline()
        with sun() as gateway:
            comes_and_goes(gateway)
            was = xdp_counters(gateway)
            done = subprocess.run([*within("sun"), *carry, "ask", *far], capture_output=True, text=True, timeout=60,
                                  check=False)
            if done.returncode != 0:
                raise Failed(f"{done.stderr.strip()}; dropped {gateway.status()['total']['drops']}")
            now = xdp_counters(gateway)
            more = {what: now[what] - was[what] for what in now}
            # Now and then one goes by the kernel, so that it resolves the neighbour.
            if more["received"] != more["rx"] or not 0 <= more["tx"] - more["sent"] <= 20 or min(more["rx"], more["tx"]) < 1000:
                raise Failed(f"packets past the stack, and in all: {more}")
            if now["lost"] or moon.status()["xdp"]:
                raise Failed(f"{now['lost']} were lost; past the stack of moon went {moon.status()['xdp']}")
            for end in (gateway, moon):
                drops = end.status()["total"]["drops"]
                if any(drops.get(why) for why in ("bad_icv", "malformed", "replay")):
                    raise Failed(f"{end.host} dropped {drops}")
            at("sun", ["ip", "link", "set", "wire", "down"])
            if pings(far[0]):
                raise Failed("packets came through an interface that is down")
            at("sun", ["ip", "link", "set", "wire", "up"])
            at("sun", ["ip", "route", "replace", "default", "via", OUTER["moon"]])
            comes_and_goes(gateway)
            if not has_program("sun"):
                raise Failed("no program is seen before the interface")
            at("sun", ["ip", "link", "del", "spare"])
            gateway.must_log("AF_XDP: spare: the interface was taken away")
            comes_and_goes(gateway)
        if has_program("sun"):
            raise Failed("a stopped gateway left its program")
        with sun() as gateway:
            gateway.must_log("AF_XDP: spare: there is no such interface; sockets are used for it")
            comes_and_goes(gateway)
            gateway.kill()
        # The kernel frees it when it comes to that.
        wait_for("the program of a killed gateway gone", lambda: not has_program("sun"), 10)
        # At once: what the kernel still has of the one before must not be in the way.
        with sun() as gateway:
            comes_and_goes(gateway)
    return f"{more['sent']} packets out, {more['received']} in"


class Skipped(Exception):
    """This machine cannot."""


CASES = [
    crash, receiver, disk, reload, answered, many, sub_sas, stop, closed, full_tunnel, mss, fault, start, damaged, socket, user, own_user,
    resolver_files, offload, order, answers, xdp]


def main():
    lab, *names = sys.argv[1:]
    os.umask(0o077)
    try:
        build()
    except (Failed, OSError) as error:
        print(f"FAIL daemon/all: {error}")
        return 1
    failed = 0
    schedulers = itertools.cycle(["pipeline", "run-to-completion", "async"])
    forced = os.environ.get("WEIR_SCHEDULER")
    for case in CASES:
        # Cases take turns, unless one scheduler is wanted for all.
        os.environ["WEIR_SCHEDULER"] = forced or next(schedulers)
        name = case.__name__.replace("_", "-")
        if names and name not in names:
            continue
        started = time.monotonic()
        try:
            note = case(os.path.join(lab, name))
            print(f"PASS daemon/{name} ({time.monotonic() - started:.1f} s{', ' + note if note else ''})")
        except Skipped as why:
            print(f"SKIP daemon/{name}: {why}")
        except (Failed, OSError, subprocess.SubprocessError) as error:
            failed += 1
            print(f"FAIL daemon/{name}: {' '.join(str(error).split())}")
        for host in OUTER:
            clean_up(host)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
