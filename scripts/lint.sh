#!/usr/bin/env bash
# Formatting, clippy, documentation, dependency rules. Silent checks, one line each; the first
# failure ends it.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"

step() { printf 'lint: %s\n' "$*" >&2; }

step "formatting"
cargo fmt --all --check
step "shell scripts"
for script in .ci/run packaging/deb/p* scripts/*.sh testing/interop/*/run.sh testing/interop/lib/*.sh; do
    [ -e "$script" ] || continue
    bash -n "$script"
done
step "text"
scripts/check-text.sh
step "documents"
scripts/check-docs.py
scripts/gpu-results.py --check
scripts/results.py --check
# The site has anchors and pages that no check of the sources sees. mdbook takes minutes to build.
if command -v mdbook >/dev/null; then
    step "site"
    scripts/docs.sh
else
    step "site skipped: mdbook is missing: scripts/setup.sh docs"
fi
step "clippy"
cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
# The binary of the package weir. Only that crate has default features, so that nothing else is
# built again.
cargo clippy --workspace --no-default-features --locked --quiet -- -D warnings
# Features that are off by default everywhere.
cargo clippy --workspace --all-targets --features weir-gpu/opencl,weir-gpu/cuda --locked --quiet -- -D warnings
step "documentation"
# The documentation is for those who work on Weir: private items are in it, and may be linked.
RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --workspace --no-deps --document-private-items --locked --quiet
step "fuzz targets"
# A separate package, with nightly only for its instrumentation: any compiler can check it.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target} cargo check --manifest-path fuzz/Cargo.toml --locked --quiet --lib --bins --examples
step "unused dependencies"
scripts/check-deps.sh
step "licences, bans, sources"
command -v cargo-deny >/dev/null || { echo "lint: cargo-deny is missing: scripts/setup.sh lint" >&2 && exit 1; }
cargo deny --log-level error check licenses bans sources
step "advisories"
# The database is a git repository on GitHub. Where that cannot be reached, a copy fetched less than
# 90 days ago serves.
if ! advice=$(cargo deny --log-level error check advisories 2>&1); then
    [[ $advice == *"failed to fetch advisory database"* ]] || { echo "$advice" >&2 && exit 1; }
    if ! advice=$(cargo deny --offline --log-level error check advisories 2>&1); then
        [[ $advice == *"failed to get 'FETCH_HEAD' metadata"* || $advice == *stale* ]] || { echo "$advice" >&2 && exit 1; }
        step "advisories skipped: https://github.com/RustSec/advisory-db cannot be fetched from here, and no recent copy is here"
    fi
fi
step "clean"
