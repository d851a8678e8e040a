"""Bytes there and back, looked at: `carry.py serve`, or `carry.py ask ADDRESS...`, which ends with status 1 where they differ.

Through TCP some megabytes, both ways at once, some of them in small segments; through UDP a datagram of each size, sent in one call where the kernel can
(UDP_SEGMENT), each of which comes back alone.
"""

import hashlib
import socket
import sys
import threading
import time

PORT, BYTES = 7, 6 << 20
UDP_SEGMENT = 103
SIZES = [(1000, 30_500), (1200, 24_000), (1, 40), (1372, 1372 * 40)]


def serve():
    udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    udp.bind(("::", PORT))
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)

    def echo():
        while True:
            datagram, sender = udp.recvfrom(65535)
            udp.sendto(datagram, sender)

    def back(stream):
        while data := stream.recv(1 << 16):
            stream.sendall(data)
        stream.close()

    threading.Thread(target=echo, daemon=True).start()
    listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("::", PORT))
    listener.listen()
    print("ready", flush=True)
    while True:
        threading.Thread(target=back, args=(listener.accept()[0],), daemon=True).start()


def block(seed, size):
    return hashlib.shake_128(seed.encode()).digest(size)


def stream(address, size, segment):
    sent = block(address, size)
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as tcp:
        tcp.settimeout(20)
        if segment:
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
        tcp.connect((address, PORT))
        writer = threading.Thread(target=lambda: (tcp.sendall(sent), tcp.shutdown(socket.SHUT_WR)))
        writer.start()
        got = bytearray()
        while data := tcp.recv(1 << 16):
            got += data
        writer.join()
    return got == sent


def datagrams(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for size, total in SIZES:
        with socket.socket(family, socket.SOCK_DGRAM) as udp:
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            udp.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
            udp.connect((address, PORT))
            whole = block(f"{address} {size}", total)
            udp.send(whole)
            missing = {whole[at:at + size] for at in range(0, total, size)}
            udp.settimeout(0.2)
            until = time.monotonic() + 5
            while missing and time.monotonic() < until:
                try:
                    missing.discard(udp.recv(65535))
                except TimeoutError:
                    pass
            if missing:
                return f"{len(missing)} datagrams of {size} bytes did not come back"
    return None


def ask(addresses):
    for address in addresses:
        for size, segment in (BYTES, None), (BYTES // 8, 300):
            if not stream(address, size, segment):
                sys.exit(f"{address}: TCP brought back other bytes, largest segment {segment}")
        if why := datagrams(address):
            sys.exit(f"{address}: {why}")


if sys.argv[1] == "serve":
    serve()
else:
    ask(sys.argv[2:])
