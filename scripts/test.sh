#!/usr/bin/env bash
# Every test: the workspace's own, then each suite against a real peer. The last line is the totals, alone.
#
# A suite is an executable testing/interop/NAME/run.sh. It prints `PASS case`, `FAIL case: why` or `SKIP case: why`, one
# line each, cleans up after itself, and ends with 0 or 1. It finds the binary in $WEIR. `scripts/test.sh scapy linux`
# runs only these suites. SUITE_SECONDS bounds one suite (default 600).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"
SUITE_SECONDS=${SUITE_SECONDS:-600}

passed=0 failed=0 skipped=0
failures=()
log=$(mktemp)
peer_pid=
# A peer that is still being made when we are stopped is not wanted any more.
trap 'rm -f "$log"; [ -z "$peer_pid" ] || kill "$peer_pid" 2>/dev/null' EXIT

say() { printf '\n== %s\n' "$*"; }
fail() {
    failed=$((failed + 1))
    failures+=("$*")
    echo "FAIL $*"
}
count() { grep -c "$1" "$log" || true; }

unit_tests() {
    local started=$SECONDS status figures
    say "unit and property tests"
    cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$log"
    status=$?
    # "test result: ok. 12 passed; 0 failed; 1 ignored; ..." ends each test binary.
    figures=$(awk '/^test result:/ { p += $4; f += $6; s += $8 } END { print p + 0, f + 0, s + 0 }' "$log")
    read -r p f s <<<"$figures"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    while read -r name; do failures+=("$name"); done < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log")
    # It did not build, or a test brought its process down: nobody counted that.
    [ "$status" -eq 0 ] || [ "$f" -gt 0 ] || fail "cargo test: ended with status $status"
    echo "== $p passed, $f failed, $s skipped in $((SECONDS - started)) s"
}

suite() {
    local script=$1 name started=$SECONDS status p f s
    name=$(basename "$(dirname "$script")")
    say "$name"
    timeout -k 20 "$SUITE_SECONDS" "$script" </dev/null 2>&1 | tee "$log"
    status=$?
    p=$(count '^PASS ') f=$(count '^FAIL ') s=$(count '^SKIP ')
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    while read -r line; do failures+=("$name: $line"); done < <(sed -n 's/^FAIL //p' "$log")
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        fail "$name: not finished after $SUITE_SECONDS s"
    elif [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then
        fail "$name: ended with status $status"
    elif [ $((p + f + s)) -eq 0 ]; then
        fail "$name: reported no case"
    fi
    echo "== $p passed, $f failed, $s skipped in $((SECONDS - started)) s"
}

# The newest strongSwan (Debian 12's has neither per-CPU SAs nor ML-KEM), made while everything else is built.
peer_root=${CARGO_TARGET_DIR:-$PWD/target}/peers/forky
if [ -z "${STRONGSWAN_ROOT:-}" ] && [ "$(id -u)" -eq 0 ] && command -v debootstrap >/dev/null; then
    mkdir -p "${peer_root%/*}"
    scripts/peer-root.sh forky "$peer_root" >/dev/null 2>&1 &
    peer_pid=$!
fi

if [ "${CI:-}" = true ] && [ $# -eq 0 ]; then
    say "lint"
    if scripts/lint.sh; then passed=$((passed + 1)); else fail "lint"; fi
fi
[ $# -gt 0 ] || unit_tests

say "binary for the suites"
# The profile of the unit tests: its dependencies are built by now, and overflow and debug assertions are on.
if cargo build --locked --package weir; then
    target=$(cargo metadata --no-deps --locked --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
    export WEIR="${WEIR:-$target/debug/weir}"
    # Without it the cases that need it are skipped, and say so.
    if [ -n "$peer_pid" ] && wait "$peer_pid"; then export STRONGSWAN_ROOT=$peer_root; fi
    peer_pid=
    for script in testing/interop/*/run.sh; do
        [ -x "$script" ] || continue
        if [ $# -gt 0 ] && [[ " $* " != *" $(basename "$(dirname "$script")") "* ]]; then continue; fi
        suite "$script"
    done
else
    fail "cargo build: weir"
fi

echo
for name in ${failures[@]+"${failures[@]}"}; do echo "failed: $name"; done
echo "took $SECONDS s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
