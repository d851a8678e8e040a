//! CRLs and OCSP responses that were fetched, and the threads that fetch them.
//!
//! [`Fetched`] is made with the store and empty; [`start`](Fetched::start) gives it threads, after
//! the confinement. A fetched object should be kept only if a CA signed it. CRLs are refreshed
//! before their next update and are also kept in a folder, so that a restart needs no server; a
//! file is checked like an answer of a server. Threads end with the process.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};

use super::super::constraint::Constraints;
use super::super::pem;
use super::super::task::WallClock;
use super::super::x509::{Certificate, Crl, sha256};
use super::http::{self, Request};
use super::ocsp::{self, MAX_RESPONSE_BYTES, Response};
use super::{Fetch, FetchTarget, Source};

/// Fetches at the same time: a name server or server that hangs keeps the other threads free.
const THREADS: usize = 4;
/// Time for one fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(4);
/// Fetches that wait; further ones are left out.
const MAX_QUEUE: usize = 256;
/// URIs that are remembered as tried: 200 bytes each.
const MAX_ATTEMPTS: usize = 4096;
/// Time between two fetches of one URI.
const RETRY: Duration = Duration::from_secs(60);
/// Age at which a CRL that is in use is fetched again, whatever its next update is.
const MAX_AGE: Duration = Duration::from_secs(86_400);
/// Time after its last use for which a CRL is refreshed.
const IN_USE: Duration = Duration::from_secs(7 * 86_400);
/// Interval of the check for data to refresh.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// Bytes of a fetched CRL.
const MAX_CRL_BYTES: usize = 16 << 20;
/// Fetched CRLs: their number, and their bytes together.
const MAX_CRLS: usize = 128;
const MAX_CRLS_BYTES: usize = 64 << 20;
/// OCSP responses: at most 64 MiB.
const MAX_RESPONSES: usize = 1024;
/// Files in the folder.
const MAX_FILES: usize = MAX_CRLS;

/// Finds the addresses of a host; waits for the resolver.
#[derive(Clone)]
pub struct Resolve(pub ResolveName);

/// The function of [`Resolve`].
pub type ResolveName = Arc<dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync>;

#[cfg(test)]
impl Resolve {
    /// By the resolver of the host.
    pub(crate) fn by_host() -> Self {
        use std::net::ToSocketAddrs as _;
        Self(Arc::new(|host| Ok((host, 0).to_socket_addrs()?.map(|addr| addr.ip()).collect())))
    }
}

impl std::fmt::Debug for Resolve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resolve")
    }
}

/// Settings of the fetcher.
#[derive(Clone, Debug)]
pub struct FetchSettings {
    /// Folder for CRLs; `None`: they are not kept over a restart.
    pub folder: Option<PathBuf>,
    /// Mark of packets, so that they leave as those of IKE do.
    pub mark: Option<u32>,
    /// Finds the hosts of URIs.
    pub resolve: Resolve,
}

/// Numbers of fetches since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FetchCounts {
    /// CRLs that came, and those that did not.
    pub crl: (u64, u64),
    /// OCSP responses that came, and those that did not.
    pub ocsp: (u64, u64),
}

/// A fetch, to wait for its end.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(in super::super) struct Key {
    uri: String,
    /// SHA-256 of the certificate in the OCSP request.
    certificate: Option<[u8; 32]>,
}

impl Key {
    fn of(fetch: &Fetch) -> Self {
        let certificate = match &fetch.what {
            FetchTarget::Crl(_) => None,
            FetchTarget::Ocsp(certificate, _) => Some(certificate.fingerprint()),
        };
        Self { uri: fetch.uri.clone(), certificate }
    }
}

/// The cache.
#[derive(Default)]
pub(in super::super) struct Fetched {
    inner: Mutex<Inner>,
    work: Condvar,
}

#[derive(Default)]
struct Inner {
    started: bool,
    over: bool,
    queue: VecDeque<Fetch>,
    pending: HashSet<Key>,
    attempts: HashMap<Key, Attempt>,
    crls: HashMap<String, KeptCrl>,
    responses: HashMap<[u8; 32], KeptResponse>,
    sources: Vec<Source>,
    folder: Option<PathBuf>,
    counts: FetchCounts,
    /// Fetches that have ended.
    generation: u64,
    refresh_at: Option<Instant>,
}

struct Attempt {
    at: Duration,
    failures: u32,
}

struct KeptCrl {
    crl: Crl,
    fetch: Fetch,
    fetched: Duration,
    used: Duration,
}

impl KeptCrl {
    /// It should be fetched again: after three quarters of its time, after a day, and a file at
    /// every look.
    fn is_due(&self, now: Duration) -> bool {
        let start = self.crl.updates().0;
        let late = start + self.crl.until().saturating_sub(start) / 4 * 3;
        now >= late.min(self.fetched + MAX_AGE) || self.fetch.uri.starts_with("file://")
    }
}

struct KeptResponse {
    response: Response,
    certificate: Certificate,
    issuer: Certificate,
    used: Duration,
}

impl Fetched {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the threads. `done` is called from them after each fetch.
    pub(in super::super) fn start(
        self: &Arc<Self>,
        settings: FetchSettings,
        clock: WallClock,
        done: impl Fn() + Send + Sync + 'static,
    ) {
        self.lock().folder.clone_from(&settings.folder);
        let done = Arc::new(done);
        for number in 0..THREADS {
            let (fetched, settings, clock, done) =
                (Arc::clone(self), settings.clone(), Arc::clone(&clock), Arc::clone(&done));
            let thread = std::thread::Builder::new().name(format!("revocation-{number}"));
            let run = move || {
                while let Some(fetch) = fetched.next(&clock) {
                    fetched.carry_out(&fetch, &settings, &clock);
                    done();
                }
            };
            match thread.spawn(run) {
                Ok(_) => self.lock().started = true,
                Err(error) => tracing::error!(target: "cfg", "cannot start the thread that fetches CRLs: {error}"),
            }
        }
    }

    /// Ends the threads after their current fetch.
    pub(in super::super) fn stop(&self) {
        self.lock().over = true;
        self.work.notify_all();
    }

    /// The URIs of the configuration; their CRLs are fetched at once, and refreshed.
    pub(in super::super) fn set_sources(&self, sources: Vec<Source>) {
        let mut inner = self.lock();
        inner.sources = sources;
        inner.refresh_at = None;
        drop(inner);
        self.work.notify_all();
    }

    /// It is being fetched, or may be now.
    pub(super) fn may_fetch(&self, fetch: &Fetch, now: Duration) -> bool {
        self.lock().may_fetch(&Key::of(fetch), now)
    }

    /// Starts fetches unless they are already running; returns those to wait for.
    pub(in super::super) fn submit(&self, fetches: Vec<Fetch>, now: Duration) -> Vec<Key> {
        // Most requests need no fetch, and each wake-up costs a switch to every fetcher.
        if fetches.is_empty() {
            return Vec::new();
        }
        let mut inner = self.lock();
        let keys = fetches.into_iter().filter_map(|fetch| inner.submit(fetch, now)).collect();
        drop(inner);
        self.work.notify_all();
        keys
    }

    /// Number of fetches that have ended: earlier results may be out of date.
    pub(in super::super) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// One of these fetches has not ended.
    pub(in super::super) fn is_pending(&self, keys: &[Key]) -> bool {
        let inner = self.lock();
        keys.iter().any(|key| inner.pending.contains(key))
    }

    /// CRLs of an issuer.
    pub(super) fn crls_of(&self, issuer: &[u8], now: Duration) -> Vec<Crl> {
        let mut inner = self.lock();
        let of = inner.crls.values_mut().filter(|kept| kept.crl.issuer() == issuer);
        of.map(|kept| {
            kept.used = now;
            kept.crl.clone()
        })
        .collect()
    }

    /// OCSP responses about a certificate.
    pub(super) fn responses_of(&self, certificate: &Certificate, now: Duration) -> Option<Response> {
        let mut inner = self.lock();
        let kept = inner.responses.get_mut(&certificate.fingerprint())?;
        kept.used = now;
        Some(kept.response.clone())
    }

    /// Everything that was fetched, for listings.
    pub(in super::super) fn list(&self) -> (Vec<Crl>, Vec<Response>) {
        let inner = self.lock();
        let crls = inner.crls.values().map(|kept| kept.crl.clone()).collect();
        (crls, inner.responses.values().map(|kept| kept.response.clone()).collect())
    }

    /// Removes fetched data, so that it is fetched again on demand.
    pub(in super::super) fn flush(&self, crls: bool, responses: bool) {
        let mut inner = self.lock();
        if crls {
            inner.crls.clear();
            for file in inner.folder.as_deref().map(files).unwrap_or_default() {
                let _ = std::fs::remove_file(file.1);
            }
        }
        if responses {
            inner.responses.clear();
        }
        inner.attempts.retain(|key, _| if key.certificate.is_some() { !responses } else { !crls });
    }

    /// Fetches since the start.
    pub(in super::super) fn counts(&self) -> FetchCounts {
        self.lock().counts
    }

    fn next(&self, clock: &WallClock) -> Option<Fetch> {
        let mut inner = self.lock();
        loop {
            if inner.over {
                return None;
            }
            if inner.refresh_at.is_none_or(|at| at <= Instant::now()) {
                inner.refresh_at = Some(Instant::now() + REFRESH_EVERY);
                inner.refresh(clock());
            }
            if let Some(fetch) = inner.queue.pop_front() {
                return Some(fetch);
            }
            inner = self.work.wait_timeout(inner, REFRESH_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn carry_out(&self, fetch: &Fetch, settings: &FetchSettings, clock: &WallClock) {
        let outcome = match &fetch.what {
            FetchTarget::Crl(signers) => self.crl(fetch, signers, settings, clock),
            FetchTarget::Ocsp(certificate, issuer) => self.ocsp(fetch, (certificate, issuer), settings, clock),
        };
        let mut inner = self.lock();
        let key = Key::of(fetch);
        inner.pending.remove(&key);
        let is_crl = key.certificate.is_none();
        let counts = if is_crl { &mut inner.counts.crl } else { &mut inner.counts.ocsp };
        if outcome.is_ok() {
            counts.0 += 1
        } else {
            counts.1 += 1
        }
        let before = inner.attempts.get(&key).map_or(0, |attempt| attempt.failures);
        let failures = if outcome.is_ok() { 0 } else { before + 1 };
        inner.attempts.insert(key, Attempt { at: clock(), failures });
        inner.generation += 1;
        inner.bound();
        drop(inner);
        let what = if is_crl { "CRL" } else { "OCSP" };
        match outcome {
            Ok(()) if before > 0 => tracing::info!(target: "cfg", "{what}: {} is available again", fetch.uri),
            Ok(()) => tracing::debug!(target: "cfg", "{what}: {} fetched", fetch.uri),
            Err(why) if before == 0 => tracing::warn!(
                target: "cfg",
                "{what}: {} cannot be used: {why}; make the server answer, or load a CRL into x509crl", fetch.uri
            ),
            Err(why) => tracing::debug!(target: "cfg", "{what}: {} still cannot be used: {why}", fetch.uri),
        }
    }

    fn crl(
        &self,
        fetch: &Fetch,
        signers: &[Certificate],
        settings: &FetchSettings,
        clock: &WallClock,
    ) -> anyhow::Result<()> {
        let file =
            settings.folder.as_ref().filter(|_| fetch.uri.starts_with("http://")).map(|at| file_of(at, &fetch.uri));
        let empty = !self.lock().crls.contains_key(&fetch.uri);
        if let Some((crl, fetched)) = file.as_ref().filter(|_| empty).and_then(|file| saved(file, signers)) {
            let kept = KeptCrl { crl, fetch: fetch.clone(), fetched, used: clock() };
            let enough = !kept.is_due(clock());
            self.lock().keep(kept);
            if enough {
                return Ok(());
            }
        }
        let bytes = match fetch.uri.strip_prefix("file://") {
            Some(path) => read(Path::new(path))?,
            None => http::fetch(&Request {
                uri: &fetch.uri,
                named: fetch.named,
                body: None,
                limit: MAX_CRL_BYTES,
                deadline: Instant::now() + FETCH_TIMEOUT,
                mark: settings.mark,
                resolve: &settings.resolve,
            })?,
        };
        let crl = checked(&bytes, signers)?;
        let now = clock();
        let is_newest = self.lock().keep(KeptCrl { crl: crl.clone(), fetch: fetch.clone(), fetched: now, used: now });
        // HTTP does not authenticate: the answer may be an older list, replayed. In the file it
        // would make the next start accept what the newer list revokes.
        let is_saved = |file: &PathBuf| saved(file, signers).is_some_and(|(there, _)| there.is_newer_than(&crl));
        if let Some(file) = file.filter(|file| is_newest && !is_saved(file)) {
            save(&file, crl.der());
        }
        Ok(())
    }

    fn ocsp(
        &self,
        fetch: &Fetch,
        (certificate, issuer): (&Certificate, &Certificate),
        settings: &FetchSettings,
        clock: &WallClock,
    ) -> anyhow::Result<()> {
        let mut nonce = [0; ocsp::NONCE_BYTES];
        crypto::random(&mut nonce);
        let body = ocsp::request(certificate, issuer, &nonce).context("the key of the CA is malformed")?;
        let bytes = http::fetch(&Request {
            uri: &fetch.uri,
            named: fetch.named,
            body: Some(&body),
            limit: MAX_RESPONSE_BYTES,
            deadline: Instant::now() + FETCH_TIMEOUT,
            mark: settings.mark,
            resolve: &settings.resolve,
        })?;
        let (response, now) = (Response::from_der(&bytes)?, clock());
        if !response.repeats(&nonce) {
            bail!("the nonce of the response is not that of the request");
        }
        if response.signer(issuer, &Constraints::parse(&[]), now).is_none() {
            bail!("the response is signed neither by {issuer:?} nor by a responder that it authorised");
        }
        if response.is_unknown(certificate, issuer) {
            bail!("the status of {certificate:?} is unknown to the OCSP server");
        }
        if response.status(certificate, issuer, now).is_none() {
            bail!("the response is outdated or from the future; compare the clocks");
        }
        let kept = KeptResponse { response, certificate: certificate.clone(), issuer: issuer.clone(), used: now };
        self.lock().responses.insert(certificate.fingerprint(), kept);
        Ok(())
    }
}

impl Inner {
    fn may_fetch(&self, key: &Key, now: Duration) -> bool {
        let rested = || self.attempts.get(key).is_none_or(|attempt| now >= attempt.at + RETRY || now < attempt.at);
        self.started && (self.pending.contains(key) || rested() && self.queue.len() < MAX_QUEUE)
    }

    fn submit(&mut self, fetch: Fetch, now: Duration) -> Option<Key> {
        let key = Key::of(&fetch);
        if !self.may_fetch(&key, now) {
            return None;
        }
        if self.pending.insert(key.clone()) {
            self.queue.push_back(fetch);
        }
        Some(key)
    }

    /// Starts fetches of missing objects of the configuration and of those that expire soon.
    fn refresh(&mut self, now: Duration) {
        self.responses.retain(|_, kept| {
            let until = kept.response.until(&kept.certificate, &kept.issuer).unwrap_or_default();
            now <= until.max(kept.used + IN_USE)
        });
        let mut fetches: Vec<Fetch> = Vec::new();
        for source in &self.sources {
            let missing = source.crl_uris.iter().filter(|uri| !self.crls.contains_key(*uri));
            let supported = missing.filter(|uri| uri.starts_with("http://") || uri.starts_with("file://"));
            fetches.extend(supported.map(|uri| Fetch {
                uri: uri.clone(),
                named: true,
                what: FetchTarget::Crl(vec![source.authority.clone()]),
            }));
        }
        let due = self.crls.values().filter(|kept| now <= kept.used + IN_USE && kept.is_due(now));
        fetches.extend(due.map(|kept| kept.fetch.clone()));
        for fetch in fetches {
            self.submit(fetch, now);
        }
    }

    /// Keeps a list, unless there is a newer one from the same place: false.
    fn keep(&mut self, new: KeptCrl) -> bool {
        match self.crls.get_mut(&new.fetch.uri) {
            Some(there) if there.crl.is_newer_than(&new.crl) => {
                there.fetched = new.fetched;
                false
            }
            _ => {
                self.crls.insert(new.fetch.uri.clone(), new);
                true
            }
        }
    }

    /// Removes the least recently used objects beyond the limits.
    fn bound(&mut self) {
        let bytes = |crls: &HashMap<String, KeptCrl>| crls.values().map(|kept| kept.crl.der().len()).sum::<usize>();
        while self.crls.len() > MAX_CRLS || self.crls.len() > 1 && bytes(&self.crls) > MAX_CRLS_BYTES {
            let Some(oldest) = self.crls.iter().min_by_key(|(_, kept)| kept.used).map(|(uri, _)| uri.clone()) else {
                break;
            };
            self.crls.remove(&oldest);
        }
        while self.responses.len() > MAX_RESPONSES {
            let Some(oldest) = self.responses.iter().min_by_key(|(_, kept)| kept.used).map(|(at, _)| *at) else {
                break;
            };
            self.responses.remove(&oldest);
        }
        while self.attempts.len() > MAX_ATTEMPTS {
            let Some(oldest) = self.attempts.iter().min_by_key(|(_, a)| a.at).map(|(key, _)| key.clone()) else {
                break;
            };
            self.attempts.remove(&oldest);
        }
    }
}

/// A list in DER or PEM that one of these certificates signed.
fn checked(bytes: &[u8], signers: &[Certificate]) -> anyhow::Result<Crl> {
    let block = pem::blocks(bytes)?.into_iter().next().context("contains no CRL")?;
    let other = || anyhow!("{:?} did not sign this CRL", signers[0]);
    if !Crl::is_der_signed_by(&block.der, signers) {
        return Err(other());
    }
    let crl = Crl::from_der(&block.der)?;
    if signers.iter().any(|signer| crl.is_by(signer)) { Ok(crl) } else { Err(other()) }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let size = std::fs::metadata(path)?.len();
    if size > MAX_CRL_BYTES as u64 {
        bail!("{size} bytes exceed the limit");
    }
    Ok(std::fs::read(path)?)
}

fn file_of(folder: &Path, uri: &str) -> PathBuf {
    let name: String = sha256(uri.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    folder.join(format!("{name}.crl"))
}

/// A list that was saved before, and when.
fn saved(file: &Path, signers: &[Certificate]) -> Option<(Crl, Duration)> {
    let crl = checked(&read(file).ok()?, signers).ok()?;
    let changed = std::fs::metadata(file).ok()?.modified().ok()?;
    Some((crl, changed.duration_since(std::time::UNIX_EPOCH).ok()?))
}

/// Saves a list; without a place for it the next start fetches it again.
fn save(file: &Path, der: &[u8]) {
    let Some(folder) = file.parent() else { return };
    let fresh = file.with_extension("new");
    let saved = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&fresh, der))
        .and_then(|()| std::fs::rename(&fresh, file));
    if let Err(error) = saved {
        tracing::debug!(target: "cfg", "{}: {error}", file.display());
    }
    let mut all = files(folder);
    all.sort();
    let beyond = all.len().saturating_sub(MAX_FILES);
    for (_, oldest) in all.into_iter().take(beyond) {
        let _ = std::fs::remove_file(oldest);
    }
}

/// Lists of the folder with the times of their change.
fn files(folder: &Path) -> Vec<(std::time::SystemTime, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let crls = entries.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "crl"));
    crls.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect()
}
