//! Packets of the networks behind the gateways.

use std::net::Ipv4Addr;

/// UDP between two hosts of these networks.
const UDP: u8 = 17;
/// Header of IPv4 without options, and of UDP.
const HEADERS: usize = 28;

/// A packet that identifies itself.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Probe {
    /// Site of the sender.
    pub from: usize,
    /// Site of the receiver.
    pub to: usize,
    /// Network of either site.
    pub net: usize,
    /// Number of the packet.
    pub serial: u32,
}

/// Address of a host behind a site.
pub(crate) fn addr(site: usize, net: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, site as u8 + 1, net as u8, 7)
}

impl Probe {
    /// Transport header and contents.
    pub(crate) fn transport(&self) -> Vec<u8> {
        let mut bytes = [4000_u16.to_be_bytes(), 5000_u16.to_be_bytes(), 20_u16.to_be_bytes(), [0; 2]].concat();
        bytes.extend([self.from as u8, self.to as u8, self.net as u8, 0x5a]);
        bytes.extend(self.serial.to_be_bytes());
        bytes.extend([0; 4]);
        bytes
    }

    /// The packet.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let transport = self.transport();
        let length = (HEADERS - 8 + transport.len()) as u16;
        let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, UDP, 0, 0];
        bytes[2..4].copy_from_slice(&length.to_be_bytes());
        bytes.extend(addr(self.from, self.net).octets());
        bytes.extend(addr(self.to, self.net).octets());
        let sum = wire::checksum::checksum(&bytes);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend(transport);
        bytes
    }

    /// Reads a packet; `None` when it is not one of these.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let contents = bytes.get(HEADERS..HEADERS + 8)?;
        let [from, to, net, 0x5a, serial @ ..] = contents else { return None };
        let serial = u32::from_be_bytes(serial.try_into().ok()?);
        let probe = Self { from: (*from).into(), to: (*to).into(), net: (*net).into(), serial };
        let same = |at: usize, addr: Ipv4Addr| bytes.get(at..at + 4) == Some(&addr.octets());
        (same(12, addr(probe.from, probe.net)) && same(16, addr(probe.to, probe.net))).then_some(probe)
    }
}

/// Protocol of a [`Probe`].
pub(crate) const PROTOCOL: u8 = UDP;

/// Addresses, SPI and sequence number of a protected packet.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Protected {
    pub(crate) src: Ipv4Addr,
    pub(crate) dst: Ipv4Addr,
    pub(crate) spi: u32,
    pub(crate) seq: u32,
}

impl Protected {
    /// Reads ESP over IPv4, with or without UDP; `None` for anything else.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        const ESP: u8 = 50;
        let quad = |at: usize| bytes.get(at..at + 4).map(|four| [four[0], four[1], four[2], four[3]]);
        let at = match *bytes.get(9)? {
            ESP => 20,
            UDP => 28,
            _ => return None,
        };
        Some(Self {
            src: quad(12)?.into(),
            dst: quad(16)?.into(),
            spi: u32::from_be_bytes(quad(at)?),
            seq: u32::from_be_bytes(quad(at + 4)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_read_again_and_another_address_is_seen() {
        let probe = Probe { from: 1, to: 2, net: 3, serial: 0x0102_0304 };
        let mut bytes = probe.emit();
        assert_eq!(Probe::parse(&bytes), Some(probe));
        bytes[19] ^= 1;
        assert_eq!(Probe::parse(&bytes), None);
    }
}
