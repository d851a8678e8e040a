#!/usr/bin/env bash
# Builds the rivals that Debian does not have: wireguard-go from the Go module proxy, boringtun from
# crates.io. Versions and checksums are pinned; the build stops when what was downloaded is
# something else. `weir lab subjects` finds them in target/rivals, or in the folder that WEIR_RIVALS
# names. Needs go 1.23 and cargo.
#
#     scripts/rivals.sh                 # into target/rivals
#     scripts/rivals.sh /opt/rivals
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/local/go/bin"
export PATH

wireguard=golang.zx2c4.com/wireguard
wireguard_version=v0.0.0-20260522210424-ecfc5a8d5446
wireguard_sum=h1:cqHQ3AycTHvM2R7ikgyX57D+XvtcSnGylsLkOVhta/w=
boringtun_version=0.7.1
boringtun_sha256=5957811aef42617eab3d286faf823ad83a66573a45136c5bca276d674141fcc5

say() { printf 'rivals: %s\n' "$*" >&2; }
target=$(cargo metadata --no-deps --locked --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
out=${1:-$target/rivals}
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'chmod -R u+w "$work" && rm -rf --one-file-system "$work"' EXIT
failed=0

build_wireguard() {
    command -v go >/dev/null || { say "wireguard-go: please install go (Debian: golang-go from backports)" && return 1; }
    export GOPATH=$work/go GOBIN=$work/bin GOFLAGS=-trimpath CGO_ENABLED=0
    local listing
    listing=$(cd "$work" && go mod download -json "$wireguard@$wireguard_version") || return 1
    # The checksum database has agreed already, unless it was turned off.
    grep -qF "\"Sum\": \"$wireguard_sum\"" <<<"$listing" || { say "wireguard-go: checksum differs from $wireguard_sum" && return 1; }
    (cd "$work" && go install "$wireguard@$wireguard_version") || return 1
    install -m 755 "$work/bin/wireguard" "$out/wireguard-go"
}

build_boringtun() {
    export CARGO_TARGET_DIR=$work/target
    cargo install --quiet --locked --version "=$boringtun_version" --root "$work" boringtun-cli || return 1
    local archive
    archive=$(find "${CARGO_HOME:-$HOME/.cargo}/registry/cache" -name "boringtun-cli-$boringtun_version.crate" | head -n 1)
    echo "$boringtun_sha256  $archive" | sha256sum --check --quiet || { say "boringtun: checksum differs" && return 1; }
    install -m 755 "$work/bin/boringtun-cli" "$out/boringtun-cli"
}

for rival in wireguard boringtun; do
    say "$rival"
    # In a separate shell: what one sets, the other does not see.
    if ! (build_"$rival"); then
        say "$rival was not built"
        failed=1
    fi
done
say "in $out: $(ls "$out" | tr '\n' ' ')"
exit "$failed"
