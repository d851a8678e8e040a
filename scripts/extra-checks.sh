#!/usr/bin/env bash
# Checks with tools that a build does not need, for at most SECONDS together (default 60):
# scripts/extra-checks.sh [SECONDS].
#
# cargo check for aarch64, headers and packet memory under Miri, every fuzz target for a moment. A
# check whose tool or build is missing prints "skipped: why"; nothing is installed here (make miri
# and make fuzz do that). Ends with 1 when one fails.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
seconds=${1:-60}
target=${CARGO_TARGET_DIR:-$PWD/target}
failed=0
deadline=$((SECONDS + seconds))

skip() { echo "extra: $1 skipped: $2"; }
left() { echo $((deadline - SECONDS)); }
# Runs a check within what is left of the time. A check that the time ends has found nothing.
bounded() {
    local name=$1 limit=$2 log
    shift 2
    log=$(mktemp)
    timeout -k 5 "$limit" "$@" >"$log" 2>&1
    case $? in
    0) echo "extra: $name passed" ;;
    124 | 137) skip "$name" "not finished in $limit s" ;;
    *)
        echo "extra: $name FAILED"
        # The failed target may precede many that passed.
        grep -m 5 -E '^(FAIL|error)' "$log"
        tail -n 40 "$log"
        failed=1
        ;;
    esac
    rm -f "$log"
}
installed() { command -v rustup >/dev/null && rustup target list --installed 2>/dev/null | grep -qx "$1"; }

if [ "$seconds" -le 0 ]; then
    skip "all checks" "no time is given to them"
    exit 0
fi

if ! installed aarch64-unknown-linux-gnu; then
    skip aarch64 "rustup target add aarch64-unknown-linux-gnu"
elif ! command -v aarch64-linux-gnu-gcc >/dev/null; then
    skip aarch64 "no aarch64-linux-gnu-gcc for AWS-LC"
else
    bounded aarch64 $(($(left) / 3)) cargo check --workspace --locked --quiet --target aarch64-unknown-linux-gnu
fi

if ! rustup component list --toolchain nightly 2>/dev/null | grep -q '^miri.*installed'; then
    skip miri "no Rust nightly with Miri (make miri)"
else
    # The crate of headers needs no C code, so that Miri has something to run after a few seconds of
    # building.
    bounded miri $(($(left) / 2)) env MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=1 \
        cargo +nightly miri test --locked --quiet --package weir-wire --lib -- esp:: ah:: psp:: udp:: icmp::
fi

# Targets are built by `make fuzz`, which takes longer than this pass.
bin=${FUZZ_BIN:-}
[ -n "$bin" ] || bin=$(find "$target" fuzz/target -maxdepth 3 -path '*/release/ike_endpoint' -perm -u+x -printf '%h\n' 2>/dev/null | head -n 1)
targets=$(find fuzz/fuzz_targets -name '*.rs' 2>/dev/null | wc -l)
each=$((targets > 0 ? $(left) * 2 / targets : 0))
if [ -z "$bin" ]; then
    skip fuzz "no targets are built (make fuzz)"
elif [ "$each" -lt 1 ]; then
    skip fuzz "no time is left"
else
    bounded fuzz $(($(left) + 30)) env FUZZ_BIN="$bin" JOBS=2 scripts/fuzz.sh "$each"
fi
exit $failed
