#!/usr/bin/env bash
# Runs fuzz targets, two at a time: scripts/fuzz.sh SECONDS [TARGET...]. Ends with 1 when one found something.
#
# Seeds are committed (fuzz/seeds, written by `cargo run --example seeds`), what the fuzzer learns is kept in fuzz/corpus
# and not committed, findings are in fuzz/artifacts. A finding becomes a unit test beside the code that it broke.
set -uo pipefail
cd "$(dirname "$0")/../fuzz" || exit 1
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"

seconds=${1:-60}
shift
[ "$seconds" -gt 0 ] 2>/dev/null || { echo "usage: $0 SECONDS [TARGET...]" >&2 && exit 2; }
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(for file in fuzz_targets/*.rs; do basename "$file" .rs; done)

if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "fuzz: installing cargo-fuzz" >&2
    cargo +nightly install --locked --quiet cargo-fuzz || exit 1
fi
echo "fuzz: building" >&2
cargo +nightly fuzz build || exit 1
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
bin=${CARGO_TARGET_DIR:-target}/$host/release
export ASAN_OPTIONS=detect_odr_violation=0

run() {
    local target=$1 log=artifacts/$1/log
    mkdir -p "artifacts/$target" "corpus/$target" "seeds/$target"
    # One input is at most a few packets; ten seconds or 2 GiB for it are findings as good as a crash.
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

failed=0
# Ctrl-C ends the fuzzers with this script: they are in its process group.
for ((i = 0; i < ${#targets[@]}; i += 2)); do
    pids=()
    for target in "${targets[@]:i:2}"; do
        run "$target" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
done
exit $failed
