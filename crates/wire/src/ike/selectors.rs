//! Traffic Selector payloads (RFC 7296 §3.13).

use std::net::IpAddr;

use super::{TsType, take, take_slice};
use crate::{AddrRange, IpProto, ParseError, PortRange, TrafficSelector};

const WHAT: &str = "traffic selector";

/// Body of a TSi or TSr payload. It holds at most 255 selectors: their number is one byte.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ts<'a> {
    count: u8,
    selectors: &'a [u8],
}

impl<'a> Ts<'a> {
    /// Selectors that fit into one payload.
    pub const MAX_SELECTORS: usize = 255;

    /// Reads the body of a TS payload; the selectors are read one by one.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 4 bytes.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let ([count, ..], selectors) = take::<4>("TS payload", body)?;
        Ok(Self { count: *count, selectors })
    }

    /// The selectors.
    pub const fn selectors(&self) -> TsSelectors<'a> {
        TsSelectors { left: self.count, rest: self.selectors }
    }

    /// Appends a body with these selectors, at most [`Self::MAX_SELECTORS`].
    pub fn emit(selectors: &[TrafficSelector], out: &mut Vec<u8>) {
        debug_assert!(selectors.len() <= Self::MAX_SELECTORS);
        out.extend([selectors.len() as u8, 0, 0, 0]);
        selectors.iter().for_each(|selector| emit_selector(selector, out));
    }
}

fn emit_selector(selector: &TrafficSelector, out: &mut Vec<u8>) {
    let mut head = |kind: TsType, len: u8| {
        out.extend([kind.0, selector.proto.map_or(0, |proto| proto.0), 0, len]);
        out.extend(selector.ports.start.to_be_bytes());
        out.extend(selector.ports.end.to_be_bytes());
    };
    match (selector.addrs.start, selector.addrs.end) {
        (IpAddr::V4(start), IpAddr::V4(end)) => {
            head(TsType::IPV4_ADDR_RANGE, 16);
            out.extend(start.octets());
            out.extend(end.octets());
        }
        // Both are IPv6: a range is of one family.
        (start, end) => {
            head(TsType::IPV6_ADDR_RANGE, 40);
            out.extend(v6(start));
            out.extend(v6(end));
        }
    }
}

fn v6(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V6(addr) => addr.octets(),
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
    }
}

/// Reads selectors one after the other; `None` inside is a selector of an unknown type, which
/// should be skipped. Ends after the first error.
#[derive(Clone, Copy, Debug)]
pub struct TsSelectors<'a> {
    left: u8,
    rest: &'a [u8],
}

impl TsSelectors<'_> {
    fn read(&mut self) -> Result<Option<TrafficSelector>, ParseError> {
        let ([kind, proto, l0, l1], _) = take(WHAT, self.rest)?;
        let (selector, rest) = take_slice(WHAT, self.rest, u16::from_be_bytes([*l0, *l1]).into())?;
        let body = selector.get(4..).ok_or(malformed("length below its header"))?;
        // Advance before the type is checked, so that an unknown type is skipped (RFC 7296 §2.9).
        (self.rest, self.left) = (rest, self.left.saturating_sub(1));
        match TsType(*kind) {
            TsType::IPV4_ADDR_RANGE => parse_ranges::<4>(*proto, body).map(Some),
            TsType::IPV6_ADDR_RANGE => parse_ranges::<16>(*proto, body).map(Some),
            _ => Ok(None),
        }
    }
}

fn malformed(why: &'static str) -> ParseError {
    ParseError::Malformed { what: WHAT, why }
}

/// Ports, then two addresses of `LEN` bytes.
fn parse_ranges<const LEN: usize>(proto: u8, body: &[u8]) -> Result<TrafficSelector, ParseError>
where
    IpAddr: From<[u8; LEN]>,
{
    let ([s0, s1, e0, e1], rest) = take(WHAT, body)?;
    let (start, rest) = take::<LEN>(WHAT, rest)?;
    let (end, rest) = take::<LEN>(WHAT, rest)?;
    if !rest.is_empty() {
        return Err(malformed("length is not that of its type"));
    }
    let addrs = AddrRange::new(IpAddr::from(*start), IpAddr::from(*end)).ok_or(malformed("addresses reversed"))?;
    let ports = PortRange { start: u16::from_be_bytes([*s0, *s1]), end: u16::from_be_bytes([*e0, *e1]) };
    // OPAQUE is the one valid reversed range: 65535 to 0 (RFC 7296 §3.13.1).
    if ports.start > ports.end && ports != PortRange::OPAQUE {
        return Err(malformed("ports reversed"));
    }
    Ok(TrafficSelector { addrs, proto: (proto != 0).then_some(IpProto(proto)), ports })
}

impl Iterator for TsSelectors<'_> {
    type Item = Result<Option<TrafficSelector>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = match (self.left, self.rest) {
            (0, []) => return None,
            // Bytes after the last selector are an error, because a peer could hide a selector
            // there.
            (0, _) => Err(malformed("more than announced")),
            _ => self.read(),
        };
        if read.is_err() {
            (self.left, self.rest) = (0, &[]);
        }
        Some(read)
    }
}
