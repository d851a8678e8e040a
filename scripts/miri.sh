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
miri() { cargo +nightly miri test --locked --quiet "$@" --skip neighbouring_flows_spread; }
miri --package weir-dataplane --lib -- packet:: cache:: hold:: packets_left_in_a_slot \
    asynchronous::a_failed_port asynchronous::of_two_copies
miri --package weir-crypto --lib -- offload:: accelerator::simulated::
# Each seed is another order of the threads.
MIRIFLAGS="$MIRIFLAGS -Zmiri-many-seeds=0..8" miri --package weir-dataplane --lib -- scheduler::
miri --package weir-ports --lib -- memory:: mmsg::
miri --package weir-wire --lib --
