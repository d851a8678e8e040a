//! Names of hosts: those of connections that had no address when they were loaded, and gateways to which peers redirect.
//!
//! The resolver of the host may take its time, so a thread of its own asks it, one name after the other. A connection is
//! asked for until it has addresses, less and less often; a redirection once, since the peer is asked again anyway.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

use ike::config::Connection;

use crate::config::Named;

/// First and longest wait before a connection is asked for again.
const WAITS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));
/// Questions that wait for the thread.
const QUESTIONS_MAX: usize = 64;

enum Question {
    Connection(Box<Named>),
    Host(u64, String),
}

/// What was found out.
#[derive(Debug)]
pub(super) enum Found {
    /// A connection with its addresses.
    Connection(Box<Named>, Result<Arc<Connection>, String>),
    /// An address of the host of that question.
    Host(u64, Result<IpAddr, String>),
}

/// A connection without addresses.
struct Waiting {
    named: Named,
    /// When it is asked for; `None` while it is.
    at: Option<Instant>,
    wait: Duration,
}

/// Who asks for names.
pub(super) struct Names {
    questions: SyncSender<Question>,
    found: Receiver<Found>,
    waiting: Vec<Waiting>,
}

impl Names {
    /// Starts the thread. `ring` is called when it has found something out.
    ///
    /// # Errors
    /// The operating system has no thread left.
    pub(super) fn spawn(
        resolve: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + 'static,
        ring: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let (questions, asked) = sync_channel(QUESTIONS_MAX);
        let (answers, found) = channel();
        std::thread::Builder::new().name("weir-names".into()).spawn(move || answer(&asked, &answers, resolve, ring))?;
        Ok(Self { questions, found, waiting: Vec::new() })
    }

    /// These connections have no addresses, and no others. Those that waited already keep their time.
    pub(super) fn want(&mut self, now: Instant, connections: &[Named]) {
        self.waiting.retain(|waiting| connections.contains(&waiting.named));
        for named in connections {
            if !self.waiting.iter().any(|waiting| waiting.named == *named) {
                self.waiting.push(Waiting { named: named.clone(), at: Some(now + WAITS.0), wait: WAITS.0 });
            }
        }
    }

    /// Asks for a host.
    ///
    /// # Errors
    /// Too much is asked for already.
    pub(super) fn find(&mut self, number: u64, host: String) -> Result<(), String> {
        let asked = self.questions.try_send(Question::Host(number, host));
        asked.map_err(|_| "too many names are asked for already".to_owned())
    }

    /// Asks for what is due, and returns what was found out since the last call.
    pub(super) fn turn(&mut self, now: Instant) -> Vec<Found> {
        for waiting in &mut self.waiting {
            if waiting.at.is_none_or(|at| at > now) {
                continue;
            }
            match self.questions.try_send(Question::Connection(Box::new(waiting.named.clone()))) {
                Ok(()) => waiting.at = None,
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => waiting.at = Some(now + WAITS.0),
            }
        }
        let found: Vec<Found> = self.found.try_iter().collect();
        for found in &found {
            let Found::Connection(named, outcome) = found else { continue };
            let Some(at) = self.waiting.iter().position(|waiting| waiting.named == **named) else { continue };
            match outcome {
                Ok(_) => drop(self.waiting.swap_remove(at)),
                Err(why) => self.waiting[at].again(now, why),
            }
        }
        found
    }
}

impl Waiting {
    fn again(&mut self, now: Instant, why: &str) {
        self.at = Some(now + self.wait);
        tracing::info!(target: "cfg", "{why}; asked again in {} s", self.wait.as_secs());
        self.wait = (self.wait * 2).min(WAITS.1);
    }
}

/// The thread's life.
fn answer(
    asked: &Receiver<Question>,
    answers: &Sender<Found>,
    resolve: impl Fn(&str) -> io::Result<Vec<IpAddr>>,
    ring: impl Fn(),
) {
    for question in asked {
        let found = match question {
            Question::Connection(named) => {
                let outcome = named.resolve(&resolve);
                Found::Connection(named, outcome)
            }
            Question::Host(number, host) => {
                let first = resolve(&host).map(|addrs| addrs.first().copied());
                let outcome = first
                    .map_err(|why| format!("'{host}' has no address: {why}"))
                    .and_then(|first| first.ok_or_else(|| format!("'{host}' has no address")));
                Found::Host(number, outcome)
            }
        };
        if answers.send(found).is_err() {
            return;
        }
        ring();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::config::syntax::Section;
    use crate::config::{self, Gateway, Keyed, Outside};
    use crate::vici::message::Message;

    fn named(host: &str) -> Named {
        let mut message = Message::new();
        let mut connection = Message::new();
        connection.set_list("remote_addrs", [host]);
        for end in ["local", "remote"] {
            let mut auth = Message::new();
            auth.set("auth", "psk").set("id", end);
            connection.set_section(end, auth);
        }
        message.set_section("office", connection);
        let section = Section::of_message("load-conn", &message);
        match config::load_connection(&section, &Outside::nothing(), &Gateway::default()).unwrap().connection {
            Keyed::Ike(named) => *named,
            Keyed::Psp(_) => panic!("a connection of IKE"),
        }
    }

    /// The first thing that is found out from `now` on.
    fn next(names: &mut Names, now: Instant) -> Found {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(found) = names.turn(now).pop() {
                return found;
            }
            assert!(Instant::now() < end, "nothing was found out");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_connection_is_asked_for_until_it_has_addresses() {
        let known: Arc<Mutex<Vec<IpAddr>>> = Arc::default();
        let there = Arc::clone(&known);
        let mut names = Names::spawn(move |_| Ok(there.lock().unwrap().clone()), || ()).unwrap();
        let (start, office) = (Instant::now(), named("gw.example"));
        names.want(start, std::slice::from_ref(&office));
        assert!(names.turn(start).is_empty(), "it was asked for when it was loaded");
        let mut now = start;
        for wait_s in [5, 5, 10, 20, 40, 80, 160, 300, 300] {
            now += Duration::from_secs(wait_s);
            names.want(now, std::slice::from_ref(&office));
            assert!(matches!(next(&mut names, now), Found::Connection(_, Err(why)) if why.contains("gw.example")));
            assert!(names.turn(now + Duration::from_secs(1)).is_empty());
        }
        known.lock().unwrap().push([192, 0, 2, 7].into());
        match next(&mut names, now + WAITS.1) {
            Found::Connection(found, Ok(connection)) => {
                assert_eq!(*found, office);
                assert_eq!(connection.remote_addrs[0].start, IpAddr::from([192, 0, 2, 7]));
            }
            other => panic!("{other:?}"),
        }
        assert!(names.waiting.is_empty());
        // One that is not loaded any more is not asked for.
        names.want(now, &[named("a.example")]);
        names.want(now, &[]);
        assert!(names.waiting.is_empty());
    }

    #[test]
    fn a_host_is_asked_for_once() {
        let resolve = |name: &str| match name {
            "gw2.example" => Ok(vec![IpAddr::from([192, 0, 2, 2])]),
            "none.example" => Ok(Vec::new()),
            _ => Err(io::Error::other("no such host")),
        };
        let mut names = Names::spawn(resolve, || ()).unwrap();
        for (number, host, want) in [
            (1, "gw2.example", Ok([192, 0, 2, 2].into())),
            (2, "none.example", Err("'none.example' has no address".to_owned())),
            (3, "x", Err("'x' has no address: no such host".to_owned())),
        ] {
            names.find(number, host.into()).unwrap();
            match next(&mut names, Instant::now()) {
                Found::Host(answered, outcome) => assert_eq!((answered, outcome), (number, want)),
                other => panic!("{other:?}"),
            }
        }
    }
}
