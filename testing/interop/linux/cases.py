"""The cases: what each one protects, in Weir's words and in those of `ip xfrm`."""

from dataclasses import dataclass

# Addresses by IP version. The outer ones are on the tap, the inner ones on Weir's device and on the
# guest's lo.
OUTER = {4: ("192.0.2.1", "192.0.2.2"), 6: ("2001:db8:50::1", "2001:db8:50::2")}
INNER = {4: ("10.1.0.1", "10.2.0.1"), 6: ("fd01::1", "fd02::1")}
NETWORK = {4: ("10.1.0.0/24", "10.2.0.0/24"), 6: ("fd01::/64", "fd02::/64")}
PREFIX = {4: 24, 6: 64}

# Weir's name: bytes of key with salt, and what the kernel calls it.
AEAD = {
    "aes128gcm16": (20, "aead rfc4106(gcm(aes)) {} 128"),
    "aes192gcm16": (28, "aead rfc4106(gcm(aes)) {} 128"),
    "aes256gcm16": (36, "aead rfc4106(gcm(aes)) {} 128"),
    "aes128gcm8": (20, "aead rfc4106(gcm(aes)) {} 64"),
    "aes128ccm16": (19, "aead rfc4309(ccm(aes)) {} 128"),
    "aes256ccm8": (35, "aead rfc4309(ccm(aes)) {} 64"),
    "chacha20poly1305": (36, "aead rfc7539esp(chacha20,poly1305) {} 128"),
    "aes128gmac": (20, "aead rfc4543(gcm(aes)) {} 128"),
}
CIPHER = {
    "aes128": (16, "enc cbc(aes) {}"),
    "aes256": (32, "enc cbc(aes) {}"),
    "aes128ctr": (20, "enc rfc3686(ctr(aes)) {}"),
    "3des": (24, "enc cbc(des3_ede) {}"),
    "null": (0, "enc ecb(cipher_null) ''"),
}
MAC = {
    "md5": (16, "auth-trunc hmac(md5) {} 96"),
    "sha1": (20, "auth-trunc hmac(sha1) {} 96"),
    "sha256": (32, "auth-trunc hmac(sha256) {} 128"),
    "sha384": (48, "auth-trunc hmac(sha384) {} 192"),
    "sha512": (64, "auth-trunc hmac(sha512) {} 256"),
    "aesxcbc": (16, "auth-trunc xcbc(aes) {} 96"),
    "aescmac": (16, "auth-trunc cmac(aes) {} 96"),
}


def algorithms(suite):
    """A suite as a list of (bytes of key, words of the kernel)."""
    if suite in AEAD:
        return [AEAD[suite]]
    cipher, dash, mac = suite.partition("-")
    return [CIPHER[cipher], MAC[mac]] if dash else [MAC[suite]]


@dataclass(frozen=True)
class Case:
    """One pair of SAs."""

    name: str
    protocol: str
    mode: str
    suite: str
    outer: int = 4
    inner: int = 4
    esn: bool = False
    encap: bool = False
    # AH over IPv4 with the ICV padded to 8 bytes: Linux without `align4`.
    align8: bool = False
    # First sequence number of both directions; the SAs count as if all below had been used.
    first_seq: int = 1
    # Weir is stopped, and killed, and goes on with the same keys: the guest must not take it for a
    # replay.
    restart: bool = False
    # Packet threads of Weir.
    workers: int = 1

    @property
    def legacy(self):
        return self.suite.startswith(("3des", "null")) or self.suite.endswith("md5")

    @property
    def window(self):
        """The guest's replay window: the historic one, or larger where packets of several threads overtake each other."""
        return 128 if self.workers > 1 else 64 if self.esn else 32

    @property
    def fixed(self):
        """Mode `beet`: the inner addresses belong to the SA."""
        return self.mode == "beet"

    @property
    def ping_bytes(self):
        """Sizes of pings: tiny, usual, close to the MTU, and in tunnels also what has to be cut."""
        return (1, 64, 1300, 3000) if self.mode == "tunnel" else (1, 64, 1300)

    @property
    def ends(self):
        """The addresses that applications see: Weir's side, the guest's side."""
        return OUTER[self.outer] if self.mode == "transport" else INNER[self.inner]


def esp(name, mode, suite, **more):
    return Case(f"esp-{name}", "esp", mode, suite, **more)


def ah(name, mode, suite, **more):
    return Case(f"ah-{name}", "ah", mode, suite, **more)


V6 = {"outer": 6, "inner": 6}

CASES = [
    esp("gcm-tunnel", "tunnel", "aes128gcm16"),
    esp("gcm256-tunnel-v6", "tunnel", "aes256gcm16", **V6),
    esp("gcm192-transport", "transport", "aes192gcm16"),
    esp("gcm-icv8-tunnel", "tunnel", "aes128gcm8"),
    esp("gcm-transport-v6", "transport", "aes128gcm16", **V6),
    esp("chacha20-tunnel", "tunnel", "chacha20poly1305"),
    esp("ccm-tunnel", "tunnel", "aes128ccm16"),
    esp("ccm256-icv8-transport-v6", "transport", "aes256ccm8", **V6),
    esp("gmac-tunnel", "tunnel", "aes128gmac"),
    esp("cbc-sha256-tunnel", "tunnel", "aes128-sha256"),
    esp("cbc-sha256-transport", "transport", "aes128-sha256"),
    esp("cbc256-sha512-tunnel-v6", "tunnel", "aes256-sha512", **V6),
    esp("cbc-sha384-transport-v6", "transport", "aes256-sha384", **V6),
    esp("cbc-sha1-transport", "transport", "aes128-sha1"),
    esp("cbc-xcbc-tunnel", "tunnel", "aes128-aesxcbc"),
    esp("cbc-cmac-transport", "transport", "aes128-aescmac"),
    esp("ctr-sha256-tunnel", "tunnel", "aes128ctr-sha256"),
    esp("3des-md5-tunnel", "tunnel", "3des-md5"),
    esp("null-sha256-transport", "transport", "null-sha256"),
    esp("esn-gcm-tunnel", "tunnel", "aes128gcm16", esn=True),
    esp("esn-cbc-tunnel", "tunnel", "aes128-sha256", esn=True),
    esp("esn-cbc-transport-v6", "transport", "aes128-sha256", esn=True, **V6),
    esp("esn-beyond-32-bits", "tunnel", "aes128gcm16", esn=True, first_seq=0xFFFF_FF00),
    esp("esn-cbc-beyond-32-bits", "transport", "aes128-sha256", esn=True, first_seq=0xFFFF_FF00),
    esp("restart", "tunnel", "aes128gcm16", restart=True),
    esp("two-workers", "tunnel", "aes256gcm16", workers=2),
    esp("udp-tunnel", "tunnel", "aes128gcm16", encap=True),
    esp("udp-transport", "transport", "aes128-sha256", encap=True),
    esp("udp-tunnel-v6", "tunnel", "aes128gcm16", encap=True, **V6),
    esp("v6-in-v4", "tunnel", "aes128gcm16", inner=6),
    esp("v4-in-v6", "tunnel", "aes128gcm16", outer=6),
    esp("beet", "beet", "aes128gcm16"),
    esp("beet-v6-in-v4", "beet", "aes128-sha256", inner=6),
    esp("beet-v4-in-v6", "beet", "aes128gcm16", outer=6),
    ah("sha256-transport", "transport", "sha256"),
    ah("sha256-tunnel", "tunnel", "sha256"),
    ah("sha512-tunnel", "tunnel", "sha512"),
    ah("sha1-transport-v6", "transport", "sha1", **V6),
    ah("sha256-tunnel-v6", "tunnel", "sha256", **V6),
    ah("esn-transport", "transport", "sha256", esn=True),
    ah("esn-tunnel-v6", "tunnel", "sha1", esn=True, **V6),
    ah("esn-beyond-32-bits", "transport", "sha256", esn=True, first_seq=0xFFFF_FF00),
    ah("linux-align8", "transport", "sha256", align8=True),
]
