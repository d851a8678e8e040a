//! What clients of the control socket ask for: commands, listings, events.
//!
//! The vici server runs on a separate thread ([`vici::server`]); requests are executed one by one
//! on the control thread. A command that waits for peers is queued and answered when IKE reports
//! completion, or when its timeout expires.

pub(crate) mod fuzzing;
mod listings;
mod loading;
mod psp;
mod selectors;
mod summary;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ike::output::{ChildId, CommandError, Event as IkeEvent, IkeId, Level, Subsystem};
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;
use vici::listing::{self, IkeSaListing, LogListing, StatsListing};
use vici::message::Message;
use vici::names::{Command, Event};
use vici::{ClientId, Incoming, Requests, Server, ViciHandle};

use crate::keying::Keying;
use crate::plane::Plane;
use crate::psp_keys::PspService;
use crate::status::View;
pub(crate) use loading::Loaded;

/// Requests carried out before packets of IKE get their turn again.
const REQUESTS_PER_LOOK: usize = 64;
/// Default level of log lines for a client.
const USUAL_LEVEL: i8 = 1;

/// The control socket and the pending commands of its clients.
pub(crate) struct Control {
    // Dropped first, so that no more requests arrive.
    _server: Option<Server>,
    requests: Requests,
    clients: ViciHandle,
    /// Numbers of commands given to IKE, and to which job each belongs.
    jobs_of: HashMap<u64, u64>,
    jobs: BTreeMap<u64, Job>,
    next: u64,
    started: (Instant, SystemTime),
    counters: BTreeMap<&'static str, u64>,
    /// Names and versions of IKE SAs and Child SAs that are up, to tell of their end.
    known: HashMap<IkeId, IkeSaListing>,
    failures: summary::Failures,
    /// Response to a request that changed the protected traffic: sent once routes and guard have
    /// followed.
    held: Option<(ClientId, Message)>,
}

/// A request that waits for IKE.
struct Job {
    client: ClientId,
    what: CommandKind,
    matches: usize,
    left: usize,
    succeeded: usize,
    why: Option<String>,
    /// The client has waited long enough.
    timed_out: bool,
    /// Time at which the command times out.
    until: Option<Instant>,
    /// Maximum level of the log lines that the client receives while it waits.
    level: i8,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum CommandKind {
    Initiate,
    Terminate,
    /// With the number of manual SAs that ended.
    Drain {
        manual: usize,
    },
}

/// State that requests operate on.
pub(crate) struct ControlContext<'a> {
    pub(crate) now: Instant,
    pub(crate) keying: &'a mut Keying,
    pub(crate) psp: &'a mut PspService,
    pub(crate) plane: &'a mut Plane,
    pub(crate) loaded: &'a mut Loaded,
}

impl ControlContext<'_> {
    /// Applies the loaded configuration.
    fn apply(&mut self) {
        self.keying.load(self.now, self.loaded.connections(), self.loaded.pools(), self.plane);
    }
}

/// Capabilities of a gateway for its clients.
pub(crate) enum ControlBackend<'a> {
    /// Keys are agreed here.
    Keyed(ControlContext<'a>),
    /// All keys are set by hand.
    Manual(&'a mut Plane),
}

impl ControlBackend<'_> {
    fn plane(&self) -> &Plane {
        match self {
            Self::Keyed(context) => context.plane,
            Self::Manual(plane) => plane,
        }
    }
}

/// Requests of the control socket that concern the whole daemon.
pub(crate) enum DaemonRequest {
    /// Read the configuration file again.
    Reload(ClientId),
    /// Stop, and let protected traffic leave in clear text.
    Stop,
}

impl Control {
    /// Opens the socket, for its owner only.
    ///
    /// # Errors
    /// The socket is in use, or its folder does not let it be made; the text names the path and the
    /// key.
    pub(crate) fn open(now: Instant, path: &std::path::Path) -> io::Result<Self> {
        let advise = |error: io::Error| {
            io::Error::new(error.kind(), format!("{error}; set another 'socket' in the section 'gateway'"))
        };
        let (server, requests) = Server::start(path, None).map_err(advise)?;
        let clients = server.handle();
        Ok(Self::with((now, SystemTime::now()), Some(server), requests, clients))
    }

    pub(crate) fn with(
        started: (Instant, SystemTime),
        server: Option<Server>,
        requests: Requests,
        clients: ViciHandle,
    ) -> Self {
        Self {
            _server: server,
            requests,
            clients,
            jobs_of: HashMap::new(),
            jobs: BTreeMap::new(),
            next: 1,
            started,
            counters: ike::counters().map(|(name, _)| (name, 0)).collect(),
            known: HashMap::new(),
            failures: summary::Failures::default(),
            held: None,
        }
    }

    /// A counter of IKE.
    #[cfg(feature = "simulation")]
    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }

    /// Readable when there are requests.
    pub(crate) fn ready(&self) -> std::os::fd::BorrowedFd<'_> {
        self.requests.as_fd()
    }

    /// Waits for requests, at most for `longest`: for a gateway that has nothing else to wait for.
    pub(crate) fn wait(&self, longest: Duration) {
        let timeout = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
        // Interrupted or refused: the next turn looks anyway.
        let _ = rustix::event::poll(&mut [PollFd::new(&self.requests, PollFlags::IN)], Some(&timeout));
    }

    /// Carries out what clients ask for. The caller must call [`Control::release`] once routes and
    /// guard are set.
    pub(crate) fn turn(&mut self, now: Instant, mut backend: ControlBackend<'_>) -> Vec<DaemonRequest> {
        let mut requests = Vec::new();
        for _ in 0..REQUESTS_PER_LOOK {
            match self.requests.try_next() {
                Some(Incoming::Request { client, command, message }) => match command {
                    Command::ReloadSettings => requests.push(DaemonRequest::Reload(client)),
                    Command::Stop => {
                        requests.push(DaemonRequest::Stop);
                        self.clients.reply(client, &listing::success());
                    }
                    Command::Status => self.status(now, client, &backend),
                    _ => {
                        let reply = match &mut backend {
                            ControlBackend::Keyed(context) => self.carry_out(context, client, command, &message),
                            ControlBackend::Manual(plane) => self.without_peers(now, client, command, plane),
                        };
                        let Some(reply) = reply else { continue };
                        if changes_policies(command) {
                            self.held = Some((client, reply));
                            break;
                        }
                        self.clients.reply(client, &reply);
                    }
                },
                Some(Incoming::Gone(client)) => self.jobs.retain(|_, job| job.client != client),
                None => break,
            }
        }
        self.give_up(now);
        requests
    }

    /// Sends the answer that was held back: a client that has it may send packets at once.
    pub(crate) fn release(&mut self) {
        if let Some((client, reply)) = self.held.take() {
            self.clients.reply(client, &reply);
        }
    }

    /// Answers a request.
    pub(crate) fn reloaded(&self, client: ClientId, outcome: anyhow::Result<()>) {
        let failed = |why: anyhow::Error| listing::failure(&why.to_string().trim().replace('\n', "; "));
        let reply = outcome.map_or_else(failed, |()| listing::success());
        self.clients.reply(client, &reply);
    }

    /// One request. `None`: its answer comes later, or has been given.
    fn carry_out(
        &mut self,
        context: &mut ControlContext<'_>,
        client: ClientId,
        command: Command,
        request: &Message,
    ) -> Option<Message> {
        let now = context.now;
        Some(match command {
            // Carried out already, with and without peers.
            Command::Status | Command::ReloadSettings | Command::Stop => return None,
            Command::Version => version(),
            Command::Stats => {
                let endpoint = &context.keying.endpoint;
                self.stats(now, context.plane, (endpoint.ike_sas().count() as u64, endpoint.half_open_count() as u64))
            }
            Command::Initiate => return self.initiate(context, client, request, now),
            Command::Terminate => return self.terminate(context, client, request, now),
            Command::Drain => return self.drain(context, client, request, now),
            Command::Rekey => self.rekey(context, request, now),
            Command::Redirect => listing::failure("weir follows redirects but does not issue them"),
            Command::Install | Command::Uninstall => self.install(context, request, command == Command::Install),
            Command::ListSas => {
                let items: Vec<Message> =
                    self.selected(context, request, now).iter().map(IkeSaListing::list_sa).collect();
                self.clients.list(client, Event::ListSa, items, Message::new());
                return None;
            }
            Command::ListConns => {
                let wanted = request.text("ike").map(str::to_owned);
                let all = context.keying.endpoint.connections().iter();
                let asked = all.filter(|connection| wanted.as_ref().is_none_or(|name| *name == connection.name));
                let subjects = context.keying.credentials.with_store(|store| loading::subjects(store));
                let items: Vec<Message> =
                    asked.map(|connection| listings::connection(connection, &subjects).list_conn()).collect();
                self.clients.list(client, Event::ListConn, items, Message::new());
                return None;
            }
            Command::ListPolicies => {
                let asked = listings::policies(&context.plane.negotiated).filter(|policy| policy.is_asked_for(request));
                let items: Vec<Message> = asked.map(|policy| policy.list_policy()).collect();
                self.clients.list(client, Event::ListPolicy, items, Message::new());
                return None;
            }
            Command::ListCerts => {
                let items = loading::list_certs(context, request);
                self.clients.list(client, Event::ListCert, items, Message::new());
                return None;
            }
            Command::ListAuthorities => {
                let items = loading::list_authorities(context, request);
                self.clients.list(client, Event::ListAuthority, items, Message::new());
                return None;
            }
            Command::GetConns => {
                listing::names("conns", context.keying.endpoint.connections().iter().map(|c| c.name.as_str()))
            }
            Command::GetPools => {
                let (only, leases) = (request.text("name"), request.flag("leases").unwrap_or(false));
                listing::get_pools(&listings::pools(context.keying.endpoint.pools(), only, leases))
            }
            Command::GetAlgorithms => loading::algorithms(),
            Command::GetCounters => {
                listing::get_counters([("", self.counters.iter().map(|(name, n)| (*name, *n)).collect())])
            }
            Command::ResetCounters => {
                self.counters.values_mut().for_each(|n| *n = 0);
                listing::success()
            }
            Command::FlushCerts => {
                loading::flush_certs(context, request);
                listing::success()
            }
            Command::LoadConn
            | Command::UnloadConn
            | Command::LoadCert
            | Command::LoadKey
            | Command::UnloadKey
            | Command::GetKeys
            | Command::LoadToken
            | Command::LoadShared
            | Command::UnloadShared
            | Command::GetShared
            | Command::ClearCreds
            | Command::LoadAuthority
            | Command::UnloadAuthority
            | Command::GetAuthorities
            | Command::LoadPool
            | Command::UnloadPool => loading::carry_out(context, command, request),
        })
    }

    /// Time of the start, from which the status counts.
    pub(crate) fn started(&self) -> Instant {
        self.started.0
    }

    /// Gathers the status.
    pub(crate) fn view(&self, now: Instant, backend: &ControlBackend<'_>) -> View {
        let mut connections = summary::manual(backend.plane());
        if let ControlBackend::Keyed(context) = backend {
            connections.extend(summary::connections(context, &self.failures, context.now));
        }
        View::of(backend.plane(), now.saturating_duration_since(self.started.0), connections)
    }

    /// Connections, SAs and policies of whatever origin, and counters.
    fn status(&self, now: Instant, client: ClientId, backend: &ControlBackend<'_>) {
        let view = self.view(now, backend);
        let reply = view.reply();
        self.clients.list(client, Event::StatusEntry, view.entries(), reply);
    }

    /// One request to a gateway with manual keys only: listings are empty, and there is nothing to
    /// negotiate.
    fn without_peers(&self, now: Instant, client: ClientId, command: Command, plane: &mut Plane) -> Option<Message> {
        let nothing = |event| {
            self.clients.list(client, event, [], Message::new());
            None
        };
        Some(match command {
            Command::Version => version(),
            Command::Stats => self.stats(now, plane, (0, 0)),
            Command::GetAlgorithms => loading::algorithms(),
            Command::ListSas => return nothing(Event::ListSa),
            Command::ListConns => return nothing(Event::ListConn),
            Command::ListPolicies => return nothing(Event::ListPolicy),
            Command::ListCerts => return nothing(Event::ListCert),
            Command::ListAuthorities => return nothing(Event::ListAuthority),
            Command::GetConns => listing::names("conns", []),
            Command::GetKeys | Command::GetShared => listing::names("keys", []),
            Command::GetAuthorities => listing::names("authorities", []),
            Command::GetPools | Command::GetCounters => Message::new(),
            Command::Drain => drained((0, 0), end_manual(plane)),
            _ => listing::failure(
                "this gateway has manual keys only, 'weir status' shows them; to load connections later, \
                 write 'ike = yes' in the section 'gateway' and start it again",
            ),
        })
    }

    fn stats(&self, now: Instant, plane: &Plane, (ike_sas, half_open): (u64, u64)) -> Message {
        let workers = plane.runner().counters().len() as u32;
        StatsListing {
            uptime_s: now.saturating_duration_since(self.started.0).as_secs(),
            started_unix_s: self.started.1.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            workers_total: workers,
            workers_idle: 0,
            workers_active: [workers, 0, 0, 0],
            queues: [0; 4],
            scheduled: 0,
            ike_sas,
            half_open,
            plugins: vec!["weir".to_owned()],
        }
        .stats()
    }

    /// Starts a job of `matches` parts; returns the numbers of their commands.
    fn job(
        &mut self,
        client: ClientId,
        what: CommandKind,
        matches: usize,
        request: &Message,
        now: Instant,
    ) -> Vec<u64> {
        let (id, numbers) = (self.next, (self.next + 1..).take(matches).collect::<Vec<u64>>());
        self.next += matches as u64 + 1;
        self.jobs_of.extend(numbers.iter().map(|number| (*number, id)));
        let timeout_ms = request.number::<i64>("timeout").unwrap_or(0);
        let until = (timeout_ms > 0).then(|| now + Duration::from_millis(timeout_ms as u64));
        let level = request.number("loglevel").unwrap_or(USUAL_LEVEL);
        let (why, timed_out) = (None, false);
        let job = Job { client, what, matches, left: matches, succeeded: 0, why, timed_out, until, level };
        self.jobs.insert(id, job);
        numbers
    }

    fn initiate(
        &mut self,
        context: &mut ControlContext<'_>,
        client: ClientId,
        request: &Message,
        now: Instant,
    ) -> Option<Message> {
        if let Some(reply) = psp::initiate(context, request, now) {
            return Some(reply);
        }
        let (child, ike) = (request.text("child"), request.text("ike"));
        let connections = context.keying.endpoint.connections();
        let has = |name: &str| connections.iter().find(|c| c.children.iter().any(|section| section.name == name));
        let connection = match (ike, child) {
            (Some(ike), _) => Some(ike.to_owned()),
            (None, Some(child)) => has(child).map(|connection| connection.name.clone()),
            (None, None) => return Some(listing::failure("name a connection (ike) or a child")),
        };
        let Some(connection) = connection else {
            return Some(listing::failure(&no_child(connections, child.unwrap_or_default())));
        };
        let waits = request.number::<i64>("timeout").unwrap_or(0) >= 0;
        let number = self.job(client, CommandKind::Initiate, 1, request, now)[0];
        if let Err(why) = context.keying.endpoint.initiate(now, &connection, child, number) {
            self.forget(number);
            return Some(listing::failure(&why.to_string()));
        }
        if !waits {
            self.forget(number);
            return Some(listing::success());
        }
        None
    }

    /// Takes a command and its job out.
    fn forget(&mut self, number: u64) {
        if let Some(job) = self.jobs_of.remove(&number) {
            self.jobs.remove(&job);
        }
    }

    /// The SAs that a request names: whole IKE SAs, and Child SAs.
    fn named(context: &ControlContext<'_>, request: &Message) -> (Vec<IkeId>, Vec<ChildId>) {
        let (ike, child) = (request.text("ike"), request.text("child"));
        let (ike_id, child_id) = (request.number::<u32>("ike-id"), request.number::<u32>("child-id"));
        let (mut ikes, mut children) = (Vec::new(), Vec::new());
        for view in context.keying.endpoint.ike_sas() {
            let of_name = ike.is_none_or(|name| view.connection.is_some_and(|connection| connection.name == name));
            let of_id = ike_id.is_none_or(|id| view.id.0 == id);
            if !of_name || !of_id {
                continue;
            }
            if child.is_none() && child_id.is_none() {
                if (ike.is_some() || ike_id.is_some()) && !ikes.contains(&view.id) {
                    ikes.push(view.id);
                }
                continue;
            }
            let wanted = |c: &&ike::ChildView<'_>| {
                child.is_none_or(|name| c.config.name == name) && child_id.is_none_or(|id| c.id.0 == id)
            };
            children.extend(view.children.iter().filter(wanted).map(|c| c.id));
        }
        (ikes, children)
    }

    fn terminate(
        &mut self,
        context: &mut ControlContext<'_>,
        client: ClientId,
        request: &Message,
        now: Instant,
    ) -> Option<Message> {
        if let Some(reply) = psp::terminate(context, request, now) {
            return Some(reply);
        }
        let (ikes, children) = Self::named(context, request);
        let matches = ikes.len() + children.len();
        if matches == 0 {
            return Some(listing::terminated(0, 0));
        }
        let force = request.flag("force").unwrap_or(false);
        let mut numbers = self.job(client, CommandKind::Terminate, matches, request, now).into_iter();
        for (ike, number) in ikes.iter().zip(numbers.by_ref()) {
            if !context.keying.endpoint.terminate_ike(now, *ike, force, number) {
                self.done(number, Err(CommandError::new("it is gone")));
            }
        }
        for (child, number) in children.iter().zip(numbers) {
            if !context.keying.endpoint.terminate_child(now, *child, number) {
                self.done(number, Err(CommandError::new("it is gone")));
            }
        }
        if request.number::<i64>("timeout").unwrap_or(0) < 0 {
            self.jobs.retain(|_, job| job.client != client);
            return Some(listing::terminated(matches, matches));
        }
        None
    }

    /// Ends all SAs in order, and lets none begin until a restart. Policies stay, so that their
    /// traffic is dropped.
    fn drain(
        &mut self,
        context: &mut ControlContext<'_>,
        client: ClientId,
        request: &Message,
        now: Instant,
    ) -> Option<Message> {
        let endpoint = &mut context.keying.endpoint;
        endpoint.drain();
        let ikes: Vec<IkeId> = endpoint.ike_sas().map(|view| view.id).collect();
        tracing::info!(target: "control", "draining: {} IKE SAs end, and none begins until a restart", ikes.len());
        context.psp.drain(now, context.plane);
        let manual = end_manual(context.plane);
        if ikes.is_empty() {
            return Some(drained((0, 0), manual));
        }
        let force = request.flag("force").unwrap_or(false);
        let numbers = self.job(client, CommandKind::Drain { manual }, ikes.len(), request, now);
        for (ike, number) in ikes.iter().zip(numbers) {
            if !context.keying.endpoint.terminate_ike(now, *ike, force, number) {
                self.done(number, Ok(()));
            }
        }
        None
    }

    fn rekey(&mut self, context: &mut ControlContext<'_>, request: &Message, now: Instant) -> Message {
        let psp = psp::rekey(context, request, now);
        let (ikes, children) = Self::named(context, request);
        let reauth = request.flag("reauth").unwrap_or(false);
        let endpoint = &mut context.keying.endpoint;
        let ikes = ikes.into_iter().filter(|ike| endpoint.rekey_ike(now, *ike, reauth, 0)).count();
        let children = children.into_iter().filter(|child| endpoint.rekey_child(now, *child, 0)).count();
        listing::matched(ikes + children + psp, "rekey")
    }

    /// Puts the policy of a section in place, or takes it away.
    fn install(&mut self, context: &mut ControlContext<'_>, request: &Message, on: bool) -> Message {
        let Some(child) = request.text("child") else { return listing::failure("name a child") };
        let ike = request.text("ike");
        let connections = context.keying.endpoint.connections().to_vec();
        let found = connections.iter().filter(|connection| ike.is_none_or(|name| connection.name == name));
        let mut found = found.flat_map(|c| c.children.iter().filter(|s| s.name == child).map(move |s| (c, s)));
        let Some((connection, section)) = found.next() else {
            return listing::failure(&format!("configuration '{child}' not found"));
        };
        let dynamic = context.keying.dynamic(connection);
        context.plane.stand(connection, section, on, true, dynamic);
        listing::success()
    }

    /// Returns the IKE SAs that a `list-sas` request selects.
    fn selected(&self, context: &ControlContext<'_>, request: &Message, now: Instant) -> Vec<IkeSaListing> {
        let (ike, ike_id) = (request.text("ike"), request.number::<u32>("ike-id"));
        let (child, child_id) = (request.text("child"), request.number::<u32>("child-id"));
        let sas = context.keying.endpoint.ike_sas().map(|view| listings::ike_sa(&view, &context.plane.negotiated, now));
        // Newest first, as strongSwan lists them.
        let mut sas: Vec<IkeSaListing> = sas.collect();
        sas.reverse();
        let all = sas.into_iter().chain(psp::list(context, now));
        all.filter(|sa| ike.is_none_or(|name| sa.name == name) && ike_id.is_none_or(|id| sa.unique_id == id))
            .filter_map(|mut sa| {
                if child.is_some() || child_id.is_some() {
                    sa.children.retain(|c| {
                        child.is_none_or(|name| c.name == name) && child_id.is_none_or(|id| c.unique_id == id)
                    });
                    (!sa.children.is_empty()).then_some(sa)
                } else {
                    Some(sa)
                }
            })
            .collect()
    }

    /// Reports events to clients.
    pub(crate) fn tell(&mut self, now: Instant, keying: &Keying, plane: &Plane, event: &IkeEvent) {
        self.note_failure(keying, plane, event);
        match event {
            IkeEvent::CommandDone(number, outcome) => self.done(*number, outcome.clone()),
            IkeEvent::Count(what) => *self.counters.entry(what).or_default() += 1,
            IkeEvent::Log { level, subsystem, ike, text } => self.log(keying, *level, *subsystem, *ike, text),
            IkeEvent::IkeUp(ike) | IkeEvent::IkeRekeyed(ike) | IkeEvent::IkeMoved(ike) => {
                let Some(now_is) = self.listing_of(now, (keying, plane), *ike) else { return };
                let before = self.known.insert(*ike, now_is.clone());
                match event {
                    IkeEvent::IkeUp(_) => self.clients.event(Event::IkeUpdown, &now_is.updown(true)),
                    IkeEvent::IkeRekeyed(_) => {
                        let old = before.unwrap_or_else(|| now_is.clone());
                        self.clients.event(Event::IkeRekey, &old.rekeyed(&now_is));
                    }
                    _ => {
                        let old = before.unwrap_or_else(|| now_is.clone());
                        self.clients.event(Event::IkeUpdate, &old.moved(now_is.local, now_is.remote));
                    }
                }
            }
            IkeEvent::IkeDown(ike, _) => {
                if let Some(last) = self.known.remove(ike) {
                    self.clients.event(Event::IkeUpdown, &last.updown(false));
                }
            }
            IkeEvent::ChildUp(child) => self.child_updown(now, (keying, plane), *child, true),
            IkeEvent::ChildDown(child, _) => self.child_updown(now, (keying, plane), *child, false),
            IkeEvent::ChildRekeyed(old, new) => {
                let Some(ike) = keying.endpoint.ike_of(*new) else { return };
                let before = self.known.get(&ike).cloned();
                let Some(sa) = self.listing_of(now, (keying, plane), ike) else { return };
                let find = |sa: &IkeSaListing, id: ChildId| sa.children.iter().find(|c| c.unique_id == id.0).cloned();
                let was = before.as_ref().and_then(|sa| find(sa, *old)).or_else(|| find(&sa, *old));
                if let (Some(was), Some(is)) = (was, find(&sa, *new)) {
                    self.clients.event(Event::ChildRekey, &sa.child_rekeyed(&was, &is));
                }
                self.known.insert(ike, sa);
            }
        }
    }

    /// Remembers why a connection is not up.
    fn note_failure(&mut self, keying: &Keying, plane: &Plane, event: &IkeEvent) {
        let child = |id| plane.negotiated.child(id).map(|child| child.connection.name.clone());
        let known = |ike: &IkeId| self.known.get(ike).map(|sa| sa.name.clone());
        let owner = match event {
            IkeEvent::ChildUp(id) | IkeEvent::ChildDown(id, _) => child(*id),
            IkeEvent::IkeDown(ike, _) => known(ike),
            IkeEvent::Log { ike: Some(ike), level: Level::Error | Level::Warn, .. } => known(ike).or_else(|| {
                let view = keying.endpoint.ike_sa(*ike)?;
                view.connection.map(|connection| connection.name.clone())
            }),
            _ => None,
        };
        self.failures.note(event, owner.as_deref());
    }

    fn listing_of(&self, now: Instant, (keying, plane): (&Keying, &Plane), ike: IkeId) -> Option<IkeSaListing> {
        keying.endpoint.ike_sa(ike).map(|view| listings::ike_sa(&view, &plane.negotiated, now))
    }

    fn child_updown(&mut self, now: Instant, (keying, plane): (&Keying, &Plane), child: ChildId, up: bool) {
        let of_ike = |sa: &&IkeSaListing| sa.children.iter().any(|c| c.unique_id == child.0);
        let sa = if up {
            keying.endpoint.ike_of(child).and_then(|ike| {
                let sa = self.listing_of(now, (keying, plane), ike)?;
                self.known.insert(ike, sa.clone());
                Some(sa)
            })
        } else {
            self.known.values().find(of_ike).cloned()
        };
        let Some(sa) = sa else { return };
        if let Some(listing) = sa.children.iter().find(|c| c.unique_id == child.0) {
            self.clients.event(Event::ChildUpdown, &sa.child_updown(up, listing));
        }
    }

    fn log(&mut self, keying: &Keying, level: Level, subsystem: Subsystem, ike: Option<IkeId>, text: &str) {
        let number = match level {
            Level::Error | Level::Warn => 0,
            Level::Info => 1,
            Level::Debug => 2,
            Level::Trace => 3,
        };
        let waiting = || self.jobs.values().filter(|job| number <= job.level);
        if !self.clients.is_registered(Event::Log) && waiting().next().is_none() {
            return;
        }
        let group = match subsystem {
            Subsystem::Ike => "IKE",
            Subsystem::Child => "CHD",
            Subsystem::Config => "CFG",
            Subsystem::Enc => "ENC",
            Subsystem::Net => "NET",
        };
        let view = ike.and_then(|ike| keying.endpoint.ike_sa(ike));
        let name = view.as_ref().and_then(|view| Some((view.connection?.name.as_str(), view.id.0)));
        let line = LogListing { group, level: number, ike_sa: name, text };
        for message in line.log(1) {
            self.clients.event(Event::Log, &message);
        }
        for job in waiting() {
            for message in line.control_log() {
                self.clients.event_to(job.client, Event::ControlLog, &message);
            }
        }
    }

    /// One part of a job has come to its end.
    fn done(&mut self, number: u64, outcome: Result<(), CommandError>) {
        let Some(id) = self.jobs_of.remove(&number) else { return };
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.left -= 1;
        match outcome {
            Ok(()) => job.succeeded += 1,
            Err(why) => job.why = Some(why.to_string()),
        }
        if job.left == 0
            && let Some(job) = self.jobs.remove(&id)
        {
            self.clients.reply(job.client, &job.reply());
        }
    }

    /// Answers clients that have waited long enough.
    fn give_up(&mut self, now: Instant) {
        let over: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| job.until.is_some_and(|at| at <= now)).map(|(id, _)| *id).collect();
        for id in over {
            if let Some(mut job) = self.jobs.remove(&id) {
                job.why.get_or_insert_with(|| "timed out; the negotiation continues, see weir status".into());
                job.timed_out = true;
                self.clients.reply(job.client, &job.reply());
            }
            self.jobs_of.retain(|_, job| *job != id);
        }
    }
}

/// Text for a child that no connection has, with the children of a connection of that name.
fn no_child(connections: &[std::sync::Arc<ike::config::Connection>], name: &str) -> String {
    let Some(connection) = connections.iter().find(|connection| connection.name == name) else {
        return format!("no child or connection '{name}'; weir list connections shows them");
    };
    let children: Vec<&str> = connection.children.iter().map(|child| child.name.as_str()).collect();
    match children.as_slice() {
        [] => format!("no child '{name}'; connection '{name}' has none"),
        children => format!("no child '{name}'; connection '{name}' has: {}", children.join(", ")),
    }
}

/// Returns whether a command changes the protected traffic.
fn changes_policies(command: Command) -> bool {
    matches!(command, Command::LoadConn | Command::UnloadConn | Command::Install | Command::Uninstall)
}

/// Ends the manual SAs; returns their number.
fn end_manual(plane: &mut Plane) -> usize {
    let manual = plane.drain();
    if manual > 0 {
        tracing::info!(target: "control", "draining: {manual} manual SAs ended; their packets are dropped until a restart");
    }
    manual
}

/// Reply to [`Command::Drain`]: IKE SAs that there were, those that have ended, and manual SAs that
/// have ended.
fn drained((matches, ended): (usize, usize), manual: usize) -> Message {
    let mut reply = match matches {
        0 => {
            let mut reply = listing::success();
            reply.set_display("matches", 0).set_display("terminated", 0);
            reply
        }
        _ => listing::terminated(matches, ended),
    };
    reply.set_display("manual", manual);
    reply
}

fn version() -> Message {
    listing::version("weir", env!("CARGO_PKG_VERSION"))
}

impl Job {
    fn reply(&self) -> Message {
        match (self.what, &self.why) {
            (CommandKind::Initiate, None) => listing::success(),
            (CommandKind::Initiate, Some(why)) => {
                let mut reply = listing::failure(&format!("establishing CHILD_SA failed: {why}"));
                if self.timed_out {
                    reply.set_flag("timed-out", true);
                }
                reply
            }
            (CommandKind::Terminate, _) => listing::terminated(self.matches, self.succeeded),
            (CommandKind::Drain { manual }, _) => drained((self.matches, self.succeeded), manual),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ike::config::{ChildConfig, Connection};

    use super::*;

    #[test]
    fn a_connection_named_as_a_child_is_told_apart() {
        let mut moon = Connection::new("moon");
        moon.children = vec![Arc::new(ChildConfig::new("sites")), Arc::new(ChildConfig::new("lab"))];
        let connections = [Arc::new(moon), Arc::new(Connection::new("sun"))];
        assert_eq!(no_child(&connections, "moon"), "no child 'moon'; connection 'moon' has: sites, lab");
        assert_eq!(no_child(&connections, "sun"), "no child 'sun'; connection 'sun' has none");
        assert_eq!(no_child(&connections, "x"), "no child or connection 'x'; weir list connections shows them");
    }
}
