#!/usr/bin/env bash
# Puts Weir below DESTDIR/PREFIX: binary, units, manual pages, completions, dissectors, and a
# configuration that does nothing.
#
#     make install PREFIX=/usr/local                     # needs `make build`
#     DESTDIR=/tmp/stage scripts/install.sh --binary target/release/weir --pages target/release/weir
#
# An existing configuration stays as it is. Without DESTDIR and as root the user weir and its
# folders are created, where the host has systemd-sysusers and systemd-tmpfiles. SYSCONFDIR, MANDIR,
# UNITDIR, ZSHDIR and WIRESHARKDIR move what they name.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'install: %s\n' "$*" >&2; }

binary=target/release/weir pages=
while [ $# -gt 0 ]; do
    case $1 in
    --binary) binary=$2 ;;
    # The binary that writes pages and completions; one with the lab has those of the lab.
    --pages) pages=$2 ;;
    *) echo "usage: $0 [--binary FILE] [--pages FILE]" >&2 && exit 2 ;;
    esac
    shift 2
done
pages=${pages:-$binary}
[ -x "$binary" ] || { say "there is no $binary: make build" && exit 1; }

prefix=${PREFIX:-/usr/local} dest=${DESTDIR:-} etc=${SYSCONFDIR:-/etc}
bin=$prefix/bin
man=${MANDIR:-$prefix/share/man}
units=${UNITDIR:-$prefix/lib/systemd/system}
zsh=${ZSHDIR:-$prefix/share/zsh/site-functions}
wireshark=${WIRESHARKDIR:-$prefix/share/weir/wireshark}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

put() { install -D -m "$1" "$2" "$dest$3"; }

put 755 "$binary" "$bin/weir"
for unit in weir.service weir@.service; do
    sed -e "s|@BINDIR@|$bin|" -e "s|/etc/weir|$etc/weir|" "packaging/$unit" >"$work/$unit"
    put 644 "$work/$unit" "$units/$unit"
done
put 644 packaging/sysusers.conf "$prefix/lib/sysusers.d/weir.conf"
sed "s|/etc/weir|$etc/weir|" packaging/tmpfiles.conf >"$work/tmpfiles.conf"
put 644 "$work/tmpfiles.conf" "$prefix/lib/tmpfiles.d/weir.conf"

"$pages" man "$work/man"
for page in "$work"/man/*; do put 644 "$page" "$man/man${page##*.}/$(basename "$page")"; done
for shell in bash zsh fish; do "$pages" complete "$shell" >"$work/$shell"; done
put 644 "$work/bash" "$prefix/share/bash-completion/completions/weir"
put 644 "$work/zsh" "$zsh/_weir"
put 644 "$work/fish" "$prefix/share/fish/vendor_completions.d/weir.fish"
for dissector in contrib/wireshark/*.lua; do put 644 "$dissector" "$wireshark/$(basename "$dissector")"; done
put 644 packaging/weir.conf "$prefix/share/doc/weir/examples/weir.conf"

if [ -e "$dest$etc/weir/weir.conf" ]; then
    say "$dest$etc/weir/weir.conf stays as it is"
else
    put 640 packaging/weir.conf "$etc/weir/weir.conf"
fi

if [ -z "$dest" ] && [ "$(id -u)" -eq 0 ]; then
    if command -v systemd-sysusers >/dev/null && command -v systemd-tmpfiles >/dev/null; then
        systemd-sysusers "$prefix/lib/sysusers.d/weir.conf"
        systemd-tmpfiles --create "$prefix/lib/tmpfiles.d/weir.conf"
    else
        say "no systemd-sysusers here: create the user weir, and give it /var/lib/weir, to run weir as that user"
    fi
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
fi
say "weir is $dest$bin/weir; next: edit $etc/weir/weir.conf, systemctl enable --now weir, weir status"
