#!/usr/bin/env bash
# Formatting, clippy, documentation, dependency rules. Silent checks, one line each; the first failure ends it.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"

step() { printf 'lint: %s\n' "$*" >&2; }

step "formatting"
cargo fmt --all --check
step "shell scripts"
for script in .ci/run scripts/*.sh testing/interop/*/run.sh testing/interop/lib/*.sh; do
    [ -e "$script" ] || continue
    bash -n "$script"
done
step "text"
scripts/check-text.sh
step "clippy"
cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
step "documentation"
# The documentation is for those who work on Weir: private items are in it, and may be linked.
RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --workspace --no-deps --document-private-items --locked --quiet
if cargo deny --version >/dev/null 2>&1; then
    step "licences and bans"
    cargo deny --log-level error check licenses bans sources
    step "advisories"
    if ! advice=$(cargo deny --log-level error check advisories 2>&1); then
        [[ $advice == *"failed to fetch advisory database"* ]] || { echo "$advice" >&2 && exit 1; }
        step "skipped: the advisory database cannot be fetched from here"
    fi
else
    step "skipped: cargo-deny is not installed (cargo install --locked cargo-deny)"
fi
step "clean"
