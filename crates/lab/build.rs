//! Names the build profile for reports: figures of a debug build, or of one without LTO, are not
//! those of a release.

use std::path::Path;

fn main() {
    // TARGET_DIR/[TRIPLE/]PROFILE/build/PACKAGE/out; the profile `dev` is in `debug`.
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    let profile = Path::new(&out).ancestors().nth(3).and_then(Path::file_name).and_then(|name| name.to_str());
    println!("cargo:rustc-env=WEIR_BUILD_PROFILE={}", profile.unwrap_or("unknown"));
    println!("cargo:rerun-if-changed=build.rs");
}
