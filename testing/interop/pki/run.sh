#!/usr/bin/env bash
# `weir pki` and `weir new`: certificates, CRLs and files for other systems as openssl, strongSwan's
# pki and Python read them, and connections with them. Arguments are parts of names of cases;
# without any, all of them. KEEP=DIR keeps what was written there.
. "$(dirname "$0")/../lib/start.sh"
need_weir
need ip tcpdump unshare nsenter setpriv mount openssl /usr/bin/python3
need_root
"${namespaces[@]}" sh -c 'mount -t tmpfs probe /run && ip tuntap add probe mode tun' 2>/dev/null ||
    skip "this machine does not allow namespaces, mounts or TUN devices"

make_lab
run_apart /usr/bin/python3 -u "$here/suite.py" "$suite" "$lab" "$@"
