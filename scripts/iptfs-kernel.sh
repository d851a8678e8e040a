#!/usr/bin/env bash
# Builds the kernel that the scenarios iptfs-linux* of testing/interop/strongswan have as peer: User
# Mode Linux, an ordinary process, with IP-TFS (CONFIG_XFRM_IPTFS), which no kernel of Debian has.
# The result is target/uml/linux.uml.iptfs, 7 MB; nothing is done when it is there.
#
#     scripts/iptfs-kernel.sh           # 10 minutes on two cores, 164 MB to download, 4 GB of space
#     JOBS=1 nice scripts/iptfs-kernel.sh
#
# The source is Debian's package linux-source-7.2 (forky), pinned by its hash. An interrupted build
# continues; the source and its objects are removed when the kernel is complete. DEBIAN_MIRRORS has
# other mirrors to try in order. `make test` uses the kernel where it exists and builds none.
set -euo pipefail
cd "$(dirname "$0")/.."
version=7.2.12-1
package=linux-source-7.2_${version}_all.deb
sha256=6ea01e48037651b01076e4a369d1c76051c97c3cce6f87d48b7f3a9f5fac46a8
source=linux-source-7.2
# Absolute, because the build runs in another folder.
folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/uml
kernel=$folder/linux.uml.iptfs
jobs=${JOBS:-$(nproc)}

# Everything is built in: there is no place to load modules from.
options=(NET INET IPV6 UNIX PACKET TUN VETH DUMMY NAMESPACES NET_NS IP_ADVANCED_ROUTER
    IP_MULTIPLE_TABLES IPV6_MULTIPLE_TABLES
    HOSTFS TMPFS DEVTMPFS UNIX98_PTYS UML_NET_VECTOR
    XFRM XFRM_USER XFRM_STATISTICS XFRM_IPTFS INET_ESP INET6_ESP NET_KEY
    CRYPTO CRYPTO_AES CRYPTO_GCM CRYPTO_CTR CRYPTO_CBC CRYPTO_HMAC CRYPTO_SHA1
    CRYPTO_SHA256 CRYPTO_SHA512 CRYPTO_CHACHA20POLY1305 CRYPTO_NULL CRYPTO_ECHAINIV CRYPTO_SEQIV
    CRYPTO_AUTHENC)

say() { printf 'iptfs-kernel: %s\n' "$*" >&2; }
stop() { say "$*" && exit 1; }
if [ "$(uname -s) $(uname -m)" != "Linux x86_64" ]; then stop "this kernel is for x86-64 Linux"; fi

# Two of these at the same time would use one folder.
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock -n 9 || { say "waiting for another run" && flock 9; }
built_from=$(echo "$version ${options[*]}" | sha256sum)
if [ -x "$kernel" ] && [ "$(cat "$kernel.from" 2>/dev/null)" = "$built_from" ]; then
    say "$kernel is up to date"
    exit 0
fi

missing=()
for tool in bc bison cc curl dpkg-deb flex make perl strip xz; do
    command -v "$tool" >/dev/null || missing+=("$tool")
done
[ ${#missing[@]} -eq 0 ] || stop "missing: ${missing[*]}; scripts/setup.sh iptfs-kernel installs what a build needs"

# The first mirror removes a package when a later version replaces it; the archive keeps all.
download() {
    local mirror url found
    for mirror in ${DEBIAN_MIRRORS:-http://deb.debian.org/debian http://snapshot.debian.org/archive/debian/20261125T000000Z}; do
        url=$mirror/pool/main/l/linux/$package
        say "downloading $url (164 MB)"
        curl --fail --silent --show-error --location --connect-timeout 10 --retry 2 --output "$folder/$package.part" "$url" || continue
        found=$(sha256sum <"$folder/$package.part")
        if [ "${found%% *}" = "$sha256" ]; then
            mv "$folder/$package.part" "$folder/$package"
            return
        fi
        say "$url: SHA-256 ${found%% *} instead of $sha256"
    done
    rm -f "$folder/$package.part"
    stop "no mirror has $package"
}

tree=$folder/$source-$version
if [ ! -d "$tree" ]; then
    [ -e "$folder/$package" ] || download
    say "unpacking"
    rm -rf "$folder/unpacked"
    mkdir -p "$folder/unpacked"
    dpkg-deb --fsys-tarfile "$folder/$package" | tar -x -O "./usr/src/$source.tar.xz" |
        tar -x -J -C "$folder/unpacked" --strip-components=1
    mv "$folder/unpacked" "$tree"
fi

# A name and a time that are the same on every machine.
export ARCH=um KBUILD_BUILD_USER=weir KBUILD_BUILD_HOST=weir KBUILD_BUILD_TIMESTAMP=2026-11-20
unset CONFIG_ CDPATH MAKEFLAGS
cd "$tree"
say "configuring"
make defconfig >"$folder/build.log" 2>&1 || stop "failed: $folder/build.log"
# No debug information and no file system of a disk: half of the time of the build.
for option in MODULES DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT EXT4_FS; do scripts/config --disable "$option"; done
scripts/config --enable DEBUG_INFO_NONE
for option in "${options[@]}"; do scripts/config --enable "$option"; done
make olddefconfig >>"$folder/build.log" 2>&1 || stop "failed: $folder/build.log"
for option in "${options[@]}"; do
    grep -qx "CONFIG_$option=y" .config || stop "this source has no option $option, or not with the others"
done

say "building with $jobs jobs (log: $folder/build.log)"
make -j"$jobs" linux >>"$folder/build.log" 2>&1 9>&- &
build=$!
trap 'kill "$build" 2>/dev/null; wait "$build" 2>/dev/null' EXIT
began=$SECONDS said=$SECONDS
while kill -0 "$build" 2>/dev/null; do
    sleep 1
    if [ $((SECONDS - said)) -ge 60 ]; then
        said=$SECONDS
        say "$(grep -c '^  CC ' "$folder/build.log") files compiled in $(((SECONDS - began) / 60)) min"
    fi
done
if ! wait "$build"; then
    grep -m 5 -iE 'error|No such file' "$folder/build.log" >&2
    stop "failed: $folder/build.log"
fi
trap - EXIT
# It has its name when it is complete.
strip -o "$kernel.part" linux
rm -f "$kernel.from"
mv "$kernel.part" "$kernel"
echo "$built_from" >"$kernel.from"
cd "$folder"
rm -rf "$tree" "${folder:?}/$package"
say "done: $kernel, $(du -h "$kernel" | cut -f1), built in $(((SECONDS - began + 59) / 60)) min"
