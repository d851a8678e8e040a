"""OpenIKED as the peer: iked is started for each case, as active or passive end. It has no command for a rekey and does it by lifetime."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ikepeer  # noqa: E402
from ikepeer import Case, Peer, main  # noqa: E402

POLICY = ('ikev2 "net" {role} esp from 10.2.0.0/16 to 10.1.0.0/16 local 192.0.2.2 peer 192.0.2.1 '
          "srcid peer.lab dstid weir.lab {lifetimes} {auth}\n")
BY_WEIR = [("child", "weir"), ("ike", "weir")]
# Seconds. iked rekeys when some nine tenths of them are over, a Child SA only when packets went
# through it.
SHORT = {"child": "ikelifetime 3600 lifetime 10", "ike": "ikelifetime 10 lifetime 3600"}
CASES = [
    Case("psk", rekeys=BY_WEIR),
    Case("child-rekey", {"lifetimes": SHORT["child"]}, rekeys=[("child", "peer")]),
    Case("ike-rekey", {"lifetimes": SHORT["ike"]}, rekeys=[("ike", "peer")]),
    Case("rsa", {"auth": "rfc7427", "global": "set fragmentation\n"}, certificate="rsa", rekeys=[],
         wire=["ike-fragment"], not_on_wire=["ip-fragment"]),
    # As the initiator iked sends no more than its certificate: that fits.
    Case("rsa-without-fragmentation", {"auth": "rfc7427"}, certificate="rsa", rekeys=[],
         wire_by_weir=["ip-fragment"], not_on_wire=["ike-fragment"]),
    Case("ecdsa", {"auth": "rfc7427"}, certificate="ecdsa256", rekeys=[]),
]


class Iked(Peer):
    """IKE daemon of OpenBSD. Certificates and keys are files in /etc/iked."""

    log_file = "/run/peer/iked.log"

    def prepare(self):
        self.host.must(f"mount -t tmpfs -o mode=0755 iked {ikepeer.ROOT}/etc/iked")

    def load(self, case, initiator):
        self.stop()
        folder = f"{ikepeer.ROOT}/etc/iked"
        # It requires a private key for a PSK as well.
        kind = case.certificate or "ecdsa256"
        own = f"{self.pki_folder}/{kind}-peer"
        self.host.must(f"rm -rf {folder}/*; cd {folder}; mkdir -p ca certs crls private pubkeys/fqdn pubkeys/ipv4; "
                       f"cp {own}.key private/local.key; cp {own}.pem certs/peer.pem; cp {self.pki_folder}/ca-{kind}.pem ca/; "
                       "chmod -R a+rX ca certs crls pubkeys; chmod 600 private/local.key")
        text = case.peer.get("global", "") + POLICY.format(
            role="active" if initiator == "peer" else "passive",
            lifetimes=case.peer.get("lifetimes", "ikelifetime 3600"), auth=case.peer.get("auth", f'psk "{ikepeer.SECRET}"'))
        self.write("iked.conf", text)
        self.host.must("chmod 600 /run/peer/iked.conf")
        self.host.must(f"setsid chroot {ikepeer.ROOT} /usr/sbin/iked -dvf /run/peer/iked.conf </dev/null >{self.log_file} 2>&1 & "
                       "echo $! >/run/peer/iked.pid; for i in $(seq 200); do [ -S /run/iked.sock ] && exit 0; sleep 0.05; done; "
                       f"cat {self.log_file}; exit 1")

    def terminate(self):
        self.inside("ikectl reset sa")

    def stop(self):
        """Ends the daemon and removes what its kernel still has."""
        # The guest's first process waits for no child: what has ended keeps its entry in /proc,
        # without a program.
        self.host.must("if [ -e /run/peer/iked.pid ]; then pid=$(cat /run/peer/iked.pid); kill $pid; n=0; "
                       "while readlink /proc/$pid/exe >/dev/null; do sleep 0.05; n=$((n + 1)); "
                       "[ $n -lt 40 ] || kill -9 -$pid; done; fi; "
                       "rm -f /run/peer/iked.pid /run/iked.sock; ip xfrm state flush; ip xfrm policy flush")


sys.exit(main(Iked, CASES))
