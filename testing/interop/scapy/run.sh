#!/usr/bin/env bash
# ESP, AH and PSP between `weir pcap` and scapy, packet by packet, in both directions. See README.md.
# Arguments are parts of case names; without any, all of them. KEEP=DIR keeps what was written there.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)

if [ -z "${WEIR:-}" ]; then
    for WEIR in "$root/target/release/weir" "$root/target/debug/weir"; do [ -x "$WEIR" ] && break; done
fi
[ -x "$WEIR" ] || { echo "FAIL scapy/all: there is no weir at $WEIR; build it, or set WEIR" && exit 1; }
export WEIR
/usr/bin/python3 -c 'import scapy.layers.ipsec, cryptography' 2>/dev/null || {
    echo "SKIP scapy/all: python3-scapy or python3-cryptography is not installed"
    exit 0
}

lab=${KEEP:-$(mktemp -d)}
mkdir -p "$lab/psp"
[ -n "${KEEP:-}" ] || trap 'rm -rf "$lab"' EXIT
status=0
/usr/bin/python3 -B -W ignore "$here/suite.py" "$lab" "$@" || status=1
/usr/bin/python3 -B -W ignore "$here/psp.py" "$lab/psp" "$@" || status=1
exit "$status"
