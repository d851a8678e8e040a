#!/usr/bin/env bash
# One program without shared libraries, in target/static: weir, an archive of it, and a folder that
# a container image is made of.
#
#     make static
#     scripts/static.sh --binary FILE      # of a static program that exists
#
# glibc, linked statically. Names are resolved by the files of the host (nsswitch.conf) with the
# shared libraries of a glibc of the same version; where there is none, by its built-in DNS client,
# which reads /etc/resolv.conf and /etc/hosts.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"
say() { printf 'static: %s\n' "$*" >&2; }

binary=
if [ "${1:-}" = --binary ]; then binary=$2; fi
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}
export SOURCE_DATE_EPOCH
if [ -z "$binary" ]; then
    . scripts/package-build.sh
    PACKAGE_RUSTFLAGS="'-Ctarget-feature=+crt-static'" package_folder=$package_folder-static package_build static --no-default-features --features pages,top
    binary=$package_folder-static/static
fi
if readelf -lW "$binary" | grep -q INTERP; then say "$binary needs a dynamic linker" && exit 1; fi

out=${OUT:-target/static}
rm -rf "$out"
install -D -m 755 "$binary" "$out/weir"
strip --strip-unneeded "$out/weir"
# The image: the program, an empty configuration, folders, and users for the processes.
root=$out/root
install -D -m 755 "$out/weir" "$root/weir"
install -D -m 644 packaging/weir.conf "$root/etc/weir/weir.conf"
printf 'root:x:0:0:root:/:\nweir:x:65532:65532:Weir gateway:/var/lib/weir:\nnobody:x:65534:65534:nobody:/:\n' >"$root/etc/passwd"
printf 'root:x:0:\nweir:x:65532:\nnogroup:x:65534:\n' >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
install -d -m 755 "$root/var/lib/weir" "$root/run/weir" "$root/tmp"
cp packaging/Containerfile "$out/Containerfile"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$out" -cJf "$out/weir-static.tar.xz" weir root Containerfile
say "$out/weir: $(stat -c %s "$out/weir" | numfmt --to=iec); image: podman build -t weir $out"
