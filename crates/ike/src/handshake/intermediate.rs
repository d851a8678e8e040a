//! IKE_INTERMEDIATE with additional key exchanges (RFC 9242, RFC 9370).

use crypto::ike::Secret;
use wire::ike::{ExchangeType, Ke, PayloadType};

use super::Secured;
use crate::child::Parts;
use crate::context::Context;
use crate::error::IkeError;
use crate::exchange::{Inner, Plain};
use crate::sa::Role;

impl Secured {
    /// Takes a request of IKE_INTERMEDIATE into what AUTH will cover, with the keys that protected
    /// it.
    pub(super) fn note_request(&mut self, message_id: u32, first: PayloadType, inner: &[u8]) {
        // IntAuth covers the header with the Initiator flag of its sender, on both hosts.
        let own = self.role == Role::Initiator;
        let header = self.exchanges.header(own, ExchangeType::IKE_INTERMEDIATE, message_id, false);
        self.int_auth.request(self.suite.prf, &self.keys.sk_pi, &header, first, inner);
    }

    /// Likewise a response.
    pub(super) fn note_response(&mut self, message_id: u32, inner: (PayloadType, &[u8])) {
        let own = self.role == Role::Responder;
        let header = self.exchanges.header(own, ExchangeType::IKE_INTERMEDIATE, message_id, true);
        self.int_auth.response(self.suite.prf, &self.keys.sk_pr, &header, inner.0, inner.1);
    }

    /// The exchange is over: new keys from the next message on (RFC 9370 §2.2.2).
    pub(super) fn update_keys(&mut self, ctx: &mut Context<'_>, shared: &Secret) -> Result<(), IkeError> {
        let keys = self.keys.after_intermediate(&self.suite, shared, &self.seed());
        self.exchanges.set_keys(Self::sk_keys(self.role, &keys, &self.suite)?);
        keys.disclose(ctx, self.id, self.spis, &self.suite);
        self.keys = keys;
        Ok(())
    }

    /// The responder's half of additional key exchange `index`: the answer and the secret.
    pub(super) fn answer_intermediate(&self, index: usize, request: &Plain) -> Result<(Inner, Secret), IkeError> {
        let parts = Parts::read(request.payloads())?;
        let Some(method) = self.suite.additional.get(index) else {
            return Err(IkeError::Internal("one more IKE_INTERMEDIATE than was agreed".into()));
        };
        let ke = parts.ke.filter(|ke| ke.group == method.id()).ok_or_else(|| {
            IkeError::violation(format!("IKE_INTERMEDIATE without a KE payload of {}", method.name()))
        })?;
        let (public, shared) = method.respond(ke.data).map_err(IkeError::ke_payload)?;
        let inner = Inner::new(|chain| {
            chain.ke(method.id(), &public);
        })?;
        Ok((inner, shared))
    }
}

/// Returns the KE payload of a response, which must have the expected method.
pub(super) fn response_ke<'a>(response: &'a Plain, group: u16) -> Result<Ke<'a>, IkeError> {
    let parts = Parts::read(response.payloads())?;
    if let Some(error) = parts.error() {
        return Err(IkeError::refused(error.kind, "IKE_INTERMEDIATE"));
    }
    parts
        .ke
        .filter(|ke| ke.group == group)
        .ok_or_else(|| IkeError::violation("IKE_INTERMEDIATE is answered without KE payload"))
}
