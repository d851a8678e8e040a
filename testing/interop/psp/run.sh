#!/usr/bin/env bash
# PSP between `weir pcap` and the crate psp_security, packet by packet, in both directions. See
# README.md. Arguments are parts of case names; without any, all of them. KEEP=DIR keeps what was
# written there.
. "$(dirname "$0")/../lib/start.sh"
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
need_weir
need cargo /usr/bin/python3

# The product's own target directory: AWS-LC is there already.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"
manifest=$root/testing/peers/psp/Cargo.toml
# One that is there already, in $WEIR_PSP_PEER, is taken as it is: lint may have the build folder
# for minutes.
PEER=${WEIR_PSP_PEER:-}
if [ -z "$PEER" ]; then
    cargo fetch --quiet --locked --manifest-path "$manifest" || skip "cargo cannot fetch the crate psp_security"
    cargo build --quiet --locked --manifest-path "$manifest" || fail "the peer does not build"
    PEER="$CARGO_TARGET_DIR/debug/weir-psp-peer"
fi
export PEER

make_lab
/usr/bin/python3 -B "$here/suite.py" "$lab" "$@"
