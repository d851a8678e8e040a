"""Sends UDP datagrams to every address given, in turn, for as long as it lives: `blast.py PER_SECOND ADDRESS...`

What cannot be sent is not sent again: there is no gateway now, and the next datagram will tell.
"""

import socket
import sys
import time

MARK = b"clear text: must not leave the host"
PORTS = 32  # Flows per address, so that every queue of a device gets some.


def main():
    pace, targets = 1 / float(sys.argv[1]), sys.argv[2:]
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(PORTS)]
    due = time.monotonic()
    count = 0
    while True:
        for target in targets:
            try:
                sockets[count % PORTS].sendto(MARK + count.to_bytes(8, "big"), (target, 9))
            except OSError:
                pass
        count += 1
        due = max(due + pace, time.monotonic() - 0.1)
        time.sleep(max(0, due - time.monotonic()))


main()
