//! intel-ipsec-mb: AES-GCM by direct calls, everything else in bursts that work on several packets
//! at once.
//!
//! A key of this engine is [`Expanded`]. Operations that the library does not support, or cannot
//! express for one packet, use the [`super::aws_lc`] key that is stored too: AES-192-CCM, AH with
//! extended sequence numbers, associated data in pieces, and few packets of a suite with a separate
//! MAC, because one of many lanes is slower than single-buffer code. AES-192-GCM is left to AWS-LC
//! as a whole, because it would be 1.1 MB of the binary. A table selects the calls for each
//! processor ([`Selection`]), because the fastest call depends on the version of the library and on
//! the processor.

mod selection;
mod self_test;
mod sys;

use arrayvec::ArrayVec;

use super::aws_lc::Aead;
use super::ccm::AesCcm;
use super::protect::{Cover, State, aead_spans, first_counter, nonce, with_parts};
use crate::{Aad, CipherKind, IntegAlg, IntegKind, Job, Key, KeyMaterial, Keys, Suite};
use selection::Selection;
use sys::{
    AeadKeys, AeadLayout, AesKey, BURST, Block, ChaChaKey, Chain, ChainBurst, ChainKeys, ChainSpans, CipherKeys,
    DesKey, Gcm, GcmKey, HashState, Library, MacKeys, Manager, Op,
};

/// A key of this engine.
#[allow(clippy::large_enum_variant)] // One indirection per packet costs more than the bytes.
pub(crate) enum Expanded {
    /// AES-GCM and AES-GMAC.
    Gcm {
        key: GcmKey,
        calls: Gcm,
        key_len: u8,
        gmac: bool,
        salt: [u8; 4],
    },
    ChaCha {
        key: ChaChaKey,
        salt: [u8; 4],
        single: Aead,
    },
    Ccm {
        key: AesKey,
        key_len: u8,
        salt: [u8; 3],
        single: AesCcm,
    },
    /// A cipher and a MAC, each with its own key. Such keys are never derived on the packet path,
    /// so a heap allocation is acceptable.
    Separate(Box<Separate>),
}

/// A cipher with a separate MAC, or a MAC alone.
pub(crate) struct Separate {
    cipher: Cipher,
    mac: Mac,
    /// `None` if the library has no passes for the suite: each packet is then a combined job.
    chain: Option<Chain>,
    single: State,
}

enum Cipher {
    Null,
    AesCbc { keys: [AesKey; 2], key_len: usize },
    AesCtr { key: AesKey, key_len: usize, nonce: [u8; 4] },
    Des(DesKey),
    TripleDes([DesKey; 3]),
}

enum Mac {
    Hmac(sys::Hash, [HashState; 2]),
    Xcbc(AesKey, [Block; 2]),
    Cmac(AesKey, [Block; 2]),
}

/// Reason why the engine is not available; `None` if it is.
pub(crate) fn unavailable() -> Option<&'static str> {
    Library::get()
        .is_none()
        .then_some("the processor lacks AVX2 or AES instructions, or intel-ipsec-mb failed the self-test")
}

/// Version, instruction set and selected calls in one line; empty if the engine is not available.
pub(crate) fn describe() -> String {
    Library::get().map_or_else(String::new, |library| {
        format!("intel-ipsec-mb {}, {}, {}", library.version, library.arch, Selection::get())
    })
}

/// Whether packets of a key run in lanes, many at once.
#[inline]
pub(crate) fn is_multi_buffer(key: &Expanded) -> bool {
    matches!(key, Expanded::Ccm { .. } | Expanded::Separate(_))
}

/// The key of this engine, with `single` of [`super::aws_lc`] inside; `single` itself for a suite
/// that the library does not have.
pub(crate) fn expand(suite: &Suite, material: KeyMaterial<'_>, single: State) -> State {
    match Library::get() {
        Some(library) => expand_with(library, suite, material, single),
        None => single,
    }
}

/// [`expand`] with this library.
fn expand_with(library: &Library, suite: &Suite, material: KeyMaterial<'_>, single: State) -> State {
    let expanded = match single {
        State::Aead { aead, salt, gmac } => {
            let key = &material.enc[..material.enc.len() - salt.len()];
            let kind = suite.enc.map(|enc| enc.kind);
            let gcm =
                library.gcm(key.len()).zip(library.gcm_key(key)).filter(|_| kind != Some(CipherKind::ChaCha20Poly1305));
            match (gcm, ChaChaKey::new(key)) {
                (Some((calls, expanded)), _) => {
                    Expanded::Gcm { key: expanded, calls, key_len: key.len() as u8, gmac, salt }
                }
                (None, Some(key)) => Expanded::ChaCha { key, salt, single: aead },
                (None, None) => return State::Aead { aead, salt, gmac },
            }
        }
        State::Ccm { ccm, salt } => {
            let key = &material.enc[..material.enc.len() - salt.len()];
            match library.aes_keys(key).filter(|_| key.len() != 24) {
                Some([enc, _]) => Expanded::Ccm { key: enc, key_len: key.len() as u8, salt, single: ccm },
                None => return State::Ccm { ccm, salt },
            }
        }
        State::Separate { .. } => match separate(library, suite, material) {
            Some((cipher, mac)) => {
                let chain = chain(&cipher, &mac, suite.icv_len());
                Expanded::Separate(Box::new(Separate { cipher, mac, chain, single }))
            }
            None => return single,
        },
        other => return other,
    };
    State::IpsecMb(expanded)
}

fn separate(library: &Library, suite: &Suite, material: KeyMaterial<'_>) -> Option<(Cipher, Mac)> {
    let mac = mac(library, suite.integ?, material.integ)?;
    let Some(enc) = suite.enc else { return Some((Cipher::Null, mac)) };
    let (key, salt) = material.enc.split_at_checked(enc.key_len)?;
    let key_len = key.len();
    let cipher = match enc.kind {
        CipherKind::Null => Cipher::Null,
        CipherKind::AesCbc => Cipher::AesCbc { keys: library.aes_keys(key)?, key_len },
        CipherKind::AesCtr => {
            let [key, _] = library.aes_keys(key)?;
            Cipher::AesCtr { key, key_len, nonce: salt.try_into().ok()? }
        }
        CipherKind::DesCbc | CipherKind::TripleDesCbc if !library.selection.des => return None,
        CipherKind::DesCbc => Cipher::Des(library.des_key(key.try_into().ok()?)),
        CipherKind::TripleDesCbc => {
            let ([one, two, three], []) = key.as_chunks::<8>() else { return None };
            Cipher::TripleDes([one, two, three].map(|key| library.des_key(key)))
        }
        _ => return None,
    };
    Some((cipher, mac))
}

/// The passes for a cipher and a MAC, if the library has them.
fn chain(cipher: &Cipher, mac: &Mac, icv_len: usize) -> Option<Chain> {
    let (cipher, key_len) = match cipher {
        Cipher::Null => (sys::Cipher::Null, 0),
        Cipher::AesCbc { key_len, .. } => (sys::Cipher::AesCbc, *key_len),
        Cipher::AesCtr { key_len, .. } => (sys::Cipher::AesCtr, *key_len),
        Cipher::Des(_) | Cipher::TripleDes(_) => return None,
    };
    match mac {
        Mac::Hmac(hash, _) => Chain::new(cipher, key_len, *hash, icv_len),
        Mac::Xcbc(..) | Mac::Cmac(..) => None,
    }
}

fn mac(library: &Library, alg: &IntegAlg, key: &[u8]) -> Option<Mac> {
    let hash = match alg.kind {
        IntegKind::HmacMd5 => sys::Hash::Md5,
        IntegKind::HmacSha1 => sys::Hash::Sha1,
        IntegKind::HmacSha256 => sys::Hash::Sha256,
        IntegKind::HmacSha384 => sys::Hash::Sha384,
        IntegKind::HmacSha512 => sys::Hash::Sha512,
        IntegKind::AesXcbc => {
            let (key, masks) = library.xcbc_keys(key.try_into().ok()?);
            return Some(Mac::Xcbc(key, masks));
        }
        IntegKind::AesCmac => {
            let (key, masks) = library.cmac_keys(key.try_into().ok()?);
            return Some(Mac::Cmac(key, masks));
        }
    };
    // IPsec keys are never longer than a block (RFC 2404, 4868), so none must be hashed first.
    let padded = |pad: u8| {
        let mut block = zeroize::Zeroizing::new([pad; 128]);
        block.get_mut(..key.len())?.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        library.hashed(hash, &block)
    };
    Some(Mac::Hmac(hash, [padded(0x36)?, padded(0x5c)?]))
}

/// Encrypts and writes the ICV of every job.
pub(crate) fn seal(keys: Keys<'_>, jobs: &mut [Job<'_>]) {
    seal_by(keys, jobs, Selection::get());
}

/// [`seal`] with these calls.
#[inline]
fn seal_by(keys: Keys<'_>, jobs: &mut [Job<'_>], selection: &Selection) {
    for at in 0..jobs.len() {
        let job = &mut jobs[at];
        (job.sealed, job.verified) = (false, false);
        let Some(key) = keys.get(job.op.key) else { continue };
        match &key.state {
            State::IpsecMb(Expanded::Gcm { key: expanded, calls, gmac, salt, .. }) if !selection.gcm_in_bursts => {
                let nonce = nonce::<4, 12>(salt, &job.op.iv);
                let run = |aad: &[u8], body: &mut [u8], icv: &mut [u8]| calls.seal(expanded, &nonce, aad, body, icv);
                job.sealed = with_parts(&job.op, job.packet, key.icv_len, *gmac, run);
            }
            _ => return burst(keys, &mut jobs[at..], true, selection),
        }
    }
}

/// Verifies and decrypts every job.
pub(crate) fn open(keys: Keys<'_>, jobs: &mut [Job<'_>]) {
    open_by(keys, jobs, Selection::get());
}

/// [`open`] with these calls.
#[inline]
fn open_by(keys: Keys<'_>, jobs: &mut [Job<'_>], selection: &Selection) {
    for at in 0..jobs.len() {
        let job = &mut jobs[at];
        (job.sealed, job.verified) = (false, false);
        let Some(key) = keys.get(job.op.key) else { continue };
        match &key.state {
            State::IpsecMb(Expanded::Gcm { key: expanded, calls, gmac, salt, .. }) if !selection.gcm_in_bursts => {
                let nonce = nonce::<4, 12>(salt, &job.op.iv);
                let run = |aad: &[u8], body: &mut [u8], icv: &mut [u8]| calls.open(expanded, &nonce, aad, body, icv);
                job.verified = with_parts(&job.op, job.packet, key.icv_len, *gmac, run);
            }
            _ => return burst(keys, &mut jobs[at..], false, selection),
        }
    }
}

/// Runs jobs of any kind; those that benefit run in bursts.
#[inline(never)]
fn burst(keys: Keys<'_>, jobs: &mut [Job<'_>], encrypt: bool, selection: &Selection) {
    for jobs in jobs.chunks_mut(BURST) {
        let done =
            sys::with_manager(|manager| together(manager, keys, jobs, encrypt, selection)).unwrap_or([None; BURST]);
        for (job, done) in jobs.iter_mut().zip(done) {
            let ok = done.unwrap_or_else(|| keys.get(job.op.key).is_some_and(|key| key.alone(job, encrypt)));
            (job.sealed, job.verified) = (ok && encrypt, ok && !encrypt);
        }
    }
}

/// Runs the supported ones of at most [`BURST`] jobs; returns the result of each.
fn together(
    manager: &mut Manager,
    keys: Keys<'_>,
    jobs: &mut [Job<'_>],
    encrypt: bool,
    selection: &Selection,
) -> [Option<bool>; BURST] {
    let mut done = [None; BURST];
    let few = jobs.len() < selection.fewest;
    // Jobs by their bits: those that no call was chosen for yet.
    let mut left = u64::MAX >> (BURST - jobs.len().clamp(1, BURST));
    let mut combined = 0;
    while left != 0 {
        let (chain, others) = chain_burst(manager, keys, &mut *jobs, (encrypt, few, left), &mut done);
        combined |= left & !others & !chain;
        left = others;
    }
    if combined != 0 {
        combined_jobs(manager, keys, jobs, (encrypt, few, combined), selection, &mut done);
    }
    done
}

/// Runs the jobs of the set `left` that have the passes of the first one which has any. Returns
/// these, and the set of jobs that have other passes.
fn chain_burst(
    manager: &mut Manager,
    keys: Keys<'_>,
    jobs: &mut [Job<'_>],
    (encrypt, few, left): (bool, bool, u64),
    done: &mut [Option<bool>; BURST],
) -> (u64, u64) {
    let chain_of_key = |key: &Key| match &key.state {
        State::IpsecMb(Expanded::Separate(separate)) if !few => separate.chain,
        _ => None,
    };
    let chain_of = |job: &Job<'_>| keys.get(job.op.key).and_then(chain_of_key);
    let mut remaining = jobs.iter().enumerate().filter(|(i, _)| left >> i & 1 != 0);
    let Some(chain) = remaining.find_map(|(_, job)| chain_of(job)) else { return (0, 0) };
    let (mut ours, mut others, mut burst) = (0, 0, ChainBurst::new(chain));
    for (i, job) in jobs.iter_mut().enumerate().filter(|(i, _)| left >> i & 1 != 0) {
        let Some(key) = keys.get(job.op.key) else { continue };
        let State::IpsecMb(Expanded::Separate(separate)) = &key.state else { continue };
        if separate.chain == Some(chain) {
            ours |= u64::from(separate.add_to(&mut burst, (i, encrypt), job)) << i;
        } else if separate.chain.is_some() {
            others |= 1 << i;
        }
    }
    let good = if encrypt { Some(burst.seal(manager)) } else { burst.open(manager) };
    if let Some(good) = good {
        let ours = (0..BURST).filter(|i| ours >> i & 1 != 0);
        ours.for_each(|i| done[i] = Some(good >> i & 1 != 0));
    }
    (ours, others)
}

/// Runs the jobs of the set `which` that the library supports as combined jobs.
fn combined_jobs(
    manager: &mut Manager,
    keys: Keys<'_>,
    jobs: &mut [Job<'_>],
    (encrypt, few, which): (bool, bool, u64),
    selection: &Selection,
    done: &mut [Option<bool>; BURST],
) {
    let mut ops: ArrayVec<Op<'_>, BURST> = ArrayVec::new();
    let mut of: ArrayVec<usize, BURST> = ArrayVec::new();
    for (i, job) in jobs.iter_mut().enumerate().filter(|(i, _)| which >> i & 1 != 0) {
        let Some(key) = keys.get(job.op.key) else { continue };
        if let Some(op) = operation(key, job, encrypt, few, selection) {
            ops.push(op);
            of.push(i);
        }
    }
    if !ops.is_empty() {
        manager.run(&mut ops);
    }
    for (op, i) in ops.iter_mut().zip(of) {
        done[i] = op.finish();
    }
}

/// The operation of `job` for the library; `None` when it is for [`Key::alone`]. `few`: too few
/// jobs run at once to fill its lanes.
fn operation<'p>(
    key: &'p Key,
    job: &'p mut Job<'_>,
    encrypt: bool,
    few: bool,
    selection: &Selection,
) -> Option<Op<'p>> {
    let State::IpsecMb(expanded) = &key.state else { return None };
    let (op, packet, icv_len) = (&job.op, &mut *job.packet, key.icv_len);
    let aead = |packet: &'p mut [u8], keys: AeadKeys<'p>, nonce: &[u8]| {
        let [aad, body, icv] = aead_spans(op, packet.len(), icv_len, false)?;
        let aad = match &op.aad {
            Aad::Inline(bytes) => Ok(&bytes[..]),
            Aad::InPlace(_) => Err(aad),
            _ => return None,
        };
        Op::aead(packet, encrypt, keys, AeadLayout { nonce, aad, body, icv })
    };
    match expanded {
        Expanded::Gcm { key, key_len, gmac: false, salt, .. } if selection.gcm_in_bursts => {
            aead(packet, AeadKeys::Gcm(key, (*key_len).into()), &nonce::<4, 12>(salt, &op.iv))
        }
        // The library returns an error for an empty body and rejects the whole burst.
        _ if op.body.is_empty() && key.suite.is_aead() => None,
        Expanded::ChaCha { key, salt, .. } if op.body.len() >= selection.chacha_from => {
            aead(packet, AeadKeys::ChaCha(key), &nonce::<4, 12>(salt, &op.iv))
        }
        Expanded::Ccm { key, key_len, salt, .. } => {
            aead(packet, AeadKeys::Ccm(key, (*key_len).into()), &nonce::<3, 11>(salt, &op.iv))
        }
        Expanded::Separate(separate) if !few => {
            let cover = Cover::new(op, packet.len(), icv_len).filter(|cover| cover.first_len == 0)?;
            separate.operation(op.iv, packet, encrypt, cover)
        }
        _ => None,
    }
}

impl Key {
    /// Runs one job without the library's manager.
    fn alone(&self, job: &mut Job<'_>, encrypt: bool) -> bool {
        let (op, packet, icv_len) = (&job.op, &mut *job.packet, self.icv_len);
        let State::IpsecMb(expanded) = &self.state else {
            return if encrypt { self.state.seal(op, packet, icv_len) } else { self.state.open(op, packet, icv_len) };
        };
        match expanded {
            Expanded::Gcm { key, calls, gmac, salt, .. } => {
                let nonce = nonce::<4, 12>(salt, &op.iv);
                with_parts(op, packet, icv_len, *gmac, |aad, body, icv| match encrypt {
                    true => calls.seal(key, &nonce, aad, body, icv),
                    false => calls.open(key, &nonce, aad, body, icv),
                })
            }
            Expanded::ChaCha { salt, single, .. } => {
                let nonce = nonce::<4, 12>(salt, &op.iv);
                with_parts(op, packet, icv_len, false, |aad, body, icv| match encrypt {
                    true => single.seal(&nonce, aad, body, icv),
                    false => single.open(&nonce, aad, body, icv),
                })
            }
            Expanded::Ccm { salt, single, .. } => {
                let nonce = nonce::<3, 11>(salt, &op.iv);
                with_parts(op, packet, icv_len, false, |aad, body, icv| match encrypt {
                    true => single.seal(&nonce, aad, body, icv),
                    false => single.open(&nonce, aad, body, icv),
                })
            }
            Expanded::Separate(separate) if encrypt => separate.single.seal(op, packet, icv_len),
            Expanded::Separate(separate) => separate.single.open(op, packet, icv_len),
        }
    }
}

impl Separate {
    /// Adds a job to `burst`, which is of the chain of this key. Returns false if its layout is for
    /// [`Separate::operation`] or [`Key::alone`].
    #[inline]
    fn add_to<'p>(&'p self, burst: &mut ChainBurst<'p>, (at, encrypt): (usize, bool), job: &'p mut Job<'_>) -> bool {
        let Mac::Hmac(_, states) = &self.mac else { return false };
        let Job { op, packet, .. } = job;
        let (cover, last) = match op.aad {
            Aad::InPlace(span) => (span, None),
            Aad::InPlaceThen(span, last) => (span, Some(last)),
            _ => return false,
        };
        let iv = u128::from_be_bytes(op.iv);
        let (aes, iv) = match &self.cipher {
            Cipher::AesCbc { keys: [enc, dec], .. } => (Some(if encrypt { enc } else { dec }), iv),
            Cipher::AesCtr { key, nonce, .. } => (Some(key), u128::from_be_bytes(first_counter(*nonce, op.iv))),
            _ => (None, iv),
        };
        let spans = ChainSpans { body: op.body, cover, icv: op.icv, last };
        burst.add((at, encrypt), packet, ChainKeys { aes, states }, iv, spans)
    }

    /// `None` if the library cannot express the operation. It must not receive partial blocks or an
    /// empty body, because it then rejects the whole burst.
    fn operation<'p>(&'p self, iv: [u8; 16], packet: &'p mut [u8], encrypt: bool, cover: Cover) -> Option<Op<'p>> {
        let blocks = |len: usize| !cover.body.is_empty() && cover.body.len().is_multiple_of(len);
        let counter;
        let (cipher, iv) = match &self.cipher {
            Cipher::Null => (CipherKeys::Null, &iv[..0]),
            Cipher::AesCbc { keys, key_len } if blocks(16) => (CipherKeys::AesCbc(keys, *key_len), &iv[..]),
            Cipher::Des(key) if blocks(8) => (CipherKeys::Des(key), &iv[..8]),
            Cipher::TripleDes(keys) if blocks(8) => (CipherKeys::TripleDes(keys), &iv[..8]),
            Cipher::AesCtr { key, key_len, nonce } if blocks(1) => {
                counter = first_counter(*nonce, iv);
                (CipherKeys::AesCtr(key, *key_len), &counter[..])
            }
            _ => return None,
        };
        let mac = match &self.mac {
            // The library refuses tags of 96 bits with it (`sha256_96`).
            Mac::Hmac(sys::Hash::Sha256, _) if cover.icv.len() == 12 => return None,
            Mac::Hmac(hash, states) => MacKeys::Hmac(*hash, states),
            Mac::Xcbc(key, masks) => MacKeys::Xcbc(key, masks),
            Mac::Cmac(key, masks) => MacKeys::Cmac(key, masks),
        };
        let covered = cover.before.start..cover.after.end;
        Op::separate(
            packet,
            encrypt,
            (cipher, iv, cover.body),
            (mac, covered, cover.icv),
            &cover.last[..cover.last_len],
        )
    }
}
