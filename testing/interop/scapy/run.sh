#!/usr/bin/env bash
# ESP, AH and PSP between `weir pcap` and scapy, packet by packet, in both directions. See
# README.md. Arguments are parts of case names; without any, all of them. KEEP=DIR keeps what was
# written there.
. "$(dirname "$0")/../lib/start.sh"
need_weir
/usr/bin/python3 -c 'import scapy.layers.ipsec, cryptography' 2>/dev/null ||
    skip "python3-scapy or python3-cryptography is not installed"

make_lab
mkdir -p "$lab/psp"
status=0
/usr/bin/python3 -B -W ignore "$here/suite.py" "$lab" "$@" || status=1
/usr/bin/python3 -B -W ignore "$here/psp.py" "$lab/psp" "$@" || status=1
exit "$status"
