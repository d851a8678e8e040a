#!/usr/bin/env bash
# Every test: the workspace's own, then each suite against a real peer. The last line is the totals,
# alone.
#
# A suite is an executable testing/interop/NAME/run.sh. It prints `PASS case`, `FAIL case: why` or
# `SKIP case: why`, one line each, cleans up after itself, and ends with 0 or 1. It finds the binary
# in $WEIR. `scripts/test.sh scapy linux` runs only these suites. SUITE_SECONDS bounds one suite
# (default 600).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"
SUITE_SECONDS=${SUITE_SECONDS:-600}
# A single build gains nothing from incremental files, and a failed test reports its place without
# line tables.
if [ "${CI:-}" = true ]; then export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false; fi

passed=0 failed=0 skipped=0
failures=()
log=$(mktemp)
outputs=$(mktemp -d)
peer_pid='' v1_pid='' ike_pid=''
# Peers and suites that still run when this script is stopped end with it, with all they started.
with_descendants() {
    local child
    echo "$1"
    for child in $(pgrep -P "$1"); do with_descendants "$child"; done
}
end() {
    local pid child
    rm -rf "$log" "$outputs"
    for pid in $peer_pid $v1_pid $ike_pid ${lane_pids[@]+"${lane_pids[@]}"}; do
        for child in $(with_descendants "$pid"); do kill "$child" 2>/dev/null; done
    done
}
trap end EXIT

say() { printf '\n== %s\n' "$*"; }

# Runs a command whose status is asked for minutes later. It goes to a file: bash forgets the status
# of a child as soon as another child has its number, and a test run starts more children than there
# are numbers.
with_status() {
    local name=$1
    shift
    "$@"
    echo $? >"$outputs/$name.part"
    mv "$outputs/$name.part" "$outputs/$name.status"
}
# Waits for the command NAME that process PID runs. Its status, or 1 if it ended without one.
status_of() {
    local name=$1 pid=$2 status=1
    until [ -e "$outputs/$name.status" ] || ! kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
    # It may have ended between the two questions.
    if [ -e "$outputs/$name.status" ]; then read -r status <"$outputs/$name.status"; fi
    return "$status"
}
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
    # It did not build, or a test ended its process: no line counts that.
    [ "$status" -eq 0 ] || [ "$f" -gt 0 ] || fail "cargo test: ended with status $status"
    echo "== $p passed, $f failed, $s skipped in $((SECONDS - started)) s"
}

# What is built upon engines and schedulers, once more with each of them forced: the first run takes
# the fastest engine and run to completion. An engine that is not here falls back to that. What
# schedules packets runs with every engine and every scheduler.
engine_tests() {
    local engine scheduler started=$SECONDS p f built ran forced=${WEIR_SCHEDULER:-}
    for engine in aws_lc ipsec_mb vaes; do
        say "data plane with the engine $engine"
        export WEIR_SCHEDULER=run-to-completion
        case $engine in
        aws_lc) WEIR_SCHEDULER=pipeline ;;
        vaes) WEIR_SCHEDULER=async ;;
        esac
        # The whole workspace is named so that nothing is built again with other features.
        WEIR_ENGINE=$engine cargo test --workspace --locked --no-fail-fast --test path --test sim >"$log" 2>&1
        built=$?
        # Sources of weir-lab-ike are those of weir-ike; their tests need its dependencies.
        WEIR_ENGINE=$engine cargo test --workspace --exclude weir-lab-ike --locked --no-fail-fast --lib -- \
            esp:: ah:: eesp:: template:: testkit:: runner:: scheduler:: tests::asynchronous:: >>"$log" 2>&1
        ran=$?
        for scheduler in run-to-completion pipeline async; do
            [ "$scheduler" = "$WEIR_SCHEDULER" ] || WEIR_ENGINE=$engine WEIR_SCHEDULER=$scheduler cargo test \
                --workspace --exclude weir-lab-ike --locked --no-fail-fast --lib -- runner:: >>"$log" 2>&1 || ran=1
        done
        WEIR_ENGINE=$engine cargo test --workspace --locked --no-fail-fast --test stress >>"$log" 2>&1 || ran=1
        read -r p f <<<"$(awk '/^test result:/ { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log")"
        passed=$((passed + p)) failed=$((failed + f))
        while read -r name; do failures+=("$engine: $name"); done < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log")
        # It did not build, or a test ended its process: no line counts that.
        [ $((built + ran)) -eq 0 ] || [ "$f" -gt 0 ] || fail "engine $engine: ended with status $built and $ran"
        echo "== $p passed, $f failed"
    done
    # A scheduler that is forced for everything applies to the suites, too.
    if [ -n "$forced" ]; then WEIR_SCHEDULER=$forced; else unset WEIR_SCHEDULER; fi
    echo "== all in $((SECONDS - started)) s"
}

# The GPU engine with its features, which nothing else is built with. PoCL runs the kernel on the
# CPU; what has neither PoCL nor a GPU is skipped with the reason, which may follow the name of the
# test on one line. With WEIR_NVRTC the kernel is compiled for CUDA, too.
gpu_tests() {
    local started=$SECONDS status p f s
    say "GPU engine"
    # The whole workspace is named so that nothing else is built again.
    POCL_CACHE_DIR=${CARGO_TARGET_DIR:-$PWD/target}/pocl cargo test --workspace --locked --no-fail-fast \
        --features weir-gpu/opencl,weir-gpu/cuda --test device ${WEIR_NVRTC:+--test kernel} \
        -- --nocapture ${WEIR_NVRTC:+--include-ignored} >"$log" 2>&1
    status=$?
    sed -n 's/.*skipped: //p' "$log" | sort | uniq -c
    read -r p f <<<"$(awk '/^test result:/ { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log")"
    s=$(grep -c 'skipped: ' "$log")
    passed=$((passed + p - s)) failed=$((failed + f)) skipped=$((skipped + s))
    while read -r name; do failures+=("$name"); done < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log")
    [ "$status" -eq 0 ] || [ "$f" -gt 0 ] || fail "GPU engine: ended with status $status"
    echo "== $((p - s)) passed, $f failed, $s skipped in $((SECONDS - started)) s"
}

# Suites wait more than they work, so three lanes of them run at a time, each in this order. What
# has its own strongSwan shares a lane.
lanes=("linux daemon psp libreswan" "report lab openiked vpnc leak package" "strongswan swanctl ike pki web")
lane_pids=()

# Runs the suites of these scripts one after the other; what they print and how they end goes to
# $outputs.
lane() {
    local script name started status
    for script in "$@"; do
        name=$(basename "$(dirname "$script")") started=$SECONDS
        timeout -k 20 "$SUITE_SECONDS" "$script" </dev/null >"$outputs/$name" 2>&1
        status=$?
        echo "$status $((SECONDS - started))" >"$outputs/$name.part"
        mv "$outputs/$name.part" "$outputs/$name.end"
    done
}

# Starts the suites whose folders are named, in lanes, and counts them in order.
suites() {
    local wanted=" $* " all=() scripts=() script name line
    for script in testing/interop/*/run.sh; do
        name=$(basename "$(dirname "$script")")
        if [ -x "$script" ] && { [ $# -eq 0 ] || [[ $wanted == *" $name "* ]]; }; then all+=("$script"); fi
    done
    # The first lane begins with whatever is in none.
    for script in "${all[@]}"; do
        name=$(basename "$(dirname "$script")")
        [[ " ${lanes[*]} " == *" $name "* ]] || scripts+=("$script")
    done
    for line in "${lanes[@]}"; do
        for name in $line; do
            script=testing/interop/$name/run.sh
            [[ " ${all[*]} " != *" $script "* ]] || scripts+=("$script")
        done
        lane "${scripts[@]}" &
        lane_pids+=($!)
        scripts=()
    done
    for script in "${all[@]}"; do count_suite "$(basename "$(dirname "$script")")"; done
}

# On a machine for continuous integration: what is wrong with the text of the program is found in
# the time that the suites leave over.
lint_pid=
start_lint() {
    # It has the build folder for as long as it builds. What is wrong with the peer of the suite
    # psp, the suite says.
    if CARGO_TARGET_DIR=$target cargo build --quiet --locked --manifest-path testing/peers/psp/Cargo.toml 2>/dev/null; then
        export WEIR_PSP_PEER=$target/debug/weir-psp-peer
    fi
    # The unit tests are made with all examples.
    [ ! -x "$target/debug/examples/vici-server" ] || export WEIR_VICI_SERVER=$target/debug/examples/vici-server
    with_status lint nice -n 19 sh -c 'scripts/setup.sh lint && exec scripts/lint.sh' >"$outputs/lint.out" 2>&1 &
    lint_pid=$!
    lane_pids+=("$lint_pid")
}
end_lint() {
    local status
    say "lint"
    status_of lint "$lint_pid"
    status=$?
    cat "$outputs/lint.out"
    if [ "$status" -eq 0 ]; then passed=$((passed + 1)); else fail "lint: ended with status $status"; fi
}

# Whether a suite may still be running.
lanes_go_on() {
    local pid
    for pid in "${lane_pids[@]}"; do kill -0 "$pid" 2>/dev/null && return 0; done
    return 1
}

# Waits for a suite, shows what it printed and adds up its cases.
count_suite() {
    local name=$1 status seconds p f s
    say "$name"
    until [ -e "$outputs/$name.end" ]; do
        lanes_go_on || [ -e "$outputs/$name.end" ] || { fail "$name: its lane ended before it" && return; }
        sleep 0.2
    done
    read -r status seconds <"$outputs/$name.end"
    tee "$log" <"$outputs/$name"
    p=$(count '^PASS ') f=$(count '^FAIL ') s=$(count '^SKIP ')
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    while read -r line; do
        failures+=("$name: $line")
        suspects+=("$name ${line%%:*}")
        # A second attempt proves nothing about clear text, nor about cases that did not run.
        [[ $line != *"in the clear"* && $line != *"without protection"* ]] || final=1
    done < <(sed -n 's/^FAIL //p' "$log")
    if [ "$name" = leak ] && [ "$f" -gt 0 ] || grep -q '^Traceback' "$log"; then final=1; fi
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        fail "$name: not finished after $SUITE_SECONDS s"
    elif [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then
        fail "$name: ended with status $status"
    elif [ $((p + f + s)) -eq 0 ]; then
        fail "$name: reported no case"
    fi
    echo "== $p passed, $f failed, $s skipped in $seconds s"
}

# Runs failed cases of suites once more when nothing else runs: beside other lanes and the lint, a
# case may have waited longer for a processor than its patience. A case that passes alone is counted
# as passed and listed as unstable, which is a finding to look into. Nothing has a second attempt
# when clear text leaked or a suite ended early (`final`), or when many cases failed: the machine is
# not the reason then.
suspects=() unstable=() final=
confirm() {
    local suspect name case short seconds=$SECONDS kept=() line status
    [ -z "$final" ] && [ ${#suspects[@]} -gt 0 ] && [ ${#suspects[@]} -le 3 ] || return 0
    for suspect in "${suspects[@]}"; do
        name=${suspect%% *} case=${suspect#* }
        # A scenario has a case for each initiator, and for each release of the peer.
        short=${case#*/} short=${short%-newest} short=${short%-6.0} short=${short%-by-weir} short=${short%-by-peer}
        say "$case once more, alone"
        timeout -k 20 "$SUITE_SECONDS" "testing/interop/$name/run.sh" "$short" </dev/null >"$log" 2>&1
        status=$?
        cat "$log"
        if [ "$status" -ne 0 ] || grep -q "^FAIL " "$log" || ! grep -q "^PASS $case\($\| \|:\)" "$log"; then continue; fi
        kept=()
        for line in "${failures[@]}"; do
            if [[ $line == "$name: $case:"* ]]; then unstable+=("$line"); else kept+=("$line"); fi
        done
        failures=(${kept[@]+"${kept[@]}"})
        failed=$((failed - 1)) passed=$((passed + 1))
    done
    echo "== in $((SECONDS - seconds)) s"
}

# The newest strongSwan (Debian 12's has neither per-CPU SAs nor ML-KEM), made while everything else
# is built.
peer_root=${CARGO_TARGET_DIR:-$PWD/target}/peers/forky
if [ -z "${STRONGSWAN_ROOT:-}" ] && [ "$(id -u)" -eq 0 ] && command -v debootstrap >/dev/null; then
    mkdir -p "${peer_root%/*}"
    with_status forky scripts/peer-root.sh forky "$peer_root" >/dev/null 2>&1 &
    peer_pid=$!
fi
# The last one with IKEv1: Debian's 6.1 is built without it.
v1_root=${peer_root%/*}/trixie-strongswan
if [ -z "${STRONGSWAN_V1_ROOT:-}" ] && [ "$(id -u)" -eq 0 ] && command -v debootstrap >/dev/null; then
    mkdir -p "${v1_root%/*}"
    with_status trixie-strongswan scripts/peer-root.sh trixie "$v1_root" >/dev/null 2>&1 &
    v1_pid=$!
fi
# libreswan and OpenIKED, too. Their suites take the folder from here, or are skipped.
ike_pid=
if [ -z "${IKE_PEERS_ROOT:-}" ]; then
    export IKE_PEERS_ROOT=${peer_root%/*}/trixie
    if [ "$(id -u)" -eq 0 ] && command -v debootstrap >/dev/null; then
        mkdir -p "${peer_root%/*}"
        with_status trixie scripts/peer-root.sh trixie "$IKE_PEERS_ROOT" libreswan-openiked >/dev/null 2>&1 &
        ike_pid=$!
    fi
fi

# The suites use the binary of the unit tests, with overflow and debug assertions on. Tests of a
# whole workspace share features of dependencies that the binary by itself would be built without:
# it is built alone only when they do not run.
binary=(cargo build --locked --package weir)
if [ $# -eq 0 ]; then
    unit_tests
    engine_tests
    gpu_tests
    binary=(cargo test --workspace --locked --no-run --quiet)
fi

say "binary for the suites"
if "${binary[@]}"; then
    target=$(cargo metadata --no-deps --locked --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
    export WEIR="${WEIR:-$target/debug/weir}"
    # Without it the cases that need it are skipped, and say so.
    if [ -n "$peer_pid" ] && status_of forky "$peer_pid"; then export STRONGSWAN_ROOT=$peer_root; fi
    if [ -n "$v1_pid" ] && status_of trixie-strongswan "$v1_pid"; then export STRONGSWAN_V1_ROOT=$v1_root; fi
    [ -z "$ike_pid" ] || status_of trixie "$ike_pid" || true
    peer_pid='' v1_pid='' ike_pid=''
    if [ "${CI:-}" = true ] && [ $# -eq 0 ]; then start_lint; fi
    suites "$@"
    [ -z "$lint_pid" ] || end_lint
    # All are counted; the shell may have forgotten one whose number another process has by now.
    wait "${lane_pids[@]}" 2>/dev/null
    lane_pids=()
    confirm
else
    fail "cargo build: weir"
fi

echo
for name in ${unstable[@]+"${unstable[@]}"}; do echo "unstable, passed alone: $name"; done
for name in ${failures[@]+"${failures[@]}"}; do echo "failed: $name"; done
echo "took $SECONDS s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
