//! IKE, the PSP key service and what is loaded, without the sockets and threads around them.
//!
//! `up` makes it of real ones. A simulation makes it of others: nothing here reads a clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::KeyedSections;
use crate::control::{Control, ControlContext, Loaded};
use crate::host::HostNetwork;
use crate::keying::Keying;
use crate::metrics::Metrics;
use crate::plane::Plane;
use crate::psp_keys::PspService;

/// Interval at which the addresses of this host are read: the maximum delay of a MOBIKE update.
const ADDRESSES_EVERY: Duration = Duration::from_secs(3);

/// State that exists only if IKE is active.
pub(crate) struct KeyedSide {
    host: Arc<dyn HostNetwork>,
    pub(crate) keying: Keying,
    pub(crate) psp: PspService,
    pub(crate) loaded: Loaded,
    /// Time of the next read of this host's addresses.
    addresses_at: Instant,
}

impl KeyedSide {
    /// Nothing is in force yet.
    pub(crate) fn new(
        now: Instant,
        host: Arc<dyn HostNetwork>,
        (keying, psp): (Keying, PspService),
        loaded: Loaded,
    ) -> Self {
        Self { host, keying, psp, loaded, addresses_at: now + ADDRESSES_EVERY }
    }

    /// Puts credentials, connections and pools in force; their traps, and routes, follow with the
    /// next [`KeyedSide::work`].
    pub(crate) fn apply(&mut self, now: Instant, plane: &mut Plane) {
        let faults = self.keying.credentials.with_store(|store| self.loaded.fill(store));
        for fault in faults {
            tracing::warn!(target: "cfg", "{fault}");
        }
        self.tell_addresses(now, plane);
        self.keying.credentials_changed(now);
        self.keying.reserve_spis(&plane.config);
        plane.begin_load();
        self.keying.load(now, self.loaded.connections(), self.loaded.pools(), plane);
        let peers = plane.config.keyed.psp.clone();
        for fault in self.psp.load(now, &peers, plane) {
            tracing::warn!(target: "psp", "{fault}");
        }
    }

    /// Passes the usable source addresses to IKE: not those that Weir's own device protects.
    fn tell_addresses(&mut self, now: Instant, plane: &mut Plane) {
        let Ok(mut addresses) = self.host.addresses() else { return };
        addresses.retain(|addr| !plane.is_inner(*addr));
        self.keying.local_addresses(now, &addresses, plane);
    }

    /// State that requests of the control socket operate on.
    pub(crate) fn context<'a>(&'a mut self, now: Instant, plane: &'a mut Plane) -> ControlContext<'a> {
        let Self { keying, psp, loaded, .. } = self;
        ControlContext { now, keying, psp, plane, loaded }
    }

    /// One turn of IKE.
    pub(crate) fn work(
        &mut self,
        now: Instant,
        plane: &mut Plane,
        control: &mut Control,
        metrics: Option<&mut Metrics>,
    ) {
        if now >= self.addresses_at {
            self.addresses_at = now + ADDRESSES_EVERY;
            self.tell_addresses(now, plane);
        }
        let Self { keying, psp, .. } = self;
        let mut happened = Vec::new();
        keying.turn(now, plane, |what| happened.push(what));
        if let Some(metrics) = metrics {
            metrics.events(&happened, &keying.endpoint, plane);
        }
        for what in &happened {
            control.tell(now, keying, plane, what);
        }
        for (number, found) in std::mem::take(&mut keying.found) {
            for fault in psp.resolved(now, number, found, plane) {
                tracing::warn!(target: "psp", "{fault}");
            }
        }
        psp.turn(now, plane);
        for (number, host) in psp.requests() {
            keying.find(number, host);
        }
        plane.end_load(now);
    }

    /// Puts other sections of the file in force. On return routes and guard cover the new policies.
    pub(crate) fn reload(
        &mut self,
        now: Instant,
        sections: KeyedSections,
        plane: &mut Plane,
        control: &mut Control,
        metrics: Option<&mut Metrics>,
    ) {
        self.begin_reload(now, sections, plane);
        self.work(now, plane, control, metrics);
    }

    /// The part of [`KeyedSide::reload`] before IKE processes what was loaded.
    pub(crate) fn begin_reload(&mut self, now: Instant, sections: KeyedSections, plane: &mut Plane) {
        self.loaded.reload(sections);
        self.apply(now, plane);
    }

    /// Ends every SA; the peers receive a notice.
    pub(crate) fn shutdown(&mut self, now: Instant, plane: &mut Plane) {
        self.keying.shutdown(now, plane, |_| {});
        self.psp.shutdown(now, plane);
    }
}
