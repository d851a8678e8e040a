//! A flood of IKE_SA_INIT under addresses that are not the sender's, and an honest peer in between.
//!
//! Time is simulated, the work is real: every spoofed request is a whole message with a fresh SPI
//! and another source, answered by whatever the responder answers it with. The load is the
//! processor time of the responder over the simulated time: below 1 it keeps up.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ike::output::{Event, Output, Transmit};

use super::host::{Client, GATEWAY, client, gateway, pump};
use super::resident;
use crate::metric::Metric;

/// Simulated seconds of flood.
const SECONDS: usize = 5;
/// Between the honest peer and the responder.
const ROUND_TRIP: Duration = Duration::from_millis(20);
/// Start of the honest peer, after the beginning of the flood.
const STARTS: Duration = Duration::from_secs(1);

/// Result of a flood.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flood {
    /// Simulated seconds that the honest peer needed; `None` when it did not come up.
    pub(crate) up_after_s: Option<f64>,
    /// Processor time of the responder per simulated time.
    pub(crate) load: f64,
    /// Half-open IKE SAs at most.
    pub(crate) half_open_max: usize,
    /// Resident memory that it took, in bytes.
    pub(crate) bytes: u64,
    /// Bytes that the responder sent for each byte of the flood.
    pub(crate) amplification: f64,
}

impl Flood {
    /// As a trial keeps it.
    pub(crate) fn values(&self) -> impl Iterator<Item = (Metric<'static>, f64)> {
        let up = self.up_after_s.map(|after| (Metric::FloodUpMs, after * 1e3));
        let cost = [
            (Metric::FloodCorePercent, self.load * 100.0),
            (Metric::FloodHalfOpenMax, self.half_open_max as f64),
            (Metric::FloodBytes, self.bytes as f64),
            (Metric::FloodAmplification, self.amplification),
        ];
        up.into_iter().chain(cost)
    }
}

/// Floods a responder with so many requests per second.
pub(crate) fn flood(pps: u32) -> Flood {
    let mut gateway = gateway();
    let start = Instant::now();
    let mut client = client(1 << 20);
    let mut template = template();
    let before = resident();
    let mut flood = Flood { up_after_s: None, load: 0.0, half_open_max: 0, bytes: 0, amplification: 0.0 };
    let (mut busy, mut bytes) = (Duration::ZERO, (0_usize, 0_usize));
    // Datagrams of the honest peer and to it, with the time of their arrival.
    let mut flying: VecDeque<(Instant, bool, Transmit)> = VecDeque::new();
    let (mut sent, mut events, mut started) = (VecDeque::new(), Vec::new(), false);
    for number in 0..u64::from(pps) * SECONDS as u64 {
        let now = start + Duration::from_secs_f64(number as f64 / f64::from(pps));
        let spoofed = SocketAddr::from(([198, 18 + (number >> 16 & 1) as u8, (number >> 8) as u8, number as u8], 500));
        template[..8].copy_from_slice(&(number + 1).to_be_bytes());
        let real = Instant::now();
        gateway.handle_datagram(now, GATEWAY, spoofed, &template);
        if gateway.deadline().is_some_and(|due| due <= now) {
            gateway.handle_timeout(now);
        }
        pump(&mut gateway, now, &mut sent, &mut events);
        busy += real.elapsed();
        bytes.0 += template.len();
        for transmit in sent.drain(..) {
            if transmit.remote == spoofed {
                bytes.1 += transmit.datagram.len();
            } else {
                flying.push_back((now + ROUND_TRIP / 2, false, transmit));
            }
        }
        flood.half_open_max = flood.half_open_max.max(gateway.half_open_count());
        if !started && now >= start + STARTS {
            started = true;
            client.host.initiate(now, "client", Some("net"), 1).expect("the connection is loaded");
        }
        if started && flood.up_after_s.is_none() {
            flood.up_after_s = honest(&mut client, now, &mut flying).then(|| (now - start - STARTS).as_secs_f64());
        }
        while flying.front().is_some_and(|(at, to_gateway, _)| *at <= now && *to_gateway) {
            let Some((_, _, Transmit { local, remote, datagram, .. })) = flying.pop_front() else { break };
            gateway.handle_datagram(now, remote, local, &datagram);
        }
        events.clear();
    }
    flood.load = busy.as_secs_f64() / SECONDS as f64;
    flood.bytes = resident().saturating_sub(before);
    flood.amplification = bytes.1 as f64 / bytes.0 as f64;
    flood
}

/// The honest peer receives and sends; whether it is up.
fn honest(client: &mut Client, now: Instant, flying: &mut VecDeque<(Instant, bool, Transmit)>) -> bool {
    while flying.front().is_some_and(|(at, to_gateway, _)| *at <= now && !to_gateway) {
        let Some((_, _, Transmit { local, remote, datagram, .. })) = flying.pop_front() else { break };
        client.host.handle_datagram(now, remote, local, &datagram);
    }
    if client.host.deadline().is_some_and(|due| due <= now) {
        client.host.handle_timeout(now);
    }
    let (mut sent, mut events) = (VecDeque::new(), Vec::new());
    pump(&mut client.host, now, &mut sent, &mut events);
    flying.extend(sent.into_iter().map(|transmit| (now + ROUND_TRIP / 2, true, transmit)));
    events.iter().any(|event| matches!(event, Output::Event(Event::ChildUp(_))))
}

/// A request as an initiator of this configuration sends it.
fn template() -> Vec<u8> {
    let mut peer = client(1 << 21);
    let now = Instant::now();
    peer.host.initiate(now, "client", Some("net"), 1).expect("the connection is loaded");
    let (mut sent, mut events) = (VecDeque::new(), Vec::new());
    pump(&mut peer.host, now, &mut sent, &mut events);
    sent.pop_front().expect("a request").datagram
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_honest_peer_gets_through_a_flood() {
        let flood = flood(2_000);
        assert!(flood.up_after_s.is_some_and(|after| after < 2.0), "{flood:?}");
        assert!(flood.half_open_max <= 40 && flood.amplification < 1.0, "{flood:?}");
    }
}
