"""Throw-away certificates, made once per run.

By `weir pki`: `rsa`, `ecdsa256`, `ecdsa384` and `ed25519`, a CA for each kind of key, and `revoked`, which is on the CRL of its CA.

By strongSwan's `pki`, which has an intermediate CA, delta CRLs, OCSP and dates: the CA `foreign` with `foreign` and `expired`;
`cdp` and `cdp-revoked`, which name its CRL, `ocsp` and `ocsp-revoked`, which name its OCSP server; `late`, which is on the delta
CRL alone; `below`, issued by an intermediate CA that is revoked. The CA `foreign-rsa` issues `moonCert` and `sunCert`, those of
strongSwan's own examples.

Files are named NAME-END, CAs ca-NAME. The folder `www` is what the server of revocation.py has.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from gateway import WEIR, Failed  # noqa: E402

# CAs of `weir pki`: the kind of key, and names of certificates.
OWN = {"rsa": ("rsa-3072", ["rsa"]), "ecdsa256": ("ecdsa-p256", ["ecdsa256", "revoked"]),
       "ecdsa384": ("ecdsa-p384", ["ecdsa384"]), "ed25519": ("ed25519", ["ed25519"])}
# Self-signed CAs of strongSwan's `pki`: kind of key, and its length.
FOREIGN = {"foreign": ("ecdsa", "256"), "foreign-rsa": ("rsa", "2048")}
ENDS = ("weir", "peer")
# Certificates with a place of revocation information, by name.
SERVER = "http://192.0.2.1:8880"
PLACES = {"cdp": ["--crl", f"{SERVER}/ca-foreign.crl"], "ocsp": ["--ocsp", f"{SERVER}/ocsp"]}
PLACES |= {f"{name}-revoked": PLACES[name] for name in PLACES}
EXAMPLES = {"moonCert": "moon.strongswan.org", "sunCert": "sun.strongswan.org"}
# Name of a certificate: the CA that issues it.
NAMES = {name: ca for ca, (_, names) in OWN.items() for name in names}
NAMES |= dict.fromkeys(("foreign", "expired", "late", *PLACES), "foreign") | {"below": "below"} | dict.fromkeys(EXAMPLES, "foreign-rsa")


def run(program, *arguments, cwd=None):
    done = subprocess.run([program, *arguments], capture_output=True, check=False, cwd=cwd)
    if done.returncode != 0:
        raise Failed(f"{os.path.basename(program)} {' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def pki(*arguments, out):
    """Runs strongSwan's `pki`, and writes its output into a file."""
    with open(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(run("pki", *arguments))


class Pki:
    """The folder with everything."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        with ThreadPoolExecutor(4) as pool:
            own = [pool.submit(self._own, name) for name in OWN]
            list(pool.map(self._foreign, FOREIGN))
            self._intermediate()
            leaves = [(name, end) for name, ca in NAMES.items() if ca not in OWN and name not in EXAMPLES for end in ENDS]
            list(pool.map(lambda leaf: self._leaf(*leaf), leaves + [(name, None) for name in EXAMPLES]))
            for made in own:
                made.result()
        self._www()

    def path(self, *parts):
        return os.path.join(self.folder, "-".join(parts))

    def _own(self, ca):
        """A CA of `weir pki`, its certificates and its CRL."""
        kind, names = OWN[ca]
        weir = lambda *words: run(os.path.abspath(WEIR), "pki", words[0], "--ca", ca, *words[1:], cwd=self.folder)  # noqa: E731
        weir("ca", "--name", f"Lab CA {ca}", "--key", kind)
        made = [("ca.crt", "ca", f"{ca}.pem")]
        for name, end in ((name, end) for name in names for end in ENDS):
            weir("issue", "--peer", "--key", kind, "--id", f"{end}.lab", "--name", f"{name}-{end}")
            made += [(f"certs/{name}-{end}.crt", name, f"{end}.pem"), (f"private/{name}-{end}.key", name, f"{end}.key")]
            if name == "revoked":
                weir("revoke", f"{name}-{end}", "--reason", "key-compromise")
        weir("crl")
        for source, *target in [*made, ("ca.crl", "ca", f"{ca}.crl")]:
            os.link(os.path.join(self.folder, ca, source), self.path(*target))

    def _key(self, kind, path):
        algorithm, bits = kind
        pki("--gen", "--type", algorithm, "--size", bits, "--outform", "pem", out=path)

    def _foreign(self, ca):
        self._key(FOREIGN[ca], self.path("ca", ca + ".key"))
        pki("--self", "--ca", "--lifetime", "3650", "--in", self.path("ca", ca + ".key"), "--type", FOREIGN[ca][0],
            "--dn", f"C=CH, O=Lab, CN=Lab CA {ca}", "--outform", "pem", out=self.path("ca", ca + ".pem"))

    def _leaf(self, name, end):
        ca = NAMES[name]
        file = name if name in EXAMPLES else f"{name}-{end}"
        san = EXAMPLES.get(name, f"{end}.lab")
        self._key(FOREIGN.get(ca, FOREIGN["foreign"]), self.path(file + ".key"))
        dates = ["--lifetime", "1000"]
        if name == "expired":
            dates = ["--not-before", "01.01.20 00:00:00", "--not-after", "01.02.20 00:00:00"]
        pki("--issue", *dates, "--type", "priv", "--in", self.path(file + ".key"),
            "--cacert", self.path("ca", ca + ".pem"), "--cakey", self.path("ca", ca + ".key"),
            "--dn", f"C=CH, O=Lab, CN={san}", "--san", san, "--flag", "serverAuth", "--flag", "clientAuth",
            "--flag", "ikeIntermediate", *PLACES.get(name, []), "--outform", "pem", out=self.path(file + ".pem"))

    def _intermediate(self):
        self._key(FOREIGN["foreign"], self.path("ca", "below.key"))
        pki("--issue", "--ca", "--lifetime", "3000", "--type", "priv", "--in", self.path("ca", "below.key"),
            "--cacert", self.path("ca", "foreign.pem"), "--cakey", self.path("ca", "foreign.key"),
            "--dn", "C=CH, O=Lab, CN=Lab CA below", "--outform", "pem", out=self.path("ca", "below.pem"))

    def _www(self):
        """Files of the server: the CRL of `weir pki`, one of `pki`, one with a delta CRL, and the list of certificates that
        `openssl ocsp` reads."""
        www = os.path.join(self.folder, "www")
        os.makedirs(www)
        os.link(self.path("ca", "ecdsa256.crl"), os.path.join(www, "ca-ecdsa256.crl"))
        sign = ["--signcrl", "--cacert", self.path("ca", "foreign.pem"), "--cakey", self.path("ca", "foreign.key")]
        because = ["--reason", "key-compromise", "--cert"]
        revoked = [word for name in ("cdp-revoked-peer.pem", "ca-below.pem") for word in (*because, self.path(name))]
        base = os.path.join(www, "ca-base.crl")
        pki(*sign, *revoked, out=os.path.join(www, "ca-foreign.crl"))
        pki(*sign, "--crluri", f"{SERVER}/ca-delta.crl", *because, self.path("cdp-revoked-peer.pem"), out=base)
        pki(*sign, "--basecrl", base, *because, self.path("late-peer.pem"), out=os.path.join(www, "ca-delta.crl"))
        with open(os.path.join(www, "index.txt"), "w", encoding="ascii") as index:
            for name, state, end in ((*known, end) for known in (("ocsp", "V"), ("ocsp-revoked", "R")) for end in ENDS):
                shown = run("openssl", "x509", "-noout", "-serial", "-in", self.path(name, end + ".pem")).decode("ascii")
                since = "200101000000Z" if state == "R" else ""
                index.write(f"{state}\t401231000000Z\t{since}\t{shown.strip().split('=')[1]}\tunknown\t/CN={name}-{end}\n")

    def renew(self, folder, end, name):
        """Replaces a certificate that was installed with a valid one."""
        fresh = "ecdsa256" if NAMES[name] in OWN else "foreign"
        for place, ending in (("x509", "pem"), ("private", "key")):
            target = os.path.join(folder, place, f"{name}-{end}.{ending}")
            os.unlink(target)
            os.link(self.path(f"{fresh}-{end}.{ending}"), target)

    def install(self, folder, end, own, trusted, crl):
        """What one end needs: its certificates and keys, the CAs it trusts, perhaps the CRL."""
        files = [name if name in EXAMPLES else f"{name}-{end}" for name in own]
        wanted = [("x509", f"{file}.pem") for file in files]
        wanted += [("private", f"{file}.key") for file in files]
        wanted += [("x509ca", f"ca-{ca}.pem") for ca in trusted]
        wanted += [("x509ca", "ca-foreign.pem")] if "below" in trusted else []
        wanted += [("x509crl", "ca-ecdsa256.crl")] if crl else []
        for place, file in wanted:
            os.makedirs(os.path.join(folder, place), mode=0o700, exist_ok=True)
            target = os.path.join(folder, place, file)
            if not os.path.exists(target):
                os.link(self.path(file), target)
