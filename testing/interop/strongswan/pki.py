"""Throw-away certificates by strongSwan's `pki`, made once per run: a CA per kind of key, a leaf for each end.

`rsa`, `ecdsa256`, `ecdsa384`, `ed25519` are valid; `expired` has expired, `revoked` stands on the CRL of its CA. Files are
named NAME-END, CAs ca-KIND. `moonCert` and `sunCert` are those of strongSwan's own examples.

The folder `www` is what the server of revocation.py has. `cdp` and `cdp-revoked` name its CRL, `ocsp` and `ocsp-revoked` its OCSP,
`late` stands on the delta CRL alone; `below` is issued by an intermediate CA, which is revoked.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from gateway import Failed  # noqa: E402

KINDS = {"rsa": ("rsa", 2048), "ecdsa256": ("ecdsa", 256), "ecdsa384": ("ecdsa", 384), "ed25519": ("ed25519", None)}
# Name of a certificate: the kind of key, and what is special about it.
NAMES = {**{kind: kind for kind in KINDS}, "expired": "ecdsa256", "revoked": "ecdsa256"}
ENDS = ("weir", "peer")
# Names of certificates with a place of revocation information, and whether they are revoked.
SERVER = "http://192.0.2.1:8880"
PLACES = {"cdp": ["--crl", f"{SERVER}/ca-ecdsa256.crl"], "ocsp": ["--ocsp", f"{SERVER}/ocsp"], "late": [], "below": []}
PLACES |= {f"{name}-revoked": PLACES[name] for name in ("cdp", "ocsp")}
NAMES.update(dict.fromkeys(PLACES, "ecdsa256"))
NAMES["below"] = "below"
EXAMPLES = {"moonCert": "moon.strongswan.org", "sunCert": "sun.strongswan.org"}
NAMES.update(dict.fromkeys(EXAMPLES, "rsa"))


def pki(*arguments, out=None):
    done = subprocess.run(["pki", *arguments], capture_output=True, check=False)
    if done.returncode != 0:
        raise Failed(f"pki {' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()}")
    if out:
        with open(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(done.stdout)


class Pki:
    """The folder with everything."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self._ca, KINDS))
            self._intermediate()
            list(pool.map(lambda both: self._leaf(*both), [(name, end) for name in NAMES for end in ENDS if name not in EXAMPLES]))
            list(pool.map(lambda name: self._leaf(name, None), EXAMPLES))
        for end in ENDS:
            self._revoke(end)
        self._www()

    def path(self, *parts):
        return os.path.join(self.folder, "-".join(parts))

    def _key(self, kind, path):
        algorithm, bits = KINDS.get(kind, KINDS["ecdsa256"])
        pki("--gen", "--type", algorithm, *(["--size", str(bits)] if bits else []), "--outform", "pem", out=path)

    def _ca(self, kind):
        self._key(kind, self.path("ca", kind + ".key"))
        pki("--self", "--ca", "--lifetime", "3650", "--in", self.path("ca", kind + ".key"), "--type", KINDS[kind][0],
            "--dn", f"C=CH, O=Lab, CN=Lab CA {kind}", "--outform", "pem", out=self.path("ca", kind + ".pem"))

    def _leaf(self, name, end):
        kind = NAMES[name]
        file = name if name in EXAMPLES else f"{name}-{end}"
        san = EXAMPLES.get(name, f"{end}.lab")
        self._key(kind, self.path(file + ".key"))
        dates = ["--lifetime", "1000"]
        if name == "expired":
            dates = ["--not-before", "01.01.20 00:00:00", "--not-after", "01.02.20 00:00:00"]
        pki("--issue", *dates, "--type", "priv", "--in", self.path(file + ".key"),
            "--cacert", self.path("ca", kind + ".pem"), "--cakey", self.path("ca", kind + ".key"),
            "--dn", f"C=CH, O=Lab, CN={san}", "--san", san, "--flag", "serverAuth", "--flag", "clientAuth",
            "--flag", "ikeIntermediate", *PLACES.get(name, []), "--outform", "pem", out=self.path(file + ".pem"))

    def _revoke(self, end):
        """One CRL with both, the second built upon the first."""
        last = self.path("ca", "ecdsa256.crl")
        more = ["--lastcrl", last] if os.path.exists(last) else []
        pki("--signcrl", "--cacert", self.path("ca", "ecdsa256.pem"), "--cakey", self.path("ca", "ecdsa256.key"),
            *more, "--reason", "key-compromise", "--cert", self.path("revoked", end + ".pem"), out=last + ".new")
        os.replace(last + ".new", last)

    def _intermediate(self):
        self._key("below", self.path("ca", "below.key"))
        pki("--issue", "--ca", "--lifetime", "3000", "--type", "priv", "--in", self.path("ca", "below.key"),
            "--cacert", self.path("ca", "ecdsa256.pem"), "--cakey", self.path("ca", "ecdsa256.key"),
            "--dn", "C=CH, O=Lab, CN=Lab CA below", "--outform", "pem", out=self.path("ca", "below.pem"))

    def _www(self):
        """What the server has: a CRL, one with a delta CRL, and the list of certificates that `openssl ocsp` reads."""
        www = os.path.join(self.folder, "www")
        os.makedirs(www)
        sign = ["--signcrl", "--cacert", self.path("ca", "ecdsa256.pem"), "--cakey", self.path("ca", "ecdsa256.key")]
        because = ["--reason", "key-compromise", "--cert"]
        revoked = [word for name in ("revoked-peer.pem", "cdp-revoked-peer.pem", "ca-below.pem") for word in (*because, self.path(name))]
        base = os.path.join(www, "ca-base.crl")
        pki(*sign, *revoked, out=os.path.join(www, "ca-ecdsa256.crl"))
        pki(*sign, "--crluri", f"{SERVER}/ca-delta.crl", *because, self.path("revoked-peer.pem"), out=base)
        pki(*sign, "--basecrl", base, *because, self.path("late-peer.pem"), out=os.path.join(www, "ca-delta.crl"))
        with open(os.path.join(www, "index.txt"), "w", encoding="ascii") as index:
            for name, state, end in ((*known, end) for known in (("ocsp", "V"), ("ocsp-revoked", "R")) for end in ENDS):
                shown = subprocess.run(["openssl", "x509", "-noout", "-serial", "-in", self.path(name, end + ".pem")],
                                       capture_output=True, text=True, check=True).stdout
                since = "200101000000Z" if state == "R" else ""
                index.write(f"{state}\t401231000000Z\t{since}\t{shown.strip().split('=')[1]}\tunknown\t/CN={name}-{end}\n")

    def renew(self, folder, end, name):
        """The certificate `name` of an end that has been installed, made again: it is valid."""
        fresh = "ecdsa256" if name == "below" else NAMES[name]
        for place, ending in (("x509", "pem"), ("private", "key")):
            target = os.path.join(folder, place, f"{name}-{end}.{ending}")
            os.unlink(target)
            os.link(self.path(f"{fresh}-{end}.{ending}"), target)

    def install(self, folder, end, own, trusted, crl):
        """What one end needs: its certificates and keys, the CAs it trusts, perhaps the CRL."""
        files = [name if name in EXAMPLES else f"{name}-{end}" for name in own]
        wanted = [("x509", f"{file}.pem") for file in files]
        wanted += [("private", f"{file}.key") for file in files]
        wanted += [("x509ca", f"ca-{kind}.pem") for kind in trusted]
        wanted += [("x509ca", "ca-ecdsa256.pem")] if "below" in trusted else []
        wanted += [("x509crl", "ca-ecdsa256.crl")] if crl else []
        for place, file in wanted:
            os.makedirs(os.path.join(folder, place), mode=0o700, exist_ok=True)
            target = os.path.join(folder, place, file)
            if not os.path.exists(target):
                os.link(self.path(file), target)
