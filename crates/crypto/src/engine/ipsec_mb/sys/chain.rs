//! FFI: AES with a separate HMAC, as one pass of the cipher and one of the hash over a burst.
//!
//! A combined job goes through two queues of lanes one by one, and is described and copied as a
//! whole. Two passes over the packets fill the lanes of each algorithm with the whole burst, and
//! each writes only what it needs of a job.
//!
//! In addition to the properties in [`super`], the unsafe blocks rely on this one: a pass ends with
//! all of its jobs, so that the library keeps no pointer to a packet.

use std::ffi::{c_int, c_uint};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, offset_of};
use std::ptr;

use arrayvec::ArrayVec;

use super::{AesKey, Cipher, Hash, HashState, Job, LONGEST, LONGEST_ICV, Manager, Mgr};
use crate::Span;

/// Operations per pass: `BURST` of the shim.
pub(in super::super) const BURST: usize = 64;

unsafe extern "C" {
    fn weir_mb_cipher(
        mgr: *mut Mgr,
        jobs: *mut Job,
        ops: *const ChainOp<'_>,
        n: u32,
        cipher: c_uint,
        key_len: c_uint,
        encrypt: c_int,
    ) -> c_int;
    fn weir_mb_hash(
        mgr: *mut Mgr,
        jobs: *mut Job,
        ops: *const ChainOp<'_>,
        n: u32,
        hash: c_uint,
        tag_len: c_uint,
        tags: *mut [u8; TAG_BYTES],
    ) -> c_int;
}

/// Bytes reserved for the longest tag that the library writes.
const TAG_BYTES: usize = 64;

/// Where the hash pass writes the tags of received packets.
type Tags = [MaybeUninit<[u8; TAG_BYTES]>; BURST];

/// Cipher and hash of a burst.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in super::super) struct Chain {
    cipher: Cipher,
    key_len: u8,
    hash: Hash,
    tag_len: u8,
}

impl Chain {
    /// `None` if the library has no passes for this combination. The check of lengths that it omits
    /// in a pass is this one, and that of [`ChainBurst::add`].
    pub(in super::super) fn new(cipher: Cipher, key_len: usize, hash: Hash, tag_len: usize) -> Option<Self> {
        let known = match cipher {
            Cipher::Null => key_len == 0,
            Cipher::AesCbc | Cipher::AesCtr => matches!(key_len, 16 | 24 | 32),
            _ => false,
        };
        // Other lengths are not truncated tags but an error.
        let fits = match hash {
            Hash::Sha1 => matches!(tag_len, 12 | 20),
            Hash::Sha256 => matches!(tag_len, 16 | 32),
            Hash::Sha384 => tag_len == 24,
            Hash::Sha512 => tag_len == 32,
            _ => false,
        };
        (known && fits).then_some(Self { cipher, key_len: key_len as u8, hash, tag_len: tag_len as u8 })
    }
}

/// Where things are in a packet.
#[derive(Clone, Copy)]
pub(in super::super) struct ChainSpans {
    pub(in super::super) body: Span,
    /// Authenticated; bytes of the ICV within it count as zero.
    pub(in super::super) cover: Span,
    pub(in super::super) icv: Span,
    /// Follows the authenticated data.
    pub(in super::super) last: Option<[u8; 4]>,
}

impl ChainSpans {
    /// Returns whether a packet of `len` bytes has the layout of ESP: the body is authenticated,
    /// and the ICV follows. These are few comparisons, because a small packet takes few ticks.
    #[inline]
    fn is_esp(&self, len: usize) -> bool {
        let Self { body, cover, icv, .. } = *self;
        cover.start <= body.start
            && body.start < body.end
            && body.end <= cover.end
            && cover.end == icv.start
            && icv.start <= icv.end
            && icv.end as usize <= len
    }

    /// Returns whether a packet of `len` bytes has another layout that passes can express: no body,
    /// or the ICV within the authenticated data, or outside of them.
    fn is_possible(&self, len: usize) -> bool {
        let Self { body, cover, icv, last } = *self;
        let ordered = body.start <= body.end && cover.start < cover.end && icv.start <= icv.end;
        let inside = body.end.max(cover.end).max(icv.end) as usize <= len;
        let covered = body.is_empty() || body.start >= cover.start && body.end <= cover.end;
        let disjoint = body.is_empty() || body.end <= icv.start || icv.end <= body.start;
        let apart = icv.end <= cover.start || icv.start >= cover.end;
        let follows = icv.start == cover.end && icv.len() >= 4;
        ordered && inside && covered && disjoint && (self.is_icv_covered() || apart) && (last.is_none() || follows)
    }

    #[inline]
    fn is_icv_covered(&self) -> bool {
        self.icv.start >= self.cover.start && self.icv.end <= self.cover.end
    }
}

/// Keys of one packet.
#[derive(Clone, Copy)]
pub(in super::super) struct ChainKeys<'k> {
    /// `None` if the chain has no cipher.
    pub(in super::super) aes: Option<&'k AesKey>,
    pub(in super::super) states: &'k [HashState; 2],
}

/// `struct weir_chain_op`: one packet of a burst, with checked spans. It borrows all that it points
/// to.
#[repr(C)]
struct ChainOp<'p> {
    packet: *mut u8,
    key: Option<&'p AesKey>,
    states: &'p [HashState; 2],
    body_at: u32,
    body_len: u32,
    cover_at: u32,
    cover_len: u32,
    icv_at: u32,
    // The shim does not access these two.
    job: u16,
    /// 1 if the bytes of the ICV were overwritten for the hash pass.
    altered: u16,
    iv: [u8; 16],
    packet_of: PhantomData<&'p mut [u8]>,
}

const _: () = assert!(size_of::<ChainOp<'_>>() == 64 && offset_of!(ChainOp<'_>, iv) == 48);
const _: () = assert!(size_of::<[HashState; 2]>() == 128, "the outer state follows the inner one");
const _: () = assert!(BURST <= 64, "a word has a bit for each job");

/// Packets that go through the same passes.
pub(in super::super) struct ChainBurst<'p> {
    chain: Chain,
    ops: ArrayVec<ChainOp<'p>, BURST>,
    /// ICVs of packets to open that are altered, as received.
    received: ArrayVec<[u8; LONGEST_ICV], BURST>,
}

impl<'p> ChainBurst<'p> {
    pub(in super::super) fn new(chain: Chain) -> Self {
        Self { chain, ops: ArrayVec::new(), received: ArrayVec::new() }
    }

    /// Adds the packet of job number `job`, below [`BURST`], to seal or to open. Returns false if
    /// the passes cannot express its layout: they must not receive partial blocks or empty spans.
    #[inline(always)] // a call would pass operation and spans through memory
    pub(in super::super) fn add(
        &mut self,
        (job, encrypt): (usize, bool),
        packet: &'p mut [u8],
        keys: ChainKeys<'p>,
        iv: u128,
        spans: ChainSpans,
    ) -> bool {
        let ChainSpans { body, cover, icv, last } = spans;
        let fits = spans.is_esp(packet.len()) || spans.is_possible(packet.len());
        let (body_len, whole) = match self.chain.cipher {
            Cipher::Null => (0, keys.aes.is_none()),
            Cipher::AesCbc => (body.len(), keys.aes.is_some() && !body.is_empty() && body.len() & 15 == 0),
            _ => (body.len(), keys.aes.is_some() && !body.is_empty()),
        };
        let short = cover.len() <= LONGEST && body_len <= LONGEST && icv.len() == usize::from(self.chain.tag_len);
        if !fits || !whole || !short || self.ops.is_full() {
            return false;
        }
        let altered = last.is_some() || spans.is_icv_covered();
        if altered {
            self.alter(packet, encrypt, spans);
        }
        self.ops.push(ChainOp {
            packet: packet.as_mut_ptr(),
            key: keys.aes,
            states: keys.states,
            body_at: body.start,
            body_len: body_len as u32,
            cover_at: cover.start,
            cover_len: cover.end - cover.start + if last.is_some() { 4 } else { 0 },
            icv_at: icv.start,
            job: job as u16,
            altered: altered.into(),
            iv: iv.to_be_bytes(),
            packet_of: PhantomData,
        });
        true
    }

    /// Writes zeros, or what follows the authenticated data, to the place of the ICV, and stores
    /// the ICV of a received packet.
    #[cold]
    fn alter(&mut self, packet: &mut [u8], encrypt: bool, ChainSpans { icv, last, .. }: ChainSpans) {
        let place = &mut packet[icv.range()];
        if !encrypt {
            let mut received = [0; LONGEST_ICV];
            received[..place.len()].copy_from_slice(place);
            self.received.push(received);
        }
        match last {
            Some(last) => place[..last.len()].copy_from_slice(&last),
            None => place.fill(0),
        }
    }

    /// Encrypts all packets and writes their ICVs. Returns a bit for each job that this was done
    /// for. The packets of the others may be encrypted already: another engine must not try them,
    /// because the same key stream over them would restore the plaintext.
    pub(in super::super) fn seal(&self, manager: &mut Manager) -> u64 {
        let done = self.cipher(manager, true) && self.hash(manager, None);
        if done { self.jobs() } else { 0 }
    }

    /// Verifies all packets, and decrypts those with the right ICV. Returns a bit for each of them;
    /// `None` when the library did not verify: the packets are as they were, and another engine may
    /// try.
    pub(in super::super) fn open(&mut self, manager: &mut Manager) -> Option<u64> {
        let len = usize::from(self.chain.tag_len);
        let mut tags = [const { MaybeUninit::<[u8; TAG_BYTES]>::uninit() }; BURST];
        let hashed = self.hash(manager, Some(&mut tags));
        let (mut verified, mut stored) = (0_u64, self.received.iter());
        for (op, tag) in self.ops.iter().zip(&tags) {
            let stored = if op.altered != 0 { stored.next() } else { None };
            if let Some(received) = stored {
                op.icv(len).copy_from_slice(&received[..len]);
            }
            if hashed {
                // SAFETY: the hash pass wrote the first `len` bytes, and only these are read.
                let tag = unsafe { std::slice::from_raw_parts(tag.as_ptr().cast::<u8>(), len) };
                verified |= u64::from(same(tag, op.icv(len))) << op.job;
            }
        }
        if !hashed {
            return None;
        }
        if verified != self.jobs() {
            self.ops.retain(|op| verified >> op.job & 1 != 0);
        }
        Some(if self.cipher(manager, false) { verified } else { 0 })
    }

    /// A bit for each job.
    fn jobs(&self) -> u64 {
        self.ops.iter().fold(0, |jobs, op| jobs | 1 << op.job)
    }

    /// The cipher pass, in one direction. Returns whether it is done, which it is without a cipher
    /// or packets.
    fn cipher(&self, manager: &mut Manager, encrypt: bool) -> bool {
        let Chain { cipher, key_len, .. } = self.chain;
        if cipher == Cipher::Null || self.ops.is_empty() {
            return true;
        }
        // SAFETY: the manager and its array of `BURST` jobs are this thread's own, borrowed
        // exclusively; at most as many operations; `add` checked the spans of each within its
        // packet, which it borrows exclusively, and that it has the schedules of a key of this
        // length.
        let done = unsafe {
            let (cipher, encrypt) = (c_uint::from(cipher as u8), encrypt.into());
            let (ops, count) = (self.ops.as_ptr(), self.ops.len() as u32);
            weir_mb_cipher(manager.mgr.as_ptr(), manager.jobs.as_ptr(), ops, count, cipher, key_len.into(), encrypt)
        };
        done == 1
    }

    /// The hash pass: into the packets, or into `tags`. Returns whether it is done.
    fn hash(&self, manager: &mut Manager, tags: Option<&mut Tags>) -> bool {
        let Chain { hash, tag_len, .. } = self.chain;
        if self.ops.is_empty() {
            return true;
        }
        let tags = tags.map_or(ptr::null_mut(), |tags| tags.as_mut_ptr().cast());
        // SAFETY: as above; the span of the ICV has the length of the tag, and lies in the packet;
        // `tags` is null or has an element for each operation, with room for every tag; the two
        // states of a key are one after the other.
        let done = unsafe {
            let (ops, count) = (self.ops.as_ptr(), self.ops.len() as u32);
            let (hash, tag_len) = (c_uint::from(hash as u8), tag_len.into());
            weir_mb_hash(manager.mgr.as_ptr(), manager.jobs.as_ptr(), ops, count, hash, tag_len, tags)
        };
        done == 1
    }
}

impl ChainOp<'_> {
    /// The ICV of the packet, which has `len` bytes.
    #[allow(clippy::mut_from_ref)] // the packet is borrowed, not the operation
    #[inline]
    fn icv(&self, len: usize) -> &mut [u8] {
        // SAFETY: `add` checked that the span of the ICV, which has this length, is within the
        // packet; the packet is borrowed exclusively for the lifetime of this operation, callers
        // keep no second reference, and the library does not use it between two passes.
        unsafe { std::slice::from_raw_parts_mut(self.packet.add(self.icv_at as usize), len) }
    }
}

/// Compares two tags of one length, a multiple of 4, in constant time: a call of the general
/// comparison takes longer than a small packet's share of the hash pass allows.
#[inline]
fn same(a: &[u8], b: &[u8]) -> bool {
    let (a, b) = (a.as_chunks::<4>().0, b.as_chunks::<4>().0);
    let differ = a.iter().zip(b).fold(0, |differ, (a, b)| differ | u32::from_ne_bytes(*a) ^ u32::from_ne_bytes(*b));
    std::hint::black_box(differ) == 0
}
