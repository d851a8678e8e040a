//! One set-up between two endpoints: datagrams pass in memory, or through sockets of this host, and
//! simulated time has the round trips.

use std::collections::VecDeque;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use lab_crypto::meter::{Measuring, Record};
use lab_ike::output::{ChildId, Event, IkeId, Output, Transmit};
use ports::clock::ticks;

use super::host::{self, ADDRESSES, CHILD, CONNECTION, Host};
use super::subject::{Auth, Subject};
use crate::host::clock::TickRate;

/// IPv4 and UDP headers of a datagram, in bytes.
const HEADERS: usize = 28;
/// Position of the exchange type in an IKE header.
const EXCHANGE_AT: usize = 18;
/// Most datagrams of a set-up: the longest has nine; more are a loop.
const DATAGRAMS_MAX: usize = 40;

/// A set-up that failed: the log of the study names the subject.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{what} after {datagrams} datagrams")]
pub(crate) struct NoSession {
    what: &'static str,
    datagrams: usize,
}

impl NoSession {
    /// A suite that PSP does not have.
    pub(super) const UNKNOWN_SUITE: Self = Self { what: "the suite is unknown to PSP", datagrams: 0 };
}

/// What one set-up, or one refresh, took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Took {
    /// Ticks of initiator and responder.
    pub(crate) ticks: [u64; 2],
    /// Records of the stopwatch, of initiator and responder.
    pub(crate) records: [Vec<Record>; 2],
    /// Datagrams of phase 1 or of all of IKEv2.
    pub(crate) first: usize,
    /// Datagrams of quick mode.
    pub(crate) quick: usize,
    /// Bytes of all datagrams with IPv4 and UDP headers.
    pub(crate) bytes: usize,
    /// Simulated time until the initiator can send data, in nanoseconds.
    pub(crate) elapsed_ns: u64,
}

/// Sockets that datagrams pass through: initiator and responder.
pub(crate) struct Sockets([UdpSocket; 2]);

impl Sockets {
    /// Two sockets of the loopback interface.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn new() -> std::io::Result<Self> {
        let sockets = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
        sockets[0].connect(sockets[1].local_addr()?)?;
        sockets[1].connect(sockets[0].local_addr()?)?;
        let limit = Some(Duration::from_secs(1));
        sockets.iter().try_for_each(|socket| socket.set_read_timeout(limit))?;
        Ok(Self(sockets))
    }

    /// Sends a datagram from one end and receives it at the other; the receive buffer should have
    /// room for the largest datagram.
    fn pass(&self, from: usize, datagram: &[u8], buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0[from].send(datagram)?;
        self.0[1 - from].recv(buffer)
    }
}

/// Two endpoints.
pub(crate) struct Pair {
    hosts: [Host; 2],
    auth: Auth,
    start: Instant,
    /// Simulated time since `start`, in nanoseconds, until which each end is busy.
    busy_ns: [u64; 2],
    /// One half of a round trip, in nanoseconds.
    delay_ns: u64,
    ike: Option<IkeId>,
    child: Option<ChildId>,
    done: bool,
    up: [bool; 2],
}

/// A datagram on its way.
struct InFlight {
    to: usize,
    arrives_ns: u64,
    datagram: Vec<u8>,
}

impl Pair {
    /// Two endpoints that know of each other's connection; the round trip is simulated.
    pub(crate) fn new(subject: &Subject, round_trip: Duration) -> Self {
        let start = Instant::now();
        Self {
            hosts: [0, 1].map(|number| host::host(subject, number, start)),
            auth: subject.auth,
            start,
            busy_ns: [0; 2],
            delay_ns: round_trip.as_nanos() as u64 / 2,
            ike: None,
            child: None,
            done: false,
            up: [false; 2],
        }
    }

    /// Brings the IKE SA and its Child SA up.
    ///
    /// # Errors
    /// [`NoSession`].
    pub(crate) fn set_up(&mut self, measuring: &Measuring, sockets: Option<&Sockets>) -> Result<Took, NoSession> {
        let took = self.run(measuring, sockets, |host, now| host.initiate(now, CONNECTION, Some(CHILD), 1).is_ok())?;
        if self.up == [true; 2] { Ok(took) } else { Err(self.failed("no Child SA came up", &took)) }
    }

    /// Rekeys the Child SA: in IKEv1 quick mode once more.
    ///
    /// # Errors
    /// [`NoSession`].
    pub(crate) fn refresh_child(&mut self, measuring: &Measuring) -> Result<Took, NoSession> {
        let Some(child) = self.child else { return Err(self.failed("no Child SA is up", &Took::default())) };
        self.done = false;
        let took = self.run(measuring, None, |host, now| host.rekey_child(now, child, 2))?;
        if self.done { Ok(took) } else { Err(self.failed("the Child SA was not rekeyed", &took)) }
    }

    /// Rekeys the IKE SA: in IKEv1 phase 1 once more.
    ///
    /// # Errors
    /// [`NoSession`].
    pub(crate) fn refresh_ike(&mut self, measuring: &Measuring) -> Result<Took, NoSession> {
        let Some(ike) = self.ike else { return Err(self.failed("no IKE SA is up", &Took::default())) };
        self.done = false;
        let took = self.run(measuring, None, |host, now| host.rekey_ike(now, ike, false, 3))?;
        if self.done { Ok(took) } else { Err(self.failed("the IKE SA was not rekeyed", &took)) }
    }

    fn failed(&self, what: &'static str, took: &Took) -> NoSession {
        NoSession { what, datagrams: took.first + took.quick }
    }

    /// Executes a command of the initiator and exchanges datagrams until both ends are idle.
    fn run(
        &mut self,
        measuring: &Measuring,
        sockets: Option<&Sockets>,
        command: impl FnOnce(&mut Host, Instant) -> bool,
    ) -> Result<Took, NoSession> {
        let (mut took, mut flying, mut started) = (Took::default(), VecDeque::new(), true);
        let before = self.busy_ns[0];
        let mut step = Step { measuring, took: &mut took, flying: &mut flying };
        self.step(0, before, &mut step, |host, now| started = command(host, now));
        if !started {
            return Err(self.failed("the command was refused", &took));
        }
        // One receive buffer for all datagrams of a set-up, as a daemon has it.
        let mut received = vec![0; 65_536];
        while let Some(InFlight { to, arrives_ns, datagram }) = flying.pop_front() {
            if took.first + took.quick > DATAGRAMS_MAX {
                return Err(self.failed("the exchange has no end", &took));
            }
            let from = ADDRESSES[1 - to];
            let mut step = Step { measuring, took: &mut took, flying: &mut flying };
            let mut passed = true;
            self.step(to, arrives_ns, &mut step, |host, now| match sockets {
                None => host.handle_datagram(now, ADDRESSES[to], from, &datagram),
                Some(sockets) => match sockets.pass(1 - to, &datagram, &mut received) {
                    Ok(len) => host.handle_datagram(now, ADDRESSES[to], from, &received[..len]),
                    Err(_) => passed = false,
                },
            });
            if !passed {
                return Err(self.failed("a datagram was lost on the loopback interface", &took));
            }
        }
        took.elapsed_ns -= took.elapsed_ns.min(before);
        Ok(took)
    }

    /// One end works: from `at_ns` of simulated time, or once it is idle.
    fn step(&mut self, number: usize, at_ns: u64, step: &mut Step<'_>, act: impl FnOnce(&mut Host, Instant)) {
        let begin_ns = at_ns.max(self.busy_ns[number]);
        let now = self.start + Duration::from_nanos(begin_ns);
        let mut sent = Vec::new();
        let mut events = Vec::new();
        let start = ticks();
        act(&mut self.hosts[number], now);
        while let Some(output) = self.hosts[number].poll() {
            match output {
                Output::Transmit(Transmit { datagram, .. }) => sent.push(datagram),
                Output::RequestCredentials(id, request) => {
                    let answer = host::answer(self.auth, number, &request);
                    self.hosts[number].handle_credentials(now, id, answer);
                }
                Output::Event(Event::Log { .. } | Event::Count(_)) => {}
                output => events.push(output),
            }
        }
        let spent = ticks() - start;
        step.took.ticks[number] += spent;
        step.measuring.take(&mut step.took.records[number]);
        let end_ns = begin_ns + TickRate::of_this_machine().ns(spent);
        self.busy_ns[number] = end_ns;
        let was_up = self.up[0];
        events.into_iter().for_each(|event| self.note(number, &event));
        if self.up[0] && !was_up {
            step.took.elapsed_ns = end_ns;
        }
        for datagram in sent {
            let counter = match datagram.get(EXCHANGE_AT) {
                Some(32) => &mut step.took.quick,
                _ => &mut step.took.first,
            };
            *counter += 1;
            step.took.bytes += datagram.len() + HEADERS;
            step.flying.push_back(InFlight { to: 1 - number, arrives_ns: end_ns + self.delay_ns, datagram });
        }
    }

    fn note(&mut self, number: usize, output: &Output) {
        match output {
            Output::Event(Event::ChildUp(child)) => {
                self.up[number] = true;
                if number == 0 {
                    self.child = Some(*child);
                }
            }
            Output::Event(Event::IkeUp(ike)) if number == 0 => self.ike = Some(*ike),
            Output::Event(Event::ChildRekeyed(_, new)) if number == 0 => self.child = Some(*new),
            Output::Event(Event::CommandDone(_, Ok(()))) if number == 0 => self.done = true,
            _ => {}
        }
    }
}

/// What a step adds to.
struct Step<'a> {
    measuring: &'a Measuring,
    took: &'a mut Took,
    flying: &'a mut VecDeque<InFlight>,
}
