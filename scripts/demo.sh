#!/usr/bin/env bash
# Builds the optimised binary and lets it run the demonstration: `weir lab demo`. Arguments go to it.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"
export PATH

echo "demo: building (some minutes the first time)" >&2
cargo build --release --locked --package weir
target=$(cargo metadata --no-deps --locked --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
exec "$target/release/weir" lab demo "$@"
