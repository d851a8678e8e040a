//! Fragments of messages, an extension that a vendor ID announces: a whole message in pieces, each
//! in a payload of its own message.
//!
//! Pieces are not authenticated. The reassembly buffer has a bound and holds one message; a message
//! that is complete is used as if it had come whole.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use wire::ike::v1::FragmentPayload;
use wire::ike::{ExchangeType, Header, PayloadType, Payloads};

use super::message::{Features, Head, payloads};
use crate::config::{Connection, Fragmentation};
use crate::output::IkeSpis;

/// Time for all pieces of a message to come.
const PATIENCE: Duration = Duration::from_secs(32);
/// Bytes around the data of a piece: header of the message, generic header, header of the payload.
const OVERHEAD: usize = Header::LEN + 4 + FragmentPayload::HEADER_LEN;
/// Pieces of one message: their number has one byte, and counts from 1.
const PIECES_MAX: usize = 255;

/// Buffer for the pieces of one message.
pub(super) struct Reassembly {
    id: u16,
    pieces: BTreeMap<u8, Vec<u8>>,
    /// Number of the last piece, once it has come.
    last: Option<u8>,
    bytes: usize,
    until: Instant,
}

impl Reassembly {
    /// Adds the piece in a datagram to the message in `slot`; a piece of another message replaces
    /// it. Returns the message when it is complete, which is at most `max` bytes long.
    pub(super) fn add(slot: &mut Option<Box<Self>>, now: Instant, datagram: &[u8], max: usize) -> Option<Vec<u8>> {
        let body = datagram.get(Header::LEN..)?;
        let payload = Payloads::v1(PayloadType::FRAGMENT_V1, body).next()?.ok()?;
        let piece = FragmentPayload::parse(payload.body).ok()?;
        let old = slot.take().filter(|old| old.id == piece.id && old.until > now);
        let mut all = old.unwrap_or_else(|| {
            let until = now + PATIENCE;
            Box::new(Self { id: piece.id, pieces: BTreeMap::new(), last: None, bytes: 0, until })
        });
        // Pieces after the last one, and two last ones, are of different messages.
        let is_beyond = all.last.is_some_and(|last| piece.number > last || (piece.last && piece.number != last));
        let is_short = piece.last && all.pieces.keys().any(|number| *number > piece.number);
        if is_beyond || is_short {
            return None;
        }
        if !all.pieces.contains_key(&piece.number) {
            all.bytes += piece.data.len();
            if all.bytes > max {
                return None;
            }
            all.pieces.insert(piece.number, piece.data.to_vec());
        }
        if piece.last {
            all.last = Some(piece.number);
        }
        if all.last.is_some_and(|last| all.pieces.len() == usize::from(last)) {
            return Some(all.pieces.into_values().flatten().collect());
        }
        *slot = Some(all);
        None
    }
}

/// Returns whether a message is a piece of another one.
pub(super) fn is_piece(header: &Header) -> bool {
    header.next == PayloadType::FRAGMENT_V1 && header.flags & Header::FLAG_V1_ENCRYPTION == 0
}

/// Returns whether messages to a peer are sent in pieces: it has announced that it takes them, or
/// `fragmentation = force`.
pub(super) fn sends(connection: &Connection, features: Features) -> bool {
    match connection.fragmentation {
        Fragmentation::Force => true,
        Fragmentation::Yes => features.fragments,
        Fragmentation::Accept | Fragmentation::No => false,
    }
}

/// The datagrams of a message: one, or its pieces of at most `room` bytes each. Pieces have message
/// ID 0 and the exchange of phase 1, whatever is in them: other implementations expect that.
pub(super) fn split(message: Vec<u8>, cookies: IkeSpis, room: usize, id: u16) -> Vec<Vec<u8>> {
    let data = room.saturating_sub(OVERHEAD).max(1);
    if message.len() <= room || message.len().div_ceil(data) > PIECES_MAX {
        return vec![message];
    }
    let exchange = match message.get(18) {
        Some(4) => ExchangeType::AGGRESSIVE,
        _ => ExchangeType::ID_PROT,
    };
    let head = Head { exchange, ..Head::main(cookies) };
    let count = message.chunks(data).count();
    let piece = |(at, data): (usize, &[u8])| {
        let piece = FragmentPayload { id, number: (at + 1) as u8, last: at + 1 == count, data };
        let mut body = Vec::new();
        piece.emit(&mut body);
        let (first, body) = payloads(|chain| {
            chain.raw(PayloadType::FRAGMENT_V1, &body);
        });
        head.message(false, first, &body)
    };
    message.chunks(data).enumerate().map(piece).collect()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // a test begins at some time
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::output::IkeSpi;

    fn cookies() -> IkeSpis {
        IkeSpis::new(IkeSpi([1; 8]), IkeSpi([2; 8]))
    }

    fn message(len: usize) -> Vec<u8> {
        (0..len).map(|at| at as u8).collect()
    }

    #[test]
    fn a_message_survives_in_any_order() {
        let now = Instant::now();
        let whole = message(3000);
        let mut pieces = split(whole.clone(), cookies(), 500, 7);
        assert!(pieces.iter().all(|piece| piece.len() <= 500));
        for _ in 0..pieces.len() {
            pieces.rotate_left(1);
            let mut slot = None;
            let mut done = None;
            for piece in pieces.iter().chain(&pieces) {
                done = done.or(Reassembly::add(&mut slot, now, piece, 65_536));
            }
            assert_eq!(done.as_ref(), Some(&whole));
        }
        assert_eq!(split(message(500), cookies(), 500, 7), [message(500)]);
        // More pieces than can be counted: in one datagram.
        assert_eq!(split(message(3000), cookies(), 40, 7).len(), 1);
    }

    #[test]
    fn pieces_have_bounds() {
        let now = Instant::now();
        let pieces = split(message(3000), cookies(), 500, 7);
        let feed = |slot: &mut Option<Box<Reassembly>>, now, max| {
            pieces.iter().filter_map(|piece| Reassembly::add(slot, now, piece, max)).next()
        };
        assert_eq!(feed(&mut None, now, 2999), None);
        assert!(feed(&mut None, now, 3000).is_some());
        // Late, and of another message.
        let mut slot = None;
        Reassembly::add(&mut slot, now, &pieces[0], 65_536);
        for piece in &pieces[1..] {
            assert_eq!(Reassembly::add(&mut slot, now + PATIENCE, piece, 65_536), None);
        }
        let mut slot = None;
        Reassembly::add(&mut slot, now, &pieces[0], 65_536);
        let other = split(message(3000), cookies(), 500, 8);
        Reassembly::add(&mut slot, now, &other[0], 65_536);
        for piece in &pieces[1..] {
            assert_eq!(Reassembly::add(&mut slot, now, piece, 65_536), None);
        }
        // A last piece in the middle.
        let mut slot = None;
        Reassembly::add(&mut slot, now, &pieces[3], 65_536);
        let mut last = pieces[1].clone();
        last[Header::LEN + 4 + 3] = 1;
        assert_eq!(Reassembly::add(&mut slot, now, &last, 65_536), None);
        assert!(slot.is_none());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..80), more: Vec<Vec<u8>>) {
            let mut slot = None;
            for bytes in more.iter().chain([&bytes]) {
                let datagram = [&[0; Header::LEN], &bytes[..]].concat();
                if let Some(whole) = Reassembly::add(&mut slot, Instant::now(), &datagram, 100) {
                    prop_assert!(whole.len() <= 100);
                }
            }
        }
    }
}
