//! Admission of TCP connections before TLS: handshakes of unauthenticated peers cannot keep others
//! out.
//!
//! A full table drops its oldest handshake, not the newcomer, because an idle connection costs its
//! sender nothing. Handshakes are counted by network, an IPv6 /64 being one. Configured addresses
//! have reserved slots.

use std::net::{IpAddr, Ipv6Addr};

/// Control connections at a time; each holds at most some 150 KiB, 150 MiB at the very worst.
pub(super) const MAX_CONNECTIONS: usize = 1024;
/// Handshakes at a time from addresses that the configuration does not name.
pub(super) const MAX_HANDSHAKES: usize = 128;
/// Connections of one address, and handshakes of one network.
pub(super) const MAX_PER_HOST: usize = 8;

/// A control connection, as far as admission depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Numbers of later connections are higher.
    pub(super) number: u64,
    pub(super) remote: IpAddr,
    /// It came from outside and is not authenticated.
    pub(super) handshake: bool,
    /// The configuration names its address.
    pub(super) named: bool,
}

/// Decision about a newcomer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Admission {
    Accept,
    /// Accept it after this handshake was dropped.
    Replace(u64),
    Refuse,
}

/// Decides whether a connection from `remote` may begin its handshake; `named` is whether required
/// by the configuration.
pub(super) fn admit(slots: &[Slot], remote: IpAddr, named: bool) -> Admission {
    let oldest = |fits: &dyn Fn(&Slot) -> bool| {
        slots.iter().filter(|slot| slot.handshake && fits(slot)).map(|slot| slot.number).min()
    };
    let of_host = |slot: &Slot| slot.remote == remote;
    let of_network = |slot: &Slot| network(slot.remote) == network(remote) && slot.named == named;
    let stranger = |slot: &Slot| !slot.named;
    // A stranger makes room among strangers only.
    let replace = |fits: &dyn Fn(&Slot) -> bool| oldest(fits).map_or(Admission::Refuse, Admission::Replace);
    if slots.iter().filter(|slot| of_host(slot)).count() >= MAX_PER_HOST {
        return replace(&of_host);
    }
    if slots.iter().filter(|slot| slot.handshake && of_network(slot)).count() >= MAX_PER_HOST && !named {
        return replace(&of_network);
    }
    let strangers = slots.iter().filter(|slot| slot.handshake && stranger(slot)).count();
    if slots.len() >= MAX_CONNECTIONS || !named && strangers >= MAX_HANDSHAKES {
        return replace(&stranger);
    }
    Admission::Accept
}

/// An IPv4 address, or the /64 of an IPv6 address: a host usually has all of it.
fn network(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(_) => addr,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table to which connections come one after the other.
    #[derive(Default)]
    struct Table {
        slots: Vec<Slot>,
        next: u64,
    }

    impl Table {
        fn come(&mut self, remote: &str, named: bool) -> Admission {
            let remote: IpAddr = remote.parse().unwrap();
            let admission = admit(&self.slots, remote, named);
            if let Admission::Replace(number) = admission {
                let before = self.slots.len();
                self.slots.retain(|slot| slot.number != number || !slot.handshake);
                assert_eq!(self.slots.len(), before - 1, "only a handshake is dropped");
            }
            if admission != Admission::Refuse {
                self.slots.push(Slot { number: self.next, remote, handshake: true, named });
                self.next += 1;
            }
            admission
        }

        fn authenticate(&mut self, number: u64) {
            self.slots.iter_mut().filter(|slot| slot.number == number).for_each(|slot| slot.handshake = false);
        }

        fn handshakes(&self) -> usize {
            self.slots.iter().filter(|slot| slot.handshake && !slot.named).count()
        }
    }

    #[test]
    fn idle_handshakes_of_many_addresses_keep_nobody_out() {
        let mut table = Table::default();
        for at in 0..400 {
            assert_ne!(table.come(&format!("10.0.{}.{}", at / 8, 1), false), Admission::Refuse);
        }
        assert_eq!(table.handshakes(), MAX_HANDSHAKES);
        // An unknown peer replaces the oldest handshake; a configured peer uses a reserved slot.
        let oldest = table.slots.iter().map(|slot| slot.number).min().unwrap();
        assert_eq!(table.come("192.0.2.1", false), Admission::Replace(oldest));
        assert_eq!(table.come("192.0.2.2", true), Admission::Accept);
        // However many strangers come, the handshake of a named peer stays.
        for at in 0..400 {
            table.come(&format!("10.1.{}.{}", at / 250, at % 250), false);
        }
        assert!(table.slots.iter().any(|slot| slot.named));
    }

    #[test]
    fn one_network_has_few_handshakes() {
        let mut table = Table::default();
        for at in 0..100 {
            table.come(&format!("2001:db8::{at:x}"), false);
        }
        assert_eq!(table.handshakes(), MAX_PER_HOST);
        assert_eq!(table.come("2001:db8:0:1::1", false), Admission::Accept);
        // Authenticated connections are counted by address instead of by network.
        let mut table = Table::default();
        for at in 0..100 {
            table.come(&format!("2001:db8::{at:x}"), false);
            table.authenticate(table.next - 1);
        }
        assert_eq!(table.slots.len(), 100);
        for _ in 0..MAX_PER_HOST {
            table.come("192.0.2.1", false);
            table.authenticate(table.next - 1);
        }
        assert_eq!(table.come("192.0.2.1", false), Admission::Refuse);
        assert_eq!(table.come("192.0.2.1", true), Admission::Refuse);
    }

    #[test]
    fn the_table_is_bounded_and_drops_no_authenticated_peer() {
        let mut table = Table::default();
        for at in 0..MAX_CONNECTIONS {
            table.come(&format!("10.{}.{}.1", at / 250, at % 250), false);
            table.authenticate(table.next - 1);
        }
        assert_eq!(table.come("192.0.2.1", true), Admission::Refuse);
        table.slots.pop();
        assert_eq!(table.come("192.0.2.1", false), Admission::Accept);
        let last = table.next - 1;
        assert_eq!(table.come("192.0.2.2", true), Admission::Replace(last));
        assert_eq!(table.come("192.0.2.3", false), Admission::Refuse);
        assert_eq!(table.slots.len(), MAX_CONNECTIONS);
    }
}
