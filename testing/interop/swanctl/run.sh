#!/usr/bin/env bash
# Debian's swanctl and the Python package vici against the gateway's vici server, message by
# message. See README.md. Arguments are parts of case names; without any, all of them. KEEP=DIR
# keeps what was written there.
. "$(dirname "$0")/../lib/start.sh"
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
command -v swanctl >/dev/null || skip "swanctl is not installed (Debian: strongswan-swanctl)"
need cargo openssl /usr/bin/python3
need_weir

# One that is there already, in $WEIR_VICI_SERVER, is taken as it is: lint may have the build folder
# for minutes.
SERVER=${WEIR_VICI_SERVER:-}
if [ -z "$SERVER" ]; then
    export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"
    cargo build --quiet --locked --manifest-path "$root/Cargo.toml" --package weir-vici --example vici-server ||
        fail "the example server does not build"
    SERVER="$CARGO_TARGET_DIR/debug/examples/vici-server"
fi
export SERVER

make_lab
# Only the cases of the package need it.
/usr/bin/python3 -m pip install --quiet --no-deps --target "$lab/python" vici==6.0.3 >/dev/null 2>&1 || true
/usr/bin/python3 -B "$here/suite.py" "$lab" "$@"
