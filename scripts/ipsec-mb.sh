#!/usr/bin/env bash
# Installs the static library of intel-ipsec-mb that builds link (docs/decisions/0010) into
# target/ipsec-mb: one second, and nothing when it is installed. x86-64 Linux only.
#
# crates/crypto/build/ipsec-mb.pin names Debian's package and its hash, so that all builds of a
# commit link the same bytes. Where the package cannot be downloaded or unpacked, this ends with a
# notice and status 0, and a build links the version in /usr/local or /usr, or none; with
# WEIR_IPSEC_MB=require the status is 1. With another value than `auto` and `require` a build uses
# another library: nothing is installed. DEBIAN_MIRRORS has other mirrors to try in order,
# `--prefix DIR` is another place. Another version there is removed first.
set -euo pipefail
cd "$(dirname "$0")/.."
pin=crates/crypto/build/ipsec-mb.pin
value() { sed -n "s/^$1=//p" "$pin"; }
version=$(value version) package=$(value package) sha256=$(value sha256)
prefix=$PWD/target/ipsec-mb
if [ "${1:-}" = --prefix ]; then prefix=$2; fi
say() { printf 'ipsec-mb: %s\n' "$*" >&2; }
failed=0
case ${WEIR_IPSEC_MB:-} in
'' | auto) ;;
require) failed=1 ;;
*) exit 0 ;;
esac
if [ "$(uname -s) $(uname -m)" != "Linux x86_64" ]; then exit 0; fi

# Two of these at the same time would remove each other's files.
mkdir -p target
exec 9>target/.ipsec-mb.lock
flock 9
if [ "$(cat "$prefix/sha256" 2>/dev/null)" = "$sha256" ]; then exit 0; fi
missing() {
    say "intel-ipsec-mb $version is not installed: $*"
    say "a build links the version in /usr/local or /usr (1.3 of Debian 12), or none; to choose: WEIR_IPSEC_MB=PREFIX"
    exit "$failed"
}
if [ -e "$prefix" ] && [ "$prefix" != "$PWD/target/ipsec-mb" ] && [ ! -e "$prefix/sha256" ]; then
    missing "$prefix is not an installation of this script"
fi
# A failed download must not leave a library that is not the pinned one.
rm -rf "$prefix"

work=$(mktemp -d)
new=$prefix.$$
trap 'rm -rf "$work" "$new"' EXIT
# The first mirror removes a package when a later version replaces it; the archive keeps all.
why='' found=''
pool=pool/main/i/intel-ipsec-mb/$package
for mirror in ${DEBIAN_MIRRORS:-http://deb.debian.org/debian http://snapshot.debian.org/archive/debian/20261120T000000Z}; do
    url=$mirror/$pool
    curl --fail --silent --show-error --location --connect-timeout 5 --max-time 120 --retry 1 \
        "$url" -o "$work/package.deb" 2>"$work/error" || { why+=" $url: $(tail -n 1 "$work/error");" && continue; }
    found=$(sha256sum <"$work/package.deb")
    found=${found%% *}
    if [ "$found" = "$sha256" ]; then break; fi
    why+=" $url: SHA-256 $found instead of $sha256;"
done
if [ "$found" != "$sha256" ]; then
    why=${why:- DEBIAN_MIRRORS is blank}
    why=${why# }
    missing "${why%;}"
fi

# A Debian package is an ar archive; without dpkg it is unpacked as one.
unpack() {
    mkdir -p "$work/files" "$new/include" "$new/lib" || return
    if command -v dpkg-deb >/dev/null; then
        dpkg-deb --fsys-tarfile "$work/package.deb" | tar -x -C "$work/files" || return
    else
        (cd "$work" && ar x package.deb && tar -x -f data.tar.* -C files) || return
    fi
    cp "$work/files/usr/include/intel-ipsec-mb.h" "$new/include/" &&
        cp "$work/files/usr/lib/x86_64-linux-gnu/libIPSec_MB.a" "$new/lib/" &&
        cp "$work/files/usr/share/doc/libipsec-mb-dev/copyright" "$new/" &&
        cp "$work/package.deb" "$new/$package" &&
        echo "$sha256" >"$new/sha256" &&
        mv -T "$new" "$prefix"
}
if ! unpack 2>"$work/error"; then missing "$package: $(tail -n 1 "$work/error")"; fi
# Cargo runs the build script again when this file is newer.
if [ "$prefix" = "$PWD/target/ipsec-mb" ]; then touch "$pin"; fi
say "installed intel-ipsec-mb $version in ${prefix#"$PWD"/}"
