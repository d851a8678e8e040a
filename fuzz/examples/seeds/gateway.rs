//! Seeds of the targets in `gateway::fuzzing`. Those of `private_key` were written by openssl.

use ::gateway::fuzzing;
use ::gateway::psp_keys::fizz::{self, Short};
use ::gateway::psp_keys::message::{Grant, Message, Mode, TrafficKey, Want};
use wire::psp::{PspSpi, PspVersion};

/// Runs and returns all of them.
pub fn all() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    // Methods of both ends, with and without a request for the identity, with one password and with
    // two.
    for method in 0..4 {
        for more in [0, 0x10, 0x20, 0x30] {
            let choice = method | method << 2 | more;
            seeds.push((format!("eap/choice-{choice}"), [&[choice][..], &[0; 2 * 12]].concat()));
        }
    }
    seeds.push(("psp_peer/both".into(), psp_peer()));
    seeds.push(("state_file/running".into(), b"weir state 1\nsa moon\nrunning\niv_ahead 3\n0 77\n1 9\n".to_vec()));
    seeds.push(("vici_load/conn".into(), connection()));
    seeds.push(("psp_service/peers".into(), psp_service()));
    seeds.push(("vici_commands/all".into(), vici_commands(0)));
    seeds.push(("vici_commands/manual".into(), vici_commands(7)));
    seeds.extend(psp_link());
    for (name, seed) in &seeds {
        let run = match name.split_once('/').expect("a folder").0 {
            "eap" => fuzzing::eap,
            "psp_peer" => fuzzing::psp_peer,
            "psp_link" => fuzzing::psp_link,
            "psp_service" => fuzzing::psp_service,
            "vici_commands" => fuzzing::vici_commands,
            "state_file" => fuzzing::state_file,
            _ => fuzzing::vici_load,
        };
        run(seed);
    }
    seeds
}

/// The peer connects, requests keys, issues keys, and master keys are rotated.
fn psp_peer() -> Vec<u8> {
    const WANT: u8 = 0;
    const CONNECTED: u8 = 3;
    const TIMEOUT: u8 = 5;
    const ROTATED: u8 = 6;
    const RENEW: u8 = 7;
    const MESSAGE: u8 = 8;
    let spi = PspSpi::try_from(0x0102_0304).expect("an SPI");
    let want = Want {
        id: 1,
        mode: Mode::Tunnel,
        counts: true,
        versions: vec![1, 0],
        have: None,
        local: vec!["10.2.0.0/16".parse().expect("a selector")],
        remote: vec!["10.1.0.0/16".parse().expect("a selector")],
    };
    let grant = Grant {
        id: 0,
        spi,
        version: PspVersion::try_from(1).expect("a version"),
        max_crypt_offset: 0,
        port: 1000,
        remaining_s: 3600,
        window: true,
        key: TrafficKey::new(&[7; 32]).expect("a key"),
    };
    let mut seed = vec![WANT, 0, CONNECTED, 1];
    let messages = [
        Message::Hello { min: 1, max: 1, boot: 20 },
        Message::Want(want),
        Message::Grant(grant),
        Message::Using { id: 1, spi },
        Message::Ping,
    ];
    for message in messages {
        let frame = message.emit();
        seed.extend([MESSAGE, 1]);
        seed.extend((frame.len() as u16).to_be_bytes());
        seed.extend(&frame[..]);
    }
    seed.extend([TIMEOUT, 60, RENEW, 0, ROTATED, 0, TIMEOUT, 200]);
    seed
}

/// Two peers come, agree on keys, one goes, another identity comes, time passes, and the
/// configuration changes.
fn psp_service() -> Vec<u8> {
    const UP: u8 = 0;
    const ANSWERED: u8 = 3;
    const FITTING: u8 = 4;
    const TIME: u8 = 9;
    const COMMAND: u8 = 10;
    const LOAD: u8 = 11;
    const RESOLVED: u8 = 12;
    const DOWN: u8 = 13;
    let fitting = |link: u8, kind: u8, number: u8| vec![FITTING, link, kind, number];
    let mut seed = vec![RESOLVED, 1, UP, 5 << 2];
    let kinds = |link: u8| {
        let hello = fitting(link, 0, 20);
        // Requests, uses and grants keys, stays connected, and ends.
        let messages = [(1, 1), (3, 1), (2, 10), (5, 1), (4, 1)].map(|(kind, number)| fitting(link, kind, number));
        [hello, messages.concat()].concat()
    };
    seed.extend(kinds(1));
    // The peer with an address is reached, and one more from the network with the same identity and
    // another one.
    seed.extend([ANSWERED, 3]);
    seed.extend(kinds(2));
    seed.extend([UP, 6 << 2, UP, 6 << 2 | 1]);
    seed.extend(kinds(3));
    // One identity from more addresses than it may have.
    seed.extend([UP, 7 << 2, UP, 8 << 2, UP, 9 << 2, UP, 10 << 2]);
    seed.extend([
        LOAD,
        0x10,
        TIME,
        7,
        COMMAND,
        2,
        COMMAND,
        5,
        DOWN,
        1,
        TIME,
        121,
        LOAD,
        1,
        UP,
        0x80 | 3 << 2,
        LOAD,
        2,
        COMMAND,
        1,
    ]);
    seed
}

/// Frames, the short form, records, and connections that come and go.
fn psp_link() -> Vec<(String, Vec<u8>)> {
    let spi = PspSpi::try_from(7).expect("an SPI");
    let pieces = |part: u8, bytes: &[u8]| {
        let pieces = bytes.chunks(9).map(|piece| [&[piece.len() as u8][..], piece].concat());
        [vec![part], pieces.collect::<Vec<_>>().concat()].concat()
    };
    let frames = [Message::Hello { min: 1, max: 1, boot: 20 }, Message::Ping, Message::Using { id: 1, spi }];
    let frames: Vec<u8> = frames.iter().flat_map(|message| message.emit().to_vec()).collect();
    let short = Short::Sa(spi, PspVersion::AES_128_GCM, TrafficKey::new(&[9; 16]).expect("a key")).emit().to_vec();
    let marker = [&[fizz::MARKER.len() as u8][..], &fizz::MARKER[..]].concat();
    let admission = vec![3, 8, 0, 200, 4, 1, 20, 2, 0, 90, 0x10, 2, 9, 8, 1, 250, 2, 0, 250, 3, 3, 1, 8, 2, 250];
    vec![
        ("psp_link/frames".into(), pieces(0, &frames)),
        ("psp_link/short".into(), [pieces(1, &short), marker].concat()),
        (
            "psp_link/records".into(),
            pieces(2, &[0x16, 3, 1, 0, 20, 1, 0, 0, 16, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ),
        ("psp_link/admission".into(), admission),
    ]
}

/// Every command that does not load, with names that fit.
fn vici_commands(manual: u8) -> Vec<u8> {
    let mut seed = vec![manual];
    for (at, command) in vici::Command::ALL.iter().enumerate() {
        if !command.name().starts_with("load-") {
            // ike = moon, child = net, timeout = -1
            seed.extend([3, at as u8, at as u8, 4, 0, 0, 4, 1, 3, 4, 4, 10, 0, 0]);
        }
    }
    // Started and ended, by a client that waits and one that goes.
    let at =
        |name: &str| vici::Command::ALL.iter().position(|command| command.name() == name).expect("a command") as u8;
    seed.extend([3, 0, at("initiate"), 4, 0, 0, 4, 1, 3, 0, 0]);
    seed.extend([3, 1, at("list-sas"), 0, 0, 3, 1, at("terminate"), 4, 0, 0, 0, 0, 0, 0]);
    seed
}

fn connection() -> Vec<u8> {
    let mut auth = vici::Message::default();
    auth.set("auth", "psk").set("id", "weir.test");
    let mut child = vici::Message::default();
    child.set_list("local_ts", ["10.1.0.0/16"]).set_list("remote_ts", ["10.2.0.0/16"]);
    let mut children = vici::Message::default();
    children.set_section("net", child);
    let mut net = vici::Message::default();
    net.set_list("local_addrs", ["192.0.2.1"]).set_list("remote_addrs", ["192.0.2.2"]).set("version", "2");
    net.set_section("local", auth.clone()).set_section("remote", auth).set_section("children", children);
    let mut message = vici::Message::default();
    message.set_section("net", net);
    message.emit().expect("a message").to_vec()
}
