# shellcheck shell=bash
# Build of the binary for packages and static archives; sourced by scripts/deb.sh and
# scripts/static.sh from the top folder.
#
# Paths of this machine are replaced, so that the same commit gives the same bytes in any folder.
# These flags get a target folder of their own: in the usual one they would have everything built
# again.
#
# On x86-64 a package has the pinned intel-ipsec-mb (crates/crypto/build/ipsec-mb.pin); without it
# the build ends with an error. WEIR_IPSEC_MB selects another library, or none with `off`.
# PACKAGE_IPSEC_MB=any links what `cargo build` would link: the version in /usr/local or /usr, or
# none.

package_folder=${CARGO_TARGET_DIR:-$PWD/target}/package

# Ends without the pinned library, which the same commit must link everywhere.
package_library() {
    local pin=crates/crypto/build/ipsec-mb.pin
    if [ "$(uname -s) $(uname -m)" != "Linux x86_64" ] || [ "${PACKAGE_IPSEC_MB:-}" = any ]; then return; fi
    case ${WEIR_IPSEC_MB:-} in '' | auto | require) ;; *) return ;; esac
    if [ "$(cat target/ipsec-mb/sha256 2>/dev/null)" = "$(sed -n 's/^sha256=//p' "$pin")" ]; then return; fi
    echo "package: target/ipsec-mb is not the intel-ipsec-mb $(sed -n 's/^version=//p' "$pin") of $pin: run" \
        "scripts/ipsec-mb.sh; to choose: WEIR_IPSEC_MB=PREFIX or off, or PACKAGE_IPSEC_MB=any for the one in /usr, or none" >&2
    exit 1
}

# Arrays of --config are appended to those of .cargo/config.toml.
package_build() {
    local name=$1 target cargo_home=${CARGO_HOME:-$HOME/.cargo}
    shift
    package_library
    target=$(rustc -vV | sed -n 's/^host: //p')
    echo "package: building $name (some minutes)" >&2
    # Nothing unwinds through C: without tables for it a package is smaller.
    CFLAGS="${CFLAGS:-} -fno-asynchronous-unwind-tables -ffile-prefix-map=$package_folder=target -ffile-prefix-map=$PWD=weir -ffile-prefix-map=$cargo_home=cargo" \
    CXXFLAGS="${CXXFLAGS:-} -ffile-prefix-map=$package_folder=target -ffile-prefix-map=$PWD=weir -ffile-prefix-map=$cargo_home=cargo" \
    CARGO_TARGET_DIR=$package_folder cargo build --release --locked --package weir --target "$target" \
        --config "target.'cfg(all())'.rustflags=['--remap-path-prefix=$cargo_home=cargo','--remap-path-prefix=$PWD=weir','--remap-path-prefix=$package_folder=target'${PACKAGE_RUSTFLAGS:+,$PACKAGE_RUSTFLAGS}]" \
        "$@" >&2
    cp "$package_folder/$target/release/weir" "$package_folder/$name"
}
