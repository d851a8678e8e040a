#!/usr/bin/env bash
# Installs what is missing for `build`, `deb`, `lint`, `docs`, `test`, `demo`, `rivals`, `fuzz`,
# `aarch64` or `iptfs-kernel`; done in well under a second when nothing is.
#
# Debian and its relatives: packages come from apt. Elsewhere, or without root, it prints what to
# install and continues with what is there: a build needs only a C compiler and Rust.
set -euo pipefail
cd "$(dirname "$0")/.."
want=${1:-build}
# Tools that cargo builds from crates.io.
cargo_fuzz=0.13.2
cargo_deny=0.20.2
mdbook=0.5.4
# Packages of Python that Debian has not: the driver of Chromium, and a terminal emulator.
python_tools="playwright==1.65.2 pyte==0.8.2"

say() { printf 'setup: %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
# /sbin is not in everybody's PATH, and half of what is looked for lives there.
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"

# package | how to see that it is there: a command, or a file
build_needs='
gcc|cc
libc6-dev|/usr/include/stdio.h
ca-certificates|/etc/ssl/certs/ca-certificates.crt
curl|curl'
# The fastest engine of the data plane, in the version of Debian 12: for a build without the one
# that scripts/ipsec-mb.sh installs below. Without either AWS-LC does all.
if [ "$(uname -m)" = x86_64 ]; then build_needs+='
libipsec-mb-dev|/usr/include/intel-ipsec-mb.h'; fi
package_needs="
dpkg-dev|dpkg-shlibdeps
binutils|objcopy
xz-utils|xz
mandoc|mandoc"
demo_needs="$build_needs
iproute2|ip
iputils-ping|ping
iperf|iperf"
test_needs="$demo_needs$package_needs
lintian|lintian
g++|c++
tcpdump|tcpdump
bsdutils|script
tshark|tshark
vpnc|vpnc
pocl-opencl-icd|/etc/OpenCL/vendors/pocl.icd
python3|/usr/bin/python3
python3-cryptography|/usr/lib/python3/dist-packages/cryptography
python3-scapy|/usr/lib/python3/dist-packages/scapy
python3-pip|/usr/lib/python3/dist-packages/pip
debootstrap|debootstrap
user-mode-linux|linux.uml
busybox-static|busybox
kmod|modprobe
nftables|nft
openssl|openssl
strongswan-swanctl|swanctl
chromium|chromium"
# A peer to test IKE against. Where a strongSwan is in use already, nothing is added to it.
strongswan_needs='
strongswan-charon|/usr/lib/ipsec/charon
strongswan-pki|pki
libcharon-extra-plugins|/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so
libcharon-extauth-plugins|/usr/lib/ipsec/plugins/libstrongswan-eap-mschapv2.so
libstrongswan-standard-plugins|/usr/lib/ipsec/plugins/libstrongswan-openssl.so
libstrongswan-extra-plugins|/usr/lib/ipsec/plugins/libstrongswan-curve25519.so'

case $want in
build | docs) needs=$build_needs ;;
deb) needs="$build_needs$package_needs" ;;
fuzz | lint) needs="$build_needs
g++|c++" ;;
aarch64) needs="$build_needs
gcc-aarch64-linux-gnu|aarch64-linux-gnu-gcc
g++-aarch64-linux-gnu|aarch64-linux-gnu-g++
libc6-dev-arm64-cross|/usr/aarch64-linux-gnu/include/stdio.h
qemu-user-static|qemu-aarch64-static" ;;
demo) needs=$demo_needs ;;
iptfs-kernel) needs="$build_needs
make|make
flex|flex
bison|bison
bc|bc
perl|perl
xz-utils|xz" ;;
rivals)
    needs="$demo_needs
golang-go|go
strongswan-swanctl|swanctl"
    [ -e /usr/lib/ipsec/charon ] || needs+=$strongswan_needs
    ;;
test)
    needs=$test_needs
    [ -e /usr/lib/ipsec/charon ] || needs+=$strongswan_needs
    ;;
*)
    echo "usage: $0 build|deb|lint|docs|test|demo|rivals|fuzz|aarch64|iptfs-kernel" >&2
    exit 2
    ;;
esac

missing=()
while IFS='|' read -r package probe; do
    [ -n "$package" ] || continue
    case $probe in
    /*) [ -e "$probe" ] && continue ;;
    *) have "$probe" && continue ;;
    esac
    [[ " ${missing[*]-} " == *" $package "* ]] || missing+=("$package")
done <<<"$needs"

# Installs these packages. What apt does not know is left out: user-mode-linux, for one, exists on
# x86 only.
updated=
install_packages() {
    local as_root=() known=() log
    if [ "$(id -u)" -ne 0 ]; then
        # Without a terminal sudo may not ask for a password.
        if have sudo && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
            as_root=(sudo)
        else
            say "not root, and no sudo: please install $*"
            return 0
        fi
    fi
    if ! have apt-get; then
        say "no apt-get here: please install $* (Debian's names) with this system's package manager"
        return 0
    fi
    log=$(mktemp)
    apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" </dev/null >"$log" 2>&1; }
    if [ -z "$updated" ]; then
        say "updating package lists"
        apt -q update || say "apt-get update failed, trying with the lists there are: $(tail -n 1 "$log")"
        updated=yes
    fi
    for package in "$@"; do
        if apt-cache show "$package" >/dev/null 2>&1; then known+=("$package"); else say "$package: not known to apt, skipped"; fi
    done
    [ ${#known[@]} -gt 0 ] || return 0
    say "installing ${known[*]}"
    # Programs to test with, none of which is a service here: policy-rc.d keeps them from being
    # started now, and strongSwan's from being started with the machine.
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        # shellcheck disable=SC2064 # as it is now
        trap "${as_root[*]-} rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
        "${as_root[@]}" chmod 755 "$policy"
    fi
    if ! apt -q -y --no-install-recommends install "${known[@]}"; then
        tail -n 20 "$log" >&2
        say "installation failed; repeat by hand: apt-get install ${known[*]}"
    fi
    if [[ " ${known[*]} " == *" strongswan-charon "* ]] && have systemctl; then
        "${as_root[@]}" systemctl disable strongswan-starter ipsec >/dev/null 2>&1 || true
    fi
    rm -f "$log"
}

# Rust. rustup installs exactly what rust-toolchain.toml names; a cargo from elsewhere is used when
# it is new enough.
pinned=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml)
install_rust() {
    local script fetched url version
    if ! have cargo; then
        say "installing rustup (to ${CARGO_HOME:-$HOME/.cargo})"
        script=$(mktemp)
        fetched=
        for url in https://sh.rustup.rs https://static.rust-lang.org/rustup/rustup-init.sh; do
            if curl --proto '=https' --tlsv1.2 --retry 3 -sSf "$url" -o "$script" 2>/dev/null; then fetched=yes && break; fi
        done
        [ -n "$fetched" ] || { say "cannot download rustup: install Rust $pinned by hand (https://rustup.rs)" && exit 1; }
        sh "$script" -y -q --no-modify-path --default-toolchain none --profile minimal >/dev/null
        rm -f "$script"
    fi
    if have rustup; then
        if ! rustup run "$pinned" cargo --version >/dev/null 2>&1; then
            say "installing Rust $pinned"
            rustup toolchain install "$pinned" --profile minimal --component rustfmt --component clippy --no-self-update >&2
        fi
        if [ "$want" = fuzz ] && ! rustup run nightly cargo --version >/dev/null 2>&1; then
            say "installing Rust nightly (the fuzzer's instrumentation needs it)"
            rustup toolchain install nightly --profile minimal --no-self-update >&2 ||
                say "Rust nightly cannot be installed: Rust $pinned is used with RUSTC_BOOTSTRAP=1"
        fi
    else
        version=$(cargo --version | awk '{ print $2 }')
        if [ "$(printf '%s\n%s\n' "$pinned" "${version%%-*}" | sort -V | head -n 1)" != "$pinned" ]; then
            say "cargo $version is too old and there is no rustup: install Rust $pinned or newer (https://rustup.rs)"
            exit 1
        fi
    fi
}

# Rust and the packages are installed at the same time: first what downloads Rust.
rust_pid=
if [ ${#missing[@]} -gt 0 ]; then
    first=() rest=()
    for package in "${missing[@]}"; do
        case $package in curl | ca-certificates) first+=("$package") ;; *) rest+=("$package") ;; esac
    done
    [ ${#first[@]} -eq 0 ] || install_packages "${first[@]}"
    if have curl && { have rustup || ! have cargo; }; then
        install_rust &
        rust_pid=$!
    fi
    [ ${#rest[@]} -eq 0 ] || install_packages "${rest[@]}"
fi
if [ -n "$rust_pid" ]; then wait "$rust_pid"; else install_rust; fi

# Takes about a minute of processor time; a tool that is there already in this version stays.
cargo_tool() {
    local name=$1 version=$2
    case $("$name" --version 2>/dev/null) in *" $version" | *" v$version") return 0 ;; esac
    say "installing $name $version"
    cargo install --locked --quiet --debug --config profile.dev.debug=false --version "$version" "$name" >&2
}
# They lie in a folder of the build, so that nothing on the system changes; one that has these
# versions stays. Suites that need them are skipped without them.
python_packages() {
    local folder=${CARGO_TARGET_DIR:-$PWD/target}/python
    [ "$(cat "$folder/versions" 2>/dev/null)" != "$python_tools" ] || return 0
    say "installing $python_tools (to $folder)"
    rm -rf "$folder"
    # shellcheck disable=SC2086 # one word each
    if /usr/bin/python3 -m pip install --quiet --root-user-action=ignore --target "$folder" $python_tools >&2; then
        echo "$python_tools" >"$folder/versions"
    else
        say "not installed: $python_tools; the suite web is skipped"
    fi
}
case $want in
test) python_packages ;;
fuzz) cargo_tool cargo-fuzz "$cargo_fuzz" ;;
lint) cargo_tool cargo-deny "$cargo_deny" ;;
docs) cargo_tool mdbook "$mdbook" ;;
aarch64) ! have rustup || rustup target add --toolchain "$pinned" aarch64-unknown-linux-gnu >&2 ;;
esac
have cc || { say "no C compiler: install gcc" && exit 1; }
[ "$want" = aarch64 ] || scripts/ipsec-mb.sh
