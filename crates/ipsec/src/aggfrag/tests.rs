//! Octets of payloads, faults, and properties of sender and receiver together.

mod properties;
mod vectors;

use std::collections::VecDeque;

use super::{Buffers, Filled, Filler, Inner, Packer, Payloads, Receiver, Settings, Source, Taken};
use crate::DropReason;
use crate::testkit::{ipv4_udp, ipv6_udp};

/// Payloads in order.
#[derive(Default)]
struct Sent(Vec<Vec<u8>>);

impl Payloads for Sent {
    fn begin(&mut self, header: &[u8]) -> bool {
        self.0.push(header.to_vec());
        true
    }

    fn append(&mut self, bytes: &[u8]) {
        self.0.last_mut().unwrap().extend_from_slice(bytes);
    }
}

/// The payloads of at most `len` bytes that `packets` become.
fn pack<'p>(len: usize, settings: &Settings, packets: impl IntoIterator<Item = &'p Vec<u8>>) -> Vec<Vec<u8>> {
    let (mut packer, mut sent) = (Packer::new(len, settings), Sent::default());
    packets.into_iter().for_each(|packet| packer.pack(packet, &mut sent).unwrap());
    assert!(sent.0.iter().all(|payload| payload.len() <= len), "a payload exceeds {len} bytes");
    sent.0
}

/// Queue of a [`Filler`].
impl Source for VecDeque<Vec<u8>> {
    fn head_len(&mut self) -> Option<usize> {
        self.front().map(Vec::len)
    }

    fn copy(&mut self, from: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.front().unwrap()[from..from + to.len()]);
    }

    fn pop(&mut self) {
        self.pop_front();
    }
}

/// Settings that cut wherever a payload is full.
fn cutting() -> Settings {
    Settings { prefer_whole: false, ..Settings::default() }
}

/// A receiver with its buffers, and all that it returned.
struct Received {
    receiver: Receiver<Vec<u8>>,
    buffers: Buffers,
    packets: Vec<Vec<u8>>,
    drops: Vec<DropReason>,
}

impl Received {
    fn new(settings: Settings) -> Self {
        let (packets, drops) = (Vec::new(), Vec::new());
        Self { receiver: Receiver::new(settings), buffers: Buffers::new(), packets, drops }
    }

    fn push(&mut self, now_ms: u64, seq: u64, payload: &[u8]) {
        drop(self.receiver.push(now_ms, seq, payload.to_vec()));
        self.take();
    }

    fn expire(&mut self, now_ms: u64) {
        self.receiver.expire(now_ms, &mut self.buffers);
        self.take();
    }

    fn take(&mut self) {
        loop {
            // Each of the three.
            self.receiver.take_whole(|packet| {
                let wanted = !self.packets.len().is_multiple_of(3);
                self.packets.extend(wanted.then(|| packet.to_vec()));
                wanted
            });
            match self.receiver.take(&mut self.buffers, &mut drop) {
                Some(Taken::Inner(Inner::Packet(packet))) => self.packets.push(packet.to_vec()),
                Some(Taken::Inner(Inner::Dropped(why))) => self.drops.push(why),
                Some(Taken::Last(payload, range)) => self.packets.push(payload[range].to_vec()),
                None => break,
            }
        }
        assert!(!self.receiver.is_ready());
    }
}

/// Takes `payloads`, numbered from 1 on, in the order of `numbers`.
fn receive(settings: Settings, payloads: &[Vec<u8>], numbers: impl IntoIterator<Item = usize>) -> Received {
    let mut received = Received::new(settings);
    numbers.into_iter().for_each(|number| received.push(0, number as u64, &payloads[number - 1]));
    received
}

/// An IPv4 packet of `len` bytes in all.
fn v4(len: usize) -> Vec<u8> {
    ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], len - 28)
}

/// An IPv6 packet of `len` bytes in all.
fn v6(len: usize) -> Vec<u8> {
    ipv6_udp([1; 16], [2; 16], len - 48)
}
