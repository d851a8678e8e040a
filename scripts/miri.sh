#!/usr/bin/env bash
# Runs under Miri what works on packet memory, headers and messages from the kernel, and what passes
# packets between threads: undefined behaviour, a read beyond a buffer, a data race or a leak ends
# it. What calls the kernel or a library of ciphers is left out: Miri interprets Rust alone, so the
# tests of accelerators use AES-CCM there, which is Rust. Takes half an hour or more, AWS-LC to be
# compiled once more included.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
export PATH
command -v rustup >/dev/null || { echo "skipped: Miri is installed with rustup, which is not there"; exit 0; }
if ! rustup component list --toolchain nightly 2>/dev/null | grep -q '^miri.*installed'; then
    rustup toolchain install nightly --profile minimal --component miri --component rust-src --no-self-update >&2 || {
        echo "skipped: Rust nightly with Miri cannot be installed here"
        exit 0
    }
fi
# Property tests read a file of earlier failures, and a hundred cases take an hour here. Tests that
# hash thousands of flows say nothing of memory.
export MIRIFLAGS="${MIRIFLAGS:--Zmiri-disable-isolation}" PROPTEST_CASES="${PROPTEST_CASES:-2}"
# intel-ipsec-mb is C as well.
export WEIR_IPSEC_MB=off
# Tests of a package whose names have one of the filters; all without any. Of a filter that matches
# no test nothing would run, and it would pass.
miri() {
    local package=$1 names filter
    shift
    names=$(cargo +nightly miri test --locked --quiet --package "$package" --lib -- --list)
    for filter in '' "$@"; do
        grep -q -- "$filter.*: test\$" <<<"$names" || { echo "$package has no test '$filter'" >&2 && exit 1; }
    done
    cargo +nightly miri test --locked --quiet --package "$package" --lib -- "$@" --skip neighbouring_flows_spread
}
miri weir-dataplane packet:: cache:: hold:: packets_left_in_a_slot \
    asynchronous::a_failed_port asynchronous::of_two_copies
miri weir-crypto offload:: accelerator::simulated::
# Each seed is another order of the threads.
MIRIFLAGS="$MIRIFLAGS -Zmiri-many-seeds=0..8" miri weir-dataplane scheduler::
miri weir-ports memory:: mmsg::
miri weir-wire
