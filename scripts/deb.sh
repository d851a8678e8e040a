#!/usr/bin/env bash
# Debian packages weir, weir-lab and their debug symbols, in target/deb. Reproducible: the same
# commit, toolchain and Debian give the same bytes, in any folder.
#
#     make deb
#     scripts/deb.sh --binary FILE [--lab FILE] [--version V] [--out DIR]    # of existing binaries
#
# --binary is the gateway; it needs no lab (cargo build --no-default-features --features top). --lab
# has both and becomes weir-lab. The last of them writes the manual pages (feature `pages`).
# DEBFULLNAME and DEBEMAIL name the maintainer.
# DEB_COMPRESSION="-Zgzip -z1" is fast.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"
say() { printf 'deb: %s\n' "$*" >&2; }

binary= lab= version= out=target/deb
while [ $# -gt 0 ]; do
    case $1 in
    --binary) binary=$2 ;;
    --lab) lab=$2 ;;
    --version) version=$2 ;;
    --out) out=$2 ;;
    *) echo "usage: $0 [--binary FILE [--lab FILE]] [--version VERSION] [--out DIR]" >&2 && exit 2 ;;
    esac
    shift 2
done
for tool in dpkg-deb dpkg-shlibdeps objcopy; do
    command -v "$tool" >/dev/null || { say "$tool is missing: apt-get install dpkg-dev binutils" && exit 1; }
done

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}
export SOURCE_DATE_EPOCH
if [ -z "$version" ]; then
    version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
    # A commit that is no release sorts before the release.
    if commit=$(git rev-parse --short=12 HEAD 2>/dev/null) && ! git describe --exact-match --tags --match "v$version" >/dev/null 2>&1; then
        version+="~git$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$commit"
    fi
    version+=-1
fi
arch=$(dpkg --print-architecture)
triplet=$(dpkg-architecture -q DEB_HOST_MULTIARCH)
maintainer="${DEBFULLNAME:-Weir maintainers} <${DEBEMAIL:-weir@example.org}>"

if [ -z "$binary" ]; then
    . scripts/package-build.sh
    # Functions that are equal exist once, and a relocation takes a bit instead of 24 bytes (glibc
    # 2.36: Debian 12). Both need the linker that comes with the toolchain on x86-64.
    host=$(rustc -vV | sed -n 's/^host: //p')
    if [ "$host" = x86_64-unknown-linux-gnu ] && [ -x "$(rustc --print sysroot)/lib/rustlib/$host/bin/rust-lld" ]; then
        PACKAGE_RUSTFLAGS="'-Clink-arg=-Wl,--icf=all','-Clink-arg=-Wl,-z,pack-relative-relocs'"
    fi
    package_build gateway --no-default-features --features top
    package_build lab
    binary=$package_folder/gateway lab=$package_folder/lab
fi
pages=${lab:-$binary}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
umask 022

# Changelogs and licence of a package.
document() {
    local package=$1 root=$2 doc=$2/usr/share/doc/$1
    install -D -m 644 packaging/deb/copyright "$doc/copyright"
    printf 'weir (%s) unstable; urgency=medium\n\n  * Changes: changelog.gz.\n\n -- %s  %s\n' "$version" "$maintainer" \
        "$(date --utc --date "@$SOURCE_DATE_EPOCH" -R)" | gzip -9n >"$doc/changelog.Debian.gz"
    gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
}

# Moves the symbols of a program to a package of their own, found by the build ID.
strip_to() {
    local program=$1 package=$2 root=$work/$2-dbgsym id
    id=$(readelf -n "$program" | sed -n 's/.*Build ID: //p')
    if [ -n "$id" ] && readelf -S "$program" | grep -q '\.debug_\(info\|line\)'; then
        install -d "$root/usr/lib/debug/.build-id/${id:0:2}" "$root/usr/share/doc"
        objcopy --only-keep-debug --compress-debug-sections "$program" "$root/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug"
        chmod 644 "$root/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug"
        ln -s "$package" "$root/usr/share/doc/$package-dbgsym"
    fi
    strip --strip-unneeded --remove-section=.comment --remove-section=.note "$program"
}

# Writes the package: name, description, and further fields in "$work/NAME.fields".
build() {
    local package=$1 root=$work/$1 size
    install -d "$root/DEBIAN"
    (cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' md5sum) >"$root/DEBIAN/md5sums"
    # As dpkg-gencontrol counts: KiB per file, one for each folder and link.
    size=$(find "$root" -path "$root/DEBIAN" -prune -o -printf '%y %s\n' |
        awk '{ k += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print k }')
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nInstalled-Size: %s\n' \
            "$package" "$version" "$arch" "$maintainer" "$size"
        cat "$work/$package.fields"
    } >"$root/DEBIAN/control"
    find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    # shellcheck disable=SC2086 # Several options.
    dpkg-deb --root-owner-group ${DEB_COMPRESSION:--Zxz} --build "$root" "$out/${package}_${version}_$arch.deb" >/dev/null
    say "$out/${package}_${version}_$arch.deb: $((size / 1024)) MiB installed, $(stat -c %s "$out/${package}_${version}_$arch.deb" | numfmt --to=iec) packed"
}

libraries() {
    mkdir -p "$work/shlibs/debian"
    printf 'Source: weir\n\nPackage: weir\nArchitecture: any\n' >"$work/shlibs/debian/control"
    (cd "$work/shlibs" && dpkg-shlibdeps -O -e"$1" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p' |
        # The linker does not state what packed relocations need.
        if readelf -d "$1" | grep -q '(RELR)'; then sed 's/libc6 (>= 2\.\([0-9]\|[12][0-9]\|3[0-5]\))/libc6 (>= 2.36)/'; else cat; fi
}

# weir
root=$work/weir
DESTDIR=$root PREFIX=/usr MANDIR=/usr/share/man ZSHDIR=/usr/share/zsh/vendor-completions \
    WIRESHARKDIR=/usr/lib/$triplet/wireshark/plugins scripts/install.sh --binary "$binary" --pages "$pages" 2>/dev/null
find "$root/usr/share/man" -type f -exec gzip -9n {} +
# postinst gives both to the group weir, which does not exist when they are unpacked.
chmod 755 "$root/etc/weir"
chmod 644 "$root/etc/weir/weir.conf"
strip_to "$root/usr/bin/weir" weir
document weir "$root"
install -d "$root/DEBIAN"
echo /etc/weir/weir.conf >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do install -m 755 "packaging/deb/$script" "$root/DEBIAN/$script"; done
cat >"$work/weir.fields" <<END
Depends: $(libraries "$root/usr/bin/weir"), init-system-helpers (>= 1.52), passwd
Suggests: weir-lab, wireshark
Section: net
Priority: optional
Homepage: https://datatracker.ietf.org/wg/ipsecme/
Description: userspace gateway for ESP, AH, EESP, PSP and IKEv2
 Weir protects IP traffic between networks and hosts: ESP, AH, Enhanced ESP
 (EESP) and PSP, with keys from IKE or manual keying. It reads the
 swanctl.conf that operators of strongSwan already have, needs no kernel
 module, runs as a user of its own, and fails closed: protected traffic never
 leaves in clear text.
END

# weir-lab
if [ -n "$lab" ]; then
    root=$work/weir-lab
    install -D -m 755 "$lab" "$root/usr/libexec/weir/weir"
    strip_to "$root/usr/libexec/weir/weir" weir-lab
    install -d "$root/usr/share/man/man1"
    mv "$work"/weir/usr/share/man/man1/* "$root/usr/share/man/man1/"
    rmdir "$work/weir/usr/share/man/man1"
    document weir-lab "$root"
    cat >"$work/weir-lab.fields" <<END
Depends: weir (= $version), $(libraries "$root/usr/libexec/weir/weir")
Recommends: iperf, iproute2, iputils-ping
Section: net
Priority: optional
Homepage: https://datatracker.ietf.org/wg/ipsecme/
Description: measurements of ESP, AH, EESP, PSP and their rivals
 The commands "weir lab" and "weir bench": campaigns that measure throughput,
 latency and processor time of tunnels in network namespaces or in memory,
 with statistics, a model for sizing, and reports.
END
    build weir-lab
fi
build weir

for package in weir weir-lab; do
    [ -d "$work/$package-dbgsym" ] || continue
    cat >"$work/$package-dbgsym.fields" <<END
Depends: $package (= $version)
Section: debug
Priority: optional
Auto-Built-Package: debug-symbols
Build-Ids: $(basename "$(dirname "$(find "$work/$package-dbgsym" -name '*.debug')")")$(basename "$(find "$work/$package-dbgsym" -name '*.debug')" .debug)
Description: debug symbols for $package
END
    build "$package-dbgsym"
done
