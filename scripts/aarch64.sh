#!/usr/bin/env bash
# Unit tests of wire, crypto, ipsec and ike for aarch64, cross-compiled and run by qemu-user: byte
# order, alignment and engines of the other architecture, without such a machine. It measures
# no speed. The other crates are only compiled as far as the type check.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
export PATH
target=aarch64-unknown-linux-gnu
for tool in aarch64-linux-gnu-gcc aarch64-linux-gnu-g++ qemu-aarch64-static; do
    command -v "$tool" >/dev/null || { echo "skipped: no $tool (scripts/setup.sh aarch64)"; exit 0; }
done
if ! rustup target list --installed 2>/dev/null | grep -qx "$target"; then
    echo "skipped: rustup target add $target"
    exit 0
fi
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu"
# An interpreted test takes tens of times longer: fewer cases per property.
export PROPTEST_CASES="${PROPTEST_CASES:-8}"
crates=()
for crate in wire crypto ipsec ike; do crates+=(--package "weir-$crate"); done
cargo test --locked --no-fail-fast --target "$target" "${crates[@]}" --lib "$@"
cargo check --workspace --locked --quiet --target "$target"
