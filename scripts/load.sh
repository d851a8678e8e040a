#!/usr/bin/env bash
# Two Weirs under load while either end replaces Child SA and IKE SA again and again: packets sent
# and lost, one direction after the other, without and with rekeys. MBIT is the rate of the payload,
# REKEYS how many, SECONDS_WITHOUT how long without.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"
export PATH

cargo build --release --locked --package weir
target=$(cargo metadata --no-deps --locked --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
export WEIR="$target/release/weir" LOAD_MBIT="${MBIT:-1000}" LOAD_REKEYS="${REKEYS:-400}" LOAD_FOR="${SECONDS_WITHOUT:-15}"
exec testing/interop/ike/run.sh rekey-load
