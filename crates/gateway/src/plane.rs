//! Data-plane manager, the interface of the control side to the packet path: every SA and policy in
//! use, and one place that publishes them.
//!
//! Policies are in this order: those of the section `policies`, in the order of the file; then
//! those of connections by `priority`, the narrower selectors first, Child SAs before their traps.
//! Changes are collected and become visible together with [`Plane::commit`], so that a burst of
//! negotiations costs one snapshot. A snapshot costs time in proportion to the number of SAs, so
//! with many of them each one is followed by a pause, in which Child SAs are collected for the next
//! one ([`Plane::commit_children`]). An idle control thread ends the pause, unless a peer in the
//! middle of its handshake is about to need a snapshot as well. Routes and guard close what new
//! Child SAs protect at the time of the snapshot; all policies together are compared with those of
//! the kernel after a pause of its own.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::KeyTable;
use dataplane::{Audit, Publisher, Snapshot, SpareTables};
use ike::config::{ChildConfig, Connection, PoolConfig};
use ike::output::{ChildId, ChildSa, Path};
use ipsec::{Mode, SaError};
use ports::Runner;
use wire::{AddrRange, Selector};

use crate::border::Border;
use crate::bypass::Bypass;
use crate::config::problem::{Problem, Problems};
use crate::config::{Config, Mss, PolicyAction};
use crate::device_mtu::{self, DeviceMtu};
use crate::guard::{self, GuardPolicy, Pace, Rules, Verdict};
use crate::host::HostNetwork;
use crate::negotiated::{Child, Dynamic, Negotiated, Site, Wanted};
use crate::psp_keys::associations::Associations;
use crate::routes;
use crate::scheduling::Scheduling;
use crate::state::{Identity, Record, SequenceSaver, Store};
use crate::tables::{self, HostContext, Tables};
use crate::up::{Attached, GsoSources, Listening};

/// Assumed if the path MTU to a peer is unknown, in bytes.
pub(crate) const DEFAULT_MTU: u32 = 1500;
/// Lifetime of a cached path MTU.
const PATH_MTU_LIFETIME: Duration = Duration::from_secs(60);
/// Limit of cached hosts; beyond it the cache is cleared.
const PATH_MTUS_MAX: usize = 4096;
/// Requests for SAs taken per look; the rest waits in its ring.
const ACQUIRES_PER_LOOK: usize = 64;
/// A snapshot is followed by a pause of its duration times this, so that snapshots take a tenth of
/// the control thread's time; more where the pause is limited.
const SNAPSHOT_PAUSE: u32 = 9;
/// Longest of these pauses, which delay responses to peers: far below their retransmission
/// timeouts.
const SNAPSHOT_PAUSE_MAX: Duration = Duration::from_millis(100);
/// Interval at which SAs are checked for the confirmation by their peer. Packets notice it by
/// themselves.
const PROVE_EVERY: Duration = Duration::from_millis(5);
/// With each such number of them the interval should be longer by [`PROVE_EVERY`], up to ten times
/// as long: in a burst of set-ups hundreds wait.
const PROVE_AT_ONCE: usize = 128;

/// Interval of the checks of so many SAs.
fn prove_every(unconfirmed: usize) -> Duration {
    PROVE_EVERY * (1 + unconfirmed / PROVE_AT_ONCE).min(10) as u32
}

/// Cached path MTU per destination, from the routing tables.
struct PathMtuCache {
    known: HashMap<IpAddr, (u32, Instant)>,
}

impl PathMtuCache {
    fn mtu(&mut self, now: Instant, host: &dyn HostNetwork, to: IpAddr) -> u32 {
        if let Some((mtu, at)) = self.known.get(&to)
            && now.duration_since(*at) < PATH_MTU_LIFETIME
        {
            return *mtu;
        }
        if self.known.len() >= PATH_MTUS_MAX {
            self.known.clear();
        }
        let mtu = host.route_mtu(to).unwrap_or(DEFAULT_MTU);
        self.known.insert(to, (mtu, now));
        mtu
    }
}

/// Result of the build stage, before packets flow.
pub(crate) struct PlaneBuilder {
    pub(crate) tables: Tables,
    keys: KeyTable,
    store: Store,
    port_key: u64,
}

impl PlaneBuilder {
    /// Builds the SAs of the file.
    ///
    /// # Errors
    /// Settings that are invalid for the protocol of an SA, and saved numbers that are invalid.
    pub(crate) fn build(now: Instant, config: &Config, host: &dyn HostNetwork, store: Store) -> Result<Self, Problems> {
        let port_key = u64::from_ne_bytes(tables::random_bytes().map_err(|why| Problem::whole(why.to_string()))?);
        let mut keys = KeyTable::default();
        let tables = build(now, config, None, &mut keys, (&store, host, port_key))?;
        Ok(Self { tables, keys, store, port_key })
    }

    /// The first snapshot, in which nothing is negotiated yet.
    ///
    /// # Errors
    /// Two inbound SAs that no packet could tell apart.
    pub(crate) fn publisher(&self, config: &Config) -> Result<Publisher, Problems> {
        let first = tables::snapshot(config, &self.tables, &mut Negotiated::default(), &self.keys, Default::default());
        first.map(Publisher::new)
    }

    /// Brings the numbers to the disk, before the first packet uses them.
    ///
    /// # Errors
    /// What cannot be written.
    pub(crate) fn keep_numbers(self, now: Instant, config: &Config) -> anyhow::Result<PreparedPlane> {
        let Self { tables, keys, store, port_key } = self;
        let mut saver = SequenceSaver::new(now, store, config.gateway.state_block);
        let (senders, receivers) = tables.kept();
        saver.keep(now, senders, receivers).map_err(anyhow::Error::from)?;
        Ok(PreparedPlane { tables, keys, saver, port_key })
    }
}

/// Persistence of the sequence numbers of manual SAs.
pub(crate) struct PreparedPlane {
    pub(crate) tables: Tables,
    keys: KeyTable,
    saver: SequenceSaver,
    port_key: u64,
}

impl PreparedPlane {
    /// Nothing was sent: the next attempt shall not skip a block of numbers.
    pub(crate) fn give_up(self, now: Instant) {
        self.saver.close(now);
    }
}

/// SAs, policies, workers, routes and saved numbers in use.
pub(crate) struct Plane {
    host: Arc<dyn HostNetwork>,
    // In the order in which they are dropped: workers, then routes and guard.
    runner: Runner,
    pub(crate) scheduling: Scheduling,
    border: Border,
    pub(crate) supers: Vec<GsoSources>,
    pub(crate) bypass: Bypass,
    saver: SequenceSaver,
    publisher: Publisher,
    pub(crate) tables: Tables,
    pub(crate) config: Config,
    keys: KeyTable,
    pub(crate) negotiated: Negotiated,
    /// Virtual addresses on the device.
    virtual_addresses: BTreeSet<IpAddr>,
    path_mtus: PathMtuCache,
    device_mtu: DeviceMtu,
    port_key: u64,
    /// No manual SA is used any more ([`Plane::drain`]).
    draining: bool,
    /// Something changed that packets do not see yet.
    changed: bool,
    /// Policies without an SA changed, and nothing else that [`Plane::commit`] must process before
    /// the end of a pause.
    later: bool,
    /// Those of them that were added, until guard and routes close their traffic.
    added: Vec<GuardPolicy>,
    pace: Pace,
    /// Child SAs came or went since routes and guard were set for all policies.
    children_changed: bool,
    /// Policies of Child SAs that came, until guard and routes close their traffic.
    children_added: Vec<GuardPolicy>,
    /// Pauses after snapshots, and after routes and guard were set.
    snapshot_pace: Pace,
    border_pace: Pace,
    /// Smallest inner MTU of the SAs that send; false if it must be searched for.
    narrowest: (Option<u32>, bool),
    /// Snapshot before the current one. It is taken apart here and not freed by the last worker
    /// that used it, because that takes time.
    retired: Option<Arc<Snapshot>>,
    /// Its memory, for the next one.
    spare: SpareTables,
    /// Time of the next check for confirmed SAs.
    prove_at: Instant,
}

impl Plane {
    /// Takes over what runs.
    pub(crate) fn new(
        now: Instant,
        prepared: PreparedPlane,
        publisher: Publisher,
        Attached { host, runner, scheduling, routes, guard, supers }: Attached,
        config: Config,
    ) -> Self {
        let PreparedPlane { tables, keys, saver, port_key } = prepared;
        let path_mtus = PathMtuCache { known: HashMap::new() };
        let device_mtu = DeviceMtu::new(&config, device_mtu::at_start(&config, &tables));
        let (mut negotiated, virtual_addresses) = (Negotiated::default(), BTreeSet::new());
        negotiated.psp.compute_with(config.gateway.engine());
        Self {
            host,
            runner,
            scheduling,
            border: Border::new(now, routes, guard),
            supers,
            bypass: Bypass::default(),
            saver,
            publisher,
            tables,
            config,
            keys,
            negotiated,
            virtual_addresses,
            path_mtus,
            device_mtu,
            port_key,
            draining: false,
            changed: false,
            later: false,
            added: Vec::new(),
            pace: Pace::default(),
            children_changed: false,
            children_added: Vec::new(),
            snapshot_pace: Pace::default(),
            border_pace: Pace::default(),
            narrowest: (None, false),
            retired: None,
            spare: SpareTables::default(),
            prove_at: now,
        }
    }

    /// Number of keys that packets may use.
    #[cfg(feature = "simulation")]
    pub(crate) fn key_count(&self) -> usize {
        self.keys.count()
    }

    /// Counters of the workers, in order.
    pub(crate) fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Audit records since the last call, at most `limit`.
    pub(crate) fn audits(&mut self, limit: usize) -> Vec<Audit> {
        self.runner.audits(limit)
    }

    /// Takes in a Child SA; its policies come with [`Plane::commit_children`].
    ///
    /// # Errors
    /// What its protocol refuses: IKE must delete it then.
    pub(crate) fn install(&mut self, now: Instant, child: &ChildSa, jitter: f64) -> Result<(), SaError> {
        let (path_mtus, host) = (std::cell::RefCell::new(&mut self.path_mtus), &*self.host);
        let site = Site {
            engine: self.config.gateway.engine(),
            workers: self.config.gateway.workers,
            code_points: self.config.gateway.code_points,
            path_mtu: &|to| path_mtus.borrow_mut().mtu(now, host, to),
        };
        let answered = !child.initiator;
        let child = Child::new(child, &site, jitter, &mut self.keys)?;
        let host = child.inbound.common.mode == Mode::Transport;
        let close = |selector: &Selector| GuardPolicy { verdict: Verdict::Protect, selector: *selector, host };
        self.children_added.extend(child.selectors.iter().map(close));
        let inner = device_mtu::inner(&child.outbound);
        self.narrowest.0 = Some(self.narrowest.0.map_or(inner, |narrowest| narrowest.min(inner)));
        self.negotiated.install(child, answered, now);
        (self.changed, self.children_changed) = (true, true);
        Ok(())
    }

    /// Packets go out through this one from now on.
    pub(crate) fn use_outbound(&mut self, id: ChildId) {
        if let Some(child) = self.negotiated.child_mut(id) {
            child.sending = true;
            self.changed = true;
        }
    }

    /// Ends a Child SA: nothing goes out through it any more, and until `until` it still receives.
    pub(crate) fn remove(&mut self, id: ChildId, until: Instant) {
        if self.negotiated.end(id, until) {
            self.children_gone();
        }
    }

    /// Child SAs ended. Routes and guard may close their traffic for a while longer.
    fn children_gone(&mut self) {
        (self.changed, self.children_changed, self.narrowest.1) = (true, true, false);
    }

    /// The policies of packets changed; routes and guard must follow.
    fn policies_changed(&mut self) {
        self.changed = true;
        self.border.touch();
    }

    /// Puts a Child SA between other addresses.
    pub(crate) fn go(&mut self, now: Instant, id: ChildId, path: Path) {
        let mtu = self.path_mtus.mtu(now, &*self.host, path.remote.ip());
        if let Some(child) = self.negotiated.child_mut(id) {
            child.go(path, mtu);
            (self.changed, self.narrowest.1) = (true, false);
        }
    }

    /// Installs or removes the policy of a section; see [`Negotiated::stand`].
    pub(crate) fn stand(
        &mut self,
        connection: &Arc<Connection>,
        config: &Arc<ChildConfig>,
        on: bool,
        trap: bool,
        dynamic: Dynamic,
    ) {
        if !self.negotiated.stand(connection, config, on, trap, dynamic) {
            return;
        }
        self.later = true;
        if let Some((selectors, transport)) = self.negotiated.closes(connection, config) {
            let close =
                |selector: &Selector| GuardPolicy { verdict: Verdict::Protect, selector: *selector, host: transport };
            self.added.extend(selectors.iter().map(close));
        }
    }

    /// Whether a change to policies without an SA waits until the pause after the last one is over.
    /// Many connections that are loaded one after the other would otherwise cost work that grows
    /// with the square of their number. Until then guard and routes close the traffic: its packets
    /// meet no policy and are dropped. Not where a policy passes packets.
    fn waits(&mut self, now: Instant) -> bool {
        let urgent = self.changed || self.border.is_due() || !self.pace.waits(now, self.negotiated.standing_count());
        if urgent || self.passes() {
            return false;
        }
        let mut added = std::mem::take(&mut self.added);
        // A section is closed before its trap comes.
        let mut seen = HashSet::new();
        added.retain(|policy| seen.insert(*policy));
        self.closes(&added)
    }

    /// Replaces the pools that `dynamic` in `remote_ts` of a connection denotes.
    pub(crate) fn set_pools(&mut self, pools: &[PoolConfig]) {
        if self.negotiated.set_pools(pools) {
            self.policies_changed();
        }
    }

    /// Replaces the addresses of `dynamic` in installed policies of a connection.
    pub(crate) fn stand_again(&mut self, connection: &Connection, dynamic: Dynamic) {
        if self.negotiated.stand_again(connection, dynamic) {
            self.policies_changed();
        }
    }

    /// Addresses of this host changed: the sources of packets for peers that packets choose follow.
    pub(crate) fn addresses_changed(&mut self) {
        let by_packet = |(connection, config, _): (&Arc<Connection>, &Arc<ChildConfig>, &[Selector])| {
            connection.peer_is_destination(config)
        };
        if self.negotiated.standing().any(by_packet) {
            self.border.touch();
        }
    }

    /// MTU of the way to a host, in bytes.
    pub(crate) fn path_mtu(&mut self, now: Instant, to: IpAddr) -> u32 {
        self.path_mtus.mtu(now, &*self.host, to)
    }

    /// Mutable access to the associations of the PSP key service and to their keys; `routes` if
    /// policies are added or removed.
    pub(crate) fn psp(&mut self, routes: bool) -> (&mut Associations, &mut KeyTable) {
        (self.changed, self.narrowest.1) = (true, false);
        if routes {
            self.border.touch();
        }
        (&mut self.negotiated.psp, &mut self.keys)
    }

    /// Gives the device an address of a connection, or takes it away.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(crate) fn virtual_address(
        &mut self,
        connection: Option<&str>,
        addr: IpAddr,
        on: bool,
    ) -> Result<(), routes::RouteError> {
        self.changed |= self.negotiated.virtual_address(connection, addr, on);
        let known = if on { !self.virtual_addresses.insert(addr) } else { !self.virtual_addresses.remove(&addr) };
        self.border.touch();
        if known || self.config.gateway.addresses.iter().any(|interface| interface.addr == addr) {
            return Ok(());
        }
        self.host.device_address(addr, on)
    }

    /// Returns whether an address belongs to the device.
    pub(crate) fn is_inner(&self, addr: IpAddr) -> bool {
        self.virtual_addresses.contains(&addr) || own_addresses(&self.config).any(|own| own == addr)
    }

    /// Makes everything that changed visible to packets, unless only Child SAs changed and the
    /// pause after the last snapshot is not over. False if they wait: neither their peers nor
    /// clients may learn of the change until a later call returns true.
    ///
    /// # Errors
    /// As of [`Plane::commit`].
    pub(crate) fn commit_children(&mut self, now: Instant) -> anyhow::Result<bool> {
        if self.collects(now) {
            return Ok(false);
        }
        self.commit(now).map(|()| true)
    }

    fn collects(&self, now: Instant) -> bool {
        // A client waits for changes to other policies.
        let others = self.later || (self.border.is_due() && self.border.changes());
        self.changed && !others && self.snapshot_pace.waits(now, self.negotiated.count())
    }

    /// Publishes Child SAs that wait with the next call: there is nothing else to do, so a snapshot
    /// delays nothing.
    pub(crate) fn end_pause(&mut self) {
        self.snapshot_pace = Pace::default();
    }

    /// Time until Child SAs that wait can be published; `None` if none waits.
    pub(crate) fn publishes_in(&self, now: Instant) -> Option<Duration> {
        self.collects(now).then(|| self.snapshot_pace.left(now))
    }

    /// Makes everything that changed visible to packets.
    ///
    /// # Errors
    /// Routes that could not be set; the tables are published nevertheless. Traffic without a route
    /// stays blocked if it was blocked before, and [`Plane::tick`] retries.
    pub(crate) fn commit(&mut self, now: Instant) -> anyhow::Result<()> {
        // Measures how long this takes; what happens when depends on `now` alone.
        let start = Instant::now();
        if self.later {
            if self.waits(now) {
                return Ok(());
            }
            self.policies_changed();
        }
        let later = std::mem::take(&mut self.later);
        self.added.clear();
        let tables = std::mem::take(&mut self.changed);
        // From now on, captured traffic is unreachable or held until it is protected, but never
        // sent in clear text.
        let outcome = self.follow_policies(now);
        if tables {
            let start = Instant::now();
            let previous = self.publisher.current();
            let (of, spare) = ((&self.config, &self.tables), std::mem::take(&mut self.spare));
            match tables::snapshot(of.0, of.1, &mut self.negotiated, &self.keys, (Some(&previous.spd), spare)) {
                Ok(snapshot) => {
                    self.publish(snapshot);
                }
                Err(problems) => anyhow::bail!("{problems}"),
            }
            self.follow_mtu();
            let took = start.elapsed();
            self.snapshot_pace.rest(now + took, (took * SNAPSHOT_PAUSE).min(SNAPSHOT_PAUSE_MAX));
        }
        if later {
            let took = start.elapsed();
            self.pace.replaced(now + took, took);
        }
        outcome
    }

    fn publish(&mut self, snapshot: Snapshot) {
        // The one before it was taken apart, unless a worker has not replaced it yet.
        self.retired = Some(self.publisher.current());
        self.publisher.publish(snapshot);
        self.runner.wake();
    }

    /// Sets routes and guard if policies changed. With many Child SAs this takes long, and in the
    /// pause after the last time only the traffic of new ones is closed.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn follow_policies(&mut self, now: Instant) -> anyhow::Result<()> {
        if self.children_changed && !self.border.is_loading() {
            let added = std::mem::take(&mut self.children_added);
            let rests = self.border_pace.waits(now, self.negotiated.count());
            if !self.border.is_due() && rests && self.mss() == self.border.mss() && self.closes(&added) {
                return Ok(());
            }
            self.border.touch();
        }
        if !self.border.is_due() {
            return Ok(());
        }
        let start = Instant::now();
        let outcome = self.set_routes(now);
        let took = start.elapsed();
        self.border_pace.replaced(now + took, took);
        outcome
    }

    /// Closes what `added` protect; false if all policies must be set.
    fn closes(&mut self, added: &[GuardPolicy]) -> bool {
        if added.is_empty() {
            return true;
        }
        if self.passes() {
            return false;
        }
        let own: Vec<IpAddr> = own_addresses(&self.config).chain(self.virtual_addresses.iter().copied()).collect();
        self.border.add(added, &own)
    }

    /// Returns whether a policy lets packets pass in clear text. The order of policies matters
    /// then.
    fn passes(&self) -> bool {
        self.negotiated.passes() || self.config.policies.iter().any(|p| p.action == PolicyAction::Bypass)
    }

    /// Lets the MTU of the device follow the SAs that send.
    fn follow_mtu(&mut self) {
        if !self.narrowest.1 {
            self.narrowest = (self.inner_mtus().min(), true);
        }
        if let Err(error) = self.device_mtu.follow(&*self.host, self.narrowest.0.into_iter()) {
            tracing::warn!(target: "routes", "cannot set the MTU of the device: {error}");
        }
    }

    /// Inner MTUs of all SAs that send, in bytes.
    fn inner_mtus(&self) -> impl Iterator<Item = u32> {
        let children = self.negotiated.children().filter(|child| child.until.is_none()).map(|child| &child.outbound);
        let negotiated = children.chain(self.negotiated.psp.sending()).map(|sa| device_mtu::inner(sa));
        device_mtu::of_file(&self.tables).chain(negotiated)
    }

    /// See [`Border::begin_load`].
    pub(crate) fn begin_load(&mut self) {
        self.border.begin_load();
    }

    /// Sets routes and guard for everything that was loaded, also in the pause after a change.
    pub(crate) fn end_load(&mut self, now: Instant) {
        if !self.border.end_load() {
            return;
        }
        self.changed |= self.later;
        if let Err(error) = self.commit(now).and_then(|()| self.border.settle(now)) {
            tracing::error!(target: "routes", "{error}");
        }
    }

    /// Directs what policies protect into the device, and drops it where it appears in clear text.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(crate) fn set_routes(&mut self, now: Instant) -> anyhow::Result<()> {
        if !self.border.changes() {
            return Ok(());
        }
        let Self { border, config, host, .. } = self;
        let links = border.links(config.gateway.bypass_lan, || host.private_networks()).to_vec();
        // Those of all Child SAs are among them.
        self.children_added.clear();
        self.children_changed = false;
        self.narrowest = (self.inner_mtus().min(), true);
        let (policies, mss) = (self.guarded(&links), self.mss());
        let own = own_addresses(&self.config).chain(self.virtual_addresses.iter().copied()).collect::<Vec<_>>();
        let exempt = Listening::of(&self.config).exempt(&self.config);
        self.border.set(now, Rules { policies, mss, exempt }, &own)
    }

    /// Policies in the order in which packets meet them, as the kernel must apply them to clear
    /// text.
    fn guarded(&self, links: &[AddrRange]) -> Vec<GuardPolicy> {
        let of = |verdict, selectors: &[Selector], host| {
            selectors.iter().map(|selector| GuardPolicy { verdict, selector: *selector, host }).collect::<Vec<_>>()
        };
        let in_transport: HashSet<&str> =
            self.config.sas.iter().filter(|sa| sa.mode == Mode::Transport).map(|sa| &*sa.name).collect();
        let of_file = self.config.policies.iter().flat_map(|policy| match &policy.action {
            PolicyAction::Bypass => of(Verdict::Pass, &policy.selectors, false),
            PolicyAction::Drop => of(Verdict::Protect, &policy.selectors, false),
            PolicyAction::Protect(sa) => of(Verdict::Protect, &policy.selectors, in_transport.contains(&**sa)),
        });
        let psp = self.negotiated.psp.captured();
        let psp = psp.map(|(selector, host)| GuardPolicy { verdict: Verdict::Protect, selector: *selector, host });
        let lines = self.negotiated.policies().into_iter();
        let sources = std::cell::LazyCell::new(|| self.host.sources());
        let negotiated = lines.flat_map(|line| {
            let verdict = if line.action == "bypass" { Verdict::Pass } else { Verdict::Protect };
            let mut policies = of(verdict, line.selectors, line.transport);
            if line.action == "trap" && line.connection.peer_is_destination(line.config) {
                policies.splice(0..0, guard::by_source(line.selectors, &sources));
            }
            policies
        });
        let policies: Vec<GuardPolicy> = of_file.chain(psp).chain(negotiated).collect();
        // What lies on this side of a policy needs no tunnel, nor do private networks on the links.
        let own_side = policies.iter().filter(|policy| policy.verdict == Verdict::Protect && !policy.host);
        let own_side = own_side.map(|policy| (policy.selector.src, policy.selector.dst));
        let own_side = own_side.filter(|(src, dst)| src != dst && guard::contains(dst, src)).map(|(src, _)| src);
        let mut exempt: Vec<AddrRange> = own_side.chain(links.iter().copied()).collect();
        exempt.sort_unstable_by_key(|range| (range.start, range.end));
        exempt.dedup();
        guard::with_exempt(&policies, &exempt)
    }

    /// Limit of the MSS option over IPv4, in bytes: `None` does not change it.
    fn mss(&self) -> Option<u16> {
        // Headers of IPv4 and TCP without options.
        const HEADERS: u32 = 40;
        match self.config.gateway.mss {
            Mss::Unchanged => None,
            Mss::AtMost(mss) => Some(mss),
            Mss::Auto => self.narrowest.0.map(|mtu| mtu.saturating_sub(HEADERS).clamp(536, 65_495) as u16),
        }
    }

    /// Packets that the guard dropped since the start; `None` without a guard.
    pub(crate) fn guard_counters(&self) -> Option<guard::Counters> {
        self.border.guard().map(|guard| guard.counters())
    }

    /// Descriptors that become readable when another program changes routes or the guard.
    pub(crate) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.border.watched()
    }

    /// Undoes a first [`Plane::set_routes`] that failed; what an earlier gateway left closed stays
    /// so.
    pub(crate) fn give_up(&mut self) {
        self.border.give_up();
    }

    /// Leaves routes and guard as they are, also after the end: what is protected stays closed.
    pub(crate) fn freeze(&mut self, now: Instant) {
        if std::mem::take(&mut self.later) || self.children_changed {
            self.policies_changed();
            if let Err(error) = self.commit(now) {
                tracing::error!(target: "routes", "{error:#}");
            }
        }
        self.border.freeze();
    }

    /// Periodic work: saves sequence numbers, removes expired halves, retries missing routes.
    pub(crate) fn tick(&mut self, now: Instant) {
        let Self { border, config, host, .. } = self;
        border.tick(now, config.gateway.bypass_lan, || host.private_networks());
        self.saver.tick(now);
        if let Err(error) = self.runner.follow_cpus() {
            tracing::error!(target: "path", "{error}");
        }
        for (worker, hangs) in self.runner.watch(now) {
            if hangs {
                tracing::error!(target: "path", "worker {worker} hangs: packets of its queues and SAs are delayed or lost until it resumes");
            } else {
                tracing::warn!(target: "path", "worker {worker} resumed");
            }
        }
        for (name, direction) in self.tables.expire(now) {
            tracing::warn!(target: "control", "sa {name}: the lifetime of '{direction}' expired; its packets are dropped");
        }
        // It has keys of SAs that are gone.
        if let Some(retired) = self.retired.take_if(|snapshot| Arc::strong_count(snapshot) == 1)
            && let Some(retired) = Arc::into_inner(retired)
        {
            self.spare = SpareTables::of(retired, &self.publisher.current(), &self.keys);
        }
        if now >= self.prove_at {
            self.changed |= self.negotiated.prove(now);
            self.prove_at = now + prove_every(self.negotiated.unconfirmed_count());
        }
        if self.negotiated.reap(now, &mut self.keys) {
            self.children_gone();
        }
    }

    /// Ends the manual SAs until a restart; returns their number. Their policies stay, so that the
    /// packets are dropped and counted.
    pub(crate) fn drain(&mut self) -> usize {
        self.draining = true;
        self.tables.end()
    }

    /// Returns whether no SA begins until a restart.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining
    }

    /// SAs that packets ask for.
    pub(crate) fn wanted(&mut self) -> Vec<Wanted> {
        let acquires = self.runner.acquires(ACQUIRES_PER_LOOK);
        acquires.iter().filter_map(|acquire| self.negotiated.wanted(acquire)).collect()
    }

    /// Child SAs that have just passed their soft (`false`) or hard (`true`) limit of packets or
    /// bytes.
    pub(crate) fn worn(&mut self) -> Vec<(ChildId, bool)> {
        let mut worn = Vec::new();
        for child in self.negotiated.children_mut().filter(|child| child.until.is_none()) {
            let (soft, hard) = child.worn();
            if hard && !child.reported.1 {
                worn.push((child.id, true));
            } else if soft && !child.reported.0 {
                worn.push((child.id, false));
            }
            child.reported = (child.reported.0 || soft, child.reported.1 || hard);
        }
        worn
    }

    /// Returns the Child SAs with inbound traffic since the last call.
    pub(crate) fn with_traffic(&mut self, now: Instant) -> Vec<ChildId> {
        self.negotiated.children_mut().filter_map(|child| child.look(now).then_some(child.id)).collect()
    }

    /// Replaces the manual SAs and policies of the file. On any error the previous ones remain in
    /// force.
    ///
    /// # Errors
    /// Any fault of the new configuration.
    pub(crate) fn reload(&mut self, now: Instant, next: Config) -> Result<(), Problems> {
        let whole = |message: String| Problems::from(Problem::whole(message));
        // The tops of windows are read back from disk for SAs that are rebuilt.
        self.saver.save_received(now);
        let mut keys = self.keys.clone();
        let tables =
            build(now, &next, Some(&self.tables), &mut keys, (self.saver.store(), &*self.host, self.port_key))?;
        if self.draining {
            tables.end();
        }
        let previous = self.publisher.current();
        let reused = (Some(&previous.spd), std::mem::take(&mut self.spare));
        let snapshot = tables::snapshot(&next, &tables, &mut self.negotiated, &keys, reused)?;
        let (senders, receivers) = tables.kept();
        if let Err(error) = self.saver.keep(now, senders, receivers) {
            return Err(whole(error.to_string()));
        }
        // Routes must be set before the tables change, so that an error changes neither.
        let old = std::mem::replace(&mut self.config, next);
        if let Err(error) = self.set_routes(now).and_then(|()| self.border.settle(now)) {
            self.config = old;
            let _ = self.set_routes(now);
            let (senders, receivers) = self.tables.kept();
            let _ = self.saver.keep(now, senders, receivers);
            return Err(whole(error.to_string()));
        }
        self.publish(snapshot);
        (self.tables, self.keys) = (tables, keys);
        self.narrowest.1 = false;
        self.follow_mtu();
        Ok(())
    }

    /// Shuts down in order: stops input, stops workers, writes exact sequence numbers to disk.
    ///
    /// # Errors
    /// The error that ended a worker prematurely.
    pub(crate) fn stop(self, now: Instant) -> anyhow::Result<()> {
        let Self { runner, border, saver, virtual_addresses, config, host, .. } = self;
        if border.is_frozen() {
            let (table, tun) = (config.gateway.route_table, &config.gateway.tun);
            let why = if runner.healthy() { "on_stop = closed" } else { "a worker failed" };
            tracing::warn!(
                target: "routes",
                "{why}: protected traffic stays blocked (routing table {table}, nftables table 'weir-{tun}') until the next \
                 start; to permit clear text: weir down"
            );
        }
        drop(border);
        for addr in virtual_addresses {
            let _ = host.device_address(addr, false);
        }
        let ended = runner.stop();
        saver.close(now);
        ended.map_err(anyhow::Error::from)
    }
}

/// Selectors of the file that are protected or discarded.
pub(crate) fn of_file(config: &Config) -> impl Iterator<Item = &Selector> {
    config.policies.iter().filter(|policy| policy.action != PolicyAction::Bypass).flat_map(|policy| &policy.selectors)
}

/// Addresses of the device that the file gives it.
pub(crate) fn own_addresses(config: &Config) -> impl Iterator<Item = IpAddr> {
    config.gateway.addresses.iter().map(|interface| interface.addr)
}

fn build(
    now: Instant,
    config: &Config,
    previous: Option<&Tables>,
    keys: &mut KeyTable,
    (store, host, port_key): (&Store, &dyn HostNetwork, u64),
) -> Result<Tables, Problems> {
    let resume = |name: &str, identity: Identity| -> Result<Option<Record>, Problem> {
        store.read(name, identity).map_err(|error| Problem::whole(error.to_string()))
    };
    let path_mtu = |peer: IpAddr| host.route_mtu(peer).unwrap_or(DEFAULT_MTU);
    tables::build(config, previous, keys, &HostContext { now, resume: Some(&resume), path_mtu: &path_mtu, port_key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_of_many_sas_are_rarer() {
        let intervals = [0, 127, 128, 1000, 100_000].map(|count| prove_every(count).as_millis());
        assert_eq!(intervals, [5, 5, 10, 40, 50]);
    }
}
