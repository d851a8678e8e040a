#!/usr/bin/env bash
# IKEv2 between `weir up` and strongSwan: the scenarios in scenarios/, each a folder with both configurations and what to
# expect. Arguments are names of scenarios; without any, all that are expected to work. KEEP=DIR keeps configurations, logs
# and captures. STRONGSWAN_ROOT=DIR is a root with a newer strongSwan (scripts/peer-root.sh).
#
# Who stands at each end can be changed: WEIR_END=strongswan proves scenarios and this suite without Weir, PEER_END=weir
# runs them between two Weirs.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
suite=${SUITE:-strongswan}
PATH=$PATH:/usr/sbin:/sbin
export PATH

skip() {
    echo "SKIP $suite/all: $*"
    exit 0
}

if [ -z "${WEIR:-}" ]; then
    for WEIR in "$root/target/release/weir" "$root/target/debug/weir"; do [ -x "$WEIR" ] && break; done
fi
[ -x "$WEIR" ] || [ "${WEIR_END:-}${PEER_END:-}" = strongswan ] ||
    { echo "FAIL $suite/all: there is no weir at $WEIR; build it, or set WEIR" && exit 1; }
export WEIR

for tool in ip iperf tcpdump unshare nsenter setpriv mount swanctl pki /usr/bin/python3; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done
[ "${PEER_END:-}" = weir ] || [ -x /usr/lib/ipsec/charon ] || skip "strongSwan (strongswan-charon) is not installed"
/usr/bin/python3 -c 'import tomllib' 2>/dev/null || skip "python3 is older than 3.11"
[ -c /dev/net/tun ] || skip "this machine has no /dev/net/tun"
[ "$(id -u)" -eq 0 ] || skip "making network devices needs root"

# Namespaces of its own for network, mounts and processes: nothing on the host changes, a strongSwan that runs there is not
# disturbed, and when the first process in there ends, or this one is killed, the kernel ends all the others and removes
# the rest.
namespaces=(unshare --net --mount --pid --fork --kill-child --mount-proc)
"${namespaces[@]}" sh -c 'mount -t tmpfs probe /run && ip tuntap add probe mode tun' 2>/dev/null ||
    skip "this machine does not allow namespaces, mounts or TUN devices"

lab=${KEEP:-$(mktemp -d)}
mkdir -p "$lab"
lab=$(cd "$lab" && pwd)
[ -n "${KEEP:-}" ] || trap 'rm -rf "$lab"' EXIT
# unshare keeps INT and TERM from itself, and would outlive this script.
setpriv --pdeathsig KILL "${namespaces[@]}" /usr/bin/python3 -u "$here/suite.py" "$suite" "$lab" "$@" &
child=$!
trap 'kill -KILL "$child"; wait "$child" 2>/dev/null; exit 143' INT TERM
wait "$child"
