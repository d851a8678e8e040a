//! Options and extension headers, one by one: what AH must know to tell mutable fields from others
//! (RFC 4302 appendix A), and where a header chain ends.

use super::{IPV4_HEADER, IPV6_HEADER, MAX_EXTENSIONS, is_extension};
use crate::{IpProto, ParseError};

/// Option type: end of the list in IPv4, Pad1 in IPv6. One byte.
pub const OPT_END: u8 = 0;
/// Option type of IPv4: no operation. One byte.
pub const OPT_NOP: u8 = 1;

/// Position of one option.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IpOption {
    /// Option type, all eight bits.
    pub kind: u8,
    /// Offset of the type byte from the start of the bytes given to the iterator.
    pub at: usize,
    /// Bytes of the option, type and length bytes included.
    pub len: usize,
    mutable: bool,
}

impl IpOption {
    /// True if the option is mutable in transit, so that AH treats it as zero: all except the
    /// immutable ones of RFC 4302 appendix A1 in IPv4, those with the third type bit set in IPv6
    /// (appendix A2). In IPv4 the whole option counts as zero, in IPv6 only its data.
    #[inline]
    pub const fn is_mutable(&self) -> bool {
        self.mutable
    }
}

/// The options of an IPv4 header. Ends at the end-of-list option, which is the last one yielded, or
/// after an error.
#[derive(Clone, Debug)]
pub struct Ipv4Options<'a> {
    header: &'a [u8],
    at: usize,
}

impl<'a> Ipv4Options<'a> {
    /// The options of `header`, which ends where the options end (at
    /// [`IpPacket::upper_at`](super::IpPacket::upper_at)). Offsets count from its start.
    pub fn new(header: &'a [u8]) -> Self {
        Self { header, at: IPV4_HEADER }
    }
}

impl Iterator for Ipv4Options<'_> {
    type Item = Result<IpOption, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (at, &kind) = (self.at, self.header.get(self.at)?);
        // The immutable options of RFC 4302 appendix A1; AH must zero all others.
        let mutable = !matches!(kind, OPT_END | OPT_NOP | 130 | 133 | 134 | 148 | 149);
        if matches!(kind, OPT_END | OPT_NOP) {
            self.at = if kind == OPT_END { self.header.len() } else { at + 1 };
            return Some(Ok(IpOption { kind, at, len: 1, mutable }));
        }
        let len = self.header.get(at + 1).map_or(0, |&len| usize::from(len));
        // A length below 2 would not advance, and the walk would never end.
        let fits = len >= 2 && at + len <= self.header.len();
        self.at = if fits { at + len } else { self.header.len() };
        Some(if fits {
            Ok(IpOption { kind, at, len, mutable })
        } else {
            Err(ParseError::Malformed { what: "IPv4 options", why: "an option has a length that does not fit" })
        })
    }
}

/// The options of an IPv6 hop-by-hop or destination options header. Ends after an error.
#[derive(Clone, Debug)]
pub struct Ipv6Options<'a> {
    header: &'a [u8],
    at: usize,
}

impl<'a> Ipv6Options<'a> {
    /// The options of `header`, one whole extension header. Offsets count from its start.
    pub fn new(header: &'a [u8]) -> Self {
        Self { header, at: 2 }
    }
}

impl Iterator for Ipv6Options<'_> {
    type Item = Result<IpOption, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (at, &kind) = (self.at, self.header.get(self.at)?);
        // The third bit of the type states whether the option may change en route (RFC 8200 §4.2).
        let mutable = kind & 0x20 != 0;
        let len =
            if kind == OPT_END { 1 } else { self.header.get(at + 1).map_or(usize::MAX, |&len| 2 + usize::from(len)) };
        let fits = self.header.len() - at >= len;
        self.at = if fits { at + len } else { self.header.len() };
        Some(if fits {
            Ok(IpOption { kind, at, len, mutable })
        } else {
            Err(ParseError::Malformed { what: "IPv6 options", why: "an option runs over the end of its header" })
        })
    }
}

/// Position of one IPv6 extension header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extension {
    /// Type of the extension header.
    pub proto: IpProto,
    /// Offset of its first byte, which names `next`.
    pub at: usize,
    /// Its bytes, a multiple of 8.
    pub len: usize,
    /// Next Header field.
    pub next: IpProto,
    /// Of a fragment header that is no atomic fragment: identification, byte offset, more.
    pub(super) fragment: Option<(u32, usize, bool)>,
}

/// The extension headers of an IPv6 packet, up to the upper layer or to the fragment header of a
/// real fragment, after which there may be no header. Ends after an error.
#[derive(Clone, Debug)]
pub struct Extensions<'a> {
    packet: &'a [u8],
    next: IpProto,
    at: usize,
    left: u8,
}

impl<'a> Extensions<'a> {
    /// The extension headers of `packet`, which is at least an IPv6 header and ends where the
    /// packet ends.
    pub fn new(packet: &'a [u8]) -> Self {
        Self::after(packet, packet.get(6).map_or(IpProto::NONE, |&next| IpProto(next)), IPV6_HEADER)
    }

    /// The extension headers from the one at `at` on, which an earlier header called `next`.
    pub fn after(packet: &'a [u8], next: IpProto, at: usize) -> Self {
        Self { packet, next, at, left: MAX_EXTENSIONS }
    }

    fn read(&mut self) -> Result<Extension, ParseError> {
        let (proto, at) = (self.next, self.at);
        if self.left == 0 {
            return Err(ParseError::Malformed { what: "IPv6 packet", why: "too many extension headers" });
        }
        self.left -= 1;
        let have = self.packet.len();
        let cut = |need| ParseError::Truncated { what: "IPv6 extension header", need, have };
        let head: &[u8; 8] = self.packet.get(at..).and_then(<[u8]>::first_chunk).ok_or(cut(at + 8))?;
        // The fragment header has a fixed size; its second byte is reserved and not a length.
        let is_fragment = proto == IpProto::FRAGMENT;
        let len = if is_fragment { 8 } else { (usize::from(head[1]) + 1) * 8 };
        if at + len > have {
            return Err(cut(at + len));
        }
        let field = u16::from_be_bytes([head[2], head[3]]);
        // Offset 0 without More Fragments is an atomic fragment, which is a whole packet (RFC
        // 6946).
        let fragment = (is_fragment && field & 0xfff9 != 0).then(|| {
            let id = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
            (id, usize::from(field & 0xfff8), field & 1 != 0)
        });
        Ok(Extension { proto, at, len, next: IpProto(head[0]), fragment })
    }
}

impl Iterator for Extensions<'_> {
    type Item = Result<Extension, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        if !is_extension(self.next) {
            return None;
        }
        let read = self.read();
        // Ends the walk after an error and after a fragment header, whose payload may start
        // anywhere.
        self.next = IpProto::NONE;
        if let Ok(extension) = read
            && extension.fragment.is_none()
        {
            self.next = extension.next;
            self.at = extension.at + extension.len;
        }
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ip::tests::{packet_like, v4_with_options, v6};

    fn v4_options(options: &[u8]) -> Vec<Result<(u8, usize, usize, bool), ParseError>> {
        let packet = v4_with_options(options, &[]);
        Ipv4Options::new(&packet).map(|option| option.map(|o| (o.kind, o.at, o.len, o.is_mutable()))).collect()
    }

    #[test]
    fn ipv4_options_are_found_and_judged() {
        let record_route = [7, 7, 4, 0, 0, 0, 0];
        let options = [&[148, 4, 0, 0][..], &record_route, &[1, 0, 9, 9, 9]].concat();
        assert_eq!(
            v4_options(&options),
            [
                Ok((148, 20, 4, false)),
                Ok((7, 24, 7, true)),
                Ok((1, 31, 1, false)),
                Ok((0, 32, 1, false)), // what follows the end of the list is nothing
            ]
        );
        assert_eq!(v4_options(&[]), []);
    }

    #[test]
    fn only_the_options_of_appendix_a1_are_immutable() {
        let immutable: Vec<u8> = (0..=255)
            .filter(|&kind| v4_options(&[kind, 4, 0, 0])[0].as_ref().is_ok_and(|&(_, _, _, mutable)| !mutable))
            .collect();
        assert_eq!(immutable, [0, 1, 130, 133, 134, 148, 149]);
    }

    #[test]
    fn broken_ipv4_options_end_the_walk() {
        for options in [[7, 0, 0, 0], [7, 1, 0, 0], [7, 5, 0, 0], [1, 1, 1, 7]] {
            let walked = v4_options(&options);
            assert!(walked.last().unwrap().is_err(), "{options:?}");
            assert_eq!(walked.iter().filter(|option| option.is_err()).count(), 1);
        }
    }

    #[test]
    fn ipv6_options_are_found_and_judged() {
        let header = [17, 0, 5, 2, 0, 0, 0, 0x3e];
        let walked: Vec<_> = Ipv6Options::new(&header).collect();
        assert_eq!(walked[0], Ok(IpOption { kind: 5, at: 2, len: 4, mutable: false }));
        assert_eq!(walked[1], Ok(IpOption { kind: 0, at: 6, len: 1, mutable: false }));
        assert!(walked[2].is_err() && walked.len() == 3);
        let header = [17, 0, 0x3e, 4, 1, 2, 3, 4];
        let walked: Vec<_> = Ipv6Options::new(&header).collect();
        assert_eq!(walked, [Ok(IpOption { kind: 0x3e, at: 2, len: 6, mutable: true })]);
    }

    #[test]
    fn extension_headers_are_found() {
        let chain = [[60, 0, 0, 0, 0, 0, 0, 0], [44, 1, 0, 0, 0, 0, 0, 0], [0; 8], [17, 0, 0, 1, 0, 0, 0, 9], [60; 8]];
        let packet = v6(IpProto::HOP_BY_HOP, chain.as_flattened());
        let walked: Vec<_> = Extensions::new(&packet).map(|e| e.map(|e| (e.proto.0, e.at, e.len, e.next.0))).collect();
        assert_eq!(walked, [Ok((0, 40, 8, 60)), Ok((60, 48, 16, 44)), Ok((44, 64, 8, 17))]);
        let cut: Vec<_> = Extensions::new(&packet[..60]).collect();
        assert!(cut[0].is_ok() && cut[1].is_err() && cut.len() == 2);
        assert_eq!(Extensions::new(&[]).count(), 0);
    }

    proptest! {
        #[test]
        fn every_walk_ends_inside_the_bytes(bytes in packet_like()) {
            let mut end = IPV4_HEADER;
            for option in Ipv4Options::new(&bytes).flatten() {
                prop_assert_eq!(option.at, end);
                end = option.at + option.len;
                prop_assert!(end <= bytes.len());
            }
            let mut end = 2;
            for option in Ipv6Options::new(&bytes).flatten() {
                prop_assert_eq!(option.at, end);
                end = option.at + option.len;
                prop_assert!(end <= bytes.len());
            }
            for extension in Extensions::new(&bytes).flatten() {
                prop_assert!(extension.at + extension.len <= bytes.len());
            }
        }
    }
}
