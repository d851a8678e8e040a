#!/usr/bin/env bash
# IKEv2 between `weir up` and strongSwan: the scenarios in scenarios/, each a folder with both
# configurations and what to expect. Arguments are names of scenarios; without any, all that are
# expected to work. KEEP=DIR keeps configurations, logs and captures. STRONGSWAN_ROOT=DIR is a root
# with a newer strongSwan (scripts/peer-root.sh).
#
# Who stands at each end can be changed: WEIR_END=strongswan proves scenarios and this suite without
# a gateway of Weir, PEER_END=weir runs them between two Weirs.
. "$(dirname "$0")/../lib/start.sh"
suite=${SUITE:-$suite}
# Also with strongSwan at both ends, for `weir pki`.
need_weir
need ip iperf tcpdump unshare nsenter setpriv mount swanctl pki /usr/bin/python3
[ "${PEER_END:-}" = weir ] || [ -x /usr/lib/ipsec/charon ] || skip "strongSwan (strongswan-charon) is not installed"
/usr/bin/python3 -c 'import tomllib' 2>/dev/null || skip "python3 is older than 3.11"
need_root
"${namespaces[@]}" sh -c 'mount -t tmpfs probe /run && ip tuntap add probe mode tun' 2>/dev/null ||
    skip "this machine does not allow namespaces, mounts or TUN devices"

# `make iptfs-kernel` makes it.
IPTFS_KERNEL=$(realpath -m "${IPTFS_KERNEL:-${CARGO_TARGET_DIR:-$root/target}/uml/linux.uml.iptfs}")
export IPTFS_KERNEL
make_lab
run_apart /usr/bin/python3 -u "$here/suite.py" "$suite" "$lab" "$@"
