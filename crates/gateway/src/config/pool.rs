//! The sections of `pools`: addresses for clients and attributes sent to them.

use std::net::IpAddr;

use ike::config::PoolConfig;
use wire::AddrRange;

use super::schema::POOL;
use super::syntax::Section;
use super::value::{Fields, Sink, ValueError, items, parsed};

/// Attribute types of a key (RFC 7296 §3.15.1, RFC 7651 and the private ones of Cisco and
/// Microsoft): IPv4, IPv6.
const TYPES: &[(&str, u16, u16)] = &[
    ("dns", 3, 10),
    ("nbns", 4, 11),
    ("dhcp", 6, 12),
    ("netmask", 2, 9),
    ("server", 23_456, 23_457),
    ("subnet", 13, 15),
    ("p_cscf", 20, 21),
    ("split_include", 28_676, 28_676),
    ("split_exclude", 28_678, 28_678),
];
/// Highest attribute type: the field has 15 bits.
const MAX_TYPE: u16 = 0x7fff;
/// Longest value of an attribute in bytes, so that a CP payload with several fits a message.
const MAX_VALUE_BYTES: usize = 1024;

/// Reads one section. Names of attributes are keys, or numbers.
pub(crate) fn read(section: &Section, path: &str, sink: &Sink) -> Option<PoolConfig> {
    let fields = Fields::new(section, path.to_owned(), sink);
    let before = sink.count();
    let addrs = fields.need("addrs", pool);
    let mut attributes = Vec::new();
    for (key, v4, v6) in TYPES {
        let network = matches!(*key, "subnet" | "split_include" | "split_exclude");
        let read = fields.list(key, |text| attribute(text, *v4, *v6, network));
        attributes.extend(read.unwrap_or_default());
    }
    let mut rest = section.clone();
    rest.settings.retain(|setting| match setting.name.parse::<u16>() {
        Ok(kind @ 1..=MAX_TYPE) => {
            attributes.extend(items(setting).iter().map(|value| (kind, raw(value))));
            false
        }
        _ => true,
    });
    // The rest are known keys that were already read, and unknown keys.
    let rest = Fields::of(&rest, path.to_owned(), POOL, sink);
    for key in POOL {
        let _ = rest.setting(key.name);
    }
    rest.finish(&[], |_| None);
    if attributes.iter().any(|(_, value)| value.len() > MAX_VALUE_BYTES) {
        fields.fault("an attribute is longer than 1024 bytes", "shorten it");
    }
    let pool = PoolConfig { name: section.name.clone(), addrs: addrs?, attributes };
    (sink.count() == before).then_some(pool)
}

/// A network without its first and last address, from the address that is written on; or a range.
fn pool(text: &str) -> Result<AddrRange, ValueError> {
    let wrong = || "write a network or FIRST-LAST, for example 10.3.0.0/24".to_owned();
    let range: AddrRange = text.parse().map_err(|_| wrong())?;
    let Some((first, _)) = text.split_once('/') else { return Ok(range) };
    let first: IpAddr = first.trim().parse().map_err(|_| wrong())?;
    let small = match (range.start, range.end) {
        (IpAddr::V4(start), IpAddr::V4(end)) => end.to_bits() - start.to_bits() < 2,
        (IpAddr::V6(start), IpAddr::V6(end)) => end.to_bits() - start.to_bits() < 2,
        _ => true,
    };
    if small {
        return AddrRange::new(first, range.end).ok_or_else(|| wrong().into());
    }
    let step = |addr: IpAddr, up: bool| match addr {
        IpAddr::V4(v4) => IpAddr::V4(if up { v4.to_bits() + 1 } else { v4.to_bits() - 1 }.into()),
        IpAddr::V6(v6) => IpAddr::V6(if up { v6.to_bits() + 1 } else { v6.to_bits() - 1 }.into()),
    };
    let first = if first == range.start { step(first, true) } else { first };
    AddrRange::new(first, step(range.end, false))
        .ok_or_else(|| "the last address of a network is not assigned; write a lower one".into())
}

/// Type and value of one attribute.
fn attribute(text: &str, v4: u16, v6: u16, network: bool) -> Result<(u16, Vec<u8>), ValueError> {
    let (addr, prefix) = text.split_once('/').map_or((text, None), |(addr, prefix)| (addr, Some(prefix)));
    let wrong = if network { "write a network, for example 10.1.0.0/16" } else { "write an address" };
    let addr: IpAddr = parsed(wrong)(addr.trim())?;
    let longest = if addr.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix {
        Some(prefix) => Some(prefix.trim().parse::<u8>().ok().filter(|n| *n <= longest).ok_or(wrong)?),
        None if network => Some(longest),
        None => None,
    };
    let kind = if addr.is_ipv4() { v4 } else { v6 };
    let mut value = match addr {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    match (addr, prefix) {
        (_, None) => {}
        (IpAddr::V4(_), Some(prefix)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            value.extend(mask.to_be_bytes());
        }
        (IpAddr::V6(_), Some(prefix)) => value.push(prefix),
    }
    if v4 == v6 {
        value.extend([0; 6]); // protocol and ports of Unity, not used
    }
    Ok((kind, value))
}

/// Value of a numbered attribute: an address, a network, or the octets themselves.
fn raw(value: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    attribute(text, 0, 1, text.contains('/')).map_or_else(|_| value.to_vec(), |(_, octets)| octets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_keeps_its_ends() {
        let range = |text: &str| pool(text).map(|range| (range.start.to_string(), range.end.to_string()));
        let ends = |first: &str, last: &str| Ok((first.to_owned(), last.to_owned()));
        assert_eq!(range("10.3.0.0/24"), ends("10.3.0.1", "10.3.0.254"));
        assert_eq!(range("10.3.0.5/24"), ends("10.3.0.5", "10.3.0.254"));
        assert_eq!(range("10.3.0.0/31"), ends("10.3.0.0", "10.3.0.1"));
        assert_eq!(range("10.3.0.7/32"), ends("10.3.0.7", "10.3.0.7"));
        assert_eq!(range("10.3.0.3-10.3.0.9"), ends("10.3.0.3", "10.3.0.9"));
        assert_eq!(range("fec3::/120"), ends("fec3::1", "fec3::fe"));
        assert_eq!(range("0.0.0.0/0"), ends("0.0.0.1", "255.255.255.254"));
        assert!(range("10.3.0.255/24").is_err() && range("10.3.0.9-10.3.0.3").is_err() && range("x").is_err());
    }

    #[test]
    fn attributes_have_the_form_of_their_family() {
        assert_eq!(attribute("10.1.0.1", 3, 10, false), Ok((3, vec![10, 1, 0, 1])));
        assert_eq!(attribute("10.1.0.0/16", 13, 15, true), Ok((13, vec![10, 1, 0, 0, 255, 255, 0, 0])));
        assert_eq!(attribute("fec1::/16", 13, 15, true).map(|(kind, value)| (kind, value.len())), Ok((15, 17)));
        let unity = attribute("10.1.0.0/0", 28_676, 28_676, true);
        assert_eq!(unity, Ok((28_676, vec![10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])));
        assert!(attribute("10.1.0.0/33", 3, 10, false).is_err() && attribute("x", 3, 10, false).is_err());
        assert_eq!((raw(b"10.0.0.1"), raw(b"text")), (vec![10, 0, 0, 1], b"text".to_vec()));
    }
}
