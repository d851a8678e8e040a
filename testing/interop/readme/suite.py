"""Follows documents: writes the files that they show and runs their commands. Each block of commands of the README, of the guides
and of the migration from WireGuard is run, or has the reason why not in a comment before it: `<!-- not run: REASON -->`."""

import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from gateway import WEIR, Failed  # noqa: E402

# Outer and inner address of the two hosts of the README.
HOSTS = {"a": ("192.0.2.1", "10.1.0.1"), "b": ("192.0.2.2", "10.2.0.1")}
PATIENCE_S = 60
# Blocks of commands that a case has run.
RUN = set()


def section(path, heading):
    """Text from a heading to the next one."""
    with open(path, encoding="utf-8") as file:
        found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", file.read(), re.M | re.S)
    if not found:
        raise Failed(f"{path} has no section '{heading}'")
    return found.group(1)


def blocks(text):
    """Fenced blocks in their order: language and text."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)


def command_blocks(path):
    """Blocks of commands of a document in their order: text, and the reason why it is not run, if there is one."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for match in re.finditer(r"^```sh\n(.*?)^```$", text, re.M | re.S):
        reason = re.search(r"<!-- not run: (.+?) -->\n+\Z", text[:match.start()], re.S)
        yield match.group(1), reason and reason.group(1)


def documents(root):
    guides = os.path.join(root, "docs", "guides")
    one = [os.path.join(root, "README.md"), os.path.join(root, "docs", "from-wireguard.md")]
    return [*one, *sorted(os.path.join(guides, name) for name in os.listdir(guides))]


def exchanged(text, config):
    """The configuration of the second host, by the rows `keys | values of A | values of B` of a table."""
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) \|$", text, re.M)
    if not rows:
        raise Failed("there is no table of exchanged values")
    for keys, ours, theirs in rows:
        for key, here, there in zip(re.findall(r"`(\w+)`", keys), ours.split(", "), theirs.split(", ")):
            config, count = re.subn(rf"(\b{key} = ){re.escape(here)}$", rf"\g<1>{there}", config, flags=re.M)
            if count != 1:
                raise Failed(f"'{key} = {here}' is {count} times in the file")
    return config


def tools(lab):
    """A folder with `weir`, for PATH."""
    folder = os.path.join(lab, "bin")
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(os.path.join(folder, "weir")):
        os.symlink(os.path.abspath(WEIR), os.path.join(folder, "weir"))
    return f"{folder}:{os.environ['PATH']}"


class Host:
    """A network namespace with /run, /etc and /var/lib of its own."""

    def __init__(self, name, lab):
        self.name = name
        self.log = os.path.join(lab, f"{name}.log")
        self.environment = {**os.environ, "PATH": tools(lab)}
        prepare = ("mount --make-rprivate / && mount -t tmpfs run /run && mount -t tmpfs lib /var/lib && mount -t tmpfs etc /mnt && "
                   "cp -a /etc/. /mnt/ && mount --bind /mnt /etc && mkdir -p /etc/weir && echo ready && exec sleep infinity")
        self.holder = subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c", prepare], stdout=subprocess.PIPE, text=True)
        self.daemon = None
        if self.holder.stdout.readline().strip() != "ready":
            raise Failed(f"{name} has no namespaces")

    def within(self, command):
        return ["nsenter", "-t", str(self.holder.pid), "-n", "-m", "sh", "-c", command]

    def must(self, command, **options):
        done = subprocess.run(self.within(command), capture_output=True, text=True, env=self.environment, timeout=PATIENCE_S,
                              check=False, **options)
        if done.returncode != 0:
            raise Failed(f"{self.name}: {command}: status {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def up(self, command):
        with open(self.log, "w", encoding="utf-8") as log:
            self.daemon = subprocess.Popen(self.within(f"exec {command}"), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                           env=self.environment)
        deadline = time.monotonic() + PATIENCE_S
        while "weir: ready" not in self.output():
            if self.daemon.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"{self.name}: {command}: {self.output()}")
            time.sleep(0.05)

    def output(self):
        with open(self.log, encoding="utf-8") as log:
            return log.read()

    def end(self):
        for process in (self.daemon, self.holder):
            if process and process.poll() is None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def connect(hosts):
    """A cable between two hosts, and their addresses."""
    a, b = hosts.values()
    add_wire = f"ip link add wire netns {a.holder.pid} type veth peer name wire netns {b.holder.pid}"
    subprocess.run(["sh", "-c", add_wire], check=True)
    for name, (outer, inner) in HOSTS.items():
        hosts[name].must(f"ip link set lo up; ip addr add {outer}/24 dev wire nodad; ip link set wire up; "
                         f"ip addr add {inner}/24 dev lo")


def mirrored(config):
    """The configuration of host B: addresses, identities and selectors of A exchanged."""
    pairs = [("192.0.2.1", "192.0.2.2"), ("10.1.0.", "10.2.0."), ("a.example.org", "b.example.org"), (" a.pub", " b.pub")]
    for one, other in pairs:
        config = config.replace(one, "\0").replace(other, one).replace("\0", other)
    return config


def with_certificates(lab, root, guide, then):
    """Two hosts with the certificates of the guide for two sites and the configuration of `guide`; `then` has the hosts."""
    sites = os.path.join(root, "docs", "guides", "site-to-site.md")
    create, install = (block for block, _ in list(command_blocks(sites))[:2])
    with open(os.path.join(root, "docs", "guides", guide), encoding="utf-8") as file:
        config = next((block for kind, block in blocks(file.read()) if not kind and "connections {" in block), None)
    if "weir pki issue" not in create or "cp -r a/." not in install or not config:
        raise Failed(f"{guide}: certificates or configuration are not shown")
    RUN.update((create, install))
    hosts = {}
    try:
        subprocess.run(["bash", "-ec", create], cwd=lab, check=True, capture_output=True, timeout=PATIENCE_S,
                       env={**os.environ, "PATH": tools(lab)})
        for name, own in (("a", config), ("b", mirrored(config))):
            hosts[name] = Host(name, lab)
            hosts[name].must("umask 077; cat >/etc/weir/weir.conf", input=own)
            hosts[name].must(f"cd {lab} && set -e\n" + re.sub(r"\ba/\.", f"{name}/.", install))
        connect(hosts)
        return then(hosts)
    finally:
        for host in hosts.values():
            host.end()


def site_to_site(lab, root):
    """Certificates, files and commands of the guide; then a ping through the tunnel."""
    guide = os.path.join(root, "docs", "guides", "site-to-site.md")
    start = list(command_blocks(guide))[2][0]

    def run(hosts):
        first, *rest = start.splitlines()
        check, up = first.split(" && ")
        for host in hosts.values():
            host.must(check)
            host.up(up)
            for command in rest:
                host.must(command)
        RUN.add(start)
        hosts["a"].must("ping -c 3 -W 10 -I 10.1.0.1 10.2.0.1")
        if hosts["b"].must("cat /proc/sys/net/ipv4/ip_forward").strip() != "1":
            raise Failed("the networks are not forwarded")
        return hosts["a"].must("weir status").splitlines()[0]

    return with_certificates(lab, root, "site-to-site.md", run)


def psp(lab, root):
    """The configuration and the commands of the guide, with the certificates of two sites."""
    start = list(command_blocks(os.path.join(root, "docs", "guides", "psp.md")))[0][0]

    def run(hosts):
        up, status = start.splitlines()
        for host in hosts.values():
            host.up(up)
        # Keys are there a moment after both hosts are.
        hosts["a"].must("for i in $(seq 100); do ping -c 1 -W 1 192.0.2.2 >/dev/null && exit 0; sleep 0.1; done; exit 1")
        RUN.add(start)
        return hosts["a"].must(status).splitlines()[0]

    return with_certificates(lab, root, "psp.md", run)


def from_wireguard(lab, root):
    """Raw public keys, the configuration and the commands of the migration from WireGuard; then a ping through the tunnel."""
    path = os.path.join(root, "docs", "from-wireguard.md")
    create, start = (block for block, _ in command_blocks(path))
    with open(path, encoding="utf-8") as file:
        config = next((block for kind, block in blocks(file.read()) if not kind and "connections {" in block), None)
    if "openssl genpkey" not in create or not config:
        raise Failed("from-wireguard.md shows no keys or no configuration")
    check, up = start.strip().split(" && ")
    hosts, keys = {}, {}
    try:
        for name in HOSTS:
            hosts[name] = Host(name, lab)
            hosts[name].must("set -e\n" + re.sub(r"\ba\.(key|pub)", rf"{name}.\1", create))
            keys[name] = hosts[name].must(f"cat /etc/weir/pubkey/{name}.pub")
        connect(hosts)
        for name, own in (("a", config), ("b", mirrored(config))):
            other = "b" if name == "a" else "a"
            hosts[name].must(f"cat >/etc/weir/pubkey/{other}.pub", input=keys[other])
            hosts[name].must("umask 077; cat >/etc/weir/weir.conf", input=own)
            hosts[name].must(check)
            hosts[name].up(up)
        RUN.update((create, start))
        hosts["a"].must("ping -c 3 -W 10 10.2.0.1")
        return hosts["a"].must("weir status").splitlines()[0]
    finally:
        for host in hosts.values():
            host.end()


def first_tunnel(lab, root):
    """The file, its exchanged values and the commands of the README."""
    text = section(os.path.join(root, "README.md"), "First tunnel")
    config = next((block for _, block in blocks(text) if "connections {" in block), None)
    commands = next((block for kind, block in blocks(text) if kind == "sh" and "weir up" in block), None)
    if not config or not commands:
        raise Failed("the README shows no file or no commands")
    RUN.add(commands)
    commands = [line.split("#")[0].strip() for line in commands.splitlines()]
    hosts = {}
    try:
        for name, host_config in (("a", config), ("b", exchanged(text, config))):
            hosts[name] = Host(name, lab)
            hosts[name].must("umask 077; cat >/etc/weir/weir.conf", input=host_config)
        connect(hosts)
        a, b = hosts.values()
        start = commands.index("weir up")
        for command in commands[:start]:
            a.must(command)
            b.must(command)
        a.up("weir up")
        b.up("weir up")
        for command in filter(None, commands[start + 1:]):
            # As it is, `ping` goes on for ever.
            a.must(re.sub(r"^ping ", "ping -c 3 -W 10 ", command))
        if a.daemon.wait(20) != 0:
            raise Failed(f"the gateway ended with {a.daemon.returncode}: {a.output()}")
    finally:
        for host in hosts.values():
            host.end()
    return f"{len(commands)} commands"


def firewall(lab, root):
    """The rules of the installation guide in a table that drops by default, around the first tunnel of the README."""
    rules = next(block for block, _ in command_blocks(os.path.join(root, "docs", "guides", "install.md")) if "nft add rule" in block)
    text = section(os.path.join(root, "README.md"), "First tunnel")
    config = next(block for _, block in blocks(text) if "connections {" in block)
    chains = "".join(f"nft 'add chain inet filter {hook} {{ type filter hook {hook} priority 0; policy drop; }}'; "
                     for hook in ("input", "forward"))
    hosts = {}
    try:
        for name, own in (("a", config), ("b", exchanged(text, config))):
            hosts[name] = Host(name, lab)
            hosts[name].must("umask 077; cat >/etc/weir/weir.conf", input=own)
            hosts[name].must(f"set -e; nft add table inet filter; {chains}")
        connect(hosts)
        for host in hosts.values():
            host.must("weir check")
            host.up("weir up")
        a, b = hosts.values()
        if subprocess.run(a.within("ping -c 1 -W 1 192.0.2.2"), capture_output=True, check=False).returncode == 0:
            raise Failed("the firewall drops nothing")
        for host in (a, b):
            host.must(f"set -e\n{rules}")
        RUN.add(rules)
        a.must("ping -c 3 -W 10 10.2.0.1")
        return a.must("weir status").splitlines()[0]
    finally:
        for host in hosts.values():
            host.end()


def two_namespaces(lab, root):
    """Both blocks in one shell."""
    found = blocks(section(os.path.join(root, "docs", "configuration.md"), "Try it in two namespaces"))
    if len(found) < 2 or "ip netns add" not in found[0][1]:
        raise Failed("docs/configuration.md shows no blocks of commands")
    script = "mount -t tmpfs run /run\n" + "\n".join(block for _, block in found)
    done = subprocess.run(["unshare", "--mount", "bash", "-c", script], cwd=lab, capture_output=True, text=True, timeout=PATIENCE_S,
                          env={**os.environ, "PATH": tools(lab)}, check=False)
    output = done.stdout + done.stderr
    if " 0% packet loss" not in output:
        raise Failed(f"pings were lost: {output}")
    # The last command of the first block.
    if "1 connection: 1 up" not in done.stdout:
        raise Failed(f"weir status: {output}")
    if done.returncode != 0:
        raise Failed(f"the second block ended with {done.returncode}: {output}")
    return ""


def every_block(_, root):
    """Last: no block of commands is left over that neither ran nor has a reason."""
    marked = 0
    for path in documents(root):
        for number, (block, reason) in enumerate(command_blocks(path), 1):
            name = f"{os.path.relpath(path, root)}: block {number} of commands"
            if reason and block in RUN:
                raise Failed(f"{name} was run, although it is marked: {reason}")
            if not reason and block not in RUN:
                raise Failed(f"{name} was not run, and has no '<!-- not run: REASON -->' before it")
            marked += bool(reason)
    return f"{len(RUN)} blocks run, {marked} with a reason why not"


CASES = [first_tunnel, two_namespaces, site_to_site, psp, from_wireguard, firewall, every_block]


def main():
    lab, root, *names = sys.argv[1:]
    os.umask(0o022)
    subprocess.run(["sh", "-c", "mount --make-rprivate /; ip link set lo up"], check=True)
    failed = 0
    for case in CASES:
        name = case.__name__.replace("_", "-")
        # What ran is known only after all other cases.
        if names and (name not in names or case is every_block):
            continue
        started = time.monotonic()
        folder = os.path.join(lab, name)
        os.makedirs(folder)
        try:
            note = case(folder, root)
            print(f"PASS readme/{name} ({time.monotonic() - started:.1f} s{', ' + note if note else ''})")
        except (Failed, OSError, subprocess.SubprocessError) as why:
            failed += 1
            print(f"FAIL readme/{name}: {' '.join(str(why).split())}")
    return 1 if failed else 0


sys.exit(main())
