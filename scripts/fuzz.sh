#!/usr/bin/env bash
# Runs fuzz targets, JOBS at a time (default 2): scripts/fuzz.sh SECONDS [TARGET...]. Ends with 1
# when one found something.
#
# Seeds are committed (fuzz/seeds, written by `cargo run --example seeds`), what the fuzzer learns
# is kept in fuzz/corpus and not committed, findings are in fuzz/artifacts. A finding becomes a unit
# test beside the code that it broke.
#
# FUZZ_BIN names a folder with targets that are built already: they are run as they are.
set -uo pipefail
cd "$(dirname "$0")/../fuzz" || exit 1
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"

seconds=${1:-60}
shift
[ "$seconds" -gt 0 ] 2>/dev/null || { echo "usage: $0 SECONDS [TARGET...]" >&2 && exit 2; }
jobs=${JOBS:-2}
[ "$jobs" -gt 0 ] 2>/dev/null || { echo "fuzz: JOBS has to be a number of targets that run at a time" >&2 && exit 2; }
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(for file in fuzz_targets/*.rs; do basename "$file" .rs; done)

bin=${FUZZ_BIN:-}
if [ -z "$bin" ]; then
    # The sanitizer and its instrumentation are unstable options of the compiler: Rust nightly takes
    # them. Where it cannot be had, the pinned compiler takes them with RUSTC_BOOTSTRAP=1; it comes
    # with the same runtime library (librustc-stable_rt.asan.a).
    if command -v rustup >/dev/null && rustup run nightly cargo --version >/dev/null 2>&1; then
        export RUSTUP_TOOLCHAIN=nightly
    else
        export RUSTC_BOOTSTRAP=1
        echo "fuzz: no Rust nightly, using $(rustc --version) with RUSTC_BOOTSTRAP=1" >&2
    fi
    command -v cargo-fuzz >/dev/null || { echo "fuzz: cargo-fuzz is missing: scripts/setup.sh fuzz" >&2 && exit 1; }
    echo "fuzz: building with $(rustc --version)" >&2
    cargo fuzz build || exit 1
    host=$(rustc -vV | sed -n 's/^host: //p')
    bin=${CARGO_TARGET_DIR:-target}/$host/release
fi
export ASAN_OPTIONS=detect_odr_violation=0

run() {
    local target=$1 log=artifacts/$1/log
    mkdir -p "artifacts/$target" "corpus/$target" "seeds/$target"
    # One input is at most a few packets; ten seconds or 2 GiB for it are findings as good as a
    # crash.
    "$bin/$target" "corpus/$target" "seeds/$target" -max_total_time="$seconds" -max_len=8192 -timeout=10 \
        -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="artifacts/$target/" >"$log" 2>&1
    local status=$?
    local runs edges
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    edges=$(sed -n 's/.* cov: \([0-9]*\).*/\1/p' "$log" | tail -n 1)
    if [ "$status" -eq 0 ]; then
        echo "PASS fuzz $target: ${runs:-?} inputs in $seconds s, ${edges:-?} edges"
    else
        echo "FAIL fuzz $target: $(grep -m 1 -E 'panicked at|ERROR:|SUMMARY:' "$log"); input $(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1), log fuzz/$log"
    fi
    return $status
}

failed=0 running=0 started=0
# Ctrl-C ends the fuzzers with this script: they are in its process group.
for target in "${targets[@]}"; do
    if [ "$running" -ge "$jobs" ]; then
        wait -n || failed=1
        running=$((running - 1))
    fi
    rounds=$(((${#targets[@]} - started + jobs - 1) / jobs))
    started=$((started + 1))
    echo "fuzz: target $started of ${#targets[@]}: $target, about $(((rounds * seconds + 59) / 60)) min left" >&2
    run "$target" &
    running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
done
exit $failed
