#!/usr/bin/env bash
# ESP and AH between `weir up` and a Linux kernel of the distribution, run as a process (User Mode Linux).
# Arguments are names of cases; without any, all of them. KEEP=DIR keeps what was written there.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
PATH=$PATH:/usr/sbin:/sbin
export PATH

skip() {
    echo "SKIP linux/all: $*"
    exit 0
}

if [ -z "${WEIR:-}" ]; then
    for WEIR in "$root/target/release/weir" "$root/target/debug/weir"; do [ -x "$WEIR" ] && break; done
fi
[ -x "$WEIR" ] || { echo "FAIL linux/all: there is no weir at $WEIR; build it, or set WEIR" && exit 1; }
export WEIR

for tool in linux.uml ip ping unshare setpriv modprobe /usr/bin/python3; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done
[ -c /dev/net/tun ] || skip "this machine has no /dev/net/tun"
[ "$(id -u)" -eq 0 ] || skip "making network devices needs root"

# Namespaces of its own for network, mounts and processes: nothing on the host changes, and when the first process in
# there ends, or this one is killed, the kernel ends all the others, the guest among them, and removes the rest.
namespaces=(unshare --net --mount --pid --fork --kill-child --mount-proc)
"${namespaces[@]}" ip tuntap add probe mode tap 2>/dev/null || skip "this machine does not allow namespaces or taps"

lab=${KEEP:-$(mktemp -d)}
mkdir -p "$lab"
[ -n "${KEEP:-}" ] || trap 'rm -rf "$lab"' EXIT
# unshare keeps INT and TERM from itself, and would outlive this script.
setpriv --pdeathsig KILL "${namespaces[@]}" /usr/bin/python3 -u "$here/suite.py" "$lab" "$@" &
child=$!
trap 'kill -KILL "$child"; wait "$child" 2>/dev/null; exit 143' INT TERM
wait "$child"
