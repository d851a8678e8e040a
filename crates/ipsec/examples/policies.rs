//! What a gateway does with a packet: SPD, SA, SAD, and the SPD again. `cargo run -p weir-ipsec
//! --example policies`.

use std::error::Error;
use std::sync::Arc;

use weir_ipsec::crypto::{Engine, Suite};
use weir_ipsec::wire::{AddrRange, FlowKey, IpPacket, IpProto, PortRange, Selector, TrafficSelector};
use weir_ipsec::{
    Action, Context, DropReason, Frame, HEADROOM, InboundSa, Lifetime, Mode, OutboundSa, Outer, Policy, Protocol,
    SaCommon, Sad, Spd, TAILROOM, esp,
};

const SPI: u32 = 0x1001;
/// The group of inbound SAs that the policy names.
const GROUP: u32 = 0;

fn network(text: &str) -> Result<TrafficSelector, Box<dyn Error>> {
    let addrs = AddrRange::from_cidr(text.parse()?, 16).ok_or("a prefix length")?;
    Ok(TrafficSelector { addrs, proto: None, ports: PortRange::ANY })
}

/// Everything between two networks through one SA, nothing else.
fn policies(local: &str, remote: &str) -> Result<Spd, Box<dyn Error>> {
    let selectors = [Selector::from_sides(network(local)?, network(remote)?)?].into();
    let action = Action::Protect { outbound: 0, inbound: GROUP };
    Ok(Spd::new(vec![Policy { name: "net".into(), selectors, action }]))
}

fn sas(context: &mut Context) -> Result<(OutboundSa, InboundSa), Box<dyn Error>> {
    let (moon, sun) = ("192.0.2.1".parse()?, "192.0.2.2".parse()?);
    let spec = esp::Spec::new(SPI.try_into()?, Suite::parse_esp("chacha20poly1305")?, &[3; 36]);
    let common = |local, remote| SaCommon::new("net", Mode::Tunnel, Outer::new(local, remote), Lifetime::NONE);
    let outbound = esp::outbound(common(moon, sun), &spec, context.engine, &mut context.keys)?;
    let inbound = esp::inbound(common(sun, moon), &spec, context.engine, &mut context.keys)?;
    Ok((outbound, inbound))
}

/// A UDP packet in a buffer with room on both sides.
fn datagram(src: &str, dst: &str) -> Result<(Vec<u8>, usize), Box<dyn Error>> {
    use weir_ipsec::wire::ip::{IPV4_HEADER, Ipv4Header};
    use weir_ipsec::wire::udp::UdpHeader;
    let mut packet = vec![0; IPV4_HEADER + UdpHeader::LEN + 4];
    let ip = Ipv4Header::new(src.parse()?, dst.parse()?, IpProto::UDP, UdpHeader::LEN + 4).ok_or("length")?;
    ip.emit(&mut packet)?;
    UdpHeader::new(40_000, 9, 4).ok_or("length")?.emit(&mut packet[IPV4_HEADER..])?;
    Ok(([&[0; HEADROOM][..], &packet, &[0; TAILROOM]].concat(), packet.len()))
}

fn flow(packet: &[u8]) -> Result<FlowKey, DropReason> {
    Ok(FlowKey::of(&IpPacket::parse(packet)?, packet))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut context = Context::new(Engine::best());
    let (outbound, inbound) = sas(&mut context)?;
    let (moon, sun) = (policies("10.1.0.0", "10.2.0.0")?, policies("10.2.0.0", "10.1.0.0")?);
    let sad =
        Sad::new(vec![Arc::new(inbound)]).map_err(|(one, other)| format!("{one} and {other} are indistinguishable"))?;

    // At moon: no policy, no packet.
    let (buffer, len) = datagram("10.1.0.1", "10.9.0.1")?;
    assert!(moon.outbound(&flow(&buffer[HEADROOM..][..len])?).is_none());

    let (mut buffer, len) = datagram("10.1.0.1", "10.2.0.1")?;
    let mut frame = Frame::new(&mut buffer, HEADROOM..HEADROOM + len)?;
    let Some((_, Action::Protect { outbound: 0, .. })) = moon.outbound(&flow(frame.bytes())?) else {
        return Err("the policy protects it".into());
    };
    context.seal(&outbound, &mut frame)?;
    assert_eq!(outbound.common.counters.packets(), 1);

    // At sun: the SA by protocol, SPI and destination, then the policy of what was inside (RFC 4301
    // §5.2).
    let outer = IpPacket::parse(frame.bytes())?;
    let slot = sad.lookup(Protocol::Esp, SPI, outer.src, outer.dst).ok_or(DropReason::NoSa)?;
    context.open(sad.get(slot).ok_or(DropReason::NoSa)?, &mut frame)?;
    let decision = sun.inbound(&flow(frame.bytes())?).map(|(_, action)| action);
    Action::admit(decision, GROUP)?;
    println!("{} bytes from 10.1.0.1 admitted", frame.len());

    // The same packet in the clear is refused.
    assert_eq!(Action::admit_clear(decision), Err(DropReason::PlainInbound));
    Ok(())
}

#[test]
fn runs() {
    main().expect("it is protected and admitted");
}
