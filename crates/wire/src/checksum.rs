//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).
//!
//! A [`Sum`] is kept in the byte order of the machine, as RFC 1071 §2(B) allows: only the result is
//! swapped, never the data.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::IpProto;

/// Incremental one's complement sum. Each piece must start at an even offset of the summed data;
/// only the last piece may have an odd length.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Sum(u64);

impl Sum {
    /// Adds `bytes`; an odd last byte counts as if a zero byte followed.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "`sum + bytes` would not show that order and parity matter")]
    pub fn add(self, bytes: &[u8]) -> Self {
        self.add_here(bytes)
    }

    /// [`Sum::add`], always inlined, so that callers compiled for wider vectors
    /// (`#[target_feature]`) use them. Should be used for whole payloads only, because it increases
    /// the code size.
    #[inline(always)]
    pub fn add_here(self, bytes: &[u8]) -> Self {
        // Halves of 64-bit words in sums of 64 bits, which cannot overflow below 32 GiB. A plain
        // index loop without manual lanes: every build vectorises it with unaligned loads, which
        // determines the cost of coalescing and segmenting GSO packets.
        let (words, rest) = bytes.as_chunks::<8>();
        let (mut low, mut high) = (0_u64, 0_u64);
        let mut i = 0;
        while i < words.len() {
            let word = u64::from_ne_bytes(words[i]);
            low += word & 0xffff_ffff;
            high += word >> 32;
            i += 1;
        }
        let last = rest.iter().rev().fold(0, |last, byte| last << 8 | u64::from(*byte));
        let last = u64::from_le(last);
        self.join(low + high + (last & 0xffff_ffff) + (last >> 32))
    }

    /// Adds one 16-bit number given in host order.
    #[inline]
    pub fn add_u16(self, value: u16) -> Self {
        self.join(u64::from(value.to_be()))
    }

    /// Adds one 32-bit number given in host order.
    #[inline]
    pub fn add_u32(self, value: u32) -> Self {
        self.join(u64::from(value.to_be()))
    }

    /// Adds the pseudo header of RFC 9293 §3.1 (IPv4) or RFC 8200 §8.1 (IPv6); `len` is that of the
    /// upper-layer header with its payload, in bytes. Addresses of two families are summed as they
    /// are.
    #[inline]
    pub fn pseudo(self, src: IpAddr, dst: IpAddr, proto: IpProto, len: usize) -> Self {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.pseudo_v4(src, dst, proto, len),
            (IpAddr::V6(src), IpAddr::V6(dst)) => self.pseudo_v6(src, dst, proto, len),
            (IpAddr::V4(a), IpAddr::V6(b)) | (IpAddr::V6(b), IpAddr::V4(a)) => {
                self.add(&a.octets()).add(&b.octets()).add_u32(len as u32).add_u16(u16::from(proto.0))
            }
        }
    }

    /// Adds the IPv4 pseudo header (RFC 768, RFC 9293 §3.1).
    #[inline]
    pub fn pseudo_v4(self, src: Ipv4Addr, dst: Ipv4Addr, proto: IpProto, len: usize) -> Self {
        self.add_u32(src.to_bits()).add_u32(dst.to_bits()).add_u16(u16::from(proto.0)).add_u16(len as u16)
    }

    /// Adds the IPv6 pseudo header (RFC 8200 §8.1).
    #[inline]
    pub fn pseudo_v6(self, src: Ipv6Addr, dst: Ipv6Addr, proto: IpProto, len: usize) -> Self {
        self.add(&src.octets()).add(&dst.octets()).add_u32(len as u32).add_u16(u16::from(proto.0))
    }

    /// Returns the checksum field. The field itself must have been added as zero.
    #[inline]
    pub fn finish(self) -> u16 {
        !self.fold()
    }

    /// Returns true if the added data includes a valid checksum field.
    #[inline]
    pub fn is_valid(self) -> bool {
        self.fold() == 0xffff
    }

    /// The one's complement sum in 16 bits, in host order.
    #[inline]
    pub fn fold(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let sum = (sum >> 32) + (sum & 0xffff_ffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        u16::from_be(((sum >> 16) + (sum & 0xffff)) as u16)
    }

    #[inline]
    fn join(self, addend: u64) -> Self {
        let (sum, carry) = self.0.overflowing_add(addend);
        Self(sum + u64::from(carry))
    }
}

/// The checksum field for up to 65,537 16-bit words with the plain sum `sum`.
#[inline]
pub fn of_sum(sum: u32) -> u16 {
    let sum = (sum >> 16) + (sum & 0xffff);
    !(((sum >> 16) + sum) as u16)
}

/// The one's complement sum of words with the plain sum `sum`, in one word.
#[inline]
pub fn folded(sum: u32) -> u16 {
    !of_sum(sum)
}

/// The checksum field for words with the one's complement sum `sum`, and one more word.
#[inline]
pub fn of_sum_and(sum: u16, word: u16) -> u16 {
    let (sum, carry) = sum.overflowing_add(word);
    !(sum + u16::from(carry))
}

/// Returns the checksum field for `bytes`, in which the field itself must be zero.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::default().add(bytes).finish()
}

/// Returns true if `bytes` include a valid checksum field.
#[inline]
pub fn is_valid(bytes: &[u8]) -> bool {
    Sum::default().add(bytes).is_valid()
}

/// The checksum field after one 16-bit word of the data summed went from `old` to `new`
/// (RFC 1624 §3, equation 3). All in host order.
#[inline]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum >> 16) + (sum & 0xffff);
    !(((sum >> 16) + sum) as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 1071 §1 word by word.
    fn model(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn agrees_with_the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().add(&bytes).fold(), 0xddf2);
    }

    #[test]
    fn agrees_with_the_example_of_rfc_1624() {
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn all_ones_do_not_overflow() {
        for len in 0..200 {
            let bytes = vec![0xff; len];
            assert_eq!(checksum(&bytes), model(&bytes), "{len}");
        }
        assert_eq!(Sum(u64::MAX).join(u64::MAX).fold(), 0xffff);
    }

    #[test]
    fn addresses_of_two_families_do_not_panic() {
        let (v4, v6) = (IpAddr::from([1, 2, 3, 4]), IpAddr::from([7; 16]));
        let there = Sum::default().pseudo(v4, v6, IpProto::UDP, 8).finish();
        assert_eq!(there, Sum::default().pseudo(v6, v4, IpProto::UDP, 8).finish());
    }

    proptest! {
        #[test]
        fn a_word_more_is_as_if_it_had_been_added(words in prop::collection::vec(any::<u16>(), 1..40), more: u16) {
            let sum: u32 = words.iter().map(|word| u32::from(*word)).sum();
            prop_assert_eq!(of_sum_and(folded(sum), more), of_sum(sum + u32::from(more)));
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_model(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(checksum(&bytes), model(&bytes));
        }

        #[test]
        fn pieces_sum_like_the_whole(bytes in proptest::collection::vec(any::<u8>(), 0..100), cut in 0usize..50) {
            let (a, b) = bytes.split_at((cut * 2).min(bytes.len() & !1));
            prop_assert_eq!(Sum::default().add(a).add(b).finish(), model(&bytes));
        }

        #[test]
        fn pseudo_headers_are_the_bytes_of_the_rfcs(
            src: [u8; 16], dst: [u8; 16], proto: u8, len: u16,
        ) {
            let mut v6 = [&src[..], &dst[..]].concat();
            v6.extend_from_slice(&u32::from(len).to_be_bytes());
            v6.extend_from_slice(&[0, 0, 0, proto]);
            let sum = Sum::default().pseudo(src.into(), dst.into(), IpProto(proto), usize::from(len));
            prop_assert_eq!(sum.finish(), model(&v6));

            let (src, dst): ([u8; 4], [u8; 4]) = (*src.first_chunk().unwrap(), *dst.first_chunk().unwrap());
            let mut v4 = [&src[..], &dst[..], &[0, proto]].concat();
            v4.extend_from_slice(&len.to_be_bytes());
            let sum = Sum::default().pseudo(src.into(), dst.into(), IpProto(proto), usize::from(len));
            prop_assert_eq!(sum.finish(), model(&v4));
        }

        #[test]
        fn an_update_equals_a_new_sum(
            mut bytes in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 4..40),
            at in 0usize..16, new in prop_oneof![Just(0u16), Just(0xffff), any::<u16>()],
        ) {
            // Data of a real header is never all zero, where 0x0000 and 0xffff would both be right.
            bytes[0] = 0x45;
            let at = (2 + at * 2 % (bytes.len() - 2)) & !1;
            prop_assume!(at + 2 <= bytes.len());
            let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            let before = model(&bytes);
            bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update(before, old, new), model(&bytes));
        }

        #[test]
        fn a_filled_in_field_is_valid(mut bytes in proptest::collection::vec(any::<u8>(), 2..60)) {
            bytes[0] = 0;
            bytes[1] = 0;
            let sum = checksum(&bytes);
            bytes[..2].copy_from_slice(&sum.to_be_bytes());
            prop_assert!(is_valid(&bytes));
        }
    }
}
