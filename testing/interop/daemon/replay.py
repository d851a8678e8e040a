"""Puts Ethernet frames, one per line in hexadecimal, on the wire of this host."""

import socket
import sys
import time


def main():
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
        wire.bind(("wire", 0))
        for count, line in enumerate(sys.stdin):
            wire.send(bytes.fromhex(line))
            if count % 16 == 15:
                time.sleep(0.005)


main()
