#!/usr/bin/env bash
# Checks that every dependency in a Cargo.toml is used by the Rust files of its package: below src/
# for `[dependencies]`, in build.rs for `[build-dependencies]`, in tests, benches and examples as
# well for `[dev-dependencies]`. A dependency in `[workspace.dependencies]` must occur in the
# Cargo.toml of a member. testing/peers/psp is excluded, because it lists packages for their
# features.
set -euo pipefail
cd "$(dirname "$0")/.."
shopt -s nullglob

# Packages whose library has another name.
library() {
    case $1 in
    md-5) echo md5 ;;
    perf-event2) echo perf_event ;;
    *) echo "${1//-/_}" ;;
    esac
}

# "SECTION NAME" for each dependency of a manifest.
dependencies() {
    awk '
        /^\[/ { section = match($0, /(workspace\.|dev-|build-)?dependencies\]$/) ? substr($0, RSTART, RLENGTH - 1) : ""; next }
        section != "" && match($0, /^[A-Za-z0-9_-]+/) { print section, substr($0, 1, RLENGTH) }
    ' "$1"
}

unused=0
members=(crates/*/Cargo.toml testing/sim/Cargo.toml)
for manifest in Cargo.toml "${members[@]}" fuzz/Cargo.toml; do
    folder=${manifest%Cargo.toml}
    # A library may be made of the sources of another package.
    sources=$(sed -n '/^\[lib\]/,/^\[[^l]/s|^path = "\(.*\)/lib\.rs"$|\1|p' "$manifest")
    while read -r section name; do
        case $section in
        workspace.dependencies)
            grep -qE "^$name(\.workspace| *= *\{.*workspace *= *true)" "${members[@]}" && continue
            ;;
        *)
            places=("$folder${sources:-src}")
            case $section in
            build-*) places=("$folder"build.r[s]) ;;
            dev-*) places+=("$folder"{test,benche,example}[s]) ;;
            esac
            [ "$folder" != fuzz/ ] || places+=(fuzz/fuzz_targets)
            # As a path, an import or a macro: a bare word may be a variable, as `bytes` often is.
            crate=$(library "$name")
            used="(^|[^[:alnum:]_])($crate(::|!)|(use|extern crate) $crate( as|;))"
            grep -rqE --include='*.rs' "$used" "${places[@]}" && continue
            ;;
        esac
        echo "check-deps: $manifest: [$section]: '$name' is not used; remove it" >&2
        unused=1
    done < <(dependencies "$manifest")
done
exit $unused
