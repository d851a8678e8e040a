//! Routes and guard as one: what closes the traffic that policies protect, and when it changes.
//!
//! Each closes by itself: routes direct outbound traffic into the device, the guard drops clear
//! text. So each is changed also where the other one cannot be, and only together do they count as
//! changed. They do not change while connections are being loaded, and not any more once the
//! gateway ends and leaves traffic closed.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use wire::{AddrRange, Selector};

use crate::guard::{self, Counters, GuardPolicy, Rules};

/// Delay before a failed change is retried.
const AGAIN: Duration = Duration::from_secs(1);
/// Interval at which the networks on this host's links are read.
const LINKS_EVERY: Duration = Duration::from_secs(3);

/// Common interface of routes and guard.
pub(crate) trait Closes {
    /// Restores what another program changed.
    fn tick(&mut self, now: Instant);
    /// Stays in force when this is dropped.
    fn stay(&mut self);
    /// Reverts a failed start, but keeps the traffic blocked that an earlier gateway left blocked.
    fn give_up(&mut self);
    /// Descriptor that becomes readable when another program changes this, if there is one.
    fn watched(&self) -> Option<BorrowedFd<'_>>;
}

/// The guard.
pub(crate) trait Filter: Closes {
    /// Puts rules in force.
    ///
    /// # Errors
    /// Errors of the kernel; the rules before stay.
    fn apply(&mut self, rules: Rules) -> anyhow::Result<()>;
    /// Drops what `policies` protect as well. False when only [`Filter::apply`] with all policies
    /// can.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn add(&mut self, policies: &[GuardPolicy]) -> anyhow::Result<bool>;
    /// Puts in force what [`Filter::apply`] set aside for a while.
    ///
    /// # Errors
    /// Errors of the kernel; the rules before stay.
    fn settle(&mut self) -> anyhow::Result<()>;
    /// Packets dropped since the start.
    fn counters(&self) -> Counters;
}

/// Routes.
pub(crate) trait Paths: Closes {
    /// Leads what policies protect into the device, which has the addresses `own`.
    ///
    /// # Errors
    /// Errors of the kernel; traffic that was blocked before stays blocked.
    fn apply(&mut self, policies: &[GuardPolicy], own: &[IpAddr]) -> anyhow::Result<()>;
    /// Leads what `policies` protect into the device as well. False when only [`Paths::apply`] with
    /// all policies can.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn add(&mut self, policies: &[GuardPolicy], own: &[IpAddr]) -> anyhow::Result<bool>;
}

impl<T: Closes + ?Sized> Closes for Box<T> {
    fn tick(&mut self, now: Instant) {
        (**self).tick(now);
    }

    fn stay(&mut self) {
        (**self).stay();
    }

    fn give_up(&mut self) {
        (**self).give_up();
    }

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        (**self).watched()
    }
}

impl<T: Filter + ?Sized> Filter for Box<T> {
    fn apply(&mut self, rules: Rules) -> anyhow::Result<()> {
        (**self).apply(rules)
    }

    fn add(&mut self, policies: &[GuardPolicy]) -> anyhow::Result<bool> {
        (**self).add(policies)
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        (**self).settle()
    }

    fn counters(&self) -> Counters {
        (**self).counters()
    }
}

impl<T: Paths + ?Sized> Paths for Box<T> {
    fn apply(&mut self, policies: &[GuardPolicy], own: &[IpAddr]) -> anyhow::Result<()> {
        (**self).apply(policies, own)
    }

    fn add(&mut self, policies: &[GuardPolicy], own: &[IpAddr]) -> anyhow::Result<bool> {
        (**self).add(policies, own)
    }
}

/// Routes and guard of a gateway.
pub(crate) struct Border<P = Box<dyn Paths>, F = Box<dyn Filter>> {
    // In the order in which they are dropped: what routes led into the device must not leave before
    // the guard goes.
    routes: Option<P>,
    guard: Option<F>,
    /// Policies changed since routes and guard were set.
    changed: bool,
    /// Connections are being loaded.
    loading: bool,
    /// Time of the next retry of a failed change.
    again: Option<Instant>,
    /// Leaves protected traffic blocked after the end of the gateway.
    frozen: bool,
    /// Private networks on this host's links that stay outside of the tunnel, and when they are
    /// looked at again.
    links: (Vec<AddrRange>, Instant),
    /// Limit of the MSS option as it was set last, in bytes.
    mss: Option<u16>,
}

impl<P: Paths, F: Filter> Border<P, F> {
    /// Nothing is set yet.
    pub(crate) fn new(now: Instant, routes: Option<P>, guard: Option<F>) -> Self {
        let links = (Vec::new(), now);
        Self { routes, guard, changed: false, loading: false, again: None, frozen: false, links, mss: None }
    }

    /// Returns whether a change has an effect.
    pub(crate) fn changes(&self) -> bool {
        !self.frozen && (self.routes.is_some() || self.guard.is_some())
    }

    /// Policies changed: routes and guard must follow.
    pub(crate) fn touch(&mut self) {
        self.changed = true;
    }

    /// Keeps routes and guard as they are until [`Border::end_load`]: the traffic of a connection
    /// must stay blocked at every moment, although its policies are removed and added again.
    pub(crate) fn begin_load(&mut self) {
        self.loading = true;
    }

    /// Ends what [`Border::begin_load`] began; false when nothing did.
    pub(crate) fn end_load(&mut self) -> bool {
        std::mem::take(&mut self.loading)
    }

    /// Returns whether connections are being loaded.
    pub(crate) fn is_loading(&self) -> bool {
        self.loading
    }

    /// Limit of the MSS option in force, in bytes.
    pub(crate) fn mss(&self) -> Option<u16> {
        self.mss
    }

    /// Returns whether routes and guard must be set now.
    pub(crate) fn is_due(&self) -> bool {
        self.changed && !self.loading
    }

    /// Sets both. An error of one of them does not prevent the change of the other, and is retried.
    ///
    /// # Errors
    /// The first error.
    pub(crate) fn set(&mut self, now: Instant, rules: Rules, own: &[IpAddr]) -> anyhow::Result<()> {
        (self.changed, self.again) = (false, None);
        if self.frozen {
            return Ok(());
        }
        self.mss = rules.mss;
        let policies = rules.policies.clone();
        let guarded = self.guard.as_mut().map_or(Ok(()), |guard| guard.apply(rules));
        let routed = self.routes.as_mut().map_or(Ok(()), |routes| routes.apply(&policies, own));
        let outcome = guarded.and(routed);
        self.again = outcome.is_err().then(|| now + AGAIN);
        outcome
    }

    /// Applies the changes that the guard deferred during a series of changes.
    ///
    /// # Errors
    /// The error; it is tried again.
    pub(crate) fn settle(&mut self, now: Instant) -> anyhow::Result<()> {
        let outcome = self.guard.as_mut().map_or(Ok(()), F::settle);
        self.again = self.again.or(outcome.is_err().then(|| now + AGAIN));
        outcome
    }

    /// Closes what `policies` protect, which costs the same however many there are. What depends on
    /// all policies follows with [`Border::set`]. False when it has to follow at once, because
    /// packets of these policies may have to pass.
    pub(crate) fn add(&mut self, policies: &[GuardPolicy], own: &[IpAddr]) -> bool {
        if self.frozen {
            return true;
        }
        // Networks of this side and on its links are exempt from policies that contain them.
        let exempts = |policy: &GuardPolicy| {
            let Selector { src, dst, .. } = policy.selector;
            (src != dst && guard::contains(&dst, &src)) || self.links.0.iter().any(|link| guard::overlap(&dst, link))
        };
        if policies.iter().any(exempts) {
            return false;
        }
        let guarded = self.guard.as_mut().map_or(Ok(true), |guard| guard.add(policies));
        let routed = self.routes.as_mut().map_or(Ok(true), |routes| routes.add(policies, own));
        matches!((guarded, routed), (Ok(true), Ok(true)))
    }

    /// Current private networks on links that stay outside of the tunnel: none without
    /// `bypass_lan`.
    pub(crate) fn links(&mut self, bypass_lan: bool, look: impl FnOnce() -> Vec<AddrRange>) -> &[AddrRange] {
        self.links.0 = if bypass_lan { look() } else { Vec::new() };
        &self.links.0
    }

    /// Periodic work: restores changes by other programs, follows links, retries failed changes.
    pub(crate) fn tick(&mut self, now: Instant, bypass_lan: bool, look: impl FnOnce() -> Vec<AddrRange>) {
        if self.frozen {
            return;
        }
        self.routes.iter_mut().for_each(|routes| routes.tick(now));
        self.guard.iter_mut().for_each(|guard| guard.tick(now));
        if bypass_lan && now >= self.links.1 {
            self.links.1 = now + LINKS_EVERY;
            self.changed |= look() != self.links.0;
        }
        self.changed |= self.again.is_some_and(|again| again <= now);
    }

    /// Leaves both as they are, also after the end: protected traffic stays blocked.
    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
        self.routes.iter_mut().for_each(P::stay);
        self.guard.iter_mut().for_each(F::stay);
    }

    /// Returns whether protected traffic stays blocked after the end.
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Undoes a first [`Border::set`] that failed; traffic that an earlier gateway left blocked
    /// stays blocked.
    pub(crate) fn give_up(&mut self) {
        self.guard.iter_mut().for_each(F::give_up);
        if let Some(mut routes) = self.routes.take() {
            routes.give_up();
        }
    }

    /// Descriptors that become readable when another program changes routes or the guard.
    pub(crate) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let routes = self.routes.iter().filter_map(P::watched);
        routes.chain(self.guard.iter().filter_map(F::watched))
    }

    /// The guard.
    pub(crate) fn guard(&self) -> Option<&F> {
        self.guard.as_ref()
    }
}

/// Fate of rules in the kernel when their owner is dropped.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Legacy {
    /// An earlier gateway left them, and its traffic should stay blocked.
    pub(crate) adopted: bool,
    stays: bool,
}

impl Legacy {
    /// They are removed, unless they are adopted before.
    pub(crate) fn of(adopted: bool) -> Self {
        Self { adopted, stays: false }
    }

    /// They stay.
    pub(crate) fn stay(&mut self) {
        self.stays = true;
    }

    /// The start failed: only the state of an earlier gateway stays.
    pub(crate) fn give_up(&mut self) {
        self.stays = self.adopted;
    }

    /// Returns whether they are removed. A thread that panics removes nothing: a fault leaves
    /// traffic closed.
    pub(crate) fn is_removed(self, panics: bool) -> bool {
        !self.stays && !panics
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::guard::Verdict;
    use wire::Selector;

    type Calls = Rc<RefCell<Vec<String>>>;

    /// Routes or guard that note what happens to them.
    struct Side {
        name: &'static str,
        calls: Calls,
        refuses: Rc<RefCell<bool>>,
    }

    impl Side {
        fn note(&self, what: &str) {
            self.calls.borrow_mut().push(format!("{} {what}", self.name));
        }

        fn apply(&self, policies: usize) -> anyhow::Result<()> {
            self.note(&format!("apply {policies}"));
            anyhow::ensure!(!*self.refuses.borrow(), "{} refused", self.name);
            Ok(())
        }

        fn add(&self, policies: &[GuardPolicy]) -> anyhow::Result<bool> {
            self.note(&format!("add {}", policies.len()));
            anyhow::ensure!(!*self.refuses.borrow(), "{} refused", self.name);
            Ok(true)
        }
    }

    impl Closes for Side {
        fn tick(&mut self, _: Instant) {
            self.note("tick");
        }

        fn stay(&mut self) {
            self.note("stay");
        }

        fn give_up(&mut self) {
            self.note("give up");
        }

        fn watched(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    impl Filter for Side {
        fn apply(&mut self, rules: Rules) -> anyhow::Result<()> {
            Side::apply(self, rules.policies.len())
        }

        fn add(&mut self, policies: &[GuardPolicy]) -> anyhow::Result<bool> {
            Side::add(self, policies)
        }

        fn settle(&mut self) -> anyhow::Result<()> {
            self.note("settle");
            anyhow::ensure!(!*self.refuses.borrow(), "{} refused", self.name);
            Ok(())
        }

        fn counters(&self) -> Counters {
            Counters::default()
        }
    }

    impl Paths for Side {
        fn apply(&mut self, policies: &[GuardPolicy], _: &[IpAddr]) -> anyhow::Result<()> {
            Side::apply(self, policies.len())
        }

        fn add(&mut self, policies: &[GuardPolicy], _: &[IpAddr]) -> anyhow::Result<bool> {
            Side::add(self, policies)
        }
    }

    impl Drop for Side {
        fn drop(&mut self) {
            self.note("drop");
        }
    }

    struct Bench {
        border: Border<Side, Side>,
        calls: Calls,
        routes_refuse: Rc<RefCell<bool>>,
        guard_refuses: Rc<RefCell<bool>>,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let calls = Calls::default();
            let (routes_refuse, guard_refuses) = <(Rc<RefCell<bool>>, Rc<RefCell<bool>>)>::default();
            let side = |name, refuses: &Rc<RefCell<bool>>| Side {
                name,
                calls: Rc::clone(&calls),
                refuses: Rc::clone(refuses),
            };
            let now = Instant::now();
            let (routes, guard) = (side("routes", &routes_refuse), side("guard", &guard_refuses));
            let border = Border::new(now, Some(routes), Some(guard));
            Self { border, calls, routes_refuse, guard_refuses, now }
        }

        fn set(&mut self, policies: usize) -> Result<(), String> {
            let selector = Selector::between(AddrRange::ANY_V4, AddrRange::ANY_V4);
            let policies = vec![GuardPolicy::new(Verdict::Protect, selector); policies];
            let outcome = self.border.set(self.now, Rules { policies, ..Rules::default() }, &[]);
            outcome.map_err(|error| error.to_string())
        }

        fn tick(&mut self) {
            self.border.tick(self.now, false, Vec::new);
        }

        fn calls(&self) -> Vec<String> {
            std::mem::take(&mut *self.calls.borrow_mut())
        }
    }

    #[test]
    fn both_close_what_is_added_until_everything_follows() {
        let policy = |local: &str, remote: &str| {
            let selector = Selector::between(local.parse().unwrap(), remote.parse().unwrap());
            [GuardPolicy::new(Verdict::Protect, selector)]
        };
        let policies = policy("10.1.0.0/16", "10.2.0.0/16");
        let mut bench = Bench::new();
        assert!(bench.border.add(&policies, &[]));
        assert_eq!(bench.calls(), ["guard add 1", "routes add 1"]);
        for refused in [&bench.routes_refuse, &bench.guard_refuses] {
            *refused.borrow_mut() = true;
            assert!(!bench.border.add(&policies, &[]), "everything is set at once, and tried again");
            assert_eq!(bench.calls(), ["guard add 1", "routes add 1"], "both are tried");
            *refused.borrow_mut() = false;
        }
        // What is exempt depends on all policies.
        assert!(!bench.border.add(&policy("10.1.0.0/16", "10.0.0.0/8"), &[]), "a network of this side");
        bench.border.links(true, || vec!["192.168.1.0/24".parse().unwrap()]);
        assert!(!bench.border.add(&policy("10.1.0.0/16", "192.168.0.0/16"), &[]), "a network on a link");
        assert_eq!(bench.calls(), [""; 0]);
        assert!(bench.border.settle(bench.now).is_ok());
        *bench.guard_refuses.borrow_mut() = true;
        assert!(bench.border.settle(bench.now).is_err());
        bench.now += AGAIN;
        bench.tick();
        assert!(bench.border.is_due());
        bench.calls();
        bench.border.freeze();
        bench.calls();
        assert!(bench.border.add(&policies, &[]), "nothing changes any more");
        assert_eq!(bench.calls(), [""; 0]);
    }

    #[test]
    fn a_guard_that_fails_does_not_keep_routes_from_being_set() {
        let mut bench = Bench::new();
        *bench.guard_refuses.borrow_mut() = true;
        assert_eq!(bench.set(1), Err("guard refused".to_owned()));
        assert_eq!(bench.calls(), ["guard apply 1", "routes apply 1"]);
        *bench.routes_refuse.borrow_mut() = true;
        *bench.guard_refuses.borrow_mut() = false;
        assert_eq!(bench.set(2), Err("routes refused".to_owned()));
        assert_eq!(bench.calls(), ["guard apply 2", "routes apply 2"]);
    }

    #[test]
    fn what_failed_is_tried_again() {
        let mut bench = Bench::new();
        *bench.routes_refuse.borrow_mut() = true;
        bench.border.touch();
        assert!(bench.border.is_due() && bench.set(1).is_err() && !bench.border.is_due());
        bench.tick();
        assert!(!bench.border.is_due(), "not at once");
        bench.now += AGAIN;
        bench.tick();
        assert!(bench.border.is_due());
        *bench.routes_refuse.borrow_mut() = false;
        assert_eq!(bench.set(1), Ok(()));
        bench.now += 2 * AGAIN;
        bench.tick();
        assert!(!bench.border.is_due(), "it succeeded");
    }

    #[test]
    fn nothing_changes_once_the_gateway_ends_and_leaves_traffic_closed() {
        let mut bench = Bench::new();
        bench.border.freeze();
        assert_eq!(bench.calls(), ["routes stay", "guard stay"]);
        assert!(!bench.border.changes() && bench.border.is_frozen());
        bench.border.touch();
        assert_eq!(bench.set(0), Ok(()), "policies were withdrawn");
        bench.tick();
        assert_eq!(bench.calls(), [""; 0]);
    }

    #[test]
    fn a_start_that_fails_gives_both_up_and_removes_routes_first() {
        let mut bench = Bench::new();
        bench.border.give_up();
        assert_eq!(bench.calls(), ["guard give up", "routes give up", "routes drop"]);
        assert!(bench.border.changes(), "the guard is there until the end");
        drop(bench.border);
        assert_eq!(*bench.calls.borrow(), ["guard drop"]);
        let bench = Bench::new();
        drop(bench.border);
        assert_eq!(*bench.calls.borrow(), ["routes drop", "guard drop"], "what routes lead away must not leave");
    }

    #[test]
    fn only_what_an_earlier_gateway_left_outlives_a_start_that_fails() {
        for (adopted, removed) in [(false, true), (true, false)] {
            let mut legacy = Legacy::of(adopted);
            assert!(legacy.is_removed(false), "an orderly stop with on_stop = open removes it");
            assert!(!legacy.is_removed(true), "a fault does not");
            legacy.give_up();
            assert_eq!(legacy.is_removed(false), removed);
            legacy.stay();
            assert!(!legacy.is_removed(false));
        }
    }

    #[test]
    fn nothing_changes_while_connections_are_loaded() {
        let mut bench = Bench::new();
        bench.border.begin_load();
        bench.border.touch();
        assert!(!bench.border.is_due());
        assert!(bench.border.end_load() && bench.border.is_due());
        assert!(!bench.border.end_load(), "one load, one change");
    }

    #[test]
    fn networks_on_links_are_exempt_with_bypass_lan_only() {
        let mut bench = Bench::new();
        let lan = || vec!["192.168.1.0/24".parse().unwrap()];
        assert_eq!(bench.border.links(true, lan), lan());
        // The same links: no change. Another one, after a while: a change.
        bench.now += LINKS_EVERY;
        bench.border.tick(bench.now, true, lan);
        assert!(!bench.border.is_due());
        bench.border.tick(bench.now + LINKS_EVERY, false, Vec::new);
        assert!(!bench.border.is_due(), "links are of no interest");
        bench.border.tick(bench.now + LINKS_EVERY, true, Vec::new);
        assert!(bench.border.is_due());
        // A reload with bypass_lan = no.
        assert_eq!(bench.border.links(false, || panic!("links are of no interest")), []);
    }
}
