"""Shell scripts that set hosts up, and waiting for what they do."""

import subprocess
import time

from gateway import Failed

# Settings of a namespace in which every packet that is not dropped really leaves or arrives, at
# once and by itself.
QUIET = """
    for conf in all default; do
        echo 0 >/proc/sys/net/ipv4/conf/$conf/rp_filter
        echo 1 >/proc/sys/net/ipv4/conf/$conf/promote_secondaries
        echo 0 >/proc/sys/net/ipv4/conf/$conf/send_redirects
        echo 0 >/proc/sys/net/ipv6/conf/$conf/accept_dad
        echo 0 >/proc/sys/net/ipv6/conf/$conf/accept_ra
    done
    ip link set lo up"""


def sh(script, check=True):
    """Runs a script and returns its output; `check`: it must succeed."""
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise Failed(f"{script.strip()[:200]}: {done.stderr.strip()[:300]}")
    return done.stdout


def wait_for(what, condition, patience_s=20):
    """The first result of `condition` that is true; `what` may be a function that returns the text of the failure."""
    deadline = time.monotonic() + patience_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise Failed(f"{what() if callable(what) else what}: not within {patience_s} s")
        time.sleep(0.03)
