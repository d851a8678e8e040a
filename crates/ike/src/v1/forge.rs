//! Messages as a peer with the keys sends them, and every decoder of this module: for tests and
//! fuzz targets.

use std::time::Instant;

use wire::ike::{AuthMethodId, ExchangeType, Header, PayloadType, Payloads};

use super::configuring::Configuring;
use super::established::Established;
use super::fragment::{Reassembly, split};
use super::message::{Features, Head, Parts, with_hash};
use super::method::Method;
use super::phase1::{Covered, Keyed};
use super::proposal::{Phase1, Phase2Terms, accept_phase1, choose_phase1, responder_lifetime};
use super::protection::{Iv, Protection};
use super::{Sa, Slot, Table};
use super::{nat, selectors, transaction};
use crate::config::{ChildMode, Connection};
use crate::context::Context;
use crate::output::{IkeId, IkeSpi, IkeSpis, Path};
use crate::proposal::{ChildProposal, ChildProtocol};
use crate::sa::Role;

/// A message to an ISAKMP SA, from a peer that has its keys.
#[derive(Clone, Copy, Debug)]
pub struct Forged<'a> {
    /// Exchange type.
    pub exchange: u8,
    /// Message ID of an exchange of phase 2. Below 256 it selects an exchange that is under way,
    /// where there is one.
    pub message_id: u32,
    /// Type of the first payload.
    pub first: u8,
    /// The payloads, without HASH where `hashed` adds it.
    pub payloads: &'a [u8],
    /// Encrypts with the keys and the IV that the receiver expects, as far as it has them.
    pub encrypted: bool,
    /// Puts the correct HASH payload in front.
    pub hashed: bool,
}

/// What a receiver expects of the next message of an exchange: keys, IV, message ID and the hash of
/// payloads.
struct Expected<'a> {
    protection: &'a Protection,
    iv: Iv,
    message_id: u32,
    hash: Vec<u8>,
}

impl Table {
    /// As [`crate::Endpoint::forge`], with a correct hash in front of the payloads.
    pub(crate) fn forge(&mut self, ctx: &mut Context<'_>, id: IkeId, exchange: u8, first: u8, payloads: &[u8]) -> bool {
        let Some(own) = self.by_id.get(&id).copied() else { return false };
        let (exchange, first) = (ExchangeType(exchange), PayloadType(first));
        if let Some(Slot { sa: Sa::Configuring(configuring), .. }) = self.sas.get_mut(&own) {
            configuring.up.sa.send_hashed(ctx, exchange, first, payloads);
            return true;
        }
        self.with(ctx, &own, |sa, ctx| sa.send_hashed(ctx, exchange, first, payloads)).is_some()
    }

    /// As [`crate::Endpoint::forged`].
    pub(crate) fn forged(&self, id: IkeId, message: &Forged<'_>) -> Option<Vec<u8>> {
        let sa = &self.sas.get(self.by_id.get(&id)?)?.sa;
        let first = PayloadType(message.first);
        let mut cookies = sa.cookies();
        if cookies.responder.is_zero() {
            // The initiator takes the cookie from message 2.
            cookies.responder = IkeSpi([9; 8]);
        }
        let head = Head { cookies, exchange: ExchangeType(message.exchange), message_id: message.message_id };
        let Some(expected) = expected(sa, message).filter(|_| message.encrypted) else {
            let message_id = if matches!(head.exchange.0, 2 | 4) { 0 } else { head.message_id };
            return Some(Head { message_id, ..head }.message(false, first, message.payloads));
        };
        let head = Head { message_id: expected.message_id, ..head };
        let mut iv = expected.iv;
        Some(match message.hashed {
            true => {
                let body = with_hash(&expected.hash, first, message.payloads);
                expected.protection.seal(&mut iv, &head, PayloadType::HASH_V1, &body)
            }
            false => expected.protection.seal(&mut iv, &head, first, message.payloads),
        })
    }
}

fn expected<'a>(sa: &'a Sa, message: &Forged<'_>) -> Option<Expected<'a>> {
    match sa {
        Sa::Initiator(initiator) => of_phase_1(initiator.expected()?, Role::Responder, message),
        Sa::Responder(responder) => of_phase_1(responder.expected()?, Role::Initiator, message),
        Sa::Configuring(configuring) => of_phase_2(&configuring.up.sa, Some(configuring), message),
        Sa::Established(sa) => of_phase_2(sa, None, message),
    }
}

/// The first ID payload in a chain.
fn id_body(first: u8, payloads: &[u8]) -> Option<&[u8]> {
    let mut all = Payloads::v1(PayloadType(first), payloads).map_while(Result::ok);
    all.find(|payload| payload.kind == PayloadType::ID_V1).map(|payload| payload.body)
}

fn of_phase_1<'a>(
    (keyed, covered, known_id): (&'a Keyed, Covered<'_>, Option<&[u8]>),
    sender: Role,
    message: &Forged<'_>,
) -> Option<Expected<'a>> {
    let id_body = known_id.or_else(|| id_body(message.first, message.payloads)).unwrap_or(&[]);
    let hash = keyed.hash(sender, covered, id_body);
    Some(Expected { protection: &keyed.protection, iv: keyed.iv.clone(), message_id: 0, hash })
}

fn of_phase_2<'a>(
    sa: &'a Established,
    configuring: Option<&'a Configuring>,
    message: &Forged<'_>,
) -> Option<Expected<'a>> {
    let protection = &sa.protection;
    let at = message.message_id as usize;
    let under_way = match ExchangeType(message.exchange) {
        ExchangeType::QUICK_MODE => sa.quick.iter().nth(at).and_then(|(id, quick)| Some((*id, quick.expected()?))),
        ExchangeType::TRANSACTION => {
            let own = configuring.and_then(Configuring::own).filter(|_| at == 0);
            own.map(|own| (own.message_id(), (own.iv(), None)))
        }
        _ => None,
    };
    let Some((message_id, (iv, nonces))) = under_way else {
        let hash = protection.keys.hash_1(sa.prf, message.message_id, message.payloads);
        let iv = protection.iv(&sa.iv_base, message.message_id);
        return Some(Expected { protection, iv, message_id: message.message_id, hash });
    };
    let hash = match nonces {
        Some((nonce_i, Some(nonce_r))) => protection.keys.hash_3(sa.prf, message_id, nonce_i, nonce_r),
        Some((nonce_i, None)) => protection.keys.hash_2(sa.prf, message_id, nonce_i, message.payloads),
        None => protection.keys.hash_1(sa.prf, message_id, message.payloads),
    };
    Some(Expected { protection, iv: iv.clone(), message_id, hash })
}

/// Reads arbitrary bytes as every part of a message of IKEv1. The time is that of the receipt of
/// fragments.
///
/// # Panics
/// When a decoder does, or when what was read and written again is not read as the same.
pub fn decode(now: Instant, connection: &Connection, bytes: &[u8]) {
    let cookies = IkeSpis::new(IkeSpi([1; 8]), IkeSpi([2; 8]));
    for first in (0..=21).chain([128, 130, 131, 132]) {
        let Ok(parts) = Parts::read(PayloadType(first), bytes) else { continue };
        let _ = Features::of(&parts.vendors).common(&parts.vendors, connection, true);
        for notification in &parts.notifications {
            let _ = responder_lifetime(notification);
        }
        let path = Path::of_datagram(([10, 0, 0, 1], 500).into(), ([10, 0, 0, 2], 500).into());
        let _ = nat::detect(&parts.nat_d, crypto::ike::Hash::Sha256, cookies, &path);
    }
    decode_proposals(connection, bytes);
    if let Ok(ts) = selectors::read(bytes) {
        let again = selectors::emit(&ts);
        assert_eq!(selectors::read(&again).ok(), Some(ts), "a selector is written as another one");
    }
    let _ = selectors::identity(bytes);
    transaction::decode(bytes);
    let datagram = [&[0; Header::LEN], bytes].concat();
    let mut slot = None;
    for at in 0..datagram.len().min(64) {
        let whole = Reassembly::add(&mut slot, now, &datagram[at..], 512);
        assert!(whole.is_none_or(|whole| whole.len() <= 512), "a message above its limit");
    }
    // What is cut into pieces is put together again.
    let mut slot = None;
    let pieces = split(datagram.clone(), cookies, 120, 7);
    let whole = match &pieces[..] {
        [whole] => Some(whole.clone()),
        pieces => pieces.iter().filter_map(|piece| Reassembly::add(&mut slot, now, piece, 1 << 16)).next(),
    };
    assert_eq!(whole, Some(datagram), "pieces are another message");
}

/// An accepted offer leads to an answer that the initiator of the same suites accepts.
fn decode_proposals(connection: &Connection, body: &[u8]) {
    let kinds = [AuthMethodId::RSA, AuthMethodId::ECDSA256];
    let methods = Method::of(connection, Role::Responder, Some(&kinds));
    let ours = Phase1::of(&connection.proposals, &methods);
    let _ = accept_phase1(&ours, body);
    if let Ok(choice) = choose_phase1(&ours, body) {
        let accepted = accept_phase1(&ours, &choice.answer);
        assert!(accepted.is_ok_and(|(suite, _)| suite == choice.suite), "an answer that is not accepted");
    }
    for (protocol, text) in
        [(ChildProtocol::Esp, "aes128gcm16-aes128-sha256-ecp256-none-esn-noesn"), (ChildProtocol::Ah, "sha256")]
    {
        let Ok(proposal) = ChildProposal::parse(protocol, text) else { continue };
        for mode in [ChildMode::Tunnel, ChildMode::Transport] {
            let terms = Phase2Terms::of(std::slice::from_ref(&proposal), mode, connection.rekey_time, None);
            let _ = terms.accept(body);
            let _ = terms.choose(body, &[1, 2, 3, 4]);
        }
    }
}
