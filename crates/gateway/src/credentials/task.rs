//! The task that holds the secrets and answers the questions of IKE, on threads of its own: a slow
//! signature never keeps a packet waiting, and what talks to the network never sees a key.
//!
//! Questions wait in a bounded queue; answers are fetched. Made by [`Credentials::spawn`], ends when
//! it is dropped.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use ike::config::Auth;
use ike::output::{Answer, EapAnswer, Question, Refusal, Ticket};

use rustls::client::danger::ServerCertVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;

use super::eap::Conversations;
use super::eap::tls::certificates::{self, Verifier};
use super::store::Store;
use super::{sign, verify};
use crate::psp_keys::Identities;

/// Questions that wait; further ones are refused at once. A question is mostly certificates of a peer,
/// at most some 100 KiB: 400 MiB at the very worst, far less with cookies and fragment limits of IKE.
const MAX_WAITING: usize = 4096;

/// Tells the time since 1970; a test may tell another.
pub type WallClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A handle to the task.
pub struct Credentials {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    store: RwLock<Store>,
    conversations: Mutex<Conversations>,
    queue: Mutex<Queue>,
    work: Condvar,
    wake: Box<dyn Fn() + Send + Sync>,
    clock: WallClock,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Ticket, Question)>,
    running: HashSet<Ticket>,
    answers: VecDeque<(Ticket, Answer)>,
    over: bool,
}

/// A thread that panicked has broken no table: each is changed in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Credentials {
    /// Starts the task with one thread and the time of the system. `wake` is called whenever there is an answer,
    /// from another thread.
    pub fn spawn(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self::spawn_with(1, Arc::new(clock), wake)
    }

    /// Starts the task with several threads and a clock of its own.
    pub fn spawn_with(threads: usize, clock: WallClock, wake: impl Fn() + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared {
            store: RwLock::default(),
            conversations: Mutex::default(),
            queue: Mutex::default(),
            work: Condvar::new(),
            wake: Box::new(wake),
            clock,
        });
        let start = |number: usize| {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("credentials-{number}"));
            thread.spawn(move || shared.run()).expect("the system starts a thread")
        };
        let threads = (0..threads.max(1)).map(start).collect();
        Self { shared, threads }
    }

    /// Asks. The answer comes in time; when too many questions wait, it is a refusal at once.
    pub fn ask(&self, ticket: Ticket, question: Question) {
        let mut queue = lock(&self.shared.queue);
        if queue.waiting.len() < MAX_WAITING {
            queue.waiting.push_back((ticket, question));
            drop(queue);
            self.shared.work.notify_one();
            return;
        }
        queue.answers.push_back((ticket, refusal(&question, "too many questions wait; try again later")));
        drop(queue);
        (self.shared.wake)();
    }

    /// The answers that there are.
    pub fn answers(&self) -> impl Iterator<Item = (Ticket, Answer)> + use<> {
        std::mem::take(&mut lock(&self.shared.queue).answers).into_iter()
    }

    /// The answer is not wanted any more; none comes after this.
    pub fn forget(&self, ticket: Ticket) {
        let mut queue = lock(&self.shared.queue);
        queue.waiting.retain(|(there, _)| *there != ticket);
        queue.answers.retain(|(there, _)| *there != ticket);
        queue.running.remove(&ticket);
    }

    /// Certificates and trust for the key service of PSP; they are those of the moment of each handshake.
    pub(crate) fn identities(&self) -> Arc<dyn Identities> {
        Arc::new(OfStore(Arc::clone(&self.shared)))
    }

    /// Changes or lists what the store holds. Questions wait until `change` returns, so that a set of
    /// credentials is exchanged in one step.
    pub fn with_store<R>(&self, change: impl FnOnce(&mut Store) -> R) -> R {
        change(&mut self.shared.store.write().unwrap_or_else(PoisonError::into_inner))
    }
}

struct OfStore(Arc<Shared>);

impl OfStore {
    fn with<R>(&self, ask: impl FnOnce(&Store, Duration) -> R) -> R {
        ask(&self.0.store.read().unwrap_or_else(PoisonError::into_inner), (self.0.clock)())
    }

    fn verifier(&self, remote: &Auth) -> Arc<Verifier> {
        self.with(|store, now| Arc::new(Verifier::new(store, remote.clone(), now).only(remote.id.clone())))
    }
}

impl Identities for OfStore {
    fn own(&self, local: &Auth) -> Result<Arc<CertifiedKey>, String> {
        self.with(|store, now| certificates::own(store, Some(local), now).map(|own| own.0))
    }

    fn clients(&self, remote: &Auth) -> Result<Arc<dyn ClientCertVerifier>, String> {
        Ok(self.verifier(remote))
    }

    fn servers(&self, remote: &Auth) -> Result<Arc<dyn ServerCertVerifier>, String> {
        Ok(self.verifier(remote))
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        lock(&self.shared.queue).over = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        while let Some((ticket, question)) = self.next() {
            let answer = self.answer(&question);
            let mut queue = lock(&self.queue);
            if queue.running.remove(&ticket) {
                queue.answers.push_back((ticket, answer));
                drop(queue);
                (self.wake)();
            }
        }
    }

    fn next(&self) -> Option<(Ticket, Question)> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.over {
                return None;
            }
            if let Some((ticket, question)) = queue.waiting.pop_front() {
                queue.running.insert(ticket);
                return Some((ticket, question));
            }
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn answer(&self, question: &Question) -> Answer {
        let now = (self.clock)();
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        match question {
            Question::Sign(request) => Answer::Signed(sign::sign(&store, request, now)),
            Question::Verify(request) => Answer::Verified(verify::verify(&store, request, now)),
            Question::Eap(step) => Answer::Eap(lock(&self.conversations).step(&store, step, now)),
            Question::Ppk(id) => Answer::Ppk(sign::ppk(&store, id)),
            Question::SharedKeyV1(query) => Answer::SharedKeyV1(sign::skeyid(&store, query)),
            Question::TrustedAuthorities(connection) => {
                Answer::TrustedAuthorities(verify::trusted_authorities(&store, connection))
            }
        }
    }
}

/// A refusal of the kind that the question wants.
fn refusal(question: &Question, why: &str) -> Answer {
    let refusal = Refusal(why.to_owned());
    match question {
        Question::Sign(_) => Answer::Signed(Err(refusal)),
        Question::Verify(_) => Answer::Verified(Err(refusal)),
        Question::Eap(_) => Answer::Eap(EapAnswer::Failure(Vec::new(), refusal)),
        Question::Ppk(_) => Answer::Ppk(None),
        Question::SharedKeyV1(_) => Answer::SharedKeyV1(Err(refusal)),
        Question::TrustedAuthorities(_) => Answer::TrustedAuthorities(Vec::new()),
    }
}
