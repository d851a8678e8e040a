#!/usr/bin/env bash
# Makes a folder with a newer Debian and its IKE daemons as peers of the interop suites. About half
# a minute and 600 MB; nothing in it is ever started as a service.
#
#     scripts/peer-root.sh forky /var/tmp/forky    # strongSwan 6.1 (trixie: 6.0)
#     STRONGSWAN_ROOT=/var/tmp/forky make test
#     STRONGSWAN_V1_ROOT=/var/tmp/trixie-strongswan make test
#     scripts/peer-root.sh trixie /var/tmp/trixie libreswan-openiked
#     IKE_PEERS_ROOT=/var/tmp/trixie make test
#     scripts/peer-root.sh bookworm DIR bare       # a new system, for the suite package
#
# strongSwan (testing/interop/strongswan) is the default: raw ESP in user space, ML-KEM, PPK.
# libreswan and OpenIKED (testing/interop/libreswan, testing/interop/openiked) share a folder;
# Debian does not install libreswan beside strongSwan. `make test` makes both folders in the target
# folder, where it can. To remove it: rm -rf --one-file-system DIR.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
release=${1:-} root=${2:-} peers=${3:-strongswan}
mirror=${MIRROR:-http://deb.debian.org/debian}
case $peers in
strongswan)
    probe=usr/lib/ipsec/charon
    packages=(strongswan-charon strongswan-swanctl libcharon-extra-plugins libcharon-extauth-plugins
        libstrongswan-standard-plugins libstrongswan-extra-plugins iproute2)
    ;;
libreswan-openiked)
    probe=usr/sbin/iked
    packages=(libreswan openiked iproute2 iputils-ping)
    ;;
bare)
    probe=usr/bin/dpkg
    packages=()
    ;;
*) release= ;;
esac

say() { printf 'peer-root: %s\n' "$*" >&2; }
case $release in
bookworm | trixie) script=$release ;;
forky) script=sid ;; # An older debootstrap does not know the name; its rules are those of sid.
*)
    echo "usage: $0 bookworm|trixie|forky DIR [strongswan|libreswan-openiked|bare]" >&2
    exit 2
    ;;
esac
[ -n "$root" ] || { say "which folder?" && exit 2; }
[ "$(id -u)" -eq 0 ] || { say "debootstrap needs root" && exit 1; }
command -v debootstrap >/dev/null || { say "please install debootstrap" && exit 1; }
if [ -x "$root/$probe" ]; then
    say "$root has $peers already"
    exit 0
fi
if [ -e "$root" ] && [ -n "$(ls -A "$root")" ]; then
    say "$root exists and holds something else"
    exit 1
fi
mkdir -p "$root"
whole=$(cd "$root" && pwd)
# It gets its name when it is complete: an interrupted one is made again.
root=$whole.part
rm -rf --one-file-system "$root"

say "Debian $release in $whole (log: $whole.log)"
exec 3>"$whole.log"
debootstrap --variant=minbase "$release" "$root" "$mirror" "/usr/share/debootstrap/scripts/$script" </dev/null >&3 2>&1
if [ "$peers" = bare ]; then
    rm -rf "$root"/var/cache/apt/archives/*.deb
    rmdir "$whole" && mv "$root" "$whole"
    say "done: $(du -sh "$whole" | cut -f1)"
    exit 0
fi
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
# A machine whose clock is ahead of the mirror's release file would refuse it.
echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/99peer"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"

# /proc for the maintainer scripts, in a mount namespace that ends with the command.
unshare --mount sh -ec '
    mount -t proc proc "$1/proc"
    root=$1
    shift
    export DEBIAN_FRONTEND=noninteractive
    chroot "$root" apt-get -q update
    exec chroot "$root" apt-get -q -y --no-install-recommends install "$@"
' sh "$root" "${packages[@]}" </dev/null >&3 2>&1
rmdir "$whole" && mv "$root" "$whole"
root=$whole
say "done: $(chroot "$root" dpkg-query -W -f '${Package} ${Version}' "${packages[0]}"), $(du -sh "$root" | cut -f1)"
