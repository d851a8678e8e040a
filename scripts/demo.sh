#!/usr/bin/env bash
# Builds the optimised binary and lets it run the demonstration: `weir lab demo`. Arguments go to it.
#
# It needs root, or a user namespace and a TUN device that is open to everybody; then it is root over a network of its
# own. Where that is not allowed either, sudo is asked.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"
export PATH

echo "demo: building (some minutes the first time)" >&2
cargo build --release --locked --package weir
target=$(cargo metadata --no-deps --locked --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
weir=$target/release/weir

may_without_root() {
    [ -r /dev/net/tun ] && [ -w /dev/net/tun ] && unshare --user --map-root-user --net --mount true 2>/dev/null
}

if [ "$(id -u)" -ne 0 ] && ! may_without_root && command -v sudo >/dev/null; then
    echo "demo: no user namespace or no TUN device for $(id -un), asking sudo" >&2
    exec sudo env PATH="$PATH" "$weir" lab demo "$@"
fi
exec "$weir" lab demo "$@"
