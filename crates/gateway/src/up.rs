//! `weir up`: the gateway in the foreground.
//!
//! Everything that can fail is done before the gateway reports readiness; after a failure the
//! owners undo their parts in reverse order. From then on this thread is the control thread:
//! signals, saved numbers, lifetimes, audit lines.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Add;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use dataplane::{Port, Publisher, Totals, WorkerConfig};
use ike::config::Host;
use ipsec::Protocol;
use ports::xdp::{self, Interface};
use ports::{FlowSteering, GsoCounters, GsoCounts, Links, RawPort, RawProtocols, Runner, TunConfig, TunPort, UdpPort};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use wire::IpProto;

use crate::account::User;
use crate::audit::AuditLog;
use crate::border::{Filter, Paths};
use crate::bypass::Bypass;
use crate::config::problem::{Problem, Problems};
use crate::config::{self, Config, Purpose};
use crate::confine::{self, Needs, Part};
use crate::control::{Control, ControlBackend, DaemonRequest, Loaded};
use crate::device_mtu;
use crate::guard::{Exempt, Guard};
use crate::host::{HostNetwork, Kernel};
use crate::http::Server;
use crate::keyed::KeyedSide;
use crate::keying::{Helpers, Keying, Surroundings};
use crate::lookup::Lookup;
use crate::metrics::Metrics;
use crate::notify::Notify;
use crate::plane::{self, Plane, PlaneBuilder};
use crate::psp_keys::{self, PspService};
use crate::resolver::Servers;
use crate::routes::{self, Routes};
use crate::scheduling::Scheduling;
use crate::state::Store;
use crate::updown::Updown;
use crate::waker::Waker;
use crate::web::Web;
use credentials::{Credentials, FetchSettings, Resolve};

/// Interval of the control loop. Half a block of numbers must last that long.
const TICK: Duration = Duration::from_millis(50);
/// Audit records taken per tick; the rest waits in its ring.
const AUDITS_PER_TICK: usize = 4096;
/// Device node of TUN. udev lets every user open it; creating a device requires CAP_NET_ADMIN.
const TUN_DEVICE: &str = "/dev/net/tun";
/// Any IP packet: a peer that protects first and cuts afterwards sends packets beyond every MTU,
/// and the kernel puts them together before a raw or UDP socket sees them. Pages that no packet
/// reaches into are never touched, so this costs address space and not memory.
const PACKET_BYTES: usize = 65_536;

/// Reason why the gateway did not start or had to stop.
pub(crate) enum Failure {
    /// The configuration; nothing was started.
    Config(Problems),
    /// The host; nothing was started.
    Start(anyhow::Error),
    /// A fault while running.
    Running(anyhow::Error),
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Self::Config(problems)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Start(error)
    }
}

/// Required sockets. They are opened once, so a reload must not need others.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Listening {
    pub(crate) protocols: BTreeSet<IpProto>,
    pub(crate) local: BTreeSet<IpAddr>,
    pub(crate) udp: BTreeSet<SocketAddr>,
}

impl Listening {
    pub(crate) fn of(config: &Config) -> Self {
        let points = config.gateway.code_points;
        let mut listening = Self::default();
        if config.ike_wanted() {
            // Peers come from anywhere to any address of this host, with whatever both ends agree
            // on.
            let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
            listening.local.extend(any);
            listening.udp.extend(any.map(|any| SocketAddr::new(any, points.nat_t_port)));
            listening.protocols.extend([IpProto::ESP, IpProto::AH, points.eesp_protocol]);
        }
        for connection in &config.keyed.psp {
            let single = connection.local.iter().map(|host| match host {
                Host::Range(range) if range.start == range.end => Some(range.start),
                _ => None,
            });
            let named: Option<Vec<IpAddr>> = single.collect();
            let any = || vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
            for local in named.filter(|addrs| !addrs.is_empty()).unwrap_or_else(any) {
                listening.local.insert(local);
                listening.udp.insert((local, points.psp_port).into());
            }
        }
        for sa in &config.sas {
            let local = sa.peer.local;
            let encap = sa.inbound.as_ref().or(sa.outbound.as_ref()).is_some_and(|half| half.outer.udp.is_some());
            listening.local.insert(local);
            match (sa.protocol, encap) {
                (Protocol::Psp, _) => drop(listening.udp.insert((local, points.psp_port).into())),
                (_, true) => drop(listening.udp.insert((local, points.nat_t_port).into())),
                (Protocol::Esp, _) => drop(listening.protocols.insert(IpProto::ESP)),
                (Protocol::Ah, _) => drop(listening.protocols.insert(IpProto::AH)),
                (Protocol::Eesp, _) => drop(listening.protocols.insert(points.eesp_protocol)),
            }
        }
        listening
    }

    /// Clear text that the guard must accept because it is for these sockets.
    pub(crate) fn exempt(self, config: &Config) -> Exempt {
        let mut udp = self.udp;
        if config.ike_wanted() {
            let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
            udp.extend(any.map(|any| SocketAddr::new(any, config.gateway.ike_port)));
        }
        let psp = !config.keyed.psp.is_empty() || config.sas.iter().any(|sa| sa.protocol == Protocol::Psp);
        Exempt {
            protocols: self.protocols.iter().map(|protocol| protocol.0).collect(),
            local: self.local,
            udp,
            psp_port: psp.then_some(config.gateway.code_points.psp_port),
            key_service: config.keyed.psp.iter().map(|peer| (peer.local_port, peer.remote_port)).collect(),
        }
    }

    fn covers(&self, other: &Self) -> bool {
        let unspecified = |v6| if v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        let everywhere = |addr: &IpAddr| self.local.contains(&unspecified(addr.is_ipv6()));
        let any_port = |at: &SocketAddr| self.udp.contains(&SocketAddr::new(unspecified(at.is_ipv6()), at.port()));
        self.protocols.is_superset(&other.protocols)
            && other.local.iter().all(|addr| self.local.contains(addr) || everywhere(addr))
            && other.udp.iter().all(|at| self.udp.contains(at) || any_port(at))
    }

    /// Removes addresses that are covered by a wildcard socket: two sockets would each get the
    /// packets.
    fn without_doubles(mut self) -> Self {
        for any in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            if self.local.contains(&any) {
                self.local.retain(|addr| addr.is_ipv6() != any.is_ipv6() || *addr == any);
            }
            let ports: Vec<u16> = self.udp.iter().filter(|at| at.ip() == any).map(SocketAddr::port).collect();
            self.udp.retain(|at| at.is_ipv6() != any.is_ipv6() || at.ip() == any || !ports.contains(&at.port()));
        }
        self
    }
}

/// Runs a gateway until a signal ends it.
pub(crate) fn run(path: &Path, log_json: bool, log_secrets: Option<PathBuf>) -> Result<(), Failure> {
    let mut config = config::load(path, Purpose::Gateway)?;
    config.gateway.log_secrets = log_secrets;
    let user = another_user(&config)?;
    crate::log::init(&config.gateway.log, log_json || config.gateway.log_json);
    // Installs signal handlers, so that an interrupted start still cleans up.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot handle signals")?;
    warn(&config);
    for warning in crate::check::plausibility::forwarding(&config) {
        tracing::warn!(target: "control", "{warning}");
    }
    // Before the first thread, and held to the end.
    let resolver = config.gateway.resolver.as_ref().filter(|_| config.ike_wanted());
    let helpers = Helpers {
        servers: Servers::start(resolver, &config.gateway.tun)?,
        updown: Updown::start(path, &config)?,
        lookup: if config.gateway.confine && config.ike_wanted() { Lookup::start()? } else { Lookup::direct() },
    };
    let pre_sandbox =
        PreSandbox { xdp: Bypass::open(&config), steering: flow_steering(&config), notify: Notify::connect() };
    if let Part::Absent(why) = confine::lock_memory() {
        tracing::warn!(target: "control", "memory is not locked: {why}");
    }
    // Opening the socket later reports faults of its directory.
    let _ = confine::make_socket_folder(&config.gateway.socket);
    if let Some(user) = &user {
        become_user(user, &config)?;
    }
    let confinement = config.gateway.confine.then(|| confine::enter(&Needs::of(path, &config)));
    let log_json = log_json || config.gateway.log_json;
    let mut gateway = Gateway::start(config, path, helpers, pre_sandbox, log_json)?;
    if let Some(confinement) = &confinement {
        confinement.started();
    }
    gateway.notify.ready();
    let ended = gateway.serve(signals);
    let stopped = gateway.stop();
    ended.and(stopped).map_err(Failure::Running)
}

/// The user to become; `None` if the process keeps its user.
fn another_user(config: &Config) -> Result<Option<User>, Failure> {
    let Some(name) = &config.gateway.user else { return Ok(None) };
    let user = User::find(name).map_err(Problems::from)?;
    if user.is_current() {
        return Ok(None);
    }
    let own = rustix::process::geteuid();
    if !own.is_root() {
        let message = format!("gateway.user: user {} cannot become '{name}'", own.as_raw());
        let help =
            format!("start weir as root, or as '{name}' with CAP_NET_ADMIN, CAP_NET_RAW and CAP_NET_BIND_SERVICE");
        return Err(Problems::from(Problem::whole(message).help(help)).into());
    }
    Ok(Some(user))
}

/// Gives up root, after what takes it: the folders that the daemon writes to belong to the user
/// then.
fn become_user(user: &User, config: &Config) -> Result<(), Failure> {
    let gateway = &config.gateway;
    let mut owned = user.own_state(&gateway.state_dir).and_then(|()| user.own_socket_folder(&gateway.socket));
    if let Some(secrets) = &gateway.log_secrets {
        owned = owned.and_then(|()| user.own_state(secrets));
    }
    owned
        .map_err(|(path, error)| anyhow::anyhow!("cannot give {} to user '{}': {error}", path.display(), user.name))?;
    let failed =
        || format!("cannot become user '{}' (gateway.user); remove 'user' to stay what weir is started as", user.name);
    confine::become_user(user).with_context(failed)?;
    match std::fs::File::options().read(true).write(true).open(TUN_DEVICE) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(anyhow::anyhow!("user '{}' cannot open {TUN_DEVICE}: {error}; chmod 666 {TUN_DEVICE}", user.name)
                .into())
        }
        // The later open reports other errors.
        _ => Ok(()),
    }
}

/// Objects that need bpf(2) or a UNIX socket, created before the sandbox forbids both.
struct PreSandbox {
    xdp: (Bypass, Vec<Interface>),
    steering: Option<FlowSteering>,
    notify: Notify,
}

/// Flow steering that keeps each flow on one of several workers.
fn flow_steering(config: &Config) -> Option<FlowSteering> {
    if config.gateway.workers == 1 || !config.gateway.flow_queues {
        return None;
    }
    FlowSteering::load().inspect_err(|error| warn_of_order("bpf(2)", error)).ok()
}

fn warn_of_order(what: &str, error: &std::io::Error) {
    tracing::warn!(target: "net", "queues = flows: {what}: {error}; the kernel selects the queue");
}

fn warn(config: &Config) {
    for warning in &config.warnings {
        tracing::warn!(target: "control", "{warning}");
    }
}

struct Gateway {
    plane: Plane,
    keyed: Option<KeyedSide>,
    control: Control,
    listening: Listening,
    audit: AuditLog,
    metrics: Option<(Metrics, Server)>,
    web: Option<Web>,
    path: std::path::PathBuf,
    /// Connection to the service manager.
    notify: Notify,
    /// True if `weir down` requested the stop: protected traffic may leave in clear text
    /// afterwards.
    opens: bool,
}

/// Opens sockets and starts threads of IKE and the PSP key service; nothing is in force yet.
fn open_keyed(
    now: Instant,
    config: &Config,
    path: &Path,
    (host, mut helpers): (Arc<dyn HostNetwork>, Helpers),
) -> anyhow::Result<KeyedSide> {
    helpers.listen()?;
    let lookup = helpers.lookup.clone();
    let waker = Waker::new()?;
    let (credentials_waker, psp_waker) = (waker.clone(), waker.clone());
    let credentials = Credentials::spawn(move || credentials_waker.wake());
    credentials.fetch(FetchSettings {
        folder: Some(config.gateway.state_dir.join("crls")),
        mark: Some(config.gateway.fwmark),
        resolve: Resolve(Arc::new(move |name: &str| lookup.resolve(name))),
    });
    let psp = PspService::start(psp_keys::Setup {
        port: config.gateway.code_points.psp_port,
        mark: config.gateway.fwmark,
        rotation: psp_keys::ROTATION,
        workers: config.gateway.workers as u8,
        identities: credentials.identities(),
        waker: Box::new(move || psp_waker.wake()),
    })?;
    let surroundings = Surroundings::open(config, Arc::clone(&host), credentials, waker, helpers)?;
    let keying = Keying::new(now, config, surroundings)?;
    let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
    Ok(KeyedSide::new(now, host, (keying, psp), Loaded::new(config.keyed.clone(), folder)))
}

impl Gateway {
    fn start(
        config: Config,
        path: &Path,
        helpers: Helpers,
        PreSandbox { xdp: (bypass, interfaces), steering, notify }: PreSandbox,
        log_json: bool,
    ) -> Result<Self, Failure> {
        let now = Instant::now();
        let host: Arc<dyn HostNetwork> =
            Arc::new(Kernel { tun: config.gateway.tun.clone(), mark: config.gateway.fwmark });
        let store = Store::open(&config.gateway.state_dir).map_err(anyhow::Error::from)?;
        let builder = PlaneBuilder::build(now, &config, &*host, store)?;
        let publisher = builder.publisher(&config)?;
        let listening = Listening::of(&config).without_doubles();

        // Sockets first: they reveal a missing privilege, and need no clean-up. Those of IKE before
        // those of the data plane, which share a port with them.
        let mut control = Control::open(now, &config.gateway.socket).map_err(anyhow::Error::from)?;
        let keyed =
            config.ike_wanted().then(|| open_keyed(now, &config, path, (Arc::clone(&host), helpers))).transpose()?;
        let (raw, udp) = outer_ports(&config, &listening)?;
        let metrics = Metrics::serve(&config.gateway).map_err(anyhow::Error::from)?;
        let web = Web::start(now, &config.gateway).map_err(anyhow::Error::from)?;
        let mtu = device_mtu::at_start(&config, &builder.tables);
        let queues = TunPort::open(&TunConfig {
            name: config.gateway.tun.clone(),
            mtu: mtu as u16,
            addresses: config.gateway.addresses.iter().map(|i| (i.addr, i.prefix)).collect(),
            queues: config.gateway.workers,
            offload: config.gateway.offload,
            v6: plane::of_file(&config).any(|selector| selector.dst.is_v6()) || keyed_v6(&config, mtu),
        })
        .map_err(anyhow::Error::from)?;
        routes::settle_device(&config.gateway.tun);
        if let (Some(queue), Some(steering)) = (queues.first(), &steering) {
            queue.keep_flows(steering).unwrap_or_else(|error| warn_of_order("TUNSETSTEERINGEBPF", &error));
        }
        if let Some(queue) = queues.first() {
            let ignored = queue.if_index().and_then(|index| raw.ignore_icmp_from(index));
            ignored.context("cannot set the mark that separates inner from outer ICMP")?;
        }
        let outer = Outer::of(&config, raw, udp, interfaces).map_err(anyhow::Error::from)?;
        let joined = match queues.first().map(TunPort::offloads) {
            Some((true, true)) => "GSO and GRO for TCP and UDP",
            Some((true, false)) => "GSO and GRO for TCP",
            _ => "single packets",
        };
        let prepared = builder.keep_numbers(now, &config)?;
        let attached = match attach(&config, Arc::clone(&host), queues, outer, &publisher) {
            Ok(attached) => attached,
            Err(error) => {
                prepared.give_up(now);
                return Err(error.into());
            }
        };
        routes::warn_about_kernel(&config);
        tracing::info!(target: "control", "device {} with an MTU of {mtu} bytes and {joined}, {}, {}", config.gateway.tun, crate::ready::counted(config.gateway.workers, "worker", "workers"), attached.scheduling);
        let mut plane = Plane::new(now, prepared, publisher, attached, config);
        plane.bypass = bypass;
        let keyed = keyed.map(|mut keyed| {
            keyed.apply(now, &mut plane);
            // Install traps before readiness is reported.
            keyed.work(now, &mut plane, &mut control, None);
            keyed
        });
        // Last of all, with every policy in place: traffic that an earlier gateway left blocked
        // stays blocked until then.
        if let Err(error) = plane.set_routes(now) {
            plane.give_up();
            return Err(error.into());
        }
        let connections = keyed.iter().flat_map(|keyed| keyed.keying.endpoint.connections());
        let ready = crate::ready::text(connections.map(|connection| &**connection), &plane.config);
        if log_json {
            // On one stream with the log, so in its format; not subject to its filter.
            crate::log::say_json("control", &ready);
        } else {
            crate::log::say(tracing::Level::INFO, format_args!("weir: {ready}"));
        }
        Ok(Self {
            plane,
            keyed,
            control,
            listening,
            audit: AuditLog::new(now),
            metrics,
            web,
            path: path.to_owned(),
            notify,
            opens: false,
        })
    }

    /// The control loop; returns on a stop request or a fatal error.
    fn serve(&mut self, mut signals: Signals) -> anyhow::Result<()> {
        loop {
            for signal in signals.pending() {
                match signal {
                    SIGHUP => drop(self.reload(Instant::now(), "SIGHUP")),
                    _ => {
                        tracing::info!(target: "control", "stopping");
                        return Ok(());
                    }
                }
            }
            let now = Instant::now();
            self.tick(now);
            self.turn(now);
            if !self.plane.runner().healthy() || self.opens {
                return Ok(());
            }
            match &self.keyed {
                Some(keyed) => {
                    let own = [self.control.ready(), self.plane.runner().asked()];
                    let others: Vec<BorrowedFd<'_>> = own.into_iter().chain(self.plane.watched()).collect();
                    let now = Instant::now();
                    let publishes_in = self.plane.publishes_in(now);
                    if publishes_in.is_some() && keyed.keying.is_idle(&others) {
                        self.plane.end_pause();
                        continue;
                    }
                    keyed.keying.wait(now, &others, publishes_in.map_or(TICK, |left| left.min(TICK)));
                }
                None => self.control.wait(TICK),
            }
        }
    }

    fn tick(&mut self, now: Instant) {
        self.plane.tick(now);
        for audit in self.plane.audits(AUDITS_PER_TICK) {
            self.audit.record(now, &audit);
        }
        self.audit.flush(now);
        self.plane.bypass.look();
        if let Some((metrics, _)) = &mut self.metrics {
            if let Some(keyed) = &self.keyed {
                metrics.fetches(keyed.keying.credentials.fetch_counts());
            }
            metrics.look(now, self.keyed.as_ref().map(|keyed| &keyed.keying.endpoint), &mut self.plane);
        }
        if let Some(web) = &mut self.web {
            let (started, runner) = (self.control.started(), self.plane.runner());
            web.tick(now, || {
                let totals = Totals::of(runner.all_counters().map(|core| &**core));
                let seconds = now.saturating_duration_since(started).as_secs_f64();
                (seconds, (totals.inner_tx.1, totals.inner_rx.1))
            });
        }
        let (keyed, plane) = (&self.keyed, &mut self.plane);
        let alive = plane.runner().healthy() && !plane.runner().hangs();
        self.notify.tick(now, alive, || {
            let ike_sas = keyed.as_ref().map_or(0, |keyed| keyed.keying.endpoint.ike_sas().count());
            crate::ready::status(alive, ike_sas, plane.negotiated.children_mut().count(), plane.config.sas.len())
        });
    }

    /// Processes requests of control clients and of peers.
    fn turn(&mut self, now: Instant) {
        let backend = match &mut self.keyed {
            Some(keyed) => ControlBackend::Keyed(keyed.context(now, &mut self.plane)),
            None => ControlBackend::Manual(&mut self.plane),
        };
        if let Some(web) = self.web.as_mut().filter(|web| web.is_due(now)) {
            web.post(now, self.control.view(now, &backend));
        }
        let requests = self.control.turn(now, backend);
        if let Some(keyed) = &mut self.keyed {
            keyed.work(now, &mut self.plane, &mut self.control, self.metrics.as_mut().map(|(metrics, _)| metrics));
        } else if let Err(error) = self.plane.commit(now) {
            tracing::error!(target: "control", "{error:#}");
        }
        self.control.release();
        for request in requests {
            let DaemonRequest::Reload(client) = request else {
                self.opens = true;
                continue;
            };
            let outcome = self.reload(now, "the control socket");
            self.control.reloaded(client, outcome);
        }
    }

    /// Reads the file again, because of `cause`, and logs the outcome. Whatever is wrong, the old
    /// tables stay.
    ///
    /// # Errors
    /// All problems as one text.
    fn reload(&mut self, now: Instant, cause: &str) -> anyhow::Result<()> {
        self.notify.reloading();
        let outcome = self.try_reload(now);
        self.notify.ready();
        match outcome {
            Ok((sas, policies)) => {
                let (path, connections) = (self.path.display(), &self.plane.config.keyed);
                let connections = connections.connections.len() + connections.psp.len();
                let text = format!("{connections} connections, {sas} SAs, {policies} policies");
                tracing::info!(target: "control", "reloaded {path} ({cause}): {text}");
                Ok(())
            }
            Err(problems) => {
                let all = problems.to_string();
                tracing::error!(target: "control", "reload of {} ({cause}) failed", self.path.display());
                for problem in problems.0 {
                    tracing::error!(target: "control", "{}", Problems::from(problem));
                }
                tracing::error!(target: "control", "configuration unchanged: the previous tables remain in use");
                Err(anyhow!(all))
            }
        }
    }

    fn try_reload(&mut self, now: Instant) -> Result<(usize, usize), Problems> {
        let whole = |message: String| Problems::from(Problem::whole(message));
        let next = config::load(&self.path, Purpose::Gateway)?;
        let listening = Listening::of(&next);
        if let Some(what) = needs_restart(&self.plane.config, &next) {
            return Err(whole(match what {
                "ike" if !next.ike_wanted() => "the last connection was removed; IKE stays active until a restart: \
                                                restart, or set 'ike = yes' in the section 'gateway'"
                    .to_owned(),
                "ike" => "the first connection starts IKE: restart, and set 'ike = yes' in the section 'gateway' \
                          if connections are loaded at run time"
                    .to_owned(),
                what => format!("'{what}' in the section 'gateway' changed; restart to apply it"),
            }));
        }
        if !self.listening.covers(&listening) {
            return Err(whole(
                "the new SAs need sockets that are not open (protocol, address or port): restart to apply".into(),
            ));
        }
        // Before anything changes: the files may have changed since the configuration was checked.
        let metrics = self.metrics.as_ref().map(|(metrics, _)| metrics);
        let tls = metrics
            .map_or(Ok(None), |metrics| metrics.read_tls(&next.gateway))
            .map_err(|fault| whole(fault.to_string()))?;
        warn(&next);
        let (sections, filter) = (next.keyed.clone(), next.gateway.log.clone());
        self.plane.reload(now, next)?;
        crate::log::set_filter(&filter);
        if let Some((metrics, _)) = &self.metrics {
            metrics.replace_tls(tls);
        }
        if let Some(keyed) = &mut self.keyed {
            let metrics = self.metrics.as_mut().map(|(metrics, _)| metrics);
            keyed.reload(now, sections, &mut self.plane, &mut self.control, metrics);
        }
        Ok((self.plane.config.sas.len(), self.plane.config.policies.len()))
    }

    /// Shuts down in order: stops input, stops workers, writes exact sequence numbers to disk.
    fn stop(mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        self.notify.stopping();
        // Before policies are withdrawn: a fault, and an orderly stop unless it is to open, leave
        // them closed.
        if !self.plane.runner().healthy() || (self.plane.config.gateway.stays_closed && !self.opens) {
            self.plane.freeze(now);
        }
        if let Some(keyed) = &mut self.keyed {
            keyed.shutdown(now, &mut self.plane);
        }
        self.plane.stop(now)
    }
}

/// Workers that run, and the routes that lead to them.
pub(crate) struct Attached {
    pub(crate) host: Arc<dyn HostNetwork>,
    pub(crate) runner: Runner,
    pub(crate) scheduling: Scheduling,
    pub(crate) routes: Option<Box<dyn Paths>>,
    pub(crate) guard: Option<Box<dyn Filter>>,
    pub(crate) supers: Vec<GsoSources>,
}

/// Counters of GSO and GRO packets of a worker's ports.
#[derive(Clone)]
pub(crate) struct GsoSources {
    inner: Vec<Arc<GsoCounters>>,
    outer: Vec<Arc<GsoCounters>>,
}

impl GsoSources {
    /// Current totals of the inner and of the outer side.
    pub(crate) fn read(&self) -> (GsoCounts, GsoCounts) {
        let sum = |ports: &[Arc<GsoCounters>]| {
            ports.iter().map(|port| port.read()).fold(GsoCounts::default(), GsoCounts::add)
        };
        (sum(&self.inner), sum(&self.outer))
    }
}

/// Starts the workers. Nothing leads to them yet.
fn attach(
    config: &Config,
    host: Arc<dyn HostNetwork>,
    queues: Vec<TunPort>,
    mut outer: Outer,
    publisher: &Publisher,
) -> anyhow::Result<Attached> {
    let (mut workers, mut supers) = (Vec::new(), Vec::new());
    // A CPU for each worker when there is one for each, and for each crypto thread likewise.
    let (cpus, count) = (ports::cpus::allowed(), queues.len());
    let scheduling = Scheduling::of(config, cpus.len());
    let crypto_threads = scheduling.crypto_threads;
    let are_enough = |threads: usize| threads > 1 && cpus.len() >= threads;
    let for_all = are_enough(count * (1 + crypto_threads));
    for (core, (inner, sender)) in queues.into_iter().zip(outer.senders).enumerate() {
        let worker = WorkerConfig {
            core,
            engine: config.gateway.engine(),
            packet_bytes: PACKET_BYTES,
            aqm_interval_ms: config.gateway.aqm_interval_ms,
            pin: cpus.get(core).copied().filter(|_| for_all || are_enough(count)),
            crypto_threads,
            crypto_pins: cpus
                .iter()
                .skip(count + core * crypto_threads)
                .take(crypto_threads)
                .copied()
                .filter(|_| for_all)
                .collect(),
            ..WorkerConfig::default()
        };
        let outer_rx = std::mem::take(&mut outer.receivers[core]);
        supers.push(GsoSources { inner: vec![inner.gso_counters()], outer: std::mem::take(&mut outer.counted[core]) });
        workers.push((worker, Links { inner: Box::new(inner), outer_rx, outer_tx: sender }));
    }
    let mut runner = Runner::start_with(workers, publisher.clone(), scheduling.scheduler)?;
    if let Some(port) = outer.paced {
        let engine = config.gateway.engine();
        // Outer packets have their own buffers, and no flows are looked up.
        let small = WorkerConfig { packet_bytes: 2048, flow_cache: 64, derived_keys: 0, ..WorkerConfig::default() };
        runner.start_pacer(WorkerConfig { core: count, engine, ..small }, port)?;
    }
    let routes = config.gateway.routes.then(|| Routes::new(config)).transpose()?;
    let guard = config.gateway.guard.then(|| Guard::open(config)).transpose()?;
    let routes = routes.map(|routes| Box::new(routes) as Box<dyn Paths>);
    let guard = guard.map(|guard| Box::new(guard) as Box<dyn Filter>);
    Ok(Attached { host, runner, scheduling, routes, guard, supers })
}

/// The first setting that a running gateway cannot change.
fn needs_restart(old: &Config, new: &Config) -> Option<&'static str> {
    let (a, b) = (&old.gateway, &new.gateway);
    [
        ("tun", a.tun != b.tun),
        ("addresses", a.addresses != b.addresses),
        ("mtu", a.mtu != b.mtu),
        ("routes", a.routes != b.routes),
        ("route_table", a.route_table != b.route_table),
        ("fwmark", a.fwmark != b.fwmark),
        ("guard", a.guard != b.guard),
        ("guard_rpf", a.guard_rpf != b.guard_rpf),
        ("workers", a.workers != b.workers),
        ("offload", a.offload != b.offload),
        ("aqm_interval", a.aqm_interval_ms != b.aqm_interval_ms),
        ("xdp", a.xdp != b.xdp),
        ("engine", a.engine() != b.engine()),
        ("scheduler", a.scheduler != b.scheduler),
        ("crypto_threads", a.crypto_threads != b.crypto_threads),
        ("queues", a.flow_queues != b.flow_queues),
        ("state_dir", a.state_dir != b.state_dir),
        ("state_block", a.state_block != b.state_block),
        ("socket", a.socket != b.socket),
        ("ike", old.ike_wanted() != new.ike_wanted()),
        ("ike_port", a.ike_port != b.ike_port),
        ("aggressive_mode_psk", a.aggressive_mode_psk != b.aggressive_mode_psk),
        ("cisco_unity", a.cisco_unity != b.cisco_unity),
        ("resolver", a.resolver != b.resolver),
        ("user", a.user != b.user),
        ("confine", a.confine != b.confine),
        ("metrics", a.metrics != b.metrics),
        ("metrics_cert", a.metrics_tls.is_some() != b.metrics_tls.is_some()),
        ("web", a.web != b.web),
        ("web_hosts", a.web_hosts != b.web_hosts),
        ("log_json", a.log_json != b.log_json),
        ("eesp_protocol", a.code_points.eesp_protocol != b.code_points.eesp_protocol),
        ("nat_t_port", a.code_points.nat_t_port != b.code_points.nat_t_port),
        ("psp_port", a.code_points.psp_port != b.code_points.psp_port),
    ]
    .into_iter()
    .find_map(|(name, changed)| changed.then_some(name))
}

/// Returns whether peers may agree on IPv6 through the device.
fn keyed_v6(config: &Config, mtu: u32) -> bool {
    config.ike_wanted() && mtu >= device_mtu::LEAST_MTU && routes::has_v6()
}

fn outer_ports(config: &Config, listening: &Listening) -> anyhow::Result<(RawPort, Vec<Vec<UdpPort>>)> {
    let mark = Some(config.gateway.fwmark);
    // Also without an inbound protocol: ICMP reports the path MTU.
    let raw = RawPort::open(&RawProtocols {
        protocols: listening.protocols.iter().copied().collect(),
        icmp: true,
        v4: listening.local.iter().any(IpAddr::is_ipv4),
        v6: listening.local.iter().any(IpAddr::is_ipv6),
        local: listening.local.iter().copied().collect(),
        mark,
        device: None,
    })?;
    let shared = |addr: &SocketAddr| config.ike_wanted() && addr.port() == config.gateway.code_points.nat_t_port;
    let mut udp: Vec<Vec<UdpPort>> = (0..config.gateway.workers.max(1)).map(|_| Vec::new()).collect();
    for addr in &listening.udp {
        match of_all_workers(*addr, mark, config, shared(addr)) {
            Ok(ports) => udp.iter_mut().zip(ports).for_each(|(of_worker, port)| of_worker.push(port)),
            // A host without IPv6 has peers of the other family only.
            Err(error) if addr.ip() == Ipv6Addr::UNSPECIFIED && !routes::has_v6() => {
                tracing::info!(target: "net", "IPv6 is not available on this host: {error}");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((raw, udp))
}

/// A socket for each worker, among which the kernel chooses: the owner by SPI; by flow PSP, which
/// any can open.
fn of_all_workers(addr: SocketAddr, mark: Option<u32>, config: &Config, ike: bool) -> io::Result<Vec<UdpPort>> {
    let workers = config.gateway.workers;
    if workers <= 1 {
        return Ok(vec![if ike { UdpPort::bind_shared(addr, mark)? } else { UdpPort::bind(addr, mark)? }]);
    }
    if !ike {
        // Alone at first, so that another program's socket is not joined.
        drop(UdpPort::bind(addr, mark)?);
    }
    let ports = (0..workers).map(|_| UdpPort::bind_shared(addr, mark)).collect::<io::Result<Vec<_>>>()?;
    if addr.port() != config.gateway.code_points.psp_port {
        ports[0].steer(workers, ike)?;
    }
    Ok(ports)
}

/// Outer ports, by worker.
struct Outer {
    receivers: Vec<Vec<Box<dyn Port + Send>>>,
    senders: Vec<Box<dyn Port + Send>>,
    /// Sink of packets with a constant rate; IKE alone negotiates SAs that have one.
    paced: Option<Box<dyn Port + Send>>,
    /// Counters of their GSO and GRO packets.
    counted: Vec<Vec<Arc<GsoCounters>>>,
}

impl Outer {
    fn of(
        config: &Config,
        raw: RawPort,
        mut udp: Vec<Vec<UdpPort>>,
        mut interfaces: Vec<Interface>,
    ) -> io::Result<Self> {
        if config.gateway.offload {
            for port in udp.iter_mut().flatten() {
                if let Err(error) = port.join_datagrams() {
                    tracing::info!(target: "net", "UDP {}: no GRO, one datagram per call: {error}", port.local());
                }
            }
        }
        let workers = udp.len();
        let paced = config.ike_wanted().then(|| plain_sender(config)).transpose()?;
        let paced = paced.map(|port| Box::new(port) as Box<dyn Port + Send>);
        let mut outer = Self { receivers: Vec::new(), senders: Vec::new(), paced, counted: Vec::new() };
        for (worker, ports) in udp.into_iter().enumerate() {
            let sender = sender(config, &ports)?;
            let mut counted: Vec<_> = ports.iter().map(UdpPort::gso_counters).collect();
            counted.push(sender.gso_counters());
            outer.counted.push(counted);
            let mut receivers: Vec<_> = ports.into_iter().map(|port| Box::new(port) as Box<dyn Port + Send>).collect();
            if interfaces.is_empty() {
                outer.senders.push(Box::new(sender));
            } else {
                let mark = Some(config.gateway.fwmark);
                let (past, sender) = xdp::ports_of_worker(&mut interfaces, worker, workers, sender, mark)?;
                receivers.extend(past);
                outer.senders.push(Box::new(sender));
            }
            outer.receivers.push(receivers);
        }
        // Raw sockets all get everything: the first worker has the only one, and hands over packets
        // of the others.
        outer.receivers[0].insert(0, Box::new(raw));
        Ok(outer)
    }
}

fn sender(config: &Config, udp: &[UdpPort]) -> io::Result<RawPort> {
    let mut port = plain_sender(config)?;
    if config.gateway.offload {
        port.enable_gso(udp, Some(config.gateway.fwmark))?;
    }
    Ok(port)
}

/// A port that sends each packet by itself.
fn plain_sender(config: &Config) -> io::Result<RawPort> {
    RawPort::open(&RawProtocols {
        protocols: Vec::new(),
        icmp: false,
        v4: true,
        v6: true,
        local: Vec::new(),
        mark: Some(config.gateway.fwmark),
        device: None,
    })
}
