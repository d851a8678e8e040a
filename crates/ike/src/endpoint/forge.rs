//! Messages that a peer with the right keys may send, well formed or not: for tests and fuzzing.

use std::time::Instant;

use rand_core::CryptoRng;
use wire::ike::{ExchangeType, PayloadType};

use super::Endpoint;
use crate::exchange::Inner;
use crate::output::{IkeId, RequestId};
use crate::sa::IkeSa;

impl<R: CryptoRng> Endpoint<R> {
    /// Sends a request with any payloads under the keys of an IKE SA, authenticated or not. False
    /// without keys.
    pub fn forge(&mut self, now: Instant, ike: IkeId, exchange: u8, first: u8, payloads: &[u8]) -> bool {
        let Some(slot) = self.by_id.get(&ike).and_then(|spi| self.sas.get_mut(spi)) else {
            return self.with_v1(now, |v1, ctx| v1.forge(ctx, ike, exchange, first, payloads));
        };
        let (path, exchanges) = match &mut slot.sa {
            IkeSa::Handshake(handshake) => (handshake.path(), handshake.exchanges()),
            IkeSa::Established(sa) => (sa.path, Some(&mut sa.exchanges)),
        };
        let Some(exchanges) = exchanges else { return false };
        let inner = Inner::raw(PayloadType(first), payloads.to_vec());
        exchanges.forget_request();
        exchanges.request(&mut self.shared.context(now), &path, ExchangeType(exchange), inner);
        true
    }

    /// Expects the response to a credential request that the IKE SA has not made: the state after a
    /// defect of this crate.
    pub fn forge_credential_request(&mut self, ike: IkeId) -> RequestId {
        let request_id = self.shared.names.request_id();
        self.shared.names.request_ids.insert(request_id, ike);
        request_id
    }

    /// A datagram for an ISAKMP SA of IKEv1, as a peer with its keys sends it; `None` for an
    /// unknown one.
    pub fn forged(&self, ike: IkeId, message: &crate::v1::Forged<'_>) -> Option<Vec<u8>> {
        self.v1.forged(ike, message)
    }
}
