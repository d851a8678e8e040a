//! Two endpoints driven by bytes: mutated datagrams before and after authentication.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::{Delivery, Net, auth, connection, connection_v1, id, port_500, range};
use crate::Settings;
use crate::config::{Auth, AuthMethod, Connection, Fragmentation, PoolConfig};
use crate::identity::IdPattern;
use crate::output::Transmit;

/// Bytes that are looked at, and datagrams that are remembered for mutation.
const INPUT_MAX: usize = 4096;
const REMEMBERED: usize = 32;

/// Reads `input` as a list of operations on two endpoints of which one starts an IKE SA. Of the
/// first byte, bit 0 is without cookies, 1 waits until it is up, and 2 is IKEv1; with that bit 3 is
/// aggressive mode, 4 signatures and all messages in fragments, 5 XAuth and Mode Config. Then:
///
/// | first byte | then | what |
/// |---|---|---|
/// | 0 | length, bytes | a datagram as it is |
/// | 1 | which, at, xor | a datagram that was seen, with one byte changed |
/// | 2 | which, length, bytes | one that was seen, its payloads replaced |
/// | 3 | exchange, first payload, length, bytes | a request under the keys of the IKE SA |
/// | 4 | tenths of a second | time passes |
///
/// The highest bit of the operation chooses the host that receives (for 3: that sends).
///
/// # Panics
/// When an endpoint does, or when a table grows above its limit: the fuzzer searches for panics and
/// broken invariants.
pub fn drive(input: &[u8]) {
    let Some((setup, mut input)) = input[..input.len().min(INPUT_MAX)].split_first() else { return };
    let settings = Settings {
        cookie_threshold: usize::from(setup & 1) * 30,
        aggressive_mode_psk: true,
        cisco_unity: true,
        ..Settings::default()
    };
    let mut net = Net::with_settings(1, 2, &settings);
    let connection = |local: u8, remote: u8| match setup & 4 != 0 {
        true => v1_of(*setup, connection_v1(local, remote), local == 1),
        false => connection(local, remote),
    };
    for (host, (local, remote)) in [(0, (1u8, 2u8)), (1, (2, 1))] {
        let name = |number| id(&format!("host{number}.test"));
        if setup & 0b10100 == 0b10100 {
            net.hosts[host].credentials.with_keys_v1((name(local), local), &[(name(remote), remote)]);
        }
        net.hosts[host].credentials.passwords.insert(b"alice".to_vec(), b"a password".to_vec());
        net.load(host, vec![connection(local, remote)]);
    }
    let pool = PoolConfig { name: "pool".to_owned(), addrs: range("10.9.0.0/24"), attributes: Vec::new() };
    net.hosts[1].endpoint.load_pools(vec![pool]);
    let seen: Rc<RefCell<Vec<Transmit>>> = Rc::default();
    let copy = seen.clone();
    net.wire = Box::new(move |datagram| {
        let mut seen = copy.borrow_mut();
        if seen.len() < REMEMBERED {
            seen.push(datagram.clone());
        }
        Delivery::After(Duration::from_millis(5))
    });
    let now = net.now;
    let _ = net.hosts[0].endpoint.initiate(now, "1-2", Some("net"), 1);
    net.pump();
    if setup & 2 != 0 {
        net.run(Duration::from_secs(1));
    }
    while let Some((op, rest)) = input.split_first() {
        let copies = seen.borrow().clone();
        input = operate(&mut net, &copies, *op, rest);
        net.pump();
    }
    net.run(Duration::from_secs(300));
    for host in &net.hosts {
        assert!(host.endpoint.half_open_count() <= settings.block_threshold);
        assert!(host.endpoint.ike_sa_count() < 64 && host.plane.len() < 1024);
    }
}

/// Delivers a datagram that was seen once more, with one byte changed.
pub(super) fn inject_changed(net: &mut Net, seen: &[Transmit], [which, at, xor]: [u8; 3]) {
    let Some(mut copy) = seen.get(usize::from(which) % seen.len().max(1)).cloned() else { return };
    let at = usize::from(at) % copy.datagram.len();
    copy.datagram[at] ^= xor;
    net.inject(copy);
    net.run(Duration::from_millis(1));
}

/// A variant of IKEv1.
fn v1_of(setup: u8, mut connection: Connection, client: bool) -> Connection {
    connection.aggressive = setup & 8 != 0;
    if setup & 16 != 0 {
        connection.fragmentation = Fragmentation::Force;
        for auth in connection.local.iter_mut().chain(&mut connection.remote) {
            auth.method = AuthMethod::PublicKey(Vec::new());
        }
    }
    match setup & 32 != 0 {
        true if client => {
            connection.local.push(Auth { eap_id: IdPattern::parse("alice").ok(), ..auth(AuthMethod::XAuth, "%any") });
            connection.vips = vec![[0, 0, 0, 0].into()];
        }
        true => {
            connection.remote.push(auth(AuthMethod::XAuth, "%any"));
            connection.pools = vec!["pool".to_owned()];
        }
        false => {}
    }
    connection
}

fn operate<'a>(net: &mut Net, seen: &[Transmit], op: u8, input: &'a [u8]) -> &'a [u8] {
    let host = usize::from(op >> 7);
    let (to, from) = (port_500(host as u8 + 1), port_500(2 - host as u8));
    match (op & 0x7f, input) {
        (0, [len, rest @ ..]) => {
            let (datagram, rest) = rest.split_at(rest.len().min(usize::from(*len) * 4));
            net.inject(Transmit { local: from, remote: to, datagram: datagram.to_vec(), dscp: 0 });
            net.run(Duration::from_millis(1));
            rest
        }
        (1, [which, at, xor, rest @ ..]) => {
            inject_changed(net, seen, [*which, *at, *xor]);
            rest
        }
        (2, [which, len, rest @ ..]) => {
            let (payloads, rest) = rest.split_at(rest.len().min(usize::from(*len) * 4));
            if let Some(mut copy) = seen.get(usize::from(*which) % seen.len().max(1)).cloned() {
                copy.datagram.truncate(28);
                copy.datagram.extend(payloads);
                let length = copy.datagram.len() as u32;
                copy.datagram[24..28].copy_from_slice(&length.to_be_bytes());
                net.inject(copy);
                net.run(Duration::from_millis(1));
            }
            rest
        }
        (3, [exchange, first, len, rest @ ..]) => {
            let (payloads, rest) = rest.split_at(rest.len().min(usize::from(*len) * 4));
            let now = net.now;
            let ike = net.hosts[host].endpoint.ike_sas().next().map(|sa| sa.id);
            if let Some(ike) = ike {
                net.hosts[host].endpoint.forge(now, ike, *exchange, *first, payloads);
            }
            rest
        }
        (4, [tenths, rest @ ..]) => {
            net.run(Duration::from_millis(100) * u32::from(*tenths));
            rest
        }
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_bytes_make_an_endpoint_panic(
            setup in 0u8..64,
            operations in prop::collection::vec(
                (0u8..5, any::<bool>(), prop::collection::vec(any::<u8>(), 3..40)), 0..12),
        ) {
            let mut input = vec![setup];
            for (op, host, bytes) in operations {
                input.push(op | u8::from(host) << 7);
                input.extend(bytes);
            }
            drive(&input);
        }
    }

    /// Chains of payloads that are well formed more often than chance would make them.
    fn payloads(next: &mut impl FnMut(u32) -> u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..next(4) {
            let len = next(40);
            bytes.extend([[33, 1][usize::from(next(2))] + next(20), next(2) << 7, 0, 4 + len]);
            bytes.extend((0..len).map(|_| next(256)));
        }
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// A fuzzer finds more; this one is for builds without one.
    #[test]
    #[ignore = "takes minutes"]
    fn many_bytes_do_not_either() {
        use rand_core::{RngCore, SeedableRng};
        for seed in 0..10_000 {
            let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
            let mut next = |below: u32| (rng.next_u32() % below) as u8;
            let mut input = vec![next(64)];
            for _ in 0..next(20) {
                let (op, host) = (next(5), next(2) << 7);
                let exchange = [35, 36, 37, 43, 44, 2, 4, 5, 6, 32][usize::from(next(10))];
                let chain = payloads(&mut next);
                let len = (chain.len() / 4) as u8;
                input.push(op | host);
                match op {
                    0 => input.push(len),
                    1 => input.extend([next(32), next(80), 1 << next(8)]),
                    2 => input.extend([next(32), len]),
                    3 => input.extend([exchange, [33, 1][usize::from(next(2))] + next(20), len]),
                    _ => input.push(next(60)),
                }
                if matches!(op, 0 | 2 | 3) {
                    input.extend(chain);
                }
            }
            drive(&input);
        }
    }
}
