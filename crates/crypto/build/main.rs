//! Looks for intel-ipsec-mb and compiles the shim over it (docs/decisions/0010).
//!
//! `WEIR_IPSEC_MB` selects: `auto` (the default) uses the library that `scripts/ipsec-mb.sh` has
//! installed, otherwise one in /usr/local or /usr, with a warning if it cannot be used. The one
//! that the script has installed is skipped with a warning if its hash is not that of
//! `build/ipsec-mb.pin`. `off` leaves the library out; `require` fails without it; a path is the
//! prefix of an installation, which is then required. Only the static library is linked, because
//! the binary also runs on hosts without it. The script changes the time of `build/ipsec-mb.pin`,
//! so that this runs again. A library that is installed otherwise after this crate was built is
//! found when the variable changes, for example to `require`, or after
//! `cargo clean --package weir-crypto`.

mod shorten;
mod unused;

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rustc-check-cfg=cfg(ipsec_mb, ipsec_mb_large)");
    println!("cargo:rerun-if-env-changed=WEIR_IPSEC_MB");
    println!("cargo:rerun-if-changed=src/engine/ipsec_mb/shim.c");
    println!("cargo:rerun-if-changed={PIN}");
    println!("cargo:rustc-env=WEIR_IPSEC_MB_PINNED={}", pinned("version"));
    let wish = env::var("WEIR_IPSEC_MB").unwrap_or_default();
    let found = match wish.as_str() {
        "off" => return,
        "" | "auto" | "require" => find(&[Path::new(INSTALLED), Path::new("/usr/local"), Path::new("/usr")]),
        prefix => find(&[Path::new(prefix)]),
    };
    let required = !matches!(wish.as_str(), "" | "auto");
    let installed = found.is_ok();
    match found.and_then(|library| library.compile()) {
        Ok(()) => println!("cargo:rustc-cfg=ipsec_mb"),
        Err(why) if required => panic!(
            "WEIR_IPSEC_MB={wish}: {why}; run scripts/ipsec-mb.sh, install libipsec-mb-dev (Debian's name), or set \
             WEIR_IPSEC_MB to the prefix of a static build of intel-ipsec-mb 1.3 or later, or to off"
        ),
        // Installed, but unusable: worth a warning, not an error, because `auto` does not require
        // it.
        Err(why) if installed => println!(
            "cargo:warning=built without intel-ipsec-mb: {why}; install version 1.3 or later, or set WEIR_IPSEC_MB to off"
        ),
        Err(_) => {}
    }
}

/// Version and hash of the library that `scripts/ipsec-mb.sh` installs.
const PIN: &str = "build/ipsec-mb.pin";
/// Where it does so.
const INSTALLED: &str = "../../target/ipsec-mb";

/// Value of `name` in [`PIN`]; empty if there is none.
fn pinned(name: &str) -> String {
    let pin = std::fs::read_to_string(PIN).unwrap_or_default();
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
    pin.lines().find_map(value).unwrap_or_default()
}

/// Returns whether the library in [`INSTALLED`] is of another package than the one of [`PIN`].
fn is_of_another_pin(prefix: &Path) -> bool {
    if prefix != Path::new(INSTALLED) {
        return false;
    }
    let hash = std::fs::read_to_string(prefix.join("sha256")).unwrap_or_default();
    hash.trim().is_empty() || hash.trim() != pinned("sha256")
}

/// An installed library.
struct Library {
    include: PathBuf,
    archive: PathBuf,
}

fn find(prefixes: &[&Path]) -> Result<Library, String> {
    let target = |name: &str| env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if target("ARCH") != "x86_64" || target("OS") != "linux" || target("POINTER_WIDTH") != "64" {
        return Err("intel-ipsec-mb is for x86-64".to_owned());
    }
    for prefix in prefixes {
        let include = prefix.join("include");
        let header = include.join("intel-ipsec-mb.h");
        let places = ["lib/x86_64-linux-gnu", "lib64", "lib"].map(|dir| prefix.join(dir).join("libIPSec_MB.a"));
        if let (true, Some(archive)) = (header.exists(), places.into_iter().find(|at| at.exists())) {
            // Only a file that exists: cargo treats a missing one as changed, and would rebuild
            // this crate and its dependents with every command.
            println!("cargo:rerun-if-changed={}", header.display());
            println!("cargo:rerun-if-changed={}", archive.display());
            if is_of_another_pin(prefix) {
                println!(
                    "cargo:warning=target/ipsec-mb is not the version of crates/crypto/{PIN}; run scripts/ipsec-mb.sh"
                );
                continue;
            }
            return Ok(Library { include, archive });
        }
    }
    Err("no intel-ipsec-mb.h with a libIPSec_MB.a".to_owned())
}

/// Sizes of `gcm_key_data`: in version 1.3, in 1.4 to 2.0, and a reserve for later versions. The
/// shim asserts the size, so the first one with which it compiles is used. Every key of the gateway
/// takes that much memory.
const GCM_KEY_BYTES: [&str; 3] = ["1008", "1264", "1536"];

impl Library {
    /// Version in the header: `#define IMB_VERSION_STR "1.3.0"`.
    fn version(&self) -> Option<String> {
        let header = std::fs::read_to_string(self.include.join("intel-ipsec-mb.h")).ok()?;
        let line = header.lines().find_map(|line| line.strip_prefix("#define IMB_VERSION_STR"))?;
        Some(line.trim().trim_matches('"').to_owned())
    }

    fn compile(&self) -> Result<(), String> {
        let out = PathBuf::from(env::var("OUT_DIR").map_err(|error| error.to_string())?);
        let unused = out.join("unused.c");
        // In one archive with the shim, which refers to it: the linker resolves these names before
        // it reads the library, and leaves the functions of the library out.
        let replacement = unused::replace(&self.archive, &out);
        let source = format!("const int weir_mb_unused = 1;\n{}", replacement.source);
        std::fs::write(&unused, source).map_err(|error| format!("{}: {error}", unused.display()))?;
        let shim = |bytes: &str| {
            cc::Build::new()
                .file("src/engine/ipsec_mb/shim.c")
                .file(&unused)
                .objects(&replacement.objects)
                .include(&self.include)
                .define("WEIR_GCM_KEY_BYTES", bytes)
                .opt_level(2)
                .warnings(false)
                // A size that is too small fails to compile, as expected; only the last failure is
                // an error to show.
                .cargo_warnings(Some(&bytes) == GCM_KEY_BYTES.last())
                .try_compile("weir_ipsec_mb")
                .map_err(|error| error.to_string().replace('\n', " "))
        };
        let mut outcome = Err(String::new());
        for bytes in GCM_KEY_BYTES {
            outcome = shim(bytes).map(|()| bytes);
            if outcome.is_ok() {
                break;
            }
        }
        let bytes =
            outcome.map_err(|why| format!("with {} the shim does not compile: {why}", self.include.display()))?;
        println!("cargo:rustc-env=WEIR_GCM_KEY_BYTES={bytes}");
        let version = self.version().unwrap_or_else(|| "of an unknown version".to_owned());
        // The binary has no path of the folder in which it was built.
        let origin = match self.archive.starts_with(INSTALLED) {
            true => "by scripts/ipsec-mb.sh".to_owned(),
            false => format!("from {}", self.archive.display()),
        };
        println!("cargo:rustc-env=WEIR_IPSEC_MB_LINKED={version}, linked statically, installed {origin}");
        if bytes != GCM_KEY_BYTES[0] {
            println!("cargo:rustc-cfg=ipsec_mb_large");
        }
        // The linker reads a copy, which exists as long as this crate's other files in that folder:
        // the library may be removed or replaced after this build script has run.
        let copy = out.join("libIPSec_MB.a");
        let _ = std::fs::remove_file(&copy);
        std::fs::copy(&self.archive, &copy).map_err(|error| format!("{}: {error}", copy.display()))?;
        println!("cargo:rustc-link-search=native={}", out.display());
        // Not copied into the archive of this crate, which would store 20 MB once more.
        println!("cargo:rustc-link-lib=static:-bundle=IPSec_MB");
        Ok(())
    }
}
