"""What both halves share: suites by both names, keys, and tshark over a capture."""

import hashlib
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from gateway import Failed  # noqa: E402

# Weir's keyword: tshark's name, bytes of key with salt. Tried with tshark 4.0.17.
CIPHERS = {
    **{f"aes{bits}gcm{icv}": (f"AES-GCM with {icv} octet ICV [RFC4106]", bits // 8 + 4)
       for bits in (128, 192, 256) for icv in (8, 12, 16)},
    **{f"aes{bits}": ("AES-CBC [RFC3602]", bits // 8) for bits in (128, 192, 256)},
    **{f"aes{bits}ctr": ("AES-CTR [RFC3686]", bits // 8 + 4) for bits in (128, 192, 256)},
    "3des": ("TripleDES-CBC [RFC2451]", 24),
    "des": ("DES-CBC [RFC2405]", 8),
    "null": ("NULL", 0),
}
MACS = {
    "md5": ("HMAC-MD5-96 [RFC2403]", 16),
    "sha1": ("HMAC-SHA-1-96 [RFC2404]", 20),
    "sha256": ("HMAC-SHA-256-128 [RFC4868]", 32),
    "sha384": ("HMAC-SHA-384-192 [RFC4868]", 48),
    "sha512": ("HMAC-SHA-512-256 [RFC4868]", 64),
}


class Keys:
    """The keys of one direction of an SA, given to both programs."""

    def __init__(self, suite, words):
        cipher, _, mac = suite.partition("-")
        (self.cipher_name, cipher_bytes), (self.mac_name, mac_bytes) = CIPHERS[cipher], MACS.get(mac, ("NULL", 0))
        secret = hashlib.shake_256(words.encode()).digest(cipher_bytes + mac_bytes)
        self.cipher, self.mac = secret[:cipher_bytes], secret[cipher_bytes:]

    @property
    def weir(self):
        return "0x" + (self.cipher + self.mac).hex()

    def tshark(self, version, src, dst, spi):
        """A line of tshark's table `esp_sa`."""
        octets = lambda key: f'"0x{key.hex()}"' if key else '""'  # noqa: E731
        return (f'"IPv{version}","{src}","{dst}","{spi:#010x}","{self.cipher_name}",{octets(self.cipher)},'
                f'"{self.mac_name}",{octets(self.mac)}')


def dissect(lab, capture, table, fields):
    """Per packet that has ESP: a dictionary of the fields, each a list of its values."""
    profile = os.path.join(lab, "wireshark")
    os.makedirs(profile, exist_ok=True)
    with open(os.path.join(profile, "esp_sa"), "w", encoding="ascii") as file:
        file.write("\n".join(table) + "\n")
    command = ["tshark", "-n", "-r", capture, "-Y", "esp", "-T", "fields", "-E", "separator=|", "-E", "aggregator= "]
    for name in ("enable_encryption_decode", "enable_authentication_check"):
        command += ["-o", f"esp.{name}:TRUE"]
    for field in fields:
        command += ["-e", field]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "WIRESHARK_CONFIG_DIR": profile})
    if done.returncode != 0:
        raise Failed(f"tshark ended with status {done.returncode}: {done.stderr.strip()[-500:]}")
    return [dict(zip(fields, (value.split() for value in line.split("|")))) for line in done.stdout.splitlines()]


def icv_fault(row):
    """Verdict of tshark on the ICV of a packet, if it is not good."""
    if row["esp.icv_good"] == ["1"] or row["esp.icv_good"] == ["True"]:
        return None
    return f"tshark does not find the ICV good: {row}"
