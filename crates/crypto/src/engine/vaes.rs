//! AES-GCM and AES-GMAC by the processor's AES and carry-less multiplication, several packets of
//! a batch at a time.
//!
//! A library processes packet by packet, and for small packets most of the time is latency: ten
//! dependent rounds of AES, then sum and reduction of the hash. Here packets overlap. With one
//! block per instruction (AES-NI) or two (VAES) the blocks of many packets are encrypted in
//! parallel while others are hashed ([`pass`]). With four, a small packet has so few instructions
//! that the processor overlaps it with the next ones without that ([`direct`]), of one key or many.
//! The operations on vectors are in [`lanes`]. The width is detected once.
//!
//! This is one of the few places with `unsafe` code: the instructions exist on some processors
//! only, and packets are read and written in vectors that do not stop at the end of a slice of
//! theirs (never outside of the packet).
#![allow(unsafe_code)]

/// Functions that are inlined into their callers, each down to a function that is compiled for the
/// instructions of a width. Elsewhere a vector would pass through memory, and each intrinsic would
/// be a call: one function that is not inlined costs more than all of the encryption. Free
/// functions in it are not indented.
macro_rules! inlined {
    ($($function:item)*) => { $(#[inline(always)] $function)* };
}

mod direct;
mod key;
mod lanes;
mod pass;

use std::sync::LazyLock;

pub(crate) use key::GcmKey;
use lanes::{X1, X2};
use pass::{Parts, Started, Width};

use super::protect::State;
use super::{Engine, ipsec_mb};
use crate::{CipherKind, Job, KeyMaterial, Keys, Suite};

/// Reason why the engine is not available; `None` if it is.
pub(crate) fn unavailable() -> Option<&'static str> {
    Form::best().is_none().then_some("this processor has not all of AVX, AES-NI and PCLMULQDQ")
}

/// Reason why the engine is not the default where it is available. With VAES and AVX-512 it was
/// found to take as much time as version 2 of intel-ipsec-mb or less, with one of them that was not
/// found, and with neither it was compared with nothing (docs/decisions/0011).
pub(crate) fn not_default() -> Option<&'static str> {
    let version = crate::IPSEC_MB_LINKED.filter(|_| ipsec_mb::unavailable().is_none());
    let second = version.is_some_and(|version| !version.starts_with("1."));
    match Form::best() {
        Some(Form::Zmm) => None,
        Some(Form::Ymm | Form::XmmVl) if !second => None,
        Some(Form::Ymm | Form::XmmVl) => Some("intel-ipsec-mb 2 is linked, and not both of VAES and AVX-512 are there"),
        Some(Form::Xmm) | None => Some("not compared on processors without VAES and AVX-512"),
    }
}

/// Returns the name of the instruction set.
pub(crate) fn describe() -> String {
    Form::best().map_or_else(String::new, |form| format!("AES-GCM and AES-GMAC by {}", form.name()))
}

/// The key of this engine; for other suites than its own that of the engine they are left to, of
/// which `other` is AWS-LC's.
pub(crate) fn expand(suite: &Suite, material: KeyMaterial<'_>, other: State) -> State {
    match Form::best().and_then(|form| form.expand(suite, material.enc)) {
        Some(key) => State::Vaes(key),
        None if ipsec_mb::unavailable().is_none() => ipsec_mb::expand(suite, material, other),
        None => other,
    }
}

/// Encrypts and writes the ICV of every job.
pub(crate) fn seal(keys: Keys<'_>, jobs: &mut [Job<'_>]) {
    if let Some(form) = Form::best() {
        form.run::<true>(keys, jobs);
    }
}

/// Verifies and decrypts every job.
pub(crate) fn open(keys: Keys<'_>, jobs: &mut [Job<'_>]) {
    if let Some(form) = Form::best() {
        form.run::<false>(keys, jobs);
    }
}

/// Jobs with keys of other engines.
#[inline(never)]
fn others<const SEAL: bool>(keys: Keys<'_>, jobs: &mut [Job<'_>]) {
    let engine = if ipsec_mb::unavailable().is_none() { Engine::IpsecMb } else { Engine::AwsLc };
    if SEAL { engine.seal(keys, jobs) } else { engine.open(keys, jobs) }
}

/// A width, by the instructions it takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Form {
    /// One block: AES-NI and PCLMULQDQ.
    Xmm,
    /// One block, and the 32 registers of AVX-512.
    XmmVl,
    /// Two blocks: VAES and VPCLMULQDQ.
    Ymm,
    /// Four blocks: the same with AVX-512.
    Zmm,
}

/// Widths that this processor supports, the widest last.
static FORMS: LazyLock<Vec<Form>> = LazyLock::new(|| {
    macro_rules! has {
        ($($feature:tt)*) => { $(is_x86_feature_detected!($feature))&&* };
    }
    let one = has!("avx" "aes" "pclmulqdq" "ssse3" "sse4.1");
    let vl = one && has!("avx512f" "avx512bw" "avx512vl");
    let wide = one && has!("avx2" "vaes" "vpclmulqdq");
    let found = [(one, Form::Xmm), (vl, Form::XmmVl), (wide, Form::Ymm), (wide && vl, Form::Zmm)];
    found.into_iter().filter(|(has, _)| *has).map(|(_, form)| form).collect()
});

impl Form {
    /// Returns the widest form that this processor supports, if any.
    pub(crate) fn best() -> Option<Self> {
        FORMS.last().copied()
    }

    /// Returns all forms that this processor supports.
    #[cfg(test)]
    pub(crate) fn all() -> &'static [Self] {
        &FORMS
    }

    /// Name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Xmm => "AES-NI, 128 bits",
            Self::XmmVl => "AES-NI, 128 bits, AVX-512 registers",
            Self::Ymm => "VAES, 256 bits",
            Self::Zmm => "VAES, 512 bits",
        }
    }

    /// Expands a key. `None` when the suite is another than AES-GCM or AES-GMAC.
    pub(crate) fn expand(self, suite: &Suite, material: &[u8]) -> Option<GcmKey> {
        let enc = suite.enc.filter(|enc| matches!(enc.kind, CipherKind::AesGcm | CipherKind::AesGmac))?;
        let (key, salt) = material.split_at_checked(enc.key_len)?;
        let gmac = enc.kind == CipherKind::AesGmac;
        // SAFETY: every form includes AVX, AES and PCLMULQDQ, and a form exists where it runs.
        unsafe { GcmKey::new(key, salt.try_into().ok()?, enc.icv_len, gmac) }
    }

    /// Seals or opens every job.
    #[inline]
    pub(crate) fn run<const SEAL: bool>(self, keys: Keys<'_>, jobs: &mut [Job<'_>]) {
        // Both are right for any keys. What several need costs 4 % of a small packet with one.
        let several = match &*jobs {
            [first, second, .., last] => first.op.key != second.op.key || first.op.key != last.op.key,
            _ => true,
        };
        // SAFETY: a form exists only where the processor has its features.
        unsafe { if several { self.run_by::<SEAL, true>(keys, jobs) } else { self.run_by::<SEAL, false>(keys, jobs) } }
    }

    /// [`Form::run`]; `SEVERAL` as in [`pass::run`].
    ///
    /// # Safety
    /// The processor has the features.
    #[inline]
    unsafe fn run_by<const SEAL: bool, const SEVERAL: bool>(self, keys: Keys<'_>, jobs: &mut [Job<'_>]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Xmm => xmm::<SEAL, SEVERAL>(keys, jobs),
                Self::XmmVl => xmm_vl::<SEAL, SEVERAL>(keys, jobs),
                Self::Ymm => ymm::<SEAL, SEVERAL>(keys, jobs),
                Self::Zmm => direct::run::<SEAL>(keys, jobs),
            }
        }
    }
}

/// Entry points of a width: `pass`, inlined into functions that are compiled for its features.
macro_rules! forms {
    ($($name:ident $features:literal $lanes:ident $run:ident;)*) => { $(
        struct $name;

        impl Width for $name {
            type L = $lanes;

            #[inline(always)]
            unsafe fn begin_any<const SEAL: bool>(
                key: &GcmKey,
                job: &mut Job<'_>,
                parts: &Parts,
                stream: *mut u8,
            ) -> Option<Started> {
                #[target_feature(enable = $features)]
                #[inline(never)]
                unsafe fn apart<const SEAL: bool>(
                    key: &GcmKey,
                    job: &mut Job<'_>,
                    parts: &Parts,
                    stream: *mut u8,
                ) -> Option<Started> {
                    // SAFETY: the caller's promise; this function is compiled for the features.
                    unsafe { pass::begin_any::<$lanes, SEAL>(key, job, parts, stream) }
                }
                // SAFETY: the caller's promise.
                unsafe { apart::<SEAL>(key, job, parts, stream) }
            }

            #[inline(always)]
            unsafe fn encrypt_some(key: &GcmKey, at: *mut u8, vectors: usize) {
                #[target_feature(enable = $features)]
                #[inline(never)]
                unsafe fn apart(key: &GcmKey, at: *mut u8, vectors: usize) {
                    // SAFETY: the caller's promise; this function is compiled for the features.
                    unsafe { pass::encrypt_some::<$lanes>(key, at, vectors) }
                }
                // SAFETY: the caller's promise.
                unsafe { apart(key, at, vectors) }
            }

            #[inline(always)]
            unsafe fn encrypt_each(keys: &[*const GcmKey; pass::N], at: *mut u8, vectors: usize) {
                #[target_feature(enable = $features)]
                #[inline(never)]
                unsafe fn apart(keys: &[*const GcmKey; pass::N], at: *mut u8, vectors: usize) {
                    // SAFETY: the caller's promise; this function is compiled for the features.
                    unsafe { pass::encrypt_each::<$lanes>(keys, at, vectors) }
                }
                // SAFETY: the caller's promise.
                unsafe { apart(keys, at, vectors) }
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn $run<const SEAL: bool, const SEVERAL: bool>(keys: Keys<'_>, jobs: &mut [Job<'_>]) {
            // SAFETY: this function is compiled for the features, and the caller has them.
            unsafe { pass::run::<$name, SEAL, SEVERAL>(keys, jobs) }
        }
    )* };
}

forms! {
    Xmm "avx,aes,pclmulqdq,ssse3,sse4.1" X1 xmm;
    XmmVl "avx,aes,pclmulqdq,ssse3,sse4.1,avx512f,avx512bw,avx512vl" X1 xmm_vl;
    Ymm "avx2,aes,pclmulqdq,vaes,vpclmulqdq" X2 ymm;
}

#[cfg(test)]
mod tests;
#[cfg(all(test, target_os = "linux"))]
mod trap;
