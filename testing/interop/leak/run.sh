#!/usr/bin/env bash
# Clear text on the outside wire, and spoofed clear text inside, while a gateway is started,
# disturbed and stopped. Arguments are parts of names: of topologies (manual, ike-tunnel, …) and of
# events (kill, reload, …). JOBS topologies run at a time. `--without GUARD,…` removes guards from a
# killed gateway and has to report clear text. KEEP=DIR keeps logs.
. "$(dirname "$0")/../lib/start.sh"
need_weir
need ip nft unshare nsenter setpriv mount /usr/bin/python3
need_root
"${namespaces[@]}" sh -c 'mount -t tmpfs probe /run && ip tuntap add probe mode tun' 2>/dev/null ||
    skip "this machine does not allow namespaces, mounts or TUN devices"

make_lab
run_apart /usr/bin/python3 -u "$here/suite.py" "$lab" "$@"
