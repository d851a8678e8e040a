#!/usr/bin/env bash
# tshark decrypts ESP of `weir pcap seal` and of `weir up`, and checks the ICVs. See README.md.
# Arguments are parts of case names; without any, all of them. KEEP=DIR keeps what was written
# there.
. "$(dirname "$0")/../lib/start.sh"
need_weir
need tshark /usr/bin/python3
make_lab
mkdir -p "$lab/offline" "$lab/live"
status=0
/usr/bin/python3 -B "$here/offline.py" "$lab/offline" "$@" || status=1

# What is missing now is missing for the other half only.
skip() {
    echo "SKIP $suite/live: $*"
    exit "$status"
}
need ip ping unshare nsenter setpriv
need_root
"${namespaces[@]}" ip tuntap add probe mode tun 2>/dev/null || skip "this machine does not allow namespaces or TUN devices"
run_apart /usr/bin/python3 -B "$here/live.py" "$lab/live" "$@" || status=1
exit "$status"
