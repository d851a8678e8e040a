//! The message layer of one IKE SA (RFC 7296 §2.1 to §2.3, RFC 7383).
//!
//! [`Exchanges`] owns the keys of SK payloads, the message IDs of both directions and the
//! retransmissions. It delivers authentic messages in order, each once ([`Arrival`]); retransmitted
//! requests are answered here from the cache, byte for byte. The window is one message per
//! direction. It lives as long as its IKE SA.

mod fragment;
mod resend;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use wire::ike::{
    Chain, ExchangeType, Header, HeaderFields, NotifyType, PayloadType, Payloads, ProtocolId, Skf, begin_message,
    finish_message,
};

pub(crate) use self::fragment::room;
use self::fragment::{Fragment, Reassembly};
pub(crate) use self::resend::Resend;
pub use self::resend::Unanswered;
use crate::config::{Connection, Fragmentation, Retransmit};
use crate::context::Context;
use crate::handshake::counters;
use crate::output::{IkeId, IkeSpi, IkeSpis, Level, Output, Path, Subsystem, Transmit};
use crate::sa::{PeerSupport, Role, SkKeys};

/// Time between two log lines about messages that did not open.
const BAD_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Bytes between a payload's start and its body.
const GENERIC_HEADER: usize = 4;

/// Bytes of the payloads of one message. With header, IV, padding and ICV of every algorithm they
/// fit the 16-bit length of an Encrypted payload, so that sealing cannot fail.
const INNER_MAX: usize = 65_000;

/// A message that was authentic, decrypted.
pub(crate) struct Plain {
    pub(crate) exchange: ExchangeType,
    pub(crate) message_id: u32,
    /// Type of the first payload.
    pub(crate) first: PayloadType,
    /// The chain of payloads.
    pub(crate) bytes: Vec<u8>,
}

impl Plain {
    /// Its payloads.
    pub(crate) fn payloads(&self) -> Payloads<'_> {
        Payloads::new(self.first, &self.bytes)
    }
}

/// A message to be sent: the chain of payloads that goes into SK. At most [`INNER_MAX`] bytes.
pub(crate) struct Inner {
    /// Type of the first payload.
    pub(crate) first: PayloadType,
    /// The chain.
    pub(crate) bytes: Vec<u8>,
}

/// Payloads that do not fit in one message.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the message to send exceeds {max} bytes: use fewer or shorter certificates and pool attributes", max = INNER_MAX)]
pub(crate) struct TooLong;

impl Inner {
    /// Bytes that `write` appends.
    ///
    /// # Errors
    /// The chain exceeds [`INNER_MAX`], or a payload its length field.
    pub(crate) fn new(write: impl FnOnce(&mut Chain<'_>)) -> Result<Self, TooLong> {
        let mut bytes = Vec::new();
        let mut chain = Chain::new(&mut bytes);
        write(&mut chain);
        let (first, overflowed) = (chain.first(), chain.overflowed());
        if overflowed || bytes.len() > INNER_MAX { Err(TooLong) } else { Ok(Self { first, bytes }) }
    }

    /// A Notify alone. Data that the length field of a payload cannot count is left out, so that
    /// the peer receives the notify in any case.
    pub(crate) fn notify(kind: NotifyType, data: &[u8]) -> Self {
        let mut bytes = Vec::new();
        let mut chain = Chain::new(&mut bytes);
        if chain.notify(ProtocolId::NONE, &[], kind, data).overflowed() {
            chain.notify(ProtocolId::NONE, &[], kind, &[]);
        }
        Self { first: chain.first(), bytes }
    }

    /// The deletion of the IKE SA.
    pub(crate) fn delete_ike() -> Self {
        let mut bytes = Vec::new();
        // 8 bytes: the SPIs of an IKE SA are those of the header (RFC 7296 §3.11).
        let first = Chain::new(&mut bytes).delete(ProtocolId::IKE, &[]).first();
        Self { first, bytes }
    }

    /// An unencrypted chain.
    #[cfg(any(test, feature = "testkit"))]
    pub(crate) fn raw(first: PayloadType, bytes: Vec<u8>) -> Self {
        Self { first, bytes }
    }

    /// No payload: liveness checks and plain acknowledgements.
    pub(crate) fn empty() -> Self {
        Self { first: PayloadType::NONE, bytes: Vec::new() }
    }
}

/// Result of a datagram.
pub(crate) enum Arrival {
    /// Nothing to act on: a retransmission, a fragment, a message that is not for now or not
    /// authentic.
    Nothing,
    /// A new request. It is answered with [`Exchanges::respond`] before the next one is taken.
    Request(Plain),
    /// The response to the request that was out.
    Response(Plain),
}

/// Result of a timeout.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Timeout {
    /// Something was sent again, or it was too early.
    Nothing,
    /// The peer did not answer any of the retransmissions. No request is outstanding.
    GaveUp,
}

/// A request that waits for its response.
struct Outstanding {
    exchange: ExchangeType,
    message_id: u32,
    resend: Resend,
}

/// The last request of the peer, and its response.
struct Answered {
    /// Of the datagram, or of the first fragment.
    digest: u64,
    /// Empty while the answer is in the making.
    response: Vec<Vec<u8>>,
}

/// Message IDs, retransmission, SK and fragments of one IKE SA. Beside keys and a request that is
/// out it holds the last response (for IKE_AUTH with certificates a few KiB) and, while fragments
/// come in, at most twice `reassembly_max` bytes.
pub(crate) struct Exchanges {
    id: IkeId,
    role: Role,
    spis: IkeSpis,
    keys: SkKeys,
    retransmit: Retransmit,
    dscp: u8,
    accept_fragments: bool,
    send_fragments: bool,
    next_request: u32,
    outstanding: Option<Outstanding>,
    /// The request reported by [`Timeout::GaveUp`]; [`Exchanges::try_again`] takes it up on another
    /// path.
    given_up: Option<Outstanding>,
    /// ID of the next request of the peer.
    next_peer: u32,
    answered: Option<Answered>,
    /// Of requests and of responses.
    reassembly: [Option<Box<Reassembly>>; 2],
    /// Messages that did not open since the last log line.
    bad: u32,
    bad_logged: Option<Instant>,
}

/// Identification of an IKE SA: here, and in headers of messages.
pub(crate) struct SaIds {
    pub(crate) id: IkeId,
    pub(crate) role: Role,
    pub(crate) spis: IkeSpis,
}

impl Exchanges {
    /// For an IKE SA with `first_id` as next request ID of its initiator: 1 after IKE_SA_INIT, 0
    /// after a rekeying. The responder has sent no request yet, so its first request is 0 (RFC 7296
    /// §2.2).
    pub(crate) fn new(
        SaIds { id, role, spis }: SaIds,
        connection: &Connection,
        peer: &PeerSupport,
        keys: SkKeys,
        first_id: u32,
    ) -> Self {
        let fragmentation = connection.fragmentation;
        let (next_request, next_peer) = match role {
            Role::Initiator => (first_id, 0),
            Role::Responder => (0, first_id),
        };
        Self {
            id,
            role,
            spis,
            keys,
            retransmit: connection.retransmit,
            dscp: connection.dscp,
            accept_fragments: fragmentation != Fragmentation::No,
            send_fragments: peer.fragmentation && matches!(fragmentation, Fragmentation::Yes | Fragmentation::Force),
            next_request,
            outstanding: None,
            given_up: None,
            next_peer,
            answered: None,
            reassembly: [None, None],
            bad: 0,
            bad_logged: None,
        }
    }

    /// Returns true if no request is outstanding.
    pub(crate) fn idle(&self) -> bool {
        self.outstanding.is_none()
    }

    /// ID that the next request will have.
    pub(crate) fn next_request_id(&self) -> u32 {
        self.next_request
    }

    /// Uses other keys from the next message on (RFC 9370 §2.2.2). The cached response does not
    /// change.
    pub(crate) fn set_keys(&mut self, keys: SkKeys) {
        self.keys = keys;
    }

    /// Sends a request. One at a time: see [`Exchanges::idle`].
    pub(crate) fn request(&mut self, ctx: &mut Context<'_>, path: &Path, exchange: ExchangeType, inner: Inner) {
        debug_assert!(self.idle(), "the window is one request");
        let message_id = self.next_request;
        // The ID counts up at once, so that a cancelled request never shares its ID with a later
        // one (RFC 7296 §2.2).
        self.next_request = self.next_request.saturating_add(1);
        let fields = self.fields(exchange, message_id, false);
        let datagrams = self.seal(ctx, path.remote, &fields, &inner);
        send(ctx, path, self.dscp, &datagrams);
        let resend = Resend::new(ctx.now, &self.retransmit, datagrams);
        self.outstanding = Some(Outstanding { exchange, message_id, resend });
    }

    /// Answers the request that [`Exchanges::receive`] gave last, and remembers the answer.
    pub(crate) fn respond(&mut self, ctx: &mut Context<'_>, to: &Path, request: (ExchangeType, u32), inner: &Inner) {
        let (exchange, message_id) = request;
        let fields = self.fields(exchange, message_id, true);
        let response = self.seal(ctx, to.remote, &fields, inner);
        send(ctx, to, self.dscp, &response);
        // The sealed bytes are cached: sealing again would use another IV, and a retransmission
        // must be identical (RFC 7296 §2.1).
        if let Some(answered) = &mut self.answered {
            answered.response = response;
        }
    }

    /// Cancels the outstanding request: its response will be ignored.
    pub(crate) fn forget_request(&mut self) {
        self.outstanding = None;
    }

    /// Retransmits the outstanding request at once, on the current `path` (RFC 4555 §3.5).
    pub(crate) fn resend_now(&mut self, ctx: &mut Context<'_>, path: &Path) {
        if let Some(out) = &self.outstanding {
            send(ctx, path, self.dscp, out.resend.datagrams());
        }
    }

    /// Sends the failed request again on `path`, with all its retransmissions (RFC 4555 §3.5).
    /// False if there is none.
    pub(crate) fn try_again(&mut self, ctx: &mut Context<'_>, path: &Path) -> bool {
        let Some(mut out) = self.given_up.take() else { return false };
        out.resend.restart(ctx.now, &self.retransmit);
        self.outstanding = Some(out);
        self.resend_now(ctx, path);
        true
    }

    /// Takes a datagram with this IKE SA's SPIs. `from` has its addresses; `accepts` lists the
    /// exchanges that may be requested in the state of the SA.
    pub(crate) fn receive(
        &mut self,
        ctx: &mut Context<'_>,
        from: &Path,
        header: &Header,
        datagram: &[u8],
        accepts: impl Fn(ExchangeType) -> bool,
    ) -> Arrival {
        let from_initiator = self.role == Role::Responder;
        // The initiator flag must match the role of the peer: otherwise this host's own messages
        // could be reflected to it.
        if IkeSpis::of(header) != self.spis || header.from_initiator() != from_initiator {
            ctx.count(counters::MISDIRECTED);
            return Arrival::Nothing;
        }
        let message_id = header.message_id.get();
        if header.is_response() {
            let expected = self.outstanding.as_ref().map(|out| (out.exchange, out.message_id));
            // A late or repeated response must be ignored, without a log line that an attacker
            // could trigger.
            if expected != Some((header.exchange, message_id)) {
                return Arrival::Nothing;
            }
            return match self.open(ctx, header, datagram) {
                Some((plain, _)) => {
                    // Cleared for an authentic response only. A forged one must not stop the
                    // retransmission.
                    self.outstanding = None;
                    self.reassembly[1] = None;
                    Arrival::Response(plain)
                }
                None => Arrival::Nothing,
            };
        }
        // A retransmission: the peer has not received the response. RFC 7296 §2.1 requires the same
        // response, byte for byte, and no second execution.
        if message_id.checked_add(1) == Some(self.next_peer) {
            self.answer_again(ctx, from, header, datagram);
            return Arrival::Nothing;
        }
        // The window is one request: while a response is being computed, the peer must not send the
        // next one.
        let busy = self.answered.as_ref().is_some_and(|answered| answered.response.is_empty());
        if message_id != self.next_peer || busy || !accepts(header.exchange) {
            ctx.count(counters::OUT_OF_ORDER);
            return Arrival::Nothing;
        }
        match self.open(ctx, header, datagram) {
            Some((plain, digest)) => {
                // Advanced for authentic requests only. A forged one would otherwise use up the ID
                // of the real request.
                self.next_peer = self.next_peer.saturating_add(1);
                self.reassembly[0] = None;
                self.answered = Some(Answered { digest, response: Vec::new() });
                Arrival::Request(plain)
            }
            None => Arrival::Nothing,
        }
    }

    /// Answers a retransmitted request from the cache. One that is not the same bytes (smaller
    /// fragments, RFC 7383 §2.5.2) must be authentic.
    fn answer_again(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) {
        // Only the first fragment triggers a response, because otherwise each fragment would be
        // answered with the whole response (RFC 7383 §2.6.1).
        let first = match skf(header, datagram) {
            Some(skf) => skf.number == 1,
            None => true,
        };
        // Identical bytes were authenticated before, so the decryption can be skipped.
        let known = self.answered.as_ref().is_some_and(|answered| answered.digest == digest(datagram));
        if !first || !(known || self.open_part(header, datagram).is_some()) {
            return;
        }
        if let Some(answered) = &self.answered {
            ctx.count(counters::ANSWERED_AGAIN);
            send(ctx, from, self.dscp, &answered.response);
        }
    }

    /// Verifies, decrypts, puts fragments together. Gives the message and the digest by which its
    /// retransmission will be known.
    fn open(&mut self, ctx: &mut Context<'_>, header: &Header, datagram: &[u8]) -> Option<(Plain, u64)> {
        let plain =
            |first, bytes| Plain { exchange: header.exchange, message_id: header.message_id.get(), first, bytes };
        // A message with an invalid ICV must not change any state (RFC 7296 §2.21.4).
        let Some(part) = self.open_part(header, datagram) else {
            self.tell_bad(ctx);
            return None;
        };
        let Some((number, total)) = part.place else {
            return Some((plain(part.first, part.bytes), digest(datagram)));
        };
        let slot = &mut self.reassembly[usize::from(header.is_response())];
        let fragment = Fragment {
            message_id: header.message_id.get(),
            number,
            total,
            first: part.first,
            digest: digest(datagram),
            bytes: part.bytes,
        };
        let whole = Reassembly::add(slot, fragment, ctx.settings.reassembly_max)?;
        Some((plain(whole.first, whole.bytes), whole.digest))
    }

    /// Verifies and decrypts the content of one datagram.
    fn open_part(&self, header: &Header, datagram: &[u8]) -> Option<Part> {
        let next = *datagram.get(Header::LEN)?;
        let first = PayloadType(next);
        let (body_at, place) = match header.next {
            PayloadType::SK => (Header::LEN + GENERIC_HEADER, None),
            PayloadType::SKF if self.accept_fragments => {
                let skf = skf(header, datagram)?;
                (Header::LEN + GENERIC_HEADER + Skf::HEADER_LEN, Some((skf.number, skf.total)))
            }
            _ => return None,
        };
        // The encrypted payload is the last one of a valid chain, so it ends with the message.
        Payloads::new(header.next, &datagram[Header::LEN..]).next()?.ok()?;
        // A copy, because decryption is in place and a failed one leaves undefined bytes.
        let mut message = datagram.to_vec();
        let range = self.keys.open.open(&mut message, body_at).ok()?;
        message.truncate(range.end);
        message.drain(..range.start);
        Some(Part { first, place, bytes: message })
    }

    /// Counts a message that did not open. Anybody can send such messages: a line now and then.
    fn tell_bad(&mut self, ctx: &mut Context<'_>) {
        ctx.count(counters::NOT_AUTHENTIC);
        self.bad = self.bad.saturating_add(1);
        // Forged messages cost an attacker nothing, so the log lines are rate-limited.
        if self.bad_logged.is_none_or(|at| ctx.now.saturating_duration_since(at) >= BAD_LOG_INTERVAL) {
            let text = format!("{} message(s) dropped that the peer's keys do not open", self.bad);
            ctx.log(Level::Warn, Subsystem::Enc, Some(self.id), text);
            (self.bad, self.bad_logged) = (0, Some(ctx.now));
        }
    }

    /// Time of the next [`Exchanges::handle_timeout`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.outstanding.as_ref().map(|out| out.resend.due())
    }

    /// Retransmission state of the outstanding request.
    pub(crate) fn unanswered(&self) -> Option<Unanswered> {
        self.outstanding.as_ref()?.resend.unanswered(&self.retransmit)
    }

    /// Retransmits the outstanding request, or gives up.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context<'_>, path: &Path) -> Timeout {
        let Some(out) = &mut self.outstanding else { return Timeout::Nothing };
        if out.resend.due() > ctx.now {
            return Timeout::Nothing;
        }
        if !out.resend.again(ctx.now, &self.retransmit) {
            // Kept for MOBIKE: the same request may be sent again from another address.
            self.given_up = self.outstanding.take();
            return Timeout::GaveUp;
        }
        ctx.count(counters::RETRANSMISSIONS);
        send(ctx, path, self.dscp, out.resend.datagrams());
        out.resend.log(ctx, self.id, path.remote, &self.retransmit);
        Timeout::Nothing
    }

    fn fields(&self, exchange: ExchangeType, message_id: u32, response: bool) -> HeaderFields {
        let IkeSpis { initiator: IkeSpi(spi_i), responder: IkeSpi(spi_r) } = self.spis;
        let role = if self.role == Role::Initiator { Header::FLAG_INITIATOR } else { 0 };
        let flags = role | if response { Header::FLAG_RESPONSE } else { 0 };
        HeaderFields { spi_i, spi_r, version: Header::VERSION_2, exchange, flags, message_id }
    }

    /// The datagrams of a message: one, or as many fragments as it needs.
    fn seal(&self, ctx: &mut Context<'_>, remote: SocketAddr, fields: &HeaderFields, inner: &Inner) -> Vec<Vec<u8>> {
        let room = fragment::room(ctx.settings.fragment_size, remote);
        let whole = Header::LEN + GENERIC_HEADER + self.keys.seal.sealed_len(inner.bytes.len());
        // Fragmentation is negotiated (RFC 7383 §2.3); without it, IP must fragment.
        if whole <= room || !self.send_fragments {
            return vec![self.seal_part(ctx, fields, inner.first, &inner.bytes, None)];
        }
        let suite = self.keys.seal.suite();
        let per_fragment = fragment::plaintext_len(suite, room - Header::LEN - GENERIC_HEADER - Skf::HEADER_LEN);
        // The plaintext is cut anywhere, not at the borders of payloads (RFC 7383 §2.5).
        let parts: Vec<&[u8]> = inner.bytes.chunks(per_fragment).collect();
        // The plaintext is at most INNER_MAX bytes and a fragment has at least ROOM_MIN.
        let Ok(total) = u16::try_from(parts.len()) else {
            ctx.internal_error(self.id, "a message of more fragments than can be numbered");
            return Vec::new();
        };
        let mut datagrams = Vec::with_capacity(parts.len());
        for (number, part) in (1..=total).zip(parts) {
            // Only the first fragment names the first inner payload (RFC 7383 §2.5).
            let first = if number == 1 { inner.first } else { PayloadType::NONE };
            datagrams.push(self.seal_part(ctx, fields, first, part, Some((number, total))));
        }
        datagrams
    }

    fn seal_part(
        &self,
        ctx: &mut Context<'_>,
        fields: &HeaderFields,
        first: PayloadType,
        plaintext: &[u8],
        place: Option<(u16, u16)>,
    ) -> Vec<u8> {
        let sealed_len = self.keys.seal.sealed_len(plaintext.len());
        let mut message = Vec::with_capacity(Header::LEN + GENERIC_HEADER + Skf::HEADER_LEN + sealed_len);
        begin_message(&mut message, fields);
        let kind = if place.is_some() { PayloadType::SKF } else { PayloadType::SK };
        let mut body_at = 0;
        Chain::new(&mut message).encrypted(kind, first, |out| {
            if let Some((number, total)) = place {
                Skf { number, total, body: &[] }.emit(out);
            }
            body_at = out.len();
            // The header contains the final length and is authenticated, so the space must be
            // counted before sealing.
            out.resize(body_at + sealed_len, 0);
        });
        finish_message(&mut message, kind);
        message.truncate(body_at);
        // Random IVs: a restart cannot repeat one, and a counter would have to be stored.
        self.keys.seal.seal(&mut message, body_at, plaintext, &mut |iv| ctx.rng.fill_bytes(iv));
        message
    }

    /// The header of a message of this IKE SA, its first payload and length zero (RFC 9242 §3.3.2
    /// sets them). `own` is a message of this host.
    pub(crate) fn header(
        &self,
        own: bool,
        exchange: ExchangeType,
        message_id: u32,
        response: bool,
    ) -> [u8; Header::LEN] {
        let mut fields = self.fields(exchange, message_id, response);
        // The initiator flag depends on the role of the sender (RFC 7296 §3.1). With the wrong
        // value IntAuth of both hosts would differ.
        if !own {
            fields.flags ^= Header::FLAG_INITIATOR;
        }
        let (mut message, mut header) = (Vec::with_capacity(Header::LEN), [0; Header::LEN]);
        begin_message(&mut message, &fields);
        header.copy_from_slice(&message);
        header
    }
}

/// Contents of one datagram.
struct Part {
    first: PayloadType,
    /// Number and total of a fragment.
    place: Option<(u16, u16)>,
    bytes: Vec<u8>,
}

/// The SKF payload of a message that begins with one.
fn skf<'a>(header: &Header, datagram: &'a [u8]) -> Option<Skf<'a>> {
    let fragment = header.next == PayloadType::SKF;
    fragment.then(|| datagram.get(Header::LEN + GENERIC_HEADER..)).flatten().and_then(|body| Skf::parse(body).ok())
}

/// Knows a datagram again. Not secret, not cryptographic: a collision costs a response.
fn digest(datagram: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    datagram.hash(&mut hasher);
    hasher.finish()
}

/// Sends datagrams along `path`.
pub(crate) fn send(ctx: &mut Context<'_>, path: &Path, dscp: u8, datagrams: &[Vec<u8>]) {
    let Path { local, remote, .. } = *path;
    for datagram in datagrams {
        ctx.out.push_back(Output::Transmit(Transmit { local, remote, datagram: datagram.clone(), dscp }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_chain_fits_an_encrypted_payload_of_every_suite() {
        for suite in crypto::ike::SkSuite::all() {
            let body = suite.iv_len() + INNER_MAX + 256 + suite.icv_len();
            assert!(u16::try_from(GENERIC_HEADER + body).is_ok(), "{body} bytes");
        }
        let vendor = |len: usize| {
            Inner::new(|chain| {
                chain.vendor(&vec![0; len]);
            })
        };
        assert_eq!(vendor(INNER_MAX - GENERIC_HEADER).map(|inner| inner.bytes.len()).ok(), Some(INNER_MAX));
        assert!(vendor(INNER_MAX - GENERIC_HEADER + 1).is_err() && vendor(70_000).is_err());
    }

    #[test]
    fn a_notify_is_never_an_empty_message() {
        let notify = |len: usize| Inner::notify(NotifyType::INVALID_KE_PAYLOAD, &vec![7; len]);
        let (short, long) = (notify(2), notify(65_528));
        assert_eq!((short.first, &short.bytes[..]), (PayloadType::NOTIFY, &[0, 0, 0, 10, 0, 0, 0, 17, 7, 7][..]));
        // One byte more than the length field can count.
        assert_eq!((long.first, &long.bytes[..]), (PayloadType::NOTIFY, &[0, 0, 0, 8, 0, 0, 0, 17][..]));
        let delete = Inner::delete_ike();
        assert_eq!((delete.first, &delete.bytes[..]), (PayloadType::DELETE, &[0, 0, 0, 8, 1, 0, 0, 0][..]));
    }
}
