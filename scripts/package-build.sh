# shellcheck shell=bash
# Build of the binary for packages and static archives; sourced by scripts/deb.sh and
# scripts/static.sh from the top folder.
#
# Paths of this machine are replaced, so that the same commit gives the same bytes in any folder.
# These flags get a target folder of their own: in the usual one they would have everything built
# again.

package_folder=${CARGO_TARGET_DIR:-$PWD/target}/package

# Arrays of --config are appended to those of .cargo/config.toml.
package_build() {
    local name=$1 target cargo_home=${CARGO_HOME:-$HOME/.cargo}
    shift
    target=$(rustc -vV | sed -n 's/^host: //p')
    echo "package: building $name (some minutes)" >&2
    CFLAGS="${CFLAGS:-} -ffile-prefix-map=$package_folder=target -ffile-prefix-map=$PWD=weir -ffile-prefix-map=$cargo_home=cargo" \
    CXXFLAGS="${CXXFLAGS:-} -ffile-prefix-map=$package_folder=target -ffile-prefix-map=$PWD=weir -ffile-prefix-map=$cargo_home=cargo" \
    CARGO_TARGET_DIR=$package_folder cargo build --release --locked --package weir --target "$target" \
        --config "target.'cfg(all())'.rustflags=['--remap-path-prefix=$cargo_home=cargo','--remap-path-prefix=$PWD=weir','--remap-path-prefix=$package_folder=target'${PACKAGE_RUSTFLAGS:+,$PACKAGE_RUSTFLAGS}]" \
        "$@" >&2
    cp "$package_folder/$target/release/weir" "$package_folder/$name"
}
