"""Certificates, CRLs and files of `weir pki` as other programs read them, and connections with what `weir new` writes."""

import base64
import json
import os
import plistlib
import pty
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "strongswan"))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
import ends  # noqa: E402
import net  # noqa: E402
from gateway import WEIR, Failed  # noqa: E402
from shell import wait_for  # noqa: E402
from verdict import Skip, run_cases  # noqa: E402

SUITE, LAB = sys.argv[1], sys.argv[2]
KEYS = ("ecdsa-p256", "ecdsa-p384", "ed25519", "rsa-3072")
IKE_INTERMEDIATE = "1.3.6.1.5.5.8.2.2"


def run(*command, code=0, cwd=None, text=True, stdin=subprocess.DEVNULL):
    """Output of a command, which must end with `code`."""
    done = subprocess.run(command, capture_output=True, text=text, cwd=cwd, stdin=stdin, timeout=60, check=False)
    if done.returncode != code:
        message = done.stdout + done.stderr
        message = message if text else message.decode(errors="replace")
        raise Failed(f"{' '.join(command)}: status {done.returncode}, not {code}: {message.strip()[-400:]}")
    return done.stdout if not text else done.stdout + done.stderr


def weir(folder, *arguments, code=0):
    return run(WEIR, *arguments, code=code, cwd=folder)


def weir_json(folder, *arguments):
    return json.loads(run(WEIR, *arguments, "--json", cwd=folder))


def expect(text, *parts):
    for part in parts:
        if part not in text:
            raise Failed(f"'{part}' is missing in: {text.strip()[:400]}")


def refuse(text, *parts):
    for part in parts:
        if part in text:
            raise Failed(f"'{part}' is in: {text.strip()[:400]}")


def new_folder(name):
    path = os.path.join(LAB, name)
    os.makedirs(path)
    return path


def write(path, text):
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def read(path, mode="r"):
    with open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
        return file.read()


def authority(folder, *more):
    """A CA with a certificate for each role; `more` is the kind of the keys."""
    weir(folder, "pki", "ca", "--name", "Suite CA", *more)
    weir(folder, "pki", "issue", "--server", "--id", "vpn.example.org,192.0.2.1,2001:db8::1", "--name", "vpn", *more)
    weir(folder, "pki", "issue", "--client", "--id", "alice@example.org,alice", "--name", "alice", *more)
    weir(folder, "pki", "issue", "--peer", "--id", "a.example.org", "--name", "peer", *more)
    return folder


def path_of(folder, name):
    return os.path.join(folder, "ca", "certs", name + ".crt")


# Contents of certificates.

def case_openssl_verifies_chains_usage_and_names():
    for kind in KEYS:
        folder = authority(new_folder(f"openssl-{kind}"), "--key", kind)
        strict = ("openssl", "verify", "-x509_strict", "-CAfile", "ca/ca.crt")
        for name, purposes in (("vpn", ["sslserver"]), ("alice", ["sslclient"]), ("peer", ["sslserver", "sslclient"])):
            for purpose in ("sslserver", "sslclient"):
                wanted = 0 if purpose in purposes else 2
                run(*strict, "-purpose", purpose, path_of(folder, name), code=wanted, cwd=folder)
        shown = run("openssl", "x509", "-in", path_of(folder, "vpn"), "-noout", "-text")
        expect(shown, "DNS:vpn.example.org, IP Address:192.0.2.1, IP Address:2001:DB8:0:0:0:0:0:1", "Digital Signature",
               "TLS Web Server Authentication", IKE_INTERMEDIATE, "CA:FALSE", "X509v3 Authority Key Identifier",
               "X509v3 Subject Key Identifier")
        refuse(shown, "TLS Web Client Authentication")
        shown = run("openssl", "x509", "-in", path_of(folder, "alice"), "-noout", "-text")
        expect(shown, "email:alice@example.org, DNS:alice", "TLS Web Client Authentication")
        refuse(shown, "TLS Web Server Authentication", IKE_INTERMEDIATE)
        shown = run("openssl", "x509", "-in", "ca/ca.crt", "-noout", "-text", cwd=folder)
        expect(shown, "CA:TRUE, pathlen:0", "Certificate Sign, CRL Sign", "Basic Constraints: critical", "Key Usage: critical")
        key = run("openssl", "pkey", "-in", "ca/private/vpn.key", "-pubout", cwd=folder)
        if key != run("openssl", "x509", "-in", path_of(folder, "vpn"), "-noout", "-pubkey"):
            raise Failed("the private key is not that of the certificate")
    other = authority(new_folder("openssl-other"))
    run("openssl", "verify", "-CAfile", os.path.join(other, "ca/ca.crt"), path_of(folder, "vpn"), code=2)


def case_openssl_refuses_what_a_crl_revokes():
    folder = authority(new_folder("crl"))

    def verify(name, code):
        return run("openssl", "verify", "-crl_check", "-CAfile", "ca/ca.crt", "-CRLfile", "ca/ca.crl", path_of(folder, name),
                   code=code, cwd=folder)

    first = weir_json(folder, "pki", "crl")
    verify("alice", 0)
    weir(folder, "pki", "revoke", "alice", "--reason", "key-compromise")
    verify("alice", 0)
    second = weir_json(folder, "pki", "crl")
    if (first["number"], first["revoked"], second["number"], second["revoked"]) != (1, 0, 2, 1):
        raise Failed(f"CRLs {first}, {second}")
    expect(verify("alice", 2), "certificate revoked")
    verify("vpn", 0)
    shown = run("openssl", "crl", "-in", "ca/ca.crl", "-noout", "-text", cwd=folder)
    expect(shown, "Key Compromise", "X509v3 CRL Number", "X509v3 Authority Key Identifier")
    run("openssl", "crl", "-in", "ca/ca.crl", "-CAfile", "ca/ca.crt", "-noout", cwd=folder)
    # An index from a backup must not take numbers back.
    index = os.path.join(folder, "ca/index.toml")
    write(index, re.sub(r"crl_number = \d+", "crl_number = 0", read(index)))
    if weir_json(folder, "pki", "crl")["number"] != 3:
        raise Failed("a number of a CRL was used again")
    listed = weir_json(folder, "pki", "show")["certificates"]
    if {entry["name"]: entry["state"] for entry in listed} != {"vpn": "valid", "alice": "revoked", "peer": "valid"}:
        raise Failed(f"weir pki show: {listed}")
    expect(weir(folder, "pki", "show"), "alice (alice@example.org, alice)", "vpn (vpn.example.org, 192.0.2.1")
    for line in weir(folder, "pki", "show").splitlines():
        if len(line) > 80:
            raise Failed(f"{len(line)} columns: {line}")


def case_crl_uri_and_name_constraints_are_in_certificates():
    folder = new_folder("constraints")
    weir(folder, "pki", "ca", "--name", "Narrow CA", "--permit", "example.org", "--permit", "192.0.2.0/24",
         "--crl-uri", "http://pki.example.org/ca.crl")
    weir(folder, "pki", "issue", "--server", "--id", "vpn.example.org,192.0.2.1")
    shown = run("openssl", "x509", "-in", path_of(folder, "vpn.example.org"), "-noout", "-text")
    expect(shown, "URI:http://pki.example.org/ca.crl")
    run("openssl", "verify", "-x509_strict", "-CAfile", "ca/ca.crt", path_of(folder, "vpn.example.org"), cwd=folder)
    expect(weir(folder, "pki", "issue", "--server", "--id", "vpn.example.net", code=2), "do not permit", "vpn.example.net")
    # The constraint is in the CA, not only in the command.
    write(os.path.join(folder, "ext"), "subjectAltName=DNS:vpn.example.net\n")
    run("openssl", "req", "-newkey", "ed25519", "-nodes", "-subj", "/CN=x", "-keyout", "x.key", "-out", "x.csr", cwd=folder)
    run("openssl", "x509", "-req", "-in", "x.csr", "-CA", "ca/ca.crt", "-CAkey", "ca/ca.key", "-CAcreateserial", "-days", "3",
        "-extfile", "ext", "-out", "x.pem", cwd=folder)
    expect(run("openssl", "verify", "-CAfile", "ca/ca.crt", "x.pem", code=2, cwd=folder), "permitted subtree violation")


def case_strongswan_pki_agrees():
    if not shutil.which("pki"):
        raise Skip("strongSwan's pki is not installed")
    for kind in KEYS:
        folder = authority(new_folder(f"pki-{kind}"), "--key", kind)
        shown = run("pki", "--print", "--in", path_of(folder, "vpn"))
        expect(shown, "CN=vpn.example.org", "vpn.example.org, 192.0.2.1, 2001:db8::1", "serverAuth", "ikeIntermediate")
        expect(run("pki", "--print", "--in", path_of(folder, "alice")), "clientAuth", "alice@example.org")
        expect(run("pki", "--print", "--in", "ca/ca.crt", cwd=folder), "CA CRLSign self-signed", "pathlen:   0")
        verify = ("pki", "--verify", "--in", path_of(folder, "alice"), "--cacert", "ca/ca.crt")
        expect(run(*verify, cwd=folder), "certificate trusted, lifetimes valid")
        weir(folder, "pki", "revoke", "alice")
        weir(folder, "pki", "crl")
        message = run(*verify, "--crl", "ca/ca.crl", "--online", code=1, cwd=folder)
        expect(message, "certificate was revoked")
        expect(run("pki", "--print", "--type", "crl", "--in", "ca/ca.crl", cwd=folder), "CN=Suite CA", "revoked certificate")
    other = authority(new_folder("pki-other"))
    message = run("pki", "--verify", "--in", path_of(folder, "vpn"), "--cacert", os.path.join(other, "ca/ca.crt"), code=1)
    expect(message, "no issuer certificate found")


# Files.

def case_keys_are_private_and_nothing_is_replaced():
    folder = authority(new_folder("modes"))
    for path in ("ca/ca.key", "ca/private/alice.key"):
        mode = stat.S_IMODE(os.stat(os.path.join(folder, path)).st_mode)
        if mode != 0o600:
            raise Failed(f"{path} has mode {mode:o}")
    before = {path: read(os.path.join(folder, path)) for path in ("ca/ca.key", "ca/private/alice.key")}
    expect(weir(folder, "pki", "ca", "--name", "Other", code=2), "exists: this folder has a CA")
    expect(weir(folder, "pki", "issue", "--client", "--id", "alice", code=2), "has a valid certificate", "--force")
    weir(folder, "pki", "bundle", "alice", "--p12")
    expect(weir(folder, "pki", "bundle", "alice", "--p12", code=2), "alice.p12 exists; --force replaces it")
    if {path: read(os.path.join(folder, path)) for path in before} != before:
        raise Failed("a key was replaced")
    weir(folder, "pki", "issue", "--client", "--id", "alice", "--force")
    if read(os.path.join(folder, "ca/private/alice.key")) == before["ca/private/alice.key"]:
        raise Failed("--force did not replace the key")
    expect(weir(folder, "pki", "issue", "--client", "--id", "*.example.org", code=2), "a wildcard is not a name for IKE")
    expect(weir(folder, "pki", "issue", "--id", "bob", code=2), "--server", "--client", "--peer")
    expect(weir(folder, "pki", "revoke", "nobody", code=2), "no certificate 'nobody'")
    serials = [entry["serial"] for entry in weir_json(folder, "pki", "show")["certificates"]]
    if len(set(serials)) != 4 or any(len(serial) != 32 for serial in serials):
        raise Failed(f"serial numbers {serials}")


def case_a_passphrase_encrypts_the_key_of_the_ca():
    folder = new_folder("passphrase")
    write(os.path.join(folder, "pass"), "correct horse\n")
    write(os.path.join(folder, "wrong"), "battery staple\n")
    weir(folder, "pki", "ca", "--name", "Closed CA", "--passphrase-file", "pass")
    expect(read(os.path.join(folder, "ca/ca.key")), "BEGIN ENCRYPTED PRIVATE KEY")
    run("openssl", "pkey", "-in", "ca/ca.key", "-passin", "file:pass", "-noout", cwd=folder)
    run("openssl", "pkey", "-in", "ca/ca.key", "-passin", "file:wrong", "-noout", cwd=folder, code=1)
    issue = ("pki", "issue", "--client", "--id", "alice")
    expect(weir(folder, *issue, "--passphrase-file", "wrong", code=2), "no passphrase decrypts it")
    expect(weir(folder, *issue, code=2), "standard input is not a terminal")
    weir(folder, *issue, "--passphrase-file", "pass")


def opened(folder, file, password):
    """Number of certificates in a PKCS#12 file whose key and chain openssl accepts."""
    options = ("openssl", "pkcs12", "-in", file, "-passin", f"pass:{password}")
    run(*options, "-nodes", "-nocerts", "-out", "key.pem", cwd=folder)
    run(*options, "-nokeys", "-clcerts", "-out", "own.pem", cwd=folder)
    run(*options, "-nokeys", "-cacerts", "-out", "cas.pem", cwd=folder)
    run("openssl", "verify", "-CAfile", "cas.pem", "own.pem", cwd=folder)
    if run("openssl", "pkey", "-in", "key.pem", "-pubout", cwd=folder) != run("openssl", "x509", "-in", "own.pem", "-noout",
                                                                             "-pubkey", cwd=folder):
        raise Failed(f"{file}: the key is not that of the certificate")
    run("openssl", "pkcs12", "-in", file, "-passin", "pass:wrong", "-noout", cwd=folder, code=1)
    return run(*options, "-info", "-noout", cwd=folder)


def case_openssl_opens_pkcs12():
    for kind in KEYS:
        folder = authority(new_folder(f"p12-{kind}"), "--key", kind)
        password = weir_json(folder, "pki", "bundle", "alice", "--p12")["password"]
        expect(opened(folder, "alice.p12", password), "PBES2, PBKDF2, AES-256-CBC", "sha256")
        write(os.path.join(folder, "pass"), "a chosen password\n")
        weir(folder, "pki", "bundle", "alice", "--p12", "--cipher", "3des", "--password-file", "pass", "--out", "old.p12")
        expect(opened(folder, "old.p12", "a chosen password"), "pbeWithSHA1And3-KeyTripleDES-CBC", "sha1")
        kinds = [found["type"] for found in weir_json(folder, "pki", "show", "old.p12", "--password-file", "pass")]
        if kinds != ["private key", "certificate", "CA certificate"]:
            raise Failed(f"weir pki show: {kinds}")


def case_mobileconfig_is_a_property_list():
    folder = authority(new_folder("mobileconfig"), "--key", "rsa-3072")
    done = weir_json(folder, "pki", "bundle", "alice", "--mobileconfig", "--server", "vpn.example.org")
    profile = plistlib.loads(read(os.path.join(folder, done["file"]), "rb"))
    if (profile["PayloadType"], profile["PayloadVersion"]) != ("Configuration", 1):
        raise Failed(f"no profile: {list(profile)}")
    payloads = {payload["PayloadType"]: payload for payload in profile["PayloadContent"]}
    root, identity, vpn = (payloads[kind] for kind in
                           ("com.apple.security.root", "com.apple.security.pkcs12", "com.apple.vpn.managed"))
    every = [profile, root, identity, vpn]
    if len({str(uuid.UUID(payload["PayloadUUID"])) for payload in every}) != 4:
        raise Failed("UUIDs are not unique")
    if len({payload["PayloadIdentifier"] for payload in every}) != 4:
        raise Failed("identifiers are not unique")
    ikev2 = vpn["IKEv2"]
    wanted = {"RemoteAddress": "vpn.example.org", "RemoteIdentifier": "vpn.example.org", "LocalIdentifier": "alice@example.org",
              "AuthenticationMethod": "Certificate", "CertificateType": "RSA", "ServerCertificateIssuerCommonName": "Suite CA",
              "PayloadCertificateUUID": identity["PayloadUUID"]}
    wrong = {key: ikev2.get(key) for key, value in wanted.items() if ikev2.get(key) != value}
    if wrong or vpn["VPNType"] != "IKEv2":
        raise Failed(f"settings of the connection: {wrong}")
    if ikev2["ChildSecurityAssociationParameters"]["EncryptionAlgorithm"] != "AES-256-GCM":
        raise Failed("no AES-256-GCM for Child SAs")
    with open(os.path.join(folder, "root.der"), "wb") as file:
        file.write(root["PayloadContent"])
    run("openssl", "x509", "-in", "root.der", "-noout", cwd=folder)
    with open(os.path.join(folder, "identity.p12"), "wb") as file:
        file.write(identity["PayloadContent"])
    expect(opened(folder, "identity.p12", done["password"]), "pbeWithSHA1And3-KeyTripleDES-CBC")
    refuse(read(os.path.join(folder, done["file"])), done["password"])
    # The same client and gateway: the device replaces the profile.
    again = weir_json(folder, "pki", "bundle", "alice", "--mobileconfig", "--server", "vpn.example.org", "--out", "again")
    if plistlib.loads(read(os.path.join(folder, again["file"]), "rb"))["PayloadUUID"] != profile["PayloadUUID"]:
        raise Failed("the UUID of the profile changed")


def case_sswan_has_the_fields_of_strongswan():
    folder = authority(new_folder("sswan"))
    done = weir_json(folder, "pki", "bundle", "alice", "--sswan", "--server", "vpn.example.org", "--networks",
                     "10.2.0.0/16,2001:db8:2::/48")
    profile = json.loads(read(os.path.join(folder, done["file"])))
    uuid.UUID(profile["uuid"])
    if (profile["type"], profile["remote"]["addr"], profile["remote"]["id"]) != ("ikev2-cert", "vpn.example.org", "vpn.example.org"):
        raise Failed(f"fields: {profile}")
    if not profile["name"] or profile["local"]["id"] != "alice@example.org":
        raise Failed(f"fields: {profile}")
    if profile["split-tunneling"]["subnets"] != ["10.2.0.0/16", "2001:db8:2::/48"]:
        raise Failed(f"split tunneling: {profile['split-tunneling']}")
    for name, data in (("identity.p12", profile["local"]["p12"]), ("root.der", profile["remote"]["cert"])):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(base64.b64decode(data, validate=True))
    run("openssl", "x509", "-in", "root.der", "-noout", cwd=folder)
    opened(folder, "identity.p12", done["password"])
    expect(weir(folder, "pki", "bundle", "alice", "--sswan", "--out", "x", code=2), "--server is missing")


def case_windows_script_has_both_files():
    folder = authority(new_folder("windows"), "--key", "rsa-3072")
    done = weir_json(folder, "pki", "bundle", "alice", "--windows", "--server", "vpn.example.org", "--networks", "10.2.0.0/16")
    script = read(os.path.join(folder, done["file"]))
    root, identity = re.findall(r"FromBase64String\('([^']+)'\)", script)
    with open(os.path.join(folder, "root.der"), "wb") as file:
        file.write(base64.b64decode(root, validate=True))
    with open(os.path.join(folder, "identity.p12"), "wb") as file:
        file.write(base64.b64decode(identity, validate=True))
    run("openssl", "x509", "-in", "root.der", "-noout", cwd=folder)
    expect(opened(folder, "identity.p12", done["password"]), "AES-256-CBC")
    expect(script, "-TunnelType Ikev2", "MachineCertificate", "-DestinationPrefix '10.2.0.0/16'", "-DHGroup ECP256")
    if script.count("{") != script.count("}") or script.count("'") % 2:
        raise Failed("braces or quotes do not match")


# Connections.

class Two:
    """Two hosts with a wire, a capture of it, and the folders of a configuration."""

    def __init__(self, name, topology="wire"):
        self.folder = new_folder(name)
        self.name = f"pki-{name}"
        self.topology, self.ends = topology, []

    def __enter__(self):
        self.network = net.Network(self.name, self.topology, weirs=("weir", "peer"))
        self.capture = net.Capture(self.network.seen_at, self.network.device, os.path.join(self.folder, "wire.pcap"))
        return self

    def __exit__(self, kind, error, trace):
        for end in self.ends:
            end.stop()
        self.capture.stop()
        self.network.remove()
        if error is not None:
            for end in self.ends:
                error.args = (f"{error}; {end.actor}: {end.last_words()}",)

    def weir(self, actor, source, more=""):
        """`weir up` with a folder that `weir new` wrote."""
        folder = os.path.join(self.folder, actor)
        if not os.path.exists(folder):
            shutil.copytree(source, folder)
        config = read(os.path.join(folder, "weir.conf"))
        end = ends.Weir(actor, self.network.hosts[actor], folder, config, more)
        self.ends.append(end)
        return end

    def charon(self, actor, config):
        folder = os.path.join(self.folder, actor)
        end = ends.Charon(actor, self.network.hosts[actor], folder, config)
        self.ends.append(end)
        return end

    def ping(self, actor, source, target, answered=True):
        """Pings until one is answered, or a few that must not be."""
        host = self.network.hosts[actor]
        if not answered:
            sent, got = net.answered(host.run(net.ping(source, target, 10, 0.1, patience_s=1)).stdout)
            if got:
                raise Failed(f"{got} of {sent} pings from {source} to {target} were answered")
            return
        wait_for(lambda: f"no ping from {source or actor} to {target} is answered; {self.words()}",
                 lambda: host.run(["ping", "-c", "1", "-W", "1", *(["-I", source] if source else []), target]).returncode == 0, 30)
        done = host.run(["ping", "-c", "20", "-i", "0.05", "-W", "2", *(["-I", source] if source else []), target])
        if " 0% packet loss" not in done.stdout:
            raise Failed(f"pings from {source or actor} to {target}: {done.stdout[-200:]}")

    def words(self):
        return "; ".join(f"{end.actor}: {end.last_words()}" for end in self.ends)

    def protected(self, what):
        """Only what is protected was on the wire, and some of it is `what`."""
        self.capture.stop()
        clear = self.capture.matching(f"not ({net.PROTECTED})")
        if clear:
            raise Failed(f"in the clear: {clear[0]}")
        if not self.capture.matching(net.WIRE[what]):
            raise Failed(f"nothing like {what} on the wire")


def checked(folder):
    """`weir check` accepts a configuration without a warning."""
    message = run(WEIR, "check", os.path.join(folder, "weir.conf"))
    refuse(message, "warning")
    expect(message, "ok: 1 connection")


def case_new_site_to_site_comes_up():
    with Two("site") as two:
        done = weir_json(two.folder, "new", "site-to-site", "office", "--address-a", "192.0.2.1", "--networks-a", "10.1.0.0/24",
                         "--address-b", "192.0.2.2", "--networks-b", "10.2.0.0/24,fd02::/64")
        a, b = (os.path.join(two.folder, host["folder"]) for host in done["hosts"])
        checked(a)
        checked(b)
        if os.path.exists(os.path.join(a, "ca.key")) or len(os.listdir(os.path.join(a, "private"))) != 1:
            raise Failed("a host has keys of others")
        before = read(os.path.join(a, "weir.conf"))
        expect(weir(two.folder, "new", "site-to-site", "office", "--address-a", "192.0.2.9", "--networks-a", "10.1.0.0/24",
                    "--address-b", "192.0.2.2", "--networks-b", "10.2.0.0/24", code=2), "office exists")
        if read(os.path.join(a, "weir.conf")) != before:
            raise Failed("the folder was changed")
        for end in (two.weir("weir", a), two.weir("peer", b)):
            end.start()
        two.ping("weir", "10.1.0.1", "10.2.0.1")
        two.ping("peer", "10.2.0.1", "10.1.0.1")
        two.protected("esp")


def case_new_site_to_site_with_a_changing_address():
    with Two("any") as two:
        done = weir_json(two.folder, "new", "site-to-site", "office", "--address-a", "192.0.2.1", "--networks-a", "10.1.0.0/24",
                         "--address-b", "any", "--networks-b", "10.2.0.0/24")
        a, b = (os.path.join(two.folder, host["folder"]) for host in done["hosts"])
        run(WEIR, "check", os.path.join(a, "weir.conf"))
        checked(b)
        for end in (two.weir("weir", a), two.weir("peer", b)):
            end.start()
        two.ping("weir", "10.1.0.1", "10.2.0.1")
        two.protected("esp")


def case_new_host_to_host_psp_comes_up():
    with Two("psp") as two:
        done = weir_json(two.folder, "new", "host-to-host-psp", "pair", "--address-a", "192.0.2.1", "--address-b", "192.0.2.2")
        a, b = (os.path.join(two.folder, host["folder"]) for host in done["hosts"])
        checked(a)
        for end in (two.weir("weir", a), two.weir("peer", b)):
            end.start()
        two.ping("weir", "192.0.2.1", "192.0.2.2")
        two.protected("psp")


def road(folder):
    return weir_json(folder, "new", "road-warrior", "office", "--address", "192.0.2.2", "--networks", "10.2.0.0/24",
                     "--pool", "10.3.0.0/24", "--clients", "alice@example.org,bob")


def case_new_road_warrior_and_a_revoked_client():
    with Two("road") as two:
        done = road(two.folder)
        gateway, alice, bob = (os.path.join(two.folder, host["folder"]) for host in done["hosts"])
        checked(gateway)
        checked(alice)
        server = two.weir("peer", gateway)
        server.start()
        client = two.weir("weir", alice)
        client.start()
        two.ping("weir", None, "10.2.0.1")
        if not [sa for sa in server.sas() if sa.get("remote-id") == "alice@example.org" and "10.3.0.1" in str(sa)]:
            raise Failed(f"the gateway has no virtual address for alice: {server.sas()}")
        # Not yet in a CRL: the gateway cannot know.
        weir(two.folder, "pki", "revoke", "--ca", "office/ca", "alice@example.org", "--reason", "key-compromise")
        client.stop()
        client.start()
        two.ping("weir", None, "10.2.0.1")
        weir(two.folder, "pki", "crl", "--ca", "office/ca")
        os.makedirs(os.path.join(server.folder, "x509crl"))
        shutil.copy(os.path.join(two.folder, "office/ca/ca.crl"), os.path.join(server.folder, "x509crl"))
        server.reload()
        client.stop()
        client.start()
        wait_for(lambda: f"alice was not refused; {two.words()}", lambda: "is revoked" in server.log(), 20)
        two.ping("weir", "192.0.2.1", "10.2.0.1", answered=False)
        if [sa for sa in server.sas() if sa["state"] == "ESTABLISHED"]:
            raise Failed(f"a revoked client has an IKE SA: {server.sas()}")
        client.stop()
        # The others are served as before.
        two.ends.remove(client)
        shutil.rmtree(client.folder)
        client = two.weir("weir", bob)
        client.start()
        two.ping("weir", None, "10.2.0.1")
        two.protected("esp")


# Metrics over TLS.

# Prints status and first metric line of a scrape, or why there is none.
SCRAPE = """
import http.client, ssl, sys
authority, token, path = sys.argv[1:4]
context = ssl.create_default_context(cafile=authority)
context.check_hostname = True
connection = http.client.HTTPSConnection("192.0.2.1", 9790, timeout=10, context=context)
try:
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
    response = connection.getresponse()
    body = response.read().decode()
    print(response.status, "\\nweir_healthy 1\\n" in body, len(body))
except (OSError, http.client.HTTPException) as error:
    print("none:", type(error).__name__, error)
"""


def case_scrapes_from_another_host():
    with Two("scrapes") as two:
        authority(two.folder)
        for name in ("first", "second"):
            weir(two.folder, "pki", "issue", "--server", "--id", "192.0.2.1", "--name", name)
        source = os.path.join(two.folder, "source")
        os.makedirs(source)
        write(os.path.join(source, "weir.conf"), "")
        gateway = two.weir("weir", source, "    metrics = 192.0.2.1:9790\n    metrics_cert = metrics.crt\n    metrics_key = metrics.key")

        def use(certificate, key):
            shutil.copy(path_of(two.folder, certificate), os.path.join(gateway.folder, "metrics.crt"))
            shutil.copy(os.path.join(two.folder, "ca", "private", key + ".key"), os.path.join(gateway.folder, "metrics.key"))

        def scrape(token, path="/metrics", ca=os.path.join(two.folder, "ca", "ca.crt")):
            done = two.network.hosts["peer"].run(["/usr/bin/python3", "-c", SCRAPE, ca, token, path])
            return (done.stdout + done.stderr).strip()

        def shown():
            """Serial number of the certificate that a client is shown."""
            done = two.network.hosts["peer"].run(
                ["sh", "-c", "openssl s_client -connect 192.0.2.1:9790 </dev/null 2>/dev/null | openssl x509 -noout -serial"])
            return done.stdout.strip()

        use("first", "first")
        gateway.start()
        token = read(os.path.join(gateway.folder, "state", "metrics-token")).strip()
        expect(scrape(token), "200 ", "True")
        expect(scrape(token, "/healthz"), "200 ")
        for wrong in ("", token[:-1], token + "x"):
            expect(scrape(wrong), "401 ", "False")
        # Another CA: the client would see a host in the middle.
        other = os.path.join(two.folder, "other.crt")
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x", "-keyout",
            other + ".key", "-out", other)
        expect(scrape(token, ca=other), "none:", "CERTIFICATE_VERIFY_FAILED")
        plain = two.network.hosts["peer"].run(
            ["/usr/bin/python3", "-c", "import http.client; c = http.client.HTTPConnection('192.0.2.1', 9790, timeout=10)\n"
             "c.request('GET', '/metrics')\ntry: print(c.getresponse().status)\nexcept Exception as e: print('none:', type(e).__name__)"])
        expect(plain.stdout, "none:")
        # A new certificate is for the next scrape; a key of another one refuses the reload.
        before = shown()
        use("second", "second")
        gateway.reload()
        after = shown()
        if not before or not after or before == after:
            raise Failed(f"serial number before {before!r}, after the reload {after!r}")
        expect(scrape(token), "200 ", "True")
        use("first", "second")
        known = len(gateway.log())
        gateway.process.send_signal(signal.SIGHUP)
        wait_for(lambda: f"the reload was not refused: {gateway.last_words()}",
                 lambda: "metrics_key" in gateway.log()[known:] and "configuration unchanged" in gateway.log()[known:])
        if shown() != after:
            raise Failed("a refused reload changed the certificate")
        refuse(gateway.log(), token)


STRONGSWAN = """connections {{
    net {{
        version = 2
        local_addrs = 192.0.2.2
        remote_addrs = 192.0.2.1
        encap = yes
        local {{
            auth = pubkey
            {certs}
            id = b.example.org
        }}
        remote {{
            auth = pubkey
            id = a.example.org
            revocation = {revocation}
        }}
        children {{
            net {{
                local_ts = 10.2.0.0/24
                remote_ts = 10.1.0.0/24
                esp_proposals = aes128gcm16
            }}
        }}
    }}
}}
{secrets}
"""
WEIR_SIDE = """connections {
    net {
        local_addrs = 192.0.2.1
        remote_addrs = 192.0.2.2
        encap = yes
        local {
            id = a.example.org
        }
        remote {
            id = b.example.org
        }
        children {
            net {
                local_ts = 10.1.0.0/24
                remote_ts = 10.2.0.0/24
                start_action = start
            }
        }
    }
}
secrets {
    pkcs12-a {
        file = a.p12
        secret = "pass of a"
    }
}
"""


def with_strongswan(name, kind, container, revoked=False):
    """Weir with a PKCS#12 file, strongSwan with files in folders, or the other way round."""
    if reason := ends.available():
        raise Skip(reason)
    with Two(name, "ipv4") as two:
        weir(two.folder, "pki", "ca", "--name", "Mixed CA", "--key", kind)
        weir(two.folder, "pki", "issue", "--peer", "--id", "a.example.org", "--name", "a", "--key", kind)
        weir(two.folder, "pki", "issue", "--peer", "--id", "b.example.org", "--name", "b", "--key", kind)
        for host, end in (("a", "weir"), ("b", "peer")):
            write(os.path.join(two.folder, f"{host}.pass"), f"pass of {host}\n")
            if container == end:
                os.makedirs(os.path.join(two.folder, end, "pkcs12"))
                weir(two.folder, "pki", "bundle", host, "--p12", "--password-file", f"{host}.pass", "--out", f"{end}/pkcs12/{host}.p12")
            else:
                weir(two.folder, "pki", "bundle", host, "--folders", end)
        # What a PKCS#12 file brings besides: the CA. swanctl trusts CAs of the folder x509ca.
        os.makedirs(os.path.join(two.folder, "peer/x509ca"), exist_ok=True)
        shutil.copy(os.path.join(two.folder, "ca/ca.crt"), os.path.join(two.folder, "peer/x509ca"))
        if revoked:
            weir(two.folder, "pki", "revoke", "a")
            weir(two.folder, "pki", "crl")
            os.makedirs(os.path.join(two.folder, "peer/x509crl"))
            shutil.copy(os.path.join(two.folder, "ca/ca.crl"), os.path.join(two.folder, "peer/x509crl"))
        write(os.path.join(two.folder, "weir/weir.conf"), WEIR_SIDE)
        secrets = 'secrets {\n pkcs12-b {\n file = b.p12\n secret = "pass of b"\n }\n}\n' if container == "peer" else ""
        certs = "certs = b.crt" if container != "peer" else ""
        peer = two.charon("peer", STRONGSWAN.format(certs=certs, secrets=secrets, revocation="relaxed"))
        peer.start()
        own = two.weir("weir", None)
        own.start()
        if revoked:
            wait_for(lambda: f"not refused; {two.words()}", lambda: "was revoked" in peer.log(), 20)
            two.ping("weir", "10.1.0.1", "10.2.0.1", answered=False)
            return
        two.ping("weir", "10.1.0.1", "10.2.0.1")
        two.protected("esp-in-udp")


def case_strongswan_with_ecdsa_and_pkcs12_at_weir():
    with_strongswan("mixed-ecdsa", "ecdsa-p256", "weir")


def case_strongswan_with_rsa_and_pkcs12_at_strongswan():
    with_strongswan("mixed-rsa", "rsa-3072", "peer")


def case_strongswan_with_ed25519():
    with_strongswan("mixed-ed25519", "ed25519", None)


def case_strongswan_refuses_a_revoked_certificate():
    with_strongswan("mixed-revoked", "ecdsa-p384", None, revoked=True)


# The command line of `weir new`.

def on_terminal(folder, lines, *arguments):
    """Runs a command on a terminal and answers its questions."""
    terminal, its_end = pty.openpty()
    process = subprocess.Popen([WEIR, *arguments], cwd=folder, stdin=its_end, stdout=subprocess.PIPE, stderr=its_end)
    os.close(its_end)
    asked, lines, deadline = "", list(lines), time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                asked += os.read(terminal, 65536).decode()
            except OSError:
                break
        if asked.rstrip("\n").endswith(": ") and lines:
            os.write(terminal, lines.pop(0).encode() + b"\n")
            asked += "\n"
    output = process.communicate(timeout=10)[0].decode()
    os.close(terminal)
    if process.returncode != 0 or lines:
        raise Failed(f"{' '.join(arguments)}: status {process.returncode}, not asked for {lines}: {asked}")
    return asked, output


def case_new_asks_on_a_terminal():
    folder = new_folder("prompts")
    asked, output = on_terminal(folder, ["a.example.org", "10.1.0.1/24", "10.1.0.0/24", "any", "10.2.0.0/24"], "new", "site-to-site")
    expect(asked, "gateway A", "has bits beyond its prefix", "networks behind gateway B")
    expect(output, "site-to-site/a.example.org", "copy site-to-site/gateway-b/. to /etc/weir", "weir check")
    run(WEIR, "check", os.path.join(folder, "site-to-site/gateway-b/weir.conf"))
    on_terminal(folder, ["vpn.example.org", "10.2.0.0/16", "", "", "alice"], "new", "road-warrior")
    expect(read(os.path.join(folder, "road-warrior/vpn.example.org/weir.conf")), "addrs = 10.3.0.0/24")
    message = weir(folder, "new", "road-warrior", "other", "--address", "vpn.example.org", code=2)
    expect(message, "missing: --networks, --clients")
    if os.path.exists(os.path.join(folder, "other")):
        raise Failed("a folder was written")


# Of the namespace of this suite: `weir check` warns about gateways that do not forward.
write("/proc/sys/net/ipv4/ip_forward", "1")
write("/proc/sys/net/ipv6/conf/all/forwarding", "1")
sys.exit(run_cases(SUITE, globals(), sys.argv[3:]))
