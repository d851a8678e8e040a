//! The small headers: ESP, AH, UDP, AGGFRAG, and the classification of datagrams on the IPsec port.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::ah::AhHeader;
use wire::encap::{NatT, classify};
use wire::esp::EspHeader;
use wire::udp::UdpHeader;
use wire::{Spi, aggfrag};

fuzz_target!(|bytes: &[u8]| {
    if let Ok((header, _)) = EspHeader::parse(bytes) {
        let _ = Spi::try_from(header.spi.get());
    }
    if let Ok((header, _)) = AhHeader::parse(bytes) {
        assert!((8..=1028).contains(&header.total_len()));
    }
    let _ = UdpHeader::parse(bytes);
    if let Ok((header, payload)) = UdpHeader::parse_exact(bytes) {
        assert_eq!(usize::from(header.len.get()), UdpHeader::LEN + payload.len());
    }
    if let Ok((header, _)) = aggfrag::Header::parse(bytes) {
        let _ = header.block_offset();
    }
    let (with, without) = (classify(bytes, true), classify(bytes, false));
    assert_ne!(without, NatT::Eesp);
    assert!(with == without || (with == NatT::Eesp && without == NatT::Esp));
    let _ = wire::checksum::checksum(bytes);
});
