//! Receiving side: AGGFRAG payloads into inner packets.

use std::collections::VecDeque;
use std::ops::Range;

use wire::aggfrag::Header;
use wire::ip::{self, IPV4_HEADER, IPV6_HEADER};

use super::{Buffers, MAX_INNER, MAX_REORDER_WINDOW, Settings};
use crate::DropReason;

/// An inner packet, or the reason why bytes of an outer packet contain none.
#[derive(Debug, Eq, PartialEq)]
pub enum Inner<'a> {
    /// A whole IP packet: version, header length and total length are consistent.
    Packet(&'a [u8]),
    /// An inner packet, a piece of one, or the rest of a payload was dropped.
    Dropped(DropReason),
}

/// An inner packet, perhaps in the buffer of its payload.
#[derive(Debug, Eq, PartialEq)]
pub enum Taken<'a, B> {
    /// Elsewhere, or one that is dropped.
    Inner(Inner<'a>),
    /// A whole IP packet, in this range of the payload. The payload has no other.
    Last(B, Range<usize>),
}

/// Receiver of one stream: of an inbound SA, or of one Sub SA, with payloads in buffers `B`.
///
/// The first outer packets may be reordered, so the stream starts at sequence number 1. A number
/// beyond the window skips the missing ones at once.
///
/// Outer packets that arrive after they were given up form a second stream with a partial packet of
/// its own. Cores of the sender reserve blocks of numbers; if one core sends late, its packets are
/// in order among themselves and all of them are of use.
pub struct Receiver<B> {
    settings: Settings,
    /// Next sequence number in order.
    next: u64,
    /// Packets with higher numbers, in order of their numbers.
    held: Vec<(u64, B)>,
    /// Time at which packets missing before the first of `held` are given up, in ms.
    drop_at_ms: u64,
    /// Packets to parse, in order.
    ready: VecDeque<Ready<B>>,
    current: Option<Current<B>>,
    streams: [Stream; 2],
    /// Time of the last packet in ms.
    now_ms: u64,
    /// Pieces were discarded by [`Receiver::expire`], which is not reported yet.
    incomplete: bool,
}

struct Ready<B> {
    seq: u64,
    payload: B,
    stream: usize,
}

/// Least time to wait for the next piece of a partial packet in order, in ms. Until then it uses a
/// buffer of the worker.
const PARTIAL_MS: u64 = 1000;

/// Number of different deadlines of a receiver.
pub const DEADLINES: usize = 3;

/// Index of the stream of packets in order, and of those given up before.
const IN_ORDER: usize = 0;
const LATE: usize = 1;

/// Payload that is being parsed.
struct Current<B> {
    payload: B,
    /// Offset of the next block.
    at: usize,
    stream: usize,
    /// Its first block is the end of a partial packet.
    head: bool,
    /// No inner packet or piece was found yet.
    empty: bool,
}

/// Consecutive outer packets, and an inner packet that is cut between them.
#[derive(Default)]
struct Stream {
    /// Sequence number that continues the partial packet.
    expected: u64,
    partial: Option<Partial>,
    /// Time of its last piece in ms.
    piece_ms: u64,
    /// Bytes that remain of a block that was dropped.
    skip: usize,
    /// The partial packet is complete and was returned.
    complete: bool,
}

struct Partial {
    buffer: Box<[u8]>,
    have: usize,
}

/// Result of a parsing step.
enum Step {
    /// An inner packet in the payload.
    Block(Range<usize>),
    /// The partial packet of the stream is complete.
    Complete(usize),
    Dropped(DropReason),
    /// The payload has no further blocks.
    End,
    Continue,
}

/// Length of the packet that starts `block`; `None` if the length field is cut off.
///
/// # Errors
/// [`DropReason::BadInner`]: no packet starts like that.
fn block_len(block: &[u8]) -> Result<Option<usize>, DropReason> {
    let field = |at: usize| block.get(at..at + 2).map(|field| usize::from(u16::from_be_bytes([field[0], field[1]])));
    let len = match block.first().map(|first| (first >> 4, first & 15)) {
        // A header without options has 5 words.
        Some((4, 5..)) => field(2).map(|len| (len, len >= IPV4_HEADER)),
        // A jumbogram has payload length 0 (RFC 2675), and its length is not where it is expected.
        Some((6, _)) => field(4).map(|len| (IPV6_HEADER + len, len > 0 && IPV6_HEADER + len <= MAX_INNER)),
        _ => return Err(DropReason::BadInner),
    };
    match len {
        Some((len, true)) => Ok(Some(len)),
        Some((_, false)) => Err(DropReason::BadInner),
        None => Ok(None),
    }
}

impl Stream {
    /// Starts with packet `seq`. Returns whether pieces of a packet were discarded, because others
    /// are missing.
    fn follow(&mut self, seq: u64, buffers: &mut Buffers) -> bool {
        let follows = seq == self.expected;
        self.expected = seq + 1;
        if follows {
            return false;
        }
        self.skip = 0;
        self.discard(buffers)
    }

    /// Returns the buffer of the partial packet to the pool, and whether there was one.
    fn discard(&mut self, buffers: &mut Buffers) -> bool {
        let partial = self.partial.take();
        let any = partial.is_some();
        if let Some(partial) = partial {
            buffers.give(partial.buffer);
        }
        any
    }

    /// Begins a partial packet with `piece`.
    fn begin(&mut self, piece: &[u8], len: Option<usize>, buffers: &mut Buffers) -> Result<(), DropReason> {
        match buffers.take() {
            Some(mut buffer) => {
                buffer[..piece.len()].copy_from_slice(piece);
                self.partial = Some(Partial { buffer, have: piece.len() });
                Ok(())
            }
            None => {
                // The rest of the same packet is not another loss.
                self.skip = len.map_or(0, |len| len - piece.len());
                Err(DropReason::ReassemblyFull)
            }
        }
    }
}

impl Partial {
    /// Adds the start of `blocks`, in which `offset` bytes of this packet remain, of which some may
    /// be in later payloads. Returns true if the packet is complete.
    ///
    /// # Errors
    /// [`DropReason::AggfragIncomplete`]: the bytes are not of this packet.
    fn add(&mut self, blocks: &[u8], offset: usize) -> Result<bool, DropReason> {
        let total = self.have + offset;
        let piece = &blocks[..offset.min(blocks.len())];
        let room = self.buffer.get_mut(self.have..self.have + piece.len()).ok_or(DropReason::AggfragIncomplete)?;
        room.copy_from_slice(piece);
        self.have += piece.len();
        match block_len(&self.buffer[..self.have]) {
            Ok(Some(len)) if len == total => Ok(self.have == total),
            // A length field that is still cut off belongs to a longer packet.
            Ok(None) if self.have < total => Ok(false),
            _ => Err(DropReason::AggfragIncomplete),
        }
    }
}

impl<B: AsRef<[u8]>> Receiver<B> {
    /// A receiver at the start of a stream.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            next: 1,
            held: Vec::new(),
            drop_at_ms: 0,
            ready: VecDeque::new(),
            current: None,
            streams: [Stream { expected: 1, ..Stream::default() }, Stream::default()],
            now_ms: 0,
            incomplete: false,
        }
    }

    fn drop_time_ms(&self) -> u64 {
        self.settings.drop_time_ms.into()
    }

    /// Time at which the partial packet of a stream is given up, in ms. The packets of late ones
    /// should have come already; in order a peer may send the rest later.
    fn partial_until_ms(&self, stream: usize) -> Option<u64> {
        let wait = if stream == LATE { self.drop_time_ms() } else { self.drop_time_ms().max(PARTIAL_MS) };
        let Stream { partial, piece_ms, .. } = &self.streams[stream];
        partial.as_ref().map(|_| piece_ms + wait)
    }

    /// Most packets that wait for missing ones.
    fn window(&self) -> u64 {
        self.settings.reorder_window.min(MAX_REORDER_WINDOW).into()
    }

    /// Takes the AGGFRAG payload of the outer packet `seq`, which is authentic and no replay. The
    /// caller should then take the inner packets with [`Receiver::next`]. Returns the payload of a
    /// packet that is already held.
    pub fn push(&mut self, now_ms: u64, seq: u64, payload: B) -> Option<B> {
        self.now_ms = now_ms;
        if seq < self.next {
            self.ready.push_back(Ready { seq, payload, stream: LATE });
            return None;
        }
        while seq - self.next > self.window() {
            match self.held.first() {
                Some(&(first, _)) if first < seq => self.give_up(first),
                _ => self.next = seq,
            }
        }
        if seq == self.next {
            self.ready.push_back(Ready { seq, payload, stream: IN_ORDER });
            self.give_up(seq + 1);
            return None;
        }
        if self.held.is_empty() {
            self.drop_at_ms = self.now_ms + self.drop_time_ms();
        }
        // The numbers differ, so that at most a window of them is held.
        let Err(at) = self.held.binary_search_by_key(&seq, |&(held, _)| held) else { return Some(payload) };
        self.held.insert(at, (seq, payload));
        None
    }

    /// Gives up all missing packets, so that no payload is held any more.
    pub fn give_up_missing(&mut self) {
        while let Some(&(first, _)) = self.held.first() {
            self.give_up(first);
        }
    }

    /// Gives up packets before `next`, and releases those held from there on.
    fn give_up(&mut self, next: u64) {
        self.next = next;
        if self.held.is_empty() {
            return;
        }
        let follow = |&&(seq, _): &&(u64, B)| {
            let follows = seq == self.next;
            self.next += u64::from(follows);
            follows
        };
        let count = self.held.iter().take_while(follow).count();
        let released = self.held.drain(..count);
        self.ready.extend(released.map(|(seq, payload)| Ready { seq, payload, stream: IN_ORDER }));
        if count > 0 {
            // Further packets have gaps of their own.
            self.drop_at_ms = self.now_ms + self.drop_time_ms();
        }
    }

    /// Times at which [`Receiver::expire`] is due, in ms: for missing packets, and for the partial
    /// packets of both streams. A later packet makes none of them earlier.
    pub fn deadlines_ms(&self) -> [Option<u64>; DEADLINES] {
        let held = (!self.held.is_empty()).then_some(self.drop_at_ms);
        [held, self.partial_until_ms(IN_ORDER), self.partial_until_ms(LATE)]
    }

    /// Gives up missing packets for which the drop time has passed, and partial packets without
    /// another piece for a while. Returns true if there are results to take.
    pub fn expire(&mut self, now_ms: u64, buffers: &mut Buffers) -> bool {
        self.now_ms = now_ms;
        if let Some(&(first, _)) = self.held.first()
            && now_ms >= self.drop_at_ms
        {
            self.give_up(first);
        }
        for stream in [IN_ORDER, LATE] {
            // A complete one was returned, and its buffer is still to be given back.
            let is_due = self.partial_until_ms(stream).is_some_and(|until| now_ms >= until);
            if is_due && !self.streams[stream].complete {
                self.incomplete |= self.streams[stream].discard(buffers);
            }
        }
        self.is_ready()
    }

    /// Returns true if payloads remain to be parsed.
    pub fn is_ready(&self) -> bool {
        self.incomplete || self.current.is_some() || !self.ready.is_empty()
    }

    /// Calls `each` for the whole packets that come next in the current payload, without its last
    /// one, as long as it returns true; a packet for which it returns false is still to be taken.
    /// All others are for [`Receiver::take`].
    #[inline]
    pub fn take_whole(&mut self, mut each: impl FnMut(&[u8]) -> bool) {
        let Some(Current { payload, at, empty, head: false, .. }) = &mut self.current else { return };
        let payload = payload.as_ref();
        while let Some(block) = payload.get(*at..)
            && let Ok(Some(len)) = block_len(block)
            && let Some((packet, [next, ..])) = block.split_at_checked(len)
            && next >> 4 != 0
            && ip::Brief::read(packet).is_ok()
            && each(packet)
        {
            (*at, *empty) = (*at + len, false);
        }
    }

    /// Returns the next inner packet; `None` if there is none before the next outer packet. The
    /// last packet of a payload comes with the buffer, and need not be copied. `recycle` gets the
    /// buffers of other payloads that were parsed.
    #[inline]
    pub fn take(&mut self, buffers: &mut Buffers, recycle: &mut impl FnMut(B)) -> Option<Taken<'_, B>> {
        if std::mem::take(&mut self.incomplete) {
            return Some(Taken::Inner(Inner::Dropped(DropReason::AggfragIncomplete)));
        }
        loop {
            for stream in &mut self.streams {
                if std::mem::take(&mut stream.complete) {
                    stream.discard(buffers);
                }
            }
            let step = match &mut self.current {
                Some(current) => {
                    let stream = &mut self.streams[current.stream];
                    stream.piece_ms = self.now_ms;
                    current.step(&self.settings, stream, buffers)
                }
                None => {
                    let Ready { seq, payload, stream } = self.ready.pop_front()?;
                    let lost = self.follow(stream, seq, buffers);
                    self.current = Some(Current { payload, at: 0, stream, head: true, empty: true });
                    if lost { Step::Dropped(DropReason::AggfragIncomplete) } else { Step::Continue }
                }
            };
            match step {
                Step::Continue => {}
                Step::End => recycle(self.current.take()?.payload),
                Step::Dropped(why) => return Some(Taken::Inner(Inner::Dropped(why))),
                Step::Block(range) if self.current.as_ref()?.ends() => {
                    return Some(Taken::Last(self.current.take()?.payload, range));
                }
                Step::Block(range) => {
                    let packet = self.current.as_ref()?.payload.as_ref().get(range)?;
                    return Some(Taken::Inner(Inner::Packet(packet)));
                }
                Step::Complete(len) => {
                    let stream = &mut self.streams[self.current.as_ref()?.stream];
                    stream.complete = true;
                    return Some(Taken::Inner(Inner::Packet(stream.partial.as_ref()?.buffer.get(..len)?)));
                }
            }
        }
    }

    /// Continues `stream` with packet `seq`. Returns whether pieces of a packet were discarded.
    fn follow(&mut self, stream: usize, seq: u64, buffers: &mut Buffers) -> bool {
        let [in_order, late] = &mut self.streams;
        if stream == IN_ORDER && seq != in_order.expected && in_order.partial.is_some() {
            // Its rest may still arrive, late.
            let lost = late.discard(buffers);
            *late = std::mem::take(in_order);
            (in_order.expected, late.piece_ms) = (seq + 1, self.now_ms);
            return lost;
        }
        self.streams[stream].follow(seq, buffers)
    }

    /// Returns all buffers, at the end of the SA.
    pub fn clear(&mut self, buffers: &mut Buffers, recycle: &mut impl FnMut(B)) {
        for stream in &mut self.streams {
            stream.discard(buffers);
        }
        self.held.drain(..).for_each(|(_, payload)| recycle(payload));
        self.ready.drain(..).for_each(|ready| recycle(ready.payload));
        self.current.take().into_iter().for_each(|current| recycle(current.payload));
    }

    /// Payload buffers in use.
    pub fn payloads(&self) -> usize {
        self.held.len() + self.ready.len() + usize::from(self.current.is_some())
    }
}

impl<B: AsRef<[u8]>> Current<B> {
    /// Returns whether no block remains: padding at most.
    #[inline]
    fn ends(&self) -> bool {
        self.payload.as_ref().get(self.at).is_none_or(|first| first >> 4 == 0)
    }

    fn step(&mut self, settings: &Settings, stream: &mut Stream, buffers: &mut Buffers) -> Step {
        let payload = self.payload.as_ref();
        if self.head {
            self.head = false;
            return match Header::parse(payload) {
                Ok((header, blocks)) => {
                    self.at = payload.len() - blocks.len();
                    let (offset, len) = (header.block_offset(), blocks.len());
                    let step = Self::head(blocks, offset, stream, buffers);
                    self.at += offset.min(len);
                    self.empty &= offset == 0;
                    step
                }
                Err(_) => {
                    self.at = payload.len();
                    self.empty = false;
                    Step::Dropped(DropReason::BadInner)
                }
            };
        }
        let block = payload.get(self.at..).unwrap_or(&[]);
        // Padding: to the end of the payload.
        if block.first().is_none_or(|first| first >> 4 == 0) {
            self.at = payload.len();
            // Nothing but padding: a packet that hides the lack of traffic.
            let dummy = std::mem::take(&mut self.empty);
            return if dummy { Step::Dropped(DropReason::Dummy) } else { Step::End };
        }
        self.empty = false;
        match block_len(block) {
            Ok(Some(len)) if len <= block.len() => {
                let range = self.at..self.at + len;
                self.at = range.end;
                // The header length, too.
                if ip::Brief::read(&payload[range.clone()]).is_ok() {
                    Step::Block(range)
                } else {
                    Step::Dropped(DropReason::BadInner)
                }
            }
            Ok(len) => {
                self.at = payload.len();
                if settings.refuse_fragments {
                    stream.skip = len.map_or(0, |len| len - block.len());
                    return Step::Dropped(DropReason::Fragment);
                }
                match stream.begin(block, len, buffers) {
                    Ok(()) => Step::Continue,
                    Err(why) => Step::Dropped(why),
                }
            }
            // Without a length the next block cannot be found.
            Err(why) => {
                self.at = payload.len();
                Step::Dropped(why)
            }
        }
    }

    /// The end of a packet that began in an earlier payload: `offset` bytes, some of which may
    /// follow in later payloads.
    fn head(blocks: &[u8], offset: usize, stream: &mut Stream, buffers: &mut Buffers) -> Step {
        let skip = std::mem::take(&mut stream.skip);
        if offset == 0 {
            // A payload of padding alone may be between the pieces (RFC 9347 §2.2.3).
            let all_pad = blocks.first().is_none_or(|first| first >> 4 == 0);
            if all_pad {
                stream.skip = skip;
                return Step::Continue;
            }
            return if stream.discard(buffers) { Step::Dropped(DropReason::AggfragIncomplete) } else { Step::Continue };
        }
        let Some(partial) = &mut stream.partial else {
            stream.skip = offset.saturating_sub(blocks.len());
            // A block that is already counted is not another loss.
            return if skip == offset { Step::Continue } else { Step::Dropped(DropReason::AggfragIncomplete) };
        };
        match partial.add(blocks, offset) {
            Ok(false) => Step::Continue,
            Ok(true) if ip::Brief::read(&partial.buffer[..partial.have]).is_ok() => Step::Complete(partial.have),
            Ok(true) => {
                stream.discard(buffers);
                Step::Dropped(DropReason::BadInner)
            }
            Err(why) => {
                stream.discard(buffers);
                stream.skip = offset.saturating_sub(blocks.len());
                Step::Dropped(why)
            }
        }
    }
}

#[cfg(test)]
impl<B> Receiver<B> {
    /// Returns whether a packet is incomplete.
    pub(super) fn streams_in_use(&self) -> bool {
        self.streams.iter().any(|stream| stream.partial.is_some())
    }
}
