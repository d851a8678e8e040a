#!/usr/bin/env bash
# ESP and AH between `weir up` and a Linux kernel of the distribution, run as a process (User Mode
# Linux). Arguments are names of cases; without any, all of them. KEEP=DIR keeps what was written
# there.
. "$(dirname "$0")/../lib/start.sh"
need_weir
need cc linux.uml ip ping unshare setpriv modprobe /usr/bin/python3
need_root
"${namespaces[@]}" ip tuntap add probe mode tap 2>/dev/null || skip "this machine does not allow namespaces or taps"

make_lab
run_apart /usr/bin/python3 -u "$here/suite.py" "$lab" "$@"
