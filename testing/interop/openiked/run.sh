#!/usr/bin/env bash
# IKEv2 between `weir up` and OpenIKED in a Linux kernel of its own (User Mode Linux). Arguments are
# names of cases; without any, all of them. KEEP=DIR keeps configurations, logs and captures.
# IKE_PEERS_ROOT=DIR is a root with OpenIKED (scripts/peer-root.sh).
. "$(dirname "$0")/../lib/start.sh"
need_weir
need cc linux.uml ip tcpdump unshare nsenter setpriv mount modprobe swanctl pki /usr/bin/python3
need_root
need_ike_peer usr/libexec/ipsec/pluto OpenIKED

make_lab
run_apart /usr/bin/python3 -u "$here/suite.py" "$suite" "$lab" "$@"
