//! IKE SAs per second and per megabyte: the endpoint alone, in memory, with real cryptography; and
//! a whole daemon ([`daemon`]).
//!
//! One responder and one initiator for each IKE SA run on one thread; the figures are therefore the
//! cost of both endpoints on one core. Both authenticate with ECDSA P-256 over X25519 and AES-GCM,
//! and each IKE SA brings one Child SA. The endpoint has no sockets, so neither have the figures.

pub(crate) mod daemon;
mod flood;
mod host;
pub(crate) mod rivals;

use std::time::Instant;

pub(crate) use self::flood::flood;
use self::host::{Net, client, gateway};
use crate::host::resident_bytes as resident;

/// Spoofed IKE_SA_INIT per second of a flood.
pub(crate) const FLOOD_PPS: u32 = 10_000;

/// One round of each rate: IKE SAs with a Child SA, rekeyed Child SAs, rekeyed IKE SAs; per second,
/// both endpoints on one core.
pub(crate) fn rates(count: usize) -> [f64; 3] {
    let [child, ike] = rekeys(count);
    [handshakes(count), child, ike]
}

/// Brings so many IKE SAs up and lets their initiators go. Returns the resident memory of one at
/// the responder, in bytes. Only the first call of a process is right: memory that was freed before
/// is used again.
pub(crate) fn bytes_of_each(count: usize) -> f64 {
    let mut net = Net::new(gateway());
    // One-time memory of the first one: tables, the library, the allocator.
    net.bring_up(client(0));
    let before = resident();
    for number in 0..count {
        net.bring_up(client(number + 1));
    }
    let held = net.gateway.ike_sa_count() - 1;
    assert_eq!(held, count, "IKE SAs at the responder");
    resident().saturating_sub(before) as f64 / held as f64
}

fn handshakes(count: usize) -> f64 {
    let mut net = Net::new(gateway());
    let mut clients: Vec<_> = (0..count).map(client).collect();
    let start = Instant::now();
    for client in clients.drain(..) {
        net.bring_up(client);
    }
    count as f64 / start.elapsed().as_secs_f64()
}

/// Rekeyings per second of the Child SA and of the IKE SA.
fn rekeys(count: usize) -> [f64; 2] {
    let mut net = Net::new(gateway());
    let mut clients: Vec<_> = (0..count.min(64)).map(|number| net.bring_up(client(number))).collect();
    [false, true].map(|ike| {
        let start = Instant::now();
        for number in 0..count {
            let at = number % clients.len();
            net.rekey(&mut clients[at], ike);
        }
        count as f64 / start.elapsed().as_secs_f64()
    })
}
