//! One cryptographic operation on one packet, as data.

use arrayvec::ArrayVec;

/// Identifier of a key in [`crate::Keys`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KeyId(pub u32);

impl KeyId {
    /// Set in the ids of [`crate::DerivedKeys`], clear in those of a [`crate::KeyTable`].
    pub const DERIVED: u32 = 1 << 31;
}

/// A range of bytes within a packet. Smaller than `Range<usize>`, and `Copy`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte; never below `start`.
    pub end: u32,
}

impl Span {
    /// The bytes `start..end` of a packet.
    ///
    /// # Panics
    /// In debug builds when `start > end`: a bug of the caller, never a property of input.
    pub fn new(start: usize, end: usize) -> Self {
        debug_assert!(start <= end && end <= u32::MAX as usize);
        Self { start: start as u32, end: end as u32 }
    }

    /// The span as a range for slicing.
    pub fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Bytes covered.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// True when no byte is covered.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Authenticated bytes: in addition to the body (AEAD), or including it (separate MAC).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Aad {
    /// A span of the packet.
    ///
    /// For an AEAD it precedes the body. For a separate MAC (ESP with CBC + HMAC, AH) it is
    /// everything the MAC covers, ciphertext included; ICV bytes within it count as zero (AH).
    InPlace(Span),
    /// Bytes that are not contiguous in the packet: SPI, high and low half of an extended sequence
    /// number (RFC 4106 §5).
    Inline([u8; 12]),
    /// A span of the packet and then the high half of the sequence number, as ESP and AH with a
    /// separate MAC and extended numbers have it (RFC 4303 §2.2.1, RFC 4302 §2.5.1).
    ///
    /// For a separate MAC only; with an AEAD the operation fails.
    InPlaceThen(Span, [u8; 4]),
    /// Bytes that are not in the packet, followed by a span: SPI, high and low half of an extended
    /// sequence number, then IV and payload, as authenticated by GMAC in ESP (RFC 4543 §3.3).
    InlineThen([u8; 12], Span),
}

/// One operation. Spans count from the first byte of [`Job::packet`].
#[derive(Clone, Copy, Debug)]
pub struct CryptoOp {
    /// The key; the salt is part of it.
    pub key: KeyId,
    /// Authenticated data.
    pub aad: Aad,
    /// Data to encrypt or decrypt in place. Empty for AH and GMAC.
    pub body: Span,
    /// Position of the ICV; its length is that of the suite.
    pub icv: Span,
    /// The initialisation vector, first `iv_len` bytes used: 8 for counter-based ciphers
    /// (without salt; the 64-bit sequence number for the implicit-IV forms), 8 or 16 for CBC.
    pub iv: [u8; 16],
}

impl CryptoOp {
    /// Empty operation: the initial value of a slot.
    pub const EMPTY: Self = Self {
        key: KeyId(u32::MAX),
        aad: Aad::InPlace(Span { start: 0, end: 0 }),
        body: Span { start: 0, end: 0 },
        icv: Span { start: 0, end: 0 },
        iv: [0; 16],
    };
}

/// Proof that an engine verified the ICV of one packet. Only engines can construct it, so that no
/// other code path can release a payload.
#[derive(Debug)]
pub struct IcvOk(pub(crate) ());

/// An operation with its packet buffer.
pub struct Job<'p> {
    /// Operation.
    pub op: CryptoOp,
    /// The packet.
    pub packet: &'p mut [u8],
    pub(crate) source: &'p [u8],
    pub(crate) verified: bool,
    pub(crate) sealed: bool,
}

impl<'p> Job<'p> {
    /// Creates a job that has not run.
    pub fn new(op: CryptoOp, packet: &'p mut [u8]) -> Self {
        Self { op, packet, source: &[], verified: false, sealed: false }
    }

    /// Creates a job whose body begins with the bytes of the buffer `source`; the rest of the body
    /// is in the packet. The engine copies them, in the same pass as the encryption if it supports
    /// that. A source longer than the body is an error: the operation fails.
    pub fn from_source(op: CryptoOp, source: &'p [u8], packet: &'p mut [u8]) -> Self {
        Self { op, packet, source, verified: false, sealed: false }
    }

    /// Copies the source buffer into the body, once. Returns false if it does not fit.
    #[inline(always)]
    pub(crate) fn fetch(&mut self) -> bool {
        self.source.is_empty() || self.fetch_from(0)
    }

    /// As [`Job::fetch`], without the first `skipped` bytes.
    #[inline(never)]
    pub(crate) fn fetch_from(&mut self, skipped: usize) -> bool {
        let source = std::mem::take(&mut self.source);
        let body = self.packet.get_mut(self.op.body.range());
        let into = body.and_then(|body| body.get_mut(skipped..source.len()));
        into.is_some_and(|into| {
            into.copy_from_slice(&source[skipped..]);
            true
        })
    }

    /// Returns true if [`crate::Engine::seal`] succeeded; false if the operation did not fit its
    /// packet or the key is unknown. A packet that was not sealed must be dropped.
    pub fn sealed(&self) -> bool {
        self.sealed
    }

    /// Returns the proof, once, after [`crate::Engine::open`] verified the ICV; `None` otherwise.
    pub fn take_ok(&mut self) -> Option<IcvOk> {
        std::mem::take(&mut self.verified).then_some(IcvOk(()))
    }
}

const MOST_JOBS: usize = 64;

/// Jobs of one engine call, in the order in which they were added; a place for the caller's next
/// operations without copies. Aligned to a cache line: the stack has no such alignment, so that
/// operations would straddle lines or not depending on the run, and measurements would vary.
#[derive(Default)]
#[repr(align(64))]
pub struct Jobs<'p>(ArrayVec<Job<'p>, MOST_JOBS>);

impl<'p> Jobs<'p> {
    /// Most jobs: a multi-buffer engine ([`crate::Key::is_multi_buffer`]) processes many packets at
    /// a time.
    pub const MOST: usize = MOST_JOBS;
    /// Jobs of a call for other keys. More would exceed the L1 cache with their packets, fewer
    /// would pay for more calls.
    pub const SINGLE_BUFFER: usize = 16;

    /// Creates an empty list.
    #[inline]
    pub fn new() -> Self {
        Self(ArrayVec::new())
    }

    /// Appends an operation on `packet`.
    ///
    /// # Panics
    /// When there are [`Jobs::MOST`] already: a bug of the caller.
    #[inline]
    pub fn add(&mut self, op: &CryptoOp, packet: &'p mut [u8]) {
        self.0.push(Job::new(*op, packet));
    }

    /// Appends an operation like `op`, with another IV.
    ///
    /// Always inlined, so that the operation is built where it stays: a copy would read bytes right
    /// after they were written, and the failed store forwarding costs a tenth of a small packet.
    ///
    /// # Panics
    /// As [`Jobs::add`].
    #[inline(always)]
    pub fn add_with_iv(&mut self, op: &CryptoOp, iv: u64, packet: &'p mut [u8]) -> Option<&mut CryptoOp> {
        // Without this the compiler keeps a copy of the job for the message of the panic.
        assert!(self.0.len() < Self::MOST);
        self.0.push(Job::new(*op, packet));
        let op = &mut self.0.last_mut()?.op;
        *op.iv.first_chunk_mut()? = iv.to_be_bytes();
        Some(op)
    }

    /// Removes the last job.
    pub fn pop(&mut self) -> Option<Job<'p>> {
        self.0.pop()
    }
}

impl<'p> std::ops::Deref for Jobs<'p> {
    type Target = [Job<'p>];

    #[inline]
    fn deref(&self) -> &[Job<'p>] {
        &self.0
    }
}

impl std::ops::DerefMut for Jobs<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
