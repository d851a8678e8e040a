"""A name server on 127.0.0.1 that answers every question for an IPv4 address with the one of its argument."""

import socket
import sys

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
print("ready", flush=True)
while True:
    query, client = server.recvfrom(512)
    end = query.index(b"\0", 12) + 5
    question = query[12:end]
    a_record = question[-4:-2] == b"\0\x01"
    record = b"\xc0\x0c\0\x01\0\x01\0\0\0\x01\0\x04" + socket.inet_aton(sys.argv[1]) if a_record else b""
    header = query[:2] + b"\x81\x80\0\x01" + (b"\0\x01" if a_record else b"\0\0") + b"\0\0\0\0"
    server.sendto(header + question + record, client)
