//! Leaves the algorithms out of the binary that nothing here calls.
//!
//! The manager of intel-ipsec-mb holds a pointer to every function of the library, so that the
//! linker takes all of it: 13 MB of version 2.0.2, 12.7 MB of 1.3. Left out are ciphers of mobile
//! networks, cable modems and video, modes that are not for packets, AES-192-GCM, which AWS-LC
//! runs, and managers for processors without AVX2 (until 2012, small ones until 2022). A function
//! of the same name that is linked first keeps the original out. It traps; nothing may call it, and
//! the self-test of the engine would, if anything did. Where a file also has functions that are
//! called, those at its end are cut off (`shorten.rs`): 0.3 MB of version 2.0.2, 0.7 MB of 1.3.
//!
//! A manager of version 2 has 0.5 MB for each set of instructions. Those for AVX2 with IFMA or
//! SHA-512 instructions (Intel's small cores since 2023) are left out, too: these processors use
//! the one for AVX2 with VAES, which is slower for HMAC-SHA2-512, and for ChaCha20-Poly1305 where
//! jobs are submitted. The direct calls of ChaCha20-Poly1305 in that manager look for IFMA by
//! themselves, so that Poly1305 with IFMA stays.
//!
//! The self-test finds a call that depends on the suite, on every processor. It finds a call that
//! depends on the processor on such a processor only. Therefore an object of the second kind
//! ([`OTHER_PROCESSORS`]) is only left out if every reference to it is in [`NOT_CALLED`], whose
//! reasons were read in the disassembly; otherwise it stays, as it should in a new version.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shorten::shorten;

/// Parts of the names of object files with algorithms that nothing calls.
const UNUSED: [&str; 21] = [
    // 3GPP.
    "zuc",
    "snow",
    "kasumi",
    // Cable modems, fibre and video.
    "docsis",
    "pon",
    "crc",
    "cbcs",
    // QUIC, and algorithms of China.
    "quic",
    "sm3",
    "sm4",
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
];
/// Parts of the names of object files for other processors.
const OTHER_PROCESSORS: [&str; 10] = [
    // Processors without AVX2. The shim does not start on them.
    "mb_mgr_sse",
    "mb_mgr_avx.",
    "mb_mgr_avx_t",
    "_gcm_by8_avx.",
    "gcm128_api_by8_sse",
    "gcm256_api_by8_sse",
    "chacha20_sse",
    // AVX2 with IFMA or SHA-512 instructions.
    "mb_mgr_avx2_t3",
    "mb_mgr_avx2_t4",
    "_ni_avx2",
];
/// Starts of the names of object files that stay, and starts of functions for other processors to
/// which they refer without a call.
const NOT_CALLED: [(&str, &[&str]); 7] = [
    // They choose a manager by the processor: SSE and AVX where it lacks AVX2. The shim does not
    // start there.
    ("alloc.", &["init_mb_mgr_sse_internal", "init_mb_mgr_avx_internal"]),
    ("mb_mgr_auto.", &["init_mb_mgr_sse", "init_mb_mgr_avx"]),
    // Functions for SSE, and for messages in pieces, which the engine does not use.
    (
        "chacha20_poly1305.",
        &["chacha20_enc_dec_ks_sse", "gen_keystr_poly_key_sse", "poly1305_key_gen_sse", "submit_job_chacha20_poly_"],
    ),
    // Functions for SSE and AVX (the first of 2.0.2 and 1.3, the rest of 1.3).
    ("gcm.", &["aes_gcm_precomp_", "aes_gcm_enc_", "aes_gcm_init_var_iv_"]),
    // GHASH alone, for all managers of 1.3; the engine uses it within AES-GCM and GMAC only.
    ("mb_mgr_avx", &["ghash_pre_avx_gen2"]),
    // SHA-512 with the constant 1 for its set of instructions; these functions pass 0 or 2 for it.
    ("sha_", &["sha512_ni_block_avx2"]),
    // The only functions in place of which others are called: [`OTHER_MANAGER`].
    ("mb_mgr_avx2.", &OTHER_MANAGER.0),
];
/// Managers that are left out, and the one that is set up instead.
const OTHER_MANAGER: ([&str; 2], &str) =
    (["init_mb_mgr_avx2_t3_internal", "init_mb_mgr_avx2_t4_internal"], "init_mb_mgr_avx2_t2_internal");
/// Object files, and parts of the names of functions in them.
const UNUSED_FUNCTIONS: [(&str, &[&str]); 4] = [
    // IVs of AES-GCM that do not have 12 bytes. Jobs take these functions for every IV, and
    // `engine/ipsec_mb/selection.rs` selects jobs for AES-GCM with version 1 on processors without
    // VAES only.
    ("gcm_by48_api_vaes_avx512", &["_gcm_enc_var_iv_", "_gcm_dec_var_iv_"]),
    ("gcm_api_vaes_avx512", &["_gcm_enc_var_iv_", "_gcm_dec_var_iv_"]),
    ("des_x16_avx512", &["docsis_des_x16_enc_", "docsis_des_x16_dec_"]),
    ("chacha20_avx512", &["quic_hp_"]),
];
/// FNV-1a of the files that are shortened, of version 1.3.0 as Debian 12 has it and of the one
/// that `scripts/ipsec-mb.sh` installs: whether one of their other functions reaches what is cut
/// was read in the disassembly. The search of `shorten.rs` for jumps is only a second check, so
/// that files of other versions stay whole.
const EXAMINED: [u64; 7] = [
    0x8bb1_33fa_b14c_c16d,
    0x6dbd_8943_fc11_5787,
    0xd3a6_4c03_7520_62b2,
    0x09db_948a_ba46_a73f,
    0xaf5c_1d26_781b_3f83,
    0x911f_67e6_bc66_5170,
    0xc406_8549_7fae_80b9,
];
/// The only one that is called, by the functions that set up a manager: 1 is success.
const SELF_TEST: &str = "self_test";

/// Replacement of parts of a library.
#[derive(Default)]
pub(crate) struct Replacement {
    /// C functions with the names of those that the binary does without; empty where `nm` fails.
    pub(crate) source: String,
    /// Object files in place of those of the library, which have more functions.
    pub(crate) objects: Vec<PathBuf>,
}

/// A symbol of an object file of a library.
struct Symbol<'a> {
    object: &'a str,
    kind: &'a str,
    name: &'a str,
}

/// The parts of `archive` that the binary does without; files are written to the folder `out`.
pub(crate) fn replace(archive: &Path, out: &Path) -> Replacement {
    let symbols = Command::new("nm").args(["-A", "-g"]).arg(archive).output();
    let text = symbols.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let symbols: Vec<Symbol> = text.lines().filter_map(symbol).collect();
    let mut replacement = Replacement { source: functions(&text), ..Replacement::default() };
    let objects: BTreeSet<_> = symbols.iter().map(|symbol| symbol.object).filter(|object| !is_unused(object)).collect();
    for object in objects {
        let Some((_, parts)) = UNUSED_FUNCTIONS.iter().find(|(part, _)| object.contains(part)) else { continue };
        let whole = Command::new("ar").arg("p").args([archive, Path::new(object)]).output();
        let unused = |name: &str| parts.iter().any(|part| name.contains(part));
        let examined = whole.ok().filter(|output| EXAMINED.contains(&fnv1a(&output.stdout)));
        let Some(shorter) = examined.and_then(|output| shorten(&output.stdout, unused)) else { continue };
        let path = out.join(object);
        if std::fs::write(&path, shorter.object).is_err() {
            continue;
        }
        replacement.objects.push(path);
        // The linker takes a file for a symbol that something refers to.
        let kept = shorter.kept;
        let _ = writeln!(replacement.source, "int {kept}(void); int (*const weir_mb_{kept})(void) = {kept};");
        for name in shorter.cut {
            let _ = writeln!(replacement.source, "int {name}(void) {{ __builtin_trap(); }}");
        }
    }
    replacement
}

/// Tells files apart; nothing else is needed of it.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn is_unused(object: &str) -> bool {
    UNUSED.iter().any(|part| object.contains(part)) || is_for_other_processors(object)
}

/// Returns whether an object is left out because of the processor alone.
fn is_for_other_processors(object: &str) -> bool {
    let contains = |parts: &[&str]| parts.iter().any(|part| object.contains(part));
    contains(&OTHER_PROCESSORS) && !contains(&UNUSED)
}

/// Returns whether the processor may decide that `object` calls `name`.
fn may_call(object: &str, name: &str) -> bool {
    !NOT_CALLED
        .iter()
        .any(|(start, names)| object.starts_with(start) && names.iter().any(|start| name.starts_with(start)))
}

/// Functions in place of those of whole files, of the output of `nm -A -g`.
pub(crate) fn functions(text: &str) -> String {
    let symbols: Vec<Symbol> = text.lines().filter_map(symbol).collect();
    let mut stays = HashSet::new();
    // An object that stays may refer to others.
    loop {
        let left_out = |object: &str| is_unused(object) && !stays.contains(object);
        let references: Vec<_> =
            symbols.iter().filter(|symbol| symbol.kind == "U" && !left_out(symbol.object)).collect();
        // Data has no place in a function: an object whose data is read from elsewhere stays.
        let read: HashSet<_> = references.iter().map(|symbol| symbol.name).collect();
        let called: HashSet<_> =
            references.iter().filter(|symbol| may_call(symbol.object, symbol.name)).map(|symbol| symbol.name).collect();
        let needed = |symbol: &&Symbol<'_>| match symbol.kind {
            "U" => false,
            "T" => is_for_other_processors(symbol.object) && called.contains(symbol.name),
            _ => read.contains(symbol.name),
        };
        let more: Vec<_> = symbols
            .iter()
            .filter(|symbol| left_out(symbol.object))
            .filter(needed)
            .map(|symbol| symbol.object)
            .collect();
        if more.is_empty() {
            break;
        }
        stays.extend(more);
    }
    let defined = |name: &str| symbols.iter().any(|symbol| symbol.kind == "T" && symbol.name == name);
    let mut source = String::new();
    let mut names = HashSet::new();
    for Symbol { object, kind, name } in &symbols {
        if *kind == "T" && is_unused(object) && !stays.contains(object) && names.insert(*name) {
            let body = if *name == SELF_TEST { "return 1;" } else { "__builtin_trap();" };
            let _ = match OTHER_MANAGER {
                (managers, other) if managers.contains(name) && defined(other) => {
                    writeln!(source, "void {other}(void *, int);\nvoid {name}(void *m, int r) {{ {other}(m, r); }}")
                }
                _ => writeln!(source, "int {name}(void) {{ {body} }}"),
            };
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
