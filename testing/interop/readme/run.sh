#!/usr/bin/env bash
# The first tunnel of the README and the one in two namespaces of docs/configuration.md, by their
# own files and commands. Arguments are names of cases; without any, all of them. KEEP=DIR keeps
# what was written there.
. "$(dirname "$0")/../lib/start.sh"
need_weir
need ip ping nft openssl unshare nsenter setpriv mount bash /usr/bin/python3
need_root
"${namespaces[@]}" sh -c 'mount -t tmpfs probe /run && ip tuntap add probe mode tun' 2>/dev/null ||
    skip "this machine does not allow namespaces, mounts or TUN devices"

make_lab
run_apart /usr/bin/python3 -u "$here/suite.py" "$lab" "$root" "$@"
