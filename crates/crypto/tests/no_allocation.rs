//! Sealing, opening and deriving allocate nothing, neither in Rust nor in AWS-LC.
#![allow(unsafe_code)] // An allocator cannot be counted without.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Once};

use weir_crypto::kdf::{PspMasterKey, SubSaKdf, SubSaRoot, derive_psp_key};
use weir_crypto::{
    Aad, CryptoOp, DerivedKeys, DerivedName, Engine, Job, Key, KeyId, KeyMaterial, KeyTable, Keys, Span, Suite,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches a constant
// thread-local that itself never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

unsafe extern "C" {
    fn malloc(size: usize) -> *mut c_void;
    fn realloc(memory: *mut c_void, size: usize) -> *mut c_void;
    fn free(memory: *mut c_void);
}

unsafe extern "C" fn foreign_malloc(size: usize, _: *const c_char, _: c_int) -> *mut c_void {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    // SAFETY: takes any size.
    unsafe { malloc(size) }
}

unsafe extern "C" fn foreign_realloc(memory: *mut c_void, size: usize, _: *const c_char, _: c_int) -> *mut c_void {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    // SAFETY: the caller's promises are passed on; all its memory comes from `malloc`.
    unsafe { realloc(memory, size) }
}

unsafe extern "C" fn foreign_free(memory: *mut c_void, _: *const c_char, _: c_int) {
    // SAFETY: as above.
    unsafe { free(memory) }
}

/// Has AWS-LC's own allocations counted too. Before anything else of it runs.
fn count_foreign() {
    static ONCE: Once = Once::new();
    // SAFETY: three functions that behave as `malloc`, `realloc` and `free`, set once and before
    // the library allocated anything.
    ONCE.call_once(|| unsafe {
        let set = aws_lc_sys::CRYPTO_set_mem_functions(Some(foreign_malloc), Some(foreign_realloc), Some(foreign_free));
        assert_eq!(set, 1);
    });
}

fn allocations(run: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    run();
    ALLOCATIONS.get() - before
}

fn expand(engine: Engine, suite: &Suite) -> Key {
    let (enc, integ) = (vec![3; suite.enc_material_len()], vec![4; suite.integ_material_len()]);
    engine.expand(suite, KeyMaterial { enc: &enc, integ: &integ }).expect("a key")
}

/// Has this thread refuse its first forgery: AWS-LC notes errors in a ring of fixed size, which
/// it makes once per thread.
fn refuse_one() {
    let (mut table, derived) = (KeyTable::default(), DerivedKeys::new(0));
    let key = table.insert(Arc::new(expand(Engine::AwsLc, &Suite::parse_esp("aes128gcm16").expect("a suite"))));
    let aad = Aad::Inline([0; 12]);
    let op = CryptoOp { key, aad, body: Span::new(0, 0), icv: Span::new(0, 16), iv: [0; 16] };
    let mut packet = [0; 16];
    let mut jobs = [Job::new(op, &mut packet)];
    Engine::AwsLc.open(Keys { table: &table, derived: &derived }, &mut jobs);
    assert!(jobs[0].take_ok().is_none());
}

#[test]
fn counting_counts() {
    count_foreign();
    // An optimised build would leave out an allocation that nothing sees.
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
    // SAFETY: a new context, freed at once.
    assert_eq!(allocations(|| unsafe { aws_lc_sys::EVP_MD_CTX_free(aws_lc_sys::EVP_MD_CTX_new()) }), 1);
}

fn engines_and_suites() -> impl Iterator<Item = (Engine, Suite)> {
    Engine::real().flat_map(|engine| Suite::all_esp().chain(Suite::all_ah()).map(move |suite| (engine, suite)))
}

#[test]
fn operations_allocate_nothing() {
    count_foreign();
    refuse_one();
    let derived = DerivedKeys::new(0);
    for (engine, suite) in engines_and_suites() {
        let mut table = KeyTable::default();
        let key = table.insert(Arc::new(expand(engine, &suite)));
        let keys = Keys { table: &table, derived: &derived };
        let gmac = suite.is_aead() && !suite.is_confidential();
        let separate = suite.integ.is_some();
        let icv = Span::new(1424, 1424 + suite.icv_len());
        let op = CryptoOp {
            key,
            aad: Aad::InPlace(Span::new(0, if gmac || separate { 1424 } else { 16 })),
            body: if gmac { Span::default() } else { Span::new(16, 1424) },
            icv,
            iv: [9; 16],
        };
        let joined = CryptoOp { aad: Aad::InlineThen([1; 12], Span::new(0, 1424)), ..op };
        let ops = if gmac { vec![op, joined] } else { vec![op] };
        for op in ops {
            for count in [1, 20] {
                let mut packets = vec![vec![7; icv.range().end]; count];
                let mut jobs: Vec<_> = packets.iter_mut().map(|packet| Job::new(op, &mut packet[..])).collect();
                let counted = allocations(|| {
                    engine.seal(keys, &mut jobs);
                    assert!(jobs.iter().all(Job::sealed));
                    engine.open(keys, &mut jobs);
                    assert!(jobs.iter_mut().all(|job| job.take_ok().is_some()));
                    jobs[0].packet[1424] ^= 1;
                    engine.open(keys, &mut jobs);
                    assert!(jobs[0].take_ok().is_none());
                });
                assert_eq!(counted, 0, "{} {suite}", engine.name());
            }
        }
    }
}

#[test]
fn derivation_and_its_cache_allocate_nothing() {
    count_foreign();
    for engine in Engine::real() {
        let suite = Suite::parse_esp("aes256gcm16").expect("a suite");
        // What an engine looks at once per process.
        drop(expand(engine, &suite));
        let mut cache = DerivedKeys::new(32);
        let master = PspMasterKey::new(&[5; 32]);
        let root = SubSaRoot::new(SubSaKdf::HkdfSha512, &[6; 64]).expect("a root key");
        let expanded = |enc: &[u8]| engine.expand(&suite, KeyMaterial { enc, integ: &[] }).ok();
        let counted = allocations(|| {
            for n in 0..5000_u32 {
                if n.is_multiple_of(8) {
                    cache.begin_batch();
                }
                let of_psp = DerivedName { owner: 1, label: u64::from(n) };
                assert!(cache.get_or_derive(of_psp, || expanded(derive_psp_key(&master, n, 1).material())).is_some());
                let of_eesp = DerivedName { owner: 2, label: u64::from(n % 50) };
                let sub_sa = cache.get_or_derive(of_eesp, || {
                    let mut keymat = [0; 36];
                    root.derive(n as u16 % 50, &mut keymat);
                    expanded(&keymat)
                });
                assert!(sub_sa.is_some_and(|id| id.0 & KeyId::DERIVED != 0));
            }
            cache.forget(1);
        });
        assert_eq!(counted, 0);
        assert!(cache.stats().evictions > 5000);
    }
}
