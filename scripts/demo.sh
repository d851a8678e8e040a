#!/usr/bin/env bash
# Builds the optimised binary and lets it run the demonstration: `weir demo`. Arguments go to it.
#
# Namespaces need root. Without it a user namespace will do where the kernel allows one: there this process is root
# over a network of its own, and /run is a scratch file system so that `ip netns` can keep its names.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"
export PATH

echo "demo: building (some minutes the first time)" >&2
cargo build --release --locked --package weir
target=$(cargo metadata --no-deps --locked --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
weir=$target/release/weir

if [ "$(id -u)" -eq 0 ]; then
    exec "$weir" demo "$@"
elif unshare --user --map-root-user --net --mount true 2>/dev/null; then
    echo "demo: not root, using a user namespace" >&2
    exec unshare --user --map-root-user --net --mount sh -c 'mount -t tmpfs tmpfs /run && exec "$@"' sh "$weir" demo "$@"
elif command -v sudo >/dev/null; then
    echo "demo: this kernel allows no user namespace, asking sudo" >&2
    exec sudo "$weir" demo "$@"
fi
echo "demo: needs root, or user namespaces (sysctl kernel.unprivileged_userns_clone=1)" >&2
exit 2
