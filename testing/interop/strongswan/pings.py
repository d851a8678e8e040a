"""Pings that wait for every answer: `pings.py SOURCE TARGET COUNT INTERVAL_S BYTES PATIENCE_S`; COUNT 0 prints `going` and goes
on until SIGINT.

ping of iputils waits for two round trips after the last packet and calls what comes later lost, which on a busy machine is
a matter of luck. Prints how many were sent and how many were answered, and how many answers had another payload: those do
not count.
"""

import os
import select
import signal
import socket
import struct
import sys
import time

source, target = sys.argv[1:3]
count, size = int(sys.argv[3]), int(sys.argv[5])
interval_s, patience_s = float(sys.argv[4]), float(sys.argv[6])
v6 = ":" in target
request, reply = (128, 129) if v6 else (8, 0)
sock = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_RAW, 58 if v6 else 1)
sock.bind((source, 0))
payload = os.urandom(size)
mark = os.getpid() & 0xFFFF
going = True
waiting, answered, altered = set(), 0, 0


def stop(*_):
    global going
    going = False


def checksum(data):
    total = sum(struct.unpack(f">{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def send(number):
    def head(value):
        return struct.pack(">BBHHH", request, 0, value, mark, number & 0xFFFF)

    # The kernel fills in the checksum of ICMPv6.
    echo = head(0 if v6 else checksum(head(0) + payload)) + payload
    waiting.add(number & 0xFFFF)
    try:
        sock.sendto(echo, (target, 0))
    except OSError:
        pass  # Nothing will come back.


def receive(until):
    global answered, altered
    while (left := until - time.monotonic()) > 0:
        if not select.select([sock], [], [], left)[0]:
            return
        packet, sender = sock.recvfrom(65536)
        packet = packet if v6 else packet[(packet[0] & 15) * 4:]
        kind, _, _, whose, number = struct.unpack_from(">BBHHH", packet)
        if kind == reply and whose == mark and sender[0] == target and number in waiting:
            if packet[8:] != payload:
                altered += 1
                continue
            waiting.discard(number)
            answered += 1
            if not waiting and not (going and (count == 0 or sent < count)):
                return


signal.signal(signal.SIGINT, stop)
sent = 0
if count == 0:
    print("going", flush=True)
start = time.monotonic()
while going and (count == 0 or sent < count):
    send(sent)
    sent += 1
    receive(start + sent * interval_s if count == 0 or sent < count else time.monotonic() + 0.001)
if waiting:
    going = False
    receive(time.monotonic() + patience_s)
print(f"{sent} sent, {answered} answered" + (f", {altered} altered" if altered else ""))
