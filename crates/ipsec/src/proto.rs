//! Protocols of SAs: how their packets are recognized, and the steps of each one.
//!
//! Every choice by protocol is in this module, so that another protocol is a module with its steps
//! and a row in each `match` here.

use crypto::{DerivedKeys, IcvOk, KeyId};
use wire::encap::{NatT, classify};
use wire::registry::CodePoints;
use wire::{IpProto, SessionId};

use crate::sa::owner_core;
use crate::template::{FieldOffsets, InTemplate};
use crate::{
    Delivered, DropReason, Frame, InPacket, InResult, InboundSa, OutPacket, OutboundSa, PendingIn, PendingOut,
};
use crate::{SaCommon, ah, eesp, esp, psp};

/// Protocol of an SA.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)]
pub enum Protocol {
    Esp,
    Ah,
    Eesp,
    Psp,
}

impl Protocol {
    /// Name in configuration and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Esp => "esp",
            Self::Ah => "ah",
            Self::Eesp => "eesp",
            Self::Psp => "psp",
        }
    }

    /// Returns the protocol with the number `proto` in an IP header. PSP has none: it is always in
    /// UDP.
    #[inline]
    pub fn of_ip(proto: IpProto, code_points: &CodePoints) -> Option<Self> {
        match proto {
            IpProto::ESP => Some(Self::Esp),
            IpProto::AH => Some(Self::Ah),
            proto if proto == code_points.eesp_protocol => Some(Self::Eesp),
            _ => None,
        }
    }

    /// Returns the protocol of a datagram on the NAT-T port. `first_bit`: a first bit of 1 means
    /// the protocol that [sets it](Self::sets_first_bit), otherwise an SPI of ESP.
    ///
    /// # Errors
    /// The reason to drop: a keepalive, an IKE message, or neither.
    #[inline]
    pub fn in_nat_t(payload: &[u8], first_bit: bool) -> Result<Self, DropReason> {
        match classify(payload, first_bit) {
            NatT::Esp => Ok(Self::Esp),
            NatT::Eesp => Ok(Self::Eesp),
            NatT::Keepalive => Err(DropReason::Keepalive),
            NatT::Ike => Err(DropReason::IkeMessage),
            NatT::Unknown => Err(DropReason::NotIpsec),
        }
    }

    /// Returns whether packets start with a bit of 1, which distinguishes them from ESP in UDP.
    pub const fn sets_first_bit(self) -> bool {
        matches!(self, Self::Eesp)
    }

    /// Offset of the SPI in the protocol header, in bytes.
    #[inline]
    pub const fn spi_at(self) -> usize {
        match self {
            Self::Esp => 0,
            Self::Ah | Self::Eesp | Self::Psp => 4,
        }
    }

    /// Reads the SPI in a protocol header; `None` if it is cut off.
    #[inline]
    pub fn spi(self, header: &[u8]) -> Option<u32> {
        Some(u32::from_be_bytes(*header.get(self.spi_at()..)?.first_chunk()?))
    }

    /// Bits of the first eight bytes of the protocol header, first byte lowest, that are the same
    /// in all packets with one SPI. In UDP they include the bit that distinguishes the protocol.
    #[inline]
    pub const fn spi_mask(self, in_udp: bool) -> u64 {
        let spi = (u32::MAX as u64) << (8 * self.spi_at());
        if in_udp && self.sets_first_bit() { 0x80 | spi } else { spi }
    }
}

/// Returns the number, modulo the number of cores, of the core that receives packets with this
/// protocol header, as [`owner_core`]; `None` if the header is cut off.
#[inline]
pub fn owner_of(protocol: Protocol, header: &[u8]) -> Option<u32> {
    let session = match protocol {
        // Consecutive Sub SAs belong to different cores.
        Protocol::Eesp => u16::from_be_bytes(*header.get(2..)?.first_chunk()?),
        Protocol::Esp | Protocol::Ah | Protocol::Psp => 0,
    };
    Some(owner_core(protocol.spi(header)?, SessionId(session)))
}

/// What is particular to a protocol, outbound.
#[allow(missing_docs)]
#[derive(Clone)]
pub enum OutProto {
    Esp(esp::Outbound),
    Ah(ah::Outbound),
    Eesp(eesp::Outbound),
    Psp(psp::Outbound),
}

impl OutProto {
    /// The protocol.
    #[inline]
    pub const fn protocol(&self) -> Protocol {
        match self {
            Self::Esp(_) => Protocol::Esp,
            Self::Ah(_) => Protocol::Ah,
            Self::Eesp(_) => Protocol::Eesp,
            Self::Psp(_) => Protocol::Psp,
        }
    }

    /// Largest inner packet that fits `path_mtu` bytes when protected.
    pub(crate) fn inner_mtu(&self, common: &SaCommon, path_mtu: usize) -> usize {
        match self {
            Self::Esp(esp) => esp.inner_mtu(common, path_mtu),
            Self::Ah(ah) => ah.inner_mtu(common, path_mtu),
            Self::Eesp(eesp) => eesp.inner_mtu(common, path_mtu),
            Self::Psp(psp) => psp.inner_mtu(common, path_mtu),
        }
    }

    /// Inputs of a template for an SA with `spi`, and the key of its UDP source port if that is the
    /// port of the flow; `None` if the SA has no template.
    pub(crate) fn offsets(&self, spi: u32) -> Option<(FieldOffsets, Option<u64>)> {
        match self {
            Self::Esp(esp) => Some((esp.offsets(spi)?, None)),
            Self::Eesp(eesp) => Some((eesp.offsets()?, None)),
            Self::Psp(psp) => Some((psp.offsets()?, psp.flow_port_key())),
            Self::Ah(_) => None,
        }
    }

    /// Slow path of [`crate::prepare_out`].
    #[inline]
    pub(crate) fn prepare(&self, sa: &OutboundSa, packet: OutPacket<'_, '_>) -> Result<PendingOut, DropReason> {
        match self {
            Self::Esp(esp) => esp::prepare_out(sa, esp, packet),
            Self::Ah(ah) => ah::prepare_out(sa, ah, packet),
            Self::Eesp(eesp) => eesp::prepare_out(sa, eesp, packet),
            Self::Psp(psp) => psp::prepare_out(sa, psp, packet),
        }
    }
}

/// What is particular to a protocol, inbound.
#[allow(missing_docs)]
#[derive(Clone)]
pub enum InProto {
    Esp(esp::Inbound),
    Ah(ah::Inbound),
    Eesp(eesp::Inbound),
    Psp(psp::Inbound),
}

impl InProto {
    /// The protocol.
    #[inline]
    pub const fn protocol(&self) -> Protocol {
        match self {
            Self::Esp(_) => Protocol::Esp,
            Self::Ah(_) => Protocol::Ah,
            Self::Eesp(_) => Protocol::Eesp,
            Self::Psp(_) => Protocol::Psp,
        }
    }

    /// Template of the packets of `sa`, if protocol and suite have one.
    pub(crate) fn template(&self, sa: &InboundSa) -> Option<InTemplate> {
        match self {
            Self::Esp(esp) => esp.template(sa),
            Self::Eesp(eesp) => eesp.template(sa),
            Self::Ah(_) | Self::Psp(_) => None,
        }
    }

    /// Template for packets of `sa` that start with `head` and use `key`, for SAs whose many keys
    /// allow no template of the SA.
    #[inline]
    pub(crate) fn flow_template(&self, sa: &InboundSa, head: u64, key: KeyId) -> Option<InTemplate> {
        match self {
            Self::Eesp(eesp) => eesp.flow_template(sa, head, key),
            Self::Psp(psp) => psp.flow_template(head, key),
            Self::Esp(_) | Self::Ah(_) => None,
        }
    }

    /// Slow path of [`crate::prepare_in`].
    #[inline]
    pub(crate) fn prepare(
        &self,
        sa: &InboundSa,
        packet: InPacket<'_, '_>,
        derived: &mut DerivedKeys,
        result: InResult<'_>,
    ) -> Result<(), DropReason> {
        match self {
            Self::Esp(esp) => esp::prepare_in(sa, esp, packet, result),
            Self::Ah(ah) => ah::prepare_in(sa, ah, packet, result),
            Self::Eesp(eesp) => eesp::prepare_in(sa, eesp, packet, derived, result),
            Self::Psp(psp) => psp::prepare_in(sa, psp, packet, derived, result),
        }
    }

    /// [`crate::finish_in`].
    #[inline]
    pub(crate) fn finish(
        &self,
        sa: &InboundSa,
        frame: &mut Frame<'_>,
        pending: &PendingIn,
        ok: IcvOk,
    ) -> Result<Delivered, DropReason> {
        match self {
            Self::Esp(_) => esp::finish_in(sa, frame, pending, ok),
            Self::Ah(_) => ah::finish_in(sa, frame, pending, ok),
            Self::Eesp(eesp) => eesp::finish_in(sa, eesp, frame, pending, ok),
            Self::Psp(psp) => psp::finish_in(sa, psp, frame, pending, ok),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Protocol; 4] = [Protocol::Esp, Protocol::Ah, Protocol::Eesp, Protocol::Psp];

    #[test]
    fn a_header_has_its_spi_and_its_owner() {
        let header = [0x80, 1, 0, 2, 0, 0, 0x20, 1];
        for protocol in ALL {
            let (spi, owner) = match protocol {
                Protocol::Esp => (0x8001_0002, 0x8001_0002),
                Protocol::Ah | Protocol::Psp => (0x2001, 0x2001),
                Protocol::Eesp => (0x2001, 0x2003),
            };
            assert_eq!((protocol.spi(&header), owner_of(protocol, &header)), (Some(spi), Some(owner)), "{protocol:?}");
            let need = protocol.spi_at() + 4;
            assert_eq!(protocol.spi(&header[..need - 1]), None, "{protocol:?}");
            assert_eq!(owner_of(protocol, &header[..need - 1]), None, "{protocol:?}");
            // The mask covers the SPI in the header and nothing else, besides the first bit in UDP.
            let of = |protocol: Protocol, in_udp| u64::from_le_bytes(header) & protocol.spi_mask(in_udp);
            let mut expected = [0; 8];
            expected[protocol.spi_at()..need].copy_from_slice(&spi.to_be_bytes());
            assert_eq!(of(protocol, false).to_le_bytes(), expected, "{protocol:?}");
            expected[0] |= if protocol.sets_first_bit() { 0x80 } else { 0 };
            assert_eq!(of(protocol, true).to_le_bytes(), expected, "{protocol:?}");
        }
    }

    #[test]
    fn numbers_and_first_bits_name_the_protocol() {
        let points = CodePoints::default();
        let of = |proto| Protocol::of_ip(proto, &points);
        assert_eq!([IpProto::ESP, IpProto::AH, points.eesp_protocol].map(of), [0, 1, 2].map(|i| Some(ALL[i])));
        assert_eq!(of(IpProto::UDP), None);
        for (first, with, without) in [
            (0x80, Ok(Protocol::Eesp), Ok(Protocol::Esp)),
            (0x7f, Ok(Protocol::Esp), Ok(Protocol::Esp)),
            (0, Err(DropReason::IkeMessage), Err(DropReason::IkeMessage)),
        ] {
            let payload = [first, 0, 0, 0, 1];
            assert_eq!(Protocol::in_nat_t(&payload, true), with);
            assert_eq!(Protocol::in_nat_t(&payload, false), without);
        }
        assert_eq!(Protocol::in_nat_t(&[0xff], true), Err(DropReason::Keepalive));
        assert_eq!(Protocol::in_nat_t(&[1], true), Err(DropReason::NotIpsec));
    }
}
