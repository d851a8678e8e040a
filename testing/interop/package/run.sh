#!/usr/bin/env bash
# Debian packages: contents, installation in a bare bookworm and a bare trixie, a start as the unit
# does it, an upgrade under traffic, purge. Arguments are parts of names of cases; without any, all
# of them. KEEP=DIR keeps what was written there.
. "$(dirname "$0")/../lib/start.sh"
need_weir
need ip tcpdump unshare nsenter setpriv mount debootstrap dpkg-deb dpkg-shlibdeps objcopy /usr/bin/python3
need_root
"${namespaces[@]}" sh -c 'mount -t tmpfs probe /run && ip tuntap add probe mode tun' 2>/dev/null ||
    skip "this machine does not allow namespaces, mounts or TUN devices"
make_lab

# Roots are made once and stay in the target folder; the suite works on copies.
export BARE_ROOTS=${BARE_ROOTS:-$root/target/peers}
makers=()
for release in bookworm trixie; do
    mkdir -p "$BARE_ROOTS"
    "$root/scripts/peer-root.sh" "$release" "$BARE_ROOTS/bare-$release" bare >/dev/null 2>&1 &
    makers+=($!)
done
export PACKAGES=$lab/packages
export DEB_COMPRESSION="-Zgzip -z1"
build() { "$root/scripts/deb.sh" --binary "$WEIR" "$@" >>"$lab/build.log" 2>&1; }
build --lab "$WEIR" --version 0.1.0~test1-1 --out "$PACKAGES/first" && build --version 0.1.0~test2-1 --out "$PACKAGES/second" ||
    fail "scripts/deb.sh: $(tail -n 3 "$lab/build.log" | tr '\n' ' ')"
# A root that cannot be made is reported by the cases that need it.
wait "${makers[@]}"

run_apart /usr/bin/python3 -u "$here/suite.py" "$lab" "$@"
