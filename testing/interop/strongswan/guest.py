"""What runs in the guest: takes one JSON request per line from the console and answers with one.

The console is used and not the network, which is under test. It takes lines of less than 4096 bytes. Requests:

- {"sh": TEXT}: runs a shell script; answers with its exit status and output;
- {"vici": [SOCKET, COMMAND, EVENT]}: a listing of strongSwan.
"""

import json
import os
import subprocess
import sys
import tty

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import vici  # noqa: E402
from uml import MARK  # noqa: E402


def answer(request):
    if "sh" in request:
        done = subprocess.run(["sh", "-c", request["sh"]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=40, check=False)
        return {"rc": done.returncode, "out": done.stdout}
    return {"events": vici.listing(*request["vici"])[0]}


def main():
    tty.setraw(0)
    print(MARK + json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:  # The host decides what it means.
            reply = {"rc": -1, "out": repr(error), "wrong": repr(error)}
        print(MARK + json.dumps(reply), flush=True)


main()
