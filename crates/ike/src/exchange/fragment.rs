//! IKE fragmentation (RFC 7383). Each fragment was verified before it comes here, so only the peer
//! itself can make a reassembly grow, up to `reassembly_max` bytes and [`FRAGMENTS_MAX`] parts.

use std::net::SocketAddr;

use crypto::ike::SkSuite;
use wire::ike::PayloadType;

/// Fragments of one message: 24 bytes each besides their contents. Peers that cut small were seen
/// to send some twenty.
pub(super) const FRAGMENTS_MAX: u16 = 256;

/// The smallest room for a datagram that is used, whatever is configured.
const ROOM_MIN: usize = 256;

/// Bytes of a datagram's UDP payload, non-ESP marker not counted, under `fragment_size`.
pub(crate) fn room(fragment_size: usize, remote: SocketAddr) -> usize {
    const UDP_AND_MARKER: usize = 8 + 4;
    let ip = if remote.is_ipv6() { 40 } else { 20 };
    // A lower limit, so that a small configured size cannot produce thousands of fragments.
    fragment_size.saturating_sub(ip + UDP_AND_MARKER).max(ROOM_MIN)
}

/// The longest plaintext that makes an encrypted body of at most `room` bytes.
pub(super) fn plaintext_len(suite: &SkSuite, room: usize) -> usize {
    let ciphertext = room.saturating_sub(suite.iv_len() + suite.icv_len());
    let whole_blocks = ciphertext - ciphertext % suite.block_len();
    // One byte is the Pad Length.
    whole_blocks.saturating_sub(1).max(1)
}

/// One fragment, decrypted.
pub(super) struct Fragment {
    pub(super) message_id: u32,
    /// From 1 to `total`.
    pub(super) number: u16,
    pub(super) total: u16,
    /// Type of the first payload of the message; counts in the first fragment only.
    pub(super) first: PayloadType,
    /// Of the datagram.
    pub(super) digest: u64,
    pub(super) bytes: Vec<u8>,
}

/// A message put together.
pub(super) struct Whole {
    pub(super) first: PayloadType,
    pub(super) digest: u64,
    pub(super) bytes: Vec<u8>,
}

/// The fragments of one message so far.
pub(super) struct Reassembly {
    message_id: u32,
    first: PayloadType,
    digest: u64,
    parts: Vec<Option<Vec<u8>>>,
    missing: usize,
    len: usize,
}

impl Reassembly {
    /// Adds a fragment to the message in `slot`; gives the message when it is complete. Of two
    /// fragmentations of one message the finer wins (RFC 7383 §2.6).
    pub(super) fn add(slot: &mut Option<Box<Self>>, fragment: Fragment, max: usize) -> Option<Whole> {
        // The fragment is authentic, but a peer with keys must not exhaust memory either.
        if fragment.total > FRAGMENTS_MAX || fragment.number == 0 || fragment.number > fragment.total {
            return None;
        }
        let total = usize::from(fragment.total);
        match slot {
            // A larger total replaces the buffer: the peer has switched to smaller fragments (RFC
            // 7383 §2.5.2). Late fragments with the smaller total are ignored.
            Some(have) if have.message_id == fragment.message_id && have.parts.len() >= total => {
                if have.parts.len() > total {
                    return None;
                }
            }
            _ => {
                let parts = vec![None; total];
                let (message_id, missing) = (fragment.message_id, total);
                *slot =
                    Some(Box::new(Self { message_id, first: PayloadType::NONE, digest: 0, parts, missing, len: 0 }));
            }
        }
        let have = slot.as_mut()?;
        let place = have.parts.get_mut(usize::from(fragment.number) - 1)?;
        // The first copy stays: a duplicate would be subtracted from `missing` twice and complete
        // the message with a gap.
        if place.is_some() {
            return None;
        }
        // Free the buffer at once, because the message can no longer be completed.
        if have.len + fragment.bytes.len() > max {
            *slot = None;
            return None;
        }
        if fragment.number == 1 {
            // The digest of the first fragment identifies a retransmission of the message.
            (have.first, have.digest) = (fragment.first, fragment.digest);
        }
        have.len += fragment.bytes.len();
        have.missing -= 1;
        *place = Some(fragment.bytes);
        if have.missing > 0 {
            return None;
        }
        let done = slot.take()?;
        Some(Whole {
            first: done.first,
            digest: done.digest,
            bytes: done.parts.into_iter().flatten().flatten().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(number: u16, total: u16, byte: u8) -> Fragment {
        let first = if number == 1 { PayloadType::IDi } else { PayloadType::NONE };
        Fragment { message_id: 1, number, total, first, digest: u64::from(byte), bytes: vec![byte; 10] }
    }

    fn add(slot: &mut Option<Box<Reassembly>>, number: u16, total: u16) -> Option<Vec<u8>> {
        Reassembly::add(slot, fragment(number, total, number as u8), 1000).map(|whole| {
            assert_eq!((whole.first, whole.digest), (PayloadType::IDi, 1));
            whole.bytes
        })
    }

    #[test]
    fn fragments_in_any_order_and_twice_make_one_message() {
        let mut slot = None;
        assert_eq!(add(&mut slot, 3, 3), None);
        assert_eq!(add(&mut slot, 1, 3), None);
        assert_eq!(add(&mut slot, 3, 3), None);
        let want = [[1; 10], [2; 10], [3; 10]].concat();
        assert_eq!(add(&mut slot, 2, 3), Some(want));
        assert!(slot.is_none());
    }

    #[test]
    fn a_finer_fragmentation_starts_anew_and_a_coarser_one_is_ignored() {
        let mut slot = None;
        assert_eq!(add(&mut slot, 1, 2), None);
        assert_eq!(add(&mut slot, 1, 3), None);
        assert_eq!(add(&mut slot, 2, 2), None);
        assert_eq!(add(&mut slot, 2, 3), None);
        assert_eq!(add(&mut slot, 3, 3).map(|bytes| bytes.len()), Some(30));
    }

    #[test]
    fn growth_has_two_bounds() {
        let mut slot = None;
        assert!(Reassembly::add(&mut slot, fragment(1, u16::MAX, 1), 1000).is_none() && slot.is_none());
        assert!(Reassembly::add(&mut slot, fragment(0, 2, 1), 1000).is_none() && slot.is_none());
        assert!(Reassembly::add(&mut slot, fragment(1, 3, 1), 15).is_none());
        assert!(Reassembly::add(&mut slot, fragment(2, 3, 1), 15).is_none() && slot.is_none());
    }

    #[test]
    fn a_fragment_fills_its_room_and_no_more() {
        for suite in SkSuite::all() {
            for room in [100, 101, 500, 1200, 1201] {
                let len = plaintext_len(&suite, room);
                assert!(suite.sealed_len(len) <= room && suite.sealed_len(len + suite.block_len()) > room);
            }
        }
    }
}
