//! Message handling of one host of the key service, driven by a fuzzer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::issuer::{Issuer, Seed};
use super::message::{Message, Mode};
use super::peer::{Action, ChildSpec, Link, Peer, PeerSpec};

const HOUR: Duration = Duration::from_secs(3600);
/// Actions that one event may lead to.
const MAX_ACTIONS: usize = 200;
/// SPIs of one child that receive at a time (`peer::MAX_RECEIVING`).
const MAX_RECEIVING: usize = 8;
const CHILDREN: usize = 2;

/// Data-plane side of the endpoint, and the invariants that should hold there.
#[derive(Default)]
struct Installed {
    receiving: [BTreeSet<u32>; CHILDREN],
    /// SPIs that the other end issued and this one sends with, or has sent with.
    sending: [Option<u32>; CHILDREN],
    links: BTreeSet<u64>,
}

impl Installed {
    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Send(_, message) => {
                if let Message::Grant(grant) = &message {
                    let known = self.receiving.iter().any(|spis| spis.contains(&grant.spi.get()));
                    assert!(known, "an SPI was granted before it receives");
                }
                assert_eq!(Message::parse(&message.emit()).as_ref(), Ok(&message), "what is sent can be read");
            }
            Action::Close(link, _) => drop(self.links.remove(&link.0)),
            Action::InstallRx(child, issued, _) => {
                assert!(self.receiving[child].insert(issued.spi.get()), "an SPI was issued twice");
                assert!(self.receiving[child].len() <= MAX_RECEIVING, "more SPIs receive than may");
            }
            Action::RemoveRx(child, spi) => {
                assert!(self.receiving[child].remove(&spi.get()), "an SPI was removed that does not receive");
            }
            Action::InstallTx(child, grant) => {
                let spi = Some(grant.spi.get());
                assert!(!self.sending.contains(&spi), "two counters under one key");
                self.sending[child] = spi;
            }
            Action::RemoveTx(child) => self.sending[child] = None,
            Action::Connect | Action::Event(_) => {}
        }
    }
}

fn child(local: &str, remote: &str) -> ChildSpec {
    ChildSpec {
        mode: Mode::Tunnel,
        versions: vec![1, 0],
        local: vec![local.parse().expect("a selector")],
        remote: vec![remote.parse().expect("a selector")],
        max_crypt_offset: 0,
        window: true,
        rekey: Duration::ZERO,
    }
}

/// One peer. Each event of the input is a byte for the kind, a byte for the object, and for a
/// message the frame after its two-byte length.
///
/// # Panics
/// When an SPI is granted that does not receive, used twice, or when there are more than the
/// limits.
pub fn peer(mut input: &[u8]) {
    let mut now = Instant::now();
    let seed = |byte: u8| Seed { key: Zeroizing::new([byte; 32]), start: u32::from(byte) << 8 };
    let mut issuer = Issuer::new(now, HOUR, &seed(1));
    let mut peer = Peer::new(PeerSpec {
        boot: 10,
        port: 1000,
        dials: true,
        dpd_delay: Duration::from_secs(30),
        tries: 0,
        chance: 3,
        children: vec![child("10.1.0.0/16", "10.2.0.0/16"), child("10.3.0.0/16", "10.4.0.0/16")],
    });
    let (mut installed, mut next, mut seeds) = (Installed::default(), 0, 1_u8);
    while let [what, which, rest @ ..] = input {
        input = rest;
        let number = usize::from(*which) % CHILDREN;
        let link = Link(u64::from(*which) % (next + 1));
        match what % 10 {
            0 => peer.want(now, number),
            1 => peer.end(number),
            2 => peer.worn(now, number),
            3 => {
                next += 1;
                installed.links.insert(next);
                peer.connected(now, Link(next), which & 1 == 0);
            }
            4 => peer.closed(now, (which & 1 == 0).then_some(link), "cut"),
            5 => {
                // Never past a rotation that is due.
                now = (now + Duration::from_secs(u64::from(*which))).min(issuer.rotates_at());
                peer.timeout(now);
            }
            6 => {
                now = issuer.rotates_at();
                peer.timeout(now);
                seeds = seeds.wrapping_add(1);
                issuer.rotate(now, &seed(seeds));
                peer.rotated(now, &mut issuer);
            }
            7 => peer.renew(now, number, &mut issuer),
            _ => {
                let [high, low, rest @ ..] = input else { return };
                let len = usize::from(u16::from_be_bytes([*high, *low]));
                let (frame, rest) = rest.split_at(len.min(rest.len()));
                input = rest;
                // Messages of a link that is closed do not come any more.
                if installed.links.contains(&link.0)
                    && let Ok(message) = Message::parse(frame)
                {
                    peer.received(now, link, message, &mut issuer);
                }
            }
        }
        let mut actions = 0;
        while let Some(action) = peer.poll() {
            actions += 1;
            assert!(actions <= MAX_ACTIONS, "one event leads to more than {MAX_ACTIONS} actions");
            installed.carry_out(action);
        }
        let _ = (peer.deadline(), peer.state(), peer.lines(number), peer.selectors(number));
    }
}
