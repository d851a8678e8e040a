"""Runs swanctl, and the Python package vici, against the example server, and looks at what they print."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

SWANCTL = "swanctl"


class Failed(Exception):
    """What a case found wrong."""


class Server:
    """The example server. What it was asked is in `asked`."""

    def __init__(self, lab):
        self.socket = os.path.join(lab, "vici.sock")
        self.log = os.path.join(lab, "server.log")
        self.certificate = os.path.join(lab, "root.der")
        self.conf = os.path.join(lab, "strongswan.conf")
        self.directory = os.path.join(lab, "swanctl")
        open(self.conf, "w", encoding="ascii").close()
        self._write_credentials()

    def _write_credentials(self):
        key, pem = os.path.join(self.directory, "private", "root.pem"), os.path.join(self.directory, "x509ca", "root.pem")
        for path in key, pem:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        made = os.path.join(self.directory, "ca")
        subprocess.run([os.environ["WEIR"], "pki", "ca", "--ca", made, "--name", "Root of the test"], check=True, capture_output=True)
        os.link(os.path.join(made, "ca.key"), key)
        os.link(os.path.join(made, "ca.crt"), pem)
        subprocess.run(["openssl", "x509", "-in", pem, "-outform", "DER", "-out", self.certificate], check=True)
        with open(os.path.join(self.directory, "swanctl.conf"), "w", encoding="ascii") as file:
            file.write("""
                connections {
                    site {
                        version = 2
                        local_addrs = 192.0.2.1
                        remote_addrs = 192.0.2.2, 192.0.2.3
                        local { auth = pubkey
                                id = moon.example }
                        remote { auth = psk }
                        children { net { local_ts = 10.1.0.0/16, 10.4.0.0/16
                                         mode = tunnel } }
                    }
                    missing { }
                }
                secrets { ike-site { id-1 = moon.example
                                     id-2 = sun.example
                                     secret = "do not print this" } }
                pools { road { addrs = 10.3.0.0/24
                               dns = 10.3.0.1, 10.3.0.2 } }
            """)

    def __enter__(self):
        self._file = open(self.log, "w", encoding="utf-8")
        self._process = subprocess.Popen([os.environ["SERVER"], self.socket, self.certificate], stdin=subprocess.PIPE,
                                         stdout=self._file, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 15
        while not os.path.exists(self.socket):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"the server did not start: {self.asked()[-500:]}")
            time.sleep(0.02)
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._file.close()

    def asked(self):
        with open(self.log, encoding="utf-8") as file:
            return file.read()

    def environment(self):
        return {**os.environ, "STRONGSWAN_CONF": self.conf, "SWANCTL_DIR": self.directory, "TZ": "UTC"}

    def swanctl(self, *arguments, code=0):
        """What swanctl prints."""
        done = subprocess.run([SWANCTL, *arguments, "--uri", f"unix://{self.socket}"], env=self.environment(),
                              capture_output=True, text=True, timeout=30, check=False)
        text = done.stdout + done.stderr
        if done.returncode != code:
            raise Failed(f"swanctl {' '.join(arguments)} ended with status {done.returncode}: {text.strip()}")
        if "(null)" in text:
            raise Failed(f"swanctl {' '.join(arguments)} missed a key: {text.strip()}")
        return text

    def watch(self, argument, enough, patience_s=20):
        """What swanctl prints until all of `enough` is there; then it is interrupted."""
        # A terminal, as swanctl keeps lines for a pipe back until there are many.
        terminal, its_end = pty.openpty()
        process = subprocess.Popen([SWANCTL, argument, "--uri", f"unix://{self.socket}"], env=self.environment(),
                                   stdin=subprocess.DEVNULL, stdout=its_end, stderr=its_end)
        os.close(its_end)
        text, deadline = "", time.monotonic() + patience_s
        try:
            while not all(part in text for part in enough) and time.monotonic() < deadline:
                if select.select([terminal], [], [], 0.2)[0]:
                    text += os.read(terminal, 65536).decode().replace("\r", "")
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(terminal)
        return text


def expect(text, *parts):
    """That the text has these lines, or parts of lines, in this order."""
    at = 0
    for part in parts:
        found = text.find(part, at)
        if found < 0:
            raise Failed(f"'{part}' is missing in: {text.strip()}")
        at = found + len(part)


def list_sas(server):
    text = server.swanctl("--list-sas")
    expected = """\
site: #1, ESTABLISHED, IKEv2, 0102030405060708_i* a1a2a3a4a5a6a7a8_r
  local  'moon.example' @ 192.0.2.1[4500]
  remote 'sun.example' @ 192.0.2.2[4500] EAP: 'carol' [10.3.0.1]
  AES_GCM_16-256/PRF_HMAC_SHA2_384/CURVE_25519"""
    expect(text, *expected.splitlines())
    expect(text, "  established 61s ago, rekeying in 13000s\n", "  active:  CHILD_CREATE\n", "  net: #2, reqid 1, ",
           "INSTALLED, TUNNEL-in-UDP, ESP:AES_CBC-128/HMAC_SHA2_256_128/ESN\n",
           "    installed 60s ago, rekeying in 3000s, expires in 3900s\n",
           "    in  c0000001,  84000 bytes,  1000 packets,     2s ago\n",
           "    out 00000abc,    168 bytes,     2 packets\n",
           "    local  10.1.0.0/16 fd00:1::/64[tcp/443]\n", "    remote 10.2.0.0/16\n",
           "  host: #3, reqid 1, INSTALLED, TRANSPORT-in-UDP, EESP:",
           "branch: #2, CONNECTING, IKEv2, 0102030405060708_i* 0000000000000000_r\n", "'%any' @ 192.0.2.2[4500]\n")
    if "branch" in server.swanctl("--list-sas", "--ike", "site"):
        raise Failed("the filter by name did not reach the server")


def list_sas_raw(server):
    expect(server.swanctl("--list-sas", "--raw"), "list-sa event {site {uniqueid=1 version=2 state=ESTABLISHED",
           "child-sas {net-2 {name=net uniqueid=2", "local-ts=[10.1.0.0/16 fd00:1::/64[tcp/443]]",
           "list-sa event {branch {", "child-sas {}}}", "list-sas reply {}")
    expect(server.swanctl("--list-sas", "--pretty"), "list-sa event {\n  site {\n    uniqueid = 1\n")


def list_conns(server):
    expect(server.swanctl("--list-conns"),
           "site: IKEv2, no reauthentication, rekeying every 14400s, dpd delay 30s\n",
           "  local:  192.0.2.1", "  remote: 192.0.2.2", "  remote: sun.example",
           "  local public key authentication:\n", "    id: moon.example\n", "    certs: CN=moon\n",
           "  remote EAP_MSCHAPV2 authentication:\n", "    id: %any\n", "    groups: staff\n",
           "  net: TUNNEL, rekeying every 3600s or 1000000 packets, dpd action is restart\n",
           "    local:  10.1.0.0/16\n", "    remote: dynamic\n")


def list_policies(server):
    expect(server.swanctl("--list-pols"), "site/net, ", "TUNNEL\n", "  local:  10.1.0.0/16\n", "  remote: 10.2.0.0/16\n",
           "lan, ", "PASS\n")
    if "lan" in server.swanctl("--list-pols", "--trap"):
        raise Failed("the filter by kind did not reach the server")


def list_certs(server):
    expect(server.swanctl("--list-certs"), "List of X.509 CA Certificates", "CN=Root of the test", "ECDSA 256 bits",
           "has private key")
    if "Root" in server.swanctl("--list-certs", "--type", "x509_crl"):
        raise Failed("the filter by type did not reach the server")


def list_authorities(server):
    expect(server.swanctl("--list-authorities"), "root:\n", "  cacert: CN=Root\n", "http://192.0.2.9/root.crl",
           "http://192.0.2.9:8888")


def list_pools(server):
    text = server.swanctl("--list-pools", "--leases")
    if not re.search(r"^road +10\.3\.0\.0 +1 / 0 / 254\n +10\.3\.0\.1 +online +'carol'", text):
        raise Failed(text)
    if "carol" in server.swanctl("--list-pools"):
        raise Failed("leases without being asked")


def stats(server):
    expect(server.swanctl("--stats"), "uptime: 2 hours, since Nov 21 05:07:43 UTC 2026\n",
           "worker threads: 4 total, 2 idle, working: 1/0/1/0\n", "job queues: 0/0/3/0\n", "jobs scheduled: 12\n",
           "IKE_SAs: 2 total, 1 half-open\n", "loaded plugins: esp eesp\n")


def list_algorithms(server):
    expect(server.swanctl("--list-algs"), "encryption:\n", "  AES_CBC[aws-lc]\n", "ke:\n", "  CURVE_25519[aws-lc]\n")


def counters(server):
    expect(server.swanctl("--counters"), "global:\n", "ike-rekey-init", ": 2\n", "ike-rekey-resp", ": 3\n")
    expect(server.swanctl("--counters", "--reset"), "reset-counters completed successfully\n")


def version(server):
    expect(server.swanctl("--version", "--daemon"), "1.2.3 weir-example (Linux, ")


def load_all(server):
    text = server.swanctl("--load-all", "--noprompt", code=22)
    expect(text, "loaded certificate from ", " key from ", "loaded ike secret 'ike-site'\n", "loaded pool 'road'\n",
           "successfully loaded 1 pools, 0 unloaded\n", "loaded connection 'site'\n")
    expect(text, "loading connection 'missing' failed: this one cannot be loaded\n",
           "loaded 1 of 2 connections, 1 failed to load, 0 unloaded\n")
    asked = server.asked()
    expect(asked, 'load-cert {"type": "X509", "flag": "CA", "data": <', 'load-key {"type": "', '"data": <',
           'load-shared {"id": "ike-site", "type": "ike", "data": <17 bytes>, "owners": ["moon.example", "sun.example"]}',
           'load-conn {"site": {', '"remote_addrs": ["192.0.2.2", "192.0.2.3"]',
           '"local_ts": ["10.1.0.0/16", "10.4.0.0/16"]')
    expect(asked, 'load-pool {"road": {', '"dns": ["10.3.0.1", "10.3.0.2"]')
    if "do not print this" in asked:
        raise Failed("a secret was printed")
    # What is no longer in the file is unloaded.
    path = os.path.join(server.directory, "swanctl.conf")
    with open(path, "w", encoding="ascii") as file:
        file.write("connections { other { } }\n")
    expect(server.swanctl("--load-conns"), "loaded connection 'other'\n",
           "successfully loaded 1 connections, 1 unloaded\n")
    server.swanctl("--load-creds", "--noprompt", "--clear")
    expect(server.asked(), 'unload-conn {"name": "site"}', "clear-creds {}", 'unload-shared {"id": "ike-site"}')


def initiate(server):
    expect(server.swanctl("--initiate", "--child", "net", "--timeout", "5"), "[IKE] initiating IKE_SA site[1]\n",
           "[IKE] CHILD_SA net{1} established\n", "initiate completed successfully\n")
    expect(server.swanctl("--initiate", "--child", "missing", code=1), "initiate failed: CHILD_SA config 'missing' not found\n")
    expect(server.asked(), 'initiate {"child": "net", "timeout": "5000", "loglevel": "1"}')


def terminate(server):
    expect(server.swanctl("--terminate", "--ike", "site", "--force"), "terminate completed successfully\n")
    expect(server.swanctl("--terminate", "--child", "missing", code=1),
           "terminate failed: no matching SAs to terminate found\n")


def rekey(server):
    expect(server.swanctl("--rekey", "--child", "net"), "rekey completed successfully\n")
    expect(server.swanctl("--rekey", "--ike", "missing", code=1), "rekey failed: no matching SAs to rekey found\n")
    expect(server.swanctl("--redirect", "--ike", "site", "--gateway", "192.0.2.7"), "redirect completed successfully\n")


def install(server):
    expect(server.swanctl("--install", "--child", "net"), "install completed successfully\n")
    expect(server.swanctl("--uninstall", "--child", "net"), "uninstall completed successfully\n")
    server.swanctl("--flush-certs")
    expect(server.swanctl("--reload-settings"), "")


def log(server):
    expect(server.watch("--log", ["second line"]), "03[NET] first line\n", "03[NET] second line\n")


def monitor(server):
    text = server.watch("--monitor-sa", ["site: #1, ESTABLISHED", "  net: #2, reqid 1"])
    expect(text, "site: #1, ESTABLISHED", "site: #1, ESTABLISHED", "  net: #2, reqid 1, ", "INSTALLED, TUNNEL-in-UDP, ESP:")


def python_package(server):
    import socket
    import vici  # pylint: disable=import-error
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(server.socket)
    session = vici.Session(stream)
    if session.version()["version"] != b"1.2.3":
        raise Failed(f"version: {session.version()}")
    sas = list(session.list_sas())
    if [list(sa)[0] for sa in sas] != ["site", "branch"] or sas[0]["site"]["child-sas"]["net-2"]["spi-in"] != b"c0000001":
        raise Failed(f"list-sas: {sas}")
    if sas[0]["site"]["child-sas"]["net-2"]["local-ts"] != [b"10.1.0.0/16", b"fd00:1::/64[tcp/443]"]:
        raise Failed(f"list-sas: {sas}")
    session.load_conn({"py": {"version": 2, "children": {"a": {"local_ts": ["10.0.0.0/8"]}}}})
    if b"py" not in session.get_conns()["conns"]:
        raise Failed(f"get-conns: {session.get_conns()}")
    lines = [event["msg"] for event in session.initiate({"child": "net"})]
    if lines != [b"initiating IKE_SA site[1]", b"CHILD_SA net{1} established"]:
        raise Failed(f"initiate: {lines}")
    try:
        session.terminate({"ike": "missing"})
        for _ in session.terminate({"ike": "missing"}):
            pass
        raise Failed("a failure was taken for a success")
    except vici.exception.CommandException:
        pass
    try:
        for _ in session.listen(["no-such-event"]):
            pass
        raise Failed("an unknown event was confirmed")
    except vici.exception.EventUnknownException:
        pass
    for kind, event in session.listen(["child-updown"]):
        if kind != b"child-updown" or event["up"] != b"yes":
            raise Failed(f"listen: {kind} {event}")
        break
    stream.close()


CASES = {
    "list-sas": list_sas, "list-sas-raw": list_sas_raw, "list-conns": list_conns, "list-pols": list_policies,
    "list-certs": list_certs, "list-authorities": list_authorities, "list-pools": list_pools, "stats": stats,
    "list-algs": list_algorithms, "counters": counters, "version": version, "load-all": load_all, "initiate": initiate,
    "terminate": terminate, "rekey": rekey, "install": install, "log": log, "monitor-sa": monitor,
    "python": python_package,
}


def main():
    lab, words = sys.argv[1], sys.argv[2:]
    package = os.path.join(lab, "python")
    sys.path.insert(0, package)
    good = True
    for name, case in CASES.items():
        if words and not any(word in name for word in words):
            continue
        if case is python_package and not os.path.isdir(os.path.join(package, "vici")):
            print(f"SKIP swanctl/{name}: pip cannot install the package vici")
            continue
        directory = os.path.join(lab, name)
        os.makedirs(directory, exist_ok=True)
        try:
            with Server(directory) as server:
                case(server)
            print(f"PASS swanctl/{name}", flush=True)
        except (Failed, OSError, subprocess.SubprocessError) as error:
            good = False
            print(f"FAIL swanctl/{name}: {str(error)!r}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
