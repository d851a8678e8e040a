//! Functions of intel-ipsec-mb that the build script leaves out.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "../build/shorten.rs"]
mod shorten;
#[path = "../build/unused.rs"]
#[expect(dead_code, reason = "the build script uses the rest")]
mod unused;

/// Output of `nm -A -g` for objects, kinds and names of their symbols.
fn traps(symbols: &[(&str, &str, &str)]) -> Vec<String> {
    let line = |(object, kind, name): &(&str, &str, &str)| match *kind {
        "U" => format!("lib.a:{object}:                 U {name}\n"),
        _ => format!("lib.a:{object}:0000000000000000 {kind} {name}\n"),
    };
    let source = unused::functions(&symbols.iter().map(line).collect::<String>());
    source
        .lines()
        .filter_map(|line| line.strip_prefix("int ")?.strip_suffix("(void) { __builtin_trap(); }"))
        .map(str::to_owned)
        .collect()
}

/// The manager for AVX2 with VAES seals and opens with these where the processor has IFMA.
#[test]
fn poly1305_with_ifma_stays() {
    let symbols = [
        ("chacha20_poly1305.c.o", "U", "poly1305_aead_update_fma_avx2"),
        ("poly_fma_avx2.asm.o", "T", "poly1305_aead_update_fma_avx2"),
    ];
    assert!(traps(&symbols).is_empty());
}

#[test]
fn an_object_for_other_processors_stays_where_another_may_call_it() {
    let block = ("sha512_x1_ni_avx2.asm.o", "T", "sha512_ni_block_avx2");
    let also = ("sha512_x1_ni_avx2.asm.o", "U", "sha512_constants_ni");
    let callee = ("sha512_constants_ni_avx2.asm.o", "T", "sha512_constants_ni");
    let names = ["sha512_ni_block_avx2", "sha512_constants_ni"];
    let reference = |object| traps(&[(object, "U", "sha512_ni_block_avx2"), block, also, callee]);
    assert_eq!(reference("sha_avx2.c.o"), names, "a reference without a call");
    assert_eq!(reference("mb_mgr_avx2_t4.c.o"), names, "an object that is left out");
    assert!(reference("hmac_avx2.c.o").is_empty(), "an unexamined reference");
}

#[test]
fn an_algorithm_that_nothing_calls_is_left_out_with_references_to_it() {
    let symbols = [("mb_mgr_avx2_t2.c.o", "U", "zuc_eea3_1_buffer_avx"), ("zuc_avx.c.o", "T", "zuc_eea3_1_buffer_avx")];
    assert_eq!(traps(&symbols), ["zuc_eea3_1_buffer_avx"]);
}
