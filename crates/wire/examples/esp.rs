//! Writes an ESP packet as it goes over the network, and reads it back: `cargo run -p weir-wire
//! --example esp`.

use std::net::{IpAddr, Ipv4Addr};

use weir_wire::esp::EspHeader;
use weir_wire::ip::{IPV4_HEADER, Ipv4Header};
use weir_wire::{IpPacket, IpProto, ParseError, SeqNo, Spi};

const MOON: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SUN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// IV, ciphertext and ICV. This crate reads headers only.
const BODY: [u8; 36] = [0x5a; 36];

/// IPv4 header, ESP header, body.
fn emit(spi: Spi, seq: SeqNo, out: &mut [u8]) -> Result<(), ParseError> {
    let payload_len = EspHeader::LEN + BODY.len();
    let ip = Ipv4Header::new(MOON, SUN, IpProto::ESP, payload_len).expect("far below 65,535 bytes");
    ip.emit(out)?;
    EspHeader::new(spi, seq).emit(&mut out[IPV4_HEADER..])?;
    out[IPV4_HEADER + EspHeader::LEN..].copy_from_slice(&BODY);
    Ok(())
}

/// The SPI, and the half of the sequence number that is sent.
fn parse(packet: &[u8]) -> Result<Option<(u32, u32)>, ParseError> {
    let ip = IpPacket::parse(packet)?;
    if ip.upper != IpProto::ESP {
        return Ok(None);
    }
    let (esp, _body) = EspHeader::parse(&packet[ip.upper_at..ip.total_len])?;
    Ok(Some((esp.spi.get(), esp.seq_lo.get())))
}

fn main() {
    let mut packet = [0; IPV4_HEADER + EspHeader::LEN + BODY.len()];
    let spi = Spi::try_from(0x1234_5678).expect("only 0 to 255 are reserved");
    emit(spi, SeqNo(7), &mut packet).expect("the buffer has the length of the packet");
    println!("{packet:02x?}");

    assert_eq!(parse(&packet), Ok(Some((0x1234_5678, 7))));
    let ip = IpPacket::parse(&packet).expect("it was just written");
    println!("{} > {}: ESP, SPI {spi}", ip.src, ip.dst);
    assert_eq!((ip.src, ip.dst), (IpAddr::V4(MOON), IpAddr::V4(SUN)));

    // A packet that was cut off is an error with the lengths, not a panic.
    let error = parse(&packet[..24]).expect_err("24 of 64 bytes");
    println!("cut after 24 bytes: {error}");
}

#[test]
fn runs() {
    main();
}
