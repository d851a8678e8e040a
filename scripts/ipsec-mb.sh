#!/usr/bin/env bash
# Installs the static library of intel-ipsec-mb that builds link (docs/decisions/0010) into
# target/ipsec-mb: one second, and nothing when it is installed. x86-64 Linux only.
#
# crates/crypto/build/ipsec-mb.pin names Debian's package and its hash, so that all builds of a
# commit link the same bytes. Where the package cannot be downloaded, this ends with a notice and
# status 0, and a build links the version in /usr/local or /usr, or none. WEIR_IPSEC_MB in the
# environment selects another library: nothing is installed. DEBIAN_MIRRORS has other mirrors to try
# in order, `--prefix DIR` is another place.
set -euo pipefail
cd "$(dirname "$0")/.."
pin=crates/crypto/build/ipsec-mb.pin
value() { sed -n "s/^$1=//p" "$pin"; }
version=$(value version) package=$(value package) sha256=$(value sha256)
prefix=$PWD/target/ipsec-mb
if [ "${1:-}" = --prefix ]; then prefix=$2; fi
say() { printf 'ipsec-mb: %s\n' "$*" >&2; }

if [ -n "${WEIR_IPSEC_MB:-}" ]; then exit 0; fi
if [ "$(uname -s) $(uname -m)" != "Linux x86_64" ]; then exit 0; fi
if [ "$(cat "$prefix/sha256" 2>/dev/null)" = "$sha256" ]; then exit 0; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The first mirror removes a package when a later version replaces it; the archive keeps all.
why=
pool=pool/main/i/intel-ipsec-mb/$package
for mirror in ${DEBIAN_MIRRORS:-http://deb.debian.org/debian http://snapshot.debian.org/archive/debian/20261120T000000Z}; do
    url=$mirror/$pool
    curl --fail --silent --show-error --location --connect-timeout 5 --max-time 120 --retry 1 \
        "$url" -o "$work/package.deb" 2>"$work/error" || { why+=" $url: $(tail -n 1 "$work/error");" && continue; }
    found=$(sha256sum <"$work/package.deb")
    if [ "${found%% *}" = "$sha256" ]; then why= && break; fi
    why+=" $url: SHA-256 ${found%% *} instead of $sha256;"
done
if [ -n "$why" ]; then
    say "intel-ipsec-mb $version is not installed:${why%;}"
    say "a build links the version in /usr/local or /usr (1.3 of Debian 12), or none; to choose: WEIR_IPSEC_MB=PREFIX"
    exit 0
fi

# A Debian package is an ar archive; without dpkg it is unpacked as one.
mkdir "$work/files"
if command -v dpkg-deb >/dev/null; then
    dpkg-deb --fsys-tarfile "$work/package.deb" | tar -x -C "$work/files"
else
    (cd "$work" && ar x package.deb && tar -x -f data.tar.* -C files)
fi
new=$prefix.$$
trap 'rm -rf "$work" "$new"' EXIT
mkdir -p "$new/include" "$new/lib"
cp "$work/files/usr/include/intel-ipsec-mb.h" "$new/include/"
cp "$work/files/usr/lib/x86_64-linux-gnu/libIPSec_MB.a" "$new/lib/"
cp "$work/files/usr/share/doc/libipsec-mb-dev/copyright" "$new/"
cp "$work/package.deb" "$new/$package"
echo "$sha256" >"$new/sha256"
rm -rf "$prefix"
mv -T "$new" "$prefix"
# Cargo runs the build script again when this file is newer.
if [ "$prefix" = "$PWD/target/ipsec-mb" ]; then touch "$pin"; fi
say "installed intel-ipsec-mb $version in ${prefix#"$PWD"/}"
