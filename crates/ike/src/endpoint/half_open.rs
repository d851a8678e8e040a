//! IKE_SA_INIT requests and the half-open IKE SAs that they make (RFC 7296 §2.6).
//!
//! A half-open IKE SA is at most [`init::INIT_MAX`] bytes of request, as many of response and about
//! 1 KiB of state; there are at most `half_open_max`. Above the thresholds an initiator must prove
//! that it receives at its address before any state is kept or any key computed.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use rand_core::CryptoRng;
use wire::ike::{Header, NotifyType, Payloads};

use super::{Admission, Endpoint, IkeSpi, Slot};
use crate::child::Parts;
use crate::config::Version;
use crate::cookie::Initiator;
use crate::error::IkeError;
use crate::handshake::{Handshake, Refusing, accept, counters, init};
use crate::output::{IkeSpis, Level, Output, Path, Transmit};
use crate::sa::IkeSa;

/// Counts of half-open IKE SAs.
#[derive(Default)]
pub(super) struct HalfOpen {
    /// Own SPI by source address and initiator's SPI of the request.
    by_request: HashMap<(SocketAddr, IkeSpi), IkeSpi>,
    by_address: HashMap<IpAddr, usize>,
}

impl HalfOpen {
    pub(super) fn len(&self) -> usize {
        self.by_request.len()
    }

    pub(super) fn from(&self, addr: IpAddr) -> usize {
        self.by_address.get(&addr).copied().unwrap_or_default()
    }

    fn add(&mut self, key: (SocketAddr, IkeSpi), spi: IkeSpi) {
        self.by_request.insert(key, spi);
        *self.by_address.entry(key.0.ip()).or_default() += 1;
    }

    pub(super) fn remove(&mut self, key: &(SocketAddr, IkeSpi), spi: &IkeSpi) {
        if self.by_request.get(key) != Some(spi) {
            return;
        }
        self.by_request.remove(key);
        if let Some(count) = self.by_address.get_mut(&key.0.ip()) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&key.0.ip());
            }
        }
    }
}

impl<R: CryptoRng> Endpoint<R> {
    /// A request of IKE_SA_INIT.
    pub(super) fn handle_init(&mut self, now: Instant, path: &Path, header: &Header, body: &[u8], datagram: &[u8]) {
        self.shared.count(counters::INIT_RECEIVED);
        let spis = IkeSpis::of(header);
        let fits = header.from_initiator()
            && header.message_id.get() == 0
            && spis.responder.is_zero()
            && !spis.initiator.is_zero()
            && datagram.len() <= init::INIT_MAX
            // Not a reflected request of this host.
            && !self.sas.contains_key(&spis.initiator);
        if !fits {
            return self.shared.count(counters::INIT_INVALID);
        }
        let key = (path.remote, spis.initiator);
        // Before cookies and limits: a retransmission creates no state. Under load its sender would
        // otherwise be blocked by its own half-open IKE SA.
        if let Some(response) = self.repeated(&key, datagram) {
            self.shared.count(counters::ANSWERED_AGAIN);
            return self.transmit(path, response);
        }
        let parts = match Parts::read(Payloads::new(header.next, body)) {
            Ok(parts) => parts,
            Err(refused) => {
                self.shared.count(counters::INIT_INVALID);
                if matches!(refused, IkeError::Unsupported(_)) && self.replies.allows(now) {
                    let answer = init::message(spis, true, |chain| refused.emit(chain));
                    self.transmit(path, answer);
                }
                return;
            }
        };
        if !self.admit(now, path, header, &parts)
            || self.hold_for_names(now, path, spis.initiator, datagram)
            || self.hold_for_anchors(now, Version::V2, path, spis.initiator, datagram)
        {
            return;
        }
        // The initiator restarts under its SPI (for example after a spoofed cookie): one half-open
        // IKE SA per SPI and address is sufficient, and a more advanced one is kept.
        if let Some(old) = self.half_open.by_request.get(&key).copied() {
            if self.is_past_init(&old) {
                return self.shared.count(counters::INIT_BLOCKED);
            }
            self.remove(&old);
        }
        let id = self.fresh_name();
        let spi = self.shared.ike_spi(|spi| self.sas.contains_key(spi));
        let mut ctx = self.shared.context(now);
        match accept(&mut ctx, id, spi, path, datagram, &parts) {
            Ok((responder, connection)) => {
                let response = responder.response().to_vec();
                let due = Some(responder.deadline());
                // Found by address and initiator's SPI as well: a retransmitted IKE_SA_INIT request
                // does not contain the SPI of this host.
                self.half_open.add(key, spi);
                let sa = IkeSa::Handshake(Box::new(Handshake::Responder(responder)));
                self.sas.insert(spi, Slot { sa, due: None, half_open: Some(key) });
                self.by_id.insert(id, spi);
                self.set_timer(&spi, due);
                self.transmit(path, response);
                self.refresh_authorities(now, &connection);
            }
            Err((refusing, reason)) => {
                if self.lines.allows(now) {
                    let text = format!("IKE_SA_INIT of {} is not accepted: {reason}", path.remote);
                    self.shared.log(Level::Warn, None, text);
                }
                if let Refusing::With(answer) = refusing {
                    self.transmit(path, answer);
                }
            }
        }
    }

    /// The cached response to a retransmission.
    fn repeated(&self, key: &(SocketAddr, IkeSpi), datagram: &[u8]) -> Option<Vec<u8>> {
        let slot = self.sas.get(self.half_open.by_request.get(key)?)?;
        match &slot.sa {
            IkeSa::Handshake(handshake) => match handshake.as_ref() {
                Handshake::Responder(responder) => responder.answer_again(datagram).map(<[u8]>::to_vec),
                Handshake::Initiator(_) => None,
            },
            IkeSa::Established(_) => None,
        }
    }

    fn is_past_init(&self, spi: &IkeSpi) -> bool {
        match self.sas.get(spi).map(|slot| &slot.sa) {
            Some(IkeSa::Handshake(handshake)) => {
                matches!(&**handshake, Handshake::Responder(responder) if responder.is_past_init())
            }
            other => other.is_some(),
        }
    }

    /// Checks cookies and limits. Returns whether the request may create state.
    fn admit(&mut self, now: Instant, path: &Path, header: &Header, parts: &Parts<'_>) -> bool {
        let (all, here) = (self.half_open.len(), self.half_open.from(path.remote.ip()));
        let settings = &self.shared.settings;
        let blocked =
            here >= settings.block_threshold || all >= settings.half_open_max || self.sas.len() >= settings.ike_sas_max;
        let (cookies, rng) = (&mut self.cookies, &mut self.shared.rng);
        // The cookie is verified before the limits of `blocked` apply: spoofed requests must not
        // reach the block threshold of the real owner of the address.
        if all >= settings.cookie_threshold || here >= settings.cookie_threshold_per_address {
            let Some(nonce) = parts.nonce else { return false };
            let initiator = Initiator { from: path.remote.ip(), spi: IkeSpi(header.spi_i), nonce };
            let shown = parts.notify(NotifyType::COOKIE);
            let good = shown.is_some_and(|shown| cookies.check(now, rng, initiator, shown));
            if !good {
                let cookie = cookies.make(now, rng, initiator);
                if shown.is_some() {
                    self.shared.count(counters::COOKIE_WRONG);
                }
                self.shared.count(counters::COOKIE_SENT);
                let answer = init::message(IkeSpis::of(header), true, |chain| {
                    chain.notify(wire::ike::ProtocolId::NONE, &[], NotifyType::COOKIE, &cookie);
                });
                self.transmit(path, answer);
                return false;
            }
        }
        if blocked || self.admission != Admission::Open {
            self.shared.count(counters::INIT_BLOCKED);
            return false;
        }
        true
    }

    fn transmit(&mut self, path: &Path, datagram: Vec<u8>) {
        let Path { local, remote, .. } = *path;
        self.shared.out.push_back(Output::Transmit(Transmit { local, remote, datagram, dscp: 0 }));
    }
}
