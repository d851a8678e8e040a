//! Control connections below and above TLS, driven by a fuzzer: fragmented input, and admission.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::super::admission::{Admission, MAX_CONNECTIONS, MAX_HANDSHAKES, MAX_PER_HOST, Slot, admit};
use super::super::fizz::{self, Short};
use super::super::message::{HEADER_LEN, MAX_BODY, Message, frame_len};
use super::super::peer::Link;
use super::{Connection, Form, MAX_RECORD, Report, Tls};

/// Most connections that one event adds.
const BURST: usize = 256;

fn connection(form: Form) -> Option<Connection> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (stream, _) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    let remote = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 1);
    let mut connection = Connection::new(TcpStream::from(stream), remote, Tls::None);
    connection.form = form;
    Some(connection)
}

/// Splits the input into length-prefixed pieces.
fn pieces(mut input: &[u8]) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    while let Some((len, rest)) = input.split_first() {
        let (piece, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        input = rest;
        pieces.push(piece);
    }
    pieces
}

/// Frames out of TLS: the same messages whatever the pieces are, and none after a fault.
fn framed(input: &[u8]) {
    let Some(mut connection) = connection(Form::Framed) else { return };
    let (mut reports, mut all, mut failed) = (Vec::new(), Vec::new(), false);
    for piece in pieces(input) {
        all.extend(piece);
        connection.plain.extend(piece);
        failed = connection.messages(Link(1), &mut reports).is_err();
        if failed {
            break;
        }
        assert!(connection.plain.len() < HEADER_LEN + MAX_BODY, "more is kept than one frame");
    }
    let (mut rest, mut expected) = (&all[..], Vec::new());
    let fault = loop {
        let frame = match frame_len(rest) {
            Ok(Some(len)) if rest.len() >= len => &rest[..len],
            Ok(_) => break false,
            Err(_) => break true,
        };
        let Ok(message) = Message::parse(frame) else { break true };
        expected.push(message);
        rest = &rest[frame.len()..];
    };
    let message = |report: Report| match report {
        Report::Message(Link(1), message) => message,
        _ => panic!("a report that is no message"),
    };
    assert_eq!(reports.into_iter().map(message).collect::<Vec<_>>(), expected);
    assert_eq!(failed, fault, "a fault ends the connection");
}

/// The short form: exactly one message, then the marker.
fn short(input: &[u8]) {
    let Some(mut connection) = connection(Form::Short) else { return };
    let (mut reports, mut all) = (Vec::new(), Vec::new());
    for piece in pieces(input) {
        all.extend(piece);
        if connection.form == Form::ShortDone {
            connection.input.extend(piece);
            if connection.take(Link(1), &mut reports).is_err() {
                break;
            }
            continue;
        }
        connection.plain.extend(piece);
        if connection.messages(Link(1), &mut reports).is_err() {
            assert!(reports.is_empty(), "a report and a fault");
            break;
        }
    }
    let is_sa = |report: &Report| matches!(report, Report::Short(..));
    let is_switched = |report: &Report| matches!(report, Report::Switched(_));
    let (sas, switched) =
        (reports.iter().filter(|one| is_sa(one)).count(), reports.iter().filter(|one| is_switched(one)).count());
    assert_eq!(sas + switched, reports.len(), "reports of the short form");
    assert!(sas <= 1, "a second message");
    if sas == 1 {
        assert!(matches!(Short::parse(&all), Ok(Some((Short::Sa(..), _)))), "an SA that was not sent");
    }
    if switched > 0 {
        assert!(sas == 1 && all.windows(fizz::MARKER.len()).any(|window| window == fizz::MARKER), "no marker came");
    }
}

/// Records before authentication: nothing is reported, and little is kept.
fn records(input: &[u8]) {
    let Some(mut connection) = connection(Form::Unknown) else { return };
    let mut reports = Vec::new();
    for piece in pieces(input) {
        connection.input.extend(piece);
        let outcome = connection.take(Link(1), &mut reports);
        assert!(reports.is_empty() && connection.plain.is_empty(), "a report without authentication");
        if outcome.is_err() {
            return;
        }
        assert!(connection.input.len() < MAX_RECORD, "more is kept than one record");
    }
}

/// Connections come, are authenticated and go.
fn admission(mut input: &[u8]) {
    let (mut slots, mut next) = (Vec::<Slot>::new(), 0);
    while let [what, host, count, rest @ ..] = input {
        input = rest;
        match what & 3 {
            0 | 1 => {
                for i in 0..usize::from(*count) % BURST + 1 {
                    // Whether the configuration names a host is a property of its address.
                    let (host, named) = (u32::from(*host) | u32::from(what & 0x10) << 4, what & 0x10 != 0);
                    // One host, hosts of one network, hosts everywhere.
                    let remote: IpAddr = match what >> 2 & 3 {
                        0 => Ipv4Addr::from_bits(0x0a00_0000 | host).into(),
                        1 => Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(host) << 64 | i as u128).into(),
                        _ => Ipv4Addr::from_bits(0x0b00_0000 | host << 8 | i as u32).into(),
                    };
                    come(&mut slots, &mut next, remote, named);
                }
            }
            2 => {
                let at = usize::from(*host) << 4 | usize::from(*count);
                for slot in slots.iter_mut().skip(at).take(usize::from(*count)) {
                    slot.handshake = false;
                }
            }
            _ => {
                let mut at = 0;
                slots.retain(|_| {
                    at += 1;
                    at % (usize::from(*host) + 1) != usize::from(*count) % (usize::from(*host) + 1)
                });
            }
        }
    }
}

/// One connection, and the invariants that should hold for the decision and for the table after it.
fn come(slots: &mut Vec<Slot>, next: &mut u64, remote: IpAddr, named: bool) {
    let of_host = |slot: &&Slot| slot.remote == remote;
    let admission = admit(slots, remote, named);
    match admission {
        Admission::Accept => {}
        Admission::Replace(number) => {
            let at = slots.iter().position(|slot| slot.number == number).expect("there is such a connection");
            assert!(slots[at].handshake, "an authenticated peer is dropped for a newcomer");
            assert!(named || !slots[at].named || slots[at].remote == remote, "a stranger drops a named peer");
            slots.remove(at);
        }
        Admission::Refuse => {
            let full = slots.len() >= MAX_CONNECTIONS && !slots.iter().any(|slot| slot.handshake && !slot.named);
            let of_host = slots.iter().filter(of_host);
            let mine = of_host.clone().count() >= MAX_PER_HOST && !of_host.clone().any(|slot| slot.handshake);
            assert!(full || mine, "refused although there is room, or a handshake to drop");
            return;
        }
    }
    slots.push(Slot { number: *next, remote, handshake: true, named });
    *next += 1;
    let strangers = slots.iter().filter(|slot| slot.handshake && !slot.named).count();
    assert!(slots.len() <= MAX_CONNECTIONS, "more connections than may be");
    assert!(named || strangers <= MAX_HANDSHAKES, "more handshakes of strangers than may be");
    assert!(slots.iter().filter(of_host).count() <= MAX_PER_HOST, "more connections of one host than may be");
}

/// Runs one input: a byte that selects the part, then pieces of bytes or events.
///
/// # Panics
/// When pieces change what is read, something is reported before authentication, or a limit is
/// passed.
pub fn link(input: &[u8]) {
    let Some((part, rest)) = input.split_first() else { return };
    match part & 3 {
        0 => framed(rest),
        1 => short(rest),
        2 => records(rest),
        _ => admission(rest),
    }
}
