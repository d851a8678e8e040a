"""Debian packages of Weir, and their life on a host: `suite.py LAB [CASE...]`. See README.md."""

import collections
import glob
import os
import shutil
import struct
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "daemon"))
sys.path.insert(0, HERE)
import lab  # noqa: E402  The two hosts of the suite `daemon`.
from host import Debian, Unit, udp_socket  # noqa: E402
from lab import Capture, Failed, Weir, at, traces, wait_for  # noqa: E402
from verdict import Skip, run_cases  # noqa: E402
from gateway import settings  # noqa: E402
from shell import sh  # noqa: E402

ROOT = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
PACKAGES = os.environ["PACKAGES"]
LAB = sys.argv[1]
PORT = 7777
# The gateway, installed.
MEGABYTES_MAX = 15
PER_SECOND = 200
# One network is protected by IKE, the other by a manual key, whose numbers continue over a restart.
NETWORKS = {"ike": 1, "manual": 2}
KEYS = {host: os.urandom(20).hex() for host in lab.OUTER}
MANUAL_SPI = {"sun": 0x5001, "moon": 0x5002}


def package(version, name="weir"):
    found = glob.glob(os.path.join(PACKAGES, version, f"{name}_*.deb"))
    if len(found) != 1:
        raise Failed(f"{PACKAGES}/{version}: {found}")
    return found[0]


def unpack(version, name):
    folder = os.path.join(LAB, f"{name}-{version}")
    if not os.path.exists(folder):
        subprocess.run(["dpkg-deb", "-R", package(version, name), folder], check=True)
    return folder


def tool(name, *command, **options):
    """Runs a checker that may not be installed."""
    if shutil.which(name) is None:
        raise Skip(f"{name} is not installed")
    return subprocess.run([name, *command], capture_output=True, text=True, check=False, **options)


def case_contents():
    folder = unpack("first", "weir")
    for path in ("usr/bin/weir", "usr/lib/systemd/system/weir.service", "usr/lib/systemd/system/weir@.service",
                 "usr/lib/sysusers.d/weir.conf", "usr/lib/tmpfiles.d/weir.conf", "etc/weir/weir.conf",
                 "usr/share/man/man8/weir.8.gz", "usr/share/man/man8/weir-up.8.gz", "usr/share/man/man5/weir.conf.5.gz",
                 "usr/share/bash-completion/completions/weir", "usr/share/zsh/vendor-completions/_weir",
                 "usr/share/fish/vendor_completions.d/weir.fish", "usr/share/doc/weir/copyright"):
        if not os.path.isfile(os.path.join(folder, path)):
            raise Failed(f"the package lacks {path}")
    if not glob.glob(f"{folder}/usr/lib/*/wireshark/plugins/eesp.lua"):
        raise Failed("the package lacks the dissectors")
    if not os.path.isfile(os.path.join(unpack("first", "weir-lab"), "usr/share/man/man1/weir-lab-run.1.gz")):
        raise Failed("weir-lab lacks its pages")
    symbols = subprocess.run(["readelf", "-S", f"{folder}/usr/bin/weir"], capture_output=True, text=True, check=True).stdout
    if ".symtab" in symbols or ".debug_info" in symbols:
        raise Failed("the program is not stripped")


def case_reproducible():
    again = os.path.join(LAB, "again")
    weir = os.environ["WEIR"]
    done = subprocess.run([f"{ROOT}/scripts/deb.sh", "--binary", weir, "--lab", weir, "--version", "0.1.0~test1-1", "--out", again],
                          capture_output=True, text=True, check=False, env={**os.environ, "TZ": "Asia/Tokyo", "TMPDIR": LAB})
    if done.returncode != 0:
        raise Failed(done.stderr[-300:])
    for name in os.listdir(again):
        first, second = (open(os.path.join(folder, name), "rb").read() for folder in (f"{PACKAGES}/first", again))
        if first != second:
            raise Failed(f"{name} differs when it is made again")


def case_size():
    """The gateway as `make deb` makes it; the packages of this suite hold a debug binary with the lab."""
    made = sorted(glob.glob(f"{ROOT}/target/deb/weir_*.deb"), key=os.path.getmtime)
    if not made:
        raise Skip("there is no release package in target/deb: make deb")
    kib = int(subprocess.run(["dpkg-deb", "-f", made[-1], "Installed-Size"], capture_output=True, text=True, check=True).stdout)
    megabytes = kib * 1024 / 1e6
    if megabytes > MEGABYTES_MAX:
        raise Failed(f"{os.path.basename(made[-1])} takes {megabytes:.1f} MB, more than {MEGABYTES_MAX}")
    print(f"     size of {os.path.basename(made[-1])}: {megabytes:.1f} MB installed")
    # A folder in a program makes packages of one commit differ.
    lab = sorted(glob.glob(f"{ROOT}/target/deb/weir-lab_*.deb"), key=os.path.getmtime)
    for package in (made[-1], *lab[-1:]):
        folder = os.path.join(LAB, "release")
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    for root, _, names in os.walk(os.path.join(LAB, "release")):
        for path in (os.path.join(root, name) for name in names):
            with open(path, "rb") as file:
                data = file.read()
            for named in (ROOT, os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo"))):
                if f"{named}/".encode() in data or f"{named}=".encode() in data:
                    raise Failed(f"{os.path.basename(path)} contains {named}")


def case_ipsec_mb():
    """The library that builds link: the same files each time, and nothing of a package that is damaged or missing."""
    pin = dict(line.strip().split("=", 1) for line in open(f"{ROOT}/crates/crypto/build/ipsec-mb.pin", encoding="ascii") if line[0] != "#")
    kept = f"{ROOT}/target/ipsec-mb"
    if not os.path.exists(f"{kept}/{pin['package']}"):
        raise Skip("there is no target/ipsec-mb: scripts/ipsec-mb.sh")
    folder = os.path.join(LAB, "ipsec-mb")
    pool = os.path.join(folder, "mirror/pool/main/i/intel-ipsec-mb")
    os.makedirs(pool)
    environment = {name: value for name, value in os.environ.items() if name != "WEIR_IPSEC_MB"}

    def install(name, mirrors=f"file://{folder}/mirror", status=0, **more):
        prefix = os.path.join(folder, name)
        done = subprocess.run([f"{ROOT}/scripts/ipsec-mb.sh", "--prefix", prefix],
                              env={**environment, "DEBIAN_MIRRORS": mirrors, **more}, capture_output=True, text=True, check=False)
        if done.returncode != status:
            raise Failed(f"{name}: status {done.returncode}: {done.stderr}")
        return os.path.exists(prefix), done.stderr

    def fails(name, reason, *arguments, **more):
        installed, text = install(name, *arguments, **more)
        if installed or "is not installed" not in text or reason not in text:
            raise Failed(f"{name}: installed {installed}: {text}")

    fails("missing", "mirror")
    fails("blank", "blank", " ")
    fails("required", "mirror", status=1, WEIR_IPSEC_MB="require")
    open(f"{pool}/{pin['package']}", "wb").write(b"no package")
    # A library of another commit does not stay.
    os.mkdir(f"{folder}/damaged")
    open(f"{folder}/damaged/sha256", "w", encoding="ascii").write("another\n")
    fails("damaged", "SHA-256")
    shutil.copy(f"{kept}/{pin['package']}", pool)
    os.mkdir(f"{folder}/tools")
    open(f"{folder}/tools/dpkg-deb", "w", encoding="ascii").write("#!/bin/sh\necho no space left >&2\nexit 2\n")
    os.chmod(f"{folder}/tools/dpkg-deb", 0o755)
    fails("unpacked", pin["package"], PATH=f"{folder}/tools:{os.environ['PATH']}")
    if install("other", WEIR_IPSEC_MB="/usr")[0] or not install("auto", WEIR_IPSEC_MB="auto")[0]:
        raise Failed("WEIR_IPSEC_MB does not select")
    for name in ("one", "two"):
        # The first mirror does not answer.
        installed, text = install(name, f"file://{folder}/none file://{folder}/mirror")
        if not installed:
            raise Failed(f"{name}: {text}")
        sh(f"diff -r {kept} {folder}/{name}")


def case_lintian():
    done = tool("lintian", "--allow-root", "--fail-on", "error,warning", "--suppress-tags", "initial-upload-closes-no-bugs",
                package("first"), package("first", "weir-lab"))
    if done.returncode != 0:
        raise Failed(done.stdout + done.stderr)


def case_units():
    folder = unpack("first", "weir")
    units = f"{folder}/usr/lib/systemd/system"
    for unit in ("weir.service", "weir@.service"):
        path = os.path.join(LAB, unit.replace("@", "@one"))
        text = open(f"{units}/{unit}", encoding="utf-8").read().replace("/usr/bin/weir", f"{folder}/usr/bin/weir")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(line for line in text.splitlines() if not line.startswith("Documentation=")) + "\n")
        done = tool("systemd-analyze", "verify", path)
        about = [line for line in done.stderr.splitlines() if "weir" in line]
        if done.returncode != 0 or about:
            raise Failed(f"{unit}: {' '.join(about) or done.stderr}")
        # In tenths: 30 is 3.0.
        done = tool("systemd-analyze", "security", "--offline=true", "--threshold=30", path)
        if done.returncode != 0:
            raise Failed(f"{unit}: {done.stdout.splitlines()[-1]}")


def case_pages():
    folder = unpack("first", "weir")
    pages = glob.glob(f"{folder}/usr/share/man/man*/*.gz") + glob.glob(f"{unpack('first', 'weir-lab')}/usr/share/man/man1/*.gz")
    texts = []
    for page in pages:
        text = os.path.join(LAB, os.path.basename(page)[:-3])
        with open(text, "wb") as file:
            file.write(subprocess.run(["gzip", "-dc", page], capture_output=True, check=True).stdout)
        texts.append(text)
    done = tool("mandoc", "-T", "lint", "-W", "style", *texts)
    found = [line for line in (done.stdout + done.stderr).splitlines() if "referenced manual not found" not in line]
    if found or len(pages) < 40:
        raise Failed(f"{len(pages)} pages: {' '.join(found[:3])}")


def case_make_install():
    """`make install`: another prefix, and a configuration that is there stays."""
    stage = os.path.join(LAB, "stage")
    os.makedirs(f"{stage}/etc/weir")
    with open(f"{stage}/etc/weir/weir.conf", "w", encoding="ascii") as file:
        file.write("# mine\n")
    done = subprocess.run([f"{ROOT}/scripts/install.sh", "--binary", os.environ["WEIR"]], capture_output=True, text=True, check=False,
                          env={**os.environ, "DESTDIR": stage, "PREFIX": "/opt/weir"})
    if done.returncode != 0:
        raise Failed(done.stderr)
    unit = open(f"{stage}/opt/weir/lib/systemd/system/weir.service", encoding="utf-8").read()
    if "ExecStart=/opt/weir/bin/weir up /etc/weir/weir.conf" not in unit:
        raise Failed(f"the unit starts something else: {unit}")
    if open(f"{stage}/etc/weir/weir.conf", encoding="ascii").read() != "# mine\n":
        raise Failed("the configuration was overwritten")
    for path in ("bin/weir", "share/man/man8/weir-status.8", "share/zsh/site-functions/_weir", "share/weir/wireshark/psp.lua"):
        if not os.path.isfile(f"{stage}/opt/weir/{path}"):
            raise Failed(f"{path} is missing")


def manual(host, **gateway):
    """Addresses of a host, and the network with a manual key."""
    mine, other = (1, 2) if host == "sun" else (2, 1)
    peer = lab.PEER[host]
    half = lambda sender: {"spi": hex(MANUAL_SPI[sender]), "key": "0x" + KEYS[sender]}  # noqa: E731
    return {
        "gateway": {"addresses": f"10.1.{mine}.1/24, 10.2.{mine}.1/24", **gateway},
        "sas": {"fixed": {"protocol": "esp", "suite": "aes128gcm16", "local": lab.OUTER[host], "remote": lab.OUTER[peer],
                          "out": half(host), "in": half(peer)}},
        "policies": {"fixed": {"local_ts": f"10.2.{mine}.0/24", "remote_ts": f"10.2.{other}.0/24", "sa": "fixed"}},
    }


def configuration(host, **gateway):
    mine, other = (1, 2) if host == "sun" else (2, 1)
    peer = lab.PEER[host]
    return {
        **manual(host, **gateway),
        "connections": {"b": {
            "local_addrs": lab.OUTER[host], "remote_addrs": lab.OUTER[peer], "dpd_delay": "2s",
            "local": {"auth": "psk"}, "remote": {"auth": "psk"},
            "children": {"net": {"local_ts": f"10.1.{mine}.0/24", "remote_ts": f"10.1.{other}.0/24",
                                 "start_action": "trap" if host == "sun" else "none"}}}},
        "secrets": {"ike-b": {"secret": '"for this test and nothing else"'}},
    }


class Office:
    """What `weir new` writes on sun for the gateways of both hosts, and the commands that it names."""

    def __init__(self, sun):
        output = sun.run("weir", "new", "site-to-site", "/srv/office", "--address-a", lab.OUTER["sun"], "--networks-a", "10.1.1.0/24",
                       "--address-b", lab.OUTER["moon"], "--networks-b", "10.1.2.0/24")
        lines = [line.strip() for line in output.split("next:\n")[1].splitlines()]
        copies = [line.split()[2:4] for line in lines if line.startswith("scp -r ")]
        # By address, as scp takes it: `scp -r /srv/office/gateway-a/. root@192.0.2.1:/etc/weir/`.
        self.folders = {target.split("@")[1].split(":")[0]: folder for folder, target in copies}
        self.commands = [step for line in lines[lines.index("on both gateways:") + 1:] for step in line.split(" && ")]
        self.sun = sun

    def start(self, unit):
        """Copies the folder of sun to its place and runs the commands; a manual key comes on top."""
        self.sun.run("cp", "-r", self.folders[lab.OUTER["sun"]], "/etc/weir/")
        with open(self.sun.path("/etc/weir/weir.conf"), "a", encoding="ascii") as file:
            file.write(settings(manual("sun")))
        done = []
        for command in self.commands:
            name = " ".join(command.split()[:2])
            # A bare Debian has no sysctl; nothing is forwarded here.
            if name != "sysctl -w":
                self.sun.run("sh", "-c", command)
            if name == "systemctl enable":
                unit.start()
            done.append(name)
        if done != ["chown -R", "chmod -R", "sysctl -w", "weir check", "systemctl enable", "weir status"]:
            raise Failed(f"weir new names other commands: {self.commands}")

    def moon(self, directory):
        """The other gateway, with its folder."""
        weir = Weir("moon", directory, manual("moon", on_stop="open"))
        folder = os.path.dirname(weir.config)
        own = open(weir.config, encoding="ascii").read()
        shutil.copytree(self.sun.path(self.folders[lab.OUTER["moon"]]), folder, dirs_exist_ok=True)
        with open(weir.config, "a", encoding="ascii") as file:
            file.write(own)
        return weir


class Traffic:
    """Datagrams from sun to both networks behind moon until the block ends; when they arrived."""

    def __enter__(self):
        self.arrived = {name: [] for name in NETWORKS}
        self.ended = threading.Event()
        self.sender, self.threads = udp_socket("sun"), [threading.Thread(target=self._send, daemon=True)]
        for name, number in NETWORKS.items():
            receiver = udp_socket("moon")
            receiver.settimeout(0.2)
            receiver.bind((f"10.{number}.2.1", PORT))
            self.threads.append(threading.Thread(target=self._receive, args=(receiver, self.arrived[name]), daemon=True))
        for thread in self.threads:
            thread.start()
        return self

    def _send(self):
        while not self.ended.wait(1 / PER_SECOND):
            for number in NETWORKS.values():
                try:
                    self.sender.sendto(b"clear text", (f"10.{number}.2.1", PORT))
                except OSError:
                    pass  # Closed: the next one is sent all the same.

    def _receive(self, receiver, times):
        while not self.ended.is_set():
            try:
                receiver.recv(100)
                times.append(time.monotonic())
            except OSError:
                pass

    def flows(self, patience_s=15):
        """Waits until datagrams of both networks have arrived from now on."""
        since = time.monotonic()
        wait_for(lambda: f"traffic to {[n for n in NETWORKS if not (self.arrived[n] and self.arrived[n][-1] > since)]}",
                 lambda: all(times and times[-1] > since for times in self.arrived.values()), patience_s)

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join(2)

    def gap(self, name, since):
        """Longest time without an arrival, in seconds, after that moment."""
        times = [since] + [at for at in self.arrived[name] if at > since]
        return max(after - before for before, after in zip(times, times[1:]))


def look_at(capture):
    """Numbers of each SA of sun; fails on clear text and on a repeated number."""
    numbers, clear = collections.defaultdict(list), collections.Counter()
    for frame in capture.frames():
        if len(frame) < 34 or frame[12:14] != b"\x08\x00":
            continue
        packet = frame[14:]
        source, target = (".".join(map(str, packet[i:i + 4])) for i in (12, 16))
        if target.startswith("10.") or source.startswith("10."):
            clear[source, target, packet[9]] += 1
        elif packet[9] == 50 and source == lab.OUTER["sun"]:
            numbers[struct.unpack_from("!I", packet, (packet[0] & 15) * 4)[0]].append(
                struct.unpack_from("!I", packet, (packet[0] & 15) * 4 + 4)[0])
    if clear:
        raise Failed(f"{sum(clear.values())} packets in clear text: {clear.most_common(2)}")
    for spi, seen in numbers.items():
        if len(seen) != len(set(seen)):
            raise Failed(f"SPI {spi:#x}: {len(seen) - len(set(seen))} of {len(seen)} numbers are repeated")
    return numbers


def purged(sun, files, users):
    """Fails if there are files that are not among these, or other users."""
    left = sorted(sun.files() - files)
    if left or open(sun.path("/etc/passwd"), encoding="ascii").read() != users:
        raise Failed(f"purge leaves {left[:5] or 'the user weir'}")


def live(release):
    """Installation, `weir new`, start, tunnel, upgrade under traffic, purge."""
    try:
        sun = Debian(release, "sun")
    except FileNotFoundError as missing:
        raise Skip(str(missing)) from None
    before, users = sun.files(), open(sun.path("/etc/passwd"), encoding="ascii").read()
    check_purged = lambda kept=(): purged(sun, before | set(kept), users)  # noqa: E731
    # Without anything of the administrator, nothing stays.
    sun.dpkg("-i", package("first"))
    sun.dpkg("--purge", "weir")
    check_purged()
    sun.calls()
    sun.dpkg("-i", package("first"))
    called = sun.calls()
    if any("start" in call or "enable" in call for call in called):
        raise Failed(f"a new installation starts or enables something: {called}")
    mode = sun.run("stat", "-c", "%U:%G %a", "/etc/weir", "/etc/weir/weir.conf", "/var/lib/weir").split("\n")[:3]
    if mode != ["root:weir 750", "root:weir 640", "weir:weir 700"]:
        raise Failed(f"folders and configuration: {mode}")
    sun.run("weir", "check")
    # The configuration of the package does nothing.
    unit = Unit(sun).start()
    try:
        ports = at("sun", ["ss", "-Hlun"])
        if not any("no connections" in line for line in unit.lines) or ports.strip():
            raise Failed(f"without a configuration: {unit.lines} {ports}")
        unit.stop()
        folder, office = os.path.join(LAB, release), Office(sun)
        with office.moon(folder), Capture(folder) as capture:
            office.start(unit)
            unit.check_confined()
            with Traffic() as traffic:
                traffic.flows()
                unit.wait_for("WATCHDOG=1")
                unit.wait_for("STATUS=1 IKE SA, 1 Child SA, 1 manual SA", patience_s=12)
                sas = sun.run("weir", "list", "sas")
                if "net" not in sas:
                    raise Failed(f"weir list sas shows no child: {sas}")
                # The upgrade replaces the files while the old gateway runs, and requests from
                # systemd a restart.
                sun.dpkg("-i", package("second"))
                called = sun.calls()
                if not any("try-restart" in call and "weir.service" in call for call in called):
                    raise Failed(f"the upgrade restarts nothing: {called}")
                traffic.flows()
                since = time.monotonic()
                unit.stop()
                if {"rule", "routes", "nftables table"} - set(traces("sun")):
                    raise Failed(f"after the stop there is only {traces('sun')}")
                unit.start()
                traffic.flows()
                if os.readlink(f"/proc/{unit.process.pid}/exe").endswith("(deleted)"):
                    raise Failed("the old program was started")
                time.sleep(0.5)
            gaps = {name: traffic.gap(name, since) for name in NETWORKS}
            # Removed while it runs: systemd stops it, which the test does, and `weir down` of prerm
            # opens.
            unit.stop()
        numbers = look_at(capture)
        if len(numbers[MANUAL_SPI["sun"]]) < PER_SECOND or len(numbers) < 3:
            raise Failed(f"too little was seen: {({hex(spi): len(seen) for spi, seen in numbers.items()})}")
        sun.dpkg("--purge", "weir")
        if not any(call.startswith("systemctl") and "stop" in call for call in sun.calls()):
            raise Failed("the removal stops nothing")
        # Certificates and keys that were copied into the folder belong to the administrator.
        copied = [path for path in sun.files() if path == "/etc/weir" or path.startswith(("/etc/weir/x509", "/etc/weir/private"))]
        if "/etc/weir/private/gateway-a.key" not in copied:
            raise Failed(f"purge removes the private key of the administrator: {copied}")
        check_purged(copied)
        if traces("sun"):
            raise Failed(f"purge leaves {traces('sun')}")
        print(f"     gap of {release}: " + ", ".join(f"{name} {gap * 1000:.0f} ms" for name, gap in gaps.items()))
    finally:
        unit.kill()
        lab.clean_up("sun")


def case_static():
    """The image of `make static` as a container has it: nothing but the program; the name of the peer is in /etc/hosts."""
    archive = os.environ.get("WEIR_STATIC", f"{ROOT}/target/static/weir-static.tar.xz")
    if not os.path.exists(archive):
        raise Skip("there is no target/static: make static")
    image = "/run/image"
    sh(f"""mkdir {image} && tar -xJf {archive} -C {image}
           cd {image}/root && test "$(find . -type f -perm /111)" = ./weir
           mkdir -p proc dev/net && mount -t proc proc proc && mount -t tmpfs run run
           mknod -m 666 dev/null c 1 3; mknod -m 666 dev/urandom c 1 9; mknod -m 666 dev/net/tun c 10 200
           echo '{lab.OUTER["moon"]} moon.example' >etc/hosts""")
    tree = configuration("sun", on_stop="open")
    tree["connections"]["b"]["remote_addrs"] = "moon.example"
    with open(f"{image}/root/etc/weir/weir.conf", "w", encoding="ascii") as file:
        file.write(settings(tree))
    os.chmod(f"{image}/root/etc/weir/weir.conf", 0o600)
    folder = os.path.join(LAB, "static")
    # The last one is that of chroot.
    capabilities = "-all,+net_admin,+net_raw,+net_bind_service,+sys_chroot"
    with Weir("moon", folder, configuration("moon", on_stop="open")), Capture(folder) as capture:
        weir = subprocess.Popen([*lab.within("sun"), "setpriv", f"--bounding-set={capabilities}", "chroot", f"{image}/root",
                                 "/weir", "up", "/etc/weir/weir.conf"], stdin=subprocess.DEVNULL,
                                stderr=open(os.path.join(folder, "log"), "w", encoding="utf-8"))
        output = lambda: open(os.path.join(folder, "log"), encoding="utf-8").read()  # noqa: E731
        try:
            wait_for(lambda: f"it is not ready: {output()[-400:]}", lambda: "weir: ready" in output())
            with Traffic() as traffic:
                traffic.flows(20)
                done = subprocess.run(["chroot", f"{image}/root", "/weir", "status"], capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise Failed(f"weir status: {done.stdout}{done.stderr}")
        finally:
            weir.terminate()
            code = weir.wait(20)
            lab.clean_up("sun")
    if code != 0:
        raise Failed(f"it ended with status {code}")
    look_at(capture)


def case_bookworm():
    live("bookworm")


def case_trixie():
    live("trixie")


if __name__ == "__main__":
    os.umask(0o022)
    lab.build()
    sys.exit(run_cases("package", globals(), sys.argv[2:]))
