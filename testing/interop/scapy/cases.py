"""What is tried with scapy: suites, modes, families and variants, and the keys and addresses of each."""

import hashlib
import ipaddress
from dataclasses import dataclass, field

# Weir's keyword: scapy's name, bytes of key with salt, ICV if there is a choice.
AEADS = {
    **{f"aes{bits}gcm16": ("AES-GCM", bits // 8 + 4, None) for bits in (128, 192, 256)},
    **{f"aes{bits}ccm{icv}": ("AES-CCM", bits // 8 + 3, icv) for bits in (128, 192, 256) for icv in (8, 12, 16)},
    "chacha20poly1305": ("CHACHA20-POLY1305", 36, None),
}
CIPHERS = {
    **{f"aes{bits}": ("AES-CBC", bits // 8, None) for bits in (128, 192, 256)},
    **{f"aes{bits}ctr": ("AES-CTR", bits // 8 + 4, None) for bits in (128, 192, 256)},
    "3des": ("3DES", 24, None),
    "des": ("DES", 8, None),
    "null": ("NULL", 0, None),
}
MACS = {
    "md5": ("HMAC-MD5-96", 16),
    "sha1": ("HMAC-SHA1-96", 20),
    "sha256": ("SHA2-256-128", 32),
    "sha384": ("SHA2-384-192", 48),
    "sha512": ("SHA2-512-256", 64),
    "aescmac": ("AES-CMAC-96", 16),
}

# Weir is `local`. In transport mode and for the hosts behind a tunnel every case has addresses of
# its own, so that policies can tell the cases of one capture from each other.
OUTER = {4: ("192.0.2.1", "203.0.113.1"), 6: ("2001:db8:1::1", "2001:db8:2::1")}
LOCAL = {4: "10.1.0.0", 6: "2001:db8:a::"}
REMOTE = {4: "10.2.0.0", 6: "2001:db8:b::"}
FIRST_SPI = 0x10000
# Four numbers before the low half wraps.
ESN_START = 0x7_FFFF_FFFC


@dataclass
class Case:
    """One pair of SAs, described for both programs."""

    protocol: str  # esp or ah
    suite: str
    mode: str
    outer: int  # IP version outside
    inner: int  # and inside
    variants: tuple = ()
    number: int = 0
    cipher: tuple = None
    mac: tuple = None
    settings: dict = field(default_factory=dict)

    @property
    def name(self):
        family = f"v{self.outer}" if self.inner == self.outer else f"{self.inner}in{self.outer}"
        return "-".join((self.protocol, self.suite, self.mode, family, *self.variants))

    @property
    def esn(self):
        return "esn" in self.variants

    @property
    def udp(self):
        return "udp" in self.variants

    def spi(self, direction):
        return FIRST_SPI + 2 * self.number + (direction == "open")

    def key(self, direction, part, length):
        """Key material that no other case, direction or part has."""
        return hashlib.shake_256(f"{self.name} {direction} {part}".encode()).digest(length)

    def cipher_key(self, direction):
        return self.key(direction, "cipher", self.cipher[1]) if self.cipher else b""

    def mac_key(self, direction):
        return self.key(direction, "mac", self.mac[1]) if self.mac else b""

    @property
    def hosts(self):
        """Addresses of the packet to protect: Weir's side, the other side."""
        local = OUTER[4][0] if self.inner == 4 else OUTER[6][0]
        if self.mode == "tunnel":
            local = str(ipaddress.ip_address(LOCAL[self.inner]) + self.number + 1)
        return local, str(ipaddress.ip_address(REMOTE[self.inner]) + self.number + 1)

    @property
    def ends(self):
        """Addresses outside."""
        return OUTER[self.outer] if self.mode == "tunnel" else self.hosts

    def first(self):
        """Number of the first packet of either direction."""
        return ESN_START if self.esn else 1

    def sa(self):
        """The section of `sas` for Weir."""
        half = lambda direction: {  # noqa: E731
            "spi": hex(self.spi(direction)),
            "key": "0x" + (self.cipher_key(direction) + self.mac_key(direction)).hex(),
        }
        return {
            "protocol": self.protocol, "mode": self.mode, "suite": self.suite,
            "local": self.ends[0], "remote": self.ends[1],
            "esn": self.esn, "encap": self.udp or None, **self.settings,
            "out": {**half("seal"), "first_seq": self.first()},
            "in": {**half("open"), "last_seq": self.first() - 1},
        }

    def policy(self):
        """The section of `policies` for Weir."""
        local, remote = self.hosts
        return {"local_ts": local, "remote_ts": remote, "sa": f"c{self.number}"}


def _suites():
    for name, cipher in AEADS.items():
        yield "esp", name, cipher, None
    for name, cipher in CIPHERS.items():
        for mac_name, mac in MACS.items():
            yield "esp", f"{name}-{mac_name}", cipher, mac
    for name, mac in MACS.items():
        yield "ah", name, None, mac


def cases():
    """Every case, numbered."""
    every = []
    for protocol, suite, cipher, mac in _suites():
        def add(mode, outer, inner, *variants, suite=suite, protocol=protocol, cipher=cipher, mac=mac):
            every.append(Case(protocol, suite, mode, outer, inner, variants, len(every), cipher, mac))

        for mode in ("tunnel", "transport"):
            for version in (4, 6):
                add(mode, version, version)
        # Numbers, not ciphers, decide about these: one suite of each build is enough.
        if suite in ("aes128gcm16", "aes256ccm16", "chacha20poly1305", "aes128-sha256", "aes256ctr-sha512") \
                or protocol == "ah":
            for mode in ("tunnel", "transport"):
                for version in (4, 6):
                    add(mode, version, version, "esn")
        if suite in ("aes128gcm16", "chacha20poly1305", "aes128-sha256") and protocol == "esp":
            for mode in ("tunnel", "transport"):
                for version in (4, 6):
                    add(mode, version, version, "udp")
        if suite in ("aes256gcm16", "aes128-sha256", "sha256"):
            add("tunnel", 4, 6)
            add("tunnel", 6, 4)
        if suite in ("aes128gcm16", "aes128-sha1", "sha1", "sha256"):
            for mode in ("tunnel", "transport"):
                add(mode, 4, 4, "options")
                add(mode, 6, 6, "extensions")
    return every
