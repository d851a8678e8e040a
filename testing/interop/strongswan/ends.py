"""The two ends of a scenario: Weir; strongSwan here, in another root, or in a kernel of its own. All are driven in the same way."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
import vici  # noqa: E402
from gateway import WEIR, Failed  # noqa: E402
from net import wait_for  # noqa: E402

CHARON = "/usr/lib/ipsec/charon"
PLUGINS = ("random nonce aes aesni sha1 sha2 md5 mgf1 hmac kdf gmp curve25519 x509 revocation constraints pubkey pkcs1 "
           "pkcs8 pem openssl gcm ccm ctr chapoly cmac xcbc drbg ml fips-prf {kernel} socket-default vici updown attr "
           "eap-identity eap-md5 eap-mschapv2 eap-tls xauth-generic unity counters")
CHARON_CONF = """charon {{
  load_modular = no
  load = {plugins}
  retransmit_timeout = 1.0
  retransmit_base = 1.5
  retransmit_tries = 4
  delete_rekeyed_delay = 2
  make_before_break = yes
  keep_alive = 2s
{more}
  filelog {{
    log {{
      path = {log}
      time_format = %T
      default = 1
      ike = 2
      knl = 1
      flush_line = yes
    }}
  }}
  plugins {{
    vici {{
      socket = unix://{socket}
    }}
    kernel-libipsec {{
      raw_esp = {raw_esp}
    }}
  }}
}}
"""
# Weir has these in a connection, strongSwan in strongswan.conf.
OWN_KEYS = re.compile(r"^\s*retransmit_(timeout|base|tries)\s*=.*\n", re.M)


class End:
    """A daemon with its folder. `actor` is "weir" or "peer": the end it stands at."""

    def __init__(self, actor, host, folder, config):
        self.actor, self.host, self.folder, self.config = actor, host, folder, config
        self.socket = os.path.join(folder, "vici")
        self.process = None
        # A clock and a disk of its own, where a scenario requires them.
        self.clock = self.disk = None
        os.makedirs(folder, exist_ok=True)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        # On a full disk what is there already can still be read.
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                if file.read() == text:
                    return path
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def environment(self):
        return {**os.environ, **(self.clock.environment if self.clock else {})}

    def swanctl(self, *arguments, patience_s=40):
        """Exit status and output of `swanctl`."""
        command = ["swanctl", *arguments, "--uri", f"unix://{self.socket}"]
        environment = {**os.environ, "SWANCTL_DIR": self.folder, "STRONGSWAN_CONF": self.write("plain.conf", "")}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace",
                                  timeout=patience_s, check=False)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.actor}: swanctl {' '.join(arguments)} hangs") from None
        return done.returncode, done.stdout + done.stderr

    def sas(self):
        """IKE SAs by name of the connection, each a dictionary as in list-sas, with the name in "name"."""
        try:
            events, _ = vici.listing(self.socket, "list-sas", "list-sa")
        except OSError as error:
            raise Failed(f"{self.actor}: list-sas: {error or type(error).__name__}; {self.last_words()}") from None
        return [{"name": name, **sa} for event in events for name, sa in event.items()]

    def pools(self):
        _, reply = vici.listing(self.socket, "get-pools", "list-sa")
        return reply

    def drops(self):
        """Packets that its data plane dropped, by reason, where that can be read."""
        return {}

    def last_words(self):
        return " | ".join(self.log().splitlines()[-3:]) or "it printed nothing"

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """Ends it without a chance to say anything to anybody."""
        if self.alive():
            self.process.kill()
            self.process.wait()

    def stop(self):
        """Ends it; whether it did so by itself and in order."""
        if not self.alive():
            return True
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(10) == 0
        except subprocess.TimeoutExpired:
            self.kill()
            return False


class Weir(End):
    """`weir up` on a scenario's file, with a section of its own for what a run decides."""

    kind = "weir"

    def __init__(self, actor, host, folder, config, more=""):
        super().__init__(actor, host, folder, config)
        self.more = more
        self.log_path = os.path.join(folder, "weir.log")

    def configure(self):
        own = {
            "tun": "weir0",
            "socket": self.socket,
            "state_dir": os.path.join(self.folder, "state"),
            "log": os.environ.get("WEIR_LOG", "info"),
        }
        lines = "".join(f"    {key} = {value}\n" for key, value in own.items())
        more = self.more.replace("$FOLDER", self.folder)
        self.write("swanctl.conf", f"{self.config}\ngateway {{\n{lines}{more}\n}}\n")

    def start(self):
        self.configure()
        before = self.log()
        with open(self.log_path, "a", encoding="utf-8") as log:
            self.process = self.host.popen([WEIR, "up", "--config", os.path.join(self.folder, "swanctl.conf")],
                                           stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                           env=self.environment())

        def ready():
            if not self.alive():
                message = self.log()[len(before):].strip()
                raise Failed(f"{self.actor}: weir up ended with status {self.process.returncode}: {message[-1500:]}")
            # With a full disk it cannot say so.
            return "weir: ready" in self.log()[len(before):] or self.disk and self.disk.full and self.listens()

        wait_for(lambda: f"weir up is not ready: {self.last_words()}", ready, 20)

    def listens(self):
        try:
            return vici.listing(self.socket, "list-sas", "list-sa") is not None
        except OSError:
            return False

    def reload(self):
        self.configure()
        before = len(self.log())
        self.process.send_signal(signal.SIGHUP)
        wait_for(lambda: f"it did not reload: {self.last_words()}", lambda: "reloaded" in self.log()[before:])

    def drops(self):
        return json.loads(self.status() or "{}").get("total", {}).get("drops", {})

    def status(self):
        """What `weir status --json` prints."""
        return subprocess.run([WEIR, "status", "--json", "--socket", self.socket], capture_output=True, text=True,
                              timeout=10, check=False).stdout

    def log(self):
        if not os.path.exists(self.log_path):
            return ""
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()


class Charon(End):
    """strongSwan in the namespace of a host with its userspace data plane, from this machine's packages or from `root`."""

    kind = "strongswan"
    program = CHARON
    kernel = "kernel-libipsec kernel-netlink"

    def __init__(self, actor, host, folder, config, root=None, more=""):
        super().__init__(actor, host, folder, OWN_KEYS.sub("", config))
        self.root, self.more = root, more
        self.log_path = os.path.join(folder, "charon.log")

    def configure(self, seen_as):
        """Writes its files; it sees its folder as `seen_as`."""
        self.write("strongswan.conf", CHARON_CONF.format(
            plugins=PLUGINS.format(kernel=self.kernel), log=os.path.join(seen_as, os.path.basename(self.log_path)),
            socket=os.path.join(seen_as, "vici"), raw_esp="yes" if self.root else "no",
            more="".join(f"  {line}\n" for line in self.more.splitlines())))
        self.write("swanctl.conf", self.config)
        self.write("plain.conf", "")

    def start(self):
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        if self.root:
            self.configure("/mnt")
            script = f"""
                mount --bind /dev {self.root}/dev
                mount --bind {self.folder} {self.root}/mnt
                mount -t proc proc {self.root}/proc
                mount -t tmpfs run {self.root}/run
                exec chroot {self.root} env STRONGSWAN_CONF=/mnt/strongswan.conf {CHARON}"""
        else:
            self.configure(self.folder)
            script = f"mount -t tmpfs run /run; STRONGSWAN_CONF={self.folder}/strongswan.conf exec {self.program}"
        with open(os.path.join(self.folder, "charon.out"), "a", encoding="utf-8") as out:
            # The namespace of the host first, while /run is still the one that names it.
            self.process = self.host.popen(["unshare", "--mount", "sh", "-ec", script], stdin=subprocess.DEVNULL,
                                           stdout=out, stderr=subprocess.STDOUT, env=self.environment())

        def ready():
            if not self.alive():
                raise Failed(f"{self.actor}: charon ended with status {self.process.returncode}: {self.last_words()}")
            return os.path.exists(self.socket)

        wait_for("charon", ready, 20)
        self.load_all()

    def reload(self):
        self.write("swanctl.conf", self.config)
        self.load_all("--clear")

    def load_all(self, *more):
        """The socket exists a moment before charon listens on it; swanctl cannot connect then."""
        def loaded():
            code, self.loading = self.swanctl("--load-all", *more)
            if code != 0 and "URI failed" not in self.loading:
                raise Failed(f"{self.actor}: swanctl --load-all: {self.loading.strip()[-600:]}")
            return code == 0
        wait_for(lambda: f"{self.actor}: swanctl --load-all: {self.loading.strip()[-600:]}", loaded, 5)

    def log(self):
        if not os.path.exists(self.log_path):
            return ""
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()


class GuestCharon(Charon):
    """strongSwan in a kernel of its own: raw ESP and AH by Linux itself."""

    kernel = "kernel-netlink"

    def __init__(self, actor, host, folder, config, guest, root=None, more=""):
        super().__init__(actor, host, folder, config, root, more)
        self.guest = guest
        self.running = False
        self.xfrm_before = {}

    def xfrm_stat(self):
        return {name: int(count) for name, count in map(str.split, self.guest.must("cat /proc/net/xfrm_stat").splitlines())}

    def xfrm_errors(self, names=()):
        """Counters of the kernel that have changed since the start, of those with these names or of all."""
        now = self.xfrm_stat()
        unknown = set(names) - set(now)
        if unknown:
            raise Failed(f"{self.actor}: its kernel does not count {', '.join(unknown)}")
        return {name: now[name] - self.xfrm_before[name] for name in names or now if now[name] != self.xfrm_before[name]}

    drops = xfrm_errors

    def start(self):
        self.xfrm_before = self.xfrm_stat()
        self.configure("/mnt" if self.root else "/run/peer")
        # The guest remembers what it has read of this file system.
        self.guest.must(f"rm -rf /run/peer; mkdir -p /run/peer; echo 3 >/proc/sys/vm/drop_caches; cp -r {self.folder}/. /run/peer/")
        program = f"env STRONGSWAN_CONF=/run/peer/strongswan.conf {CHARON}"
        if self.root:
            self.guest.must(f"""
                if ! mountpoint -q {self.root}/proc; then
                    mount -t proc proc {self.root}/proc; mount --bind /dev {self.root}/dev; mount --bind /run {self.root}/run
                fi
                mountpoint -q {self.root}/mnt || mount --bind /run/peer {self.root}/mnt""")
            program = f"chroot {self.root} env STRONGSWAN_CONF=/mnt/strongswan.conf {CHARON}"
        self.guest.must(f"setsid {program} </dev/null >/run/peer/charon.out 2>&1 &\n"
                        "for i in $(seq 100); do [ -S /run/peer/vici ] && exit 0; sleep 0.05; done; cat /run/peer/charon.out; exit 1")
        self.running = True
        self.load_all()

    def swanctl(self, *arguments, patience_s=40):
        words = " ".join(f"'{word}'" for word in arguments)
        return self.guest.sh(f"SWANCTL_DIR=/run/peer STRONGSWAN_CONF=/run/peer/plain.conf swanctl {words} --uri unix:///run/peer/vici")

    def sas(self):
        reply = self.guest.ask(vici=["/run/peer/vici", "list-sas", "list-sa"])
        if "wrong" in reply:
            raise Failed(f"{self.actor}: list-sas: {reply['wrong']}; {self.last_words()}")
        return [{"name": name, **sa} for event in reply["events"] for name, sa in event.items()]

    def log(self):
        return self.guest.sh("cat /run/peer/charon.log")[1]

    def alive(self):
        return self.running

    def kill(self):
        self._end("kill -9 $(cat /run/charon.pid)")

    def stop(self):
        if self.running:
            with open(self.log_path, "w", encoding="utf-8") as file:
                file.write(self.log())
            self._end("kill $(cat /run/charon.pid)")
        return True

    def _end(self, how):
        """Ends it, waits until it is gone, forgets what the kernel still has of it."""
        self.guest.sh(f"pid=$(cat /run/charon.pid); {how}; for i in $(seq 100); do [ -d /proc/$pid ] || break; sleep 0.05; done; "
                      f"rm -f /run/charon.pid; ip xfrm state flush; ip xfrm policy flush; "
                      f"{f'umount {self.root}/mnt' if self.root else ''}")
        self.running = False


def unconfined(folder):
    """A copy of charon. Profiles that confine the installed one go by its path, and would keep it from files here."""
    return shutil.copy(CHARON, os.path.join(folder, "charon"))


def available(root=None):
    """Why strongSwan cannot run here, or None."""
    wanted = [CHARON, "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so"]
    for file in wanted:
        file = os.path.join(root or "/", file.lstrip("/"))
        if not os.path.exists(file):
            return f"there is no {file}"
    return None


