"""UDP datagrams with numbers at a steady rate, and what became of them.

    load.py send SOURCE TARGET MBIT BYTES    until SIGINT; prints how many it sent, and at what rate
    load.py receive ADDRESS                  until SIGINT; prints how many came, and which did not

MBIT counts the payload of BYTES. A sender that was kept waiting makes up for it slowly: what is measured is the way, not
how much its first queue holds.
"""

import select
import signal
import socket
import struct
import sys
import time

PORT = 5202
# Behind the tunnel the datagrams wait for Python, not for the gateway.
BUFFER_BYTES = 64 << 20
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
# Datagrams in one go.
BURST = 32
IDLE_S = 1

going = True


def stop(*_):
    global going
    going = False


def send(source, target, mbit, size):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER_BYTES)
    sock.bind((source, 0))
    sock.connect((target, PORT))
    datagram = bytearray(size)
    per_s = mbit * 1e6 / 8 / size
    every_s = BURST / per_s
    start = due = next_burst = time.monotonic()
    sent = 0
    while going:
        now = time.monotonic()
        if now < next_burst:
            time.sleep(next_burst - now)
            continue
        for _ in range(BURST):
            struct.pack_into("!Q", datagram, 0, sent)
            sock.send(datagram)
            sent += 1
        due += every_s
        # A quarter more than the rate at most, however long nothing could be sent.
        next_burst = max(due, now + every_s * 0.8)
    took = time.monotonic() - start
    print(f"{sent} sent at {sent * size * 8 / took / 1e6:.0f} Mbit/s")


def receive(address):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    sock.bind((address, PORT))
    sock.setblocking(False)
    print("ready", flush=True)
    datagram = bytearray(65536)
    next_number, came, late, gaps = 0, 0, 0, []
    while going or select.select([sock], [], [], IDLE_S)[0]:
        select.select([sock], [], [], 0.1)
        try:
            while True:
                sock.recv_into(datagram)
                number, = struct.unpack_from("!Q", datagram)
                came += 1
                if number == next_number:
                    next_number += 1
                elif number > next_number:
                    gaps.append(f"{next_number}-{number - 1}")
                    next_number = number + 1
                else:
                    late += 1
        except BlockingIOError:
            pass
    print(f"{came} came, {late} late, gaps: {' '.join(gaps[:8]) or 'none'}")


signal.signal(signal.SIGINT, stop)
if sys.argv[1] == "send":
    send(sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
else:
    receive(sys.argv[2])
