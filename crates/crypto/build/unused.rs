//! Leaves the algorithms out of the binary that nothing here calls.
//!
//! The manager of intel-ipsec-mb holds a pointer to every function of the library, so that the
//! linker takes all of it: 12.7 MB of version 1.3. 4.2 MB are ciphers of mobile networks, cable
//! modems and video, 1.4 MB are modes that are not for packets, 1.1 MB are AES-192-GCM, which
//! AWS-LC runs, and 1.8 MB are managers for processors without AVX2 (until 2012, small ones until
//! 2022). A function of the same name that is linked first keeps the original out. It traps;
//! nothing may call it, and the self-test of the engine would, if anything did.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Parts of the names of object files.
const UNUSED: [&str; 25] = [
    // 3GPP.
    "zuc",
    "snow",
    "kasumi",
    // Cable modems, fibre and video.
    "docsis",
    "pon",
    "crc",
    "cbcs",
    // AES-GCM in pieces (the suite GMAC uses whole messages), ECB, counters of bits, CFB, hashes
    // without HMAC, CMAC with 256 bits.
    "_sgl_",
    "_gmac_",
    "_ecb_",
    "cntr_bit",
    "_cfb_",
    "sha_mb_",
    "sha_ni_mb_",
    "aes256_cmac",
    // The library's self-test calls some of these; src/engine/ipsec_mb/self_test.rs takes its
    // place.
    "self_test",
    // AES-192-GCM.
    "192_gcm",
    "gcm192",
    // Processors without AVX2. The shim does not start on them.
    "mb_mgr_sse",
    "mb_mgr_avx.",
    "mb_mgr_avx_t",
    "_gcm_by8_avx.",
    "gcm128_api_by8_sse",
    "gcm256_api_by8_sse",
    "chacha20_sse",
];
/// The only one that is called, by the functions that set up a manager: 1 is success.
const SELF_TEST: &str = "self_test";

/// A symbol of an object file of a library.
struct Symbol<'a> {
    object: &'a str,
    kind: &'a str,
    name: &'a str,
}

/// C functions with the names of those that the binary does without; empty where `nm` cannot tell.
pub(crate) fn functions(archive: &Path) -> String {
    let symbols = Command::new("nm").args(["-A", "-g"]).arg(archive).output();
    let text = symbols.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let symbols: Vec<Symbol> = text.lines().filter_map(symbol).collect();
    let unused = |object: &str| UNUSED.iter().any(|part| object.contains(part));
    // Data has no place in a function: an object whose data is read from elsewhere stays.
    let read: HashSet<_> = symbols
        .iter()
        .filter(|symbol| symbol.kind == "U" && !unused(symbol.object))
        .map(|symbol| symbol.name)
        .collect();
    let stays: HashSet<_> = symbols
        .iter()
        .filter(|symbol| !matches!(symbol.kind, "T" | "U") && read.contains(symbol.name))
        .map(|symbol| symbol.object)
        .collect();
    let mut source = String::new();
    let mut names = HashSet::new();
    for Symbol { object, kind, name } in symbols {
        if kind == "T" && unused(object) && !stays.contains(object) && names.insert(name) {
            let body = if name == SELF_TEST { "return 1;" } else { "__builtin_trap();" };
            let _ = writeln!(source, "int {name}(void) {{ {body} }}");
        }
    }
    source
}

/// Reads `libIPSec_MB.a:zuc_sse.o:0000000000000000 T zuc_eea3_1_buffer_sse` or, without an address,
/// `libIPSec_MB.a:zuc_sse.o:                 U memcpy`.
fn symbol(line: &str) -> Option<Symbol<'_>> {
    let (path, rest) = line.rsplit_once(':')?;
    let (_, object) = path.rsplit_once(':')?;
    let mut words = rest.split_whitespace().rev();
    let (name, kind) = (words.next()?, words.next()?);
    Some(Symbol { object, kind, name })
}
