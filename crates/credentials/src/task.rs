//! Credential task: holds the secrets and serves the credential requests of IKE on separate
//! threads. A slow signature never delays a packet, and the network threads never see a private
//! key.
//!
//! Questions wait in a bounded queue; answers are fetched. Made by [`Credentials::spawn`], ends
//! when it is dropped.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ike::config::Auth;
use ike::output::{CredentialError, CredentialRequest, CredentialResponse, EapResult, KeysV1, RequestId};

use rustls::client::danger::ServerCertVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;

use super::eap::Conversations;
use super::eap::tls::certificates::{self, Verifier};
use super::revocation::Fetch;
use super::revocation::fetched::{FetchCounts, FetchSettings, Fetched, Key};
use super::store::{Listed, Store};
use super::x509::Certificate;
use super::{sign, verify, xauth};
use crate::tls::Identities;

/// Questions that wait; further ones are refused at once. A question is mostly certificates of a
/// peer, at most some 100 KiB: 400 MiB at the very worst, far less with cookies and fragment limits
/// of IKE.
const MAX_WAITING: usize = 4096;

/// Questions that wait for CRLs or OCSP responses; further ones are answered from the loaded
/// credentials.
const MAX_PARKED: usize = 1024;
/// Time for which fetches may delay one answer.
const FETCH_WAIT: Duration = Duration::from_secs(10);

/// Delay of an answer while other requests wait, so that one wake-up announces several.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(1);

/// Certificates of peers that are kept for listings; the oldest goes for a new one. Some 2 KiB
/// each.
const MAX_RECEIVED: usize = 256;

/// Returns the time since 1970; tests replace it.
pub type WallClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A handle to the task.
pub struct Credentials {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    store: RwLock<Store>,
    fetched: Arc<Fetched>,
    /// Certificates with which peers authenticated, the latest last. They are listed and prove
    /// nothing.
    received: Mutex<VecDeque<Certificate>>,
    conversations: Mutex<Conversations>,
    queue: Mutex<Queue>,
    work: Condvar,
    wake: Box<dyn Fn() + Send + Sync>,
    clock: WallClock,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    /// Questions that wait for fetches.
    parked: Vec<(Work, Vec<Key>)>,
    running: HashSet<RequestId>,
    answers: VecDeque<(RequestId, CredentialResponse)>,
    /// Time of the first answer since the last wake-up.
    unannounced: Option<Instant>,
    over: bool,
}

/// A question, and until when fetches may delay its answer: set by the first one.
struct Work {
    request_id: RequestId,
    question: CredentialRequest,
    until: Option<Instant>,
}

/// A thread that panicked has broken no table: each is changed in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Credentials {
    /// Starts the task with one thread and the time of the system. `wake` is called whenever there
    /// is an answer, from another thread.
    pub fn spawn(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self::spawn_with(1, Arc::new(clock), wake)
    }

    /// Starts the task with several threads and a given clock.
    pub fn spawn_with(threads: usize, clock: WallClock, wake: impl Fn() + Send + Sync + 'static) -> Self {
        let shared = Self::shared(clock, wake);
        let start = |number: usize| {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("credentials-{number}"));
            thread.spawn(move || shared.run()).expect("the system starts a thread")
        };
        let threads = (0..threads.max(1)).map(start).collect();
        Self { shared, threads }
    }

    /// The task without a thread: [`Credentials::answers`] does the work. Nothing is fetched.
    pub fn immediate(clock: WallClock) -> Self {
        Self { shared: Self::shared(clock, || ()), threads: Vec::new() }
    }

    fn shared(clock: WallClock, wake: impl Fn() + Send + Sync + 'static) -> Arc<Shared> {
        let store = Store::default();
        Arc::new(Shared {
            fetched: Arc::clone(store.fetched()),
            store: RwLock::new(store),
            received: Mutex::default(),
            conversations: Mutex::default(),
            queue: Mutex::default(),
            work: Condvar::new(),
            wake: Box::new(wake),
            clock,
        })
    }

    /// Starts threads that fetch CRLs and OCSP responses. Without them, the loaded credentials must
    /// suffice.
    pub fn fetch(&self, settings: FetchSettings) {
        let weak = Arc::downgrade(&self.shared);
        let done = move || {
            if let Some(shared) = weak.upgrade() {
                shared.fetched_something();
            }
        };
        self.shared.fetched.start(settings, Arc::clone(&self.shared.clock), done);
    }

    /// Removes fetched data from memory and disk: CRLs, OCSP responses.
    pub fn flush_fetched(&self, crls: bool, responses: bool) {
        self.shared.fetched.flush(crls, responses);
    }

    /// Certificates with which peers authenticated over IKE, without those that are loaded.
    pub fn received(&self) -> Vec<Listed> {
        let received: Vec<Certificate> = lock(&self.shared.received).iter().cloned().collect();
        let store = self.shared.store.read().unwrap_or_else(PoisonError::into_inner);
        let foreign = received.iter().filter(|certificate| !store.has_certificate(certificate));
        foreign.map(|certificate| store.listed(certificate, if certificate.is_ca() { "CA" } else { "NONE" })).collect()
    }

    /// Forgets certificates with which peers authenticated.
    pub fn flush_received(&self) {
        lock(&self.shared.received).clear();
    }

    /// Numbers of fetches since the start.
    pub fn fetch_counts(&self) -> FetchCounts {
        self.shared.fetched.counts()
    }

    /// Submits a credential request. The response arrives asynchronously; if too many requests are
    /// pending, it is an immediate refusal.
    pub fn ask(&self, request_id: RequestId, question: CredentialRequest) {
        let mut queue = lock(&self.shared.queue);
        if queue.waiting.len() < MAX_WAITING {
            queue.waiting.push_back(Work { request_id, question, until: None });
            drop(queue);
            self.shared.work.notify_one();
            return;
        }
        queue
            .answers
            .push_back((request_id, refusal(&question, "too many credential requests are waiting; try again later")));
        drop(queue);
        (self.shared.wake)();
    }

    /// The answers that there are.
    pub fn answers(&self) -> impl Iterator<Item = (RequestId, CredentialResponse)> + use<> {
        if self.threads.is_empty() {
            self.shared.answer_waiting();
        }
        std::mem::take(&mut lock(&self.shared.queue).answers).into_iter()
    }

    /// The answer is not wanted any more; none comes after this.
    pub fn forget(&self, request_id: RequestId) {
        let mut queue = lock(&self.shared.queue);
        queue.waiting.retain(|work| work.request_id != request_id);
        queue.parked.retain(|(work, _)| work.request_id != request_id);
        queue.answers.retain(|(there, _)| *there != request_id);
        queue.running.remove(&request_id);
    }

    /// Certificates and trust for the key service of PSP; they are those of the moment of each
    /// handshake.
    pub fn identities(&self) -> Arc<dyn Identities> {
        Arc::new(OfStore(Arc::clone(&self.shared)))
    }

    /// Changes or lists the content of the store. Questions wait until `change` returns, so that a
    /// set of credentials is exchanged in one step.
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
    fn own(&self, local: &Auth) -> anyhow::Result<Arc<CertifiedKey>> {
        self.with(|store, now| certificates::own(store, Some(local), now).map(|own| own.0))
    }

    fn clients(&self, remote: &Auth) -> anyhow::Result<Arc<dyn ClientCertVerifier>> {
        Ok(self.verifier(remote))
    }

    fn servers(&self, remote: &Auth) -> anyhow::Result<Arc<dyn ServerCertVerifier>> {
        Ok(self.verifier(remote))
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        lock(&self.shared.queue).over = true;
        self.shared.fetched.stop();
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has already printed the reason.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        while let Some(work) = self.next() {
            let fetched = self.fetched.generation();
            let (answer, fetches) = self.answer(&work.question);
            if let Some((request_id, answer)) = self.settle(work, answer, fetches, fetched) {
                let mut queue = lock(&self.queue);
                if !queue.running.remove(&request_id) {
                    continue;
                }
                queue.answers.push_back((request_id, answer));
                queue.unannounced.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Answers the requests that wait, by what is known.
    fn answer_waiting(&self) {
        loop {
            let Some(work) = lock(&self.queue).waiting.pop_front() else { return };
            let (answer, _) = self.answer(&work.question);
            lock(&self.queue).answers.push_back((work.request_id, answer));
        }
    }

    /// Returns the response, unless the request is parked until a fetch completes, or is evaluated
    /// again because a fetch completed during the evaluation: its result may revoke a certificate
    /// that the response accepts. `fetched` is the generation of the cache before.
    fn settle(
        &self,
        mut work: Work,
        answer: CredentialResponse,
        fetches: Vec<Fetch>,
        fetched: u64,
    ) -> Option<(RequestId, CredentialResponse)> {
        let until = *work.until.get_or_insert_with(|| Instant::now() + FETCH_WAIT);
        if Instant::now() >= until {
            return Some((work.request_id, answer));
        }
        let keys = self.fetched.submit(fetches, (self.clock)());
        let repeats = matches!(work.question, CredentialRequest::Sign(_) | CredentialRequest::Verify(_));
        let again = keys.is_empty() && repeats && self.fetched.generation() != fetched;
        let mut queue = lock(&self.queue);
        if !again && (keys.is_empty() || queue.parked.len() >= MAX_PARKED) {
            return Some((work.request_id, answer));
        }
        if queue.running.remove(&work.request_id) {
            // A fetch may have ended since, and would wake no thread. So check with the queue
            // locked, as in `fetched_something`.
            match self.fetched.is_pending(&keys) {
                true => queue.parked.push((work, keys)),
                false => queue.waiting.push_back(work),
            }
            drop(queue);
            // Another thread may be waiting without a time limit.
            self.work.notify_all();
        }
        None
    }

    /// Evaluates requests again after their fetches have ended.
    fn fetched_something(&self) {
        let mut queue = lock(&self.queue);
        queue.unpark(|(_, keys)| !self.fetched.is_pending(keys));
        drop(queue);
        self.work.notify_all();
    }

    fn next(&self) -> Option<Work> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.over {
                return None;
            }
            let now = Instant::now();
            // A wake-up for each answer would interrupt this thread after every request, and cost
            // the control thread a turn for every answer.
            let is_due = |since: Instant| queue.waiting.is_empty() || now - since >= ANNOUNCE_AFTER;
            if queue.unannounced.is_some_and(is_due) {
                queue.unannounced = None;
                drop(queue);
                (self.wake)();
                queue = lock(&self.queue);
                continue;
            }
            queue.unpark(|(work, _)| work.until.is_some_and(|until| until <= now));
            if let Some(work) = queue.waiting.pop_front() {
                queue.running.insert(work.request_id);
                return Some(work);
            }
            let first = queue.parked.iter().filter_map(|(work, _)| work.until).min();
            queue = match first {
                Some(until) => {
                    let longest = until.saturating_duration_since(now);
                    self.work.wait_timeout(queue, longest).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.work.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Keeps the certificate of a peer that authenticated.
    fn receive(&self, certificate: Option<Certificate>) {
        let Some(certificate) = certificate else { return };
        let mut received = lock(&self.received);
        received.retain(|there| *there != certificate);
        if received.len() >= MAX_RECEIVED {
            received.pop_front();
        }
        received.push_back(certificate);
    }

    /// Returns the response from available data, and the URIs that should be fetched for a better
    /// one.
    fn answer(&self, question: &CredentialRequest) -> (CredentialResponse, Vec<Fetch>) {
        let now = (self.clock)();
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        let answer = match question {
            CredentialRequest::Sign(request) => {
                let mut signed = sign::sign(&store, request, now);
                let fetches = match &mut signed {
                    Ok(signed) => sign::add_ocsp(&store, request, signed, now),
                    Err(_) => Vec::new(),
                };
                return (CredentialResponse::Signed(signed), fetches);
            }
            CredentialRequest::Verify(request) => {
                let (verified, fetches, certificate) = verify::verify(&store, request, now);
                drop(store);
                // A certificate that proved the identity has an end; others of the same message
                // prove nothing.
                if verified.as_ref().is_ok_and(|verified| verified.valid_for.is_some()) {
                    self.receive(certificate);
                }
                return (CredentialResponse::Verified(verified), fetches);
            }
            CredentialRequest::Eap(step) => CredentialResponse::Eap(lock(&self.conversations).step(&store, step, now)),
            CredentialRequest::Ppk(id) => CredentialResponse::Ppk(sign::ppk(&store, id)),
            CredentialRequest::SharedKeyV1(query) => CredentialResponse::SharedKeyV1(sign::skeyid(&store, query)),
            CredentialRequest::TrustedAuthorities(connection) => {
                CredentialResponse::TrustedAuthorities(verify::trusted_authorities(&store, connection))
            }
            CredentialRequest::KeysV1(connection) => CredentialResponse::KeysV1(sign::keys_v1(&store, connection, now)),
            CredentialRequest::PasswordV1(user) => CredentialResponse::PasswordV1(xauth::password(&store, user)),
            CredentialRequest::XAuth(query) => CredentialResponse::XAuth(xauth::check(&store, query)),
        };
        (answer, Vec::new())
    }
}

impl Queue {
    /// Questions that fulfil `which` wait for a thread again.
    fn unpark(&mut self, which: impl Fn(&(Work, Vec<Key>)) -> bool) {
        let mut at = 0;
        while at < self.parked.len() {
            match which(&self.parked[at]) {
                true => self.waiting.push_back(self.parked.swap_remove(at).0),
                false => at += 1,
            }
        }
    }
}

/// Returns an error response of the type of the request.
fn refusal(question: &CredentialRequest, why: &str) -> CredentialResponse {
    let refusal = CredentialError(why.to_owned());
    match question {
        CredentialRequest::Sign(_) => CredentialResponse::Signed(Err(refusal)),
        CredentialRequest::Verify(_) => CredentialResponse::Verified(Err(refusal)),
        CredentialRequest::Eap(_) => CredentialResponse::Eap(EapResult::Failure(Vec::new(), refusal)),
        CredentialRequest::Ppk(_) => CredentialResponse::Ppk(None),
        CredentialRequest::SharedKeyV1(_) => CredentialResponse::SharedKeyV1(Err(refusal)),
        CredentialRequest::TrustedAuthorities(_) => CredentialResponse::TrustedAuthorities(Vec::new()),
        CredentialRequest::KeysV1(_) => CredentialResponse::KeysV1(KeysV1::default()),
        CredentialRequest::PasswordV1(_) => CredentialResponse::PasswordV1(Err(refusal)),
        CredentialRequest::XAuth(_) => CredentialResponse::XAuth(Err(refusal)),
    }
}
