#!/usr/bin/env bash
# tshark decrypts ESP of `weir pcap seal` and of `weir up`, and checks the ICVs. See README.md.
# Arguments are parts of case names; without any, all of them. KEEP=DIR keeps what was written there.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
PATH=$PATH:/usr/sbin:/sbin
export PATH

if [ -z "${WEIR:-}" ]; then
    for WEIR in "$root/target/release/weir" "$root/target/debug/weir"; do [ -x "$WEIR" ] && break; done
fi
[ -x "$WEIR" ] || { echo "FAIL tshark/all: there is no weir at $WEIR; build it, or set WEIR" && exit 1; }
export WEIR
for tool in tshark /usr/bin/python3; do
    command -v "$tool" >/dev/null || { echo "SKIP tshark/all: $tool is not installed" && exit 0; }
done

lab=${KEEP:-$(mktemp -d)}
mkdir -p "$lab/offline" "$lab/live"
[ -n "${KEEP:-}" ] || trap 'rm -rf "$lab"' EXIT
status=0
/usr/bin/python3 -B "$here/offline.py" "$lab/offline" "$@" || status=1

skip() {
    echo "SKIP tshark/live: $*"
    exit "$status"
}
for tool in ip ping unshare nsenter; do command -v "$tool" >/dev/null || skip "$tool is not installed"; done
[ -c /dev/net/tun ] || skip "this machine has no /dev/net/tun"
[ "$(id -u)" -eq 0 ] || skip "making network devices needs root"
# Namespaces of its own for network, mounts and processes: nothing on the host changes, and when the first process in
# there ends, or this one is killed, the kernel ends all the others and removes the rest.
namespaces=(unshare --net --mount --pid --fork --kill-child --mount-proc)
"${namespaces[@]}" ip tuntap add probe mode tun 2>/dev/null || skip "this machine does not allow namespaces or TUN devices"
"${namespaces[@]}" /usr/bin/python3 -B "$here/live.py" "$lab/live" "$@" &
child=$!
trap 'kill "$child"; exit 143' INT TERM
wait "$child" || status=1
exit "$status"
