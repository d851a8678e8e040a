"""Packets of known bytes through tshark with Weir's dissectors; one PASS, FAIL or SKIP line per case.

Needs only Python's standard library: packets are the published vectors and bytes built here, written as pcap.
"""

import os
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = os.path.join(HERE, "..", "..", "..", "contrib", "wireshark")

EESP_PROTOCOL = 253
AGGFRAG = 144

# EESP packets without outer header; see docs for keys. The letters are those of the test vectors.
A = """80000000 11223344 00000000 00000001 01020304 05060708 319779e6 b7395859 a48d8a11 ba460aa1 7b5c227a 258da630
       6119a6fc ea2292e9 b008f094 325e7113 17c46837 93880ca4 ea0c4d8b"""
B = """80000005 81223344 00000001 00000001 6dc17a84 659ed0bb b1802074 abd0ea75 8090fb7b f2b0c99a 15ad1af6 1d4fe135
       f2b06acf 53820e9c 74177c06 5a81a1f8 451be582 e96832dc 304ce420 57eecb24 36032091 f76ab5e8"""
C = """80040000 11223355 01020000 00000000 00000003 00000000 00000003 8aed393b dc6ecdcb ebff3ee5 6134e981 1f4d1a8f
       c8423890 62eb0496 37b0b1a1 a4a736c5"""
D = """80040000 11223366 02021c80 00000000 00000007 00000000 00000007 00000401 45000023 00014000 40114e92 c0000201
       c6336402 03e807d0 000f1107 b1861a63 a14aa1ac 936a2108 f0869b54 0c0b3431 bf76abf5"""
E = """80000000 11223377 00000000 00000001 00000000 00000001 45000022 00014000 40114e93 c0000201 c6336402 03e807d0
       000e420c 45455350 2d410000 8f581438 70478f6f c0150a1a e4ccd7cf"""
F = """80000000 11223388 00000000 00000001 00000000 00000001 305c017c 32403cc8 bcac8c93 be4edb15 a7ebba4b e8fcf6c4
       4ae20b17 34428a10 586d1458 34520cbc 7866b5ae 563a6730 c65a0647"""
G = """80000000 11223399 00000000 00000009 87317c8b fe174298 2374f9e3 b340fd3f 4109845b 93a574f3 324bdf77 1dee3a55"""

INNER_UDP = bytes.fromhex("03e807d0000e420c") + b"EESP-A"
INNER_V4 = bytes.fromhex("45000022 00014000 40114e93 c0000201 c6336402".replace(" ", "")) + INNER_UDP


def eesp(hex_bytes):
    return bytes.fromhex("".join(hex_bytes.split()))


def ipv4(protocol, payload):
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 1, 0x4000, 64, protocol, 0, bytes([203, 0, 113, 1]), bytes([203, 0, 113, 2]))
    words = sum(struct.unpack(">10H", head))
    words = (words & 0xFFFF) + (words >> 16)
    words = (words & 0xFFFF) + (words >> 16)
    return head[:10] + struct.pack(">H", words ^ 0xFFFF) + head[12:] + payload


def ipv6(protocol, payload):
    address = bytes.fromhex("20010db8" + "00" * 11)
    return struct.pack(">IHBB", 0x60000000, len(payload), protocol, 64) + address + b"\1" + address + b"\2" + payload


def udp(src, dst, payload):
    return ipv4(17, struct.pack(">HHHH", src, dst, 8 + len(payload), 0) + payload)


def aggfrag(blocks, offset=0):
    return struct.pack(">BBH", 0, 0, offset) + blocks


def null_esp(payload):
    """ESP with NULL encryption and an ICV of 12 bytes."""
    return struct.pack(">II", 0x11223344, 1) + payload + bytes(-(len(payload) + 2) % 4) + bytes([-(len(payload) + 2) % 4, AGGFRAG]) + bytes(12)


NULL_ESP = ["esp.enable_null_encryption_decode_heuristic:TRUE"]
CONGESTION = bytes.fromhex("01030000 00000009".replace(" ", "")) + struct.pack(">QII", 5 << 42 | 6 << 21 | 7, 8, 9)


def psp(next_header=4, ext_len=1, offset=0, flags=0x01, spi=0x12345678, iv=0x0102030405060708, rest=b""):
    return struct.pack(">BBBBIQ", next_header, ext_len, offset, flags, spi, iv) + rest + bytes(range(0xE0, 0xF0))


def write_pcap(path, packets):
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101))  # LINKTYPE_RAW
        for packet in packets:
            out.write(struct.pack("<IIII", 0, 0, len(packet), len(packet)) + packet)


def tshark(packets, fields, prefs):
    """One dictionary of field values per packet, a field that occurs twice as `a,b`."""
    with tempfile.NamedTemporaryFile(suffix=".pcap") as capture:
        write_pcap(capture.name, packets)
        command = ["tshark", "-n", "-r", capture.name, "-T", "fields", "-E", "separator=|"]
        command += ["-X", "lua_script:" + os.path.join(SCRIPTS, "eesp.lua")]
        command += ["-X", "lua_script:" + os.path.join(SCRIPTS, "psp.lua")]
        command += ["-X", "lua_script:" + os.path.join(SCRIPTS, "aggfrag.lua")]
        for pref in prefs:
            command += ["-o", pref]
        for field in fields:
            command += ["-e", field]
        # A separate home: no profile of a user changes the output.
        with tempfile.TemporaryDirectory() as home:
            run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HOME": home}, timeout=60)
    noise = [line for line in run.stderr.splitlines() if "running as" not in line.lower()]
    if run.returncode != 0 or any("lua" in line.lower() for line in noise):
        raise RuntimeError("; ".join(noise) or f"tshark ended with {run.returncode}")
    return [dict(zip(fields, line.split("|"))) for line in run.stdout.splitlines()]


CASES = [
    # name, packet, preferences, {field: value}; None: the field must not be there.
    ("eesp A: tunnel, all encrypted", ipv4(EESP_PROTOCOL, eesp(A)), [], {
        "eesp.version": "0", "eesp.session": "0", "eesp.spi": "0x11223344", "eesp.seq": "1", "eesp.iv": "0102030405060708",
        "eesp.opt_len": "0", "eesp.encrypted": A.replace(" ", "").replace("\n", "")[48:-32], "eesp.icv": "325e711317c4683793880ca4ea0c4d8b",
        "eesp.clear": None, "_ws.expert": None, "_ws.col.Protocol": "EESP"}),
    ("eesp B: implicit IV, Sub SA 5", ipv4(EESP_PROTOCOL, eesp(B)), ["eesp.iv_len:0"], {
        "eesp.session": "5", "eesp.seq": "4294967297", "eesp.spi": "0x81223344", "eesp.iv": None, "_ws.expert": None}),
    ("eesp C: PadN, over IPv6", ipv6(EESP_PROTOCOL, eesp(C)), [], {
        "eesp.option.type": "1", "eesp.option.len": "2", "eesp.seq": "3", "eesp.iv": "0000000000000003", "_ws.expert": None}),
    ("eesp D: crypt offset shows the inner headers", ipv4(EESP_PROTOCOL, eesp(D)), [], {
        "eesp.crypt_offset.payload_offset": "7", "eesp.crypt_offset.words": "8", "eesp.crypt_offset.clear_len": "32",
        "eesp.next_header": "4", "eesp.pad_len": "1", "ip.src": "203.0.113.1,192.0.2.1", "ip.dst": "203.0.113.2,198.51.100.2",
        "udp.dstport": "2000", "eesp.encrypted": "b1861a63a14aa1ac", "eesp.bad_payload_offset": None}),
    ("eesp E: GMAC hides nothing", ipv4(EESP_PROTOCOL, eesp(E)), ["eesp.clear:TRUE"], {
        "ip.dst": "203.0.113.2,198.51.100.2", "udp.srcport": "1000", "udp.dstport": "2000", "eesp.encrypted": None}),
    ("eesp F: CCM", ipv4(EESP_PROTOCOL, eesp(F)), [], {"eesp.spi": "0x11223388", "eesp.icv": "34520cbc7866b5ae563a6730c65a0647"}),
    ("eesp G: no sequence number", ipv4(EESP_PROTOCOL, eesp(G)), ["eesp.seq:FALSE"], {
        "eesp.seq": None, "eesp.iv": "0000000000000009", "_ws.expert": None}),
    ("eesp in UDP", udp(4500, 4500, eesp(A)), [], {"eesp.spi": "0x11223344", "esp.spi": None}),
    ("eesp in UDP, other ports", udp(40000, 4500, eesp(C)), [], {"eesp.spi": "0x11223355"}),
    ("eesp protocol number is a preference", ipv4(254, eesp(A)), ["eesp.ip_proto:254"], {"eesp.spi": "0x11223344"}),
    ("esp in UDP stays esp", udp(4500, 4500, bytes.fromhex("7122334400000001") + bytes(40)), [], {"esp.spi": "0x71223344", "eesp.spi": None}),
    ("esp with the first bit set stays esp", udp(4500, 4500, bytes.fromhex("c122334400000001") + bytes(40)), [], {
        "esp.spi": "0xc1223344", "eesp.spi": None}),
    ("eesp on port 4500 can be off", udp(4500, 4500, eesp(A)), ["eesp.udp:No datagram"], {"esp.spi": "0x80000000", "eesp.spi": None}),
    ("eesp on port 4500 can be all", udp(4500, 4500, b"\x88" + eesp(A)[1:]), ["eesp.udp:All of them"], {"eesp.version": "1", "esp.spi": None}),
    ("ike in UDP stays ike", udp(4500, 4500, bytes(4) + bytes.fromhex("0102030405060708" + "00" * 8 + "21202208000000000000001c")), [], {
        "isakmp.ispi": "0102030405060708", "eesp.spi": None}),
    ("keepalive stays keepalive", udp(4500, 4500, b"\xff"), [], {"udpencap.nat_keepalive": "*", "eesp.spi": None}),
    ("eesp: bad version", ipv4(EESP_PROTOCOL, b"\x88" + eesp(A)[1:]), [], {"eesp.bad_version": "*", "eesp.seq": None}),
    ("eesp: marker bit 0", ipv4(EESP_PROTOCOL, b"\0" + eesp(A)[1:]), [], {"eesp.bad_marker": "*"}),
    ("eesp: reserved bits", ipv4(EESP_PROTOCOL, b"\x81" + eesp(A)[1:]), [], {"eesp.bad_reserved": "*"}),
    ("eesp: reserved SPI", ipv4(EESP_PROTOCOL, eesp(A)[:4] + bytes.fromhex("000000ff") + eesp(A)[8:]), [], {
        "eesp.reserved_spi": "*"}),
    ("eesp: sequence number 0", ipv4(EESP_PROTOCOL, eesp(A)[:8] + bytes(8) + eesp(A)[16:]), [], {
        "eesp.zero_seq": "*"}),
    ("eesp: option runs over the field", ipv4(EESP_PROTOCOL, eesp(C)[:9] + b"\x03" + eesp(C)[10:]), [], {
        "eesp.bad_option": "*", "eesp.seq": None}),
    ("eesp: options beyond the packet", ipv4(EESP_PROTOCOL, b"\x80\xff" + eesp(A)[2:]), [], {"eesp.truncated": "*", "eesp.seq": None}),
    ("eesp: unknown option", ipv4(EESP_PROTOCOL, eesp(C)[:8] + b"\xe0" + eesp(C)[9:]), [], {"eesp.unknown_option": "*", "eesp.seq": "3"}),
    ("eesp: payload offset disagrees", ipv4(EESP_PROTOCOL, eesp(D)), ["eesp.iv_len:0"], {"eesp.bad_payload_offset": "*"}),
    ("eesp: crypt offset beyond the payload", ipv4(EESP_PROTOCOL, eesp(D)[:10] + b"\x1f\xf0" + eesp(D)[12:]), [], {
        "eesp.crypt_offset_beyond": "*", "eesp.encrypted": None}),
    ("eesp: seven bytes", ipv4(EESP_PROTOCOL, eesp(A)[:7]), [], {"eesp.truncated": "*", "eesp.spi": None}),

    ("psp: tunnel, all encrypted", udp(50000, 1000, psp(rest=INNER_V4)), [], {
        "psp.version": "0", "psp.spi": "0x12345678", "psp.spi.master_key": "0", "psp.iv": "0x0102030405060708", "psp.next_header": "4",
        "psp.header_len": "16", "psp.encrypted": INNER_V4.hex(), "psp.icv": bytes(range(0xE0, 0xF0)).hex(), "psp.clear": None,
        "_ws.expert": None, "_ws.col.Protocol": "PSP"}),
    ("psp: crypt offset 6 shows the inner headers", udp(50000, 1000, psp(offset=6, flags=0x05, rest=INNER_V4)), [], {
        "psp.version": "1", "psp.crypt_offset": "6", "ip.dst": "203.0.113.2,198.51.100.2", "psp.encrypted": INNER_V4[24:].hex()}),
    ("psp: transport, ports in the clear", udp(50000, 1000, psp(next_header=17, offset=2, rest=INNER_UDP)), [], {
        "udp.dstport": "1000,2000", "psp.clear": INNER_UDP[:8].hex(), "psp.encrypted": INNER_UDP[8:].hex()}),
    ("psp: cookie in the clear", udp(50000, 1000, psp(ext_len=2, offset=2, flags=0x03, rest=bytes(range(1, 9)) + INNER_V4)), [], {
        "psp.has_vc": "1", "psp.vc": "0x0102030405060708", "psp.header_len": "24", "psp.encrypted": INNER_V4.hex()}),
    ("psp: cookie half encrypted", udp(50000, 1000, psp(ext_len=2, offset=1, flags=0x03, rest=bytes(range(1, 9)) + INNER_V4)), [], {
        "psp.vc": None, "psp.vc.encrypted": "0102030405060708"}),
    ("psp: further extensions", udp(50000, 1000, psp(ext_len=3, offset=10, flags=0x03, rest=bytes(16) + INNER_V4)), [], {
        "psp.extensions": "00" * 8, "psp.header_len": "32", "ip.src": "203.0.113.1,192.0.2.1"}),
    ("psp: GMAC hides nothing", udp(50000, 1000, psp(flags=0x0D, rest=INNER_V4)), [], {
        "psp.version": "3", "psp.clear": INNER_V4.hex(), "psp.encrypted": None, "ip.src": "203.0.113.1,192.0.2.1"}),
    ("psp: sample and drop", udp(50000, 1000, psp(flags=0xC1, rest=INNER_V4)), [], {"psp.sample": "1", "psp.drop": "1", "psp.drop_without_sample": None}),
    ("psp: master key 1", udp(50000, 1000, psp(spi=0x9A345678, rest=INNER_V4)), [], {"psp.spi.master_key": "1", "psp.zero_spi": None}),
    ("psp: empty payload", udp(50000, 1000, psp()), [], {"psp.encrypted": None, "psp.clear": None, "_ws.expert": None}),
    ("psp: port is a preference", udp(50000, 1001, psp(rest=INNER_V4)), ["psp.port:1001"], {"psp.spi": "0x12345678"}),
    ("psp: unknown version", udp(50000, 1000, psp(flags=0x11, rest=INNER_V4)), [], {"psp.bad_version": "*", "psp.icv": None}),
    ("psp: always-one bit 0", udp(50000, 1000, psp(flags=0x00, rest=INNER_V4)), [], {"psp.bad_one": "*"}),
    ("psp: low SPI bits zero", udp(50000, 1000, psp(spi=0x80000000, rest=INNER_V4)), [], {"psp.zero_spi": "*"}),
    ("psp: reserved bits", udp(50000, 1000, psp(offset=0x40, rest=INNER_V4)), [], {"psp.bad_reserved": "*"}),
    ("psp: header length 0", udp(50000, 1000, psp(ext_len=0, rest=INNER_V4)), [], {"psp.bad_ext_len": "*", "psp.icv": None}),
    ("psp: cookie without room", udp(50000, 1000, psp(ext_len=1, flags=0x03, rest=INNER_V4)), [], {"psp.bad_ext_len": "*"}),
    ("psp: header beyond the packet", udp(50000, 1000, psp(ext_len=255, rest=INNER_V4)), [], {"psp.bad_ext_len": "*"}),
    ("psp: crypt offset beyond the payload", udp(50000, 1000, psp(offset=63, rest=INNER_V4)), [], {"psp.crypt_offset_beyond": "*"}),
    ("psp: drop without sample", udp(50000, 1000, psp(flags=0x41, rest=INNER_V4)), [], {"psp.drop_without_sample": "*"}),
    ("aggfrag: two packets and padding", ipv4(AGGFRAG, aggfrag(INNER_V4 * 2 + bytes(6))), [], {
        "aggfrag.sub_type": "0", "aggfrag.block_offset": "0", "aggfrag.block.len": "34,34", "aggfrag.padding": "00" * 6,
        "ip.src": "203.0.113.1,192.0.2.1,192.0.2.1", "aggfrag.piece": None, "_ws.col.Protocol": "AGGFRAG"}),
    ("aggfrag: end of one packet, start of another", ipv4(AGGFRAG, aggfrag(INNER_V4[20:] + INNER_V4[:10], 14)), [], {
        "aggfrag.block_offset": "14", "aggfrag.continued": INNER_V4[20:].hex(), "aggfrag.piece": INNER_V4[:10].hex(), "aggfrag.block": None}),
    ("aggfrag: BlockOffset beyond the payload", ipv4(AGGFRAG, aggfrag(bytes(range(100)), 1578)), [], {
        "aggfrag.block_offset": "1578", "aggfrag.continued": bytes(range(100)).hex(), "aggfrag.piece": None, "aggfrag.bad_block": None}),
    ("aggfrag: length field cut off", ipv4(AGGFRAG, aggfrag(b"\x45\0\x05")), [], {"aggfrag.piece": "450005", "aggfrag.bad_block": None}),
    ("aggfrag: congestion control", ipv4(AGGFRAG, CONGESTION + INNER_V4), [], {
        "aggfrag.p": "1", "aggfrag.e": "1", "aggfrag.loss_event_rate": "9", "aggfrag.rtt": "5", "aggfrag.echo_delay": "6",
        "aggfrag.transmit_delay": "7", "aggfrag.t_val": "8", "aggfrag.t_echo": "9", "aggfrag.block.len": "34"}),
    ("aggfrag: no packet", ipv4(AGGFRAG, aggfrag(INNER_V4 + b"\x50" * 8)), [], {"aggfrag.bad_block": "*", "aggfrag.block.len": "34"}),
    ("aggfrag: unknown sub-type", ipv4(AGGFRAG, b"\2" + bytes(9)), [], {"aggfrag.bad_header": "*", "aggfrag.block_offset": None}),
    ("aggfrag: three bytes", ipv4(AGGFRAG, bytes(3)), [], {"aggfrag.bad_header": "*"}),
    ("aggfrag in ESP without encryption", ipv4(50, null_esp(aggfrag(INNER_V4))), NULL_ESP, {
        "esp.spi": "0x11223344", "aggfrag.block.len": "34", "ip.dst": "203.0.113.2,198.51.100.2"}),
    ("psp: 31 bytes", udp(50000, 1000, psp()[:31]), [], {"psp.truncated": "*", "psp.spi": None}),
]


def differences(seen, want):
    for field, value in want.items():
        got = seen[field]
        if value is None and got:
            yield f"{field} is there: {got}"
        elif value == "*" and not got:
            yield f"{field} is missing"
        elif value not in (None, "*") and got != value:
            yield f"{field} is '{got}', not '{value}'"


def main():
    fields = sorted({field for _, _, _, want in CASES for field in want})
    failed = False
    # One run of tshark for all cases with the same preferences.
    for prefs in sorted({tuple(prefs) for _, _, prefs, _ in CASES}):
        cases = [case for case in CASES if tuple(case[2]) == prefs]
        try:
            rows = tshark([packet for _, packet, _, _ in cases], fields, prefs)
            if len(rows) != len(cases):
                raise RuntimeError(f"{len(rows)} packets seen of {len(cases)}")
        except (RuntimeError, subprocess.TimeoutExpired) as why:
            rows, failed = [], True
            print(f"FAIL wireshark with preferences {list(prefs)}, {len(cases)} cases: {why}")
        for (name, _, _, want), row in zip(cases, rows):
            wrong = "; ".join(differences(row, want))
            failed = failed or bool(wrong)
            print(f"FAIL wireshark {name}: {wrong}" if wrong else f"PASS wireshark {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
