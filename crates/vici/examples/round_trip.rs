//! Writes a message as it goes over the socket, and reads it back: `cargo run -p weir-vici
//! --example round_trip`.

use std::error::Error;

use vici::packet::{Kind, Packet, Progress, SegmentReader, segment};
use vici::{Command, Message};

/// A connection for `load-conn`, in the words of swanctl.conf.
fn connection() -> Message {
    let (mut local, mut net, mut message) = (Message::new(), Message::new(), Message::new());
    local.set("auth", "psk").set("id", "moon.example");
    net.set("version", "2").set_list("remote_addrs", ["192.0.2.2", "gw.example"]).set_section("local", local);
    message.set_section("net", net);
    message
}

fn main() -> Result<(), Box<dyn Error>> {
    let message = connection();
    // A segment is a length and a packet; a packet is a kind, a name and a message.
    let bytes = segment(Kind::Request, Command::LoadConn.name(), &message)?;
    println!("{} bytes: {:02x?} ...", bytes.len(), &bytes[..24]);

    // The reader accepts the bytes of a socket in pieces of any size.
    let (mut stream, mut reader) = (&bytes[..], SegmentReader::default());
    let body = loop {
        match reader.read(&mut stream)? {
            Progress::Segment(body) => break body,
            Progress::Partial => {}
            Progress::End => return Err("the stream ended".into()),
        }
    };
    let packet = Packet::parse(&body)?;
    let read = Message::parse(packet.body)?;
    assert_eq!((packet.kind, packet.name), (Kind::Request, "load-conn"));
    assert_eq!(read, message);
    assert_eq!(read.text("net.local.id"), Some("moon.example"));
    assert_eq!(read.list("net.remote_addrs"), Some(vec!["192.0.2.2", "gw.example"]));

    // A message that was cut off is an error.
    let error = Message::parse(&packet.body[..20]).expect_err("a section that does not end");
    println!("cut after 20 bytes: {error}");
    Ok(())
}

#[test]
fn runs() {
    main().expect("what was written reads back");
}
