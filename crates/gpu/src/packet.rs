//! A packet as the kernel sees it: a descriptor, a body, a tag.
//!
//! Descriptors precede the bodies in a slot, the first one last, and tags follow the bodies: a
//! launch copies one range to the device, and one range back.

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 48;
/// Maximum bytes of associated data, which is part of the descriptor.
pub const AAD_MAX: usize = 16;
/// Bytes of a tag.
pub(crate) const TAG_BYTES: usize = 16;
/// Items of a work group.
pub const WORK_GROUP: u32 = 64;
/// Maximum lanes per packet.
pub const LANES_MAX: u32 = 32;
/// Lanes that a multiprocessor of a GPU runs in the time of one: four and a half warps, a little
/// more than one for each of its schedulers. Fits the times of an H200 (`tests/lanes.rs`).
pub const LANES_PER_UNIT: usize = 144;
/// Blocks that a lane processes in a turn.
const LANE_BLOCKS: u128 = 2;

/// Descriptor of a packet.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Descriptor {
    /// First byte of the body in the slot; a multiple of 16.
    pub body_at: usize,
    /// Bytes of the body.
    pub body_len: usize,
    /// Bytes of associated data.
    pub aad_len: usize,
    /// Key slot.
    pub key: u32,
    /// Salt and IV.
    pub nonce: [u8; 12],
    /// Returns the tag of the input, not that of the output.
    pub open: bool,
    /// Associated data, filled with zeros.
    pub aad: [u8; AAD_MAX],
}

impl Descriptor {
    /// The descriptor as it is in the slot.
    pub fn bytes(&self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        let mut word = |at: usize, value: u32| bytes[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes());
        word(0, (self.body_at / 4) as u32);
        word(1, self.body_len as u32);
        word(2, self.aad_len as u32);
        word(3, self.key);
        word(7, u32::from(self.open));
        bytes[16..28].copy_from_slice(&self.nonce);
        bytes[32..].copy_from_slice(&self.aad);
        bytes
    }
}

/// Bytes that a body has in a slot.
pub(crate) fn padded(len: usize) -> usize {
    len.next_multiple_of(16)
}

/// Binary logarithm of the lanes per packet that take the least time for `packets` with `bytes` in
/// all, on a device that runs `at_once` lanes in the time of one.
///
/// A turn takes the latency of its instructions if there are few lanes, and grows with the lanes if
/// there are many. In between both count: the time is taken as √(latency² + work²). On an H200 the
/// choice is within 2 % of the best one, where the larger of both is up to 6 % away from it.
pub fn lanes_shift(packets: usize, bytes: usize, at_once: usize) -> u32 {
    let packets = packets.max(1) as u128;
    // Associated data and lengths are a block each.
    let blocks = (bytes as u128).div_ceil(16 * packets) + 2;
    let time_squared = |shift: u32| {
        let (turns, lanes) = (blocks.div_ceil(LANE_BLOCKS << shift), packets << shift);
        turns * turns * (lanes * lanes + (at_once as u128).pow(2))
    };
    // The most lanes of equals: fewer turns, less latency.
    (0..=LANES_MAX.ilog2()).rev().min_by_key(|shift| time_squared(*shift)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_has_the_places_of_the_kernel() {
        let aad = std::array::from_fn(|i| 0xa0 + i as u8);
        let nonce = std::array::from_fn(|i| i as u8);
        let descriptor = Descriptor { body_at: 64, body_len: 2, aad_len: 12, key: 4, nonce, open: true, aad };
        let words: Vec<u32> =
            descriptor.bytes().chunks(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect();
        assert_eq!(words[..8], [16, 2, 12, 4, 0x0302_0100, 0x0706_0504, 0x0b0a_0908, 1]);
        assert_eq!((words[8], words[11]), (0xa3a2_a1a0, 0xafae_adac));
        let number = |name: &str| {
            let line = crate::KERNEL_SOURCE.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            line.and_then(|value| value.parse::<usize>().ok()).expect("a number of the kernel")
        };
        assert_eq!(number("DESCRIPTOR"), DESCRIPTOR_BYTES / 4);
        assert_eq!(number("WORK_GROUP"), WORK_GROUP as usize);
        assert_eq!(number("KEY_WORDS"), crate::KEY_WORDS);
        assert_eq!(number("KEY_ROUNDS"), crate::key::ROUNDS);
        assert_eq!(number("KEY_POWERS"), crate::key::POWERS);
        assert_eq!(
            crate::KEY_WORDS - crate::key::POWERS,
            4 * 2 * LANES_MAX as usize,
            "as many powers as a turn has blocks"
        );
    }

    #[test]
    fn lanes_follow_the_size_when_there_are_enough_packets() {
        // 64 bytes are six blocks, and four lanes have two of eight places for nothing.
        assert_eq!(lanes_shift(1 << 16, 64 << 16, 1 << 14), 0);
        assert_eq!(lanes_shift(1, 1400, 1 << 14), 5);
        assert_eq!(lanes_shift(16, 16 * 1400, 1), lanes_shift(1 << 16, 1400 << 16, 1));
        assert!((0..=5).contains(&lanes_shift(0, 0, 0)));
    }
}
