//! Seals one IP packet with ESP in tunnel mode and opens it: `cargo run -p weir-ipsec --example
//! one_packet`.

use weir_ipsec::crypto::{Engine, Suite};
use weir_ipsec::{Context, DropReason, Frame, HEADROOM, Lifetime, Mode, Outer, SaCommon, TAILROOM, esp};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut context = Context::new(Engine::best());
    let (moon, sun) = ("192.0.2.1".parse()?, "192.0.2.2".parse()?);
    // In a real SA the 16 bytes of key and 4 of salt come from IKE, and no key is used in two
    // directions.
    let spec = esp::Spec::new(0x1001.try_into()?, Suite::parse_esp("aes128gcm16")?, &[7; 20]);
    let common = |local, remote| SaCommon::new("net", Mode::Tunnel, Outer::new(local, remote), Lifetime::NONE);
    let outbound = esp::outbound(common(moon, sun), &spec, context.engine, &mut context.keys)?;
    let inbound = esp::inbound(common(sun, moon), &spec, context.engine, &mut context.keys)?;

    let packet = PING;
    let mut buffer = [0; HEADROOM + PING.len() + TAILROOM];
    buffer[HEADROOM..][..packet.len()].copy_from_slice(&packet);
    let mut frame = Frame::new(&mut buffer, HEADROOM..HEADROOM + packet.len())?;
    context.seal(&outbound, &mut frame)?;
    println!("{} bytes become {}", packet.len(), frame.len());
    let sealed = frame.bytes().to_vec();
    context.open(&inbound, &mut frame)?;
    assert_eq!(frame.bytes(), packet);

    // The same packet once more.
    buffer[HEADROOM..][..sealed.len()].copy_from_slice(&sealed);
    let mut frame = Frame::new(&mut buffer, HEADROOM..HEADROOM + sealed.len())?;
    assert_eq!(context.open(&inbound, &mut frame).err(), Some(DropReason::Replay));
    println!("again: {}", DropReason::Replay);
    Ok(())
}

/// An ICMP echo request from 10.1.0.1 to 10.2.0.1.
const PING: [u8; 28] = [
    0x45, 0, 0, 28, 0, 1, 0x40, 0, 64, 1, 0x26, 0xdc, 10, 1, 0, 1, 10, 2, 0, 1, // IPv4
    8, 0, 0xf7, 0xfd, 0, 1, 0, 1, // ICMP
];

#[test]
fn runs() {
    main().expect("it returns the packet");
}
