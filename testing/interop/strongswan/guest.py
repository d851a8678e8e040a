"""What runs in the guest: takes one JSON request per line from the console and answers with one.

The console is used and not the network, which is under test. It takes lines of less than 4096 bytes. Requests:

- {"sh": TEXT}: runs a shell script; answers with its exit status and output;
- {"vici": [SOCKET, COMMAND, EVENT]}: a listing of strongSwan.
"""

import array
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import tty

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import vici  # noqa: E402
from uml import MARK  # noqa: E402

# <linux/sockios.h>, <linux/ethtool.h>, <linux/netdev_features.h>.
SIOCETHTOOL, ETHTOOL_GFEATURES, ETHTOOL_SFEATURES, FRAGLIST = 0x8946, 0x3A, 0x3B, 1 << 6


def ethtool(device, *words):
    """Runs a command of ethtool; returns its words as the kernel changed them."""
    data = array.array("I", words)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, struct.pack("16sP16x", device.encode(), data.buffer_info()[0]))
    return list(data)


def without_fragment_lists(device):
    """The driver of User Mode Linux accepts packets with a list of fragments and sends the memory behind the first of them. IP-TFS
    makes such packets of several inner ones; without the feature the kernel copies them into one buffer."""
    size = ethtool(device, ETHTOOL_GFEATURES, 0)[1]
    ethtool(device, ETHTOOL_SFEATURES, size, FRAGLIST, *[0] * (2 * size - 1))


def answer(request):
    if "sh" in request:
        done = subprocess.run(["sh", "-c", request["sh"]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=40, check=False)
        return {"rc": done.returncode, "out": done.stdout}
    return {"events": vici.listing(*request["vici"])[0]}


def main():
    tty.setraw(0)
    without_fragment_lists("vec0")
    print(MARK + json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:  # The host decides what it means.
            reply = {"rc": -1, "out": repr(error), "wrong": repr(error)}
        print(MARK + json.dumps(reply), flush=True)


main()
