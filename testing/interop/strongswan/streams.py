"""TCP and UDP that come back as they went: `streams.py serve ADDRESS`, `streams.py ask ADDRESS`.

The kernel drops what has a wrong checksum, so what comes back had a right one both ways.
"""

import os
import socket
import sys
import threading
import time

PORT, BYTES, PATIENCE_S = 7777, 100_000, 5


def serve(address):
    listener = socket.create_server((address, PORT))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((address, PORT))

    def echo():
        while True:
            data, sender = datagrams.recvfrom(65536)
            datagrams.sendto(data, sender)

    threading.Thread(target=echo, daemon=True).start()
    print("ready", flush=True)
    while True:
        stream, _ = listener.accept()
        with stream:
            while data := stream.recv(65536):
                stream.sendall(data)


def ask(address):
    data = os.urandom(BYTES)
    with socket.create_connection((address, PORT), PATIENCE_S) as stream:
        threading.Thread(target=stream.sendall, args=(data,), daemon=True).start()
        came = b""
        while len(came) < BYTES:
            came += stream.recv(65536)
    if came != data:
        sys.exit("TCP: other bytes came back")
    # Linux with IP-TFS drops its last acknowledgement of a connection, and what shares an outer
    # packet with it.
    time.sleep(0.2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(PATIENCE_S)
        datagrams.connect((address, PORT))
        # Odd lengths too.
        for length in (0, 1, 2, 3, 100, 1001, 1300):
            sent = os.urandom(length)
            datagrams.send(sent)
            try:
                if datagrams.recv(65536) != sent:
                    sys.exit(f"UDP: other bytes came back of {length}")
            except TimeoutError:
                sys.exit(f"UDP: nothing came back of {length} bytes")
    print("all came back")


if sys.argv[1] == "serve":
    serve(sys.argv[2])
else:
    ask(sys.argv[2])
