//! One peer of the key service, without sockets, clocks and packets.
//!
//! Created when a connection with a known peer is loaded, or when an unknown peer that a connection
//! admits has authenticated. Control connections ([`Link`]s), messages and time are inputs; actions
//! are outputs. Loss of the control connection does not affect packets: every association is valid
//! until its master key expires.
//!
//! Each direction of each child is negotiated separately: the sender requests, the receiver
//! installs the SPI before it responds, the sender switches and confirms. Earlier SPIs stay valid
//! until they expire.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use wire::TrafficSelector;
use wire::psp::{PspSpi, PspVersion};

use super::issuer::{Issued, Issuer};
use super::message::{Code, Grant, Message, Mode, TrafficKey, VERSIONS, Want};

#[cfg(test)]
mod tests;

/// A control connection, by a number that is never used again.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Link(pub(crate) u64);

/// Control connections of one peer at a time: one of each end, and their successors while the old
/// ones are closed.
const MAX_LINKS: usize = 4;
/// Limit of inbound SPIs of one child: those of two rotations, and those requested because of
/// packet or time limits.
const MAX_RECEIVING: usize = 8;
/// SPIs with which was sent, remembered so that none is used with two counters.
const MAX_USED: usize = 64;
/// Time for the first message, and for an answer to a question about being there.
const ANSWER: Duration = Duration::from_secs(10);
/// Time between asking for a key and asking again.
const ASK_AGAIN: Duration = Duration::from_secs(15);
/// After [`Code::LATER`].
const ASK_LATER: Duration = Duration::from_secs(3);
/// After any other refusal: the administrator must change something.
const ASK_REFUSED: Duration = Duration::from_secs(60);
/// Least time between two SPIs for one child: a peer cannot spend them all.
const LEAST_BETWEEN: Duration = Duration::from_secs(1);
/// First and longest wait before the peer is tried again.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A sender should stop this long before the limit, or an eighth of the lifetime if that is less.
const MARGIN: Duration = Duration::from_secs(2);
/// Life of an association of the short form, which names no deadline: receivers nominally rotate
/// once a day.
const SHORT_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Events that wait to be fetched.
const MAX_EVENTS: usize = 64;

/// Agreed parameters of one pair of associations.
#[derive(Clone, Debug)]
pub(crate) struct ChildSpec {
    /// Mode.
    pub(crate) mode: Mode,
    /// Versions, the best first.
    pub(crate) versions: Vec<u8>,
    /// Traffic selectors of this side.
    pub(crate) local: Vec<TrafficSelector>,
    /// Traffic selectors of the peer's side.
    pub(crate) remote: Vec<TrafficSelector>,
    /// Largest crypt offset that is accepted, in bytes.
    pub(crate) max_crypt_offset: u8,
    /// Replays are looked for.
    pub(crate) window: bool,
    /// Time between new keys; zero leaves it to the receiver.
    pub(crate) rekey: Duration,
}

/// Settings common to all children of a peer.
#[derive(Clone, Debug)]
pub(crate) struct PeerSpec {
    /// Drawn at the start of this process.
    pub(crate) boot: u64,
    /// UDP port to which the peer shall send.
    pub(crate) port: u16,
    /// This end may connect: the peer has an address.
    pub(crate) dials: bool,
    /// Idle time before a liveness check; zero disables it.
    pub(crate) dpd_delay: Duration,
    /// Tries before the peer was reached once; 0 is without end.
    pub(crate) tries: u32,
    /// For the spreading of times; not a secret.
    pub(crate) chance: u64,
    /// Children.
    pub(crate) children: Vec<ChildSpec>,
}

/// Actions, in order.
#[derive(Debug)]
pub(crate) enum Action {
    /// Open a control connection.
    Connect,
    /// Send a message; what was installed before must be visible to packets first.
    Send(Link, Message),
    /// Close a control connection; the text is for this end.
    Close(Link, &'static str),
    /// Receive under an SPI besides those there are, looking for replays or not.
    InstallRx(usize, Issued, bool),
    /// Remove an inbound SPI.
    RemoveRx(usize, PspSpi),
    /// Send with this instead of what there is.
    InstallTx(usize, Grant),
    /// Remove the outbound association.
    RemoveTx(usize),
    /// Something to tell.
    Event(Event),
}

/// Something to tell.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    /// Both ends agree on how to speak.
    Reached,
    /// The control connection is gone; associations continue until their deadlines.
    Lost(String),
    /// The peer restarted: the agreed associations are lost.
    Restarted,
    /// Packets of a child go out with a new SPI.
    Sending(usize, PspSpi),
    /// The peer uses the SPI that it was given.
    Receiving(usize, PspSpi),
    /// Nothing can be sent any more: the deadline has passed.
    Expired(usize),
    /// The peer does not give a key.
    Refused(usize, String),
    /// The peer requested a child that does not exist.
    Asked(String),
    /// The peer closes the connection.
    Fault(String),
    /// No further attempts.
    GivenUp(u32),
}

/// A control connection.
struct Control {
    link: Link,
    initiated: bool,
    /// Time of establishment.
    since: Instant,
    /// Deadline of the first message; afterwards the time of the last input.
    last_received: Instant,
    /// Boot number of the peer, after its first message.
    boot: Option<u64>,
    /// Since when an answer is due.
    pinged: Option<Instant>,
}

/// State of the outbound association.
struct Sending {
    spi: PspSpi,
    version: u8,
    since: Instant,
    until: Instant,
    rekey_at: Option<Instant>,
}

/// State of the inbound SPIs.
struct Receiving {
    issued: Issued,
    used: bool,
}

struct Child {
    spec: ChildSpec,
    /// Keys are wanted.
    wanted: bool,
    sending: Option<Sending>,
    /// The next grant shall be a new one.
    renew: bool,
    /// Time of the next request; `None` if no request is due.
    ask_at: Option<Instant>,
    /// Request of the peer; its `have` is the last SPI that it asked to keep.
    want: Option<Want>,
    receiving: VecDeque<Receiving>,
    issued_at: Option<Instant>,
    fault: Option<String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Dial {
    /// There is nothing to do.
    Idle,
    /// The peer is tried at that time.
    At(Instant),
    /// It is being tried.
    Trying,
}

/// State of a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    /// There is nothing to agree.
    Idle,
    /// It is tried, or awaited.
    Waiting,
    /// There is a control connection.
    Reached,
}

/// One association for a listing.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) spi: PspSpi,
    pub(crate) version: u8,
    pub(crate) until: Instant,
    /// True if the sender has confirmed its use; always true for outbound.
    pub(crate) used: bool,
}

/// A peer.
pub(crate) struct Peer {
    spec: PeerSpec,
    children: Vec<Child>,
    controls: Vec<Control>,
    dial: Dial,
    /// Attempts without success in a row, and whether there ever was one.
    failures: u32,
    reached: bool,
    peer_boot: Option<u64>,
    used: VecDeque<PspSpi>,
    out: VecDeque<Action>,
    events: usize,
}

impl Peer {
    /// A peer of which nothing is known yet.
    pub(crate) fn new(spec: PeerSpec) -> Self {
        let child = |spec: &ChildSpec| Child {
            spec: spec.clone(),
            wanted: false,
            sending: None,
            renew: false,
            ask_at: None,
            want: None,
            receiving: VecDeque::new(),
            issued_at: None,
            fault: None,
        };
        Self {
            children: spec.children.iter().map(child).collect(),
            controls: Vec::new(),
            dial: Dial::Idle,
            failures: 0,
            reached: false,
            peer_boot: None,
            used: VecDeque::new(),
            out: VecDeque::new(),
            events: 0,
            spec,
        }
    }

    /// Next action.
    pub(crate) fn poll(&mut self) -> Option<Action> {
        let action = self.out.pop_front();
        if matches!(action, Some(Action::Event(_))) {
            self.events -= 1;
        }
        action
    }

    /// Wants keys for a child from now on.
    pub(crate) fn want(&mut self, now: Instant, child: usize) {
        let Some(there) = self.children.get_mut(child) else { return };
        if there.wanted && there.sending.is_some() {
            return;
        }
        (there.wanted, there.ask_at) = (true, Some(now));
        self.failures = 0;
        if self.current().is_none() && self.dial != Dial::Trying && self.spec.dials {
            self.dial = Dial::At(now);
        }
        self.ask(now);
    }

    /// Ends a child in both directions and notifies the peer.
    pub(crate) fn end(&mut self, child: usize) {
        self.end_because(child, Code::ENDED);
    }

    /// Ends a child that another one replaces: the peer keeps requesting keys for it.
    pub(crate) fn end_for_another(&mut self, child: usize) {
        self.end_because(child, Code::LATER);
    }

    fn end_because(&mut self, child: usize, code: Code) {
        let link = self.current();
        let Some(there) = self.children.get_mut(child) else { return };
        (there.wanted, there.ask_at) = (false, None);
        let (sending, want) = (there.sending.take(), there.want.take());
        let receiving = std::mem::take(&mut there.receiving);
        if let Some(link) = link {
            if sending.is_some() {
                self.out.push_back(Action::Send(link, Message::Release { id: id(child) }));
            }
            if let Some(want) = want {
                self.out.push_back(refuse(link, want.id, code, String::new()));
            }
        }
        if sending.is_some() {
            self.out.push_back(Action::RemoveTx(child));
        }
        self.out.extend(receiving.into_iter().map(|one| Action::RemoveRx(child, one.issued.spi)));
        if self.children.iter().all(|child| !child.wanted) {
            self.dial = Dial::Idle;
        }
    }

    /// Other settings, with the same children, modes, versions and selectors. Associations continue
    /// until there are new keys.
    pub(crate) fn update(&mut self, dpd_delay: Duration, tries: u32, children: Vec<ChildSpec>) {
        (self.spec.dpd_delay, self.spec.tries) = (dpd_delay, tries);
        for (child, spec) in self.children.iter_mut().zip(children) {
            child.spec = spec;
        }
    }

    /// More packets went out than one key is for.
    pub(crate) fn worn(&mut self, now: Instant, child: usize) {
        let Some(there) = self.children.get_mut(child) else { return };
        if there.sending.is_some() && !there.renew {
            (there.renew, there.ask_at) = (true, Some(now));
            self.ask(now);
        }
    }

    /// Handles a new authenticated control connection.
    pub(crate) fn connected(&mut self, now: Instant, link: Link, initiated: bool) {
        if initiated {
            self.dial = Dial::Idle;
        }
        if self.controls.len() >= MAX_LINKS {
            let fault = Message::Fault { code: Code::LIMIT, text: "limit of control connections reached".into() };
            self.out.push_back(Action::Send(link, fault));
            self.out.push_back(Action::Close(link, "limit of control connections reached"));
            return;
        }
        self.controls.push(Control { link, initiated, since: now, last_received: now, boot: None, pinged: None });
        let (min, max) = VERSIONS;
        self.out.push_back(Action::Send(link, Message::Hello { min, max, boot: self.spec.boot }));
    }

    /// A control connection is gone, or an attempt to make one has failed (`None`).
    pub(crate) fn closed(&mut self, now: Instant, link: Option<Link>, why: &str) {
        let before = self.current();
        if let Some(link) = link {
            let Some(at) = self.controls.iter().position(|control| control.link == link) else { return };
            let gone = self.controls.remove(at);
            if gone.boot.is_none() {
                self.failures = self.failures.saturating_add(1);
                self.tell(Event::Lost(why.to_owned()));
            }
        } else {
            self.dial = Dial::Idle;
            self.failures = self.failures.saturating_add(1);
            self.tell(Event::Lost(why.to_owned()));
        }
        match (before, self.current()) {
            (Some(_), None) => self.tell(Event::Lost(why.to_owned())),
            (Some(old), Some(new)) if old != new => self.begin(now),
            _ => {}
        }
        self.redial(now);
    }

    /// Plans the next attempt, if one is wanted.
    fn redial(&mut self, now: Instant) {
        let wanted = self.children.iter().any(|child| child.wanted);
        if !self.spec.dials || !wanted || !self.controls.is_empty() || self.dial != Dial::Idle {
            return;
        }
        if !self.reached && self.spec.tries != 0 && self.failures >= self.spec.tries {
            self.tell(Event::GivenUp(self.failures));
            self.children.iter_mut().for_each(|child| child.wanted &= child.sending.is_some());
            return;
        }
        let wait = RETRY.0.saturating_mul(1 << self.failures.min(10)).min(RETRY.1);
        self.dial = Dial::At(now + self.spread(wait));
    }

    /// A message came.
    pub(crate) fn received(&mut self, now: Instant, link: Link, message: Message, issuer: &mut Issuer) {
        let Some(control) = self.controls.iter_mut().find(|control| control.link == link) else { return };
        (control.last_received, control.pinged) = (now, None);
        let known = control.boot.is_some();
        match message {
            Message::Hello { min, max, boot } if !known => self.hello(now, link, (min, max), boot),
            Message::Fault { code, text } => {
                self.tell(Event::Fault(words(code, &text)));
                self.close(now, link, "the peer closed the control connection");
            }
            Message::Unknown(_) => {}
            _ if !known => self.fault(now, link, Code::MALFORMED, "the first message has to be Hello"),
            Message::Hello { .. } => self.fault(now, link, Code::MALFORMED, "Hello came twice"),
            Message::Ping => self.out.push_back(Action::Send(link, Message::Pong)),
            Message::Pong => {}
            Message::Want(want) => self.wanted(now, link, want, issuer),
            Message::Grant(grant) => self.granted(now, link, grant),
            Message::Using { id, spi } => self.using(id, spi),
            Message::Refuse { id, code, text } => self.refused(now, id, code, &text),
            Message::Release { id } => self.released(id),
        }
    }

    fn hello(&mut self, now: Instant, link: Link, (min, max): (u8, u8), boot: u64) {
        if max.min(VERSIONS.1) < min.max(VERSIONS.0) {
            let text = format!("this end speaks {} to {}, the other {min} to {max}", VERSIONS.0, VERSIONS.1);
            self.tell(Event::Fault(words(Code::NO_COMMON_FORMAT, &text)));
            return self.fault(now, link, Code::NO_COMMON_FORMAT, &text);
        }
        if boot == self.spec.boot {
            return self.fault(now, link, Code::NOT_ADMITTED, "this end reached itself");
        }
        let old = self.current();
        if self.peer_boot.is_some_and(|known| known != boot) {
            self.forget();
            self.tell(Event::Restarted);
        }
        self.peer_boot = Some(boot);
        if let Some(control) = self.controls.iter_mut().find(|control| control.link == link) {
            control.boot = Some(boot);
        }
        let keep = self.current();
        let others = |control: &&Control| control.boot.is_some() && Some(control.link) != keep;
        let surplus: Vec<Link> = self.controls.iter().filter(others).map(|control| control.link).collect();
        for link in surplus {
            self.controls.retain(|control| control.link != link);
            self.out.push_back(Action::Close(link, "another control connection takes its place"));
        }
        (self.failures, self.reached) = (0, true);
        if matches!(self.dial, Dial::At(_)) {
            self.dial = Dial::Idle;
        }
        if old.is_none() {
            self.tell(Event::Reached);
        }
        if keep != old {
            self.begin(now);
        }
    }

    /// The control connection that both ends use: of the peer's present start, made by the end with
    /// the smaller boot number, and the newest of those.
    fn current(&self) -> Option<Link> {
        let known = self.controls.iter().filter(|control| control.boot.is_some() && control.boot == self.peer_boot);
        let ours_first = self.peer_boot.is_some_and(|boot| self.spec.boot < boot);
        known.max_by_key(|control| (control.initiated == ours_first, control.link)).map(|control| control.link)
    }

    /// Requests all associations again over a new control connection.
    fn begin(&mut self, now: Instant) {
        for child in self.children.iter_mut().filter(|child| child.wanted || child.sending.is_some()) {
            child.ask_at = Some(now);
        }
        self.ask(now);
    }

    /// Everything that was agreed is void.
    fn forget(&mut self) {
        for (number, child) in self.children.iter_mut().enumerate() {
            if child.sending.take().is_some() {
                self.out.push_back(Action::RemoveTx(number));
            }
            let receiving = std::mem::take(&mut child.receiving);
            self.out.extend(receiving.into_iter().map(|one| Action::RemoveRx(number, one.issued.spi)));
            (child.want, child.renew, child.issued_at) = (None, false, None);
        }
    }

    /// Sends the requests that are due.
    fn ask(&mut self, now: Instant) {
        let Some(link) = self.current() else { return };
        for (number, child) in self.children.iter_mut().enumerate() {
            if child.ask_at.is_none_or(|at| at > now) {
                continue;
            }
            child.ask_at = Some(now + ASK_AGAIN);
            let have = child.sending.as_ref().filter(|_| !child.renew).map(|sending| sending.spi);
            let want = Want {
                id: id(number),
                mode: child.spec.mode,
                counts: true,
                versions: child.spec.versions.clone(),
                have,
                local: child.spec.local.clone(),
                remote: child.spec.remote.clone(),
            };
            self.out.push_back(Action::Send(link, Message::Want(want)));
        }
    }

    /// Handles a request for an SPI.
    fn wanted(&mut self, now: Instant, link: Link, want: Want, issuer: &mut Issuer) {
        let id = want.id;
        if let Err((code, text)) = self.admit(now, link, want, issuer) {
            if code != Code::LATER {
                self.tell(Event::Asked(words(code, &text)));
            }
            self.out.push_back(refuse(link, id, code, text));
        }
    }

    fn admit(&mut self, now: Instant, link: Link, want: Want, issuer: &mut Issuer) -> Result<(), (Code, String)> {
        let mirrored =
            |child: &&mut Child| same(&child.spec.local, &want.remote) && same(&child.spec.remote, &want.local);
        let found = self.children.iter_mut().enumerate().filter(|(_, child)| mirrored(child));
        let mut found: Vec<(usize, &mut Child)> = found.collect();
        if found.is_empty() {
            return Err((Code::NO_ASSOCIATION, show(&want)));
        }
        found.retain(|(_, child)| child.spec.mode == want.mode);
        let Some((number, child)) = found.into_iter().next() else {
            return Err((Code::OTHER_MODE, format!("{:?} mode was asked for", want.mode)));
        };
        let allowed = |version: &&u8| child.spec.versions.contains(version);
        let Some(version) = want.versions.iter().find(allowed) else {
            let text = format!("{:?} were asked for, {:?} are allowed", want.versions, child.spec.versions);
            return Err((Code::NO_COMMON_VERSION, text));
        };
        let kept = want.have.and_then(|spi| {
            let one = child.receiving.iter().find(|one| one.issued.spi == spi)?;
            (issuer.is_fresh(spi) && one.issued.version.get() == *version).then(|| one.issued.clone())
        });
        let issued = match kept {
            Some(issued) => issued,
            None => {
                if child.issued_at.is_some_and(|at| now < at + LEAST_BETWEEN) {
                    return Err((Code::LATER, String::new()));
                }
                let version = (*version).try_into().map_err(|_| (Code::NO_COMMON_VERSION, String::new()))?;
                let issued = issuer.issue(version).map_err(|spent| (Code::LATER, spent.to_string()))?;
                child.issued_at = Some(now);
                let window = child.spec.window && want.counts;
                self.receive(number, issued.clone(), window);
                issued
            }
        };
        let child = &mut self.children[number];
        let message = child.grant(&want, &issued, now, self.spec.port);
        self.out.push_back(Action::Send(link, message));
        child.want = Some(want);
        // The reverse direction needs a key as well.
        if !child.wanted {
            (child.wanted, child.ask_at) = (true, Some(now));
            self.ask(now);
        }
        Ok(())
    }

    /// The master keys have changed: every peer receives an SPI under the new one, and the old ones
    /// stay valid.
    pub(crate) fn rotated(&mut self, now: Instant, issuer: &mut Issuer) {
        let Some(link) = self.current() else { return };
        for number in 0..self.children.len() {
            self.children[number].issued_at = None;
            if let Some(want) = self.children[number].want.clone() {
                self.wanted(now, link, Want { have: None, ..want }, issuer);
            }
        }
    }

    /// New keys for a child in both directions, by command.
    pub(crate) fn renew(&mut self, now: Instant, child: usize, issuer: &mut Issuer) {
        self.worn(now, child);
        let Some((link, there)) = self.current().zip(self.children.get_mut(child)) else { return };
        there.issued_at = None;
        if let Some(want) = there.want.clone() {
            self.wanted(now, link, Want { have: None, ..want }, issuer);
        }
    }

    /// The peer gives an SPI and a key.
    fn granted(&mut self, now: Instant, link: Link, grant: Grant) {
        let Some((number, child)) = self.child(grant.id) else { return };
        if !child.wanted && child.sending.is_none() {
            let message = Message::Release { id: grant.id };
            return self.out.push_back(Action::Send(link, message));
        }
        let remaining = Duration::from_secs(grant.remaining_s.into());
        let until = now + remaining.saturating_sub(MARGIN.min(remaining / 8));
        if let Some(sending) = child.sending.as_mut().filter(|sending| sending.spi == grant.spi) {
            // The same association: its counter must continue, so nothing is installed.
            sending.until = sending.until.min(until);
            child.ask_at = sending.rekey_at;
            return;
        }
        if !child.spec.versions.contains(&grant.version.get()) {
            let text = format!("the peer gave version {}, which is not allowed", grant.version.get());
            return self.distrust(now, link, number, Code::NO_COMMON_VERSION, text);
        }
        if self.used.contains(&grant.spi) {
            let text = format!("the peer gave SPI {:#010x} a second time", grant.spi.get());
            return self.distrust(now, link, number, Code::SPI_AGAIN, text);
        }
        let spi = grant.spi;
        self.send_with(now, number, grant, until);
        self.out.push_back(Action::Send(link, Message::Using { id: id(number), spi }));
    }

    /// Handles an unusable grant of the peer.
    fn distrust(&mut self, now: Instant, link: Link, child: usize, code: Code, text: String) {
        self.children[child].ask_at = Some(now + ASK_REFUSED);
        self.children[child].fault = Some(text.clone());
        self.tell(Event::Refused(child, text.clone()));
        self.fault(now, link, code, &text);
    }

    fn using(&mut self, id: u32, spi: PspSpi) {
        let by_peer = |child: &&mut Child| child.want.as_ref().is_some_and(|want| want.id == id);
        let mut with_numbers = self.children.iter_mut().enumerate();
        let Some((number, child)) = with_numbers.find(|(_, child)| by_peer(child)) else { return };
        let Some(one) = child.receiving.iter_mut().find(|one| one.issued.spi == spi) else { return };
        if !std::mem::replace(&mut one.used, true) {
            self.tell(Event::Receiving(number, spi));
        }
    }

    fn refused(&mut self, now: Instant, id: u32, code: Code, text: &str) {
        let Some((number, child)) = self.child(id) else { return };
        let wait = if code == Code::LATER { ASK_LATER } else { ASK_REFUSED };
        child.ask_at = Some(now + wait);
        if code == Code::LATER {
            return;
        }
        let text = words(code, text);
        child.fault = Some(text.clone());
        if code == Code::ENDED {
            (child.wanted, child.ask_at) = (false, None);
            if child.sending.take().is_some() {
                self.out.push_back(Action::RemoveTx(number));
            }
        }
        self.tell(Event::Refused(number, text));
    }

    fn released(&mut self, id: u32) {
        let by_peer = |child: &Child| child.want.as_ref().is_some_and(|want| want.id == id);
        let Some(number) = self.children.iter().position(by_peer) else { return };
        let child = &mut self.children[number];
        child.want = None;
        let receiving = std::mem::take(&mut child.receiving);
        self.out.extend(receiving.into_iter().map(|one| Action::RemoveRx(number, one.issued.spi)));
    }

    /// The short form: gives an SPI of version 0 for the first child that allows one. The short
    /// form does not announce the use of IVs, so there is no anti-replay check.
    pub(crate) fn short_offer(&mut self, now: Instant, issuer: &mut Issuer) -> Result<Issued, (Code, String)> {
        let number = self.short_child().ok_or((Code::NO_ASSOCIATION, String::new()))?;
        let child = &mut self.children[number];
        if child.issued_at.is_some_and(|at| now < at + LEAST_BETWEEN) {
            return Err((Code::LATER, String::new()));
        }
        let issued = issuer.issue(PspVersion::AES_128_GCM).map_err(|spent| (Code::LATER, spent.to_string()))?;
        child.issued_at = Some(now);
        self.receive(number, issued.clone(), false);
        Ok(issued)
    }

    /// The short form: the parameters of the peer. It names no deadline, so a nominal one counts.
    pub(crate) fn short_granted(
        &mut self,
        now: Instant,
        spi: PspSpi,
        version: PspVersion,
        key: TrafficKey,
    ) -> Result<(), Code> {
        let number = self.short_child().ok_or(Code::NO_ASSOCIATION)?;
        if version != PspVersion::AES_128_GCM {
            return Err(Code::NO_COMMON_VERSION);
        }
        if self.used.contains(&spi) {
            return Err(Code::SPI_AGAIN);
        }
        let (remaining_s, port) = (SHORT_LIFE.as_secs() as u32, self.spec.port);
        let grant = Grant { id: 0, spi, version, max_crypt_offset: 0, port, remaining_s, window: false, key };
        self.send_with(now, number, grant, now + SHORT_LIFE);
        self.children[number].ask_at = None;
        Ok(())
    }

    /// The short form: the other end does not show that it has switched.
    pub(crate) fn short_failed(&mut self) {
        if let Some(number) = self.short_child() {
            self.end(number);
        }
    }

    fn short_child(&self) -> Option<usize> {
        let allows = |child: &Child| child.spec.versions.contains(&PspVersion::AES_128_GCM.get());
        self.children.iter().position(|child| child.spec.mode == Mode::Transport && allows(child))
    }

    /// Lets the peer send with an SPI besides those there are. The oldest of [`MAX_RECEIVING`] is
    /// removed first, so that the data plane never has more.
    fn receive(&mut self, number: usize, issued: Issued, window: bool) {
        let receiving = &mut self.children[number].receiving;
        if receiving.len() >= MAX_RECEIVING
            && let Some(oldest) = receiving.pop_front()
        {
            self.out.push_back(Action::RemoveRx(number, oldest.issued.spi));
        }
        receiving.push_back(Receiving { issued: issued.clone(), used: false });
        self.out.push_back(Action::InstallRx(number, issued, window));
    }

    /// Sends with the new key of the peer instead of the old one.
    fn send_with(&mut self, now: Instant, number: usize, grant: Grant, until: Instant) {
        if self.used.len() == MAX_USED {
            self.used.pop_front();
        }
        self.used.push_back(grant.spi);
        let rekey = self.children[number].spec.rekey;
        let rekey_at = (rekey > Duration::ZERO).then(|| now + rekey - self.spread_below(rekey / 10));
        let child = &mut self.children[number];
        let (spi, version) = (grant.spi, grant.version.get());
        child.sending = Some(Sending { spi, version, since: now, until, rekey_at });
        (child.ask_at, child.renew, child.fault) = (rekey_at, false, None);
        self.out.push_back(Action::InstallTx(number, grant));
        self.tell(Event::Sending(number, spi));
    }

    /// Time has passed. Harmless when early.
    pub(crate) fn timeout(&mut self, now: Instant) {
        for number in 0..self.children.len() {
            self.expire(now, number);
        }
        let overdue = |control: &Control| match (control.boot, control.pinged) {
            (None, _) => now >= control.last_received + ANSWER,
            (_, Some(since)) => now >= since + ANSWER,
            _ => false,
        };
        let silent: Vec<Link> =
            self.controls.iter().filter(|control| overdue(control)).map(|control| control.link).collect();
        for link in silent {
            self.close(now, link, "no response from the peer");
        }
        let dpd = self.spec.dpd_delay;
        for control in self.controls.iter_mut().filter(|control| control.boot.is_some() && control.pinged.is_none()) {
            if dpd > Duration::ZERO && now >= control.last_received + dpd {
                control.pinged = Some(now);
                self.out.push_back(Action::Send(control.link, Message::Ping));
            }
        }
        for child in &mut self.children {
            let due = child.sending.as_ref().and_then(|sending| sending.rekey_at).is_some_and(|at| now >= at);
            child.renew |= due;
        }
        self.ask(now);
        if matches!(self.dial, Dial::At(at) if now >= at) {
            self.dial = Dial::Trying;
            self.out.push_back(Action::Connect);
        }
    }

    fn expire(&mut self, now: Instant, number: usize) {
        let child = &mut self.children[number];
        while let Some(at) = child.receiving.iter().position(|one| now >= one.issued.until) {
            let Some(gone) = child.receiving.remove(at) else { break };
            self.out.push_back(Action::RemoveRx(number, gone.issued.spi));
        }
        if child.sending.as_ref().is_some_and(|sending| now >= sending.until) {
            (child.sending, child.renew) = (None, false);
            child.ask_at = child.wanted.then_some(now);
            child.fault = Some("the last key expired".into());
            self.out.push_back(Action::RemoveTx(number));
            self.tell(Event::Expired(number));
        }
    }

    /// Time of the next [`Peer::timeout`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let linked = self.current().is_some();
        let dpd = self.spec.dpd_delay;
        let controls = self.controls.iter().filter_map(|control| match (control.boot, control.pinged) {
            (None, _) => Some(control.last_received + ANSWER),
            (_, Some(since)) => Some(since + ANSWER),
            _ => (dpd > Duration::ZERO).then(|| control.last_received + dpd),
        });
        let children = self.children.iter().flat_map(|child| {
            let received = child.receiving.iter().map(|one| one.issued.until);
            let sent = child.sending.as_ref().map(|sending| sending.until);
            received.chain(sent).chain(child.ask_at.filter(|_| linked))
        });
        let dial = if let Dial::At(at) = self.dial { Some(at) } else { None };
        controls.chain(children).chain(dial).min()
    }

    /// Current state.
    pub(crate) fn state(&self) -> State {
        match self.current() {
            Some(_) => State::Reached,
            None if self.children.iter().any(|child| child.wanted) => State::Waiting,
            None => State::Idle,
        }
    }

    /// Time at which the current control connection was established.
    pub(crate) fn reached_since(&self) -> Option<Instant> {
        let link = self.current()?;
        self.controls.iter().find(|control| control.link == link).map(|control| control.since)
    }

    /// For a listing: outbound association, inbound association and last error of a child.
    pub(crate) fn lines(&self, child: usize) -> (Option<Line>, Vec<Line>, Option<&str>) {
        let Some(child) = self.children.get(child) else { return (None, Vec::new(), None) };
        let sending = child.sending.as_ref();
        let sends = |s: &Sending| Line { spi: s.spi, version: s.version, until: s.until, used: true };
        let receives = |one: &Receiving| Line {
            spi: one.issued.spi,
            version: one.issued.version.get(),
            until: one.issued.until,
            used: one.used,
        };
        (sending.map(sends), child.receiving.iter().map(receives).collect(), child.fault.as_deref())
    }

    /// Selectors of a child in words, local and remote.
    pub(crate) fn selectors(&self, child: usize) -> (Vec<String>, Vec<String>) {
        let words = |list: &[TrafficSelector]| list.iter().map(ToString::to_string).collect();
        self.children
            .get(child)
            .map_or_else(Default::default, |child| (words(&child.spec.local), words(&child.spec.remote)))
    }

    /// Since when a child sends with its SPI.
    pub(crate) fn sending_since(&self, child: usize) -> Option<Instant> {
        self.children.get(child)?.sending.as_ref().map(|sending| sending.since)
    }

    /// True when nothing is agreed with the peer any more, and nothing can come of it without a new
    /// control connection.
    pub(crate) fn is_spent(&self) -> bool {
        let spent = |child: &Child| child.sending.is_none() && child.receiving.is_empty();
        self.controls.is_empty() && self.children.iter().all(spent)
    }

    /// Children for which keys are wanted.
    pub(crate) fn wanted_children(&self) -> Vec<usize> {
        (0..self.children.len()).filter(|child| self.children[*child].wanted).collect()
    }

    fn child(&mut self, id: u32) -> Option<(usize, &mut Child)> {
        let number = id.checked_sub(1)? as usize;
        Some((number, self.children.get_mut(number)?))
    }

    fn tell(&mut self, event: Event) {
        if self.events < MAX_EVENTS {
            self.events += 1;
            self.out.push_back(Action::Event(event));
        }
    }

    fn fault(&mut self, now: Instant, link: Link, code: Code, text: &str) {
        self.out.push_back(Action::Send(link, Message::Fault { code, text: text.to_owned() }));
        self.close(now, link, code.meaning());
    }

    fn close(&mut self, now: Instant, link: Link, why: &'static str) {
        self.out.push_back(Action::Close(link, why));
        self.closed(now, Some(link), why);
    }

    /// Three quarters to five quarters of a time.
    fn spread(&mut self, time: Duration) -> Duration {
        time - time / 4 + self.spread_below(time / 2)
    }

    /// Some part of a time (splitmix64).
    fn spread_below(&mut self, time: Duration) -> Duration {
        self.spec.chance = self.spec.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.spec.chance;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        time.mul_f64(((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64)
    }
}

impl Child {
    fn grant(&self, want: &Want, issued: &Issued, now: Instant, port: u16) -> Message {
        let remaining = issued.until.saturating_duration_since(now).as_secs();
        Message::Grant(Grant {
            id: want.id,
            spi: issued.spi,
            version: issued.version,
            max_crypt_offset: self.spec.max_crypt_offset,
            port,
            remaining_s: remaining.try_into().unwrap_or(u32::MAX),
            window: self.spec.window && want.counts,
            key: issued.key.clone(),
        })
    }
}

/// The name of a child's association: its number, from 1.
fn id(child: usize) -> u32 {
    child as u32 + 1
}

fn refuse(link: Link, id: u32, code: Code, text: String) -> Action {
    Action::Send(link, Message::Refuse { id, code, text })
}

fn words(code: Code, text: &str) -> String {
    if text.is_empty() { code.meaning().to_owned() } else { format!("{}: {text}", code.meaning()) }
}

/// The same selectors, in any order.
fn same(a: &[TrafficSelector], b: &[TrafficSelector]) -> bool {
    a.len() == b.len() && a.iter().all(|one| b.contains(one)) && b.iter().all(|one| a.contains(one))
}

fn show(want: &Want) -> String {
    let side = |list: &[TrafficSelector]| {
        let first = list.first().map(|ts| format!("{}-{}", ts.addrs.start, ts.addrs.end)).unwrap_or_default();
        if list.len() > 1 { format!("{first} and {} more", list.len() - 1) } else { first }
    };
    format!("asked for {} on the asking side and {} on the other", side(&want.local), side(&want.remote))
}
