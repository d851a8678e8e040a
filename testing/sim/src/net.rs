//! The network between hosts: lossy links and NATs.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::Dice;

/// Disturbances of a link; probabilities per 1000.
#[derive(Clone, Debug)]
pub struct Link {
    /// Lost.
    pub loss: usize,
    /// Delivered twice.
    pub twice: usize,
    /// Delivered once more with one bit changed.
    pub damage: usize,
    /// Delivered again much later.
    pub late: usize,
    /// Delay in milliseconds, from and below; a wide range reorders.
    pub delay: (u64, u64),
}

impl Link {
    /// A link that only takes its time.
    pub const CALM: Self = Self { loss: 0, twice: 0, damage: 0, late: 0, delay: (5, 6) };

    /// Delays of the copies that arrive, and whether each is damaged.
    pub(crate) fn copies(&self, dice: &mut Dice) -> Vec<(Duration, bool)> {
        let mut delay = |low: u64, high: u64| dice.ms(low, high.max(low + 1));
        let (low, high) = self.delay;
        let all = [
            (1000 - self.loss, delay(low, high), false),
            (self.twice, delay(low, high), false),
            (self.damage, delay(low, high), true),
            (self.late, delay(1_000, 90_000), false),
        ];
        all.into_iter().filter(|(chance, ..)| dice.chance(*chance)).map(|(_, delay, bad)| (delay, bad)).collect()
    }
}

/// A translator of addresses and ports in front of a host (RFC 7296 §2.23).
#[derive(Clone, Debug)]
pub struct Nat {
    /// Its address outside.
    pub outside: IpAddr,
    next_port: u16,
    mappings: BTreeMap<SocketAddr, u16>,
}

impl Nat {
    /// A translator without mappings.
    pub fn new(outside: IpAddr) -> Self {
        Self { outside, next_port: 20_000, mappings: BTreeMap::new() }
    }

    /// Forgets every mapping: the next datagrams get new ports.
    pub fn rebind(&mut self) {
        self.mappings.clear();
    }

    /// Source address after the NAT.
    pub(crate) fn out(&mut self, inside: SocketAddr) -> SocketAddr {
        let next = &mut self.next_port;
        let port = *self.mappings.entry(inside).or_insert_with(|| {
            *next = next.wrapping_add(1).max(20_000);
            *next
        });
        (self.outside, port).into()
    }

    /// The destination inside; `None` without a mapping.
    pub(crate) fn back(&self, outside: SocketAddr) -> Option<SocketAddr> {
        let meant = |(_, port): &(&SocketAddr, &u16)| self.outside == outside.ip() && **port == outside.port();
        self.mappings.iter().find(meant).map(|(inside, _)| *inside)
    }
}
