//! Result of the negotiation of a Child SA, and its installation in the data plane.

use std::net::IpAddr;
use std::sync::Arc;

use crypto::ike::Secret;
use wire::{Spi, TrafficSelector};

use super::{Child, ChildState, Nonces, Parent};
use crate::claims::{Conflict, NewChild};
use crate::config::{ChildConfig, ChildMode, Life};
use crate::context::Context;
use crate::keymat;
use crate::output::{ChildId, ChildSa, Event, Level, Output, SimplexSa, Subsystem};
use crate::proposal::ChildSuite;

/// Everything about a Child SA but its keys.
pub(crate) struct Agreement {
    pub(crate) id: ChildId,
    pub(crate) config: Arc<ChildConfig>,
    pub(crate) suite: ChildSuite,
    pub(crate) mode: ChildMode,
    pub(crate) peer_refuses_fragments: bool,
    /// Remark about the negotiation, for the log.
    pub(crate) remark: Option<String>,
    pub(crate) spi_in: Spi,
    pub(crate) spi_out: Spi,
    pub(crate) local_ts: Vec<TrafficSelector>,
    pub(crate) remote_ts: Vec<TrafficSelector>,
    pub(crate) cpu: Option<u32>,
    pub(crate) per_cpu: bool,
    pub(crate) replaces: Option<ChildId>,
    /// This host started the exchange.
    pub(crate) initiator: bool,
    pub(crate) peer_max_sub_sa_id: Option<u16>,
    pub(crate) peer_max_crypt_offset: Option<u8>,
    pub(crate) tfc: bool,
    pub(crate) original: Option<(IpAddr, IpAddr)>,
}

impl Agreement {
    /// Derives the keys and hands them to the data plane. `shared` are the secrets of the key
    /// exchanges in their order, none without; `outbound_now` as in [`ChildSa`].
    pub(crate) fn install(
        self,
        ctx: &mut Context<'_>,
        parent: &Parent<'_>,
        nonces: Nonces<'_>,
        shared: &[Secret],
        outbound_now: bool,
    ) -> Child {
        // Not negotiable: the 96-bit variant has no transform ID, so both ends must have the
        // same configuration.
        let suite = if self.config.sha256_96 { self.suite.truncated_to_96() } else { self.suite.clone() };
        let (to_responder, to_initiator) =
            keymat::child_keys(parent.prf, parent.sk_d, shared, nonces.i, nonces.r, &suite);
        // The initiator of this exchange counts, not that of the IKE SA: either peer may create or
        // rekey a Child SA.
        let (inbound, outbound) =
            if self.initiator { (to_initiator, to_responder) } else { (to_responder, to_initiator) };
        ctx.out.push_back(Output::Install(Box::new(ChildSa {
            id: self.id,
            ike: parent.ike,
            connection: parent.connection.clone(),
            config: self.config.clone(),
            remote_id: parent.remote_id.clone(),
            peer_id: parent.peer_id.clone(),
            suite: suite.clone(),
            mode: self.mode,
            peer_refuses_fragments: self.peer_refuses_fragments,
            inbound: SimplexSa { spi: self.spi_in, enc: inbound.enc, integ: inbound.integ },
            outbound: SimplexSa { spi: self.spi_out, enc: outbound.enc, integ: outbound.integ },
            local_ts: self.local_ts.clone(),
            remote_ts: self.remote_ts.clone(),
            path: parent.path,
            replaces: self.replaces,
            outbound_now,
            initiator: self.initiator,
            cpu: self.cpu,
            peer_max_sub_sa_id: self.peer_max_sub_sa_id,
            peer_max_crypt_offset: self.peer_max_crypt_offset,
            tfc: self.tfc,
            original: self.original,
        })));
        // `Refused` is possible here only if the other Child SA came up after the first check,
        // during additional key exchanges. It is too late for a refusal then.
        if let Some(Conflict::TakesOver(text) | Conflict::Refused(text)) = self.conflict(ctx, parent) {
            let text = format!("child '{}' {{{}}} takes over: {text}", self.config.name, self.id.0);
            ctx.log(Level::Warn, Subsystem::Child, Some(parent.ike), text);
        }
        if let Some(remark) = &self.remark {
            let text = format!("child '{}' {{{}}}: {remark}", self.config.name, self.id.0);
            ctx.log(Level::Warn, Subsystem::Child, Some(parent.ike), text);
        }
        self.tell(ctx, parent, &suite);
        let life = self.config.time;
        Child {
            id: self.id,
            suite,
            mode: self.mode,
            spi_in: self.spi_in,
            spi_out: self.spi_out,
            local_ts: self.local_ts,
            remote_ts: self.remote_ts,
            cpu: self.cpu,
            per_cpu: self.per_cpu,
            installed: ctx.now,
            rekey_at: soft_limit(ctx, life).map(|after| ctx.now + after),
            expire_at: (!life.life.is_zero()).then(|| ctx.now + life.life),
            used: ctx.now,
            outbound: outbound_now,
            removed: false,
            state: ChildState::Installed,
            replaces: self.replaces,
            config: self.config,
        }
    }

    /// Gives its SPI back when it is not installed.
    pub(crate) fn abandon(self, ctx: &mut Context<'_>) {
        ctx.names.free_spi(self.spi_in);
    }

    /// A Child SA of another peer that uses the same selectors. A successor has the selectors of
    /// its predecessor.
    pub(crate) fn conflict(&self, ctx: &Context<'_>, parent: &Parent<'_>) -> Option<Conflict> {
        let selectors = (&self.local_ts[..], &self.remote_ts[..]);
        let old = parent.children.iter().find(|child| self.replaces == Some(child.id));
        if old.is_some_and(|old| (&old.local_ts[..], &old.remote_ts[..]) == selectors) {
            return None;
        }
        ctx.names.claims.conflict(&NewChild::new(
            (parent.connection, &parent.peer_id),
            &self.config,
            selectors,
            self.initiator,
        ))
    }

    /// The reason to refuse it because of another peer's Child SA.
    pub(crate) fn refusal(&self, ctx: &Context<'_>, parent: &Parent<'_>) -> Option<String> {
        match self.conflict(ctx, parent)? {
            Conflict::TakesOver(_) => None,
            Conflict::Refused(text) => Some(format!(
                "child '{}': {text}; the newer peer takes over with 'ts_conflict = replace' in connection '{}'",
                self.config.name, parent.connection.name
            )),
        }
    }

    fn tell(&self, ctx: &mut Context<'_>, parent: &Parent<'_>, suite: &ChildSuite) {
        let (name, suite) = (&self.config.name, suite.to_string());
        let (local, remote) = (list(&self.local_ts), list(&self.remote_ts));
        let (spi_in, spi_out) = (self.spi_in.get(), self.spi_out.get());
        let text = format!(
            "child '{name}' {{{}}}: {suite}, {:?} mode, SPIs {spi_in:08x} in and {spi_out:08x} out, {local} === {remote}",
            self.id.0, self.mode
        );
        ctx.log(Level::Info, Subsystem::Child, Some(parent.ike), text);
        match self.replaces {
            Some(_) => ctx.count(crate::task::counters::CHILD_REKEYED),
            None => {
                ctx.count(crate::task::counters::CHILD_UP);
                ctx.event(Event::ChildUp(self.id));
            }
        }
    }
}

/// Selectors in one line.
pub(crate) fn list(selectors: &[TrafficSelector]) -> String {
    selectors.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Time of the rekey: a random part of `rand` is subtracted, so that both hosts seldom start at the
/// same time.
fn soft_limit(ctx: &mut Context<'_>, life: Life<std::time::Duration>) -> Option<std::time::Duration> {
    (!life.rekey.is_zero()).then(|| life.rekey.saturating_sub(crate::task::jitter(ctx, life.rand)))
}
