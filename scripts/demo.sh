#!/usr/bin/env bash
# Builds the binary without LTO (Cargo.toml, profile demo), manual pages and `weir top`, and lets it
# run the demonstration: `weir lab demo`. Arguments go to it. Then the quick campaign, for its
# report, with three sessions of studies that have five: 40 s less, with wider intervals.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"
export PATH

echo "demo: building (some minutes the first time)" >&2
cargo build --profile demo --locked --package weir --no-default-features --features lab
target=$(cargo metadata --no-deps --locked --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
status=0
"$target/demo/weir" lab demo "$@" || status=$?
# A signal ends everything.
[ "$status" -lt 128 ] || exit "$status"
# What is there of an earlier demonstration was measured by another build.
rm -rf demo-out/lab
mkdir -p demo-out
"$target/demo/weir" lab run --preset quick --print | sed 's/^sessions = 5$/sessions = 3/' >demo-out/quick.toml
"$target/demo/weir" lab run demo-out/quick.toml --out demo-out/lab || { later=$?; [ "$status" -ne 0 ] || status=$later; }
exit "$status"
