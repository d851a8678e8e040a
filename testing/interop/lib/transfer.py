"""A TCP transfer that proves itself: random bytes one way, the same bytes back, digests compared.

Both directions are busy at once, so a path that only carries data one way, or mixes up segments, shows.
"""

import hashlib
import os
import socket
import threading

PORT = 5201
CHUNK = 65536


def serve_forever(port=PORT):
    """Echoes every connection, IPv4 and IPv6, each in a thread of its own. Returns once it listens."""
    listener = socket.create_server(("::", port), family=socket.AF_INET6, backlog=8, dualstack_ipv6=True)

    def echo(connection):
        with connection:
            try:
                while chunk := connection.recv(CHUNK):
                    connection.sendall(chunk)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # The other side reports it.

    def accept():
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def exchange(address, total, source=None, port=PORT, patience_s=20):
    """Sends `total` random bytes to `address` and takes them back. Returns None, or what went wrong."""
    payload = os.urandom(total)
    received = hashlib.sha256()
    count = 0
    try:
        with socket.create_connection((address, port), patience_s, (source, 0) if source else None) as connection:
            sender = threading.Thread(target=_send, args=(connection, payload), daemon=True)
            sender.start()
            while chunk := connection.recv(CHUNK):
                received.update(chunk)
                count += len(chunk)
            sender.join(patience_s)
    except OSError as error:
        return f"{error or type(error).__name__} after {count} of {total} bytes"
    if count != total:
        return f"{count} of {total} bytes came back"
    if received.digest() != hashlib.sha256(payload).digest():
        return "other bytes came back than were sent"
    return None


def datagram_socket(address, port=PORT):
    """A UDP socket at `address`; port 0 is any."""
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((address, port))
    return made


def _send(connection, payload):
    try:
        connection.sendall(payload)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # recv fails too, and reports it.
