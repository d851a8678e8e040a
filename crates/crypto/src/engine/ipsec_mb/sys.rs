//! FFI: safe types for the functions of `shim.c`.
//!
//! Properties of the library that the unsafe blocks rely on:
//! - a manager must be used by one thread only; the direct calls of AES-GCM and the key expansion
//!   read only its function pointers;
//! - a job accesses exactly its spans, in place if source and destination are equal, and none of
//!   them after the burst was flushed;
//! - jobs do not write to key schedules.
#![allow(unsafe_code)]

mod chain;

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use super::selection::Selection;
use super::self_test;
use crate::engine::aws_lc::{cleanse, equal};
pub(super) use chain::{BURST, Chain, ChainBurst, ChainKeys, ChainSpans};

/// `sizeof(struct gcm_key_data)`, checked by the shim.
const GCM_KEY_BYTES: usize = match env!("WEIR_GCM_KEY_BYTES").as_bytes() {
    b"1008" => 1008,
    b"1264" => 1264,
    _ => 1536,
};

/// `IMB_MGR`.
#[repr(C)]
struct Mgr {
    _opaque: [u8; 0],
}

/// `IMB_JOB`.
#[repr(C)]
struct Job {
    _opaque: [u8; 0],
}

/// A direct call: key, context, output, input, length, IV, associated data and its length, tag and
/// its length.
type GcmFn =
    unsafe extern "C" fn(*const GcmKey, *mut Context, *mut u8, *const u8, u64, *const u8, *const u8, u64, *mut u8, u64);

unsafe extern "C" {
    fn weir_mb_version_text() -> *const c_char;
    fn weir_mb_new(arch: *mut *const c_char) -> *mut Mgr;
    fn weir_mb_jobs_new() -> *mut Job;
    fn weir_mb_free(mgr: *mut Mgr, jobs: *mut Job);
    fn weir_mb_has_vaes(mgr: *const Mgr) -> c_int;
    fn weir_mb_gcm(mgr: *const Mgr, key_len: c_uint, encrypt: c_int) -> Option<GcmFn>;
    fn weir_mb_expand_gcm(mgr: *const Mgr, key: *const u8, key_len: c_uint, to: *mut GcmKey) -> c_int;
    fn weir_mb_expand_aes(mgr: *const Mgr, key: *const u8, len: c_uint, enc: *mut AesKey, dec: *mut AesKey) -> c_int;
    fn weir_mb_expand_des(mgr: *const Mgr, key: *const u8, to: *mut DesKey);
    fn weir_mb_one_block(mgr: *const Mgr, hash: c_uint, block: *const u8, to: *mut HashState) -> c_int;
    fn weir_mb_expand_xcbc(mgr: *const Mgr, key: *const u8, k1: *mut AesKey, k2: *mut Block, k3: *mut Block);
    fn weir_mb_expand_cmac(
        mgr: *const Mgr,
        key: *const u8,
        schedule: *mut AesKey,
        unused: *mut AesKey,
        k1: *mut Block,
        k2: *mut Block,
    );
    fn weir_mb_run(mgr: *mut Mgr, ops: *mut Op<'_>, n: u32);
}

/// Buffer for secret data in the layout of the library; overwritten when dropped.
macro_rules! secret {
    ($(#[$doc:meta])* $name:ident, $len:expr) => {
        $(#[$doc])*
        #[repr(C, align(16))]
        pub(crate) struct $name([u8; $len]);

        impl $name {
            /// Returns a zeroed buffer.
            pub(super) const fn blank() -> Self {
                Self([0; $len])
            }

            /// Returns the pointer for an [`Op`].
            pub(super) fn at(&self) -> *const c_void {
                self.0.as_ptr().cast()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                cleanse(&mut self.0);
            }
        }
    };
}

secret!(
    /// An AES-GCM key: schedule and powers of the hash key.
    GcmKey, GCM_KEY_BYTES);
secret!(
    /// An AES schedule of any key length.
    AesKey, 240);
secret!(
    /// A DES schedule.
    DesKey, 128);
secret!(
    /// The state of a hash after one block.
    HashState, 64);
secret!(
    /// A block that is mixed into the last one.
    Block, 16);
secret!(
    /// A ChaCha20 key.
    ChaChaKey, 32);

impl ChaChaKey {
    /// `None` unless `key` has 32 bytes.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        let mut own = Self::blank();
        (key.len() == 32).then(|| own.0.copy_from_slice(key))?;
        Some(own)
    }
}

/// Scratch buffer of a direct call.
#[repr(C, align(64))]
struct Context([u8; 128]);

/// `enum` of the shim: how an operation encrypts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
#[allow(missing_docs)]
pub(super) enum Cipher {
    Null,
    AesCbc,
    AesCtr,
    Des,
    TripleDes,
    Gcm,
    ChaCha,
    Ccm,
}

/// `enum` of the shim: how an operation authenticates.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
#[allow(missing_docs)]
pub(super) enum Hash {
    Md5,
    Sha1,
    Sha256,
    Sha384,
    Sha512,
    Xcbc,
    Cmac,
    Aead,
}

/// Cipher and key of an operation.
pub(super) enum CipherKeys<'k> {
    Null,
    /// Schedules for both directions, and the key's length.
    AesCbc(&'k [AesKey; 2], usize),
    AesCtr(&'k AesKey, usize),
    Des(&'k DesKey),
    TripleDes(&'k [DesKey; 3]),
}

/// Hash and key of an operation, if separate.
pub(super) enum MacKeys<'k> {
    /// Inner and outer state of HMAC.
    Hmac(Hash, &'k [HashState; 2]),
    /// Key schedule and the two masks.
    Xcbc(&'k AesKey, &'k [Block; 2]),
    Cmac(&'k AesKey, &'k [Block; 2]),
}

/// Nonce and layout of an AEAD.
pub(super) struct AeadLayout<'p, 'n> {
    pub(super) nonce: &'n [u8],
    /// Associated data in the packet (`Err`) or elsewhere (`Ok`).
    pub(super) aad: Result<&'p [u8], Range<usize>>,
    pub(super) body: Range<usize>,
    pub(super) icv: Range<usize>,
}

/// AEAD and key of an operation.
pub(super) enum AeadKeys<'k> {
    Gcm(&'k GcmKey, usize),
    ChaCha(&'k ChaChaKey),
    Ccm(&'k AesKey, usize),
}

/// `struct weir_op`: one operation on one packet, in place. Made by functions that check every
/// span, and borrowing all that it points to.
#[repr(C)]
pub(super) struct Op<'p> {
    enc: *const c_void,
    dec: *const c_void,
    des: [*const c_void; 3],
    mac: [*const c_void; 3],
    packet: *mut u8,
    aad: *const u8,
    aad_len: u64,
    body_at: u32,
    body_len: u32,
    cover_at: u32,
    cover_len: u32,
    iv: [u8; 16],
    /// Output: the computed tag, in the first `tag_len` bytes.
    tag: [u8; 64],
    cipher: Cipher,
    hash: Hash,
    key_len: u8,
    iv_len: u8,
    tag_len: u8,
    encrypt: bool,
    /// Output: the operation completed.
    done: bool,
    // The shim does not access the fields below.
    saved: [u8; LONGEST_ICV],
    icv_at: u32,
    borrowed: PhantomData<(&'p mut [u8], &'p AesKey)>,
}

const _: () = assert!(size_of::<Op<'_>>() == 11 * 8 + 4 * 4 + 16 + 64 + 48);

/// Longest ICV of a suite in bytes: that of HMAC-SHA512-256.
const LONGEST_ICV: usize = 32;

/// Longest span of an operation in bytes: the library counts some lengths, with padding, in 16
/// bits.
const LONGEST: usize = 65_000;

impl<'p> Op<'p> {
    /// A cipher and a separate MAC on `packet`: `cover` is authenticated with the bytes of the ICV
    /// within it as zero, `body` encrypted or decrypted. `last` follows the authenticated data, and
    /// is stored temporarily in place of the ICV. `None` if this layout cannot be expressed.
    pub(super) fn separate(
        packet: &'p mut [u8],
        encrypt: bool,
        (cipher, iv, body): (CipherKeys<'p>, &[u8], Range<usize>),
        (mac, cover, icv): (MacKeys<'p>, Range<usize>, Range<usize>),
        last: &[u8],
    ) -> Option<Self> {
        let within = icv.start >= cover.start && icv.end <= cover.end;
        let apart = icv.end <= cover.start || icv.start >= cover.end;
        let follows = icv.start == cover.end && last.len() <= icv.len();
        if !(within || apart) || !(last.is_empty() || follows) || cover.is_empty() || cover.len() > LONGEST {
            return None;
        }
        let mut op = Self::on(packet, encrypt, &body, &icv, iv)?;
        packet.get(cover.clone())?;
        (op.cover_at, op.cover_len) = (cover.start as u32, (cover.len() + last.len()) as u32);
        op.set_cipher(cipher);
        op.set_mac(mac);
        if within {
            packet[icv.clone()].fill(0);
        }
        packet[icv][..last.len()].copy_from_slice(last);
        Some(op)
    }

    /// An AEAD on `packet`. `None` if this layout cannot be expressed.
    pub(super) fn aead(
        packet: &'p mut [u8],
        encrypt: bool,
        keys: AeadKeys<'p>,
        AeadLayout { nonce, aad, body, icv }: AeadLayout<'p, '_>,
    ) -> Option<Self> {
        let mut op = Self::on(packet, encrypt, &body, &icv, nonce)?;
        let aad = match &aad {
            Ok(elsewhere) => elsewhere,
            Err(span) => packet.get(span.clone())?,
        };
        (op.aad, op.aad_len) = (aad.as_ptr(), aad.len() as u64);
        // CCM counts its body in these.
        (op.cover_at, op.cover_len) = (op.body_at, op.body_len);
        (op.cipher, op.enc, op.key_len) = match keys {
            AeadKeys::Gcm(key, len) => (Cipher::Gcm, key.at(), len as u8),
            AeadKeys::ChaCha(key) => (Cipher::ChaCha, key.at(), 32),
            // The library makes room for 46 bytes of data.
            AeadKeys::Ccm(..) if aad.len() > 46 => return None,
            AeadKeys::Ccm(key, len) => (Cipher::Ccm, key.at(), len as u8),
        };
        op.dec = op.enc;
        Some(op)
    }

    /// Operation with disjoint spans within `packet`; keys are set later.
    fn on(packet: &mut [u8], encrypt: bool, body: &Range<usize>, icv: &Range<usize>, iv: &[u8]) -> Option<Self> {
        let apart = body.end <= icv.start || icv.end <= body.start;
        let mut saved = [0; LONGEST_ICV];
        saved.get_mut(..icv.len())?.copy_from_slice(packet.get(icv.clone())?);
        packet.get(body.clone())?;
        if !apart || icv.is_empty() || body.len() > LONGEST || packet.len() > u32::MAX as usize {
            return None;
        }
        let mut op = Self {
            enc: ptr::null(),
            dec: ptr::null(),
            des: [ptr::null(); 3],
            mac: [ptr::null(); 3],
            packet: packet.as_mut_ptr(),
            aad: packet.as_ptr(),
            aad_len: 0,
            body_at: body.start as u32,
            body_len: body.len() as u32,
            cover_at: 0,
            cover_len: 0,
            iv: [0; 16],
            tag: [0; 64],
            cipher: Cipher::Null,
            hash: Hash::Aead,
            key_len: 0,
            iv_len: iv.len() as u8,
            tag_len: icv.len() as u8,
            encrypt,
            done: false,
            saved,
            icv_at: icv.start as u32,
            borrowed: PhantomData,
        };
        op.iv.get_mut(..iv.len())?.copy_from_slice(iv);
        Some(op)
    }

    fn set_cipher(&mut self, keys: CipherKeys<'p>) {
        let key_len;
        (self.cipher, key_len) = match keys {
            CipherKeys::Null => {
                self.body_len = 0;
                (Cipher::Null, 0)
            }
            CipherKeys::AesCbc([enc, dec], len) => {
                (self.enc, self.dec) = (enc.at(), dec.at());
                (Cipher::AesCbc, len)
            }
            CipherKeys::AesCtr(enc, len) => {
                (self.enc, self.dec) = (enc.at(), enc.at());
                (Cipher::AesCtr, len)
            }
            CipherKeys::Des(key) => {
                self.des[0] = key.at();
                (Cipher::Des, 8)
            }
            CipherKeys::TripleDes(keys) => {
                self.des = keys.each_ref().map(DesKey::at);
                (Cipher::TripleDes, 24)
            }
        };
        self.key_len = key_len as u8;
    }

    fn set_mac(&mut self, keys: MacKeys<'p>) {
        (self.hash, self.mac) = match keys {
            MacKeys::Hmac(hash, [inner, outer]) => (hash, [inner.at(), outer.at(), ptr::null()]),
            MacKeys::Xcbc(key, [k2, k3]) => (Hash::Xcbc, [key.at(), k2.at(), k3.at()]),
            MacKeys::Cmac(key, [k1, k2]) => (Hash::Cmac, [key.at(), k1.at(), k2.at()]),
        };
    }

    /// Writes the ICV, or compares it. `None` when the library did not verify and decrypt: the
    /// packet is as it was then, and another engine may try. A failed encryption is `Some(false)`:
    /// the library may have changed the body already, and the same key stream over it again would
    /// restore the plaintext.
    pub(super) fn finish(&mut self) -> Option<bool> {
        let len = usize::from(self.tag_len);
        // SAFETY: `on` checked that the span is within the packet, which is borrowed exclusively
        // for the lifetime of this operation, and the library no longer uses it.
        let icv = unsafe { std::slice::from_raw_parts_mut(self.packet.add(self.icv_at as usize), len) };
        let (made, saved) = (&self.tag[..len], &self.saved[..len]);
        if self.done && self.encrypt {
            icv.copy_from_slice(made);
        } else {
            icv.copy_from_slice(saved);
        }
        if self.encrypt { Some(self.done) } else { self.done.then(|| equal(made, saved)) }
    }
}

/// Manager of one thread (`IMB_MGR`), and its jobs of the passes over a burst.
pub(super) struct Manager {
    mgr: NonNull<Mgr>,
    jobs: NonNull<Job>,
}

impl Manager {
    /// A manager, and the instruction set that it uses.
    fn new() -> Option<(Self, &'static CStr)> {
        let mut arch = c"".as_ptr();
        // SAFETY: writes one pointer, to a constant text that ends with zero; gives a manager of
        // the caller's own, or null.
        let mgr = NonNull::new(unsafe { weir_mb_new(&mut arch) })?;
        // SAFETY: gives memory of the caller's own, or null.
        let jobs = unsafe { weir_mb_jobs_new() };
        let Some(jobs) = NonNull::new(jobs) else {
            // SAFETY: made above, not used afterwards.
            unsafe { weir_mb_free(mgr.as_ptr(), ptr::null_mut()) };
            return None;
        };
        let own = Self { mgr, jobs };
        // SAFETY: as above.
        Some((own, unsafe { CStr::from_ptr(arch) }))
    }

    /// Runs every operation; [`Op::finish`] returns the result of each.
    pub(super) fn run(&mut self, ops: &mut [Op<'_>]) {
        // SAFETY: the manager is this thread's own, borrowed exclusively; the array has the given
        // length; each operation was made by functions that checked its spans, has keys of the kind
        // that its cipher and hash need, and borrows all that it points to.
        unsafe { weir_mb_run(self.mgr.as_ptr(), ops.as_mut_ptr(), ops.len() as u32) }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // SAFETY: made by `weir_mb_new` and `weir_mb_jobs_new`, not used afterwards.
        unsafe { weir_mb_free(self.mgr.as_ptr(), self.jobs.as_ptr()) }
    }
}

/// Runs `with` on this thread's manager, which is created on first use; `None` if there is no
/// memory for it, or the thread is ending.
pub(super) fn with_manager<R>(with: impl FnOnce(&mut Manager) -> R) -> Option<R> {
    thread_local! {
        static OWN: RefCell<Option<Manager>> = const { RefCell::new(None) };
    }
    let run = |own: &RefCell<Option<Manager>>| {
        let mut own = own.try_borrow_mut().ok()?;
        if own.is_none() {
            *own = Manager::new().map(|(manager, _)| manager);
        }
        own.as_mut().map(with)
    };
    OWN.try_with(run).ok().flatten()
}

/// The library on this processor: its functions, and a manager that was used only to select them.
pub(super) struct Library {
    functions: Manager,
    /// E.g. `1.3.0`.
    pub(super) version: String,
    /// E.g. `avx512`.
    pub(super) arch: String,
    /// The calls to use on this processor.
    pub(super) selection: Selection,
    /// By key length 16 and 32: decrypt and encrypt.
    gcm: [[GcmFn; 2]; 2],
}

// SAFETY: the manager inside is never run or changed after `load`: calls through it read which
// function to call, which no thread writes.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Returns the library, loaded and tested once; `None` if the processor does not support it or
    /// the self-test failed.
    pub(super) fn get() -> Option<&'static Self> {
        static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::load().filter(self_test::passes)).as_ref()
    }

    /// [`Library::get`] before its test.
    pub(super) fn load() -> Option<Self> {
        let (functions, arch) = Manager::new()?;
        // SAFETY: returns a constant text that ends with zero.
        let version = unsafe { CStr::from_ptr(weir_mb_version_text()) };
        // SAFETY: the manager is set up; reads its features.
        let vaes = unsafe { weir_mb_has_vaes(functions.mgr.as_ptr()) } != 0;
        let arch = format!("{}{}", arch.to_string_lossy(), if vaes { " with vaes" } else { "" });
        // SAFETY: the manager is set up; returns a function that lives as long as the program.
        let gcm = |len, encrypt| unsafe { weir_mb_gcm(functions.mgr.as_ptr(), len, encrypt) };
        let both = |len| Some([gcm(len, 0)?, gcm(len, 1)?]);
        // "v1.3.0" or "1.3.0"
        let version = version.to_string_lossy().trim_start_matches('v').to_owned();
        Some(Self {
            gcm: [both(16)?, both(32)?],
            selection: Selection::find(&arch, &version),
            version,
            arch,
            functions,
        })
    }

    fn mgr(&self) -> *const Mgr {
        self.functions.mgr.as_ptr()
    }

    /// `None` unless `key` is an AES key of a length in use.
    pub(super) fn gcm_key(&self, key: &[u8]) -> Option<GcmKey> {
        let mut to = GcmKey::blank();
        // SAFETY: reads `key.len()` bytes, or refuses that length; writes one GCM key.
        let done = unsafe { weir_mb_expand_gcm(self.mgr(), key.as_ptr(), key.len() as c_uint, &mut to) };
        (done == 1).then_some(to)
    }

    /// Schedules for encryption and decryption; `None` unless `key` is an AES key.
    pub(super) fn aes_keys(&self, key: &[u8]) -> Option<[AesKey; 2]> {
        let (mut enc, mut dec) = (AesKey::blank(), AesKey::blank());
        let len = key.len() as c_uint;
        // SAFETY: reads `key.len()` bytes, or refuses that length; writes at most 240 bytes each.
        let done = unsafe { weir_mb_expand_aes(self.mgr(), key.as_ptr(), len, &mut enc, &mut dec) };
        (done == 1).then_some([enc, dec])
    }

    /// The schedule of one DES key.
    pub(super) fn des_key(&self, key: &[u8; 8]) -> DesKey {
        let mut to = DesKey::blank();
        // SAFETY: reads 8 bytes, writes 128.
        unsafe { weir_mb_expand_des(self.mgr(), key.as_ptr(), &mut to) };
        to
    }

    /// The state of `hash` after one block: 64 bytes for MD5 to SHA-256, 128 for the others.
    pub(super) fn hashed(&self, hash: Hash, block: &[u8; 128]) -> Option<HashState> {
        let mut to = HashState::blank();
        // SAFETY: reads a block of at most 128 bytes, writes at most 64; refuses what is no hash.
        let done = unsafe { weir_mb_one_block(self.mgr(), c_uint::from(hash as u8), block.as_ptr(), &mut to) };
        (done == 1).then_some(to)
    }

    /// The three keys of AES-XCBC-MAC.
    pub(super) fn xcbc_keys(&self, key: &[u8; 16]) -> (AesKey, [Block; 2]) {
        let (mut k1, mut k2, mut k3) = (AesKey::blank(), Block::blank(), Block::blank());
        // SAFETY: reads 16 bytes; writes a schedule of 176 bytes and two blocks.
        unsafe { weir_mb_expand_xcbc(self.mgr(), key.as_ptr(), &mut k1, &mut k2, &mut k3) };
        (k1, [k2, k3])
    }

    /// The schedule and the two subkeys of AES-CMAC.
    pub(super) fn cmac_keys(&self, key: &[u8; 16]) -> (AesKey, [Block; 2]) {
        let (mut schedule, mut unused) = (AesKey::blank(), AesKey::blank());
        let (mut k1, mut k2) = (Block::blank(), Block::blank());
        // SAFETY: reads 16 bytes; writes schedules of 176 bytes and two blocks.
        unsafe { weir_mb_expand_cmac(self.mgr(), key.as_ptr(), &mut schedule, &mut unused, &mut k1, &mut k2) };
        (schedule, [k1, k2])
    }

    /// The direct calls for a key length.
    pub(super) fn gcm(&self, key_len: usize) -> Option<Gcm> {
        let [decrypt, encrypt] = match key_len {
            16 => self.gcm[0],
            32 => self.gcm[1],
            _ => return None,
        };
        Some(Gcm { encrypt, decrypt })
    }
}

/// AES-GCM by direct calls, for keys of one length.
#[derive(Clone, Copy)]
pub(crate) struct Gcm {
    encrypt: GcmFn,
    decrypt: GcmFn,
}

impl Gcm {
    /// Encrypts `body` in place and writes the tag. `key` has the length these calls are for. False
    /// when the tag has more than 16 bytes or none.
    #[inline]
    pub(super) fn seal(&self, key: &GcmKey, nonce: &[u8; 12], aad: &[u8], body: &mut [u8], tag: &mut [u8]) -> bool {
        if !(1..=16).contains(&tag.len()) {
            return false;
        }
        let mut scratch = MaybeUninit::<Context>::uninit();
        // SAFETY: an expanded key; a context of at least the size needed, which the call writes
        // before it reads; body in and out; nonce, data and tag of the given lengths; no pointer is
        // null.
        unsafe {
            (self.encrypt)(
                key,
                scratch.as_mut_ptr(),
                body.as_mut_ptr(),
                body.as_ptr(),
                body.len() as u64,
                nonce.as_ptr(),
                aad.as_ptr(),
                aad.len() as u64,
                tag.as_mut_ptr(),
                tag.len() as u64,
            );
        }
        true
    }

    /// Decrypts `body` in place and returns whether `tag` is valid. Otherwise the body is garbage.
    #[inline]
    pub(super) fn open(&self, key: &GcmKey, nonce: &[u8; 12], aad: &[u8], body: &mut [u8], tag: &[u8]) -> bool {
        let mut scratch = MaybeUninit::<Context>::uninit();
        let mut made = [0_u8; 16];
        // SAFETY: as for `seal`; the tag written has 16 bytes.
        unsafe {
            (self.decrypt)(
                key,
                scratch.as_mut_ptr(),
                body.as_mut_ptr(),
                body.as_ptr(),
                body.len() as u64,
                nonce.as_ptr(),
                aad.as_ptr(),
                aad.len() as u64,
                made.as_mut_ptr(),
                16,
            );
        }
        match <&[u8; 16]>::try_from(tag) {
            // One comparison of all bits, in constant time.
            Ok(tag) => u128::from_ne_bytes(*tag) ^ u128::from_ne_bytes(made) == 0,
            Err(_) if tag.is_empty() => false,
            Err(_) => made.get(..tag.len()).is_some_and(|made| equal(made, tag)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_did_not_run_fails_for_good_only_when_it_encrypts() {
        let mut packet = [7_u8; 64];
        let mut outcome = |encrypt| {
            let mut op = Op::on(&mut packet, encrypt, &(16..48), &(48..64), &[0; 12]).unwrap();
            // Never handed to the library: the same as a job that it did not complete.
            op.finish()
        };
        assert_eq!(outcome(true), Some(false), "another engine must not encrypt what may be encrypted already");
        assert_eq!(outcome(false), None, "another engine may verify it");
        assert_eq!(packet, [7; 64], "the ICV is as it was");
    }
}
