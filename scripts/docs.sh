#!/usr/bin/env bash
# Renders docs/ as a site with mdbook: target/book/index.html. Then checks every relative link of
# the site. WEIR_SOURCE_URL is the address of the repository for links that leave docs/.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
command -v mdbook >/dev/null || { echo "docs: mdbook is missing: scripts/setup.sh docs" >&2 && exit 1; }

target=${CARGO_TARGET_DIR:-$PWD/target}
scripts/check-docs.py
scripts/stage-docs.py "$target/book-source"
mdbook build "$target/book-source" --dest-dir "$target/book" >"$target/book.log" 2>&1 || { cat "$target/book.log" >&2 && exit 1; }
scripts/check-docs.py --site "$target/book"
echo "docs: $target/book/index.html" >&2
