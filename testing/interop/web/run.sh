#!/usr/bin/env bash
# `weir top` in a pseudo-terminal and the status page in Chromium, against a daemon that runs.
# Arguments are names of cases; without any, all of them. KEEP=DIR keeps what was written there.
. "$(dirname "$0")/../lib/start.sh"
need_weir
need ip unshare nsenter setpriv mount curl script chromium /usr/bin/python3
need_root
# Chromium's driver and a terminal emulator: scripts/setup.sh test.
export WEIR_PYTHON=${WEIR_PYTHON:-${CARGO_TARGET_DIR:-$root/target}/python}
PYTHONPATH=$WEIR_PYTHON /usr/bin/python3 -c 'import playwright, pyte' 2>/dev/null ||
    skip "no playwright and pyte in $WEIR_PYTHON: scripts/setup.sh test"
"${namespaces[@]}" sh -c 'mount -t tmpfs probe /run && ip tuntap add probe mode tun' 2>/dev/null ||
    skip "this machine does not allow namespaces, mounts or TUN devices"

make_lab
export PYTHONPATH=$WEIR_PYTHON
run_apart /usr/bin/python3 -u "$here/suite.py" "$lab" "$@"
