#!/usr/bin/env bash
# What `weir up` does when it is killed, starved, reloaded, started badly. Arguments are names of cases; without any, all
# of them. KEEP=DIR keeps what was written there.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
PATH=$PATH:/usr/sbin:/sbin
export PATH

skip() {
    echo "SKIP daemon/all: $*"
    exit 0
}

if [ -z "${WEIR:-}" ]; then
    for WEIR in "$root/target/release/weir" "$root/target/debug/weir"; do [ -x "$WEIR" ] && break; done
fi
[ -x "$WEIR" ] || { echo "FAIL daemon/all: there is no weir at $WEIR; build it, or set WEIR" && exit 1; }
export WEIR

for tool in ip tcpdump unshare nsenter setpriv mount /usr/bin/python3; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done
[ -c /dev/net/tun ] || skip "this machine has no /dev/net/tun"
[ "$(id -u)" -eq 0 ] || skip "making network devices needs root"

# Namespaces of its own for network, mounts and processes: nothing on the host changes, and when the first process in
# there ends, or this one is killed, the kernel ends all the others and removes the rest.
namespaces=(unshare --net --mount --pid --fork --kill-child --mount-proc)
"${namespaces[@]}" sh -c 'mount -t tmpfs probe /run && ip tuntap add probe mode tun' 2>/dev/null ||
    skip "this machine does not allow namespaces, mounts or TUN devices"

lab=${KEEP:-$(mktemp -d)}
mkdir -p "$lab"
[ -n "${KEEP:-}" ] || trap 'rm -rf "$lab"' EXIT
"${namespaces[@]}" /usr/bin/python3 -u "$here/suite.py" "$lab" "$@" &
child=$!
trap 'kill "$child"; exit 143' INT TERM
wait "$child"
