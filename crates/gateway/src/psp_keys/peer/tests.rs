use super::*;
use crate::psp_keys::issuer::Seed;
use zeroize::Zeroizing;

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

fn child(local: &str, remote: &str) -> ChildSpec {
    ChildSpec {
        mode: Mode::Tunnel,
        versions: vec![1, 0],
        local: vec![local.parse().unwrap()],
        remote: vec![remote.parse().unwrap()],
        max_crypt_offset: 0,
        window: true,
        rekey: Duration::ZERO,
    }
}

fn spec(boot: u64, child: ChildSpec) -> PeerSpec {
    PeerSpec {
        boot,
        port: 1000,
        dials: true,
        dpd_delay: Duration::from_secs(30),
        tries: 0,
        chance: boot,
        children: vec![child],
    }
}

/// One end with its packet side: what it receives with and sends with.
struct End {
    peer: Peer,
    issuer: Issuer,
    seeds: u8,
    receives: Vec<PspSpi>,
    sends: Option<PspSpi>,
    /// Every SPI that was ever sent with.
    sent: Vec<PspSpi>,
    events: Vec<Event>,
    /// True if it requested a control connection.
    dials: bool,
}

fn seed(byte: u8) -> Seed {
    Seed { key: Zeroizing::new([byte; 32]), start: u32::from(byte) << 8 }
}

impl End {
    fn new(now: Instant, seeds: u8, spec: PeerSpec) -> Self {
        let issuer = Issuer::new(now, HOUR, &seed(seeds));
        let (receives, sends, sent, events) = (Vec::new(), None, Vec::new(), Vec::new());
        Self { peer: Peer::new(spec), issuer, seeds, receives, sends, sent, events, dials: false }
    }

    fn rotate(&mut self, now: Instant) {
        self.seeds = self.seeds.wrapping_add(50);
        self.peer.timeout(now);
        self.issuer.rotate(now, &seed(self.seeds));
        self.peer.rotated(now, &mut self.issuer);
    }
}

/// Two ends, and control connections with a number on both sides.
struct World {
    now: Instant,
    ends: [End; 2],
    next: u64,
    /// Open connections, the initiator of each, and whether messages get through.
    links: Vec<(Link, usize)>,
    reachable: bool,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let a = End::new(now, 1, spec(10, child("10.1.0.0/16", "10.2.0.0/16")));
        let b = End::new(now, 101, spec(20, child("10.2.0.0/16", "10.1.0.0/16")));
        Self { now, ends: [a, b], next: 1, links: Vec::new(), reachable: true }
    }

    /// Carries everything out until there is nothing to do.
    fn settle(&mut self) {
        let mut budget = 10_000;
        loop {
            let mut idle = true;
            for side in 0..2 {
                while let Some(action) = self.ends[side].peer.poll() {
                    idle = false;
                    budget -= 1;
                    assert!(budget > 0, "the ends do not come to rest");
                    self.carry_out(side, action);
                }
            }
            for side in 0..2 {
                if std::mem::take(&mut self.ends[side].dials) {
                    idle = false;
                    self.connect(side);
                }
            }
            if idle {
                return;
            }
        }
    }

    fn connect(&mut self, side: usize) {
        if !self.reachable {
            return self.ends[side].peer.closed(self.now, None, "no route");
        }
        let link = Link(self.next);
        self.next += 1;
        self.links.push((link, side));
        self.ends[side].peer.connected(self.now, link, true);
        self.ends[1 - side].peer.connected(self.now, link, false);
    }

    fn carry_out(&mut self, side: usize, action: Action) {
        let now = self.now;
        let [first, second] = &mut self.ends;
        let (end, other) = if side == 0 { (first, second) } else { (second, first) };
        match action {
            Action::Connect => end.dials = true,
            Action::Send(link, message) => {
                if self.reachable && self.links.iter().any(|(there, _)| *there == link) {
                    // A key must be installed before it is announced.
                    if let Message::Grant(grant) = &message {
                        assert!(end.receives.contains(&grant.spi), "announced before it is received");
                    }
                    let message = Message::parse(&message.emit()).unwrap();
                    other.peer.received(now, link, message, &mut other.issuer);
                }
            }
            Action::Close(link, _) => {
                self.links.retain(|(there, _)| *there != link);
                other.peer.closed(now, Some(link), "closed");
            }
            Action::InstallRx(_, issued, _) => {
                end.receives.push(issued.spi);
                assert!(end.receives.len() <= MAX_RECEIVING, "more than the limit, if only until the next action");
            }
            Action::RemoveRx(_, spi) => end.receives.retain(|there| *there != spi),
            Action::InstallTx(_, grant) => {
                assert!(!end.sent.contains(&grant.spi), "a counter would start anew under the same key");
                end.sent.push(grant.spi);
                end.sends = Some(grant.spi);
            }
            Action::RemoveTx(_) => end.sends = None,
            Action::Event(event) => end.events.push(event),
        }
    }

    fn cut(&mut self) {
        for (link, _) in std::mem::take(&mut self.links) {
            for end in &mut self.ends {
                end.peer.closed(self.now, Some(link), "cut");
            }
        }
    }

    /// Lets time pass; both ends are woken when they ask for it and master keys rotate when they
    /// are due.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.settle();
            let due =
                self.ends.iter().flat_map(|end| [end.peer.deadline(), Some(end.issuer.rotates_at())]).flatten().min();
            let Some(at) = due.filter(|at| *at <= until) else { break };
            self.now = at.max(self.now);
            for end in &mut self.ends {
                if self.now >= end.issuer.rotates_at() {
                    end.rotate(self.now);
                }
                end.peer.timeout(self.now);
            }
            self.settle();
            self.check();
        }
        self.now = until;
        self.ends.iter_mut().for_each(|end| end.peer.timeout(until));
        self.settle();
        self.check();
    }

    /// Whatever is sent is received.
    fn check(&self) {
        for side in 0..2 {
            if let Some(spi) = self.ends[side].sends {
                assert!(self.ends[1 - side].receives.contains(&spi), "end {side} sends into nothing");
            }
        }
    }

    fn up(&self) -> bool {
        self.ends.iter().all(|end| end.sends.is_some())
    }

    fn saw(&self, side: usize, wanted: impl Fn(&Event) -> bool) -> bool {
        self.ends[side].events.iter().any(wanted)
    }
}

#[test]
fn one_end_asks_and_both_directions_come_up() {
    let mut world = World::new();
    world.ends[0].peer.want(world.now, 0);
    world.pass(MINUTE);
    assert!(world.up());
    assert!(world.saw(0, |event| matches!(event, Event::Receiving(0, _))));
    let (sending, receiving, fault) = world.ends[0].peer.lines(0);
    assert_eq!((sending.unwrap().version, receiving.len(), fault), (1, 1, None));
}

#[test]
fn rotation_is_without_a_gap_for_days() {
    let mut world = World::new();
    world.ends[0].peer.want(world.now, 0);
    world.pass(MINUTE);
    for _ in 0..100 {
        world.pass(HOUR / 2);
        assert!(world.up());
        assert!(world.ends.iter().all(|end| end.receives.len() <= 2), "old ones go with their master key");
    }
    assert!(world.ends[0].sent.len() >= 49);
}

#[test]
fn rotation_under_loss_of_the_control_connection() {
    let mut world = World::new();
    world.ends[0].peer.want(world.now, 0);
    world.pass(MINUTE);
    for minute in 0..600 {
        if minute % 7 == 3 {
            world.reachable = false;
            world.cut();
        }
        if minute % 7 == 5 {
            world.reachable = true;
        }
        world.pass(MINUTE);
        assert!(world.up(), "minute {minute}");
    }
}

#[test]
fn without_control_connection_it_goes_on_until_the_deadline_and_not_beyond() {
    let mut world = World::new();
    world.ends[0].peer.want(world.now, 0);
    world.pass(MINUTE);
    world.reachable = false;
    world.cut();
    world.pass(HOUR + HOUR / 2);
    assert!(world.up(), "between one and two periods");
    world.pass(HOUR);
    assert!(world.ends.iter().all(|end| end.sends.is_none()));
    assert!(world.ends.iter().all(|end| end.receives.is_empty()));
    assert!(world.saw(0, |event| *event == Event::Expired(0)));
    world.reachable = true;
    world.pass(2 * MINUTE);
    assert!(world.up(), "back-off is bounded");
}

#[test]
fn a_sender_never_sends_longer_than_the_receiver_receives() {
    let mut world = World::new();
    world.ends[0].peer.want(world.now, 0);
    world.pass(MINUTE);
    world.reachable = false;
    world.cut();
    // `check` runs at every deadline.
    world.pass(3 * HOUR);
}

#[test]
fn both_connect_at_once_and_keep_the_same_connection() {
    let mut world = World::new();
    world.connect(0);
    world.connect(1);
    world.ends[0].peer.want(world.now, 0);
    world.ends[1].peer.want(world.now, 0);
    world.pass(MINUTE);
    assert!(world.up());
    // The end with the smaller boot number is the first.
    assert_eq!(world.links.iter().map(|(_, by)| *by).collect::<Vec<_>>(), [0]);
    assert!(world.ends.iter().all(|end| end.peer.current() == Some(world.links[0].0)));
}

#[test]
fn a_restart_of_one_end_brings_new_keys() {
    let mut world = World::new();
    world.ends[0].peer.want(world.now, 0);
    world.pass(MINUTE);
    let old = world.ends[0].sends;
    let (mut fresh, now) = (spec(30, child("10.2.0.0/16", "10.1.0.0/16")), world.now);
    fresh.dials = true;
    world.ends[1] = End::new(now, 151, fresh);
    // The first end does not know that the connection is gone.
    world.ends[1].peer.want(now, 0);
    world.settle();
    world.ends[1].peer.timeout(now);
    world.settle();
    world.pass(MINUTE);
    assert!(world.up());
    assert_ne!(world.ends[0].sends, old);
    assert!(world.saw(0, |event| *event == Event::Restarted));
}

#[test]
fn a_used_up_key_is_renewed_before_the_switch() {
    let mut world = World::new();
    world.ends[0].peer.want(world.now, 0);
    world.pass(MINUTE);
    let before = world.ends[0].sends;
    world.ends[0].peer.worn(world.now, 0);
    world.pass(MINUTE);
    assert_ne!(world.ends[0].sends, before);
    assert_eq!(world.ends[1].receives.len(), 2, "what is under way still arrives");
}

#[test]
fn keys_are_renewed_by_time_of_the_sender() {
    let mut world = World::new();
    world.ends[0].peer.children[0].spec.rekey = 10 * MINUTE;
    world.ends[0].peer.want(world.now, 0);
    world.pass(51 * MINUTE);
    assert!((5..=7).contains(&world.ends[0].sent.len()), "{}", world.ends[0].sent.len());
    assert_eq!(world.ends[1].sent.len(), 1);
}

#[test]
fn receiving_spis_are_bounded_whatever_the_peer_asks_for() {
    let mut world = World::new();
    world.ends[0].peer.want(world.now, 0);
    world.pass(MINUTE);
    for _ in 0..100 {
        world.ends[0].peer.worn(world.now, 0);
        world.pass(ASK_LATER);
    }
    assert!(world.ends[1].receives.len() <= MAX_RECEIVING);
    let link = world.links[0].0;
    let issued = world.ends[1].receives.len();
    for _ in 0..50 {
        let want = world.ends[1].peer.children[0].want.clone().unwrap();
        let end = &mut world.ends[1];
        end.peer.received(world.now, link, Message::Want(Want { have: None, ..want }), &mut end.issuer);
    }
    let installs =
        std::iter::from_fn(|| world.ends[1].peer.poll()).filter(|action| matches!(action, Action::InstallRx(..)));
    assert!(installs.count() <= 1 && issued <= MAX_RECEIVING);
}

#[test]
fn what_does_not_fit_is_refused_with_a_reason_on_both_ends() {
    let reasons = |change: fn(&mut ChildSpec), code: Code| {
        let mut world = World::new();
        change(&mut world.ends[1].peer.children[0].spec);
        world.ends[0].peer.want(world.now, 0);
        world.pass(MINUTE);
        assert!(!world.up());
        let starts = |text: &String| text.starts_with(code.meaning());
        assert!(world.saw(0, |event| matches!(event, Event::Refused(0, text) if starts(text))));
        assert!(world.saw(1, |event| matches!(event, Event::Asked(text) if starts(text))));
        assert!(world.ends[0].peer.lines(0).2.is_some_and(|fault| fault.starts_with(code.meaning())));
    };
    reasons(|child| child.remote = vec!["10.1.0.0/24".parse().unwrap()], Code::NO_ASSOCIATION);
    reasons(|child| child.mode = Mode::Transport, Code::OTHER_MODE);
    reasons(|child| child.versions = vec![2], Code::NO_COMMON_VERSION);
}

#[test]
fn formats_without_common_version_part_with_a_reason() {
    let mut world = World::new();
    world.connect(0);
    let link = world.links[0].0;
    let end = &mut world.ends[0];
    while end.peer.poll().is_some() {}
    end.peer.received(world.now, link, Message::Hello { min: 2, max: 9, boot: 20 }, &mut end.issuer);
    let reported = std::iter::from_fn(|| end.peer.poll())
        .any(|action| matches!(action, Action::Send(_, Message::Fault { code: Code::NO_COMMON_FORMAT, .. })));
    assert!(reported);
}

#[test]
fn a_silent_peer_is_left_after_dpd_and_nothing_before_hello_counts() {
    let mut world = World::new();
    world.ends[0].peer.want(world.now, 0);
    world.pass(MINUTE);
    // Messages are lost silently.
    world.reachable = false;
    world.pass(30 * Duration::from_secs(1) + ANSWER);
    assert!(world.links.is_empty());
    assert!(world.up());
    world.reachable = true;
    world.connect(0);
    let link = world.links[0].0;
    let end = &mut world.ends[1];
    while end.peer.poll().is_some() {}
    end.peer.received(world.now, link, Message::Release { id: 1 }, &mut end.issuer);
    assert!(std::iter::from_fn(|| end.peer.poll()).any(|action| matches!(action, Action::Close(..))));
    assert!(!end.receives.is_empty());
}

#[test]
fn an_ended_child_ends_on_both_sides() {
    let mut world = World::new();
    world.ends[0].peer.want(world.now, 0);
    world.pass(MINUTE);
    world.ends[0].peer.end(0);
    world.pass(MINUTE);
    assert!(world.ends.iter().all(|end| end.sends.is_none() && end.receives.is_empty()));
    world.ends[1].peer.want(world.now, 0);
    world.pass(MINUTE);
    assert!(world.up());
}

#[test]
fn tries_are_counted_until_the_peer_was_reached_once() {
    let mut world = World::new();
    world.reachable = false;
    world.ends[0].peer.spec.tries = 3;
    world.ends[0].peer.want(world.now, 0);
    world.pass(HOUR);
    assert!(world.saw(0, |event| *event == Event::GivenUp(3)));
    world.reachable = true;
    world.pass(MINUTE);
    assert!(!world.up());
    world.ends[0].peer.want(world.now, 0);
    world.pass(MINUTE);
    assert!(world.up());
    world.reachable = false;
    world.cut();
    world.pass(HOUR / 2);
    world.reachable = true;
    world.pass(2 * MINUTE);
    assert!(!world.links.is_empty(), "a peer that was there once is tried without end");
}
