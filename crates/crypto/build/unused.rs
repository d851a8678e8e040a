//! Leaves the algorithms out of the binary that nothing here calls.
//!
//! The manager of intel-ipsec-mb holds a pointer to every function of the library, so that the
//! linker takes all of it: 12.7 MB of version 1.3, of which 4.2 MB are ciphers of mobile networks,
//! cable modems and video. A function of the same name that is linked first keeps the original
//! out. It traps; nothing may call it, and the tests of the engine show that nothing does.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Parts of the names of object files: ZUC, SNOW and KASUMI (3GPP), DOCSIS and PON with their CRCs
/// (cable modems, fibre), CBCS (video). The library's self-test calls everything else.
const UNUSED: [&str; 7] = ["zuc", "snow", "kasumi", "docsis", "pon", "crc", "cbcs"];

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
            let _ = writeln!(source, "void {name}(void) {{ __builtin_trap(); }}");
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
