"""What runs in the guest: takes one JSON request per line from the console and answers with one.

The console is used and not the network, which is under test. It takes lines of less than 4096 bytes. Requests:

- {"sh": TEXT}: runs a shell script; answers with its exit status and output;
- {"datagram": ADDRESS, "bytes": N, "source": ADDRESS}: one UDP datagram to the host; answers with its digest;
- {"exchange": ADDRESS, "bytes": N, "source": ADDRESS}: a TCP transfer to the host; answers with what went wrong.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import tty

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import transfer  # noqa: E402

# <linux/udp.h>: hands ESP in UDP to the kernel.
UDP_ENCAP, UDP_ENCAP_ESPINUDP = 100, 2
MARK = "\x1eguest:"


def take_esp_in_udp(family, port=4500):
    listener = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(("", port))
    listener.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, UDP_ENCAP_ESPINUDP)
    return listener


def answer(request):
    if "sh" in request:
        done = subprocess.run(["sh", "-c", request["sh"]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=30, check=False)
        return {"rc": done.returncode, "out": done.stdout}
    if "datagram" in request:
        with transfer.datagram_socket(request["source"], 0) as sender:
            payload = os.urandom(request["bytes"])
            sender.sendto(payload, (request["datagram"], transfer.PORT))
        return {"sha256": hashlib.sha256(payload).hexdigest()}
    return {"wrong": transfer.exchange(request["exchange"], request["bytes"], request["source"])}


def main():
    tty.setraw(0)
    sockets = [take_esp_in_udp(family) for family in (socket.AF_INET, socket.AF_INET6)]
    transfer.serve_forever()
    print(MARK + json.dumps({"ready": len(sockets)}), flush=True)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:  # The host decides what it means.
            reply = {"rc": -1, "out": repr(error), "wrong": repr(error)}
        print(MARK + json.dumps(reply), flush=True)


main()
