# shellcheck shell=bash
# What the run.sh of a suite begins with; it sources this. The suite is called like its folder.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
suite=$(basename "$here")
PATH=$PATH:/usr/sbin:/sbin
export PATH

skip() {
    echo "SKIP $suite/all: $*"
    exit 0
}

fail() {
    echo "FAIL $suite/all: $*"
    exit 1
}

# Skips the suite unless all these programs are there.
need() {
    local tool
    for tool in "$@"; do command -v "$tool" >/dev/null || skip "$tool is not installed"; done
}

# Devices and namespaces are made by root.
need_root() {
    [ -c /dev/net/tun ] || skip "this machine has no /dev/net/tun"
    [ "$(id -u)" -eq 0 ] || skip "making network devices needs root"
}

# $WEIR, or else the build for release, or else the one for development.
need_weir() {
    if [ -z "${WEIR:-}" ]; then
        for WEIR in "$root/target/release/weir" "$root/target/debug/weir"; do [ -x "$WEIR" ] && break; done
    fi
    export WEIR
    [ -x "$WEIR" ] || fail "there is no weir at $WEIR; build it, or set WEIR"
}

# $lab, the folder that the suite writes to: $KEEP, which stays, or one that goes when the suite
# ends.
make_lab() {
    lab=${KEEP:-$(mktemp -d)}
    mkdir -p "$lab"
    lab=$(cd "$lab" && pwd)
    [ -n "${KEEP:-}" ] || trap 'rm -rf "$lab"' EXIT
}

# Namespaces of its own for network, mounts and processes: nothing on the host changes, what runs
# there already is not disturbed, and when the first process in there ends, or this one is killed,
# the kernel ends all the others and removes the rest.
namespaces=(unshare --net --mount --pid --fork --kill-child --mount-proc)

# Runs a command in such namespaces.
run_apart() {
    # unshare keeps INT and TERM from itself, and would outlive this script.
    setpriv --pdeathsig KILL "${namespaces[@]}" "$@" &
    child=$!
    trap 'kill -KILL "$child"; wait "$child" 2>/dev/null; exit 143' INT TERM
    wait "$child"
}

# Skips the suite unless $IKE_PEERS_ROOT, or else the folder that `make test` makes, holds this
# program: need_ike_peer FILE NAME.
need_ike_peer() {
    IKE_PEERS_ROOT=${IKE_PEERS_ROOT:-$root/target/peers/trixie}
    export IKE_PEERS_ROOT
    [ -x "$IKE_PEERS_ROOT/$1" ] ||
        skip "no $2 in $IKE_PEERS_ROOT: scripts/peer-root.sh trixie DIR libreswan-openiked, then IKE_PEERS_ROOT=DIR"
    "${namespaces[@]}" sh -c 'mount -t tmpfs probe /run && ip tuntap add probe mode tap' 2>/dev/null ||
        skip "this machine does not allow namespaces, mounts or taps"
}
