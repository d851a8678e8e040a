#!/bin/sh
# Runs cargo with the pinned toolchain, also right after an installation that the calling shell has
# not noticed.
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
export PATH
exec cargo "$@"
