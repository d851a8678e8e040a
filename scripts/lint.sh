#!/usr/bin/env bash
# Formatting, clippy, documentation, dependency rules. Silent checks, one line each; the first failure ends it.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"

step() { printf 'lint: %s\n' "$*" >&2; }

step "formatting"
cargo fmt --all --check
step "shell scripts"
for script in .ci/run scripts/*.sh testing/interop/*/run.sh; do
    [ -e "$script" ] || continue
    bash -n "$script"
done
step "text"
scripts/check-text.sh
step "clippy"
cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
if cargo deny --version >/dev/null 2>&1; then
    step "licences, bans and advisories"
    cargo deny --log-level error check
else
    step "skipped: cargo-deny is not installed (cargo install --locked cargo-deny)"
fi
step "clean"
