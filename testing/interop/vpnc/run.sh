#!/usr/bin/env bash
# IKEv1 between `weir up` and the client vpnc. Arguments are names of cases; without any, all of
# them. KEEP=DIR keeps configurations and logs. VPNC is the client (default: vpnc in the path).
. "$(dirname "$0")/../lib/start.sh"
need_weir
export VPNC=${VPNC:-vpnc}
need "$VPNC" ip ping unshare nsenter setpriv python3
need_root

make_lab
run_apart python3 -u "$here/suite.py" "$suite" "$lab" "$@"
