//! TRANSACTION exchanges (draft-dukes-ike-mode-cfg-02, draft-beaulieu-ike-xauth-02): messages of
//! two, each with HASH(1) and one attributes payload, under one message ID.

use std::time::Instant;

use wire::ike::v1::Config;
use wire::ike::{Attribute, CfgAttr, CfgType, ExchangeType, Header, PayloadType};
use zeroize::Zeroizing;

use super::counters;
use super::established::Established;
use super::message::{Head, Parts, payloads};
use super::protection::{Digest, Iv, digest};
use crate::context::Context;
use crate::exchange::Resend;
use crate::output::Path;

/// Answers that are kept: a peer repeats its request when the answer was lost. Each is at most some
/// hundred bytes.
const ANSWERED_MAX: usize = 8;
/// Attributes of one message that are read.
const ATTRIBUTES_MAX: usize = 64;

/// An attribute with its value; a value in place has two bytes.
pub(super) type Attr = (CfgAttr, Zeroizing<Vec<u8>>);

/// A transaction of this host that waits for the answer.
pub(super) struct Own {
    message_id: u32,
    iv: Iv,
    pub(super) resend: Resend,
}

/// A request of the peer.
pub(super) struct Request {
    pub(super) kind: CfgType,
    pub(super) attributes: Vec<Attr>,
    id: u16,
    message_id: u32,
    /// After the request.
    iv: Iv,
    digest: Digest,
    pub(super) path: Path,
}

/// Answer to a request of the peer.
pub(super) struct Answered {
    message_id: u32,
    request: Digest,
    reply: Vec<u8>,
}

/// Contents of a datagram.
pub(super) enum Arrival {
    /// Nothing to act on.
    Nothing,
    /// A request, or a set.
    Request(Request),
    /// The answer to a transaction of this host.
    Answer(CfgType, Vec<Attr>),
}

fn body(kind: CfgType, id: u16, attributes: &[(CfgAttr, &[u8])]) -> (PayloadType, Zeroizing<Vec<u8>>) {
    let short = |attr: CfgAttr| matches!(attr, CfgAttr::XAUTH_TYPE | CfgAttr::XAUTH_STATUS);
    let attributes: Vec<Attribute<'_>> = attributes
        .iter()
        .map(|(attr, value)| match <[u8; 2]>::try_from(*value) {
            // These have their value in place.
            Ok(value) if short(*attr) => Attribute::short(attr.0, u16::from_be_bytes(value)),
            _ => Attribute::long(attr.0, value),
        })
        .collect();
    let (first, body) = payloads(|chain| {
        chain.config_v1(kind, id, &attributes);
    });
    (first, Zeroizing::new(body))
}

fn read(config: &Config<'_>) -> Vec<Attr> {
    let attributes = config.attributes().map_while(Result::ok).take(ATTRIBUTES_MAX);
    attributes
        .map(|attribute| {
            let value = match attribute.value {
                wire::ike::AttributeValue::Short(value) => value.to_be_bytes().to_vec(),
                wire::ike::AttributeValue::Long(bytes) => bytes.to_vec(),
            };
            (CfgAttr(attribute.kind), Zeroizing::new(value))
        })
        .collect()
}

impl Established {
    fn transaction_head(&self, message_id: u32) -> Head {
        Head { cookies: self.basis.cookies, exchange: ExchangeType::TRANSACTION, message_id }
    }

    /// Begins a transaction.
    pub(super) fn transact(&mut self, ctx: &mut Context<'_>, kind: CfgType, attributes: &[(CfgAttr, &[u8])]) -> Own {
        let message_id = self.fresh_message_id(ctx);
        let id = ctx.rng.next_u32() as u16;
        let (first, rest) = body(kind, id, attributes);
        let mut iv = self.protection.iv(&self.iv_base, message_id);
        let message = self.protection.seal_hash_1(&mut iv, &self.transaction_head(message_id), first, &rest);
        let resend = Resend::new(ctx.now, &self.connection.retransmit, vec![message.clone()]);
        self.basis.send(ctx, &self.connection, message);
        Own { message_id, iv, resend }
    }

    /// Sends a transaction again; false when there were enough tries.
    pub(super) fn transact_again(&self, ctx: &mut Context<'_>, own: &mut Own) -> bool {
        let retransmit = self.connection.retransmit;
        if own.resend.due() > ctx.now {
            return true;
        }
        if !own.resend.again(ctx.now, &retransmit) {
            return false;
        }
        ctx.count(crate::handshake::counters::RETRANSMISSIONS);
        own.resend.log(ctx, self.basis.id, self.basis.path.remote, &retransmit);
        for message in own.resend.datagrams().to_vec() {
            self.basis.send(ctx, &self.connection, message);
        }
        true
    }

    /// Answers a request, and keeps the answer for copies of it.
    pub(super) fn reply(&mut self, ctx: &mut Context<'_>, request: Request, attributes: &[(CfgAttr, &[u8])]) {
        self.is_fresh(ctx.now, request.message_id);
        let kind = if request.kind == CfgType::SET { CfgType::ACK } else { CfgType::REPLY };
        let (first, rest) = body(kind, request.id, attributes);
        let mut iv = request.iv;
        let head = self.transaction_head(request.message_id);
        let reply = self.protection.seal_hash_1(&mut iv, &head, first, &rest);
        self.basis.send_to(ctx, &request.path, &self.connection, reply.clone());
        if self.transactions.len() == ANSWERED_MAX {
            self.transactions.remove(0);
        }
        self.transactions.push(Answered { message_id: request.message_id, request: request.digest, reply });
    }

    /// A datagram of a TRANSACTION. `own`: the transaction of this host that waits for its answer.
    pub(super) fn receive_transaction(
        &mut self,
        ctx: &mut Context<'_>,
        from: &Path,
        (header, datagram): (&Header, &[u8]),
        own: Option<&Own>,
    ) -> Arrival {
        let message_id = header.message_id.get();
        let digest = digest(datagram);
        if let Some(answered) = self.transactions.iter().find(|answered| answered.message_id == message_id) {
            ctx.count(counters::DUPLICATE);
            if answered.request == digest {
                self.basis.send_to(ctx, from, &self.connection, answered.reply.clone());
            }
            return Arrival::Nothing;
        }
        let answer_of = own.filter(|own| own.message_id == message_id);
        let start = match answer_of {
            Some(own) => own.iv.clone(),
            None => self.protection.iv(&self.iv_base, message_id),
        };
        let encrypted = header.flags & Header::FLAG_V1_ENCRYPTION != 0;
        let opened = self.protection.open(&start, &datagram[Header::LEN..]).ok().filter(|_| encrypted);
        let Some((plain, iv)) = opened else {
            ctx.count(counters::NOT_AUTHENTIC);
            return Arrival::Nothing;
        };
        let plain = Zeroizing::new(plain);
        let parts = Parts::read(header.next, &plain).ok();
        let parts = parts.filter(|parts| self.protection.has_hash_1(message_id, parts));
        let config = parts.as_ref().and_then(|parts| Config::parse(parts.config?).ok());
        let Some(config) = config else {
            ctx.count(counters::NOT_AUTHENTIC);
            return Arrival::Nothing;
        };
        let attributes = read(&config);
        match (config.kind, answer_of) {
            (CfgType::REPLY | CfgType::ACK, Some(_)) => {
                self.authentic(ctx, from);
                Arrival::Answer(config.kind, attributes)
            }
            (CfgType::REQUEST | CfgType::SET, None) => {
                // The message ID counts as used with the answer: a request that comes too early is
                // repeated.
                if self.is_used(message_id) {
                    ctx.count(counters::DUPLICATE);
                    return Arrival::Nothing;
                }
                self.authentic(ctx, from);
                let (kind, id) = (config.kind, config.id);
                Arrival::Request(Request { kind, attributes, id, message_id, iv, digest, path: *from })
            }
            _ => {
                ctx.count(counters::NOT_AUTHENTIC);
                Arrival::Nothing
            }
        }
    }
}

/// Reads arbitrary bytes as an attributes payload, and attributes as those of Mode Config.
#[cfg(any(test, feature = "testkit"))]
pub(super) fn decode(body: &[u8]) {
    let Ok(config) = Config::parse(body) else { return };
    let attributes = read(&config);
    assert!(attributes.len() <= ATTRIBUTES_MAX, "more attributes than the limit");
    let values = || attributes.iter().map(|(attr, value)| (*attr, &value[..]));
    let _ = crate::handshake::configure::read_request(values());
    let _ = crate::handshake::configure::read_reply(values(), true);
}

impl Own {
    #[cfg(any(test, feature = "testkit"))]
    pub(super) fn message_id(&self) -> u32 {
        self.message_id
    }

    /// IV of the answer.
    #[cfg(any(test, feature = "testkit"))]
    pub(super) fn iv(&self) -> &Iv {
        &self.iv
    }

    /// Time of the next transmission.
    pub(super) fn due(&self) -> Instant {
        self.resend.due()
    }
}
