#!/usr/bin/env bash
# PSP between `weir pcap` and the crate psp_security, packet by packet, in both directions. See README.md.
# Arguments are parts of case names; without any, all of them. KEEP=DIR keeps what was written there.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"

if [ -z "${WEIR:-}" ]; then
    for WEIR in "$root/target/release/weir" "$root/target/debug/weir"; do [ -x "$WEIR" ] && break; done
fi
[ -x "$WEIR" ] || { echo "FAIL psp/all: there is no weir at $WEIR; build it, or set WEIR" && exit 1; }
export WEIR

skip() {
    echo "SKIP psp/all: $*"
    exit 0
}
for tool in cargo /usr/bin/python3; do command -v "$tool" >/dev/null || skip "$tool is not installed"; done

# The product's own target directory: AWS-LC is there already.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"
manifest=$root/testing/peers/psp/Cargo.toml
# One that is there already, in $WEIR_PSP_PEER, is taken as it is: lint may have the build folder for minutes.
PEER=${WEIR_PSP_PEER:-}
if [ -z "$PEER" ]; then
    cargo fetch --quiet --locked --manifest-path "$manifest" || skip "cargo cannot fetch the crate psp_security"
    cargo build --quiet --locked --manifest-path "$manifest" || { echo "FAIL psp/all: the peer does not build" && exit 1; }
    PEER="$CARGO_TARGET_DIR/debug/weir-psp-peer"
fi
export PEER

lab=${KEEP:-$(mktemp -d)}
mkdir -p "$lab"
[ -n "${KEEP:-}" ] || trap 'rm -rf "$lab"' EXIT
/usr/bin/python3 -B "$here/suite.py" "$lab" "$@"
