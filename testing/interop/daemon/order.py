"""Counts through a tunnel: `order.py serve`, or `order.py ask ADDRESS`, which goes on until its input ends, and ends with status 1 where
the order is wrong.

Some flows of UDP, each datagram with its flow and number in the payload, sent in bursts (UDP_SEGMENT): what is back to back is what can be
overtaken. The far end sends every datagram back. Few are under way at a time, so that no queue is ever full: then none may be lost, and
both ends see the numbers of a flow in order.
"""

import select
import socket
import struct
import sys

PORT, FLOWS, BURST, BURSTS = 8, 8, 8, 2
UDP_SEGMENT = 103
SIZE = 64
STAMP = struct.Struct("!IQ")


def opened(family):
    udp = socket.socket(family, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    return udp


def serve():
    udp = opened(socket.AF_INET)
    udp.bind(("", PORT))
    print("ready", flush=True)
    due, wrong = {}, 0
    while True:
        datagram, sender = udp.recvfrom(2048)
        flow, number = STAMP.unpack_from(datagram)
        wrong += number != due.get(flow, 0)
        due[flow] = number + 1
        # What was wrong on the way there comes back with the rest.
        udp.sendto(datagram[:STAMP.size] + struct.pack("!I", wrong), sender)


def ask(address):
    flows = [opened(socket.AF_INET) for _ in range(FLOWS)]
    for udp in flows:
        udp.connect((address, PORT))
        udp.settimeout(10)
        udp.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SIZE)
    sent, due, wrong_there, wrong_back = [0] * FLOWS, [0] * FLOWS, 0, 0

    def send(flow):
        stamps = (STAMP.pack(flow, sent[flow] + i) for i in range(BURST))
        flows[flow].send(b"".join(stamp.ljust(SIZE, b"-") for stamp in stamps))
        sent[flow] += BURST

    def receive(flow):
        """One datagram of a flow."""
        nonlocal wrong_there, wrong_back
        try:
            back = flows[flow].recv(2048)
        except TimeoutError:
            sys.exit(f"{sum(sent) - sum(due)} of {sum(sent)} datagrams were lost, {wrong_there} and {wrong_back} out of order")
        number = STAMP.unpack_from(back)[1]
        wrong_back += number != due[flow]
        due[flow] += 1
        wrong_there = max(wrong_there, struct.unpack_from("!I", back, STAMP.size)[0])

    # With its first answer the kernel moves a flow to another queue of the device; nothing may be
    # under way then.
    for flow in range(FLOWS):
        send(flow)
        for _ in range(BURST):
            receive(flow)
    going = True
    for flow in list(range(FLOWS)) * BURSTS:
        send(flow)
    while any(due[flow] < sent[flow] for flow in range(FLOWS)):
        going = going and not select.select([sys.stdin], [], [], 0)[0]
        for flow in range(FLOWS):
            for _ in range(min(BURST, sent[flow] - due[flow])):
                receive(flow)
            if going:
                send(flow)
    if wrong_there or wrong_back:
        sys.exit(f"of {sum(sent)} datagrams {wrong_there} were out of order there, {wrong_back} back")
    print(sum(sent))


if sys.argv[1] == "serve":
    serve()
else:
    ask(sys.argv[2])
