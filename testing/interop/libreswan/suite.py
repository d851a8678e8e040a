"""libreswan as the peer: pluto is started for each kind of certificates, each case replaces its one connection."""

import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ikepeer  # noqa: E402
from gateway import Failed  # noqa: E402
from ikepeer import Case, Peer, main  # noqa: E402

CERTIFICATES = ("rsa", "ecdsa256")
SETUP = """config setup
    uniqueids=no
    ikev1-policy=accept

"""
CONNECTION = """conn net
    keyexchange=ikev{version}
    left=192.0.2.2
    leftid=@peer.lab
    leftsubnet=10.2.0.0/16
    leftupdown=/bin/true
    right=192.0.2.1
    rightid=@weir.lab
    rightsubnet=10.1.0.0/16
    auto=add
"""
# IKEv1, with algorithms that both ends name.
V1_IKE = {"ike": "aes128-sha2_256;modp2048", "esp": "aes128-sha2_256;modp2048"}
V1_WEIR = {"connection": "proposals = aes128-sha256-modp2048", "child": "esp_proposals = aes128-sha256-modp2048"}
# `whack --rekey-child` on a Child SA of IKEv1 ends pluto 5.2, by a check for IKEv2.
V1_REKEYS = [("child", "weir"), ("ike", "weir")]
CASES = [
    Case("psk", {"authby": "secret"}),
    Case("psk-gcm-p384", {"authby": "secret", "ike": "aes_gcm256-sha2_384;dh20", "esp": "aes_gcm256;dh20"},
         connection="proposals = aes256gcm16-prfsha384-ecp384", child="esp_proposals = aes256gcm16-ecp384", rekeys=[("child", "weir"), ("child", "peer")]),
    Case("rsa", {"authby": "rsasig", "leftcert": "rsa-peer", "rightca": "%same"}, certificate="rsa",
         wire=["ike-fragment"], not_on_wire=["ip-fragment"]),
    Case("rsa-without-fragmentation", {"authby": "rsasig", "leftcert": "rsa-peer", "rightca": "%same", "fragmentation": "no"},
         certificate="rsa", connection="fragmentation = no", rekeys=[], wire=["ip-fragment"], not_on_wire=["ike-fragment"]),
    Case("v1-psk", {"authby": "secret", **V1_IKE}, version=1, **V1_WEIR, rekeys=V1_REKEYS),
    Case("v1-x25519", {"authby": "secret", "ike": "aes128-sha2_256;dh31", "esp": "aes_gcm128;modp2048"}, version=1,
         connection="proposals = aes128-sha256-x25519", child="esp_proposals = aes128gcm16-modp2048", rekeys=V1_REKEYS),
    Case("v1-rsa", {"authby": "rsasig", "leftcert": "rsa-peer", "rightca": "%same", **V1_IKE}, version=1, **V1_WEIR, certificate="rsa",
         rekeys=V1_REKEYS),
    Case("v1-wrong-psk", {"authby": "secret", **V1_IKE}, version=1, **V1_WEIR, secret="another secret of this laboratory",
         refused="most likely the shared keys differ", refused_by_peer="mismatch of preshared secrets"),
    Case("v1-restart", {"authby": "secret", **V1_IKE}, version=1, **V1_WEIR, rekeys=[], restart=True),
    Case("ecdsa", {"authby": "ecdsa", "leftcert": "ecdsa256-peer", "rightca": "%same"}, certificate="ecdsa256", rekeys=[]),
]


class Pluto(Peer):
    """IKE daemon of libreswan, driven by `ipsec whack`. Certificates and keys are in a database of NSS."""

    log_file = "/run/peer/pluto.log"
    kind = None

    def prepare(self):
        # pluto loads what its file holds some time after its start: not the connection of a case.
        self.write("pluto.conf", SETUP)
        self.write("ipsec.secrets", f'@weir.lab @peer.lab : PSK "{ikepeer.SECRET}"\n')
        for kind in CERTIFICATES:
            self.bundle(kind)
            database = f"sql:/run/peer/nss-{kind}"
            self.host.must(f"cp {self.pki_folder}/ca-{kind}.pem {self.pki_folder}/{kind}-peer.p12 /run/peer/; "
                           f"mkdir -p /run/peer/nss-{kind} /run/peer/d /run/pluto")
            self.inside(f"certutil -N -d {database} --empty-password")
            self.inside(f"certutil -A -d {database} -n ca-{kind} -t CT,, -a -i /run/peer/ca-{kind}.pem")
            self.inside(f"pk12util -i /run/peer/{kind}-peer.p12 -d {database} -W lab")

    def start(self, kind):
        """Starts pluto with the certificates of one kind. In one database NSS gives certificates of the same subject one name."""
        if self.kind == kind:
            return
        if self.kind:
            self.inside("whack --shutdown")
            self.host.must("for i in $(seq 200); do [ -e /run/pluto/pluto.pid ] || exit 0; sleep 0.05; done; exit 1")
        self.inside(f"pluto --config /run/peer/pluto.conf --nssdir sql:/run/peer/nss-{kind} --rundir /run/pluto "
                    "--secretsfile /run/peer/ipsec.secrets --ipsecdir /run/peer/d --logfile /run/peer/pluto.log "
                    "--use-xfrm --no-dnssec --nhelpers 1")
        self.host.must("for i in $(seq 200); do [ -S /run/pluto/pluto.ctl ] && exit 0; sleep 0.05; done; "
                       "tail -n 20 /run/peer/pluto.log; exit 1")
        self.inside("whack --listen")
        self.kind = kind

    def bundle(self, kind):
        """Certificate and private key as PKCS #12, which is what NSS reads."""
        path = f"{self.pki_folder}/{kind}-peer"
        done = subprocess.run(
            ["openssl", "pkcs12", "-export", "-in", f"{path}.pem", "-inkey", f"{path}.key", "-certfile",
             f"{self.pki_folder}/ca-{kind}.pem", "-name", f"{kind}-peer", "-passout", "pass:lab", "-out", f"{path}.p12"],
            capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"openssl pkcs12: {done.stderr.strip()}")

    def load(self, case, initiator):
        self.start(case.certificate or self.kind or CERTIFICATES[0])
        self.host.guest.sh(f"chroot {ikepeer.ROOT} /usr/libexec/ipsec/whack --delete --name net; ip xfrm state flush; ip xfrm policy flush")
        lines = "".join(f"    {key}={value}\n" for key, value in case.peer.items())
        self.write("ipsec.conf", SETUP + CONNECTION.format(version=case.version) + lines)
        self.inside("addconn --config /run/peer/ipsec.conf --ctlsocket /run/pluto/pluto.ctl net")

    def initiate(self, case):
        self.inside("timeout 30 whack --initiate --name net")

    def try_to_initiate(self, case):
        # It waits for all retransmissions.
        self.host.must(f"chroot {ikepeer.ROOT} timeout 10 /usr/libexec/ipsec/whack --initiate --name net || true")

    def rekey(self, kind):
        self.inside(f"timeout 20 whack --rekey-{kind} --name net")

    def terminate(self):
        self.inside("whack --terminate --name net")


sys.exit(main(Pluto, CASES))
