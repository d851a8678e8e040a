//! INFORMATIONAL exchanges (RFC 7296 §1.4): liveness, deletions, notifications.

use std::net::SocketAddr;

use wire::ike::{Chain, ExchangeType, NotifyType, ProtocolId};

use super::address::COOKIE2_LEN;
use super::end::Cause;
use super::{Active, Task, counters};
use crate::child::Parts;
use crate::context::Context;
use crate::handshake::{Gateway, redirection};
use crate::output::{Level, Path};
use crate::sa::{Ending, Established, Role};

/// Bytes of COOKIE2 data (RFC 4555 §4.2.5).
const COOKIE2: std::ops::RangeInclusive<usize> = 8..=64;

impl Established {
    /// Every request is answered; unknown contents are ignored.
    pub(super) fn answer_informational(
        &mut self,
        ctx: &mut Context<'_>,
        from: &Path,
        parts: &Parts<'_>,
        chain: &mut Chain<'_>,
    ) {
        if self.answer_deletes(ctx, parts, chain) {
            return;
        }
        if let Some(cookie) = parts.notify(NotifyType::COOKIE2).filter(|cookie| COOKIE2.contains(&cookie.len())) {
            chain.notify(ProtocolId::NONE, &[], NotifyType::COOKIE2, cookie);
        }
        self.answer_addresses(ctx, from, parts, chain);
        if let Some(seconds) = parts.notify(NotifyType::AUTH_LIFETIME).and_then(|data| data.try_into().ok()) {
            self.auth_lifetime(ctx, u32::from_be_bytes(seconds));
        }
        if let Some(data) = parts.notify(NotifyType::REDIRECT) {
            self.redirected(ctx, data);
        }
        for error in parts.notifies.iter().filter(|notify| notify.kind.is_error()) {
            self.log(ctx, Level::Warn, format!("the peer tells {} in an INFORMATIONAL", error.kind));
        }
        if parts.notify(NotifyType::AUTHENTICATION_FAILED).is_some() {
            // RFC 7296 §2.21.2: the responder did not accept, or the initiator the answer.
            self.end(ctx, "the peer says that authentication failed", Cause::Peer);
        }
    }

    pub(super) fn start_liveness(&mut self, ctx: &mut Context<'_>, cookie: bool) {
        let cookie = cookie.then(|| {
            let mut bytes = [0; COOKIE2_LEN];
            ctx.rng.fill_bytes(&mut bytes);
            bytes
        });
        ctx.count(counters::LIVENESS_SENT);
        let (probe, spis, fake) = (self.mapping_probe(ctx.now), self.spis, self.connection.encap.is_forced());
        self.send(ctx, Active::Liveness(cookie), ExchangeType::INFORMATIONAL, |chain| {
            if let Some(cookie) = &cookie {
                chain.notify(ProtocolId::NONE, &[], NotifyType::COOKIE2, cookie);
            }
            probe.emit(chain, spis, fake);
        });
    }

    pub(super) fn alive(&mut self, ctx: &mut Context<'_>, cookie: Option<[u8; COOKIE2_LEN]>, parts: &Parts<'_>) {
        if let Some(cookie) = cookie
            && parts.notify(NotifyType::COOKIE2) != Some(&cookie)
        {
            // RFC 4555 §3.7: a responder there is not the peer.
            return self.give_up(ctx, "the return routability check failed");
        }
        self.watch_mapping(ctx, parts);
    }

    /// REDIRECT (RFC 5685 §5): this host should use another gateway; this IKE SA ends when that one
    /// is up.
    fn redirected(&mut self, ctx: &mut Context<'_>, data: &[u8]) {
        if self.tasks.origin != Role::Initiator || self.tasks.redirected || self.ending != Ending::No {
            return self.log(
                ctx,
                Level::Warn,
                "a redirection is ignored: one was followed, or it is not for us".into(),
            );
        }
        let to = match redirection(data, None) {
            Ok(to) => to,
            Err(why) => return self.log(ctx, Level::Warn, format!("a redirection is ignored: {why}")),
        };
        // Successors inherit the flag, because a gateway may repeat the redirection after a rekey.
        self.tasks.redirected = true;
        ctx.count(counters::REDIRECTED);
        let (name, to) = match to {
            Gateway::At(at) => {
                (at.ip().to_string(), (Some(SocketAddr::new(at.ip(), self.connection.remote_port)), None))
            }
            Gateway::Named(name) => (name.clone(), (None, Some(name))),
        };
        self.log(ctx, Level::Info, format!("the peer redirects to {name}"));
        self.reinitiate(ctx, to, Some(self.id), None);
    }

    /// A sign of life is due.
    pub(super) fn check_liveness(&mut self, ctx: &mut Context<'_>) {
        let delay = self.connection.dpd_delay;
        let quiet = !delay.is_zero() && self.unasked_since() + delay <= ctx.now;
        // Any outstanding request already is a liveness check.
        if quiet && self.tasks.is_empty() && self.exchanges.idle() {
            self.queue(ctx, Task::Liveness { cookie: false });
        }
    }
}
